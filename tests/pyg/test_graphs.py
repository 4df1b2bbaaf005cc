"""PyG's graphs, in every kind of adjacency, and models are evaluated; `LinkPredCollection` takes PyG's arguments."""

import importlib
import sys
import warnings

import pytest
import torch
from torch import nn
from values import near, numbers

import torchrecmetrics as trm
from torchrecmetrics import Interactions

pytest.importorskip("torch_geometric")
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData
from torch_geometric.metrics import (
    LinkPredCoverage,
    LinkPredDiversity,
    LinkPredHitRatio,
    LinkPredMAP,
    LinkPredMetricCollection,
    LinkPredNDCG,
    LinkPredPrecision,
    LinkPredRecall,
)
from torch_geometric.nn import LightGCN

from torchrecmetrics import pyg

# PyG's own tests recommend fewer items than the cut-off
pytestmark = pytest.mark.filterwarnings("ignore:pred_index_mat holds")
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


@pytest.mark.fixed
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
        ({"target": [[0], [32]]}, ValueError, "items are nodes 12 to 31, as Interactions.to_edge_index.item_offset=12"),
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


def test_link_pred_arguments(generator):
    """With the arguments of PyG's collection and -1 padding, the metrics that both have give PyG's values."""
    lists = torch.rand(8, 30, generator=generator).argsort(1)[:, :6]
    lists[2, 4:] = -1  # as KNNIndex.search pads
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


# inputs and expected values are those of PyG's own tests of its metrics

PYG_LISTS = torch.tensor([[1, 0], [1, 2], [0, 2]])
PYG_LABELS = torch.tensor([[0, 0, 0, 2, 2], [0, 1, 2, 2, 1]])
PYG_ASSERTS = {
    "recall": (trm.Recall(2), PYG_LISTS, PYG_LABELS, None, (2 / 3 + 1 / 2) / 2),
    "weighted recall": (
        trm.Recall(2, weighted=True),
        PYG_LISTS,
        PYG_LABELS,
        torch.tensor([4.0, 1.0, 2.0, 3.0, 0.5]),
        (5 / 7 + 3 / 3.5) / 2,
    ),
    "f1": (trm.F1(2), PYG_LISTS, PYG_LABELS, None, 0.65),
    "map": (trm.MAP(2, normalize="min"), PYG_LISTS, PYG_LABELS, None, 0.625),  # unlike PyG's, MAP(2) divides by R
    "ndcg": (trm.NDCG(2), PYG_LISTS, PYG_LABELS, None, 0.6934264),
    "weighted ndcg": (trm.NDCG(2), PYG_LISTS, PYG_LABELS, torch.tensor([1.0, 2.0, 0.1, 3.0, 0.5]), 0.7854486),
    "mrr": (
        trm.MRR(2),
        torch.tensor([[1, 0], [1, 2], [0, 2], [0, 1]]),
        torch.tensor([[0, 0, 2, 2, 3], [0, 1, 2, 1, 2]]),
        None,
        (1 + 1 / 2 + 0) / 3,
    ),
}


@pytest.mark.parametrize("name", PYG_ASSERTS)
def test_what_pyg_asserts(name):
    """Metrics give the values of PyG's tests in any order of labels; lists shorter than k are filled with misses."""
    metric, lists, labels, weights, expected = PYG_ASSERTS[name]
    collection = pyg.LinkPredCollection([metric])
    for order in (slice(None), torch.tensor([4, 2, 0, 3, 1])):
        batch = lists, labels[:, order], None if weights is None else weights[order]
        assert collection(*batch)[metric.label].item() == pytest.approx(expected, abs=1e-6)
    assert collection.compute()[metric.label].item() == pytest.approx(expected, abs=1e-6)
    filled = torch.cat([lists[:, :1], torch.full((len(lists), 1), -1)], 1)
    assert collection(lists[:, :1], labels, weights) == collection(filled, labels, weights)
    assert collection(lists[:, :0], labels, weights)[metric.label] == 0


@pytest.mark.fixed
@pytest.mark.parametrize("k", [1, 10, 100])
def test_precision_as_pyg_tests_it(k, generator):
    """Precision over batches of shuffled users is that of counting; unlike in PyG, repeated labels need an option."""
    row, column = torch.randint(100, (3000,), generator=generator), torch.randint(1000, (3000,), generator=generator)
    scores = torch.rand(100, 1000, generator=generator)
    scores[row, column] += 0.3
    lists = scores.topk(k).indices
    collection = pyg.LinkPredCollection(["Precision"], k=k, duplicate_labels="first")
    for users in torch.randperm(100, generator=generator).split(32):
        mine = torch.isin(row, users)
        place = torch.zeros(100, dtype=torch.int64).scatter(0, users, torch.arange(len(users)))
        collection.update(lists[users], (place[row[mine]], column[mine]))
    of_user = [set(column[row == user].tolist()) for user in range(100)]
    found = [len(liked & set(items)) / k for liked, items in zip(of_user, lists.tolist(), strict=True) if liked]
    assert collection.compute()[f"Precision@{k}"].item() == pytest.approx(sum(found) / len(found))
    collection.update(lists[:, : k - 1], torch.stack([row, column]))


def test_collection_as_pyg_tests_it(generator):
    """Every member gives the value that it gives alone with its own k places; the keys are ours, unlike in PyG."""
    row, column = torch.randint(10, (200,), generator=generator), torch.randint(50, (200,), generator=generator)
    scores = torch.rand(10, 50, generator=generator)
    scores[row, column] += 0.3
    lists, labels = scores.argsort(1), torch.stack([row, column])
    metrics = [trm.MAP(10, normalize="min"), trm.Precision(100), trm.Recall(50), trm.F1(20), trm.MRR(40), trm.NDCG(80)]
    together = pyg.LinkPredCollection(metrics, duplicate_labels="first")
    assert together.max_k == 100
    alone = {}
    for metric in metrics:
        single = pyg.LinkPredCollection([metric.clone()], duplicate_labels="first")
        alone |= single(lists[:, : metric.k], labels)
    assert together(lists, labels) == {key: alone[key] for key in together}
    assert set(together) == {"MAP-min@10", "Precision@100", "Recall@50", "F1@20", "MRR@40", "NDCG@80"}


def test_where_pyg_differs():
    """The differences that the docstring lists are those between PyG's value and ours."""
    lists, labels = torch.tensor([[3, 3, 5]]), torch.tensor([[0, 0, 0], [3, 7, 7]])
    recall = {"key_format": "LinkPred{name}@{k}", "duplicate_labels": "first"}
    assert LinkPredRecall(3)(lists, labels) == pytest.approx(2 / 3)  # two hits of three
    assert pyg.LinkPredCollection("Recall", 3, duplicates="first", **recall)(lists, labels) == {"LinkPredRecall@3": 0.5}
    weights = torch.tensor([2.0, -1.0])
    assert LinkPredNDCG(2, weighted=True)(lists[:, 1:], labels[:, :2], weights) == 1
    assert pyg.LinkPredCollection("NDCG", 2)(torch.tensor([[3, 7]]), labels[:, :2], weights)["NDCG@2"] < 1
    nothing = torch.empty(2, 0, dtype=torch.int64)
    theirs, ours = LinkPredPrecision(1), pyg.LinkPredCollection("Precision", 1)
    for each in (theirs, ours):
        each.update(lists[:, 1:], nothing)
    assert theirs.compute() == 0
    with pytest.warns(UserWarning, match="no row to average over"):
        assert ours.compute()["Precision@1"].isnan()


def by_row(lists, edges, weights, duplicates):
    """Return the same ranking, made from labels that are collected in a loop."""
    found = [{} for _ in lists]
    for row, item, weight in zip(*edges.tolist(), weights.tolist(), strict=True):
        found[row].setdefault(item, weight)
    width = max([1, *map(len, found)])
    ids = [list(row) + [-1] * (width - len(row)) for row in found]
    gains = [list(row.values()) + [0.0] * (width - len(row)) for row in found]
    return trm.Lists(lists, torch.tensor(ids), gains=torch.tensor(gains), complete=True, duplicates=duplicates)


@pytest.mark.parametrize("max_relevant", [None, 30])
def test_labels_in_any_order(max_relevant, generator):
    """Shuffled or repeated labels, rows without a label and repeated items give what a loop over the labels gives."""
    metrics = ["NDCG", "Recall", "MAP", "HR", trm.Recall(5, weighted=True, max_relevant=max_relevant)]
    for rows in (1, 4, 50):
        lists = torch.randint(-1, 12, (rows, 5), generator=generator)
        edges = torch.stack([torch.randint(n, (3 * rows,), generator=generator) for n in (rows, 12)])
        weights = torch.rand(3 * rows, generator=generator)
        once = {"duplicates": "first", "duplicate_labels": "first"}
        got = pyg.LinkPredCollection(metrics, k=[1, 5], max_relevant=max_relevant, **once)(lists, edges, weights)
        expected = trm.RecMetricCollection(metrics, k=[1, 5], max_relevant=max_relevant)(
            by_row(lists, edges, weights, "first")
        )
        assert numbers(got) == near(expected)


def test_link_pred_without_reading_values():
    """With max_relevant an update reads no value, as it runs on "meta", which has none."""
    lists, labels = (torch.empty(shape, dtype=torch.int64, device="meta") for shape in ((6, 9), (2, 20)))
    collection = pyg.LinkPredCollection(["NDCG", trm.Recall(5, weighted=True, max_relevant=4)], k=9, max_relevant=4)
    collection.to("meta").update(lists, labels, torch.empty(20, device="meta"))


LISTS, LABELS = torch.tensor([[4, 1], [2, 3]]), torch.tensor([[0, 0, 1], [4, 7, 2]])
WRONG_VALUES = {  # arguments, the error at once, and the error in compute
    "label twice": (
        {"edge_label_index": torch.tensor([[0, 1, 0], [4, 4, 4]])},
        "1 of 2 rows with an item listed twice in target: row 0 holds item 4 more than once",
        "1 row with an item listed twice in target",
    ),
    "row beyond the batch": (
        {"edge_label_index": torch.tensor([[0, 5], [4, 4]])},
        r"2 of 2 rows whose labels are no pairs .*: edge_label_index\[:, 1\] is \[5, 4\], in a batch of 2 rows",
        "2 rows whose labels are no pairs of a row of the batch and an item",
    ),
    "negative row": ({"edge_label_index": torch.tensor([[0, -1], [4, 4]])}, r"is \[-1, 4\]", "2 rows whose labels"),
    "negative item": (
        {"edge_label_index": torch.tensor([[0, 1], [4, -4]])},
        r"2 of 2 rows whose labels .*: edge_label_index\[:, 1\] is \[1, -4\]",
        "2 rows whose labels",
    ),
    "weight": (
        {"edge_label_weight": torch.tensor([1, float("nan"), 1])},
        r"1 of 2 rows with a gain that is NaN or infinite: row 0 is \[1\.0, nan\]",
        "1 row with a gain that is NaN or infinite",
    ),
    "list": (
        {"pred_index_mat": torch.tensor([[4, 1], [2, 2]])},
        r"1 of 2 rows with an item recommended twice: row 1 is \[2, 2\] \(duplicates='first'",
        "1 row with an item recommended twice",
    ),
    "list and label": (
        {"pred_index_mat": LISTS[:, :1].expand(2, 2), "edge_label_index": torch.tensor([[0, 0], [4, 4]])},
        "listed twice in target",
        "1 row with an item listed twice in target; 2 rows with an item recommended twice",
    ),
    "too many": (
        {},
        r"1 of 2 rows with more relevant items than max_relevant: batch row 0: 2 > 1",
        "1 row with more relevant items",
    ),
}


def wrong(name, **options):
    changed, *said = WRONG_VALUES[name]
    if name == "too many":
        options["max_relevant"] = 1
    collection = pyg.LinkPredCollection(["HR", "NDCG"], k=[1, 2], **options)
    return collection, {"pred_index_mat": LISTS, "edge_label_index": LABELS} | changed, said


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_wrong_values(name):
    """Wrong values raise at once and change nothing, or in `compute` if deferred; unchecked, a label counts once."""
    collection, batch, (at_once, _) = wrong(name)
    for call in (collection.update, collection):
        with pytest.raises(ValueError, match=at_once):
            call(**batch)
    evaluator = collection.evaluator
    assert not evaluator.update_called
    assert not any(getattr(evaluator, name).any() for name in evaluator._defaults)
    collection, batch, (_, in_compute) = wrong(name, validate_args="deferred")
    collection.update(**batch)
    collection.update(LISTS, LABELS[:, :1])
    with pytest.raises(ValueError, match=in_compute):
        collection.compute()
    collection, batch, _ = wrong(name, validate_args=False)
    collection.update(**batch)
    assert 0 <= collection.compute()["HR@2"] <= 1


def _raised(rank, world_size):
    """Make every mistake on the last process alone, and return the error that each process raises."""
    said = {}
    for name in WRONG_VALUES:
        collection, batch, _ = wrong(name, validate_args="deferred")
        collection.update(LISTS, LABELS[:, :1])
        if rank == world_size - 1:
            collection.update(**batch)
        try:
            said[name] = f"no error: {collection.compute()}"
        except ValueError as error:
            said[name] = str(error)
    return said


def test_wrong_values_raise_on_all_processes(processes):
    first, second = processes.run(_raised, 2)
    assert first == second
    assert not [name for name, said in first.items() if WRONG_VALUES[name][2] not in said]


def test_lists_that_are_shorter_than_the_cutoff():
    """A list narrower than the largest cut-off is a warning; -1 at its end says that there are no more items."""
    labels = torch.tensor([[0, 0], [3, 15]])
    collection = pyg.LinkPredCollection(["Recall@20"])
    with pytest.warns(UserWarning, match=r"holds 10 items per row, the largest cut-off is 20.* fill up with -1"):
        collection.update(torch.arange(10)[None], labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        collection.update(torch.nn.functional.pad(torch.arange(10)[None], (0, 10), value=-1), labels)
    assert collection.compute() == {"Recall@20": 0.5}


def test_repeats_count_once_if_asked():
    """With the option "first", a repeated item keeps its first place, and a repeated label its first weight."""
    lists, labels = torch.tensor([[4, 4, 1], [2, 3, 3]]), torch.tensor([[0, 0, 1, 1], [1, 1, 3, 5]])
    once = {"duplicates": "first", "duplicate_labels": "first"}
    collection = pyg.LinkPredCollection(["MRR", trm.Recall(3, weighted=True)], k=3, **once)
    got = numbers(collection.clone(prefix="val/")(lists, labels, torch.tensor([8.0, 1.0, 3.0, 1.0])))
    assert got == {"val/MRR@3": 0.5, "val/Recall-weighted@3": (1 + 3 / 4) / 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": "MRR", "k": None}, "MRR reads the whole ranking, pred_index_mat is the top of it"),
        ({"metrics": "AUROC"}, "AUROC reads the whole ranking"),
        ({"duplicates": "merge"}, "duplicates must be one of 'error', 'first', 'keep_place', got 'merge'"),
        ({"duplicate_labels": True}, "duplicate_labels must be one of 'error', 'first', got True"),
    ],
)
def test_link_pred_refuses_when_made(options, message):
    with pytest.raises(ValueError, match=message):
        pyg.LinkPredCollection(**({"metrics": "HR", "k": 5} | options))


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({}, ValueError, r"edge_label_weight is missing: Recall\(weighted=True\)"),
        ({"pred_index_mat": LISTS.float()}, TypeError, "pred_index_mat must hold int64, .* got a torch.float32 tensor"),
        ({"pred_index_mat": LISTS[0]}, ValueError, r"pred_index_mat must be \[B, K\], .* got \[2\]"),
        ({"edge_label_index": LABELS.T}, ValueError, r"edge_label_index must be .* \[3, 2\]; pass edge_label_index.T"),
        ({"edge_label_index": LABELS[0]}, ValueError, r"edge_label_index must be \[2, E\] or a pair .* got \[3\]"),
        ({"edge_label_index": tuple(LABELS.T)}, ValueError, r"got \[3, 2\]"),
        ({"edge_label_index": LABELS.tolist()}, TypeError, "edge_label_index must be a tensor .* got list"),
        (
            {"edge_label_index": trm.Interactions.from_edge_index(LABELS, 2, 9)},
            TypeError,
            "edge_label_index must be .* got Interactions",
        ),
        ({"edge_label_index": LABELS.bool()}, TypeError, "edge_label_index must hold int64"),
        ({"edge_label_index": LABELS.to("meta")}, ValueError, "edge_label_index is on meta"),
        ({"pred_index_mat": LISTS[:0]}, ValueError, "edge_label_index holds 3 labels, pred_index_mat no row"),
        ({"edge_label_weight": torch.ones(2)}, ValueError, r"edge_label_weight must be .* \[3\], got .* \[2\]"),
        ({"edge_label_weight": [1, 2, 3]}, ValueError, "edge_label_weight must be a tensor .* got list"),
        ({"edge_label_weight": torch.ones(3, device="meta")}, ValueError, "edge_label_weight is on meta"),
    ],
)
def test_link_pred_speaks_of_its_arguments(changed, error, message):
    collection = pyg.LinkPredCollection([trm.Recall(1, weighted=True), "HR@1"], validate_args=True)
    if changed and "edge_label_weight" not in changed:
        changed = changed | {"edge_label_weight": torch.ones(3)}
    with pytest.raises(error, match=message):
        collection.update(**({"pred_index_mat": LISTS, "edge_label_index": LABELS} | changed))
    assert not collection.evaluator.update_called


@pytest.mark.parametrize(
    ("theirs", "cure"),
    [
        (LinkPredRecall(20), r"use Recall\(20\)"),
        (LinkPredRecall(5, weighted=True), r"use Recall\(5, weighted=True\)"),
        (LinkPredHitRatio(20), r"use HitRate\(20\)"),
        (LinkPredMAP(20), r"use MAP\(20, normalize='min'\)"),
        (LinkPredCoverage(20, num_dst_nodes=9), r"use Coverage\(20, catalogue=trm.Catalogue\(\.\.\.\)\)"),
        (
            LinkPredDiversity(20, category=torch.zeros(9)),
            r"use IntraListDiversity\(20, catalogue=trm.Catalogue\(\.\.\.\)\)",
        ),
        (type("LinkPredOther", (LinkPredRecall,), {})(20), "put others beside it"),
    ],
)
def test_metrics_of_pyg_are_refused_with_ours(theirs, cure, graph):
    """Metrics of PyG take lists and labels, not the Ranking that members share, and are refused with a cure."""
    train, test, model = graph
    with pytest.raises(TypeError, match=f"{cure}$|{cure} in a torchmetrics"):
        pyg.evaluate(theirs, model, train.to_edge_index(USERS), target=test)


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
        ({"exclude": "train"}, ValueError, "exclude must be one of 'message_passing', got 'train'"),
        (
            {"batchsize": 5},
            ValueError,
            "pyg.evaluate has no option 'batchsize'; did you mean 'batch_size'[?] There are",
        ),
        ({"edge_types": ("a", "b")}, ValueError, "did you mean 'edge_type'[?]"),
        ({"gain": "exponential"}, ValueError, "'gain': an option of some metrics goes to an instance, trm.NDCG"),
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
