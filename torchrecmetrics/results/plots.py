"""`plot`: a result drawn with matplotlib (extra `plot`): values with their intervals, or the differences of runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from torchmetrics import MetricCollection

from torchrecmetrics.core.checks import describe, extra
from torchrecmetrics.core.result import LastResult, Result
from torchrecmetrics.results.comparison import Comparison
from torchrecmetrics.results.pairing import Paired, RunMean
from torchrecmetrics.results.rows import Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Drawn: TypeAlias = "tuple[Figure, Axes]"

_MARKERS = "osD^vPX"
_PANEL = 3.3
"""Height in inches of each panel in a figure with several panels."""
_SPREAD = 20
"""Ratio of the largest to the smallest cut-off from which on the axis of k is logarithmic."""


class HasPoints(Protocol):
    """Protocol of a result of several values: an evaluation, its groups, or a collection."""

    @property
    def points(self) -> Sequence[Result]:
        """The values."""
        ...


class Line(NamedTuple):
    """Points of one metric that are drawn as a line, in ascending order of k; or a single point."""

    label: str
    points: Sequence[Result]

    @property
    def k(self) -> list[int]:
        """Cut-offs; empty for a metric without a cut-off, and for a group."""
        return [point.k for point in self.points if point.k is not None and point.group is None]

    @property
    def values(self) -> list[float]:
        """Values, one per point."""
        return [point.value for point in self.points]

    def errors(self) -> list[list[float]]:
        """Return the distances from the values down and up to the ends of their intervals; nan = no interval."""
        ends = [(point.value, *point.interval()) for point in self.points]  # max keeps nan, its first argument
        return [[max(value - low, 0.0) for value, low, _ in ends], [max(high - value, 0.0) for value, _, high in ends]]


def plot(
    result: Comparison | LastResult | HasPoints | Mapping[str, Any], ax: Axes | Sequence[Axes] | None = None
) -> Drawn:
    """Draw the values of a result with their 95 % intervals, and return the figure.

    - An `Evaluation` or a collection: a line per metric against k; with a single cut-off, a row with a dot per metric.
    - `evaluation.groups` or a metric: a row with a dot per value.
    - Several models, {name: result}: axes per metric, with a line per model against k, or a row per model.
    - A `Comparison`: a row per difference and a colour per pair of runs; thin lines are corrected intervals, and a
      broken line is drawn at the margin.

    A metric without a cut-off is a horizontal line. Metrics with other bounds than 0 to 1, and those without bounds,
    have axes of their own below: `figure.axes`. Models may also be `Rows` or lists of results (several seeds); their
    values are the means of `compare`. Intervals are those of `RankingMetric.confidence_interval`, within the metric's
    bounds; bounds of `Rows` are known if an evaluation with the metric is drawn beside them.

    Args:
        result: as above; a metric or collection must have been updated.
        ax: matplotlib axes, as many as the picture has; None = a new figure with room for the labels.

    Returns:
        Figure and the first axes.

    Raises:
        ImportError: without matplotlib.
        TypeError: for another object, and for an `ax` that is not axes.
        ValueError: if the number of axes is not the number of scales.

    Example:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> collection = trm.RecMetricCollection(["HR", "NDCG"], k=[1, 5, 10])
        >>> collection.update(torch.arange(1, 101) % 20 + 1, depth=20)
        >>> figure, axes = trm.plot(collection)
        >>> axes.get_xlabel(), [text.get_text() for text in axes.get_legend().get_texts()]
        ('k', ['HR', 'NDCG'])
    """
    if isinstance(result, Comparison):
        height = 1.3 + max(0.32, 0.2 * len(result.pairs)) * len(result.result_keys)
        panels = _panels(["differences"], [height], ax)
        _draw_forest(panels[0], result)
    else:
        models: Any = result if isinstance(result, Mapping) and not hasattr(result, "points") else None
        units = _lines_by_metric(models) if models else _lines_by_unit(_points(result))  # type: ignore[arg-type]
        heights = [1.1 + 0.32 * len(lines) if _are_rows(lines) else None for lines in units.values()]
        panels = _panels([*units], heights, ax)
        for axes, (unit, lines) in zip(panels, units.items(), strict=True):
            (_draw_rows if _are_rows(lines) else _draw_lines)(axes, lines)
            if models:
                axes.set_title(_text(unit), fontsize="medium", loc="left")
    figure: Figure = panels[0].figure  # type: ignore[assignment]  # a subfigure has the same methods
    if ax is None:
        _widen(figure, panels)
    return figure, panels[0]


def _points(result: LastResult | HasPoints) -> Sequence[Result]:
    """Return the values of a result, which metrics and collections compute first."""
    if isinstance(result, LastResult):
        metric: Any = result
        metric.compute()
        return [metric.last_result._replace(key=metric.label, group=None)]
    if isinstance(result, MetricCollection):
        result.compute()
    if not hasattr(result, "points"):
        raise TypeError(
            "plot draws an evaluation, its groups, a collection, metric or comparison, or models by name, got "
            f"{describe(result)}"
        )
    return result.points


def _lines_by_metric(models: Mapping[str, Any]) -> Mapping[str, Sequence[Line]]:
    """Return a line per model for each metric, by the metric's label, without the cut-off if models have several."""
    lines: list[tuple[str, Line]] = []
    cutoffs: dict[str, set[int]] = {}
    for model, points in _points_by_model(models).items():
        for line in chain.from_iterable(_lines_by_unit(points).values()):
            lines.append((model, line))
            cutoffs.setdefault(_label(line.points), set()).update(line.k)
    metrics: dict[str, list[Line]] = {}
    for model, line in lines:
        label = _label(line.points)
        metrics.setdefault(label if len(cutoffs[label]) > 1 else line.label, []).append(Line(model, line.points))
    return metrics


def _points_by_model(models: Mapping[str, Any]) -> Mapping[str, Sequence[Result]]:
    """Return the values of each model; those of `Rows` and of several seeds are the means of `compare`."""
    means = {
        name: Paired({name: model}, None, None, min_runs=1).means({None: None})
        for name, model in models.items()
        if isinstance(model, (Rows, list, tuple))
    }
    runs = chain.from_iterable(model if isinstance(model, (list, tuple)) else [model] for model in models.values())
    known = {point.key: point for run in runs if not isinstance(run, Rows) for point in _points(run)}
    return {
        name: _mean_points(means[name], known) if name in means else _points(model) for name, model in models.items()
    }


def _mean_points(means: Mapping[tuple[str, str], RunMean], known: Mapping[str, Result]) -> list[Result]:
    """Return the means of one model as results; names and bounds are those of `known` results with the same label."""
    points = []
    for (_, label), (value, error, num_rows, size) in means.items():
        metric, _, cutoff = label.rpartition("@") if label.rpartition("@")[2].isdecimal() else (label, "", "")
        point = known.get(label, Result(label, metric, int(cutoff) if cutoff else None))
        points.append(point._replace(value=value, standard_error=error, size=size, num_users=num_rows))
    return points


def _lines_by_unit(points: Sequence[Result]) -> Mapping[str, Sequence[Line]]:
    """Return the lines by scale: bounds, or else the metric's name; points of groups only if there are no others."""
    named: dict[str, list[Result]] = {}
    overall = [point for point in points if point.group is None]
    for point in overall or points:
        named.setdefault(point.name if overall else point.key, []).append(point)
    units: dict[str, list[Line]] = {}
    for curve in named.values():
        curve.sort(key=lambda point: point.k or 0)
        is_line = 1 < len(curve) == len({point.k for point in curve if point.k is not None})
        bounds, unit = curve[0].bounds, curve[0].name.partition("-")[0]  # without options
        if bounds is not None and all(map(math.isfinite, bounds)):
            unit = f"{bounds[0]:g} to {bounds[1]:g}"
        lines = [Line(_label(curve), curve)] if is_line else [Line(point.key, [point]) for point in curve]
        units.setdefault(unit, []).extend(lines)
    return units


def _label(curve: Sequence[Result]) -> str:
    """Return the label of several points on one line: their key without the cut-off."""
    point, with_cutoff = curve[0], f"{curve[0].name}@{curve[0].k}"
    return point.key.replace(with_cutoff, point.name, 1) if with_cutoff in point.key else point.name


def _are_rows(lines: Sequence[Line]) -> bool:
    """Return True for fewer than two cut-offs, where each line is a row with a dot."""
    return len({k for line in lines for k in line.k}) < 2


def _draw_rows(axes: Axes, lines: Sequence[Line]) -> None:
    """Draw values as dots with intervals, one row per label from top to bottom."""
    for row, line in enumerate(lines):
        how: dict[str, Any] = {"fmt": "o", "ms": 6, "capsize": 3, "color": _colour(0), "label": _text(line.label)}
        axes.errorbar(line.values, [row], xerr=line.errors(), **how)
    _label_rows(axes, [line.label for line in lines])
    axes.set_xlabel("value, 95 % interval")


def _draw_lines(axes: Axes, lines: Sequence[Line]) -> None:
    """Draw values against k, one line per metric, horizontal for a metric without k."""
    from matplotlib.transforms import offset_copy

    against, across = [line for line in lines if line.k], [line for line in lines if not line.k]
    figure: Any = axes.figure
    step = min(4.0, 24 / len(against))  # points; intervals at the same k are drawn side by side
    for index, line in enumerate(against):
        how: dict[str, Any] = {"ms": 5, "lw": 1.6, "elinewidth": 1.2, "capsize": 2.5, "zorder": 3}
        how |= {"label": _text(line.label), "marker": _MARKERS[index % len(_MARKERS)]}
        drawn = axes.errorbar(line.k, line.values, line.errors(), **how)
        right = step * (index - (len(against) - 1) / 2)
        shifted = offset_copy(axes.transData, figure, right, units="points")
        for artist in drawn.get_children():  # after drawing: limits are those of the unshifted data
            artist.set_transform(shifted)
    for line in across:
        full_width, (low, high) = axes.get_yaxis_transform(), line.points[0].interval()
        (level,) = axes.plot([0, 1], line.values * 2, ls="--", lw=1.4, label=_text(line.label), transform=full_width)
        if not math.isnan(low):
            axes.axhspan(low, high, color=level.get_color(), alpha=0.12, lw=0)
    _draw_axis_of_k(axes, {k for line in against for k in line.k})
    axes.set_ylabel("value, 95 % interval")
    _draw_legend(axes)


def _draw_forest(axes: Axes, comparison: Comparison) -> None:
    """Draw differences with their intervals, one row per label from top to bottom and one colour per pair."""
    results, margin, corrected = comparison.results, comparison.margin, comparison.is_corrected
    labels, pairs = comparison.result_keys, comparison.pairs
    known = [end for r in results for end in (r.difference, r.low, r.high, r.adjusted_low, r.adjusted_high)]
    losses = [(r.margin or 0.0) * (1 if comparison.higher_is_better[r.label] is False else -1) for r in results]
    finite = [0.0, *filter(math.isfinite, known + losses)]
    padding = 0.06 * (max(finite) - min(finite) or 1.0)
    left, right = min(finite) - padding, max(finite) + padding
    step = min(0.26, 0.8 / len(pairs))
    for index, pair in enumerate(pairs):
        colour, of_pair = _colour(index), [r for r in results if r.pair == pair]
        rows = [labels.index(r.key) + step * (index - (len(pairs) - 1) / 2) for r in of_pair]
        for r, row in zip(of_pair, rows, strict=True):
            if corrected:
                ends = [max(r.adjusted_low, left), min(r.adjusted_high, right)]
                axes.plot(ends, [row, row], color=colour, lw=1, zorder=2)
            ends = [max(r.low, left), min(r.high, right)]
            axes.plot(ends, [row, row], color=colour, lw=3, solid_capstyle="butt", zorder=2)
        how: dict[str, Any] = {"ls": "none", "color": colour, "ms": 6.5, "mew": 0, "label": _text(pair), "zorder": 3}
        axes.plot([r.difference for r in of_pair], rows, marker=_MARKERS[index % len(_MARKERS)], **how)
    neutral = _pyplot().rcParams["axes.edgecolor"]
    axes.axvline(0, color=neutral, lw=1, zorder=1)
    if margin is not None:
        heights = [
            height for r in results for height in (labels.index(r.key) - 0.5, labels.index(r.key) + 0.5, math.nan)
        ]
        ends = [end for loss in losses for end in (loss, loss, math.nan)]  # NaN: a line per row
        axes.plot(ends, heights, color=neutral, lw=1, ls="--", zorder=1, label=f"margin {margin}")
    _label_rows(axes, labels)
    axes.set_xlim(left, right)
    axes.set_xlabel("difference" if len(pairs) > 1 else _text(pairs[0]))
    title = f"{100 * comparison.level:g} % intervals"
    title += f", thin: corrected for {comparison.num_tested} comparisons" if corrected else ""
    axes.set_title(title, fontsize="medium", loc="left")
    if len(pairs) > 1 or margin is not None:
        _draw_legend(axes)


# ------------------------------------------------------------------------------------------------- figures and axes


def _pyplot() -> Any:
    """Import matplotlib.pyplot, or raise an ImportError that names the extra."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(f"plots need matplotlib: {extra('plot')}") from error
    return plt


def _panels(units: Sequence[str], heights: Sequence[float | None], ax: Axes | Sequence[Axes] | None) -> list[Axes]:
    """Return one axes per unit: the given axes, or those of a new figure, from top to bottom.

    Args:
        units: names of the scales.
        heights: height of each panel of a new figure, in inches; None = the usual height.
        ax: matplotlib axes, or several.
    """
    plt = _pyplot()
    if ax is None:
        width, figure_height = plt.rcParams["figure.figsize"]
        usual_height = figure_height if len(heights) == 1 else _PANEL
        inches = [usual_height if height is None else height for height in heights]
        layout: dict[str, Any] = {"height_ratios": inches, "layout": "constrained", "squeeze": False}
        return [*plt.subplots(len(inches), figsize=(width, sum(inches)), **layout)[1][:, 0]]
    flat: Any = getattr(ax, "flat", ax)  # plt.subplots returns an array
    panels = [*flat] if hasattr(flat, "__len__") else [flat]
    if len(panels) != len(units):
        raise ValueError(
            f"the plot needs {len(units)} axes, for {', '.join(units)}: pass ax=[...] with as many, got {len(panels)}, "
            "or leave ax out for a new figure"
        )
    for axes in panels:
        if not hasattr(axes, "errorbar"):
            raise TypeError(
                f"ax must be matplotlib axes, got {type(axes).__name__}; pass results by name, {{'a': a, 'b': b}}"
            )
    return panels


def _text(name: str) -> str:
    """Return a name that matplotlib shows as it is: `$` starts no formula, and no leading `_` hides it in a legend."""
    escaped = str(name).replace("$", r"\$")
    return f" {escaped}" if escaped.startswith("_") else escaped


def _colour(index: int) -> str:
    """Return a colour of the current style; the name "C0" would take the style in use when the figure is drawn."""
    colours: list[str] = _pyplot().rcParams["axes.prop_cycle"].by_key().get("color", ["C0"])
    return colours[index % len(colours)]


def _label_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Label the rows of the axes from top to bottom."""
    axes.set_yticks(range(len(labels)), [*map(_text, labels)])
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)


def _draw_axis_of_k(axes: Axes, cutoffs: set[int]) -> None:
    """Set ticks at the cut-offs, as many as can be read; the axis is logarithmic if they are far apart."""
    most, least = max(cutoffs), min(cutoffs)
    is_wide = most >= _SPREAD * least
    scale: Callable[[float], float] = math.log if is_wide else float
    ticks: list[int] = []
    for k in sorted(cutoffs, reverse=True):
        if not ticks or scale(ticks[-1]) - scale(k) >= 0.06 * (scale(most) - scale(least)):
            ticks.append(k)
    axes.set_xscale("log" if is_wide else "linear")
    axes.set_xticks(ticks[::-1], map(str, ticks[::-1]))
    axes.minorticks_off()
    axes.set_xlabel("k")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def _draw_legend(axes: Axes) -> None:
    """Draw a legend next to the axes, with lines with intervals first; matplotlib would put them last."""
    handles = sorted(axes.get_legend_handles_labels()[0], key=lambda handle: not hasattr(handle, "has_yerr"))
    labels = [str(handle.get_label()) for handle in handles]
    axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)


def _widen(figure: Figure, panels: Sequence[Axes]) -> None:
    """Widen a new figure by its row labels and its legend, so that its axes keep their width."""
    inch_per_letter = 0.008 * float(_pyplot().rcParams["font.size"])
    left = right = 0.0
    for axes in panels:
        rows = [len(tick.get_text()) for tick in axes.get_yticklabels()] if axes.yaxis_inverted() else []
        left = max(left, inch_per_letter * max(rows, default=0) - 1)
        if legend := axes.get_legend():
            right = max(right, inch_per_letter * max(len(text.get_text()) for text in legend.get_texts()) + 0.6)
    width, height = figure.get_size_inches()
    figure.set_size_inches(width + left + right, height)
