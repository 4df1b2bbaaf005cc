"""Fairness of groups of items: StatisticalParity, EqualOpportunity, and their base class, formula and counts."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import float_dtype, ordinary_tensors, without
from torchrecmetrics.core.checks import check_choice
from torchrecmetrics.core.options import Needs
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.core.result import Result
from torchrecmetrics.core.row_values import Layout, RowValues
from torchrecmetrics.metrics import list_formulas
from torchrecmetrics.metrics.accumulator import Accumulator, State
from torchrecmetrics.metrics.item_counts import counted_lists
from torchrecmetrics.metrics.ranking_metric import CountedMetric
from torchrecmetrics.metrics.signature import Formula, MetricOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from torchrecmetrics.data.catalogue import Catalogue

ItemGroups: TypeAlias = Literal["popularity", "categories"]
"""Groups of items: the head and the tail by popularity, or one group per category code."""


__all__ = ["EqualOpportunity", "StatisticalParity"]


class GroupEntries(NamedTuple):
    """Entries of each row, which are counted for their item's group; ids and counts are int64 [B, n]."""

    items: Tensor
    """Ids of the listed items."""
    hits: Tensor
    """Counts of the listed items, for `GroupCounts.hits`."""
    possible_items: Tensor
    """Ids of the items that could be listed."""
    possible: Tensor
    """Counts of the possible items, for `GroupCounts.possible`."""


class GroupCounts(NamedTuple):
    """Counts over all lists for each group of items, int64 [G]."""

    hits: Tensor
    """Entries in the first k ranks that count, the numerator of the rate."""
    possible: Tensor
    """Entries that could count, the denominator of the rate."""


class ItemGroupMetric(CountedMetric):
    """Base class of metrics of how far rates differ between groups of items, counted over all rows together.

    The state is two counts per group, summed over batches and processes. Every row with an item in its list counts
    once; rows of weight 0 are left out, other weights count as 1. `num_users` is the number of these rows. There is no
    standard error, since the value is not a mean over rows.

    Args:
        k: cut-off, >= 1.
        of: "popularity": the head, the fewest items that hold a share `head` of all interactions, and the tail; or
            "categories": the catalogue's codes.
        head: share of all interactions, between 0 and 1.
        options: `catalogue` with the popularity or the codes, and keywords of every metric; see `RankingMetric`.
    """

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
        return cast("Catalogue", self.catalogue)

    @property
    def num_groups(self) -> int:
        """Number of groups."""
        return 2 if self.options["of"] == "popularity" else self._catalogue.num_categories

    def codes(self, device: torch.device) -> Tensor:
        """Return the group of each item, int64 [I]."""
        catalogue = self._catalogue.on(device)
        if self.options["of"] == "popularity":
            return catalogue.tail(self.options["head"]).long()
        if catalogue.categories.dim() != 1:
            raise ValueError(
                f"{self._name}: groups need one category code per item, Catalogue(..., categories=codes), "
                f"int64 [{catalogue.num_items}]; with shares an item is in several"
            )
        return catalogue.categories.long()

    def _try_formula(self) -> None:
        check_choice("of", self.options["of"], ("popularity", "categories"))
        self.codes(self._catalogue.device)

    def pairs(self, ranking: Ranking, k: int) -> GroupEntries:
        """Return the listed and the possible entries of each row."""
        raise NotImplementedError

    def possible(self, counts: Tensor, rows: int, sizes: Tensor) -> Tensor:
        """Return the possible entries of each group from their `counts`, the number of rows and the group sizes."""
        return counts

    @property
    def counts_key(self) -> Hashable:
        """The metric itself, since it defines groups and pairs."""
        return self._fingerprint

    def make_counts(self) -> Accumulator:
        """Return the accumulator of hits and possible entries by group."""
        return ItemGroupCounts(self)

    def counted_result(self, key: str, counts: Sequence[Tensor], sums: Sequence[Tensor]) -> Result:
        """Return the value from the counts of groups, without a standard error."""
        num_rows, (hits, possible) = counts[0], counts[1]
        rows = int(num_rows)
        codes = without(self.codes(hits.device), self._rules.padding_idx)  # padding is not an item
        sizes = torch.zeros_like(hits).index_add_(0, codes, torch.ones_like(codes))
        groups = GroupCounts(hits, self.possible(possible, rows, sizes))
        value = self.formula(groups, self.k, **self._arguments)
        return self._empty_result(key).with_value(value, rows)


class ItemGroupCounts(Accumulator):
    """Number of rows, and of hits and possible entries by group of items, for an `ItemGroupMetric`."""

    _signed_states: ClassVar[tuple[str, ...]] = ("by_group",)
    metric: ItemGroupMetric
    num_rows: Tensor
    by_group: Tensor

    def __init__(self, metric: ItemGroupMetric) -> None:
        super().__init__()
        self.__dict__["metric"] = metric  # no submodule: it holds no rows

    @property
    def option(self) -> str:
        """The metric whose groups are counted."""
        return f"ItemGroupCounts({self.metric.label})"

    def begin(self, layout: Layout) -> None:
        """Register the counts."""
        super().begin(layout)
        with ordinary_tensors():
            none = torch.zeros(2, self.metric.num_groups, dtype=torch.int64, device=self._device)
            self.add_state("num_rows", none.new_zeros(()), "sum")
            self.add_state("by_group", none, "sum")

    def _batch(self, rows: RowValues) -> tuple[Tensor, Tensor]:
        """Return the number of rows, and hits and possible entries by group, int64 [2, G]."""
        metric, ranking = self.metric, rows.ranking
        assert ranking is not None
        assert metric.k is not None
        entries = metric.pairs(ranking, metric.k)
        codes, size = metric.codes(entries.items.device), metric._catalogue.num_items
        with_list = (entries.items >= 0).any(1) & counted_lists(rows)
        totals = []
        for ids, numbers in ((entries.items, entries.hits), (entries.possible_items, entries.possible)):
            inside = (ids >= 0) & (ids < size) & with_list[:, None]
            if metric._rules.padding_idx is not None:  # padding is not an item
                inside = inside & (ids != metric._rules.padding_idx)
            entry_groups = codes.index_select(0, ids.where(inside, 0).flatten())
            none = torch.zeros(metric.num_groups, dtype=torch.int64, device=ids.device)
            totals.append(none.index_add(0, entry_groups, (numbers * inside).flatten()))
        return with_list.sum(), torch.stack(totals)

    def added(self, rows: RowValues) -> State:
        """Return the counts with those of a batch added."""
        num_rows, by_group = self._batch(rows)
        return {"num_rows": self.num_rows + num_rows, "by_group": self.by_group + by_group}

    def batch_totals(self, rows: RowValues) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Return the counts of one batch, and no sums."""
        return self._batch(rows), []

    def counts(self) -> Sequence[Tensor]:
        """Return the number of rows, and the counts by group."""
        return [self.num_rows, self.by_group]


def spread(
    counts: GroupCounts, k: int, *, catalogue: Catalogue, of: ItemGroups = "popularity", head: float = 0.8
) -> Tensor:
    """Return std / mean of the rates hits / possible over the groups with possible > 0, scalar.

    Range 0 (all rates are equal) to sqrt(G - 1) (one group has all hits); the standard deviation divides by n. NaN if
    there are no hits, and for fewer than two groups. Needs no host sync.
    """
    hits, possible = counts
    possible_groups, dtype = possible > 0, float_dtype(possible.device)
    rates = torch.where(possible_groups, hits.to(dtype) / possible.to(dtype), 0)
    num_groups = possible_groups.sum().to(dtype)
    mean = rates.sum() / num_groups
    variance = torch.where(possible_groups, (rates - mean).square(), 0).sum() / num_groups
    return (variance.sqrt() / mean).masked_fill(num_groups < 2, torch.nan)


class StatisticalParity(ItemGroupMetric):
    """Statistical parity at k: how far groups of items differ in their rate of recommendation, std / mean of rates.

    A group's rate is its number of entries in the first `k` ranks of all lists, divided by the number of pairs of a row
    with a list and an item of the group outside the row's history. Range: 0 (all rates are equal) to sqrt(G - 1) (one
    of G groups has all entries); lower is better. NaN if no list holds an item, and for fewer than two groups. There is
    no standard error. Ties: equal scores are listed in the order of their ids.

    Also called RSP. Elliot's PopRSP is the same number for head and tail, its RSP for categories. Source: Zhu, Wang &
    Caverlee, Measuring and mitigating item under-recommendation bias in personalized ranking systems, SIGIR 2020.

    Args:
        k: cut-off, >= 1.
        of: "popularity": head and tail of the catalogue, as for `TailShare`; or "categories": its category codes.
        head: share of all interactions that the head holds, between 0 and 1.
        options: `catalogue`, and keywords of every metric; see `RankingMetric`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> catalogue = trm.Catalogue(4, popularity=torch.tensor([8, 4, 2, 1]))
        >>> history = torch.tensor([3, 0, -1])
        >>> metric = trm.StatisticalParity(2, head=0.75, catalogue=catalogue)  # head: 0, 1
        >>> metric.update(trm.Scores(scores, history=history))  # lists 0 1; 1 2; 1 0
        >>> metric.compute()  # 5 / (3 * 2 - 1) and 1 / (3 * 2 - 1): 0.4 / 0.6
        tensor(0.6667, dtype=torch.float64)
    """

    formula: ClassVar[Formula] = staticmethod(spread)
    reads_history: ClassVar[bool] = True

    def pairs(self, ranking: Ranking, k: int) -> GroupEntries:
        """Return the listed items with count 1, then the history with count -1, since its items cannot be listed."""
        items, past = ranking.items[:, :k], list_formulas.history_of(ranking)
        return GroupEntries(
            items=items,
            hits=torch.ones_like(items),
            possible_items=past,
            possible=-list_formulas.first_had(ranking).long(),
        )

    def possible(self, counts: Tensor, rows: int, sizes: Tensor) -> Tensor:
        """Return the number of pairs of a row and an item of each group, less the pairs in the history."""
        return rows * sizes + counts


class EqualOpportunity(ItemGroupMetric):
    """Equal opportunity at k: how far groups of items differ in recall, as std / mean of their recalls.

    A group's recall is the number of its relevant items in the first `k` ranks of all lists, divided by the number of
    its relevant items in rows with a list. Range: 0 (all recalls are equal) to sqrt(G - 1) (one of G groups has all
    hits); lower is better. NaN without hits, and for fewer than two groups with relevant items. There is no standard
    error. Ties: equal scores are listed in the order of their ids.

    Also called REO. Elliot's PopREO is the same number for head and tail, its REO for categories. Elliot ignores
    relevant items that the user had in train; here `overlap` decides. Source: as `StatisticalParity`.

    Args:
        k: cut-off, >= 1.
        of: "popularity": head and tail of the catalogue, as for `TailShare`; or "categories": its category codes.
        head: share of all interactions that the head holds, between 0 and 1.
        options: `catalogue`, and keywords of every metric; see `RankingMetric`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> catalogue = trm.Catalogue(4, popularity=torch.tensor([8, 4, 2, 1]))
        >>> target = torch.tensor([[0, 3], [2, -1], [2, -1]])
        >>> metric = trm.EqualOpportunity(2, head=0.75, catalogue=catalogue)  # head: 0, 1
        >>> metric.update(scores, target)  # lists 0 1; 1 2; 1 0
        >>> metric.compute()  # recalls of 1/1 and 1/3: (1/3) / (2/3)
        tensor(0.5000, dtype=torch.float64)
    """

    formula: ClassVar[Formula] = staticmethod(spread)
    reads_target: ClassVar[bool] = True

    def pairs(self, ranking: Ranking, k: int) -> GroupEntries:
        """Return the listed items with count 1 if relevant and else 0, then the relevant items with count 1."""
        items, relevant = ranking.items[:, :k], ranking.relevant_items
        return GroupEntries(
            items=items,
            hits=list_formulas.hits_of(ranking)[:, :k].long(),
            possible_items=relevant,
            possible=torch.ones_like(relevant),
        )
