"""Evaluation of a frame or a file of (session, item, score, label), whose label column is the ground truth."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torchrecmetrics.base.options import MetricOptions
from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.data.events import numbers_in
from torchrecmetrics.data.files import source_of
from torchrecmetrics.data.frames import Roles, distinct
from torchrecmetrics.data.vocabulary import Vocabulary
from torchrecmetrics.evaluation.listed import Names
from torchrecmetrics.evaluation.result import Evaluation
from torchrecmetrics.registry import Metrics


def evaluate_labelled(
    metrics: Metrics | RecMetricCollection,
    lists: Any,
    names: Names,
    label: str,
    *,
    k: int | Iterable[int] | None,
    keep_rows: bool,
    options: MetricOptions,
) -> Evaluation:
    """Rank the rows of each user (here: a session) by score or rank; rows with a label > 0 are the relevant items.

    Raises:
        ValueError: for missing columns, not exactly one of score and rank, an item that a session lists twice, and
            labels or scores that are not numbers; names row and column.
    """
    source = source_of(lists, "lists")
    names = names._replace(**{role: name for role, name in source.known.items() if role in ("user", "item")})
    order = names.score if names.rank is None else names.rank
    if order is None or (names.rank is not None and names.score is not None):
        raise ValueError("a label column is read beside an order: give score= or rank=, one of the two")
    distinct(Roles(names.user, names.item, order, label))
    table = source.read(Roles(names.user, names.item, None, order))
    scores = numbers_in(table, order).double()
    labels = numbers_in(source.read(Roles(names.user, names.item, None, label)), label).double()
    user_ids, users = Vocabulary.number(table.columns[names.user], table.name(names.user), table.row)
    item_ids, items = Vocabulary.number(table.columns[names.item], table.name(names.item), table.row)
    pairs, again = torch.unique(users * len(item_ids) + items, return_inverse=True)
    if len(pairs) < len(users):
        counts = torch.bincount(again)
        row = int((counts[again] > 1).nonzero()[0])
        raise ValueError(
            f"{source.what} lists item {item_ids[int(items[row])]!r} twice for {names.user} "
            f"{user_ids[int(users[row])]!r}, first in {table.row(row)}: it would be two candidates"
        )
    collection = RecMetricCollection.fresh(metrics, k, options, keep_rows=keep_rows).to("cpu")
    for metric in collection.members:
        metric.sync_on_compute = False
    collection.update(-scores if names.score is None else scores, labels, indexes=users, complete=True)
    return Evaluation(collection, "eager", user_ids)
