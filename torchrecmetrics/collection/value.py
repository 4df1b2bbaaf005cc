"""`Value`: one value of a collection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchrecmetrics.core.result import LastResult, Result
from torchrecmetrics.metrics.accumulator import BareMetric
from torchrecmetrics.metrics.description import Description
from torchrecmetrics.metrics.evaluator import Evaluator, values_of


class Value(LastResult, BareMetric):
    """One value of a collection, under its key, for `log_dict`, ModelCheckpoint and `items()`.

    It has no state: the collection is updated, computed and reset. In a torchmetrics `MetricCollection`, whose `update`
    calls every value, the first value called adds the batch for all.
    """

    def __init__(self, evaluator: Evaluator, key: str, metric: Description, group: str | None, leads: bool) -> None:
        super().__init__()
        self.key: str = key
        """The key in the collection, without prefix and postfix."""
        self.metric: Description = metric
        self.group: str | None = group
        """The ending of the key that an accumulator gave, such as a group's name; None = the metric over all rows."""
        self.leads: bool = leads
        """True for the first value, which holds the evaluator as its submodule."""
        self.num_updates: int = 0
        self.label: str = metric.label if group is None else f"{metric.label}/{group}"
        """Label of the metric, with the ending of its key: `NDCG@10/cold`."""
        self.name: str = metric.name
        """Label of the metric without the cut-off."""
        self.k: int | None = metric.k
        """Cut-off of the metric."""
        self.bounds: tuple[float, float] | None = metric.bounds
        """Lowest and highest value of the metric."""
        constants = ("higher_is_better", "plot_lower_bound", "plot_upper_bound")  # torchmetrics lets nobody set them
        vars(self).update({name: getattr(metric.metric_class, name) for name in constants})
        if leads:
            self.evaluator: Evaluator = evaluator
        else:
            self.__dict__["evaluator"] = evaluator

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
        self._add(self.evaluator.update, *args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Add a batch as `update` does, and return the batch's own value."""
        nothing = torch.tensor(torch.nan, dtype=torch.float64)
        self._add(self.evaluator.forward, *args, **kwargs)
        return self.set_batch_value(nothing)

    def _add(self, add: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        if self.num_updates == self.evaluator.num_value_updates:
            add(*args, **kwargs)
            self.evaluator.num_value_updates += 1
        self.num_updates += 1

    def set_batch_value(self, nothing: Tensor) -> Tensor:
        """Return, and keep for Lightning, the value of the last batch; `nothing` if it needs more than a batch."""
        value: Tensor = (self.evaluator._forward_cache or {}).get(self.key, nothing)
        self._forward_cache = value  # type: ignore[assignment]  # torchmetrics types it None
        return value

    def compute(self) -> Tensor:
        """Return the value over all processes, as the collection computes it.

        Raises:
            ValueError: if `update` of other values was called, and not this one's.
        """
        if self.num_updates != self.evaluator.num_value_updates:
            raise ValueError(f"{self.label} was not updated with the other values: update the collection it belongs to")
        result = self.evaluator.compute_results()[self.key]
        return values_of({self.key: result}, self.evaluator.device)[self.key]

    @property
    def last_result(self) -> Result:
        """The result of the last `compute`, or of the state if it has changed since."""
        return self.evaluator.results[self.key]

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
        """Raise, since only whole collections can be merged."""
        raise TypeError(f"{self.label} has no state of its own: merge the collections")

    def _filter_kwargs(self, **kwargs: Any) -> dict[str, Any]:
        return self.evaluator._filter_kwargs(**kwargs)

    def __repr__(self) -> str:
        return f"Value({self.label})"
