"""`RowEvaluator`: call each formula once per batch, mask and weigh the rows, and sum them (`RowValues`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.arrays import float_dtype
from torchrecmetrics.base.state import SparseUpdate, SumState
from torchrecmetrics.checks import (
    VIOLATIONS,
    Checks,
    Cutoffs,
    check_ids,
    check_strided,
    check_tensor,
    describe,
    shown,
)
from torchrecmetrics.functional import log2_discounts
from torchrecmetrics.ranking import Ranking
from torchrecmetrics.ranking.rules import Needs

if TYPE_CHECKING:
    from torchrecmetrics.base.metric import RankingMetric


class RowGroups(NamedTuple):
    """The group of each row of a batch."""

    codes: Tensor  # int64 [B], -1 = none
    number: int  # number of groups


class ListBatch:
    """The recommended lists of a batch, for metrics that count items."""

    def __init__(self, items: Tensor, counted: Tensor | None, ranking: Ranking | None = None) -> None:
        self.items: Tensor = items
        """Item ids, int64 [B, D], best first, -1 = no item."""
        self.counted: Tensor | None = counted
        """Mask of the rows that count, bool [B]; None = all rows."""
        self.ranking: Ranking | None = ranking
        """Ranking of the rows; None = not known."""

    @cached_property
    def ids(self) -> Tensor:
        """Item ids with padding replaced by 0, int64 [D, B]; the first k ranks of all rows are one slice."""
        return self.items.T.contiguous().clamp(min=0)

    @cached_property
    def entries(self) -> Tensor:
        """Int64 [D, B]: 1 for an item in a row that counts, else 0."""
        listed = self.items.T >= 0
        return (listed if self.counted is None else listed & self.counted).long()

    @cached_property
    def exposure(self) -> Tensor:
        """`entries` times 1 / log2(1 + rank), float [D, B]."""
        device = self.items.device
        return self.entries * log2_discounts(len(self.ids), float_dtype(device), device)[:, None]


class RowValues(NamedTuple):
    """Values of each row of a batch; the first dimension of [metrics or 1, B] is 1 if all metrics have equal values."""

    values: Tensor  # float [metrics, B], 0 where `mask` is False
    weights: Tensor | None  # float [metrics or 1, B], 0 where `mask` is False; None = 1 for all
    mask: Tensor  # bool [metrics or 1, B]: the row counts in the mean
    flags: Tensor  # bool [3, metrics or 1, B]: skipped, unreachable, tied
    violations: Tensor | None  # int64 [all members or 1, kinds]: number of rows left out; None = 0
    lists: ListBatch | None = None  # for metrics that count items
    groups: RowGroups | None = None

    def sums(self) -> SumState:
        """Return sums [metrics, 5] and counts [metrics, 4 + kinds] over the rows; each group adds 5 sums and 4 counts.

        Sums: w, w v, w^2, w^2 v, w^2 v^2. Counts: rows used, skipped, unreachable, tied; violations by kind.
        """
        metrics, kinds = len(self.values), len(VIOLATIONS)
        weighted = self.values if self.weights is None else self.weights * self.values
        parts = [weighted, weighted.square(), self.mask, *self.flags]
        if self.weights is not None:
            parts += [self.weights, self.weights.square(), self.weights * weighted]
        wv, w2v2, used, *rest = self._totals(parts)
        flags, (w, w2, w2v) = rest[:3], rest[3:] or (used, used, wv)
        totals = torch.stack([w, wv, w2, w2v, w2v2, used, *flags], -1)  # [1 + groups, metrics, 9]
        sums, counts = totals[..., :5], totals[..., 5:].to(torch.int64)
        if self.violations is None:
            first = torch.nn.functional.pad(counts[0], (0, kinds))
        else:
            first = torch.cat([counts[0], self.violations[:metrics].expand(metrics, kinds)], 1)
        if self.groups is None:
            return SumState(sums[0], first)
        return SumState(sums.transpose(0, 1).flatten(1), torch.cat([first, counts[1:].transpose(0, 1).flatten(1)], 1))

    def _totals(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return the sums of each part over all rows and over each group, one tensor [1 + groups, metrics] per part."""
        rows = torch.cat(list(parts))  # one reduction for all; float64 counts exactly up to 2^53
        totals = rows.sum(1)[None]
        if self.groups is not None:
            codes, number = self.groups
            by_group = rows.new_zeros(number + 1, len(rows))  # rows of no group are added to the last entry
            by_group.index_add_(0, codes.where(codes >= 0, number), rows.T.contiguous())
            totals = torch.cat([totals, by_group[:number]])
        sizes = [len(part) for part in parts]
        parts_of = torch.split(totals, sizes, 1)
        return [part if part.shape[1] == len(self.values) else part.expand(-1, len(self.values)) for part in parts_of]


class RowEvaluator:
    """Metrics that read the same rankings under the same rules, evaluated together."""

    def __init__(self, metrics: Sequence[RankingMetric]) -> None:
        self.given: tuple[RankingMetric, ...] = tuple(metrics)
        accuracy = _formula_groups([m for m in metrics if not m.of_lists and not m.of_items])
        of_lists = _formula_groups([m for m in metrics if m.of_lists and not m.of_items])
        self._formulas = [_Formula(group) for group in accuracy + of_lists]
        self.metrics: tuple[RankingMetric, ...] = tuple(m for group in accuracy + of_lists for m in group)
        """Means over rows: accuracy first, metrics with one formula side by side. All results are in this order."""
        self.counters: tuple[RankingMetric, ...] = tuple(m for m in metrics if m.of_items)
        """Metrics that count items over all lists."""
        self.members: tuple[RankingMetric, ...] = self.metrics + self.counters
        self.needs: Needs = Needs.union(metric.needs for metric in metrics)
        self._num_accuracy = sum(len(group) for group in accuracy)
        self._reads_lists = bool(self.needs.list_depth) or bool(of_lists)
        self._weighing = any(metric.weighs_rows() for metric in self.metrics)

    def row_values(
        self,
        ranking: Ranking,
        weights: Tensor | None = None,
        groups: RowGroups | None = None,
        deferred: bool = False,
    ) -> RowValues:
        """Return the values of every row, without changing the metrics' states.

        `deferred`: bad values are counted for an error in `compute`, although they could raise here.

        Raises:
            ValueError: if a metric cannot use the ranking, and for bad values that are checked at once.
        """
        self._check_ready(ranking)
        first, device, num_rows = self.members[0], ranking.ranks.device, len(ranking)
        # empty_target_action="error" is checked even where other values are not
        validate_args = first.rules.validate_args or first.empty_target_action == "error"
        checks = Checks("deferred" if deferred and validate_args else validate_args, device, num_rows)
        asked = None
        if self._reads_lists:
            lists = _inside_catalogue(ranking.listed(), self.needs, checks)
            ranking, asked = ranking.with_lists(lists), lists.asked
        values = self.values(ranking)
        empty = ranking.num_relevant == 0
        values = self._fill_empty(values, empty, ranking, checks)
        if groups is not None:
            groups = groups._replace(codes=_check_groups(groups, num_rows, device, checks))
        short = self._short_rows(ranking, checks)
        if weights is not None:
            weights = _check_weights(weights, num_rows, device, checks).to(float_dtype(device))

        invalid = [rows for rows in (ranking.violations.rows, checks.rejected) if rows is not None]
        rejected = invalid[0] if len(invalid) == 1 else invalid[0] | invalid[1] if invalid else None
        counted = None if rejected is None else ~rejected
        if weights is not None:
            counted = weights > 0 if counted is None else counted & (weights > 0)
        list_batch = None
        if self.counters:
            items = ranking.items if self._reads_lists else torch.empty_like(ranking.ranks[:, :0], dtype=torch.int64)
            list_batch = ListBatch(items, _and_masks(counted, asked), ranking)
        violations = self._violations(ranking, checks, short)
        if short is not None:
            counted = _and_masks(counted, ~short[: len(self.metrics)])
        mask = self._mask(values, empty, counted, asked)
        flags = torch.stack([empty, ranking.unreachable, ranking.tied])[:, None]
        if self._num_accuracy < len(self.metrics):
            flags = self._per_metric(flags, torch.zeros_like(flags))
        flags = flags if counted is None else flags & counted
        if weights is not None or self._weighing:
            weights = self._row_weights(ranking, mask, weights)
            mask = mask & (weights > 0)
        values = values.where(mask, 0)
        return RowValues(values, weights, mask, flags, violations, list_batch, groups)

    def batch_sums(self, rows: RowValues) -> list[SumState | SparseUpdate]:
        """Return the sums of a batch for each of `members`."""
        added: list[SumState | SparseUpdate] = []
        if self.metrics:
            added += map(SumState, *(part.unbind() for part in rows.sums()))
        if self.counters:
            assert rows.lists is not None
            violations = rows.violations
            if violations is not None:
                violations = violations.expand(len(self.members), -1)[len(self.metrics) :]
            for number, metric in enumerate(self.counters):
                added.append(metric.sparse_update(rows.lists, None if violations is None else violations[number]))
        return added

    def values(self, ranking: Ranking) -> Tensor:
        """Return the value of each row for each of `metrics`, float [metrics, B]; NaN where it is undefined."""
        parts = [formula.values(ranking) for formula in self._formulas]
        return torch.cat(parts) if parts else ranking.ranks.new_zeros((0, len(ranking)))

    # --------------------------------------------------------------------------------------- the steps of `row_values`

    def _check_ready(self, ranking: Ranking) -> None:
        for metric in self.members:
            if (contradiction := metric.rules.contradiction(ranking.made_with)) is not None:
                raise ValueError(f"{metric.label} {contradiction}")
            metric.check_ready(ranking.ranks.device)

    def _fill_empty(self, values: Tensor, empty: Tensor, ranking: Ranking, checks: Checks) -> Tensor:
        """Apply `empty_target_action` to rows without a relevant item, for metrics of accuracy."""
        action, number = self.members[0].empty_target_action, self._num_accuracy
        if action == "error" and number:
            invalid = ranking.violations.rows
            rows = empty if invalid is None else empty > invalid
            checks.reject("empty", rows, lambda row: f"row {row}")
        if action not in ("neg", "pos") or not number:
            return values
        filled = values[:number].masked_fill(empty, 0.0 if action == "neg" else 1.0)
        return torch.cat([filled, values[number:]])

    def _short_rows(self, ranking: Ranking, checks: Checks) -> Tensor | None:
        """Return the mask of rows that are ranked less deep than a member reads, bool [members, B]; None = no row."""
        if not checks.enabled or ranking.reach.rows is None:
            return None
        whole = ranking.num_relevant
        furthest = [whole if m.k is None else torch.full_like(whole, m.k) for m in self.members]
        short = ranking.cut_short(torch.stack(furthest))
        if short is None or ranking.violations.rows is None:
            return short
        return short > ranking.violations.rows

    def _violations(self, ranking: Ranking, checks: Checks, short: Tensor | None) -> Tensor | None:
        ours = None if checks.rejected is None else checks.violations.counts
        found = [counts for counts in (ranking.violations.counts, ours) if counts is not None]
        if not found:
            return None
        violations = sum(found[1:], found[0])[None]
        if short is not None:
            violations = violations.repeat(len(self.members), 1)
            violations[:, list(VIOLATIONS).index("list_short")] += short.sum(1)
        return violations

    def _mask(self, values: Tensor, empty: Tensor, counted: Tensor | None, asked: Tensor | None) -> Tensor:
        """Return the mask of rows that count in each mean, bool [metrics, B]."""
        judged = ~empty if self.members[0].empty_target_action == "skip" else torch.ones_like(empty)
        if self._num_accuracy == len(self.metrics):
            wanted = judged
        else:
            listed = torch.ones_like(empty) if asked is None else asked
            wanted = self._per_metric(judged[None], listed[None])
        mask = (values == values) & wanted  # not NaN
        return mask if counted is None else mask & counted

    def _per_metric(self, of_accuracy: Tensor, of_lists: Tensor) -> Tensor:
        """Repeat `of_accuracy`, [..., 1, B], for metrics of accuracy, `of_lists` for the others: [..., metrics, B]."""
        number, shape = self._num_accuracy, of_accuracy.shape
        parts = (of_accuracy, number), (of_lists, len(self.metrics) - number)
        return torch.cat([part.expand(*shape[:-2], n, shape[-1]) for part, n in parts], -2)

    def _row_weights(self, ranking: Ranking, mask: Tensor, weights: Tensor | None) -> Tensor:
        given = mask.to(float_dtype(mask.device)) if weights is None else weights.where(mask, 0)
        if not self._weighing:
            return given
        own = []
        for metric, row in zip(self.metrics, given, strict=True):
            weighed = metric.row_weights(ranking, row)
            if not isinstance(weighed, Tensor) or weighed.shape != row.shape:
                raise TypeError(
                    f"row_weights of {metric.label} must return one weight per row, a tensor {list(row.shape)}, got "
                    f"{describe(weighed)}"
                )
            own.append(weighed.to(row.dtype))
        return torch.stack(own).where(mask, 0)


class _Formula:
    """One formula with its options, called once for all cut-offs of the metrics that share it."""

    def __init__(self, metrics: Sequence[RankingMetric]) -> None:
        first = metrics[0]
        self._metric, self._number = first, len(metrics)
        self._k: tuple[Any, ...] = ()
        if first.takes_k:
            self._k = (Cutoffs(metric.k or 0 for metric in metrics) if len(metrics) > 1 else first.k,)
        whole = first.many_cutoffs or first.needs.depth_is_num_relevant or first.k is None
        self._depth = None if whole else first.k  # a formula of one cut-off sees only the first k ranks

    def values(self, ranking: Ranking) -> Tensor:
        """Return the value of each row for each metric of the formula, float [metrics, B]."""
        metric, number, device = self._metric, self._number, ranking.ranks.device
        read = ranking if self._depth is None else ranking.within(self._depth)
        found = metric.formula(read, *self._k, **metric.arguments)
        shape = (number, len(ranking)) if number > 1 else (len(ranking),)
        if not isinstance(found, Tensor) or found.shape != shape or found.device != device:
            wanted = f"a row for each of the cut-offs {self._k[0]}, " if number > 1 else "one value a row, "
            raise TypeError(
                f"the formula of {metric.label} must return {wanted}a tensor {list(shape)} on {device}, got "
                f"{describe(found)}{f' on {found.device}' if isinstance(found, Tensor) else ''}"
            )
        return (found if number > 1 else found[None]).to(ranking.ranks.dtype)


def _formula_groups(metrics: Sequence[RankingMetric]) -> list[list[RankingMetric]]:
    """Group metrics that differ only in their cut-offs, where the formula takes several of them."""
    groups: list[list[RankingMetric]] = []
    for metric in metrics:
        for group in groups if metric.many_cutoffs and metric.k is not None else ():
            other = group[0]
            same = type(metric).formula is type(other).formula and metric.options == other.options
            if same and metric.catalogue is other.catalogue and other.k is not None:
                group.append(metric)
                break
        else:
            groups.append([metric])
    return groups


def _and_masks(mask: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Return the mask of the rows that are in both masks; None = all rows."""
    if mask is None or other is None:
        return other if mask is None else mask
    return mask & other


def _inside_catalogue(lists: Any, needs: Needs, checks: Checks) -> Any:
    """Return the lists, and their history, without item ids that are beyond the catalogue."""
    size = needs.num_items
    if size is None:
        return lists
    if lists.num_items is None or lists.num_items > size:
        ids = lists.ids
        beyond = ids >= size
        if checks.enabled:
            checks.reject("catalogue_range", beyond, lambda row: f"row {row} lists {shown(ids[row])} of {size} items")
        stays = (ids >= 0 if lists.stays is None else lists.stays) & ~beyond
        lists = lists._replace(stays=stays, num_items=size)
    if needs.history and lists.history is not None:
        history = lists.history
        beyond = history >= size
        if checks.enabled:
            checks.reject("catalogue_range", beyond, lambda row: f"row {row} had {shown(history[row])} of {size} items")
        lists = lists._replace(history=history.where(~beyond, -1))
    return lists


def _check_groups(groups: RowGroups, rows: int, device: torch.device, checks: Checks) -> Tensor:
    """Return the group codes of rows as int64 [rows], -1 = no group; `checks` rejects codes out of range."""
    codes, number = groups
    check_ids("groups", codes)
    if codes.shape != (rows,) or codes.device != device:
        raise ValueError(f"groups must be codes [{rows}] on {device}, got {describe(codes)} on {codes.device}")
    inside = (codes >= -1) & (codes < number)
    if checks.enabled:
        checks.reject("groups", ~inside, lambda row: f"row {row} is of group {int(codes[row])} of {number}")
    return codes.long().where(inside, -1)


def _check_weights(weights: Tensor, rows: int, device: torch.device, checks: Checks) -> Tensor:
    check_tensor("weights", weights)
    check_strided("weights", weights, "0")
    if weights.shape != (rows,) or weights.is_complex() or weights.device != device:
        raise ValueError(f"weights must be numbers [{rows}] on {device}, got {describe(weights)} on {weights.device}")
    if checks.enabled:
        wrong = ~(weights.isfinite() & (weights >= 0))
        checks.reject("weights", wrong, lambda row: f"row {row} weighs {weights[row]}")
    return weights
