"""Tallies give the values of one process for every kind of column, every option and every split; bad input raises."""

from itertools import pairwise

import pytest
import torch
from sizes import examples
from torch.nn.utils.rnn import pad_sequence
from values import near, numbers

import torchrecmetrics as trm
from torchrecmetrics import Catalogue, RecMetricCollection, Vocabulary, arrow

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

NAMES, K = ["HR", "NDCG", "MRR", "Precision", "Recall", "MAP"], [1, 3, 6]
ROWS, NUM, WIDE = 60, 40, 6
INT_LISTS = pa.list_(pa.int64())


def made():
    """Return lists of distinct items and relevant items; some rows lack a list, some relevant items, some both."""
    rng = np.random.default_rng(0)
    item_ids, target = [], []
    for row in range(ROWS):
        order = rng.permutation(NUM).tolist()
        listed = order[: rng.integers(1, WIDE)] if row % 4 == 1 else order[:WIDE]
        relevant = rng.choice(order[:12], rng.integers(1, 5), replace=False).tolist()
        item_ids.append(None if row % 7 == 3 else [] if row % 7 == 5 else listed)
        target.append(None if row % 11 == 2 else [] if row % 11 == 4 else relevant)
    return {"item_ids": item_ids, "target": target}


COLUMNS = made()


def table_of(columns, **types):
    """Return a pyarrow table of the columns, with int64 for whole numbers unless `types` says otherwise."""
    return pa.table({name: pa.array(values, types.get(name, INT_LISTS)) for name, values in columns.items()})


TABLE = table_of(COLUMNS)


def padded(lists, filler=-1):
    """Return the lists as one tensor, padded with `filler`."""
    return pad_sequence([torch.tensor(values or [filler]) for values in lists], True, filler)


def lists_of(columns, **options):
    """Return the input that holds the same lists as tensors."""
    lists = torch.nn.functional.pad(padded(columns["item_ids"]), (0, 1), value=-1)
    return trm.Lists(lists, padded(columns["target"]), **options)


def one_process(columns, metrics=NAMES, k=K, **options):
    """Return a collection that is updated with all rows at once."""
    collection = RecMetricCollection(metrics, k=k)
    collection.update(lists_of(columns, **options))
    return collection


def same(evaluation, collection):
    """Assert that values, standard errors and counts are equal."""
    assert numbers(evaluation) == near(collection.compute())
    errors = {key: value.nan_to_num(-1) for key, value in collection.standard_errors().items()}
    assert {key: value.nan_to_num(-1).item() for key, value in evaluation.standard_errors.items()} == near(errors)
    leading = collection.leading
    assert (evaluation.num_users, evaluation.num_skipped) == (leading.num_users, leading.num_skipped)


def evaluated(data, metrics=NAMES, k=K, options=None, **how):
    return arrow.merge(arrow.tally(data, metrics, k, **how, **(options or {})), metrics, k, **(options or {}))


def test_a_missing_list_scores_0_and_a_row_without_relevant_items_is_skipped():
    table = pa.table({"item_ids": [[1, 2], None, [], [3], [4]], "target": [[2], [1], [1], None, [5]]})
    evaluation = evaluated(table, "MRR", 2)

    assert numbers(evaluation) == {"MRR@2": (1 / 2 + 0 + 0 + 0) / 4}
    assert (evaluation.num_users, evaluation.num_skipped, evaluation.num_unserved) == (4, 1, 2)


@pytest.mark.parametrize(
    "kind",
    [
        *(INT_LISTS, pa.list_(pa.int8()), pa.list_(pa.uint64()), pa.list_(pa.float64()), pa.list_(pa.float32())),
        *(pa.large_list(pa.int32()), pa.large_list(pa.uint16())),
    ],
    ids=str,
)
@pytest.mark.parametrize(("begin", "end"), [(0, ROWS), (7, 57), (1, 2)])
def test_lists_of_all_types_are_read_in_slices(kind, begin, end):
    columns = {name: column[begin:end] for name, column in COLUMNS.items()}
    table = table_of(COLUMNS, item_ids=kind, target=kind)[begin:end]

    same(evaluated(table, complete=True), one_process(columns, complete=True))


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.list_(pa.string()), pa.large_list(pa.large_string()), pa.list_(pa.binary())),
        pa.list_(pa.dictionary(pa.int16(), pa.string())),
    ],
    ids=["text", "large text", "bytes", "categories"],
)
def test_text_is_looked_up(kind):
    """Half of the items are not in the vocabulary."""
    ids = [f"ï{item}".encode() if kind.value_type == pa.binary() else f"ï{item}" for item in range(NUM)]
    columns = {name: [row and [ids[item] for item in row] for row in column] for name, column in COLUMNS.items()}
    table = table_of(columns, item_ids=kind, target=kind)

    same(evaluated(table, item_ids=Vocabulary(ids[::2])), one_process(COLUMNS))


def test_items_outside_the_vocabulary_keep_their_ranks_may_be_relevant_and_are_counted():
    table = pa.table({"item_ids": [["a", "x"], ["x", "b"], ["x", "y"]], "target": [["a"], ["b"], ["y"]]})
    evaluation = evaluated(table, "MRR", 2, item_ids=["a", "b"])

    assert numbers(evaluation) == {"MRR@2": pytest.approx((1 / 1 + 1 / 2 + 1 / 2) / 3)}
    assert evaluation.num_unknown == 4


@pytest.mark.parametrize(
    ("item_ids", "value"), [([5, 7], (1 / 1 + 1 / 2) / 2), ([5, 7, -1], (1 / 2 + 1 / 2) / 2)], ids=str
)
def test_minus_1_is_padding_unless_it_is_an_item(item_ids, value):
    table = pa.table({"item_ids": pa.array([[-1, 5], [8, 7]], pa.list_(pa.int64(), 2)), "target": [[5], [7]]})
    assert numbers(evaluated(table, "MRR", 2, item_ids=item_ids)) == {"MRR@2": value}


def test_lists_of_one_length_are_read_in_slices_with_nulls_and_padding():
    columns = {"item_ids": [[5, 6, 7], [], [7, 8], [9, 5, 6]], "target": [[6], [6], [8], []]}
    lists = pa.array([[5, 6, 7], None, [7, 8, -1], [9, 5, 6]], pa.list_(pa.int32(), 3))
    table = pa.table({"item_ids": lists, "target": [6, 6, 8, None]})
    tallies = [arrow.tally(table.slice(begin, 2), NAMES, [1, 3]) for begin in (0, 2)]

    same(arrow.merge(tallies, NAMES, [1, 3]), one_process(columns, k=[1, 3]))


def test_a_null_list_is_empty_even_if_its_offsets_span_values():
    offsets, values = pa.array([0, 2, 4, 6], pa.int32()), pa.array([1, 2, None, 4, 5, 6])
    lists = pa.ListArray.from_arrays(offsets, values, mask=pa.array([False, True, False]))
    evaluation = evaluated(pa.table({"item_ids": lists, "target": [2, 4, 5]}), "MRR", 2)

    assert numbers(evaluation) == {"MRR@2": (1 / 2 + 0 + 1 / 1) / 3}
    assert evaluation.num_unserved == 1


def test_a_column_of_lists_may_hold_only_nulls():
    evaluation = evaluated(pa.table({"item_ids": pa.array([[], None]), "target": [1, 2]}), "HR", 1, complete=True)
    assert (numbers(evaluation), evaluation.num_unserved) == ({"HR@1": 0}, 2)


def test_columns_of_relevant_items_and_groups_may_hold_only_nulls():
    table = pa.table({"item_ids": [[1], [2]], "target": pa.nulls(2), "group": pa.nulls(2)})
    collection = RecMetricCollection("HR", k=1, accumulators=[trm.ByGroup("a", column="group")])
    tally = arrow.tally(table, collection)

    with pytest.warns(UserWarning, match="no row to average over"):
        assert arrow.merge(tally, collection).num_skipped == 2


CHUNKED = pa.concat_tables([TABLE[:7], TABLE[7:8], TABLE[8:]])
FRAMES = {
    "table of chunks": lambda: CHUNKED,
    "batch": lambda: CHUNKED.combine_chunks().to_batches()[0],
    "polars": lambda: pytest.importorskip("polars").from_arrow(TABLE),
    "pandas": lambda: TABLE.to_pandas(types_mapper=pytest.importorskip("pandas").ArrowDtype),
}
STREAMS = {
    "iterator": lambda: iter(CHUNKED.to_batches()),
    "reader": CHUNKED.to_reader,
    "list": CHUNKED.to_batches,
    "tables": lambda: iter([TABLE[:9], TABLE[9:]]),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_the_tally_of_a_frame_is_a_table(kind):
    tally = arrow.tally(FRAMES[kind](), NAMES, K)

    assert isinstance(tally, pa.Table)
    same(arrow.merge(tally, NAMES, K), one_process(COLUMNS))


@pytest.mark.parametrize("kind", STREAMS)
def test_the_tally_of_a_stream_is_an_iterator_of_one_batch(kind):
    (tally,) = arrow.tally(STREAMS[kind](), NAMES, K)

    assert isinstance(tally, pa.RecordBatch)
    assert tally.schema == arrow.SCHEMA
    same(arrow.merge([tally], NAMES, K), one_process(COLUMNS))


@pytest.mark.parametrize(("limit", "value"), [("_MAX_CELLS", 60), ("_ROWS_AT_ONCE", 4)])
def test_batches_of_few_rows_change_no_value(monkeypatch, limit, value):
    """Even where one list is longer than the others."""
    columns = made()
    columns["item_ids"][10] = [*range(NUM - 1, -1, -1)]
    monkeypatch.setattr(arrow, limit, value)

    same(evaluated(table_of(columns)), one_process(columns))


@settings(max_examples=examples(12), deadline=None)
@given(st.permutations(range(ROWS)), st.sets(st.integers(0, ROWS), max_size=6), st.randoms(use_true_random=False))
def test_every_order_and_split_of_the_rows_adds_up_to_the_same(order, cuts, random):
    """Counts are equal, and sums within 1e-12, in every order of the tallies."""
    table, whole = TABLE.take(order), arrow.tally(TABLE, NAMES, K)
    bounds = pairwise(sorted({0, *cuts, ROWS}))
    tallies = [arrow.tally(table.slice(begin, end - begin), NAMES, K) for begin, end in bounds]
    random.shuffle(tallies)
    tallies = pa.concat_tables(tallies)

    assert np.sum(tallies["counts"].to_pylist(), axis=0).tolist() == whole["counts"][0].as_py()
    assert np.sum(tallies["sums"].to_pylist(), axis=0) == pytest.approx(whole["sums"][0].as_py(), abs=1e-12)
    same(arrow.merge(tallies, NAMES, K), one_process(COLUMNS))


def test_excluded_items_leave_the_lists_and_later_ones_move_up():
    lists = [row and row + [item for item in range(NUM) if item not in row] for row in COLUMNS["item_ids"]]
    columns = {**COLUMNS, "item_ids": lists, "seen": [row and row[1:3] for row in lists]}
    collection = RecMetricCollection(NAMES, k=K, overlap="miss")
    collection.update(lists_of(columns, exclude=padded(columns["seen"])))

    same(evaluated(table_of(columns), exclude="seen", options={"overlap": "miss"}), collection)


@pytest.mark.parametrize("kind", [INT_LISTS, pa.large_list(pa.float32())], ids=str)
def test_gains_and_weights_are_read_from_columns(kind):
    gains = [row and [1 + item % 3 for item in row] for row in COLUMNS["target"]]
    weights = [float(row % 3) for row in range(ROWS)]
    collection = RecMetricCollection(NAMES, k=K)
    collection.update(lists_of(COLUMNS, gains=padded(gains, 0)), weights=torch.tensor(weights))
    table = table_of({**COLUMNS, "gains": gains, "weight": weights}, gains=kind, weight=pa.float64())

    same(evaluated(table, gains="gains", weights="weight"), collection)


@pytest.mark.parametrize(
    "ranks",
    [
        pa.array([1, 4, -1, None, 7, 2], pa.int64()),
        pa.array([1, 4, None, None, 7, 2], pa.uint8()),
        pa.array([1, 4, -1, None, 7, 2], pa.float64()),
        pa.array([[1], [4], [0], None, [7], [2]], pa.list_(pa.int32())),
        pa.array([[1], [4], [0], None, [7], [2]], pa.large_list(pa.uint8())),
    ],
    ids=lambda ranks: str(ranks.type),
)
def test_null_negative_ranks_and_0_in_lists_mean_no_relevant_item(ranks):
    evaluation = evaluated(pa.table({"rank": ranks}), "MRR", 6, ranks="rank", depth=9)

    assert numbers(evaluation) == {"MRR@6": (1 / 1 + 1 / 4 + 0 + 1 / 2) / 4}
    assert (evaluation.num_users, evaluation.num_skipped) == (4, 2)


SHORT = pa.table({"item_ids": [[1, 2, 3, 4], [4, 5, 6]], "target": [1, 6], "seen": [9, 5]})
REPEATS = pa.table({"item_ids": [[4, 4, 5, 5, 6], [6, 5, 4, 3, 2]], "target": [5, 5]})
PADDED = pa.table({"item_ids": [[0, 3, 2], [0, 5, 6]], "target": [[2, 0], [0, 0]]})
ENDING = pa.table({"item_ids": [[1, 2], [3, 4, 5]], "target": [2, 9]})
RANKS = pa.table({"rank": [[1, 30], [12]], "negative": [[-1, 4], [2]]})


@pytest.mark.parametrize(
    ("data", "k", "how", "options", "expected"),
    [
        (RANKS, None, {"ranks": "rank", "complete": True}, {}, (1 + 1 / 12) / 2),
        (RANKS, 3, {"ranks": "negative", "depth": 9}, {}, (0 + 1 / 2) / 2),
        (SHORT, 3, {"exclude": "seen", "complete": True}, {}, (1 + 1 / 2) / 2),
        (REPEATS, 3, {"duplicates": "first"}, {}, (1 / 2 + 1 / 2) / 2),
        (PADDED, 2, {}, {"padding_idx": 0, "empty_target_action": "neg"}, (1 / 2 + 0) / 2),
        (ENDING, None, {"complete": True}, {}, (1 / 2 + 0) / 2),
        (ENDING, 9, {"complete": True}, {}, (1 / 2 + 0) / 2),
    ],
    ids=["whole ranks", "negative ranks", "exclude", "duplicates", "padding", "whole lists", "lists shorter than k"],
)
def test_mean_reciprocal_ranks_of_two_rows_are_those_by_hand(data, k, how, options, expected):
    assert [*numbers(evaluated(data, "MRR", k, options, **how)).values()] == [expected]


def test_entries_that_repeat_an_item_are_counted():
    assert evaluated(REPEATS, "MRR", 3, duplicates="first").num_repeated == 2


def test_tallies_in_which_all_lists_are_shorter_than_the_cutoff_are_refused():
    with pytest.raises(ValueError, match=r"HR@3 reads 3 ranks, but none of 2 lists has as many items"):
        arrow.merge([arrow.tally(ENDING[:1], "HR", 3)] * 2, "HR", 3)


def test_some_lists_may_be_shorter_than_the_cutoff():
    assert numbers(evaluated(ENDING, "HR", 3)) == {"HR@3": (1 + 0) / 2}


def test_metrics_beyond_accuracy_need_no_target():
    rng = np.random.default_rng(0)
    lists = [rng.permutation(NUM)[:WIDE].tolist() for _ in range(30)]
    metrics, options = ["Coverage", "Gini", "ExposureGini", "Missing"], {"catalogue": Catalogue(NUM)}
    table = pa.table({"item_ids": lists})
    tallies = [arrow.tally(table[begin : begin + 10], metrics, [2, 5], target=None, **options) for begin in (0, 10, 20)]
    collection = RecMetricCollection(metrics, k=[2, 5], **options)
    collection.update(trm.Lists(torch.tensor(lists)))

    same(arrow.merge(tallies, metrics, [2, 5], **options), collection)


def test_metrics_that_count_items_write_one_copy_of_their_counts():
    catalogue = Catalogue(NUM)
    coverage, gini = trm.Coverage(5, catalogue=catalogue), trm.Gini(5, catalogue=catalogue)
    table = pa.table({"item_ids": [[1, 2], [3, 4]]})
    alone, both = (arrow.tally(table, metrics, target=None) for metrics in ([coverage], [coverage, gini]))

    assert len(alone["counts"][0]) == len(both["counts"][0]) > NUM


def test_metrics_of_groups_of_items_have_states_of_their_own():
    """Two metrics with equal k and numbers of groups, which read the ground truth of every row."""
    catalogue = Catalogue(NUM, popularity=torch.arange(1, NUM + 1))
    metrics = [trm.EqualOpportunity(5, head=head, catalogue=catalogue) for head in (0.5, 0.8)]
    values = numbers(evaluated(TABLE, metrics, None))

    assert values == near(one_process(COLUMNS, [metric.clone() for metric in metrics], None).compute())
    assert len({*values.values()}) == 2


NAMED_ITEMS = Vocabulary([f"i{n}" for n in range(NUM)])
NAMED = Catalogue.from_interactions(
    trm.Interactions.from_padded(torch.arange(NUM)[None], NUM).with_ids(Vocabulary(["u"]), NAMED_ITEMS)
)
NAMED_TABLE = pa.table({"item_ids": [["i3", "i4"], ["i4", "i3"]], "target": [["i3"], ["i3"]]})


def test_ids_are_looked_up_in_the_catalogue():
    evaluation = evaluated(NAMED_TABLE, ["MRR", "Coverage"], 2, {"catalogue": NAMED})
    assert numbers(evaluation) == {"MRR@2": (1 / 1 + 1 / 2) / 2, "Coverage@2": 2 / NUM}


def test_items_that_the_catalogue_lacks_are_refused_by_metrics_that_read_it():
    table = pa.table({"item_ids": [["i3", "i4"], ["i4", "x"]], "target": [["i3"], ["i3"]]})

    with pytest.raises(ValueError, match=r"not in the catalogue: row 1 lists"):
        arrow.tally(table, ["MRR", "Coverage"], 2, catalogue=NAMED)


def test_item_ids_other_than_those_of_the_catalogue_are_refused():
    with pytest.raises(ValueError, match="item_ids differ from those of the catalogue"):
        arrow.tally(NAMED_TABLE, "MRR", 2, item_ids=["i3", "i4"], catalogue=NAMED)


def test_a_collection_with_a_prefix_and_a_metric_of_ones_own_is_evaluated():
    class First(trm.RankingMetric):
        formula = staticmethod(lambda ranking: ranking.hits(1).any(-1).double())

    collection = RecMetricCollection(["MRR", First()], k=3, prefix="val/")
    evaluation = arrow.merge(arrow.tally(ENDING, collection, complete=True), collection)

    assert numbers(evaluation) == {"val/MRR@3": (1 / 2 + 0) / 2, "val/First": 0}


@pytest.mark.parametrize("names", [["at", "ch", "de"], [0, 7, 12], [False, True]], ids=str)
@pytest.mark.parametrize("encoded", [False, True])
def test_a_column_names_the_groups_of_rows(names, encoded):
    """Null is in no group."""
    codes = [row % (1 + len(names)) - 1 for row in range(ROWS)]
    column = pa.array([None if code < 0 else names[code] for code in codes])
    table = TABLE.append_column("g", column.dictionary_encode() if encoded else column)
    texts, options = [str(name).lower() for name in names], {"k": K, "catalogue": Catalogue(NUM)}
    collection, expected = (
        RecMetricCollection([*NAMES, "Coverage"], accumulators=[trm.ByGroup(*texts, column=name)], **options)
        for name in ("g", "groups")
    )
    expected.update(lists_of(COLUMNS), groups=torch.tensor(codes))
    tallies = [arrow.tally(table[begin:end], collection) for begin, end in pairwise([0, 1, 2, 30, ROWS])]

    assert numbers(arrow.merge(tallies[::-1], collection)) == near(expected.compute())


def test_default_device_does_not_matter():
    table = TABLE.append_column("g", pa.array(["a", "b"] * 30))
    collection = RecMetricCollection(NAMES, k=K, accumulators=[trm.ByGroup("a", "b", column="g")])
    expected = arrow.tally(table, collection)
    with torch.device("meta"):
        tally = arrow.tally(table, collection)
        merged = arrow.merge(tally, collection)

    assert tally.equals(expected)
    assert numbers(merged) == near(arrow.merge(expected, collection))


def test_a_tally_of_no_rows_adds_nothing():
    nothing = arrow.tally(TABLE[:0], NAMES, K)

    assert set(nothing["sums"][0].as_py()) == set(nothing["counts"][0].as_py()) == {0}
    assert next(arrow.tally(iter([]), NAMES, K))["sums"][0] == nothing["sums"][0]
    same(arrow.merge([nothing, arrow.tally(TABLE, NAMES, K), nothing], NAMES, K), one_process(COLUMNS))


@pytest.mark.parametrize(("ties", "first"), [("expected", (1 + 1 / 2 + 1 / 3) / 3), ("pessimistic", 1 / 3)])
@pytest.mark.parametrize("scores", [[[0.5, 0.5, 0.5], [0.9, 0.1]], [[5, 5, 5], [9, 1]]], ids=["floats", "integers"])
def test_listed_items_with_equal_scores_are_tied(ties, first, scores):
    table = pa.table({"item_ids": [[7, 3, 9], [4, 8]], "target": [[9], [8]], "scores": scores})
    how = {"scores": "scores", "complete": True}
    tallies = [arrow.tally(table[row : row + 1], "MRR", 3, ties=ties, **how) for row in (0, 1)]
    evaluation = arrow.merge(tallies, "MRR", 3, ties=ties)

    assert (evaluation["MRR@3"].item(), evaluation.num_tied) == (pytest.approx((first + 1 / 2) / 2), 1)


PAIR = pa.table({"item_ids": [[1, 2, 3], [4, 5, 6]], "target": [[1], [6]]})


def pair_with(name, values, kind=None):
    """Return `PAIR` with this column."""
    columns = dict(zip(PAIR.column_names, PAIR.columns, strict=True))
    return pa.table({**columns, name: pa.array(values, kind)})


ROUNDED = pair_with("item_ids", [[2.0**24], [2.0**24]], pa.list_(pa.float32()))  # 2^24 + 1 is 2^24 in float32
BY_GROUP = RecMetricCollection("HR", k=3, accumulators=[trm.ByGroup("b", "c", column="g")])
KEPT_ROWS = RecMetricCollection("HR", k=3, accumulators=[trm.KeptRows()])
BAD_VALUES = [
    (PAIR, {"lists": "items"}, "data has no column 'items'.* There are item_ids, target"),
    (pair_with("item_ids", [[1], [2, None]]), {}, "column 'item_ids' holds a missing value in the list of row 1"),
    (ROUNDED, {}, "rounds whole numbers from"),
    (pair_with("item_ids", [[1, 2], [3, 3]]), {}, r"item recommended twice: row 1 is \[3, 3"),
    (pair_with("gains", [[1], [1, 2]]), {"gains": "gains"}, "row 1 has 1 relevant items and 2 gains"),
    (pair_with("w", [1, None]), {"weights": "w"}, "row 1 has no weight: column 'w'"),
    (pair_with("s", [[9], [6]]), {"exclude": "s"}, "also excluded.*row 1"),
    (SHORT, {"exclude": "seen"}, "the list of row 1 holds 2 items after excluded and repeated ones"),
    (pair_with("r", [1, 0]), {"ranks": "r", "complete": True}, "invalid ranks .*: row 1 is .*: if ranks start at 0"),
    (RANKS, {"k": 2, "ranks": "rank"}, "depth of these ranks is unknown: pass depth=10, .* if they were never cut"),
    (RANKS, {"k": 20, "ranks": "rank", "depth": 10}, "first 20 ranks, but the ranks are known to depth 10 only"),
    (PAIR, {"depth": 10}, "depth= belongs to ranks: name their column with ranks="),
    (PAIR, {"ranks": "target", "exclude": "s"}, "exclude= cannot be combined with ranks='target', which replaces"),
    (PAIR, {"target": None}, "HR@3 needs the relevant items: name their column with target="),
    (PAIR, {"metrics": "MRR", "k": None}, "MRR reads the whole ranking, but lists are only its top"),
    (PAIR, {"metrics": trm.Seen(3, catalogue=Catalogue(9)), "k": None}, "needs the users' histories"),
    (PAIR, {"metrics": KEPT_ROWS, "k": None}, r"a tally holds only sums, which KeptRows\(\) does not keep"),
    (pair_with("g", ["b", "a"]), {"metrics": BY_GROUP, "k": None}, r"'g' holds 'a', which is not a group of ByGroup"),
]
BAD_TYPES = [
    (pair_with("n", [1, 2]), {"lists": "n"}, "'n' must hold a list per row, .* got int64; .* 'item_ids', 'target'"),
    (pair_with("target", [["a"], ["b"]]), {}, "'target' holds large_string, not row numbers: pass item_ids="),
    (pair_with("target", [[1.5], [2.0]]), {}, "'target' holds floats such as 1.5, which are no ids"),
    (pair_with("item_ids", [[1], [2**63]], pa.list_(pa.uint64())), {}, "'item_ids' holds uint64, not row numbers"),
    ({"item_ids": np.ones(3)}, {}, r"batch_format='pyarrow'"),
    ("lists.parquet", {}, r"pq.ParquetFile\(path, pre_buffer=False\)"),
    (iter([{}]), {}, "data must yield RecordBatches of pyarrow, got dict"),
    (7, {}, "data must be a Table, or an iterator of RecordBatches, of pyarrow, got int"),
]


@pytest.mark.parametrize(
    ("error", "data", "how", "message"),
    [*((ValueError, *row) for row in BAD_VALUES), *((TypeError, *row) for row in BAD_TYPES)],
)
def test_bad_data_is_refused(error, data, how, message):
    with pytest.raises(error, match=message):
        list(arrow.tally(data, **{"metrics": "HR", "k": 3, **how}))


@pytest.mark.parametrize("data", [lambda table: table, lambda table: table.to_batches(8)], ids=["table", "list"])
def test_errors_count_rows_from_the_first_batch_on(data):
    """In whatever order the rows are read."""
    columns = made()
    columns["item_ids"][10] = [*range(NUM)]
    columns["item_ids"][44] = [7, 8, 7]

    with pytest.raises(ValueError, match=r"row 44 is \[7, 8, 7"):
        list(arrow.tally(data(table_of(columns)), NAMES, K))


@pytest.mark.parametrize(
    ("tally", "message"),
    [
        (lambda: arrow.tally(PAIR, "MRR", 3), r"tally 1 has other metrics, .*'tally 3\\nMRR.*, expected .*\\nHR"),
        (lambda: arrow.tally(PAIR, "HR", 3, empty_target_action="neg"), r"HR\S*-neg', expected .*HR\S*-skip'"),
        (lambda: arrow.tally(PAIR, "HR", 3, duplicates="first"), "duplicates=first complete=.*, tally 0 with .*=error"),
        (lambda: arrow.tally(pair_with("w", [1, 2]), "HR", 3, weights="w"), "tally 1 .* columns=lists,target,weights"),
    ],
    ids=["metrics", "options", "duplicates", "weights"],
)
def test_tallies_made_with_other_settings_are_refused(tally, message):
    with pytest.raises(ValueError, match=message):
        arrow.merge([arrow.tally(PAIR, "HR", 3), tally()], "HR", 3)


def test_tallies_of_other_catalogues_are_refused():
    catalogues = [Catalogue(7, popularity=torch.tensor([count, *range(6)]), num_users=9) for count in (3, 4)]
    tallies = [arrow.tally(PAIR, "Novelty", k=1, target=None, catalogue=catalogue) for catalogue in catalogues]

    with pytest.raises(ValueError, match="tally 1"):
        arrow.merge(tallies, "Novelty", k=1, catalogue=catalogues[0])


TALLY = arrow.tally(PAIR, "HR", 3)
FORMER = [text.replace("tally 3", "tally 2") for text in TALLY["fingerprint"].to_pylist()]


@pytest.mark.parametrize(
    ("error", "tallies", "options", "message"),
    [
        (ValueError, [], {}, "there is no tally to merge"),
        (ValueError, PAIR, {}, "a table of tallies has no column 'sums'"),
        (TypeError, {"sums": []}, {}, "tallies must be a Table of pyarrow"),
        (ValueError, TALLY.set_column(2, "fingerprint", pa.array(FORMER)), {}, "tally 0 .* another version: 'tally 2"),
        (ValueError, TALLY, {"tie": "realistic"}, "no option 'tie'; did you mean 'ties'"),
    ],
    ids=["none", "other columns", "dict", "former version", "option"],
)
def test_what_is_no_tally_is_refused(error, tallies, options, message):
    with pytest.raises(error, match=message):
        arrow.merge(tallies, "HR", 3, **options)
