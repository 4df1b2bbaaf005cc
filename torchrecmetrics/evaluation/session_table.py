"""`label=` of `evaluate_lists`: a table of (session, item, score, label), whose labels are the ground truth."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.core.cures import CuredError
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.evaluation.batches import evaluate_on
from torchrecmetrics.evaluation.list_entries import order_values
from torchrecmetrics.evaluation.list_source import LISTS_MEMORY
from torchrecmetrics.evaluation.recommended_lists import FIRST
from torchrecmetrics.evaluation.scorers import RankingSource
from torchrecmetrics.evaluation.target_device import TargetDevice
from torchrecmetrics.evaluation.test_set import Batch, TestSet, empty_collection
from torchrecmetrics.inputs.lists import Duplicates
from torchrecmetrics.inputs.sessions import Sessions
from torchrecmetrics.metrics.names import Metrics
from torchrecmetrics.metrics.signature import MetricOptions
from torchrecmetrics.results.evaluation import Evaluation, EvaluationCounts
from torchrecmetrics.tables.cells import exploded
from torchrecmetrics.tables.events import Events, numbers_in
from torchrecmetrics.tables.sources import Roles, two_roles
from torchrecmetrics.tables.table import Table
from torchrecmetrics.tables.vocabulary import Vocabulary


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
    sessions = _read_sessions(table, label, duplicates)
    collection = empty_collection(metrics, k, options, keep_rows=keep_rows).to("cpu")
    collection.evaluator._set_sync_on_compute(False)
    target = Interactions.of_events(sessions.relevant())
    test = TestSet.of(collection, target, (), None, TargetDevice(target.device, False))
    users = test.split_users(torch.arange(target.num_users, device="cpu"), collection)
    evaluate_on(collection, test, SessionSource(sessions), users)
    unread = [name for name in table.unread("user", "item", "rank", "score") if name != label]
    counts = EvaluationCounts(num_repeated=sessions.num_repeated, unread={table.what: unread} if unread else {})
    return collection.evaluation("eager", sessions.user_ids, counts)


class _SessionEntries(NamedTuple):
    """Candidates of all sessions, [E] each."""

    scores: Tensor
    labels: Tensor
    users: Tensor
    items: Tensor
    user_ids: Vocabulary
    num_repeated: int
    """Number of rows that repeat a candidate, and were left out."""

    def relevant(self) -> Events:
        """Return the entries with a label above 0, which is their value."""
        is_relevant, shape = self.labels > 0, (len(self.user_ids), int(self.items.max()) + 1)
        return Events(self.users[is_relevant], self.items[is_relevant], shape, values=self.labels[is_relevant])


def _read_sessions(table: Table, label: str, duplicates: Duplicates) -> _SessionEntries:
    """Read the candidates of all sessions, each once."""
    source, order, item = table.source, table.order, table.columns.get("item")
    if "user" not in table.columns:
        table.roles()  # raises if users are missing, and says so
    user = table.columns["user"]
    if order is None:
        raise ValueError(
            f"label= needs an order, but {table.what} has no column 'score' or 'rank': pass score= or rank= to "
            "trm.Table"
        )
    if duplicates == "keep_place":
        raise ValueError("duplicates='keep_place' needs target=; with label= it is 'error' or 'first'")
    if label == order:
        raise ValueError(f"column {label!r} cannot be both the label and the order of the rows")
    names = {"user": user, "item": item, "order": order, "label": label}
    if len({*names.values()}) < len(names):
        raise two_roles(names)
    columns = source.read(Roles(user, item or label, value=order))  # without items, another column stands in
    labels_read = source.read(Roles(user, item or order, value=label))
    if item is not None:
        columns, labels_read = exploded(columns, item), exploded(labels_read, item)
    scores = order_values(table, numbers_in(columns, order)).double()
    scores = -scores if "rank" in table.columns else scores
    labels = numbers_in(labels_read, label).double()
    if len({*map(len, columns.columns.values()), len(labels)}) > 1:
        raise ValueError(f"columns of {source.what} must be equally long")
    if bool((labels < 0).any()):
        row = int((labels < 0).nonzero()[0])
        raise ValueError(f"{labels_read.name(label)} holds a label below 0 in {columns.row(row)}")
    user_ids, users = Vocabulary.number(columns.columns[user], columns.name(user), columns.row)
    items, num_repeated = torch.arange(len(users), device="cpu"), 0
    if item is not None:
        item_ids, items = Vocabulary.number(columns.columns[item], columns.name(item), columns.row)
        pairs, again = torch.unique(users * len(item_ids) + items, return_inverse=True)
        num_repeated = len(users) - len(pairs)
        if num_repeated and duplicates == "error":
            row = int((torch.bincount(again)[again] > 1).nonzero()[0])
            fault = (
                f"{source.what} lists item {item_ids[int(items[row])]!r} twice for {user} "
                f"{user_ids[int(users[row])]!r}, first in {columns.row(row)}: it would be two candidates"
            )
            if cure := table.several_tables("user", "item", label=label):
                raise ValueError(f"{fault}; {cure}")
            raise CuredError(f"{fault}; {FIRST} keeps its best rank and its highest label", FIRST)
        users, items = pairs // len(item_ids), pairs % len(item_ids)
        scores, labels = (
            torch.zeros_like(users, dtype=torch.float64).scatter_reduce(0, again, column, "amax", include_self=False)
            for column in (scores, labels)
        )
    return _SessionEntries(scores, labels, users, items, user_ids, num_repeated)


class SessionSource(RankingSource):
    """Source of the candidates of users, with their scores and labels, [E] each."""

    device: torch.device = torch.device("cpu")
    memory: int = LISTS_MEMORY

    def __init__(self, entries: _SessionEntries) -> None:
        order = entries.users.argsort(stable=True)
        self.scores: Tensor = entries.scores[order]
        self.labels: Tensor = entries.labels[order]
        self.lengths: Tensor = torch.bincount(entries.users, minlength=len(entries.user_ids))
        self.num_entries: int | Tensor = self.lengths
        self._starts = self.lengths.cumsum(0) - self.lengths

    def input(self, batch: Batch, at_once: int) -> Sessions:
        """Return the candidates of a batch of users, those of one user after those of another."""
        lengths = self.lengths[batch.users]
        shift = self._starts[batch.users] - (lengths.cumsum(0) - lengths)
        entries = torch.arange(int(lengths.sum()), device="cpu") + shift.repeat_interleave(lengths)
        return Sessions(self.scores[entries], self.labels[entries], lengths=lengths)
