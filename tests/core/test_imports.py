"""Which part of the package may import which."""

import ast
from pathlib import Path

import pytest

import torchrecmetrics as trm

PACKAGE = Path(trm.__file__).parent
SHARED_INPUTS = {"base", "targets", "exclude", "ties", "scores", "jagged"}


def imported(path):
    """Return the modules of this package, and all other packages, that a module imports when it runs."""
    tree = ast.parse(path.read_text())
    for node in [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    ]:
        node.body = []
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return {name.removeprefix("torchrecmetrics.") for name in names}


def modules(*patterns):
    return [path for pattern in patterns for path in sorted(PACKAGE.glob(pattern))]


def named(path):
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", modules("core/*.py"), ids=named)
def test_core_imports_torch_torchmetrics_and_itself(path):
    """One module turns the arguments of `update` into an input."""
    parts = {name.split(".")[0] for name in imported(path)}
    own = parts & {path.stem for path in PACKAGE.iterdir()}
    allowed = {"core", "inputs"} if path.name == "evaluator.py" else {"core"}
    assert own <= allowed
    assert parts & {"torch", "torchmetrics", "pandas", "polars", "matplotlib", "lightning"} <= {"torch", "torchmetrics"}
    if path.name == "evaluator.py":
        assert {name.split(".")[1] for name in imported(path) if name.startswith("inputs.")} == {"as_input"}


@pytest.mark.parametrize("path", modules("inputs/*.py"), ids=named)
def test_inputs_import_core_kernels_and_what_they_share(path):
    """`as_input` alone knows the inputs that `update` makes itself."""
    names = imported(path)
    own = {name.split(".")[0] for name in names} & {path.stem for path in PACKAGE.iterdir()}
    assert own <= {"core", "kernels", "inputs"}
    siblings = {name.split(".")[1] for name in names if name.startswith("inputs.")}
    assert siblings <= SHARED_INPUTS | ({"ranks"} if path.name == "as_input.py" else set())


@pytest.mark.parametrize("path", modules("core/*.py", "inputs/*.py", "*metrics.py", "functional.py"), ids=named)
def test_metrics_know_no_files_frames_or_plots(path):
    """`Interactions` is recognised by what it can do."""
    parts = {name.split(".")[0] for name in imported(path)}
    assert not parts & {"analysis", "data", "evaluation", "lightning", "pyg", "arrow", "matplotlib"}
