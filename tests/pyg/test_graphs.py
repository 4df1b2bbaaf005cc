"""Models are evaluated on PyG's graphs, in every kind of adjacency, with ground truth as edges or `Interactions`."""

import importlib
import re
import sys

import pytest
import torch
from torch import nn
from values import near

import torchrecmetrics as trm

pytest.importorskip("torch_geometric")
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData
from torch_geometric.metrics import LinkPredRecall
from torch_geometric.nn import LightGCN
from torch_geometric.transforms import RandomLinkSplit

from torchrecmetrics import Interactions, pyg

USERS, ITEMS = 12, 20
NODES = USERS + ITEMS
CELLS = torch.rand(USERS, ITEMS, generator=torch.Generator().manual_seed(0))
TRAIN, TEST = Interactions.from_dense(CELLS < 0.2), Interactions.from_dense(CELLS > 0.85)
EDGES = TRAIN.to_edge_index(USERS, undirected=True)
TEST_EDGES = TEST.to_edge_index(USERS)


def make_model():
    torch.manual_seed(0)
    return LightGCN(NODES, embedding_dim=8, num_layers=2)


MODEL = make_model()


def evaluate(metrics="NDCG", *, model=MODEL, edges=EDGES, **given):
    return dict(pyg.evaluate(metrics, model, edges, **({"target": TEST, "k": 5} | given)))


def split(model):
    """Return the embeddings of users and of items."""
    return model.get_embedding(EDGES).detach().split([USERS, ITEMS])


def expected(metrics="NDCG", embeddings=None, **given):
    """Return what `evaluate` gives for the embeddings, by default those of the model."""
    embeddings = split(MODEL) if embeddings is None else embeddings
    return near(trm.evaluate(metrics, *embeddings, **({"target": TEST, "exclude": TRAIN, "k": 5} | given)))


def adjacency(edges):
    return torch.sparse_coo_tensor(edges.flip(0), torch.ones(edges.shape[1]), (NODES, NODES)).coalesce()


class Transposed:
    """A stand-in for torch_sparse.SparseTensor, which is not installed here: its rows are the targets of edges."""

    def __init__(self, edges):
        self.edges = edges

    def sparse_sizes(self):
        return NODES, NODES

    def coo(self):
        return self.edges[1], self.edges[0], None


FORMS = {
    "edge_index": lambda e: e,
    "shuffled, repeated": lambda e: torch.cat([e, e[:, :5]], 1)[:, torch.randperm(e.shape[1] + 5)],
    "EdgeIndex": lambda e: EdgeIndex(e, sparse_size=(NODES, NODES)),
    "coo": adjacency,
    "csr": lambda e: adjacency(e).to_sparse_csr(),
    "csc": lambda e: adjacency(e).to_sparse_csc(),
    "SparseTensor": Transposed,
    "self loops": lambda e: torch.cat([e, torch.arange(5).repeat(2, 1)], 1),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_message_passing_edges(form):
    """Every kind of adjacency gives the edges in any direction; repeats and self loops do not matter."""
    forth = TRAIN.to_edge_index(USERS)
    for edges in (forth, forth.flip(0), EDGES):
        read = pyg.message_passing_interactions(FORMS[form](edges), USERS, ITEMS)
        assert torch.equal(read.to_edge_index(), TRAIN.to_edge_index())
        assert torch.equal(read.keys, TRAIN.keys)


@pytest.mark.parametrize("sizes", [{}, {"sparse_size": (NODES, NODES)}])
def test_edge_index_of_pyg(sizes):
    """PyG's `EdgeIndex` gives the values of the plain tensor, as graph, as ground truth and as history."""
    target = trm.Interactions.from_edge_index(EdgeIndex(TEST.to_edge_index()), USERS, ITEMS)
    assert evaluate(edges=EdgeIndex(EDGES, **sizes), target=target) == expected()
    both = {"target": EdgeIndex(TEST.to_edge_index()), "exclude": EdgeIndex(TRAIN.to_edge_index())}
    assert expected(**both) == evaluate()


def test_lightgcn():
    """`pyg.evaluate` embeds once in eval mode, restores the mode, excludes the edges, and gives `evaluate`'s values."""
    names, model, passes = ["Recall", "NDCG", "HR", "RPrecision"], make_model().train(), []
    plain = model.get_embedding
    model.get_embedding = lambda *args: passes.append(model.training) or plain(*args)

    assert evaluate(names, model=model, k=[3, 5], batch_size=5) == expected(names, k=[3, 5])
    assert (passes, model.training) == ([False], True)


def test_edges_compete_if_nothing_is_excluded():
    assert evaluate(exclude=None) == expected(exclude=None)


def test_edges_have_weights():
    weight = torch.rand(EDGES.shape[1])
    embeddings = MODEL.get_embedding(EDGES, weight).detach().split([USERS, ITEMS])

    assert evaluate(edge_weight=weight) == expected(embeddings=embeddings)


def test_equals_lightgcn_recommend():
    """Lists of LightGCN.recommend over the items, with the history removed afterwards, give the same values."""
    rows = torch.arange(USERS)
    with torch.no_grad():
        lists = MODEL.recommend(EDGES, src_index=rows, dst_index=torch.arange(USERS, NODES), k=ITEMS) - USERS
    collection = trm.RecMetricCollection(["Recall", "NDCG"], k=5)
    collection.update(trm.Lists(lists, TEST.select(rows).items, exclude=TRAIN.select(rows).items))
    assert evaluate(["Recall", "NDCG"]) == near(collection.compute())


def test_hetero_data_and_two_towers():
    """An edge type names the edges of HeteroData, and `embed` returns the embeddings of both towers."""
    data = HeteroData()
    data["user"].num_nodes, data["movie"].num_nodes = USERS, ITEMS
    data["user", "rates", "movie"].edge_index = TRAIN.to_edge_index()
    towers = nn.ModuleDict({"user": nn.Embedding(USERS, 4), "movie": nn.Embedding(ITEMS, 4)})
    both = lambda m: (m["user"].weight, m["movie"].weight)  # noqa: E731
    # as in PyG, an edge type may be two words, and embeddings a dict by node type that has other types, too
    of_types = lambda m: {"genre": torch.ones(3, 4), "movie": m["movie"].weight, "user": m["user"].weight}  # noqa: E731
    values = expected(embeddings=(towers["user"].weight, towers["movie"].weight))
    rank = lambda **given: evaluate(model=towers, edges=data, **given)  # noqa: E731
    assert rank(embed=both) == values  # the only type there is
    for exclude in ("message_passing", TRAIN.to_edge_index()):
        assert rank(embed=both, target=TEST.to_edge_index(), exclude=exclude) == values
    data["movie", "rev_rates", "user"].edge_index = TRAIN.to_edge_index().flip(0)
    for edge_type in (("user", "rates", "movie"), ("user", "movie")):
        for embed in (both, of_types):
            assert rank(edge_type=edge_type, embed=embed) == values
    with pytest.raises(ValueError, match="target is 12 x 20, the model embeds 20 users and 12 items"):
        rank(edge_type=("movie", "user"), embed=of_types)
    with pytest.raises(ValueError, match=r"of edge_index do not join .* \(edge_type leads from users to items\)"):
        rank(edge_type=("movie", "user"), embed=both)
    data["user", "likes", "movie"].edge_index = TRAIN.to_edge_index()
    for edge_type in (None, ("user", "movie"), ("user", "genre"), "rates", ["user", "rates", "movie"]):
        with pytest.raises(ValueError, match=r"\(user type, item type\), one of .*'likes'.*, got "):
            rank(edge_type=edge_type, embed=of_types)


def test_edges_as_ground_truth():
    """Edges numbered as the graph, in both directions, give the values of `Interactions`, as target and as exclude."""
    target, mask, bias = TEST.to_edge_index(USERS, undirected=True), torch.arange(ITEMS) < 2, torch.rand(ITEMS)
    options = {"target": target, "num_users": USERS, "overlap": "miss"}
    valid = TRAIN.take(torch.arange(len(TRAIN)) % 2 == 0)
    biased = trm.Embeddings(*split(MODEL), bias=bias)
    for given in ({}, {"embed": split, "num_users": None}, {"exclude": EDGES.int()}):
        assert evaluate(**options | given) == expected()
    masked = expected(exclude=(valid, mask), overlap="miss")
    assert evaluate(**options, exclude=(valid.to_edge_index(USERS), mask)) == masked
    assert evaluate(**options, embed=lambda model: biased) == expected(embeddings=(biased,))


def test_ground_truth_may_have_ids():
    """Rows of a target with ids are nodes of the graph; if the history alone has ids, the error gives a cure."""
    ids = [f"u{n}" for n in range(USERS)], [f"i{n}" for n in range(ITEMS)]
    named, had = TEST.with_ids(*ids), TRAIN.with_ids(*ids)
    for exclude in ("message_passing", had, EDGES):
        assert evaluate(target=named, exclude=exclude) == expected()
    with pytest.raises(ValueError, match=r"target.with_ids\(user_ids=exclude.user_ids\)"):
        evaluate(exclude=had)
    assert evaluate(target=TEST.with_ids(user_ids=had.user_ids, item_ids=had.item_ids), exclude=had) == expected()


IN_VALID = (CELLS > 0.25) & (CELLS < 0.35)
VALID = Interactions.from_dense(IN_VALID)
IDS = [f"u{n}" for n in range(USERS)], [f"i{n}" for n in range(ITEMS)]
OF_TYPES = HeteroData({("u", "r", "i"): {"edge_index": TRAIN.to_edge_index()}})
OWN_EXCLUDE = {
    "edges": {"exclude": VALID.to_edge_index(USERS)},
    "interactions": {"exclude": VALID},
    "items of all users": {"exclude": (VALID, torch.arange(ITEMS) < 0)},
    "ids": {"exclude": VALID.with_ids(*IDS), "target": TEST.with_ids(*IDS)},
    "SparseTensor": {"exclude": VALID, "edges": Transposed(EDGES), "embed": split},
    "embed": {"exclude": VALID, "embed": split},
    "HeteroData": {"exclude": VALID.to_edge_index(), "edges": OF_TYPES, "embed": split},
}


@pytest.mark.parametrize("form", OWN_EXCLUDE)
def test_edges_of_the_graph_that_compete(form):
    """If most edges are neither target nor excluded, a warning counts them, and the `exclude` that it names works."""
    given = OWN_EXCLUDE[form]
    message = rf"{len(TRAIN)} of the graph's {len(TRAIN)} edges are neither in target nor in exclude, so .*, exclude="
    with pytest.warns(UserWarning, match=message + r'\("message_passing", valid\)$') as caught:
        found = evaluate(**given)
    assert found == expected(exclude=VALID)
    assert [warning.filename for warning in caught] == [__file__]
    entries = given["exclude"] if isinstance(given["exclude"], tuple) else (given["exclude"],)
    assert evaluate(**given | {"exclude": ("message_passing", *entries)}) == expected(exclude=(TRAIN, VALID))


def test_edges_of_the_graph_that_may_compete():
    """Nothing is said if few edges compete, the graph is the target, or `exclude` is None or `allowed` is given."""
    most = TRAIN.take(torch.arange(len(TRAIN)) % 3 > 0)
    assert evaluate(exclude=(VALID, most)) == expected(exclude=(VALID, most))
    assert evaluate(target=TRAIN, exclude=VALID) == expected(target=TRAIN, exclude=VALID)
    for exclude in (None, ()):
        assert evaluate(exclude=exclude) == expected(exclude=None)
    allowed = trm.Embeddings(*split(MODEL), allowed=Interactions.from_dense(CELLS > 0.5))
    assert evaluate(exclude=VALID, embed=lambda model: allowed) == expected(embeddings=(allowed,), exclude=VALID)


def test_ids_that_occur_are_numbered_as_the_nodes():
    """A ground truth of some users and items alone is numbered as the message says; `EDGES` stay excluded."""
    some = TEST.take((TEST.users != 4) & (TEST.items != 7))
    read = Interactions.from_columns(some.users, some.items, user_ids=some.users.unique(), item_ids=some.items.unique())
    message = r"\(32 nodes\); if it has ids, (target.recode\(user_ids=..., item_ids=...\)) numbers it"
    with pytest.raises(ValueError, match=message) as raised:
        evaluate(target=read, num_users=USERS)
    call = re.search(message, str(raised.value))[1].replace("...", "range(12)", 1).replace("...", "range(20)")
    assert evaluate(target=eval(call, {"target": read})) == evaluate(target=some)


def of_nodes(*edge):
    return {"target": torch.tensor(edge)[:, None], "num_users": USERS}


def of_shape(*shape):
    return {"target": Interactions.from_edge_index(torch.tensor([[3], [2]]), *shape)}


FORTH, FROM_0 = TRAIN.to_edge_index(USERS), TRAIN.to_edge_index()
HETERO = HeteroData({("u", "r", "i"): {"edge_index": FORTH}})
DATA = Data(edge_index=EDGES, num_nodes=NODES)
NUMBERED = "do not join one of 12 users and one of 20 items, such as"
BAD = [
    (of_nodes(0, 2), ValueError, rf"1 edges of target {NUMBERED} \[0, 2\]: items are nodes 12 to 31, as in Inter"),
    (of_nodes(-1, 13), ValueError, rf"1 edges of target {NUMBERED} \[-1, 13\]"),
    ({"exclude": torch.tensor([[0], [0]])}, ValueError, "1 edges of exclude do not join"),
    ({"target": torch.tensor([0, 13]), "num_users": USERS}, ValueError, r"target must be integers \[2, E\], got \[2\]"),
    ({"target": TEST_EDGES}, ValueError, "embeds 32 nodes: pass num_users=, how many of them are users, got None"),
    (
        {"target": TEST_EDGES, "num_users": USERS, "embed": lambda model: (torch.ones(ITEMS, 4), torch.ones(USERS, 4))},
        ValueError,
        r"embed returned 20 users, but num_users is 12: are users and items swapped\?",
    ),
    ({"exclude": torch.ones(20, dtype=torch.uint8)}, TypeError, "exclude must hold int64"),
    (of_shape(32, 32), ValueError, r"target is 32 x 32, the model embeds .*\(32 nodes\)"),
    ({"model": LightGCN(40, 4, 1)}, ValueError, r"target is 12 x 20, .* 12 users and 28 items \(40 nodes\); if"),
    # the model would silently propagate over other nodes
    ({"edges": FROM_0}, ValueError, "edges of edge_index do not join .* items are nodes 12 to 31"),
    ({"edges": "edges"}, TypeError, "edge_index must be a tensor, got str"),
    ({"edges": DATA}, TypeError, r"got Data: pass data\.edge_index"),
    ({"edges": HETERO}, TypeError, "HeteroData: pass embed="),
    ({"model": nn.Linear(2, 2)}, TypeError, r"Linear has no get_embedding\(edge_index\): pass embed="),
    ({"embed": lambda model, graph: graph}, TypeError, "missing 1 required positional argument: 'graph'"),
    ({"embed": lambda model: 3}, TypeError, r"embed must return \(users, items\), .*, got int"),
    ({"embed": lambda model: {"u": EDGES}}, TypeError, "got dict: pass the HeteroData as edge_index"),
    ({"embed": split, "edge_weight": EDGES[0]}, ValueError, "edge_weight is passed to get_embedding"),
    ({"edge_weight": torch.ones(3)}, ValueError, r"edge_weight has 3 values for \d+ edges"),
    ({"exclude": "train"}, ValueError, "exclude must be one of 'message_passing', got 'train'"),
    ({"batchsize": 5}, ValueError, "pyg.evaluate has no option 'batchsize'; did you mean 'batch_size'[?] There are"),
    ({"gain": "exponential"}, ValueError, "'gain': pass an instance, such as trm.DCG"),
    ({"metrics": LinkPredRecall(20)}, TypeError, "put other metrics next to it in a torchmetrics"),
]


@pytest.mark.parametrize(("given", "error", "message"), BAD)
def test_bad_input(given, error, message):
    """No numbering is guessed, and the error for bad input names the value or the values that are accepted."""
    with pytest.raises(error, match=message):
        evaluate(**given)


def test_a_graph_that_is_not_read_may_be_numbered_otherwise():
    """With `embed` and `exclude` of one's own the edges are not read, such as those of a social graph."""
    users, items = MODEL.embedding.weight.detach().split([USERS, ITEMS])
    got = evaluate(edges=FROM_0, exclude=TRAIN, embed=lambda m: m.embedding.weight)
    assert got == expected(embeddings=(users, items))


def test_without_pyg(monkeypatch):
    """Without PyG the error names the extra to install."""
    monkeypatch.delitem(sys.modules, "torchrecmetrics.pyg")
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    with pytest.raises(ImportError, match=r"torchrecmetrics.pyg needs PyG: pip install 'torchrecmetrics\[pyg\]'"):
        importlib.import_module("torchrecmetrics.pyg")


ITEM_OF_EDGE = torch.rand(USERS, ITEMS).argsort(1)[:, :6].flatten()
USER_OF_EDGE = torch.arange(USERS).repeat_interleave(6)
LABELLED = torch.stack([USER_OF_EDGE, ITEM_OF_EDGE + USERS])
LABELS = (torch.arange(6) < 3).repeat(USERS).float()


def rank_labelled(metrics="MRR", **changed):
    """Return the evaluation of labelled edges, of which each user has three positives and three negatives."""
    given = {"edge_label_index": LABELLED, "edge_label": LABELS, "num_users": USERS} | changed
    return pyg.evaluate(metrics, MODEL, EDGES, **given)


def loops(scores):
    """Return the MRR of labelled edges with these scores."""
    total = 0.0
    for user in range(USERS):
        order = sorted(range(6 * user, 6 * user + 6), key=lambda edge: -scores[edge].item())
        total += 1 / min(rank for rank, edge in enumerate(order, 1) if LABELS[edge] > 0)
    return total / USERS


@pytest.mark.parametrize("index", [LABELLED, LABELLED.flip(0)], ids=["from users", "from items"])
def test_labelled_edges_equal_loops(index):
    """MRR ranks each user's labelled edges, in any direction."""
    users, items = split(MODEL)
    result = rank_labelled(edge_label_index=index)

    assert result["MRR"].item() == pytest.approx(loops((users[USER_OF_EDGE] * items[ITEM_OF_EDGE]).sum(1)))
    assert result.num_users == USERS


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_labelled_edges_are_ranked_by_similarity_plus_bias(similarity):
    (users, items), bias = split(MODEL), torch.rand(ITEMS)
    lengths = users.norm(dim=1)[USER_OF_EDGE] * items.norm(dim=1)[ITEM_OF_EDGE] if similarity == "cosine" else 1
    scores = (users[USER_OF_EDGE] * items[ITEM_OF_EDGE]).sum(1) / lengths + bias[ITEM_OF_EDGE]
    result = rank_labelled(embed=lambda model: trm.Embeddings(users, items, bias=bias, similarity=similarity))

    assert result["MRR"].item() == pytest.approx(loops(scores))


def test_random_link_split():
    """Labelled edges are evaluated as PyG's RandomLinkSplit makes them, with both sides numbered from 0."""
    torch.manual_seed(0)
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = 40, 30
    users, items = torch.randn(40, 4), torch.randn(30, 4)
    data["user", "likes", "item"].edge_index = (users @ items.T > 1.5).nonzero().T
    *_, test = RandomLinkSplit(num_val=0, num_test=0.5, edge_types=("user", "likes", "item"))(data)
    labels = {key: test["user", "likes", "item"][key] for key in ("edge_label_index", "edge_label")}
    result = pyg.evaluate("AUROC", torch.nn.Module(), test, embed=lambda model: (users, items), **labels)
    assert result["AUROC"] == 1  # positives are those that score above 1.5


TWICE = torch.cat([LABELLED, LABELLED[:, :1].flip(0)], 1)
POSITIVE = {"edge_label_index": LABELLED[:, LABELS > 0], "edge_label": LABELS[LABELS > 0]}
ALLOWED = trm.Embeddings(torch.ones(USERS, 1), torch.ones(ITEMS, 1), allowed=torch.ones(ITEMS) > 0)
BAD_LABELS = [
    ({"edge_label": None}, "pass target, or edge_label_index with edge_label; pass positives alone as target"),
    ({"edge_label": torch.arange(3)}, "scores, labels and indexes must be tensors of one shape"),
    ({"num_users": 8}, "edges of edge_index do not join one of 8 users and one of 24 items"),
    ({"edge_label_index": torch.tensor([[0] * 72, [1] * 72])}, "72 edges of edge_label_index do not join"),
    *(({"exclude": exclude}, "exclude needs target") for exclude in (None, ("message_passing", TRAIN))),
    ({"user_ids": [1]}, "user_ids needs target; labelled edges take only k and the options of metrics"),
    ({"embed": lambda model: ALLOWED}, "allowed items need target"),
    (
        {"edge_label_index": TWICE, "edge_label": torch.arange(73) % 2},  # its item would be two candidates
        f"1 edges are labelled twice, such as user 0, item {ITEM_OF_EDGE[0]}: ",
    ),
    (POSITIVE, "edge_label holds no 0: .* target=edge_label_index"),  # each would be a hit among relevant items
]


@pytest.mark.parametrize(("changed", "message"), BAD_LABELS)
def test_bad_labels(changed, message):
    """Arguments that do not fit labelled edges are refused, so that negatives are never taken for positives."""
    with pytest.raises(ValueError, match=message):
        rank_labelled(**changed)
