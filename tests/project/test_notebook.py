"""The notebook is the page on a first evaluation, and runs from top to bottom."""

import contextlib
import importlib.util
import io
import json
from pathlib import Path

import pytest
from pages import blocks

ROOT = Path(__file__).parents[2]
pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("notebook", ROOT / "docs" / "notebook.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_notebook_is_that_of_the_page(maker):
    """The notebook is the one that `python docs/notebook.py` writes from the page."""
    assert maker.NOTEBOOK.read_text(encoding="utf-8") == maker.notebook()


def test_it_runs_and_prints_what_the_page_shows(maker, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for cell in json.loads(maker.NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), namespace)
    shown = "".join(block.output or "" for block in blocks(maker.PAGE))
    assert printed.getvalue().split() == shown.split()
