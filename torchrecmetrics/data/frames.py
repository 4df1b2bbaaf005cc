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

from torchrecmetrics.checks import check_choice, describe, nearest

_EXTRA = "pip install 'torchrecmetrics[frames]'"


_USUAL_NAMES = {
    "time": re.compile(r"time|timestamp|date|datetime|unix.*", re.IGNORECASE),
    "value": re.compile(r"label|rating|relevance|gain|grade|value", re.IGNORECASE),
}


class Roles(NamedTuple):
    """Names of columns by role."""

    user: str
    item: str
    time: str | None = None
    value: str | None = None


def distinct(names: NamedTuple) -> list[str]:
    """Return the names that were given, of columns by their roles.

    Raises:
        ValueError: if one column is to hold two things.
    """
    given = {role: name for role, name in names._asdict().items() if name is not None}
    for role, name in given.items():
        if len(same := [other for other in given if given[other] == name]) > 1:
            raise ValueError(f"column {name!r} cannot be {' and '.join(same)} at once: {role}=... says which is")
    return list(given.values())


class Table(NamedTuple):
    """Columns that were read from somewhere."""

    columns: dict[str, Any]
    """By name."""
    what: str
    """Where they are from, for messages: "frame", or a path."""
    first_line: int | None = None
    """Number of the line that holds row 0, where they are lines of a file."""
    first_row: int = 0
    """Rows of the file before these, where they are a part of one."""

    def row(self, row: int) -> str:
        """Name a row, for a message."""
        row += self.first_row
        return f"row {row}" if self.first_line is None else f"row {row} (line {row + self.first_line})"

    def name(self, column: str) -> str:
        """Name a column, for a message."""
        return f"column {column!r} of {self.what}"


class Source(ABC):
    """Named columns of a frame or a file, of which some are read."""

    what: str
    """Its name in messages: a path, or the argument's name."""
    names: list[str]
    """Of all columns."""
    known: Mapping[str, str]
    """Names of columns by role, where the format says them, such as TREC's score."""
    as_written: bool = False
    """True if ids are known by how they are written: "7" is a number if all ids of the column are."""

    @abstractmethod
    def read(self, roles: Roles) -> Table:
        """Read columns.

        Raises:
            ValueError: if there is no such column, and for unreadable content; names row and column.
        """

    def parts(self, roles: Roles) -> Iterator[Table]:
        """Read columns part by part, where the format allows it."""
        yield self.read(roles)

    def sample(self, roles: Roles) -> Table:
        """Read columns of the first rows."""
        return next(self.parts(roles))

    def roles(
        self,
        user: str,
        item: str,
        time: str | EllipsisType | None = None,
        value: str | EllipsisType | None = None,
    ) -> Roles:
        """Return the columns to read; `...` means that the caller did not name one.

        Raises:
            ValueError: if the caller did not name a column of times or values, and one has a usual name for it.
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
        fields = getattr(getattr(frame, "dtype", None), "names", None)
        if isinstance(frame, Mapping) or fields is not None:
            names = frame if fields is None else fields
        elif hasattr(frame, "collect_schema"):  # polars warns where lazy frames are asked for their columns
            names = frame.collect_schema().names()
        else:  # pyarrow's `columns` are the data; an object that is no frame has none, and `read` refuses it
            names = getattr(frame, "column_names", getattr(frame, "columns", ()))
        self.names = [*map(str, names)]

    def read(self, roles: Roles) -> Table:
        """Return columns."""
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
    """Return pyarrow.compute, where pyarrow is installed."""
    return importlib.import_module("pyarrow.compute")


def needed(module: str, what: str) -> Any:
    """Import a module of the extra `frames`.

    Raises:
        ImportError: if it is not installed; names its purpose and the extra that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{what} needs {module.partition('.')[0]}: {_EXTRA}") from error


def arrow_array(column: Any) -> Any:
    """Return a column as one pyarrow array, without a copy where its library allows it; None if it has no such way out.

    None too without pyarrow, and for a column that mixes types, which is refused elsewhere.
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
    if pa.types.is_string(array.type) or pa.types.is_binary(array.type):  # whose chunks may hold 2 GB together
        array = array.cast(pa.large_string() if pa.types.is_string(array.type) else pa.large_binary())
    return array.combine_chunks()


def gap_in(column: Any) -> int | None:
    """Return the first row that is missing in a column of pyarrow; None for others, and where none is."""
    pa = arrow()
    if pa is None or not isinstance(column, (pa.Array, pa.ChunkedArray)) or not column.null_count:
        return None
    return int(compute().index(column.is_null(), True).as_py())


def columns_of(frame: Any, names: Iterable[str | None], what: str = "frame") -> dict[str, Any]:
    """Return the columns of these names; None among the names asks for nothing.

    Args:
        frame: a frame of pandas, polars, pyarrow or whatever else narwhals reads, a dict of columns, or a structured
            array of numpy.
        names: of the columns.
        what: the frame's name in messages.

    Raises:
        TypeError: if it is no frame, or one that is not computed yet; says how it becomes one.
        ValueError: if it has no such column (names those that there are, and the nearest), or several of that name.
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
_NULLABLE = {  # types that hold gaps, by the kind of a column
    "pandas": {"whole numbers": "Int64", "floats": "float64", "text": "object"},
    "polars": {"whole numbers": "Int64", "floats": "Float64", "text": "String"},
    "pyarrow": {"whole numbers": "int64", "floats": "float64", "text": "string"},
}


def frame_of(library: str, columns: dict[str, list[Any]], gaps: Mapping[str, str] | None = None) -> Any:
    """Make a frame of columns.

    Args:
        library: "pandas", "polars" or "pyarrow".
        columns: by name.
        gaps: the kind of columns that may hold None, "whole numbers", "floats" or "text": their type is then the same
            whatever they hold.

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
    """Refuse names of columns that are not there, or there more than once."""
    if not any(known):
        raise ValueError(f"{what} has no named columns: the first line of a file, or a frame's columns, names them")
    for name in wanted:
        if name not in known:
            raise ValueError(f"{what} has no column {name!r}{nearest(name, known)}; {cure}")
        if known.count(name) > 1:
            raise ValueError(f"{what} has {known.count(name)} columns named {name!r}: rename them")


def _columns_by_narwhals(frame: Any, wanted: list[str], what: str) -> dict[str, Any]:
    """Return columns of a frame as pyarrow arrays, or as its own where they mix kinds."""
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
        raise TypeError(f"{what} must be a frame, got {describe(frame)}: {cure} ({error})") from error
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
    """Return a column that numpy holds without rounding: integers with gaps become objects.

    Args:
        column: of a library that pyarrow reads, or anything else, which is returned as it is.
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
