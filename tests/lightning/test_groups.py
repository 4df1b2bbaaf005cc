"""Groups and list metrics in Lightning: values of groups are logged, and each sample counts once."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from trainers import (
    ITEMS,
    PACKAGES,
    QUIET,
    USERS,
    both_packages,
    catalogue,
    distributed_trainer,
    loader,
    logged,
    make_module,
    samples,
    trainer,
)

import torchrecmetrics as trm
from torchrecmetrics.lightning import CatalogueEvaluationCallback, RecMetricsCallback

pytestmark = QUIET

CODES = torch.tensor([0, 1, -1] * 10)
GROUPS = trm.Groups(CODES, ["a", "b"])
ITEMS_OF = trm.Catalogue(ITEMS, popularity=torch.arange(ITEMS) % 7, num_users=20)


def step(scores, target, users):
    return {"scores": scores, "target": target, "user_ids": users, "groups": CODES[users]}


def expected(data, metrics=("HR", "NDCG"), **options):
    collection = trm.RecMetricCollection(metrics, k=[5], prefix="val/", accumulators=[trm.ByGroup("a", "b")], **options)
    scores, target = torch.stack([s for s, _, _ in data]), torch.stack([t for _, t, _ in data])
    collection.update(scores, target, groups=CODES[: len(data)])
    return pytest.approx({key: value.item() for key, value in collection.compute().items()}, abs=1e-6)


@both_packages
def test_log_dict_logs_children(pl, tmp_path):
    """A collection that a module logs itself also logs its groups, which can be monitored and are reset with it."""

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))
            self.metrics = trm.RecMetricCollection(
                ["HR", "NDCG"], k=[5], prefix="val/", accumulators=[trm.ByGroup("a", "b")]
            )

        def training_step(self, batch, batch_idx):
            return (self.weight * 0).sum()

        def validation_step(self, batch, batch_idx):
            scores, target, users = batch
            self.metrics.update(scores, target, groups=CODES[users])
            self.log_dict(self.metrics)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = samples(13)
    best = pl.callbacks.ModelCheckpoint(tmp_path, monitor="val/NDCG@5/b", mode="max")
    running = trainer(pl, tmp_path, best, enable_checkpointing=True)
    running.fit(Module(), loader(data), loader(data))
    assert logged(running) == expected(data)
    assert best.best_model_score.item() == pytest.approx(logged(running)["val/NDCG@5/b"])


@both_packages
@pytest.mark.parametrize(("groups", "dtype"), [(GROUPS, torch.int64), (GROUPS, torch.uint8), (["a", "b"], torch.int64)])
def test_steps_have_groups(pl, tmp_path, groups, dtype):
    """Groups are looked up by user ids of any integer dtype, or are returned by the step."""
    data = samples(13)
    callback = RecMetricsCallback(["HR", "NDCG"], k=[5], groups=groups, prog_bar="NDCG@5/b")
    running = trainer(pl, tmp_path, callback)
    module = make_module(pl, lambda s, t, u: {**step(s, t, u), "user_ids": u.to(dtype)})
    running.validate(module, loader(data), verbose=False)
    assert logged(running) == expected(data)
    assert callback.collections["val"].standard_errors()["HR@5/a"] > 0


def test_groups_are_matched_by_id(tmp_path):
    """The step's users are rows of the history; groups with users in another order are matched by id."""
    pl = pytest.importorskip(PACKAGES[0])
    data, names = samples(13), [f"u{user}" for user in range(USERS)]
    history = trm.Interactions.from_columns(
        users=torch.tensor([0]), items=torch.tensor([0]), num_users=USERS, num_items=ITEMS
    ).with_ids(user_ids=names, item_ids=torch.arange(ITEMS))
    order = torch.randperm(USERS, generator=torch.Generator().manual_seed(1))
    groups = trm.Groups(CODES[order], ["a", "b"], user_ids=[names[user] for user in order])
    callback = RecMetricsCallback(["HR", "NDCG"], k=[5], groups=groups, exclude=history, overlap="keep")
    running = trainer(pl, tmp_path, callback)
    running.validate(make_module(pl, step), loader(data), verbose=False)
    collection = trm.RecMetricCollection(
        ["HR", "NDCG"], k=[5], prefix="val/", accumulators=[trm.ByGroup("a", "b")], overlap="keep"
    )
    scores, target = torch.stack([s for s, _, _ in data]), torch.stack([t for _, t, _ in data])
    collection.update(scores, target, exclude=history.select(torch.arange(13)), groups=CODES[:13])
    assert logged(running) == pytest.approx({key: v.item() for key, v in collection.compute().items()}, abs=1e-6)


@pytest.mark.parametrize("rows_of", ["exclude", "groups"])
def test_history_is_matched_by_id(tmp_path, rows_of):
    """The catalogue's train may have its users in another order, because it is matched by id.

    The step's users are rows of `exclude`, or else of the groups.
    """
    pl = pytest.importorskip(PACKAGES[0])
    data, names = samples(13), [f"u{user}" for user in range(USERS)]
    test, _, train = (part.with_ids(user_ids=names, item_ids=torch.arange(ITEMS)) for part in catalogue())
    order = torch.randperm(USERS, generator=torch.Generator().manual_seed(1))
    known = trm.Catalogue.from_interactions(train.recode(user_ids=[names[user] for user in order]))
    options = {"k": [5], "catalogue": known, "overlap": "keep"}
    options |= {"exclude": test} if rows_of == "exclude" else {"groups": trm.Groups(CODES, ["a", "b"], user_ids=names)}
    running = trainer(pl, tmp_path, RecMetricsCallback(["Seen", "PopularityLift"], **options))
    running.validate(make_module(pl, step), loader(data), verbose=False)

    scores, target = torch.stack([s for s, _, _ in data]), torch.stack([t for _, t, _ in data])
    users = torch.arange(13).repeat_interleave(2)
    truth = trm.Interactions.from_columns(users=users, items=target.flatten(), num_users=USERS, num_items=ITEMS)
    truth = truth.with_ids(user_ids=names, item_ids=torch.arange(ITEMS))
    found = trm.evaluate(["Seen", "PopularityLift"], lambda ids: scores[ids], target=truth, **options)
    assert found["Seen@5"] > 0
    assert logged(running) == pytest.approx({f"val/{key}": value.item() for key, value in found.items()}, abs=1e-6)


@pytest.mark.parametrize(
    ("of_train", "of_exclude", "message"),
    [
        ({}, {"user_ids": range(USERS)}, "exclude has user_ids, the catalogue's train has none: row 5 could mean two"),
        ({"item_ids": range(ITEMS)}, {}, "the catalogue's train has item_ids, exclude has none: row 5 could mean two"),
        (
            {"item_ids": range(ITEMS)},
            {"item_ids": range(1, ITEMS + 1)},
            r"the catalogue has item_ids, exclude has others: .*recode\(item_ids=exclude.item_ids\)",
        ),
    ],
)
def test_history_that_cannot_be_matched(tmp_path, of_train, of_exclude, message):
    pl = pytest.importorskip(PACKAGES[0])
    train, exclude, _ = catalogue()
    known = trm.Catalogue.from_interactions(train.with_ids(**of_train))
    callback = RecMetricsCallback("Seen", k=[5], catalogue=known, exclude=exclude.with_ids(**of_exclude))
    with pytest.raises(ValueError, match=message):
        trainer(pl, tmp_path, callback).validate(make_module(pl, step), loader(samples(9)), verbose=False)


@pytest.mark.parametrize("train_has_ids", [False, True])
def test_history_of_other_users_than_groups(tmp_path, train_has_ids):
    """If only the history or only the groups have user ids, an error is raised, as in `evaluate`."""
    pl = pytest.importorskip(PACKAGES[0])
    train, names = catalogue()[0], [f"u{user}" for user in range(USERS)]
    known = trm.Catalogue.from_interactions(train.with_ids(user_ids=names) if train_has_ids else train)
    groups = trm.Groups(CODES, ["a", "b"], user_ids=None if train_has_ids else names)
    callback = RecMetricsCallback("Seen", k=[5], catalogue=known, groups=groups)
    with pytest.raises(ValueError, match=r"user_ids, (the catalogue's train|groups=) none: row 5 could mean two users"):
        trainer(pl, tmp_path, callback).validate(make_module(pl, step), loader(samples(9)), verbose=False)


@pytest.mark.parametrize(
    ("groups", "returned", "message"),
    [
        (GROUPS, lambda s, t, u: {"scores": s, "target": t}, "'user_ids' too, for groups="),
        (["a"], lambda s, t, u: {"scores": s, "target": t}, "'groups' too, for groups="),
        (
            GROUPS,
            lambda s, t, u: {"scores": s, "target": t, "user_ids": u + 28},
            "'user_ids' hold 28..31, groups= has 30",
        ),
        (["a"], step, "whose group is none of those"),
    ],
)
def test_steps_that_do_not_fit(tmp_path, groups, returned, message):
    pl = pytest.importorskip(PACKAGES[0])
    running = trainer(pl, tmp_path, RecMetricsCallback("HR", k=[5], groups=groups))
    with pytest.raises(ValueError, match=message):
        running.validate(make_module(pl, returned), loader(samples(9)), verbose=False)


def every_sample_once(rank, world_size):
    """Return the values if each process reads all samples: groups and histograms count each sample once."""
    data = samples(13)
    metrics = ["HR", "NDCG", "Coverage", "Novelty"]
    callback = RecMetricsCallback(
        metrics, k=[5], groups=["a", "b"], sample_ids="user_ids", catalogue=ITEMS_OF, keep_rows=True
    )
    pl, running = distributed_trainer(world_size, callback, use_distributed_sampler=False)
    running.validate(make_module(pl, step), DataLoader(data, batch_size=4), verbose=False)
    return logged(running)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using `DistributedSampler`")
def test_every_sample_counts_once(processes):
    wanted = expected(samples(13), ["HR", "NDCG", "Coverage", "Novelty"], catalogue=ITEMS_OF)
    for world_size in (1, 2):
        for found in processes.run(every_sample_once, world_size):
            assert found == wanted


@both_packages
def test_a_catalogue_has_groups(pl, tmp_path):
    """Metrics of lists take the history from the catalogue's interactions; values are those of `evaluate`."""
    valid, _, train = catalogue()
    generator = torch.Generator().manual_seed(1)
    users, items = torch.randn(USERS, 4, generator=generator), torch.randn(ITEMS, 4, generator=generator)
    options = {
        "k": [5],
        "catalogue": trm.Catalogue.from_interactions(train),
        "groups": GROUPS,
        "all_users": True,
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


def test_steps_find_the_history(tmp_path):
    """Metrics that read a history take it from the catalogue, by the step's users, or from the step."""
    pl = pytest.importorskip(PACKAGES[0])
    _, _, train = catalogue()
    data = samples(13)
    known = trm.Catalogue.from_interactions(train)
    running = trainer(pl, tmp_path, RecMetricsCallback("Seen", k=[5], catalogue=known))
    running.validate(make_module(pl, step), loader(data), verbose=False)
    metric = trm.Seen(5)
    history = train.select(torch.arange(13))
    metric.update(trm.Scores(torch.stack([s for s, _, _ in data]), history=history))
    assert logged(running) == {"val/Seen@5": pytest.approx(metric.compute().item(), abs=1e-6)}
    own = lambda s, t, u: {"scores": s, "target": t, "history": history.items[u]}  # noqa: E731
    running = trainer(pl, tmp_path, RecMetricsCallback("Seen", k=[5], catalogue=known))
    running.validate(make_module(pl, own), loader(data), verbose=False)
    assert logged(running) == {"val/Seen@5": pytest.approx(metric.compute().item(), abs=1e-6)}
