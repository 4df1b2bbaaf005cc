"""Count the scores above each threshold, and those that reach it, in plain PyTorch.

`compare_all` is the definition: rank = 1 + (scores > own).sum(-1). The other strategies give the same counts faster. On
the CPU the first row that applies is taken; times are of one thread, in ns per score, for T thresholds per row:

| when | strategy | time | reason |
|---|---|---|---|
| T x items < 2^12, or rows x T x items < 2^18 | `compare_all` | 0.4 to 0.9 T | calls and small sorts would cost more |
| a depth, and items >= max(8 x depth, 256) | `limit` | 0.2 to 1.5 | one read; few scores reach the limit |
| T < 16 | `compare_all` | 0.4 to 0.9 T | no sort is that fast |
| else | `sort` | 4 to 21 | one sort, whatever T |

On other devices, and while traced, no value may be read: `select` is for many comparisons down to a depth, `bucket` for
many thresholds over the whole list, and `compare_all` for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import (
    TILE_NUMBERS,
    can_sync,
    float_dtype,
    search,
    sort_rows,
    tiles,
    working,
    working_dtype,
)
from torchrecmetrics.kernels import blocks
from torchrecmetrics.kernels.contract import (
    Counts,
    Question,
    from_buckets,
    mask_,
    replace_nan,
    to_counts,
    with_min_scores,
)

TILE_SCORES_CPU = 2**20
"""Scores counted at once on the CPU, in a copy where one is needed: they stay in its cache."""
LONG_ROW_CPU, TILE_LONG_ROWS_CPU = 2**15, 2**22
"""From this many items per row, scores are counted in place, so many at once: few are read again, and calls cost
more."""
TILE_SCORES = 2**24
"""Scores copied at once on other devices: a bound on memory."""
TILE_FLAGS_CPU = 2**19
"""Comparisons whose results are held at once on the CPU: they stay in its cache."""
LIMIT_COMPARISONS_CPU, LIMIT_ROW_COMPARISONS_CPU = 2**18, 2**12
"""Comparisons on the CPU, of all rows and of each row, from which `limit` is faster."""
SORT_THRESHOLDS_CPU = 16
"""Thresholds per row on the CPU from which sorting the scores is faster than comparing them."""
SELECT_COMPARISONS = 2**24
"""Comparisons on other devices, of all rows, from which selecting the best scores is faster."""
BUCKET_THRESHOLDS = 16
"""Thresholds per row on other devices from which a binary search per score is faster than comparisons."""
BLOCK_SCORES = 2**24
"""Scores on other devices from which the reads saved by block maxima outweigh the additional calls."""

Tally: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Numbers of scores > and >= each threshold, [B, T], and the highest score, [B], NaN if the row holds NaN."""


def count(scores: Tensor, question: Question) -> Counts:
    """Return the counts that `contract` defines."""
    removed, min_scores, depth = question.removed, question.min_scores, question.depth
    if removed is not None and depth is not None:
        depth += removed.shape[1]  # removed items may be the best
    question = question._replace(thresholds=working(question.thresholds), depth=depth)
    edges, strategy = question.thresholds, choose_strategy(scores, question)
    tallies, reached = [], []
    for tile, tile_question in _tiles(scores, question):
        tallies.append(strategy(tile, tile_question))
        if min_scores:
            reached += _count_comparisons(
                tile, with_min_scores(tile_question.thresholds[:, :0], min_scores), [torch.ge]
            )
    above, at_least, highest = tallies[0] if len(tallies) == 1 else map(torch.cat, zip(*tallies, strict=True))
    if question.masks:
        highest = working(scores.amax(1))  # masked items included
    if min_scores:
        edges = with_min_scores(edges, min_scores)
        at_least = torch.cat([at_least, torch.cat(reached)], 1)
    return to_counts(edges, question.thresholds.shape[1], above, at_least, highest, removed)


def compare_all(scores: Tensor, question: Question) -> Tally:
    """Compare every score with every threshold."""
    above, at_least = _count_comparisons(scores, question.thresholds)
    return above, at_least, working(scores.amax(1))


def _count_comparisons(
    scores: Tensor, edges: Tensor, operators: Sequence[Callable[..., Tensor]] = (torch.gt, torch.ge)
) -> list[Tensor]:
    """Return for each operator the number of the row's scores with `operator(score, edge)`, float [B, E]."""
    width, dtype = max(1, edges.shape[1]), float_dtype(scores.device)
    most = TILE_FLAGS_CPU if can_sync(scores) else TILE_NUMBERS
    if scores.numel() > max(1, most // width):
        numbers = torch.zeros((len(operators), *edges.shape), dtype=dtype, device=scores.device)
        for (rows, _), tile in tiles(scores, width, most):
            numbers[:, rows] += torch.stack(_count_comparisons(tile, edges[rows], operators))
        return list(numbers)
    values, limits = scores[:, None], edges[:, :, None]
    if not can_sync(scores):
        return [operator(values, limits).sum(2, dtype=dtype) for operator in operators]
    # the CPU sums floats several times faster than bools, exactly up to 2^24
    flags = torch.empty(edges.shape + scores.shape[1:], dtype=torch.float32, device=scores.device)
    return [operator(values, limits, out=flags).sum(2).to(dtype) for operator in operators]


def limit(scores: Tensor, question: Question) -> Tally:
    """Compare only thresholds and scores that may be among the `depth` best.

    The `depth` largest maxima of groups of items are scores of `depth` items, so any threshold below all of them has at
    least `depth` better scores.
    """
    thresholds, depth = question.thresholds, question.depth
    assert depth is not None
    heads = blocks.heads(scores, depth)
    maxima = sort_rows(blocks.group_maxima(heads, depth))
    highest = maxima[:, -1]
    if not question.nan_is_rejected and highest.isnan().any():
        return *limit(replace_nan(scores, -torch.inf), question)[:2], highest
    lowest = maxima[:, -depth, None].clamp(min=torch.finfo(maxima.dtype).min)  # -inf is not a candidate
    above = thresholds.new_full(thresholds.shape, depth, dtype=torch.float64)
    at_least = above + 1
    reaching = (thresholds >= lowest).any(1).nonzero()[:, 0]
    if len(reaching):
        # a few rows are copied, many are read again in place
        rows = reaching if len(reaching) * 4 < len(scores) else slice(None)
        tile = scores[rows]
        best = blocks.reaching(tile, tile if heads is scores else heads[rows], lowest[rows])
        if best is None:  # many scores are equal
            return select(scores, question)
        above[rows], at_least[rows] = _search(sort_rows(best), thresholds[rows])
    return above, at_least, highest


def sort(scores: Tensor, question: Question) -> Tally:
    """Sort the scores and search for the thresholds among them."""
    numbers = question.thresholds.new_zeros((2, *question.thresholds.shape), dtype=float_dtype(scores.device))
    for (rows, _), tile in tiles(scores, 1, TILE_FLAGS_CPU):
        numbers[:, rows] += _search(sort_rows(replace_nan(tile, -torch.inf)), question.thresholds[rows])
    above, at_least = numbers
    return above, at_least, working(scores.amax(1))


def _search(ascending: Tensor, thresholds: Tensor) -> Tensor:
    """Return the numbers of ascending scores > and >= each threshold of the row, float [2, B, T]."""
    lower = torch.stack([search(ascending, thresholds, right=True), search(ascending, thresholds)])
    return ascending.shape[1] - lower.to(float_dtype(ascending.device))


def bucket(scores: Tensor, question: Question) -> Tally:
    """Sort the thresholds, find the bucket of each score between them by binary search, and count scores per bucket."""
    edge, order = replace_nan(question.thresholds, torch.inf).sort(dim=1)  # NaN has no order
    reaching = edge.new_zeros((len(edge), edge.shape[1] + 1), dtype=torch.int64)
    same = torch.zeros_like(reaching)
    for (rows, _), tile in tiles(scores, 1):
        tile = replace_nan(working(tile), -torch.inf)
        place = search(edge[rows], tile, right=True)
        met = edge[rows].gather(1, (place - 1).clamp(min=0)) == tile
        zeros = torch.zeros_like(same[rows], dtype=torch.int32)  # scatter_add is several times faster than in int64
        reaching[rows] += zeros.scatter_add(1, place, torch.ones_like(place, dtype=torch.int32))
        same[rows] += zeros.scatter_add(1, place, met.to(torch.int32))
    return *from_buckets(edge, order, reaching, same), working(scores.amax(1))


def select(scores: Tensor, question: Question) -> Tally:
    """Take the best scores of each row, one more than can matter, and search for the thresholds among them."""
    thresholds, items, depth = question.thresholds, scores.shape[1], question.depth
    assert depth is not None
    number = min(items, depth + 1)
    candidates = best = scores if question.nan_is_rejected else replace_nan(scores, -torch.inf)
    if blocks.pays(items, number) and scores.stride(1) == 1 and scores.numel() >= BLOCK_SCORES:
        best = blocks.take_blocks(best, blocks.maxima(best).topk(number, dim=1, sorted=False).indices)
    best = working(best.topk(number, dim=1).values.flip(1))  # ascending, NaN last
    highest = best[:, -1] if question.nan_is_rejected else working(scores.amax(1))
    above, at_least = _search(best, thresholds)
    if number < items:  # further scores may equal the lowest
        lowest = best[:, :1]
        at_least = at_least.where(thresholds != lowest, (candidates >= lowest).sum(1, keepdim=True))
    return above, at_least, highest


def choose_strategy(scores: Tensor, question: Question) -> Callable[[Tensor, Question], Tally]:
    """Return the fastest strategy for these shapes; the depth counts removed scores too."""
    (rows, items), width, depth = scores.shape, question.thresholds.shape[1], question.depth
    if not can_sync(scores):
        if rows * width * items >= SELECT_COMPARISONS and depth is not None and depth + 1 < items:
            return select
        return compare_all if width < BUCKET_THRESHOLDS else bucket
    if width * items < LIMIT_ROW_COMPARISONS_CPU or rows * width * items < LIMIT_COMPARISONS_CPU:
        return compare_all
    if depth is not None and items >= 4 * blocks.num_groups(depth):
        return limit
    return compare_all if width < SORT_THRESHOLDS_CPU else sort


def _tiles(scores: Tensor, question: Question) -> Iterator[tuple[Tensor, Question]]:
    """Yield the scores of some rows at a time, -inf for masked items, and the question about these rows."""
    on_cpu, items = scores.device.type == "cpu", scores.shape[1]
    # the CPU reads float32 and float64 rows of unit stride fast without a copy
    is_copied = bool(question.masks) or (on_cpu and (scores.itemsize < 4 or scores.stride(1) != 1))
    most = TILE_SCORES_CPU if on_cpu else TILE_SCORES
    tall = max(1, (most if is_copied or items < LONG_ROW_CPU else TILE_LONG_ROWS_CPU) // items)
    if not is_copied and (len(scores) <= tall or not can_sync(scores)):
        yield scores, question
        return
    for start in range(0, max(1, len(scores)), tall):
        rows = slice(start, start + tall)
        tile, tile_question = scores[rows], question.rows(rows)
        if is_copied:
            copy = torch.empty(tile.shape, dtype=working_dtype(scores), device=scores.device)
            tile = mask_(copy.copy_(tile), tile_question.masks)
        yield tile, tile_question
