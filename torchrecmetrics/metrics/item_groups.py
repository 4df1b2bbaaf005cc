"""Fairness of groups of items: StatisticalParity, EqualOpportunity, and their base class, formula and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import float_dtype, without
from torchrecmetrics.core.checks import check_choice
from torchrecmetrics.core.options import Needs
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.core.result import RowValues
from torchrecmetrics.metrics import list_formulas
from torchrecmetrics.metrics.accumulator import State, Summed
from torchrecmetrics.metrics.description import Description, MetricOptions, needs_catalogue
from torchrecmetrics.metrics.item_counts import counted_lists
from torchrecmetrics.metrics.ranking_metric import CountedMetric

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


class ItemGroupMetric(CountedMetric, higher_is_better=False):
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

    def __init__(
        self, k: int, *, of: ItemGroups = "popularity", head: float = 0.8, **options: Unpack[MetricOptions]
    ) -> None:
        super().__init__(k, of=of, head=head, **options)

    @property
    def needs(self) -> Needs:
        """The data that the metric reads: the items in the first `k` ranks, and the history or the relevant items."""
        if self.catalogue is None:
            raise needs_catalogue(self._name, "10, ")
        return Needs(
            self.k,
            target=self.reads_target,
            list_depth=self.k or 0,
            history=self.reads_history,
            num_items=self.catalogue.num_items,
        )

    @classmethod
    def _try_formula(cls, metric: Description) -> None:
        check_choice("of", metric.options["of"], ("popularity", "categories"))
        item_groups(metric, cast("Catalogue", metric.catalogue).device)

    @staticmethod
    def pairs(ranking: Ranking, k: int) -> GroupEntries:
        """Return the listed and the possible entries of each row."""
        raise NotImplementedError

    @staticmethod
    def possible(counts: Tensor, rows: int, sizes: Tensor) -> Tensor:
        """Return the possible entries of each group from their `counts`, the number of rows and the group sizes."""
        return counts

    @classmethod
    def make_counts(cls, metric: Description) -> ItemGroupCounts:
        """Return the accumulator of hits and possible entries by group."""
        return ItemGroupCounts(metric)

    @classmethod
    def counted_value(cls, metric: Description, totals: State) -> tuple[Tensor, int]:
        """Return the value from the counts of groups, and the number of rows."""
        rows, (hits, possible) = int(totals["num_rows"]), totals["by_group"]
        groups = without(item_groups(metric, hits.device)[0], metric.ranking_options.padding_idx)  # padding is no item
        sizes = torch.zeros_like(hits).index_add_(0, groups, torch.ones_like(groups))
        return cls.formula(GroupCounts(hits, cls.possible(possible, rows, sizes)), metric.k, **metric.arguments), rows


def item_groups(metric: Description, device: torch.device) -> tuple[Tensor, int]:
    """Return the group of each item, int64 [I], and the number of groups."""
    catalogue = cast("Catalogue", metric.catalogue).on(device)
    if metric.options["of"] == "popularity":
        return catalogue.tail(metric.options["head"]).long(), 2
    if catalogue.categories.dim() != 1:
        raise ValueError(
            f"{metric.name}: groups need one category code per item, Catalogue(..., categories=codes), "
            f"int64 [{catalogue.num_items}]; with shares an item is in several"
        )
    return catalogue.categories.long(), catalogue.num_categories


class ItemGroupCounts(Summed):
    """Number of rows, and of hits and possible entries by group of items, for an `ItemGroupMetric`."""

    _signed_states: ClassVar[tuple[str, ...]] = ("by_group",)

    def __init__(self, metric: Description) -> None:
        super().__init__()
        self.metric: Description = metric

    @property
    def option(self) -> str:
        """The metric whose groups are counted."""
        return f"ItemGroupCounts({self.metric.fingerprint})"

    def empty(self) -> State:
        """Return the counts of no rows."""
        _, num_groups = item_groups(self.metric, self._device)
        none = torch.zeros(2, num_groups, dtype=torch.int64, device=self._device)
        return {"num_rows": none.new_zeros(()), "by_group": none}

    def added_to(self, state: State, rows: RowValues) -> State:
        """Return counts with the rows of a batch added."""
        metric, ranking = self.metric, rows.ranking
        entries: GroupEntries = metric.metric_class.pairs(ranking, metric.k)
        codes, num_groups = item_groups(metric, entries.items.device)
        with_list = (entries.items >= 0).any(1) & counted_lists(rows)
        totals = []
        for ids, numbers in ((entries.items, entries.hits), (entries.possible_items, entries.possible)):
            inside = (ids >= 0) & (ids < len(codes)) & with_list[:, None]
            if metric.ranking_options.padding_idx is not None:  # padding is not an item
                inside = inside & (ids != metric.ranking_options.padding_idx)
            entry_groups = codes.index_select(0, ids.where(inside, 0).flatten())
            none = torch.zeros(num_groups, dtype=torch.int64, device=ids.device)
            totals.append(none.index_add(0, entry_groups, (numbers * inside).flatten()))
        return {
            "num_rows": state["num_rows"] + with_list.sum(),
            "by_group": state["by_group"] + torch.stack(totals),
        }


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


class StatisticalParity(ItemGroupMetric, formula=spread, reads_history=True):
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

    @staticmethod
    def pairs(ranking: Ranking, k: int) -> GroupEntries:
        """Return the listed items with count 1, then the history with count -1, since its items cannot be listed."""
        items, past = ranking.items[:, :k], list_formulas.history_of(ranking)
        return GroupEntries(
            items=items,
            hits=torch.ones_like(items),
            possible_items=past,
            possible=-list_formulas.first_had(ranking).long(),
        )

    @staticmethod
    def possible(counts: Tensor, rows: int, sizes: Tensor) -> Tensor:
        """Return the number of pairs of a row and an item of each group, less the pairs in the history."""
        return rows * sizes + counts


class EqualOpportunity(ItemGroupMetric, formula=spread, reads_target=True):
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

    @staticmethod
    def pairs(ranking: Ranking, k: int) -> GroupEntries:
        """Return the listed items with count 1 if relevant and else 0, then the relevant items with count 1."""
        items, relevant = ranking.items[:, :k], ranking.relevant_items
        return GroupEntries(
            items=items,
            hits=list_formulas.hits_of(ranking)[:, :k].long(),
            possible_items=relevant,
            possible=torch.ones_like(relevant),
        )
