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

DATA = samples(10)


def fit(pl, *callbacks, loaders=None, module=None, **options):
    """Fit with these callbacks, and return the Trainer."""
    run = trainer(pl, *callbacks, **options)
    run.fit(module or make_module(pl), loader(DATA), loaders or loader(DATA))
    return run


@both_packages
def test_loggers_hold_what_each_epoch_gave(pl, tmp_path):
    """The CSV and TensorBoard loggers hold every epoch's values, and no value of the sanity check."""
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    loggers = [pl.loggers.CSVLogger(tmp_path / "csv"), pl.loggers.TensorBoardLogger(tmp_path / "tb")]
    fit(pl, RecMetricsCallback(NAMES, k=KS, log_counts=True), logger=loggers, max_epochs=3)
    counts = {"val/num_users": 10, "val/num_skipped": 0, "val/num_unreachable": 0, "val/num_tied": 0}
    expected = [by_hand(DATA, "val/", sign=sign, tolerance=1e-6) | counts for sign in (1, -1, 1)]
    with open(f"{loggers[0].log_dir}/metrics.csv") as file:
        rows = [{key: float(row[key]) for key in row if key.startswith("val/")} for row in csv.DictReader(file)]
    assert rows == expected
    events = event_accumulator.EventAccumulator(loggers[1].log_dir)
    events.Reload()
    for key in expected[0]:
        assert [event.value for event in events.Scalars(key)] == [values[key] for values in expected]
    assert {tag for tag in events.Tags()["scalars"] if tag.startswith("val/")} == set(expected[0])


def test_prefix_and_key_format(pl):
    """Keys are composed of prefix, name and key format, and `prog_bar` takes labels or keys."""
    options = {"prefix": "{stage}_full/{name}_", "key_format": "{name}_at_{k}"}
    callback = RecMetricsCallback(["HR", "NDCG"], k=10, prog_bar=["HR@10", "NDCG_at_10"], **options)
    run = trainer(pl, callback)
    run.validate(make_module(pl), loader(DATA), verbose=False)
    assert set(logged(run)) == {"val_full/val_HR_at_10", "val_full/val_NDCG_at_10"} == set(run.progress_bar_metrics)


@pytest.mark.parametrize("key", ["val/NDCG@10", "cold/NDCG@10", "NDCG@10"])
def test_prog_bar_takes_keys_as_they_are_logged(key):
    assert RecMetricsCallback("NDCG", k=[5, 10], prog_bar=[key]).prog_bar == {"NDCG@10"}


@pytest.mark.parametrize(
    ("prog_bar", "shown"), [(True, None), (False, set()), (["HR@5", "num_tied"], {"HR@5", "num_tied"})]
)
def test_prog_bar_takes_what_log_takes(prog_bar, shown, pl):
    """In both callbacks `prog_bar=True` shows all logged keys, of groups and counts too, False none, a list these."""
    options = {"k": [5, 10], "prog_bar": prog_bar, "log_counts": True}
    steps = RecMetricsCallback("HR", accumulators=[trm.ByGroup("even", "odd")], **options)
    embed = lambda m: (torch.eye(30, 40), torch.rand(40, 40))  # noqa: E731
    whole = CatalogueEvaluationCallback("HR", embed=embed, target=catalogue()[0], prefix="whole/", **options)
    run = trainer(pl, steps, whole)
    module = make_module(pl, lambda s, t, u: {"scores": s, "target": t, "groups": u % 2})
    run.validate(module, loader(DATA), verbose=False)
    assert logged(run).keys() >= {"val/HR@5", "val/HR@10/odd", "whole/HR@5", "whole/num_tied"}
    expected = set(logged(run)) if shown is None else {f"{name}/{key}" for name in ("val", "whole") for key in shown}
    assert set(run.progress_bar_metrics) == expected


@pytest.mark.parametrize(
    ("metrics", "options", "message"),
    [
        ("HR", {"embeddings": None}, r"^RecMetricsCallback has no option 'embeddings'\. There are metrics, k, stages"),
        ("HR", {"tie": "realistic"}, "no option 'tie'; did you mean 'ties'"),
        (
            "NDCG",
            {"gain": "exponential"},
            r"has no option 'gain': pass an instance, such as trm\.DCG\(10, gain=\.\.\.\)",
        ),
        ("HR", {"stages": "val"}, "^stages must be one of 'validate', 'test', got 'val'"),
        ("HR", {"prog_bar": "NDCG@10"}, "prog_bar has NDCG@10, but the metrics are HR@5"),
        (
            trm.RecMetricCollection("HR", k=5),
            {"ties": "optimistic"},
            "k, ties cannot be combined with a collection",
        ),
    ],
)
def test_arguments_of_both_callbacks(metrics, options, message):
    with pytest.raises(ValueError, match=message):
        RecMetricsCallback(metrics, k=5, **options)


def test_callbacks_that_log_the_same_key(pl):
    """Two callbacks that would log the same key raise an error, because one value would replace the other silently."""
    whole = functools.partial(CatalogueEvaluationCallback, "HR", k=1, embed=lambda m: None, target=catalogue()[0])
    one, cold = RecMetricsCallback("HR", k=1), RecMetricsCallback("HR", k=1, dataloaders=["cold"])
    two = {"a": loader(DATA), "b": loader(DATA)}
    for callbacks, loaders, key in (
        ([one, one], loader(DATA), "val/HR@1"),  # which would count every batch twice
        ([RecMetricsCallback("HR", k=[1, 2]), one], loader(DATA), "val/HR@1"),
        ([one, whole()], loader(DATA), "val/HR@1"),
        ([whole(), whole()], loader(DATA), "val/HR@1"),
        ([RecMetricsCallback("HR", k=1, prefix="", dataloaders=["a", "b"])], two, "HR@1"),
        ([RecMetricsCallback({"num_users": trm.HR(1)}, log_counts=True)], two, "a/num_users"),
    ):
        with pytest.raises(ValueError, match=f"two values would be logged as '{key}': put {{name}} into prefix="):
            fit(pl, *callbacks, loaders=loaders)
    # a callback that was refused can be used in another Trainer
    run = trainer(pl, one, cold, whole(stages="test"), RecMetricsCallback("HR", k=2))
    run.validate(make_module(pl), loader(DATA), verbose=False)
    assert set(logged(run)) == {"val/HR@1", "cold/HR@1", "val/HR@2"}


def test_keys_that_mlflow_refuses(pl, tmp_path):
    """Keys with '@', which MLflow would refuse when the first validation ends, raise before with a cure."""

    class MLFlowLogger(pl.loggers.CSVLogger):
        """A stand-in for the logger of that name, which needs a server."""

    autologger = type("__MlflowPLCallback", (pl.Callback,), {})()  # what mlflow.pytorch.autolog adds to the callbacks
    for callbacks, options in (([], {"logger": MLFlowLogger(tmp_path)}), ([autologger], {})):
        with pytest.raises(ValueError, match=r"MLflow takes letters.*not 'val/HR@1'.*key_format='{name}_at_{k}'"):
            fit(pl, RecMetricsCallback("HR", k=1), *callbacks, **options)
        run = fit(pl, RecMetricsCallback("HR", k=1, key_format="{name}_at_{k}"), *callbacks, **options)
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


@both_packages
def test_checkpoint_and_early_stopping(pl, tmp_path):
    """ModelCheckpoint and EarlyStopping monitor a key of the callback, whichever of them comes first in the list."""
    keep = pl.callbacks.ModelCheckpoint(
        tmp_path, "{epoch}-{val/NDCG@10:.4f}", monitor="val/NDCG@10", mode="max", auto_insert_metric_name=False
    )
    stop = pl.callbacks.EarlyStopping("val/MRR@10", mode="max", patience=2)
    run = fit(pl, stop, RecMetricsCallback(NAMES, k=KS), keep, max_epochs=9)
    values = [by_hand(DATA, sign=sign)["NDCG@10"] for sign in (1, -1)]
    assert keep.best_model_score.item() == max(values, key=lambda value: value.expected)
    assert run.current_epoch < 9
    saved = torch.load(keep.best_model_path, weights_only=False)
    assert set(saved["state_dict"]) == {"weight"}
    assert not [key for key in saved["callbacks"] if "RecMetrics" in key]


@pytest.mark.parametrize(
    ("monitor", "mode", "message"),
    [
        ("val/NDCG@10", "min", "monitor='val/NDCG@10', mode='min'.: higher is better, pass mode='max'"),
        ("val/NDCG@20", "max", "nothing logs that key. Logged keys are .*val/NDCG@10"),
        ("val_NDCG@10", "max", "nothing logs that key. Logged keys are val/NDCG@10"),
        ("val/NDCG", "max", "nothing logs that key"),
    ],
)
@pytest.mark.parametrize("sanity", [0, 2])
def test_monitors_are_checked_before_the_first_epoch(sanity, monitor, mode, message, pl, tmp_path):
    """A monitor with the wrong mode, or of a key that nothing logs, raises in the sanity check.

    Without one, the wrong mode raises all the same, and a key that the module may log causes a warning.
    """
    warns = sanity == 0 and "higher" not in message
    for reader in (
        pl.callbacks.EarlyStopping(monitor, mode=mode),
        pl.callbacks.ModelCheckpoint(tmp_path, monitor=monitor, mode=mode),
    ):
        callback = RecMetricsCallback(["HR", "NDCG"], k=[5, 10])
        run = trainer(pl, callback, reader, num_sanity_val_steps=sanity)
        warned = pytest.warns(UserWarning, match=message) if warns else contextlib.nullcontext()
        with warned, pytest.raises((ValueError, RuntimeError), match=None if warns else message):
            run.fit(make_module(pl), loader(samples(5)), loader(samples(5)))
        assert run.current_epoch == 0
        assert run.global_step == (2 if warns else 0)
    run.test(make_module(pl), loader(samples(5)), verbose=False)  # no callback monitors a test


@pytest.mark.parametrize("monitor", ["val/loss", "val/NDCG@20", "NDCG@10", "train/NDCG@10", "train/NDCG-x@10"])
def test_monitors_of_what_the_module_logs(monitor, pl):
    """Monitors of keys that the module logs are accepted, however similar to our keys they are."""
    in_training = monitor.startswith("train/")
    module, hook = make_module(pl), "training_step" if in_training else "validation_step"
    step = getattr(type(module), hook)

    def logging_step(self, batch, batch_idx):
        self.log(monitor, 1.0, batch_size=4)
        return step(self, batch, batch_idx)

    setattr(type(module), hook, logging_step)
    stop = pl.callbacks.EarlyStopping(monitor, mode="min", check_on_train_epoch_end=in_training)
    run = fit(pl, stop, RecMetricsCallback(["HR", "NDCG"], k=[5, 10]), module=module)
    assert monitor in run.callback_metrics


class Place(trm.RankingMetric):
    """A metric whose lower values are better: the rank of the item."""

    formula = staticmethod(lambda ranking, k: ranking.ranks[:, 0].clamp(max=k + 1))
    higher_is_better = False


def test_a_misspelt_monitor_is_answered_with_values_not_counts(pl):
    """Keys of values are named, however close to the monitor those of counts and losses are."""
    stop = pl.callbacks.EarlyStopping("val/NDCG@20", mode="max")
    with pytest.raises(ValueError, match=r"Logged keys are (val/(HR|NDCG)@\d+, ){3}\.\.\."):
        fit(pl, stop, RecMetricsCallback(["HR", "NDCG"], k=[5, 10], log_counts=True))


def test_a_metric_that_should_fall(pl, tmp_path):
    """A monitor of a metric that should fall must have mode "min", and monitors of other metrics mode "max"."""
    callback = RecMetricsCallback(["HR", Place(10)], k=1)
    keep = pl.callbacks.ModelCheckpoint(tmp_path, monitor="val/Place@10", mode="min")
    fit(pl, callback, keep)
    assert keep.best_model_score is not None
    for monitor, mode, better in (("val/Place@10", "max", "lower"), ("val/HR@1", "min", "higher")):
        stop = pl.callbacks.EarlyStopping(monitor, mode=mode)
        with pytest.raises(ValueError, match=f"monitor='{monitor}', mode='{mode}'.: {better} is better"):
            fit(pl, callback, stop)


@pytest.mark.parametrize(
    ("mode", "monitor", "message"),
    [
        ("min", "val/HR@1", "monitor='val/HR@1', mode='min'.: higher is better"),
        ("max", "val/hr1", "monitor='val/hr1'.: nothing logs that key. Logged keys are val/HR@1"),
    ],
)
def test_schedulers_are_checked_too(mode, monitor, message, pl):
    """A scheduler that waits for our keys to fall, or has a misspelt monitor, raises an error before it does harm."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode=mode)
        return [optimizer], [{"scheduler": scheduler, "monitor": monitor, "strict": False}]

    module = make_module(pl, configure_optimizers=configure_optimizers)
    with pytest.raises(ValueError, match=f"scheduler .{message}"):
        fit(pl, RecMetricsCallback("HR", k=1), module=module)
    assert module.trainer.global_step == 0


def test_monitors_with_several_loaders_or_stages(pl):
    """Monitors are checked against the keys of all callbacks and loaders; a stage not asked for logs nothing."""
    one, other = RecMetricsCallback("HR", k=1), RecMetricsCallback("HR", k=2)
    two, named = [loader(DATA)] * 2, {"valid": loader(DATA), "test": loader(DATA)}
    for monitor, loaders, number in (
        ("val/HR@2/dataloader_idx_1", two, 4),
        ("test/HR@2", named, 4),
        ("val/HR@2", loader(DATA), 2),
    ):
        stop = pl.callbacks.EarlyStopping(monitor, mode="max")
        assert len(logged(fit(pl, stop, one, other, loaders=loaders))) == number
    stop = pl.callbacks.EarlyStopping("val/HR@1", mode="max")
    with pytest.raises(ValueError, match=r"Logged keys are .*val/HR@1/dataloader_idx_"):
        fit(pl, stop, one, loaders=two)
    with pytest.raises(ValueError, match="nothing logs that key"):
        fit(pl, stop, RecMetricsCallback("HR", k=1, stages="test"))
