"""`Exported`: results of metrics as columns, frames, JSON, Markdown and LaTeX, always under the same names."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from torchrecmetrics.data.frames import frame_of

_GAPS = {"k": "whole numbers", "group": "text", "low": "floats", "high": "floats"}


class ResultRow(NamedTuple):
    """One metric's result."""

    metric: str
    """Label without the cut-off."""
    k: int | None
    """Cut-off; None = the metric has none."""
    group: str | None
    """Whom the value is of; None = all users."""
    value: float
    standard_error: float
    low: float | None
    """Lower end of an interval; None = nobody asked for one."""
    high: float | None
    """Upper end of an interval; None = nobody asked for one."""
    num_users: int
    """How many the value is a mean over."""


class Exported:
    """What has result rows and counts, in other forms.

    The columns are metric, k, group, value, standard_error, low, high, num_users: a row per metric and cut-off. A
    `group` of None is everybody; `low` and `high` are None where no interval was asked for.
    """

    def result_rows(self) -> list[ResultRow]:
        """Return the rows, in order."""
        raise NotImplementedError

    def counts(self) -> dict[str, int]:
        """Return what was counted, by name."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the columns, {name: a value per row}: what pandas, polars and pyarrow make frames of.

        Examples:
            >>> import torchrecmetrics as trm
            >>> found = trm.evaluate_lists("MRR", {7: [1, 2]}, target={"user": [7], "item": [2]}, k=2)
            >>> found.to_dict()["metric"], found.to_dict()["value"], found.to_dict()["low"]
            (['MRR'], [0.5], [None])
        """
        columns: list[Sequence[Any]] = list(zip(*self.result_rows(), strict=True))
        return {name: list(column) for name, column in zip(ResultRow._fields, columns, strict=True)}

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return JSON text: {"rows": [{"metric": ..., "k": ..., ...}], "counts": {"num_users": ...}}; NaN is null."""
        rows = [
            {name: None if _is_nan(value) else value for name, value in row._asdict().items()}
            for row in self.result_rows()
        ]
        return json.dumps({"rows": rows, "counts": self.counts()}, indent=indent, allow_nan=False)

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame; k is nullable (Int64), low and high are floats, NaN where there is none.

        Raises:
            ImportError: without pandas.
        """
        return frame_of("pandas", self.to_dict(), _GAPS)

    def to_polars(self) -> Any:
        """Return a polars.DataFrame; what is None is null.

        Raises:
            ImportError: without polars.
        """
        return frame_of("polars", self.to_dict(), _GAPS)

    def to_markdown(self) -> str:
        """Return a table in Markdown, without columns that hold nothing."""
        header, lines = self._cells()
        cells = [[cell.replace("|", "\\|") for cell in line] for line in [header, *lines]]
        width = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
        right = [name != "metric" and name != "group" for name in header]
        rule = ["-" * (w - 1) + (":" if r else "-") for w, r in zip(width, right, strict=True)]
        padded = [
            [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, width, right, strict=True)] for line in cells
        ]
        return "\n".join(f"| {' | '.join(line)} |" for line in [padded[0], rule, *padded[1:]])

    def to_latex(self) -> str:
        """Return a LaTeX tabular with the rules of booktabs, without columns that hold nothing."""
        header, lines = self._cells()
        form = "".join("l" if name in ("metric", "group") else "r" for name in header)
        rows = [" & ".join(map(_escaped, line)) + " \\\\" for line in [header, *lines]]
        head = [f"\\begin{{tabular}}{{{form}}}", "\\toprule", rows[0], "\\midrule"]
        return "\n".join([*head, *rows[1:], "\\bottomrule", "\\end{tabular}"])

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        """Return names and text of the columns that hold something."""
        columns = {name: column for name, column in self.to_dict().items() if any(cell is not None for cell in column)}
        return [*columns], [[_text(cell) for cell in line] for line in zip(*columns.values(), strict=True)]


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _text(cell: Any) -> str:
    """Write a cell of a table."""
    return "" if cell is None else f"{cell:.4f}" if isinstance(cell, float) else str(cell)


def _escaped(text: str) -> str:
    """Write text for LaTeX."""
    return re.sub(r"([&%$#_{}])", r"\\\1", text)
