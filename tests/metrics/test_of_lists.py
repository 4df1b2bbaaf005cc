"""Metrics beyond accuracy: worked out by hand, against plain Python, in edge cases, and their properties."""

import math
import re
from dataclasses import replace
from functools import partial

import hypothesis.strategies as st
import pytest
import reference_beyond as reference
import torch
from hypothesis import example, given, settings
from sizes import examples
from torch import nan, tensor

import torchrecmetrics as trm
from torchrecmetrics.core.ranking import ListedItems
from torchrecmetrics.metrics import item_counts, item_groups, of_lists
from torchrecmetrics.metrics import list_formulas as functional

NAMES = sorted(name for module in (of_lists, item_counts, item_groups) for name in module.__all__)
ALL = [getattr(trm, name) for name in NAMES]


def padded(lists):
    width = max(1, *map(len, lists))
    return tensor([[*items, *[-1] * (width - len(items))] for items in lists])


def ranking(lists, history=None, relevant=None, device="cpu"):
    """Return a complete ranking of given lists, with a history."""
    target = None if relevant is None else padded(relevant).to(device)
    made = trm.Lists(padded(lists).to(device), target, complete=True, duplicates="first").ranking()
    return made if history is None else with_history(made, padded(history).to(device))


def with_history(made, history):
    return replace(made, lists=made.lists._replace(history=history))


def value(metric, *args, **kwargs):
    metric.update(*args, **kwargs)
    return metric.compute().item()


def near(values):
    return pytest.approx(values, rel=1e-12, abs=1e-12, nan_ok=True)


# Three users; six items, of which 0 is popular and 5 was never seen; two genres and vectors. The third list is short.
LISTS = [[0, 1, 2], [0, 3, 5], [4]]
HISTORY = [[1, 2], [0, 0, 0], [3, 0]]
LOG = {place: 1 / math.log2(1 + place) for place in (1, 2, 3)}
CATALOGUE = trm.Catalogue(
    6,
    popularity=tensor([8, 4, 2, 2, 1, 0]),
    num_users=8,
    categories=tensor([0, 0, 1, 1, 1, 0]),
    embeddings=tensor([[1.0, 0], [2, 0], [0, 3], [-1, 0], [1, 1], [0, 0]]),
)


def test_by_hand(device):
    """Metrics have the values worked out by hand, as means over the rows that have one, or over all lists.

    Seven items are in 2, 1, 1, 1, 1, 1 and 0 lists, at ranks whose discounts add up to 2, 0.63, 0.5, 0.63, 1, 0.5 and
    0.
    """
    exposure = LOG[3] * (-4 - 2) + LOG[2] * (0 + 2) + 1 * 4 + 2 * 6
    expected = {
        "Novelty@3": ((0 + 1 + 2) / 3 + (0 + 2 + 3) / 3 + 3) / 3,
        "IntraListDiversity@3": (1 - 1 / 3 + 1 - 1 / 3) / 2,  # one pair of three has one genre
        "PopularityLift@3": ((14 / 3) / 3 + (10 / 3) / 8 + 1 / 5) / 3 - 1,
        "Coverage@3": 6 / 7,
        "Gini@3": (1 * (-4 - 2 + 0 + 2 + 4) + 2 * 6) / (7 * 7),
        "Entropy@3": -(2 / 7 * math.log2(2 / 7) + 5 / 7 * math.log2(1 / 7)),
        "Personalization@3": 1 - 1 / (3 + 1 + 1),  # lists 1 and 2 share an item; pairs could share 3, 1 and 1
        "ExposureGini@3": exposure / (7 * (2 * LOG[3] + 2 * LOG[2] + 1 + 2)),
    }
    popularity, genres = tensor([8, 4, 2, 2, 1, 0, 0]), tensor([0, 0, 1, 1, 1, 0, 2])
    catalogue = trm.Catalogue(7, popularity=popularity, num_users=8, categories=genres)
    metrics = trm.RecMetricCollection([label[:-2] for label in expected], k=3, catalogue=catalogue).to(device)
    metrics.update(ranking(LISTS, HISTORY, device=device))
    assert metrics.result().floats() == near(expected)
    assert [metrics[label].num_users for label in expected] == [3, 2, *[3] * 6]


@pytest.mark.parametrize(("k", "expected"), [(2, [0, 0, nan]), (3, [1 / 3, 1 / 3, nan]), (9, [2 / 5, 2 / 4, nan])])
def test_repeats(k, expected):
    """Repeats counts entries whose item occurs earlier in the list, at the ranks of the given list without padding."""
    given = tensor([[1, 2, 1, 1, 5], [1, -1, 2, 1, 1], [-1, -1, -1, -1, -1]])
    lists = trm.Lists(given, duplicates="first", complete=True).ranking()

    assert functional.repeats(lists, k).tolist() == near(expected)
    assert functional.repeats(lists.within(2), k).tolist() == near(expected)  # a ranking cut short keeps its entries


def test_lists_that_may_not_repeat_an_item_have_no_repeats():
    lists = trm.Lists(tensor([[0, 1, 2], [3, -1, -1], [-1, -1, -1]]), exclude=tensor([[0], [3], [1]])).ranking()

    assert functional.repeats(lists, [1, 3]).tolist() == [near([0, 0, nan])] * 2


@st.composite
def worlds(draw):
    """A random catalogue as plain lists, and lists of some users with histories and relevant items."""
    size = draw(st.integers(1, 9))
    counts = draw(st.lists(st.integers(0, 4), min_size=size, max_size=size))
    some = st.lists(st.integers(0, size - 1), max_size=size, unique=True)
    users = draw(st.integers(1, 5))
    shares = draw(st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=size, max_size=size))
    vectors = st.lists(st.integers(-2, 2), min_size=2, max_size=2)
    return {
        "popularity": counts,
        "num_users": max(counts) + draw(st.integers(0, 2)),
        "codes": draw(st.lists(st.sampled_from([0, 1, 2, 50]), min_size=size, max_size=size)),
        "shares": [[x / sum(row) if sum(row) else float(not c) for c, x in enumerate(row)] for row in shares],
        "vectors": draw(st.lists(vectors, min_size=size, max_size=size)),
        "lists": draw(st.lists(some, min_size=users, max_size=users)),
        "relevant": draw(st.lists(some, min_size=users, max_size=users)),
        "history": [[*draw(some), -1, -7, *draw(some)] for _ in range(users)],  # with padding and repeats
    }


EDGES = {  # lists and histories that are empty, of one item, and of items without users
    "popularity": [8, 4, 2, 2, 1, 0, 0],
    "num_users": 8,
    "codes": [0, 0, 1, 1, 1, 0, 2],
    "shares": [[1.0, 0, 0], [0.5, 0.5, 0], [0, 0, 1], [0.25, 0.5, 0.25], [1, 0, 0], [0, 1, 0], [0, 1, 0]],
    "vectors": [[1, 0], [2, 0], [0, 3], [-1, 0], [1, 1], [0, 0], [0, 0]],
    "lists": [[], [2], [5], [0, 2, 4], [5, 6, 0], [0, 1, 2, 3, 4, 5, 6]],
    "relevant": [[1], [], [5], [4], [6, 5], [6, 2]],
    "history": [[1], [], [5, 6], [-1, 4, 4, 0, 3], [3, 0, 3, -7, 4], [-1, -1]],
}
ONE_ITEM = {"codes": [50], "shares": [[1.0]], "vectors": [[0, 1]], "lists": [[0]], "relevant": [[0]], "history": [[]]}


def catalogue_of(world, categories="codes", embeddings=False):
    return trm.Catalogue(
        len(world["popularity"]),
        popularity=tensor(world["popularity"]),
        num_users=world["num_users"],
        categories=tensor(world[categories], dtype=None if categories == "codes" else torch.float64),
        embeddings=tensor(world["vectors"], dtype=torch.float64) if embeddings else None,
    )


def row_metrics(world):
    """Yield each metric, its catalogue and options, and the reference's value of list, history and relevant items."""
    popularity, users = world["popularity"], world["num_users"]
    one_hot, shares, units = reference.one_hot(world["codes"]), world["shares"], reference.unit(world["vectors"])
    codes, mixed = catalogue_of(world), catalogue_of(world, "shares")
    both = catalogue_of(world, "shares", embeddings=True)

    def of_list(function, *given, **options):
        return lambda items, history, relevant, k: function(items, k, *given, **options)

    def of_history(function, *given, **options):
        return lambda items, history, relevant, k: function(items, k, *given, history, **options)

    def serendipity(items, history, relevant, k):
        return reference.serendipity(items, k, popularity, relevant)

    yield trm.AveragePopularity, codes, {}, of_list(reference.average_popularity, popularity)
    for options in ({}, {"normalize": True}):
        yield trm.Novelty, codes, options, of_list(reference.novelty, popularity, users, **options)
    for options in ({}, {"head": 0.5}):
        yield trm.TailShare, codes, options, of_list(reference.tail_share, popularity, **options)
    yield trm.PopularityLift, codes, {}, of_history(reference.popularity_lift, popularity)
    diversity = partial(of_list, reference.intra_list_diversity)
    yield trm.IntraListDiversity, codes, {}, diversity(one_hot)
    yield trm.IntraListDiversity, mixed, {}, diversity(shares)
    yield trm.IntraListDiversity, both, {"of": "categories"}, diversity(shares)
    yield trm.IntraListDiversity, both, {"of": "embeddings"}, diversity(units)
    yield trm.CategoryShare, codes, {}, of_list(reference.category_share, one_hot)
    yield trm.CategoryShare, mixed, {}, of_list(reference.category_share, shares)
    for options in ({}, {"divergence": "js"}):
        yield trm.Calibration, codes, options, of_history(reference.calibration, one_hot, **options)
        yield trm.Calibration, mixed, options, of_history(reference.calibration, shares, **options)
    yield trm.Serendipity, codes, {}, serendipity
    yield trm.Seen, None, {}, of_history(reference.seen)
    yield trm.Repeats, None, {}, of_list(reference.repeats)
    yield trm.Missing, None, {}, of_list(reference.missing)


@settings(max_examples=examples(40), deadline=None)
@given(worlds())
@example(EDGES)
@example({"popularity": [1], "num_users": 1, **ONE_ITEM})
@example({"popularity": [0], "num_users": 0, **ONE_ITEM})
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_rows_are_the_reference(world):
    """Each row's value equals the reference, for several cut-offs at once and one; a metric is the mean of those."""
    k = (1, 2, 3, 12)
    histories = [[item for item in items if item >= 0] for items in world["history"]]
    rows = list(zip(world["lists"], histories, world["relevant"], strict=True))
    for cls, catalogue, options, expected in row_metrics(world):
        lists = ranking(world["lists"], world["history"], world["relevant"])
        metric = cls(3, catalogue=catalogue, **options)
        found = metric.formula(lists, k, **metric.description.arguments)
        assert found.dtype == torch.float64
        for one, values in zip(k, found.tolist(), strict=True):
            wanted = [expected(*row, one) for row in rows]
            assert values == pytest.approx(wanted, abs=1e-12, nan_ok=True), (metric, one)
        assert metric.formula(lists, 3, **metric.description.arguments).tolist() == near(found[2].tolist())
        low, high = cls.bounds or (-1, math.inf)
        assert ((found >= low) & (found <= high) | found.isnan()).all(), metric
        defined = [value for value in (expected(*row, 3) for row in rows) if not math.isnan(value)]
        assert value(metric, lists) == near(reference.mean(defined)), metric
        assert metric.num_users == len(defined), metric


OVER_LISTS = {
    trm.Coverage: reference.coverage,
    trm.Gini: lambda lists, k, size: reference.gini(reference.counts(lists, k, size)),
    trm.Entropy: reference.entropy,
    trm.Personalization: lambda lists, k, size: reference.personalization(lists, k),
    trm.ExposureGini: lambda lists, k, size: reference.gini(reference.exposure(lists, k, size)),
}


@settings(max_examples=examples(30), deadline=None)
@given(worlds(), st.integers(1, 12))
def test_all_lists_are_the_reference(world, k):
    """Metrics over all lists equal the reference, whatever the order and batches of the lists."""
    lists, size = world["lists"], len(world["popularity"])
    catalogue = catalogue_of(world)
    metrics = trm.RecMetricCollection({cls.__name__: cls(k, catalogue=catalogue) for cls in OVER_LISTS})
    for some in (lists[1:], lists[:1]):
        if some:
            metrics.update(ranking(some))
    expected = {cls.__name__: plain(lists, k, size) for cls, plain in OVER_LISTS.items()}
    assert metrics.result().floats() == pytest.approx(expected, abs=1e-12, nan_ok=True)


ELSEWHERE = {
    trm.Invalid: "inputs/test_codes.py",
    trm.StatisticalParity: "metrics/test_item_groups.py",
    trm.EqualOpportunity: "metrics/test_item_groups.py",
}
"""Metrics that are compared with plain Python in another file."""


def test_every_metric_has_a_reference():
    compared = {cls for cls, *_ in row_metrics(EDGES)} | {*OVER_LISTS} | {*ELSEWHERE}
    missing = [cls.__name__ for cls in ALL if cls not in compared]
    assert not missing, f"write {missing} in tests/helpers/reference_beyond.py; add to row_metrics or OVER_LISTS"


def test_histories_without_columns_are_empty():
    lists = with_history(ranking([[0, 2, 4]]), torch.zeros(1, 0, dtype=torch.int64))

    assert functional.seen(lists, 3) == 0
    assert functional.popularity_lift(lists, 3, catalogue=CATALOGUE).isnan()
    assert functional.calibration(lists, 3, catalogue=CATALOGUE).isnan()


ATTAINABLE = (trm.Coverage, trm.Gini, trm.Entropy)


@st.composite
def few_lists(draw):
    """Draw up to three lists of distinct items of a small catalogue, so that all lists of these lengths can be made."""
    size = draw(st.integers(1, 5))
    items = st.lists(st.integers(0, size - 1), unique=True, max_size=3)
    return size, draw(st.lists(items, min_size=1, max_size=3))


@settings(max_examples=examples(40), deadline=None)
@given(few_lists(), st.integers(1, 4))
def test_attainable_values_are_those_of_all_possible_lists(drawn, k):
    """Scaled values lie between the extremes of all lists of the same lengths, which are tried one by one."""
    size, lists = drawn
    found = []
    for cls in ATTAINABLE:
        metric = cls(k, attainable=True, catalogue=trm.Catalogue(size))
        found.append(value(metric, ranking(lists)))
    assert found == pytest.approx(reference.attainable(lists, k, size), abs=1e-9, nan_ok=True)


@pytest.mark.parametrize(("cls", "even", "uneven"), [(trm.Coverage, 1, 0), (trm.Gini, 0, 1), (trm.Entropy, 1, 0)])
def test_attainable_ends_are_reached(cls, even, uneven):
    """Few lists of many items reach 0 and 1 exactly, whereas plain Gini is .9990 or .9999."""
    for lists, expected in ((torch.arange(100).view(10, 10), even), (torch.arange(10).expand(10, 10), uneven)):
        metric = cls(10, attainable=True, catalogue=trm.Catalogue(100_000))

        assert value(metric, trm.Lists(lists)) == expected


@pytest.mark.filterwarnings("ignore:no row to average over")
def test_one_list_has_one_attainable_value():
    """Scaled values of a single list are nan, whichever items it holds: rounding makes no range of one value."""
    torch.manual_seed(0)
    for length in (1, 3, 10, 37, 59, 60):
        lists = torch.rand(1, 200).argsort(1)[:, :length]
        for cls in ATTAINABLE:
            assert math.isnan(value(cls(60, attainable=True, catalogue=trm.Catalogue(200)), trm.Lists(lists)))


@pytest.mark.parametrize("padding", [0, 3, 6, 99])
def test_padding_is_no_item(padding):
    """Padding counts as no item, wherever `padding_idx` is among the item ids or beyond them."""

    def computed(lists, target, popularity, **options):
        given = {"catalogue": trm.Catalogue(len(popularity), popularity=popularity), **options}
        names = ["Coverage", "Gini", "Entropy", "Personalization", "ExposureGini", "Serendipity"]
        scaled = [cls(2, attainable=True, **given) for cls in ATTAINABLE]
        metrics = trm.RecMetricCollection([*names, *scaled], k=3, **given)
        metrics.update(trm.Lists(lists, target))
        return metrics.result().floats()

    lists, target = tensor([[0, 1, 2], [3, 0, 5]]), tensor([[2, 4, 0], [1, 5, 3]])
    popularity = tensor([5, 4, 2, 2, 1, 0])
    wider = popularity if padding > 6 else torch.cat([popularity[:padding], tensor([0]), popularity[padding:]])
    moved = computed(lists + (lists >= padding), target + (target >= padding), wider, padding_idx=padding)

    assert moved == near(computed(lists, target, popularity))


def test_rounding_does_not_make_alike_items_more_than_alike():
    """Copies of one vector have a diversity of 0 up to rounding, and never below 0, whatever the vector."""
    vectors = torch.randn(100, 1, 7, generator=torch.Generator().manual_seed(0)).expand(-1, 9, -1)
    catalogue = trm.Catalogue(900, embeddings=vectors.reshape(900, 7))
    found = functional.intra_list_diversity(ranking(torch.arange(900).view(100, 9).tolist()), 9, catalogue=catalogue)
    assert found.min() == 0
    assert found.max() < 1e-15


def test_many_vectors_are_looked_at_in_pieces(monkeypatch):
    """Values have the same bits, however many rows are computed at a time."""
    generator = torch.Generator().manual_seed(0)
    random = partial(torch.rand, generator=generator)
    lists, history = random(50, 30).argsort(1)[:, :7].tolist(), random(50, 30).argsort(1)[:, :9].tolist()
    shares = random(30, 4, dtype=torch.float64)
    mixed = trm.Catalogue(30, categories=shares / shares.sum(1, keepdim=True), embeddings=random(30, 5))
    codes = trm.Catalogue(30, categories=torch.randint(40, (30,), generator=generator))

    def values():
        made, found = ranking(lists, history), []
        for catalogue, of in ((mixed, "categories"), (mixed, "embeddings"), (codes, "categories")):
            found.append(functional.intra_list_diversity(made, (2, 7), catalogue=catalogue, of=of))
            found.append(functional.category_share(made, (2, 7), catalogue=catalogue))
            found.append(functional.calibration(made, (2, 7), catalogue=catalogue))
        return torch.stack(found)

    whole, pieces = values(), functional._pieces
    monkeypatch.setattr(functional, "_pieces", lambda rows, cells_per_row, device: pieces(rows, 2**18, device))

    assert torch.equal(values(), whole)


NO_ITEM = {  # values at k = 1, 2, 3, 4 of a list with no item, item 0, no item and item 3; item 3 is the history
    functional.missing: [1, 1 / 2, 2 / 3, 2 / 4],
    functional.seen: [nan, 0, 0, 1 / 2],
    functional.novelty: [nan, 0, 0, (0 + 2) / 2],
    functional.average_popularity: [nan, 8, 8, (8 + 2) / 2],
    functional.popularity_lift: [nan, 8 / 2 - 1, 8 / 2 - 1, 5 / 2 - 1],
    functional.tail_share: [nan, 0, 0, 1 / 2],
    functional.category_share: [nan, 1, 1, 2 / 2],
    functional.intra_list_diversity: [nan, nan, nan, 1],
    functional.serendipity: [nan, 0, 0, 0],  # the popularity ranks of items 0 and 3 are 1 and 3, of six
    functional.calibration: [nan, math.log(100), math.log(100), math.log(1 / (0.99 / 2 + 0.01))],
}
ONE_HOT = trm.Catalogue(6, popularity=tensor([8, 4, 2, 2, 1, 0]), num_users=8, categories=tensor([0, 0, 1, 1, 1, 0]))


def list_without_items():
    """Return the ranking of the list of `NO_ITEM`."""
    listed = ListedItems(tensor([[-1, 0, -1, 3]]), tensor([[0, 3]]), history=tensor([[3]]))
    return replace(ranking([[0]], relevant=[[0, 3]]), lists=listed)


@pytest.mark.parametrize("formula", NO_ITEM, ids=lambda formula: formula.__name__)
def test_a_rank_without_an_item_before_others(formula):
    """A rank that holds no item, as that of an invalid code, counts as a rank of the list and in no mean over items."""
    given = {} if formula in (functional.missing, functional.seen) else {"catalogue": ONE_HOT}

    assert formula(list_without_items(), (1, 2, 3, 4), **given)[:, 0].tolist() == near(NO_ITEM[formula])
    assert [formula(list_without_items(), k, **given).item() for k in (1, 2, 3, 4)] == near(NO_ITEM[formula])


def test_a_rank_without_an_item_counts_no_item():
    metrics = trm.RecMetricCollection(["Coverage", "ExposureGini", "Personalization"], k=3, catalogue=ONE_HOT)
    metrics.update(list_without_items())
    metrics.update(ranking([[0, 3]]))
    # items 0 and 3 have exposures of 1 / log2(3) + 1 and 1 / log2(3); the first list has one item, the other two
    gini = (3 * LOG[2] + 5 * (LOG[2] + 1)) / (6 * (2 * LOG[2] + 1))

    assert metrics.result().floats() == near({"Coverage@3": 2 / 6, "ExposureGini@3": gini, "Personalization@3": 0})


READS = {
    "popularity": (trm.AveragePopularity, trm.PopularityLift, trm.Novelty, trm.TailShare, trm.Serendipity),
    "categories": (trm.IntraListDiversity, trm.CategoryShare, trm.Calibration),
}
BARE = trm.Catalogue(6, num_users=3)
COUNTED = trm.Catalogue(2, popularity=tensor([1, 2]), categories=tensor([0, 1]))


@pytest.mark.parametrize(
    ("metric", "catalogue", "options", "says"),
    [
        *(
            (metric, BARE, {}, f"no {data}, which the metric reads: Catalogue(..., {data}=)")
            for data, metrics in READS.items()
            for metric in metrics
        ),
        (trm.Novelty, COUNTED, {}, "no num_users"),
        (trm.IntraListDiversity, COUNTED, {"of": "embeddings"}, "no embeddings"),
        (trm.IntraListDiversity, CATALOGUE, {}, "categories and embeddings: pass of='categories' or of='embeddings'"),
        (trm.IntraListDiversity, CATALOGUE, {"of": "genres"}, "of must be one of None, 'categories', 'embeddings'"),
        (trm.TailShare, CATALOGUE, {"head": 80}, "head must be a share between 0 and 1, such as 0.8, got 80"),
        (trm.Calibration, CATALOGUE, {"divergence": "KL"}, "divergence must be one of 'kl', 'js', got 'KL'"),
    ],
)
def test_what_is_refused_when_a_metric_is_made(metric, catalogue, options, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        metric(3, catalogue=catalogue, **options)


@pytest.mark.parametrize("metric", sorted({*ALL} - {trm.Seen, trm.Repeats, trm.Invalid, trm.Missing}, key=repr))
def test_all_metrics_but_four_need_a_catalogue(metric):
    with pytest.raises(ValueError, match=f"{metric.__name__} needs a catalogue"):
        trm.RecMetricCollection([metric(3)])


def test_a_metric_without_a_catalogue_takes_that_of_its_collection():
    alone = trm.IntraListDiversity(3, of="embeddings", catalogue=CATALOGUE)
    together = trm.RecMetricCollection([trm.IntraListDiversity(3, of="embeddings")], catalogue=CATALOGUE)
    scores = torch.rand(5, CATALOGUE.num_items)
    alone.update(scores)
    together.update(scores)

    assert together.compute()["IntraListDiversity-embeddings@3"] == alone.compute()


def test_a_metric_without_a_catalogue_alone_is_refused_at_its_first_batch():
    metric = trm.IntraListDiversity(3, of="embeddings")
    with pytest.raises(ValueError, match="IntraListDiversity needs a catalogue: IntraListDiversity"):
        metric.update(torch.rand(5, CATALOGUE.num_items))

    assert metric.update_count == 0


@pytest.mark.parametrize(
    ("label", "metric", "options"),
    [
        ("Novelty-normalize@5", trm.Novelty, {"normalize": True}),
        ("TailShare-head0_9@5", trm.TailShare, {"head": 0.9}),
        ("IntraListDiversity-embeddings@5", trm.IntraListDiversity, {"of": "embeddings"}),
        ("Calibration-js@5", trm.Calibration, {"divergence": "js"}),
        ("EqualOpportunity-categories@5", trm.EqualOpportunity, {"of": "categories"}),
        ("Gini-attainable@5", trm.Gini, {"attainable": True}),
    ],
)
def test_labels_hold_options_that_change_a_value(label, metric, options):
    assert metric(5, catalogue=CATALOGUE, **options).label == label


def test_directions():
    """`higher_is_better` is None where neither direction is better."""
    names = {wanted: [m.__name__ for m in ALL if m.higher_is_better is wanted] for wanted in (None, False)}
    assert names[None] == ["AveragePopularity", "PopularityLift", "Seen"]
    low = ["Calibration", "EqualOpportunity", "ExposureGini", "Gini", "Invalid", "Missing", "Repeats"]
    assert names[False] == [*low, "StatisticalParity"]


def history_beyond_the_catalogue(device, validate_args):
    """Return a lift after an update with histories of items 1 and 2, and 1 and 99; it lists items 5 and 4."""
    metric = trm.PopularityLift(2, catalogue=CATALOGUE, validate_args=validate_args).to(device)
    history = tensor([[1, 2], [1, 99]], device=device)
    metric.update(trm.Scores(torch.arange(6.0).expand(2, -1).to(device), history=history))
    return metric


def test_unchecked_history_beyond_the_catalogue_is_padding(device):
    lift = history_beyond_the_catalogue(device, validate_args=False).compute().item()

    assert lift == near((0.5 / 3 + 0.5 / 4) / 2 - 1)


def test_deferred_history_beyond_the_catalogue_raises_in_compute(device):
    metric = history_beyond_the_catalogue(device, validate_args="deferred")

    with pytest.raises(ValueError, match="1 row with an item in the list or history that is not in the catalogue"):
        metric.compute()


def test_one_ranking_with_two_histories():
    """A ranking that is read with several histories gives the value of each, whatever formulas cache of it."""
    made, metric = trm.Lists(tensor([[0, 1]])).ranking(), trm.Seen(2)
    for history, seen in ((tensor([[0, 1]]), 1), (tensor([[5, 0]]), 0.5), (tensor([[5, 4]]), 0)):
        assert metric(with_history(made, history)) == seen


def test_shares_however_small():
    """Calibration counts a small history share without rounding it, and leaves out a share of 0."""
    p = (1 - 1e-5, 1e-5)
    shares = tensor([p, [0.5, 0.5], [1, 0]], dtype=torch.float64)
    metric = trm.Calibration(1, catalogue=trm.Catalogue(3, categories=shares))
    little = sum(each * math.log(each / (0.99 * 0.5 + 0.01 * each)) for each in p)
    for history, expected in ((0, little), (2, math.log(1 / 0.505))):
        assert metric(trm.Lists(tensor([[1]]), history=tensor([[history]]))).item() == near(expected)


@pytest.mark.parametrize("metric", [trm.Gini, trm.ExposureGini])
def test_a_catalogue_of_padding_alone(metric):
    metric = metric(1, catalogue=trm.Catalogue(1), padding_idx=0)
    metric.update(torch.tensor([[0.5]]))
    assert metric.compute().isnan()


def test_codes_may_be_as_large_as_hashes():
    """No tensor is as wide as the largest category code."""
    lists, codes = ranking(LISTS, HISTORY), tensor([0, 0, 1, 1, 1, 0])
    small, large = (trm.Catalogue(6, categories=codes * factor) for factor in (1, 2**60))

    for formula in (functional.intra_list_diversity, functional.category_share, functional.calibration):
        assert formula(lists, 3, catalogue=large).tolist() == near(formula(lists, 3, catalogue=small).tolist())
