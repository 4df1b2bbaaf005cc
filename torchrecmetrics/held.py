"""What metrics hold, sums and counts, and `Together`, which holds that of several as the rows of one matrix."""

from __future__ import annotations

from collections.abc import Sequence
from threading import RLock
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor
from torchmetrics.utilities.exceptions import TorchMetricsUserError


class Tally(NamedTuple):
    """A state, or what one batch adds to it: [n] each, or [metrics, n] for several metrics."""

    sums: Tensor  # float
    counts: Tensor  # int64


class Increments(NamedTuple):
    """What one batch adds to a long state, of which it touches little."""

    sums: tuple[Tensor, Tensor] | None  # int64 [n], where; float [n], how much; None = nothing
    counts: tuple[Tensor, Tensor]  # int64 [n], where; int64 [n], how much


class Tallies(NamedTuple):
    """What one batch adds to several metrics: to the first ones rows of two matrices, to the others increments."""

    short: Tally | None
    long: Sequence[Increments] = ()


class States(NamedTuple):
    """What several metrics hold: the first ones rows of two matrices, the others a state each."""

    short: Tally | None
    long: Sequence[Tally] = ()

    def each(self) -> list[Tally]:
        """Return the state of each of them."""
        short = () if self.short is None else zip(*(part.unbind() for part in self.short), strict=True)
        return [*(Tally(*row) for row in short), *self.long]

    def all_sums(self) -> Tensor:
        """Return the sums of one after the other, [n]."""
        return torch.cat([state.sums for state in self.long]) if self.short is None else self.short.sums.flatten()


Grown: TypeAlias = dict[tuple[int, int], Tensor]
"""What states and what is added to them, by identity, have become."""


class Holder(Protocol):
    """What a metric asks of who holds its state; see `Together`."""

    @property
    def device(self) -> torch.device: ...  # noqa: D102
    def give_back(self) -> None: ...  # noqa: D102
    def leave(self) -> None: ...  # noqa: D102


class Summed(Protocol):
    """What `Together` asks of a metric; see `SummedMetric`."""

    @property
    def label(self) -> str: ...  # noqa: D102
    def state(self) -> Tally: ...  # noqa: D102
    def empty_state(self) -> Tally: ...  # noqa: D102
    def reset(self) -> None: ...  # noqa: D102
    def restart(self) -> None: ...  # noqa: D102


class Together:
    """Metrics that are added to together: one operation for all states that are short, the rows of one matrix.

    From the first batch on the states are held here, and not by the metrics: a metric that is asked for its own has all
    of them given back, see `SummedMetric.__getattr__`. States are replaced and never written to.
    """

    def __init__(self, metrics: Sequence[Summed], long: int = 0) -> None:
        self.metrics: Sequence[Any] = metrics
        """Those with long states, so many, come last."""
        self._own = [metric.__dict__ for metric in metrics]
        self._short = len(metrics) - long
        self._states: States | None = None  # None = the metrics hold them; without `short` these are zeros
        self._left: tuple[Tally | None, list[Tally]] = None, []  # what the short ones held when they were given back
        self._lock = RLock()  # several threads may ask for states

    @property
    def is_holding(self) -> bool:
        """Whether the states are here."""
        return self._states is not None

    @property
    def device(self) -> torch.device:
        """Where the states are, while they are here."""
        here: torch.device = self.metrics[0].empty_state().sums.device
        return here

    def check_ready(self, device: torch.device) -> None:
        """Refuse a batch now, or one from this device."""
        if self.is_holding and self.device == device:  # those that are synchronised hold their states
            return
        for metric, own in zip(self.metrics, self._own, strict=True):
            if own["_is_synced"]:
                raise TorchMetricsUserError(f"{metric.label} is synchronised: call unsync() before the next batch")
            holder = own.get("_holder")
            if (here := (own[own["_sums_name"]] if holder is None else holder).device) != device:
                raise ValueError(
                    f"{metric.label} is on {here}, its input on {device}: move the metric with .to(device)"
                )

    def flush(self) -> None:
        """Count batches that wait: here there are none."""

    def states(self) -> States:
        """Return all states, in the order of `metrics`, with all batches."""
        with self._lock:
            self.flush()
            states = self._take()
            if states.short is None and self._short:
                empty = [metric.empty_state() for metric in self.metrics[: self._short]]
                states = self._states = states._replace(short=_stacked(empty))
            return states

    def add(self, tallies: Tallies) -> None:
        """Add each metric its tally."""
        with self._lock:
            self.flush()
            self._states = self._added(self._take(), tallies)
            self._note()

    def reset(self) -> None:
        """Forget all that was added to the metrics, whose states are held here."""
        with self._lock:
            self._states = States(None, [metric.empty_state() for metric in self.metrics[self._short :]])
            for metric in self.metrics:
                metric.restart()

    def give_back(self) -> None:
        """Let the metrics hold their states again, with all batches."""
        with self._lock:
            if self._states is None:
                return
            states = self.states()
            every = states.each()
            self._left = states.short, every[: self._short]
            for own, (sums, counts) in zip(self._own, every, strict=True):
                own.update({own["_sums_name"]: sums, own["_counts_name"]: counts, "_holder": None})
            self._states = None

    def leave(self) -> None:
        """Give back, for one of the metrics forgets its state."""
        self.give_back()

    def _note(self) -> None:
        """Note that the metrics have seen one batch more."""
        for own in self._own:
            own["_update_count"] += 1
            own["_computed"] = own["_summary"] = None

    def _take(self) -> States:
        """Hold the states."""
        if self._states is None:
            every = [metric.state() for metric in self.metrics]
            self._states = States(self._matrices(every[: self._short]), every[self._short :])
            for own in self._own:
                own["_holder"] = self
                del own[own["_sums_name"]], own[own["_counts_name"]]
        return self._states

    def _matrices(self, held: list[Tally]) -> Tally | None:
        """Put states that are short under each other; None for zeros."""
        if all(_is(state, metric.empty_state()) for state, metric in zip(held, self.metrics, strict=False)):
            return None
        whole, rows = self._left
        return whole if len(held) == len(rows) and all(map(_is, held, rows)) else _stacked(held)

    def _added(self, states: States, tallies: Tallies) -> States:
        """Return states with a batch's tallies, which anybody may write to."""
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):
                return self._added(states, tallies)
        short, more = states.short, tallies.short
        if more is not None:
            # a tally is not kept as it is: one that a graph has recorded is overwritten by the next batch's
            short = Tally(*(part.clone() for part in more) if short is None else map(torch.add, short, more))
        grown: Grown = {}
        long = [grow(state, increments, grown) for state, increments in zip(states.long, tallies.long, strict=True)]
        return States(short, long)


def _is(one: Tally, other: Tally) -> bool:
    return one.sums is other.sums and one.counts is other.counts


def _stacked(several: Sequence[Tally]) -> Tally:
    sums, counts = zip(*several, strict=True)
    with torch.inference_mode(False):  # others may write to it
        return Tally(torch.stack(sums), torch.stack(counts))


def grow(state: Tally, more: Increments, grown: Grown) -> Tally:
    """Return a state with what a batch adds to it; metrics that share a state go on sharing it."""

    def added(old: Tensor, increments: tuple[Tensor, Tensor] | None) -> Tensor:
        if increments is None:
            return old
        key = (id(old), id(increments))
        if key not in grown:
            grown[key] = old.index_add(0, *increments)
        return grown[key]

    return Tally(added(state.sums, more.sums), added(state.counts, more.counts))


def alone(metrics: Sequence[Summed], tallies: Tallies) -> States:
    """Return the states that metrics would have of these tallies alone."""
    grown: Grown = {}
    long = metrics[len(metrics) - len(tallies.long) :]
    increments = zip(long, tallies.long, strict=True)
    return States(tallies.short, [grow(metric.empty_state(), more, grown) for metric, more in increments])
