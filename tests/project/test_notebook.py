"""The notebook is the page on a first evaluation, whose code and output test_pages.py compares."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("notebook", Path(__file__).parents[2] / "docs" / "notebook.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_notebook_is_that_of_the_page(maker):
    """The notebook is the one that `python docs/notebook.py` writes from the page."""
    assert maker.NOTEBOOK.read_text(encoding="utf-8") == maker.notebook()
