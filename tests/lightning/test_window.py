"""`RecMetricsCallback` with a `Window` or `Decay` logs the values of the last training rows while training goes on."""

import pytest
import torch
from trainers import QUIET, loader, logged, make_module, samples, trainer

import torchrecmetrics as trm
from torchrecmetrics.lightning import RecMetricsCallback

pytestmark = QUIET


def test_training_rows(tmp_path):
    """The window after the last batch gives the value of the last 100 rows, and validation is logged as usual."""
    import pytorch_lightning as pl

    module, data = make_module(pl), samples(120)

    def training_step(self, batch, batch_idx):
        scores, target, _ = batch
        return {"loss": (self.weight * 0).sum(), "scores": scores, "target": target}

    type(module).training_step = training_step
    callback = RecMetricsCallback("HR", k=3, accumulators=[trm.Window(100)])
    run = trainer(pl, tmp_path, callback, max_epochs=1, log_every_n_steps=10)
    run.fit(module, loader(data), loader(data[:8]))
    metric = trm.HR(3)
    metric.update(torch.stack([s for s, _, _ in data[-100:]]), torch.stack([t for _, t, _ in data[-100:]]))
    assert logged(run)["train/HR@3/window"] == pytest.approx(metric.compute().item(), abs=1e-6)
    assert "val/HR@3" in logged(run)
    assert "val/HR@3/window" not in logged(run)


def test_updates_and_decay(tmp_path):
    """A window of updates and decaying weights are logged side by side, without keeping training rows."""
    import pytorch_lightning as pl

    module, data = make_module(pl), samples(20)

    def training_step(self, batch, batch_idx):
        scores, target, _ = batch
        return {"loss": (self.weight * 0).sum(), "input": trm.Scores(scores, target)}

    type(module).training_step = training_step
    recent = [trm.Window(updates=2), trm.Decay(5)]
    callback = RecMetricsCallback(trm.RecMetricCollection("HR", k=9, accumulators=[*recent, trm.KeptRows()]))
    run = trainer(pl, tmp_path, callback, max_epochs=1, log_every_n_steps=5)
    run.fit(module, loader(data), loader(data))
    expected = trm.RecMetricCollection("HR", k=9, accumulators=[trm.Window(updates=2), trm.Decay(5)])
    for batch in loader(data):
        expected.update(*batch[:2])
    values = {f"train/{key}": pytest.approx(value.item()) for key, value in expected.compute().items() if "/" in key}
    assert {key: value for key, value in logged(run).items() if key.startswith("train/")} == values


def test_what_the_training_step_must_return(tmp_path):
    """A training step that returns a loss alone is refused."""
    import pytorch_lightning as pl

    run = trainer(pl, tmp_path, RecMetricsCallback("HR", k=3, accumulators=[trm.Decay(50)]), max_epochs=1)
    with pytest.raises((ValueError, TypeError), match="training_step must return a mapping"):
        run.fit(make_module(pl), loader(samples(8)), loader(samples(8)))
