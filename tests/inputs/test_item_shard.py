"""`ItemShard`: items split over processes give the bits of one process that has all items; traffic; errors."""

import pytest
import torch
from distributed import counted_collectives
from values import numbers

import torchrecmetrics as trm

NAMES = ["HR", "NDCG", "MRR", "MAP", "AUROC", "RPrecision"]
ROWS, ITEMS = 40, 31


def batch(seed=0, dtype=torch.float32):
    """Scores of small whole numbers, so that many are equal across shards, with targets, gains and history."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 6, (ROWS, ITEMS), generator=generator).to(dtype)
    scores[torch.rand(ROWS, ITEMS, generator=generator) < 0.05] = -torch.inf
    target = torch.rand(ROWS, ITEMS, generator=generator).argsort(1)[:, :3]
    target[torch.rand(ROWS, 3, generator=generator) < 0.2] = -1
    exclude = torch.randint(-1, ITEMS, (ROWS, 5), generator=generator)
    return scores, target, {"exclude": exclude, "gains": torch.randint(1, 4, (ROWS, 3), generator=generator)}


def make(overlap="miss", **options):
    return trm.RecMetricCollection(NAMES, k=[1, 5], overlap=overlap, accumulators=[trm.ByGroup("a", "b")], **options)


def borders(world_size):
    """Return the borders of uneven shards; of three shards one is empty."""
    return {1: [0, ITEMS], 2: [0, 9, ITEMS], 3: [0, 20, 20, ITEMS]}[world_size]


def shard(scores, target, offset, **more):
    return trm.ItemShard(scores, target, offset=offset, num_items=ITEMS, **more)


def values(rank, world_size, dtype, overlap, everywhere):
    scores, target, given = batch(dtype=dtype)
    if everywhere:
        given["exclude"] = (given["exclude"], torch.arange(ITEMS) % 7 == 3)
    first, last = borders(world_size)[rank : rank + 2]
    metrics = make(overlap)
    sent = []
    codes = torch.arange(ROWS) % 3 - 1
    for rows in (slice(0, 25), slice(25, ROWS)):
        part = {name: given[name][rows] for name in ("gains",)}
        exclude = given["exclude"]
        part["exclude"] = (exclude[0][rows], exclude[1]) if everywhere else exclude[rows]
        with counted_collectives() as calls:
            metrics.update(shard(scores[rows, first:last], target[rows], first, **part), groups=codes[rows])
        sent.append(calls)
    forward = make(overlap)
    alone = forward(shard(scores[:, first:last], target, first), groups=codes)
    found = {key: value.item() for key, value in metrics.compute().items()}
    assert metrics["HR@1"].num_users == sum(numbers_of_rows(target))
    return found, sent, {key: value.item() for key, value in alone.items()}


def numbers_of_rows(target):
    return (target >= 0).any(1).tolist()


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize(
    ("dtype", "overlap", "everywhere"),
    [(torch.float32, "miss", False), (torch.bfloat16, "keep", False), (torch.float64, "keep", True)],
)
def test_equals_one_process(processes, world_size, dtype, overlap, everywhere):
    """Every process has the values of one process that has all items.

    Ties go across shards, history and targets are in any shard, and shards are uneven or empty.
    """
    scores, target, given = batch(dtype=dtype)
    if everywhere:
        given["exclude"] = (given["exclude"], torch.arange(ITEMS) % 7 == 3)
    single, codes = make(overlap), torch.arange(ROWS) % 3 - 1
    for rows in (slice(0, 25), slice(25, ROWS)):
        exclude = given["exclude"]
        exclude = (exclude[0][rows], exclude[1]) if everywhere else exclude[rows]
        single.update(scores[rows], target[rows], gains=given["gains"][rows], exclude=exclude, groups=codes[rows])
    plain = make(overlap)
    expected_forward = numbers(plain(scores, target, groups=codes))
    expected = numbers(single.compute())
    for found, sent, forward in processes.run(values, world_size, dtype, overlap, everywhere):
        assert found == pytest.approx(expected, rel=1e-12)  # processes add up shares of the rows
        assert forward == pytest.approx(expected_forward, rel=1e-12)
        # the first collective compares arguments, the last one weights
        assert sent == [["all_gather_object", "all_reduce", "all_reduce", "all_gather_object"]] * 2


def lists(rank, world_size, overlap):
    """Return values of metrics that read items and a history, after two batches."""
    scores, target, given = batch()
    first, last = borders(world_size)[rank : rank + 2]
    metrics = list_metrics(overlap)
    for rows in (slice(0, 25), slice(25, ROWS)):
        exclude = given["exclude"][rows]
        metrics.update(shard(scores[rows, first:last], target[rows], first, exclude=exclude, history=exclude))
    return numbers(metrics.compute())


def list_metrics(overlap):
    catalogue = trm.Catalogue.from_interactions(
        trm.Interactions.from_columns(torch.arange(ITEMS) % 4, torch.arange(ITEMS), num_users=4, num_items=ITEMS)
    )
    names = [
        "Novelty",
        "Coverage",
        "Gini",
        "Seen",
        "Serendipity",
        "HR",
        "AUROC",
        trm.Precision(5, score_threshold=2.5, overlap=overlap),
    ]
    return trm.RecMetricCollection(names, k=[1, 5], overlap=overlap, catalogue=catalogue)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("overlap", ["miss", "keep"])
def test_lists(processes, world_size, overlap):
    """The best items of all shards, equal scores by lower id, are the lists of one process."""
    scores, target, given = batch()
    single = list_metrics(overlap)
    for rows in (slice(0, 25), slice(25, ROWS)):
        exclude = given["exclude"][rows]
        single.update(trm.Scores(scores[rows], target[rows], exclude=exclude, history=exclude))
    for found in processes.run(lists, world_size, overlap):
        assert found == pytest.approx(numbers(single.compute()), rel=1e-12, nan_ok=True)


def traffic(rank, world_size):
    """Return the bytes of each of the two all-reduces of a second batch."""
    scores, target = torch.rand(64, 10), torch.randint(20, (64,))
    metric, batch = trm.MRR(), trm.ItemShard(scores, target, 10 * rank, 20)
    metric.update(batch)
    sent, real = [], torch.distributed.all_reduce
    patch = pytest.MonkeyPatch()
    patch.setattr(
        torch.distributed, "all_reduce", lambda tensor, **options: (sent.append(tensor.nbytes), real(tensor, **options))
    )
    metric.update(batch)
    patch.undo()
    return sent


def test_traffic(processes):
    """A batch sends at most 20 bytes per row, target and process: a score and four counts."""
    for sent in processes.run(traffic, 2):
        assert len(sent) == 2
        assert sum(sent) <= 20 * 64


def fault(rank, world_size, kind):
    scores, target = torch.rand(4, 5), torch.tensor([1, 2, 3, 9])
    metric, given, weights = trm.HR(2), {"offset": 5 * rank, "num_items": 10}, {}
    if kind == "overlap":
        given["offset"] = 4 * rank
    elif kind == "missing":
        given["num_items"] = 12
    elif kind == "rows" and rank:
        scores, target = scores[:3], target[:3]
    elif kind == "depth" and rank:
        metric = trm.HR(3)
    elif kind == "dtype" and rank:
        scores = scores.double()
    elif kind == "num_items" and rank:
        given["num_items"] = 11
    elif kind == "nan" and rank:
        scores[1, 2] = float("nan")
    elif kind == "targets" and rank:
        target = target.flip(0)
    elif kind == "history":
        given["exclude"] = torch.tensor([5, 6, 7, 8 - rank])
    elif kind == "gains":
        given["gains"] = torch.tensor([1, 2, 3, 4 + rank])
    elif kind == "weights":
        weights["weights"] = torch.tensor([1.0, 1.0, 1.0, 1.0 + rank])
    elif kind == "bad_weights":
        weights["weights"] = torch.ones(4 + rank)
    elif kind == "no_target" and rank:
        target = None
    elif kind == "threshold" and rank:
        metric = trm.HR(2, score_threshold=0.5)
    elif kind == "mask":
        given["exclude"] = torch.ones(4, 5 + 5 * rank, dtype=torch.bool)
    elif kind == "padding":
        metric = trm.HR(2, padding_idx=10)
    elif kind == "other" and rank:
        weights["depth"] = 3
    elif kind == "ties" and rank:
        metric = trm.HR(2, ties="pessimistic")
    elif kind == "one" and rank:
        target = target.float()
    elif kind == "scores" and not rank:
        scores = scores.tolist()
    elif kind == "range":
        target = target + 10
    elif kind == "row_ids":
        given["row_ids"] = torch.tensor([7, 5, 6, 4 + rank])
    elif kind == "named" and rank:
        given["row_ids"] = torch.arange(4)
    elif kind == "column":
        metric = trm.RecMetricCollection("HR", k=2, accumulators=[trm.KeptRows()])
        weights["row_ids"] = torch.arange(4).roll(rank)
    try:
        metric.update(trm.ItemShard(scores, target, **given), **weights)
    except (ValueError, TypeError, RuntimeError) as error:
        return str(error), getattr(metric, "evaluator", metric).update_count
    return None


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("overlap", "shards must hold each of 10 items once, got the ranges [[0, 5], [4, 9]]"),
        ("missing", "shards must hold each of 12 items once"),
        ("rows", "processes differ in rows: [4, 3]"),
        ("depth", "processes differ in depth of metrics: [2, 3]"),
        ("dtype", "processes differ in dtype of scores"),
        ("num_items", "processes differ in num_items: [10, 11]"),
        ("targets", "processes differ in targets"),
        ("history", "processes differ in history"),
        ("gains", "processes differ in gains"),
        ("weights", "processes differ in weights"),
        ("bad_weights", "weights must be"),
        ("no_target", "target beside a shard is item ids [B] or [B, T], got NoneType"),
        ("threshold", "processes differ in score_threshold: [None, 0.5]"),
        ("mask", "exclude beside a shard is item ids [B, H], or bool [10], got"),
        ("padding", "padding_idx must be an item id in 0..9, got 10"),
        ("other", "depth belongs to ranks"),
        ("ties", "processes differ in options"),
        ("one", "target beside a shard is item ids"),
        ("scores", "scores must be a tensor"),
        ("range", "4 of 4 rows with a target id beyond the last item: row 0 holds 11 of 10 items"),
        ("row_ids", "1 of 4 rows whose row_ids differ between processes: row 3"),
        ("named", "processes differ in rows with row_ids: [0, 2]"),
        ("column", "4 of 4 rows whose row_ids differ between processes: row 0"),
        ("nan", "1 of 4 rows with a score that is NaN or +inf: row 1"),
    ],
)
def test_faults_raise_on_all_processes(processes, kind, message):
    """A fault on one process raises on all before any state changes, so that no process waits for another."""
    for found, count in processes.run(fault, 2, kind):
        assert message in found
        assert count == 0


def other_rows(rank, world_size, row_ids):
    """Return the value of two rows whose scores stand in another order on process 1, and whether checks wait."""
    scores = torch.tensor([[3.0, 1.0, 2.0, 0.0], [0.0, 2.0, 1.0, 3.0]])
    scores = scores.flip(0) if rank else scores
    metric = trm.HR(1, validate_args="deferred")
    ids = None if row_ids is None else row_ids[rank]
    metric.update(trm.ItemShard(scores[:, 2 * rank :][:, :2], torch.zeros(2).long(), 2 * rank, 4, row_ids=ids))
    try:
        return metric.compute().item()
    except ValueError as error:
        return str(error)


def test_rows_are_named(processes):
    """Scores of other rows show in `row_ids` alone: 3 1 1 3 and 0 2 2 0 give (1 / 2 + 0) / 2, the true rows 1 / 2."""
    same = [torch.tensor([2**40, 5])] * 2
    assert processes.run(other_rows, 2, None) == processes.run(other_rows, 2, same) == [1 / 4] * 2
    message = "HR@1: bad input since the last reset: 2 rows whose row_ids differ between processes"
    assert processes.run(other_rows, 2, [torch.tensor([2**40, 5]), torch.tensor([5, 2**40])]) == [message] * 2


def mixed(rank, world_size):
    metric, scores = trm.HR(2), torch.arange(40.0).view(4, 10)
    metric.update(trm.ItemShard(scores[:, 5 * rank :][:, :5], torch.tensor([9, 9, 9, 1]), 5 * rank, 10))
    metric.update(scores, torch.tensor([9, 1, 1, 1]))
    return metric.compute().item(), metric.num_users


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


SCORES, TARGET = torch.rand(2, 3), torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: trm.ItemShard(SCORES, TARGET, -1, 10), ValueError, "offset must be at least 0, got -1"),
        (lambda: trm.ItemShard(SCORES, TARGET, 0, 0), ValueError, "num_items must be at least 1, got 0"),
        (
            lambda: trm.HR(2).update(trm.ItemShard(SCORES, TARGET, 0, 3)),
            ValueError,
            "ItemShard is for several processes: initialise torch.distributed first",
        ),
    ],
)
def test_bad_input(call, error, message):
    """A bad shard raises an error that says what is accepted."""
    with pytest.raises(error, match=message):
        call()


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
