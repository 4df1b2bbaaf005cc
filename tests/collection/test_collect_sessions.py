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
    names = ["NDCG", "MRR", "MAP", "HR", "Recall", "AUROC", trm.AUROC(weight="candidates")]
    return trm.RecMetricCollection(names, k=[1, 3], **options)


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
        values = update(trm.CollectSessions(collection()), flat, parts).compute()
    whole = collection()
    whole.update(trm.Sessions(*flat))

    assert numbers(values) == near(whole.compute())


FLAT = {"scores": torch.tensor([1.0, 2, 3, 4]), "labels": torch.ones(4), "indexes": torch.tensor([1, 1, 2, 2])}


def test_an_id_that_comes_again_is_another_whole_session_but_the_same_collected_one():
    """`Sessions` takes every batch's sessions for whole; collected, the relevant entries are at rank 3 of 4."""
    metric, collected = trm.MRR(), trm.CollectSessions(trm.MRR())
    flat = torch.tensor([1.0, 2.0]), torch.tensor([1, 0]), torch.tensor([4, 4])
    for _ in range(2):
        metric.update(trm.Sessions(*flat))
        collected.update(*flat)

    assert (metric.compute(), metric.num_users) == (1 / 2, 2)
    assert (collected.compute()["MRR"].item(), collected["MRR"].num_users) == (pytest.approx(1 / 3), 1)


HUGE = 2**63 - 1


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([2, 1], "lengths add up to 3, but scores has 4 entries"),
        ([5, -1], "lengths must be 0 to 4, the number of entries, got 5"),
        ([HUGE, HUGE, 6], "lengths must be 0 to 4"),  # adds up to 4 by overflow
        ([2**62, 2**62, 2**62, 2**62, 4], "lengths must be 0 to 4"),
    ],
)
@pytest.mark.parametrize("checks", [True, False, "deferred"])
def test_lengths_that_do_not_add_up_to_the_entries_are_refused(lengths, message, checks):
    metric = trm.AUROC(validate_args=checks)

    with pytest.raises(ValueError, match=message):
        metric.update(trm.Sessions(FLAT["scores"], FLAT["labels"], lengths=torch.tensor(lengths)))
    assert not metric.update_called


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda s, y, ids: trm.Sessions(s, y), ValueError, "give either indexes= or lengths="),
        (lambda s, y, ids: trm.Sessions(s, y, ids, lengths=ids), ValueError, "give either indexes= or lengths="),
        (lambda s, y, ids: trm.MRR().update(s, y, indexes=ids), TypeError, "update has no argument 'indexes'"),
        (lambda s, y, ids: trm.MRR().update(s, y, ids), TypeError, "takes from 1 to 3 positional arguments but 4 were"),
    ],
)
def test_sessions_without_ids_or_lengths_or_without_their_class_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(*FLAT.values())


THREE_ENTRIES = torch.tensor([0.9, 0.1, 0.3]), torch.tensor([1, 0, 1])


@pytest.mark.parametrize(("lengths", "hits"), [([2, 0, 1], [1, 0, 1]), ([2, 1, 0], [1, 1, 0])])
def test_a_session_without_entries_is_a_row_with_a_group_and_no_relevant_item(lengths, hits):
    accumulators = [trm.ByGroup("a", "b"), trm.KeptRows()]
    metrics = trm.RecMetricCollection("HR", k=1, empty_target_action="neg", accumulators=accumulators)
    metrics.update(trm.Sessions(*THREE_ENTRIES, lengths=torch.tensor(lengths)), groups=torch.tensor([0, 1, 1]))

    assert numbers(metrics.compute()) == pytest.approx({"HR@1": 2 / 3, "HR@1/a": 1, "HR@1/b": 1 / 2})
    assert metrics.rows.values["HR@1"].tolist() == hits


def test_a_session_without_entries_has_a_weight():
    batch = trm.Sessions(*THREE_ENTRIES, lengths=torch.tensor([2, 0, 1]))
    counting = trm.HR(1, empty_target_action="neg")

    assert counting(batch, weights=torch.tensor([1.0, 2.0, 1.0])) == (1 + 1) / (1 + 2 + 1)
    with pytest.raises(ValueError, match=r"weights must be \[3\], one per row"):
        counting.update(batch, weights=torch.ones(2))


def test_a_session_without_entries_is_skipped_unless_it_counts():
    metric = trm.HR(1)
    metric.update(trm.Sessions(*THREE_ENTRIES, lengths=torch.tensor([2, 0, 1])))

    assert (metric.compute(), metric.num_users, metric.num_skipped) == (1, 2, 1)


SCORES, LABELS = torch.tensor([3.0, 1, 2, 5, 4, 9]), torch.tensor([0, 1, 0, 1, 0, 1])
IDS = torch.tensor([7, 7, 9, 9, 9, 2])
"""The sessions 2, 7 and 9 have their relevant entry at ranks 1, 2 and 1."""


def of_three_sessions(accumulator, names="MRR", **columns):
    """Return metrics of the three sessions, after three batches of entries in another order."""
    metrics = collect(names, accumulators=[accumulator])
    for part in torch.tensor([5, 0, 3, 1, 4, 2]).split(2):
        chosen = {name: column[part] for name, column in columns.items()}
        metrics.update(SCORES[part], LABELS[part], IDS[part], **chosen)
    return metrics


def test_a_session_has_one_kept_row_under_its_id_or_row_id():
    rows = of_three_sessions(trm.KeptRows()).rows

    assert (rows.ids.tolist(), rows.values["MRR"].tolist()) == ([2, 7, 9], [1, 1 / 2, 1])
    assert of_three_sessions(trm.KeptRows(), row_ids=IDS + 100).rows.ids.tolist() == [102, 107, 109]


def test_a_session_has_one_weight_and_one_group():
    """MedianRank, which counts ranks, has no groups."""
    weights, groups = torch.tensor([2.0, 2, 1, 1, 1, 4]), torch.tensor([0, 0, 1, 1, 1, -1])
    names = ["MRR", "MedianRank"]
    metrics = of_three_sessions(trm.ByGroup("cold", "warm"), names, weights=weights, groups=groups)

    expected = {"MRR": (2 * 1 / 2 + 1 + 4) / 7, "MRR/cold": 1 / 2, "MRR/warm": 1, "MedianRank": 1}
    assert numbers(metrics.compute()) == pytest.approx(expected)


@pytest.mark.parametrize("changed", [{"weights": torch.tensor([1.0, 2, 1, 1])}, {"groups": torch.tensor([0, 1, 0, 0])}])
def test_a_session_whose_entries_differ_in_weight_or_group_is_refused(changed):
    metrics = collect(["MRR"], accumulators=[trm.ByGroup("a", "b")])
    metrics.update(**FLAT, **({"groups": torch.zeros(4).long()} | changed))

    with pytest.raises(ValueError, match="1 row of sessions whose entries differ in weight or group"):
        metrics.compute()


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"scores": torch.tensor([1, float("nan"), 1, 1])}, ValueError, "1 of 4 rows with a score that is NaN .*try 1"),
        (
            {"scores": torch.tensor([1, float("inf"), 1, 1])},
            ValueError,
            "1 of 4 rows with a score that is NaN or \\+inf",
        ),
        ({"labels": torch.tensor([1, 0, float("inf"), 0])}, ValueError, "a gain that is NaN or infinite: entry 2"),
        ({"indexes": torch.tensor([1, 1, 2])}, ValueError, "must be tensors of one shape"),
        ({"exclude": torch.tensor([1])}, TypeError, "update has no argument 'exclude'"),
        ({"weights": torch.ones(2)}, ValueError, r"weights must be \[4\], one per entry"),
        ({"scores": torch.rand(2, 4)}, ValueError, r"scores must be \[entries\]"),
        ({"groups": torch.ones(4).long()}, TypeError, "update has no argument 'groups'"),
    ],
)
def test_bad_entries_are_refused_and_change_nothing(changed, error, message):
    metrics = collect(["MRR"])

    with pytest.raises(error, match=message):
        metrics.update(**(FLAT | changed))
    assert metrics.evaluator.num_entries == metrics.evaluator.update_count == 0


@pytest.mark.parametrize("column", ["groups", "segment"])
@pytest.mark.parametrize(
    ("codes", "error", "message"),
    [
        (None, ValueError, r"the collection has the groups a, b: pass .* update\(..., {column}=\)"),
        (torch.zeros(4), TypeError, "{column} must hold int64"),
    ],
)
def test_entries_without_the_groups_of_the_collection_are_refused(codes, error, message, column):
    metrics = collect(["MRR"], accumulators=[trm.ByGroup("a", "b", column=column)])

    with pytest.raises(error, match=message.replace("{column}", column)):
        metrics.update(**FLAT, **{column: codes})
    assert metrics.evaluator.num_entries == 0


UNLIKE = pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"labels": torch.ones(4, dtype=torch.bool)}, "scores and labels are .*bool.*: use the same dtypes"),
        ({"scores": torch.rand(4).double()}, "scores and labels are .*float64.*: use the same dtypes"),
        ({"weights": torch.ones(4)}, "pass weights for all batches, or for none"),
    ],
)


@UNLIKE
def test_entries_of_another_dtype_or_with_weights_alone_are_refused(changed, message):
    metrics = trm.CollectSessions(trm.MRR())
    metrics.update(**FLAT)

    with pytest.raises(ValueError, match=message):
        metrics.update(**(FLAT | changed))
    assert metrics.evaluator.num_entries == 4


def test_metrics_of_lists_and_lists_of_names_are_refused():
    with pytest.raises(ValueError, match="Coverage@2: metrics of lists need item ids"):
        collect(["Coverage"], k=2, catalogue=trm.Catalogue(4))
    with pytest.raises(TypeError, match="CollectSessions takes a collection or a metric, got list"):
        trm.CollectSessions(["MRR"])


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
    ("num_hits", "length", "options", "value"),
    [(40, 10, {}, 1), (21, 11, {}, 0), (21, 10, {"empty_target_action": "neg"}, 21 / 40)],
    ids=["all sessions have a relevant item", "sessions are longer than k", "sessions without one count 0"],
)
def test_a_hit_rate_that_means_something_is_quiet(num_hits, length, options, value):
    metrics = update(collect(["HR", "Recall"], k=10, **options), retrieved(num_hits, length))
    assert metrics.compute()["HR@10"] == value


def test_sessions_without_a_relevant_item_are_counted_over_all_chunks(monkeypatch):
    """13 of 100 numbers leave 3 when they are divided by 8."""
    monkeypatch.setattr(sessions, "ENTRIES_AT_ONCE", 30)
    metrics, sessions_of_one = trm.CollectSessions(trm.MRR(empty_target_action="error")), torch.arange(100)
    metrics.update(torch.rand(100), sessions_of_one % 8 != 3, sessions_of_one)

    with pytest.raises(ValueError, match=r": 13 rows without a relevant item"):
        metrics.compute()


def begun(**options):
    """Return metrics with the relevant entry of session 7, whose score is 0.2."""
    metrics = collect("MRR", **options)
    metrics.update(torch.tensor([0.2]), torch.tensor([1]), torch.tensor([7]))
    return metrics


def ended(metrics):
    """Return the MRR after two more entries of session 7, of which the first one is above its relevant entry."""
    metrics.update(torch.tensor([0.9, 0.1]), torch.tensor([0, 0]), torch.tensor([7, 7]))
    return metrics.compute()["MRR"]


def loaded(metrics):
    other = collect("MRR")
    metrics.persistent(True), other.persistent(True)
    other.load_state_dict(copy.deepcopy(metrics.state_dict()))
    return other


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda metrics: pickle.loads(pickle.dumps(metrics)), trm.CollectSessions.clone, loaded],
    ids=["deepcopy", "pickle", "clone", "checkpoint"],
)
def test_a_copy_carries_the_entries_that_wait(copied):
    metrics = begun()

    assert ended(copied(metrics)) == 1 / 2
    assert metrics.compute()["MRR"] == 1


def test_forward_returns_the_value_of_its_entries_and_keeps_them():
    metrics = begun()
    value = metrics(torch.tensor([0.9, 0.8, 0.7]), torch.tensor([0, 0, 1]), torch.tensor([7, 7, 7]))

    assert value["MRR"] == 1 / 3
    assert metrics.compute()["MRR"] == 1 / 3


def test_reset_forgets_the_entries_that_wait():
    metrics = begun()
    metrics.compute()
    metrics.reset()
    metrics.update(torch.tensor([0.15, 0.1]), torch.tensor([0, 1]), torch.tensor([7, 7]))

    assert metrics.compute()["MRR"] == 1 / 2


def test_reset_gives_back_the_budget_of_the_device():
    """An entry takes 4 + 8 + 8 bytes, so an epoch of four stays within 100 bytes, and two together would not."""
    metrics = collect("MRR", validate_args=False).to("meta")
    metrics.evaluator.budget = 100
    for _ in range(3):
        metrics.reset()
        metrics.update(*(column.to("meta") for column in FLAT.values()))

    assert metrics.evaluator.entry_ids[0].device.type == "meta"


def test_merging_puts_together_sessions_that_wait_in_both():
    metrics, other = begun(), collect("MRR")
    other.update(torch.tensor([0.9]), torch.tensor([0]), torch.tensor([7]))
    metrics.compute()
    metrics.merge_state(other)

    assert metrics.compute()["MRR"] == 1 / 2


@pytest.mark.parametrize(
    "stranger",
    [
        collect("MRR").evaluator.metric_state,
        trm.RecMetricCollection("MRR").evaluator,
        collect("MRR", ties="optimistic").evaluator,
    ],
    ids=["state", "no sessions", "other ties"],
)
def test_states_of_anything_but_the_same_sessions_are_not_merged(stranger):
    metrics = begun()

    with pytest.raises(ValueError, match="MRR merges sessions of the same metrics and options, got"):
        metrics.evaluator.merge_state(stranger)
    assert metrics.evaluator.num_entries == 1


@UNLIKE
def test_entries_of_another_dtype_or_with_weights_alone_are_not_merged(changed, message):
    metrics, other = (collect(["MRR"], accumulators=[trm.KeptRows()]) for _ in range(2))
    metrics.update(**FLAT)
    other.update(**(FLAT | changed))
    before = snapshot(metrics)

    with pytest.raises(ValueError, match=message):
        metrics.merge_state(other)
    assert same(snapshot(metrics), before)


@pytest.mark.parametrize("step", [1, 4, 12, 1000, 2**20, 2**32])
def test_processes_share_sessions_whose_ids_are_multiples_of_a_number(step):
    """Each of four processes ranks about 250 of 1,000 sessions."""
    owners = sessions.owner_of(torch.arange(1000) * step, 4)
    assert torch.bincount(owners, minlength=4).tolist() == pytest.approx([250] * 4, abs=50)


def shares(rank, world_size, flat, uneven):
    """Update with the rows of this process, none on the last one if `uneven`, and return values, ids and users."""
    number = torch.arange(len(flat[0])) * 7919 % (max(1, world_size - uneven))
    metrics = trm.CollectSessions(collection(accumulators=[trm.KeptRows()]))
    update(metrics, flat, (number == rank).nonzero()[:, 0].split(30))
    return numbers(metrics.compute()), sorted(metrics.rows.ids.tolist()), metrics["MRR@3"].num_users


@pytest.mark.parametrize(("world_size", "uneven"), [(1, 0), (2, 0), (3, 1)])
def test_every_process_has_the_values_of_a_single_one(processes, world_size, uneven):
    """Sessions whose rows lie on several processes are put together."""
    flat = rows(5)
    whole = update(trm.CollectSessions(collection()), flat)
    expected = near(whole.compute()), flat[2].unique().tolist(), whole["MRR@3"].num_users

    assert processes.run(shares, world_size, flat, uneven) == [expected] * world_size


def checkpoint(rank, world_size):
    """Return what saving a collection of sessions between `sync()` and `unsync()` says, and the value afterwards."""
    scores, labels, ids = rows(5)
    metrics = collect(["MRR"])
    metrics.persistent(True)
    mine = torch.arange(len(ids)) % world_size == rank
    metrics.update(scores[mine], labels[mine], ids[mine])
    with pytest.raises(ValueError, match=r"sync\(\) does not move entries of sessions"):
        metrics.evaluator.sync()
    return metrics.compute()["MRR"].item()


def test_sync_which_moves_no_entries_is_refused_and_changes_no_value(processes):
    value = update(trm.CollectSessions(trm.MRR()), rows(5)).compute()["MRR"].item()
    assert processes.run(checkpoint, 2) == [pytest.approx(value, abs=1e-12)] * 2


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


def test_an_error_of_one_process_raises_on_all(processes):
    """So no process waits for another."""
    assert processes.run(raising, 2) == [True, True]
