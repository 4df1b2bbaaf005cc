"""RecMetricsCallback: the values that it logs from the output of steps, under all Trainer flags, and its errors."""

import importlib
import pickle
import warnings

import distributed
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from trainers import (
    ITEMS,
    KS,
    NAMES,
    QUIET,
    both_packages,
    by_hand,
    catalogue,
    columns,
    distributed_trainer,
    loader,
    logged,
    make_module,
    samples,
    trainer,
    validated,
)
from values import near, numbers

import torchrecmetrics as trm
from torchrecmetrics.lightning import RecMetricsCallback

pytestmark = QUIET

DATA = samples(10)
SCORES, TARGET = columns(DATA)
USERS = torch.arange(10)


@both_packages
def test_each_stage_logs_its_own_rows(pl):
    """After a fit the loader that is passed counts, not that of the fit."""
    first, second = DATA, samples(7, seed=1)
    callback, module = RecMetricsCallback(NAMES, k=KS), make_module(pl)
    run = trainer(pl, callback)
    run.fit(module, loader(first), loader(second))

    assert logged(run) == by_hand(second, "val/", sign=-1)
    assert run.validate(module, loader(first), verbose=False) == [by_hand(first, "val/")]
    assert run.test(module, loader(first), verbose=False) == [by_hand(first, "test/")]
    assert {name: each.result().num_users for name, each in callback.collections.items()} == {"val": 10, "test": 10}


def test_a_result_stays_until_the_next_epoch(pl):
    callback = RecMetricsCallback(NAMES, k=KS)
    values = validated(pl, callback, loader(DATA))
    result = callback.collections["val"].result()

    assert {f"val/{key}": value for key, value in result.floats().items()} == values
    assert result.num_users == 10


def test_prediction_logs_nothing(pl):
    callback = RecMetricsCallback(NAMES, k=KS)

    assert len(trainer(pl, callback).predict(make_module(pl), loader(DATA))) == 3
    assert callback.collections == {}


def after(target, offset=1):
    """Return ids to exclude, none of which is relevant."""
    return (target + offset) % ITEMS


def history(offset=1):
    """Return the items of `after` for all users, with values that, like ratings, are not read as ids."""
    edges = torch.stack([USERS.repeat_interleave(2), after(TARGET, offset).flatten()])
    return trm.Interactions.from_edge_index(edges, 10, ITEMS, values=torch.ones(20, dtype=torch.int64))


def flat(rows):
    return rows.flatten(), torch.arange(0, rows.numel() + 1, rows.shape[1])


ONE, TWO = {"exclude": after(TARGET)}, {"exclude": torch.cat([after(TARGET), after(TARGET, 2)], 1)}
ALL = {"exclude": history()}
STEPS = {  # the step, options of the callback, and options of the `update` that gives the same values
    "ranks": (lambda s, t, u: {"input": trm.Ranks(trm.get_topk_ranks(s, t, 10), 10), "target": t}, {}, {}),
    "ranking": (lambda s, t, u: {"input": trm.Scores(s, t).ranking(), "loss": 0}, {}, {}),
    "lists": (lambda s, t, u: {"input": trm.Lists(s.argsort(descending=True), t), "target": t}, {}, {}),
    "gains": (lambda s, t, u: {"scores": s, "target": t, "gains": t + 1.0}, {}, {"gains": TARGET + 1.0}),
    "weights": (lambda s, t, u: {"scores": s, "target": t, "weights": u + 1.0}, {}, {"weights": USERS + 1.0}),
    "tuple": (lambda s, t, u: (s, t), {"outputs": lambda found, batch: {"scores": found[0], "target": batch[1]}}, {}),
    "exclude": (lambda s, t, u: {"scores": s, "target": t, "exclude": after(t)}, {}, ONE),
    "select": (lambda s, t, u: {"scores": s, "target": t, "exclude": history().select(u)}, {}, ONE),
    "pairs": (lambda s, t, u: {"scores": s, "target": flat(t), "exclude": flat(after(t))}, {}, ONE),
    "user_ids": (lambda s, t, u: {"scores": s, "target": t, "user_ids": u}, ALL, ONE),
    "both": (lambda s, t, u: {"scores": s, "target": t, "user_ids": u, "exclude": after(t, 2)}, ALL, TWO),
    "Jagged": (
        lambda s, t, u: {"scores": s, "target": t, "user_ids": u, "exclude": trm.Jagged(*flat(after(t, 2)))},
        ALL,
        TWO,
    ),
    "Scores, user_ids": (lambda s, t, u: {"input": trm.Scores(s, t), "user_ids": u}, ALL, ONE),
    "Lists, user_ids": (lambda s, t, u: {"input": trm.Lists(s.argsort(1).flip(1), t), "user_ids": u}, ALL, ONE),
}


@pytest.mark.parametrize("form", STEPS)
def test_outputs_of_a_step(form, pl):
    """A step may return all that `update` takes; `exclude=` adds items by user ids; other entries are ignored."""
    step, options, update = STEPS[form]
    names = ("HR", "NDCG", "MRR")  # R-precision needs ranks deeper than 10 if users have more relevant items
    got = validated(pl, RecMetricsCallback(names, k=KS, **options), loader(DATA), step)
    assert got == by_hand(DATA, "val/", names=names, **update)


def test_a_history_for_each_loader(pl):
    """A dict has a history for each loader, by its name or by that of the stage."""
    step = STEPS["user_ids"][0]
    run = trainer(pl, RecMetricsCallback(NAMES, k=KS, exclude={"val": history(), "cold": history(2)}))
    loaders = {"warm": loader(DATA), "cold": loader(DATA)}
    run.validate(make_module(pl, step), loaders, verbose=False)
    warm, cold = by_hand(DATA, "warm/", exclude=after(TARGET)), by_hand(DATA, "cold/", exclude=after(TARGET, 2))
    assert logged(run) == warm | cold
    assert list(warm.values()) != list(cold.values())
    with pytest.raises(ValueError, match="exclude has the keys val, cold, but neither 'warm' nor 'test'"):
        run.test(make_module(pl, step), loaders, verbose=False)


@pytest.mark.parametrize(
    ("loaders", "dataloaders", "keys"),
    [
        (list, None, ("val/{}/dataloader_idx_0", "val/{}/dataloader_idx_1")),
        (list, ["valid", "test"], ("valid/{}", "test/{}")),
        (lambda two: {"valid": two[0], "test": two[1]}, None, ("valid/{}", "test/{}")),
        (lambda two: {"a": two[0], "b": two[1]}, ["valid", "test"], ("valid/{}", "test/{}")),
    ],
)
def test_two_loaders(pl, loaders, dataloaders, keys):
    """Each loader has its own collection and keys, and no value is of both loaders together."""
    both = DATA, samples(6, seed=1)
    callback = RecMetricsCallback(NAMES, k=KS, dataloaders=dataloaders)
    expected = {}
    for key, data in zip(keys, both, strict=True):
        prefix, postfix = key.split("{}")
        expected |= by_hand(data, prefix, postfix=postfix)
    assert validated(pl, callback, loaders([loader(data) for data in both])) == expected
    assert [c["HR@1"].num_users for c in callback.collections.values()] == [10, 6]


def test_names_where_a_stage_has_one_loader(pl):
    """Names are for stages with as many loaders; a single loader has the stage's name; another number raises."""
    callback = RecMetricsCallback("HR", k=1, dataloaders=["valid", "test"])
    assert list(validated(pl, callback, loader(DATA))) == ["val/HR@1"]
    with pytest.raises(ValueError, match="dataloaders names valid, test, but validate has 3 loaders"):
        validated(pl, callback, [loader(DATA)] * 3)


def test_a_collection_and_a_step_that_logs_too(pl):
    """A collection is copied without prefix and state, and the module's own logging goes on beside the callback."""
    collection = trm.RecMetricCollection(NAMES, k=KS, prefix="mine/")
    module = make_module(pl)
    step = type(module).validation_step

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", 2.0, batch_size=4)
        return step(self, batch, batch_idx)

    type(module).validation_step = validation_step
    run = trainer(pl, RecMetricsCallback(collection))
    assert run.validate(module, loader(DATA), verbose=False) == [by_hand(DATA, "val/") | {"val/loss": 2.0}]
    assert not any(metric.update_called for metric in collection.values())
    used = trm.NDCG(10)
    used.update(torch.rand(3, ITEMS), torch.zeros(3, dtype=torch.int64))
    for metrics in ([used], {"NDCG@10": used}):
        expected = by_hand(DATA, "val/", names=["NDCG"], k=10)
        assert validated(pl, RecMetricsCallback(metrics), loader(DATA)) == expected


def test_columns_that_accumulators_read(pl):
    """The step returns the columns that accumulators read."""
    accumulators = [trm.ByGroup("even", "odd", column="parity"), trm.KeptRows()]
    callback = RecMetricsCallback("HR", k=10, accumulators=accumulators, prog_bar="HR@10/odd")
    step = lambda s, t, u: {"scores": s, "target": t, "parity": u % 2, "row_ids": u + 5, "clusters": u // 3}  # noqa: E731
    expected = by_hand(DATA, "val/", names="HR", k=10)
    for place, name in enumerate(("even", "odd")):
        values = by_hand(DATA[place::2], "val/", names="HR", k=10)
        expected |= {f"{key}/{name}": value for key, value in values.items()}
    assert validated(pl, callback, loader(DATA), step) == expected
    rows = callback.collections["val"].rows
    assert callback.collections["val"].result().rows is rows
    assert rows.ids.tolist() == [u + 5 for u in range(10)]
    assert rows.clusters.tolist() == [u // 3 for u in range(10)]


@pytest.mark.parametrize("options", [{}, {"sample_ids": "index"}])
def test_steps_return_the_history(options, pl):
    """Metrics that read a history take it from the step."""
    _, _, train = catalogue()
    step = lambda s, t, u: {"scores": s, "target": t, "history": train.select(u), "index": u}  # noqa: E731
    metric = trm.Seen(5)
    metric.update(trm.Scores(SCORES, history=train.select(USERS)))
    callback = RecMetricsCallback("Seen", k=[5], catalogue=trm.Catalogue.from_interactions(train), **options)
    got = validated(pl, callback, loader(DATA), step)
    assert got == {"val/Seen@5": pytest.approx(metric.compute().item(), abs=1e-6)}


@pytest.mark.parametrize(
    ("options", "seen", "times"),
    [
        ({"limit_val_batches": 0.5}, 4, 2),
        ({"overfit_batches": 1}, 4, 2),
        ({"num_sanity_val_steps": 0}, 10, 2),
        ({"val_check_interval": 0.5}, 10, 6),
        ({"check_val_every_n_epoch": None, "val_check_interval": 2}, 10, 3),
        ({"fast_dev_run": True}, 4, 1),
        ({"reload_dataloaders_every_n_epochs": 1}, 10, 2),
        ({"precision": "bf16-mixed"}, 10, 2),
        ({"precision": "64-true"}, 10, 2),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else None,
)
def test_trainer_flags(options, seen, times, pl):
    """Each validation logs exactly the rows that it has seen, under every Trainer flag."""
    history = []

    class Listener(pl.Callback):
        def on_validation_end(self, trainer, pl_module):
            if not trainer.sanity_checking:
                values = {key: value for key, value in logged(trainer).items() if key.startswith("val/")}
                history.append((trainer.current_epoch, values))

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*overfit_batches|.*(validation|val) dataloader")
        run = trainer(pl, RecMetricsCallback(NAMES, k=KS), Listener(), **options)
        run.fit(make_module(pl), loader(DATA), loader(DATA))
    assert history == [(epoch, by_hand(DATA[:seen], "val/", sign=(-1) ** epoch)) for epoch, _ in history]
    assert len(history) == times


def test_sanity_check(pl):
    """The sanity check logs and leaves nothing, and bad values stop the run in it, also if their error is deferred."""
    callback, seen = RecMetricsCallback(NAMES, k=KS), []

    class Listener(pl.Callback):
        def on_sanity_check_end(self, trainer, pl_module):
            seen.append((dict(trainer.callback_metrics), dict(trainer.logged_metrics), dict(callback.collections)))

    run = trainer(pl, callback, Listener(), max_epochs=1)
    run.fit(make_module(pl), loader(DATA), loader(DATA))
    assert seen == [({}, {}, {})]
    assert logged(run) == by_hand(DATA, "val/")

    step = lambda scores, target, users: {"scores": scores, "target": target + ITEMS}  # noqa: E731
    run = trainer(pl, RecMetricsCallback("HR", k=1, validate_args="deferred"))
    with pytest.raises(ValueError, match="8 rows with a target id beyond the last item"):
        run.fit(make_module(pl, step), loader(DATA), loader(DATA))
    assert run.fit_loop.epoch_progress.current.ready == 0


def test_state_does_not_leak_from_a_run_that_failed(pl):
    """An epoch that failed leaves no state for the next run."""
    breaks = [True]

    def step(scores, target, users):
        if breaks[0] and users[0] >= 4:
            raise RuntimeError("stop")
        return {"scores": scores, "target": target}

    callback = RecMetricsCallback(NAMES, k=KS)
    with pytest.raises(RuntimeError, match="stop"):
        validated(pl, callback, loader(DATA), step)
    breaks[0] = False
    assert validated(pl, callback, loader(DATA), step) == by_hand(DATA, "val/")


def test_pickles():
    """A callback can be pickled, because spawning strategies send callbacks to their processes."""
    callback = pickle.loads(pickle.dumps(RecMetricsCallback(NAMES, k=KS, dataloaders=["a", "b"])))
    assert callback.dataloaders == ["a", "b"]


META = torch.device("meta")
MAPPING = "validation_step must return a mapping with 'scores' and 'target', or with 'input', got "


@pytest.mark.parametrize(
    ("step", "error", "message"),
    [
        (lambda s, t, u: None, TypeError, f"{MAPPING}NoneType; outputs= takes a function"),
        (lambda s, t, u: {}, ValueError, f"{MAPPING}an empty mapping; outputs="),
        (lambda s, t, u: {"preds": s, "target": t}, ValueError, f"{MAPPING}'preds', 'target'"),
        (lambda s, t, u: {"scores": s, "targets": t}, ValueError, "returned 'targets': return 'target'"),
        (lambda s, t, u: {"scores": s, "target": t, "indexes": u}, ValueError, "trm.Sessions.*CollectSessions"),
        (lambda s, t, u: {"scores": s, "target": t, "candidates": t}, ValueError, "return 'input', trm.Candidates"),
        (lambda s, t, u: {"ranking": 0}, ValueError, "'ranking': return 'input', which may be a Ranking"),
        (lambda s, t, u: {"ranks": t + 1}, ValueError, r"'ranks': return 'input', trm.Ranks\(ranks, depth\)"),
        (lambda s, t, u: {"input": t}, TypeError, "'input' must be an input, such as trm.Lists"),
        (
            lambda s, t, u: {"input": trm.Scores(s, t), "exclude": t},
            ValueError,
            "'exclude' together with 'input'",
        ),
        (lambda s, t, u: {"scores": s.numpy(), "target": t}, TypeError, "scores must be a tensor"),
        (lambda s, t, u: {"scores": s.to(META), "target": t.to(META)}, ValueError, "is on cpu, its input on meta"),
        (lambda s, t, u: {"scores": s, "target": t + ITEMS}, ValueError, "4 of 4 rows with a target"),
        (lambda s, t, u: {"scores": s, "target": t, "weights": -u}, ValueError, "weight that is negative"),
    ],
)
def test_what_a_step_must_not_return(step, error, message, pl):
    """The error for bad output of a step names the loader, the batch, the hook and the bad entry."""
    for stage, hook, name in (("validate", "validation_step", "val"), ("test", "test_step", "test")):
        run = trainer(pl, RecMetricsCallback("HR", k=1))
        with pytest.raises(error, match=message.replace("validation_step", hook)) as caught:
            getattr(run, stage)(make_module(pl, step), loader(samples(5)), verbose=False)
        assert str(caught.value).startswith(f"RecMetricsCallback, loader '{name}', batch 0: ")


@pytest.mark.parametrize(
    ("options", "returned", "message"),
    [
        (ALL, {}, "validation_step must also return 'user_ids' for exclude=, got 'scores', 'target'"),
        (ALL, {"user_ids": torch.tensor([0, 1, 2, 99])}, "users.*99"),
        (ALL, {"user_ids": torch.tensor([0, 1])}, "exclude ids must be .4. or"),
        (ALL, {"user_ids": torch.rand(4)}, "users must be whole numbers .B., got a torch.float32"),
        (
            ALL,
            {"scores": None, "input": trm.Ranks(torch.ones(4, 1), complete=True), "user_ids": USERS[:4]},
            "exclude= cannot change Ranks: exclude the items in the step",
        ),
        (
            {"sample_ids": "index"},
            {"index": torch.tensor([2, -1, 0, -1])},
            "'val': sample_ids hold -1, .*not an index in",
        ),
        ({"sample_ids": "index"}, {}, "must return 'index' .sample_ids=.; it returned 'scores', 'target'"),
        ({"sample_ids": "index"}, {"index": torch.arange(3)}, "sample_ids must be .4., one per row, got .3."),
        ({"sample_ids": lambda returned, batch: None}, {}, "sample_ids must be an integer tensor, got None"),
        ({"outputs": lambda returned, batch: returned["scores"]}, {}, "the function outputs= must return a mapping"),
        ({"accumulators": [trm.ByGroup("a")]}, {}, "the collection has the groups a"),
    ],
)
def test_what_an_option_asks_of_the_step(options, returned, message, pl):
    """The error for an entry that an option needs and that is missing or bad names the entry."""
    step = lambda scores, target, users: {"scores": scores, "target": target} | returned  # noqa: E731
    with pytest.raises((TypeError, ValueError), match=message):
        validated(pl, RecMetricsCallback("HR", k=1, **options), loader(samples(4)), step)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"outputs": "scores"}, TypeError, "outputs must be a function"),
        ({"outputs": lambda batch: None}, TypeError, "outputs must be a function of .output of the step"),
        ({"sample_ids": 3}, TypeError, "sample_ids must be a function of"),
        ({"exclude": torch.zeros(3)}, TypeError, "exclude must be Interactions"),
        ({"exclude": {"val": [1]}}, TypeError, "exclude must be Interactions"),
    ],
)
def test_bad_arguments(options, error, message):
    """Bad arguments raise when the callback is made; those of both callbacks are in test_reporting."""
    with pytest.raises(error, match=message):
        RecMetricsCallback("HR", k=5, **options)


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
    step = lambda s, t, u: {"scores": s, "target": t + ITEMS * (u[:, None] == 5), "index": u}  # noqa: E731
    errors = []
    metrics = ["HR", "RPrecision", "AUROC", trm.Precision(1, denominator="recommended", score_threshold=0.5)]
    for options in ({}, {"sample_ids": "index"}):
        pl, run = distributed_trainer(world_size, RecMetricsCallback(metrics, k=1, **options))
        with pytest.raises(ValueError, match="RecMetricsCallback, loader 'val'") as caught:
            run.validate(make_module(pl, step), loader(samples(6)), verbose=False)
        errors.append(str(caught.value))
    return errors


def test_bad_values_on_one_process_raise_in_all(processes):
    """Bad values on one process raise on all processes, so that no process waits for another."""
    message = "RecMetricsCallback, loader 'val': HR@1: bad input since the last reset: "
    message += "1 row with a target id beyond the last item"
    assert processes.run(bad_values_on_one_process, 2) == [[message, message]] * 2


def test_training_rows(pl):
    """A window and decaying weights are logged side by side, without keeping training rows; validation has neither."""

    def training_step(self, batch, batch_idx):
        return {"loss": (self.weight * 0).sum(), "input": trm.Scores(*batch[:2])}

    data = samples(20)
    accumulators = [trm.Window(updates=2), trm.KeptRows()]
    collection = trm.RecMetricCollection("HR", k=9, accumulators=accumulators)
    run = trainer(pl, RecMetricsCallback(collection), max_epochs=1, log_every_n_steps=5)
    run.fit(make_module(pl, training_step=training_step), loader(data), loader(DATA))
    expected = trm.RecMetricCollection("HR", k=9, prefix="train/", accumulators=[trm.Window(updates=2)])
    for batch in loader(data):
        expected.update(*batch[:2])
    values = {key: value for key, value in near(expected.compute(), 1e-6).items() if key != "train/HR@9"}
    assert logged(run) == by_hand(DATA, "val/", names="HR", k=9) | values


def test_what_the_training_step_must_return(pl):
    """A training step that returns a loss alone is refused."""
    run = trainer(pl, RecMetricsCallback("HR", k=3, accumulators=[trm.Window(updates=50)]), max_epochs=1)
    with pytest.raises(ValueError, match="training_step must return a mapping"):
        run.fit(make_module(pl), loader(DATA), loader(DATA))


class EveryoneReadsAll(torch.utils.data.Sampler):
    """A custom sampler that every process reads whole, in an order of that process."""

    def __init__(self, data):
        self.order = torch.randperm(len(data)).tolist()

    def __iter__(self):
        return iter(self.order)

    def __len__(self):
        return len(self.order)


class Backwards(torch.utils.data.DistributedSampler):
    """A custom sampler that is derived from torch's DistributedSampler."""

    def __iter__(self):
        return reversed(list(super().__iter__()))


class Stream(torch.utils.data.IterableDataset):
    """A data set that processes share so that some samples are read by two of them."""

    def __init__(self, data):
        self.data = data

    def __iter__(self):
        rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        return iter(self.data[max(0, rank - 1) :: max(1, world_size - 1)])


KNOWN = trm.Catalogue(ITEMS, popularity=torch.arange(ITEMS) % 7, num_users=20)
METRICS = [*NAMES, "AUROC", trm.AUROC(weight="relevant"), "Coverage", "Novelty"]
OPTIONS = {"metrics": METRICS, "k": KS, "catalogue": KNOWN}
WAYS = (
    "in order",
    "shuffle",
    "own sampler",
    "samples are batches",
    "sample_ids, own sampler",
    "sample_ids, stream",
    "sample_ids, repeats",
)


def step(scores, target, users):
    """Return outputs of every kind; each fifth user has no relevant item, each third no group."""
    target = target.where(users[:, None] % 5 < 4, -1)
    return {"scores": scores, "target": target, "index": users, "weights": users + 1, "groups": (users + 1) % 3 - 1}


def loader_of(way, data, rank):
    """Return a loader of the samples, options of the callback and flags of the Trainer."""
    if way == "shuffle":
        torch.manual_seed(rank)
        return loader(data, sampler=torch.utils.data.DistributedSampler(data, shuffle=True, seed=3)), {}, {}
    if way == "own sampler":
        torch.manual_seed(3)  # the seed differs by process only for a sampler that Lightning does not split
        return loader(data, sampler=EveryoneReadsAll(data)), {}, {}
    if way == "samples are batches":
        batches = [(scores[None], target[None], torch.tensor([user])) for scores, target, user in data]
        return DataLoader(batches, batch_size=None), {}, {}
    if way == "sample_ids, own sampler":
        torch.manual_seed(rank)
        options, flags = {"sample_ids": "index"}, {"use_distributed_sampler": False}
        return loader(data, sampler=EveryoneReadsAll(data)), options, flags
    if way == "sample_ids, stream":
        return loader(Stream(data)), {"sample_ids": lambda returned, batch: batch[2]}, {}
    if way == "sample_ids, repeats":
        return loader(data), {"sample_ids": lambda returned, batch: batch[2].int()}, {}
    return loader(data), {}, {}


def values_for_every_remainder(rank, world_size, way):
    """Return {number of samples: (logged values, standard error of HR@1, warnings)}."""
    results = {}
    for n in (1, 3, 7, 11, 12, 13) if world_size == 3 else (1, 11, 12):  # all remainders by the number of processes
        batches, options, flags = loader_of(way, samples(n), rank)
        callback = RecMetricsCallback(**OPTIONS, accumulators=[trm.ByGroup("a", "b")], log_counts=True, **options)
        pl, run = distributed_trainer(world_size, callback, **flags)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run.validate(make_module(pl, step), batches, verbose=False)
        told = [str(w.message) for w in caught if "sync_dist" in str(w.message) or "RecMetrics" in str(w.message)]
        results[n] = logged(run), callback.collections["val"]["HR@1"].standard_error().item(), told
    return results


@pytest.mark.slow
@pytest.mark.parametrize(
    "world_size", [pytest.param(1, marks=pytest.mark.nightly), 2, pytest.param(3, marks=pytest.mark.nightly)]
)
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_values_do_not_depend_on_the_number_of_processes(world_size, processes):
    """Values, counts and errors are those of one process for every remainder and for fewer samples than processes."""
    found = {way: processes.run(values_for_every_remainder, world_size, way) for way in WAYS}
    for n in found["in order"][0]:
        single = trm.RecMetricCollection(**OPTIONS, prefix="val/", accumulators=[trm.ByGroup("a", "b")])
        outputs = step(*columns(samples(n)), torch.arange(n))
        single.update(**{name: values for name, values in outputs.items() if name != "index"})
        expected = numbers(single.compute())
        expected = {key: pytest.approx(value, abs=1e-12, nan_ok=True) for key, value in expected.items()}
        for count in ("num_users", "num_skipped", "num_unreachable", "num_tied"):
            expected[f"val/{count}"] = getattr(single["HR@1"], count)
        error = pytest.approx(single["HR@1"].standard_error().item(), abs=1e-12, nan_ok=True)
        for way, everybody in found.items():
            for process in everybody:
                values, own_error, told = process[n]
                assert (values, own_error) == (expected, error), (n, way)
                assert not told or (way == "own sampler" and "unless all use the same seed" in told[0]), (n, way)


def rows_of_a_loader(rank, world_size, by):
    """Return the kept rows of seven samples; with `sample_ids` the samples are of three users."""
    options = {"sample_ids": "index"} if by == "sample_ids" else {}
    callback = RecMetricsCallback("NDCG", k=10, accumulators=[trm.KeptRows()], **options)
    pl, run = distributed_trainer(world_size, callback)

    def step(scores, target, users):
        outputs = {"scores": scores, "target": target, "index": users}
        user_ids = {"sample_ids": users // 3, "user_ids": users, "nothing": None}
        return outputs | {"user_ids": user_ids[by]}

    if by == "nothing":
        with pytest.raises(ValueError, match="loader 'val': rows of several processes need unique row_ids"):
            run.validate(make_module(pl, step), loader(samples(7)), verbose=False)
        return None
    run.validate(make_module(pl, step), loader(samples(7)), verbose=False)
    rows = callback.collections["val"].rows
    order = rows.ids.argsort()
    clusters = None if rows.clusters is None else rows.clusters[order].tolist()
    return rows.ids[order].tolist(), rows.values["NDCG@10"][order].tolist(), clusters, rows.weights


@pytest.mark.parametrize("by", ["sample_ids", "user_ids"])
def test_rows_do_not_depend_on_the_number_of_processes(by, processes):
    """Each sample is kept once, though the sampler repeats one; with both kinds of ids, users are the clusters."""
    expected = trm.functional.ndcg(trm.Scores(*columns(samples(7))).ranking(), 10).tolist()
    clusters = [0, 0, 0, 1, 1, 1, 2] if by == "sample_ids" else None
    for world_size in (1, 2, 3):
        for rows in processes.run(rows_of_a_loader, world_size, by):
            assert rows == (list(range(7)), expected, clusters, None)


def test_rows_of_several_processes_need_ids(processes):
    """Kept rows without ids raise on all processes."""
    assert processes.run(rows_of_a_loader, 2, "nothing") == [None, None]


def said_by(run, module, *loaders):
    """Return the callback's warnings in a fit, or, with one loader, in a validation."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if len(loaders) == 1:
            run.validate(module, *loaders, verbose=False)
        else:
            run.fit(module, *loaders)
    return [str(w.message) for w in caught if "RecMetrics" in str(w.message)]


def doubts(rank, world_size):
    """Return the warnings about repeats for each loader."""
    data, said = samples(5), {}
    half = lambda scores, target, users: {"scores": scores[::2], "target": target[::2]}  # noqa: E731
    for name, batches, step, flags in (
        ("own", loader(data, sampler=EveryoneReadsAll(data)), None, {"use_distributed_sampler": False}),
        ("stream", loader(Stream(data)), None, {}),
        ("backwards", loader(data, sampler=Backwards(data)), None, {}),
        ("order", loader(samples(11), in_order=False), None, {}),
        ("wrapped", loader(data, sampler=EveryoneReadsAll(data)), None, {}),
        ("rows", loader(samples(11)), half, {}),
        ("even", loader(data[:4]), half, {}),
    ):
        pl, run = distributed_trainer(world_size, RecMetricsCallback("HR", k=1), **flags)
        said[name] = said_by(run, make_module(pl, step), loader(data), batches)
    pl, run = distributed_trainer(world_size, RecMetricsCallback("HR", k=1))
    first_of = lambda self, batch, batch_idx: {"scores": batch[0][0], "target": batch[0][1]}  # noqa: E731
    combined = importlib.import_module("pytorch_lightning.utilities.combined_loader").CombinedLoader
    module = make_module(pl, validation_step=first_of)
    said["combined"] = said_by(run, module, combined([loader(data)] * 2, "max_size"))
    return said


def test_doubts_are_said_once(processes):
    """If repeats cannot be known, one warning points to sample_ids=; if there are no repeats, there is no warning."""
    first, second = processes.run(doubts, 2)
    for name, message in (
        ("own", "EveryoneReadsAll"),
        ("stream", "an iterable data set"),
        ("backwards", "Backwards"),
        ("order", "the order of the batches of samples"),
        ("combined", "it is unknown which samples of a CombinedLoader each process gets"),
        ("wrapped", "processes may draw different samples from EveryoneReadsAll, unless all use the same seed"),
    ):
        (said,) = first[name]
        assert message in said, name
        assert "so some may count twice. Pass sample_ids=" in said, name
        assert second[name] == []
    assert first["rows"] == first["even"] == second["even"] == []
    (said,) = second["rows"]  # the process that holds the repeat
    assert "has 1 row, not one per sample" in said  # the batch with the repeat


def test_samples_left_out(pl):
    """A loader that leaves a last batch out causes one warning; one whose batches are all full causes none."""
    for n, number in ((11, 1), (12, 0)):
        run = trainer(pl, RecMetricsCallback("HR", k=1))
        said = said_by(run, make_module(pl), loader(samples(8)), loader(samples(n), drop_last=True))
        assert len(said) == number
        assert all("DataLoader(drop_last=True) leaves out an incomplete last batch" in each for each in said)


def sessions():
    """Return scores and labels of each of 29 sessions."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(29, (101,), generator=generator)
    scores, labels = torch.rand(101, generator=generator), torch.rand(101, generator=generator) < 0.3
    return [(scores[ids == session], labels[ids == session]) for session in range(29)]


def collate(batch):
    scores, labels = (torch.cat(column) for column in zip(*batch, strict=True))
    return scores, labels, torch.tensor([len(rows) for rows, _ in batch])


def values_of_sessions(rank, world_size):
    """Return what is logged; the processes share the sessions, and the sampler repeats one."""
    pl, run = distributed_trainer(world_size, RecMetricsCallback(["AUROC", "NDCG", "MRR"], k=3))
    module = make_module(pl, lambda scores, labels, lengths: {"input": trm.Sessions(scores, labels, lengths=lengths)})
    run.validate(module, DataLoader(sessions(), batch_size=7, collate_fn=collate), verbose=False)
    return logged(run)


@pytest.mark.parametrize("world_size", [1, 2])
def test_whole_sessions(world_size, processes):
    """A sample may be a whole session, if `lengths` says how many rows each session has."""
    metrics = trm.RecMetricCollection(["AUROC", "NDCG", "MRR"], k=3, prefix="val/")
    scores, labels, lengths = collate(sessions())
    metrics.update(trm.Sessions(scores, labels, lengths=lengths))
    assert processes.run(values_of_sessions, world_size) == [near(metrics.compute())] * world_size


SHARD_ROWS, SHARD_ITEMS = 21, 10
OF_SHARDS = {"metrics": ["HR", "NDCG", "AUROC"], "k": 3, "overlap": "miss"}


def shard_data():
    """Return scores, a target and the number of each row, and a history."""
    generator = torch.Generator().manual_seed(0)
    history = trm.Interactions.from_dense(torch.rand(SHARD_ROWS, SHARD_ITEMS, generator=generator) < 0.2)
    scores = torch.randint(5, (SHARD_ROWS, SHARD_ITEMS), generator=generator).float()
    target = torch.randint(SHARD_ITEMS, (SHARD_ROWS,), generator=generator)
    return TensorDataset(scores, target, torch.arange(SHARD_ROWS)), history


def values_of_shards(rank, world_size, sampler):
    """Return what is logged where a process scores items 0 to 3, the other one the rest, or None for an error."""
    data, history = shard_data()
    mine = slice(4 * rank, 4 if rank == 0 else SHARD_ITEMS)
    callback = RecMetricsCallback(**OF_SHARDS, exclude=history, accumulators=[trm.ByGroup("even", "odd")])
    pl, run = distributed_trainer(world_size, callback, use_distributed_sampler=sampler)

    def step(scores, target, users):
        shard = trm.ItemShard(scores[:, mine], target, offset=mine.start, num_items=SHARD_ITEMS)
        return {"input": shard, "user_ids": users, "groups": users % 2}

    if sampler:
        with pytest.raises(ValueError, match=r"processes differ in (targets|history)"):
            run.validate(make_module(pl, step), DataLoader(data, batch_size=8), verbose=False)
        return None
    run.validate(make_module(pl, step), DataLoader(data, batch_size=8), verbose=False)
    return logged(run)


def test_values_of_shards(processes):
    """Values are those of one process, not summed; rows that a distributed sampler splits between processes raise."""
    data, history = shard_data()
    metrics = trm.RecMetricCollection(**OF_SHARDS, prefix="val/", accumulators=[trm.ByGroup("even", "odd")])
    for scores, target, users in DataLoader(data, batch_size=8):
        metrics.update(scores, target, exclude=history.select(users).items, groups=users % 2)
    assert processes.run(values_of_shards, 2, False) == [near(metrics.compute())] * 2
    assert processes.run(values_of_shards, 2, True) == [None, None]
