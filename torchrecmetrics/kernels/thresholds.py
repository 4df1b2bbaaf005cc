"""Helpers of all kernels: join thresholds and minimum scores, mask scores, and make counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import count_above, count_at_least, float_dtype, search
from torchrecmetrics.kernels.contract import Counts


def with_min_scores(thresholds: Tensor, min_scores: Sequence[float]) -> Tensor:
    """Append the minimum scores to the thresholds of each row, [B, T + len(min_scores)]."""
    if not min_scores:
        return thresholds
    columns = [thresholds.new_full((len(thresholds), 1), min_score) for min_score in min_scores]
    return torch.cat([thresholds, *columns], 1)


def replace_nan(values: Tensor, instead: float) -> Tensor:
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


def count_removed(removed: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    """Return the numbers of removed scores > and >= each edge, float [B, edges]."""
    dtype = float_dtype(removed.device)
    return count_above(removed, edges).to(dtype), count_at_least(removed, edges).to(dtype)


def to_counts(
    edges: Tensor, width: int, above: Tensor, at_least: Tensor, highest: Tensor, removed: Tensor | None
) -> Counts:
    """Return `Counts` from the counts > the first `width` edges and >= all edges, less the removed items."""
    dtype = float_dtype(edges.device)
    above, at_least = above.to(dtype), at_least.to(dtype)
    if removed is not None:
        fewer_above, fewer = count_removed(removed, edges)
        above, at_least = above - fewer_above[:, :width], at_least - fewer
    reached = None if width == at_least.shape[1] else at_least[:, width:]
    return Counts(better=above, equal=at_least[:, :width] - above, at_least=reached, highest=highest)
