"""Models are evaluated on PyG's graphs, in every kind of adjacency, with ground truth as edges or `Interactions`."""

import importlib
import sys

import pytest
import torch
from torch import nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import LightGCN
from torch_geometric.transforms import RandomLinkSplit
from values import near, numbers

import torchrecmetrics as trm
from torchrecmetrics import Interactions, pyg

pytest.importorskip("torch_geometric")
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.metrics import (
    LinkPredRecall,
)

USERS, ITEMS = 12, 20


@pytest.fixture
def graph(generator):
    """Return train interactions, test interactions without them, and a LightGCN whose nodes are users, then items."""
    cells = torch.rand(USERS, ITEMS, generator=generator)
    train, test = Interactions.from_dense(cells < 0.2), Interactions.from_dense(cells > 0.85)
    torch.manual_seed(0)
    return train, test, LightGCN(USERS + ITEMS, embedding_dim=8, num_layers=2)


def adjacency(edges):
    size = (USERS + ITEMS,) * 2
    return torch.sparse_coo_tensor(edges.flip(0), torch.ones(edges.shape[1]), size).coalesce()


class Transposed:
    """A stand-in for torch_sparse.SparseTensor, which is not installed here: its rows are the targets of edges."""

    def __init__(self, edges):
        self.edges = edges

    def sparse_sizes(self):
        return (USERS + ITEMS,) * 2

    def coo(self):
        return self.edges[1], self.edges[0], None


FORMS = {
    "edge_index": lambda e: e,
    "shuffled, repeated": lambda e: torch.cat([e, e[:, :5]], 1)[:, torch.randperm(e.shape[1] + 5)],
    "EdgeIndex": lambda e: EdgeIndex(e, sparse_size=(USERS + ITEMS,) * 2),
    "coo": adjacency,
    "csr": lambda e: adjacency(e).to_sparse_csr(),
    "csc": lambda e: adjacency(e).to_sparse_csc(),
    "SparseTensor": Transposed,
    "self loops": lambda e: torch.cat([e, torch.arange(5).repeat(2, 1)], 1),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("direction", ["forth", "back", "both"])
def test_message_passing_edges(form, direction, graph):
    """Every kind of adjacency gives the edges between users and items, in any direction; repeats and self loops do not
    matter.
    """
    train, _, _ = graph
    edges = train.to_edge_index(USERS, undirected=direction == "both")
    edges = edges.flip(0) if direction == "back" else edges
    found = pyg.message_passing_interactions(FORMS[form](edges), USERS, ITEMS)
    assert torch.equal(found.to_edge_index(), train.to_edge_index())
    assert torch.equal(found.keys, train.keys)


@pytest.mark.parametrize("sizes", [{}, {"sparse_size": (USERS + ITEMS,) * 2}])
def test_edge_index_of_pyg(graph, sizes):
    """PyG's `EdgeIndex` gives the values of the plain tensor, as graph, as ground truth and as history."""
    train, test, model = graph
    edges, shape = train.to_edge_index(USERS, undirected=True), (USERS, ITEMS)
    expected = pyg.evaluate("NDCG", model, edges, target=test, k=5)
    target = trm.Interactions.from_edge_index(EdgeIndex(test.to_edge_index()), *shape)
    assert dict(pyg.evaluate("NDCG", model, EdgeIndex(edges, **sizes), target=target, k=5)) == dict(expected)
    with torch.no_grad():
        users, items = model.get_embedding(edges).split([USERS, ITEMS])
    both = {"target": EdgeIndex(test.to_edge_index()), "exclude": EdgeIndex(train.to_edge_index())}
    assert dict(trm.evaluate("NDCG", users, items, k=5, **both)) == near(expected)


def test_data_in_place_of_edges(graph):
    """`Data` raises an error that says which part of it to pass, before the model is called."""
    train, test, model = graph
    data = Data(edge_index=train.to_edge_index(USERS, undirected=True), num_nodes=USERS + ITEMS)
    labelled = {"edge_label_index": data.edge_index, "edge_label": torch.arange(data.num_edges) % 2}
    for given in ({"target": test}, {**labelled, "num_users": USERS}):
        with pytest.raises(TypeError, match=r"got Data: pass data\.edge_index"):
            pyg.evaluate("MRR", model, data, **given)


def test_lightgcn(graph):
    """`pyg.evaluate` embeds once in eval mode, restores the mode, excludes the edges, and gives `evaluate`'s values."""
    train, test, model = graph
    edges = train.to_edge_index(USERS, undirected=True)
    passes = []
    plain = model.get_embedding
    model.get_embedding = lambda *args: passes.append(model.training) or plain(*args)
    model.train()
    names = ["Recall", "NDCG", "HR", "RPrecision"]
    got = pyg.evaluate(names, model, edges, target=test, k=[3, 5], batch_size=5)
    assert (passes, model.training) == ([False], True)
    with torch.no_grad():
        users, items = plain(edges).split([USERS, ITEMS])
    assert dict(got) == near(trm.evaluate(names, users, items, target=test, exclude=train, k=[3, 5]))
    everything = pyg.evaluate(names, model, edges, target=test, k=[3, 5], exclude=None)
    assert dict(everything) == near(trm.evaluate(names, users, items, target=test, k=[3, 5]))
    weight = torch.rand(edges.shape[1])
    weighted = pyg.evaluate(names, model, edges, target=test, k=[3, 5], edge_weight=weight)
    with torch.no_grad():
        users, items = plain(edges, weight).split([USERS, ITEMS])
    assert dict(weighted) == near(trm.evaluate(names, users, items, target=test, exclude=train, k=[3, 5]))


def test_equals_lightgcn_recommend(graph):
    """Lists of LightGCN.recommend over the items, with the history removed afterwards, give the same values."""
    train, test, model = graph
    edges = train.to_edge_index(USERS, undirected=True)
    with torch.no_grad():
        lists = model.recommend(
            edges, src_index=torch.arange(USERS), dst_index=torch.arange(USERS, USERS + ITEMS), k=ITEMS
        )
    rows = torch.arange(USERS)
    collection = trm.RecMetricCollection(["Recall", "NDCG"], k=5)
    collection.update(trm.Lists(lists - USERS, test.select(rows).items, exclude=train.select(rows).items))
    assert dict(pyg.evaluate(["Recall", "NDCG"], model, edges, target=test, k=5)) == near(collection.compute())


def test_hetero_data_and_two_towers(graph):
    """An edge type names the edges of HeteroData, and `embed` returns the embeddings of both towers."""
    train, test, _ = graph
    data = HeteroData()
    data["user"].num_nodes, data["movie"].num_nodes = USERS, ITEMS
    data["user", "rates", "movie"].edge_index = train.to_edge_index()
    towers = nn.ModuleDict({"user": nn.Embedding(USERS, 4), "movie": nn.Embedding(ITEMS, 4)})
    options = {"target": test, "k": 5}
    got = pyg.evaluate(
        "HR",
        towers,
        data,
        edge_type=("user", "rates", "movie"),
        embed=lambda m: (m["user"].weight, m["movie"].weight),
        **options,
    )
    expected = trm.evaluate("HR", towers["user"].weight, towers["movie"].weight, exclude=train, **options)
    assert dict(got) == near(expected)
    both = lambda m: (m["user"].weight, m["movie"].weight)  # noqa: E731
    assert dict(pyg.evaluate("HR", towers, data, embed=both, **options)) == near(expected)  # the only type there is
    # as in PyG, an edge type may be two words, and embeddings a dict by node type that has other types, too
    of_types = lambda m: {"genre": torch.ones(3, 4), "movie": m["movie"].weight, "user": m["user"].weight}  # noqa: E731
    data["movie", "rev_rates", "user"].edge_index = train.to_edge_index().flip(0)
    for edge_type in (("user", "rates", "movie"), ("user", "movie")):
        for embed in (both, of_types):
            got = pyg.evaluate("HR", towers, data, edge_type=edge_type, embed=embed, **options)
            assert dict(got) == near(expected)
    with pytest.raises(ValueError, match="target is 12 x 20, the model embeds 20 users and 12 items"):
        pyg.evaluate("HR", towers, data, edge_type=("movie", "user"), embed=of_types, **options)
    with pytest.raises(ValueError, match=r"of edge_index do not join .* \(edge_type leads from users to items\)"):
        pyg.evaluate("HR", towers, data, edge_type=("movie", "user"), embed=both, **options)
    data["user", "likes", "movie"].edge_index = train.to_edge_index()
    for edge_type in (None, ("user", "movie"), ("user", "genre"), "rates", ["user", "rates", "movie"]):
        with pytest.raises(ValueError, match=r"\(user type, item type\), one of .*'likes'.*, got "):
            pyg.evaluate("HR", towers, data, edge_type=edge_type, embed=of_types, **options)
    with pytest.raises(TypeError, match=r"embed must return \(users, items\), .*, got dict"):
        pyg.evaluate("HR", towers, train.to_edge_index(USERS), embed=of_types, target=test, k=5)


def test_edges_as_ground_truth(graph):
    """Edges numbered as the graph, in both directions, give the values of `Interactions`, as target and as exclude."""
    train, test, model = graph
    edges, target = (part.to_edge_index(USERS, undirected=True) for part in (train, test))
    mask, bias = torch.arange(ITEMS) < 2, torch.rand(ITEMS)
    options = {"k": 5, "overlap": "miss"}
    call = lambda **given: dict(pyg.evaluate("NDCG", model, edges, target=target, **given, **options))  # noqa: E731
    expected = pyg.evaluate("NDCG", model, edges, target=test, **options)
    valid = train.take(torch.arange(len(train)) % 2 == 0)
    masked = pyg.evaluate("NDCG", model, edges, target=test, exclude=(valid, mask), **options)
    split = lambda m: m.get_embedding(edges).split([USERS, ITEMS])  # noqa: E731
    biased = lambda m: trm.Embeddings(*split(m), bias=bias)  # noqa: E731
    assert call(num_users=USERS) == call(embed=split) == call(num_users=USERS, exclude=edges.int()) == dict(expected)
    assert call(num_users=USERS, exclude=(valid.to_edge_index(USERS), mask)) == dict(masked)
    with torch.no_grad():
        assert call(embed=biased) == near(trm.evaluate("NDCG", biased(model), target=test, exclude=train, **options))
    named = test.with_ids(list("abcdefghijkl"))
    assert dict(pyg.evaluate("NDCG", model, edges, target=named, exclude=edges, **options)) == dict(expected)
    data = HeteroData()
    data["user", "rates", "movie"].edge_index = train.to_edge_index()
    both = {"target": test.to_edge_index(), "embed": split, **options}
    for exclude in ("message_passing", train.to_edge_index()):
        assert dict(pyg.evaluate("NDCG", model, data, exclude=exclude, **both)) == dict(expected)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            {"target": [[0, 1], [2, 3]]},
            ValueError,
            r"2 edges of target do not join .* such as \[0, 2\]: items are nodes",
        ),
        ({"target": [[13], [31]]}, ValueError, r"1 edges of target do not join one of 12 users .* \[13, 31\]"),
        (
            {"target": [[0], [32]]},
            ValueError,
            "items are nodes 12 to 31, as in Interactions.to_edge_index.item_offset=12",
        ),
        ({"target": [[-1], [13]]}, ValueError, r"such as \[-1, 13\]"),
        ({"exclude": [[0], [0]]}, ValueError, "1 edges of exclude do not join"),
        ({"target": [0, 13]}, ValueError, r"target must be integers \[2, E\], got \[2\]"),
        ({"num_users": None}, ValueError, "embeds 32 nodes: num_users= says how many of them are users, got None"),
        ({"num_users": 33}, ValueError, "num_users= says how many of them are users, got 33"),
        ({"num_users": 20}, ValueError, "edges of edge_index do not join one of 20 users and one of 12 items"),
        ({"target": [[0], [13]], "exclude": torch.ones(20, dtype=torch.uint8)}, TypeError, "exclude must hold int64"),
    ],
)
def test_edges_that_do_not_fit(given, error, message, graph):
    """No numbering is guessed: an edge among users or among items is an error, as is an unknown number of users."""
    train, test, model = graph
    given = {key: torch.tensor(value) if isinstance(value, list) else value for key, value in given.items()}
    given = {"target": test.to_edge_index(USERS), "num_users": USERS} | given
    with pytest.raises(error, match=message):
        pyg.evaluate("HR@3", model, train.to_edge_index(USERS), **given)


def test_metrics_of_pyg_are_refused(graph):
    """Metrics of PyG take lists and labels, not the Ranking that members share, and are refused."""
    train, test, model = graph
    with pytest.raises(TypeError, match="put others beside it in a torchmetrics"):
        pyg.evaluate(LinkPredRecall(20), model, train.to_edge_index(USERS), target=test)


def test_without_pyg(monkeypatch):
    """Without PyG the error names the extra to install."""
    monkeypatch.delitem(sys.modules, "torchrecmetrics.pyg")
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    with pytest.raises(ImportError, match=r"torchrecmetrics.pyg needs PyG: pip install 'torchrecmetrics\[pyg\]'"):
        importlib.import_module("torchrecmetrics.pyg")


def test_bad_input(graph):
    train, test, model = graph
    edges = train.to_edge_index(USERS)
    call = lambda **kwargs: pyg.evaluate("HR@3", **({"model": model, "edge_index": edges, "target": test} | kwargs))  # noqa: E731
    for kwargs, error, message in (
        (
            {"edge_index": train.to_edge_index()},
            ValueError,
            "edges of edge_index do not join .* items are nodes 12 to 31",
        ),
        ({"edge_index": "edges"}, TypeError, "edge_index must be a tensor, got str"),
        ({"model": nn.Linear(2, 2)}, TypeError, r"Linear has no get_embedding\(edge_index\): pass embed="),
        ({"edge_index": HeteroData({("u", "r", "i"): {"edge_index": edges}})}, TypeError, "HeteroData: pass embed="),
        ({"model": LightGCN(40, 4, 1)}, ValueError, r"target is 12 x 20, .* 12 users and 28 items \(40 nodes\); a Log"),
        ({"embed": lambda model, graph: graph}, TypeError, "missing 1 required positional argument: 'graph'"),
        ({"embed": lambda model: 3}, TypeError, r"embed must return \(users, items\), .*, got int"),
        ({"embed": lambda model: edges, "edge_weight": edges[0]}, ValueError, "edge_weight is for get_embedding"),
        ({"edge_weight": torch.ones(3)}, ValueError, r"edge_weight has 3 values for \d+ edges"),
        ({"embed": lambda model: {"u": edges}}, TypeError, "got dict: pass the HeteroData as edge_index"),
        ({"exclude": "train"}, ValueError, "exclude must be one of 'message_passing', got 'train'"),
        (
            {"batchsize": 5},
            ValueError,
            "pyg.evaluate has no option 'batchsize'; did you mean 'batch_size'[?] There are",
        ),
        ({"edge_types": ("a", "b")}, ValueError, "did you mean 'edge_type'[?]"),
        ({"gain": "exponential"}, ValueError, "'gain': an option of some metrics goes to an instance, trm.DCG"),
        ({"target": train}, ValueError, "pairs of target are also in exclude"),
    ):
        with pytest.raises(error, match=message):
            call(**kwargs)


def test_numbering_is_checked_whatever_is_excluded(graph):
    """Edges that number both users and items from 0 raise: the model would silently propagate over other nodes."""
    train, test, model = graph
    edges = train.to_edge_index()
    call = lambda **given: pyg.evaluate("HR@3", model, edges, target=test, **given)  # noqa: E731
    weight = lambda model: model.embedding.weight  # noqa: E731
    for given in ({}, {"exclude": train}, {"exclude": None}, {"embed": weight}):
        with pytest.raises(ValueError, match="edges of edge_index do not join"):
            call(**given)
    users, items = model.embedding.weight.detach().split([USERS, ITEMS])
    expected = trm.evaluate("HR@3", users, items, target=test, exclude=train)
    assert dict(call(exclude=train, embed=weight)) == near(expected)


def test_sizes_are_compared_before_the_numbering(graph):
    """A target of nodes x nodes, or of fewer users or items than there are nodes, raises an error that says so."""
    train, _, model = graph
    for shape in ((32, 32), (10, 20), (12, 19)):
        target = Interactions.from_edge_index(torch.tensor([[3], [2]]), *shape)
        with pytest.raises(ValueError, match=r"target is {} x {}, the model embeds .*\(32 nodes\)".format(*shape)):
            pyg.evaluate("HR@3", model, train.to_edge_index(USERS), target=target)


def test_ground_truth_may_have_ids(graph):
    """Rows of a target with ids are nodes of the graph; if the history alone has ids, the error gives a cure."""
    train, test, model = graph
    edges = train.to_edge_index(USERS)
    expected = near(pyg.evaluate(["HR", "NDCG"], model, edges, target=test, k=5))
    ids = [f"u{n}" for n in range(USERS)], [f"i{n}" for n in range(ITEMS)]
    named, had = test.with_ids(*ids), train.with_ids(*ids)
    assert numbers(pyg.evaluate(["HR", "NDCG"], model, edges, target=named, k=5)) == expected
    assert numbers(pyg.evaluate(["HR", "NDCG"], model, edges, target=named, exclude=had, k=5)) == expected
    with pytest.raises(ValueError, match=r"target.with_ids\(user_ids=exclude.user_ids\)"):
        pyg.evaluate("HR", model, edges, target=test, exclude=had, k=5)
    said = test.with_ids(user_ids=had.user_ids, item_ids=had.item_ids)
    assert numbers(pyg.evaluate(["HR", "NDCG"], model, edges, target=said, exclude=had, k=5)) == expected


# ------------------------------------------------------------------------------------------------------- labelled edges


pytest.importorskip("torch_geometric")
FEW_USERS, FEW_ITEMS = 12, 15


def labelled_graph():
    """Return a model, its edges, and edges with labels, one negative per positive; item nodes follow user nodes."""
    torch.manual_seed(0)
    items = torch.rand(FEW_USERS, FEW_ITEMS).argsort(1)
    rows = torch.arange(FEW_USERS)[:, None].expand(-1, 3).flatten()
    positive = torch.stack([rows, items[:, :3].flatten() + FEW_USERS])
    negative = torch.stack([rows, items[:, 3:6].flatten() + FEW_USERS])
    labels = torch.cat([torch.ones(FEW_USERS * 3), torch.zeros(FEW_USERS * 3)])
    model = LightGCN(num_nodes=FEW_USERS + FEW_ITEMS, embedding_dim=4, num_layers=1)
    return model, torch.cat([positive, positive.flip(0)], 1), torch.cat([positive, negative], 1), labels


def test_equals_loops():
    """MRR ranks each user's labelled edges, as a plain loop does, and mirrored edges give the same value."""
    model, edges, labelled, labels = labelled_graph()
    embeddings = model.get_embedding(edges).detach()
    scores = (embeddings[labelled[0]] * embeddings[labelled[1]]).sum(1)
    expected = 0.0
    for user in range(FEW_USERS):
        own = (labelled[0] == user).nonzero()[:, 0].tolist()
        order = sorted(own, key=lambda at: -scores[at].item())
        expected += 1 / (1 + min(place for place, at in enumerate(order) if labels[at] > 0)) / FEW_USERS
    for index in (labelled, labelled.flip(0)):
        found = pyg.evaluate(["MRR"], model, edges, edge_label_index=index, edge_label=labels, num_users=FEW_USERS)
        assert found["MRR"].item() == pytest.approx(expected)
        assert found.num_users == FEW_USERS


def test_embeddings_with_a_bias_or_cosine_similarity():
    """Scores of labelled edges are products, or cosines, plus the bias, as `Embeddings` say."""
    model, edges, labelled, labels = labelled_graph()
    users, items = model.get_embedding(edges).detach().split([FEW_USERS, FEW_ITEMS])
    bias, (user, item) = torch.rand(FEW_ITEMS), labelled - torch.tensor([[0], [FEW_USERS]])
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
def test_bad_labels(changed, message):
    """Arguments that do not fit labelled edges are refused, so that negatives are never taken for positives."""
    model, edges, labelled, labels = labelled_graph()
    given = {"edge_label_index": labelled, "edge_label": labels, "num_users": FEW_USERS} | changed
    with pytest.raises(ValueError, match=message):
        pyg.evaluate("MRR", model, edges, **given)


def test_an_edge_that_is_labelled_twice():
    """An edge that is labelled twice is refused, because its item would be two candidates."""
    model, edges, labelled, _ = labelled_graph()
    twice = torch.cat([labelled, labelled[:, :1].flip(0)], 1)
    user, item = labelled[0, 0], labelled[1, 0] - FEW_USERS
    with pytest.raises(ValueError, match=f"1 edges are labelled twice.* such as user {user}, item {item}: "):
        pyg.evaluate("MRR", model, edges, num_users=FEW_USERS, edge_label_index=twice, edge_label=torch.arange(73) % 2)


def test_labels_without_a_negative():
    """Positives alone are refused, because each would be a hit among candidates that are all relevant."""
    model, edges, labelled, labels = labelled_graph()
    positive = {"edge_label_index": labelled[:, labels > 0], "edge_label": labels[labels > 0]}
    with pytest.raises(ValueError, match=r"edge_label holds no 0: .* target=edge_label_index"):
        pyg.evaluate("MRR", model, edges, num_users=FEW_USERS, **positive)
