import importlib
import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported: its threads then wait without a core

os.environ.setdefault("NUMBA_DISABLE_JIT", "1")  # ranx as plain Python: compiling it takes longer than all the tests

import distributed
import pytest
import torch


@pytest.fixture(params=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
def device(request):
    """Every numeric test runs on the CPU and, where there is one, on a GPU."""
    return torch.device(request.param)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def pl(request):
    """Lightning under its first name, or under each of those that a test is parametrised with."""
    return importlib.import_module(getattr(request, "param", "pytorch_lightning"))


@pytest.fixture(scope="session")
def processes():
    """Processes for all tests that need some."""
    shared = distributed.Processes()
    yield shared
    shared.close()


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items):
    """Begin with what takes long, and let one worker run all tests that share processes, which are started once."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    for item in items:
        if "processes" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("processes"))
