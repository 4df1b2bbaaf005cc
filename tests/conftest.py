import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported: its threads then wait without a core

os.environ.setdefault("NUMBA_DISABLE_JIT", "1")  # ranx as plain Python: compiling it takes longer than all the tests

import pytest
import torch


@pytest.fixture(params=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
def device(request):
    """Every numeric test runs on the CPU and, where there is one, on a GPU."""
    return torch.device(request.param)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)
