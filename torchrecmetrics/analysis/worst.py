"""The worst group of users and the gap between groups, with intervals corrected for the search.

The group that looks worst is not drawn at random: of many equal groups it is the unluckiest, and its own interval lies
too low. What is said here is of the true values, whichever groups they belong to. With L_g and U_g the ends of group g,
each missed with a probability of at most `tail`, and w the group that is truly worst, at mu_w = min mu_g:

- min L_g > mu_w only where L_w > mu_w: the lower end needs no more than every group's own, however many there are;
- min U_g < mu_w only where some U_g < mu_w <= mu_g: the upper end needs ends that hold for all groups at once;
- where neither happens L_w <= mu_w <= min U_g: w is among the groups with L_g <= min U_g.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from torchrecmetrics.analysis.intervals import check_bounds, check_level
from torchrecmetrics.analysis.student import quantile_above
from torchrecmetrics.checks import describe

Ends: TypeAlias = Callable[[float], tuple[Tensor, Tensor]]
"""The lower and upper ends of groups, [..., G], each of which is missed with the probability that is given."""

_NEAR = 1e-12
_STEPS = 32  # an octave: from one degree of freedom on t comes out at most 0.1 % larger than it is
_PAIRS = 2**20  # of groups at once: 8 MB


class Worst(NamedTuple):
    """The worst of several groups."""

    group: int | None
    """That looks worst, the first of equals; None = no group has a value."""
    value: float
    """Its mean: on average below the true value of the worst group, the more the more groups there are."""
    low: float
    high: float
    """Of the interval of the true value of whichever group is truly worst."""
    possible: tuple[int, ...]
    """Groups of which that may be one, as surely as the interval holds."""
    empty: int
    """Groups without users, which are left out."""
    single: int
    """Groups without a standard error, of one user most often: they may stand anywhere."""


class Gap(NamedTuple):
    """How far groups are apart."""

    highest: int | None
    """Group with the largest mean, the first of equals; None = less than two groups have a value."""
    lowest: int | None
    value: float
    """The largest mean minus the smallest: on average above the true gap."""
    low: float
    """Never below 0."""
    high: float
    """Of the interval of the true gap, between whichever groups it is."""
    empty: int
    single: int


@dataclass(frozen=True, eq=False)
class GroupMeans:
    """A metric's means over groups of rows that are independent of each other.

    A group without users has the value nan and is left out. One without a standard error, of one user, may stand
    anywhere within the bounds: an end of the worst group's interval is a bound then, infinite where there is none.

    The ends of a group, where rows have finite bounds and are scaled to 0 .. 1, are those p with
    2 n_e KL(m - 1 / n_e, p) = t^2 below and 2 n_e KL(m + 1 / n_e, p) = t^2 above, KL(q, p) = q log(q / p) +
    (1 - q) log((1 - q) / (1 - p)); n_e = m (1 - m) / s^2, with s^2 of n, is the number of rows that are 0 or 1 with the
    same spread, n itself for hits and where all rows are alike; t is Student's, of n - 1 degrees of freedom, and the
    normal quantile for hits, whose spread is known with their mean. No end of hits is missed more often than it should
    be, however few there are and however high the level; score intervals are right on average and at 95 %, not where
    they have to hold for many groups at once. Without bounds, or with a mean beyond them, the ends are m ± t times the
    standard error.

    Args:
        values: mean of each group, float [G]; nan = none.
        standard_errors: of the means, float [G]; nan = none.
        sizes: rows of each group, number [G]; where they have weights (sum w)^2 / sum w^2.
        bounds: the least and the greatest value of a row; None = there are none.

    Raises:
        TypeError: for what is no tensor of numbers.
        ValueError: for tensors of other lengths, errors that are negative, other bounds.

    Source: Zubkov and Serov, A complete proof of universal inequalities for the distribution function of the binomial
    law, Theory of Probability and Its Applications 57, 2013; the effective size as in `intervals.interval`.

    Example:
        >>> import torch
        >>> values, errors = torch.tensor([0.31, 0.22, 0.29]), torch.tensor([0.01, 0.04, 0.02])
        >>> means = GroupMeans(values, errors, torch.tensor([900, 80, 400]))
        >>> worst = means.worst()
        >>> worst.group, [round(x, 3) for x in (worst.value, worst.low, worst.high)], worst.possible
        (1, [0.22, 0.14, 0.335], (0, 1, 2))
    """

    values: Tensor
    standard_errors: Tensor
    sizes: Tensor
    bounds: tuple[float, float] | None = (0.0, 1.0)

    def __post_init__(self) -> None:
        check_bounds(self.bounds)
        for name in ("values", "standard_errors", "sizes"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name)))
            if len(getattr(self, name)) != len(self.values):
                raise ValueError(f"{name} must be of {len(self.values)} groups, got {len(getattr(self, name))}")
        if bool((self.standard_errors < 0).any()):
            raise ValueError(f"standard_errors must not be negative, got {self.standard_errors.min().item():g}")

    @property
    def empty(self) -> int:
        """How many groups have no value."""
        return int(self.values.isnan().sum())

    @property
    def single(self) -> int:
        """How many groups have a value, but no standard error."""
        return int((~self.values.isnan() & ~self._spread).sum())

    @property
    def _spread(self) -> Tensor:
        """Whether something is known of a group's spread, bool [G]."""
        return ~self.values.isnan() & ~self.standard_errors.isnan() & (self.sizes > 1)

    def intervals(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return an interval for each group, all of which hold together at this level.

        For G independent groups each is one of level^(1 / G), which is exact; where groups depend on each other two
        sides are not less sure (Šidák, Rectangular confidence regions, JASA 62, 1967).

        Args:
            level: of confidence, between 0 and 1, for all groups together.

        Returns:
            Low and high, float64 [G]; nan for groups without users, the bounds for those without a standard error.

        Raises:
            TypeError: if `level` is no number.
            ValueError: for another level.
        """
        return self._ends(_each(1 - check_level(level), int(self._spread.sum())) / 2)

    def worst(self, higher_is_better: bool | None = True, level: float = 0.95) -> Worst:
        """Return the worst group, and an interval of its true value: at least this sure, whatever the groups are.

        Args:
            higher_is_better: whether the worst group is the one with the smallest value, or with the largest.
            level: of confidence, between 0 and 1.

        Raises:
            TypeError: if `level` is no number.
            ValueError: for another level; where neither more nor less is better.
        """
        level = check_level(level)
        if higher_is_better is None:
            raise ValueError(
                "no group is the worst: higher_is_better is None, neither more nor less of this metric is better; "
                "how far groups are apart is known: gap"
            )
        if not higher_is_better:
            bounds = None if self.bounds is None else (-self.bounds[1], -self.bounds[0])
            other = GroupMeans(-self.values, self.standard_errors, self.sizes, bounds).worst(True, level)
            return other._replace(value=0.0 - other.value, low=0.0 - other.high, high=0.0 - other.low)
        there = (~self.values.isnan()).nonzero()[:, 0]
        if not len(there):
            return Worst(None, math.nan, math.nan, math.nan, (), self.empty, self.single)
        ends = self._ends_of(there)
        low, high = lowest(ends, int(self._spread.sum()), level)
        possible = there[ends((1 - level) / 2)[0] <= high]
        group = int(there[self.values[there].argmin()])
        value = self.values[group].item()
        return Worst(group, value, low.item(), high.item(), tuple(possible.tolist()), self.empty, self.single)

    def gap(self, level: float = 0.95) -> Gap:
        """Return how far the highest and the lowest group are apart, and an interval of the true gap.

        The difference of two means has the ends m_g - m_h ± sqrt((end of g - m_g)^2 + (end of h - m_h)^2); without
        bounds it is not less sure than these (Banerjee, Sankhya 22, 1960), with bounds it is Newcombe's (Statistics in
        Medicine 17, 1998). The true gap is that of one pair, so the largest upper end of all pairs holds; it is no
        smaller than that of any pair, so the largest of lower ends holds that hold for all G (G - 1) pairs at once.

        Args:
            level: of confidence, between 0 and 1.

        Raises:
            TypeError: if `level` is no number.
            ValueError: for another level.
        """
        level = check_level(level)
        there = (~self.values.isnan()).nonzero()[:, 0]
        if len(there) < 2:
            return Gap(None, None, math.nan, math.nan, math.nan, self.empty, self.single)
        values = self.values[there]
        low, high = apart(values, self._ends_of(there), level)
        most, least = int(there[values.argmax()]), int(there[values.argmin()])
        value = (self.values[most] - self.values[least]).item()
        return Gap(most, least, value, low.item(), high.item(), self.empty, self.single)

    def _ends(self, tail: float) -> tuple[Tensor, Tensor]:
        """Return ends of all groups."""
        return ends_of(self.values, self.standard_errors, self.sizes, self.bounds, tail)

    def _ends_of(self, groups: Tensor) -> Ends:
        """Return ends of some groups, for a tail."""

        def ends(tail: float) -> tuple[Tensor, Tensor]:
            low, high = self._ends(tail)
            return low[groups], high[groups]

        return ends


def lowest(ends: Ends, groups: int, level: float) -> tuple[Tensor, Tensor]:
    """Return the interval of the smallest true value, [...], of so many groups with a spread."""
    tail = (1 - level) / 2
    return ends(tail)[0].amin(-1), ends(_each(tail, groups))[1].amin(-1)


def apart(values: Tensor, ends: Ends, level: float) -> tuple[Tensor, Tensor]:
    """Return the interval of the difference of the largest and the smallest true value, [...], of G >= 2 groups."""
    groups = values.shape[-1]
    tail = (1 - level) / 2
    low, high = ends(tail)
    few, many = ends(tail / (groups * (groups - 1)))
    least = most = values.new_zeros(values.shape[:-1])
    wide = max(1, _PAIRS // values.numel())
    for start in range(0, groups, wide):
        some = slice(start, start + wide)
        differences = values[..., some, None] - values[..., None, :]
        upwards, downwards = (high - values)[..., some, None], (values - low)[..., None, :]
        most = torch.maximum(most, (differences + torch.hypot(upwards, downwards)).flatten(-2).amax(-1))
        downwards, upwards = (values - few)[..., some, None], (many - values)[..., None, :]
        least = torch.maximum(least, (differences - torch.hypot(downwards, upwards)).flatten(-2).amax(-1))
    return least, most


def ends_of(
    values: Tensor, errors: Tensor, sizes: Tensor, bounds: tuple[float, float] | None, tail: float
) -> tuple[Tensor, Tensor]:
    """Return the lower and the upper end of means, [...], each missed with a probability of `tail`; nan has none."""
    least, greatest = (-math.inf, math.inf) if bounds is None else bounds
    spread = ~errors.isnan() & (sizes > 1)
    t = _quantiles(tail, sizes.where(spread, 2.0) - 1)
    low, high = values - t * errors, values + t * errors
    if math.isfinite(greatest - least):
        width = greatest - least
        means, errors = (values - least) / width, errors / width
        variance = means * (1 - means)
        within, at_edge = (means >= 0) & (means <= 1), variance < _NEAR
        share = errors.square() * (sizes - 1) / variance  # n / n_e
        hits = at_edge | ((share - 1).abs() < 1e-6)
        inverse = torch.where(at_edge | (errors < _NEAR), 1, share) / sizes
        t = torch.where(hits, NormalDist().inv_cdf(1 - tail), t)
        low = torch.where(within, least + width * _below(means, inverse, t), low)
        high = torch.where(within, greatest - width * _below(1 - means, inverse, t), high)
    low = torch.where(spread, low, least).masked_fill_(values.isnan(), math.nan)
    return low, torch.where(spread, high, greatest).masked_fill_(values.isnan(), math.nan)


def _below(means: Tensor, inverse: Tensor, t: Tensor) -> Tensor:
    """Return the p < q = m - 1 / n with 2 n KL(q, p) = t^2, given 1 / n; 0 where q is not above 0.

    KL is convex in log p, so that Newton's steps from the left never leave it.
    """
    q = means - inverse
    above, q = q > 0, q.clamp(min=1e-300)
    far = t.square() * inverse / 2
    nearer = (q - (2 * q * far).sqrt()).clamp_(min=1e-300).log()  # KL(q, p) >= (q - p)^2 / 2q
    log_p = torch.maximum(q.log() - (far - (1 - q) * (-q).log1p()) / q, nearer)
    for _ in range(12):
        p = log_p.exp()
        left = q * (q.log() - log_p) + (1 - q) * ((-q).log1p() - (-p).log1p()) - far
        log_p = log_p + left * (1 - p) / (q - p).clamp_(min=1e-300)
    return log_p.exp().where(above, 0)


def _each(tail: float, groups: int) -> float:
    """Return with what probability each of several independent things may go wrong, that none does but for `tail`."""
    return -math.expm1(math.log1p(-tail) / max(groups, 1))


def _quantiles(tail: float, degrees: Tensor) -> Tensor:
    """Return Student's t with P(T > t) = `tail`, for each number of degrees of freedom > 0.

    Between degrees that are 1 / 32 of an octave apart log t is taken as straight against their logarithm, from above
    since it is convex: the cost is that of few quantiles, however many groups there are.
    """
    place = degrees.clamp(max=2.0**30).log2() * _STEPS
    first = place.floor()
    nodes, number = torch.unique(torch.stack([first, first + 1]), return_inverse=True)
    known = [math.log(quantile_above(tail, 2 ** (node / _STEPS))) for node in nodes.tolist()]
    left, right = torch.tensor(known, dtype=degrees.dtype, device="cpu")[number]
    return torch.lerp(left, right, place - first).exp()


def _numbers(name: str, numbers: Any) -> Tensor:
    """Return numbers as float64 [G] on the host, or raise."""
    if not isinstance(numbers, Tensor) or numbers.is_complex() or numbers.dim() != 1:
        raise TypeError(f"{name} must be a tensor of numbers, one a group, got {describe(numbers)}")
    return numbers.detach().cpu().double()
