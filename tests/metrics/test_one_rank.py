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


# each metric of rows: the equally likely ranks of the relevant item, and the number of candidates
EXPECTED = {
    trm.MeanRank: lambda rows: mean(mean(ranks) for ranks, _ in rows),
    trm.MedianRank: lambda rows: statistics.median(mean(ranks) for ranks, _ in rows),
    trm.AMR: lambda rows: mean(mean(ranks) for ranks, _ in rows) / chance(lambda rank: rank, rows),
    trm.AMRI: lambda rows: adjusted(lambda rank: rank, rows),
    trm.AdjustedMRR: lambda rows: adjusted(lambda rank: 1 / Fraction(rank), rows),
    trm.AdjustedHitRate: lambda rows: adjusted(lambda rank: int(rank <= 3), rows),
}


@pytest.mark.parametrize("cls", RANK)
@pytest.mark.parametrize("ties", ["expected", "realistic"])
@settings(max_examples=examples(50), deadline=None)
@given(rows=ranked_rows(), split=st.integers(0, 8))
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_equals_fractions(cls, ties, rows, split):
    """Values equal PyKEEN's definitions for any batches; adjusted metrics give rows with one candidate no weight."""
    assert cls in EXPECTED, f"add {cls.__name__} to EXPECTED, as exact fractions of the ranks"
    metric, known = cls(*cutoffs_of(cls.formula, 3)[0]), []
    for better, equal, worse in rows:
        ranks = [better + place for place in range(1, equal + 1)]
        known.append((ranks if ties == "expected" else [mean(ranks)], better + equal + worse))
    for part in (slice(split), slice(split, None)):
        if not rows[part]:
            continue
        if ties == "realistic":
            ranks = torch.tensor([float(rank) for (rank,), _ in known[part]])
            metric.update(trm.Ranks(ranks, complete=True, num_ranked=torch.tensor([n for _, n in known[part]])))
        else:
            scores = [[0.5] * equal + [1.0] * better + [0.0] * worse for better, equal, worse in rows[part]]
            metric.update(padded(scores, -INF, torch.float32), torch.zeros(len(scores), dtype=torch.int64))
    expected = EXPECTED[cls](known)
    expected = math.nan if expected is None else float(expected)
    assert metric.compute().item() == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_a_row_of_weight_2_counts_twice_and_groups_have_their_own_values():
    """The median ignores weights and groups."""
    metrics = trm.RecMetricCollection(["AMR", "MeanRank", "MedianRank"], accumulators=[trm.ByGroup("head", "tail")])
    ranking = trm.Ranks(torch.tensor([1, 4, 2]), complete=True, num_ranked=torch.tensor([3, 5, 9])).ranking()
    metrics.update(ranking, weights=torch.tensor([1.0, 2.0, 1.0]), groups=torch.tensor([0, 0, 1]))

    assert numbers(metrics.compute()) == pytest.approx(
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


def test_a_lower_rank_is_better():
    assert [cls.higher_is_better for cls in (trm.AMR, trm.MeanRank, trm.MedianRank)] == [False] * 3


def test_rows_without_a_relevant_item_have_no_rank():
    """Rows without a relevant item are left out and counted, because a value of 0 would be better than any rank."""
    metrics = trm.RecMetricCollection(["MeanRank", "MedianRank", "AdjustedHR@1"])
    metrics.update(torch.tensor([[0.1, 0.9, 0.5], [0.3, 0.2, 0.1]]), torch.tensor([2, -1]))
    assert [value.item() for value in metrics.compute().values()] == pytest.approx([-0.5, 2, 2])
    assert metrics["MeanRank"].num_skipped == 1
    with pytest.raises(ValueError, match="empty_target_action must be one of 'skip', 'error', got 'neg'"):
        trm.MeanRank(empty_target_action="neg")


def test_lists_that_are_all_there_is():
    """Complete lists are enough for mean and median rank; adjusted metrics need the number of candidates, too."""
    files = {"target": {"user": ["al"], "item": [2]}, "complete": True}
    found = trm.evaluate_lists(["MeanRank", "MedianRank"], {"al": [1, 2]}, **files)
    assert [value.item() for value in found.values()] == [2, 2]
    with pytest.raises(ValueError, match="AMR"):
        trm.evaluate_lists("AMR", {"al": [1, 2]}, **files)


@pytest.mark.parametrize("max_rank", [2**28 + 1, 2**50])
def test_a_median_beyond_memory(max_rank):
    """A highest rank whose counts cannot be kept is an error that names it."""
    with pytest.raises(ValueError, match=r"max_rank must be at most 2\^28"):
        trm.MedianRank(max_rank=max_rank)


PAIRS = trm.Scores(torch.rand(3, 5), torch.tensor([[0, 1]] * 3))
SHORT = trm.Ranks(torch.tensor([1, 2]), depth=5, num_ranked=9)


@pytest.mark.parametrize(
    ("metric", "given", "message"),
    [
        (trm.MeanRank(), PAIRS, "one relevant item per row"),
        (trm.MedianRank(), PAIRS, "one relevant item per row"),
        (trm.AdjustedMRR(), trm.Ranks(torch.tensor([1, 2]), complete=True), "how many items were ranked"),
        (trm.AdjustedHitRate(3), trm.Ranks(torch.tensor([1]), complete=True), "how many items were ranked"),
        (trm.AMR(), SHORT, "the whole ranking"),
    ],
)
def test_rankings_that_do_not_tell(metric, given, message):
    """A ranking that does not tell what a metric reads is refused before any update."""
    with pytest.raises(ValueError, match=message):
        metric.update(given.ranking())
    assert not metric.update_called


def test_gauc_has_three_weights():
    """AUROC weighs sessions equally, by positives or by candidates.
    The sessions have AUC 1, 0 and 1/2; 1, 1 and 2 positives; 2, 4 and 4 candidates.
    """
    ranks = torch.tensor([[1, -1], [4, -1], [1, 4]])
    metrics = trm.RecMetricCollection([trm.AUROC(), trm.AUROC(weight="relevant"), trm.AUROC(weight="candidates")])
    metrics.update(trm.Ranks(ranks, complete=True, num_ranked=torch.tensor([2, 4, 4])))
    assert numbers(metrics.compute()) == pytest.approx(
        {
            "AUROC": (1 + 0 + 0.5) / 3,
            "AUROC-relevant": (1 * 1 + 1 * 0 + 2 * 0.5) / 4,  # RecBole's GAUC
            "AUROC-candidates": (2 * 1 + 4 * 0 + 4 * 0.5) / 10,  # DIN's and FuxiCTR's gAUC
        }
    )


@pytest.mark.parametrize("weights", [lambda ranking: ranking.num_relevant, lambda ranking, k: ranking.num_relevant * k])
def test_weights_of_a_metric_of_ones_own(weights):
    """`weights` of a user's own metric reads the ranking, or it and k, and is multiplied with update's weights."""
    metric = weighted_by(weights)(2)
    metric.update(trm.Ranks(torch.tensor([[1, 5, 6], [4, -1, -1]]), complete=True), weights=torch.tensor([1.0, 2.0]))

    assert metric.compute() == pytest.approx(3 / (3 + 2))


def test_weights_of_ones_own_are_one_per_row():
    with pytest.raises(TypeError, match="must return one weight per row"):
        weighted_by(lambda ranking, k: torch.ones(9))(2).update(trm.Ranks(torch.tensor([1, 4]), complete=True))


def weighted_by(function):
    """Return the class of a hit rate whose rows have these weights."""
    hits = staticmethod(lambda ranking, k: ranking.any_hit(k).double())
    return type("Weighted", (trm.RankingMetric,), {"formula": hits, "weights": staticmethod(function)})


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
def test_rows_without_candidates(name, value, num_users):
    """An unreachable item has rank inf, and a row without candidates has no value where chance is divided by."""
    metrics = trm.RecMetricCollection([name])
    for rows in (slice(0, 3), slice(3, 4)):
        metrics.update(GAPS[rows], TARGET[rows])
    assert metrics.compute()[name].item() == pytest.approx(value)
    assert metrics[name].num_users == num_users
    assert math.isnan(metrics[name].standard_error()) is math.isinf(value) or name == "MedianRank"


@pytest.mark.parametrize(("name", "near"), [("MeanRank", 2.0), ("AMR", 1.0)])
def test_infinite_ranks_are_kept(name, near):
    """Totals, groups, windows and kept rows hold the infinite rank of an item that is no candidate."""
    accumulators = [trm.ByGroup("far", "near"), trm.Window(100), trm.KeptRows()]
    metrics = trm.RecMetricCollection([name], accumulators=accumulators)
    metrics.update(GAPS[:3], TARGET[:3], groups=torch.tensor([1, 0, 1]))
    values = {name: INF, f"{name}/far": INF, f"{name}/near": near, f"{name}/window": INF}

    assert numbers(metrics.compute()) == values
    assert metrics.rows.values[name].tolist() == [near, INF, near]
    assert metrics.rows.mean() == {name: INF}
    assert [metrics[key].num_unreachable for key in (name, f"{name}/near")] == [1, 0]


def test_bounds_hold_unreachable_items():
    """Bounds hold the value of a row whose relevant item is no candidate: inf, and of the index -inf."""
    bounds = {"MeanRank": (1, INF), "AMR": (0, INF), "AMRI": (-INF, 1), "AdjustedMRR": (-INF, 1)}

    assert {name: getattr(trm, name).bounds for name in bounds} == bounds


@pytest.mark.parametrize(("reachable", "median"), [(3, 2.0), (2, INF), (0, INF)])
def test_a_median_of_unreachable_items(reachable, median):
    """The median is inf if half of the items, or more, are no candidates."""
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


def test_infinite_ranks_of_weight_0_do_not_count():
    """An infinite value of weight 0 leaves the mean finite."""
    metrics = trm.RecMetricCollection(["MeanRank"], accumulators=[trm.ByGroup("a")])
    metrics.update(GAPS, TARGET, weights=torch.tensor([1.0, 0.0, 2.0, 0.0]), groups=torch.zeros(4).long())

    assert numbers(metrics.compute()) == {"MeanRank": 2, "MeanRank/a": 2}
    assert metrics["MeanRank"].num_users == 2
