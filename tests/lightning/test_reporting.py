"""Both callbacks compose keys, fill loggers, check monitors before the first epoch, and work with both packages."""

import contextlib
import csv
import functools
import subprocess
import sys
import textwrap

import pytest
import torch
from trainers import (
    KS,
    NAMES,
    PACKAGES,
    QUIET,
    both_packages,
    by_hand,
    catalogue,
    loader,
    logged,
    make_module,
    samples,
    trainer,
)

import torchrecmetrics as trm
from torchrecmetrics.lightning import CatalogueEvaluationCallback, RecMetricsCallback

pytestmark = QUIET


@both_packages
def test_loggers_hold_what_each_epoch_gave(pl, tmp_path):
    """The CSV and TensorBoard loggers hold every epoch's values, and no value of the sanity check."""
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    loggers = [pl.loggers.CSVLogger(tmp_path / "csv"), pl.loggers.TensorBoardLogger(tmp_path / "tb")]
    data = samples(10)
    run = trainer(pl, tmp_path, RecMetricsCallback(NAMES, k=KS, log_counts=True), logger=loggers, max_epochs=3)
    run.fit(make_module(pl), loader(data), loader(data))
    counts = {"val/num_users": 10, "val/num_skipped": 0, "val/num_unreachable": 0, "val/num_tied": 0}
    expected = [by_hand(data, "val/", sign=sign, tolerance=1e-6) | counts for sign in (1, -1, 1)]
    with open(f"{loggers[0].log_dir}/metrics.csv") as file:
        rows = [{key: float(row[key]) for key in row if key.startswith("val/")} for row in csv.DictReader(file)]
    assert rows == expected
    events = event_accumulator.EventAccumulator(loggers[1].log_dir)
    events.Reload()
    for key in expected[0]:
        assert [event.value for event in events.Scalars(key)] == [values[key] for values in expected]
    assert {tag for tag in events.Tags()["scalars"] if tag.startswith("val/")} == set(expected[0])


def test_prefix_and_key_format(pl, tmp_path):
    """Keys are composed of prefix, name and key format, and `prog_bar` takes labels or keys."""
    callback = RecMetricsCallback(
        ["HR", "NDCG"],
        k=10,
        prefix="{stage}_full/{name}_",
        key_format="{name}_at_{k}",
        prog_bar=["HR@10", "NDCG_at_10"],
    )
    run = trainer(pl, tmp_path, callback)
    run.validate(make_module(pl), loader(samples(3)), verbose=False)
    assert set(logged(run)) == {"val_full/val_HR_at_10", "val_full/val_NDCG_at_10"} == set(run.progress_bar_metrics)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: RecMetricsCallback("HR", k=1, embeddings=lambda module: None),
            r"^RecMetricsCallback has no option 'embeddings'\. There are metrics, k, stages",
        ),
        (
            lambda: RecMetricsCallback("NDCG", k=1, gain="exponential"),
            r"^RecMetricsCallback has no option 'gain': .* instance, trm\.DCG\(10, gain=\.\.\.\)",
        ),
        (
            lambda: RecMetricsCallback("HR", k=1, stages="val"),
            "^stages must be one of 'validate', 'test', got 'val'",
        ),
    ],
)
def test_unknown_options_and_stages(make, message):
    """An unknown option, or a short name of a stage, raises an error with a cure."""
    with pytest.raises(ValueError, match=message):
        make()


def test_callbacks_that_log_the_same_key(pl, tmp_path):
    """Two callbacks that would log the same key raise an error, because one value would replace the other silently."""
    data, step = samples(5), lambda s, t, u: {"scores": s, "target": t}
    whole = functools.partial(CatalogueEvaluationCallback, "HR", k=1, embed=lambda m: None, target=catalogue()[0])
    for others in ([RecMetricsCallback("HR", k=1)], [whole()]):
        run = trainer(pl, tmp_path, RecMetricsCallback("HR", k=[1, 2]), *others)
        with pytest.raises(ValueError, match="two values would be logged as 'val/HR@1': let prefix="):
            run.validate(make_module(pl, step), loader(data), verbose=False)
    with pytest.raises(ValueError, match="two values would be logged as 'val/HR@1'"):
        trainer(pl, tmp_path, whole(), whole()).fit(make_module(pl, step), loader(data), loader(data))
    run = trainer(pl, tmp_path, RecMetricsCallback("HR", k=1), whole(stages="test"), RecMetricsCallback("HR", k=2))
    run.validate(make_module(pl, step), loader(data), verbose=False)
    # a callback that was refused can be used in another Trainer
    one, other = RecMetricsCallback("HR", k=1), RecMetricsCallback("HR", k=1, dataloaders=["cold"])
    for callback, key in (
        (RecMetricsCallback("HR", k=1, prefix="", dataloaders=["a", "b"]), "HR@1"),
        (RecMetricsCallback({"num_users": trm.HR(1)}, log_counts=True), "a/num_users"),
    ):
        run, loaders = trainer(pl, tmp_path, callback), {"a": loader(data), "b": loader(data)}
        with pytest.raises(ValueError, match=f"two values would be logged as '{key}'"):
            run.validate(make_module(pl, step), loaders, verbose=False)
    run = trainer(pl, tmp_path, one, RecMetricsCallback("HR", k=1))
    with pytest.raises(ValueError, match="two values"):
        run.validate(make_module(pl, step), loader(data), verbose=False)
    trainer(pl, tmp_path, one, other).validate(make_module(pl, step), loader(data), verbose=False)


def test_the_same_callback_twice(pl, tmp_path):
    """The same callback twice in a Trainer raises an error, because it would count every batch twice."""
    callback = RecMetricsCallback("HR", k=1)
    with pytest.raises(ValueError, match="two values would be logged as 'val/HR@1'"):
        trainer(pl, tmp_path, callback, callback).validate(make_module(pl), loader(samples(5)), verbose=False)


def test_keys_that_mlflow_refuses(pl, tmp_path):
    """Keys with '@', which MLflow would refuse when the first validation ends, raise before with a cure."""

    class MLFlowLogger(pl.loggers.CSVLogger):
        """A stand-in for the logger of that name, which needs a server."""

    logger, data = MLFlowLogger(tmp_path), samples(5)
    run = trainer(pl, tmp_path, RecMetricsCallback("HR", k=1), logger=logger)
    with pytest.raises(ValueError, match=r"MLflow takes letters.*not 'val/HR@1'.*key_format='{name}_at_{k}'"):
        run.fit(make_module(pl), loader(data), loader(data))
    autologger = type("__MlflowPLCallback", (pl.Callback,), {})()  # what mlflow.pytorch.autolog adds to the callbacks
    run = trainer(pl, tmp_path, RecMetricsCallback("HR", k=1), autologger)
    with pytest.raises(ValueError, match=r"MLflow takes letters.*not 'val/HR@1'.*key_format='{name}_at_{k}'"):
        run.fit(make_module(pl), loader(data), loader(data))
    run = trainer(pl, tmp_path, RecMetricsCallback("HR", k=1, key_format="{name}_at_{k}"), logger=logger)
    run.fit(make_module(pl), loader(data), loader(data))
    assert "val/HR_at_1" in run.logged_metrics


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("package", PACKAGES)
def test_one_package_is_enough(package):
    """The callback uses only the package that is imported, and importing torchrecmetrics imports neither package."""
    other = PACKAGES[1 - PACKAGES.index(package)].partition(".")[0]
    code = f"""
        import sys
        import torchrecmetrics
        assert not {{"lightning", "pytorch_lightning", "torch_geometric"}} & set(sys.modules)
        sys.modules["{other}"] = None
        import importlib.util
        found = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *more: None if name == "{other}" else found(name, *more)
        from torchrecmetrics.lightning import RecMetricsCallback
        import {package} as pl
        assert issubclass(RecMetricsCallback, pl.Callback)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=120)


# ------------------------------------------------------------------------------------------------------------- monitors


@both_packages
def test_checkpoint_and_early_stopping(pl, tmp_path):
    """ModelCheckpoint and EarlyStopping monitor a key of the callback, whichever of them comes first in the list."""
    data = samples(10)
    keep = pl.callbacks.ModelCheckpoint(
        tmp_path, "{epoch}-{val/NDCG@10:.4f}", monitor="val/NDCG@10", mode="max", auto_insert_metric_name=False
    )
    stop = pl.callbacks.EarlyStopping("val/MRR@10", mode="max", patience=2)
    run = trainer(pl, tmp_path, stop, RecMetricsCallback(NAMES, k=KS), keep, max_epochs=9, enable_checkpointing=True)
    run.fit(make_module(pl), loader(data), loader(data))
    values = [by_hand(data, sign=sign)["NDCG@10"] for sign in (1, -1)]
    assert keep.best_model_score.item() == max(values, key=lambda value: value.expected)
    assert run.current_epoch < 9
    saved = torch.load(keep.best_model_path, weights_only=False)
    assert set(saved["state_dict"]) == {"weight"}
    assert not [key for key in saved["callbacks"] if "RecMetrics" in key]


@pytest.mark.parametrize(
    ("monitor", "mode", "message"),
    [
        ("val/NDCG@10", "min", "monitor='val/NDCG@10', mode='min'.: higher is better, pass mode='max'"),
        ("val/NDCG@20", "max", "nothing logs that key. Logged are .*val/NDCG@10"),
        ("NDCG@10", "max", "nothing logs that key. Logged are val/NDCG@10"),
        ("val_NDCG@10", "max", "nothing logs that key. Logged are val/NDCG@10"),
        ("test/NDCG@10", "max", "nothing logs that key"),
        ("val/ndgc@10", "max", "nothing logs that key"),
        ("val/NDCG", "max", "nothing logs that key"),
    ],
)
@pytest.mark.parametrize("sanity", [0, 2])
def test_monitors_are_checked_before_the_first_epoch(sanity, monitor, mode, message, pl, tmp_path):
    """A monitor with the wrong mode, or of a key that nothing logs, raises in the sanity check.

    Without one, the wrong mode raises all the same, and a key that the module may log causes a warning.
    """
    for kind in (pl.callbacks.EarlyStopping, pl.callbacks.ModelCheckpoint):
        callback = RecMetricsCallback(["HR", "NDCG"], k=[5, 10], log_counts="num_users" not in monitor)
        options = {"num_sanity_val_steps": sanity, "enable_checkpointing": kind is pl.callbacks.ModelCheckpoint}
        run = trainer(pl, tmp_path, callback, kind(monitor=monitor, mode=mode), **options)
        warns = sanity == 0 and "higher" not in message
        warned = pytest.warns(UserWarning, match=message) if warns else contextlib.nullcontext()
        with warned, pytest.raises((ValueError, RuntimeError), match=None if warns else message):
            run.fit(make_module(pl), loader(samples(5)), loader(samples(5)))
        assert run.current_epoch == 0
        assert run.global_step == (2 if warns else 0)
    run.test(make_module(pl), loader(samples(5)), verbose=False)  # no callback monitors a test


@pytest.mark.parametrize(
    ("monitor", "mode"),
    [
        ("val/NDCG@10", "max"),
        ("val/num_users", "min"),
        *((key, "min") for key in ("val/loss", "val/auc@10", "val/coverage@10", "val/sampled-NDCG@10", "own/HR@3")),
        *((key, "min") for key in ("val/NDCG@20", "val_NDCG@10", "NDCG@10", "train/NDCG@10", "train/NDCG-x@10")),
    ],
)
def test_monitors_of_what_the_module_logs(monitor, mode, pl, tmp_path):
    """Monitors of keys that the module logs are accepted, however similar to our keys they are."""
    module = make_module(pl)
    validate, train = type(module).validation_step, type(module).training_step

    def validation_step(self, batch, batch_idx):
        if monitor not in ("val/NDCG@10", "val/num_users") and not monitor.startswith("train"):
            self.log(monitor, 1.0, batch_size=4)
        return validate(self, batch, batch_idx)

    def training_step(self, batch, batch_idx):
        if monitor.startswith("train"):
            self.log(monitor, 1.0, batch_size=4)
        return train(self, batch, batch_idx)

    type(module).validation_step, type(module).training_step = validation_step, training_step
    stop = pl.callbacks.EarlyStopping(monitor, mode=mode, check_on_train_epoch_end=monitor.startswith("train"))
    run = trainer(pl, tmp_path, stop, RecMetricsCallback(["HR", "NDCG"], k=[5, 10], log_counts=True))
    run.fit(module, loader(samples(5)), loader(samples(5)))
    assert monitor in run.callback_metrics


class Place(trm.RankingMetric):
    """A metric whose lower values are better: the rank of the item."""

    formula = staticmethod(lambda ranking, k: ranking.ranks[:, 0].clamp(max=k + 1))
    higher_is_better = False


def test_a_metric_that_should_fall(pl, tmp_path):
    """A monitor of a metric that should fall must have mode "min", and monitors of other metrics mode "max"."""
    data, callback = samples(10), RecMetricsCallback(["HR", Place(10)], k=1)
    keep = pl.callbacks.ModelCheckpoint(tmp_path, monitor="val/Place@10", mode="min")
    run = trainer(pl, tmp_path, callback, keep, enable_checkpointing=True)
    run.fit(make_module(pl), loader(data), loader(data))
    assert keep.best_model_score is not None
    for monitor, mode, better in (("val/Place@10", "max", "lower"), ("val/HR@1", "min", "higher")):
        stop = pl.callbacks.EarlyStopping(monitor, mode=mode)
        with pytest.raises(ValueError, match=f"monitor='{monitor}', mode='{mode}'.: {better} is better"):
            trainer(pl, tmp_path, callback, stop).fit(make_module(pl), loader(data), loader(data))


def test_schedulers_are_checked_too(pl, tmp_path):
    """A scheduler that waits for our keys to fall raises an error, because it would never see them improve."""
    module = make_module(pl)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val/HR@1"}}

    type(module).configure_optimizers = configure_optimizers
    run = trainer(pl, tmp_path, RecMetricsCallback("HR", k=1))
    with pytest.raises(ValueError, match=r"scheduler .monitor='val/HR@1', mode='min'.: higher is better"):
        run.fit(module, loader(samples(5)), loader(samples(5)))
    assert run.global_step == 0


def test_misspelt_monitors_of_schedulers(pl, tmp_path):
    """A scheduler with a misspelt monitor raises an error, too."""
    module = make_module(pl)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max")
        return [optimizer], [{"scheduler": scheduler, "monitor": "val/hr1", "strict": False}]

    type(module).configure_optimizers = configure_optimizers
    run = trainer(pl, tmp_path, RecMetricsCallback("HR", k=1))
    with pytest.raises(ValueError, match=r"scheduler .monitor='val/hr1'.: nothing logs that key. Logged are val/HR@1"):
        run.fit(module, loader(samples(5)), loader(samples(5)))
    assert run.global_step == 0


def test_monitors_with_several_loaders_or_stages(pl, tmp_path):
    """Monitors are checked against the keys of all callbacks and loaders; a stage not asked for logs nothing."""
    data = samples(5)
    two, named = [loader(data)] * 2, {"valid": loader(data), "test": loader(data)}

    def fit(monitor, loaders, *callbacks):
        run = trainer(pl, tmp_path, pl.callbacks.EarlyStopping(monitor, mode="max"), *callbacks)
        run.fit(make_module(pl), loader(data), loaders)
        return set(logged(run))

    one, other = RecMetricsCallback("HR", k=1), RecMetricsCallback("HR", k=2)
    assert len(fit("val/HR@2/dataloader_idx_1", two, one, other)) == 4
    assert len(fit("test/HR@2", named, one, other)) == 4
    with pytest.raises(ValueError, match=r"Logged are .*val/HR@1/dataloader_idx_"):
        fit("val/HR@1", two, one)
    with pytest.raises(ValueError, match="nothing logs that key"):
        fit("val/HR@1", loader(data), RecMetricsCallback("HR", k=1, stages="test"))
    assert fit("val/HR@2", loader(data), one, other) == {"val/HR@1", "val/HR@2"}
