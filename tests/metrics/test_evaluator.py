"""The path of an update: the functions it enters, its parameters, and the calls that reach the device.

Each such call is a launch on CUDA, a few microseconds on the CPU.
"""

import itertools
from functools import partial

import pytest
import torch
from sizes import NIGHTLY
from states import same, snapshot
from torch.utils._python_dispatch import TorchDispatchMode
from values import numbers

import torchrecmetrics as trm
from benchmarks.core import LIMITS, DeviceCalls, batches, device_calls, parameters, update_and_compute
from torchrecmetrics import functional


@pytest.mark.parametrize(
    ("form", "functions", "files"), [("scores, T = 1", 80, 15), ("scores, T = 20", 90, 16), ("ranks", 69, 11)]
)
def test_18_metrics_enter_few_functions_and_reach_the_device_few_times(form, functions, files):
    entered, names = update_and_compute(*batches()[form]), device_calls(*batches()[form])

    assert len(entered) <= functions, entered
    assert len({function.partition(":")[0] for function in entered}) <= files, entered
    assert len(names) <= LIMITS[form], names


def test_an_update_has_six_parameters_and_other_facts_about_rows_are_columns():
    assert parameters() == ["scores", "target", "gains", "exclude", "weights", "depth"]


def calls(metrics, *batch):
    """Return the calls of a second update, because the first also makes tensors that depend on sizes alone."""
    metrics = metrics.to("meta")
    batch = [part.to("meta") if isinstance(part, torch.Tensor) else part for part in batch]
    metrics.update(*batch)
    with DeviceCalls() as counted:
        metrics.update(*batch)
    return counted.names


def test_an_update_of_all_metrics_of_lists_at_three_k_makes_at_most_320_calls():
    ones = torch.ones(1000, dtype=torch.int64)
    catalogue = trm.Catalogue(1000, popularity=ones, num_users=9, categories=ones)
    rows = ["AveragePopularity", "PopularityLift", "Novelty", "TailShare", "IntraListDiversity", "CategoryShare"]
    rows += ["Serendipity", "Calibration", "Seen", "Repeats", "Invalid", "Missing"]
    whole = ["Coverage", "Gini", "Entropy", "Personalization", "ExposureGini"]
    metrics = trm.RecMetricCollection(rows + whole, k=[5, 10, 20], catalogue=catalogue)
    scores = torch.zeros(64, 1000, device="meta")
    target, history = (torch.zeros(64, width, dtype=torch.int64, device="meta") for width in (1, 100))
    names = calls(metrics, trm.Scores(scores, target, history=history))

    assert len(names) <= 320, names


def test_an_update_of_a_single_metric_makes_at_most_66_calls():
    names = calls(trm.HR(10), torch.zeros(64, 1000), torch.zeros(64, dtype=torch.int64))
    assert len(names) <= 66, names


def test_four_further_cut_offs_add_at_most_5_calls():
    """Only the formulas grow, not the sums; the column of cut-offs is new."""
    batch = torch.zeros(64, 1000), torch.arange(3).expand(64, -1)
    at_one, at_five = (calls(trm.RecMetricCollection(["HR", "Recall"], k=k), *batch) for k in (5, [1, 2, 3, 4, 5]))

    assert len(at_five) <= len(at_one) + 5


GENERATOR = torch.Generator().manual_seed(0)
SCORES, TARGET = torch.rand(12, 6, generator=GENERATOR), torch.randint(-1, 6, (12, 2), generator=GENERATOR)
TARGET[:, 1] = torch.where(TARGET[:, 0] == TARGET[:, 1], -1, TARGET[:, 1])
CATALOGUE = trm.Catalogue(6, popularity=torch.arange(6), num_users=9)
COLUMNS = {"groups": torch.arange(12) % 2, "row_ids": torch.arange(12), "clusters": torch.arange(12) // 3}


class OutOfMemoryAt(TorchDispatchMode):
    """A mode in which the call of this number, from 0, raises the error of a full memory."""

    def __init__(self, number):
        super().__init__()
        self.left = number

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if self.left == 0:
            raise torch.cuda.OutOfMemoryError("on purpose")
        self.left -= 1
        return function(*args, **(kwargs or {}))


def sessions(rows):
    """Return the arguments of a batch of entries: each row's scores, with labels."""
    ids = rows[:, None].expand(-1, 6).flatten()
    labels = (torch.arange(6) == TARGET[rows][:, :1]).flatten()
    return (SCORES[rows].flatten(), labels, ids), {}


def dense(rows, columns=()):
    return (SCORES[rows], TARGET[rows]), {name: COLUMNS[name][rows] for name in columns}


def with_everything():
    """Return a collection of metrics of all kinds with all accumulators."""
    names = ["HR", "Coverage", "ExposureGini", trm.AUROC(weight="relevant")]
    recent = trm.Window(100), trm.Window(updates=1, name="last")
    accumulators = [*recent, trm.ByGroup("a", "b"), trm.KeptRows()]
    return trm.RecMetricCollection(names, k=[1, 3], accumulators=accumulators, catalogue=CATALOGUE)


CASES = {
    "one metric": (lambda: trm.NDCG(3), dense),
    "plain": (lambda: trm.RecMetricCollection(["HR", "NDCG"], k=[1, 3]), dense),
    "MedianRank": (lambda: trm.RecMetricCollection(["MedianRank"]), lambda rows: ((SCORES[rows], rows % 6), {})),
    "all": (with_everything, partial(dense, columns=COLUMNS)),
    "sessions": (
        lambda: trm.CollectSessions(trm.RecMetricCollection(["HR"], k=1, accumulators=[trm.KeptRows()])),
        sessions,
    ),
}


def updated(case, *parts):
    """Return the metrics of a case after an update with each of these parts of the rows."""
    make_metrics, arguments = CASES[case]
    metrics = make_metrics()
    for part in parts:
        args, kwargs = arguments(part)
        metrics.update(*args, **kwargs)
    return metrics


def out_of_memory_at_any_call(run, step=1):
    """Run again and again, out of memory at a later call each time; yield after each error, until there is none."""
    for number in itertools.count(step=step):
        try:
            with OutOfMemoryAt(number):
                run()
            return
        except torch.cuda.OutOfMemoryError:
            yield


@pytest.mark.parametrize("call", ["update", "forward"])
@pytest.mark.parametrize("earlier", [[], [torch.arange(0, 5)]], ids=["first", "second"])
@pytest.mark.parametrize("case", CASES)
def test_a_batch_that_runs_out_of_memory_changes_no_state_and_can_be_repeated(case, earlier, call):
    """A nightly run tries every call, another one every third."""
    rows = torch.arange(5, 12)
    metrics, (args, kwargs) = updated(case, *earlier), CASES[case][1](rows)
    before = snapshot(metrics)
    failures = out_of_memory_at_any_call(lambda: getattr(metrics, call)(*args, **kwargs), step=1 if NIGHTLY else 3)
    is_unchanged = [same(snapshot(metrics), before) for _ in failures]

    assert {*is_unchanged} == {True}
    assert same(snapshot(metrics), snapshot(updated(case, *earlier, rows)))


@pytest.mark.parametrize("case", [case for case in CASES if case != "sessions"])  # whose `compute` ranks entries
def test_a_compute_that_runs_out_of_memory_changes_no_state(case):
    metrics = updated(case, torch.arange(12))
    before = snapshot(metrics)
    is_unchanged = [same(snapshot(metrics), before) for _ in out_of_memory_at_any_call(metrics.compute)]

    assert {*is_unchanged} == {True}


@pytest.mark.parametrize("case", CASES)
def test_a_compute_that_ran_out_of_memory_can_be_repeated(case):
    metrics = updated(case, torch.arange(12))
    num_failures = sum(1 for _ in out_of_memory_at_any_call(metrics.compute))

    assert num_failures > 1
    assert same(metrics.compute(), updated(case, torch.arange(12)).compute())


def test_a_formula_is_asked_once_for_all_cut_offs_with_the_same_options(monkeypatch, generator):
    asked = []  # the cut-offs of each call

    def ndcg(ranking, k=None, *, gain="linear"):
        asked.append(k)
        return functional.ndcg(ranking, k, gain=gain)

    monkeypatch.setattr(trm.NDCG, "formula", staticmethod(ndcg))
    members = [trm.NDCG(5), trm.NDCG(), trm.NDCG(2), trm.NDCG(5, gain="exponential"), trm.HR(5)]
    asked.clear()
    trm.RecMetricCollection(members).update(torch.rand(4, 9, generator=generator), torch.tensor([1, 2, 3, 4]))

    assert sorted(asked, key=str) == [(2, 5), 5, None]  # linear at 5 and 2, exponential at 5, linear without k


def test_members_keep_their_own_cut_offs_in_any_order_and_beside_others():
    metrics = trm.RecMetricCollection({"h9": trm.HR(9), "mrr": trm.MRR(), "h2": trm.HR(2), "h5": trm.HR(5)})
    metrics.update(trm.Ranks(torch.tensor([1, 2, 4, 9]), complete=True))

    assert numbers(metrics.compute()) == {
        "h9": 4 / 4,
        "mrr": pytest.approx((1 + 1 / 2 + 1 / 4 + 1 / 9) / 4),
        "h2": 2 / 4,
        "h5": 3 / 4,
    }


class HitsWithPlaces(trm.HR):
    """A hit rate with an option that cannot be hashed."""

    formula = staticmethod(lambda ranking, k, score_threshold=None, places=(): functional.hit_rate(ranking, k))


def test_members_with_unhashable_options_keep_their_own_cut_offs():
    metrics = trm.RecMetricCollection({f"h{k}": HitsWithPlaces(k, places=[1, 2]) for k in (5, 2)})
    metrics.update(trm.Ranks(torch.tensor([1, 4]), complete=True))

    assert numbers(metrics.compute()) == {"h5": 2 / 2, "h2": 1 / 2}
