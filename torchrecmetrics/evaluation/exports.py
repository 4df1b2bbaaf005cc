"""Export results as dicts, frames, JSON, Markdown and LaTeX."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from torchrecmetrics.analysis.formatting import filled, latex, markdown, records, texts
from torchrecmetrics.data.frames import frame_of

_GAPS = {"k": "whole numbers", "group": "text", "low": "floats", "high": "floats"}
_LEFT = ("metric", "group")


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
        return json.dumps(
            {"rows": records(self.result_rows()), "counts": self.counts()}, indent=indent, allow_nan=False
        )

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
        columns = filled(self.to_dict())
        return markdown([*columns], texts(columns), _LEFT)

    def to_latex(self) -> str:
        """Return a LaTeX tabular with the rules of booktabs, without columns that hold nothing."""
        columns = filled(self.to_dict())
        return latex([*columns], texts(columns), _LEFT)
