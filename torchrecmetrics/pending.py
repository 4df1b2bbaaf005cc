"""Batches that are counted together: most of what a small one costs is calls, however few its rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from threading import RLock

import torch

from torchrecmetrics.arrays import is_traced
from torchrecmetrics.ranking.joined import Rankable, borrows, entries_of, joined, kind_of, shape_of
from torchrecmetrics.state import Summed, Tally

# Numbers that wait at most, or are made of those: targets, lists, histories and values, padded to the widest; and those
# of a batch from which its calls are of no account.
_ENOUGH = 2**19
_LARGE = 2**17


class Pending:
    """Batches that some metrics have been given and have not counted yet.

    As long as there are any, the metrics do not hold their states: whoever asks for one has them counted first, see
    `SummedMetric.__getattr__`.
    """

    def __init__(self, metrics: Sequence[Summed], count: Callable[[Rankable, Sequence[Tally]], list[Tally]]) -> None:
        self._metrics = metrics
        self._count = count  # returns states with a batch added
        self._states: list[Tally] = []
        self._batches: list[Rankable] = []
        self._rows = 0
        self._widths: tuple[int, ...] = ()
        self._lock = RLock()  # several threads may ask for states
        self.kind: Hashable | None = None
        """What those that wait have in common; None if there are none."""

    def kind_of(self, batch: Rankable) -> Hashable | None:
        """Return what a batch must have in common with those it waits with; None if it is not to wait."""
        rows, *widths = shape_of(batch)
        device = entries_of(batch).device
        if not 0 < self._size(rows, widths) < _LARGE or device.type == "meta" or is_traced():
            return None
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():  # a graph must hold all of it
            return None
        return kind_of(batch)

    @property
    def device(self) -> torch.device:
        """Where they and the metrics are."""
        return self._states[0].sums.device

    def add(self, batch: Rankable, kind: Hashable, given: bool) -> None:
        """Let a batch of some kind wait; `given` is one that somebody else holds, too."""
        if given or borrows(batch):
            batch = joined([batch])  # a loader may use its memory again
        rows, *widths = shape_of(batch)
        with self._lock:
            together = [*map(max, zip(widths, self._widths, strict=True))] if self._batches else widths
            if kind != self.kind or self._size(self._rows + rows, together) > _ENOUGH:
                self.flush()
                self._hold(kind)
                together = widths
            self._batches.append(batch)
            self._rows, self._widths = self._rows + rows, tuple(together)
            for metric in self._metrics:
                metric.__dict__["_update_count"] += 1

    def flush(self) -> None:
        """Count what waits."""
        with self._lock:
            if self._batches:
                batch = self._batches[0] if len(self._batches) == 1 else joined(self._batches)
                self._release(self._count(batch, self._states))

    def forget(self) -> None:
        """Give the metrics their states back, as they were before what waits."""
        with self._lock:
            if self._batches:
                self._release(self._states)

    def leave(self) -> None:
        """Forget what waits for one of the metrics, and count it for the others."""
        if len(self._metrics) > 1:
            self.flush()
        else:
            self.forget()

    def _size(self, rows: int, widths: Sequence[int]) -> int:
        return rows * (sum(widths) + len(self._metrics))

    def _hold(self, kind: Hashable) -> None:
        self._states, self.kind = [metric.state() for metric in self._metrics], kind
        for metric in self._metrics:
            state = metric.__dict__
            state.update(_pending=self, _computed=None, _summary=None)
            del state[state["_sums_name"]], state[state["_counts_name"]]

    def _release(self, states: Sequence[Tally]) -> None:
        for metric, (sums, counts) in zip(self._metrics, states, strict=True):
            state = metric.__dict__
            state.update({state["_sums_name"]: sums, state["_counts_name"]: counts, "_pending": None})
        self._states, self._batches, self._rows, self._widths, self.kind = [], [], 0, (), None
