"""`label=` of `evaluate_lists`: a table of (session, item, score, label), whose labels are the ground truth."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.core.cures import CuredError
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.evaluation.batches import evaluate_on
from torchrecmetrics.evaluation.list_source import LISTS_MEMORY
from torchrecmetrics.evaluation.ranked_lists import FIRST
from torchrecmetrics.evaluation.scorers import RankingSource
from torchrecmetrics.evaluation.target_device import TargetDevice
from torchrecmetrics.evaluation.test_set import Batch, TestSet, empty_collection
from torchrecmetrics.inputs.lists import Duplicates
from torchrecmetrics.inputs.sessions import Sessions
from torchrecmetrics.metrics.names import Metrics
from torchrecmetrics.metrics.signature import MetricOptions
from torchrecmetrics.results.evaluation import Evaluation, EvaluationCounts
from torchrecmetrics.tables.events import Events
from torchrecmetrics.tables.table import Table
from torchrecmetrics.tables.vocabulary import called


def evaluate_sessions(
    metrics: Metrics | RecMetricCollection,
    table: Table,
    label: str,
    k: int | Iterable[int] | None,
    *,
    duplicates: Duplicates,
    keep_rows: bool,
    options: MetricOptions,
) -> Evaluation:
    """Rank the rows of each user (a session) by score or rank; rows with a label > 0 are the relevant items.

    With duplicates="first", a repeated item counts at its best rank, with its highest label. Without a column of items,
    each row is an item of its own.

    Raises:
        ValueError: for missing columns, not exactly one of score and rank, an item that a session lists twice, and
            labels or scores that are not numbers; names row and column.
    """
    sessions = _read_candidates(table, label, duplicates)
    collection = empty_collection(metrics, k, options, keep_rows=keep_rows).to("cpu")
    collection.evaluator._set_sync_on_compute(False)
    target = Interactions.of_events(sessions.relevant())
    test = TestSet.of(collection, target, (), None, TargetDevice(target.device, False))
    users = test.split_users(torch.arange(target.num_users, device="cpu"), collection)
    evaluate_on(collection, test, SessionSource(sessions), users)
    unread = [name for name in table.unread("user", "item", "rank", "score") if name != label]
    counts = EvaluationCounts(num_repeated=sessions.num_repeated, unread={table.what: unread} if unread else {})
    return collection.evaluation("eager", sessions.events.user_ids, counts)


class _Candidates(NamedTuple):
    """Candidates of all sessions, each once, [E] each."""

    scores: Tensor
    """Float64; the highest is best."""
    labels: Tensor
    """Float64; above 0 is relevant."""
    events: Events
    num_repeated: int = 0
    """Number of rows that repeat a candidate, and were left out."""

    def relevant(self) -> Events:
        """Return the candidates with a label above 0, which is their value."""
        return replace(self.events, values=self.labels).take(self.labels > 0)


def _read_candidates(table: Table, label: str, duplicates: Duplicates) -> _Candidates:
    """Read the candidates of all sessions."""
    if table.order is None:
        raise ValueError(
            f"label= needs an order, but {table.what} has no column 'score' or 'rank': pass score= or rank= to "
            "trm.Table"
        )
    if duplicates == "keep_place":
        raise ValueError("duplicates='keep_place' needs target=; with label= it is 'error' or 'first'")
    entries = table.read("rank", "score", label=label)
    ranks, scores, labels = (entries.numbers(role) for role in ("rank", "score", "label"))
    assert labels is not None
    scores = -ranks if ranks is not None else scores
    assert scores is not None
    if bool((labels < 0).any()):
        row = int((labels < 0).nonzero()[0])
        raise ValueError(f"{entries.name('label')} holds a label below 0 in {entries.row(row)}")
    events = Events.of_entries(entries)
    candidates = _Candidates(scores.double(), labels.double(), events)
    pairs, again = torch.unique(events.users * events.num_items + events.items, return_inverse=True)
    num_repeated = len(events) - len(pairs)
    if not num_repeated:
        return candidates
    if duplicates == "error":
        row = int((torch.bincount(again)[again] > 1).nonzero()[0])
        user, item = called(events.user_ids, int(events.users[row])), called(events.item_ids, int(events.items[row]))
        fault = f"{table.what} lists item {item} twice for {table.columns['user']} {user}, first in {entries.row(row)}"
        cure = f"{FIRST} keeps its best rank and its highest label"
        raise CuredError(f"{fault}: it would be two candidates; {cure}", FIRST)
    none = torch.zeros(len(pairs), dtype=torch.float64, device="cpu")
    best_score = none.scatter_reduce(0, again, candidates.scores, "amax", include_self=False)
    best_label = none.scatter_reduce(0, again, candidates.labels, "amax", include_self=False)
    users = pairs.div(events.num_items, rounding_mode="floor")
    once = replace(events, users=users, items=pairs - users * events.num_items)
    return _Candidates(best_score, best_label, once, num_repeated)


class SessionSource(RankingSource):
    """Source of the candidates of users, with their scores and labels, [E] each."""

    device: torch.device = torch.device("cpu")
    memory: int = LISTS_MEMORY

    def __init__(self, candidates: _Candidates) -> None:
        users = candidates.events.users
        order = users.argsort(stable=True)
        self.scores: Tensor = candidates.scores[order]
        self.labels: Tensor = candidates.labels[order]
        self.lengths: Tensor = torch.bincount(users, minlength=candidates.events.num_users)
        self.num_entries: int | Tensor = self.lengths
        self._starts = self.lengths.cumsum(0) - self.lengths

    def input(self, batch: Batch, at_once: int) -> Sessions:
        """Return the candidates of a batch of users, those of one user after those of another."""
        lengths = self.lengths[batch.users]
        shift = self._starts[batch.users] - (lengths.cumsum(0) - lengths)
        entries = torch.arange(int(lengths.sum()), device="cpu") + shift.repeat_interleave(lengths)
        return Sessions(self.scores[entries], self.labels[entries], lengths=lengths)
