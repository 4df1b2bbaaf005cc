"""How many calls of an update reach the device: on CUDA each is a launch, on the CPU a few microseconds."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import torchrecmetrics as trm
from torchrecmetrics.ranking.update_args import Form, bring

# calls that make a view, or memory that nobody fills
VIEWS = {
    "alias",
    "as_strided",
    "detach",
    "empty",
    "expand",
    "permute",
    "select",
    "slice",
    "split_with_sizes",
    "squeeze",
}
VIEWS |= {"t", "transpose", "unbind", "unfold", "unsqueeze", "view", "_unsafe_view"}


class Calls(TorchDispatchMode):
    """Counts what is more than a view."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        with self:  # in inference mode calls that are made of others come whole
            parts = function.decompose(*args, **(kwargs or {}))
        if parts is not NotImplemented:
            return parts
        name = function._schema.name.split("::")[1]
        if name not in VIEWS:
            self.names.append(name)
        return function(*args, **(kwargs or {}))


def calls(metrics, *batch, **options):
    """Those of an update, once what depends on sizes alone is there."""
    metrics = metrics.to("meta")
    batch = [part.to("meta") for part in batch]
    metrics.update(*batch, **options)
    with Calls() as counted:
        metrics.update(*batch, **options)
    return counted.names


def eighteen():
    return trm.RecMetricCollection(["HR", "NDCG", "MRR", "Precision", "Recall", "MAP"], k=[5, 10, 20])


@pytest.mark.parametrize(("relevant", "most"), [(1, 51), (20, 87)])
def test_an_update_from_scores(relevant, most):
    """18 metrics, a catalogue that is read in one piece: a change that adds a launch shows here."""
    target = torch.arange(relevant).expand(64, -1)
    names = calls(eighteen(), torch.zeros(64, 1000), target)
    assert len(names) <= most, names


@pytest.mark.parametrize(("relevant", "most"), [(1, 20), (20, 26)])
def test_an_update_that_waits(relevant, most):
    """What is left of it; it ends as a value that is kept."""
    metrics = eighteen().to("meta")
    form = Form(torch.zeros(64, 1000, device="meta"), torch.arange(relevant).expand(64, -1).to("meta"))
    bring(form, metrics.needs, trm.ranking.Rules())
    with Calls() as counted:
        bring(form, metrics.needs, trm.ranking.Rules())
    assert len(counted.names) <= most, counted.names


def test_an_update_from_ranks():
    """18 metrics, ranks that were made elsewhere."""
    names = calls(eighteen(), torch.ones(64, 1, dtype=torch.int64), depth=40)
    assert len(names) <= 29, names


def test_an_update_of_metrics_of_lists():
    """All metrics beyond accuracy at three k: what they make of lists and history they share."""
    one = torch.ones(1000, dtype=torch.int64)
    catalogue = trm.Catalogue(1000, popularity=one, num_users=9, categories=one)
    rows = ["AveragePopularity", "PopularityLift", "Novelty", "TailShare", "IntraListDiversity", "CategoryShare"]
    rows += ["Serendipity", "Calibration", "Seen", "Repeats", "Missing"]
    whole = ["Coverage", "Gini", "Entropy", "Personalization", "ExposureGini"]
    metrics = trm.RecMetricCollection(rows + whole, k=[5, 10, 20], catalogue=catalogue)
    history = torch.zeros(64, 100, dtype=torch.int64, device="meta")
    names = calls(metrics, torch.zeros(64, 1000), torch.zeros(64, 1, dtype=torch.int64), history=history)
    assert len(names) <= 217, names


def test_more_metrics_hardly_add_any():
    """What grows with the metrics is the formulas, not the sums nor the states."""
    scores, target = torch.zeros(64, 1000), torch.arange(3).expand(64, -1)
    one, five = (calls(trm.RecMetricCollection(["HR", "Recall"], k=k), scores, target) for k in (5, [1, 2, 3, 4, 5]))
    assert len(one) == len(five), (len(one), len(five))


def test_one_metric():
    """A single metric asks for what its formula needs alone."""
    names = calls(trm.HR(10), torch.zeros(1, 1000), torch.zeros(1, dtype=torch.int64))
    assert len(names) <= 50, names
