"""Student's t distribution in plain floats: tails and quantiles, with a relative error below 1e-12.

With t = sqrt(df) sinh(u) the density is proportional to cosh(u)^-df, whose integral from t on is a sum over nodes of
the double exponential formula (Takahasi & Mori, Double exponential formulas for numerical integration, 1974).
"""

from __future__ import annotations

import math
from functools import lru_cache

_STEPS = 16
"""Nodes per unit."""
_NODES = [math.exp(math.pi / 2 * math.sinh(number / _STEPS)) for number in range(-4 * _STEPS, 3 * _STEPS + 1)]
_WEIGHTS = [node * math.pi / 2 * math.cosh(number / _STEPS) / _STEPS for number, node in enumerate(_NODES, -4 * _STEPS)]


def upper_tail(t: float, df: float) -> float:
    """Return P(T > t) for `df` > 0 degrees of freedom; small tails keep their relative precision."""
    if t < 0:
        return 1 - upper_tail(-t, df)
    if math.isinf(t):
        return 0.0
    slope = t / math.sqrt(df + t * t)  # tanh(u) at t
    scale = 1 / (df * slope + math.sqrt(df))
    total = 0.0
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        x = scale * node
        if x > 700:
            break
        total += weight * math.exp(-df * math.log1p(2 * math.sinh(x / 2) ** 2 + slope * math.sinh(x)))
    return _density(t, df) * math.sqrt(df + t * t) * scale * total


def cdf(t: float, df: float) -> float:
    """Return P(T <= t) for `df` > 0 degrees of freedom."""
    return upper_tail(-t, df)


@lru_cache(maxsize=4096)
def quantile(probability: float, df: float) -> float:
    """Return the t with P(T <= t) = `probability`; -inf and inf for 0 and 1."""
    if not 0 <= probability <= 1:
        raise ValueError(f"probability must be between 0 and 1, got {probability!r}")
    if probability < 0.5:
        return -quantile_above(probability, df)
    return quantile_above(1 - probability, df)


@lru_cache(maxsize=4096)
def quantile_above(tail: float, df: float) -> float:
    """Return the t >= 0 with P(T > t) = `tail` <= 1/2."""
    if tail <= 0:
        return math.inf
    t = 0.0
    further = 1.0
    while upper_tail(further, df) > tail:
        t, further = further, 2 * further
    # the tail is convex for t >= 0, so Newton's steps from the left never overshoot
    for _ in range(500):
        step = (upper_tail(t, df) - tail) / _density(t, df)
        t += step
        if step <= 4e-16 * t:
            break
    return t


def _density(t: float, df: float) -> float:
    return math.exp(_log_gamma_ratio(df / 2) - 0.5 * math.log(math.pi * df) - (df + 1) / 2 * math.log1p(t * t / df))


def _log_gamma_ratio(a: float) -> float:
    """Return log(gamma(a + 1/2) / gamma(a)), for a large `a` by a series, since the two logarithms would cancel."""
    if a < 50:
        return math.lgamma(a + 0.5) - math.lgamma(a)
    return 0.5 * math.log(a) - 1 / (8 * a) + 1 / (192 * a**3) - 1 / (640 * a**5)
