"""`ItemShard`: items split over processes give the values of one process that has all items; traffic; errors."""

import pytest
import torch
from distributed import counted_collectives
from torch import tensor
from values import numbers

import torchrecmetrics as trm


def ranks_of_halves(rank, world_size):
    """Return the ranks of items 2 and 0 among four items, of which each process scores two."""
    scores = tensor([[0.9, 0.1, 0.5, 0.3], [0.2, 0.1, 0.4, 0.3]])[:, 2 * rank : 2 * rank + 2]
    return trm.ItemShard(scores, tensor([2, 0]), offset=2 * rank, num_items=4).ranking().ranks.tolist()


def test_a_target_is_ranked_among_the_items_of_all_processes(processes):
    behind_one_item_of_process_0, behind_both_items_of_process_1 = [2], [3]

    assert processes.run(ranks_of_halves, 2) == [[behind_one_item_of_process_0, behind_both_items_of_process_1]] * 2


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


def values_of_batches(make_input, dtype, overlap, masked):
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
    return values_of_batches(lambda **batch: shard_of(rank, world_size, **batch), *settings)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize(
    "settings", [(torch.float32, "miss", False), (torch.bfloat16, "keep", False), (torch.float64, "keep", True)]
)
def test_shards_of_random_rows_have_the_values_of_one_process_with_all_items(processes, world_size, settings):
    """Ties go across shards, history and targets are in any shard. Of equal scores the lower id is listed first."""
    expected = [pytest.approx(values, rel=1e-12, nan_ok=True) for values in values_of_batches(trm.Scores, *settings)]

    assert processes.run(values_of_shards, world_size, *settings) == [expected] * world_size


def collectives_of_an_update(rank, world_size):
    metric, shard = trm.MRR(), trm.ItemShard(torch.rand(64, 10), torch.arange(64) % 20, 10 * rank, 20)
    with counted_collectives() as calls:
        metric.update(shard)
    return calls


def test_an_update_compares_arguments_reduces_twice_and_compares_weights(processes):
    expected = ["all_gather_object", "all_reduce", "all_reduce", "all_gather_object"]

    assert processes.run(collectives_of_an_update, 2) == [expected] * 2


def bytes_of_all_reduces(rank, world_size):
    """Return the bytes that each all-reduce of an update with 64 rows of one target sends."""
    sent, real = [], torch.distributed.all_reduce

    def counted(tensor, **options):
        sent.append(tensor.nbytes)
        return real(tensor, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.distributed, "all_reduce", counted)
        trm.MRR().update(trm.ItemShard(torch.rand(64, 10), torch.arange(64) % 20, 10 * rank, 20))
    return sent


def test_a_batch_sends_20_bytes_per_row_and_target(processes):
    scores_and_checksum, four_counts = 64 * 4 + 8, 64 * 4 * 4

    assert processes.run(bytes_of_all_reduces, 2) == [[scores_and_checksum, four_counts]] * 2


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
    "threshold": (lambda rank: {"metric": trm.HR(2, score_threshold=0.5 * rank)}, "score_threshold: [0.0, 0.5]"),
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


def error_and_updates(rank, world_size, kind):
    """Return the message, and the number of updates that the metric has taken."""
    change = FAULTS[kind][0](rank)
    metric, keywords = change.pop("metric", trm.HR(2)), change.pop("update", {})
    shard = {"scores": SCORES, "target": TARGET, "offset": 5 * rank, "num_items": 10} | change
    with pytest.raises((ValueError, TypeError, RuntimeError)) as error:
        metric.update(trm.ItemShard(**shard), **keywords)
    return str(error.value), getattr(metric, "evaluator", metric).update_count


@pytest.mark.parametrize(("kind", "words"), [(kind, words) for kind, (_, words) in FAULTS.items()], ids=FAULTS)
def test_a_fault_of_one_process_raises_on_all_before_any_state_changes(processes, kind, words):
    """So no process waits for another."""
    for message, num_updates in processes.run(error_and_updates, 2, kind):
        assert words in message
        assert num_updates == 0


def hit_rate_of_swapped_rows(rank, world_size, fields):
    """Return HR@1, or the error, of two rows that are swapped on process 1, as devices compare later batches.

    `fields` of an `ItemShard` hold a value for each process.
    """
    scores = tensor([[3.0, 1.0, 2.0, 0.0], [0.0, 2.0, 1.0, 3.0]])
    scores = scores.flip(0) if rank else scores
    fields = {"target": torch.zeros(2).long()} | {name: of_processes[rank] for name, of_processes in fields.items()}
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
    ids=["targets", "padding", "gains", "row_ids", "row_ids of one process"],
)
def test_rows_that_differ_are_an_error_of_compute_where_processes_do_not_wait(processes, fields):
    message = "HR@1: bad input since the last reset: 2 rows of a batch whose targets, gains or row_ids differ"

    assert processes.run(hit_rate_of_swapped_rows, 2, fields) == [f"{message} between processes"] * 2


@pytest.mark.parametrize("fields", [{}, {"row_ids": [tensor([2**40, 5])] * 2}], ids=["no row_ids", "equal row_ids"])
def test_swapped_rows_with_the_same_targets_give_wrong_values(processes, fields):
    """Item 0 is tied with item 3 in the row 3 1 1 3 and last in the row 0 2 2 0; unswapped, it is a hit and a miss."""
    assert processes.run(hit_rate_of_swapped_rows, 2, fields) == [(1 / 2 + 0) / 2] * 2


def list_of_1000_places(rank, world_size):
    scores = tensor([[[5.0, 3.0]], [[4.0, 6.0]]])[rank]
    return trm.ItemShard(scores, tensor([1]), 2 * rank, 4).ranking(1000, items=True).items.tolist()


def test_lists_are_at_most_as_long_as_the_catalogue(processes):
    assert processes.run(list_of_1000_places, 2) == [[[3, 0, 2, 1]]] * 2


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


def forward_of_two_of_three_processes(rank, world_size):
    shards = torch.distributed.new_group([0, 1])
    if rank == 2:
        return None
    metrics = trm.RecMetricCollection(
        ["HR", "Coverage", "MedianRank"],
        k=2,
        catalogue=trm.Catalogue(6),
        accumulators=[trm.ByGroup("a", "b"), trm.Window(100), trm.KeptRows()],
    )
    scores, target = tensor([[9.0, 8, 1, 1, 7, 1], [1.0, 1, 1, 1, 9, 8], [9.0, 8, 7, 1, 1, 1]]), tensor([0, 4, 2])
    columns = slice(4) if rank == 0 else slice(4, 6)
    shard = trm.ItemShard(scores[:, columns], target, 4 * rank, 6, process_group=shards)
    return numbers(metrics(shard, groups=tensor([0, 1, 1]), row_ids=tensor([5, 6, 7])))


def test_forward_has_the_value_of_all_rows_on_the_processes_of_its_group(processes):
    """Ranks 1, 1 and 3; items 0, 1, 4 and 5 are listed. It waits for no process outside."""
    expected = {"HR@2": 2 / 3, "HR@2/a": 1, "HR@2/b": 1 / 2, "Coverage@2": 4 / 6, "MedianRank": 1}

    assert processes.run(forward_of_two_of_three_processes, 3) == [expected, expected, None]
