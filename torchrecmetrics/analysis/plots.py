"""Matplotlib plots of values, intervals, groups and differences (extra `plot`)."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from torchrecmetrics.core.checks import extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Drawn: TypeAlias = "tuple[Figure, Axes]"

_MARKERS = "osD^vPX"
_LEGEND = 16
"""Maximum number of lines per column of a legend."""
_WRAP = 24
"""Maximum number of characters per line of a legend, in a figure of the user, which keeps its size."""
_PANEL = 3.3
"""Height in inches of each panel in a figure with several panels."""
_SPREAD = 20
"""Ratio of the largest to the smallest cut-off from which on the axis of k is logarithmic."""

_OWN_FIGURES: WeakKeyDictionary[Figure, dict[str, float]] = WeakKeyDictionary()
"""Figures made here, and the inches added on each side for labels and legends."""


class Line(NamedTuple):
    """Values of one metric with their intervals, one per cut-off; or a single value of a metric without a cut-off."""

    label: str
    k: Sequence[int]
    """Cut-offs, ascending; empty = no cut-off."""
    values: Sequence[float]
    low: Sequence[float]
    """Lower ends of the intervals; nan = unknown."""
    high: Sequence[float]


class Difference(NamedTuple):
    """Difference of two runs with its interval and its corrected interval."""

    label: str
    pair: str
    value: float
    interval: tuple[float, float]
    adjusted: tuple[float, float]


def pyplot() -> Any:
    """Import matplotlib.pyplot.

    Raises:
        ImportError: if it is not installed; names the extra.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(f"plots need matplotlib: {extra('plot')}") from error
    return plt


def unit_of(name: str, bounds: tuple[float, float] | None) -> str:
    """Return the key of the axes that a metric is drawn in: its bounds, or its name where a bound is missing."""
    if bounds is None or not all(map(math.isfinite, bounds)):
        return name.partition("-")[0]  # without options
    return f"{bounds[0]:g} to {bounds[1]:g}"


def draw_units(units: Mapping[str, Sequence[Line]], ax: Axes | Sequence[Axes] | None) -> Drawn:
    """Draw the values of metrics, one panel per unit; return the figure and the first axes."""
    heights = [_height(lines) if _has_rows(lines) else None for lines in units.values()]
    panels = _panels(list(units), heights, ax)
    drawn = [draw_lines(lines, axes) for lines, axes in zip(units.values(), panels, strict=True)]
    return drawn[0]


def draw_lines(lines: Sequence[Line], ax: Axes | None) -> Drawn:
    """Draw values against k, one line per metric, horizontal for a metric without k; dots for fewer than two k."""
    if _has_rows(lines):
        return _draw_dots(lines, ax)
    axes = _axes(ax)
    against, across = [line for line in lines if line.k], [line for line in lines if not line.k]
    step = min(4.0, 24 / len(against))  # in points; intervals at the same k are drawn side by side
    for place, line in enumerate(against):
        how: dict[str, Any] = {"marker": _marker(place), "ms": 5, "lw": 1.6, "elinewidth": 1.2, "capsize": 2.5}
        drawn = axes.errorbar(line.k, line.values, _errors(line), label=line.label, zorder=3, **how)
        shifted = axes.transData + _shift(axes, step * (place - (len(against) - 1) / 2), 0)
        for part in drawn.get_children():  # after drawing: limits are those of the unshifted data
            part.set_transform(shifted)
    for line in across:
        whole = axes.get_yaxis_transform()
        (level,) = axes.plot([0, 1], [line.values[0]] * 2, ls="--", lw=1.4, label=line.label, transform=whole)
        if not math.isnan(line.low[0]):
            axes.axhspan(line.low[0], line.high[0], color=level.get_color(), alpha=0.12, lw=0)
    _axis_of_k(axes, {k for line in against for k in line.k})
    axes.set_ylabel(_axis_label(lines, "value"))
    _legend(axes)
    return _figure(axes), axes


def _has_rows(lines: Sequence[Line]) -> bool:
    """Return True for fewer than two cut-offs, where lines are drawn as rows of dots from top to bottom."""
    return len({k for line in lines for k in line.k}) < 2


def _height(rows: Sequence[Any]) -> float:
    """Return the height in inches of axes with one line of text per entry of `rows`."""
    return 1.1 + 0.32 * len(rows)


def _draw_dots(lines: Sequence[Line], ax: Axes | None) -> Drawn:
    """Draw values as dots with intervals, one row per label."""
    axes = _axes(ax, _height(lines))
    for row, line in enumerate(lines):
        axes.errorbar(
            line.values, [row], xerr=_errors(line), fmt="o", ms=6, capsize=3, color=_colour(0), label=line.label
        )
    _rows(axes, [line.label for line in lines])
    axes.set_xlabel(_axis_label(lines, "value"))
    return _figure(axes), axes


def draw_steps(units: Mapping[str, Mapping[str, Sequence[float]]], ax: Axes | Sequence[Axes] | None) -> Drawn:
    """Draw values over steps, one line per metric and one panel per unit; return the figure and the first axes."""
    panels = _panels(list(units), [None] * len(units), ax)
    for axes, values in zip(panels, units.values(), strict=True):
        for place, (label, line) in enumerate(values.items()):
            axes.plot(range(len(line)), line, marker=_marker(place), ms=5, lw=1.6, label=label)
        _integer_ticks(axes.xaxis)
        axes.set(xlabel="step", ylabel="value")
        axes.grid(axis="y", alpha=0.3)
        _legend(axes)
    return _figure(panels[0]), panels[0]


def draw_groups(label: str, groups: Sequence[str], line: Line, ax: Axes | None) -> Drawn:
    """Draw one row per group, with value and interval; models that the axes already hold are above in the same row.

    Raises:
        ValueError: if the axes hold other groups.
    """
    axes = _axes(ax, _height(groups))
    place = len(axes.containers)
    there = [tick.get_text() for tick in axes.get_yticklabels()] if place else list(groups)
    if there != list(groups):
        raise ValueError(f"the axes hold the groups {', '.join(there)}, these are {', '.join(groups)}")
    how: dict[str, Any] = {"ls": "none", "marker": _marker(place), "ms": 5, "elinewidth": 1.4, "capsize": 2.5}
    rows = range(len(groups))
    drawn = axes.errorbar(line.values, rows, xerr=_errors(line), label=line.label or "_", color=_colour(place), **how)
    shifted = axes.transData + _shift(axes, 0, -6.0 * place)
    for part in drawn.get_children():
        part.set_transform(shifted)
    _rows(axes, groups)
    axes.set_ylim(len(groups) - 0.2, -0.5)  # the lowest models of the last group stay inside the axes
    axes.set_xlabel(label)
    _legend(axes)
    return _figure(axes), axes


def draw_interval(ax: Axes, value: float, interval: tuple[float, float], label: str) -> None:
    """Draw the interval of the single value that torchmetrics has drawn at x = 0."""
    line = Line(label, (), [value], [interval[0]], [interval[1]])
    ax.errorbar([0], [value], _errors(line), fmt="none", capsize=5, elinewidth=1.6, color=ax.lines[-1].get_color())
    ax.set_ylabel(label)


def draw_band(line: Line, ylabel: str, title: str, ax: Axes | None) -> Drawn:
    """Draw values against k with a confidence band; only a line with a label is in the legend."""
    axes = _axes(ax)
    name = line.label or "_"
    (drawn,) = axes.plot(line.k, line.values, marker=_marker(len(axes.lines)), ms=5, lw=1.8, label=name)
    colour = drawn.get_color()
    if len(line.k) > 1:
        axes.fill_between(line.k, line.low, line.high, color=colour, alpha=0.18, lw=0)
    else:
        axes.errorbar(line.k, line.values, _errors(line), fmt="none", capsize=3, color=colour)
    _axis_of_k(axes, set(line.k))
    axes.set_ylabel(ylabel)
    axes.set_title(title, fontsize="medium", loc="left")
    _legend(axes)
    return _figure(axes), axes


def draw_forest(
    differences: Sequence[Difference], title: str, corrected: bool, margin: float | None, ax: Axes | None
) -> Drawn:
    """Draw differences with their intervals, one row per label from top to bottom and one colour per pair."""
    labels = list(dict.fromkeys(diff.label for diff in differences))
    pairs = list(dict.fromkeys(diff.pair for diff in differences))
    axes = _axes(ax, height=1.3 + max(0.32, 0.2 * len(pairs)) * len(labels))
    known = [end for diff in differences for end in (diff.value, *diff.interval, *diff.adjusted)]
    finite = [0.0, *(end for end in known if math.isfinite(end))] + ([] if margin is None else [-margin])
    padding = 0.06 * (max(finite) - min(finite) or 1.0)
    ends = min(finite) - padding, max(finite) + padding
    step = min(0.26, 0.8 / len(pairs))
    for place, pair in enumerate(pairs):
        colour, marker = _colour(place), _marker(place)
        of_pair = [diff for diff in differences if diff.pair == pair]
        rows = [labels.index(diff.label) + step * (place - (len(pairs) - 1) / 2) for diff in of_pair]
        for diff, row in zip(of_pair, rows, strict=True):
            if corrected:
                axes.plot(_cut(diff.adjusted, ends), [row, row], color=colour, lw=1, zorder=2)
            axes.plot(_cut(diff.interval, ends), [row, row], color=colour, lw=3, solid_capstyle="butt", zorder=2)
        how: dict[str, Any] = {"ls": "none", "marker": marker, "color": colour, "ms": 6.5, "mew": 0}
        axes.plot([diff.value for diff in of_pair], rows, label=pair, zorder=3, **how)
    neutral = pyplot().rcParams["axes.edgecolor"]
    axes.axvline(0, color=neutral, lw=1, zorder=1)
    if margin is not None:
        axes.axvline(-margin, color=neutral, lw=1, ls="--", zorder=1, label=f"margin {margin:g}")
    _rows(axes, labels)
    axes.set_xlim(*ends)
    axes.set_xlabel("difference" if len(pairs) > 1 else pairs[0])
    axes.set_title(title, fontsize="medium", loc="left")
    if len(pairs) > 1 or margin is not None:
        _legend(axes)
    return _figure(axes), axes


def draw_histogram(
    values: Sequence[float], sides: tuple[str, str, str], xlabel: str, bins: int, ax: Axes | None
) -> Drawn:
    """Draw a histogram of differences, in two colours above and below 0; a difference of 0 is in the legend only.

    Args:
        values: per-row differences.
        sides: entries of the legend for differences above 0, at 0 and below.
        xlabel: label of the axis of differences.
        bins: number of bins on each side of 0.
        ax: matplotlib axes; None = a new figure.
    """
    axes = _axes(ax)
    widest = max(map(abs, values), default=0.0) or 1.0
    edges = [widest * place / bins for place in range(bins + 1)]
    above, below = [v for v in values if v > 0], [v for v in values if v < 0]
    axes.hist(above, edges, color=_colour(0), label=sides[0])
    axes.plot([], [], ls="none", label=sides[1])
    axes.hist(below, [-edge for edge in reversed(edges)], color=_colour(1), label=sides[2])
    axes.axvline(0, color=pyplot().rcParams["axes.edgecolor"], lw=1)
    axes.set(xlabel=xlabel, ylabel="rows", xlim=(-1.02 * widest, 1.02 * widest))
    _integer_ticks(axes.yaxis)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    handles, labels = axes.get_legend_handles_labels()
    order = [labels.index(side) for side in sides]
    _legend(axes, [handles[place] for place in order])
    return _figure(axes), axes


def _axes(ax: Axes | None, height: float | None = None) -> Axes:
    """Return the given axes, or those of a new figure that widens for a legend outside the axes."""
    if ax is None:
        return _new_axes([height])[0]
    pyplot()
    if not hasattr(ax, "errorbar"):
        raise TypeError(f"ax must be matplotlib axes, got {type(ax).__name__}")
    return ax


def _new_axes(heights: Sequence[float | None]) -> list[Axes]:
    """Return the axes of a new figure from top to bottom, one per height in inches; None = the usual height."""
    plt = pyplot()
    width, usual = plt.rcParams["figure.figsize"]
    inches = [(usual if len(heights) == 1 else _PANEL) if height is None else height for height in heights]
    figure, axes = plt.subplots(
        len(inches), figsize=(width, sum(inches)), height_ratios=inches, layout="constrained", squeeze=False
    )
    _OWN_FIGURES[figure] = {"left": 0.0, "right": 0.0}
    return [*axes[:, 0]]


def _panels(units: Sequence[str], heights: Sequence[float | None], ax: Axes | Sequence[Axes] | None) -> list[Axes]:
    """Return one axes per unit: the given axes, or those of a new figure.

    Raises:
        ValueError: if the number of given axes is not the number of units.
    """
    if ax is None:
        return _new_axes(heights)
    many: Any = getattr(ax, "flat", ax)  # plt.subplots returns an array
    given = [*many] if hasattr(many, "__len__") else [many]
    if len(given) != len(units):
        raise ValueError(
            f"the metrics have {len(units)} scales, {', '.join(units)}, and some would look flat on another's: pass "
            f"ax=[...] with as many axes, got {len(given)}; without ax a figure is made that has them"
        )
    return [_axes(axes) for axes in given]


def _figure(axes: Axes) -> Figure:
    figure: Figure = axes.figure  # type: ignore[assignment]  # a subfigure has the same methods
    return figure


def _shift(axes: Axes, right: float, up: float) -> Any:
    """Return a transform that moves to the right and up by the given numbers of points."""
    from matplotlib.transforms import ScaledTranslation

    return ScaledTranslation(right / 72, up / 72, _figure(axes).dpi_scale_trans)


def _colour(place: int) -> str:
    """Return a colour of the style in use now; a name such as "C0" takes the style in use when a figure is drawn."""
    colours: list[str] = pyplot().rcParams["axes.prop_cycle"].by_key().get("color", ["C0"])
    return colours[place % len(colours)]


def _marker(place: int) -> str:
    return _MARKERS[place % len(_MARKERS)]


def _errors(line: Line) -> list[list[float]]:
    """Return the distances from the values down and up to the ends of their intervals; nan = no interval."""
    down = [_nonnegative_difference(value, low) for value, low in zip(line.values, line.low, strict=True)]
    return [down, [_nonnegative_difference(high, value) for value, high in zip(line.values, line.high, strict=True)]]


def _nonnegative_difference(high: float, low: float) -> float:
    """Return `high` - `low`, or 0 where the difference is negative by rounding."""
    return max(high - low, 0.0)  # max keeps nan, its first argument


def _axis_label(lines: Sequence[Line], what: str) -> str:
    """Return an axis label: `what`, followed by "95 % interval" if the lines have intervals."""
    known = any(not math.isnan(low) for line in lines for low in line.low)
    return f"{what}, 95 % interval" if known else what


def _cut(interval: tuple[float, float], ends: tuple[float, float]) -> list[float]:
    """Return the part of an interval that is inside the ends of the axis."""
    return [max(interval[0], ends[0]), min(interval[1], ends[1])]


def _rows(axes: Axes, labels: Sequence[str]) -> None:
    """Label the rows of the axes from top to bottom, and widen the figure for long labels."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    _widen(axes, "left", _inches(labels) - 1)


def _axis_of_k(axes: Axes, cutoffs: set[int]) -> None:
    """Set ticks at the given cut-offs and at those of earlier calls, as many as can be read; logarithmic if wide."""
    from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

    before = axes.xaxis.get_major_locator()
    known = {int(k) for k in before.tick_values(0, 0)} if isinstance(before, FixedLocator) else set()
    numbers = sorted(cutoffs | known, reverse=True)
    most, least = numbers[0], numbers[-1]
    scale: Callable[[float], float] = math.log if most >= _SPREAD * least else float
    apart = 0.06 * (scale(most) - scale(least))
    ticks = [most]
    for k in numbers[1:]:
        if scale(ticks[-1]) - scale(k) >= apart:
            ticks.append(k)
    if scale is math.log:
        axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(ticks[::-1]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set_xlabel("k")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def _integer_ticks(axis: Any) -> None:
    """Restrict the ticks of an axis to whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def _legend(axes: Axes, handles: Sequence[Any] | None = None) -> None:
    """Write a legend beside the axes if it has entries; a figure that was made here widens for the legend."""
    if handles is None:
        # lines with intervals first: matplotlib sorts by kind and would put them last
        handles = sorted(axes.get_legend_handles_labels()[0], key=lambda handle: not hasattr(handle, "has_yerr"))
    if not handles:
        return
    labels = [str(handle.get_label()) for handle in handles]
    if _figure(axes) not in _OWN_FIGURES:
        labels = ["\n".join(textwrap.wrap(label, _WRAP)) for label in labels]
    columns = -(-len(labels) // _LEGEND)
    axes.legend(handles, labels, ncols=columns, loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)
    _widen(axes, "right", columns * (_inches(labels) + 0.6))


def _inches(labels: Sequence[str]) -> float:
    """Return the approximate width of the longest label in inches."""
    return 0.008 * float(pyplot().rcParams["font.size"]) * max(map(len, labels))


def _widen(axes: Axes, side: str, inches: float) -> None:
    """Widen a figure made here by the labels or legend on one side, so that its axes keep their width."""
    figure = _figure(axes)
    grown = _OWN_FIGURES.get(figure)
    if grown is not None and inches > grown[side]:
        width, height = figure.get_size_inches()
        figure.set_size_inches(width + inches - grown[side], height)
        grown[side] = inches
