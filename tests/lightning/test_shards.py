"""Scores of item shards in RecMetricsCallback: every process has the values of one process with all items."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from trainers import QUIET, distributed_trainer, logged, make_module
from values import near

import torchrecmetrics as trm
from torchrecmetrics.lightning import RecMetricsCallback

pytestmark = QUIET
ROWS, ITEMS, NAMES = 21, 10, ["HR", "NDCG", "AUROC"]


def data():
    generator = torch.Generator().manual_seed(0)
    history = trm.Interactions.from_dense(torch.rand(ROWS, ITEMS, generator=generator) < 0.2)
    scores = torch.randint(5, (ROWS, ITEMS), generator=generator).float()
    return scores, torch.randint(ITEMS, (ROWS,), generator=generator), torch.arange(ROWS), history


def callback(history):
    accumulators = [trm.ByGroup("even", "odd")]
    return RecMetricsCallback(NAMES, k=3, exclude=history, overlap="miss", accumulators=accumulators)


def values(rank, world_size, sampler):
    scores, target, users, history = data()
    mine = slice(4 * rank, 4 if rank == 0 else ITEMS)
    pl, run = distributed_trainer(world_size, callback(history), use_distributed_sampler=sampler)

    def step(scores, target, users):
        shard = trm.ItemShard(scores[:, mine], target, offset=mine.start, num_items=ITEMS)
        return {"input": shard, "user_ids": users, "groups": users % 2}

    loader = DataLoader(TensorDataset(scores, target, users), batch_size=8)
    if sampler:
        with pytest.raises(ValueError, match="processes differ in targets"):
            run.validate(make_module(pl, step), loader, verbose=False)
        return None
    run.validate(make_module(pl, step), loader, verbose=False)
    return logged(run)


def test_values(processes):
    """Values, with groups and items that the callback excludes, are those of one process, not summed over processes."""
    scores, target, _, history = data()
    metrics = trm.RecMetricCollection(
        NAMES, k=3, prefix="val/", overlap="miss", accumulators=[trm.ByGroup("even", "odd")]
    )
    for rows in torch.arange(ROWS).split(8):
        metrics.update(scores[rows], target[rows], exclude=history.select(rows).items, groups=rows % 2)
    assert processes.run(values, 2, False) == [near(metrics.compute())] * 2


def test_a_sampler_that_shares_rows(processes):
    """Rows that a distributed sampler splits between processes are refused as rows of item shards."""
    assert processes.run(values, 2, True) == [None, None]
