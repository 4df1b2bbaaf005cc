"""`Formulas`: the formulas of one or several metrics, which turn a ranking into row values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import cached_constant
from torchrecmetrics.core.checks import Checks, describe, shown
from torchrecmetrics.core.options import Needs
from torchrecmetrics.core.ranked_items import Cutoffs
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.core.result import Layout, Result, RowValues
from torchrecmetrics.metrics.description import Description


class Formulas:
    """The formulas of metrics that share a ranking; those that differ only in their cut-offs are called once.

    Args:
        metrics: descriptions by key, with the same options of rankings.
    """

    def __init__(self, metrics: Mapping[str, Description]) -> None:
        self.metrics: dict[str, Description] = dict(metrics)
        """All metrics by key."""
        self.leader: Description = next(iter(metrics.values()))
        """The first metric, whose options are those of all."""
        self.needs: Needs = Needs.union(metric.needs for metric in metrics.values())
        """The data of a batch that the metrics read, taken together."""
        self.calls: list[dict[str, Description]] = _calls(metrics)
        """Metrics whose values one call of their formula returns, by key."""
        self.means: dict[str, Description] = {key: metric for call in self.calls for key, metric in call.items()}
        """Metrics that are means over rows, by key; those with their own row weights come last."""
        self.own_weighted: list[Description] = [metric for metric in self.means.values() if metric.weights is not None]
        """The last of `means`, which weigh rows themselves."""
        self.layout: Layout = Layout(
            [empty_result(key, metric) for key, metric in self.means.items()],
            num_plain=len(self.means) - len(self.own_weighted),
            of_lists=[metric.kind == "lists" for metric in self.means.values()],
        )
        """Layout of the sums of row values."""
        self.defined_when_empty: tuple[bool, ...] = tuple(
            bool(metric.options.get("zero_division")) for metric in self.means.values()
        )
        """Which of `means` have a `zero_division` other than 0, the value of rows without a relevant item."""
        accuracy = [metric for metric in metrics.values() if metric.kind == "accuracy"]
        self._leading: Description = (accuracy or [self.leader])[0]  # whose rows without a relevant item are counted
        self._grades = {metric.relevant_from for metric in self.means.values()}
        kinds = {metric.kind for metric in metrics.values()}
        self._reads_lists = bool(self.needs.list_depth) or "lists" in kinds
        self._reads_relevant = "accuracy" in kinds

    def check(self, ranking: Ranking, checks: Checks) -> Ranking:
        """Reject rows that the metrics cannot read, and return the ranking without ids beyond the catalogue."""
        if self._reads_lists:
            ranking = inside_catalogue(ranking, self.needs, checks)
        if self.leader.empty_target_action == "error" and self._reads_relevant:
            empty = self._empty_rows(ranking)
            checks.reject("empty", empty if empty.dim() == 1 else empty.any(0), lambda row: f"row {row}")
        if ranking.row_depth is not None:
            cutoffs = [metric.k for metric in self.metrics.values()]
            short = ranking.short_rows(max((k for k in cutoffs if k is not None), default=0))
            short = short | ranking.short_rows(None) if None in cutoffs else short
            checks.reject("list_short", short, ranking.describe_short_row)
        return ranking

    def values(self, ranking: Ranking, weights: Tensor | None, columns: Mapping[str, Tensor]) -> RowValues:
        """Return the values of the rows of a checked ranking; rows that do not count in a mean are undefined there."""
        # formulas raise for short rows, which have been rejected
        readable = ranking if ranking.row_depth is None else replace(ranking, row_depth=None)
        by_call = [_values_of(list(call.values()), readable) for call in self.calls]
        values = torch.cat(by_call) if by_call else ranking.num_relevant.new_zeros(0, len(ranking))
        values, undefined = self._of_empty_rows(values, self._empty_rows(ranking), ranking)
        masks = [mask for mask in (ranking.rows.valid, ranking.rows.own) if mask is not None]
        if weights is not None:
            masks.append(weights > 0)
        counted = reduce(torch.logical_and, masks) if masks else None
        if counted is not None:
            undefined = undefined | ~counted
        own_weights = None
        if self.own_weighted:
            shared = torch.ones_like(ranking.num_relevant) if weights is None else weights
            own_weights = torch.stack([metric.row_weights(ranking, shared) for metric in self.own_weighted])
            number = self.layout.num_plain
            unweighted = undefined[number:] | ~(own_weights > 0)
            undefined = torch.cat([undefined[:number], unweighted])
            own_weights = own_weights.masked_fill(unweighted, 0)
        return RowValues(
            values=values.masked_fill(undefined, 0),
            undefined=undefined,
            flags=torch.stack([self._leading.read(ranking).num_relevant == 0, ranking.unreachable, ranking.tied]),
            weights=weights,
            own_weights=own_weights,
            counted=counted,
            ranking=ranking,
            columns=columns,
        )

    def _empty_rows(self, ranking: Ranking) -> Tensor:
        """Return which rows have no relevant item, bool [B], or [metrics, B] if metrics count from several grades."""
        if len(self._grades) <= 1:
            return self._leading.read(ranking).num_relevant == 0
        return torch.stack([metric.read(ranking).num_relevant == 0 for metric in self.means.values()])

    def _of_empty_rows(self, values: Tensor, empty: Tensor, ranking: Ranking) -> tuple[Tensor, Tensor]:
        """Return the values with those of `empty` rows, bool [B] or [metrics, B], and which are undefined."""
        of_lists, action = None, self.leader.empty_target_action
        if any(self.layout.of_lists):  # metrics of lists also read rows without a relevant item
            of_lists = _column_of(self.layout.of_lists, values.device)
            empty = empty & ~of_lists
        if action == "neg" and any(self.defined_when_empty):  # the formula decides first
            empty = empty & ~_column_of(self.defined_when_empty, values.device)
        if action in ("neg", "pos"):
            values = values.masked_fill(empty, float(action == "pos"))
            undefined = values.isnan()
        else:
            undefined = values.isnan() | empty
        wants_list = None if of_lists is None else ranking.listed().wants_list
        if of_lists is not None and wants_list is not None:
            undefined = undefined | (of_lists & ~wants_list)
        return values, undefined


def _calls(metrics: Mapping[str, Description]) -> list[dict[str, Description]]:
    """Return metrics that are means over rows, those of one call together; those with their own weights come last."""
    plain: list[dict[str, Description]] = []
    own_weighted: list[dict[str, Description]] = []
    for key, metric in metrics.items():
        if metric.kind == "counted":
            continue
        calls = plain if metric.weights is None else own_weighted
        for call in calls:
            if metric.shares_formula(next(iter(call.values()))):
                call[key] = metric
                break
        else:
            calls.append({key: metric})
    return plain + own_weighted


def _values_of(metrics: list[Description], ranking: Ranking) -> Tensor:
    """Return the value of each row for metrics that share a formula, float [metrics, B]."""
    metric, number, rows = metrics[0], len(metrics), ranking.num_relevant
    ranking = metric.read(ranking)
    metric_class, k = metric.metric_class, metric.k if number == 1 else Cutoffs(metric.k or 0 for metric in metrics)
    if metric.k is not None and not metric_class.many_cutoffs and not metric.needs.whole_targets:
        ranking = ranking.within(metric.k)  # a formula of one cut-off sees only the first k ranks
    values: Any = metric_class.formula(ranking, *((k,) if metric_class._signature.takes_k else ()), **metric.arguments)
    shape = (number, len(rows)) if number > 1 else (len(rows),)
    if not isinstance(values, Tensor) or values.shape != shape or values.device != rows.device:
        expected = f"a row for each of the cut-offs {k}, " if number > 1 else "one value per row, "
        raise TypeError(
            f"the formula of {metric.label} must return {expected}a tensor {list(shape)} on {rows.device}, got "
            f"{describe(values)}{f' on {values.device}' if isinstance(values, Tensor) else ''}"
        )
    return (values if number > 1 else values[None]).to(rows.dtype)


def empty_result(key: str, metric: Description) -> Result:
    """Return the result of a metric without rows, under a key."""
    return Result(key, metric.name, metric.k, bounds=metric.bounds)


@cached_constant
def _column_of(flags: tuple[bool, ...], device: torch.device) -> Tensor:
    """Return flags as bool [n, 1], created on the device, since a copy from the host could wait for it."""
    return torch.cat([torch.full((1, 1), flag, device=device) for flag in flags])


def inside_catalogue(ranking: Ranking, needs: Needs, checks: Checks) -> Ranking:
    """Return the ranking without ids beyond the catalogue in its lists and history."""
    lists, size = ranking.listed(), needs.num_items
    if size is None:
        return ranking
    if lists.num_items is None or lists.num_items > size:
        ids = lists.ids
        beyond = ids >= size
        checks.reject("catalogue_range", beyond, lambda row: f"row {row} lists {shown(ids[row])} of {size} items")
        stays = ~beyond if lists.stays is None else lists.stays & ~beyond
        lists = lists._replace(stays=stays, num_items=size)
    if needs.history and lists.history is not None:
        history = lists.history
        past = history >= size
        checks.reject("catalogue_range", past, lambda row: f"row {row} had {shown(history[row])} of {size} items")
        lists = lists._replace(history=history.where(~past, -1))
    return replace(ranking, lists=lists)
