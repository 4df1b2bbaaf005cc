"""Metrics of lists: the ranking that a formula gets, the rows that count, and the states that are shared."""

import math

import pytest
import torch
from values import numbers

import torchrecmetrics as trm
from torchrecmetrics.data.catalogue import Catalogue
from torchrecmetrics.metrics.item_counts import ItemCountMetric
from torchrecmetrics.metrics.of_lists import ListMetric


class First(ListMetric):
    """The id of the best item, or nan if there is none."""

    @staticmethod
    def formula(ranking, k):
        items = ranking.items[:, 0].double()
        return items.where(items >= 0, torch.nan)


class Entries(ItemCountMetric):
    """The number of entries of all lists together."""

    formula = staticmethod(lambda histogram, k: histogram.total.double())


CATALOGUE = Catalogue(6, popularity=torch.tensor([5, 0, 2, 7, 1, 1]), num_users=9)
SCORES = torch.tensor(
    [
        [0.1, 0.9, 0.5, 0.9, 0.2, 0.5],  # 1 3 2 5 4 0
        [0.4, 0.3, 0.3, -math.inf, 0.3, -math.inf],  # 0 1 2 4
        [-math.inf] * 6,  # no list
    ]
)
TARGET = torch.tensor([[2, -1], [4, 1], [-1, -1]])


def test_entries_that_are_no_items_leave_a_list_and_later_items_move_up():
    lists, excluded = torch.tensor([[7, 3, 7, 9, -1], [4, -1, 8, 0, 2]]), torch.tensor([[3], [2]])
    ranking = trm.Lists(lists, torch.tensor([[9], [8]]), exclude=excluded, duplicates="first").ranking(padding_idx=0)

    assert ranking.items.tolist() == [[7, 9, -1, -1, -1], [4, 8, -1, -1, -1]]
    assert ranking.within(1).items.tolist() == [[7], [4]]


STRICT = {"empty_target_action": "error"}
BATCH = trm.Scores(SCORES, TARGET)
HISTORY_NEEDED = r"a metric needs the history of each row: pass update\(Scores\(scores, target, history="


@pytest.mark.parametrize(
    ("metric", "batch", "says"),
    [
        (First(2), trm.Ranks(torch.tensor([1]), complete=True), r"the top items are unknown, .*: pass update\(scores"),
        (First(2), BATCH.ranking(depth=2), "the top items are unknown.*items=True"),
        (trm.Seen(2), BATCH, HISTORY_NEEDED),
        (trm.Serendipity(2, catalogue=CATALOGUE), SCORES, "scores need a target"),
        (trm.EqualOpportunity(2, catalogue=CATALOGUE), SCORES, "scores need a target"),
        (trm.StatisticalParity(2, catalogue=CATALOGUE), BATCH, HISTORY_NEEDED),
        (trm.RecMetricCollection([First(2), trm.HR(2)]), SCORES, "scores need a target"),
        (trm.RecMetricCollection([First(2, **STRICT), trm.HR(2, **STRICT)]), BATCH, "without a relevant item"),
    ],
)
def test_a_batch_that_lacks_what_a_metric_reads_is_refused(metric, batch, says):
    with pytest.raises(ValueError, match=says):
        metric.update(batch)


def test_top_items_of_a_whole_ranking_are_refused():
    with pytest.raises(ValueError, match=r"items=True keeps the top items: pass their number as depth="):
        BATCH.ranking(items=True)


KINDS = [trm.Coverage, trm.Gini, trm.ExposureGini, trm.Personalization, Entries]


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_off_may_be_beyond_the_number_of_items(kind):
    assert kind(2**16, catalogue=CATALOGUE)(SCORES) == kind(6, catalogue=CATALOGUE)(SCORES)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_off_whose_counts_cannot_be_kept_is_refused(kind):
    with pytest.raises(ValueError, match=r"k must be at most 2\^28, since .*, got 1099511627776"):
        kind(2**40, catalogue=CATALOGUE)


@pytest.mark.parametrize(
    ("action", "hit_rate", "num_users"), [("skip", 1 / 2, 2), ("neg", (1 + 0) / 3, 3), ("pos", (1 + 0 + 1) / 3, 3)]
)
def test_rows_without_a_relevant_item_have_lists_whatever_the_action_for_accuracy(action, hit_rate, num_users):
    scores, target = SCORES.clone(), torch.tensor([[1], [4], [-1]])
    scores[2, 5] = 0.5  # lists 1 3; 0 1; 5
    options = {"empty_target_action": action, "ties": "realistic"}
    members = First(2, **options), trm.HR(2, **options), Entries(2, catalogue=CATALOGUE, **options)
    metrics = trm.RecMetricCollection(members)
    metrics.update(scores, target)

    assert numbers(metrics.compute()) == {"First@2": (1 + 0 + 5) / 3, "HR@2": hit_rate, "Entries@2": 2 + 2 + 1}
    assert [value.num_users for value in metrics.values()] == [3, num_users, 3]
    assert [value.num_skipped for value in metrics.values()] == [0, 1, 0]


def test_scores_alone_will_do_for_lists_and_a_row_without_a_list_is_left_out():
    metric = First(2, **STRICT)  # which is for accuracy
    metric.update(SCORES)

    assert metric.compute().item() == (1 + 0) / 2
    assert metric.num_users == 2


def test_weights_weigh_means_over_rows_and_a_weight_of_0_leaves_a_list_out():
    names = [First(1), Entries(1, catalogue=CATALOGUE), "ExposureGini"]
    metrics = trm.RecMetricCollection(names, k=1, catalogue=CATALOGUE)
    metrics.update(SCORES[:2].repeat(2, 1), weights=torch.tensor([3.0, 1.0, 0.0, 0.0]))  # items 1 and 0

    assert numbers(metrics.compute()) == pytest.approx(
        {"First@1": (3 * 1 + 1 * 0) / 4, "Entries@1": 2, "ExposureGini@1": 4 / 6}  # two of six items, once each
    )
    assert [value.num_users for value in metrics.values()] == [2, 2, 2]


@pytest.mark.parametrize(
    "history",
    [
        torch.tensor([[3, 0, -1], [-1, 4, 2], [1, 1, 1]]),
        torch.tensor([3, 2, 1]),
        (torch.tensor([3, 0, 4, 2, 1]), torch.tensor([0, 2, 4, 5])),
    ],
    ids=["padded", "one id", "values and offsets"],
)
def test_a_history_may_have_any_form_of_ids(history):
    """Of lists 1 3 2 and 0 1 2 one item each was seen; the third row has no list."""
    seen = trm.Seen(3)(trm.Scores(SCORES, history=history))

    assert seen.item() == pytest.approx((1 / 3 + 1 / 3) / 2)


@pytest.mark.parametrize(
    ("history", "says"),
    [
        (torch.tensor([3, 2]), r"history ids must be \[3\] or \[3, H\], got"),
        (torch.zeros(3, 1, 1, dtype=torch.int64), r"history ids must be \[3\] or \[3, H\], got"),
        ((torch.tensor([3, 0, 4]), torch.tensor([0, 2, 3])), "history has 2 rows"),
    ],
)
def test_a_history_of_another_shape_is_refused(history, says):
    with pytest.raises(ValueError, match=says):
        trm.Seen(3).update(trm.Scores(SCORES, history=history))


OUTSIDE = trm.Lists(torch.tensor([[1, 6], [2, 3]]))  # of items 0 to 5


@pytest.mark.parametrize("kind", [trm.AveragePopularity, trm.Coverage])
@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (OUTSIDE, r"1 of 2 rows with an item in the list.*row 0 lists \[1, 6\] of 6 items"),
        (SCORES[:, :5], "the catalogue has 6 items, the scores have 5"),
    ],
    ids=["lists", "scores"],
)
def test_items_that_are_not_those_of_the_catalogue_are_refused(kind, batch, says):
    metric = kind(2, catalogue=CATALOGUE)

    with pytest.raises(ValueError, match=says):
        metric.update(batch)
    assert not metric.update_called


@pytest.mark.parametrize(("kind", "value"), [(trm.AveragePopularity, (0 / 1 + (2 + 7) / 2) / 2), (trm.Coverage, 3 / 6)])
def test_items_outside_the_catalogue_are_no_items_if_unchecked(kind, value):
    assert kind(2, catalogue=CATALOGUE, validate_args=False)(OUTSIDE).item() == value


@pytest.mark.parametrize("kind", [trm.AveragePopularity, trm.Coverage])
def test_items_outside_the_catalogue_raise_in_compute_if_deferred(kind):
    metric = kind(2, catalogue=CATALOGUE, validate_args="deferred")
    metric.update(OUTSIDE)

    with pytest.raises(ValueError, match=r"bad input since the last reset: 1 row with an item in the list or"):
        metric.compute()


CUT_SHORT = trm.Lists(torch.tensor([[1, 2, 3], [3, 4, 5]]), exclude=torch.tensor([[1], [-1]]))  # 2 3; 3 4 5


@pytest.mark.parametrize(("kind", "value"), [(Entries, 2 + 2), (First, (2 + 3) / 2)])
def test_lists_that_are_cut_short_beyond_k_count(kind, value):
    metric = kind(2, catalogue=CATALOGUE, validate_args="deferred")
    assert metric(CUT_SHORT.ranking(validate_args="deferred")).item() == value


@pytest.mark.parametrize("kind", [Entries, First])
def test_lists_that_are_cut_short_below_k_raise_in_compute_if_deferred(kind):
    metric = kind(3, catalogue=CATALOGUE, validate_args="deferred")
    metric.update(CUT_SHORT.ranking(validate_args="deferred"))

    with pytest.raises(ValueError, match="1 row with fewer than k known ranks"):
        metric.compute()


def made(seed=3, users=30, items=12):
    """Return training and test interactions without overlap, and embeddings of users and items."""
    generator = torch.Generator().manual_seed(seed)

    def pairs(share):
        return (torch.rand(users, items, generator=generator) < share).nonzero().T

    train = trm.Interactions.from_edge_index(pairs(0.3), num_users=users, num_items=items)
    test = trm.Interactions.from_edge_index(pairs(0.1), num_users=users, num_items=items).without(train)
    return train, test, torch.randn(users, 4, generator=generator), torch.randn(items, 4, generator=generator)


def test_evaluate_takes_histories_from_the_interactions_of_the_catalogue():
    train = trm.Interactions.from_dense(torch.tensor([[1, 0, 0], [0, 1, 1]]).bool())
    test = trm.Interactions.from_dense(torch.tensor([[0, 1, 0], [1, 0, 0]]).bool())
    scores = torch.tensor([[0.3, 0.2, 0.1], [0.1, 0.3, 0.2]])  # lists 0 1 and 1 2
    catalogue = Catalogue.from_interactions(train)
    result = trm.evaluate(["Seen", "Recall"], scores, torch.eye(3), target=test, k=2, catalogue=catalogue)

    assert result.floats() == {"Seen@2": (1 / 2 + 2 / 2) / 2, "Recall@2": (1 + 0) / 2}


def test_users_without_ground_truth_have_lists_with_all_users_and_change_no_accuracy():
    train, test, users, items = made(users=60)
    metrics = [Entries(3, catalogue=Catalogue.from_interactions(train)), trm.NDCG(3)]
    some = trm.evaluate(metrics, users, items, target=test, exclude=train)
    every = trm.evaluate(metrics, users, items, target=test, exclude=train, all_users=True)
    lengths = (trm.recommend(users, items, 3, exclude=train).ids >= 0).sum(1)

    assert (some["Entries@3"], every["Entries@3"]) == (lengths[test.degree > 0].sum(), lengths.sum())
    assert some["NDCG@3"] == every["NDCG@3"]
    assert "60 with a list" in str(every)


def evaluated(kind, catalogue):
    _, test, users, items = made()
    return trm.evaluate(kind(2, catalogue=catalogue), users, items, target=test)


NUMBERED = Catalogue(11, popularity=torch.ones(11), num_users=5)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: Entries(2), ValueError, r"Entries needs a catalogue: Entries\(2, catalogue=trm.Catalogue.from_inter"),
        (lambda: First(2, catalogue=made()[0]), TypeError, "must be a Catalogue, got Interactions: pass trm.Catalogue"),
        (
            lambda: trm.RecMetricCollection([First(2, catalogue=CATALOGUE), Entries(2, catalogue=Catalogue(12))]),
            ValueError,
            "was made with catalogue=",
        ),
        (lambda: evaluated(trm.Novelty, NUMBERED), ValueError, "catalogue has 11 items, target has 12"),
        (
            lambda: evaluated(trm.Coverage, Catalogue(12, item_ids=range(12))),
            ValueError,
            "the catalogue has item_ids, target has none",
        ),
        (lambda: evaluated(trm.Seen, Catalogue(12)), ValueError, "Seen@2 compares lists with the users' histories"),
    ],
)
def test_a_catalogue_that_will_not_do_is_refused(call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_kernels_that_keep_no_scores_are_refused_where_lists_are_read(monkeypatch):
    _, test, users, items = made()
    monkeypatch.setattr(trm.kernels, "choose", lambda kernels, device: "triton" if kernels == "triton" else "eager")

    with pytest.raises(ValueError, match="kernels='triton' cannot be used: First@2 reads the top items"):
        trm.evaluate([trm.HR(2, kernels="triton"), First(2, kernels="triton")], users, items, target=test)
    assert trm.evaluate([trm.HR(2), First(2)], users, items, target=test).kernels == "eager"


THREE_ITEMS = Catalogue.from_interactions(
    trm.Interactions.from_frame({"user": ["al", "bo", "eve", "al"], "item": ["x", "x", "y", "z"]})
)
TRUTH = {"user": ["al", "bo"], "item": ["y", "w"]}


def test_items_of_lists_are_looked_up_in_the_catalogue():
    lists = {"al": ["y", "x"], "bo": ["z", "y"]}
    result = trm.evaluate_lists(["AveragePopularity", "Seen", "HR"], lists, target=TRUTH, k=2, catalogue=THREE_ITEMS)

    assert numbers(result) == {
        "AveragePopularity@2": ((1 + 2) / 2 + (1 + 1) / 2) / 2,
        "Seen@2": (1 / 2 + 0 / 2) / 2,  # al had x
        "HR@2": 1 / 2,
    }
    assert result.num_unknown == 0


def test_an_item_of_lists_that_the_catalogue_lacks_is_refused():
    with pytest.raises(ValueError, match=r"the catalogue lacks the items of 1 list entry of lists, such as 'w'"):
        trm.evaluate_lists("Coverage", {"bo": ["w", "z"]}, target=TRUTH, k=2, catalogue=THREE_ITEMS)


def test_metrics_of_all_lists_together_have_no_rows_to_keep():
    metrics = trm.RecMetricCollection("Coverage", k=2, catalogue=Catalogue(3), accumulators=[trm.KeptRows()])
    metrics.update(torch.rand(2, 3))

    with pytest.raises(ValueError, match="means over rows, but the collection has none"):
        metrics.rows  # noqa: B018


ITEM_0, ITEM_1 = (trm.Lists(torch.tensor([[item]])) for item in (0, 1))


def empty(metrics):
    """Have no rows."""


def cut_short(metrics):
    metrics.update(trm.Lists(torch.tensor([[0, 1]]), exclude=torch.tensor([[0]])).ranking(validate_args="deferred"))


def updated_by_a_member(metrics):
    metrics["Gini@1"].update(ITEM_1)


def loaded(metrics):
    metrics.update(ITEM_1)
    metrics.load_state_dict(metrics.state_dict())


def merged(metrics):
    metrics.update(ITEM_1)
    metrics.merge_state(metrics.clone())


def gini_of_process(rank, world_size, count):
    metrics = trm.RecMetricCollection("Gini", k=1, catalogue=trm.Catalogue(2), validate_args="deferred")
    metrics.persistent(True)
    if rank == 0:
        metrics.update(ITEM_0)
    else:
        count(metrics)
    return metrics.compute()["Gini@1"].item()


@pytest.mark.parametrize(
    ("count", "expected"),  # items 0 and 1 are listed 1 and 0 times, 1 and 1, or 1 and 2
    [(empty, 1 / 2), (cut_short, 0), (updated_by_a_member, 0), (loaded, 0), (merged, (2 - 1) / (2 * 3))],
)
def test_processes_add_up_item_counts_however_the_second_got_its_own(count, expected, processes):
    assert processes.run(gini_of_process, 2, count) == [pytest.approx(expected)] * 2
