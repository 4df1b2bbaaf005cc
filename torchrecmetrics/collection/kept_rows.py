"""`KeptRows`: the value of every row for each metric, kept by id and gathered over the processes when read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchrecmetrics.core.checks import ID_DTYPES, Checks, describe
from torchrecmetrics.core.distributed import gathered
from torchrecmetrics.core.result import Layout, RowValues
from torchrecmetrics.metrics.accumulator import Accumulator, State

BUDGET = 2**28
"""Bytes of kept rows that may stay on a device other than the CPU; beyond this limit they move to the CPU."""


def check_keys(name: str, keys: Any, rows: int) -> Tensor:
    """Return a copy of the keys of rows as int64 [rows], or raise."""
    if not isinstance(keys, Tensor) or keys.dtype not in ID_DTYPES:
        raise TypeError(f"{name} must be an integer tensor, got {describe(keys)}")
    if keys.shape != (rows,):
        raise ValueError(f"{name} must be [{rows}], one per row, got {list(keys.shape)}")
    return keys.to(torch.int64, copy=True)  # a loader may reuse the memory of its tensor


def check_same_columns(buffered: Iterable[str], batch: Iterable[str]) -> None:
    """Raise for columns that only some batches have."""
    if only_some := set(buffered) ^ set(batch):
        raise ValueError(f"pass {', '.join(sorted(only_some))} for all batches, or for none")


def with_batch(
    buffered: Mapping[str, list[Tensor]], batch: Mapping[str, Tensor], device_bytes: int, budget: int
) -> tuple[dict[str, list[Tensor]], int]:
    """Return the columns with a batch added, and their bytes on a device; beyond `budget` all move to the CPU."""
    added = {name: [*buffered.get(name, ()), column] for name, column in batch.items()}
    device_bytes += sum(column.nbytes for column in batch.values() if column.device.type != "cpu")
    if device_bytes <= budget:
        return added, device_bytes
    return {name: [column.cpu() for column in columns] for name, columns in added.items()}, 0


def gathered_columns(columns: Mapping[str, Tensor], process_group: Any) -> dict[str, Tensor]:
    """Return the columns [height, n] of all processes, in their order, on the CPU.

    A process without rows may lack columns.

    Raises:
        ValueError: on all processes, if a column, or its dtype, is not the same on all processes with rows.
    """
    shares = gathered(columns, process_group)
    with_rows = [share for share in shares if any(column.shape[1] for column in share.values())]
    for name in {name for share in with_rows for name in share}:
        if len({share[name].dtype if name in share else None for share in with_rows}) > 1:
            raise ValueError(f"pass {name} on all processes, or on none")
    with_rows = with_rows or shares[:1]
    return {name: torch.cat([share[name] for share in with_rows], 1) for name in with_rows[0]}


class KeptRows(Accumulator):
    """Keep the value of every row, for comparisons and for intervals of clustered rows: `RecMetricCollection.rows`.

    `update(..., row_ids=)` takes integers [B], unique over all batches, which pair the rows of two runs; without them
    rows are numbered in order, on one process. Rows stay in the order of updates, those of one process after those of
    another; `evaluate`, `evaluate_lists` and `pyg.evaluate` put theirs in the order of the users.
    `update(..., clusters=)` takes integers [B] that are equal for rows that belong together, such as those of one user.
    Sessions have their own ids. Rows take 9 bytes per metric on the device and, beyond `budget` bytes, on the host.

    Args:
        budget: bytes of rows that may stay on a device other than the CPU.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> collection = trm.RecMetricCollection("HR", k=1, accumulators=[trm.KeptRows()])
        >>> collection.update(torch.tensor([1, 2]), depth=10, row_ids=torch.tensor([7, 5]))
        >>> collection.rows.ids, collection.rows.values["HR@1"]
        (tensor([7, 5]), tensor([1., 0.], dtype=torch.float64))
    """

    columns: tuple[str, ...] = ("row_ids", "clusters")
    keeps_rows: ClassVar[bool] = True
    values: list[Tensor]

    def __init__(self, budget: int = BUDGET) -> None:
        super().__init__()
        self.budget: int = budget
        self._device_bytes = 0

    def begin(self, layout: Layout) -> None:
        """Register a list of batches for each column."""
        super().begin(layout)
        own_weights = ("own_weights",) if layout.num_plain < len(layout.keys) else ()
        self.names: tuple[str, ...] = ("values", "used", "served", "weights", "ids", "clusters", *own_weights)
        for name in self.names:
            self.add_state(name, [], None)

    def check(self, num_rows: int, columns: Mapping[str, Tensor], checks: Checks) -> None:
        """Raise for ids that are not integers and, on the CPU, for ids that a batch repeats."""
        for name, column in columns.items():
            if name in self.columns:
                check_keys(name, column, num_rows)
        ids = columns.get("row_ids")
        if ids is None or not checks.at_once:
            return
        ids, times = torch.unique(ids[columns["weights"] > 0] if "weights" in columns else ids, return_counts=True)
        if bool((times > 1).any()):
            twice = int((times > 1).nonzero()[0])
            raise ValueError(
                f"id {int(ids[twice])} is in {int(times[twice])} rows of a batch, but ids must be unique: pass "
                "clusters= for rows that belong together (the sessions of a user)"
            )

    def _batch(self, rows: RowValues) -> dict[str, Tensor]:
        """Return the columns of a batch, [height, B] each."""
        ids, clusters = rows.columns.get("row_ids"), rows.columns.get("clusters")
        ids = rows.ranking.rows.ids if ids is None else ids
        weights = rows.values.new_ones(1, len(rows)) if rows.weights is None else rows.weights[None]
        if rows.ranking.rows.own is not None:
            weights = weights * rows.ranking.rows.own
        lists, used = rows.ranking.lists, ~rows.undefined
        served = torch.ones_like(used[:1]) if lists is None else (lists.ids >= 0).any(1)[None]
        if lists is not None and lists.wants_list is not None:
            served = served | ~lists.wants_list  # users without ground truth are not missed
        batch: dict[str, Tensor | None] = {"values": rows.values, "used": used, "served": served, "weights": weights}
        batch |= {"own_weights": rows.own_weights}
        batch |= {"ids": None if ids is None else ids.long()[None]}
        batch |= {"clusters": None if clusters is None else clusters.long()[None]}
        # a loader may reuse the memory of its tensors
        return {name: column.clone() for name, column in batch.items() if column is not None}

    def added(self, rows: RowValues) -> State:
        """Return the columns with those of a batch added.

        Raises:
            ValueError: for ids or clusters that only some batches have.
        """
        batch = self._batch(rows)
        if not len(rows):
            return {}
        batches = self._batches()
        if batches:
            check_same_columns(batches, batch)
        added, device_bytes = with_batch(batches, batch, self._device_bytes, self.budget)
        return {**added, "_device_bytes": device_bytes}

    def _check_state(self, state: Mapping[str, Any]) -> None:
        """Raise for columns of other heights or lengths, and for weights that are negative or not finite."""
        super()._check_state(state)
        lengths = set()
        for name in self.names:
            if not all(isinstance(column, Tensor) and column.dim() == 2 for column in state[name]):
                raise ValueError(f"cannot load the state {name}: kept rows are matrices with one row per metric")
            if state[name]:
                lengths.add(tuple(column.shape[1] for column in state[name]))
        if len(lengths) > 1:
            raise ValueError("cannot load kept rows whose columns differ in length")
        if any(bool((~(column >= 0) | column.isinf()).any()) for column in state["weights"]):
            raise ValueError("cannot load kept rows with weights below 0, or not finite")

    def _batches(self) -> dict[str, list[Tensor]]:
        """Return the batches of each column in use, by name."""
        states = dict(vars(self))  # of one moment, if another thread updates
        return {name: states[name] for name in self.names if states[name]}

    def merged(self, other: Any) -> State:
        """Return the rows with those of another accumulator added."""
        columns, other_columns = self._batches(), other._batches()
        if columns and other_columns:
            check_same_columns(columns, other_columns)
        joined: State = {name: [*columns.get(name, ()), *batches] for name, batches in other_columns.items()}
        return {**joined, "_device_bytes": self._device_bytes + other._device_bytes}

    def reset(self) -> None:
        """Forget all rows."""
        super().reset()
        self._device_bytes = 0

    def __len__(self) -> int:
        return sum(batch.shape[1] for batch in self.values)

    def gathered(self) -> dict[str, Tensor]:
        """Return the columns of all processes on the CPU, [height, n] by name.

        Rows of weight 0 are left out. All processes must call it, if `compute` sums over several.

        Raises:
            ValueError: for rows of several processes without ids, or columns that only some processes have.
        """
        columns = {
            name: torch.cat([column.cpu() for column in batches], 1) for name, batches in self._batches().items()
        }
        if not columns:
            none = torch.zeros(len(self.layout.keys), 0, dtype=torch.float64, device="cpu")
            columns = {"values": none, "used": none.bool(), "served": none[:1].bool(), "weights": none[:1]}
        if self.distributed_available_fn() and (self.sync_on_compute or self._is_synced):
            columns = gathered_columns(columns, self.process_group)
            if "ids" not in columns and columns["values"].shape[1]:
                raise ValueError("rows of several processes need unique row_ids: pass them to update")
        columns.setdefault("ids", torch.arange(columns["values"].shape[1], device="cpu")[None])
        counted = columns["weights"][0] > 0  # rows of weight 0, such as a sampler's repeats, are in no mean
        return {name: column[:, counted] for name, column in columns.items()}
