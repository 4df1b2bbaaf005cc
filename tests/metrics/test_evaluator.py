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


def calls(metrics, *batch, **options):
    """Return the calls of a second update, because the first also makes tensors that depend on sizes alone."""
    metrics = metrics.to("meta")
    batch = [part.to("meta") if isinstance(part, torch.Tensor) else part for part in batch]
    metrics.update(*batch, **options)
    with DeviceCalls() as counted:
        metrics.update(*batch, **options)
    return counted.names


@pytest.mark.parametrize(
    ("form", "functions", "files"), [("scores, T = 1", 80, 15), ("scores, T = 20", 90, 16), ("ranks", 69, 11)]
)
def test_an_update_of_18_metrics(form, functions, files):
    """An update enters few functions, compute included, in few files, and reaches the device few times."""
    entered = update_and_compute(*batches()[form])
    assert len(entered) <= functions, entered
    assert len({function.partition(":")[0] for function in entered}) <= files, entered
    names = device_calls(*batches()[form])
    assert len(names) <= LIMITS[form], names


def test_an_update_has_six_parameters():
    """Other facts about rows are columns."""
    assert parameters() == ["scores", "target", "gains", "exclude", "weights", "depth"]


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


def test_one_metric_and_more_cutoffs():
    """A single metric makes at most 66 calls; further cut-offs add 5 at most: only the formulas grow, not the sums."""
    scores, target = torch.zeros(64, 1000), torch.arange(3).expand(64, -1)
    names = calls(trm.HR(10), scores, target[:, 0])
    assert len(names) <= 66, names
    one, five = (calls(trm.RecMetricCollection(["HR", "Recall"], k=k), scores, target) for k in (5, [1, 2, 3, 4, 5]))
    assert len(five) <= len(one) + 5, (len(one), len(five))  # the column of cut-offs


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


def value_of(metrics):
    """Return all that `compute` gives, and the kept rows."""
    found = metrics.compute()
    values = numbers(found) if isinstance(found, dict) else found.item()
    kept = isinstance(metrics, trm.RecMetricCollection) and metrics.keep_rows
    return values, [rows.nan_to_num(9).tolist() for rows in metrics.rows.values.values()] if kept else None


@pytest.mark.parametrize("call", ["update", "forward"])
@pytest.mark.parametrize("batch", [0, 1], ids=["first", "second"])
@pytest.mark.parametrize("case", CASES)
def test_every_call(case, batch, call):
    """`update` and `forward` that run out of memory at any call leave every state as it was; a repeat counts once.

    A nightly run tries every call, another one every third.
    """
    make_metrics, arguments = CASES[case]
    metrics, whole = make_metrics(), make_metrics()
    *earlier, rows = [torch.arange(0, 5), torch.arange(5, 12)][: batch + 1]
    for updated, parts in ((metrics, earlier), (whole, [*earlier, rows])):
        for part in parts:
            args, kwargs = arguments(part)
            updated.update(*args, **kwargs)
    before = snapshot(metrics)
    args, kwargs = arguments(rows)
    for number in itertools.count(step=1 if NIGHTLY else 3):
        try:
            with OutOfMemoryAt(number):
                getattr(metrics, call)(*args, **kwargs)
        except torch.cuda.OutOfMemoryError:
            assert same(snapshot(metrics), before), number
        else:
            break
    assert number > 5
    assert not same(snapshot(metrics), before)
    assert value_of(metrics) == value_of(whole)


@pytest.mark.parametrize("case", CASES)
def test_compute(case):
    """A `compute` that runs out of memory at any call changes nothing, and gives the value when it is called again."""
    make_metrics, arguments = CASES[case]
    metrics, whole = make_metrics(), make_metrics()
    args, kwargs = arguments(torch.arange(12))
    for each in (metrics, whole):
        each.update(*args, **kwargs)
    expected, before = value_of(whole), snapshot(metrics)
    for number in itertools.count():
        try:
            with OutOfMemoryAt(number):
                metrics.compute()
        except torch.cuda.OutOfMemoryError:
            assert case == "sessions" or same(snapshot(metrics), before), number
        else:
            break
    assert value_of(metrics) == expected


def test_a_formula_is_asked_once(monkeypatch, generator):
    """All cut-offs of a metric go through its formula in one call, and other options make another call."""
    asked = []

    def ndcg(ranking, k=None, *, gain="linear"):
        asked.append(k)
        return functional.ndcg(ranking, k, gain=gain)

    monkeypatch.setattr(trm.NDCG, "formula", staticmethod(ndcg))
    members = [trm.NDCG(5), trm.NDCG(), trm.NDCG(2), trm.NDCG(5, gain="exponential"), trm.HR(5)]
    asked.clear()
    trm.RecMetricCollection(members).update(torch.rand(4, 9, generator=generator), torch.tensor([1, 2, 3, 4]))
    assert sorted(asked, key=str) == [(2, 5), 5, None]


def test_members_keep_their_own_cutoffs(generator):
    """Members keep their cut-offs in any order, beside others of the same formula, and with unhashable options."""
    scores, target = torch.rand(9, 30, generator=generator), torch.randint(30, (9, 1), generator=generator)
    alone = {k: trm.NDCG(k) for k in (9, 2, 5)}
    together = trm.RecMetricCollection({f"n{k}": trm.NDCG(k) for k in alone} | {"n": trm.NDCG(), "hit": trm.HR(9)})
    for metric in (*alone.values(), together):
        metric.update(scores, target)
    values = together.compute()
    assert all(values[f"n{k}"] == metric.compute() for k, metric in alone.items())

    class Own(trm.HR):
        formula = staticmethod(lambda ranking, k, score_threshold=None, places=(): functional.hit_rate(ranking, k))

    unhashable = trm.RecMetricCollection({f"w{k}": Own(k, places=[1, 2]) for k in (5, 2)})
    unhashable.update(scores, target)
    Own.formula = staticmethod(lambda ranking, k, score_threshold=None, places=(): ranking.ranks[:, 0])
    with pytest.raises(TypeError, match="a row for each of the cut-offs \\(5, 2\\)"):
        unhashable.update(scores, target)
