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
    columns,
    distributed_trainer,
    loader,
    logged,
    make_module,
    samples,
    trainer,
)
from values import near, numbers

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


KNOWN = trm.Catalogue(ITEMS, popularity=torch.arange(ITEMS) % 7, num_users=20)
METRICS = [*NAMES, "AUROC", trm.AUROC(weight="relevant"), "Coverage", "Novelty"]
OPTIONS = {"metrics": METRICS, "k": KS, "catalogue": KNOWN}
WAYS = (
    "in order",
    "shuffle",
    "own sampler",
    "samples are batches",
    "sample_ids, own sampler",
    "sample_ids, stream",
    "sample_ids, repeats",
)


def step(scores, target, users):
    """Return outputs of every kind; each fifth user has no relevant item, each third no group."""
    target = target.where(users[:, None] % 5 < 4, -1)
    return {"scores": scores, "target": target, "index": users, "weights": users + 1, "groups": (users + 1) % 3 - 1}


def loader_of(way, data, rank):
    """Return a loader of the samples, options of the callback and flags of the Trainer."""
    if way == "shuffle":
        torch.manual_seed(rank)
        return loader(data, sampler=torch.utils.data.DistributedSampler(data, shuffle=True, seed=3)), {}, {}
    if way == "own sampler":
        torch.manual_seed(3)  # the seed differs by process only for a sampler that Lightning does not split
        return loader(data, sampler=EveryoneReadsAll(data)), {}, {}
    if way == "samples are batches":
        batches = [(scores[None], target[None], torch.tensor([user])) for scores, target, user in data]
        return DataLoader(batches, batch_size=None), {}, {}
    if way == "sample_ids, own sampler":
        torch.manual_seed(rank)
        options, flags = {"sample_ids": "index"}, {"use_distributed_sampler": False}
        return loader(data, sampler=EveryoneReadsAll(data)), options, flags
    if way == "sample_ids, stream":
        return loader(Stream(data)), {"sample_ids": lambda returned, batch: batch[2]}, {}
    if way == "sample_ids, repeats":
        return loader(data), {"sample_ids": lambda returned, batch: batch[2].int()}, {}
    return loader(data), {}, {}


def values_for_every_remainder(rank, world_size, way):
    """Return {number of samples: (logged values, standard error of HR@1, warnings)}."""
    results = {}
    for n in (1, 3, 7, 11, 12, 13) if world_size == 3 else (1, 11, 12):  # all remainders by the number of processes
        batches, options, flags = loader_of(way, samples(n), rank)
        callback = RecMetricsCallback(**OPTIONS, accumulators=[trm.ByGroup("a", "b")], log_counts=True, **options)
        pl, run = distributed_trainer(world_size, callback, **flags)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run.validate(make_module(pl, step), batches, verbose=False)
        told = [str(w.message) for w in caught if "sync_dist" in str(w.message) or "RecMetrics" in str(w.message)]
        results[n] = logged(run), callback.collections["val"]["HR@1"].standard_error().item(), told
    return results


@pytest.mark.slow
@pytest.mark.parametrize(
    "world_size", [pytest.param(1, marks=pytest.mark.nightly), 2, pytest.param(3, marks=pytest.mark.nightly)]
)
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_values_do_not_depend_on_the_number_of_processes(world_size, processes):
    """Values, counts and errors are those of one process for every remainder and for fewer samples than processes."""
    found = {way: processes.run(values_for_every_remainder, world_size, way) for way in WAYS}
    for n in found["in order"][0]:
        single = trm.RecMetricCollection(**OPTIONS, prefix="val/", accumulators=[trm.ByGroup("a", "b")])
        outputs = step(*columns(samples(n)), torch.arange(n))
        single.update(**{name: values for name, values in outputs.items() if name != "index"})
        expected = numbers(single.compute())
        expected = {key: pytest.approx(value, abs=1e-12, nan_ok=True) for key, value in expected.items()}
        for count in ("num_users", "num_skipped", "num_unreachable", "num_tied"):
            expected[f"val/{count}"] = getattr(single["HR@1"], count)
        error = pytest.approx(single["HR@1"].standard_error().item(), abs=1e-12, nan_ok=True)
        for way, everybody in found.items():
            for process in everybody:
                values, own_error, told = process[n]
                assert (values, own_error) == (expected, error), (n, way)
                assert not told or (way == "own sampler" and "unless all use the same seed" in told[0]), (n, way)


def rows_of_a_loader(rank, world_size, by):
    """Return the kept rows of seven samples; with `sample_ids` the samples are of three users."""
    options = {"sample_ids": "index"} if by == "sample_ids" else {}
    callback = RecMetricsCallback("NDCG", k=10, accumulators=[trm.KeptRows()], **options)
    pl, run = distributed_trainer(world_size, callback)

    def step(scores, target, users):
        outputs = {"scores": scores, "target": target, "index": users}
        user_ids = {"sample_ids": users // 3, "user_ids": users, "nothing": None}
        return outputs | {"user_ids": user_ids[by]}

    if by == "nothing":
        with pytest.raises(ValueError, match="loader 'val': rows of several processes need unique row_ids"):
            run.validate(make_module(pl, step), loader(samples(7)), verbose=False)
        return None
    run.validate(make_module(pl, step), loader(samples(7)), verbose=False)
    rows = callback.collections["val"].rows
    order = rows.ids.argsort()
    clusters = None if rows.clusters is None else rows.clusters[order].tolist()
    return rows.ids[order].tolist(), rows.values["NDCG@10"][order].tolist(), clusters, rows.weights


@pytest.mark.parametrize("by", ["sample_ids", "user_ids"])
def test_rows_do_not_depend_on_the_number_of_processes(by, processes):
    """Each sample is kept once, though the sampler repeats one; with both kinds of ids, users are the clusters."""
    expected = trm.functional.ndcg(trm.Scores(*columns(samples(7))).ranking(), 10).tolist()
    clusters = [0, 0, 0, 1, 1, 1, 2] if by == "sample_ids" else None
    for world_size in (1, 2, 3):
        for rows in processes.run(rows_of_a_loader, world_size, by):
            assert rows == (list(range(7)), expected, clusters, None)


def test_rows_of_several_processes_need_ids(processes):
    """Kept rows without ids raise on all processes."""
    assert processes.run(rows_of_a_loader, 2, "nothing") == [None, None]


def said_by(run, module, *loaders):
    """Return the callback's warnings in a fit, or, with one loader, in a validation."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if len(loaders) == 1:
            run.validate(module, *loaders, verbose=False)
        else:
            run.fit(module, *loaders)
    return [str(w.message) for w in caught if "RecMetrics" in str(w.message)]


def doubts(rank, world_size):
    """Return the warnings about repeats for each loader."""
    data, said = samples(5), {}
    half = lambda scores, target, users: {"scores": scores[::2], "target": target[::2]}  # noqa: E731
    for name, batches, step, flags in (
        ("own", loader(data, sampler=EveryoneReadsAll(data)), None, {"use_distributed_sampler": False}),
        ("stream", loader(Stream(data)), None, {}),
        ("backwards", loader(data, sampler=Backwards(data)), None, {}),
        ("order", loader(samples(11), in_order=False), None, {}),
        ("wrapped", loader(data, sampler=EveryoneReadsAll(data)), None, {}),
        ("rows", loader(samples(11)), half, {}),
        ("even", loader(data[:4]), half, {}),
    ):
        pl, run = distributed_trainer(world_size, RecMetricsCallback("HR", k=1), **flags)
        said[name] = said_by(run, make_module(pl, step), loader(data), batches)
    pl, run = distributed_trainer(world_size, RecMetricsCallback("HR", k=1))
    first_of = lambda self, batch, batch_idx: {"scores": batch[0][0], "target": batch[0][1]}  # noqa: E731
    combined = importlib.import_module("pytorch_lightning.utilities.combined_loader").CombinedLoader
    module = make_module(pl, validation_step=first_of)
    said["combined"] = said_by(run, module, combined([loader(data)] * 2, "max_size"))
    return said


def test_doubts_are_said_once(processes):
    """If repeats cannot be known, one warning points to sample_ids=; if there are no repeats, there is no warning."""
    first, second = processes.run(doubts, 2)
    for name, message in (
        ("own", "EveryoneReadsAll"),
        ("stream", "an iterable data set"),
        ("backwards", "Backwards"),
        ("order", "the order of the batches of samples"),
        ("combined", "it is unknown which samples of a CombinedLoader each process gets"),
        ("wrapped", "processes may draw different samples from EveryoneReadsAll, unless all use the same seed"),
    ):
        (said,) = first[name]
        assert message in said, name
        assert "so some may count twice. Pass sample_ids=" in said, name
        assert second[name] == []
    assert first["rows"] == first["even"] == second["even"] == []
    (said,) = second["rows"]  # the process that holds the repeat
    assert "has 1 row, not one per sample" in said  # the batch with the repeat


def test_samples_left_out(pl):
    """A loader that leaves a last batch out causes one warning; one whose batches are all full causes none."""
    for n, number in ((11, 1), (12, 0)):
        run = trainer(pl, RecMetricsCallback("HR", k=1))
        said = said_by(run, make_module(pl), loader(samples(8)), loader(samples(n), drop_last=True))
        assert len(said) == number
        assert all("DataLoader(drop_last=True) leaves out an incomplete last batch" in each for each in said)


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
    pl, run = distributed_trainer(world_size, RecMetricsCallback(["AUROC", "NDCG", "MRR"], k=3))
    module = make_module(pl, lambda scores, labels, lengths: {"input": trm.Sessions(scores, labels, lengths=lengths)})
    run.validate(module, DataLoader(sessions(), batch_size=7, collate_fn=collate), verbose=False)
    return logged(run)


@pytest.mark.parametrize("world_size", [1, 2])
def test_whole_sessions(world_size, processes):
    """A sample may be a whole session, if `lengths` says how many rows each session has."""
    metrics = trm.RecMetricCollection(["AUROC", "NDCG", "MRR"], k=3, prefix="val/")
    scores, labels, lengths = collate(sessions())
    metrics.update(trm.Sessions(scores, labels, lengths=lengths))
    assert processes.run(values_of_sessions, world_size) == [near(metrics.compute())] * world_size


SHARD_ROWS, SHARD_ITEMS = 21, 10
OF_SHARDS = {"metrics": ["HR", "NDCG", "AUROC"], "k": 3, "overlap": "miss"}


def shard_data():
    """Return scores, a target and the number of each row, and a history."""
    generator = torch.Generator().manual_seed(0)
    history = trm.Interactions.from_dense(torch.rand(SHARD_ROWS, SHARD_ITEMS, generator=generator) < 0.2)
    scores = torch.randint(5, (SHARD_ROWS, SHARD_ITEMS), generator=generator).float()
    target = torch.randint(SHARD_ITEMS, (SHARD_ROWS,), generator=generator)
    return TensorDataset(scores, target, torch.arange(SHARD_ROWS)), history


def values_of_shards(rank, world_size, sampler):
    """Return what is logged where a process scores items 0 to 3, the other one the rest, or None for an error."""
    data, history = shard_data()
    mine = slice(4 * rank, 4 if rank == 0 else SHARD_ITEMS)
    callback = RecMetricsCallback(**OF_SHARDS, exclude=history, accumulators=[trm.ByGroup("even", "odd")])
    pl, run = distributed_trainer(world_size, callback, use_distributed_sampler=sampler)

    def step(scores, target, users):
        shard = trm.ItemShard(scores[:, mine], target, offset=mine.start, num_items=SHARD_ITEMS)
        return {"input": shard, "user_ids": users, "groups": users % 2}

    if sampler:
        with pytest.raises(ValueError, match=r"processes differ in (targets|history)"):
            run.validate(make_module(pl, step), DataLoader(data, batch_size=8), verbose=False)
        return None
    run.validate(make_module(pl, step), DataLoader(data, batch_size=8), verbose=False)
    return logged(run)


def test_values_of_shards(processes):
    """Values are those of one process, not summed; rows that a distributed sampler splits between processes raise."""
    data, history = shard_data()
    metrics = trm.RecMetricCollection(**OF_SHARDS, prefix="val/", accumulators=[trm.ByGroup("even", "odd")])
    for scores, target, users in DataLoader(data, batch_size=8):
        metrics.update(scores, target, exclude=history.select(users).items, groups=users % 2)
    assert processes.run(values_of_shards, 2, False) == [near(metrics.compute())] * 2
    assert processes.run(values_of_shards, 2, True) == [None, None]
