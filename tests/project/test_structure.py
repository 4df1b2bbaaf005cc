"""Rules of the structure: short files, few parameters, imports that run downwards, a test file for each module."""

import ast
from pathlib import Path

import torchrecmetrics as trm

PACKAGE = Path(trm.__file__).parent
LONG = {
    "beyond/functional.py",
    "beyond/metrics.py",
    "cli.py",
    "data/files.py",
    "data/interactions.py",
    "evaluation/listed.py",
    "evaluation/lists.py",
    "analysis/comparison.py",
    "kernels/triton.py",
    "metrics.py",
}
"""Files of more than 450 lines: formulas, options with their docstrings, readers of many forms."""


def modules(*patterns):
    return [path for pattern in patterns for path in sorted(PACKAGE.glob(pattern))]


def named(path):
    return path.relative_to(PACKAGE).as_posix()


def test_files_are_short():
    """No further file grows beyond 450 lines, and files that shrink leave the list."""
    lines = {named(path): len(path.read_text(encoding="utf-8").splitlines()) for path in modules("**/*.py")}
    assert {name for name, number in lines.items() if number > 450} == LONG


def test_no_public_function_has_many_parameters():
    """Further options live with what they describe: an input, an accumulator, a metric."""
    many = []
    for path in modules("**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and path.name != "triton.py":
                number = len(node.args.args) + len(node.args.kwonlyargs) + len(node.args.posonlyargs)
                if number > 18:
                    many.append((named(path), node.name, number))
    assert not many


def imported(path):
    """Return the modules of this package, and all other packages, that a module imports when it runs."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return {name.removeprefix("torchrecmetrics.") for name in names}


def packages(path):
    return {name.split(".")[0] for name in imported(path)}


def inputs_of(path):
    return {name.split(".")[1] for name in imported(path) if name.startswith("inputs.")}


def test_imports():
    """Only `as_input` imports the inputs that `update` makes; metrics import no files, frames or plots.

    `TestLayers` in test_pictures.py tests that imports run downwards, from layer to layer.
    """
    frameworks = {"pandas", "polars", "matplotlib", "lightning"}
    assert not [named(path) for path in modules("core/*.py") if packages(path) & frameworks]
    assert inputs_of(PACKAGE / "core" / "evaluator.py") == {"as_input"}
    shared = {"base", "targets", "exclude", "ties", "scores", "jagged"}
    for path in modules("inputs/*.py"):
        assert inputs_of(path) <= shared | ({"ranks"} if path.name == "as_input.py" else set()), path
    for path in modules("inputs/*.py", "*metrics.py", "functional.py"):
        assert not packages(path) & (frameworks | {"analysis", "data", "evaluation", "pyg", "arrow"}), path


ELSEWHERE = {
    "__main__": "test_cli",
    "analysis/pairing": "analysis/test_comparison",
    "analysis/row_ids": "analysis/test_rows",
    "analysis/significance": "analysis/test_comparison",
    "analysis/tables": "analysis/test_comparison",
    "arrow/columns": "arrow/test_tallies",
    "arrow/counting": "arrow/test_tallies",
    "arrow/states": "arrow/test_tallies",
    "beyond/functional": "beyond/test_metrics",
    "beyond/item_counts": "beyond/test_list_metric",
    "core/checks": "core/test_metric",
    "core/distributed": "core/test_metric",
    "core/options": "test_metrics",
    "core/row_buffer": "core/test_kept_rows",
    "core/rows": "test_metrics",
    "core/student": "core/test_intervals",
    "data/columns": "data/test_interactions",
    "data/events": "data/test_files",
    "data/ids": "data/test_vocabulary",
    "evaluation/arguments": "evaluation/test_models",
    "evaluation/exclusions": "evaluation/test_models",
    "evaluation/listed": "evaluation/test_lists",
    "evaluation/unknown_ids": "evaluation/test_lists",
    "inputs/base": "inputs/test_as_input",
    "inputs/targets": "inputs/test_scores",
    "kernels/blocks": "kernels/test_topk_ids",
    "kernels/contract": "kernels/test_eager",
    "kernels/thresholds": "kernels/test_eager",
    "lightning/outputs": "lightning/test_steps",
    "lightning/replicas": "lightning/test_samples",
    "names": "test_collection",
    "values": "test_collection",
}
"""Modules that are tested through another one, and the file that does it."""
OF_SEVERAL_MODULES = {
    "arrow/test_engines",  # tallies in engines for data
    "beyond/test_peers",
    "lightning/test_cli",
    "lightning/test_module",
    "lightning/test_without_lightning",
    "test_conformance",
    "test_matrix",
    "test_peers",
}


def test_tests_mirror_the_package():
    """Each module has a test file with its path, or names one; each test file has its module, or is of several."""
    folder, mirrors, files = Path(__file__).parents[1], {}, set()
    for path in modules("**/*.py"):
        module = path.relative_to(PACKAGE).with_suffix("")
        if path.name != "__init__.py":
            mirrors[module.as_posix()] = module.with_name(f"test_{module.name}").as_posix()
    for path in folder.rglob("test_*.py"):
        if path.parent.name not in ("gpu", "project"):
            files.add(path.relative_to(folder).with_suffix("").as_posix())
    assert {module for module, file in mirrors.items() if file not in files} == ELSEWHERE.keys()
    assert set(ELSEWHERE.values()) <= files
    assert files - set(mirrors.values()) == OF_SEVERAL_MODULES
