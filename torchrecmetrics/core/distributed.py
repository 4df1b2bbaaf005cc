"""Helpers for several processes: sum tensors, gather objects, compare arguments, raise one process's error on all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, distributed
from torchmetrics.utilities.distributed import gather_all_tensors

Value = TypeVar("Value")


def is_distributed() -> bool:
    """Return True if this process is one of several that can communicate."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def gathered(value: Value, process_group: Any = None) -> list[Value]:
    """Return the `value` of each process, in the order of ranks."""
    values: list[Value] = [value] * distributed.get_world_size(process_group)
    distributed.all_gather_object(values, value, group=process_group)
    return values


def sum_and_compare(counts: Tensor, number: int, gather: Any, process_group: Any) -> tuple[Tensor, bool]:
    """Return int64 counts [n] summed over the processes, and whether the `number` of all processes is the same.

    Costs one all-reduce, or one call of the `dist_sync_fn` that the user gave as `gather`.
    """
    if gather in (None, gather_all_tensors):
        numbers = counts.new_zeros(distributed.get_world_size(process_group))
        numbers[distributed.get_rank(process_group)] = number
        packed = torch.cat([counts, numbers])
        distributed.all_reduce(packed, group=process_group)
        counts, numbers = packed[: len(counts)], packed[len(counts) :]
    else:
        packed = torch.cat([counts, counts.new_tensor([number])])
        of_processes = torch.stack(list(gather(packed, group=process_group)))
        counts, numbers = of_processes[:, :-1].sum(0), of_processes[:, -1]
    return counts, bool((numbers == number).all())


def sum_over_processes(tensors: Sequence[Tensor], gather: Any, process_group: Any) -> list[Tensor]:
    """Sum tensors over the processes: one all-reduce per dtype, or the `dist_sync_fn` that the user gave."""
    totals = list(tensors)
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        places = [place for place, tensor in enumerate(tensors) if tensor.dtype == dtype]
        packed = torch.cat([tensors[place].flatten() for place in places])
        if gather in (None, gather_all_tensors):
            distributed.all_reduce(packed, group=process_group)
        else:
            packed = torch.stack(list(gather(packed, group=process_group))).sum(0)
        sizes = [tensors[place].numel() for place in places]
        for place, total in zip(places, torch.split(packed, sizes), strict=True):
            totals[place] = total.view(tensors[place].shape)
    return totals


@contextmanager
def agreement(
    facts: dict[str, Any] | None = None,
    process_group: Any = None,
    *,
    device: torch.device | None = None,
    applies: bool = True,
    may_differ: str = "",
) -> Iterator[None]:
    """Raise on all processes if one raises inside the block, or if the `facts` that the block fills in differ.

    Blocks may be nested: if a process fails before its inner block, its outer block communicates with the inner blocks
    of the other processes. If one is out of memory, all raise `OutOfMemoryError`.

    Args:
        facts: properties by name; None = only errors are shared, and without any, the block costs one all-reduce.
        process_group: the processes that agree; None = all.
        device: device of that all-reduce, which blocks without facts need.
        applies: False = the block runs as it is.
        may_differ: a fact that may differ; it becomes the list of all processes' values.
    """
    is_alone = (
        not is_distributed() if facts is None else not (distributed.is_available() and distributed.is_initialized())
    )
    if is_alone or not applies:
        yield
        return
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        if hasattr(raised, "known_to_all_ranks"):
            raise
        error = _known_to_all(raised)
    if facts is None:
        failed = torch.tensor(int(error is not None), device=device)
        distributed.all_reduce(failed, group=process_group)
        if not failed:
            return
    reports = gathered((None if error is None else f"{type(error).__name__}: {error}", facts or {}), process_group)
    if error is not None:
        raise error
    for process, (text, _) in enumerate(reports):
        if text is not None:
            kind = torch.cuda.OutOfMemoryError if text.startswith("OutOfMemoryError") else RuntimeError
            raise _known_to_all(kind(f"process {process} failed with {text}"))
    for name in facts or {}:
        values = [report[name] for _, report in reports]
        if name == may_differ and facts is not None:
            facts[may_differ] = values
        elif any(value != values[0] for value in values):
            raise _known_to_all(ValueError(f"processes differ in {name}: {values}, in order of rank"))


def _known_to_all(error: Exception) -> Exception:
    """Mark an error as raised on all processes, so that an outer block raises it unchanged."""
    error.known_to_all_ranks = True  # type: ignore[attr-defined]
    return error


class Fingerprint(NamedTuple):
    """Shape and checksum of a tensor; different numbers rarely have the same checksum."""

    shape: list[int]
    checksum: int

    def __repr__(self) -> str:
        return f"{self.shape} of checksum {self.checksum}"


def fingerprint(numbers: Tensor | None) -> Fingerprint | None:
    """Return shape and checksum of `numbers`, by which processes compare them; None for None. Waits for the device."""
    return None if numbers is None else Fingerprint(list(numbers.shape), int(checksum(numbers)))


def checksum(numbers: Tensor) -> Tensor:
    """Return a checksum of numbers [n] or [n, m], int64 scalar."""
    if numbers.is_floating_point():  # integer sums are the same on all devices
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[numbers.element_size()]
        numbers = numbers.contiguous().view(bits)
    if numbers.dim() == 2:  # sums need little memory, while weights for a whole matrix of embeddings would not fit
        numbers = torch.cat([numbers.sum(0), numbers.sum(1)])
    weights = torch.arange(1, len(numbers) + 1, device=numbers.device)
    return ((numbers.long() + 2) * weights).sum()
