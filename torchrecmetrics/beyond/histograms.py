"""`HistogramMetric`: a function of how many lists each item stands in."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from torchrecmetrics.arrays import constant, counting, float_dtype, scalar, without
from torchrecmetrics.checks import VIOLATIONS
from torchrecmetrics.functional import log2_discounts
from torchrecmetrics.held import Increments, States
from torchrecmetrics.metric import RankingMetric
from torchrecmetrics.panel import ListedRows, Made
from torchrecmetrics.ranking import Needs
from torchrecmetrics.state import Summary

if TYPE_CHECKING:
    from typing_extensions import Self


class Histogram:
    """In how many lists each item stands; what metrics of all lists together read.

    Args:
        counts: int64 [I], in how many lists each item stands among the first k places; without the padding item.
        lengths: int64 [k + 1], how many lists hold 0, 1, ..., k items.
        exposure: float [I], sum of 1 / log2(1 + place) over the lists in which the item stands; None = not counted.
    """

    def __init__(self, counts: Tensor, lengths: Tensor, exposure: Tensor | None = None) -> None:
        self.counts: Tensor = counts
        self.lengths: Tensor = lengths
        self.exposure: Tensor | None = exposure

    @cached_property
    def total(self) -> Tensor:
        """Entries of all lists, int64 scalar."""
        return self.counts.sum()

    @cached_property
    def ascending(self) -> Tensor:
        """`counts`, fewest first."""
        return self.counts.sort().values


class HistogramMetric(RankingMetric):
    """A function of how many lists each item stands in, over all rows together.

    Its state is a count for each item, 8 bytes x I for each k (as much again where exposure is read), which metrics of
    one collection with the same `k` share; batches and processes add up. Every row with a list counts once, whatever is
    relevant; rows of weight 0 are left out, other weights count as 1. `num_users` says how many lists there were. There
    is no standard error: it is no mean over rows.

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
        """The items in the first `k` places."""
        k, num_items = self._size
        return Needs(k, target=False, lists=k, num_items=num_items)

    @property
    def _size(self) -> tuple[int, int]:
        """Places that count, and items."""
        assert self.k is not None
        assert self.catalogue is not None
        return self.k, self.catalogue.num_items

    @property
    def shares(self) -> Hashable:
        """Places and items: metrics with the same count the same lists."""
        return "histogram", *self._size, self.rules

    def _begin(self, name: str) -> None:
        k, num_items = self._size
        self._told = k + 1 + len(VIOLATIONS)
        self._keep_sums(f"{name}-{num_items}", num_items if self.reads_exposure else 0, self._told + num_items)

    def _try(self) -> None:
        k, _ = self._size
        none = torch.zeros(k + 1, dtype=torch.int64)
        self.formula(Histogram(none[:1], none, none[:1].double()), k, **self.arguments)

    @staticmethod
    def _zeros(length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        # one number for all of them, and one tensor for all metrics: they share what it becomes
        return _nothing(length, dtype, device)

    def increments(self, listed: ListedRows, made: Made) -> Increments:
        """Return what lists add to the state: lengths, violations, items; and exposure."""
        k, num_items = self._size
        assert self._told is not None
        lists, places = "lists", ("places", k)
        counts, sums = ("counts", k, num_items, id(listed.invalid)), ("sums", k)
        if lists not in made:
            made[lists] = _lists(listed)
        ids, counted = made[lists]
        if places not in made:
            made[places] = ids[:k].flatten(), counted[:k].flatten()
        if counts not in made:
            made[counts] = self._counts(listed, k, self._told, counted[:k].sum(0), *made[places])
        if self.reads_exposure and sums not in made:
            made[sums] = self._exposure(made, k)
        return Increments(made[sums] if self.reads_exposure else None, made[counts])

    @staticmethod
    def _counts(
        listed: ListedRows, k: int, told: int, lengths: Tensor, ids: Tensor, counted: Tensor
    ) -> tuple[Tensor, Tensor]:
        device, rows = ids.device, len(lengths)
        one = scalar(1, torch.int64, device)
        once = one.expand(rows) if listed.counted is None else listed.counted.long()
        where, how_much = [lengths, ids + told], [once, counted]
        if listed.invalid is not None:
            where.append(counting(len(VIOLATIONS), torch.int64, device) + k)
            how_much.append(listed.invalid[0])
        return torch.cat(where), torch.cat(how_much)

    @staticmethod
    def _exposure(made: Made, k: int) -> tuple[Tensor, Tensor]:
        if "weights" not in made:
            ids, counted = made["lists"]
            made["weights"] = ids, counted * log2_discounts(len(ids), float_dtype(ids.device), ids.device)[:, None]
        return made["places", k][0], made["weights"][1][:k].flatten()

    @classmethod
    def summaries(cls, metrics: Sequence[Self], states: States, counts: list[list[int]]) -> list[Summary]:
        """Turn counts of items into values; there are no standard errors."""
        found: list[Summary] = []
        shared: dict[int, Histogram] = {}
        for metric, state, told in zip(metrics, states.long, counts, strict=True):
            k, _ = metric._size
            metric._check_input(told[k + 1 :])
            histogram = shared.get(id(state.counts))
            if histogram is None:
                items = without(state.counts[len(told) :], metric.padding_idx)  # which is no item
                histogram = Histogram(items, state.counts[: k + 1])
                shared[id(state.counts)] = histogram
            if metric.reads_exposure:
                histogram.exposure = without(state.sums, metric.padding_idx)
            value = metric.formula(histogram, k, **metric.arguments).to(state.sums.dtype)
            found.append(Summary.without_error(value, sum(told[: k + 1])))
        return found


@constant
def _nothing(length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.zeros(1, dtype=dtype, device=device).expand(length)


def _lists(listed: ListedRows) -> tuple[Tensor, Tensor]:
    """Items that can be looked up, int64 [D, B], and how much each place counts, int64 [D, B]."""
    items = listed.items.T.contiguous()  # the first places of all rows are one piece
    held = items >= 0
    counted = held if listed.counted is None else held & listed.counted
    return items.clamp(min=0), counted.long()
