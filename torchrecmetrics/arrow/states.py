"""What a tally is: states of metrics as rows of Arrow, and how they are written and read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import torch
from torch import Tensor

from torchrecmetrics.arrow.columns import Column
from torchrecmetrics.checks import describe
from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.data.frames import check_names
from torchrecmetrics.metric import RankingMetric
from torchrecmetrics.state import Tally

SCHEMA = pa.schema(
    [
        ("group", pa.string()),
        ("sums", pa.list_(pa.float64())),
        ("counts", pa.list_(pa.int64())),
        ("fingerprint", pa.string()),
        ("partition", pa.string()),
    ]
)
"""Columns of a tally: `group` (null = all rows), the states' `sums` and `counts`, the `fingerprint` that says of which
metrics, options and columns, and the `partition` that was given."""

SCHEMA_DDL = "`group` string, sums array<double>, counts array<bigint>, fingerprint string, partition string"
"""The same as text, for Spark's `mapInArrow`."""


class Facts(NamedTuple):
    """What is counted beside the states, in front of their counts."""

    num_unserved: int = 0
    """Rows with a relevant item and without a list."""
    num_unknown: int = 0
    """Entries of lists whose item `item_ids` does not have."""
    num_repeated: int = 0
    """Entries of lists that repeat an item."""
    num_judged: int = 0
    """Rows with a relevant item, looked up in a list."""
    num_deep: int = 0
    """Those among them whose list is as long as the metrics look."""


class Layout:
    """Where states stand in the vectors of a tally: in order of their names, one that metrics share once."""

    def __init__(self, collection: RecMetricCollection) -> None:
        self.members = sorted(collection.members, key=lambda metric: metric.state_name)
        self.names = [metric.state_name for metric in self.members]
        self._sums: dict[Any, RankingMetric] = {}
        self._counts: dict[Any, RankingMetric] = {}
        for metric in self.members:
            self._sums.setdefault(self._key(metric, 0), metric)
            self._counts.setdefault(self._key(metric, 1), metric)
        self.num_sums = sum(len(metric.state().sums) for metric in self._sums.values())
        self.num_counts = len(Facts._fields) + sum(len(metric.state().counts) for metric in self._counts.values())

    @staticmethod
    def _key(metric: RankingMetric, part: int) -> Any:
        """Tell states apart: of metrics that count items, those of other lists and lengths."""
        if not metric.of_items:
            return id(metric)
        return metric.needs.lists, metric.needs.num_items, len(metric.state()[part])

    def written(self, facts: Facts, how: str, partition: str | None) -> Any:
        """Return the tally as a RecordBatch of one row."""
        sums = torch.cat([metric.state().sums for metric in self._sums.values()])
        counts = torch.cat([torch.tensor(facts), *(metric.state().counts for metric in self._counts.values())])
        values = [
            pa.nulls(1, pa.string()),
            *(pa.ListArray.from_arrays([0, len(vector)], vector.numpy()) for vector in (sums, counts)),
            pa.array([f"{' '.join(self.names)} | {how}"]),
            pa.array([partition], pa.string()),
        ]
        return pa.RecordBatch.from_arrays(values, schema=SCHEMA)

    def hold(self, rows: Iterable[Row]) -> Facts:
        """Add tallies up, and give each metric its state.

        Raises:
            ValueError: where there is none, and for those that do not add up; says why.
        """
        total = torch.zeros(self.num_sums, dtype=torch.float64), torch.zeros(self.num_counts).long()
        first: str | None = None
        partitions: set[str] = set()
        for number, row in enumerate(rows):
            first = row.fingerprint if first is None else first
            self._check_alike(number, row.fingerprint, first)
            if row.partition is not None and row.partition in partitions:
                raise ValueError(f"two tallies are of partition {row.partition!r}: its rows would count twice")
            partitions |= set() if row.partition is None else {row.partition}
            held, wanted = (tuple(map(len, each)) for each in ((row.sums, row.counts), total))
            if held != wanted:
                raise ValueError(
                    f"tally {number} holds {held[0]} sums and {held[1]} counts, where its metrics have {wanted[0]} and "
                    f"{wanted[1]}: it was cut, or written by another version"
                )
            for vector, more in zip(total, (row.sums, row.counts), strict=True):
                vector += more
        if first is None:
            raise ValueError("there is no tally to merge")
        facts, counts = total[1].tensor_split([len(Facts._fields)])
        parts = [
            dict(zip(part, torch.split(vector, [len(metric.state()[at]) for metric in part.values()]), strict=True))
            for at, part, vector in ((0, self._sums, total[0]), (1, self._counts, counts))
        ]
        for metric in self.members:
            metric.hold(Tally(*(parts[at][self._key(metric, at)] for at in (0, 1))))
        return Facts(*facts.tolist())

    def _check_alike(self, number: int, fingerprint: str, first: str) -> None:
        """Refuse a tally of other metrics, or one that was not made as the first was."""
        names, _, how = fingerprint.partition(" | ")
        theirs, mine = set(names.split()), set(self.names)
        if theirs != mine:
            some = (("it holds", theirs - mine), ("these are", mine - theirs))
            told = [f"{what} {', '.join(sorted(names))}" for what, names in some if names]
            raise ValueError(f"tally {number} is of other metrics or options: {', '.join(told)}")
        if how != (wanted := first.partition(" | ")[2]):
            raise ValueError(f"tally {number} was made with {how}, tally 0 with {wanted}: they do not add up")


class Row(NamedTuple):
    """One tally, as it was written."""

    sums: Tensor
    counts: Tensor
    fingerprint: str
    partition: str | None


def read(tallies: Any) -> Iterator[Row]:
    """Return tallies one by one, wherever they lie."""
    if isinstance(tallies, pa.RecordBatch):
        tallies = pa.Table.from_batches([tallies])
    elif not isinstance(tallies, pa.Table) and hasattr(tallies, "__arrow_c_stream__"):
        tallies = pa.table(tallies)
    if not isinstance(tallies, pa.Table):
        if not isinstance(tallies, Iterable) or isinstance(tallies, (str, Mapping, Tensor)):
            raise TypeError(f"tallies must be a Table of pyarrow, or an iterable of these, got {describe(tallies)}")
        for each in tallies:
            yield from read(each)
        return
    check_names(SCHEMA.names, tallies.column_names, "a table of tallies", "arrow.tally makes them")
    for batch in tallies.select(SCHEMA.names).cast(SCHEMA).to_batches():
        vectors = [Column.read(batch, name, 0) for name in ("sums", "counts")]
        texts = [batch.column(name).to_pylist() for name in ("group", "fingerprint", "partition")]
        for place, (group, fingerprint, partition) in enumerate(zip(*texts, strict=True)):
            if group is not None:
                raise ValueError(f"a tally is of group {group!r}: merge takes those of all rows")
            sums, counts = (each.numbers()[each.starts[place] :][: each.lengths[place]] for each in vectors)
            yield Row(sums, counts, fingerprint, partition)
