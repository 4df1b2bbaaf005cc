"""Data, modules and Trainers for tests of the Lightning callbacks, by each package of Lightning that is there."""

import importlib
import importlib.util
import os
import tempfile

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from values import near, numbers

import torchrecmetrics as trm

pytest.importorskip("pytorch_lightning")
PACKAGES = ["pytorch_lightning", *(["lightning.pytorch"] if importlib.util.find_spec("lightning") else [])]
for package in PACKAGES:
    importlib.import_module(package)  # the callbacks are those of the packages that are imported before them

both_packages = pytest.mark.parametrize("pl", PACKAGES, indirect=True)

QUIET = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*`isinstance.treespec, LeafSpec.`"),
    pytest.mark.filterwarnings("ignore:.*is smaller than the logging interval"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:You are trying to resume training from a checkpoint ended mid-epoch"),
]

USERS, ITEMS = 30, 40
NAMES, KS = ("HR", "NDCG", "MRR", "RPrecision"), (1, 10)


def samples(n, seed=0):
    """Return scores [I], two targets [2] and the number of each of n users."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(n, ITEMS, generator=generator)
    first = torch.randint(0, ITEMS, (n,), generator=generator)
    return [(s, torch.stack([t, (t + 7) % ITEMS]), u) for u, (s, t) in enumerate(zip(scores, first, strict=True))]


def columns(data):
    """Return the scores [n, I] and targets [n, 2] of samples."""
    return torch.stack([scores for scores, _, _ in data]), torch.stack([target for _, target, _ in data])


def loader(data, **options):
    return DataLoader(data, **({"batch_size": 4} | options))


class Optimised:
    """Mixin with an optimiser of all parameters."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def make_embedding_module(pl, validates=True, **methods):
    """Make a module whose user embeddings change sign every epoch; training changes no parameter."""

    class TwoTowers(Optimised, pl.LightningModule):
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

    if validates:
        TwoTowers.validation_step = lambda self, batch, batch_idx: None
    for name, method in methods.items():
        setattr(TwoTowers, name, method)
    return TwoTowers()


def make_module(pl, step=None, **methods):
    """Make a module whose scores change sign every epoch, so that values differ from one epoch to the next."""

    class Recommender(Optimised, pl.LightningModule):
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

    for name, method in methods.items():
        setattr(Recommender, name, method)
    return Recommender()


def trainer(pl, *callbacks, **options):
    """Make a Trainer that writes no file unless a callback or logger does."""
    keeps = any(isinstance(callback, pl.callbacks.Checkpoint) for callback in callbacks)
    defaults = {"max_epochs": 2, "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    defaults |= {"accelerator": "cpu", "default_root_dir": tempfile.gettempdir(), "enable_checkpointing": keeps}
    return pl.Trainer(callbacks=list(callbacks), **(defaults | options))


def distributed_trainer(world_size, *callbacks, **options):
    """Make a Trainer in a process whose process group is initialised already."""
    rank = torch.distributed.get_rank()
    os.environ |= {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    pl = importlib.import_module(PACKAGES[0])
    return pl, trainer(pl, *callbacks, **({"devices": world_size, "strategy": "ddp"} | options))


def validated(pl, callback, loaders, step=None):
    """Return what a validation with this callback logs."""
    run = trainer(pl, callback)
    run.validate(make_module(pl, step), loaders, verbose=False)
    return logged(run)


def by_hand(data, prefix="", *, sign=1, names=NAMES, k=KS, tolerance=1e-12, postfix="", **options):
    """Return all values, computed in one update without Lightning."""
    collection = trm.RecMetricCollection(names, k=k, prefix=prefix, postfix=postfix)
    scores, target = columns(data)
    collection.update(scores * sign, target, **options)
    return near(collection.compute(), tolerance)


def logged(trainer):
    return numbers(trainer.callback_metrics)


def catalogue():
    """Return random disjoint interactions for validation, test and training; some users have none."""
    generator = torch.Generator().manual_seed(5)
    cells = torch.randperm(USERS * ITEMS, generator=generator)[:180]
    edges = torch.stack([cells // ITEMS, cells % ITEMS])
    parts = [edges[:, :40], edges[:, 40:90], edges[:, 90:]]
    return [trm.Interactions.from_edge_index(part, USERS, ITEMS) for part in parts]
