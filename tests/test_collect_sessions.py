"""`CollectSessions`: entries of a session in any order, batch or process are put together in `compute`."""

import copy
import itertools
import pickle

import hypothesis.strategies as st
import pytest
import torch
import torchmetrics
from hypothesis import given, settings
from sizes import examples
from states import same as unchanged
from states import snapshot
from values import numbers

import torchrecmetrics as trm
from torchrecmetrics import collect_sessions as sessions

NAMES = ["NDCG", "MRR", "MAP", "HR", "Recall"]


def rows(seed=0, num_sessions=40, longest=9, kind="grades"):
    """Return flat rows of sessions in random order: scores with ties, labels, and ids that are hashes or negative."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest, (num_sessions,), generator=generator)
    ids = (torch.randint(-(2**62), 2**62, (num_sessions,), generator=generator)).repeat_interleave(lengths)
    scores = torch.randint(6, (len(ids),), generator=generator).float()
    labels = torch.randint(3, (len(ids),), generator=generator) * (torch.rand(len(ids), generator=generator) < 0.4)
    order = torch.randperm(len(ids), generator=generator)
    labels = labels > 0 if kind == "bool" else labels
    return scores[order], labels[order], ids[order]


def collection(**options):
    return trm.RecMetricCollection([*NAMES, "AUROC", trm.AUROC(weight="candidates")], k=[1, 3], **options)


def collect(metrics, k=None, **options):
    """Return a `CollectSessions` of metrics."""
    return trm.CollectSessions(trm.RecMetricCollection(metrics, k=k, **options))


def fed(parts):
    """Return the values after updates with these parts."""
    metrics = trm.CollectSessions(collection())
    for scores, labels, ids in parts:
        metrics.update(scores, labels, ids)
    return metrics.compute()


def same(found, expected):
    """Return true if keys and all bits are equal."""
    return found.keys() == expected.keys() and all(torch.equal(found[key], expected[key]) for key in found)


@pytest.mark.parametrize("kind", ["grades", "bool"])
@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 2**20), cuts=st.lists(st.integers(0, 200), max_size=4), at_once=st.sampled_from([1, 20, 2**20])
)
def test_order_and_batches_change_no_value(kind, seed, cuts, at_once):
    """Any order, any batches and any `ENTRIES_AT_ONCE` give the values of one batch and of `Sessions`."""
    flat = rows(seed, kind=kind)
    expected = fed([flat])
    order = torch.randperm(len(flat[0]), generator=torch.Generator().manual_seed(seed))
    ends = [0, *sorted(min(cut, len(order)) for cut in cuts), len(order)]
    parts = [order[first:last] for first, last in itertools.pairwise(ends)]
    patch = pytest.MonkeyPatch()
    patch.setattr(sessions, "ENTRIES_AT_ONCE", at_once)
    found = fed([tuple(column[part] for column in flat) for part in parts if len(part)])
    patch.undo()
    whole = collection()
    whole.update(trm.Sessions(*flat))
    assert numbers(found) == pytest.approx(numbers(whole.compute()), abs=1e-12)
    assert numbers(found) == pytest.approx(numbers(expected), abs=1e-12)


def test_equals_torchmetrics_and_scikit_learn():
    """MRR, HR and NDCG equal `torchmetrics.retrieval`; AUROC per session, also weighted as in DIN, equals sklearn."""
    retrieval = pytest.importorskip("torchmetrics.retrieval")
    scikit = pytest.importorskip("sklearn.metrics")
    scores, labels, ids = rows(3, kind="bool")
    scores = (
        scores + torch.rand(len(scores), generator=torch.Generator().manual_seed(0)) / 2
    )  # torchmetrics breaks ties by position: remove them
    found = fed(
        [
            (part, labels[at : at + 50], ids[at : at + 50])
            for at, part in zip(range(0, 999, 50), scores.split(50), strict=False)
        ]
    )
    _, number = torch.unique(ids, return_inverse=True)
    for name, kind in (("MRR", "RetrievalMRR"), ("HR", "RetrievalHitRate"), ("NDCG", "RetrievalNormalizedDCG")):
        theirs = getattr(retrieval, kind)(top_k=3, empty_target_action="skip")
        assert found[f"{name}@3"].item() == pytest.approx(theirs(scores, labels, indexes=number).item(), abs=1e-6)
    values, weights = [], []
    for session in number.unique():
        own = number == session
        if 0 < labels[own].sum() < own.sum():
            values.append(scikit.roc_auc_score(labels[own], scores[own]))
            weights.append(int(own.sum()))
    assert found["AUROC"].item() == pytest.approx(sum(values) / len(values))
    expected = sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)
    assert found["AUROC-candidates"].item() == pytest.approx(expected)


def shares(rank, world_size, flat, uneven):
    """Update with the rows of this process, none on the last one if `uneven`, and return values, ids and users."""
    number = torch.arange(len(flat[0])) * 7919 % (max(1, world_size - uneven))
    metrics = trm.CollectSessions(collection(accumulators=[trm.KeptRows()]))
    mine = number == rank
    for part in mine.nonzero()[:, 0].split(30):
        metrics.update(*(column[part] for column in flat))
    found = metrics.compute()
    return (
        {key: value.item() for key, value in found.items()},
        sorted(metrics.rows.ids.tolist()),
        metrics["MRR@3"].num_users,
    )


@pytest.mark.parametrize(("world_size", "uneven"), [(1, 0), (2, 0), (3, 0), (3, 1)])
def test_processes_change_no_value(processes, world_size, uneven):
    """Sessions whose rows lie on several processes are put together; every process has the values of a single one."""
    flat = rows(5)
    expected = {key: value.item() for key, value in fed([flat]).items()}
    for found, ids, num_users in processes.run(shares, world_size, flat, uneven):
        assert found == pytest.approx(expected, abs=1e-12)
        assert ids == flat[2].unique().tolist()
        assert num_users == processes.run(shares, 1, flat, 0)[0][2]


def test_a_whole_session_that_comes_again_is_another_row():
    """`Sessions` takes every batch's sessions for whole: an id that comes again counts as another session."""
    metric = trm.MRR()
    scores, labels, ids = torch.tensor([1.0, 2.0]), torch.tensor([1, 0]), torch.tensor([4, 4])
    for _ in range(2):
        metric.update(trm.Sessions(scores, labels, ids))
    assert (metric.compute(), metric.num_users) == (0.5, 2)
    collected = trm.CollectSessions(trm.MRR())
    for _ in range(2):
        collected.update(scores, labels, ids)
    assert (collected.compute()["MRR"].item(), collected["MRR"].num_users) == (pytest.approx(1 / 3), 1)


def test_weights_groups_and_kept_rows():
    """A session has one weight, one group and one kept row, whose id is the session's.

    MedianRank, which counts ranks, reads sessions too.
    """
    scores, labels = torch.tensor([3.0, 1, 2, 5, 4, 9]), torch.tensor([0, 1, 0, 1, 0, 1])
    ids, weights, groups = (
        torch.tensor([7, 7, 9, 9, 9, 2]),
        torch.tensor([2.0, 2, 1, 1, 1, 4]),
        torch.tensor([0, 0, 1, 1, 1, -1]),
    )
    metrics = collect(["MRR", "MedianRank"], accumulators=[trm.ByGroup("cold", "warm"), trm.KeptRows()])
    for part in torch.tensor([5, 0, 3, 1, 4, 2]).split(2):
        metrics.update(scores[part], labels[part], ids[part], weights=weights[part], groups=groups[part])
    found = numbers(metrics.compute())
    assert found == pytest.approx({"MRR": (2 * 0.5 + 1 + 4) / 7, "MRR/cold": 0.5, "MRR/warm": 1, "MedianRank": 1})
    assert metrics.rows.ids.tolist() == sorted(metrics.rows.ids.tolist()) == [2, 7, 9]
    assert metrics.rows.values["MRR"].tolist() == [1, 0.5, 1]
    metrics.update(scores[:1], labels[:1], ids[:1], weights=weights[1:2] + 1, groups=groups[:1])
    with pytest.raises(ValueError, match="1 row of sessions whose entries have several weights or groups"):
        metrics.compute()


@pytest.mark.parametrize("single", [True, False])
def test_life_of_a_collection(single):
    """Copies, pickles, checkpoints, merging and `forward` carry entries that are not ranked yet; `reset` drops them."""
    scores, labels, ids = rows(11)

    def make():
        return trm.CollectSessions(trm.NDCG(3) if single else trm.RecMetricCollection(["NDCG"], k=3))

    def value(metrics):
        return metrics.compute()["NDCG@3"].item()

    first, second = slice(0, 60), slice(60, None)
    whole = make()
    whole.update(scores, labels, ids)
    expected = value(whole)
    metrics = make()
    batch = metrics(scores[first], labels[first], ids[first])["NDCG@3"]
    assert batch == value(metrics)
    metrics.persistent(True)
    loaded = make()
    loaded.persistent(True)
    loaded.load_state_dict(copy.deepcopy(metrics.state_dict()))
    merged = make()
    merged.merge_state(metrics)
    for other in (copy.deepcopy(metrics), pickle.loads(pickle.dumps(metrics)), loaded, merged, metrics.clone()):
        assert value(other) != expected
        other.update(scores[second], labels[second], ids[second])
        assert value(other) == expected
    metrics.reset()
    metrics.update(scores, labels, ids)
    assert value(metrics) == expected
    assert value(metrics) == expected


def test_merging_adds_the_entries_of_both():
    """Sessions that wait in both are put together, and states of anything else are refused by name."""
    scores, labels, ids = rows(12)
    one, other = (trm.CollectSessions(trm.RecMetricCollection(["MRR"])) for _ in range(2))
    one.update(scores[:70], labels[:70], ids[:70])
    other.update(scores[70:], labels[70:], ids[70:])
    whole = trm.CollectSessions(trm.MRR())
    whole.update(scores, labels, ids)
    one.compute()
    one.merge_state(other)
    assert one.compute()["MRR"] == whole.compute()["MRR"]
    for stranger, error in (
        (other.evaluator.metric_state, ValueError),
        (trm.RecMetricCollection(["MRR"]).evaluator, ValueError),
        (trm.CollectSessions(trm.RecMetricCollection(["MRR"], ties="optimistic")).evaluator, ValueError),
    ):
        with pytest.raises(error, match="MRR merges sessions of the same metrics and options, got"):
            one.evaluator.merge_state(stranger)
    assert one.evaluator.num_entries == len(ids)


def test_inside_a_metric_collection_of_torchmetrics():
    """Inside a MetricCollection of torchmetrics, a collection of sessions gives the values that it gives alone."""
    from torchmetrics import MetricCollection

    flat = rows(13)
    expected = fed([flat])
    outer = MetricCollection([trm.CollectSessions(collection())])
    for part in torch.arange(len(flat[0])).split(40):
        outer.update(*(column[part] for column in flat))
    assert same(outer.compute(), expected)


def test_loading_a_state_without_it_keeps_rows():
    """A module whose metric is not persistent loads its own state dict without losing entries."""
    module = torch.nn.Module()
    module.metrics = trm.CollectSessions(trm.MRR())
    module.metrics.update(torch.tensor([0.9, 0.5]), torch.tensor([0, 1]), torch.tensor([1, 1]))
    module.load_state_dict(module.state_dict())
    assert module.metrics.compute() == {"MRR": 0.5}


def test_beside_rows_of_other_forms():
    """Whole sessions and rows of a score matrix add up in one metric."""
    metric = trm.MRR()
    metric.update(torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([2]))
    metric.update(trm.Sessions(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1, 0, 0]), torch.tensor([5, 5, 6])))
    assert (metric.compute(), metric.num_users, metric.num_skipped) == (0.5, 2, 1)
    assert metric.compute() == 0.5


FLAT = {"scores": torch.rand(4), "labels": torch.ones(4), "indexes": torch.tensor([1, 1, 2, 2])}
BAD = [
    (
        {"scores": torch.tensor([1, float("nan"), 1, 1])},
        ValueError,
        "1 of 4 rows with a score that is NaN or .*: entry 1",
    ),
    ({"labels": torch.tensor([1, 0, float("inf"), 0])}, ValueError, "a gain that is NaN or infinite: entry 2"),
    ({"indexes": torch.tensor([1, 1, 2])}, ValueError, "must be tensors of one shape"),
    ({"indexes": torch.rand(4)}, TypeError, "indexes must hold int64"),
    ({"indexes": torch.ones(4, dtype=torch.int64, device="meta")}, ValueError, "indexes is on meta"),
    ({"exclude": torch.tensor([1])}, TypeError, "update has no argument 'exclude'"),
    ({"missing_target": "error"}, TypeError, "update has no argument 'missing_target'"),
    ({"weights": torch.ones(2)}, ValueError, r"weights must be \[4\], one per entry"),
    ({"scores": torch.rand(2, 4)}, ValueError, r"scores must be \[entries\]"),
    ({"groups": torch.ones(4).long()}, TypeError, "update has no argument 'groups'; groups of rows are read by"),
]


@pytest.mark.parametrize(("changed", "error", "message"), BAD)
def test_bad_input(changed, error, message):
    """Bad entries raise an error that names the argument, and change no state."""
    metrics = collect(["MRR"], k=2)
    with pytest.raises(error, match=message):
        metrics.update(**(FLAT | changed))
    assert metrics.evaluator.num_entries == metrics.evaluator.update_count == 0


def test_bad_whole_sessions():
    """`Sessions` wants ids or lengths, and lengths that fit the entries."""
    scores, labels = FLAT["scores"], FLAT["labels"]
    with pytest.raises(ValueError, match="indexes= or lengths= says which entries are of one session: give one of"):
        trm.Sessions(scores, labels)
    with pytest.raises(ValueError, match="indexes= or lengths= says which entries are of one session: give one of"):
        trm.Sessions(**FLAT, lengths=torch.tensor([2, 2]))
    for lengths, message in (
        ([2, 1], "lengths add up to 3, scores has 4 entries"),
        ([5, -1], "lengths must be 0 to 4, the number of entries, got 5"),
        ([2, 3, -1], "lengths must be 0 to 4, the number of entries, got -1"),
    ):
        metric = trm.MRR()
        with pytest.raises(ValueError, match=message):
            metric.update(trm.Sessions(scores, labels, lengths=torch.tensor(lengths)))
        assert not metric.update_called
    with pytest.raises(
        TypeError, match=r"entries of sessions, one per .* are update\(Sessions\(scores, labels, session"
    ):
        trm.MRR().update(scores, labels, indexes=FLAT["indexes"])
    with pytest.raises(TypeError, match=r"two positional arguments, scores and target.*update\(Sessions\(scores"):
        trm.MRR().update(scores, labels, FLAT["indexes"])


def test_what_entries_do_not_tell():
    """Entries are refused where item ids are needed, and where `groups` and the collection do not match.

    They are also refused where labels have another dtype, or weights are new, compared with the entries kept before.
    """
    with pytest.raises(ValueError, match="Coverage@2: flat rows do not name items"):
        collect(["Coverage"], k=2, catalogue=trm.Catalogue(4))
    for column in ("groups", "segment"):
        grouped = collect(["MRR"], accumulators=[trm.ByGroup("a", "b", column=column)])
        with pytest.raises(ValueError, match=rf"the collection has the groups a, b: update\(..., {column}=\) says"):
            grouped.update(**FLAT)
        with pytest.raises(TypeError, match=f"{column} must hold int64"):
            grouped.update(**FLAT, **{column: torch.zeros(4)})
        assert grouped.evaluator.num_entries == 0
    metrics = trm.CollectSessions(trm.MRR())
    metrics.update(**FLAT)
    with pytest.raises(ValueError, match="give all alike"):
        metrics.update(**(FLAT | {"labels": torch.ones(4, dtype=torch.bool)}))
    with pytest.raises(ValueError, match="rows are kept with weights in all batches, or in none"):
        metrics.update(**FLAT, weights=torch.ones(4))
    assert metrics.evaluator.num_entries == 4
    with pytest.raises(TypeError, match="CollectSessions takes a collection or a metric, got list"):
        trm.CollectSessions(["MRR"])


def test_sessions_without_entries():
    """A session of length 0 is a row without a relevant item, with its weight and group, in `update` and `forward`."""
    entries = torch.tensor([0.9, 0.1, 0.3]), torch.tensor([1, 0, 1])
    columns = {"weights": torch.ones(3), "groups": torch.tensor([0, 1, 1])}
    expected = {"HR@1": 2 / 3, "HR@1/a": 1.0, "HR@1/b": 0.5}
    for lengths in ([2, 0, 1], [2, 1, 0]):
        metrics = trm.RecMetricCollection(
            "HR", k=1, empty_target_action="neg", accumulators=[trm.ByGroup("a", "b"), trm.KeptRows()]
        )
        batch = trm.Sessions(*entries, lengths=torch.tensor(lengths))
        assert numbers(metrics(batch, **columns)) == pytest.approx(expected)
        assert numbers(metrics.compute()) == pytest.approx(expected)
        assert [value.num_users for value in metrics.values()] == [3, 1, 2]
        assert metrics.rows.values["HR@1"].tolist() == [1, *([0, 1] if lengths[1] == 0 else [1, 0])]
        assert metrics.rows.weights is None
    skipping = trm.HR(1)
    skipping.update(trm.Sessions(*entries, lengths=torch.tensor([2, 0, 1])), weights=torch.tensor([1.0, 5.0, 1.0]))
    assert (skipping.compute(), skipping.num_users, skipping.num_skipped) == (1, 2, 1)
    heavy = trm.HR(1, empty_target_action="neg")
    value = heavy(trm.Sessions(*entries, lengths=torch.tensor([2, 0, 1])), weights=torch.tensor([1.0, 2.0, 1.0]))
    assert value == heavy.compute() == 0.5
    with pytest.raises(ValueError, match=r"weights must be \[3\], one per row"):
        heavy.update(trm.Sessions(*entries, lengths=torch.tensor([2, 0, 1])), weights=torch.ones(2))


@pytest.mark.parametrize(
    "lengths", [[2**63 - 1, 2**63 - 1, 5], [2**62, 2**62, 2**62, 2**62, 3], [-1, 4], [4], [2**63 - 1]]
)
@pytest.mark.parametrize("checks", [True, False, "deferred"])
def test_lengths_that_overflow(lengths, checks):
    """Lengths that add up to the number of entries by overflow alone, or do not add up, raise an error."""
    metric = trm.AUROC(validate_args=checks)
    with pytest.raises(ValueError, match=r"lengths (must be 0 to 3|add up to 4|add up to 3)"):
        metric.update(trm.Sessions(torch.randn(3), torch.tensor([1, 0, 1]), lengths=torch.tensor(lengths)))
    assert not metric.update_called


def test_running_values_of_sessions():
    """torchmetrics' `Running` gives the value of the last batches of whole sessions."""
    running = torchmetrics.wrappers.Running(trm.MRR(), window=2)
    for labels in ([1, 0], [0, 1], [1, 0]):
        running.update(trm.Sessions(torch.tensor([0.9, 0.5]), torch.tensor(labels), torch.tensor([7, 7])))
    assert running.compute() == 0.75


def checkpoint(rank, world_size):
    """Return what saving a collection of sessions between `sync()` and `unsync()` says, and the values around it."""
    scores, labels, ids = rows(5)
    metrics = trm.CollectSessions(trm.RecMetricCollection(["MRR"]))
    metrics.persistent(True)
    mine = torch.arange(len(ids)) % world_size == rank
    metrics.update(scores[mine], labels[mine], ids[mine])
    told = []
    for _ in range(2):
        try:
            metrics.evaluator.sync()
            metrics.state_dict()
        except ValueError as error:
            told.append(str(error))
        if metrics.evaluator._is_synced:
            metrics.evaluator.unsync()
    return told, metrics.compute()["MRR"].item()


def test_checkpoints_of_waiting_sessions(processes):
    """Within `sync()`, which moves no entries, nothing is saved: it raises on all processes, and the value stays."""
    whole = trm.CollectSessions(trm.MRR())
    whole.update(*rows(5))
    for told, value in processes.run(checkpoint, 2):
        assert [("sync() moves no entries of sessions" in text) for text in told] == [True, True]
        assert value == pytest.approx(whole.compute()["MRR"].item(), abs=1e-12)


def test_row_ids_of_sessions():
    """The id of a session's row is the session's, or that in `row_ids`."""
    metrics = collect(["MRR"], accumulators=[trm.KeptRows()])
    metrics.update(**FLAT)
    assert metrics.rows.ids.tolist() == [1, 2]  # ranks the sessions
    metrics.reset()
    metrics.update(**FLAT, row_ids=torch.tensor([8, 8, 5, 5]))
    metrics.compute()
    assert sorted(metrics.rows.ids.tolist()) == [5, 8]


def unlike(rank, world_size):
    metrics = trm.CollectSessions(trm.MRR())
    metrics.update(**FLAT, **({"weights": torch.ones(4)} if rank else {}))
    with pytest.raises(ValueError, match="on some processes that others have not"):
        metrics.compute()
    return True


def synced(rank, world_size):
    metrics = trm.CollectSessions(trm.MRR())
    if rank:
        metrics.update(**FLAT)
    with pytest.raises(ValueError, match=r"sync\(\) moves no entries of sessions"):
        metrics.evaluator.sync()
    return True


def without_a_click(rank, world_size):
    """Give each process whole sessions; only those of process 1 hold one without a relevant entry."""
    metrics = trm.CollectSessions(trm.MRR(empty_target_action="error"))
    labels = torch.tensor([1, 0, 1, 0]) * (torch.tensor([1, 1, 1, 1 - rank]) > 0)
    ids = torch.tensor([0, 0, 1, 1]) + 2 * rank
    metrics.update(torch.arange(4.0), labels * (ids != 2), ids)
    with pytest.raises(ValueError, match=r": 1 row without a relevant item"):
        metrics.compute()
    return True


def test_sessions_without_a_relevant_item_are_counted_over_all():
    """With `empty_target_action="error"` the error counts these sessions over all buckets."""
    metrics = trm.CollectSessions(trm.MRR(empty_target_action="error"))
    for session in range(100):
        clicked = session % 8 != 3
        metrics.update(torch.rand(3), torch.tensor([clicked, False, False]), torch.full((3,), session))
    with pytest.raises(ValueError, match=r": 13 rows without a relevant item"):
        metrics.compute()


@pytest.mark.parametrize("call", [unlike, synced, without_a_click])
def test_all_processes_raise(processes, call):
    """Every process raises the error, so that no process waits for another."""
    assert processes.run(call, 2) == [True, True]


@pytest.mark.parametrize("other", ["weights", "dtypes"])
def test_entries_that_do_not_merge(other):
    """Entries with weights, or of other dtypes, are not merged with entries without; nothing is added."""
    scores, labels, ids = rows()

    def make(**weights):
        metrics = collect(["HR", "MRR"], k=3, accumulators=[trm.KeptRows()])
        metrics.update(scores, labels, ids, **weights)
        return metrics

    metrics, given = make(), make(weights=torch.ones(len(ids)))
    if other == "dtypes":
        scores, labels = scores.double(), labels > 0
        given = make()
    before = snapshot(metrics)
    cause = "rows are kept with weights in all batches" if other == "weights" else "scores and labels are .*float64"
    with pytest.raises(ValueError, match=cause):
        metrics.merge_state(given)
    assert unchanged(snapshot(metrics), before)
