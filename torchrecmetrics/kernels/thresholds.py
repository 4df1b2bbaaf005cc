"""Helpers of all kernels: thresholds and minimum scores in one tensor, masks over scores, and counts from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from torchrecmetrics.arrays import count_above, count_at_least, search
from torchrecmetrics.kernels.contract import Counts


def with_min_scores(thresholds: Tensor, min_scores: Sequence[float]) -> Tensor:
    """Append the minimum scores to the thresholds of each row, [B, T + len(min_scores)]."""
    if not min_scores:
        return thresholds
    columns = [thresholds.new_full((len(thresholds), 1), min_score) for min_score in min_scores]
    return torch.cat([thresholds, *columns], 1)


def working_dtype(scores: Tensor) -> torch.dtype:
    """Return the dtype in which scores are compared; float32 holds all numbers of half precision."""
    return torch.float64 if scores.dtype == torch.float64 else torch.float32


def working(values: Tensor) -> Tensor:
    """Return values in the dtype in which they are compared."""
    dtype = working_dtype(values)
    return values if values.dtype == dtype else values.to(dtype)  # `to` is a call even if nothing changes


def without_nan(values: Tensor, instead: float) -> Tensor:
    """Replace NaN by `instead`; infinities stay."""
    return values.nan_to_num(nan=instead, posinf=torch.inf, neginf=-torch.inf)


def mask_(scores: Tensor, masks: Iterable[Tensor]) -> Tensor:
    """Write -inf over masked items, [I] or [B, I]; on the CPU a minimum is several times faster than `masked_fill_`."""
    for mask in masks:
        limit = mask.view(torch.uint8).to(scores.dtype).sub_(0.5).mul_(-torch.inf)  # True: -inf, False: inf
        torch.minimum(scores, limit, out=scores)
    return scores


def from_buckets(edge: Tensor, order: Tensor, reaching: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
    """Return the counts > and >= each edge, int64 [B, edges], in the order of the edges before they were sorted.

    `reaching[:, n]` scores reach exactly n of the ascending edges, and `same[:, n]` of these equal the n-th edge.
    """
    reached = reaching[:, 1:].flip(1).cumsum(1).flip(1)
    # scores equal to an edge are in the bucket of the last edge equal to it
    equal = same.gather(1, search(edge, edge, right=True))
    at_least = torch.empty_like(reached).scatter_(1, order, reached)
    return at_least - torch.empty_like(equal).scatter_(1, order, equal), at_least


def subtract_removed(removed: Tensor | None, edges: Tensor, above: Tensor, at_least: Tensor) -> tuple[Tensor, Tensor]:
    """Subtract the removed items from the counts > the first edges (`above`) and >= all edges (`at_least`)."""
    if removed is None:
        return above, at_least
    return above - count_above(removed, edges[:, : above.shape[1]]), at_least - count_at_least(removed, edges)


def to_counts(
    edges: Tensor, asked: int, above: Tensor, at_least: Tensor, highest: Tensor, removed: Tensor | None
) -> Counts:
    """Return `Counts` from the counts > the first `asked` edges and >= all edges, less the removed items."""
    above, at_least = subtract_removed(removed, edges, above, at_least)
    if asked == at_least.shape[1]:
        return Counts(above, at_least - above, None, highest)
    return Counts(above, at_least[:, :asked] - above, at_least[:, asked:], highest)
