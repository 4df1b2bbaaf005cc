"""`Source`, named columns that a frame or a file holds; `FrameSource`, a frame; arrays of pyarrow from any column."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.core.checks import describe, nearest
from torchrecmetrics.core.cures import Cure
from torchrecmetrics.core.extras import needed
from torchrecmetrics.tables.numbers import check_container, holds

_DIGITS = r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
NUMBER = rf"^[+-]?{_DIGITS}$"
_FLOAT = rf"^[+-]?({_DIGITS}|inf|infinity|nan)$"
_WHOLE = r"^(0|-?[1-9][0-9]*)$"
_WHOLE_DECIMAL = r"^(0|-?[1-9][0-9]*)\.0$"
_SHOWN, _SHOWN_WORDS = 60, 5
_UNITS = ("s", "ms", "us", "ns")
TEXT = ("string", "large_string", "string_view")
"""Names of the types of text of pyarrow."""
_TRUE, _FALSE = ("true", "yes", "t", "y"), ("false", "no", "f", "n")


class Roles(NamedTuple):
    """Names of columns by role; None = there is no such column."""

    user: str
    item: str
    time: str | None = None
    value: str | None = None

    @property
    def names(self) -> list[str]:
        """Names of the columns to read, without repeats."""
        return [*dict.fromkeys(name for name in self if name is not None)]


def two_roles(names: Mapping[str, str | None]) -> ValueError:
    """Return the error for a column that has two roles; `names` are the columns by role."""
    columns = [name for name in names.values() if name is not None]
    name = next(name for name in columns if columns.count(name) > 1)
    roles = [role for role in names if names[role] == name]
    return ValueError(f"column {name!r} cannot be {' and '.join(roles)} at once: {roles[0]}=... says which is")


def unequal_lengths(columns: Mapping[str, Any], what: str) -> ValueError:
    """Return the error for columns that are not equally long; names the shortest and the longest."""
    names = sorted(columns, key=lambda name: len(columns[name]))
    lengths = {name: len(columns[name]) for name in (names[0], names[-1])}
    return ValueError(f"columns of {what} must be equally long, got {lengths}")


class Columns(NamedTuple):
    """Columns that were read from a frame or a file."""

    columns: dict[str, Any]
    """Arrays of pyarrow by name."""
    what: str
    """Name of the source in messages: "frame", or a path."""
    first_line: int | None = None
    """Line number of the file's row 0; None = rows are not lines of a file."""

    @classmethod
    def of(cls, columns: Mapping[str, Any], what: str, first_line: int | None = None) -> Columns:
        """Convert columns of any library; `what` and `first_line` as the fields."""
        named = cls({}, what, first_line)
        for name, column in columns.items():
            named.columns[name] = arrow_array(named.name(name), column)
        if len({*map(len, named.columns.values())}) > 1:
            raise unequal_lengths(named.columns, what)
        return named

    def row(self, row: int) -> str:
        """Return the name of a row in messages."""
        return f"row {row}" if self.first_line is None else f"row {row} (line {row + self.first_line})"

    def name(self, column: str) -> str:
        """Return the name of a column in messages."""
        return f"column {column!r} of {self.what}"


class Source(ABC):
    """A frame or a file, whose columns are read by name."""

    what: str
    """Name of the source in messages: a path, or the name of an argument."""
    names: list[str]
    """Names of all columns."""
    known: Mapping[str, str]
    """Names of columns by role, if the format fixes them, such as TREC's score."""
    as_written: bool = False
    """True if ids are text in the file: "7" counts as a number only if all ids of the column are whole numbers."""
    sequences: frozenset[str] = frozenset()
    """Names of columns whose cells hold several ids, by the types that the file names."""
    trec: str | None = None
    """Kind of a TREC file, "run" or "qrels"; None = anything else."""
    without_header: Cure | None = None
    """The call that reads a file whose first line may be no header."""

    @abstractmethod
    def read(self, roles: Roles) -> Columns:
        """Read the columns of `roles`.

        Raises:
            ValueError: if there is no such column, and for unreadable content; names row and column.
        """

    def all_columns(self) -> Any:
        """Return all columns that hold one value a row, as a table of pyarrow; numbers in text are numbers."""
        raise NotImplementedError


class FrameSource(Source):
    """A frame of pandas, polars, pyarrow or another library with Arrow's interface, a dict of columns, or records."""

    first_line: int | None = None
    """Line number of row 0, if the frame was read from the lines of a file."""

    def __init__(self, frame: Any, what: str = "frame") -> None:
        if type(frame).__name__ == "Series" and hasattr(frame, "to_dict"):
            raise TypeError(f"{what} is a Series: if it holds the items of each user, pass {what}.to_dict()")
        if hasattr(frame, "collect"):
            raise TypeError(f"{what} is not computed yet, {type(frame).__name__}: pass {what}.collect()")
        by_column = ("iloc", "get_column", "column_names")  # of pandas, polars, pyarrow
        if hasattr(frame, "__arrow_c_stream__") and not any(hasattr(frame, name) for name in by_column):
            frame = arrow().table(frame)
        index = getattr(getattr(frame, "index", None), "names", None)  # of pandas: a named index is a column
        if index and any(name is not None and name not in frame.columns for name in index):
            frame = frame.reset_index([name for name in index if name is not None and name not in frame.columns])
        if holds_records(frame):
            named = [row if isinstance(row, Mapping) else dict(enumerate(row)) for row in frame]
            frame = columns_of_records(named)
        fields = getattr(getattr(frame, "dtype", None), "names", None)
        if isinstance(frame, Mapping) or fields is not None:
            names = frame if fields is None else fields
        else:  # pyarrow's `columns` are the data; an object that is no frame has none, and `read` refuses it
            names = getattr(frame, "column_names", getattr(frame, "columns", ()))
        self.frame, self.what, self.known = frame, what, {}
        self._columns = {str(name): name for name in names}
        self.names = [*map(str, names)]

    def all_columns(self) -> Any:
        """Return all columns; entries of several kinds, and of kinds that pyarrow lacks, are text."""
        check_names(self.names, self.names, self.what)
        columns = {}
        for name in self.names:
            named, column = f"column {name!r} of {self.what}", self.frame[self._columns[name]]
            if getattr(column, "ndim", 1) != 1:
                raise ValueError(f"{named} must be one column [E], got shape {list(column.shape)}")
            try:
                columns[name] = arrow_array(named, column)
            except (TypeError, ValueError, arrow().ArrowException):  # several kinds, numbers of more than 64 bits, ...
                texts = [None if entry is None else str(entry) for entry in column]
                columns[name] = arrow_array(named, [text and text.encode(errors="replace").decode() for text in texts])
        if len({*map(len, columns.values())}) > 1:
            raise unequal_lengths(columns, self.what)
        return arrow().table(columns)

    def read(self, roles: Roles) -> Columns:
        """Return the columns of `roles`."""
        wanted = roles.names
        for name in wanted:
            if not isinstance(name, str):
                raise TypeError(f"columns go by name, got {name!r} ({type(name).__name__})")
        if isinstance(self.frame, (str, Path)):
            raise TypeError(f"{self.what} must be a frame, got a path: Log.from_file reads files")
        if not self.names and not isinstance(self.frame, Mapping) and not hasattr(self.frame, "columns"):
            raise TypeError(
                f"{self.what} must be a frame, got {describe(self.frame)}: pass a frame of pandas, polars or pyarrow, "
                "a dict of columns, a list of records, or a structured array of numpy"
            )
        check_names(wanted, self.names, self.what)
        return Columns.of({name: self.frame[self._columns[name]] for name in wanted}, self.what, self.first_line)


def arrow() -> Any:
    """Return pyarrow, or raise an error that names the extra."""
    return needed("pyarrow", "reading ids, frames or files")


def compute() -> Any:
    """Return the module pyarrow.compute, or raise an error that names the extra."""
    return needed("pyarrow.compute", "reading ids, frames or files")


def arrow_array(name: str, column: Any) -> Any:
    """Convert a column of any library to one array of pyarrow, in which None, NaN and the like are null.

    Raises:
        ImportError: without pyarrow.
        TypeError: for entries of several kinds, and for anything that is no column; names what it holds.
        ValueError: for arrays that are not one-dimensional.
    """
    import numpy as np

    check_container(name, column)
    pa, pc = arrow(), compute()
    if isinstance(column, Tensor):
        column = column.detach().cpu()
        column = (column.float() if column.dtype == torch.bfloat16 else column).numpy()
    elif hasattr(column, "to_arrow"):  # polars
        column = column.to_arrow()
    elif hasattr(column, "__arrow_c_stream__") and not hasattr(column, "__array__"):
        column = pa.chunked_array(column)
    if isinstance(column, np.ndarray):
        if column.ndim != 1:
            raise ValueError(f"{name} must be one column [E], a list or an array, got shape {list(column.shape)}")
        if column.dtype.kind == "M" and np.datetime_data(column.dtype)[0] not in _UNITS:
            column = column.astype("M8[s]")
        column = column if column.dtype.isnative else column.astype(column.dtype.newbyteorder("="))
    if getattr(column, "dtype", None) == object:  # noqa: E721
        column = column.tolist()
    array = column if isinstance(column, (pa.Array, pa.ChunkedArray)) else _converted(name, column)
    if isinstance(array, pa.ChunkedArray):
        if pa.types.is_string(array.type) or pa.types.is_binary(array.type):  # all chunks may exceed 32-bit offsets
            array = array.cast(pa.large_string() if pa.types.is_string(array.type) else pa.large_binary())
        array = array.combine_chunks()
    if pa.types.is_floating(array.type) and pc.any(pc.is_nan(array)).as_py():
        array = pc.if_else(pc.is_nan(array), None, array)
    return array


def _converted(name: str, column: Any) -> Any:
    """Convert a list, an array of numpy or a column of pandas; refuse entries of several kinds."""
    import numpy as np

    pa = arrow()
    if isinstance(column, (str, bytes, set, frozenset, Mapping)) or not hasattr(column, "__len__"):
        raise TypeError(f"{name} must be a list or an array, got {type(column).__name__}: list(...)")
    kinds: set[Any] = set(map(type, column)) if isinstance(column, (list, tuple)) else set()
    dates = {kind for kind in kinds if issubclass(kind, date) and kind.__name__ != "NaTType"}
    zones = {getattr(entry, "tzinfo", None) is None for entry in column if type(entry) in dates} if dates else set()
    if kinds == {Tensor}:
        column = torch.stack(list(column)).numpy()
    elif kinds == {np.datetime64}:  # pyarrow takes days of numpy from an array alone
        return arrow_array(name, np.array(column))
    elif any(hasattr(kind, "to_datetime64") for kind in dates):  # datetimes of pandas have nanoseconds
        column = [entry.to_datetime64() if hasattr(entry, "to_datetime64") else entry for entry in column]
    try:
        if kinds >= {str, bytes} or len(dates) > 1:  # pyarrow converts one into the other
            raise TypeError
        if len(zones) > 1:
            raise ValueError(f"{name} {holds(name)} datetimes with and without a time zone: make them all one kind")
        return pa.array(column, from_pandas=True)
    except OverflowError:
        try:
            return pa.array(column, pa.uint64(), from_pandas=True)
        except OverflowError:
            raise ValueError(f"{name} {holds(name)} whole numbers that 64 bits do not hold: make them text") from None
    except (pa.ArrowException, TypeError) as error:
        held = sorted(kind.__name__ for kind in kinds if kind is not type(None)) or [
            str(getattr(column, "dtype", type(column)))
        ]
        cure = "make text of each" if kinds == {tuple} else "make them all one kind, numbers, text or datetimes"
        raise TypeError(f"{name} {holds(name)} {' and '.join(held)}: {cure}") from error


def holds_records(frame: Any) -> bool:
    """Return True for a list of dicts, or of tuples, whose columns are named 0, 1, 2, ... as those of pandas."""
    return isinstance(frame, list) and bool(frame) and all(isinstance(row, (Mapping, tuple)) for row in frame)


def columns_of_records(records: list[Mapping[Any, Any]]) -> dict[str, list[Any]]:
    """Return the values of records by key; a record without a key has a missing entry."""
    keys = {str(key): key for record in records for key in record}
    return {name: [record.get(key) for record in records] for name, key in keys.items()}


def tensor_of(array: Any) -> Tensor:
    """Return an array of pyarrow without missing entries as a tensor of int64, of floats, or of bool."""
    import numpy as np

    values = array.to_numpy(zero_copy_only=False)
    return torch.from_numpy(values.astype(np.int64 if values.dtype.kind in "iu" else values.dtype))


def check_names(
    wanted: Iterable[str],
    known: list[str],
    what: str,
    cure: str = "say which is which: user=..., item=... and so on",
) -> None:
    """Refuse names of columns that do not exist, or that several columns have."""
    if not any(known):
        raise ValueError(f"{what} has no named columns: the first line of a file, or a frame's columns, names them")
    counts = Counter(known)
    for name in wanted:
        if name not in counts:
            raise ValueError(f"{what} has no column {name!r}{nearest(name, known)}; {cure}")
        if counts[name] > 1:
            raise ValueError(f"{what} has {counts[name]} columns named {name!r}: rename them")


def as_whole(column: Any) -> Any:
    """Convert a column of text to 64-bit integers if all entries are whole numbers; return it unchanged otherwise."""
    pa, pc = arrow(), compute()
    text = column
    if pc.all(pc.match_substring_regex(text, _WHOLE_DECIMAL)).as_py():
        text = pc.replace_substring_regex(text, r"\.0$", "")
    elif not pc.all(pc.match_substring_regex(text, _WHOLE)).as_py():
        return column
    for type_ in (pa.int64(), pa.uint64()):
        try:
            return pc.cast(text, type_)
        except pa.ArrowInvalid:
            pass
    return column


def as_numbers(table: Columns, name: str, text: Any, reader: Callable[[str], str] | None = None) -> Any:
    """Convert a column of text to integers, floats (also inf and -inf), or bool if all entries are true or false.

    Other text is an error, with the line that converts it; `reader` returns code that makes a frame of a file.
    """
    pa, pc, types = arrow(), compute(), (arrow().int64(), arrow().float64())
    for type_ in types:
        try:
            return pc.cast(text, type_)
        except pa.ArrowInvalid:
            continue
    plain = pc.replace_substring_regex(pc.utf8_lower(pc.utf8_trim_whitespace(text)), r"^\+", "")
    if pc.all(pc.is_in(plain.drop_null(), value_set=pa.array([*_TRUE, *_FALSE], plain.type))).as_py():
        is_true = pc.is_in(plain, value_set=pa.array(_TRUE, plain.type))
        return pc.if_else(pc.is_valid(plain), is_true, None)
    try:
        return pc.cast(plain, pa.float64())
    except pa.ArrowInvalid:
        is_number = pc.match_substring_regex(plain, _FLOAT)
        row = pc.index(is_number, False).as_py()
    entry = text[row].as_py()
    if re.fullmatch(r"[+-]?\d*[.,]?\d+\s*%?", entry):
        change = (".str.rstrip(' %')" if "%" in entry else "") + (".str.replace(',', '.')" if "," in entry else "")
        change += ".astype(float)"
    else:
        words = pc.unique(text.filter(pc.invert(is_number))).drop_null().to_pylist()[:_SHOWN_WORDS]
        numbers = ", ".join(f"{word[:_SHOWN]!r}: ..." for word in words)
        change = f".map(lambda word: {{{numbers}}}.get(word, word)).astype(float)"
    frame = "" if reader is None else f"frame = {reader(table.what)}; "
    raise ValueError(
        f"{table.name(name)} must hold numbers, got {entry[:_SHOWN]!r} in {table.row(row)}: convert it "
        f"and pass the frame, {frame}frame[{name!r}] = frame[{name!r}]{change}"
    )
