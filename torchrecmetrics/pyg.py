"""PyG in and out: evaluate a LightGCN-style model on its graph, and `LinkPredMetric`'s arguments for our collection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from torchrecmetrics.checks import describe
from torchrecmetrics.collection import Metrics, RecMetricCollection
from torchrecmetrics.evaluation import EvaluateOptions, Evaluation, check_target
from torchrecmetrics.evaluation import evaluate as evaluate_embeddings
from torchrecmetrics.interactions import Interactions
from torchrecmetrics.ranking import Ranking
from torchrecmetrics.scoring import Histories, evaluating

if TYPE_CHECKING:
    from typing_extensions import Unpack

Embed: TypeAlias = Callable[[nn.Module], Tensor | tuple[Tensor, Tensor]]

__all__ = ["LinkPredCollection", "evaluate", "message_passing_interactions"]


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
    edge_type: tuple[str, str, str] | None = None,
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
        embed: a function of the model (alone) that returns (users [U, d], items [I, d]), or both in one [U + I, d].
        edge_type: (user type, relation, item type) of the edges in `HeteroData`; not needed if there is one type only.
        options: as in `torchrecmetrics.evaluate` (`k`, `user_ids`, `batch_size`, `item_bias`, `progress`, ...).

    Example:
        >>> import torch
        >>> from torch_geometric.nn import LightGCN
        >>> from torchrecmetrics import Interactions, pyg
        >>> edges = torch.tensor([[0, 1, 2], [3, 4, 5]])  # three users, then three items
        >>> model = LightGCN(num_nodes=6, embedding_dim=4, num_layers=1)
        >>> test = Interactions.from_edge_index(torch.tensor([[0], [4]]), 3, 3, item_offset=3)
        >>> pyg.evaluate("Recall@2", model, edges, target=test)["Recall@2"]
        tensor(1., dtype=torch.float64)
    """
    check_target(target)
    if isinstance(exclude, str):
        if exclude != "message_passing":
            raise ValueError(f"exclude must be 'message_passing', None or what evaluate takes, got {exclude!r}")
        exclude = message_passing_interactions(edge_index, target.num_users, target.num_items, edge_type=edge_type)
    if edge_weight is not None and embed is not None:
        raise ValueError("edge_weight is for get_embedding; embed= is a function of the model alone")
    with evaluating(model):
        if embed is not None:
            embedded = embed(model)
        elif not hasattr(model, "get_embedding"):
            raise TypeError(f"{type(model).__name__} has no get_embedding(edge_index): pass embed=")
        elif isinstance(edge_index, HeteroData):
            raise TypeError("HeteroData needs embed=, a function of the model that returns (users, items)")
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
    if not isinstance(embedded, (tuple, list)) or len(embedded) != 2:
        raise TypeError(f"embed must return (users, items) or one tensor of both, got {describe(embedded)}")
    users, items = embedded
    return evaluate_embeddings(metrics, users, items, target=target, exclude=exclude, **options)


def message_passing_interactions(
    edge_index: Any, num_users: int, num_items: int, *, edge_type: tuple[str, str, str] | None = None
) -> Interactions:
    """Return the user -> item edges of a graph as `Interactions`; their mirror images and self loops are passed over.

    Arguments as in `evaluate`.

    Raises:
        ValueError: for edges among users or among items (the numbering is not users first, items after), or if there
            are edges but none from a user to an item.
    """
    if isinstance(edge_index, HeteroData):
        types = edge_index.edge_types
        edge_type = types[0] if edge_type is None and len(types) == 1 else edge_type
        if edge_type not in types:
            raise ValueError(f"HeteroData needs edge_type, (user type, relation, item type), one of {types}")
        return Interactions.from_edge_index(edge_index[edge_type].edge_index, num_users, num_items)
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


class LinkPredCollection(RecMetricCollection):
    """`RecMetricCollection` with the arguments of PyG's `LinkPredMetric.update`.

    Takes what `RecMetricCollection` takes, so a `LinkPredMetricCollection` is exchanged by changing its constructor.
    What is different then: MAP divides by R (`MAP(k, normalize="min")` is PyG's), NDCG reads `edge_label_weight` (PyG's
    with `weighted=True` only), a k beyond the list's length is refused, an item listed twice is an error, -1 means that
    there are no more items.

    Example:
        >>> import torch
        >>> from torchrecmetrics.pyg import LinkPredCollection
        >>> collection = LinkPredCollection(["Precision", "Recall"], k=2)
        >>> collection.update(torch.tensor([[4, 1], [2, -1]]), torch.tensor([[0, 0, 1], [1, 7, 2]]))
        >>> {key: value.item() for key, value in collection.compute().items()}
        {'Precision@2': 0.5, 'Recall@2': 0.75}
    """

    def update(  # type: ignore[override]
        self,
        pred_index_mat: Tensor,
        edge_label_index: Tensor | tuple[Tensor, Tensor],
        edge_label_weight: Tensor | None = None,
    ) -> None:
        """Add a batch; costs one host sync.

        Args:
            pred_index_mat: integer [B, K], each row's items, best first, -1 = no more.
            edge_label_index: integer [2, E] or a pair of [E]: row in the batch, relevant item.
            edge_label_weight: number [E], the gains of the labels, which NDCG and `Recall(weighted=True)` read.
        """
        super().update(self._ranking(pred_index_mat, edge_label_index, edge_label_weight))

    def forward(  # type: ignore[override]
        self,
        pred_index_mat: Tensor,
        edge_label_index: Tensor | tuple[Tensor, Tensor],
        edge_label_weight: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Add a batch and return its own values; arguments as in `update`."""
        return super().forward(self._ranking(pred_index_mat, edge_label_index, edge_label_weight))

    def _ranking(self, lists: Tensor, labels: Tensor | tuple[Tensor, Tensor], weights: Tensor | None) -> Ranking:
        edges = torch.stack(list(labels)) if isinstance(labels, (tuple, list)) else labels
        num_items = int(edges[1].max()) + 1 if edges.numel() else 0
        relevant = Interactions.from_edge_index(edges, len(lists), num_items, weights, duplicates="error")
        batch = relevant.select(torch.arange(len(lists)))
        member = self.members[0]
        return Ranking.from_topk(lists, batch.items, gains=batch.values, validate_args=member.validate_args)
