"""Parse text with delimiters, once `files` knows its layout: columns of numbers or text, no id changed."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import IO, Any, NamedTuple

from torchrecmetrics.core.extras import needed
from torchrecmetrics.tables.sources import Columns, Roles, arrow, as_numbers, as_whole, check_names, compute

_MISSING = ["", "NaN", "nan", "NA", "N/A", "<NA>", "null", "NULL", "None"]
"""Unquoted text that means a missing entry; in quotes it is an id."""
_LIST = r"""^\[(["'].*["']|-?[0-9]+([, ]+-?[0-9]+)*)?\]$"""
"""Text of a list, as Python and JSON write it."""
_MAX_BLOCK = 2**31 - 1


class TextLayout(NamedTuple):
    """The format of a text file."""

    delimiter: str
    """Separator of columns; " " = any number of blanks and tabs; "::" is the only one of two characters."""
    names: tuple[str, ...]
    """Names of all columns."""
    header: bool = False
    """True if the first line is a header."""
    quoted: bool = False
    """True if fields may be in double quotes."""

    def reader(self, what: str, header: bool = True) -> str:
        """Return code that makes a frame of the file; without a header its columns are numbered."""
        return f"pandas.read_csv({what!r}, sep={self.delimiter!r}{'' if header else ', header=None'}, dtype=str)"


def read_delimited(stream: IO[bytes], layout: TextLayout, roles: Roles, what: str) -> Columns:
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
    pc, names = compute(), (roles.user, roles.item)
    is_header = [pc.equal(columns[name].cast(arrow().string()), name) for name in names if layout.header]
    if is_header and pc.any(pc.and_(*is_header)).as_py():
        raise ValueError(f"{what} has its header twice: files that were joined need one header")
    for name in roles.names:
        table.columns[name] = _converted_text(table, name, columns[name], roles, layout)
    return Columns.of(table.columns, what, table.first_line)


def typed_table(stream: IO[bytes], layout: TextLayout, what: str) -> Any:
    """Return all columns as an Arrow table, numbers and dates as such; columns of several kinds are text."""
    pa, reader = needed("pyarrow", f"reading {what}"), needed("pyarrow.csv", f"reading {what}")
    check_names(layout.names, [*layout.names], what)
    for types in ({}, dict.fromkeys(layout.names, pa.string())):
        convert = reader.ConvertOptions(column_types=types, null_values=_MISSING, strings_can_be_null=True)
        try:
            return _read_csv(stream, layout, convert)
        except pa.ArrowInvalid:  # a column that begins with numbers and goes on with text; `read` tells other faults
            continue
    return pa.table({name: pa.array([], pa.string()) for name in layout.names})


def _text_columns(stream: IO[bytes], layout: TextLayout, roles: Roles, what: str) -> Any:
    """Return an Arrow table of text: the wanted columns, ids dictionary-encoded."""
    pa, reader = needed("pyarrow", f"reading {what}"), needed("pyarrow.csv", f"reading {what}")
    check_names(roles.names, [*layout.names], what)
    ids = pa.dictionary(pa.int32(), pa.string())
    uneven: list[Any] = []

    def on_uneven(row: Any) -> str:
        uneven.append(row)
        return "error"

    convert = reader.ConvertOptions(
        include_columns=roles.names,
        column_types=dict.fromkeys(roles.names, pa.string()) | {roles.user: ids, roles.item: ids},
        null_values=_MISSING,
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    try:
        return _read_csv(stream, layout, convert, invalid_row_handler=on_uneven, ignore_empty_lines=False)
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
        raise ValueError(f"{what}: {str(error)[:400]}") from error


def _read_csv(stream: IO[bytes], layout: TextLayout, convert: Any, **options: Any) -> Any:
    """Return an Arrow table of a file of the given layout; `options` are those of pyarrow's `ParseOptions`."""
    reader = needed("pyarrow.csv", "reading files")
    stream.seek(0)
    content, delimiter = stream, layout.delimiter
    if delimiter in (" ", "::"):
        content, delimiter = _single_delimiters(stream, delimiter)
    parse = reader.ParseOptions(delimiter=delimiter, quote_char='"' if layout.quoted else False, **options)
    lines = {"use_threads": False, "column_names": layout.names, "skip_rows": int(layout.header)}
    return read_whole_lines(
        lambda **block: reader.read_csv(content, reader.ReadOptions(**lines, **block), parse, convert), content
    )


def read_whole_lines(read: Callable[..., Any], stream: IO[bytes]) -> Any:
    """Return the result of `read()`, or of `read(block_size=)` if a line is longer than a block of pyarrow's size."""
    stream.seek(0)
    try:
        return read()
    except arrow().ArrowInvalid as error:
        if "block size" not in str(error):
            raise
    size = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    return read(block_size=min(size + 1, _MAX_BLOCK))


def _single_delimiters(stream: IO[bytes], delimiter: str) -> tuple[IO[bytes], str]:
    """Return the content with one character between columns, and this character, of a file with blanks or "::"."""
    if delimiter == "::":
        return io.BytesIO(stream.read().replace(b"::", b"\t")), "\t"
    lines = re.sub(rb"[ \t]+", b" ", stream.read())
    return io.BytesIO(re.sub(rb"^ | (?=\r?$)", b"", lines, flags=re.MULTILINE)), delimiter


def _converted_text(table: Columns, name: str, column: Any, roles: Roles, layout: TextLayout) -> Any:
    """Convert a column of text by its role: values to numbers; ids and times to whole numbers if all entries are."""
    if name == roles.value:
        return as_numbers(table, name, column, layout.reader if layout.quoted else None)
    if name == roles.time:
        return as_whole(column)
    column = column.combine_chunks()
    if not len(column.dictionary):
        return column
    ids = as_whole(column.dictionary)
    if ids is column.dictionary and compute().all(compute().match_substring_regex(ids, _LIST)).as_py():
        cell = ids[0].as_py()
        raise ValueError(
            f"{table.name(name)} holds whole lists, such as {cell[:80]!r}: make lists of them, "
            f"frame[{name!r}] = frame[{name!r}]{list_of_text(cell)} of pandas, and pass the frame"
        )
    return arrow().DictionaryArray.from_arrays(column.indices, ids)


def list_of_text(cell: str) -> str:
    """Return the method of pandas that makes lists of cells such as `cell`, which Python or numpy wrote."""
    is_of_numpy = "," not in cell and re.search(r"\S\s+\S", cell.strip("[( )]"))
    return r""".str.findall(r"[^\s\[\]'\"]+")""" if is_of_numpy else ".map(ast.literal_eval)"


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
