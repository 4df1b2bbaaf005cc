"""The processes that tests share: no state stays from one call to the next, and no call waits for ever."""

import os
import random
import time
import warnings

import distributed
import pytest
import torch

import torchrecmetrics as trm


def found(rank, world_size):
    """Return the seeds and settings that a call finds, and change them."""
    group = torch.distributed.get_rank(), torch.distributed.get_world_size()
    seeds = torch.rand(()).item(), random.random()
    rest = os.environ.get("FOUND"), len(warnings.filters), torch.get_num_threads()
    os.environ["FOUND"] = "yes"
    warnings.simplefilter("error")
    torch.set_num_threads(2)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return os.getpid(), group, seeds, rest


def failing(rank, world_size):
    if rank == 1:
        raise OSError("on purpose")
    torch.distributed.barrier()


def dying(rank, world_size):
    os._exit(1)


def hanging(rank, world_size):
    time.sleep(60)


def test_calls_share_processes_and_nothing_else(processes):
    """Seeds, the environment, filters of warnings and the group are those of a new process in every call."""
    one = processes.run(found, 1)
    assert processes.run(found, 1) == one
    two = processes.run(found, 2)
    assert two[0][0] == one[0][0] != two[1][0]
    assert [group for _, group, _, _ in two] == [(0, 2), (1, 2)]
    assert [rest[2:] for rest in two] == [one[0][2:]] * 2


@pytest.mark.slow
@pytest.mark.nightly
def test_a_call_that_fails_ends_the_processes():
    """A call that fails, hangs or dies raises an error that names the process, and the next call has new processes."""
    own = distributed.Processes()
    with pytest.raises(RuntimeError, match=r"failing on 2 processes failed in process 1\n(.|\n)*OSError: on purpose"):
        own.run(failing, 2)
    (before,) = own.run(found, 1)
    with pytest.raises(TimeoutError, match=r"hanging on 1 processes took more than 1 s\n(.|\n)*in hanging"):
        own.run(hanging, 1, timeout=1)
    (after,) = own.run(found, 1)
    assert before[0] != after[0]
    assert before[1:] == after[1:]
    with pytest.raises(RuntimeError, match=r"dying on 1 processes failed in process 0\nit has died"):
        own.run(dying, 1)


def saved_by_torch(rank, world_size, folder, groups):
    """Return values and counts before saving, after loading as documented, after an update and after naive loading."""
    dcp = pytest.importorskip("torch.distributed.checkpoint")

    def new():
        metrics = trm.RecMetricCollection(["HR", "MRR"], k=2, accumulators=[trm.ByGroup(groups)] if groups else [])
        metrics.persistent(True)
        return metrics

    def load(name):
        metrics = new()
        state = metrics.state_dict()
        dcp.load(state, checkpoint_id=f"{folder}/{name}")
        metrics.load_state_dict(state)
        return metrics

    def found(metrics):
        values = {key: value.nan_to_num(-1).item() for key, value in metrics.compute().items()}
        return values, metrics["HR@2"].num_users

    ranks = torch.tensor([1, 1, 1] if rank == 0 else [9, 9])
    codes = {"groups": torch.full((len(ranks),), rank)} if groups else {}
    metrics = new()
    metrics.update(ranks, depth=10, **codes)
    before = found(metrics)
    metrics.evaluator.sync()
    dcp.save(metrics.state_dict(), checkpoint_id=f"{folder}/synced")
    metrics.evaluator.unsync()
    assert found(metrics) == before
    loaded = load("synced")
    if rank:
        loaded.reset()
    told = [before, found(loaded)]
    loaded.update(ranks, depth=10, **codes)
    told.append(found(loaded))
    dcp.save(metrics.state_dict(), checkpoint_id=f"{folder}/naive")
    return [*told, found(load("naive"))]


@pytest.mark.parametrize("groups", [None, ["first", "second"]], ids=["whole", "groups"])
def test_checkpoints_of_several_processes(groups, processes, tmp_path):
    """Sums of all processes that one process keeps after loading go on as before.

    If unsynchronised states are saved instead, both processes load that of one, which counts twice.
    """
    first, second = processes.run(saved_by_torch, 2, str(tmp_path), groups, timeout=60)
    assert first == second
    before, loaded, resumed, naive = first
    assert (before[0]["HR@2"], before[1]) == (pytest.approx(0.6), 5)
    assert loaded == before
    assert (resumed[0], resumed[1]) == (pytest.approx(before[0]), 10)
    assert naive[0]["HR@2"] in (0.0, 1.0)
    assert naive[1] in (4, 6)


def with_groups_and_counts():
    return trm.RecMetricCollection(
        ["HR", "MRR", "Coverage", "MedianRank"],
        k=2,
        catalogue=trm.Catalogue(6),
        accumulators=[trm.ByGroup("a", "b"), trm.Window(100), trm.KeptRows()],
    )


def forward_of_two_shards(rank, world_size):
    shards = torch.distributed.new_group([0, 1])
    scores = torch.arange(42, dtype=torch.float32).reshape(7, 6) * 5 % 17
    target, groups = torch.arange(7) % 6, torch.arange(7) % 3 - 1
    whole = with_groups_and_counts()(scores, target, groups=groups)
    if rank == 2:  # has all items, and communicates with no other process
        given = trm.Scores(scores, target)
    else:
        first, last = ((0, 4), (4, 6))[rank]
        given = trm.ItemShard(scores[:, first:last], target, first, 6, process_group=shards)
    batch = with_groups_and_counts()(given, groups=groups, row_ids=torch.arange(7))
    return tuple({key: value.item() for key, value in values.items()} for values in (batch, whole))


def test_forward_of_item_shards_in_a_process_group(processes):
    """`forward` of item shards gives the value of all rows on the processes of their group, and waits for no other."""
    for batch, whole in processes.run(forward_of_two_shards, 3):
        assert "HR@2/b" in whole
        assert batch == pytest.approx(whole, rel=1e-12)
