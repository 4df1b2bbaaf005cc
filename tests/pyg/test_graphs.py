"""Models are evaluated on PyG's graphs, in every kind of adjacency, with ground truth as edges or `Interactions`."""

import importlib
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
VALID = Interactions.from_dense((CELLS > 0.25) & (CELLS < 0.35))
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


FORTH = TRAIN.to_edge_index(USERS)


@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("edges", [FORTH, FORTH.flip(0), EDGES], ids=["forth", "back", "both"])
@pytest.mark.parametrize(
    "form",
    [
        lambda e: e,
        lambda e: torch.cat([e, e[:, :5]], 1)[:, torch.randperm(e.shape[1] + 5)],
        lambda e: EdgeIndex(e, sparse_size=(NODES, NODES)),
        adjacency,
        lambda e: adjacency(e).to_sparse_csr(),
        lambda e: adjacency(e).to_sparse_csc(),
        Transposed,
        lambda e: torch.cat([e, torch.arange(5).repeat(2, 1)], 1),
    ],
    ids=["tensor", "shuffled, repeated", "EdgeIndex", "coo", "csr", "csc", "SparseTensor", "self loops"],
)
def test_every_adjacency_gives_the_edges_in_any_direction(form, edges):
    graph = pyg.message_passing_interactions(form(edges), USERS, ITEMS)

    assert torch.equal(graph.to_edge_index(), TRAIN.to_edge_index())
    assert torch.equal(graph.keys, TRAIN.keys)


def test_edge_indexes_of_pyg_are_ground_truth_and_history():
    target, exclude = EdgeIndex(TEST.to_edge_index()), EdgeIndex(TRAIN.to_edge_index())
    assert trm.evaluate("NDCG@5", *split(MODEL), target=target, exclude=exclude) == expected("NDCG@5", k=None)


def test_lightgcn_embeds_once_in_eval_mode_and_gets_its_mode_back():
    model, modes = make_model().train(), []
    model.convs[0].register_forward_hook(lambda layer, *_: modes.append(layer.training))
    evaluate(["Recall", "NDCG"], model=model, k=[3, 5], batch_size=5)

    assert modes == [False]
    assert model.training


def test_edges_have_weights():
    weight = torch.rand(EDGES.shape[1])
    embeddings = MODEL.get_embedding(EDGES, weight).detach().split([USERS, ITEMS])

    assert evaluate(edge_weight=weight) == expected(embeddings=embeddings)


def test_lists_of_lightgcn_recommend_have_the_same_values():
    rows = torch.arange(USERS)
    with torch.no_grad():
        lists = MODEL.recommend(EDGES, src_index=rows, dst_index=torch.arange(USERS, NODES), k=ITEMS) - USERS
    collection = trm.RecMetricCollection(["Recall", "NDCG"], k=5)
    collection.update(trm.Lists(lists, TEST.select(rows).items, exclude=TRAIN.select(rows).items))

    assert evaluate(["Recall", "NDCG"]) == near(collection.compute())


RATES, BACK, LIKES = ("user", "rates", "movie"), ("movie", "rev_rates", "user"), ("user", "likes", "movie")
TOWERS = nn.ModuleDict({"user": nn.Embedding(USERS, 4), "movie": nn.Embedding(ITEMS, 4)})


def hetero(*edge_types):
    """Return a graph with the edges of train for each type; users are in row 0, or, if it leads back, items."""
    edges = TRAIN.to_edge_index()
    data = HeteroData({kind: {"edge_index": edges if kind[0] == "user" else edges.flip(0)} for kind in edge_types})
    data["user"].num_nodes, data["movie"].num_nodes = USERS, ITEMS
    return data


def both(towers):
    return towers["user"].weight, towers["movie"].weight


def of_types(towers):
    """Return embeddings by node type, as PyG's models do, which may have other types, too."""
    return {"genre": torch.ones(3, 4), "movie": towers["movie"].weight, "user": towers["user"].weight}


TARGET_EDGES = {"target": TEST.to_edge_index()}


@pytest.mark.parametrize(
    ("edge_types", "given"),
    [
        ([RATES], {"embed": both}),
        ([RATES], {"embed": both, "exclude": "message_passing"} | TARGET_EDGES),
        ([RATES], {"embed": both, "exclude": TRAIN.to_edge_index()} | TARGET_EDGES),
        ([RATES, BACK], {"embed": both, "edge_type": RATES}),
        ([RATES, BACK], {"embed": of_types, "edge_type": RATES}),
        ([RATES, BACK], {"embed": of_types, "edge_type": ("user", "movie")}),
    ],
)
def test_hetero_data_is_read_by_its_only_or_its_named_edge_type(edge_types, given):
    assert evaluate(model=TOWERS, edges=hetero(*edge_types), **given) == expected(embeddings=both(TOWERS))


@pytest.mark.parametrize(
    ("edge_type", "embed", "message"),
    [
        *(
            (edge_type, of_types, r"\(user type, item type\), one of .*'likes'.*, got ")
            for edge_type in (None, ("user", "movie"), ("user", "genre"), "rates", [*RATES])
        ),
        (("movie", "user"), of_types, "target is 12 x 20, the model embeds 20 users and 12 items"),
        (("movie", "user"), both, r"of edge_index do not join .* \(edge_type leads from users to items\)"),
    ],
)
def test_an_edge_type_that_is_none_or_several_or_leads_back_is_refused(edge_type, embed, message):
    with pytest.raises(ValueError, match=message):
        evaluate(model=TOWERS, edges=hetero(RATES, BACK, LIKES), embed=embed, edge_type=edge_type)


BOTH_WAYS = {"target": TEST.to_edge_index(USERS, undirected=True), "num_users": USERS}


@pytest.mark.parametrize("given", [{}, {"embed": split, "num_users": None}, {"exclude": EDGES.int()}])
def test_edges_numbered_as_the_graph_are_ground_truth_in_both_directions(given):
    assert evaluate(**BOTH_WAYS | given) == expected()


def test_edges_are_excluded_beside_masks_of_items():
    most, mask = TRAIN.take(torch.arange(len(TRAIN)) % 3 > 0), torch.arange(ITEMS) < 2
    result = evaluate(**BOTH_WAYS, overlap="miss", exclude=(most.to_edge_index(USERS), mask))

    assert result == expected(exclude=(most, mask), overlap="miss")


IDS = [f"u{n}" for n in range(USERS)], [f"i{n}" for n in range(ITEMS)]
NAMED_TEST, NAMED_TRAIN = TEST.with_ids(*IDS), TRAIN.with_ids(*IDS)


@pytest.mark.parametrize("exclude", ["message_passing", NAMED_TRAIN, EDGES])
def test_rows_of_a_target_with_ids_are_nodes(exclude):
    assert evaluate(target=NAMED_TEST, exclude=exclude) == expected()


OWN_EXCLUDE = {
    "edges": {"exclude": VALID.to_edge_index(USERS)},
    "interactions": {"exclude": VALID},
    "items of all users": {"exclude": (VALID, torch.arange(ITEMS) < 0)},
    "ids": {"exclude": VALID.with_ids(*IDS), "target": NAMED_TEST},
    "SparseTensor": {"exclude": VALID, "edges": Transposed(EDGES), "embed": split},
    "embed": {"exclude": VALID, "embed": split},
    "HeteroData": {"exclude": VALID.to_edge_index(), "edges": hetero(RATES), "embed": split},
}


@pytest.mark.parametrize("given", OWN_EXCLUDE.values(), ids=OWN_EXCLUDE)
def test_edges_that_compete_are_warned_of_at_the_callers_line(given):
    message = rf"{len(TRAIN)} of the graph's {len(TRAIN)} edges are neither in target nor in exclude, so .*, exclude="
    with pytest.warns(UserWarning, match=message + r'\("message_passing", valid\)$') as caught:
        result = evaluate(**given)

    assert result == expected(exclude=VALID)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("form", ["edges", "interactions", "ids", "SparseTensor", "HeteroData"])
def test_the_exclude_that_the_warning_names_leaves_out_the_edges_of_the_graph(form):
    given = OWN_EXCLUDE[form]
    assert evaluate(**given | {"exclude": ("message_passing", given["exclude"])}) == expected(exclude=(TRAIN, VALID))


MOST = TRAIN.take(torch.arange(len(TRAIN)) % 3 > 0)
ALLOWED = trm.Embeddings(*split(MODEL), allowed=Interactions.from_dense(CELLS > 0.5))


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ({"exclude": (VALID, MOST)}, {"exclude": (VALID, MOST)}),
        ({"exclude": VALID, "target": TRAIN}, {"exclude": VALID, "target": TRAIN}),
        ({"exclude": None}, {"exclude": None}),
        ({"exclude": ()}, {"exclude": None}),
        ({"exclude": VALID, "embed": lambda model: ALLOWED}, {"exclude": VALID, "embeddings": (ALLOWED,)}),
    ],
)
def test_edges_that_may_compete_are_not_warned_of(given, same):
    assert evaluate(**given) == expected(**same)


SOME = TEST.take((TEST.users != 4) & (TEST.items != 7))
OCCURRING = {"user_ids": SOME.users.unique(), "item_ids": SOME.items.unique()}
READ = Interactions.from_columns(SOME.users, SOME.items, **OCCURRING)  # fewer users and items than the model has


def test_ids_that_occur_alone_are_refused_with_their_cure():
    with pytest.raises(ValueError, match=r"; if it has ids, target.recode\(user_ids=..., item_ids=...\) numbers it"):
        evaluate(target=READ, num_users=USERS)


def test_ids_that_are_recoded_are_nodes():
    assert evaluate(target=READ.recode(user_ids=range(USERS), item_ids=range(ITEMS))) == expected(target=SOME)


def of_nodes(*edge):
    return {"target": torch.tensor(edge)[:, None], "num_users": USERS}


SWAPPED = torch.ones(ITEMS, 4), torch.ones(USERS, 4)
NUMBERED = "do not join one of 12 users and one of 20 items, such as"
BAD = [
    (of_nodes(0, 2), ValueError, rf"1 edges of target {NUMBERED} \[0, 2\]: items are nodes 12 to 31, as in Inter"),
    (of_nodes(-1, 13), ValueError, rf"1 edges of target {NUMBERED} \[-1, 13\]"),
    ({"exclude": torch.tensor([[0], [0]])}, ValueError, "1 edges of exclude do not join"),
    ({"target": torch.tensor([0, 13]), "num_users": USERS}, ValueError, r"target must be integers \[2, E\], got \[2\]"),
    ({"target": TEST_EDGES}, ValueError, "embeds 32 nodes: pass num_users=, how many of them are users, got None"),
    (BOTH_WAYS | {"embed": lambda model: SWAPPED}, ValueError, r"returned 20 users, but num_users is 12: .* swapped\?"),
    ({"exclude": torch.ones(20, dtype=torch.uint8)}, TypeError, "exclude must hold int64"),
    ({"exclude": NAMED_TRAIN}, ValueError, r"target.with_ids\(user_ids=exclude.user_ids\)"),
    ({"target": Interactions.from_dense(torch.eye(32))}, ValueError, r"target is 32 x 32, the model .*\(32 nodes\)"),
    ({"model": LightGCN(40, 4, 1)}, ValueError, r"target is 12 x 20, .* 12 users and 28 items \(40 nodes\); if"),
    # the model would silently propagate over other nodes
    ({"edges": TRAIN.to_edge_index()}, ValueError, "edges of edge_index do not join .* items are nodes 12 to 31"),
    ({"edges": "edges"}, TypeError, "edge_index must be a tensor, got str"),
    ({"edges": Data(edge_index=EDGES, num_nodes=NODES)}, TypeError, r"got Data: pass data\.edge_index"),
    ({"edges": hetero(RATES)}, TypeError, "HeteroData: pass embed="),
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
def test_bad_input_is_refused(given, error, message):
    with pytest.raises(error, match=message):
        evaluate(**given)


def test_a_graph_that_is_not_read_may_be_numbered_otherwise():
    """With `embed` and `exclude` of one's own the edges are not read, such as those of a social graph."""
    result = evaluate(edges=TRAIN.to_edge_index(), exclude=TRAIN, embed=lambda model: model.embedding.weight)
    assert result == expected(embeddings=MODEL.embedding.weight.detach().split([USERS, ITEMS]))


def test_without_pyg_the_error_names_the_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, "torchrecmetrics.pyg")
    monkeypatch.setitem(sys.modules, "torch_geometric", None)

    with pytest.raises(ImportError, match=r"torchrecmetrics.pyg needs PyG: pip install 'torchrecmetrics\[pyg\]'"):
        importlib.import_module("torchrecmetrics.pyg")


# each user has six labelled edges, three positives and then three negatives
ITEM_OF_EDGE = torch.rand(USERS, ITEMS, generator=torch.Generator().manual_seed(1)).argsort(1)[:, :6].flatten()
USER_OF_EDGE = torch.arange(USERS).repeat_interleave(6)
LABELLED = torch.stack([USER_OF_EDGE, ITEM_OF_EDGE + USERS])
LABELS = (torch.arange(6) < 3).repeat(USERS).float()


def rank_labelled(**changed):
    given = {"edge_label_index": LABELLED, "edge_label": LABELS, "num_users": USERS} | changed
    return pyg.evaluate("MRR", MODEL, EDGES, **given)


def loops(scores):
    """Return the MRR of labelled edges with these scores."""
    total = 0.0
    for user in range(USERS):
        order = sorted(range(6 * user, 6 * user + 6), key=lambda edge: -scores[edge].item())
        total += 1 / min(rank for rank, edge in enumerate(order, 1) if LABELS[edge] > 0)
    return total / USERS


@pytest.mark.parametrize("index", [LABELLED, LABELLED.flip(0)], ids=["from users", "from items"])
@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_labelled_edges_of_each_user_are_ranked_by_similarity_plus_bias(similarity, index):
    (users, items), bias = split(MODEL), torch.rand(ITEMS)
    lengths = users.norm(dim=1)[USER_OF_EDGE] * items.norm(dim=1)[ITEM_OF_EDGE] if similarity == "cosine" else 1
    scores = (users[USER_OF_EDGE] * items[ITEM_OF_EDGE]).sum(1) / lengths + bias[ITEM_OF_EDGE]
    embeddings = trm.Embeddings(users, items, bias=bias, similarity=similarity)
    result = rank_labelled(edge_label_index=index, embed=lambda model: embeddings)

    assert result["MRR"].item() == pytest.approx(loops(scores))
    assert result.num_users == USERS


def test_labelled_edges_are_ranked_by_the_embeddings_of_a_model():
    assert rank_labelled()["MRR"] == rank_labelled(embed=split)["MRR"]


def test_labels_of_random_link_split_are_evaluated():
    """It numbers both sides from 0; positives are those that score above 1.5."""
    torch.manual_seed(0)
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = 40, 30
    users, items = torch.randn(40, 4), torch.randn(30, 4)
    data["user", "likes", "item"].edge_index = (users @ items.T > 1.5).nonzero().T
    *_, test = RandomLinkSplit(num_val=0, num_test=0.5, edge_types=("user", "likes", "item"))(data)
    labels = {key: test["user", "likes", "item"][key] for key in ("edge_label_index", "edge_label")}

    assert pyg.evaluate("AUROC", torch.nn.Module(), test, embed=lambda model: (users, items), **labels)["AUROC"] == 1


# the item of an edge that is labelled twice would be two candidates
TWICE = {"edge_label_index": torch.cat([LABELLED, LABELLED[:, :1].flip(0)], 1), "edge_label": torch.arange(73) % 2}
POSITIVE = {"edge_label_index": LABELLED[:, LABELS > 0], "edge_label": LABELS[LABELS > 0]}
BAD_LABELS = [
    ({"edge_label": None}, "pass target, or edge_label_index with edge_label; pass positives alone as target"),
    ({"edge_label": torch.arange(3)}, "scores, labels and indexes must be tensors of one shape"),
    ({"num_users": 8}, "edges of edge_index do not join one of 8 users and one of 24 items"),
    ({"edge_label_index": torch.tensor([[0] * 72, [1] * 72])}, "72 edges of edge_label_index do not join"),
    *(({"exclude": exclude}, "exclude needs target") for exclude in (None, ("message_passing", TRAIN))),
    ({"user_ids": [1]}, "user_ids needs target; labelled edges take only k and the options of metrics"),
    ({"embed": lambda model: ALLOWED}, "allowed items need target"),
    (TWICE, f"1 edges are labelled twice, such as user 0, item {ITEM_OF_EDGE[0]}: "),
    (POSITIVE, "edge_label holds no 0: .* target=edge_label_index"),  # each would be a hit among relevant items
]


@pytest.mark.parametrize(("changed", "message"), BAD_LABELS)
def test_bad_labels_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        rank_labelled(**changed)
