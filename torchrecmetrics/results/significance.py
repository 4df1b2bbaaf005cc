"""p values and critical values of many columns, by sign flips or Student's t, corrected for the number of columns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from torchrecmetrics.core.intervals import quantile, upper_tail

MANY = 10_000
"""Number of units up to which all of them are flipped one by one."""

_BLOCK = 65_536  # units that are laid out at once
_CHUNK = 256  # units that are flipped at once
_AT_ONCE = 512  # resamples at once: the signs of a chunk take 1 MB


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit PyTorch to one thread: chunks fit into the cache of one core, and take less time than synchronisation."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def signs(units: int, resamples: int, generator: torch.Generator) -> Tensor:
    """Return random signs, float64 [units, resamples], 8 from each random byte; `resamples` is a multiple of 8."""
    bits = torch.arange(256, device="cpu")[:, None] >> torch.arange(8, device="cpu") & 1
    random_bytes = torch.randint(256, (units * resamples // 8,), dtype=torch.int32, generator=generator, device="cpu")
    return (1 - 2 * bits.double()).index_select(0, random_bytes).view(units, resamples)


class Units(NamedTuple):
    """Values of some units, in some columns; the other units count as 0."""

    numbers: Tensor
    """Number of each unit among all units, ascending, int64 [units]."""
    values: Tensor
    """float64 [columns, units]."""

    def block(self, start: int, stop: int) -> Tensor:
        """Return the values of the units from number `start` up to `stop`, [columns, stop - start]."""
        begin, end = torch.searchsorted(self.numbers, torch.tensor([start, stop], device="cpu")).tolist()
        block = self.values.new_zeros(len(self.values), stop - start)
        block[:, self.numbers[begin:end] - start] = self.values[:, begin:end]
        return block


def flipped_sums(tables: Sequence[Units], num_units: int, resamples: int, seed: int) -> Tensor:
    """Return sums of the units with random signs, float64 [resamples, columns of all tables].

    A unit has one sign for all columns. Of more than `MANY` units, those that make up 1 / `MANY` or less of each
    column's sum of squares are not flipped one by one: their sums are drawn from the normal distribution with the same
    covariance, which changes the kurtosis by at most 2 / `MANY`. At most `MANY` units per column are left to flip.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    squares = torch.cat([torch.linalg.vector_norm(table.values, dim=1) for table in tables]).square()
    sums = torch.zeros(len(squares), -(-resamples // 8) * 8, dtype=torch.float64, device="cpu")
    covariance = torch.zeros(len(squares), len(squares), dtype=torch.float64, device="cpu")
    for start in range(0, num_units, _BLOCK):
        stop = min(start + _BLOCK, num_units)
        block = torch.cat([table.block(start, stop) for table in tables])
        if num_units > MANY:
            is_large = (block.square() > squares[:, None] / MANY).any(0)
            small, block = block[:, ~is_large], block[:, is_large]
            covariance.addmm_(small, small.T)
        for chunk in torch.split(block, _CHUNK, 1):
            for some_sums in torch.split(sums, _AT_ONCE, 1):
                some_sums.addmm_(chunk, signs(chunk.shape[1], some_sums.shape[1], generator))
    if num_units > MANY:
        draws = [torch.randn(sums.shape[1], dtype=torch.float64, generator=generator, device="cpu") for _ in squares]
        sums.addmm_(_root(covariance), torch.stack(draws))
    return sums.T[:resamples]


def _root(covariance: Tensor) -> Tensor:
    """Return the Cholesky root of a covariance; a billionth is added to the variances, since columns may be equal."""
    scale = covariance.diagonal().sqrt()
    nonzero = scale.where(scale > 0, 1)
    correlation = covariance / nonzero[:, None] / nonzero
    correlation.diagonal().fill_(1 + 1e-9)
    root: Tensor = torch.linalg.cholesky(correlation)
    return root * scale[:, None]


def all_flips(tables: Sequence[Units], num_units: int) -> Tensor:
    """Return sums of the units under all combinations of signs except all +: [2^n - 1, columns of all tables]."""
    units = torch.cat([table.block(0, num_units) for table in tables]).T
    sums = units.new_zeros(1, units.shape[1])
    for unit in units.flip(0):
        sums = torch.stack([sums + unit, sums - unit], 1).flatten(0, 1)
    return sums[1:]


Alternative: TypeAlias = Literal["two-sided", "greater", "less"]
Correction: TypeAlias = Literal["max-t", "holm", "bh", "none"]

_TIE = 1e-9
"""Tolerance within which a flip counts as extreme as the observed t."""


class Decisions(NamedTuple):
    """Test results: each field has one value per column, nan for a column that was not tested."""

    p: list[float]
    critical: list[float]
    """Critical value that |t| (t if one-sided) must exceed for p <= alpha."""
    adjusted_p: list[float]
    joint_critical: list[float]
    """Critical value of the corrected intervals.

    Max-T and Holm's method use that of their first step, so that the intervals cover all true differences jointly.
    "bh" uses that of p = alpha x significant columns / columns (Benjamini and Yekutieli, False discovery rate-adjusted
    multiple confidence intervals, JASA 100, 2005).
    """


def studentised(sums: Tensor, squares: Tensor, units: Tensor) -> Tensor:
    """Return t of a paired t test, [..., columns], from sums and sums of squares; ±inf for equal units, 0 for zeros."""
    share = (sums.square() / (units * squares)).clamp_(max=1)
    t = ((units - 1) * share / (1 - share)).sqrt_().copysign_(sums)
    t = t.masked_fill_(1 - share < 1e-12, math.inf).copysign_(sums)
    return t.masked_fill_(squares == 0, 0)


def directed(t: Tensor, alternative: Alternative) -> Tensor:
    """Return the test statistic |t|, t or -t, which is large where t supports the alternative."""
    if alternative == "two-sided":
        return t.abs()
    return t if alternative == "greater" else -t


class ByStudent:
    """Student's t test of each column: t, number of units and sum of squares, each [columns]."""

    def __init__(self, t: Tensor, units: Tensor, squares: Tensor, alternative: Alternative) -> None:
        self.extreme: list[float] = directed(t, alternative).tolist()
        """Test statistic of each column, which is significant if it exceeds the critical value."""
        self._units: list[int] = units.tolist()
        self._equal: list[bool] = (squares == 0).tolist()
        self._sides = 2 if alternative == "two-sided" else 1

    def p(self, column: int) -> float:
        """Return the p value of a column, a tail of Student's t; 1 if all differences are 0."""
        if self._equal[column]:
            return 1.0
        return min(1.0, self._sides * upper_tail(self.extreme[column], self._units[column] - 1))

    def critical(self, column: int, alpha: float) -> float:
        """Return the critical value of a column at which p = alpha, a quantile of Student's t."""
        return quantile(1 - alpha / self._sides, self._units[column] - 1)


class ByFlips:
    """The randomisation test: the p value is the share of sign flips whose t is at least as extreme as the observed t.

    `t` is the observed t of each column, [columns], `flips` is t under other signs of the units, [R, columns], and
    `units` is the number of units of each column.
    """

    def __init__(self, t: Tensor, flips: Tensor, units: Tensor, alternative: Alternative) -> None:
        self._units: list[int] = units.tolist()
        self.flips: Tensor = directed(flips, alternative)
        at = directed(t, alternative)
        self.extreme: list[float] = at.tolist()
        self.reached: Tensor = torch.where(at.isinf(), at, at - _TIE * at.abs().clamp_min(1))
        """Values that a flip must reach to be as extreme, [columns]: `extreme` less a tolerance for rounding."""

    def p(self, column: int) -> float:
        """Return the p value of a column: the share of flips that are at least as extreme."""
        return self.share(self.flips[:, column], column)

    def critical(self, column: int, alpha: float) -> float:
        """Return the critical value of a column, an order statistic of its flips; inf for too few units for `alpha`."""
        if alpha * 2 ** min(self._units[column], 62) < 1 - 1e-9:  # the smallest p is 1 / 2^units
            return math.inf
        return self.order_statistic(self.flips[:, column], alpha)

    def share(self, values: Tensor, column: int) -> float:
        """Return (b + 1) / (R + 1), where b of the R `values` are at least as extreme as the observed t of a column."""
        return (int((values >= self.reached[column]).sum()) + 1) / (len(values) + 1)

    def order_statistic(self, values: Tensor, alpha: float) -> float:
        """Return the value that a statistic must exceed for a `share` of `values` <= alpha; inf if there is none."""
        largest = math.floor(alpha * (len(values) + 1) + 1e-9)
        if largest < 1:
            return math.inf
        statistic = values.kthvalue(len(values) + 1 - min(largest, len(values))).values.item()
        if abs(statistic + _TIE) <= 1:
            return statistic + _TIE
        return statistic / (1 - math.copysign(_TIE, statistic))


def decide(test: ByStudent | ByFlips, columns: list[int], alpha: float, correction: Correction) -> Decisions:
    """Test the columns whose numbers are in `columns`, and correct for all of them; other columns get nan."""
    decisions, count = Decisions(*([math.nan] * len(test.extreme) for _ in Decisions._fields)), len(columns)
    for column in columns:
        decisions.p[column] = test.p(column)
        decisions.critical[column] = test.critical(column, alpha)
    order = sorted(columns, key=lambda column: (decisions.p[column], -test.extreme[column]))
    p = [decisions.p[column] for column in order]
    corrected_alpha = alpha
    if correction == "max-t" and isinstance(test, ByFlips) and count:
        order = sorted(columns, key=lambda column: -test.extreme[column])
        largest = test.flips[:, order].flip(1).cummax(1).values.flip(1)  # of a column and all less extreme columns
        p = [*accumulate((test.share(largest[:, step], column) for step, column in enumerate(order)), max)]
        joint_critical = test.order_statistic(largest[:, 0], alpha)
        joint = [max(joint_critical, decisions.critical[column]) for column in order]
    else:
        if correction == "holm":
            p = [*accumulate((min(1.0, (count - step) * value) for step, value in enumerate(p)), max)]
            corrected_alpha = alpha / max(count, 1)
        elif correction == "bh":
            p = [*accumulate((p[rank - 1] * (count / rank) for rank in range(count, 0, -1)), min)][::-1]
            corrected_alpha = alpha * max(1, sum(value <= alpha + 1e-12 for value in p)) / max(count, 1)
        joint = [test.critical(column, corrected_alpha) for column in order]
    for column, adjusted_p, critical in zip(order, p, joint, strict=True):
        decisions.adjusted_p[column], decisions.joint_critical[column] = adjusted_p, critical
    return decisions
