"""`RankedItems`, and `TiedItems` of equal scores: quantities of each row that formulas read; `Cutoffs`: several k."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import cached_constant, can_sync, group_mean, is_traced, running_sums, search
from torchrecmetrics.core.checks import check_k

if TYPE_CHECKING:
    from typing_extensions import TypeVarTuple, Unpack

    More = TypeVarTuple("More")

Owner = TypeVar("Owner")
Made = TypeVar("Made")

Discount = Callable[[Tensor], Tensor]
"""A function from ranks, float, to the value of a hit at that rank."""


def log2_discount(ranks: Tensor) -> Tensor:
    """Return 1 / log2(1 + rank); 0 for a rank of `inf`."""
    return torch.log2(1 + ranks).reciprocal()


class Cutoffs(tuple[int, ...]):
    """The cut-offs of metrics that share a formula, whose results are [K, B]."""

    __slots__ = ()


@cached_constant
def column_of(ks: Cutoffs, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the cut-offs as [K, 1], which broadcasts against rows."""
    # filled on the device, since a copy from the host could wait for it
    return torch.cat([torch.full((1, 1), float(k), dtype=dtype, device=device) for k in ks])


K = int | Sequence[int] | Tensor | None
"""One cut-off (result [B]), several ([K, B]), a tensor with one per row ([B] or [K, B]), or None = the whole
ranking."""


def check_cutoffs(k: int | Sequence[int]) -> int | Cutoffs:
    """Return one cut-off as an int >= 1, or a sequence of cut-offs as `Cutoffs`, or raise."""
    if isinstance(k, Cutoffs):
        return k
    if not isinstance(k, Sequence) or isinstance(k, str):
        try:
            return check_k(k)
        except TypeError as error:
            raise TypeError(f"{error}; several cut-offs are a list") from None
    if not len(k):
        raise ValueError("k holds no cut-off")
    return Cutoffs(check_k(cutoff) for cutoff in k)


def derived(make: Callable[[Owner, Unpack[More]], Made]) -> Callable[[Owner, Unpack[More]], Made]:
    """Cache the results of a function in its first argument, a ranking or its items, by the other arguments.

    Results for tensor arguments are not cached, since such tensors are temporary. torch.compile needs no cache.
    """

    @wraps(make)
    def cached(owner: Owner, *arguments: Unpack[More]) -> Made:
        if is_traced() or any(isinstance(argument, Tensor) for argument in arguments):
            return make(owner, *arguments)
        cache: dict[Any, Any] = owner._cache  # type: ignore[attr-defined]
        key = (make, *arguments)
        if key not in cache:
            cache[key] = make(owner, *arguments)
        result: Made = cache[key]
        return result

    return cached


@dataclass(frozen=True, eq=False)
class RankedItems:
    """Ranks of some items of each row, best first: the relevant ones, or those with a negative gain.

    Methods take a checked cut-off `K`: `Ranking` checks it, and the depth.
    """

    ranks: Tensor
    """Float [B, T], ascending, 1 = best; `inf` = not ranked, beyond the depth, or padding."""
    gains: Tensor | None = None
    """Float [B, T]: gains of the items in `ranks` (0 = padding); None = every item gains 1."""
    tie_group: Tensor | None = None
    """Int64 [B, T]: first slot of each item's tie group, over which gains are averaged; None = no average."""
    _cache: dict[Any, Tensor] = field(default_factory=dict, init=False, repr=False)

    @derived
    def num_hits(self, k: K) -> Tensor:
        """Return the number of items in the top `k`, float."""
        return self._count(k).to(self.ranks.dtype)

    @derived
    def any_hit(self, k: K) -> Tensor:
        """Return 1 if an item is in the top `k`, else 0, float."""
        return self.num_hits(k) if self.width == 1 else self.hits(k, 1)[..., 0].to(self.ranks.dtype)

    def sum_hits(self, discount: Discount, k: K, gains: Tensor | None = None) -> Tensor:
        """Return the sum over the hits in the top `k` of discount(rank), times their `gains` [B, T] if given."""
        values = discount(self.ranks)
        return self._sum_first(values if gains is None else gains * values, k)

    @derived
    def reciprocal_first(self, k: K) -> Tensor:
        """Return 1 / rank of the best item if it is in the top `k`, else 0."""
        return self.any_hit(k) / self.ranks[:, 0]

    def sum_of_precisions(self, k: K) -> Tensor:
        """Return the sum over the hits in the top `k` of i / rank, the precision at the i-th hit."""
        if self.width == 1:
            return self.reciprocal_first(k)
        return self._sum_first(positions(self.width, self.ranks.dtype, self.ranks.device) / self.ranks, k)

    @property
    def width(self) -> int:
        """T, the largest number of items of a row."""
        return self.ranks.shape[1]

    def placed(self, transform: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the transformed gains in the order of the ranks, [B, T]; items of a tie group share the mean gain."""
        gains = transform(self.ranks.isfinite().to(self.ranks.dtype) if self.gains is None else self.gains)
        return gains if self.tie_group is None else group_mean(gains, self.tie_group)

    def within(self, depth: int) -> RankedItems:
        """Return the items with ranks beyond `depth` set to `inf`."""
        return RankedItems(self.ranks.where(self.ranks <= depth, torch.inf), self.gains, self.tie_group)

    def only(self, kept: Tensor) -> RankedItems:
        """Return the items that are `kept`, bool [B, T], without gains."""
        return RankedItems(self.ranks.where(kept, torch.inf).sort(dim=1).values)

    def hits(self, k: K, width: int | None = None) -> Tensor:
        """Return which of the `width` best items (None = all) are in the top `k`, bool [B, T], or [K, B, T]."""
        ranks = self.ranks[:, :width]
        if k is None:
            return ranks.isfinite()
        edges = column_of(k, self.ranks.dtype, self.ranks.device) if isinstance(k, Cutoffs) else k
        return ranks <= (edges[..., None] if isinstance(edges, Tensor) else edges)  # type: ignore[operator]

    @derived
    def _count(self, k: K) -> Tensor:
        """Return the number of items in the top `k`, bool (of one item) or int64 [B] or [K, B]."""
        if self.width == 1:
            return self.hits(k)[..., 0]
        if isinstance(k, Cutoffs):
            edges = column_of(k, self.ranks.dtype, self.ranks.device).T.expand(len(self.ranks), -1)
            return search(self.ranks, edges, right=True).T
        return self.hits(k).sum(-1)

    def _sum_first(self, values: Tensor, k: K) -> Tensor:
        """Return the sum of the values [B, T] of the items in the top `k`."""
        number = self._count(k)
        return torch.where(number, values[:, 0], 0) if values.shape[1] == 1 else sum_first(values, number)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_cache": {}}


@cached_constant
def positions(width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return 1, 2, ..., width, float [width]."""
    return torch.arange(1, width + 1, dtype=dtype, device=device)


def sum_first(values: Tensor, number: Tensor) -> Tensor:
    """Return the sums of the first `number`, int64 [B] or [K, B], of each row's values [B, T]: [B] or [K, B]."""
    sums = torch.nn.functional.pad(running_sums(values), (1, 0))
    return sums.gather(1, number[:, None])[:, 0] if number.dim() == 1 else sums.gather(1, number.T).T


AnyCutoff: TypeAlias = int | Sequence[int]
"""One cut-off, which gives a result [B], or a list or tuple of K cut-offs, which gives [K, B]."""


@cached_constant
def log2_discounts(places: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the discounts 1 / log2(1 + rank) of ranks 1 to `places`."""
    return log2_discount(torch.arange(1, places + 1, dtype=dtype, device=device))


LAST_RANK = 2**52
"""Larger than any rank; missing items have rank `inf`."""
MAX_PLACES = 512
"""Last rank up to which expectations are sums over ranks."""
TILE_NUMBERS = 2**21
"""Rows x ranks of whole rankings that are processed at once."""


class TiedItems(RankedItems):
    """Items some of which share their score with other candidates."""

    better: Tensor
    """Float [B, T], ascending: number of candidates that score higher; 2^52 = not ranked."""
    size: Tensor
    """Float [B, T], >= 1: number of candidates with the same score; inexact for groups that begin beyond the depth."""
    num_places: int
    """Number of ranks that are known, or that a row can have."""

    def __init__(self, better: Tensor, size: Tensor, num_places: int, gains: Tensor | None = None) -> None:
        better, size = better.clamp(max=LAST_RANK), size.clamp(min=1)
        vars(self).update(better=better, size=size, num_places=num_places, gains=gains, _cache={})

    @property
    @derived
    def ranks(self) -> Tensor:
        """The expected ranks of the items, computed when first read."""
        ranks = expected_ranks(self.better, self.size, *numbers_in_groups(self.better)[1:])
        return ranks.masked_fill(ranks > self.num_places, torch.inf)

    @property
    def width(self) -> int:
        """T, the largest number of items of a row."""
        return self.better.shape[1]

    def within(self, depth: int) -> TiedItems:
        """Return the items with ranks beyond `depth` set to `inf`; a tie group that begins within it stays whole."""
        return TiedItems(self.better, self.size, min(depth, self.num_places), self.gains)

    def only(self, kept: Tensor) -> TiedItems:
        """Return the items that are `kept`, bool [B, T], without gains; their tie groups keep their sizes."""
        better, order = self.better.where(kept, LAST_RANK).sort(dim=1, stable=True)
        return TiedItems(better, self.size.gather(1, order), self.num_places)

    @derived
    def num_hits(self, k: K) -> Tensor:
        """Return the expected number of items in the top `k`, float."""
        return _row_sums(self._num_in_top(k) / self.size)

    @derived
    def any_hit(self, k: K) -> Tensor:
        """Return the probability that at least one item is in the top `k`: 1 - the probability of none."""
        if self.width == 1:
            return self.num_hits(k)
        if last := self._num_described(k):
            return _sum_up_to(k, self._by_place(last)[1])
        free = (self.size - numbers_in_groups(self.better)[2] + 1).clamp(min=1)
        return 1 - (1 - self._num_in_top(k) / free).prod(-1)

    def sum_hits(self, discount: Discount, k: K, gains: Tensor | None = None) -> Tensor:
        """Return the sum over items of gain times the mean discount of the tie group's ranks, 0 beyond the top k."""
        if last := self._num_described(k):
            hits, _, _, slot = self._by_place(last)
            if gains is not None:
                hits = hits * (
                    gains if slot is None else group_mean(gains, search(self.better, self.better)).gather(1, slot)
                )
            return _sum_up_to(k, hits * self._discounts(discount, last))
        start, num_in_top = self.better.clamp(max=self.num_places), self._num_in_top(k)
        sums = torch.nn.functional.pad(running_sums(self._discounts(discount, self.num_places)[None])[0], (1, 0))
        means = (sums[(start + num_in_top).long()] - sums[start.long()]) / self.size
        # without rounding where there is no tie
        means = means.where(self.size > 1, discount(start + 1) * num_in_top)
        return _row_sums(means if gains is None else gains * means)

    @derived
    def reciprocal_first(self, k: K) -> Tensor:
        """Return the sum over the ranks r <= `k` of P(the first item is at r) / r."""
        if self.width == 1:
            return self.sum_hits(torch.reciprocal, k)
        if last := self._num_described(k):
            return _sum_up_to(k, self._by_place(last)[1] / self._places(last))
        values = self._num_in_top(k)[..., 0] / (self.better[:, 0] + 1)
        rows, last = torch.arange(values.shape[-1], device=values.device), self.num_places
        if can_sync(values):  # only tied rows, up to their last rank
            rows = (self.size[:, 0] > 1).nonzero()[:, 0]
            last = min(last, int((self.better + self.size)[rows, 0].max())) if len(rows) else 0
        places = self._places(last)
        for tile_rows in torch.split(rows, max(1, TILE_NUMBERS // max(1, last))):
            tile = TiedItems(self.better[tile_rows], self.size[tile_rows], last)
            edges = self._cutoff(k[..., tile_rows] if isinstance(k, Tensor) else k)
            values[..., tile_rows] = (tile._by_place(last)[1] / places * (places <= edges)).sum(-1)
        return values

    def sum_of_precisions(self, k: K) -> Tensor:
        """Return the sum over items of the mean of (hits up to p) / p over the tie group's ranks p in the top `k`.

        Given an item at p, each other item of its group is before it with probability (p - better - 1) / (size - 1).
        """
        if self.width == 1:
            return self.reciprocal_first(k)
        if last := self._num_described(k):
            return _sum_up_to(k, self._by_place(last)[2] / self._places(last))
        num_in_top, (_, num_members, number) = self._num_in_top(k), numbers_in_groups(self.better)
        slope = (num_members - 1) / (self.size - 1).clamp(min=1)
        item_number = self._places(self.width)
        hits = item_number - number + 1 - slope * (self.better + 1)
        means = (hits * self._harmonic_sums(k) + slope * num_in_top) / self.size
        return _row_sums(means.where(self.size > 1, item_number / (self.better + 1) * num_in_top))

    def _num_described(self, k: K) -> int:
        """Return the number of ranks to sum over; 0 for cut-offs that may be beyond `MAX_PLACES`."""
        if k is None or isinstance(k, Tensor):
            return 0
        last = self.num_places if self.num_places <= MAX_PLACES else k if isinstance(k, int) else max(k)
        return last if last <= MAX_PLACES else 0

    @derived
    def _by_place(self, last: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return four tensors [B, last] about the ranks 1 to `last`, by the last tie group that begins before each.

        1. The expected number of items at the rank; 2. the probability that the first item is there; 3. the expected
        number of items there times that of items up to there; 4. a column of the group (None = the only one).
        """
        places, better, size = self._places(last), self.better, self.size
        if self.width == 1:
            hits = size.reciprocal() * ((places > better) & (places <= better + size))
            return hits, hits, hits, None
        end = search(better, places.expand(len(better), -1))
        slot = (end - 1).clamp(min=0)
        start = search(better, better).gather(1, slot)
        num_members = (end - start).to(better.dtype)  # 0 before the first group
        number, size = places - better.gather(1, slot), size.gather(1, slot)  # of the rank in the group
        inside, free = number <= size, size - number + 1
        hits = num_members / size * inside
        hazard = num_members / free.maximum(num_members) * inside
        none = torch.nn.functional.pad((1 - hazard).cumprod(1)[:, :-1], (1, 0), value=1.0)
        hits_up_to = start + 1 + (number - 1) * ((num_members - 1) / (size - 1).clamp(min=1))
        return hits, none * hazard, hits * hits_up_to, slot

    def _places(self, last: int) -> Tensor:
        return positions(last, self.better.dtype, self.better.device)

    def _discounts(self, discount: Discount, last: int) -> Tensor:
        """Return the discounts of ranks 1 to `last`."""
        if discount is log2_discount:
            return log2_discounts(last, self.better.dtype, self.better.device)
        return discount(self._places(last))

    def _cutoff(self, k: K) -> int | Tensor:
        """Return the cut-offs in a shape that broadcasts against [B, T]."""
        edges: Any = self.num_places if k is None else k
        if isinstance(k, Cutoffs):
            edges = column_of(k, self.better.dtype, self.better.device)
        return edges[..., None] if isinstance(edges, Tensor) else edges

    @derived
    def _num_in_top(self, k: K) -> Tensor:
        """Return c, the number of ranks of each item's group in the top `k`: [B, T] or [K, B, T]."""
        return (self._cutoff(k) - self.better).clamp(min=0).minimum(self.size)

    def _harmonic_sums(self, k: K) -> Tensor:
        """Return the sum of 1 / p over the group's ranks p in the top `k`, with an error below 1e-12 / `better`."""
        start = self.better + 0.5
        end = start + self._num_in_top(k)
        series_sums = torch.log1p((end - start) / start) + _harmonic_rest(end) - _harmonic_rest(start)
        return series_sums.where(start > 64, torch.digamma(end + 0.5) - torch.digamma(start + 0.5))


def numbers_in_groups(better: Tensor) -> tuple[Tensor | None, Tensor | float, Tensor | float]:
    """Return for each item the first column of its tie group, the group's number of items, and its number in it."""
    if better.shape[1] == 1:
        return None, 1.0, 1.0
    first_slot = search(better, better)
    num_members = search(better, better, right=True) - first_slot
    return first_slot, num_members, positions(better.shape[1], better.dtype, better.device) - first_slot


def expected_ranks(better: Tensor, size: Tensor, num_members: Tensor | float, number: Tensor | float) -> Tensor:
    """Return the expected rank of each item, better + number (size + 1) / (num_members + 1)."""
    return better + (size + 1) * (number / (num_members + 1))


def _sum_up_to(k: K, values: Tensor) -> Tensor:
    """Return the sums of values [B, ranks] over the first `k` ranks, [B] or [K, B]."""
    assert k is not None
    sums, last = running_sums(values), values.shape[1]
    if isinstance(k, int):
        return sums[:, min(k, last) - 1]
    return torch.stack([sums[:, min(cutoff, last) - 1] for cutoff in k])


def _harmonic_rest(x: Tensor) -> Tensor:
    """Return H(n) - log(x) - Euler's constant for x = n + 1/2; the error is 1e-13 from n = 64 on."""
    square = (x * x).reciprocal()
    return square * (1 / 24 - square * (7 / 960))


def _row_sums(values: Tensor) -> Tensor:
    """Return sums over the last dimension, added from left to right, as without ties."""
    if values.shape[-1] == 1:
        return values[..., 0]
    return running_sums(values.flatten(0, -2))[:, -1].view(values.shape[:-1])
