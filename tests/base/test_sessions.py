"""Flat rows: rows of a session in any order, batch or process are put together in `compute`."""

import copy
import itertools
import pickle

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from sizes import examples
from values import numbers

import torchrecmetrics as trm
from torchrecmetrics.base import sessions

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


def fed(parts, metrics=None, **options):
    """Return the values after updates with these parts."""
    metrics = collection(**options) if metrics is None else metrics
    for scores, labels, ids in parts:
        metrics.update(scores, labels, indexes=ids)
    return metrics.compute()


def same(found, expected):
    """Return true if keys and all bits are equal."""
    return found.keys() == expected.keys() and all(torch.equal(found[key], expected[key]) for key in found)


@pytest.mark.parametrize("kind", ["grades", "bool"])
@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 2**20), cuts=st.lists(st.integers(0, 200), max_size=4), at_once=st.sampled_from([1, 20, 2**20])
)
def test_order_and_batches_change_no_bit(kind, seed, cuts, at_once):
    """Any order, any batches and any `ROWS_AT_ONCE` give the bits of one batch and the values of `from_flat`."""
    flat = rows(seed, kind=kind)
    expected = fed([flat])
    order = torch.randperm(len(flat[0]), generator=torch.Generator().manual_seed(seed))
    ends = [0, *sorted(min(cut, len(order)) for cut in cuts), len(order)]
    parts = [order[first:last] for first, last in itertools.pairwise(ends)]
    patch = pytest.MonkeyPatch()
    patch.setattr(sessions, "ROWS_AT_ONCE", at_once)
    found = fed([tuple(column[part] for column in flat) for part in parts if len(part)])
    patch.undo()
    assert same(found, expected)
    whole = collection()
    whole.update(trm.Ranking.from_flat(*flat))
    assert numbers(found) == pytest.approx(numbers(whole.compute()), abs=1e-12)


@pytest.mark.fixed
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
    metrics = collection(keep_rows=True)
    mine = number == rank
    for part in mine.nonzero()[:, 0].split(30):
        metrics.update(*(column[part] for column in flat[:2]), indexes=flat[2][part])
    found = metrics.compute()
    return (
        {key: value.item() for key, value in found.items()},
        sorted(metrics.rows.ids.tolist()),
        metrics["MRR@3"].num_users,
    )


@pytest.mark.parametrize(("world_size", "uneven"), [(1, 0), (2, 0), (3, 0), (3, 1)])
def test_processes_change_no_bit(processes, world_size, uneven):
    """Sessions whose rows lie on several processes are put together; every process has the values of a single one."""
    flat = rows(5)
    expected = {key: value.item() for key, value in fed([flat]).items()}
    for found, ids, num_users in processes.run(shares, world_size, flat, uneven):
        assert found == expected
        assert ids == flat[2].unique().tolist()
        assert num_users == processes.run(shares, 1, flat, 0)[0][2]


def test_lengths_and_whole_sessions_are_ranked_at_once():
    """`lengths=` and `complete=` keep no rows for `compute`, and give the same values."""
    scores, labels, ids = rows(7)
    order = ids.argsort(stable=True)
    scores, labels, ids = scores[order], labels[order], ids[order]
    _, lengths = ids.unique_consecutive(return_counts=True)
    expected = numbers(fed([(scores, labels, ids)]))
    for options in ({"lengths": lengths}, {"indexes": ids, "complete": True}, {"indexes": ids, "complete": "checked"}):
        metrics = collection()
        metrics.update(scores, labels, **options)
        assert len(metrics.sessions) == 0
        assert numbers(metrics.compute()) == pytest.approx(expected, abs=1e-12)


def test_a_session_that_comes_twice_although_it_was_complete():
    """With "checked" a session that comes again raises and changes nothing; with True it counts as a new session."""
    metric = trm.MRR()
    scores, labels, ids = torch.tensor([1.0, 2.0]), torch.tensor([1, 0]), torch.tensor([4, 4])
    metric.update(scores, labels, indexes=ids, complete="checked")
    with pytest.raises(ValueError, match="session 4 was given before: with complete='checked' each is given once"):
        metric.update(scores, labels, indexes=ids, complete="checked")
    assert (metric.compute(), metric.num_users) == (0.5, 1)
    metric.update(scores, labels, indexes=ids, complete=True)
    assert (metric.compute(), metric.num_users) == (0.5, 2)


@pytest.mark.parametrize("order", [(False, "checked"), ("checked", False)])
def test_checked_and_unfinished_sessions_do_not_mix(order):
    """A batch with "checked" beside a batch without `complete` raises and changes nothing, in either order."""
    metric = trm.MRR()
    scores, labels, ids = torch.tensor([1.0, 2.0]), torch.tensor([1, 0]), torch.tensor([4, 4])
    metric.update(scores, labels, indexes=ids, complete=order[0])
    with pytest.raises(ValueError, match="both in a batch with complete='checked' and in a batch without complete="):
        metric.update(scores, labels, indexes=ids, complete=order[1])
    assert (metric.compute(), metric.num_users) == (0.5, 1)
    metric.reset()
    metric.update(scores, labels, indexes=ids, complete=order[1])
    assert metric.compute() == 0.5


@pytest.mark.fixed
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
    metrics = trm.RecMetricCollection(["MRR", "MedianRank"], groups=["cold", "warm"], keep_rows=True)
    for part in torch.tensor([5, 0, 3, 1, 4, 2]).split(2):
        metrics.update(scores[part], labels[part], indexes=ids[part], weights=weights[part], groups=groups[part])
    found = numbers(metrics.compute())
    assert found == pytest.approx({"MRR": (2 * 0.5 + 1 + 4) / 7, "MRR/cold": 0.5, "MRR/warm": 1, "MedianRank": 1})
    assert metrics.rows.ids.tolist() == sorted(metrics.rows.ids.tolist()) == [2, 7, 9]
    assert metrics.rows.values["MRR"].tolist() == [1, 0.5, 1]
    metrics.update(scores[:1], labels[:1], indexes=ids[:1], weights=weights[1:2] + 1, groups=groups[:1])
    with pytest.raises(ValueError, match="1 row of sessions whose flat rows have several weights or groups"):
        metrics.compute()


@pytest.mark.parametrize("single", [True, False])
def test_life_of_a_metric(single):
    """Copies, pickles, checkpoints, merging and `forward` carry rows that are not ranked yet; `reset` drops them."""
    scores, labels, ids = rows(11)

    def make():
        return trm.NDCG(3) if single else trm.RecMetricCollection(["NDCG"], k=3)

    def value(metric):
        found = metric.compute()
        return found.item() if single else found["NDCG@3"].item()

    first, second = slice(0, 60), slice(60, None)
    whole = make()
    whole.update(scores, labels, indexes=ids)
    expected = value(whole)
    metric = make()
    metric(scores[first], labels[first], indexes=ids[first])
    metric.persistent(True)
    loaded = make()
    loaded.persistent(True)
    loaded.load_state_dict(copy.deepcopy(metric.state_dict()))
    merged = make()
    merged.merge_state(metric)
    for other in (copy.deepcopy(metric), pickle.loads(pickle.dumps(metric)), loaded, merged, metric.clone()):
        assert value(other) != expected
        other.update(scores[second], labels[second], indexes=ids[second])
        assert value(other) == expected
    metric.reset()
    metric.update(scores, labels, indexes=ids)
    assert value(metric) == expected
    assert value(metric) == expected


def test_inside_a_metric_collection_of_torchmetrics():
    """Inside a MetricCollection of torchmetrics, our metrics and our collections give the values that they give alone.

    MetricCollection updates each metric separately, and computes each separately.
    """
    from torchmetrics import MetricCollection

    flat = rows(13)
    expected = fed([flat])
    outer = MetricCollection([collection()])
    alone = MetricCollection({"NDCG@3": trm.NDCG(3), "AUROC": trm.AUROC()})
    for part in torch.arange(len(flat[0])).split(40):
        for metrics in (outer, alone):
            metrics.update(*(column[part] for column in flat[:2]), indexes=flat[2][part])
    assert same(outer.compute(), expected)
    assert same(alone.compute(), {key: expected[key] for key in ("NDCG@3", "AUROC")})


def updated_alone(rank, world_size, flat):
    """Update the members on one process and the collection on the other, and return the values."""
    metrics = trm.RecMetricCollection(["MRR", "HR"], k=3)
    mine = (flat[2] % 2 == rank).nonzero()[:, 0]
    given = {"scores": flat[0][mine], "target": flat[1][mine], "indexes": flat[2][mine]}
    for metric in metrics.values() if rank else [metrics]:
        metric.update(**given)
    return {key: value.item() for key, value in metrics.compute().items()}


def test_members_that_are_updated_alone(processes):
    """Rows of members that are updated alone count, and no process waits for another."""
    flat = rows(17)
    whole = trm.RecMetricCollection(["MRR", "HR"], k=3)
    whole.update(*flat[:2], indexes=flat[2])
    for found in processes.run(updated_alone, 2, flat):
        assert found == pytest.approx(numbers(whole.compute()))


@pytest.mark.parametrize("theirs", [False, "checked"])
def test_checked_sessions_are_merged_once(theirs):
    """Merging a session that was given with complete="checked" before, or may go on, raises and adds nothing."""
    whole, other, third = trm.HR(1), trm.HR(1), trm.HR(1)
    first = {"scores": torch.tensor([0.9, 0.5]), "target": torch.tensor([0, 1]), "indexes": torch.tensor([1, 1])}
    second = {**first, "indexes": torch.tensor([2, 2])}
    whole.update(**first, complete="checked")
    other.update(**first, complete=theirs)
    for mine, incoming in ((whole, other), (other, whole)):
        with pytest.raises(ValueError, match=r"was given before|complete='checked' do not merge"):
            mine.merge_state(incoming)
    assert (whole.compute(), whole.num_users) == (0, 1)
    third.update(**second, complete="checked")
    whole.merge_state(third)
    with pytest.raises(ValueError, match="session 2 was given before"):
        whole.update(**second, complete="checked")
    assert (whole.compute(), whole.num_users) == (0, 2)


def test_loading_a_state_without_it_keeps_rows():
    """A module whose metric is not persistent loads its own state dict without losing flat rows."""
    module = torch.nn.Module()
    module.metrics = trm.RecMetricCollection("MRR")
    module.metrics.update(torch.tensor([0.9, 0.5]), torch.tensor([0, 1]), indexes=torch.tensor([1, 1]))
    module.load_state_dict(module.state_dict())
    assert module.metrics.compute() == {"MRR": 0.5}


def test_beside_rows_of_other_forms():
    """Flat rows and rows of a score matrix add up in one metric."""
    metric = trm.MRR()
    metric.update(torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([2]))
    metric.update(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1, 0, 0]), indexes=torch.tensor([5, 5, 6]))
    assert (metric.compute(), metric.num_users, metric.num_skipped) == (0.5, 2, 1)
    assert metric.compute() == 0.5


def test_update_never_waits_for_the_device():
    """An update keeps flat rows without reading a value: it runs on the device `meta`, where reading a value raises."""
    metrics = collection().to("meta")
    flat = torch.empty(9, device="meta"), torch.empty(9, dtype=torch.bool, device="meta")
    metrics.update(*flat, indexes=torch.empty(9, dtype=torch.int64, device="meta"))
    assert len(metrics.sessions) == 9


FLAT = {"scores": torch.rand(4), "target": torch.ones(4), "indexes": torch.tensor([1, 1, 2, 2])}
BAD = [
    ({"indexes": None}, ValueError, r"scores must be \[rows, items\].*update\(scores, labels, indexes="),
    ({"lengths": torch.tensor([2, 2])}, ValueError, "indexes and lengths both say which rows belong together"),
    ({"indexes": None, "lengths": torch.tensor([2, 1])}, ValueError, "lengths add up to 3, scores has 4 rows"),
    ({"indexes": None, "lengths": torch.tensor([5, -1])}, ValueError, "lengths must be 0 or more, got -1"),
    (
        {"scores": torch.tensor([1, float("nan"), 1, 1])},
        ValueError,
        "1 of 4 rows with a score that is NaN or .*: row 1",
    ),
    ({"target": torch.tensor([1, 0, float("inf"), 0])}, ValueError, "a label that is NaN or infinite: row 2"),
    ({"indexes": torch.tensor([1, 1, 2])}, ValueError, "must be tensors of one shape"),
    ({"indexes": torch.rand(4)}, TypeError, "indexes must hold int64"),
    ({"missing_target": "error"}, ValueError, "missing_target belongs to candidates="),
    ({"indexes": torch.ones(4, dtype=torch.int64, device="meta")}, ValueError, "indexes is on meta"),
    ({"exclude": torch.tensor([1])}, ValueError, "exclude was given beside flat rows"),
    ({"weights": torch.ones(2)}, ValueError, r"weights must be \[4\], one per flat row"),
    ({"complete": "yes"}, ValueError, "complete must be one of False, True, 'checked'"),
    ({"indexes": None, "lengths": torch.tensor([4]), "complete": "checked"}, ValueError, "compares session ids"),
    ({"scores": torch.rand(2, 4)}, ValueError, r"scores must be \[entries\]"),
]


@pytest.mark.parametrize(("changed", "error", "message"), BAD)
def test_bad_input(changed, error, message):
    """Bad flat rows raise an error that names the argument, and change no state."""
    metrics = trm.RecMetricCollection(["MRR"], k=2)
    with pytest.raises(error, match=message):
        metrics.update(**(FLAT | changed))
    assert len(metrics.sessions) == metrics["MRR@2"].update_count == 0


def test_what_flat_rows_do_not_tell():
    """Flat rows are refused where item ids or row ids are needed, and where `groups` and the collection do not match.

    They are also refused where labels have another dtype, or weights are new, compared with the rows kept before.
    """
    with pytest.raises(ValueError, match="Coverage@2: flat rows do not name items"):
        trm.RecMetricCollection(["Coverage"], k=2, catalogue=trm.Catalogue(4)).update(**FLAT)
    with pytest.raises(ValueError, match=r"groups=\) says to which of a, b"):
        trm.RecMetricCollection(["MRR"], groups=["a", "b"]).update(**FLAT)
    with pytest.raises(ValueError, match="groups were given"):
        trm.RecMetricCollection(["MRR"]).update(**FLAT, groups=torch.zeros(4))
    with pytest.raises(ValueError, match="the id of a row is its session's"):
        trm.RecMetricCollection(["MRR"], keep_rows=True).update(**FLAT, row_ids=torch.arange(4))
    metric = trm.MRR()
    metric.update(**FLAT)
    with pytest.raises(ValueError, match="give all alike"):
        metric.update(**(FLAT | {"target": torch.ones(4, dtype=torch.bool)}))
    with pytest.raises(ValueError, match="rows are kept with weights in all batches, or in none"):
        metric.update(**FLAT, weights=torch.ones(4))
    assert len(metric.sessions) == 4


def unlike(rank, world_size):
    metric = trm.MRR()
    metric.update(**FLAT, **({"weights": torch.ones(4)} if rank else {}))
    with pytest.raises(ValueError, match="on some processes that others have not"):
        metric.compute()
    return True


def synced(rank, world_size):
    metric = trm.MRR()
    if rank:
        metric.update(**FLAT)
    with pytest.raises(ValueError, match=r"sync\(\) moves no flat rows"):
        metric.sync()
    return True


def without_a_click(rank, world_size):
    """Give each process whole sessions; only those of process 1 hold one without a relevant row."""
    metric = trm.MRR(empty_target_action="error")
    labels = torch.tensor([1, 0, 1, 0]) * (torch.tensor([1, 1, 1, 1 - rank]) > 0)
    ids = torch.tensor([0, 0, 1, 1]) + 2 * rank
    metric.update(torch.arange(4.0), labels * (ids != 2), indexes=ids)
    with pytest.raises(ValueError, match=r": 1 row without a relevant item"):
        metric.compute()
    return True


def test_sessions_without_a_relevant_item_are_counted_over_all():
    """With `empty_target_action="error"` the error counts these sessions over all buckets."""
    metric = trm.MRR(empty_target_action="error")
    for session in range(100):
        clicked = session % 8 != 3
        metric.update(torch.rand(3), torch.tensor([clicked, False, False]), indexes=torch.full((3,), session))
    with pytest.raises(ValueError, match=r": 13 rows without a relevant item"):
        metric.compute()


@pytest.mark.parametrize("call", [unlike, synced, without_a_click])
def test_all_processes_raise(processes, call):
    """Every process raises the error, so that no process waits for another."""
    assert processes.run(call, 2) == [True, True]


@pytest.mark.parametrize("own", [False, True], ids=["collection", "member"])
@pytest.mark.parametrize("other", ["weights", "dtypes"])
def test_rows_that_do_not_merge(own, other):
    """Flat rows with weights, or of other dtypes, are not merged with rows without; no member and no row is added."""
    scores, labels, ids = rows()

    def make(**weights):
        """Return a collection with rows added at once, and flat rows that are kept until `compute`."""
        metrics = trm.RecMetricCollection(["HR", "MRR"], k=3, keep_rows=not own)
        metrics.update(torch.eye(4), torch.tensor([0, 1, 2, 0]))
        (metrics["MRR@3"] if own else metrics).update(scores, labels, indexes=ids, **weights)
        return metrics

    metrics, given = make(), make(weights=torch.ones(len(ids)))
    if other == "dtypes":
        scores, labels = scores.double(), labels > 0
        given = make()
    before = [[part.tolist() for part in metric.state()] for metric in metrics.members]
    cause = "rows are kept with weights in all batches" if other == "weights" else "scores and labels are .*float64"
    with pytest.raises(ValueError, match=cause):
        metrics.merge_state(given)
    assert [[part.tolist() for part in metric.state()] for metric in metrics.members] == before
    assert len(metrics.sessions) + len(metrics["MRR@3"].sessions) == len(ids)
    assert metrics._keeper is None or len(metrics._keeper) == 4
