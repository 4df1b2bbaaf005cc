"""Windows and decay, compared with the same rows computed anew, over batches, processes and checkpoints."""

import copy
import itertools
import pickle

import hypothesis.strategies as st
import pytest
import torch
import torch.distributed as dist
import torchmetrics
from hypothesis import given, settings
from sizes import examples
from values import numbers

import torchrecmetrics as trm

NAMES = ["HR", "NDCG", "MRR"]
GENERATOR = torch.Generator().manual_seed(0)
SCORES, TARGET = torch.rand(1000, 12, generator=GENERATOR), torch.randint(-1, 12, (1000,), generator=GENERATOR)
CODES = torch.randint(-1, 2, (1000,), generator=GENERATOR)


def make(**options):
    return trm.RecMetricCollection(NAMES, k=[1, 3], groups=["a", "b"], **options)


def fed(metrics, sizes):
    """Update with batches of these sizes, one after the other, and return the number of rows."""
    start = 0
    for size in sizes:
        rows = slice(start, start + size)
        metrics.update(SCORES[rows], TARGET[rows], groups=CODES[rows])
        start += size
    return start


def alone(rows, **options):
    """Return values and standard errors of these rows alone."""
    metrics = make()
    metrics.update(SCORES[rows], TARGET[rows], groups=CODES[rows], **options)
    return numbers(metrics.compute()), numbers(metrics.standard_errors())


def recent(metrics, name):
    """Return values and standard errors of the recent rows, under the keys without their suffix."""
    return [
        {key.removesuffix(f"/{name}"): value for key, value in numbers(found).items() if key.endswith(f"/{name}")}
        for found in (metrics.compute(), metrics.standard_errors())
    ]


@pytest.mark.fixed
@settings(max_examples=examples(60), deadline=None)
@given(window=st.integers(100, 400), sizes=st.lists(st.integers(1, 60), min_size=8, max_size=20))
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_a_window_of_rows(window, sizes):
    """A window holds the rows of the last slots: at least `window`, and less than a slot and a batch more."""
    metrics = make(window=window)
    end = fed(metrics, sizes)
    starts = [0]
    slot = held = 0
    for size in sizes:  # find the rows at which slots begin
        held += size
        slot += size
        if slot >= -(-window // 100):
            starts.append(held)
            slot = 0
    first = max((start for start in starts if end - start >= window), default=0)
    values, errors = alone(slice(first, end))
    found, found_errors = recent(metrics, "window")
    assert found == pytest.approx(values, nan_ok=True)
    assert found_errors == pytest.approx(errors, nan_ok=True, abs=1e-9)
    assert numbers(metrics.compute())["NDCG@3"] == pytest.approx(alone(slice(0, end))[0]["NDCG@3"], nan_ok=True)


@pytest.mark.fixed
def test_a_window_of_updates():
    """A window of 3 updates holds the last three batches, whatever their sizes."""
    metrics = make(window="3 updates")
    end = fed(metrics, [50, 7, 20, 3, 40])
    assert recent(metrics, "window")[0] == pytest.approx(alone(slice(end - 63, end))[0])


@pytest.mark.fixed
@settings(max_examples=examples(40), deadline=None)
@given(half_life=st.sampled_from([0.5, 30, 1000.0]), sizes=st.lists(st.integers(1, 60), min_size=1, max_size=15))
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_decay(half_life, sizes):
    """Each row weighs 0.5 ** (its age in rows / half_life), in values and standard errors."""
    metrics = make(half_life=half_life)
    end = fed(metrics, sizes)
    weights = torch.exp2(-torch.arange(end - 1, -1, -1).double() / half_life)
    values, errors = alone(slice(0, end), weights=weights)
    found, found_errors = recent(metrics, "decayed")
    assert found == pytest.approx(values, nan_ok=True, abs=1e-9)
    assert found_errors["NDCG@3"] == pytest.approx(errors["NDCG@3"], nan_ok=True, abs=1e-6)


def shared(rank, world_size):
    """Update each process with its rows of every batch of 40, and return the values."""
    values = []
    for options in ({"window": 200}, {"half_life": 100}):
        metrics = make(**options)
        for start in range(0, 800, 40):
            rows = slice(start + rank, start + 40, world_size)
            metrics.update(SCORES[rows], TARGET[rows], groups=CODES[rows])
        values.append(numbers(metrics.compute()))
    return values


@pytest.mark.fixed
def test_processes(processes):
    """A window and a decayed mean count the rows of all processes."""
    (window, decayed), other = processes.run(shared, 2)
    assert [window, decayed] == other
    expected, _ = alone(slice(600, 800))
    assert {key: window[f"{key}/window"] for key in expected} == pytest.approx(expected)
    weights = torch.exp2(-(torch.arange(799, -1, -1) // 2 * 2).double() / 100)
    expected, _ = alone(slice(0, 800), weights=weights)
    assert {key: decayed[f"{key}/decayed"] for key in expected} == pytest.approx(expected, abs=1e-6)


def unsynchronised(rank, world_size):
    """Give every process the same rows, and return values that each process computes for itself."""
    own = [dist.new_group([member]) for member in range(world_size)][rank] if world_size > 1 else None
    values = []
    for options in ({"window": 200}, {"half_life": 50}):
        for alone in ({"sync_on_compute": False}, {"process_group": own}):
            metrics = make(**options, **alone)
            fed(metrics, [10] * 40)
            values.append(numbers(metrics.compute()))
    return values


def test_processes_that_do_not_synchronise(processes):
    """A window counts the rows of those processes alone whose sums `compute` adds up."""
    assert processes.run(unsynchronised, 2) == [unsynchronised(0, 1)] * 2


def saved(rank, world_size):
    """Return values of both processes: computed after `sync()`, after a checkpoint of each process, and with no cache.

    Saving after `sync()`, which adds up the sums since the start and no window, raises an error that says what to do.
    """
    metrics, loaded = (make(window=200, compute_with_cache=False) for _ in range(2))
    for start in range(0, 800, 40):
        rows = slice(start + rank, start + 40, world_size)
        metrics.update(SCORES[rows], TARGET[rows], groups=CODES[rows])
    loaded.persistent(True), metrics.persistent(True)
    for metric in metrics.members:
        metric.sync()
    values = [numbers(metrics.compute())]
    with pytest.raises(ValueError, match=r"sync\(\) does not add up window=200: save the state of each process"):
        metrics.state_dict()
    for metric in metrics.members:
        metric.unsync()
    loaded.load_state_dict(metrics.state_dict())
    values += [numbers(metrics.compute()), numbers(loaded.compute())]
    if rank == 0:
        metrics.update(SCORES[:0], TARGET[:0], groups=CODES[:0])
    return [*values, numbers(metrics.compute())]


def test_checkpoints_of_processes(processes):
    """Each process saves and loads its own state; values after `sync()`, and without a cache, are of all processes."""
    first, second = processes.run(saved, 2)
    assert first == [first[0]] * 4 == second
    expected, _ = alone(slice(600, 800))
    assert {key: first[0][f"{key}/window"] for key in expected} == pytest.approx(expected)


OPTIONS = [{"window": 100}, {"window": 1000}, {"window": "3 updates"}, {"half_life": 5}]


def persistent(names, **options):
    """Return a collection whose state is saved, after an update with ten rows at rank 2."""
    metrics = trm.RecMetricCollection(names, k=10, **options)
    metrics.persistent(True)
    metrics.update(torch.tensor([2] * 10))
    return metrics


@pytest.mark.parametrize("options", OPTIONS)
def test_order_of_metrics(options):
    """Loading and merging match windows by metric, in whatever order the metrics stand."""
    metrics = persistent(["HR", "MRR"], **options)
    loaded, merged = persistent(["MRR", "HR"], **options), persistent(["MRR", "HR"], **options)
    loaded.load_state_dict(metrics.state_dict())
    merged.merge_state(metrics)
    for other in (loaded, merged):
        assert numbers(other.compute()) == numbers(metrics.compute())


@pytest.mark.parametrize(("own", "other"), [*itertools.permutations(OPTIONS, 2)])
def test_windows_of_other_lengths(own, other):
    """A window of another length is neither merged nor loaded; the error names both, and nothing changes."""
    metrics, given = persistent("HR", **own), persistent("HR", **other)
    before = numbers(metrics.compute())
    with pytest.raises(ValueError, match=r"has (window|half_life)=.*, the other (window|half_life)=.*: make both"):
        metrics.merge_state(given)
    with pytest.raises(
        ValueError, match=r"the state has (window|half_life)=.*, the collection has (window|half_life)="
    ):
        metrics.load_state_dict(given.state_dict())
    assert numbers(metrics.compute()) == before


@pytest.mark.parametrize("names", [["HR"], ["HR", "MRR", "MAP"], ["HR", trm.MRR(10, empty_target_action="neg")]])
def test_windows_of_other_metrics(names):
    """A window of other metrics, or of metrics with other options, is not loaded, and nothing changes."""
    options = {"empty_target_action": "neg"} if len(names) == 2 else {}
    metrics, given = persistent(["HR", "MRR"], window=100), persistent(names, window=100, **options)
    before = numbers(metrics.compute())
    with pytest.raises(ValueError, match=r"windows of the same metrics can be loaded; only one of the two has"):
        metrics.load_state_dict(given.state_dict())
    assert numbers(metrics.compute()) == before


@pytest.mark.parametrize("options", OPTIONS)
def test_metrics_change_without_rows_alone(options):
    """Metrics are added and deleted before the first update and after `reset`, not while the window holds rows."""
    metrics = persistent(["HR", "MRR"], **options)
    before = numbers(metrics.compute())
    with pytest.raises(ValueError, match=r"HR@10: its rows are kept; call reset\(\) first"):
        del metrics["HR@10"]
    with pytest.raises(ValueError, match=r"NDCG@10: rows of the other metrics are kept already; .* or call reset\(\)"):
        metrics.add_metrics(trm.NDCG(10))
    assert numbers(metrics.compute()) == before
    metrics.reset()
    del metrics["HR@10"]
    metrics.add_metrics(trm.NDCG(10))
    metrics.update(torch.tensor([2] * 10))
    assert numbers(metrics.compute()) == numbers(persistent(["MRR", "NDCG"], **options).compute())
    metrics.reset()
    with pytest.raises(ValueError, match=r"Coverage@10 counts over all lists"):
        metrics.add_metrics(trm.Coverage(10, catalogue=trm.Catalogue(20)))


def test_members_alone():
    """A member of a collection with a window is not updated alone, neither by hand nor in a `MetricCollection`."""
    metrics = trm.RecMetricCollection("MRR", k=10, window=100)
    ranks = torch.tensor([2] * 10)
    for call in (metrics["MRR@10"].update, metrics["MRR@10"], torchmetrics.MetricCollection([metrics]).update):
        with pytest.raises(ValueError, match=r"MRR@10 is in a collection with a window: update that"):
            call(ranks)
    assert not metrics["MRR@10"].update_called
    metrics["MRR@10"].clone().update(ranks)


def test_life_of_a_window():
    """A window survives copies, pickles, checkpoints and merging, its keys have the prefix, and `reset` empties it."""
    metrics = make(window=100, prefix="train/")
    fed(metrics, [60] * 5)
    metrics.persistent(True)
    loaded = make(window=100, prefix="train/")
    loaded.persistent(True)
    loaded.load_state_dict(metrics.state_dict())
    for other in (copy.deepcopy(metrics), pickle.loads(pickle.dumps(metrics)), loaded):
        assert numbers(other.compute()) == numbers(metrics.compute())
    assert "train/NDCG@3/window" in metrics.compute()
    merged = make(window=100, prefix="train/")
    merged.merge_state(metrics)
    merged.merge_state(metrics)
    assert merged.compute()["train/HR@3/window"] == metrics.compute()["train/HR@3/window"]
    with pytest.raises(ValueError, match="one of the two collections has window=100, the other no window"):
        merged.merge_state(make(prefix="train/"))
    metrics.reset()
    fed(metrics, [30])
    assert numbers(metrics.compute())["train/HR@3/window"] == numbers(metrics.compute())["train/HR@3"]


def test_never_waits_for_the_device():
    """An update with a window or decay reads no value: it runs on `meta`, where reading a value raises."""
    scores, target = torch.empty(6, 20, device="meta"), torch.empty(6, dtype=torch.int64, device="meta")
    for options in ({"window": 100}, {"half_life": 9}):
        metrics = trm.RecMetricCollection(NAMES, k=3, **options).to("meta")
        for _ in range(3):
            metrics.update(scores, target)
        metrics = trm.RecMetricCollection(NAMES, k=3, **options)
        metrics.update(SCORES[:9], TARGET[:9])
        metrics.to("meta").update(scores, target)  # the slots of a collection that was moved move, too


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 99}, "window must be at least 100 rows, one per slot, got 99"),
        ({"window": "50 rows"}, "window must be a number of rows, or such as '50 updates', got '50 rows'"),
        ({"window": 100, "half_life": 9}, "give window or half_life, one of the two"),
        ({"half_life": -1}, "half_life must be a number of rows above 0, got -1"),
        ({"half_life": True}, "half_life must be a number of rows above 0, got True"),
    ],
)
def test_bad_options(options, message):
    """A bad `window` or `half_life` raises an error that says what is accepted."""
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_what_has_no_window():
    """A window is refused for metrics that count items over all lists, and for sessions that are not complete."""
    with pytest.raises(ValueError, match=r"Coverage@3 counts over all lists, .* a window of 100 slots would hold"):
        trm.RecMetricCollection(["HR", "Coverage"], k=3, window=100, catalogue=trm.Catalogue(9))
    metrics = trm.RecMetricCollection("MRR", window=100)
    flat = torch.rand(3), torch.tensor([1, 0, 1])
    with pytest.raises(ValueError, match="a window needs rows in order, which unfinished sessions lack"):
        metrics.update(*flat, indexes=torch.tensor([0, 0, 1]))
    metrics.update(*flat, indexes=torch.tensor([0, 0, 1]), complete=True)
    assert metrics.compute()["MRR/window"] == metrics.compute()["MRR"]


def test_a_window_outside_its_updates():
    """A window survives loading a state without it, its errors survive `reset`, and `evaluate` leaves it out."""
    module = torch.nn.Module()
    module.metrics = metrics = trm.RecMetricCollection("HR", k=5, window=100)
    metrics.update(torch.tensor([1, 9, 2]))
    module.load_state_dict(module.state_dict())
    assert metrics.compute()["HR@5/window"] == 2 / 3
    metrics.reset()
    assert metrics.standard_errors()["HR@5/window"] == pytest.approx(1 / 3)
    target = trm.Interactions.from_columns([0, 1], [1, 2], num_users=2, num_items=3)
    found = trm.evaluate(metrics, torch.rand(2, 2), torch.rand(3, 2), target=target)
    assert list(found) == ["HR@5"]
    assert "HR@5" in str(found)


@pytest.mark.parametrize("window", [100, "3 updates"])
def test_slots_on_two_devices_are_saved(window):
    """Slots from before a move are saved on the device of the metrics."""
    metrics = trm.RecMetricCollection("HR", k=5, window=window, validate_args=False)
    metrics.persistent(True)
    metrics.update(torch.tensor([1, 9]))
    metrics.to("meta")
    metrics.update(torch.tensor([1, 9]).to("meta"))
    assert {part.device.type for key, part in metrics.state_dict().items() if "-window-" in key} == {"meta"}
