"""`Jagged` and `Spans`: rows of uneven length as values and offsets; `prefix_history`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import can_sync
from torchrecmetrics.core.checks import (
    Checks,
    check_device,
    check_ids,
    check_k,
    check_strided,
    check_tensor,
    describe,
    in_words,
)


class Jagged(NamedTuple):
    """Rows of uneven length, as TorchRec's `JaggedTensor` and PyTorch's jagged nested tensors hold them.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> # rows [2, 0] and [1]
        >>> target = trm.Jagged(torch.tensor([2, 0, 1]), torch.tensor([0, 2, 3]))
        >>> scores = torch.tensor([[0.1, 0.9, 0.5], [0.4, 0.3, 0.2]])
        >>> trm.Scores(scores, target).ranking().ranks
        tensor([[2., 3.],
                [2., inf]], dtype=torch.float64)
    """

    values: Tensor
    """[E], the rows one after the other."""
    offsets: Tensor
    """Int64 or int32 [B + 1], from 0 to E, never descending: row b is `values[offsets[b] : offsets[b + 1]]`."""
    max_length: int | None = None
    """Upper bound on the entries of a row, which saves a host sync; None = look up the longest row."""

    @classmethod
    def from_pairs(cls, rows: Tensor, values: Tensor, num_rows: int) -> Jagged:
        """Return the values of each row from pairs in any order; values of a row keep their order.

        Args:
            rows: row of each value, integers [E], 0 to num_rows - 1.
            values: item ids, or their gains, [E].
            num_rows: number of rows, B.

        Raises:
            ValueError: for shapes that differ and, on the CPU, for other rows; elsewhere `offsets` become invalid.

        Examples:
            >>> import torch
            >>> import torchrecmetrics as trm
            >>> rows, items = torch.tensor([1, 0, 1]), torch.tensor([7, 3, 5])
            >>> trm.Jagged.from_pairs(rows, items, num_rows=2)[:2]
            (tensor([3, 7, 5]), tensor([0, 1, 3]))
        """
        check_ids("rows", rows)
        check_tensor("values", values)
        if rows.dim() != 1 or values.shape != rows.shape:
            raise ValueError(f"rows and values must both be [E], got {list(rows.shape)} and {list(values.shape)}")
        ascending, order = rows.long().sort(stable=True)
        num_rows = check_k(num_rows, "num_rows", 0)
        if can_sync(rows) and len(rows) and not 0 <= int(ascending[0]) <= int(ascending[-1]) < num_rows:
            raise ValueError(f"rows hold {int(ascending[0])}..{int(ascending[-1])}, expected 0..{num_rows - 1}")
        ends = torch.arange(num_rows + 1, device=rows.device)
        return cls(values[order], torch.searchsorted(ascending, ends))


Pair: TypeAlias = tuple[Tensor, Tensor]
"""`(values, offsets)` of a `Jagged`, as a plain tuple."""


@dataclass(eq=False)
class Spans:
    """Rows that are slices of one array and may overlap: result of `prefix_history`, accepted by `exclude=`.

    `len(spans)` is the number of rows; `spans[rows]` (a slice, row numbers, or bool [B]) selects rows.
    """

    values: Tensor
    """Array of which the rows are slices, [E]."""
    start: Tensor
    """Start of each row, int64 [B]: row b is `values[start[b] : stop[b]]`."""
    stop: Tensor
    """End of each row, int64 [B]."""
    longest: int
    """Upper bound on the entries of a row."""
    broken: Tensor
    """Rows with invalid offsets, bool [B], if these did not raise at once; such rows are empty."""

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, rows: slice | Tensor) -> Spans:
        return Spans(
            values=self.values,
            start=self.start[rows],
            stop=self.stop[rows],
            longest=self.longest,
            broken=self.broken[rows],
        )

    def __repr__(self) -> str:
        return f"Spans({len(self)} rows of up to {self.longest} of {len(self.values)} values, {self.values.device})"

    def padded(self, fill: float) -> Tensor:
        """Return the rows padded to [B, T]: on the CPU T is the longest row, elsewhere `longest` (no host sync)."""
        width = self.longest
        if self.start.device.type == "cpu" and len(self):
            width = min(width, int((self.stop - self.start).max()))
        return side_by_side(self.values, self.start, self.stop, width, fill)

    def hold(self, marked: Tensor) -> Tensor:
        """Return a mask of the rows that hold a marked value, bool [B]; `marked` is a mask of the values, bool [E]."""
        num_marked = torch.nn.functional.pad(marked.cumsum(0), (1, 0))
        return num_marked[self.stop.clamp(0, len(marked))] > num_marked[self.start.clamp(0, len(marked))]


def side_by_side(values: Tensor, start: Tensor, stop: Tensor, width: int, fill: float) -> Tensor:
    """Return slices of an array as rows [B, T], T = max(width, 1), padded with `fill`."""
    at = start[:, None] + torch.arange(max(width, 1), device=values.device)
    if not len(values):
        return values.new_full(at.shape, fill)
    past_end = at >= stop[:, None]
    # clamped in place, and without values[at], which is half as fast
    entries = values.index_select(0, at.clamp_(0, len(values) - 1).flatten())
    return entries.view(at.shape).masked_fill_(past_end, fill)


def as_jagged(name: str, value: Any, padding: str = "-1") -> Jagged | None:
    """Convert a nested tensor, a pair or a `Jagged` to a `Jagged` with int64 offsets; return None for other types.

    Raises:
        TypeError: for nested tensors of the strided layout, and offsets of another dtype.
        ValueError: for shapes and devices that do not fit. `broken_rows` checks the values of offsets.
    """
    if isinstance(value, Tensor):
        if not value.is_nested:
            return None
        if value.layout != torch.jagged:
            raise TypeError(
                f"{name} is a nested tensor of the strided layout: pass torch.nested.to_padded_tensor({name}, "
                f"{padding}), or make it with layout=torch.jagged"
            )
        if value.lengths() is not None:  # type: ignore[attr-defined]
            raise ValueError(f"{name} is a nested tensor with gaps between its rows: pass {name}.contiguous()")
        value = Jagged(value.values(), value.offsets())  # type: ignore[attr-defined]
    elif type(value) is tuple and len(value) == 2 and all(isinstance(entry, Tensor) for entry in value):
        value = Jagged(*value)
    elif not isinstance(value, Jagged):
        return None
    values, offsets, max_length = value
    for field, tensor in (("values", values), ("offsets", offsets)):
        check_tensor(f"{field} of a jagged {name}", tensor)
        check_strided(f"{field} of a jagged {name}", tensor)
    if values.dim() != 1:
        raise ValueError(f"values of a jagged {name} must be [E], one number per entry, got {list(values.shape)}")
    if offsets.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"offsets of a jagged {name} must be int64 or int32, got {describe(offsets)}")
    if offsets.dim() != 1 or not len(offsets):
        raise ValueError(f"offsets of a jagged {name} must be [rows + 1], got {list(offsets.shape)}")
    if offsets.device != values.device:
        raise ValueError(f"offsets of a jagged {name} are on {offsets.device}, its values on {values.device}")
    if len(offsets) == 1 and len(values):
        raise ValueError(f"offsets of a jagged {name} hold no row, but its values hold {len(values)} entries")
    return Jagged(values, offsets.long(), None if max_length is None else check_k(max_length, "max_length", 0))


def broken_rows(name: str, jagged: Jagged, checks: Checks) -> Tensor:
    """Reject the rows with invalid offsets, and return a mask of these rows, bool [B].

    Valid offsets start at 0, never descend and end at E, and no row is longer than `max_length`.
    """
    values, offsets, max_length = jagged
    start, stop = offsets[:-1], offsets[1:]
    broken = (start < 0) | (stop < start) | (stop > len(values))
    if max_length is not None:
        broken |= stop - start > max_length
    broken[:1] |= start[:1] != 0
    broken[-1:] |= stop[-1:] != len(values)
    if checks.enabled:
        most = "" if max_length is None else f", max_length={max_length}"
        checks.reject(
            "offsets",
            broken,
            lambda row: f"{name}'s row {row} is {int(start[row])} to {int(stop[row])} of {len(values)} values{most}",
        )
    return broken


def as_spans(name: str, jagged: Jagged, checks: Checks, longest: int | None = None) -> Spans:
    """Return the rows of `jagged` as `Spans`; refuse another number of rows or device; reject and empty invalid rows.

    If the longest row is unknown, one host sync looks it up.
    """
    values, offsets, max_length = jagged
    rows = len(offsets) - 1
    if rows != checks.num_rows:
        raise ValueError(
            f"{name} has {in_words(rows)} (offsets [{rows + 1}]), the scores (or lists) have {checks.num_rows}"
        )
    check_device(name, values, checks.device)
    broken = broken_rows(name, jagged, checks)
    start, stop = offsets[:-1], offsets[1:].where(~broken, offsets[:-1])
    if longest is None:
        longest = max_length
    if longest is None:
        longest = int((stop - start).max()) if rows else 0
    return Spans(values=values, start=start, stop=stop, longest=longest, broken=broken)


def prefix_history(values: Any, offsets: Tensor | None = None, *, max_length: int | None = None) -> Spans:
    """Return the earlier items at every position of packed sequences, for `exclude=`: one row per position, unpadded.

    Position j of sequence s is row `offsets[s] + j`, and excludes `values[offsets[s] : offsets[s] + j]`, the items
    before it. The row's target is `values[offsets[s] + j]`, and its scores must be computed from the items before it
    only.

    Args:
        values: item ids [E], the sequences one after the other; or a nested tensor of the jagged layout, or a
            `Jagged`, both with their own offsets. A negative id excludes nothing.
        offsets: int64 or int32 [sequences + 1], from 0 to E, never descending.
        max_length: upper bound on the items of a sequence. None = look it up, with one host sync.

    Returns:
        `Spans` of E rows, which share `values`; they are padded only when their batch is ranked, some rows at a time.
        `spans[rows]` selects positions.

    Raises:
        TypeError: for ids or offsets of another dtype, and nested tensors of the strided layout.
        ValueError: for shapes and devices that do not fit and, on the CPU, for invalid offsets; on other devices
            `update` counts their rows as bad values.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> items = torch.tensor([4, 1, 3, 2, 0])  # 4 1 3, and 2 0
        >>> past = trm.prefix_history(items, offsets=torch.tensor([0, 3, 5]))
        >>> past.padded(-1)
        tensor([[-1, -1],
                [ 4, -1],
                [ 4,  1],
                [-1, -1],
                [ 2, -1]])
        >>> trm.Scores(torch.zeros(5, 6), items, exclude=past).ranking().num_ranked.tolist()
        [6.0, 5.0, 4.0, 6.0, 5.0]
    """
    jagged = as_jagged("history", values if offsets is None else (values, offsets))
    if jagged is None:
        raise TypeError(
            f"values must be ids [E] with offsets, a jagged nested tensor or Jagged, got {describe(values)}"
        )
    if max_length is not None:
        jagged = jagged._replace(max_length=check_k(max_length, "max_length", 0))
    values, offsets, _ = jagged
    check_ids("history", values)
    checks = Checks(True, values.device, len(offsets) - 1)
    sequences = as_spans("history", jagged, checks)
    checks.finish()
    position = torch.arange(len(values), device=values.device)
    # clamped for invalid offsets, whose rows are broken anyway
    sequence = (torch.searchsorted(offsets, position, right=True) - 1).clamp(0, max(len(sequences) - 1, 0))
    start, broken = sequences.start[sequence], sequences.broken[sequence]
    stop = position.where(~broken, start)
    return Spans(values=values, start=start, stop=stop, longest=max(sequences.longest - 1, 0), broken=broken)
