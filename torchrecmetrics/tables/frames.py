"""`Source`: named columns that a frame or a file holds; `source_of_frame` makes one of anything in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torchrecmetrics.core.checks import describe
from torchrecmetrics.tables.columns import arrow


class Source(NamedTuple):
    """A frame or a file, whose columns are read by name."""

    what: str
    """Name of the source in messages: a path, or the name of an argument."""
    names: Sequence[str]
    """Names of all columns."""
    read: Callable[[Sequence[str], Sequence[str]], dict[str, Any]]
    """Returns columns of any library by name; takes the names of the columns, and which of them are ids."""
    roles: Mapping[str, str] = {}
    """Names of columns by role, if the format fixes them, such as TREC's score."""
    written: bool = False
    """True if ids are text in the file: "7" counts as a number only if all ids of the column are whole numbers."""
    first_line: int | None = None
    """Line number of the file's row 0; None = rows are not lines of a file."""


def source_of_frame(frame: Any, what: str) -> Source:
    """Return the columns of a frame of pandas, polars, pyarrow or another library with Arrow's interface, of a dict of
    columns, a list of records or a structured array.

    Raises:
        TypeError: for anything else.
    """
    if isinstance(frame, (str, Path)):
        raise TypeError(f"{what} must be a frame, got a path: Log.from_file reads files")
    if type(frame).__name__ == "Series":
        form = f"{what}.to_dict()" if hasattr(frame, "to_dict") else "a frame that also holds the users"
        raise TypeError(f"{what} is a Series: if it holds the items of each user, pass {form}")
    if hasattr(frame, "collect"):
        raise TypeError(f"{what} is not computed yet, {type(frame).__name__}: pass {what}.collect()")
    columns = _columns(frame)
    if columns is None:
        raise TypeError(
            f"{what} must be a frame, got {describe(frame)}: pass a frame of pandas, polars or pyarrow, a dict of "
            "columns, a list of records, or a structured array of numpy"
        )
    names = {str(name): name for name in columns.names}

    def read(wanted: Sequence[str], ids: Sequence[str]) -> dict[str, Any]:
        return {name: columns.frame[names[name]] for name in wanted}

    return Source(what, [*map(str, columns.names)], read)


class _Frame(NamedTuple):
    """Anything whose columns are `frame[name]`."""

    frame: Any
    names: Sequence[Any]


def _columns(frame: Any) -> _Frame | None:
    """Return a frame and the names of its columns; None = it is no frame."""
    if holds_records(frame):
        frame = _columns_of_records(frame)
    if isinstance(frame, Mapping):
        return _Frame(frame, [*frame])
    if hasattr(frame, "column_names"):  # pyarrow
        return _Frame(frame, frame.column_names)
    if hasattr(frame, "iloc"):  # pandas
        frame = _with_named_index(frame)
    elif hasattr(frame, "__arrow_c_stream__") and not hasattr(frame, "get_column"):  # another library than polars
        frame = arrow().table(frame)
        return _Frame(frame, frame.column_names)
    fields = getattr(getattr(frame, "dtype", None), "names", None)  # of a structured array
    if fields is None and not hasattr(frame, "columns"):
        return None
    return _Frame(frame, fields or [*frame.columns])


def may_be_frame(value: Any) -> bool:
    """Return True for anything that `source_of_frame` takes, or refuses with advice."""
    names = ("collect", "column_names", "columns", "iloc", "__arrow_c_stream__")  # a lazy frame computes its columns
    has_fields = getattr(getattr(value, "dtype", None), "names", None) is not None
    return isinstance(value, Mapping) or holds_records(value) or has_fields or any(hasattr(value, n) for n in names)


def _with_named_index(frame: Any) -> Any:
    """Return a frame of pandas in which the named levels of the index are columns, too."""
    levels = [name for name in frame.index.names if name is not None and name not in frame.columns]
    return frame.reset_index(levels) if levels else frame


def holds_records(frame: Any) -> bool:
    """Return True for a list of dicts, or of tuples, whose columns are named 0, 1, 2, ... as those of pandas."""
    return isinstance(frame, list) and bool(frame) and all(isinstance(row, (Mapping, tuple)) for row in frame)


def _columns_of_records(records: list[Any]) -> dict[str, list[Any]]:
    """Return the values of records by key; a record without a key has a missing entry."""
    rows = [row if isinstance(row, Mapping) else dict(enumerate(row)) for row in records]
    keys = {str(key): key for row in rows for key in row}
    return {name: [row.get(key) for row in rows] for name, key in keys.items()}
