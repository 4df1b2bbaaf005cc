"""`Result`: a metric's value over rows, with its standard error and counts; `LastResult`: reads a metric's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import float_dtype
from torchrecmetrics.core.intervals import IntervalMethod, interval

if TYPE_CHECKING:
    from torchrecmetrics.core.ranking import Ranking

SIDES: dict[str, bool | None] = {}
"""`higher_is_better` of every metric class, by the name that begins its labels."""


class Result(NamedTuple):
    """One value of one metric, from one `compute`; tables, exports, plots and comparisons read it."""

    key: str
    """Key under which the value is returned, `NDCG@10/cold`."""
    name: str
    """Name of the metric with its options, without the cut-off."""
    k: int | None
    """Cut-off; None = the metric has none."""
    group: str | None = None
    """Name of the group of rows, or another ending of keys from an accumulator; None = all rows."""
    bounds: tuple[float, float] | None = None
    """Lowest and highest value of the metric; None = unknown."""
    value: float = math.nan
    standard_error: float = math.nan
    """NaN = unknown."""
    size: float = math.nan
    """Effective number of rows, (sum w)^2 / sum w^2; NaN if the value is not a mean."""
    num_users: int = 0
    """Number of rows in the mean."""
    num_skipped: int = 0
    """Number of rows without a relevant item; 0 for metrics of lists."""
    num_unreachable: int = 0
    """Number of rows with a relevant item that is not a candidate."""
    num_tied: int = 0
    """Number of rows with a relevant item in a tie."""

    def with_value(self, value: Tensor | float, num_users: int, group: str | None = None) -> Result:
        """Return the result with a value that is not a mean over rows, without a standard error.

        `group` is an ending of the key, such as "cold" of `NDCG@10/cold`; None = all rows.
        """
        key = self.key if group is None else f"{self.key}/{group}"
        return self._replace(key=key, group=group, value=float(value), num_users=num_users)

    def interval(self, level: float = 0.95, method: IntervalMethod = "score") -> tuple[float, float]:
        """Return the confidence interval of the value, (low, high); nan if unknown."""
        return interval(self.value, self.standard_error, self.size, self.bounds, level, method)


class LastResult:
    """Mixin with the counts, standard error and confidence interval of the last `compute`.

    If the state has changed since, they are computed when they are read, which all processes must do.
    """

    @property
    def last_result(self) -> Result:
        """The result of the last `compute`, or of the state if it has changed since."""
        raise NotImplementedError

    @property
    def num_users(self) -> int:
        """Number of rows that the last `compute` averaged over."""
        return self.last_result.num_users

    @property
    def num_skipped(self) -> int:
        """Number of rows without a relevant item in the last `compute` (left out under "skip")."""
        return self.last_result.num_skipped

    @property
    def num_unreachable(self) -> int:
        """Number of rows of the last `compute` with a relevant item that was not a candidate, and so a miss."""
        return self.last_result.num_unreachable

    @property
    def num_tied(self) -> int:
        """Number of rows of the last `compute` with a relevant item in a tie that begins within the ranks read.

        Ranks are read up to the largest `k` of all metrics that rank together; by RPrecision up to the row's R.
        """
        return self.last_result.num_tied

    def standard_error(self) -> Tensor:
        """Return the standard error of the mean that the last `compute` gave, scalar; NaN for fewer than two rows."""
        return torch.tensor(self.last_result.standard_error, dtype=float_dtype(self.device), device=self.device)  # type: ignore[attr-defined]

    def confidence_interval(self, level: float = 0.95, method: IntervalMethod = "score") -> tuple[float, float]:
        """Return a confidence interval for the true mean, (low, high), from the last `compute`.

        Args:
            level: confidence level, between 0 and 1: the share of samples whose interval holds the true mean.
            method: "score": Wilson's, for the number of rows that the standard error implies; it stays within the
                metric's bounds. "student": mean ± t standard errors. If a bound is unknown, or rows can exceed the
                bounds, it is always Student's interval, clipped at a known bound.

        Returns:
            Lower and upper end; nan for fewer than two rows. Rows are assumed to be independent: if a user has several
            rows, keep the rows with clusters and use `Rows.confidence_interval`.

        Raises:
            ValueError: for a level that is not between 0 and 1, and for an unknown method.

        Examples:
            >>> import torch
            >>> from torchrecmetrics import HitRate
            >>> metric = HitRate(1)
            >>> metric.update(torch.tensor([1] * 30 + [2] * 70), depth=10)
            >>> metric.compute()
            tensor(0.3000, dtype=torch.float64)
            >>> [round(end, 3) for end in metric.confidence_interval()]
            [0.218, 0.398]
        """
        return self.last_result.interval(level, method)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot the value of `compute`, or the given values, as torchmetrics' metrics do; return figure and axes."""
        return self._plot(val, ax)  # type: ignore[attr-defined]


@dataclass(frozen=True, eq=False)
class RowValues:
    """Values of a batch of rows, with everything that accumulators read."""

    values: Tensor
    """Float [metrics, B], 0 where undefined."""
    undefined: Tensor
    """Bool [metrics, B]: the row is not in the metric's mean."""
    flags: Tensor
    """Bool [3, B]: without a relevant item, unreachable, tied."""
    weights: Tensor | None
    """Float [B], weight of each row; None = 1."""
    own_weights: Tensor | None
    """Float [n, B]: row weights of the last n metrics, which define their own, times `weights`; None = none do."""
    counted: Tensor | None
    """Bool [B]: rows with a weight and without bad values that this process counts; None = all rows."""
    ranking: Ranking
    """The ranking of the rows."""
    columns: Mapping[str, Tensor]
    """Other columns of the rows, [B], which accumulators read by name."""

    def __len__(self) -> int:
        return self.values.shape[1]

    def sums(self, layout: Layout, groups: Tensor | None = None, num_groups: int = 0) -> Tensor:
        """Return the sums over the rows, float [layout.size, 3]; see `Layout`.

        Args:
            layout: layout of the result.
            groups: int64 [B], group of each row, -1 = none; the result is then [layout.size, 3, num_groups].
            num_groups: number of groups.
        """
        values, present, number = self.values, ~self.undefined, layout.num_plain
        if layout.unbounded:  # row by row: a list as an index would be copied from the host, which waits
            unbounded = torch.stack([values[row] for row in layout.unbounded])
            infinite = torch.cat([unbounded == torch.inf, unbounded == -torch.inf])
            values = values.where(values.isfinite(), 0)
        summed = [present[:number], self.flags, values[:number], values[:number].square()]
        rows = torch.cat([*summed, infinite] if layout.unbounded else summed)
        if self.own_weights is None and self.weights is None and groups is None:
            rows = rows if self.counted is None else rows * self.counted
            return rows.sum(1)[:, None].expand(-1, 3)
        totals = _product(rows, self._powers(self.weights), groups, num_groups)
        if self.own_weights is None:
            return totals
        own_rows = torch.stack([present[number:], values[number:], values[number:].square()], 1)
        own_totals = _product(own_rows.to(values.dtype), self._powers(self.own_weights), groups, num_groups)
        counts, flags, value_sums, square_sums, infinite = torch.split(
            totals, [number, 3, number, number, len(totals) - 3 * number - 3]
        )
        own_counts, own_value_sums, own_square_sums = own_totals.unbind(1)
        moments = [value_sums, own_value_sums, square_sums, own_square_sums]
        return torch.cat([counts, own_counts, flags, *moments, infinite])

    def _powers(self, weights: Tensor | None) -> Tensor:
        """Return 1, w and w^2 of each row, float [..., B, 3]; 0 in rows that do not count."""
        ones = self.values.new_ones(len(self)) if self.counted is None else self.counted.to(self.values.dtype)
        if weights is None:
            return ones[:, None].expand(-1, 3)
        weights = weights if self.counted is None else weights.where(self.counted, 0)
        return torch.stack([ones.expand_as(weights), weights, weights * weights], -1)


def _product(rows: Tensor, powers: Tensor, groups: Tensor | None, num_groups: int) -> Tensor:
    """Return `rows` [..., n, B] @ `powers` [..., B, 3]; with `groups` [B], one product per group, [..., n, 3, G]."""
    if groups is None:
        return rows @ powers
    terms = rows[..., None, :] * powers.transpose(-1, -2)[..., None, :, :]
    totals = terms.new_zeros(*terms.shape[:-1], num_groups + 1)  # rows in no group are added to the last
    inside = (groups >= 0) & (groups < num_groups)
    return totals.index_add(-1, groups.where(inside, num_groups), terms)[..., :num_groups]


class Layout:
    """Meaning of each entry of a matrix of sums, [size, 3].

    From top to bottom: for each metric the number of rows in its mean; the three flags; for each metric the sum of its
    values v, then of v^2; for each metric that may be infinite its number of inf, then of -inf. The three columns weigh
    each row by 1, by its weight w, and by w^2. Infinite values are 0 in the sums of v.

    Args:
        metrics: an empty result of each metric; those with their own row weights come last.
        num_plain: number of metrics without their own row weights.
        of_lists: True for metrics of lists, for which the flags are 0.
    """

    def __init__(self, metrics: Sequence[Result], num_plain: int, of_lists: Sequence[bool]) -> None:
        self.metrics: tuple[Result, ...] = tuple(metrics)
        self.keys: tuple[str, ...] = tuple(metric.key for metric in metrics)
        self.num_plain: int = num_plain
        self.unbounded: list[int] = [
            place
            for place, metric in enumerate(metrics)
            if metric.bounds is None or not all(map(math.isfinite, metric.bounds))
        ]
        """Positions of metrics whose values may be infinite."""
        self.of_lists: tuple[bool, ...] = tuple(of_lists)
        self.size: int = 3 * len(self.keys) + 3 + 2 * len(self.unbounded)
        self.num_counts: int = len(self.keys) + 3
        """Number of leading rows of the matrix whose first column holds counts of rows."""

    def zeros(self, *sizes: int, device: torch.device) -> Tensor:
        """Return empty sums, float [size, 3, *sizes]."""
        return torch.zeros(self.size, 3, *sizes, dtype=float_dtype(device), device=device)

    def check_sums(self, sums: Tensor) -> None:
        """Raise for sums [size, 3, ...] that no rows can give; sums of values may be negative.

        Raises:
            ValueError: for counts, weights or squares that are negative or NaN, and for sums that are NaN.
        """
        number = len(self.keys)
        value_sums = slice(self.num_counts, self.num_counts + number)
        others = torch.cat([sums[: value_sums.start], sums[value_sums.stop :]])
        if bool((others >= 0).all()) and not bool(sums[value_sums].isnan().any()):
            return
        raise ValueError("cannot load sums that are NaN, or whose counts, weights or squares are negative")

    def results(self, sums: Tensor, counts: Tensor | None = None, group: str | None = None) -> dict[str, Result]:
        """Return the result of each metric by key from its sums [size, 3]; waits for the device.

        `counts`, int64 [num_counts], are counts kept apart from the sums; None = 0. `group` is the ending of the keys,
        such as "cold" of `NDCG@10/cold`; None = all rows.
        """
        number = len(self.keys)
        sizes = [number, 3, number, number, 2 * len(self.unbounded)]
        row_sums, _, value_sums, square_sums, infinite = torch.split(sums, sizes)
        wv, w2v, w2v2 = value_sums[:, 1], value_sums[:, 2], square_sums[:, 2]
        totals = sums[: self.num_counts, 0].long()
        *num_used, skipped, unreachable, tied = (totals if counts is None else totals + counts).tolist()
        w, w2 = row_sums[:, 1], row_sums[:, 2]
        mean = wv / w
        errors = _standard_errors(w, w2, mean, w2v, w2v2, num_used)
        if self.unbounded:
            above, below = infinite[:, 0].reshape(2, -1)
            far = torch.where(above > 0, torch.inf, 0.0) - torch.where(below > 0, torch.inf, 0.0)
            mean = mean.index_add(0, torch.tensor(self.unbounded, device=mean.device), far.to(mean.dtype))
            errors = errors.where(mean.isfinite(), torch.nan)
        statistics = torch.stack([mean, errors, w.square() / w2], 1).tolist()
        results = {}
        for place, metric in enumerate(self.metrics):
            value, error, size = statistics[place]
            key, num_users = metric.key if group is None else f"{metric.key}/{group}", num_used[place]
            result = metric._replace(
                key=key, group=group, value=value, standard_error=error, size=size, num_users=num_users
            )
            if not self.of_lists[place]:
                result = result._replace(num_skipped=skipped, num_unreachable=unreachable, num_tied=tied)
            results[result.key] = result
        return results


def _standard_errors(w: Tensor, w2: Tensor, mean: Tensor, w2v: Tensor, w2v2: Tensor, num_used: Sequence[int]) -> Tensor:
    """Return the standard errors of means, [metrics], from their sums and numbers of rows."""
    used = torch.tensor(num_used, dtype=w.dtype, device=w.device)
    variance = w2v2 - 2 * mean * w2v + mean.square() * w2
    # The rounding error of a sum of n terms is below (n + 3) eps / 2 times the sum of their sizes, in any order; the
    # terms are rounded, too. A variance below a bound of more than twice that is rounding, not spread.
    rounding = (used + 8) * torch.finfo(w.dtype).eps * (w2v2 + 2 * (mean * w2v).abs() + mean.square() * w2)
    spread = variance.masked_fill(variance <= rounding, 0).sqrt() / w
    return (spread * (used / (used - 1)).sqrt()).masked_fill(used <= 1, torch.nan)
