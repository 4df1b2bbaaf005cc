"""State dicts: states are loaded whole or not at all, and nothing is shared with what they were loaded from."""

from contextlib import suppress

import pytest
import torch
import torchmetrics
from states import same, snapshot, tensors
from torchmetrics.utilities.exceptions import TorchMetricsUserError
from values import numbers

import torchrecmetrics as trm
from torchrecmetrics.core.saving import write_text


def recent():
    metrics = trm.RecMetricCollection("HR", k=1, accumulators=[trm.KeptRows(), trm.Window(updates=3)])
    metrics.persistent(True)
    return metrics


def sessions():
    metrics = trm.CollectSessions(trm.HR(1))
    metrics.persistent(True)
    return metrics


ENTRIES = (torch.tensor([0.2, 0.9]), torch.tensor([0, 1]), torch.tensor([7, 7]))


@pytest.mark.parametrize(
    ("make", "batch", "values"),
    [
        (recent, (trm.Ranks(torch.tensor([1, 2]), complete=True),), {"HR@1": 1 / 2, "HR@1/window": 1 / 2}),
        (sessions, ENTRIES, {"HR@1": 1}),
    ],
)
def test_a_reset_empties_no_state_dict_and_no_other_collection_that_loaded_it(make, batch, values):
    saved, reset, loaded_before, loaded_after = (make() for _ in range(4))
    saved.update(*batch)
    state = saved.state_dict()
    reset.load_state_dict(state)
    loaded_before.load_state_dict(state)
    reset.reset()
    loaded_after.load_state_dict(state)

    assert loaded_before.compute() == values
    assert loaded_after.compute() == values


GRAPH = trm.Interactions.from_columns(["a", "b", "b"], [3, 3, 7], [1.0, 2, 3], user_ids=["a", "b"], item_ids=[3, 7])
LOG = trm.Log.from_frame({"user": ["a", "b"], "item": [3, 7], "time": [1, 2]})
TEXT, WHOLE = GRAPH.user_ids, GRAPH.item_ids


def damaged(fields, path, value):
    """Return the fields of a file, one of which, named with those that hold it, has another value."""
    name, *inner = path.split(".")
    return fields | {name: damaged(fields[name], inner[0], value) if inner else value}


@pytest.mark.parametrize(
    ("thing", "name", "value"),
    [
        *((thing, "version", 0) for thing in (GRAPH, LOG, TEXT)),
        *((GRAPH, name, value) for name in ("num_items", "num_dropped") for value in ("x", 7, None)),
        *((GRAPH, name, torch.tensor([0, 1, 1])) for name in ("offsets", "items", "values")),
        (GRAPH, "items", torch.tensor([0, 0, 1], dtype=torch.int32)),
        (GRAPH, "values", None),
        (GRAPH, "values", GRAPH.values.view(torch.int64)),  # the same bytes
        (GRAPH, "user_ids", None),
        (GRAPH, "user_ids.stream", torch.ones(9, dtype=torch.uint8)),
        (LOG, "users", torch.ones(2)),
        (LOG, "times.numbers", torch.tensor([1, 3])),
        (TEXT, "stream", 5),
        (WHOLE, "further", 5),
    ],
)
def test_a_field_of_a_file_that_is_not_the_one_that_was_saved_is_refused(thing, name, value, tmp_path):
    path, kind = tmp_path / "file", type(thing)
    thing.save(path)
    fields = torch.load(path, weights_only=True)
    torch.save(fields, path)
    kind.load(path)  # as it was
    torch.save(damaged(fields, name, value), path)

    with pytest.raises(ValueError, match=rf"file holds a damaged {kind.__name__}: its checksum differs"):
        kind.load(path)


def test_a_file_with_a_wrong_bit_is_refused_or_the_bit_belongs_to_nothing_that_is_read(tmp_path):
    path, loaded = tmp_path / "file", []
    GRAPH.save(path)
    saved = path.read_bytes()
    for place in range(0, len(saved), len(saved) // 200):
        path.write_bytes(saved[:place] + bytes([saved[place] ^ 16]) + saved[place + 1 :])
        with suppress(ValueError):
            loaded.append(trm.Interactions.load(path))
    contents = [(g.user_ids, g.item_ids, g.items.tolist(), g.values.tolist()) for g in loaded]

    assert contents == [(GRAPH.user_ids, GRAPH.item_ids, GRAPH.items.tolist(), GRAPH.values.tolist())] * len(loaded)


@pytest.mark.parametrize("share", [0, 0.01, 0.2, 0.5, 0.8, 0.99])
def test_a_file_that_was_cut_short_is_refused_by_its_path(share, tmp_path):
    path = tmp_path / "file"
    GRAPH.save(path)
    saved = path.read_bytes()
    path.write_bytes(saved[: int(share * len(saved))])

    with pytest.raises(ValueError, match=r"/file was not written by Interactions\.save, or is damaged$"):
        trm.Interactions.load(path)


@pytest.mark.parametrize("write", [GRAPH.save, LOG.save, TEXT.save, lambda path: write_text(path, "text")])
def test_a_full_disk_is_an_error_with_the_path(write):
    with pytest.raises(OSError, match=r"^/dev/full cannot be written: No space left on device$"):
        write("/dev/full")


@pytest.mark.parametrize(
    "write",
    [lambda path: torch.save(trm.HR(1), path), lambda path: path.write_text("no")],
    ids=["of pickled objects", "of text"],
)
def test_another_file_is_refused_without_the_words_of_torch(write, tmp_path):
    write(tmp_path / "file")

    with pytest.raises(ValueError, match=r"file was not written by Vocabulary.save, or is damaged$") as raised:
        trm.Vocabulary.load(tmp_path / "file")
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_persistent_of_an_outer_collection_reaches_the_states_of_an_inner_one():
    first, second = (torchmetrics.MetricCollection({"a": trm.RecMetricCollection("HR", k=5)}) for _ in range(2))
    first.persistent(True)
    first.update(torch.tensor([1, 2]), depth=10)
    second.persistent(True)
    second.load_state_dict(first.state_dict())

    assert second.compute()["a_HR@5"] == 1


@pytest.mark.parametrize("lacking", ["slots", "-sums", "ids"])
def test_a_state_dict_without_one_of_the_states_is_refused_and_nothing_is_loaded(lacking):
    first, second = recent(), recent()
    first.update(torch.tensor([1, 1]), depth=10)
    second.update(torch.tensor([2, 2]), depth=10)

    with pytest.raises(ValueError, match="can only load states of the same metrics, options and accumulators"):
        second.load_state_dict({key: part for key, part in first.state_dict().items() if lacking not in key})
    assert second.compute() == {"HR@1": 0, "HR@1/window": 0}


@pytest.mark.parametrize("name", ["Coverage", "Gini", "ExposureGini"])
def test_counts_of_fewer_items_are_refused_and_nothing_is_loaded(name):
    small, large = (getattr(trm, name)(3, catalogue=trm.Catalogue(number)) for number in (4, 12))
    for metrics in (small, large):
        metrics.persistent(True)
        metrics.update(trm.Lists(torch.tensor([[0, 1, 2]]), torch.tensor([0])))
    before = snapshot(large)

    with pytest.raises(ValueError, match="can only load states of the same metrics, options and accumulators"):
        large.load_state_dict(small.state_dict())
    assert same(snapshot(large), before)


@pytest.mark.parametrize(
    "change",
    [lambda metric, other: metric.merge_state(other), lambda metric, other: metric.load_state_dict(other.state_dict())],
    ids=["merged", "loaded"],
)
def test_nothing_is_merged_or_loaded_between_sync_and_unsync(change, monkeypatch):
    """`unsync` restores the states before."""
    metric, other = trm.HR(1), trm.HR(1)
    other.persistent(True)
    other.update(torch.tensor([1]), depth=10)
    monkeypatch.setattr(metric, "_is_synced", True)

    with pytest.raises(TorchMetricsUserError, match=r"is synchronised: call unsync\(\) before you"):
        change(metric, other)
    assert not any(state.any() for state in tensors(metric))


def test_values_that_are_updated_in_another_order_add_each_batch_once():
    outer = torchmetrics.MetricCollection(dict(trm.RecMetricCollection("HR", k=[5, 10]).items()))
    outer.update(torch.tensor([3]), depth=10)

    assert outer(torch.tensor([7]), depth=30) == {"HR@10": 1, "HR@5": 0}
    assert outer.compute() == {"HR@10": 2 / 2, "HR@5": 1 / 2}


def saved_by_torch(rank, world_size, folder):
    """Return values and numbers of users before saving, after loading as documented, and after a further update."""
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    batch = {"scores": torch.tensor([[1, 1, 1], [9, 9]][rank]), "depth": 10}
    batch["groups"] = torch.full_like(batch["scores"], rank)
    saved, loaded = (trm.RecMetricCollection("HR", k=2, accumulators=[trm.ByGroup("a", "b")]) for _ in range(2))
    saved.persistent(True)
    loaded.persistent(True)

    saved.update(**batch)
    results = [(numbers(saved.compute()), saved["HR@2"].num_users)]
    saved.evaluator.sync()
    dcp.save(saved.state_dict(), checkpoint_id=folder)

    state = loaded.state_dict()
    dcp.load(state, checkpoint_id=folder)
    loaded.load_state_dict(state)
    if rank:
        loaded.reset()
    results.append((numbers(loaded.compute()), loaded["HR@2"].num_users))
    loaded.update(**batch)
    return [*results, (numbers(loaded.compute()), loaded["HR@2"].num_users)]


def test_sums_of_all_processes_that_one_process_loads_go_on_as_before(processes, tmp_path):
    results = processes.run(saved_by_torch, 2, str(tmp_path), timeout=60)
    values = {"HR@2": 3 / 5, "HR@2/a": 3 / 3, "HR@2/b": 0 / 2}

    assert results == [[(values, 5), (values, 5), (values, 5 + 5)]] * 2
