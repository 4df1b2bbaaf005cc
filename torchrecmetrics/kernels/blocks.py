"""Blocks of 64 neighbouring items and their maxima: the k best items lie in the k blocks with the largest maxima.

Proof: the k maxima are scores of k items that are at least as good as any item of another block.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK_ITEMS = 64
"""Items per block: CPUs vectorise maxima of 64 numbers, and few items are read again."""


def pays(num_items: int, k: int) -> bool:
    """Return True if the k best blocks hold at most half of the items."""
    return num_items >= 2 * k * BLOCK_ITEMS


def maxima(scores: Tensor) -> Tensor:
    """Return the maximum of each full block of scores [B, I], [B, I // 64]; NaN if a block holds NaN."""
    rows, items = scores.shape
    number = items // BLOCK_ITEMS
    return scores[:, : number * BLOCK_ITEMS].view(rows, number, BLOCK_ITEMS).amax(2)


def take(scores: Tensor, blocks: Tensor) -> Tensor:
    """Return the scores of the items in `blocks`, int64 [B, k], followed by those after the last full block.

    `scores` [B, I] have unit stride along the items.
    """
    (rows, items), stride = scores.shape, scores.stride(0)
    windows = scores.as_strided(((rows - 1) * stride + items - BLOCK_ITEMS + 1, BLOCK_ITEMS), (1, 1))  # at every start
    starts = blocks * BLOCK_ITEMS + stride * torch.arange(rows, device=scores.device)[:, None]
    full_blocks = windows.index_select(0, starts.flatten()).view(rows, -1)
    num_trailing = items % BLOCK_ITEMS
    return torch.cat([full_blocks, scores[:, items - num_trailing :]], 1) if num_trailing else full_blocks
