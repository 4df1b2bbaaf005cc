"""Pair the rows of several runs by id, sum their differences, by cluster first, and test the sums by random signs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, chain, product
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from torchrecmetrics.core.checks import check_choice, describe, nearest
from torchrecmetrics.core.intervals import quantile, upper_tail
from torchrecmetrics.results.rows import EQUAL, RowIds, Rows, UnitLayout, find_ids, id_at

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


def check_correction(test: str, correction: Correction | None) -> Correction:
    """Return the correction of a test, or the test's default for None; raise for an unknown correction."""
    if test in ("wilcoxon", "sign"):
        raise ValueError(
            f"test={test!r} is not offered: it tests signs or ranks of differences, not their mean; its use should "
            "be discontinued (Smucker, Allan and Carterette, CIKM 2007): use 'randomization' or 't'"
        )
    check_choice("test", test, ("randomization", "t"))
    correction = correction or ("max-t" if test == "randomization" else "holm")
    check_choice("correction", correction, ("max-t", "holm", "bh", "none"))
    if test == "t" and correction == "max-t":
        raise ValueError("correction='max-t' needs the flips of test='randomization'; a t test takes 'holm' or 'bh'")
    return correction


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


class HasRows(Protocol):
    """Protocol of a result that kept its rows: an evaluation, or a collection."""

    @property
    def rows(self) -> Rows:
        """Per-row values."""
        ...


Run: TypeAlias = "Rows | HasRows"
Runs: TypeAlias = "Mapping[str, Run | Sequence[Run]]"


class PairTotals(NamedTuple):
    """Sums over the units of each column, float64 [columns] per field."""

    units: Tensor
    """Number of units with a weight > 0."""
    rows: Tensor
    """Number of rows with a weight > 0."""
    sums: Tensor
    squares: Tensor
    weights: Tensor
    """Sums of the row weights; `sums / weights` is the difference of the means."""
    size: Tensor
    """Effective number of units, (sum w)^2 / sum w^2 of their weights."""
    value: Tensor
    """Mean of the first run over the rows with a weight > 0."""
    against: Tensor
    """Mean of the second run over the rows with a weight > 0."""
    value_error: Tensor
    """Standard error of `value`."""
    against_error: Tensor
    wins: Tensor
    """Number of rows in which the first run is higher."""
    ties: Tensor
    losses: Tensor

    @staticmethod
    def joined(totals: Iterable[PairTotals]) -> PairTotals:
        """Concatenate the columns of several totals."""
        return PairTotals(*torch.cat([torch.stack(columns) for columns in totals], 1))


class RunMean(NamedTuple):
    """Mean of a run over its own rows: those that are defined in it and have a weight > 0."""

    value: float
    standard_error: float
    num_rows: int
    size: float
    """Effective number of units (clusters, or rows without clusters), (sum w)^2 / sum w^2 of their weights."""


class PairColumns(NamedTuple):
    """Differences of paired runs: a column is one label of one pair of runs, in the order of pairs, then of labels."""

    units: Units
    totals: PairTotals
    num_rows: int
    """Number of rows, including those that are undefined in a column."""


class Paired:
    """Runs whose rows have been paired by id.

    Args:
        runs: {name: `Rows`, or an evaluation or collection that kept them}, or {name: [several]}, averaged row by row.
        metrics: labels that are compared; None = all.
        baseline: name of the run that each other run is compared with; None = each run with every run before it.
        min_runs: smallest number of runs that is accepted; a single one has means, and no pairs.
    """

    def __init__(
        self, runs: Runs, metrics: str | Sequence[str] | None, baseline: str | None, min_runs: int = 2
    ) -> None:
        self.runs: dict[str, list[Rows]] = _rows_by_name(runs, min_runs)
        self.labels: list[str] = _common_labels(self.runs, metrics)
        (first_name, first_rows), *others = [(name, rows) for name, repeats in self.runs.items() for rows in repeats]
        self.ids: RowIds = first_rows.ids
        self._row_in: dict[int, Tensor] = {id(first_rows): torch.arange(len(first_rows), device="cpu")}
        for name, rows in others:
            if id(rows) not in self._row_in:
                self._row_in[id(rows)] = _pair(first_name, first_rows, name, rows)
        for rows in chain.from_iterable(self.runs.values()):
            rows.check_finite(self.labels)
        sides = _sides(self.runs, self.labels)
        self.higher_is_better: dict[str, bool | None] = {label: sides.get(label, True) for label in self.labels}
        self.sideless: list[str] = [label for label in self.labels if label not in sides]
        self.pairs: list[tuple[str, str]] = _pairs([*self.runs], baseline)
        self.layout: UnitLayout = UnitLayout.of(first_rows.ids, first_rows.clusters)
        self.compared: UnitLayout = self.layout.only(self._compared_rows())[0]
        """Layout of the rows that count for a label of a pair: other rows are no units of the test."""
        numbers = {name: int((~self._served(name)).sum()) for name in self.runs}
        self.unserved: dict[str, int] = {name: number for name, number in numbers.items() if number}
        """Number of rows without a list in one of the runs of a name, where it is not 0."""
        weights = first_rows.weights  # scaled to a maximum of 1: squares neither overflow nor vanish
        self._row_scale: float = 1.0 if weights is None or not weights.any() else 1 / weights.max().item()

    def columns(
        self, selected: Tensor | None = None, served: bool = False, margins: Sequence[float] | None = None
    ) -> PairColumns:
        """Return the columns over the `selected` rows, bool [n]; with `served`, over those with a list in both runs.

        The units of a column are u = w (x - y), summed by cluster where there are clusters; u is 0 where x or y is
        undefined. With a margin per column u = w (x - y + margin), or w (y - x + margin) where lower values are better:
        its mean is above 0 if x is worse by less than the margin.
        """
        layout, numbers = self.compared, torch.arange(self.compared.num_units, device="cpu")
        if selected is not None:
            layout, numbers = layout.only(selected)
        names = [(*pair, label) for pair, label in product(self.pairs, self.labels)]
        units = torch.empty(len(names), len(numbers), dtype=torch.float64, device="cpu")
        totals = torch.empty(len(PairTotals._fields), len(names), dtype=torch.float64, device="cpu")
        for column, (run, against, label) in enumerate(names):
            margin = None if margins is None else margins[column]
            units[column], sums = self._column(run, against, label, layout, margin, served)
            totals[:, column] = torch.stack([number.double() for number in sums])
        num_rows = len(self.ids) if selected is None else int(selected.sum())
        return PairColumns(Units(numbers, units), PairTotals(*totals), num_rows)

    def means(self, selected_by_group: Mapping[str | None, Tensor | None]) -> dict[tuple[str, str], RunMean]:
        """Return the means over the rows of each group, bool [n], by the run's name and the key of a result."""
        means = {}
        for group, selected in selected_by_group.items():
            layout = self.layout if selected is None else self.layout.only(selected)[0]
            for run, label in product(self.runs, self.labels):
                totals = self._column(run, run, label, layout, None)[1]
                statistics = totals.value.item(), totals.value_error.item(), int(totals.rows), totals.size.item()
                means[run, label if group is None else f"{label}/{group}"] = RunMean(*statistics)
        return means

    def _column(
        self, run: str, against: str, label: str, layout: UnitLayout, margin: float | None, served: bool = False
    ) -> tuple[Tensor, PairTotals]:
        """Return the units of a column, [units], and its totals, a number per field."""
        values, all_weights, counted = self._values(run, against, label, layout.order)
        if served:
            counted &= self._served(run, against)[layout.order]
        if any(label in rows.own_weights for rows in (*self.runs[run], *self.runs[against])):
            all_weights *= (counted.sum() / (all_weights * counted).sum(1))[:, None]  # each run's to a mean of 1
        else:
            all_weights *= self._row_scale
        number = len(self.runs[run])
        x, y = values[:number].mean(0), values[number:].mean(0)
        weighted_values = all_weights * values
        wx, wy = weighted_values[:number].mean(0), weighted_values[number:].mean(0)
        weights = ((all_weights[:number].mean(0) + all_weights[number:].mean(0)) / 2).where(counted, 0)
        difference, weighted = _rounded_difference(x, y), _rounded_difference(wx, wy)
        if margin is not None:
            gain = -weighted if self.higher_is_better[label] is False else weighted
            weighted = _rounded_difference(gain, -margin * weights)
        units, unit_weights = layout.sums(weighted.where(counted, 0)), layout.sums(weights)
        num_units = (unit_weights > 0).sum()
        run_mean, run_error = _mean_and_error(wx.where(counted, 0), weights, layout, num_units)
        other_mean, other_error = _mean_and_error(wy.where(counted, 0), weights, layout, num_units)
        return units, PairTotals(
            units=num_units,
            rows=counted.sum(),
            sums=units.sum(),
            squares=units.square().sum(),
            weights=weights.sum(),
            size=weights.sum().square() / unit_weights.square().sum(),
            value=run_mean,
            against=other_mean,
            value_error=run_error,
            against_error=other_error,
            wins=(counted & (difference > 0)).sum(),
            ties=(counted & (difference == 0)).sum(),
            losses=(counted & (difference < 0)).sum(),
        )

    def _values(self, run: str, against: str, label: str, order: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return values and weights of the runs of two names, [runs, n], and which rows count, bool [n]."""
        runs = [*self.runs[run], *self.runs[against]]
        places = [self._row_in[id(rows)][order] for rows in runs]
        values = torch.stack([rows.values[label][place] for rows, place in zip(runs, places, strict=True)])
        weights = torch.stack([rows.weights_of(label)[place] for rows, place in zip(runs, places, strict=True)])
        return values, weights, ~values.isnan().any(0) & (weights > 0).any(0)

    def _served(self, *names: str) -> Tensor:
        """Return which rows have a list in all runs of these names, bool [n]."""
        served = torch.ones(len(self.ids), dtype=torch.bool, device="cpu")
        for rows in chain.from_iterable(self.runs[name] for name in names):
            if rows.served is not None:
                served &= rows.served[self._row_in[id(rows)]]
        return served

    def _compared_rows(self) -> Tensor:
        """Return the rows that are defined in both runs of a pair for some label, and have a weight > 0, bool [n]."""
        counted = torch.zeros(len(self.ids), dtype=torch.bool, device="cpu")
        every_row = torch.arange(len(self.ids), device="cpu")
        for (run, against), label in product(self.pairs, self.labels):
            if bool(counted.all()):
                break
            counted |= self._values(run, against, label, every_row)[2]
        return counted


def _sides(runs: Mapping[str, Sequence[Rows]], labels: Iterable[str]) -> dict[str, bool | None]:
    """Return which values of the labels are better, where a run says it; raise for runs that say different things."""
    sides: dict[str, tuple[str, bool | None]] = {}
    for label, (name, repeats) in product(labels, runs.items()):
        for rows in repeats:
            if label not in rows.higher_is_better:
                continue
            side = rows.higher_is_better[label]
            first_name, first_side = sides.setdefault(label, (name, side))
            if side is not first_side:
                raise ValueError(
                    f"higher_is_better of {label} is {first_side} in {first_name!r} and {side} in {name!r}: say which "
                    "values are better in the same way for all runs"
                )
    return {label: side for label, (_, side) in sides.items()}


def _mean_and_error(weighted: Tensor, weights: Tensor, layout: UnitLayout, num_units: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of rows, sum w x / sum w, and its standard error over units; NaN for fewer than two units."""
    mean = weighted.sum() / weights.sum()
    squares = layout.sums(weighted - weights * mean).square().sum()
    return mean, (squares * num_units / (num_units - 1)).sqrt() / weights.sum()


def _rounded_difference(x: Tensor, y: Tensor) -> Tensor:
    """Return x - y, with differences that are rounding errors set to 0."""
    difference = x - y
    return difference.masked_fill(difference.abs() <= EQUAL * torch.maximum(x.abs(), y.abs()), 0)


def _pairs(names: list[str], baseline: str | None) -> list[tuple[str, str]]:
    """Return the pairs that are compared: each run with the baseline, or for None with every run before it."""
    if baseline is None:
        return [(later, earlier) for i, earlier in enumerate(names) for later in names[i + 1 :]]
    if baseline not in names:
        raise ValueError(f"baseline {baseline!r} is not a run{nearest(baseline, names)}")
    return [(name, baseline) for name in names if name != baseline]


def _rows_by_name(runs: Runs, min_runs: int) -> dict[str, list[Rows]]:
    """Return the runs of each name as a list of `Rows`; raise for other types and fewer than `min_runs` names."""
    cure = "pass {name: evaluation, other name: evaluation}, or their rows; several runs of one name are a list"
    if not isinstance(runs, Mapping) or hasattr(type(runs), "rows"):  # an evaluation is a mapping, too
        raise TypeError(f"runs must be a dict of evaluations or Rows by name, got {describe(runs)}: {cure}")
    if len(runs) < min_runs:
        raise ValueError(f"compare needs two or more runs, got {len(runs)}: {cure}")
    rows_by_name: dict[str, list[Rows]] = {}
    for name, value in runs.items():
        repeats: list[Any] = [*value] if isinstance(value, (list, tuple)) else [value]
        if not repeats:
            raise ValueError(f"run {name!r} is an empty list: {cure}")
        rows_by_name[name] = [_rows_of_run(name, run, cure) for run in repeats]
    return rows_by_name


def _rows_of_run(name: str, run: Any, cure: str) -> Rows:
    """Return the rows of a run; raise for other types, and for a result without rows."""
    try:
        rows = getattr(run, "rows", run)
    except ValueError as error:
        raise ValueError(f"run {name!r}: {error}") from None
    if isinstance(rows, Rows):
        return rows
    hint = f"pass Rows.from_parquet({run!r})" if isinstance(run, str) else cure
    raise TypeError(f"run {name!r} must be an evaluation, Rows, or a list of them, got {describe(run)}: {hint}")


def _common_labels(runs: dict[str, list[Rows]], metrics: str | Sequence[str] | None) -> list[str]:
    """Return the labels that are compared, which all runs have; None = all labels, which must be the same."""
    named = [(name, rows.values) for name, repeats in runs.items() for rows in repeats]
    if metrics is not None:
        labels = [metrics] if isinstance(metrics, str) else [*dict.fromkeys(metrics)]
        if other := [label for label in labels if not isinstance(label, str)]:
            raise TypeError(f"metrics must be labels, such as ['NDCG@10'], got {describe(other[0])}")
        for (name, values), label in product(named, labels):
            if label not in values:
                raise ValueError(f"run {name!r} has no metric {label!r}{nearest(label, values)}")
        if not labels:
            raise ValueError("metrics is empty: name the metrics that are compared, or None for all")
        return labels
    first_name, first_values = named[0]
    for name, values in named:
        lone = {first_name: first_values.keys() - values.keys(), name: values.keys() - first_values.keys()}
        if texts := [f"{', '.join(sorted(labels))} only in {name!r}" for name, labels in lone.items() if labels]:
            raise ValueError(f"runs must have the same labels: {'; '.join(texts)}; or choose some with metrics=[...]")
    return [*first_values]


def _pair(first_name: str, first_rows: Rows, name: str, rows: Rows) -> Tensor:
    """Return for each row of `first_rows` the row of `rows` with the same id, int64 [n]; raise if runs do not pair."""
    if rows.options != first_rows.options:
        options = sorted({*first_rows.options, *rows.options})
        option = next(n for n in options if first_rows.options.get(n, "") != rows.options.get(n, ""))
        first_value, value = (run.options.get(option, "not told") for run in (first_rows, rows))
        raise ValueError(
            f"runs must be made with the same options: {option} is {first_value!r} in {first_name!r} and {value!r} in "
            f"{name!r}"
        )
    if isinstance(rows.ids, list) is not isinstance(first_rows.ids, list):
        raise ValueError(f"ids do not pair: one of {first_name!r} and {name!r} has whole numbers, the other text")
    row_of_id = find_ids(rows.ids, first_rows.ids)
    if len(rows) != len(first_rows) or bool((row_of_id < 0).any()):
        texts = [_unpaired(first_name, first_rows.ids, name, row_of_id)]
        texts.append(_unpaired(name, rows.ids, first_name, find_ids(first_rows.ids, rows.ids)))
        raise ValueError(f"rows do not pair: {'; '.join(filter(None, texts))}; compare runs over the same rows")
    for field in ("weights", "clusters"):
        if (getattr(first_rows, field) is None) is not (getattr(rows, field) is None):
            raise ValueError(f"only one of {first_name!r} and {name!r} has {field}")
    weights, clusters = first_rows.weights, first_rows.clusters
    if weights is not None and rows.weights is not None and not weights.equal(rows.weights[row_of_id]):
        raise ValueError(f"weights of some rows differ between {first_name!r} and {name!r}")
    if clusters is not None and rows.clusters is not None and not _same_clusters(clusters, rows.clusters, row_of_id):
        raise ValueError(f"clusters of some rows differ between {first_name!r} and {name!r}")
    return row_of_id


def _same_clusters(clusters: RowIds, other_clusters: RowIds, row_of_id: Tensor) -> bool:
    """Return True if both runs have the same clusters; `row_of_id` is the row in the other run of each row."""
    if isinstance(clusters, Tensor) and isinstance(other_clusters, Tensor):
        return torch.equal(clusters, other_clusters[row_of_id])
    return type(clusters) is type(other_clusters) and clusters == [other_clusters[row] for row in row_of_id.tolist()]


def _unpaired(name: str, ids: RowIds, other_name: str, row_of_id: Tensor) -> str:
    """Return a message with the number of ids that another run does not have; empty if it has all of them."""
    missing = (row_of_id < 0).nonzero()[:, 0]
    if not len(missing):
        return ""
    example = id_at(ids, int(missing[0]))
    return f"{len(missing)} of {len(ids)} ids of {name!r} are not in {other_name!r} (such as id {example!r})"
