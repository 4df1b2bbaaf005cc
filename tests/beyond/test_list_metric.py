"""Metrics of lists: the ranking that a formula gets, the rows that count, and the states that are shared."""

import math
from copy import deepcopy

import pytest
import torch
from torchmetrics import MetricCollection

import torchrecmetrics as trm
from torchrecmetrics.beyond.item_counts import ItemCountMetric
from torchrecmetrics.beyond.list_metric import ListMetric
from torchrecmetrics.data.catalogue import Catalogue


def first_item(ranking, k):
    """Return the id of the best item, or nan if there is none."""
    items = ranking.items[:, 0].double()
    return items.where(items >= 0, torch.nan)


def price(ranking, k, *, catalogue):
    """Return the mean popularity of the list."""
    items = ranking.items[:, :k]
    held = items >= 0
    popularity = catalogue.on(items.device).popularity.double()
    return (popularity[items.clamp(min=0)] * held).sum(1) / held.sum(1)


def seen(ranking, k):
    """Return how many items of the list are in the history."""
    items = ranking.items[:, :k, None]
    return ((items == ranking.history[:, None]) & (items >= 0)).any(2).sum(1).double()


def wanted(ranking, k):
    """Return how many items of the list are relevant."""
    items = ranking.items[:, :k, None]
    return ((items == ranking.relevant_items[:, None]) & (items >= 0)).any(2).sum(1).double()


class First(ListMetric):
    formula = staticmethod(first_item)


class Price(ListMetric):
    formula = staticmethod(price)


class SeenItems(ListMetric):
    formula = staticmethod(seen)
    reads_history = True


class Wanted(ListMetric):
    formula = staticmethod(wanted)
    reads_target = True


class Named(ItemCountMetric):
    """The number of items that are in at least one list."""

    formula = staticmethod(lambda histogram, k: (histogram.counts > 0).sum().double())


class Entries(ItemCountMetric):
    """The number of entries of all lists together."""

    formula = staticmethod(lambda histogram, k: histogram.total.double())


class Shown(ItemCountMetric):
    """The sum of the exposure of all items."""

    formula = staticmethod(lambda histogram, k: histogram.exposure.sum())
    reads_exposure = True


CATALOGUE = Catalogue(6, popularity=torch.tensor([5, 0, 2, 7, 1, 1]), num_users=9)
SCORES = torch.tensor(
    [
        [0.1, 0.9, 0.5, 0.9, 0.2, 0.5],  # 1 3 2 5 4 0
        [0.4, 0.3, 0.3, -math.inf, 0.3, -math.inf],  # 0 1 2 4
        [-math.inf] * 6,
    ]
)
TARGET = torch.tensor([[2, -1], [4, 1], [-1, -1]])


def order(scores, k, leaves=()):
    """Return the k best items that are not in `leaves`, ties by lower id, padded with -1."""
    items = sorted((item for item in range(len(scores)) if item not in leaves), key=lambda item: -scores[item])
    items = [item for item in items if scores[item] > -math.inf][:k]
    return items + [-1] * (k - len(items))


# ------------------------------------------------------------------------------------------------- the items of a list


@pytest.mark.parametrize("exclude", [None, "ids", "row", "mask", "both"])
@pytest.mark.parametrize("overlap", ["keep", "miss"])
@pytest.mark.parametrize("padding_idx", [None, 0])
def test_items_are_the_best_candidates(exclude, overlap, padding_idx):
    """Items are the best candidates; with overlap='keep' excluded relevant items remain candidates."""
    generator = torch.Generator().manual_seed(7)
    scores = torch.randint(0, 6, (40, 9), generator=generator) / 4
    target = torch.rand(40, 9, generator=generator).argsort(1)[:, :3]
    history = torch.randint(-1, 9, (40, 4), generator=generator)
    mask = torch.rand(9, generator=generator) < 0.3
    rows = torch.rand(40, 9, generator=generator) < 0.3
    given = {"ids": history, "mask": mask, "row": rows, "both": (history, mask)}.get(exclude)
    ranking = trm.Scores(scores, target, exclude=given).ranking(
        depth=5, items=True, overlap=overlap, padding_idx=padding_idx
    )
    for row in range(40):
        leaves = set()
        if exclude in ("ids", "both"):
            leaves |= set(history[row].tolist())
        if exclude in ("mask", "both"):
            leaves |= set(mask.nonzero()[:, 0].tolist())
        if exclude == "row":
            leaves |= set(rows[row].nonzero()[:, 0].tolist())
        relevant = set(target[row].tolist()) - {padding_idx}
        if overlap == "keep":
            leaves -= relevant
        leaves |= {padding_idx}
        assert ranking.items[row].tolist() == order(scores[row].tolist(), 5, leaves)
        assert set(ranking.relevant_items[row].tolist()) - {-1} == relevant


def test_items_of_lists_move_up():
    """Excluded, padding, repeated and empty (-1) entries leave a list, and the items after them move up."""
    lists = torch.tensor([[7, 3, 7, 9, -1], [4, -1, 8, 0, 2]])
    history = torch.tensor([[3], [2]])
    ranking = trm.Lists(lists, torch.tensor([[9], [8]]), exclude=history, duplicates="first").ranking(padding_idx=0)
    assert ranking.items.tolist() == [[7, 9, -1, -1, -1], [4, 8, -1, -1, -1]]
    assert ranking.repeated.tolist() == [[False, False, True, False, False], [False] * 5]
    assert ranking.entries.tolist() == [[True, True, True, True, False], [True, False, True, True, True]]
    assert ranking.within(1).items.tolist() == [[7], [4]]
    alone = trm.Lists(lists[1:]).ranking()
    assert alone.items.tolist() == [[4, 8, 0, 2, -1]]
    assert alone.num_relevant.tolist() == [0]


def test_who_knows_no_items_says_so():
    with pytest.raises(ValueError, match=r"which items stand first is not known: pass update\(scores"):
        First(2).update(trm.Ranks(torch.tensor([[1]])))
    with pytest.raises(ValueError, match=r"which items stand first is not known.*items=True"):
        First(2).update(trm.Scores(SCORES, TARGET).ranking(depth=2))
    with pytest.raises(ValueError, match=r"items=True names the items in the first places: say how many, depth="):
        trm.Scores(SCORES, TARGET).ranking(items=True)
    with pytest.raises(
        ValueError, match=r"the history of each row is read: update\(Scores\(scores, target, history=\)\)"
    ):
        SeenItems(2).update(SCORES, TARGET)


# ---------------------------------------------------------------------------------------------------- rows that count


def test_rows_without_a_relevant_item_have_lists():
    """Rows without a relevant item count in metrics of lists, whatever `empty_target_action` says for accuracy."""
    scores, target = SCORES.clone(), torch.tensor([[1], [4], [-1]])
    scores[2, 5] = 0.5
    for action, accuracy in (("skip", 1 / 2), ("neg", 1 / 3), ("pos", 2 / 3)):
        options = {"empty_target_action": action, "ties": "realistic"}
        metrics = First(2, **options), trm.HR(2, **options), Named(2, catalogue=CATALOGUE, **options)
        collection = trm.RecMetricCollection(metrics)
        collection.update(scores, target)
        assert [*values(collection.compute()).values()] == pytest.approx([(1 + 0 + 5) / 3, accuracy, 4])
        assert [value.num_users for value in collection.values()] == [3, 2 if action == "skip" else 3, 3]
        assert [value.num_skipped for value in collection.values()] == [0, 1, 0]


def test_an_error_for_empty_rows_is_for_accuracy():
    with pytest.raises(ValueError, match="without a relevant item"):
        trm.RecMetricCollection(
            {"a": First(2, empty_target_action="error"), "b": trm.HR(2, empty_target_action="error")}
        ).update(SCORES, TARGET)
    First(2, empty_target_action="error").update(SCORES, TARGET)


def test_scores_alone_will_do_for_lists():
    metric = First(2)
    metric.update(SCORES)
    assert metric.compute().item() == (1 + 0) / 2
    assert metric.num_users == 2  # the third row has no list
    with pytest.raises(ValueError, match="scores were given without target"):
        trm.RecMetricCollection([First(2), trm.HR(2)]).update(SCORES)
    with pytest.raises(ValueError, match="scores were given without target"):
        Wanted(2).update(SCORES)


def test_weights_weigh_means_and_leave_rows_out():
    collection = trm.RecMetricCollection([First(1), *(kind(1, catalogue=CATALOGUE) for kind in (Entries, Shown))])
    collection.update(SCORES, TARGET, weights=torch.tensor([3.0, 0.0, 1.0]))
    assert [value.item() for value in collection.compute().values()] == [1.0, 1.0, 1.0]
    assert [member.num_users for member in collection.values()] == [1, 2, 2]  # the third list is empty
    assert collection["First@1"].standard_error().isnan()


def test_history_and_target_by_id():
    collection = trm.RecMetricCollection([SeenItems(3), Wanted(3)])
    collection.update(trm.Scores(SCORES, TARGET, history=torch.tensor([[3, 0, -1], [-1, 4, 2], [1, 1, 1]])))
    assert [value.item() for value in collection.compute().values()] == [(1 + 1 + 0) / 3, (1 + 1 + 0) / 3]
    one = SeenItems(3)
    one.update(trm.Scores(SCORES, history=torch.tensor([3, 2, 1])))
    assert one.compute().item() == (1 + 1 + 0) / 3
    for wrong in (torch.tensor([3, 2]), torch.zeros(3, 1, 1, dtype=torch.int64)):
        with pytest.raises(ValueError, match=r"history ids must be \[3\] or \[3, H\], got"):
            one.update(trm.Scores(SCORES, history=wrong))
    assert one.compute().item() == (1 + 1 + 0) / 3


def test_jagged_history():
    """A history may be values with offsets, a nested tensor, a `Jagged` or the past of each position."""
    values, offsets = torch.tensor([3, 0, 4, 2, 1]), torch.tensor([0, 2, 4, 5])
    nested = torch.nested.nested_tensor_from_jagged(values, offsets)
    for history in ((values, offsets), nested, trm.Jagged(values, offsets)):
        metric = SeenItems(3)
        metric.update(trm.Scores(SCORES, history=history))
        assert metric.compute().item() == (1 + 1 + 0) / 3
    past = trm.prefix_history(torch.tensor([3, 4, 1]), torch.tensor([0, 3]))
    metric = SeenItems(3)
    metric.update(trm.Scores(SCORES[:1].expand(3, -1), history=past))
    assert metric.compute().item() == (0 + 1 + 1) / 3
    with pytest.raises(ValueError, match=r"history has 2 rows"):
        metric.update(trm.Scores(SCORES, history=(values, offsets[[0, 1, 3]])))


def test_items_that_the_catalogue_does_not_have():
    """Items outside the catalogue raise at once or, with deferred checks, in `compute`.

    Scores of a different number of items always raise.
    """
    lists, history = torch.tensor([[1, 6], [2, 3]]), torch.tensor([[1], [9]])
    for kind in (Price, Named):
        metric = kind(2, catalogue=CATALOGUE)
        with pytest.raises(ValueError, match=r"1 of 2 rows with an item, in the list.*row 0 lists \[1, 6\] of 6 items"):
            metric.update(trm.Lists(lists))
        later = kind(2, catalogue=CATALOGUE, validate_args="deferred")
        later.update(trm.Lists(lists))
        with pytest.raises(ValueError, match=r"bad input since the last reset: 1 row with an item, in the list or the"):
            later.compute()
        unchecked = kind(2, catalogue=CATALOGUE, validate_args=False)
        unchecked.update(trm.Lists(lists))
        assert unchecked.compute().item() == {Price: (0 + 4.5) / 2, Named: 3}[kind]  # an unknown item takes no place
        with pytest.raises(ValueError, match="the catalogue has 6 items, the scores have 5"):
            metric.update(SCORES[:, :5])
        assert not metric.update_called
    both = trm.RecMetricCollection([SeenItems(2), Price(2, catalogue=CATALOGUE)])
    with pytest.raises(ValueError, match=r"1 of 2 rows with an item, in the list or the history.*row 1 had \[9\] of 6"):
        both.update(trm.Lists(lists[1:].expand(2, -1), history=history))


def test_faulty_rows_have_no_list():
    scores = SCORES.clone()
    scores[0, 0] = torch.nan
    metrics = [First(1, validate_args="deferred"), Entries(1, catalogue=CATALOGUE, validate_args="deferred")]
    collection = trm.RecMetricCollection(metrics)
    collection.update(scores, TARGET)
    ranking = trm.Scores(scores, TARGET).ranking(depth=1, items=True, validate_args="deferred")
    rows = collection.evaluator.rows(ranking)
    assert rows.undefined.tolist() == [[True, False, True]]
    assert rows.counted.tolist() == [False, True, True]
    with pytest.raises(ValueError, match="1 row with a score that is NaN"):
        collection.compute()


def test_lists_that_are_cut_short():
    lists, history = torch.tensor([[1, 2, 3], [3, 4, 5]]), torch.tensor([[1], [-1]])
    with pytest.raises(ValueError, match="1 of 2 rows known to fewer than k places"):
        Entries(3, catalogue=CATALOGUE).update(trm.Lists(lists, exclude=history))
    ranking = trm.Lists(lists, exclude=history).ranking(validate_args="deferred")
    options = {"validate_args": "deferred"}
    metrics = *(Entries(k, catalogue=CATALOGUE, **options) for k in (2, 3)), First(3, **options), First(2, **options)
    for metric, value in zip(metrics, (4, None, None, (2 + 3) / 2), strict=True):
        metric.update(ranking)
        if value is None:
            with pytest.raises(ValueError, match="1 row known to fewer than k places"):
                metric.compute()
        else:
            assert metric.compute().item() == value


# ------------------------------------------------------------------------------------------------------- shared states


# --------------------------------------------------------------------------------------------------- whole evaluations


def made(seed=3, users=30, items=12):
    generator = torch.Generator().manual_seed(seed)

    def pairs(share):
        return (torch.rand(users, items, generator=generator) < share).nonzero().T

    train = trm.Interactions.from_edge_index(pairs(0.3), num_users=users, num_items=items)
    test = trm.Interactions.from_edge_index(pairs(0.1), num_users=users, num_items=items).without(train)
    return train, test, torch.randn(users, 4, generator=generator), torch.randn(items, 4, generator=generator)


def values(found):
    return {key: value.item() for key, value in found.items()}


def test_evaluate_update_and_lists_agree():
    train, test, users, items = made()
    catalogue = Catalogue.from_interactions(train)
    metrics = [
        *(kind(k, catalogue=catalogue) for k in (2, 4) for kind in (Price, Named, Entries, Shown)),
        *(First(4), SeenItems(4), Wanted(4), trm.Recall(4)),
    ]
    found = trm.evaluate(metrics, users, items, target=test, exclude=train, batch_size=7, keep_rows=True)
    asked = (test.degree > 0).nonzero()[:, 0]
    collection = trm.RecMetricCollection([metric.clone() for metric in metrics])
    for ids in asked.split(5):
        collection.update(
            trm.Scores(users[ids] @ items.T, test.select(ids), exclude=train.select(ids), history=train.select(ids))
        )
    assert values(collection.compute()) == pytest.approx(values(found), abs=1e-12)
    lists = trm.recommend(users, items, 4, exclude=train)
    listed = trm.evaluate_lists(metrics, lists, target=test)
    assert values(listed) == pytest.approx(values(found), abs=1e-12)
    shared = trm.evaluate(metrics, users, items, target=test, exclude=train)
    assert values(shared) == pytest.approx(values(found), abs=1e-12)
    assert {*found.rows.values} == {key for key, member in collection.items() if not member.metric.of_items}
    assert "Named@4" in str(found)
    assert "±" not in next(line for line in str(found).splitlines() if line.startswith("Named@4"))
    assert "±" in next(line for line in str(found).splitlines() if line.startswith("Price@4"))


def test_all_users_have_lists():
    train, test, users, items = made(users=60)
    assert int((test.degree == 0).sum()) > 5
    catalogue = Catalogue.from_interactions(train)
    metrics = [Entries(3, catalogue=catalogue), Price(3, catalogue=catalogue), trm.NDCG(3)]
    some = trm.evaluate(metrics, users, items, target=test, exclude=train)
    every = trm.evaluate(metrics, users, items, target=test, exclude=train, all_users=True)
    assert some["NDCG@3"] == every["NDCG@3"]
    assert ("with a list" in str(some), "60 with a list" in str(every)) == (False, True)
    assert some.counts() == every.counts()
    lists = trm.recommend(users, items, 3, exclude=train).ids
    popularity = train.popularity.double()[lists.clamp(min=0)].where(lists >= 0, torch.nan).nanmean(1)
    assert every["Entries@3"] == (lists >= 0).sum()
    assert some["Entries@3"] == (lists[test.degree > 0] >= 0).sum()
    assert every["Price@3"].item() == pytest.approx(popularity.nanmean().item())
    assert some["Price@3"].item() == pytest.approx(popularity[test.degree > 0].nanmean().item())
    assert every["Price@3"] != some["Price@3"]


def test_a_catalogue_is_the_targets():
    train, test, users, items = made()
    small = Catalogue(11, popularity=torch.ones(11))
    with pytest.raises(ValueError, match="the catalogue has 11 items, target has 12"):
        trm.evaluate(Price(2, catalogue=small), users, items, target=test)
    named = train.with_ids(item_ids=[f"i{item}" for item in range(12)])
    with pytest.raises(ValueError, match="the catalogue has item_ids, target has none: row 5 could mean two items"):
        trm.evaluate(Price(2, catalogue=Catalogue.from_interactions(named)), users, items, target=test)
    with pytest.raises(ValueError, match=r"SeenItems@2 compares lists with the users' histories: make the catalogue"):
        trm.evaluate(
            [SeenItems(2), Price(2, catalogue=Catalogue(12, popularity=torch.ones(12)))], users, items, target=test
        )
    with pytest.raises(ValueError, match="was made with catalogue="):
        trm.RecMetricCollection([Price(2, catalogue=CATALOGUE), Named(2, catalogue=Catalogue(12))])
    with pytest.raises(ValueError, match=r"Price needs a catalogue: Price\(10, catalogue=trm.Catalogue.from"):
        Price(2)
    with pytest.raises(ValueError, match=r"Named needs a catalogue"):
        Named(2)
    with pytest.raises(TypeError, match=r"catalogue must be a Catalogue, got Interactions: trm.Catalogue.from_inter"):
        Price(2, catalogue=train)


def test_products_are_kept_where_lists_are_read(monkeypatch):
    """Kernels that count without keeping scores cannot name items: an explicit request for such kernels raises."""
    _, test, users, items = made()
    monkeypatch.setattr(trm.kernels, "choose", lambda kernels, device: "triton" if kernels == "triton" else "eager")
    with pytest.raises(ValueError, match="kernels='triton' cannot be used: First@2 reads which items stand first"):
        trm.evaluate([trm.HR(2, kernels="triton"), First(2, kernels="triton")], users, items, target=test)
    assert trm.evaluate([trm.HR(2), First(2)], users, items, target=test).kernels == "eager"


def test_lists_are_looked_up_in_the_catalogue():
    """Items of lists are looked up by id, also if the ground truth lacks them; an item outside the catalogue raises."""
    train = trm.Interactions.from_frame({"user": ["al", "bo", "eve", "al"], "item": ["x", "x", "y", "z"]})
    truth = {"user": ["al", "bo"], "item": ["y", "w"]}
    with pytest.raises(ValueError, match=r"1 list entry of lists whose item the catalogue does not have, such as 'w'"):
        trm.evaluate_lists(
            Price(2, catalogue=Catalogue.from_interactions(train)), {"al": ["y", "x"], "bo": ["w", "z"]}, target=truth
        )
    found = trm.evaluate_lists(
        [Price(2, catalogue=Catalogue.from_interactions(train)), SeenItems(2), trm.HR(2)],
        {"al": ["y", "x"], "bo": ["z", "y"]},
        target=truth,
    )
    assert {key: value.item() for key, value in found.items()} == {"Price@2": 1.25, "SeenItems@2": 0.5, "HR@2": 0.5}
    assert found.num_unknown == 0


def test_there_are_no_rows_to_keep():
    """Metrics of all lists together are not means over rows, so `rows` raises with `keep_rows=True`."""
    collection = trm.RecMetricCollection(["Coverage"], k=2, catalogue=Catalogue(3), accumulators=[trm.KeptRows()])
    collection.update(torch.rand(2, 3))
    collection.compute()
    with pytest.raises(ValueError, match="means over rows, and there is none"):
        collection.rows  # noqa: B018


SIX_ROWS = torch.rand(6, 7, generator=torch.Generator().manual_seed(0))


def of_state(rank, world_size, kind):
    catalogue = trm.Catalogue(7)
    if kind == "one has no rows":
        collection = trm.RecMetricCollection("ExposureGini", k=[1, 3], catalogue=catalogue)
        if rank:
            collection.update(SIX_ROWS)
    elif kind == "one has no lists that something left":
        collection = trm.RecMetricCollection(["Coverage", "Gini"], k=[2], catalogue=catalogue, validate_args="deferred")
        if rank:
            lists, excluded = torch.tensor([[0, 1, 2], [3, 4, 5]]), torch.tensor([[0], [3]])
            collection.update(trm.Lists(lists, exclude=excluded).ranking(validate_args="deferred"))
    else:
        collection = trm.RecMetricCollection(["Coverage", "Gini"], k=[1], catalogue=catalogue)
        collection.update(SIX_ROWS)
        if kind == "one was merged" and rank:
            collection.merge_state(collection.clone())
        elif kind == "one was loaded" and rank:
            collection.persistent(True)
            collection.load_state_dict(collection.state_dict())
        elif kind == "one member was updated alone" and rank:
            collection["Gini@1"].update(SIX_ROWS)
    return {key: value.item() for key, value in collection.compute().items()}


@pytest.mark.parametrize(
    "kind",
    [
        "one has no rows",
        "one has no lists that something left",
        "one was merged",
        "one was loaded",
        "one member was updated alone",
    ],
)
def test_processes_pack_histograms_alike(processes, kind):
    one, other = processes.run(of_state, 2, kind)
    assert one == other


def test_catalogues_of_other_data_are_told_apart():
    genres, ids = torch.tensor([0, 1, 0]), torch.tensor([0, 1, 2])
    metrics = {
        name: trm.IntraListDiversity(2, catalogue=trm.Catalogue(3, categories=codes))
        for name, codes in (("genre", genres), ("id", ids))
    }
    collection = MetricCollection(deepcopy(metrics))
    for row in ([0.9, 0.8, 0.1], [0.9, 0.1, 0.8]):
        collection.update(torch.tensor([row]))
        for metric in metrics.values():
            metric.update(torch.tensor([row]))
    assert collection.compute() == {name: metric.compute() for name, metric in metrics.items()}
