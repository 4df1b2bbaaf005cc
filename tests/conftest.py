import pytest
import torch


@pytest.fixture(
    params=["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
)
def device(request):
    return torch.device(request.param)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)
