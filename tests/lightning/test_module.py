"""A collection works inside a LightningModule: log_dict, checkpoints, precisions, and all stages on one module."""

import math

import pytest
import torch
from torch import nn
from trainers import (
    GROUP_CODES,
    QUIET,
    both_packages,
    groups_by_hand,
    loader,
    logged,
    samples,
    trainer,
)
from values import near

import torchrecmetrics as trm

pl = pytest.importorskip("pytorch_lightning")

pytestmark = QUIET

ITEMS = 50


class Recommender(pl.LightningModule):
    """A module whose scores do not depend on training, so that every value can be computed by hand."""

    def __init__(self, names=("HR", "NDCG", "MRR"), k=(1, 10)):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.val_metrics = trm.RecMetricCollection(names, k=k, prefix="val/")
        self.test_metrics = self.val_metrics.clone(prefix="test/")

    def training_step(self, batch, batch_idx):
        return (self.weight * 0).sum()

    def validation_step(self, batch, batch_idx):
        self.val_metrics.update(*batch)
        self.log_dict(self.val_metrics, prog_bar=True)

    def test_step(self, batch, batch_idx):
        self.test_metrics.update(*batch)
        self.log_dict(self.test_metrics)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def batches(n, seed=0, rows=4):
    """Return batches of random scores with two targets per row."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(n, rows, ITEMS, generator=generator)
    first = torch.randint(0, ITEMS, (n, rows), generator=generator)
    return list(zip(scores, torch.stack([first, (first + 7) % ITEMS], 2), strict=True))


def by_hand(data, prefix, names=("HR", "NDCG", "MRR"), k=(1, 10)):
    collection = trm.RecMetricCollection(names, k=k, prefix=prefix)
    collection.update(torch.cat([s for s, _ in data]), torch.cat([t for _, t in data]))
    return near(collection.compute(), 1e-6)


def test_validate_fit_test_validate(tmp_path):
    """One module goes through all stages, and no batch of a stage, or of the sanity check, counts in the next stage."""
    module, first, second = Recommender(), batches(5), batches(3, seed=1)
    run = trainer(pl, tmp_path)
    assert run.validate(module, loader(first, batch_size=None), verbose=False) == [by_hand(first, "val/")]
    run.fit(module, loader(first, batch_size=None), loader(second, batch_size=None))
    assert logged(run) == by_hand(second, "val/")
    assert run.test(module, loader(first, batch_size=None), verbose=False) == [by_hand(first, "test/")]
    assert run.validate(module, loader(second, batch_size=None), verbose=False) == [by_hand(second, "val/")]


def test_checkpoint_and_early_stopping_on_our_keys(tmp_path):
    """ModelCheckpoint and EarlyStopping monitor a member like any metric, and no state is in the checkpoint."""
    callbacks = [
        pl.callbacks.ModelCheckpoint(
            tmp_path, "{val/NDCG@10:.3f}", monitor="val/NDCG@10", mode="max", auto_insert_metric_name=False
        ),
        pl.callbacks.EarlyStopping("val/MRR@10", mode="max", patience=1),
    ]
    module, data = Recommender(), batches(3)
    run = trainer(pl, tmp_path, *callbacks, max_epochs=5, enable_checkpointing=True)
    run.fit(module, loader(data, batch_size=None), loader(data, batch_size=None))
    assert run.current_epoch == 2
    best = callbacks[0].best_model_score.item()
    assert best == by_hand(data, "val/")["val/NDCG@10"]
    saved = torch.load(callbacks[0].best_model_path, weights_only=False)
    assert set(saved["state_dict"]) == {"weight"}
    assert f"{best:.3f}" in callbacks[0].best_model_path


def test_two_loaders_with_a_collection_each(tmp_path):
    """Clones with different prefixes keep the values of two loaders apart."""

    class Two(Recommender):
        def __init__(self):
            super().__init__()
            self.both = nn.ModuleList([self.val_metrics.clone(prefix="valid/"), self.val_metrics.clone(prefix="cold/")])

        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            self.both[dataloader_idx].update(*batch)
            self.log_dict(self.both[dataloader_idx], add_dataloader_idx=False)

    first, second = batches(3), batches(2, seed=1)
    run = trainer(pl, tmp_path)
    assert run.validate(Two(), [loader(first, batch_size=None), loader(second, batch_size=None)], verbose=False) == [
        by_hand(first, "valid/"),
        by_hand(second, "cold/"),
    ]


def with_accumulators():
    accumulators = [trm.Window(updates=2), trm.ByGroup("a", "b"), trm.Decay(100)]
    return trm.RecMetricCollection(["HR", "NDCG"], k=[1, 10], prefix="train/", accumulators=accumulators)


@pytest.mark.parametrize("by_step", [False, True])
def test_values_of_steps_and_epochs(by_step, tmp_path):
    """A collection with groups and windows, and a metric, log values of steps and epochs; windows those of epochs."""
    groups = torch.tensor([0, 1, 0, 1])

    class Module(pl.LightningModule):
        configure_optimizers = Recommender.configure_optimizers

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))
            self.metrics, self.single = with_accumulators(), trm.NDCG(10)

        def training_step(self, batch, batch_idx):
            (self.metrics if by_step else self.metrics.update)(*batch, groups=groups)
            (self.single if by_step else self.single.update)(*batch)
            self.log_dict(self.metrics, on_step=by_step, on_epoch=True)
            self.log("single", self.single, on_step=by_step, on_epoch=True)
            return (self.weight * 0).sum()

    data, expected = batches(5), with_accumulators()
    run = trainer(pl, tmp_path, log_every_n_steps=1)
    run.fit(Module(), loader(data, batch_size=None))
    for batch in data:
        expected.update(*batch, groups=groups)
    values = {f"{key}{'_epoch' if by_step else ''}": value for key, value in near(expected.compute(), 1e-6).items()}
    single = values[f"train/NDCG@10{'_epoch' if by_step else ''}"]
    assert {key: logged(run)[key] for key in values} == values
    assert logged(run)["single_epoch" if by_step else "single"] == single
    if by_step:
        last = near(with_accumulators()(*data[-1], groups=groups), 1e-6)
        assert {key: logged(run)[f"{key}_step"] for key in last} == last
        assert math.isnan(logged(run)["train/NDCG@10/window_step"])


def test_entries_of_sessions(tmp_path):
    """`CollectSessions` in a module is logged and reset like any collection; sessions go on in later batches."""

    class Module(Recommender):
        def __init__(self):
            super().__init__()
            self.metrics = trm.CollectSessions(trm.RecMetricCollection(["MRR", "NDCG"], k=3, prefix="val/"))

        def validation_step(self, batch, batch_idx):
            self.metrics.update(*batch)
            self.log_dict(self.metrics)

    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.rand(60, generator=generator), torch.rand(60, generator=generator) < 0.4
    ids = torch.randint(7, (60,), generator=generator)
    expected = trm.RecMetricCollection(["MRR", "NDCG"], k=3, prefix="val/")
    expected.update(trm.Sessions(scores, labels, ids))
    data = list(zip(scores.split(16), labels.split(16), ids.split(16), strict=True))
    run = trainer(pl, tmp_path)
    run.fit(Module(), loader(batches(2), batch_size=None), loader(data, batch_size=None))
    assert logged(run) == near(expected.compute(), 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "precision",
    [
        "bf16-true",
        *(
            pytest.param(precision, marks=pytest.mark.nightly)
            for precision in ("64-true", "32-true", "16-true", "16-mixed", "bf16-mixed")
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:.*")  # each precision plugin has warnings of its own about CPUs
def test_every_precision_is_exact(precision, tmp_path):
    """The values of 1,000 batches are exact, whatever dtype the module that holds the collection is cast to."""
    module, data = Recommender(["HR", "MRR"], k=[1, 10]), batches(20) * 50
    run = trainer(pl, tmp_path, precision=precision)
    got = run.validate(module, loader(data, batch_size=None), verbose=False)[0]
    scores_dtype = {"64-true": torch.float64, "16-true": torch.float16, "bf16-true": torch.bfloat16}.get(precision)
    seen = [(s.to(scores_dtype or s.dtype), t) for s, t in data[:20]]
    exact = trm.RecMetricCollection(["HR", "MRR"], k=[1, 10], prefix="val/")
    exact.update(torch.cat([s for s, _ in seen]), torch.cat([t for _, t in seen]))
    assert got == near(exact.compute())
    assert {state.dtype for state in module.val_metrics.evaluator.metric_state.values()} == {torch.float64, torch.int64}


@both_packages
def test_log_dict_logs_children(pl, tmp_path):
    """A collection that a module logs itself also logs its groups, which can be monitored and are reset with it."""

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))
            self.metrics = trm.RecMetricCollection(
                ["HR", "NDCG"], k=[5], prefix="val/", accumulators=[trm.ByGroup("a", "b")]
            )

        def training_step(self, batch, batch_idx):
            return (self.weight * 0).sum()

        def validation_step(self, batch, batch_idx):
            scores, target, users = batch
            self.metrics.update(scores, target, groups=GROUP_CODES[users])
            self.log_dict(self.metrics)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = samples(13)
    best = pl.callbacks.ModelCheckpoint(tmp_path, monitor="val/NDCG@5/b", mode="max")
    running = trainer(pl, tmp_path, best, enable_checkpointing=True)
    running.fit(Module(), loader(data), loader(data))
    assert logged(running) == groups_by_hand(data)
    assert best.best_model_score.item() == pytest.approx(logged(running)["val/NDCG@5/b"])
