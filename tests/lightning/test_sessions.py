"""Entries of sessions in RecMetricsCallback: rows in any order, several processes, whole sessions."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from trainers import QUIET, distributed_trainer, logged, make_module, trainer
from values import near

import torchrecmetrics as trm
from torchrecmetrics.lightning import RecMetricsCallback

pytestmark = QUIET
NAMES = ["AUROC", "NDCG", "MRR"]


def flat(num_rows=101):
    """Return scores, labels and session ids of rows, whose number two processes do not divide."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(30, (num_rows,), generator=generator) * 10**12
    return torch.rand(num_rows, generator=generator), torch.rand(num_rows, generator=generator) < 0.3, ids


def expected():
    metrics = trm.RecMetricCollection(NAMES, k=3, prefix="val/")
    scores, labels, ids = flat()
    metrics.update(trm.Sessions(scores, labels, ids))
    return near(metrics.compute())


def step(scores, labels, ids):
    return {"scores": scores, "target": labels, "indexes": ids}


def test_rows_in_any_order(tmp_path):
    """Rows of one session in several batches count as one session."""
    import pytorch_lightning as pl

    callback = RecMetricsCallback(NAMES, k=3, keep_rows=True)
    run = trainer(pl, tmp_path, callback)
    order = torch.randperm(101, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(*(column[order] for column in flat()))
    run.validate(make_module(pl, step), DataLoader(data, batch_size=16), verbose=False)
    assert logged(run) == expected()
    assert sorted(callback.collections["val"].rows.ids.tolist()) == flat()[2].unique().tolist()


def values(rank, world_size):
    callback = RecMetricsCallback(NAMES, k=3)
    pl, run = distributed_trainer(world_size, callback)
    run.validate(make_module(pl, step), DataLoader(TensorDataset(*flat()), batch_size=16), verbose=False)
    return logged(run)


def test_processes(processes):
    """A row that the sampler gives twice, so that all processes have equally many, counts once."""
    assert processes.run(values, 2) == [expected()] * 2


class FirstProcessAlone(torch.utils.data.IterableDataset):
    """Entries that the first process reads alone."""

    def __iter__(self):
        return iter([] if torch.distributed.get_rank() else list(zip(*flat(), strict=True)))


def values_of_one_process(rank, world_size):
    """Return the values, and those that are kept, where one process has no batch."""
    callback = RecMetricsCallback(NAMES, k=3, keep_rows=True)
    pl, run = distributed_trainer(world_size, callback)
    run.validate(make_module(pl, step), DataLoader(FirstProcessAlone(), batch_size=16), verbose=False)
    rows = callback.collections["val"].rows
    return logged(run), sorted(rows.ids.tolist()), callback.collections["val"]["MRR@3"].num_users


def test_a_process_without_a_batch(processes):
    """A process without entries takes part in putting sessions together, and has the same values and rows."""
    _, labels, ids = flat()
    number = sum(bool(labels[ids == session].any()) for session in ids.unique())
    assert processes.run(values_of_one_process, 2) == [(expected(), ids.unique().tolist(), number)] * 2


def failing(rank, world_size, mixed):
    """Return the error of a run whose first process alone returns something else than entries."""

    def other(scores, labels, ids):
        return {"ranks": torch.ones(len(ids), dtype=torch.int64)} if mixed else {"scores": scores}

    pl, run = distributed_trainer(world_size, RecMetricsCallback(["NDCG", "MRR"], k=3))
    data = DataLoader(TensorDataset(*flat(100)), batch_size=16)
    with pytest.raises(ValueError, match="RecMetricsCallback, loader 'val'") as error:
        run.validate(make_module(pl, step if rank else other), data, verbose=False)
    return str(error.value)


@pytest.mark.parametrize("mixed", [True, False])
def test_processes_that_do_not_agree(mixed, processes):
    """Other rows beside entries, and an error of one process, raise on all processes."""
    one, other = processes.run(failing, 2, mixed)
    if mixed:
        assert one == other
        assert "50 entries of sessions ('indexes') came beside 50 rows" in one
    else:
        assert "batch 0: validation_step must return a mapping" in one
        assert "1 row in place of a batch that another process could not use" in other


def test_whole_sessions(tmp_path):
    """A sample may be a whole session, if `lengths` says how many rows each session has."""
    import pytorch_lightning as pl

    scores, labels, ids = flat()
    sessions = [(scores[ids == one], labels[ids == one]) for one in ids.unique()]

    def collate(batch):
        lengths = torch.tensor([len(rows) for rows, _ in batch])
        return torch.cat([rows for rows, _ in batch]), torch.cat([marks for _, marks in batch]), lengths

    callback = RecMetricsCallback(NAMES, k=3)
    run = trainer(pl, tmp_path, callback)
    module = make_module(pl, lambda scores, labels, lengths: {"input": trm.Sessions(scores, labels, lengths=lengths)})
    run.validate(module, DataLoader(sessions, batch_size=7, collate_fn=collate), verbose=False)
    assert logged(run) == expected()


HISTORY = trm.Interactions.from_columns([0], [0], num_users=30, num_items=9)


@pytest.mark.parametrize("option", [{"sample_ids": "indexes"}, {"exclude": HISTORY}])
def test_what_entries_do_not_take(option, tmp_path):
    """`sample_ids` and `exclude` belong to rows of the whole catalogue, and are refused with entries of sessions."""
    import pytorch_lightning as pl

    def step(scores, labels, ids):
        return {"scores": scores, "target": labels, "indexes": ids, "user_ids": ids * 0}

    run = trainer(pl, tmp_path, RecMetricsCallback(NAMES, k=3, **option))
    with pytest.raises(ValueError, match=f"{next(iter(option))}= is not for entries of sessions"):
        run.validate(make_module(pl, step), DataLoader(TensorDataset(*flat()), batch_size=16), verbose=False)
