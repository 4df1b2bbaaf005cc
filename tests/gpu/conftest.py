"""Fixtures for tests that need a GPU. Without CUDA every test here is skipped.

With TRITON_INTERPRET=1 tests that need only the kernels run on the CPU with small inputs: test_triton.py does that.
"""

import os
from typing import NamedTuple

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read only once; deterministic mode needs it

import pytest
import torch

try:
    from torchrecmetrics.kernels import triton as kernels
except ImportError:
    kernels = None


class Place(NamedTuple):
    """The device of a test, and whether its inputs must be small."""

    device: torch.device
    small: bool

    def pick(self, large, small):
        """Return `large` on a GPU and `small` in the interpreter."""
        return small if self.small else large


@pytest.fixture
def cuda():
    """Return a GPU on which the kernels run, or skip the test."""
    if kernels is None:
        pytest.skip("Triton is not installed")
    if kernels._INTERPRETED or not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    if (reason := kernels.unavailable(torch.device("cuda"))) is not None:
        pytest.skip(reason)
    torch.manual_seed(0)
    return torch.device("cuda")


@pytest.fixture
def place(request):
    """Return a GPU, or the CPU if Triton is interpreted."""
    if kernels is not None and kernels._INTERPRETED:
        torch.manual_seed(0)
        return Place(torch.device("cpu"), True)
    return Place(request.getfixturevalue("cuda"), False)


@pytest.fixture
def precision():
    """Yield `torch.set_float32_matmul_precision` and restore the precision at the end."""
    before = torch.get_float32_matmul_precision()
    yield torch.set_float32_matmul_precision
    torch.set_float32_matmul_precision(before)
