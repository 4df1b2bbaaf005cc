"""`recommend`: the best items of each user, and the frames and ids of what it returns."""

import math

import pytest
import torch
from worlds import ITEMS, USERS, world

import torchrecmetrics as trm
from torchrecmetrics import Interactions


@pytest.mark.parametrize("batch_size", [1, 7, None])
def test_the_best_items_of_each_user_are_those_of_a_plain_sort(batch_size, device):
    """Ties go by lower id; -1 and -inf follow the last candidate."""
    users, items, train, _ = world()
    k = 50
    ids, scores = trm.recommend(users.to(device), items.to(device), k, exclude=train.to(device), batch_size=batch_size)
    matrix, expected_ids, expected_scores = (users @ items.T).tolist(), [], []
    for user in range(USERS):
        seen = set(train.items[train.users == user].tolist())
        best = sorted((i for i in range(ITEMS) if i not in seen), key=lambda i: (-matrix[user][i], i))[:k]
        expected_ids.append(best + [-1] * (k - len(best)))
        expected_scores.append([matrix[user][i] for i in best] + [-math.inf] * (k - len(best)))

    assert ids.tolist() == expected_ids
    assert scores.tolist() == expected_scores


def same_for_all(users):
    """Score three items: item 1 is best, then item 2, then item 0."""
    return torch.tensor([0.1, 0.3, 0.2]).expand(len(users), 3)


HISTORY = Interactions.from_edge_index(torch.tensor([[0, 2], [1, 0]]), 3, 3)
"""User 0 had item 1, user 2 item 0."""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"num_users": 2, "num_items": 3}, [[1], [1]]),
        ({"user_ids": [5], "num_items": 3, "exclude": torch.tensor([False, True, False])}, [[2]]),
        ({"user_ids": [2, 0], "exclude": (HISTORY,)}, [[1], [2]]),
    ],
)
def test_sizes_beside_a_function_are_said_or_those_of_the_history(options, expected):
    assert trm.recommend(same_for_all, k=1, **options).ids.tolist() == expected


@pytest.mark.parametrize(
    ("users", "message"),
    [(same_for_all, "needs num_items"), (trm.Embeddings(bias=torch.ones(3)), "needs num_users or user_ids")],
)
def test_sizes_that_nothing_says_are_asked_for(users, message):
    with pytest.raises(ValueError, match=message):
        trm.recommend(users, k=2)


def test_scores_keep_the_dtype_of_the_function():
    result = trm.recommend(lambda users: same_for_all(users).double(), k=1, num_users=1, num_items=3)

    assert result.scores.dtype == torch.float64


def test_no_users_have_no_recommendations():
    ids, scores = trm.recommend(torch.ones(1, 3), torch.ones(3, 3), 2, user_ids=[])

    assert (ids.shape, scores.shape) == ((0, 2), (0, 2))


def test_a_bias_of_whole_numbers_is_exact():
    """float32 would make the best two equal."""
    popular = trm.Embeddings(bias=torch.tensor([2**24, 2**24 + 1, 5]))

    assert trm.recommend(popular, k=1, user_ids=[0]).ids.tolist() == [[1]]


HAD = Interactions.from_frame({"user": ["al", "al", "bo"], "item": ["x", "y", "x"]})
FOUND = trm.recommend(lambda users: torch.tensor([[1.0, 2.0], [3.0, 4.0]])[users], k=2, exclude=HAD)
"""Of the items x and y al has had both, and bo is left y."""


def test_recommendations_have_the_vocabularies_of_the_history():
    assert FOUND.ids.tolist() == [[-1, -1], [1, -1]]
    assert (FOUND.user_ids, FOUND.item_ids) == (HAD.user_ids, HAD.item_ids)


def test_frames_of_recommendations_have_no_empty_entries():
    polars, pyarrow = FOUND.to_frame("polars").to_dict(as_series=False), FOUND.to_frame("pyarrow").to_pydict()
    frames = [FOUND.to_dict(), FOUND.to_frame().to_dict("list"), polars, pyarrow]

    assert frames == [{"user": ["bo"], "item": ["y"], "rank": [1], "score": [4.0]}] * 4


def test_recommendations_without_ids_have_row_numbers():
    bare = trm.recommend(same_for_all, k=1, num_users=2, num_items=3, user_ids=[1])

    assert bare.user_ids is None
    assert bare.to_dict() == {"user": [1], "item": [1], "rank": [1], "score": [pytest.approx(0.3)]}


def test_a_frame_of_an_unknown_library_is_refused():
    with pytest.raises(ValueError, match="library must be one of 'pandas'"):
        FOUND.to_frame("excel")


def test_a_vocabulary_without_a_recommended_row_is_refused():
    """FOUND has the users of rows 0 and 1."""
    with pytest.raises(ValueError, match="user_ids holds 1 ids, but row 1 is recommended"):
        FOUND.with_ids(user_ids=["al"])


def test_several_histories_are_matched_by_id():
    """al has had x and, as the second row of the second history, x again; bo has had y and x: nothing is left."""
    first = Interactions.from_frame({"user": ["al", "bo"], "item": ["x", "y"]})
    second = Interactions.from_columns(["bo", "al"], ["x", "x"], user_ids=["bo", "al"], item_ids=["x"])

    assert trm.recommend(torch.eye(2), torch.eye(2), 1, exclude=(first, second)).ids.tolist() == [[1], [-1]]


def test_a_history_without_the_vocabularies_of_the_first_is_refused():
    bare = Interactions.from_columns([0], [1], num_users=2, num_items=2)
    with pytest.raises(ValueError, match=r"exclude\[0\] has user_ids, exclude\[1\] has none"):
        trm.recommend(torch.eye(2), torch.eye(2), 1, exclude=(HAD, bare))
