"""The path of an update: the functions it enters, its parameters, and the calls that reach the device.

Each such call is a launch on CUDA, a few microseconds on the CPU.
"""

import pytest
import torch

import torchrecmetrics as trm
from benchmarks.core import LIMITS, DeviceCalls, batches, device_calls, parameters, update_and_compute


def calls(metrics, *batch, **options):
    """Return the calls of a second update, because the first also makes tensors that depend on sizes alone."""
    metrics = metrics.to("meta")
    batch = [part.to("meta") if isinstance(part, torch.Tensor) else part for part in batch]
    metrics.update(*batch, **options)
    with DeviceCalls() as counted:
        metrics.update(*batch, **options)
    return counted.names


@pytest.mark.parametrize(
    ("form", "functions", "files"), [("scores, T = 1", 78, 15), ("scores, T = 20", 96, 16), ("ranks", 73, 13)]
)
def test_a_reader_of_an_update_enters_few_functions(form, functions, files):
    """An update and compute of 18 metrics enter at most so many functions, in so many files."""
    entered = update_and_compute(*batches()[form])
    assert len(entered) <= functions, entered
    assert len({function.partition(":")[0] for function in entered}) <= files, entered


def test_an_update_has_six_parameters():
    """Other facts about rows are columns."""
    assert parameters() == ["scores", "target", "gains", "exclude", "weights", "depth"]


@pytest.mark.parametrize("form", ["scores, T = 1", "scores, T = 20", "ranks"])
def test_an_update_of_18_metrics(form):
    """An update from scores, with a catalogue that is read in one piece, or from ranks reaches the device few times."""
    names = device_calls(*batches()[form])
    assert len(names) <= LIMITS[form], names


def test_an_update_of_metrics_of_lists():
    """All metrics beyond accuracy at three k make at most 320 calls: they share the work on lists and history."""
    one = torch.ones(1000, dtype=torch.int64)
    catalogue = trm.Catalogue(1000, popularity=one, num_users=9, categories=one)
    rows = ["AveragePopularity", "PopularityLift", "Novelty", "TailShare", "IntraListDiversity", "CategoryShare"]
    rows += ["Serendipity", "Calibration", "Seen", "Repeats", "Invalid", "Missing"]
    whole = ["Coverage", "Gini", "Entropy", "Personalization", "ExposureGini"]
    metrics = trm.RecMetricCollection(rows + whole, k=[5, 10, 20], catalogue=catalogue)
    scores = torch.zeros(64, 1000, device="meta")
    target, history = (torch.zeros(64, width, dtype=torch.int64, device="meta") for width in (1, 100))
    names = calls(metrics, trm.Scores(scores, target, history=history))
    assert len(names) <= 320, names


def test_more_cutoffs_hardly_add_any():
    """Further cut-offs add at most 5 calls to an update: only the formulas grow, not the sums or the states."""
    scores, target = torch.zeros(64, 1000), torch.arange(3).expand(64, -1)
    one, five = (calls(trm.RecMetricCollection(["HR", "Recall"], k=k), scores, target) for k in (5, [1, 2, 3, 4, 5]))
    assert len(five) <= len(one) + 5, (len(one), len(five))  # the column of cut-offs


def test_one_metric():
    """A single metric computes only what its formula needs, in at most 66 calls."""
    names = calls(trm.HR(10), torch.zeros(1, 1000), torch.zeros(1, dtype=torch.int64))
    assert len(names) <= 66, names
