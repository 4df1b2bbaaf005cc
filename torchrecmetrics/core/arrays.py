"""Tensor helpers that PyTorch lacks: tiles of a matrix; sorts, searches and sums per row; cached constants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import Any, ParamSpec

import torch
from torch import Tensor
from torch._guards import detect_fake_mode


def is_traced() -> bool:
    """Return True while tensors hold no data: under torch.compile, or under a fake-tensor mode."""
    return torch.compiler.is_dynamo_compiling() or (
        torch._C._len_torch_dispatch_stack() > 0 and detect_fake_mode() is not None
    )


def can_sync(values: Tensor) -> bool:
    """Return True if `values` can be read without a host sync: on the CPU, and not traced."""
    return values.device.type == "cpu" and not is_traced()


P = ParamSpec("P")


@contextmanager
def ordinary_tensors() -> Iterator[None]:
    """Disable autograd in a context whose new tensors can be modified and saved, even inside `inference_mode`."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def working_dtype(scores: Tensor) -> torch.dtype:
    """Return the dtype in which scores are compared; float32 holds all numbers of half precision."""
    return torch.float64 if scores.dtype == torch.float64 else torch.float32


def working(values: Tensor) -> Tensor:
    """Return values in the dtype in which they are compared."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def cached_constant(make: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Cache the tensors that a function makes from hashable arguments; callers must not modify them.

    Tensors without data are not cached, since they would be useless later.
    """
    cached = lru_cache(32)(make)

    @wraps(make)
    def constant(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        if is_traced():
            return make(*args, **kwargs)
        return cached(*args, **kwargs)  # type: ignore[arg-type]  # hashable by contract

    return constant


def array(values: Tensor) -> Any:
    """Return a CPU tensor as a numpy array that shares its memory."""
    return values.detach().numpy()


def as_tensor(value: Any) -> Any:
    """Convert a numeric NumPy array, or those in a tuple, to CPU tensors; return other values unchanged.

    Masked arrays are other values.
    """
    import numpy as np

    if type(value) is tuple:
        return tuple(map(as_tensor, value))
    is_array = isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray)
    if not is_array or value.dtype.kind not in "biuf" or value.dtype.itemsize > 8:
        return value
    value = value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))
    return torch.from_numpy(np.require(value, requirements=["C", "W"]))  # frames and files may be read-only


def without(values: Tensor, index: int | None) -> Tensor:
    """Return [n] without the entry at `index`; None, or an index past the end, removes nothing."""
    return values if index is None else torch.cat([values[:index], values[index + 1 :]])


TILE_NUMBERS_CPU, TILE_NUMBERS = 2**21, 2**24
"""Default of `most` in `tiles`: on the CPU, and on other devices."""


def tiles(matrix: Tensor, wide: int, most: int | None = None) -> Iterator[tuple[tuple[slice, slice], Tensor]]:
    """Yield the slices and values of each tile of a matrix [B, I]; a tile has at most `most` / `wide` elements.

    `most` is by default 2^21 on the CPU, and 2^24 on other devices.
    """
    most = most or (TILE_NUMBERS_CPU if matrix.device.type == "cpu" else TILE_NUMBERS)
    budget = max(1, most // wide)
    rows, items = matrix.shape
    wide_piece = min(items, budget)
    tall_piece = max(1, budget // wide_piece)
    for top in range(0, rows, tall_piece):
        for left in range(0, items, wide_piece):
            tile_slices = slice(top, top + tall_piece), slice(left, left + wide_piece)
            yield tile_slices, matrix[tile_slices]


def sort_rows(values: Tensor) -> Tensor:
    """Return [B, n] with each row in ascending order, NaN last."""
    if values.shape[1] == 1:
        return values
    if values.itemsize >= 4 and can_sync(values):
        import numpy as np

        return torch.from_numpy(np.sort(array(values), axis=1))  # up to ten times faster on short rows
    return values.sort(dim=1).values


def search(ascending: Tensor, values: Tensor, right: bool = False) -> Tensor:
    """Return the insertion index of each value in its ascending row, int64; contiguous copies avoid a warning."""
    return torch.searchsorted(ascending.contiguous(), values.contiguous(), right=right)


def rowwise_isin(items: Tensor, ids: Tensor) -> Tensor:
    """Return which of `items` [B, n] are among the ascending `ids` [B, T] of the same row, bool [B, n]."""
    if not ids.shape[1]:
        return torch.zeros_like(items, dtype=torch.bool)
    if ids.shape[1] == 1:
        return items == ids
    nearest = search(ids, items).clamp(max=ids.shape[1] - 1)
    return ids.gather(1, nearest) == items


def find_first(entries: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the column where each number [B, T] first occurs in its row of `entries` [B, K], and whether it occurs."""
    ascending, slot = entries.sort(dim=1, stable=True)
    nearest = search(ascending, numbers).clamp(max=entries.shape[1] - 1)
    return slot.gather(1, nearest), ascending.gather(1, nearest) == numbers


def running_sums(values: Tensor) -> Tensor:
    """Return `values.cumsum(1)` of [B, T], by `doubling_sums` if a deterministic `cumsum` would raise on CUDA."""
    deterministic = values.is_cuda and torch.are_deterministic_algorithms_enabled()
    return doubling_sums(values) if deterministic else values.cumsum(1)


def doubling_sums(values: Tensor) -> Tensor:
    """Return `values.cumsum(1)` of [B, T], by log2(T) additions of shifted rows."""
    step = 1
    while step < values.shape[1]:
        values = values + torch.nn.functional.pad(values[:, :-step], (step, 0))
        step *= 2
    return values


def count_above(ascending: Tensor, thresholds: Tensor) -> Tensor:
    """Return how many entries of each ascending row are > each threshold of the row, int64 [B, W]."""
    return ascending.shape[1] - search(ascending, thresholds, right=True)


def count_at_least(ascending: Tensor, thresholds: Tensor) -> Tensor:
    """Return how many entries of each ascending row are >= each threshold of the row, int64 [B, W]."""
    return ascending.shape[1] - search(ascending, thresholds)


def group_mean(values: Tensor, tie_group: Tensor) -> Tensor:
    """Replace each value of [B, T] by its group's mean; `tie_group` is the column of the group's first value."""
    total = torch.zeros_like(values).scatter_add(1, tie_group, values)
    count = torch.zeros_like(values).scatter_add(1, tie_group, torch.ones_like(values))
    return (total / count).gather(1, tie_group)


def run_starts(values: Tensor) -> Tensor:
    """Return, for each entry of [E], the index of the first entry in its run of equal values, int64 [E]."""
    begins = torch.ones_like(values, dtype=torch.bool)
    begins[1:] = values[1:] != values[:-1]
    return torch.arange(len(values), device=values.device).where(begins, 0).cummax(0).values


def slices(values: Tensor, shares: Sequence[float]) -> Tensor:
    """Return the slice of the total that each entry of [n] falls into, taking the largest entries first, int64 [n].

    Slice 0 is the fewest entries whose sum reaches the first share of the total, slice 1 the next entries up to the
    second share, and so on; equal entries are taken in their order.
    """
    values = values.to(float_dtype(values.device))
    total = values.sum()
    ordered, places = values.sort(descending=True, stable=True)
    earlier_total = running_sums(ordered[None])[0] - ordered
    number = torch.zeros_like(places)
    for share in shares:
        # tolerates rounding: 0.07 * 100 is 7.000000000000001
        number += earlier_total >= share * (1 - 2**-50) * total
    return torch.empty_like(number).scatter(0, places, number)


def float_dtype(device: torch.device) -> torch.dtype:
    """Return float64, or float32 for devices without float64 (MPS)."""
    return torch.float32 if device.type == "mps" else torch.float64
