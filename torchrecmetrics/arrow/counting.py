"""`Counting`: update a collection with the rows of Arrow record batches, and count unserved users and unknown items."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pyarrow as pa
import torch
from torch import Tensor

from torchrecmetrics.arrow.columns import Column, groups_of, rows_of
from torchrecmetrics.arrow.states import Facts, Layout
from torchrecmetrics.base.row_values import RowGroups, RowValues
from torchrecmetrics.base.state import SparseUpdate, SumState
from torchrecmetrics.checks import describe
from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.data.frames import check_names, distinct
from torchrecmetrics.data.vocabulary import Vocabulary
from torchrecmetrics.evaluation.lists import check_reach, check_shortened, sized_batches
from torchrecmetrics.ranking import Ranking
from torchrecmetrics.ranking.topk import Duplicates

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


class Counting:
    """Collection that is updated with RecordBatches, with the states of groups and the facts of all rows so far."""

    def __init__(
        self,
        collection: RecMetricCollection,
        roles: Roles,
        item_ids: Vocabulary | None,
        complete: bool,
        duplicates: Duplicates,
    ) -> None:
        self.collection, self.roles, self.item_ids = collection, roles, item_ids
        self.complete, self.duplicates = complete, duplicates
        self.depth = collection.needs.depth
        self.facts = Facts()
        self.num_rows = 0
        of_rows = len(collection.evaluator.metrics)
        self.groups: list[str] = []
        """Names of the groups that have occurred so far."""
        self.group_sums = torch.zeros(of_rows, 0, 5, dtype=torch.float64, device="cpu")
        self.group_counts = torch.zeros(of_rows, 0, 4, dtype=torch.int64, device="cpu")
        """Counts of the groups, int64 [metrics, groups, 4], beside `group_sums`, float64 [metrics, groups, 5]."""
        self.names = distinct(roles)
        if roles.lists is not None:
            _check_columns_suffice(collection, complete, roles.target)

    def written(self, partition: str | None) -> Any:
        """Return the tally as a RecordBatch."""
        layout = Layout(self.collection)
        places = {id(metric): place for place, metric in enumerate(self.collection.evaluator.metrics)}
        order = [places[id(metric)] for metric in layout.of_rows]
        groups = {
            name: SumState(self.group_sums[order, number], self.group_counts[order, number])
            for number, name in enumerate(self.groups)
        }
        return layout.written(self.facts, groups, self.how, partition)

    @property
    def how(self) -> str:
        """Settings of `tally` as text, which is part of the fingerprint."""
        read = ",".join(role for role, name in self.roles._asdict().items() if name is not None)
        return f"columns={read} duplicates={self.duplicates} complete={self.complete}"

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
        self._add_groups(groups)
        if codes is not None:  # numbers in `self.groups`
            codes = torch.tensor([*map(self.groups.index, groups), -1], device="cpu")[codes]
        part = _Part(self, read, values, codes, self.num_rows)
        sizes = torch.stack([column.lengths for column in read.values()]).sum(0)
        sizes, order = sizes.sort(stable=True)
        if rows * int(sizes[-1]) <= 2 * int(sizes.sum()):  # little padding: keep the order of rows
            sizes, order = sizes[-1:].expand(rows), torch.arange(rows, device="cpu")
        for batch in sized_batches(order, sizes, self.depth or 1):
            self._count(part, batch)
        self.num_rows += rows

    def _count(self, part: _Part, batch: Tensor) -> None:
        """Add the given rows of a part, int64 [n]; raise a ValueError that names the bad row in the data."""
        try:
            found, facts = part.look(batch)
        except ValueError as error:
            raise part.explained(batch, error) from None
        sums = self.collection.evaluator.batch_sums(found)
        self.collection.add_sums(sums if found.groups is None else self._without_groups(sums))
        self.facts = Facts(*map(sum, zip(self.facts, facts, strict=True)))

    def _add_groups(self, groups: list[str]) -> None:
        """Extend the states of groups by zeros for new groups."""
        new = [name for name in groups if name not in self.groups]
        self.groups += new
        self.group_sums = torch.nn.functional.pad(self.group_sums, (0, 0, 0, len(new)))
        self.group_counts = torch.nn.functional.pad(self.group_counts, (0, 0, 0, len(new)))

    def _without_groups(self, sums: list[SumState | SparseUpdate]) -> list[SumState | SparseUpdate]:
        """Add the sums of groups to `group_sums` and `group_counts`; return the sums over all rows."""
        of_groups = 4 * len(self.groups)
        rest: list[SumState | SparseUpdate] = []
        for number, added in enumerate(sums):
            if isinstance(added, SumState):
                self.group_sums[number] += added.sums[5:].view(-1, 5)
                self.group_counts[number] += added.counts[len(added.counts) - of_groups :].view(-1, 4)
                added = SumState(added.sums[:5], added.counts[: len(added.counts) - of_groups])
            rest.append(added)
        return rest


class _Part(NamedTuple):
    """Rows of one RecordBatch, with the values of their columns as numbers."""

    counting: Counting
    columns: dict[str, Column]
    """Columns by role, except the groups."""
    values: dict[str, Tensor]
    """Values of the columns as numbers, by role."""
    codes: Tensor | None
    """Group number of each row, int64 [B], -1 = no group; None = no groups were given."""
    first_row: int

    def look(self, rows: Tensor) -> tuple[RowValues, Facts]:
        """Return the metric values and the facts of the given rows, int64 [n], without changing any state.

        Raises:
            ValueError: for bad values; the message names a row by its position in `rows`.
        """
        counting = self.counting
        weights = self._weights(rows)
        facts = Facts()
        if "ranks" in self.columns:
            ranks = self._padded("ranks", rows, -1)
            padding = 0 if self.columns["ranks"].holds_lists else None  # also if these lists all have length 1
            check = counting.collection.leading.validate_args
            ranking = Ranking.from_ranks(ranks, depth_known=counting.complete, padding=padding, validate_args=check)
        else:
            ranking, facts = self._listed(rows)
        groups = None if self.codes is None else RowGroups(self.codes[rows], len(counting.groups))
        return counting.collection.evaluator.row_values(ranking, weights, groups), facts

    def _listed(self, rows: Tensor) -> tuple[Ranking, Facts]:
        """Return the ranking of the given rows, with relevant items looked up in the lists, and the facts."""
        counting, leading = self.counting, self.counting.collection.leading
        lists = self._padded("lists", rows, -1, counting.depth or 1)
        gains = None
        if "gains" in self.columns:
            lengths, beside = (self.columns[role].lengths[rows] for role in ("target", "gains"))
            if bool((wrong := lengths != beside).any()):
                row = int(wrong.nonzero()[0])
                raise ValueError(f"row {row} has {int(lengths[row])} relevant items and {int(beside[row])} gains")
            gains = self._padded("gains", rows, 0)
        ranking = Ranking.from_topk(
            lists,
            self._padded("target", rows, -1) if "target" in self.columns else None,
            gains=gains,
            exclude=self._padded("exclude", rows, -1) if "exclude" in self.columns else None,
            complete=counting.complete,
            duplicates=counting.duplicates,
            padding_idx=leading.padding_idx,
            overlap=leading.rules.take_overlap,
            validate_args=leading.validate_args,
        )
        lengths = (lists >= 0).sum(1)
        if not counting.complete and leading.validate_args is not False:
            check_shortened(ranking, lengths, counting.depth, torch.arange(len(rows), device="cpu"), "row {}".format)
        judged = ranking.num_relevant > 0
        deep = judged if counting.complete or counting.depth is None else judged & (lengths >= counting.depth)
        known = counting.item_ids
        return ranking, Facts(
            num_unserved=int((judged & (lengths == 0)).sum()),
            num_unknown=0 if known is None else int((lists >= len(known)).sum()),
            num_repeated=0 if ranking.num_repeated is None else int(ranking.num_repeated.sum()),
            num_judged=int(judged.sum()),
            num_deep=int(deep.sum()),
        )

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
            self.look(rows)
        except ValueError as error:
            return error
        return None


def _check_columns_suffice(collection: RecMetricCollection, complete: bool, target: str | None) -> None:
    """Raise for metrics that read data without a column: relevant items, histories or deeper lists."""
    for label, metric in collection.items():
        if metric.needs.target and target is None:
            raise ValueError(f"{label} reads which items are relevant: target= names their column")
        if metric.needs.history:
            raise ValueError(f"{label} reads the users' histories, and data has no column of them: use evaluate_lists")
        check_reach(label, metric.needs, complete)
