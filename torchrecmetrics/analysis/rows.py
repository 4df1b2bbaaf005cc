"""`Rows`: the value of every row for every metric, by row id, with bootstrap intervals, frames and parquet files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from torchrecmetrics.analysis.resampling import Layout, one_thread, resampled_sums
from torchrecmetrics.analysis.row_ids import RowIds, id_at, numbered
from torchrecmetrics.core.checks import check_k, describe, nearest
from torchrecmetrics.core.intervals import check_bounds, check_level, interval
from torchrecmetrics.core.saving import whole
from torchrecmetrics.data.frames import frame_of, needed

_FORMAT = b"torchrecmetrics"
_VERSION = 1
_TAKEN = ("id", "cluster", "weight")
_OWN = "weight of "
MIN_DIFFERING = 10
"""Minimum number of rows (clusters) that must differ from the most common value for the bootstrap to be used."""


@dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """Per-row values of metrics, by the rows' ids.

    The weighted mean of a label's values, without nan, is the metric. Input of `compare`; made by collections and
    evaluations that keep their rows, or from tensors of any origin.

    Attributes:
        values: {label: float64 [n]}; nan = the metric is undefined for that row. Infinite values, such as the rank of
            an item that is no candidate, make the mean infinite; such labels have no intervals, tests or differences.
        ids: int64 [n], or n strings, without repeats. Rows of several runs are paired by id, in any order.
        weights: float64 [n] >= 0; None = all rows weigh the same.
        clusters: int64 [n], or n strings: rows of one cluster (a user's sessions) are resampled together. None = each
            row is a cluster of its own.
        own_weights: {label: float64 [n]} of metrics with row weights of their own, used there instead of `weights`.
        options: options that change the values and are not in the label, such as {"ties": "realistic"}; only runs with
            equal options are compared.

    Raises:
        TypeError: for ids, values, weights or clusters of another type.
        ValueError: for lengths that differ, an id that occurs twice, weights that are negative or not finite, and
            labels that are names of other columns.

    Example:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> rows = trm.Rows({"NDCG@10": torch.tensor([1.0, 0.5, 0.0, float("nan")])}, torch.tensor([7, 8, 9, 11]))
        >>> rows
        Rows(4 rows, 1 label)
        >>> rows.mean()
        {'NDCG@10': 0.5}
    """

    values: dict[str, Tensor]
    ids: RowIds
    weights: Tensor | None = None
    clusters: RowIds | None = None
    own_weights: dict[str, Tensor] = field(default_factory=dict)
    options: dict[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ids = _check_ids("ids", self.ids)
        settled: dict[str, Any] = {"ids": ids}
        rows = len(ids)
        if not isinstance(self.values, Mapping) or not self.values:
            raise TypeError(f"values must be a dict of labels, {{label: float64 [n]}}, got {describe(self.values)}")
        if taken := [label for label in self.values if label in _TAKEN or label.startswith(_OWN)]:
            raise ValueError(f"{taken[0]!r} cannot be a label: it is the name of another column")
        settled["values"] = {n: _check_numbers(f"values of {n}", v, rows) for n, v in self.values.items()}
        if self.weights is not None:
            settled["weights"] = _check_weights("weights", self.weights, rows)
        if self.clusters is not None:
            settled["clusters"] = clusters = _check_ids("clusters", self.clusters)
            if len(clusters) != rows:
                raise ValueError(f"clusters must be of {rows} rows, as ids are, got {len(clusters)}")
        if unknown := [label for label in self.own_weights if label not in self.values]:
            raise ValueError(f"own_weights has {unknown[0]!r}, values has not{nearest(unknown[0], [*self.values])}")
        settled["own_weights"] = {
            n: _check_weights(f"own_weights of {n}", own, rows) for n, own in self.own_weights.items()
        }
        settled["options"] = dict(self.options)
        for attribute, value in settled.items():
            object.__setattr__(self, attribute, value)
        distinct, number = numbered(ids)
        if len(distinct) < rows:
            times = torch.bincount(number)[number]
            row = int((times > 1).nonzero()[0])
            raise ValueError(
                f"id {id_at(ids, row)!r} stands in {times[row]} rows: ids tell rows apart; clusters= says that rows "
                "belong together (the sessions of a user)"
            )

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        parts = [f"{len(self)} row{'s' * (len(self) != 1)}", f"{len(self.values)} label{'s' * (len(self.values) != 1)}"]
        if self.weights is not None:
            parts.append("weights")
        if self.clusters is not None:
            number = len(numbered(self.clusters)[0])
            parts.append(f"{number} cluster{'s' * (number != 1)}")
        return f"Rows({', '.join(parts)})"

    def weights_of(self, label: str) -> Tensor:
        """Return the row weights of a label, float64 [n]: its own, or those of the rows, or 1."""
        weights = self.own_weights.get(label, self.weights)
        return torch.ones(len(self), dtype=torch.float64) if weights is None else weights

    def mean(self) -> dict[str, float]:
        """Return the weighted mean of each label over the rows where it is defined.

        It is nan if there is no such row, and infinite if a value is (nan for values of both signs).
        """
        means = {}
        for label, values in self.values.items():
            used = self.weights_of(label).where(~values.isnan(), 0)
            means[label] = ((used * values).where(used > 0, 0).sum() / used.sum()).item()
        return means

    def check_finite(self) -> None:
        """Raise if a label has infinite values, which have no spread and no differences.

        Raises:
            ValueError: names the label and the number of rows.
        """
        for label, values in self.values.items():
            if number := int(values.isinf().sum()):
                raise ValueError(
                    f"values of {label} are infinite in {number} of {len(self)} rows, so it has no interval, resamples "
                    "or differences: an item that is no candidate (excluded, or without a score) has rank inf. Leave "
                    f"{label} out, or let every relevant item be a candidate (overlap='keep')"
                )

    @one_thread()
    def confidence_interval(
        self,
        level: float = 0.95,
        resamples: int = 2000,
        seed: int = 0,
        bounds: tuple[float, float] | None = (0.0, 1.0),
    ) -> dict[str, tuple[float, float]]:
        """Return each label's confidence interval by the bootstrap (BCa), {label: (low, high)}.

        Every row (every cluster, where there are clusters) gets a Poisson(1) weight in every resample, a function of
        `seed`, the id and the resample; it does not depend on the order of rows or on the number of processes that made
        them. The same resamples serve all labels.

        Resamples of a few hits do not show the variation of other samples: all resamples of 200 rows without a hit are
        0. Therefore, a label with fewer than 10 rows (clusters) that differ from the most common value gets the score
        interval of `RankingMetric.confidence_interval` instead. This is so for all labels of 10 rows or fewer.

        Args:
            level: confidence level, between 0 and 1.
            resamples: number of resamples.
            seed: seed of the hash of ids.
            bounds: lowest and highest possible value of a row, which the score interval needs; None = unknown. Labels
                with values beyond the bounds get Student's interval in place of the score interval, as for None.

        Returns:
            Low and high of each label; nan for a label with fewer than 2 defined rows (clusters), and for a label whose
            rows are all equal and have no bounds, since the spread of other rows is unknown.

        Raises:
            ValueError: for a level outside (0, 1), no resamples, bounds that are not ascending, and
                infinite values.

        Source: Efron, Better bootstrap confidence intervals, JASA 82, 1987; Poisson weights: Chamandy et al.,
        Estimating uncertainty for massive data streams, Google, 2012.

        Example:
            >>> import torch
            >>> import torchrecmetrics as trm
            >>> rows = trm.Rows({"HR@10": (torch.arange(400) % 4 == 0).double()}, torch.arange(400))
            >>> low, high = rows.confidence_interval()["HR@10"]
            >>> 0.20 < low < 0.22, 0.28 < high < 0.30
            (True, True)
            >>> low, high = trm.Rows({"HR@10": torch.zeros(200)}, torch.arange(200)).confidence_interval()["HR@10"]
            >>> low, round(high, 3)
            (0.0, 0.019)
        """
        level, (least, greatest) = check_level(level), check_bounds(bounds)
        resamples, seed = check_k(resamples, "resamples"), check_k(seed, "seed", least=0)
        self.check_finite()
        keys, wx, w = self._units()
        sums, weights = resampled_sums(keys, torch.cat([wx, w], 1), resamples, seed).chunk(2, 1)
        means, totals = sums / weights, w.sum(0)
        centre = wx.sum(0) / totals
        d = wx - w * centre
        squares, cubes = d.square().sum(0), d.pow(3).sum(0)
        unit_values = (wx / w).float()  # float32, so that clusters whose means differ by rounding are equal
        skewness = cubes / (6 * squares**1.5)
        intervals = {}
        for i, label in enumerate(self.values):
            counts = torch.unique(unit_values[:, i][~unit_values[:, i].isnan()], return_counts=True)[1]
            used = int(counts.sum())
            differing = used - int(counts.max()) if used else 0
            if used < 2:
                intervals[label] = (math.nan, math.nan)
            elif differing >= MIN_DIFFERING:
                intervals[label] = bootstrap_interval(means[:, i], centre[i].item(), skewness[i].item(), level)
            else:
                error = (squares[i] * used / (used - 1)).sqrt() / totals[i]
                size = totals[i] ** 2 / w[:, i].square().sum()
                limits = bounds if self._within(label, least, greatest) else None
                known = limits is not None or differing > 0
                ends = interval(centre[i].item(), error.item(), size.item(), limits, level)
                intervals[label] = ends if known else (math.nan, math.nan)
        return intervals

    def _within(self, label: str, least: float, greatest: float) -> bool:
        """Return True if the bounds are finite and all values of a label are within the bounds."""
        values = self.values[label]
        return math.isfinite(greatest - least) and not bool(((values < least) | (values > greatest)).any())

    def _units(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the keys of the units, [units], and their sums of w x and of w per label, two tensors [units, labels].

        w is 0 where x is undefined.
        """
        layout = Layout.of(self.ids, self.clusters)
        x = torch.stack([*self.values.values()], 1)[layout.order]
        w = torch.stack([self.weights_of(label) for label in self.values], 1)[layout.order]
        w = w.masked_fill(x.isnan(), 0)
        return layout.keys, layout.sums(w * x.nan_to_num()), layout.sums(w)

    def _columns(self) -> dict[str, Any]:
        """Return all columns by name, ids first: numbers as NumPy arrays, text as lists."""
        columns: dict[str, Any] = {"id": self.ids}
        if self.clusters is not None:
            columns["cluster"] = self.clusters
        if self.weights is not None:
            columns["weight"] = self.weights
        columns |= self.values
        columns |= {_OWN + label: weights for label, weights in self.own_weights.items()}
        return {name: column.numpy() if isinstance(column, Tensor) else column for name, column in columns.items()}

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the columns as lists: id, cluster and weight where there are any, each label, own weights.

        Example:
            >>> import torch
            >>> import torchrecmetrics as trm
            >>> trm.Rows({"MRR": torch.tensor([1.0, 0.5])}, ["ann", "bo"]).to_dict()
            {'id': ['ann', 'bo'], 'MRR': [1.0, 0.5]}
        """
        return {n: column if isinstance(column, list) else column.tolist() for n, column in self._columns().items()}

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame of the columns of `to_dict`.

        Raises:
            ImportError: without pandas.
        """
        return frame_of("pandas", self._columns())

    def to_polars(self) -> Any:
        """Return a polars.DataFrame of the columns of `to_dict`; undefined values are NaN.

        Raises:
            ImportError: without polars.
        """
        return frame_of("polars", self._columns())

    def to_arrow(self) -> Any:
        """Return a pyarrow.Table of the columns of `to_dict`, with options and the role of each column in its metadata.

        Raises:
            ImportError: without pyarrow.
        """
        metadata: dict[str, Any] = {"type": "Rows", "version": _VERSION, "options": self.options}
        metadata |= {"labels": [*self.values], "own_weights": [*self.own_weights]}
        return frame_of("pyarrow", self._columns()).replace_schema_metadata({_FORMAT: json.dumps(metadata).encode()})

    def to_parquet(self, path: str | Path) -> None:
        """Write a parquet file for `from_parquet` and other readers of parquet; a failed call leaves no partial file.

        Raises:
            ImportError: without pyarrow.
            OSError: where the path cannot be written.
        """
        table = self.to_arrow()
        with whole(path) as temporary:
            needed("pyarrow.parquet", f"writing {path}").write_table(table, temporary)

    @classmethod
    def from_parquet(cls, path: str | Path) -> Rows:
        """Read the rows that `to_parquet` wrote, with the same values (bit by bit), ids, weights, clusters and options.

        Raises:
            ImportError: without pyarrow.
            ValueError: for a file that `to_parquet` did not write, or of a later version.
        """
        pa, parquet = needed("pyarrow", f"reading {path}"), needed("pyarrow.parquet", f"reading {path}")
        if not Path(path).is_file():
            raise FileNotFoundError(f"there is no file {path}")
        try:
            table = parquet.read_table(path)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{path} is no parquet file, or was cut short: {error}") from error
        metadata = (table.schema.metadata or {}).get(_FORMAT)
        if metadata is None:
            raise ValueError(f"{path} was not written by Rows.to_parquet: make Rows of its columns instead")
        roles = json.loads(metadata)
        if roles["version"] > _VERSION:
            raise ValueError(f"{path} is of version {roles['version']}, later than {_VERSION}: update torchrecmetrics")
        columns = {name: _read_column(table.column(name), pa) for name in table.column_names}
        return cls(
            values={label: columns[label] for label in roles["labels"]},
            ids=columns["id"],
            weights=columns.get("weight"),
            clusters=columns.get("cluster"),
            own_weights={label: columns[_OWN + label] for label in roles["own_weights"]},
            options=roles["options"],
        )


def bootstrap_interval(means: Tensor, value: float, skewness: float, level: float) -> tuple[float, float]:
    """Return the BCa bootstrap interval of a mean, (low, high): quantiles of means, moved by bias and skewness.

    Args:
        means: resampled means, float64 [resamples]; nan = the resample is empty.
        value: the mean m of the rows; in the bias z0, a resampled mean equal to it counts half.
        skewness: the acceleration, sum d^3 / (6 (sum d^2)^1.5) with d = w (x - m).
        level: confidence level.
    """
    means = means[~means.isnan()]
    if not len(means):
        return math.nan, math.nan
    normal, near = NormalDist(), 1e-12 * max(abs(value), 1e-300)
    below = int((means < value - near).sum()) + int(((means - value).abs() <= near).sum()) / 2
    bias = normal.inv_cdf(min(max(below / len(means), 0.5 / len(means)), 1 - 0.5 / len(means)))
    moved = [bias + normal.inv_cdf(end) for end in ((1 - level) / 2, (1 + level) / 2)]
    ends = [normal.cdf(bias + z / (1 - skewness * z)) if skewness * z < 1 else float(z > 0) for z in moved]
    low, high = means.quantile(torch.tensor(ends, dtype=means.dtype)).tolist()
    return low, high


def _check_ids(name: str, ids: Any) -> RowIds:
    """Return ids: whole numbers as an int64 tensor on the CPU, text as a list; raise for other ids."""
    if isinstance(ids, Tensor):
        if ids.dim() != 1 or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise TypeError(f"{name} must be whole numbers [n], or a list of text, got {describe(ids)}")
        if ids.dtype == torch.uint64 and len(ids) and bool((ids.cpu().view(torch.int64) < 0).any()):
            raise ValueError(f"{name} must be below 2^63: pass larger ones as text")
        return ids.detach().cpu().long()
    if isinstance(ids, (list, tuple)) and set(map(type, ids)) <= {str}:
        return list(ids)
    if isinstance(ids, (list, tuple)) and set(map(type, ids)) <= {int}:
        return torch.tensor(ids, dtype=torch.int64, device="cpu")
    raise TypeError(f"{name} must be whole numbers [n], or a list of text, got {describe(ids)}")


def _check_numbers(name: str, values: Any, rows: int) -> Tensor:
    """Return numbers as float64 [rows] on the CPU, or raise."""
    if not isinstance(values, Tensor) or values.is_complex():
        raise TypeError(f"{name} must be a tensor of numbers [{rows}], got {describe(values)}")
    if values.shape != (rows,):
        raise ValueError(f"{name} must be numbers [{rows}], as many as ids, got {describe(values)}")
    return values.detach().cpu().double()


def _check_weights(name: str, weights: Any, rows: int) -> Tensor:
    checked = _check_numbers(name, weights, rows)
    if not bool((checked.isfinite() & (checked >= 0)).all()):
        raise ValueError(f"{name} must be finite and not negative")
    return checked


def _read_column(column: Any, pa: Any) -> Any:
    """Return a column of a parquet file: numbers as a tensor on the CPU, text as a list."""
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return torch.as_tensor(column.to_numpy().copy(), device="cpu")
    return column.to_pylist()
