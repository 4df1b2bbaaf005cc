"""Metrics beyond accuracy: worked out by hand, against plain Python, in edge cases, and their properties."""

import math
import re
from dataclasses import replace
from functools import partial
from math import log, log2
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
import reference_beyond as plain
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


CATALOGUE = trm.Catalogue(
    7,
    popularity=tensor([8, 4, 2, 2, 1, 0, 0]),  # items 0, 1 and 2 hold 80 % of the sum, 17: they are the head
    num_users=8,
    categories=tensor([0, 0, 1, 1, 1, 0, 2]),
    embeddings=tensor([[1.0, 0], [2, 0], [0, 3], [-1, 0], [1, 1], [0, 0], [0, 0]]),
)
# the lists of three users, the items that each had before, and those that each should find
LISTS = [[0, 1, 2], [0, 3, 5], [4]]
HISTORY = [[1, 2], [0, 0, 0], [3, 0]]
RELEVANT = [[1, 2], [0, 5], [4]]
BY_HAND = {  # the value of each list
    trm.AveragePopularity(3): [(8 + 4 + 2) / 3, (8 + 2 + 0) / 3, 1],
    trm.PopularityLift(3): [(14 / 3) / 3 - 1, (10 / 3) / 8 - 1, 1 / 5 - 1],  # histories: (4 + 2) / 2, 8, (2 + 8) / 2
    trm.Novelty(3): [(0 + 1 + 2) / 3, (0 + 2 + 3) / 3, 3],  # log2(8 / popularity), of item 5 as if one user had it
    trm.Novelty(3, normalize=True): [3 / 3 / log2(8), 5 / 3 / log2(8), 3 / log2(8)],
    trm.TailShare(3): [0, 2 / 3, 1],
    trm.TailShare(3, head=0.5): [1 / 3, 2 / 3, 1],  # items 0 and 1 are the head
    trm.IntraListDiversity(3, of="categories"): [1 - 1 / 3, 1 - 1 / 3, nan],  # one pair of three has one category
    trm.IntraListDiversity(3, of="embeddings"): [1 - (1 + 0 + 0) / 3, 1 - (-1 + 0 + 0) / 3, nan],  # cosines of pairs
    trm.CategoryShare(3): [2 / 3, 2 / 3, 1],
    # likelihoods by place in the list - by place in popularity: (6 - 6, 5 - 5) / 7; (7 - 7, 5 - 0) / 7; (7 - 4) / 7
    trm.Serendipity(3): [0, 5 / 7 / 3, 3 / 7],
    trm.Calibration(3): [
        1 / 2 * log(1 / 2 / (0.99 * 2 / 3 + 0.01 / 2)) + 1 / 2 * log(1 / 2 / (0.99 * 1 / 3 + 0.01 / 2)),
        log(1 / (0.99 * 2 / 3 + 0.01)),
        1 / 2 * log(1 / 2 / (0.01 / 2)) + 1 / 2 * log(1 / 2 / (0.99 + 0.01 / 2)),
    ],
    trm.Seen(3): [2 / 3, 1 / 3, 0],
    trm.Missing(3): [0, 0, 2 / 3],
    trm.Repeats(3): [0, 0, 0],
}
WITHOUT_CATALOGUE = (trm.Seen, trm.Repeats, trm.Missing, trm.Invalid)


@pytest.mark.parametrize(("metric", "values"), BY_HAND.items(), ids=lambda part: getattr(part, "label", ""))
def test_each_list_has_the_value_worked_out_by_hand(metric, values, device):
    metrics = trm.RecMetricCollection([metric], catalogue=CATALOGUE, accumulators=[trm.KeptRows()]).to(device)
    metrics.update(ranking(LISTS, HISTORY, RELEVANT, device))

    assert metrics.rows.values[metric.label].tolist() == near(values)
    assert metrics.compute()[metric.label].item() == near(tensor(values, dtype=torch.float64).nanmean().item())


def test_all_lists_together_have_the_values_worked_out_by_hand(device):
    metrics = trm.RecMetricCollection(
        ["Coverage", "Gini", "Entropy", "Personalization", "ExposureGini"], k=3, catalogue=CATALOGUE
    ).to(device)
    metrics.update(ranking(LISTS, device=device))
    # ExposureGini: the discounts of items 6, 2, 5, 1, 3, 4, 0 add up to 0, 1 / 2, 1 / 2, 1 / log2(3) twice, 1 and 2

    assert metrics.result().floats() == near(
        {
            "Coverage@3": 6 / 7,
            "Gini@3": (-6 * 0 - 4 * 1 - 2 * 1 + 0 * 1 + 2 * 1 + 4 * 1 + 6 * 2) / (7 * 7),
            "Entropy@3": -(2 / 7 * log2(2 / 7) + 5 * (1 / 7 * log2(1 / 7))),
            "Personalization@3": 1 - 1 / (3 + 1 + 1),  # the first two lists share item 0
            "ExposureGini@3": (-4 / 2 - 2 / 2 + 2 / log2(3) + 4 * 1 + 6 * 2) / (7 * (2 / 2 + 2 / log2(3) + 1 + 2)),
        }
    )


@pytest.mark.parametrize(("k", "rows"), [(2, [0, 0, nan]), (3, [1 / 3, 1 / 3, nan]), (9, [2 / 5, 2 / 4, nan])])
def test_an_entry_whose_item_occurs_earlier_is_a_repeat_and_padding_is_no_entry(k, rows):
    """Also in a ranking that is cut short, which keeps its entries."""
    entries = tensor([[1, 2, 1, 1, 5], [1, -1, 2, 1, 1], [-1, -1, -1, -1, -1]])
    lists = trm.Lists(entries, duplicates="first", complete=True).ranking()

    assert functional.repeats(lists, k).tolist() == near(rows)
    assert functional.repeats(lists.within(2), k).tolist() == near(rows)


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


def catalogue_of(world, columns="codes"):
    """Return the catalogue with category codes, with shares of categories, or with shares and vectors."""
    return trm.Catalogue(
        len(world["popularity"]),
        popularity=tensor(world["popularity"]),
        num_users=world["num_users"],
        categories=tensor(world["codes"]) if columns == "codes" else tensor(world["shares"], dtype=torch.float64),
        embeddings=tensor(world["vectors"], dtype=torch.float64) if columns == "both" else None,
    )


def users_of(world):
    """Return each user's list, history and relevant items, with the columns of the catalogue in plain Python."""
    columns = {
        "popularity": world["popularity"],
        "num_users": world["num_users"],
        "codes": plain.one_hot(world["codes"]),
        "shares": world["shares"],
        "units": plain.unit(world["vectors"]),
    }
    histories = [[item for item in items if item >= 0] for items in world["history"]]
    rows = zip(world["lists"], histories, world["relevant"], strict=True)
    return [SimpleNamespace(items=i, history=h, relevant=r, **columns) for i, h, r in rows]


PLAIN = [  # metric, columns of the catalogue, and the value of a user's list in plain Python
    (trm.AveragePopularity(3), "codes", lambda u, k: plain.average_popularity(u.items, k, u.popularity)),
    (trm.PopularityLift(3), "codes", lambda u, k: plain.popularity_lift(u.items, k, u.popularity, u.history)),
    (trm.Novelty(3), "codes", lambda u, k: plain.novelty(u.items, k, u.popularity, u.num_users)),
    (trm.Novelty(3, normalize=True), "codes", lambda u, k: plain.novelty(u.items, k, u.popularity, u.num_users, True)),
    (trm.TailShare(3), "codes", lambda u, k: plain.tail_share(u.items, k, u.popularity)),
    (trm.TailShare(3, head=0.5), "codes", lambda u, k: plain.tail_share(u.items, k, u.popularity, 0.5)),
    (trm.IntraListDiversity(3), "codes", lambda u, k: plain.intra_list_diversity(u.items, k, u.codes)),
    (trm.IntraListDiversity(3, of="categories"), "both", lambda u, k: plain.intra_list_diversity(u.items, k, u.shares)),
    (trm.IntraListDiversity(3, of="embeddings"), "both", lambda u, k: plain.intra_list_diversity(u.items, k, u.units)),
    (trm.CategoryShare(3), "codes", lambda u, k: plain.category_share(u.items, k, u.codes)),
    (trm.CategoryShare(3), "shares", lambda u, k: plain.category_share(u.items, k, u.shares)),
    (trm.Calibration(3), "codes", lambda u, k: plain.calibration(u.items, k, u.codes, u.history)),
    (trm.Calibration(3), "shares", lambda u, k: plain.calibration(u.items, k, u.shares, u.history)),
    (
        trm.Calibration(3, divergence="js"),
        "codes",
        lambda u, k: plain.calibration(u.items, k, u.codes, u.history, "js"),
    ),
    (
        trm.Calibration(3, divergence="js"),
        "shares",
        lambda u, k: plain.calibration(u.items, k, u.shares, u.history, "js"),
    ),
    (trm.Serendipity(3), "codes", lambda u, k: plain.serendipity(u.items, k, u.popularity, u.relevant)),
    (trm.Seen(3), "codes", lambda u, k: plain.seen(u.items, k, u.history)),
    (trm.Repeats(3), "codes", lambda u, k: plain.repeats(u.items, k)),
    (trm.Missing(3), "codes", lambda u, k: plain.missing(u.items, k)),
]


@pytest.mark.parametrize(("metric", "columns", "value_of"), PLAIN, ids=lambda part: getattr(part, "label", None))
@settings(max_examples=examples(40), deadline=None)
@given(world=worlds())
@example(EDGES)
@example({"popularity": [1], "num_users": 1, **ONE_ITEM})
@example({"popularity": [0], "num_users": 0, **ONE_ITEM})
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_each_list_of_random_worlds_has_the_value_of_plain_python(metric, columns, value_of, world):
    cutoffs = (1, 2, 3, 12)
    members = [type(metric)(k, **metric.options) for k in cutoffs]
    catalogue = catalogue_of(world, columns)
    metrics = trm.RecMetricCollection(members, catalogue=catalogue, accumulators=[trm.KeptRows()])
    metrics.update(ranking(world["lists"], world["history"], world["relevant"]))
    values = [metrics.rows.values[member.label].tolist() for member in members]

    assert values == [near([value_of(user, k) for user in users_of(world)]) for k in cutoffs]


def test_values_of_lists_lie_between_0_and_1_but_for_these():
    bounds = {cls.__name__: cls.bounds for cls in ALL}

    assert {name: limits for name, limits in bounds.items() if limits != (0, 1)} == {
        "AveragePopularity": (0, math.inf),
        "Calibration": (0, log(100)),  # log(p / (0.01 p)) of a list without a category of the history
        "CategoryShare": (0, math.inf),  # shares of an item may add up to more than 1
        **dict.fromkeys(["Entropy", "EqualOpportunity", "StatisticalParity"]),  # they depend on the catalogue
        "IntraListDiversity": (0, 2),  # 1 - cosine
        "Novelty": (0, math.inf),
        "PopularityLift": (-1, math.inf),
    }


OVER_LISTS = {
    trm.Coverage: plain.coverage,
    trm.Gini: lambda lists, k, size: plain.gini(plain.counts(lists, k, size)),
    trm.Entropy: plain.entropy,
    trm.Personalization: lambda lists, k, size: plain.personalization(lists, k),
    trm.ExposureGini: lambda lists, k, size: plain.gini(plain.exposure(lists, k, size)),
}


@settings(max_examples=examples(30), deadline=None)
@given(worlds(), st.integers(1, 12))
def test_all_lists_together_have_the_value_of_plain_python_in_any_batches(world, k):
    lists, size = world["lists"], len(world["popularity"])
    catalogue = catalogue_of(world)
    metrics = trm.RecMetricCollection({cls.__name__: cls(k, catalogue=catalogue) for cls in OVER_LISTS})
    for items in reversed(lists):
        metrics.update(ranking([items]))
    expected = {cls.__name__: value_of(lists, k, size) for cls, value_of in OVER_LISTS.items()}

    assert metrics.result().floats() == near(expected)


ELSEWHERE = {
    trm.Invalid: "inputs/test_codes.py",
    trm.StatisticalParity: "metrics/test_item_groups.py",
    trm.EqualOpportunity: "metrics/test_item_groups.py",
}
"""Metrics that are compared with plain Python in another file."""


def test_every_metric_is_compared_with_plain_python():
    compared = {type(metric) for metric, *_ in PLAIN} | {*OVER_LISTS} | {*ELSEWHERE}
    missing = [cls.__name__ for cls in ALL if cls not in compared]

    assert not missing, f"write {missing} in tests/helpers/reference_beyond.py; add to PLAIN or OVER_LISTS"


@pytest.mark.parametrize(
    ("metric", "expected"), [(trm.Seen(3), 0), (trm.PopularityLift(3), nan), (trm.Calibration(3), nan)], ids=str
)
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_a_history_without_columns_is_empty(metric, expected):
    metrics = trm.RecMetricCollection([metric], catalogue=CATALOGUE)
    metrics.update(with_history(ranking([[0, 2, 4]]), torch.zeros(1, 0, dtype=torch.int64)))

    assert metrics.compute()[metric.label].item() == near(expected)


ATTAINABLE = (trm.Coverage, trm.Gini, trm.Entropy)


def attainable(lists, k, size):
    """Return the values that are scaled to those of all lists of the same lengths."""
    catalogue = trm.Catalogue(size)
    return [value(cls(k, attainable=True, catalogue=catalogue), trm.Lists(lists)) for cls in ATTAINABLE]


@st.composite
def few_lists(draw):
    """Draw up to three lists of distinct items of a small catalogue, so that all lists of these lengths can be made."""
    size = draw(st.integers(1, 5))
    items = st.lists(st.integers(0, size - 1), unique=True, max_size=3)
    return size, draw(st.lists(items, min_size=1, max_size=3))


@settings(max_examples=examples(40), deadline=None)
@given(few_lists(), st.integers(1, 4))
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_attainable_values_lie_between_the_extremes_of_all_lists_of_these_lengths(size_and_lists, k):
    """The reference tries these lists one by one."""
    size, lists = size_and_lists

    assert attainable(padded(lists), k, size) == near(plain.attainable(lists, k, size))


@pytest.mark.parametrize(
    ("lists", "coverage", "gini", "entropy"),
    [(torch.arange(100).view(10, 10), 1, 0, 1), (torch.arange(10).expand(10, 10), 0, 1, 0)],
    ids=["100 items once", "10 items always"],
)
def test_attainable_values_reach_0_and_1(lists, coverage, gini, entropy):
    """Plain Gini of so few lists of so many items is .9990 or .9999."""
    assert attainable(lists, 10, size=100_000) == [coverage, gini, entropy]


@pytest.mark.parametrize("length", [1, 3, 10, 37, 59, 60])
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_one_list_has_no_attainable_value(length, generator):
    """A single list of a length has one value, whichever items it holds, and rounding makes no range of it."""
    lists = torch.rand(1, 200, generator=generator).argsort(1)[:, :length]

    assert attainable(lists, 60, size=200) == near([nan] * 3)


@pytest.mark.parametrize(
    ("padding_idx", "popularity"),
    [(0, [0, 5, 4, 2, 2, 1, 0]), (3, [5, 4, 2, 0, 2, 1, 0]), (6, [5, 4, 2, 2, 1, 0, 0]), (99, [5, 4, 2, 2, 1, 0])],
)
def test_a_padding_item_is_none_of_the_six_items_of_a_catalogue(padding_idx, popularity):
    lists, target = tensor([[0, 1, 2], [3, 0, 5]]), tensor([[2, 4, 0], [1, 4, 3]])
    lists += lists >= padding_idx  # ids from the padding on move up by one
    target += target >= padding_idx
    catalogue = trm.Catalogue(len(popularity), popularity=tensor(popularity))
    options = {"catalogue": catalogue, "padding_idx": padding_idx}
    names = ["Coverage", "Gini", "Entropy", "ExposureGini", "Serendipity"]
    attainable_values = [cls(2, attainable=True, **options) for cls in ATTAINABLE]
    metrics = trm.RecMetricCollection([*names, *attainable_values], k=3, **options)
    metrics.update(trm.Lists(lists, target))

    assert metrics.result().floats() == near(
        {
            "Coverage@3": 5 / 6,
            "Gini@3": (-5 * 0 - 3 * 1 - 1 * 1 + 1 * 1 + 3 * 1 + 5 * 2) / (6 * 6),
            "Entropy@3": -(2 / 6 * log2(2 / 6) + 4 * (1 / 6 * log2(1 / 6))),
            "ExposureGini@3": (-3 / 2 - 1 / 2 + 1 / log2(3) + 3 + 5 * (1 + 1 / log2(3))) / (6 * (3 + 2 / log2(3))),
            "Serendipity@3": (0 + (3 - 1) / 6 / 3) / 2,  # item 3 is listed first, and shares place 3 by popularity
            "Coverage-attainable@2": (3 - 2) / (4 - 2),  # two lists of two items have from 2 to 4 items
            "Gini-attainable@2": (14 - 8) / (16 - 8),  # of the counts 1 1 2; 1 1 1 1; 2 2
            "Entropy-attainable@2": (1.5 - 1) / (2 - 1),
        }
    )


@pytest.mark.parametrize("metric", [trm.Gini, trm.ExposureGini])
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_a_catalogue_of_padding_alone_has_no_gini(metric):
    assert math.isnan(value(metric(1, catalogue=trm.Catalogue(1), padding_idx=0), tensor([[0.5]])))


def test_copies_of_one_vector_have_a_diversity_of_0_and_never_below(generator):
    vectors = torch.randn(100, 1, 7, generator=generator).expand(-1, 9, -1)
    catalogue = trm.Catalogue(900, embeddings=vectors.reshape(900, 7))
    lists = ranking(torch.arange(900).view(100, 9).tolist())
    diversity = functional.intra_list_diversity(lists, 9, catalogue=catalogue)

    assert diversity.min() == 0
    assert diversity.max() < 1e-15


@pytest.mark.parametrize("columns", ["embeddings", "shares", "codes"])
def test_values_have_the_same_bits_however_many_rows_are_computed_at_a_time(columns, monkeypatch, generator):
    random = partial(torch.rand, generator=generator)
    items, history = random(50, 30).argsort(1)[:, :7].tolist(), random(50, 30).argsort(1)[:, :9].tolist()
    shares = random(30, 4, dtype=torch.float64)
    formula, catalogue = {
        "embeddings": (functional.intra_list_diversity, trm.Catalogue(30, embeddings=random(30, 5))),
        "shares": (functional.calibration, trm.Catalogue(30, categories=shares / shares.sum(1, keepdim=True))),
        "codes": (functional.calibration, trm.Catalogue(30, categories=torch.arange(30) % 11)),
    }[columns]
    at_once = formula(ranking(items, history), (2, 7), catalogue=catalogue)
    pieces = functional._pieces  # of as many rows as have some million cells
    monkeypatch.setattr(functional, "_pieces", lambda rows, cells_per_row, device: pieces(rows, 2**18, device))

    assert torch.equal(formula(ranking(items, history), (2, 7), catalogue=catalogue), at_once)


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
    functional.calibration: [nan, log(100), log(100), log(1 / (0.99 / 2 + 0.01))],
}
ONE_HOT = trm.Catalogue(6, popularity=tensor([8, 4, 2, 2, 1, 0]), num_users=8, categories=tensor([0, 0, 1, 1, 1, 0]))


@pytest.mark.parametrize(("formula", "values"), NO_ITEM.items(), ids=lambda part: getattr(part, "__name__", ""))
def test_a_rank_that_holds_no_item_counts_as_a_rank_and_in_no_mean_over_items(formula, values):
    """An invalid code leaves such a rank."""
    listed = ListedItems(tensor([[-1, 0, -1, 3]]), tensor([[0, 3]]), history=tensor([[3]]))
    lists = replace(ranking([[0]], relevant=[[0, 3]]), lists=listed)
    given = {} if formula in (functional.missing, functional.seen) else {"catalogue": ONE_HOT}

    assert formula(lists, (1, 2, 3, 4), **given)[:, 0].tolist() == near(values)


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
def test_a_metric_whose_catalogue_or_option_will_not_do_is_refused(metric, catalogue, options, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        metric(3, catalogue=catalogue, **options)


@pytest.mark.parametrize("metric", [cls for cls in ALL if cls not in WITHOUT_CATALOGUE])
def test_all_metrics_but_four_need_a_catalogue(metric):
    with pytest.raises(ValueError, match=f"{metric.__name__} needs a catalogue"):
        trm.RecMetricCollection([metric(3)])


def test_a_metric_outside_a_collection_may_lack_a_catalogue_until_its_first_batch():
    metric = trm.Novelty(1)

    with pytest.raises(ValueError, match="Novelty needs a catalogue"):
        metric.update(torch.tensor([[0.1, 0.9]]))


def test_higher_is_better_but_for_these():
    lower = {"Calibration", "EqualOpportunity", "ExposureGini", "Gini", "Invalid", "Missing", "Repeats"}
    directions = {cls.__name__: cls.higher_is_better for cls in ALL}

    assert {name for name in NAMES if directions[name] is False} == {*lower, "StatisticalParity"}
    assert {name for name in NAMES if directions[name] is None} == {"AveragePopularity", "PopularityLift", "Seen"}


BEYOND = trm.Scores(torch.arange(5.0).expand(2, -1), history=tensor([[1, 2], [1, 99]]))  # of items 0 to 4; lists 4 3
FIVE_ITEMS = trm.Catalogue(5, popularity=tensor([8, 4, 2, 2, 1]))


def test_unchecked_history_beyond_the_catalogue_is_padding():
    lift = trm.PopularityLift(2, catalogue=FIVE_ITEMS, validate_args=False)(BEYOND)
    assert lift.item() == near(((1 + 2) / 2 / 3 + (1 + 2) / 2 / 4) / 2 - 1)


def test_deferred_history_beyond_the_catalogue_raises_in_compute():
    metric = trm.PopularityLift(2, catalogue=FIVE_ITEMS, validate_args="deferred")
    metric.update(BEYOND)

    with pytest.raises(ValueError, match="1 row with an item in the list or history that is not in the catalogue"):
        metric.compute()


def test_a_ranking_that_is_read_with_several_histories_has_the_value_of_each():
    made, metric = trm.Lists(tensor([[0, 1]])).ranking(), trm.Seen(2)

    assert [metric(with_history(made, tensor([items]))) for items in ([0, 1], [5, 0], [5, 4])] == [1, 1 / 2, 0]


@pytest.mark.parametrize("past", [(1 - 1e-5, 1e-5), (1, 0)], ids=["a small share", "a share of 0"])
def test_calibration_counts_a_history_share_however_small_and_leaves_out_a_share_of_0(past):
    catalogue = trm.Catalogue(2, categories=tensor([past, (0.5, 0.5)], dtype=torch.float64))
    calibration = trm.Calibration(1, catalogue=catalogue)(trm.Lists(tensor([[1]]), history=tensor([[0]])))

    assert calibration.item() == near(sum(p * log(p / (0.99 * 0.5 + 0.01 * p)) for p in past if p > 0))


@pytest.mark.parametrize(
    "formula", [functional.intra_list_diversity, functional.category_share, functional.calibration]
)
def test_category_codes_may_be_as_large_as_hashes(formula):
    lists, codes = ranking(LISTS, HISTORY), tensor([0, 0, 1, 1, 1, 0])
    small, large = (formula(lists, 3, catalogue=trm.Catalogue(6, categories=codes * factor)) for factor in (1, 2**60))

    assert large.tolist() == near(small.tolist())
