"""`compare` and `Comparison`: paired significance tests of two or more runs, with intervals and effect sizes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.core.checks import check_choice, check_k
from torchrecmetrics.core.intervals import check_level, quantile
from torchrecmetrics.results.pairing import (
    MANY,
    Alternative,
    ByFlips,
    ByStudent,
    Correction,
    Decisions,
    PairColumns,
    Paired,
    PairTotals,
    RunMean,
    Runs,
    all_flips,
    check_correction,
    decide,
    flipped_sums,
    one_thread,
    studentised,
)
from torchrecmetrics.results.result_table import ModelTable, ResultTable, decimals, p_text, records, unknown_key
from torchrecmetrics.results.rows import EQUAL

_POWER = 0.8
_SERVED = "served by both"
_ENDS = {"passed": "less than", "failed": "more than", "inconclusive": "not less than"}
_TOGETHER = "the intervals hold jointly, so one that includes 0 may have an adjusted p <= {alpha}"
_METHODS = {
    "max-t": f"(step-down max-T; exact for each, asymptotic for all together); {_TOGETHER}",
    "holm": f"(Holm's method); {_TOGETHER}",
    "bh": "(Benjamini-Hochberg); intervals exclude 0 where the adjusted p <= {alpha}, and a share of {alpha} of these "
    "results is expected to be chance",
}
_SIDES = {"two-sided": "two-sided", "greater": "one-sided (greater)", "less": "one-sided (less)"}

if TYPE_CHECKING:
    from torchrecmetrics.data.groups import Groups


class PairResult(NamedTuple):
    """Result for one label of one pair of runs, over all rows or over the rows of one group."""

    label: str
    run: str
    against: str
    group: str | None
    """Name of the group; None = all rows, including rows of no group.

    "served by both" is the group of the rows for which both runs have a list; it is compared if a margin is given and a
    run has no list for a row.
    """
    value: float
    """Mean of `run` over the rows that are compared."""
    against_value: float
    """Mean of `against` over the rows that are compared."""
    standard_error: float
    """Standard error of `value`."""
    against_standard_error: float
    difference: float
    """`value` minus `against_value`."""
    low: float
    """Lower end of the difference's interval, which excludes 0 if and only if p <= 1 - level."""
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
    margin: float | None = None
    """Margin in the unit of the metric; None = no margin was given."""
    noninferior_p: float | None = None
    """One-sided p of the hypothesis that `run` is worse by the margin or more, which `Comparison.passed` reads."""
    adjusted_noninferior_p: float | None = None
    """`noninferior_p` corrected for all labels, pairs and groups."""
    largest_loss: float | None = None
    """Largest loss of `run` at level `level`: below the margin if and only if noninferior_p <= (1 - level) / 2."""

    @property
    def key(self) -> str:
        """Key of the result: the label, or `label/group` for a group."""
        return self.label if self.group is None else f"{self.label}/{self.group}"

    @property
    def pair(self) -> str:
        """The two runs, as `gcn - pop`."""
        return f"{self.run} - {self.against}"


@dataclass(frozen=True)
class Comparison(ResultTable):
    """Result of `compare`; `str()` returns a table, and sentences that describe the test.

    The table, also that of `to_markdown` and `to_latex`, has the values of both runs, the difference, its corrected
    interval and corrected p; `to_dict`, `to_pandas` and `to_polars` have all fields of `PairResult`.

    `comparison["NDCG@10"]` is the `PairResult` of a label if only one pair of runs was compared, and
    `comparison["NDCG@10", "gcn", "pop"]` the result of gcn minus pop; `comparison["NDCG@10/cold"]` is for a group.
    """

    _gaps: ClassVar[dict[str, str]] = {
        "group": "text",
        **dict.fromkeys(("margin", "noninferior_p", "adjusted_noninferior_p", "largest_loss"), "floats"),
    }
    _words: ClassVar[tuple[str, ...]] = ("metric", "runs")

    results: tuple[PairResult, ...]
    """One result per pair and label, each followed by the results of the groups."""
    means: dict[tuple[str, str], RunMean]
    """Mean of each run over its own rows, by the run's name and the key of a result."""
    runs: dict[str, int]
    """Number of runs by name."""
    baseline: str | None
    """The run that all others were compared with; None = all pairs were compared."""
    test: Literal["randomization", "t"]
    correction: Correction
    alternative: Alternative
    level: float
    resamples: int | None
    """Number of sign flips; None = t test."""
    exact: bool
    """True if the flips are all combinations of signs, not a random sample."""
    normal: bool
    """True if sums of small units are drawn from the normal limit of their flips, since there are many units."""
    margin: float | str | None
    """Margin of non-inferiority, in the metrics' unit or as a share such as "2%"; None = none was given."""
    higher_is_better: dict[str, bool | None]
    """Which values are better, by label; None = neither."""
    seed: int
    clustered: bool
    groups: dict[str, int]
    """Number of rows by group; empty = no groups were given."""
    num_in_none: int
    """Number of rows that are in no group."""
    unserved: dict[str, int]
    """Number of rows for which a run has no list, by the run's name, where it is not 0."""

    def __len__(self) -> int:
        return len(self.results)

    def result_rows(self) -> list[dict[str, Any]]:
        """Return the columns of each result by name."""
        return [result._asdict() for result in self.results]

    def __getitem__(self, key: str | tuple[str, str, str]) -> PairResult:
        label, *pair = (key,) if isinstance(key, str) else key
        of_label = [result for result in self.results if result.key == label]
        if not of_label:
            raise unknown_key(label, self.result_keys)
        of_pair = [result for result in of_label if not pair or [result.run, result.against] == pair]
        if len(of_pair) != 1:
            pairs = ", ".join(f"[{label!r}, {r.run!r}, {r.against!r}]" for r in of_label)
            raise KeyError(f"name the label and the two runs, one of {pairs}")
        return of_pair[0]

    @property
    def result_keys(self) -> list[str]:
        """Keys of the results, each once."""
        return [*dict.fromkeys(r.key for r in self.results)]

    @property
    def pairs(self) -> list[str]:
        """Pairs of runs that were compared, as `gcn - pop`."""
        return [*dict.fromkeys(r.pair for r in self.results)]

    @property
    def num_tested(self) -> int:
        """Number of comparisons that were tested, for which p and intervals are corrected."""
        return sum(not math.isnan(r.p) for r in self.results)

    @property
    def is_corrected(self) -> bool:
        """True if p and intervals are corrected for several comparisons."""
        return self.correction != "none" and self.num_tested > 1

    @property
    def passed(self) -> bool | None:
        """True if every result is non-inferior, False if one is not or has fewer than two units; None = no margin.

        Each result is tested one-sided at (1 - level) / 2, by default .025, without correction. If any of them is truly
        inferior, all pass in at most this share of cases (intersection-union test).
        """
        return None if self.margin is None else not self._inferior

    @property
    def _inferior(self) -> list[PairResult]:
        """Results that are not shown to be non-inferior."""
        alpha = round((1 - self.level) / 2, 12)
        return [r for r in self.results if r.noninferior_p is None or not r.noninferior_p <= alpha]

    @property
    def outcome(self) -> Literal["passed", "failed", "inconclusive"] | None:
        """Outcome of the test of non-inferiority; None = no margin.

        - "passed": every result is non-inferior, see `passed`;
        - "failed": a result is worse by more than the margin: its corrected interval lies beyond it;
        - "inconclusive": the rows are too few to show either.
        """
        if self.margin is None:
            return None
        if any(self._least_loss(result) > (result.margin or 0) for result in self._inferior):
            return "failed"
        return "inconclusive" if self._inferior else "passed"

    def _least_loss(self, result: PairResult) -> float:
        """Return the lower end of the loss's corrected interval."""
        return result.adjusted_low if self.higher_is_better[result.label] is False else -result.adjusted_high

    @property
    def verdict(self) -> str:
        """Sentence with the outcome, and with the bound of the loss that is the largest share of its margin.

        Raises:
            ValueError: without a margin.
        """
        if self.outcome is None:
            raise ValueError("verdict needs a margin: compare(runs, margin=0.02)")

        failed = self.outcome == "failed"

        def limit_of(result: PairResult) -> float:
            limit = self._least_loss(result) if failed else result.largest_loss
            return math.inf if limit is None or math.isnan(limit) else limit

        worst = max(self._inferior or self.results, key=lambda result: limit_of(result) / (result.margin or math.inf))
        name = worst.key if len(self.pairs) == 1 else f"{worst.key} of {worst.run}"
        limit, number = limit_of(worst), partial(decimals, digits=self._digits)
        if math.isinf(limit):
            return f"Inconclusive: {name} has too few rows or clusters for an interval, {worst.num_units}."
        falls, rises, loss = "fell", "rose", -worst.difference
        if self.higher_is_better[worst.label] is False:
            falls, rises, loss = "rose", "fell", worst.difference
        size = number(abs(loss))
        change = f"{falls} by {size}, by at {'least' if failed else 'most'} {number(limit)}"
        if loss < 0:
            change = f"{rises} by {size}, or {falls} by at most {number(limit)}"
        end = f"{_ENDS[self.outcome]} the margin {number(worst.margin or 0)}."
        if limit <= 0:
            change, end = f"{rises} by {size}, by at least {number(abs(limit))}", "no loss."
        if self.outcome == "inconclusive":
            end += f" A difference of {number(worst.detectable)} would be found in four of five cases."
        return f"{self.outcome.capitalize()}: {name} {change} ({100 * self.level:g} %): {end}"

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return JSON text: {"results": [{"label": ..., "run": ..., ...}], "test": ..., ...}; NaN is null."""
        settings = {
            name: getattr(self, name)
            for name in ("test", "correction", "alternative", "level", "resamples", "seed", "outcome", "unserved")
        }
        return json.dumps({"results": records(self.result_rows()), **settings}, indent=indent, allow_nan=False)

    def by_model(self, *, standard_errors: bool = False) -> ModelTable:
        """Return a table with a row per model and a column per metric, with the best values marked.

        A dagger marks values that differ significantly from those of the baseline, or else of the first run: adjusted
        p <= 1 - level, corrected over all marks. Each mean is over the model's own rows: see the notes.

        Args:
            standard_errors: True = also print the standard error of each mean.

        Examples:
            >>> import torch
            >>> import torchrecmetrics as trm
            >>> ids = torch.arange(400)
            >>> fifth, sixth, half = ((ids % n == 0).double() for n in (5, 6, 2))
            >>> pop = trm.Rows({"HR@10": fifth, "MRR": fifth}, ids)
            >>> gcn = trm.Rows({"HR@10": half, "MRR": sixth}, ids)
            >>> print(trm.compare({"pop": pop, "gcn": gcn}).by_model().to_markdown())
            | model |       HR@10 |        MRR |
            | ----- | ----------: | ---------: |
            | pop   |      0.2000 | **0.2000** |
            | gcn   | **0.5000†** |     0.1675 |
        """
        models = [*self.runs]
        baseline = self.baseline or models[0]
        keys = [key for key in self.result_keys if (baseline, key) in self.means]
        of_pairs = [result for result in self.results if result.against == baseline and result.key in keys]
        values = {model: {key: self.means[model, key].value for key in keys} for model in models}
        errors = {model: {key: self.means[model, key].standard_error for key in keys} for model in models}
        uneven = {
            r.key for r in of_pairs if any(self.means[m, r.key].num_rows != r.num_rows for m in (r.run, baseline))
        }
        best = []
        for r in of_pairs:
            if (higher := self.higher_is_better[r.label]) is not None and r.key not in uneven:
                signed = [values[model][r.key] * (1 if higher else -1) for model in models]
                best += [(r.key, row) for row, v in enumerate(signed) if v >= max(signed) - EQUAL * abs(max(signed))]
        alpha = round(1 - self.level, 12)
        different = {(r.key, models.index(r.run)) for r in of_pairs if r.adjusted_p <= alpha}
        p = "adjusted p" if self.is_corrected else "p"
        marks = f"The best values have a star or are bold; † differs from {baseline}, {p} <= {alpha:g}."
        keys_by_numbers: dict[str, list[str]] = {}
        for key in filter(uneven.__contains__, keys):
            numbers = ", ".join(str(self.means[model, key].num_rows) for model in models)
            keys_by_numbers.setdefault(numbers, []).append(key)
        if uneven:
            own_rows = "; ".join(f"{numbers} ({', '.join(of)})" for numbers, of in keys_by_numbers.items())
            marks += f" Each mean is over the model's own rows, of {', '.join(models)}: {own_rows}; none has a star."
        return ModelTable(values, errors if standard_errors else {}, {*best}, different, [marks, *self.notes])

    @property
    def _digits(self) -> int:
        """Number of decimals that shows the narrowest interval."""
        widths = [r.adjusted_high - r.adjusted_low for r in self.results]
        least = min((w for w in widths if 0 < w < math.inf), default=1.0)
        return min(12, max(4, 1 - math.floor(math.log10(least))))

    def _texts(self) -> dict[str, list[str]]:
        """Return the columns of the table as text."""
        digits, interval = self._digits, f"{100 * self.level:g} % interval"
        ends = [[decimals(end, digits, "+") for end in (r.adjusted_low, r.adjusted_high)] for r in self.results]
        columns = {
            "metric": [r.key for r in self.results],
            "runs": [r.pair for r in self.results],
            "value": [decimals(r.value, digits, absent="-") for r in self.results],
            "against": [decimals(r.against_value, digits, absent="-") for r in self.results],
            "difference": [decimals(r.difference, digits, "+", "-") for r in self.results],
            interval: [f"[{low}, {high}]" if low != "nan" else "-" for low, high in ends],
            "adjusted p" if self.is_corrected else "p": [p_text(r.adjusted_p) for r in self.results],
        }
        if self.margin is not None:
            adjusted = [r.adjusted_noninferior_p for r in self.results]
            columns["non-inferior p"] = [p_text(p) for p in adjusted if p is not None]
        return columns

    @property
    def notes(self) -> list[str]:
        """Sentences below the printed table: test, correction, groups, margin, averaged runs."""
        units = "whole clusters" if self.clustered else "rows"
        number, sides = max(r.num_units for r in self.results), _SIDES[self.alternative]
        if self.test == "t":
            notes = [f"Paired t test over {number} {units}, {sides}."]
        else:
            how = f"all {self.resamples} other signs" if self.exact else f"{self.resamples} draws, seed {self.seed}"
            how += ", of their normal limit" if self.normal else ""
            notes = [f"Paired randomisation test: signs of {number} {units} flipped ({how}), {sides}."]
        if not self.num_tested:
            notes = []
        alpha = f"{1 - self.level:.4g}"
        if self.is_corrected:
            method = _METHODS[self.correction].format(alpha=alpha)
            notes.append(f"Corrected for {self.num_tested} comparisons {method}.")
        elif self.num_tested > 1:
            notes.append(f"Not corrected for {self.num_tested} comparisons; an interval excludes 0 where p <= {alpha}.")
        elif self.num_tested:
            notes.append(f"The interval excludes 0 exactly where p <= {alpha}.")
        if self.groups:
            none = f"; {self.num_in_none} rows are in none" if self.num_in_none else ""
            notes.append(f"Over all rows, and over the rows of each of {len(self.groups)} groups{none}.")
        if untested := [*dict.fromkeys(r.key for r in self.results if math.isnan(r.p))]:
            notes.append(f"Not tested, with fewer than two {units}: {', '.join(untested)}.")
        if num_left_out := max(r.num_left_out for r in self.results if r.group is None):
            notes.append(f"Left out: up to {num_left_out} rows, undefined in one of two runs or of weight 0.")
        if self.unserved:
            notes.append(f"Without a list: {', '.join(f'{n} rows of {name}' for name, n in self.unserved.items())}.")
        if self.margin is not None:
            notes.append(self._margin_sentence())
        if averaged := [f"{name} is the mean of {number}" for name, number in self.runs.items() if number > 1]:
            notes.append(f"{', '.join(averaged)} runs: the test is about these runs, not about those of other seeds.")
        return notes

    def _margin_sentence(self) -> str:
        """Return the sentence on non-inferiority: the margin, and whether all results pass."""
        margin = f"{self.margin:g}" if isinstance(self.margin, Real) else f"{self.margin} of the other run's mean"
        lower = [label for label, higher in self.higher_is_better.items() if higher is False]
        sides = f" (lower values of {', '.join(lower)} are better)" if lower else ""
        alpha, outcome = f"{(1 - self.level) / 2:.4g}", "All" if self.passed else "Not all"
        return (
            f"Non-inferior: worse by less than {margin}{sides}. {outcome} results pass, each tested one-sided at "
            f"{alpha} without correction (intersection-union test)."
        )


@one_thread()
def compare(
    runs: Runs,
    metrics: str | Sequence[str] | None = None,
    *,
    baseline: str | None = None,
    test: Literal["randomization", "t"] = "randomization",
    correction: Correction | None = None,
    resamples: int = 10_000,
    level: float = 0.95,
    alternative: Alternative = "two-sided",
    margin: float | str | None = None,
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
    Beyond 10,000 units, only those with more than 1 / 10,000 of a column's sum u^2 are flipped one by one; the flipped
    sums of the others are drawn from their normal limit.
    Intervals are difference ± q s / sqrt(n) / mean w, where q is an order statistic of the same t_r. "t" uses
    Student's distribution instead of flips.

    Args:
        runs: {name: evaluation} with `keep_rows=True`, a collection with `KeptRows`, or `Rows`; {name: [several]} for
            several seeds of a model, averaged row by row.
        metrics: labels to compare, such as ["NDCG@10"]. None: all labels, the same in all runs.
        baseline: compare each other run with this one. None: all pairs, each run minus each run before it.
        test: "randomization" or "t".
        correction: over all labels, pairs and groups: "max-t", step-down (for randomization; its default), exact for
            one comparison and asymptotic for several; "holm" (the t test's default); "bh", Benjamini and Hochberg's
            false discovery rate; or "none".
        resamples: number of sign flips.
        level: confidence level of the intervals, between 0 and 1.
        alternative: "two-sided"; "greater" or "less": the mean of the run is higher or lower than that of the other.
        margin: also test, one-sided, whether a run is worse by less than this (non-inferior): a number > 0 in the
            metrics' unit, or a share such as "2%" of the other run's mean over all rows, which is taken as fixed.
            `Comparison.passed` says if all results are non-inferior.
        seed: seed of the signs; the result does not depend on the order of rows, which are sorted by id.
        groups: compare the runs over the rows of each group as well: `group_users(train)`, or `Groups` of any column.
            Row ids are looked up in the groups' `user_ids` (session ids, if rows are sessions); without `user_ids`,
            they are row numbers of users.

    Returns:
        A `Comparison` of `PairResult`s: p is 1 where all differences are 0; values that need two rows are nan for
        fewer rows.

    Raises:
        TypeError: for runs without `rows`, `groups` of another type or with ids of another kind.
        ValueError: for runs that kept no rows, ids that do not pair, labels, options, weights or clusters that differ
            between runs, infinite values, groups that hold none of the rows, and for unknown arguments.

    Source: Westfall and Young, Resampling-based multiple testing, 1993; Benjamini and Hochberg, Controlling the false
    discovery rate, JRSS B 57, 1995; Berger, Multiparameter hypothesis testing and acceptance sampling, Technometrics
    24, 1982 (all non-inferior: the intersection-union test); Smucker et al., A comparison of statistical significance
    tests for information retrieval evaluation, CIKM 2007.

    Example:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> ids = torch.arange(400)
        >>> pop = trm.Rows({"HR@10": (ids % 5 == 0).double()}, ids)
        >>> gcn = trm.Rows({"HR@10": (ids % 4 == 0).double()}, ids)
        >>> result = trm.compare({"pop": pop, "gcn": gcn})["HR@10"]
        >>> round(result.difference, 4), result.wins, result.losses, 0.05 < result.p < 0.15
        (0.05, 80, 60, True)
    """
    correction = check_correction(test, correction)
    check_choice("alternative", alternative, ("two-sided", "greater", "less"))
    level, resamples, seed = check_level(level), check_k(resamples, "resamples"), check_k(seed, "seed", least=0)
    amount = None if margin is None else _check_margin(margin)
    paired = Paired(runs, metrics, baseline)
    selected_by_group: dict[str | None, Tensor | None] = {None: None, **_rows_by_group(paired, groups)}
    num_units = paired.compared.num_units
    exact = test == "randomization" and 2 ** min(num_units, 62) <= resamples

    def decided(tables: Sequence[PairColumns], side: Alternative, alpha: float) -> Decisions:
        units, totals = [table.units for table in tables], PairTotals.joined(table.totals for table in tables)
        t = studentised(totals.sums, totals.squares, totals.units)
        if test == "t":
            tested: ByStudent | ByFlips = ByStudent(t, totals.units, totals.squares, side)
        else:
            flips = all_flips(units, num_units) if exact else flipped_sums(units, num_units, resamples, seed)
            tested = ByFlips(t, studentised(flips, totals.squares, totals.units), totals.units.long(), side)
        return decide(tested, (totals.units >= 2).nonzero().flatten().tolist(), round(alpha, 12), correction)

    selections = {name: (selected, False) for name, selected in selected_by_group.items()}
    if amount is not None and paired.unserved:
        for name, selected in selected_by_group.items():
            selections[_SERVED if name is None else f"{name}, {_SERVED}"] = selected, True
    by_group = {name: paired.columns(*selection) for name, selection in selections.items()}
    decisions, margins, shifted, noninferior = decided([*by_group.values()], alternative, 1 - level), None, [], None
    if amount is not None:
        margins = _margins(paired, amount, isinstance(margin, str), by_group[None].totals.against)
        shifted = [paired.columns(*selection, margins) for selection in selections.values()]
        noninferior = decided(shifted, "greater", (1 - level) / 2)
    num_flips = 2**num_units - 1 if exact else resamples
    sizes = {name: by_group[name].num_rows for name in selected_by_group if name is not None}
    return Comparison(
        results=tuple(_results(paired, by_group, decisions, alternative, margins, shifted, noninferior)),
        means=paired.means(selected_by_group),
        runs={name: len(repeats) for name, repeats in paired.runs.items()},
        baseline=baseline,
        test=test,
        correction=correction,
        alternative=alternative,
        level=level,
        resamples=None if test == "t" else num_flips,
        exact=exact,
        normal=test == "randomization" and num_units > MANY,
        margin=margin,
        higher_is_better=paired.higher_is_better,
        seed=seed,
        clustered=paired.layout.unit_of_row is not None,
        groups=sizes,
        num_in_none=len(paired.ids) - sum(sizes.values()) if sizes else 0,
        unserved=paired.unserved,
    )


def _rows_by_group(paired: Paired, groups: Groups | None) -> dict[str | None, Tensor]:
    """Return which rows are in each group, {name: bool [n]}; empty for None."""
    if groups is None:
        return {}
    from torchrecmetrics.data.groups import check_groups

    check_groups(groups)
    keys = [f"{label}/{name}" for label in paired.labels for name in groups.names]
    if clashing := [key for key in keys if key in paired.labels]:
        raise ValueError(f"{clashing[0]} is a label of the runs and would also be that of a group: leave one out")
    codes = groups.of_rows(paired.ids)
    return {name: codes == code for code, name in enumerate(groups.names)}


def _results(
    paired: Paired,
    by_group: dict[str | None, PairColumns],
    decisions: Decisions,
    alternative: Alternative,
    margins: list[float] | None,
    shifted: Sequence[PairColumns],
    noninferior: Decisions | None,
) -> list[PairResult]:
    """Return the results by pair and label: the result over all rows, followed by those of the groups."""
    totals = PairTotals.joined(table.totals for table in by_group.values())
    units = totals.units
    difference, spread, error = _moments(totals)
    critical, joint = torch.tensor([decisions.critical, decisions.joint_critical], dtype=torch.float64)
    power = torch.tensor([quantile(_POWER, n - 1) if n >= 2 else math.nan for n in units.tolist()], dtype=torch.float64)
    low, high = _ends(difference, critical, error, alternative)
    adjusted_low, adjusted_high = _ends(difference, joint, error, alternative)
    columns = {
        "value": totals.value.tolist(),
        "against_value": totals.against.tolist(),
        "standard_error": totals.value_error.tolist(),
        "against_standard_error": totals.against_error.tolist(),
        "difference": difference.tolist(),
        "low": low,
        "high": high,
        "p": decisions.p,
        "adjusted_low": adjusted_low,
        "adjusted_high": adjusted_high,
        "adjusted_p": decisions.adjusted_p,
        "effect_size": (totals.sums / units / spread).where((totals.sums != 0) | (units < 2), 0).tolist(),
        "wins": totals.wins.long().tolist(),
        "ties": totals.ties.long().tolist(),
        "losses": totals.losses.long().tolist(),
        "num_rows": totals.rows.long().tolist(),
        "num_units": units.long().tolist(),
        "detectable": _half_width(joint + power, error).tolist(),
    }
    if margins is not None and noninferior is not None:
        columns |= {"noninferior_p": noninferior.p, "adjusted_noninferior_p": noninferior.adjusted_p}
        columns["margin"] = margins * len(by_group)
        gain, _, error = _moments(PairTotals.joined(table.totals for table in shifted))  # gain + margin
        bound = _half_width(torch.tensor(noninferior.critical, dtype=torch.float64), error)
        columns["largest_loss"] = (torch.tensor(columns["margin"], dtype=torch.float64) - gain + bound).tolist()
    results = []
    names = product(by_group.items(), paired.pairs, paired.labels)
    for column, ((group, table), (run, against), label) in enumerate(names):
        numbers: dict[str, Any] = {name: values[column] for name, values in columns.items()}
        num_left_out = table.num_rows - numbers["num_rows"]
        numbers |= {"label": label, "run": run, "against": against, "group": group, "num_left_out": num_left_out}
        results.append(PairResult(**numbers))
    num_columns = len(paired.pairs) * len(paired.labels)
    return [result for start in range(num_columns) for result in results[start::num_columns]]


def _moments(totals: PairTotals) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean difference, the standard deviation of the units, and the difference's error, [columns] each."""
    units, sums, squares = totals.units, totals.sums, totals.squares
    share = (sums.square() / (units * squares)).where(squares > 0, 0).clamp(max=1)
    residual = (squares * (1 - share)).where(1 - share >= 1e-12, 0)  # sum of squares around the mean
    spread = (residual / (units - 1)).sqrt().where(units >= 2, math.nan)
    return sums / totals.weights, spread, spread * units.sqrt() / totals.weights


def _half_width(critical: Tensor, error: Tensor) -> Tensor:
    """Return `critical` x `error`; infinite for an infinite critical value, also where the error is 0."""
    return (critical * error).where(critical.isfinite(), critical)


def _ends(
    difference: Tensor, critical: Tensor, error: Tensor, alternative: Alternative
) -> tuple[list[float], list[float]]:
    """Return the ends of the intervals difference ± critical x error; one of them is infinite for a one-sided test."""
    half = _half_width(critical, error)
    low, high = difference - half, difference + half
    if alternative == "less":
        low = low.where(low.isnan(), -math.inf)
    if alternative == "greater":
        high = high.where(high.isnan(), math.inf)
    return low.tolist(), high.tolist()


def _check_margin(margin: float | str) -> float:
    """Return a margin as a number, the share "2%" as 0.02; raise for anything but numbers > 0 and shares."""
    number: Any = margin
    if isinstance(margin, str) and (share := re.fullmatch(r"(\d+\.?\d*|\.\d+) ?%", margin)):
        number = float(share[1]) / 100
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number < math.inf:
        raise ValueError(
            f"margin must be a number > 0 in the metrics' unit, a share of the other run's mean such as '2%', or None, "
            f"got {margin!r}"
        )
    return float(number)


def _margins(paired: Paired, amount: float, is_share: bool, means: Tensor) -> list[float]:
    """Return the margin of each label of each pair: `amount`, or that share of the other run's mean; or raise."""
    if sideless := [label for label, side in paired.higher_is_better.items() if side is None]:
        raise ValueError(
            f"neither higher nor lower values of {sideless[0]} are better, so it has no margin: name the metrics to "
            "compare, metrics=[...]"
        )
    if unknown := paired.sideless:
        raise ValueError(
            f"it is not known whether higher values of {unknown[0]} are better, so it has no margin: pass "
            f"Rows(..., higher_is_better={{{unknown[0]!r}: False}}) if lower values are better, else True"
        )
    margins = []
    for (_, against), label, mean in zip(
        *zip(*product(paired.pairs, paired.labels), strict=True), means.tolist(), strict=True
    ):
        if is_share and mean == 0:
            raise ValueError(f"the mean of {label} in {against!r} is 0, and so is any share of it: pass a margin > 0")
        margins.append(abs(mean) * amount if is_share else amount)
    return margins
