"""Columns of any library as arrays of pyarrow, and these as ids, as numbers and as tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from typing import Any

import torch
from torch import Tensor

from torchrecmetrics.core.checks import nearest, needed
from torchrecmetrics.core.numbers import check_container, check_exact, holds

_WHOLE = r"^(0|-?[1-9][0-9]*)$"
_WHOLE_DECIMAL = r"^(0|-?[1-9][0-9]*)\.0$"
_UNITS = ("s", "ms", "us", "ns")
_MAX_GAPS = 2
"""Numbers from the lowest to the highest id, per id of a column, up to which ids are counted."""


def arrow(purpose: str = "reading ids, frames or files") -> Any:
    """Return pyarrow with its module `compute`, or raise an error that names the extra."""
    needed("pyarrow.compute", purpose)
    return needed("pyarrow", purpose)


def check_names(wanted: Iterable[str], names: Sequence[str], what: str, cure: str = "") -> None:
    """Refuse names of columns that do not exist, or that several columns have."""
    if not any(names):
        raise ValueError(f"{what} has no named columns: the first line of a file, or a frame's columns, names them")
    counts = Counter(names)
    for name in wanted:
        if name not in counts:
            cure = cure or "say which is which: user=..., item=... and so on"
            raise ValueError(f"{what} has no column {name!r}{nearest(name, list(names))}; {cure}")
        if counts[name] > 1:
            raise ValueError(f"{what} has {counts[name]} columns named {name!r}: rename them")


# -------------------------------------------------------------------------------------------------- arrays of pyarrow


def array_of(name: str, column: Any) -> Any:
    """Convert a column of any library to one array of pyarrow, in which None, NaN and the like are null.

    Raises:
        ImportError: without pyarrow.
        TypeError: for entries of several kinds, and for anything that is no column.
        ValueError: for arrays that are not one-dimensional.
    """
    import numpy as np

    check_container(name, column)
    pa = arrow()
    if isinstance(column, Tensor):
        column = column.detach().cpu()
        column = (column.float() if column.dtype == torch.bfloat16 else column).numpy()
    elif hasattr(column, "to_arrow"):  # polars
        column = column.to_arrow()
    elif hasattr(column, "__arrow_c_stream__") and not hasattr(column, "__array__"):
        column = pa.chunked_array(column)
    if isinstance(column, np.ndarray):
        column = _plain(name, column)
    if getattr(column, "dtype", None) == object:  # noqa: E721
        column = column.tolist()
    array = column if isinstance(column, (pa.Array, pa.ChunkedArray)) else _of_entries(name, column)
    if isinstance(array, pa.ChunkedArray):
        if pa.types.is_string(array.type):  # all chunks may exceed 32-bit offsets
            array = array.cast(pa.large_string())
        array = array.combine_chunks()
    if pa.types.is_string_view(array.type):
        array = _of_view(array)
    elif pa.types.is_float16(array.type):  # pyarrow 16 finds no NaN among them
        array = pa.array(array.to_numpy(zero_copy_only=False), from_pandas=True)
    elif pa.types.is_floating(array.type):
        array = pa.compute.if_else(pa.compute.is_nan(array), None, array)
    return array


def _of_view(array: Any) -> Any:
    """Return text as an array of the type large_string."""
    pa = arrow()
    try:
        return array.cast(pa.large_string())
    except pa.ArrowNotImplementedError:  # in pyarrow 16
        return pa.array(array.to_pylist(), pa.large_string())


def _plain(name: str, column: Any) -> Any:
    """Return a column of numpy in a form that pyarrow takes."""
    import numpy as np

    if column.ndim != 1:
        raise ValueError(f"{name} must be one column [E], a list or an array, got shape {list(column.shape)}")
    if column.dtype.kind == "M" and np.datetime_data(column.dtype)[0] not in _UNITS:
        column = column.astype("M8[s]")
    return column if column.dtype.isnative else column.astype(column.dtype.newbyteorder("="))


def _of_entries(name: str, column: Any) -> Any:
    """Convert a list, an array of numpy or a column of pandas; refuse entries of several kinds."""
    import numpy as np

    pa = arrow()
    if isinstance(column, (str, bytes, set, frozenset, Mapping)) or not hasattr(column, "__len__"):
        raise TypeError(f"{name} must be a list or an array, got {type(column).__name__}: list(...)")
    kinds: set[Any] = set(map(type, column)) if isinstance(column, (list, tuple)) else set()
    if any(issubclass(kind, date) for kind in kinds):
        column = _dates(name, column)
    elif kinds == {Tensor}:
        column = torch.stack(list(column)).numpy()
    elif kinds == {np.datetime64}:  # pyarrow takes days of numpy from an array alone
        return array_of(name, np.array(column))
    try:
        if kinds >= {str, bytes}:  # pyarrow converts one into the other
            raise TypeError
        return pa.array(column, from_pandas=True)
    except OverflowError:
        try:
            return pa.array(column, pa.uint64(), from_pandas=True)
        except OverflowError:
            raise ValueError(f"{name} {holds(name)} whole numbers that 64 bits do not hold: make them text") from None
    except (pa.ArrowException, TypeError) as error:
        held = sorted(kind.__name__ for kind in kinds if kind is not type(None)) or [
            str(getattr(column, "dtype", type(column).__name__))
        ]
        cure = _one_field(next(iter(column), None)) or "make them all one kind, numbers, text or datetimes"
        raise TypeError(f"{name} {holds(name)} {' and '.join(held)}: {cure}") from error


def _one_field(entry: Any) -> str:
    """Return the advice for an entry, or a list of entries, of several fields; empty for other entries."""
    entry = entry[0] if isinstance(entry, list) and entry and isinstance(entry[0], (Mapping, tuple)) else entry
    if not isinstance(entry, (Mapping, tuple, list)) or not entry:
        return ""
    field = ("item" if "item" in entry else next(iter(entry))) if isinstance(entry, Mapping) else 0
    return f"take one field of each, [cell[{field!r}] for cell in ...]"


def _dates(name: str, column: Sequence[Any]) -> list[Any]:
    """Return dates or datetimes, those of pandas with their nanoseconds; refuse several kinds, which pyarrow mixes."""
    dates = [entry for entry in column if isinstance(entry, date) and type(entry).__name__ != "NaTType"]
    kinds = sorted({type(entry).__name__ for entry in dates})
    if len(kinds) > 1:
        raise TypeError(f"{name} {holds(name)} {' and '.join(kinds)}: make them all one kind")
    if len({getattr(entry, "tzinfo", None) is None for entry in dates}) > 1:
        raise ValueError(f"{name} {holds(name)} datetimes with and without a time zone: make them all one kind")
    return [entry.to_datetime64() if hasattr(entry, "to_datetime64") else entry for entry in column]


def is_text(type_: Any) -> bool:
    """Return True for a type of text of pyarrow."""
    types = arrow().types
    return bool(types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_))


def is_list(type_: Any) -> bool:
    """Return True for a type of lists of pyarrow."""
    types = arrow().types
    return bool(types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_))


def first_null(array: Any) -> int:
    """Return the row of the first missing entry."""
    return int(arrow().compute.index(array.is_null(), True).as_py())


def tensor_of(array: Any) -> Tensor:
    """Return an array of integers or floats without missing entries as a tensor of the same memory: do not write."""
    tensor: Tensor = torch.utils.dlpack.from_dlpack(array)
    return tensor


# ----------------------------------------------------------------------------------------------------- ids and numbers


def ids_of(name: str, column: Any, written: bool = False) -> Any:
    """Encode a column of ids as a dictionary array of pyarrow: int32 indices [E], null = missing, and distinct ids.

    Args:
        name: name of the column in messages.
        column: anything that `array_of` takes; categories count as their values.
        written: True if the ids were read from text, in which they are whole numbers if all are written as such.

    Returns:
        Dictionary array, whose ids are int64, uint64 (if an id is 2^63 or more), large_string or large_binary.

    Raises:
        TypeError: for ids that are neither whole numbers nor text nor bytes.
        ValueError: for floats that are so large that ids may have been rounded.
    """
    pa, array = arrow(), array_of(name, column)
    if isinstance(column, Tensor) and column.is_floating_point():  # bfloat16 has become float32
        check_exact(name, column)
    if not pa.types.is_dictionary(array.type):
        array = _encoded(as_ids(name, array))
    elif not _is_exact(array):
        array = as_ids(name, array.dictionary_decode()).dictionary_encode()
    ids = as_ids(name, array.dictionary)
    return pa.DictionaryArray.from_arrays(array.indices.cast(pa.int32()), whole_numbers(ids) if written else ids)


def _encoded(ids: Any) -> Any:
    """Return ids as a dictionary array; whole numbers that lie close together are counted, without a hash table."""
    pa = arrow()
    if not pa.types.is_int64(ids.type) or ids.null_count or not len(ids):
        return ids.dictionary_encode()
    values = tensor_of(ids)
    lowest, highest = map(int, values.aminmax())
    if highest - lowest >= _MAX_GAPS * len(values):
        return ids.dictionary_encode()
    places = values - lowest
    is_used = torch.bincount(places) > 0
    rows = (is_used.cumsum(0) - 1).int().index_select(0, places)
    return pa.DictionaryArray.from_arrays(pa.array(rows.numpy()), pa.array((is_used.nonzero()[:, 0] + lowest).numpy()))


def _is_exact(array: Any) -> bool:
    """Return True if each entry of the dictionary is used, present, and not repeated."""
    number = len(array.dictionary)
    used = arrow().compute.count_distinct(array.indices, mode="only_valid").as_py()
    return not array.dictionary.null_count and used == number == len(array.dictionary.unique())


def as_ids(name: str, array: Any) -> Any:
    """Return ids in one of the four types of `ids_of`."""
    pa = arrow()
    types = pa.types
    if types.is_integer(array.type) or types.is_null(array.type):
        try:
            return array.cast(pa.int64())
        except pa.ArrowInvalid:
            return array.cast(pa.uint64())
    if types.is_floating(array.type):
        values = tensor_of(array.drop_null())
        check_exact(name, values)
        if len(wrong := values[values != values.floor()]):
            fault = f"floats such as {wrong[0].item()!r}, which are no ids: make them whole numbers or text"
            raise TypeError(f"{name} {holds(name)} {fault}")
        return array.cast(pa.int64())
    if is_text(array.type):
        return array.cast(pa.large_string())
    if types.is_binary(array.type) or types.is_large_binary(array.type) or types.is_fixed_size_binary(array.type):
        return array.cast(pa.large_binary())
    entry = array.drop_null()[0].as_py()
    cure = _one_field(entry) or "make them text, [str(id) for id in ids]"
    raise TypeError(
        f"{name} {holds(name)} {array.type}, such as {entry!r}: ids are whole numbers, text or bytes; {cure}"
    )


def whole_numbers(text: Any) -> Any:
    """Convert text to 64-bit integers if all entries are whole numbers, "7" or all "7.0"; else return it unchanged."""
    pa = arrow()
    if not len(text) or not is_text(text.type):
        return text
    pc, digits = pa.compute, text
    if pc.all(pc.match_substring_regex(text, _WHOLE_DECIMAL)).as_py():
        digits = pc.replace_substring_regex(text, r"\.0$", "")
    elif not pc.all(pc.match_substring_regex(text, _WHOLE)).as_py():
        return text
    for type_ in (pa.int64(), pa.uint64()):
        try:
            return digits.cast(type_)
        except pa.ArrowInvalid:
            continue
    return text


def numbers_of(name: str, column: Any, row_name: Callable[[int], str] = "row {}".format) -> Tensor:
    """Return a column of numbers, flags, decimals or text of these as a tensor [E] of int64 or floats.

    Raises:
        TypeError: for a column of another type.
        ValueError: for missing entries, text that is no number, and whole numbers of 2^63 or more; names the row.
    """
    pa, array = arrow(), array_of(name, column)
    types = pa.types
    if array.null_count:
        raise ValueError(f"{name} is missing in {row_name(first_null(array))}: leave such rows out")
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if is_text(array.type):
        array = _parsed(name, array, row_name)
    if types.is_decimal(array.type):
        array = array.cast(pa.float64())
    is_number = types.is_integer(array.type) or types.is_floating(array.type) or types.is_boolean(array.type)
    if len(array) and not is_number:
        raise TypeError(f"{name} must hold numbers, got {array.type}: {str(array[0])[:60]} in {row_name(0)}")
    if not types.is_floating(array.type):
        try:
            array = array.cast(pa.int64())
        except pa.ArrowInvalid:
            raise ValueError(f"{name} must hold numbers below 2^63: make them floats") from None
    return tensor_of(array)


def _parsed(name: str, text: Any, row_name: Callable[[int], str]) -> Any:
    """Convert text to integers, floats, or flags ("true", "false"), whatever holds all entries."""
    pa = arrow()
    plain = pa.compute.replace_substring_regex(pa.compute.utf8_trim_whitespace(text), r"^\+", "")
    for type_ in (pa.int64(), pa.float64(), pa.bool_()):
        try:
            return plain.cast(type_)
        except pa.ArrowInvalid:
            continue
    for row, entry in enumerate(text.to_pylist()):
        try:
            float(entry)
        except ValueError:
            raise ValueError(f"{name} must hold numbers, got {entry[:60]!r} in {row_name(row)}") from None
    raise ValueError(f"{name} must hold numbers, got {text.type}")
