"""Write the state of a collection as rows of an Arrow table, read such rows, and add them up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

import pyarrow as pa
import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_sum

from torchrecmetrics.arrow.columns import Column
from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.core.accumulators import Accumulator, ByGroup
from torchrecmetrics.core.checks import describe
from torchrecmetrics.core.evaluator import Evaluator
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
"""Columns of a tally: `group` (null = all rows), the states' `sums` and `counts`, the `fingerprint` of format, metrics,
options and columns, and the `partition` that was given."""

SCHEMA_DDL = "`group` string, sums array<double>, counts array<bigint>, fingerprint string, partition string"
"""`SCHEMA` as text, for Spark's `mapInArrow`."""

FORMAT = "tally 2"
"""Version of the contents of `sums` and `counts`, with which fingerprints begin."""


class Facts(NamedTuple):
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


class Row(NamedTuple):
    """One record of a tally."""

    group: str | None
    sums: Tensor
    """Float64: the matrix of sums; of all rows, also the floating states of accumulators."""
    counts: Tensor
    """Int64: of all rows, the facts and the integer states; of a group, nothing."""
    fingerprint: str
    partition: str | None


class TallyStates:
    """The states of a collection as two vectors, which do not depend on the order of its metrics.

    Args:
        collection: its evaluator's states are written, and replaced by `fill`.
        settings: further settings of the fingerprint.
    """

    def __init__(self, collection: RecMetricCollection, settings: str = "") -> None:
        self.evaluator: Evaluator = collection.evaluator
        self.names: list[str] = sorted(metric.state_name for metric in collection.metrics.values())
        self.fingerprint: str = " | ".join((FORMAT, " ".join(self.names), settings))
        # rows of the matrix: counts of metrics, flags, sums, squares, and infinite values of each sign
        layout = self.evaluator.layout
        of_rows = [metric.state_name for metric in self.evaluator.row_metrics.values()]
        unbounded = [of_rows[place] for place in layout.unbounded]
        blocks = [of_rows, list("123"), of_rows, of_rows, unbounded, unbounded]
        labels = [(number, name) for number, block in enumerate(blocks) for name in block]
        self._order = torch.tensor(sorted(range(len(labels)), key=labels.__getitem__), device="cpu")
        accumulators: list[Any] = [acc for acc in self.evaluator.accumulators if not isinstance(acc, ByGroup)]
        owners: list[Metric] = [self.evaluator, *sorted(accumulators, key=lambda accumulator: accumulator.option)]
        self._states = [(owner, name) for owner in owners for name in owner._defaults if name != self.evaluator._sums]

    def matrix(self) -> Tensor:
        """Return the matrix of sums over all rows."""
        sums: Tensor = getattr(self.evaluator, self.evaluator._sums)
        return sums if self.evaluator.row_metrics else torch.zeros_like(sums)  # nothing reads it: it may be NaN

    def _values(self, floating: bool) -> list[Tensor]:
        """Return the states beside the matrix that are floating, or those that are not."""
        values: list[Tensor] = [getattr(owner, name) for owner, name in self._states]
        return [value for value in values if value.is_floating_point() == floating]

    def record_batch(self, facts: Facts, group_sums: Mapping[str, Tensor], partition: str | None) -> Any:
        """Return the tally as a RecordBatch: one record for all rows, and one per group with its matrix of sums."""
        matrices = [self.matrix(), *group_sums.values()]
        sums = [[matrix[self._order]] for matrix in matrices]
        counts: list[list[Tensor]] = [[] for _ in matrices]
        sums[0] += self._values(floating=True)
        counts[0] += [torch.tensor(facts, device="cpu"), *self._values(floating=False)]
        columns = [
            pa.array([None, *group_sums], pa.string()),
            _list_array(sums, torch.float64),
            _list_array(counts, torch.int64),
            pa.array([self.fingerprint] * len(matrices)),
            pa.array([partition] * len(matrices), pa.string()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def add_up(self, rows: Iterable[Row]) -> dict[str | None, tuple[Tensor, Tensor]]:
        """Return the total sums and counts of all rows, under None, and of each group, under its name.

        Raises:
            ValueError: if there is no tally, and for tallies that cannot be added up; the message says why.
        """
        totals: dict[str | None, tuple[Tensor, Tensor]] = {}
        first_fingerprint: str | None = None
        partitions: set[tuple[str, str | None]] = set()
        for number, row in enumerate(rows):
            first_fingerprint = row.fingerprint if first_fingerprint is None else first_fingerprint
            self._check_alike(number, row.fingerprint, first_fingerprint)
            if row.partition is not None:
                if (row.partition, row.group) in partitions:
                    raise ValueError(f"two tallies are of partition {row.partition!r}: its rows would count twice")
                partitions.add((row.partition, row.group))
            sizes, expected = (len(row.sums), len(row.counts)), self._sizes(row.group)
            if sizes != expected:
                raise ValueError(
                    f"tally {number} holds {sizes[0]} sums and {sizes[1]} counts, where its metrics have {expected[0]} "
                    f"and {expected[1]}: it was cut"
                )
            sums, counts = totals.get(row.group, (0, 0))
            totals[row.group] = sums + row.sums, counts + row.counts
        if first_fingerprint is None:
            raise ValueError("there is no tally to merge")
        if None not in totals:
            raise ValueError("the tallies are of groups alone: merge wants those of all rows, whose group is null, too")
        return totals

    def _sizes(self, group: str | None) -> tuple[int, int]:
        """Return the number of sums and of counts of a record."""
        matrix = self.matrix().numel()
        if group is not None:
            return matrix, 0
        floating, whole = (sum(value.numel() for value in self._values(kind)) for kind in (True, False))
        return matrix + floating, len(Facts._fields) + whole

    def fill(self, totals: Mapping[str | None, tuple[Tensor, Tensor]]) -> Facts:
        """Replace the states, also those of a `ByGroup` of the same groups, by the totals; return the facts."""
        size, vectors = self.matrix().numel(), totals[None]

        def matrix(sums: Tensor) -> Tensor:
            return torch.empty_like(self.matrix()).index_copy(0, self._order, sums[:size].view(-1, 3))

        rest = {True: vectors[0][size:], False: vectors[1][len(Facts._fields) :]}
        for owner, name in self._states:
            old: Tensor = getattr(owner, name)
            floating = old.is_floating_point()
            values, rest[floating] = rest[floating].tensor_split([old.numel()])
            setattr(owner, name, values.view(old.shape))
        setattr(self.evaluator, self.evaluator._sums, matrix(vectors[0]))
        for accumulator in self.evaluator.accumulators:
            if isinstance(accumulator, ByGroup):
                of_groups = [matrix(totals[name][0]) for name in accumulator.names]
                accumulator.assign({"group_sums": torch.stack(of_groups, -1)})
        self.evaluator._update_count = 1
        return Facts(*vectors[1][: len(Facts._fields)].tolist())

    def _check_alike(self, number: int, fingerprint: str, first_fingerprint: str) -> None:
        """Raise for a tally of another format or of other metrics, or made with other settings than the first."""
        version, _, contents = fingerprint.partition(" | ")
        if version != FORMAT:
            raise ValueError(
                f"tally {number} was written by another version of torchrecmetrics, in another format than {FORMAT!r}: "
                "make all tallies with the version that merges them"
            )
        names, _, settings = contents.partition(" | ")
        names_of_tally, own_names = set(names.split()), set(self.names)
        if names_of_tally != own_names:
            differences = (("it holds", names_of_tally - own_names), ("these are", own_names - names_of_tally))
            told = [f"{verb} {', '.join(sorted(names))}" for verb, names in differences if names]
            raise ValueError(f"tally {number} is of other metrics or options: {', '.join(told)}")
        if settings != (wanted := first_fingerprint.partition(" | ")[2].partition(" | ")[2]):
            raise ValueError(f"tally {number} was made with {settings}, tally 0 with {wanted}: they do not add up")


def check_states(collection: RecMetricCollection) -> None:
    """Raise for metrics and accumulators with states that are not summed, which tallies cannot add up."""
    for metric in collection.metrics.values():
        if more := [name for name in metric._defaults if not name.startswith(f"{metric.state_name}-")]:
            raise ValueError(f"{metric.label} keeps {', '.join(more)} beside its sums, which a tally cannot add up")
    for accumulator in collection.evaluator.accumulators:
        assert isinstance(accumulator, Accumulator)
        summed = [reduction is dim_zero_sum for reduction in accumulator._reductions.values()]
        if accumulator.columns or not all(summed):
            raise ValueError(
                f"a tally holds sums alone, which {accumulator.option} does not keep: make the collection without it"
            )


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
            sums, counts = (vector.numbers()[vector.starts[place] :][: vector.lengths[place]] for vector in vectors)
            yield Row(group, sums, counts, fingerprint, partition)


def _list_array(rows: list[list[Tensor]], dtype: torch.dtype) -> Any:
    """Return a ListArray with one list per row: the elements of its tensors."""
    none = torch.empty(0, dtype=dtype, device="cpu")
    offsets = [0, *accumulate(sum(tensor.numel() for tensor in tensors) for tensors in rows)]
    values = torch.cat([none, *(tensor.flatten() for tensors in rows for tensor in tensors)])
    return pa.ListArray.from_arrays(offsets, values.numpy())
