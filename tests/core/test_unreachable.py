"""Rows whose relevant item is no candidate, or in which nothing is: metrics of the rank have infinite values."""

import math

import pytest
import torch
from values import numbers

import torchrecmetrics as trm

INF = math.inf
SCORES = torch.tensor([[0.1, 0.9, 0.5], [0.5, -INF, 0.2], [0.3, 0.2, 0.1], [-INF, -INF, -INF]])
TARGET = torch.tensor([2, 1, 1, 0])  # ranks 2, none, 2, none among no candidates


@pytest.mark.parametrize(
    ("name", "value", "num_users"),
    [
        ("MeanRank", INF, 4),
        ("MedianRank", INF, 4),
        ("AMR", INF, 4),
        ("AMRI", -INF, 3),  # of no candidates there is no random order
        ("AdjustedMRR", ((1 / 2 - 11 / 18) * 2 + (0 - 3 / 4)) / ((1 - 11 / 18) * 2 + (1 - 3 / 4)), 3),
        ("AdjustedHR@1", ((0 - 1 / 3) * 2 + (0 - 1 / 2)) / (2 / 3 * 2 + 1 / 2), 3),
    ],
)
def test_rows_without_candidates(name, value, num_users):
    """An unreachable item has rank inf, and a row without candidates has no value where chance is divided by."""
    metrics = trm.RecMetricCollection([name])
    for rows in (slice(0, 3), slice(3, 4)):
        metrics.update(SCORES[rows], TARGET[rows])
    assert metrics.compute()[name].item() == pytest.approx(value)
    assert metrics[name].num_users == num_users
    assert math.isnan(metrics[name].standard_error()) is math.isinf(value) or name == "MedianRank"


def test_a_row_in_which_nothing_is_a_candidate():
    """AMRI leaves out a row without candidates, in every way that rows are added up."""
    accumulators = [trm.ByGroup("a"), trm.Window(100), trm.Decay(50), trm.KeptRows()]
    metrics = trm.RecMetricCollection(["AMRI"], accumulators=accumulators)
    scores, target = torch.tensor([[0.1, 0.9, 0.5], [-INF, -INF, -INF]]), torch.tensor([1, 2])
    values = metrics(scores, target, groups=torch.zeros(2).long())
    assert numbers(values) == {"AMRI": 1.0, "AMRI/a": 1.0}
    assert numbers(metrics.compute()) == {"AMRI": 1.0, "AMRI/a": 1.0, "AMRI/window": 1.0, "AMRI/decayed": 1.0}
    assert [value.num_users for value in metrics.values()] == [1] * 4
    assert metrics.rows.values["AMRI"].nan_to_num(9).tolist() == [1, 9]


def test_infinite_ranks_are_kept():
    """Kept rows, groups, windows and decay hold infinite ranks; differences and intervals of them say what is wrong."""
    accumulators = [trm.ByGroup("far", "near"), trm.Window(100), trm.Decay(50), trm.KeptRows()]
    metrics = trm.RecMetricCollection(["MeanRank", "AMR", "MRR"], accumulators=accumulators)
    metrics.update(SCORES[:3], TARGET[:3], groups=torch.tensor([1, 0, 1]))
    found = numbers(metrics.compute())
    for name, near in (("MeanRank", 2.0), ("AMR", 1.0)):
        assert [found[f"{name}{suffix}"] for suffix in ("", "/far", "/window", "/decayed")] == [INF] * 4
        assert found[f"{name}/near"] == near
        assert metrics.rows.values[name].tolist() == [near, INF, near]
        assert metrics.rows.mean()[name] == INF
    assert found["MRR"] == found["MRR/window"] == pytest.approx(1 / 3)
    assert (metrics["MeanRank"].num_unreachable, metrics["MeanRank/near"].num_unreachable) == (1, 0)
    for ask in (metrics.rows.confidence_interval, lambda: trm.compare({"a": metrics.rows, "b": metrics.rows})):
        with pytest.raises(ValueError, match=r"values of MeanRank are infinite in 1 of 3 rows.*that is no candidate"):
            ask()
    assert all(map(math.isnan, metrics["MeanRank"].confidence_interval()))


@pytest.mark.parametrize(("reachable", "median"), [(3, 2.0), (2, INF), (1, INF), (0, INF)])
def test_a_median_of_unreachable_items(reachable, median):
    """The median is inf if half of the items, or more, are no candidates, and no `max_rank` is asked for."""
    metric = trm.MedianRank(max_rank=3)
    scores = torch.tensor([[0.1, 0.9, 0.5]] * reachable + [[0.1, 0.9, -INF]] * 2)
    metric.update(scores, torch.full((len(scores),), 2))
    assert metric.compute() == median
    assert metric.num_users == reachable + 2
    if reachable == 3:
        metric.update(trm.Ranks(torch.tensor([4.0] * 6)))
        with pytest.raises(ValueError, match="the median is beyond max_rank=3: give the number of candidates"):
            metric.compute()


@pytest.mark.parametrize("weights", [torch.tensor([1.0, 0.0, 2.0, 0.0]), torch.tensor([0.5, 0.0, 0.5, 0.0])])
def test_infinite_ranks_of_weight_0_do_not_count(weights):
    """An infinite value of weight 0 leaves the mean finite."""
    metrics = trm.RecMetricCollection(["MeanRank", "AMR"], accumulators=[trm.ByGroup("a"), trm.Decay(9)])
    metrics.update(SCORES, TARGET, weights=weights, groups=torch.zeros(4).long())
    found = numbers(metrics.compute())
    assert all(found[f"MeanRank{suffix}"] == 2 for suffix in ("", "/a", "/decayed"))
    assert metrics["MeanRank"].num_users == 2
