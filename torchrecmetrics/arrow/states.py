"""Write metric states as rows of an Arrow table, read them, and add them up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

import pyarrow as pa
import torch
from torch import Tensor

from torchrecmetrics.arrow.columns import Column
from torchrecmetrics.base.metric import RankingMetric
from torchrecmetrics.base.state import SumState
from torchrecmetrics.beyond.histograms import HistogramMetric
from torchrecmetrics.checks import describe
from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.data.frames import check_names

SCHEMA = pa.schema(
    [
        ("group", pa.string()),
        ("sums", pa.list_(pa.float64())),
        ("counts", pa.list_(pa.int64())),
        ("fingerprint", pa.string()),
        ("partition", pa.string()),
    ]
)
"""Columns of a tally: `group` (null = all rows), the states' `sums` and `counts`, the `fingerprint` of metrics,
options and columns, and the `partition` that was given."""

SCHEMA_DDL = "`group` string, sums array<double>, counts array<bigint>, fingerprint string, partition string"
"""`SCHEMA` as text, for Spark's `mapInArrow`."""


class Facts(NamedTuple):
    """Counts of rows and list entries of a tally, stored before the counts of the metrics' states."""

    num_unserved: int = 0
    """Number of rows with a relevant item and without a list."""
    num_unknown: int = 0
    """Number of list entries whose item is not in `item_ids`."""
    num_repeated: int = 0
    """Number of list entries that repeat an item."""
    num_judged: int = 0
    """Number of rows with a relevant item that was looked up in a list."""
    num_deep: int = 0
    """Number of the `num_judged` rows whose list is as long as the depth that the metrics read."""


class Layout:
    """Positions of states in the vectors of a tally: sorted by state name, a state that metrics share stored once."""

    def __init__(self, collection: RecMetricCollection) -> None:
        self.collection = collection
        self.members: list[RankingMetric] = sorted(collection.members, key=lambda metric: metric.state_name)
        self.names: list[str] = [metric.state_name for metric in self.members]
        self.of_rows: list[RankingMetric] = [metric for metric in self.members if not metric.of_items]
        """Metrics that are means over rows, which have states of groups, too."""
        self._sums: dict[Any, RankingMetric] = {}
        self._counts: dict[Any, RankingMetric] = {}
        for metric in self.members:
            self._sums.setdefault(self._key(metric, 0), metric)
            self._counts.setdefault(self._key(metric, 1), metric)
        self.num_sums: int = sum(len(metric.state().sums) for metric in self._sums.values())
        self.num_counts: int = len(Facts._fields) + sum(len(metric.state().counts) for metric in self._counts.values())

    @staticmethod
    def _key(metric: RankingMetric, part: int) -> Any:
        """Return a key per stored state: metrics that count the items of the same lists share a key and the state."""
        if not isinstance(metric, HistogramMetric):
            return id(metric)
        return metric.needs.list_depth, metric.needs.num_items, len(metric.state()[part])

    def written(self, facts: Facts, groups: Mapping[str, SumState], how: str, partition: str | None) -> Any:
        """Return the tally as a RecordBatch: one record for all rows, and one per group.

        Args:
            facts: facts of all rows.
            groups: states of the metrics of `of_rows` for each group, [metrics, 5] and [metrics, 4].
            how: further settings of the fingerprint.
            partition: name of these rows, or None.
        """
        sums = torch.cat([metric.state().sums for metric in self._sums.values()])
        counts = torch.cat(
            [torch.tensor(facts, device="cpu"), *(metric.state().counts for metric in self._counts.values())]
        )
        rows = [SumState(sums, counts), *groups.values()]
        values = [
            pa.array([None, *groups], pa.string()),
            *(
                pa.ListArray.from_arrays(
                    [0, *accumulate(vector.numel() for vector in part)], torch.cat([v.flatten() for v in part]).numpy()
                )
                for part in zip(*rows, strict=True)
            ),
            pa.array([f"{' '.join(self.names)} | {how}"] * len(rows)),
            pa.array([partition] * len(rows), pa.string()),
        ]
        return pa.RecordBatch.from_arrays(values, schema=SCHEMA)

    def add_up(self, rows: Iterable[Row]) -> Total:
        """Return the sum of tallies.

        Raises:
            ValueError: if there is no tally, and for tallies that cannot be added up; the message says why.
        """
        groups: dict[str | None, tuple[Tensor, ...]] = {}
        lengths: dict[bool, tuple[int, ...]] = {
            True: (self.num_sums, self.num_counts),
            False: (5 * len(self.of_rows), 4 * len(self.of_rows)),
        }
        first: str | None = None
        partitions: set[tuple[str, str | None]] = set()
        for number, row in enumerate(rows):
            first = row.fingerprint if first is None else first
            self._check_alike(number, row.fingerprint, first)
            if row.partition is not None:
                if (row.partition, row.group) in partitions:
                    raise ValueError(f"two tallies are of partition {row.partition!r}: its rows would count twice")
                partitions.add((row.partition, row.group))
            held, wanted = tuple(map(len, row.added)), lengths[row.group is None]
            if held != wanted:
                raise ValueError(
                    f"tally {number} holds {held[0]} sums and {held[1]} counts, where its metrics have {wanted[0]} and "
                    f"{wanted[1]}: it was cut, or written by another version"
                )
            if row.group in groups:
                for vector, more in zip(groups[row.group], row.added, strict=True):
                    vector += more
            else:
                groups[row.group] = tuple(vector.clone() for vector in row.added)
        if first is None:
            raise ValueError("there is no tally to merge")
        if None not in groups:
            raise ValueError("the tallies are of groups alone: merge wants those of all rows, whose group is null, too")
        sums, counts = groups.pop(None)
        facts, counts = counts.tensor_split([len(Facts._fields)])
        parts = [
            dict(zip(part, torch.split(vector, [len(metric.state()[at]) for metric in part.values()]), strict=True))
            for at, part, vector in ((0, self._sums, sums), (1, self._counts, counts))
        ]
        states = {id(metric): SumState(*(parts[at][self._key(metric, at)] for at in (0, 1))) for metric in self.members}
        names = sorted(name for name in groups if name is not None)
        for place, metric in enumerate(self.of_rows):
            parts_of_state = [states[id(metric)]]
            for sums, counts in (groups[name] for name in names):
                parts_of_state.append(SumState(sums[5 * place :][:5], counts[4 * place :][:4]))
            states[id(metric)] = SumState(*map(torch.cat, zip(*parts_of_state, strict=True)))
        return Total(Facts(*facts.tolist()), names, [states[id(metric)] for metric in self.collection.members])

    def _check_alike(self, number: int, fingerprint: str, first: str) -> None:
        """Raise for a tally of other metrics, or a tally that was made with other settings than the first."""
        names, _, how = fingerprint.partition(" | ")
        theirs, mine = set(names.split()), set(self.names)
        if theirs != mine:
            differences = (("it holds", theirs - mine), ("these are", mine - theirs))
            told = [f"{what} {', '.join(sorted(names))}" for what, names in differences if names]
            raise ValueError(f"tally {number} is of other metrics or options: {', '.join(told)}")
        if how != (wanted := first.partition(" | ")[2]):
            raise ValueError(f"tally {number} was made with {how}, tally 0 with {wanted}: they do not add up")


class Row(NamedTuple):
    """One record of a tally, as `Layout.written` returns it."""

    group: str | None
    added: SumState
    fingerprint: str
    partition: str | None


class Total(NamedTuple):
    """Sum of tallies."""

    facts: Facts
    groups: list[str]
    states: list[SumState]
    """States of the collection's members, each followed by the states of its groups."""


def read(tallies: Any) -> Iterator[Row]:
    """Yield the records of tallies from a Table, a RecordBatch, a frame, or an iterable of these."""
    if isinstance(tallies, pa.RecordBatch):
        tallies = pa.Table.from_batches([tallies])
    elif not isinstance(tallies, pa.Table) and hasattr(tallies, "__arrow_c_stream__"):
        tallies = pa.table(tallies)
    if not isinstance(tallies, pa.Table):
        if not isinstance(tallies, Iterable) or isinstance(tallies, (str, Mapping, Tensor)):
            raise TypeError(f"tallies must be a Table of pyarrow, or an iterable of these, got {describe(tallies)}")
        for tally in tallies:
            yield from read(tally)
        return
    check_names(SCHEMA.names, tallies.column_names, "a table of tallies", "arrow.tally makes them")
    for batch in tallies.select(SCHEMA.names).cast(SCHEMA).to_batches():
        vectors = [Column.read(batch, name, 0) for name in ("sums", "counts")]
        texts = [batch.column(name).to_pylist() for name in ("group", "fingerprint", "partition")]
        for place, (group, fingerprint, partition) in enumerate(zip(*texts, strict=True)):
            parts = [vector.numbers()[vector.starts[place] :][: vector.lengths[place]] for vector in vectors]
            yield Row(group, SumState(*parts), fingerprint, partition)
