"""`ItemShard`: items split over processes give the bits of one process that has all items; traffic; errors."""

import math

import pytest
import torch
from distributed import counted_collectives
from values import numbers

import torchrecmetrics as trm

ROWS, ITEMS = 40, 31
BATCHES = slice(0, 25), slice(25, ROWS)
GROUPS = torch.arange(ROWS) % 3 - 1
BORDERS = {1: [0, ITEMS], 2: [0, 9, ITEMS], 3: [0, 20, 20, ITEMS]}
"""Borders of uneven shards by the number of processes; of three shards one is empty."""


def made(dtype, masked):
    """Scores of small whole numbers, so that many are equal across shards, with targets, gains and excluded items."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 6, (ROWS, ITEMS), generator=generator).to(dtype)
    scores[torch.rand(ROWS, ITEMS, generator=generator) < 0.05] = -torch.inf
    target = torch.rand(ROWS, ITEMS, generator=generator).argsort(1)[:, :3]
    target[torch.rand(ROWS, 3, generator=generator) < 0.2] = -1
    exclude = torch.randint(-1, ITEMS, (ROWS, 5), generator=generator)
    gains, mask = torch.randint(1, 4, (ROWS, 3), generator=generator), torch.arange(ITEMS) % 7 == 3
    return [
        {
            "scores": scores[rows],
            "target": target[rows],
            "gains": gains[rows],
            "exclude": (exclude[rows], mask) if masked else exclude[rows],
        }
        for rows in (*BATCHES, slice(None))
    ]


def accuracy(overlap):
    names = ["HR", "NDCG", "MRR", "MAP", "AUROC", "RPrecision"]
    return trm.RecMetricCollection(names, k=[1, 5], overlap=overlap, accumulators=[trm.ByGroup("a", "b")])


def list_metrics(overlap):
    catalogue = trm.Catalogue.from_interactions(
        trm.Interactions.from_columns(torch.arange(ITEMS) % 4, torch.arange(ITEMS), num_users=4, num_items=ITEMS)
    )
    precision = trm.Precision(5, score_threshold=2.5, overlap=overlap)
    names = ["Novelty", "Coverage", "Gini", "Seen", "Serendipity", "HR", "AUROC", precision]
    return trm.RecMetricCollection(names, k=[1, 5], overlap=overlap, catalogue=catalogue)


def values(make_input, dtype, overlap, masked):
    """Return values of accuracy, of lists and of `forward`, and the collectives of each update."""
    *batches, whole = made(dtype, masked)
    metrics, lists, sent = accuracy(overlap), list_metrics(overlap), []
    for rows, batch in zip(BATCHES, batches, strict=True):
        with counted_collectives() as calls:
            metrics.update(make_input(**batch), groups=GROUPS[rows])
        sent.append(calls)
        history = batch["exclude"][0] if masked else batch["exclude"]
        lists.update(make_input(**batch, history=history))
    forward = accuracy(overlap)(make_input(**whole), groups=GROUPS)
    found = [numbers(metrics.compute()), numbers(lists.compute()), numbers(forward)]
    assert metrics["HR@1"].num_users == (whole["target"] >= 0).any(1).sum()
    return found, sent


def values_of_shards(rank, world_size, *settings):
    first, last = BORDERS[world_size][rank : rank + 2]

    def shard(scores, **given):
        return trm.ItemShard(scores[:, first:last], offset=first, num_items=ITEMS, **given)

    return values(shard, *settings)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize(
    "settings", [(torch.float32, "miss", False), (torch.bfloat16, "keep", False), (torch.float64, "keep", True)]
)
def test_equals_one_process(processes, world_size, settings):
    """Every process has the values of one process that has all items.

    Ties go across shards, history and targets are in any shard, and shards are uneven or empty. Of equal scores the
    lower id is listed first.
    """
    expected, _ = values(trm.Scores, *settings)
    for found, sent in processes.run(values_of_shards, world_size, *settings):
        for metrics, of_one_process in zip(found, expected, strict=True):  # processes add up shares of the rows
            assert metrics == pytest.approx(of_one_process, rel=1e-12, nan_ok=True)
        # the first collective compares arguments, the last one weights
        assert sent == [["all_gather_object", "all_reduce", "all_reduce", "all_gather_object"]] * 2


def traffic(rank, world_size):
    """Return the bytes of each of the two all-reduces of a second batch."""
    metric, batch = trm.MRR(), trm.ItemShard(torch.rand(64, 10), torch.randint(20, (64,)), 10 * rank, 20)
    metric.update(batch)
    sent, real = [], torch.distributed.all_reduce

    def counted(tensor, **options):
        sent.append(tensor.nbytes)
        return real(tensor, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.distributed, "all_reduce", counted)
        metric.update(batch)
    return sent


def test_traffic(processes):
    """A batch sends at most 20 bytes per row, target and process, a score and four counts, and a checksum."""
    for sent in processes.run(traffic, 2):
        assert len(sent) == 2
        assert sum(sent) <= 20 * 64 + 8


SCORES, TARGET = torch.arange(20.0).view(4, 5), torch.tensor([1, 2, 3, 9])
WITH_NAN = SCORES.where(SCORES != 7, math.nan)
IDS = torch.arange(4)
FAULTS = {
    "ranges": (lambda rank: {"offset": 4 * rank}, "hold each of 10 items once, got the ranges [[0, 5], [4, 9]]"),
    "missing": (lambda rank: {"num_items": 12}, "shards must hold each of 12 items once"),
    "rows": (lambda rank: {"scores": SCORES[rank:], "target": TARGET[rank:]}, "processes differ in rows: [4, 3]"),
    "depth": (lambda rank: {"metric": trm.HR(2 + rank)}, "processes differ in depth of metrics: [2, 3]"),
    "dtype": (lambda rank: {"scores": SCORES.double() if rank else SCORES}, "processes differ in dtype of scores"),
    "num_items": (lambda rank: {"num_items": 10 + rank}, "processes differ in num_items: [10, 11]"),
    "targets": (lambda rank: {"target": TARGET.roll(rank)}, "processes differ in targets"),
    "history": (lambda rank: {"exclude": torch.tensor([5, 6, 7, 8 - rank])}, "processes differ in history"),
    "gains": (lambda rank: {"gains": IDS + rank}, "processes differ in gains"),
    "weights": (lambda rank: {"update": {"weights": IDS + 1.0 + rank}}, "processes differ in weights"),
    "no target": (lambda rank: {"target": None if rank else TARGET}, "target must be a tensor, got NoneType"),
    "threshold": (
        lambda rank: {"metric": trm.HR(2, score_threshold=0.5 if rank else None)},
        "processes differ in score_threshold: [None, 0.5]",
    ),
    "mask": (
        lambda rank: {"exclude": torch.ones(4, 5 + 5 * rank).bool()},
        "item ids [B, H], or bool [10], got",
    ),
    "padding": (lambda rank: {"metric": trm.HR(2, padding_idx=10)}, "padding_idx must be an item id in 0..9, got 10"),
    "option": (lambda rank: {"update": {"depth": 3} if rank else {}}, "depth= is for ranks"),
    "ties": (lambda rank: {"metric": trm.HR(2, ties=["expected", "realistic"][rank])}, "processes differ in options"),
    "row_ids": (
        lambda rank: {"row_ids": torch.tensor([7, 5, 6, 4 + rank])},
        "processes differ in row_ids: [[4] of checksum",
    ),
    "column": (
        lambda rank: {"metric": with_kept_rows(), "update": {"row_ids": IDS.roll(rank)}},
        "processes differ in row_ids",
    ),
}


def with_kept_rows():
    return trm.RecMetricCollection("HR", k=2, accumulators=[trm.KeptRows()])


def fault(rank, world_size, kind):
    change = FAULTS[kind][0](rank)
    metric, keywords = change.pop("metric", trm.HR(2)), change.pop("update", {})
    shard = {"scores": SCORES, "target": TARGET, "offset": 5 * rank, "num_items": 10} | change
    try:
        metric.update(trm.ItemShard(**shard), **keywords)
    except (ValueError, TypeError, RuntimeError) as error:
        return str(error), getattr(metric, "evaluator", metric).update_count
    return None


@pytest.mark.parametrize("kind", FAULTS)
def test_faults_raise_on_all_processes(processes, kind):
    """A fault on one process raises on all before any state changes, so that no process waits for another."""
    for message, count in processes.run(fault, 2, kind):
        assert FAULTS[kind][1] in message
        assert count == 0


def other_rows(rank, world_size, fields):
    """Return the value of two rows whose scores stand in another order on process 1, as devices compare later batches.

    `fields` of an `ItemShard` hold a value for each process.
    """
    scores = torch.tensor([[3.0, 1.0, 2.0, 0.0], [0.0, 2.0, 1.0, 3.0]])
    scores = scores.flip(0) if rank else scores
    fields = {"target": torch.zeros(2).long()} | {name: values[rank] for name, values in fields.items()}
    metric = trm.HR(1, validate_args="deferred")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trm.ItemShard, "_is_compared", True)
        metric.update(trm.ItemShard(scores[:, 2 * rank :][:, :2], offset=2 * rank, num_items=4, **fields))
    try:
        return metric.compute().item()
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize(
    "fields",
    [
        {"target": [torch.tensor([0, 3]), torch.tensor([3, 0])]},
        {"target": [torch.tensor([0, 0]), torch.tensor([0, -1])]},
        {"gains": [torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])]},
        {"row_ids": [torch.tensor([2**40, 5]), torch.tensor([5, 2**40])]},
        {"row_ids": [None, torch.tensor([0, 1])]},
    ],
)
def test_other_rows_are_counted(processes, fields):
    """Where processes do not wait to compare arguments, rows of other users are an error of `compute` on all."""
    message = "HR@1: bad input since the last reset: 2 rows of a batch whose targets, gains or row_ids differ"
    assert processes.run(other_rows, 2, fields) == [f"{message} between processes"] * 2


def test_scores_of_other_rows_with_the_same_targets(processes):
    """Scores of other rows show in `row_ids` alone: 3 1 1 3 and 0 2 2 0 give (1 / 2 + 0) / 2, the true rows 1 / 2."""
    ids = torch.tensor([2**40, 5])
    assert processes.run(other_rows, 2, {}) == processes.run(other_rows, 2, {"row_ids": [ids] * 2}) == [1 / 4] * 2


def mixed(rank, world_size):
    metric, scores = trm.HR(2), torch.arange(40.0).view(4, 10)
    metric.update(trm.ItemShard(scores[:, 5 * rank :][:, :5], torch.tensor([9, 9, 9, 1]), 5 * rank, 10))
    metric.update(scores, torch.tensor([9, 1, 1, 1]))
    return metric.compute().item(), metric.num_users


def long_lists(rank, world_size):
    shard = trm.ItemShard(torch.rand(3, 5), torch.tensor([1, 2, 9]), 5 * rank, 10)
    return list(shard.ranking(1000, items=True).items.shape)


def test_lists_longer_than_the_catalogue(processes):
    """Lists are as long as the catalogue where a cut-off is beyond it, and so is what processes exchange."""
    assert processes.run(long_lists, 2) == [[3, 10]] * 2


def test_shards_beside_whole_rows(processes):
    """Sharded rows count once over the processes, and whole rows once on each of them, in one state."""
    assert processes.run(mixed, 2) == [((3 + 2 * 1) / 12, 12)] * 2


def saved(rank, world_size):
    """Return value and users of a metric with sharded rows, and of a loaded and a merged one after another batch."""
    scores, target = torch.arange(20.0).view(4, 5), torch.tensor([4, 4, 4, 9])
    batch = trm.ItemShard(scores, target, 5 * rank, 10)
    first, loaded, merged = trm.HR(2), trm.HR(2), trm.HR(2)
    first.persistent(True), loaded.persistent(True)
    first.update(batch)
    loaded.load_state_dict(first.state_dict())
    merged.merge_state(first)
    for metric in (loaded, merged):
        metric.update(batch)
    return [(metric.compute().item(), metric.num_users) for metric in (first, loaded, merged)]


def test_saved_and_merged(processes):
    """A loaded or merged state of each process's share of sharded rows adds up over the processes."""
    for first, loaded, merged in processes.run(saved, 2):
        assert first[1] == 4
        assert loaded == merged == (first[0], 8)


@pytest.mark.parametrize(
    ("offset", "num_items", "message"),
    [
        (-1, 10, "offset must be at least 0, got -1"),
        (0, 0, "num_items must be at least 1, got 0"),
        (0, 5, "ItemShard is for several processes: initialise torch.distributed first"),
    ],
)
def test_bad_input(offset, num_items, message):
    """A bad shard raises an error that says what is accepted."""
    with pytest.raises(ValueError, match=message):
        trm.HR(2).update(trm.ItemShard(SCORES, TARGET, offset, num_items))


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
    return numbers(batch), numbers(whole)


def test_forward_of_item_shards_in_a_process_group(processes):
    """`forward` of item shards gives the value of all rows on the processes of their group, and waits for no other."""
    for batch, whole in processes.run(forward_of_two_shards, 3):
        assert "HR@2/b" in whole
        assert batch == pytest.approx(whole, rel=1e-12)
