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
def test_steps_have_groups(pl, tmp_path):
    """Values of groups are logged, whose numbers a step returns."""
    data = samples(13)
    callback = RecMetricsCallback(["HR", "NDCG"], k=[5], accumulators=[trm.ByGroup("a", "b")], prog_bar="NDCG@5/b")
    running = trainer(pl, tmp_path, callback)
    running.validate(make_module(pl, step), loader(data), verbose=False)
    assert logged(running) == expected(data)
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


def every_sample_once(rank, world_size):
    """Return the values if each process reads all samples: groups and histograms count each sample once."""
    data = samples(13)
    metrics = ["HR", "NDCG", "Coverage", "Novelty"]
    callback = RecMetricsCallback(
        metrics,
        k=[5],
        accumulators=[trm.ByGroup("a", "b"), trm.KeptRows()],
        sample_ids="user_ids",
        catalogue=ITEMS_OF,
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
        running.validate(make_module(pl, step), loader(data), verbose=False)
