"""Convert columns of lists, numpy, pandas, polars or tensors to tensors of ids and values."""

from __future__ import annotations

import operator
import warnings
from datetime import date
from typing import Any

import torch
from torch import Tensor

from torchrecmetrics.core.checks import ID_DTYPES

SIGNED = (*ID_DTYPES, torch.int8)
ONE_ID_PER_ROW = "a row is one user and one item, as frame.explode(column) of pandas or polars makes them"
_KINDS = {"i": "whole numbers", "u": "whole numbers", "f": "floats", "U": "text", "S": "bytes", "M": "datetimes"}


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


def array_of(name: str, column: Any) -> Any:
    """Convert a column to a one-dimensional numpy array; values that numpy would round or turn to text stay objects."""
    import numpy as np

    check_container(name, column)
    if isinstance(column, np.ma.MaskedArray):
        column = column.tolist()  # None where masked
    if isinstance(column, (list, tuple)) and column and type(column[0]) is tuple:
        parts = "/".join(f"{{id[{place}]}}" for place in range(len(column[0])))
        raise TypeError(
            f"{name} holds tuples, such as {column[0]!r}, and an id is a whole number or text: make one text of each, "
            f"[f'{parts}' for id in ids]"
        )
    if isinstance(column, Tensor):
        column = column.detach().cpu()
        column = (column.double() if column.is_floating_point() else column).numpy()
    if getattr(getattr(column, "dtype", None), "tz", None) is not None:  # pandas' datetimes with a time zone, to UTC
        column = getattr(column, "dt", column).tz_convert(None)
    values = np.asarray(column) if hasattr(column, "__array__") else np.asarray(column, dtype=object)
    if values.dtype.kind == "T":
        values = values.astype(object)
    if values.ndim != 1:
        shape = f" of shape {list(values.shape)}" if values.ndim else f": pass list({name})"
        raise ValueError(f"{name} must be one column [E], a list or an array, got {type(column).__name__}{shape}")
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def words_of(name: str, column: Any) -> tuple[Any, Any, str]:
    """Return the present entries as a numpy array of one type, a mask of missing rows (None, NaN), and their kind."""
    import numpy as np

    values = array_of(name, column)
    if values.dtype.kind == "f" and not isinstance(getattr(column, "dtype", None), (np.dtype, torch.dtype)):
        values = np.asarray(column, dtype=object)  # numpy makes floats of nullable whole numbers of pandas and polars
    missing = np.zeros(len(values), dtype=bool)
    if values.dtype.kind in "fM":
        missing = np.isnan(values) if values.dtype.kind == "f" else np.isnat(values)
    elif values.dtype.kind == "O":
        plain = (value.item() if isinstance(value, Tensor) and not value.dim() else value for value in values)
        values = np.fromiter(plain, object, len(values))
        missing[:] = [
            type(value).__name__ in ("NoneType", "NAType", "NaTType")
            or (isinstance(value, (float, np.floating, np.datetime64)) and value != value)
            for value in values
        ]
    values = values[~missing]
    kind = _KINDS.get(values.dtype.kind, str(values.dtype))
    if values.dtype.kind == "O":
        kinds = sorted({_kind(type_) for type_ in set(map(type, values))}) or ["missing"]
        if kinds == ["floats", "whole numbers"] and all(isinstance(v, float) or abs(v) <= 2**53 for v in values):
            kinds = ["floats"]
        if len(kinds) > 1:
            raise TypeError(f"{name} are {' and '.join(kinds)} mixed: make them all one kind")
        (kind,) = kinds
        if kind in ("list", "ndarray", "Series"):
            raise TypeError(f"{name} holds a list in each row: {ONE_ID_PER_ROW}")
        if kind == "whole numbers":
            (values,) = exact(values)
        elif kind in ("floats", "text", "bytes"):
            values = values.astype({"floats": "f8", "text": "U", "bytes": "S"}[kind])
    if "complex" in kind:
        raise TypeError(f"{name} must not be complex, got {kind}: pass their real part")
    return values, missing, kind


def _kind(of: type) -> str:
    import numpy as np

    kinds: dict[str, tuple[type, ...]] = {
        "whole numbers": (int, np.integer),
        "floats": (float, np.floating),
        "text": (str,),
        "bytes": (bytes,),
        "datetimes": (date, np.datetime64),
    }
    return next((kind for kind, types in kinds.items() if issubclass(of, types) and of is not bool), of.__name__)


def exact(*arrays: Any) -> list[Any]:
    """Convert whole numbers to the first type that holds all of them: int64, uint64 or Python's int."""
    import numpy as np

    lowest = min((int(array.min()) for array in arrays if len(array)), default=0)
    highest = max((int(array.max()) for array in arrays if len(array)), default=0)
    signed, unsigned = lowest >= -(2**63) and highest < 2**63, lowest >= 0 and highest < 2**64
    return [array.astype(np.int64 if signed else np.uint64 if unsigned else object) for array in arrays]


def row_numbers(name: str, column: Any, otherwise: str = "") -> Tensor:
    """Convert a column of row numbers to int64 [E]; `otherwise` is the alternative that error messages offer."""
    words, missing, kind = words_of(name, column)
    if len(words) and kind != "whole numbers":
        raise TypeError(f"{name} must be whole numbers [E]{otherwise}; got {kind}")
    if missing.any():
        raise ValueError(f"{name} must be whole numbers [E]{otherwise}; row {int(missing.argmax())} is missing")
    (words,) = exact(words) if len(words) else (words.astype("i8"),)
    if words.dtype.kind != "i":
        raise ValueError(f"{name} must be below 2^63{otherwise}; got {words.max()}")
    return torch.from_numpy(words)


def check_spread(name: str, ids: Tensor, otherwise: str, stacklevel: int) -> None:
    """Warn of sparse ids such as hashes: the largest id is at least 100 times the number of distinct ids."""
    distinct = int((ids.sort().values.diff() != 0).sum()) + 1 if len(ids) else 0
    if distinct and int(ids.max()) >= 100 * distinct:
        cure = f"Interactions.from_columns(..., {name[:-1]}_ids=sorted(set({name}))){otherwise}"
        warnings.warn(
            f"{name} hold {distinct} distinct ids up to {int(ids.max())}, and all numbers between count as {name} too; "
            f"a vocabulary leaves them out: {cure}",
            UserWarning,
            stacklevel=stacklevel,
        )


def values_of(column: Any) -> Tensor:
    """Convert a column of numbers to a tensor [E] on the CPU, of a floating-point dtype or int64."""
    import numpy as np

    if isinstance(column, Tensor):
        check_container("values", column)
        return real_numbers(column.cpu())
    values = array_of("values", column)
    if values.dtype.kind == "O":
        values = [int(value) if isinstance(value, np.integer) else value for value in values]
    else:
        values = np.require(values, requirements=["C", "W"])  # views into frames may be strided, read-only
    try:
        tensor = torch.as_tensor(values, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"values must be numbers [E], got {type(column).__name__}: {error}") from error
    return real_numbers(tensor)


def real_numbers(values: Tensor) -> Tensor:
    """Return floats unchanged and whole numbers as int64, the dtypes of their sums; refuse complex numbers."""
    if values.is_complex():
        raise TypeError(f"values must be real numbers, got {values.dtype}")
    if values.dtype == torch.uint64 and bool((values.long() < 0).any()):
        raise ValueError("values must be below 2^63 where they are whole: pass values.double()")
    return values.detach() if values.is_floating_point() else values.long()


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def listed_at(column: Any, row: int) -> Any:
    """Return the entry of a column at a row, for a message."""
    return _plain(array_of("column", column)[row])


def check_integers(name: str, ids: Any) -> None:
    """Refuse anything but a tensor of signed integers, and say how to make one."""
    check_container(name, ids)
    if not isinstance(ids, Tensor) or ids.dtype not in SIGNED:
        what = f"a {ids.dtype} tensor" if isinstance(ids, Tensor) else type(ids).__name__
        cure = f"{name}.long()" if isinstance(ids, Tensor) else f"torch.as_tensor({name})"
        raise TypeError(f"{name} must be a tensor of signed integers, got {what}: pass {cure}")


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


def check_range(name: str, ids: Tensor, first: int, size: int, hint: str) -> None:
    """Refuse ids outside first .. first + size - 1."""
    if not len(ids):
        return
    low, high = map(int, ids.aminmax())
    if low < first or high >= first + size:
        if not hint and first == 0 and low == 1 and high == size:
            hint = ": ids seem to start at 1; subtract 1"
        raise ValueError(f"{name} hold ids {low}..{high}, expected {first}..{first + size - 1}{hint}")
