"""`ListMetric`: base class of means over rows of a function of the recommended list."""

from __future__ import annotations

from typing import ClassVar

from torchrecmetrics.core.options import Needs
from torchrecmetrics.metric.base import RankingMetric


class ListMetric(RankingMetric):
    """Base class of metrics of lists: the weighted mean over rows of a function of the items in the first `k` ranks.

    Rows without a relevant item count, since they have a list: `empty_target_action` applies to accuracy metrics only.
    Rows whose value is NaN, such as rows with an empty list, are left out. The target may be omitted, `update(scores)`,
    unless another metric of the collection reads it.

    The formula reads `Ranking.items`, and `history` or `relevant_items` if the attributes below say so; a parameter
    `catalogue` receives the metric's `Catalogue`. Items with equal scores are listed in the order of their ids. A list
    of fewer than `k` items is judged by the items that it has.

    Args:
        k: cut-off, >= 1.
        options: `catalogue`, if the metric reads popularity, categories or embeddings, options of the formula, and
            keywords of every metric (`ties`, `padding_idx`, ...); see `RankingMetric`, for methods and counts too.
            The history comes with each batch, or from a `Catalogue.from_interactions(train)`.

    Attributes:
        reads_history: True if the formula reads `Ranking.history`.
        reads_target: True if the formula reads `Ranking.relevant_items`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> def even(ranking, k):
        ...     return (ranking.items[:, :k] % 2 == 0).double().mean(1)
        >>> class Even(trm.ListMetric):
        ...     formula = staticmethod(even)
        >>> metric = Even(2)
        >>> metric.update(torch.tensor([[0.1, 0.9, 0.5]]))  # lists the items 1 and 2
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    reads_history: ClassVar[bool] = False
    reads_target: ClassVar[bool] = False
    of_lists: ClassVar[bool] = True

    @property
    def needs(self) -> Needs:
        """The data that the metric reads: the first `k` items; a metric of history drops ids beyond its catalogue."""
        needs = super().needs
        if self.reads_history and self.catalogue is not None:
            needs = needs._replace(num_items=self.catalogue.num_items)
        return needs._replace(target=self.reads_target, list_depth=self.k or 0, history=self.reads_history)
