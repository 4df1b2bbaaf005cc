"""Parse text with delimiters, once `files` knows its layout: columns of numbers or text, no id changed."""

from __future__ import annotations

import io
import re
from typing import IO, Any, NamedTuple

from torchrecmetrics.results.frames import needed
from torchrecmetrics.tables.frames import Columns, Roles, arrow, as_whole, check_names, compute

_MISSING = ["", "NaN", "nan", "NA", "N/A", "<NA>", "null", "NULL", "None"]
"""Unquoted text that means a missing entry; in quotes it is an id."""
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_LIST = r"""^\[(["'].*["']|-?[0-9]+([, ]+-?[0-9]+)*)?\]$"""
"""Text of a list, as Python and JSON write it."""
_NAMELESS = "\0"
"""Prefix of the names of columns that must be empty, such as the column between the two colons of "::"."""


class Layout(NamedTuple):
    """The format of a text file."""

    delimiter: str
    """Separator of columns; " " = any number of blanks and tabs."""
    names: tuple[str, ...]
    """Names of all columns; "" = a column that must be empty."""
    header: bool = False
    """True if the first line is a header."""
    quoted: bool = False
    """True if fields may be in double quotes."""


def read_delimited(stream: IO[bytes], layout: Layout, roles: Roles, what: str) -> Columns:
    """Read columns of text, and convert those that hold numbers.

    Args:
        stream: the file, opened.
        layout: its format.
        roles: the columns to read. Ids and times are whole numbers if all are written as such ("7", or all "7.0", but
            not "07"), and text otherwise; values must be numbers.
        what: name of the file in messages.

    Raises:
        ImportError: without pyarrow.
        ValueError: for lines of unequal width, values that are no numbers, text not in UTF-8, and files without rows.
    """
    table = Columns({}, what, 1 + layout.header)
    columns = _text_columns(stream, layout, roles, what)
    if not columns.num_rows:
        raise ValueError(f"{what} holds a header and no rows")
    for name in columns.column_names:
        if name.startswith(_NAMELESS):
            _check_empty(table, columns[name])
    if layout.header and _repeats_header(columns, roles):
        raise ValueError(f"{what} has its header twice: files that were joined need one header")
    for name in roles.names:
        table.columns[name] = _converted(table, name, columns[name], roles)
    return Columns.of(table.columns, what, table.first_line)


def _repeats_header(columns: Any, roles: Roles) -> bool:
    """Return True if a row has the names of the columns of users and items as its user and item."""
    pc = compute()
    rows = [pc.equal(columns[name].cast(arrow().string()), name) for name in (roles.user, roles.item)]
    return pc.any(pc.and_(*rows)).as_py() is True


def typed_table(stream: IO[bytes], layout: Layout, what: str) -> Any:
    """Return all columns as an Arrow table, numbers and dates as such, to see what columns hold.

    Columns whose entries are of several kinds are text.
    """
    pa, reader = needed("pyarrow", f"reading {what}"), needed("pyarrow.csv", f"reading {what}")
    names = [name or f"{_NAMELESS}{number}" for number, name in enumerate(layout.names)]
    content = _single_blanks(stream).getvalue() if layout.delimiter == " " else stream.read()
    for types in ({}, dict.fromkeys(names, pa.string())):
        try:
            return reader.read_csv(
                io.BytesIO(content),
                reader.ReadOptions(use_threads=False, column_names=names, skip_rows=int(layout.header)),
                reader.ParseOptions(delimiter=layout.delimiter, quote_char='"' if layout.quoted else False),
                reader.ConvertOptions(
                    include_columns=[name for name in names if not name.startswith(_NAMELESS)],
                    column_types=types,
                    null_values=_MISSING,
                    strings_can_be_null=True,
                ),
            )
        except pa.ArrowInvalid:  # a column that begins with numbers and goes on with text; `read` tells other faults
            continue
    return pa.table({name: pa.array([], pa.string()) for name in names})


def _text_columns(stream: IO[bytes], layout: Layout, roles: Roles, what: str) -> Any:
    """Return an Arrow table of text: the wanted columns, ids dictionary-encoded, and the columns that must be empty."""
    pa, reader = needed("pyarrow", f"reading {what}"), needed("pyarrow.csv", f"reading {what}")
    wanted = roles.names
    check_names(wanted, [name for name in layout.names if name], what)
    names = [name or f"{_NAMELESS}{number}" for number, name in enumerate(layout.names)]
    ids = pa.dictionary(pa.int32(), pa.string())
    uneven: list[Any] = []

    def on_uneven(row: Any) -> str:
        uneven.append(row)
        return "error"

    try:
        return reader.read_csv(
            _single_blanks(stream) if layout.delimiter == " " else stream,
            reader.ReadOptions(use_threads=False, column_names=names, skip_rows=int(layout.header)),
            reader.ParseOptions(
                delimiter=layout.delimiter,
                quote_char='"' if layout.quoted else False,
                invalid_row_handler=on_uneven,
                ignore_empty_lines=False,
            ),
            reader.ConvertOptions(
                include_columns=[*wanted, *(name for name in names if name.startswith(_NAMELESS))],
                column_types=dict.fromkeys(names, pa.string()) | {roles.user: ids, roles.item: ids},
                null_values=_MISSING,
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowException as error:
        if uneven:
            row = uneven[0]
            raise ValueError(
                f"{what}, line {row.number}: {row.actual_columns} columns, expected {row.expected_columns}: "
                f"{row.text[:80]!r}"
            ) from None
        check_encoding(stream, what)
        if "Empty CSV" in str(error):
            raise ValueError(f"{what} holds a header and no rows") from None
        raise ValueError(f"{what}: {error}") from error


def _single_blanks(stream: IO[bytes]) -> io.BytesIO:
    """Return the content with every run of blanks and tabs as one blank, and no blanks at the ends of lines."""
    lines = re.sub(rb"[ \t]+", b" ", stream.read())
    return io.BytesIO(re.sub(rb"^ | (?=\r?$)", b"", lines, flags=re.MULTILINE))


def _check_empty(table: Columns, column: Any) -> None:
    """Refuse text in a column that must be empty, such as the column between the two colons of "::"."""
    row = compute().index(compute().is_valid(column), True).as_py()
    if row >= 0:
        raise ValueError(f"{table.what}, {table.row(row)}: {column[row].as_py()!r} stands between two delimiters")


def _converted(table: Columns, name: str, column: Any, roles: Roles) -> Any:
    """Convert a column of text by its role: values to numbers; ids and times to whole numbers if all entries are."""
    if name == roles.value:
        return _as_numbers(table, name, column)
    if name == roles.time:
        return as_whole(column)
    column = column.combine_chunks()
    if not len(column.dictionary):
        return column
    ids = as_whole(column.dictionary)
    if ids is column.dictionary and compute().all(compute().match_substring_regex(ids, _LIST)).as_py():
        raise ValueError(
            f"{table.name(name)} holds whole lists, such as {ids[0].as_py()[:80]!r}: make lists of them, "
            f"frame[{name!r}] = frame[{name!r}].map(ast.literal_eval) of pandas, and pass the frame"
        )
    return arrow().DictionaryArray.from_arrays(column.indices, ids)


def _as_numbers(table: Columns, name: str, column: Any) -> Any:
    """Convert a column of text to integers if all entries are whole numbers, and to float64 otherwise."""
    pa, pc = arrow(), compute()
    numbers = as_whole(column)
    if numbers is not column:
        return numbers
    row = pc.index(pc.match_substring_regex(column, NUMBER), False).as_py()
    if row >= 0:
        text = column[row].as_py()
        cure = ": decimals have a point, not a comma" if re.fullmatch(r"[+-]?\d+,\d+", text) else ""
        raise ValueError(f"{table.name(name)} must hold numbers, got {text!r} in {table.row(row)}{cure}")
    return pc.cast(pc.replace_substring_regex(column, r"^\+", ""), pa.float64())


def check_encoding(stream: IO[bytes], what: str) -> None:
    """Refuse a file that is not UTF-8, and name the line."""
    stream.seek(0)
    for number, line in enumerate(stream, start=1):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            shown = line[max(0, error.start - 20) : error.start + 20]
            raise ValueError(
                f"{what}, line {number}: byte {error.start} is not UTF-8, in {shown!r}: save the file as UTF-8"
            ) from None
