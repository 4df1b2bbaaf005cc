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
    GROUP_CODES,
    ITEMS,
    KS,
    NAMES,
    QUIET,
    USERS,
    both_packages,
    catalogue,
    distributed_trainer,
    loader,
    logged,
    make_embedding_module,
    make_module,
    samples,
    trainer,
)
from values import near

import torchrecmetrics as trm
from torchrecmetrics.lightning import CatalogueEvaluationCallback

pytestmark = QUIET


def expected_of(module, target, exclude, prefix, sign=1):
    result = trm.evaluate(
        NAMES, module.users.detach() * sign, module.items.detach(), target=target, exclude=exclude, k=KS
    )
    return {prefix + key: value for key, value in near(result).items()}


@both_packages
def test_catalogue_in_validation_and_test(pl, tmp_path):
    """A single target is logged as val/ in fit and validate and as test/ in test, with one embedding pass each."""
    valid, _, train = catalogue()
    callback = CatalogueEvaluationCallback(
        NAMES, k=KS, embed=lambda m: m.embed(), target=valid, exclude=train, log_counts=True
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
    assert run.test(module, data, verbose=False) == [expected_of(module, valid, train, "test/") | after]
    assert module.training


def test_catalogue_with_two_callbacks(pl, tmp_path):
    """A callback per ground truth and stage, with its own exclusions; two in one stage have other prefixes."""
    valid, test, train = catalogue()
    both = train.union(valid)
    metrics = trm.RecMetricCollection(NAMES, k=KS, prefix="mine/")
    options = {"metrics": metrics, "embed": lambda m: m.embed()}
    callbacks = [
        CatalogueEvaluationCallback(target=valid, exclude=train, stages="validate", **options),
        CatalogueEvaluationCallback(target=test, exclude=both, prefix="{stage}_last/", **options),
    ]
    module, data = make_embedding_module(pl), DataLoader(torch.arange(4))
    run = trainer(pl, tmp_path, *callbacks)
    expected = expected_of(module, valid, train, "val/") | expected_of(module, test, both, "val_last/")
    assert run.validate(module, data, verbose=False) == [expected]
    assert run.test(module, data, verbose=False) == [expected_of(module, test, both, "test_last/")]


@both_packages
def test_catalogue_without_validation_loaders(pl, tmp_path):
    """Without validation loaders the evaluation runs at the end of training epochs, where monitors see its values.

    `every_n_epochs` leaves epochs out.
    """
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


def test_catalogue_from_a_score_function(pl, tmp_path):
    """A model without embeddings is evaluated where `embed` returns a function of user ids, and None."""
    valid, _, train = catalogue()
    module, data = make_embedding_module(pl), DataLoader(torch.arange(4))
    callback = CatalogueEvaluationCallback(
        NAMES, k=KS, embed=lambda m: (lambda ids: m.users[ids] @ m.items.T, None), target=valid, exclude=train
    )
    got = trainer(pl, tmp_path, callback).validate(module, data, verbose=False)
    assert got == [expected_of(module, valid, train, "val/")]


def test_catalogue_sanity_check(pl, tmp_path):
    """The sanity check stops the run before its first epoch if embeddings do not fit, and logs nothing."""
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
        ({"embeds": None}, ValueError, "CatalogueEvaluationCallback has no option 'embeds'; did you mean 'embed'"),
        ({"every_n_epochs": 0}, ValueError, "every_n_epochs must be at least 1"),
        ({"stages": "fit"}, ValueError, "stages must be one of"),
        ({"embed": None}, TypeError, "embed must be a function of .the module."),
        ({"embed": lambda a, b: None}, TypeError, "embed must be a function of .the module."),
    ],
)
def test_catalogue_bad_arguments(options, error, message):
    with pytest.raises(error, match=message):
        CatalogueEvaluationCallback("HR", k=1, **({"embed": lambda m: None, "target": catalogue()[0]} | options))


def paced(pl, tmp_path, every, *readers, validates=True, scheduler=None, options=None):
    """Fit with an evaluation every `every` epochs, and with callbacks or a scheduler that read its key."""
    module, data = make_embedding_module(pl, validates), DataLoader(torch.arange(4))
    if scheduler is not None:

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode=scheduler.get("mode", "max"))
            return [optimizer], [{"scheduler": plateau, "monitor": "val/HR@1"} | {"frequency": scheduler["every"]}]

        type(module).configure_optimizers = configure_optimizers
    callback = CatalogueEvaluationCallback(
        "HR", k=1, every_n_epochs=every, embed=lambda m: m.embed(), target=catalogue()[0]
    )
    run = trainer(
        pl, tmp_path, callback, *readers, **({"max_epochs": 4, "enable_checkpointing": True} | (options or {}))
    )
    run.fit(module, data, *([data] if validates else []))
    return run


@pytest.mark.parametrize("validates", [True, False])
@both_packages
def test_catalogue_every_n_epochs_and_what_reads_its_keys(validates, pl, tmp_path):
    """A callback or scheduler that reads a key after epochs without evaluation is refused, with the option to change.

    Such a reader would stop the run, or take an old value for a new one.
    """
    fit = functools.partial(paced, pl, tmp_path, 2, validates=validates)
    stop = functools.partial(pl.callbacks.EarlyStopping, "val/HR@1", mode="max")
    keep = functools.partial(pl.callbacks.ModelCheckpoint, tmp_path, monitor="val/HR@1", mode="max")
    for refused, message in (
        (lambda: fit(stop()), "EarlyStopping .monitor='val/HR@1'.*strict=False to EarlyStopping"),
        (lambda: fit(keep()), "ModelCheckpoint .monitor='val/HR@1'.*pass every_n_epochs=2 to ModelCheckpoint"),
        (lambda: fit(keep(every_n_epochs=3)), "ModelCheckpoint .*reads its key after epochs without a value"),
        (lambda: fit(scheduler={"every": 1}), "the learning rate scheduler .*'frequency': 2 with the monitor"),
        (lambda: fit(scheduler={"every": 2, "mode": "min"}), "the learning rate scheduler .*pass mode='max'"),
    ):
        with pytest.raises(ValueError, match=message):
            refused()
    for reader in (stop(strict=False), keep(every_n_epochs=2), keep(every_n_epochs=4), keep(every_n_train_steps=8)):
        assert fit(reader).current_epoch == 4
    assert fit(scheduler={"every": 4}).current_epoch == 4


def test_catalogue_every_n_epochs_and_validation_every_n_epochs(pl, tmp_path):
    """Callbacks that read keys after validations are accepted if each validation evaluates, and refused otherwise."""
    stop = pl.callbacks.EarlyStopping("val/HR@1", mode="max")
    keep = pl.callbacks.ModelCheckpoint(tmp_path, monitor="val/HR@1", mode="max")
    for ours, validated in ((1, 2), (2, 2), (2, 4)):
        options = {"check_val_every_n_epoch": validated}
        assert paced(pl, tmp_path, ours, stop, keep, options=options).current_epoch == 4
    with pytest.raises(ValueError, match="reads its key after epochs without a value, which has one every 2 epochs"):
        paced(pl, tmp_path, 2, keep, options={"check_val_every_n_epoch": 3})


@pytest.mark.parametrize(
    ("embed", "error", "message"),
    [
        (lambda m: m.users @ m.items.T, ValueError, "user embeddings need item embeddings"),
        (lambda m: [m.users] * 3, TypeError, r"embed must return .users, items., got 3 things"),
        (lambda m: m.nothing, AttributeError, "'TwoTowers' object has no attribute 'nothing'"),
        (lambda m: (m.items, m.users), ValueError, "40 users have embeddings"),
    ],
)
def test_catalogue_errors_of_embed(embed, error, message, pl, tmp_path):
    callback = CatalogueEvaluationCallback("HR", k=1, embed=embed, target=catalogue()[0])
    with pytest.raises(error, match=message):
        trainer(pl, tmp_path, callback).validate(make_embedding_module(pl), DataLoader(torch.arange(4)), verbose=False)


def test_catalogue_embed_returns_a_list(pl, tmp_path):
    """`embed` may return a list instead of a tuple."""
    module, valid = make_embedding_module(pl), catalogue()[0]
    callback = CatalogueEvaluationCallback(NAMES, k=KS, embed=lambda m: list(m.embed()), target=valid)
    got = trainer(pl, tmp_path, callback).validate(module, DataLoader(torch.arange(4)), verbose=False)
    assert got == [expected_of(module, valid, None, "val/")]


def test_catalogue_progress(pl, tmp_path, capsys):
    """A bar counts users while the catalogue is evaluated, if the trainer has a bar of tqdm."""
    callback = CatalogueEvaluationCallback("HR", k=1, embed=lambda m: m.embed(), target=catalogue()[0], batch_size=7)
    run = trainer(pl, tmp_path, callback, pl.callbacks.TQDMProgressBar(), enable_progress_bar=True)
    run.validate(make_embedding_module(pl), DataLoader(torch.arange(4)), verbose=False)
    users = len(catalogue()[0].users.unique())
    assert f"{users}/{users}" in capsys.readouterr().err


def shared_catalogue(rank, world_size):
    """Return what is logged when users are split over processes, and the number of users scored here."""
    valid, _, train = catalogue()
    scored = []

    def embed(module):
        users, items = module.embed()
        return lambda ids: (scored.append(len(ids)), users[ids] @ items.T)[1], None

    callback = CatalogueEvaluationCallback(NAMES, k=KS, embed=embed, target=valid, exclude=train, log_counts=True)
    pl, run = distributed_trainer(world_size, callback, max_epochs=1)
    data = DataLoader(torch.arange(4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspect.getmodule(CatalogueEvaluationCallback), "_FEW_USERS", 0)
        run.fit(make_embedding_module(pl), data, data)
    return logged(run), sum(scored)


def test_catalogue_over_processes(processes):
    """The users are split over processes, and every process logs the values of a single one."""
    one, scored = processes.run(shared_catalogue, 1)[0]
    assert one["val/num_users"] == scored < USERS
    expected = {key: pytest.approx(value, abs=1e-12) for key, value in one.items()}
    shares = processes.run(shared_catalogue, 2)
    assert [values for values, _ in shares] == [expected, expected]
    assert sum(share for _, share in shares) == scored > max(share for _, share in shares)


def make_normalising_module(pl, embed):
    """Make a module with batch normalisation, whose running statistics depend on what each process has seen."""

    class Normalising(pl.LightningModule):
        def __init__(self):
            super().__init__()
            generator = torch.Generator().manual_seed(7)
            self.users = nn.Parameter(torch.randn(USERS, 8, generator=generator))
            self.items = nn.Parameter(torch.randn(ITEMS, 8, generator=generator))
            self.norm = nn.BatchNorm1d(8)
            self.register_buffer("none", torch.zeros(0, 2, dtype=torch.bool))
            self.embed = embed

        def training_step(self, batch, batch_idx):
            seen = torch.randn(4, 8, generator=torch.Generator().manual_seed(int(batch.sum())))
            return self.norm(seen).sum() * 0 + (self.users.sum() + self.items.sum()) * 0

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Normalising()


def normalised(rank, world_size, functions):
    """Return what is logged, and the state dict of this process afterwards."""
    valid, _, train = catalogue()

    def embed(module):
        users = module.norm(module.users)
        return (lambda ids: users[ids] @ module.items.T, None) if functions else (users, module.items)

    callback = CatalogueEvaluationCallback(NAMES, k=KS, embed=embed, target=valid, exclude=train)
    pl, run = distributed_trainer(world_size, callback)
    module = make_normalising_module(pl, embed)
    run.fit(module, DataLoader(torch.arange(8), batch_size=2))
    return logged(run), {key: value.numpy() for key, value in module.state_dict().items()}


@pytest.mark.parametrize("functions", [False, True])
def test_catalogue_evaluates_what_would_be_saved(functions, processes):
    """All processes evaluate with the running statistics of the first process, which are those of the checkpoint.

    Running statistics differ from one process to the next.
    """
    (logged_first, saved), (logged_second, other) = processes.run(normalised, 2, functions)
    assert abs(saved["norm.running_mean"] - other["norm.running_mean"]).max() > 1e-3  # each process has its own again
    module = make_normalising_module(pytest.importorskip("pytorch_lightning"), None).eval()
    module.load_state_dict({key: torch.from_numpy(value) for key, value in saved.items()})
    valid, _, train = catalogue()
    with torch.no_grad():
        users = module.norm(module.users)
    result = trm.evaluate(NAMES, users, module.items.detach(), target=valid, exclude=train, k=KS)
    assert logged_first == logged_second == {f"val/{key}": value for key, value in near(result).items()}


def failures_of_one_process(rank, world_size):
    """Return the error or None of this process for each `embed` that fails or differs on the second process."""

    def fails(module):
        return {}["users"] if rank else (module.users, module.items)

    def scores_fail(module):
        def scores(ids):
            return 1 / 0 if rank else module.users[ids] @ module.items.T

        return scores, None

    def differs(module):
        return module.users + 0.01 * rank, module.items

    def shares(module):
        return (module.users[rank::2] if rank else module.users), module.items

    def rounds(module):
        return module.users * (1 + 1e-6 * rank), module.items

    def scores_of(shift, far=0.0):
        def scores(module):
            def score(ids):
                found = module.users[ids] @ module.items.T
                found[:, ::3] = -torch.inf
                found[:, 1::7] = -1e9  # masked scores must not hide differences of the others
                return found + shift * rank + (found < -1e8) * far * rank

            return score, None

        return scores

    def scores_narrow(module):
        return (lambda ids: module.users[ids] @ module.items[: ITEMS - rank].T), None

    valid, _, _ = catalogue()
    told = []
    functions = scores_of(0.01), scores_narrow, scores_of(1e-6, far=1.0)
    for embed in (fails, scores_fail, differs, shares, rounds, *functions):
        callback = CatalogueEvaluationCallback("HR", k=1, embed=embed, target=valid)
        pl, run = distributed_trainer(world_size, callback)
        module = make_normalising_module(pl, embed)
        module.validation_step = lambda batch, batch_idx: None
        begun = time.monotonic()
        try:
            run.validate(module, DataLoader(torch.arange(4)), verbose=False)
            told.append(None)
        except Exception as error:
            told.append((type(error).__name__, str(error)))
        assert time.monotonic() - begun < 20
    return told


def test_catalogue_errors_of_one_process_raise_in_all(processes):
    """An error of one process raises on all, and embeddings that differ beyond rounding between them are refused."""
    first, second = processes.run(failures_of_one_process, 2)
    assert (first[0][1], second[0][0]) == ("process 1 failed with KeyError: 'users'", "KeyError")
    assert first[1][1] == "process 1 failed with ZeroDivisionError: division by zero"
    assert second[1] == ("ZeroDivisionError", "division by zero")
    assert first[2:] == second[2:]
    assert "processes 0 and 1 have other users: embed returns the same on every process" in first[2][1]
    assert (
        "other users (a torch.float32 tensor of shape [30, 8], a torch.float32 tensor of shape [15, 8])" in first[3][1]
    )
    assert first[4] is None
    assert "processes 0 and 1 have other scores: embed returns the same on every process" in first[5][1]
    assert f"other scores (a torch.float32 tensor of shape [21, {ITEMS}], a" in first[6][1]
    assert first[7] is None


@both_packages
def test_a_catalogue_has_groups(pl, tmp_path):
    """Metrics of lists take the history from the catalogue's interactions; values are those of `evaluate`."""
    valid, _, train = catalogue()
    generator = torch.Generator().manual_seed(1)
    users, items = torch.randn(USERS, 4, generator=generator), torch.randn(ITEMS, 4, generator=generator)
    options = {
        "k": [5],
        "catalogue": trm.Catalogue.from_interactions(train),
        "groups": trm.Groups(GROUP_CODES, ["a", "b"]),
    }
    metrics = ["NDCG", "Coverage", "PopularityLift"]
    callback = CatalogueEvaluationCallback(
        metrics, embed=lambda module: (users, items), target=valid, exclude=train, **options
    )
    running = trainer(pl, tmp_path, callback)
    running.validate(make_module(pl), loader(samples(4)), verbose=False)
    found = trm.evaluate(metrics, users, items, target=valid, exclude=train, **options)
    wanted = {f"val/{key}": value.item() for key, value in found.items()}
    assert logged(running) == pytest.approx(wanted, abs=1e-6)
    assert set(callback.results["val"].groups.to_dict()["group"]) == {"a", "b"}
