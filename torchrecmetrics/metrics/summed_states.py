"""`SummedStates`: base of metrics whose states, and those of their accumulators, add up over batches and processes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.utilities.distributed import gather_all_tensors
from torchmetrics.utilities.exceptions import TorchMetricsUserError

from torchrecmetrics.core.arrays import ordinary_tensors
from torchrecmetrics.core.checks import VIOLATIONS
from torchrecmetrics.core.distributed import exchange, gathered, sum_over_processes
from torchrecmetrics.core.row_values import Layout, RowValues
from torchrecmetrics.metrics.accumulator import Accumulator, BareMetric, State, own_lists

ARGUMENTS = ("scores", "target", "gains", "exclude", "weights", "depth")
"""Parameters of `update`."""


class Totals(NamedTuple):
    """States that are summed over the processes."""

    violations: Tensor
    """Int64 [kinds]."""
    counts: list[Tensor]
    """Int64: the metric's own, then those of its accumulators."""
    sums: list[Tensor]


class SummedStates(BareMetric):
    """Base of `Evaluator`: registers, adds, merges, moves, saves and synchronises states.

    The states are the matrix `<name>-sums` (see `Layout`), `<name>-violations` by kind and, for devices without
    float64, `<name>-counts` of rows. Updates replace them and never write to them: torchmetrics shares states between
    members of a compute group, copies and state dicts. With `persistent(True)` a state dict has this process's sums:
    for a checkpoint of several processes call `sync()` before saving, and after loading call `reset()` on all processes
    but one.
    """

    _computed: Any
    """Number of updates and results of the last `compute`; None = the states have changed since."""
    _forward_cache: Any

    @property
    def label(self) -> str:
        """Name of the metric in messages."""
        raise NotImplementedError

    def _add_states(self, name: str, layout: Layout, accumulators: Sequence[Accumulator]) -> None:
        """Register empty states; `name` contains everything that values depend on."""
        self._state_name: str = name
        self._layout: Layout = layout
        self.accumulators: nn.ModuleList = nn.ModuleList(accumulators)
        self._accumulators: list[Accumulator] = list(accumulators)
        self._readers: dict[str, Accumulator] = {}
        """Accumulators by the names of the columns that they read from `update`."""
        for accumulator in accumulators:
            for column in accumulator.columns:
                if column in self._readers:
                    raise ValueError(f"{self._readers[column].option} and {accumulator.option} both read {column}=")
                if column in ARGUMENTS:
                    raise ValueError(f"{accumulator.option} reads {column}=, which is an argument of update: rename it")
                self._readers[column] = accumulator
            if hasattr(accumulator, "layout"):
                raise ValueError(f"{accumulator.option} already belongs to a metric or collection: make one for each")
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

    def _add_rows(self, rows: RowValues) -> None:
        """Add a batch of rows to the states, also of accumulators; all new states exist before one is replaced."""
        with ordinary_tensors():
            attributes = vars(self)  # Module.__setattr__ takes longer than the additions
            batch, new = rows.sums(self._layout), {}
            if rows.violations is not None:
                new[self._violations] = attributes[self._violations] + rows.violations
            if batch.dtype != torch.float64:  # float32 stalls at 2^24
                number = self._layout.num_counts
                new[self._counts] = attributes[self._counts] + batch[:number, 0].long()
                batch = torch.cat([torch.nn.functional.pad(batch[:number, 1:], (1, 0)), batch[number:]])
            new[self._sums] = attributes[self._sums] + batch
            added = [(accumulator, accumulator.added(rows)) for accumulator in self._accumulators]
        for accumulator, state in added:
            accumulator.assign(state)
        attributes.update(new)
        attributes["_update_count"] += 1
        self._forget_results()

    def _forget_results(self) -> None:
        """Forget the results of the last `compute`, since the states have changed."""
        vars(self)["_computed"] = None

    @property
    def _violation_counts(self) -> Tensor:
        """Number of bad rows by kind on this process (over all processes while synchronised), int64 [kinds]."""
        violations: Tensor = vars(self)[self._violations]
        return violations

    def _clear(self) -> None:
        """Forget the rows that were added, also in accumulators, and nothing else."""
        for name in (self._sums, self._violations, self._counts):
            vars(self)[name] = self._defaults[name]
        for accumulator in self._accumulators:
            accumulator.reset()

    def _all_states(self) -> tuple[Tensor, Tensor]:
        """Return the floating and the integer states, also of accumulators, as one vector each."""
        vectors: dict[bool, list[Tensor]] = {True: [], False: []}
        for owner in (self, *self._accumulators):
            for name in owner._defaults:
                value: Tensor = getattr(owner, name)
                vectors[value.is_floating_point()].append(value.flatten())
        return torch.cat(vectors[True]), torch.cat(vectors[False])

    def _replace_states(self, sums: Tensor, counts: Tensor) -> None:
        """Replace the states by two vectors that `_all_states` returned, as after one update."""
        for owner in (self, *self._accumulators):
            for name in owner._defaults:
                state: Tensor = getattr(owner, name)
                if state.is_floating_point():
                    value, sums = sums.tensor_split([state.numel()])
                else:
                    value, counts = counts.tensor_split([state.numel()])
                setattr(owner, name, value.view(state.shape))
        self._update_count = 1
        self._forget_results()

    # ------------------------------------------------------------------------------------------------------- processes

    def _totals(self, sync: bool, gather: Any = None, process_group: Any = None) -> Totals:
        """Return the states and those of the accumulators; with `sync`, summed over the processes.

        The first all-reduce has the same length whatever the metrics are, and tells whether all processes have the same
        metrics. The second sums the floats, a third the integers of accumulators, if any. `gather` and `process_group`
        replace the metric's own `dist_sync_fn` and `process_group`.
        """
        gather, group = gather or self.dist_sync_fn, process_group or self.process_group
        states, accumulators = vars(self), self._accumulators
        violations = states[self._violations]
        counts = [states[self._counts], *(count for accumulator in accumulators for count in accumulator.counts())]
        clock = [number for accumulator in accumulators for number in accumulator.clock()]
        clocks = torch.tensor([clock], dtype=torch.int64, device="cpu")
        if sync:
            violations = self._compared(violations, gather, group)
            of_float32 = states[self._sums].dtype != torch.float64
            if of_float32 or len(counts) > 1 or any(accumulator.is_recent for accumulator in accumulators):
                rows, counts = exchange(clocks[0].to(violations.device), counts, gather, group)
                clocks = rows.cpu()
        sums = [states[self._sums]]
        for place, accumulator in enumerate(accumulators):
            sums += accumulator.sums(clocks[:, 2 * place : 2 * place + 2])
        return Totals(violations, counts, sum_over_processes(sums, gather, group) if sync else sums)

    def _compared(self, violations: Tensor, gather: Any, process_group: Any) -> Tensor:
        """Return the violations summed over the processes, or raise on all of them if they have different metrics."""
        held = (
            f"{self._state_name} with {', '.join(accumulator.option for accumulator in self._accumulators) or 'none'}"
        )
        digest = hashlib.sha256(held.encode()).digest()
        number = torch.tensor([int.from_bytes(digest[:7], "big")], device=violations.device)
        rows, (total,) = exchange(number, [violations], gather, process_group)
        if bool((rows != rows[0]).any()):
            names = [f"process {number}" for number in range(len(rows))]
            if gather in (None, gather_all_tensors):
                keys = ", ".join(self._layout.keys)
                options = [accumulator.option for accumulator in self._accumulators]
                names = [f"process {n} {text}" for n, text in enumerate(gathered(f"{keys} {options}", process_group))]
            raise ValueError(f"processes differ in their metrics or accumulators: {'; '.join(names)}")
        return total

    # ----------------------------------------------------------------------------------------- methods of torchmetrics

    def reset(self) -> None:
        """Forget all updates; the results of the last `compute` stay readable."""
        with ordinary_tensors():
            own_lists(self)
            super().reset()
            for accumulator in self._accumulators:
                accumulator.reset()
        self._synced = None

    def persistent(self, mode: bool = False) -> None:
        """Set whether state dicts hold the states, those of the accumulators included."""
        super().persistent(mode)
        for accumulator in self._accumulators:
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

    def _check_not_synced(self, action: str) -> None:
        if self._is_synced:
            raise TorchMetricsUserError(f"{self.label} is synchronised: call unsync() before you {action}")

    def _check_state(self, state: Mapping[str, Any]) -> None:
        """Raise for impossible states."""
        super()._check_state(state)
        if self._layout.keys:
            self._layout.check_sums(state[self._sums])

    def _check_state_dict(self, state_dict: Mapping[str, Any], prefix: str) -> None:
        """Raise if a state dict lacks states, or holds damaged ones, since torch would load the rest."""
        owners: dict[str, BareMetric] = {prefix: self}
        owners |= {f"{prefix}accumulators.{place}.": acc for place, acc in enumerate(self._accumulators)}
        names = {start + name for start, owner in owners.items() for name in owner._defaults}
        if not any(key in names or key.startswith(f"{prefix}accumulators.") for key in state_dict):
            return
        self._check_not_synced("load a state")
        for start, owner in owners.items():
            state = {key.removeprefix(start): value for key, value in state_dict.items() if key.startswith(start)}
            try:
                owner._check_state(state)
            except ValueError as error:
                raise ValueError(f"{self.label} {error}") from None

    def _merged(self, other: Any) -> tuple[State, list[tuple[Accumulator, State]]]:
        state: Any = other.metric_state if isinstance(other, Metric) else other
        if not isinstance(state, dict):
            raise TypeError(
                f"{self.label} merges a metric of the same kind or its metric_state, got {type(other).__name__}"
            )
        incoming = other._accumulators if isinstance(other, SummedStates) else []
        options = [[accumulator.option for accumulator in owner] for owner in (self._accumulators, incoming)]
        if options[0] != options[1]:
            has = [", ".join(names) or "no accumulators" for names in options]
            raise ValueError(f"one of the two has {has[0]}, the other {has[1]}: make both the same")
        expected: dict[str, Tensor] = {name: getattr(self, name) for name in self._defaults}
        shapes = {name: value.shape for name, value in expected.items()}
        if {name: getattr(value, "shape", None) for name, value in state.items()} != shapes:
            raise ValueError(f"{self.label} merges states named {list(expected)}, got {list(state)}")
        for name, value in state.items():
            if value.device != expected[name].device:
                device = expected[name].device
                raise ValueError(f"{self.label} is on {device}, the state on {value.device}: move one with .to(device)")
        new = {name: value + state[name] for name, value in expected.items()}
        pairs = zip(self._accumulators, incoming, strict=True)
        return new, [(accumulator, accumulator.merged(added)) for accumulator, added in pairs]

    def __copy__(self) -> SummedStates:
        """Return a shallow copy, which shares the states until one of the two is updated."""
        copied = type(self).__new__(type(self))
        copied.__setstate__(self.__getstate__())
        copied._accumulators = [copy(accumulator) for accumulator in self._accumulators]
        copied._modules = {**self._modules, "accumulators": nn.ModuleList(copied._accumulators)}
        return copied

    def _set_sync_on_compute(self, sync: bool) -> None:
        """Set whether `compute` adds up over the processes."""
        self.sync_on_compute = sync
        for accumulator in self._accumulators:
            accumulator.sync_on_compute = sync

    def _known_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that `update` has."""
        return {name: value for name, value in arguments.items() if name in ARGUMENTS or name in self._readers}

    def _filter_kwargs(self, **kwargs: Any) -> dict[str, Any]:
        """Return the arguments that `update` has; a `MetricCollection` may have others for other metrics."""
        return self._known_arguments(kwargs)

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Replace the states by those summed over all processes, until `unsync`; as torchmetrics' own method."""
        super().sync(*args, **kwargs)
        self._computed = None

    def unsync(self, should_unsync: bool = True) -> None:
        """Restore the states of this process."""
        was_synced = self._is_synced
        super().unsync(should_unsync)
        for accumulator in self._accumulators if was_synced and should_unsync else ():
            if accumulator._is_synced:
                accumulator.unsync()
        self._synced = self._computed = None

    def _sync_dist(self, dist_sync_fn: Any = gather_all_tensors, process_group: Any | None = None) -> None:
        """Sum all states over the processes, in place of torchmetrics' gathers with barriers."""
        gather = None if dist_sync_fn is gather_all_tensors else dist_sync_fn
        self._synced = totals = self._totals(True, gather, process_group)
        new = {self._violations: totals.violations, self._counts: totals.counts[0], self._sums: totals.sums[0]}
        vars(self).update(new)
        for accumulator in self._accumulators:
            accumulator.sync(
                gather or self.dist_sync_fn, process_group or self.process_group, distributed_available=lambda: True
            )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        self._check_state_dict(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self._forget_results()
