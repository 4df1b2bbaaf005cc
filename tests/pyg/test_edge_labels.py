"""`pyg.evaluate` with the labelled edges of RandomLinkSplit: each user's positives among sampled negatives."""

import pytest
import torch

import torchrecmetrics as trm

pytest.importorskip("torch_geometric")
from torch_geometric.data import HeteroData
from torch_geometric.nn import LightGCN
from torch_geometric.transforms import RandomLinkSplit

from torchrecmetrics import pyg

USERS, ITEMS = 12, 15


def graph():
    """Return a model, its edges, and edges with labels, one negative per positive; item nodes follow user nodes."""
    torch.manual_seed(0)
    items = torch.rand(USERS, ITEMS).argsort(1)
    rows = torch.arange(USERS)[:, None].expand(-1, 3).flatten()
    positive = torch.stack([rows, items[:, :3].flatten() + USERS])
    negative = torch.stack([rows, items[:, 3:6].flatten() + USERS])
    labels = torch.cat([torch.ones(USERS * 3), torch.zeros(USERS * 3)])
    model = LightGCN(num_nodes=USERS + ITEMS, embedding_dim=4, num_layers=1)
    return model, torch.cat([positive, positive.flip(0)], 1), torch.cat([positive, negative], 1), labels


@pytest.mark.fixed
def test_equals_loops():
    """MRR ranks each user's labelled edges, as a plain loop does, and mirrored edges give the same value."""
    model, edges, labelled, labels = graph()
    embeddings = model.get_embedding(edges).detach()
    scores = (embeddings[labelled[0]] * embeddings[labelled[1]]).sum(1)
    expected = 0.0
    for user in range(USERS):
        own = (labelled[0] == user).nonzero()[:, 0].tolist()
        order = sorted(own, key=lambda at: -scores[at].item())
        expected += 1 / (1 + min(place for place, at in enumerate(order) if labels[at] > 0)) / USERS
    for index in (labelled, labelled.flip(0)):
        found = pyg.evaluate(["MRR"], model, edges, edge_label_index=index, edge_label=labels, num_users=USERS)
        assert found["MRR"].item() == pytest.approx(expected)
        assert found.num_users == USERS


def test_embeddings_with_a_bias_or_cosine_similarity():
    """Scores of labelled edges are products, or cosines, plus the bias, as `Embeddings` say."""
    model, edges, labelled, labels = graph()
    users, items = model.get_embedding(edges).detach().split([USERS, ITEMS])
    bias, (user, item) = torch.rand(ITEMS), labelled - torch.tensor([[0], [USERS]])
    for similarity in ("dot", "cosine"):
        embeddings = trm.Embeddings(users, items, bias=bias, similarity=similarity)
        found = pyg.evaluate(
            "MRR", model, edges, embed=lambda _, e=embeddings: e, edge_label_index=labelled, edge_label=labels
        )
        vectors = [users, items] if similarity == "dot" else [torch.nn.functional.normalize(v) for v in (users, items)]
        scores = (vectors[0][user] * vectors[1][item]).sum(1) + bias[item]
        expected = trm.MRR()
        expected.update(trm.Sessions(scores, labels, user))
        assert found["MRR"].item() == pytest.approx(expected.compute().item())


@pytest.mark.fixed
def test_random_link_split():
    """Labelled edges are evaluated as PyG's RandomLinkSplit makes them, with both sides numbered from 0."""
    torch.manual_seed(0)
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = 40, 30
    users, items = torch.randn(40, 4), torch.randn(30, 4)
    data["user", "likes", "item"].edge_index = (users @ items.T > 1.5).nonzero().T
    *_, test = RandomLinkSplit(num_val=0, num_test=0.5, edge_types=("user", "likes", "item"))(data)
    labelled = test["user", "likes", "item"]
    found = pyg.evaluate(
        "AUROC",
        torch.nn.Module(),
        test,
        embed=lambda model: (users, items),
        edge_label_index=labelled.edge_label_index,
        edge_label=labelled.edge_label,
    )
    assert found["AUROC"] == 1  # positives are those that score above 1.5


BAD = [
    ({"edge_label": None}, "give target, or edge_label_index with edge_label; positives alone are a target"),
    ({"edge_label_index": None}, "give target, or edge_label_index with edge_label"),
    ({"target": trm.Interactions.from_columns([0], [0])}, "give target, or edge_label_index with edge_label"),
    ({"edge_label": torch.arange(3)}, "scores, labels and indexes must be tensors of one shape"),
    ({"num_users": None}, "the model embeds 27 nodes: num_users= says how many of them are users, got None"),
    ({"num_users": 8}, "edges of edge_index do not join one of 8 users and one of 19 items"),
    ({"edge_label_index": torch.tensor([[0] * 72, [1] * 72])}, "72 edges of edge_label_index do not join"),
    ({"exclude": None}, "exclude is for target"),
    ({"user_ids": [1]}, "user_ids is for target; labelled edges take k and the options of metrics"),
    (
        {"embed": lambda model: trm.Embeddings(torch.ones(12, 1), torch.ones(15, 1), allowed=torch.ones(15) > 0)},
        "allowed items are for target",
    ),
]


@pytest.mark.parametrize(("changed", "message"), BAD)
def test_bad_input(changed, message):
    """Arguments that do not fit labelled edges are refused, so that negatives are never taken for positives."""
    model, edges, labelled, labels = graph()
    given = {"edge_label_index": labelled, "edge_label": labels, "num_users": USERS} | changed
    with pytest.raises(ValueError, match=message):
        pyg.evaluate("MRR", model, edges, **given)


def test_an_edge_that_is_labelled_twice():
    """An edge that is labelled twice is refused, because its item would be two candidates."""
    model, edges, labelled, _ = graph()
    twice = torch.cat([labelled, labelled[:, :1].flip(0)], 1)
    user, item = labelled[0, 0], labelled[1, 0] - USERS
    with pytest.raises(ValueError, match=f"1 edges are labelled twice.* such as user {user}, item {item}: "):
        pyg.evaluate("MRR", model, edges, num_users=USERS, edge_label_index=twice, edge_label=torch.arange(73) % 2)


def test_labels_without_a_negative():
    """Positives alone are refused, because each would be a hit among candidates that are all relevant."""
    model, edges, labelled, labels = graph()
    positive = {"edge_label_index": labelled[:, labels > 0], "edge_label": labels[labels > 0]}
    with pytest.raises(ValueError, match=r"edge_label holds no 0: .* target=edge_label_index"):
        pyg.evaluate("MRR", model, edges, num_users=USERS, **positive)
