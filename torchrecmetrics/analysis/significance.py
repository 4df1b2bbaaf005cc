"""p values and critical values of many columns, by sign flips or Student's t, corrected for the number of columns."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from torchrecmetrics.core.student import quantile, upper_tail

Alternative: TypeAlias = Literal["two-sided", "greater", "less"]
Correction: TypeAlias = Literal["max-t", "holm", "bh", "none"]

_TIE = 1e-9
"""Tolerance up to which a flip is as extreme as the observed t."""


class Decisions(NamedTuple):
    """Test results: each field has one value per column, nan for a column that was not tested."""

    p: list[float]
    critical: list[float]
    """Critical value that |t| (t if one-sided) must exceed for p <= alpha."""
    adjusted_p: list[float]
    joint_critical: list[float]
    """Critical value of the corrected intervals.

    That of the first step of max-T and Holm's method, so that the intervals cover all true differences together; later
    steps have lower ones, so that a column with adjusted p <= alpha may have an interval with 0. For "bh" the p value
    up to which p is significant, alpha x significant columns / columns (Benjamini and Yekutieli, False discovery
    rate-adjusted multiple confidence intervals, JASA 100, 2005).
    """


def studentised(sums: Tensor, squares: Tensor, units: Tensor) -> Tensor:
    """Return t of a paired t test, [..., columns], from sums and sums of squares; ±inf for equal units, 0 for zeros."""
    share = (sums.square() / (units * squares)).clamp_(max=1)
    t = ((units - 1) * share / (1 - share)).sqrt_().copysign_(sums)
    t = t.masked_fill_(1 - share < 1e-12, math.inf).copysign_(sums)
    return t.masked_fill_(squares == 0, 0)


def directed(t: Tensor, alternative: Alternative) -> Tensor:
    """Return the test statistic |t|, t or -t, which is large where t supports the alternative."""
    return t.abs() if alternative == "two-sided" else t if alternative == "greater" else -t


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

    Args:
        t: observed t of each column, [columns].
        flips: t under other signs of the units, [R, columns]: random signs, or all combinations.
        alternative: alternative hypothesis.
    """

    def __init__(self, t: Tensor, flips: Tensor, alternative: Alternative) -> None:
        self.flips: Tensor = directed(flips, alternative)
        at = directed(t, alternative)
        self.extreme: list[float] = at.tolist()
        self.reached: Tensor = torch.where(at.isinf(), at, at - _TIE * at.abs().clamp_min(1))
        """Values that a flip must reach to be as extreme, [columns]: `extreme` less a tolerance for rounding."""

    def p(self, column: int) -> float:
        """Return the p value of a column: the share of flips that are at least as extreme."""
        return self.share(self.flips[:, column], column)

    def critical(self, column: int, alpha: float) -> float:
        """Return the critical value of a column, an order statistic of its flips."""
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
    decisions = Decisions(*([math.nan] * len(test.extreme) for _ in Decisions._fields))
    for column in columns:
        decisions.p[column] = test.p(column)
        decisions.critical[column] = test.critical(column, alpha)
    if correction == "max-t":
        assert isinstance(test, ByFlips)
        order = sorted(columns, key=lambda column: -test.extreme[column])
        ordered = test.flips[:, order]
        largest = ordered.flip(1).cummax(1).values.flip(1)  # maximum of a column and all less extreme columns
        p = [test.share(largest[:, step], column) for step, column in enumerate(order)]
        joint = test.order_statistic(largest[:, 0], alpha) if order else math.nan
        _step_down(decisions, order, p, dict.fromkeys(order, joint))
    elif correction == "holm":
        order = sorted(columns, key=lambda column: (decisions.p[column], -test.extreme[column]))
        left = [len(order) - step for step in range(len(order))]
        p = [min(1.0, num_left * decisions.p[column]) for num_left, column in zip(left, order, strict=True)]
        _step_down(decisions, order, p, {column: test.critical(column, alpha / len(order)) for column in order})
    elif correction == "bh":
        least = 1.0
        for rank, column in sorted(enumerate(sorted(columns, key=decisions.p.__getitem__), 1), reverse=True):
            decisions.adjusted_p[column] = least = min(least, decisions.p[column] * (len(columns) / rank))
        num_significant = sum(decisions.adjusted_p[column] <= alpha + 1e-12 for column in columns)
        for column in columns:
            decisions.joint_critical[column] = test.critical(column, alpha * max(num_significant, 1) / len(columns))
    else:
        decisions.adjusted_p[:], decisions.joint_critical[:] = decisions.p, decisions.critical
    return decisions


def _step_down(decisions: Decisions, order: list[int], p: list[float], joint: dict[int, float]) -> None:
    """Write corrected p, most extreme column first and none below the one before it, and `joint` critical values."""
    worst = 0.0
    for step, column in enumerate(order):
        worst = max(worst, p[step])
        decisions.adjusted_p[column] = worst
        decisions.joint_critical[column] = joint[column]
