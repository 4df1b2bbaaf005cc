"""A collection works inside a LightningModule: log_dict, checkpoints, precisions, and all stages on one module."""

import math

import pytest
import torch
from torch import nn
from torchmetrics import MetricCollection
from trainers import QUIET, Optimised, by_hand, columns, loader, logged, samples, trainer
from values import near

import torchrecmetrics as trm

pl = pytest.importorskip("pytorch_lightning")

pytestmark = QUIET

NAMES, KS = ("HR", "NDCG", "MRR"), (1, 10)


class Recommender(Optimised, pl.LightningModule):
    """A module whose scores do not depend on training, so that every value can be computed by hand."""

    def __init__(self, **options):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.metrics = trm.RecMetricCollection(NAMES, k=KS, prefix="val/", **options)
        self.test_metrics = self.metrics.clone(prefix="test/")

    def training_step(self, batch, batch_idx):
        return (self.weight * 0).sum()

    def validation_step(self, batch, batch_idx):
        self.metrics.update(*batch[:2])
        self.log_dict(self.metrics, prog_bar=True)

    def test_step(self, batch, batch_idx):
        self.test_metrics.update(*batch[:2])
        self.log_dict(self.test_metrics)


def expected_of(data, prefix="val/"):
    return by_hand(data, prefix, names=NAMES, tolerance=1e-6)


def test_each_stage_logs_the_rows_of_its_own_epoch():
    """No batch of an earlier validation, of the fit's last epoch or of the sanity check counts."""
    module, first, second = Recommender(), samples(20), samples(11, seed=1)
    run = trainer(pl)
    run.fit(module, loader(first), loader(second))

    assert logged(run) == expected_of(second)
    assert run.validate(module, loader(first), verbose=False) == [expected_of(first)]
    assert run.test(module, loader(second), verbose=False) == [expected_of(second, "test/")]


@pytest.mark.parametrize("inference_mode", [True, False])
@pytest.mark.parametrize("input_of", [lambda scores: scores, lambda scores: scores.ranking(depth=10)])
def test_a_metric_collection_of_torchmetrics_is_logged(input_of, inference_mode):
    """Its metrics read one input, or one ranking."""

    class Plain(Recommender):
        def __init__(self):
            super().__init__()
            metrics = [getattr(trm, name)(k) for name in NAMES for k in KS]
            self.metrics = MetricCollection({metric.label: metric for metric in metrics}, prefix="val/")

        def validation_step(self, batch, batch_idx):
            self.metrics.update(input_of(trm.Scores(*batch[:2])))
            self.log_dict(self.metrics)

    run = trainer(pl, inference_mode=inference_mode)

    assert run.validate(Plain(), loader(samples(20)), verbose=False) == [expected_of(samples(20))]


def with_accumulators():
    accumulators = [trm.Window(updates=2), trm.ByGroup("even", "odd")]
    return trm.RecMetricCollection(["HR", "NDCG"], k=KS, prefix="train/", accumulators=accumulators)


class Training(Recommender):
    """A module with a collection and a metric over training rows, by `forward` or by `update`."""

    def __init__(self, by_step):
        super().__init__()
        self.by_step, self.metrics, self.single = by_step, with_accumulators(), trm.NDCG(10)

    def training_step(self, batch, batch_idx):
        scores, target, users = batch
        (self.metrics if self.by_step else self.metrics.update)(scores, target, groups=users % 2)
        (self.single if self.by_step else self.single.update)(scores, target)
        self.log_dict(self.metrics, on_step=self.by_step, on_epoch=True)
        self.log("single", self.single, on_step=self.by_step, on_epoch=True)
        return (self.weight * 0).sum()


def trained(by_step):
    """Return what is logged after one epoch over 20 samples."""
    run = trainer(pl, log_every_n_steps=1, max_epochs=1)
    run.fit(Training(by_step), loader(samples(20)))
    return logged(run)


@pytest.mark.parametrize(("by_step", "ending"), [(False, ""), (True, "_epoch")])
@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_values_of_an_epoch_are_those_of_all_its_batches(by_step, ending):
    metrics = with_accumulators()
    for scores, target, users in loader(samples(20)):
        metrics.update(scores, target, groups=users % 2)
    expected = near(metrics.compute(), 1e-6)
    values = trained(by_step)

    assert {key: values[key + ending] for key in expected} == expected
    assert values["single" + ending] == expected["train/NDCG@10"]


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_values_of_a_step_are_those_of_its_batch():
    scores, target, users = [*loader(samples(20))][-1]
    expected = near(with_accumulators()(scores, target, groups=users % 2), 1e-6)
    values = trained(True)

    assert {key: values[f"{key}_step"] for key in expected} == expected
    assert math.isnan(values["train/NDCG@10/window_step"])


@pytest.mark.filterwarnings("ignore:HR@10 is 1 by construction")  # sessions of about nine entries
def test_entries_of_sessions_go_on_in_later_batches_and_are_reset_with_the_epoch():
    class Module(Recommender):
        def __init__(self):
            super().__init__()
            self.metrics = trm.CollectSessions(self.metrics)

        def validation_step(self, batch, batch_idx):
            self.metrics.update(*batch)
            self.log_dict(self.metrics)

    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.rand(60, generator=generator), torch.rand(60, generator=generator) < 0.4
    ids = torch.randint(7, (60,), generator=generator)
    whole = trm.RecMetricCollection(NAMES, k=KS, prefix="val/")
    whole.update(trm.Sessions(scores, labels, ids))
    run = trainer(pl)
    run.fit(Module(), loader(samples(8)), loader(torch.utils.data.TensorDataset(scores, labels, ids), batch_size=16))

    assert logged(run) == near(whole.compute(), 1e-6)


OTHERS = [pytest.param(name, marks=pytest.mark.nightly) for name in ("64-true", "32-true", "16-true", "16-mixed")]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16-true", *OTHERS, pytest.param("bf16-mixed", marks=pytest.mark.nightly)])
@pytest.mark.filterwarnings("ignore:.*")  # each precision plugin has warnings of its own about CPUs
def test_values_of_300_batches_are_exact_in_every_precision(precision):
    """States stay float64 and int64, whatever dtype the module that holds the collection is cast to."""
    module, data = Recommender(), samples(80)
    (values,) = trainer(pl, precision=precision).validate(module, loader(data * 15), verbose=False)
    scores, target = columns(data)
    dtype = {"64-true": torch.float64, "16-true": torch.float16, "bf16-true": torch.bfloat16}.get(precision)
    exact = trm.RecMetricCollection(NAMES, k=KS, prefix="val/")
    exact.update(scores.to(dtype or scores.dtype), target)

    assert values == near(exact.compute())
    assert {state.dtype for state in module.metrics.evaluator.metric_state.values()} == {torch.float64, torch.int64}
