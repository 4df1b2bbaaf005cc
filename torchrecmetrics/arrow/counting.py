"""`Counting`: update a collection with the rows of Arrow record batches, and count unserved users and unknown items."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from torchrecmetrics.arrow.list_columns import Column, group_codes, rows_of
from torchrecmetrics.arrow.tally_states import TallyCounts, TallyStates
from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.core.checks import describe
from torchrecmetrics.evaluation.list_source import check_depth, check_shortened
from torchrecmetrics.inputs.lists import Duplicates, Lists
from torchrecmetrics.inputs.ranks import Ranks
from torchrecmetrics.metrics.accumulator import Accumulator
from torchrecmetrics.tables.columns import check_names
from torchrecmetrics.tables.vocabulary import Vocabulary

_ROWS_AT_ONCE = 2**14
_MAX_CELLS = 2**19
"""Maximum number of entries of a padded column (lists, relevant items) in rows that are ranked at once."""


class Counting:
    """Collection updated with RecordBatches, and the list counts of all rows so far.

    Args:
        collection: an empty collection.
        roles: names of the columns by role: lists or ranks, target, gains, exclude, weights, scores.
        item_ids: vocabulary of the ids; None = ids are row numbers.
        complete: as in `tally`.
        duplicates: as in `tally`.
        depth: as in `tally`.
    """

    def __init__(
        self,
        collection: RecMetricCollection,
        roles: Mapping[str, str],
        item_ids: Vocabulary | None,
        complete: bool,
        duplicates: Duplicates,
        depth: int | None,
    ) -> None:
        self.collection: RecMetricCollection = collection
        self.roles: Mapping[str, str] = roles
        self.item_ids: Vocabulary | None = item_ids
        self.complete: bool = complete
        self.duplicates: Duplicates = duplicates
        self.rank_depth: int | None = depth
        self.depth: int | None = collection.evaluator._batch_needs.depth
        self.groups: list[Accumulator] = [acc for acc in collection.accumulators if acc.row_groups]
        self.list_counts: TallyCounts = TallyCounts()
        self.num_rows: int = 0
        settings = f"columns={','.join(roles)} duplicates={duplicates} complete={complete}"
        self.states: TallyStates = TallyStates(collection, settings)
        if "lists" in roles:
            _check_columns_suffice(collection, complete, "target" in roles)

    def record_batch(self) -> Any:
        """Return the tally as a RecordBatch."""
        return self.states.record_batch(self.list_counts)

    @torch.no_grad()
    def add(self, data: Any) -> None:
        """Add the rows of a RecordBatch or Table.

        Raises:
            ValueError: for bad values; the message names the row in the data.
        """
        if not hasattr(data, "schema") or not hasattr(data, "slice"):
            raise TypeError(f"data must yield RecordBatches of pyarrow, got {describe(data)}")
        names = [*self.roles.values(), *(name for by_group in self.groups for name in by_group.columns)]
        check_names(names, data.schema.names, "data", "lists=, target= and so on name its columns")
        for batch in data.to_batches() if isinstance(data, pa.Table) else [data]:
            for begin in range(0, len(batch), _ROWS_AT_ONCE):
                self._add(batch.slice(begin, _ROWS_AT_ONCE))

    def _add(self, batch: Any) -> None:
        """Add a RecordBatch, in halves if its padded lists are too large."""
        try:
            columns = {role: Column.read(batch, name, role == "lists") for role, name in self.roles.items()}
            width = (self.depth or 1) + sum(int(column.lengths.max()) for column in columns.values())
            if len(batch) == 1 or len(batch) * width <= _MAX_CELLS:
                self._count(columns, {acc.columns[0]: group_codes(batch, acc) for acc in self.groups})
                self.num_rows += len(batch)
                return
        except ValueError as error:  # count rows from the first one of the data
            message = re.sub(r"\brow (\d+)\b", lambda row: f"row {self.num_rows + int(row[1])}", str(error))
            raise ValueError(message) from error
        half = len(batch) // 2
        self._add(batch.slice(0, half))
        self._add(batch.slice(half))

    def _count(self, columns: Mapping[str, Column], groups: dict[str, Any]) -> None:
        """Add rows, given the columns by role and the codes of their groups."""
        weights = _weights(columns["weights"]) if "weights" in columns else None
        evaluator = self.collection.evaluator
        if "ranks" in columns:
            padding = 0 if columns["ranks"].holds_lists else -1  # 0 also if these lists all have length 1
            values = columns["ranks"].padded(columns["ranks"].numbers(), -1)
            ranks = Ranks(values, self.rank_depth, padding=padding)
            self.collection.update(ranks, weights=weights, **groups)
            return
        ids = {role: columns[role] for role in ("lists", "target", "exclude") if role in columns}
        rows = rows_of(ids, self.item_ids)
        lists = columns["lists"].padded(rows["lists"], -1, self.depth or 1)
        scores = _aligned(columns, "lists", "scores", "listed items", self.depth or 1)
        ranking = Lists(
            lists,
            columns["target"].padded(rows["target"], -1) if "target" in rows else None,
            gains=_aligned(columns, "target", "gains", "relevant items"),
            scores=None if scores is None else scores.double(),
            exclude=columns["exclude"].padded(rows["exclude"], -1) if "exclude" in rows else None,
            complete=self.complete,
            duplicates=self.duplicates,
        ).rank(evaluator._batch_needs, evaluator._ranking_options)
        lengths = (lists >= 0).sum(1)
        if not self.complete and evaluator._ranking_options.validate_args is not False:
            check_shortened(ranking, lengths, self.depth, torch.arange(len(lists), device="cpu"), "row {}".format)
        self.collection.update(ranking, weights=weights, **groups)
        judged = ranking.num_relevant > 0
        deep = judged if self.complete or self.depth is None else judged & (lengths >= self.depth)
        list_counts = TallyCounts(
            num_unserved=int((judged & (lengths == 0)).sum()),
            num_unknown=0 if self.item_ids is None else int((lists >= len(self.item_ids)).sum()),
            num_repeated=0 if ranking.num_repeated is None else int(ranking.num_repeated.sum()),
            num_judged=int(judged.sum()),
            num_deep=int(deep.sum()),
        )
        self.list_counts = TallyCounts(*map(sum, zip(self.list_counts, list_counts, strict=True)))


def _aligned(columns: Mapping[str, Column], role: str, name: str, unit: str, least: int = 1) -> Tensor | None:
    """Return the column `name`, one number per id of a role, [n, width]; None if there is no such column."""
    if name not in columns:
        return None
    lengths, num_numbers = columns[role].lengths, columns[name].lengths
    if bool((wrong := lengths != num_numbers).any()):
        row = int(wrong.nonzero()[0])
        raise ValueError(f"row {row} has {int(lengths[row])} {unit} and {int(num_numbers[row])} {name}")
    return columns[name].padded(columns[name].numbers(), 0, least)


def _weights(column: Column) -> Tensor:
    """Return one weight per row, [n]."""
    if bool((wrong := column.lengths != 1).any()):
        raise ValueError(f"row {int(wrong.nonzero()[0])} has no weight: {column.name} must hold one number per row")
    return column.numbers()


def _check_columns_suffice(collection: RecMetricCollection, complete: bool, has_target: bool) -> None:
    """Raise for metrics that read data without a column: relevant items, histories or deeper lists."""
    for label, metric in collection.metrics.items():
        if metric.needs.target and not has_target:
            raise ValueError(f"{label} needs the relevant items: name their column with target=")
        if metric.needs.history:
            raise ValueError(f"{label} needs the users' histories, which tally cannot read: use evaluate_lists")
        check_depth(label, metric.needs, complete)
