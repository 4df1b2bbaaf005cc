"""`Curve`: values of a metric against the cut-off k, with a confidence band, and plots of several metrics against k."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.analysis.intervals import check_level, interval
from torchrecmetrics.analysis.plots import Drawn, Line, draw_band, draw_units, unit_of
from torchrecmetrics.analysis.resampling import Units, resampled_sums
from torchrecmetrics.analysis.rows import Layout, Rows, check_seed
from torchrecmetrics.analysis.student import cdf
from torchrecmetrics.checks import check_k, nearest

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Point(NamedTuple):
    """Value of one metric at one cut-off."""

    key: str
    """Under which it was returned."""
    label: str
    """Under which its rows are kept: the key, without prefix and postfix."""
    name: str
    """Without the cut-off, with options."""
    k: int | None
    value: float
    standard_error: float
    size: float
    """Of how many rows of equal weight it is the mean."""
    bounds: tuple[float, float] | None
    num_users: int
    group: str | None = None
    """Whose value it is; None = that of all rows."""

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the metric's own interval."""
        return interval(self.value, self.standard_error, self.size, self.bounds, level)


class Curve(NamedTuple):
    """A metric against the cut-off, with a band: `plot` draws it, beside others in the same axes."""

    name: str
    """Of the metric, with options."""
    level: float
    """How surely all the true values lie within the band."""
    k: tuple[int, ...]
    """Ascending."""
    values: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def plot(self, ax: Axes | None = None, label: str | None = None) -> Drawn:
        """Draw values and band.

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
    """Draw all points, each unit in axes of its own: a line for those that differ in the cut-off alone."""
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
        points: of all metrics.
        name: of one of them.
        rows: kept rows, of which the points are means; None = rows were not kept.
        level: of confidence, for all cut-offs together.
        resamples: of the bootstrap.
        seed: of the hash of ids.

    Raises:
        ValueError: for an unknown name, a metric without a cut-off or with the same one twice; another level.
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
    widest = 1 - (1 - level) / len(chosen)  # Bonferroni's
    if rows is None:
        ends = [point.interval(widest) for point in chosen]
    else:
        error, size, critical = _together(rows, [point.label for point in chosen], level, resamples, seed)
        ends = []
        for point, e, n in zip(chosen, error.tolist(), size.tolist(), strict=True):
            # of the level at which t is as large: not narrower than each alone, not wider than Bonferroni's
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


def _together(rows: Rows, labels: list[str], level: float, resamples: int, seed: int) -> tuple[Tensor, Tensor, float]:
    """Resample labels together: standard errors, sizes, and how many errors away all means are at this level at once.

    A resample's deviation from the mean is divided by the resample's own standard error, over units, and the largest
    one of all labels counts; a label that does not vary in it says nothing. inf where none ever does.
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
    """Return means, standard errors and sizes, of sums over units of wx, w, wx wx, wx w and w w."""
    wx, w, xx, xw, ww = sums
    mean, size = wx / w, w * w / ww
    squares = xx - 2 * mean * xw + mean * mean * ww  # of wx - w mean
    squares = squares.where(squares > 1e-13 * xx, 0)  # below rounding counts as 0
    return mean, (squares * size / (size - 1)).sqrt() / w, size


def _by_name(points: Sequence[Point]) -> dict[str, list[Point]]:
    """Return points of all rows by their metric, ascending k."""
    named: dict[str, list[Point]] = {}
    for point in [point for point in points if point.group is None]:
        named.setdefault(point.name, []).append(point)
    return {name: sorted(curve, key=lambda point: point.k or 0) for name, curve in named.items()}


def _title(points: Sequence[Point]) -> str:
    """Return the legend's name of points on one line: the key, without the cut-off if there are several."""
    first = points[0]
    if len(points) == 1 or f"{first.name}@{first.k}" not in first.key:
        return first.key if len(points) == 1 else first.name
    return first.key.replace(f"{first.name}@{first.k}", first.name, 1)
