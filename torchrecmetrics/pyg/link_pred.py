"""`LinkPredCollection`: a collection with the arguments of PyG's link-prediction metrics."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.core.accumulators import Accumulator
from torchrecmetrics.core.checks import (
    Checks,
    as_interactions,
    check_choice,
    check_device,
    check_ids,
    describe,
    in_words,
    plain,
)
from torchrecmetrics.core.options import Needs, Options
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.core.signature import MetricOptions
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.inputs.base import BatchInput, SelectedItems
from torchrecmetrics.inputs.lists import Duplicates, Lists
from torchrecmetrics.names import KeyFormat, Metrics

if TYPE_CHECKING:
    from typing_extensions import Unpack

DuplicateLabels = Literal["error", "first"]
"""A label given twice is an error, or the first of the two counts."""


class LinkPredOptions(MetricOptions, total=False):
    """Keywords that `LinkPredCollection` passes on to `RecMetricCollection`."""

    prefix: str | None
    postfix: str | None
    key_format: KeyFormat
    accumulators: Sequence[Accumulator]


_WITHOUT = {
    "padding_idx": "-1 fills up lists, and labels are edges, without padding",
    "overlap": "nothing is excluded; Lists(item_ids, target, exclude=) are input of RecMetricCollection",
}


class LinkPredCollection(RecMetricCollection):
    """`RecMetricCollection` with the arguments of PyG's `LinkPredMetric.update`.

    Takes the arguments of `RecMetricCollection`, so a `LinkPredMetricCollection` is replaced by changing its
    constructor. As in PyG, lists are all that is recommended: a label that is not in the list is a miss. Differences:

    - keys are `Precision@10`, `Recall-weighted@10`; PyG's `LinkPredPrecision@10`, `WeightedLinkPredRecall@10`;
    - MAP divides by R (`MAP(k, normalize="min")` is PyG's);
    - NDCG reads `edge_label_weight` wherever it is given (PyG's with `weighted=True` only);
    - a weight < 0 is a penalty in NDCG (PyG's collection drops the label), NaN or infinity an error;
    - an item listed twice for a row is an error (PyG counts both as hits), so is a label given twice (PyG counts both
      in R), a row beyond the batch and a label < 0;
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
        >>> collection.update(torch.tensor([[4, 1], [2, -1]]), torch.tensor([[0, 0, 1], [1, 7, 2]]))
        >>> {key: value.item() for key, value in collection.compute().items()}
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
            for name, cure in _WITHOUT.items():
                if (value := getattr(metric.rules, name)) is not None:
                    raise ValueError(f"{key}: {name}={value!r} has no place in LinkPredCollection: {cure}")
            if metric.needs.depth is None:
                raise ValueError(f"{key} reads the whole ranking, pred_index_mat is the top of it: give it a cut-off k")

    @property
    def max_k(self) -> int | None:
        """The largest cut-off, the width that `pred_index_mat` should have; None if no metric has a cut-off."""
        return max((metric.k for metric in self.metrics.values() if metric.k is not None), default=None)

    @property
    def weighted(self) -> bool:
        """True if a metric needs `edge_label_weight`."""
        return any(metric.options.get("weighted") for metric in self.metrics.values())

    def update(  # type: ignore[override]
        self,
        pred_index_mat: Tensor,
        edge_label_index: Tensor | tuple[Tensor, Tensor],
        edge_label_weight: Tensor | None = None,
        *,
        history: Tensor | None = None,
        **columns: Any,
    ) -> None:
        """Add a batch; costs one host sync unless `max_relevant` says how many labels a row has at most.

        Args:
            pred_index_mat: integer [B, K], the items of each row, best first, -1 = no more items; numbered as the
                labels are: subtract `num_users` from the node numbers that `LightGCN.recommend` returns.
            edge_label_index: integer [2, E] or a pair of [E]: row in the batch, relevant item.
            edge_label_weight: number [E], the gains of the labels, which NDCG and `Recall(weighted=True)` read.
            history: items that each row's user had before, as in `Lists`.
            columns: `weights` of the rows, and what accumulators read, as in `RecMetricCollection.update`.
        """
        super().update(self._input(pred_index_mat, edge_label_index, edge_label_weight, history), **columns)

    def forward(
        self,
        pred_index_mat: Tensor,
        edge_label_index: Tensor | tuple[Tensor, Tensor],
        edge_label_weight: Tensor | None = None,
        *,
        history: Tensor | None = None,
        **columns: Any,
    ) -> dict[str, Tensor]:
        """Add a batch and return its own values; arguments as in `update`."""
        return super().forward(self._input(pred_index_mat, edge_label_index, edge_label_weight, history), **columns)

    def _input(
        self, lists: Tensor, labels: Tensor | tuple[Tensor, Tensor], weights: Tensor | None, history: Tensor | None
    ) -> _LabelledLists:
        """Return the input of a batch; raise for arguments of a wrong type or shape."""
        if weights is None and self.weighted:
            raise ValueError("edge_label_weight is missing: Recall(weighted=True) is the share of it that was found")
        check_ids("pred_index_mat", lists)
        if lists.dim() != 2:
            raise ValueError(f"pred_index_mat must be [B, K], the best items of each row, got {list(lists.shape)}")
        if self.max_k is not None and 0 < lists.shape[1] < self.max_k:
            warnings.warn(
                f"pred_index_mat holds {lists.shape[1]} items per row, the largest cut-off is {self.max_k}, and items "
                "beyond its end count as misses, as in PyG: recommend as many, or fill up with -1 if there are no more",
                UserWarning,
                stacklevel=3,
            )
        if not lists.shape[1]:  # nothing was recommended
            lists = lists.new_full((len(lists), 1), -1)
        edges = _label_edges(labels, lists)
        _check_label_weights(weights, edges)
        return _LabelledLists(lists, edges, weights, self.duplicates, self.duplicate_labels, history)


@dataclass(frozen=True, eq=False, repr=False)
class _LabelledLists(BatchInput):
    """Lists of recommended item ids [B, K], with labels: pairs of a row of the batch and a relevant item, [2, E]."""

    item_ids: Tensor
    edges: Tensor
    weights: Tensor | None
    duplicates: Duplicates
    duplicate_labels: DuplicateLabels
    history: Tensor | None

    @torch.no_grad()
    def rank(self, needs: Needs, options: Options) -> Ranking:
        """Find each label in the list of its row."""
        rows = len(self.item_ids)
        checks = Checks(options.validate_args, self.item_ids.device, rows)
        target, gains = _padded(self.edges, self.weights, options.max_relevant, self.duplicate_labels, rows, checks)
        valid, violations = checks.settle()
        if valid is not None:
            target = target.where(valid[:, None], -1)
        lists = Lists(
            self.item_ids, target, gains=gains, complete=True, duplicates=self.duplicates, history=self.history
        )
        return lists.rank(needs, options).rejecting(valid, violations)


def _label_edges(labels: Any, lists: Tensor) -> Tensor:
    """Return the labels as int64 [2, E]: row of the batch, and item id."""
    if (cure := _edges_cure(labels, len(lists))) is not None:
        sparse = isinstance(labels, Tensor) and not labels.is_nested
        given = f"a sparse tensor ({labels.layout})" if sparse else describe(labels)
        raise TypeError(f"edge_label_index must be [2, E] or a pair of [E], got {given}: pass {cure}")
    pair = isinstance(labels, (tuple, list))
    for number, part in enumerate(labels if pair else (labels,)):
        name = f"edge_label_index[{number}]" if pair else "edge_label_index"
        check_ids(name, part)
        check_device(name, part, lists.device)
    shapes = [list(part.shape) for part in labels] if pair else list(labels.shape)
    if len(shapes) != 2 or (shapes[0] != shapes[1] or len(shapes[0]) != 1 if pair else shapes[0] != 2):
        hint = "; pass edge_label_index.T" if not pair and shapes[1:] == [2] else ""
        raise ValueError(f"edge_label_index must be [2, E] or a pair of [E], batch rows and items, got {shapes}{hint}")
    edges = torch.stack([plain(part).long() for part in labels]) if pair else plain(labels).long()
    if edges.shape[1] and not len(lists):
        raise ValueError(f"edge_label_index holds {edges.shape[1]} labels, pred_index_mat no row")
    return edges


def _edges_cure(labels: Any, rows: int) -> str | None:
    """Return code, for a message, that converts labels to edges; None if they are edges or cannot be converted."""
    name = "edge_label_index"
    if isinstance(labels, Tensor) and not labels.is_nested:
        if labels.layout == torch.strided:
            return None
        coo = name if labels.layout == torch.sparse_coo else f"{name}.to_sparse_coo()"
        return f"{coo}.coalesce().indices()"
    if isinstance(labels, SelectedItems):
        return f"Interactions.from_padded({name}.items, num_items=...).to_edge_index()"
    whole = as_interactions(name, labels)
    if whole is None:
        return None
    cure = f"{whole}.to_edge_index()"
    if isinstance(labels, Interactions) and labels.num_users != rows:
        batch = f"Interactions.from_padded({name}.select(user_ids).items, {labels.num_items}).to_edge_index()"
        cure = f"{batch}, since it has {labels.num_users} users and the batch {in_words(rows)}"
    return cure


def _check_label_weights(weights: Any, edges: Tensor) -> None:
    """Raise unless `weights` is None or a tensor of one number per label."""
    if weights is None:
        return
    if not isinstance(weights, Tensor) or weights.dtype == torch.bool or weights.is_complex():
        raise TypeError(f"edge_label_weight must be a tensor of numbers, got {describe(weights)}")
    if weights.shape != edges[0].shape:
        raise ValueError(f"edge_label_weight must be [{edges.shape[1]}], one for each label, got {list(weights.shape)}")
    check_device("edge_label_weight", weights, edges.device)


def _padded(
    edges: Tensor, weights: Tensor | None, width: int | None, duplicates: str, rows: int, checks: Checks
) -> tuple[Tensor, Tensor | None]:
    """Return labels as padded ids [B, T] with their gains [B, T] or None; reject rows with wrong labels."""
    row, item = edges
    inside = (row >= 0) & (row < rows)

    def reject(kind: str, wrong: Tensor, detail: Callable[[int], str]) -> None:
        """Reject the rows that have a wrong label; all rows if a wrong label belongs to no row of the batch."""
        bad = torch.zeros(rows + 1, dtype=torch.bool, device=row.device)
        bad[row.where(wrong & inside, rows)] = True
        everywhere = (wrong & ~inside).any()
        checks.reject(kind, bad[:rows] | everywhere, lambda _: detail(int(wrong.nonzero()[0])))

    if checks.enabled:
        reject(
            "labels",
            ~inside | (item < 0),
            lambda at: (
                f"edge_label_index[:, {at}] is {edges[:, at].tolist()}, in "
                f"a batch of {rows} rows (their positions in pred_index_mat, not user ids)"
            ),
        )
        if weights is not None:
            reject("gains", ~weights.isfinite(), lambda at: f"edge_label_weight[{at}] is {weights[at]}")

    # sort by row, then by item; labels without a row come last
    place = row.where(inside & (item >= 0), rows)
    order = item.sort(stable=True).indices
    order = order[place[order].sort(stable=True).indices]
    place, item = place[order], item[order]
    again = torch.zeros_like(inside)
    again[1:] = (place[1:] == place[:-1]) & (item[1:] == item[:-1]) & (place[1:] < rows)
    if checks.enabled and duplicates == "error":
        twice = torch.zeros_like(again)
        twice[order] = again
        reject(
            "target_repeat",
            twice,
            lambda at: (
                f"edge_label_index[:, {at}] is {edges[:, at].tolist()} once more "
                "(duplicate_labels='first' counts a label once)"
            ),
        )
    kept = (place < rows) & ~again
    degree = torch.zeros(rows + 1, dtype=torch.int64, device=row.device).index_add_(0, place, kept.long())
    slot = kept.cumsum(0) - 1 - (degree.cumsum(0) - degree)[place]
    if width is None:
        width = max(1, int(degree.max()))
    elif checks.enabled:
        checks.reject("target_width", degree[:rows] > width, lambda at: f"batch row {at}: {int(degree[at])} > {width}")
    cell = (place * width + slot).where(kept & (slot < width), rows * width)

    def spread(values: Tensor, fill: int) -> Tensor:
        cells = values.new_full((rows * width + 1,), fill).scatter(0, cell, values)
        return cells[:-1].view(rows, width)

    return spread(item, -1), None if weights is None else spread(weights[order], 0)
