"""The rows of the CPU table: each function makes the inputs and yields cases with contenders and goals."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from benchmarks import peers
from benchmarks.problem import CUTOFFS, NAMES, Array, Problem, Run, expected, formulas
from torchrecmetrics import Interactions, Rows, compare

DATA = Path(os.environ.get("GOWALLA", Path(__file__).parents[1] / ".." / "shared" / "data" / "gowalla"))
TIED = ", scores rounded to 0.25"
RESULTS = 8 * 20 * 30
"""Bytes of a row's results and of the values that formulas make of them: 30 columns of float64 for 20 targets."""
METRICS = f"{len(NAMES)} metrics x k = {', '.join(map(str, CUTOFFS))}"


class Skip(Exception):
    """Raised with the reason if a row of the table cannot be run on this machine."""


@dataclass(frozen=True)
class Contender:
    """An implementation that is timed; `run` is None if its package is not installed."""

    name: str
    run: Run | None
    rows: int | None = None  # if set, it runs on the first rows only and its time is scaled up to all rows
    max_rounds: int | None = None
    check: Run | None = None  # returns the values to compare, if those of `run` are not comparable
    absent: str | None = None  # why `run` is None, if the reason is not a missing package


@dataclass(frozen=True)
class Goal:
    """A limit for time(top) / time(bottom), or, without a bottom, for milliseconds or for MB of added memory."""

    top: str
    limit: float
    bottom: str | None = None
    stretch: float | None = None
    at_least: bool = False
    memory: bool = False


@dataclass(frozen=True)
class Case:
    """One workload with its contenders (ours first), the expected values and the goals."""

    id: str
    name: str
    text: str
    rows: int
    contenders: list[Contender]
    expected: Callable[[], dict[str, Array]]
    goals: list[Goal] = field(default_factory=list)
    tolerance: float = 1e-6  # for a mean: several other packages add in float32
    device: str = "cpu"
    skipped: str | None = None  # why the case cannot be run on this machine


Row: TypeAlias = Callable[[bool, Path], Iterator[Case]]


def contender(name: str, make: Callable[[], Run], rows: int | None = None, max_rounds: int | None = None) -> Contender:
    """Return a contender, with `run` None if its package is missing."""
    try:
        return Contender(name, make(), rows, max_rounds)
    except ImportError:
        return Contender(name, None)


def slow(problem: Problem, rows: int) -> Contender:
    """Return torchmetrics as a contender on a few rows and for two rounds, because it takes minutes otherwise."""
    rows = min(rows, problem.num_users)
    return contender("torchmetrics", lambda: peers.torchmetrics(problem.head(rows)), rows, 2)


def distinct(rows: int, count: int, size: int) -> Tensor:
    """Return `count` different numbers below `size` in every row, in random order, int64 [rows, count]."""
    return torch.stack([torch.randperm(size)[:count] for _ in range(rows)])


# ------------------------------------------------------------------------------------------------------------- rows


def tied(scores: Tensor) -> Tensor:
    """Return scores rounded to multiples of 1/4, of which many are equal."""
    return (4 * scores).round() / 4


def uncompared(entrants: list[Contender]) -> list[Contender]:
    """Return contenders whose values are not compared: each package has another rule for equal scores."""
    return [replace(entrant, check=dict) for entrant in entrants]


def scores_rows(tiny: bool, data: Path) -> Iterator[Case]:
    """Dense scores: the targets are random (far), or one of them is among the row's 20 best items (near)."""
    rows, size = (8, 400) if tiny else (512, 50_000)
    torch.manual_seed(0)
    scores = torch.randn(rows, size)
    best = scores.topk(20).indices.gather(1, torch.randint(20, (rows, 1)))
    for position, limits in (("far", (2.3, 2.2)), ("near", (2.8, 2.1)), ("near, tied", (2.0, 2.0))):
        for relevant, limit in zip((1, 20), limits, strict=True):
            target = distinct(rows, relevant, size)
            if position != "far":
                target[:, :1] = best.where((target[:, 1:] != best).all(1, keepdim=True), target[:, :1])
            ties = position == "near, tied"
            problem = Problem(Interactions.from_padded(target, size), scores=tied(scores) if ties else scores)
            entrants = [
                contender("ours", partial(peers.ours_from_scores, problem, target)),
                contender("one read", partial(peers.one_read, problem)),
                contender("torch.topk", partial(peers.topk, problem)),
                contender("PyG", partial(peers.pyg, problem)),
                contender("RecBole-style", partial(peers.recbole_style, problem)),
            ]
            if not ties:
                entrants.append(slow(problem, 8))
            if relevant == 1 and not ties:
                entrants.append(contender("torcheval", partial(peers.torcheval, problem), max_rounds=5))
            name, goals = f"{position}, T = {relevant}", [Goal("torch.topk", limit, "ours", at_least=True)]
            where = "at random" if position == "far" else "one of them among the row's 20 best"
            text = f"scores float32 [{rows}, {size}], {relevant} relevant, {where}{TIED * ties}; {METRICS}"
            entrants = uncompared(entrants) if ties else entrants
            yield Case("scores", name, text, rows, entrants, partial(expected, problem), goals)


def embeddings_rows(tiny: bool, data: Path) -> Iterator[Case]:
    """Embeddings: each user's embedding is the sum of the embeddings of the user's relevant and excluded items."""
    rows, size, d = (16, 300, 8) if tiny else (2_000, 20_000, 64)
    torch.manual_seed(0)
    items = torch.randn(size, d)
    liked = distinct(rows, 70, size)
    target, history = (Interactions.from_padded(part, size) for part in (liked[:, :20], liked[:, 20:]))
    problem = Problem(target, history, users=items[liked].sum(1), items=items)
    text = f"embeddings float32 [{rows}, {d}] x [{size}, {d}], 20 relevant, history 50; {METRICS}"
    entrants = [
        *from_embeddings(problem),
        contender("recometrics", partial(peers.recometrics, problem), max_rounds=5),
        slow(problem, 8),
    ]
    goals = [Goal("ours", 2.0, "product, kept buffer"), Goal("recometrics", 10, "ours", at_least=True)]
    yield Case("embeddings", "from embeddings", text, rows, entrants, partial(expected, problem), goals, tolerance=1e-4)


def gowalla(tiny: bool, data: Path) -> Iterator[Case]:
    """Gowalla with train items masked; the embeddings are from a truncated SVD of the normalised train matrix."""
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
    entrants = [*from_embeddings(problem), slow(problem, 8)]
    # the measured memory does not include the inputs, which are the embeddings and the edges
    goals = [Goal("ours", 1.5, "product, kept buffer"), Goal("ours", 256, memory=True)]
    yield Case("gowalla", "Gowalla", text, rows, entrants, partial(expected, problem), goals, tolerance=1e-4)


def from_embeddings(problem: Problem) -> list[Contender]:
    """Return the contenders of products of embeddings."""
    return [
        contender("ours", partial(peers.ours_from_embeddings, problem)),
        contender("product, kept buffer", partial(peers.product, problem)),
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


def ranks_rows(tiny: bool, data: Path) -> Iterator[Case]:
    """Metrics from ranks: 1 to 50 relevant items per row among its 200 best items; ranks beyond 20 are unknown."""
    rows, pool, depth = (16 if tiny else 4096), 200, max(CUTOFFS)
    torch.manual_seed(0)
    ids = distinct(rows, pool, 20_000)  # in order of rank
    place = distinct(rows, 50, pool).sort(1).values
    place[torch.arange(50) >= torch.randint(1, 51, (rows, 1))] = pool  # padding
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
    goals = [Goal("PyG", 1.8, "ours", at_least=True)]
    answer = partial(formulas, places, listed.sum(1).numpy(), CUTOFFS)
    text = f"ranks int64 [{rows}, 50], 1 to 50 relevant; {METRICS}"
    yield Case("ranks", "from ranks", text, rows, entrants, answer, goals)


LOOP = "hand-written loop"
SIZES = {1_000: (50, 0.85), 3_706: (100, 0.95), 10_000: (100, 1.0)}
"""Items of small catalogues; the number of excluded items and the least loop / ours with them."""
LOOP_LIMITS = {1_000: (3.3, 1.0, 1.1, 0.6), 3_706: (2.0, 1.0, 1.25, 0.6), 10_000: (1.5, 1.0, 1.5, 0.6)}
TIED_LIMITS = {1_000: (2.0, 0.7, 0.7, 0.3), 3_706: (1.2, 0.7, 0.7, 0.3), 10_000: (1.2, 1.0, 1.1, 0.4)}
"""Least loop / ours by the number of items, for 1, 5, 20 and 100 relevant items."""


def small_catalogues(tiny: bool, data: Path) -> Iterator[Case]:
    """Loop over batches of scores of a small catalogue, compared with a typical hand-written evaluation loop."""
    times, rows = (2, 8) if tiny else (16, 256)
    for size, (num_excluded, least) in SIZES.items():
        torch.manual_seed(0)
        scores = torch.randn(rows, size)
        for ties, limits in ((False, LOOP_LIMITS[size]), (True, TIED_LIMITS[size])):
            for relevant, limit in zip((1, 5, 20, 100), limits, strict=True):
                target = distinct(rows, relevant, size)
                problem = Problem(
                    Interactions.from_padded(target, size), scores=tied(scores) if ties else scores, times=times
                )
                entrants = beside_a_loop(problem, target, peers_too=relevant in (1, 20) and not ties)
                text = (
                    f"{times} batches of scores float32 [{rows}, {size}], {relevant} relevant, at random{TIED * ties}"
                )
                name, goals = f"I = {size:,}, T = {relevant}{', tied' * ties}", [loop_goal(limit)]
                entrants, answer = uncompared(entrants) if ties else entrants, partial(expected, problem)
                yield Case("small-catalogues", name, text, times * rows, entrants, answer, goals)
        problem, target, exclude = with_excluded(scores, 20, num_excluded, pool=size, times=times)
        entrants = beside_a_loop(problem, target, exclude)
        text = f"{times} batches of scores float32 [{rows}, {size}], 20 relevant, {num_excluded} excluded, at random; "
        name, goals = f"I = {size:,}, T = 20, {num_excluded} excluded", [loop_goal(least)]
        yield Case("small-catalogues", name, text + METRICS, times * rows, entrants, partial(expected, problem), goals)


def beside_a_loop(
    problem: Problem, target: Tensor, exclude: Tensor | None = None, peers_too: bool = True
) -> list[Contender]:
    """Return ours, the hand-written loop, `torch.topk` where nothing is excluded, and the peers that a loop can use."""
    entrants = [
        contender("ours", partial(peers.ours_from_scores, problem, target, exclude)),
        contender(LOOP, partial(peers.hand_written, problem, target, exclude)),
    ]
    if exclude is None:
        entrants.append(contender("torch.topk", partial(peers.topk, problem)))
    if peers_too:
        entrants.append(contender("PyG", partial(peers.pyg, problem)))
        entrants.append(contender("RecBole-style", partial(peers.recbole_style, problem)))
    return entrants


def loop_goal(limit: float) -> Goal:
    """Return the least time of the hand-written loop as a multiple of ours."""
    return Goal(LOOP, limit, "ours", at_least=True)


def growth(tiny: bool, data: Path) -> Iterator[Case]:
    """One batch with more rows or items, and with larger cut-offs, compared with the hand-written loop."""
    for rows, size, k, limit in (
        (16, 3_706, 20, 0.5),
        (4_096, 3_706, 20, 1.25),
        (4_096, 10_000, 20, 1.5),
        (256, 3_706, 100, 1.0),
        (256, 3_706, 300, 1.0),
    ):
        rows, size = (min(rows, 20), 1_000) if tiny else (rows, size)
        torch.manual_seed(0)
        scores, target = torch.randn(rows, size), distinct(rows, 20, size)
        cutoffs = (*CUTOFFS[:2], k)
        problem = Problem(Interactions.from_padded(target, size), scores=scores, cutoffs=cutoffs)
        entrants = beside_a_loop(problem, target, peers_too=False)
        text = f"scores float32 [{rows}, {size}], 20 relevant, at random; {len(NAMES)} metrics x k = 5, 10, {k}"
        name, goals = f"B = {rows:,}, I = {size:,}, k = {k}", [loop_goal(limit)]
        if size == 10_000:
            goals.append(Goal("ours", 8 + RESULTS * rows / 2**20, memory=True))
        yield Case("growth", name, text, rows, entrants, partial(expected, problem), goals)


def with_excluded(
    scores: Tensor, relevant: int, excluded: int, pool: int, times: int = 1
) -> tuple[Problem, Tensor, Tensor]:
    """Draw relevant and excluded items from each row's `pool` best; return the problem and the ids of both."""
    ids = scores.topk(pool).indices.gather(1, distinct(len(scores), relevant + excluded, pool))
    target, exclude = ids[:, :relevant].contiguous(), ids[:, relevant:].contiguous()
    test, history = (Interactions.from_padded(part, scores.shape[1]) for part in (target, exclude))
    return Problem(test, history, scores=scores, times=times), target, exclude


def lists_rows(tiny: bool, data: Path) -> Iterator[Case]:
    """Metrics from lists of 20 items: one relevant item per row, or 1 to 50, anywhere among its 200 best items."""
    rows, pool, depth = (16 if tiny else 4096), 200, max(CUTOFFS)
    for relevant in (1, 50):
        torch.manual_seed(0)
        ids = distinct(rows, pool, 20_000)  # in order of rank
        place = distinct(rows, relevant, pool)
        place[torch.arange(relevant) >= torch.randint(1, relevant + 1, (rows, 1))] = pool  # padding
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
        yield Case("lists", f"from lists, T = {relevant}", text, rows, entrants, answer, [Goal("ours", 0.8, "PyG")])


def one_row(tiny: bool, data: Path) -> Iterator[Case]:
    """One metric and one row per update, as in streaming evaluation and in notebooks."""
    size, k = 1_000, 10
    cases: dict[str, tuple[str, list[Goal]]] = {
        "forward": ("metric(...)", []),
        "stream": ("updates and compute", []),
        "update": ("one update", [Goal("ours", 0.4)]),
    }
    for how, (name, goals) in cases.items():
        rows = (20 if tiny else 1_000) if how == "stream" else 1
        torch.manual_seed(0)
        scores, target = torch.randn(rows, size), distinct(rows, 1, size)
        problem = Problem(Interactions.from_padded(target, size), scores=scores, names=("HR",), cutoffs=(k,))
        entrants = [
            contender("ours", partial(peers.ours_streaming, problem, target, k, how)),
            contender("torchmetrics", partial(peers.torchmetrics_streaming, problem, target, k, how)),
        ]
        text = f"HR@{k}, scores float32 [1, {size}], {rows} update{'s' if rows > 1 else ''}, 1 relevant"
        yield Case("one-row", name, text, rows, entrants, partial(expected, problem), goals)


def best_items(tiny: bool, data: Path) -> Iterator[Case]:
    """Relevant and excluded items that are all among the row's best, compared with the same number of random items."""
    rows, size, relevant, excluded = (8, 1_000, 20, 100) if tiny else (256, 10_000, 20, 100)
    torch.manual_seed(0)
    scores = torch.randn(rows, size)
    best, random = (with_excluded(scores, relevant, excluded, pool) for pool in (3 * excluded, size))
    entrants = [
        contender("ours", partial(peers.ours_from_scores, *best)),
        # `check=dict` compares no values: the reference holds for the items of the first contender
        Contender("ours, items at random", peers.ours_from_scores(*random), check=dict),
    ]
    text = f"scores float32 [{rows}, {size}], {relevant} relevant, {excluded} excluded, "
    text += f"both among the row's {3 * excluded} best; {METRICS}"
    goals = [Goal("ours", 2.0, "ours, items at random")]
    yield Case("best-items", "items among the best", text, rows, entrants, partial(expected, best[0]), goals)


def metric_collections(tiny: bool, data: Path) -> Iterator[Case]:
    """Our collection, and a `MetricCollection` of torchmetrics that ranks per metric or once."""
    rows, size = (8, 400) if tiny else (256, 20_000)
    torch.manual_seed(0)
    scores, target = torch.randn(rows, size), distinct(rows, 5, size)
    problem = Problem(Interactions.from_padded(target, size), scores=scores)
    entrants = [contender("ours", partial(peers.ours_from_scores, problem, target))]
    for how in ("tensors", "ranks", "a ranking"):
        run = partial(peers.ours_in_metric_collection, problem, target, how)
        entrants.append(contender(f"MetricCollection from {how}", run))
    text = f"scores float32 [{rows}, {size}], 5 relevant, at random; {METRICS}"
    goals = [Goal("MetricCollection from tensors", 2.5, "MetricCollection from a ranking", at_least=True)]
    yield Case("metric-collections", "in a MetricCollection", text, rows, entrants, partial(expected, problem), goals)


def comparisons(tiny: bool, data: Path) -> Iterator[Case]:
    """Intervals and a comparison of kept rows, with the default of 10,000 resamples, beside means and errors alone."""
    users, k = 20_000 if tiny else 1_000_000, 10
    torch.manual_seed(0)
    ids, runs = torch.randperm(users), {}
    for name, power in (("one", 2.0), ("other", 2.05)):
        ranks = (torch.rand(users).pow(power) * 200).long() + 1
        hits = (ranks <= k).double()
        runs[name] = Rows({f"HR@{k}": hits, f"NDCG@{k}": hits / (ranks + 1).double().log2()}, ids)
    columns = {label: values.numpy() for label, values in runs["other"].values.items()}

    def intervals() -> dict[str, float]:
        return dict.fromkeys(runs["other"].confidence_interval(), 0.0) | runs["other"].mean()

    def differences() -> dict[str, float]:
        return {result.label: result.value for result in compare(runs).results}

    def errors() -> dict[str, float]:
        return {label: float(values.mean()) for label, values in columns.items() if values.std() > 0}

    for text, run, seconds in (("intervals", intervals, 0.5), ("comparison of two runs", differences, 3.0)):
        entrants = [Contender("ours", run), Contender("NumPy, mean and error", errors)]
        goals = [Goal("ours", 1e3 * seconds), Goal("ours", 200, memory=True)]
        yield Case("comparisons", text, f"{users:,} users, 2 metrics", users, entrants, lambda: columns, goals)


# calls that reach the device are counted by tests/metrics/test_evaluator.py and benchmarks/core.py
ROWS: dict[str, Row] = {
    "scores": scores_rows,
    "embeddings": embeddings_rows,
    "gowalla": gowalla,
    "ranks": ranks_rows,
    "small-catalogues": small_catalogues,
    "growth": growth,
    "lists": lists_rows,
    "one-row": one_row,
    "best-items": best_items,
    "metric-collections": metric_collections,
    "comparisons": comparisons,
}
