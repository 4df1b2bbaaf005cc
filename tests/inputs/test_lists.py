"""`Lists`: excluded, repeated and padded entries by hand and against plain Python, and refused arguments."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from rankings import batches, padded
from sizes import examples

import torchrecmetrics as trm

INF, NAN = math.inf, math.nan
SCORES = torch.tensor([[0.1, 0.9, 0.5], [0.3, 0.2, 0.1]])
TARGET = torch.tensor([[2, 0], [1, -1]])


def test_lists_by_hand(device):
    """Excluded ids leave the list and later items move up; a negative id ends the list."""
    lists = torch.tensor([[7, 3, 9, 4], [4, 8, -1, -1], [1, 2, 3, 4]], device=device)
    target = torch.tensor([[9, 1], [4, -1], [3, 4]], device=device)
    plain = trm.Lists(lists, target).ranking()
    assert plain.ranks.tolist() == [[3, INF], [1, INF], [3, 4]]
    assert (plain.depth, plain.num_ranked, plain.num_recommended.tolist()) == (4, None, [4, 2, 4])
    history = torch.tensor([[3, 7], [8, 8], [5, -1]], device=device)
    moved = trm.Lists(lists, target, exclude=history).ranking()
    assert moved.ranks.tolist() == [[1, INF], [1, INF], [3, 4]]
    assert moved.row_depth.tolist() == [2, 4, 4]  # the second list ended early: it is whole
    assert moved.num_recommended.tolist() == [2, 1, 4]
    assert trm.Lists(lists, target, complete=True).ranking().depth is None


@pytest.mark.parametrize("ties", ["expected", "realistic", "optimistic", "pessimistic"])
@pytest.mark.parametrize("graded", [False, True])
@settings(max_examples=examples(60), deadline=None)
@given(batch=batches(), overlap=st.sampled_from(["keep", "miss"]), depth=st.sampled_from([3, None]))
def test_lists_with_scores_are_rankings_of_these_scores(ties, graded, batch, overlap, depth):
    """Whole lists, best first, with their scores have the values of the scores they were made of."""
    scores, targets, gains, history, _ = batch
    if not scores:
        return
    scores, target = torch.tensor(scores), padded(targets, -1, torch.int64)
    ordered, ids = scores.sort(dim=1, descending=True, stable=True)
    ids = ids.where(ordered > -INF, -1)
    more = {"gains": padded(gains, 0.0, torch.float64) if graded else None, "exclude": padded(history, -1, torch.int64)}
    whole = trm.Scores(scores, target, **more).ranking(depth, ties=ties, overlap=overlap)
    lists = trm.Lists(ids, target, scores=ordered, complete=True, **more).ranking(depth, ties=ties, overlap=overlap)
    for formula in (trm.functional.hit_rate, trm.functional.ndcg, trm.functional.average_precision):
        expected = formula(whole, [1, 2, 3])
        assert torch.allclose(formula(lists, [1, 2, 3]), expected, atol=1e-14, equal_nan=True)
    for name in ("num_relevant", "tied"):
        assert getattr(lists, name).tolist() == getattr(whole, name).tolist()


@pytest.mark.parametrize("jagged", [False, True])
def test_scores_of_lists_by_hand(jagged):
    """Five equal scores: HR@1 is a fifth, wherever the item is listed; scores beside padding are not read."""
    ids = torch.tensor([[4, 2, 7, 1, 0], [3, 5, -1, -1, -1]])
    scores = torch.tensor([[1.0, 1, 1, 1, 1], [0.5, 0.5, 9, INF, -INF]])
    target = torch.tensor([7, 5])
    lists = trm.Lists(ids, target, scores=scores)
    if jagged:
        flat = torch.cat([ids[0], ids[1, :2]]), torch.cat([scores[0], scores[1, :2]])
        lists = trm.Lists((flat[0], torch.tensor([0, 5, 7])), target, scores=flat[1])
    ranking = lists.ranking()
    assert trm.functional.hit_rate(ranking, 1).tolist() == pytest.approx([0.2, 0.5])
    assert ranking.ranks.tolist() == [[3], [1.5]]
    assert ranking.tied.tolist() == [True, True]


def test_scores_beside_gaps_repeats_and_what_is_no_candidate():
    """A gap hides no rising score, -inf is no item, NaN is worst where it is not checked, repeats need an order."""
    ids, target = torch.tensor([[7, -1, 3]]), torch.tensor([3])
    with pytest.raises(ValueError, match="whose scores rise along the list"):
        trm.Lists(ids, target, scores=torch.tensor([[0.5, 0.0, 0.9]])).ranking()
    ids = torch.tensor([[3, 7, 5]])
    ranking = trm.Lists(ids, torch.tensor([7]), scores=torch.tensor([[0.5, -INF, -INF]])).ranking()
    assert (ranking.ranks.tolist(), ranking.num_recommended.tolist()) == ([[INF]], [1])
    scores = torch.tensor([[0.9, 0.5, NAN]])
    for item, rank in ((3, 1), (7, 2), (5, INF)):
        ranking = trm.Lists(ids, torch.tensor([item]), scores=scores).ranking(validate_args=False)
        assert (ranking.ranks.tolist(), ranking.tied.tolist()) == ([[rank]], [False])
    with pytest.raises(ValueError, match="duplicates='keep_place' needs lists without scores"):
        trm.Lists(ids, target, scores=scores, duplicates="keep_place")


@pytest.mark.parametrize("validate_args", [True, "deferred"])
def test_a_list_is_known_as_far_as_it_reaches(validate_args):
    """A list of three items of which one is excluded is enough for k = 2 and raises for k = 3, in formulas, too."""
    lists, target = torch.tensor([[4, 3, 9], [5, 8, 2]]), torch.tensor([[9], [5]])
    short = trm.Lists(lists, target, exclude=torch.tensor([[3], [-1]])).ranking(validate_args=validate_args)
    assert short.hits(2).tolist() == [[True], [True]]
    assert trm.HR(2)(short) == 1
    message = "1 .* with fewer than k known ranks"
    with pytest.raises(ValueError, match=message):
        trm.HR(3)(short)
    with pytest.raises(ValueError, match=message):
        short.hits(3)


def test_the_padding_item_leaves_its_list_however_often_it_occurs():
    lists, target = torch.tensor([[0, 3, 4], [3, 0, 0], [3, 4, 5]]), torch.tensor([[4], [0], [5]])
    ranking = trm.Lists(lists, target).ranking(padding_idx=0)

    assert ranking.ranks.tolist() == [[2], [INF], [3]]
    assert ranking.num_relevant.tolist() == [1, 0, 1]
    assert ranking.row_depth.tolist() == [2, 1, 3]


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_repeats_leave_their_list(data):
    """Lists with repeats rank as if walked item by item, with history, padding and ends, also with deferred checks."""
    rows, k = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 7))
    item = st.integers(-1, 5)
    lists = data.draw(st.lists(st.lists(item, min_size=k, max_size=k), min_size=rows, max_size=rows))
    targets = data.draw(st.lists(st.lists(item, min_size=3, max_size=3, unique=True), min_size=rows, max_size=rows))
    history = data.draw(st.lists(st.lists(item, min_size=2, max_size=2), min_size=rows, max_size=rows))
    padding_idx, validate_args = data.draw(st.sampled_from([None, 0])), data.draw(st.sampled_from([True, "deferred"]))
    arguments = map(torch.tensor, (lists, targets))
    ranking = trm.Lists(*arguments, exclude=torch.tensor(history), duplicates="first").ranking(
        padding_idx=padding_idx, overlap="miss", validate_args=validate_args
    )
    for row in range(rows):
        walked, repeats = [], 0
        for at, number in enumerate(lists[row]):
            repeats += 0 <= number != padding_idx and number in lists[row][:at]
            if number >= 0 and number != padding_idx and number not in history[row] and number not in walked:
                walked.append(number)
        found = [1 + walked.index(number) for number in targets[row] if number in walked]
        assert ranking.ranks[row].tolist() == sorted(found) + [INF] * (3 - len(found))
        assert ranking.num_recommended[row] == len(walked)
        assert ranking.num_repeated[row] == repeats
        assert ranking.row_depth[row] == (k if -1 in lists[row] else len(walked))
    assert ranking.rows.valid is None or ranking.rows.valid.all()


LISTS = torch.tensor([[0, 1, 2], [2, 1, 0]])
DENSE = torch.tensor([[True, False, False, True], [False, True, False, False]])
SCORED = {"item_ids": torch.tensor([[4, 2, 7]]), "target": torch.tensor([7])}
BAD_LISTS = [
    ({"item_ids": SCORES}, TypeError, "item_ids must hold int64, int32 or int16"),
    ({"item_ids": TARGET[0]}, ValueError, r"item_ids must be \[B, K\]"),
    ({"item_ids": torch.tensor([[1, 2, 1]] * 2)}, ValueError, r"twice: row 0 is \[1, 2, 1\] \(duplicates='first' "),
    (
        {"item_ids": trm.Interactions.from_padded(TARGET, 3).select([0, 1])},  # ascending ids, not best first
        TypeError,
        r"item_ids must be a tensor, got SelectedItems: pass item_ids\.items",
    ),
    ({"duplicates": "last"}, ValueError, "duplicates must be one of 'error', 'first', 'keep_place', got 'last'"),
    ({"target": SCORES > 0}, ValueError, r"must be \[2, items\] with more items than the 3 ids of a row, got .*bool"),
    ({"target": DENSE[:1]}, ValueError, r"a dense target with item ids must be \[2, items\] .* got .* \[1, 4\]"),
    ({"target": DENSE.to("meta")}, ValueError, "target is on meta"),
    ({"target": DENSE.float() - 1}, ValueError, "2 of 2 rows with a label below 0"),
    ({"target": DENSE, "gains": DENSE}, ValueError, "gains= is for id targets"),
    (
        {"target": DENSE, "item_ids": torch.tensor([[1, 2, 3], [2, 3, 4]])},  # ids that start at 1
        ValueError,
        "1 of 2 rows with an item in the list .*: row 1 has 4 of 4 items",
    ),
    ({"target": DENSE.byte()}, TypeError, r"ids are target.long\(\), a mask is target.bool\(\)"),
    ({"target": DENSE.long()}, ValueError, r"looks like a 0/1 matrix: pass target.bool\(\)"),
    ({"exclude": torch.tensor([[2], [5]])}, ValueError, "1 of 2 rows with a target that is also excluded"),
    (SCORED | {"scores": torch.tensor([[0.1, 0.2, 0.3]])}, ValueError, "rise along the list, .*: those of row 0 are"),
    (SCORED | {"scores": torch.tensor([[0.3, 0.1]])}, ValueError, r"shape of item_ids, \[1, 3\], got \[1, 2\]"),
    (SCORED | {"scores": torch.tensor([[3, 2, 1]])}, TypeError, "scores must be float64"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD_LISTS)
def test_bad_lists(change, error, message):
    """`Lists` refuses bad arguments, each with its type of error and message; scores never rise and are no NaN."""
    with pytest.raises(error, match=message):
        trm.Lists(**{"item_ids": LISTS, "target": TARGET} | change).ranking()


GRADES = torch.tensor([[0.0, 2, 0, 0, 3], [0, 0, 1, 0, 0]])


@pytest.mark.parametrize("max_relevant", [None, 4])
@pytest.mark.parametrize("jagged", [False, True])
@pytest.mark.parametrize("graded", [False, True])
def test_dense_targets_are_id_targets(graded, jagged, max_relevant, device):
    """A matrix of all items beside ids of lists gives the values of the ids and gains that it holds."""
    lists = torch.tensor([[3, 4, 0], [2, 1, -1]], device=device)
    if jagged:
        lists = torch.tensor([3, 4, 0, 2, 1], device=device), torch.tensor([0, 3, 5], device=device)
    ids, gains = torch.tensor([[4, 1], [2, -1]], device=device), torch.tensor([[3.0, 2], [1, 0]], device=device)
    target = GRADES.to(device) if graded else GRADES.to(device) > 0
    dense = trm.Lists(lists, target).ranking(max_relevant=max_relevant)
    by_id = trm.Lists(lists, ids, gains=gains if graded else None).ranking()
    assert dense.ranks[:, :2].tolist() == by_id.ranks.tolist() == [[2, INF], [1, INF]]
    for formula in (trm.functional.ndcg, trm.functional.recall):
        assert formula(dense, 3).tolist() == formula(by_id, 3).tolist()
    ideal = 3 + 2 / math.log2(3)
    assert trm.functional.ndcg(dense, 3)[0].item() == pytest.approx(3 / math.log2(3) / ideal) or not graded


def test_a_matrix_as_wide_as_the_lists_is_passed_by_its_cures():
    """Of flags and a matrix of as many items, which look alike, each has its own input."""
    lists, dense = torch.tensor([[1, 0], [0, 1]]), torch.tensor([[True, False], [True, True]])
    with pytest.raises(ValueError, match=r"as Hits\(flags, .*Interactions.from_dense\(target\).select\(range\(2\)\)$"):
        trm.Lists(lists, dense).ranking()
    matrix = trm.Lists(lists, trm.Interactions.from_dense(dense).select(range(2)))
    assert matrix.ranking().ranks.tolist() == [[2, INF], [1, 2]]
    assert trm.Hits(dense, num_relevant=2).ranking().ranks.tolist() == [[1, INF], [1, 2]]


def test_dense_targets_never_wait_for_the_device():
    """With `max_relevant` a dense target is read without reading a value."""
    lists = torch.empty(6, 9, dtype=torch.int64, device="meta")
    for dtype in (torch.bool, torch.float32):
        target = torch.empty(6, 20, dtype=dtype, device="meta")
        trm.NDCG(5, max_relevant=3).to("meta").update(trm.Lists(lists, target))
        scores, items = torch.empty(6, 9, device="meta"), torch.empty(9, dtype=torch.int64, device="meta")
        trm.NDCG(5, max_relevant=3).to("meta").update(trm.Candidates(scores, target, items=items))


def test_a_rejected_list_holds_nothing():
    """With "deferred", a list with a repeated item has no value, and is counted under its first violation alone."""
    lists, target = torch.tensor([[4, 4, 9], [5, 8, 2]]), torch.tensor([[9, 4], [5, 2]])
    ranking = trm.Lists(lists, target).ranking(validate_args="deferred")
    assert ranking.rows.valid.tolist() == [False, True]
    assert trm.functional.recall(ranking, 3).tolist() == [pytest.approx(NAN, nan_ok=True), 1]
    assert (ranking.ranks[1].tolist(), ranking.num_relevant[1]) == ([1, 3], 2)
    rows = trm.Lists(lists, target[:, :1], exclude=torch.tensor([[9], [2]]))
    metric = trm.HR(3, validate_args="deferred")
    metric.update(rows.ranking(overlap="miss", validate_args="deferred"))
    with pytest.raises(ValueError, match="1 row with an item recommended twice; 1 row with fewer than k known ranks"):
        metric.compute()
