import importlib
import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported: idle threads then use no core

os.environ.setdefault("NUMBA_DISABLE_JIT", "1")  # ranx as plain Python: compiling it takes longer than all the tests

import distributed
import pytest
import torch


@pytest.fixture(params=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
def device(request):
    """Run every numeric test on the CPU and, where there is one, on a GPU."""
    return torch.device(request.param)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def pl(request):
    """Lightning as `pytorch_lightning`, or as each of the packages that a test is parametrised with."""
    return importlib.import_module(getattr(request, "param", "pytorch_lightning"))


@pytest.fixture(scope="session", params=[distributed.Processes], ids=["processes"])
def processes(request):
    """Processes that are shared by all tests that need several; the ids of these tests contain "processes"."""
    shared = request.param()
    yield shared
    shared.close()


def pytest_addoption(parser):
    parser.addoption("--nightly", action="store_true", help="run the tests marked nightly, too, as .ci/nightly does")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """`-n auto`: a worker takes about 1 GB."""
    return min(os.cpu_count() or 1, 4)


def pytest_configure(config):
    """Let random tests know, when they are imported, that they may try many examples."""
    if config.getoption("--nightly"):
        os.environ["NIGHTLY"] = "1"


def pytest_collection_modifyitems(config, items):
    """Leave out tests of the site and nightly ones unless asked for, and run slow tests first."""
    asked_for = {"nightly": config.getoption("--nightly"), "site": config.getoption("markexpr") == "site"}
    for mark in (mark for mark, asked in asked_for.items() if not asked):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker(mark)])
        items[:] = [item for item in items if not item.get_closest_marker(mark)]
    for item in items:
        if "processes" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)

    def begins(item):
        slow = item.get_closest_marker("slow")
        return 2 if slow is None else 1 - sum(slow.args)  # the argument of the mark is the number of minutes

    items.sort(key=begins)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give one worker all tests that share started processes, all benchmarks, all tests of the site, or of one page.

    `--dist loadgroup` would do this, but since pytest 9.2 it sends marked tests anywhere (pytest-xdist issue 1386).
    """
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False  # keeps the order of `pytest_collection_modifyitems`

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            path, _, parameters = nodeid.partition("[")
            if "processes" in parameters.rstrip("]").split("-"):
                return "processes"
            if path.endswith("::test_block"):
                return parameters.partition(":")[0]  # the page
            return next((name for name in ("test_benchmarks.py", "test_site.py") if name in path), nodeid)

    return Scheduling(config, log)
