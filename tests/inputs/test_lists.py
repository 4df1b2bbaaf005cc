"""`Lists`: excluded, repeated and padded entries by hand and against plain Python, and refused arguments."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from rankings import batches, padded
from sizes import examples
from torch import tensor

import torchrecmetrics as trm

INF, NAN = math.inf, math.nan
LISTS = tensor([[7, 3, 9, 4], [4, 8, -1, -1], [1, 2, 3, 4]])
TARGET = tensor([[9, 1], [4, -1], [3, 4]])


def test_an_entry_has_its_place_and_a_negative_id_none():
    ranking = trm.Lists(LISTS, TARGET).ranking()

    assert ranking.ranks.tolist() == [[3, INF], [1, INF], [3, 4]]
    assert (ranking.depth, ranking.num_ranked, ranking.num_recommended.tolist()) == (4, None, [4, 2, 4])


def test_excluded_ids_leave_their_list_and_later_items_move_up():
    ranking = trm.Lists(LISTS, TARGET, exclude=tensor([[3, 7], [8, 8], [5, -1]])).ranking()

    assert ranking.ranks.tolist() == [[1, INF], [1, INF], [3, 4]]
    assert [[item for item in row if item >= 0] for row in ranking.items.tolist()] == [[9, 4], [4], [1, 2, 3, 4]]
    assert ranking.row_depth.tolist() == [2, 4, 4]  # the second list ended early: it is whole


@pytest.mark.parametrize("ties", ["expected", "realistic", "optimistic", "pessimistic"])
@pytest.mark.parametrize("graded", [False, True])
@settings(max_examples=examples(60), deadline=None)
@given(batch=batches(), overlap=st.sampled_from(["keep", "miss"]), depth=st.sampled_from([3, None]))
def test_random_whole_lists_with_scores_have_the_values_of_these_scores(ties, graded, batch, overlap, depth):
    scores, targets, gains, history, items = batch
    scores, target = tensor(scores).reshape(-1, items), padded(targets, -1, torch.int64)
    ordered, ids = scores.sort(dim=1, descending=True, stable=True)
    ids, options = ids.where(ordered > -INF, -1), {"ties": ties, "overlap": overlap}
    more = {"gains": padded(gains, 0.0, torch.float64) if graded else None, "exclude": padded(history, -1, torch.int64)}
    whole = trm.Scores(scores, target, **more).ranking(depth, **options)
    lists = trm.Lists(ids, target, scores=ordered, complete=True, **more).ranking(depth, **options)
    formulas = trm.functional.hit_rate, trm.functional.ndcg, trm.functional.average_precision
    values, expected = (torch.stack([formula(rows, [1, 2, 3]) for formula in formulas]) for rows in (lists, whole))

    assert torch.allclose(values, expected, atol=1e-14, equal_nan=True)
    assert lists.num_relevant.tolist() == whole.num_relevant.tolist()
    assert lists.tied.tolist() == whole.tied.tolist()


@pytest.mark.parametrize(
    ("lists", "scores"),
    [
        # scores beside padding are not read
        (tensor([[4, 2, 7, 1, 0], [3, 5, -1, -1, -1]]), tensor([[1.0, 1, 1, 1, 1], [0.5, 0.5, 9, INF, -INF]])),
        ((tensor([4, 2, 7, 1, 0, 3, 5]), tensor([0, 5, 7])), tensor([1.0, 1, 1, 1, 1, 0.5, 0.5])),
    ],
    ids=["padded", "jagged"],
)
def test_entries_of_equal_scores_are_tied_wherever_they_are_listed(lists, scores):
    ranking = trm.Lists(lists, tensor([7, 5]), scores=scores).ranking()

    assert trm.functional.hit_rate(ranking, 1).tolist() == pytest.approx([1 / 5, 1 / 2])
    assert (ranking.ranks.tolist(), ranking.tied.tolist()) == ([[3], [1.5]], [True, True])


def test_a_gap_hides_no_rising_score():
    lists = trm.Lists(tensor([[7, -1, 3]]), tensor([3]), scores=tensor([[0.5, 1.0, 0.9]]))

    with pytest.raises(ValueError, match="whose scores rise along the list"):
        lists.ranking()


def test_an_entry_that_scores_minus_inf_is_no_item():
    ranking = trm.Lists(tensor([[3, 7, 5]]), tensor([7]), scores=tensor([[0.5, -INF, -INF]])).ranking()

    assert (ranking.ranks.tolist(), ranking.num_recommended.tolist()) == ([[INF]], [1])


def test_entries_that_reach_the_score_threshold_are_recommended():
    lists = trm.Lists(tensor([[7, 3, 9]]), tensor([9]), scores=tensor([[0.9, 0.5, 0.1]]))

    assert lists.ranking(score_threshold=0.5).num_recommended.tolist() == [2]


@pytest.mark.parametrize(("item", "rank"), [(3, 1), (7, 2), (5, INF)])
def test_an_unchecked_nan_is_the_worst_score(item, rank):
    lists = trm.Lists(tensor([[3, 7, 5]]), tensor([item]), scores=tensor([[0.9, 0.5, NAN]]))
    ranking = lists.ranking(validate_args=False)

    assert (ranking.ranks.tolist(), ranking.tied.tolist()) == ([[rank]], [False])


THREE_ITEMS_WITHOUT_ITEM_3 = trm.Lists(tensor([[4, 3, 9]]), tensor([[9]]), exclude=tensor([[3]]))


def test_a_list_of_three_items_of_which_one_is_excluded_is_enough_for_2():
    assert trm.HR(2)(THREE_ITEMS_WITHOUT_ITEM_3) == 1


@pytest.mark.parametrize("validate_args", [True, "deferred"])
@pytest.mark.parametrize("read", [trm.HR(3), lambda ranking: ranking.hits(3)], ids=["metric", "hits"])
def test_a_list_of_three_items_of_which_one_is_excluded_is_too_short_for_3(read, validate_args):
    ranking = THREE_ITEMS_WITHOUT_ITEM_3.ranking(validate_args=validate_args)

    with pytest.raises(ValueError, match="with fewer than k known ranks"):
        read(ranking)


def test_the_padding_item_leaves_its_list_however_often_it_occurs():
    lists, target = tensor([[0, 3, 4], [3, 0, 0], [3, 4, 5]]), tensor([[4], [0], [5]])
    ranking = trm.Lists(lists, target).ranking(padding_idx=0)

    assert ranking.ranks.tolist() == [[2], [INF], [3]]
    assert ranking.num_relevant.tolist() == [1, 0, 1]
    assert ranking.row_depth.tolist() == [2, 1, 3]


def test_a_repeated_item_leaves_its_list_and_later_items_move_up():
    ranking = trm.Lists(tensor([[4, 7, 4, 9]]), tensor([9]), duplicates="first").ranking()

    assert (ranking.ranks.tolist(), ranking.num_repeated.tolist()) == ([[3]], [1])


@st.composite
def lists_with_repeats(draw):
    """Draw one row: a list, targets, and excluded items; -1 is no item."""
    item = st.integers(-1, 5)
    targets = draw(st.lists(item, min_size=3, max_size=3, unique=True))
    return draw(st.lists(item, min_size=1, max_size=7)), targets, draw(st.lists(item, min_size=1, max_size=3))


@pytest.mark.parametrize("validate_args", [True, "deferred"])
@pytest.mark.parametrize("padding_idx", [None, 0])
@settings(max_examples=examples(100), deadline=None)
@given(row=lists_with_repeats())
def test_random_lists_with_repeats_rank_as_if_walked_item_by_item(padding_idx, validate_args, row):
    items, target, exclude = row
    walked = []
    for item in items:
        if item >= 0 and item != padding_idx and item not in exclude and item not in walked:
            walked.append(item)
    hits = [1 + walked.index(item) for item in target if item in walked]
    kept = [item for item in items if item >= 0 and item != padding_idx]
    lists = trm.Lists(tensor([items]), tensor([target]), exclude=tensor([exclude]), duplicates="first")
    ranking = lists.ranking(padding_idx=padding_idx, overlap="miss", validate_args=validate_args)

    assert ranking.ranks.tolist() == [sorted(hits) + [INF] * (3 - len(hits))]
    assert (ranking.num_recommended.item(), ranking.num_repeated.item()) == (len(walked), len(kept) - len({*kept}))
    assert ranking.row_depth.item() == (len(items) if -1 in items else len(walked))


SCORES = tensor([[0.1, 0.9, 0.5], [0.3, 0.2, 0.1]])
DENSE = tensor([[True, False, False, True], [False, True, False, False]])
TWO_LISTS = {"item_ids": tensor([[0, 1, 2], [2, 1, 0]]), "target": tensor([[2, 0], [1, -1]])}
SELECTED = trm.Interactions.from_padded(TWO_LISTS["target"], 3).select([0, 1])  # ascending, not best first
ONE_LIST = {"item_ids": tensor([[4, 2, 7]]), "target": tensor([7])}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"item_ids": SCORES}, TypeError, "item_ids must hold int64, int32 or int16"),
        ({"item_ids": tensor([2, 0])}, ValueError, r"item_ids must be \[B, K\]"),
        ({"item_ids": tensor([[1, 2, 1]] * 2)}, ValueError, r"twice: row 0 is \[1, 2, 1\] \(duplicates='first' "),
        ({"item_ids": SELECTED}, TypeError, r"item_ids must be a tensor, got SelectedItems: pass item_ids\.items"),
        ({"duplicates": "last"}, ValueError, "duplicates must be one of 'error', 'first', 'keep_place', got 'last'"),
        ({"target": SCORES > 0}, ValueError, r"\[2, items\] with more items than the 3 ids of a row, got .*bool"),
        ({"target": DENSE[:1]}, ValueError, r"a dense target with item ids must be \[2, items\] .* got .* \[1, 4\]"),
        ({"target": DENSE.to("meta")}, ValueError, "target is on meta"),
        ({"target": DENSE.float() - 1}, ValueError, "2 of 2 rows with a label below 0"),
        ({"target": DENSE, "gains": DENSE}, ValueError, "gains= is for id targets"),
        ({"target": DENSE, "item_ids": tensor([[1, 2, 3], [2, 3, 4]])}, ValueError, "1 of 2 .*: row 1 has 4 of 4"),
        ({"target": DENSE.byte()}, TypeError, r"ids are target.long\(\), a mask is target.bool\(\)"),
        ({"target": DENSE.long()}, ValueError, r"looks like a 0/1 matrix: pass target.bool\(\)"),
        ({"exclude": tensor([[2], [5]])}, ValueError, "1 of 2 rows with a target that is also excluded"),
        (ONE_LIST | {"scores": tensor([[0.1, 0.2, 0.3]])}, ValueError, "rise along the list, .*: those of row 0 are"),
        (ONE_LIST | {"scores": tensor([[0.3, 0.1]])}, ValueError, r"shape of item_ids, \[1, 3\], got \[1, 2\]"),
        (ONE_LIST | {"scores": tensor([[3, 2, 1]])}, TypeError, "scores must be float64"),
        ({"scores": SCORES, "duplicates": "keep_place"}, ValueError, "'keep_place' needs lists without scores"),
    ],
)
def test_bad_lists_are_refused(change, error, message):
    with pytest.raises(error, match=message):
        trm.Lists(**TWO_LISTS | change).ranking()


GRADES = tensor([[0.0, 2, 0, 0, 3], [0, 0, 1, 0, 0]])
GRADED_IDS, GAINS = tensor([[4, 1], [2, -1]]), tensor([[3.0, 2], [1, 0]])
FORMS = {"padded": tensor([[3, 4, 0], [2, 1, -1]]), "jagged": (tensor([3, 4, 0, 2, 1]), tensor([0, 3, 5]))}


@pytest.mark.parametrize("max_relevant", [None, 4])
@pytest.mark.parametrize("lists", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(("target", "gains"), [(GRADES, GAINS), (GRADES > 0, None)], ids=["grades", "flags"])
def test_dense_targets_are_the_ids_and_gains_that_they_hold(target, gains, lists, max_relevant):
    dense = trm.Lists(lists, target).ranking(max_relevant=max_relevant)
    by_id = trm.Lists(lists, GRADED_IDS, gains=gains).ranking()

    assert dense.ranks[:, :2].tolist() == [[2, INF], [1, INF]]
    assert trm.functional.ndcg(dense, 3).tolist() == trm.functional.ndcg(by_id, 3).tolist()


AS_WIDE_AS_THE_LISTS = tensor([[True, False], [True, True]])


def test_a_matrix_as_wide_as_the_lists_is_refused_since_it_could_be_flags():
    with pytest.raises(ValueError, match=r"as Hits\(flags, .*Interactions.from_dense\(target\).select\(range\(2\)\)$"):
        trm.Lists(tensor([[1, 0], [0, 1]]), AS_WIDE_AS_THE_LISTS).ranking()


def test_a_selection_from_a_matrix_as_wide_as_the_lists_is_taken():
    selected = trm.Interactions.from_dense(AS_WIDE_AS_THE_LISTS).select(range(2))

    assert trm.Lists(tensor([[1, 0], [0, 1]]), selected).ranking().ranks.tolist() == [[2, INF], [1, 2]]


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_dense_targets_with_max_relevant_never_wait_for_the_device(dtype):
    """On "meta", reading a value raises."""
    ids, target = torch.empty(6, 9, dtype=torch.int64, device="meta"), torch.empty(6, 20, dtype=dtype, device="meta")
    metric = trm.NDCG(5, max_relevant=3).to("meta")
    metric.update(trm.Lists(ids, target))
    metric.update(trm.Candidates(torch.empty(6, 9, device="meta"), target, items=ids[0]))


def test_a_list_with_a_repeat_has_no_value_where_it_cannot_raise():
    lists = trm.Lists(tensor([[4, 4, 9], [5, 8, 2]]), tensor([[9, 4], [5, 2]]))
    ranking = lists.ranking(validate_args="deferred")

    assert ranking.rows.valid.tolist() == [False, True]
    assert trm.functional.recall(ranking, 3).tolist() == pytest.approx([NAN, 1], nan_ok=True)


def test_a_bad_list_is_counted_under_its_first_violation_alone():
    """The first list has a repeat and, as the second one, too few items."""
    lists = trm.Lists(tensor([[4, 4, 9], [5, 8, 2]]), tensor([9, 5]), exclude=tensor([[9], [2]]))
    metric = trm.HR(3, validate_args="deferred")
    metric.update(lists.ranking(overlap="miss", validate_args="deferred"))

    with pytest.raises(ValueError, match="1 row with an item recommended twice; 1 row with fewer than k known ranks"):
        metric.compute()
