"""Write the state of a collection as a record of an Arrow table, read such records, and add them up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import torch
from torch import Tensor
from torchmetrics import Metric

from torchrecmetrics.arrow.list_columns import tensor_of
from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.core.checks import describe
from torchrecmetrics.metrics.evaluator import Evaluator
from torchrecmetrics.tables.columns import check_names

SCHEMA = pa.schema([("sums", pa.list_(pa.float64())), ("counts", pa.list_(pa.int64())), ("fingerprint", pa.string())])
"""Columns of a tally: `sums` and `counts` of the states, and the `fingerprint` of format, metrics and settings."""

SCHEMA_DDL = "sums array<double>, counts array<bigint>, fingerprint string"
"""`SCHEMA` as text, for Spark's `mapInArrow`."""

FORMAT = "tally 3"
"""Version of the contents of `sums` and `counts`, with which fingerprints begin."""


class TallyCounts(NamedTuple):
    """Counts of rows and list entries of a tally, stored before the counts of the states."""

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


class Record(NamedTuple):
    """One record of a tally."""

    sums: Tensor
    """Float64: the floating states of the metrics and their accumulators."""
    counts: Tensor
    """Int64: the list counts, then the integer states."""
    fingerprint: str


class TallyStates:
    """The states of a collection and its accumulators as two vectors.

    Args:
        collection: its states are written, and replaced by `add_up`.
        settings: further settings of the fingerprint.
    """

    def __init__(self, collection: RecMetricCollection, settings: str = "") -> None:
        self.evaluator: Evaluator = collection.evaluator
        self.owners: tuple[Metric, ...] = (self.evaluator, *self.evaluator._accumulators)
        names = [metric.fingerprint for metric in collection.metrics.values()]
        names += [accumulator.option for accumulator in collection.accumulators]
        self.fingerprint: str = "\n".join((FORMAT, *names, settings))

    def record_batch(self, list_counts: TallyCounts) -> Any:
        """Return the states as a RecordBatch of one record."""
        states: list[Tensor] = [getattr(owner, name).flatten() for owner in self.owners for name in owner._defaults]
        sums = torch.cat([state for state in states if state.is_floating_point()])
        integers = [state for state in states if not state.is_floating_point()]
        counts = torch.cat([torch.tensor(list_counts, device="cpu"), *integers])
        lists = [pa.ListArray.from_arrays([0, len(vector)], vector.numpy()) for vector in (sums, counts)]
        return pa.RecordBatch.from_arrays([*lists, pa.array([self.fingerprint])], schema=SCHEMA)

    def add_up(self, records: Iterable[Record]) -> TallyCounts:
        """Replace the states by the sums of all records; return the list counts.

        Raises:
            ValueError: if there is no tally, and for tallies that cannot be added up; the message says why.
        """
        total: Record | None = None
        for number, record in enumerate(records):
            self._check_settings(number, record, total)
            sums, counts = record[:2]
            if total is not None:
                sums, counts = total.sums + sums, total.counts + counts
            total = Record(sums, counts, record.fingerprint)
        if total is None:
            raise ValueError("there is no tally to merge")
        (list_counts, counts), sums = total.counts.tensor_split([len(TallyCounts._fields)]), total.sums
        for owner in self.owners:
            for name in owner._defaults:
                state: Tensor = getattr(owner, name)
                if state.is_floating_point():
                    value, sums = sums.tensor_split([state.numel()])
                else:
                    value, counts = counts.tensor_split([state.numel()])
                setattr(owner, name, value.view(state.shape))
        self.evaluator._assign({"_update_count": 1})
        return TallyCounts(*list_counts.tolist())

    def _check_settings(self, number: int, record: Record, total: Record | None) -> None:
        """Raise for a tally of other metrics or of another version, or made with other settings than the first."""
        metrics, _, settings = record.fingerprint.rpartition("\n")
        expected = self.fingerprint.rpartition("\n")[0]
        if metrics != expected:
            raise ValueError(
                f"tally {number} has other metrics, options or another version: {metrics!r}, expected {expected!r}"
            )
        if total is not None and record.fingerprint != total.fingerprint:
            settings_of_first = total.fingerprint.rpartition("\n")[2]
            raise ValueError(
                f"tally {number} was made with {settings}, tally 0 with {settings_of_first}: they cannot be added"
            )


def read_records(tallies: Any) -> Iterator[Record]:
    """Yield the records of tallies from a Table, a RecordBatch, a frame, or an iterable of these."""
    if isinstance(tallies, pa.RecordBatch) or hasattr(tallies, "__arrow_c_stream__"):
        table = pa.table(tallies)
        check_names(SCHEMA.names, table.column_names, "a table of tallies", "arrow.tally makes them")
        for sums, counts, fingerprint in zip(*table.select(SCHEMA.names).cast(SCHEMA).columns, strict=True):
            yield Record(tensor_of(sums.values), tensor_of(counts.values), fingerprint.as_py())
        return
    if not isinstance(tallies, Iterable) or isinstance(tallies, (str, Mapping, Tensor)):
        raise TypeError(f"tallies must be a Table of pyarrow, or an iterable of these, got {describe(tallies)}")
    for tally in tallies:
        yield from read_records(tally)
