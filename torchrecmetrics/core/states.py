"""`SummedStates`: base of metrics whose states, with those of their accumulators, add up over batches and processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import Module
from torchmetrics import Metric
from torchmetrics.utilities.distributed import gather_all_tensors
from torchmetrics.utilities.exceptions import TorchMetricsUserError

from torchrecmetrics.core.accumulators import Accumulator, BareMetric, State, own_lists
from torchrecmetrics.core.arrays import float_dtype, ordinary_tensors
from torchrecmetrics.core.checks import VIOLATIONS
from torchrecmetrics.core.distributed import sum_over_processes
from torchrecmetrics.core.rows import Layout, RowValues, Summary

ARGUMENTS = ("scores", "target", "gains", "exclude", "weights", "depth")
"""Parameters of `update`."""


class Totals(NamedTuple):
    """States that are summed over the processes."""

    counts: list[Tensor]
    """Int64: the metric's own, then those of its accumulators."""
    sums: list[Tensor]


class SummedStates(BareMetric):
    """Base of `Evaluator`: registers, adds, merges, moves, saves and synchronises states.

    The states are the matrix `<name>-sums` (see `Layout`), `<name>-violations` by kind and, for devices without
    float64, `<name>-counts` of rows. Updates replace them and never write to them: torchmetrics shares states between
    members of a compute group, copies and state dicts. With `persistent(True)` a state dict has this process's sums:
    for a checkpoint of several processes call `sync()` before saving, and after loading `reset()` on all processes but
    one.
    """

    _computed: Any
    """Number of updates and results of the last `compute`; None = the states have changed since."""
    _forward_cache: Any
    _results: dict[str, Summary]

    @property
    def label(self) -> str:
        """Name of the metric in messages."""
        raise NotImplementedError

    def _begin_states(self, name: str, layout: Layout, accumulators: Sequence[Accumulator]) -> None:
        """Register empty states; `name` contains everything that values depend on."""
        self.state_name: str = name
        self.layout: Layout = layout
        self.accumulators: nn.ModuleList = nn.ModuleList(accumulators)
        self._added_up: list[Accumulator] = list(accumulators)
        self.columns: dict[str, Accumulator] = {}
        """Accumulators by the names of the columns that they read from `update`."""
        for accumulator in accumulators:
            for column in accumulator.columns:
                if column in self.columns:
                    raise ValueError(f"{self.columns[column].option} and {accumulator.option} both read {column}=")
                if column in ARGUMENTS:
                    raise ValueError(f"{accumulator.option} reads {column}=, which update has itself: rename it")
                self.columns[column] = accumulator
            if hasattr(accumulator, "layout"):
                raise ValueError(f"{accumulator.option} is in a metric or collection already: make one for each")
            for option in ("sync_on_compute", "dist_sync_fn", "process_group", "distributed_available_fn", "_device"):
                setattr(accumulator, option, getattr(self, option))
            accumulator.begin(layout)
        self._sums, self._violations, self._counts = (f"{name}-{state}" for state in ("sums", "violations", "counts"))
        with ordinary_tensors():
            sums = layout.zeros(device=self._device)
            violations = torch.zeros(len(VIOLATIONS), dtype=torch.int64, device=self._device)
            counts = violations.new_zeros(layout.num_counts)
            if not layout.keys:  # nothing reads these sums; torchmetrics does not merge metrics whose states are NaN
                sums = sums.fill_(torch.nan)
        for state, empty in ((self._sums, sums), (self._violations, violations), (self._counts, counts)):
            self.add_state(state, empty, dist_reduce_fx="sum")
        self._synced: Totals | None = None

    def add(self, rows: RowValues) -> None:
        """Add a batch of rows to the states, and those of accumulators; all new ones exist before one is replaced."""
        with ordinary_tensors():
            attributes = vars(self)  # Module.__setattr__ takes longer than the additions
            batch, new = rows.sums(self.layout), {}
            if rows.violations is not None:
                new[self._violations] = attributes[self._violations] + rows.violations
            if batch.dtype != torch.float64:  # float32 stalls at 2^24
                number = self.layout.num_counts
                new[self._counts] = attributes[self._counts] + batch[:number, 0].long()
                batch = torch.cat([torch.nn.functional.pad(batch[:number, 1:], (1, 0)), batch[number:]])
            new[self._sums] = attributes[self._sums] + batch
            added = [(accumulator, accumulator.added(rows)) for accumulator in self._added_up]
        for accumulator, state in added:
            accumulator.assign(state)
        attributes.update(new)
        attributes["_update_count"] += 1
        self._forget_results()

    def _forget_results(self) -> None:
        """Forget the results of the last `compute` and the gathered rows, which are not of the states any more."""
        vars(self).update(_computed=None, _results={}, _gathered=None)

    def _totals(self, sync: bool) -> Totals:
        """Return the states, and those of the accumulators, summed over the processes: by two all-reduces."""
        states, accumulators = vars(self), self._added_up
        counts = [states[self._violations], states[self._counts]]
        counts += [count for accumulator in accumulators for count in accumulator.counts()]
        clocks = [clock for accumulator in accumulators for clock in accumulator.clock()]
        across = sync and self.distributed_available_fn()
        world, rank = 1, 0
        if across:
            world = torch.distributed.get_world_size(self.process_group)
            rank = torch.distributed.get_rank(self.process_group)
        all_clocks = torch.zeros(world, len(clocks), dtype=torch.int64, device="cpu")
        all_clocks[rank] = torch.tensor(clocks, dtype=torch.int64, device="cpu")
        if across:
            *counts, all_clocks = self._reduced([*counts, all_clocks.to(counts[0].device)], self.process_group)
            all_clocks = all_clocks.cpu()
        sums = [states[self._sums]]
        for place, accumulator in enumerate(accumulators):
            sums += accumulator.sums(all_clocks[:, 2 * place : 2 * place + 2])
        return Totals(counts, self._reduced(sums, self.process_group) if across else sums)

    def _reduced(self, tensors: Sequence[Tensor], process_group: Any) -> list[Tensor]:
        return sum_over_processes(tensors, self.dist_sync_fn or gather_all_tensors, process_group)

    # ----------------------------------------------------------------------------------------- methods of torchmetrics

    def reset(self) -> None:
        """Forget all updates; the results of the last `compute` stay readable."""
        with ordinary_tensors():
            own_lists(self)
            super().reset()
            for accumulator in self._added_up:
                accumulator.reset()
        self._synced = None

    def persistent(self, mode: bool = False) -> None:
        """Set whether state dicts hold the states, those of the accumulators included."""
        super().persistent(mode)
        for accumulator in self._added_up:
            accumulator.persistent(mode)

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the state of a metric, or collection, with the same metrics and options; or such a state as a dict.

        Raises:
            TypeError: for anything else.
            ValueError: for a state of other metrics or options, or on another device. Nothing is added then.
        """
        self._check_not_synced("merge")
        with ordinary_tensors():
            new, merged = self._merged(incoming_state)
        for accumulator, state in merged:
            accumulator.assign(state)
        vars(self).update(new)
        self._forget_results()

    def _check_not_synced(self, what: str) -> None:
        if self._is_synced:
            raise TorchMetricsUserError(f"{self.label} is synchronised: call unsync() before you {what}")

    def _check_state(self, state_dict: Mapping[str, Any], prefix: str) -> None:
        """Raise if a state dict holds some of the states only, or of other shapes: torch would load what it can."""
        metrics = {prefix: self} | {f"{prefix}accumulators.{i}.": metric for i, metric in enumerate(self._added_up)}
        empty = {start + name: value for start, metric in metrics.items() for name, value in metric._defaults.items()}
        inside = [key for key in state_dict if key in empty or key.startswith(f"{prefix}accumulators.")]
        if not inside:
            return
        self._check_not_synced("load a state")
        for name, value in empty.items():
            loaded = state_dict.get(name)
            if type(loaded) is not type(value) or getattr(loaded, "shape", None) != getattr(value, "shape", None):
                raise ValueError(
                    f"{self.label} loads states of the same metrics, options and accumulators: make both alike"
                )

    def _merged(self, other: Any) -> tuple[State, list[tuple[Accumulator, State]]]:
        state: Any = other.metric_state if isinstance(other, Metric) else other
        if not isinstance(state, dict):
            raise TypeError(f"{self.label} merges a metric like itself or its metric_state, got {type(other).__name__}")
        incoming = other._added_up if isinstance(other, SummedStates) else []
        options = [[accumulator.option for accumulator in owner] for owner in (self._added_up, incoming)]
        if options[0] != options[1]:
            has = [", ".join(names) or "no accumulators" for names in options]
            raise ValueError(f"one of the two has {has[0]}, the other {has[1]}: make both alike")
        expected: dict[str, Tensor] = {name: getattr(self, name) for name in self._defaults}
        shapes = {name: value.shape for name, value in expected.items()}
        if {name: getattr(value, "shape", None) for name, value in state.items()} != shapes:
            raise ValueError(f"{self.label} merges states named like its own {list(expected)}, got {list(state)}")
        for name, value in state.items():
            if value.device != expected[name].device:
                device = expected[name].device
                raise ValueError(f"{self.label} is on {device}, the state on {value.device}: move one with .to(device)")
        new = {name: value + state[name] for name, value in expected.items()}
        pairs = zip(self._added_up, incoming, strict=True)
        return new, [(accumulator, accumulator.merged(added)) for accumulator, added in pairs]

    def __copy__(self) -> SummedStates:
        """Return a shallow copy, which shares the states until one of the two is updated."""
        copied = type(self).__new__(type(self))
        copied.__setstate__(self.__getstate__())
        copied._added_up = [copy(accumulator) for accumulator in self._added_up]
        copied._modules = {**self._modules, "accumulators": nn.ModuleList(copied._added_up)}
        return copied

    def set_sync_on_compute(self, sync: bool) -> None:
        """Set whether `compute` adds up over the processes."""
        self.sync_on_compute = sync
        for accumulator in self._added_up:
            accumulator.sync_on_compute = sync

    def _filter_kwargs(self, **kwargs: Any) -> dict[str, Any]:
        """Return the arguments that `update` has, so that a `MetricCollection` may carry others for other metrics."""
        return {name: value for name, value in kwargs.items() if name in ARGUMENTS or name in self.columns}

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Replace the states by those summed over all processes, until `unsync`; as torchmetrics' own method."""
        super().sync(*args, **kwargs)
        self._computed = None

    def unsync(self, should_unsync: bool = True) -> None:
        """Restore the states of this process."""
        was_synced = self._is_synced
        super().unsync(should_unsync)
        for accumulator in self._added_up if was_synced and should_unsync else ():
            if accumulator._is_synced:
                accumulator.unsync()
        self._synced = self._computed = None

    def _sync_dist(self, dist_sync_fn: Any = gather_all_tensors, process_group: Any | None = None) -> None:
        """Sum all states over the processes, in place of torchmetrics' gathers with barriers."""
        group = process_group or self.process_group
        self._synced = self._totals(True)
        vars(self).update({self._violations: self._synced.counts[0], self._counts: self._synced.counts[1]})
        vars(self)[self._sums] = self._synced.sums[0]
        for accumulator in self._added_up:
            accumulator.sync(dist_sync_fn, group, distributed_available=lambda: True)

    def _apply(self, fn: Any, *_: Any, **__: Any) -> Module:
        """Move states, and the last results, to another device."""
        super()._apply(fn)
        device, dtype, results = self._device, float_dtype(self._device), {}
        for key, summary in self._results.items():
            tensors = {name: value for name, value in summary._asdict().items() if isinstance(value, Tensor)}
            moved: dict[str, Any] = {name: tensor.to(device, dtype) for name, tensor in tensors.items()}
            results[key] = summary._replace(**moved)
        self._results = results
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        self._check_state(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self._forget_results()
