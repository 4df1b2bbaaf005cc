"""Compute several metrics together: sum their states over the processes by two all-reduces, and store the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torchmetrics.utilities import rank_zero_warn
from torchmetrics.utilities.distributed import gather_all_tensors

from torchrecmetrics.base.state import Summary, SummedMetric, SumState, sum_over_processes

MIN_SKIPPED = 10
"""Minimum number of rows without a relevant item for a warning."""
_warned = False


class ExtraSums(Protocol):
    """Protocol of a function that sums the rows that are kept until `compute`."""

    def __call__(self, *, across: bool, group: Any) -> dict[int, SumState]:
        """Return the sums of each metric by its `id`; `across` adds them up over the processes of `group`."""


def compute_all(metrics: Sequence[SummedMetric], extra: ExtraSums | None = None, num_waiting: int = 0) -> list[Summary]:
    """Compute metrics together and store the result of each; if one fails, none is stored.

    `extra` is called if rows are kept until `compute`, on this process (`num_waiting`) or on another process.
    """
    cached = [metric._summary for metric in metrics if metric._computed is not None and metric._summary is not None]
    if len(cached) == len(metrics):
        return cached
    states = [metric.state() for metric in metrics]
    summaries = summarize(metrics, states, "sync_on_compute", extra, num_waiting)
    empty = [metric for metric, summary in zip(metrics, summaries, strict=True) if summary.num_users == 0]
    if len(empty) < len(metrics):
        empty = [metric for metric in empty if metric.update_called]  # no warning of members without updates
    if empty:
        labels = ", ".join(metric.label for metric in empty)
        rank_zero_warn(f"no row to average over, the value is nan: {labels}", UserWarning)
    for metric, summary in zip(metrics, summaries, strict=True):
        metric._store_result(summary)
    _warn_of_skipped(summaries)
    return summaries


def _warn_of_skipped(summaries: Sequence[Summary]) -> None:
    """Warn, once per process, if most rows have no relevant item and are left out."""
    global _warned
    most = max(summaries, key=lambda summary: summary.num_skipped)
    if not _warned and most.num_skipped > most.num_users and most.num_skipped >= MIN_SKIPPED:
        _warned = True
        rank_zero_warn(
            f"{most.num_skipped} of {most.num_skipped + most.num_users} rows have no relevant item and are left out of "
            "the mean. If they are misses, say so: lists in which nothing was found are Ranking.from_hits(hits, "
            'num_relevant=1), or ranks of inf; rows without anything to find count as 0 by empty_target_action="neg"',
            UserWarning,
        )


def summarize(
    metrics: Sequence[SummedMetric],
    states: Sequence[SumState],
    when: Literal["sync_on_compute", "dist_sync_on_step"],
    extra: ExtraSums | None = None,
    num_waiting: int = 0,
) -> list[Summary]:
    """Return the results of states, summed over the processes first if the metrics' option `when` is set."""
    states, num_waiting, group = _synchronised(metrics, list(states), when, num_waiting)
    if extra is not None and num_waiting:
        more = extra(across=group is not None, group=None if group is None else group[1])
        states = [
            SumState(state.sums + more[id(metric)].sums, state.counts + more[id(metric)].counts)
            for metric, state in zip(metrics, states, strict=True)
        ]
    kinds: dict[Callable[..., Any], list[int]] = {}
    for place, metric in enumerate(metrics):
        kinds.setdefault(metric.summaries.__func__, []).append(place)  # type: ignore[attr-defined]
    found: dict[int, Summary] = {}
    for places in kinds.values():
        first = metrics[places[0]]
        found |= zip(places, first.summaries([metrics[p] for p in places], [states[p] for p in places]), strict=True)
    return [found[place] for place in range(len(metrics))]


def _synchronised(
    metrics: Sequence[SummedMetric], states: list[SumState], when: str, num_waiting: int
) -> tuple[list[SumState], int, tuple[Any, Any] | None]:
    """Return states and `num_waiting` summed over the processes, and the (gather function, process group) or None."""
    together: dict[tuple[Any, ...], list[int]] = {}
    for place, metric in enumerate(metrics):
        if (
            getattr(metric, when)
            and not metric.replicated
            and not metric._is_synced
            and metric.distributed_available_fn()
        ):
            together.setdefault((metric.dist_sync_fn, metric.process_group), []).append(place)
    for (gather, group), places in together.items():
        sums = _packed_sum([states[place].sums for place in places], gather, group)
        waiting = states[places[0]].counts.new_full((1,), num_waiting)
        *counts, waiting = _packed_sum([*(states[place].counts for place in places), waiting], gather, group)
        for place, *state in zip(places, sums, counts, strict=True):
            states[place] = SumState(*state)
        num_waiting = int(waiting)
    return states, num_waiting, next(iter(together), None)


def _packed_sum(vectors: Sequence[Tensor], gather: Any, group: Any | None) -> Sequence[Tensor]:
    """Sum vectors of any lengths over the processes by one collective."""
    packed = sum_over_processes(torch.cat(list(vectors)), gather or gather_all_tensors, group)
    return torch.split(packed, [len(vector) for vector in vectors])
