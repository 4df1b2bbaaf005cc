"""`Curve`: values of a metric against the cut-off k, with a confidence band, and plots of several metrics against k."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.analysis.plots import Drawn, Line, draw_band, draw_units, unit_of
from torchrecmetrics.analysis.resampling import Units, resampled_sums
from torchrecmetrics.analysis.rows import Layout, Rows, check_seed
from torchrecmetrics.core.checks import check_k, nearest
from torchrecmetrics.core.intervals import check_level, interval
from torchrecmetrics.core.student import cdf

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Point(NamedTuple):
    """Value of one metric at one cut-off."""

    key: str
    """Key under which the value was returned."""
    label: str
    """Label under which the metric's rows are kept: the key without prefix and postfix."""
    name: str
    """Name of the metric with its options, without the cut-off."""
    k: int | None
    value: float
    standard_error: float
    size: float
    """Effective number of rows: rows of equal weight with the same information."""
    bounds: tuple[float, float] | None
    num_users: int
    group: str | None = None
    """Name of the group of rows; None = all rows."""

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the confidence interval of this value alone, (low, high)."""
        return interval(self.value, self.standard_error, self.size, self.bounds, level)


class Curve(NamedTuple):
    """Values of a metric against the cut-off, with a confidence band; `plot` can draw several curves in one axes."""

    name: str
    """Name of the metric, with options."""
    level: float
    """Confidence level: probability that the band holds the true values at all cut-offs."""
    k: tuple[int, ...]
    """Cut-offs, ascending."""
    values: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def plot(self, ax: Axes | None = None, label: str | None = None) -> Drawn:
        """Draw the values and the confidence band.

        Args:
            ax: matplotlib axes, which may hold other curves; None = a new figure.
            label: name in the legend; None = no entry.

        Returns:
            Figure and axes.

        Raises:
            ImportError: without matplotlib.
        """
        line = Line(label or "", self.k, self.values, self.low, self.high)
        return draw_band(line, f"{self.name}@k", f"band: {100 * self.level:g} %, all k together", ax)


def plot_points(points: Sequence[Point], ax: Axes | Sequence[Axes] | None) -> Drawn:
    """Draw all points, one panel per unit; points of metrics that differ only in the cut-off form a line."""
    units: dict[str, list[Line]] = {}
    for together in _by_name(points).values():
        known = [point.k for point in together if point.k is not None]
        unlike = len(set(known)) == len(together)
        for panel in [together] if unlike else [[point] for point in together]:
            ends = [point.interval() for point in panel]
            units.setdefault(unit_of(panel[0].name, panel[0].bounds), []).append(
                Line(
                    _title(panel),
                    [point.k for point in panel if point.k is not None],
                    [point.value for point in panel],
                    [low for low, _ in ends],
                    [high for _, high in ends],
                )
            )
    return draw_units(units, ax)


def curve_of(
    points: Sequence[Point], name: str, rows: Rows | None, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Curve:
    """Return a metric's values at all its cut-offs, and a band around them.

    Args:
        points: values of all metrics.
        name: name of the metric, without the cut-off.
        rows: kept rows whose means are the points; None = rows were not kept.
        level: confidence level of all cut-offs together.
        resamples: number of bootstrap resamples.
        seed: seed of the hash of row ids.

    Raises:
        ValueError: for an unknown name, a metric without a cut-off or with a cut-off twice, a level outside (0, 1).
    """
    level, resamples, seed = check_level(level), check_k(resamples, "resamples"), check_seed(seed)
    named = _by_name(points)
    if name not in named:
        raise ValueError(f"no metric {name!r}{nearest(str(name), [*named])}")
    if any(point.k is None for point in named[name]):
        raise ValueError(f"{name} has no cut-off: there is no curve of it")
    chosen = named[name]
    cutoffs = tuple(point.k for point in chosen if point.k is not None)
    if len(set(cutoffs)) < len(cutoffs):
        twice = next(k for k in cutoffs if cutoffs.count(k) > 1)
        raise ValueError(f"two metrics are {name}@{twice}: which one is on the curve?")
    widest = 1 - (1 - level) / len(chosen)  # Bonferroni's level
    if rows is None:
        ends = [point.interval(widest) for point in chosen]
    else:
        labels = [point.label for point in chosen]
        rows.check_finite(labels)
        error, size, critical = _simultaneous_critical_value(rows, labels, level, resamples, seed)
        ends = []
        for point, e, n in zip(chosen, error.tolist(), size.tolist(), strict=True):
            # the level at which Student's t equals `critical`, clipped to `level` (one point) and Bonferroni's level
            alone = min(max(2 * cdf(critical, n - 1) - 1, level), widest) if n > 1 else level
            ends.append(interval(point.value, e, n, point.bounds, alone))
    return Curve(
        name,
        level,
        cutoffs,
        tuple(point.value for point in chosen),
        tuple(low for low, _ in ends),
        tuple(high for _, high in ends),
    )


def _simultaneous_critical_value(
    rows: Rows, labels: list[str], level: float, resamples: int, seed: int
) -> tuple[Tensor, Tensor, float]:
    """Resample labels together; return standard errors, effective sizes and the critical value of a joint band.

    The critical value is the `level` quantile, over resamples, of the largest |resampled mean - mean| / (standard error
    of the resample) of all labels. A label without variation in a resample counts as 0; inf if no label ever varies.
    """
    layout, columns = Layout.of(rows), len(labels)

    def units() -> Units:
        for keys, sums in rows.units(labels, layout):
            wx, w = sums[:, :columns], sums[:, columns:]
            yield keys, torch.cat([wx, w, wx * wx, wx * w, w * w], 1)

    totals = torch.stack([sums.sum(0) for _, sums in units()]).sum(0)
    means, errors, sizes = _means(totals.view(5, -1).unbind())
    found = resampled_sums(units(), 5 * columns, resamples, seed)
    others, spreads, _ = _means(found.view(resamples, 5, -1).unbind(1))
    deviations = ((others - means).abs() / spreads).where(spreads > 0, 0)
    critical = deviations.amax(1).quantile(level).item()
    return errors, sizes, critical or math.inf


def _means(sums: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return means, standard errors and effective sizes from sums over units of wx, w, wx wx, wx w and w w."""
    wx, w, xx, xw, ww = sums
    mean, size = wx / w, w * w / ww
    squares = xx - 2 * mean * xw + mean * mean * ww  # sum of (wx - w mean)^2
    squares = squares.where(squares > 1e-13 * xx, 0)  # rounding error counts as 0
    return mean, (squares * size / (size - 1)).sqrt() / w, size


def _by_name(points: Sequence[Point]) -> dict[str, list[Point]]:
    """Return the points over all rows (without those of groups) by metric name, in ascending order of k."""
    named: dict[str, list[Point]] = {}
    for point in [point for point in points if point.group is None]:
        named.setdefault(point.name, []).append(point)
    return {name: sorted(curve, key=lambda point: point.k or 0) for name, curve in named.items()}


def _title(points: Sequence[Point]) -> str:
    """Return the legend entry of the points on one line: their key, without the cut-off for several points."""
    first = points[0]
    if len(points) == 1 or f"{first.name}@{first.k}" not in first.key:
        return first.key if len(points) == 1 else first.name
    return first.key.replace(f"{first.name}@{first.k}", first.name, 1)
