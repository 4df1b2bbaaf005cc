"""Metrics of item groups against Elliot's RSP and REO, in plain Python and by hand."""

import math
import random
from itertools import pairwise
from statistics import fmean, pstdev

import pytest
import torch

import torchrecmetrics as trm
from torchrecmetrics.beyond.item_groups import GroupCounts, spread


def spread_of(hits, possible):
    """Return the formula of both metrics for the counts of the groups."""
    return spread(GroupCounts(hits, possible), 10, catalogue=None)


def elliots(lists, train, relevant, groups, k):
    """Return PopRSP and PopREO, added up user by user as in Elliot 0.3.1, and the four counts of each group."""
    recommended, candidates, found, able = ([0] * len(groups) for _ in range(4))
    for user, items in lists.items():
        top = set(items[:k])
        for g, group in enumerate(groups):
            recommended[g] += len(top & group)
            candidates[g] += len(group - train[user])
            if relevant[user]:
                found[g] += len(top & relevant[user] & group)
                able[g] += len(group & relevant[user] - train[user])
    spreads = []
    for counts, of in ((recommended, candidates), (found, able)):
        rates = [count / n for count, n in zip(counts, of, strict=True)]
        spreads.append(pstdev(rates) / fmean(rates))
    return spreads, [torch.tensor(counts) for counts in (recommended, candidates, found, able)]


def test_elliots():
    """The formula needs only counts to equal Elliot's, for two groups (head and tail) and for five."""
    rng = random.Random(0)
    for cuts in ([0, 8, 60], [0, 5, 12, 20, 35, 60]):
        groups = [set(range(*ends)) for ends in pairwise(cuts)]
        lists, train, relevant = {}, {}, {}
        for user in range(80):
            train[user] = set(rng.sample(range(60), 6))
            left = sorted(set(range(60)) - train[user])
            lists[user] = sorted(rng.sample(left, 20), key=lambda i: i + rng.random() * 30)
            relevant[user] = set(rng.sample(left, rng.randrange(20)))
        (rsp, reo), (recommended, candidates, found, able) = elliots(lists, train, relevant, groups, 10)
        assert spread_of(recommended, candidates).item() == pytest.approx(rsp, rel=1e-14)
        assert spread_of(found, able).item() == pytest.approx(reo, rel=1e-14)


def test_by_hand():
    """Equal rates give 0, whatever the counts; if one of G groups has all hits, the result is sqrt(G - 1)."""
    assert spread_of(torch.tensor([10, 40]), torch.tensor([100, 400])) == 0
    one = spread_of(torch.tensor([0, 7, 0, 0, 0]), torch.tensor([9, 9, 9, 9, 9]))
    assert one.item() == pytest.approx(math.sqrt(4))


def test_groups_left_out():
    """A group without a possible item is left out; a single group, or no hit at all, gives nan."""
    full = spread_of(torch.tensor([3, 1]), torch.tensor([10, 10]))
    assert spread_of(torch.tensor([3, 0, 1]), torch.tensor([10, 0, 10])) == full
    assert spread_of(torch.tensor([3, 0]), torch.tensor([10, 0])).isnan()
    assert spread_of(torch.tensor([0, 0]), torch.tensor([10, 10])).isnan()
    assert spread_of(torch.tensor([]), torch.tensor([])).isnan()


def test_nothing_is_waited_for():
    counts = torch.empty(4, dtype=torch.int64, device="meta")
    assert spread_of(counts, counts).shape == ()


# ----------------------------------------------------------------------------------------------------------- metrics

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


def groups_of(catalogue, of, leaves=()):
    """Return sets of items: the fewest with 80 % of the popularity and all others; or categories."""
    if of == "categories":
        codes = catalogue.categories.tolist()
        return [{item for item in range(ITEMS) if codes[item] == code} - {*leaves} for code in range(4)]
    popularity = catalogue.popularity.tolist()
    head, total = set(), 0
    for item in sorted(range(ITEMS), key=lambda item: (-popularity[item], item)):
        if total < 0.8 * sum(popularity):
            head.add(item)
        total += popularity[item]
    return [head - {*leaves}, {*range(ITEMS)} - head - {*leaves}]


def expected(scores, target, history, groups, k=5, leaves=()):
    """Return Elliot's RSP and REO for lists that are sorted in plain Python."""
    train = {user: {*items} - {-1} for user, items in enumerate(history.tolist())}
    relevant = {user: {*items} - {-1, *leaves} for user, items in enumerate(target.tolist())}
    lists = {
        user: sorted({*range(ITEMS)} - train[user] - {*leaves}, key=lambda item: (-row[item], item))
        for user, row in enumerate(scores.tolist())
    }
    return elliots(lists, train, relevant, groups, k)[0]


def found(kinds, parts, **options):
    scores, target, history, catalogue = world()
    of = options.pop("of")
    collection = trm.RecMetricCollection([kind(5, catalogue=catalogue, of=of, **options) for kind in kinds])
    for some in parts:
        collection.update(trm.Scores(scores[some], target[some], exclude=history[some], history=history[some]))
    return [value.item() for value in collection.compute().values()], collection


@pytest.mark.parametrize("of", ["popularity", "categories"])
@pytest.mark.parametrize("padding_idx", [None, 3])
def test_metrics_are_elliots(of, padding_idx):
    """Both metrics equal Elliot's for any batch size; a repeated history item counts once, the padding item never."""
    scores, target, history, catalogue = world()
    leaves = () if padding_idx is None else (padding_idx,)
    # for Elliot, the padding item is neither an item nor in any history
    past = history if padding_idx is None else history.masked_fill(history == padding_idx, -1)
    theirs = expected(scores, target, past, groups_of(catalogue, of, leaves), leaves=leaves)
    for size in (7, 60):
        ours, collection = found(KINDS, torch.arange(USERS).split(size), of=of, padding_idx=padding_idx)
        assert ours == pytest.approx(theirs, rel=1e-12)
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
    theirs = expected(scores[stays], target[stays], history[stays], groups_of(catalogue, "popularity"))
    metrics = [kind(5, catalogue=catalogue) for kind in KINDS]
    for metric in metrics:
        metric.update(trm.Scores(scores, target, exclude=history, history=history), weights=weights)
    assert [metric.compute().item() for metric in metrics] == pytest.approx(theirs, rel=1e-12)
    assert [metric.num_users for metric in metrics] == [58, 58]


def test_whole_evaluations():
    """`evaluate` takes each user's history from the interactions of the catalogue."""
    scores, target, history, _ = world()
    pairs = {
        name: [(user, item) for user, row in enumerate(ids.tolist()) for item in {*row} - {-1}]
        for name, ids in (("train", history), ("test", target))
    }
    train, test = (
        trm.Interactions.from_columns(*map(list, zip(*each, strict=True)), num_users=USERS, num_items=ITEMS)
        for each in pairs.values()
    )
    catalogue = trm.Catalogue.from_interactions(train)
    theirs = expected(scores, target, history, groups_of(catalogue, "popularity"))
    evaluation = trm.evaluate(
        ["StatisticalParity@5", "EqualOpportunity@5", "NDCG@5"],
        lambda users: scores[users],
        target=test,
        exclude=train,
        catalogue=catalogue,
        all_users=True,
    )
    assert [value.item() for value in [*evaluation.values()][:2]] == pytest.approx(theirs, rel=1e-12)


def test_relevant_items_beyond_the_catalogue():
    """Relevant items beyond the catalogue belong to no group."""
    metric = trm.EqualOpportunity(2, of="categories", catalogue=trm.Catalogue(4, categories=torch.arange(4) // 2))
    lists = torch.tensor([[0, 2], [1, 3]])
    metric.update(trm.Lists(lists, torch.tensor([[0, 9, 1], [3, 2, 9]]), complete=True))
    assert metric.compute().item() == 0  # each group has 1 hit of 2


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_refused(kind):
    shares = trm.Catalogue(4, categories=torch.full((4, 2), 0.5))
    for catalogue, options, says in (
        (trm.Catalogue(4), {}, "the catalogue has no popularity"),
        (trm.Catalogue(4), {"of": "categories"}, "the catalogue has no categories"),
        (shares, {"of": "categories"}, r"groups are categories of one code an item.*shares put an item into several"),
        (shares, {"of": "genre"}, "of must be one of 'popularity', 'categories', got 'genre'"),
        (trm.Catalogue(4, popularity=torch.ones(4)), {"head": 1.5}, "head must be a share between 0 and 1"),
    ):
        with pytest.raises(ValueError, match=says):
            kind(3, catalogue=catalogue, **options)


def test_what_must_be_given():
    scores, target, _, catalogue = world()
    with pytest.raises(
        ValueError, match=r"the history of each row is read: update\(Scores\(scores, target, history=\)\)"
    ):
        trm.StatisticalParity(3, catalogue=catalogue).update(scores, target)
    with pytest.raises((TypeError, ValueError), match="target"):
        trm.EqualOpportunity(3, catalogue=catalogue).update(scores)
