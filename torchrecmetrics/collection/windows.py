"""`Window`: the value of recent rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchrecmetrics.core.checks import check_k
from torchrecmetrics.core.result import Layout, Result, RowValues
from torchrecmetrics.metrics.accumulator import Accumulator, State

SLOTS = 100
"""Number of slots of a window."""


class Window(Accumulator):
    """The value of the last rows, under keys like `HR@10/window`.

    Sums are kept in 100 slots of whole batches, so the window is up to a slot and a batch longer. With several
    processes, each numbers its updates, and the window holds the same numbers of every process: the last ones, as many
    as the process with most updates needs to fill its share of the rows. So a process that stops updating drops out.

    Args:
        rows: number of rows over all processes, at least 100; None = use `updates`.
        updates: number of updates, in place of `rows`.
        name: ending of the keys.

    Metrics that are not means over rows, such as Coverage, have no such value.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> window = trm.Window(updates=1)
        >>> collection = trm.RecMetricCollection("HR", k=1, accumulators=[window])
        >>> for ranks in (torch.tensor([2, 2]), torch.tensor([1, 2])):
        ...     collection.update(ranks, depth=10)
        >>> collection.result().floats()
        {'HR@1': 0.25, 'HR@1/window': 0.5}
    """

    is_recent: ClassVar[bool] = True
    slots: list[Tensor]
    """Sums of the rows of each slot, float [layout.size, 3]."""

    def __init__(self, rows: int | None = None, *, updates: int | None = None, name: str = "window") -> None:
        super().__init__()
        if not name or "/" in name or "." in name:
            raise ValueError(f"name becomes part of keys and must not hold '/' or '.', got {name!r}")
        if (rows is None) == (updates is None):
            raise ValueError("give either rows or updates")
        self.per_update: bool = rows is None
        self.size: int = check_k(updates, "updates") if rows is None else check_k(rows, "rows")
        if rows is not None and self.size < SLOTS:
            raise ValueError(f"rows must be at least {SLOTS}, one per slot, got {rows}; or updates= for fewer rows")
        self.name: str = name
        self.num_updates: int = 0
        self._slots: list[tuple[int, int]] = []
        """Number of updates, and of rows over all processes, in each slot, from the oldest to the newest."""

    @property
    def option(self) -> str:
        """The class with its options."""
        return f"Window({'updates' if self.per_update else 'rows'}={self.size}, name={self.name!r})"

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The name, "/window"."""
        return (f"/{self.name}",)

    def begin(self, layout: Layout) -> None:
        """Register the slots, each a matrix of sums."""
        super().begin(layout)
        self.add_state("slots", [], None)

    def num_processes(self) -> int:
        """Return the number of processes whose rows `compute` adds up."""
        available = torch.distributed.is_available() and torch.distributed.is_initialized()
        if not available or not self.sync_on_compute or not self.distributed_available_fn():
            return 1
        return max(1, torch.distributed.get_world_size(self.process_group))  # outside the group it is -1

    def _size_of(self, slot: tuple[int, int]) -> int:
        """Return the part of the window that a slot fills."""
        updates, rows = slot
        return updates if self.per_update else rows

    def added(self, rows: RowValues) -> State:
        """Return the slots with a batch added, without slots that no process can need."""
        processes, sums = self.num_processes(), rows.sums(self.layout)
        # if each process adds as many as this one; some hold the same rows
        number = math.ceil(len(rows) * processes / rows.ranking.rows.num_holders)
        filled, matrices = list(self._slots), list(self.slots)
        slot_size = max(1, -(-self.size // SLOTS))
        if filled and self._size_of(filled[-1]) < slot_size:
            updates, earlier = filled[-1]
            filled[-1], matrices[-1] = (updates + 1, earlier + number), matrices[-1] + sums
        else:
            filled.append((1, number))
            matrices.append(sums.clone())
        # a process with fewer rows per update may need more updates than this one: as many slots as there can be
        min_slots = SLOTS if processes > 1 else 0
        total = sum(self._size_of(slot) for slot in filled)
        while len(filled) > min_slots and total - self._size_of(filled[0]) >= self.size:
            total -= self._size_of(filled.pop(0))
            matrices.pop(0)
        return {"slots": matrices, "_slots": filled, "num_updates": self.num_updates + 1}

    def clock(self) -> tuple[int, int]:
        """Return the number of updates, and the number of the last updates that fill the window."""
        total = updates = 0
        for slot in reversed(self._slots):
            if total >= self.size:
                break
            total, updates = total + self._size_of(slot), updates + slot[0]
        return self.num_updates, updates

    def sums(self, clocks: Tensor) -> Sequence[Tensor]:
        """Return the sums of the slots that hold one of the last updates of the process with most of them."""
        most = int(clocks[:, 0].max())
        begin = most - int(clocks[clocks[:, 0] == most, 1].max())  # number of updates before the window
        states = dict(vars(self))  # of one moment, if another thread updates
        total, newest = self.layout.zeros(device=self.device), states["num_updates"]
        for (updates, _), matrix in zip(reversed(states["_slots"]), reversed(states["slots"]), strict=True):
            if newest <= begin:
                break
            total, newest = total + matrix.to(total.device), newest - updates
        return [total]

    def results(self, counts: Sequence[Tensor], sums: Sequence[Tensor]) -> dict[str, Result]:
        """Return the result of each metric."""
        return self.layout.results(sums[0], group=self.name)

    def merged(self, other: Any) -> State:
        """Return the slots with those of another window added, pairwise from the newest to the oldest."""
        pairs = []
        for back in range(1, max(len(self._slots), len(other._slots)) + 1):
            windows = [window for window in (self, other) if back <= len(window._slots)]
            matrices = [window.slots[-back] for window in windows]
            updates, rows = zip(*(window._slots[-back] for window in windows), strict=True)
            pairs.append(((max(updates), sum(rows)), sum(matrices[1:], matrices[0])))
        pairs.reverse()
        return {
            "slots": [matrix for _, matrix in pairs],
            "_slots": [size for size, _ in pairs],
            "num_updates": max(self.num_updates, other.num_updates),
        }

    def reset(self) -> None:
        """Forget all rows."""
        super().reset()
        self._slots, self.num_updates = [], 0

    def _check_state(self, state: Mapping[str, Any]) -> None:
        """Raise for slots without numbers of updates and rows, and for sums that no rows can give."""
        super()._check_state(state)
        clock, slots = state.get("clock"), state["slots"]
        shape = (1 + len(slots), 2)
        is_clock = isinstance(clock, Tensor) and clock.dtype == torch.int64 and clock.shape == shape
        if clock is None or not is_clock or bool((clock < 0).any()):
            raise ValueError(f"cannot load the clock of {self.option}: it must be int64 {list(shape)}, at least 0")
        for sums in slots:
            if not isinstance(sums, Tensor) or sums.shape != (self.layout.size, 3):
                raise ValueError(
                    f"cannot load the slots of {self.option}: each must be a tensor [{self.layout.size}, 3]"
                )
            self.layout.check_sums(sums)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if any(self._persistent.values()):
            clock = [(self.num_updates, len(self._slots)), *self._slots]
            destination[f"{prefix}clock"] = torch.tensor(clock, dtype=torch.int64, device="cpu")

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        clock = state_dict.pop(f"{prefix}clock", None)
        if clock is not None:
            (self.num_updates, _), *slots = clock.tolist()
            self._slots = [(updates, rows) for updates, rows in slots]
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
