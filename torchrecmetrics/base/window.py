"""`Window`: sums over the last rows, in slots, or over all rows with weights that decay with the age of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchrecmetrics.base.row_values import RowEvaluator, RowValues
from torchrecmetrics.base.state import Summary, SumState, sum_over_processes
from torchrecmetrics.checks import check_k
from torchrecmetrics.distributed import is_distributed

if TYPE_CHECKING:
    from torchrecmetrics.base.metric import RankingMetric

SLOTS = 100
"""Number of slots of a window; a window is as long as asked for, or up to one slot longer."""
ENDINGS = ("-window-sums", "-window-counts")
"""Endings of the keys of a metric's slots in a state dict."""


class Window:
    """Sums of recent rows of a collection.

    Args:
        window: number of rows over all processes, or of updates ("50 updates"); None = use `half_life`.
        half_life: number of rows over all processes after which the weight of a row is halved.
    """

    def __init__(self, window: int | str | None = None, half_life: float | None = None) -> None:
        if (window is None) == (half_life is None):
            raise ValueError("give window or half_life, one of the two")
        self.half_life: float | None = half_life
        self.per_update: bool = isinstance(window, str)
        if isinstance(window, str):
            number, _, unit = window.partition(" ")
            if unit not in ("update", "updates") or not number.isdecimal():
                raise ValueError(f"window must be a number of rows, or such as '50 updates', got {window!r}")
            window = int(number)
        if half_life is not None and (
            isinstance(half_life, bool) or not isinstance(half_life, (int, float)) or not 0 < half_life < math.inf
        ):
            raise ValueError(f"half_life must be a number of rows above 0, got {half_life!r}")
        self.size: int = 0 if window is None else check_k(window, "window")
        if window is not None and not self.per_update and self.size < SLOTS:
            raise ValueError(f"window must be at least {SLOTS} rows, one per slot, got {window}; or 'n updates'")
        unit = " updates" if self.per_update else ""
        self.option: str = f"window={self.size}{unit}" if half_life is None else f"half_life={float(half_life)}"
        """The option and its value, in messages and as a key of state dicts."""
        self._slots: list[tuple[int, list[SumState]]] = []
        self.name: str = "window" if half_life is None else "decayed"
        """Suffix of the keys of the results."""

    def __len__(self) -> int:
        """Return the number of slots that hold rows."""
        return len(self._slots)

    def check(self, metrics: Iterable[RankingMetric]) -> None:
        """Raise for metrics that count items over all lists."""
        for metric in (metric for metric in metrics if metric.of_items):
            number = metric.state().counts.numel()
            raise ValueError(
                f"{metric.label} counts over all lists, {number:,} numbers that a window of {SLOTS} slots would hold "
                f"{SLOTS} times: leave it out, or give it a collection of its own"
            )

    def add(self, rows: RowValues, sums: Sequence[SumState], first: RankingMetric) -> None:
        """Add a batch of rows; `sums` are the sums of the batch for each metric, of which `first` is the first."""
        world = 1  # number of processes that `compute` sums over; a process outside the group has the size -1
        if is_distributed() and first.sync_on_compute and first.distributed_available_fn():
            world = max(1, torch.distributed.get_world_size(first.process_group))
        number = rows.values.shape[1]
        if self.half_life is not None:
            self._add_decayed(rows, number, world)
            return
        step = 1 if self.per_update else number * world
        slot = max(1, -(-self.size // SLOTS))
        if self._slots and self._slots[-1][0] < slot:
            held, states = self._slots[-1]
            self._slots[-1] = held + step, _sum(states, sums)
        else:
            self._slots.append((step, list(sums)))
        total = sum(held for held, _ in self._slots)
        while total - self._slots[0][0] >= self.size:
            total -= self._slots.pop(0)[0]

    def _add_decayed(self, rows: RowValues, number: int, world: int) -> None:
        """Add a batch with each row weighted by its age in rows, and decay the sums of earlier batches."""
        assert self.half_life is not None
        age = torch.arange(number - 1, -1, -1, dtype=rows.values.dtype, device=rows.values.device) * world
        weights = torch.exp2(-age / self.half_life)
        weights = weights * (rows.mask.to(weights.dtype) if rows.weights is None else rows.weights)
        added = _states(rows._replace(weights=weights.expand(len(rows.values), -1)))
        if self._slots:
            old = 0.5 ** (number * world / self.half_life)
            factors = torch.tensor([old, old, old**2, old**2, old**2], dtype=torch.float64, device="cpu")
            aged = []
            for state in self._slots[0][1]:
                by = factors.to(state.sums).repeat(len(state.sums) // 5)
                aged.append(SumState(state.sums * by, state.counts))
            added = _sum(aged, added)
        self._slots = [(number, added)]

    def summaries(self, evaluator: RowEvaluator) -> list[Summary]:
        """Return the results of `evaluator.metrics`, over all processes."""
        metrics = evaluator.metrics
        states = [metric.empty_state() for metric in metrics]
        for _, slot in self._slots:
            states = _sum(slot, states)
        first = metrics[0]
        if first.sync_on_compute and first.distributed_available_fn():
            gather: Callable[..., Any] | None = first.dist_sync_fn
            states = _synchronised(states, gather, first.process_group)
        return type(first).summaries(metrics, states)

    def clear(self) -> None:
        """Forget all rows."""
        self._slots = []

    def extend(self, other: Window, places: Sequence[int]) -> None:
        """Add the slots of another window, where metrics have other places, pairwise from the newest to the oldest."""
        merged = []
        added = [(held, [slot[place] for place in places]) for held, slot in other._slots]
        for back in range(1, max(len(self._slots), len(added)) + 1):
            both = [slots[-back] for slots in (self._slots, added) if back <= len(slots)]
            held = sum(number for number, _ in both)
            merged.append((held, both[0][1] if len(both) == 1 else _sum(both[0][1], both[1][1])))
        self._slots = merged[::-1]

    def save_to(self, destination: dict[str, Any], prefix: str, metrics: Mapping[str, RankingMetric]) -> None:
        """Write the slots into a state dict; `metrics` by the names of their states there."""
        if not self._slots:
            return
        if any(metric._is_synced for metric in metrics.values()):
            raise ValueError(
                f"sync() does not add up {self.option}: save the state of each process without sync(), in a file of "
                "its own, and load it on that process"
            )
        destination[f"{prefix}{self.option}"] = torch.tensor([held for held, _ in self._slots], device="cpu")
        for place, (name, metric) in enumerate(metrics.items()):
            device = metric.state().sums.device  # slots may be older than a move
            for part, ending in enumerate(ENDINGS):
                parts = [slot[place][part].to(device) for _, slot in self._slots]
                destination[f"{prefix}{name}{ending}"] = torch.stack(parts)

    def load_from(self, state_dict: dict[str, Any], prefix: str, metrics: Mapping[str, RankingMetric]) -> None:
        """Replace the slots by those of a state dict, which are removed from it; raise for those of other metrics."""
        own = [key.removeprefix(prefix) for key in state_dict if key.startswith(prefix)]
        for option in own:
            if option.startswith(("window=", "half_life=")) and option != self.option:
                raise ValueError(f"the state has {option}, the collection has {self.option}: make both alike")
        saved = {key.removesuffix(ENDINGS[0]) for key in own if key.endswith(ENDINGS[0])}
        if saved and (lone := saved ^ metrics.keys()):
            raise ValueError(f"windows of the same metrics can be loaded; only one of the two has {sorted(lone)}")
        states = []
        for name, metric in metrics.items() if saved else ():
            given = [state_dict.pop(f"{prefix}{name}{ending}") for ending in ENDINGS]
            parts = [part.to(empty, copy=True) for part, empty in zip(given, metric.empty_state(), strict=True)]
            states.append([SumState(*state) for state in zip(*parts, strict=True)])
        rows = state_dict.pop(f"{prefix}{self.option}").tolist() if saved else []
        self._slots = [(held, list(slot)) for held, *slot in zip(rows, *states, strict=True)]


def _states(rows: RowValues) -> list[SumState]:
    """Return the sums of a batch, one state per metric."""
    sums, counts = rows.sums()
    return [SumState(*state) for state in zip(sums.unbind(), counts.unbind(), strict=True)]


def _sum(states: Sequence[SumState], added: Sequence[SumState]) -> list[SumState]:
    """Return sums of states, on the device of `added`: the metrics may have moved since `states` were added up."""
    here = [SumState(*map(Tensor.to, state, new)) for state, new in zip(states, added, strict=True)]
    sums = torch._foreach_add([state.sums for state in here], [state.sums for state in added])
    counts = torch._foreach_add([state.counts for state in here], [state.counts for state in added])
    return [SumState(*state) for state in zip(sums, counts, strict=True)]


def _synchronised(states: Sequence[SumState], gather: Any, group: Any) -> list[SumState]:
    """Sum states over the processes by two all-reduces."""
    from torchmetrics.utilities.distributed import gather_all_tensors

    totals = []
    for part in range(2):
        vectors: list[Tensor] = [state[part] for state in states]
        packed = sum_over_processes(torch.cat(vectors), gather or gather_all_tensors, group)
        totals.append(torch.split(packed, [len(vector) for vector in vectors]))
    return [SumState(*state) for state in zip(*totals, strict=True)]
