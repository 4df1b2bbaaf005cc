"""Metrics of item groups against Elliot's RSP and REO, in plain Python and by hand."""

import math
from statistics import fmean, pstdev

import pytest
import torch

import torchrecmetrics as trm
from torchrecmetrics.metrics.item_groups import GroupCounts, spread


def spread_of(hits, possible):
    """Return the formula of both metrics for the counts of the groups."""
    return spread(GroupCounts(torch.as_tensor(hits), torch.as_tensor(possible)), 10, catalogue=None)


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
def test_spread_by_hand(hits, possible, expected):
    assert spread_of(hits, possible).item() == pytest.approx(expected, nan_ok=True)


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
def test_metrics_are_elliots(of, padding_idx):
    """Both metrics equal Elliot's for any batch size; a repeated history item counts once, the padding item never."""
    scores, target, history, catalogue = world()
    leaves = () if padding_idx is None else (padding_idx,)
    for size in (7, 60):
        metrics = [kind(5, catalogue=catalogue, of=of, padding_idx=padding_idx) for kind in KINDS]
        collection = trm.RecMetricCollection(metrics)
        for some in torch.arange(USERS).split(size):
            collection.update(trm.Scores(scores[some], target[some], exclude=history[some], history=history[some]))
        found = [value.item() for value in collection.compute().values()]
        assert found == elliots(scores, target, history, groups_of(catalogue, of), leaves)
        assert [member.num_users for member in collection.values()] == [USERS, USERS]
        assert all(member.standard_error().isnan() for member in collection.values())


def test_which_rows_count():
    """Rows of weight 0 and rows without a list are left out; any other weight counts as 1."""
    scores, target, history, catalogue = world()
    scores[4] = -torch.inf
    target[4] = -1
    weights = torch.ones(USERS)
    weights[9], weights[10] = 0, 7
    stays = [user for user in range(USERS) if user not in (4, 9)]
    metrics = [kind(5, catalogue=catalogue) for kind in KINDS]
    for metric in metrics:
        metric.update(trm.Scores(scores, target, exclude=history, history=history), weights=weights)
    expected = elliots(scores[stays], target[stays], history[stays], groups_of(catalogue))
    assert [metric.compute().item() for metric in metrics] == expected
    assert [metric.num_users for metric in metrics] == [58, 58]


def test_whole_evaluations():
    """`evaluate` takes each user's history from the interactions of the catalogue."""
    scores, target, history, _ = world()
    train, test = (trm.Interactions.from_padded(ids, num_items=ITEMS) for ids in (history[:, :5], target))
    catalogue = trm.Catalogue.from_interactions(train)
    options = {"target": test, "exclude": train, "catalogue": catalogue, "all_users": True}
    found = trm.evaluate(["StatisticalParity@5", "EqualOpportunity@5"], lambda users: scores[users], **options)

    assert [value.item() for value in found.values()] == elliots(scores, target, history, groups_of(catalogue))


def test_relevant_items_beyond_the_catalogue():
    """Relevant items beyond the catalogue belong to no group."""
    metric = trm.EqualOpportunity(2, of="categories", catalogue=trm.Catalogue(4, categories=torch.arange(4) // 2))
    lists = torch.tensor([[0, 2], [1, 3]])
    metric.update(trm.Lists(lists, torch.tensor([[0, 9, 1], [3, 2, 9]]), complete=True))
    assert metric.compute().item() == 0  # each group has 1 hit of 2


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
def test_what_is_refused(kind, columns, options, says):
    with pytest.raises(ValueError, match=says):
        kind(3, catalogue=trm.Catalogue(4, **columns), **options)


def test_parity_needs_the_history():
    scores, _, _, catalogue = world()
    with pytest.raises(ValueError, match=r"a metric needs the history of each row: pass update\(Scores\(scores, targ"):
        trm.StatisticalParity(3, catalogue=catalogue).update(scores)


def test_opportunity_needs_a_target():
    scores, _, _, catalogue = world()
    with pytest.raises(ValueError, match="scores need a target"):
        trm.EqualOpportunity(3, catalogue=catalogue).update(scores)
