"""RecMetricsCallback: the values that it logs from the output of steps, under all Trainer flags, and its errors."""

import csv
import pickle
import tempfile
import warnings

import distributed
import pytest
import torch
from trainers import (
    ITEMS,
    KS,
    NAMES,
    PACKAGES,
    QUIET,
    both_packages,
    by_hand,
    catalogue,
    distributed_trainer,
    group_step,
    groups_by_hand,
    loader,
    logged,
    make_module,
    samples,
    trainer,
)
from values import near

import torchrecmetrics as trm
from torchrecmetrics.lightning import RecMetricsCallback

pytestmark = QUIET


# ------------------------------------------------------------------------------------------------------- what is logged


@both_packages
def test_fit_validate_test_predict(pl, tmp_path):
    """One callback serves all stages: each stage logs its own rows, and prediction logs nothing."""
    first, second = samples(10), samples(7, seed=1)
    callback, module = RecMetricsCallback(NAMES, k=KS), make_module(pl)
    run = trainer(pl, tmp_path, callback)
    assert run.validate(module, loader(first), verbose=False) == [by_hand(first, "val/")]
    run.fit(module, loader(first), loader(second))
    assert logged(run) == by_hand(second, "val/", sign=-1)
    hits = callback.collections["val"]["HR@1"]
    assert hits.num_users == 7  # the result stays
    assert not hits.update_called  # the sums do not
    # after a fit the loader that is passed counts, not that of the fit
    assert run.validate(module, loader(first), verbose=False) == [by_hand(first, "val/")]
    assert run.test(module, loader(first), verbose=False) == [by_hand(first, "test/")]
    before = dict(callback.collections)
    assert len(run.predict(module, loader(first))) == 3
    assert callback.collections == before


def test_a_question_about_data_is_asked_once(pl, tmp_path):
    """Data that may mean something else is asked about in the first epoch, not in each one."""

    def step(scores, target, users):
        falling = scores.sort(1, descending=True).values
        return {"scores": falling, "target": falling > 0.9}

    run = trainer(pl, tmp_path, RecMetricsCallback("HR", k=5), max_epochs=3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.fit(make_module(pl, step), loader(samples(16), batch_size=8), loader(samples(16), batch_size=8))
    assert sum("scores fall along every row" in str(warning.message) for warning in caught) == 1


@pytest.mark.parametrize("outputs", ["ranks", "ranking", "input", "gains", "weights", "dense", "function"])
def test_every_form_of_update(outputs, pl, tmp_path):
    """A step may return every input of `update`, and the options of scores; other entries are ignored."""
    data = samples(9)

    def step(scores, target, users):
        return {
            "ranks": lambda: {"input": trm.Ranks(trm.get_topk_ranks(scores, target, 10), 10), "target": target},
            "ranking": lambda: {"input": trm.Scores(scores, target).ranking(), "loss": 0},
            "input": lambda: {"input": trm.Lists(scores.argsort(descending=True), target), "target": target},
            "gains": lambda: {"scores": scores, "target": target, "gains": torch.ones_like(target)},
            "weights": lambda: {"scores": scores, "target": target, "weights": users + 1.0},
            "dense": lambda: {"scores": scores, "target": torch.zeros_like(scores).scatter_(1, target, 1).bool()},
            "function": lambda: (scores, target),
        }[outputs]()

    function = (lambda returned, batch: {"scores": returned[0], "target": batch[1]}) if outputs == "function" else None
    names = ("HR", "NDCG", "MRR")  # R-precision needs ranks deeper than 10 if users have more relevant items
    callback = RecMetricsCallback(names, k=KS, outputs=function)
    run = trainer(pl, tmp_path, callback)
    options = {"weights": torch.arange(9) + 1.0} if outputs == "weights" else {}
    assert run.validate(make_module(pl, step), loader(data), verbose=False) == [
        by_hand(data, "val/", names=names, **options)
    ]


@both_packages
@pytest.mark.parametrize(
    ("loaders", "dataloaders", "keys"),
    [
        (list, None, ("val/{}/dataloader_idx_0", "val/{}/dataloader_idx_1")),
        (list, ["valid", "test"], ("valid/{}", "test/{}")),
        (lambda two: {"valid": two[0], "test": two[1]}, None, ("valid/{}", "test/{}")),
        (lambda two: {"a": two[0], "b": two[1]}, ["valid", "test"], ("valid/{}", "test/{}")),
    ],
)
def test_two_loaders(pl, tmp_path, loaders, dataloaders, keys):
    """Each loader has its own collection and keys, and no value is of both loaders together."""
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


def test_names_where_a_stage_has_one_loader(pl, tmp_path):
    """Names are for stages with as many loaders; a single loader has the stage's name; another number raises."""
    callback = RecMetricsCallback("HR", k=1, dataloaders=["valid", "test"])
    run, data = trainer(pl, tmp_path, callback), samples(3)
    run.test(make_module(pl), loader(data), verbose=False)
    assert list(logged(run)) == ["test/HR@1"]
    with pytest.raises(ValueError, match="dataloaders names valid, test, but validate has 3 loaders"):
        run.validate(make_module(pl), [loader(data)] * 3, verbose=False)


def test_a_collection_and_a_step_that_logs_too(pl, tmp_path):
    """A collection is cloned without its prefix and state, and the module's own logging goes on beside the callback."""
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


def test_a_step_may_return_what_select_gives(pl, tmp_path):
    """A step may return a `select` as exclude, whose values, such as ratings, are not read as ids."""
    data = samples(10)
    edges = torch.stack([torch.arange(10), torch.randint(ITEMS, (10,), generator=torch.Generator().manual_seed(3))])
    history = trm.Interactions.from_edge_index(edges, 10, ITEMS, values=torch.ones(10, dtype=torch.int64))

    def step(scores, target, users):
        return {"scores": scores, "target": target, "exclude": history.select(users)}

    run = trainer(pl, tmp_path, RecMetricsCallback(NAMES, k=KS, overlap="miss"))
    values = run.validate(make_module(pl, step), loader(data), verbose=False)
    scores, target, users = (torch.stack([torch.as_tensor(entry[i]) for entry in data]) for i in range(3))
    collection = trm.RecMetricCollection(NAMES, k=KS, prefix="val/", overlap="miss")
    collection.update(scores, target, exclude=history.select(users).items)
    assert values == [near(collection.compute())]


def test_a_step_may_return_jagged_columns(pl, tmp_path):
    """A step may return jagged columns as a pair or as `Jagged`, and the callback's exclude is added to them."""
    data = samples(10)
    seen = trm.Interactions.from_padded(torch.arange(10)[:, None] % ITEMS, ITEMS)

    def jagged(form):
        return lambda s, t, u: {"scores": s, "target": form(t), "exclude": form((t + 1) % ITEMS), "user_ids": u}

    def step(scores, target, users):
        return {"scores": scores, "target": target, "exclude": (target + 1) % ITEMS, "user_ids": users}

    found = []
    for made in (
        jagged(lambda t: (t.flatten(), torch.arange(0, t.numel() + 1, t.shape[1]))),
        jagged(lambda t: trm.Jagged(t.flatten(), torch.arange(0, t.numel() + 1, t.shape[1]))),
        step,
    ):
        run = trainer(pl, tmp_path, RecMetricsCallback(NAMES, k=KS, overlap="miss", exclude=seen))
        found += run.validate(make_module(pl, made), loader(data), verbose=False)
    assert found[0] == found[1] == found[2]


def test_exclude_by_user_ids(pl, tmp_path):
    """With exclude= a step returns only user ids; a dict has a history per loader; the step's own is added."""
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
    column = lambda scores, target, users: step(scores, target, users[:, None])  # noqa: E731
    run = trainer(pl, tmp_path, RecMetricsCallback(NAMES, k=KS, exclude=train))
    assert run.validate(make_module(pl, column), loader(data), verbose=False) == [expected[0]]
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


@pytest.mark.parametrize("make", [trm.Scores, lambda scores, target: trm.Lists(scores.argsort(1).flip(1), target)])
def test_exclude_of_inputs(make, pl, tmp_path):
    """With exclude=, items also leave the candidates of a step's input."""
    data = samples(10)
    train = trm.Interactions.from_padded(torch.stack([(t + 1) % ITEMS for _, t, _ in data]), num_items=ITEMS)
    step = lambda scores, target, users: {"input": make(scores, target), "user_ids": users}  # noqa: E731
    run = trainer(pl, tmp_path, RecMetricsCallback(["HR", "NDCG"], k=KS, exclude=train))
    expected = by_hand(data, "val/", names=["HR", "NDCG"], exclude=train.select(range(10)).items)
    assert run.validate(make_module(pl, step), loader(data), verbose=False) == [expected]


def test_inputs_without_exclude(pl, tmp_path):
    """With exclude=, ranks that are made already are refused."""
    train = trm.Interactions.from_padded(torch.zeros(10, 1, dtype=torch.int64), num_items=ITEMS)
    step = lambda scores, target, users: {"input": trm.Ranks(target + 1), "user_ids": users}  # noqa: E731
    run = trainer(pl, tmp_path, RecMetricsCallback("HR", k=1, exclude=train))
    with pytest.raises(ValueError, match="exclude= was given beside Ranks, made already"):
        run.validate(make_module(pl, step), loader(samples(10)), verbose=False)


def test_columns_that_accumulators_read(pl, tmp_path):
    """A collection brings its accumulators, whose columns the step returns."""
    accumulators = [trm.ByGroup("even", "odd", column="parity"), trm.KeptRows()]
    callback = RecMetricsCallback(trm.RecMetricCollection("HR", k=10, accumulators=accumulators))
    step = lambda s, t, u: {"scores": s, "target": t, "parity": u % 2, "row_ids": u + 5, "clusters": u // 3}  # noqa: E731
    run, data = trainer(pl, tmp_path, callback), samples(10)
    run.validate(make_module(pl, step), loader(data), verbose=False)
    expected = by_hand(data, "val/", names="HR", k=10)
    for place, name in enumerate(("even", "odd")):
        values = by_hand(data[place::2], "val/", names="HR", k=10)
        expected |= {f"{key}/{name}": value for key, value in values.items()}
    assert logged(run) == expected
    rows = callback.collections["val"].rows
    assert rows.ids.tolist() == [u + 5 for u in range(10)]
    assert rows.clusters.tolist() == [u // 3 for u in range(10)]


# -------------------------------------------------------------------------------------------------- the Trainer's flags


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
def test_trainer_flags(options, seen, times, pl, tmp_path):
    """Each validation logs exactly the rows that it has seen, under every Trainer flag."""
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


def test_sanity_check_leaves_nothing(pl, tmp_path):
    """Values of the sanity check are neither logged nor left in the state."""
    callback, seen = RecMetricsCallback(NAMES, k=KS), []

    class Listener(pl.Callback):
        def on_sanity_check_end(self, trainer, pl_module):
            seen.append((dict(trainer.callback_metrics), dict(trainer.logged_metrics), dict(callback.collections)))

    data = samples(10)
    run = trainer(pl, tmp_path, callback, Listener(), max_epochs=1)
    run.fit(make_module(pl), loader(data), loader(data))
    assert seen == [({}, {}, {})]
    assert logged(run) == by_hand(data, "val/")


def test_sanity_check_raises_deferred_errors(pl, tmp_path):
    """Bad values whose error is deferred to compute stop the run before its first epoch."""
    step = lambda scores, target, users: {"scores": scores, "target": target + ITEMS}  # noqa: E731
    run = trainer(pl, tmp_path, RecMetricsCallback("HR", k=1, validate_args="deferred"))
    with pytest.raises(ValueError, match="8 rows with a target id beyond the last item"):
        run.fit(make_module(pl, step), loader(samples(10)), loader(samples(10)))
    assert run.fit_loop.epoch_progress.current.ready == 0


@both_packages
def test_resumed_run_logs_what_an_uninterrupted_one_logs(pl, tmp_path):
    """A resumed run logs the same as an uninterrupted run, though no metric is in the checkpoint."""
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


def test_state_does_not_leak_from_a_run_that_failed(pl, tmp_path):
    """An epoch that failed leaves no state for the next run."""
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


def test_pickles():
    """A callback can be pickled, because spawning strategies send callbacks to their processes."""
    callback = pickle.loads(pickle.dumps(RecMetricsCallback(NAMES, k=KS, dataloaders=["a", "b"])))
    assert callback.dataloaders == ["a", "b"]


# ------------------------------------------------------------------------------------------------------------ bad input


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
        (lambda s, t, u: {"scores": s, "targets": t}, ValueError, "returned 'targets': return 'target'"),
        (lambda s, t, u: {"scores": s}, ValueError, "'scores' and 'target', or .*got 'scores'; outputs="),
        (lambda s, t, u: {"scores": s, "target": t, "excluded": t}, ValueError, "'excluded': return 'exclude'"),
        (lambda s, t, u: {"scores": s, "target": t, "weight": u}, ValueError, "'weight': return 'weights'"),
        (lambda s, t, u: {"scores": s.numpy(), "target": t}, TypeError, "scores must be a tensor"),
        (lambda s, t, u: {"scores": s.to(META), "target": t.to(META)}, ValueError, "is on cpu, its input on meta"),
        (
            lambda s, t, u: {"scores": s, "target": t + ITEMS},
            ValueError,
            "loader 'val', batch 0: 4 of 4 rows with a target",
        ),
        (lambda s, t, u: {"scores": s, "target": t[:2]}, ValueError, "loader 'val', batch 0: target"),
        (lambda s, t, u: {"input": trm.Scores(s, t), "exclude": t}, ValueError, "'exclude' beside 'input': give it to"),
        (lambda s, t, u: {"ranks": t + 1}, ValueError, r"'ranks': return 'input', trm.Ranks\(ranks, depth\)"),
        (lambda s, t, u: {"ranking": 0}, ValueError, "'ranking': return 'input', which may be a Ranking"),
        (
            lambda s, t, u: {"scores": s, "target": t, "indexes": u},
            ValueError,
            "trm.Sessions.*CollectSessions",
        ),
        (lambda s, t, u: {"input": t}, TypeError, "'input' must be an input, such as trm.Lists"),
        (
            lambda s, t, u: {"scores": s[:, :9], "target": t, "candidates": torch.arange(9)},
            ValueError,
            "returned 'candidates': return 'input', trm.Candidates",
        ),
        (lambda s, t, u: {"scores": s, "target": t, "weights": -u}, ValueError, "weight that is negative"),
    ],
)
def test_what_a_step_must_not_return(step, error, message, pl, tmp_path):
    """The error for bad output of a step names the loader, the batch, the hook and the bad entry."""
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
        ({"exclude": True}, {"user_ids": torch.tensor([0, 1])}, "exclude ids must be .4. or"),
        ({"exclude": True}, {"user_ids": torch.rand(4)}, "users must be whole numbers .B., got a torch.float32"),
        (
            {"sample_ids": "index"},
            {"index": torch.tensor([2, -1, 0, -1])},
            "'val': sample_ids hold -1, .*no index in",
        ),
        ({"sample_ids": "index"}, {}, "must return 'index' .sample_ids=.; it returned 'scores', 'target'"),
        ({"sample_ids": "index"}, {"index": torch.arange(3)}, "sample_ids must be .4., one a row, got .3."),
        ({"sample_ids": "index"}, {"index": torch.rand(4)}, "sample_ids must be an integer tensor"),
        ({"sample_ids": lambda returned, batch: None}, {}, "sample_ids must be an integer tensor, got None"),
        ({"outputs": lambda returned, batch: returned["scores"]}, {}, "the function outputs= must return a mapping"),
    ],
)
def test_what_an_option_asks_of_the_step(options, returned, message, pl, tmp_path):
    """The error for an entry that an option needs and that is missing or bad names the entry."""
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
        (
            ["HR"],
            {"k": 5, "stage": "test"},
            ValueError,
            "RecMetricsCallback has no option 'stage'; did you mean 'stages",
        ),
        (["HR"], {"k": 5, "sampleids": "x"}, ValueError, "has no option 'sampleids'; did you mean 'sample_ids'"),
        (["HR"], {"k": 5, "prog_bar": "NDCG@10"}, ValueError, "prog_bar names NDCG@10, the metrics are HR@5"),
        (["HR"], {"k": 5, "outputs": "scores"}, TypeError, "outputs must be a function"),
        (
            ["HR"],
            {"k": 5, "outputs": lambda batch: None},
            TypeError,
            "outputs must be a function of .output of the step",
        ),
        (["HR"], {"k": "10"}, TypeError, "k must be whole numbers, got the string '10'"),
        (["hr,ndcg"], {"k": 10}, ValueError, "unknown metric 'hr,ndcg'; several names are given as a list"),
        (["HR"], {"k": 5, "sample_ids": 3}, TypeError, "sample_ids must be a function of"),
        (["HR"], {"k": 5, "exclude": torch.zeros(3)}, TypeError, "exclude must be Interactions"),
        (["HR"], {"k": 5, "exclude": {"val": [1]}}, TypeError, "exclude must be Interactions"),
        (["HR"], {"k": 5, "tie": "realistic"}, ValueError, "no option 'tie'; did you mean 'ties'"),
    ],
)
def test_bad_arguments(arguments, options, error, message):
    """Bad arguments raise when the callback is made."""
    with pytest.raises(error, match=message):
        RecMetricsCallback(arguments, **options)


# ---------------------------------------------------------------------------------------------------- several processes


def collectives(rank, world_size):
    """Return the collectives at the end of an epoch, for 1 metric, for 30 metrics and for 30 with sample ids."""
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
    """A collection needs two collectives per epoch, and one for rows by id; logging and monitors add none."""
    for one, thirty, by_id in processes.run(collectives, 2):
        assert one == thirty == ["all_reduce"] * 4
        assert by_id == ["barrier", "all_gather", "all_gather", "all_reduce", "all_reduce"] * 2


def bad_values_on_one_process(rank, world_size):
    data = samples(6)
    step = lambda s, t, u: {"scores": s, "target": t + ITEMS * (u[:, None] == 5), "index": u}  # noqa: E731
    errors = []
    metrics = ["HR", "RPrecision", "AUROC", trm.Precision(1, denominator="recommended", score_threshold=0.5)]
    for options in ({}, {"sample_ids": "index"}):
        pl, run = distributed_trainer(world_size, RecMetricsCallback(metrics, k=1, **options))
        with pytest.raises(ValueError, match="RecMetricsCallback, loader 'val'") as caught:
            run.validate(make_module(pl, step), loader(data), verbose=False)
        errors.append(str(caught.value))
    return errors


def test_bad_values_on_one_process_raise_in_all(processes):
    """Bad values on one process raise on all processes, so that no process waits for another."""
    message = "RecMetricsCallback, loader 'val': HR@1: bad input since the last reset: "
    message += "1 row with a target id beyond the last item"
    assert processes.run(bad_values_on_one_process, 2) == [[message, message]] * 2


def epochs_of_a_fit(rank, world_size):
    """Return the values of each epoch of a fit, the best score of ModelCheckpoint and the last epoch."""
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
    """The values of every epoch, the score of the best checkpoint and the last epoch are those of one process."""
    history, best, epochs = processes.run(epochs_of_a_fit, 1)[0]
    history = [{key: pytest.approx(value, abs=1e-12) for key, value in values.items()} for values in history]
    for process in processes.run(epochs_of_a_fit, 2):
        assert process == (history, pytest.approx(best, abs=1e-12), epochs)


# ------------------------------------------------------------------------------------------------- groups and histories


@both_packages
def test_steps_have_groups(pl, tmp_path):
    """Values of groups are logged, whose numbers a step returns."""
    data = samples(13)
    callback = RecMetricsCallback(["HR", "NDCG"], k=[5], accumulators=[trm.ByGroup("a", "b")], prog_bar="NDCG@5/b")
    running = trainer(pl, tmp_path, callback)
    running.validate(make_module(pl, group_step), loader(data), verbose=False)
    assert logged(running) == groups_by_hand(data)
    assert callback.collections["val"].standard_errors()["HR@5/a"] > 0


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda s, t, u: {"scores": s, "target": t}, "the collection has the groups a"),
        (lambda s, t, u: {"scores": s, "target": t, "groups": u % 2}, "whose group is none of those"),
    ],
)
def test_steps_that_do_not_fit(tmp_path, returned, message):
    pl = pytest.importorskip(PACKAGES[0])
    running = trainer(pl, tmp_path, RecMetricsCallback("HR", k=[5], accumulators=[trm.ByGroup("a")]))
    with pytest.raises(ValueError, match=message):
        running.validate(make_module(pl, returned), loader(samples(9)), verbose=False)


def test_steps_return_the_history(tmp_path):
    """Metrics that read a history take it from the step."""
    pl = pytest.importorskip(PACKAGES[0])
    _, _, train = catalogue()
    data = samples(13)
    known = trm.Catalogue.from_interactions(train)
    own = lambda s, t, u: {"scores": s, "target": t, "history": train.select(u), "index": u}  # noqa: E731
    metric = trm.Seen(5)
    metric.update(trm.Scores(torch.stack([s for s, _, _ in data]), history=train.select(torch.arange(13))))
    for options in ({}, {"sample_ids": "index"}):
        running = trainer(pl, tmp_path, RecMetricsCallback("Seen", k=[5], catalogue=known, **options))
        running.validate(make_module(pl, own), loader(data), verbose=False)
        assert logged(running) == {"val/Seen@5": pytest.approx(metric.compute().item(), abs=1e-6)}
    running = trainer(pl, tmp_path, RecMetricsCallback("Seen", k=[5], catalogue=known))
    with pytest.raises(ValueError, match="the history of each row is read"):
        running.validate(make_module(pl, group_step), loader(data), verbose=False)


# -------------------------------------------------------------------------------------------------------- training rows


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
