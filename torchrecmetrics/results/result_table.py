"""`ResultTable`: print results, and convert them to columns, frames, Markdown, LaTeX and JSON records."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from textwrap import fill
from typing import Any, ClassVar

from torchrecmetrics.core.checks import frame_of, nearest

WIDTH = 88
"""Columns of the text below a table."""


class ResultColumns:
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


class ResultTable(ResultColumns):
    """Base class of result tables: prints them, and converts rows to columns, frames, Markdown and LaTeX."""

    _words: ClassVar[Collection[str]]
    """Names of the columns of text, which are aligned to the left."""
    _prints_head: ClassVar[bool] = True
    """True if the printed table has a head, and a blank line and notes of at most `WIDTH` columns below it."""
    _best: Collection[tuple[str, int]] = ()
    """Column and row of the values that Markdown and LaTeX print in bold."""

    def result_rows(self) -> Sequence[Mapping[str, Any]]:
        """Return the columns of each row by name, in order; there is at least one row."""
        raise NotImplementedError

    @property
    def notes(self) -> list[str]:
        """Sentences below the printed table."""
        return []

    def __str__(self) -> str:
        columns, notes = self._cells(self._printed()), self.notes
        if self._prints_head:
            notes = ["", *(fill(note, WIDTH) for note in notes)]
        else:
            columns = {name: cells[1:] for name, cells in columns.items()}
        return "\n".join([*("  ".join(line).rstrip() for line in self._lines(columns)), *notes])

    def _repr_html_(self) -> str:
        columns = self._cells(self._printed(), html.escape)
        rows = ["".join(f"<td>{cell.strip()}</td>" for cell in row) for row in zip(*columns.values(), strict=True)]
        notes = [f"<p>{html.escape(note)}</p>" for note in self.notes]
        return "\n".join(["<table>", *(f"<tr>{row}</tr>" for row in rows), "</table>", *notes])

    def to_markdown(self) -> str:
        """Return a table in Markdown, without columns that are None in all rows."""
        columns = self._cells(self._texts(), lambda text: text.replace("|", "\\|"), "**{}**")
        head, *lines = self._lines(columns, 3)
        rule = [
            "-" * (len(c) - 1) + ("-" if name in self._words else ":") for name, c in zip(columns, head, strict=True)
        ]
        return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *lines))

    def to_latex(self) -> str:
        """Return a LaTeX tabular, which needs the package booktabs, without columns that are None in all rows."""
        columns = self._cells(self._texts(), _tex, r"\textbf{{{}}}")
        form = "".join("l" if name in self._words else "r" for name in columns)
        head, *lines = [f"{' & '.join(row)} \\\\" for row in zip(*columns.values(), strict=True)]
        start = [r"% \usepackage{booktabs}", f"\\begin{{tabular}}{{{form}}}", r"\toprule"]
        return "\n".join([*start, head, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}"])

    def _columns(self) -> dict[str, Any]:
        """Return the columns of the rows as lists."""
        rows = self.result_rows()
        return {name: [row[name] for row in rows] for name in rows[0]}

    def _texts(self) -> dict[str, list[str]]:
        """Return the columns that are not None in all rows, as text: floats with four decimals, empty text for None."""
        filled = {name: column for name, column in self.to_dict().items() if any(cell is not None for cell in column)}
        return {name: [_text(cell) for cell in column] for name, column in filled.items()}

    def _printed(self) -> dict[str, list[str]]:
        """Return the columns of the printed table as text."""
        return self._texts()

    def _cells(
        self, columns: Mapping[str, Sequence[str]], escape: Callable[[str], str] = str, best: str = "{}"
    ) -> dict[str, list[str]]:
        """Return columns of escaped text with their heads, and the best values in a form such as "**{}**"."""
        cells = {name: [escape(text) for text in (name, *column)] for name, column in columns.items()}
        for name, row in self._best:
            cells[name][row + 1] = best.format(cells[name][row + 1])
        return cells

    def _lines(self, columns: Mapping[str, Sequence[str]], least: int = 0) -> list[tuple[str, ...]]:
        """Return the rows of columns, with cells as wide as the column's longest text, or `least`."""
        padded = []
        for name, cells in columns.items():
            width = max(least, *map(len, cells))
            padded.append([cell.ljust(width) if name in self._words else cell.rjust(width) for cell in cells])
        return [*zip(*padded, strict=True)]


class ModelTable(ResultTable):
    """Table of values with a row per model and a column per metric, which `Comparison.by_model` returns.

    The best values of a metric have a star, and are bold in Markdown and LaTeX; values with a dagger differ
    significantly from those of the baseline. `to_dict`, `to_pandas` and `to_polars` have only the values, as numbers.
    """

    _words: ClassVar[Collection[str]] = ("model",)

    def __init__(
        self,
        values: Mapping[str, Mapping[str, float]],
        errors: Mapping[str, Mapping[str, float]],
        best: Collection[tuple[str, int]],
        different: Collection[tuple[str, int]],
        notes: list[str],
    ) -> None:
        self.values: Mapping[str, Mapping[str, float]] = values
        self.errors: Mapping[str, Mapping[str, float]] = errors
        self._best, self._different, self._notes = best, different, notes

    @property
    def notes(self) -> list[str]:
        """Sentences below the printed table: the meaning of the marks, and the test."""
        return self._notes

    def result_rows(self) -> list[dict[str, Any]]:
        """Return a row per model: its name, its values and, if requested, their standard errors."""
        rows: list[dict[str, Any]] = []
        for model, values in self.values.items():
            rows.append({"model": model})
            for key, value in values.items():
                rows[-1][key] = value
                if self.errors:
                    rows[-1][f"{key} standard error"] = self.errors[model][key]
        return rows

    def _texts(self) -> dict[str, list[str]]:
        return self._with_marks("", "")

    def _printed(self) -> dict[str, list[str]]:
        return self._with_marks("*", " ")  # spaces instead of marks keep numbers aligned

    def _with_marks(self, star: str, gap: str) -> dict[str, list[str]]:
        """Return the columns as text: value, standard error if there is one, star of the best values, and dagger."""
        columns: dict[str, list[str]] = {"model": [*self.values]}
        for row, (model, values) in enumerate(self.values.items()):
            for key, value in values.items():
                text = decimals(value, absent="-")
                text += f" ± {decimals(self.errors[model][key])}" if self.errors and text != "-" else ""
                text += star if (key, row) in self._best else gap
                columns.setdefault(key, []).append(text + ("†" if (key, row) in self._different else gap))
        return columns


_TEX = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "<": "$<$",
    ">": "$>$",
    "±": r"$\pm$",
    "†": r"$^{\dagger}$",
}


def _tex(text: str) -> str:
    """Return text with LaTeX's special characters escaped, and a minus for the hyphen before a number."""
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", "".join(_TEX.get(sign, sign) for sign in text))


def decimals(number: float, digits: int = 4, sign: str = "", absent: str = "nan") -> str:
    """Return a number as all tables print it: with `digits` decimals, with its sign for "+"; `absent` for NaN."""
    return absent if math.isnan(number) else f"{number:{sign}.{digits}f}"


def p_text(p: float) -> str:
    """Return a p value as text; "-" for NaN."""
    return "<0.0001" if p < 0.0001 else decimals(p, absent="-")


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    return decimals(cell) if isinstance(cell, float) else str(cell)


def unknown_key(key: str, keys: Iterable[str]) -> KeyError:
    """Return the error for a key that no result has, which names the nearest key."""
    return KeyError(f"no result has the key {key!r}{nearest(key, keys)}")


def records(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows for JSON; numbers that are not finite are None."""
    return [
        {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()}
        for row in rows
    ]
