"""Groups of items: Elliot's RSP and REO, by plain Python and by hand."""

import math
import random
from itertools import pairwise
from statistics import fmean, pstdev

import pytest
import torch

from torchrecmetrics.beyond.parity import equal_opportunity, statistical_parity


def elliots(lists, train, relevant, groups, k):
    """PopRSP and PopREO, user by user, as Elliot 0.3.1 adds them up: with the four counts of each group."""
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
    """Two groups, head and tail, and five: the same numbers from the counts alone."""
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
        assert statistical_parity(recommended, candidates).item() == pytest.approx(rsp, rel=1e-14)
        assert equal_opportunity(found, able).item() == pytest.approx(reo, rel=1e-14)


def test_by_hand():
    """Equal rates are 0, whatever the counts; where one of G groups has all it is sqrt(G - 1)."""
    assert statistical_parity(torch.tensor([10, 40]), torch.tensor([100, 400])) == 0
    one = statistical_parity(torch.tensor([0, 7, 0, 0, 0]), torch.tensor([9, 9, 9, 9, 9]))
    assert one.item() == pytest.approx(math.sqrt(4))


def test_groups_left_out():
    """A group that nobody could be recommended an item of is none; of one group and of no hit nothing can be said."""
    full = equal_opportunity(torch.tensor([3, 1]), torch.tensor([10, 10]))
    assert equal_opportunity(torch.tensor([3, 0, 1]), torch.tensor([10, 0, 10])) == full
    assert equal_opportunity(torch.tensor([3, 0]), torch.tensor([10, 0])).isnan()
    assert equal_opportunity(torch.tensor([0, 0]), torch.tensor([10, 10])).isnan()
    assert equal_opportunity(torch.tensor([]), torch.tensor([])).isnan()


def test_nothing_is_waited_for():
    counts = torch.empty(4, dtype=torch.int64, device="meta")
    assert statistical_parity(counts, counts).shape == ()
