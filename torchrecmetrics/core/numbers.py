"""Columns of numbers, that is row numbers or values, as tensors, with their checks; needs no Arrow."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import Tensor

from torchrecmetrics.core.checks import ID_DTYPES, plain, warn_caller

SIGNED = (*ID_DTYPES, torch.int8)


def check_container(name: str, value: Any) -> None:
    """Refuse a matrix or a table where a column or edges are expected, and name the function that takes it."""
    matrix = "Interactions.from_scipy takes users x items whole"
    if isinstance(value, Tensor) and value.is_nested:
        what = f"nested tensor: Interactions.from_jagged({name}, num_items=...) takes it"
    elif isinstance(value, Tensor) and value.layout != torch.strided:
        what = f"sparse tensor ({value.layout}): {matrix}; its edges are .to_sparse_coo().coalesce().indices()"
    elif hasattr(value, "tocoo"):
        what = f"scipy {type(value).__name__}: {matrix}"
    elif hasattr(value, "columns") and len(getattr(value, "shape", ())) == 2:
        what = f"{type(value).__name__}: pass its columns, Interactions.from_columns(frame['user'], frame['item'])"
    else:
        return
    raise TypeError(f"{name} is a {what}")


def _array(name: str, column: Any) -> Any:
    """Convert a column to a one-dimensional array of numpy."""
    import numpy as np

    check_container(name, column)
    if isinstance(column, np.ma.MaskedArray):
        column = column.tolist()  # None where masked
    if isinstance(column, Tensor):
        column = column.detach().cpu()
        column = (column.double() if column.is_floating_point() else column).numpy()
    values = np.asarray(column) if hasattr(column, "__len__") else np.empty(())
    if values.ndim != 1:
        shape = f" of shape {list(values.shape)}" if values.ndim else f": pass list({name})"
        raise ValueError(f"{name} must be one column [E], a list or an array, got {type(column).__name__}{shape}")
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def row_numbers(name: str, column: Any, otherwise: str = "") -> Tensor:
    """Convert a column of row numbers to int64 [E]; `otherwise` is the alternative that error messages offer."""
    import numpy as np

    values = _array(name, column)
    if values.dtype.kind not in "iu":
        for row, entry in enumerate(column if isinstance(column, (list, tuple)) else values.tolist()):
            entry = entry.item() if isinstance(entry, Tensor) else entry
            if isinstance(entry, bool) or not isinstance(entry, (int, np.integer)):
                raise TypeError(f"{name} must be whole numbers [E]{otherwise}; got {entry!r} in row {row}")
    if len(values) and values.max() >= 2**63:
        raise ValueError(f"{name} must be below 2^63{otherwise}; got {values.max()}")
    return torch.from_numpy(np.ascontiguousarray(values.astype(np.int64)))


def check_spread(name: str, ids: Tensor, otherwise: str) -> None:
    """Warn of sparse ids such as hashes: the largest id is at least 100 times the number of distinct ids."""
    distinct = int((ids.sort().values.diff() != 0).sum()) + 1 if len(ids) else 0
    if distinct and int(ids.max()) >= 100 * distinct:
        cure = f"Interactions.from_columns(..., {name[:-1]}_ids=sorted(set({name}))){otherwise}"
        warn_caller(
            f"{name} hold {distinct} distinct ids up to {int(ids.max())}, and all numbers between count as {name} too; "
            f"a vocabulary leaves them out: {cure}"
        )


def values_of(column: Any) -> Tensor:
    """Convert a column of numbers to a tensor [E] on the CPU, of a floating-point dtype or int64."""
    import numpy as np

    if isinstance(column, Tensor):
        check_container("values", column)
        return real_numbers(column.cpu())
    values = _array("values", column)
    if values.dtype.kind == "O":
        values = np.asarray(values.tolist())
    if values.dtype.kind not in "iufb":
        raise TypeError(f"values must be numbers [E], got {type(column).__name__} of {values.dtype}")
    return real_numbers(torch.from_numpy(np.require(values, requirements=["C", "W"])))  # frames may be read-only


def real_numbers(values: Tensor) -> Tensor:
    """Return floats unchanged and whole numbers as int64, the dtypes of their sums; refuse complex numbers."""
    if values.is_complex():
        raise TypeError(f"values must be real numbers, got {values.dtype}")
    if values.dtype == torch.uint64 and bool((values.long() < 0).any()):
        raise ValueError("values must be below 2^63 where they are whole: pass values.double()")
    return values.detach() if values.is_floating_point() else values.long()


def entry_at(column: Any, row: int) -> Any:
    """Return the entry of a column at a row, for a message."""
    entry = getattr(column, "iloc", column)[row]
    if hasattr(entry, "as_py"):
        return entry.as_py()
    return entry.item() if hasattr(entry, "item") else entry


def holds(name: str) -> str:
    """Return the verb behind the name of a column in messages: "ids hold", "column 'id' holds"."""
    return "hold" if name.endswith("s") and not name.startswith("column ") else "holds"


def check_exact(name: str, values: Tensor) -> None:
    """Refuse floats that are infinite, or so large that their type skips whole numbers: 2^24 and more in float32."""
    digits = 1 - int(math.log2(torch.finfo(values.dtype).eps))
    wrong = values[values.abs() >= 2**digits]
    if len(wrong):
        raise ValueError(
            f"{name} {holds(name)} {wrong[0].item()!r}, and {values.dtype} rounds whole numbers from 2^{digits} on: "
            "pass integers, or text"
        )


def check_integers(name: str, ids: Any) -> None:
    """Refuse anything but a tensor of signed integers, and say how to make one."""
    check_container(name, ids)
    if not isinstance(ids, Tensor) or ids.dtype not in SIGNED:
        what = f"a {ids.dtype} tensor" if isinstance(ids, Tensor) else type(ids).__name__
        cure = f"{name}.long()" if isinstance(ids, Tensor) else f"torch.as_tensor({name})"
        raise TypeError(f"{name} must be a tensor of signed integers, got {what}: pass {cure}")


def check_not_binary(name: str, matrix: Tensor, cure: str) -> None:
    """Refuse integers that are 0 and 1 alone, which are a matrix of flags; `cure` says more. Costs a host sync."""
    values = plain(matrix)
    if bool(((values == 0) | (values == 1)).all()):
        raise ValueError(
            f"{name} {list(values.shape)} holds 0 and 1 alone: a 0/1 matrix is from_dense(matrix.bool()){cure}"
        )


def check_size(name: str, value: Any) -> int:
    """Convert a whole number >= 0 of any integer type to int."""
    try:
        size = operator.index(value)
    except TypeError:
        size = None
    if size is None or isinstance(value, bool) or getattr(value, "dtype", None) == torch.bool:
        raise TypeError(f"{name} must be a whole number >= 0, an int, got {type(value).__name__}: {value!r}")
    if size < 0:
        raise ValueError(f"{name} must be a whole number >= 0, got {value!r}")
    return size


def check_range(name: str, ids: Tensor, start: int, size: int, hint: str) -> None:
    """Refuse ids outside first .. first + size - 1."""
    if not len(ids):
        return
    low, high = map(int, ids.aminmax())
    if low < start or high >= start + size:
        if not hint and start == 0 and low == 1 and high == size:
            hint = ": ids seem to start at 1; subtract 1"
        raise ValueError(f"{name} hold ids {low}..{high}, expected {start}..{start + size - 1}{hint}")
