"""Windows, compared with the same rows computed anew, over batches, processes and checkpoints."""

import hypothesis.strategies as st
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from sizes import examples
from states import same, snapshot
from values import numbers

import torchrecmetrics as trm

NAMES = ["HR", "NDCG", "MRR"]
GENERATOR = torch.Generator().manual_seed(0)
SCORES, TARGET = torch.rand(1000, 12, generator=GENERATOR), torch.randint(-1, 12, (1000,), generator=GENERATOR)
CODES = torch.randint(-1, 2, (1000,), generator=GENERATOR)


def make(*accumulators, **options):
    accumulators = [trm.ByGroup("a", "b"), *accumulators]
    return trm.RecMetricCollection(NAMES, k=[1, 3], accumulators=accumulators, **options)


def fed(metrics, sizes):
    """Update with batches of these sizes, one after the other, and return the number of rows."""
    start = 0
    for size in sizes:
        rows = slice(start, start + size)
        metrics.update(SCORES[rows], TARGET[rows], groups=CODES[rows])
        start += size
    return start


def alone(rows):
    """Return values and standard errors of the metrics over these rows alone, to compare."""
    metrics = trm.RecMetricCollection(NAMES, k=[1, 3])
    metrics.update(SCORES[rows], TARGET[rows])
    found = numbers(metrics.compute()), numbers(metrics.standard_errors())
    return [pytest.approx(values, nan_ok=True, abs=1e-9) for values in found]


def recent(metrics):
    """Return values and standard errors of the window, under the keys without its name."""
    return [
        {key.removesuffix("/window"): value for key, value in numbers(found).items() if key.endswith("/window")}
        for found in (metrics.compute(), metrics.standard_errors())
    ]


@settings(max_examples=examples(60), deadline=None)
@given(window=st.integers(100, 400), sizes=st.lists(st.integers(1, 60), min_size=8, max_size=20))
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_a_window_holds_the_last_slots_that_have_its_number_of_rows(window, sizes):
    """It has at least `window` rows, and less than a slot and a batch more."""
    metrics = make(trm.Window(window))
    end = fed(metrics, sizes)
    starts, slot, num_rows = [0], 0, 0
    for size in sizes:  # find the rows at which slots begin
        num_rows += size
        slot += size
        if slot >= -(-window // 100):
            starts.append(num_rows)
            slot = 0
    first = max((start for start in starts if end - start >= window), default=0)

    assert recent(metrics) == alone(slice(first, end))


def test_a_window_of_3_updates_holds_the_last_three_batches():
    """It keeps no older one in memory."""
    window = trm.Window(updates=3)
    metrics = trm.RecMetricCollection("HR", k=1, accumulators=[window])
    for rank in (1, 1, 2, 1, 2):
        metrics.update(torch.tensor([rank]), depth=10)

    assert metrics.compute()["HR@1/window"] == 1 / 3
    assert len(window.slots) == 3


def shared(rank, world_size):
    """Update with this process's rows of every batch of 40; return the values within `sync()` and after it, loaded too.

    A checkpoint within `sync()`, which adds up the sums since the start and no window, is refused.
    """
    metrics, loaded = (make(trm.Window(200)) for _ in range(2))
    for start in range(0, 800, 40):
        rows = slice(start + rank, start + 40, world_size)
        metrics.update(SCORES[rows], TARGET[rows], groups=CODES[rows])
    loaded.persistent(True), metrics.persistent(True)
    metrics.evaluator.sync()
    synced = recent(metrics)[0]
    with pytest.raises(ValueError, match=r"sync\(\) does not add up Window\(rows=200, .*: save the state of each"):
        metrics.state_dict()
    metrics.evaluator.unsync()
    loaded.load_state_dict(metrics.state_dict())
    return [synced, recent(metrics)[0], recent(loaded)[0]]


def test_a_window_counts_the_rows_of_all_processes(processes):
    values, _ = alone(slice(600, 800))
    assert processes.run(shared, 2) == [[values] * 3] * 2


def unsynchronised(rank, world_size):
    """Give every process the same rows, and return values that each process computes for itself."""
    own = [dist.new_group([member]) for member in range(world_size)][rank] if world_size > 1 else None
    values = []
    for options in ({"sync_on_compute": False}, {"process_group": own}):
        metrics = make(trm.Window(200), **options)
        fed(metrics, [10] * 40)
        values.append(numbers(metrics.compute()))
    return values


def test_a_window_counts_the_rows_of_those_processes_alone_that_are_summed(processes):
    assert processes.run(unsynchronised, 2) == [unsynchronised(0, 1)] * 2


def uneven(rank, world_size):
    """Give process 0 ten batches of 100 hits, and process 1 one early batch of 100 misses; return the recent values."""
    recent_rows = [trm.Window(200), trm.Window(updates=2, name="updates")]
    metrics = trm.RecMetricCollection("HR", k=1, accumulators=recent_rows)
    for _ in range(1 if rank else 10):
        metrics.update(torch.full((100,), rank + 1), depth=10)
    return numbers(metrics.compute())


def test_a_process_that_stops_keeps_its_last_rows(processes):
    """Of 200 rows, each process holds its last 100; of two updates, process 0 has 200 rows and process 1 has 100."""
    expected = {"HR@1": 10 / 11, "HR@1/window": 1 / 2, "HR@1/updates": 2 / 3}
    assert processes.run(uneven, 2) == [pytest.approx(expected)] * 2


def uneven_sizes(rank, world_size):
    """Give both processes four updates, of 10 and of 100 rows, the last of hits; return the value of the window."""
    metrics = trm.RecMetricCollection("HR", k=1, accumulators=[trm.Window(100)])
    for number in range(4):
        metrics.update(torch.full((100 if rank else 10,), 1 if number == 3 else 2), depth=10)
    return metrics.compute()["HR@1/window"].item(), metrics["HR@1/window"].num_users


def test_each_process_fills_its_share_of_the_window(processes):
    """Of 50 rows, process 0 has four updates of 10, of which one hits, and process 1 the last one of 100."""
    assert processes.run(uneven_sizes, 2) == [(110 / 140, 140)] * 2


def of_shards(rank, world_size):
    """Give both processes, each with half of the items, ten batches of 20 rows that end with 100 hits."""
    metrics = trm.RecMetricCollection("HR", k=1, accumulators=[trm.Window(100)])
    for number in range(10):
        scores = torch.zeros(20, 4)
        scores[:, int(number >= 5)] = 1.0
        shard = trm.ItemShard(scores[:, 2 * rank : 2 * rank + 2], torch.ones(20).long(), offset=2 * rank, num_items=4)
        metrics.update(shard)
    return metrics.compute()["HR@1/window"].item(), metrics["HR@1/window"].num_users


def test_a_window_of_shards_counts_rows_that_all_processes_hold_once(processes):
    """Each process holds all 200 rows and counts half of them: the last 100 rows are 50 of each."""
    assert processes.run(of_shards, 2) == [(1.0, 100)] * 2


def persistent(accumulator, names=("HR", "MRR"), **options):
    """Return a collection whose state is saved, after an update with ten rows at rank 2."""
    metrics = trm.RecMetricCollection(list(names), k=10, accumulators=[accumulator], **options)
    metrics.persistent(True)
    metrics.update(torch.tensor([2] * 10), depth=10)
    return metrics


LENGTHS = "has Window.*, the other Window.*: make both"


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (persistent(trm.Window(1000)), LENGTHS),
        (persistent(trm.Window(updates=100)), LENGTHS),
        (persistent(trm.Window(100), ["HR"]), "same metrics can be merged"),
        (persistent(trm.Window(100), ["HR", "MAP"]), "same metrics can be merged"),
        (persistent(trm.Window(100), empty_target_action="neg"), "merges states named"),
    ],
)
def test_a_window_of_another_length_of_other_metrics_or_options_is_refused(other, message):
    metrics = persistent(trm.Window(100))
    before = snapshot(metrics)

    with pytest.raises(ValueError, match=message):
        metrics.merge_state(other)
    with pytest.raises(ValueError, match="can only load states of the same metrics, options and accumulators"):
        metrics.load_state_dict(other.state_dict())
    assert same(snapshot(metrics), before)


@pytest.mark.parametrize(
    ("make_bad", "message"),
    [
        (lambda: trm.Window(99), "rows must be at least 100, one per slot, got 99; or updates="),
        (lambda: trm.Window(updates=0), "updates must be at least 1, got 0"),
        (lambda: trm.Window(), "give either rows or updates"),
        (lambda: trm.Window(100, updates=3), "give either rows or updates"),
        (lambda: trm.Window(100, name="a/b"), "name becomes part of keys and must not hold '/' or '.', got 'a/b'"),
        (lambda: make(trm.Window(100), trm.Window(200)), "'HR@1/window' would be the key of two values"),
    ],
)
def test_a_bad_option_of_a_window_is_refused(make_bad, message):
    with pytest.raises(ValueError, match=message):
        make_bad()


def test_metrics_over_all_lists_have_no_window():
    accumulators = [trm.Window(100)]
    metrics = trm.RecMetricCollection(["HR", "Coverage"], k=3, accumulators=accumulators, catalogue=trm.Catalogue(9))

    assert list(metrics.keys()) == ["HR@3", "HR@3/window", "Coverage@3"]


def test_unfinished_sessions_have_no_window():
    with pytest.raises(ValueError, match="needs rows in order, which unfinished sessions lack"):
        trm.CollectSessions(trm.RecMetricCollection("MRR", accumulators=[trm.Window(100)]))


def hits_of_three():
    """Return a collection with a window, after hits in two rows of three."""
    metrics = trm.RecMetricCollection("HR", k=5, accumulators=[trm.Window(100)])
    metrics.update(torch.tensor([1, 9, 2]), depth=10)
    return metrics


def test_a_window_survives_loading_a_state_without_it():
    module = torch.nn.Module()
    module.metrics = hits_of_three()
    module.load_state_dict(module.state_dict())

    assert module.metrics.compute()["HR@5/window"] == 2 / 3


def test_evaluate_leaves_out_windows():
    target = trm.Interactions.from_columns([0, 1], [1, 2], num_users=2, num_items=3)
    result = trm.evaluate(hits_of_three(), torch.rand(2, 2), torch.rand(3, 2), target=target)

    assert list(result) == ["HR@5"]


def test_slots_that_are_loaded_from_the_host_are_summed_on_the_device_of_the_metrics():
    window = trm.Window(100)
    metrics = trm.RecMetricCollection(["HR", "MRR"], k=10, accumulators=[window]).to("meta")
    metrics.load_state_dict(persistent(trm.Window(100)).state_dict())

    assert window.totals()["sums"].device.type == "meta"


@pytest.mark.parametrize("window", [trm.Window(100), trm.Window(updates=3)], ids=repr)
def test_slots_from_before_a_move_are_saved_on_the_device_of_the_metrics(window):
    metrics = trm.RecMetricCollection("HR", k=5, accumulators=[window.empty_copy()], validate_args=False)
    metrics.persistent(True)
    metrics.update(torch.tensor([1, 9]), depth=10)
    metrics.to("meta")
    metrics.update(torch.tensor([1, 9]).to("meta"), depth=10)
    slots = [part for key, parts in metrics.state_dict().items() if key.endswith("slots") for part in parts]

    assert {part.device.type for part in slots} == {"meta"}
