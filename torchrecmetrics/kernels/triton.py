"""Count better and equal scores by Triton kernels on CUDA, from scores or from embeddings.

Only `count_products_until` makes host syncs. Counts are sums of integers, or of floats that are whole numbers below
2^24, so they do not depend on the order in which programs finish.
"""

# Kernels get their types at launch; mypy checks all other code.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

# Arguments of kernels are grouped: a tensor and its strides, sizes, constants.
# fmt: off

# no `from __future__ import annotations`: some versions of Triton's interpreter do not know tl.constexpr as text
from functools import reduce
from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from torchrecmetrics.core.arrays import count_above, working
from torchrecmetrics.kernels.contract import (
    Counts,
    Products,
    Question,
    from_buckets,
    replace_nan,
    to_counts,
    with_min_scores,
)

# Maximum number of edges per row that every score is compared with; more are found by binary search.
_DIRECT = 8
# Counters per thread, for > and for >=: its edges times its scores.
_COUNTERS_PER_THREAD = 32
# Maximum number of keys of a histogram on the chip, whose cost grows with the keys; larger ones use atomics.
_KEYS = 1024
# Waves of programs (a wave runs at once): enough that the wait for the last programs does not matter.
_WAVES = 16
# Programs that fit on a multiprocessor at once, given registers and shared memory: over scores, over products.
_PROGRAMS_PER_MULTIPROCESSOR = 6
_RESIDENT_PRODUCTS = 2
# Edges that a program counts against the same products: enough that multiplying again for more edges costs little.
_COLUMNS = 8
# Maximum number of such groups of edges in a launch, the second axis of a grid.
_MOST_GROUPS = 65_535
# Items after which a host sync that finds settled rows may pay; not measured.
_SMALLEST_CHUNK = 2**16
# A product and its addition are one instruction, whatever the default of a version of Triton.
_FUSED = True
_INTERPRETED_AS = (9, 0)
_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


# ---------------------------------------------------------------------------------------------------- scores in memory


@triton.jit
def _larger(score, other_score):
    """Return the larger of two numbers; NaN if either is NaN, which tl.max would ignore."""
    return tl.maximum(score, other_score, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _read(scores, at, step, size, KIND: tl.constexpr, RAGGED: tl.constexpr):
    """Return the scores at the indices `at`; RAGGED: -inf for indices from `size` on."""
    if RAGGED:
        return tl.load(scores + at * step, mask=at < size, other=float("-inf")).to(KIND)
    else:
        return tl.load(scores + at * step).to(KIND)


@triton.jit
def _candidates(score, masks, mask_step, matrix, matrix_step, at, size, MASKED: tl.constexpr, MATRIX: tl.constexpr):
    """Return the scores, -inf for items that are not candidates: below every edge, and so never counted."""
    if MASKED:
        score = tl.where(tl.load(masks + at * mask_step, mask=at < size, other=1) != 0, float("-inf"), score)
    if MATRIX:
        score = tl.where(tl.load(matrix + at * matrix_step, mask=at < size, other=1) != 0, float("-inf"), score)
    return score


@triton.jit
def _range(items, steps, ranges, LANES: tl.constexpr):
    """Return the program's number, row, first item and number of items: `steps` tiles, or the rest of the row."""
    program = tl.program_id(0)
    start = (program % ranges).to(tl.int64) * steps * LANES
    return program, (program // ranges).to(tl.int64), start, tl.minimum(items - start, steps * LANES).to(tl.int32)


@triton.jit
def _count_comparisons(score, edge, above, at_least, EDGES: tl.constexpr):
    """Count score > edge and score >= edge per lane; as floats a comparison and a sum take one instruction each."""
    if EDGES > 1:
        score = score[None, :]
    return above + tl.where(score > edge, 1.0, 0.0), at_least + tl.where(score >= edge, 1.0, 0.0)


@triton.jit(do_not_specialize=["items", "steps", "ranges"])
def _by_comparing(
    scores, row_step, step,
    masks, mask_step,
    matrix, matrix_row_step, matrix_step,
    edges, above_out, at_least_out, highest_out,
    items, steps, ranges,
    MASKED: tl.constexpr, MATRIX: tl.constexpr, FAR: tl.constexpr, EDGES: tl.constexpr, LANES: tl.constexpr,
):
    """Compare every score of `steps` tiles of one row with every edge."""
    program, row, start, size = _range(items, steps, ranges, LANES)
    num_full = size // LANES * LANES
    lanes = tl.arange(0, LANES).to(tl.int64) if FAR else tl.arange(0, LANES)
    scores += row * row_step + start * step
    if MASKED:
        masks += start * mask_step
    if MATRIX:
        matrix += row * matrix_row_step + start * matrix_step
    if EDGES == 1:  # no data moves between threads
        row_edges = row
        edge = tl.load(edges + row_edges)
        above = tl.zeros([LANES], tl.float32)
    else:
        row_edges = row * EDGES + tl.arange(0, EDGES)
        edge = tl.load(edges + row_edges)[:, None]
        above = tl.zeros([EDGES, LANES], tl.float32)
    at_least = above
    highest = tl.full([LANES], float("-inf"), edge.dtype)
    for tile_start in range(0, num_full, LANES):
        score = _read(scores, tile_start + lanes, step, size, edge.dtype, False)
        highest = _larger(highest, score)
        score = _candidates(score, masks, mask_step, matrix, matrix_step, tile_start + lanes, size, MASKED, MATRIX)
        above, at_least = _count_comparisons(score, edge, above, at_least, EDGES)
    if num_full < size:
        score = _read(scores, num_full + lanes, step, size, edge.dtype, True)
        highest = _larger(highest, score)
        score = _candidates(score, masks, mask_step, matrix, matrix_step, num_full + lanes, size, MASKED, MATRIX)
        above, at_least = _count_comparisons(score, edge, above, at_least, EDGES)
    lane: tl.constexpr = 0 if EDGES == 1 else 1
    tl.atomic_add(above_out + row_edges, tl.sum(above.to(tl.int32), lane).to(tl.int64), sem="relaxed")
    tl.atomic_add(at_least_out + row_edges, tl.sum(at_least.to(tl.int32), lane).to(tl.int64), sem="relaxed")
    tl.store(highest_out + program, tl.reduce(highest, 0, _larger))


@triton.jit
def _keys(score, edges, LEVELS: tl.constexpr):
    """Return twice the number of ascending edges that each score reaches, plus 1 if it equals the last of these edges.

    Keys 0 and 1 are below every threshold and never read: scores that are not counted have these keys.
    """
    reached = tl.zeros(score.shape, tl.int32)
    for level in tl.static_range(LEVELS):
        further = 2 ** (LEVELS - 1 - level)
        reached += tl.where(score >= tl.load(edges + reached + (further - 1)), further, 0)
    last = tl.load(edges + tl.maximum(reached - 1, 0))
    return 2 * reached + tl.where(last == score, 1, 0)


@triton.jit
def _add(key, histogram, histogram_out, KEYS: tl.constexpr, ON_CHIP: tl.constexpr):
    """Add the keys to the histogram: ON_CHIP to `histogram`, else by atomics to `histogram_out` in memory."""
    if ON_CHIP:
        histogram += tl.histogram(key, KEYS)
    else:
        tl.atomic_add(histogram_out + key, tl.full(key.shape, 1, tl.int64), mask=key > 1, sem="relaxed")
    return histogram


@triton.jit(do_not_specialize=["items", "steps", "ranges"])
def _by_buckets(
    scores, row_step, step,
    masks, mask_step,
    matrix, matrix_row_step, matrix_step,
    edges, histogram_out, highest_out,
    items, steps, ranges,
    MASKED: tl.constexpr, MATRIX: tl.constexpr, FAR: tl.constexpr, LEVELS: tl.constexpr, LANES: tl.constexpr,
    ON_CHIP: tl.constexpr,
):
    """Count the scores of `steps` tiles of one row by their key among its 2^LEVELS - 1 ascending edges."""
    KEYS: tl.constexpr = 2 ** (LEVELS + 1)
    program, row, start, size = _range(items, steps, ranges, LANES)
    num_full = size // LANES * LANES
    lanes = tl.arange(0, LANES).to(tl.int64) if FAR else tl.arange(0, LANES)
    scores += row * row_step + start * step
    if MASKED:
        masks += start * mask_step
    if MATRIX:
        matrix += row * matrix_row_step + start * matrix_step
    edges += row * (2**LEVELS - 1)
    histogram_out += row * KEYS
    highest = tl.full([LANES], float("-inf"), edges.dtype.element_ty)
    histogram = tl.zeros([KEYS if ON_CHIP else 1], tl.int32)
    for tile_start in range(0, num_full, LANES):
        score = _read(scores, tile_start + lanes, step, size, highest.dtype, False)
        highest = _larger(highest, score)
        score = _candidates(score, masks, mask_step, matrix, matrix_step, tile_start + lanes, size, MASKED, MATRIX)
        histogram = _add(_keys(score, edges, LEVELS), histogram, histogram_out, KEYS, ON_CHIP)
    if num_full < size:
        score = _read(scores, num_full + lanes, step, size, highest.dtype, True)
        highest = _larger(highest, score)
        score = _candidates(score, masks, mask_step, matrix, matrix_step, num_full + lanes, size, MASKED, MATRIX)
        histogram = _add(_keys(score, edges, LEVELS), histogram, histogram_out, KEYS, ON_CHIP)
    if ON_CHIP:
        tl.atomic_add(histogram_out + tl.arange(0, KEYS), histogram.to(tl.int64), sem="relaxed")
    tl.store(highest_out + program, tl.reduce(highest, 0, _larger))


_INTERPRETED = not isinstance(_by_comparing, triton.runtime.JITFunction)


def count(scores: Tensor, question: Question) -> Counts:
    """Count over scores in memory, of any strides, in one pass, exactly at every depth."""
    edges, masks = with_min_scores(question.thresholds, question.min_scores), list(question.masks)
    above, at_least, highest = _count_scores(scores, working(edges), masks)
    width = question.thresholds.shape[1]
    return to_counts(edges, width, above[:, :width], at_least, highest, question.removed)


@torch.library.custom_op(
    "torchrecmetrics::count_scores",
    mutates_args=(),
    schema="(Tensor scores, Tensor edges, Tensor[] masks) -> (Tensor, Tensor, Tensor)",
)
def _count_scores(scores: Tensor, edges: Tensor, masks: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return how many candidates are > and >= each edge, int64 [B, E], and the highest score of each row, [B]."""
    width, dense = edges.shape[1], _Dense.of(scores, masks)
    kernel, options = _choose_kernel(width)
    if kernel is _by_comparing:
        padded = _padded(edges, options["EDGES"])
        above = padded.new_zeros(padded.shape, dtype=torch.int64)
        at_least = torch.zeros_like(above)
        highest = _launch(kernel, dense, (padded, above, at_least), options)
        return above[:, :width].contiguous(), at_least[:, :width].contiguous(), highest
    buckets = 2 ** options["LEVELS"]
    ascending, order = replace_nan(_padded(edges, buckets - 1), torch.inf).sort(dim=1)  # a search needs an order
    histogram = edges.new_zeros((len(edges), buckets, 2), dtype=torch.int64)
    highest = _launch(kernel, dense, (ascending, histogram), options)
    above, at_least = from_buckets(ascending, order, histogram.sum(2), histogram[:, :, 1])
    return above[:, :width].contiguous(), at_least[:, :width].contiguous(), highest


@_count_scores.register_fake
def _(scores: Tensor, edges: Tensor, masks: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    counted = edges.new_empty(edges.shape, dtype=torch.int64)
    return counted, torch.empty_like(counted), edges.new_empty(len(edges))


class _Dense(NamedTuple):
    """Scores in memory, and masks of the items that are not candidates."""

    scores: Tensor
    mask: Tensor | None  # uint8 [I]
    matrix: Tensor | None  # uint8 [B, I]

    @classmethod
    def of(cls, scores: Tensor, masks: list[Tensor]) -> "_Dense":
        """Merge all masks [I] into `mask`, and all masks [B, I] into `matrix`."""
        kinds = ([mask for mask in masks if mask.dim() == dim] for dim in (1, 2))
        merged = (reduce(torch.logical_or, kind).view(torch.uint8) if kind else None for kind in kinds)
        return cls(scores, *merged)


def _launch(kernel: Any, dense: _Dense, edges_and_counts: tuple[Tensor, ...], options: dict[str, int]) -> Tensor:
    """Run a kernel that writes to some of `edges_and_counts`; return the highest score of each row, [B]."""
    scores = dense.scores
    mask, matrix = (scores if tensor is None else tensor for tensor in dense[1:])
    rows, items = scores.shape
    lanes = options["LANES"]
    steps, ranges = _split(items, lanes, rows, _PROGRAMS_PER_MULTIPROCESSOR, scores.device)
    partial = edges_and_counts[0].new_empty((rows, ranges))
    if rows:
        with torch.cuda.device_of(scores):
            kernel[(rows * ranges,)](
                scores, *scores.stride(),
                mask, mask.stride(-1),
                matrix, *matrix.stride(),
                *edges_and_counts, partial,
                items, steps, ranges,
                MASKED=dense.mask is not None, MATRIX=dense.matrix is not None,
                FAR=steps * lanes * max(tensor.stride(-1) for tensor in (scores, mask, matrix)) >= 2**31,
                enable_fp_fusion=_FUSED, **options,
            )
    return partial.amax(1)


def _padded(edges: Tensor, width: int) -> Tensor:
    """Return edges padded to `width` columns with NaN, which no score reaches."""
    return torch.nn.functional.pad(edges, (0, width - edges.shape[1]), value=torch.nan).contiguous()


def _choose_kernel(width: int) -> tuple[Any, dict[str, int]]:
    """Return the kernel for `width` edges per row, with its constants."""
    if width <= _DIRECT:
        edges = _power_of_two(max(1, width))
        lanes = 128 * max(1, min(_COUNTERS_PER_THREAD // edges, 16))
        return _by_comparing, {"EDGES": edges, "LANES": lanes, "num_warps": 4}
    levels = width.bit_length()
    return _by_buckets, {"LEVELS": levels, "LANES": 1024, "ON_CHIP": 2 ** (levels + 1) <= _KEYS, "num_warps": 8}


# ---------------------------------------------------------------------------------------------- scores never in memory


@triton.jit
def _entries(matrix, at, step, start, OPERAND: tl.constexpr, D: tl.constexpr, K: tl.constexpr):
    """Return entries [start, start + K) of the rows of `matrix` at the offsets `at`, 0 beyond entry D: [rows, K]."""
    k = start + tl.arange(0, K)
    entry_at = matrix + at[:, None] + k.to(tl.int64)[None, :] * step
    if D >= K and D % K == 0:
        return tl.load(entry_at).to(OPERAND)
    else:
        return tl.load(entry_at, mask=(k < D)[None, :], other=0.0).to(OPERAND)


@triton.jit
def _products(
    users, user_at, user_step, user_entries,
    items, item_at, item_step,
    bias, item,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, BIASED: tl.constexpr, D: tl.constexpr, K: tl.constexpr,
):
    """Return the scores of some users and some items, [users, items]; `user_entries` are their first K entries.

    Thresholds are computed by this function too: sums in another order would differ in their last bits.
    """
    if D <= K:
        item_entries = _entries(items, item_at, item_step, 0, OPERAND, D, K)
        score = tl.dot(user_entries, tl.trans(item_entries), input_precision=PRECISION)
    else:
        score = tl.zeros([user_at.shape[0], item_at.shape[0]], tl.float32)
        for start in range(0, D, K):
            user_slice = _entries(users, user_at, user_step, start, OPERAND, D, K)
            item_slice = _entries(items, item_at, item_step, start, OPERAND, D, K)
            score = tl.dot(user_slice, tl.trans(item_slice), score, input_precision=PRECISION)
    if BIASED:
        score += tl.load(bias + item)[None, :]
    return score


@triton.jit
def _by_thread(hits, SHARE: tl.constexpr):
    """Sum over each row of products: per thread of the SHARE threads that hold the row, or over all (SHARE = 1)."""
    if SHARE == 1:
        return tl.sum(hits, 1)
    else:  # the threads hold two numbers each, in turn, along the whole row
        return tl.sum(tl.sum(tl.reshape(hits, [hits.shape[0], hits.shape[1] // (2 * SHARE), SHARE, 2]), 3), 1)


@triton.jit
def _tally(
    score, edge, edges, edge_at, first_edge, end_edge, above, at_least,
    COLUMNS: tl.constexpr, SHARE: tl.constexpr,
):
    """Add how many scores are > and >= the edges of each row: `edge` if COLUMNS is 1, else edges loaded here."""
    if COLUMNS == 1:
        above += _by_thread(tl.where(score > edge[:, None], 1.0, 0.0), SHARE)
        at_least += _by_thread(tl.where(score >= edge[:, None], 1.0, 0.0), SHARE)
    else:
        slot = tl.arange(0, COLUMNS)[None, :]
        for column in tl.static_range(COLUMNS):
            if first_edge + column < end_edge:
                edge = tl.load(edges + edge_at + (first_edge + column))
                counts = tl.sum(tl.where(score > edge[:, None], 1.0, 0.0), 1)
                above += tl.where(slot == column, counts[:, None], 0.0)
                counts = tl.sum(tl.where(score >= edge[:, None], 1.0, 0.0), 1)
                at_least += tl.where(slot == column, counts[:, None], 0.0)
    return above, at_least


@triton.jit(do_not_specialize=["width", "num_rows", "num_items", "steps", "blocks"])
def _by_products(
    users, user_row_step, user_step,
    items, item_row_step, item_step,
    bias, order, num_edges,
    edges, width, above_out, at_least_out,
    num_rows, num_items, steps, blocks,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, BIASED: tl.constexpr, D: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, COLUMNS: tl.constexpr, SHARE: tl.constexpr,
):
    """Count M rows, `steps` tiles of items and COLUMNS edges: programs that run together read the same items."""
    program = tl.program_id(0)
    place = (program % blocks).to(tl.int64) * M + tl.arange(0, M)
    start = (program // blocks).to(tl.int64) * steps * N
    stop = tl.minimum(start + steps * N, num_items)
    row = tl.load(order + tl.minimum(place, num_rows - 1))
    first_edge = tl.program_id(1) * COLUMNS
    end_edge = tl.minimum(tl.max(tl.load(num_edges + row), 0), first_edge + COLUMNS)
    if first_edge < end_edge:
        edge_at = row * width
        user_at = row * user_row_step
        user_entries = _entries(users, user_at, user_step, 0, OPERAND, D, K)
        edge = tl.load(edges + edge_at + first_edge)
        if COLUMNS > 1:
            above = tl.zeros([M, COLUMNS], tl.float32)
        else:
            above = tl.zeros([M], tl.float32) if SHARE == 1 else tl.zeros([M, SHARE], tl.float32)
        at_least = above
        lanes = tl.arange(0, N).to(tl.int64)
        full_stop = start + (stop - start) // N * N
        for tile_start in range(start, full_stop, N):
            item = tile_start + lanes
            score = _products(
                users, user_at, user_step, user_entries, items, item * item_row_step, item_step, bias, item,
                OPERAND, PRECISION, BIASED, D, K,
            )
            above, at_least = _tally(score, edge, edges, edge_at, first_edge, end_edge, above, at_least, COLUMNS, SHARE)
        if full_stop < stop:
            item = full_stop + lanes
            loaded = tl.minimum(item, num_items - 1)
            score = _products(
                users, user_at, user_step, user_entries, items, loaded * item_row_step, item_step, bias, loaded,
                OPERAND, PRECISION, BIASED, D, K,
            )
            score = tl.where((item < stop)[None, :], score, float("-inf"))
            above, at_least = _tally(score, edge, edges, edge_at, first_edge, end_edge, above, at_least, COLUMNS, SHARE)
        if COLUMNS == 1:
            counter_at = edge_at + first_edge
            stored = place < num_rows
            if SHARE > 1:
                above = tl.sum(above, 1)
                at_least = tl.sum(at_least, 1)
        else:
            column = first_edge + tl.arange(0, COLUMNS)
            counter_at = edge_at[:, None] + column[None, :]
            stored = (place < num_rows)[:, None] & (column < end_edge)[None, :]
        tl.atomic_add(above_out + counter_at, above.to(tl.int64), mask=stored, sem="relaxed")
        tl.atomic_add(at_least_out + counter_at, at_least.to(tl.int64), mask=stored, sem="relaxed")


@triton.jit(do_not_specialize=["width", "pairs"])
def _diagonal(
    users, user_row_step, user_step,
    items, item_row_step, item_step,
    bias, ids, width, out, pairs,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, BIASED: tl.constexpr, D: tl.constexpr,
    M: tl.constexpr, K: tl.constexpr,
):
    """Compute the scores of M pairs: all M users times all M items, of which the diagonal is stored."""
    lanes = tl.arange(0, M)
    pair = tl.program_id(0).to(tl.int64) * M + lanes
    clamped_pair = tl.minimum(pair, pairs - 1)
    item = tl.load(ids + clamped_pair)
    user_at = clamped_pair // width * user_row_step
    user_entries = _entries(users, user_at, user_step, 0, OPERAND, D, K)
    score = _products(
        users, user_at, user_step, user_entries, items, item * item_row_step, item_step, bias, item,
        OPERAND, PRECISION, BIASED, D, K,
    )
    diagonal = tl.sum(tl.where(lanes[:, None] == lanes[None, :], score, 0.0), 1)
    tl.store(out + pair, diagonal, mask=pair < pairs)


class _TileSizes(NamedTuple):
    """Tile sizes and launch options of the kernels over products."""

    rows: int
    items: int
    entries: int
    """Embedding entries of a tile; `rows` and `items` are its other sizes."""
    operand: torch.dtype
    precision: str
    warps: int
    stages: int
    """Tiles that are loaded ahead: `num_stages` of Triton."""
    share: int
    """Threads that share a row of products, two numbers each in turn, and keep their sums apart. 1 = another layout."""

    @property
    def constants(self) -> dict[str, Any]:
        """Constants and launch options that both kernels over products take."""
        return {
            "OPERAND": _TYPES[self.operand],
            "PRECISION": self.precision,
            "K": self.entries,
            "num_warps": self.warps,
            "num_stages": self.stages,
            "enable_fp_fusion": _FUSED,
        }


def _tile_sizes(
    dtypes: tuple[torch.dtype, torch.dtype], precision: str, width: int, columns: int, capability: tuple[int, int]
) -> _TileSizes:
    """Choose tile sizes for embeddings of these dtypes and this width; `columns` = 0 is for `_diagonal`.

    Entries, operand and precision determine the bits of scores: they do not depend on `columns`.
    """
    operand = torch.float32
    if dtypes[0] == dtypes[1] != torch.float32:
        operand = dtypes[0]
    elif precision == "medium":
        operand = torch.bfloat16
    padded, size = max(16, _power_of_two(width)), operand.itemsize
    rows, items, warps, stages, input_precision = 128, 64, 8, 3, "ieee"
    without_cores = operand == torch.float32 and precision == "highest"
    if without_cores:  # without tensor cores, operands pass through a thread's registers
        entries = 16
        rows = 128 if columns == 1 else 64
    else:
        input_precision = "tf32" if operand == torch.float32 else input_precision
        hopper = capability[0] == 9  # multiplies from shared memory; other GPUs hold users in registers
        # users stay on the chip if they fit; otherwise users and items are loaded in parts of 32 entries
        entries = padded if padded * size <= (512 if hopper else 256) else 32
        if hopper and columns == 1 and entries == padded and padded * size <= 256:
            rows = 256
        elif not hopper and columns > 1 and entries < padded:
            stages = 2  # registers would spill with the addresses of a third tile
    if columns == 0:
        rows, items, warps, stages = 64, 64, 8 if without_cores else 4, 2
    share = 4 if capability[0] == 9 and not without_cores else 1
    return _TileSizes(
        rows=rows,
        items=items,
        entries=entries,
        operand=operand,
        precision=input_precision,
        warps=warps,
        stages=stages,
        share=share,
    )


def pair_scores(products: Products, ids: Tensor) -> Tensor:
    """Return the scores of the items `ids` [B, T], float32 [B, T]: the same bits that `count_products` compares."""
    scores: Tensor = _pair_scores(*products, ids)
    return scores


@torch.library.custom_op(
    "torchrecmetrics::pair_scores",
    mutates_args=(),
    schema="(Tensor users, Tensor items, Tensor? bias, Tensor ids) -> Tensor",
)
def _pair_scores(users: Tensor, items: Tensor, bias: Tensor | None, ids: Tensor) -> Tensor:
    cut = _tile_sizes_for(users, items, 0)
    scores = torch.empty(ids.shape, dtype=torch.float32, device=users.device)
    if ids.numel():
        with torch.cuda.device_of(users):
            _diagonal[(-(-ids.numel() // cut.rows),)](
                users, *users.stride(),
                items, *items.stride(),
                scores if bias is None else bias.contiguous(), ids.contiguous(), ids.shape[1], scores, ids.numel(),
                BIASED=bias is not None, D=users.shape[1], M=cut.rows, **cut.constants,
            )
    return scores


@_pair_scores.register_fake
def _(users: Tensor, items: Tensor, bias: Tensor | None, ids: Tensor) -> Tensor:
    return torch.empty(ids.shape, dtype=torch.float32, device=users.device)


def count_products(products: Products, question: Question) -> Counts:
    """Count over products, exact at every depth; thresholds and removed scores are float32, from `pair_scores`.

    A NaN threshold costs little, in any column. `highest` is 0: the caller guarantees that embeddings and products are
    finite.
    """
    edges = with_min_scores(question.thresholds, question.min_scores)
    above, at_least = _count_products(*products, edges)
    return _product_counts(edges, question.thresholds.shape[1], above, at_least, question.removed)


def _settling_counts(question: Question) -> Tensor | None:
    """Return how many better scores settle a threshold, int64 [B, T] or a scalar; None if counts must be exact.

    The removed items above a threshold are added: they may be among the better scores, and are subtracted later.
    """
    if question.depth is None or question.min_scores:
        return None
    enough = torch.full((), question.depth, dtype=torch.int64, device=question.thresholds.device)
    return enough if question.removed is None else enough + count_above(question.removed, question.thresholds)


def count_products_until(products: Products, question: Question, chunk: int | None = None) -> Counts:
    """Count as `count_products`, `chunk` items at a time, without rows that already have `depth` better candidates.

    One host sync after each chunk finds the rows that are left; chunk None = a sixteenth of the items, or 2^16 if more.
    With minimum scores, or depth None, every row is counted over all items.
    """
    enough = _settling_counts(question)
    if enough is None:
        return count_products(products, question)
    thresholds, removed = question.thresholds, question.removed
    users, items, bias = products
    chunk = chunk or max(_SMALLEST_CHUNK, len(items) // 16)
    above = thresholds.new_zeros(thresholds.shape, dtype=torch.int64)
    at_least = torch.zeros_like(above)
    open_edges = thresholds
    live = torch.arange(len(thresholds), device=thresholds.device)
    for chunk_start in range(0, len(items), chunk):
        columns = slice(chunk_start, chunk_start + chunk)
        chunk_bias = None if bias is None else bias[columns]
        chunk_counts = _count_products(users[live], items[columns], chunk_bias, open_edges[live])
        above[live] += chunk_counts[0]
        at_least[live] += chunk_counts[1]
        open_edges = open_edges.masked_fill(above >= enough, torch.nan)
        live = (~open_edges.isnan()).any(1).nonzero()[:, 0]
        if not len(live):
            break
    return _product_counts(thresholds, thresholds.shape[1], above, at_least, removed)


@torch.library.custom_op(
    "torchrecmetrics::count_products",
    mutates_args=(),
    schema="(Tensor users, Tensor items, Tensor? bias, Tensor edges) -> (Tensor, Tensor)",
)
def _count_products(users: Tensor, items: Tensor, bias: Tensor | None, edges: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many products are > and >= each edge, int64 [B, E]."""
    rows, width = edges.shape
    columns = 1 if width == 1 else _COLUMNS
    cut = _tile_sizes_for(users, items, columns)
    # NaN edges last, and rows of similar numbers of edges together: a block costs as much as its longest row
    ascending, slot = edges.contiguous().sort(dim=1)
    num_edges = (~edges.isnan()).sum(1)
    order = num_edges.argsort(descending=True, stable=True)
    above = torch.zeros_like(slot)
    at_least = torch.zeros_like(slot)
    if edges.numel() and len(items):
        blocks, groups = -(-rows // cut.rows), -(-width // columns)
        if groups > _MOST_GROUPS:
            most = f"at most {_MOST_GROUPS * columns} of a row"
            raise ValueError(
                f"Triton's kernels count products at {most}, got {width}; kernels='eager' counts any number"
            )
        steps, ranges = _split(len(items), cut.items, blocks * groups, _RESIDENT_PRODUCTS, users.device)
        with torch.cuda.device_of(users):
            _by_products[(blocks * ranges, groups)](
                users, *users.stride(),
                items, *items.stride(),
                ascending if bias is None else bias.contiguous(), order, num_edges,
                ascending, width, above, at_least,
                rows, len(items), steps, blocks,
                BIASED=bias is not None, D=users.shape[1], M=cut.rows, N=cut.items,
                COLUMNS=columns, SHARE=cut.share, **cut.constants,
            )
    return torch.empty_like(above).scatter_(1, slot, above), torch.empty_like(above).scatter_(1, slot, at_least)


@_count_products.register_fake
def _(users: Tensor, items: Tensor, bias: Tensor | None, edges: Tensor) -> tuple[Tensor, Tensor]:
    counted = edges.new_empty(edges.shape, dtype=torch.int64)
    return counted, torch.empty_like(counted)


def _tile_sizes_for(users: Tensor, items: Tensor, columns: int) -> _TileSizes:
    on_cuda = users.device.type == "cuda"
    capability = torch.cuda.get_device_capability(users.device) if on_cuda else _INTERPRETED_AS
    cut = _tile_sizes((users.dtype, items.dtype), _float32_precision(), users.shape[1], columns, capability)
    if _INTERPRETED and cut.operand == torch.bfloat16:
        raise RuntimeError("Triton's interpreter gives wrong products of bfloat16")
    return cut


def _float32_precision() -> str:
    """Return PyTorch's precision of float32 products: "highest", "high" or "medium"."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # the precision was set for CUDA alone, this function asks for all devices
        return "high" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "highest"


def _product_counts(edges: Tensor, width: int, above: Tensor, at_least: Tensor, removed: Tensor | None) -> Counts:
    return to_counts(edges, width, above[:, :width], at_least, edges.new_zeros(len(edges)), removed)


# ----------------------------------------------------------------------------------------- devices, numbers of programs


def unavailable(device: torch.device) -> str | None:
    """Return the reason why these kernels cannot run on a device; None if they can."""
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


def _split(items: int, tile: int, rows: int, resident: int, device: torch.device) -> tuple[int, int]:
    """Return the tiles per program and the programs per row of tiles; `rows` of them together fill the device."""
    programs = 4
    if device.type == "cuda":
        programs = _WAVES * resident * torch.cuda.get_device_properties(device).multi_processor_count
    tiles = -(-items // tile)
    steps = -(-tiles // min(tiles, -(-programs // max(1, rows))))
    steps = min(steps, 2**23 // tile)  # counts are floats
    return steps, -(-tiles // steps)
