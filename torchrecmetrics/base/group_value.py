"""`GroupValue`: the value of a metric for one group of rows, as a member of its collection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torchmetrics import Metric

from torchrecmetrics.base.state import Summary

if TYPE_CHECKING:
    from torchrecmetrics.base.metric import RankingMetric


class GroupValue(Metric):
    """The value of a metric over the rows of one group: `NDCG@10/cold`.

    `log_dict`, ModelCheckpoint and a progress bar find the value like any other metric, but it has no state of its own:
    the whole metric computes the value, and is updated and reset in its place.
    """

    is_differentiable: bool = False
    full_state_update: bool = False

    def __init__(self, whole: RankingMetric, group: int) -> None:
        super().__init__()
        self.group: int = group
        self.name: str = whole.groups[group]
        self.belong_to(whole)

    def belong_to(self, whole: RankingMetric) -> None:
        """Set the whole metric that computes this value; it is no submodule, so its state is not counted twice."""
        self.__dict__["_whole"] = whole

    @property
    def whole(self) -> RankingMetric:
        """The metric over all rows, which computes the value of the group."""
        whole: RankingMetric | None = self.__dict__.get("_whole")
        if whole is None:
            raise RuntimeError(f"{self.name} is the value of a group, copied without its collection: copy that whole")
        return whole

    @property
    def higher_is_better(self) -> bool | None:  # type: ignore[override]  # torchmetrics has it on the class
        """`higher_is_better` of the whole metric."""
        return self.whole.higher_is_better

    @property
    def label(self) -> str:
        """Name under which the value is logged: `NDCG@10/cold`."""
        return f"{self.whole.label}/{self.name}"

    @property
    def update_called(self) -> bool:
        """True if the whole metric has been updated."""
        return self.whole.update_called

    def update(self, *_: Any, **__: Any) -> None:
        """Raise: rows are added to the whole metric."""
        raise TypeError(f"{self.label} has no state of its own: update the collection, with groups=")

    def compute(self) -> Tensor:
        """Return the group's value over all processes, as the whole metric computes it; NaN for an empty group."""
        self.whole.compute()
        return self.last_summary().value.clone()

    def last_summary(self) -> Summary:
        """Return the group's result of the last `compute`."""
        return self.whole.last_summary().groups[self.group]

    def standard_error(self) -> Tensor:
        """Return the standard error of the group's value in the last `compute`, scalar; NaN for fewer than two rows."""
        return self.last_summary().standard_error.clone()

    @property
    def num_users(self) -> int:
        """Number of rows of the group that the last `compute` averaged over."""
        return self.last_summary().num_users

    def merge_state(self, incoming_state: Any) -> None:
        """Raise: the collection merges the states of whole metrics."""
        raise TypeError(f"{self.label} has no state of its own: merge the collections")

    def reset(self) -> None:
        """Do nothing: the state is that of the whole metric."""

    def _wrap_update(self, update: Callable[..., Any]) -> Callable[..., Any]:
        return update

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        return compute

    def __getstate__(self) -> dict[str, Any]:
        # the collection sets the whole metric of a copy again
        return {key: value for key, value in super().__getstate__().items() if key != "_whole"}

    def __repr__(self) -> str:
        return f"GroupValue({self.name})"
