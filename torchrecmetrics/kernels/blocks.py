"""Blocks of 64 neighbouring items and their maxima: the k best items lie in the k blocks with the largest maxima.

Proof: the k maxima are scores of k items that are at least as good as any item of another block. A group is every n-th
item. The k largest maxima of groups are scores of k items, so no lower score is among the k best.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import array

BLOCK_ITEMS = 64
"""Items per block: CPUs vectorise maxima of 64 numbers, and few items are read again."""

MIN_GROUPS = 64
"""Minimum number of groups per row: their maxima are vectorised, and few scores reach the best of them."""


def pays(num_items: int, k: int) -> bool:
    """Return True if the k best blocks hold at most half of the items."""
    return num_items >= 2 * k * BLOCK_ITEMS


def maxima(scores: Tensor) -> Tensor:
    """Return the maximum of each full block of scores [B, I], [B, I // 64]; NaN if a block holds NaN."""
    rows, items = scores.shape
    number = items // BLOCK_ITEMS
    return scores[:, : number * BLOCK_ITEMS].view(rows, number, BLOCK_ITEMS).amax(2)


def take_blocks(scores: Tensor, blocks: Tensor) -> Tensor:
    """Return the scores of the items in `blocks`, int64 [B, k], followed by those after the last full block.

    `scores` [B, I] have unit stride along the items.
    """
    (rows, items), stride = scores.shape, scores.stride(0)
    windows = scores.as_strided(((rows - 1) * stride + items - BLOCK_ITEMS + 1, BLOCK_ITEMS), (1, 1))  # at every start
    starts = blocks * BLOCK_ITEMS + stride * torch.arange(rows, device=scores.device)[:, None]
    full_blocks = windows.index_select(0, starts.flatten()).view(rows, -1)
    num_trailing = items % BLOCK_ITEMS
    return torch.cat([full_blocks, scores[:, items - num_trailing :]], 1) if num_trailing else full_blocks


def num_groups(depth: int) -> int:
    """Return a number of groups such that few scores are above the `depth`-th largest maximum."""
    return max(MIN_GROUPS, 2 * depth)


def heads(scores: Tensor, depth: int) -> Tensor:
    """Return the maximum of each block, and of the items after the last full one; the scores if blocks are few."""
    num_blocks, num_trailing = divmod(scores.shape[1], BLOCK_ITEMS)
    if num_blocks < 8 * num_groups(depth):
        return scores
    full_blocks = maxima(scores)
    return torch.cat([full_blocks, scores[:, -num_trailing:].amax(1, keepdim=True)], 1) if num_trailing else full_blocks


def group_maxima(values: Tensor, depth: int) -> Tensor:
    """Return the maximum of each group, which is every n-th value of a row, [B, n]; NaN if it holds NaN."""
    (rows, width), number = values.shape, num_groups(depth)
    num_trailing = width % number
    groups = values[:, : width - num_trailing].view(rows, -1, number).amax(1)
    torch.maximum(groups[:, :num_trailing], values[:, width - num_trailing :], out=groups[:, :num_trailing])
    return groups


def reaching(scores: Tensor, heads: Tensor, lowest: Tensor) -> Tensor | None:
    """Return the scores >= `lowest` [B, 1] of each row, padded with -inf, [B, longest]; None if they are many."""
    import numpy as np

    values, limit = array(heads), array(lowest)
    reached = values >= limit
    if np.count_nonzero(reached) * 4 > reached.size:
        return None if heads.shape == scores.shape else reaching(scores, scores, lowest)
    places, ends = np.flatnonzero(reached), np.arange(len(values) + 1) * values.shape[1]
    if heads.shape != scores.shape:
        row, block = np.divmod(places, values.shape[1])
        starts = np.minimum(block * BLOCK_ITEMS, scores.shape[1] - BLOCK_ITEMS)
        values = np.lib.stride_tricks.sliding_window_view(array(scores), BLOCK_ITEMS, axis=1)[row, starts]
        values[starts < block * BLOCK_ITEMS, : -(scores.shape[1] % BLOCK_ITEMS)] = -np.inf  # of the previous block
        places, ends = np.flatnonzero(values >= limit[row]), np.searchsorted(places, ends) * BLOCK_ITEMS
    numbers = np.diff(np.searchsorted(places, ends))
    if numbers.max() * 4 > scores.shape[1]:
        return None
    best = np.full((len(limit), numbers.max()), -np.inf, values.dtype)
    best[np.arange(best.shape[1]) < numbers[:, None]] = values.reshape(-1)[places]
    return torch.from_numpy(best)
