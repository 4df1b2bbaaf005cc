"""Samples that several processes share or repeat: values are those of one process, or a warning is given."""

import importlib
import warnings

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from trainers import (
    ITEMS,
    KS,
    NAMES,
    QUIET,
    distributed_trainer,
    group_step,
    groups_by_hand,
    loader,
    logged,
    make_module,
    samples,
    trainer,
)
from values import near

import torchrecmetrics as trm
from torchrecmetrics.lightning import RecMetricsCallback

pytestmark = QUIET


class EveryoneReadsAll(torch.utils.data.Sampler):
    """A custom sampler that every process reads whole, in an order of that process."""

    def __init__(self, data):
        self.order = torch.randperm(len(data)).tolist()

    def __iter__(self):
        return iter(self.order)

    def __len__(self):
        return len(self.order)


class Backwards(torch.utils.data.DistributedSampler):
    """A custom sampler that is derived from torch's DistributedSampler."""

    def __iter__(self):
        return reversed(list(super().__iter__()))


class Stream(torch.utils.data.IterableDataset):
    """A data set that processes share so that some samples are read by two of them."""

    def __init__(self, data):
        self.data = data

    def __iter__(self):
        rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        return iter(self.data[max(0, rank - 1) :: max(1, world_size - 1)])


def values_for_every_remainder(rank, world_size, way):
    """Return {number of samples: (logged values, standard error of HR@1, warnings)}."""
    results = {}
    for n in (1, 2, 3, 4, 5, 6, 7, 11, 12, 13):
        data, options, flags = samples(n), {}, {}
        batches = loader(data)
        if way == "shuffle":
            torch.manual_seed(rank)
            batches = loader(data, sampler=torch.utils.data.DistributedSampler(data, shuffle=True, seed=3))
        elif way == "own sampler":
            # the seed differs by process only for a sampler that Lightning does not split
            torch.manual_seed(3)
            batches = loader(data, sampler=EveryoneReadsAll(data))
        elif way == "samples are batches":
            batches = DataLoader(
                [tuple(part[None] if torch.is_tensor(part) else torch.tensor([part]) for part in s) for s in data],
                batch_size=None,
            )
        elif way == "sample_ids, own sampler":
            torch.manual_seed(rank)
            batches, flags = loader(data, sampler=EveryoneReadsAll(data)), {"use_distributed_sampler": False}
            options = {"sample_ids": "index"}
        elif way == "sample_ids, stream":
            batches, options = DataLoader(Stream(data), batch_size=4), {"sample_ids": lambda returned, batch: batch[2]}
        elif way == "sample_ids, repeats":
            options = {"sample_ids": lambda returned, batch: batch[2].int()}
        callback = RecMetricsCallback([*NAMES, "AUROC", trm.AUROC(weight="relevant")], k=KS, log_counts=True, **options)
        pl, run = distributed_trainer(world_size, callback, **flags)
        step = lambda scores, target, users: {  # noqa: E731
            "scores": scores,
            "target": target.where(users[:, None] % 5 < 4, -1),
            "index": users,
            "weights": users + 1,
        }
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run.validate(make_module(pl, step), batches, verbose=False)
        told = [str(w.message) for w in caught if "sync_dist" in str(w.message) or "RecMetrics" in str(w.message)]
        results[n] = logged(run), callback.collections["val"]["HR@1"].standard_error().item(), told
    return results


WAYS = [
    "in order",
    "shuffle",
    "own sampler",
    "samples are batches",
    "sample_ids, own sampler",
    "sample_ids, stream",
    "sample_ids, repeats",
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "world_size", [pytest.param(1, marks=pytest.mark.nightly), 2, pytest.param(3, marks=pytest.mark.nightly)]
)
def test_values_do_not_depend_on_the_number_of_processes(world_size, processes):
    """Values, counts and errors are those of one process for every remainder and for fewer samples than processes."""
    found = {way: processes.run(values_for_every_remainder, world_size, way) for way in WAYS}
    for n in found["in order"][0]:
        data = samples(n)
        single = trm.RecMetricCollection([*NAMES, "AUROC", trm.AUROC(weight="relevant")], k=KS, prefix="val/")
        targets = [t if u % 5 < 4 else torch.full_like(t, -1) for _, t, u in data]
        weights = torch.arange(n) + 1
        single.update(torch.stack([s for s, _, _ in data]), torch.stack(targets), weights=weights)
        expected = near(single.compute())
        for count in ("num_users", "num_skipped", "num_unreachable", "num_tied"):
            expected[f"val/{count}"] = getattr(single["HR@1"], count)
        error = pytest.approx(single["HR@1"].standard_error().item(), abs=1e-12, nan_ok=True)
        for way, everybody in found.items():
            for process in everybody:
                values, own_error, told = process[n]
                assert (values, own_error) == (expected, error), (n, way)
                assert not told or (way == "own sampler" and "unless all are seeded alike" in told[0]), (n, way)


def rows_of_a_loader(rank, world_size, by):
    """Return the kept rows of seven samples; with `sample_ids` the samples are of three users."""
    options = {"sample_ids": "index"} if by == "sample_ids" else {}
    callback = RecMetricsCallback("NDCG", k=10, accumulators=[trm.KeptRows()], **options)
    pl, run = distributed_trainer(world_size, callback)
    step = lambda scores, target, users: {  # noqa: E731
        "scores": scores,
        "target": target,
        "index": users,
        "user_ids": users // 3 if by == "sample_ids" else users,
    }
    run.validate(make_module(pl, step), loader(samples(7)), verbose=False)
    rows = callback.collections["val"].rows
    order = rows.ids.argsort()
    clusters = None if rows.clusters is None else rows.clusters[order].tolist()
    return rows.ids[order].tolist(), rows.values["NDCG@10"][order].tolist(), clusters, rows.weights


@pytest.mark.parametrize("by", ["sample_ids", "user_ids"])
def test_rows_do_not_depend_on_the_number_of_processes(by, processes):
    """Each sample is kept once, though the sampler repeats one; with both kinds of ids, users are the clusters."""
    data = samples(7)
    ranking = trm.Scores(torch.stack([s for s, _, _ in data]), torch.stack([t for _, t, _ in data])).ranking()
    expected = trm.functional.ndcg(ranking, 10).tolist()
    for world_size in (1, 2, 3):
        for ids, values, clusters, weights in processes.run(rows_of_a_loader, world_size, by):
            assert (ids, values, weights) == (list(range(7)), expected, None)
            assert clusters == ([0, 0, 0, 1, 1, 1, 2] if by == "sample_ids" else None)


def rows_without_ids(rank, world_size):
    """Return the error of a run that keeps rows and whose steps return no ids."""
    pl, run = distributed_trainer(world_size, RecMetricsCallback("NDCG", k=10, accumulators=[trm.KeptRows()]))
    with pytest.raises(ValueError, match="row_ids") as error:
        run.validate(make_module(pl, lambda s, t, u: {"scores": s, "target": t}), loader(samples(7)), verbose=False)
    return str(error.value)


def test_rows_of_several_processes_need_ids(processes):
    """Kept rows without ids raise on all processes."""
    expected = "RecMetricsCallback, loader 'val': rows of several processes are told apart by row_ids: pass them"
    assert all(message.startswith(expected) for message in processes.run(rows_without_ids, 2))


def doubts(rank, world_size):
    """Return the warnings about repeats for each loader."""
    data, said = samples(5), {}
    half = lambda scores, target, users: {"scores": scores[::2], "target": target[::2]}  # noqa: E731
    for name, batches, step, flags in (
        ("own", loader(data, sampler=EveryoneReadsAll(data)), None, {"use_distributed_sampler": False}),
        ("stream", DataLoader(Stream(data), batch_size=4), None, {}),
        ("backwards", loader(data, sampler=Backwards(data)), None, {}),
        ("order", loader(samples(11), in_order=False), None, {}),
        ("wrapped", loader(data, sampler=EveryoneReadsAll(data)), None, {}),
        ("rows", loader(samples(11)), half, {}),
        ("even", loader(data[:4]), half, {}),
    ):
        pl, run = distributed_trainer(world_size, RecMetricsCallback("HR", k=1), **flags)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run.fit(make_module(pl, step), loader(data), batches)
        said[name] = [str(w.message) for w in caught if "RecMetrics" in str(w.message)]
    pl, run = distributed_trainer(world_size, RecMetricsCallback("HR", k=1))
    module, combined = make_module(pl), importlib.import_module("pytorch_lightning.utilities.combined_loader")
    type(module).validation_step = lambda self, batch, batch_idx: {"scores": batch[0][0], "target": batch[0][1]}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.validate(module, combined.CombinedLoader([loader(data)] * 2, "max_size"), verbose=False)
    said["combined"] = [str(w.message) for w in caught if "RecMetrics" in str(w.message)]
    return said


def test_doubts_are_said_once(processes):
    """If repeats cannot be known, one warning points to sample_ids=; if there are no repeats, there is no warning."""
    said = processes.run(doubts, 2)
    repeated = "so some may count twice. Pass sample_ids="
    for name, message in (
        ("own", "EveryoneReadsAll"),
        ("stream", "an iterable data set"),
        ("backwards", "Backwards"),
        ("order", "the order in which batches of samples come"),
        ("combined", "which samples of a CombinedLoader each process gets is unknown"),
        ("wrapped", "processes may draw different samples from EveryoneReadsAll, unless all are seeded alike"),
    ):
        assert len(said[0][name]) == 1, name
        assert message in said[0][name][0], name
        assert repeated in said[0][name][0], name
        assert said[1][name] == []
    assert [len(process["rows"]) for process in said] == [0, 1]  # the process that holds the repeat
    assert "has 1 row, which are not its samples" in said[1]["rows"][0]  # the batch with the repeat
    assert said[0]["even"] == said[1]["even"] == []


def test_samples_left_out(pl, tmp_path):
    """A loader that leaves a last batch out causes one warning; one whose batches are all full causes none."""
    run = trainer(pl, tmp_path, RecMetricsCallback("HR", k=1))
    with pytest.warns(UserWarning, match=r"DataLoader\(drop_last=True\) leaves a last batch out") as caught:
        run.fit(make_module(pl), loader(samples(8)), loader(samples(11), drop_last=True))
    assert len([w for w in caught if "RecMetricsCallback" in str(w.message)]) == 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = trainer(pl, tmp_path, RecMetricsCallback("HR", k=1))
        run.fit(make_module(pl), loader(samples(8)), loader(samples(12), drop_last=True))
    assert not [w for w in caught if "RecMetricsCallback" in str(w.message)]


# ------------------------------------------------------------------------------------------------------- whole sessions


SESSION_NAMES = ["AUROC", "NDCG", "MRR"]


def sessions():
    """Return scores and labels of each of 29 sessions."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(29, (101,), generator=generator)
    scores, labels = torch.rand(101, generator=generator), torch.rand(101, generator=generator) < 0.3
    return [(scores[ids == session], labels[ids == session]) for session in range(29)]


def collate(batch):
    scores, labels = (torch.cat(column) for column in zip(*batch, strict=True))
    return scores, labels, torch.tensor([len(rows) for rows, _ in batch])


def values_of_sessions(rank, world_size):
    """Return what is logged; the processes share the sessions, and the sampler repeats one."""
    callback = RecMetricsCallback(SESSION_NAMES, k=3)
    pl, run = distributed_trainer(world_size, callback)
    module = make_module(pl, lambda scores, labels, lengths: {"input": trm.Sessions(scores, labels, lengths=lengths)})
    run.validate(module, DataLoader(sessions(), batch_size=7, collate_fn=collate), verbose=False)
    return logged(run)


@pytest.mark.parametrize("world_size", [1, 2])
def test_whole_sessions(world_size, processes):
    """A sample may be a whole session, if `lengths` says how many rows each session has."""
    metrics = trm.RecMetricCollection(SESSION_NAMES, k=3, prefix="val/")
    scores, labels, lengths = collate(sessions())
    metrics.update(trm.Sessions(scores, labels, lengths=lengths))
    assert processes.run(values_of_sessions, world_size) == [near(metrics.compute())] * world_size


# ---------------------------------------------------------------------------------------------------------- item shards


SHARD_ROWS, SHARD_ITEMS, SHARD_NAMES = 21, 10, ["HR", "NDCG", "AUROC"]


def shard_data():
    generator = torch.Generator().manual_seed(0)
    history = trm.Interactions.from_dense(torch.rand(SHARD_ROWS, SHARD_ITEMS, generator=generator) < 0.2)
    scores = torch.randint(5, (SHARD_ROWS, SHARD_ITEMS), generator=generator).float()
    return scores, torch.randint(SHARD_ITEMS, (SHARD_ROWS,), generator=generator), torch.arange(SHARD_ROWS), history


def shard_callback(history):
    accumulators = [trm.ByGroup("even", "odd")]
    return RecMetricsCallback(SHARD_NAMES, k=3, exclude=history, overlap="miss", accumulators=accumulators)


def values_of_shards(rank, world_size, sampler):
    scores, target, users, history = shard_data()
    mine = slice(4 * rank, 4 if rank == 0 else SHARD_ITEMS)
    pl, run = distributed_trainer(world_size, shard_callback(history), use_distributed_sampler=sampler)

    def step(scores, target, users):
        shard = trm.ItemShard(scores[:, mine], target, offset=mine.start, num_items=SHARD_ITEMS)
        return {"input": shard, "user_ids": users, "groups": users % 2}

    loader = DataLoader(TensorDataset(scores, target, users), batch_size=8)
    if sampler:
        with pytest.raises(ValueError, match="processes differ in targets"):
            run.validate(make_module(pl, step), loader, verbose=False)
        return None
    run.validate(make_module(pl, step), loader, verbose=False)
    return logged(run)


def test_values_of_shards(processes):
    """Values, with groups and items that the callback excludes, are those of one process, not summed over processes."""
    scores, target, _, history = shard_data()
    metrics = trm.RecMetricCollection(
        SHARD_NAMES, k=3, prefix="val/", overlap="miss", accumulators=[trm.ByGroup("even", "odd")]
    )
    for rows in torch.arange(SHARD_ROWS).split(8):
        metrics.update(scores[rows], target[rows], exclude=history.select(rows).items, groups=rows % 2)
    assert processes.run(values_of_shards, 2, False) == [near(metrics.compute())] * 2


def test_a_sampler_that_shares_rows(processes):
    """Rows that a distributed sampler splits between processes are refused as rows of item shards."""
    assert processes.run(values_of_shards, 2, True) == [None, None]


ITEMS_OF = trm.Catalogue(ITEMS, popularity=torch.arange(ITEMS) % 7, num_users=20)


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
    running.validate(make_module(pl, group_step), DataLoader(data, batch_size=4), verbose=False)
    return logged(running)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using `DistributedSampler`")
def test_every_sample_counts_once(processes):
    wanted = groups_by_hand(samples(13), ["HR", "NDCG", "Coverage", "Novelty"], catalogue=ITEMS_OF)
    for world_size in (1, 2):
        for found in processes.run(every_sample_once, world_size):
            assert found == wanted
