"""`check_metric` passes all metrics of the package, and says what is wrong with metrics that break a promise."""

import re

import pytest
import torch

import torchrecmetrics as trm
from torchrecmetrics.metrics.names import _CLASSES
from torchrecmetrics.testing import check_metric

CATALOGUE = trm.Catalogue(
    20,
    popularity=torch.arange(20) * 2 + 1,
    num_users=100,
    categories=torch.arange(20) % 5,
)
OF_ONE_RANK = ("MeanRank", "MedianRank", "AMR", "AMRI", "AdjustedHR", "AdjustedMRR")


@pytest.mark.parametrize("name", _CLASSES)
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_all_metrics(name):
    """Every metric of the package keeps the promises that a metric of one's own is tested for."""
    cls = _CLASSES[name]
    options = {"catalogue": CATALOGUE} if name not in ("Missing", "Invalid", "Repeats", "Seen") else {}
    metric = cls(3, **options) if cls._signature.takes_k else cls(**options)
    check_metric(metric, max_relevant=1 if name in OF_ONE_RANK else 3)


def metric_of(function, **attributes):
    return type("Own", (trm.RankingMetric,), {"formula": staticmethod(function), **attributes})


def at_mean_rank(ranking, k):
    return (0.5 ** ranking.ranks.masked_fill(ranking.ranks > k, torch.inf)).sum(1)


def share_of_batch(ranking, k):
    return ranking.num_hits(k) / len(ranking)


def reads_a_value(ranking, k):
    return ranking.num_hits(k) * (1 if ranking.num_relevant.sum().item() >= 0 else 0)


def first_item(ranking, k):
    return (ranking.num_hits(k) > 0) * ranking.num_relevant * 2


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (metric_of(at_mean_rank)(3), "Own@3 of 5 equal scores with 2 .* 0.25, .* mean over all orders .*: any_hit, "),
        (metric_of(share_of_batch)(3), "Own@3 in batches is .*, expected"),
        (metric_of(first_item, bounds=(0, 1))(3), "Own@3 of a row is .*, beyond its bounds 0 to 1"),
    ],
)
def test_broken_promises(metric, message):
    """The error names the promise and both values."""
    with pytest.raises(AssertionError, match=message):
        check_metric(metric)


@pytest.mark.parametrize(
    ("metric", "call"), [(metric_of(share_of_batch), "Own(10)"), (trm.MRR, "MRR(10)"), (trm.AUROC, "AUROC()")]
)
def test_a_class_is_no_instance(metric, call):
    """A class is refused with a call that makes an instance, as a collection refuses it; so is a name."""
    for check in (check_metric, lambda cls: trm.RecMetricCollection([cls])):
        with pytest.raises(
            TypeError, match=f"^{metric.__name__} is a class: pass an instance, such as {re.escape(call)}$"
        ):
            check(metric)
    assert isinstance(eval(call, {metric.__name__: metric}), trm.RankingMetric)
    with pytest.raises(TypeError, match=r"^check_metric: .* metrics of torchrecmetrics .* got str"):
        check_metric("NDCG@10")


def test_a_formula_that_waits():
    """A formula that reads a value of a tensor fails on the device without values."""
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        check_metric(metric_of(reads_a_value)(3))


def hit_at_mean_rank(ranking, k):
    return (ranking.ranks <= k).any(1).double()


def hit_by_threshold(ranking, k):
    return (ranking.num_hits(k) >= 1).double()


def squared_hits(ranking, k):
    return ranking.num_hits(k) ** 2 / k**2


@pytest.mark.parametrize("k", [1, 2, 5, 10, 100])
@pytest.mark.parametrize("formula", [hit_at_mean_rank, hit_by_threshold, squared_hits])
def test_wrong_ties_are_found_at_every_cutoff(formula, k):
    """Rows are longer than the cut-off, and their ties lie before, across and behind it."""
    with pytest.raises(
        AssertionError, match=f"Own@{k} of .* mean over all orders .* thresholds or products .* are not"
    ):
        check_metric(metric_of(formula)(k))


def test_ties_may_be_left_out():
    """A formula of mean ranks passes without the check of ties; the metric that was given stays as it was."""
    metric = metric_of(at_mean_rank)(3)
    metric.update(torch.tensor([1, 2]), depth=10)
    check_metric(metric, exact_ties=False)
    assert metric.compute() == 0.375
