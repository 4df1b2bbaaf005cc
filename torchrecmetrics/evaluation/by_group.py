"""`Evaluation.groups`: the results of an evaluation by group of users, the worst group and the gap."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

from torchrecmetrics.analysis.curves import Point
from torchrecmetrics.analysis.intervals import check_level
from torchrecmetrics.analysis.plots import Drawn, Line, draw_groups
from torchrecmetrics.analysis.student import quantile_above
from torchrecmetrics.checks import nearest
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
    """The bounds of the metric, or infinite, where a group has no standard error: of one user most often."""


class WorstGroup(NamedTuple):
    """The group of users that a metric serves worst."""

    group: str | None
    """That looks worst, the first of equals; None = no group has a value."""
    value: float
    """Its value: on average worse than the true one of the worst group, the more the more groups there are."""
    low: float
    high: float
    """Of an interval of the true value of whichever group is truly worst."""
    possible: tuple[str, ...]
    """Groups of which that may be one, as surely as the interval holds."""

    def __str__(self) -> str:
        low, high = f"{self.low:.4f}", f"{self.high:.4f}"
        return f"{self.group}  {self.value:.4f}; true value of the worst  [{low}, {high}]: {' or '.join(self.possible)}"


class GroupGap(NamedTuple):
    """How far the best and the worst served groups are apart."""

    highest: str | None
    """Group with the largest value, the first of equals; None = less than two groups have one."""
    lowest: str | None
    value: float
    """The difference: on average above the true one."""
    low: float
    """Never below 0."""
    high: float
    """Of an interval of the true difference between whichever groups it is."""

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

    def corrected(self, label: str, level: float = 0.95) -> list[GroupInterval]:
        """Return a metric's value for each group, with intervals that all hold together at this level.

        For G groups each is one of level^(1 / G): which group is looked at may be chosen by the values. Where rows have
        bounds and are scaled to 0 .. 1, the ends are those p with 2 n_e KL(m - 1 / n_e, p) = t^2 below and
        2 n_e KL(m + 1 / n_e, p) = t^2 above, KL(q, p) = q log(q / p) + (1 - q) log((1 - q) / (1 - p));
        n_e = n m (1 - m) / s^2 is the number of rows that are 0 or 1 with the same spread, n itself for hits and where
        all rows are alike; t is Student's, and the normal quantile for hits. No end of hits is missed more often than
        it should be, however few there are: score intervals are right on average, not where they have to hold for many
        groups at once. Without both bounds, or with a mean beyond them, the ends are m ± t times the standard error;
        where one bound is known they end there.

        Raises:
            ValueError: for an unknown label, another level.

        Source: Šidák, Rectangular confidence regions for the means of multivariate normal distributions, JASA 62, 1967;
        Zubkov and Serov, A complete proof of universal inequalities for the distribution function of the binomial law,
        Theory of Probability and Its Applications 57, 2013.
        """
        points, level = self._of(label), check_level(level)
        tail = (1 - level ** (1 / max(1, sum(map(_has_error, points))))) / 2
        return [GroupInterval(point.group or "", point.value, *_ends(point, tail)) for point in points]

    def worst(self, label: str, level: float = 0.95) -> WorstGroup:
        """Return the group that a metric serves worst, with an interval of the true value of the worst group.

        Its ends are the worst of all ends of `corrected`.

        Raises:
            ValueError: for an unknown label, a metric of which neither more nor less is better, another level.
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
        """Return how far the groups with the largest and the smallest value are apart, with an interval.

        It reaches from the largest difference that the intervals of `corrected` leave no doubt of to the largest one
        that they allow.

        Raises:
            ValueError: for an unknown label, another level.
        """
        found = self._with_value(label, level)
        if len(found) < 2:
            return GroupGap(None, None, math.nan, math.nan, math.nan)
        most, least = max(found, key=lambda entry: entry.value), min(found, key=lambda entry: entry.value)
        low = max(entry.low for entry in found) - min(entry.high for entry in found)
        high = max(entry.high for entry in found) - min(entry.low for entry in found)
        return GroupGap(most.group, least.group, most.value - least.value, max(low, 0.0), high)

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

    def _with_value(self, label: str, level: float) -> list[GroupInterval]:
        return [interval for interval in self.corrected(label, level) if not math.isnan(interval.value)]


def _has_error(point: Point) -> bool:
    return point.size > 1 and not math.isnan(point.standard_error)


def _ends(point: Point, tail: float) -> tuple[float, float]:
    """Return ends, each missed with a probability of `tail`: bounds without a standard error, nan without users."""
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
    low, high = _below(mean, share / point.size, t), _below(1 - mean, share / point.size, t)
    return least + width * low, greatest - width * high


def _below(mean: float, inverse: float, t: float) -> float:
    """Return the p < q = m - 1 / n with 2 n KL(q, p) = t^2, given 1 / n; 0 where q is not above 0.

    KL is convex in log p, so that Newton's steps from the left never leave it.
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
