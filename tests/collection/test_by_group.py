"""Groups of rows beside the totals, and how accumulators belong to collections."""

import itertools
import pickle
from copy import deepcopy
from functools import partial

import pytest
import torch
from states import same, snapshot
from values import numbers

import torchrecmetrics as trm

GENERATOR = torch.Generator().manual_seed(0)
SCORES = (5 * torch.rand(60, 12, generator=GENERATOR)).round()  # full of ties
TARGET = torch.rand(60, 12, generator=GENERATOR).argsort(1)[:, :2]
TARGET[::7] = -1
CODES = torch.randint(-1, 2, (60,), generator=GENERATOR)
WEIGHTS = torch.randint(0, 3, (60,), generator=GENERATOR)
CATALOGUE = trm.Catalogue(12, popularity=torch.arange(12), num_users=30)


def make(*accumulators, names=("HR", "MRR"), **options):
    return trm.RecMetricCollection(list(names), k=[1, 3], accumulators=accumulators, **options)


def fed(metrics, size=60, rows=slice(None), **columns):
    """Return a collection after updates with these rows in batches of this size."""
    for part in torch.arange(60)[rows].split(size):
        metrics.update(SCORES[part], TARGET[part], **{name: column[part] for name, column in columns.items()})
    return metrics


def facts(metrics):
    """Return all that `compute` finds for each value of a collection."""
    metrics.compute()
    return {key: [*map(float, value.last_result[5:])] for key, value in metrics.items()}


@pytest.mark.parametrize("columns", [{}, {"weights": WEIGHTS}], ids=["equal", "weighted"])
@pytest.mark.parametrize("action", ["skip", "neg"])
def test_groups_are_their_rows_alone(columns, action):
    """A group has value, error and counts of its rows alone, for any batches, metrics and groups of other columns."""
    names = ["HR", "NDCG", trm.AUROC(weight="relevant", empty_target_action=action)]
    segments = torch.arange(60) % 3 - 1  # -1 is in no group
    wanted = facts(fed(make(names=names, empty_target_action=action), **columns))
    for codes, group_names in ((CODES, "ab"), (segments, "xy")):
        for code, name in enumerate(group_names):
            alone = fed(make(names=names, empty_target_action=action), rows=codes == code, **columns)
            wanted |= {f"{key}/{name}": value for key, value in facts(alone).items()}
    wanted = {key: pytest.approx(value, nan_ok=True) for key, value in wanted.items()}
    for size in (60, 7, 1):
        both = trm.ByGroup("a", "b"), trm.ByGroup("x", "y", column="segments")
        metrics = make(*both, names=names, empty_target_action=action)
        assert facts(fed(metrics, size, groups=CODES, segments=segments, **columns)) == wanted


def two_groups():
    """Return a collection of one metric with two groups, and one that counts over all lists, after an update."""
    metrics = make(trm.ByGroup(["cold", "warm"]), names=["HR", "Coverage"], catalogue=CATALOGUE, prefix="val/")
    return fed(metrics, groups=CODES)


def test_a_metric_is_followed_by_its_groups():
    """Counts over all lists have no groups."""
    metrics = two_groups()
    expected = ["HR@1", "HR@1/cold", "HR@1/warm", "Coverage@1", "HR@3", "HR@3/cold", "HR@3/warm", "Coverage@3"]

    assert metrics.groups == ("cold", "warm")
    assert list(metrics.keys()) == list(metrics.compute()) == [f"val/{key}" for key in expected]
    assert list(metrics(SCORES, TARGET, groups=CODES)) == [f"val/{key}" for key in expected]


def test_the_value_of_a_group_knows_its_metric():
    metrics = two_groups()
    value = metrics["val/HR@3/cold"]

    assert (value.label, value.name, value.k, value.group, value.bounds) == ("HR@3/cold", "HR", 3, "cold", (0.0, 1.0))
    for copied in (deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert copied.compute() == value.compute()


def test_a_value_of_a_collection_with_groups_has_no_update():
    with pytest.raises(ValueError, match="the collection has the groups cold, warm"):
        two_groups()["val/HR@3"].update(SCORES, TARGET)


def test_a_group_without_rows():
    """A group without rows is nan, and only metrics without rows at all cause a warning."""
    metrics = make(trm.ByGroup("a", "b"))
    metrics.update(SCORES, TARGET, groups=torch.zeros(60).long())
    found = metrics.compute()
    assert found["HR@1/b"].isnan()
    assert metrics["HR@1/b"].num_users == 0
    metrics.update(SCORES[:0], TARGET[:0], groups=torch.zeros(0).long())
    metrics.update(SCORES[:0], TARGET[:0])
    assert metrics["HR@1/a"].compute() == found["HR@1/a"]


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({}, ValueError, r"the collection has the groups a, b: pass the group of each row, update\(..., groups=\)"),
        ({"groups": CODES + 1}, ValueError, r"1?\d of 60 rows with an unknown group: row \d+ has group"),
        ({"groups": CODES.float()}, TypeError, "groups must hold int64, int32 or int16, got a torch.float32"),
        ({"groups": CODES[:5]}, ValueError, r"groups must be \[60\], one per row, on cpu, got"),
        ({"groups": CODES, "group": CODES}, TypeError, "update has no argument 'group'; did you mean 'groups'"),
    ],
)
def test_bad_columns(columns, error, message):
    """Columns that do not fit raise an error that names them, and change nothing."""
    metrics = make(trm.ByGroup("a", "b"))
    before = snapshot(metrics)
    for call in (metrics.update, metrics):
        with pytest.raises(error, match=message):
            call(SCORES, TARGET, **columns)
        assert same(snapshot(metrics), before)


def test_bad_groups_that_are_found_later():
    """With deferred checks rows of unknown groups raise in `compute`; unchecked, they are in no group."""
    deferred, unchecked = (make(trm.ByGroup("a", "b"), validate_args=checks) for checks in ("deferred", False))
    in_no_group = fed(make(trm.ByGroup("a", "b")), groups=CODES.where(torch.arange(60) > 4, -1))
    for metrics in (deferred, unchecked):
        fed(metrics, groups=CODES.where(torch.arange(60) > 4, 9))
    with pytest.raises(ValueError, match="bad input since the last reset: 5 rows with an unknown group"):
        deferred.compute()
    assert numbers(unchecked.compute()) == numbers(in_no_group.compute())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (trm.ByGroup, ValueError, "groups needs at least one name"),
        (partial(trm.ByGroup, "a", "a"), ValueError, "two groups have the name 'a'"),
        (partial(trm.ByGroup, "a/b"), ValueError, "the name of a group must be a string without '/', got 'a/b'"),
        (partial(trm.ByGroup, 3), TypeError, "names of groups must be several strings, .* got int"),
        (partial(make, trm.ByGroup("a.b")), ValueError, "a group must be a string without '/' or '.', got 'a.b'"),
        (partial(make, trm.ByGroup("a"), trm.ByGroup("b")), ValueError, r"ByGroup\('a'.* and ByGroup\('b'.* both read"),
        (partial(make, trm.ByGroup("a"), trm.ByGroup("a", column="other")), ValueError, "'HR@1/a' would be the key of"),
        (partial(make, trm.ByGroup("a", column="weights")), ValueError, "reads weights=, which is an argument of"),
        (partial(make, trm.ByGroup), TypeError, r"must hold objects such as ByGroup\('cold', 'warm'\), got"),
        (
            lambda: trm.RecMetricCollection("HR", k=1, accumulators=trm.ByGroup("a")),
            TypeError,
            r"accumulators must be a list: accumulators=\[ByGroup\('a'",
        ),
        (trm.ByGroup("a").update, TypeError, r"ByGroup\('a'.* has no update of its own: update the collection"),
    ],
)
def test_mistakes(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_an_accumulator_belongs_to_one_collection():
    accumulator = trm.ByGroup("a", "b")
    metrics = fed(make(accumulator), groups=CODES)
    with pytest.raises(ValueError, match=r"ByGroup\('a', 'b'.* already belongs to a metric or collection: make one"):
        make(accumulator)
    again = fed(make(accumulator.empty_copy()), groups=CODES)
    assert numbers(again.compute()) == numbers(metrics.compute())


def test_equal_collections_that_differ_in_an_accumulator():
    """Neither states nor `merge_state` take collections with other accumulators for one another."""
    kinds = [[trm.ByGroup("a", "b")], [trm.ByGroup("b", "a")], [trm.Window(100)], [trm.Window(200)]]
    kinds += [[], [trm.KeptRows()], [trm.KeptRows(), trm.Window(100)]]
    collections = [make(*accumulators) for accumulators in kinds]
    assert len({metrics.evaluator._state_name for metrics in collections}) == len(collections)
    for one, other in itertools.permutations(collections, 2):
        with pytest.raises(ValueError, match="make both the same"):
            one.merge_state(other)
