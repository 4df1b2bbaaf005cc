"""`ByGroup`: the value of each group of rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from torchrecmetrics.core.checks import Checks, check_group_names, check_ids
from torchrecmetrics.core.result import Result, RowValues
from torchrecmetrics.metrics.accumulator import State, Summed


class ByGroup(Summed):
    """The value of each group of rows, in addition to that of all rows, under keys like `NDCG@10/cold`.

    `update(..., groups=)` takes integers [B]: the number of each row's group among the names, -1 = in no group.

    Args:
        names: names of the groups, such as "cold", "warm"; or one list of names.
        column: name of the keyword argument of `update`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> groups = trm.ByGroup("cold", "warm")
        >>> collection = trm.RecMetricCollection("HR", k=1, accumulators=[groups])
        >>> collection.update(torch.tensor([1, 2, 1]), depth=10, groups=torch.tensor([0, 0, 1]))
        >>> collection.result().floats()
        {'HR@1': 0.6666666666666666, 'HR@1/cold': 0.5, 'HR@1/warm': 1.0}
    """

    group_sums: Tensor

    def __init__(self, *names: str | Iterable[str], column: str = "groups") -> None:
        super().__init__()
        if len(names) == 1 and not isinstance(names[0], str):
            names = names[0]  # type: ignore[assignment]
        self.names: tuple[str, ...] = check_group_names(names)
        self.columns = (column,)

    @property
    def option(self) -> str:
        """The class with its options."""
        return f"ByGroup({', '.join(map(repr, self.names))}, column={self.columns[0]!r})"

    @property
    def row_groups(self) -> tuple[str, ...]:
        """The names of the groups."""
        return self.names

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The names of the groups, "/cold"."""
        return tuple(f"/{name}" for name in self.names)

    def empty(self) -> State:
        """Return a matrix of sums for each group."""
        return {"group_sums": self.layout.zeros(len(self.names), device=self._device)}

    def check(self, num_rows: int, columns: Mapping[str, Tensor], checks: Checks) -> None:
        """Raise unless each row has the number of its group."""
        (column,) = self.columns
        codes = columns.get(column)
        if codes is None:
            if not num_rows:
                return
            raise ValueError(
                f"the collection has the groups {', '.join(self.names)}: pass the group of each row, "
                f"update(..., {column}=), integers [B], -1 = none"
            )
        check_ids(column, codes)
        outside = (codes < -1) | (codes >= len(self.names))
        checks.reject("groups", outside, lambda row: f"row {row} has group {int(codes[row])} of {len(self.names)}")

    def _check_state(self, state: Mapping[str, Any]) -> None:
        """Raise for impossible states."""
        super()._check_state(state)
        self.layout.check_sums(state["group_sums"])

    def added_to(self, state: State, rows: RowValues) -> State:
        """Return the sums of each group with those of a batch added."""
        codes = rows.columns.get(self.columns[0])
        if codes is None:  # no rows
            return state
        sums = rows.sums(self.layout, groups=codes.long(), num_groups=len(self.names))
        return {"group_sums": state["group_sums"] + sums}

    def results(self, totals: State) -> dict[str, Result]:
        """Return the result of each metric in each group."""
        results: dict[str, Result] = {}
        for name, group_sums in zip(self.names, totals["group_sums"].unbind(-1), strict=True):
            results |= self.layout.results(group_sums, group=name)
        return results
