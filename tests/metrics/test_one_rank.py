"""Metrics of the rank: against exact fractions of PyKEEN's definitions, and rankings that they refuse."""

import math
import statistics
from fractions import Fraction

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from metric_classes import RANK, cutoffs_of
from rankings import padded
from sizes import examples
from values import numbers

import torchrecmetrics as trm

INF = math.inf


@st.composite
def ranked_rows(draw):
    """Draw the number of better candidates, of those with the score of the relevant item, and of worse ones, by row."""
    count = st.integers(0, 4)
    return [(draw(count), 1 + draw(count), draw(count)) for _ in range(draw(st.integers(1, 8)))]


def mean(values):
    """Return the exact mean of numbers."""
    values = [Fraction(value) for value in values]
    return sum(values) / len(values)


def chance(function, rows):
    """Return the mean over rows of the mean of a function of the rank in random order."""
    return mean(mean(map(function, range(1, candidates + 1))) for _, candidates in rows)


def adjusted(function, rows):
    """Return (mean - expected mean) / (1 - expected mean), or None where that is 0 / 0: Hoyt et al., 2022."""
    expected = chance(function, rows)
    value = mean(mean(map(function, ranks)) for ranks, _ in rows)
    return None if expected == 1 else (value - expected) / (1 - expected)


# each metric of rows, which are the equally likely ranks of the relevant item and the number of candidates
EXPECTED = {
    trm.MeanRank: lambda rows: mean(mean(ranks) for ranks, _ in rows),
    trm.MedianRank: lambda rows: statistics.median(mean(ranks) for ranks, _ in rows),
    trm.AMR: lambda rows: mean(mean(ranks) for ranks, _ in rows) / chance(lambda rank: rank, rows),
    trm.AMRI: lambda rows: adjusted(lambda rank: rank, rows),
    trm.AdjustedMRR: lambda rows: adjusted(lambda rank: 1 / Fraction(rank), rows),
    trm.AdjustedHitRate: lambda rows: adjusted(lambda rank: int(rank <= 3), rows),
}


def near(value):
    return pytest.approx(value, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("cls", RANK)
@settings(max_examples=examples(100), deadline=None)
@given(rows=ranked_rows(), split=st.integers(0, 8))
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_values_of_random_scores_are_pykeens_definitions_in_exact_fractions(cls, rows, split):
    """Adjusted metrics give rows with one candidate no weight."""
    ranks = [(range(better + 1, better + equal + 1), better + equal + worse) for better, equal, worse in rows]
    scores = [[0.5] * equal + [1.0] * better + [0.0] * worse for better, equal, worse in rows]  # item 0 is relevant
    metric = cls(*cutoffs_of(cls.formula, 3)[0])
    for part in (scores[:split], scores[split:]):
        metric.update(padded(part, -INF, torch.float32), torch.zeros(len(part), dtype=torch.int64))
    expected = EXPECTED[cls](ranks)

    assert metric.compute().item() == near(math.nan if expected is None else float(expected))


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (trm.MeanRank(), (1.5 + 4) / 2),
        (trm.MedianRank(), (1.5 + 4) / 2),
        (trm.AMR(), (1.5 + 4) / (2 + 3)),
        (trm.AMRI(), ((1.5 - 2) + (4 - 3)) / ((1 - 2) + (1 - 3))),
        (trm.AdjustedMRR(), ((1 / 1.5 - 11 / 18) + (1 / 4 - 137 / 300)) / ((1 - 11 / 18) + (1 - 137 / 300))),
        (trm.AdjustedHitRate(3), ((1 - 1) + (0 - 3 / 5)) / ((1 - 1) + (1 - 3 / 5))),
    ],
    ids=lambda part: getattr(part, "label", ""),
)
def test_mean_ranks_1_5_of_3_and_4_of_5_have_the_value_worked_out_by_hand(metric, expected):
    metric.update(trm.Ranks(torch.tensor([1.5, 4.0]), complete=True, num_ranked=torch.tensor([3, 5])))
    assert metric.compute().item() == near(expected)


def test_every_metric_of_the_rank_is_compared_with_fractions():
    assert EXPECTED.keys() == {*RANK}, "add it to EXPECTED, as exact fractions of the ranks"


def test_weights_and_groups_count_but_in_the_median():
    metrics = trm.RecMetricCollection(["AMR", "MeanRank", "MedianRank"], accumulators=[trm.ByGroup("head", "tail")])
    ranks = trm.Ranks(torch.tensor([1, 4, 2]), complete=True, num_ranked=torch.tensor([3, 5, 9]))  # mean ranks 2, 3, 5
    metrics.update(ranks, weights=torch.tensor([1.0, 2.0, 1.0]), groups=torch.tensor([0, 0, 1]))

    assert numbers(metrics.compute()) == {
        "AMR": near((1 + 2 * 4 + 2) / (2 + 2 * 3 + 5)),
        "AMR/head": near((1 + 2 * 4) / (2 + 2 * 3)),
        "AMR/tail": near(2 / 5),
        "MeanRank": near((1 + 2 * 4 + 2) / 4),
        "MeanRank/head": near((1 + 2 * 4) / 3),
        "MeanRank/tail": 2,
        "MedianRank": 2,
    }


def test_a_median_has_no_standard_error():
    metric = trm.MedianRank()
    metric.update(trm.Ranks(torch.tensor([1, 4, 2]), complete=True))

    assert metric.standard_error().isnan()


def test_a_lower_rank_is_better():
    assert [cls.higher_is_better for cls in (trm.AMR, trm.MeanRank, trm.MedianRank)] == [False] * 3


def test_rows_without_a_relevant_item_are_left_out():
    metrics = trm.RecMetricCollection(["AdjustedHR@1", "MeanRank", "MedianRank"])
    metrics.update(torch.tensor([[0.1, 0.9, 0.5], [0.3, 0.2, 0.1]]), torch.tensor([2, -1]))

    assert [value.item() for value in metrics.compute().values()] == [near((0 - 1 / 3) / (1 - 1 / 3)), 2, 2]
    assert metrics["MeanRank"].num_skipped == 1


def test_rows_without_a_relevant_item_cannot_count_as_0():
    """0 would be better than any rank."""
    with pytest.raises(ValueError, match="empty_target_action must be one of 'skip', 'error', got 'neg'"):
        trm.MeanRank(empty_target_action="neg")


def test_complete_lists_are_enough_for_mean_and_median_rank():
    result = trm.evaluate_lists(["MeanRank", "MedianRank"], {"al": [1, 2]}, target={"al": [2]}, complete=True)
    assert numbers(result) == {"MeanRank": 2, "MedianRank": 2}


@pytest.mark.parametrize("max_rank", [2**28 + 1, 2**50])
def test_a_highest_rank_whose_counts_cannot_be_kept_is_refused(max_rank):
    with pytest.raises(ValueError, match=r"max_rank must be at most 2\^28"):
        trm.MedianRank(max_rank=max_rank)


PAIRS = trm.Scores(torch.rand(3, 5), torch.tensor([[0, 1]] * 3))


@pytest.mark.parametrize(
    ("metric", "batch", "message"),
    [
        (trm.MeanRank(), PAIRS, "one relevant item per row"),
        (trm.MedianRank(), PAIRS, "one relevant item per row"),
        (trm.AdjustedMRR(), trm.Ranks(torch.tensor([1, 2]), complete=True), "how many items were ranked"),
        (trm.AdjustedHitRate(3), trm.Ranks(torch.tensor([1]), complete=True), "how many items were ranked"),
        (trm.AMR(), trm.Ranks(torch.tensor([1, 2]), depth=5, num_ranked=9), "the whole ranking"),
        (trm.AMR(), trm.Lists(torch.tensor([[1, 2]]), torch.tensor([2]), complete=True), "how many items were ranked"),
    ],
)
def test_a_ranking_that_does_not_tell_what_a_metric_reads_is_refused(metric, batch, message):
    with pytest.raises(ValueError, match=message):
        metric.update(batch.ranking())
    assert not metric.update_called


def test_auroc_weighs_sessions_equally_by_positives_or_by_candidates():
    ranks = torch.tensor([[1, -1], [4, -1], [1, 4]])  # among 2, 4 and 4 candidates: AUC 1, 0 and 1/2
    metrics = trm.RecMetricCollection([trm.AUROC(), trm.AUROC(weight="relevant"), trm.AUROC(weight="candidates")])
    metrics.update(trm.Ranks(ranks, complete=True, num_ranked=torch.tensor([2, 4, 4])))

    assert numbers(metrics.compute()) == {
        "AUROC": near((1 + 0 + 0.5) / 3),
        "AUROC-relevant": near((1 * 1 + 1 * 0 + 2 * 0.5) / 4),  # RecBole's GAUC
        "AUROC-candidates": near((2 * 1 + 4 * 0 + 4 * 0.5) / 10),  # DIN's and FuxiCTR's gAUC
    }


def weighted_by(function):
    """Return the class of a hit rate whose rows have these weights."""
    hits = staticmethod(lambda ranking, k: ranking.any_hit(k).double())
    return type("Weighted", (trm.RankingMetric,), {"formula": hits, "weights": staticmethod(function)})


@pytest.mark.parametrize("weights", [lambda ranking: ranking.num_relevant, lambda ranking, k: ranking.num_relevant * k])
def test_weights_of_a_metric_of_ones_own_are_multiplied_with_those_of_update(weights):
    metric = weighted_by(weights)(2)
    metric.update(trm.Ranks(torch.tensor([[1, 5, 6], [4, -1, -1]]), complete=True), weights=torch.tensor([1.0, 2.0]))

    assert metric.compute() == near((3 * 1 * 1 + 1 * 2 * 0) / (3 * 1 + 1 * 2))


def test_weights_of_ones_own_that_are_not_one_per_row_are_refused():
    with pytest.raises(TypeError, match="must return one weight per row"):
        weighted_by(lambda ranking, k: torch.ones(9))(2).update(trm.Ranks(torch.tensor([1, 4]), complete=True))


GAPS = torch.tensor([[0.1, 0.9, 0.5], [0.5, -INF, 0.2], [0.3, 0.2, 0.1], [-INF, -INF, -INF]])
TARGET = torch.tensor([2, 1, 1, 0])  # ranks 2, none, 2, none among no candidates


@pytest.mark.parametrize(
    ("name", "value", "num_users"),
    [
        ("MeanRank", INF, 4),
        ("MedianRank", INF, 4),
        ("AMR", INF, 3),  # of no candidates there is no random order
        ("AMRI", -INF, 3),
        ("AdjustedMRR", ((1 / 2 - 11 / 18) * 2 + (0 - 3 / 4)) / ((1 - 11 / 18) * 2 + (1 - 3 / 4)), 3),
        ("AdjustedHR@1", ((0 - 1 / 3) * 2 + (0 - 1 / 2)) / (2 / 3 * 2 + 1 / 2), 3),
    ],
)
def test_an_unreachable_item_has_rank_inf_and_a_row_without_candidates_no_value(name, value, num_users):
    metrics = trm.RecMetricCollection([name])
    for rows in (slice(0, 3), slice(3, 4)):
        metrics.update(GAPS[rows], TARGET[rows])

    assert metrics.compute()[name].item() == pytest.approx(value)
    assert metrics[name].num_users == num_users


@pytest.mark.parametrize(("name", "value"), [("MeanRank", 2), ("AMR", 2 / 2)])
def test_infinite_ranks_are_kept_in_totals_groups_windows_and_rows(name, value):
    accumulators = [trm.ByGroup("far", "near"), trm.Window(100), trm.KeptRows()]
    metrics = trm.RecMetricCollection([name], accumulators=accumulators)
    metrics.update(GAPS[:3], TARGET[:3], groups=torch.tensor([1, 0, 1]))

    assert numbers(metrics.compute()) == {name: INF, f"{name}/far": INF, f"{name}/near": value, f"{name}/window": INF}
    assert metrics.rows.values[name].tolist() == [value, INF, value]


def test_a_mean_of_infinite_ranks_has_no_standard_error_and_counts_them():
    metric = trm.MeanRank()
    metric.update(GAPS[:3], TARGET[:3])

    assert metric.standard_error().isnan()
    assert metric.num_unreachable == 1


def test_bounds_hold_the_value_of_a_row_whose_item_is_no_candidate():
    bounds = {"MeanRank": (1, INF), "AMR": (0, INF), "AMRI": (-INF, 1), "AdjustedMRR": (-INF, 1)}
    assert {name: getattr(trm, name).bounds for name in bounds} == bounds


@pytest.mark.parametrize(("reachable", "median"), [(3, 2.0), (2, INF), (0, INF)])
def test_a_median_is_inf_if_half_of_the_items_or_more_are_no_candidates(reachable, median):
    metric = trm.MedianRank(max_rank=3)
    scores = torch.tensor([[0.1, 0.9, 0.5]] * reachable + [[0.1, 0.9, -INF]] * 2)
    metric.update(scores, torch.full((len(scores),), 2))

    assert metric.compute() == median
    assert metric.num_users == reachable + 2


def test_a_median_beyond_max_rank_is_an_error():
    metric = trm.MedianRank(max_rank=3)
    metric.update(trm.Ranks(torch.tensor([1.0, 4, 900]), complete=True))  # those beyond are counted together

    with pytest.raises(ValueError, match=r"the median is beyond max_rank=3: give .* MedianRank\(max_rank=...\)"):
        metric.compute()


def test_infinite_ranks_of_weight_0_count_in_no_mean_and_no_median():
    metrics = trm.RecMetricCollection(["MeanRank", "MedianRank"], accumulators=[trm.ByGroup("a")])
    metrics.update(GAPS, TARGET, weights=torch.tensor([1.0, 0.0, 2.0, 0.0]), groups=torch.zeros(4).long())

    assert numbers(metrics.compute()) == {"MeanRank": 2, "MeanRank/a": 2, "MedianRank": 2}
    assert [metrics[name].num_users for name in ("MeanRank", "MedianRank")] == [2, 2]
