"""`label=` of `evaluate_lists`: a table of (session, item, score, label), whose labels are the ground truth."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.evaluation.ground_truth import empty_collection
from torchrecmetrics.evaluation.list_entries import check_order
from torchrecmetrics.inputs.lists import Duplicates
from torchrecmetrics.inputs.sessions import Sessions
from torchrecmetrics.metrics.names import Metrics
from torchrecmetrics.metrics.signature import MetricOptions
from torchrecmetrics.results.evaluation import Evaluation
from torchrecmetrics.tables.cells import exploded
from torchrecmetrics.tables.events import numbers_in
from torchrecmetrics.tables.sources import Roles, distinct
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
    """Rank the rows of each user (here: a session) by score or rank; rows with a label > 0 are the relevant items.

    An item that a session repeats counts, with duplicates="first", at its best place, with its highest label. Without
    a column of items, each row is an item of its own.

    Raises:
        ValueError: for missing columns, not exactly one of score and rank, an item that a session lists twice, and
            labels or scores that are not numbers; names row and column.
    """
    source, order, item = table.source, table.order, table.columns.get("item")
    if "user" not in table.columns:
        table.roles()  # which says what is missing
    user = table.columns["user"]
    if order is None:
        raise ValueError(
            f"a label column is read beside an order, and {table.what} has no column 'score' or 'rank': give score= or "
            "rank=, one of the two, to trm.Table"
        )
    if duplicates == "keep_place":
        raise ValueError("duplicates='keep_place' is for target=; beside label= it is 'error' or 'first'")
    if label == order:
        raise ValueError(f"column {label!r} cannot be the label and the order of the rows at once")
    distinct({"user": user, "item": item, "order": order, "label": label})
    columns = source.read(Roles(user, item or label, value=order))  # without items: each number beside the other
    labels_read = source.read(Roles(user, item or order, value=label))
    if item is not None:
        columns, labels_read = exploded(columns, item), exploded(labels_read, item)
    scores = numbers_in(columns, order).double()
    check_order(table, scores)
    scores = -scores if "rank" in table.columns else scores
    labels = numbers_in(labels_read, label).double()
    if len({*map(len, columns.columns.values()), len(labels)}) > 1:
        raise ValueError(f"columns of {source.what} must be equally long")
    user_ids, users = Vocabulary.number(columns.columns[user], columns.name(user), columns.row)
    num_repeated = 0
    if item is not None:
        item_ids, items = Vocabulary.number(columns.columns[item], columns.name(item), columns.row)
        pairs, again = torch.unique(users * len(item_ids) + items, return_inverse=True)
        num_repeated = len(users) - len(pairs)
        if num_repeated and duplicates == "error":
            row = int((torch.bincount(again)[again] > 1).nonzero()[0])
            raise ValueError(
                f"{source.what} lists item {item_ids[int(items[row])]!r} twice for {user} "
                f"{user_ids[int(users[row])]!r}, first in {columns.row(row)}: it would be two candidates; "
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
    evaluation = collection.evaluation("eager", user_ids, num_repeated=num_repeated)
    if unread := [name for name in table.unread("user", "item", "rank", "score") if name != label]:
        evaluation.unread = {source.what: unread}
    return evaluation
