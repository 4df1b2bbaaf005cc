"""`ListMetric`: base class of means over rows of a function of the recommended list."""

from __future__ import annotations

from typing import ClassVar

from torchrecmetrics.base.metric import RankingMetric
from torchrecmetrics.ranking.rules import Needs


class ListMetric(RankingMetric):
    """Weighted mean over rows of a function of the items in the first `k` ranks: base class of metrics of lists.

    Rows without a relevant item count, since they have a list: `empty_target_action` governs accuracy alone. Rows whose
    value is NaN, such as those with an empty list, are left out. A target may be left away, `update(scores)`, where no
    metric beside it reads one.

    The formula reads `Ranking.items`, and `history` or `relevant_items` where the class says so; a parameter
    `catalogue` is given the metric's `Catalogue`. Equal scores stand in the order of their ids.

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
        """The items in the first `k` places; where there is a catalogue, lists and history hold its items only."""
        needs = super().needs
        if self.reads_history and self.catalogue is not None:
            needs = needs._replace(num_items=self.catalogue.num_items)
        return needs._replace(target=self.reads_target, list_depth=self.k or 0, history=self.reads_history)
