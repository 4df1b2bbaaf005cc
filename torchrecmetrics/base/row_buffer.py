"""`KeptRows`: a buffer of per-row columns, batch by batch, that is gathered over the processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.checks import ID_DTYPES, describe

BUDGET = 2**28
"""Bytes of kept rows that may stay on a device other than the CPU; beyond this limit they move to the CPU."""


class RowKeys(NamedTuple):
    """Ids, clusters and weights of the rows of a batch."""

    ids: Tensor | None  # int64 [B]
    clusters: Tensor | None  # int64 [B]
    weights: Tensor | None  # numbers [B]

    @classmethod
    def read(cls, ids: Any, clusters: Any, weights: Tensor | None, rows: int) -> RowKeys:
        """Return the checked ids and clusters of a batch of `rows` rows, with its weights.

        Raises:
            TypeError: for anything but a tensor of whole numbers.
            ValueError: for another shape.
        """

        def read(name: str, keys: Any) -> Tensor | None:
            return None if keys is None else check_keys(name, keys, rows)

        return cls(read("row_ids", ids), read("clusters", clusters), weights)


def check_keys(name: str, keys: Any, rows: int) -> Tensor:
    """Return a copy of the keys of rows as int64 [rows], or raise."""
    if not isinstance(keys, Tensor) or keys.dtype not in ID_DTYPES:
        cure = "; number words with a Vocabulary" if isinstance(keys, (list, tuple)) else ""
        raise TypeError(f"{name} must be an integer tensor, got {describe(keys)}{cure}")
    if keys.shape != (rows,):
        raise ValueError(f"{name} must be [{rows}], one a row, got {list(keys.shape)}")
    return keys.to(torch.int64, copy=True)  # a loader may reuse the memory of its tensor


class KeptRows:
    """Buffer of per-row columns, added batch by batch on their device and gathered over the processes at the end.

    Args:
        required: name and height of the columns that every batch has, [height, B].
        optional: name and height of the columns that all batches have, or no batch, [height, B].
    """

    def __init__(self, required: Mapping[str, int], optional: Mapping[str, int]) -> None:
        self._heights = {**required, **optional}
        self._optional = tuple(optional)
        self._batches: list[dict[str, Tensor]] = []
        self._bytes = 0
        self.budget: int = BUDGET

    def __len__(self) -> int:
        """Return the number of rows that are kept on this process."""
        return sum(map(_rows_of, self._batches))

    def check(self, columns: Mapping[str, Tensor | None]) -> None:
        """Raise if a batch has an optional column that earlier batches do not have, or lacks one that they have."""
        here = {name for name in self._optional if columns.get(name) is not None}
        if (
            self._batches
            and _rows_of(columns)
            and (odd := here.symmetric_difference(set(self._optional) & self._batches[0].keys()))
        ):
            raise ValueError(f"rows are kept with {', '.join(sorted(odd))} in all batches, or in none")

    def add(self, columns: Mapping[str, Tensor | None]) -> None:
        """Keep a batch that has passed `check`, without a copy; beyond `budget`, move all batches to the CPU."""
        if not _rows_of(columns):
            return
        batch = {name: column for name, column in columns.items() if column is not None}
        self._batches.append(batch)
        self._bytes += sum(column.nbytes for column in batch.values() if column.device.type != "cpu")
        if self._bytes > self.budget:
            self._batches = [{name: column.cpu() for name, column in batch.items()} for batch in self._batches]
            self._bytes = 0

    def check_all(self, other: KeptRows) -> None:
        """Raise if `check` refuses a batch of another buffer."""
        for batch in other._batches:
            self.check(batch)

    def extend(self, other: KeptRows) -> None:
        """Add the kept rows of another buffer."""
        self.check_all(other)
        self._batches += other._batches
        self._bytes += other._bytes

    def empty(self) -> KeptRows:
        """Return a buffer of the same columns, without rows."""
        heights = self._heights.items()
        required = {name: height for name, height in heights if name not in self._optional}
        return KeptRows(required, {name: height for name, height in heights if name in self._optional})

    def clear(self) -> None:
        """Forget all rows."""
        self._batches, self._bytes = [], 0

    def here(self, device: torch.device) -> dict[str, Tensor]:
        """Return the columns of this process by name, [height, n]; without rows only the required columns, empty."""
        if not self._batches:
            required = {name: height for name, height in self._heights.items() if name not in self._optional}
            return {
                name: torch.zeros((height, 0), dtype=torch.float64, device=device) for name, height in required.items()
            }
        return {
            name: torch.cat([batch[name].to(device).expand(self._heights[name], -1) for batch in self._batches], 1)
            for name in self._batches[0]
        }

    def joined(
        self, device: torch.device, gather: Callable[[Tensor], Sequence[Tensor]], note: Tensor | None = None
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Return the columns of all processes, in the order of processes, and the sum of the notes, by two collectives.

        Args:
            device: device on which rows are sent and received.
            gather: function that returns the tensors of all processes, in order; their shape must be the same.
            note: whole numbers that are summed over the processes, int64 [n].

        Raises:
            ValueError: on all processes, if a column, or its dtype, is not the same on all processes with rows.
        """
        mine = self.here(device)
        dtypes = (torch.float64, torch.float32, torch.int64, torch.bool)
        names = [*self._heights]
        kinds = [1 + dtypes.index(mine[name].dtype) if name in mine and len(self) else 0 for name in names]
        message = torch.tensor([len(self), *kinds], device=device)
        told = torch.stack(list(gather(message if note is None else torch.cat([message, note]))))
        shares = told[:, : len(message)].tolist()
        summed = None if note is None else told[:, len(message) :].sum(0)
        sent = {}
        for place, name in enumerate(names, 1):
            there = {share[place] for share in shares if share[0]}
            if len(there) > 1:
                raise ValueError(f"rows are kept with {name} on all processes, or on none")
            if there - {0}:
                sent[name] = dtypes[there.pop() - 1]
        if not sent:
            return mine, summed
        longest = max(share[0] for share in shares)
        rows = torch.zeros((sum(self._heights[name] for name in sent), longest), dtype=torch.int64, device=device)
        if len(self):
            rows[:, : len(self)] = torch.cat([to_bits(mine[name]) for name in sent])
        gathered = [part[:, : share[0]] for part, share in zip(gather(rows), shares, strict=True)]
        parts = torch.split(torch.cat(gathered, 1), [self._heights[name] for name in sent])
        return {name: from_bits(part, dtype) for (name, dtype), part in zip(sent.items(), parts, strict=True)}, summed


def all_gather(tensor: Tensor, group: Any = None) -> list[Tensor]:
    """Return the tensors of all processes of `group`; None = the default group."""
    found = [torch.empty_like(tensor) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(found, tensor.contiguous(), group=group)
    return found


def _rows_of(columns: Mapping[str, Tensor | None]) -> int:
    return next(column.shape[-1] for column in columns.values() if column is not None)


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
