"""Evaluate a LightGCN-style model on its graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from torchrecmetrics.checks import describe, nearest
from torchrecmetrics.collection import Metrics, RecMetricCollection
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.evaluation.catalogue import EvaluateOptions, Evaluation, check_target
from torchrecmetrics.evaluation.catalogue import evaluate as evaluate_embeddings
from torchrecmetrics.evaluation.scoring import Histories, evaluating

if TYPE_CHECKING:
    from typing_extensions import Unpack

Embed: TypeAlias = Callable[[nn.Module], Tensor | tuple[Tensor, Tensor] | dict[str, Tensor]]
"""A function of the model: users and items, both in one, or embeddings by node type."""
EdgeType: TypeAlias = tuple[str, str, str] | tuple[str, str]
"""(user type, relation, item type), or without the relation."""


@torch.no_grad()
def evaluate(
    metrics: Metrics | RecMetricCollection,
    model: nn.Module,
    edge_index: Any,
    *,
    target: Interactions,
    exclude: Histories | Literal["message_passing"] | None = "message_passing",
    edge_weight: Tensor | None = None,
    embed: Embed | None = None,
    edge_type: EdgeType | None = None,
    **options: Unpack[EvaluateOptions],
) -> Evaluation:
    """Embed users and items once, on the graph the model was trained on, and rank the whole catalogue for every user.

    Args:
        metrics: as in `torchrecmetrics.evaluate`.
        model: a module with `get_embedding(edge_index[, edge_weight])` -> [users + items, d], such as
            `torch_geometric.nn.LightGCN`, or any module with `embed`. Its training mode is restored.
        edge_index: message-passing edges: [2, E] or `EdgeIndex`, a torch.sparse or torch_sparse adjacency (transposed,
            as PyG keeps it), users numbered 0 .. U - 1 and items U .. U + I - 1, in one direction or in both; or
            `HeteroData` with `edge_type`, both sides numbered from 0.
        target: ground truth [U, I], such as `Interactions.from_edge_index(edges, U, I, item_offset=U)`.
        exclude: what leaves a user's candidates: the "message_passing" edges (default), None = nothing, or as in
            `torchrecmetrics.evaluate`.
        edge_weight: passed on to `get_embedding`.
        embed: a function of the model (alone) that returns (users [U, d], items [I, d]), or both in one [U + I, d], or
            for `HeteroData` {node type: embeddings}.
        edge_type: (user type, relation, item type) of the edges in `HeteroData`, or (user type, item type) where that
            says it; not needed if there is one type only.
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
    check_target(target)
    if isinstance(exclude, str):
        if exclude != "message_passing":
            raise ValueError(f"exclude must be 'message_passing', None or what evaluate takes, got {exclude!r}")
        edges = message_passing_interactions(edge_index, target.num_users, target.num_items, edge_type=edge_type)
        exclude = edges.with_ids(target.user_ids, target.item_ids)  # rows of target are nodes of the graph
    if edge_weight is not None and embed is not None:
        raise ValueError("edge_weight is for get_embedding; embed= is a function of the model alone")
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
        nodes = target.num_users + target.num_items
        if len(embedded) != nodes:
            raise ValueError(
                f"the model embeds {len(embedded)} nodes, "
                f"target has {target.num_users} users + {target.num_items} items"
            )
        embedded = embedded[: target.num_users], embedded[target.num_users :]
    if isinstance(embedded, Mapping) and isinstance(edge_index, HeteroData):
        user_type, *_, item_type = _only_type(edge_index, edge_type)
        if not {user_type, item_type} <= embedded.keys():
            raise ValueError(f"embed returned {list(embedded)}, the edges lead from {user_type!r} to {item_type!r}")
        embedded = embedded[user_type], embedded[item_type]
    if not isinstance(embedded, (tuple, list)) or len(embedded) != 2:
        what = "(users, items), one tensor of both or, for HeteroData, {node type: embeddings}"
        raise TypeError(f"embed must return {what}, got {describe(embedded)}")
    users, items = embedded
    return evaluate_embeddings(metrics, users, items, target=target, exclude=exclude, **options)


def message_passing_interactions(
    edge_index: Any, num_users: int, num_items: int, *, edge_type: EdgeType | None = None
) -> Interactions:
    """Return the user -> item edges of a graph as `Interactions`; their mirror images and self loops are passed over.

    Arguments as in `evaluate`.

    Raises:
        ValueError: for edges among users or among items (the numbering is not users first, items after), or if there
            are edges but none from a user to an item.
    """
    if isinstance(edge_index, HeteroData):
        chosen = edge_index[_only_type(edge_index, edge_type)].edge_index
        return Interactions.from_edge_index(chosen, num_users, num_items)
    if edge_type is not None:
        raise ValueError("edge_type is for HeteroData")
    edges = _edges(edge_index)
    nodes = num_users + num_items
    if edges.shape[1] and (int(edges.min()) < 0 or int(edges.max()) >= nodes):
        raise ValueError(
            f"edges hold nodes {int(edges.min())}..{int(edges.max())}, expected 0..{nodes - 1}: {num_users} users, "
            f"then {num_items} items"
        )
    from_user, to_item = edges[0] < num_users, edges[1] >= num_users
    within = (from_user != to_item) & (edges[0] != edges[1])
    if within.any():
        raise ValueError(
            f"{int(within.sum())} edges join two users or two items, such as {edges[:, within][:, 0].tolist()}: items "
            f"must be numbered from {num_users} on (both from 0: pass exclude=Interactions.from_edge_index(...))"
        )
    chosen = edges[:, from_user & to_item]
    if edges.shape[1] and not chosen.shape[1]:
        raise ValueError("no edge leads from a user to an item; the mirrored direction alone is not used")
    return Interactions.from_edge_index(chosen, num_users, num_items, item_offset=num_users)


def _check_options(options: Mapping[str, Any]) -> None:
    """Refuse what `torchrecmetrics.evaluate` does not take."""
    known = ["edge_weight", "embed", "edge_type", "target", "exclude", *EvaluateOptions.__annotations__]
    for name in options:
        if name not in known:
            raise TypeError(
                f"pyg.evaluate has no argument {name!r}{nearest(name, known)}; options of one metric go to its "
                "instance, such as NDCG(10, gain='exponential')"
            )


def _only_type(data: HeteroData, edge_type: EdgeType | None) -> tuple[str, str, str]:
    """Return the type of the edges that is meant."""
    types: list[tuple[str, str, str]] = data.edge_types
    fitting = [each for each in types if edge_type in (None, each, (each[0], each[2]))]
    if len(fitting) != 1:
        raise ValueError(
            "HeteroData needs edge_type, (user type, relation, item type) or, where that says it, (user type, item "
            f"type), one of {types}, got {edge_type!r}"
        )
    return fitting[0]


def _edges(edge_index: Any) -> Tensor:
    """Return sources above targets, int64 [2, E], of any adjacency that PyG takes."""
    if isinstance(edge_index, Tensor):
        if edge_index.layout == torch.strided:
            edges = edge_index.as_subclass(Tensor)
            if edges.dim() != 2 or len(edges) != 2 or edges.is_floating_point():
                raise ValueError(f"edge_index must be integers [2, E], got {edges.dtype} {list(edges.shape)}")
            return edges.long()
        coo: Tensor = edge_index.to_sparse_coo()  # type: ignore[no-untyped-call]
        return coo.coalesce().indices().flip(0)  # rows are the targets
    if hasattr(edge_index, "coo") and hasattr(edge_index, "sparse_sizes"):  # torch_sparse.SparseTensor
        row, column, _ = edge_index.coo()
        return torch.stack([column, row])
    raise TypeError(
        f"edge_index must be a tensor [2, E], a sparse adjacency or HeteroData, got {type(edge_index).__name__}"
    )
