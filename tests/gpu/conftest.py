"""What only a card can show. Without CUDA every test here is skipped.

With TRITON_INTERPRET=1 those that need no more than the kernels run on the CPU, small: test_triton.py does that.
"""

import os
from typing import NamedTuple

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read once; deterministic mode asks for it

import pytest
import torch

try:
    from torchrecmetrics.kernels import triton as kernels
except ImportError:
    kernels = None


class Place(NamedTuple):
    """Where a test runs, and whether it has to be quick there."""

    device: torch.device
    small: bool

    def pick(self, large, small):
        """What to take on a card, or in the interpreter."""
        return small if self.small else large


@pytest.fixture
def cuda():
    """A card on which the kernels run."""
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
    """A card, or the CPU where Triton is interpreted."""
    if kernels is not None and kernels._INTERPRETED:
        torch.manual_seed(0)
        return Place(torch.device("cpu"), True)
    return Place(request.getfixturevalue("cuda"), False)


@pytest.fixture
def precision():
    """`torch.set_float32_matmul_precision`, put back at the end."""
    before = torch.get_float32_matmul_precision()
    yield torch.set_float32_matmul_precision
    torch.set_float32_matmul_precision(before)
