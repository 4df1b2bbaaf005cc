"""States of metrics are plain tensors of torchmetrics that can be read, written, reset and compiled as usual."""

import itertools
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from states import evaluator_of, tensors
from values import numbers

import torchrecmetrics as trm

SCORES = torch.tensor([[0.1, 0.9, 0.5, 0.2], [0.4, 0.3, 0.2, 0.1], [0.9, 0.1, 0.2, 0.3]])
TARGET = torch.tensor([2, 0, 1])


def collection():
    return trm.RecMetricCollection(["HR", "NDCG"], k=[1, 2])


@pytest.mark.parametrize("make", [collection, lambda: trm.HR(2)])
def test_writing_to_a_state_in_place_changes_no_default(make):
    """States are attributes of what is updated; one loaded by `copy_` counts once, and reset starts from zero."""
    saved, metric = make(), make()
    values = list(metric.values()) if make is collection else [metric]
    saved.update(SCORES.repeat(12, 1), TARGET.repeat(12))
    for source, state in zip(tensors(saved), tensors(metric), strict=True):
        state.copy_(source)
    for num_users in (12 * 3 + 3, 3):
        metric.update(SCORES, TARGET)
        evaluator = evaluator_of(metric)
        assert evaluator._defaults.keys() <= vars(evaluator).keys()
        metric.compute()
        assert {value.num_users for value in values} == {num_users}
        metric.reset()


def test_compute_beside_updates_of_another_thread(request):
    """Values that are computed while another thread updates are of one moment, and none of a past one is kept."""
    accumulators = [trm.ByGroup("a", "b"), trm.Window(100), trm.KeptRows()]
    metrics = trm.RecMetricCollection(["HR", "Recall"], k=[1, 2], accumulators=accumulators)
    single, done, generator = trm.HR(2), threading.Event(), torch.Generator().manual_seed(0)
    batches = torch.randint(1, 4, (150, 5), generator=generator)

    def compute():
        """Return how often all values were computed."""
        for number in itertools.count():
            values = metrics.compute()
            for key, value in values.items():
                assert 0 <= value <= 1
                assert value == values[key.replace("HR", "Recall")]
            assert 0 <= single.compute() <= 1
            lengths = {len(rows) for rows in metrics.rows.values.values()}
            assert len(lengths | {len(metrics.rows.ids)}) <= 2  # each of two reads has rows of one moment
            if done.is_set():
                return number

    def update(ranks):
        metrics.update(ranks, groups=ranks % 2)
        single.update(ranks)

    update(batches[0])
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-5)
    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(compute) for _ in range(2)]
        try:
            for ranks in batches[1:]:
                update(ranks)
        finally:
            done.set()
        assert sum(reader.result() for reader in readers) > 5
    assert metrics.compute()["HR@2"] == single.compute() == (batches <= 2).double().mean()
    assert metrics["Recall@1"].num_users == len(metrics.rows) == batches.numel()


@pytest.mark.parametrize("scores", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("autocast", [torch.float16, torch.bfloat16])
def test_half_precision_under_autocast(scores, autocast):
    """Scores of one 16-bit type under autocast of the other are ranked as they are, with and without cut-offs."""
    metrics = trm.RecMetricCollection(["AUROC", "MRR", "HR@2"])
    with torch.autocast("cpu", dtype=autocast):
        metrics.update(SCORES.to(scores), TARGET, exclude=torch.tensor([[3], [3], [3]]))
    assert metrics.compute()["MRR"].item() == pytest.approx((1 / 2 + 1 + 1 / 3) / 3)


@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 0.0, 1.0])])
def test_own_row_weights_of_rows_that_do_not_count(weights):
    """A row without a relevant item, or of weight 0, has no weight in the mean, whatever `weights` returns."""

    class Own(trm.RankingMetric):
        formula = staticmethod(lambda ranking, k: ranking.any_hit(k).double())
        weights = staticmethod(lambda ranking: ranking.num_relevant + 1)

    metric = Own(2)
    metric.update(SCORES, torch.tensor([2, 1, -1]), weights=weights)
    assert metric.compute() == 1
    assert metric.num_users == (2 if weights is None else 1)
    Own.weights = staticmethod(lambda ranking: ranking.num_relevant[:1])
    with pytest.raises(TypeError, match="weights of Own@2 must return one weight per row"):
        metric.update(SCORES, TARGET)


def test_a_collection_that_cannot_be_made_changes_no_metric():
    """A collection of metrics that disagree is refused, and neither metrics nor accumulators belong to it."""
    metric, groups = trm.HR(2), trm.ByGroup("a")
    with pytest.raises(ValueError, match="ties"):
        trm.RecMetricCollection([metric, trm.NDCG(2, ties="optimistic")], accumulators=[groups])
    with pytest.raises(ValueError, match="ties"):
        trm.RecMetricCollection([metric], ties="optimistic", accumulators=[groups])
    metric.update(SCORES, TARGET)
    assert metric.compute() == 2 / 3
    assert trm.RecMetricCollection([metric], accumulators=[groups]).groups == ("a",)


def test_compute_groups_of_torchmetrics_keep_checks_apart():
    """Metrics that differ in `validate_args` have states of different names, so that they are not merged."""
    assert len({trm.HR(2, validate_args=checks).state_name for checks in (True, False, "deferred")}) == 3


def test_results_of_a_collection_are_copies():
    """Writing to returned values or standard errors changes no result."""
    metrics = collection()
    metrics.update(SCORES, TARGET)
    for results in (metrics.compute, metrics.standard_errors):
        before = numbers(results())
        for result in results().values():
            result.fill_(9)
        assert numbers(results()) == before


def test_rows_of_weight_0_have_no_flags():
    """A row that does not count is neither skipped, unreachable nor tied."""
    metric = trm.HR(2)
    scores = torch.tensor([[0.5, 0.5, 0.1], [0.5, 0.5, 0.1], [0.1, 0.2, 0.3], [0.1, 0.2, 0.3]])
    metric.update(scores, torch.tensor([0, 0, -1, -1]), weights=torch.tensor([1.0, 0.0, 1.0, 0.0]))
    metric.compute()
    assert (metric.num_users, metric.num_skipped, metric.num_tied) == (1, 1, 1)


def test_rows_without_weight_are_undefined():
    """Accumulators of one's own see which rows are in no mean: those of weight 0, too."""
    rows = trm.HR(1).rows(trm.Ranks(torch.tensor([1, 2])), torch.tensor([0.0, 1.0]))
    assert (rows.undefined.tolist(), rows.values.tolist()) == ([[True, False]], [[0.0, 0.0]])


def test_counts_beside_sums_of_float32(monkeypatch):
    """Where a device has no float64, rows are counted in int64: float32 stalls at 2^24."""
    for name, module in [*sys.modules.items()]:
        if name.startswith("torchrecmetrics.") and hasattr(module, "float_dtype"):
            monkeypatch.setattr(module, "float_dtype", lambda device: torch.float32)
    metric = trm.HR(1)
    metric.update(torch.tensor([1]))
    for _ in range(24):
        metric.merge_state(metric.metric_state)
    for _ in range(3):
        metric.update(torch.tensor([1]))
    assert metric.compute().dtype == torch.float32
    assert metric.num_users == 2**24 + 3
