"""`Evaluation.groups`: the results of an evaluation for each group of users, the worst group and the gap."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

from torchrecmetrics.analysis.curves import Point
from torchrecmetrics.analysis.plots import Drawn, Line, draw_groups
from torchrecmetrics.core.checks import nearest
from torchrecmetrics.core.intervals import check_level
from torchrecmetrics.core.student import quantile_above
from torchrecmetrics.evaluation.exports import Exported, ResultRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NEAR = 1e-12


class GroupInterval(NamedTuple):
    """A group's value, with an interval that is corrected for the number of groups."""

    group: str
    value: float
    """nan = the group has no users."""
    low: float
    high: float
    """Ends of the interval; the metric's bounds, or infinite, if the group has no standard error (mostly: one user)."""


class WorstGroup(NamedTuple):
    """The group of users that a metric serves worst."""

    group: str | None
    """The group with the worst value, the first of equal groups; None = no group has a value."""
    value: float
    """The group's value; on average worse than the true value of the worst group, and more so with more groups."""
    low: float
    high: float
    """Ends of an interval for the true value of the group that is truly worst."""
    possible: tuple[str, ...]
    """Groups that may be the truly worst group, at the confidence level of the interval."""

    def __str__(self) -> str:
        low, high = f"{self.low:.4f}", f"{self.high:.4f}"
        return f"{self.group}  {self.value:.4f}; true value of the worst  [{low}, {high}]: {' or '.join(self.possible)}"


class GroupGap(NamedTuple):
    """Difference between the groups with the largest and the smallest value."""

    highest: str | None
    """Group with the largest value, the first of equal groups; None = fewer than two groups have a value."""
    lowest: str | None
    value: float
    """The difference of the two values; on average above the true difference."""
    low: float
    """Lower end of the interval, never below 0."""
    high: float
    """Upper end of an interval for the true difference between the groups that are truly highest and lowest."""

    def __str__(self) -> str:
        return f"{self.highest} - {self.lowest}  {self.value:.4f}; the true gap  [{self.low:.4f}, {self.high:.4f}]"


class GroupResults(Exported):
    """Table of the values of groups of users, with a row for each metric, cut-off and group; `str()` prints it.

    `to_dict`, `to_json`, `to_pandas`, `to_polars`, `to_markdown` and `to_latex` export the table.
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
        """Return the number of groups without a user."""
        return {"num_empty": len({point.group for point in self._points if not point.num_users})}

    def corrected(self, label: str, level: float = 0.95) -> list[GroupInterval]:
        """Return a metric's value for each group, with intervals that all hold together with confidence `level`.

        With G groups, the level of each interval is level^(1 / G), so that a group may be picked by its value. If the
        metric has two bounds, values are scaled to 0 .. 1, and the ends are the p with 2 n_e KL(m - 1 / n_e, p) = t^2
        below and 2 n_e KL(m + 1 / n_e, p) = t^2 above, KL(q, p) = q log(q / p) + (1 - q) log((1 - q) / (1 - p)); n_e =
        n m (1 - m) / s^2 is the number of rows of 0 or 1 that have the same spread, and n itself for hits and if all
        rows are equal; t is Student's quantile, for hits the normal quantile. An end for hits is never missed more
        often than it should be, even with few rows: score intervals are right on average, but not for many groups at
        once. Without two bounds, or with a mean beyond them, the ends are m ± t times the standard error, cut off at a
        known bound.

        Raises:
            ValueError: for an unknown label, and a level that is not between 0 and 1.

        Source: Šidák, Rectangular confidence regions for the means of multivariate normal distributions, JASA 62, 1967;
        Zubkov and Serov, A complete proof of universal inequalities for the distribution function of the binomial law,
        Theory of Probability and Its Applications 57, 2013.
        """
        points, level = self._of(label), check_level(level)
        tail = (1 - level ** (1 / max(1, sum(map(_has_error, points))))) / 2
        return [GroupInterval(point.group or "", point.value, *_ends(point, tail)) for point in points]

    def worst(self, label: str, level: float = 0.95) -> WorstGroup:
        """Return the group that a metric serves worst, with an interval of the true value of the worst group.

        The ends of the interval are the worst of all ends of `corrected`.

        Raises:
            ValueError: for an unknown label, a metric whose `higher_is_better` is None, or a level not between 0 and 1.
        """
        found = self._with_value(label, level)
        better = self._better[label]
        if better is None:
            raise ValueError(
                "no group is the worst: higher_is_better is None, neither more nor less of this metric is better; "
                "how far groups are apart is known: gap"
            )
        if not found:
            return WorstGroup(None, math.nan, math.nan, math.nan, ())
        worst = min if better else max
        low, high = worst(entry.low for entry in found), worst(entry.high for entry in found)
        group = worst(found, key=lambda entry: entry.value)
        possible = tuple(entry.group for entry in found if (entry.low <= high if better else entry.high >= low))
        return WorstGroup(group.group, group.value, low, high, possible)

    def gap(self, label: str, level: float = 0.95) -> GroupGap:
        """Return the difference between the groups with the largest and the smallest value, with an interval.

        The interval runs from the smallest to the largest difference that the intervals of `corrected` allow.

        Raises:
            ValueError: for an unknown label, and a level that is not between 0 and 1.
        """
        found = self._with_value(label, level)
        if len(found) < 2:
            return GroupGap(None, None, math.nan, math.nan, math.nan)
        most, least = max(found, key=lambda entry: entry.value), min(found, key=lambda entry: entry.value)
        low = max(entry.low for entry in found) - min(entry.high for entry in found)
        high = max(entry.high for entry in found) - min(entry.low for entry in found)
        return GroupGap(most.group, least.group, most.value - least.value, max(low, 0.0), high)

    def plot(self, label: str | None = None, ax: Axes | None = None, name: str | None = None) -> Drawn:
        """Draw a metric's value for each group with 95 % intervals; several models may share the axes.

        Args:
            label: label of the metric, such as "NDCG@10". None: the only metric.
            ax: matplotlib axes, which may hold another model's groups already; None = a new figure.
            name: name of the model, for the legend.

        Raises:
            ImportError: without matplotlib.
            ValueError: for an unknown label, and without a label if there are several metrics.
        """
        known = self._labels()
        if label is None and len(known) > 1:
            raise ValueError(f"one metric is drawn at a time: plot({known[0]!r}), or another of {', '.join(known[1:])}")
        points = self._of(label := known[0] if label is None else label)
        groups, ends = [point.group or "" for point in points], [point.interval() for point in points]
        values, low, high = [point.value for point in points], [end for end, _ in ends], [end for _, end in ends]
        return draw_groups(label, groups, Line(name or "", (), values, low, high), ax)

    def _of(self, label: str) -> list[Point]:
        found = [point for point in self._points if point.key == f"{label}/{point.group}"]
        if not found:
            raise ValueError(f"no metric with groups is {label!r}{nearest(str(label), self._labels())}")
        return found

    def _labels(self) -> list[str]:
        """Return the labels of all metrics."""
        return list(dict.fromkeys(point.key.removesuffix(f"/{point.group}") for point in self._points))

    def _with_value(self, label: str, level: float) -> list[GroupInterval]:
        return [interval for interval in self.corrected(label, level) if not math.isnan(interval.value)]


def _has_error(point: Point) -> bool:
    return point.size > 1 and not math.isnan(point.standard_error)


def _ends(point: Point, tail: float) -> tuple[float, float]:
    """Return two ends, each missed with probability `tail`; the bounds without a standard error, nan without users."""
    least, greatest = (-math.inf, math.inf) if point.bounds is None else point.bounds
    if math.isnan(point.value):
        return math.nan, math.nan
    if not _has_error(point):
        return least, greatest
    t, width = quantile_above(tail, point.size - 1), greatest - least
    if not math.isfinite(width) or not least <= point.value <= greatest:
        low, high = point.value - t * point.standard_error, point.value + t * point.standard_error
        within = least <= point.value <= greatest and not math.isfinite(width)
        return (max(least, low), min(greatest, high)) if within else (low, high)
    mean, error = (point.value - least) / width, point.standard_error / width
    variance = mean * (1 - mean)
    alike = min(variance, error) < _NEAR
    share = 1.0 if alike else error**2 * (point.size - 1) / variance  # n / n_e
    if variance < _NEAR or (abs(share - 1) < 1e-6 and not alike):
        t = NormalDist().inv_cdf(1 - tail)
    low, high = _lower_end_by_kl(mean, share / point.size, t), _lower_end_by_kl(1 - mean, share / point.size, t)
    return least + width * low, greatest - width * high


def _lower_end_by_kl(mean: float, inverse: float, t: float) -> float:
    """Return the p < q = m - 1 / n with 2 n KL(q, p) = t^2, given 1 / n; 0 where q is not above 0.

    KL is convex in log p, so Newton's steps that start left of the solution stay left of it.
    """
    q, far = mean - inverse, t * t * inverse / 2
    if q <= 0:
        return 0.0
    log_p = math.log(q) - (far - (1 - q) * math.log1p(-q)) / q
    if (nearer := q - math.sqrt(2 * q * far)) > 0:  # KL(q, p) >= (q - p)^2 / 2q
        log_p = max(log_p, math.log(nearer))
    for _ in range(12):
        p = math.exp(log_p)
        left = q * (math.log(q) - log_p) + (1 - q) * (math.log1p(-q) - math.log1p(-p)) - far
        if p >= q:
            break
        log_p += left * (1 - p) / (q - p)
    return math.exp(log_p)
