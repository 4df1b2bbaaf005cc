"""The items with the best scores of each row, ties by lower id: where ids are wanted, and not only counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from torchrecmetrics.arrays import counting, may_look
from torchrecmetrics.kernels import blocks
from torchrecmetrics.kernels.edges import barred, without_nan, working_dtype

# Items a block, or half as many: 32 and 64 vectorise, 16 does not.
_BLOCK = 64
# Scores looked at together: as many as a cache holds where they are copied, else what bounds the memory for the rest.
_CACHED, _READ = 2**21, 2**25

# Scores of which calls cost more than what is left out by blocks.
_SMALL = 2**17


def best(scores: Tensor, k: int, masks: Sequence[Tensor] = (), excluded: Tensor | None = None) -> Tensor:
    """Return the ids of the `k` best candidates of each row, best first, equal scores by ascending id.

    Waits for no device but the CPU.

    Args:
        scores: float64, float32, float16 or bfloat16 [B, I] of any strides, read and never written. -inf and NaN are
            no candidates, +inf is one.
        k: how many, >= 1.
        masks: bool [I] or [B, I], True = no candidate.
        excluded: int64 [B, H], ids below I of items that are no candidates in their row, in any order; negative =
            padding.

    Returns:
        int64 [B, min(k, I)]; -1 where a row has no more candidates.
    """
    rows, items = scores.shape
    k = min(k, items)
    if not rows or not k:
        return torch.empty((rows, k), dtype=torch.int64, device=scores.device)
    if excluded is not None and not excluded.shape[1]:
        excluded = None
    # data says where to look again, which only the CPU knows without waiting
    looks = may_look(scores)
    size = _BLOCK if items // _BLOCK >= 4 * k else _BLOCK // 2
    if looks and scores.numel() > _SMALL and 2 * (items // size) >= 3 * k:
        top, ids = _by_blocks(scores, k, masks, excluded, size)
    else:
        pieces = [
            _settled(without_nan(piece, -torch.inf), k, looks)
            for _, piece in _pieces(scores, masks, excluded, looks, _CACHED)
        ]
        top, ids = pieces[0] if len(pieces) == 1 else map(torch.cat, zip(*pieces, strict=True))
    return ids.masked_fill_(top == -torch.inf, -1)


def _pieces(
    scores: Tensor, masks: Sequence[Tensor], excluded: Tensor | None, looks: bool, at_once: int
) -> Iterator[tuple[int, Tensor]]:
    """Yield (first row, candidates' scores), `at_once` scores at a time; -inf where masked or excluded.

    What differs from `scores` is in memory that is used again. The CPU gets what it reads well.
    """
    rows, items = scores.shape
    dtype = working_dtype(scores) if looks else scores.dtype
    copied = bool(masks) or excluded is not None or (looks and (dtype != scores.dtype or scores.stride(1) != 1))
    if copied or not looks:
        at_once = _CACHED if looks else 8 * _CACHED
    tall = min(rows, max(1, at_once // items))
    scratch = scores.new_empty(tall * items + 1 if copied else 0, dtype=dtype)
    limits = [mask if mask.dim() == 2 else barred(mask, dtype) for mask in masks]
    for first in range(0, rows, tall):
        here = slice(first, first + tall)
        piece = scores[here]
        if copied:
            piece = scratch[: piece.numel()].view(piece.shape).copy_(piece)
            for limit in limits:
                limit = barred(limit[here], dtype) if limit.dim() == 2 else limit
                torch.minimum(piece, limit, out=piece)
        if excluded is not None:
            start = torch.arange(0, piece.numel(), items, device=scores.device)[:, None]
            # padding falls behind the last row
            at = torch.where(excluded[here] >= 0, excluded[here] + start, scratch.shape[0] - 1)
            scratch.index_fill_(0, at.view(-1), -torch.inf)
        yield first, piece


def _by_blocks(
    scores: Tensor, k: int, masks: Sequence[Tensor], excluded: Tensor | None, size: int
) -> tuple[Tensor, Tensor]:
    """Read the scores once for the maximum of each block of `size` items; look again only into those with the best."""
    found = [
        (row + first, ids, values)
        for first, piece in _pieces(scores, masks, excluded, True, _READ)
        for row, ids, values in [_reaching(piece, k, size)]
    ]
    row, ids, values = found[0] if len(found) == 1 else map(torch.cat, zip(*found, strict=True))
    # side by side those of a row, by ascending id
    count = torch.bincount(row, minlength=len(scores))
    width = max(k, int(count.max()))
    start = torch.arange(0, len(scores) * width, width, device=scores.device) - count.cumsum(0) + count
    slot = torch.arange(len(row), device=scores.device) + start[row]
    packed = values.new_full((len(scores), width), -torch.inf)
    packed.view(-1)[slot] = values
    items = torch.zeros(packed.shape, dtype=torch.int64, device=scores.device)
    items.view(-1)[slot] = ids
    top, place = _settled(packed, k, True)
    return top, items.gather(1, place)


def _reaching(scores: Tensor, k: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows, ids and scores of few items that hold the k best candidates of each row, by ascending row and id.

    The best item of a block is its maximum of lowest id. So the k best items lie in the k best blocks, ties by lower
    block: an item of another one has the best of all of these before it.
    """
    maxima = _block_maxima(scores, size)
    number = maxima.shape[1]
    bounds, tall = maxima, max(1, 2 * number // (5 * k))
    if tall > 1:  # the k-th best of fewer maxima is a bound, too, and sooner found
        bounds = maxima[:, : number // tall * tall].view(len(maxima), tall, -1).amax(1)
    bound = bounds.kthvalue(bounds.shape[1] + 1 - k, dim=1, keepdim=True).values
    is_open = maxima >= bound
    crowded = (is_open.sum(1) > 2 * k + 8).nonzero()[:, 0]
    if len(crowded):
        some = maxima[crowded]
        bound[crowded] = last = some.kthvalue(number + 1 - k, dim=1, keepdim=True).values
        better, equal = some > last, some == last
        missing = k - better.sum(1, keepdim=True, dtype=torch.int32)
        is_open[crowded] = better | (equal & (equal.cumsum(1, dtype=torch.int32) <= missing))
    row, block = is_open.nonzero(as_tuple=True)
    values, start = blocks.take(scores, row, block, size)
    bound.clamp_(min=torch.finfo(bound.dtype).min)  # beyond -inf
    at, offset = (values >= bound[row]).nonzero(as_tuple=True)
    return row[at], start[at] + offset, values[at, offset]


def _block_maxima(scores: Tensor, size: int) -> Tensor:
    """Maxima of each block of `size` items, the last of which may be shorter, without NaN."""
    maxima = scores.new_empty((scores.shape[0], blocks.number_of(scores.shape[1], size)))
    blocks.write_maxima(scores, size, maxima)
    if maxima.amax().isnan():  # it hides what else its block holds
        row, block = maxima.isnan().nonzero(as_tuple=True)
        values, _ = blocks.take(scores, row, block, size)
        maxima[row, block] = without_nan(values, -torch.inf).amax(1)
    return maxima


def _settled(values: Tensor, k: int, looks: bool) -> tuple[Tensor, Tensor]:
    """Return the k best of `values`, which hold no NaN, and their columns: equals by ascending column.

    `looks`: only rows with equals are settled, the others stand as they are.
    """
    if k == values.shape[1]:
        return values.sort(dim=1, descending=True, stable=True)
    if not looks:
        return _settle(values, *values.topk(k, dim=1))
    top, ids = values.topk(k + 1, dim=1)
    tied = ((top[:, 1:] == top[:, :-1]) & (top[:, 1:] > -torch.inf)).any(1).nonzero()[:, 0]
    top, ids = top[:, :k], ids[:, :k]
    if len(tied) == len(values):
        return _settle(values, top, ids)
    if len(tied):
        top[tied], ids[tied] = _settle(values[tied], top[tied], ids[tied])
    return top, ids


def _settle(values: Tensor, top: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Take the lowest columns there are of those that equal the last of `top`, and put equals in their order."""
    last = top[:, -1:]
    equal = (values == last).cumsum(1, dtype=torch.int32)
    better = (top > last).sum(1, keepdim=True, dtype=torch.int32)
    number = counting(top.shape[1], torch.int32, top.device) - better
    ids = torch.where(number > 0, torch.searchsorted(equal, number), ids).sort(dim=1).values
    top, order = values.gather(1, ids).sort(dim=1, descending=True, stable=True)
    return top, ids.gather(1, order)
