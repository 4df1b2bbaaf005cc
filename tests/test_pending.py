"""Batches that wait are counted like those that do not, whoever asks, and however."""

from __future__ import annotations

import copy
import io
import pickle
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torchmetrics import MetricCollection

import torchrecmetrics as trm
from torchrecmetrics import pending

ITEMS = 30
CATALOGUE = trm.Catalogue(ITEMS, popularity=torch.arange(ITEMS), num_users=40, categories=torch.arange(ITEMS) % 4)
ACCURACY = ["HR", "NDCG", "MRR", "MAP", "Recall", "Precision", "F1"]
LISTS = ["Coverage", "ExposureGini", "Novelty", "Seen", "Missing", "PopularityLift", "Calibration"]


def batch(rows=4, relevant=1, seed=0):
    """Scores with ties, targets with padding, histories."""
    draw = torch.Generator().manual_seed(seed)
    scores = (torch.randn(rows, ITEMS, generator=draw) * 3).round() / 3
    target = torch.rand(rows, ITEMS, generator=draw).topk(relevant).indices
    target[torch.rand(target.shape, generator=draw) < 0.2] = -1
    return scores, target, torch.randint(-1, ITEMS, (rows, 3 + seed % 3), generator=draw)


def collection(names=tuple(ACCURACY), k=(1, 5), **options):
    return trm.RecMetricCollection(list(names), k=list(k), **options)


def waiting(metrics):
    """How many batches wait for any of its members."""
    every = {id(one): one for metric in metrics.members if (one := metric._holder) is not None}
    return sum(len(one._batches) for one in every.values())


def at_once(metrics, *arguments, **named):
    """Add a batch on the way on which nothing waits."""
    metrics.add(metrics.read(metrics.rank(trm.collection.Form(*arguments, **named))))


def filled(metrics, batches=4, **options):
    """Return a collection for which all batches but the first wait, and one that has counted them."""
    counted = copy.deepcopy(metrics)
    for seed in range(batches):
        scores, target, history = batch(seed=seed, **options)
        named = {"history": history} if metrics.needs.history else {}
        metrics.update(scores, target, **named)
        at_once(counted, scores, target, **named)
    assert waiting(metrics) == batches - 1
    assert not waiting(counted)
    return metrics, counted


def same(metrics, counted):
    for mine, theirs in zip(metrics.members, counted.members, strict=True):
        assert mine._update_count == theirs._update_count
        assert mine.state().counts.equal(theirs.state().counts)
        torch.testing.assert_close(mine.state().sums, theirs.state().sums, rtol=1e-13, atol=1e-13)
    return True


@pytest.mark.parametrize("validate", [True, "deferred", False])
@pytest.mark.parametrize("action", ["skip", "neg", "pos"])
@pytest.mark.parametrize("names", [ACCURACY, ["AUROC", "RPrecision", *ACCURACY], LISTS, ACCURACY + LISTS], ids=len)
def test_any_loop(names, action, validate):
    """Batches of many shapes and forms, one after the other."""
    draw = random.Random(0)
    lists = {"catalogue": CATALOGUE} if "Seen" in names else {}
    metrics = collection(names, empty_target_action=action, validate_args=validate, **lists)
    counted = copy.deepcopy(metrics)
    waited = 0
    for seed in range(40):
        scores, target, history = batch(draw.choice([0, 1, 7]), draw.choice([1, 1, 3]), seed)
        named = {"history": history} if "Seen" in names else {}
        given = draw.choice([(scores, target)] * 4 + [(trm.Ranking.from_scores(scores, target, depth=5, items=True),)])
        if "AUROC" in names:
            given = scores, target
        for add in (metrics.update, lambda *a, **n: at_once(counted, *a, **n)):
            add(*given, **named)
        waited = max(waited, waiting(metrics))
    assert waited > 1
    assert same(metrics, counted)


@pytest.mark.parametrize("ties", ["realistic", "optimistic", "pessimistic"])
@pytest.mark.parametrize("overlap", ["keep", "miss"])
def test_grades_and_history(overlap, ties):
    """Grades, penalties, and relevant items that are excluded; in a loader's memory."""
    metrics = collection(
        [*ACCURACY, trm.NDCG(5, gain="exponential", overlap=overlap, ties=ties)], overlap=overlap, ties=ties
    )
    counted, worth = copy.deepcopy(metrics), torch.zeros(6, 4, dtype=torch.float64)
    for seed in range(6):
        scores, target, history = batch(rows=6, relevant=4 if seed % 2 else 2, seed=seed)
        gains = worth[:, : target.shape[1]].copy_(torch.randint(-1, 4, target.shape))  # float64, which none converts
        metrics.update(scores, target, gains=gains, exclude=history)
        at_once(counted, scores, target, gains=gains, exclude=history)
        worth.fill_(7)
    assert waiting(metrics) == 5
    assert same(metrics, counted)


def test_ranks_and_lists():
    """What somebody else has ranked waits, too, without a look at its items."""
    ranks, scores, lists = collection(), collection(), collection(LISTS, k=(3,), catalogue=CATALOGUE)
    counted = [copy.deepcopy(each) for each in (ranks, scores, lists)]
    for seed in range(5):
        ids, target, history = torch.rand(4, ITEMS).topk(5).indices, *batch(relevant=1 + seed % 3, seed=seed)[1:]
        for metrics, given, named in (
            (ranks, (torch.tensor([-1, 1, 2, 3, 4, 5, 6])[torch.randint(0, 7, (4, 1))],), {"depth": 6}),
            (scores, (trm.Ranking.from_topk(ids, target),), {}),
            (lists, (trm.Ranking.from_topk(ids, target),), {"history": history}),
        ):
            metrics.update(*given, **named)
            at_once(counted[[ranks, scores, lists].index(metrics)], *given, **named)
    for metrics, other in zip((ranks, scores, lists), counted, strict=True):
        assert waiting(metrics) == 4
        assert same(metrics, other)


def test_places_of_one_are_not_those_of_another():
    """Whole ranks, and after them thirds of places, wait together: each is worth what it is."""
    metrics = collection(["NDCG", "MRR"], k=(2, 3))
    counted = copy.deepcopy(metrics)
    for ranks in ([[1, 3]], [[2, 3]], [[4 / 3, 8 / 3]]):
        ranking = trm.Ranking.from_ranks(torch.tensor(ranks), depth=5)
        metrics.update(ranking)
        at_once(counted, ranking)
    assert waiting(metrics) == 2
    assert same(metrics, counted)


def _load(metrics):
    metrics.persistent(True)
    fresh = collection()
    fresh.load_state_dict(metrics.state_dict())
    for mine, theirs in zip(fresh.members, metrics.members, strict=True):
        mine._update_count = theirs._update_count
    return fresh


def _saved(metrics):
    memory = io.BytesIO()
    torch.save(metrics, memory)
    memory.seek(0)
    return torch.load(memory, weights_only=False)


def _taken_apart(metrics):
    for key in list(metrics.keys())[1:]:
        del metrics[key]
    return metrics


def _by_name(metrics):
    for metric in metrics.members:
        for name in metric._defaults:
            assert getattr(metric, name).equal(metric.metric_state[name])
    return metrics


def _synced(metrics):
    for metric in metrics.members:
        metric.sync(dist_sync_fn=lambda value, group: [value, value], distributed_available=lambda: True)
        metric.unsync()
    return metrics


READERS = {
    "state": lambda metrics: metrics,
    "by name": _by_name,
    "pickle": lambda metrics: pickle.loads(pickle.dumps(metrics)),
    "torch.save": _saved,
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "clone": lambda metrics: metrics.clone(),
    "state_dict": _load,
    "to": lambda metrics: metrics.to("cpu"),
    "double": lambda metrics: metrics.double(),
    "sync": _synced,
    "taken apart": _taken_apart,
    "hash": lambda metrics: [hash(metric) for metric in metrics.members] and metrics,
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_whoever_reads_sees_all(read):
    metrics, counted = filled(collection())
    found = read(metrics)
    assert all(same_state(found[key], counted[key]) for key in found)


def same_state(mine, theirs):
    torch.testing.assert_close(mine.state().sums, theirs.state().sums, rtol=1e-13, atol=1e-13)
    return mine.state().counts.equal(theirs.state().counts) and mine._update_count == theirs._update_count


def test_values():
    metrics, counted = filled(collection(ACCURACY + LISTS, catalogue=CATALOGUE))
    torch.testing.assert_close(metrics.compute(), counted.compute(), rtol=1e-13, atol=1e-13)
    metrics.update(*batch()[:2], history=batch()[2])
    assert all(metric._computed is None for metric in metrics.members)
    with pytest.raises(RuntimeError, match="call it first"):
        print(metrics["HR@1"].num_users)
    assert metrics.compute()["HR@5"] != counted.compute()["HR@5"]


def test_merge():
    metrics, counted = filled(collection())
    other, also = filled(collection(), batches=3)
    metrics.merge_state(other)
    counted.merge_state(also)
    for mine, theirs in zip(metrics.members, counted.members, strict=True):
        assert mine.state().counts.equal(theirs.state().counts)


def test_forward_returns_its_batch_alone():
    metrics, counted = filled(collection())
    given = batch(seed=9)[:2]
    assert metrics(*given) == counted(*given)
    assert same(metrics, counted)


def test_reset_forgets_what_waits(monkeypatch):
    metrics, _ = filled(collection())
    with monkeypatch.context() as patch:
        patch.setattr(metrics.panel, "rows", None)  # it is not even counted
        metrics.reset()
    assert not waiting(metrics)
    assert all(metric._update_count == 0 and not metric.state().counts.any() for metric in metrics.members)
    metrics.update(*batch()[:2])
    assert waiting(metrics) == 1  # its kind is known


def test_states_stay_together_until_somebody_asks():
    metrics, counted = filled(collection(["HR", "NDCG", "Coverage"], catalogue=CATALOGUE))
    holder = metrics["HR@1"]._holder
    for seed in range(3):
        metrics.compute()
        metrics.reset()
        counted.reset()
        for add in (metrics.update, metrics, lambda *given: at_once(metrics, *given)):
            add(*batch(seed=seed)[:2])
            at_once(counted, *batch(seed=seed)[:2])
        assert all(metric._holder is holder for metric in metrics.members)
        found = metrics.compute()
        assert found == counted.compute()
        assert metrics.standard_errors()["NDCG@5"] == counted.standard_errors()["NDCG@5"]
    assert same(metrics, counted)  # which asks
    assert all(metric._holder is None for metric in metrics.members)


def test_who_asks_what_was_found_leaves_states_together(monkeypatch):
    """So does who asks for counts of users, and for standard errors."""
    metrics, _ = filled(collection(["HR", "NDCG"]))
    holder = metrics["HR@1"]._holder
    found, times = metrics.compute(), []
    monkeypatch.setattr(trm.state, "summarize", lambda *args: times.append(args))
    assert metrics.compute() == found
    assert metrics["HR@1"].compute() == found["HR@1"]
    assert metrics["NDCG@5"].num_users == metrics.points[0].num_users > 0
    assert not times
    metrics.reset()
    assert metrics["NDCG@5"].num_users == metrics.points[0].num_users > 0  # until the next batch
    assert all(metric.__dict__["_holder"] is holder for metric in metrics.members)
    assert all(metric._computed is None for metric in metrics.members)


def test_who_caches_nothing_is_asked_again(monkeypatch):
    metrics = collection(["HR", "NDCG"], compute_with_cache=False)
    metrics.update(*batch()[:2])
    found, times = metrics.compute(), []
    summarize = trm.state.summarize
    monkeypatch.setattr(trm.state, "summarize", lambda *args: times.append(args) or summarize(*args))
    assert metrics.compute() == found
    assert len(times) == 1
    assert all(metric._computed is None for metric in metrics.members)
    metrics["HR@1"].compute_with_cache = True
    metrics.compute()
    assert [metric._computed is None for metric in metrics.members] == [False, True, True, True]


def test_each_member_has_its_own_number_of_batches():
    metrics, given = collection(["HR"], k=[1, 2, 3]), batch()[:2]
    first, second, third = metrics.members
    first.update(*given)
    metrics.update(*given)
    second.update(*given)
    metrics.update(*given)
    metrics.update(*given)
    assert [metric.update_count for metric in metrics.members] == [4, 4, 3]
    metrics.update(*given)
    metrics.reset()
    assert [metric.update_count for metric in metrics.members] == [0, 0, 0]
    metrics.update(*given)
    third.reset()
    assert [metric.update_count for metric in metrics.members] == [1, 1, 0]
    second._update_count = 7
    metrics.update(*given)
    assert [metric.update_count for metric in metrics.members] == [2, 8, 1]


def test_a_warning_may_ask_for_counts():
    """Which has states given back while `compute` is about to keep what it found."""
    metrics = collection(["HR", "Coverage"], k=[1], catalogue=CATALOGUE)
    scores, _, _ = batch()
    metrics.update(scores, torch.full((4, 1), -1))
    with pytest.warns(UserWarning, match="nan: HR@1$"):
        found = metrics.compute()
    assert metrics["HR@1"].num_users == 0
    assert metrics["Coverage@1"].compute() == found["Coverage@1"] > 0


def test_reset_forgets_all_of_a_member():
    """The value of the last `forward`, and states that a subclass has besides."""

    class Batches(trm.HR):
        def __init__(self):
            super().__init__(2)
            self.add_state("batches", torch.tensor(0), dist_reduce_fx="sum")

    member = Batches()
    metrics = collection(["NDCG", member])
    metrics(*batch()[:2])
    assert member._forward_cache is not None
    member.batches += 1
    metrics.update(*batch()[:2])
    metrics.reset()
    assert (member._forward_cache, int(member.batches)) == (None, 0)


def test_members_come_and_go():
    """What a collection held of one that is gone is not asked for those it has."""
    metrics = collection(["HR"], k=(1, 2))
    metrics.update(*batch()[:2])
    gone = metrics["HR@2"]
    del metrics["HR@2"]
    metrics["HR@3"] = trm.HitRate(3)
    found = metrics.compute()
    assert not found["HR@1"].isnan()
    assert found["HR@3"].isnan()
    assert gone.compute() >= found["HR@1"]


def test_bad_rows_of_another_are_its_own_affair():
    """One that has left a collection answers for itself."""
    lists = trm.Ranking.from_topk(
        torch.tensor([[1, 2, 3], [4, 5, 6]]),
        torch.tensor([[1], [4]]),
        exclude=torch.tensor([[-1], [6]]),
        validate_args="deferred",
    )
    metrics = collection(["HR"], k=(2, 3), validate_args="deferred")
    metrics.update(lists)
    metric = metrics["HR@2"]
    del metrics["HR@2"]
    assert metric.compute() == 1
    with pytest.raises(ValueError, match="HR@3: bad input"):
        metrics.compute()


def test_a_member_with_a_reset_of_its_own():
    """It is asked to forget, like any other."""

    class Own(trm.HitRate):
        forgotten = 0

        def reset(self):
            super().reset()
            self.__dict__["forgotten"] = self.forgotten + 1

    metrics = trm.RecMetricCollection([Own(3), trm.NDCG(3)])
    for _ in range(2):
        metrics.update(*batch()[:2])
        metrics.reset()
    assert metrics["HR@3"].forgotten == 2
    assert not any(metric.state().counts.any() for metric in metrics.members)


def test_who_has_left_keeps_what_waited():
    metrics, counted = filled(collection())
    metric = metrics["HR@5"]
    del metrics["HR@5"]
    metrics.reset()
    assert same_state(metric, counted["HR@5"])
    assert not metrics["HR@1"].state().counts.any()


def test_one_of_them_is_reset():
    metrics, counted = filled(collection())
    for each in (metrics, counted):
        each["HR@5"].reset()
    assert same(metrics, counted)


def test_one_of_them_is_updated_alone():
    metrics, counted = filled(collection())
    scores, target, _ = batch(seed=9)
    for _ in range(3):
        metrics["HR@5"].update(scores, target)
        metrics.update(scores, target)
        counted["HR@5"].update(scores, target)
        at_once(counted, scores, target)
    assert same(metrics, counted)


def test_a_metric_alone():
    metric, counted = trm.NDCG(3), trm.NDCG(3)
    for seed in range(4):
        metric.update(*batch(seed=seed)[:2])
        counted.update(*batch(seed=seed)[:2], weights=torch.ones(4))
    assert metric._holder is not None
    assert metric._update_count == 4
    assert metric.compute() == counted.compute()
    metric.update(*batch()[:2])
    metric.reset()
    assert metric._holder is None
    assert not metric.state().counts.any()


def test_a_state_is_replaced():
    """What is set by hand stands, and what waited before is gone with the state it would have been added to."""
    metrics, counted = filled(collection())
    metric = metrics["HR@5"]
    zeros = torch.zeros_like(counted["HR@5"].state().sums)
    setattr(metric, metric._sums_name, zeros)
    assert metric.state().sums is zeros
    assert metrics["HR@1"].state().counts.equal(counted["HR@1"].state().counts)
    metrics.update(*batch()[:2])
    metric.hold(counted["HR@5"].state())
    assert metric.state().sums is counted["HR@5"].state().sums


def test_counts_are_replaced_and_sums_are_not():
    metrics, _ = filled(collection())
    metric = metrics["HR@5"]
    setattr(metric, metric._counts_name, torch.zeros_like(metric.state().counts))
    metrics.update(*batch()[:2])
    assert metric.state().counts[0] == 2  # two rows of that batch have a target


def test_torchmetrics_collections_see_states():
    """Compute groups look at states, and hand one metric's to others."""
    own, theirs = MetricCollection([trm.HitRate(3), trm.Recall(3)]), MetricCollection([trm.HitRate(3), trm.Recall(3)])
    for seed in range(5):
        own.update(*batch(seed=seed)[:2])
        theirs.update(*batch(seed=seed)[:2], weights=torch.ones(4))
        if seed == 2:
            own.compute()
    assert own.compute() == theirs.compute()


def test_memory_may_be_used_again():
    """A loader may write into what it has handed over."""
    metrics = collection(ACCURACY + LISTS, catalogue=CATALOGUE)
    ranked = collection(ACCURACY + LISTS, catalogue=CATALOGUE)
    plain = collection()
    counted, without = copy.deepcopy(metrics), copy.deepcopy(plain)
    scores, target, history = batch(relevant=3)
    for _ in range(4):
        more = torch.rand(4, ITEMS), torch.rand(4, ITEMS).topk(3).indices, torch.randint(0, ITEMS, history.shape)
        for mine, new in zip((scores, target, history), more, strict=True):
            mine.copy_(new)
        ranking = trm.Ranking.from_scores(scores, target, depth=5, items=True)
        metrics.update(scores, target, history=history)
        ranked.update(ranking, history=history)
        at_once(counted, scores, target, history=history)
        ranking.ranks.fill_(1)
        places = trm.Ranking.from_scores(scores, target)
        plain.update(ranking=places)
        at_once(without, scores, target)
        places.ranks.fill_(1)
    scores.zero_(), target.zero_(), history.zero_()
    assert waiting(metrics) == waiting(ranked) == 3
    assert same(metrics, counted)
    assert same(ranked, counted)
    assert waiting(plain) == 3
    assert same(plain, without)


def test_bad_input_raises_at_once():
    metrics, counted = filled(collection(ACCURACY + LISTS, catalogue=CATALOGUE))
    scores, target, history = batch()
    ids = scores.topk(5).indices
    bad = (
        ((scores, target + 100), {"history": history}, "beyond the last item"),
        ((scores.fill_(torch.nan), target), {"history": history}, "NaN"),
        ((torch.rand(4, ITEMS), target), {"history": history + ITEMS}, "the catalogue does not have"),
        ((torch.rand(4, ITEMS), target), {}, "history of each row"),
        ((trm.Ranking.from_topk(ids + ITEMS, target),), {"history": history}, "the catalogue does not have"),
        ((trm.Ranking.from_topk(ids[:, :2], target),), {"history": history}, "known to depth 2"),
        ((torch.ones(4, 1, dtype=torch.int64),), {"depth": 5}, "which items stand first"),
    )
    for given, named, message in bad:
        with pytest.raises(ValueError, match=message):
            metrics.update(*given, **named)
    assert waiting(metrics) == 3
    assert same(metrics, counted)


def test_every_batch_of_lists_is_looked_at():
    """Lists of unknown size wait for each other, and each is looked at before."""
    metrics = collection(["Coverage"], k=(3,), catalogue=CATALOGUE)
    for _ in range(3):
        metrics.update(trm.Ranking.from_topk(torch.rand(4, ITEMS).topk(3).indices))
    with pytest.raises(ValueError, match="the catalogue does not have"):
        metrics.update(trm.Ranking.from_topk(torch.full((4, 3), ITEMS) + torch.arange(3)))
    assert waiting(metrics) == 2
    assert metrics.members[0].state().counts.sum() == 3 * 4 * 3 + 3 * 4


def test_ranks_of_another_width_are_asked_whether_they_reach():
    """R-precision reads as many places as a row has relevant items."""
    metric = trm.RPrecision()
    for _ in range(3):
        metric.update(torch.tensor([[1, 2]]), depth=3)
    with pytest.raises(ValueError, match="known to depth 3"):
        metric.update(torch.tensor([[1, 2, 4, 4]]), depth=3)
    assert metric.compute() == 1


def _short(seed):
    """Lists of which history takes three items, or none: then they reach no further than two."""
    ids = torch.arange(4).repeat(5, 1) + seed
    return trm.Ranking.from_topk(ids, ids[:, :1], exclude=ids[:, 1:3] if seed else ids[:, :1] + 20)


OTHERS = {  # metrics, what may wait for them, what may not be joined to it, and what is said of it
    "depth": (
        *([trm.HitRate(5)], lambda _: trm.Ranking.from_ranks(torch.ones(2, 1), depth=5)),
        *(lambda: trm.Ranking.from_ranks(torch.ones(2, 1), depth=3), "known to depth 3"),
    ),
    "depth unknown": (
        *([trm.MRR()], lambda _: trm.Ranking.from_ranks(torch.ones(2, 1))),
        *(lambda: trm.Ranking.from_ranks(torch.ones(2, 1), depth_known=False), "depth unknown"),
    ),
    "candidates": (
        *([trm.AUROC()], lambda _: trm.Ranking.from_ranks(torch.ones(2, 1), num_ranked=9)),
        *(lambda: trm.Ranking.from_ranks(torch.ones(2, 1)), "num_ranked"),
    ),
    "ties": (
        *(
            [trm.HitRate(5, ties="realistic")],
            lambda _: trm.Ranking.from_scores(torch.eye(2, 9), torch.ones(2).long()),
        ),
        *(lambda: trm.Ranking.from_scores(torch.eye(2, 9), torch.ones(2).long(), ties="optimistic"), "ties="),
    ),
    "lists": (
        *([trm.Coverage(2, catalogue=CATALOGUE)], lambda _: trm.Ranking.from_topk(torch.tensor([[1, 2, 3]]))),
        *(lambda: trm.Ranking.from_ranks(torch.ones(2, 1), depth=3), "which items stand first"),
    ),
    "places left": ([trm.HitRate(4)], lambda _: _short(0), lambda: _short(1), "fewer than k places"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_of_another_kind_raises_at_once(kind):
    members, make, other, message = OTHERS[kind]
    metrics = trm.RecMetricCollection([metric.clone() for metric in members])
    counted = copy.deepcopy(metrics)
    for seed in range(4):
        metrics.update(make(seed))
        at_once(counted, make(seed))
    with pytest.raises(ValueError, match=message):
        metrics.update(other())
    assert same(metrics, counted)


def test_kinds_are_not_mixed():
    """Rankings that know different things wait one after the other, or do not."""
    scores, target, _ = batch(rows=6, relevant=3)
    grades = torch.tensor([2.0, -1, 3]).expand(6, 3)
    worth = torch.tensor([2.0, 1, 3]).expand(6, 3)
    short = torch.cat([scores[:, :8], torch.full((6, 2), -torch.inf)], 1)
    kinds = [
        lambda: trm.Ranking.from_scores(scores, target),
        lambda: trm.Ranking.from_scores(scores, target, gains=grades),
        lambda: trm.Ranking.from_scores(scores, target, gains=worth),
        lambda: trm.Ranking.from_scores(scores, target, depth=5),
        lambda: trm.Ranking.from_scores(scores, target, depth=5, items=True),
        lambda: trm.Ranking.from_scores(scores, target, validate_args="deferred"),
        lambda: trm.Ranking.from_scores(short, target % 10, validate_args=False),
        lambda: trm.Ranking.from_topk(scores.topk(6).indices, target),
        lambda: trm.Ranking.from_topk(scores.topk(9).indices, target, exclude=target[:, :1], overlap="miss"),
        lambda: trm.Ranking.from_ranks(torch.tensor([[1, 2], [4, 0]]), depth=5),
        lambda: trm.Ranking.from_ranks(torch.tensor([[1.5, 2], [4, 0]]), num_ranked=9),
    ]
    metrics = collection()
    counted, draw = copy.deepcopy(metrics), random.Random(0)
    options = [{}, {"gains": worth}, {"gains": grades}, {"exclude": target * 0 - 1}]
    for number in range(300):
        for _ in range(draw.choice([1, 2])):
            given, more = (
                ((scores, target), draw.choice(options)) if number // 20 % 2 else ((draw.choice(kinds)(),), {})
            )
            metrics.update(*given, **more)
            at_once(counted, *given, **more)
    assert same(metrics, counted)


@pytest.mark.parametrize("first", [0, 1])
def test_dense_and_padded_targets(first):
    """Equally wide, and looked at to different depths: what lies behind one of them was not counted right."""
    metric, counted = trm.RPrecision(), trm.RPrecision()
    scores = torch.rand(8, 3000)
    ids = scores.topk(2500).indices[:, [0, 2400]]
    dense = torch.zeros(scores.shape, dtype=torch.bool).scatter(1, ids, True)
    for number in range(6):
        target = ids if number % 2 == first else dense
        metric.update(scores, target)
        counted.update(scores, target, weights=torch.ones(8))
    assert metric._holder is not None
    assert metric.compute() == counted.compute() == 0.5
    assert metric.num_tied == counted.num_tied


def test_bad_rows_are_counted_once_and_told_later():
    """Where nothing raises at once, rows that are left out are so in every batch that waits."""
    metrics = collection(ACCURACY + LISTS, catalogue=CATALOGUE, validate_args="deferred")
    counted = copy.deepcopy(metrics)
    for seed in range(6):
        scores, target, history = batch(rows=5, relevant=2, seed=seed)
        target[seed % 5] = ITEMS + 3
        history[(seed + 1) % 5, 0] = ITEMS
        lists = torch.arange(5).repeat(5, 1) + seed % 2
        lists[(seed + 2) % 5] += ITEMS
        for given in ((scores, target), (trm.Ranking.from_topk(lists, target[:, :1] % 7),)):
            for _ in range(2):
                metrics.update(*given, history=history)
                at_once(counted, *given, history=history)
    assert same(metrics, counted)
    with pytest.raises(ValueError, match="12 rows with a target id beyond the last item"):
        metrics.compute()


def test_lists_of_unknown_size_are_not_mixed_with_others():
    """Nobody has looked at their items where nothing raises at once."""
    metrics = collection(["Coverage"], k=(3,), catalogue=CATALOGUE, validate_args="deferred")
    scores = batch()[0]
    known = trm.Ranking.from_scores(scores, torch.zeros(4).long(), depth=3, items=True, validate_args="deferred")
    beyond = trm.Ranking.from_topk(torch.tensor([[1, 2, ITEMS]] * 4), torch.zeros(4).long(), validate_args="deferred")
    for _ in range(3):
        metrics.update(known)
        metrics.update(beyond)
    with pytest.raises(ValueError, match="12 rows with an item, in the list or the history, that the catalogue"):
        metrics.compute()


def test_nothing_is_learnt():
    """States need no gradient, wherever they are read."""
    vectors = torch.rand(ITEMS, 4, requires_grad=True)
    catalogue = trm.Catalogue(ITEMS, embeddings=vectors)
    metric = trm.beyond.metrics.IntraListDiversity(3, catalogue=catalogue)
    for _ in range(3):
        metric.update(torch.rand(4, ITEMS, requires_grad=True), torch.zeros(4).long())
    assert metric._holder is not None
    assert not metric.state().sums.requires_grad


def test_what_holds_no_data_does_not_wait():
    metrics = collection().to("meta")
    for _ in range(3):
        metrics.update(torch.zeros(4, 9, device="meta"), torch.zeros(4, device="meta", dtype=torch.int64))
    assert not waiting(metrics)
    ranking = trm.Ranking.from_ranks(torch.ones(4, 1))
    waits = pending.Pending([trm.HitRate(1)], 0, lambda _: None)
    assert waits.kind_of(ranking) is not None
    with FakeTensorMode():
        assert waits.kind_of(ranking) is None
    assert waits.kind_of(_short(0)) is waits.kind_of(_short(1)) is None


def test_synchronised_metrics_take_nothing():
    metrics, _ = filled(collection())
    metric = metrics["HR@1"]
    metric.sync(dist_sync_fn=lambda value, group: [value, value], distributed_available=lambda: True)
    with pytest.raises(Exception, match=r"unsync\(\)"):
        metrics.update(*batch()[:2])


def test_what_does_not_wait():
    """Formulas of others may refuse a batch, rows may be errors, and what is kept of rows is kept at once."""

    class Own(trm.HitRate):
        """Somebody else's."""

    given = batch()[:2]
    for metrics, named in (
        (trm.RecMetricCollection([Own(3)]), {}),
        (collection(empty_target_action="error"), {}),
        (collection(keep_rows=True), {}),
        (collection(groups=["a", "b"]), {"groups": torch.zeros(4, dtype=torch.int64)}),
        (collection(), {"weights": torch.ones(4)}),
    ):
        for _ in range(3):
            metrics.update(given[0], torch.zeros(4, dtype=torch.int64), **named)
        assert not waiting(metrics)
        assert metrics.members[0]._update_count == 3


def test_few_wait(monkeypatch):
    """What waits, and what is made of it, is bounded; a batch that is large enough does not wait."""
    metrics, most = collection(), []  # 14 of them
    monkeypatch.setattr(pending, "_ENOUGH", 5 * 4 * (1 + 14))
    for seed in range(12):
        metrics.update(*batch(seed=seed)[:2])
        most.append(waiting(metrics))
    assert max(most) == 5
    assert metrics.members[0].state().counts[0] > 0
    metrics.update(*batch(rows=4)[:2])
    assert waiting(metrics)
    monkeypatch.setattr(pending, "_LARGE", 4 * (1 + 14))
    metrics.update(*batch(rows=4)[:2])
    assert not waiting(metrics)
    monkeypatch.setattr(pending, "_ENOUGH", 2 * 4 * (1 + 2 + 3 + 1))  # with lists of two and a history of three
    lists = collection(["Seen"], k=(2,), catalogue=CATALOGUE)
    for _ in range(4):
        lists.update(*batch(rows=4)[:2], history=batch(rows=4)[2])
        most.append(waiting(lists))
    assert most[-4:] == [0, 1, 2, 1]


def test_a_wide_row_does_not_widen_all_others():
    metrics = collection()
    for _ in range(9):
        metrics.update(torch.rand(500, 9), torch.randint(9, (500,)))
    assert waiting(metrics) == 8
    wide = torch.rand(1, 3000), torch.arange(3000)[None]
    metrics.update(*wide)
    assert waiting(metrics) == 1
    metrics.update(*wide)
    assert waiting(metrics) == 2
    metrics.update(torch.rand(500, 9), torch.randint(9, (500,)))
    assert waiting(metrics) == 1


def test_another_device_is_refused_at_once(monkeypatch):
    """Also where its kind is known: the metrics may have been there."""
    metrics, counted = filled(collection())
    monkeypatch.setattr(metrics.panel._pending, "kind_of", lambda _: "there")
    metrics.panel._counted.add("there")
    with pytest.raises(ValueError, match="HR@1 is on cpu, its input on meta"):
        metrics.update(torch.zeros(4, 9, device="meta"), torch.zeros(4, device="meta", dtype=torch.int64))
    assert waiting(metrics) == 3
    assert same(metrics, counted)


def test_threads_read_whole_states():
    for _ in range(20):
        metrics, counted = filled(collection(), batches=9)
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda metric: metric.state().counts, metrics.members))
        assert all(mine.equal(theirs.state().counts) for mine, theirs in zip(found, counted.members, strict=True))


@pytest.mark.parametrize("name", ["metric_state", "HR@1-sums", "state"])
def test_what_is_taken_again_at_once(monkeypatch, name):
    """As the next batch of another thread may do when somebody has asked for it."""
    metrics, counted = filled(collection())
    metric, plain = metrics["HR@1"], counted["HR@1"]
    holder, give_back = metric._holder, metric._holder.give_back

    def for_a_moment():
        monkeypatch.undo()
        give_back()
        holder._take()

    name = {"HR@1-sums": metric._sums_name}.get(name, name)
    monkeypatch.setattr(holder, "give_back", for_a_moment)
    found, wanted = (getattr(each, name) for each in (metric, plain))
    found, wanted = (each() if callable(each) else each for each in (found, wanted))
    torch.testing.assert_close(found, wanted)
    assert metric.__dict__["_holder"] is None
    assert same(metrics, counted)


def test_a_batch_may_come_between_sums_and_counts():
    """Another thread's: what is read is the state before it, or behind it."""

    class Read(trm.HitRate):
        reading = False

        def __getattribute__(self, name):
            if name.endswith("-counts") and self.__dict__.pop("reading", False):
                metrics.update(*given)
            return super().__getattribute__(name)

    metric, given = Read(3), (torch.rand(4, 9), torch.tensor([1, 2, 3, 4]))
    metrics = trm.RecMetricCollection([metric, trm.NDCG(3)])
    metrics.update(*given)
    metric.__dict__["reading"] = True
    sums, counts = metric.state()
    assert sums[0] == counts[0] == 8


def test_options_are_those_of_the_time():
    """What is set by hand holds for the batches that follow."""
    metric, counted = trm.NDCG(3), trm.NDCG(3)
    given = torch.rand(4, 9), torch.tensor([1, -1, 3, 4])
    for each, more in ((metric, {}), (counted, {"weights": torch.ones(4)})):
        each.update(*given, **more)
        each.update(*given, **more)
        each.empty_target_action = "neg"
        each.update(*given, **more)
        each.empty_target_action = "error"
        with pytest.raises(ValueError, match="without a relevant item"):
            each.update(*given, **more)
    assert metric.compute() == pytest.approx(float(counted.compute()), abs=1e-15)


def test_a_subclass_sees_each_batch():
    class Watched(trm.RecMetricCollection):
        seen = 0

        def read(self, *arguments, **named):
            self.seen += 1
            return super().read(*arguments, **named)

    metrics = Watched(["HR"], k=3)
    for seed in range(4):
        metrics.update(*batch(seed=seed)[:2])
    assert metrics.seen == 4


def test_a_state_can_be_deleted():
    metrics, _ = filled(collection())
    metric = metrics["HR@1"]
    delattr(metric, metric._sums_name)
    with pytest.raises(AttributeError, match="-sums"):
        getattr(metric, metric._sums_name)
    with pytest.raises(AttributeError, match="nothing"):
        print(metric.nothing)


def test_a_warning_points_at_its_cause():
    for metrics in (trm.HitRate(5), collection()):
        with pytest.warns(UserWarning, match="look like item ids") as told:
            metrics.update(1000 * torch.arange(1, 41).view(4, 10))
        assert told[0].filename == __file__


def test_nothing_is_lost_where_counting_fails(monkeypatch):
    metrics, counted = filled(collection())
    panel = metrics.panel
    with monkeypatch.context() as patch:
        patch.setattr(panel, "tallies", lambda rows: (_ for _ in ()).throw(MemoryError("full")))
        for _ in range(2):
            with pytest.raises(MemoryError, match="full"):
                metrics.compute()
    assert waiting(metrics) == 3
    assert same(metrics, counted)
