"""`Counting`: metrics that read columns of Arrow, row by row a list."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pyarrow as pa
import torch
from torch import Tensor

from torchrecmetrics.arrow.columns import Column, rows_of
from torchrecmetrics.arrow.states import Facts
from torchrecmetrics.checks import describe
from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.data.frames import check_names, distinct
from torchrecmetrics.data.vocabulary import Vocabulary
from torchrecmetrics.evaluation.lists import check_shortened, sized_batches
from torchrecmetrics.panel import BatchRows
from torchrecmetrics.ranking import Ranking
from torchrecmetrics.ranking.topk import Duplicates

_ROWS_AT_ONCE = 2**16


class Roles(NamedTuple):
    """The names of columns, by what they hold."""

    lists: str | None
    target: str | None
    ranks: str | None
    gains: str | None
    exclude: str | None
    weights: str | None


class Counting:
    """A collection, and what it has read."""

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
        self.names = distinct(roles)
        if roles.lists is not None:
            _check_told(collection, complete, roles.target)

    @property
    def how(self) -> str:
        """What a tally says of its making, beside the metrics' options."""
        read = ",".join(role for role, name in self.roles._asdict().items() if name is not None)
        return f"columns={read} duplicates={self.duplicates} complete={self.complete}"

    @torch.no_grad()
    def add(self, data: Any) -> None:
        """Add the rows of a RecordBatch."""
        if not hasattr(data, "schema") or not hasattr(data, "slice"):
            raise TypeError(f"data must hand out RecordBatches of pyarrow, got {describe(data)}")
        check_names(self.names, data.schema.names, "data", "lists=, target= and so on name its columns")
        for batch in data.to_batches() if isinstance(data, pa.Table) else [data]:
            for begin in range(0, len(batch), _ROWS_AT_ONCE):
                self._add(batch.slice(begin, _ROWS_AT_ONCE))

    def _add(self, batch: Any) -> None:
        """Add so many rows as one looks at together."""
        roles, rows = self.roles, len(batch)
        read = {
            role: Column.read(batch, name, self.num_rows, role == "lists")
            for role, name in roles._asdict().items()
            if name is not None
        }
        ids = {role: column for role, column in read.items() if role in ("lists", "target", "exclude")}
        values = rows_of(ids, self.item_ids)
        values |= {role: column.numbers() for role, column in read.items() if role not in ids}
        part = _Part(self, read, values, self.num_rows)
        sizes = torch.stack([column.lengths for column in read.values()]).sum(0)
        sizes, order = sizes.sort(stable=True)
        if rows * int(sizes[-1]) <= 2 * int(sizes.sum()):  # padding is little of it: leave them as they lie
            sizes, order = sizes[-1:].expand(rows), torch.arange(rows)
        for some in sized_batches(order, sizes, self.depth or 1):
            self._count(part, some)
        self.num_rows += rows

    def _count(self, part: _Part, some: Tensor) -> None:
        """Add some rows."""
        try:
            found, facts = part.look(some)
        except ValueError as error:
            raise part.explained(some, error) from None
        self.collection.add(found)
        self.facts = Facts(*map(sum, zip(self.facts, facts, strict=True)))


class _Part(NamedTuple):
    """Rows that one looks at together."""

    counting: Counting
    columns: dict[str, Column]
    """By what they hold."""
    values: dict[str, Tensor]
    """What the columns' values stand for, as numbers."""
    first_row: int

    def look(self, rows: Tensor) -> tuple[BatchRows, Facts]:
        """Return what some rows add, touching nothing.

        Raises:
            ValueError: for values that are no good; names rows by their place among these.
        """
        counting = self.counting
        weights = self._weights(rows)
        facts = Facts()
        if "ranks" in self.columns:
            ranks = self._padded("ranks", rows, 0)
            check = counting.collection.leading.validate_args
            ranking = Ranking.from_ranks(ranks, depth_known=counting.complete, validate_args=check)
        else:
            ranking, facts = self._listed(rows)
        return counting.collection.panel.rows(ranking, weights), facts

    def _listed(self, rows: Tensor) -> tuple[Ranking, Facts]:
        """Look relevant items up in lists."""
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
            check_shortened(ranking, lengths, counting.depth, torch.arange(len(rows)), "row {}".format)
        judged = ranking.num_relevant > 0
        deep = judged if counting.complete or counting.depth is None else judged & (lengths >= counting.depth)
        known = counting.item_ids
        counts = [
            (judged & (lengths == 0)).sum(),
            torch.tensor(0) if known is None else (lists >= len(known)).sum(),
            torch.tensor(0) if ranking.num_repeated is None else ranking.num_repeated.sum(),
            judged.sum(),
            deep.sum(),
        ]
        return ranking, Facts(*torch.stack(counts).tolist())

    def _padded(self, role: str, rows: Tensor, filler: float, least: int = 1) -> Tensor:
        """Return the lists of a column side by side."""
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
        """Return the error of the first row that has one by itself, by its number in the data; or this one."""
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
        return ValueError(re.sub(r"\brow 0\b", f"row {self.first_row + int(rows[0])}", str(alone)))

    def _error(self, rows: Tensor) -> ValueError | None:
        try:
            self.look(rows)
        except ValueError as error:
            return error
        return None


def _check_told(collection: RecMetricCollection, complete: bool, target: str | None) -> None:
    """Refuse metrics of more than columns say."""
    for label, metric in collection.items():
        if metric.needs.target and target is None:
            raise ValueError(f"{label} reads which items are relevant: target= names their column")
        if metric.needs.history:
            raise ValueError(f"{label} reads what users had before, and data has no column of it: evaluate_lists")
        if metric.needs.num_ranked and metric.needs.depth is None:
            raise ValueError(f"{label} compares all items, also those that no list holds: pass scores, or embeddings")
        if metric.needs.depth is None and not complete:
            raise ValueError(
                f"{label} looks at the whole ranking, of which lists are the beginning: if they are all that is "
                "recommended, complete=True"
            )
