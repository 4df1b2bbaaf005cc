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


def test_recommend_with_a_function():
    """A function of scores needs the number of items, and the users or their number, which a bias needs too."""
    scores, mask = torch.tensor([[0.1, 0.3, 0.2]]), torch.tensor([False, True, False])

    def function(users):
        return scores[users * 0]

    three = Interactions.from_edge_index(torch.tensor([[0, 2], [1, 0]]), 3, 3)
    assert trm.recommend(function, k=2, user_ids=[5], num_items=3, exclude=mask).ids.tolist() == [[2, 0]]
    assert trm.recommend(function, k=1, user_ids=[2, 0], exclude=(three,)).ids.tolist() == [[1], [2]]
    found = trm.recommend(lambda users: scores.double()[users], k=1, num_users=1, num_items=3)
    assert (found.ids.tolist(), found.scores.dtype) == ([[1]], torch.float64)
    assert [x.shape for x in trm.recommend(scores, scores, 2, user_ids=[])] == [(0, 2), (0, 2)]
    popular = trm.Embeddings(bias=torch.tensor([2**24, 2**24 + 1, 5]))  # float32 would make the best two equal
    assert trm.recommend(popular, k=2, user_ids=[0, 7]).ids.tolist() == [[1, 0]] * 2
    with pytest.raises(ValueError, match="needs num_items"):
        trm.recommend(function, k=2)
    with pytest.raises(ValueError, match="needs num_users or user_ids"):
        trm.recommend(trm.Embeddings(bias=scores[0]), k=2)


def test_recommendations_know_whose_they_are():
    """Recommendations unpack into ids and scores, and frames have ids, ranks and scores without empty entries."""
    train = Interactions.from_frame({"user": ["al", "al", "bo"], "item": ["x", "y", "x"]})
    scores = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    found = trm.recommend(lambda ids: scores[ids], k=2, exclude=train)
    ids, values = found
    assert (ids.tolist(), values.shape) == ([[-1, -1], [1, -1]], (2, 2))
    assert (found.user_ids, found.item_ids) == (train.user_ids, train.item_ids)
    columns = {"user": ["bo"], "item": ["y"], "rank": [1], "score": [4.0]}
    assert found.to_dict() == found.to_frame().to_dict("list") == columns
    assert found.to_frame("polars").to_dict(as_series=False) == found.to_frame("pyarrow").to_pydict() == columns
    with pytest.raises(ValueError, match="library must be one of 'pandas'"):
        found.to_frame("excel")
    with pytest.raises(ValueError, match="user_ids holds 1 ids, but row 1 is recommended"):
        found.with_ids(user_ids=["al"])
    bare = trm.recommend(lambda ids: scores[ids], k=1, num_users=2, num_items=2, user_ids=[1])
    assert (bare.to_dict()["user"], bare.user_ids) == ([1], None)


def test_histories_of_recommend_are_matched_by_id():
    """Several histories of `recommend` are matched by id, and refused if only one has a vocabulary."""
    first = Interactions.from_frame({"user": ["al", "bo"], "item": ["x", "y"]})
    other = Interactions.from_frame({"user": ["bo", "al"], "item": ["x", "x"]}, user_ids=["bo", "al"], item_ids=["x"])
    assert trm.recommend(torch.eye(2), torch.eye(2), 1, exclude=(first, other)).ids.tolist() == [[1], [-1]]
    bare = Interactions.from_columns([0], [1], num_users=2, num_items=2)
    with pytest.raises(ValueError, match=r"exclude\[0\] has user_ids, exclude\[1\] has none"):
        trm.recommend(torch.eye(2), torch.eye(2), 1, exclude=(first, bare))
