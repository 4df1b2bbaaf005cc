"""`tally` and `merge`: partial sums of a chunk of rows as an Arrow table, and the evaluation of all chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import torch
from torch import Tensor
from torchmetrics.utilities import dim_zero_sum

from torchrecmetrics.arrow.counting import Counting
from torchrecmetrics.arrow.tally_states import TallyStates, read_records
from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.core.checks import check_choice, describe
from torchrecmetrics.inputs.lists import Duplicates
from torchrecmetrics.metrics.names import Metrics
from torchrecmetrics.metrics.signature import MetricOptions
from torchrecmetrics.results.evaluation import Evaluation, EvaluationCounts
from torchrecmetrics.tables.vocabulary import Vocabulary

if TYPE_CHECKING:
    from typing_extensions import Unpack


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
        deepest, depth = list(collection.metrics.values())[-1], collection.evaluator._batch_needs.depth
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
    collection.evaluator._set_sync_on_compute(False)
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
