"""Groups of rows in collections and evaluations; slices of items."""

import pytest
import torch
from torch import tensor
from values import numbers

import torchrecmetrics as trm
from torchrecmetrics import Groups, Interactions

pandas = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")


def random_data(users=80, items=25):
    """Return training data of users of various activity, test data, and embeddings of users and items."""
    generator = torch.Generator().manual_seed(1)
    activity = torch.rand(users, 1, generator=generator) * 0.5
    train, test = (
        Interactions.from_dense(torch.rand(users, items, generator=generator) < share) for share in (activity, 0.1)
    )
    embeddings = [torch.randn(size, 4, generator=generator) for size in (users, items)]
    return train, test.without(train), *embeddings


TRAIN, TEST, USERS, ITEMS = random_data()


def test_pandas_groups_the_rows_alike():
    groups = trm.group_users(TRAIN, bins=[0, 3, 6, 9])
    options = {"target": TEST, "exclude": TRAIN, "groups": groups, "keep_rows": True, "batch_size": 9}
    result = trm.evaluate("NDCG@5", USERS, ITEMS, **options)
    names = [groups.names[int(groups.codes[user])] for user in result.rows.ids]
    by_group = pandas.Series(result.rows.values["NDCG@5"].numpy()).groupby(names)
    table = result.groups.to_pandas().set_index("group")

    assert dict(table["value"]) == pytest.approx(dict(by_group.mean()), abs=1e-14)
    assert dict(table["num_users"]) == dict(by_group.count())


TRUTH = {"user": ["al", "bo", "eve", "ida"], "item": ["x", "y", "x", "z"]}
LISTS = {"al": ["x", "y"], "bo": ["x", "z"], "eve": ["x", "z"], "ida": ["z", "x"]}


def test_lists_have_groups_by_id():
    groups = Groups.from_column(["se", "de", "se", None], user_ids=["bo", "eve", "al", "kim"])
    result = trm.evaluate_lists("HR@1", LISTS, target=TRUTH, groups=groups)  # bo misses, ida is in no group

    assert numbers(result) == {"HR@1": 3 / 4, "HR@1/de": 1 / 1, "HR@1/se": 1 / 2}


def test_a_group_without_users_is_nan():
    groups = Groups(tensor([0, 0, 2]), ["a", "b", "c"])
    target = Interactions.from_dense(torch.eye(3) > 0)
    result = trm.evaluate("HR@1", torch.eye(3), torch.eye(3), target=target, groups=groups)

    assert (result["HR@1/a"], result["HR@1/c"]) == (1, 1)
    assert result["HR@1/b"].isnan()
    assert result.groups.counts() == {"num_empty": 1}


AB = Groups(tensor([0, 1, 1]), ["a", "b"])
AB_BY_ID = Groups.from_column(["a", "b"], user_ids=["x", "y"])
GROUPED = trm.RecMetricCollection("HR", k=1, accumulators=[trm.ByGroup("a", "b")])


def update_with_groups():
    collection = trm.RecMetricCollection("HR", k=2, accumulators=[trm.ByGroup("a")])
    collection.update(torch.rand(1, 3), tensor([1]), groups=AB)


def hit_rate(groups=None, metrics="HR@1"):
    return trm.evaluate(metrics, USERS, ITEMS, target=TEST, groups=groups)


BAD = [
    (lambda: trm.ByGroup(3), TypeError, r"groups must be several strings, such as \['cold', 'warm'\], got int"),
    (lambda: trm.ByGroup([]), ValueError, "groups needs at least one name"),
    (update_with_groups, TypeError, r"groups=groups.of\(train\)\[user_ids\]"),
    (lambda: Groups(tensor([0, -2]), ["a"]), ValueError, "or -1; user 1 has -2"),
    (lambda: Groups(torch.zeros(2, 2, dtype=torch.int64), ["a"]), ValueError, r"codes must be \[U\]"),
    (lambda: Groups([0, 1], ["a"]), TypeError, "codes must be a tensor"),
    (lambda: Groups(tensor([0]), ["a/b"]), ValueError, "a string without '/'"),
    (lambda: Groups(tensor([0]), ["a"], user_ids=["x", "y"]), ValueError, "user_ids holds 2 ids, but codes has 1"),
    (lambda: Groups.from_column(pandas.DataFrame({"a": ["x"]})), TypeError, r"of a frame, frame\['region'\]"),
    (lambda: Groups.from_column([1.0, 0.25]), TypeError, "user 1 has 0.25: cut numbers into bands"),
    (lambda: trm.group_users(TRAIN, bins=[5, 1]), ValueError, "bins must ascend"),
    (lambda: trm.group_users([1]), TypeError, "grouped by Interactions, got list.*message_passing_interactions"),
    (lambda: trm.slice_targets([1], torch.ones(25)), TypeError, "target must be Interactions, got list"),
    (lambda: trm.slice_targets(TEST, torch.ones(3)), ValueError, r"popularity must be \[25\]"),
    (lambda: trm.slice_targets(TEST, -torch.ones(25)), ValueError, "popularity must be >= 0"),
    (lambda: trm.slice_targets(TEST, torch.zeros(25)), ValueError, "and above 0 for some item"),
    (lambda: trm.slice_targets(TEST, torch.ones(25), [0.8, 0.2]), ValueError, "shares must ascend"),
    (lambda: hit_rate(AB), ValueError, "groups have 3 users, but target has 80"),
    (lambda: hit_rate(AB_BY_ID), ValueError, r"groups has user_ids, target has none: .*with_ids\(user_ids=groups"),
    (lambda: trm.evaluate_lists("HR@1", LISTS, target=TRUTH, groups=AB), ValueError, "groups has none: row 5 could"),
    (lambda: hit_rate(["a"]), TypeError, r"groups must be Groups, got list: trm.group_users"),
    (lambda: hit_rate(metrics=GROUPED), ValueError, "the collection has the groups a, b: pass groups="),
    (lambda: hit_rate(trm.group_users(TRAIN), GROUPED), ValueError, "the collection has the groups a, b, not these"),
    (lambda: hit_rate().groups, ValueError, r"there are no groups: evaluate with groups="),
]


@pytest.mark.parametrize(("wrong", "error", "message"), BAD)
def test_bad_groups_are_refused(wrong, error, message):
    with pytest.raises(error, match=message):
        wrong()


def test_numbers_of_a_column_are_groups_by_user_id():
    """A missing value, that of b, and an unknown user, d, are in none."""
    groups = Groups.from_column(pandas.Series([3.0, None, 1.0]), user_ids=["c", "b", "a"])
    others = Interactions.from_frame({"user": ["a", "b", "c", "d"], "item": ["x"] * 4})

    assert (groups.names, groups.codes.tolist()) == (("1", "3"), [1, -1, 0])
    assert groups.of(others).tolist() == [0, -1, 1, -1]


@pytest.mark.parametrize(
    "column", [pandas.Series(["a", None], dtype="string"), pa.chunked_array([["a", None]]), pa.array(["a", None])]
)
def test_words_of_any_column_are_groups(column):
    assert Groups.from_column(column).sizes == {"a": 1}


@pytest.mark.parametrize(
    ("options", "names", "codes"),
    [({}, ("0", "1-4", "5-19", "20+"), [1, 1, 2, 2, 3, 0]), ({"bins": [5]}, ("5+",), [-1, -1, 0, 0, 0, -1])],
)
def test_users_are_grouped_by_activity_with_their_ids(options, names, codes):
    train = Interactions.from_dense(torch.arange(20) < tensor([[1], [4], [5], [19], [20], [0]]))  # numbers of items
    groups = trm.group_users(train.with_ids(user_ids=list("abcdef")), **options)

    assert (groups.names, groups.codes.tolist(), [*groups.user_ids]) == (names, codes, [*"abcdef"])


def test_codes_are_on_the_cpu_whatever_the_default_device_is():
    with torch.device("meta"):
        of_column, of_users = Groups.from_column(["se", "de", None]), trm.group_users(TRAIN, bins=[0])

    assert of_column.codes.tolist() == [1, 0, -1]
    assert of_users.codes.tolist() == [0] * 80


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([0.5, 0.8], {"head": [1], "mid": [0, 3], "tail": [2, 4]}),
        ([0.2, 0.51, 0.8], {"1": [1], "2": [3], "3": [0], "4": [2, 4]}),
    ],
)
def test_a_slice_has_the_fewest_items_that_hold_its_share(shares, expected):
    popularity = tensor([10, 50, 10, 20, 10])  # in order: 1 (50), 3 (20), 0, 2, 4
    target = Interactions.from_dense(torch.ones(2, 5, dtype=torch.bool))
    slices = trm.slice_targets(target, popularity, shares)

    assert {name: sorted(set(part.items.tolist())) for name, part in slices.items()} == expected
    assert {part.num_items for part in slices.values()} == {5}


def test_slices_end_where_heads_end():
    equal = torch.full((10,), 0.1, dtype=torch.float64)
    target = Interactions.from_dense(torch.ones(1, 10, dtype=torch.bool))

    assert len(trm.slice_targets(target, equal, [0.8])["head"]) == 8
    assert (~trm.Catalogue(10, popularity=equal).tail(0.8)).sum() == 8


FRAME = pandas.DataFrame({"uid": ["bo", "al", "bo", "kim"], "region": ["de", "se", "de", None]})


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda folder: FRAME, {"user": "uid"}),
        (lambda folder: pa.table(FRAME), {"user": "uid"}),
        (lambda folder: FRAME.to_dict("list"), {"user": "uid"}),
        (lambda folder: FRAME.to_csv(folder / "users.csv", index=False) or folder / "users.csv", {"user": "uid"}),
        (lambda folder: trm.Table(FRAME, user="uid"), {}),
        (lambda folder: FRAME.rename(columns={"uid": "user_id"}), {}),
    ],
    ids=["frame", "arrow", "dict", "file", "Table", "found by name"],
)
def test_a_table_has_groups_by_name(make, options, tmp_path):
    groups = Groups.from_frame(make(tmp_path), "region", **options)
    assert (groups.names, groups.codes.tolist(), [*groups.user_ids]) == (("de", "se"), [1, 0, -1], ["al", "bo", "kim"])


def test_a_row_without_a_group_does_not_contradict_another():
    groups = Groups.from_frame(FRAME.assign(region=["de", "se", None, None]), "region", user="uid")
    assert groups.codes.tolist() == [1, 0, -1]


CONTRADICTING = FRAME.assign(region=["de", "se", "se", "no"])


@pytest.mark.parametrize(
    ("frame", "column", "options", "message"),
    [
        (CONTRADICTING, "region", {"user": "uid"}, "user 'bo' in two groups, 'de' in row 0 and 'se': a user has one"),
        (FRAME, "region", {}, r"frame has no column 'user' or 'user_id'.* trm.Table\(frame, user=...\)"),
        (FRAME, "regions", {"user": "uid"}, r"no column 'regions'; did you mean 'region'"),
        (trm.Table(FRAME), "region", {"user": "uid"}, "user='uid' stands beside a Table"),
    ],
)
def test_bad_tables_of_groups_are_refused(frame, column, options, message):
    with pytest.raises(ValueError, match=message):
        Groups.from_frame(frame, column, **options)
