"""`pyg.evaluate`: evaluate a LightGCN-style model by its `edge_index`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.core.checks import describe, nearest, plain
from torchrecmetrics.core.signature import MetricOptions
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.evaluation.arguments import check_target
from torchrecmetrics.evaluation.history import Histories
from torchrecmetrics.evaluation.models import EvaluateOptions
from torchrecmetrics.evaluation.models import evaluate as evaluate_embeddings
from torchrecmetrics.evaluation.result import Evaluation
from torchrecmetrics.evaluation.scoring import evaluating
from torchrecmetrics.inputs.sessions import Sessions
from torchrecmetrics.names import Metrics

if TYPE_CHECKING:
    from typing_extensions import Unpack

Embed: TypeAlias = Callable[[nn.Module], Tensor | tuple[Tensor, Tensor] | dict[str, Tensor]]
"""A function of the model that returns (users, items), one tensor of both, or embeddings by node type."""
EdgeType: TypeAlias = tuple[str, str, str] | tuple[str, str]
"""Type of edges: (user type, relation, item type), or (user type, item type)."""

_EDGES_AT_ONCE = 2**18

_WHOLE = (
    "; a Log has only those that occur, unless user_ids= and item_ids= list all: Log.from_frame(..., "
    "user_ids=range(num_users), item_ids=range(num_items))"
)


@torch.no_grad()
def evaluate(
    metrics: Metrics | RecMetricCollection,
    model: nn.Module,
    edge_index: Any,
    *,
    target: Interactions | None = None,
    exclude: Histories | Literal["message_passing"] | None = "message_passing",
    edge_weight: Tensor | None = None,
    embed: Embed | None = None,
    edge_type: EdgeType | None = None,
    edge_label_index: Tensor | None = None,
    edge_label: Tensor | None = None,
    num_users: int | None = None,
    **options: Unpack[EvaluateOptions],
) -> Evaluation:
    """Embed users and items once, on the graph the model was trained on, and rank the whole catalogue for every user.

    With `edge_label_index` and `edge_label` in place of `target`, as RandomLinkSplit makes them, only the labelled
    edges of each user are ranked: positives among the negatives that were sampled.

    Args:
        metrics: as in `torchrecmetrics.evaluate`.
        model: a module with `get_embedding(edge_index[, edge_weight])` -> [users + items, d], such as
            `torch_geometric.nn.LightGCN`, or any module with `embed`. Its training mode is restored.
        edge_index: message-passing edges: [2, E] or `EdgeIndex`, a torch.sparse or torch_sparse adjacency (transposed,
            as PyG keeps it), users numbered 0 .. U - 1 and items U .. U + I - 1; or `HeteroData` with `edge_type`, both
            sides numbered from 0. LightGCN is trained with both directions; one alone is used as given. Edges that join
            two users or two items are refused, unless `embed` makes the embeddings and `exclude` is given.
        target: ground truth [U, I], such as `Interactions.from_edge_index(edges, U, I, item_offset=U)`.
        exclude: items removed from a user's candidates: the "message_passing" edges (default), None = nothing, or as in
            `torchrecmetrics.evaluate`.
        edge_weight: passed on to `get_embedding`.
        embed: a function of the model (alone) that returns (users [U, d], items [I, d]), or both in one [U + I, d], or
            for `HeteroData` {node type: embeddings}.
        edge_type: (user type, relation, item type) of the edges in `HeteroData`, or (user type, item type) if only one
            type joins the two; not needed if there is one type only.
        edge_label_index: integers [2, E], labelled edges from users to items, or mirrored, numbered as `edge_index` is.
        edge_label: number or bool [E] beside them: > 0 is a positive, and the value is its gain; 0 a negative.
        num_users: beside `edge_label_index`, how many of the embedded nodes are users; not needed where `embed` returns
            two tensors.
        options: as in `torchrecmetrics.evaluate` (`k`, `user_ids`, `batch_size`, `item_bias`, `progress`, ...).

    Examples:
        >>> import torch
        >>> from torch_geometric.nn import LightGCN
        >>> from torchrecmetrics import Interactions, pyg
        >>> edges = torch.tensor([[0, 1, 2], [3, 4, 5]])  # three users, then three items
        >>> model = LightGCN(num_nodes=6, embedding_dim=4, num_layers=1)
        >>> test = Interactions.from_edge_index(torch.tensor([[0], [4]]), 3, 3, item_offset=3)
        >>> pyg.evaluate("Recall@2", model, edges, target=test)["Recall@2"]
        tensor(1., dtype=torch.float64)
    """
    _check_options(options)
    labels = _Labels.read(target, edge_label_index, edge_label, num_users)
    if labels is not None:
        if exclude != "message_passing":
            raise ValueError("exclude is for target; of labelled edges, those given are ranked")
        sizes = None if num_users is None else (num_users, None)
        users, items = _embed(model, edge_index, sizes, edge_weight, embed, edge_type)
        return labels.evaluate(metrics, users, items, isinstance(edge_index, HeteroData), **options)
    assert target is not None
    if isinstance(exclude, str) and exclude != "message_passing":
        raise ValueError(f"exclude must be 'message_passing', None or as evaluate takes it, got {exclude!r}")
    shape = target.num_users, target.num_items
    needed = embed is None or isinstance(exclude, str)
    edges = _Nodes.read(edge_index, *shape, edge_type) if needed else None
    users, items = _embed(model, edge_index, shape, edge_weight, embed, edge_type)
    if edges is not None:
        otherwise = "pass the history as exclude= where embed= reads them otherwise" if embed is not None else ""
        edges.check_sides(otherwise)  # after the check of sizes, whose message says more
    if isinstance(exclude, str):
        assert edges is not None
        exclude = edges.interactions().with_ids(target.user_ids, target.item_ids)  # rows of target are node numbers
    return evaluate_embeddings(metrics, users, items, target=target, exclude=exclude, **options)


def _embed(
    model: nn.Module,
    edge_index: Any,
    shape: tuple[int, int | None] | None,
    edge_weight: Tensor | None,
    embed: Embed | None,
    edge_type: EdgeType | None,
) -> tuple[Tensor, Tensor]:
    """Return the embeddings of users [U, d] and of items [I, d]; `shape` is (U, I) as far as known."""
    if edge_weight is not None and embed is not None:
        raise ValueError("edge_weight is for get_embedding; embed= is a function of the model alone")
    _check_embed(embed, model)
    if embed is None:
        _check_data(edge_index)
    with evaluating(model):
        if embed is not None:
            embedded = embed(model)
        elif not hasattr(model, "get_embedding"):
            raise TypeError(f"{type(model).__name__} has no get_embedding(edge_index): pass embed=")
        elif isinstance(edge_index, HeteroData):
            raise TypeError(
                "HeteroData needs embed=, a function of the model: (users, items) or {node type: embeddings} as result"
            )
        else:
            get_embedding: Any = model.get_embedding
            embedded = get_embedding(edge_index, *([] if edge_weight is None else [edge_weight]))
    if isinstance(embedded, Tensor):
        if shape is None:
            raise ValueError(f"the model embeds {len(embedded)} nodes: say how many of them are users, num_users=")
        num_users, num_items = shape[0], len(embedded) - shape[0] if shape[1] is None else shape[1]
        if len(embedded) != num_users + num_items or num_items < 0:
            missing = len(embedded) > num_users + num_items
            raise ValueError(
                f"target is {num_users} x {num_items}, the model embeds {len(embedded)} nodes: num_users + num_items "
                f"must be {len(embedded)}{_WHOLE if missing else ''}"
            )
        embedded = embedded[:num_users], embedded[num_users:]
    if isinstance(embedded, Mapping) and isinstance(edge_index, HeteroData):
        user_type, *_, item_type = _only_type(edge_index, edge_type)
        if not {user_type, item_type} <= embedded.keys():
            raise ValueError(f"embed returned {list(embedded)}, the edges lead from {user_type!r} to {item_type!r}")
        embedded = embedded[user_type], embedded[item_type]
    if not isinstance(embedded, (tuple, list)) or len(embedded) != 2:
        what = "(users, items), one tensor of both or, for HeteroData, {node type: embeddings}"
        raise TypeError(f"embed must return {what}, got {describe(embedded)}")
    return embedded[0], embedded[1]


class _Labels(NamedTuple):
    """The labelled edges that RandomLinkSplit makes, in place of a target."""

    edges: Tensor
    """Integers [2, E]: the user and the item of each edge, in either order."""
    label: Tensor
    """[E]: > 0 = a positive, the value is its gain; 0 = a negative."""

    @classmethod
    def read(
        cls,
        target: Interactions | None,
        edge_label_index: Tensor | None,
        edge_label: Tensor | None,
        num_users: int | None,
    ) -> _Labels | None:
        """Return the labelled edges, checked; None if `target` is given instead."""
        if edge_label_index is None:
            if edge_label is not None or num_users is not None:
                raise ValueError("edge_label and num_users are given beside edge_label_index")
            check_target(target)
            return None
        if target is not None:
            raise ValueError("give target, or edge_label_index with edge_label, not both")
        if edge_label is None:
            raise ValueError(
                "edge_label_index holds negatives, too: pass edge_label= beside it; of positives alone, target="
                "Interactions.from_edge_index(edges, num_users, num_items, item_offset=num_users)"
            )
        edges = _edges(edge_label_index)
        if not isinstance(edge_label, Tensor) or edge_label.shape != edges.shape[1:]:
            raise ValueError(
                f"edge_label must be a tensor [{edges.shape[1]}], one per edge, got {describe(edge_label)}"
            )
        if len(edge_label) and not (edge_label <= 0).any():
            raise ValueError(
                "edge_label holds no 0: positives without negatives are always hits. To rank positives among all "
                "items, target=Interactions.from_edge_index(edges, num_users, num_items, item_offset=num_users)"
            )
        return cls(edges, edge_label)

    def evaluate(
        self,
        metrics: Metrics | RecMetricCollection,
        users: Tensor,
        items: Tensor,
        from_0: bool,
        k: int | Iterable[int] | None = None,
        **options: Any,
    ) -> Evaluation:
        """Rank the labelled edges of each user by the dot products of their embeddings."""
        if wrong := sorted(options.keys() & (EvaluateOptions.__annotations__.keys() - MetricOptions.__annotations__)):
            raise ValueError(f"{wrong[0]} is for target; labelled edges take k and the options of metrics")
        collection = RecMetricCollection.fresh(metrics, k, cast(MetricOptions, options))
        num_users, num_items = len(users), len(items)
        user, item = self.edges
        if not from_0:  # nodes are numbered users first; an edge may be mirrored
            user, item = torch.minimum(user, item), torch.maximum(user, item) - num_users
        outside = (user < 0) | (user >= num_users) | (item < 0) | (item >= num_items)
        if outside.any():
            raise ValueError(
                f"{int(outside.sum())} labelled edges do not lead from one of {num_users} users to one of {num_items} "
                f"items, such as {self.edges[:, outside][:, 0].tolist()}: sample negatives between the two (HeteroData)"
            )
        pairs, number = torch.unique(user * num_items + item, return_counts=True)
        if len(pairs) < len(user):
            twice = int(pairs[number > 1][0])
            raise ValueError(
                f"{int((number > 1).sum())} edges are labelled twice, or in both directions, such as user "
                f"{twice // num_items}, item {twice % num_items}: an item would be two candidates of its user. Keep "
                "one label of each"
            )
        scores = torch.cat(
            [
                (users[u] * items[i]).sum(1)
                for u, i in zip(user.split(_EDGES_AT_ONCE), item.split(_EDGES_AT_ONCE), strict=True)
            ]
        )
        device = scores.device
        collection.to(device).update(Sessions(scores, self.label.to(device), user.to(device)))
        return Evaluation(collection, "eager")


def message_passing_interactions(
    edge_index: Any, num_users: int, num_items: int, *, edge_type: EdgeType | None = None
) -> Interactions:
    """Return the user -> item edges of a graph as `Interactions`; mirrored edges and self loops are ignored.

    Arguments as in `evaluate`.

    Raises:
        ValueError: for edges among users or among items (the numbering is not users first, items after), or if there
            are edges but none from a user to an item.
    """
    edges = _Nodes.read(edge_index, num_users, num_items, edge_type)
    edges.check_sides()
    return edges.interactions()


class _Nodes(NamedTuple):
    """The edges of a bipartite graph, whose nodes are numbered users first, then items, or both kinds from 0."""

    edges: Tensor
    """Int64 [2, E]: sources in row 0, targets in row 1."""
    num_users: int
    num_items: int
    from_0: bool
    """True if items, in row 1, are numbered from 0 as the users in row 0 are (`HeteroData`)."""

    @classmethod
    def read(cls, edge_index: Any, num_users: int, num_items: int, edge_type: EdgeType | None) -> _Nodes:
        """Return the edges of any adjacency that PyG takes; refuse nodes out of range, and an `edge_type` to users."""
        if isinstance(edge_index, HeteroData):
            chosen = _only_type(edge_index, edge_type)
            edges = edge_index[chosen].edge_index
            first, second = (int(side.max()) + 1 if len(side) else 0 for side in edges)
            fits, turned = first <= num_users and second <= num_items, first <= num_items and second <= num_users
            if turned and not fits:
                raise ValueError(
                    f"edges {chosen} join {first} x {second} nodes, target is {num_users} x {num_items}: "
                    f"edge_type leads from users to items, such as {(chosen[2], chosen[0])}"
                )
            return cls(edges, num_users, num_items, True)
        if edge_type is not None:
            raise ValueError("edge_type is for HeteroData")
        edges = _edges(edge_index)
        nodes = num_users + num_items
        if edges.shape[1] and (int(edges.min()) < 0 or int(edges.max()) >= nodes):
            raise ValueError(
                f"edges hold nodes {int(edges.min())}..{int(edges.max())}, expected 0..{nodes - 1}: {num_users} users, "
                f"then {num_items} items{_WHOLE}"
            )
        return cls(edges, num_users, num_items, False)

    def check_sides(self, otherwise: str = "") -> None:
        """Refuse edges that join two users or two items, which show that nodes are numbered in another way."""
        if self.from_0:
            return
        within = self._within(self.num_users)
        if not within.any():
            return
        example, u, i = self.edges[:, within][:, 0].tolist(), self.num_users, self.num_items
        if u != i and not self._within(i).any():
            cure = f"the graph has {i} users, then {u} items, so target must be {i} x {u}, not {u} x {i}"
        else:
            cure = f"items must be numbered from {u} on, train.to_edge_index(item_offset={u}, undirected=True)"
        more = f" ({otherwise})" if otherwise else ""
        raise ValueError(f"{int(within.sum())} edges join two users or two items, such as {example}: {cure}{more}")

    def _within(self, num_users: int) -> Tensor:
        """Return which edges join nodes of one kind if the first `num_users` are users, bool [E]; no self loops."""
        from_user, to_user = self.edges < num_users
        within: Tensor = (from_user == to_user) & (self.edges[0] != self.edges[1])
        return within

    def interactions(self) -> Interactions:
        """Return the edges from users to items as `Interactions`."""
        if self.from_0:
            return Interactions.from_edge_index(self.edges, self.num_users, self.num_items)
        chosen = self.edges[:, (self.edges[0] < self.num_users) & (self.edges[1] >= self.num_users)]
        if self.edges.shape[1] and not chosen.shape[1]:
            raise ValueError("no edge leads from a user to an item; the mirrored direction alone is not used")
        return Interactions.from_edge_index(chosen, self.num_users, self.num_items, item_offset=self.num_users)


def _check_options(options: Mapping[str, Any]) -> None:
    """Refuse options that `evaluate` does not take, and name the nearest one."""
    known = ["edge_weight", "embed", "edge_type", "target", "exclude", "edge_label_index", "edge_label", "num_users"]
    known += EvaluateOptions.__annotations__
    for name in options:
        if name not in known:
            raise TypeError(
                f"pyg.evaluate has no argument {name!r}{nearest(name, known)}; options of one metric go to its "
                "instance, such as NDCG(10, gain='exponential')"
            )


def _check_data(edge_index: Any) -> None:
    """Refuse PyG's `Data`, which holds more than edges."""
    if isinstance(edge_index, Data):
        raise TypeError(f"edge_index must be edges, got {type(edge_index).__name__}: pass data.edge_index")


def _check_embed(embed: Any, model: nn.Module) -> None:
    """Raise unless `embed` is None or can be called with the model alone."""
    what = "embed must be a function of the model alone; a graph stands within, lambda model: model(data)"
    if embed is not None and not callable(embed):
        raise TypeError(f"{what}, got {describe(embed)}")
    try:
        signature = None if embed is None else inspect.signature(embed)
    except ValueError:  # functions written in C may have no signature
        return
    try:
        if signature is not None:
            signature.bind(model)
    except TypeError:
        raise TypeError(f"{what}, got one of {signature}") from None


def _only_type(data: HeteroData, edge_type: EdgeType | None) -> tuple[str, str, str]:
    """Return the only edge type of `data` that fits `edge_type`."""
    types: list[tuple[str, str, str]] = data.edge_types
    fitting = [known for known in types if edge_type in (None, known, (known[0], known[2]))]
    if len(fitting) != 1:
        turned = [known for known in types if edge_type in (known[::-1], (known[2], known[0]))]
        hint = f"; did you mean {turned[0]}?" if turned and not fitting else ""
        raise ValueError(
            "HeteroData needs edge_type, (user type, relation, item type) or, where that says it, (user type, item "
            f"type), one of {types}, got {edge_type!r}{hint}"
        )
    return fitting[0]


def _edges(edge_index: Any) -> Tensor:
    """Return the edges of any adjacency that PyG takes, int64 [2, E]: sources in row 0, targets in row 1."""
    _check_data(edge_index)
    if isinstance(edge_index, Tensor):
        if edge_index.layout == torch.strided:
            edges = plain(edge_index)
            if edges.dim() != 2 or len(edges) != 2 or edges.is_floating_point():
                raise ValueError(f"edge_index must be integers [2, E], got {edges.dtype} {list(edges.shape)}")
            return edges.long()
        coo: Tensor = edge_index.to_sparse_coo()  # type: ignore[no-untyped-call]
        return coo.coalesce().indices().flip(0)  # a sparse adjacency of PyG is transposed: its rows are targets
    if hasattr(edge_index, "coo") and hasattr(edge_index, "sparse_sizes"):  # torch_sparse.SparseTensor
        row, column, _ = edge_index.coo()
        return torch.stack([column, row])
    raise TypeError(
        f"edge_index must be a tensor [2, E], a sparse adjacency or HeteroData, got {type(edge_index).__name__}"
    )
