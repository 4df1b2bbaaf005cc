"""`Evaluation.groups`: the results of an evaluation by group of users, the worst group and the gap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from torchrecmetrics.analysis.curves import Point
from torchrecmetrics.analysis.plots import Drawn, Line, draw_groups
from torchrecmetrics.analysis.worst import GroupMeans
from torchrecmetrics.checks import nearest
from torchrecmetrics.evaluation.exports import Exported, ResultRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class WorstGroup(NamedTuple):
    """The group of users that a metric serves worst."""

    group: str | None
    """That looks worst; None = no group has a value."""
    value: float
    """Its value: on average below the true one of the worst group, the more the more groups there are."""
    low: float
    high: float
    """Of an interval of the true value of whichever group is truly worst."""
    possible: tuple[str, ...]
    """Groups of which that may be one, as surely as the interval holds."""
    num_empty: int
    """Groups without users, which are left out."""
    num_single: int
    """Groups without a standard error, of one user most often."""

    def __str__(self) -> str:
        low, high = f"{self.low:.4f}", f"{self.high:.4f}"
        return f"{self.group}  {self.value:.4f}; true value of the worst  [{low}, {high}]: {' or '.join(self.possible)}"


class GroupGap(NamedTuple):
    """How far the best and the worst served groups are apart."""

    highest: str | None
    """Group with the largest value; None = less than two groups have one."""
    lowest: str | None
    value: float
    """The difference: on average above the true one."""
    low: float
    high: float
    """Of an interval of the true difference between whichever groups it is."""
    num_empty: int
    num_single: int

    def __str__(self) -> str:
        return f"{self.highest} - {self.lowest}  {self.value:.4f}; the true gap  [{self.low:.4f}, {self.high:.4f}]"


class GroupResults(Exported):
    """Values of groups of users, a row for each metric, cut-off and group; `str()` is a table of them.

    `to_dict`, `to_json`, `to_pandas`, `to_polars`, `to_markdown` and `to_latex` give it in other forms.
    """

    def __init__(self, points: Sequence[Point], rows: Sequence[ResultRow], better: Mapping[str, bool | None]) -> None:
        self._points = [point for point in points if point.group is not None]
        self._rows = [row for row in rows if row.group is not None]
        self._better = better
        if not self._points:
            raise ValueError(
                "there are no groups: evaluate with groups=trm.group_users(train), or trm.Groups of a column"
            )

    def __str__(self) -> str:
        return self.to_markdown()

    def result_rows(self) -> list[ResultRow]:
        """Return a row for each metric, cut-off and group."""
        return self._rows

    def counts(self) -> dict[str, int]:
        """Return how many groups have no user."""
        return {"num_empty": len({point.group for point in self._points if not point.num_users})}

    def worst(self, label: str, level: float = 0.95) -> WorstGroup:
        """Return the group that a metric serves worst, with an interval of the true value of the worst group.

        Raises:
            ValueError: for an unknown label, a metric of which neither more nor less is better, another level.
        """
        names, means, better = self._means(label)
        found = means.worst(better, level)
        group = None if found.group is None else names[found.group]
        possible = tuple(names[each] for each in found.possible)
        return WorstGroup(group, found.value, found.low, found.high, possible, found.empty, found.single)

    def gap(self, label: str, level: float = 0.95) -> GroupGap:
        """Return how far the groups with the largest and the smallest value are apart, with an interval.

        Raises:
            ValueError: for an unknown label, another level.
        """
        names, means, _ = self._means(label)
        found = means.gap(level)
        highest, lowest = (None if each is None else names[each] for each in (found.highest, found.lowest))
        return GroupGap(highest, lowest, found.value, found.low, found.high, found.empty, found.single)

    def plot(self, label: str, ax: Axes | None = None, name: str | None = None) -> Drawn:
        """Draw a metric's value for each group with 95 % intervals, beside those of another model in the same axes.

        Args:
            label: of the metric, such as "NDCG@10".
            ax: matplotlib axes, which may hold another model's groups already; None = a new figure.
            name: of the model, for the legend.

        Raises:
            ImportError: without matplotlib.
            ValueError: for an unknown label.
        """
        points = self._of(label)
        groups, ends = [point.group or "" for point in points], [point.interval() for point in points]
        values, low, high = [point.value for point in points], [end for end, _ in ends], [end for _, end in ends]
        return draw_groups(label, groups, Line(name or "", (), values, low, high), ax)

    def _of(self, label: str) -> list[Point]:
        found = [point for point in self._points if point.key == f"{label}/{point.group}"]
        if not found:
            known = list(dict.fromkeys(point.key.removesuffix(f"/{point.group}") for point in self._points))
            raise ValueError(f"no metric with groups is {label!r}{nearest(str(label), known)}")
        return found

    def _means(self, label: str) -> tuple[list[str], GroupMeans, bool | None]:
        points = self._of(label)
        columns = ([point.value for point in points], [p.standard_error for p in points], [p.size for p in points])
        values, errors, sizes = (torch.tensor(column, dtype=torch.float64) for column in columns)
        means = GroupMeans(values, errors, sizes, points[0].bounds)
        return [point.group or "" for point in points], means, self._better[label]
