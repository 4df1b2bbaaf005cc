"""`Result`: the value of one metric over all rows, or over those of a group, with its standard error and counts."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from torchrecmetrics.core.intervals import IntervalMethod, interval


class Result(NamedTuple):
    """The value of one metric that one `compute` gave: all that prints, exports, plots and compares it reads this."""

    key: str
    """Key under which the value is returned, `NDCG@10/cold`."""
    name: str
    """Name of the metric with its options, without the cut-off."""
    k: int | None
    """Cut-off; None = the metric has none."""
    group: str | None = None
    """Name of the group of rows, or another ending that an accumulator gives to keys; None = all rows."""
    bounds: tuple[float, float] | None = None
    """Lowest and highest value of the metric; None = unknown."""
    value: float = math.nan
    standard_error: float = math.nan
    """NaN where it is unknown."""
    size: float = math.nan
    """(sum w)^2 / sum w^2: the number of rows of equal weight with the same information; NaN if it is no mean."""
    num_users: int = 0
    """Number of rows in the mean."""
    num_skipped: int = 0
    """Number of rows without a relevant item; 0 for metrics of lists."""
    num_unreachable: int = 0
    """Number of rows with a relevant item that is no candidate."""
    num_tied: int = 0
    """Number of rows with a relevant item in a tie."""

    def with_value(self, value: Tensor | float, num_users: int, group: str | None = None) -> Result:
        """Return the result with a value that is not a mean over rows, and so has no standard error.

        `group` is an ending of the key, such as "cold" of `NDCG@10/cold`; None = all rows.
        """
        key = self.key if group is None else f"{self.key}/{group}"
        return self._replace(key=key, group=group, value=float(value), num_users=num_users)

    def interval(self, level: float = 0.95, method: IntervalMethod = "score") -> tuple[float, float]:
        """Return the confidence interval of the value, (low, high); nan where it is unknown."""
        return interval(self.value, self.standard_error, self.size, self.bounds, level, method)
