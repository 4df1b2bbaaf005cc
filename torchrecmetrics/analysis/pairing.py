"""Pair the rows of several runs by id, and sum their differences in chunks; clusters of rows are summed first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import reduce
from itertools import chain, product
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from torchrecmetrics.analysis.resampling import Units, all_flips, flipped_sums
from torchrecmetrics.analysis.rows import EQUAL, Layout, RowIds, Rows, find, id_at
from torchrecmetrics.core.checks import describe, nearest

Runs: TypeAlias = "Mapping[str, Rows | Sequence[Rows]]"


class Totals(NamedTuple):
    """Sums over the units of each column, [columns] per field."""

    units: Tensor
    """Number of units with a weight > 0, int64."""
    rows: Tensor
    """Number of rows with a weight > 0, int64."""
    sums: Tensor
    squares: Tensor
    weights: Tensor
    """Sums of the row weights; `sums / weights` is the difference of the means."""
    signs: Tensor
    """Number of rows in which the first run is higher, equal, lower: int64 [3, columns]."""

    def plus(self, other: Totals) -> Totals:
        """Return the totals over the units of both."""
        return Totals(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    @staticmethod
    def beside(parts: Iterable[Totals]) -> Totals:
        """Concatenate the columns of several totals."""
        return Totals(*(torch.cat(columns, -1) for columns in zip(*parts, strict=True)))


class Paired:
    """Runs whose rows have been paired by id.

    A column is one label of one pair of runs, in the order of pairs, then of labels. The units of a column are
    u = w (x - y), summed by cluster where there are clusters; u is 0 where x or y is undefined.

    Raises:
        TypeError: for runs that are no `Rows`.
        ValueError: for ids that do not pair, and for labels, options, weights or clusters that differ.
    """

    def __init__(self, runs: Runs) -> None:
        self.runs: dict[str, list[Rows]] = _listed(runs)
        first, *others = [(name, rows) for name, repeats in self.runs.items() for rows in repeats]
        self.first: Rows = first[1]
        self.labels: list[str] = [*self.first.values]
        self._row_in: dict[int, Tensor | None] = {id(self.first): None}
        for name, rows in others:
            if id(rows) not in self._row_in:
                self._row_in[id(rows)] = _pair(first[0], self.first, name, rows)
        self.layout: Layout = Layout.of(self.first)
        self.rows: Tensor = torch.arange(len(self.first), device="cpu")
        """Row numbers of the first run that are compared, int64 [n]."""
        given = self.first.weights  # scaled to a maximum of 1: squares neither overflow nor vanish
        self._weights = None if given is None else given / given.max().clamp_min(torch.finfo(given.dtype).tiny)
        self.pairs: list[tuple[str, str]] = []

    def against(self, baseline: str | None) -> None:
        """Set the pairs that are compared: each run with the baseline, or for None with every run before it."""
        names = [*self.runs]
        if baseline is None:
            self.pairs = [(later, earlier) for i, earlier in enumerate(names) for later in names[i + 1 :]]
        elif baseline in self.runs:
            self.pairs = [(name, baseline) for name in names if name != baseline]
        else:
            raise ValueError(f"baseline {baseline!r} is no run{nearest(baseline, names)}")
        self._weight_scales = self._compute_weight_scales()

    def only(self, chosen: Tensor) -> Paired:
        """Return the same pairs over the rows of the first run that `chosen`, bool [n], selects."""
        part = copy(self)
        part.rows, part.layout = chosen.nonzero()[:, 0], self.layout.only(chosen)
        part._weight_scales = part._compute_weight_scales()
        return part

    def check_finite(self, labels: Sequence[str]) -> None:
        """Raise if a label has infinite values in a run."""
        for rows in chain.from_iterable(self.runs.values()):
            rows.check_finite(labels)

    @property
    def columns(self) -> int:
        """Number of columns: pairs times labels."""
        return len(self.pairs) * len(self.labels)

    def totals(self) -> Totals:
        """Return the sums over all units."""
        return reduce(Totals.plus, self._piecewise())

    def _piecewise(self) -> Iterator[Totals]:
        for rows, sums in self.layout.pieces():
            better, differences, weights = self._differences(rows)
            used = weights > 0
            units = sums(differences)
            yield Totals(
                (sums(used.double()) > 0).sum(0),
                used.sum(0),
                units.sum(0),
                units.square().sum(0),
                weights.sum(0),
                torch.stack([(used & (better == sign)).sum(0) for sign in (1, 0, -1)]),
            )

    def units(self, shift: float | None = None) -> Units:
        """Yield chunks of keys, [c], and units, [c, columns]; `shift` adds the units plus w * `shift` as columns."""
        for rows, sums in self.layout.pieces():
            _, differences, weights = self._differences(rows)
            if shift is not None:
                differences = torch.cat([differences, _rounded_difference(differences, -shift * weights)], 1)
            yield sums.keys, sums(differences)

    def shifted_squares(self, shift: float) -> Tensor:
        """Return the sums of squares of the shifted units, [columns]."""
        squares = [units[:, self.columns :].square().sum(0) for _, units in self.units(shift)]
        return torch.stack(squares).sum(0)

    def flipped(self, shift: float | None, resamples: int, seed: int) -> Tensor:
        """Return sums of the units with random signs, float64 [resamples, columns]; `shift` as in `units`."""
        return flipped_sums(self.units(shift), self.columns * (1 if shift is None else 2), resamples, seed)

    def all_flipped(self, shift: float | None, keys: Tensor) -> Tensor:
        """Return sums as `flipped` does, but under all combinations of signs of the units `keys`, ascending int64."""
        mine, units = (torch.cat(parts) for parts in zip(*self.units(shift), strict=True))
        all_units = units.new_zeros(len(keys), units.shape[1])
        all_units[torch.searchsorted(keys, mine)] = units
        return all_flips(all_units)

    def _differences(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return sign(x - y), w (x - y) and w of the given rows of the first run, three tensors [r, columns]."""
        better, differences, all_weights = [], [], []
        run_values = {
            (name, label): [self._values(run, label, rows) for run in repeats]
            for (name, repeats), label in product(self.runs.items(), self.labels)
        }
        means = {key: torch.stack(values).mean(0) for key, values in run_values.items()}
        for (first, second), label in product(self.pairs, self.labels):
            x, y = means[first, label], means[second, label]
            difference = _rounded_difference(x, y)
            if (first, second, label) in self._weight_scales:
                scales = self._weight_scales[first, second, label]
                w, wx = self._mean_weights(first, label, rows, run_values[first, label], scales)
                v, wy = self._mean_weights(second, label, rows, run_values[second, label], scales)
                weights, weighted = (w + v) / 2, _rounded_difference(wx, wy)
            else:
                weights = torch.ones_like(x) if self._weights is None else self._weights[rows]
                weighted = weights * difference
            used = weights > 0
            weights = weights.masked_fill(difference.isnan(), 0)
            weighted = weighted.masked_fill(difference.isnan() | ~used, 0)
            better.append(difference.sign())
            differences.append(weighted)
            all_weights.append(weights)
        return torch.stack(better, 1), torch.stack(differences, 1), torch.stack(all_weights, 1)

    def differences(self, pair: tuple[str, str], label: str) -> Tensor:
        """Return x - y over the rows that a pair compares, in the order of the first run, float64 [used]."""
        x, y = (torch.stack([self._values(run, label, self.rows) for run in self.runs[name]]).mean(0) for name in pair)
        weights = [self._own_weights(run, label, self.rows) for name in pair for run in self.runs[name]]
        difference = _rounded_difference(x, y)
        return difference[~difference.isnan() & (torch.stack(weights) > 0).any(0)]

    def _rows_in(self, run: Rows, rows: Tensor) -> Tensor:
        """Return the rows of `run` with the same ids as the given rows of the first run, int64 [r]."""
        there = self._row_in[id(run)]
        return rows if there is None else there[rows]

    def _values(self, run: Rows, label: str, rows: Tensor) -> Tensor:
        return run.values[label][self._rows_in(run, rows)]

    def _own_weights(self, run: Rows, label: str, rows: Tensor) -> Tensor:
        """Return a run's weights of the given rows, float64 [r]: the metric's own weights if it has any."""
        weights = run.weights_of(label)
        return torch.ones(len(rows), dtype=torch.float64) if weights is None else weights[self._rows_in(run, rows)]

    def _mean_weights(
        self, name: str, label: str, rows: Tensor, values: list[Tensor], totals: dict[int, float]
    ) -> tuple[Tensor, Tensor]:
        """Return the means of w and w x over the runs of a name; `totals` scales each run's weights to a mean of 1."""
        repeats = self.runs[name]
        weights = [self._own_weights(run, label, rows) * totals[id(run)] for run in repeats]
        weighed = [w * x for w, x in zip(weights, values, strict=True)]
        return torch.stack(weights).mean(0), torch.stack(weighed).mean(0)

    def _compute_weight_scales(self) -> dict[tuple[str, str, str], dict[int, float]]:
        """Return factors that scale a metric's own weights to a mean of 1, {(run, run, label): {id(run): factor}}."""
        scales = {}
        for (first, second), label in product(self.pairs, self.labels):
            runs = [*self.runs[first], *self.runs[second]]
            if not any(label in run.own_weights for run in runs):
                continue
            values = torch.stack([self._values(run, label, self.rows) for run in runs])
            weights = torch.stack([self._own_weights(run, label, self.rows) for run in runs])
            used = ~values.isnan().any(0) & (weights > 0).any(0)
            totals = (weights * used).sum(1)
            scale = (used.sum() / totals).tolist()
            scales[first, second, label] = {id(run): value for run, value in zip(runs, scale, strict=True)}
        return scales


def _rounded_difference(x: Tensor, y: Tensor) -> Tensor:
    """Return x - y, with differences that are rounding errors set to 0."""
    difference = x - y
    return difference.masked_fill(difference.abs() <= EQUAL * torch.maximum(x.abs(), y.abs()), 0)


def _listed(runs: Runs) -> dict[str, list[Rows]]:
    """Return the runs of each name as a list of `Rows`; raise for other types and fewer than two names."""
    cure = "pass {name: rows, other name: rows}; several runs of one name are a list"
    if not isinstance(runs, Mapping):
        raise TypeError(f"runs must be a dict of Rows by name, got {describe(runs)}: {cure}")
    if len(runs) < 2:
        raise ValueError(f"two runs or more are compared, got {len(runs)}: {cure}")
    listed: dict[str, list[Rows]] = {}
    for name, given in runs.items():
        if not isinstance(name, str):
            raise TypeError(f"runs go by names of text, got {name!r}: {cure}")
        repeats: list[Any] = [*given] if isinstance(given, (list, tuple)) else [given]
        if not repeats:
            raise ValueError(f"run {name!r} is an empty list: {cure}")
        for rows in repeats:
            if not isinstance(rows, Rows):
                hint = "pass its .rows" if hasattr(rows, "rows") else cure
                hint = f"pass Rows.from_parquet({rows!r})" if isinstance(rows, str) else hint
                raise TypeError(f"run {name!r} must be Rows or a list of them, got {describe(rows)}: {hint}")
        listed[name] = repeats
    return listed


def _pair(left: str, first: Rows, right: str, rows: Rows) -> Tensor:
    """Return for each row of `first` the row of `rows` with the same id, int64 [n]; raise if runs do not pair."""
    if rows.values.keys() != first.values.keys():
        alone = (
            (left, first.values.keys() - rows.values.keys()),
            (right, rows.values.keys() - first.values.keys()),
        )
        parts = [f"{', '.join(sorted(labels))} only in {name!r}" for name, labels in alone if labels]
        raise ValueError(f"runs must have the same labels: {'; '.join(parts)}")
    if rows.options != first.options:
        names = sorted({*first.options, *rows.options})
        name = next(n for n in names if first.options.get(n, "") != rows.options.get(n, ""))
        a, b = (run.options.get(name, "not told") for run in (first, rows))
        raise ValueError(f"runs must be made with the same options: {name} is {a!r} in {left!r} and {b!r} in {right!r}")
    if isinstance(rows.ids, list) is not isinstance(first.ids, list):
        raise ValueError(f"ids do not pair: one of {left!r} and {right!r} has whole numbers, the other text")
    there = find(rows.ids, first.ids)
    if len(rows) != len(first) or bool((there < 0).any()):
        lost = (
            _unpaired(left, first.ids, right, there),
            _unpaired(right, rows.ids, left, find(first.ids, rows.ids)),
        )
        raise ValueError(f"rows do not pair: {'; '.join(filter(None, lost))}; compare runs over the same rows")
    for what in ("weights", "clusters"):
        if (getattr(first, what) is None) is not (getattr(rows, what) is None):
            raise ValueError(f"{what}: one of {left!r} and {right!r} has them, the other not")
    if first.weights is not None and rows.weights is not None:
        unlike = first.weights != rows.weights[there]
        if number := int(unlike.sum()):
            example = id_at(first.ids, int(unlike.nonzero()[0]))
            raise ValueError(f"weights of {number} rows differ between {left!r} and {right!r} (id {example!r})")
    mine, theirs = first.clusters, rows.clusters
    if mine is not None and theirs is not None and not _same(mine, theirs, there):
        raise ValueError(f"clusters of some rows differ between {left!r} and {right!r}")
    return there


def _same(mine: RowIds, theirs: RowIds, there: Tensor) -> bool:
    """Return True if both runs have the same clusters; `there` is the row in `theirs` of each row of `mine`."""
    if isinstance(mine, Tensor) and isinstance(theirs, Tensor):
        return torch.equal(mine, theirs[there])
    return type(mine) is type(theirs) and mine == [theirs[row] for row in there.tolist()]


def _unpaired(name: str, ids: RowIds, other: str, found: Tensor) -> str:
    """Return a message with the number of ids that another run does not have; empty if it has all of them."""
    missing = (found < 0).nonzero()[:, 0]
    if not len(missing):
        return ""
    example = id_at(ids, int(missing[0]))
    return f"{len(missing)} of {len(ids)} ids of {name!r} are not in {other!r} (id {example!r}, for example)"
