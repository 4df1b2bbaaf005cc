"""Groups of rows in collections, evaluations and over processes; slices of items."""

import pandas
import pyarrow as pa
import pytest
import torch

import torchrecmetrics as trm


@pytest.fixture
def default_device():
    """Make `meta` the default device during a test; its tensors have no values."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@pytest.mark.usefixtures("default_device")
def test_default_device_does_not_matter():
    """Groups of a column and of users have their codes on the CPU, whatever the default device is."""
    assert trm.Groups.from_column(["se", "de", None]).codes.tolist() == [1, 0, -1]
    train = trm.Interactions.from_columns(users=[0, 1, 1, 1], items=[0, 0, 1, 2], num_users=3, num_items=3)
    assert trm.group_users(train, bins=[0, 1, 3]).codes.tolist() == [1, 2, 0]


def values(found):
    return {key: value.item() for key, value in found.items()}


def made(seed=1, users=80, items=25):
    generator = torch.Generator().manual_seed(seed)
    active = torch.rand(users, 1, generator=generator)
    train = trm.Interactions.from_edge_index(
        (torch.rand(users, items, generator=generator) < active * 0.5).nonzero().T, num_users=users, num_items=items
    )
    test = trm.Interactions.from_edge_index(
        (torch.rand(users, items, generator=generator) < 0.1).nonzero().T, num_users=users, num_items=items
    )
    users, items = torch.randn(users, 4, generator=generator), torch.randn(items, 4, generator=generator)
    return train, test.without(train), users, items


# -------------------------------------------------------------------------------------------------------- the numbers


def test_pandas_groups_the_rows_alike():
    train, test, users, items = made()
    groups = trm.group_users(train, bins=[0, 3, 6, 9])
    found = trm.evaluate(
        ["NDCG", "HR"], users, items, target=test, exclude=train, k=5, groups=groups, keep_rows=True, batch_size=9
    )
    of = [groups.names[int(groups.codes[user])] for user in found.rows.ids]
    for label, rows in found.rows.values.items():
        by = pandas.DataFrame({"value": rows.numpy(), "group": of}).groupby("group")["value"]
        table = found.groups.to_pandas().query(f"metric == '{label[:-2]}'").set_index("group")
        assert dict(table["value"]) == pytest.approx(dict(by.mean()), abs=1e-14)
        assert dict(table["num_users"]) == dict(by.count())
        weights = torch.tensor([by.count()[name] for name in groups.names])
        means = torch.stack([found[f"{label}/{name}"] for name in groups.names])
        assert ((weights * means).sum() / weights.sum()).item() == pytest.approx(found[label].item(), abs=1e-15)
    assert found.groups.counts() == {"num_empty": 0}


def sharded(rank, world_size):
    train, test, users, items = made()
    groups = trm.group_users(train, bins=[0, 3, 6, 9])
    found = trm.evaluate("NDCG", users, items, target=test, exclude=train, k=5, groups=groups, shard="users")
    return values(found)


def test_evaluate_shares_users(processes):
    ((alone,),) = [processes.run(sharded, 1)]
    for found in processes.run(sharded, 2):
        assert found == pytest.approx(alone, abs=1e-14)


def test_lists_have_groups_by_id():
    """Lists and groups are matched by user id; a user whom the groups do not know is in no group."""
    truth = {"user": ["al", "bo", "eve", "ida"], "item": ["x", "y", "x", "z"]}
    lists = {"al": ["x", "y"], "bo": ["x", "z"], "eve": ["x", "z"], "ida": ["z", "x"]}
    groups = trm.Groups.from_column(["se", "de", "se", None], user_ids=["bo", "eve", "al", "kim"])
    found = trm.evaluate_lists("HR", lists, target=truth, k=1, groups=groups)
    assert values(found) == {"HR@1": 0.75, "HR@1/de": 1.0, "HR@1/se": 0.5}
    with pytest.raises(ValueError, match="target have user_ids, groups none: row 5 could mean two users"):
        trm.evaluate_lists("HR", lists, target=truth, k=1, groups=trm.Groups(torch.zeros(4, dtype=torch.int64), ["a"]))


def test_a_group_without_users_is_nan():
    groups = trm.Groups(torch.tensor([0, 0, 2]), ["a", "b", "c"])
    test = trm.Interactions.from_columns(users=[0, 1, 2], items=[0, 1, 2], num_items=3)
    found = trm.evaluate("HR@1", torch.eye(3), torch.eye(3), target=test, groups=groups)
    assert found["HR@1/a"] == found["HR@1/c"] == 1
    assert found["HR@1/b"].isnan()
    assert found.groups.counts() == {"num_empty": 1}


# ------------------------------------------------------------------------------------------------- items of collections


# ---------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda: trm.ByGroup(3), TypeError, r"names of groups are words, such as \['cold', 'warm'\], got int"),
        (lambda: trm.ByGroup([]), ValueError, "groups holds no name"),
        (
            lambda: trm.Groups(torch.tensor([0, 1]), ["a"]),
            ValueError,
            "codes must be 0 to 0, one for each name, or -1; user 1",
        ),
        (lambda: trm.Groups(torch.zeros(2, 2, dtype=torch.int64), ["a"]), ValueError, r"codes must be \[U\]"),
        (lambda: trm.Groups([0, 1], ["a"]), TypeError, "codes must be a tensor"),
        (lambda: trm.Groups(torch.tensor([0]), ["a/b"]), ValueError, "a word without '/'"),
        (
            lambda: trm.Groups(torch.tensor([0]), ["a"], user_ids=["x", "y"]),
            ValueError,
            "user_ids holds 2 ids, codes 1",
        ),
        (lambda: trm.Groups.from_column("north"), TypeError, "a column holds one value a user, got str"),
        (lambda: trm.Groups.from_column(pandas.DataFrame({"a": ["x"]})), TypeError, r"of a frame, frame\['region'\]"),
        (lambda: trm.Groups.from_column(torch.zeros(2, 2)), TypeError, "a column holds one value a user"),
        (lambda: trm.Groups.from_column([1.0, 0.25]), TypeError, "user 1 has 0.25: cut numbers into bands"),
        (
            lambda: trm.ByGroup(trm.Groups(torch.tensor([0]), ["a"])),
            TypeError,
            "such as groups.names, got Groups",
        ),
        (
            lambda: trm.RecMetricCollection("HR", k=2, accumulators=[trm.ByGroup("a")]).update(
                torch.rand(1, 3), torch.tensor([1]), groups=trm.Groups(torch.tensor([0]), ["a"])
            ),
            TypeError,
            r"groups=groups.of\(train\)\[user_ids\]",
        ),
        (lambda: trm.group_users(made()[0], bins=[5, 1]), ValueError, "bins must ascend"),
        (lambda: trm.group_users(made()[0], bins=[]), ValueError, "bins must ascend"),
        (
            lambda: trm.group_users([1]),
            TypeError,
            "users are grouped by Interactions, got list.*message_passing_interactions",
        ),
        (lambda: trm.slice_targets(made()[1], torch.ones(3)), ValueError, r"popularity must be \[25\]"),
        (lambda: trm.slice_targets(made()[1], -torch.ones(25)), ValueError, "popularity must be >= 0"),
        (lambda: trm.slice_targets(made()[1], torch.ones(25), [0.8, 0.2]), ValueError, "shares must ascend"),
        (lambda: trm.slice_targets(made()[1], torch.ones(25), [1.0]), ValueError, "shares must ascend"),
    ],
)
def test_bad_groups(wrong, error, message):
    with pytest.raises(error, match=message):
        wrong()


def test_evaluate_asks_for_groups_that_fit():
    train, test, users, items = made()
    with pytest.raises(ValueError, match="groups have 3 users, target has 80"):
        trm.evaluate("HR@1", users, items, target=test, groups=trm.Groups(torch.tensor([0, 1, 1]), ["a", "b"]))
    with pytest.raises(TypeError, match=r"groups must be Groups, got list: trm.group_users"):
        trm.evaluate("HR@1", users, items, target=test, groups=["a"])
    with pytest.raises(ValueError, match=r"the collection has the groups a, b: groups= says"):
        trm.evaluate(
            trm.RecMetricCollection("HR", k=1, accumulators=[trm.ByGroup("a", "b")]), users, items, target=test
        )
    with pytest.raises(ValueError, match=r"the collection has the groups a, b, not these"):
        trm.evaluate(
            trm.RecMetricCollection("HR", k=1, accumulators=[trm.ByGroup("a", "b")]),
            users,
            items,
            target=test,
            groups=trm.group_users(train),
        )
    with pytest.raises(ValueError, match=r"there are no groups: evaluate with groups="):
        trm.evaluate("HR@1", users, items, target=test).groups  # noqa: B018


# ----------------------------------------------------------------------------------------------------- users and items


def test_groups_of_a_column():
    """A column of whole numbers gives groups by user id; a missing value and an unknown user are in no group."""
    groups = trm.Groups.from_column(pandas.Series([3.0, None, 1.0]), user_ids=["c", "b", "a"])
    assert (groups.names, groups.codes.tolist()) == (("1", "3"), [1, -1, 0])
    frame = {"user": ["a", "b", "c", "d"], "item": ["x"] * 4}
    assert groups.of(trm.Interactions.from_frame(frame)).tolist() == [0, -1, 1, -1]


def test_users_by_activity():
    train = trm.Interactions.from_columns(
        users=[0] * 1 + [1] * 4 + [2] * 5 + [3] * 19 + [4] * 20,
        items=[*range(1), *range(4), *range(5), *range(19), *range(20)],
        num_users=6,
        num_items=20,
    )
    groups = trm.group_users(train)
    assert groups.names == ("0", "1-4", "5-19", "20+")
    assert groups.codes.tolist() == [1, 1, 2, 2, 3, 0]
    assert trm.group_users(train, bins=[5]).codes.tolist() == [-1, -1, 0, 0, 0, -1]
    assert repr(trm.group_users(train, bins=[5, 20])) == "Groups(5-19: 2, 20+: 1, 3 in none)"
    assert trm.group_users(train.with_ids(user_ids=list("abcdef"))).user_ids is not None


def test_slices_by_popularity():
    """A slice has the fewest items that hold its share, ties by lower id, and the slices together have all items."""
    popularity = torch.tensor([10, 50, 10, 20, 10])  # in order: 1 (50), 3 (20), 0, 2, 4
    target = trm.Interactions.from_dense(torch.ones(2, 5, dtype=torch.bool))
    items = lambda part: sorted(set(part.items.tolist()))  # noqa: E731
    slices = trm.slice_targets(target, popularity, shares=[0.5, 0.8])
    assert {name: items(part) for name, part in slices.items()} == {"head": [1], "mid": [0, 3], "tail": [2, 4]}
    slices = trm.slice_targets(target, popularity, shares=[0.2, 0.51, 0.8])
    assert {name: items(part) for name, part in slices.items()} == {"1": [1], "2": [3], "3": [0], "4": [2, 4]}
    assert [part.num_items for part in slices.values()] == [5] * 4


def test_sizes_of_groups():
    """A group without users has the size 0."""
    assert trm.Groups(torch.tensor([0, -1]), ["a", "b"]).sizes == {"a": 1, "b": 0}


def test_groups_of_columns_with_missing_values():
    pandas = pytest.importorskip("pandas")
    for column in (pandas.Series(["a", None], dtype="string"), pa.chunked_array([["a", None]]), pa.array(["a", None])):
        assert trm.Groups.from_column(column).sizes == {"a": 1}


def test_slices_end_where_heads_end():
    popularity = torch.full((10,), 0.1, dtype=torch.float64)
    target = trm.Interactions.from_columns(users=[0] * 10, items=list(range(10)), num_items=10)
    head = ~trm.Catalogue(10, popularity=popularity).tail(0.8)
    assert len(trm.slice_targets(target, popularity, [0.8])["head"]) == int(head.sum()) == 8
