"""PyG graphs and models: every kind of adjacency, one embedding pass, LinkPred's own arguments."""

import pytest
import torch
from torch import nn
from values import near, numbers

import torchrecmetrics as trm
from torchrecmetrics import Interactions

pytest.importorskip("torch_geometric")
from torch_geometric import EdgeIndex
from torch_geometric.data import HeteroData
from torch_geometric.metrics import LinkPredMetricCollection, LinkPredNDCG, LinkPredPrecision, LinkPredRecall
from torch_geometric.nn import LightGCN

from torchrecmetrics import pyg

USERS, ITEMS = 12, 20


@pytest.fixture
def graph(generator):
    """Train edges (users first, items after), ground truth without them, and a model."""
    cells = torch.rand(USERS, ITEMS, generator=generator)
    train, test = Interactions.from_dense(cells < 0.2), Interactions.from_dense(cells > 0.85)
    torch.manual_seed(0)
    return train, test, LightGCN(USERS + ITEMS, embedding_dim=8, num_layers=2)


def adjacency(edges):
    size = (USERS + ITEMS,) * 2
    return torch.sparse_coo_tensor(edges.flip(0), torch.ones(edges.shape[1]), size).coalesce()


class Transposed:
    """What we use of torch_sparse.SparseTensor, which is not installed here: rows are the targets."""

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
@pytest.mark.parametrize("undirected", [True, False])
def test_message_passing_edges(form, undirected, graph):
    """User -> item edges of every kind of adjacency; mirror images, repeats and self loops add nothing."""
    train, _, _ = graph
    edges = train.to_edge_index(USERS, undirected=undirected)
    found = pyg.message_passing_interactions(FORMS[form](edges), USERS, ITEMS)
    assert torch.equal(found.to_edge_index(), train.to_edge_index())


def test_lightgcn(graph):
    """One embedding pass in eval mode, training mode restored, the graph's edges excluded, the core's numbers."""
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
    """Lists of LightGCN.recommend over the items, history taken out afterwards, say the same."""
    train, test, model = graph
    edges = train.to_edge_index(USERS, undirected=True)
    with torch.no_grad():
        lists = model.recommend(
            edges, src_index=torch.arange(USERS), dst_index=torch.arange(USERS, USERS + ITEMS), k=ITEMS
        )
    rows = torch.arange(USERS)
    collection = trm.RecMetricCollection(["Recall", "NDCG"], k=5)
    collection.update(trm.Ranking.from_topk(lists - USERS, test.select(rows).items, exclude=train.select(rows).items))
    assert dict(pyg.evaluate(["Recall", "NDCG"], model, edges, target=test, k=5)) == near(collection.compute())


def test_hetero_data_and_two_towers(graph):
    """HeteroData names the edges by type; embed gives both towers."""
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
    with pytest.raises(ValueError, match=r"HeteroData needs edge_type, .*, one of .*'rates'"):
        pyg.evaluate("HR", towers, data, edge_type=("movie", "rated_by", "user"), embed=both, **options)


def test_link_pred_arguments(generator):
    """Fed as PyG's collection is, with -1 padding, the shared metrics give its numbers."""
    lists = torch.rand(8, 30, generator=generator).argsort(1)[:, :6]
    lists[2, 4:] = -1  # KNNIndex.search ran out
    labels = torch.stack(
        [torch.arange(8).repeat_interleave(3), torch.rand(8, 30, generator=generator).argsort(1)[:, :3].flatten()]
    )
    theirs = LinkPredMetricCollection(
        {f"{c.__name__[8:]}@{k}": c(k) for c in (LinkPredPrecision, LinkPredRecall, LinkPredNDCG) for k in (2, 6)}
    )
    ours = pyg.LinkPredCollection(["Precision", "Recall", "NDCG"], k=[2, 6])
    for rows in (slice(0, 2), slice(3, 8)):  # without the padded row, which PyG gets wrong
        first, last = rows.start, rows.stop
        mine = labels[:, (labels[0] >= first) & (labels[0] < last)] - torch.tensor([[first], [0]])
        theirs.update(lists[rows], mine)
        ours.update(lists[rows], (mine[0], mine[1]))
    assert numbers(ours.compute()) == near(theirs.compute(), 1e-6)
    assert ours(lists[2:3], torch.tensor([[0, 0], [lists[2, 0], 99]]))["Recall@6"] == 0.5
    weighted = pyg.LinkPredCollection([trm.Recall(1, weighted=True)])
    weighted.update(torch.tensor([[4, 1]]), torch.tensor([[0, 0], [4, 9]]), torch.tensor([3.0, 1.0]))
    assert weighted.compute()["Recall-weighted@1"] == 0.75


def test_bad_input(graph):
    train, test, model = graph
    edges = train.to_edge_index(USERS)
    call = lambda **kwargs: pyg.evaluate("HR@3", **({"model": model, "edge_index": edges, "target": test} | kwargs))  # noqa: E731
    for kwargs, error, message in (
        (
            {"edge_index": train.to_edge_index()},
            ValueError,
            "edges join two users or two items, .* numbered from 12 on",
        ),
        ({"edge_index": edges.flip(0)}, ValueError, "no edge leads from a user to an item"),
        ({"edge_index": edges + 9}, ValueError, r"edges hold nodes .*, expected 0..31: 12 users, then 20 items"),
        ({"edge_index": "edges"}, TypeError, "got str"),
        ({"model": nn.Linear(2, 2)}, TypeError, r"Linear has no get_embedding\(edge_index\): pass embed="),
        ({"model": LightGCN(40, 4, 1)}, ValueError, "embeds 40 nodes, target has 12 users . 20 items"),
        ({"exclude": "train"}, ValueError, "exclude must be 'message_passing', None"),
        ({"edge_type": ("a", "b", "c")}, ValueError, "edge_type is for HeteroData"),
        ({"target": edges}, TypeError, "target must be Interactions, got a torch.int64 tensor"),
        ({"target": train}, ValueError, "pairs of target are also in exclude"),
    ):
        with pytest.raises(error, match=message):
            call(**kwargs)
