"""Tallies for data engines: partial sums of metrics over a chunk of rows, as an Arrow table, and their merge."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_sum

from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.core.checks import check_choice, describe, extra
from torchrecmetrics.evaluation.ranked_lists import check_depth, check_shortened
from torchrecmetrics.inputs.lists import Duplicates, Lists
from torchrecmetrics.inputs.ranks import Ranks
from torchrecmetrics.metrics.accumulator import Accumulator
from torchrecmetrics.metrics.description import MetricOptions
from torchrecmetrics.metrics.evaluator import Evaluator
from torchrecmetrics.metrics.names import Metrics
from torchrecmetrics.results.evaluation import Evaluation, EvaluationCounts
from torchrecmetrics.tables.columns import as_ids, check_names
from torchrecmetrics.tables.vocabulary import Vocabulary

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as _error:
    raise ImportError(f"torchrecmetrics.arrow needs pyarrow: {extra('arrow')}") from _error

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["SCHEMA", "SCHEMA_DDL", "merge", "tally"]


class Column(NamedTuple):
    """Lists of an Arrow column, one per row; a single value is a list of length 1."""

    name: str
    """Name of the column in error messages."""
    lengths: Tensor
    """Number of values of each list, int64 [B]; 0 where the list is missing."""
    values: Any
    """Values of all lists in order, an array of pyarrow without missing values, [E]."""
    holds_lists: bool
    """False if each row holds a single value."""

    @classmethod
    def read(cls, batch: Any, name: str, lists: bool = False) -> Column:
        """Read a column of a RecordBatch; `lists` refuses a column of single values.

        Raises:
            TypeError: for single values, where lists are wanted; the message names the columns that hold lists.
            ValueError: for a missing value in a list; the message says in which row.
        """
        column = _with_value_type(batch.column(name))
        holds_lists = _is_list(column.type)
        if holds_lists:
            lengths, values = tensor_of(pc.list_value_length(column).fill_null(0)).long(), column.flatten()
        elif lists:
            known = [f"{field.name!r}" for field in batch.schema if _is_list(field.type)]
            raise TypeError(
                f"column {name!r} must hold a list per row, best first, got {column.type}; columns of lists: "
                f"{', '.join(known) or 'none'}"
            )
        else:
            lengths, values = tensor_of(column.is_valid().cast(pa.int64())), column.drop_null()
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        if values.null_count:
            missing = pc.index(values.is_null(), True).as_py()
            row = int((lengths.cumsum(0) <= missing).sum())
            raise ValueError(
                f"column {name!r} holds a missing value in the list of row {row}: leave it out of the list"
            )
        return cls(name=f"column {name!r}", lengths=lengths, values=values, holds_lists=holds_lists)

    def padded(self, values: Tensor, filler: float, least: int = 1) -> Tensor:
        """Return numbers, one per entry of `self.values`, as one row per list, padded to `least` or more columns."""
        inside = torch.arange(max(least, int(self.lengths.max())), device="cpu") < self.lengths[:, None]
        if bool(inside.all()):
            return values.view(inside.shape)
        return torch.full(inside.shape, filler, dtype=values.dtype, device="cpu").masked_scatter_(inside, values)

    def numbers(self) -> Tensor:
        """Return the values as a tensor of int64 or float64, [E].

        Raises:
            TypeError: for values that are not numbers.
        """
        kind = self.values.type
        if not pa.types.is_floating(kind) and not pa.types.is_integer(kind):
            raise TypeError(f"{self.name} must hold numbers, got {kind}")
        return tensor_of(self.values.cast(pa.float64() if pa.types.is_floating(kind) else pa.int64()))

    def ids(self) -> Any:
        """Return the values as ids, an array of pyarrow; see `as_ids`."""
        return as_ids(self.name, self.values)


def rows_of(columns: Mapping[str, Column], item_ids: Vocabulary | None) -> dict[str, Tensor]:
    """Return the row numbers of the ids of each column, {role: int64 [E]}; negative = padding.

    Args:
        columns: columns of ids, by role.
        item_ids: vocabulary of the ids; None = ids are row numbers. An id outside the vocabulary gets a row number
            after the vocabulary's own, the same in all columns; -1 stays padding.

    Raises:
        TypeError: for ids of another kind; for text without `item_ids`.
        ValueError: as in `Column.ids`.
    """
    if item_ids is None:
        for column in columns.values():
            if not pa.types.is_int64(kind := column.ids().type):
                raise TypeError(
                    f"{column.name} holds {kind}, not row numbers: pass item_ids=, a Vocabulary with the row of each id"
                )
        return {role: tensor_of(column.ids()) for role, column in columns.items()}
    rows: dict[str, Tensor] = {}
    unknown: dict[Any, int] = {-1: -1}
    for role, column in columns.items():
        encoded = column.ids().dictionary_encode()
        of_distinct = item_ids.rows_of(column.name, encoded.dictionary, "item_ids")
        for code in (of_distinct < 0).nonzero()[:, 0].tolist():
            of_distinct[code] = unknown.setdefault(encoded.dictionary[code].as_py(), len(item_ids) + len(unknown) - 1)
        rows[role] = of_distinct[tensor_of(encoded.indices).long()]
    return rows


def group_codes(batch: Any, by_group: Accumulator) -> Tensor:
    """Return the code of each row's group, int64 [B], from the column of `by_group`; null is -1.

    Raises:
        ValueError: for the name of another group.
    """
    (name,) = by_group.columns
    column = batch.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    names = column.cast(pa.string())
    codes = pc.index_in(names, value_set=pa.array(by_group.row_groups, pa.string()))
    other = names.filter(pc.and_(codes.is_null(), names.is_valid()))
    if len(other):
        raise ValueError(f"column {name!r} holds {other[0].as_py()!r}, which is not a group of {by_group.option}")
    return tensor_of(codes.fill_null(-1)).long()


def tensor_of(array: Any) -> Tensor:
    """Return an array of signed numbers without missing values as a tensor that shares its memory."""
    if not len(array):
        return torch.empty(0, dtype=torch.float64 if pa.types.is_floating(array.type) else torch.int64, device="cpu")
    tensor: Tensor = from_dlpack(array)
    return tensor


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _with_value_type(column: Any) -> Any:
    """Return a column; one of type null, or of lists of null, becomes one of lists of int64 (it has no values)."""
    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    empty = pa.types.is_null(column.type) or (_is_list(column.type) and pa.types.is_null(column.type.value_type))
    return column.cast(pa.list_(pa.int64())) if empty else column


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
        self.owners: tuple[Metric, ...] = (self.evaluator, *self.evaluator.accumulators)
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
        self.evaluator._update_count = 1
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
        self.depth: int | None = collection.evaluator.formulas.needs.depth
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
            ranks = Ranks(values, self.rank_depth, self.rank_depth is None, padding=padding)
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
        ).rank(evaluator.formulas.needs, evaluator.ranking_options)
        lengths = (lists >= 0).sum(1)
        if not self.complete and evaluator.ranking_options.validate_args is not False:
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


@torch.no_grad()
def tally(
    data: Any,
    metrics: Metrics | RecMetricCollection,
    k: int | Iterable[int] | None = None,
    *,
    lists: str = "item_ids",
    target: str | None = "target",
    ranks: str | None = None,
    scores: str | None = None,
    gains: str | None = None,
    exclude: str | None = None,
    weights: str | None = None,
    item_ids: Any = None,
    complete: bool = False,
    depth: int | None = None,
    duplicates: Duplicates = "error",
    **options: Unpack[MetricOptions],
) -> Any:
    """Compute partial sums of a chunk of rows as an Arrow table; `merge` adds the chunks up and returns the evaluation.

    A row of data is one list, such as that of a user, a session or an event. The function needs only its arguments, so
    it runs wherever Arrow does: `ray.data.Dataset.map_batches(..., batch_format="pyarrow")`, Spark's `mapInArrow`,
    `dask.delayed`, or over a file in one process.

    Args:
        data: a Table or RecordBatch, or a frame that exports one (polars, pandas); or an iterator of
            RecordBatches, which is read to its end one by one.
        metrics: as in `evaluate`; metrics that cannot be computed from lists (AUROC) are refused. The
            `ByGroup("de", "at", column="country")` of a collection reads names of groups from the column "country":
            text, whole numbers or truth values, null = in no group.
        k: cut-offs, where `metrics` are names.
        lists: name of the column of recommended items: list, large_list or fixed_size_list, best first. An empty list,
            a null, or a list filled up with -1 means that the recommender had no more items.
        target: name of the column of relevant items: lists in any order, or one item per row; null or empty =
            none. None if all metrics read only the lists.
        ranks: name of a column of ranks instead of lists and target, lists or one rank per row: 1 = best, negative =
            padding (in lists 0, too), null = no relevant item.
        scores: name of a column of scores, lists as long as those of `lists`, never increasing: equal scores are tied.
        gains: name of a column of gains, lists as long as those of `target`.
        exclude: name of a column of items that are removed from the lists, in which later items move up.
        weights: name of a column of row weights.
        item_ids: a `Vocabulary` (or a list of ids) in which ids are looked up, required for text. None = that of
            `catalogue=`, if it has one; else ids are row numbers. A listed item outside the vocabulary counts as a miss
            at its rank (`num_unknown`).
        complete: True if the lists are all that is recommended: an item that is not listed is a miss at every k, and
            ranks are those of the whole ranking. False: as in `evaluate_lists`.
        depth: number of known ranks, such as the k of `get_topk_ranks`, for `ranks` that may have been cut.
        duplicates: an item that occurs twice in a list is an "error", or only its "first" rank counts.
        options: keyword options for metrics given by name.

    Returns:
        A Table of `SCHEMA` with one record; for an iterator, an iterator of one RecordBatch. Data without rows give a
        tally of zeros.

    Raises:
        TypeError: for data that is not Arrow, and for columns of a wrong type.
        ValueError: for missing columns, missing values within lists, and as in `evaluate_lists`; the message names the
            row, counted from the first row of `data`.

    Examples:
        >>> import pyarrow as pa
        >>> from torchrecmetrics import arrow
        >>> rows = pa.table({"item_ids": [[7, 3, 9], [4, 8]], "target": [[9, 1], [4]]})
        >>> chunks = rows[:1], rows[1:]
        >>> tallies = [arrow.tally(chunk, "HR", k=[1, 3]) for chunk in chunks]
        >>> arrow.merge(tallies, "HR", k=[1, 3]).floats()
        {'HR@1': 0.5, 'HR@3': 1.0}
    """
    check_choice("duplicates", duplicates, ("error", "first"))
    if gains is not None and target is None:
        raise ValueError(f"gains={gains!r} belong to relevant items: name their column with target=")
    of_lists = {"scores": scores, "gains": gains, "exclude": exclude, "item_ids": item_ids}
    if ranks is not None and (unused := [f"{name}=" for name, value in of_lists.items() if value is not None]):
        raise ValueError(f"{', '.join(unused)} cannot be combined with ranks={ranks!r}, which replaces lists")
    if ranks is None and depth is not None:
        raise ValueError("depth= belongs to ranks: name their column with ranks=")
    if ranks is not None and depth is None and not complete:
        raise ValueError(
            "the depth of these ranks is unknown: pass depth=10, the k of get_topk_ranks. Pass complete=True only if "
            "they were never cut: it reads the k + 1 of a miss as a rank"
        )
    named = {"lists": lists, "target": target, "gains": gains, "exclude": exclude, "scores": scores}
    named = {**(named if ranks is None else {"ranks": ranks}), "weights": weights}
    roles = {role: name for role, name in named.items() if name is not None}
    collection = _collection(metrics, k, options)
    counting = Counting(collection, roles, _numbering(item_ids, collection), complete, duplicates, depth)
    batches = _batches(data)
    if isinstance(batches, pa.Table):
        counting.add(batches)
        return pa.Table.from_batches([counting.record_batch()])
    return _tally_of_batches(counting, batches)


def merge(
    tallies: Any,
    metrics: Metrics | RecMetricCollection,
    k: int | Iterable[int] | None = None,
    **options: Unpack[MetricOptions],
) -> Evaluation:
    """Add tallies up, and return the evaluation of all their rows.

    Args:
        tallies: a Table of any number of tallies (Spark's `toArrow()`), a frame that exports one, or an iterable of
            them, in any order.
        metrics: the metrics that were given to `tally`.
        k: the cut-offs that were given to `tally`.
        options: the keyword options that were given to `tally`.

    Raises:
        TypeError: for tallies of another type.
        ValueError: for no tally, a tally of other metrics or options, or tallies that were made with different
            settings; the message names the difference.

    Examples:
        >>> import pyarrow as pa
        >>> from torchrecmetrics import arrow
        >>> ranks = pa.table({"rank": [1, 3, None]})
        >>> tally = arrow.tally(ranks, ["HR", "MRR"], k=2, ranks="rank", depth=2)
        >>> print(arrow.merge(tally, ["HR", "MRR"], k=2))
        HR@2   0.5000 ± 0.5000
        MRR@2  0.5000 ± 0.5000
        2 users, 1 without a relevant item
        ± standard error; no interval for fewer than 10 users
    """
    collection = _collection(metrics, k, options)
    list_counts = TallyStates(collection).add_up(read_records(tallies))
    if list_counts.num_judged and not list_counts.num_deep:
        deepest, depth = list(collection.metrics.values())[-1], collection.evaluator.formulas.needs.depth
        raise ValueError(
            f"{deepest.label} reads {depth} ranks, but none of {list_counts.num_judged} lists has as many items: "
            "recommend more, or pass complete=True if nothing else is recommended"
        )
    counts = EvaluationCounts(
        num_unserved=list_counts.num_unserved,
        num_unknown=list_counts.num_unknown,
        num_repeated=list_counts.num_repeated,
    )
    return collection.evaluation("eager", counts=counts)


# ------------------------------------------------------------------------------------------------------ arguments


def _collection(metrics: Any, k: Any, options: MetricOptions) -> RecMetricCollection:
    """Return an empty collection on the CPU; raise for accumulators whose states cannot be added up."""
    collection = RecMetricCollection.fresh(metrics, k, options).to("cpu")
    for accumulator in collection.accumulators:
        summed = all(reduction is dim_zero_sum for reduction in accumulator._reductions.values())
        if not summed or (accumulator.columns and not accumulator.row_groups):
            raise ValueError(
                f"a tally holds only sums, which {accumulator.option} does not keep: make the collection without it"
            )
    collection.evaluator.set_sync_on_compute(False)
    return collection


def _numbering(item_ids: Any, collection: RecMetricCollection) -> Vocabulary | None:
    """Return the vocabulary of ids: `item_ids`, else the catalogue's; None = ids are row numbers."""
    vocabulary = None if item_ids is None else Vocabulary.named("item_ids", item_ids)
    if collection.catalogue is None:
        return vocabulary
    if vocabulary is not None and vocabulary != collection.catalogue.item_ids:
        raise ValueError(
            "item_ids differ from those of the catalogue: make the catalogue with them, and leave item_ids out"
        )
    return collection.catalogue.item_ids


def _batches(data: Any) -> Any:
    """Return data as a Table, or the iterator of RecordBatches that it is."""
    if isinstance(data, (str, bytes)) or hasattr(data, "__fspath__"):
        raise TypeError(
            f"data must be Arrow, got the path {str(data)!r}: pq.ParquetFile(path, pre_buffer=False)"
            ".iter_batches(use_threads=False) reads it batch by batch"
        )
    if isinstance(data, Mapping):
        raise TypeError(
            "data must be Arrow, got a dict: pass pa.table(data), in Ray map_batches(batch_format='pyarrow')"
        )
    is_frame = hasattr(data, "__arrow_c_stream__") and not hasattr(data, "__next__")  # an Arrow reader is an iterator
    if is_frame or isinstance(data, pa.RecordBatch):
        return pa.table(data)
    if not isinstance(data, Iterable) or isinstance(data, Tensor):
        raise TypeError(f"data must be a Table, or an iterator of RecordBatches, of pyarrow, got {describe(data)}")
    return data


def _tally_of_batches(counting: Counting, batches: Iterable[Any]) -> Iterator[Any]:
    """Add all batches, then yield the tally as one RecordBatch."""
    for batch in batches:
        counting.add(batch)
    yield counting.record_batch()
