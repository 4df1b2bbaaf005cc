"""Cost against the number of items, rows, relevant items and metrics, drawn as four small panels."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any

import torch

from benchmarks import peers
from benchmarks.problem import CUTOFFS, NAMES, Problem, expected
from benchmarks.report import header, run_case
from benchmarks.timing import machine
from benchmarks.workloads import Case, contender, distinct
from torchrecmetrics import Interactions

ITEMS, ROWS, RELEVANT = 20_000, 256, 20
MOST_SCORES = 2**25  # 128 MB of float32: with very many items, a batch has fewer rows
LOOP = 256  # rows of a loop, in at least BATCHES batches
BATCHES = 8
METRICS = {  # number of metrics: names and cut-offs; the largest cut-off is 20 throughout
    1: (NAMES[:1], (20,)),
    2: (NAMES[:2], (20,)),
    6: (NAMES, (20,)),
    12: (NAMES, (10, 20)),
    18: (NAMES, CUTOFFS),
    30: (NAMES, (1, 3, *CUTOFFS)),
}
PANELS: dict[str, list[int]] = {
    "items": [1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000],
    "rows": [1, 4, 16, 64, 256, 1024],
    "relevant": [1, 3, 10, 30, 100, 300],
    "metrics": list(METRICS),
}
AXES = {
    "items": "items I",
    "rows": "rows of a batch B",
    "relevant": "relevant items of a row T",
    "metrics": "number of metrics",
}
COLOURS = {
    "torchrecmetrics": "#c1272d",
    "hand-written loop": "#d98f00",
    "PyG": "#1f5f99",
    "RecBole-style": "#3a7d44",
    "torch.topk alone": "#8a8a8a",
}


def case(items: int = ITEMS, rows: int = ROWS, relevant: int = RELEVANT, metrics: int = 18) -> Case:
    """Return a case that loops over batches of random scores with random targets, with the given sizes."""
    times = max(BATCHES, LOOP // rows)
    rows = min(rows, max(MOST_SCORES // items, 1))
    torch.manual_seed(0)
    scores, target = torch.randn(rows, items), distinct(rows, relevant, items)
    names, cutoffs = METRICS[metrics]
    problem = Problem(Interactions.from_padded(target, items), scores=scores, names=names, cutoffs=cutoffs, times=times)
    entrants = [
        contender("ours", partial(peers.ours_from_scores, problem, target)),
        contender("hand-written loop", partial(peers.hand_written, problem, target)),
        contender("PyG", partial(peers.pyg, problem)),
        contender("RecBole-style", partial(peers.recbole_style, problem)),
        contender("torch.topk alone", partial(peers.topk, problem)),
    ]
    text = f"[{rows}, {items}], T = {relevant}, {metrics} metrics"
    return Case("scaling", text, text, times * rows, entrants, partial(expected, problem))


def measure(panels: dict[str, list[int]], rounds: int | None = None, **fixed: int) -> Iterator[dict[str, Any]]:
    """Vary one size at a time, with the others `fixed`; yield each contender's minimum time in microseconds per row.

    The minimum over the rounds is used and not the median, because the points of a curve are measured one after another
    and only the minimum is nearly free of disturbance by other work on the machine.
    """
    for name, sizes in panels.items():
        cost: dict[str, list[float]] = {}
        for size in sizes:
            one = case(**fixed | {name: size})
            result = run_case(one, rounds, seconds=2.0)
            for who in result["contenders"]:
                label = "torchrecmetrics" if who["name"] == "ours" else who["name"]
                cost.setdefault(label, []).append(1e3 * who["min_ms"] / one.rows)
            print(f"{one.text}: " + ", ".join(f"{who} {taken[-1]:,.1f}" for who, taken in cost.items()), flush=True)
        yield {"varied": name, "sizes": sizes, "us_per_row": cost}


def draw(kept: dict[str, Any], path: Path) -> None:
    """Draw the panels with the same cost axis and label each line at its right end."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FuncFormatter, NullLocator

    plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(2, 2, figsize=(9, 6.6), sharey=True)
    short = FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    for axis, panel in zip(axes.flat, kept["panels"], strict=True):
        for who, cost in panel["us_per_row"].items():
            style = (
                {"linewidth": 1.2, "linestyle": "--"} if who == "torch.topk alone" else {"linewidth": 2, "marker": "o"}
            )
            axis.plot(panel["sizes"], cost, color=COLOURS[who], markersize=4, clip_on=False, **style)
        axis.set(xscale="log", yscale="log", xlabel=AXES[panel["varied"]])
        axis.grid(axis="y", color="#e6e6e6", linewidth=0.8)
        axis.set_axisbelow(True)
        if panel["sizes"][-1] <= 1024:
            axis.set_xticks(panel["sizes"])
            axis.xaxis.set_major_formatter(short)
        axis.xaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_major_formatter(short)
    for axis in axes[:, 0]:
        axis.set_ylabel("µs per row")
    figure.suptitle(fill(kept["fixed"], 100), fontsize=11, x=0.02, ha="left")
    figure.tight_layout(rect=(0, 0, 0.84, 1))
    for axis, panel in zip(axes[:, 1], kept["panels"][1::2], strict=True):
        _label_ends(axis, {who: cost[-1] for who, cost in panel["us_per_row"].items()})
    figure.savefig(path, dpi=200)
    plt.close(figure)


def _label_ends(axis: Any, ends: dict[str, float]) -> None:
    """Write each line's name beside its end, and move names apart where they would touch."""
    low, high = (float(axis.transData.transform((1, value))[1]) for value in axis.get_ylim())
    points = axis.figure.dpi / 72
    last = low - 20 * points
    for who, cost in sorted(ends.items(), key=lambda end: end[1]):
        at = max(float(axis.transData.transform((1, cost))[1]), last + 15 * points)
        last = at
        share = (at - low) / (high - low)
        axis.annotate(
            who, (1.04, share), xycoords="axes fraction", color=COLOURS[who], va="center", annotation_clip=False
        )


def main(folder: Path, plot_only: bool = False) -> None:
    """Measure (unless `plot_only` is set) and write scaling.json and scaling.png."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "scaling.json"
    if not plot_only:
        here = machine()
        print(header(here), "microseconds per row", sep="\n", flush=True)
        kept = {
            "date": datetime.date.today().isoformat(),
            "machine": here,
            "fixed": f"float32, {here['threads']} CPU threads; where not varied: "
            f"I = {ITEMS:,}, B = {ROWS} (fewer from I = 300,000), T = {RELEVANT}, 18 metrics, "
            f"loops of {LOOP:,} rows or more",
            "panels": list(measure(PANELS)),
        }
        data.write_text(json.dumps(kept, indent=1) + "\n")
    draw(json.loads(data.read_text()), folder / "scaling.png")
    print(f"written: {data} and {folder / 'scaling.png'}")
