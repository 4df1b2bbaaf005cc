"""The notebook is the page on a first evaluation, whose code and output test_pages.py compares."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")


def test_the_notebook_is_the_one_that_the_script_writes_from_the_page():
    path = Path(__file__).parents[2] / "docs" / "notebook.py"
    spec = importlib.util.spec_from_file_location("notebook", path)
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)

    assert maker.NOTEBOOK.read_text(encoding="utf-8") == maker.notebook()
