"""The items with the best scores of each row, ties by lower id: where ids are wanted, and not only counts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchrecmetrics.arrays import counting, is_traced
from torchrecmetrics.kernels.edges import without_nan, working_dtype

# Items a block, or half as many: 32 and 64 vectorise, 16 does not.
_BLOCK = 64
# Blocks a group, whose maxima bound the k-th best score from below.
_GROUP = 8
# Scores looked at together: as many as a cache holds where they are copied, else as many as bound what is made of them.
_COPIED, _READ = 2**21, 2**24


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
    found = torch.empty((rows, k), dtype=torch.int64, device=scores.device)
    if not found.numel():
        return found
    # data says where to look again, which only the CPU knows without waiting
    looks = scores.device.type == "cpu" and not is_traced()
    size = _BLOCK if items // _BLOCK >= 4 * k else _BLOCK // 2
    by_blocks = looks and 2 * (items // size) >= 3 * k
    copied = bool(masks) or excluded is not None
    dtype = scores.dtype
    if looks:
        dtype = working_dtype(scores)
        copied = copied or dtype != scores.dtype or not scores.is_contiguous()
    at_once = max(1, (_COPIED if copied and looks else _READ) // items)
    scratch = scores.new_empty(min(at_once, rows) * items + 1 if copied else 0, dtype=dtype)
    for first in range(0, rows, at_once):
        here = slice(first, first + at_once)
        piece = scores[here]
        if copied:
            masked = [mask[here] if mask.dim() == 2 else mask for mask in masks]
            piece = _candidates(piece, masked, None if excluded is None else excluded[here], scratch)
        if by_blocks:
            top, ids = _by_blocks(piece, k, size)
        else:
            top, ids = _settled(without_nan(piece, -torch.inf), k, looks)
        found[here] = ids.masked_fill_(top == -torch.inf, -1)
    return found


def _candidates(scores: Tensor, masks: Sequence[Tensor], excluded: Tensor | None, scratch: Tensor) -> Tensor:
    """Return a copy of scores in `scratch`, which is longer by one, with -inf where there is no candidate."""
    items = scores.shape[1]
    copy = scratch[: scores.numel()].view(scores.shape).copy_(scores)
    for mask in masks:
        copy.masked_fill_(mask, -torch.inf)
    if excluded is not None:
        start = torch.arange(0, scores.numel(), items, device=scores.device)[:, None]
        at = torch.where(excluded >= 0, excluded + start, scratch.shape[0] - 1)  # padding falls behind the last row
        scratch.index_fill_(0, at.view(-1), -torch.inf)
    return copy


def _by_blocks(scores: Tensor, k: int, size: int) -> tuple[Tensor, Tensor]:
    """Read the scores once for the maximum of each block of `size` items; look again only into blocks with the best.

    The best item of a block is its maximum of lowest id. So the k best items lie in the k best blocks, ties by lower
    block: an item of another one has the best of all of these before it.
    """
    maxima = _block_maxima(scores, size)
    groups = maxima.shape[1] // _GROUP
    bounds = maxima[:, : groups * _GROUP].view(-1, _GROUP, groups).amax(1) if groups >= 2 * k else maxima
    bound = bounds.topk(k, dim=1).values[:, -1:]  # k items reach it
    is_open = maxima >= bound
    crowded = (is_open.sum(1) > 2 * k + 8).nonzero()[:, 0]
    if len(crowded):
        top, blocks = _settled(maxima[crowded], k, True)
        bound[crowded] = top[:, -1:]
        is_open[crowded] = torch.zeros_like(is_open[crowded]).scatter_(1, blocks, True)
    row, block = is_open.nonzero(as_tuple=True)
    values, start = _take_blocks(scores, row, block, size)
    reaches = (values >= bound[row]) & (values > -torch.inf)
    at, offset = reaches.nonzero(as_tuple=True)
    # side by side those of a row, by ascending id
    of_row = row[at]
    count = torch.bincount(of_row, minlength=len(scores))
    width = max(k, int(count.max()))
    slot = torch.arange(len(at)) + (torch.arange(len(scores)) * width - count.cumsum(0) + count)[of_row]
    shape = len(scores), width
    packed = scores.new_full(shape, -torch.inf)
    packed.view(-1)[slot] = values[at, offset]
    ids = torch.zeros(shape, dtype=torch.int64)
    ids.view(-1)[slot] = start[at] + offset
    top, place = _settled(packed, k, True)
    return top, ids.gather(1, place)


def _block_maxima(scores: Tensor, size: int) -> Tensor:
    """Maxima of each block of `size` items, the last of which may be shorter, without NaN."""
    rows, items = scores.shape
    full = items // size
    maxima = scores.new_empty((rows, -(-items // size)))
    torch.amax(scores[:, : full * size].view(rows, full, size), 2, out=maxima[:, :full])
    if full < maxima.shape[1]:
        torch.amax(scores[:, full * size :], 1, out=maxima[:, full])
    row, block = maxima.isnan().nonzero(as_tuple=True)
    if len(row):  # a NaN hides what else its block holds
        values, _ = _take_blocks(scores, row, block, size)
        maxima[row, block] = without_nan(values, -torch.inf).amax(1)
    return maxima


def _take_blocks(scores: Tensor, row: Tensor, block: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Scores of some blocks [P, size], and the id of the first of each; a short one is filled up in front with -inf."""
    items = scores.shape[1]
    first = block * size
    start = first.clamp(max=items - size)
    values = scores.view(-1).unfold(0, size, 1).index_select(0, row * items + start)
    if items % size:
        short = (first > start).nonzero()[:, 0]
        values[short, : size - items % size] = -torch.inf
    return values, start


def _settled(values: Tensor, k: int, looks: bool) -> tuple[Tensor, Tensor]:
    """Return the k best of `values`, which hold no NaN, and their columns: equals by ascending column.

    `looks`: only where there was a choice at the k-th place is the lowest column searched for.
    """
    has_choice = k < values.shape[1]
    top, ids = values.topk(k + (looks and has_choice), dim=1)
    if has_choice and looks:
        again = ((top[:, -1] == top[:, -2]) & (top[:, -1] > -torch.inf)).nonzero()[:, 0]
        top, ids = top[:, :k], ids[:, :k]
        if len(again):
            ids[again] = _lowest(values[again], top[again], ids[again])
    elif has_choice:
        ids = _lowest(values, top, ids)
    ids = ids.sort(dim=1).values
    top, order = values.gather(1, ids).sort(dim=1, descending=True, stable=True)
    return top, ids.gather(1, order)


def _lowest(values: Tensor, top: Tensor, ids: Tensor) -> Tensor:
    """Return `ids` of the k best with the lowest there are in place of those that equal the last."""
    last = top[:, -1:]
    equal = (values == last).cumsum(1, dtype=torch.int32)
    better = (top > last).sum(1, keepdim=True, dtype=torch.int32)
    number = counting(top.shape[1], torch.int32, top.device) - better
    return torch.where(number > 0, torch.searchsorted(equal, number), ids)
