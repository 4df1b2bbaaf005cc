"""`ItemGroupMetric`: base class of fairness metrics that compare groups of items, and their formula."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from torchrecmetrics.arrays import float_dtype, without
from torchrecmetrics.base.metric import RankingMetric
from torchrecmetrics.base.options import MetricOptions
from torchrecmetrics.base.row_values import ListBatch
from torchrecmetrics.base.state import SparseUpdate, Summary, SumState
from torchrecmetrics.checks import VIOLATIONS, check_choice
from torchrecmetrics.data.catalogue import Catalogue
from torchrecmetrics.ranking import Ranking
from torchrecmetrics.ranking.rules import Needs

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

ItemGroups: TypeAlias = Literal["popularity", "categories"]
"""Groups of items: the head and the tail by popularity, or one group per category code."""


class GroupCounts(NamedTuple):
    """Counts over all lists for each group of items, int64 [G]."""

    hits: Tensor
    """Entries in the first k ranks that count, the numerator of the rate."""
    possible: Tensor
    """Entries that could count, the denominator of the rate."""


class ItemGroupMetric(RankingMetric):
    """Base class of metrics that measure how far the rates of groups of items differ, counted over all rows together.

    The state is two counts per group, summed over batches and processes. Every row with an item in its list counts
    once; rows of weight 0 are left out, other weights count as 1. `num_users` is the number of these rows. There is no
    standard error, since the value is not a mean over rows.
    """

    of_items: ClassVar[bool] = True
    reads_history: ClassVar[bool] = False
    reads_target: ClassVar[bool] = False
    higher_is_better: bool | None = False

    def __init__(
        self, k: int, *, of: ItemGroups = "popularity", head: float = 0.8, **options: Unpack[MetricOptions]
    ) -> None:
        super().__init__(k, of=of, head=head, **options)

    @property
    def needs(self) -> Needs:
        """The data that the metric reads: the items in the first `k` ranks, and the history or the relevant items."""
        size = self._catalogue.num_items
        return Needs(
            self.k, target=self.reads_target, list_depth=self.k or 0, history=self.reads_history, num_items=size
        )

    @property
    def _catalogue(self) -> Catalogue:
        assert self.catalogue is not None
        return self.catalogue

    @property
    def _num_groups(self) -> int:
        """Number of groups."""
        return 2 if self.options["of"] == "popularity" else self._catalogue.num_categories

    def _codes(self, device: torch.device) -> Tensor:
        """Return the group of each item, int64 [I]."""
        catalogue = self._catalogue.on(device)
        if self.options["of"] == "popularity":
            return catalogue.tail(self.options["head"]).long()
        if catalogue.categories.dim() != 1:
            raise ValueError(
                f"{self._name}: groups are categories of one code an item, Catalogue(..., categories=codes), int64 "
                f"[{catalogue.num_items}]; shares put an item into several"
            )
        return catalogue.categories.long()

    def _begin(self, name: str) -> None:
        self._add_sum_states(f"{name}-{self._num_groups}", 0, 1 + len(VIOLATIONS) + 2 * self._num_groups)

    def _try_formula(self) -> None:
        check_choice("of", self.options["of"], ("popularity", "categories"))
        self._codes(self._catalogue.device)

    def pairs(self, ranking: Ranking, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return item ids [B, n] and counts, int64 [B, n], of the listed entries, then of the possible entries."""
        raise NotImplementedError

    def possible(self, counts: Tensor, rows: int, sizes: Tensor) -> Tensor:
        """Return the possible entries of each group from their `counts`, the number of rows and the group sizes."""
        return counts

    def sparse_update(self, lists: ListBatch, violations: Tensor | None) -> SparseUpdate:
        """Return the additions of a batch of lists to the counts: rows, violations, hits and possible entries."""
        assert lists.ranking is not None
        assert self.k is not None
        items, hits, others, possible = self.pairs(lists.ranking, self.k)
        codes, size, kinds = self._codes(items.device), self._catalogue.num_items, len(VIOLATIONS)
        rows = (items >= 0).any(1)
        if lists.counted is not None:
            rows = rows & lists.counted
        indices, values = [items.new_zeros(1)], [rows.sum()[None]]
        for place, (ids, counts) in enumerate(((items, hits), (others, possible))):
            inside = (ids >= 0) & (ids < size) & rows[:, None]
            if self.padding_idx is not None:  # padding is not an item
                inside = inside & (ids != self.padding_idx)
            group = codes.index_select(0, ids.where(inside, 0).flatten())
            indices.append(group + (1 + kinds + place * self._num_groups))
            values.append((counts * inside).flatten())
        if violations is not None:
            indices.append(torch.arange(1, 1 + kinds, device=items.device))
            values.append(violations)
        return SparseUpdate(None, (torch.cat(indices), torch.cat(values)))

    @classmethod
    def summaries(cls, metrics: Sequence[Self], states: Sequence[SumState]) -> list[Summary]:
        """Return the value of each metric from its counts of groups, without a standard error."""
        found: list[Summary] = []
        for metric, state in zip(metrics, states, strict=True):
            first, counts = torch.split(state.counts, [1 + len(VIOLATIONS), 2 * metric._num_groups])
            rows, *invalid = first.tolist()
            metric._check_input(invalid)
            hits, possible = counts.view(2, -1)
            codes = without(metric._codes(hits.device), metric.padding_idx)  # padding is not an item
            sizes = torch.zeros_like(hits).index_add_(0, codes, torch.ones_like(codes))
            counted = GroupCounts(hits, metric.possible(possible, rows, sizes))
            value = metric.formula(counted, metric.k, **metric.arguments).to(state.sums.dtype)
            found.append(Summary.without_error(value, rows))
        return found


def spread(
    counts: GroupCounts, k: int, *, catalogue: Catalogue, of: ItemGroups = "popularity", head: float = 0.8
) -> Tensor:
    """Return std / mean of the rates hits / possible over the groups with possible > 0, scalar.

    Range 0 (all rates are equal) to sqrt(G - 1) (one group has all hits); the standard deviation divides by n. NaN if
    there are no hits, and for fewer than two groups. Needs no host sync.
    """
    hits, possible = counts
    there, dtype = possible > 0, float_dtype(possible.device)
    rates = torch.where(there, hits.to(dtype) / possible.to(dtype), 0)
    groups = there.sum().to(dtype)
    mean = rates.sum() / groups
    variance = torch.where(there, (rates - mean).square(), 0).sum() / groups
    return (variance.sqrt() / mean).masked_fill(groups < 2, torch.nan)
