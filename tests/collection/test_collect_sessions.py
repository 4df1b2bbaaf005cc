"""`CollectSessions`: entries of a session in any order, batch or process are put together in `compute`."""

import copy
import itertools
import pickle

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from sizes import examples
from states import same, snapshot
from values import near, numbers

import torchrecmetrics as trm
from torchrecmetrics.collection import collect_sessions as sessions

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


def update(metrics, flat, parts=(slice(None),)):
    """Return the metrics after an update with each of these parts of the entries."""
    for part in parts:
        metrics.update(*(column[part] for column in flat))
    return metrics


@pytest.mark.parametrize("kind", ["grades", "bool"])
@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 2**20), cuts=st.lists(st.integers(0, 200), max_size=4), at_once=st.sampled_from([1, 20, 2**20])
)
def test_order_and_batches_change_no_value(kind, seed, cuts, at_once):
    """Any order, any batches and any `ENTRIES_AT_ONCE` give the values of `Sessions`."""
    flat = rows(seed, kind=kind)
    order = torch.randperm(len(flat[0]), generator=torch.Generator().manual_seed(seed))
    ends = [0, *sorted(min(cut, len(order)) for cut in cuts), len(order)]
    parts = [order[first:last] for first, last in itertools.pairwise(ends) if first < last]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "ENTRIES_AT_ONCE", at_once)
        found = update(trm.CollectSessions(collection()), flat, parts).compute()
    whole = collection()
    whole.update(trm.Sessions(*flat))
    assert numbers(found) == near(whole.compute())


def shares(rank, world_size, flat, uneven):
    """Update with the rows of this process, none on the last one if `uneven`, and return values, ids and users."""
    number = torch.arange(len(flat[0])) * 7919 % (max(1, world_size - uneven))
    metrics = trm.CollectSessions(collection(accumulators=[trm.KeptRows()]))
    update(metrics, flat, (number == rank).nonzero()[:, 0].split(30))
    return numbers(metrics.compute()), sorted(metrics.rows.ids.tolist()), metrics["MRR@3"].num_users


@pytest.mark.parametrize(("world_size", "uneven"), [(1, 0), (2, 0), (3, 1)])
def test_processes_change_no_value(processes, world_size, uneven):
    """Sessions whose rows lie on several processes are put together; every process has the values of a single one."""
    flat = rows(5)
    whole = update(trm.CollectSessions(collection()), flat)
    expected = near(whole.compute())
    for found, ids, num_users in processes.run(shares, world_size, flat, uneven):
        assert found == expected
        assert ids == flat[2].unique().tolist()
        assert num_users == whole["MRR@3"].num_users


def test_a_whole_session_that_comes_again_is_another_row():
    """`Sessions` takes every batch's sessions for whole: an id that comes again counts as another session."""
    flat = torch.tensor([1.0, 2.0]), torch.tensor([1, 0]), torch.tensor([4, 4])
    metric, collected = trm.MRR(), trm.CollectSessions(trm.MRR())
    for _ in range(2):
        metric.update(trm.Sessions(*flat))
        collected.update(*flat)
    assert (metric.compute(), metric.num_users) == (0.5, 2)
    assert (collected.compute()["MRR"].item(), collected["MRR"].num_users) == (pytest.approx(1 / 3), 1)


def test_weights_groups_and_kept_rows():
    """A session has one weight, one group and one kept row, whose id is the session's.

    MedianRank, which counts ranks, reads sessions too.
    """
    scores, labels = torch.tensor([3.0, 1, 2, 5, 4, 9]), torch.tensor([0, 1, 0, 1, 0, 1])
    ids, weights = torch.tensor([7, 7, 9, 9, 9, 2]), torch.tensor([2.0, 2, 1, 1, 1, 4])
    groups = torch.tensor([0, 0, 1, 1, 1, -1])
    metrics = collect(["MRR", "MedianRank"], accumulators=[trm.ByGroup("cold", "warm"), trm.KeptRows()])
    for part in torch.tensor([5, 0, 3, 1, 4, 2]).split(2):
        metrics.update(scores[part], labels[part], ids[part], weights=weights[part], groups=groups[part])
    assert metrics.rows.ids.tolist() == [2, 7, 9]  # ranks the sessions
    found = numbers(metrics.compute())
    assert found == pytest.approx({"MRR": (2 * 0.5 + 1 + 4) / 7, "MRR/cold": 0.5, "MRR/warm": 1, "MedianRank": 1})
    assert metrics.rows.values["MRR"].tolist() == [1, 0.5, 1]
    metrics.update(scores[:1], labels[:1], ids[:1], weights=weights[1:2] + 1, groups=groups[:1])
    with pytest.raises(ValueError, match="1 row of sessions whose entries differ in weight or group"):
        metrics.compute()


@pytest.mark.parametrize("metrics", [trm.NDCG(3), trm.RecMetricCollection(["NDCG"], k=3)])
def test_life_of_a_collection(metrics):
    """Copies, pickles, checkpoints, merging and `forward` carry entries that are not ranked yet; `reset` drops them."""
    flat = rows(11)
    first, second = (tuple(column[part] for column in flat) for part in (slice(0, 60), slice(60, None)))
    expected = update(trm.CollectSessions(metrics), flat).compute()
    collected, loaded, merged = (trm.CollectSessions(metrics) for _ in range(3))
    assert collected(*first) == collected.compute() != expected
    collected.persistent(True)
    loaded.persistent(True)
    loaded.load_state_dict(copy.deepcopy(collected.state_dict()))
    merged.merge_state(collected)
    copies = copy.deepcopy(collected), pickle.loads(pickle.dumps(collected)), collected.clone()
    for other in (*copies, loaded, merged):
        assert other.compute() == collected.compute()
        assert update(other, second).compute() == expected
    collected.reset()
    for _ in range(2):
        assert update(collected, flat).compute() == collected.compute() == expected
        collected.reset()


def test_merging_adds_the_entries_of_both():
    """Sessions that wait in both are put together, and states of anything else are refused by name."""
    flat = rows(12)
    one, other = (update(collect(["MRR"]), flat, [part]) for part in (slice(0, 70), slice(70, None)))
    one.compute()
    one.merge_state(other)
    assert one.compute() == update(trm.CollectSessions(trm.MRR()), flat).compute()
    for stranger, error in (
        (other.evaluator.metric_state, ValueError),
        (trm.RecMetricCollection(["MRR"]).evaluator, ValueError),
        (collect(["MRR"], ties="optimistic").evaluator, ValueError),
    ):
        with pytest.raises(error, match="MRR merges sessions of the same metrics and options, got"):
            one.evaluator.merge_state(stranger)
    assert one.evaluator.num_entries == len(flat[2])


def test_entries_that_do_not_merge():
    """Entries with weights, or of other dtypes, are not merged with entries without; nothing is added."""
    scores, labels, ids = rows()
    metrics = collect(["HR", "MRR"], k=3, accumulators=[trm.KeptRows()])
    metrics.update(scores, labels, ids)
    before = snapshot(metrics)
    for entries, weights, message in (
        ((scores, labels, ids), torch.ones(len(ids)), "pass weights for all batches"),
        ((scores.double(), labels > 0, ids), None, "scores and labels are .*float64"),
    ):
        other = collect(["HR", "MRR"], k=3, accumulators=[trm.KeptRows()])
        other.update(*entries, weights=weights)
        with pytest.raises(ValueError, match=message):
            metrics.merge_state(other)
        assert same(snapshot(metrics), before)


def test_beside_rows_of_other_forms():
    """Whole sessions and rows of a score matrix add up in one metric."""
    metric = trm.MRR()
    metric.update(torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([2]))
    metric.update(trm.Sessions(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1, 0, 0]), torch.tensor([5, 5, 6])))
    assert (metric.compute(), metric.num_users, metric.num_skipped) == (0.5, 2, 1)


FLAT = {"scores": torch.rand(4), "labels": torch.ones(4), "indexes": torch.tensor([1, 1, 2, 2])}
BAD = [
    ({"scores": torch.tensor([1, float("nan"), 1, 1])}, ValueError, "1 of 4 rows with a score that is NaN .*: entry 1"),
    ({"labels": torch.tensor([1, 0, float("inf"), 0])}, ValueError, "a gain that is NaN or infinite: entry 2"),
    ({"indexes": torch.tensor([1, 1, 2])}, ValueError, "must be tensors of one shape"),
    ({"exclude": torch.tensor([1])}, TypeError, "update has no argument 'exclude'"),
    ({"weights": torch.ones(2)}, ValueError, r"weights must be \[4\], one per entry"),
    ({"scores": torch.rand(2, 4)}, ValueError, r"scores must be \[entries\]"),
    ({"groups": torch.ones(4).long()}, TypeError, "update has no argument 'groups'"),
]


@pytest.mark.parametrize(("changed", "error", "message"), BAD)
def test_bad_input(changed, error, message):
    """Bad entries raise an error that names the argument, and change no state."""
    metrics = collect(["MRR"], k=2)
    with pytest.raises(error, match=message):
        metrics.update(**(FLAT | changed))
    assert metrics.evaluator.num_entries == metrics.evaluator.update_count == 0


def test_entries_have_no_items_for_metrics_of_lists():
    with pytest.raises(ValueError, match="Coverage@2: metrics of lists need item ids"):
        collect(["Coverage"], k=2, catalogue=trm.Catalogue(4))


@pytest.mark.parametrize("column", ["groups", "segment"])
def test_entries_need_the_groups_of_the_collection(column):
    grouped = collect(["MRR"], accumulators=[trm.ByGroup("a", "b", column=column)])

    with pytest.raises(ValueError, match=rf"the collection has the groups a, b: pass .* update\(..., {column}=\)"):
        grouped.update(**FLAT)
    with pytest.raises(TypeError, match=f"{column} must hold int64"):
        grouped.update(**FLAT, **{column: torch.zeros(4)})
    assert grouped.evaluator.num_entries == 0


def test_entries_of_all_batches_have_one_dtype_and_weights_or_none():
    metrics = trm.CollectSessions(trm.MRR())
    metrics.update(**FLAT)

    with pytest.raises(ValueError, match="use the same dtypes"):
        metrics.update(**(FLAT | {"labels": torch.ones(4, dtype=torch.bool)}))
    with pytest.raises(ValueError, match="pass weights for all batches, or for none"):
        metrics.update(**FLAT, weights=torch.ones(4))
    assert metrics.evaluator.num_entries == 4


def test_a_list_of_names_is_no_collection():
    with pytest.raises(TypeError, match="CollectSessions takes a collection or a metric, got list"):
        trm.CollectSessions(["MRR"])


HUGE = 2**63 - 1


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([2, 1], "lengths add up to 3, but scores has 4 entries"),
        ([5, -1], "lengths must be 0 to 4, the number of entries, got 5"),
        ([HUGE, HUGE, 6], "lengths must be 0 to 4"),  # adds up by overflow
        ([2**62, 2**62, 2**62, 2**62, 4], "lengths must be 0 to 4"),
    ],
)
@pytest.mark.parametrize("checks", [True, False, "deferred"])
def test_lengths_that_do_not_fit(lengths, message, checks):
    """Lengths whose sum is not the number of entries, or equals it only by overflow, raise an error."""
    metric = trm.AUROC(validate_args=checks)
    with pytest.raises(ValueError, match=message):
        metric.update(trm.Sessions(FLAT["scores"], FLAT["labels"], lengths=torch.tensor(lengths)))
    assert not metric.update_called


def test_bad_whole_sessions():
    """`Sessions` needs ids or lengths; `update` of a metric takes sessions only as `Sessions`."""
    scores, labels, ids = FLAT.values()
    for more in ({}, {"indexes": ids, "lengths": torch.tensor([2, 2])}):
        with pytest.raises(ValueError, match="give either indexes= or lengths="):
            trm.Sessions(scores, labels, **more)
    with pytest.raises(TypeError, match="update has no argument 'indexes'"):
        trm.MRR().update(scores, labels, indexes=ids)
    with pytest.raises(TypeError, match="takes from 1 to 3 positional arguments but 4 were given"):
        trm.MRR().update(scores, labels, ids)


ENTRIES = torch.tensor([0.9, 0.1, 0.3]), torch.tensor([1, 0, 1])


@pytest.mark.parametrize(("lengths", "hits"), [([2, 0, 1], [1, 0, 1]), ([2, 1, 0], [1, 1, 0])])
def test_a_session_without_entries_is_a_row(lengths, hits):
    """It has no relevant item, and its group, in `update` and `forward`."""
    accumulators = [trm.ByGroup("a", "b"), trm.KeptRows()]
    metrics = trm.RecMetricCollection("HR", k=1, empty_target_action="neg", accumulators=accumulators)
    batch = metrics(trm.Sessions(*ENTRIES, lengths=torch.tensor(lengths)), groups=torch.tensor([0, 1, 1]))

    expected = pytest.approx({"HR@1": 2 / 3, "HR@1/a": 1.0, "HR@1/b": 0.5})
    assert numbers(batch) == numbers(metrics.compute()) == expected
    assert [value.num_users for value in metrics.values()] == [3, 1, 2]
    assert metrics.rows.values["HR@1"].tolist() == hits


def test_a_session_without_entries_has_a_weight():
    batch = trm.Sessions(*ENTRIES, lengths=torch.tensor([2, 0, 1]))
    skipping, heavy = trm.HR(1), trm.HR(1, empty_target_action="neg")
    skipping.update(batch, weights=torch.tensor([1.0, 5.0, 1.0]))

    assert (skipping.compute(), skipping.num_users, skipping.num_skipped) == (1, 2, 1)
    assert heavy(batch, weights=torch.tensor([1.0, 2.0, 1.0])) == heavy.compute() == 0.5
    with pytest.raises(ValueError, match=r"weights must be \[3\], one per row"):
        heavy.update(batch, weights=torch.ones(2))


def test_row_ids_of_sessions():
    """The id of a session's row is the one in `row_ids`, if they are given."""
    metrics = collect(["MRR"], accumulators=[trm.KeptRows()])
    metrics.update(**FLAT, row_ids=torch.tensor([8, 8, 5, 5]))
    assert sorted(metrics.rows.ids.tolist()) == [5, 8]


@pytest.mark.parametrize("step", [1, 4, 12, 1000, 2**20, 2**32])
def test_processes_share_sessions_whose_ids_are_multiples_of_a_number(step):
    """Each of four processes ranks about 250 of 1,000 sessions."""
    owners = sessions.owner_of(torch.arange(1000) * step, 4)

    assert torch.bincount(owners, minlength=4).tolist() == pytest.approx([250] * 4, abs=50)


def retrieved(num_hits, length=10, queries=40):
    """Return flat entries of retrieved lists, of which the first `num_hits` hold a relevant item at their end."""
    labels = torch.zeros(queries, length)
    labels[:num_hits, -1] = 1
    return torch.arange(length).neg().repeat(queries).float(), labels.view(-1), torch.arange(queries * length) // length


def test_a_hit_rate_that_cannot_be_below_one_is_told():
    """Retrieved lists of 10 without a hit are left out, and every other one has its hit by rank 10."""
    metrics = update(collect(["HR"], k=[5, 10]), retrieved(21))

    with pytest.warns(UserWarning, match="HR@10 is 1 by construction: all 21 sessions .* end by rank 10, and 19 "):
        assert metrics.compute()["HR@10"] == 1


@pytest.mark.parametrize(
    ("num_hits", "length", "options"), [(40, 10, {}), (21, 11, {}), (21, 10, {"empty_target_action": "neg"})]
)
def test_a_hit_rate_that_means_something_is_quiet(num_hits, length, options):
    """Each session has a relevant item, or one is longer than k, or those without one count 0."""
    metrics = update(collect(["HR", "Recall"], k=10, **options), retrieved(num_hits, length))

    assert metrics.compute()["HR@10"] == {(40, 10): 1, (21, 11): 0, (21, 10): 21 / 40}[num_hits, length]


def test_sessions_without_a_relevant_item_are_counted_over_all():
    """With `empty_target_action="error"` the error counts these sessions over all buckets."""
    metrics = trm.CollectSessions(trm.MRR(empty_target_action="error"))
    for session in range(100):
        clicked = session % 8 != 3
        metrics.update(torch.rand(3), torch.tensor([clicked, False, False]), torch.full((3,), session))
    with pytest.raises(ValueError, match=r": 13 rows without a relevant item"):
        metrics.compute()


def checkpoint(rank, world_size):
    """Return what saving a collection of sessions between `sync()` and `unsync()` says, and the values around it."""
    scores, labels, ids = rows(5)
    metrics = collect(["MRR"])
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
    whole = update(trm.CollectSessions(trm.MRR()), rows(5))
    for told, value in processes.run(checkpoint, 2):
        assert [("sync() does not move entries of sessions" in text) for text in told] == [True, True]
        assert value == pytest.approx(whole.compute()["MRR"].item(), abs=1e-12)


def raising(rank, world_size):
    """Check that weights, entries or a session without a relevant item on one process raise on every process."""
    metrics = [trm.CollectSessions(trm.MRR(empty_target_action="error")) for _ in range(3)]
    unlike, synced, without_a_click = metrics
    unlike.update(**FLAT, **({"weights": torch.ones(4)} if rank else {}))
    if rank:
        synced.update(**FLAT)
    ids = torch.tensor([0, 0, 1, 1]) + 2 * rank
    without_a_click.update(torch.arange(4.0), torch.tensor([1, 0, 1, 0]) * (ids != 2), ids)
    with pytest.raises(ValueError, match="processes differ in the weights or groups"):
        unlike.compute()
    with pytest.raises(ValueError, match=r"sync\(\) does not move entries of sessions"):
        synced.evaluator.sync()
    with pytest.raises(ValueError, match=r": 1 row without a relevant item"):
        without_a_click.compute()
    return True


def test_all_processes_raise(processes):
    """Every process raises the error, so that no process waits for another."""
    assert processes.run(raising, 2) == [True, True]
