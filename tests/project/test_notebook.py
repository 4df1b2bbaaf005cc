"""The notebook is the page on a first evaluation, whose code and output test_pages.py compares."""

import importlib.util
import json
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


def test_title_and_outputs(maker):
    """The notebook begins with a title of its own; each cell that prints has its output, and links lead to files."""
    cells = json.loads(maker.notebook())["cells"]
    assert cells[0]["source"][0] == "# A first evaluation with torchrecmetrics\n"
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]
    assert all(cell["outputs"] for cell in code if "print(" in "".join(cell["source"]))
    links = maker.re.findall(r"\]\((\.\./[^)#]+)", "".join(line for cell in cells for line in cell["source"]))
    assert links
    assert not [link for link in links if not (maker.NOTEBOOK.parent / link).is_file()]
