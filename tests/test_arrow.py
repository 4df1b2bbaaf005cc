"""Tallies give the values of one process for every kind of column, every option and every split; bad input raises."""

import math
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

INT_LISTS = pa.list_(pa.int64())
TWO_ROWS = pa.table({"item_ids": [[1, 2], [3, 4]], "target": [[2], [3]]})
MRR_OF_TWO_ROWS = {"MRR@2": (1 / 2 + 1 / 1) / 2}


def evaluated(data, metrics, k=None, options=None, **how):
    """Return the evaluation of the tally of these data."""
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
def test_lists_of_all_types_are_read_in_slices(kind):
    lists = pa.array([[1], [2, 3], None, [4, 5, 6], [7]], kind)
    table = pa.table({"item_ids": lists, "target": pa.array([[1], [9, 3], [8], [4], [7]], kind)})
    evaluation = evaluated(table[1:4], "MRR", 2)

    assert numbers(evaluation) == {"MRR@2": (1 / 2 + 0 + 1 / 1) / 3}


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        *((pa.list_(pa.string()), "ä", "b"), (pa.large_list(pa.large_string()), "ä", "b")),
        *((pa.list_(pa.binary()), b"\xff", b"b"), (pa.list_(pa.dictionary(pa.int16(), pa.string())), "ä", "b")),
    ],
    ids=["text", "large text", "bytes", "categories"],
)
def test_text_is_looked_up(kind, first, second):
    lists = pa.array([[first, second], [second, first]], kind)
    table = pa.table({"item_ids": lists, "target": pa.array([[second], [second]], kind)})

    assert numbers(evaluated(table, "MRR", 2, item_ids=[first, second])) == {"MRR@2": (1 / 2 + 1 / 1) / 2}


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
    lists = pa.array([[5, 6, 7], None, [7, 8, -1], [9, 5, 6]], pa.list_(pa.int32(), 3))
    table = pa.table({"item_ids": lists, "target": [6, 6, 8, 9]})
    tallies = [arrow.tally(table[begin : begin + 2], "MRR", 3) for begin in (0, 2)]

    assert numbers(arrow.merge(tallies, "MRR", 3)) == {"MRR@3": (1 / 2 + 0 + 1 / 2 + 1 / 1) / 4}


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


CHUNKED = pa.concat_tables([TWO_ROWS[:1], TWO_ROWS[1:]])
FRAMES = {
    "table of chunks": lambda: CHUNKED,
    "batch": lambda: TWO_ROWS.to_batches()[0],
    "polars": lambda: pytest.importorskip("polars").from_arrow(TWO_ROWS),
    "pandas": lambda: TWO_ROWS.to_pandas(types_mapper=pytest.importorskip("pandas").ArrowDtype),
}
STREAMS = {
    "iterator": lambda: iter(CHUNKED.to_batches()),
    "reader": CHUNKED.to_reader,
    "list": CHUNKED.to_batches,
    "tables": lambda: iter([TWO_ROWS[:1], TWO_ROWS[1:]]),
}


@pytest.mark.parametrize("data", (FRAMES | STREAMS).values(), ids=FRAMES | STREAMS)
def test_every_kind_of_data_is_tallied(data):
    assert numbers(evaluated(data(), "MRR", 2)) == MRR_OF_TWO_ROWS


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_the_tally_of_a_frame_is_a_table(frame):
    assert isinstance(arrow.tally(frame(), "MRR", 2), pa.Table)


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_the_tally_of_a_stream_is_an_iterator_of_one_batch(stream):
    tallies = arrow.tally(stream(), "MRR", 2)

    assert [type(next(tallies)), *tallies] == [pa.RecordBatch]


def test_a_tally_has_the_public_schema():
    assert arrow.tally(TWO_ROWS, "MRR", 2).schema == arrow.SCHEMA


@pytest.mark.parametrize("limit", ["_MAX_CELLS", "_ROWS_AT_ONCE"])
def test_rows_that_are_read_in_batches_of_one_are_all_counted(monkeypatch, limit):
    monkeypatch.setattr(arrow, limit, 1)
    table = pa.table({"item_ids": [[1, 2], [3, 4, 5], [6, 7]], "target": [[2], [3], [6]]})

    assert numbers(evaluated(table, "MRR", 2)) == {"MRR@2": pytest.approx((1 / 2 + 1 / 1 + 1 / 1) / 3)}


NAMES, K = ["HR", "NDCG", "MRR", "Precision", "Recall", "MAP"], [1, 3, 6]
ROWS = 60


def random_columns():
    """Return lists of distinct items and relevant items; some rows lack a list, some relevant items, some both."""
    rng = np.random.default_rng(0)
    item_ids, target = [], []
    for row in range(ROWS):
        order = rng.permutation(40).tolist()
        listed = order[: rng.integers(1, 6)] if row % 4 == 1 else order[:6]
        relevant = rng.choice(order[:12], rng.integers(1, 5), replace=False).tolist()
        item_ids.append(None if row % 7 == 3 else [] if row % 7 == 5 else listed)
        target.append(None if row % 11 == 2 else [] if row % 11 == 4 else relevant)
    return {"item_ids": item_ids, "target": target}


def padded(lists):
    """Return the lists as one tensor, padded with -1."""
    return pad_sequence([torch.tensor(values or [-1]) for values in lists], True, -1)


COLUMNS = random_columns()
TABLE = pa.table({name: pa.array(column, INT_LISTS) for name, column in COLUMNS.items()})


@settings(max_examples=examples(12), deadline=None)
@given(st.permutations(range(ROWS)), st.sets(st.integers(0, ROWS), max_size=6), st.randoms(use_true_random=False))
def test_tallies_of_random_parts_add_up_to_the_values_and_standard_errors_of_tensors(order, cuts, random):
    bounds, table = pairwise(sorted({0, *cuts, ROWS})), TABLE.take(order)
    tallies = [arrow.tally(table.slice(begin, end - begin), NAMES, K) for begin, end in bounds]
    random.shuffle(tallies)
    evaluation = arrow.merge(pa.concat_tables(tallies), NAMES, K)
    collection = RecMetricCollection(NAMES, k=K)
    collection.update(trm.Lists(padded(COLUMNS["item_ids"]), padded(COLUMNS["target"])))

    assert numbers(evaluation) == near(collection.compute())
    assert numbers(evaluation.standard_errors) == near(collection.standard_errors())
    assert evaluation.num_skipped == collection.leading.num_skipped


def test_gains_are_read_from_a_column():
    table = pa.table({"item_ids": [[1, 2]], "target": [[1, 2]], "gains": pa.array([[1, 3]], pa.list_(pa.float32()))})
    evaluation = evaluated(table, "NDCG", 2, gains="gains")

    assert numbers(evaluation) == {"NDCG@2": pytest.approx((1 + 3 / math.log2(3)) / (3 + 1 / math.log2(3)))}


def test_weights_are_read_from_a_column():
    table = TWO_ROWS.append_column("weight", pa.array([3.0, 1.0]))
    assert numbers(evaluated(table, "MRR", 2, weights="weight")) == {"MRR@2": (3 * 1 / 2 + 1 * 1 / 1) / 4}


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
SEEN_TARGET = pa.table({"item_ids": [[1, 2, 3], [4, 5, 6]], "target": [1, 6], "seen": [1, 5]})
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
        (SEEN_TARGET, 2, {"exclude": "seen"}, {"overlap": "miss"}, (0 + 1 / 2) / 2),
        (REPEATS, 3, {"duplicates": "first"}, {}, (1 / 2 + 1 / 2) / 2),
        (PADDED, 2, {}, {"padding_idx": 0, "empty_target_action": "neg"}, (1 / 2 + 0) / 2),
        (ENDING, None, {"complete": True}, {}, (1 / 2 + 0) / 2),
        (ENDING, 9, {"complete": True}, {}, (1 / 2 + 0) / 2),
    ],
    ids=[
        *("whole ranks", "negative ranks", "exclude", "excluded target", "duplicates", "padding", "whole lists"),
        "lists shorter than k",
    ],
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
    options = {"target": None, "catalogue": Catalogue(10)}
    tallies = [arrow.tally(pa.table({"item_ids": lists}), "Coverage", 2, **options) for lists in ([[1, 2]], [[2, 3]])]

    assert numbers(arrow.merge(tallies, "Coverage", 2, catalogue=Catalogue(10))) == {"Coverage@2": 3 / 10}


def test_metrics_that_count_items_write_one_copy_of_their_counts():
    catalogue = Catalogue(40)
    coverage, gini = trm.Coverage(2, catalogue=catalogue), trm.Gini(2, catalogue=catalogue)
    alone, both = (arrow.tally(TWO_ROWS, metrics, target=None) for metrics in ([coverage], [coverage, gini]))

    assert len(alone["counts"][0]) == len(both["counts"][0]) > 40


def test_metrics_of_groups_of_items_have_states_of_their_own():
    catalogue = Catalogue(4, popularity=torch.tensor([8, 4, 2, 1]))  # head: item 0, or items 0 and 1
    metrics = [trm.EqualOpportunity(2, head=head, catalogue=catalogue) for head in (0.5, 0.75)]
    table = pa.table({"item_ids": [[0, 1], [1, 2], [1, 0]], "target": [[0, 3], [2], [1]]})
    values = [*numbers(evaluated(table, metrics)).values()]

    # recalls of head and tail: 1/1 and 2/3; 2/2 and 1/2
    assert values == pytest.approx([(1 / 6) / (5 / 6), (1 / 4) / (3 / 4)])


ABC = Vocabulary(["a", "b", "c"])
CATALOGUE_OF_ABC = Catalogue.from_interactions(
    trm.Interactions.from_padded(torch.tensor([[0, 1, 2]]), 3).with_ids(Vocabulary(["user"]), ABC)
)


def test_ids_are_looked_up_in_the_catalogue():
    table = pa.table({"item_ids": [["b", "c"], ["c", "b"]], "target": [["b"], ["b"]]})
    evaluation = evaluated(table, ["MRR", "Coverage"], 2, {"catalogue": CATALOGUE_OF_ABC})

    assert numbers(evaluation) == {"MRR@2": (1 / 1 + 1 / 2) / 2, "Coverage@2": 2 / 3}


def test_items_that_the_catalogue_lacks_are_refused_by_metrics_that_read_it():
    table = pa.table({"item_ids": [["a", "b"], ["b", "x"]], "target": [["a"], ["a"]]})

    with pytest.raises(ValueError, match=r"not in the catalogue: row 1 lists"):
        arrow.tally(table, ["MRR", "Coverage"], 2, catalogue=CATALOGUE_OF_ABC)


def test_item_ids_other_than_those_of_the_catalogue_are_refused():
    with pytest.raises(ValueError, match="item_ids differ from those of the catalogue"):
        arrow.tally(TWO_ROWS, "MRR", 2, item_ids=["a", "b"], catalogue=CATALOGUE_OF_ABC)


def test_a_collection_with_a_prefix_and_a_metric_of_ones_own_is_evaluated():
    class First(trm.RankingMetric):
        formula = staticmethod(lambda ranking: ranking.hits(1).any(-1).double())

    collection = RecMetricCollection(["MRR", First()], k=3, prefix="val/")
    evaluation = arrow.merge(arrow.tally(ENDING, collection, complete=True), collection)

    assert numbers(evaluation) == {"val/MRR@3": (1 / 2 + 0) / 2, "val/First": 0}


@pytest.mark.parametrize("encoded", [False, True], ids=["plain", "encoded"])
@pytest.mark.parametrize(("first", "second"), [("at", "de"), (0, 7), (False, True)], ids=["text", "integers", "truth"])
def test_a_column_names_the_groups_of_rows(first, second, encoded):
    names = pa.array([first, second, None])  # null is in no group
    groups = names.dictionary_encode() if encoded else names
    table = pa.table({"item_ids": [[1, 2], [3, 4], [5, 6]], "target": [[2], [3], [5]], "group": groups})
    by_group = trm.ByGroup(str(first).lower(), str(second).lower(), column="group")
    collection = RecMetricCollection("MRR", k=2, accumulators=[by_group])
    tallies = [arrow.tally(table[begin:end], collection) for begin, end in ((0, 1), (1, 3))]
    values = numbers(arrow.merge(tallies, collection)).values()

    assert [*values] == [(1 / 2 + 1 / 1 + 1 / 1) / 3, 1 / 2, 1 / 1]


def test_the_default_device_changes_no_tally():
    collection = RecMetricCollection("MRR", k=2, accumulators=[trm.ByGroup("a", "b", column="g")])
    table = pa.table({"item_ids": [[1, 2], [3, 4, 5]], "target": [[2], [3]], "g": ["a", "b"]})
    with torch.device("meta"):
        evaluation = arrow.merge(arrow.tally(table, collection), collection)

    assert numbers(evaluation) == {"MRR@2": (1 / 2 + 1 / 1) / 2, "MRR@2/a": 1 / 2, "MRR@2/b": 1 / 1}


@pytest.mark.parametrize("data", [TWO_ROWS[:0], iter([])], ids=["table", "stream"])
def test_a_tally_of_no_rows_adds_nothing(data):
    nothing = arrow.tally(data, "MRR", 2)
    tallies = [nothing, arrow.tally(TWO_ROWS, "MRR", 2)]

    assert numbers(arrow.merge(tallies, "MRR", 2)) == MRR_OF_TWO_ROWS


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


REPEATED_IN_THE_LAST = pa.table({"item_ids": [[1, 2], [7, 8, 9, 10], [7, 8, 7]], "target": [[1], [1], [1]]})


@pytest.mark.parametrize(
    "data", [REPEATED_IN_THE_LAST, REPEATED_IN_THE_LAST.to_batches(2)], ids=["table", "list of batches"]
)
def test_errors_count_rows_from_the_first_batch_on(data):
    with pytest.raises(ValueError, match=r"row 2 is \[7, 8, 7"):
        list(arrow.tally(data, "HR", 2))


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
