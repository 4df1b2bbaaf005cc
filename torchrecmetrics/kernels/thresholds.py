"""Helpers of all kernels: targets' scores beside score thresholds, masks over scores, and counts from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from torchrecmetrics.arrays import count_above, count_at_least, search
from torchrecmetrics.kernels.contract import Counts


def with_min_scores(thresholds: Tensor, min_scores: Sequence[float]) -> Tensor:
    """Return the thresholds and minimum scores that scores are compared with, [B, T + len(min_scores)]."""
    if not min_scores:
        return thresholds
    columns = [thresholds.new_full((len(thresholds), 1), min_score) for min_score in min_scores]
    return torch.cat([thresholds, *columns], 1)


def working_dtype(scores: Tensor) -> torch.dtype:
    """Half precision is compared in float32, which holds all of its numbers."""
    return torch.float64 if scores.dtype == torch.float64 else torch.float32


def working(values: Tensor) -> Tensor:
    """Return values in the dtype they are compared in."""
    dtype = working_dtype(values)
    return values if values.dtype == dtype else values.to(dtype)  # a conversion to nothing new is a call, too


def without_nan(values: Tensor, instead: float) -> Tensor:
    """Replace NaN, and nothing else."""
    return values.nan_to_num(nan=instead, posinf=torch.inf, neginf=-torch.inf)


def mask_(scores: Tensor, masks: Iterable[Tensor]) -> Tensor:
    """Write -inf over masked items, [I] or [B, I]; on the CPU a minimum is several times faster than `masked_fill_`."""
    for mask in masks:
        limit = mask.view(torch.uint8).to(scores.dtype).sub_(0.5).mul_(-torch.inf)  # True: -inf, False: inf
        torch.minimum(scores, limit, out=scores)
    return scores


def from_buckets(edge: Tensor, order: Tensor, reaching: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
    """Return the counts > and >= each edge, where the edges stood before they were sorted.

    `reaching` [B, edges + 1] scores reach just so many of the ascending edges, and `same` of them equal the last.
    """
    reached = reaching[:, 1:].flip(1).cumsum(1).flip(1)
    # equals of an edge lie in the bucket behind the last edge like it
    equal = same.gather(1, search(edge, edge, right=True))
    at_least = torch.empty_like(reached).scatter_(1, order, reached)
    return at_least - torch.empty_like(equal).scatter_(1, order, equal), at_least


def subtract_removed(removed: Tensor | None, edges: Tensor, above: Tensor, at_least: Tensor) -> tuple[Tensor, Tensor]:
    """Take the removed items off the counts > the first edges, as many as there are, and >= all of them."""
    if removed is None:
        return above, at_least
    return above - count_above(removed, edges[:, : above.shape[1]]), at_least - count_at_least(removed, edges)


def to_counts(
    edges: Tensor, asked: int, above: Tensor, at_least: Tensor, highest: Tensor, removed: Tensor | None
) -> Counts:
    """Return counts > the first `asked` thresholds and >= all of them, less the removed items."""
    above, at_least = subtract_removed(removed, edges, above, at_least)
    if asked == at_least.shape[1]:
        return Counts(above, at_least - above, None, highest)
    return Counts(above, at_least[:, :asked] - above, at_least[:, asked:], highest)
