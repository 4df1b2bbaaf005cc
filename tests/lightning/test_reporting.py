"""Both callbacks compose keys, fill loggers, check monitors before the first epoch, and work with both packages."""

import contextlib
import csv
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
    validated,
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
    """They hold no value of the sanity check."""
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    loggers = [pl.loggers.CSVLogger(tmp_path / "csv"), pl.loggers.TensorBoardLogger(tmp_path / "tb")]
    fit(pl, RecMetricsCallback(NAMES, k=KS, log_counts=True), logger=loggers, max_epochs=3)
    counts = {"val/num_users": 10, "val/num_skipped": 0, "val/num_unreachable": 0, "val/num_tied": 0}
    expected = [by_hand(DATA, "val/", sign=sign, tolerance=1e-6) | counts for sign in (1, -1, 1)]
    with open(f"{loggers[0].log_dir}/metrics.csv") as file:
        rows = [{key: float(row[key]) for key in row if key.startswith("val/")} for row in csv.DictReader(file)]
    events = event_accumulator.EventAccumulator(loggers[1].log_dir)
    events.Reload()
    tags = [tag for tag in events.Tags()["scalars"] if tag.startswith("val/")]

    assert rows == expected
    assert {tag: [event.value for event in events.Scalars(tag)] for tag in tags} == {
        key: [values[key] for values in expected] for key in expected[0]
    }


def test_keys_are_made_of_prefix_and_key_format(pl):
    callback = RecMetricsCallback("HR", k=10, prefix="{stage}_full/{name}_", key_format="{name}_at_{k}")
    assert list(validated(pl, callback, loader(DATA))) == ["val_full/val_HR_at_10"]


@pytest.mark.parametrize("key", ["val/NDCG@10", "cold/NDCG@10", "NDCG@10"])
def test_prog_bar_takes_keys_as_they_are_logged(key):
    assert RecMetricsCallback("NDCG", k=[5, 10], prog_bar=[key]).prog_bar == {"NDCG@10"}


def test_prog_bar_takes_labels_and_keys_of_a_format(pl):
    callback = RecMetricsCallback(["HR", "NDCG"], k=5, key_format="{name}_at_{k}", prog_bar=["HR@5", "NDCG_at_5"])
    run = trainer(pl, callback)
    run.validate(make_module(pl), loader(DATA), verbose=False)

    assert set(run.progress_bar_metrics) == {"val/HR_at_5", "val/NDCG_at_5"}


@pytest.mark.parametrize(
    ("prog_bar", "shown"),
    [
        (True, {"HR@5", "HR@5/even", "HR@5/odd", "num_users", "num_skipped", "num_unreachable", "num_tied"}),
        (False, set()),
        (["HR@5", "num_tied"], {"HR@5", "num_tied"}),
    ],
)
def test_prog_bar_shows_all_logged_keys_none_or_these(prog_bar, shown, pl):
    groups = [trm.ByGroup("even", "odd")]
    callback = RecMetricsCallback("HR", k=5, accumulators=groups, prog_bar=prog_bar, log_counts=True)
    run = trainer(pl, callback)
    module = make_module(pl, lambda scores, target, users: {"scores": scores, "target": target, "groups": users % 2})
    run.validate(module, loader(DATA), verbose=False)

    assert set(run.progress_bar_metrics) == {f"val/{key}" for key in shown}


@pytest.mark.parametrize(
    ("metrics", "options", "message"),
    [
        ("HR", {"embeddings": None}, r"^RecMetricsCallback has no option 'embeddings'\. There are metrics, k, stages"),
        ("HR", {"tie": "realistic"}, "no option 'tie'; did you mean 'ties'"),
        ("NDCG", {"gain": "exponential"}, r"has no option 'gain': pass an instance, such as trm\.DCG\(10, gain=\.\.\."),
        ("HR", {"stages": "val"}, "^stages must be one of 'validate', 'test', got 'val'"),
        ("HR", {"prog_bar": "NDCG@10"}, "prog_bar has NDCG@10, but the metrics are HR@5"),
        (trm.RecMetricCollection("HR", k=5), {"ties": "optimistic"}, "k, ties cannot be combined with a collection"),
    ],
)
def test_a_bad_argument_of_both_callbacks_is_refused(metrics, options, message):
    with pytest.raises(ValueError, match=message):
        RecMetricsCallback(metrics, k=5, **options)


def hits(k=1, **options):
    return RecMetricsCallback("HR", k=k, **options)


def whole(**options):
    return CatalogueEvaluationCallback("HR", k=1, embed=lambda m: None, target=catalogue()[0], **options)


TWICE = hits()


@pytest.mark.parametrize(
    ("callbacks", "loaders", "key"),
    [
        ([TWICE, TWICE], {"val": DATA}, "val/HR@1"),  # which would count every batch twice
        ([hits([1, 2]), hits()], {"val": DATA}, "val/HR@1"),
        ([hits(), whole()], {"val": DATA}, "val/HR@1"),
        ([whole(), whole()], {"val": DATA}, "val/HR@1"),
        ([hits(prefix="", dataloaders=["a", "b"])], {"a": DATA, "b": DATA}, "HR@1"),
        ([RecMetricsCallback({"num_users": trm.HR(1)}, log_counts=True)], {"a": DATA, "b": DATA}, "a/num_users"),
    ],
)
def test_two_values_under_one_key_are_refused(callbacks, loaders, key, pl):
    """One would replace the other silently."""
    with pytest.raises(ValueError, match=f"two values would be logged as '{key}': put {{name}} into prefix="):
        fit(pl, *callbacks, loaders={name: loader(data) for name, data in loaders.items()})


def test_a_callback_that_was_refused_can_be_used_in_another_trainer(pl):
    callback = hits()
    with pytest.raises(ValueError, match="two values would be logged"):
        fit(pl, callback, callback)

    assert set(logged(fit(pl, callback))) == {"val/HR@1"}


def by_logger(pl, path):
    """Return callbacks and options of a Trainer with a stand-in for the logger of that name, which needs a server."""
    return [], {"logger": type("MLFlowLogger", (pl.loggers.CSVLogger,), {})(path)}


def by_autologger(pl, path):
    """Return callbacks and options of a Trainer with what mlflow.pytorch.autolog adds to the callbacks."""
    return [type("__MlflowPLCallback", (pl.Callback,), {})()], {}


@pytest.mark.parametrize("mlflow", [by_logger, by_autologger])
def test_keys_that_mlflow_refuses_are_refused_before_the_first_epoch(mlflow, pl, tmp_path):
    """MLflow would refuse '@' when the first validation ends."""
    callbacks, options = mlflow(pl, tmp_path)

    with pytest.raises(ValueError, match=r"MLflow takes letters.*not 'val/HR@1'.*key_format='{name}_at_{k}'"):
        fit(pl, hits(), *callbacks, **options)
    assert "val/HR_at_1" in fit(pl, hits(key_format="{name}_at_{k}"), *callbacks, **options).logged_metrics


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
def test_checkpoints_and_early_stopping_monitor_keys_in_any_order_of_callbacks(pl, tmp_path):
    keep = pl.callbacks.ModelCheckpoint(
        tmp_path, "{epoch}-{val/NDCG@10:.4f}", monitor="val/NDCG@10", mode="max", auto_insert_metric_name=False
    )
    stop = pl.callbacks.EarlyStopping("val/MRR@10", mode="max", patience=2)
    run = fit(pl, stop, RecMetricsCallback(NAMES, k=KS), keep, max_epochs=9)

    best = max(by_hand(DATA, sign=sign)["NDCG@10"].expected for sign in (1, -1))
    assert keep.best_model_score.item() == pytest.approx(best)
    assert run.current_epoch < 9


def test_checkpoints_hold_no_state_of_metrics(pl, tmp_path):
    keep = pl.callbacks.ModelCheckpoint(tmp_path)
    fit(pl, RecMetricsCallback(NAMES, k=KS), keep)
    saved = torch.load(keep.best_model_path, weights_only=False)

    assert set(saved["state_dict"]) == {"weight"}
    assert not [key for key in saved["callbacks"] if "RecMetrics" in key]


def stop_on(pl, path, monitor, mode="max"):
    return pl.callbacks.EarlyStopping(monitor, mode=mode)


def keep_by(pl, path, monitor, mode="max"):
    return pl.callbacks.ModelCheckpoint(path, monitor=monitor, mode=mode)


@pytest.mark.parametrize("reader", [stop_on, keep_by])
@pytest.mark.parametrize("sanity", [0, 2])
def test_a_monitor_of_the_wrong_mode_is_refused_before_the_first_step(sanity, reader, pl, tmp_path):
    run = trainer(pl, hits(), reader(pl, tmp_path, "val/HR@1", "min"), num_sanity_val_steps=sanity)

    with pytest.raises(ValueError, match=r"monitor='val/HR@1', mode='min'.*: higher is better, pass mode='max'"):
        run.fit(make_module(pl), loader(samples(5)), loader(samples(5)))
    assert (run.current_epoch, run.global_step) == (0, 0)


UNKNOWN = [
    ("val/NDCG@20", "nothing logs that key. Logged keys are .*val/NDCG@10"),
    ("val_NDCG@10", "nothing logs that key. Logged keys are val/NDCG@10"),
    ("val/NDCG", "nothing logs that key"),
]


@pytest.mark.parametrize("reader", [stop_on, keep_by])
@pytest.mark.parametrize(("monitor", "message"), UNKNOWN)
def test_a_monitor_of_a_key_that_nothing_logs_is_refused_in_the_sanity_check(monitor, message, reader, pl, tmp_path):
    callback = RecMetricsCallback(["HR", "NDCG"], k=[5, 10])
    run = trainer(pl, callback, reader(pl, tmp_path, monitor))

    with pytest.raises(ValueError, match=message):
        run.fit(make_module(pl), loader(samples(5)), loader(samples(5)))
    assert (run.current_epoch, run.global_step) == (0, 0)
    run.test(make_module(pl), loader(samples(5)), verbose=False)  # nothing monitors a test


@pytest.mark.parametrize("reader", [stop_on, keep_by])
@pytest.mark.parametrize(("monitor", "message"), UNKNOWN)
def test_without_a_sanity_check_a_monitor_of_an_unknown_key_is_told(monitor, message, reader, pl, tmp_path):
    """The module may log it; Lightning raises when it did not."""
    callback = RecMetricsCallback(["HR", "NDCG"], k=[5, 10])
    run = trainer(pl, callback, reader(pl, tmp_path, monitor), num_sanity_val_steps=0)

    with pytest.warns(UserWarning, match=message), contextlib.suppress(ValueError, RuntimeError):
        run.fit(make_module(pl), loader(samples(5)), loader(samples(5)))
    assert run.global_step == 2


@pytest.mark.parametrize("monitor", ["val/loss", "val/NDCG@20", "NDCG@10", "train/NDCG@10", "train/NDCG-x@10"])
def test_a_monitor_of_a_key_that_the_module_logs_is_accepted(monitor, pl):
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


def test_a_misspelt_monitor_is_answered_with_values_not_counts(pl):
    with pytest.raises(ValueError, match=r"Logged keys are val/HR@5, \.\.\."):
        fit(pl, stop_on(pl, None, "val/HR@50"), hits(5, log_counts=True))


class Place(trm.RankingMetric):
    """A metric whose lower values are better: the rank of the item."""

    formula = staticmethod(lambda ranking, k: ranking.ranks[:, 0].clamp(max=k + 1))
    higher_is_better = False


def test_a_monitor_of_a_metric_that_should_fall_needs_the_mode_min(pl, tmp_path):
    keep = keep_by(pl, tmp_path, "val/Place@10", "min")
    fit(pl, RecMetricsCallback([Place(10)]), keep)

    assert keep.best_model_score is not None
    with pytest.raises(ValueError, match=r"monitor='val/Place@10', mode='max'.*: lower is better"):
        fit(pl, RecMetricsCallback([Place(10)]), stop_on(pl, None, "val/Place@10"))


@pytest.mark.parametrize(
    ("mode", "monitor", "message"),
    [
        ("min", "val/HR@1", "monitor='val/HR@1', mode='min'.: higher is better"),
        ("max", "val/hr1", "monitor='val/hr1'.: nothing logs that key. Logged keys are val/HR@1"),
    ],
)
def test_a_scheduler_of_the_wrong_mode_or_key_is_refused_before_the_first_step(mode, monitor, message, pl):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode=mode)
        return [optimizer], [{"scheduler": scheduler, "monitor": monitor, "strict": False}]

    module = make_module(pl, configure_optimizers=configure_optimizers)

    with pytest.raises(ValueError, match=f"scheduler .{message}"):
        fit(pl, hits(), module=module)
    assert module.trainer.global_step == 0


@pytest.mark.parametrize(
    ("monitor", "loaders"),
    [
        ("val/HR@2/dataloader_idx_1", lambda: [loader(DATA), loader(DATA)]),
        ("test/HR@2", lambda: {"valid": loader(DATA), "test": loader(DATA)}),
        ("val/HR@2", lambda: loader(DATA)),
    ],
)
def test_a_monitor_may_read_any_callback_and_loader(monitor, loaders, pl):
    run = fit(pl, stop_on(pl, None, monitor), hits(1), hits(2), loaders=loaders())
    assert monitor in logged(run)


def test_a_monitor_without_the_ending_of_a_loader_or_of_a_stage_that_is_left_out_is_refused(pl):
    with pytest.raises(ValueError, match=r"Logged keys are .*val/HR@1/dataloader_idx_"):
        fit(pl, stop_on(pl, None, "val/HR@1"), hits(), loaders=[loader(DATA), loader(DATA)])
    with pytest.raises(ValueError, match="nothing logs that key"):
        fit(pl, stop_on(pl, None, "val/HR@1"), hits(stages="test"))
