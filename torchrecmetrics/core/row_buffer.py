"""Columns of kept rows: check their ids, and gather them over the processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchrecmetrics.core.checks import ID_DTYPES, describe

BUDGET = 2**28
"""Bytes of kept rows that may stay on a device other than the CPU; beyond this limit they move to the CPU."""
DTYPES = (torch.float64, torch.float32, torch.int64, torch.bool)


def check_keys(name: str, keys: Any, rows: int) -> Tensor:
    """Return a copy of the keys of rows as int64 [rows], or raise."""
    if not isinstance(keys, Tensor) or keys.dtype not in ID_DTYPES:
        raise TypeError(f"{name} must be an integer tensor, got {describe(keys)}")
    if keys.shape != (rows,):
        raise ValueError(f"{name} must be [{rows}], one a row, got {list(keys.shape)}")
    return keys.to(torch.int64, copy=True)  # a loader may reuse the memory of its tensor


def check_same_columns(before: Iterable[str], batch: Iterable[str]) -> None:
    """Raise for columns that only some batches have."""
    if only_some := set(before) ^ set(batch):
        raise ValueError(f"rows are kept with {', '.join(sorted(only_some))} in all batches, or in none")


def with_batch(
    kept: Mapping[str, list[Tensor]], batch: Mapping[str, Tensor], device_bytes: int, budget: int
) -> tuple[dict[str, list[Tensor]], int]:
    """Return the columns with a batch added, and their bytes on a device; beyond `budget` all move to the CPU."""
    added = {name: [*kept[name], column] for name, column in batch.items()}
    device_bytes += sum(column.nbytes for column in batch.values() if column.device.type != "cpu")
    if device_bytes <= budget:
        return added, device_bytes
    return {name: [part.cpu() for part in parts] for name, parts in added.items()}, 0


def gathered_columns(
    columns: Mapping[str, Tensor],
    heights: Mapping[str, int],
    device: torch.device,
    gather: Callable[[Tensor], Sequence[Tensor]],
    note: Tensor | None = None,
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Return the columns of all processes, in the order of processes, and the sum of the notes, by two collectives.

    Args:
        columns: columns of this process by name, [height, n]; a column may be missing on all processes with rows.
        heights: height of each column that there can be.
        device: device on which rows are sent and received.
        gather: function that returns the tensors of all processes, in order; their shape must be the same.
        note: whole numbers that are summed over the processes, int64 [n].

    Raises:
        ValueError: on all processes, if a column, or its dtype, is not the same on all processes with rows.
    """
    number = next(iter(columns.values())).shape[1] if columns else 0
    kinds = [1 + DTYPES.index(columns[name].dtype) if name in columns and number else 0 for name in heights]
    message = torch.tensor([number, *kinds], device=device)
    told = torch.stack(list(gather(message if note is None else torch.cat([message, note]))))
    shares = told[:, : len(message)].tolist()
    summed = None if note is None else told[:, len(message) :].sum(0)
    sent = {}
    for place, name in enumerate(heights, 1):
        there = {share[place] for share in shares if share[0]}
        if len(there) > 1:
            raise ValueError(f"rows are kept with {name} on all processes, or on none")
        if there - {0}:
            sent[name] = DTYPES[there.pop() - 1]
    if not sent:
        return dict(columns), summed
    longest = max(share[0] for share in shares)
    rows = torch.zeros((sum(heights[name] for name in sent), longest), dtype=torch.int64, device=device)
    if number:
        rows[:, :number] = torch.cat([to_bits(columns[name].to(device)) for name in sent])
    gathered = [part[:, : share[0]] for part, share in zip(gather(rows), shares, strict=True)]
    parts = torch.split(torch.cat(gathered, 1), [heights[name] for name in sent])
    return {name: from_bits(part, dtype) for (name, dtype), part in zip(sent.items(), parts, strict=True)}, summed


def all_gather(tensor: Tensor, group: Any = None) -> list[Tensor]:
    """Return the tensors of all processes of `group`; None = the default group."""
    found = [torch.empty_like(tensor) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(found, tensor.contiguous(), group=group)
    return found


def to_bits(column: Tensor) -> Tensor:
    """Return a column of any dtype as int64; floats are given by their bits."""
    return (
        column.view(torch.int64)
        if column.dtype == torch.float64
        else (column.view(torch.int32).to(torch.int64) if column.dtype == torch.float32 else column.to(torch.int64))
    )


def from_bits(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the column of the given dtype that `to_bits` wrote as `bits`."""
    if dtype == torch.float64:
        return bits.contiguous().view(dtype)
    return bits.to(torch.int32).view(dtype) if dtype == torch.float32 else bits.to(dtype)
