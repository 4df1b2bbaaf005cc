"""`CollectSessions`: metrics of sessions that continue in later batches and on other processes, ranked in `compute`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchrecmetrics.collection.collection import CollectionEvaluator, RecMetricCollection
from torchrecmetrics.collection.kept_rows import BUDGET, check_same_columns, with_batch
from torchrecmetrics.core.arrays import ordinary_tensors
from torchrecmetrics.core.checks import Checks, check_device, check_tensor, describe
from torchrecmetrics.core.distributed import gathered
from torchrecmetrics.core.result import Result
from torchrecmetrics.inputs.sessions import Sessions, check_entries
from torchrecmetrics.metrics.accumulator import Accumulator, State
from torchrecmetrics.metrics.accuracy import warn_of_certain_ones
from torchrecmetrics.metrics.description import Description
from torchrecmetrics.metrics.evaluator import checked_weights, values_of
from torchrecmetrics.metrics.ranking_metric import RankingMetric

ENTRIES_AT_ONCE = 2**20
"""Approximate number of entries that are ranked together."""
_OWN_COLUMNS = ("scores", "labels", "ids", "weights")


class SessionEvaluator(CollectionEvaluator):
    """Evaluator that keeps the entries of sessions until `compute`, which ranks all of them.

    It takes 13 to 40 bytes per entry, on their device or, beyond a budget, on the CPU.
    """

    budget: int = BUDGET
    entry_ids: list[Tensor]

    def __init__(self, metrics: Mapping[str, Description], name: str, accumulators: Sequence[Accumulator]) -> None:
        super().__init__(metrics, name, accumulators)
        if self.formulas.needs.list_depth or self.formulas.needs.history:
            key = next(key for key, m in metrics.items() if m.needs.list_depth or m.needs.history)
            raise ValueError(f"{key}: metrics of lists need item ids, which entries of sessions lack")
        self._names = (*_OWN_COLUMNS, *self._readers)
        for column in self._names:
            self.add_state(f"entry_{column}", [], None)
        self._device_bytes = 0

    @torch.no_grad()
    def update(  # type: ignore[override]  # entries of sessions are the only input
        self,
        scores: Tensor,
        labels: Tensor,
        indexes: Tensor,
        *,
        weights: Tensor | None = None,
        **columns: Tensor | None,
    ) -> None:
        """Keep a batch of entries, one per (session, candidate).

        Args:
            scores: float [E], as in `Scores`.
            labels: bool or number [E]: > 0 = relevant, the value is the gain.
            indexes: integer [E], the session of each entry, in any order and any batch.
            weights: weight of the session of each entry, [E], equal within a session.
            columns: further columns [E] that accumulators read: `groups`, `clusters`, ..., equal within a session.

        Raises:
            TypeError: for a dtype that is not accepted, and for an unknown argument.
            ValueError: for shapes or devices that do not fit and, on the CPU, for bad values. Nothing is added then.
        """
        entries = self._entries(scores, labels, indexes, weights, columns)
        if len(scores):
            buffered = self._entry_batches()
            _check_compatible(buffered, {name: [column] for name, column in entries.items()})
            with ordinary_tensors():
                added, device_bytes = with_batch(buffered, entries, self._device_bytes, self.budget)
            vars(self).update({f"entry_{name}": batches for name, batches in added.items()}, _device_bytes=device_bytes)
        self._assign({"_update_count": self._update_count + 1})

    @torch.no_grad()
    def forward(  # type: ignore[override]  # entries of sessions are the only input
        self, scores: Any, labels: Any, indexes: Any, **arguments: Any
    ) -> Any:
        """Keep a batch of entries, and return the value of its entries only."""
        columns = {name: column for name, column in arguments.items() if name != "weights"}
        rows = self._batch_rows(Sessions(scores, labels, indexes), arguments.get("weights"), columns)
        results = self._batch_results(rows)
        kept, values = (values_of(results, self.device) for _ in range(2))
        self.update(scores, labels, indexes, **arguments)
        self._forward_cache = kept
        return values

    def _entries(
        self, scores: Tensor, labels: Tensor, indexes: Tensor, weights: Any, columns: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        """Return copies of the checked columns of a batch, [E] by name."""
        self._check_not_synced("add a batch")
        check_entries(scores, labels, indexes)
        device = self.device
        if scores.device != device:
            raise ValueError(
                f"{self.label} is on {device}, its input on {scores.device}: move the metric with .to(device)"
            )
        present = {name: column for name, column in columns.items() if column is not None}
        self._check_names(present)
        named = present if weights is None else {"weights": weights, **present}
        for name, column in named.items():
            check_tensor(name, column)
            check_device(name, column, scores.device)
            if column.shape != scores.shape:
                raise ValueError(
                    f"{name} must be [{len(scores)}], one per entry and equal within a session, got "
                    f"{list(column.shape)}"
                )
        # on other devices than the CPU, `compute` checks values, once per session
        checks = Checks(self.ranking_options.validate_args, scores.device, len(scores))
        if weights is not None:
            checked_weights(weights, checks, "entry")
        deferred = Checks("deferred", scores.device, len(scores))  # the entries of a session share its row_ids
        for accumulator in self.accumulators:
            accumulator.check(len(scores), present, deferred if accumulator.keeps_rows else checks)
        if checks.at_once:
            checks.reject("scores", scores.isnan() | (scores == torch.inf), lambda entry: f"entry {entry}")
            checks.reject("gains", ~labels.isfinite(), lambda entry: f"entry {entry}")
        checks.finish()
        score_dtype = torch.float64 if scores.dtype == torch.float64 else torch.float32
        entries = {
            "scores": scores.to(score_dtype, copy=True),
            "labels": labels.clone() if labels.dtype == torch.bool else labels.to(torch.float64, copy=True),
            "ids": indexes.to(torch.int64, copy=True),
        }
        for name, column in named.items():
            entries[name] = column.to(torch.float64 if name == "weights" else torch.int64, copy=True)
        return entries

    def _entry_batches(self) -> dict[str, list[Tensor]]:
        """Return the batches of each column that has any, by name."""
        return {name: batches for name in self._names if (batches := getattr(self, f"entry_{name}"))}

    @property
    def num_entries(self) -> int:
        """Number of entries that are kept on this process."""
        return sum(len(batch) for batch in self.entry_ids)

    def compute_results(self) -> dict[str, Result]:
        """Rank all sessions of all processes, and return the results by key."""
        if self._computed is not None:
            return super().compute_results()
        updates, device, longest = self._update_count, self.device, 0
        columns = {
            name: torch.cat([column.to(device) for column in batches])
            for name, batches in self._entry_batches().items()
        }
        across = self.sync_on_compute and self.distributed_available_fn()
        if across:
            columns = _exchange(columns, device, self.process_group)
        for name in (self._sums, self._violations, self._counts):
            vars(self)[name] = self._defaults[name]
        for accumulator in self.accumulators:
            accumulator.reset()
        options = self.ranking_options
        options = replace(options, validate_args=options.validate_args and "deferred")  # all processes raise
        try:
            for entries in _chunks(columns) if columns else ():
                sessions = Sessions(*(entries.pop(name) for name in ("scores", "labels", "ids")))
                rows = self._batch_rows(sessions, entries.pop("weights", None), entries, options)
                session_of_entry = rows.ranking.rows.of_entries
                assert session_of_entry is not None
                longest = max(longest, int(torch.bincount(session_of_entry).max()))
                self._add_rows(rows)
        finally:
            self._update_count = updates
        longest = max(gathered(longest, self.process_group)) if across else longest
        results = super().compute_results()
        warn_of_certain_ones(self.formulas.metrics, results, longest)
        return results

    def _filter_kwargs(self, **kwargs: Any) -> dict[str, Any]:
        """Return the arguments that `update` has."""
        known = ("scores", "labels", "indexes", "weights", *self._readers)
        return {name: value for name, value in kwargs.items() if name in known}

    def reset(self) -> None:
        """Forget all entries; the results of the last `compute` stay readable."""
        super().reset()
        self._device_bytes = 0

    def _merged(self, other: Any) -> tuple[State, list[tuple[Accumulator, State]]]:
        if not isinstance(other, SessionEvaluator) or other._state_name != self._state_name:
            raise ValueError(f"{self.label} merges sessions of the same metrics and options, got {describe(other)}")
        columns, other_columns = self._entry_batches(), other._entry_batches()
        _check_compatible(columns, other_columns)
        return {f"entry_{name}": [*columns.get(name, ()), *batches] for name, batches in other_columns.items()}, []

    def _sync_dist(self, dist_sync_fn: Any = None, process_group: Any | None = None) -> None:
        num_entries = torch.tensor(self.num_entries, device=self.device)
        torch.distributed.all_reduce(num_entries, group=process_group or self.process_group)
        if num_entries:
            raise ValueError("sync() does not move entries of sessions: compute() joins sessions of several processes")


class CollectSessions(RecMetricCollection):
    """Metrics of sessions whose entries come in several batches, or on several processes; `compute` ranks them.

    `update(scores, labels, indexes)` takes flat entries, one per (session, candidate), and keeps them. `weights`,
    `groups`, `row_ids` and `clusters` are given per entry, equal within a session. Keys are those of the collection.
    Sessions that are complete in a batch need no wrapper: `update(Sessions(...))`.

    Args:
        metrics: a collection or a metric of this package, of which an empty copy is used, with its accumulators;
            `Window` is refused, since unfinished sessions have no order.

    Raises:
        ValueError: for accumulators and metrics that cannot be used with sessions.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> metrics = trm.CollectSessions(trm.RecMetricCollection(["MRR"]))
        >>> scores, labels = torch.tensor([0.2, 0.9, 0.1]), torch.tensor([1, 0, 0])
        >>> metrics.update(scores[:2], labels[:2], torch.tensor([7, 7]))
        >>> metrics.update(scores[2:], labels[2:], torch.tensor([7]))  # session 7 continues
        >>> metrics.compute()
        {'MRR': tensor(0.5000, dtype=torch.float64)}
    """

    _evaluator_class = SessionEvaluator
    evaluator: SessionEvaluator

    def __init__(self, metrics: RecMetricCollection | RankingMetric) -> None:
        if isinstance(metrics, RankingMetric):
            metrics = RecMetricCollection([metrics])
        if not isinstance(metrics, RecMetricCollection):
            cure = "RecMetricCollection(names, k=...)"
            raise TypeError(f"CollectSessions takes a collection or a metric, got {describe(metrics)}: {cure}")
        if metrics.windows:
            raise ValueError(f"{metrics.windows[0].option} needs rows in order, which unfinished sessions lack")
        self._copy_of(metrics, [acc.empty_copy() for acc in metrics.accumulators])

    def update(  # type: ignore[override]  # entries of sessions are the only input
        self,
        scores: Tensor,
        labels: Tensor,
        indexes: Tensor,
        *,
        weights: Tensor | None = None,
        **columns: Tensor | None,
    ) -> None:
        """Keep a batch of entries, one per (session, candidate): scores, labels and session ids, [E] each."""
        self.evaluator.update(scores, labels, indexes, weights=weights, **columns)

    def forward(self, scores: Tensor, labels: Tensor, indexes: Tensor, **arguments: Any) -> dict[str, Tensor]:
        """Keep a batch of entries, and return the values of its entries only."""
        return super().forward(scores, labels, indexes=indexes, **arguments)


def _check_compatible(buffered: Mapping[str, list[Tensor]], added: Mapping[str, list[Tensor]]) -> None:
    """Raise for columns that only some batches have, and for scores or labels of another dtype."""
    if not buffered or not added:
        return
    check_same_columns(buffered, added)
    old_dtypes, new_dtypes = ((columns["scores"][0].dtype, columns["labels"][0].dtype) for columns in (buffered, added))
    if old_dtypes != new_dtypes:
        raise ValueError(
            f"scores and labels are {new_dtypes}, but {old_dtypes} in earlier batches: use the same dtypes"
        )


def _chunks(columns: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Yield about `ENTRIES_AT_ONCE` entries of whole sessions of similar length, which need little padding."""
    _, session, length = torch.unique(columns["ids"], return_inverse=True, return_counts=True)
    length_class = length.double().log2().ceil().long()
    by_length = length_class.argsort(stable=True)
    length, length_class = length[by_length], length_class[by_length]
    number = length_class * len(session) + length.cumsum(0) // ENTRIES_AT_ONCE
    chunk = torch.unique_consecutive(number, return_inverse=True)[1]
    place = torch.empty_like(by_length).scatter_(0, by_length, torch.arange(len(length), device=length.device))
    order = place[session].argsort(stable=True)
    num_entries = torch.bincount(chunk.repeat_interleave(length)).tolist()
    for entries in torch.split(order, num_entries):
        yield {name: column[entries] for name, column in columns.items()}


def owner_of(ids: Tensor, world_size: int) -> Tensor:
    """Return the process that ranks each session, by a hash of its id: ids are often multiples of a number."""
    return (ids * -0x61C8864680B583EB >> 33) % world_size  # Fibonacci hashing: 2^64 / golden ratio


def _exchange(columns: Mapping[str, Tensor], device: torch.device, process_group: Any) -> dict[str, Tensor]:
    """Send each entry to the process that owns its session; return the entries that this process received, [E] by name.

    Raises:
        ValueError: on all processes, if weights, groups or dtypes are not the same on all processes with entries.
    """
    world, rank = torch.distributed.get_world_size(process_group), torch.distributed.get_rank(process_group)
    owner = owner_of(columns["ids"], world) if columns else torch.zeros(0, dtype=torch.int64, device=device)
    order, sent = owner.argsort(stable=True), torch.bincount(owner, minlength=world).tolist()
    shares = gathered(({name: column.dtype for name, column in columns.items()}, sent), process_group)
    dtypes = [dtypes for dtypes, _ in shares if dtypes]
    if any(dtypes[0] != process_dtypes for process_dtypes in dtypes):
        raise ValueError(
            "processes differ in the weights or groups of entries of sessions, or in the dtypes of scores and labels"
        )
    numbers, received = [numbers[rank] for _, numbers in shares], {}
    for name, dtype in dtypes[0].items() if dtypes else ():
        column = columns[name][order] if columns else torch.zeros(0, dtype=dtype, device=device)
        received[name] = column.new_empty(sum(numbers))
        torch.distributed.all_to_all_single(received[name], column, numbers, sent, group=process_group)
    return received
