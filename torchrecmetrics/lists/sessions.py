"""`label=` of `evaluate_lists`: a table of (session, item, score, label), whose labels are the ground truth."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.data.arguments import empty_collection
from torchrecmetrics.inputs.lists import Duplicates
from torchrecmetrics.inputs.sessions import Sessions
from torchrecmetrics.lists.entries import Names, check_score
from torchrecmetrics.metric.signature import MetricOptions
from torchrecmetrics.names import Metrics
from torchrecmetrics.results.evaluation import Evaluation
from torchrecmetrics.tables.events import numbers_in
from torchrecmetrics.tables.files import source_of
from torchrecmetrics.tables.frames import Roles, distinct
from torchrecmetrics.tables.vocabulary import Vocabulary


def evaluate_sessions(
    metrics: Metrics | RecMetricCollection,
    lists: Any,
    names: Names,
    label: str,
    k: int | Iterable[int] | None,
    *,
    duplicates: Duplicates,
    keep_rows: bool,
    options: MetricOptions,
) -> Evaluation:
    """Rank the rows of each user (here: a session) by score or rank; rows with a label > 0 are the relevant items.

    An item that a session repeats counts, with duplicates="first", at its best place, with its highest label. Without
    a column of items, each row is an item of its own.

    Raises:
        ValueError: for missing columns, not exactly one of score and rank, an item that a session lists twice, and
            labels or scores that are not numbers; names row and column.
    """
    source = source_of(lists, "lists")
    names = names._replace(**{role: name for role, name in source.known.items() if role in ("user", "item")})
    order = names.score if names.rank is None else names.rank
    if order is None or (names.rank is not None and names.score is not None):
        raise ValueError("a label column is read beside an order: give score= or rank=, one of the two")
    if duplicates == "keep_place":
        raise ValueError("duplicates='keep_place' is for target=; beside label= it is 'error' or 'first'")
    if label == order:
        raise ValueError(f"column {label!r} cannot be the label and the order of the rows at once")
    item = None if names.item in ("item", "") and names.item not in source.names else names.item
    distinct(Roles(names.user, item or label, time=order, value=label if item else None))
    table = source.read(Roles(names.user, item or label, value=order))  # without items: each number beside the other
    scores = numbers_in(table, order).double()
    if names.score is not None:
        check_score(source.what, names.score, scores)
    scores = -scores if names.score is None else scores
    labels = numbers_in(source.read(Roles(names.user, item or order, value=label)), label).double()
    if len({*map(len, table.columns.values()), len(labels)}) > 1:
        raise ValueError(f"columns of {source.what} must be equally long")
    user_ids, users = Vocabulary.number(table.columns[names.user], table.name(names.user), table.row)
    num_repeated = 0
    if item is not None:
        item_ids, items = Vocabulary.number(table.columns[item], table.name(item), table.row)
        pairs, again = torch.unique(users * len(item_ids) + items, return_inverse=True)
        num_repeated = len(users) - len(pairs)
        if num_repeated and duplicates == "error":
            row = int((torch.bincount(again)[again] > 1).nonzero()[0])
            raise ValueError(
                f"{source.what} lists item {item_ids[int(items[row])]!r} twice for {names.user} "
                f"{user_ids[int(users[row])]!r}, first in {table.row(row)}: it would be two candidates; "
                "duplicates='first' lets its best place stand alone, with its highest label"
            )
        users = pairs // len(item_ids)
        scores, labels = (
            torch.zeros_like(users, dtype=torch.float64).scatter_reduce(0, again, column, "amax", include_self=False)
            for column in (scores, labels)
        )
    collection = empty_collection(metrics, k, options, keep_rows=keep_rows).to("cpu")
    collection.evaluator.set_sync_on_compute(False)
    collection.update(Sessions(scores, labels, users))
    return collection.evaluation("eager", user_ids, num_repeated=num_repeated)
