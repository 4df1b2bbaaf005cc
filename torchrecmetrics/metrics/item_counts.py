"""Metrics of all lists together, from the number of lists that hold each item: Coverage, Gini, Entropy and others."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import float_dtype, without
from torchrecmetrics.core.checks import check_counted
from torchrecmetrics.core.options import Needs
from torchrecmetrics.core.ranked_items import log2_discounts
from torchrecmetrics.core.result import RowValues
from torchrecmetrics.metrics.accumulator import State, Summed
from torchrecmetrics.metrics.description import Description, MetricOptions, needs_catalogue
from torchrecmetrics.metrics.ranking_metric import CountedMetric

if TYPE_CHECKING:
    from typing_extensions import Unpack


__all__ = ["Coverage", "Entropy", "ExposureGini", "Gini", "Personalization"]


class ItemCounts(Summed):
    """Number of lists that hold each item in the first `k` ranks, and number of lists by their length.

    Rows of weight 0 are left out, other weights count as 1.

    Args:
        k: cut-off.
        num_items: number of items.
        exposure: also sum 1 / log2(1 + rank) for each item.
    """

    def __init__(self, k: int, num_items: int, exposure: bool = False) -> None:
        super().__init__()
        self.k: int = k
        self.num_items: int = num_items
        self.with_exposure: bool = exposure

    @property
    def option(self) -> str:
        """The class with its options."""
        return f"ItemCounts({self.k}, {self.num_items}, exposure={self.with_exposure})"

    def empty(self) -> State:
        """Return the counts of no rows; until the first batch the zeros are one expanded number."""
        none = torch.zeros(1, dtype=torch.int64, device=self._device)
        state = {"item_counts": none.expand(self.num_items), "list_lengths": none.expand(self.k + 1)}
        if self.with_exposure:
            state["exposure"] = none.to(float_dtype(self._device)).expand(self.num_items)
        return state

    def added_to(self, state: State, rows: RowValues) -> State:
        """Return counts with the lists of a batch added."""
        items, counted = rows.ranking.items[:, : self.k].T, counted_lists(rows)
        ids, entries = items.clamp(min=0).flatten(), ((items >= 0) & counted).long()
        added: State = {
            "item_counts": state["item_counts"].index_add(0, ids, entries.flatten()),
            "list_lengths": state["list_lengths"].index_add(0, entries.sum(0), counted.long()),
        }
        if self.with_exposure:
            discounts = log2_discounts(max(1, len(items)), float_dtype(items.device), items.device)[: len(items)]
            added["exposure"] = state["exposure"].index_add(0, ids, (entries * discounts[:, None]).flatten())
        return added


def counted_lists(rows: RowValues) -> Tensor:
    """Return which rows have a list that counts, bool [B]."""
    items, wants_list = rows.ranking.items, rows.ranking.listed().wants_list
    masks = [mask for mask in (wants_list, rows.counted) if mask is not None]
    return reduce(torch.logical_and, masks, torch.ones(len(items), dtype=torch.bool, device=items.device))


class Histogram(NamedTuple):
    """Counts over all lists, which metrics of all lists together read."""

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
    """Base class of metrics of the number of lists that hold each item, over all rows together.

    The state is a count per item, 8 bytes x I (twice that where exposure is read), summed over batches and processes,
    and shared by metrics with the same cut-off. Every row with a list counts once, with or without relevant items; rows
    of weight 0 are left out, other weights count as 1. `num_users` is the number of lists. There is no standard error,
    since the value is not a mean over rows. It is NaN if no list holds an item.

    A metric of your own is a subclass with a `formula` of `(histogram, k, *, options)` that returns a scalar tensor;
    `histogram` holds `counts` int64 [I], `lengths` int64 [k + 1], and `exposure` float [I] where the class says
    `reads_exposure = True`.

    Args:
        k: cut-off, 1 to 2^28, since the state has a count for each length of a list.
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
        if self.catalogue is None:
            raise needs_catalogue(self._name, f"{self.k}, ")
        k = check_counted(self.k or 0, "k")
        return Needs(k, target=False, list_depth=k, num_items=self.catalogue.num_items)

    @classmethod
    def make_counts(cls, metric: Description) -> ItemCounts:
        """Return the accumulator of item counts."""
        assert metric.needs.num_items is not None
        return ItemCounts(metric.needs.list_depth, metric.needs.num_items, cls.reads_exposure)

    @classmethod
    def _try_formula(cls, metric: Description) -> None:
        none = torch.zeros(metric.needs.list_depth + 1, dtype=torch.int64)
        cls.formula(Histogram(none[:1], none, none[:1].double()), metric.k, **metric.arguments)

    @classmethod
    def counted_value(cls, metric: Description, totals: State) -> tuple[Tensor, int]:
        """Return the value from the item counts, and the number of lists."""
        lengths, padding_idx = totals["list_lengths"], metric.ranking_options.padding_idx
        exposure = without(totals["exposure"], padding_idx) if cls.reads_exposure else None
        histogram = Histogram(without(totals["item_counts"], padding_idx), lengths, exposure)  # padding is not an item
        return cls.formula(histogram, metric.k, **metric.arguments), int(lengths.sum())


def coverage(histogram: Histogram, k: int, *, attainable: bool = False) -> Tensor:
    """Share of all items that are in the first `k` ranks of at least one list: #{c_i > 0} / I."""
    return _attainable(histogram, _coverage) if attainable else _coverage(histogram.counts)


def gini(histogram: Histogram, k: int, *, attainable: bool = False) -> Tensor:
    """Gini coefficient of c, in ascending order: sum of (2 j - I - 1) c_(j) / (I S).

    0 if all items are in equally many lists, (I - 1) / I if a single item is in all lists.
    """
    return 1 - _attainable(histogram, _gini) if attainable else _gini(histogram.counts)


def entropy(histogram: Histogram, k: int, *, attainable: bool = False) -> Tensor:
    """Entropy of the items' shares of all entries: -sum of p log2 p with p = c_i / S; 0 to log2 I bits."""
    return _attainable(histogram, _entropy) if attainable else _entropy(histogram.counts)


def personalization(histogram: Histogram, k: int) -> Tensor:
    """1 - shared items / items that could be shared by two lists, both summed over all pairs of lists; 0 to 1.

    Item i is shared by c_i (c_i - 1) / 2 pairs; lists of a and b items could share min(a, b) items, one for each length
    that both lists reach. NaN also for one list.
    """
    dtype = float_dtype(histogram.counts.device)
    counts, reached = histogram.counts.to(dtype), _num_reaching(histogram).to(dtype)
    return 1 - (counts * (counts - 1)).sum() / (reached * (reached - 1)).sum()


def exposure_gini(histogram: Histogram, k: int) -> Tensor:
    """Gini coefficient of the items' exposure: the sum of 1 / log2(1 + rank) over the lists that hold the item."""
    assert histogram.exposure is not None
    return _gini(histogram.exposure)


def _num_reaching(histogram: Histogram) -> Tensor:
    """Return the number of lists that hold at least k, k - 1, ..., 1 items, int64 [k]."""
    return histogram.lengths[1:].flip(0).cumsum(0)


def _attainable(histogram: Histogram, formula: Callable[[Tensor], Tensor]) -> Tensor:
    """Return (value - least) / (most - least) of a formula of counts [I]; NaN if only one value is possible.

    Let n_j be the number of lists of at least j items. Lists of these lengths, without repeats, can have the counts c
    that n majorises (Gale and Ryser). So the least even c is n: all lists begin with the same items. In the most even
    c, S mod I items have floor(S / I) + 1, the others floor(S / I).
    """
    counts, total = histogram.counts.sort().values, histogram.total
    reaching = _num_reaching(histogram)
    least_even = torch.nn.functional.pad(reaching, (len(counts) - len(reaching), 0))  # both are ascending
    number = torch.arange(len(counts), 0, -1, device=counts.device)
    most_even = total // len(counts) + (number <= total % len(counts))
    value, least, most = formula(counts), formula(least_even), formula(most_even)
    return ((value - least) / (most - least)).clamp(0, 1)


def _coverage(counts: Tensor) -> Tensor:
    """Return the share of counts [I] that are above 0; NaN if none is."""
    num_covered = (counts > 0).sum().to(float_dtype(counts.device))
    return (num_covered / len(counts)).masked_fill(num_covered == 0, torch.nan)


def _entropy(counts: Tensor) -> Tensor:
    """Return the entropy of the shares of counts [I], in bits."""
    shares = counts.to(float_dtype(counts.device)) / counts.sum()
    nats: Tensor = torch.special.entr(shares).sum()
    return nats / math.log(2)


def _gini(counts: Tensor) -> Tensor:
    """Return the Gini coefficient of counts [I]."""
    values, items = counts.sort().values.to(float_dtype(counts.device)), len(counts)
    place = 2 * torch.arange(items, dtype=values.dtype, device=counts.device) + (1 - items)  # 2 j - I - 1
    return ((place * values).sum() / (items * values.sum())).clamp(min=0)


class _ItemCountAtK(ItemCountMetric, bounds=(0.0, 1.0)):
    """Base class of metrics of all lists without options of their own."""

    def __init__(self, k: int, **options: Unpack[MetricOptions]) -> None:
        super().__init__(k, **options)


class _AttainableAtK(ItemCountMetric, bounds=(0.0, 1.0)):
    """Base class of metrics of all lists that can be rescaled to their attainable range."""

    def __init__(self, k: int, *, attainable: bool = False, **options: Unpack[MetricOptions]) -> None:
        super().__init__(k, attainable=attainable, **options)


class Coverage(_AttainableAtK, formula=coverage):
    """Coverage at k: share of all items that are in the first `k` ranks of at least one list.

    Range: above 0 to 1. NaN if no list holds an item. There is no standard error: the value is not a mean over rows.
    Ties: equal scores are listed in the order of their ids.

    `attainable=True` rescales it to the values that lists of the same lengths can have, from 0 (all lists hold the same
    items) to 1 (as many items as possible are listed): (distinct - l) / (min(S, I) - l), with S entries, I items and a
    longest list of l items. NaN if only one value is possible, as for one list.

    Also called catalogue coverage, item coverage and, as a count, aggregate diversity. PyG's LinkPredCoverage,
    RecTools' CatalogCoverage(normalize=True) and recpack's CoverageK are the same number; RecBole's ItemCoverage counts
    the padding item. Sources: Ge, Delgado-Battenfeld & Jannach, Beyond accuracy, 2010; attainable values of full lists:
    Rampisela et al., Evaluation measures of individual item fairness for recommender systems, ACM TORS 2024; of lists
    of several lengths: Gale, A theorem on flows in networks, 1957.

    Args:
        k: cut-off, >= 1.
        attainable: rescale to the attainable range, as if any item may be in any list.
        options: `catalogue`, and keywords of every metric; see `ItemCountMetric`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> catalogue = trm.Catalogue(4)
        >>> metric = trm.Coverage(2, catalogue=catalogue)
        >>> metric.update(scores)  # lists 0 1; 1 2; 1 0
        >>> metric.compute()  # 3 of 4 items
        tensor(0.7500, dtype=torch.float64)
        >>> trm.Coverage(2, attainable=True, catalogue=catalogue)(scores)  # (3 - 2) / (4 - 2)
        tensor(0.5000, dtype=torch.float64)
    """


class Gini(_AttainableAtK, formula=gini, higher_is_better=False):
    """Gini coefficient at k of the number of lists that hold each item: sum of (2 j - I - 1) c_(j) / (I S).

    c_(j) is the j-th smallest of these numbers, S their sum. Range: 0 (all items are in equally many lists) to (I - 1)
    / I (one item is in all lists); lower is better. NaN if no list holds an item. There is no standard error: the value
    is not a mean over rows. Ties: equal scores are listed in the order of their ids.

    Few entries cannot reach these ends: 10 lists of 10 items out of 100,000 have at least .9990. `attainable=True`
    rescales the value to those of lists of the same lengths, (G - G_even) / (G_same - G_even), from 0 to 1. For the
    most even lists, G_even = r (I - r) / (I S) with r = S mod I. If all lists hold the same items, c_j is the number of
    lists of at least j items, and G_same is 1 - k / I for full lists. NaN if only one value is possible, as for one
    list.

    `lenskit.stats.gini`, LensKit's ListGini and RecBole's GiniIndex are the same number (RecBole counts the padding
    item, too). Elliot's and RankSys' Gini are 1 - this x I / (I - 1). Sources: Fleder & Hosanagar, Blockbuster
    culture's next rise or fall, 2009; attainable values: as `Coverage`.

    Args:
        k: cut-off, >= 1.
        attainable: rescale to the attainable range, as if any item may be in any list.
        options: `catalogue`, and keywords of every metric; see `ItemCountMetric`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> catalogue = trm.Catalogue(4)
        >>> metric = trm.Gini(2, catalogue=catalogue)
        >>> metric.update(scores)  # lists 0 1; 1 2; 1 0
        >>> metric.compute()  # counts 0 1 2 3: (-3 * 0 - 1 * 1 + 1 * 2 + 3 * 3) / (4 * 6)
        tensor(0.4167, dtype=torch.float64)
        >>> metric = trm.Gini(2, attainable=True, catalogue=catalogue)
        >>> metric(scores)  # counts 1 1 2 2 have 1/6, and 0 0 3 3 have 1/2
        tensor(0.7500, dtype=torch.float64)
    """


class Entropy(_AttainableAtK, formula=entropy, bounds=None):
    """Entropy at k: how evenly recommendations are spread over the items, in bits: -sum over items of p log2 p.

    p is the item's share of all entries in the first `k` ranks of all lists. Range: 0 (a single item is recommended) to
    log2 I (all I items equally often). NaN if no list holds an item. There is
    no standard error: the value is not a mean over rows. Ties: equal scores are listed in the order of their ids.

    `attainable=True` rescales it to the values that lists of the same lengths can have, from 0 to 1: (H - H_same) /
    (H_even - H_same). H_same is the entropy if all lists hold the same items, log2 k for full lists; H_even is that of
    the most even lists, log2 S for S <= I entries and about log2 I for more. NaN if only one value is possible, as for
    one list.

    Also called Shannon entropy: Elliot's SEntropy is the same number where lists have one length (it weighs each entry
    by 1 / length outside the logarithm); RecBole's uses natural logarithms and divides by the number of recommended
    items. Sources: Szlávik, Kowalczyk & Schut, Diversity measurement of recommender systems under different user choice
    models, 2011; attainable values: as `Coverage`.

    Args:
        k: cut-off, >= 1.
        attainable: rescale to the attainable range, as if any item may be in any list.
        options: `catalogue`, and keywords of every metric; see `ItemCountMetric`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> catalogue = trm.Catalogue(4)
        >>> metric = trm.Entropy(2, catalogue=catalogue)
        >>> metric.update(scores)  # lists 0 1; 1 2; 1 0
        >>> metric.compute()  # shares 2/6, 3/6, 1/6: 0.5283 + 0.5 + 0.4308
        tensor(1.4591, dtype=torch.float64)
        >>> metric = trm.Entropy(2, attainable=True, catalogue=catalogue)
        >>> metric(scores)  # (1.4591 - 1) / (1.9183 - 1)
        tensor(0.5000, dtype=torch.float64)
    """


class Personalization(_ItemCountAtK, formula=personalization):
    """Personalization at k: 1 - shared items / items that two lists could share, both summed over all pairs of lists.

    Lists of a and b items could share min(a, b) items. Range: 0 (all lists are the same) to 1 (no two lists share an
    item); NaN for fewer than two lists that hold an item. All users are compared, since counts of items suffice. There
    is no standard error. Ties: equal scores are listed in the order of their ids.

    Also called inter-list diversity. Where lists are full, PyG's LinkPredPersonalization (of the first 4,096 users) and
    jurity's InterListDiversity are the same number; jurity compares shorter lists by cosine, a / sqrt(a b). Source:
    Zhou et al., Solving the apparent diversity-accuracy dilemma of recommender systems, 2010.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> catalogue = trm.Catalogue(4)
        >>> metric = trm.Personalization(2, catalogue=catalogue)
        >>> metric.update(scores)  # lists 0 1; 1 2; 1 0
        >>> metric.compute()  # 1 - (1 + 2 + 1) / (2 + 2 + 2)
        tensor(0.3333, dtype=torch.float64)
    """


class ExposureGini(_ItemCountAtK, formula=exposure_gini, reads_exposure=True, higher_is_better=False):
    """Gini coefficient at k of the items' exposure: an entry counts 1 / log2(1 + rank) in place of 1.

    Range: 0 to (I - 1) / I, as for `Gini`; lower is better. NaN if no list holds an item. There is no standard error:
    the value is not a mean over rows. Ties: equal scores are listed in the order of their ids.

    LensKit's ExposureGini with `LogRankWeight(offset=1)` is the same number (its default discount is geometric, and its
    sums are float32). Source of the exposure and its discount: Singh & Joachims, Fairness of exposure in rankings, KDD
    2018.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> catalogue = trm.Catalogue(4)
        >>> metric = trm.ExposureGini(2, catalogue=catalogue)
        >>> metric.update(scores)  # lists 0 1; 1 2; 1 0
        >>> # exposures of 0, 0.6309, 1.6309, 2.6309, whose sum is 4.8928
        >>> metric.compute()  # (-0.6309 + 1.6309 + 3 * 2.6309) / (4 * 4.8928)
        tensor(0.4544, dtype=torch.float64)
    """
