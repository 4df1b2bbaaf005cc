"""Metrics of the rank: against exact fractions of PyKEEN's definitions, and rankings that they refuse."""

import statistics
from fractions import Fraction

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from sizes import examples

import torchrecmetrics as trm


@st.composite
def ranked_rows(draw):
    """Draw (rank, number of candidates) of some rows, with ranks in halves, as ties make them."""
    rows = []
    for _ in range(draw(st.integers(1, 8))):
        candidates = draw(st.integers(1, 12))
        rows.append((Fraction(draw(st.integers(2, 2 * candidates)), 2), candidates))
    return rows


def expectation(function, candidates):
    """Return the mean of a function of the rank over the ranks 1 to N."""
    return sum(Fraction(function(rank)) for rank in range(1, candidates + 1)) / candidates


def adjusted(rows, function, best):
    """Return (mean - expected mean) / (best - expected mean), or None where that is 0 / 0: Hoyt et al., 2022."""
    mean = sum(function(rank) for rank, _ in rows) / Fraction(len(rows))
    expected = sum(expectation(function, n) for _, n in rows) / Fraction(len(rows))
    return None if best == expected else (mean - expected) / (best - expected)


EXPECTED = {
    "MeanRank": lambda rows: sum(rank for rank, _ in rows) / Fraction(len(rows)),
    "MedianRank": lambda rows: statistics.median(rank for rank, _ in rows),
    "AMR": lambda rows: sum(rank for rank, _ in rows) / sum(expectation(lambda r: r, n) for _, n in rows),
    "AMRI": lambda rows: adjusted(rows, lambda rank: rank, 1),
    "AdjustedMRR": lambda rows: adjusted(rows, lambda rank: 1 / Fraction(rank), 1),
    "AdjustedHR@3": lambda rows: adjusted(rows, lambda rank: int(rank <= 3), 1),
}


@pytest.mark.fixed
@settings(max_examples=examples(150), deadline=None)
@given(rows=ranked_rows(), split=st.integers(0, 8))
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_equals_fractions(rows, split):
    """Values equal PyKEEN's definitions for any batches; adjusted metrics give rows with one candidate no weight."""
    metrics = trm.RecMetricCollection(list(EXPECTED))
    for part in (rows[:split], rows[split:]):
        if part:
            ranks = torch.tensor([float(rank) for rank, _ in part])
            metrics.update(trm.Ranks(ranks, num_ranked=torch.tensor([n for _, n in part])))
    found = metrics.compute()
    for name, function in EXPECTED.items():
        expected = function(rows)
        if expected is None:
            assert found[name].isnan(), name
        else:
            assert found[name].item() == pytest.approx(float(expected), abs=1e-12), name


@pytest.mark.fixed
def test_groups_weights_and_standard_errors():
    """A row of weight 2 counts twice, and groups have their own values; the median ignores weights and groups."""
    metrics = trm.RecMetricCollection(["AMR", "MeanRank", "MedianRank"], accumulators=[trm.ByGroup("head", "tail")])
    ranking = trm.Ranks(torch.tensor([1, 4, 2]), num_ranked=torch.tensor([3, 5, 9])).ranking()
    metrics.update(ranking, weights=torch.tensor([1.0, 2.0, 1.0]), groups=torch.tensor([0, 0, 1]))
    found = {key: value.item() for key, value in metrics.compute().items()}
    assert found == pytest.approx(
        {
            "AMR": (1 + 2 * 4 + 2) / (2 + 2 * 3 + 5),
            "AMR/head": (1 + 2 * 4) / (2 + 2 * 3),
            "AMR/tail": 2 / 5,
            "MeanRank": 11 / 4,
            "MeanRank/head": 9 / 3,
            "MeanRank/tail": 2,
            "MedianRank": 2,
        }
    )
    assert metrics["MedianRank"].standard_error().isnan()
    assert metrics["AMR"].standard_error() > 0
    assert [metrics[name].higher_is_better for name in ("AMR", "MeanRank", "MedianRank")] == [False] * 3


@pytest.mark.fixed
def test_a_median_beyond_max_rank_is_an_error():
    """A median among ranks beyond max_rank, which are counted together, is an error."""
    metric = trm.MedianRank(max_rank=3)
    metric.update(trm.Ranks(torch.tensor([1, 2, 900])))
    assert metric.compute() == 2
    metric.update(trm.Ranks(torch.tensor([4, 5])))
    with pytest.raises(ValueError, match=r"the median is beyond max_rank=3: .* MedianRank\(max_rank=...\)"):
        metric.compute()


@pytest.mark.fixed
def test_rows_without_a_relevant_item_have_no_rank():
    """Rows without a relevant item are left out and counted, because a value of 0 would be better than any rank."""
    metrics = trm.RecMetricCollection(["MeanRank", "MedianRank", "AdjustedHR@1"])
    metrics.update(torch.tensor([[0.1, 0.9, 0.5], [0.3, 0.2, 0.1]]), torch.tensor([2, -1]))
    assert [value.item() for value in metrics.compute().values()] == pytest.approx([-0.5, 2, 2])
    assert metrics["MeanRank"].num_skipped == 1
    with pytest.raises(ValueError, match="empty_target_action must be 'skip' or 'error', got 'neg'"):
        trm.MeanRank(empty_target_action="neg")


@pytest.mark.fixed
def test_an_unreachable_item_has_no_finite_rank():
    """A relevant item that is no candidate makes the mean rank infinite."""
    metric = trm.MeanRank()
    metric.update(trm.Negatives(torch.tensor([-torch.inf, 1.0]), torch.zeros(2, 3)))
    assert (metric.compute(), metric.num_unreachable) == (torch.inf, 1)


@pytest.mark.fixed
def test_lists_that_are_all_there_is():
    """Complete lists are enough for mean and median rank; adjusted metrics need the number of candidates, too."""
    found = trm.evaluate_lists(
        ["MeanRank", "MedianRank"], {"al": [1, 2]}, target={"user": ["al"], "item": [2]}, complete=True
    )
    assert [value.item() for value in found.values()] == [2, 2]
    with pytest.raises(ValueError, match="AMR"):
        trm.evaluate_lists("AMR", {"al": [1, 2]}, target={"user": ["al"], "item": [2]}, complete=True)


SCORES = torch.rand(3, 5, generator=torch.Generator().manual_seed(0))
PAIRS = torch.tensor([[0, 1]] * 3)


@pytest.mark.parametrize(
    ("metric", "ranking", "message"),
    [
        (
            trm.MeanRank,
            lambda: trm.Scores(SCORES, PAIRS).ranking(),
            "one relevant item per row",
        ),
        (trm.AdjustedMRR, lambda: trm.Ranks(torch.tensor([1, 2])).ranking(), "how many items were ranked"),
        (trm.AMR, lambda: trm.Ranks(torch.tensor([1, 2]), depth=5, num_ranked=9).ranking(), "the whole ranking"),
        (lambda: trm.AdjustedHitRate(3), lambda: trm.Ranks(torch.tensor([1])).ranking(), "how many items were"),
        (trm.MedianRank, lambda: trm.Scores(SCORES, PAIRS).ranking(), "one relevant item"),
    ],
)
def test_rankings_that_do_not_tell(metric, ranking, message):
    """A ranking that does not tell what a metric reads is refused before any update."""
    metric = metric()
    with pytest.raises(ValueError, match=message):
        metric.update(ranking())
    assert not metric.update_called


@pytest.mark.fixed
def test_gauc_has_three_weights():
    """AUROC weighs sessions equally, by positives or by candidates.
    The sessions have AUC 1, 0 and 1/2; 1, 1 and 2 positives; 2, 4 and 4 candidates.
    """
    ranks = torch.tensor([[1, -1], [4, -1], [1, 4]])
    ranking = trm.Ranks(ranks, num_ranked=torch.tensor([2, 4, 4])).ranking()
    metrics = trm.RecMetricCollection([trm.AUROC(), trm.AUROC(weight="relevant"), trm.AUROC(weight="candidates")])
    metrics.update(ranking)
    found = {key: value.item() for key, value in metrics.compute().items()}
    assert found == pytest.approx(
        {
            "AUROC": (1 + 0 + 0.5) / 3,
            "AUROC-relevant": (1 * 1 + 1 * 0 + 2 * 0.5) / 4,  # RecBole's GAUC
            "AUROC-candidates": (2 * 1 + 4 * 0 + 4 * 0.5) / 10,  # DIN's and FuxiCTR's gAUC
        }
    )


def test_weights_of_a_metric_of_ones_own(tmp_path):
    """`weights` of a user's own metric reads the ranking, or it and k, and is multiplied with update's weights."""

    class Weighted(trm.RankingMetric):
        formula = staticmethod(lambda ranking, k: ranking.any_hit(k).double())
        weights = staticmethod(lambda ranking, k: ranking.num_relevant * k)

    class Plain(Weighted):
        def weights(ranking):  # a function, as `formula` may be
            return ranking.num_relevant

    ranking = trm.Ranks(torch.tensor([[1, 5, 6], [4, -1, -1]])).ranking()
    for kind in (Weighted, Plain):
        metric = kind(2)
        metric.update(ranking, weights=torch.tensor([1.0, 2.0]))
        assert metric.compute() == pytest.approx(3 / (3 + 2))
    Weighted.weights = staticmethod(lambda ranking, k: torch.ones(9))
    with pytest.raises(TypeError, match="must return one weight per row"):
        Weighted(2).update(ranking)
