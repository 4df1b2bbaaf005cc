"""`LinkPredCollection`: a collection with the arguments of PyG's link-prediction metrics."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor

from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.core.checks import check_choice, check_device, check_ids, describe, plain
from torchrecmetrics.inputs.lists import DuplicateLabels, Duplicates, LabelledLists
from torchrecmetrics.metrics.accumulator import Accumulator
from torchrecmetrics.metrics.description import MetricOptions
from torchrecmetrics.metrics.names import KeyFormat, Metrics

if TYPE_CHECKING:
    from typing_extensions import Unpack


class LinkPredOptions(MetricOptions, total=False):
    """Keywords that `LinkPredCollection` passes on to `RecMetricCollection`."""

    prefix: str | None
    postfix: str | None
    key_format: KeyFormat
    accumulators: Sequence[Accumulator]


class LinkPredCollection(RecMetricCollection):
    """`RecMetricCollection` with the arguments of PyG's `LinkPredMetric.update`.

    To replace a `LinkPredMetricCollection`, change only its constructor, which takes the arguments of
    `RecMetricCollection`. As in PyG, a label that is not in the list is a miss. Differences:

    - keys are `Precision@10`, `Recall-weighted@10`; PyG's `LinkPredPrecision@10`, `WeightedLinkPredRecall@10`;
    - MAP divides by R (`MAP(k, normalize="min")` is PyG's);
    - NDCG reads `edge_label_weight` wherever it is given (PyG's with `weighted=True` only);
    - a weight < 0 is a penalty in NDCG (PyG's collection drops the label), NaN or infinity an error;
    - errors are an item listed twice for a row (PyG counts both as hits), a label given twice (PyG counts both in R), a
      row beyond the batch and a label < 0;
    - -1 in a list means that there are no more items (PyG takes it for another row's item);
    - without any label `compute()` is nan with a warning (PyG's is 0);
    - metrics without a cut-off are refused, except RPrecision.

    Args:
        metrics: as in `RecMetricCollection`, with `k` and other options; `max_relevant` is the most labels of a row.
        duplicates: an item listed twice is an "error"; or only its "first" rank counts, and later items move up; or a
            repeat keeps its rank, as a miss ("keep_place").
        duplicate_labels: a label given twice is an "error", or the "first" of the two counts, with its weight.

    Examples:
        >>> import torch
        >>> from torchrecmetrics.pyg import LinkPredCollection
        >>> collection = LinkPredCollection(["Precision", "Recall"], k=2)
        >>> lists, edges = torch.tensor([[4, 1], [2, -1]]), torch.tensor([[0, 0, 1], [1, 7, 2]])
        >>> collection.update(lists, edges)
        >>> collection.result().floats()
        {'Precision@2': 0.5, 'Recall@2': 0.75}
    """

    def __init__(
        self,
        metrics: Metrics,
        k: int | Iterable[int] | None = None,
        *,
        duplicates: Duplicates = "error",
        duplicate_labels: DuplicateLabels = "error",
        **options: Unpack[LinkPredOptions],
    ) -> None:
        check_choice("duplicates", duplicates, get_args(Duplicates))
        check_choice("duplicate_labels", duplicate_labels, get_args(DuplicateLabels))
        super().__init__(metrics, k, **options)
        self.duplicates: Duplicates = duplicates
        self.duplicate_labels: DuplicateLabels = duplicate_labels
        for key, metric in self.metrics.items():
            if metric.needs.depth is None:
                raise ValueError(f"{key} reads the whole ranking, but pred_index_mat is its top: give it a cut-off k")

    @property
    def max_k(self) -> int | None:
        """The largest cut-off, the width that `pred_index_mat` should have; None if no metric has a cut-off."""
        return max((metric.k for metric in self.metrics.values() if metric.k is not None), default=None)

    def update(  # type: ignore[override]
        self,
        pred_index_mat: Tensor,
        edge_label_index: Tensor | tuple[Tensor, Tensor],
        edge_label_weight: Tensor | None = None,
        **columns: Any,
    ) -> None:
        """Add a batch; costs one host sync unless `max_relevant` is the most labels that a row has.

        Args:
            pred_index_mat: integer [B, K], the items of each row, best first, -1 = no more items; numbered as the
                labels are: subtract `num_users` from the node numbers that `LightGCN.recommend` returns.
            edge_label_index: integer [2, E] or a pair of [E]: row in the batch, relevant item.
            edge_label_weight: number [E], the gains of the labels, which NDCG and `Recall(weighted=True)` read.
            columns: `weights` of the rows, and what accumulators read, as in `RecMetricCollection.update`.
        """
        super().update(self._input(pred_index_mat, edge_label_index, edge_label_weight), **columns)

    def forward(
        self,
        pred_index_mat: Tensor,
        edge_label_index: Tensor | tuple[Tensor, Tensor],
        edge_label_weight: Tensor | None = None,
        **columns: Any,
    ) -> dict[str, Tensor]:
        """Add a batch and return its own values; arguments as in `update`."""
        return super().forward(self._input(pred_index_mat, edge_label_index, edge_label_weight), **columns)

    def _input(self, lists: Tensor, labels: Tensor | tuple[Tensor, Tensor], weights: Tensor | None) -> LabelledLists:
        """Return the input of a batch; raise for arguments of a wrong type or shape."""
        check_ids("pred_index_mat", lists)
        if lists.dim() != 2:
            raise ValueError(f"pred_index_mat must be [B, K], the best items of each row, got {list(lists.shape)}")
        if self.max_k is not None and 0 < lists.shape[1] < self.max_k:
            warnings.warn(
                f"pred_index_mat holds {lists.shape[1]} items per row, the largest cut-off is {self.max_k}: missing "
                "items count as misses, as in PyG. Recommend as many, or pad with -1 if there are no more",
                UserWarning,
                stacklevel=3,
            )
        if not lists.shape[1]:  # nothing was recommended
            lists = lists.new_full((len(lists), 1), -1)
        edges = _label_edges(labels, lists)
        if weights is None:
            if any(metric.options.get("weighted") for metric in self.metrics.values()):
                raise ValueError(
                    "edge_label_weight is missing: Recall(weighted=True) is the share of it that was found"
                )
        elif not isinstance(weights, Tensor) or weights.shape != edges[0].shape:
            raise ValueError(f"edge_label_weight must be a tensor [{edges.shape[1]}], got {describe(weights)}")
        else:
            check_device("edge_label_weight", weights, lists.device)
        return LabelledLists(
            lists,
            complete=True,
            duplicates=self.duplicates,
            edges=edges,
            weights=weights,
            duplicate_labels=self.duplicate_labels,
        )


def _label_edges(labels: Any, lists: Tensor) -> Tensor:
    """Return the labels as int64 [2, E]: row of the batch, and item id."""
    tensors = labels if isinstance(labels, (tuple, list)) else (labels,)
    for ids in tensors:
        if not isinstance(ids, Tensor):
            raise TypeError(f"edge_label_index must be a tensor [2, E] or a pair of [E], got {describe(labels)}")
        check_ids("edge_label_index", ids)
        check_device("edge_label_index", ids, lists.device)
    edges = plain(tensors[0]).long() if len(tensors) == 1 else torch.stack([plain(ids).long() for ids in tensors])
    if edges.dim() != 2 or len(edges) != 2:
        hint = "; pass edge_label_index.T" if edges.shape[1:] == (2,) else ""
        raise ValueError(
            f"edge_label_index must be [2, E] or a pair of [E], batch rows and items, got {list(edges.shape)}{hint}"
        )
    if edges.shape[1] and not len(lists):
        raise ValueError(f"edge_label_index holds {edges.shape[1]} labels, but pred_index_mat has no rows")
    return edges
