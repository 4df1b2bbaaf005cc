"""Write the page on a first evaluation as a notebook, with its outputs: `python docs/notebook.py`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "start" / "first-evaluation.md"
NOTEBOOK = ROOT / "examples" / "first_evaluation.ipynb"
TITLE = """# A first evaluation with torchrecmetrics

From a file of ratings to the hit rate, NDCG and MRR of two models. It needs `pip install -e ".[examples]"` in a
copy of the repository. The page [Install, and evaluate a first
model](../docs/start/first-evaluation.md) has the same text.
"""
_FENCE = re.compile(r"^```(python|text)\n(.*?)^```\n?", re.M | re.S)


def cells(page: str) -> list[dict[str, Any]]:
    """Return the cells of the section "A first evaluation": text, and Python blocks with their output."""
    section = TITLE + page.partition("\n## A first evaluation\n")[2].partition("\n\n")[2]
    found: list[dict[str, Any]] = []
    end = 0
    for match in [*_FENCE.finditer(section), None]:
        text = section[end : match.start() if match else len(section)]
        text = re.sub(r"\{py:obj\}`([^<`]+?)(?: <[^`]+)?`", r"`\1`", text)
        text = re.sub(r"<!--.*?-->", "", text).replace("](../", "](../docs/").replace("docs/docs/", "docs/").strip()
        if text:
            found.append({"cell_type": "markdown", "metadata": {}, "source": text.splitlines(keepends=True)})
        if match and match[1] == "python":
            found.append(_code(match[2], count=1 + sum(cell["cell_type"] == "code" for cell in found)))
        elif match:
            lines = match[2].splitlines(keepends=True)
            found[-1]["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}]
        end = match.end() if match else len(section)
    for number, cell in enumerate(found):
        cell["id"] = f"cell-{number}"
    return found


def _code(text: str, count: int) -> dict[str, Any]:
    """Return a cell of code that ran as the given count."""
    source = text.rstrip("\n").splitlines(keepends=True)
    return {"cell_type": "code", "execution_count": count, "metadata": {}, "outputs": [], "source": source}


def notebook() -> str:
    """Return the notebook as JSON."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {
        "cells": cells(PAGE.read_text(encoding="utf-8")),
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(), encoding="utf-8")
