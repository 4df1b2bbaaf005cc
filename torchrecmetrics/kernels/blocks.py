"""Blocks of items that follow each other, the last of which may hold fewer: maxima, and what they hold."""

from __future__ import annotations

import torch
from torch import Tensor

from torchrecmetrics.arrays import runs


def number_of(items: int, size: int) -> int:
    """How many blocks of `size` items there are, the last one with what is left."""
    return -(-items // size)


def write_maxima(scores: Tensor, size: int, out: Tensor) -> None:
    """Write the maximum of each block of [B, I] to `out`, [B, blocks]; NaN hides the others of its block."""
    rows, items = scores.shape
    full = items // size
    torch.amax(scores[:, : full * size].view(rows, full, size), 2, out=out[:, :full])
    if full < out.shape[1]:
        torch.amax(scores[:, full * size :], 1, out=out[:, full])


def take(scores: Tensor, row: Tensor, block: Tensor, size: int, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return a copy of the scores of some blocks, [P, size], and the item that each begins with, [P].

    The last block ends with the row: in place of items in front of it, it holds -inf. `out` is where the copy may be.
    """
    items = scores.shape[1]
    first = block * size
    if not items % size:
        return runs(scores, row, first, size, out), first
    start = first.clamp(max=items - size)
    values = runs(scores, row, start, size, out)
    short = (first > start).nonzero()[:, 0]
    if short.shape[0]:
        values[:, : size - items % size].index_fill_(0, short, -torch.inf)
    return values, start
