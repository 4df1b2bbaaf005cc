"""`Counting`: update a collection with the rows of Arrow record batches, and count unserved users and unknown items."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pyarrow as pa
import torch
from torch import Tensor

from torchrecmetrics.arrow.columns import Column, groups_of, rows_of
from torchrecmetrics.arrow.states import Facts, TallyStates
from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.core.checks import describe
from torchrecmetrics.core.evaluator import Evaluator
from torchrecmetrics.core.options import Input
from torchrecmetrics.core.rows import RowValues
from torchrecmetrics.data.frames import check_names, distinct
from torchrecmetrics.data.vocabulary import Vocabulary
from torchrecmetrics.evaluation.lists import check_reach, check_shortened, sized_batches
from torchrecmetrics.inputs.lists import Duplicates, Lists
from torchrecmetrics.inputs.ranks import Ranks

_ROWS_AT_ONCE = 2**16


class Roles(NamedTuple):
    """Name of the column of each role; None = the role has no column."""

    lists: str | None
    target: str | None
    ranks: str | None
    gains: str | None
    exclude: str | None
    weights: str | None
    groups: str | None
    scores: str | None = None


class Counting:
    """Collection that is updated with RecordBatches, with the sums of groups and the facts of all rows so far."""

    def __init__(
        self,
        collection: RecMetricCollection,
        roles: Roles,
        item_ids: Vocabulary | None,
        complete: bool,
        duplicates: Duplicates,
    ) -> None:
        self.evaluator: Evaluator = collection.evaluator
        self.roles, self.item_ids, self.complete, self.duplicates = roles, item_ids, complete, duplicates
        self.depth: int | None = self.evaluator.batch_needs.depth
        self.facts: Facts = Facts()
        self.num_rows: int = 0
        self.group_sums: dict[str, Tensor] = {}
        """Matrix of sums of each group that has occurred so far."""
        self.names: list[str] = distinct(roles)
        columns = ",".join(role for role, name in roles._asdict().items() if name is not None)
        self.states: TallyStates = TallyStates(
            collection, f"columns={columns} duplicates={duplicates} complete={complete}"
        )
        if roles.lists is not None:
            _check_columns_suffice(collection, complete, roles.target)

    def record_batch(self, partition: str | None) -> Any:
        """Return the tally as a RecordBatch."""
        return self.states.record_batch(self.facts, self.group_sums, partition)

    @torch.no_grad()
    def add(self, data: Any) -> None:
        """Add the rows of a RecordBatch or Table."""
        if not hasattr(data, "schema") or not hasattr(data, "slice"):
            raise TypeError(f"data must hand out RecordBatches of pyarrow, got {describe(data)}")
        check_names(self.names, data.schema.names, "data", "lists=, target= and so on name its columns")
        for batch in data.to_batches() if isinstance(data, pa.Table) else [data]:
            for begin in range(0, len(batch), _ROWS_AT_ONCE):
                self._add(batch.slice(begin, _ROWS_AT_ONCE))

    def _add(self, batch: Any) -> None:
        """Add a RecordBatch of at most `_ROWS_AT_ONCE` rows."""
        roles, rows = self.roles, len(batch)
        read = {
            role: Column.read(batch, name, self.num_rows, role == "lists")
            for role, name in roles._asdict().items()
            if name is not None and role != "groups"
        }
        ids = {role: column for role, column in read.items() if role in ("lists", "target", "exclude")}
        values = rows_of(ids, self.item_ids)
        values |= {role: column.numbers() for role, column in read.items() if role not in ids}
        groups, codes = ([], None) if roles.groups is None else groups_of(batch.column(roles.groups), roles.groups)
        for name in groups:
            self.group_sums.setdefault(name, self.evaluator.layout.zeros(device=torch.device("cpu")))
        chunk = _Chunk(self, read, values, self.num_rows)
        sizes = torch.stack([column.lengths for column in read.values()]).sum(0)
        sizes, order = sizes.sort(stable=True)
        if rows * int(sizes[-1]) <= 2 * int(sizes.sum()):  # little padding: keep the order of rows
            sizes, order = sizes[-1:].expand(rows), torch.arange(rows, device="cpu")
        for numbers in sized_batches(order, sizes, self.depth or 1):
            self._count(chunk, numbers, groups, None if codes is None else codes[numbers])
        self.num_rows += rows

    def _count(self, chunk: _Chunk, numbers: Tensor, groups: list[str], codes: Tensor | None) -> None:
        """Add the given rows of a chunk, int64 [n], of which `codes` are the groups, [n], as positions in `groups`.

        Raises:
            ValueError: for bad values; the message names the row in the data.
        """
        try:
            rows, facts = chunk.evaluate(numbers)
        except ValueError as error:
            raise chunk.explained(numbers, error) from None
        self.evaluator.add(rows)
        self.facts = Facts(*map(sum, zip(self.facts, facts, strict=True)))
        if codes is None:
            return
        present, inverse = torch.unique(codes, return_inverse=True)
        sums = rows.sums(self.evaluator.layout, groups=inverse, num_groups=len(present))
        for code, added in zip(present.tolist(), sums.unbind(-1), strict=True):
            if code < len(groups):
                self.group_sums[groups[code]] = self.group_sums[groups[code]] + added


class _Chunk(NamedTuple):
    """Rows of one RecordBatch, with the values of their columns as numbers."""

    counting: Counting
    columns: dict[str, Column]
    """Columns by role, except the groups."""
    values: dict[str, Tensor]
    """Values of the columns as numbers, by role."""
    first_row: int

    def evaluate(self, rows: Tensor) -> tuple[RowValues, Facts]:
        """Return the metric values and the facts of the given rows, int64 [n], without changing any state.

        Raises:
            ValueError: for bad values; the message names a row by its position in `rows`.
        """
        counting = self.counting
        evaluator, weights = counting.evaluator, self._weights(rows)
        if "ranks" in self.columns:
            padding = 0 if self.columns["ranks"].holds_lists else None  # also if these lists all have length 1
            ranks = Ranks(self._padded("ranks", rows, -1), depth_known=counting.complete, padding=padding)
            return evaluator.rows(ranks, weights), Facts()
        lists = self._padded("lists", rows, -1, counting.depth or 1)
        ranking = self._lists(rows, lists).rank(evaluator.batch_needs, evaluator.rules)
        lengths = (lists >= 0).sum(1)
        if not counting.complete and evaluator.rules.validate_args is not False:
            check_shortened(ranking, lengths, counting.depth, torch.arange(len(rows), device="cpu"), "row {}".format)
        judged = ranking.num_relevant > 0
        deep = judged if counting.complete or counting.depth is None else judged & (lengths >= counting.depth)
        known = counting.item_ids
        return evaluator.rows(ranking, weights), Facts(
            num_unserved=int((judged & (lengths == 0)).sum()),
            num_unknown=0 if known is None else int((lists >= len(known)).sum()),
            num_repeated=0 if ranking.num_repeated is None else int(ranking.num_repeated.sum()),
            num_judged=int(judged.sum()),
            num_deep=int(deep.sum()),
        )

    def _lists(self, rows: Tensor, item_ids: Tensor) -> Input:
        """Return the input of the given rows, whose lists are `item_ids`."""
        scores = self._beside("lists", "scores", rows, "listed items", self.counting.depth or 1)
        return Lists(
            item_ids,
            self._padded("target", rows, -1) if "target" in self.columns else None,
            gains=self._beside("target", "gains", rows, "relevant items"),
            scores=None if scores is None else scores.double(),
            exclude=self._padded("exclude", rows, -1) if "exclude" in self.columns else None,
            complete=self.counting.complete,
            duplicates=self.counting.duplicates,
        )

    def _beside(self, role: str, name: str, rows: Tensor, unit: str, least: int = 1) -> Tensor | None:
        """Return the numbers `name` beside the ids of a role, [n, width]; None if they have no column."""
        if name not in self.columns:
            return None
        lengths, beside = (self.columns[column].lengths[rows] for column in (role, name))
        if bool((wrong := lengths != beside).any()):
            row = int(wrong.nonzero()[0])
            raise ValueError(f"row {row} has {int(lengths[row])} {unit} and {int(beside[row])} {name}")
        return self._padded(name, rows, 0, least)

    def _padded(self, role: str, rows: Tensor, filler: float, least: int = 1) -> Tensor:
        """Return a column's lists of the given rows, padded to the longest list and at least `least`, [n, width]."""
        column = self.columns[role]
        lengths = column.lengths
        width = max(least, int(lengths[rows].max()))
        return column.padded(self.values[role], rows, width, filler)

    def _weights(self, rows: Tensor) -> Tensor | None:
        if "weights" not in self.columns:
            return None
        column = self.columns["weights"]
        if bool((wrong := column.lengths[rows] != 1).any()):
            raise ValueError(f"row {int(wrong.nonzero()[0])} has no weight: {column.name} holds one number a row")
        return self.values["weights"][column.starts[rows]]

    def explained(self, rows: Tensor, error: ValueError) -> ValueError:
        """Return the error of the first row that fails on its own, with its number in the data; else `error`."""
        rows = rows.sort().values
        while len(rows) > 1:
            halves = rows[: len(rows) // 2], rows[len(rows) // 2 :]
            wrong = next((half for half in halves if self._error(half) is not None), None)
            if wrong is None:
                return error
            rows = wrong
        alone = self._error(rows)
        if alone is None:
            return error
        message = re.sub(r"\brow 0\b", f"row {self.first_row + int(rows[0])}", str(alone))
        return ValueError(message.replace("1 of 1 row", "at least 1 row"))

    def _error(self, rows: Tensor) -> ValueError | None:
        try:
            self.evaluate(rows)
        except ValueError as error:
            return error
        return None


def _check_columns_suffice(collection: RecMetricCollection, complete: bool, target: str | None) -> None:
    """Raise for metrics that read data without a column: relevant items, histories or deeper lists."""
    for label, metric in collection.metrics.items():
        if metric.needs.target and target is None:
            raise ValueError(f"{label} reads which items are relevant: target= names their column")
        if metric.needs.history:
            raise ValueError(f"{label} reads the users' histories, and data has no column of them: use evaluate_lists")
        check_reach(label, metric.needs, complete)
