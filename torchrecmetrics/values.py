"""`Value`: one value of a collection, and `Found`: its result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.analysis.rows import Rows
from torchrecmetrics.core.accumulators import BareMetric
from torchrecmetrics.core.evaluator import Evaluator
from torchrecmetrics.core.metric import LastResult, RankingMetric
from torchrecmetrics.core.rows import Summary


class Value(LastResult, BareMetric):
    """One value of a collection, under its key: what `log_dict`, ModelCheckpoint and `items()` see.

    It has no state: the collection is updated, computed and reset. In a torchmetrics `MetricCollection`, whose `update`
    reaches every value, the value that is reached first adds the batch for all.
    """

    metric: RankingMetric

    def __init__(self, evaluator: Evaluator, key: str, metric: RankingMetric, group: str | None, leads: bool) -> None:
        super().__init__()
        self.key: str = key
        """The key in the collection, without prefix and postfix."""
        self.group: str | None = group
        """The ending of the key that an accumulator gave, such as a group's name; None = the metric over all rows."""
        self.leads: bool = leads
        self.num_updates: int = 0
        constants = ("higher_is_better", "plot_lower_bound", "plot_upper_bound")  # torchmetrics lets nobody set them
        vars(self).update({name: getattr(metric, name) for name in constants})
        self.__dict__["metric"] = metric  # no submodule: it is a description, without rows
        self.label: str = metric.label if group is None else f"{metric.label}/{group}"
        """Label of the metric, with the ending of its key: `NDCG@10/cold`."""
        self.name: str = metric.name
        """Label of the metric without the cut-off."""
        self.k: int | None = metric.k
        """Cut-off of the metric."""
        self.bounds: tuple[float, float] | None = metric.bounds
        """Lowest and highest value of the metric."""
        if leads:
            self.evaluator: Evaluator = evaluator
        else:
            self.__dict__["evaluator"] = evaluator  # a submodule of the first value alone

    @property
    def update_called(self) -> bool:
        """True if the collection has been updated."""
        return self.evaluator.update_called

    def persistent(self, mode: bool = False) -> None:
        """Set whether state dicts hold the states, which the first value saves for all."""
        if self.leads:
            self.evaluator.persistent(mode)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch, if no other value has done so, for all values of the collection."""
        if self.num_updates == self.evaluator.num_value_updates:
            self.evaluator.update(*args, **kwargs)
            self.evaluator.num_value_updates += 1
        self.num_updates += 1

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Add a batch as `update` does, and return the batch's own value."""
        nothing = torch.tensor(torch.nan, dtype=torch.float64)
        if self.num_updates == self.evaluator.num_value_updates:
            self.evaluator(*args, **kwargs)
            self.evaluator.num_value_updates += 1
        self.num_updates += 1
        batch: Mapping[str, Tensor] = self.evaluator._forward_cache or {}
        value = batch.get(self.key, nothing)
        self._forward_cache = value  # type: ignore[assignment]  # torchmetrics types it None
        return value

    def compute(self) -> Tensor:
        """Return the value over all processes, as the collection computes it.

        Raises:
            ValueError: if `update` of other values was called, and not this one's.
        """
        if self.num_updates != self.evaluator.num_value_updates:
            raise ValueError(f"{self.label} was not updated with the other values: update the collection that it is of")
        return self.evaluator.compute_results()[self.key].value.clone()

    def _last_summary(self) -> Summary | None:
        return self.evaluator._results.get(self.key)

    def reset(self) -> None:
        """Reset the collection."""
        self.evaluator.reset()
        self.num_updates = 0

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Sum the collection's states over the processes until `unsync`, if this is the first value."""
        if self.leads:
            self.evaluator.sync(*args, **kwargs)

    def unsync(self, should_unsync: bool = True) -> None:
        """Restore the states of this process, if this is the first value."""
        if self.leads:
            self.evaluator.unsync(should_unsync)

    def merge_state(self, incoming_state: Any) -> None:
        """Raise: collections are merged."""
        raise TypeError(f"{self.label} has no state of its own: merge the collections")

    def _filter_kwargs(self, **kwargs: Any) -> dict[str, Any]:
        return self.evaluator._filter_kwargs(**kwargs)

    def __repr__(self) -> str:
        return f"Value({self.label})"


class Found(NamedTuple):
    """A result of the last `compute`."""

    key: str
    metric: RankingMetric
    group: str | None
    """Name of the group of rows, or another ending that an accumulator gave; None = all rows."""
    summary: Summary


def rows_of(columns: Mapping[str, Tensor], evaluator: Evaluator) -> Rows:
    """Return the kept rows of all processes, with a label for each key."""
    values, weights = columns["values"].double(), columns["weights"][0].double()
    values = values.where(columns["used"].bool(), torch.nan)
    by_key = dict(zip(evaluator.row_metrics, values, strict=True))
    keys = [key for key in evaluator.metrics if key in by_key]
    if not keys:
        raise ValueError("KeptRows keeps the values of metrics that are means over rows, and there is none")
    own_weights = {}
    if "own_weights" in columns:
        weighing = list(evaluator.row_metrics)[evaluator.layout.num_plain :]
        own_weights = dict(zip(weighing, columns["own_weights"].double(), strict=True))
    rules = evaluator.rules
    labels = {f"metric of {key}": metric.label for key, metric in evaluator.row_metrics.items() if key != metric.label}
    return Rows(
        values={key: by_key[key] for key in keys},
        ids=columns["ids"][0].long(),
        weights=None if bool((weights == 1).all()) else weights,
        clusters=columns["clusters"][0] if "clusters" in columns else None,
        own_weights=own_weights,
        options={
            "ties": rules.tie_rule,
            "overlap": rules.overlap_rule,
            "padding_idx": None if rules.padding_idx is None else str(rules.padding_idx),
            "empty_target_action": evaluator.empty_target_action,
            **labels,
        },
    )
