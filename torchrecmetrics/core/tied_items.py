"""`TiedItems`: what formulas read of items in tie groups, as expectations over all orders of equal scores.

Source: McSherry & Najork, Computing information retrieval performance measures efficiently in the presence of tied
scores, 2008. Of a tie group of n candidates that begins behind g better ones, c = min(max(k - g, 0), n) places are in
the top k, and each member stands at each of the n places with equal probability.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import cached_constant, can_sync, running_sums
from torchrecmetrics.core.ranked_items import Cutoffs, Discount, K, RankedItems, derived, log2_discount

TILE_PLACES, TILE_NUMBERS = 2**14, 2**21
"""Places, and rows x places, whose probabilities are held at once, where several items of a row are relevant."""
_CONSTANT_DISCOUNTS = (torch.reciprocal, torch.ones_like, log2_discount)
"""Discounts whose sums are kept, since they are the same whenever they are asked for."""
TABLE_RANKS, TABLE_BETTER = 1000, 64
"""Harmonic sums are read from a table up to this rank, and of groups behind fewer items, else from a series."""


class TieGroups(NamedTuple):
    """The tie group of each item, [B, T] beside the ranks."""

    better: Tensor
    """Number of candidates that score higher; 2^52 for items that are not ranked."""
    size: Tensor
    """Number of candidates in the group."""
    num_members: Tensor | float
    """Number of the row's items in the group; 1.0 where T = 1."""
    number: Tensor | float
    """1, 2, ..., `num_members`: number of the item in the group; 1.0 where T = 1."""
    num_ranks: int
    """Number of ranks that a row can have: at least its number of candidates."""


@dataclass(frozen=True, eq=False)
class TiedItems(RankedItems):
    """Items of which some share their score with other candidates. `ranks` holds their expected ranks."""

    tie_groups: TieGroups = field(kw_only=True)

    @derived
    def num_hits(self, k: K) -> Tensor:
        """Return the expected number of items in the top `k`, float."""
        return _row_sums(self._num_in_top(k) / self.tie_groups.size)

    @derived
    def any_hit(self, k: K) -> Tensor:
        """Return the probability that an item is in the top `k`: 1 - that of none, the items placed one by one."""
        if self.ranks.shape[1] == 1:
            return self.num_hits(k)
        free = self.tie_groups.size - self.tie_groups.number + 1
        return 1 - (1 - self._num_in_top(k) / free).prod(-1)

    def sum_hits(self, discount: Discount, k: K, gains: Tensor | None = None) -> Tensor:
        """Return the sum over items of gain times the mean discount of the tie group's places, 0 beyond the top k."""
        table = _cached_sums if any(discount is known for known in _CONSTANT_DISCOUNTS) else _prefix_sums
        sums, (start, end) = table(discount, self._last_place(k), self._dtype_and_device), self._span(k)
        means = (sums[end] - sums[start]) / self.tie_groups.size
        # without rounding where there is no tie
        means = means.where(self.tie_groups.size > 1, discount(self._start(k) + 1) * self._num_in_top(k))
        return _row_sums(means if gains is None else gains * means)

    @derived
    def reciprocal_first(self, k: K) -> Tensor:
        """Return the sum over the places r of the top `k` of P(the first item stands at r) / r."""
        if self.ranks.shape[1] == 1:
            return self.sum_hits(torch.reciprocal, k)
        groups = self.tie_groups
        assert isinstance(groups.num_members, Tensor)  # T > 1
        better, size, num_members = groups.better[:, :1], groups.size[:, :1], groups.num_members[:, :1]
        plain = self._num_in_top(k)[..., 0] / (better[:, 0] + 1)
        if not can_sync(better):
            return torch.where(size[:, 0] > 1, self._first_of_group(better, size, num_members, k), plain)
        rows = ((size > 1) & (better < self._last_place(k)))[:, 0].nonzero()[:, 0]  # only these, a few at a time
        if not len(rows):
            return plain
        longest = int((better + size)[rows].max())
        for tile_rows in torch.split(rows, max(1, TILE_NUMBERS // min(longest, TILE_PLACES))):
            cut = k[..., tile_rows] if isinstance(k, Tensor) else k
            tile = better[tile_rows], size[tile_rows], num_members[tile_rows]
            plain[..., tile_rows] = self._first_of_group(*tile, cut)
        return plain

    def _first_of_group(self, better: Tensor, size: Tensor, num_members: Tensor, k: K) -> Tensor | float:
        """Return the mean of 1 / r over the places r of the first of `num_members` items, 0 beyond the top `k`.

        The group of a row is described by [n, 1]; places are walked in tiles.
        """
        last_place, edges = self._last_place(k), self._cutoff(k)
        if can_sync(better):
            last_place = min(last_place, int((better + size).max()))
        survival = torch.ones_like(better)
        total: Tensor | float = 0.0
        tile = max(1, min(TILE_PLACES, TILE_NUMBERS // max(1, len(better))))
        for start in range(0, last_place, tile):
            places = torch.arange(
                start + 1, min(start + tile, last_place) + 1, dtype=better.dtype, device=better.device
            )
            open_places = (better + size + 1 - places).clamp(min=num_members)
            hazard = num_members / open_places * (places > better)  # the probability, if none is before
            none = survival * (1 - hazard).cumprod(1)
            terms = torch.cat([survival, none[:, :-1]], 1) * hazard / places
            if isinstance(k, Cutoffs):
                total = total + (places <= edges[..., 0]).to(terms.dtype) @ terms.T  # type: ignore[index]
            else:  # one cut-off is the last place
                total = total + (terms * (places <= edges) if isinstance(k, Tensor) else terms).sum(-1)
            survival = none[:, -1:]
        return total

    def sum_of_precisions(self, k: K) -> Tensor:
        """Return the sum over items of the mean of (hits up to p) / p over the tie group's places p in the top `k`.

        Given an item at p, each other one of its group stands before it with probability (p - better - 1) / (size - 1).
        """
        if self.ranks.shape[1] == 1:
            return self.reciprocal_first(k)
        better, size, num_in_top = self.tie_groups.better, self.tie_groups.size, self._num_in_top(k)
        slope = (self.tie_groups.num_members - 1) / (size - 1).clamp(min=1)
        hits = self.positions - self.tie_groups.number + 1 - slope * (better + 1)
        means = (hits * self._harmonic_sums(k) + slope * num_in_top) / size
        return _row_sums(means.where(size > 1, self.positions / (better + 1) * num_in_top))

    def within(self, depth: float) -> TiedItems:
        """Return the items with ranks beyond `depth` set to `inf`; groups that begin within it stay known."""
        return replace(self, ranks=self.ranks.where(self.ranks <= depth, torch.inf))

    @property
    def _dtype_and_device(self) -> tuple[torch.dtype, torch.device]:
        return self.ranks.dtype, self.ranks.device

    def _cutoff(self, k: K) -> int | Tensor:
        """Return the cut-offs in a shape that broadcasts against [B, T]."""
        edges: Any = self.tie_groups.num_ranks if k is None else k
        if isinstance(k, Cutoffs):
            edges = k.column(*self._dtype_and_device)
        return edges[..., None] if isinstance(edges, Tensor) else edges

    def _last_place(self, k: K) -> int:
        """Return the last place that the cut-offs reach, from shapes alone."""
        if k is None or isinstance(k, Tensor):
            return self.tie_groups.num_ranks
        return min(k if isinstance(k, int) else max(k), self.tie_groups.num_ranks)

    @derived
    def _num_in_top(self, k: K) -> Tensor:
        """Return c, how many places of each item's group are in the top `k`: [B, T] or [K, B, T]."""
        return (self._cutoff(k) - self.tie_groups.better).clamp(min=0).minimum(self.tie_groups.size)

    @derived
    def _span(self, k: K) -> tuple[Tensor, Tensor]:
        """Return the number of places before each group, and up to the last of its places in the top `k`, int64."""
        start = self._start(k).long()
        return start, start + self._num_in_top(k).long()

    @derived
    def _start(self, k: K) -> Tensor:
        """Return the number of places before each group, at most the last place that the cut-offs reach, [B, T]."""
        return self.tie_groups.better.clamp(max=self._last_place(k))

    def _harmonic_sums(self, k: K) -> Tensor:
        """Return the sum of 1 / p over the group's places p in the top `k`, with an error below 1e-12 / `better`."""
        last_place, better = self._last_place(k), self.tie_groups.better
        sums, (start, end) = _cached_sums(torch.reciprocal, last_place, self._dtype_and_device), self._span(k)
        table_sums = sums[end] - sums[start]
        if last_place <= TABLE_RANKS:
            return table_sums
        middle = better + 0.5
        series_sums = (
            torch.log1p(self._num_in_top(k) / middle)
            + _harmonic_rest(middle + self._num_in_top(k))
            - _harmonic_rest(middle)
        )
        return table_sums.where(better < TABLE_BETTER, series_sums)


def _prefix_sums(discount: Discount, last_place: int, dtype_and_device: tuple[torch.dtype, torch.device]) -> Tensor:
    """Return the sums of the discounts of the first 0, 1, ..., `last_place` places, float [last_place + 1]."""
    dtype, device = dtype_and_device
    places = torch.arange(1, last_place + 1, dtype=dtype, device=device)
    return torch.nn.functional.pad(running_sums(discount(places)[None])[0], (1, 0))


_cached_sums = cached_constant(_prefix_sums)


def _harmonic_rest(x: Tensor) -> Tensor:
    """Return H(n) - log(x) - Euler's constant for x = n + 1/2; the error is 1e-13 from n = 64 on."""
    square = (x * x).reciprocal()
    return square * (1 / 24 - square * (7 / 960))


def _row_sums(values: Tensor) -> Tensor:
    """Return sums over the last dimension, added from left to right, as without ties."""
    if values.shape[-1] == 1:
        return values[..., 0]
    return running_sums(values.flatten(0, -2))[:, -1].view(values.shape[:-1])
