"""`batches`: users in batches whose scores and padded lists fit the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from torchrecmetrics.core.checks import check_k
from torchrecmetrics.evaluation.scorers import ENTRY_BYTES, MIN_ROWS, Scorer

_BUFFER_BYTES = 64 * 2**20
"""Bytes of the buffer to which the CPU writes products: smaller chunks cost more calls."""
_SMALL_BUFFER_BYTES, _FEW_BYTES = 31 * 2**20, 256 * 2**20
"""Bytes of the buffer if all scores take at most `_FEW_BYTES`: from 32 MB on the C library maps new pages, which then
costs more than additional chunks.
"""
_MAX_USERS = 4096
"""Most users in a batch whose scores are made chunk by chunk; steps that read no scores run for all of them at once."""


def batches(
    scorer: Scorer, users: Tensor, sizes: Tensor, use: Callable[[Tensor, int], None], batch_size: int | None
) -> Iterator[Tensor]:
    """Apply `use` to batches of users and yield each batch when done; a batch is halved if a GPU runs out of memory.

    Args:
        scorer: says how much memory the scores of a user take.
        users: row numbers, int64 [n] on the host.
        sizes: target and history entries of every user, int64 [U] on the host.
        use: takes a batch and the number of users to score at once.
        batch_size: largest number of users that are scored at once; None = as memory allows.
    """
    users = users[sizes[users].argsort(stable=True)]  # lists of similar lengths need little padding
    at_once = max(1, len(users)) if batch_size is None else check_k(batch_size, "batch_size")
    together = at_once
    if scorer.reuses_memory and scorer.device.type == "cpu":
        if batch_size is None:
            is_small = len(users) * scorer.row_bytes <= _FEW_BYTES
            at_once = max(MIN_ROWS, (_SMALL_BUFFER_BYTES if is_small else _BUFFER_BYTES) // scorer.row_bytes)
        together = max(at_once, _MAX_USERS)

    def fits(number: int, longest_list: int) -> bool:  # scores, and lists that are padded to the longest one
        return min(number, at_once) * scorer.row_bytes + number * ENTRY_BYTES * longest_list <= scorer.memory

    num_done = 0
    while num_done < len(users):
        low = largest_batch(sizes[users[num_done:]], together, fits)
        batch = users[num_done : num_done + low]
        try:
            use(batch, min(low, at_once))
        except torch.cuda.OutOfMemoryError:
            if low == 1:
                raise
            at_once = together = low // 2
        else:
            num_done += low
            yield batch
            continue
        torch.cuda.empty_cache()  # after `except`, where the error no longer holds the batch's tensors


def largest_batch(sizes: Tensor, most: int, fits: Callable[[int, int], bool]) -> int:
    """Return the size of the largest batch that fits, at least 1.

    Args:
        sizes: sizes of the users that are left, ascending, int64 [n] on the host; the last user of a batch is its
            largest.
        most: largest batch that is tried.
        fits: function of a number of users and of the largest size among them.
    """
    low, high = 1, min(most, len(sizes))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle, int(sizes[middle - 1])) else (low, middle - 1)
    return low
