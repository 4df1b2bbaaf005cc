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


@pytest.fixture(scope="session", params=[distributed.Processes], ids=["processes"])
def processes(request):
    """Processes for all tests that need some, whose ids tell it."""
    shared = request.param()
    yield shared
    shared.close()


def pytest_addoption(parser):
    parser.addoption("--nightly", action="store_true", help="run the tests marked nightly, too, as .ci/nightly does")


def pytest_configure(config):
    """Let random tests know, when they are imported, that they may try many examples."""
    if config.getoption("--nightly"):
        os.environ["NIGHTLY"] = "1"


def pytest_collection_modifyitems(config, items):
    """Leave out nightly tests unless asked for; run slow tests first, and those that start processes are slow."""
    if not config.getoption("--nightly"):
        nightly = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
    for item in items:
        if "processes" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)

    def begins(item):
        slow = item.get_closest_marker("slow")
        return 2 if slow is None else 1 - sum(slow.args)  # the argument: how many minutes

    items.sort(key=begins)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give one worker all that share processes, which are started once, what is measured, or a page.

    `--dist loadgroup` would do, but since pytest 9.2 it sends marked tests anywhere (pytest-xdist issue 1386).
    """
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False  # in the order above

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            path, _, parameters = nodeid.partition("[")
            if "processes" in parameters.rstrip("]").split("-"):
                return "processes"
            if path.endswith("::test_block"):
                return parameters.partition(":")[0]  # the page
            return "benchmarks" if "test_benchmarks.py" in path else nodeid

    return Scheduling(config, log)
