"""The rows of the table: a function each, from its inputs to the contenders and the goals."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from benchmarks import peers
from benchmarks.problem import CUTOFFS, NAMES, Array, Problem, Run, expected, formulas
from torchrecmetrics import Interactions

DATA = Path(os.environ.get("GOWALLA", Path(__file__).parents[1] / ".." / "shared" / "data" / "gowalla"))
METRICS = f"{len(NAMES)} metrics x k = {', '.join(map(str, CUTOFFS))}"


class Skip(Exception):
    """A row cannot be run here, and why."""


@dataclass(frozen=True)
class Contender:
    """Someone who does the work; `run` is None where its package is not installed."""

    name: str
    run: Run | None
    rows: int | None = None  # given the first rows only; its time is scaled up to all of them
    max_rounds: int | None = None
    check: Run | None = None  # gives the values that are compared, where those of `run` are not
    absent: str | None = None  # why there is no `run`, if not for its package


@dataclass(frozen=True)
class Goal:
    """A limit to time(top) / time(bottom); without a bottom to milliseconds, or to MB of memory added."""

    top: str
    limit: float
    bottom: str | None = None
    stretch: float | None = None
    at_least: bool = False
    memory: bool = False


@dataclass(frozen=True)
class Case:
    """One workload, its contenders (ours first), what is expected of them and how fast they should be."""

    id: str
    name: str
    text: str
    rows: int
    contenders: list[Contender]
    expected: Callable[[], dict[str, Array]]
    goals: list[Goal] = field(default_factory=list)
    tolerance: float = 1e-6  # of a mean: several peers add in float32
    device: str = "cpu"
    skipped: str | None = None  # why it cannot be run here


Row: TypeAlias = Callable[[bool, Path], Iterator[Case]]


def contender(name: str, make: Callable[[], Run], rows: int | None = None, max_rounds: int | None = None) -> Contender:
    """Set a contender up, unless its package is missing."""
    try:
        return Contender(name, make(), rows, max_rounds)
    except ImportError:
        return Contender(name, None)


def slow(problem: Problem, rows: int) -> Contender:
    """Torchmetrics, on a few rows and for two rounds: it takes minutes otherwise."""
    rows = min(rows, problem.num_users)
    return contender("torchmetrics", lambda: peers.torchmetrics(problem.head(rows)), rows, 2)


def distinct(rows: int, count: int, size: int) -> Tensor:
    """Return `count` different numbers below `size` in every row, in random order, int64 [rows, count]."""
    return torch.stack([torch.randperm(size)[:count] for _ in range(rows)])


# ------------------------------------------------------------------------------------------------------------- rows


def c1(tiny: bool, data: Path) -> Iterator[Case]:
    """Dense scores: random targets (far), or one of them among the row's 20 best (near)."""
    rows, size = (8, 400) if tiny else (512, 50_000)
    torch.manual_seed(0)
    scores = torch.randn(rows, size)
    best = scores.topk(20).indices.gather(1, torch.randint(20, (rows, 1)))
    for place in ("far", "near"):
        for relevant in (1, 20):
            target = distinct(rows, relevant, size)
            if place == "near":
                target[:, :1] = best.where((target[:, 1:] != best).all(1, keepdim=True), target[:, :1])
            problem = Problem(Interactions.from_padded(target, size), scores=scores)
            limits = {("far", 1): 0.25, ("far", 20): 0.30, ("near", 1): 0.35, ("near", 20): 0.42}
            goal = Goal("ours", {"far": 0.40, "near": 0.60}[place], "torch.topk", stretch=limits[place, relevant])
            entrants = [
                contender("ours", partial(peers.ours_from_scores, problem, target)),
                contender("one read", partial(peers.one_read, problem)),
                contender("block maxima", partial(peers.block_maxima, problem)),
                contender("torch.topk", partial(peers.topk, problem)),
                contender("PyG", partial(peers.pyg, problem)),
                contender("RecBole-style", partial(peers.recbole_style, problem)),
                slow(problem, 8),
            ]
            if relevant == 1:
                entrants.append(contender("torcheval", partial(peers.torcheval, problem), max_rounds=5))
            name = f"{place}, T = {relevant}"
            where = "at random" if place == "far" else "one of them among the row's 20 best"
            text = f"scores float32 [{rows}, {size}], {relevant} relevant, {where}; {METRICS}"
            yield Case("C1", name, text, rows, entrants, partial(expected, problem), [goal])


def c2(tiny: bool, data: Path) -> Iterator[Case]:
    """Embeddings: a user's is the sum of his items', those to be found and the history alike."""
    rows, size, d = (16, 300, 8) if tiny else (2_000, 20_000, 64)
    torch.manual_seed(0)
    items = torch.randn(size, d)
    liked = distinct(rows, 70, size)
    target, history = (Interactions.from_padded(part, size) for part in (liked[:, :20], liked[:, 20:]))
    problem = Problem(target, history, users=items[liked].sum(1), items=items)
    text = f"embeddings float32 [{rows}, {d}] x [{size}, {d}], 20 relevant, history 50; {METRICS}"
    entrants = from_embeddings(problem)
    entrants += [
        contender("recometrics", partial(peers.recometrics, problem), max_rounds=5),
        slow(problem, 8),
    ]
    goals = [
        Goal("ours", 1.8, "product, kept buffer", stretch=1.3),
        Goal("ours", 1.0, "product"),
        Goal("recometrics", 3, "ours", at_least=True),
    ]
    yield Case("C2", "top-k", text, rows, entrants, partial(expected, problem), goals, tolerance=1e-4)

    problem = replace(problem, names=(*NAMES, "AUROC"))
    entrants = [
        contender("ours", partial(peers.ours_from_embeddings, problem)),
        contender("product, kept buffer", partial(peers.product, problem)),
        contender("recometrics", partial(peers.recometrics, problem), max_rounds=5),
    ]
    goals = [Goal("recometrics", 4, "ours", at_least=True)]
    text += " and AUROC"
    yield Case("C2", "with AUROC", text, rows, entrants, partial(expected, problem), goals, tolerance=1e-4)


def c3(tiny: bool, data: Path) -> Iterator[Case]:
    """Gowalla, train masked; embeddings from a truncated SVD of its normalised train matrix."""
    torch.manual_seed(0)
    if tiny:
        liked = distinct(60, 12, 60)
        train, test = Interactions.from_padded(liked[:, :8], 60), Interactions.from_padded(liked[:, 8:], 60)
    else:
        if not (data / "train.txt").is_file():
            raise Skip(f"no Gowalla in {data}: pass --data")
        train, test = Interactions.from_text(data / "train.txt", data / "test.txt")
    users, items = spectral(train, 8 if tiny else 64)
    problem = Problem(test, train, users=users, items=items)
    rows, size, d = len(users), len(items), users.shape[1]
    text = f"embeddings float32 [{rows}, {d}] x [{size}, {d}], {len(test)} relevant, history {len(train)}; {METRICS}"
    entrants = [
        *from_embeddings(problem),
        slow(problem, 8),
    ]
    goals = [Goal("ours", 1.6, "product, kept buffer", stretch=1.15), Goal("ours", 512, memory=True)]
    yield Case("C3", "Gowalla", text, rows, entrants, partial(expected, problem), goals, tolerance=1e-4)


def from_embeddings(problem: Problem) -> list[Contender]:
    """Return who takes part wherever scores are products."""
    return [
        contender("ours", partial(peers.ours_from_embeddings, problem)),
        contender("product, kept buffer", partial(peers.product, problem)),
        contender("product and maxima", partial(peers.block_maxima, problem)),
        contender("product", partial(peers.plain_product, problem)),
        contender("PyG", partial(peers.pyg, problem)),
        contender("RecBole-style", partial(peers.recbole_style, problem)),
    ]


def spectral(train: Interactions, d: int) -> tuple[Tensor, Tensor]:
    """Return embeddings of users and items whose products approximate the degree-normalised train matrix."""
    edges, shape = train.to_edge_index(), (train.num_users, train.num_items)
    by_user, by_item = (
        torch.bincount(ids, minlength=size).clamp(min=1).rsqrt() for ids, size in zip(edges, shape, strict=True)
    )
    values = by_user[edges[0]] * by_item[edges[1]]
    matrix = torch.sparse_coo_tensor(edges, values, shape, check_invariants=True).coalesce()
    users, strength, items = torch.svd_lowrank(matrix, d)
    return (users * strength).contiguous(), items.contiguous()


def c4(tiny: bool, data: Path) -> Iterator[Case]:
    """Metrics from ranks: 1 to 50 relevant items a row, anywhere among its 200 best; known to place 20."""
    rows, pool, depth = (16 if tiny else 4096), 200, max(CUTOFFS)
    torch.manual_seed(0)
    ids = distinct(rows, pool, 20_000)  # by place
    place = distinct(rows, 50, pool).sort(1).values
    place[torch.arange(50) >= torch.randint(1, 51, (rows, 1))] = pool  # no item there
    place = place.sort(1).values
    listed = place < pool
    ranks = (place + 1).clamp(max=depth + 1).where(listed, 0)
    lists = ids[:, :depth].contiguous()
    row, column = listed.nonzero(as_tuple=True)
    relevant = torch.stack([row, ids[row, place[row, column]]])

    few = min(rows, 256)
    candidates = torch.arange(pool).expand(few, pool)
    found = torch.zeros(few, pool + 1, dtype=torch.int64).scatter_(1, place[:few], 1)[:, :pool]
    query = torch.arange(few)[:, None].expand(few, pool)
    triple = ((pool - candidates).flatten().float(), found.flatten(), query.flatten())

    places = (place + 1).double().masked_fill(~listed, torch.inf).numpy()
    entrants = [
        contender("ours", partial(peers.ours_from_ranks, ranks, NAMES, CUTOFFS)),
        contender("PyG", partial(peers.pyg_from_lists, lists, relevant, NAMES, CUTOFFS)),
        contender("ranx", partial(peers.ranx, lists, relevant, NAMES, CUTOFFS), max_rounds=10),
        contender("torchmetrics", partial(peers.torchmetrics_from_triple, *triple, NAMES, CUTOFFS), few, 3),
    ]
    goals = [
        Goal("ours", 5.0),
        Goal("torchmetrics", 300, "ours", at_least=True),
        Goal("PyG", 1.0, "ours", stretch=2.5, at_least=True),
    ]
    answer = partial(formulas, places, listed.sum(1).numpy(), CUTOFFS)
    yield Case(
        "C4", "from ranks", f"ranks int64 [{rows}, 50], 1 to 50 relevant; {METRICS}", rows, entrants, answer, goals
    )


def c5(tiny: bool, data: Path) -> Iterator[Case]:
    """Loop over scores of a small catalogue, against the loop that a project writes itself."""
    times, rows = (2, 8) if tiny else (16, 256)
    limits = {1_000: (0.5, 0.8), 3_706: (0.5, 0.7), 10_000: (0.3, 0.45)}
    for size, goals in limits.items():
        torch.manual_seed(0)
        scores = torch.randn(rows, size)
        for relevant, limit in zip((1, 20), goals, strict=True):
            target = distinct(rows, relevant, size)
            problem = Problem(Interactions.from_padded(target, size), scores=scores, times=times)
            entrants = [
                contender("ours", partial(peers.ours_from_scores, problem, target)),
                contender("hand-written loop", partial(peers.hand_written, problem, target)),
                contender("torch.topk", partial(peers.topk, problem)),
                contender("PyG", partial(peers.pyg, problem)),
                contender("RecBole-style", partial(peers.recbole_style, problem)),
            ]
            text = f"{times} batches of scores float32 [{rows}, {size}], {relevant} relevant, at random; {METRICS}"
            goal, name = Goal("ours", limit, "hand-written loop"), f"I = {size:,}, T = {relevant}"
            yield Case("C5", name, text, times * rows, entrants, partial(expected, problem), [goal])


def c6(tiny: bool, data: Path) -> Iterator[Case]:
    """Read recommended lists of 20: one relevant item a row, or 1 to 50, anywhere among its 200 best."""
    rows, pool, depth = (16 if tiny else 4096), 200, max(CUTOFFS)
    for relevant in (1, 50):
        torch.manual_seed(0)
        ids = distinct(rows, pool, 20_000)  # by place
        place = distinct(rows, relevant, pool)
        place[torch.arange(relevant) >= torch.randint(1, relevant + 1, (rows, 1))] = pool  # no item there
        listed = place < pool
        lists, target = ids[:, :depth].contiguous(), ids.gather(1, place.clamp(max=pool - 1)).where(listed, -1)
        row, column = listed.nonzero(as_tuple=True)
        edges = torch.stack([row, target[row, column]])
        entrants = [
            contender("ours", partial(peers.ours_from_lists, lists, target, NAMES, CUTOFFS)),
            contender("PyG", partial(peers.pyg_from_lists, lists, edges, NAMES, CUTOFFS)),
            contender("ranx", partial(peers.ranx, lists, edges, NAMES, CUTOFFS), max_rounds=10),
        ]
        places = (place + 1).double().masked_fill(~listed, torch.inf).sort(1).values.numpy()
        answer = partial(formulas, places, listed.sum(1).numpy(), CUTOFFS)
        text = f"lists int64 [{rows}, {depth}], {'1' if relevant == 1 else f'1 to {relevant}'} relevant; {METRICS}"
        yield Case("C6", f"from lists, T = {relevant}", text, rows, entrants, answer, [Goal("ours", 0.8, "PyG")])


def c8(tiny: bool, data: Path) -> Iterator[Case]:
    """One metric and one row at a time, as streams and notebooks have them."""
    size, k = 1_000, 10
    goals = {
        "forward": Goal("ours", 0.15, "torchmetrics"),
        "stream": Goal("ours", 0.1, "torchmetrics"),
        "update": Goal("ours", 0.2),
    }
    names = {"forward": "metric(...)", "stream": "updates and compute", "update": "one update"}
    for how, goal in goals.items():
        rows = (20 if tiny else 1_000) if how == "stream" else 1
        torch.manual_seed(0)
        scores, target = torch.randn(rows, size), distinct(rows, 1, size)
        problem = Problem(Interactions.from_padded(target, size), scores=scores, names=("HR",), cutoffs=(k,))
        entrants = [
            contender("ours", partial(peers.ours_streaming, problem, target, k, how)),
            contender("torchmetrics", partial(peers.torchmetrics_streaming, problem, target, k, how)),
            contender("the least", partial(peers.least_streaming, problem, target, k, how)),
        ]
        text = f"HR@{k}, scores float32 [1, {size}], {rows} update{'s' if rows > 1 else ''}, 1 relevant"
        yield Case("C8", names[how], text, rows, entrants, partial(expected, problem), [goal])


def c9(tiny: bool, data: Path) -> Iterator[Case]:
    """Read lists and ground truth from parquet files, as other frameworks leave them; and what ids cost."""
    rows, few, depth, size = (200, 50, 20, 1_000) if tiny else (500_000, 20_000, 20, 20_000)
    torch.manual_seed(0)
    # 40 different items a user: a step that has no divisor with the number of items
    ranked = (torch.randint(size, (rows, 1)) + 7_919 * torch.arange(2 * depth)) % size
    place = _two_of(rows, 2 * depth)
    ours, theirs = peers.parquet_files(ranked[:, :depth], ranked.gather(1, place), few)
    entrants = [
        contender("ours", partial(peers.ours_from_files, ours, NAMES, CUTOFFS)),
        contender("ranx", partial(peers.ranx_from_files, theirs, NAMES, CUTOFFS), few, 3),
    ]
    places = (place + 1).double().masked_fill(place >= depth, torch.inf).sort(1).values.numpy()
    answer = partial(formulas, places, np.full(rows, 2), CUTOFFS)
    text = f"parquet: {rows:,} users with lists of {depth}, 2 relevant items each; {METRICS}"
    goals = [Goal("ours", 10_000), Goal("ranx", 1 / 0.3, "ours", at_least=True), Goal("ours", 600, memory=True)]
    yield Case("C9", "lists in files", text, rows, entrants, answer, goals)
    number = 1_000 if tiny else 1_000_000
    entrants = [
        contender("ours", partial(peers.ours_vocabulary, number)),
        contender("pandas.factorize", partial(peers.pandas_factorize, number)),
    ]
    text = f"{number:,} different ids of text, in a list"
    yield Case("C9", "vocabulary", text, number, entrants, dict, [Goal("ours", 2, "pandas.factorize")])


def c10(tiny: bool, data: Path) -> Iterator[Case]:
    """Keep what every row was worth, and tell by it whether a difference is real."""
    rows, size = (16, 200) if tiny else (256, 10_000)
    torch.manual_seed(0)
    scores, target = torch.randn(rows, size), distinct(rows, 1, size)
    problem = Problem(Interactions.from_padded(target, size), scores=scores)
    entrants = [
        contender("ours", partial(peers.ours_from_scores, problem, target, row_ids=torch.arange(rows))),
        contender("without", partial(peers.ours_from_scores, problem, target)),
    ]
    text = f"scores float32 [{rows}, {size}], 1 relevant, keep_rows=True; {METRICS}"
    yield Case("C10", "keep rows", text, rows, entrants, partial(expected, problem), [Goal("ours", 1.1, "without")])
    rows, few, labels, resamples = (500, 100, 2, 50) if tiny else (1_000_000, 10_000, 10, 1_000)
    runs = peers.two_runs(rows, labels)
    entrants = [
        contender("ours", partial(peers.ours_flips, runs, resamples), None, 3),
        contender("scipy permutation_test", partial(peers.scipy_flips, runs, few, resamples), few, 3),
    ]
    text = f"two runs, {rows:,} rows x {labels} labels, {resamples:,} sign flips, corrected"
    goals = [Goal("ours", 10_000), Goal("ours", 0.1, "scipy permutation_test")]
    yield Case("C10", "compare", text, rows * labels, entrants, dict, goals)
    entrants = [
        contender("ours", partial(peers.ours_bootstrap, runs[0], resamples), None, 3),
        contender("scipy bootstrap", partial(peers.scipy_bootstrap, runs, few, resamples), few, 3),
    ]
    text = f"BCa intervals, {rows:,} rows x {labels} labels, {resamples:,} bootstraps"
    goals = [Goal("ours", 15_000), Goal("ours", 0.1, "scipy bootstrap")]
    yield Case("C10", "bootstrap", text, rows * labels, entrants, dict, goals)


def c11(tiny: bool, data: Path) -> Iterator[Case]:
    """Find the items of each row's 20 best scores: at random, and where thousands are equal."""
    for name, rows, size, ties, limit, stretch in (
        ("lists, I = 50,000", 512, 50_000, False, 0.4, 0.3),
        ("lists with ties, I = 50,000", 512, 50_000, True, 1.0, 0.4),
        ("lists, I = 3,706", 2_000, 3_706, False, 1.0, 0.7),
        ("lists with ties, I = 3,706", 2_000, 3_706, True, 1.5, 1.0),
    ):
        shape = (8, 400) if tiny else (rows, size)
        torch.manual_seed(0)
        scores = torch.rand(shape[1]).pow(-0.8).floor().repeat(shape[0], 1) if ties else torch.randn(shape)
        entrants = [
            contender("ours", partial(peers.ours_best, scores, 20)),
            contender("torch.topk", partial(peers.topk_of, scores, 20)),
        ]
        what = "whole numbers, few of them above 100" if ties else "at random"
        text = f"scores float32 {list(shape)}, {what}; ids of the 20 best, ties by lower id"
        yield Case("C11", name, text, shape[0], entrants, dict, [Goal("ours", limit, "torch.topk", stretch=stretch)])


def c12(tiny: bool, data: Path) -> Iterator[Case]:
    """Read lists with all metrics beyond accuracy; compare all users' lists with each other."""
    times, rows, size = (2, 8, 400) if tiny else (8, 512, 50_000)
    torch.manual_seed(0)
    scores, target, history = torch.randn(rows, size), distinct(rows, 1, size), distinct(rows, 100, size)
    codes = torch.randint(20, (size,))
    entrants = [
        contender("ours", partial(peers.ours_beyond, scores, target, history, codes, times)),
        contender("torch.topk", partial(peers.topk_of, scores, 20, times)),
    ]
    text = f"{times} batches of lists of scores float32 [{rows}, {size}], 100 items of history, 20 categories; "
    text += f"{len(peers.BEYOND)} metrics x k = {', '.join(map(str, CUTOFFS))}"
    goal = Goal("ours", 0.2, "torch.topk")
    yield Case("C12", "beyond accuracy", text, times * rows, entrants, dict, [goal])
    rows, few, size = (32, 8, 200) if tiny else (4_096, 512, 20_000)
    lists = distinct(rows, 10, size)
    entrants = [
        contender("ours", partial(peers.ours_personalization, lists, size)),
        contender("PyG", partial(peers.pyg_personalization, lists[:few]), few, 3),  # its time grows with the square
    ]
    text = f"Personalization@10 of {rows:,} lists, {size:,} items; PyG's pairs of {few:,}, scaled up by rows alone"
    yield Case("C12", "personalization", text, rows, entrants, dict, [Goal("ours", 0.01, "PyG")])


def with_history(tiny: bool) -> Iterator[tuple[str, int, str, Problem, Tensor, Tensor]]:
    """Yield batches of small catalogues whose relevant items and history are at random, or high as a model puts them.

    Where they are, how long the history is, the shape in words, the problem, and the ids of both.
    """
    times, rows, relevant = (2, 8, 4) if tiny else (16, 256, 20)
    for size, longest in ((60, 12), (80, 20), (200, 20)) if tiny else ((1_000, 50), (3_706, 100), (10_000, 100)):
        torch.manual_seed(0)
        scores = torch.randn(rows, size)
        for where, among in (("at random", size), ("among the best", 3 * longest)):
            liked = scores.topk(among).indices.gather(1, distinct(rows, relevant + longest, among))
            target, exclude = liked[:, :relevant].contiguous(), liked[:, relevant:].contiguous()
            relevants, history = (Interactions.from_padded(part, size) for part in (target, exclude))
            problem = Problem(relevants, history, scores=scores, times=times)
            yield where, longest, f"{times} batches of scores float32 [{rows}, {size}]", problem, target, exclude


def c13(tiny: bool, data: Path) -> Iterator[Case]:
    """Loop over scores of a small catalogue with a history that is excluded: at random, or high as a model puts it."""
    for where, longest, batches, problem, target, exclude in with_history(tiny):
        assert problem.scores is not None
        rows, size = problem.scores.shape
        entrants = [
            contender("ours", partial(peers.ours_from_scores, problem, target, exclude)),
            contender("hand-written loop", partial(peers.hand_written, problem, target, exclude)),
            contender("PyG", partial(peers.pyg, problem)),
            contender("RecBole-style", partial(peers.recbole_style, problem)),
        ]
        text = f"{batches}, {target.shape[1]} relevant, history {longest}, both {where}; {METRICS}"
        goal, name = Goal("ours", 1, "hand-written loop"), f"I = {size:,}, history {where}"
        yield Case("C13", name, text, problem.times * rows, entrants, partial(expected, problem), [goal])


def c14(tiny: bool, data: Path) -> Iterator[Case]:
    """Loop over scores of a small catalogue with labels and a mask of the history, both made before."""
    for where, longest, batches, problem, target, exclude in with_history(tiny):
        assert problem.scores is not None
        rows, size = problem.scores.shape
        labels, mask = (torch.zeros(rows, size, dtype=torch.bool).scatter_(1, part, True) for part in (target, exclude))
        entrants = [
            contender("ours", partial(peers.ours_from_scores, problem, labels, mask)),
            contender("hand-written loop", partial(peers.hand_written, problem, labels, mask)),
        ]
        text = (
            f"{batches}, labels and mask bool in their shape, {target.shape[1]} relevant, {longest} masked, "
            f"both {where}; {METRICS}"
        )
        goal, name = Goal("ours", 1, "hand-written loop"), f"I = {size:,}, labels and mask {where}"
        yield Case("C14", name, text, problem.times * rows, entrants, partial(expected, problem), [goal])


def h1(tiny: bool, data: Path) -> Iterator[Case]:
    """Prepare an evaluation: all that is done on the host before the first scores are asked for."""
    rows, size = (500, 300) if tiny else (1_000_000, 2_000)
    for name, longest, limit in (("T = 1", 1, 10), ("T = 1 to 100", 100, 25)):
        torch.manual_seed(0)
        lengths = torch.randint(1, longest + 1, (rows,))
        offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        place = torch.arange(int(offsets[-1])) - torch.repeat_interleave(offsets[:-1], lengths)
        target = Interactions(offsets, place.mul_(size // longest), size)
        entrants = [
            contender("ours", partial(peers.ours_until_scores, target, (10, 20, 100))),
            contender("stable argsort", partial(peers.stable_argsort, lengths)),
        ]
        relevant = "1 relevant" if longest == 1 else f"1 to {longest} relevant"
        text = f"{rows:,} users, {relevant}, before the first scores; NDCG, HR, MRR x k = 10, 20, 100"
        yield Case("H1", name, text, rows, entrants, dict, [Goal("ours", limit)])


def h2(tiny: bool, data: Path) -> Iterator[Case]:
    """Look at embeddings whose products are counted as they are made: whether all will be finite."""
    for rows, d, dtype in ((1_000_000, 64, torch.float32), (10_000_000, 128, torch.float16)):
        rows = rows // 1_000 if tiny else rows
        embeddings = torch.ones(rows, d, dtype=dtype)
        entrants = [contender("ours", partial(peers.ours_finite, embeddings), max_rounds=3)]
        if dtype == torch.float32:  # the other ones would take 10 GB
            entrants.append(contender("norms in float64", partial(peers.whole_norms, embeddings), max_rounds=3))
        kind = str(dtype).removeprefix("torch.")
        text = f"embeddings {kind} [{rows}, {d}], {embeddings.nbytes / 1e6:,.0f} MB; are all products finite?"
        yield Case("H2", f"finite {kind}", text, rows, entrants, dict, [Goal("ours", 32, memory=True)])
        del embeddings, entrants


def _two_of(rows: int, size: int) -> Tensor:
    """Return two different numbers below `size` in every row, int64 [rows, 2]."""
    first, step = torch.randint(size, (rows,)), torch.randint(1, size, (rows,))
    return torch.stack([first, (first + step) % size], 1)


# C7 is the number of calls that reach the device: tests/test_calls.py
ROWS: dict[str, Row] = {
    "C1": c1,
    "C2": c2,
    "C3": c3,
    "C4": c4,
    "C5": c5,
    "C6": c6,
    "C8": c8,
    "C9": c9,
    "C10": c10,
    "C11": c11,
    "C12": c12,
    "C13": c13,
    "C14": c14,
    "H1": h1,
    "H2": h2,
}
