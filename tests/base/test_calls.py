"""The number of an update's calls that reach the device: each is a launch on CUDA, a few microseconds on the CPU."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import torchrecmetrics as trm

# calls that only make a view or allocate memory without filling it
VIEWS = {
    "alias",
    "as_strided",
    "detach",
    "empty",
    "expand",
    "permute",
    "select",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
}
VIEWS |= {"t", "transpose", "unbind", "unfold", "unsqueeze", "view", "_unsafe_view"}


class Calls(TorchDispatchMode):
    """A mode that records every call that does more than make a view or allocate memory."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name.split("::")[1]
        if name not in VIEWS:
            self.names.append(name)
        return function(*args, **(kwargs or {}))


def calls(metrics, *batch, **options):
    """Return the calls of a second update, because the first also makes tensors that depend on sizes alone."""
    metrics = metrics.to("meta")
    batch = [part.to("meta") for part in batch]
    metrics.update(*batch, **options)
    with Calls() as counted:
        metrics.update(*batch, **options)
    return counted.names


def eighteen():
    return trm.RecMetricCollection(["HR", "NDCG", "MRR", "Precision", "Recall", "MAP"], k=[5, 10, 20])


@pytest.mark.parametrize(("relevant", "most"), [(1, 88), (20, 122)])
def test_an_update_from_scores(relevant, most):
    """An update of 18 metrics, with a catalogue that is read in one piece, makes at most `most` calls."""
    target = torch.arange(relevant).expand(64, -1)
    names = calls(eighteen(), torch.zeros(64, 1000), target)
    assert len(names) <= most, names


def test_an_update_from_ranks():
    """An update of 18 metrics from given ranks makes at most 67 calls."""
    names = calls(eighteen(), torch.ones(64, 1, dtype=torch.int64), depth=40)
    assert len(names) <= 67, names


def test_an_update_of_metrics_of_lists():
    """All metrics beyond accuracy at three k make at most 355 calls: they share the work on lists and history."""
    one = torch.ones(1000, dtype=torch.int64)
    catalogue = trm.Catalogue(1000, popularity=one, num_users=9, categories=one)
    rows = ["AveragePopularity", "PopularityLift", "Novelty", "TailShare", "IntraListDiversity", "CategoryShare"]
    rows += ["Serendipity", "Calibration", "Seen", "Repeats", "Missing"]
    whole = ["Coverage", "Gini", "Entropy", "Personalization", "ExposureGini"]
    metrics = trm.RecMetricCollection(rows + whole, k=[5, 10, 20], catalogue=catalogue)
    history = torch.zeros(64, 100, dtype=torch.int64, device="meta")
    names = calls(metrics, torch.zeros(64, 1000), torch.zeros(64, 1, dtype=torch.int64), history=history)
    assert len(names) <= 355, names


def test_more_cutoffs_hardly_add_any():
    """Further cut-offs add at most 5 calls to an update: only the formulas grow, not the sums or the states."""
    scores, target = torch.zeros(64, 1000), torch.arange(3).expand(64, -1)
    one, five = (calls(trm.RecMetricCollection(["HR", "Recall"], k=k), scores, target) for k in (5, [1, 2, 3, 4, 5]))
    assert len(five) <= len(one) + 5, (len(one), len(five))  # the column of cut-offs


def test_one_metric():
    """A single metric computes only what its formula needs, in at most 66 calls."""
    names = calls(trm.HR(10), torch.zeros(1, 1000), torch.zeros(1, dtype=torch.int64))
    assert len(names) <= 66, names
