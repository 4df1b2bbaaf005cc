"""The notebook is the page on a first evaluation, whose code test_pages.py runs."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")


def test_the_notebook_is_that_of_the_page():
    """The notebook is the one that `python docs/notebook.py` writes from the page."""
    spec = importlib.util.spec_from_file_location("notebook", Path(__file__).parents[2] / "docs" / "notebook.py")
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    assert maker.NOTEBOOK.read_text(encoding="utf-8") == maker.notebook()
