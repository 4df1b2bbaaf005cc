"""The rows of the GPU table; in tiny sizes they also run on the CPU, to try the programme.

"ours" counts with the Triton kernels where they run; there, "ours, eager" is timed as well. Times end when the host has
waited for the GPU. Values are compared with those of float64 on randomly drawn rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import torchrecmetrics as trm
from benchmarks import peers
from benchmarks.problem import BATCH, NAMES, Problem, Run, expected, expected_in_parts, multiply
from benchmarks.timing import free_cuda_memory
from benchmarks.workloads import METRICS, Case, Contender, Goal, Row, Skip, contender
from torchrecmetrics import Interactions, kernels

ALL = (*NAMES, "F1", "RPrecision", "AUROC")
RATE, COPY = "product, card's rate", "copy, as many bytes"


def missing(tiny: bool) -> str | None:
    """Return why these rows cannot run here, or None if they can."""
    return None if tiny or torch.cuda.is_available() else "no CUDA device"


def device(tiny: bool) -> torch.device:
    """Return the device that these rows run on, or raise `Skip`."""
    if (reason := missing(tiny)) is not None:
        raise Skip(reason)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def best(where: torch.device) -> kernels.Kernels:
    """Return "triton" if the Triton kernels run on this device, else "eager"."""
    try:
        return kernels.choose("triton", where)
    except ValueError:
        return "eager"


def by(where: torch.device) -> str:
    """Describe the kernels and the precision of products that "ours" uses."""
    return f"ours by {best(where)} kernels, float32 products {torch.get_float32_matmul_precision()!r}"


def sixteen(where: torch.device) -> torch.dtype:
    """Return the 16-bit dtype of the products; Triton's interpreter does not support bfloat16."""
    return torch.bfloat16 if where.type == "cuda" else torch.float16


def lacks(where: torch.device, wanted: float) -> str | None:
    """Return a message if fewer than `wanted` bytes of the device's memory are free, else None."""
    if where.type == "cpu" or (free := free_cuda_memory()) >= wanted:
        return None
    return f"needs {wanted / 1e9:.0f} GB of the card's memory, {free / 1e9:.0f} GB are free"


def rows_at_once(size: int, where: torch.device) -> int:
    """Return how many users other contenders score at once: an eighth of the free memory, at most 16,384 users."""
    return BATCH if where.type == "cpu" else max(1, min(16_384, free_cuda_memory() // 8 // (4 * size)))


def apart(rows: int, count: int, size: int, where: torch.device) -> Tensor:
    """Return `count` different numbers below `size` in every row, int64 [rows, count], without a random permutation."""
    step = 31_013 if size % 31_013 else 31_019  # a prime that does not divide size
    start = torch.randint(size, (rows, 1), device=where)
    return (start + torch.arange(count, device=where) * step) % size


def ragged(ids: Tensor, least: int) -> Tensor:
    """Keep a random number of ids per row, at least `least`, and replace the ids behind them by -1."""
    length = torch.randint(least, ids.shape[1] + 1, (len(ids), 1), device=ids.device)
    return ids.where(torch.arange(ids.shape[1], device=ids.device) < length, -1)


def some_rows(rows: int, count: int) -> Tensor:
    """Return the numbers of at most `count` random rows whose values are compared, ascending, on the CPU."""
    return torch.randperm(rows)[: min(count, rows - 2)].sort().values


# ------------------------------------------------------------------------------------------------ the other contenders


def copy(numbers: Tensor) -> Run:
    """Copy half of `numbers`, which reads and writes as many bytes as one read of all numbers: the card's bandwidth."""
    half = numbers.flatten()[: numbers.numel() // 2]
    buffer = torch.empty_like(half)

    def run() -> None:
        buffer.copy_(half)

    return run


def rate(problem: Problem) -> Run:
    """Multiply large square matrices, as many as the problem's product takes: the card's rate for this dtype."""
    assert problem.users is not None
    assert problem.items is not None
    where = problem.users.device
    side = 8192 if where.type == "cuda" else 64
    left, right, out = (torch.randn(side, side, device=where).to(problem.items.dtype) for _ in range(3))
    rows = max(1, round(problem.num_users * problem.items.numel() / side**2))

    def run() -> None:
        for first in range(0, rows, side):
            part = min(side, rows - first)
            torch.mm(left[:part], right, out=out[:part])

    return run


def counts_alone(problem: Problem, target: Tensor, with_kernels: kernels.Kernels) -> Run:
    """Run our counting kernels alone, without the rest of an update."""

    def run() -> None:
        assert problem.scores is not None
        thresholds = kernels.look_up(problem.scores, target)
        kernels.count(problem.scores, kernels.Question(thresholds, problem.depth), with_kernels)

    return run


def matmul_topk(problem: Problem, at_once: int = 2**18) -> Run:
    """Multiply blocks of items into a reused buffer, mask the history, take `torch.topk` and merge the blocks' best."""
    assert problem.users is not None
    assert problem.items is not None
    users, items, k = problem.users, problem.items, problem.depth
    if problem.history is not None and len(items) > at_once:
        raise ValueError("a history is masked in whole rows only")
    buffer: Tensor | None = None

    def run() -> None:
        nonlocal buffer
        if buffer is None:
            buffer = torch.empty(problem.batch * min(at_once, len(items)), device=users.device)
        for batch in problem.batches:
            some = users[batch.rows]
            found: list[tuple[Tensor, Tensor]] = []
            for first in range(0, len(items), at_once):
                others = items[first : first + at_once]
                scores = multiply(some, others, buffer[: len(some) * len(others)].view(len(some), len(others)))
                if batch.history is not None:
                    scores[batch.history[0], batch.history[1]] = -torch.inf
                values, ids = scores.topk(min(k, len(others)))
                found.append((values, ids + first))
            if len(found) > 1:
                values, ids = (torch.cat(parts, 1) for parts in zip(*found, strict=True))
                ids.gather(1, values.topk(k).indices)

    return run


def recorded(step: Callable[[], Tensor], where: torch.device) -> tuple[Callable[[], object], Tensor]:
    """Record `step` as a CUDA graph; return its replay and its output. On the CPU, return `step` and its output."""
    if where.type == "cpu":
        return step, step()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # the first runs compile, and allocate buffers that later runs reuse
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        written = step()
    return graph.replay, written


def graph_replay(problem: Problem, target: Tensor, history: Tensor, with_kernels: kernels.Kernels) -> Run:
    """Replay our update as a CUDA graph, except its last line, and check that the sums are those of a plain update.

    The last line adds the sums to the state and replaces the state's tensor, which a graph cannot do.
    """
    metrics = trm.RecMetricCollection(problem.names, k=problem.cutoffs, kernels=with_kernels).to(problem.device)

    @torch.no_grad()
    def step() -> Tensor:
        assert problem.scores is not None
        evaluator = metrics.evaluator
        return evaluator._batch_rows(trm.Scores(problem.scores, target, exclude=history)).sums(
            evaluator.formulas.layout
        )

    replay, sums = recorded(step, problem.device)
    replay()
    if not torch.equal(sums, step()):
        raise ValueError("a replayed graph adds something else up")

    def run() -> None:
        replay()

    return run


# --------------------------------------------------------------------------------------------------- scores in memory


def from_scores(problem: Problem, target: Tensor, history: Tensor | None, sample: Tensor) -> list[Contender]:
    """Return the contenders for given scores; our values are checked on the sampled rows of a run over all rows."""
    assert problem.scores is not None
    few = problem.some(sample)
    weights = torch.zeros(problem.num_users, device=problem.device)
    weights[sample.to(problem.device)] = 1
    chosen = best(problem.device)
    run, check = (partial(peers.ours_from_scores, problem, target, history, weights=some) for some in (None, weights))
    entrants = [Contender("ours", run(chosen), check=check(chosen))]
    if chosen != "eager":
        entrants.append(Contender("ours, eager", run("eager"), check=check("eager")))
    known, few_known = (replace(part, names=NAMES) for part in (problem, few))
    return [
        *entrants,
        contender(COPY, partial(copy, problem.scores)),
        contender("one read", partial(peers.one_read, problem)),
        contender("torch.topk", partial(peers.topk, problem)),
        checked("PyG", peers.pyg, known, few_known),
        checked("RecBole-style", peers.recbole_style, known, few_known),
    ]


def checked(
    name: str, make: Callable[[Problem], Run], problem: Problem, sample: Problem, rows: int | None = None
) -> Contender:
    """Return a contender that is checked on `sample`, and timed on the first `rows` rows only if `rows` is given."""
    part = problem if rows is None else problem.head(min(rows, problem.num_users))
    return replace(
        contender(name, partial(make, part), None if rows is None else part.num_users), check=_if_there(make, sample)
    )


def _if_there(make: Callable[[Problem], Run], sample: Problem) -> Run | None:
    try:
        return make(sample)
    except ImportError:
        return None


def card_scores(tiny: bool, data: Path) -> Iterator[Case]:
    """Dense scores of a large catalogue; in every other row one relevant item is among the row's 20 best."""
    where = device(tiny)
    for dtype in (torch.float32, torch.bfloat16):
        for relevant in (1, 10):
            yield _g1(tiny, where, dtype, relevant)


def _g1(tiny: bool, where: torch.device, dtype: torch.dtype, relevant: int) -> Case:
    rows, size = (8, 400) if tiny else (4096, 10**6)
    name = f"{str(dtype).removeprefix('torch.')}, T = {relevant}"
    text = f"scores {str(dtype).removeprefix('torch.')} [{rows}, {size}], {relevant} relevant; {METRICS}; {by(where)}"
    needed = 1.6 * rows * size * dtype.itemsize
    if reason := lacks(where, needed):
        return Case("card-scores", name, text, rows, [], dict, skipped=reason)
    torch.manual_seed(0)
    scores = torch.randn(rows, size, dtype=dtype, device=where)
    ids = apart(rows, 32 + relevant, size, where)
    # the best 32 of each row are known and differ in bfloat16 too, so that every order of ties gives the same values
    planted = (8 + torch.arange(32, device=where) / 16).to(dtype)
    scores.scatter_(1, ids[:, :32], planted.expand(rows, -1))
    target = ids[:, 32:].clone()
    near = torch.randint(12, 32, (rows, 1), device=where)
    target[::2, :1] = ids.gather(1, near)[::2]
    problem = Problem(Interactions.from_padded(target, size), scores=scores)
    sample = some_rows(rows, 32)
    entrants = from_scores(problem, target, None, sample)
    entrants.append(contender("ours, counts alone", partial(counts_alone, problem, target, best(where))))
    limit = 1.15 if dtype == torch.float32 else 1.25
    goals = [
        Goal("ours", limit, COPY),
        Goal("ours, counts alone", limit, COPY),
        Goal("RecBole-style", 8, "ours", at_least=True),
    ]
    answer = partial(expected, problem.some(sample).cpu())
    return Case("card-scores", name, text, rows, entrants, answer, goals, device=where.type)


def card_all_metrics(tiny: bool, data: Path) -> Iterator[Case]:
    """Dense scores of a catalogue of usual size: 1 to 50 relevant items per row, a history, every metric."""
    where = device(tiny)
    rows, size, listed, seen = (8, 300, 10, 20) if tiny else (16_384, 20_108, 50, 100)
    text = f"scores float32 [{rows}, {size}], 1 to {listed} relevant, history {seen}; {', '.join(ALL)}; {by(where)}"
    if reason := lacks(where, 6 * rows * size * 4):
        yield Case("card-all-metrics", "all metrics", text, rows, [], dict, skipped=reason)
        return
    torch.manual_seed(0)
    scores = torch.randn(rows, size, device=where)
    ids = apart(rows, listed + seen, size, where)
    scores.scatter_add_(1, ids, torch.full(ids.shape, 2.5, device=where))
    target, history = ragged(ids[:, :listed], 1), ids[:, listed:].contiguous()
    test, train = (Interactions.from_padded(part, size) for part in (target, history))
    problem = Problem(test, train, scores=scores, names=ALL)
    sample = some_rows(rows, 128)
    entrants = from_scores(problem, target, history, sample)
    try:
        replayed = Contender("ours, graph replay", graph_replay(problem, target, history, best(where)))
    except RuntimeError as error:
        replayed = Contender("ours, graph replay", None, absent=f"cannot be recorded: {str(error).splitlines()[0]}")
    goals = [Goal("ours, graph replay", 2, COPY)]
    answer = partial(expected, problem.some(sample).cpu())
    yield Case("card-all-metrics", "all metrics", text, rows, [*entrants, replayed], answer, goals, device=where.type)


# ------------------------------------------------------------------------------------------------- scores of embeddings


def from_products(problem: Problem, sample: Problem, rows: int | None) -> list[Contender]:
    """Return the contenders for scores of embeddings; our eager kernels, which keep scores, are timed on `rows`."""
    where = problem.device
    chosen = best(where)
    ours = {name: partial(peers.ours_from_embeddings, kernels=name) for name in ("eager", "triton")}
    entrants = [checked("ours", ours[chosen], problem, sample)]
    if chosen != "eager":
        entrants.append(checked("ours, eager", ours["eager"], problem, sample, rows))
    return [*entrants, contender(RATE, partial(rate, problem))]


def card_embeddings(tiny: bool, data: Path) -> Iterator[Case]:
    """Random embeddings in the shapes of ML-20M, from embeddings to metric values."""
    where = device(tiny)
    for dtype in (sixteen(where), torch.float32):
        yield _g3(tiny, where, dtype)


def _g3(tiny: bool, where: torch.device, dtype: torch.dtype) -> Case:
    rows, size, d, listed, seen = (64, 300, 16, 5, 10) if tiny else (136_677, 20_108, 64, 20, 100)
    name = str(dtype).removeprefix("torch.")
    text = f"embeddings {name} [{rows}, {d}] x [{size}, {d}], 1 to {listed} relevant, history up to {seen}; {METRICS}"
    text += f"; {by(where)}"
    if reason := lacks(where, 12e9):
        return Case("card-embeddings", name, text, rows, [], dict, skipped=reason)
    torch.manual_seed(0)
    items = torch.randn(size, d, device=where)
    ids = apart(rows, listed + seen, size, where)
    users = items[torch.cat([ids[:, :4], ids[:, listed : listed + 4]], 1)].sum(1)
    target, history = ragged(ids[:, :listed], 1), ragged(ids[:, listed:], seen // 5)
    test, train = (Interactions.from_padded(part, size) for part in (target, history))
    batch = rows_at_once(size, where)
    problem = Problem(test, train, users=users.to(dtype), items=items.to(dtype), batch=batch)
    few = problem.some(some_rows(rows, 256))
    entrants = [
        *from_products(problem, few, None),
        contender("product, kept buffer", partial(peers.product, problem)),
        contender("matmul + topk", partial(matmul_topk, problem)),
        checked("PyG", peers.pyg, problem, few),
        checked("RecBole-style", peers.recbole_style, problem, few),
    ]
    answer, near = partial(expected_in_parts, few), 1.5 / few.num_users
    goals = [Goal("ours", 4.0)] if dtype.itemsize == 2 else []
    return Case("card-embeddings", name, text, rows, entrants, answer, goals, near, device=where.type)


def card_1m_items(tiny: bool, data: Path) -> Iterator[Case]:
    """Embeddings of a million users and a million items, one relevant item each."""
    where = device(tiny)
    shape = (64, 300, 16) if tiny else (10**6, 10**6, 128)
    yield leave_one_out("card-1M-items", shape, where, whole=True, limit=1.5, stretch=1.2)
    yield leave_one_out("card-1M-items", shape, where, whole=False, limit=0.6)


def card_100m_items(tiny: bool, data: Path) -> Iterator[Case]:
    """Embeddings of a hundred million items."""
    where = device(tiny)
    shape = (32, 2000, 16) if tiny else (16_384, 10**8, 64)
    yield leave_one_out("card-100M-items", shape, where, whole=True, limit=1.5, memory=1000)
    yield leave_one_out("card-100M-items", shape, where, whole=False, limit=1.5, memory=1000)


def leave_one_out(
    id: str,
    shape: tuple[int, int, int],
    where: torch.device,
    whole: bool,
    limit: float,
    stretch: float | None = None,
    memory: int | None = None,
) -> Case:
    """Whole-list metrics, or metrics of the first 100 ranks, where rows that are known to rank lower are skipped.

    A user's embedding is a part of the relevant item's plus noise, so that about a quarter of the relevant items are
    among the user's best 100 of a million. A mean may differ by one and a half of the checked rows: ranks depend on
    float32 sums.
    """
    rows, size, d = shape
    dtype = sixteen(where)
    name = "whole list" if whole else "first 100"
    names, cutoffs = (("MRR", "NDCG"), ()) if whole else (("HR", "MRR", "NDCG"), (10, 100))
    text = f"embeddings {str(dtype).removeprefix('torch.')} [{rows}, {d}] x [{size}, {d}], 1 relevant; "
    text += ", ".join(names) + (f" x k = {', '.join(map(str, cutoffs))}" if cutoffs else "") + f"; {by(where)}"
    if reason := lacks(where, 1.3 * size * d * dtype.itemsize + 6e9):
        return Case(id, name, text, rows, [], dict, skipped=reason)
    torch.manual_seed(0)
    items = torch.randn(size, d, dtype=dtype, device=where)
    target = torch.randint(size, (rows, 1), device=where)
    users = (items[target[:, 0]].float() * (3.1 / d**0.5) + torch.randn(rows, d, device=where)).to(dtype)
    problem = Problem(
        Interactions.from_padded(target, size),
        users=users,
        items=items,
        names=names,
        cutoffs=cutoffs,
        batch=rows_at_once(min(size, 2**18), where),
    )
    few = problem.some(some_rows(rows, 256 if size < 10**7 else 64))
    head = min(rows, 16_384 if size < 10**7 else 512)
    entrants = from_products(problem, few, head)
    if not whole:
        part = problem.head(head)
        entrants.append(contender("matmul + topk", partial(matmul_topk, part), head))
        if size < 10**7:
            batched = replace(problem, batch=rows_at_once(size, where))
            entrants.append(contender("product, kept buffer", partial(peers.product, batched)))
            entrants.append(checked("PyG", peers.pyg, batched, few, head))
    goals = [Goal("ours", limit, RATE, stretch=stretch)]
    if memory is not None:
        goals.append(Goal("ours", memory, memory=True))
    answer, near = partial(expected_in_parts, few), 1.5 / few.num_users
    return Case(id, name, text, rows, entrants, answer, goals, near, device=where.type)


ROWS: dict[str, Row] = {
    "card-scores": card_scores,
    "card-all-metrics": card_all_metrics,
    "card-embeddings": card_embeddings,
    "card-1M-items": card_1m_items,
    "card-100M-items": card_100m_items,
}
