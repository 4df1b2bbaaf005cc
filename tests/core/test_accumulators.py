"""Accumulators: groups of rows beside the totals, and accumulators of one's own."""

import pickle
from copy import deepcopy

import pytest
import torch
from states import same, snapshot
from torchmetrics import MeanMetric
from values import numbers

import torchrecmetrics as trm
from torchrecmetrics.core.rows import Summary

GENERATOR = torch.Generator().manual_seed(0)
SCORES = (5 * torch.rand(60, 12, generator=GENERATOR)).round()  # full of ties
TARGET = torch.rand(60, 12, generator=GENERATOR).argsort(1)[:, :2]
TARGET[::7] = -1
CODES = torch.randint(-1, 2, (60,), generator=GENERATOR)
WEIGHTS = torch.randint(0, 3, (60,), generator=GENERATOR)
CATALOGUE = trm.Catalogue(12, popularity=torch.arange(12), num_users=30)
NAMES = ["HR", "NDCG", trm.AUROC(weight="relevant"), "MRR"]


def make(*accumulators, names=NAMES, **options):
    return trm.RecMetricCollection(names, k=[1, 3], accumulators=accumulators, **options)


def fed(metrics, size=60, **columns):
    """Return a collection after updates with all rows in batches of this size."""
    for rows in torch.arange(60).split(size):
        metrics.update(SCORES[rows], TARGET[rows], **{name: column[rows] for name, column in columns.items()})
    return metrics


def facts(value):
    """Return all that the last `compute` found for a value of a collection."""
    return [float(number) for number in value.last_summary()]


@pytest.mark.parametrize("weights", [{}, {"weights": WEIGHTS}], ids=["equal", "weighted"])
@pytest.mark.parametrize("size", [60, 7, 1])
@pytest.mark.parametrize("action", ["skip", "neg"])
def test_groups_are_their_rows_alone(size, weights, action):
    """A group has value, standard error and counts of its rows alone, for any batches; code -1 is in no group."""
    metrics = fed(
        make(trm.ByGroup("a", "b"), empty_target_action=action, names=["HR", "MRR"]), size, groups=CODES, **weights
    )
    metrics.compute()
    for code, name in enumerate("ab"):
        mine = torch.eq(CODES, code)
        alone = make(names=["HR", "MRR"], empty_target_action=action)
        alone.update(SCORES[mine], TARGET[mine], **{key: column[mine] for key, column in weights.items()})
        alone.compute()
        for key, value in alone.items():
            assert facts(metrics[f"{key}/{name}"]) == pytest.approx(facts(value), nan_ok=True)
    whole = fed(make(names=["HR", "MRR"], empty_target_action=action), **weights)
    whole.compute()
    for key, value in whole.items():
        assert facts(metrics[key]) == pytest.approx(facts(value))


def test_metrics_that_weigh_rows_themselves():
    """Row weights of a metric's own hold within groups, too."""
    metrics = fed(make(trm.ByGroup("a", "b")), 13, groups=CODES, weights=WEIGHTS)
    found = numbers(metrics.compute())
    for code, name in enumerate("ab"):
        mine = torch.eq(CODES, code)
        alone = trm.AUROC(weight="relevant")
        alone.update(SCORES[mine], TARGET[mine], weights=WEIGHTS[mine])
        assert found[f"AUROC-relevant/{name}"] == pytest.approx(alone.compute().item())


def test_keys_and_values():
    """A metric is followed by its groups, whose values know their metric; counts over all lists have no groups."""
    metrics = make(trm.ByGroup(["cold", "warm"]), names=["HR", "Coverage"], catalogue=CATALOGUE, prefix="val/")
    expected = ["HR@1", "HR@1/cold", "HR@1/warm", "Coverage@1", "HR@3", "HR@3/cold", "HR@3/warm", "Coverage@3"]
    assert list(metrics.keys()) == list(fed(metrics, groups=CODES).compute()) == [f"val/{key}" for key in expected]
    value = metrics["val/HR@3/cold"]
    assert (value.label, value.name, value.k, value.group, value.bounds) == ("HR@3/cold", "HR", 3, "cold", (0.0, 1.0))
    assert metrics.groups == ("cold", "warm")
    batch = metrics(SCORES[:5], TARGET[:5], groups=CODES[:5])
    assert list(batch) == [f"val/{key}" for key in expected]
    assert value._forward_cache == batch["val/HR@3/cold"]


def test_groups_of_two_columns():
    """Several `ByGroup` stand beside each other with a column each."""
    other = (torch.arange(60) % 3) - 1
    metrics = make(trm.ByGroup("a", "b"), trm.ByGroup("x", "y", column="segments"))
    found = numbers(fed(metrics, 17, groups=CODES, segments=other).compute())
    for column, names in ((CODES, "ab"), (other, "xy")):
        one = numbers(fed(make(trm.ByGroup(*names)), groups=column).compute())
        assert {key: found[key] for key in one} == pytest.approx(one)


def test_a_group_without_rows():
    """A group without rows is nan, and only metrics without rows at all cause a warning."""
    metrics = make(trm.ByGroup("a", "b"), names=["HR"])
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
        ({}, ValueError, r"the collection has the groups a, b: update\(..., groups=\) says to which each row belongs"),
        ({"groups": CODES + 1}, ValueError, r"1?\d of 60 rows whose group is none of those there are: row \d+ is of"),
        ({"groups": CODES - 1}, ValueError, r"\d+ of 60 rows whose group is none of those there are: row \d+ is of"),
        ({"groups": CODES.float()}, TypeError, "groups must hold int64, int32 or int16, got a torch.float32"),
        ({"groups": CODES[:5]}, ValueError, r"groups must be \[60\], one per row, on cpu, got"),
        ({"groups": CODES.tolist()}, TypeError, "groups must be a tensor, got list: torch.as_tensor"),
        ({"groups": CODES, "group": CODES}, TypeError, "update has no argument 'group'; did you mean 'groups'"),
        ({"groups": CODES, "row_ids": CODES}, TypeError, "ids of rows are read by KeptRows"),
    ],
)
@pytest.mark.parametrize("call", ["update", "forward"])
def test_bad_columns(columns, error, message, call):
    """Columns that do not fit raise an error that names them, and change nothing."""
    metrics = make(trm.ByGroup("a", "b"))
    before = snapshot(metrics)
    with pytest.raises(error, match=message):
        getattr(metrics, call)(SCORES, TARGET, **columns)
    assert same(snapshot(metrics), before)


def test_bad_groups_that_are_found_later():
    """With deferred checks rows of unknown groups raise in `compute`, and are in no mean."""
    metrics = make(trm.ByGroup("a", "b"), names=["HR"], validate_args="deferred")
    metrics.update(SCORES, TARGET, groups=CODES.where(torch.arange(60) > 4, 9))
    with pytest.raises(ValueError, match="bad input since the last reset: 5 rows whose group is none of those there"):
        metrics.compute()
    unchecked = make(trm.ByGroup("a", "b"), names=["HR"], validate_args=False)
    unchecked.update(SCORES, TARGET, groups=CODES.where(torch.arange(60) > 4, 9))
    unchecked.compute()  # a group that is not there is no group


@pytest.mark.parametrize(
    ("make_bad", "error", "message"),
    [
        (lambda: trm.ByGroup(), ValueError, "groups holds no name"),
        (lambda: trm.ByGroup("a", "a"), ValueError, "two groups are called 'a'"),
        (lambda: trm.ByGroup("a/b"), ValueError, "a group is named by a word without '/', got 'a/b'"),
        (lambda: trm.ByGroup(""), ValueError, "a group is named by a word"),
        (lambda: trm.ByGroup(3), (ValueError, TypeError), "3|int"),
        (lambda: make(trm.ByGroup("a.b")), ValueError, "a group is named by a word without '/' or '.', got 'a.b'"),
        (lambda: make(trm.ByGroup("a"), trm.ByGroup("b")), ValueError, r"ByGroup\('a'.* and ByGroup\('b'.* both read"),
        (
            lambda: make(trm.ByGroup("a"), trm.ByGroup("a", column="other")),
            ValueError,
            "'HR@1/a' would be the key of two values",
        ),
        (
            lambda: make(trm.ByGroup("a", column="weights")),
            ValueError,
            "reads weights=, which update has itself: rename",
        ),
        (lambda: make(trm.ByGroup), TypeError, r"accumulators are such as ByGroup\('cold', 'warm'\), got"),
        (lambda: make(MeanMetric()), TypeError, "accumulators are such as .* got MeanMetric"),
        (
            lambda: trm.RecMetricCollection("HR", k=1, accumulators=trm.ByGroup("a")),
            TypeError,
            r"accumulators is a list: accumulators=\[ByGroup\('a'",
        ),
        (
            lambda: trm.RecMetricCollection({"x": trm.HR(1), "x/a": trm.HR(2)}, accumulators=[trm.ByGroup("a")]),
            ValueError,
            "'x/a' would be the key of two values",
        ),
        (
            lambda: trm.ByGroup("a").update(),
            TypeError,
            r"ByGroup\('a'.* has no update of its own: update the collection",
        ),
        (lambda: trm.ByGroup("a").compute(), TypeError, r"ByGroup\('a'.* has no value of its own"),
    ],
)
def test_what_is_refused(make_bad, error, message):
    with pytest.raises(error, match=message):
        make_bad()


def test_an_accumulator_belongs_to_one_collection():
    groups = trm.ByGroup("a", "b")
    metrics = fed(make(groups), groups=CODES)
    with pytest.raises(
        ValueError, match=r"ByGroup\('a', 'b'.* is in a metric or collection already: make one for each"
    ):
        make(groups)
    again = fed(make(groups.empty_copy()), groups=CODES)
    assert numbers(again.compute()) == numbers(metrics.compute())


def test_equal_collections_that_differ_in_an_accumulator():
    """Neither states nor `merge_state` take collections with other accumulators for one another."""
    kinds = [
        (),
        (trm.ByGroup("a", "b"),),
        (trm.ByGroup("b", "a"),),
        (trm.Window(100),),
        (trm.Window(200),),
        (trm.Decay(9),),
        (trm.KeptRows(),),
        (trm.KeptRows(), trm.Decay(9)),
    ]
    made = [make(*kind) for kind in kinds]
    assert len({metrics.evaluator.state_name for metrics in made}) == len(made)
    for one in made:
        for other in made:
            if one is not other:
                with pytest.raises(ValueError, match="make both alike"):
                    one.merge_state(other)


# ------------------------------------------------------------------------------------------------------ one's own


class Highest(trm.Accumulator):
    """The sum of squares of the values, and how many rows have a value of 1, of each metric; reads a column `price`."""

    columns = ("price",)
    num_sums = 1

    @property
    def suffixes(self):
        return ("/squares",)

    def begin(self, layout):
        super().begin(layout)
        self.add_state("squares", torch.zeros(len(layout.keys), dtype=torch.float64), "sum")
        self.add_state("ones", torch.zeros(len(layout.keys), dtype=torch.int64), "sum")

    def batch_totals(self, rows):
        price = rows.columns.get("price", torch.ones(len(rows)))
        return [(rows.values == 1).sum(1)], [(rows.values.square() * price).sum(1)]

    def added(self, rows):
        (ones,), (squares,) = self.batch_totals(rows)
        return {"squares": self.squares + squares, "ones": self.ones + ones}

    def counts(self):
        return [self.ones]

    def sums(self, clocks):
        return [self.squares]

    def results(self, counts, sums):
        parts = zip(self.layout.keys, counts[0].tolist(), sums[0].unbind(), strict=True)
        return {f"{key}/squares": Summary.without_error(value, number) for key, number, value in parts}


PRICES = torch.rand(60, generator=GENERATOR, dtype=torch.float64)


def squares():
    """Return the sums of squares, and numbers of ones, of NDCG@3 by its formula."""
    values = trm.functional.ndcg(trm.Scores(SCORES, TARGET).ranking(), 3).nan_to_num(0)
    return pytest.approx((values.square() * PRICES).sum().item()), int((values == 1).sum())


@pytest.mark.parametrize("size", [60, 11])
def test_an_accumulator_of_ones_own(size):
    """An own accumulator sees all batches with its column; its results stand under its keys."""
    metrics = fed(make(Highest(), trm.ByGroup("a", "b")), size, price=PRICES, groups=CODES)
    assert list(metrics.keys())[4:8] == ["NDCG@1", "NDCG@1/squares", "NDCG@1/a", "NDCG@1/b"]
    found = metrics.compute()["NDCG@3/squares"].item(), metrics["NDCG@3/squares"].num_users
    assert found == squares()
    metrics.reset()
    assert not any(state.any() for state in (metrics.accumulators[0].squares, metrics.accumulators[0].ones))
    assert metrics(SCORES, TARGET, price=PRICES, groups=CODES)["NDCG@3/squares"].item() == squares()[0]


def shared(rank, world_size):
    """Update each process with its own rows, and return all values, while synchronised by hand and after."""
    mine = torch.arange(60) % 3 == rank if rank < world_size - 1 else torch.arange(60) % 3 >= rank
    metrics = make(Highest(), trm.ByGroup("a", "b"), trm.ByGroup("x", column="all"), names=["NDCG"])
    metrics.update(
        SCORES[mine], TARGET[mine], price=PRICES[mine], groups=CODES[mine], all=torch.zeros(int(mine.sum())).long()
    )
    local = snapshot(metrics)
    metrics.evaluator.sync()
    synced = numbers(metrics.compute())
    metrics.evaluator.unsync()
    assert same(snapshot(metrics), local)
    values = numbers(metrics.compute())
    return values, synced, [facts(value) for value in metrics.values()]


@pytest.mark.parametrize("world_size", [2, 3])
def test_processes_add_up(processes, world_size):
    """Groups and own accumulators are summed over the processes, by `compute` and by `sync`."""
    whole = make(Highest(), trm.ByGroup("a", "b"), trm.ByGroup("x", column="all"), names=["NDCG"])
    whole.update(SCORES, TARGET, price=PRICES, groups=CODES, all=torch.zeros(60).long())
    expected = numbers(whole.compute())
    for values, synced, counts in processes.run(shared, world_size):
        assert values == pytest.approx(expected)
        assert synced == values
        assert counts == [pytest.approx(facts(value), nan_ok=True) for value in whole.values()]


def test_a_value_with_groups_is_updated_alone_or_says_why_not():
    collection = trm.RecMetricCollection("HR", k=1, accumulators=[trm.ByGroup("a", "b")])
    with pytest.raises((TypeError, ValueError), match="groups"):
        collection["HR@1"].update(torch.tensor([1]))


def test_keys_of_groups_do_not_replace_others():
    with pytest.raises(ValueError, match="HR@1/cold"):
        trm.RecMetricCollection({"HR@1/cold": trm.MRR(), "HR@1": trm.HR(1)}, accumulators=[trm.ByGroup("cold")])


def test_group_value_alone():
    collection = trm.RecMetricCollection("HR", k=1, accumulators=[trm.ByGroup("a")])
    collection.update(torch.tensor([1]), groups=torch.tensor([0]))
    for copied in (deepcopy, lambda part: pickle.loads(pickle.dumps(part))):
        assert copied(collection["HR@1/a"]).compute() == 1
