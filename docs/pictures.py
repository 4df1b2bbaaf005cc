"""The pictures of the documentation, drawn from the library's own answers: `python docs/pictures.py [--out FOLDER]`.

A picture is a function of a `Canvas` in the table `PICTURES`; its numbers come from a function beside it, which the
tests hold against arithmetic. Each is written as NAME-light.svg and NAME-dark.svg, the same bytes in every run.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")

import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle

import torchrecmetrics as trm

ROOT = Path(__file__).parents[1]
WIDTH = 9.0  # inches
SMALL, TEXT, TITLE = 13, 14, 16  # points
SETTINGS = {
    "font.size": SMALL,
    "font.family": "DejaVu Sans",
    "svg.fonttype": "path",
    "svg.hashsalt": "torchrecmetrics",
    "axes.unicode_minus": False,
}


class Style(NamedTuple):
    """Colours on one background; blue, orange and green are told apart by the colour-blind, too."""

    ink: str
    muted: str
    faint: str
    paper: str
    blue: str
    orange: str
    green: str


STYLES = {
    "light": Style("#1f2328", "#59636e", "#d1d9e0", "#ffffff", "#0072b2", "#c8500a", "#00805c"),
    "dark": Style("#e6e8eb", "#a3adba", "#444b58", "#1e2129", "#5cb3ee", "#f2935c", "#3fc79a"),
}


class Canvas:
    """A sheet measured in inches from its lower left corner."""

    def __init__(self, style: Style, height: float) -> None:
        self.style, self.height = style, height
        self.figure: Figure = plt.figure(figsize=(WIDTH, height))
        self.sheet = self.figure.add_axes((0, 0, 1, 1))
        self.sheet.set(xlim=(0, WIDTH), ylim=(0, height))
        self.sheet.axis("off")

    def text(self, x: float, y: float, what: str, colour: str = "ink", size: int = SMALL, **how: Any) -> None:
        """Write; left-aligned and centred vertically unless told otherwise."""
        how = {"ha": "left", "va": "center"} | how
        self.sheet.text(x, y, what, color=getattr(self.style, colour), fontsize=size, **how)

    def box(self, x: float, y: float, width: float, height: float, colour: str = "faint", fill: float = 0.0) -> None:
        """Draw a box with round corners, its lower left one at (x, y)."""
        shape = f"round,pad=0,rounding_size={min(0.1, height / 4)}"
        hue = getattr(self.style, colour)
        if fill:
            self.sheet.add_patch(FancyBboxPatch((x, y), width, height, shape, fc=hue, ec="none", alpha=fill))
        self.sheet.add_patch(FancyBboxPatch((x, y), width, height, shape, fc="none", ec=hue, lw=1.4))

    def cells(
        self, x: float, y: float, words: Sequence[str], width: float, height: float, marked: Iterable[int] = ()
    ) -> None:
        """Draw a row of cells; `marked` ones hold relevant items."""
        style, marked = self.style, set(marked)
        for place, word in enumerate(words):
            at = x + place * width
            if place in marked:
                self.sheet.add_patch(Rectangle((at, y), width, height, fc=style.orange, ec="none", alpha=0.25))
            self.sheet.add_patch(Rectangle((at, y), width, height, fc="none", ec=style.muted, lw=1))
            weight = "bold" if place in marked else "normal"
            self.text(at + width / 2, y + height / 2 - 0.01, word, ha="center", weight=weight)

    def arrow(self, start: tuple[float, float], end: tuple[float, float], colour: str = "muted") -> None:
        """Draw an arrow."""
        hue = getattr(self.style, colour)
        self.sheet.add_patch(
            FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=14, lw=1.6, color=hue, shrinkA=0, shrinkB=0)
        )

    def dot(self, x: float, y: float, colour: str, radius: float = 0.1, filled: bool = True) -> None:
        """Draw a dot."""
        hue = getattr(self.style, colour)
        self.sheet.add_patch(Circle((x, y), radius, fc=hue if filled else "none", ec=hue, lw=1.6, zorder=3))

    def line(self, xs: Sequence[float], ys: Sequence[float], colour: str, width: float = 1.2, **how: Any) -> None:
        """Draw a line."""
        self.sheet.plot(xs, ys, color=getattr(self.style, colour), lw=width, **how)

    def axes(self, x: float, y: float, width: float, height: float) -> Any:
        """Return axes for a plot, in the sheet's style."""
        axes = self.figure.add_axes((x / WIDTH, y / self.height, width / WIDTH, height / self.height))
        style = self.style
        axes.patch.set_alpha(0)
        axes.tick_params(colors=style.ink, labelsize=SMALL, length=4)
        for side, spine in axes.spines.items():
            spine.set(visible=side in ("left", "bottom"), color=style.muted)
        return axes


def number(value: float, digits: int = 2) -> str:
    """Write a number without needless zeros."""
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")


# -------------------------------------------------------------------------------------------------------------- inputs

INPUTS = {
    "scores": [0.1, 0.9, 0.5, 0.3, 0.7],
    "list": [1, 4, 2, 3, 0],
    "user": [1.0, 1.0],
    "items": [[0.0, 0.1], [0.6, 0.3], [0.1, 0.4], [0.2, 0.1], [0.4, 0.3]],
    "relevant": [4, 3],
}


def doors_numbers() -> dict[str, Any]:
    """Ranks from scores and from a list, and the values of all three inputs."""
    target = torch.tensor([INPUTS["relevant"]])
    names = ["HR@3", "Recall@3", "NDCG@3", "MRR@3"]
    values, ranks = {}, {}
    for kind_of_input, ranking in {
        "scores": trm.Scores(torch.tensor([INPUTS["scores"]]), target).ranking(),
        "list": trm.Lists(torch.tensor([INPUTS["list"]]), target).ranking(),
    }.items():
        collection = trm.RecMetricCollection(names)
        collection.update(ranking)
        values[kind_of_input] = {label: float(value) for label, value in collection.compute().items()}
        ranks[kind_of_input] = ranking.ranks[0].tolist()
    truth = trm.Interactions.from_padded(target, num_items=5)
    users, items = torch.tensor([INPUTS["user"]]), torch.tensor(INPUTS["items"])
    found = trm.evaluate(names, users, items, target=truth)
    values["embeddings"] = {label: float(value) for label, value in found.items()}
    return {"ranks": ranks, "values": values}


def doors(style: Style) -> Canvas:
    """Scores, lists and embeddings become a ranking; metrics read nothing else."""
    sheet = Canvas(style, 5.1)
    numbers = doors_numbers()
    tall, wide, left = 1.5, 4.0, 0.1
    relevant = INPUTS["relevant"]
    bottoms = {"scores": 3.5, "list": 1.8, "embeddings": 0.1}
    for kind_of_input, bottom in bottoms.items():
        sheet.box(left, bottom, wide, tall, "blue", 0.06)
        title = {"scores": "Scores", "list": "Lists", "embeddings": "Embeddings"}[kind_of_input]
        sheet.text(left + 0.2, bottom + tall - 0.26, title, "blue", TITLE, weight="bold")
        end = bottom + tall / 2
        sheet.arrow((left + wide + 0.08, end), (4.84, 2.55 + 0.55 * (end - 2.55) / 1.7))
    top = bottoms["scores"] + 0.62
    sheet.text(left + 0.2, top + 0.15, "item", "muted")
    for item in range(5):
        sheet.text(1.0 + 0.6 * item + 0.3, top + 0.15, str(item), "muted", ha="center")
    sheet.text(left + 0.2, top - 0.24, "score", "muted")
    sheet.cells(1.0, top - 0.42, [f"{score:.1f}" for score in INPUTS["scores"]], 0.6, 0.36, relevant)
    top = bottoms["list"] + 0.62
    for place in range(5):
        sheet.text(1.0 + 0.6 * place + 0.3, top + 0.15, str(place + 1), "muted", ha="center")
    sheet.text(left + 0.2, top + 0.15, "place", "muted")
    sheet.text(left + 0.2, top - 0.24, "item", "muted")
    hits = [INPUTS["list"].index(item) for item in relevant]
    sheet.cells(1.0, top - 0.42, [str(item) for item in INPUTS["list"]], 0.6, 0.36, hits)
    top = bottoms["embeddings"] + 0.42
    sheet.text(left + 0.12, top + 0.18, "user", "muted")
    for row in range(2):
        sheet.cells(0.72, top + 0.18 - 0.34 * row, [number(INPUTS["user"][row], 1)], 0.42, 0.34)
        values = [f"{item[row]:.1f}"[1:] for item in INPUTS["items"]]
        sheet.cells(2.05, top + 0.18 - 0.34 * row, values, 0.38, 0.34, relevant)
    sheet.text(1.22, top + 0.17, "\u00d7 items", "muted")

    sheet.box(4.9, 1.35, 1.85, 2.4, "orange", 0.1)
    middle = 4.9 + 1.85 / 2
    sheet.text(middle, 3.43, "Ranking", "orange", TITLE, ha="center", weight="bold")
    sheet.text(middle, 2.98, "relevant items", ha="center")
    sheet.text(middle, 2.72, "stand at", ha="center")
    ranks = numbers["ranks"]["scores"]
    for place in range(1, 6):
        x, hit = 4.9 + 0.925 + 0.32 * (place - 3), place in ranks
        sheet.dot(x, 2.25, "orange" if hit else "muted", 0.12, hit)
        sheet.text(x, 1.92, str(place), "ink" if hit else "muted", ha="center", weight="bold" if hit else "normal")
    sheet.text(middle, 1.58, "ranks " + ", ".join(number(rank) for rank in ranks), ha="center")
    sheet.arrow((6.82, 2.55), (7.13, 2.55))
    sheet.box(7.2, 1.35, 1.7, 2.4, "green", 0.1)
    sheet.text(8.05, 3.43, "Metrics", "green", TITLE, ha="center", weight="bold")
    for row, (label, value) in enumerate(numbers["values"]["scores"].items()):
        y = 2.95 - 0.4 * row
        sheet.text(7.3, y, label)
        sheet.text(8.8, y, f"{value:.2f}", ha="right")
    sheet.dot(5.1, 0.42, "orange", 0.09)
    sheet.text(5.3, 0.41, "relevant: items " + " and ".join(str(item) for item in sorted(relevant)), "muted")
    return sheet


# ----------------------------------------------------------------------------------------------------------------- ties

TIES_ITEMS = 100


def ties_numbers() -> dict[str, list[float]]:
    """HR@1, HR@2, ... of one relevant item among items of equal scores, as expected and at its mean rank."""
    found = {}
    for ties_option in ("expected", "realistic"):
        collection = trm.RecMetricCollection("HR", k=range(1, TIES_ITEMS + 1), ties=ties_option)
        collection.update(torch.zeros(1, TIES_ITEMS), torch.tensor([0]))
        found[ties_option] = [float(value) for value in collection.compute().values()]
    return found


def ties(style: Style) -> Canvas:
    """HR@k of a constant scorer: a line of expected values beside the step of the mean rank."""
    sheet = Canvas(style, 4.1)
    axes = sheet.axes(0.85, 0.8, 7.8, 2.9)
    numbers = ties_numbers()
    for name, colour, drawstyle, label_at in (
        ("expected", "orange", "default", (7, 0.4)),
        ("realistic", "blue", "steps-post", (53, 0.86)),
    ):
        hue = getattr(style, colour)
        cutoffs = range(1, TIES_ITEMS + 1)
        axes.plot(cutoffs, numbers[name], color=hue, lw=2.4, drawstyle=drawstyle, clip_on=False)
        axes.annotate(f'ties="{name}"', label_at, color=hue, fontsize=TEXT, weight="bold")
    axes.set(xlim=(0, TIES_ITEMS), ylim=(0, 1))
    axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.set_xticks([1, 25, 50, 75, 100])
    axes.grid(axis="y", color=style.faint, lw=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel(f"k; {TIES_ITEMS} items with equal scores", color=style.ink, fontsize=TEXT)
    sheet.text(0.1, 3.88, "HR@k")
    return sheet


# -------------------------------------------------------------------------------------------------------------- history

HISTORY_SCORES = [0.9, 0.8, 0.7, 0.5, 0.4, 0.2]
HISTORY, HISTORY_TARGETS = [0, 2], [2, 4]


def history_numbers() -> dict[str, dict[int, float]]:
    """Places of all candidates under each way to take an excluded relevant item; `inf` for relevant ones without."""
    scores, history = torch.tensor([HISTORY_SCORES]), torch.tensor([HISTORY])
    ways = {
        "nothing excluded": {},
        'overlap="keep"': {"exclude": history, "overlap": "keep"},
        'overlap="miss"': {"exclude": history, "overlap": "miss"},
    }
    found = {}
    for way, options in ways.items():
        gone = set(HISTORY) if options else set()
        if options.get("overlap") == "keep":
            gone -= set(HISTORY_TARGETS)
        items = [item for item in range(len(HISTORY_SCORES)) if item not in gone]
        ranks = trm.get_topk_ranks(scores, torch.tensor([[*items, -1]]), len(HISTORY_SCORES), **options)
        found[way] = dict(zip(items, ranks[0].tolist(), strict=False))  # -1 is padding
        scored = trm.Scores(scores, torch.tensor([HISTORY_TARGETS]), exclude=options.pop("exclude", None))
        ranking = scored.ranking(**options)
        own = sorted(found[way].get(item, float("inf")) for item in HISTORY_TARGETS)
        assert ranking.ranks[0].tolist() == own
        found[way] |= {item: float("inf") for item in HISTORY_TARGETS if item not in found[way]}
    return found


def history(style: Style) -> Canvas:
    """One row with history, one relevant item among it."""
    sheet = Canvas(style, 4.55)
    left, wide, tall = 2.65, 0.75, 0.44
    sheet.text(0.1, 4.22, "item", "muted")
    sheet.text(0.1, 3.72, "score")
    for item, score in enumerate(HISTORY_SCORES):
        sheet.text(left + wide * (item + 0.5), 4.22, str(item), "muted", ha="center")
        sheet.text(left + wide * (item + 0.5), 3.72, f"{score:.1f}", ha="center")
    for column, item in enumerate(HISTORY_TARGETS):
        sheet.text(7.25 + 0.9 * column + 0.42, 3.72, f"item {item}", "muted", ha="center")
    sheet.text(8.12, 4.22, "relevant at rank", "muted", ha="center")
    for row, (way, places) in enumerate(history_numbers().items()):
        y = 2.78 - 0.95 * row
        sheet.text(0.1, y + tall / 2, way, size=TEXT)
        words = [number(places[item]) if places.get(item, float("inf")) < float("inf") else "" for item in range(6)]
        sheet.cells(left, y, words, wide, tall, HISTORY_TARGETS)
        for item, word in enumerate(words):
            if not word:
                x = left + wide * item
                sheet.line([x + 0.08, x + wide - 0.08], [y + 0.08, y + tall - 0.08], "muted", 1.8)
                sheet.line([x + 0.08, x + wide - 0.08], [y + tall - 0.08, y + 0.08], "muted", 1.8)
        for column, item in enumerate(HISTORY_TARGETS):
            rank = places[item]
            shown = "missed" if rank == float("inf") else number(rank)
            sheet.text(7.25 + 0.9 * column + 0.42, y + tall / 2, shown, size=TEXT, ha="center")
    y = 0.28
    sheet.sheet.add_patch(Rectangle((left, y - 0.12), 0.24, 0.24, fc=style.orange, ec="none", alpha=0.25))
    sheet.text(left + 0.34, y, "relevant", "muted")
    sheet.line([left + 1.55, left + 1.75], [y - 0.1, y + 0.1], "muted", 1.8)
    sheet.line([left + 1.55, left + 1.75], [y + 0.1, y - 0.1], "muted", 1.8)
    sheet.text(left + 1.88, y, f"left out; history: items {' and '.join(map(str, HISTORY))}", "muted")
    return sheet


# --------------------------------------------------------------------------------------------------------------- splits

EVENTS = {  # user: days on which something happened
    "al": [2, 5, 9, 14, 17],
    "bo": [1, 3, 4, 6],
    "cy": [12, 16, 19, 21, 23, 24],
    "di": [8, 10, 13, 20, 22],
    "ed": [3, 7, 11],
    "fy": [5, 15, 18, 19, 22],
}
VALID_FROM, TEST_FROM = 16, 20


def splits_numbers() -> dict[str, dict[str, Any]]:
    """Events of each part as (user, day), the end of train, and test events that are older."""
    frame: dict[str, list[Any]] = {"user": [], "item": [], "day": []}
    for user, days in EVENTS.items():
        for day in days:
            frame["user"].append(user)
            frame["item"].append((7 * day + len(user)) % 11)
            frame["day"].append(day)
    log = trm.Log.from_frame(frame, time="day")
    found = {}
    for way, split in {
        "leave_last_out": log.leave_last_out(),
        "split_by_time": log.split_by_time(VALID_FROM, TEST_FROM),
    }.items():
        parts = {
            name: list(zip(part.user_ids.ids(part.users), part.times.tolist(), strict=True))
            for name, part in zip(split._fields, split, strict=True)
        }
        older = trm.audit(split)["before_train_ends"]
        found[way] = {**parts, "train_ends": max(day for _, day in parts["train"]), "older": (older.number, older.of)}
    return found


def splits(style: Style) -> Canvas:
    """Leave-last-out and a split by time, on a line of days."""
    sheet = Canvas(style, 6.3)
    colours = {"train": "blue", "valid": "green", "test": "orange"}
    left, wide = 0.75, 8.0
    last = max(day for days in EVENTS.values() for day in days) + 1

    def at(day: float) -> float:
        return left + wide * day / last

    for panel, (way, found) in enumerate(splits_numbers().items()):
        top = 5.55 - 3.0 * panel
        older, tests = found["older"]
        sheet.text(0.1, top + 0.45, way, size=TITLE, weight="bold")
        says = f"{older} of {tests} test events are older than train's last"
        sheet.text(WIDTH - 0.1, top + 0.45, says, ha="right")
        for row, user in enumerate(EVENTS):
            y = top - 0.05 - 0.36 * row
            sheet.text(0.1, y, user, "muted")
            sheet.line([at(0), at(last)], [y, y], "faint", 1)
        bottom = top - 0.05 - 0.36 * 5
        ends = at(found["train_ends"])
        sheet.line([ends, ends], [bottom - 0.2, top + 0.15], "blue", 1.6, ls="--")
        for part, colour in colours.items():
            for user, day in found[part]:
                y = top - 0.05 - 0.36 * list(EVENTS).index(user)
                sheet.dot(at(day), y, colour, 0.11)
                if part == "test" and day < found["train_ends"]:
                    sheet.dot(at(day), y, "orange", 0.17, filled=False)
    y = 0.22
    for x, (part, colour) in zip((0.75, 1.85, 3.5), colours.items(), strict=True):
        sheet.dot(x, y, colour, 0.11)
        sheet.text(x + 0.2, y, {"valid": "validation"}.get(part, part), "muted")
    sheet.dot(4.55, y, "orange", 0.11)
    sheet.dot(4.55, y, "orange", 0.17, filled=False)
    sheet.text(4.8, y, "older than train's last", "muted")
    sheet.line([7.35, 7.35], [y - 0.16, y + 0.16], "blue", 1.6, ls="--")
    sheet.text(7.5, y, "train's last", "muted")
    return sheet


# ----------------------------------------------------------------------------------------------------------------- cost

COST_AXES = {
    "items": "items",
    "rows": "rows of a batch",
    "relevant": "relevant items of a row",
    "metrics": "metrics",
}
COST_LINES = {
    "torchrecmetrics": ("orange", "-", "o"),
    "hand-written loop": ("green", "-", "s"),
    "PyG": ("blue", "-", "^"),
    "RecBole-style": ("ink", "-", "D"),
    "torch.topk alone": ("muted", "--", None),
}


def cost_numbers() -> list[dict[str, Any]]:
    """Read what `python -m benchmarks scaling` has measured: panels of microseconds a row."""
    panels: list[dict[str, Any]] = json.loads((ROOT / "benchmarks/results/scaling.json").read_text())["panels"]
    return panels


def _short(value: float, _: object = None) -> str:
    for size, letter in ((10**6, "M"), (10**3, "k")):
        if value >= size and value % size == 0:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def cost(style: Style) -> Canvas:
    """Cost of a row against the size of what is varied, four panels with one scale."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    sheet = Canvas(style, 7.05)
    for place, panel in enumerate(cost_numbers()):
        axes = sheet.axes(0.85 + 4.2 * (place % 2), 4.35 - 2.95 * (place // 2), 3.75, 2.2)
        for who, values in panel["us_per_row"].items():
            colour, dashes, marker = COST_LINES[who]
            axes.plot(
                panel["sizes"],
                values,
                color=getattr(style, colour),
                ls=dashes,
                marker=marker,
                lw=2,
                ms=5,
                clip_on=False,
            )
        axes.set(xscale="log", yscale="log", ylim=(3, 6000))
        axes.set_xlabel(COST_AXES[panel["varied"]], color=style.ink, fontsize=TEXT)
        axes.grid(axis="y", color=style.faint, lw=0.8)
        axes.set_axisbelow(True)
        axes.set_xticks(panel["sizes"][:: 2 if panel["varied"] == "items" else 1])
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(_short))
            axis.set_minor_locator(NullLocator())
        axes.set_yticks([10, 100, 1000], ["10", "100", "1000"] if place % 2 == 0 else [""] * 3)
    sheet.text(0.1, 6.85, "µs per row")
    for at, (who, (colour, dashes, marker)) in enumerate(COST_LINES.items()):
        x, y = 0.85 + 2.6 * (at % 3), 0.52 - 0.34 * (at // 3)
        sheet.line([x, x + 0.5], [y, y], colour, 2, ls=dashes)
        sheet.line([x + 0.25], [y], colour, marker=marker, ms=5)
        sheet.text(x + 0.62, y, who)
    return sheet


# -------------------------------------------------------------------------------------------------------------- sampled

SAMPLED_USERS, SAMPLED_ITEMS = 600, 10_000
SAMPLED_SIZES = [10, 20, 50, 100, 200, 500, 1000, 2000, 5000]


@cache
def sampled_numbers() -> dict[str, dict[str, list[float]]]:
    """HR@10 of two planted models over the whole catalogue, and among so many sampled negatives.

    Model A puts every third user's item first and knows nothing of the others; model B puts everybody's among the best
    two per cent.
    """
    generator = torch.Generator().manual_seed(0)
    users, items = SAMPLED_USERS, SAMPLED_ITEMS
    others = torch.rand(users, items - 1, generator=generator)  # in random order: the first of them are a sample
    chance = torch.rand(users, 1, generator=generator)
    bold = chance.clone()
    bold[::3] = 2
    target = torch.zeros(users, dtype=torch.int64)
    found: dict[str, dict[str, list[float]]] = {}
    for model, own in {"model A": bold, "model B": 1 - 0.02 * chance}.items():
        values = []
        for size in (*SAMPLED_SIZES, items - 1):
            metric = trm.HitRate(10)
            metric.update(torch.cat([own, others[:, :size]], 1), target)
            values.append(float(metric.compute()))
        found[model] = {"sampled": values[:-1], "full": values[-1:]}
    return found


def sampled(style: Style) -> Canvas:
    """HR@10 of two models against the number of negatives that are sampled."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    sheet = Canvas(style, 4.9)
    axes = sheet.axes(0.85, 0.9, 6.5, 3.5)
    sizes = [*SAMPLED_SIZES, SAMPLED_ITEMS - 1]
    for (model, found), colour, marker in zip(sampled_numbers().items(), ("blue", "orange"), "os", strict=True):
        hue = getattr(style, colour)
        values = [*found["sampled"], *found["full"]]
        axes.plot(sizes, values, color=hue, lw=2.2, marker=marker, ms=6, clip_on=False)
        sheet.text(7.5, 0.9 + 3.5 * values[-1], f"{model}: {values[-1]:.2f}", colour, TEXT, weight="bold")
        hundred = found["sampled"][SAMPLED_SIZES.index(100)]
        axes.annotate(
            f"{hundred:.2f}", (100, hundred), (0, 11), textcoords="offset points", color=hue, ha="center", fontsize=TEXT
        )
    axes.axvline(100, color=style.muted, lw=1, ls=":")
    axes.set(xscale="log", ylim=(0, 1), xlim=(10, SAMPLED_ITEMS))
    axes.set_xticks([10, 100, 1000, SAMPLED_ITEMS])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: "all" if value == SAMPLED_ITEMS else f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    axes.grid(axis="y", color=style.faint, lw=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel(f"negatives beside the relevant item, of {SAMPLED_ITEMS:,} items", color=style.ink, fontsize=TEXT)
    sheet.text(0.1, 4.68, "HR@10")
    return sheet


# ---------------------------------------------------------------------------------------------------- curve and forest

PLANTED_USERS, PLANTED_ITEMS = 300, 400
PLANTED_CUTOFFS = [1, 2, 5, 10, 20, 50, 100]


@cache
def planted() -> dict[str, trm.RecMetricCollection]:
    """Rank the generated scores of docs/how-to/plots.md; a lift raises the scores of relevant items."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(PLANTED_USERS, PLANTED_ITEMS, generator=generator)
    target = torch.rand(PLANTED_USERS, PLANTED_ITEMS, generator=generator).argsort(1)[:, :3]
    easy = torch.rand(PLANTED_USERS, 1, generator=generator)
    found = {}
    for model, lift in {"baseline": 0.0, "lift 0.02": 0.02, "lift 0.1": 0.1}.items():
        own = 0.8 * easy + (0.35 + lift) * torch.rand(PLANTED_USERS, 3, generator=generator)
        names = ["HR", "NDCG", "Recall"]
        collection = trm.RecMetricCollection(names, k=PLANTED_CUTOFFS, accumulators=[trm.KeptRows()])
        collection.update(scores.scatter(1, target, own), target, row_ids=torch.arange(PLANTED_USERS))
        collection.compute()
        found[model] = collection
    return found


def curve_numbers() -> dict[str, list[tuple[float, float, float]]]:
    """NDCG of two planted models at all cut-offs, each with the ends of its interval."""
    values = {name: [planted()[name][f"NDCG@{k}"] for k in PLANTED_CUTOFFS] for name in ("baseline", "lift 0.1")}
    return {name: [(v.compute().item(), *v.confidence_interval()) for v in found] for name, found in values.items()}


def forest_numbers() -> trm.Comparison:
    """Comparison of the planted models with the first one."""
    shown = [f"{name}@{k}" for k in (10, 50) for name in ("HR", "NDCG", "Recall")]
    return trm.compare(planted(), shown, baseline="baseline", resamples=2000)


def themed(style: Style) -> Any:
    """Let the library's own plots take the style's colours."""
    inks = ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color")
    hues = [style.blue, style.orange, style.green]
    settings = {**dict.fromkeys(inks, style.ink), "axes.edgecolor": style.muted, "grid.color": style.muted}
    return matplotlib.rc_context({**settings, "axes.prop_cycle": matplotlib.cycler(color=hues)})


def curve(style: Style) -> Canvas:
    """NDCG of two planted models against k, with 95 % intervals."""
    with themed(style):
        sheet = Canvas(style, 4.6)
        models = {
            name: SimpleNamespace(points=[point for point in planted()[name].points if point.name == "NDCG"])
            for name in ("baseline", "lift 0.1")
        }
        trm.plot(models, sheet.axes(0.95, 0.8, 5.9, 3.3))
    return sheet


def forest(style: Style) -> Canvas:
    """Two planted models against a third: differences of six metrics with their intervals."""
    with themed(style):
        sheet = Canvas(style, 4.6)
        trm.plot(forest_numbers(), sheet.axes(1.35, 0.8, 4.5, 3.3))
    return sheet


# ------------------------------------------------------------------------------------------------------------- coverage

COVERAGE_PENALTIES = (0.02, 0.05, 0.07, 0.1, 0.12)


@cache
def coverage_numbers() -> dict[str, tuple[float, float]]:
    """Coverage@10 and NDCG@10 of the recommenders of docs/how-to/beyond-accuracy.md, and of some penalties more."""
    generator = torch.Generator().manual_seed(0)
    num_users, num_items = 1000, 500
    genre, popular = torch.arange(num_items) % 10, 1 / (1 + torch.arange(num_items)) ** 0.8
    taste = torch.randint(10, (num_users, 1), generator=generator)
    wanted = torch.where(genre == taste, 15.0, 1.0) * popular
    taken = wanted.multinomial(24, generator=generator)[:, torch.randperm(24, generator=generator)]
    train, test = (trm.Interactions.from_padded(part, num_items) for part in (taken[:, :20], taken[:, 20:]))
    matrix = torch.zeros(num_users, num_items, dtype=torch.float64).scatter(1, taken[:, :20], 1)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    users, items = left[:, :10] * values[:10], right[:10].T
    catalogue = trm.Catalogue.from_interactions(train)

    def both(*model: Any, **options: Any) -> tuple[float, float]:
        names = ["Coverage@10", "NDCG@10"]
        found = trm.evaluate(names, *model, target=test, exclude=train, catalogue=catalogue, **options)
        coverage, ndcg = (round(float(found[name]), 4) for name in names)
        return coverage, ndcg

    rare = -(1 + train.popularity).log()
    return {
        "popularity": both(trm.Embeddings(bias=train.popularity)),
        "random": both(lambda ids: torch.rand(len(ids), num_items, generator=generator)),
        "model": both(users, items),
        **{f"penalty {by:g}": both(trm.Embeddings(users, items, by * rare)) for by in COVERAGE_PENALTIES},
    }


def coverage(style: Style) -> Canvas:
    """NDCG@10 against Coverage@10: popularity, random lists, a model, and one with penalties on what is popular."""
    sheet = Canvas(style, 4.6)
    axes = sheet.axes(0.95, 0.8, 7.6, 3.3)
    numbers = coverage_numbers()
    path = [numbers["model"], *(numbers[f"penalty {by:g}"] for by in COVERAGE_PENALTIES)]
    axes.plot(*zip(*path, strict=True), color=style.green, lw=1.6, marker="o", ms=6, zorder=2)
    for name, colour in {"popularity": "muted", "random": "blue", "model": "orange"}.items():
        axes.plot(*numbers[name], color=getattr(style, colour), marker="o", ms=11, zorder=3, clip_on=False)
    for name, (says, colour, right, up) in {
        "popularity": ("popularity", "muted", 12, -4),
        "random": ("random", "blue", -12, 8),
        "model": ("model", "orange", -12, 8),
        f"penalty {COVERAGE_PENALTIES[-1]:g}": ("popular items penalised", "green", 12, -4),
    }.items():
        how = {"textcoords": "offset points", "fontsize": TEXT, "ha": "left" if right > 0 else "right"}
        axes.annotate(says, numbers[name], (right, up), color=getattr(style, colour), **how)
    axes.set(xlim=(0, 1.02), ylim=(0, 0.3))
    axes.set_yticks([0, 0.1, 0.2, 0.3])
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    axes.grid(color=style.faint, lw=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("Coverage@10: items that stand in some list", color=style.ink, fontsize=TEXT)
    sheet.text(0.1, 4.36, "NDCG@10")
    return sheet


# ----------------------------------------------------------------------------------------------------------- abstaining

ABSTAIN_THRESHOLDS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)


@cache
def abstain_numbers() -> dict[float, tuple[float, float]]:
    """By threshold, the two numbers of docs/how-to/retrieval.md: unanswerable queries with a result, and Recall@5."""
    generator = torch.Generator().manual_seed(0)
    answer = 0.5 * torch.randn(400, 1, generator=generator) + 1.5
    scores = torch.cat([answer, 0.5 * torch.randn(400, 19, generator=generator)], dim=1)
    nothing = 0.5 * torch.randn(200, 20, generator=generator)
    numbers = {}
    for threshold in ABSTAIN_THRESHOLDS:
        recall = trm.Recall(5, score_threshold=threshold)
        recall.update(scores, torch.zeros(400, dtype=torch.int64))
        answered = (nothing.max(dim=1).values >= threshold).double().mean()
        numbers[threshold] = (round(answered.item(), 3), round(recall.compute().item(), 3))
    return numbers


def abstain(style: Style) -> Canvas:
    """Recall@5 of answerable queries against the share of unanswerable ones with a result, by threshold."""
    sheet = Canvas(style, 4.6)
    axes = sheet.axes(0.95, 0.8, 7.6, 3.3)
    axes.plot(*zip(*abstain_numbers().values(), strict=True), color=style.green, lw=1.6, marker="o", ms=8)
    for threshold, point in abstain_numbers().items():
        how = {"textcoords": "offset points", "fontsize": TEXT, "color": style.green}
        axes.annotate(number(threshold), point, (10, -14), **how)
    axes.set(xlim=(0, 1.02), ylim=(0, 1.02))
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    axes.grid(color=style.faint, lw=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("unanswerable queries with a result", color=style.ink, fontsize=TEXT)
    sheet.text(0.1, 4.36, "Recall@5 of the others, by threshold")
    return sheet


# --------------------------------------------------------------------------------------------------------------- layers

LAYERS = [  # packages of one layer; the names are those of CONTRIBUTING.md's table
    ["pyg/", "lightning/", "arrow.py", "cli.py"],
    ["evaluation/"],
    ["collection/", "testing.py"],
    ["metrics/", "functional.py"],
    ["results/"],
    ["data/"],
    ["tables/"],
    ["inputs/"],
    ["kernels/"],
    ["core/"],
]


def layers_numbers() -> list[str]:
    """Return the modules of CONTRIBUTING.md's table, from its top."""
    rows = re.findall(r"^\| (`.*?`) \|", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.M)
    return [name for row in rows for name in re.findall(r"`([^`]*)`", row)]


def _purpose(modules: list[str]) -> str:
    """Return the purpose of a layer: the first words of its package's docstring."""
    if len(modules) > 2:
        return "Frameworks, command line"
    text = (ROOT / "torchrecmetrics" / modules[0] / "__init__.py").read_text(encoding="utf-8")
    return text.removeprefix('"""').partition(":")[0]


def layers(style: Style) -> Canvas:
    """Draw the packages, each layer above those that it imports."""
    tall = 0.5
    sheet = Canvas(style, 0.45 + (tall + 0.1) * len(LAYERS))
    colours = [*["muted"] * 2, *["green"] * 3, *["blue"] * 4, "orange"]
    for layer, modules in enumerate(LAYERS):
        y = sheet.height - 0.1 - (tall + 0.1) * (layer + 1)
        sheet.text(0.5, y + tall / 2, _purpose(modules), "muted")
        wide = (5.1 - 0.1 * (len(modules) - 1)) / len(modules)
        for place, module in enumerate(modules):
            x = 3.8 + (wide + 0.1) * place
            sheet.box(x, y, wide, tall, colours[layer], 0.12)
            sheet.text(x + wide / 2, y + tall / 2 - 0.01, module, size=TEXT, ha="center")
    sheet.arrow((0.22, sheet.height - 0.25), (0.22, 0.3))
    sheet.text(0.5, 0.15, "imports run downwards only", "muted", style="italic")
    return sheet


# -------------------------------------------------------------------------------------------------------------- files

PICTURES: dict[str, Callable[[Style], Canvas]] = {
    "doors": doors,
    "ties": ties,
    "history": history,
    "splits": splits,
    "cost": cost,
    "sampled": sampled,
    "curve": curve,
    "forest": forest,
    "coverage": coverage,
    "abstain": abstain,
    "layers": layers,
}


def draw(folder: Path, names: Iterable[str] = PICTURES) -> list[Path]:
    """Write the pictures into a folder and return their files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context(SETTINGS):
        for name in names:
            for kind, style in STYLES.items():
                figure = PICTURES[name](style).figure
                path = folder / f"{name}-{kind}.svg"
                figure.savefig(path, transparent=True, metadata={"Date": None})
                written.append(path)
                if name == "doors" and kind == "light":  # for where SVG is not shown
                    path = folder / f"{name}.png"
                    figure.savefig(path, dpi=200, facecolor=style.paper)
                    written.append(path)
                plt.close(figure)
    return written


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw all pictures, or some."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/pictures", metavar="FOLDER")
    parser.add_argument("--only", nargs="+", choices=list(PICTURES), default=list(PICTURES), metavar="NAME")
    given = parser.parse_args(arguments)
    for path in draw(given.out, given.only):
        print(path)


if __name__ == "__main__":
    main()
