"""`Table`: results as columns, frames, Markdown and LaTeX; JSON records."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from torchrecmetrics.results.frames import frame_of


class Columns:
    """Base class of results with columns: converts them to lists and frames."""

    _gaps: ClassVar[Mapping[str, str]] = {}
    """Kind of each column that may hold None, by name: "whole numbers", "floats" or "text"."""

    def _columns(self) -> dict[str, Any]:
        """Return the columns by name: lists, or NumPy arrays."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the columns, {name: list with one value per row}.

        Examples:
            >>> import torchrecmetrics as trm
            >>> evaluation = trm.evaluate_lists("MRR", {7: [1, 2]}, target={7: [2]}, k=2)
            >>> columns = evaluation.to_dict()
            >>> columns["metric"], columns["value"], columns["low"]
            (['MRR'], [0.5], [None])
        """
        return {
            name: column if isinstance(column, list) else column.tolist() for name, column in self._columns().items()
        }

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame of `to_dict`; None is pd.NA among whole numbers (type Int64), and NaN among floats.

        Raises:
            ImportError: without pandas.
        """
        return frame_of("pandas", self._columns(), self._gaps)

    def to_polars(self) -> Any:
        """Return a polars.DataFrame of `to_dict`; None is null, and nan stays NaN.

        Raises:
            ImportError: without polars.
        """
        return frame_of("polars", self._columns(), self._gaps)


class Table(Columns):
    """Base class of result tables: converts rows to columns, frames, Markdown and LaTeX."""

    _words: ClassVar[Collection[str]]
    """Names of the columns of text, which are aligned to the left."""

    def result_rows(self) -> Sequence[Mapping[str, Any]]:
        """Return the columns of each row by name, in order; there is at least one row."""
        raise NotImplementedError

    def _columns(self) -> dict[str, Any]:
        """Return the columns of the rows as lists."""
        rows = self.result_rows()
        return {name: [row[name] for row in rows] for name in rows[0]}

    def _repr_html_(self) -> str:
        columns = self._texts()
        return html_table([columns, *zip(*columns.values(), strict=True)], self._sentences())

    def _sentences(self) -> list[str]:
        """Return the sentences below the table in a notebook."""
        return []

    def to_markdown(self) -> str:
        """Return a table in Markdown, without columns that are None in all rows."""
        columns = {name: [cell.replace("|", "\\|") for cell in cells] for name, cells in self._texts().items()}
        head, *lines = self._lines(columns, 3)
        rule = [
            "-" * (len(c) - 1) + ("-" if name in self._words else ":") for name, c in zip(columns, head, strict=True)
        ]
        return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *lines))

    def _lines(self, columns: Mapping[str, Sequence[str]], least: int = 0) -> list[tuple[str, ...]]:
        """Return the head and the rows, with cells as wide as the column's longest text, or `least`."""
        padded = []
        for name, cells in columns.items():
            width = max(least, *map(len, (name, *cells)))
            padded.append([cell.ljust(width) if name in self._words else cell.rjust(width) for cell in (name, *cells)])
        return [*zip(*padded, strict=True)]

    def to_latex(self) -> str:
        """Return a LaTeX tabular made by pandas, with the rules of booktabs, without columns that are None in all rows.

        Raises:
            ImportError: without pandas, or without Jinja2, which pandas needs for LaTeX.
        """
        columns = self._texts()
        form = "".join("l" if name in self._words else "r" for name in columns)
        text: str = frame_of("pandas", columns).to_latex(index=False, escape=True, column_format=form)
        text = re.sub(r"(?<![\w.])-(?=\d)", "$-$", text.rstrip())  # a minus, not a hyphen
        return text.replace("<", "$<$").replace(">", "$>$").replace("|", r"\textbar{}")

    def _texts(self) -> dict[str, list[Any]]:
        """Return the columns that are not None in all rows, as text: floats with four decimals, empty text for None."""
        filled = {name: column for name, column in self.to_dict().items() if any(cell is not None for cell in column)}
        return {name: [_text(cell) for cell in column] for name, column in filled.items()}


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    return f"{cell:.4f}" if isinstance(cell, float) else str(cell)


def records(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows for JSON; numbers that are not finite are None."""
    return [
        {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()}
        for row in rows
    ]


def html_table(rows: Iterable[Iterable[str]], notes: Iterable[str] = ()) -> str:
    """Return rows of text, the first of which is the head, as a table in HTML with notes below it."""
    cells = ["".join(f"<td>{html.escape(cell.strip())}</td>" for cell in row) for row in rows]
    lines = [f"<tr>{line}</tr>" for line in cells]
    return "\n".join(["<table>", *lines, "</table>", *(f"<p>{html.escape(note)}</p>" for note in notes)])
