"""Count better and equal scores in plain PyTorch: compare, bucket or select.

`compare` is the definition: rank = 1 + (scores > own).sum(-1). `bucket` and `select` give the same counts faster:
`bucket` for many thresholds over the whole list, `select` if only the first `depth` ranks matter. Off the CPU none of
the three makes a host sync.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from torchrecmetrics.arrays import TILE_NUMBERS_CPU, can_sync, count_above, count_at_least, search, take_top, tiles
from torchrecmetrics.kernels import blocks
from torchrecmetrics.kernels.contract import Counts, Question
from torchrecmetrics.kernels.thresholds import (
    from_buckets,
    mask_,
    subtract_removed,
    to_counts,
    with_min_scores,
    without_nan,
    working,
    working_dtype,
)

TILE_SCORES_CPU = 2**20
"""Scores copied or compared at once on the CPU: they stay in its cache."""
TILE_SCORES = 2**24
"""Scores copied or compared at once on other devices: a bound on memory."""
BUCKET_THRESHOLDS = 80
"""Thresholds per row from which a binary search per score costs less than a comparison per score and threshold."""
SELECT_COMPARISONS = 2**14
"""Comparisons per row on the CPU from which selecting the best scores costs less."""
SELECT_THRESHOLDS = 3
"""Thresholds per row from which selecting the best scores moves fewer bytes on other devices."""


def count(scores: Tensor, question: Question) -> Counts:
    """Return the counts that `contract` defines."""
    strategy = choose_strategy(scores, question)
    if _is_readable(scores) and not question.masks:
        return strategy(scores, question)
    found = [strategy(tile, part) for tile, part in _copies(scores, question)]
    better, equal = torch.cat([part.better for part in found]), torch.cat([part.equal for part in found])
    reached = [part.at_least for part in found if part.at_least is not None]
    at_least = torch.cat(reached) if reached else None
    return Counts(better, equal, at_least, working(scores.amax(1)))  # `highest` includes masked items


def compare(scores: Tensor, question: Question) -> Counts:
    """Compare every score with every threshold and minimum score."""
    thresholds = working(question.thresholds)
    edges = with_min_scores(thresholds, question.min_scores)
    width = thresholds.shape[1]
    above = torch.zeros_like(thresholds, dtype=torch.int64)
    at_least = torch.zeros_like(edges, dtype=torch.int64)
    buffer = None  # the CPU sums floats several times faster than bools, exactly up to 2^24
    if can_sync(scores):
        size = min(scores.numel() * edges.shape[1], TILE_NUMBERS_CPU)
        buffer = torch.empty(size, dtype=torch.float32, device=scores.device)
    for (rows, _), tile in tiles(scores, max(1, edges.shape[1])):
        above[rows].add_(_number(torch.gt, tile, edges[rows, :width], buffer))
        at_least[rows].add_(_number(torch.ge, tile, edges[rows], buffer))
    return to_counts(edges, width, above, at_least, working(scores.amax(1)), question.removed)


def bucket(scores: Tensor, question: Question) -> Counts:
    """Sort the thresholds, find the bucket of each score between them by binary search, and count scores per bucket."""
    width = question.thresholds.shape[1]
    edges = with_min_scores(working(question.thresholds), question.min_scores)
    edge, order = without_nan(edges, torch.inf).sort(dim=1)  # binary search needs an order, which NaN lacks
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
    return to_counts(edges, width, above[:, :width], at_least, working(scores.amax(1)), question.removed)


def select(scores: Tensor, question: Question) -> Counts:
    """Take the best scores of each row, one more than can matter, and search for the thresholds among them."""
    thresholds, depth, _, _, removed, nan_is_rejected = question
    thresholds, items = working(thresholds), scores.shape[1]
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
    above, at_least = count_above(best, thresholds), count_at_least(best, thresholds)
    if number < items:
        at_least = _count_last(candidates, thresholds, best[:, :1], above, at_least)
    above, at_least = subtract_removed(removed, thresholds, above, at_least)
    min_scores = None
    if question.min_scores:
        min_scores = compare(scores, question._replace(thresholds=thresholds[:, :0])).at_least
    return Counts(above, at_least - above, min_scores, highest)


STRATEGIES = (compare, bucket, select)


def choose_strategy(scores: Tensor, question: Question) -> Callable[[Tensor, Question], Counts]:
    """Return the fastest strategy for these shapes."""
    (rows, items), width, depth = scores.shape, question.thresholds.shape[1], question.depth
    taken = 0 if question.removed is None else question.removed.shape[1]
    if rows and depth is not None and depth + taken + 1 < items:
        pays = width * items >= SELECT_COMPARISONS if scores.device.type == "cpu" else width >= SELECT_THRESHOLDS
        if pays:
            return select
    return compare if width < BUCKET_THRESHOLDS else bucket


def _best(scores: Tensor, number: int) -> Tensor:
    """Return the `number` best scores of each row, ascending, [B, number]; NaN last."""
    if can_sync(scores) and blocks.pays(scores.shape[1], number):
        chosen = blocks.maxima(scores).topk(number, dim=1, sorted=False).indices
        scores = blocks.take(scores, chosen)
    return take_top(scores, number)


def _count_last(scores: Tensor, thresholds: Tensor, last: Tensor, above: Tensor, at_least: Tensor) -> Tensor:
    """Return `at_least`, with all scores counted for thresholds equal to `last`, the lowest of the best scores."""
    equal = thresholds == last
    if not can_sync(scores):
        return torch.where(equal, (scores >= last).sum(1, keepdim=True), at_least)
    equal &= at_least - above > 1  # if it occurs once, its rank is beyond `depth`
    rows = equal.any(1).nonzero()[:, 0]
    if not len(rows):
        return at_least
    counted = torch.cat([(scores[chunk] >= last[chunk]).sum(1, keepdim=True) for chunk in torch.split(rows, 64)])
    return at_least.index_copy(0, rows, torch.where(equal[rows], counted, at_least[rows]))


def _number(compare: Callable[..., Tensor], scores: Tensor, thresholds: Tensor, buffer: Tensor | None) -> Tensor:
    """Count the scores of a row that compare true with each threshold of the row, int64 [B, T]."""
    values, wanted = scores[:, None], thresholds[:, :, None]
    if buffer is None:
        return compare(values, wanted).sum(2)
    shape = scores.shape[0], thresholds.shape[1], scores.shape[1]
    return compare(values, wanted, out=buffer[: math.prod(shape)].view(shape)).sum(2).long()


def _is_readable(scores: Tensor) -> bool:
    """Return True if scores are read fast without a copy: on the CPU only float32 and float64 rows of unit stride."""
    return scores.device.type != "cpu" or (scores.dtype == working_dtype(scores) and scores.stride(1) == 1)


def _copies(scores: Tensor, question: Question) -> Iterator[tuple[Tensor, Question]]:
    """Yield copies of some rows at a time in a readable layout, -inf for masked items, and the question about them."""
    cpu = scores.device.type == "cpu"
    tall = max(1, (TILE_SCORES_CPU if cpu else TILE_SCORES) // scores.shape[1])
    for first in range(0, max(1, len(scores)), tall):
        part = question.rows(slice(first, first + tall))
        tile = torch.empty(part.thresholds.shape[0], scores.shape[1], dtype=working_dtype(scores), device=scores.device)
        yield mask_(tile.copy_(scores[first : first + tall]), part.masks), part
