"""Formulas of item-group fairness: statistical parity and equal opportunity.

A rate is a count over what it could be, both summed over all users; groups that could not be counted are left out. No
value is taken to the host.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchrecmetrics.arrays import float_dtype


def statistical_parity(recommended: Tensor, candidates: Tensor) -> Tensor:
    """Spread of exposure rates over groups of items: std / mean of recommended_g / candidates_g.

    With groups by popularity Elliot's PopRSP, else its RSP: ranking-based statistical parity. There all users with a
    list count, and candidates are the items of the group that the user has not in train.

    Args:
        recommended: number [G]: entries of all users' first k places that are items of the group.
        candidates: number [G]: pairs of a user with a list and an item of the group that may be recommended to them.

    Returns:
        Float, scalar; 0 where all rates are equal, to sqrt(G - 1) where one group has all; the deviation is that of n.
        NaN where nothing is recommended, and for less than two groups with candidates.

    Source: Zhu, Wang & Caverlee, Measuring and mitigating item under-recommendation bias in personalized ranking
    systems, SIGIR 2020; Elliot 0.3.1.

    Example:
        >>> import torch
        >>> statistical_parity(torch.tensor([80, 20]), torch.tensor([200, 800]))  # rates 0.4 and 0.025
        tensor(0.8824, dtype=torch.float64)
    """
    return _spread(recommended, candidates)


def equal_opportunity(found: Tensor, relevant: Tensor) -> Tensor:
    """Spread of recalls over groups of items: std / mean of found_g / relevant_g.

    With groups by popularity Elliot's PopREO, else its REO: ranking-based equal opportunity. Its relevant pairs are
    those that the user has not in train.

    Args:
        found: number [G]: entries of all users' first k places that are relevant to them, and items of the group.
        relevant: number [G]: pairs of a user and a relevant item of the group.

    Returns:
        Float, scalar, as `statistical_parity`; NaN where nothing relevant is found, and for less than two groups with
        relevant items.

    Source: as `statistical_parity`.

    Example:
        >>> import torch
        >>> equal_opportunity(torch.tensor([30, 1]), torch.tensor([100, 10]))  # recalls 0.3 and 0.1
        tensor(0.5000, dtype=torch.float64)
    """
    return _spread(found, relevant)


def _spread(counts: Tensor, of: Tensor) -> Tensor:
    """Return std / mean of counts / of, over groups with any."""
    there, dtype = of > 0, float_dtype(of.device)
    rates = torch.where(there, counts.to(dtype) / of.to(dtype), 0)
    groups = there.sum().to(dtype)
    mean = rates.sum() / groups
    variance = torch.where(there, (rates - mean).square(), 0).sum() / groups
    return (variance.sqrt() / mean).masked_fill(groups < 2, torch.nan)
