"""`Accumulator`: base class for other summaries of row values than their mean.

An accumulator is a torchmetrics Metric with ordinary states. For each batch, a metric or collection calls `check` and
`added`, and assigns the new states when all of them exist. It sums `totals` over the processes with its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn import Module
from torchmetrics import Metric

from torchrecmetrics.core.arrays import float_dtype, ordinary_tensors
from torchrecmetrics.core.checks import Checks
from torchrecmetrics.core.distributed import sum_over_processes
from torchrecmetrics.core.result import Layout, Result, RowValues

if TYPE_CHECKING:
    from typing_extensions import Self

State = dict[str, Any]
"""New values of states by name."""


class BareMetric(Metric):
    """torchmetrics' `Metric` without wrappers around `update` and `compute`; states keep their dtype."""

    is_differentiable: bool = False
    full_state_update: bool = False
    _signed_states: ClassVar[tuple[str, ...]] = ()
    """Names of integer states that may be below 0."""

    def __prepare_scriptable__(self) -> Self:
        """Raise for `torch.jit.script`, which compiles all methods of a module and of its submodules."""
        raise TypeError(
            f"torch.jit.script cannot compile {type(self).__name__}: a metric stays outside of the compiled model, and "
            "is updated with its output"
        )

    def set_dtype(self, dst_type: str | torch.dtype) -> Self:
        """Return the metric unchanged: sums stay float64 and counts int64."""
        return self

    def _wrap_update(self, update: Callable[..., Any]) -> Callable[..., Any]:
        return update

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        return compute

    def _apply(self, fn: Any, *_: Any, **__: Any) -> Module:
        """Move to another device; torchmetrics' own method also casts the state when `Module.to(dtype)` is called."""
        Module._apply(self, fn)  # type: ignore[no-untyped-call]
        move_states(self, fn)
        self._computed = None
        return self

    def _check_state(self, state: Mapping[str, Any]) -> None:
        """Raise if states of a state dict, by name, are impossible.

        Raises:
            ValueError: for a state that is missing or has another shape, and for counts below 0.
        """
        for name, default in self._defaults.items():
            value: Any = state.get(name)
            if type(value) is not type(default) or getattr(value, "shape", None) != getattr(default, "shape", None):
                raise ValueError("can only load states of the same metrics, options and accumulators")
            if name in self._signed_states or not isinstance(value, Tensor) or value.is_floating_point():
                continue
            if bool((value < 0).any()):
                raise ValueError(f"cannot load the state {name}, which has counts below 0")

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        for name, default in self._defaults.items():  # a checkpoint may have been cast, or lie on another device
            if isinstance(default, Tensor):
                vars(self)[name] = getattr(self, name).to(self.device, default.dtype)


class Accumulator(BareMetric):
    """Base class of accumulators, which summarise row values in other ways than the mean over all rows.

    A subclass sets `columns`, registers states in `begin`, and returns their new values from `added`. `totals` returns
    tensors that are summed over the processes, from which `results` makes results.

    Attributes:
        columns: names of the `update` keywords that it reads, each with one value per row.
    """

    columns: tuple[str, ...] = ()
    keeps_rows: ClassVar[bool] = False
    """True if it keeps the value of every row, by id."""

    @property
    def row_groups(self) -> tuple[str, ...]:
        """Names of the groups whose numbers its column holds; empty if it has no groups."""
        return ()

    def begin(self, layout: Layout) -> None:
        """Register the states; `layout` describes the sums of rows."""
        self.layout: Layout = layout

    @property
    def option(self) -> str:
        """The class with its options, which states and messages name: `Window(rows=1000)`."""
        return f"{type(self).__name__}()"

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Endings of the keys of its results: "/cold"."""
        return ()

    def check(self, num_rows: int, columns: Mapping[str, Tensor], checks: Checks) -> None:
        """Raise for columns that do not fit; `checks` rejects rows with bad values.

        `columns` also holds the `weights`, if they were given.
        """

    def added(self, rows: RowValues) -> State:
        """Return the new value of each state after a batch; changes no state."""
        raise NotImplementedError

    def totals(self) -> State:
        """Return the tensors that are summed over the processes, by name."""
        return {}

    def results(self, totals: State) -> dict[str, Result]:
        """Return the results by key, such as `HR@10/cold`, from the summed `totals`."""
        return {}

    def batch_totals(self, rows: RowValues) -> State | None:
        """Return the `totals` of one batch, for `forward`; None if a single batch has no results."""
        return None

    def merged(self, other: Accumulator) -> State:
        """Return the new value of each state with the states of another accumulator added."""
        return {name: getattr(self, name) + getattr(other, name) for name in self._defaults}

    def empty_copy(self) -> Accumulator:
        """Return an accumulator with the same options, without rows, that belongs to no metric."""
        copy = deepcopy(self)
        copy.reset()
        vars(copy).pop("layout", None)
        return copy

    def reset(self) -> None:
        """Forget all rows."""
        own_lists(self)
        super().reset()

    def assign(self, state: State) -> None:
        """Replace states; never raises."""
        vars(self).update(state)  # Module.__setattr__ takes longer than the sums

    # ----------------------------------------------------------------------------------------- methods of torchmetrics

    def update(self, *_: Any, **__: Any) -> None:
        """Raise: the metric or collection adds batches."""
        raise TypeError(f"{self.option} has no update of its own: update the collection that it was given to")

    def compute(self) -> Any:
        """Raise: the metric or collection computes the results."""
        raise TypeError(f"{self.option} has no value of its own: compute the collection that it was given to")

    def _sync_dist(self, dist_sync_fn: Any = None, process_group: Any | None = None) -> None:
        """Sum states over the processes where that is possible; other states stay as they are."""
        names = [name for name, reduction in self._reductions.items() if reduction is not None]
        states = sum_over_processes([getattr(self, name) for name in names], dist_sync_fn, process_group)
        self.assign(dict(zip(names, states, strict=True)))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        if any(self._persistent.values()) and self._is_synced and None in self._reductions.values():
            raise ValueError(
                f"sync() does not add up {self.option}: save the state of each process to its own file, "
                "without sync(), and load it on that process"
            )
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def __repr__(self) -> str:
        return self.option


class Summed(Accumulator):
    """Base class of accumulators whose states all add up over rows, such as `ByGroup` and counts of items.

    A subclass returns the states of no rows from `empty`, and adds a batch in `added_to`.
    """

    def empty(self) -> State:
        """Return the states of no rows, by name, on `self._device`."""
        raise NotImplementedError

    def added_to(self, state: State, rows: RowValues) -> State:
        """Return states with those of a batch added."""
        raise NotImplementedError

    def begin(self, layout: Layout) -> None:
        """Register the states."""
        super().begin(layout)
        with ordinary_tensors():
            for name, value in self.empty().items():
                self.add_state(name, value, "sum")

    def added(self, rows: RowValues) -> State:
        """Return the states with those of a batch added."""
        return self.added_to(self.totals(), rows)

    def totals(self) -> State:
        """Return the states."""
        states: State = self.metric_state
        return states

    def batch_totals(self, rows: RowValues) -> State:
        """Return the states of one batch."""
        return self.added_to({name: torch.zeros_like(value) for name, value in self.totals().items()}, rows)


def own_lists(metric: Metric) -> None:
    """Copy a metric's lists before `reset` clears them, since a copy or a state dict may share them."""
    for name, default in metric._defaults.items():
        if isinstance(default, list):
            vars(metric)[name] = []


def move_states(metric: Metric, fn: Callable[[Tensor], Tensor]) -> None:
    """Move states to the device to which `fn` moves; torchmetrics' own `_apply` also casts them to another dtype."""
    metric._device = device = fn(torch.zeros(1, device=metric._device)).device

    def moved(value: Any, in_list: bool = False) -> Any:
        if isinstance(value, (list, tuple)):  # of rows, such as float32 scores, which stay float32
            return type(value)(moved(entry, True) for entry in value)
        if isinstance(value, Mapping):
            return {name: moved(entry) for name, entry in value.items()}
        if not isinstance(value, Tensor):
            return value
        is_sum = value.dtype == torch.float64 or (value.dtype == torch.float32 and not in_list)
        dtype = float_dtype(device) if is_sum else value.dtype
        if value.is_meta and device.type != "meta":  # to_empty(): there is no data to move
            return torch.zeros(value.shape, dtype=dtype, device=device)
        return value.to(device, dtype)

    with ordinary_tensors():
        for name in metric._defaults:
            metric._defaults[name] = moved(metric._defaults[name])
            vars(metric)[name] = moved(getattr(metric, name))
