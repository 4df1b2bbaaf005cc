"""The k best items of each row, ties by lower id: `topk_ids`, `best_items` with their scores, `merged` lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import can_sync, working_dtype
from torchrecmetrics.kernels import blocks
from torchrecmetrics.kernels.contract import mask_, replace_nan
from torchrecmetrics.kernels.eager import TILE_SCORES, TILE_SCORES_CPU


def topk_ids(scores: Tensor, k: int, masks: Sequence[Tensor] = (), excluded: Tensor | None = None) -> Tensor:
    """Return the ids of the `k` best candidates of each row, best first, equal scores by ascending id.

    Makes no host sync.

    Args:
        scores: float64, float32, float16 or bfloat16 [B, I] of any strides, read and never written. -inf and NaN are
            not candidates, +inf is one.
        k: number of ids, >= 1.
        masks: bool [I] or [B, I], True = no candidate.
        excluded: int64 [B, H], ids below I of items that are not candidates in their row, in any order; negative =
            padding.

    Returns:
        int64 [B, min(k, I)]; -1 where a row has no more candidates.
    """
    rows, items = scores.shape
    k = min(k, items)
    if not rows or not k:
        return torch.empty((rows, k), dtype=torch.int64, device=scores.device)
    tile_ids = []
    for tile in _masked_copies(scores, masks, excluded):
        top, ids = _top(tile, k)
        tile_ids.append(ids.masked_fill(top == -torch.inf, -1))
    return torch.cat(tile_ids)


def best_items(
    scores: Tensor, k: int, masks: Sequence[Tensor] = (), excluded: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return scores, -inf where the row has no more candidates, and ids as `topk_ids` does, [B, min(k, I)]."""
    ids = topk_ids(scores, k, masks, excluded)
    return (scores.gather(1, ids.clamp(min=0)) if ids.shape[1] else scores[:, :0]).where(ids >= 0, -torch.inf), ids


def merged(lists: Sequence[tuple[Tensor, Tensor]], k: int) -> tuple[Tensor, Tensor]:
    """Return scores and ids of the `k` best items of several lists, items of equal scores by ascending id."""
    scores, ids = (torch.cat(columns, 1) for columns in zip(*lists, strict=True))
    ids, by_id = ids.sort(dim=1, stable=True)
    scores, order = scores.gather(1, by_id).sort(dim=1, descending=True, stable=True)
    return scores[:, :k], ids.gather(1, order)[:, :k]


def _masked_copies(scores: Tensor, masks: Sequence[Tensor], excluded: Tensor | None) -> Iterator[Tensor]:
    """Yield copies of some rows at a time, with -inf for NaN and for items that are not candidates."""
    cpu = scores.device.type == "cpu"
    dtype = working_dtype(scores) if cpu else scores.dtype
    tall = max(1, (TILE_SCORES_CPU if cpu else TILE_SCORES) // scores.shape[1])
    for start in range(0, len(scores), tall):
        rows = slice(start, start + tall)
        tile = replace_nan(scores[rows].to(dtype).contiguous(), -torch.inf)
        mask_(tile, [mask[rows] if mask.dim() == 2 else mask for mask in masks])
        if excluded is not None and excluded.shape[1]:
            ids = excluded[rows]
            # padding takes the minimum of item 0's score and inf, which changes nothing
            limit = torch.where(ids >= 0, -torch.inf, torch.inf).to(dtype)
            tile.scatter_reduce_(1, ids.clamp(min=0), limit, "amin")
        yield tile


def _top(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the `k` best scores and their columns, int64 [B, k], ties by lower column; `scores` hold no NaN."""
    if not (can_sync(scores) and blocks.pays(scores.shape[1], k)):
        return _settle_ties(scores, k)
    # equal maxima are ordered by block, so k items precede any item of another block, also by id in ties
    best_blocks = _top(blocks.maxima(scores), k)[1].sort(dim=1).values
    items = best_blocks[:, :, None] * blocks.BLOCK_ITEMS + torch.arange(blocks.BLOCK_ITEMS, device=scores.device)
    width = scores.shape[1]
    trailing_items = torch.arange(width - width % blocks.BLOCK_ITEMS, width, device=scores.device)
    items = torch.cat([items.flatten(1), trailing_items.expand(len(scores), -1)], 1)
    top, places = _settle_ties(blocks.take_blocks(scores, best_blocks), k)
    return top, items.gather(1, places)


def _settle_ties(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the `k` best scores and their columns; on the CPU only rows with equal scores are processed again."""
    if k == scores.shape[1]:
        return scores.sort(dim=1, descending=True, stable=True)
    if not can_sync(scores):
        return _lowest_columns(scores, *scores.topk(k, dim=1))
    top, ids = scores.topk(k + 1, dim=1)
    tied = ((top[:, 1:] == top[:, :-1]) & (top[:, 1:] > -torch.inf)).any(1).nonzero()[:, 0]
    top, ids = top[:, :k], ids[:, :k]
    if len(tied):
        top[tied], ids[tied] = _lowest_columns(scores[tied], top[tied], ids[tied])
    return top, ids


def _lowest_columns(scores: Tensor, top: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Replace the columns of the lowest top score by the lowest columns with this score; sort ties by column."""
    lowest = top[:, -1:]
    equal = (scores == lowest).cumsum(1, dtype=torch.int32)
    better = (top > lowest).sum(1, keepdim=True, dtype=torch.int32)
    number = torch.arange(1, top.shape[1] + 1, dtype=torch.int32, device=top.device) - better
    ids = torch.where(number > 0, torch.searchsorted(equal, number), ids).sort(dim=1).values
    top, order = scores.gather(1, ids).sort(dim=1, descending=True, stable=True)
    return top, ids.gather(1, order)
