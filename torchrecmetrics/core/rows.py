"""`FormulaBatch` makes row values, `RowValues` holds them, `Layout` says how to sum them; `Summary` and `Point`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import float_dtype
from torchrecmetrics.core.checks import describe
from torchrecmetrics.core.intervals import interval
from torchrecmetrics.core.ranked_items import Cutoffs
from torchrecmetrics.core.ranking import Ranking

if TYPE_CHECKING:
    from torchrecmetrics.core.metric import RankingMetric


@dataclass(frozen=True, eq=False)
class RowValues:
    """Values of a batch of rows: all that accumulators add up. Rows that do not count are undefined."""

    values: Tensor
    """Float [metrics, B], 0 where undefined."""
    undefined: Tensor
    """Bool [metrics, B]: the row is not in the metric's mean."""
    flags: Tensor
    """Bool [3, B]: without a relevant item, unreachable, tied."""
    weights: Tensor | None = None
    """Float [B], weight of each row; None = 1."""
    own_weights: Tensor | None = None
    """Float [n, B]: weights of the last n metrics, which weigh rows themselves; they contain `weights`. None = none."""
    counted: Tensor | None = None
    """Bool [B]: rows with a weight and without bad values, that this process counts; None = all rows."""
    violations: Tensor | None = None
    """Int64 [kinds]: number of rows with bad values; None = 0."""
    ranking: Ranking | None = None
    """The ranking of the rows; None = not known."""
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    """Other facts about the rows, [B], which accumulators read by name."""

    def __len__(self) -> int:
        return self.values.shape[1]

    def sums(
        self, layout: Layout, factors: Tensor | None = None, groups: Tensor | None = None, num_groups: int = 0
    ) -> Tensor:
        """Return the sums over the rows, float [layout.size, 3]; see `Layout`.

        Args:
            layout: rows of the result.
            factors: float [B], further weights of the rows.
            groups: int64 [B], group of each row, -1 = in none: sums of each group, [layout.size, 3, num_groups].
            num_groups: number of groups.
        """
        values, present, number = self.values, ~self.undefined, layout.num_plain
        if layout.unbounded:  # row by row: a list as an index would be copied from the host, which waits
            unbounded = torch.stack([values[row] for row in layout.unbounded])
            infinite = torch.cat([unbounded == torch.inf, unbounded == -torch.inf])
            values = values.where(values.isfinite(), 0)
        summed = [present[:number], self.flags, values[:number], values[:number].square()]
        rows = torch.cat([*summed, infinite] if layout.unbounded else summed)
        weights = self.weights
        if factors is not None:
            weights = factors if weights is None else factors * weights
        if self.own_weights is None and weights is None and groups is None:
            rows = rows if self.counted is None else rows * self.counted
            return rows.sum(1)[:, None].expand(-1, 3)
        totals = _product(rows, self._powers(weights), groups, num_groups)
        if self.own_weights is None:
            return totals
        own_weights = self.own_weights if factors is None else self.own_weights * factors
        own_rows = torch.stack([present[number:], values[number:], values[number:].square()], 1)
        own_totals = _product(own_rows.to(values.dtype), self._powers(own_weights), groups, num_groups)
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
    """Return rows [..., n, B] times powers [..., B, 3], [..., n, 3]; with `groups` [B], of each group [..., G]."""
    if groups is None:
        return rows @ powers
    terms = rows[..., None, :] * powers.transpose(-1, -2)[..., None, :, :]
    totals = terms.new_zeros(*terms.shape[:-1], num_groups + 1)  # rows in no group are added to the last
    inside = (groups >= 0) & (groups < num_groups)
    return totals.index_add(-1, groups.where(inside, num_groups), terms)[..., :num_groups]


class Layout:
    """Which row of a matrix of sums [size, 3] belongs to which metric.

    The rows are the number of rows in the mean of each metric, the three flags, the values v of each metric, their
    squares, and the numbers of values inf and -inf of each metric that may have such. The columns are the sums of these
    over rows, times 1, the row's weight w, and w^2. Infinite values are 0 in the sums of v.

    Args:
        keys: key of each metric; those that weigh rows themselves come last.
        num_plain: number of metrics with the row's weight.
        unbounded: positions of metrics whose values may be infinite.
        of_lists: True for metrics of lists, for which the flags are 0.
    """

    def __init__(self, keys: Sequence[str], num_plain: int, unbounded: Sequence[int], of_lists: Sequence[bool]) -> None:
        self.keys: tuple[str, ...] = tuple(keys)
        self.num_plain: int = num_plain
        self.unbounded: list[int] = list(unbounded)
        self.of_lists: tuple[bool, ...] = tuple(of_lists)
        self.size: int = 3 * len(self.keys) + 3 + 2 * len(self.unbounded)
        self.num_counts: int = len(self.keys) + 3
        """Number of leading rows of the matrix whose first column holds counts of rows."""

    def zeros(self, *sizes: int, device: torch.device) -> Tensor:
        """Return empty sums, float [size, 3, *sizes]."""
        return torch.zeros(self.size, 3, *sizes, dtype=float_dtype(device), device=device)

    def summaries(self, sums: Tensor, counts: Tensor | None = None) -> dict[str, Summary]:
        """Return the result of each metric from its sums [size, 3]; waits for the device.

        `counts`, int64 [num_counts], are counts that were kept beside the sums; None = 0.
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
        values, standard_errors, effective_sizes = mean.unbind(), errors.unbind(), (w.square() / w2).unbind()
        summaries = {}
        for place, key in enumerate(self.keys):
            summary = Summary(
                value=values[place],
                standard_error=standard_errors[place],
                effective_size=effective_sizes[place],
                num_users=num_used[place],
            )
            if not self.of_lists[place]:
                summary = summary._replace(num_skipped=skipped, num_unreachable=unreachable, num_tied=tied)
            summaries[key] = summary
        return summaries


class Summary(NamedTuple):
    """The result of one `compute` of one metric, over all rows or over some of them."""

    value: Tensor
    standard_error: Tensor
    """NaN where it is unknown."""
    effective_size: Tensor
    """(sum w)^2 / sum w^2: the number of rows of equal weight with the same information."""
    num_users: int
    num_skipped: int = 0
    num_unreachable: int = 0
    num_tied: int = 0

    @classmethod
    def without_error(cls, value: Tensor, num_users: int) -> Summary:
        """Return the result of a metric that is not a mean over rows, with an unknown standard error."""
        unknown = torch.full((), torch.nan, dtype=value.dtype, device=value.device)
        return cls(value, standard_error=unknown, effective_size=unknown, num_users=num_users)


class Point(NamedTuple):
    """Value of one metric at one cut-off, over all rows or those of a group."""

    key: str
    """Key under which the value was returned."""
    name: str
    """Name of the metric with its options, without the cut-off."""
    k: int | None
    group: str | None
    """Name of the group of rows; None = all rows."""
    value: float
    standard_error: float
    size: float
    """Effective number of rows: rows of equal weight with the same information."""
    bounds: tuple[float, float] | None
    num_users: int

    @classmethod
    def of(cls, key: str, metric: Any, group: str | None, summary: Summary) -> Point:
        """Return the point of a metric's last result."""
        return cls(
            key=key,
            name=metric.name,
            k=metric.k,
            group=group,
            value=summary.value.item(),
            standard_error=summary.standard_error.item(),
            size=summary.effective_size.item(),
            bounds=metric.bounds,
            num_users=summary.num_users,
        )

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the confidence interval of this value, (low, high)."""
        return interval(self.value, self.standard_error, self.size, self.bounds, level)


def _standard_errors(w: Tensor, w2: Tensor, mean: Tensor, w2v: Tensor, w2v2: Tensor, num_used: Sequence[int]) -> Tensor:
    """Return the standard errors of means, [metrics], from their sums and numbers of rows."""
    used = torch.tensor(num_used, dtype=w.dtype, device=w.device)
    variance = w2v2 - 2 * mean * w2v + mean.square() * w2
    # The rounding error of a sum of n terms is below (n + 3) eps / 2 times the sum of their sizes, in any order; the
    # terms are rounded, too. A variance below a bound of more than twice that is rounding, not spread.
    rounding = (used + 8) * torch.finfo(w.dtype).eps * (w2v2 + 2 * (mean * w2v).abs() + mean.square() * w2)
    spread = variance.masked_fill(variance <= rounding, 0).sqrt() / w
    return (spread * (used / (used - 1)).sqrt()).masked_fill(used <= 1, torch.nan)


class FormulaBatch:
    """One formula with its options, called once for all cut-offs of the metrics that share it."""

    def __init__(self, metrics: Mapping[str, RankingMetric]) -> None:
        self.metrics: dict[str, RankingMetric] = dict(metrics)
        """Metrics by key, in the order of the values."""
        self._leader = leader = next(iter(metrics.values()))
        self._number = len(metrics)
        self._reads_catalogue = "catalogue" in leader.arguments
        self._k: tuple[Any, ...] = ()
        if leader.takes_k:
            shared = self._number > 1
            self._k = (Cutoffs(metric.k or 0 for metric in metrics.values()) if shared else leader.k,)
        reads_all = leader.many_cutoffs or leader.needs.whole_targets or leader.k is None
        self._depth = None if reads_all else leader.k  # a formula of one cut-off sees only the first k ranks

    def values(self, ranking: Ranking) -> Tensor:
        """Return the value of each row for each metric, float [metrics, B]."""
        metric, number, device = self._leader, self._number, ranking.num_relevant.device
        visible = ranking if self._depth is None else ranking.within(self._depth)
        arguments = {**metric.options, "catalogue": metric.catalogue} if self._reads_catalogue else metric.options
        values = metric.formula(visible, *self._k, **arguments)
        rows = ranking.num_relevant.shape[0]
        shape = (number, rows) if number > 1 else (rows,)
        if not isinstance(values, Tensor) or values.shape != shape or values.device != device:
            expected = f"a row for each of the cut-offs {self._k[0]}, " if number > 1 else "one value a row, "
            raise TypeError(
                f"the formula of {metric.label} must return {expected}a tensor {list(shape)} on {device}, got "
                f"{describe(values)}{f' on {values.device}' if isinstance(values, Tensor) else ''}"
            )
        return (values if number > 1 else values[None]).to(ranking.num_relevant.dtype)


def formula_batches(metrics: Mapping[str, RankingMetric]) -> list[FormulaBatch]:
    """Return the formulas of metrics that are means over rows; those that weigh rows themselves come last."""
    with_row_weights: list[dict[str, RankingMetric]] = []
    with_own_weights: list[dict[str, RankingMetric]] = []
    for key, metric in metrics.items():
        if metric.of_items:
            continue
        batches = with_own_weights if metric.weights is not None else with_row_weights
        for batch in batches if metric.many_cutoffs and metric.k is not None else ():
            if _shares_formula(next(iter(batch.values())), metric):
                batch[key] = metric
                break
        else:
            batches.append({key: metric})
    return [FormulaBatch(batch) for batch in with_row_weights + with_own_weights]


def _shares_formula(leader: RankingMetric, metric: RankingMetric) -> bool:
    """Return True if two metrics differ only in their cut-offs."""
    same = type(metric).formula is type(leader).formula and metric.options == leader.options
    return same and metric.catalogue is leader.catalogue and leader.k is not None
