"""Sessions in RecMetricsCallback, whole in a batch, whose number two processes do not divide."""

import pytest
import torch
from torch.utils.data import DataLoader
from trainers import QUIET, distributed_trainer, logged, make_module
from values import near

import torchrecmetrics as trm
from torchrecmetrics.lightning import RecMetricsCallback

pytestmark = QUIET
NAMES = ["AUROC", "NDCG", "MRR"]


def sessions():
    """Return scores and labels of each of 29 sessions."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(29, (101,), generator=generator)
    scores, labels = torch.rand(101, generator=generator), torch.rand(101, generator=generator) < 0.3
    return [(scores[ids == session], labels[ids == session]) for session in range(29)]


def collate(batch):
    scores, labels = (torch.cat(column) for column in zip(*batch, strict=True))
    return scores, labels, torch.tensor([len(rows) for rows, _ in batch])


def values(rank, world_size):
    """Return what is logged; the processes share the sessions, and the sampler repeats one."""
    callback = RecMetricsCallback(NAMES, k=3)
    pl, run = distributed_trainer(world_size, callback)
    module = make_module(pl, lambda scores, labels, lengths: {"input": trm.Sessions(scores, labels, lengths=lengths)})
    run.validate(module, DataLoader(sessions(), batch_size=7, collate_fn=collate), verbose=False)
    return logged(run)


@pytest.mark.parametrize("world_size", [1, 2])
def test_whole_sessions(world_size, processes):
    """A sample may be a whole session, if `lengths` says how many rows each session has."""
    metrics = trm.RecMetricCollection(NAMES, k=3, prefix="val/")
    scores, labels, lengths = collate(sessions())
    metrics.update(trm.Sessions(scores, labels, lengths=lengths))
    assert processes.run(values, world_size) == [near(metrics.compute())] * world_size
