"""`Ranks` and `Hits`: ranks of any type, from 0, that mean a miss; flags; and the warning about skipped rows."""

import math

import pytest
import torch

import torchrecmetrics as trm
from torchrecmetrics.core.options import Needs, Options
from torchrecmetrics.inputs.scores import INVALID_RANK

INF = float("inf")
HITS = torch.tensor([[0, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]])


def test_flags_are_ranks():
    """A row of flags without a hit is a miss, and relevant items beyond the list count in R."""
    ranking = trm.Hits(HITS, num_relevant=2).ranking()
    assert ranking.ranks.tolist() == [[2, 4], [INF, INF], [1, INF]]
    metrics = trm.RecMetricCollection(["Recall", "HR", "NDCG", "MAP"], k=[1, 4])
    metrics.update(ranking)
    same = trm.RecMetricCollection(["Recall", "HR", "NDCG", "MAP"], k=[1, 4])
    same.update(trm.Lists(torch.arange(4).expand(3, -1), torch.tensor([[1, 3], [8, 9], [0, 9]])))
    assert metrics.compute() == same.compute()
    for flags in (HITS.bool(), HITS.int(), HITS.to(torch.int8), HITS.to(torch.uint8)):
        assert trm.Hits(flags, num_relevant=torch.tensor([2, 0, 5])).ranking().ranks.shape == (3, 5)


def test_lists_that_are_all_there_is():
    """With `complete=True` an item that is not listed is a miss at every k, and the ideal has all relevant items."""
    metric = trm.NDCG(6)
    metric.update(trm.Hits(HITS[:1], num_relevant=5, complete=True))
    ideal = sum(1 / math.log2(1 + rank) for rank in range(1, 6))
    assert metric.compute().item() == pytest.approx((1 / math.log2(3) + 1 / math.log2(5)) / ideal, abs=1e-7)


def test_memory_does_not_grow_with_relevant_items():
    """A list of K places needs K + 1 ranks, however many relevant items there are."""
    ranking = trm.Hits(HITS, num_relevant=10**9).ranking()
    assert (ranking.ranks.shape, ranking.num_relevant.tolist()) == ((3, 5), [10**9] * 3)
    metrics, same = (trm.RecMetricCollection(["Recall", "NDCG", "MAP", "F1"], k=[1, 4]) for _ in range(2))
    metrics.update(trm.Hits(HITS, num_relevant=50))
    ranks = torch.full((3, 50), INF)
    ranks[0, :2], ranks[2, 0] = torch.tensor([2.0, 4.0]), 1
    same.update(trm.Ranks(ranks, depth=4))
    assert metrics.compute() == same.compute()
    for metric in (trm.RPrecision(), trm.NDCG(), trm.MAP(), trm.NDCG(6)):
        with pytest.raises(ValueError, match="known to depth 4 only"):
            metric.update(ranking)


def test_ranks_from_zero_and_misses():
    """`zero_based=True` shifts ranks by one; the rank passed as `miss` is a miss, another negative one padding."""
    given = torch.tensor([[0, 3], [-1, 999], [2, -1]])
    ranking = trm.Ranks(given, zero_based=True, depth=99).ranking()
    assert (ranking.ranks.tolist(), ranking.num_relevant.tolist()) == ([[1, 4], [INF, INF], [3, INF]], [2, 1, 1])
    for shape in ((2,), (2, 1)):
        ranking = trm.Ranks(torch.tensor([-1, 4]).view(shape), depth=9, zero_based=True, padding=-1).ranking()
        assert (ranking.ranks.tolist(), ranking.num_relevant.tolist()) == ([[INF], [5]], [0, 1])
    ranking = trm.Ranks(torch.tensor([1, -1, 4]), miss=-1, depth=4).ranking()
    assert (ranking.ranks.tolist(), ranking.num_relevant.tolist()) == ([[1], [INF], [4]], [1, 1, 1])
    ranks = torch.tensor([1, 2], dtype=torch.int16)
    assert trm.Ranks(ranks, complete=True, miss=2**16 + 1).ranking().ranks.tolist() == [[1], [2]]


NO_PLACES = "invalid ranks"
BAD = [
    ([[0.5, 1.0]], {}, ValueError, NO_PLACES),
    ([[math.nan, 1.0]], {}, ValueError, NO_PLACES),
    ([[2.0, 5.0, 1.0, 1.0]], {}, ValueError, NO_PLACES),
    ([[INVALID_RANK, 1]], {}, ValueError, "marked invalid"),
    ([[True]], {}, TypeError, "ranks must be an integer or float tensor"),
    ([[[1]]], {}, ValueError, r"ranks must be \[B\] or \[B, T\]"),
    ([[1, 3], [3, 3]], {}, ValueError, r"1 of 2 rows .* repeated.*: row 1 is \[3, 3\]"),
    (
        [[0, 0, 1], [0, 1, 0]],
        {"depth": 3},
        ValueError,
        r"^1 of 2 rows .* row 1 is \[0, 1, 0\]: pass flags .* as Hits\(flags, num_relevant=\).*padding=0\)",
    ),
    ([[1, 4, 4, -1]], {"miss": -1, "depth": 5}, ValueError, "repeated"),
    ([[0, 3, 3]], {"zero_based": True, "depth": 5}, ValueError, "repeated"),
    ([0, 2], {}, ValueError, r"zero_based=True\).*padding=0\).*flags of hits, Hits"),
    ([[5]], {"num_ranked": 3}, ValueError, "beyond num_ranked"),
    ([[5]], {"num_ranked": torch.tensor([3])}, ValueError, "beyond num_ranked"),
    ([[5]], {"num_ranked": torch.tensor([9, 9])}, ValueError, r"num_ranked must be a number or \[1\]"),
    ([[5]], {"num_ranked": -3}, ValueError, "num_ranked must be at least 0, got -3"),
    ([[1]], {"num_ranked": True}, TypeError, "num_ranked must be an integer"),
    ([[1]], {"miss": 2.5}, TypeError, "miss must be a whole number, .* got 2.5"),
    ([[1]], {"padding": 1}, ValueError, "padding must be one of None, 0, -1, got 1"),
    ([[1]], {"zero_based": True, "padding": 0}, ValueError, "contradict each other"),
    (trm.get_topk_ranks(torch.rand(2, 3), torch.tensor([0, 1]), 2), {"zero_based": True}, ValueError, "start at 1"),
    (trm.get_topk_ranks(torch.rand(2, 3), torch.tensor([0, 1]), 4), {"depth": 5}, ValueError, "that were cut at 4"),
    (HITS.to(torch.uint8), {"zero_based": True}, TypeError, "uint8"),
]


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        ([[0, 1], [0, 1]], {}),  # padded on the left
        ([[0, 0, 1], [1, 0, 0]], {}),  # each row on one side
        ([[1, 0], [0, 0]], {}),
        ([[0, 1, 0], [2, 0, 1]], {}),
        ([[0, 1, 0]], {"padding": 0}),
        ([[1, 0], [0, 1]], {"zero_based": True}),
        ([[0, 1, 0]], {"miss": 0}),
    ],
)
def test_ranks_that_are_no_flags(ranks, options):
    """Ranks of 0 and 1 may be padded on one side, or on both if the caller says what 0 means."""
    assert len(trm.Ranks(torch.tensor(ranks), depth=9, **options).ranking()) == len(ranks)


def test_deferred_flags():
    """Where reading waits, flags of hits raise in `compute`."""
    metric = trm.HR(5, validate_args="deferred")
    metric.update(trm.Ranks(torch.tensor([[0, 1, 0], [1, 0, 0]]), depth=5))
    with pytest.raises(ValueError, match=r"1 row with invalid ranks .* flags of hits as Hits"):
        metric.compute()


@pytest.mark.parametrize(("ranks", "options", "error", "message"), BAD)
def test_bad_ranks(ranks, options, error, message):
    """The error message says which value was given and which ones are accepted."""
    ranks = ranks if isinstance(ranks, torch.Tensor) else torch.tensor(ranks)
    complete = "depth" not in options and not hasattr(ranks, "depth")
    with pytest.raises(error, match=message):
        trm.Ranks(ranks, complete=complete, **options).ranking()


@pytest.mark.parametrize(
    ("flags", "num_relevant", "error", "message"),
    [
        (HITS.float(), 1, TypeError, "flags must be bool, or integers 0 and 1"),
        (HITS[0], 1, ValueError, r"flags must be \[rows, ranks\], got \[4\]"),
        (HITS * 2, 2, ValueError, "row 0 is .0, 2, 0, 2., hits are 0 or 1"),
        (HITS, 1, ValueError, "row 0 has 2 of 1"),
        (HITS, -1, ValueError, "num_relevant must be at least 0, got -1"),
        (HITS, torch.ones(3), TypeError, "num_relevant must hold int64"),
    ],
)
def test_bad_hits(flags, num_relevant, error, message):
    with pytest.raises(error, match=message):
        trm.Hits(flags, num_relevant=num_relevant).ranking()


def test_ranks_know_their_depth(device):
    """`Ranks` takes the depth that the tensor carries, or a smaller one."""
    ranks = trm.get_topk_ranks(torch.rand(3, 9, device=device), torch.tensor([1, 2, 3], device=device), 4)
    assert (trm.Ranks(ranks).ranking().depth, trm.Ranks(ranks, depth=2).ranking().depth) == (4, 2)
    assert trm.Ranks(ranks, num_ranked=9).ranking().num_ranked.tolist() == [9, 9, 9]


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("k", "depth"),
    [
        (k, depth)
        for k in (1, 3, 40_000, 2**31 - 1, 2**31, 2**40, 2**53 - 1)
        for depth in (None, 2**40, 2**53 - 1)
        if depth is None or depth >= k
    ],
)
def test_ranks_of_any_integer_type(dtype, k, depth, device):
    """Ranks <= 0 are padding and ranks up to k are hits in any integer dtype, also where the dtype cannot hold k."""
    largest = torch.iinfo(dtype).max
    ranks = torch.tensor([[0, 2, -1], [3, largest, 0], [0, 0, 0]], dtype=dtype, device=device)
    found = [k >= 2, k >= 3], [1 / 2 if k > 1 else 0.0, 1 / 3 if k > 2 else 0.0], [k >= 2, (k >= 3) + (largest <= k)]
    for metric, expected in zip((trm.HR(k), trm.MRR(k), trm.Precision(k)), found, strict=True):
        metric.to(device).update(trm.Ranks(ranks, depth, depth is None))
        expected = sum(expected) / 2 / (k if isinstance(metric, trm.Precision) else 1)
        assert metric.compute().item() == pytest.approx(expected, rel=1e-12)
        assert (metric.num_users, metric.num_skipped) == (2, 1)
    if depth is None:
        assert trm.Ranks(ranks, complete=True).ranking().num_relevant.tolist() == [1, 2, 0]


def test_a_place_twice_is_a_miss_of_cut_ranks():
    """Two relevant items cannot share a rank: two 11s are the "not in the top 10" of ranks that need `depth=10`."""
    joined = torch.tensor([[11, 2, 11], [1, 2, 3]])
    with pytest.raises(ValueError, match=r"1 of 2 rows .* repeated, such as the k \+ 1 of misses without depth=k"):
        trm.Ranks(joined, complete=True).ranking()
    metric = trm.HR(10)
    metric.update(joined, depth=10)
    assert metric.compute() == 1
    with pytest.raises(ValueError, match="repeated"):
        trm.HR(1).update(torch.tensor([[1, 3, 1]]), depth=3)
    assert trm.Ranks(torch.tensor([[2.5, 2.5]]), complete=True).ranking().ranks.tolist() == [
        [2.5, 2.5]
    ]  # the mean place of a tie
    assert trm.Ranks(torch.tensor([[3, 3]]), depth=2).ranking().ranks.tolist() == [[INF, INF]]


def test_complete_ranks_keep_misses_at_every_k():
    """Two of four rows have a hit, at ranks 1 and 15; `inf` and the number of `miss=` are in no list."""
    ranks = torch.tensor([1, 15, torch.inf, 999])
    metrics = trm.RecMetricCollection(["HR"], k=[10, 20, 1000])
    metrics.update(trm.Ranks(ranks, complete=True, miss=999))

    assert metrics.result().floats() == {"HR@10": 1 / 4, "HR@20": 2 / 4, "HR@1000": 2 / 4}


def test_cut_ranks_are_not_complete():
    """The depth of ranks that were cut contradicts `complete=True`, as given and as their own."""
    ranks = trm.get_topk_ranks(torch.rand(3, 9), torch.tensor([1, 2, 3]), 4)
    for options in ({}, {"depth": 2}):
        with pytest.raises(ValueError, match=r"no rank is unknown, but only the first [24] are: leave it out"):
            trm.Ranks(ranks, complete=True, **options)


CUT_AT, NUM_ITEMS = 10, 500
LOSSES = {
    "cat": lambda ranks: torch.cat([ranks, ranks]),
    "mask": lambda ranks: ranks[ranks[:, 0] > 0],
    "clone": torch.clone,
    "squeeze": lambda ranks: ranks.squeeze(1),
    "numpy": lambda ranks: torch.from_numpy(ranks.numpy()),
    "other type": lambda ranks: ranks.int(),
    "loader": lambda ranks: next(iter(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(ranks), 400)))[0],
}


@pytest.mark.parametrize("loses", LOSSES.values(), ids=LOSSES)
def test_ranks_that_lost_their_depth(loses):
    """They are refused at any k by every metric, as `depth=` and with the value of the scores where it is given."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(400, NUM_ITEMS, generator=generator)
    target = torch.randint(NUM_ITEMS, (400, 1), generator=generator)
    ranks = trm.get_topk_ranks(scores, target, CUT_AT)
    lost = loses(ranks)
    collection = trm.RecMetricCollection(["HR", "NDCG"], k=[5, 20])
    for metric in (trm.HR(20), trm.HR(5), trm.MRR(), trm.RPrecision(), trm.MeanRank(), collection):
        for call in (metric.update, metric):
            with pytest.raises(
                ValueError, match=r"depth of these ranks is unknown.*: pass depth=10,.* Ranks\(ranks, complete=True\)"
            ):
                call(lost)
    with pytest.raises(ValueError, match="depth of these ranks is unknown"):
        trm.Ranks(lost)
    with pytest.raises(ValueError, match="known to depth 10 only"):
        trm.HR(20).update(lost, depth=CUT_AT)
    expected, fresh, cured, uncut = trm.NDCG(CUT_AT), trm.NDCG(CUT_AT), trm.NDCG(CUT_AT), trm.NDCG(CUT_AT)
    expected.update(scores, target)
    fresh.update(ranks)
    cured.update(lost, depth=CUT_AT)
    uncut.update(trm.Ranks(loses(trm.get_topk_ranks(scores, target, NUM_ITEMS)), complete=True))
    for metric in (fresh, cured, uncut):
        assert metric.compute().item() == pytest.approx(expected.compute().item(), rel=1e-12)


@pytest.mark.parametrize(
    ("forms", "cure", "expected"),
    [
        (HITS, lambda forms: trm.Hits(forms, num_relevant=2), 2 / 3),
        (torch.tensor([[7, 3, 9], [4, 8, 6]]), lambda forms: trm.Lists(forms, torch.tensor([9, 5])), 1 / 2),
    ],
)
def test_flags_and_item_ids_as_ranks(forms, cure, expected):
    """Flags of hits and item ids in place of ranks meet the same error, whose further cures work."""
    metric = trm.HR(3)
    with pytest.raises(ValueError, match=r"Pass item ids as Lists\(item_ids, target\), flags of hits as Hits\("):
        metric.update(forms)
    metric.update(cure(forms))
    assert metric.compute().item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("rank", "option"), [(0, "zero_based=True"), (0, "padding=0"), (-1, "miss=-1"), (-1, "padding=-1")]
)
def test_cures_keep_the_depth(rank, option):
    """The cure for a single 0 or -1 holds the depth that was given, without which misses would be read as ranks."""
    with pytest.raises(ValueError, match=rf"Ranks\(ranks, depth=10, {option}\)"):
        trm.HR(5).update(torch.tensor([rank, 2]), depth=10)


LARGE = torch.tensor([[2, 0, -1, 2**50, 1, -(2**62), 128]])
BELOW_TWO = torch.tensor([[2 - 1e-12, 1]], dtype=torch.float64)  # their sum is a little below 1 + 2
MIXED = torch.tensor([[3, 0, 1, 9], [9, 0, 0, 2], [2**62, 2**63 - 1, -5, 4]])  # 9 ends a row and begins the next


@pytest.mark.parametrize(
    ("ranks", "options", "k", "expected", "num_relevant"),
    [
        (torch.tensor([[3, 1, 0], [11, 2, -5]]), {"depth": 10}, None, [[1, 3, INF], [2, INF, INF]], [2, 2]),
        (MIXED, {"depth": 9}, 3, [[1, 3, INF], [2, INF, INF], [INF] * 3], [3, 2, 3]),
        (MIXED, {}, None, [[1, 3, 9, INF], [2, 9, INF, INF], [4, INF, INF, INF]], [3, 2, 3]),
        (LARGE, {}, None, [[1, 2, 128, 2**50, INF, INF, INF]], [4]),
        (LARGE, {}, 130, [[1, 2, 128, INF, INF, INF, INF]], [4]),
        (LARGE, {}, 3, [[1, 2, INF]], [4]),
        (torch.tensor([1.5, INF]), {}, None, [[1.5], [INF]], [1, 1]),
        (BELOW_TWO, {}, None, [[1, 2 - 1e-12]], [2]),
    ],
)
def test_ranks(ranks, options, k, expected, num_relevant, device):
    """Ranks are sorted and cut at the largest k; <= 0 is padding, and beyond the depth is a miss, which is relevant."""
    given = trm.Ranks(ranks.to(device), complete="depth" not in options, **options)
    ranking = given.rank(Needs(k), Options())
    assert (ranking.ranks.tolist(), ranking.num_relevant.tolist()) == (expected, num_relevant)


@pytest.mark.parametrize("k", [3, 5])
def test_flags_are_recommended_items_hits_or_not(k):
    flags = trm.Hits(torch.tensor([[True, False, False]]), num_relevant=1, complete=True)

    assert trm.Precision(k, denominator="recommended")(flags).item() == pytest.approx(1 / 3)
