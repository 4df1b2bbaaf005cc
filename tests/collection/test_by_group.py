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


def make(*accumulators, names=("HR", "MRR"), **options):
    return trm.RecMetricCollection(list(names), k=[1, 3], accumulators=accumulators, **options)


def fed(metrics, size=60, rows=slice(None), **columns):
    """Return a collection after updates with these rows in batches of this size."""
    for part in torch.arange(60)[rows].split(size):
        metrics.update(SCORES[part], TARGET[part], **{name: column[part] for name, column in columns.items()})
    return metrics


def facts(metrics):
    """Return all that `compute` finds for each value of a collection: value, error and counts."""
    metrics.compute()
    return {key: [*map(float, value.last_result[5:])] for key, value in metrics.items()}


@pytest.mark.parametrize("columns", [{}, {"weights": WEIGHTS}], ids=["equal", "weighted"])
@pytest.mark.parametrize("action", ["skip", "neg"])
@pytest.mark.parametrize("size", [60, 7, 1])
def test_a_group_has_value_error_and_counts_of_its_rows_alone(size, action, columns):
    """The groups a and b, and x and y of another column, where -1 is in no group."""
    options = {"empty_target_action": action}
    options["names"] = ["HR", "NDCG", trm.AUROC(weight="relevant", **options)]
    segments = torch.arange(60) % 3 - 1
    expected = facts(fed(make(**options), **columns))
    for name, rows in {"a": CODES == 0, "b": CODES == 1, "x": segments == 0, "y": segments == 1}.items():
        alone = facts(fed(make(**options), rows=rows, **columns))
        expected |= {f"{key}/{name}": value for key, value in alone.items()}
    metrics = make(trm.ByGroup("a", "b"), trm.ByGroup("x", "y", column="segments"), **options)
    fed(metrics, size, groups=CODES, segments=segments, **columns)

    assert facts(metrics) == {key: pytest.approx(value, nan_ok=True) for key, value in expected.items()}


def two_groups():
    """Return a collection of one metric with two groups, and one that counts over all lists, after an update."""
    catalogue = trm.Catalogue(12, popularity=torch.arange(12), num_users=30)
    metrics = make(trm.ByGroup(["cold", "warm"]), names=["HR", "Coverage"], catalogue=catalogue, prefix="val/")
    return fed(metrics, groups=CODES)


def test_a_metric_is_followed_by_its_groups():
    """Counts over all lists have no groups."""
    metrics = two_groups()
    expected = ["HR@1", "HR@1/cold", "HR@1/warm", "Coverage@1", "HR@3", "HR@3/cold", "HR@3/warm", "Coverage@3"]

    assert metrics.groups == ("cold", "warm")
    assert list(metrics.compute()) == [f"val/{key}" for key in expected]
    assert list(metrics(SCORES, TARGET, groups=CODES)) == [f"val/{key}" for key in expected]


def test_the_value_of_a_group_and_its_copies_know_its_metric():
    value = two_groups()["val/HR@3/cold"]

    assert (value.label, value.name, value.k, value.group, value.bounds) == ("HR@3/cold", "HR", 3, "cold", (0.0, 1.0))
    assert deepcopy(value).compute() == pickle.loads(pickle.dumps(value)).compute() == value.compute()


def test_a_value_of_a_collection_with_groups_has_no_update():
    with pytest.raises(ValueError, match="the collection has the groups cold, warm"):
        two_groups()["val/HR@3"].update(SCORES, TARGET)


def test_a_group_without_rows_is_nan():
    """It causes no warning, which would be an error here."""
    metrics = make(trm.ByGroup("a", "b"))
    metrics.update(SCORES, TARGET, groups=torch.zeros(60).long())

    assert metrics.compute()["HR@1/b"].isnan()
    assert metrics["HR@1/b"].num_users == 0


@pytest.mark.parametrize("columns", [{}, {"groups": torch.zeros(0).long()}])
def test_a_batch_without_rows_needs_no_groups(columns):
    metrics = fed(make(trm.ByGroup("a", "b")), groups=CODES)
    before = numbers(metrics.compute())
    metrics.update(SCORES[:0], TARGET[:0], **columns)

    assert numbers(metrics.compute()) == before


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({}, ValueError, r"the collection has the groups a, b: pass the group of each row, update\(..., groups=\)"),
        ({"groups": CODES + 1}, ValueError, r"1?\d of 60 rows with an unknown group: row \d+ has group"),
        ({"groups": torch.full((60,), -2)}, ValueError, "60 of 60 rows with an unknown group: row 0 has group -2 of 2"),
        ({"groups": CODES.float()}, TypeError, "groups must hold int64, int32 or int16, got a torch.float32"),
        ({"groups": CODES[:5]}, ValueError, r"groups must be \[60\], one per row, on cpu, got"),
        ({"groups": CODES, "group": CODES}, TypeError, "update has no argument 'group'; did you mean 'groups'"),
    ],
)
@pytest.mark.parametrize("call", ["update", "forward"])
def test_groups_that_do_not_fit_are_refused_and_change_nothing(call, columns, error, message):
    metrics = make(trm.ByGroup("a", "b"))
    before = snapshot(metrics)

    with pytest.raises(error, match=message):
        getattr(metrics, call)(SCORES, TARGET, **columns)
    assert same(snapshot(metrics), before)


def test_unknown_groups_are_refused_by_compute_if_checks_are_deferred_and_no_group_without_checks():
    unknown = CODES.where(torch.arange(60) > 4, 9)
    unchecked = fed(make(trm.ByGroup("a", "b"), validate_args=False), groups=unknown)
    in_no_group = fed(make(trm.ByGroup("a", "b")), groups=unknown.where(torch.arange(60) > 4, -1))

    assert numbers(unchecked.compute()) == numbers(in_no_group.compute())
    with pytest.raises(ValueError, match="bad input since the last reset: 5 rows with an unknown group"):
        fed(make(trm.ByGroup("a", "b"), validate_args="deferred"), groups=unknown).compute()


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
            lambda: trm.RecMetricCollection("MRR", accumulators=trm.ByGroup("a")),
            TypeError,
            r"must be a list: .*ByGroup",
        ),
        (trm.ByGroup("a").update, TypeError, r"ByGroup\('a'.* has no update of its own: update the collection"),
    ],
)
def test_a_mistake_in_accumulators_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_an_accumulator_of_a_collection_is_refused_by_another():
    accumulator = trm.ByGroup("a", "b")
    make(accumulator)

    with pytest.raises(ValueError, match=r"ByGroup\('a', 'b'.* already belongs to a metric or collection: make one"):
        make(accumulator)


ACCUMULATORS = [
    *(lambda: [trm.ByGroup("a", "b")], lambda: [trm.ByGroup("b", "a")], lambda: [trm.Window(100)]),
    *(lambda: [trm.Window(200)], list, lambda: [trm.KeptRows()], lambda: [trm.KeptRows(), trm.Window(100)]),
]


@pytest.mark.parametrize(("one", "other"), [*itertools.permutations(ACCUMULATORS, 2)])
def test_collections_that_differ_in_an_accumulator_are_not_merged(one, other):
    """Neither states nor `merge_state` take them for one another."""
    metrics, others = make(*one()), make(*other())

    assert metrics.evaluator._state_name != others.evaluator._state_name
    with pytest.raises(ValueError, match="make both the same"):
        metrics.merge_state(others)
