"""What torchmetrics needs to hear of a metric whose state is sums: add, compute, synchronise, merge, move, load."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from itertools import accumulate
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import Module
from torchmetrics import Metric
from torchmetrics.utilities import rank_zero_warn
from torchmetrics.utilities.distributed import gather_all_tensors

from torchrecmetrics.arrays import float_dtype
from torchrecmetrics.checks import describe
from torchrecmetrics.held import Holder, States, Tally, Together
from torchrecmetrics.plots import pyplot


class Later:
    """A tensor that is made of others when somebody asks for it, once."""

    def __init__(self, make: Callable[..., Tensor], *given: Any) -> None:
        self._make, self._given = make, given
        self._made: Tensor | None = None

    def __call__(self) -> Tensor:
        """Return it."""
        if self._made is None:
            self._made = self._make(*self._given)
        return self._made


class Summary(NamedTuple):
    """What one `compute` found."""

    value: Tensor
    errors: Later
    """Standard errors of all metrics that were summarised together."""
    sizes: Later
    """Of how many rows of equal weight all of them are worth: (sum w)^2 / sum w^2."""
    place: int
    """Which of them is this one's."""
    num_users: int
    num_skipped: int
    num_unreachable: int
    num_tied: int
    values: Sequence[Tensor] = ()
    """Values of groups of rows, whose errors and sizes stand behind its own."""
    notes: Sequence[Sequence[int]] = ()
    """The four numbers of each group, as above."""

    @classmethod
    def without_error(cls, value: Tensor, num_users: int) -> Summary:
        """Return what was found where it is no mean over rows, and so has no standard error."""
        unknown = Later(_nan)
        return cls(value, unknown, unknown, 0, num_users, 0, 0, 0)

    def of_group(self, group: int) -> Summary:
        """Return what was found for a group."""
        used, skipped, unreachable, tied = self.notes[group]
        place = self.place + 1 + group
        return Summary(self.values[group], self.errors, self.sizes, place, used, skipped, unreachable, tied)

    @property
    def standard_error(self) -> Tensor:
        """Standard error of the value."""
        return self.errors()[self.place].to(self.value.device, self.value.dtype)

    @property
    def size(self) -> float:
        """How many rows of equal weight would say as much: (sum w)^2 / sum w^2; their number without weights."""
        return float(self.sizes()[self.place])


def _nan() -> Tensor:
    return torch.full((1,), torch.nan, dtype=torch.float64, device="cpu")


class SummedMetric(Metric):
    """A scalar metric whose state is two vectors of sums: batches, processes and merges reduce by addition.

    A subclass says how long the vectors are (`_keep_sums`) and what they mean (`summaries`).
    """

    is_differentiable: bool = False
    full_state_update: bool = False

    _computed: Tensor | None  # type: ignore[assignment]
    _forward_cache: Tensor | None  # type: ignore[assignment]
    _summary: Summary | None = None
    _sums_name: str
    _counts_name: str
    _holder: Holder | None = None
    """Who holds the state together with those of other metrics, or with batches that wait; None = the metric itself."""
    _told: int | None = None
    """How many of the counts, the first ones, `summaries` is told on the host; None = all."""

    @property
    def shares(self) -> Hashable | None:
        """What metrics that are updated together have in common if their counts are the same; None = none are."""
        return None

    def _keep_sums(self, name: str, sums: int, counts: int) -> None:
        """Begin with zeros, under names that say all that the value depends on.

        MetricCollection takes metrics with equal state names and equal first values for one metric.
        """
        self._sums_name, self._counts_name = f"{name}-sums", f"{name}-counts"
        kinds = (self._sums_name, sums, float_dtype(self._device)), (self._counts_name, counts, torch.int64)
        for state, length, dtype in kinds:
            self.add_state(state, [], dist_reduce_fx="sum")
            zeros = self._zeros(length, dtype, self._device)
            self._defaults[state] = zeros  # torchmetrics would have copied it, at length
            setattr(self, state, zeros)

    def _forget_sums(self) -> None:
        """Drop the state, for another one."""
        for state in (self._sums_name, self._counts_name):
            delattr(self, state)
            for known in (self._defaults, self._persistent, self._reductions):
                del known[state]

    @property
    def state_name(self) -> str:
        """What the state's names begin with: all that the value depends on."""
        return self._sums_name.removesuffix("-sums")

    @staticmethod
    def _zeros(length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an empty state."""
        return torch.zeros(length, dtype=dtype, device=device)

    @property
    def label(self) -> str:
        """Name under which the metric is logged."""
        raise NotImplementedError

    @classmethod
    def summaries(cls, metrics: Sequence[Any], states: States, counts: list[list[int]]) -> list[Summary]:
        """Turn states, whose `counts` are on the host too, into what was found: all metrics of a kind together.

        Raises:
            ValueError: for a state that holds bad input.
        """
        raise NotImplementedError

    def _take_back(self) -> None:
        """Hold the state again, with all batches."""
        holder = self.__dict__.get("_holder")
        if holder is not None:
            holder.give_back()

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        if name in own.get("_defaults", ()):
            while own.get("_holder") is not None:
                self._take_back()
                with suppress(KeyError):  # another thread's batch may have it taken again
                    return own[name]
            if name in own:
                return own[name]
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):  # a state, or what batches are counted by
            self._take_back()
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        self._take_back()
        super().__delattr__(name)

    def state(self) -> Tally:
        """Return the state as it is on this process."""
        while True:
            sums: Tensor = getattr(self, self._sums_name)
            counts: Tensor = getattr(self, self._counts_name)
            if self.__dict__.get(self._sums_name) is sums:  # else another thread's batch came between
                return Tally(sums, counts)

    def empty_state(self) -> Tally:
        """Return the state before the first batch."""
        return Tally(*(self._defaults[name] for name in (self._sums_name, self._counts_name)))  # type: ignore[arg-type]

    def hold(self, tally: Tally) -> None:
        """Hold a state that was added up elsewhere, in place of this one."""
        self._take_back()
        state = self.__dict__
        state[self._sums_name], state[self._counts_name] = tally
        state |= {"_update_count": 1, "_computed": None, "_summary": None}

    def reset(self) -> None:
        """Forget all updates; what the last `compute` found stays."""
        if (holder := self.__dict__.get("_holder")) is not None:
            holder.leave()
        # torchmetrics' own copies each default on the device; nothing writes into ours, see `Together`
        self.__dict__.update(zip((self._sums_name, self._counts_name), self.empty_state(), strict=True))
        self.restart()

    def restart(self) -> None:
        """Do all of `reset` but for the state."""
        state = self.__dict__
        if len(self._defaults) > 2:  # a subclass has states of its own
            ours = self._sums_name, self._counts_name
            state |= {name: deepcopy(default) for name, default in self._defaults.items() if name not in ours}
        state |= {"_update_count": 0, "_forward_cache": None, "_computed": None, "_cache": None, "_is_synced": False}

    def conclude(self, summary: Summary) -> None:
        """Keep what `compute` found, past Module like `Together.add`."""
        self.__dict__["_summary"] = summary
        self.__dict__["_computed"] = summary.value if self.compute_with_cache else None

    def compute(self) -> Tensor:
        """Return the value over all processes: a scalar float64 tensor; NaN and a warning if there was nothing.

        Raises:
            ValueError: if updates held bad values that could not raise at once; says how many rows of what.
        """
        collection = self.__dict__.get("_collection")
        if collection is not None and any(member is self for member in collection.values()):
            collection.settle()
        else:
            compute_together([self])
        return self.last_summary().value.clone()

    def last_summary(self) -> Summary:
        """Return what the last `compute` found."""
        if self._summary is None:
            raise RuntimeError(
                f"{self.label}: counts and standard errors are those of the last compute(); call it first"
            )
        return self._summary

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the state of another metric with the same label and options, or such a state as a dict."""
        self._reduce_states(self.mergeable(incoming_state))
        self._computed = self._summary = None

    def mergeable(self, incoming_state: dict[str, Any] | Metric) -> dict[str, Any]:
        """Return a state that may be added to this one, or raise."""
        # torchmetrics' own asks for the same class, and not for the same options
        state: Any = incoming_state.metric_state if isinstance(incoming_state, Metric) else incoming_state
        if not isinstance(state, dict):
            raise TypeError(f"{self.label} merges a metric like itself or its metric_state, got {describe(state)}")
        expected = {name: getattr(self, name).shape for name in (self._sums_name, self._counts_name)}
        if {name: getattr(value, "shape", None) for name, value in state.items()} != expected:
            raise ValueError(
                f"{self.label} merges states named like its own {list(self.metric_state)}, got {list(state)}"
            )
        here = self.state().sums.device
        for value in state.values():
            if value.device != here:
                raise ValueError(f"{self.label} is on {here}, the state on {value.device}: move one with .to(device)")
        return state

    def set_dtype(self, dst_type: str | torch.dtype) -> SummedMetric:
        """Return the metric as it is: sums stay float64 and counts int64."""
        return self

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot the value, or a sequence of values, as other torchmetrics metrics do."""
        pyplot()  # torchmetrics' own message does not name our extra
        drawn: tuple[Any, Any] = self._plot(val, ax)
        return drawn[1].figure, drawn[1]

    def _wrap_update(self, update: Callable[..., None]) -> Callable[..., None]:
        return update  # counts updates itself, after they succeeded

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        return compute  # synchronises by itself: packed, and with errors raised when all processes have agreed on them

    def _sync_dist(
        self, dist_sync_fn: Callable[..., Any] = gather_all_tensors, process_group: Any | None = None
    ) -> None:
        """Reduce both states over the processes, for `Metric.sync`: torchmetrics gathers them with a barrier each."""
        for name in (self._sums_name, self._counts_name):
            setattr(self, name, _reduce(getattr(self, name), dist_sync_fn, process_group or self.process_group))

    def _apply(self, fn: Callable[[Tensor], Tensor], *_: Any, **__: Any) -> Module:
        """Move to another device; torchmetrics' own would cast the state where `Module.to(dtype)` is called."""
        Module._apply(self, fn)  # type: ignore[no-untyped-call]
        self._device = fn(torch.zeros(1, device=self._device)).device

        def moved(state: Tensor) -> Tensor:
            dtype = float_dtype(self._device) if state.is_floating_point() else state.dtype
            if state.is_meta and self._device.type != "meta":  # to_empty(): there is nothing to move
                return torch.zeros(state.shape, dtype=state.dtype, device=self._device)
            if state.dim() == 1 and not state.stride(0):
                return self._zeros(len(state), dtype, self._device)
            return state.to(self._device, dtype)

        for name in (self._sums_name, self._counts_name):
            default = self._defaults[name]
            assert isinstance(default, Tensor)
            self._defaults[name] = moved(default)
            setattr(self, name, moved(getattr(self, name)))
        if self._forward_cache is not None:
            self._forward_cache = moved(self._forward_cache)
        if self._summary is not None:
            value = moved(self._summary.value)
            self._summary = self._summary._replace(value=value, values=[moved(each) for each in self._summary.values])
            self._computed = None if self._computed is None else value
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        for name in (self._sums_name, self._counts_name):  # a checkpoint may have been cast
            default = self._defaults[name]
            assert isinstance(default, Tensor)
            setattr(self, name, getattr(self, name).to(default.dtype))
        self._computed = self._summary = None

    def __getstate__(self) -> dict[str, Any]:
        self._take_back()
        # a copy of the metric alone does not belong to its collection
        return {key: value for key, value in super().__getstate__().items() if key not in ("_collection", "_panel")}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.label})"


def compute_together(metrics: Sequence[SummedMetric]) -> bool:
    """Compute metrics with one packed synchronisation and leave each its value; all of them, or none if one fails.

    Returns whether anything had to be done.
    """
    if all(metric._computed is not None for metric in metrics):
        return False
    together = processes_of(metrics, "sync_on_compute")
    holder = _holder_of(metrics)
    if holder is None or together:  # processes must agree on the order, so what one of them holds must not decide it
        summaries = summarize(metrics, States(None, [metric.state() for metric in metrics]), together)
    else:
        found = dict(zip(map(id, holder.metrics), summarize(holder.metrics, holder.states(), {}), strict=True))
        summaries = [found[id(metric)] for metric in metrics]
    empty = [m for m, summary in zip(metrics, summaries, strict=True) if summary.num_users == 0]
    if len(empty) < len(metrics):
        empty = [m for m in empty if m.update_called]  # a member that was left alone on purpose is no surprise
    if empty:
        rank_zero_warn(f"no row to average over, the value is nan: {', '.join(m.label for m in empty)}", UserWarning)
    for metric, summary in zip(metrics, summaries, strict=True):
        metric.conclude(summary)
    return True


def _holder_of(metrics: Sequence[SummedMetric]) -> Together | None:
    """Return who holds the states of these metrics, and no others."""
    holder = metrics[0].__dict__.get("_holder")
    same = isinstance(holder, Together) and len(holder.metrics) == len(metrics)
    return holder if same and all(metric.__dict__.get("_holder") is holder for metric in metrics) else None


Processes: TypeAlias = dict[tuple[Any, ...], list[int]]
"""How, and with which processes, metrics are to be added up, and which of them; {} if none is."""


def processes_of(metrics: Sequence[SummedMetric], when: Literal["sync_on_compute", "dist_sync_on_step"]) -> Processes:
    """Return the processes that metrics have to hear of now."""
    together: Processes = {}
    available: dict[int, bool] = {}
    for index, metric in enumerate(metrics):
        ask = metric.distributed_available_fn
        if id(ask) not in available:
            available[id(ask)] = ask()
        if available[id(ask)] and getattr(metric, when) and not metric._is_synced:
            together.setdefault((metric.dist_sync_fn, metric.process_group), []).append(index)
    return together


def summarize(metrics: Sequence[SummedMetric], states: States, together: Processes) -> list[Summary]:
    """Turn states into results, after adding those of all processes: two all-reduces however many there are."""
    if together:
        states = States(None, _reduced(metrics, states.each(), together))
    first = len(metrics) - len(states.long)
    counts: list[list[int]] = [] if states.short is None else states.short.counts.tolist()
    if states.long:
        told = [state.counts[: metric._told] for metric, state in zip(metrics[first:], states.long, strict=True)]
        numbers = torch.cat(told).tolist()  # one copy for all of them
        ends = list(accumulate([part.shape[0] for part in told]))
        counts += [numbers[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]

    kinds: dict[Callable[..., Any], list[int]] = {}
    for index, metric in enumerate(metrics):
        kinds.setdefault(metric.summaries.__func__, []).append(index)  # type: ignore[attr-defined]
    found: dict[int, Summary] = {}
    every: list[Tally] = []
    for indices in kinds.values():
        if states.short is not None and indices == list(range(first)):
            its = States(states.short)
        else:
            every = every or states.each()
            its = States(None, [every[i] for i in indices])
        some = metrics[indices[0]].summaries([metrics[i] for i in indices], its, [counts[i] for i in indices])
        found |= zip(indices, some, strict=True)
    return [found[index] for index in range(len(metrics))]


def _reduced(metrics: Sequence[SummedMetric], states: list[Tally], together: Processes) -> list[Tally]:
    """Add up the states of all processes."""
    for (gather, group), indices in together.items():
        add = partial(_reduce_packed, gather=gather or gather_all_tensors, group=group)
        several = [states[index] for index in indices]
        stands_for, parted = _shared([metrics[index] for index in indices], several)
        sums = add([state.sums for state in several] + ([] if parted is None else [parted]))
        if parted is not None and float(sums[-1]) > 0:  # somewhere they have parted
            stands_for = list(range(len(several)))
        first = sorted(set(stands_for))
        counts = dict(zip(first, add([several[place].counts for place in first]), strict=True))
        for place, index in enumerate(indices):
            states[index] = Tally(sums[place], counts[stands_for[place]])
    return states


def _shared(metrics: Sequence[SummedMetric], tallies: Sequence[Tally]) -> tuple[list[int], Tensor | None]:
    """Say whose counts stand for each metric's, if all processes share them: of those that hold the same, the first.

    Also return what tells the others whether they are one tensor here, float [1], 0 = yes; None if there are none. What
    is packed must be as long everywhere, so no process can decide that alone.
    """
    first: dict[Any, int] = {}
    stands_for = [place if m.shares is None else first.setdefault(m.shares, place) for place, m in enumerate(metrics)]
    if len(set(stands_for)) == len(metrics):
        return stands_for, None
    parted = any(tallies[place].counts is not tallies[other].counts for place, other in enumerate(stands_for))
    return stands_for, tallies[0].sums.new_full((1,), float(parted))


def _reduce_packed(vectors: Sequence[Tensor], gather: Callable[..., Any], group: Any | None) -> Sequence[Tensor]:
    """Add up vectors of any lengths over the processes, as one."""
    packed = _reduce(torch.cat(list(vectors)), gather, group)
    return torch.split(packed, [len(vector) for vector in vectors])


def _reduce(vector: Tensor, gather: Callable[..., Any], group: Any | None) -> Tensor:
    """Add up one vector over the processes."""
    if gather is not gather_all_tensors:
        return torch.stack(gather(vector, group=group)).sum(0)
    total = vector.clone()
    torch.distributed.all_reduce(total, group=group)
    return total
