"""Batches that are counted together: most of what a small one costs is calls, however few its rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from torchrecmetrics.arrays import is_traced
from torchrecmetrics.ranking.joined import Rankable, borrows, entries_of, joined, kind_of, size_of
from torchrecmetrics.state import Summed

# Numbers, of targets, lists and histories, that wait at most: what is made of them stays in the processor's caches.
_ENOUGH = 2**16


def kind_to_wait(batch: Rankable) -> Hashable | None:
    """Return what batches that wait together have in common; None if this one is not to wait."""
    device = entries_of(batch).device
    if not 0 < size_of(batch) < _ENOUGH or device.type == "meta" or is_traced():
        return None
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():  # a graph must hold all of it
        return None
    return kind_of(batch)


class Pending:
    """Batches that some metrics have been given and have not counted yet.

    As long as there are any, the metrics do not hold their states: whoever asks for one has them counted first, see
    `SummedMetric.__getattr__`.
    """

    def __init__(self, metrics: Sequence[Summed], count: Callable[[Rankable], None]) -> None:
        self._metrics = metrics
        self._count = count
        self._held: list[dict[str, Tensor]] = []  # the metrics' states
        self._batches: list[Rankable] = []
        self._kind: Hashable | None = None
        self._size = 0

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._batches)

    def add(self, batch: Rankable, kind: Hashable, given: bool) -> None:
        """Let a batch of some kind wait; `given` is one that somebody else holds, too."""
        size = size_of(batch)
        if self._batches and (kind != self._kind or self._size + size > _ENOUGH):
            self.flush()
        if given or borrows(batch):
            batch = joined([batch])  # a loader may use its memory again
        if not self._batches:
            self._hold()
        self._batches.append(batch)
        self._kind, self._size = kind, self._size + size
        for metric in self._metrics:
            metric.__dict__["_update_count"] += 1

    def flush(self) -> None:
        """Count what waits."""
        if not self._batches:
            return
        self._release()
        try:
            with torch.no_grad():
                self._count(joined(self._batches))
        except BaseException:
            self._hold()  # nothing was added
            raise
        self.forget()

    def forget(self) -> None:
        """Give the metrics their states back, as they were before what waits."""
        if self._held:
            self._release()
        self._batches, self._size = [], 0

    def leave(self, metric: Summed) -> None:
        """Forget what waits for a metric, and count it for the others."""
        if len(self._metrics) > 1:
            self.flush()
        else:
            self.forget()

    def _hold(self) -> None:
        for metric in self._metrics:
            state = metric.__dict__
            self._held.append({name: state.pop(name) for name in (state["_sums_name"], state["_counts_name"])})
            state.update(_pending=self, _computed=None, _summary=None)

    def _release(self) -> None:
        for metric, held in zip(self._metrics, self._held, strict=True):
            metric.__dict__.update(held, _pending=None)
        self._held = []
