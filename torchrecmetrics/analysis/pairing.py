"""Pair the rows of several runs by id, and sum their differences; clusters of rows are summed first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from itertools import chain, product
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from torchrecmetrics.analysis.resampling import EQUAL, Layout, all_flips, flipped_sums
from torchrecmetrics.analysis.row_ids import RowIds, find, id_at
from torchrecmetrics.analysis.rows import Rows
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

    @staticmethod
    def joined(totals: Iterable[Totals]) -> Totals:
        """Concatenate the columns of several totals."""
        return Totals(*(torch.cat(columns, -1) for columns in zip(*totals, strict=True)))


class Paired:
    """Runs whose rows have been paired by id.

    A column is one label of one pair of runs, in the order of pairs, then of labels. The units of a column are
    u = w (x - y), summed by cluster where there are clusters; u is 0 where x or y is undefined.

    Args:
        runs: {name: `Rows`}, or {name: [Rows, ...]} of several runs, which are averaged row by row.
        baseline: name of the run that each other run is compared with; None = each run with every run before it.
    """

    def __init__(self, runs: Runs, baseline: str | None) -> None:
        self.runs: dict[str, list[Rows]] = _listed(runs)
        (first_name, first), *others = [(name, rows) for name, repeats in self.runs.items() for rows in repeats]
        self.first: Rows = first
        self.labels: list[str] = [*self.first.values]
        self._row_in: dict[int, Tensor] = {id(first): torch.arange(len(first), device="cpu")}
        for name, rows in others:
            if id(rows) not in self._row_in:
                self._row_in[id(rows)] = _pair(first_name, first, name, rows)
        for rows in chain.from_iterable(self.runs.values()):
            rows.check_finite()
        self.layout: Layout = Layout.of(first.ids, first.clusters)
        self._all_keys = self.layout.keys
        self.pairs: list[tuple[str, str]] = _pairs([*self.runs], baseline)
        weights = first.weights  # scaled to a maximum of 1: squares neither overflow nor vanish
        self._row_scale: float = 1.0 if weights is None or not weights.any() else 1 / weights.max().item()
        self._scales = self._scales_of_own_weights()
        self._shift = 0.0

    def only(self, chosen: Tensor) -> Paired:
        """Return the same pairs over the rows of the first run that `chosen`, bool [n], selects."""
        selected = copy(self)
        selected.layout = self.layout.only(chosen)
        selected._scales = selected._scales_of_own_weights()
        return selected

    def shifted(self, margin: float) -> Paired:
        """Return the same pairs, with differences that are larger by `margin`."""
        shifted = copy(self)
        shifted._shift = margin
        return shifted

    def totals(self) -> Totals:
        """Return the sums over all units."""
        better, differences, weights = self._differences()
        used, units = weights > 0, self.layout.sums(differences)
        return Totals(
            units=(self.layout.sums(used.double()) > 0).sum(0),
            rows=used.sum(0),
            sums=units.sum(0),
            squares=units.square().sum(0),
            weights=weights.sum(0),
            signs=torch.stack([(used & (better == sign)).sum(0) for sign in (1, 0, -1)]),
        )

    def flipped(self, resamples: int | None, seed: int) -> Tensor:
        """Return sums of the units with random signs, float64 [resamples, columns]; None = all combinations of signs.

        Signs are those of the units of all rows, also for a part of the rows.
        """
        keys, units = self.layout.keys, self.layout.sums(self._differences()[1])
        if resamples is not None:
            return flipped_sums(keys, units, resamples, seed)
        all_units = units.new_zeros(len(self._all_keys), units.shape[1])
        all_units[torch.searchsorted(self._all_keys, keys)] = units
        return all_flips(all_units)

    def _differences(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return sign(x - y), w (x - y) and w of the rows, three tensors [rows, columns]."""
        columns = []
        for (first, second), label in product(self.pairs, self.labels):
            scales = self._scales.get((first, second, label), {})
            (x, weight_x, wx), (y, weight_y, wy) = (self._run_means(name, label, scales) for name in (first, second))
            difference, weighted = _rounded_difference(x, y), _rounded_difference(wx, wy)
            weights = ((weight_x + weight_y) / 2).masked_fill(difference.isnan(), 0)
            weighted = weighted.masked_fill(weights == 0, 0)
            if self._shift:
                weighted = _rounded_difference(weighted, -self._shift * weights)
            columns.append((difference.sign(), weighted, weights))
        better, differences, all_weights = (torch.stack(of_columns, 1) for of_columns in zip(*columns, strict=True))
        return better, differences, all_weights

    def _run_means(self, name: str, label: str, scales: dict[int, float]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the means of x, w and w x over the runs of a name; weights of a run are multiplied by its scale."""
        values, weights = [], []
        for run in self.runs[name]:
            values.append(self._values(run, label))
            weights.append(self._weights(run, label) * scales.get(id(run), self._row_scale))
        x, w = torch.stack(values), torch.stack(weights)
        return x.mean(0), w.mean(0), (w * x).mean(0)

    def _values(self, run: Rows, label: str) -> Tensor:
        """Return a run's values of the rows, float64 [rows]."""
        return run.values[label][self._row_in[id(run)][self.layout.order]]

    def _weights(self, run: Rows, label: str) -> Tensor:
        """Return a run's weights of the rows, float64 [rows]: the metric's own weights if it has any."""
        return run.weights_of(label)[self._row_in[id(run)][self.layout.order]]

    def _scales_of_own_weights(self) -> dict[tuple[str, str, str], dict[int, float]]:
        """Return factors that scale a metric's own weights to a mean of 1, {(run, run, label): {id(run): factor}}."""
        scales = {}
        for (first, second), label in product(self.pairs, self.labels):
            runs = [*self.runs[first], *self.runs[second]]
            if any(label in run.own_weights for run in runs):
                values = torch.stack([self._values(run, label) for run in runs])
                weights = torch.stack([self._weights(run, label) for run in runs])
                used = ~values.isnan().any(0) & (weights > 0).any(0)
                factors = (used.sum() / (weights * used).sum(1)).tolist()
                scales[first, second, label] = dict(zip(map(id, runs), factors, strict=True))
        return scales


def _rounded_difference(x: Tensor, y: Tensor) -> Tensor:
    """Return x - y, with differences that are rounding errors set to 0."""
    difference = x - y
    return difference.masked_fill(difference.abs() <= EQUAL * torch.maximum(x.abs(), y.abs()), 0)


def _pairs(names: list[str], baseline: str | None) -> list[tuple[str, str]]:
    """Return the pairs that are compared: each run with the baseline, or for None with every run before it."""
    if baseline is None:
        return [(later, earlier) for i, earlier in enumerate(names) for later in names[i + 1 :]]
    if baseline not in names:
        raise ValueError(f"baseline {baseline!r} is no run{nearest(baseline, names)}")
    return [(name, baseline) for name in names if name != baseline]


def _listed(runs: Runs) -> dict[str, list[Rows]]:
    """Return the runs of each name as a list of `Rows`; raise for other types and fewer than two names."""
    cure = "pass {name: rows, other name: rows}; several runs of one name are a list"
    if not isinstance(runs, Mapping):
        raise TypeError(f"runs must be a dict of Rows by name, got {describe(runs)}: {cure}")
    if len(runs) < 2:
        raise ValueError(f"two runs or more are compared, got {len(runs)}: {cure}")
    listed: dict[str, list[Rows]] = {}
    for name, value in runs.items():
        repeats: list[Any] = [*value] if isinstance(value, (list, tuple)) else [value]
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
        lone = {left: first.values.keys() - rows.values.keys(), right: rows.values.keys() - first.values.keys()}
        texts = [f"{', '.join(sorted(labels))} only in {name!r}" for name, labels in lone.items() if labels]
        raise ValueError(f"runs must have the same labels: {'; '.join(texts)}")
    if rows.options != first.options:
        names = sorted({*first.options, *rows.options})
        name = next(n for n in names if first.options.get(n, "") != rows.options.get(n, ""))
        a, b = (run.options.get(name, "not told") for run in (first, rows))
        raise ValueError(f"runs must be made with the same options: {name} is {a!r} in {left!r} and {b!r} in {right!r}")
    if isinstance(rows.ids, list) is not isinstance(first.ids, list):
        raise ValueError(f"ids do not pair: one of {left!r} and {right!r} has whole numbers, the other text")
    row_of_id = find(rows.ids, first.ids)
    if len(rows) != len(first) or bool((row_of_id < 0).any()):
        texts = [_unpaired(left, first.ids, right, row_of_id)]
        texts.append(_unpaired(right, rows.ids, left, find(first.ids, rows.ids)))
        raise ValueError(f"rows do not pair: {'; '.join(filter(None, texts))}; compare runs over the same rows")
    for what in ("weights", "clusters"):
        if (getattr(first, what) is None) is not (getattr(rows, what) is None):
            raise ValueError(f"{what}: one of {left!r} and {right!r} has them, the other not")
    if first.weights is not None and rows.weights is not None and not first.weights.equal(rows.weights[row_of_id]):
        raise ValueError(f"weights of some rows differ between {left!r} and {right!r}")
    if first.clusters is not None and rows.clusters is not None and not _same(first.clusters, rows.clusters, row_of_id):
        raise ValueError(f"clusters of some rows differ between {left!r} and {right!r}")
    return row_of_id


def _same(mine: RowIds, theirs: RowIds, row_of_id: Tensor) -> bool:
    """Return True if both runs have the same clusters; `row_of_id` is the row in `theirs` of each row of `mine`."""
    if isinstance(mine, Tensor) and isinstance(theirs, Tensor):
        return torch.equal(mine, theirs[row_of_id])
    return type(mine) is type(theirs) and mine == [theirs[row] for row in row_of_id.tolist()]


def _unpaired(name: str, ids: RowIds, other: str, row_of_id: Tensor) -> str:
    """Return a message with the number of ids that another run does not have; empty if it has all of them."""
    missing = (row_of_id < 0).nonzero()[:, 0]
    if not len(missing):
        return ""
    example = id_at(ids, int(missing[0]))
    return f"{len(missing)} of {len(ids)} ids of {name!r} are not in {other!r} (id {example!r}, for example)"
