"""`ItemShard`: items split over processes give the values of one process that has all items; traffic; errors."""

import pytest
import torch
from distributed import counted_collectives
from torch import tensor
from values import numbers

import torchrecmetrics as trm

ROWS, ITEMS = 40, 31
BATCHES = slice(0, 25), slice(25, ROWS)
GROUPS = torch.arange(ROWS) % 3 - 1
BORDERS = {1: [0, ITEMS], 2: [0, 9, ITEMS], 3: [0, 20, 20, ITEMS]}
"""Borders of uneven shards by the number of processes; of three shards one is empty."""


def batch_of(rows, dtype, masked):
    """Return scores of small whole numbers, many of them equal across shards, with targets, gains, excluded items."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 6, (ROWS, ITEMS), generator=generator).to(dtype)
    scores[torch.rand(ROWS, ITEMS, generator=generator) < 0.05] = -torch.inf
    target = torch.rand(ROWS, ITEMS, generator=generator).argsort(1)[:, :3]
    target[torch.rand(ROWS, 3, generator=generator) < 0.2] = -1
    exclude = torch.randint(-1, ITEMS, (ROWS, 5), generator=generator)[rows]
    return {
        "scores": scores[rows],
        "target": target[rows],
        "gains": torch.randint(1, 4, (ROWS, 3), generator=generator)[rows],
        "exclude": (exclude, torch.arange(ITEMS) % 7 == 3) if masked else exclude,
        "history": exclude,
    }


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
    """Return values of accuracy, of lists and of `forward`, and the number of users."""
    metrics, lists = accuracy(overlap), list_metrics(overlap)
    for rows in BATCHES:
        batch = batch_of(rows, dtype, masked)
        metrics.update(make_input(**batch), groups=GROUPS[rows])
        lists.update(make_input(**batch))
    forward = accuracy(overlap)(make_input(**batch_of(slice(None), dtype, masked)), groups=GROUPS)
    users = {"users": metrics["HR@1"].num_users}
    return [numbers(metrics.compute()), numbers(lists.compute()), numbers(forward), users]


def shard_of(rank, world_size, scores, **columns):
    first, last = BORDERS[world_size][rank : rank + 2]
    return trm.ItemShard(scores[:, first:last], offset=first, num_items=ITEMS, **columns)


def values_of_shards(rank, world_size, *settings):
    return values(lambda **batch: shard_of(rank, world_size, **batch), *settings)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize(
    "settings", [(torch.float32, "miss", False), (torch.bfloat16, "keep", False), (torch.float64, "keep", True)]
)
def test_every_process_has_the_values_of_one_that_has_all_items(processes, world_size, settings):
    """Ties go across shards, history and targets are in any shard. Of equal scores the lower id is listed first."""
    expected = values(trm.Scores, *settings)
    near = [pytest.approx(of_one_process, rel=1e-12, nan_ok=True) for of_one_process in expected]

    assert processes.run(values_of_shards, world_size, *settings) == [near] * world_size


def collectives(rank, world_size):
    metrics, batch = accuracy("miss"), batch_of(BATCHES[0], torch.float32, False)
    with counted_collectives() as calls:
        metrics.update(shard_of(rank, world_size, **batch), groups=GROUPS[BATCHES[0]])
    return calls


def test_an_update_compares_arguments_reduces_twice_and_compares_weights(processes):
    expected = ["all_gather_object", "all_reduce", "all_reduce", "all_gather_object"]

    assert processes.run(collectives, 2) == [expected] * 2


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


def test_a_batch_sends_at_most_20_bytes_per_row_target_and_process(processes):
    """A score and four counts, and a checksum of 8 bytes."""
    for score_bytes, count_bytes in processes.run(traffic, 2):
        assert score_bytes + count_bytes <= 20 * 64 + 8


SCORES, TARGET = torch.arange(20.0).view(4, 5), tensor([1, 2, 3, 9])
IDS = torch.arange(4)
FAULTS = {
    "ranges": (lambda rank: {"offset": 4 * rank}, "hold each of 10 items once, got the ranges [[0, 5], [4, 9]]"),
    "missing": (lambda rank: {"num_items": 12}, "shards must hold each of 12 items once"),
    "rows": (lambda rank: {"scores": SCORES[rank:], "target": TARGET[rank:]}, "processes differ in rows: [4, 3]"),
    "depth": (lambda rank: {"metric": trm.HR(2 + rank)}, "processes differ in depth of metrics: [2, 3]"),
    "dtype": (lambda rank: {"scores": SCORES.double() if rank else SCORES}, "processes differ in dtype of scores"),
    "num_items": (lambda rank: {"num_items": 10 + rank}, "processes differ in num_items: [10, 11]"),
    "targets": (lambda rank: {"target": TARGET.roll(rank)}, "processes differ in targets"),
    "history": (lambda rank: {"exclude": tensor([5, 6, 7, 8 - rank])}, "processes differ in history"),
    "gains": (lambda rank: {"gains": IDS + rank}, "processes differ in gains"),
    "weights": (lambda rank: {"update": {"weights": IDS + 1.0 + rank}}, "processes differ in weights"),
    "no target": (lambda rank: {"target": None if rank else TARGET}, "target must be a tensor, got NoneType"),
    "threshold": (
        lambda rank: {"metric": trm.HR(2, score_threshold=[None, 0.5][rank])},
        "processes differ in score_threshold: [None, 0.5]",
    ),
    "mask": (lambda rank: {"exclude": torch.ones(4, 5 + 5 * rank).bool()}, "item ids [B, H], or bool [10], got"),
    "padding": (lambda rank: {"metric": trm.HR(2, padding_idx=10)}, "padding_idx must be an item id in 0..9, got 10"),
    "option": (lambda rank: {"update": {"depth": 3} if rank else {}}, "depth= is for ranks"),
    "ties": (lambda rank: {"metric": trm.HR(2, ties=["expected", "realistic"][rank])}, "processes differ in options"),
    "row_ids": (lambda rank: {"row_ids": tensor([7, 5, 6, 4 + rank])}, "processes differ in row_ids: [[4] of checksum"),
    "column": (
        lambda rank: {
            "metric": trm.RecMetricCollection("HR", k=2, accumulators=[trm.KeptRows()]),
            "update": {"row_ids": IDS.roll(rank)},
        },
        "processes differ in row_ids",
    ),
}


def fault(rank, world_size, kind):
    """Return the message, and the number of updates that the metric has taken."""
    change = FAULTS[kind][0](rank)
    metric, keywords = change.pop("metric", trm.HR(2)), change.pop("update", {})
    shard = {"scores": SCORES, "target": TARGET, "offset": 5 * rank, "num_items": 10} | change
    with pytest.raises((ValueError, TypeError, RuntimeError)) as error:
        metric.update(trm.ItemShard(**shard), **keywords)
    return FAULTS[kind][1] in str(error.value), getattr(metric, "evaluator", metric).update_count


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_of_one_process_raises_on_all_before_any_state_changes(processes, kind):
    """So no process waits for another."""
    assert processes.run(fault, 2, kind) == [(True, 0)] * 2


def hit_rate_of_other_rows(rank, world_size, fields):
    """Return HR@1 of two rows whose scores stand in another order on process 1, as devices compare later batches.

    `fields` of an `ItemShard` hold a value for each process.
    """
    scores = tensor([[3.0, 1.0, 2.0, 0.0], [0.0, 2.0, 1.0, 3.0]])
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
        {"target": [tensor([0, 3]), tensor([3, 0])]},
        {"target": [tensor([0, 0]), tensor([0, -1])]},
        {"gains": [tensor([1.0, 2.0]), tensor([2.0, 1.0])]},
        {"row_ids": [tensor([2**40, 5]), tensor([5, 2**40])]},
        {"row_ids": [None, tensor([0, 1])]},
    ],
)
def test_rows_that_differ_are_an_error_of_compute_where_processes_do_not_wait(processes, fields):
    message = "HR@1: bad input since the last reset: 2 rows of a batch whose targets, gains or row_ids differ"

    assert processes.run(hit_rate_of_other_rows, 2, fields) == [f"{message} between processes"] * 2


@pytest.mark.parametrize("fields", [{}, {"row_ids": [tensor([2**40, 5])] * 2}])
def test_scores_of_other_rows_with_the_same_targets_give_wrong_values(processes, fields):
    """3 1 1 3 and 0 2 2 0 give (1 / 2 + 0) / 2 instead of 1 / 2; `row_ids` of the true rows would tell."""
    assert processes.run(hit_rate_of_other_rows, 2, fields) == [1 / 4] * 2


def items_of_long_lists(rank, world_size):
    shard = trm.ItemShard(torch.rand(3, 5), tensor([1, 2, 9]), 5 * rank, 10)
    return list(shard.ranking(1000, items=True).items.shape)


def test_lists_are_at_most_as_long_as_the_catalogue(processes):
    assert processes.run(items_of_long_lists, 2) == [[3, 10]] * 2


def hit_rate_of_shards_and_whole_rows(rank, world_size):
    metric, scores = trm.HR(2), torch.arange(40.0).view(4, 10)
    metric.update(trm.ItemShard(scores[:, 5 * rank :][:, :5], tensor([9, 9, 9, 1]), 5 * rank, 10))
    metric.update(scores, tensor([9, 1, 1, 1]))
    return metric.compute().item(), metric.num_users


def test_sharded_rows_count_once_and_whole_rows_on_each_process(processes):
    """3 hits in 4 sharded rows, 1 hit in 4 whole rows of each of two processes."""
    assert processes.run(hit_rate_of_shards_and_whole_rows, 2) == [((3 + 2 * 1) / 12, 12)] * 2


def hit_rates_of_saved_states(rank, world_size):
    """Return value and users of a loaded and of a merged metric, after another batch."""
    batch = trm.ItemShard(SCORES, tensor([4, 4, 4, 9]), 5 * rank, 10)
    first, loaded, merged = trm.HR(2), trm.HR(2), trm.HR(2)
    first.persistent(True), loaded.persistent(True)
    first.update(batch)
    loaded.load_state_dict(first.state_dict())
    merged.merge_state(first)
    for metric in (loaded, merged):
        metric.update(batch)
    return [(metric.compute().item(), metric.num_users) for metric in (loaded, merged)]


def test_saved_and_merged_shares_of_rows_add_up_over_processes(processes):
    """Items 4 and 9 share the best score of their rows, so that all 4 + 4 rows have a hit."""
    assert processes.run(hit_rates_of_saved_states, 2) == [[(1, 8), (1, 8)]] * 2


@pytest.mark.parametrize(
    ("offset", "num_items", "message"),
    [
        (-1, 10, "offset must be at least 0, got -1"),
        (0, 0, "num_items must be at least 1, got 0"),
        (0, 5, "ItemShard is for several processes: initialise torch.distributed first"),
    ],
)
def test_a_bad_shard_is_refused(offset, num_items, message):
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
    """Return values of shards on two of three processes, and of all items, which the third one has."""
    shards = torch.distributed.new_group([0, 1])
    scores = torch.arange(42, dtype=torch.float32).reshape(7, 6) * 5 % 17
    target, groups = torch.arange(7) % 6, torch.arange(7) % 3 - 1
    whole = with_groups_and_counts()(scores, target, groups=groups)
    own = trm.Scores(scores, target)
    if rank < 2:
        first, last = ((0, 4), (4, 6))[rank]
        own = trm.ItemShard(scores[:, first:last], target, first, 6, process_group=shards)
    batch = with_groups_and_counts()(own, groups=groups, row_ids=torch.arange(7))
    return numbers(batch), numbers(whole)


def test_forward_of_shards_has_the_value_of_all_rows_on_the_processes_of_their_group(processes):
    """It waits for no other process."""
    for batch, whole in processes.run(forward_of_two_shards, 3):
        assert batch == pytest.approx(whole, rel=1e-12)
