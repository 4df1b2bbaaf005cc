"""Exports of results as dicts, frames, JSON, Markdown and LaTeX."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from torchrecmetrics.analysis.formatting import Table, records


class ResultRow(NamedTuple):
    """Result of one metric for one cut-off and group of users."""

    metric: str
    """Label without the cut-off."""
    k: int | None
    """Cut-off; None = the metric has none."""
    group: str | None
    """Group of users; None = all users."""
    value: float
    standard_error: float
    low: float | None
    """Lower end of an interval; None = not requested."""
    high: float | None
    """Upper end of an interval; None = not requested."""
    num_users: int
    """Number of users in the mean."""


class Exported(Table):
    """Base class of results with exports of rows and counts.

    The columns are metric, k, group, value, standard_error, low, high, num_users; a row is for a metric, cut-off and
    group. A `group` of None means all users; `low` and `high` are None where no interval was requested.
    """

    _gaps: ClassVar[dict[str, str]] = {"k": "whole numbers", "group": "text", "low": "floats", "high": "floats"}
    _words: ClassVar[tuple[str, ...]] = ("metric", "group")

    def result_rows(self) -> list[ResultRow]:
        """Return the rows, in order."""
        raise NotImplementedError

    def counts(self) -> dict[str, int]:
        """Return the counts by name."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the columns, {name: a value per row}.

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
