"""Arithmetic that PyTorch lacks: matrices in pieces, searches and sums along rows, what a device can hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, ParamSpec

import torch
from torch import Tensor
from torch._guards import detect_fake_mode
from torch.types import Number

P = ParamSpec("P")


def is_traced() -> bool:
    """Whether tensors hold no data now: they are compiled, or fake."""
    return torch.compiler.is_dynamo_compiling() or (
        torch._C._len_torch_dispatch_stack() > 0 and detect_fake_mode() is not None
    )


def may_look(values: Tensor) -> bool:
    """Whether a look at what a tensor holds is free: nothing has to be waited for, and nothing is traced."""
    return values.device.type == "cpu" and not is_traced()


def least_of(values: Tensor) -> Number:
    """Return the smallest of some numbers, NaN if one is; waits for the device."""
    return (values if values.numel() == 1 else values.amin()).item()


def most_of(values: Tensor) -> Number:
    """Return the largest of some numbers, NaN if one is; waits for the device."""
    return (values if values.numel() == 1 else values.amax()).item()


def extremes(values: Tensor) -> tuple[Number, Number]:
    """Return the smallest and the largest of some numbers; waits for the device."""
    low, high = (values, values) if values.numel() == 1 else values.aminmax()
    return low.item(), high.item()


def array(values: Tensor) -> Any:
    """Return numpy's view of a tensor on the CPU."""
    return (values.detach() if values.requires_grad else values).numpy()


def constant(make: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Keep what a function makes of numbers, a dtype and a device, its last argument; nobody may write into it."""
    made: dict[Any, Tensor] = {}

    @wraps(make)
    def kept(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        device, stream = args[-1], 0
        if is_traced():
            return make(*args, **kwargs)
        if isinstance(device, torch.device) and device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():  # the graph would own its memory
                return make(*args, **kwargs)
            stream = torch.cuda.current_stream(device).cuda_stream
        key = (*args, stream)
        if (found := made.get(key)) is None:
            with torch.inference_mode(False):
                found = make(*args, **kwargs)
            if len(made) >= 256:
                made.clear()
            made[key] = found
        return found

    return kept


@constant
def scalar(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a number as a tensor."""
    return torch.full((), value, dtype=dtype, device=device)


@constant
def counting(length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return 1, 2, 3, ..."""
    return torch.arange(1, length + 1, dtype=dtype, device=device)


@constant
def indices(length: int, device: torch.device) -> Tensor:
    """Return 0, 1, 2, ..., int64."""
    return torch.arange(length, device=device)


@constant
def all_true(rows: int, width: int, device: torch.device) -> Tensor:
    """Return [B, n] bool, all of them one number in memory."""
    return torch.ones((), dtype=torch.bool, device=device).expand(rows, width)


# Numbers up to which PyTorch compares as fast as numpy, or sorts them as fast together with their places.
_FEW = 2**14


def compare(how: Callable[[Any, Any], Any], values: Tensor, others: Tensor | float) -> Tensor:
    """Compare by `operator.eq` or one of its kind, with a number or values of the same dtype: bool."""
    narrow = values.itemsize < 4 and values.is_floating_point()  # numpy lacks bfloat16
    if values.numel() < _FEW or narrow or not may_look(values):
        return how(values, others)  # type: ignore[no-any-return]
    # PyTorch makes bools one by one on the CPU: numpy takes a fifth of the time
    beside = array(others) if isinstance(others, Tensor) else others
    return torch.from_numpy(how(array(values), beside))


def true_places(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return row and column of what is true in [B, n], row by row; waits for the device."""
    if mask.numel() < _FEW or not may_look(mask):
        row, column = mask.nonzero(as_tuple=True)
        return row, column
    place = torch.from_numpy(mask.numpy().ravel().nonzero()[0])  # PyTorch looks at them one by one
    row = place.div(mask.shape[1], rounding_mode="floor")
    return row, place - row * mask.shape[1]


def keep(values: Tensor, mask: Tensor, otherwise: float) -> Tensor:
    """Keep values where a mask is true; `Tensor.where` fills a tensor with the number each time."""
    return torch.where(mask, values, scalar(otherwise, values.dtype, values.device))


def zero_last_(numbers: Tensor, last: int) -> Tensor:
    """Put `last` where a 0 is, in whole numbers from 0 to `last`, and return them."""
    if not may_look(numbers):
        return keep(numbers, numbers > 0, last)
    # -1 without its sign is the largest number there is; a choice takes four times as long as this
    return numbers.sub_(1).bitwise_and_(torch.iinfo(numbers.dtype).max).clamp_(max=last - 1).add_(1)


def without(values: Tensor, place: int | None) -> Tensor:
    """Leave the entry of a place out of [n]; None, or one behind the last, is none of them."""
    return values if place is None else torch.cat([values[:place], values[place + 1 :]])


def tiles(matrix: Tensor, wide: int) -> Iterator[tuple[tuple[slice, slice], Tensor]]:
    """Cut [B, I] into pieces of at most 2^21 / wide elements (2^24 / wide off the CPU): some rows, or a part of one."""
    budget = max(1, 2 ** (21 if matrix.device.type == "cpu" else 24) // wide)
    rows, items = matrix.shape
    wide_piece = min(items, budget)
    tall_piece = max(1, budget // wide_piece)
    for top in range(0, rows, tall_piece):
        for left in range(0, items, wide_piece):
            here = slice(top, top + tall_piece), slice(left, left + wide_piece)
            yield here, matrix[here]


def ascending(values: Tensor) -> Tensor:
    """Sort each row, [B, n]; NaN stands last."""
    if values.shape[1] == 1:
        return values
    if values.itemsize >= 4 and may_look(values):
        import numpy as np

        return torch.from_numpy(np.sort(array(values), axis=1))  # up to ten times as fast: rows are short
    return values.sort(dim=1).values


def largest(values: Tensor, number: int) -> Tensor:
    """Return the `number`-th largest of each row, [B, 1]; there is no NaN."""
    if len(values) <= 16 or not may_look(values):
        return values.topk(number, dim=1).values[:, -1:]
    return ascending(values)[:, -number, None]  # a third of the time


# Threads up to which numpy, which has one, selects sooner than all of PyTorch's (two threads: .3 to .7 of the time).
_THREADS = 4


def take_top_(values: Tensor, number: int) -> Tensor:
    """Return the `number` largest of each row, ascending, [B, number]; there is no NaN. Spoils the values."""
    beyond = values.shape[1] - number
    if values.itemsize < 4 or not may_look(values) or torch.get_num_threads() > _THREADS:
        return values.topk(number, dim=1).values.flip(1)
    held = array(values)
    if beyond:
        held.partition(beyond, axis=1)
    return ascending(values[:, beyond:])


def ascends(values: Tensor, last: float) -> bool:
    """Whether a look at many whole numbers shows that rows [B, n] ascend, none twice, up to those from `last` on."""
    if values.numel() < _FEW or not may_look(values):
        return False
    line = values.numpy().ravel()
    fits = line[1:] > line[:-1]
    fits |= line[1:] >= last
    fits[values.shape[1] - 1 :: values.shape[1]] = True  # the first of a row follows no other
    return bool(fits.all())


def in_turn(values: Tensor) -> tuple[Tensor, Tensor]:
    """Sort each row of whole numbers from 0 to 2^40, [B, n]; also return where they stood; equal ones in any order."""
    rows, width = values.shape
    bits = (width - 1).bit_length() if width else 0
    if bits > 22 or rows * width < _FEW or not may_look(values):
        return values.sort(dim=1)
    keys = ascending((values << bits) + indices(width, values.device))
    return keys >> bits, keys & ((1 << bits) - 1)


def runs(matrix: Tensor, row: Tensor, start: Tensor, size: int, out: Tensor | None = None) -> Tensor:
    """Take `size` numbers that follow each other from [B, n] in any layout, [P, size]; `out` is where they may be put.

    Four times as fast as rows and columns.
    """
    (rows, columns), (down, along) = matrix.shape, matrix.stride()
    every = matrix.as_strided(((rows - 1) * down + (columns - size) * along + 1, size), (1, along))
    return torch.index_select(every, 0, row * down + (start if along == 1 else start * along), out=out)


def in_order(ids: Tensor, sizes: Tensor) -> Tensor:
    """Return ids [n] in ascending order of their sizes, int64 [n] from 0, equal ones as they stand; on the host."""
    low, high = map(int, sizes.aminmax()) if len(sizes) else (0, 0)
    if low == high:
        return ids
    if high >= 2**16:
        return ids.index_select(0, sizes.argsort(stable=True))
    import numpy as np

    # numpy counts numbers of 16 bits where it compares longer ones: a quarter of the time
    return ids.index_select(0, torch.from_numpy(sizes.numpy().astype(np.uint16).argsort(kind="stable")))


def search(ascending: Tensor, values: Tensor, right: bool = False) -> Tensor:
    """Where each value would be inserted into its sorted row; `searchsorted` warns of layouts it has to copy."""
    return torch.searchsorted(ascending.contiguous(), values.contiguous(), right=right)


# Ids up to which comparing each takes a fraction of searching.
_BESIDE = 8


def among(items: Tensor, ascending: Tensor) -> Tensor:
    """Which items of rows [B, n] are among ids of their row, ascending, bool [B, n]; anything for negative ones."""
    if not ascending.shape[1]:
        return torch.zeros_like(items, dtype=torch.bool)
    if ascending.shape[1] == 1:
        return items == ascending
    if ascending.shape[1] <= _BESIDE and items.device.type == "cpu":
        found = items == ascending[:, :1]
        for column in ascending[:, 1:].unbind(1):
            found |= items == column[:, None]
        return found
    nearest = search(ascending, items).clamp(max=ascending.shape[1] - 1)
    return ascending.gather(1, nearest) == items


def met_once(items: Tensor, ids: Tensor) -> Tensor | None:
    """Which items of rows [B, n] are among ids of their row [B, T], bool [B, n]; anything for negative ones.

    None unless one sort of both, on the host, shows that no row holds an item or an id twice.
    """
    if ids.shape[1] <= _BESIDE or items.numel() < _FEW or not may_look(items):
        return None
    import numpy as np

    rows, width = items.shape
    columns = 1 << (width - 1).bit_length()
    most = 2**30 // columns  # whole numbers of 32 bits: an id, and behind it 0, or 1 and the column it has in `items`
    if not all(-most <= low <= high < most for low, high in (map(int, part.aminmax()) for part in (items, ids))):
        return None
    keys = np.empty((rows, width + ids.shape[1]), np.int32)
    np.multiply(items.numpy(), 2 * columns, out=keys[:, :width], dtype=np.int32, casting="unsafe")
    keys[:, :width] += np.arange(columns, columns + width, dtype=np.int32)
    np.multiply(ids.numpy(), 2 * columns, out=keys[:, width:], dtype=np.int32, casting="unsafe")
    keys.sort(axis=1)
    line = keys.ravel()
    apart = (line[1:] ^ line[:-1]).view(np.uint32)  # 0: an id twice; below `columns`: an item twice
    if ((apart == 0) & (line[1:] >= 0)).any():
        return None
    met = np.flatnonzero(apart - 1 < 2 * columns - 1)
    if (apart[met] < columns).any():
        return None
    met += 1
    met = met[met % keys.shape[1] != 0]  # not the last of a row and the first of the next
    found = np.zeros(rows * width, bool)
    found[met // keys.shape[1] * width + (line[met] & (columns - 1))] = True
    return torch.from_numpy(found).view(rows, width)


def running_sums(values: Tensor) -> Tensor:
    """`cumsum` along rows, which on CUDA refuses floats where algorithms must be deterministic."""
    deterministic = values.is_cuda and torch.are_deterministic_algorithms_enabled()
    return doubling_sums(values) if deterministic else values.cumsum(1)


def doubling_sums(values: Tensor) -> Tensor:
    """`cumsum` along rows by log2(T) additions."""
    step = 1
    while step < values.shape[1]:
        values = values + torch.nn.functional.pad(values[:, :-step], (step, 0))
        step *= 2
    return values


def count_above(ascending: Tensor, thresholds: Tensor) -> Tensor:
    """How many of a sorted row are > each threshold, [B, W]."""
    return ascending.shape[1] - search(ascending, thresholds, right=True)


def count_at_least(ascending: Tensor, thresholds: Tensor) -> Tensor:
    """How many of a sorted row are >= each threshold, [B, W]."""
    return ascending.shape[1] - search(ascending, thresholds)


def group_mean(values: Tensor, group: Tensor) -> Tensor:
    """Replace each value of a row by the mean of its group; `group` is the slot at which that begins."""
    total = torch.zeros_like(values).scatter_add(1, group, values)
    count = torch.zeros_like(values).scatter_add(1, group, torch.ones_like(values))
    return (total / count).gather(1, group)


def run_starts(values: Tensor) -> Tensor:
    """For each entry the index at which its run of equal values begins, int64 [E]."""
    begins = torch.ones_like(values, dtype=torch.bool)
    begins[1:] = values[1:] != values[:-1]
    return torch.arange(len(values), device=values.device).where(begins, 0).cummax(0).values


def slices(values: Tensor, shares: Sequence[float]) -> Tensor:
    """Return which slice of the sum each entry of [n] is in, the largest first, int64 [n].

    0 = the fewest that hold the first share, 1 = those that make it the second, ...; of equal ones those in front come
    first.
    """
    values = values.to(float_dtype(values.device))
    total = values.sum()
    ordered, places = values.sort(descending=True, stable=True)
    before = running_sums(ordered[None])[0] - ordered
    number = torch.zeros_like(places)
    for share in shares:
        # less what rounding may have added: 0.07 * 100 is 7.000000000000001
        number += before >= share * (1 - 2**-50) * total
    return torch.empty_like(number).scatter(0, places, number)


def float_dtype(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on devices that have none."""
    return torch.float32 if device.type == "mps" else torch.float64
