"""`Ranks` and `Hits`: ranks of any type, from 0, that mean a miss; flags of hits; and refused arguments."""

import math

import pytest
import torch
from torch import tensor

import torchrecmetrics as trm
from torchrecmetrics.core.options import Needs, Options
from torchrecmetrics.inputs.scores import INVALID_RANK

INF = float("inf")
HITS = tensor([[0, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]])  # of three rows


def places(batch, **options):
    """Return the ranks of each row, and its number of relevant items."""
    ranking = batch.ranking(**options)
    return ranking.ranks.tolist(), ranking.num_relevant.tolist()


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.int32, torch.int8, torch.uint8])
def test_flags_are_ranks_and_a_row_without_a_hit_is_a_miss(dtype):
    assert places(trm.Hits(HITS.to(dtype), num_relevant=2)) == ([[2, 4], [INF, INF], [1, INF]], [2, 2, 2])


def test_a_hit_of_two_relevant_items_is_a_recall_of_one_half():
    flags = trm.Hits(HITS, num_relevant=2)

    assert trm.Recall(3)(flags) == (1 / 2 + 0 + 1 / 2) / 3


def test_the_number_of_relevant_items_may_differ_between_rows():
    flags = trm.Hits(HITS[:, :2], num_relevant=tensor([2, 0, 5]))

    assert places(flags) == ([[2, INF, INF], [INF] * 3, [1, INF, INF]], [2, 0, 5])


def test_the_ideal_of_a_complete_list_has_more_relevant_items_than_the_list_has_places():
    one_hit_of_four_items = trm.Hits(tensor([[0, 1]]), num_relevant=4, complete=True)
    dcg, ideal = 1 / math.log2(3), 1 + 1 / math.log2(3) + 1 / math.log2(4) + 1 / math.log2(5)

    assert trm.NDCG(9)(one_hit_of_four_items).item() == pytest.approx(dcg / ideal)


def test_memory_of_flags_does_not_grow_with_relevant_items():
    """A list of K places needs K + 1 ranks."""
    ranking = trm.Hits(HITS, num_relevant=10**9).ranking()

    assert (ranking.ranks.shape, ranking.num_relevant.tolist()) == ((3, 4 + 1), [10**9] * 3)


@pytest.mark.parametrize("metric", [trm.RPrecision(), trm.NDCG(), trm.MAP(), trm.NDCG(6)])
def test_flags_are_known_to_their_length_only(metric):
    with pytest.raises(ValueError, match="known to depth 4 only"):
        metric.update(trm.Hits(HITS, num_relevant=9))


@pytest.mark.parametrize("k", [3, 5])
def test_flags_of_misses_are_recommended_items_too(k):
    flags = trm.Hits(tensor([[True, False, False]]), num_relevant=1, complete=True)

    assert trm.Precision(k, denominator="recommended")(flags).item() == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("ranks", "options", "expected"),
    [
        ([[0, 3], [-1, 999], [2, -1]], {"zero_based": True, "depth": 99}, ([[1, 4], [INF, INF], [3, INF]], [2, 1, 1])),
        ([-1, 4], {"zero_based": True, "padding": -1, "depth": 9}, ([[INF], [5]], [0, 1])),
        ([[-1], [4]], {"zero_based": True, "padding": -1, "depth": 9}, ([[INF], [5]], [0, 1])),
        ([1, -1, 4], {"miss": -1, "depth": 4}, ([[1], [INF], [4]], [1, 1, 1])),
        ([1, -1, -5], {"miss": -1, "depth": 4}, ([[1], [INF], [INF]], [1, 1, 0])),  # -5 is no miss: padding
        ([1, 999, -1], {"miss": 999, "depth": 4}, ([[1], [INF], [INF]], [1, 1, 0])),
        ([0, 999, -1], {"miss": 999, "zero_based": True, "depth": 4}, ([[1], [INF], [INF]], [1, 1, 0])),
    ],
)
def test_ranks_may_start_at_0_and_one_number_may_be_a_miss(ranks, options, expected):
    """Where the caller says what a miss is, another negative rank is padding."""
    assert places(trm.Ranks(tensor(ranks), **options)) == expected


def test_the_number_of_a_miss_does_not_wrap_to_a_rank_of_a_smaller_dtype():
    ranks, wraps_to_1_in_int16 = tensor([1, 2], dtype=torch.int16), 2**16 + 1

    assert trm.Ranks(ranks, complete=True, miss=wraps_to_1_in_int16).ranking().ranks.tolist() == [[1], [2]]


NO_PLACES = "invalid ranks"
CUT_AT_2 = trm.get_topk_ranks(torch.rand(2, 3), tensor([0, 1]), 2)


@pytest.mark.parametrize(
    ("ranks", "options", "error", "message"),
    [
        (tensor([[0.5, 1.0]]), {}, ValueError, NO_PLACES),
        (tensor([[math.nan, 1.0]]), {}, ValueError, NO_PLACES),
        (tensor([[2.0, 5.0, 1.0, 1.0]]), {}, ValueError, NO_PLACES),
        (tensor([[INVALID_RANK, 1]]), {}, ValueError, "marked invalid"),
        (tensor([[True]]), {}, TypeError, "ranks must be an integer or float tensor"),
        (tensor([[[1]]]), {}, ValueError, r"ranks must be \[B\] or \[B, T\]"),
        (tensor([[1, 3], [3, 3]]), {}, ValueError, r"1 of 2 rows .* repeated.*: row 1 is \[3, 3\]"),
        (tensor([[11, 2, 11]]), {}, ValueError, r"repeated, such as the k \+ 1 of misses without depth=k"),
        (tensor([[1, 3, 1]]), {"depth": 3}, ValueError, "repeated"),
        (tensor([[0, 1, 0], [0, 0, 1]]), {"depth": 3}, ValueError, "^1 of 2 .* row 0 .*: pass flags .*padding=0"),
        (tensor([[1, 4, 4, -1]]), {"miss": -1, "depth": 5}, ValueError, "repeated"),
        (tensor([[0, 3, 3]]), {"zero_based": True, "depth": 5}, ValueError, "repeated"),
        (tensor([0, 2]), {}, ValueError, r"zero_based=True\).*padding=0\).*flags of hits, Hits"),
        (tensor([[5]]), {"num_ranked": 3}, ValueError, "beyond num_ranked"),
        (tensor([[5]]), {"num_ranked": tensor([3])}, ValueError, "beyond num_ranked"),
        (tensor([[5]]), {"num_ranked": tensor([9, 9])}, ValueError, r"num_ranked must be a number or \[1\]"),
        (tensor([[5]]), {"num_ranked": -3}, ValueError, "num_ranked must be at least 0, got -3"),
        (tensor([[1]]), {"num_ranked": True}, TypeError, "num_ranked must be an integer"),
        (tensor([[1]]), {"miss": 2.5}, TypeError, "miss must be a whole number, .* got 2.5"),
        (tensor([[1]]), {"padding": 1}, ValueError, "padding must be one of None, 0, -1, got 1"),
        (tensor([[1]]), {"zero_based": True, "padding": 0}, ValueError, "contradict each other"),
        (CUT_AT_2, {"zero_based": True, "complete": False}, ValueError, "start at 1"),
        (CUT_AT_2, {"depth": 3}, ValueError, "that were cut at 2"),
        (HITS.to(torch.uint8), {"zero_based": True}, TypeError, "uint8"),
    ],
)
def test_bad_ranks_are_refused(ranks, options, error, message):
    with pytest.raises(error, match=message):
        trm.Ranks(ranks, **{"complete": "depth" not in options} | options).ranking()


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
def test_ranks_of_0_and_1_are_taken_where_they_can_be_no_flags(ranks, options):
    assert len(trm.Ranks(tensor(ranks), depth=9, **options).ranking()) == len(ranks)


def test_flags_as_ranks_are_counted_where_they_cannot_raise():
    metric = trm.HR(5, validate_args="deferred")
    metric.update(trm.Ranks(tensor([[0, 1, 0], [1, 0, 0]]), depth=5))

    with pytest.raises(ValueError, match=r"1 row with invalid ranks .* flags of hits as Hits"):
        metric.compute()


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
def test_bad_flags_are_refused(flags, num_relevant, error, message):
    with pytest.raises(error, match=message):
        trm.Hits(flags, num_relevant=num_relevant).ranking()


@pytest.mark.parametrize(("depth", "known"), [(None, 4), (2, 2)])
def test_ranks_have_the_depth_of_their_tensor_or_a_smaller_one(depth, known):
    ranks = trm.get_topk_ranks(torch.rand(3, 9), tensor([1, 2, 3]), 4)

    assert trm.Ranks(ranks, depth=depth).ranking().depth == known


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("k", [1, 3, 40_000, 2**31 - 1, 2**31, 2**40, 2**53 - 1])
@pytest.mark.parametrize("depth", [None, 2**53 - 1])
def test_ranks_up_to_k_are_hits_in_any_integer_dtype(dtype, k, depth, device):
    """Also where the dtype cannot hold k. Ranks <= 0 are padding: two rows count, with ranks 2, and 3 and `largest`."""
    largest = torch.iinfo(dtype).max
    ranks = tensor([[0, 2, -1], [3, largest, 0], [0, 0, 0]], dtype=dtype, device=device)
    batch, hits = trm.Ranks(ranks, depth, complete=depth is None), (k >= 2) + (k >= 3) + (k >= largest)

    assert trm.Precision(k).to(device)(batch).item() == pytest.approx(hits / k / 2, rel=1e-12)
    assert trm.MRR(k).to(device)(batch).item() == pytest.approx(((k >= 2) / 2 + (k >= 3) / 3) / 2, rel=1e-12)


def test_complete_ranks_keep_misses_at_every_k():
    """Two of four rows have a hit, at ranks 1 and 15; `inf` and the number of `miss=` are in no list."""
    metrics = trm.RecMetricCollection(["HR"], k=[10, 20, 1000])
    metrics.update(trm.Ranks(tensor([1, 15, INF, 999]), complete=True, miss=999))

    assert metrics.result().floats() == {"HR@10": 1 / 4, "HR@20": 2 / 4, "HR@1000": 2 / 4}


@pytest.mark.parametrize("depth", [None, 1])
def test_ranks_that_were_cut_are_not_complete(depth):
    ranks_cut_at_2 = trm.get_topk_ranks(torch.rand(2, 3), tensor([0, 1]), 2)

    with pytest.raises(ValueError, match=r"no rank is unknown, but only the first [12] are: leave it out"):
        trm.Ranks(ranks_cut_at_2, complete=True, depth=depth)


SCORES, TARGET = torch.rand(40, 50, generator=torch.Generator().manual_seed(0)), torch.arange(40)[:, None]
CUT_AT_10 = trm.get_topk_ranks(SCORES, TARGET, 10)
LOSSES = {
    "cat": lambda ranks: torch.cat([ranks, ranks]),
    "mask": lambda ranks: ranks[ranks[:, 0] > 0],
    "clone": torch.clone,
    "squeeze": lambda ranks: ranks.squeeze(1),
    "numpy": lambda ranks: torch.from_numpy(ranks.numpy()),
    "other type": lambda ranks: ranks.int(),
    "loader": lambda ranks: next(iter(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(ranks), 40)))[0],
}


@pytest.mark.parametrize("loses", LOSSES.values(), ids=LOSSES)
def test_ranks_that_lost_their_depth_have_the_value_of_scores_where_it_is_given(loses):
    expected = trm.NDCG(10)(SCORES, TARGET).item()

    assert trm.NDCG(10)(loses(CUT_AT_10), depth=10).item() == pytest.approx(expected, rel=1e-12)


DEPTH_UNKNOWN = r"depth of these ranks is unknown.*: pass depth=10,.* Ranks\(ranks, complete=True\)"


@pytest.mark.parametrize("loses", LOSSES.values(), ids=LOSSES)
def test_ranks_that_lost_their_depth_are_refused(loses):
    with pytest.raises(ValueError, match=DEPTH_UNKNOWN):
        trm.Ranks(loses(CUT_AT_10))


@pytest.mark.parametrize(
    "metric",
    [trm.HR(20), trm.HR(5), trm.MRR(), trm.RPrecision(), trm.MeanRank(), trm.RecMetricCollection("HR", k=[5, 20])],
)
def test_every_metric_refuses_ranks_of_unknown_depth_at_any_k(metric):
    with pytest.raises(ValueError, match=DEPTH_UNKNOWN):
        metric.update(tensor([[1], [11]]))


@pytest.mark.parametrize("forms", [HITS, tensor([[7, 3, 9], [4, 8, 6]])], ids=["flags", "item ids"])
def test_flags_and_item_ids_as_ranks_are_told_their_inputs(forms):
    with pytest.raises(ValueError, match=r"Pass item ids as Lists\(item_ids, target\), flags of hits as Hits\("):
        trm.HR(3).update(forms)


@pytest.mark.parametrize(
    ("rank", "option"), [(0, "zero_based=True"), (0, "padding=0"), (-1, "miss=-1"), (-1, "padding=-1")]
)
def test_the_cure_for_a_single_0_or_minus_1_holds_the_depth(rank, option):
    """Without it, misses would be read as ranks."""
    with pytest.raises(ValueError, match=rf"Ranks\(ranks, depth=10, {option}\)"):
        trm.HR(5).update(tensor([rank, 2]), depth=10)


LARGE = tensor([[2, 0, -1, 2**50, 1, -(2**62), 128]])
BELOW_TWO = tensor([[2 - 1e-12, 1]], dtype=torch.float64)  # their sum is a little below 1 + 2
MIXED = tensor([[3, 0, 1, 9], [9, 0, 0, 2], [2**62, 2**63 - 1, -5, 4]])  # 9 ends a row and begins the next


@pytest.mark.parametrize(
    ("ranks", "depth", "k", "expected", "num_relevant"),
    [
        (tensor([[3, 1, 0], [11, 2, -5]]), 10, None, [[1, 3, INF], [2, INF, INF]], [2, 2]),
        (MIXED, 9, 3, [[1, 3, INF], [2, INF, INF], [INF] * 3], [3, 2, 3]),
        (MIXED, None, None, [[1, 3, 9, INF], [2, 9, INF, INF], [4, INF, INF, INF]], [3, 2, 3]),
        (LARGE, None, None, [[1, 2, 128, 2**50, INF, INF, INF]], [4]),
        (LARGE, None, 130, [[1, 2, 128, INF, INF, INF, INF]], [4]),
        (LARGE, None, 3, [[1, 2, INF]], [4]),
        (tensor([1.5, INF]), None, None, [[1.5], [INF]], [1, 1]),
        (tensor([[2.5, 2.5]]), None, None, [[2.5, 2.5]], [2]),  # the mean place of a tie
        (tensor([[11, 2, 11]]), 10, None, [[2, INF, INF]], [3]),  # misses of cut ranks share k + 1
        (BELOW_TWO, None, None, [[1, 2 - 1e-12]], [2]),
    ],
)
def test_ranks_are_sorted_and_cut_at_the_largest_k(ranks, depth, k, expected, num_relevant, device):
    """<= 0 is padding, and beyond the depth is a miss, which is relevant."""
    ranking = trm.Ranks(ranks.to(device), depth, complete=depth is None).rank(Needs(k), Options())

    assert (ranking.ranks.tolist(), ranking.num_relevant.tolist()) == (expected, num_relevant)
