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


def test_prediction_logs_nothing(pl):
    callback = RecMetricsCallback(NAMES, k=KS)

    assert len(trainer(pl, callback).predict(make_module(pl), loader(DATA))) == 3
    assert callback.collections == {}


@pytest.mark.parametrize(
    ("loaders", "dataloaders", "keys"),
    [
        (list, None, ("val/{}/dataloader_idx_0", "val/{}/dataloader_idx_1")),
        (list, ["valid", "test"], ("valid/{}", "test/{}")),
        (lambda two: {"valid": two[0], "test": two[1]}, None, ("valid/{}", "test/{}")),
        (lambda two: {"a": two[0], "b": two[1]}, ["valid", "test"], ("valid/{}", "test/{}")),
    ],
)
def test_each_loader_has_its_own_values_under_its_name(pl, loaders, dataloaders, keys):
    both = DATA, samples(6, seed=1)
    expected = {}
    for key, data in zip(keys, both, strict=True):
        prefix, postfix = key.split("{}")
        expected |= by_hand(data, prefix, postfix=postfix)
    callback = RecMetricsCallback(NAMES, k=KS, dataloaders=dataloaders)

    assert validated(pl, callback, loaders([loader(data) for data in both])) == expected
    assert [collection["HR@1"].num_users for collection in callback.collections.values()] == [10, 6]


def test_names_of_loaders_are_for_stages_with_as_many_and_one_has_the_name_of_its_stage(pl):
    callback = RecMetricsCallback("HR", k=1, dataloaders=["valid", "test"])

    assert list(validated(pl, callback, loader(DATA))) == ["val/HR@1"]
    with pytest.raises(ValueError, match="dataloaders names valid, test, but validate has 3 loaders"):
        validated(pl, callback, [loader(DATA)] * 3)


def test_a_collection_is_copied_without_prefix_and_state(pl):
    collection = trm.RecMetricCollection(NAMES, k=KS, prefix="mine/")
    collection.update(torch.rand(3, ITEMS), torch.zeros(3, dtype=torch.int64))
    values = collection.compute()

    assert validated(pl, RecMetricsCallback(collection), loader(DATA)) == by_hand(DATA, "val/")
    assert collection.compute() == values


def test_the_modules_own_logging_goes_on_beside_the_callback(pl):
    def validation_step(self, batch, batch_idx):
        self.log("val/loss", 2.0, batch_size=4)
        return {"scores": batch[0], "target": batch[1]}

    run = trainer(pl, RecMetricsCallback(NAMES, k=KS))
    values = run.validate(make_module(pl, validation_step=validation_step), loader(DATA), verbose=False)

    assert values == [by_hand(DATA, "val/") | {"val/loss": 2.0}]


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
)
def test_each_validation_logs_the_rows_that_it_has_seen_under_every_flag(options, seen, times, pl):
    validations = []

    class Listener(pl.Callback):
        def on_validation_end(self, trainer, pl_module):
            if not trainer.sanity_checking:
                values = {key: value for key, value in logged(trainer).items() if key.startswith("val/")}
                validations.append((trainer.current_epoch, values))

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*overfit_batches|.*(validation|val) dataloader")
        run = trainer(pl, RecMetricsCallback(NAMES, k=KS), Listener(), **options)
        run.fit(make_module(pl), loader(DATA), loader(DATA))

    assert validations == [(epoch, by_hand(DATA[:seen], "val/", sign=(-1) ** epoch)) for epoch, _ in validations]
    assert len(validations) == times


def test_the_sanity_check_logs_and_leaves_nothing(pl):
    callback, seen = RecMetricsCallback(NAMES, k=KS), []

    class Listener(pl.Callback):
        def on_sanity_check_end(self, trainer, pl_module):
            seen.append((dict(trainer.callback_metrics), dict(trainer.logged_metrics), dict(callback.collections)))

    run = trainer(pl, callback, Listener(), max_epochs=1)
    run.fit(make_module(pl), loader(DATA), loader(DATA))

    assert seen == [({}, {}, {})]
    assert logged(run) == by_hand(DATA, "val/")


def test_bad_values_stop_the_run_in_the_sanity_check(pl):
    """Also if their error is deferred."""
    step = lambda scores, target, users: {"scores": scores, "target": target + ITEMS}  # noqa: E731
    run = trainer(pl, RecMetricsCallback("HR", k=1, validate_args="deferred"))

    with pytest.raises(ValueError, match="8 rows with a target id beyond the last item"):
        run.fit(make_module(pl, step), loader(DATA), loader(DATA))
    assert run.fit_loop.epoch_progress.current.ready == 0


def test_an_epoch_that_failed_leaves_no_state(pl):
    def failing(scores, target, users):
        if users[0] >= 4:
            raise RuntimeError("stop")
        return {"scores": scores, "target": target}

    callback = RecMetricsCallback(NAMES, k=KS)
    with pytest.raises(RuntimeError, match="stop"):
        validated(pl, callback, loader(DATA), failing)

    assert validated(pl, callback, loader(DATA)) == by_hand(DATA, "val/")


def test_a_callback_can_be_pickled():
    """Spawning strategies send callbacks to their processes."""
    callback = pickle.loads(pickle.dumps(RecMetricsCallback(NAMES, k=KS, dataloaders=["a", "b"])))
    assert callback.dataloaders == ["a", "b"]


def after(target, offset=1):
    """Return ids to exclude, none of which is relevant."""
    return (target + offset) % ITEMS


def history(offset=1):
    """Return the items of `after` for all users, with values that, like ratings, are not read as ids."""
    edges = torch.stack([USERS.repeat_interleave(2), after(TARGET, offset).flatten()])
    return trm.Interactions.from_edge_index(edges, 10, ITEMS, values=torch.ones(20, dtype=torch.int64))


def flat(rows):
    return rows.flatten(), torch.arange(0, rows.numel() + 1, rows.shape[1])


AFTER = {"exclude": after(TARGET)}
AFTER_BOTH = {"exclude": torch.cat([after(TARGET), after(TARGET, 2)], 1)}
HISTORY = {"exclude": history()}


@pytest.mark.parametrize(
    ("step", "options", "update"),  # what gives the same values as an `update` with these options
    [
        (lambda s, t, u: {"input": trm.Ranks(trm.get_topk_ranks(s, t, 10), 10), "target": t}, {}, {}),
        (lambda s, t, u: {"input": trm.Scores(s, t).ranking(), "loss": 0}, {}, {}),
        (lambda s, t, u: {"input": trm.Lists(s.argsort(descending=True), t), "target": t}, {}, {}),
        (lambda s, t, u: (s, t), {"outputs": lambda out, batch: {"scores": out[0], "target": batch[1]}}, {}),
        (lambda s, t, u: {"scores": s, "target": t, "gains": t + 1.0}, {}, {"gains": TARGET + 1.0}),
        (lambda s, t, u: {"scores": s, "target": t, "weights": u + 1.0}, {}, {"weights": USERS + 1.0}),
        (lambda s, t, u: {"scores": s, "target": t, "exclude": after(t)}, {}, AFTER),
        (lambda s, t, u: {"scores": s, "target": t, "exclude": history().select(u)}, {}, AFTER),
        (lambda s, t, u: {"scores": s, "target": flat(t), "exclude": flat(after(t))}, {}, AFTER),
        (lambda s, t, u: {"scores": s, "target": t, "user_ids": u}, HISTORY, AFTER),
        (lambda s, t, u: {"scores": s, "target": t, "user_ids": u, "exclude": after(t, 2)}, HISTORY, AFTER_BOTH),
        (lambda s, t, u: {"input": trm.Scores(s, t), "user_ids": u}, HISTORY, AFTER),
        (lambda s, t, u: {"input": trm.Lists(s.argsort(1).flip(1), t), "user_ids": u}, HISTORY, AFTER),
    ],
    ids=lambda value: None if callable(value) else "-".join(value) or "plain",
)
def test_a_step_may_return_all_that_update_takes(step, options, update, pl):
    """`exclude=` adds items by user ids; other entries are ignored."""
    names = ("HR", "NDCG", "MRR")  # R-precision needs ranks deeper than 10 if users have more relevant items
    values = validated(pl, RecMetricsCallback(names, k=KS, **options), loader(DATA), step)

    assert values == by_hand(DATA, "val/", names=names, **update)


def step_with_user_ids(scores, target, users):
    return {"scores": scores, "target": target, "user_ids": users}


def test_each_loader_has_its_history_by_its_name_or_that_of_the_stage(pl):
    run = trainer(pl, RecMetricsCallback(NAMES, k=KS, exclude={"val": history(), "cold": history(2)}))
    module, loaders = make_module(pl, step_with_user_ids), {"warm": loader(DATA), "cold": loader(DATA)}
    run.validate(module, loaders, verbose=False)
    warm, cold = by_hand(DATA, "warm/", exclude=after(TARGET)), by_hand(DATA, "cold/", exclude=after(TARGET, 2))

    assert logged(run) == warm | cold
    assert list(warm.values()) != list(cold.values())
    with pytest.raises(ValueError, match="exclude has the keys val, cold, but neither 'warm' nor 'test'"):
        run.test(module, loaders, verbose=False)


def test_a_step_returns_the_columns_that_groups_read(pl):
    def step(scores, target, users):
        return {"scores": scores, "target": target, "parity": users % 2}

    callback = RecMetricsCallback("HR", k=10, accumulators=[trm.ByGroup("even", "odd", column="parity")])
    of_all, even, odd = (by_hand(part, names="HR", k=10)["HR@10"] for part in (DATA, DATA[::2], DATA[1::2]))

    values = {"val/HR@10": of_all, "val/HR@10/even": even, "val/HR@10/odd": odd}
    assert validated(pl, callback, loader(DATA), step) == values


def test_a_step_returns_the_columns_that_kept_rows_read(pl):
    def step(scores, target, users):
        return {"scores": scores, "target": target, "row_ids": users + 5, "clusters": users // 3}

    callback = RecMetricsCallback("HR", k=10, accumulators=[trm.KeptRows()])
    validated(pl, callback, loader(samples(4)), step)
    rows = callback.collections["val"].rows

    assert rows.ids.tolist() == [5, 6, 7, 8]
    assert rows.clusters.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("options", [{}, {"sample_ids": "index"}])
def test_a_step_returns_the_history_that_metrics_read(options, pl):
    _, _, train = catalogue()
    metric = trm.Seen(5)
    metric.update(trm.Scores(SCORES, history=train.select(USERS)))
    step = lambda s, t, u: {"scores": s, "target": t, "history": train.select(u), "index": u}  # noqa: E731
    callback = RecMetricsCallback("Seen", k=[5], catalogue=trm.Catalogue.from_interactions(train), **options)

    expected = {"val/Seen@5": pytest.approx(metric.compute().item(), abs=1e-6)}
    assert validated(pl, callback, loader(DATA), step) == expected


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
        (lambda s, t, u: {"input": trm.Scores(s, t), "exclude": t}, ValueError, "'exclude' together with 'input'"),
        (lambda s, t, u: {"scores": s.numpy(), "target": t}, TypeError, "scores must be a tensor"),
        (lambda s, t, u: {"scores": s.to(META), "target": t.to(META)}, ValueError, "is on cpu, its input on meta"),
        (lambda s, t, u: {"scores": s, "target": t + ITEMS}, ValueError, "4 of 4 rows with a target"),
        (lambda s, t, u: {"scores": s, "target": t, "weights": -u}, ValueError, "weight that is negative"),
    ],
)
def test_bad_output_of_a_step_is_refused(step, error, message, pl):
    with pytest.raises(error, match=message):
        validated(pl, RecMetricsCallback("HR", k=1), loader(samples(5)), step)


def test_the_error_of_a_step_names_its_loader_batch_and_hook(pl):
    run = trainer(pl, RecMetricsCallback("HR", k=1))

    message = "^RecMetricsCallback, loader 'test', batch 0: test_step must return a mapping"
    with pytest.raises(TypeError, match=message):
        run.test(make_module(pl, lambda s, t, u: None), loader(samples(5)), verbose=False)


RANKS = trm.Ranks(torch.ones(4, 1), complete=True)


@pytest.mark.parametrize(
    ("options", "returned", "message"),
    [
        (HISTORY, {}, "validation_step must also return 'user_ids' for exclude=, got 'scores', 'target'"),
        (HISTORY, {"user_ids": torch.tensor([0, 1, 2, 99])}, "users.*99"),
        (HISTORY, {"user_ids": torch.tensor([0, 1])}, "exclude ids must be .4. or"),
        (HISTORY, {"user_ids": torch.rand(4)}, "users must be whole numbers .B., got a torch.float32"),
        (HISTORY, {"scores": None, "input": RANKS, "user_ids": USERS[:4]}, "exclude= cannot change Ranks: exclude"),
        ({"sample_ids": "index"}, {"index": torch.tensor([2, -1, 0, -1])}, "'val': sample_ids hold -1, .*not an index"),
        ({"sample_ids": "index"}, {}, "must return 'index' .sample_ids=.; it returned 'scores', 'target'"),
        ({"sample_ids": "index"}, {"index": torch.arange(3)}, "sample_ids must be .4., one per row, got .3."),
        ({"sample_ids": lambda returned, batch: None}, {}, "sample_ids must be an integer tensor, got None"),
        ({"outputs": lambda returned, batch: returned["scores"]}, {}, "the function outputs= must return a mapping"),
        ({"accumulators": [trm.ByGroup("a")]}, {}, "the collection has the groups a"),
    ],
)
def test_a_step_without_what_an_option_needs_is_refused(options, returned, message, pl):
    step = lambda scores, target, users: {"scores": scores, "target": target} | returned  # noqa: E731
    with pytest.raises((TypeError, ValueError), match=message):
        validated(pl, RecMetricsCallback("HR", k=1, **options), loader(samples(4)), step)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"outputs": "scores"}, "outputs must be a function"),
        ({"outputs": lambda batch: None}, "outputs must be a function of .output of the step"),
        ({"sample_ids": 3}, "sample_ids must be a function of"),
        ({"exclude": torch.zeros(3)}, "exclude must be Interactions"),
        ({"exclude": {"val": [1]}}, "exclude must be Interactions"),
    ],
)
def test_a_bad_argument_is_refused_when_the_callback_is_made(options, message):
    with pytest.raises(TypeError, match=message):
        RecMetricsCallback("HR", k=5, **options)


def test_a_window_of_training_rows_is_logged_beside_validation(pl):
    """Validation has no window, and training neither a value over all rows nor kept rows."""

    def training_step(self, batch, batch_idx):
        return {"loss": (self.weight * 0).sum(), "input": trm.Scores(*batch[:2])}

    data = samples(20)
    collection = trm.RecMetricCollection("HR", k=9, accumulators=[trm.Window(updates=2), trm.KeptRows()])
    run = trainer(pl, RecMetricsCallback(collection), max_epochs=1, log_every_n_steps=5)
    run.fit(make_module(pl, training_step=training_step), loader(data), loader(DATA))

    of_last_two_batches = by_hand(data[-8:], names="HR", k=9, tolerance=1e-6)["HR@9"]
    assert logged(run) == by_hand(DATA, "val/", names="HR", k=9) | {"train/HR@9/window": of_last_two_batches}


def test_a_training_step_that_returns_a_loss_alone_is_refused_by_a_window(pl):
    run = trainer(pl, RecMetricsCallback("HR", k=3, accumulators=[trm.Window(updates=50)]), max_epochs=1)
    with pytest.raises(ValueError, match="training_step must return a mapping"):
        run.fit(make_module(pl), loader(DATA), loader(DATA))


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


def test_a_loader_needs_two_collectives_an_epoch_and_three_more_for_rows_by_id(processes):
    """Of two loaders, for 1 and for 30 metrics; logging and monitors add none."""
    of_metrics = ["all_reduce"] * 2
    by_id = ["barrier", "all_gather", "all_gather", *of_metrics]

    assert processes.run(collectives, 2) == [[of_metrics * 2, of_metrics * 2, by_id * 2]] * 2


def bad_values_on_one_process(rank, world_size, options):
    """Return the error of a validation in which one of six rows has a bad target."""
    step = lambda s, t, u: {"scores": s, "target": t + ITEMS * (u[:, None] == 5), "index": u}  # noqa: E731
    metrics = ["HR", "RPrecision", "AUROC", trm.Precision(1, denominator="recommended", score_threshold=0.5)]
    pl, run = distributed_trainer(world_size, RecMetricsCallback(metrics, k=1, **options))
    with pytest.raises(ValueError, match="RecMetricsCallback, loader 'val'") as caught:
        run.validate(make_module(pl, step), loader(samples(6)), verbose=False)
    return str(caught.value)


@pytest.mark.parametrize("options", [{}, {"sample_ids": "index"}])
def test_bad_values_on_one_process_raise_on_all(options, processes):
    """So no process waits for another."""
    message = "RecMetricsCallback, loader 'val': HR@1: bad input since the last reset: "
    message += "1 row with a target id beyond the last item"

    assert processes.run(bad_values_on_one_process, 2, options) == [message, message]


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


METRICS = [*NAMES, "AUROC", trm.AUROC(weight="relevant"), "Coverage", "Novelty"]
CATALOGUE = trm.Catalogue(ITEMS, popularity=torch.arange(ITEMS) % 7, num_users=20)
OPTIONS = {"metrics": METRICS, "k": KS, "catalogue": CATALOGUE}


def step(scores, target, users):
    """Return outputs of every kind; each fifth user has no relevant item, each third no group."""
    target = target.where(users[:, None] % 5 < 4, -1)
    return {"scores": scores, "target": target, "index": users, "weights": users + 1, "groups": (users + 1) % 3 - 1}


def shuffled(data, rank):
    torch.manual_seed(rank)
    return loader(data, sampler=torch.utils.data.DistributedSampler(data, shuffle=True, seed=3))


def own_order(data, seed):
    torch.manual_seed(seed)
    return loader(data, sampler=EveryoneReadsAll(data))


def of_batches(data, rank):
    batches = [(scores[None], target[None], torch.tensor([user])) for scores, target, user in data]
    return DataLoader(batches, batch_size=None)


# a loader of these samples on this process, options of the callback and flags of the Trainer
WAYS = {
    "in order": (lambda data, rank: loader(data), {}, {}),
    "shuffle": (shuffled, {}, {}),
    "own sampler": (lambda data, rank: own_order(data, 3), {}, {}),  # which Lightning splits
    "samples are batches": (of_batches, {}, {}),
    "own sampler, sample_ids": (own_order, {"sample_ids": "index"}, {"use_distributed_sampler": False}),
    "stream, sample_ids": (lambda data, rank: loader(Stream(data)), {"sample_ids": lambda out, batch: batch[2]}, {}),
    "repeats, sample_ids": (lambda data, rank: loader(data), {"sample_ids": lambda out, batch: batch[2].int()}, {}),
}
COUNTS = ("num_users", "num_skipped", "num_unreachable", "num_tied")


def values_for_every_remainder(rank, world_size, way, numbers_of_samples):
    """Return the logged values, the standard error of HR@1 and the warnings for each number of samples."""
    make_loader, options, flags = WAYS[way]
    results = []
    for n in numbers_of_samples:
        callback = RecMetricsCallback(**OPTIONS, accumulators=[trm.ByGroup("a", "b")], log_counts=True, **options)
        pl, run = distributed_trainer(world_size, callback, **flags)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run.validate(make_module(pl, step), make_loader(samples(n), rank), verbose=False)
        told = [text for text in (str(w.message) for w in caught) if "sync_dist" in text or "RecMetrics" in text]
        told = [text for text in told if "unless all use the same seed" not in text]
        results.append((logged(run), callback.collections["val"]["HR@1"].standard_error().item(), told))
    return results


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world_size", "numbers_of_samples"),  # all remainders by the number of processes
    [
        pytest.param(1, (1, 11, 12), marks=pytest.mark.nightly),
        (2, (1, 11, 12)),
        pytest.param(3, (1, 3, 7, 11, 12, 13), marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_values_counts_and_errors_do_not_depend_on_the_number_of_processes(
    way, world_size, numbers_of_samples, processes
):
    expected = []
    for n in numbers_of_samples:
        single = trm.RecMetricCollection(**OPTIONS, prefix="val/", accumulators=[trm.ByGroup("a", "b")])
        outputs = step(*columns(samples(n)), torch.arange(n))
        single.update(**{name: values for name, values in outputs.items() if name != "index"})
        values = numbers(single.compute()) | {f"val/{count}": getattr(single["HR@1"], count) for count in COUNTS}
        values = {key: pytest.approx(value, abs=1e-12, nan_ok=True) for key, value in values.items()}
        expected.append((values, pytest.approx(single["HR@1"].standard_error().item(), abs=1e-12, nan_ok=True), []))

    assert processes.run(values_for_every_remainder, world_size, way, numbers_of_samples) == [expected] * world_size


IDS_OF_ROWS = {
    "sample_ids": (lambda users: {"index": users, "user_ids": users // 3}, {"sample_ids": "index"}),
    "user_ids": (lambda users: {"user_ids": users}, {}),
    "nothing": (lambda users: {}, {}),
}


def rows_of_a_loader(rank, world_size, by):
    """Return the kept rows of seven samples; with `sample_ids` the samples are of three users."""
    ids_of, options = IDS_OF_ROWS[by]
    callback = RecMetricsCallback("NDCG", k=10, accumulators=[trm.KeptRows()], **options)
    pl, run = distributed_trainer(world_size, callback)
    module = make_module(pl, lambda s, t, users: {"scores": s, "target": t, **ids_of(users)})
    try:
        run.validate(module, loader(samples(7)), verbose=False)
    except ValueError as error:
        return str(error)
    rows = callback.collections["val"].rows
    order = rows.ids.argsort()
    clusters = None if rows.clusters is None else rows.clusters[order].tolist()
    return rows.ids[order].tolist(), rows.values["NDCG@10"][order].tolist(), clusters, rows.weights


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize(("by", "clusters"), [("sample_ids", [0, 0, 0, 1, 1, 1, 2]), ("user_ids", None)])
def test_each_sample_has_one_kept_row_though_the_sampler_repeats_one(by, clusters, world_size, processes):
    """With both kinds of ids, users are the clusters."""
    values = trm.functional.ndcg(trm.Scores(*columns(samples(7))).ranking(), 10).tolist()
    assert processes.run(rows_of_a_loader, world_size, by) == [(list(range(7)), values, clusters, None)] * world_size


def test_kept_rows_of_several_processes_need_ids(processes):
    told = processes.run(rows_of_a_loader, 2, "nothing")
    assert ["loader 'val': rows of several processes need unique row_ids" in text for text in told] == [True, True]


def told_in(run, module, *loaders):
    """Return the callback's warnings in a fit."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.fit(module, *loaders)
    return [str(w.message) for w in caught if "RecMetrics" in str(w.message)]


def plain(scores, target, users):
    return {"scores": scores, "target": target}


def every_second(scores, target, users):
    return {"scores": scores[::2], "target": target[::2]}


def in_own_order(data):
    return loader(data, sampler=EveryoneReadsAll(data))


def combined(data):
    lightning = importlib.import_module("pytorch_lightning.utilities.combined_loader")
    return lightning.CombinedLoader([loader(data)] * 2, "max_size")


# a loader, a step and flags of the Trainer
LOADERS = {
    "own sampler": (in_own_order, plain, {"use_distributed_sampler": False}),
    "stream": (lambda data: loader(Stream(data)), plain, {}),
    "derived sampler": (lambda data: loader(data, sampler=Backwards(data)), plain, {}),
    "any order": (lambda data: loader(data, in_order=False), plain, {}),
    "split sampler": (in_own_order, plain, {}),
    "combined": (combined, lambda first, second: plain(*first), {}),
    "fewer rows": (loader, every_second, {}),
    "no repeat": (lambda data: loader(data[:4]), every_second, {}),
}


def doubts(rank, world_size, name):
    """Return the warnings about repeats for a loader of eleven samples."""
    make_loader, step, flags = LOADERS[name]
    pl, run = distributed_trainer(world_size, RecMetricsCallback("HR", k=1), **flags)
    module = make_module(pl, validation_step=lambda self, batch, batch_idx: step(*batch))
    return told_in(run, module, loader(samples(4)), make_loader(samples(11)))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own sampler", "it is unknown which samples EveryoneReadsAll gives to each process"),
        ("stream", "it is unknown which samples of an iterable data set each process gets"),
        ("derived sampler", "it is unknown which samples Backwards gives to each process"),
        ("any order", "the order of the batches of samples is unknown"),
        ("combined", "it is unknown which samples of a CombinedLoader each process gets"),
        ("split sampler", "processes may draw different samples from EveryoneReadsAll, unless all use the same seed"),
    ],
)
def test_a_loader_whose_repeats_are_unknown_is_told_once(name, message, processes):
    (told,), told_by_second = processes.run(doubts, 2, name)

    assert f"{message}, so some may count twice. Pass sample_ids=" in told
    assert told_by_second == []


def test_a_batch_of_fewer_rows_than_samples_is_told_by_the_process_that_holds_a_repeat(processes):
    first, (told,) = processes.run(doubts, 2, "fewer rows")

    assert "a batch with repeated samples has 1 row, not one per sample" in told
    assert first == []
    assert processes.run(doubts, 2, "no repeat") == [[], []]


@pytest.mark.parametrize(("n", "number"), [(11, 1), (12, 0)])
def test_a_last_batch_that_is_left_out_is_told(n, number, pl):
    run = trainer(pl, RecMetricsCallback("HR", k=1))
    told = told_in(run, make_module(pl), loader(samples(8)), loader(samples(n), drop_last=True))

    message = "DataLoader(drop_last=True) leaves out an incomplete last batch"
    assert [message in text for text in told] == [True] * number


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
def test_a_sample_may_be_a_whole_session(world_size, processes):
    """`lengths` says how many rows each session has."""
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
    """Return what is logged where a process scores items 0 to 3, the other one the rest; or the error."""
    data, history = shard_data()
    mine = slice(4 * rank, 4 if rank == 0 else SHARD_ITEMS)
    callback = RecMetricsCallback(**OF_SHARDS, exclude=history, accumulators=[trm.ByGroup("even", "odd")])
    pl, run = distributed_trainer(world_size, callback, use_distributed_sampler=sampler)

    def step(scores, target, users):
        shard = trm.ItemShard(scores[:, mine], target, offset=mine.start, num_items=SHARD_ITEMS)
        return {"input": shard, "user_ids": users, "groups": users % 2}

    try:
        run.validate(make_module(pl, step), DataLoader(data, batch_size=8), verbose=False)
    except ValueError as error:
        return str(error)
    return logged(run)


def test_values_of_shards_are_those_of_one_process(processes):
    data, history = shard_data()
    metrics = trm.RecMetricCollection(**OF_SHARDS, prefix="val/", accumulators=[trm.ByGroup("even", "odd")])
    for scores, target, users in DataLoader(data, batch_size=8):
        metrics.update(scores, target, exclude=history.select(users).items, groups=users % 2)

    assert processes.run(values_of_shards, 2, False) == [near(metrics.compute())] * 2
    assert ["processes differ in " in text for text in processes.run(values_of_shards, 2, True)] == [True, True]
