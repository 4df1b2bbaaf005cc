"""Read named columns of pandas, polars and pyarrow frames; the only module that imports these libraries."""

from __future__ import annotations

import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import EllipsisType
from typing import Any, NamedTuple

from torchrecmetrics.core.checks import check_choice, describe, extra, nearest

_EXTRA = extra("frames")


_USUAL_NAMES = {
    "time": re.compile(r"time|timestamp|date|datetime|unix.*", re.IGNORECASE),
    "value": re.compile(r"label|rating|relevance|gain|grade|value", re.IGNORECASE),
}


class Roles(NamedTuple):
    """Names of columns by role; None = there is no such column."""

    user: str
    item: str
    time: str | None = None
    value: str | None = None


def distinct(names: NamedTuple) -> list[str]:
    """Return the names of the columns that are given, without None.

    Raises:
        ValueError: if one column has two roles.
    """
    given = {role: name for role, name in names._asdict().items() if name is not None}
    for role, name in given.items():
        if len(same := [other for other in given if given[other] == name]) > 1:
            raise ValueError(f"column {name!r} cannot be {' and '.join(same)} at once: {role}=... says which is")
    return list(given.values())


class Table(NamedTuple):
    """Columns that were read from a frame or a file."""

    columns: dict[str, Any]
    """Columns by name."""
    what: str
    """Name of the source in messages: "frame", or a path."""
    first_line: int | None = None
    """Line number of the file's row 0; None = rows are not lines of a file."""
    first_row: int = 0
    """Number of rows of the file before this table, if the table is a part of the file."""

    def row(self, row: int) -> str:
        """Return the name of a row in messages."""
        row += self.first_row
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

    @abstractmethod
    def read(self, roles: Roles) -> Table:
        """Read the columns of `roles`.

        Raises:
            ValueError: if there is no such column, and for unreadable content; names row and column.
        """

    def parts(self, roles: Roles) -> Iterator[Table]:
        """Yield the columns of `roles`, in several parts if the format allows it."""
        yield self.read(roles)

    def sample(self, roles: Roles) -> Table:
        """Read the columns of `roles` for the first rows, or for all if the format has no parts."""
        return next(self.parts(roles))

    def roles(
        self,
        user: str,
        item: str,
        time: str | EllipsisType | None = None,
        value: str | EllipsisType | None = None,
    ) -> Roles:
        """Return the names of the columns to read; `...` = the caller named no column.

        Raises:
            ValueError: if the caller named no column of times or values, but a column has a usual name for its role.
        """
        user, item = self.known.get("user", user), self.known.get("item", item)
        found: dict[str, str | None] = {}
        for role, name in (("time", time), ("value", value)):
            if not isinstance(name, EllipsisType):
                found[role] = name
            elif role in self.known:
                found[role] = self.known[role]
            else:
                self._check_unnamed(role, {user, item, time, value})
        return Roles(user, item, found.get("time"), found.get("value"))

    def _check_unnamed(self, role: str, taken: Collection[Any]) -> None:
        for column in self.names:
            if column not in taken and _USUAL_NAMES[role].fullmatch(column.strip()):
                raise ValueError(
                    f"{self.what} has a column {column!r} and {role}= was not given: pass {role}={column!r} to read "
                    f"it, or {role}=None to ignore it"
                )


class FrameSource(Source):
    """A frame of any library, a dict of columns, or a structured array."""

    def __init__(self, frame: Any, what: str = "frame") -> None:
        self.frame, self.what, self.known = frame, what, {}
        if type(frame).__name__ == "Series" and hasattr(frame, "to_dict"):
            raise TypeError(f"{what} is a Series: if it holds the items of each user, pass {what}.to_dict()")
        fields = getattr(getattr(frame, "dtype", None), "names", None)
        if isinstance(frame, Mapping) or fields is not None:
            names = frame if fields is None else fields
        elif hasattr(frame, "collect_schema"):  # polars warns if `columns` of a lazy frame is read
            names = frame.collect_schema().names()
        else:  # pyarrow's `columns` are the data; an object that is no frame has none, and `read` refuses it
            names = getattr(frame, "column_names", getattr(frame, "columns", ()))
        self.names = [*map(str, names)]

    def read(self, roles: Roles) -> Table:
        """Return the columns of `roles`."""
        return Table(columns_of(self.frame, roles, self.what), self.what)


@cache
def arrow() -> Any:
    """Return pyarrow, or None where it is not installed."""
    try:
        return importlib.import_module("pyarrow")
    except ImportError:
        return None


@cache
def compute() -> Any:
    """Return the module pyarrow.compute; pyarrow must be installed."""
    return importlib.import_module("pyarrow.compute")


def needed(module: str, what: str) -> Any:
    """Import a module of the extra `frames`.

    Raises:
        ImportError: if the module is not installed; names its purpose and the extra that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{what} needs {module.partition('.')[0]}: {_EXTRA}") from error


def arrow_array(column: Any) -> Any:
    """Convert a column to one pyarrow array, without a copy if its library allows it; None if that is impossible.

    Also None without pyarrow, and for a column of mixed types, which other functions refuse.
    """
    pa = arrow()
    if pa is None:
        return None
    if isinstance(column, (pa.Array, pa.ChunkedArray)):
        array = column
    elif hasattr(column, "__arrow_c_stream__") and not hasattr(column, "columns"):
        try:
            array = pa.chunked_array(column)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return None
    else:
        return None
    if not isinstance(array, pa.ChunkedArray):
        return array
    if pa.types.is_string(array.type) or pa.types.is_binary(array.type):  # all chunks may exceed 32-bit offsets
        array = array.cast(pa.large_string() if pa.types.is_string(array.type) else pa.large_binary())
    return array.combine_chunks()


def gap_in(column: Any) -> int | None:
    """Return the first missing row of a column of pyarrow; None if no row is missing, or for another library."""
    pa = arrow()
    if pa is None or not isinstance(column, (pa.Array, pa.ChunkedArray)) or not column.null_count:
        return None
    return int(compute().index(column.is_null(), True).as_py())


def columns_of(frame: Any, names: Iterable[str | None], what: str = "frame") -> dict[str, Any]:
    """Return the columns of the given names; None among the names is ignored.

    Args:
        frame: a frame of pandas, polars, pyarrow or whatever else narwhals reads, a dict of columns, or a structured
            array of numpy.
        names: names of the columns.
        what: name of the frame in messages.

    Raises:
        TypeError: if `frame` is no frame, or a lazy frame; says how to make a frame of it.
        ValueError: if there is no such column (names the columns, and the nearest), or several columns of one name.
    """
    wanted = list(dict.fromkeys(name for name in names if name is not None))
    for name in wanted:
        if not isinstance(name, str):
            raise TypeError(f"columns go by name, got {name!r} ({type(name).__name__})")
    fields = getattr(getattr(frame, "dtype", None), "names", None)
    if isinstance(frame, Mapping):
        known = [*map(str, frame)]
    elif fields is not None:
        known = [*fields]
    else:
        return _columns_by_narwhals(frame, wanted, what)
    check_names(wanted, known, what)
    return {name: frame[name] for name in wanted}


_MAKERS = {"pandas": "DataFrame", "polars": "DataFrame", "pyarrow": "table"}
_NULLABLE = {  # types that hold missing entries, by the kind of a column
    "pandas": {"whole numbers": "Int64", "floats": "float64", "text": "object"},
    "polars": {"whole numbers": "Int64", "floats": "Float64", "text": "String"},
    "pyarrow": {"whole numbers": "int64", "floats": "float64", "text": "string"},
}


def frame_of(library: str, columns: dict[str, list[Any]], gaps: Mapping[str, str] | None = None) -> Any:
    """Make a frame of columns.

    Args:
        library: "pandas", "polars" or "pyarrow".
        columns: lists of entries by column name.
        gaps: kinds of the columns that may hold None, "whole numbers", "floats" or "text": each such column has the
            same type whatever its entries.

    Raises:
        ImportError: where the library is not installed.
        ValueError: for the name of another library.
    """
    check_choice("library", library, tuple(_MAKERS))
    try:
        made = importlib.import_module(library)
    except ImportError as error:
        raise ImportError(f"a frame of {library} needs it: pip install {library}") from error
    types = {name: _NULLABLE[library][kind] for name, kind in (gaps or {}).items()}
    if library == "pyarrow":
        return made.table({n: made.array(c, types[n]) if n in types else c for n, c in columns.items()})
    frame = getattr(made, _MAKERS[library])(columns)
    if library == "pandas":
        return frame.astype(types)
    return frame.cast({name: getattr(made, type_) for name, type_ in types.items()})


def check_names(
    wanted: Iterable[str],
    known: list[str],
    what: str,
    cure: str = "say which is which: user=..., item=... and so on",
) -> None:
    """Refuse names of columns that do not exist, or that several columns have."""
    if not any(known):
        raise ValueError(f"{what} has no named columns: the first line of a file, or a frame's columns, names them")
    for name in wanted:
        if name not in known:
            raise ValueError(f"{what} has no column {name!r}{nearest(name, known)}; {cure}")
        if known.count(name) > 1:
            raise ValueError(f"{what} has {known.count(name)} columns named {name!r}: rename them")


def _columns_by_narwhals(frame: Any, wanted: list[str], what: str) -> dict[str, Any]:
    """Return columns of a frame as pyarrow arrays; a column of mixed kinds as a series of the frame's library."""
    cure = "pass a frame of pandas, polars or pyarrow, a dict of columns, or a structured array of numpy"
    if isinstance(frame, (str, Path)):
        raise TypeError(f"{what} must be a frame, got a path: Log.from_file, .from_csv and .from_parquet read files")
    if not hasattr(type(frame), "columns") and not hasattr(frame, "__arrow_c_stream__"):
        raise TypeError(f"{what} must be a frame, got {describe(frame)}: {cure}")
    nw = needed("narwhals", f"{what}, {type(frame).__name__} of {type(frame).__module__.partition('.')[0]},")
    pa = needed("pyarrow", "reading a frame")
    try:
        table = nw.from_native(frame)
    except TypeError as error:
        raise TypeError(f"{what} must be a frame, got {describe(frame)}: {cure}") from error
    except ValueError as error:
        raise ValueError(f"{what} cannot be read: {error}; rename columns that have one name") from error
    if isinstance(table, nw.LazyFrame):
        raise TypeError(f"{what} is not computed yet, {type(frame).__name__}: pass {what}.collect()")
    check_names(wanted, [str(name) for name in table.columns], what)
    columns = {}
    for name in wanted:
        series = table[name]
        try:
            columns[name] = series.to_arrow()
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            columns[name] = series.to_native()
    return columns


def decoded(column: Any) -> Any:
    """Convert a column to a numpy array without rounding: integers with missing entries become objects.

    Args:
        column: a column of any library; if pyarrow cannot read it, it is returned unchanged.
    """
    array, pa = arrow_array(column), arrow()
    if array is None:
        return column
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if array.null_count and pa.types.is_integer(array.type):
        import numpy as np

        return np.fromiter(array.to_pylist(), object, len(array))
    return array.to_numpy(zero_copy_only=False)
