"""The README runs as written and names everything public; docstring examples and programs run."""

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import torchrecmetrics as trm
from torchrecmetrics import functional

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^( *)```python\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def test_readme():
    """Every Python block runs, in order, in one namespace; prompts show what is printed."""
    namespace = {}
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for match in BLOCK.finditer(README):
        indent, text = len(match[1]), match[2]
        text = "\n".join(line[indent:] for line in text.splitlines())
        if ">>>" in text:
            test = parser.get_doctest(
                text, namespace, "README.md", "README.md", README[: match.start()].count("\n") + 1
            )
            runner.run(test, clear_globs=False)
            namespace.update(test.globs)
        else:
            pytest.importorskip("pytorch_lightning")
            exec(compile(text, "README.md", "exec"), namespace)
    assert runner.summarize(verbose=False) == (0, runner.tries)
    assert runner.tries > 20


@pytest.mark.parametrize("module", [info.name for info in pkgutil.iter_modules(trm.__path__, "torchrecmetrics.")])
def test_docstrings(module):
    """Examples in docstrings give what they show."""
    results = doctest.testmod(importlib.import_module(module))
    assert results.failed == 0


@pytest.mark.parametrize("name", trm.__all__)
def test_public_names(name):
    """Every public name has a docstring and stands in the README."""
    assert getattr(trm, name).__doc__
    assert f"`{name}" in README


@pytest.mark.parametrize("name", functional.__all__)
def test_public_functions(name):
    assert getattr(functional, name).__doc__


def test_ci_runs_the_readme():
    """CI takes the test command from the README, so that there is one text."""
    command = re.search(r"<!-- test command -->\n```bash\n(.*)\n```", README)[1]
    assert command.endswith("python -m pytest")
    assert "<!-- test command -->" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*.py")), ids=lambda path: path.name)
def test_examples_start(path, tmp_path):
    """Every example explains itself and leaves nothing behind."""
    pytest.importorskip("pytorch_lightning")
    done = subprocess.run(
        [sys.executable, path, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    assert "--data" in done.stdout
    assert not list(tmp_path.iterdir())
