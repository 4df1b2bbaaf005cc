"""Columns that `KeptRows` and `CollectSessions` keep in batches: check, add within a budget, and gather them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from torchrecmetrics.core.checks import ID_DTYPES, describe
from torchrecmetrics.core.distributed import gathered

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


def gathered_columns(
    columns: Mapping[str, Tensor], violations: Tensor, process_group: Any = None
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the columns [height, n] of all processes, in their order, on the CPU, and the sum of their violations.

    A process without rows may lack columns.

    Raises:
        ValueError: on all processes, if a column, or its dtype, is not the same on all processes with rows.
    """
    shares = gathered(({name: column.cpu() for name, column in columns.items()}, violations.cpu()), process_group)
    with_rows = [share for share, _ in shares if any(column.shape[1] for column in share.values())]
    for name in {name for share in with_rows for name in share}:
        if len({share[name].dtype if name in share else None for share in with_rows}) > 1:
            raise ValueError(f"pass {name} on all processes, or on none")
    with_rows = with_rows or [shares[0][0]]
    joined = {name: torch.cat([share[name] for share in with_rows], 1) for name in with_rows[0]}
    return joined, torch.stack([counts for _, counts in shares]).sum(0)
