"""The Lightning callbacks with real Trainers: what is logged, when, over how many processes, and what is refused."""

import csv
import functools
import importlib
import inspect
import os
import pickle
import re
import subprocess
import sys
import tempfile
import textwrap
import warnings

import distributed
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import torchrecmetrics as trm

PACKAGES = ("pytorch_lightning", "lightning.pytorch")
for package in PACKAGES:
    pytest.importorskip(package)

from torchrecmetrics.lightning import CatalogueEvaluationCallback, RecMetricsCallback  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*`isinstance.treespec, LeafSpec.`"),
    pytest.mark.filterwarnings("ignore:.*is smaller than the logging interval"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:You are trying to resume training from a checkpoint ended mid-epoch"),
]

ITEMS = 40
NAMES, KS = ("HR", "NDCG", "MRR", "RPrecision"), (1, 10)


@pytest.fixture(params=PACKAGES)
def pl(request):
    return importlib.import_module(request.param)


def samples(n, seed=0):
    """Scores [I] and two targets [2] for each of n users."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(n, ITEMS, generator=generator)
    first = torch.randint(0, ITEMS, (n,), generator=generator)
    return [(s, torch.stack([t, (t + 7) % ITEMS]), u) for u, (s, t) in enumerate(zip(scores, first, strict=True))]


def loader(data, **options):
    return DataLoader(data, **({"batch_size": 4} | options))


def make_module(pl, step=None):
    """Make a module whose scores turn round every epoch, so that values differ from one epoch to the next."""

    class Recommender(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def training_step(self, batch, batch_idx):
            return (self.weight * 0).sum()

        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            scores, target, users = batch
            if step is not None:
                return step(scores, target, users)
            return {"scores": scores * (-1) ** self.current_epoch, "target": target, "loss": 3.0}

        test_step = validation_step

        def predict_step(self, batch, batch_idx):
            return batch[1]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Recommender()


def trainer(pl, tmp_path, *callbacks, **options):
    defaults = {"max_epochs": 2, "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    defaults |= {"accelerator": "cpu", "default_root_dir": tmp_path, "enable_checkpointing": False}
    return pl.Trainer(callbacks=list(callbacks), **(defaults | options))


def by_hand(data, prefix="", *, sign=1, names=NAMES, k=KS, tolerance=1e-12, postfix="", **options):
    """Compute all values in one update, without Lightning."""
    collection = trm.RecMetricCollection(names, k=k, prefix=prefix, postfix=postfix)
    collection.update(torch.stack([s for s, _, _ in data]) * sign, torch.stack([t for _, t, _ in data]), **options)
    return {key: pytest.approx(value.item(), abs=tolerance) for key, value in collection.compute().items()}


def logged(trainer):
    return {key: value.item() for key, value in trainer.callback_metrics.items()}


# ------------------------------------------------------------------------------------------------------- what is logged


def test_fit_validate_test_predict(pl, tmp_path):
    """One callback through all stages: each logs its own rows, prediction nothing."""
    first, second = samples(10), samples(7, seed=1)
    callback, module = RecMetricsCallback(NAMES, k=KS), make_module(pl)
    run = trainer(pl, tmp_path, callback)
    assert run.validate(module, loader(first), verbose=False) == [by_hand(first, "val/")]
    run.fit(module, loader(first), loader(second))
    assert logged(run) == by_hand(second, "val/", sign=-1)
    hits = callback.collections["val"]["HR@1"]
    assert hits.num_users == 7  # what was found stays
    assert not hits.update_called  # what it was found from does not
    # a fit was there before: the loader named is the one that counts
    assert run.validate(module, loader(first), verbose=False) == [by_hand(first, "val/")]
    assert run.test(module, loader(first), verbose=False) == [by_hand(first, "test/")]
    before = dict(callback.collections)
    assert len(run.predict(module, loader(first))) == 3
    assert callback.collections == before


@pytest.mark.parametrize("outputs", ["ranks", "ranking", "gains", "weights", "dense", "function"])
def test_every_form_of_update(outputs, tmp_path):
    """A step hands over whatever update takes; entries of its own are left alone."""
    pl = importlib.import_module(PACKAGES[0])
    data = samples(9)

    def step(scores, target, users):
        return {
            "ranks": lambda: {"ranks": trm.get_topk_ranks(scores, target, 10), "target": target, "depth": 10},
            "ranking": lambda: {"ranking": trm.Ranking.from_scores(scores, target), "loss": 0},
            "gains": lambda: {"scores": scores, "target": target, "gains": torch.ones_like(target)},
            "weights": lambda: {"scores": scores, "target": target, "weights": users + 1.0},
            "dense": lambda: {"scores": scores, "target": torch.zeros_like(scores).scatter_(1, target, 1).bool()},
            "function": lambda: (scores, target),
        }[outputs]()

    function = (lambda returned, batch: {"scores": returned[0], "target": batch[1]}) if outputs == "function" else None
    names = ("HR", "NDCG", "MRR")  # R-precision needs ranks deeper than 10 where users have more
    callback = RecMetricsCallback(names, k=KS, outputs=function)
    run = trainer(pl, tmp_path, callback)
    options = {"weights": torch.arange(9) + 1.0} if outputs == "weights" else {}
    assert run.validate(make_module(pl, step), loader(data), verbose=False) == [
        by_hand(data, "val/", names=names, **options)
    ]


def test_loggers_hold_what_each_epoch_gave(pl, tmp_path):
    """CSV and TensorBoard hold every epoch's values, and nothing of the sanity check."""
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


def test_checkpoint_and_early_stopping(pl, tmp_path):
    """Both monitor a key of the callback, which comes before them or behind them in the list."""
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
    ("loaders", "dataloaders", "keys"),
    [
        (list, None, ("val/{}/dataloader_idx_0", "val/{}/dataloader_idx_1")),
        (list, ["valid", "test"], ("valid/{}", "test/{}")),
        (list, {"valid": ..., "test": ...}, ("valid/{}", "test/{}")),
        (lambda two: {"valid": two[0], "test": two[1]}, None, ("valid/{}", "test/{}")),
        (lambda two: {"a": two[0], "b": two[1]}, ["valid", "test"], ("valid/{}", "test/{}")),
    ],
)
def test_two_loaders(pl, tmp_path, loaders, dataloaders, keys):
    """Each loader has a collection and keys of its own; none reports the mixture."""
    both = samples(10), samples(6, seed=1)
    callback = RecMetricsCallback(NAMES, k=KS, dataloaders=dataloaders)
    run = trainer(pl, tmp_path, callback)
    run.validate(make_module(pl), loaders([loader(data) for data in both]), verbose=False)
    expected = {}
    for key, data in zip(keys, both, strict=True):
        prefix, postfix = key.split("{}")
        expected |= by_hand(data, prefix, postfix=postfix)
    assert logged(run) == expected
    assert [c["HR@1"].num_users for c in callback.collections.values()] == [10, 6]


def test_names_where_a_stage_has_one_loader(tmp_path):
    """Names are for stages with as many loaders; a single loader goes by its stage; another number is an error."""
    pl = importlib.import_module(PACKAGES[0])
    callback = RecMetricsCallback("HR", k=1, dataloaders=["valid", "test"])
    run, data = trainer(pl, tmp_path, callback), samples(3)
    run.test(make_module(pl), loader(data), verbose=False)
    assert list(logged(run)) == ["test/HR@1"]
    with pytest.raises(ValueError, match="dataloaders names valid, test, but validate has 3 loaders"):
        run.validate(make_module(pl), [loader(data)] * 3, verbose=False)


def test_prefix_and_key_format(tmp_path):
    """Keys are composed of prefix, name and key format; prog_bar takes labels or keys."""
    pl = importlib.import_module(PACKAGES[0])
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


def test_a_collection_and_a_step_that_logs_too(tmp_path):
    """A collection is cloned, its prefix left; the module's own logging goes on beside the callback."""
    pl = importlib.import_module(PACKAGES[0])
    collection = trm.RecMetricCollection(NAMES, k=KS, prefix="mine/")
    module, data = make_module(pl), samples(5)
    step = type(module).validation_step

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", 2.0, batch_size=4)
        return step(self, batch, batch_idx)

    type(module).validation_step = validation_step
    run = trainer(pl, tmp_path, RecMetricsCallback(collection))
    assert run.validate(module, loader(data), verbose=False) == [by_hand(data, "val/") | {"val/loss": 2.0}]
    assert not any(metric.update_called for metric in collection.values())
    used = trm.NDCG(10)
    used.update(torch.rand(3, ITEMS), torch.zeros(3, dtype=torch.int64))
    for metrics in ([used], {"NDCG@10": used}):
        run = trainer(pl, tmp_path, RecMetricsCallback(metrics))
        got = run.validate(make_module(pl), loader(data), verbose=False)
        assert got == [by_hand(data, "val/", names=["NDCG"], k=10)]
    with pytest.raises(ValueError, match="k, ties given beside a collection"):
        RecMetricsCallback(collection, k=3, ties="optimistic")


# ------------------------------------------------------------------------------------------------ the Trainer's flags


@pytest.mark.parametrize(
    ("options", "seen", "times"),
    [
        ({"limit_val_batches": 2}, 8, 2),
        ({"limit_val_batches": 0.5}, 4, 2),
        ({"limit_val_batches": 0}, 0, 0),
        ({"overfit_batches": 1}, 4, 2),
        ({"num_sanity_val_steps": 0}, 10, 2),
        ({"num_sanity_val_steps": -1}, 10, 2),
        ({"val_check_interval": 1}, 10, 6),
        ({"val_check_interval": 0.5}, 10, 6),
        ({"check_val_every_n_epoch": 2}, 10, 1),
        ({"check_val_every_n_epoch": None, "val_check_interval": 2}, 10, 3),
        ({"accumulate_grad_batches": 2}, 10, 2),
        ({"inference_mode": False}, 10, 2),
        ({"inference_mode": True}, 10, 2),
        ({"fast_dev_run": True}, 4, 1),
        ({"reload_dataloaders_every_n_epochs": 1}, 10, 2),
        ({"precision": "bf16-mixed"}, 10, 2),
        ({"precision": "64-true"}, 10, 2),
        ({"deterministic": True}, 10, 2),
        ({"gradient_clip_val": 1.0}, 10, 2),
        ({"profiler": "simple"}, 10, 2),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else None,
)
def test_trainer_flags(options, seen, times, tmp_path):
    """Each validation logs exactly the rows it has seen, whatever decides when it runs and how much it sees."""
    pl = importlib.import_module(PACKAGES[0])
    data, history = samples(10), []

    class Listener(pl.Callback):
        def on_validation_end(self, trainer, pl_module):
            if not trainer.sanity_checking:
                values = {key: value for key, value in logged(trainer).items() if key.startswith("val/")}
                history.append((trainer.current_epoch, values))

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*overfit_batches|.*(validation|val) dataloader")
        run = trainer(pl, tmp_path, RecMetricsCallback(NAMES, k=KS), Listener(), **options)
        run.fit(make_module(pl), loader(data), loader(data))
    assert history == [(epoch, by_hand(data[:seen], "val/", sign=(-1) ** epoch)) for epoch, _ in history]
    assert len(history) == times


def test_sanity_check_leaves_nothing(tmp_path):
    """What the sanity check computes is neither logged nor left in the state."""
    pl = importlib.import_module(PACKAGES[0])
    callback, seen = RecMetricsCallback(NAMES, k=KS), []

    class Listener(pl.Callback):
        def on_sanity_check_end(self, trainer, pl_module):
            seen.append((dict(trainer.callback_metrics), dict(trainer.logged_metrics), dict(callback.collections)))

    data = samples(10)
    run = trainer(pl, tmp_path, callback, Listener(), max_epochs=1)
    run.fit(make_module(pl), loader(data), loader(data))
    assert seen == [({}, {}, {})]
    assert logged(run) == by_hand(data, "val/")


def test_sanity_check_raises_deferred_errors(tmp_path):
    """Bad values that wait for compute stop the run before its first epoch."""
    pl = importlib.import_module(PACKAGES[0])
    step = lambda scores, target, users: {"scores": scores, "target": target + ITEMS}  # noqa: E731
    run = trainer(pl, tmp_path, RecMetricsCallback("HR", k=1, validate_args="deferred"))
    with pytest.raises(ValueError, match="8 rows with a target id beyond the last item"):
        run.fit(make_module(pl, step), loader(samples(10)), loader(samples(10)))
    assert run.fit_loop.epoch_progress.current.ready == 0


def test_resumed_run_logs_what_an_uninterrupted_one_logs(pl, tmp_path):
    """Nothing of the metrics is in a checkpoint, and nothing is missing."""
    data = samples(10)

    def fit(name, epochs, ckpt_path=None):
        logger = pl.loggers.CSVLogger(tmp_path, name=name, version="")
        run = trainer(pl, tmp_path, RecMetricsCallback(NAMES, k=KS), logger=logger, max_epochs=epochs)
        run.fit(make_module(pl), loader(data), loader(data), ckpt_path=ckpt_path)
        run.save_checkpoint(tmp_path / f"{name}.ckpt")
        with open(f"{logger.log_dir}/metrics.csv") as file:
            return list(csv.DictReader(file))

    whole = fit("whole", 4)
    begun = fit("begun", 2)
    resumed = fit("resumed", 4, tmp_path / "begun.ckpt")
    assert begun + resumed == whole
    assert len(whole) == 4


def test_state_does_not_leak_from_a_run_that_failed(tmp_path):
    """An epoch that broke off leaves nothing behind."""
    pl = importlib.import_module(PACKAGES[0])
    data, broken = samples(10), [False]

    def step(scores, target, users):
        if broken[0] and users[0] >= 4:
            raise RuntimeError("stop")
        return {"scores": scores, "target": target}

    callback, module = RecMetricsCallback(NAMES, k=KS), make_module(pl, step)
    run = trainer(pl, tmp_path, callback)
    broken[0] = True
    with pytest.raises(RuntimeError, match="stop"):
        run.validate(module, loader(data), verbose=False)
    broken[0] = False
    assert run.validate(module, loader(data), verbose=False) == [by_hand(data, "val/")]


# ------------------------------------------------------------------------------------------------------------- history


def test_exclude_by_user_ids(tmp_path):
    """With exclude= the step returns user ids only; a dict has one for each loader; the step's own joins in."""
    pl = importlib.import_module(PACKAGES[0])
    data = samples(10)
    train = trm.Interactions.from_padded(torch.stack([(t + 1) % ITEMS for _, t, _ in data]), num_items=ITEMS)
    more = train.union(
        trm.Interactions.from_padded(torch.stack([(t + 2) % ITEMS for _, t, _ in data]), num_items=ITEMS)
    )
    step = lambda scores, target, users: {"scores": scores, "target": target, "user_ids": users}  # noqa: E731
    expected = [by_hand(data, "val/", exclude=h.select(range(10)).items) for h in (train, more)]
    assert expected[0] != expected[1]

    run = trainer(pl, tmp_path, RecMetricsCallback(NAMES, k=KS, exclude=train))
    assert run.validate(make_module(pl, step), loader(data), verbose=False) == [expected[0]]
    callback = RecMetricsCallback(NAMES, k=KS, exclude={"val": train, "test": more})
    run = trainer(pl, tmp_path, callback)
    assert run.validate(make_module(pl, step), loader(data), verbose=False) == [expected[0]]
    got = run.test(make_module(pl, step), loader(data), verbose=False)
    assert got == [{key.replace("val", "test"): value for key, value in expected[1].items()}]
    both = {"warm": loader(data), "cold": loader(data)}
    callback = RecMetricsCallback(NAMES, k=KS, exclude={"val": train, "cold": more}, prefix="{stage}_{name}/")
    run = trainer(pl, tmp_path, callback)
    run.validate(make_module(pl, step), both, verbose=False)
    named = [
        {key.replace("val/", f"val_{name}/"): value for key, value in values.items()}
        for name, values in zip(both, expected, strict=True)
    ]
    assert logged(run) == named[0] | named[1]
    with pytest.raises(ValueError, match="exclude holds val, cold, neither 'warm' nor 'test'"):
        run.test(make_module(pl, step), both, verbose=False)

    def own(scores, target, users):
        return step(scores, target, users) | {"exclude": (target + 2) % ITEMS}

    run = trainer(pl, tmp_path, RecMetricsCallback(NAMES, k=KS, exclude=train))
    assert run.validate(make_module(pl, own), loader(data), verbose=False) == [expected[1]]


# ----------------------------------------------------------------------------------------------------------- bad input

META = torch.device("meta")


@pytest.mark.parametrize(
    ("step", "error", "message"),
    [
        (lambda s, t, u: None, TypeError, "validation_step must return a mapping with 'scores'.*got None"),
        (lambda s, t, u: s.mean(), TypeError, "validation_step must return a mapping.*outputs= takes a function"),
        (
            lambda s, t, u: {},
            ValueError,
            "'scores' and 'target', or .*got an empty mapping; outputs=",
        ),
        (lambda s, t, u: {"preds": s, "target": t}, ValueError, "'scores' and 'target', or .*got 'preds', 'target'"),
        (lambda s, t, u: {"scores": s, "targets": t}, ValueError, "returned 'targets'; did you mean 'target'"),
        (lambda s, t, u: {"scores": s}, ValueError, "'scores' and 'target', or .*got 'scores'; outputs="),
        (lambda s, t, u: {"scores": s, "target": t, "excluded": t}, ValueError, "'excluded'; did you mean 'exclude'"),
        (lambda s, t, u: {"scores": s, "target": t, "weight": u}, ValueError, "'weight'; did you mean 'weights'"),
        (lambda s, t, u: {"scores": s.numpy(), "target": t}, TypeError, "returned 'scores' that is no tensor: "),
        (
            lambda s, t, u: {"scores": s, "ranks": t, "target": t},
            ValueError,
            "returned 'scores' and 'ranks': return one",
        ),
        (
            lambda s, t, u: {"scores": s.to(META), "target": t},
            ValueError,
            "returned 'scores' on meta, the module is on",
        ),
        (lambda s, t, u: {"scores": s, "target": t.to(META)}, ValueError, "returned 'target' on meta"),
        (lambda s, t, u: {"scores": s, "target": t, "exclude": (t + 1, t.to(META))}, ValueError, "'exclude' on meta"),
        (
            lambda s, t, u: {"scores": s, "target": t + ITEMS},
            ValueError,
            "loader 'val', batch 0: 4 of 4 rows with a target",
        ),
        (lambda s, t, u: {"scores": s, "target": t[:2]}, ValueError, "loader 'val', batch 0: target"),
        (lambda s, t, u: {"ranks": t.clamp(max=1), "exclude": t}, ValueError, "exclude was given beside ranks"),
        (lambda s, t, u: {"scores": s, "target": t, "weights": -u}, ValueError, "weight that is negative"),
    ],
)
def test_what_a_step_must_not_return(step, error, message, tmp_path):
    """The error names the hook, the key, and what was found."""
    pl = importlib.import_module(PACKAGES[0])
    run = trainer(pl, tmp_path, RecMetricsCallback("HR", k=1))
    with pytest.raises(error, match=message) as caught:
        run.validate(make_module(pl, step), loader(samples(5)), verbose=False)
    assert str(caught.value).startswith("RecMetricsCallback, loader 'val', batch 0: ")
    run = trainer(pl, tmp_path, RecMetricsCallback("HR", k=1))
    with pytest.raises(error, match=message.replace("validation_step", "test_step").replace("'val'", "'test'")):
        run.test(make_module(pl, step), loader(samples(5)), verbose=False)


@pytest.mark.parametrize(
    ("options", "returned", "message"),
    [
        (
            {"exclude": True},
            {},
            "validation_step must return 'user_ids' too, for exclude=, got 'scores', 'target'",
        ),
        ({"exclude": True}, {"user_ids": torch.tensor([0, 1, 2, 99])}, "users.*99"),
        ({"exclude": True}, {"user_ids": torch.tensor([0, 1])}, "'user_ids' as integers .4., got .*int64.*2"),
        ({"exclude": True}, {"user_ids": torch.rand(4)}, "'user_ids' as integers .4., got .*float32"),
        ({"sample_ids": "index"}, {}, "must return 'index' .sample_ids=.; it returned 'scores', 'target'"),
        ({"sample_ids": "index"}, {"index": torch.arange(3)}, "sample_ids must be .4., one a row, got .3."),
        ({"sample_ids": "index"}, {"index": torch.rand(4)}, "sample_ids must be an integer tensor"),
        ({"sample_ids": lambda returned, batch: None}, {}, "sample_ids must be an integer tensor, got None"),
        ({"outputs": lambda returned, batch: returned["scores"]}, {}, "the function outputs= must return a mapping"),
    ],
)
def test_what_an_option_asks_of_the_step(options, returned, message, tmp_path):
    """Entries that an option needs are missed by name."""
    pl = importlib.import_module(PACKAGES[0])
    if "exclude" in options:
        options = {"exclude": trm.Interactions.from_padded(torch.full((5, 1), -1), num_items=ITEMS)}
    step = lambda scores, target, users: {"scores": scores, "target": target} | returned  # noqa: E731
    run = trainer(pl, tmp_path, RecMetricsCallback("HR", k=1, **options))
    with pytest.raises((TypeError, ValueError), match=message):
        run.validate(make_module(pl, step), loader(samples(4)), verbose=False)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (["NDGC"], {"k": 5}, ValueError, "unknown metric 'NDGC'; did you mean 'NDCG'"),
        (["HR", "Hit"], {"k": 5}, ValueError, "two metrics have the key 'HR@5'"),
        (["HR"], {}, ValueError, "needs a cut-off"),
        (["HR"], {"k": 5, "stages": "predict"}, ValueError, "stages must be one of"),
        (["HR"], {"k": 5, "stages": ("fit",)}, ValueError, "stages must be one of"),
        (["HR"], {"k": 5, "prog_bar": "NDCG@10"}, ValueError, "prog_bar names NDCG@10, the metrics are HR@5"),
        (
            ["HR"],
            {"k": 5, "prefix": "{loader}/"},
            ValueError,
            "prefix must be a string, in which {stage} and {name} may stand",
        ),
        (["HR"], {"k": 5, "prefix": None}, ValueError, "prefix must be a string"),
        (["HR"], {"k": 5, "outputs": "scores"}, TypeError, "outputs must be a function"),
        (
            ["HR"],
            {"k": 5, "outputs": lambda batch: None},
            TypeError,
            "outputs must be a function of .what the step ret",
        ),
        (["HR"], {"k": "10"}, TypeError, "k must be whole numbers, got the string '10'"),
        (["hr,ndcg"], {"k": 10}, ValueError, "unknown metric 'hr,ndcg'; several names are given as a list"),
        (["HR"], {"k": 5, "dataloaders": {"val": ["a", "b"]}}, ValueError, "names themselves, not lists of them"),
        (["HR"], {"k": 5, "sample_ids": 3}, TypeError, "sample_ids must be a function of"),
        (["HR"], {"k": 5, "dataloaders": ["a", "a"]}, ValueError, "dataloaders holds a name twice"),
        (["HR"], {"k": 5, "exclude": torch.zeros(3)}, TypeError, "exclude must be Interactions"),
        (["HR"], {"k": 5, "exclude": {"val": [1]}}, TypeError, "exclude must be Interactions"),
        (["HR"], {"k": 5, "tie": "realistic"}, ValueError, "Unexpected keyword arguments: `tie`"),
    ],
)
def test_bad_arguments(arguments, options, error, message):
    """They are refused when the callback is made."""
    with pytest.raises(error, match=message):
        RecMetricsCallback(arguments, **options)


@pytest.mark.parametrize(
    ("monitor", "mode", "message"),
    [
        ("val/NDCG@10", "min", "monitor='val/NDCG@10', mode='min'.: higher is better, pass mode='max'"),
        ("val/NDCG@20", "max", "nothing logs that key. Logged are .*val/NDCG@10"),
        ("val/MAP@10", "max", "nothing logs that key"),
        ("val/ndcg@10", "max", "nothing logs that key"),
        ("NDCG@10", "max", "nothing logs that key. Logged are val/NDCG@10"),
        ("val_NDCG@10", "max", "nothing logs that key. Logged are val/NDCG@10"),
        ("test/NDCG@10", "max", "nothing logs that key"),
        ("test/num_users", "min", "nothing logs that key. Counts are logged with log_counts=True"),
    ],
)
@pytest.mark.parametrize("kind", ["EarlyStopping", "ModelCheckpoint"])
@pytest.mark.parametrize("sanity", [0, 2])
def test_monitors_are_checked_before_the_first_epoch(kind, sanity, monitor, mode, message, tmp_path):
    """A monitor turned round, or one of a key that nothing logs, does not wait until the first epoch has ended."""
    pl = importlib.import_module(PACKAGES[0])
    watcher = getattr(pl.callbacks, kind)(monitor=monitor, mode=mode)
    callback = RecMetricsCallback(["HR", "NDCG"], k=[5, 10], log_counts="Counts" not in message)
    options = {"num_sanity_val_steps": sanity, "enable_checkpointing": kind == "ModelCheckpoint"}
    run = trainer(pl, tmp_path, callback, watcher, **options)
    with pytest.raises(ValueError, match=message):
        run.fit(make_module(pl), loader(samples(5)), loader(samples(5)))
    # without a sanity check it is not known that no loader is named "test"
    assert run.global_step == 0 or (not sanity and monitor.startswith("test/"))
    run.test(make_module(pl), loader(samples(5)), verbose=False)  # nobody monitors there


@pytest.mark.parametrize(
    ("monitor", "mode"),
    [
        ("val/NDCG@10", "max"),
        ("val/num_users", "min"),
        *((key, "min") for key in ("val/loss", "val/auc@10", "val/coverage@10", "val/sampled-NDCG@10", "own/HR@3")),
        *((key, "min") for key in ("val/NDCG@20", "val_NDCG@10", "NDCG@10", "train/NDCG@10", "train/NDCG-x@10")),
    ],
)
def test_monitors_of_what_the_module_logs(monitor, mode, tmp_path):
    """Keys of the module's own are left alone, however much they look like ours."""
    pl = importlib.import_module(PACKAGES[0])
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


def test_schedulers_are_checked_too(tmp_path):
    """A scheduler that waits for our keys to fall would never see them improve."""
    pl = importlib.import_module(PACKAGES[0])
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


def test_monitors_with_several_loaders_or_stages(tmp_path):
    """With the loaders at hand the check is exact, over all callbacks; a stage not asked for logs nothing."""
    pl = importlib.import_module(PACKAGES[0])
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
    with pytest.raises(ValueError, match="log nothing in fit"):
        fit("val/HR@1", loader(data), RecMetricsCallback("HR", k=1, stages="test"))
    assert fit("val/HR@2", loader(data), one, other) == {"val/HR@1", "val/HR@2"}


def test_callbacks_that_log_the_same_key(tmp_path):
    """The last one would win, silently."""
    pl = importlib.import_module(PACKAGES[0])
    data, step = samples(5), lambda s, t, u: {"scores": s, "target": t}
    whole = functools.partial(CatalogueEvaluationCallback, "HR", k=1, embed=lambda m: None, target=catalogue()[0])
    for others in ([RecMetricsCallback("HR", k=1)], [whole()]):
        run = trainer(pl, tmp_path, RecMetricsCallback("HR", k=[1, 2]), *others)
        with pytest.raises(ValueError, match=r"would both log 'val/HR@1': give one of them another prefix"):
            run.validate(make_module(pl, step), loader(data), verbose=False)
    with pytest.raises(ValueError, match="CatalogueEvaluationCallback and CatalogueEvaluationCallback would both log"):
        trainer(pl, tmp_path, whole(), whole()).fit(make_module(pl, step), loader(data), loader(data))
    run = trainer(pl, tmp_path, RecMetricsCallback("HR", k=1), whole(stages="test"), RecMetricsCallback("HR", k=2))
    run.validate(make_module(pl, step), loader(data), verbose=False)
    # a refusal leaves nothing behind
    one, other = RecMetricsCallback("HR", k=1), RecMetricsCallback("HR", k=1, dataloaders=["cold"])
    for callback, key in (
        (RecMetricsCallback("HR", k=1, prefix="", dataloaders=["a", "b"]), "HR@1"),
        (whole(target=dict.fromkeys("ab", catalogue()[0]), prefix="x/"), "x/HR@1"),
        (RecMetricsCallback({"num_users": trm.HR(1)}, log_counts=True), "a/num_users"),
    ):
        run, loaders = trainer(pl, tmp_path, callback), {"a": loader(data), "b": loader(data)}
        with pytest.raises(ValueError, match=f"would log two values as '{key}'"):
            run.validate(make_module(pl, step), loaders, verbose=False)
    run = trainer(pl, tmp_path, one, RecMetricsCallback("HR", k=1))
    with pytest.raises(ValueError, match="would both log"):
        run.validate(make_module(pl, step), loader(data), verbose=False)
    trainer(pl, tmp_path, one, other).validate(make_module(pl, step), loader(data), verbose=False)


def test_keys_that_mlflow_refuses(tmp_path):
    """MLflow would refuse '@' when the first validation ends; the error before shows the cure."""
    pl = importlib.import_module(PACKAGES[0])

    class MLFlowLogger(pl.loggers.CSVLogger):
        """Stands in for the logger of that name, which needs a server."""

    logger, data = MLFlowLogger(tmp_path), samples(5)
    run = trainer(pl, tmp_path, RecMetricsCallback("HR", k=1), logger=logger)
    with pytest.raises(ValueError, match=r"MLflow takes letters.*not 'val/HR@1'.*key_format='{name}_at_{k}'"):
        run.fit(make_module(pl), loader(data), loader(data))
    run = trainer(pl, tmp_path, RecMetricsCallback("HR", k=1, key_format="{name}_at_{k}"), logger=logger)
    run.fit(make_module(pl), loader(data), loader(data))
    assert "val/HR_at_1" in run.logged_metrics


@pytest.mark.parametrize("package", PACKAGES)
def test_one_package_is_enough(package):
    """Only the package that is imported is used; importing torchrecmetrics imports neither."""
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


def test_pickles():
    """Spawning strategies send callbacks to their processes."""
    callback = pickle.loads(pickle.dumps(RecMetricsCallback(NAMES, k=KS, dataloaders=["a", "b"])))
    assert callback.dataloaders == ["a", "b"]


# ------------------------------------------------------------------------------------------------- several processes


def distributed_trainer(world_size, *callbacks, **options):
    """Make a Trainer in a process whose group is up already."""
    rank = torch.distributed.get_rank()
    os.environ |= {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    pl = importlib.import_module(PACKAGES[0])
    defaults = {"accelerator": "cpu", "devices": world_size, "strategy": "ddp", "max_epochs": 2}
    return pl, trainer(pl, tempfile.gettempdir(), *callbacks, **(defaults | options))


class EveryoneReadsAll(torch.utils.data.Sampler):
    """A sampler of the user's own, which every process reads whole, in an order of its own."""

    def __init__(self, data):
        self.order = torch.randperm(len(data)).tolist()

    def __iter__(self):
        return iter(self.order)

    def __len__(self):
        return len(self.order)


class Backwards(torch.utils.data.DistributedSampler):
    """A sampler of the user's own that looks like torch's."""

    def __iter__(self):
        return reversed(list(super().__iter__()))


class Stream(torch.utils.data.IterableDataset):
    """Samples that processes share so that some meet in two of them."""

    def __init__(self, data):
        self.data = data

    def __iter__(self):
        rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        return iter(self.data[max(0, rank - 1) :: max(1, world_size - 1)])


def values_for_every_remainder(rank, world_size, way):
    """Return {number of samples: (logged values, num_users, warnings)}."""
    results = {}
    for n in (1, 2, 3, 4, 5, 6, 7, 11, 12, 13):
        data, options, flags = samples(n), {}, {}
        batches = loader(data)
        if way == "shuffle":
            torch.manual_seed(rank)
            batches = loader(data, sampler=torch.utils.data.DistributedSampler(data, shuffle=True, seed=3))
        elif way == "own sampler":
            # the seed differs by process only for a sampler that Lightning does not split
            torch.manual_seed(3)
            batches = loader(data, sampler=EveryoneReadsAll(data))
        elif way == "samples are batches":
            batches = DataLoader(
                [tuple(part[None] if torch.is_tensor(part) else torch.tensor([part]) for part in s) for s in data],
                batch_size=None,
            )
        elif way == "sample_ids, own sampler":
            torch.manual_seed(rank)
            batches, flags = loader(data, sampler=EveryoneReadsAll(data)), {"use_distributed_sampler": False}
            options = {"sample_ids": "index"}
        elif way == "sample_ids, stream":
            batches, options = DataLoader(Stream(data), batch_size=4), {"sample_ids": lambda returned, batch: batch[2]}
        elif way == "sample_ids, repeats":
            options = {"sample_ids": lambda returned, batch: batch[2].int()}
        callback = RecMetricsCallback([*NAMES, "AUROC", trm.AUROC(weight="relevant")], k=KS, log_counts=True, **options)
        pl, run = distributed_trainer(world_size, callback, **flags)
        step = lambda scores, target, users: {  # noqa: E731
            "scores": scores,
            "target": target.where(users[:, None] % 5 < 4, -1),
            "index": users,
            "weights": users + 1,
        }
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run.validate(make_module(pl, step), batches, verbose=False)
        told = [str(w.message) for w in caught if "sync_dist" in str(w.message) or "RecMetrics" in str(w.message)]
        results[n] = logged(run), callback.collections["val"]["HR@1"].standard_error().item(), told
    return results


WAYS = [
    "in order",
    "shuffle",
    "own sampler",
    "samples are batches",
    "sample_ids, own sampler",
    "sample_ids, stream",
    "sample_ids, repeats",
]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_values_do_not_depend_on_the_number_of_processes(world_size, processes):
    """Data sets of every remainder, smaller than the number of processes too: the values, counts and errors of one."""
    found = {way: processes.run(values_for_every_remainder, world_size, way) for way in WAYS}
    for n in found["in order"][0]:
        data = samples(n)
        single = trm.RecMetricCollection([*NAMES, "AUROC", trm.AUROC(weight="relevant")], k=KS, prefix="val/")
        targets = [t if u % 5 < 4 else torch.full_like(t, -1) for _, t, u in data]
        weights = torch.arange(n) + 1
        single.update(torch.stack([s for s, _, _ in data]), torch.stack(targets), weights=weights)
        expected = {key: pytest.approx(value.item(), abs=1e-12) for key, value in single.compute().items()}
        for count in ("num_users", "num_skipped", "num_unreachable", "num_tied"):
            expected[f"val/{count}"] = getattr(single["HR@1"], count)
        error = pytest.approx(single["HR@1"].standard_error().item(), abs=1e-12, nan_ok=True)
        for way, everybody in found.items():
            for process in everybody:
                values, own_error, told = process[n]
                assert (values, own_error) == (expected, error), (n, way)
                assert not told or (way == "own sampler" and "unless all are seeded alike" in told[0]), (n, way)


def doubts(rank, world_size):
    """Return what is said where repeats cannot be known, by loader."""
    data, said = samples(5), {}
    half = lambda scores, target, users: {"scores": scores[::2], "target": target[::2]}  # noqa: E731
    dropping = torch.utils.data.DistributedSampler(data, drop_last=True)
    for name, batches, step, flags in (
        ("own", loader(data, sampler=EveryoneReadsAll(data)), None, {"use_distributed_sampler": False}),
        ("stream", DataLoader(Stream(data), batch_size=4), None, {}),
        ("dropping", loader(data, sampler=dropping), None, {}),
        ("short", loader(samples(10), drop_last=True), None, {}),
        ("backwards", loader(data, sampler=Backwards(data)), None, {}),
        ("order", loader(samples(11), in_order=False), None, {}),
        ("wrapped", loader(data, sampler=EveryoneReadsAll(data)), None, {}),
        ("rows", loader(samples(11)), half, {}),
        ("even", loader(data[:4]), half, {}),
    ):
        pl, run = distributed_trainer(world_size, RecMetricsCallback("HR", k=1), **flags)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run.fit(make_module(pl, step), loader(data), batches)
        said[name] = [str(w.message) for w in caught if "RecMetrics" in str(w.message)]
    return said


def test_doubts_are_said_once(processes):
    """Where repeats cannot be known, one warning points to sample_ids=; where there are none, there is no warning."""
    said = processes.run(doubts, 2)
    repeated = "so some may count twice. Pass sample_ids="
    for name, message in (
        ("own", "EveryoneReadsAll"),
        ("stream", "an iterable data set"),
        ("backwards", "Backwards"),
        ("order", "the order in which batches of samples come"),
        ("wrapped", "processes may draw different samples from EveryoneReadsAll, unless all are seeded alike"),
    ):
        assert len(said[0][name]) == 1, name
        assert message in said[0][name][0], name
        assert repeated in said[0][name][0], name
        assert said[1][name] == []
    assert "drop_last=True) leaves 1 of 5 samples out" in said[0]["dropping"][0]
    assert "DataLoader(drop_last=True) leaves 1 samples of each process out" in said[0]["short"][0]
    assert [len(process["rows"]) for process in said] == [0, 1]  # the process that holds the repeat
    assert "has 1 rows, which are not its samples" in said[1]["rows"][0]  # and not of a batch without repeats
    assert said[0]["even"] == said[1]["even"] == []


def collectives(rank, world_size):
    """Return what is communicated while an epoch ends, for 1 and for 30 metrics, and with sample ids."""
    counted = []
    names = ["HR", "NDCG", "MRR", "Precision", "Recall", "MAP"]
    for metrics, k, options in (
        (["HR"], 1, {}),
        (names, [1, 2, 3, 5, 10], {}),
        (names, [1, 2, 3, 5, 10], {"sample_ids": lambda returned, batch: batch[2]}),
    ):
        callback = RecMetricsCallback(metrics, k=k, log_counts=True, **options)
        pl, run = distributed_trainer(world_size, callback, num_sanity_val_steps=0, max_epochs=1)

        class Listener(pl.Callback):
            def on_validation_epoch_end(self, trainer, pl_module):
                calls.clear()

            def on_validation_end(self, trainer, pl_module):
                counted.append(list(calls))

        run.callbacks.insert(0, Listener())
        with distributed.counted_collectives() as calls:
            run.fit(make_module(pl), loader(samples(4)), [loader(samples(5)), loader(samples(6))])
    return counted


def test_two_collectives_an_epoch_and_collection(processes):
    """However many metrics; logging them, and reading them for the progress bar and monitors, adds none."""
    for one, thirty, by_id in processes.run(collectives, 2):
        assert one == thirty == ["all_reduce"] * 4
        assert by_id == ["all_gather"] * 4


def bad_values_on_one_process(rank, world_size):
    data = samples(6)
    step = lambda s, t, u: {"scores": s, "target": t + ITEMS * (u[:, None] == 5), "index": u}  # noqa: E731
    alone = lambda s, t, u: {"scores": s, "index": u} | ({"target": t} if rank else {})  # noqa: E731
    errors = []
    metrics = ["HR", "RPrecision", "AUROC", trm.Precision(1, denominator="recommended", score_threshold=0.5)]
    for step_, options in ((step, {}), (step, {"sample_ids": "index"}), (alone, {}), (alone, {"sample_ids": "index"})):
        pl, run = distributed_trainer(world_size, RecMetricsCallback(metrics, k=1, **options))
        with pytest.raises(ValueError, match="RecMetricsCallback, loader 'val'") as caught:
            run.validate(make_module(pl, step_), loader(data), verbose=False)
        errors.append(str(caught.value))
    return errors


def test_bad_values_on_one_process_raise_in_all(processes):
    """No process is left waiting for one that raised alone."""
    message = "RecMetricsCallback, loader 'val': HR@1: bad input since the last reset: "
    message += "1 rows with a target id beyond the last item"
    one, other = processes.run(bad_values_on_one_process, 2)
    assert one[:2] == other[:2] == [message, message]
    assert one[2] == one[3]
    assert "batch 0: validation_step must return a mapping" in one[2]
    assert other[2] == other[3]
    assert "1 rows in place of a batch that another process could not use (it tells why)" in other[2]


def epochs_of_a_fit(rank, world_size):
    """Return the values of each epoch of a fit, and what EarlyStopping and ModelCheckpoint made of them."""
    data, history = samples(7), []
    pl, _ = distributed_trainer(world_size)

    class Listener(pl.Callback):
        def on_validation_end(self, trainer, pl_module):
            if not trainer.sanity_checking:
                history.append(logged(trainer))

    with tempfile.TemporaryDirectory() as folder:
        keep = pl.callbacks.ModelCheckpoint(folder, monitor="val/HR@10", mode="max")
        stop = pl.callbacks.EarlyStopping("val/HR@10", mode="max", patience=2)
        _, run = distributed_trainer(
            world_size, RecMetricsCallback(NAMES, k=KS), Listener(), keep, stop, max_epochs=9, enable_checkpointing=True
        )
        run.fit(make_module(pl), loader(data), loader(data))
        torch.distributed.barrier()
    return history, keep.best_model_score.item(), run.current_epoch


def test_fit_on_two_processes(processes):
    """Every epoch's values, the best checkpoint's and the epoch of stopping are those of one process."""
    history, best, epochs = processes.run(epochs_of_a_fit, 1)[0]
    history = [{key: pytest.approx(value, abs=1e-12) for key, value in values.items()} for values in history]
    for process in processes.run(epochs_of_a_fit, 2):
        assert process == (history, pytest.approx(best, abs=1e-12), epochs)


# ------------------------------------------------------------------------------------------------- the whole catalogue

USERS = 30


def catalogue():
    """Return ground truth for validation and test, and train items: random, disjoint, some users without any."""
    generator = torch.Generator().manual_seed(5)
    cells = torch.randperm(USERS * ITEMS, generator=generator)[:180]
    edges = torch.stack([cells // ITEMS, cells % ITEMS])
    parts = [edges[:, :40], edges[:, 40:90], edges[:, 90:]]
    return [trm.Interactions.from_edge_index(part, USERS, ITEMS) for part in parts]


def make_embedding_module(pl, validates=True):
    """Make a module whose embeddings turn round every epoch; training moves nothing."""

    class TwoTowers(pl.LightningModule):
        def __init__(self):
            super().__init__()
            generator = torch.Generator().manual_seed(7)
            self.users = nn.Parameter(torch.randn(USERS, 8, generator=generator))
            self.items = nn.Parameter(torch.randn(ITEMS, 8, generator=generator))
            self.dropout = nn.Dropout(0.5)
            self.calls = 0

        def embed(self):
            self.calls += 1
            assert not torch.is_grad_enabled()
            return self.dropout(self.users) * (-1) ** self.current_epoch, self.items

        def training_step(self, batch, batch_idx):
            return (self.users.sum() + self.items.sum()) * 0

        def test_step(self, batch, batch_idx):
            pass

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    if validates:
        TwoTowers.validation_step = lambda self, batch, batch_idx: None
    return TwoTowers()


def expected_of(module, target, exclude, prefix, sign=1):
    result = trm.evaluate(
        NAMES, module.users.detach() * sign, module.items.detach(), target=target, exclude=exclude, k=KS
    )
    return {prefix + key: pytest.approx(value.item(), abs=1e-12) for key, value in result.items()}


def test_catalogue_in_validation_and_test(pl, tmp_path):
    """A plain target is logged as val/ in fit and validate and as test/ in test, one embedding pass each."""
    valid, _, train = catalogue()
    callback = CatalogueEvaluationCallback(
        NAMES, k=KS, embed=lambda m: m.embed(), target=valid, exclude={"val": train, "test": None}, log_counts=True
    )
    module, data = make_embedding_module(pl), DataLoader(torch.arange(4))
    run = trainer(pl, tmp_path, callback, max_epochs=2)
    run.fit(module, data, data)
    counts = {"num_users": len(valid.users.unique()), "num_unreachable": 0, "num_tied": 0}
    counts["num_skipped"] = USERS - counts["num_users"]
    after = {f"val/{name}": value for name, value in counts.items()}
    assert logged(run) == expected_of(module, valid, train, "val/", -1) | after
    assert module.calls == 3  # the sanity check embeds too
    assert callback.results["val"].num_users == counts["num_users"]
    assert run.validate(module, data, verbose=False) == [expected_of(module, valid, train, "val/") | after]
    after = {f"test/{name}": value for name, value in counts.items()}
    assert run.test(module, data, verbose=False) == [expected_of(module, valid, None, "test/") | after]
    assert module.training


def test_catalogue_with_several_targets(tmp_path):
    """Each has its name in the keys and its own exclusion; they share one embedding pass."""
    pl = importlib.import_module(PACKAGES[0])
    valid, test, train = catalogue()
    callback = CatalogueEvaluationCallback(
        trm.RecMetricCollection(NAMES, k=KS, prefix="mine/"),
        embed=lambda m: m.embed(),
        target={"valid": valid, "test": test},
        exclude={"valid": train, "test": train.union(valid)},
        prefix="{name}/full_",
    )
    module, data = make_embedding_module(pl), DataLoader(torch.arange(4))
    run = trainer(pl, tmp_path, callback)
    expected = expected_of(module, valid, train, "valid/full_")
    expected |= expected_of(module, test, train.union(valid), "test/full_")
    assert run.validate(module, data, verbose=False) == [expected]
    assert run.test(module, data, verbose=False) == [expected]
    assert module.calls == 2


def test_catalogue_without_validation_loaders(pl, tmp_path):
    """Then it runs when a training epoch ends, where monitors see it; every_n_epochs leaves epochs out."""
    valid, _, train = catalogue()
    keep = pl.callbacks.ModelCheckpoint(tmp_path, monitor="val/HR@10", mode="max", every_n_epochs=2)
    stop = pl.callbacks.EarlyStopping("val/HR@10", mode="max", patience=1)
    options = {"embed": lambda m: m.embed(), "target": valid, "exclude": train}
    logger = pl.loggers.CSVLogger(tmp_path)
    module, data = make_embedding_module(pl, validates=False), DataLoader(torch.arange(4))
    callback = CatalogueEvaluationCallback(NAMES, k=KS, every_n_epochs=2, **options)
    run = trainer(pl, tmp_path, callback, keep, logger=logger, max_epochs=5, enable_checkpointing=True)
    run.fit(module, data)
    with open(f"{logger.log_dir}/metrics.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "3"]
    odd = expected_of(module, valid, train, "val/", -1)
    assert {key: float(rows[0][key]) for key in odd} == {
        key: pytest.approx(value.expected, abs=1e-6) for key, value in odd.items()
    }
    assert keep.best_model_score.item() == odd["val/HR@10"]
    assert module.calls == 2
    assert module.training

    module = make_embedding_module(pl, validates=False)
    run = trainer(pl, tmp_path, CatalogueEvaluationCallback(NAMES, k=KS, **options), stop, max_epochs=9)
    run.fit(module, data)
    assert run.current_epoch < 9


def test_catalogue_from_a_score_function(tmp_path):
    """Where there are no embeddings, embed returns a function of user ids and None."""
    pl = importlib.import_module(PACKAGES[0])
    valid, _, train = catalogue()
    module, data = make_embedding_module(pl), DataLoader(torch.arange(4))
    callback = CatalogueEvaluationCallback(
        NAMES, k=KS, embed=lambda m: (lambda ids: m.users[ids] @ m.items.T, None), target=valid, exclude=train
    )
    got = trainer(pl, tmp_path, callback).validate(module, data, verbose=False)
    assert got == [expected_of(module, valid, train, "val/")]


def test_catalogue_sanity_check(tmp_path):
    """Embeddings that do not fit stop the run before its first epoch; nothing is logged there."""
    pl = importlib.import_module(PACKAGES[0])
    valid, _, _ = catalogue()
    module, data = make_embedding_module(pl), DataLoader(torch.arange(4))
    callback = CatalogueEvaluationCallback("HR", k=1, embed=lambda m: (m.items, m.users), target=valid)
    run = trainer(pl, tmp_path, callback)
    with pytest.raises(ValueError, match="40 users have embeddings, but target has 30 users"):
        run.fit(module, data, data)
    assert run.fit_loop.epoch_progress.current.ready == 0
    seen = []

    class Listener(pl.Callback):
        def on_sanity_check_end(self, trainer, pl_module):
            seen.append((dict(trainer.callback_metrics), dict(callback.results)))

    callback = CatalogueEvaluationCallback("HR", k=1, embed=lambda m: m.embed(), target=valid)
    trainer(pl, tmp_path, callback, Listener()).fit(make_embedding_module(pl), data, data)
    assert seen == [({}, {})]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"target": [1]}, TypeError, "target must be Interactions"),
        ({"target": {"valid": None}}, TypeError, "target must be Interactions"),
        ({"exclude": {"valid": None}}, ValueError, "exclude holds valid, expected val, test"),
        ({"every_n_epochs": 0}, ValueError, "every_n_epochs must be at least 1"),
        ({"stages": "fit"}, ValueError, "stages must be one of"),
        ({"embed": None}, TypeError, "embed must be a function of .the module."),
        ({"embed": lambda a, b: None}, TypeError, "embed must be a function of .the module."),
    ],
)
def test_catalogue_bad_arguments(options, error, message):
    with pytest.raises(error, match=message):
        CatalogueEvaluationCallback("HR", k=1, **({"embed": lambda m: None, "target": catalogue()[0]} | options))


def test_catalogue_every_n_epochs_and_early_stopping(tmp_path):
    """EarlyStopping would end the run after the first epoch, with an error that does not tell why."""
    pl = importlib.import_module(PACKAGES[0])
    stop, data = pl.callbacks.EarlyStopping("val/HR@1", mode="max"), DataLoader(torch.arange(4))
    options = {"k": 1, "embed": lambda m: m.embed(), "target": catalogue()[0]}
    run = trainer(pl, tmp_path, CatalogueEvaluationCallback("HR", every_n_epochs=2, **options), stop)
    with pytest.raises(
        ValueError, match=r"every_n_epochs=2 does not log: leave that out and pass Trainer\(check_val_every_n_epoch=2\)"
    ):
        run.fit(make_embedding_module(pl), data, data)
    lenient = pl.callbacks.EarlyStopping("val/HR@1", mode="max", strict=False)
    for callback, stopping, every in (
        (CatalogueEvaluationCallback("HR", **options), stop, 2),
        (CatalogueEvaluationCallback("HR", every_n_epochs=2, **options), stop, 2),
        (CatalogueEvaluationCallback("HR", every_n_epochs=2, **options), lenient, 1),
    ):
        run = trainer(pl, tmp_path, callback, stopping, check_val_every_n_epoch=every, max_epochs=4)
        run.fit(make_embedding_module(pl), data, data)


def test_catalogue_embed_returns_something_else(tmp_path):
    pl = importlib.import_module(PACKAGES[0])
    callback = CatalogueEvaluationCallback("HR", k=1, embed=lambda m: m.users @ m.items.T, target=catalogue()[0])
    with pytest.raises(TypeError, match=r"embed must return .users, items., got .*float32"):
        trainer(pl, tmp_path, callback).validate(make_embedding_module(pl), DataLoader(torch.arange(4)))


@pytest.mark.parametrize("kind", ["TQDMProgressBar", "RichProgressBar"])
@pytest.mark.parametrize("validates", [True, False])
def test_catalogue_progress_in_the_trainers_bar(kind, validates, tmp_path, capsys):
    """The trainer's own bar counts users while the catalogue is evaluated."""
    pl = importlib.import_module(PACKAGES[0])
    if kind == "RichProgressBar":
        pytest.importorskip("rich")
    valid, _, _ = catalogue()
    module, data = make_embedding_module(pl, validates), DataLoader(torch.arange(4))
    callback = CatalogueEvaluationCallback("HR", k=1, embed=lambda m: m.embed(), target=valid, batch_size=7)
    bar = getattr(pl.callbacks, kind)()
    run = trainer(pl, tmp_path, callback, bar, enable_progress_bar=True, max_epochs=1)
    users, shown = len(valid.users.unique()), []
    for go in (
        lambda: run.fit(module, data, *([data] if validates else [])),
        lambda: run.test(module, data, verbose=False),
    ):
        go()
        if kind == "RichProgressBar":  # a live display that is not on a terminal prints its last state only
            shown += [f"{t.description} {t.completed}/{t.total}" for t in bar.progress.tasks]
    shown = " ".join(shown) + capsys.readouterr().out
    for name in ("val", "test"):
        assert re.search(rf"Catalogue, {name}[^\r]* {users}/{users}", shown)


def shared_catalogue(rank, world_size):
    """Return what is logged with the users split over the processes."""
    valid, _, train = catalogue()
    scored = []

    def embed(module):
        users, items = module.embed()
        return lambda ids: (scored.append(len(ids)), users[ids] @ items.T)[1], None

    callback = CatalogueEvaluationCallback(NAMES, k=KS, embed=embed, target=valid, exclude=train, log_counts=True)
    pl, run = distributed_trainer(world_size, callback, max_epochs=1)
    data = DataLoader(torch.arange(4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspect.getmodule(CatalogueEvaluationCallback), "_SANITY_USERS", 0)
        run.fit(make_embedding_module(pl), data, data)
    return logged(run), sum(scored)


def test_catalogue_over_processes(processes):
    """The users are split, and all processes log the values of one."""
    one, scored = processes.run(shared_catalogue, 1)[0]
    assert one["val/num_users"] == scored < USERS
    expected = {key: pytest.approx(value, abs=1e-12) for key, value in one.items()}
    shares = processes.run(shared_catalogue, 2)
    assert [values for values, _ in shares] == [expected, expected]
    assert sum(share for _, share in shares) == scored > max(share for _, share in shares)
