"""Confidence intervals of a mean from its value, error and effective number of rows: Wilson's, Student's, ABC."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from torchrecmetrics.core.checks import check_choice

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


IntervalMethod: TypeAlias = Literal["score", "student"]

_NEAR = 1e-12


def check_level(level: Any) -> float:
    """Return a confidence level as a float between 0 and 1, or raise."""
    if isinstance(level, (bool, str)) or not hasattr(level, "__float__"):
        raise TypeError(f"level must be a number between 0 and 1, such as 0.95, got {level!r}")
    if not 0 < float(level) < 1:
        raise ValueError(f"level must be between 0 and 1, such as 0.95, got {level!r}")
    return float(level)


def interval(
    value: float,
    standard_error: float,
    size: float,
    bounds: tuple[float, float] | None = (0.0, 1.0),
    level: float = 0.95,
    method: IntervalMethod = "score",
) -> tuple[float, float]:
    """Return the confidence interval of a mean.

    `student` is m ± t s / sqrt(n), with n - 1 degrees of freedom. `score` is Wilson's interval with the same t for n_e
    = m (1 - m) / standard_error^2 rows of 0 or 1. It stays within the bounds, but its coverage is too low if few rows
    have a hit. If all rows are equal, their spread is unknown and n_e = n, so the upper end jumps at m = 0.

    Args:
        value: the mean m.
        standard_error: standard error of the mean, s / sqrt(n).
        size: number of rows n; for rows with weights (sum w)^2 / sum w^2.
        bounds: lowest and highest possible value of a row; an infinite bound is unknown, None = both are unknown. Value
            and error are scaled from the bounds to (0, 1).
        level: confidence level, between 0 and 1.
        method: "score" or "student". "score" falls back to "student" if a bound is unknown, or if the error is larger
            than rows within the bounds allow, s^2 > m (1 - m) n / (n - 1). A single known bound clips the interval.

    Returns:
        Low and high; nan for fewer than 2 rows, or if the value or error is nan.

    Raises:
        TypeError: if `level` is not a number.
        ValueError: for a level outside (0, 1), an unknown method, or bounds that are not two ascending numbers.

    Source: Wilson, Probable inference, JASA 22, 1927; the effective size is Korn and Graubard's, Survey Methodology
    24, 1998, as are the degrees of freedom.

    Example:
        >>> [round(end, 3) for end in interval(0.1, 0.0213, 200)]
        [0.058, 0.142]
        >>> [round(end, 4) for end in interval(0.0, 0.0, 200)]
        [0.0, 0.0191]
    """
    level = check_level(level)
    check_choice("method", method, ("score", "student"))
    low, high = check_bounds(bounds)
    if math.isnan(value) or math.isnan(standard_error) or not size > 1:
        return math.nan, math.nan
    t = quantile((1 + level) / 2, size - 1)
    if method == "score" and math.isfinite(high - low):
        width = high - low
        mean, error = (value - low) / width, standard_error / width
        spread = mean * (1 - mean)
        if spread >= 0 and error * error <= spread / (size - 1) * (1 + 1e-9) + _NEAR**2:
            all_equal = error < _NEAR or min(mean, 1 - mean) < _NEAR
            inverse = 1 / size if all_equal else error * error / spread  # 1 / n_e
            ends = _wilson(min(1.0, max(0.0, mean)), inverse, t)
            return low + width * ends[0], high - width * (1 - ends[1])
    ends = value - t * standard_error, value + t * standard_error
    if method == "score" and low <= value <= high and math.isinf(high - low):
        return max(low, ends[0]), min(high, ends[1])
    return ends


def skewed_interval(
    value: float, standard_error: float, size: float, skewness: float, curvature: float = 0.0, level: float = 0.95
) -> tuple[float, float]:
    """Return the ABC interval of a mean: the limit of a BCa bootstrap for many resamples, without resampling.

    With t of n - 1 degrees of freedom, v = a ± t and u = v / (1 - a v)^2, the ends are m + u SE / (1 + u c), or
    infinite if 1 + u c <= 0. Without skewness and weights this is Student's interval.

    Args:
        value: the mean m = sum w x / sum w.
        standard_error: standard error SE of the mean.
        size: number of rows n.
        skewness: sum d^3 / (6 (sum d^2)^1.5) with d = w (x - m), the acceleration a.
        curvature: sum w d / (sum w sqrt(sum d^2)), c; 0 for equal weights.
        level: confidence level, between 0 and 1.

    Source: DiCiccio and Efron, More accurate confidence intervals in exponential families, Biometrika 79, 1992; this
    library uses t in place of the normal quantile.

    Example:
        >>> [round(end, 3) for end in skewed_interval(0.1, 0.0213, 200, 0.0314)]
        [0.063, 0.149]
    """
    if not size > 1:
        return math.nan, math.nan
    t, largest = quantile((1 + level) / 2, size - 1), 1 / max(abs(skewness), _NEAR)
    ends = []
    for v in (skewness - t, skewness + t):
        moved = max(-largest, min(largest, v))  # beyond -1 / a, u turns back
        u = moved / max(1 - skewness * moved, _NEAR) ** 2
        scale = 1 + u * curvature
        ends.append(value + (u * standard_error / scale if scale > 0 else math.copysign(math.inf, u)))
    return ends[0], ends[1]


def _wilson(mean: float, inverse: float, t: float) -> tuple[float, float]:
    """Return Wilson's score interval of a mean within [0, 1], given `inverse` = 1 / n."""
    extra = t * t * inverse
    middle = mean + extra / 2
    half = t * math.sqrt(mean * (1 - mean) * inverse + extra * inverse / 4)
    low, high = (middle - half) / (1 + extra), (middle + half) / (1 + extra)
    return (0.0 if mean == 0 else max(0.0, low)), (1.0 if mean == 1 else min(1.0, high))


def check_bounds(bounds: Any) -> tuple[float, float]:
    """Return the bounds as two floats in ascending order, (-inf, inf) for None; raise for other values."""
    if bounds is None:
        return -math.inf, math.inf
    try:
        low, high = map(float, bounds)
    except (TypeError, ValueError):
        raise ValueError(f"bounds must be (least, greatest) of a row's value, or None, got {bounds!r}") from None
    if not low < high:
        raise ValueError(f"bounds must be (least, greatest) of a row's value, or None, got {bounds!r}")
    return low, high
