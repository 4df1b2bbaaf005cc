"""`SummedMetric`: a torchmetrics Metric with summed states: add, reset, merge, move, load, synchronise."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.nn import Module
from torchmetrics import Metric
from torchmetrics.utilities.distributed import gather_all_tensors
from torchmetrics.utilities.exceptions import TorchMetricsUserError

from torchrecmetrics.analysis.plots import pyplot
from torchrecmetrics.arrays import float_dtype
from torchrecmetrics.checks import describe, torch_func
from torchrecmetrics.ranking.update_args import too_many_arguments, unknown_argument

Method = TypeVar("Method", bound=Callable[..., Any])


class SumState(NamedTuple):
    """The sums and counts of a metric, or those of one batch: [n] and [m], or [metrics, n] and [metrics, m]."""

    sums: Tensor  # float64 (float32 where the device has none)
    counts: Tensor  # int64


class SparseUpdate(NamedTuple):
    """Sums and counts that one batch adds to some entries of a long state."""

    sums: tuple[Tensor, Tensor] | None  # int64 [n] indices, float [n] values; None = nothing
    counts: tuple[Tensor, Tensor]  # int64 [n] indices, int64 [n] values

    def added_to(self, state: SumState) -> SumState:
        """Return `state` plus this batch."""
        sums = state.sums if self.sums is None else state.sums.index_add(0, *self.sums)
        return SumState(sums, state.counts.index_add(0, *self.counts))


class Summary(NamedTuple):
    """The result of one `compute` of one metric, or of one group of rows."""

    value: Tensor
    standard_error: Tensor
    """NaN where it is unknown."""
    effective_size: Tensor
    """(sum w)^2 / sum w^2: the number of rows of equal weight with the same information."""
    num_users: int
    num_skipped: int = 0
    num_unreachable: int = 0
    num_tied: int = 0
    groups: Sequence[Summary] = ()

    def moved(self, move: Callable[[Tensor], Tensor]) -> Summary:
        """Return the same result with `move` applied to its tensors."""
        groups = [group.moved(move) for group in self.groups]
        value, error, size = move(self.value), move(self.standard_error), move(self.effective_size)
        return self._replace(value=value, standard_error=error, effective_size=size, groups=groups)

    @classmethod
    def without_error(cls, value: Tensor, num_users: int) -> Summary:
        """Return the result of a metric that is not a mean over rows, with an unknown standard error."""
        unknown = torch.full((), torch.nan, dtype=value.dtype, device=value.device)
        return cls(value, unknown, unknown, num_users)


@contextmanager
def ordinary_tensors() -> Iterator[None]:
    """Enter a context in which new tensors can be written to and saved, even in `inference_mode`; without autograd."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def outside_graphs(method: Method) -> Method:
    """Keep a method out of the graphs of torch.compile, as `torch.compiler.disable` does.

    `torch.compiler.disable` imports the compiler, which takes seconds; this decorator disables the method only if the
    compiler has been imported already. Arguments that the method does not have are refused by name.
    """
    parameters = inspect.signature(method).parameters.values()
    names = tuple(parameter.name for parameter in parameters)[1:]
    num_positional = sum(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)
    disabled = _disable_dynamo(method)

    @wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in names:
                raise unknown_argument(name, names)
        if len(args) > num_positional > 1:
            raise too_many_arguments(args[num_positional])
        return (disabled if "torch._dynamo" in sys.modules else method)(*args, **kwargs)

    return cast(Method, run)


class SummedMetric(Metric):
    """A scalar metric whose state is two vectors, `<name>-sums` and `<name>-counts`.

    Updates replace the vectors and never write to them: torchmetrics shares them between members of a compute group,
    copies and state dicts. With `persistent(True)` a state dict has this process's sums: for a checkpoint of several
    processes call `sync()` before saving, and after loading `reset()` on all processes but one. After updates with
    `shard=` neither is needed, since the state is the same on all processes. A subclass sets the lengths of the vectors
    (`_add_sum_states`) and returns the results (`summaries`).
    """

    is_differentiable: bool = False
    full_state_update: bool = False

    _computed: Tensor | None  # type: ignore[assignment]
    _forward_cache: Tensor | None  # type: ignore[assignment]
    _summary: Summary | None = None
    replicated: bool | None = None
    """True if the state is the same on every process, since its batches were shards of items; None = no rows yet."""
    state_name: str
    """Prefix of the states' names, which contains everything that the value depends on.

    torchmetrics' MetricCollection merges metrics whose states have equal names and equal first values.
    """

    def _add_sum_states(self, name: str, num_sums: int, num_counts: int) -> None:
        """Register an empty state of the given lengths."""
        self.state_name = name
        device = self._device
        with ordinary_tensors():
            sums = torch.zeros(num_sums, dtype=float_dtype(device), device=device)
            counts = torch.zeros(num_counts, dtype=torch.int64, device=device)
        if torch_func(sums) is not None:
            raise TypeError(
                "the metric is made inside torch.func (grad, vmap, jvp, ...): metrics have no gradient. Return the "
                "scores from the function (grad, jvp: has_aux=True), make the metric outside and call update there"
            )
        self.add_state(f"{name}-sums", sums, dist_reduce_fx="sum")
        self.add_state(f"{name}-counts", counts, dist_reduce_fx="sum")

    def _drop_sum_states(self) -> None:
        """Remove the registered state, before another state is registered."""
        for name in self._state_names:
            delattr(self, name)
            for registered in (self._defaults, self._persistent, self._reductions):
                del registered[name]

    @property
    def _state_names(self) -> tuple[str, str]:
        return f"{self.state_name}-sums", f"{self.state_name}-counts"

    @property
    def label(self) -> str:
        """Name under which the metric is logged."""
        raise NotImplementedError

    @classmethod
    def summaries(cls, metrics: Sequence[Any], states: Sequence[SumState]) -> list[Summary]:
        """Return the result of each metric of this kind from its state; waits for the device.

        Raises:
            ValueError: for a state that counts bad input.
        """
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------------------ the state

    def state(self) -> SumState:
        """Return the state of this process."""
        sums, counts = self._state_names
        return SumState(getattr(self, sums), getattr(self, counts))

    def empty_state(self) -> SumState:
        """Return the state before the first update."""
        sums, counts = self._state_names
        return SumState(self._defaults[sums], self._defaults[counts])  # type: ignore[arg-type]

    def set_state(self, state: SumState) -> None:
        """Replace the state by a state that was summed elsewhere."""
        for name, value in zip(self._state_names, state, strict=True):
            setattr(self, name, value)
        self._update_count = 1
        self._computed = self._summary = None

    def count_update(self) -> None:
        """Count an update whose rows are kept elsewhere until `compute`."""
        self._update_count += 1
        self._computed = self._summary = None

    def check_ready(self, device: torch.device) -> None:
        """Raise while the metric is synchronised, and for a batch on another device."""
        if self._is_synced:
            raise TorchMetricsUserError(f"{self.label} is synchronised: call unsync() before the next batch")
        here = getattr(self, f"{self.state_name}-sums").device
        if here != device:
            raise ValueError(f"{self.label} is on {here}, its input on {device}: move the metric with .to(device)")

    def reset(self) -> None:
        """Forget all updates; the results of the last `compute` stay readable."""
        with ordinary_tensors():
            super().reset()
        self.replicated = None

    def last_summary(self) -> Summary:
        """Return the result of the last `compute`."""
        if self._summary is None:
            raise RuntimeError(
                f"{self.label}: counts and standard errors are those of the last compute(); call it first"
            )
        return self._summary

    def _store_result(self, summary: Summary) -> None:
        self._summary = summary
        self._computed = summary.value if self.compute_with_cache else None

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the state of another metric with the same label and options, or such a state as a dict."""
        state = self.check_mergeable(incoming_state)
        with ordinary_tensors():
            self._reduce_states(state)
        if isinstance(incoming_state, SummedMetric) and self.replicated is None:
            self.replicated = incoming_state.replicated
        self._computed = self._summary = None

    def check_mergeable(self, incoming_state: dict[str, Any] | Metric) -> dict[str, Any]:
        """Return a state that may be added to this one, as a dict.

        Raises:
            TypeError: for anything but a metric or a dict.
            ValueError: for a state of another metric, of other options, or on another device.
        """
        # torchmetrics' own check compares classes and not options
        state: Any = incoming_state.metric_state if isinstance(incoming_state, Metric) else incoming_state
        if not isinstance(state, dict):
            raise TypeError(f"{self.label} merges a metric like itself or its metric_state, got {describe(state)}")
        expected = {name: getattr(self, name).shape for name in self._state_names}
        if {name: getattr(value, "shape", None) for name, value in state.items()} != expected:
            raise ValueError(
                f"{self.label} merges states named like its own {list(self.metric_state)}, got {list(state)}"
            )
        if isinstance(incoming_state, SummedMetric) and {self.replicated, incoming_state.replicated} == {True, False}:
            raise ValueError(f"{self.label}: rows with shard= and rows without are not merged")
        here = self.state().sums.device
        for value in state.values():
            if value.device != here:
                raise ValueError(f"{self.label} is on {here}, the state on {value.device}: move one with .to(device)")
        return state

    # -------------------------------------------------------------------------------------- methods of torchmetrics

    def set_dtype(self, dst_type: str | torch.dtype) -> SummedMetric:
        """Return the metric unchanged: sums stay float64 and counts int64."""
        return self

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot the value, or a sequence of values, as other torchmetrics metrics do."""
        pyplot()  # torchmetrics' own message does not name our extra
        drawn: tuple[Any, Any] = self._plot(val, ax)
        return drawn[1].figure, drawn[1]

    def _wrap_update(self, update: Any) -> Any:
        return update  # `add_to_states` counts updates, after they succeeded

    def _wrap_compute(self, compute: Any) -> Any:
        return compute  # `compute_all` synchronises packed vectors itself

    def _sync_dist(self, dist_sync_fn: Any = gather_all_tensors, process_group: Any | None = None) -> None:
        """Sum both vectors over the processes for `Metric.sync`, in place of torchmetrics' gathers with barriers."""
        for name in () if self.replicated else self._state_names:
            setattr(
                self, name, sum_over_processes(getattr(self, name), dist_sync_fn, process_group or self.process_group)
            )

    def _apply(self, fn: Any, *_: Any, **__: Any) -> Module:
        """Move to another device; torchmetrics' own method also casts the state when `Module.to(dtype)` is called."""
        Module._apply(self, fn)  # type: ignore[no-untyped-call]
        self._device = fn(torch.zeros(1, device=self._device)).device

        def moved(value: Tensor) -> Tensor:
            dtype = float_dtype(self._device) if value.is_floating_point() else value.dtype
            if value.is_meta and self._device.type != "meta":  # to_empty(): there is no data to move
                return torch.zeros(value.shape, dtype=dtype, device=self._device)
            return value.to(self._device, dtype)

        with ordinary_tensors():
            for name in self._state_names:
                self._defaults[name] = moved(self._defaults[name])  # type: ignore[arg-type]
                setattr(self, name, moved(getattr(self, name)))
            if self._forward_cache is not None:
                self._forward_cache = moved(self._forward_cache)
            if self._summary is not None:
                self._summary = self._summary.moved(moved)
                self._computed = None if self._computed is None else self._summary.value
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.replicated and any(self._persistent.values()):
            destination[f"{prefix}replicated"] = torch.tensor(True)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        self.replicated = bool(state_dict.pop(f"{prefix}replicated", False)) or None
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        for name, empty in zip(self._state_names, self.empty_state(), strict=True):  # a checkpoint may have been cast
            setattr(self, name, getattr(self, name).to(empty.dtype))
        self._computed = self._summary = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.label})"


def check_replicated(metrics: Sequence[SummedMetric], sharded: bool) -> None:
    """Raise if a state would hold rows of shards and rows of this process alone, which cannot be summed together."""
    for metric in metrics:
        if (metric.update_called or metric.replicated is not None) and bool(metric.replicated) is not sharded:
            raise ValueError(f"{metric.label} has rows {'without' if sharded else 'with'} shard=: reset it first")


def note_replicated(metrics: Sequence[SummedMetric], sharded: bool) -> None:
    """Set `replicated` of the metrics: True if their rows are of shards, and therefore the same on every process."""
    for metric in metrics:
        metric.replicated = sharded


def add_to_states(metrics: Sequence[SummedMetric], additions: Sequence[SumState | SparseUpdate]) -> None:
    """Add one batch to the state of each metric and count the update; metrics with a `SparseUpdate` come last."""
    with ordinary_tensors():
        new = _added([metric.state() for metric in metrics], additions)
    for metric, state in zip(metrics, new, strict=True):
        attributes = vars(metric)  # Module.__setattr__ takes longer than the additions
        attributes.update(zip(metric._state_names, state, strict=True))
        attributes["_update_count"] += 1
        attributes["_computed"] = attributes["_summary"] = None


def _added(states: Sequence[SumState], additions: Sequence[SumState | SparseUpdate]) -> list[SumState]:
    short = [added for added in additions if isinstance(added, SumState)]
    new: list[SumState] = []
    if short:  # two calls, however many metrics
        first = states[: len(short)]
        sums = torch._foreach_add([state.sums for state in first], [added.sums for added in short])
        counts = torch._foreach_add([state.counts for state in first], [added.counts for added in short])
        new += map(SumState, sums, counts)
    long = [added for added in additions if isinstance(added, SparseUpdate)]
    return new + [added.added_to(state) for added, state in zip(long, states[len(short) :], strict=True)]


def batch_states(metrics: Sequence[SummedMetric], additions: Sequence[SumState | SparseUpdate]) -> list[SumState]:
    """Return the states that metrics would have after only this batch."""
    pairs = zip(metrics, additions, strict=True)
    return [a if isinstance(a, SumState) else a.added_to(metric.empty_state()) for metric, a in pairs]


def sum_over_processes(vector: Tensor, gather: Any, group: Any | None) -> Tensor:
    """Sum one vector over the processes: one all-reduce, or the `dist_sync_fn` that the user gave."""
    if gather is not gather_all_tensors:
        return torch.stack(gather(vector, group=group)).sum(0)
    total = vector.clone()
    torch.distributed.all_reduce(total, group=group)
    return total
