"""`HistogramMetric`: base class of metrics of item counts over all lists, such as coverage."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from torchrecmetrics.arrays import without
from torchrecmetrics.base.metric import RankingMetric
from torchrecmetrics.base.row_values import ListBatch
from torchrecmetrics.base.state import SparseUpdate, Summary, SumState
from torchrecmetrics.checks import VIOLATIONS
from torchrecmetrics.ranking.rules import Needs

if TYPE_CHECKING:
    from typing_extensions import Self


class Histogram:
    """Number of lists that hold each item, read by metrics of all lists together.

    Args:
        counts: int64 [I], number of lists with the item in the first k ranks; without the padding item.
        lengths: int64 [k + 1], number of lists that hold 0, 1, ..., k items.
        exposure: float [I], sum of 1 / log2(1 + rank) over the lists that hold the item; None = not counted.
    """

    def __init__(self, counts: Tensor, lengths: Tensor, exposure: Tensor | None = None) -> None:
        self.counts: Tensor = counts
        self.lengths: Tensor = lengths
        self.exposure: Tensor | None = exposure

    @cached_property
    def total(self) -> Tensor:
        """Number of entries of all lists, int64 scalar."""
        return self.counts.sum()

    @cached_property
    def ascending(self) -> Tensor:
        """`counts` in ascending order."""
        return self.counts.sort().values


class HistogramMetric(RankingMetric):
    """Base class of metrics that read how many lists hold each item, over all rows together.

    The state is a count per item, 8 bytes x I (twice that where exposure is read), summed over batches and processes.
    Every row with a list counts once, with or without relevant items; rows of weight 0 are left out, other weights
    count as 1. `num_users` is the number of lists. There is no standard error, since the value is not a mean over rows.

    A metric of your own is a subclass with a `formula` of `(histogram, k, *, options)` that returns a scalar tensor;
    `histogram` holds `counts` int64 [I], `lengths` int64 [k + 1], and `exposure` float [I] where the class says
    `reads_exposure = True`.

    Attributes:
        reads_exposure: True if the formula reads `Histogram.exposure`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> def largest_share(histogram, k):
        ...     return histogram.counts.max() / histogram.total.double()
        >>> class LargestShare(trm.HistogramMetric):
        ...     formula = staticmethod(largest_share)
        >>> metric = LargestShare(1, catalogue=trm.Catalogue(3))
        >>> metric.update(torch.tensor([[0.1, 0.9, 0.5], [0.2, 0.8, 0.1], [0.7, 0.1, 0.3], [0.2, 0.8, 0.1]]))
        >>> metric.compute()  # item 1 has three of four places
        tensor(0.7500, dtype=torch.float64)
    """

    reads_exposure: ClassVar[bool] = False
    of_items: ClassVar[bool] = True

    @property
    def needs(self) -> Needs:
        """The data that the metric reads: the items in the first `k` ranks."""
        k, num_items = self._size
        return Needs(k, target=False, list_depth=k, num_items=num_items)

    @property
    def _size(self) -> tuple[int, int]:
        """The cut-off and the number of items."""
        assert self.k is not None
        assert self.catalogue is not None
        return self.k, self.catalogue.num_items

    def _begin(self, name: str) -> None:
        k, num_items = self._size
        num_sums = num_items if self.reads_exposure else 0
        self._add_sum_states(f"{name}-{num_items}", num_sums, k + 1 + len(VIOLATIONS) + num_items)

    def _try_formula(self) -> None:
        k, _ = self._size
        none = torch.zeros(k + 1, dtype=torch.int64)
        self.formula(Histogram(none[:1], none, none[:1].double()), k, **self.arguments)

    def sparse_update(self, lists: ListBatch, violations: Tensor | None) -> SparseUpdate:
        """Return the additions of a batch of lists to the counts (lengths, violations, items) and to the exposure."""
        k, _ = self._size
        ids, entries = lists.ids[:k].flatten(), lists.entries[:k]
        lengths = entries.sum(0)
        rows = torch.ones_like(lengths) if lists.counted is None else lists.counted.long()
        indices, values = [lengths, ids + (k + 1 + len(VIOLATIONS))], [rows, entries.flatten()]
        if violations is not None:
            indices.append(torch.arange(k + 1, k + 1 + len(VIOLATIONS), device=ids.device))
            values.append(violations)
        sums = (ids, lists.exposure[:k].flatten()) if self.reads_exposure else None
        return SparseUpdate(sums, (torch.cat(indices), torch.cat(values)))

    @classmethod
    def summaries(cls, metrics: Sequence[Self], states: Sequence[SumState]) -> list[Summary]:
        """Return the value of each metric from its item counts, without a standard error."""
        found: list[Summary] = []
        for metric, state in zip(metrics, states, strict=True):
            k, num_items = metric._size
            lengths, invalid, items = torch.split(state.counts, [k + 1, len(VIOLATIONS), num_items])
            metric._check_input(invalid.tolist())
            exposure = without(state.sums, metric.padding_idx) if metric.reads_exposure else None
            histogram = Histogram(without(items, metric.padding_idx), lengths, exposure)  # padding is not an item
            value = metric.formula(histogram, k, **metric.arguments).to(state.sums.dtype)
            found.append(Summary.without_error(value, int(lengths.sum())))
        return found
