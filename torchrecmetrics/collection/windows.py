"""`Window`: the value of recent rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

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
    processes, it holds the last `rows / processes` rows of each, as TorchRec's windows do. A process that stops
    updating keeps its last rows in the window.

    Args:
        rows: number of rows over all processes, at least 100; None = use `updates`.
        updates: number of updates of each process, in place of `rows`.
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
        self._sizes: list[int] = []
        """Number of updates, or of rows over all processes, in each slot, from the oldest to the newest."""

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

    def added(self, rows: RowValues) -> State:
        """Return the slots with a batch added, without those that are older than the window."""
        sums, number = rows.sums(self.layout), 1
        if not self.per_update:  # as if each process added as many; some hold the same rows
            number = math.ceil(len(rows) * self.num_processes() / rows.ranking.rows.num_holders)
        sizes, slots = list(self._sizes), list(self.slots)
        if sizes and sizes[-1] < -(-self.size // SLOTS):
            sizes[-1], slots[-1] = sizes[-1] + number, slots[-1] + sums
        else:
            sizes.append(number)
            slots.append(sums.clone())
        return self._newest(sizes, slots)

    def _newest(self, sizes: list[int], slots: list[Tensor]) -> State:
        """Return the states of the newest slots that fill the window."""
        total, number = 0, 0
        while number < len(sizes) and total < self.size:
            number += 1
            total += sizes[-number]
        oldest = len(sizes) - number
        return {"slots": slots[oldest:], "_sizes": sizes[oldest:]}

    def totals(self) -> State:
        """Return the sums of all slots."""
        return {"sums": sum((slot.to(self.device) for slot in self.slots), self.layout.zeros(device=self.device))}

    def results(self, totals: State) -> dict[str, Result]:
        """Return the result of each metric."""
        return self.layout.results(totals["sums"], group=self.name)

    def merged(self, other: Any) -> State:
        """Return the slots with those of another window added, pairwise from the newest to the oldest."""
        length, sizes, slots = max(len(self._sizes), len(other._sizes)), [], []
        for back in range(length, 0, -1):
            windows = [window for window in (self, other) if back <= len(window._sizes)]
            numbers = [window._sizes[-back] for window in windows]
            sizes.append(max(numbers) if self.per_update else sum(numbers))
            slots.append(sum((window.slots[-back] for window in windows[1:]), windows[0].slots[-back]))
        return self._newest(sizes, slots)

    def reset(self) -> None:
        """Forget all rows."""
        super().reset()
        self._sizes = []

    def _check_state(self, state: Mapping[str, Any]) -> None:
        """Raise for slots without sizes, and for sums that no rows can give."""
        super()._check_state(state)
        sizes, slots = self._saved_sizes(state), state["slots"]
        if not isinstance(sizes, Tensor) or sizes.dtype != torch.int64 or sizes.shape != (len(slots),):
            raise ValueError(f"cannot load the sizes of {self.option}: they must be int64 [{len(slots)}]")
        if bool((sizes < 0).any()):
            raise ValueError(f"cannot load the sizes of {self.option}, which has sizes below 0")
        for sums in slots:
            if not isinstance(sums, Tensor) or sums.shape != (self.layout.size, 3):
                raise ValueError(
                    f"cannot load the slots of {self.option}: each must be a tensor [{self.layout.size}, 3]"
                )
            self.layout.check_sums(sums)

    def _saved_sizes(self, state: Mapping[str, Any]) -> Any:
        """Return the sizes of slots in a state dict; older ones hold `clock`, of updates and rows, with a first row."""
        return state["clock"][1:, 0 if self.per_update else 1] if "clock" in state else state.get("sizes")

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if any(self._persistent.values()):
            destination[f"{prefix}sizes"] = torch.tensor(self._sizes, dtype=torch.int64, device="cpu")

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        names = [f"{prefix}{name}" for name in ("sizes", "clock") if f"{prefix}{name}" in state_dict]
        saved = {name.removeprefix(prefix): state_dict.pop(name) for name in names}
        if saved:
            self._sizes = self._saved_sizes(saved).tolist()
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
