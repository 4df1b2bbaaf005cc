"""Format results as Markdown and LaTeX tables and as JSON records."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any


def filled(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Leave out columns that hold nothing but None."""
    return {name: column for name, column in columns.items() if any(cell is not None for cell in column)}


def texts(columns: dict[str, list[Any]]) -> list[list[str]]:
    """Write the cells of columns, line by line: floats with four decimals, nothing for None."""
    return [[_text(cell) for cell in line] for line in zip(*columns.values(), strict=True)]


def _text(cell: Any) -> str:
    return "" if cell is None else f"{cell:.4f}" if isinstance(cell, float) else str(cell)


def markdown(header: Sequence[str], lines: Iterable[Sequence[str]], left: Iterable[str]) -> str:
    """Return a table in Markdown; columns named in `left` are aligned there, others to the right."""
    cells = [[cell.replace("|", "\\|") for cell in line] for line in [header, *lines]]
    width = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    names = {*left}
    right = [name not in names for name in header]
    rule = ["-" * (w - 1) + (":" if r else "-") for w, r in zip(width, right, strict=True)]
    padded = [[c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, width, right, strict=True)] for line in cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in [padded[0], rule, *padded[1:]])


def latex(header: Sequence[str], lines: Iterable[Sequence[str]], left: Iterable[str]) -> str:
    """Return a LaTeX tabular with the rules of booktabs."""
    names = {*left}
    form = "".join("l" if name in names else "r" for name in header)
    rows = [" & ".join(map(_escaped, line)) + " \\\\" for line in [header, *lines]]
    head = [f"\\begin{{tabular}}{{{form}}}", "\\toprule", rows[0], "\\midrule"]
    return "\n".join([*head, *rows[1:], "\\bottomrule", "\\end{tabular}"])


def _escaped(text: str) -> str:
    """Write text for LaTeX."""
    return re.sub(r"([&%$#_{}])", r"\\\1", text)


def records(rows: Iterable[Any]) -> list[dict[str, Any]]:
    """Return named tuples as JSON has them, {field: value}; what is not finite is None."""
    return [
        {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in row._asdict().items()
        }
        for row in rows
    ]
