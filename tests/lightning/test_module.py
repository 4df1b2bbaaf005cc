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


def test_validate_fit_test_validate():
    """One module goes through all stages, and no batch of a stage, or of the sanity check, counts in the next stage."""
    module, first, second = Recommender(), samples(20), samples(11, seed=1)
    run = trainer(pl)
    assert run.validate(module, loader(first), verbose=False) == [expected_of(first)]
    run.fit(module, loader(first), loader(second))
    assert logged(run) == expected_of(second)
    assert run.test(module, loader(first), verbose=False) == [expected_of(first, "test/")]
    assert run.validate(module, loader(second), verbose=False) == [expected_of(second)]


@pytest.mark.parametrize("inference_mode", [True, False])
def test_a_metric_collection_of_torchmetrics_is_logged(inference_mode):
    """`self.log_dict` takes a `MetricCollection` of torchmetrics whose metrics read one input, or one ranking."""

    class Plain(Recommender):
        def __init__(self, depth):
            super().__init__()
            self.depth = depth
            metrics = [getattr(trm, name)(k) for name in NAMES for k in KS]
            self.metrics = MetricCollection({metric.label: metric for metric in metrics}, prefix="val/")

        def validation_step(self, batch, batch_idx):
            scores = trm.Scores(*batch[:2])
            self.metrics.update(scores if self.depth is None else scores.ranking(depth=self.depth))
            self.log_dict(self.metrics)

    for depth in (None, max(KS)):
        run = trainer(pl, inference_mode=inference_mode)
        assert run.validate(Plain(depth), loader(samples(20)), verbose=False) == [expected_of(samples(20))]


def with_accumulators():
    accumulators = [trm.Window(updates=2), trm.ByGroup("even", "odd")]
    return trm.RecMetricCollection(["HR", "NDCG"], k=KS, prefix="train/", accumulators=accumulators)


@pytest.mark.parametrize("by_step", [False, True])
@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_values_of_steps_and_epochs(by_step):
    """A collection with groups and windows, and a metric, log values of steps and epochs; windows those of epochs."""

    class Module(Recommender):
        def __init__(self):
            super().__init__()
            self.metrics, self.single = with_accumulators(), trm.NDCG(10)

        def training_step(self, batch, batch_idx):
            scores, target, users = batch
            (self.metrics if by_step else self.metrics.update)(scores, target, groups=users % 2)
            (self.single if by_step else self.single.update)(scores, target)
            self.log_dict(self.metrics, on_step=by_step, on_epoch=True)
            self.log("single", self.single, on_step=by_step, on_epoch=True)
            return (self.weight * 0).sum()

    data, expected, ending = samples(20), with_accumulators(), "_epoch" if by_step else ""
    run = trainer(pl, log_every_n_steps=1)
    run.fit(Module(), loader(data))
    for scores, target, users in loader(data):
        expected.update(scores, target, groups=users % 2)
        last = with_accumulators()(scores, target, groups=users % 2)
    values = {key + ending: value for key, value in near(expected.compute(), 1e-6).items()}
    assert {key: logged(run)[key] for key in values} == values
    assert logged(run)["single" + ending] == values["train/NDCG@10" + ending]
    if by_step:
        assert {key: logged(run)[f"{key}_step"] for key in last} == near(last, 1e-6)
        assert math.isnan(logged(run)["train/NDCG@10/window_step"])


@pytest.mark.filterwarnings("ignore:HR@10 is 1 by construction")  # sessions of about nine entries
def test_entries_of_sessions():
    """`CollectSessions` in a module is logged and reset like any collection; sessions go on in later batches."""

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
    expected = trm.RecMetricCollection(NAMES, k=KS, prefix="val/")
    expected.update(trm.Sessions(scores, labels, ids))
    data = torch.utils.data.TensorDataset(scores, labels, ids)
    run = trainer(pl)
    run.fit(Module(), loader(samples(8)), loader(data, batch_size=16))
    assert logged(run) == near(expected.compute(), 1e-6)


NIGHTLY = [
    pytest.param(precision, marks=pytest.mark.nightly)
    for precision in ("64-true", "32-true", "16-true", "16-mixed", "bf16-mixed")
]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16-true", *NIGHTLY])
@pytest.mark.filterwarnings("ignore:.*")  # each precision plugin has warnings of its own about CPUs
def test_every_precision_is_exact(precision):
    """The values of 300 batches are exact, whatever dtype the module that holds the collection is cast to."""
    module, data = Recommender(), samples(80)
    run = trainer(pl, precision=precision)
    (got,) = run.validate(module, loader(data * 15), verbose=False)
    scores, target = columns(data)
    dtype = {"64-true": torch.float64, "16-true": torch.float16, "bf16-true": torch.bfloat16}.get(precision)
    exact = trm.RecMetricCollection(NAMES, k=KS, prefix="val/")
    exact.update(scores.to(dtype or scores.dtype), target)
    assert got == near(exact.compute())
    assert {state.dtype for state in module.metrics.evaluator.metric_state.values()} == {torch.float64, torch.int64}
