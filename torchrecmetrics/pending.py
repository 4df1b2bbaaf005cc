"""Batches that are counted together: most of what a small one costs is calls, however few its rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch

from torchrecmetrics.arrays import is_traced
from torchrecmetrics.held import Summed, Tallies, Together
from torchrecmetrics.ranking.joined import Rankable, borrows, entries_of, joined, kind_of, shape_of

# Numbers that wait at most, or are made of those: targets, lists, histories and values, padded to the widest; and those
# of a batch from which its calls are of no account.
_ENOUGH = 2**19
_LARGE = 2**17


class Pending(Together):
    """Metrics that are added to together, and batches that they have been given and have not counted yet."""

    def __init__(self, metrics: Sequence[Summed], long: int, tallies: Callable[[Rankable], Tallies]) -> None:
        super().__init__(metrics, long)
        self._tallies = tallies  # returns what a batch adds
        self._batches: list[Rankable] = []
        self._rows = 0
        self._widths: tuple[int, ...] = ()
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

    def wait(self, batch: Rankable, kind: Hashable, given: bool) -> None:
        """Let a batch of some kind wait; `given` is one that somebody else holds, too."""
        if given or borrows(batch):
            batch = joined([batch])  # a loader may use its memory again
        rows, *widths = shape_of(batch)
        with self._lock:
            together = [*map(max, zip(widths, self._widths, strict=True))] if self._batches else widths
            if kind != self.kind or self._size(self._rows + rows, together) > _ENOUGH:
                self.flush()
                self._take()
                self.kind = kind
                together = widths
            self._batches.append(batch)
            self._rows, self._widths = self._rows + rows, tuple(together)
            self._note()

    def flush(self) -> None:
        """Count what waits."""
        with self._lock:
            if self._batches:
                batch = self._batches[0] if len(self._batches) == 1 else joined(self._batches)
                self._states = self._added(self._take(), self._tallies(batch))
                self.forget()

    def forget(self) -> None:
        """Forget what waits."""
        with self._lock:
            self._batches, self._rows, self._widths, self.kind = [], 0, (), None

    def leave(self) -> None:
        """Give back, for one of the metrics forgets its state: what waits is counted for the others."""
        if len(self.metrics) == 1:
            self.forget()
        super().leave()

    def _size(self, rows: int, widths: Sequence[int]) -> int:
        return rows * (sum(widths) + len(self.metrics))
