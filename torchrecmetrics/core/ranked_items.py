"""`RankedItems`: ranks of items of each row, and the quantities that formulas read; `Cutoffs`: several k."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import cached_constant, group_mean, is_traced, running_sums, search
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
