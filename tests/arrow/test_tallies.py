"""Tallies give the values of one process for every kind of column, every option and every split; bad input raises."""

import math
import pickle
from functools import partial
from itertools import pairwise

import pytest
import reference
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

NAMES = ["HR", "NDCG", "MRR", "Precision", "Recall", "MAP"]
K = [1, 3, 6]
NUM, WIDE = 40, 6
INT_LISTS = pa.list_(pa.int64())


def made(rows=60, seed=0):
    """Return lists of distinct items and relevant items; some rows lack a list, some relevant items, some both."""
    rng = np.random.default_rng(seed)
    columns = {"item_ids": [], "target": [], "seen": [], "gains": [], "weight": []}
    for row in range(rows):
        order = rng.permutation(NUM).tolist()
        listed = order[: rng.integers(1, WIDE)] if row % 4 == 1 else order[:WIDE]
        relevant = rng.choice(order[:12], rng.integers(1, 5), replace=False).tolist()
        columns["item_ids"].append(None if row % 7 == 3 else [] if row % 7 == 5 else listed)
        columns["target"].append(None if row % 11 == 2 else [] if row % 11 == 4 else relevant)
        columns["seen"].append(None if row % 5 == 0 else order[20:23])
        columns["gains"].append(
            None if columns["target"][-1] is None else rng.integers(1, 4, len(columns["target"][-1])).tolist()
        )
        columns["weight"].append(float(rng.integers(0, 3)))
    return columns


def table_of(columns, **types):
    """Return a pyarrow table of the columns, with int64 for whole numbers unless `types` says otherwise."""
    types = {"weight": pa.float64(), **types}
    return pa.table({name: pa.array(some, types.get(name, INT_LISTS)) for name, some in columns.items()})


def padded(lists, filler=-1):
    """Return the lists as one tensor, padded with `filler`."""
    return pad_sequence([torch.tensor(each or [filler]) for each in lists], True, filler)


def one_process(columns, metrics=NAMES, k=K, **options):
    """Return a collection that is updated with all rows at once."""
    collection = RecMetricCollection(metrics, k=k, **options)
    lists = torch.nn.functional.pad(padded(columns["item_ids"]), (0, 1), value=-1)
    collection.update(trm.Lists(lists, padded(columns["target"])))
    return collection


def same(found, collection, tolerance=1e-12):
    """Assert that values, standard errors and counts are equal."""
    assert numbers(found) == near(collection.compute(), tolerance)
    errors = {key: value.nan_to_num(-1) for key, value in collection.standard_errors().items()}
    assert {key: value.nan_to_num(-1).item() for key, value in found.standard_errors.items()} == near(errors, tolerance)
    leading = collection.leading
    assert (found.num_users, found.num_skipped) == (leading.num_users, leading.num_skipped)


def evaluated(data, metrics=NAMES, k=K, options=None, **how):
    return arrow.merge(arrow.tally(data, metrics, k, **how, **(options or {})), metrics, k, **(options or {}))


# ------------------------------------------------------------------------------------------------------------ oracles


def test_one_process_gets_the_same():
    """Tallies equal an update with padded lists; a missing list scores 0, rows without relevant items are skipped."""
    columns = made()
    found = evaluated(table_of(columns))
    same(found, one_process(columns))
    served = [bool(listed) for listed in columns["item_ids"]]
    judged = [bool(relevant) for relevant in columns["target"]]
    assert found.num_skipped == judged.count(False)
    assert found.num_unserved == sum(j and not s for s, j in zip(served, judged, strict=True))


def test_plain_python_gets_the_same():
    columns = made()
    found = evaluated(table_of(columns), complete=True)
    users = []
    for listed, relevant in zip(columns["item_ids"], columns["target"], strict=True):
        scores = [-math.inf] * NUM
        for place, item in enumerate(listed or []):
            scores[item] = -place
        if relevant:
            users.append(reference.rank(scores, dict.fromkeys(relevant, 1)))
    formulas = {"HR": reference.hit_rate, "NDCG": reference.ndcg, "MRR": reference.reciprocal_rank}
    for name, formula in formulas.items():
        for k in K:
            assert found[f"{name}@{k}"].item() == pytest.approx(reference.mean([formula(user, k) for user in users])[0])


def test_evaluate_lists_gets_the_same():
    """Tallies give the values of `evaluate_lists`, for dicts and for a pyarrow table with one row per listed item."""
    columns = made()
    found = evaluated(table_of(columns))
    truth = {row: relevant for row, relevant in enumerate(columns["target"]) if relevant}
    lists = {row: listed for row, listed in enumerate(columns["item_ids"]) if listed and row in truth}
    for given_as in (
        lists,
        pa.table(
            {
                "user": [row for row, listed in lists.items() for _ in listed],
                "item": [item for listed in lists.values() for item in listed],
            }
        ),
    ):
        expected = trm.evaluate_lists(NAMES, given_as, target=truth, k=K)
        assert numbers(found) == near(expected)
        assert numbers(found.standard_errors) == near(expected.standard_errors)
        assert (found.num_users, found.num_unserved) == (expected.num_users, expected.num_unserved)


KINDS = {
    "list": INT_LISTS,
    "large list of int32": pa.large_list(pa.int32()),
    "int8": pa.list_(pa.int8()),
    "uint64": pa.list_(pa.uint64()),
    "uint16": pa.large_list(pa.uint16()),
    "double": pa.list_(pa.float64()),
    "float": pa.list_(pa.float32()),
}
NAMED = {
    "text": pa.list_(pa.string()),
    "large text": pa.large_list(pa.large_string()),
    "bytes": pa.list_(pa.binary()),
    "categories": pa.list_(pa.dictionary(pa.int16(), pa.string())),
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_columns(kind):
    columns = made()
    same(evaluated(table_of(columns, item_ids=KINDS[kind], target=KINDS[kind])), one_process(columns))


@pytest.mark.parametrize("kind", NAMED)
def test_text_is_looked_up(kind):
    """Items that the vocabulary does not have keep their ranks, may be relevant, and are counted."""
    columns = made()
    name = (lambda item: f"ï{item}".encode()) if kind == "bytes" else "ï{}".format
    named = {
        column: [each and [name(item) for item in each] for each in columns[column]]
        for column in ("item_ids", "target")
    }
    half = Vocabulary([name(item) for item in range(0, NUM, 2)])
    table = table_of(named, item_ids=NAMED[kind], target=NAMED[kind])
    found = evaluated(table, item_ids=half)
    same(found, one_process(columns))
    assert found.num_unknown == sum(item % 2 for listed in columns["item_ids"] for item in listed or [])
    assert evaluated(table, item_ids=[name(item) for item in range(NUM)]).num_unknown == 0


def test_numbers_are_looked_up_too():
    """Whole numbers are looked up in a vocabulary, and -1 is padding of lists unless it is an item."""
    columns = made()
    same(evaluated(table_of(columns), item_ids=[*range(NUM)][::-1]), one_process(columns))
    wide = pa.table({"item_ids": pa.array([[-1, 5], [8, 7]], pa.list_(pa.int64(), 2)), "target": [[5], [7]]})
    assert numbers(evaluated(wide, "MRR", 2, item_ids=[5, 7])) == {"MRR@2": 0.75}
    assert numbers(evaluated(wide, "MRR", 2, item_ids=[5, 7, -1])) == {"MRR@2": 0.5}


def test_lists_of_one_length():
    """Columns of `fixed_size_list` give the same values, with null lists, in slices and with -1 as padding."""
    filled = [[5, 6, 7], None, [7, 8, -1], [9, 5, 6]]
    target = [6, 6, 8, None]
    columns = {"item_ids": [[5, 6, 7], [], [7, 8], [9, 5, 6]], "target": [[6], [6], [8], []]}
    for kind in (pa.list_(pa.int32(), 3), INT_LISTS):
        table = pa.table({"item_ids": pa.array(filled, kind), "target": target})
        found = evaluated(table, k=[1, 3])
        same(found, one_process(columns, k=[1, 3]))
        assert (found.num_users, found.num_skipped, found.num_unserved) == (3, 1, 1)
        parts = [arrow.tally(table.slice(begin, 2), NAMES, [1, 3]) for begin in (0, 2)]
        same(arrow.merge(parts, NAMES, [1, 3]), one_process(columns, k=[1, 3]))


def test_null_lists_that_hold_something():
    """A null list is empty even if its offsets span values, some of them null."""
    offsets, values = pa.array([0, 2, 4, 6], pa.int32()), pa.array([1, 2, None, 4, 5, 6])
    lists = pa.ListArray.from_arrays(offsets, values, mask=pa.array([False, True, False]))
    found = evaluated(pa.table({"item_ids": lists, "target": [2, 4, 5]}), "MRR", 2)
    assert (numbers(found), found.num_unserved) == ({"MRR@2": 0.5}, 1)


@pytest.mark.parametrize("begin", [0, 1, 7])
@pytest.mark.parametrize("rows", [0, 1, 20])
def test_slices(begin, rows):
    columns = made()
    part = {name: column[begin : begin + rows] for name, column in columns.items()}
    for kind in KINDS.values():
        if rows:
            table = table_of(columns, item_ids=kind, target=kind).slice(begin, rows)
            same(evaluated(table, complete=True), one_process_complete(part))


def one_process_complete(columns):
    collection = RecMetricCollection(NAMES, k=K)
    collection.update(trm.Lists(padded(columns["item_ids"]), padded(columns["target"]), complete=True))
    return collection


def test_frames_and_streams():
    """Chunked tables, streams of batches, and frames of polars and pandas give the same; a stream gives an iterator."""
    columns = made()
    expected, table = one_process(columns), table_of(columns)
    chunked = pa.concat_tables([table[:7], table[7:8], table[8:]])
    for data in (chunked, chunked.combine_chunks().to_batches()[0]):
        assert isinstance(arrow.tally(data, NAMES, K), pa.Table)
        same(evaluated(data), expected)
    for stream in (iter(chunked.to_batches()), chunked.to_reader(), chunked.to_batches(), iter([table[:9], table[9:]])):
        tallies = arrow.tally(stream, NAMES, K)
        (written,) = tallies
        assert isinstance(written, pa.RecordBatch)
        assert written.schema == arrow.SCHEMA
        same(arrow.merge([written], NAMES, K), expected)
    polars, pandas = pytest.importorskip("polars"), pytest.importorskip("pandas")
    same(evaluated(polars.from_arrow(table)), expected)
    same(evaluated(table.select(["item_ids", "target"]).to_pandas(types_mapper=pandas.ArrowDtype)), expected)


def test_batches_change_nothing(monkeypatch):
    """Batches of few rows give the same values, even where one list is longer than the others."""
    from torchrecmetrics.arrow import counting

    columns = made()
    columns["item_ids"][10] = [*range(NUM - 1, -1, -1)]
    expected = one_process(columns)
    monkeypatch.setattr(counting, "_MAX_CELLS", 60)
    same(evaluated(table_of(columns)), expected)
    monkeypatch.setattr(counting, "_ROWS_AT_ONCE", 4)
    same(evaluated(table_of(columns)), expected)


@settings(max_examples=examples(12), deadline=None)
@given(st.permutations(range(60)), st.lists(st.integers(0, 60), max_size=6), st.randoms(use_true_random=False))
def test_any_split(order, cuts, random):
    """For every order and split of the rows, and every order of the tallies, counts are equal and sums within 1e-12."""
    table = table_of(made()).take(order)
    bounds = sorted({0, *cuts, 60})
    parts = [
        arrow.tally(table.slice(begin, end - begin), NAMES, K)
        for begin, end in zip([0, *bounds[:-1]], bounds, strict=True)
        if end > begin or begin
    ]
    random.shuffle(parts)
    whole, merged = arrow.tally(table_of(made()), NAMES, K), pa.concat_tables(parts)
    assert np.sum(merged["counts"].to_pylist(), axis=0).tolist() == whole["counts"][0].as_py()
    assert np.sum(merged["sums"].to_pylist(), axis=0) == pytest.approx(whole["sums"][0].as_py(), abs=1e-12)
    same(arrow.merge(merged, NAMES, K), one_process(made()))


# --------------------------------------------------------------------------------------------------- columns, options


def test_history_leaves_lists():
    """Items of the history leave the lists, and the items behind them move up."""
    columns = made()
    columns["item_ids"] = [
        listed and listed + [item for item in range(NUM) if item not in listed] for listed in columns["item_ids"]
    ]
    columns["seen"] = [listed and listed[1:3] for listed in columns["item_ids"]]
    collection = RecMetricCollection(NAMES, k=K, overlap="miss")
    lists = torch.nn.functional.pad(padded(columns["item_ids"]), (0, 1), value=-1)
    exclude = padded(columns["seen"])
    collection.update(trm.Lists(lists, padded(columns["target"]), exclude=exclude))
    same(evaluated(table_of(columns), exclude="seen", options={"overlap": "miss"}), collection)


def test_gains_and_weights():
    columns = made()
    gains = [[float(gain) for gain in some] + [0.0] * 8 if some else [0.0] * 8 for some in columns["gains"]]
    target = padded(columns["target"])
    gains = torch.tensor([some[: target.shape[1]] for some in gains])
    lists = torch.nn.functional.pad(padded(columns["item_ids"]), (0, 1), value=-1)
    collection = RecMetricCollection(NAMES, k=K)
    collection.update(trm.Lists(lists, target, gains=gains), weights=torch.tensor(columns["weight"]))
    for kind in (INT_LISTS, pa.large_list(pa.float32())):
        same(evaluated(table_of(columns, gains=kind), gains="gains", weights="weight"), collection)


@pytest.mark.parametrize(
    ("kind", "nothing"),
    [
        (pa.int64(), -1),
        (pa.uint8(), None),
        (pa.float64(), -1),
        (pa.list_(pa.int32()), 0),
        (pa.large_list(pa.int64()), -1),
    ],
)
def test_ranks(kind, nothing):
    """A column has one rank or a list of ranks per row; null, negative ranks and 0 in lists mean no relevant item."""
    ranks = [1, 4, nothing, None, 7, 2]
    given_as = ranks if not pa.types.is_nested(kind) else [None if rank is None else [rank] for rank in ranks]
    collection = RecMetricCollection(NAMES, k=K)
    collection.update(trm.Ranks(torch.tensor([1, 4, -1, -1, 7, 2]), depth_known=False, padding=-1))
    found = evaluated(pa.table({"rank": pa.array(given_as, kind)}), ranks="rank")
    same(found, collection)
    assert (found.num_users, found.num_skipped) == (4, 2)


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint8(), pa.float64()])
def test_ranks_that_start_at_0(kind):
    """A 0 in a column of one rank per row raises an error that names the row."""
    table = pa.table({"rank": pa.array([1, None, 0, 2], kind)})
    with pytest.raises(ValueError, match=r"ranks that are no places .*: row 2 is \[0.*\]: if ranks start at 0"):
        arrow.tally(table, "HR", 3, ranks="rank")


def test_ranks_of_the_whole_list():
    """Metrics without a cut-off need `complete=True`, which says that the ranks are those of the whole list."""
    table = pa.table({"rank": [[1, 30], [12]]})
    with pytest.raises(ValueError, match="the depth of these ranks is unknown"):
        arrow.tally(table, "MRR", ranks="rank")
    assert numbers(evaluated(table, "MRR", None, ranks="rank", complete=True)) == {"MRR": (1 + 1 / 12) / 2}


def test_lists_that_history_cuts_short():
    """A list that the history makes shorter than k raises an error, even beside longer lists."""
    table = pa.table({"item_ids": [[1, 2, 3, 4], [4, 5, 6]], "target": [1, 6], "seen": [9, 5]})
    with pytest.raises(ValueError, match=r"the list of row 1 holds 2 items after excluded and repeated ones have left"):
        arrow.tally(table, "HR", 3, exclude="seen")
    assert numbers(evaluated(table, "MRR", 3, exclude="seen", complete=True)) == {"MRR@3": 0.75}


def test_repeats():
    """Items that are listed again are dropped with `duplicates="first"`, and are counted."""
    table = pa.table({"item_ids": [[4, 4, 5, 5, 6], [6, 5, 4, 3, 2]], "target": [5, 5]})
    found = evaluated(table, "MRR", 3, duplicates="first")
    assert (numbers(found), found.num_repeated) == ({"MRR@3": 0.5}, 2)


def test_padding_and_empty_rows():
    """`padding_idx` and `empty_target_action` of the metrics apply to lists, too."""
    table = pa.table({"item_ids": [[0, 3, 2], [0, 5, 6]], "target": [[2, 0], [0, 0]]})
    options = {"padding_idx": 0, "empty_target_action": "neg"}
    assert numbers(evaluated(table, "MRR", 2, options)) == {"MRR@2": 0.25}


def test_lists_that_end():
    """Some lists may be shorter than the cut-off; if all lists are, `merge` raises an error."""
    table = pa.table({"item_ids": [[1, 2], [3, 4, 5]], "target": [2, 9]})
    short = [arrow.tally(table[:1], "HR", 3), arrow.tally(table[:1], "HR", 3)]
    with pytest.raises(ValueError, match=r"HR@3 looks at 3 places, but none of 2 lists holds as many items"):
        arrow.merge(short, "HR", 3)
    assert numbers(arrow.merge([*short, arrow.tally(table[1:], "HR", 3)], "HR", 3)) == {"HR@3": 2 / 3}
    assert numbers(evaluated(table, "HR", 9, complete=True)) == {"HR@9": 0.5}
    with pytest.raises(ValueError, match=r"MRR looks at the whole ranking, of which lists are the beginning"):
        arrow.tally(table, "MRR")
    assert numbers(evaluated(table, "MRR", None, complete=True)) == {"MRR": 0.25}
    with pytest.raises(ValueError, match="AUROC compares all items"):
        arrow.tally(table, "AUROC", complete=True)


def test_lists_alone():
    """Metrics beyond accuracy need no target, and metrics that count items write one copy of their counts."""
    rng = np.random.default_rng(0)
    lists = [rng.permutation(NUM)[:WIDE].tolist() for _ in range(30)]
    catalogue = Catalogue(NUM, popularity=torch.arange(1, NUM + 1))
    metrics, options = ["Coverage", "Gini", "Entropy", "ExposureGini", "Missing"], {"catalogue": catalogue}
    table = pa.table({"item_ids": lists})
    parts = [arrow.tally(table[n : n + 10], metrics, [2, 5], target=None, **options) for n in (0, 10, 20)]
    collection = RecMetricCollection(metrics, k=[2, 5], **options)
    collection.update(trm.Lists(torch.tensor(lists)))
    same(arrow.merge(parts, metrics, [2, 5], **options), collection)
    instances = [trm.Coverage(5, catalogue=catalogue), trm.Gini(5, catalogue=catalogue)]
    alone, both = (arrow.tally(table, some, target=None) for some in (instances[:1], instances))
    assert len(alone["counts"][0]) == len(both["counts"][0]) > NUM
    shipped = pickle.loads(pickle.dumps(partial(arrow.tally, metrics=instances, target=None)))
    assert shipped(table)["counts"].equals(both["counts"])
    with pytest.raises(ValueError, match=r"HR@5 reads which items are relevant: target= names their column"):
        arrow.tally(table, "HR", 5, target=None)


def test_groups_of_items_share_nothing():
    """Two metrics with equal k and numbers of groups have separate states, and read the ground truth of every row."""
    data = made()
    catalogue = Catalogue(NUM, popularity=torch.arange(1, NUM + 1))
    metrics = [trm.EqualOpportunity(5, head=head, catalogue=catalogue) for head in (0.5, 0.8)]
    columns = {name: data[name] for name in ("item_ids", "target")}
    found = numbers(evaluated(table_of(columns), metrics, None))
    collection = one_process(columns, [metric.clone() for metric in metrics], None)
    assert found == near(collection.compute(), 1e-12)
    assert len({*found.values()}) == 2


def test_catalogue_has_ids():
    """Ids of the catalogue are looked up, and metrics that read the catalogue refuse items that it does not have."""
    ids = Vocabulary([f"i{n}" for n in range(NUM)])
    train = trm.Interactions.from_padded(torch.arange(NUM)[None], NUM).with_ids(Vocabulary(["u"]), ids)
    options = {"catalogue": Catalogue.from_interactions(train)}
    table = pa.table({"item_ids": [["i3", "i4"], ["i4", "i3"]], "target": [["i3"], ["i3"]]})
    assert numbers(evaluated(table, ["MRR", "Coverage"], 2, options)) == {"MRR@2": 0.75, "Coverage@2": 2 / NUM}
    strange = pa.table({"item_ids": [["i3", "i4"], ["i4", "x"]], "target": [["i3"], ["i3"]]})
    with pytest.raises(ValueError, match=r"the catalogue does not have: row 1 lists"):
        evaluated(strange, ["MRR", "Coverage"], 2, options)
    with pytest.raises(ValueError, match="item_ids differ from those of the catalogue"):
        arrow.tally(table, "MRR", 2, item_ids=["i3", "i4"], **options)


def test_own_metrics_and_collections():
    class First(trm.RankingMetric):
        formula = staticmethod(lambda ranking: ranking.hits(1).any(-1).double())

    columns = made()
    collection = RecMetricCollection(["MRR", First()], k=3, prefix="val/")
    found = arrow.merge(arrow.tally(table_of(columns), collection, complete=True), collection)
    assert list(found) == ["val/MRR@3", "val/First"]
    assert found["val/First"] == found.__class__(one_process(columns, ["HR"], 1), "eager")["HR@1"]


@pytest.mark.parametrize("kind", ["text", "categories", "whole numbers", "truth values"])
def test_groups(kind):
    """Tallies of a collection with groups read their names from a column; null is in no group."""
    columns = made()
    names = [None if row % 6 == 0 else ["de", "at", "ch"][row % 3] for row in range(60)]
    if kind in ("whole numbers", "truth values"):
        wide = {"de": 7, "at": 0, "ch": 12} if kind == "whole numbers" else {"de": True, "at": False, "ch": None}
        names = [None if name is None else wide[name] for name in names]
    column = pa.array(names)
    table = table_of(columns).append_column("g", column.dictionary_encode() if kind == "categories" else column)
    known = sorted({str(name).lower() for name in names if name is not None})
    collection, expected = (
        RecMetricCollection(
            [*NAMES, "Coverage"], k=K, accumulators=[trm.ByGroup(*known, column=name)], catalogue=Catalogue(NUM)
        )
        for name in ("g", "groups")
    )
    codes = [-1 if name is None else known.index(str(name).lower()) for name in names]
    lists = torch.nn.functional.pad(padded(columns["item_ids"]), (0, 1), value=-1)
    expected.update(trm.Lists(lists, padded(columns["target"])), groups=torch.tensor(codes))
    parts = [arrow.tally(table[begin:end], collection) for begin, end in pairwise([0, 1, 2, 30, 60])]
    for tallies in (parts[::-1], [arrow.tally(table, collection)]):
        found = arrow.merge(tallies, collection)
        assert list(found) == list(expected.compute())
        assert numbers(found) == near(expected.compute())
    counts = {row.group: row.num_users for row in found.result_rows() if row.metric == "HR" and row.k == 1}
    judged = [bool(relevant) for relevant in columns["target"]]
    assert counts == {None: sum(judged)} | {
        name: sum(one and code == number for one, code in zip(judged, codes, strict=True))
        for number, name in enumerate(known)
    }


def test_groups_that_are_none():
    """A missing column, the name of another group and `groups=` are errors."""
    collection = RecMetricCollection("HR", k=3, accumulators=[trm.ByGroup("b", "c", column="g")])
    table = table_of(made(4))
    with pytest.raises(ValueError, match="data has no column 'g'"):
        arrow.tally(table, collection)
    with pytest.raises(ValueError, match=r"column 'g' holds 'a', which is no group of ByGroup\('b', 'c'"):
        arrow.tally(table.append_column("g", pa.array(["b", "a", None, "c"])), collection)
    with pytest.raises(ValueError, match=r"no option 'groups': collections have accumulators=\[trm.ByGroup"):
        arrow.tally(table, "HR", 3, groups="g")


def test_default_device_does_not_matter():
    table = table_of(made()).append_column("g", pa.array(["a", "b"] * 30))
    collection = RecMetricCollection(NAMES, k=K, accumulators=[trm.ByGroup("a", "b", column="g")])
    expected = arrow.tally(table, collection)
    with torch.device("meta"):
        found = arrow.tally(table, collection)
        merged = arrow.merge(found, collection)
    assert found.equals(expected)
    assert numbers(merged) == near(arrow.merge(expected, collection))


def test_no_rows():
    """A tally of no rows is all zeros and adds nothing; merged alone, it gives nan and a warning."""
    columns = made()
    table = table_of(columns)
    nothing = arrow.tally(table[:0], NAMES, K)
    assert set(nothing["sums"][0].as_py()) == set(nothing["counts"][0].as_py()) == {0}
    assert next(arrow.tally(iter([]), NAMES, K))["sums"][0] == nothing["sums"][0]
    same(arrow.merge([nothing, arrow.tally(table, NAMES, K), nothing], NAMES, K), one_process(columns))
    with pytest.warns(UserWarning, match="no row to average over"):
        found = arrow.merge(nothing, NAMES, K)
    assert found["HR@1"].isnan()


# -------------------------------------------------------------------------------------------------------------- faults

ROWS = pa.table({"item_ids": [[1, 2, 3], [4, 5, 6]], "target": [[1], [6]]})


@pytest.mark.parametrize(
    ("metrics", "options", "message"),
    [
        ("MRR", {}, r"tally 1 is of other metrics or options, .*: 'tally 3\\nMRR@3.*, these are 'tally 3\\nHR@3"),
        ("HR", {"empty_target_action": "neg"}, r"HR@3\S*-neg', these are .*HR@3\S*-skip'"),
        (
            "HR",
            {"duplicates": "first"},
            r"tally 1 was made with columns=lists,target duplicates=first complete=False, tally 0 with .*=error",
        ),
        ("HR", {"weights": "w"}, "tally 1 was made with columns=lists,target,weights"),
    ],
)
def test_tallies_that_do_not_add_up(metrics, options, message):
    first = arrow.tally(ROWS, "HR", 3)
    other = arrow.tally(ROWS.append_column("w", [[1, 2]]), metrics, 3, **options)
    with pytest.raises(ValueError, match=message):
        arrow.merge([first, other], "HR", 3)


def test_what_is_no_tally():
    tally = arrow.tally(ROWS, "HR", 3)
    with pytest.raises(ValueError, match="there is no tally to merge"):
        arrow.merge([], "HR", 3)
    with pytest.raises(ValueError, match="a table of tallies has no column 'sums'"):
        arrow.merge(ROWS, "HR", 3)
    with pytest.raises(TypeError, match="tallies must be a Table of pyarrow"):
        arrow.merge({"sums": []}, "HR", 3)
    former = [text.replace("tally 3", "tally 2") for text in tally["fingerprint"].to_pylist()]
    with pytest.raises(ValueError, match=r"tally 0 is of .* another version: 'tally 2.*, these are 'tally 3"):
        arrow.merge(tally.set_column(2, "fingerprint", pa.array(former)), "HR", 3)
    with pytest.raises(ValueError, match=r"HR has no option 'tie'; did you mean 'ties'"):
        arrow.merge(tally, "HR", 3, tie="realistic")


def bad(column, values, kind=None, **more):
    return pa.table({**dict(zip(ROWS.column_names, ROWS.columns, strict=True)), column: pa.array(values, kind), **more})


BAD = {
    "missing column": (
        ROWS,
        {"lists": "items"},
        ValueError,
        r"data has no column 'items'.* There are item_ids, target",
    ),
    "no lists": (
        ROWS.append_column("n", [[1, 2]]),
        {"lists": "n"},
        TypeError,
        r"column 'n' must hold a list a row, best first, got int64; columns of lists here: 'item_ids', 'target'",
    ),
    "null in a list": (
        bad("item_ids", [[1], [2, None]]),
        {},
        ValueError,
        "column 'item_ids' holds a missing value in the list of row 1: leave it out of the list",
    ),
    "null in a category": (
        bad("item_ids", [["a"], ["a", None]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        {"item_ids": ["a"]},
        ValueError,
        "missing value in the list of row 1",
    ),
    "a category that is null": (
        ROWS.set_column(
            0,
            "item_ids",
            pa.ListArray.from_arrays([0, 1, 2], pa.DictionaryArray.from_arrays([0, 1], pa.array(["a", None]))),
        ),
        {"item_ids": ["a"]},
        ValueError,
        "missing value in the list of row 1",
    ),
    "broken floats": (bad("target", [[1.5], [2.0]]), {}, ValueError, "'target' holds double that are no ids.* 1.5"),
    "nan": (bad("target", [[math.nan], [2.0]]), {}, ValueError, "column 'target' holds double .* value nan"),
    "unsigned": (
        bad("item_ids", [[1], [2**63]], pa.list_(pa.uint64())),
        {},
        ValueError,
        r"column 'item_ids' holds uint64 that are no ids, which are int64 or text",
    ),
    "text": (bad("target", [["a"], ["b"]]), {}, TypeError, r"column 'target' holds text, .*item_ids=, a Vocabulary"),
    "text in numbers": (bad("target", [["a"], ["b"]]), {"item_ids": [1, 2]}, TypeError, "column 'target' holds text"),
    "truth values": (bad("target", [[True], [False]]), {}, TypeError, "'target' must hold ids, .* got bool"),
    "an item twice": (bad("item_ids", [[1, 2], [3, 3]]), {}, ValueError, r"item recommended twice: row 1 is \[3, 3"),
    "gains": (bad("gains", [[1], [1, 2]]), {"gains": "gains"}, ValueError, "row 1 has 1 relevant items and 2 gains"),
    "words as gains": (
        bad("gains", [["a"], ["b"]]),
        {"gains": "gains"},
        TypeError,
        "'gains' must hold numbers, got st",
    ),
    "no weight": (
        bad("w", [1, None]),
        {"weights": "w"},
        ValueError,
        "row 1 has no weight: column 'w' holds one number",
    ),
    "weight": (bad("w", [1, -1]), {"weights": "w"}, ValueError, "row 1 weighs -1"),
    "seen and relevant": (bad("s", [[9], [6]]), {"exclude": "s"}, ValueError, r"also excluded.*row 1"),
    "left short": (bad("s", [[9], [5]]), {"exclude": "s"}, ValueError, "the list of row 1 holds 2 items"),
    "ranks": (bad("r", [1.0, 0.5]), {"ranks": "r"}, ValueError, r"row 1 is \[0.5"),
    "ranks and lists": (ROWS, {"ranks": "target", "exclude": "s"}, ValueError, "exclude= belong to lists, and ranks="),
    "gains alone": (ROWS, {"target": None, "gains": "target"}, ValueError, "target= names their column"),
    "duplicates": (ROWS, {"duplicates": "last"}, ValueError, "duplicates must be one of 'error', 'first'"),
    "a dict": ({"item_ids": np.ones(3)}, {}, TypeError, r"batch_format='pyarrow'"),
    "a path": ("lists.parquet", {}, TypeError, r"pq.ParquetFile\(path, pre_buffer=False\)"),
    "a number": (7, {}, TypeError, "data must be a Table, or an iterator of RecordBatches, of pyarrow, got int"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong(what):
    data, how, error, message = BAD[what]
    with pytest.raises(error, match=message):
        arrow.tally(data, "HR", 3, **how)


def test_rows_are_counted_through():
    """Errors count rows from the first batch on, in whatever order the rows are read."""
    columns = made()
    columns["item_ids"][10] = [*range(NUM)]
    columns["item_ids"][44] = [7, 8, 7]
    with pytest.raises(ValueError, match=r"row 44 is \[7, 8, 7"):
        arrow.tally(table_of(columns), NAMES, K)
    stream = arrow.tally(iter(table_of(columns).to_batches(max_chunksize=8)), NAMES, K)
    with pytest.raises(ValueError, match=r"row 44 is \[7, 8, 7"):
        next(stream)
    with pytest.raises(TypeError, match="data must hand out RecordBatches of pyarrow, got dict"):
        next(arrow.tally(iter([{}]), NAMES, K))


def test_what_cannot_be_added_up():
    """`KeptRows` and metrics of histories are refused."""
    with pytest.raises(ValueError, match=r"a tally holds sums alone, which KeptRows\(\) does not keep"):
        arrow.tally(ROWS, RecMetricCollection("HR", k=3, accumulators=[trm.KeptRows()]))
    catalogue = Catalogue(9)
    with pytest.raises(ValueError, match="reads the users' histories"):
        arrow.tally(ROWS, trm.Seen(3, catalogue=catalogue))


@pytest.mark.parametrize("ties", ["expected", "pessimistic"])
def test_scores_of_lists(ties):
    """Equal scores beside the lists are tied, as where scores are ranked; in rows without scores places count."""
    table = pa.table({"item_ids": [[7, 3, 9], [4, 8]], "target": [[9], [8]], "scores": [[0.5, 0.5, 0.5], [0.9, 0.1]]})
    parts = [arrow.tally(table[at : at + 1], "MRR", k=3, scores="scores", complete=True, ties=ties) for at in (0, 1)]
    found = arrow.merge(parts, "MRR", k=3, ties=ties)
    first = (1 + 1 / 2 + 1 / 3) / 3 if ties == "expected" else 1 / 3
    assert (found["MRR@3"].item(), found.num_tied) == (pytest.approx((first + 1 / 2) / 2), 1)
    table = table.set_column(2, "scores", [[[0.5, 0.5, 0.5], [0.9, 0.1, 0.1]]])
    with pytest.raises(ValueError, match="row 1 has 2 listed items and 3 scores"):
        arrow.tally(table, "MRR", k=3, scores="scores", complete=True)
    whole = table.set_column(2, "scores", [[[5, 5, 5], [9, 1]]])  # whole numbers are scores, too
    assert (
        arrow.merge(arrow.tally(whole, "MRR", k=3, scores="scores", complete=True, ties=ties), "MRR", k=3, ties=ties)[
            "MRR@3"
        ]
        == found["MRR@3"]
    )
    with pytest.raises(ValueError, match="scores= belong to lists, and ranks='target' takes their place"):
        arrow.tally(table, "MRR", k=3, scores="scores", ranks="target")


@pytest.mark.parametrize("type_", [pa.float32(), pa.float16()])
def test_ids_that_floats_round(type_):
    """Floats that skip whole numbers are no ids."""
    np = pytest.importorskip("numpy")
    number = {pa.float32(): 2**24, pa.float16(): 2**11}[type_]
    lists = pa.array([np.array([number], type_.to_pandas_dtype())], pa.list_(type_))
    table = pa.table({"lists": lists, "target": pa.array([[number]])})
    with pytest.raises(ValueError, match="rounds whole numbers from"):
        arrow.tally(table, "HR@1", lists="lists")


def test_tallies_of_other_catalogues_do_not_add_up():
    rows, popularity = pa.table({"item_ids": [[0], [1]]}), torch.tensor([3, 2, 1])
    one, other = (trm.Catalogue(3, popularity=each, num_users=4) for each in (popularity, popularity.flip(0)))
    tallies = [arrow.tally(rows, "Novelty", k=1, target=None, catalogue=each) for each in (one, other)]
    with pytest.raises(ValueError, match="tally 1"):
        arrow.merge(tallies, "Novelty", k=1, catalogue=one)


def test_columns_of_nothing():
    rows = pa.table({"item_ids": [[1], [2]], "target": [1, 1], "group": pa.nulls(2), "none": pa.nulls(2)})
    arrow.tally(rows, trm.RecMetricCollection("HR", k=1, accumulators=[trm.ByGroup("a", column="group")]))
    arrow.tally(rows, "HR", k=1, target="none")
    untyped = pa.table({"item_ids": pa.array([[], None]), "target": [1, 2]})
    found = arrow.merge(arrow.tally(untyped, "HR", k=1, complete=True), "HR", k=1)
    assert (found["HR@1"], found.num_unserved) == (0, 2)
