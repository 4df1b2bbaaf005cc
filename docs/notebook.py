"""Write the page on a first evaluation as a notebook: `python docs/notebook.py`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "start" / "first-evaluation.md"
NOTEBOOK = ROOT / "examples" / "first_evaluation.ipynb"
_FENCE = re.compile(r"^```(python|text|bash)\n(.*?)^```\n?", re.M | re.S)


def cells(page: str) -> list[dict[str, Any]]:
    """Return the cells of a page: text, and Python blocks; printed output is left to whoever runs them."""
    found: list[dict[str, Any]] = []
    end = 0
    for match in [*_FENCE.finditer(page), None]:
        text = page[end : match.start() if match else len(page)]
        text = re.sub(r"\{py:obj\}`([^<`]+?)(?: <[^`]+)?`", r"`\1`", text)
        text = re.sub(r"<!--.*?-->", "", text).replace("](../", "](../docs/").strip()
        if match and match[1] == "bash":
            text = f"{text}\n\n{match[0]}".strip()
        if text:
            found.append({"cell_type": "markdown", "metadata": {}, "source": text.splitlines(keepends=True)})
        if match and match[1] == "python":
            source = match[2].rstrip("\n").splitlines(keepends=True)
            found.append(
                {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": source}
            )
        end = match.end() if match else len(page)
    for number, cell in enumerate(found):
        cell["id"] = f"cell-{number}"
    return found


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
