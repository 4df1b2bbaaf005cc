"""Metrics of item groups against Elliot's RSP and REO, in plain Python and by hand."""

import math
from statistics import fmean, pstdev

import pytest
import torch

import torchrecmetrics as trm
from torchrecmetrics.metrics.item_groups import GroupCounts, spread


@pytest.mark.parametrize(
    ("hits", "possible", "expected"),
    [
        ([10, 40], [100, 400], 0),  # equal rates
        ([0, 7, 0, 0, 0], [9, 9, 9, 9, 9], math.sqrt(4)),  # one of G groups has all hits
        ([3, 1], [10, 10], 0.1 / 0.2),
        ([3, 0, 1], [10, 0, 10], 0.1 / 0.2),  # a group without a possible item is left out
        ([3, 0], [10, 0], math.nan),
        ([0, 0], [10, 10], math.nan),
        ([], [], math.nan),
    ],
)
def test_a_spread_is_the_standard_deviation_of_the_groups_rates_over_their_mean(hits, possible, expected):
    counts = GroupCounts(torch.tensor(hits), torch.tensor(possible))
    assert spread(counts, 10, catalogue=None).item() == pytest.approx(expected, nan_ok=True)


FOUR_ITEMS = trm.Catalogue(4, categories=torch.tensor([0, 0, 1, 1]))


def test_parity_is_the_spread_of_listed_shares_of_the_items_that_users_had_not():
    metric = trm.StatisticalParity(1, of="categories", catalogue=FOUR_ITEMS)
    lists, history = torch.tensor([[0], [1], [2]]), torch.tensor([[1, 1], [2, 3], [-1, -1]])
    metric.update(trm.Lists(lists, history=history))
    rates = 2 / (1 + 2 + 2), 1 / (2 + 0 + 2)  # of items 0 and 1, of items 2 and 3

    assert metric.compute().item() == pytest.approx(pstdev(rates) / fmean(rates))


def test_opportunity_is_the_spread_of_listed_shares_of_relevant_items():
    metric = trm.EqualOpportunity(2, of="categories", catalogue=FOUR_ITEMS)
    metric.update(trm.Lists(torch.tensor([[0, 2], [1, 3]]), torch.tensor([[0, 1, 9], [3, 2, 0]])))
    rates = 1 / (2 + 1), 1 / (0 + 2)  # item 9 belongs to no group

    assert metric.compute().item() == pytest.approx(pstdev(rates) / fmean(rates))


ITEMS, USERS = 40, 60
KINDS = (trm.StatisticalParity, trm.EqualOpportunity)


def world(seed=0):
    """Return scores, relevant items, histories with a repeated item, and a catalogue."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(USERS, ITEMS, generator=generator).argsort(1)
    history, target = order[:, :5].clone(), order[:, 5:12].clone()
    history[torch.rand(USERS, 5, generator=generator) < 0.3] = -1
    history = torch.cat([history, history[:, :1]], 1)
    target[torch.rand(USERS, 7, generator=generator) < 0.4] = -1
    popularity = (200 / torch.arange(2, ITEMS + 2)).long()
    scores = torch.rand(USERS, ITEMS, generator=generator) + popularity / 100
    codes = torch.randint(4, (ITEMS,), generator=generator)
    return scores, target, history, trm.Catalogue(ITEMS, popularity=popularity, num_users=100, categories=codes)


def groups_of(catalogue, of="popularity"):
    """Return sets of items: the fewest with 80 % of the popularity and all others; or categories."""
    if of == "categories":
        codes = catalogue.categories.tolist()
        return [{item for item in range(ITEMS) if codes[item] == code} for code in range(4)]
    popularity = catalogue.popularity.tolist()
    head, total = set(), 0
    for item in sorted(range(ITEMS), key=lambda item: (-popularity[item], item)):
        if total < 0.8 * sum(popularity):
            head.add(item)
        total += popularity[item]
    return [head, {*range(ITEMS)} - head]


def elliots(scores, target, history, groups, leaves=(), k=5):
    """Return PopRSP and PopREO, added up user by user as in Elliot 0.3.1, without the items of `leaves`."""
    groups = [group - {*leaves} for group in groups]
    recommended, candidates, found, able = ([0] * len(groups) for _ in range(4))
    for row, wanted, past in zip(scores.tolist(), target.tolist(), history.tolist(), strict=True):
        train, relevant = {*past} - {-1, *leaves}, {*wanted} - {-1, *leaves}
        top = {*sorted({*range(ITEMS)} - train - {*leaves}, key=lambda item: (-row[item], item))[:k]}
        for g, group in enumerate(groups):
            recommended[g] += len(top & group)
            candidates[g] += len(group - train)
            if relevant:
                found[g] += len(top & relevant & group)
                able[g] += len(group & relevant - train)
    spreads = []
    for counts, of in ((recommended, candidates), (found, able)):
        rates = [count / n for count, n in zip(counts, of, strict=True)]
        spreads.append(pstdev(rates) / fmean(rates))
    return pytest.approx(spreads, rel=1e-12)


@pytest.mark.parametrize("of", ["popularity", "categories"])
@pytest.mark.parametrize("padding_idx", [None, 3])
@pytest.mark.parametrize("batch_size", [7, 60])
def test_both_metrics_are_elliots_on_random_rows_in_any_batches(of, padding_idx, batch_size):
    """A history item that is repeated counts once, the padding item never."""
    scores, target, history, catalogue = world()
    metrics = trm.RecMetricCollection([kind(5, catalogue=catalogue, of=of, padding_idx=padding_idx) for kind in KINDS])
    for rows in torch.arange(USERS).split(batch_size):
        metrics.update(trm.Scores(scores[rows], target[rows], exclude=history[rows], history=history[rows]))
    leaves = () if padding_idx is None else (padding_idx,)
    expected = elliots(scores, target, history, groups_of(catalogue, of), leaves)

    assert [value.item() for value in metrics.compute().values()] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_weight_0_or_without_a_list_are_left_out_and_any_other_weight_is_1(kind):
    lists, history = torch.tensor([[0], [2], [2], [-1]]), torch.tensor([[-1], [-1], [-1], [0]])
    target = torch.tensor([[0, 2], [0, 2], [0, 2], [-1, -1]])
    metric = kind(1, of="categories", catalogue=FOUR_ITEMS)
    metric.update(trm.Lists(lists, target, history=history), weights=torch.tensor([1.0, 7.0, 0.0, 1.0]))

    assert metric.compute() == 0  # each group is listed once
    assert metric.num_users == 2


def test_a_spread_has_no_standard_error():
    metric = trm.StatisticalParity(1, of="categories", catalogue=FOUR_ITEMS)
    metric.update(trm.Lists(torch.tensor([[0], [2]]), history=torch.tensor([[-1], [-1]])))

    assert metric.standard_error().isnan()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ({}, {}, "the catalogue has no popularity"),
        ({}, {"of": "categories"}, "the catalogue has no categories"),
        (
            {"categories": torch.full((4, 2), 0.5)},
            {"of": "categories"},
            "groups need one category code per item.*with shares an item is in several",
        ),
        ({}, {"of": "genre"}, "of must be one of 'popularity', 'categories', got 'genre'"),
        ({"popularity": torch.ones(4)}, {"head": 1.5}, "head must be a share between 0 and 1"),
    ],
)
def test_a_catalogue_or_option_that_makes_no_groups_is_refused(kind, columns, options, says):
    with pytest.raises(ValueError, match=says):
        kind(3, catalogue=trm.Catalogue(4, **columns), **options)
