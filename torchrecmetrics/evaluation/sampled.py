"""`bound_sampled`: bounds of a metric over all items from sampled ranks; `propensity`: of items, from popularity."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchrecmetrics.base.metric import RankingMetric
from torchrecmetrics.base.row_values import RowEvaluator
from torchrecmetrics.checks import check_ids, check_k, describe, extra
from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.ranking import Ranking

_GRID = 400
"""Number of ranks with which the linear program begins."""
_BLOCK = 2**16
"""Number of ranks whose distributions are computed at once."""
_ROUNDS = 30
_EM_STEPS = 300


class SampledBounds(NamedTuple):
    """Bounds of a metric over all items."""

    low: float
    high: float
    estimate: float
    """The value under the distribution of true ranks that is most likely; other distributions fit about as well."""


def bound_sampled(
    ranks: Tensor,
    metric: str | RankingMetric,
    *,
    num_items: int,
    num_negatives: int,
    level: float = 0.95,
) -> SampledBounds:
    """Bound a metric over all items from ranks among sampled negatives.

    Each row has one relevant item. Its negatives were drawn uniformly, without replacement, from the other items. The
    bounds hold for every distribution of the true ranks whose distribution of sampled ranks lies in the
    Dvoretzky-Kiefer-Wolfowitz band around the observed one, so with probability `level` for the true distribution. They
    are found by a linear program over all ranks, whose dual certifies them. No factor turns sampled values into values
    over all items: the interval is often wide.

    Args:
        ranks: integers [n], 1 to `num_negatives` + 1: the rank of the relevant item of each row among its negatives.
            Mean ranks of ties are no integers: make the ranking with ties="pessimistic" or "optimistic".
        metric: a name such as "HR@10", or a metric of this package that is a mean over rows and reads ranks alone.
        num_items: number of items of the catalogue that compete, with the relevant item.
        num_negatives: number of negatives of each row, below `num_items`.
        level: confidence level, between 0 and 1.

    Raises:
        ImportError: without scipy.
        ValueError: for values that are not ranks, as many negatives as items, no rows, and other metrics.

    Source: Krichene & Rendle, On sampled metrics for item recommendation, KDD 2020; Massart, The tight constant in the
    Dvoretzky-Kiefer-Wolfowitz inequality, 1990.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> ranks = torch.tensor([1, 1, 2, 3, 5, 40] * 50)
        >>> bounds = trm.bound_sampled(ranks, "HR@10", num_items=2000, num_negatives=100)
        >>> bounds.low < bounds.estimate < bounds.high
        True
    """
    try:
        from scipy.optimize import linprog
    except ImportError as error:
        raise ImportError(f"bound_sampled needs scipy: {extra('sampled')}") from error
    num_items, num_negatives = check_k(num_items, "num_items"), check_k(num_negatives, "num_negatives")
    if num_negatives >= num_items:
        raise ValueError(f"num_negatives must be below num_items, got {num_negatives} of {num_items}")
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level!r}")
    check_ids("ranks", ranks)
    if ranks.dim() != 1 or not len(ranks):
        raise ValueError(f"ranks must be [n], one per row, got {list(ranks.shape)}")
    if int(ranks.min()) < 1 or int(ranks.max()) > num_negatives + 1:
        raise ValueError(
            f"ranks must be 1 to {num_negatives + 1}, got {int(ranks.min())} to {int(ranks.max())}; if they start at "
            "0, pass ranks + 1"
        )
    counts = np.bincount(ranks.cpu().numpy() - 1, minlength=num_negatives + 1)
    seen = counts.cumsum() / len(ranks)
    width = math.sqrt(math.log(2 / (1 - level)) / (2 * len(ranks)))
    values = _values(metric, num_items)
    law = _Law(num_items, num_negatives)
    ends = [_extreme(sign, values, law, seen, width, linprog) for sign in (1, -1)]
    low, high = sorted(np.clip([ends[0], -ends[1]], values.min(), values.max()))  # the solver rounds
    return SampledBounds(float(low), float(high), _estimate(values, law, counts))


class _Law(NamedTuple):
    """Distribution of the sampled rank for each true rank: 1 + a hypergeometric number."""

    num_items: int
    num_negatives: int

    def exactly(self, true_ranks: Any) -> Any:
        """Return P(sampled rank = j), [negatives + 1, ranks], for j = 1 .. negatives + 1."""
        better = torch.as_tensor(true_ranks, dtype=torch.float64)[None] - 1
        drawn = torch.arange(self.num_negatives + 1, dtype=torch.float64, device="cpu")[:, None]
        others = torch.tensor(float(self.num_items - 1), dtype=torch.float64, device="cpu")
        negatives = torch.tensor(float(self.num_negatives), dtype=torch.float64, device="cpu")
        possible = (drawn <= better) & (negatives - drawn <= others - better)
        log = _log_choose(better, drawn) + _log_choose(others - better, negatives - drawn)
        return (log - _log_choose(others, negatives)).exp().where(possible, 0).numpy()

    def at_most(self, true_ranks: Any) -> Any:
        """Return P(sampled rank <= j), [negatives, ranks], for j = 1 .. negatives."""
        return self.exactly(true_ranks)[:-1].cumsum(0)


def _log_choose(n: Tensor, k: Tensor) -> Tensor:
    """Return the log of n over k, elementwise; arbitrary where k > n."""
    rest = (n - k).clamp(min=0)
    return torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(rest + 1)


def _values(metric: Any, num_items: int) -> Any:
    """Return the metric's value at each true rank, [items]."""
    collection = RecMetricCollection(metric)
    if len(collection.members) != 1 or collection.members[0].of_items or collection.members[0].of_lists:
        raise ValueError(
            "metric must be one metric, such as 'HR@10', 'NDCG@10', 'MRR', 'AUROC' or 'MeanRank', a mean over rows "
            f"that reads ranks alone, got {', '.join(collection)}"
        )
    ranking = Ranking.from_ranks(torch.arange(1, num_items + 1, device="cpu"), num_ranked=num_items)
    return RowEvaluator(collection.members).values(ranking)[0].numpy()


def _extreme(sign: int, values: Any, law: _Law, seen: Any, width: float, linprog: Any) -> float:
    """Return the minimum of `sign` x metric over distributions in the band; columns are added until the dual holds."""
    number = law.num_items
    chosen = np.unique(np.geomspace(1, number, min(_GRID, number)).round().astype(int))
    low, high = (np.clip(seen[:-1] + shift, 0, 1) for shift in (-width, width))
    slack = 0.0
    for _ in range(_ROUNDS):
        table = law.at_most(chosen)
        found = linprog(
            sign * values[chosen - 1],
            A_ub=np.concatenate([table, -table]),
            b_ub=np.concatenate([high, -low]),
            A_eq=np.ones((1, len(chosen))),
            b_eq=[1.0],
            method="highs",
        )
        if not found.success:
            raise ValueError(
                "no law of ranks gives these sampled ranks: were negatives drawn uniformly from the other items, "
                "without repeats?"
            )
        above, below = np.split(found.ineqlin.marginals, 2)
        prices, constant = above - below, found.eqlin.marginals[0]
        reduced = np.concatenate(
            [
                sign * values[first : first + _BLOCK]
                - prices @ law.at_most(np.arange(first + 1, min(first + _BLOCK, number) + 1))
                - constant
                for first in range(0, number, _BLOCK)
            ]
        )
        slack = max(0.0, -float(reduced.min()))
        if slack < 1e-7:
            break
        worst = np.argsort(reduced)[:_GRID] + 1
        chosen = np.union1d(chosen, worst[reduced[worst - 1] < -1e-9])
    return float(found.fun) - slack  # a distribution has weight 1, so none has a lower value


def _estimate(values: Any, law: _Law, counts: Any) -> float:
    """Return the value under the most likely distribution, by expectation maximisation on a grid of ranks."""
    ranks = np.unique(np.geomspace(1, law.num_items, min(4 * _GRID, law.num_items)).round().astype(int))
    table = law.exactly(ranks)
    table, counts = table[counts > 0], counts[counts > 0]
    weight = np.full(len(ranks), 1 / len(ranks))
    for _ in range(_EM_STEPS):
        likelihood = np.maximum(table @ weight, np.finfo(float).tiny)
        weight = weight * (table.T @ (counts / likelihood)) / counts.sum()
    return float(weight @ values[ranks - 1])


def propensity(popularity: Tensor, gamma: float) -> Tensor:
    """Return the probability that an item's interactions are observed, (n_i / max n) ** ((gamma + 1) / 2), [I].

    Inverse propensities are gains: `gains = 1 / propensity(popularity, gamma)[target]`. An item of popularity 0, about
    which nothing is known, has 1.

    Args:
        popularity: number [I], >= 0: how often each item occurs in the training data.
        gamma: exponent of the power law of popularity, > -1; there is no default, since every value depends on it.

    Raises:
        TypeError: for anything but a tensor of numbers.
        ValueError: for negative or infinite popularity, and gamma <= -1.

    Source: Yang et al., Unbiased offline recommender evaluation for missing-not-at-random implicit feedback, RecSys
    2018, equation 8.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> trm.propensity(torch.tensor([16, 4, 0]), gamma=1.0)
        tensor([1.0000, 0.2500, 1.0000], dtype=torch.float64)
    """
    if not isinstance(popularity, Tensor) or popularity.is_complex() or popularity.dtype == torch.bool:
        raise TypeError(f"popularity must be a tensor of numbers, got {describe(popularity)}")
    if popularity.dim() != 1 or not len(popularity):
        raise ValueError(f"popularity must be [items], got {list(popularity.shape)}")
    if isinstance(gamma, bool) or not isinstance(gamma, (int, float)) or not -1 < gamma < math.inf:
        raise ValueError(f"gamma must be a number above -1, got {gamma!r}")
    popularity = popularity.double()
    if not bool((popularity.isfinite() & (popularity >= 0)).all()):
        raise ValueError("popularity must be finite and 0 or more")
    highest = popularity.max().clamp(min=1e-300)
    return (popularity / highest).pow((gamma + 1) / 2).masked_fill(popularity == 0, 1)
