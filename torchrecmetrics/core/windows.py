"""`Window` and `Decay`: the values of recent rows, and of rows with weights that decay with their age."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchrecmetrics.core.accumulators import Accumulator, State
from torchrecmetrics.core.arrays import ordinary_tensors
from torchrecmetrics.core.checks import check_k
from torchrecmetrics.core.rows import Layout, RowValues, Summary

SLOTS = 100
"""Number of slots of a window, which is up to one slot and one batch longer than asked for."""


class _Recent(Accumulator):
    """Base of accumulators of recent rows, which count updates and rows of this process on the host."""

    num_sums: int = 1

    def __init__(self, name: str) -> None:
        super().__init__()
        if not name or "/" in name or "." in name:
            raise ValueError(f"name is a part of keys, without '/' and '.', got {name!r}")
        self.name: str = name
        self.num_updates: int = 0
        self.num_rows: int = 0

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The name, "/window"."""
        return (f"/{self.name}",)

    def results(self, counts: Sequence[Tensor], sums: Sequence[Tensor]) -> dict[str, Summary]:
        """Return the result of each metric."""
        return {f"{key}/{self.name}": summary for key, summary in self.layout.summaries(sums[0]).items()}

    def num_processes(self) -> int:
        """Return the number of processes whose rows `compute` adds up."""
        available = torch.distributed.is_available() and torch.distributed.is_initialized()
        if not available or not self.sync_on_compute or not self.distributed_available_fn():
            return 1
        return max(1, torch.distributed.get_world_size(self.process_group))  # outside the group it is -1

    def rows_of_all(self, rows: RowValues) -> float:
        """Return the number of rows of an update over all processes, if the others add as many as this one."""
        holders = 1 if rows.ranking is None else rows.ranking.num_holders  # of the same rows
        return len(rows) * self.num_processes() / holders

    def reset(self) -> None:
        """Forget all rows."""
        super().reset()
        self.num_updates = self.num_rows = 0

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if any(self._persistent.values()):
            destination[f"{prefix}clock"] = torch.tensor(self._clock(), dtype=torch.int64, device="cpu")

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        clock = state_dict.pop(f"{prefix}clock", None)
        if clock is not None:
            self._set_clock(clock.tolist())
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _clock(self) -> list[Any]:
        return [self.num_updates, self.num_rows]

    def _set_clock(self, clock: list[Any]) -> None:
        self.num_updates, self.num_rows = clock


class Window(_Recent):
    """The value of the last rows, under keys like `HR@10/window`.

    Sums are kept in 100 slots of whole batches, so the window is up to a slot and a batch longer. Over several
    processes, each numbers its updates, and the window holds the same numbers of all: the last ones, as many as the
    process with most updates needs to fill its share of the rows. So a process that stops updating drops out.

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
        ...     collection.update(ranks)
        >>> collection.result().floats()
        {'HR@1': 0.25, 'HR@1/window': 0.5}
    """

    def __init__(self, rows: int | None = None, *, updates: int | None = None, name: str = "window") -> None:
        super().__init__(name)
        if (rows is None) == (updates is None):
            raise ValueError("give rows or updates, one of the two")
        self.per_update: bool = rows is None
        self.size: int = check_k(updates, "updates") if rows is None else check_k(rows, "rows")
        if rows is not None and self.size < SLOTS:
            raise ValueError(f"rows must be at least {SLOTS}, one per slot, got {rows}; or updates= for fewer rows")
        self._slots: list[tuple[int, int]] = []
        """Number of updates, and of rows over all processes, in each slot, from the oldest to the newest."""

    @property
    def option(self) -> str:
        """The class with its options."""
        return f"Window({'updates' if self.per_update else 'rows'}={self.size}, name={self.name!r})"

    slots: list[Tensor]
    """Sums of the rows of each slot, float [layout.size, 3]."""

    def begin(self, layout: Layout) -> None:
        """Register the slots, each a matrix of sums."""
        super().begin(layout)
        self.add_state("slots", [], None)

    def _size_of(self, slot: tuple[int, int]) -> int:
        """Return the part of the window that a slot fills."""
        updates, rows = slot
        return updates if self.per_update else rows

    def added(self, rows: RowValues) -> State:
        """Return the slots with a batch added, without those that no process can need."""
        number, sums = math.ceil(self.rows_of_all(rows)), rows.sums(self.layout)
        filled, matrices = list(self._slots), list(self.slots)
        slot_size = max(1, -(-self.size // SLOTS))
        if filled and self._size_of(filled[-1]) < slot_size:
            updates, earlier = filled[-1]
            filled[-1], matrices[-1] = (updates + 1, earlier + number), matrices[-1] + sums
        else:
            filled.append((1, number))
            matrices.append(sums.clone())
        # a process with fewer rows per update may need more updates than this one: as many slots as there can be
        min_slots = SLOTS if self.num_processes() > 1 else 0
        total = sum(self._size_of(slot) for slot in filled)
        while len(filled) > min_slots and total - self._size_of(filled[0]) >= self.size:
            total -= self._size_of(filled.pop(0))
            matrices.pop(0)
        return {
            "slots": matrices,
            "_slots": filled,
            "num_updates": self.num_updates + 1,
            "num_rows": self.num_rows + number,
        }

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
            "num_rows": self.num_rows + other.num_rows,
        }

    def reset(self) -> None:
        """Forget all rows."""
        super().reset()
        self._slots = []

    def _clock(self) -> list[Any]:
        return [[self.num_updates, self.num_rows], *map(list, self._slots)]

    def _set_clock(self, clock: list[Any]) -> None:
        (self.num_updates, self.num_rows), *slots = clock
        self._slots = [(updates, rows) for updates, rows in slots]


class Decay(_Recent):
    """The value with the weight of a row halved for every `half_life` later rows, under keys like `HR@10/decayed`.

    Rows of other processes age a row, too: its age is the number of later rows of its own process times the number of
    processes. Rows of a process that made fewer updates than another one age by its mean number of rows per update for
    each update that it is behind.

    Args:
        half_life: number of rows over all processes, > 0.
        name: ending of the keys.

    Metrics that are not means over rows, such as Coverage, have no such value.
    """

    def __init__(self, half_life: float, *, name: str = "decayed") -> None:
        super().__init__(name)
        if isinstance(half_life, bool) or not isinstance(half_life, (int, float)) or not 0 < half_life < math.inf:
            raise ValueError(f"half_life must be a number of rows above 0, got {half_life!r}")
        self.half_life: float = float(half_life)

    @property
    def option(self) -> str:
        """The class with its options."""
        return f"Decay(half_life={self.half_life}, name={self.name!r})"

    decayed_sums: Tensor

    def begin(self, layout: Layout) -> None:
        """Register the decayed sums."""
        super().begin(layout)
        with ordinary_tensors():
            self.add_state("decayed_sums", layout.zeros(device=self._device), None)

    def added(self, rows: RowValues) -> State:
        """Return the sums with a batch added, in which older rows weigh less."""
        number = self.rows_of_all(rows)
        age = torch.arange(len(rows) - 1, -1, -1, dtype=rows.values.dtype, device=rows.values.device)
        age = age * (number / max(1, len(rows)))
        batch = rows.sums(self.layout, factors=torch.exp2(-age / self.half_life))
        return {
            "decayed_sums": self._aged(self.decayed_sums, number) + batch,
            "num_updates": self.num_updates + 1,
            "num_rows": self.num_rows + math.ceil(number),
        }

    def _aged(self, sums: Tensor, rows: float) -> Tensor:
        """Return sums in which each row is so many rows older: w decays, w^2 decays twice as fast, counts stay."""
        factor = 2 ** (-rows / self.half_life)
        columns = [torch.ones_like(sums[:, :1]), torch.full_like(sums[:, :1], factor)]
        return sums * torch.cat([*columns, torch.full_like(sums[:, :1], factor * factor)], 1)

    def clock(self) -> tuple[int, int]:
        """Return the number of updates."""
        return self.num_updates, 0

    def sums(self, clocks: Tensor) -> Sequence[Tensor]:
        """Return the sums, older by the updates that this process is behind."""
        missing = int(clocks[:, 0].max()) - self.num_updates
        if not missing or not self.num_updates:
            return [self.decayed_sums]
        return [self._aged(self.decayed_sums, missing * self.num_rows / self.num_updates)]

    def merged(self, other: Any) -> State:
        """Return the sums with those of another one added, as of two processes with equal clocks."""
        return {
            "decayed_sums": self.decayed_sums + other.decayed_sums,
            "num_updates": max(self.num_updates, other.num_updates),
            "num_rows": self.num_rows + other.num_rows,
        }
