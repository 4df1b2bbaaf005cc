"""CatalogueEvaluationCallback: all users against all items at the end of an epoch, over processes too."""

import csv
import functools
import inspect
import time

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from trainers import (
    ITEMS,
    KS,
    NAMES,
    QUIET,
    USERS,
    both_packages,
    catalogue,
    distributed_trainer,
    logged,
    make_embedding_module,
    trainer,
)
from values import near

import torchrecmetrics as trm
from torchrecmetrics.evaluation.scorers import EmbeddingScorer
from torchrecmetrics.lightning import CatalogueEvaluationCallback

pytestmark = QUIET

DATA = DataLoader(torch.arange(4))
VALID, TEST, TRAIN = catalogue()
NUM_USERS = len(VALID.users.unique())


def callback(metrics=NAMES, k=KS, **options):
    """Make a callback that evaluates the validation interactions."""
    return CatalogueEvaluationCallback(metrics, k=k, **({"embed": lambda m: m.embed(), "target": VALID} | options))


def expected_of(module, prefix, *, target=VALID, exclude=TRAIN, sign=1):
    users, items = module.users.detach() * sign, module.items.detach()
    result = trm.evaluate(NAMES, users, items, target=target, exclude=exclude, k=KS)
    return {prefix + key: value for key, value in near(result).items()}


def counts(prefix):
    values = {"num_users": NUM_USERS, "num_skipped": USERS - NUM_USERS, "num_unreachable": 0, "num_tied": 0}
    return {prefix + name: value for name, value in values.items()}


@both_packages
def test_a_target_is_evaluated_in_validations_and_tests_with_one_embedding_each(pl):
    """The sanity check embeds too; the epochs of the fit have scores of signs + and -."""
    whole, module = callback(exclude=TRAIN, log_counts=True), make_embedding_module(pl)
    run = trainer(pl, whole)
    run.fit(module, DATA, DATA)

    assert logged(run) == expected_of(module, "val/", sign=-1) | counts("val/")
    assert (module.calls, module.training, whole.results["val"].num_users) == (3, True, NUM_USERS)
    assert run.test(module, DATA, verbose=False) == [expected_of(module, "test/") | counts("test/")]
    assert whole.results.keys() == {"val", "test"}


@both_packages
@pytest.mark.parametrize("inference_mode", [True, False])
def test_an_evaluation_multiplies_its_embeddings_once(inference_mode, pl, monkeypatch):
    numbers_of_users, product = [], EmbeddingScorer.product

    def recording(scorer, users, *rest):
        numbers_of_users.append(len(users))
        return product(scorer, users, *rest)

    monkeypatch.setattr(EmbeddingScorer, "product", recording)
    users, items = torch.rand(40, 4), torch.rand(ITEMS, 4)
    whole = callback(target=torch.rand(40, ITEMS) < 0.2, embed=lambda _: (users, items))
    trainer(pl, whole, inference_mode=inference_mode).validate(make_embedding_module(pl), DATA, verbose=False)

    assert numbers_of_users == [40]


def test_two_callbacks_have_their_own_target_stages_and_exclusions(pl):
    both, metrics = TRAIN.union(VALID), trm.RecMetricCollection(NAMES, k=KS, prefix="mine/")
    module = make_embedding_module(pl)
    run = trainer(
        pl,
        callback(metrics, None, exclude=TRAIN, stages="validate"),
        callback(metrics, None, target=TEST, exclude=both, prefix="{stage}_last/"),
    )
    last = functools.partial(expected_of, module, target=TEST, exclude=both)

    assert run.validate(module, DATA, verbose=False) == [expected_of(module, "val/") | last("val_last/")]
    assert run.test(module, DATA, verbose=False) == [last("test_last/")]


@both_packages
def test_without_validation_loaders_every_nth_training_epoch_is_evaluated(pl, tmp_path):
    """Of epochs 0 to 4 these are 1 and 3, of sign -; the checkpoint sees the value."""
    keep = pl.callbacks.ModelCheckpoint(tmp_path, monitor="val/HR@10", mode="max", every_n_epochs=2)
    logger = pl.loggers.CSVLogger(tmp_path)
    module = make_embedding_module(pl, validates=False)
    run = trainer(pl, callback(exclude=TRAIN, every_n_epochs=2), keep, logger=logger, max_epochs=5)
    run.fit(module, DATA)
    with open(f"{logger.log_dir}/metrics.csv") as file:
        rows = [{key: float(row[key]) for key in row if key[:4] in ("epoc", "val/")} for row in csv.DictReader(file)]
    odd = expected_of(module, "val/", sign=-1)
    expected = {key: pytest.approx(value.expected, abs=1e-6) for key, value in odd.items()}

    assert rows == [{"epoch": 1} | expected, {"epoch": 3} | expected]
    assert keep.best_model_score.item() == expected["val/HR@10"]
    assert (module.calls, module.training) == (2, True)


def test_the_sanity_check_logs_nothing(pl):
    whole, seen = callback(), []

    class Listener(pl.Callback):
        def on_sanity_check_end(self, trainer, pl_module):
            seen.append((dict(trainer.callback_metrics), dict(whole.results)))

    trainer(pl, whole, Listener()).fit(make_embedding_module(pl), DATA, DATA)

    assert seen == [({}, {})]


@pytest.mark.parametrize(
    "embed",
    [
        lambda m: list(m.embed()),
        lambda m: (lambda ids: m.users[ids] @ m.items.T, None),
        lambda m: lambda ids: m.users[ids] @ m.items.T,
    ],
)
def test_embed_may_return_a_list_or_a_function_of_user_ids(embed, pl):
    module = make_embedding_module(pl)
    values = trainer(pl, callback(embed=embed, exclude=TRAIN)).validate(module, DATA, verbose=False)

    assert values == [expected_of(module, "val/")]


@pytest.mark.parametrize(
    ("embed", "error", "message"),
    [
        (lambda m: m.users @ m.items.T, ValueError, "user embeddings need item embeddings"),
        (lambda m: [m.users] * 3, TypeError, r"embed must return .users, items., got 3 values"),
        (lambda m: m.nothing, AttributeError, "'TwoTowers' object has no attribute 'nothing'"),
        (lambda m: (m.items, m.users), ValueError, "40 users have embeddings, but target has 30 users"),
    ],
)
def test_embeddings_that_do_not_fit_stop_the_run_before_its_first_epoch(embed, error, message, pl):
    run = trainer(pl, callback(embed=embed))

    with pytest.raises(error, match=message):
        run.fit(make_embedding_module(pl), DATA, DATA)
    assert run.fit_loop.epoch_progress.current.ready == 0


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"target": [1]}, TypeError, "target must be Interactions"),
        ({"embeds": None}, ValueError, "CatalogueEvaluationCallback has no option 'embeds'; did you mean 'embed'"),
        ({"every_n_epochs": 0}, ValueError, "every_n_epochs must be at least 1"),
        ({"embed": None}, TypeError, "embed must be a function of .the module."),
        ({"embed": lambda a, b: None}, TypeError, "embed must be a function of .the module."),
    ],
)
def test_a_bad_argument_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        callback(**options)


def test_values_of_groups_and_of_metrics_of_lists_are_those_of_evaluate(pl):
    """Metrics of lists take the history from the catalogue's interactions."""
    options = {"k": [5], "catalogue": trm.Catalogue.from_interactions(TRAIN), "exclude": TRAIN}
    options["groups"] = trm.Groups(torch.tensor([0, 1, -1] * 10), ["a", "b"])
    metrics, module = ["NDCG", "Coverage", "PopularityLift"], make_embedding_module(pl)
    (values,) = trainer(pl, callback(metrics, **options)).validate(module, DATA, verbose=False)
    result = trm.evaluate(metrics, module.users.detach(), module.items.detach(), target=VALID, **options)

    assert values == {f"val/{key}": value for key, value in near(result, 1e-6).items()}
    assert {"val/NDCG@5/a", "val/NDCG@5/b", "val/Coverage@5"} < values.keys()


IDS = [f"u{user}" for user in range(VALID.num_users)], range(VALID.num_items)
NAMED = {"target": VALID.with_ids(*IDS)}


@pytest.mark.parametrize("stranger", ["v{}", "u{} "])
def test_a_history_whose_users_are_unknown_is_left_out_with_a_warning(stranger):
    """A run does not end for it, and another history stays."""
    strangers = TRAIN.with_ids([stranger.format(user) for user in range(VALID.num_users)], IDS[1])
    message = rf"no user of exclude \(such as '{stranger.format(0)}'\) is a user of target \(such as 'u0'\)"
    with pytest.warns(UserWarning, match=message):
        whole = callback(**NAMED, exclude=(strangers, TRAIN.with_ids(*IDS)))

    assert len(whole.exclude) == 1


@pytest.mark.parametrize(
    ("name", "enabled", "is_shown"),
    [("TQDMProgressBar", True, True), ("TQDMProgressBar", False, False), ("RichProgressBar", True, False)],
)
def test_progress_is_shown_beside_an_enabled_bar_of_tqdm_alone(name, enabled, is_shown, pl, monkeypatch):
    """Progress in the midst of Rich's live display, or of a disabled bar, would disturb what is printed."""
    shown, evaluate = [], trm.evaluate

    def recording(*args, progress, **options):
        shown.append(progress)
        return evaluate(*args, **options)

    monkeypatch.setattr("torchrecmetrics.lightning.catalogue_callback.evaluate", recording)
    bar = getattr(pl.callbacks, name)()
    run = trainer(pl, callback(), bar, enable_progress_bar=True)
    bar.enable() if enabled else bar.disable()
    run.validate(make_embedding_module(pl), DATA, verbose=False)

    assert shown == [is_shown]


def fit(pl, every, *readers, validates=True, scheduler=None, **options):
    """Fit with an evaluation every `every` epochs, and with callbacks or a scheduler (mode, frequency) that read it."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        mode, frequency = scheduler
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode=mode)
        return [optimizer], [{"scheduler": plateau, "monitor": "val/HR@1", "frequency": frequency}]

    methods = {} if scheduler is None else {"configure_optimizers": configure_optimizers}
    module = make_embedding_module(pl, validates, **methods)
    run = trainer(pl, callback("HR", 1, every_n_epochs=every), *readers, max_epochs=4, **options)
    run.fit(module, DATA, *([DATA] if validates else []))
    return run.current_epoch


def stop(pl, path, **options):
    return pl.callbacks.EarlyStopping("val/HR@1", mode="max", **options)


def keep(pl, path, **options):
    return pl.callbacks.ModelCheckpoint(path, monitor="val/HR@1", mode="max", **options)


@pytest.mark.parametrize("validates", [True, False])
@pytest.mark.parametrize(
    ("reader", "options", "scheduler", "message"),
    [
        (stop, {}, None, "EarlyStopping .monitor='val/HR@1'.*strict=False to EarlyStopping"),
        (keep, {}, None, "ModelCheckpoint .monitor='val/HR@1'.*Pass every_n_epochs=2 to ModelCheckpoint"),
        (keep, {"every_n_epochs": 3}, None, "ModelCheckpoint .*also reads its key after epochs without a value"),
        (keep, {"every_n_epochs": 2}, ("max", 1), "the learning rate scheduler .*'frequency': 2 with the monitor"),
        (keep, {"every_n_epochs": 2}, ("min", 2), "the learning rate scheduler .*pass mode='max'"),
    ],
)
def test_a_reader_of_a_key_that_is_left_out_is_refused(reader, options, scheduler, message, validates, pl, tmp_path):
    """It would stop the run, or take an old value for a new one; the error has the option to change."""
    with pytest.raises(ValueError, match=message):
        fit(pl, 2, reader(pl, tmp_path, **options), validates=validates, scheduler=scheduler)


@pytest.mark.parametrize("validates", [True, False])
@pytest.mark.parametrize(
    ("reader", "options"),
    [(stop, {"strict": False}), (keep, {"every_n_epochs": 4}), (keep, {"every_n_train_steps": 8})],
)
def test_a_reader_of_a_key_that_is_there_runs(reader, options, validates, pl, tmp_path):
    assert fit(pl, 2, reader(pl, tmp_path, **options), validates=validates, scheduler=("max", 4)) == 4


@pytest.mark.parametrize(("every", "validated"), [(1, 2), (2, 2), (2, 4)])
def test_readers_run_if_each_validation_evaluates(every, validated, pl, tmp_path):
    assert fit(pl, every, stop(pl, tmp_path), keep(pl, tmp_path), check_val_every_n_epoch=validated) == 4


def test_readers_are_refused_if_not_each_validation_evaluates(pl, tmp_path):
    with pytest.raises(ValueError, match="reads its key after epochs without a value; it is logged every 2 epochs"):
        fit(pl, 2, keep(pl, tmp_path), check_val_every_n_epoch=3)


def shared_catalogue(rank, world_size):
    """Return what is logged when users are split over processes, and the number of users scored here."""
    scored = []

    def embed(module):
        users, items = module.embed()
        return lambda ids: (scored.append(len(ids)), users[ids] @ items.T)[1], None

    pl, run = distributed_trainer(world_size, callback(embed=embed, exclude=TRAIN, log_counts=True), max_epochs=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspect.getmodule(CatalogueEvaluationCallback), "_FEW_USERS", 0)
        run.fit(make_embedding_module(pl), DATA, DATA)
    return logged(run), sum(scored)


def test_users_are_split_over_processes_which_log_the_values_of_a_single_one(pl, processes):
    values, numbers = zip(*processes.run(shared_catalogue, 2), strict=True)

    expected = expected_of(make_embedding_module(pl), "val/") | counts("val/")
    assert [*values] == [expected, expected]
    assert sum(numbers) == NUM_USERS > max(numbers)


def make_normalising_module(pl):
    """Make a module with batch normalisation, whose running statistics depend on what each process has seen."""

    def training_step(self, batch, batch_idx):
        seen = torch.randn(4, 8, generator=torch.Generator().manual_seed(int(batch.sum())))
        return self.norm(seen).sum() * 0 + (self.users.sum() + self.items.sum()) * 0

    module = make_embedding_module(pl, validates=False, training_step=training_step)
    module.norm = nn.BatchNorm1d(8)
    module.register_buffer("none", torch.zeros(0, 2, dtype=torch.bool))
    return module


def normalised(rank, world_size, functions):
    """Return what is logged, and the state dict of this process afterwards."""

    def embed(module):
        users = module.norm(module.users)
        return (lambda ids: users[ids] @ module.items.T, None) if functions else (users, module.items)

    pl, run = distributed_trainer(world_size, callback(embed=embed, exclude=TRAIN))
    module = make_normalising_module(pl)
    run.fit(module, DataLoader(torch.arange(8), batch_size=2))
    return logged(run), {key: value.numpy() for key, value in module.state_dict().items()}


@pytest.mark.parametrize("functions", [False, True])
def test_all_processes_evaluate_with_the_running_statistics_of_the_first(functions, pl, processes):
    """They are those of the checkpoint; after the evaluation each process has its own again."""
    (logged_first, saved), (logged_second, other) = processes.run(normalised, 2, functions)
    module = make_normalising_module(pl).eval()
    module.load_state_dict({key: torch.from_numpy(value) for key, value in saved.items()})
    with torch.no_grad():
        users = module.norm(module.users)
    result = trm.evaluate(NAMES, users, module.items.detach(), target=VALID, exclude=TRAIN, k=KS)

    assert logged_first == logged_second == {f"val/{key}": value for key, value in near(result).items()}
    assert abs(saved["norm.running_mean"] - other["norm.running_mean"]).max() > 1e-3


def scores(module, shift, far=0.0):
    """Return an `embed` of scores that are moved by `shift`, and those of masked items by `far`."""

    def score(ids):
        values = module.users[ids] @ module.items.T
        values[:, ::3] = -torch.inf
        values[:, 1::7] = -1e9  # masked scores must not hide differences of the others
        return values + shift + (values < -1e8) * far

    return score, None


EMBEDS = {  # `embed` of each process
    "fails": lambda rank: lambda m: {}["users"] if rank else (m.users, m.items),
    "scores fail": lambda rank: lambda m: (lambda ids: 1 / 0 if rank else m.users[ids] @ m.items.T, None),
    "differs": lambda rank: lambda m: (m.users + 0.01 * rank, m.items),
    "shares": lambda rank: lambda m: ((m.users[rank::2] if rank else m.users), m.items),
    "rounds": lambda rank: lambda m: (m.users * (1 + 1e-6 * rank), m.items),
    "scores differ": lambda rank: lambda m: scores(m, 0.01 * rank),
    "scores narrow": lambda rank: lambda m: (lambda ids: m.users[ids] @ m.items[: ITEMS - rank].T, None),
    "scores round": lambda rank: lambda m: scores(m, 1e-6 * rank, far=rank),
}


def error_of_one_process(rank, world_size, name):
    """Return the error or None of this process for an `embed` that fails or differs on the second process."""
    pl, run = distributed_trainer(world_size, callback("HR", 1, embed=EMBEDS[name](rank)))
    begun, told = time.monotonic(), None
    try:
        run.validate(make_embedding_module(pl), DATA, verbose=False)
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
    assert time.monotonic() - begun < 20
    return told


@pytest.mark.parametrize(
    ("name", "error"), [("fails", "KeyError: 'users'"), ("scores fail", "ZeroDivisionError: division by zero")]
)
def test_an_error_of_one_process_raises_on_all(name, error, processes):
    first, second = processes.run(error_of_one_process, 2, name)

    assert second == error
    assert first.endswith(f"process 1 failed with {error}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("differs", "processes 0 and 1 have different users: embed must return the same on every process"),
        ("shares", "different users (a torch.float32 tensor of shape [30, 8], a torch.float32 tensor of shape [15,"),
        ("scores differ", "processes 0 and 1 have different scores: embed must return the same on every process"),
        ("scores narrow", "different scores (a torch.float32 tensor of shape [21, 40], a"),
    ],
)
def test_embeddings_that_differ_between_processes_are_refused_on_all(name, message, processes):
    first, second = processes.run(error_of_one_process, 2, name)

    assert message in first
    assert second == first


@pytest.mark.parametrize("name", ["rounds", "scores round"])
def test_embeddings_that_differ_by_rounding_are_accepted(name, processes):
    assert processes.run(error_of_one_process, 2, name) == [None, None]
