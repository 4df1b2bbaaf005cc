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


@both_packages
def test_catalogue_in_validation_and_test(pl):
    """A single target is logged as val/ in fit and validate and as test/ in test, with one embedding pass each."""
    whole, module = callback(exclude=TRAIN, log_counts=True), make_embedding_module(pl)
    run = trainer(pl, whole)
    run.fit(module, DATA, DATA)
    counts = {"num_users": NUM_USERS, "num_skipped": USERS - NUM_USERS, "num_unreachable": 0, "num_tied": 0}
    after = {f"val/{name}": value for name, value in counts.items()}
    assert logged(run) == expected_of(module, "val/", sign=-1) | after
    assert module.calls == 3  # the sanity check embeds too
    assert whole.results["val"].num_users == NUM_USERS
    after = {f"test/{name}": value for name, value in counts.items()}
    assert run.test(module, DATA, verbose=False) == [expected_of(module, "test/") | after]
    assert whole.results.keys() == {"val", "test"}
    assert module.training


@both_packages
@pytest.mark.parametrize("inference_mode", [True, False])
def test_an_evaluation_multiplies_its_embeddings_once(inference_mode, pl, monkeypatch):
    """40 users, validated first, tested then: one product of 40 users and all items each."""
    products, multiply = [], EmbeddingScorer.product
    monkeypatch.setattr(EmbeddingScorer, "product", lambda *rows: products.append(len(rows[1])) or multiply(*rows))
    users, items = torch.rand(40, 4), torch.rand(ITEMS, 4)
    whole = callback(target=torch.rand(40, ITEMS) < 0.2, embed=lambda _: (users, items))
    run, module = trainer(pl, whole, inference_mode=inference_mode), make_embedding_module(pl)
    (validated,) = run.validate(module, DATA, verbose=False)
    (tested,) = run.test(module, DATA, verbose=False)

    assert products == [40, 40]
    assert {key.replace("val/", "test/"): value for key, value in validated.items()} == tested


def test_catalogue_with_two_callbacks(pl):
    """A callback per ground truth and stage, with its own exclusions; two in one stage have other prefixes."""
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
def test_catalogue_without_validation_loaders(pl, tmp_path):
    """Without validation loaders the evaluation runs at the end of training epochs, where monitors see its values.

    `every_n_epochs` leaves epochs out.
    """
    keep = pl.callbacks.ModelCheckpoint(tmp_path, monitor="val/HR@10", mode="max", every_n_epochs=2)
    stop = pl.callbacks.EarlyStopping("val/HR@10", mode="max", patience=1)
    logger = pl.loggers.CSVLogger(tmp_path)
    module = make_embedding_module(pl, validates=False)
    whole = callback(exclude=TRAIN, every_n_epochs=2)
    run = trainer(pl, whole, keep, logger=logger, max_epochs=5)
    run.fit(module, DATA)
    with open(f"{logger.log_dir}/metrics.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "3"]
    odd = expected_of(module, "val/", sign=-1)
    assert {key: pytest.approx(float(rows[0][key]), abs=1e-6) for key in odd} == {
        key: value.expected for key, value in odd.items()
    }
    assert keep.best_model_score.item() == odd["val/HR@10"]
    assert module.calls == 2
    assert module.training

    run = trainer(pl, callback(exclude=TRAIN), stop, max_epochs=9)
    run.fit(make_embedding_module(pl, validates=False), DATA)
    assert run.current_epoch < 9


@pytest.mark.parametrize(
    "embed",
    [
        lambda m: list(m.embed()),
        lambda m: (lambda ids: m.users[ids] @ m.items.T, None),
        lambda m: lambda ids: m.users[ids] @ m.items.T,
    ],
)
def test_values_of_embed(embed, pl):
    """`embed` may return a list instead of a tuple, and a function of user ids where a model has no embeddings."""
    module = make_embedding_module(pl)
    got = trainer(pl, callback(embed=embed, exclude=TRAIN)).validate(module, DATA, verbose=False)
    assert got == [expected_of(module, "val/")]


@pytest.mark.parametrize(
    ("embed", "error", "message"),
    [
        (lambda m: m.users @ m.items.T, ValueError, "user embeddings need item embeddings"),
        (lambda m: [m.users] * 3, TypeError, r"embed must return .users, items., got 3 values"),
        (lambda m: m.nothing, AttributeError, "'TwoTowers' object has no attribute 'nothing'"),
        (lambda m: (m.items, m.users), ValueError, "40 users have embeddings, but target has 30 users"),
    ],
)
def test_bad_values_of_embed(embed, error, message, pl):
    """The sanity check stops the run before its first epoch if embeddings do not fit."""
    run = trainer(pl, callback(embed=embed))
    with pytest.raises(error, match=message):
        run.fit(make_embedding_module(pl), DATA, DATA)
    assert run.fit_loop.epoch_progress.current.ready == 0


def test_catalogue_sanity_check_logs_nothing(pl):
    whole, seen = callback(), []

    class Listener(pl.Callback):
        def on_sanity_check_end(self, trainer, pl_module):
            seen.append((dict(trainer.callback_metrics), dict(whole.results)))

    trainer(pl, whole, Listener()).fit(make_embedding_module(pl), DATA, DATA)
    assert seen == [({}, {})]


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
def test_catalogue_bad_arguments(options, error, message):
    with pytest.raises(error, match=message):
        callback(**options)


def fit(pl, every, *readers, validates=True, scheduler=None, **options):
    """Fit with an evaluation every `every` epochs, and with callbacks or a scheduler (mode, frequency) that read it."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        mode, frequency = scheduler
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode=mode)
        return [optimizer], [{"scheduler": plateau, "monitor": "val/HR@1", "frequency": frequency}]

    methods = {} if scheduler is None else {"configure_optimizers": configure_optimizers}
    module = make_embedding_module(pl, validates, **methods)
    whole = callback("HR", 1, every_n_epochs=every)
    run = trainer(pl, whole, *readers, max_epochs=4, **options)
    run.fit(module, DATA, *([DATA] if validates else []))
    return run.current_epoch


@pytest.mark.parametrize("validates", [True, False])
def test_catalogue_every_n_epochs_and_what_reads_its_keys(validates, pl, tmp_path):
    """A callback or scheduler that reads a key after epochs without evaluation is refused, with the option to change.

    Such a reader would stop the run, or take an old value for a new one.
    """
    stop = functools.partial(pl.callbacks.EarlyStopping, "val/HR@1", mode="max")
    keep = functools.partial(pl.callbacks.ModelCheckpoint, tmp_path, monitor="val/HR@1", mode="max")
    for reader, scheduler, message in (
        (stop(), None, "EarlyStopping .monitor='val/HR@1'.*strict=False to EarlyStopping"),
        (keep(), None, "ModelCheckpoint .monitor='val/HR@1'.*Pass every_n_epochs=2 to ModelCheckpoint"),
        (keep(every_n_epochs=3), None, "ModelCheckpoint .*also reads its key after epochs without a value"),
        (keep(every_n_epochs=2), ("max", 1), "the learning rate scheduler .*'frequency': 2 with the monitor"),
        (keep(every_n_epochs=2), ("min", 2), "the learning rate scheduler .*pass mode='max'"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(pl, 2, reader, validates=validates, scheduler=scheduler)
    for reader in (stop(strict=False), keep(every_n_epochs=4), keep(every_n_train_steps=8)):
        assert fit(pl, 2, reader, validates=validates, scheduler=("max", 4)) == 4


def test_catalogue_every_n_epochs_and_validation_every_n_epochs(pl, tmp_path):
    """Callbacks that read keys after validations are accepted if each validation evaluates, and refused otherwise."""
    stop = pl.callbacks.EarlyStopping("val/HR@1", mode="max")
    keep = pl.callbacks.ModelCheckpoint(tmp_path, monitor="val/HR@1", mode="max")
    for ours, validated in ((1, 2), (2, 2), (2, 4)):
        assert fit(pl, ours, stop, keep, check_val_every_n_epoch=validated) == 4
    with pytest.raises(ValueError, match="reads its key after epochs without a value; it is logged every 2 epochs"):
        fit(pl, 2, keep, check_val_every_n_epoch=3)


@pytest.mark.parametrize(("name", "is_shown"), [("TQDMProgressBar", True), ("RichProgressBar", False)])
def test_progress_is_shown_beside_an_enabled_bar_of_tqdm_alone(name, is_shown, pl, monkeypatch):
    """Progress in the midst of Rich's live display, or of a disabled bar, would disturb what is printed."""
    shown, evaluate = [], trm.evaluate
    monkeypatch.setattr(
        "torchrecmetrics.lightning.catalogue_callback.evaluate",
        lambda *args, progress, **options: shown.append(progress) or evaluate(*args, **options),
    )
    for is_enabled in (True, False):
        bar = getattr(pl.callbacks, name)()
        run = trainer(pl, callback(), bar, enable_progress_bar=True)
        bar.enable() if is_enabled else bar.disable()
        run.validate(make_embedding_module(pl), DATA, verbose=False)
    assert shown == [is_shown, False]


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


def test_catalogue_over_processes(processes):
    """The users are split over processes, and every process logs the values of a single one."""
    one, scored = processes.run(shared_catalogue, 1)[0]
    assert one["val/num_users"] == scored < USERS
    expected = {key: pytest.approx(value, abs=1e-12) for key, value in one.items()}
    shares = processes.run(shared_catalogue, 2)
    assert [values for values, _ in shares] == [expected, expected]
    assert sum(share for _, share in shares) == scored > max(share for _, share in shares)


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
def test_catalogue_evaluates_what_would_be_saved(functions, pl, processes):
    """All processes evaluate with the running statistics of the first process, which are those of the checkpoint.

    Running statistics differ from one process to the next.
    """
    (logged_first, saved), (logged_second, other) = processes.run(normalised, 2, functions)
    assert abs(saved["norm.running_mean"] - other["norm.running_mean"]).max() > 1e-3  # each process has its own again
    module = make_normalising_module(pl).eval()
    module.load_state_dict({key: torch.from_numpy(value) for key, value in saved.items()})
    with torch.no_grad():
        users = module.norm(module.users)
    result = trm.evaluate(NAMES, users, module.items.detach(), target=VALID, exclude=TRAIN, k=KS)
    assert logged_first == logged_second == {f"val/{key}": value for key, value in near(result).items()}


def failures_of_one_process(rank, world_size):
    """Return the error or None of this process for each `embed` that fails or differs on the second process."""

    def scores_of(shift, far=0.0):
        def scores(module):
            def score(ids):
                found = module.users[ids] @ module.items.T
                found[:, ::3] = -torch.inf
                found[:, 1::7] = -1e9  # masked scores must not hide differences of the others
                return found + shift * rank + (found < -1e8) * far * rank

            return score, None

        return scores

    embeds = {
        "fails": lambda m: {}["users"] if rank else (m.users, m.items),
        "scores fail": lambda m: (lambda ids: 1 / 0 if rank else m.users[ids] @ m.items.T, None),
        "differs": lambda m: (m.users + 0.01 * rank, m.items),
        "shares": lambda m: ((m.users[rank::2] if rank else m.users), m.items),
        "rounds": lambda m: (m.users * (1 + 1e-6 * rank), m.items),
        "scores differ": scores_of(0.01),
        "scores narrow": lambda m: (lambda ids: m.users[ids] @ m.items[: ITEMS - rank].T, None),
        "scores round": scores_of(1e-6, far=1.0),
    }
    told = {}
    for name, embed in embeds.items():
        pl, run = distributed_trainer(world_size, callback("HR", 1, embed=embed))
        begun = time.monotonic()
        try:
            run.validate(make_embedding_module(pl), DATA, verbose=False)
            told[name] = None
        except Exception as error:
            told[name] = f"{type(error).__name__}: {error}"
        assert time.monotonic() - begun < 20
    return told


def test_catalogue_errors_of_one_process_raise_in_all(processes):
    """An error of one process raises on all, and embeddings that differ beyond rounding between them are refused."""
    first, second = processes.run(failures_of_one_process, 2)
    for name, error in (("fails", "KeyError: 'users'"), ("scores fail", "ZeroDivisionError: division by zero")):
        assert second.pop(name) == error
        assert first.pop(name).endswith(f"process 1 failed with {error}")
    assert first == second
    assert first.pop("rounds") is first.pop("scores round") is None
    shapes = "a torch.float32 tensor of shape [30, 8], a torch.float32 tensor of shape [15, 8]"
    for name, message in (
        ("differs", "processes 0 and 1 have different users: embed must return the same on every process"),
        ("shares", f"different users ({shapes})"),
        ("scores differ", "processes 0 and 1 have different scores: embed must return the same on every process"),
        ("scores narrow", f"different scores (a torch.float32 tensor of shape [21, {ITEMS}], a"),
    ):
        assert message in first[name], name


def test_a_catalogue_has_groups(pl):
    """Metrics of lists take the history from the catalogue's interactions; values are those of `evaluate`."""
    options = {"k": [5], "catalogue": trm.Catalogue.from_interactions(TRAIN), "exclude": TRAIN}
    options["groups"] = trm.Groups(torch.tensor([0, 1, -1] * 10), ["a", "b"])
    metrics, module = ["NDCG", "Coverage", "PopularityLift"], make_embedding_module(pl)
    whole = callback(metrics, **options)
    (got,) = trainer(pl, whole).validate(module, DATA, verbose=False)
    found = trm.evaluate(metrics, module.users.detach(), module.items.detach(), target=VALID, **options)
    assert got == {f"val/{key}": value for key, value in near(found, 1e-6).items()}
    assert set(whole.results["val"].groups.to_dict()["group"]) == {"a", "b"}


def test_a_history_that_meets_nobody_is_a_warning():
    """A run does not end for a history whose users are unknown: it is left out with a warning, another one stays."""
    ids = [f"u{user}" for user in range(VALID.num_users)], range(VALID.num_items)
    strangers = TRAIN.with_ids([f"v{user}" for user in range(VALID.num_users)], ids[1])
    with pytest.warns(UserWarning, match=r"no user of exclude \(such as 'v0'\) is a user of target \(such as 'u0'\)"):
        made = callback(target=VALID.with_ids(*ids), exclude=(strangers, TRAIN.with_ids(*ids)))
    assert len(made.exclude) == 1
    blanks = TRAIN.with_ids([f"u{user} " for user in range(VALID.num_users)], ids[1])
    with pytest.warns(UserWarning, match=r"no user of exclude \(such as 'u0 '\) is a user of target \(such as 'u0'\)"):
        assert not callback(target=VALID.with_ids(*ids), exclude=blanks).exclude
