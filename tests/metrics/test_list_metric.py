"""Metrics of lists: the ranking that a formula gets, the rows that count, and the states that are shared."""

import math

import pytest
import torch
from values import near, numbers

import torchrecmetrics as trm
from torchrecmetrics.data.catalogue import Catalogue
from torchrecmetrics.metrics.item_counts import ItemCountMetric
from torchrecmetrics.metrics.of_lists import ListMetric


def first_item(ranking, k):
    """Return the id of the best item, or nan if there is none."""
    items = ranking.items[:, 0].double()
    return items.where(items >= 0, torch.nan)


class First(ListMetric):
    formula = staticmethod(first_item)


class Entries(ItemCountMetric):
    """The number of entries of all lists together."""

    formula = staticmethod(lambda histogram, k: histogram.total.double())


CATALOGUE = Catalogue(6, popularity=torch.tensor([5, 0, 2, 7, 1, 1]), num_users=9)
SCORES = torch.tensor(
    [
        [0.1, 0.9, 0.5, 0.9, 0.2, 0.5],  # 1 3 2 5 4 0
        [0.4, 0.3, 0.3, -math.inf, 0.3, -math.inf],  # 0 1 2 4
        [-math.inf] * 6,
    ]
)
TARGET = torch.tensor([[2, -1], [4, 1], [-1, -1]])


def test_items_of_lists_move_up():
    """Excluded, padding, repeated and empty (-1) entries leave a list, and the items after them move up."""
    lists = torch.tensor([[7, 3, 7, 9, -1], [4, -1, 8, 0, 2]])
    history = torch.tensor([[3], [2]])
    ranking = trm.Lists(lists, torch.tensor([[9], [8]]), exclude=history, duplicates="first").ranking(padding_idx=0)

    assert ranking.items.tolist() == [[7, 9, -1, -1, -1], [4, 8, -1, -1, -1]]
    assert ranking.repeated.tolist() == [[False, False, True, False, False], [False] * 5]
    assert ranking.entries.tolist() == [[True, True, True, True, False], [True, False, True, True, True]]
    assert ranking.within(1).items.tolist() == [[7], [4]]


def test_lists_need_no_target():
    ranking = trm.Lists(torch.tensor([[4, -1, 8, 0, 2]])).ranking()

    assert ranking.items.tolist() == [[4, 8, 0, 2, -1]]
    assert ranking.num_relevant.tolist() == [0]


STRICT = {"empty_target_action": "error"}
BATCH = trm.Scores(SCORES, TARGET)
UNKNOWN = "the top items are unknown"


@pytest.mark.parametrize(
    ("metric", "batch", "says"),
    [
        (First(2), trm.Ranks(torch.tensor([[1]]), complete=True), rf"{UNKNOWN}, .*: pass update\(scores"),
        (First(2), BATCH.ranking(depth=2), f"{UNKNOWN}.*items=True"),
        (trm.Seen(2), BATCH, r"a metric needs the history of each row: pass update\(Scores\(scores, target, history="),
        (trm.Serendipity(2, catalogue=CATALOGUE), SCORES, "scores need a target"),
        (trm.RecMetricCollection([First(2), trm.HR(2)]), SCORES, "scores need a target"),
        (trm.RecMetricCollection([First(2, **STRICT), trm.HR(2, **STRICT)]), BATCH, "without a relevant item"),
    ],
)
def test_what_a_batch_lacks(metric, batch, says):
    with pytest.raises(ValueError, match=says):
        metric.update(batch)


KINDS = [trm.Coverage, trm.Gini, trm.ExposureGini, trm.Personalization, Entries]


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_off_may_be_beyond_the_number_of_items(kind):
    assert kind(2**16, catalogue=CATALOGUE)(SCORES) == kind(6, catalogue=CATALOGUE)(SCORES)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_off_whose_counts_cannot_be_kept_is_refused(kind):
    with pytest.raises(ValueError, match=r"k must be at most 2\^28, since .*, got 1099511627776"):
        kind(2**40, catalogue=CATALOGUE)


def test_items_of_a_whole_ranking_are_refused():
    with pytest.raises(ValueError, match=r"items=True keeps the top items: pass their number as depth="):
        BATCH.ranking(items=True)


@pytest.mark.parametrize(("action", "accuracy"), [("skip", 1 / 2), ("neg", 1 / 3), ("pos", 2 / 3)])
def test_rows_without_a_relevant_item_have_lists(action, accuracy):
    """Rows without a relevant item count in metrics of lists, whatever `empty_target_action` says for accuracy."""
    scores, target = SCORES.clone(), torch.tensor([[1], [4], [-1]])
    scores[2, 5] = 0.5
    options = {"empty_target_action": action, "ties": "realistic"}
    metrics = First(2, **options), trm.HR(2, **options), Entries(2, catalogue=CATALOGUE, **options)
    collection = trm.RecMetricCollection(metrics)
    collection.update(scores, target)
    assert [*numbers(collection.compute()).values()] == pytest.approx([(1 + 0 + 5) / 3, accuracy, 2 + 2 + 1])
    assert [value.num_users for value in collection.values()] == [3, 2 if action == "skip" else 3, 3]
    assert [value.num_skipped for value in collection.values()] == [0, 1, 0]


def test_scores_alone_will_do_for_lists():
    metric = First(2, **STRICT)  # which is for accuracy
    metric.update(SCORES)
    assert metric.compute().item() == (1 + 0) / 2
    assert metric.num_users == 2  # the third row has no list


def test_weights_weigh_means_and_leave_rows_out():
    metrics = [First(1), Entries(1, catalogue=CATALOGUE), trm.ExposureGini(1, catalogue=CATALOGUE)]
    collection = trm.RecMetricCollection(metrics)
    collection.update(SCORES, TARGET, weights=torch.tensor([3.0, 0.0, 1.0]))
    found = {"First@1": 1, "Entries@1": 1, "ExposureGini@1": pytest.approx(5 / 6)}  # one item has all exposure
    assert numbers(collection.compute()) == found
    assert [member.num_users for member in collection.values()] == [1, 2, 2]  # the third list is empty
    assert collection["First@1"].standard_error().isnan()


@pytest.mark.parametrize("history", [[[3, 0, -1], [-1, 4, 2], [1, 1, 1]], [3, 2, 1]])
def test_history_by_id(history):
    seen = trm.Seen(3)(trm.Scores(SCORES, history=torch.tensor(history)))

    assert seen.item() == pytest.approx((1 / 3 + 1 / 3) / 2)  # the third row has no list


@pytest.mark.parametrize("history", [torch.tensor([3, 2]), torch.zeros(3, 1, 1, dtype=torch.int64)])
def test_a_history_of_another_shape_is_refused(history):
    with pytest.raises(ValueError, match=r"history ids must be \[3\] or \[3, H\], got"):
        trm.Seen(3).update(trm.Scores(SCORES, history=history))


def test_jagged_history():
    """A history may be values with offsets, a nested tensor, a `Jagged` or the past of each position."""
    values, offsets = torch.tensor([3, 0, 4, 2, 1]), torch.tensor([0, 2, 4, 5])
    nested = torch.nested.nested_tensor_from_jagged(values, offsets)
    for history in ((values, offsets), nested, trm.Jagged(values, offsets)):
        assert trm.Seen(3)(trm.Scores(SCORES, history=history)).item() == pytest.approx((1 / 3 + 1 / 3) / 2)
    past = trm.prefix_history(torch.tensor([3, 4, 1]), torch.tensor([0, 3]))
    found = trm.Seen(3)(trm.Scores(SCORES[:1].expand(3, -1), history=past))
    assert found.item() == pytest.approx((0 + 1 / 3 + 1 / 3) / 3)


def test_a_jagged_history_has_a_row_per_row():
    with pytest.raises(ValueError, match=r"history has 2 rows"):
        trm.Seen(3).update(trm.Scores(SCORES, history=(torch.tensor([3, 0, 4]), torch.tensor([0, 2, 3]))))


OUTSIDE = trm.Lists(torch.tensor([[1, 6], [2, 3]]))
AVERAGE_OR_COVERAGE = pytest.mark.parametrize(
    ("kind", "value"), [(trm.AveragePopularity, (0 + 4.5) / 2), (trm.Coverage, 3 / 6)]
)


@AVERAGE_OR_COVERAGE
def test_items_outside_the_catalogue_raise(kind, value):
    metric = kind(2, catalogue=CATALOGUE)

    with pytest.raises(ValueError, match=r"1 of 2 rows with an item in the list.*row 0 lists \[1, 6\] of 6 items"):
        metric.update(OUTSIDE)
    with pytest.raises(ValueError, match="the catalogue has 6 items, the scores have 5"):
        metric.update(SCORES[:, :5])
    assert not metric.update_called


@AVERAGE_OR_COVERAGE
def test_items_outside_the_catalogue_are_no_items_if_unchecked(kind, value):
    assert kind(2, catalogue=CATALOGUE, validate_args=False)(OUTSIDE).item() == value


@AVERAGE_OR_COVERAGE
def test_items_outside_the_catalogue_raise_in_compute_if_deferred(kind, value):
    metric = kind(2, catalogue=CATALOGUE, validate_args="deferred")
    metric.update(OUTSIDE)

    with pytest.raises(ValueError, match=r"bad input since the last reset: 1 row with an item in the list or"):
        metric.compute()


def test_lists_that_are_cut_short():
    lists, history = torch.tensor([[1, 2, 3], [3, 4, 5]]), torch.tensor([[1], [-1]])
    with pytest.raises(ValueError, match="1 of 2 rows with fewer than k known ranks"):
        Entries(3, catalogue=CATALOGUE).update(trm.Lists(lists, exclude=history))
    options = {"validate_args": "deferred"}
    ranking = trm.Lists(lists, exclude=history).ranking(**options)
    for metric, value in ((Entries(2, catalogue=CATALOGUE, **options), 4), (First(2, **options), (2 + 3) / 2)):
        assert metric(ranking).item() == value
    for metric in (Entries(3, catalogue=CATALOGUE, **options), First(3, **options)):
        metric.update(ranking)
        with pytest.raises(ValueError, match="1 row with fewer than k known ranks"):
            metric.compute()


def made(seed=3, users=30, items=12):
    generator = torch.Generator().manual_seed(seed)

    def pairs(share):
        return (torch.rand(users, items, generator=generator) < share).nonzero().T

    train = trm.Interactions.from_edge_index(pairs(0.3), num_users=users, num_items=items)
    test = trm.Interactions.from_edge_index(pairs(0.1), num_users=users, num_items=items).without(train)
    return train, test, torch.randn(users, 4, generator=generator), torch.randn(items, 4, generator=generator)


def test_evaluate_update_and_lists_agree():
    train, test, users, items = made()
    catalogue = Catalogue.from_interactions(train)
    metrics = [
        *(kind(k, catalogue=catalogue) for k in (2, 4) for kind in (trm.AveragePopularity, Entries, trm.ExposureGini)),
        *(First(4), trm.Seen(4), trm.Serendipity(4, catalogue=catalogue), trm.Recall(4)),
    ]
    expected = near(trm.evaluate(metrics, users, items, target=test, exclude=train, batch_size=7))
    collection = trm.RecMetricCollection([metric.clone() for metric in metrics])
    for ids in (test.degree > 0).nonzero()[:, 0].split(5):
        past = train.select(ids)
        collection.update(trm.Scores(users[ids] @ items.T, test.select(ids), exclude=past, history=past))

    assert numbers(collection.compute()) == expected
    assert numbers(trm.evaluate_lists(metrics, trm.recommend(users, items, 4, exclude=train), target=test)) == expected


def test_all_users_have_lists():
    """With `all_users` users without ground truth count in metrics of lists, and not in accuracy."""
    train, test, users, items = made(users=60)
    assert int((test.degree == 0).sum()) > 5
    metrics = [Entries(3, catalogue=Catalogue.from_interactions(train)), trm.NDCG(3)]
    some = trm.evaluate(metrics, users, items, target=test, exclude=train)
    every = trm.evaluate(metrics, users, items, target=test, exclude=train, all_users=True)
    lists = trm.recommend(users, items, 3, exclude=train).ids

    assert some["NDCG@3"] == every["NDCG@3"]
    assert every["Entries@3"] == (lists >= 0).sum()
    assert some["Entries@3"] == (lists[test.degree > 0] >= 0).sum()
    assert "60 with a list" in str(every)


@pytest.mark.parametrize(
    ("kind", "catalogue", "says"),
    [
        (trm.Novelty, Catalogue(11, popularity=torch.ones(11), num_users=5), "catalogue has 11 items, target has 12"),
        (
            trm.Coverage,
            Catalogue(12, item_ids=range(12)),
            "the catalogue has item_ids, target has none: row 5 could mean two items",
        ),
        (trm.Seen, Catalogue(12), "Seen@2 compares lists with the users' histories: make the catalogue"),
    ],
)
def test_a_catalogue_is_the_targets(kind, catalogue, says):
    _, test, users, items = made()

    with pytest.raises(ValueError, match=says):
        trm.evaluate(kind(2, catalogue=catalogue), users, items, target=test)


def test_metrics_of_two_catalogues_are_no_collection():
    with pytest.raises(ValueError, match="was made with catalogue="):
        trm.RecMetricCollection([First(2, catalogue=CATALOGUE), Entries(2, catalogue=Catalogue(12))])


def test_a_catalogue_is_needed_and_is_not_interactions():
    with pytest.raises(ValueError, match=r"Entries needs a catalogue: Entries\(2, catalogue=trm.Catalogue.from_inter"):
        Entries(2)
    with pytest.raises(TypeError, match=r"catalogue must be a Catalogue, got Interactions: pass trm.Catalogue.from"):
        trm.AveragePopularity(2, catalogue=made()[0])


def test_products_are_kept_where_lists_are_read(monkeypatch):
    """Kernels that count without keeping scores cannot name items: an explicit request for such kernels raises."""
    _, test, users, items = made()
    monkeypatch.setattr(trm.kernels, "choose", lambda kernels, device: "triton" if kernels == "triton" else "eager")
    with pytest.raises(ValueError, match="kernels='triton' cannot be used: First@2 reads the top items"):
        trm.evaluate([trm.HR(2, kernels="triton"), First(2, kernels="triton")], users, items, target=test)
    assert trm.evaluate([trm.HR(2), First(2)], users, items, target=test).kernels == "eager"


def test_lists_are_looked_up_in_the_catalogue():
    """Items of lists are looked up by id, also if the ground truth lacks them; an item outside the catalogue raises."""
    train = trm.Interactions.from_frame({"user": ["al", "bo", "eve", "al"], "item": ["x", "x", "y", "z"]})
    metrics = [trm.AveragePopularity(2, catalogue=Catalogue.from_interactions(train)), trm.Seen(2), trm.HR(2)]
    truth = {"user": ["al", "bo"], "item": ["y", "w"]}
    with pytest.raises(ValueError, match=r"the catalogue lacks the items of 1 list entry of lists, such as 'w'"):
        trm.evaluate_lists(metrics, {"al": ["y", "x"], "bo": ["w", "z"]}, target=truth)
    found = trm.evaluate_lists(metrics, {"al": ["y", "x"], "bo": ["z", "y"]}, target=truth)
    popularity = ((1 + 2) / 2 + (1 + 1) / 2) / 2
    assert numbers(found) == {"AveragePopularity@2": popularity, "Seen@2": (1 / 2 + 0) / 2, "HR@2": 1 / 2}
    assert found.num_unknown == 0


def test_there_are_no_rows_to_keep():
    """Metrics of all lists together are not means over rows, so `rows` raises with `keep_rows=True`."""
    collection = trm.RecMetricCollection(["Coverage"], k=2, catalogue=Catalogue(3), accumulators=[trm.KeptRows()])
    collection.update(torch.rand(2, 3))
    collection.compute()
    with pytest.raises(ValueError, match="means over rows, but the collection has none"):
        collection.rows  # noqa: B018


SIX_ROWS = torch.rand(6, 7, generator=torch.Generator().manual_seed(0))


def of_states(rank, world_size):
    """Return the values of collections whose rows, or whose state, the second process got in another way."""

    def collection(names, k, **options):
        return trm.RecMetricCollection(names, k=k, catalogue=trm.Catalogue(7), **options)

    no_rows = collection("ExposureGini", [1, 3])
    cut_short = collection(["Coverage", "Gini"], [2], validate_args="deferred")
    merged, loaded, alone = (collection(["Coverage", "Gini"], [1]) for _ in range(3))
    for metrics in (merged, loaded, alone):
        metrics.update(SIX_ROWS)
    if rank:
        no_rows.update(SIX_ROWS)
        lists, excluded = torch.tensor([[0, 1, 2], [3, 4, 5]]), torch.tensor([[0], [3]])
        cut_short.update(trm.Lists(lists, exclude=excluded).ranking(validate_args="deferred"))
        merged.merge_state(merged.clone())
        loaded.persistent(True)
        loaded.load_state_dict(loaded.state_dict())
        alone["Gini@1"].update(SIX_ROWS)
    return [numbers(metrics.compute()) for metrics in (no_rows, cut_short, merged, loaded, alone)]


def test_processes_pack_histograms_alike(processes):
    """Processes add up item counts alike if one of them has no rows, no full lists, or a merged or loaded state."""
    one, other = processes.run(of_states, 2)
    assert one == other
