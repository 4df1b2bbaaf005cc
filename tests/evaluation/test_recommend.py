"""`recommend`: the best items of each user, and the frames and ids of what it returns."""

import math

import pytest
import torch
from worlds import ITEMS, USERS, world

import torchrecmetrics as trm
from torchrecmetrics import Interactions


@pytest.mark.parametrize("batch_size", [1, 7, None])
def test_recommend(batch_size, device):
    """`recommend` returns the k best items of each user, ties by lower id, and -1 after the last candidate."""
    users, items, train, _ = world()
    k = 50
    ids, scores = trm.recommend(users.to(device), items.to(device), k, exclude=train.to(device), batch_size=batch_size)
    matrix = (users @ items.T).tolist()
    for user in range(USERS):
        gone = set(train.items[train.users == user].tolist())
        best = sorted((i for i in range(ITEMS) if i not in gone), key=lambda i: (-matrix[user][i], i))[:k]
        assert ids[user].tolist() == best + [-1] * (k - len(best))
        assert scores[user].tolist() == [matrix[user][i] for i in best] + [-math.inf] * (k - len(best))


SCORES, MASK = torch.tensor([[0.1, 0.3, 0.2]]), torch.tensor([False, True, False])
THREE = Interactions.from_edge_index(torch.tensor([[0, 2], [1, 0]]), 3, 3)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"k": 2, "user_ids": [5], "num_items": 3, "exclude": MASK}, [[2, 0]]),
        ({"k": 1, "user_ids": [2, 0], "exclude": (THREE,)}, [[1], [2]]),
        ({"k": 1, "num_users": 2, "num_items": 3}, [[1], [1]]),
    ],
)
def test_recommend_with_a_function(options, expected):
    """Sizes are said, or are those of the history."""
    assert trm.recommend(lambda users: SCORES[users * 0], **options).ids.tolist() == expected


def test_scores_keep_their_dtype():
    assert (
        trm.recommend(lambda users: SCORES.double()[users], k=1, num_users=1, num_items=3).scores.dtype == torch.float64
    )


def test_no_users_have_no_recommendations():
    assert [x.shape for x in trm.recommend(SCORES, SCORES, 2, user_ids=[])] == [(0, 2), (0, 2)]


def test_a_bias_of_whole_numbers_is_exact():
    """float32 would make the best two equal."""
    popular = trm.Embeddings(bias=torch.tensor([2**24, 2**24 + 1, 5]))

    assert trm.recommend(popular, k=2, user_ids=[0, 7]).ids.tolist() == [[1, 0]] * 2


@pytest.mark.parametrize(
    ("scored", "message"),
    [
        (lambda users: SCORES[users * 0], "needs num_items"),
        (trm.Embeddings(bias=SCORES[0]), "needs num_users or user_ids"),
    ],
)
def test_sizes_that_nothing_says_are_asked_for(scored, message):
    with pytest.raises(ValueError, match=message):
        trm.recommend(scored, k=2)


TRAIN = Interactions.from_frame({"user": ["al", "al", "bo"], "item": ["x", "y", "x"]})
FOUND = trm.recommend(lambda ids: torch.tensor([[1.0, 2.0], [3.0, 4.0]])[ids], k=2, exclude=TRAIN)


def test_recommendations_know_whose_they_are():
    """al has had both items; the vocabularies are those of the history."""
    ids, values = FOUND

    assert (ids.tolist(), values.shape) == ([[-1, -1], [1, -1]], (2, 2))
    assert (FOUND.user_ids, FOUND.item_ids) == (TRAIN.user_ids, TRAIN.item_ids)


def test_frames_of_recommendations_have_no_empty_entries():
    columns = {"user": ["bo"], "item": ["y"], "rank": [1], "score": [4.0]}

    assert FOUND.to_dict() == FOUND.to_frame().to_dict("list") == columns
    assert FOUND.to_frame("polars").to_dict(as_series=False) == FOUND.to_frame("pyarrow").to_pydict() == columns


def test_recommendations_without_ids_have_row_numbers():
    bare = trm.recommend(lambda ids: SCORES[ids * 0], k=1, num_users=2, num_items=3, user_ids=[1])

    assert (bare.to_dict()["user"], bare.user_ids) == ([1], None)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: FOUND.to_frame("excel"), "library must be one of 'pandas'"),
        (lambda: FOUND.with_ids(user_ids=["al"]), "user_ids holds 1 ids, but row 1 is recommended"),
    ],
)
def test_bad_calls_of_recommendations(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_histories_of_recommend_are_matched_by_id():
    """Several histories of `recommend` are matched by id, and refused if only one has a vocabulary."""
    first = Interactions.from_frame({"user": ["al", "bo"], "item": ["x", "y"]})
    other = Interactions.from_frame({"user": ["bo", "al"], "item": ["x", "x"]}, user_ids=["bo", "al"], item_ids=["x"])
    assert trm.recommend(torch.eye(2), torch.eye(2), 1, exclude=(first, other)).ids.tolist() == [[1], [-1]]
    bare = Interactions.from_columns([0], [1], num_users=2, num_items=2)
    with pytest.raises(ValueError, match=r"exclude\[0\] has user_ids, exclude\[1\] has none"):
        trm.recommend(torch.eye(2), torch.eye(2), 1, exclude=(first, bare))
