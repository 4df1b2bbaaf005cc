"""`Result`: a metric's value over rows, with its standard error and counts; `LastResult`: reads the last one."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import float_dtype
from torchrecmetrics.core.intervals import IntervalMethod, interval

SIDES: dict[str, bool | None] = {}
"""`higher_is_better` of every metric class, by the name that begins its labels."""


class Result(NamedTuple):
    """One value of one metric, from one `compute`; tables, exports, plots and comparisons read it."""

    key: str
    """Key under which the value is returned, `NDCG@10/cold`."""
    name: str
    """Name of the metric with its options, without the cut-off."""
    k: int | None
    """Cut-off; None = the metric has none."""
    group: str | None = None
    """Name of the group of rows, or another ending of keys from an accumulator; None = all rows."""
    bounds: tuple[float, float] | None = None
    """Lowest and highest value of the metric; None = unknown."""
    value: float = math.nan
    standard_error: float = math.nan
    """NaN = unknown."""
    size: float = math.nan
    """Effective number of rows, (sum w)^2 / sum w^2; NaN if the value is not a mean."""
    num_users: int = 0
    """Number of rows in the mean."""
    num_skipped: int = 0
    """Number of rows without a relevant item; 0 for metrics of lists."""
    num_unreachable: int = 0
    """Number of rows with a relevant item that is not a candidate."""
    num_tied: int = 0
    """Number of rows with a relevant item in a tie."""

    def with_value(self, value: Tensor | float, num_users: int, group: str | None = None) -> Result:
        """Return the result with a value that is not a mean over rows, without a standard error.

        `group` is an ending of the key, such as "cold" of `NDCG@10/cold`; None = all rows.
        """
        key = self.key if group is None else f"{self.key}/{group}"
        return self._replace(key=key, group=group, value=float(value), num_users=num_users)

    def interval(self, level: float = 0.95, method: IntervalMethod = "score") -> tuple[float, float]:
        """Return the confidence interval of the value, (low, high); nan if unknown."""
        return interval(self.value, self.standard_error, self.size, self.bounds, level, method)


class LastResult:
    """Mixin with the counts, standard error and confidence interval of the last `compute`."""

    @property
    def _last_result(self) -> Result:
        """The result of the last `compute`."""
        result = self._stored_result()
        if result is None:
            raise RuntimeError(
                f"{self.label}: counts and standard errors come from the last compute(); call it first"  # type: ignore[attr-defined]
            )
        return result

    def _stored_result(self) -> Result | None:
        """Return the result of the last `compute`; None before it."""
        raise NotImplementedError

    @property
    def num_users(self) -> int:
        """Number of rows that the last `compute` averaged over."""
        return self._last_result.num_users

    @property
    def num_skipped(self) -> int:
        """Number of rows without a relevant item in the last `compute` (left out under "skip")."""
        return self._last_result.num_skipped

    @property
    def num_unreachable(self) -> int:
        """Number of rows of the last `compute` with a relevant item that was not a candidate, and so a miss."""
        return self._last_result.num_unreachable

    @property
    def num_tied(self) -> int:
        """Number of rows of the last `compute` with a relevant item in a tie that begins within the ranks read.

        Ranks are read up to the largest `k` of all metrics that rank together; by RPrecision up to the row's R.
        """
        return self._last_result.num_tied

    def standard_error(self) -> Tensor:
        """Return the standard error of the mean that the last `compute` gave, scalar; NaN for fewer than two rows."""
        return torch.tensor(self._last_result.standard_error, dtype=float_dtype(self.device), device=self.device)  # type: ignore[attr-defined]

    def confidence_interval(self, level: float = 0.95, method: IntervalMethod = "score") -> tuple[float, float]:
        """Return a confidence interval for the true mean, (low, high), from the last `compute`.

        Args:
            level: confidence level, between 0 and 1: the share of samples whose interval holds the true mean.
            method: "score": Wilson's, for the number of rows that the standard error implies; it stays within the
                metric's bounds. "student": mean ± t standard errors. If a bound is unknown, or rows can exceed the
                bounds, it is always Student's interval, clipped at a known bound.

        Returns:
            Lower and upper end; nan for fewer than two rows. Rows are assumed to be independent: if a user has several
            rows, keep the rows with clusters and use `Rows.confidence_interval`.

        Raises:
            ValueError: for a level that is not between 0 and 1, and for an unknown method.

        Examples:
            >>> import torch
            >>> from torchrecmetrics import HitRate
            >>> metric = HitRate(1)
            >>> metric.update(torch.tensor([1] * 30 + [2] * 70), depth=10)
            >>> metric.compute()
            tensor(0.3000, dtype=torch.float64)
            >>> [round(end, 3) for end in metric.confidence_interval()]
            [0.218, 0.398]
        """
        return self._last_result.interval(level, method)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot the value of `compute`, or the given values, as torchmetrics' metrics do; return figure and axes."""
        return self._plot(val, ax)  # type: ignore[attr-defined]
