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

    `log_dict`, ModelCheckpoint and a progress bar find it like any other metric, but it has no state of its own: the
    metric whose part it is computes it, and is updated and reset in its place.
    """

    is_differentiable: bool = False
    full_state_update: bool = False

    def __init__(self, whole: RankingMetric, group: int) -> None:
        super().__init__()
        self.group: int = group
        self.name: str = whole.groups[group]
        self.belong_to(whole)

    def belong_to(self, whole: RankingMetric) -> None:
        """Say whose part it is: its state is not this one's."""
        self.__dict__["_whole"] = whole

    @property
    def whole(self) -> RankingMetric:
        """The metric whose part it is."""
        whole: RankingMetric | None = self.__dict__.get("_whole")
        if whole is None:
            raise RuntimeError(f"{self.name} is the value of a group, copied without its collection: copy that whole")
        return whole

    @property
    def higher_is_better(self) -> bool | None:  # type: ignore[override]  # torchmetrics has it on the class
        """As of the metric whose part it is."""
        return self.whole.higher_is_better

    @property
    def label(self) -> str:
        """Name under which it is logged: `NDCG@10/cold`."""
        return f"{self.whole.label}/{self.name}"

    @property
    def update_called(self) -> bool:
        """True if its metric has seen a batch."""
        return self.whole.update_called

    def update(self, *_: Any, **__: Any) -> None:
        """Refuse rows: the whole metric must see them."""
        raise TypeError(f"{self.label} has no state of its own: update the collection, with groups=")

    def compute(self) -> Tensor:
        """Return the group's value over all processes, as its whole metric computes it; NaN for no row."""
        self.whole.compute()
        return self.last_summary().value.clone()

    def last_summary(self) -> Summary:
        """Return the value of the last `compute`."""
        return self.whole.last_summary().groups[self.group]

    def standard_error(self) -> Tensor:
        """Return the standard error of the last `compute`, scalar; NaN for fewer than two rows."""
        return self.last_summary().standard_error.clone()

    @property
    def num_users(self) -> int:
        """Rows that the last `compute` averaged over."""
        return self.last_summary().num_users

    def merge_state(self, incoming_state: Any) -> None:
        """Refuse a state: the collection merges those of whole metrics."""
        raise TypeError(f"{self.label} has no state of its own: merge the collections")

    def reset(self) -> None:
        """Forget nothing: there is no state."""

    def _wrap_update(self, update: Callable[..., Any]) -> Callable[..., Any]:
        return update

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        return compute

    def __getstate__(self) -> dict[str, Any]:
        # the collection that holds both tells a copy whose part it is
        return {key: value for key, value in super().__getstate__().items() if key != "_whole"}

    def __repr__(self) -> str:
        return f"GroupValue({self.name})"
