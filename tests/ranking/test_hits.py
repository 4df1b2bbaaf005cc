"""`Ranking.from_hits`, ranks that start at 0, ranks that mean a miss, and the warning about skipped rows."""

import warnings

import pytest
import torch

import torchrecmetrics as trm
from torchrecmetrics.base import compute

INF = float("inf")
HITS = torch.tensor([[0, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]])


@pytest.mark.fixed
def test_flags_are_ranks():
    """A row of flags without a hit is a miss, and relevant items beyond the list count in R."""
    ranking = trm.Ranking.from_hits(HITS, num_relevant=2)
    assert ranking.ranks.tolist() == [[2, 4], [INF, INF], [1, INF]]
    metrics = trm.RecMetricCollection(["Recall", "HR", "NDCG", "MAP"], k=[1, 4])
    metrics.update(ranking)
    same = trm.RecMetricCollection(["Recall", "HR", "NDCG", "MAP"], k=[1, 4])
    same.update(trm.Ranking.from_topk(torch.arange(4).expand(3, -1), torch.tensor([[1, 3], [8, 9], [0, 9]])))
    assert metrics.compute() == same.compute()
    for flags in (HITS.bool(), HITS.int(), HITS.to(torch.int8), HITS.to(torch.uint8)):
        assert trm.Ranking.from_hits(flags, num_relevant=torch.tensor([2, 0, 5])).ranks.shape == (3, 5)


@pytest.mark.fixed
def test_lists_that_are_all_there_is():
    """With `complete=True` an item that is not listed is a miss at every k, and the ideal has all relevant items."""
    metric = trm.NDCG(6)
    metric.update(trm.Ranking.from_hits(HITS[:1], num_relevant=5, complete=True))
    ideal = sum(1 / torch.log2(torch.tensor(1.0 + rank, dtype=torch.float64)) for rank in range(1, 6))
    found = 1 / torch.log2(torch.tensor(3.0)).double() + 1 / torch.log2(torch.tensor(5.0)).double()
    assert metric.compute().item() == pytest.approx((found / ideal).item(), abs=1e-7)
    for metric in (trm.NDCG(6), trm.RPrecision()):
        with pytest.raises(ValueError, match="known to depth 4 only"):
            metric.update(trm.Ranking.from_hits(HITS, num_relevant=5))


@pytest.mark.fixed
def test_memory_does_not_grow_with_relevant_items():
    """A list of K places needs K + 1 ranks, however many relevant items there are."""
    ranking = trm.Ranking.from_hits(HITS, num_relevant=10**9)
    assert (ranking.ranks.shape, ranking.num_relevant.tolist()) == ((3, 5), [10**9] * 3)
    names = ["Recall", "NDCG", "MAP", "F1", "Precision"]
    metrics, same = (trm.RecMetricCollection(names, k=[1, 4]) for _ in range(2))
    metrics.update(trm.Ranking.from_hits(HITS, num_relevant=50))
    ranks = torch.full((3, 50), INF)
    ranks[0, :2], ranks[2, 0] = torch.tensor([2.0, 4.0]), 1
    same.update(trm.Ranking.from_ranks(ranks, depth=4))
    assert metrics.compute() == same.compute()
    for metric in (trm.RPrecision(), trm.NDCG(), trm.MAP()):
        with pytest.raises(ValueError, match="known to depth 4 only"):
            metric.update(ranking)


def test_ranks_from_zero_and_misses():
    """`zero_based=True` shifts ranks by one, and the rank passed as `miss` is a miss and no padding."""
    given = torch.tensor([[0, 3], [-1, 999], [2, -1]])
    ranking = trm.Ranking.from_ranks(given, zero_based=True, miss=999)
    assert (ranking.ranks.tolist(), ranking.num_relevant.tolist()) == ([[1, 4], [INF, INF], [3, INF]], [2, 1, 1])
    for shape in ((2,), (2, 1)):
        ranking = trm.Ranking.from_ranks(torch.tensor([-1, 4]).view(shape), zero_based=True)
        assert (ranking.ranks.tolist(), ranking.num_relevant.tolist()) == ([[INF], [5]], [0, 1])
    ranking = trm.Ranking.from_ranks(torch.tensor([1, -1, 4]), miss=-1, depth=4)
    assert (ranking.ranks.tolist(), ranking.num_relevant.tolist()) == ([[1], [INF], [4]], [1, 1, 1])
    with pytest.raises(ValueError, match=r"zero_based=True\).*padding=0\).*Ranking.from_hits"):
        trm.Ranking.from_ranks(torch.tensor([0, 2]))


BAD = [
    (lambda: trm.Ranking.from_hits(HITS.float(), num_relevant=1), TypeError, "hits must be bool, or integers 0 and 1"),
    (
        lambda: trm.Ranking.from_hits(HITS, num_relevant=10**9, complete=True),
        ValueError,
        "complete=True keeps 3 x 1000000000 ranks, .* complete=False",
    ),
    (lambda: trm.Ranking.from_ranks(HITS, miss=2.5), TypeError, "miss must be a whole number, .* got 2.5"),
    (lambda: trm.Ranking.from_ranks(HITS, miss=True), TypeError, "miss must be a whole number, .* got True"),
    (lambda: trm.Ranking.from_hits(HITS[0], num_relevant=1), ValueError, r"hits must be \[rows, places\], got \[4\]"),
    (lambda: trm.Ranking.from_hits(HITS * 2, num_relevant=2), ValueError, "row 0 is .0, 2, 0, 2., hits are 0 or 1"),
    (lambda: trm.Ranking.from_hits(HITS, num_relevant=1), ValueError, "row 0 has more hits than its 1 relevant items"),
    (lambda: trm.Ranking.from_hits(HITS, num_relevant=-1), ValueError, "num_relevant must be at least 1, got -1"),
    (lambda: trm.Ranking.from_hits(HITS, num_relevant=torch.ones(3)), TypeError, "num_relevant must hold int64"),
    (lambda: trm.Ranking.from_ranks(HITS, zero_based=True, padding=0), ValueError, "contradict each other"),
    (lambda: trm.Ranking.from_ranks(HITS > 0, zero_based=True), TypeError, "bool"),
    (lambda: trm.Ranking.from_ranks(HITS.to(torch.uint8), zero_based=True), TypeError, "uint8"),
    (lambda: trm.Ranking.from_ranks(torch.tensor([[0, 3, 3]]), zero_based=True, depth=5), ValueError, "place twice"),
    (lambda: trm.Ranking.from_ranks(torch.tensor([[1, 4, 4, -1]]), miss=-1, depth=5), ValueError, "place twice"),
    (
        lambda: trm.Ranking.from_ranks(trm.get_topk_ranks(torch.rand(2, 3), torch.tensor([0, 1]), 2), miss=3),
        ValueError,
        "ranks of get_topk_ranks start at 1",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_bad_input(call, error, message):
    """The error message says which value was given and which ones are accepted."""
    with pytest.raises(error, match=message):
        call()


def test_most_rows_skipped_is_said_once(monkeypatch):
    """Flags passed as relevance skip rows without a hit, and one warning names the function to call instead."""
    monkeypatch.setattr(compute, "_warned", False)
    scores, flags = torch.rand(30, 5), torch.zeros(30, 5, dtype=torch.bool)
    flags[:10, 0] = True
    metric = trm.HR(3)
    metric.update(scores, flags)
    with pytest.warns(UserWarning, match=r"20 of 30 rows have no relevant item .* Ranking.from_hits\(hits, num_rel"):
        metric.compute()
    metric.update(scores, flags)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metric.compute()


@pytest.mark.fixed
def test_a_miss_beyond_the_dtype_is_no_rank():
    """`miss` is compared as a whole number, whatever the dtype of the ranks can hold."""
    ranks = torch.tensor([1, 2], dtype=torch.int16)
    assert trm.Ranking.from_ranks(ranks, miss=2**16 + 1).ranks.tolist() == [[1], [2]]
    misses = trm.Ranking.from_ranks(torch.tensor([[1, 9, 9]]), miss=9, depth=5)
    assert (misses.ranks.tolist(), misses.num_relevant.tolist()) == ([[1, torch.inf, torch.inf]], [3])
