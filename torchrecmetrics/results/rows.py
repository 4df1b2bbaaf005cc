"""`Rows`: the value of every row for every metric, by row id, with intervals, frames and parquet files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from torchrecmetrics.core.checks import describe, frame_of, nearest, needed
from torchrecmetrics.core.intervals import check_bounds, check_level, interval, skewed_interval
from torchrecmetrics.core.result import SIDES
from torchrecmetrics.core.saving import atomic_path
from torchrecmetrics.results.result_table import ResultColumns

RowIds: TypeAlias = Tensor | list[str]

EQUAL = 1e-12
"""Relative difference up to which two numbers count as equal, since sums are rounded."""


def numbered_ids(ids: RowIds) -> tuple[RowIds, Tensor]:
    """Return the distinct ids in ascending order, and the index of each id among them, int64 [n]."""
    if isinstance(ids, Tensor):
        distinct, number = torch.unique(ids, return_inverse=True)
        return distinct, number
    index = {id_: position for position, id_ in enumerate(sorted(set(ids)))}
    return [*index], torch.tensor([index[id_] for id_ in ids], dtype=torch.int64, device="cpu")


def find_ids(ids: RowIds, wanted_ids: RowIds) -> Tensor:
    """Return the row of each of `wanted_ids` in the distinct `ids` of the same kind, int64 [n]; -1 = absent."""
    if isinstance(ids, Tensor) and isinstance(wanted_ids, Tensor):
        if not len(ids):
            return torch.full_like(wanted_ids, -1)
        ascending, row = ids.sort()
        position = torch.searchsorted(ascending, wanted_ids).clamp_(max=len(ids) - 1)
        return row[position].where(ascending[position] == wanted_ids, -1)
    rows = {id_: row for row, id_ in enumerate(ids)}
    return torch.tensor([rows.get(id_, -1) for id_ in wanted_ids], dtype=torch.int64, device="cpu")


def id_at(ids: RowIds, row: int) -> int | str:
    """Return the id of a row."""
    return ids[row] if isinstance(ids, list) else int(ids[row])


@dataclass(frozen=True)
class UnitLayout:
    """Rows sorted by id, so that their input order does not matter, and their units: rows or clusters."""

    order: Tensor
    """Row numbers, sorted by cluster if there are any, then by id, int64 [n]."""
    num_units: int
    unit_of_row: Tensor | None
    """Number of the unit of each row in `order`, ascending, int64 [n]; None = every row is a unit."""

    @classmethod
    def of(cls, ids: RowIds, clusters: RowIds | None) -> UnitLayout:
        """Return the layout of rows with these ids and clusters."""
        if isinstance(ids, Tensor):
            order = ids.argsort()
        else:
            order = torch.tensor(sorted(range(len(ids)), key=ids.__getitem__), dtype=torch.int64, device="cpu")
        if clusters is None:
            return cls(order, len(ids), None)
        distinct, number = numbered_ids(clusters)
        unit_of_row, by_unit = number[order].sort(stable=True)
        return cls(order[by_unit], len(distinct), unit_of_row)

    def only(self, selected: Tensor) -> tuple[UnitLayout, Tensor]:
        """Return the layout of the `selected` rows, bool [n], and the numbers of its units in this layout.

        Units that have no selected row are left out.
        """
        in_order = selected[self.order]
        if self.unit_of_row is None:
            units = in_order.nonzero().flatten()
            return UnitLayout(self.order[in_order], len(units), None), units
        units, unit_of_row = torch.unique(self.unit_of_row[in_order], return_inverse=True)
        return UnitLayout(self.order[in_order], len(units), unit_of_row), units

    def sums(self, values: Tensor) -> Tensor:
        """Return the sums of rows in `order`, float64 [n], by unit, [units]."""
        if self.unit_of_row is None:
            return values
        none = values.new_zeros(self.num_units)
        sums = none.index_add(0, self.unit_of_row, values)
        sizes = none.index_add(0, self.unit_of_row, values.abs())
        return sums.masked_fill(sums.abs() <= EQUAL * sizes, 0)  # sums that are only rounding error are 0


_FORMAT = b"torchrecmetrics"
_VERSION = 1
_TAKEN = ("id", "cluster", "weight", "served")
_OWN = "weight of "
MIN_DIFFERING = 10
"""Minimum number of rows (clusters) that must differ from their median for the ABC interval."""


@dataclass(frozen=True, eq=False, repr=False)
class Rows(ResultColumns):
    """Per-row values of metrics, by the rows' ids.

    The weighted mean of a label's values, without nan, is the metric. `compare` takes them; collections and
    evaluations that keep their rows make them, and you can make them from any tensors.

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
        higher_is_better: {label: True}, False if lower values are better, None if neither. Only a margin of `compare`
            needs it, for labels that do not begin with a metric's name, such as "MeanRank".
        served: bool [n]: the row has a recommended list of at least one item. None = all rows have one, or it is not
            known.

    Raises:
        TypeError: for ids, values, weights or clusters of another type.
        ValueError: for lengths that differ, an id that occurs twice, weights that are negative or not finite, and
            labels that are names of other columns.

    Example:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> values = torch.tensor([1.0, 0.5, 0.0, float("nan")])
        >>> rows = trm.Rows({"NDCG@10": values}, torch.tensor([7, 8, 9, 11]))
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
    higher_is_better: dict[str, bool | None] = field(default_factory=dict)
    served: Tensor | None = None

    def __post_init__(self) -> None:
        ids = _check_ids("ids", self.ids)
        checked: dict[str, Any] = {"ids": ids}
        rows = len(ids)
        if not isinstance(self.values, Mapping) or not self.values:
            raise TypeError(f"values must be a dict of labels, {{label: float64 [n]}}, got {describe(self.values)}")
        if reserved := [label for label in self.values if label in _TAKEN or label.startswith(_OWN)]:
            raise ValueError(f"{reserved[0]!r} cannot be a label: it is the name of another column")
        checked["values"] = {n: _check_numbers(f"values of {n}", v, rows) for n, v in self.values.items()}
        if self.weights is not None:
            checked["weights"] = _check_weights("weights", self.weights, rows)
        if self.served is not None:
            checked["served"] = _check_numbers("served", self.served, rows).bool()
        if self.clusters is not None:
            checked["clusters"] = clusters = _check_ids("clusters", self.clusters)
            if len(clusters) != rows:
                raise ValueError(f"clusters must have {rows} rows, as many as ids, got {len(clusters)}")
        for name in ("own_weights", "higher_is_better"):
            if unknown := [label for label in getattr(self, name) if label not in self.values]:
                raise ValueError(f"{name} has {unknown[0]!r}, which is not in values{nearest(unknown[0], self.values)}")
        checked["own_weights"] = {
            n: _check_weights(f"own_weights of {n}", weights, rows) for n, weights in self.own_weights.items()
        }
        sides = {label: SIDES[name] for label in self.values if (name := re.split("[-@]", label)[0]) in SIDES}
        checked |= {"options": dict(self.options), "higher_is_better": sides | dict(self.higher_is_better)}
        for attribute, value in checked.items():
            object.__setattr__(self, attribute, value)
        if len(torch.unique(ids) if isinstance(ids, Tensor) else set(ids)) < rows:
            number = numbered_ids(ids)[1]
            times = torch.bincount(number)[number]
            row = int((times > 1).nonzero()[0])
            raise ValueError(
                f"id {id_at(ids, row)!r} occurs in {times[row]} rows, but ids must be unique: pass clusters= for rows "
                "that belong together (the sessions of a user)"
            )

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        texts = [_with_number("row", len(self)), _with_number("label", len(self.values))]
        if self.weights is not None:
            texts.append("weights")
        if self.clusters is not None:
            texts.append(_with_number("cluster", len(numbered_ids(self.clusters)[0])))
        return f"Rows({', '.join(texts)})"

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
            weights = self.weights_of(label).where(~values.isnan(), 0)
            means[label] = ((weights * values).where(weights > 0, 0).sum() / weights.sum()).item()
        return means

    def check_finite(self, labels: Iterable[str]) -> None:
        """Raise if one of the labels has infinite values, which have no spread and no differences.

        Raises:
            ValueError: names the label and the number of rows.
        """
        for label in labels:
            if number := int(self.values[label].isinf().sum()):
                raise ValueError(
                    f"values of {label} are infinite in {number} of {len(self)} rows, so it has no interval "
                    "or differences: an item that is no candidate (excluded, or without a score) has rank inf. Leave "
                    f"{label} out, or let every relevant item be a candidate (overlap='keep')"
                )

    def confidence_interval(
        self, level: float = 0.95, bounds: tuple[float, float] | None = (0.0, 1.0)
    ) -> dict[str, tuple[float, float]]:
        """Return each label's confidence interval, {label: (low, high)}, from sums over rows; nothing is resampled.

        It is the ABC interval, the limit of a BCa bootstrap of rows (or clusters) for very many resamples. A bootstrap
        fails if there are few hits: all resamples of 200 rows without a hit are 0.
        Therefore, a label with fewer than 10 rows (clusters) that differ from their median, or an effective size,
        (sum w)^2 / sum w^2, below 10, gets the score interval of `RankingMetric.confidence_interval` instead.

        Args:
            level: confidence level, between 0 and 1.
            bounds: lowest and highest possible value of a row; None = unknown. Labels with values beyond the bounds get
                Student's interval instead of the score interval, as for None.

        Returns:
            Low and high of each label; nan for a label with fewer than 2 defined rows (clusters), and for a label whose
            rows are all equal and have no bounds, since the spread of other rows is unknown.

        Raises:
            ValueError: for a level outside (0, 1), bounds that are not ascending, and infinite values.

        Source: DiCiccio and Efron, More accurate confidence intervals in exponential families, Biometrika 79, 1992;
        BCa: Efron, Better bootstrap confidence intervals, JASA 82, 1987.

        Example:
            >>> import torch
            >>> import torchrecmetrics as trm
            >>> rows = trm.Rows({"HR@10": (torch.arange(400) % 4 == 0).double()}, torch.arange(400))
            >>> low, high = rows.confidence_interval()["HR@10"]
            >>> 0.20 < low < 0.22, 0.28 < high < 0.30
            (True, True)
        """
        level, ends = check_level(level), check_bounds(bounds)
        self.check_finite(self.values)
        layout = UnitLayout.of(self.ids, self.clusters)
        return {label: self._interval(label, layout, level, ends) for label in self.values}

    def _interval(
        self, label: str, layout: UnitLayout, level: float, bounds: tuple[float, float]
    ) -> tuple[float, float]:
        """Return the interval of a label, from sums over the units of the layout."""
        x, w = self.values[label][layout.order], self.weights_of(label)[layout.order]
        w, wx = layout.sums(w.masked_fill(x.isnan(), 0)), layout.sums((w * x).nan_to_num_())
        counted = w > 0
        w, means = w[counted], wx[counted] / w[counted]
        if len(w) < 2:
            return math.nan, math.nan
        total = w.sum()
        mean = (w * means).sum() / total
        d = w * (means - mean)
        squares, size = d.square().sum(), total**2 / w.square().sum()
        error = (squares * len(w) / (len(w) - 1)).sqrt() / total
        rounded = means.float()  # so that clusters whose means differ by rounding are equal
        differing = int((rounded != rounded.median()).sum())
        statistics = mean.item(), error.item(), size.item()
        if min(differing, statistics[2]) >= MIN_DIFFERING:
            skewness, curvature = d.pow(3).sum() / (6 * squares**1.5), (w * d).sum() / (total * squares.sqrt())
            low, high = skewed_interval(*statistics, skewness.item(), curvature.item(), level)
            return max(low, means.min().item()), min(high, means.max().item())
        values = self.values[label]
        in_bounds = math.isfinite(bounds[1] - bounds[0]) and not bool(
            ((values < bounds[0]) | (values > bounds[1])).any()
        )
        if not in_bounds and not differing:
            return math.nan, math.nan
        return interval(*statistics, bounds if in_bounds else None, level)

    def _columns(self) -> dict[str, Any]:
        """Return all columns by name, ids first: numbers as NumPy arrays, text as lists."""
        columns: dict[str, Any] = {"id": self.ids}
        if self.clusters is not None:
            columns["cluster"] = self.clusters
        if self.weights is not None:
            columns["weight"] = self.weights
        if self.served is not None:
            columns["served"] = self.served
        columns |= self.values
        columns |= {_OWN + label: weights for label, weights in self.own_weights.items()}
        return {name: column.numpy() if isinstance(column, Tensor) else column for name, column in columns.items()}

    def to_arrow(self) -> Any:
        """Return a pyarrow.Table of the columns of `to_dict`, with options and the role of each column in its metadata.

        Raises:
            ImportError: without pyarrow.
        """
        metadata: dict[str, Any] = {"type": "Rows", "version": _VERSION, "options": self.options}
        metadata |= {"labels": [*self.values], "own_weights": [*self.own_weights]}
        metadata["higher_is_better"] = self.higher_is_better
        return frame_of("pyarrow", self._columns()).replace_schema_metadata({_FORMAT: json.dumps(metadata).encode()})

    def to_parquet(self, path: str | Path) -> None:
        """Write a parquet file for `from_parquet` and other readers of parquet; a failed call leaves no partial file.

        Raises:
            ImportError: without pyarrow.
            OSError: where the path cannot be written.
        """
        table = self.to_arrow()
        with atomic_path(path) as temporary:
            needed("pyarrow.parquet", f"writing {path}").write_table(table, temporary, write_page_checksum=True)

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
            table = parquet.read_table(path, page_checksum_verification=True)
            metadata = (table.schema.metadata or {}).get(_FORMAT)
            roles = None if metadata is None else json.loads(metadata)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ValueError(f"{path} is no parquet file of Rows, or is damaged: {error}") from error
        if roles is None:
            raise ValueError(f"{path} was not written by Rows.to_parquet: make Rows of its columns instead")
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
            higher_is_better=roles.get("higher_is_better", {}),
            served=columns.get("served"),
        )


def _with_number(noun: str, number: int) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


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
    if any(is_kind(column.type) for is_kind in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)):
        return torch.as_tensor(column.to_numpy().copy(), device="cpu")
    return column.to_pylist()
