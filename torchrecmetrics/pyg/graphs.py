"""`pyg.evaluate`: evaluate a LightGCN-style model by its `edge_index`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast, get_args

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.core.checks import check_choice, check_ids, describe, plain, warn_caller
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.evaluation.evaluate import EvaluateOptions
from torchrecmetrics.evaluation.evaluate import evaluate as evaluate_embeddings
from torchrecmetrics.evaluation.scorers import Embeddings, EmbeddingScorer, evaluating
from torchrecmetrics.evaluation.test_set import (
    Histories,
    Matrix,
    TargetDevice,
    check_target,
    exclude_entries,
    from_edges,
)
from torchrecmetrics.inputs.sessions import Sessions
from torchrecmetrics.metrics.description import METRIC_OPTIONS, MetricOptions
from torchrecmetrics.metrics.names import Metrics, check_options
from torchrecmetrics.results.evaluation import Evaluation

if TYPE_CHECKING:
    from typing_extensions import Unpack

Embed: TypeAlias = Callable[[nn.Module], Tensor | tuple[Tensor, Tensor] | Embeddings | dict[str, Tensor]]
"""A function of the model that returns users and items, one tensor of both, or embeddings by node type."""
EdgeType: TypeAlias = tuple[str, str, str] | tuple[str, str]
"""Type of edges: (user type, relation, item type), or (user type, item type)."""
GraphEdges: TypeAlias = Literal["message_passing"]
"""Name of the graph's own edges in `exclude`."""

_EDGES_AT_ONCE = 2**18
_ARGUMENTS = ("target", "exclude", "edge_weight", "embed", "edge_type", "edge_label_index", "edge_label", "num_users")


@torch.no_grad()
def evaluate(
    metrics: Metrics | RecMetricCollection,
    model: nn.Module,
    edge_index: Any,
    *,
    target: Interactions | Tensor | None = None,
    exclude: Histories | GraphEdges | Sequence[Interactions | Matrix | GraphEdges] | None = "message_passing",
    edge_weight: Tensor | None = None,
    embed: Embed | None = None,
    edge_type: EdgeType | None = None,
    edge_label_index: Tensor | None = None,
    edge_label: Tensor | None = None,
    num_users: int | None = None,
    **options: Unpack[EvaluateOptions],
) -> Evaluation:
    """Embed users and items once, on the graph the model was trained on, and rank the whole catalogue for every user.

    All arguments number the edges in the same way: users 0 .. U - 1 and items U .. U + I - 1, in either direction; or,
    in `HeteroData`, users in row 0 and items in row 1, both from 0. An edge that does not join a user and an item is an
    error.

    Args:
        metrics: as in `torchrecmetrics.evaluate`.
        model: a module with `get_embedding(edge_index[, edge_weight])` -> [users + items, d], such as
            `torch_geometric.nn.LightGCN`, or any module with `embed`. Its training mode is restored.
        edge_index: message-passing edges: [2, E] or `EdgeIndex`, a torch.sparse or torch_sparse adjacency, or
            `HeteroData`. LightGCN is trained with both directions. Self loops are ignored; other edges among users
            (a social graph) need `embed` and `exclude`.
        target: ground truth: edges [2, E], or `Interactions` [U, I], which number both sides from 0.
        exclude: items removed from a user's candidates: the "message_passing" edges (default), None = nothing, edges
            [2, E], as in `torchrecmetrics.evaluate`, or a tuple: ("message_passing", valid) in a test.
        edge_weight: passed on to `get_embedding`.
        embed: a function of only the model that returns (users [U, d], items [I, d]), `Embeddings` of both (with a
            bias, cosine similarity or allowed items), both in one [U + I, d], or for `HeteroData` {node type: tensor}.
        edge_type: (user type, relation, item type) of the edges in `HeteroData`, or (user type, item type) if only one
            type joins the two; not needed if there is one type only.
        edge_label_index: instead of `target`, labelled edges [2, E] as RandomLinkSplit makes them. Only the labelled
            edges of each user are ranked: positives among the sampled negatives.
        edge_label: number or bool [E], one per labelled edge: > 0 is a positive with this gain, 0 a negative.
        num_users: number of users among the embedded nodes. Not needed with `Interactions`, nor if `embed` returns
            users and items separately.
        options: as in `torchrecmetrics.evaluate` (`k`, `user_ids`, `batch_size`, `progress`, ...); with labelled edges
            `k` and the options of metrics.

    Warns:
        UserWarning: if most edges of the graph are neither in `target` nor in `exclude`, unless `exclude` is None.

    Raises:
        TypeError: for `Data` instead of its edges, or a model that cannot embed.
        ValueError: for edges that do not join a user and an item, sizes that do not fit, and if the number of users is
            unknown.

    Examples:
        >>> import torch
        >>> from torch_geometric.nn import LightGCN
        >>> from torchrecmetrics import pyg
        >>> train = torch.tensor([[0, 1, 2], [3, 4, 5]])  # three users, then three items
        >>> test = torch.tensor([[0], [4]])
        >>> model = LightGCN(num_nodes=6, embedding_dim=4, num_layers=1)
        >>> pyg.evaluate("Recall@2", model, train, target=test, num_users=3)["Recall@2"]
        tensor(1., dtype=torch.float64)
    """
    known = EvaluateOptions.__annotations__
    check_options("pyg.evaluate", options.keys() - known, [*_ARGUMENTS, *known])
    is_labelled = edge_label_index is not None
    if is_labelled == (target is not None) or is_labelled != (edge_label is not None):
        raise ValueError("pass target, or edge_label_index with edge_label; pass positives alone as target")
    entries: Sequence[Any] = exclude_entries(exclude)
    words = [entry for entry in entries if isinstance(entry, str)]
    for word in words:
        check_choice("exclude", word, get_args(GraphEdges))
    is_read = embed is None or (bool(words) and not is_labelled)
    edges = _graph_edges(edge_index, edge_type) if is_read else None
    users_of_target = target.num_users if isinstance(target, Interactions) else None
    users_wanted = users_of_target if num_users is None else num_users
    embeddings = _embed(model, edge_index, edge_weight, embed, edge_type, users_wanted)
    nodes = _Nodes.of(embeddings, isinstance(edge_index, HeteroData))
    if num_users not in (None, nodes.num_users):
        raise ValueError(
            f"embed returned {nodes.num_users} users, but num_users is {num_users}: are users and items swapped?"
        )
    if isinstance(target, Interactions):
        nodes.check_sizes(target)  # before the check of the numbering, whose message says less
    if edges is not None:
        nodes.pairs("edge_index", edges)
    if edge_label_index is not None and edge_label is not None:
        unused = [*sorted(options.keys() - {"k", *METRIC_OPTIONS}), *([] if isinstance(exclude, str) else ["exclude"])]
        if unused:
            raise ValueError(f"{unused[0]} needs target; labelled edges take only k and the options of metrics")
        pairs = nodes.pairs("edge_label_index", edge_label_index)
        return _evaluate_labelled(metrics, embeddings, pairs, edge_label, **options)
    truth: Any = nodes.interactions("target", target) if isinstance(target, Tensor) else target
    check_target(truth)
    exclude_by_edges: list[Any] = [
        nodes.interactions("exclude", excluded).with_ids(truth.user_ids, truth.item_ids)
        if isinstance(excluded, Tensor) and excluded.dtype != torch.bool
        else excluded
        for excluded in (edges if isinstance(entry, str) else entry for entry in entries)
    ]
    result = evaluate_embeddings(metrics, embeddings, target=truth, exclude=exclude_by_edges, **options)
    if entries and not words and embeddings.allowed is None:
        _warn_of_competing_edges(edge_index, edge_type, nodes, [truth, *exclude_by_edges])
    return result


def _warn_of_competing_edges(edge_index: Any, edge_type: EdgeType | None, nodes: _Nodes, known: Sequence[Any]) -> None:
    """Warn if most edges of the graph are not `known`: in the ground truth, which is first, or excluded."""
    try:
        graph = nodes.interactions("edge_index", _graph_edges(edge_index, edge_type))
    except (TypeError, ValueError):
        return  # with `embed`, the graph may have other nodes
    graph = competing = graph.with_ids(known[0].user_ids, known[0].item_ids)
    for pairs in known:
        competing = competing.without(from_edges("exclude", pairs, *nodes[:2]).to(graph.device))
    if 2 * len(competing) > len(graph):
        warn_caller(
            f"{len(competing)} of the graph's {len(graph)} edges are neither in target nor in exclude, so "
            'training items compete with test items: also exclude the graph, exclude=("message_passing", valid)'
        )


def message_passing_interactions(
    edge_index: Any, num_users: int, num_items: int, *, edge_type: EdgeType | None = None
) -> Interactions:
    """Return the edges of a graph between users and items as `Interactions`; arguments as in `evaluate`."""
    nodes = _Nodes(num_users, num_items, isinstance(edge_index, HeteroData))
    return nodes.interactions("edge_index", _graph_edges(edge_index, edge_type))


class _Nodes(NamedTuple):
    """Numbering of a graph's nodes: users first, then items; or both kinds from 0."""

    num_users: int
    num_items: int
    from_0: bool
    """True if items are numbered from 0 as the users are (`HeteroData`)."""

    @classmethod
    def of(cls, embeddings: Embeddings, from_0: bool) -> _Nodes:
        assert embeddings.users is not None
        return cls(len(embeddings.users), embeddings.num_items, from_0)

    def check_sizes(self, target: Interactions) -> None:
        """Refuse a ground truth of other sizes than the embeddings."""
        if (target.num_users, target.num_items) != (self.num_users, self.num_items):
            raise ValueError(
                f"target is {target.num_users} x {target.num_items}, the model embeds {self.num_users} users and "
                f"{self.num_items} items ({self.num_users + self.num_items} nodes); if it has ids, "
                "target.recode(user_ids=..., item_ids=...) numbers it by the ids of the nodes, in order"
            )

    def pairs(self, name: str, edges: Tensor) -> Tensor:
        """Return edges as users above items, both numbered from 0, int64 [2, E]."""
        edges = _checked(name, edges)
        users, items = edges
        if not self.from_0:  # an edge may lead back from the item to the user
            users, items = torch.minimum(users, items), torch.maximum(users, items) - self.num_users
        outside = (users < 0) | (users >= self.num_users) | (items < 0) | (items >= self.num_items)
        if outside.any():
            start, last = self.num_users, self.num_users + self.num_items - 1
            numbering = f"items are nodes {start} to {last}, as in Interactions.to_edge_index(item_offset={start})"
            if self.from_0:
                numbering = "users are in row 0 (edge_type leads from users to items), and both are numbered from 0"
            raise ValueError(
                f"{int(outside.sum())} edges of {name} do not join one of {self.num_users} users and one of "
                f"{self.num_items} items, such as {edges[:, outside][:, 0].tolist()}: {numbering}"
            )
        return torch.stack([users, items])

    def interactions(self, name: str, edges: Tensor) -> Interactions:
        """Return edges as `Interactions`."""
        return Interactions.from_edge_index(self.pairs(name, edges), self.num_users, self.num_items, item_offset=0)


def _evaluate_labelled(
    metrics: Metrics | RecMetricCollection,
    embeddings: Embeddings,
    pairs: Tensor,
    label: Tensor,
    k: int | Iterable[int] | None = None,
    **options: Any,
) -> Evaluation:
    """Rank the labelled edges of each user; `pairs` holds users in row 0 and items in row 1."""
    collection = RecMetricCollection.fresh(metrics, k, cast(MetricOptions, options))
    device, num_items = embeddings.device, embeddings.num_items
    users, items = pairs.to(device)
    if embeddings.allowed is not None:
        raise ValueError("allowed items need target; labelled edges are their users' only candidates")
    if len(label) and not (label <= 0).any():
        raise ValueError(
            "edge_label holds no 0: positives without negatives are always hits. To rank them among all items, pass "
            "target=edge_label_index"
        )
    codes, counts = torch.unique(users * num_items + items, return_counts=True)
    if len(codes) < len(users):
        user, item = divmod(int(codes[counts > 1][0]), num_items)
        raise ValueError(
            f"{int((counts > 1).sum())} edges are labelled twice, such as user {user}, item {item}: an item would be "
            "two candidates of its user"
        )
    scorer = EmbeddingScorer(embeddings, TargetDevice(device, False))
    chunks = zip(users.split(_EDGES_AT_ONCE), items[:, None].split(_EDGES_AT_ONCE), strict=True)
    scores = torch.cat([scorer.scores_of(*chunk)[:, 0] for chunk in chunks])
    collection.to(device).update(Sessions(scores, label.to(device), users))
    return collection.evaluation("eager")


def _embed(
    model: nn.Module,
    edge_index: Any,
    edge_weight: Tensor | None,
    embed: Embed | None,
    edge_type: EdgeType | None,
    num_users: int | None,
) -> Embeddings:
    """Return the embeddings of users and items."""
    if edge_weight is not None and embed is not None:
        raise ValueError("edge_weight is passed to get_embedding, but embed= takes only the model")
    is_hetero = isinstance(edge_index, HeteroData)
    embedded: Any
    with evaluating(model):
        if embed is not None:
            embedded = embed(model)
        elif is_hetero or not hasattr(model, "get_embedding"):
            fault = "HeteroData" if is_hetero else f"{type(model).__name__} has no get_embedding(edge_index)"
            raise TypeError(f"{fault}: pass embed=, a function of the model that returns embeddings")
        else:
            if edge_weight is not None and len(edge_weight) != edge_index.shape[1]:
                raise ValueError(f"edge_weight has {len(edge_weight)} values for {edge_index.shape[1]} edges")
            get_embedding: Any = model.get_embedding
            embedded = get_embedding(edge_index, *([] if edge_weight is None else [edge_weight]))
    if is_hetero and isinstance(embedded, Mapping):
        user_type, *_, item_type = _only_type(edge_index, edge_type)
        embedded = embedded[user_type], embedded[item_type]
    if isinstance(embedded, Tensor):
        if num_users is None or not 0 <= num_users <= len(embedded):
            raise ValueError(
                f"the model embeds {len(embedded)} nodes: pass num_users=, how many of them are users, got {num_users}"
            )
        embedded = embedded[:num_users], embedded[num_users:]
    if isinstance(embedded, (tuple, list)) and len(embedded) == 2:
        embedded = Embeddings(*embedded)
    if not isinstance(embedded, Embeddings) or embedded.users is None:
        what = "(users, items), Embeddings, one tensor of both or, for HeteroData, {node type: embeddings}"
        cure = ": pass the HeteroData as edge_index" if isinstance(embedded, Mapping) else ""
        raise TypeError(f"embed must return {what}, got {describe(embedded)}{cure}")
    return embedded


def _only_type(data: HeteroData, edge_type: EdgeType | None) -> tuple[str, str, str]:
    """Return the only edge type of `data` that fits `edge_type`."""
    types: list[tuple[str, str, str]] = data.edge_types
    fitting = [known for known in types if edge_type in (None, known, (known[0], known[2]))]
    if len(fitting) != 1:
        raise ValueError(
            "HeteroData needs edge_type, (user type, relation, item type) or, if only one relation fits, (user type, "
            f"item type), one of {types}, got {edge_type!r}"
        )
    return fitting[0]


def _graph_edges(edge_index: Any, edge_type: EdgeType | None) -> Tensor:
    """Return the edges of any adjacency that PyG takes, [2, E], without self loops."""
    if isinstance(edge_index, HeteroData):
        return _checked("edge_index", edge_index[_only_type(edge_index, edge_type)].edge_index)
    if isinstance(edge_index, Data):
        raise TypeError("edge_index must be edges, got Data: pass data.edge_index")
    edges: Tensor
    if hasattr(edge_index, "coo") and hasattr(edge_index, "sparse_sizes"):  # torch_sparse.SparseTensor
        edges = torch.stack(edge_index.coo()[:2])
    elif getattr(edge_index, "layout", torch.strided) != torch.strided:
        edges = edge_index.to_sparse_coo().coalesce().indices()
    else:
        edges = _checked("edge_index", edge_index)
    return edges[:, edges[0] != edges[1]]


def _checked(name: str, edges: Any) -> Tensor:
    """Return edges as int64 [2, E]."""
    check_ids(name, edges)
    if edges.dim() != 2 or len(edges) != 2:
        raise ValueError(f"{name} must be integers [2, E], got {list(edges.shape)}")
    ids: Tensor = plain(edges).long()
    return ids
