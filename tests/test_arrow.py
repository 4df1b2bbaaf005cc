"""Tallies give the values of one process for every kind of column, every option and every split; bad input raises."""

import pickle
from functools import partial
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
INT_LISTS, FLOAT_LISTS = pa.list_(pa.int64()), pa.list_(pa.float64())


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
JUDGED = [bool(relevant) for relevant in COLUMNS["target"]]


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


def same(found, collection):
    """Assert that values, standard errors and counts are equal."""
    assert numbers(found) == near(collection.compute())
    errors = {key: value.nan_to_num(-1) for key, value in collection.standard_errors().items()}
    assert {key: value.nan_to_num(-1).item() for key, value in found.standard_errors.items()} == near(errors)
    leading = collection.leading
    assert (found.num_users, found.num_skipped) == (leading.num_users, leading.num_skipped)


def evaluated(data, metrics=NAMES, k=K, options=None, **how):
    return arrow.merge(arrow.tally(data, metrics, k, **how, **(options or {})), metrics, k, **(options or {}))


def test_one_process_gets_the_same():
    """Tallies equal an update with padded lists; a missing list scores 0, rows without relevant items are skipped."""
    found = evaluated(TABLE)
    same(found, one_process(COLUMNS))
    assert found.num_skipped == JUDGED.count(False)
    unserved = [not listed for listed in COLUMNS["item_ids"]]
    assert found.num_unserved == sum(map(all, zip(JUDGED, unserved, strict=True)))


KINDS = [
    *(INT_LISTS, pa.list_(pa.int8()), pa.list_(pa.uint64()), FLOAT_LISTS, pa.list_(pa.float32())),
    *(pa.large_list(pa.int32()), pa.large_list(pa.uint16())),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_kinds_of_lists_in_slices(kind):
    table = table_of(COLUMNS, item_ids=kind, target=kind)
    for begin, end in ((7, 57), (1, 2)):
        columns = {name: column[begin:end] for name, column in COLUMNS.items()}
        same(evaluated(table[begin:end], complete=True), one_process(columns, complete=True))


NAMED = {
    "text": pa.list_(pa.string()),
    "large text": pa.large_list(pa.large_string()),
    "bytes": pa.list_(pa.binary()),
    "categories": pa.list_(pa.dictionary(pa.int16(), pa.string())),
}


@pytest.mark.parametrize("kind", NAMED)
def test_text_is_looked_up(kind):
    """Items that the vocabulary does not have keep their ranks, may be relevant, and are counted."""
    ids = [f"ï{item}".encode() if kind == "bytes" else f"ï{item}" for item in range(NUM)]
    columns = {name: [row and [ids[item] for item in row] for row in column] for name, column in COLUMNS.items()}
    table = table_of(columns, item_ids=NAMED[kind], target=NAMED[kind])
    found = evaluated(table, item_ids=Vocabulary(ids[::2]))
    same(found, one_process(COLUMNS))
    assert found.num_unknown == sum(item % 2 for listed in COLUMNS["item_ids"] for item in listed or [])
    assert evaluated(table, item_ids=ids).num_unknown == 0


def test_numbers_are_looked_up_too():
    """Whole numbers are looked up in a vocabulary, and -1 is padding of lists unless it is an item."""
    same(evaluated(TABLE, item_ids=[*range(NUM)][::-1]), one_process(COLUMNS))
    wide = pa.table({"item_ids": pa.array([[-1, 5], [8, 7]], pa.list_(pa.int64(), 2)), "target": [[5], [7]]})
    assert numbers(evaluated(wide, "MRR", 2, item_ids=[5, 7])) == {"MRR@2": 0.75}
    assert numbers(evaluated(wide, "MRR", 2, item_ids=[5, 7, -1])) == {"MRR@2": 0.5}


def test_lists_of_one_length():
    """Columns of `fixed_size_list` give the same values, with null lists, in slices and with -1 as padding."""
    columns = {"item_ids": [[5, 6, 7], [], [7, 8], [9, 5, 6]], "target": [[6], [6], [8], []]}
    lists = pa.array([[5, 6, 7], None, [7, 8, -1], [9, 5, 6]], pa.list_(pa.int32(), 3))
    table = pa.table({"item_ids": lists, "target": [6, 6, 8, None]})
    tallies = [arrow.tally(table.slice(begin, 2), NAMES, [1, 3]) for begin in (0, 2)]
    for found in (evaluated(table, k=[1, 3]), arrow.merge(tallies, NAMES, [1, 3])):
        same(found, one_process(columns, k=[1, 3]))
        assert (found.num_users, found.num_skipped, found.num_unserved) == (3, 1, 1)


def test_columns_of_nulls():
    """A null list is empty even if its offsets span values; a column may hold only nulls."""
    offsets, values = pa.array([0, 2, 4, 6], pa.int32()), pa.array([1, 2, None, 4, 5, 6])
    lists = pa.ListArray.from_arrays(offsets, values, mask=pa.array([False, True, False]))
    found = evaluated(pa.table({"item_ids": lists, "target": [2, 4, 5]}), "MRR", 2)
    assert (numbers(found), found.num_unserved) == ({"MRR@2": 0.5}, 1)
    table = pa.table({"item_ids": [[1], [2]], "target": [1, 1], "group": pa.nulls(2), "none": pa.nulls(2)})
    arrow.tally(table, RecMetricCollection("HR", k=1, accumulators=[trm.ByGroup("a", column="group")]))
    arrow.tally(table, "HR", k=1, target="none")
    found = evaluated(pa.table({"item_ids": pa.array([[], None]), "target": [1, 2]}), "HR", 1, complete=True)
    assert (numbers(found), found.num_unserved) == ({"HR@1": 0}, 2)


def test_frames_and_streams():
    """Chunked tables, streams of batches, and frames of polars and pandas give the same; a stream gives an iterator."""
    polars, pandas = pytest.importorskip("polars"), pytest.importorskip("pandas")
    expected = one_process(COLUMNS)
    chunked = pa.concat_tables([TABLE[:7], TABLE[7:8], TABLE[8:]])
    frames = polars.from_arrow(TABLE), TABLE.to_pandas(types_mapper=pandas.ArrowDtype)
    for data in (chunked, chunked.combine_chunks().to_batches()[0], *frames):
        assert isinstance(arrow.tally(data, NAMES, K), pa.Table)
        same(evaluated(data), expected)
    for stream in (iter(chunked.to_batches()), chunked.to_reader(), chunked.to_batches(), iter([TABLE[:9], TABLE[9:]])):
        (tally,) = arrow.tally(stream, NAMES, K)
        assert isinstance(tally, pa.RecordBatch)
        assert tally.schema == arrow.SCHEMA
        same(arrow.merge([tally], NAMES, K), expected)


def test_batches_change_nothing(monkeypatch):
    """Batches of few rows give the same values, even where one list is longer than the others."""
    columns = made()
    columns["item_ids"][10] = [*range(NUM - 1, -1, -1)]
    expected = one_process(columns)
    for limit, value in (("_MAX_CELLS", 60), ("_ROWS_AT_ONCE", 4)):
        monkeypatch.setattr(arrow, limit, value)
        same(evaluated(table_of(columns)), expected)


@settings(max_examples=examples(12), deadline=None)
@given(st.permutations(range(ROWS)), st.sets(st.integers(0, ROWS), max_size=6), st.randoms(use_true_random=False))
def test_any_split(order, cuts, random):
    """For every order and split of the rows, and every order of the tallies, counts are equal and sums within 1e-12."""
    table, whole = TABLE.take(order), arrow.tally(TABLE, NAMES, K)
    bounds = pairwise(sorted({0, *cuts, ROWS}))
    tallies = [arrow.tally(table.slice(begin, end - begin), NAMES, K) for begin, end in bounds]
    random.shuffle(tallies)
    merged = pa.concat_tables(tallies)
    assert np.sum(merged["counts"].to_pylist(), axis=0).tolist() == whole["counts"][0].as_py()
    assert np.sum(merged["sums"].to_pylist(), axis=0) == pytest.approx(whole["sums"][0].as_py(), abs=1e-12)
    same(arrow.merge(merged, NAMES, K), one_process(COLUMNS))


def test_history_leaves_lists():
    """Items of the history leave the lists, and the items behind them move up."""
    lists = [row and row + [item for item in range(NUM) if item not in row] for row in COLUMNS["item_ids"]]
    columns = {**COLUMNS, "item_ids": lists, "seen": [row and row[1:3] for row in lists]}
    collection = RecMetricCollection(NAMES, k=K, overlap="miss")
    collection.update(lists_of(columns, exclude=padded(columns["seen"])))
    same(evaluated(table_of(columns), exclude="seen", options={"overlap": "miss"}), collection)


@pytest.mark.parametrize("kind", [INT_LISTS, pa.large_list(pa.float32())], ids=str)
def test_gains_and_weights(kind):
    gains = [row and [1 + item % 3 for item in row] for row in COLUMNS["target"]]
    weights = [float(row % 3) for row in range(ROWS)]
    collection = RecMetricCollection(NAMES, k=K)
    collection.update(lists_of(COLUMNS, gains=padded(gains, 0)), weights=torch.tensor(weights))
    table = table_of({**COLUMNS, "gains": gains, "weight": weights}, gains=kind, weight=pa.float64())
    same(evaluated(table, gains="gains", weights="weight"), collection)


WHOLE, SMALL = pa.list_(pa.int32()), pa.uint8()


@pytest.mark.parametrize(
    ("kind", "nothing"), [(pa.int64(), -1), (SMALL, None), (pa.float64(), -1), (WHOLE, 0), (pa.large_list(SMALL), 0)]
)
def test_ranks(kind, nothing):
    """A column has one rank or a list of ranks per row; null, negative ranks and 0 in lists mean no relevant item."""
    ranks = [1, 4, nothing, None, 7, 2]
    if pa.types.is_nested(kind):
        ranks = [rank if rank is None else [rank] for rank in ranks]
    collection = RecMetricCollection(NAMES, k=K)
    collection.update(trm.Ranks(torch.tensor([1, 4, -1, -1, 7, 2]), depth=9, padding=-1))
    found = evaluated(pa.table({"rank": pa.array(ranks, kind)}), ranks="rank", depth=9)
    same(found, collection)
    assert (found.num_users, found.num_skipped) == (4, 2)


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
def test_values(data, k, how, options, expected):
    """Mean reciprocal ranks of two rows, by arithmetic."""
    found = evaluated(data, "MRR", k, options, **how)
    assert [*numbers(found).values()] == [expected]
    assert found.num_repeated == (2 if data is REPEATS else 0)


def test_lists_that_end():
    """Some lists may be shorter than the cut-off; if all lists are, `merge` raises an error."""
    short = [arrow.tally(ENDING[:1], "HR", 3)] * 2
    with pytest.raises(ValueError, match=r"HR@3 reads 3 ranks, but none of 2 lists has as many items"):
        arrow.merge(short, "HR", 3)
    assert numbers(arrow.merge([*short, arrow.tally(ENDING[1:], "HR", 3)], "HR", 3)) == {"HR@3": 2 / 3}


def test_lists_alone():
    """Metrics beyond accuracy need no target."""
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
    instances = [trm.Coverage(5, catalogue=catalogue), trm.Gini(5, catalogue=catalogue)]
    table = pa.table({"item_ids": [[1, 2], [3, 4]]})
    alone, both = (arrow.tally(table, metrics, target=None) for metrics in (instances[:1], instances))
    shipped = pickle.loads(pickle.dumps(partial(arrow.tally, metrics=instances, target=None)))

    assert len(alone["counts"][0]) == len(both["counts"][0]) > NUM
    assert shipped(table)["counts"].equals(both["counts"])


def test_groups_of_items_share_nothing():
    """Two metrics with equal k and numbers of groups have separate states, and read the ground truth of every row."""
    catalogue = Catalogue(NUM, popularity=torch.arange(1, NUM + 1))
    metrics = [trm.EqualOpportunity(5, head=head, catalogue=catalogue) for head in (0.5, 0.8)]
    found = numbers(evaluated(TABLE, metrics, None))
    assert found == near(one_process(COLUMNS, [metric.clone() for metric in metrics], None).compute())
    assert len({*found.values()}) == 2


def test_catalogue_has_ids():
    """Ids of the catalogue are looked up, and metrics that read the catalogue refuse items that it does not have."""
    ids = Vocabulary([f"i{n}" for n in range(NUM)])
    train = trm.Interactions.from_padded(torch.arange(NUM)[None], NUM).with_ids(Vocabulary(["u"]), ids)
    catalogue = Catalogue.from_interactions(train)
    table = pa.table({"item_ids": [["i3", "i4"], ["i4", "i3"]], "target": [["i3"], ["i3"]]})
    found = evaluated(table, ["MRR", "Coverage"], 2, {"catalogue": catalogue})
    assert numbers(found) == {"MRR@2": 0.75, "Coverage@2": 2 / NUM}
    strange = pa.table({"item_ids": [["i3", "i4"], ["i4", "x"]], "target": [["i3"], ["i3"]]})
    with pytest.raises(ValueError, match=r"not in the catalogue: row 1 lists"):
        arrow.tally(strange, ["MRR", "Coverage"], 2, catalogue=catalogue)
    with pytest.raises(ValueError, match="item_ids differ from those of the catalogue"):
        arrow.tally(table, "MRR", 2, item_ids=["i3", "i4"], catalogue=catalogue)


def test_own_metrics_and_collections():
    class First(trm.RankingMetric):
        formula = staticmethod(lambda ranking: ranking.hits(1).any(-1).double())

    collection = RecMetricCollection(["MRR", First()], k=3, prefix="val/")
    found = arrow.merge(arrow.tally(TABLE, collection, complete=True), collection)
    assert list(found) == ["val/MRR@3", "val/First"]
    assert found["val/First"] == one_process(COLUMNS, ["HR"], 1).compute()["HR@1"]


@pytest.mark.parametrize("names", [["at", "ch", "de"], [0, 7, 12], [False, True]], ids=str)
def test_groups(names):
    """Tallies of a collection with groups read their names from a column; null is in no group."""
    codes = [row % (1 + len(names)) - 1 for row in range(ROWS)]
    column = pa.array([None if code < 0 else names[code] for code in codes])
    texts = [str(name).lower() for name in names]
    collection, expected = (
        RecMetricCollection(
            [*NAMES, "Coverage"], k=K, accumulators=[trm.ByGroup(*texts, column=name)], catalogue=Catalogue(NUM)
        )
        for name in ("g", "groups")
    )
    expected.update(lists_of(COLUMNS), groups=torch.tensor(codes))
    for groups in (column, column.dictionary_encode()):
        table = TABLE.append_column("g", groups)
        tallies = [arrow.tally(table[begin:end], collection) for begin, end in pairwise([0, 1, 2, 30, ROWS])]
        found = arrow.merge(tallies[::-1], collection)
        assert list(found) == list(expected.compute())
        assert numbers(found) == near(expected.compute())
    counts = {row.group: row.num_users for row in found.points if row.name == "HR" and row.k == 1}
    judged = [code for code, has_relevant in zip(codes, JUDGED, strict=True) if has_relevant]
    assert counts == {None: len(judged), **{text: judged.count(code) for code, text in enumerate(texts)}}


def test_default_device_does_not_matter():
    table = TABLE.append_column("g", pa.array(["a", "b"] * 30))
    collection = RecMetricCollection(NAMES, k=K, accumulators=[trm.ByGroup("a", "b", column="g")])
    expected = arrow.tally(table, collection)
    with torch.device("meta"):
        found = arrow.tally(table, collection)
        merged = arrow.merge(found, collection)
    assert found.equals(expected)
    assert numbers(merged) == near(arrow.merge(expected, collection))


def test_a_tally_of_no_rows_adds_nothing():
    nothing = arrow.tally(TABLE[:0], NAMES, K)

    assert set(nothing["sums"][0].as_py()) == set(nothing["counts"][0].as_py()) == {0}
    assert next(arrow.tally(iter([]), NAMES, K))["sums"][0] == nothing["sums"][0]
    same(arrow.merge([nothing, arrow.tally(TABLE, NAMES, K), nothing], NAMES, K), one_process(COLUMNS))


def test_no_rows_at_all_are_nan_with_a_warning():
    with pytest.warns(UserWarning, match="no row to average over"):
        assert arrow.merge(arrow.tally(TABLE[:0], NAMES, K), NAMES, K)["HR@1"].isnan()


@pytest.mark.parametrize("ties", ["expected", "pessimistic"])
def test_scores_of_lists(ties):
    """Listed items with equal scores are tied, as in `Scores`; scores may be whole numbers."""
    first = (1 + 1 / 2 + 1 / 3) / 3 if ties == "expected" else 1 / 3
    for scores in ([[0.5, 0.5, 0.5], [0.9, 0.1]], [[5, 5, 5], [9, 1]]):
        table = pa.table({"item_ids": [[7, 3, 9], [4, 8]], "target": [[9], [8]], "scores": scores})
        how = {"scores": "scores", "complete": True}
        tallies = [arrow.tally(table[row : row + 1], "MRR", 3, ties=ties, **how) for row in (0, 1)]
        found = arrow.merge(tallies, "MRR", 3, ties=ties)
        assert (found["MRR@3"].item(), found.num_tied) == (pytest.approx((first + 1 / 2) / 2), 1)


PAIR = pa.table({"item_ids": [[1, 2, 3], [4, 5, 6]], "target": [[1], [6]]})


def bad(name, values, kind=None):
    """Return `PAIR` with this column."""
    columns = dict(zip(PAIR.column_names, PAIR.columns, strict=True))
    return pa.table({**columns, name: pa.array(values, kind)})


def rounded():
    """Return `PAIR` with lists of 2^24, the smallest whole number n for which float32 rounds n + 1 to n."""
    return bad("item_ids", [[2.0**24], [2.0**24]], pa.list_(pa.float32()))


BY_GROUP = RecMetricCollection("HR", k=3, accumulators=[trm.ByGroup("b", "c", column="g")])
KEPT_ROWS = RecMetricCollection("HR", k=3, accumulators=[trm.KeptRows()])
BAD_VALUES = [
    (PAIR, {"lists": "items"}, "data has no column 'items'.* There are item_ids, target"),
    (bad("item_ids", [[1], [2, None]]), {}, "column 'item_ids' holds a missing value in the list of row 1"),
    (rounded(), {}, "rounds whole numbers from"),
    (bad("item_ids", [[1, 2], [3, 3]]), {}, r"item recommended twice: row 1 is \[3, 3"),
    (bad("gains", [[1], [1, 2]]), {"gains": "gains"}, "row 1 has 1 relevant items and 2 gains"),
    (bad("w", [1, None]), {"weights": "w"}, "row 1 has no weight: column 'w'"),
    (bad("s", [[9], [6]]), {"exclude": "s"}, "also excluded.*row 1"),
    (SHORT, {"exclude": "seen"}, "the list of row 1 holds 2 items after excluded and repeated ones"),
    (
        bad("r", [1, 0]),
        {"ranks": "r", "complete": True},
        r"invalid ranks .*: row 1 is \[0.*\]: if ranks start at 0",
    ),
    (
        RANKS,
        {"k": 2, "ranks": "rank"},
        r"the depth of these ranks is unknown: pass depth=10, .* complete=True only if they were never cut",
    ),
    (
        RANKS,
        {"k": 20, "ranks": "rank", "depth": 10},
        "needs the first 20 ranks, but the ranks are known to depth 10 only",
    ),
    (PAIR, {"depth": 10}, "depth= belongs to ranks: name their column with ranks="),
    (PAIR, {"ranks": "target", "exclude": "s"}, "exclude= cannot be combined with ranks='target', which replaces"),
    (PAIR, {"target": None}, "HR@3 needs the relevant items: name their column with target="),
    (PAIR, {"metrics": "MRR", "k": None}, "MRR reads the whole ranking, but lists are only its top"),
    (PAIR, {"metrics": trm.Seen(3, catalogue=Catalogue(9)), "k": None}, "needs the users' histories"),
    (PAIR, {"metrics": KEPT_ROWS, "k": None}, r"a tally holds only sums, which KeptRows\(\) does not keep"),
    (
        bad("g", ["b", "a"]),
        {"metrics": BY_GROUP, "k": None},
        r"'g' holds 'a', which is not a group of ByGroup\('b', 'c'",
    ),
]
BAD_TYPES = [
    (bad("n", [1, 2]), {"lists": "n"}, "'n' must hold a list per row, .* got int64; .* lists: 'item_ids', 'target'"),
    (
        bad("target", [["a"], ["b"]]),
        {},
        r"column 'target' holds large_string, not row numbers: pass item_ids=, a Vocabulary",
    ),
    (bad("target", [[1.5], [2.0]]), {}, "'target' holds floats such as 1.5, which are no ids"),
    (bad("item_ids", [[1], [2**63]], pa.list_(pa.uint64())), {}, "'item_ids' holds uint64, not row numbers"),
    ({"item_ids": np.ones(3)}, {}, r"batch_format='pyarrow'"),
    ("lists.parquet", {}, r"pq.ParquetFile\(path, pre_buffer=False\)"),
    (7, {}, "data must be a Table, or an iterator of RecordBatches, of pyarrow, got int"),
]


@pytest.mark.parametrize(
    ("error", "data", "how", "message"),
    [*((ValueError, *row) for row in BAD_VALUES), *((TypeError, *row) for row in BAD_TYPES)],
)
def test_what_is_wrong(error, data, how, message):
    with pytest.raises(error, match=message):
        arrow.tally(data, **{"metrics": "HR", "k": 3, **how})


def test_rows_are_counted_through():
    """Errors count rows from the first batch on, in whatever order the rows are read."""
    columns = made()
    columns["item_ids"][10] = [*range(NUM)]
    columns["item_ids"][44] = [7, 8, 7]
    with pytest.raises(ValueError, match=r"row 44 is \[7, 8, 7"):
        arrow.tally(table_of(columns), NAMES, K)
    with pytest.raises(ValueError, match=r"row 44 is \[7, 8, 7"):
        next(arrow.tally(iter(table_of(columns).to_batches(max_chunksize=8)), NAMES, K))
    with pytest.raises(TypeError, match="data must yield RecordBatches of pyarrow, got dict"):
        next(arrow.tally(iter([{}]), NAMES, K))


@pytest.mark.parametrize(
    ("metrics", "options", "message"),
    [
        ("MRR", {}, r"tally 1 has other metrics, options .*: 'tally 3\\nMRR@3.*, expected 'tally 3\\nHR@3"),
        ("HR", {"empty_target_action": "neg"}, r"HR@3\S*-neg', expected .*HR@3\S*-skip'"),
        ("HR", {"duplicates": "first"}, "columns=lists,target duplicates=first complete=False, tally 0 with .*=error"),
        ("HR", {"weights": "w"}, "tally 1 was made with columns=lists,target,weights"),
    ],
)
def test_tallies_that_do_not_add_up(metrics, options, message):
    tallies = [arrow.tally(PAIR, "HR", 3), arrow.tally(bad("w", [1, 2]), metrics, 3, **options)]
    with pytest.raises(ValueError, match=message):
        arrow.merge(tallies, "HR", 3)


def test_tallies_of_other_catalogues_do_not_add_up():
    table, popularity = pa.table({"item_ids": [[0], [1]]}), torch.tensor([3, 2, 1])
    first, second = (trm.Catalogue(3, popularity=counts, num_users=4) for counts in (popularity, popularity.flip(0)))
    tallies = [arrow.tally(table, "Novelty", k=1, target=None, catalogue=catalogue) for catalogue in (first, second)]
    with pytest.raises(ValueError, match="tally 1"):
        arrow.merge(tallies, "Novelty", k=1, catalogue=first)


def test_what_is_no_tally():
    tally = arrow.tally(PAIR, "HR", 3)
    former = [text.replace("tally 3", "tally 2") for text in tally["fingerprint"].to_pylist()]
    for error, tables, options, message in (
        (ValueError, [], {}, "there is no tally to merge"),
        (ValueError, PAIR, {}, "a table of tallies has no column 'sums'"),
        (TypeError, {"sums": []}, {}, "tallies must be a Table of pyarrow"),
        (ValueError, tally.set_column(2, "fingerprint", pa.array(former)), {}, "tally 0 .* another version: 'tally 2"),
        (ValueError, tally, {"tie": "realistic"}, "no option 'tie'; did you mean 'ties'"),
    ):
        with pytest.raises(error, match=message):
            arrow.merge(tables, "HR", 3, **options)
