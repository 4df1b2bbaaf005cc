"""Rules that keep a source file readable at first reading; tests/core has those of imports and calls."""

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


def test_files_are_short():
    """No further file grows beyond 450 lines, and files that shrink leave the list."""
    lines = {
        path.relative_to(PACKAGE).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in PACKAGE.rglob("*.py")
    }
    assert {name for name, number in lines.items() if number > 450} == LONG


def test_no_public_function_has_many_parameters():
    """Further options live with what they describe: an input, an accumulator, a metric."""
    many = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and path.name != "triton.py":
                number = len(node.args.args) + len(node.args.kwonlyargs) + len(node.args.posonlyargs)
                if number > 18:
                    many.append((path.relative_to(PACKAGE).as_posix(), node.name, number))
    assert not many
