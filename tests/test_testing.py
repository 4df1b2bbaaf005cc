"""`check_metric` passes all metrics of the package, and says what is wrong with metrics that break a promise."""

import pytest
import torch

import torchrecmetrics as trm
from torchrecmetrics.metrics.names import _CLASSES
from torchrecmetrics.testing import check_metric

CATALOGUE = trm.Catalogue(20, popularity=torch.arange(20) * 2 + 1, num_users=100, categories=torch.arange(20) % 5)
OF_ONE_RANK = ("MeanRank", "MedianRank", "AMR", "AMRI", "AdjustedHR", "AdjustedMRR")


@pytest.mark.parametrize("name", _CLASSES)
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_every_metric_of_the_package_keeps_the_promises(name):
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


TWO_PER_RELEVANT = metric_of(lambda ranking, k: ranking.any_hit(k) * ranking.num_relevant * 2, bounds=(0, 1))


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (metric_of(at_mean_rank)(3), "Own@3 of 5 equal scores with 2 .* 0.25, .* mean over all orders .*: any_hit, "),
        (metric_of(share_of_batch)(3), "Own@3 in batches is .*, expected"),
        (TWO_PER_RELEVANT(3), "Own@3 of a row is .*, beyond its bounds 0 to 1"),
    ],
)
def test_a_broken_promise_is_named_with_both_values(metric, message):
    with pytest.raises(AssertionError, match=message):
        check_metric(metric)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (metric_of(share_of_batch), r"^Own is a class: pass an instance, such as Own\(10\)$"),
        (trm.MRR, r"^MRR is a class: pass an instance, such as MRR\(10\)$"),
        (trm.AUROC, r"^AUROC is a class: pass an instance, such as AUROC\(\)$"),
        ("NDCG@10", r"^check_metric: .* metrics of torchrecmetrics .* got str"),
    ],
)
def test_what_is_no_instance_is_refused(metric, message):
    with pytest.raises(TypeError, match=message):
        check_metric(metric)


def test_a_formula_that_reads_a_value_fails_on_the_device_without_values():
    metric = metric_of(lambda ranking, k: ranking.num_hits(k) * (ranking.num_relevant.sum().item() >= 0))

    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        check_metric(metric(3))


WRONG_TIES = {
    "hit at the mean rank": lambda ranking, k: (ranking.ranks <= k).any(1).double(),
    "hit by a threshold": lambda ranking, k: (ranking.num_hits(k) >= 1).double(),
    "hit as if equal scores had independent ranks": lambda ranking, k: (
        1 - (1 - ranking.num_hits(k) / ranking.num_relevant) ** ranking.num_relevant  # right for one relevant item
    ),
    "square of the hits": lambda ranking, k: ranking.num_hits(k) ** 2 / k**2,
}


@pytest.mark.parametrize("k", [1, 2, 5, 10, 100])
@pytest.mark.parametrize("formula", WRONG_TIES.values(), ids=WRONG_TIES)
def test_wrong_ties_are_found_at_every_cutoff(formula, k):
    """Rows are longer than the cut-off, and their ties lie before, across and behind it."""
    with pytest.raises(AssertionError, match=f"Own@{k} of .* mean over all orders .* thresholds or products"):
        check_metric(metric_of(formula)(k))


def test_a_formula_of_mean_ranks_passes_without_the_check_of_ties():
    check_metric(metric_of(at_mean_rank)(3), exact_ties=False)


def test_the_state_of_the_metric_is_not_touched():
    metric = trm.HR(3)
    metric.update(torch.tensor([1, 9]), depth=10)
    check_metric(metric)

    assert metric.compute() == 1 / 2
