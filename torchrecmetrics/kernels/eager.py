"""Count better and equal scores in plain PyTorch: compare, bucket or select.

`compare` is the definition: rank = 1 + (scores > own).sum(-1). `bucket` and `select` give the same counts faster:
`bucket` for many thresholds over the whole list, `select` if only the first `depth` ranks matter. Off the CPU none of
the three makes a host sync.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import (
    TILE_NUMBERS,
    TILE_NUMBERS_CPU,
    can_sync,
    float_dtype,
    search,
    take_top,
    tiles,
    working,
    working_dtype,
)
from torchrecmetrics.kernels import blocks
from torchrecmetrics.kernels.contract import Counts, Question
from torchrecmetrics.kernels.thresholds import (
    count_removed,
    from_buckets,
    mask_,
    with_min_scores,
    without_nan,
)

TILE_SCORES_CPU = 2**20
"""Scores copied or compared at once on the CPU: they stay in its cache."""
TILE_SCORES = 2**24
"""Scores copied or compared at once on other devices: a bound on memory."""
BUCKET_THRESHOLDS_CPU, BUCKET_THRESHOLDS = 80, 16
"""Thresholds per row from which a binary search per score costs less than a comparison per score and threshold."""
SELECT_COMPARISONS_CPU = 2**14
"""Comparisons per row on the CPU from which selecting the best scores costs less."""
SELECT_COMPARISONS = 2**24
"""Comparisons on other devices, of all rows, from which selecting the best scores costs less."""
BLOCK_SCORES = 2**24
"""Scores on other devices from which fewer reads by block maxima are worth their further calls."""


def count(scores: Tensor, question: Question) -> Counts:
    """Return the counts that `contract` defines."""
    strategy = choose_strategy(scores, question)
    # the CPU reads float32 and float64 rows of unit stride fast without a copy
    readable = scores.device.type != "cpu" or (scores.itemsize >= 4 and scores.stride(1) == 1)
    if readable and not question.masks:
        return strategy(scores, question)
    tile_counts = [strategy(tile, tile_question) for tile, tile_question in _copies(scores, question)]
    better = torch.cat([counts.better for counts in tile_counts])
    equal = torch.cat([counts.equal for counts in tile_counts])
    reached = [counts.at_least for counts in tile_counts if counts.at_least is not None]
    at_least = torch.cat(reached) if reached else None
    highest = working(scores.amax(1))  # masked items included
    return Counts(better=better, equal=equal, at_least=at_least, highest=highest)


def compare(scores: Tensor, question: Question) -> Counts:
    """Compare every score with every threshold and minimum score."""
    thresholds = working(question.thresholds)
    most = TILE_NUMBERS_CPU if can_sync(scores) else TILE_NUMBERS
    if scores.numel() * thresholds.shape[1] <= most:
        better, equal = _compare_tile(scores, thresholds)
    else:
        better = torch.zeros(thresholds.shape, dtype=float_dtype(scores.device), device=scores.device)
        equal = torch.zeros_like(better)
        for (rows, _), tile in tiles(scores, max(1, thresholds.shape[1])):
            above, same = _compare_tile(tile, thresholds[rows])
            better[rows] += above
            equal[rows] += same
    highest = working(scores.amax(1))
    if not question.min_scores and question.removed is None:
        return Counts(better=better, equal=equal, at_least=None, highest=highest)
    return _finished(scores, question, better, equal, highest)


def _compare_tile(scores: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor]:
    """Return the numbers of scores > and == each threshold of the row, float [B, T]."""
    values, edges, dtype = scores[:, None], thresholds[:, :, None], float_dtype(scores.device)
    if not can_sync(scores):
        return (values > edges).sum(2, dtype=dtype), (values == edges).sum(2, dtype=dtype)
    # the CPU sums floats several times faster than bools, exactly up to 2^24
    flags = torch.empty(thresholds.shape + scores.shape[1:], dtype=torch.float32, device=scores.device)
    better = torch.gt(values, edges, out=flags).sum(2).to(dtype)
    return better, torch.eq(values, edges, out=flags).sum(2).to(dtype)


def _finished(scores: Tensor, question: Question, better: Tensor, equal: Tensor, highest: Tensor) -> Counts:
    """Return the counts less those of the removed items, and the counts of the minimum scores."""
    removed, at_least = question.removed, None
    if question.min_scores:
        dtype = float_dtype(scores.device)
        at_least = torch.stack([(scores >= limit).sum(1, dtype=dtype) for limit in question.min_scores], 1)
    if removed is not None:
        edges = with_min_scores(working(question.thresholds), question.min_scores)
        above, reached = count_removed(removed, edges)
        width = better.shape[1]
        better, equal = better - above[:, :width], equal - (reached - above)[:, :width]
        at_least = None if at_least is None else at_least - reached[:, width:]
    return Counts(better=better, equal=equal, at_least=at_least, highest=highest)


def bucket(scores: Tensor, question: Question) -> Counts:
    """Sort the thresholds, find the bucket of each score between them by binary search, and count scores per bucket."""
    edge, order = without_nan(working(question.thresholds), torch.inf).sort(dim=1)  # an order, which NaN lacks
    reaching = edge.new_zeros((len(edge), edge.shape[1] + 1), dtype=torch.int64)
    same = torch.zeros_like(reaching)
    for (rows, _), tile in tiles(scores, 1):
        tile = without_nan(working(tile), -torch.inf)
        place = search(edge[rows], tile, right=True)
        met = edge[rows].gather(1, (place - 1).clamp(min=0)) == tile
        zeros = torch.zeros_like(same[rows], dtype=torch.int32)  # scatter_add is several times faster than in int64
        reaching[rows] += zeros.scatter_add(1, place, torch.ones_like(place, dtype=torch.int32))
        same[rows] += zeros.scatter_add(1, place, met.to(torch.int32))
    above, at_least = from_buckets(edge, order, reaching, same)
    dtype = float_dtype(scores.device)
    return _finished(scores, question, above.to(dtype), (at_least - above).to(dtype), working(scores.amax(1)))


def select(scores: Tensor, question: Question) -> Counts:
    """Take the best scores of each row, one more than can matter, and search for the thresholds among them."""
    depth, removed, nan_is_rejected = question.depth, question.removed, question.nan_is_rejected
    thresholds, items, dtype = working(question.thresholds), scores.shape[1], float_dtype(scores.device)
    assert depth is not None
    number = min(items, depth + 1 + (0 if removed is None else removed.shape[1]))
    candidates = scores
    if not nan_is_rejected and not can_sync(scores):
        candidates = without_nan(scores, -torch.inf)
    best = working(_best(candidates, number))
    highest = best[:, -1] if candidates is scores else scores.amax(1)
    if not nan_is_rejected and can_sync(scores) and highest.isnan().any():
        candidates = without_nan(scores, -torch.inf)
        best = _best(candidates, number)
    # numbers of the best scores <= and < the threshold
    below, under = search(best, thresholds, right=True), search(best, thresholds)
    equal = below - under
    if number < items:
        equal = _count_last(candidates, thresholds, best[:, :1], below, equal)
    return _finished(scores, question, number - below.to(dtype), equal.to(dtype), highest)


STRATEGIES = (compare, bucket, select)


def choose_strategy(scores: Tensor, question: Question) -> Callable[[Tensor, Question], Counts]:
    """Return the fastest strategy for these shapes."""
    (rows, items), width, depth = scores.shape, question.thresholds.shape[1], question.depth
    num_removed = 0 if question.removed is None else question.removed.shape[1]
    on_cpu = scores.device.type == "cpu"
    pays = width * items >= SELECT_COMPARISONS_CPU if on_cpu else rows * width * items >= SELECT_COMPARISONS
    if pays and rows and depth is not None and depth + num_removed + 1 < items:
        return select
    return compare if width < (BUCKET_THRESHOLDS_CPU if on_cpu else BUCKET_THRESHOLDS) else bucket


def _best(scores: Tensor, number: int) -> Tensor:
    """Return the `number` best scores of each row, ascending, [B, number]; NaN last."""
    if (
        blocks.pays(scores.shape[1], number)
        and scores.stride(1) == 1
        and (can_sync(scores) or scores.numel() >= BLOCK_SCORES)
    ):
        best_blocks = blocks.maxima(scores).topk(number, dim=1, sorted=False).indices
        scores = blocks.take(scores, best_blocks)
    return take_top(scores, number)


def _count_last(scores: Tensor, thresholds: Tensor, lowest: Tensor, below: Tensor, equal: Tensor) -> Tensor:
    """Return `equal`, with all scores counted for thresholds equal to `lowest`, that of the best scores.

    `below` are the numbers of the best scores <= the thresholds.
    """
    is_lowest = thresholds == lowest
    if not can_sync(scores):
        return torch.where(is_lowest, (scores == lowest).sum(1, keepdim=True), equal)
    is_lowest &= below > 1  # if it occurs once, its rank is beyond `depth`
    rows = is_lowest.any(1).nonzero()[:, 0]
    if not len(rows):
        return equal
    counted = torch.cat([(scores[chunk] == lowest[chunk]).sum(1, keepdim=True) for chunk in torch.split(rows, 64)])
    return equal.index_copy(0, rows, torch.where(is_lowest[rows], counted, equal[rows]))


def _copies(scores: Tensor, question: Question) -> Iterator[tuple[Tensor, Question]]:
    """Yield copies of some rows at a time in a readable layout, -inf for masked items, and the question about them."""
    cpu = scores.device.type == "cpu"
    tall = max(1, (TILE_SCORES_CPU if cpu else TILE_SCORES) // scores.shape[1])
    for start in range(0, max(1, len(scores)), tall):
        rows = slice(start, start + tall)
        tile_question = question.rows(rows)
        shape = tile_question.thresholds.shape[0], scores.shape[1]
        tile = torch.empty(shape, dtype=working_dtype(scores), device=scores.device)
        yield mask_(tile.copy_(scores[rows]), tile_question.masks), tile_question
