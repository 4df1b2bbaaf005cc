"""State dicts: states are loaded whole or not at all, and nothing is shared with what they were loaded from."""

import pytest
import torch
import torchmetrics
from torchmetrics.utilities.exceptions import TorchMetricsUserError

import torchrecmetrics as trm
from torchrecmetrics.core.saving import write_text

FLAT = (torch.tensor([0.2, 0.9]), torch.tensor([1, 0]), torch.tensor([7, 7]))


def recent():
    """Return an empty collection whose accumulators keep lists."""
    metrics = trm.RecMetricCollection("HR", k=1, accumulators=[trm.KeptRows(), trm.Window(updates=3)])
    metrics.persistent(True)
    return metrics


def sessions():
    """Return an empty collection of sessions."""
    metrics = trm.CollectSessions(trm.HR(1))
    metrics.persistent(True)
    return metrics


@pytest.mark.parametrize(
    ("make", "batch"), [(recent, (trm.Ranks(torch.tensor([1, 2]), complete=True),)), (sessions, FLAT)]
)
def test_a_reset_empties_no_other(make, batch):
    """Collections that loaded one state dict have lists of their own, and so has the state dict."""
    first, second, third = make(), make(), make()
    first.update(*batch)
    wanted, state = first.compute(), first.state_dict()
    second.load_state_dict(state)
    third.load_state_dict(state)
    second.reset()
    assert third.compute() == wanted
    second.load_state_dict(state)
    assert second.compute() == wanted


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
        (GRAPH, "user_ids", None),
        (GRAPH, "user_ids.stream", torch.ones(9, dtype=torch.uint8)),
        (LOG, "users", torch.ones(2)),
        (LOG, "times.numbers", torch.tensor([1, 3])),
        (TEXT, "stream", 5),
        (WHOLE, "further", 5),
    ],
)
def test_damaged_fields_of_files_are_refused(thing, name, value, tmp_path):
    """A field that is not the one that was saved raises when the file is read, in words of ours."""
    path, kind = tmp_path / "file", type(thing)
    thing.save(path)
    fields = torch.load(path, weights_only=True)
    kind.load(path)
    torch.save(damaged(fields, name, value), path)
    with pytest.raises(ValueError, match=rf"file holds a damaged {kind.__name__}: its checksum differs"):
        kind.load(path)


def test_a_flipped_bit_is_found(tmp_path):
    """A file with a wrong bit is refused, or the bit belongs to nothing that is read."""
    path = tmp_path / "file"
    GRAPH.save(path)
    saved = path.read_bytes()
    for at in range(0, len(saved), len(saved) // 200):
        path.write_bytes(saved[:at] + bytes([saved[at] ^ 16]) + saved[at + 1 :])
        try:
            found = trm.Interactions.load(path)
        except ValueError:
            continue
        assert found.user_ids == GRAPH.user_ids
        assert found.item_ids == GRAPH.item_ids
        assert torch.equal(found.items, GRAPH.items)
        assert torch.equal(found.values, GRAPH.values)


def test_a_file_that_was_cut_short_is_refused_by_its_path(tmp_path):
    path = tmp_path / "file"
    GRAPH.save(path)
    saved = path.read_bytes()
    for size in range(0, len(saved), len(saved) // 50):
        path.write_bytes(saved[:size])
        with pytest.raises(ValueError, match=r"/file was not written by Interactions\.save, or is damaged$"):
            trm.Interactions.load(path)


@pytest.mark.parametrize("write", [GRAPH.save, LOG.save, TEXT.save, lambda path: write_text(path, "text")])
def test_a_full_disk_is_an_error_with_the_path(write):
    with pytest.raises(OSError, match=r"^/dev/full cannot be written: No space left on device$"):
        write("/dev/full")


def test_other_files_are_refused_without_the_words_of_torch(tmp_path):
    """A file that `torch.load` refuses is not one of ours; nobody is told to load what it holds."""
    torch.save(trm.HR(1), tmp_path / "pickle")
    (tmp_path / "text").write_text("no")
    for name in ("pickle", "text"):
        with pytest.raises(ValueError, match=rf"{name} was not written by Vocabulary.save, or is damaged$") as raised:
            trm.Vocabulary.load(tmp_path / name)
        assert raised.value.__cause__ is None
        assert raised.value.__suppress_context__


def test_a_nested_collection_is_saved():
    """`persistent` of an outer collection reaches the states of an inner one."""
    first, second = (torchmetrics.MetricCollection({"a": trm.RecMetricCollection("HR", k=5)}) for _ in range(2))
    first.persistent(True)
    first.update(torch.tensor([1, 2]), depth=10)
    second.persistent(True)
    second.load_state_dict(first.state_dict())
    assert second.compute()["a_HR@5"] == 1


@pytest.mark.parametrize("lacking", ["slots", "-sums", "ids"])
def test_a_part_of_a_state_is_refused(lacking):
    """A state dict without one of the states is refused, and nothing is loaded."""
    first, second = recent(), recent()
    first.update(torch.tensor([1, 1]), depth=10)
    second.update(torch.tensor([2, 2]), depth=10)
    with pytest.raises(ValueError, match="can only load states of the same metrics, options and accumulators"):
        second.load_state_dict({key: part for key, part in first.state_dict().items() if lacking not in key})
    assert second.compute() == {"HR@1": 0, "HR@1/window": 0}


@pytest.mark.parametrize("name", ["Coverage", "Gini", "ExposureGini"])
def test_a_state_of_another_catalogue_is_refused(name):
    """Counts of fewer items are refused, and nothing is loaded."""
    small, large = (getattr(trm, name)(3, catalogue=trm.Catalogue(number)) for number in (4, 12))
    for metric in (small, large):
        metric.persistent(True)
        metric.update(trm.Lists(torch.tensor([[0, 1, 2]]), torch.tensor([0])))
    wanted = large.compute()
    with pytest.raises(ValueError, match="can only load states of the same metrics, options and accumulators"):
        large.load_state_dict(small.state_dict())
    large.persistent(False)
    assert large.compute() == wanted


def test_states_that_are_summed_take_nothing(monkeypatch):
    """Between `sync` and `unsync`, which restores the states before, nothing is merged or loaded."""
    metric, other = trm.HR(1), trm.HR(1)
    other.persistent(True)
    other.update(torch.tensor([1]), depth=10)
    monkeypatch.setattr(metric, "_is_synced", True)
    for change in (lambda: metric.merge_state(other), lambda: metric.load_state_dict(other.state_dict())):
        with pytest.raises(TorchMetricsUserError, match=r"is synchronised: call unsync\(\) before you"):
            change()
    monkeypatch.undo()
    assert not any(state.any() for state in metric.metric_state.values())


def test_values_are_updated_in_any_order():
    """The values of a collection, put into another one under sorted keys, add each batch once."""
    outer = torchmetrics.MetricCollection(dict(trm.RecMetricCollection("HR", k=[5, 10]).items()))
    assert outer(torch.tensor([7]), depth=30) == {"HR@10": 1, "HR@5": 0}
    assert outer(torch.tensor([20]), depth=30) == {"HR@10": 0, "HR@5": 0}
    outer.update(torch.tensor([3]), depth=10)
    assert outer.compute() == {"HR@10": 2 / 3, "HR@5": 1 / 3}


def saved_by_torch(rank, world_size, folder):
    """Return values and counts before saving, after loading as documented, and after a further update."""
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    ranks = torch.tensor([1, 1, 1] if rank == 0 else [9, 9])
    codes = {"groups": torch.full((len(ranks),), rank)}

    def make():
        metrics = trm.RecMetricCollection(["HR", "MRR"], k=2, accumulators=[trm.ByGroup("a", "b")])
        metrics.persistent(True)
        return metrics

    def found(metrics):
        values = {key: value.nan_to_num(-1).item() for key, value in metrics.compute().items()}
        return values, metrics["HR@2"].num_users

    metrics = make()
    metrics.update(ranks, depth=10, **codes)
    results = [found(metrics)]
    metrics.evaluator.sync()
    dcp.save(metrics.state_dict(), checkpoint_id=folder)
    metrics.evaluator.unsync()
    assert found(metrics) == results[0]
    loaded = make()
    state = loaded.state_dict()
    dcp.load(state, checkpoint_id=folder)
    loaded.load_state_dict(state)
    if rank:
        loaded.reset()
    results.append(found(loaded))
    loaded.update(ranks, depth=10, **codes)
    results.append(found(loaded))
    return results


def test_checkpoints_of_several_processes(processes, tmp_path):
    """Sums of all processes, which one process keeps after loading, go on as before."""
    first, second = processes.run(saved_by_torch, 2, str(tmp_path), timeout=60)
    assert first == second
    before, loaded, resumed = first
    assert (before[0]["HR@2"], before[1]) == (pytest.approx(3 / 5), 5)
    assert loaded == before
    assert resumed == (pytest.approx(before[0]), 10)
