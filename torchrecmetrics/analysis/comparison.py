"""`compare` and `Comparison`: paired significance tests of two or more runs, with intervals and effect sizes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.analysis.families import (
    Alternative,
    ByFlips,
    ByStudent,
    Correction,
    Decisions,
    decide,
    studentised,
)
from torchrecmetrics.analysis.formatting import Table, records
from torchrecmetrics.analysis.pairing import Paired, Runs, Totals
from torchrecmetrics.analysis.plots import Difference, Drawn, draw_forest
from torchrecmetrics.analysis.resampling import one_thread
from torchrecmetrics.analysis.rows import check_seed
from torchrecmetrics.core.checks import check_choice, check_k, nearest
from torchrecmetrics.core.intervals import check_level
from torchrecmetrics.core.student import quantile
from torchrecmetrics.data.groups import Groups, check_groups

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POWER = 0.8


class PairResult(NamedTuple):
    """Result for one label of one pair of runs, over all rows or over the rows of one group."""

    label: str
    run: str
    against: str
    group: str | None
    """Name of the group; None = all rows, including rows of no group."""
    difference: float
    """Mean of `run` minus mean of `against`, over the rows that are compared."""
    low: float
    """Lower end of the interval of the difference, which excludes 0 exactly where p <= 1 - level."""
    high: float
    p: float
    adjusted_low: float
    """Lower end of the corrected interval: all corrected intervals together cover the true differences at `level`.

    If it excludes 0, `adjusted_p` <= 1 - level; the reverse need not hold, since p is corrected step by step.
    """
    adjusted_high: float
    adjusted_p: float
    """p corrected for all labels, pairs and groups that were compared."""
    effect_size: float
    """d_z: mean of the paired differences divided by their standard deviation."""
    wins: int
    """Number of rows in which `run` has the higher value."""
    ties: int
    losses: int
    num_rows: int
    """Number of rows that are compared: defined in both runs and of a weight > 0."""
    num_left_out: int
    """Number of rows that are left out: undefined for this label in one of the two runs, or of weight 0."""
    num_units: int
    """Number of tested units: clusters, or rows without clusters. With fewer than two, p and intervals are nan."""
    detectable: float
    """True difference that a comparison of this size finds with probability 0.8, after correction."""
    noninferior_p: float | None
    """Corrected p of the hypothesis that `run` is worse by `margin` or more; None = no margin was given."""

    @property
    def key(self) -> str:
        """Key of the result: the label, or `label/group` for a group."""
        return self.label if self.group is None else f"{self.label}/{self.group}"


@dataclass(frozen=True)
class Comparison(Table):
    """Result of `compare`; `str()` returns a table, and sentences that describe the test.

    `comparison["NDCG@10"]` is the `PairResult` of a label if only one pair of runs was compared, and
    `comparison["NDCG@10", "gcn", "pop"]` the result of gcn minus pop; `comparison["NDCG@10/cold"]` is for a group.
    """

    _gaps: ClassVar[dict[str, str]] = {"group": "text", "noninferior_p": "floats"}
    _words: ClassVar[tuple[str, ...]] = ("label", "run", "against", "group")

    results: tuple[PairResult, ...]
    """One result per pair and label, each followed by the results of the groups."""
    runs: dict[str, int]
    """Number of runs by name."""
    test: Literal["randomization", "t"]
    correction: Correction
    alternative: Alternative
    level: float
    resamples: int | None
    """Number of sign flips; None = t test."""
    exact: bool
    """True if the flips are all combinations of signs, not a random sample."""
    margin: float | None
    seed: int
    clustered: bool
    groups: dict[str, int]
    """Number of rows by group; empty = no groups were given."""
    num_in_none: int
    """Number of rows that are in no group."""

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, key: str | tuple[str, str, str]) -> PairResult:
        label, *pair = (key,) if isinstance(key, str) else key
        found = [result for result in self.results if result.key == label]
        if not found:
            raise KeyError(f"no label {label!r}{nearest(label, [*dict.fromkeys(r.key for r in self.results)])}")
        if pair:
            found = [result for result in found if [result.run, result.against] == pair]
        if len(found) != 1:
            pairs = ", ".join(f"[{label!r}, {r.run!r}, {r.against!r}]" for r in self.results if r.key == label)
            raise KeyError(f"which pair, and which less which? There are {pairs}")
        return found[0]

    @property
    def _num_tested(self) -> int:
        """Number of comparisons that were tested, for which p and intervals are corrected."""
        return sum(not math.isnan(r.p) for r in self.results)

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the fields of the results as columns, {field name: list with one value per result}.

        Example:
            >>> import torch
            >>> import torchrecmetrics as trm
            >>> ids = torch.arange(50)
            >>> pop, gcn = (trm.Rows({"HR@10": (ids % n == 0).double()}, ids) for n in (4, 3))
            >>> columns = trm.compare({"pop": pop, "gcn": gcn}).to_dict()
            >>> columns["label"], columns["wins"]
            (['HR@10'], [12])
        """
        columns: list[Sequence[Any]] = list(zip(*self.results, strict=True))
        return {name: list(column) for name, column in zip(PairResult._fields, columns, strict=True)}

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return JSON text: {"results": [{"label": ..., "run": ..., ...}], "test": ..., ...}; NaN is null."""
        how = {
            name: getattr(self, name) for name in ("test", "correction", "alternative", "level", "resamples", "seed")
        }
        return json.dumps({"results": records(self.results), **how}, indent=indent, allow_nan=False)

    def plot(self, ax: Axes | None = None) -> Drawn:
        """Draw a forest plot: differences with intervals (thick) and corrected intervals (thin), one colour per pair.

        If a margin was given, a broken line is drawn at -margin.

        Args:
            ax: matplotlib axes; None = a new figure, as high as the labels need.

        Returns:
            Figure and axes.

        Raises:
            ImportError: without matplotlib.
        """
        corrected = self.correction != "none" and self._num_tested > 1
        title = f"{100 * self.level:g} % intervals"
        if corrected:
            title += f", thin: corrected for {self._num_tested} comparisons"
        found = [
            Difference(
                r.key, f"{r.run} - {r.against}", r.difference, (r.low, r.high), (r.adjusted_low, r.adjusted_high)
            )
            for r in self.results
        ]
        return draw_forest(found, title, corrected, self.margin, ax)

    def __str__(self) -> str:
        header, *lines = self._cells()
        width = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
        words = 2  # label and pair, aligned to the left; the other columns are numbers
        table = [
            "  ".join(
                cell.ljust(w) if i < words else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(line, width, strict=True))
            )
            for line in (header, *lines)
        ]
        return "\n".join([*(line.rstrip() for line in table), "", *self._sentences()])

    def _cells(self) -> list[list[str]]:
        """Return the table of `str()` as lines of cells, the header first."""
        adjusted = self.correction != "none" and self._num_tested > 1
        widths = [r.adjusted_high - r.adjusted_low for r in self.results]
        least = min((w for w in widths if 0 < w < math.inf), default=1.0)
        digits = min(12, max(4, 1 - math.floor(math.log10(least))))
        counts = any(r.num_left_out for r in self.results)
        lines = [["", "", "difference", f"{100 * self.level:g} % interval", "p"]]
        lines[0] += [*["adjusted p"][:adjusted], "d_z", "won/tied/lost", "rows", *["left out"][:counts], "detectable"]
        lines[0] += ["non-inferior p"] * (self.margin is not None)
        for r in self.results:
            line = [r.key, f"{r.run} - {r.against}", f"{r.difference:+.{digits}f}"]
            line += [f"[{r.adjusted_low:+.{digits}f}, {r.adjusted_high:+.{digits}f}]", _p(r.p)]
            line += [_p(r.adjusted_p)] * adjusted
            line += [f"{r.effect_size:+.2f}", f"{r.wins}/{r.ties}/{r.losses}", str(r.num_rows)]
            line += [str(r.num_left_out)] * counts + [f"{r.detectable:.{digits}f}"]
            line += [_p(r.noninferior_p)] * (r.noninferior_p is not None)
            lines.append(line)
        return lines

    def _sentences(self) -> list[str]:
        """Return the sentences below the table of `str()`: test, correction, groups, margin, averaged runs."""
        units = "whole clusters" if self.clustered else "rows"
        rows = max(r.num_units for r in self.results)
        if self.test == "t":
            said = [f"Paired t test over {rows} {units}, {self._sides()}."]
        else:
            how = f"all {self.resamples} other signs" if self.exact else f"{self.resamples} draws, seed {self.seed}"
            said = [f"Paired randomisation test: signs of {rows} {units} flipped ({how}), {self._sides()}."]
        alpha = f"{1 - self.level:.4g}"
        if self._num_tested <= 1:
            said.append(f"The interval excludes 0 exactly where p <= {alpha}.")
        elif self.correction == "none":
            said.append(f"Not corrected for {self._num_tested} comparisons; an interval excludes 0 where p <= {alpha}.")
        else:
            by = {
                "max-t": "step-down max-T; exact for each, asymptotic for all together",
                "holm": "Holm's method",
            }[self.correction]
            said.append(
                f"Corrected for {self._num_tested} comparisons ({by}); the intervals hold together, so "
                f"one with 0 may have an adjusted p <= {alpha}."
            )
        if self.groups:
            none = f"; {self.num_in_none} rows are in none" if self.num_in_none else ""
            said.append(f"Over all rows, and those of {len(self.groups)} groups each{none}.")
        if untested := [r.key for r in self.results if math.isnan(r.p)]:
            names = [*dict.fromkeys(untested)]
            more = f", {len(names) - 10} more" if len(names) > 10 else ""
            said.append(f"Not tested, with fewer than two {units}: {', '.join(names[:10])}{more}.")
        if self.margin is not None:
            said.append(f"Non-inferior: worse by less than {self.margin:g}, where higher values are better.")
        if averaged := [f"{name} is the mean of {number}" for name, number in self.runs.items() if number > 1]:
            said.append(f"{', '.join(averaged)} runs: this tests these runs, not others that other seeds would give.")
        return said

    def _sides(self) -> str:
        return {"two-sided": "two-sided", "greater": "one-sided (greater)", "less": "one-sided (less)"}[
            self.alternative
        ]


@one_thread()
def compare(
    runs: Runs,
    *,
    baseline: str | None = None,
    test: Literal["randomization", "t"] = "randomization",
    correction: Correction | None = None,
    resamples: int = 10_000,
    level: float = 0.95,
    alternative: Alternative = "two-sided",
    margin: float | None = None,
    seed: int = 0,
    groups: Groups | None = None,
) -> Comparison:
    """Compare runs over the same rows by paired significance tests, to tell real differences from chance.

    Rows are paired by id. A row that is undefined in one of two runs is left out of their comparison for that label,
    and counted. The units of a pair are u = w (x - y), summed by cluster where there are clusters; the test statistic
    is t = sum u / sqrt(n s^2), as in a paired t test, and the difference is sum u / sum w.

    "randomization": if the two runs are interchangeable, both signs of each u are equally likely. b of R random sign
    flips have |t_r| >= |t| (1 - 1e-9), and p = (b + 1) / (R + 1); all flips are used if 2^n is at most `resamples`.
    A unit has the same sign for all labels and pairs, so that the correction takes their dependence into account.
    Intervals are difference ± q s / sqrt(n) / mean w, q the order statistic of the same t_r, so that an interval
    excludes 0 exactly where its p is at most 1 - level. "t": Student's distribution in place of the flips.

    Args:
        runs: {name: `Rows`}, or {name: [Rows, Rows, ...]} of several runs (seeds), which are averaged row by row.
        baseline: compare each other run with this one. None: all pairs, each run minus each run before it.
        test: "randomization" or "t".
        correction: for all labels and pairs that are compared: "max-t", step-down (for randomization; its default),
            exact for one comparison and asymptotic for all together; "holm" (the t test's default); or "none".
            Corrected intervals have the critical value of the first step, so that they hold for all together.
        resamples: number of sign flips.
        level: confidence level of the intervals, between 0 and 1.
        alternative: "two-sided"; "greater" or "less": the mean of the run is higher or lower than that of the other.
        margin: > 0, in the metrics' unit: test also whether a run is worse by less than this (non-inferior), where
            higher values are better. One-sided, with the same correction.
        seed: seed of the hash of row ids that gives the signs; the result does not depend on the order of rows.
        groups: compare the runs over the rows of each group as well: `group_users(train)`, or `Groups` of any column.
            Row ids are looked up in `user_ids`, or are row numbers of users; if rows are sessions and not users,
            `user_ids` must be session ids. One correction covers all rows and the groups.

    Returns:
        A `Comparison` of `PairResult`s: p is 1 where all differences are 0; values that need two rows are nan for
        fewer rows.

    Raises:
        TypeError: for runs that are no `Rows`, groups that are no `Groups` or have ids of another kind.
        ValueError: for ids that do not pair, labels, options, weights or clusters that differ between runs, infinite
            values, groups that hold none of the rows, and for unknown arguments.

    Source: Westfall and Young, Resampling-based multiple testing, 1993; Smucker et al., A comparison of statistical
    significance tests for information retrieval evaluation, CIKM 2007.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> ids = torch.arange(400)
        >>> pop = trm.Rows({"HR@10": (ids % 5 == 0).double()}, ids)
        >>> gcn = trm.Rows({"HR@10": (ids % 4 == 0).double()}, ids)
        >>> found = trm.compare({"pop": pop, "gcn": gcn})["HR@10"]
        >>> round(found.difference, 4), found.wins, found.losses, 0.05 < found.p < 0.15
        (0.05, 80, 60, True)
        >>> regions = trm.Groups(ids // 200, ["north", "south"])
        >>> found = trm.compare({"pop": pop, "gcn": gcn}, groups=regions)
        >>> [(r.key, r.num_rows) for r in found.results]
        [('HR@10', 400), ('HR@10/north', 200), ('HR@10/south', 200)]
    """
    correction = _check_correction(test, correction)
    check_choice("alternative", alternative, ("two-sided", "greater", "less"))
    level, resamples, seed = check_level(level), check_k(resamples, "resamples"), check_seed(seed)
    margin = _check_margin(margin)
    check_groups(groups)
    paired = Paired(runs)
    paired.check_finite(paired.labels)
    paired.against(baseline)
    parts: dict[str | None, Paired] = {None: paired}
    if groups is not None:
        parts |= _pair_by_group(paired, groups)
    totals = Totals.beside(part.totals() for part in parts.values())
    exact = test == "randomization" and 2 ** min(paired.layout.units, 62) <= resamples
    own, shifted = _Sums(totals.sums, totals.squares), None
    if margin is not None:
        squares = torch.cat([part.shifted_squares(margin) for part in parts.values()])
        shifted = _Sums(totals.sums + margin * totals.weights, squares)
    if test == "randomization":
        own, shifted = _with_flips(own, shifted, parts, totals.units, margin, None if exact else resamples, seed)
    alpha = round(1 - level, 12)
    decisions, noninferior = own.decide(totals.units, alternative, alpha, correction), None
    if shifted is not None:
        noninferior = shifted.decide(totals.units, "greater", alpha, correction).adjusted_p
    return Comparison(
        tuple(_results(parts, totals, decisions, noninferior, level, alternative)),
        {name: len(repeats) for name, repeats in paired.runs.items()},
        test,
        correction,
        alternative,
        level,
        None if own.flips is None else len(own.flips),
        exact,
        margin,
        seed,
        paired.layout.ends is not None,
        {name: len(part.rows) for name, part in parts.items() if name is not None},
        0
        if groups is None
        else len(paired.rows) - sum(len(part.rows) for part in parts.values() if part is not paired),
    )


class _Sums(NamedTuple):
    """Sums over the units of each column, unshifted or shifted by the margin."""

    sums: Tensor
    """Float64 [columns]."""
    squares: Tensor
    """Sums of squares, float64 [columns]."""
    flips: Tensor | None = None
    """t of the sums with other signs, float64 [R, columns]; None for a t test."""

    def decide(self, units: Tensor, side: Alternative, alpha: float, correction: Correction) -> Decisions:
        """Test the columns with two or more units; `units`, int64 [columns], is the number of units of each column."""
        t = studentised(self.sums, self.squares, units)
        test = ByStudent(t, units, self.squares, side) if self.flips is None else ByFlips(t, self.flips, side)
        return decide(test, (units >= 2).nonzero()[:, 0].tolist(), alpha, correction)


def _with_flips(
    own: _Sums,
    shifted: _Sums | None,
    parts: dict[str | None, Paired],
    units: Tensor,
    margin: float | None,
    resamples: int | None,
    seed: int,
) -> tuple[_Sums, _Sums | None]:
    """Return `own` and `shifted` with t under `resamples` random sign flips, or under all combinations (None)."""
    whole = parts[None]
    sums = [
        part.all_flipped(margin, whole.layout.keys) if resamples is None else part.flipped(margin, resamples, seed)
        for part in parts.values()
    ]
    flipped = torch.cat([part[:, : whole.columns] for part in sums], 1)
    own = own._replace(flips=studentised(flipped, own.squares, units))
    if shifted is not None:
        flipped = torch.cat([part[:, whole.columns :] for part in sums], 1)
        shifted = shifted._replace(flips=studentised(flipped, shifted.squares, units))
    return own, shifted


def _pair_by_group(paired: Paired, groups: Groups) -> dict[str | None, Paired]:
    """Return the paired runs over the rows of each group, by group name."""
    taken = [
        f"{label}/{name}" for label in paired.labels for name in groups.names if f"{label}/{name}" in paired.labels
    ]
    if taken:
        raise ValueError(f"{taken[0]} is a label of the runs, and would be that of a group: leave one of them out")
    codes = groups.of_rows(paired.first.ids)
    return {name: paired.only(codes == code) for code, name in enumerate(groups.names)}


def _results(
    parts: dict[str | None, Paired],
    totals: Totals,
    decisions: Decisions,
    noninferior: list[float] | None,
    level: float,
    alternative: Alternative,
) -> list[PairResult]:
    """Return the results by pair and label: the result over all rows, followed by those of the groups."""
    columns = zip(*(part.tolist() for part in totals[:5]), totals.signs.T.tolist(), strict=True)
    found = []
    whole = parts[None]
    for column, ((group, pair, label), (units, used, total, squares, weight, signs)) in enumerate(
        zip(product(parts, whole.pairs, whole.labels), columns, strict=True)
    ):
        part = parts[group]
        defined = units >= 2
        difference = total / weight if used else math.nan
        share = min(1.0, total * total / (units * squares)) if defined and squares else 0.0
        left = squares * (1 - share) if 1 - share >= 1e-12 else 0.0  # sum of squares around the mean
        error = math.sqrt(left * units / (units - 1)) / weight if defined else math.nan
        spread = math.sqrt(left / (units - 1)) if defined else math.nan
        ends = [
            _interval(difference, error, critical[column], alternative)
            for critical in (decisions.critical, decisions.joint_critical)
        ]
        power = quantile(_POWER, units - 1) if defined else math.nan
        found.append(
            PairResult(
                label=label,
                run=pair[0],
                against=pair[1],
                group=group,
                difference=difference,
                low=ends[0][0],
                high=ends[0][1],
                p=decisions.p[column],
                adjusted_low=ends[1][0],
                adjusted_high=ends[1][1],
                adjusted_p=decisions.adjusted_p[column],
                effect_size=_ratio(total / units, spread) if defined else math.nan,
                wins=signs[0],
                ties=signs[1],
                losses=signs[2],
                num_rows=used,
                num_left_out=len(part.rows) - used,
                num_units=units,
                detectable=_detectable(decisions.joint_critical[column] + power, error),
                noninferior_p=None if noninferior is None else noninferior[column],
            )
        )
    return [result for first in range(whole.columns) for result in found[first :: whole.columns]]


def _interval(value: float, error: float, critical: float, alternative: Alternative) -> tuple[float, float]:
    """Return the interval value ± critical x error; one of its ends is infinite for a one-sided alternative."""
    half = critical if math.isinf(critical) else critical * error
    if math.isnan(half) or math.isnan(value):
        return math.nan, math.nan
    return (
        -math.inf if alternative == "less" else value - half,
        math.inf if alternative == "greater" else value + half,
    )


def _ratio(value: float, by: float) -> float:
    return value / by if by else math.copysign(math.inf, value) if value else 0.0


def _check_correction(test: str, correction: Correction | None) -> Correction:
    """Return the correction of a test, or the test's default for None; raise for an unknown correction."""
    check_choice("test", test, ("randomization", "t"))
    if correction is None:
        correction = "max-t" if test == "randomization" else "holm"
    check_choice("correction", correction, ("max-t", "holm", "none"))
    if test == "t" and correction == "max-t":
        raise ValueError("correction='max-t' needs the flips of test='randomization'; a t test takes 'holm' or 'none'")
    return correction


def _check_margin(margin: Any) -> float | None:
    """Return the margin as a float > 0, or None; raise for other values."""
    if margin is None:
        return None
    if isinstance(margin, (bool, str)) or not hasattr(margin, "__float__"):
        raise TypeError(f"margin must be a number > 0 in the metrics' unit, or None, got {margin!r}")
    if not 0 < float(margin) < math.inf:
        raise ValueError(f"margin must be a number > 0 in the metrics' unit, or None, got {margin!r}")
    return float(margin)


def _p(p: float | None) -> str:
    """Return a p value as text with four decimals; None is empty text."""
    return "" if p is None else "<0.0001" if p < 0.0001 else f"{p:.4f}"


def _detectable(critical: float, error: float) -> float:
    """Return `critical` x `error`, the true difference found with probability `_POWER`; inf if `critical` is inf."""
    return math.inf if critical == math.inf else critical * error
