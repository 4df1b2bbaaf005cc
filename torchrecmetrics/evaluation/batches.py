"""`evaluate_on`: update metrics with a test set and a source of rankings, in `batches` of users that fit the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.core.checks import check_k
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.evaluation.progress import ProgressBar
from torchrecmetrics.evaluation.scorers import ENTRY_BYTES, MIN_ROWS, RankingSource
from torchrecmetrics.evaluation.test_set import TestSet, Users, listed_with_target
from torchrecmetrics.inputs.as_input import errors_of_all_processes

_BUFFER_BYTES = 64 * 2**20
"""Bytes of the buffer to which the CPU writes products: smaller chunks cost more calls."""
_SMALL_BUFFER_BYTES, _FEW_BYTES = 31 * 2**20, 256 * 2**20
"""Bytes of the buffer if all scores take at most `_FEW_BYTES`: from 32 MB on the C library maps new pages, which then
costs more than additional chunks.
"""
_MAX_USERS = 4096
"""Maximum number of users in a batch whose scores are made in chunks; other steps run for all of them at once."""


def evaluate_on(
    collection: RecMetricCollection,
    test: TestSet,
    source: RankingSource,
    users: Users,
    *,
    batch_size: int | None = None,
    bar: ProgressBar | None = None,
    shown_together: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Update a collection with the rankings of a source, a batch of users at a time.

    Args:
        collection: the metrics.
        test: the test set.
        source: makes the input of a batch of users.
        users: users to evaluate.
        batch_size: as in `batches`.
        bar: display of progress; None = nothing is shown.
        shown_together: makes the context in which the progress is shown.
    """
    if len(users.unranked):
        threshold, graded = collection.evaluator._batch_needs.score_threshold, test.target.values is not None
        no_ranking = Ranking.without_relevant(len(users.unranked), test.target.device, threshold, graded)
        collection.update(no_ranking, **test.columns(users.unranked))

    def update(ids: Tensor, at_once: int) -> None:
        batch = test.batch(ids)
        rows = source.input(batch, at_once)
        if not users.for_ranking:
            collection.update(rows, **test.columns(ids))
            return
        with errors_of_all_processes(rows):
            ranking = rows.rank(collection.evaluator._batch_needs, collection.evaluator._ranking_options)
            collection.update(listed_with_target(ranking, batch.target), **test.columns(ids))

    for batch in batches(source, users.ranked, test.num_entries() + source.num_entries, update, batch_size):
        if bar is not None:
            with shown_together():
                bar.advance(batch, collection)


def batches(
    source: RankingSource, users: Tensor, sizes: Tensor, use: Callable[[Tensor, int], None], batch_size: int | None
) -> Iterator[Tensor]:
    """Apply `use` to batches of users and yield each batch when done; a batch is halved if a GPU runs out of memory.

    Args:
        source: says how much memory the input of a user takes.
        users: row numbers, int64 [n] on the host.
        sizes: target and history entries of every user, int64 [U] on the host.
        use: takes a batch and the number of users to score at once.
        batch_size: largest number of users that are scored at once; None = as memory allows.
    """
    users = users[sizes[users].argsort(stable=True)]  # lists of similar lengths need little padding
    at_once = max(1, len(users)) if batch_size is None else check_k(batch_size, "batch_size")
    together = at_once
    if source.reuses_memory and source.device.type == "cpu":
        if batch_size is None:
            is_small = len(users) * source.row_bytes <= _FEW_BYTES
            at_once = max(MIN_ROWS, (_SMALL_BUFFER_BYTES if is_small else _BUFFER_BYTES) // source.row_bytes)
        together = max(at_once, _MAX_USERS)
    num_done = 0
    while num_done < len(users):
        low, high = 1, min(together, len(users) - num_done)
        while low < high:  # the largest batch whose scores, and lists padded to the longest one, fit
            middle = (low + high + 1) // 2
            entries = middle * int(sizes[users[num_done + middle - 1]])
            fits = min(middle, at_once) * source.row_bytes + ENTRY_BYTES * entries <= source.memory
            low, high = (middle, high) if fits else (low, middle - 1)
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
