"""Counting in Triton, on CUDA: each score is read once, or never written at all; the answers are those of `eager`.

Nothing in here waits for the device but `count_products_until`. Counts are sums of integers, or of floats that hold
whole numbers below 2^24, so the order in which programs finish changes nothing.
"""

# Kernels are typed by what they are launched with; mypy reads all the rest.
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from torchrecmetrics.inputs import search
from torchrecmetrics.kernels.eager import Counts, _counts, _with_floors, _without_nan, _working, _working_dtype

# Edges a row up to which every score is compared with all of them; beyond, it is searched for among them.
_DIRECT = 32
# Counters a thread holds for each comparison: edges times scores.
_HELD = 32
# Bins up to which a tile's histogram is made on the chip, at a cost that grows with them; beyond, by atomics.
_BINS = 1024
# Programs for each multiprocessor: enough that the last ones to finish do not matter.
_WAVES = 8


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
    """The highest of all lanes; NaN if one is NaN, which tl.max would pass over."""
    some_nan = tl.max((highest != highest).to(tl.int32), 0) != 0
    return tl.where(some_nan, float("nan"), tl.max(tl.where(highest == highest, highest, float("-inf")), 0))


@triton.jit
def _compare(score, edge, above, at_least):
    """Add to the counts [edges, lanes]: as floats, a comparison and its sum are one instruction each."""
    above += tl.where(score[None, :] > edge[:, None], 1.0, 0.0)
    at_least += tl.where(score[None, :] >= edge[:, None], 1.0, 0.0)
    return above, at_least


@triton.jit
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
    span,
    ranges,
    MASKED: tl.constexpr,
    MATRIX: tl.constexpr,
    EDGES: tl.constexpr,
    LANES: tl.constexpr,
):
    """One row and `span` items: every score with every edge."""
    program = tl.program_id(0)
    row = (program // ranges).to(tl.int64)
    start = (program % ranges).to(tl.int64) * span
    stop = tl.minimum(start + span, items)
    whole = start + (stop - start) // LANES * LANES
    lanes = tl.arange(0, LANES)
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


@triton.jit
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
    span,
    ranges,
    MASKED: tl.constexpr,
    MATRIX: tl.constexpr,
    LEVELS: tl.constexpr,
    LANES: tl.constexpr,
    ON_CHIP: tl.constexpr,
):
    """One row and `span` items: how many scores reach just so many of its 2^LEVELS - 1 ascending edges."""
    BINS: tl.constexpr = 2**LEVELS
    program = tl.program_id(0)
    row = (program // ranges).to(tl.int64)
    start = (program % ranges).to(tl.int64) * span
    stop = tl.minimum(start + span, items)
    lanes = tl.arange(0, LANES)
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


def count(
    scores: Tensor,
    thresholds: Tensor,
    depth: int | None,
    floors: Sequence[float],
    masks: Sequence[Tensor],
    removed: Tensor | None,
) -> Counts:
    """Count over scores in memory, whatever their strides: one read, exact at every depth."""
    edges = _with_floors(thresholds, floors)
    above, at_least, highest = _count_scores(scores, _working(edges), list(masks))
    asked = thresholds.shape[1]
    return _counts(edges, asked, above[:, :asked], at_least, highest, removed)


@torch.library.custom_op(
    "torchrecmetrics::count_scores",
    mutates_args=(),
    schema="(Tensor scores, Tensor edges, Tensor[] masks) -> (Tensor, Tensor, Tensor)",
)
def _count_scores(scores: Tensor, edges: Tensor, masks: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """How many candidates are > and >= each edge, int64 [B, E], and each row's highest score."""
    rows, items = scores.shape
    width = edges.shape[1]
    direct = width <= _DIRECT
    if direct:
        slots = _power_of_two(max(1, width))
        lanes = 128 * max(1, min(_HELD // slots, 16))
        edges = torch.nn.functional.pad(edges, (0, slots - width), value=torch.nan)
        first = edges.new_zeros(edges.shape, dtype=torch.int64)
        options = {"EDGES": slots}
    else:
        levels = width.bit_length()
        lanes = 1024
        order = edges
        edges = torch.nn.functional.pad(edges, (0, 2**levels - 1 - width), value=torch.nan)
        edges, order = _without_nan(edges, torch.inf).sort(dim=1)  # a binary search cannot pass NaN
        first = edges.new_zeros((rows, 2**levels), dtype=torch.int64)
        options = {"LEVELS": levels, "ON_CHIP": 2**levels <= _BINS}
    second = torch.zeros_like(first)
    span, ranges = _split(items, lanes, rows, scores.device)
    partial = edges.new_empty((rows, ranges))
    shared = [mask for mask in masks if mask.dim() == 1]
    own = [mask for mask in masks if mask.dim() == 2]
    mask = reduce(torch.logical_or, shared).view(torch.uint8) if shared else scores
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
                span,
                ranges,
                MASKED=bool(shared),
                MATRIX=bool(own),
                LANES=lanes,
                **options,
            )
    highest = partial.amax(1)
    if direct:
        return first[:, :width].contiguous(), second[:, :width].contiguous(), highest
    reached = first[:, 1:].flip(1).cumsum(1).flip(1)
    # equals of an edge lie in the bucket behind the last edge like it
    equal = second.gather(1, search(edges, edges, right=True))
    at_least = torch.empty_like(reached).scatter_(1, order, reached)
    above = at_least - torch.empty_like(equal).scatter_(1, order, equal)
    return above[:, :width].contiguous(), at_least[:, :width].contiguous(), highest


@_count_scores.register_fake
def _(scores: Tensor, edges: Tensor, masks: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    counted = edges.new_empty(edges.shape, dtype=torch.int64)
    return counted, torch.empty_like(counted), edges.new_empty(len(edges))


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _split(items: int, tile: int, others: int, device: torch.device) -> tuple[int, int]:
    """Items a program and programs over them, so that with `others` beside them they fill the device."""
    wanted = 4
    if device.type == "cuda":
        wanted = _WAVES * torch.cuda.get_device_properties(device).multi_processor_count
    tiles = -(-items // tile)
    each = -(-tiles // min(tiles, -(-wanted // max(1, others))))
    return each * tile, -(-tiles // each)
