"""`ItemCounts`: accumulator of how many lists hold each item; `ItemCountMetric`: base class of metrics that read it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import reduce
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.accumulators.base import Accumulator, State
from torchrecmetrics.core.arrays import float_dtype, ordinary_tensors, without
from torchrecmetrics.core.checks import check_counted
from torchrecmetrics.core.options import Needs
from torchrecmetrics.core.result import Result
from torchrecmetrics.core.rows import Layout, RowValues
from torchrecmetrics.functional import log2_discounts
from torchrecmetrics.metric.base import CountedMetric


class ItemCounts(Accumulator):
    """Number of lists that hold each item in the first `k` ranks, and number of lists by their length.

    Rows of weight 0 are left out, other weights count as 1.

    Args:
        k: cut-off.
        num_items: number of items.
        exposure: also sum 1 / log2(1 + rank) for each item.
    """

    item_counts: Tensor
    list_lengths: Tensor
    exposure: Tensor

    def __init__(self, k: int, num_items: int, exposure: bool = False) -> None:
        super().__init__()
        self.k: int = k
        self.num_items: int = num_items
        self.num_sums: int = int(exposure)

    @property
    def option(self) -> str:
        """The class with its options."""
        return f"ItemCounts({self.k}, {self.num_items}, exposure={bool(self.num_sums)})"

    def begin(self, layout: Layout) -> None:
        """Register the counts; the zeros share one number until the first batch."""
        super().begin(layout)
        with ordinary_tensors():
            none = torch.zeros(1, dtype=torch.int64, device=self._device)
            self.add_state("item_counts", none.expand(self.num_items), "sum")
            self.add_state("list_lengths", none.expand(self.k + 1), "sum")
            if self.num_sums:
                nothing = torch.zeros(1, dtype=float_dtype(self._device), device=self._device)
                self.add_state("exposure", nothing.expand(self.num_items), "sum")

    def _added_to(self, state: State, rows: RowValues) -> State:
        assert rows.ranking is not None
        items, counted = rows.ranking.items[:, : self.k].T, counted_lists(rows)
        ids, entries = items.clamp(min=0).flatten(), ((items >= 0) & counted).long()
        added: State = {
            "item_counts": state["item_counts"].index_add(0, ids, entries.flatten()),
            "list_lengths": state["list_lengths"].index_add(0, entries.sum(0), counted.long()),
        }
        if self.num_sums:
            discounts = log2_discounts(max(1, len(items)), float_dtype(items.device), items.device)[: len(items)]
            added["exposure"] = state["exposure"].index_add(0, ids, (entries * discounts[:, None]).flatten())
        return added

    def added(self, rows: RowValues) -> State:
        """Return the counts with those of a batch added."""
        return self._added_to({name: getattr(self, name) for name in self._defaults}, rows)

    def batch_totals(self, rows: RowValues) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Return the counts and sums of one batch."""
        state = self._added_to({name: torch.zeros_like(getattr(self, name)) for name in self._defaults}, rows)
        return [state["item_counts"], state["list_lengths"]], [state[name] for name in ("exposure",) if name in state]

    def counts(self) -> Sequence[Tensor]:
        """Return the counts of items and of list lengths."""
        return [self.item_counts, self.list_lengths]

    def sums(self, clocks: Tensor) -> Sequence[Tensor]:
        """Return the exposure of items, if it is summed."""
        return [self.exposure] if self.num_sums else []


def counted_lists(rows: RowValues) -> Tensor:
    """Return which rows have a list that counts, bool [B]."""
    assert rows.ranking is not None
    items, wants_list = rows.ranking.items, rows.ranking.listed().wants_list
    masks = [mask for mask in (wants_list, rows.counted) if mask is not None]
    return reduce(torch.logical_and, masks, torch.ones(len(items), dtype=torch.bool, device=items.device))


class Histogram(NamedTuple):
    """Number of lists that hold each item, read by metrics of all lists together."""

    counts: Tensor
    """Int64 [I]: number of lists with the item in the first k ranks; without the padding item."""
    lengths: Tensor
    """Int64 [k + 1]: number of lists that hold 0, 1, ..., k items."""
    exposure: Tensor | None = None
    """Float [I]: sum of 1 / log2(1 + rank) over the lists that hold the item; None = not counted."""

    @property
    def total(self) -> Tensor:
        """Number of entries of all lists, int64 scalar."""
        return self.counts.sum()


class ItemCountMetric(CountedMetric):
    """Base class of metrics that read how many lists hold each item, over all rows together.

    The state is a count per item, 8 bytes x I (twice that where exposure is read), summed over batches and processes,
    and shared by metrics with the same cut-off. Every row with a list counts once, with or without relevant items; rows
    of weight 0 are left out, other weights count as 1. `num_users` is the number of lists. There is no standard error,
    since the value is not a mean over rows. It is NaN if no list holds an item.

    A metric of your own is a subclass with a `formula` of `(histogram, k, *, options)` that returns a scalar tensor;
    `histogram` holds `counts` int64 [I], `lengths` int64 [k + 1], and `exposure` float [I] where the class says
    `reads_exposure = True`.

    Args:
        k: cut-off, 1 to 2^28: the state has a count for each length of a list.
        options: `catalogue`, which says how many items there are, options of the formula, and keywords of every metric;
            see `RankingMetric`.

    Attributes:
        reads_exposure: True if the formula reads `Histogram.exposure`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> def largest_share(histogram, k):
        ...     return histogram.counts.max() / histogram.total.double()
        >>> class LargestShare(trm.ItemCountMetric):
        ...     formula = staticmethod(largest_share)
        >>> metric = LargestShare(1, catalogue=trm.Catalogue(3))
        >>> metric.update(torch.tensor([[1.0, 9, 5], [2, 8, 1], [7, 1, 3], [2, 8, 1]]))
        >>> metric.compute()  # item 1 has three of four places
        tensor(0.7500, dtype=torch.float64)
    """

    reads_exposure: ClassVar[bool] = False

    @property
    def needs(self) -> Needs:
        """The data that the metric reads: the items in the first `k` ranks."""
        k, num_items = self._size
        return Needs(k, target=False, list_depth=k, num_items=num_items)

    @property
    def _size(self) -> tuple[int, int]:
        """The cut-off and the number of items."""
        if self.catalogue is None:
            raise ValueError(
                f"{self._name} needs a catalogue: {self._name}({self.k}, catalogue=trm.Catalogue.from_interactions("
                "train)); collections, evaluate and callbacks take catalogue= for all their metrics"
            )
        assert self.k is not None
        return check_counted(self.k, "k"), self.catalogue.num_items

    @property
    def counts_key(self) -> Hashable:
        """Cut-off, number of items, and whether exposure is read."""
        return (*self._size, self.reads_exposure)

    def make_counts(self) -> Accumulator:
        """Return the accumulator of item counts."""
        return ItemCounts(*self._size, self.reads_exposure)

    def _try_formula(self) -> None:
        k, _ = self._size
        none = torch.zeros(k + 1, dtype=torch.int64)
        self.formula(Histogram(none[:1], none, none[:1].double()), k, **self.arguments)

    def counted_result(self, key: str, counts: Sequence[Tensor], sums: Sequence[Tensor]) -> Result:
        """Return the value from the item counts, without a standard error."""
        items, lengths = counts
        exposure = without(sums[0], self.rules.padding_idx) if self.reads_exposure else None
        histogram = Histogram(without(items, self.rules.padding_idx), lengths, exposure)  # padding is not an item
        value = self.formula(histogram, self.k, **self.arguments)
        return self.empty_result(key).with_value(value, int(lengths.sum()))
