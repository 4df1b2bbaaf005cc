"""`Description`: a metric without state, a record of its formula, options, label and needs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

from torch import Tensor

from torchrecmetrics.core.checks import describe
from torchrecmetrics.core.options import Needs, Options
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.metrics.signature import EmptyTargetAction, ItemCatalogue, option_fingerprint

Kind: TypeAlias = Literal["accuracy", "lists", "counted"]
"""Means over rows with a relevant item, means over rows with a list, or a value that is computed from counts."""


@dataclass(frozen=True, eq=False)
class Description:
    """A metric without state: everything on which its value depends."""

    metric_class: type[Any]
    """The subclass of `RankingMetric`, which has the formula."""
    kind: Kind
    """What the value is computed from."""
    bounds: tuple[float, float] | None
    """Lowest and highest value; None = unknown."""
    higher_is_better: bool | None
    """True if higher values are better; None = neither."""
    name: str
    """Label without the cut-off: `NDCG-exponential`."""
    k: int | None
    """Cut-off; None = the whole ranking, or the metric has none."""
    options: Mapping[str, Any]
    """Options of the formula by name."""
    ranking_options: Options
    """Options of rankings, such as `ties`."""
    empty_target_action: EmptyTargetAction
    """Value of rows without a relevant item."""
    catalogue: ItemCatalogue | None
    """The catalogue of the items, if given."""
    needs: Needs
    """The data of a batch that the metric reads."""
    torchmetrics_options: Mapping[str, Any]
    """Keywords of torchmetrics' own `Metric`, such as `sync_on_compute`."""
    own_weights: Callable[..., Tensor] | None = None
    """A function that returns the row weights of this metric; None = that of its class, if it has one."""

    @cached_property
    def label(self) -> str:
        """Name under which the metric is logged: `NDCG-exponential@10`."""
        return self.name if self.k is None else f"{self.name}@{self.k}"

    @cached_property
    def arguments(self) -> Mapping[str, Any]:
        """Keyword arguments of the formula: its options and, if it reads one, the catalogue."""
        reads = self.metric_class._signature.reads_catalogue
        return {**self.options, "catalogue": self.catalogue} if reads else self.options

    @property
    def weights(self) -> Callable[..., Tensor] | None:
        """A function of the ranking, or of the ranking and `k`, that returns the row weights, [B]; None = all 1."""
        weights: Callable[..., Tensor] | None = self.own_weights or self.metric_class.weights
        return weights

    def row_weights(self, ranking: Ranking, shared: Tensor) -> Tensor:
        """Return the weight of each row, [B]: the `shared` weights of `update` times those of the metric; or raise."""
        assert self.weights is not None
        takes_k = len(inspect.signature(self.weights).parameters) > 1
        factors: Any = self.weights(ranking, self.k) if takes_k else self.weights(ranking)
        if not isinstance(factors, Tensor) or factors.shape != shared.shape:
            raise TypeError(
                f"weights of {self.label} must return one weight per row, a tensor {list(shared.shape)}, got "
                f"{describe(factors)}"
            )
        return (shared * factors.nan_to_num(0)).to(shared.dtype)

    def shares_formula(self, other: Description) -> bool:
        """Return True if two metrics differ only in their cut-offs, so that one call of the formula serves both."""
        one, two = self.metric_class, other.metric_class
        takes_several = one.many_cutoffs and self.k is not None and other.k is not None
        same = one.formula is two.formula and self.options == other.options and self.catalogue is other.catalogue
        return takes_several and same

    @property
    def fingerprint(self) -> str:
        """Text that contains everything on which values depend."""
        options = self.ranking_options
        shaped_by = [self.label, options.tie_rule, options.overlap_rule, self.empty_target_action]
        shaped_by += [] if options.padding_idx is None else [f"padding{options.padding_idx}"]
        shaped_by += [] if options.validate_args is True else [f"validate_{options.validate_args}"]
        if not is_builtin(self.metric_class):  # another class may have the same name and options
            module = self.metric_class.__module__.replace("__mp_main__", "__main__")
            shaped_by.append(option_fingerprint(module, self.metric_class.__qualname__, dict(self.options)))
        if self.metric_class._signature.reads_catalogue and self.catalogue is not None:
            shaped_by.append(self.catalogue.fingerprint)
        return "-".join(shaped_by)

    def __deepcopy__(self, memo: dict[int, Any]) -> Description:
        return self  # never changed, so that copies of a metric share it


def is_builtin(metric_class: type) -> bool:
    """Return True for a metric of this package, whose label contains everything that its value depends on."""
    return metric_class.__module__.startswith("torchrecmetrics.")
