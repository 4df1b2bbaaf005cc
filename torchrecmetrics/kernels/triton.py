"""Counting in Triton, on CUDA: each score is read once, or never written at all; the answers are those of `eager`.

Nothing in here waits for the device but `count_products_until`. Counts are sums of integers, or of floats that hold
whole numbers below 2^24, so the order in which programs finish changes nothing.
"""

# Kernels are typed by what they are launched with; mypy reads all the rest.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

# no `from __future__ import annotations`: some versions of Triton's interpreter know tl.constexpr only as itself
from functools import reduce
from typing import NamedTuple

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from torchrecmetrics.arrays import count_above
from torchrecmetrics.kernels.contract import Counts, Products, Question
from torchrecmetrics.kernels.edges import from_buckets, to_counts, with_floors, without_nan, working

# Edges a row up to which every score is compared with all of them; beyond, it is searched for among them.
_DIRECT = 32
# Counters a thread holds for each comparison: edges times scores.
_HELD = 32
# Bins up to which a tile's histogram is made on the chip, at a cost that grows with them; beyond, by atomics.
_BINS = 1024
# Programs for each multiprocessor: enough that the last ones to finish do not matter.
_PROGRAMS = 8
# Edges a program counts against the same products: so many that multiplying again for the next ones costs little.
_COLUMNS = 8
# Items after which it may pay to wait and see who is settled; not measured yet, as nothing here.
_SMALLEST_CHUNK = 2**16
# A product and the sum it goes to are one instruction, whatever a version of Triton does by default.
_FUSED = True
_INTERPRETED_AS = (9, 0)
_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


# ---------------------------------------------------------------------------------------------------- scores in memory


@triton.jit
def _tile(
    scores,
    step,
    masks,
    mask_step,
    matrix,
    matrix_step,
    at,
    stop,
    highest,
    MASKED: tl.constexpr,
    MATRIX: tl.constexpr,
    RAGGED: tl.constexpr,
):
    """Scores of the items `at`, -inf where there is no candidate; the highest so far, masked items included."""
    # -inf lies below every edge: it counts nowhere
    if RAGGED:
        score = tl.load(scores + at * step, mask=at < stop, other=float("-inf")).to(highest.dtype)
    else:
        score = tl.load(scores + at * step).to(highest.dtype)
    highest = tl.maximum(highest, score, propagate_nan=tl.PropagateNan.ALL)
    if MASKED:
        score = tl.where(tl.load(masks + at * mask_step, mask=at < stop, other=1) != 0, float("-inf"), score)
    if MATRIX:
        score = tl.where(tl.load(matrix + at * matrix_step, mask=at < stop, other=1) != 0, float("-inf"), score)
    return score, highest


@triton.jit
def _highest(highest):
    """Highest of all lanes; NaN if one is NaN, which tl.max would pass over."""
    some_nan = tl.max((highest != highest).to(tl.int32), 0) != 0
    return tl.where(some_nan, float("nan"), tl.max(tl.where(highest == highest, highest, float("-inf")), 0))


@triton.jit
def _compare(score, edge, above, at_least):
    """Add to the counts [edges, lanes]: as floats, a comparison and its sum are one instruction each."""
    above += tl.where(score[None, :] > edge[:, None], 1.0, 0.0)
    at_least += tl.where(score[None, :] >= edge[:, None], 1.0, 0.0)
    return above, at_least


@triton.jit(do_not_specialize=["items", "each", "ranges"])
def _by_comparing(
    scores,
    row_step,
    step,
    masks,
    mask_step,
    matrix,
    matrix_row_step,
    matrix_step,
    edges,
    above_out,
    at_least_out,
    highest_out,
    items,
    each,
    ranges,
    MASKED: tl.constexpr,
    MATRIX: tl.constexpr,
    EDGES: tl.constexpr,
    LANES: tl.constexpr,
):
    """One row and `each` tiles of its items: every score with every edge."""
    program = tl.program_id(0)
    row = (program // ranges).to(tl.int64)
    start = (program % ranges).to(tl.int64) * each * LANES
    stop = tl.minimum(start + each * LANES, items)
    whole = start + (stop - start) // LANES * LANES
    lanes = tl.arange(0, LANES).to(tl.int64)
    slot = tl.arange(0, EDGES)
    scores += row * row_step
    if MATRIX:
        matrix += row * matrix_row_step
    edge = tl.load(edges + row * EDGES + slot)
    highest = tl.full([LANES], float("-inf"), edge.dtype)
    above = tl.zeros([EDGES, LANES], tl.float32)
    at_least = tl.zeros([EDGES, LANES], tl.float32)
    for left in range(start, whole, LANES):
        score, highest = _tile(
            scores, step, masks, mask_step, matrix, matrix_step, left + lanes, stop, highest, MASKED, MATRIX, False
        )
        above, at_least = _compare(score, edge, above, at_least)
    for left in range(whole, stop, LANES):
        score, highest = _tile(
            scores, step, masks, mask_step, matrix, matrix_step, left + lanes, stop, highest, MASKED, MATRIX, True
        )
        above, at_least = _compare(score, edge, above, at_least)
    tl.atomic_add(above_out + row * EDGES + slot, tl.sum(above.to(tl.int32), 1).to(tl.int64))
    tl.atomic_add(at_least_out + row * EDGES + slot, tl.sum(at_least.to(tl.int32), 1).to(tl.int64))
    tl.store(highest_out + program, _highest(highest))


@triton.jit(do_not_specialize=["items", "each", "ranges"])
def _by_buckets(
    scores,
    row_step,
    step,
    masks,
    mask_step,
    matrix,
    matrix_row_step,
    matrix_step,
    edges,
    reaching_out,
    same_out,
    highest_out,
    items,
    each,
    ranges,
    MASKED: tl.constexpr,
    MATRIX: tl.constexpr,
    LEVELS: tl.constexpr,
    LANES: tl.constexpr,
    ON_CHIP: tl.constexpr,
):
    """One row and `each` tiles of its items: how many scores reach just so many of its 2^LEVELS - 1 ascending edges."""
    BINS: tl.constexpr = 2**LEVELS
    program = tl.program_id(0)
    row = (program // ranges).to(tl.int64)
    start = (program % ranges).to(tl.int64) * each * LANES
    stop = tl.minimum(start + each * LANES, items)
    lanes = tl.arange(0, LANES).to(tl.int64)
    scores += row * row_step
    if MATRIX:
        matrix += row * matrix_row_step
    edges += row * (BINS - 1)
    reaching_out += row * BINS
    same_out += row * BINS
    highest = tl.full([LANES], float("-inf"), edges.dtype.element_ty)
    reaching = tl.zeros([BINS if ON_CHIP else 1], tl.int32)
    same = tl.zeros([BINS if ON_CHIP else 1], tl.int32)
    for left in range(start, stop, LANES):
        score, highest = _tile(
            scores, step, masks, mask_step, matrix, matrix_step, left + lanes, stop, highest, MASKED, MATRIX, True
        )
        reached = tl.zeros([LANES], tl.int32)
        for level in tl.static_range(LEVELS):
            further = 2 ** (LEVELS - 1 - level)
            reached += tl.where(score >= tl.load(edges + reached + (further - 1)), further, 0)
        # bucket 0, what lies below every edge, is never read: scores that are not counted go there
        last = tl.load(edges + tl.maximum(reached - 1, 0))
        met = (reached > 0) & (last == score)
        if ON_CHIP:
            reaching += tl.histogram(reached, BINS)
            same += tl.histogram(tl.where(met, reached, 0), BINS)
        else:
            one = tl.full([LANES], 1, tl.int64)
            tl.atomic_add(reaching_out + reached, one, mask=reached > 0)
            tl.atomic_add(same_out + reached, one, mask=met)
    if ON_CHIP:
        bins = tl.arange(0, BINS)
        tl.atomic_add(reaching_out + bins, reaching.to(tl.int64))
        tl.atomic_add(same_out + bins, same.to(tl.int64))
    tl.store(highest_out + program, _highest(highest))


_INTERPRETED = not isinstance(_by_comparing, triton.runtime.JITFunction)


def count(scores: Tensor, question: Question) -> Counts:
    """Count over scores in memory, whatever their strides: one read, exact at every depth."""
    edges = with_floors(question.thresholds, question.floors)
    above, at_least, highest = _count_scores(scores, working(edges), list(question.masks))
    asked = question.thresholds.shape[1]
    return to_counts(edges, asked, above[:, :asked], at_least, highest, question.removed)


@torch.library.custom_op(
    "torchrecmetrics::count_scores",
    mutates_args=(),
    schema="(Tensor scores, Tensor edges, Tensor[] masks) -> (Tensor, Tensor, Tensor)",
)
def _count_scores(scores: Tensor, edges: Tensor, masks: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """How many candidates are > and >= each edge, int64 [B, E], and each row's highest score."""
    rows, items = scores.shape
    width = edges.shape[1]
    direct, lanes, options = _way(width)
    if direct:
        edges = torch.nn.functional.pad(edges, (0, options["EDGES"] - width), value=torch.nan)
        first = edges.new_zeros(edges.shape, dtype=torch.int64)
    else:
        bins = 2 ** options["LEVELS"]
        edges = torch.nn.functional.pad(edges, (0, bins - 1 - width), value=torch.nan)
        edges, order = without_nan(edges, torch.inf).sort(dim=1)  # a binary search cannot pass NaN
        first = edges.new_zeros((rows, bins), dtype=torch.int64)
    second = torch.zeros_like(first)
    each, ranges = _split(items, lanes, rows, scores.device)
    partial = edges.new_empty((rows, ranges))
    common = [mask for mask in masks if mask.dim() == 1]
    own = [mask for mask in masks if mask.dim() == 2]
    mask = reduce(torch.logical_or, common).view(torch.uint8) if common else scores
    matrix = reduce(torch.logical_or, own).view(torch.uint8) if own else scores
    if rows:
        with torch.cuda.device_of(scores):
            (_by_comparing if direct else _by_buckets)[(rows * ranges,)](
                scores,
                *scores.stride(),
                mask,
                mask.stride(-1),
                matrix,
                *matrix.stride(),
                edges,
                first,
                second,
                partial,
                items,
                each,
                ranges,
                MASKED=bool(common),
                MATRIX=bool(own),
                LANES=lanes,
                num_warps=4 if direct else 8,
                enable_fp_fusion=_FUSED,
                **options,
            )
    highest = partial.amax(1)
    if direct:
        return first[:, :width].contiguous(), second[:, :width].contiguous(), highest
    above, at_least = from_buckets(edges, order, first, second)
    return above[:, :width].contiguous(), at_least[:, :width].contiguous(), highest


def _way(width: int) -> tuple[bool, int, dict[str, int]]:
    """Choose for so many edges a row: whether to compare with all of them, scores at once, the kernel's constants."""
    if width <= _DIRECT:
        edges = _power_of_two(max(1, width))
        return True, 128 * max(1, min(_HELD // edges, 16)), {"EDGES": edges}
    levels = width.bit_length()
    return False, 1024, {"LEVELS": levels, "ON_CHIP": 2**levels <= _BINS}


@_count_scores.register_fake
def _(scores: Tensor, edges: Tensor, masks: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    counted = edges.new_empty(edges.shape, dtype=torch.int64)
    return counted, torch.empty_like(counted), edges.new_empty(len(edges))


# ---------------------------------------------------------------------------------------------- scores never in memory


@triton.jit
def _part(matrix, at, step, first, OPERAND: tl.constexpr, D: tl.constexpr, K: tl.constexpr):
    """Entries [first, first + K) of the rows that begin `at`, 0 beyond the last: [rows, K]."""
    k = first + tl.arange(0, K)
    here = matrix + at[:, None] + k.to(tl.int64)[None, :] * step
    if D >= K and D % K == 0:
        return tl.load(here).to(OPERAND)
    else:
        return tl.load(here, mask=(k < D)[None, :], other=0.0).to(OPERAND)


@triton.jit
def _products(
    users,
    user_at,
    user_step,
    held,
    items,
    item_at,
    item_step,
    bias,
    item,
    OPERAND: tl.constexpr,
    PRECISION: tl.constexpr,
    BIASED: tl.constexpr,
    D: tl.constexpr,
    K: tl.constexpr,
):
    """Scores of some users and some items; `held` is the users' first part.

    Whatever scores are compared with comes from here too: another chain of sums ends in other bits.
    """
    if D <= K:
        score = tl.dot(held, tl.trans(_part(items, item_at, item_step, 0, OPERAND, D, K)), input_precision=PRECISION)
    else:
        score = tl.zeros([user_at.shape[0], item_at.shape[0]], tl.float32)
        for first in range(0, D, K):
            some = _part(users, user_at, user_step, first, OPERAND, D, K)
            others = _part(items, item_at, item_step, first, OPERAND, D, K)
            score = tl.dot(some, tl.trans(others), score, input_precision=PRECISION)
    if BIASED:
        score += tl.load(bias + item)[None, :]
    return score


@triton.jit
def _tally(score, edge, edges, edge_at, first, last, above, at_least, COLUMNS: tl.constexpr):
    """Add how many of each row's scores are > and >= its edges: `edge` if it is one, else read when needed."""
    if COLUMNS == 1:
        above += tl.sum(tl.where(score > edge[:, None], 1.0, 0.0), 1)
        at_least += tl.sum(tl.where(score >= edge[:, None], 1.0, 0.0), 1)
    else:
        slot = tl.arange(0, COLUMNS)[None, :]
        for column in tl.static_range(COLUMNS):
            if first + column < last:
                edge = tl.load(edges + edge_at + (first + column))
                more = tl.sum(tl.where(score > edge[:, None], 1.0, 0.0), 1)
                above += tl.where(slot == column, more[:, None], 0.0)
                more = tl.sum(tl.where(score >= edge[:, None], 1.0, 0.0), 1)
                at_least += tl.where(slot == column, more[:, None], 0.0)
    return above, at_least


@triton.jit(do_not_specialize=["width", "num_rows", "num_items", "each", "blocks"])
def _by_products(
    users,
    user_row_step,
    user_step,
    items,
    item_row_step,
    item_step,
    bias,
    order,
    asked,
    edges,
    width,
    above_out,
    at_least_out,
    num_rows,
    num_items,
    each,
    blocks,
    OPERAND: tl.constexpr,
    PRECISION: tl.constexpr,
    BIASED: tl.constexpr,
    D: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """M rows, `each` tiles of items and COLUMNS edges: programs that run together read the same items."""
    program = tl.program_id(0)
    place = (program % blocks).to(tl.int64) * M + tl.arange(0, M)
    start = (program // blocks).to(tl.int64) * each * N
    stop = tl.minimum(start + each * N, num_items)
    row = tl.load(order + tl.minimum(place, num_rows - 1))
    first = tl.program_id(1) * COLUMNS
    last = tl.minimum(tl.max(tl.load(asked + row), 0), first + COLUMNS)
    if first < last:
        edge_at = row * width
        user_at = row * user_row_step
        held = _part(users, user_at, user_step, 0, OPERAND, D, K)
        edge = tl.load(edges + edge_at + first)
        above = tl.zeros([M], tl.float32) if COLUMNS == 1 else tl.zeros([M, COLUMNS], tl.float32)
        at_least = above
        lanes = tl.arange(0, N).to(tl.int64)
        whole = start + (stop - start) // N * N
        for left in range(start, whole, N):
            item = left + lanes
            score = _products(
                users,
                user_at,
                user_step,
                held,
                items,
                item * item_row_step,
                item_step,
                bias,
                item,
                OPERAND,
                PRECISION,
                BIASED,
                D,
                K,
            )
            above, at_least = _tally(score, edge, edges, edge_at, first, last, above, at_least, COLUMNS)
        if whole < stop:
            item = whole + lanes
            known = tl.minimum(item, num_items - 1)
            score = _products(
                users,
                user_at,
                user_step,
                held,
                items,
                known * item_row_step,
                item_step,
                bias,
                known,
                OPERAND,
                PRECISION,
                BIASED,
                D,
                K,
            )
            score = tl.where((item < stop)[None, :], score, float("-inf"))
            above, at_least = _tally(score, edge, edges, edge_at, first, last, above, at_least, COLUMNS)
        if COLUMNS == 1:
            here = edge_at + first
            mine = place < num_rows
        else:
            column = first + tl.arange(0, COLUMNS)
            here = edge_at[:, None] + column[None, :]
            mine = (place < num_rows)[:, None] & (column < last)[None, :]
        tl.atomic_add(above_out + here, above.to(tl.int64), mask=mine)
        tl.atomic_add(at_least_out + here, at_least.to(tl.int64), mask=mine)


@triton.jit(do_not_specialize=["width", "pairs"])
def _diagonal(
    users,
    user_row_step,
    user_step,
    items,
    item_row_step,
    item_step,
    bias,
    ids,
    width,
    out,
    pairs,
    OPERAND: tl.constexpr,
    PRECISION: tl.constexpr,
    BIASED: tl.constexpr,
    D: tl.constexpr,
    M: tl.constexpr,
    K: tl.constexpr,
):
    """Scores of M pairs: every one of their users with every one of their items, of which the diagonal is kept."""
    lanes = tl.arange(0, M)
    pair = tl.program_id(0).to(tl.int64) * M + lanes
    known = tl.minimum(pair, pairs - 1)
    item = tl.load(ids + known)
    user_at = known // width * user_row_step
    held = _part(users, user_at, user_step, 0, OPERAND, D, K)
    score = _products(
        users,
        user_at,
        user_step,
        held,
        items,
        item * item_row_step,
        item_step,
        bias,
        item,
        OPERAND,
        PRECISION,
        BIASED,
        D,
        K,
    )
    own = tl.sum(tl.where(lanes[:, None] == lanes[None, :], score, 0.0), 1)
    tl.store(out + pair, own, mask=pair < pairs)


class _Cut(NamedTuple):
    """How products are cut: rows, items and entries of a tile, what is multiplied how, warps, tiles on their way."""

    rows: int
    items: int
    entries: int
    operand: torch.dtype
    precision: str
    warps: int
    stages: int


def _cut(
    dtypes: tuple[torch.dtype, torch.dtype], precision: str, width: int, columns: int, capability: tuple[int, int]
) -> _Cut:
    """Choose for embeddings of these types and this width; `columns` = 0 is the diagonal.

    Entries, operand and precision decide over bits: they are the same whatever the `columns`.
    """
    operand = torch.float32
    if dtypes[0] == dtypes[1] != torch.float32:
        operand = dtypes[0]
    elif precision == "medium":
        operand = torch.bfloat16
    padded, size = max(16, _power_of_two(width)), operand.itemsize
    rows, items, warps, stages, how = 128, 64, 8, 3, "ieee"
    without_cores = operand == torch.float32 and precision == "highest"
    if without_cores:  # all that a thread multiplies passes through its registers
        entries = 16
        rows = 128 if columns == 1 else 64
    else:
        how = "tf32" if operand == torch.float32 else how
        hopper = capability[0] == 9  # multiplies from shared memory: other cards hold the users in registers
        # users stay on the chip while the items pass, or both come in parts
        entries = padded if padded * size <= (512 if hopper else 256) else 32
        if hopper and columns == 1 and entries == padded and padded * size <= 256:
            rows = 256
        elif not hopper and columns > 1 and entries < padded:
            stages = 2  # addresses of a third tile would spill
    if columns == 0:
        rows, items, warps, stages = 64, 64, 8 if without_cores else 4, 2
    return _Cut(rows, items, entries, operand, how, warps, stages)


def pair_scores(products: Products, ids: Tensor) -> Tensor:
    """Scores of the items `ids` int64 [B, T] in their rows, float32 [B, T]: the bits that `count_products` compares."""
    scores: Tensor = _pair_scores(*products, ids)
    return scores


@torch.library.custom_op(
    "torchrecmetrics::pair_scores",
    mutates_args=(),
    schema="(Tensor users, Tensor items, Tensor? bias, Tensor ids) -> Tensor",
)
def _pair_scores(users: Tensor, items: Tensor, bias: Tensor | None, ids: Tensor) -> Tensor:
    cut = _cut_for(users, items, 0)
    scores = torch.empty(ids.shape, dtype=torch.float32, device=users.device)
    if ids.numel():
        with torch.cuda.device_of(users):
            _diagonal[(-(-ids.numel() // cut.rows),)](
                users,
                *users.stride(),
                items,
                *items.stride(),
                scores if bias is None else bias.contiguous(),
                ids.contiguous(),
                ids.shape[1],
                scores,
                ids.numel(),
                OPERAND=_TYPES[cut.operand],
                PRECISION=cut.precision,
                BIASED=bias is not None,
                D=users.shape[1],
                M=cut.rows,
                K=cut.entries,
                num_warps=cut.warps,
                enable_fp_fusion=_FUSED,
                num_stages=cut.stages,
            )
    return scores


@_pair_scores.register_fake
def _(users: Tensor, items: Tensor, bias: Tensor | None, ids: Tensor) -> Tensor:
    return torch.empty(ids.shape, dtype=torch.float32, device=users.device)


def count_products(products: Products, question: Question) -> Counts:
    """Count over products, exact at every depth; thresholds and removed scores are float32, from `pair_scores`.

    A threshold that is NaN costs little, wherever it stands. `highest` is 0: that embeddings and their products are
    finite is for the caller to know.
    """
    edges = with_floors(question.thresholds, question.floors)
    above, at_least = _count_products(*products, edges)
    return _product_counts(edges, question.thresholds.shape[1], above, at_least, question.removed)


def count_products_until(products: Products, question: Question, chunk: int | None = None) -> Counts:
    """`count_products`, `chunk` items at a time, without what has `depth` better candidates already.

    Waits for the device after each chunk (None: a sixteenth of the items, or more): which rows are left is data.
    Floors, and depth None, need the whole list: with them nothing is left out.
    """
    thresholds, depth, floors, _, removed = question
    if depth is None or floors:
        return count_products(products, question)
    users, items, bias = products
    chunk = chunk or max(_SMALLEST_CHUNK, len(items) // 16)
    above = thresholds.new_zeros(thresholds.shape, dtype=torch.int64)
    at_least = torch.zeros_like(above)
    # a removed item may be among those counted so far, or still to come
    enough = depth if removed is None else depth + count_above(removed, thresholds)
    asked = thresholds
    live = torch.arange(len(thresholds), device=thresholds.device)
    for left in range(0, len(items), chunk):
        here = slice(left, left + chunk)
        more = _count_products(users[live], items[here], None if bias is None else bias[here], asked[live])
        above[live] += more[0]
        at_least[live] += more[1]
        asked = asked.masked_fill(above >= enough, torch.nan)
        live = (~asked.isnan()).any(1).nonzero()[:, 0]
        if not len(live):
            break
    return _product_counts(thresholds, thresholds.shape[1], above, at_least, removed)


@torch.library.custom_op(
    "torchrecmetrics::count_products",
    mutates_args=(),
    schema="(Tensor users, Tensor items, Tensor? bias, Tensor edges) -> (Tensor, Tensor)",
)
def _count_products(users: Tensor, items: Tensor, bias: Tensor | None, edges: Tensor) -> tuple[Tensor, Tensor]:
    """How many products are > and >= each edge, int64 [B, E]."""
    rows, width = edges.shape
    columns = 1 if width == 1 else _COLUMNS
    cut = _cut_for(users, items, columns)
    # those asked for in front, and rows that ask for as many side by side: a block works for the most of its rows
    ascending, slot = edges.sort(dim=1)
    asked = (~edges.isnan()).sum(1)
    order = asked.argsort(descending=True, stable=True)
    above = torch.zeros_like(slot)
    at_least = torch.zeros_like(slot)
    if edges.numel() and len(items):
        blocks, groups = -(-rows // cut.rows), -(-width // columns)
        each, ranges = _split(len(items), cut.items, blocks * groups, users.device)
        with torch.cuda.device_of(users):
            _by_products[(blocks * ranges, groups)](
                users,
                *users.stride(),
                items,
                *items.stride(),
                ascending if bias is None else bias.contiguous(),
                order,
                asked,
                ascending,
                width,
                above,
                at_least,
                rows,
                len(items),
                each,
                blocks,
                OPERAND=_TYPES[cut.operand],
                PRECISION=cut.precision,
                BIASED=bias is not None,
                D=users.shape[1],
                M=cut.rows,
                N=cut.items,
                K=cut.entries,
                COLUMNS=columns,
                num_warps=cut.warps,
                enable_fp_fusion=_FUSED,
                num_stages=cut.stages,
            )
    return torch.empty_like(above).scatter_(1, slot, above), torch.empty_like(above).scatter_(1, slot, at_least)


@_count_products.register_fake
def _(users: Tensor, items: Tensor, bias: Tensor | None, edges: Tensor) -> tuple[Tensor, Tensor]:
    counted = edges.new_empty(edges.shape, dtype=torch.int64)
    return counted, torch.empty_like(counted)


def _cut_for(users: Tensor, items: Tensor, columns: int) -> _Cut:
    on_cuda = users.device.type == "cuda"
    capability = torch.cuda.get_device_capability(users.device) if on_cuda else _INTERPRETED_AS
    cut = _cut((users.dtype, items.dtype), _float32_precision(), users.shape[1], columns, capability)
    if _INTERPRETED and cut.operand == torch.bfloat16:
        raise RuntimeError("Triton's interpreter gives wrong products of bfloat16")
    return cut


def _float32_precision() -> str:
    """Return what PyTorch is set to: "highest", "high" or "medium"."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set for CUDA alone, and this question is for all devices
        return "high" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "highest"


def _product_counts(edges: Tensor, asked: int, above: Tensor, at_least: Tensor, removed: Tensor | None) -> Counts:
    return to_counts(edges, asked, above[:, :asked], at_least, edges.new_zeros(len(edges)), removed)


# ------------------------------------------------------------------------------------------------------ where this runs


def unavailable(device: torch.device) -> str | None:
    """Say why these kernels cannot run on a device; None if they can."""
    if _INTERPRETED:
        return None if device.type == "cpu" else f"TRITON_INTERPRET is set: Triton runs on the CPU, not on {device}"
    if device.type != "cuda" or torch.version.hip:
        return f"Triton's kernels need CUDA, not {'ROCm' if device.type == 'cuda' else device}"
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        return f"Triton's kernels need compute capability 8.0 or newer, {device} has {capability[0]}.{capability[1]}"
    return None


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _split(items: int, tile: int, others: int, device: torch.device) -> tuple[int, int]:
    """Tiles of items a program and programs over them, so that with `others` beside them they fill the device."""
    wanted = 4
    if device.type == "cuda":
        wanted = _PROGRAMS * torch.cuda.get_device_properties(device).multi_processor_count
    tiles = -(-items // tile)
    each = -(-tiles // min(tiles, -(-wanted // max(1, others))))
    each = min(each, 2**23 // tile)  # counted in floats
    return each, -(-tiles // each)
