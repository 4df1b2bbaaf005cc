"""Read interaction files: csv, parquet, json lines, qrels, LightGCN lines and other formats of data sets."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.data.frames import Roles, Table, check_names, compute, distinct, needed

# what stands for nothing in files of text; in quotes it is an id like others
_MISSING = ["", "NaN", "nan", "NA", "N/A", "<NA>", "null", "NULL", "None"]
_WHOLE = r"^(0|-?[1-9][0-9]*)$"
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_DELIMITERS = {"\t": "a tab", ";": "';'", "|": "'|'", ",": "','"}
_ROWS_AT_ONCE = 2**18
_NAMELESS = "\0"
"""Begins the names of columns that must be empty, between two delimiters of one."""
_RECBOLE = {"token", "token_seq", "float", "float_seq"}
_KNOWN = (
    ".csv, .tsv, .parquet, .jsonl, RecBole's .inter, MovieLens' u.data (.data, .base, .test) and ratings.dat, "
    "LightGCN's lines of 'user item item ...' (.txt), TREC's runs (.run, .trec, .txt) and qrels (.qrels)"
)


def read_file(path: str | Path, roles: Roles) -> Table:
    """Read columns of a file whose kind its name tells, and what stands in it confirms.

    | kind | told by | columns |
    |---|---|---|
    | csv, tsv | .csv, .tsv | those of the header |
    | parquet | .parquet, .pq | its own |
    | json lines | .jsonl, .ndjson | keys |
    | RecBole | .inter; a header of name:type | the names |
    | MovieLens | .data, .base, .test; four whole numbers, tabs between | user, item, rating, timestamp |
    | MovieLens | .dat; four fields, "::" between | user, item, rating, timestamp |
    | TREC run | .run, .trec, .txt; six words, the second Q0 | user, item, rank, score, tag |
    | TREC qrels | .qrels, .qrel; four words | user, item, relevance |
    | LightGCN | .txt; lines of whole numbers | user, item |

    Raises:
        ImportError: without pyarrow (LightGCN's lines need none).
        ValueError: for a file that is none of these, or not what its name says, or that lacks a column.
    """
    path = Path(path)
    kind = path.suffix.lower()
    if kind in (".csv", ".tsv"):
        return read_csv(path, roles)
    if kind in (".parquet", ".pq"):
        return read_parquet(path, roles)
    if kind in (".jsonl", ".ndjson"):
        return _read_jsonl(path, roles)
    first = _first_line(path)
    words = first.split()
    if kind == ".inter":
        fields = [field.partition(":") for field in first.split("\t")]
        if not all(name and type_ in _RECBOLE for name, _, type_ in fields):
            raise ValueError(
                f"{path} is no RecBole file: its header must be name:type, tabs between, got {first[:80]!r}"
            )
        return _read_text(path, roles, _Layout("\t", tuple(name for name, _, _ in fields), header=True))
    if kind in (".data", ".base", ".test"):
        if len(first.split("\t")) != 4 or not all(word.isdecimal() for word in words):
            raise ValueError(f"{path} is no file like MovieLens' u.data, four whole numbers and tabs: {first[:80]!r}")
        return _read_text(path, roles, _Layout("\t", ("user", "item", "rating", "timestamp")))
    if kind == ".dat":
        if len(first.split("::")) != 4:
            raise ValueError(f"{path} is no file like MovieLens' ratings.dat, user::item::rating::time: {first[:80]!r}")
        return _read_text(path, roles, _Layout(":", ("user", "", "item", "", "rating", "", "timestamp")))
    if kind in (".run", ".trec", ".txt") and len(words) == 6 and words[1].upper() == "Q0":
        return _read_text(path, roles, _Layout(" ", ("user", "Q0", "item", "rank", "score", "tag")))
    if kind in (".qrels", ".qrel"):
        if len(words) != 4:
            raise ValueError(f"{path} is no TREC qrels file, 'query 0 document relevance': {first[:80]!r}")
        return _read_text(path, roles, _Layout(" ", ("user", "0", "item", "relevance")))
    if kind == ".txt" and all(word.isdecimal() for word in words):
        check_names([name for name in roles if name is not None], ["user", "item"], str(path))
        (users, items), _ = read_lines(path)
        if not len(users):
            raise ValueError(f"{path} holds users alone, and no item")
        return Table({"user": users, "item": items}, str(path))
    raise ValueError(f"{path} is of no known kind; there are {_KNOWN}. A file of columns with a header: from_csv(path)")


def names_of(path: str | Path) -> list[str]:
    """Return the names of all columns of a file; those that its kind gives it, where it has no header."""
    path = Path(path)
    kind = path.suffix.lower()
    if kind in (".parquet", ".pq"):
        return parquet_names(path)
    if kind in (".csv", ".tsv"):
        return csv_header(path, None)
    first = _first_line(path)
    if kind in (".jsonl", ".ndjson"):
        return [*_open_jsonl(path).column_names]
    if kind == ".inter":
        return [field.partition(":")[0] for field in first.split("\t")]
    if is_run(path):
        return ["user", "item", "rank", "score", "tag"]
    if is_qrels(path):
        return ["user", "item", "relevance"]
    return ["user", "item", "rating", "timestamp"] if kind in (".data", ".base", ".test", ".dat") else ["user", "item"]


def parquet_names(path: str | Path) -> list[str]:
    """Return the names of the columns of a parquet file."""
    with _open_parquet(Path(path)) as file:
        return [*map(str, file.schema_arrow.names)]


def csv_header(path: str | Path, delimiter: str | None) -> list[str]:
    """Return the names in the first line of a csv file.

    Raises:
        ValueError: for a delimiter that is not one character, or not known from the file's name.
    """
    header = _first_line(Path(path))
    return next(csv.reader([header], delimiter=_delimiter_of(Path(path), header, delimiter)))


def _delimiter_of(path: Path, header: str, delimiter: str | None) -> str:
    """Return the delimiter: as given, a tab for .tsv, and for .csv a comma, or the only other one in the header."""
    if delimiter is None:
        if path.suffix.lower() == ".tsv":
            return "\t"
        if path.suffix.lower() != ".csv":
            raise ValueError(f"{path} ends neither in .csv nor in .tsv: say what parts its columns, delimiter=")
        others = [other for other in _DELIMITERS if other in header]
        return others[0] if len(others) == 1 else ","
    if len(delimiter) != 1:
        raise ValueError(f"delimiter must be one character, got {delimiter!r}")
    return delimiter


def times_in(path: str | Path) -> str | None:
    """Return the name of the column of times in a file of MovieLens; None for others, which may call it anything."""
    return "timestamp" if Path(path).suffix.lower() in (".data", ".base", ".test", ".dat") else None


def is_text(path: str | Path) -> bool:
    """Whether ids of a file are known by how they are written: "7" is a number there, if all others are, too."""
    return Path(path).suffix.lower() not in (".parquet", ".pq", ".jsonl", ".ndjson")


def is_run(path: str | Path) -> bool:
    """Whether a file is a run of TREC, by its name and its first line."""
    path = Path(path)
    words = _first_line(path).split() if path.suffix.lower() in (".run", ".trec", ".txt") else []
    return len(words) == 6 and words[1].upper() == "Q0"


def is_qrels(path: str | Path) -> bool:
    """Whether a file is called what qrels of TREC are."""
    return Path(path).suffix.lower() in (".qrels", ".qrel")


def parts_of(path: str | Path, roles: Roles) -> Iterator[Table]:
    """Read columns of a file part by part: parquet some rows at a time, other kinds whole.

    Errors are those of `read_file`.
    """
    path = Path(path)
    if path.suffix.lower() not in (".parquet", ".pq"):
        yield read_file(path, roles)
        return
    pa, wanted, done = needed("pyarrow", f"reading {path}"), distinct(roles), 0
    try:
        with _open_parquet(path, roles) as file:
            for part in file.iter_batches(_ROWS_AT_ONCE, columns=wanted, use_threads=False):
                yield Table({name: part.column(name) for name in wanted}, str(path), first_row=done)
                done += part.num_rows
    except (pa.ArrowException, OSError) as error:
        raise _cut_short(path, error) from error
    if not done:
        raise ValueError(f"{path} holds no rows")


def read_csv(path: str | Path, roles: Roles, delimiter: str | None = None) -> Table:
    """Read columns of a file with a header.

    Raises:
        ImportError: without pyarrow.
        ValueError: for another delimiter or encoding, lines of unequal width, text in place of numbers, and no rows.
    """
    path = Path(path)
    header = _first_line(path)
    delimiter = _delimiter_of(path, header, delimiter)
    names = next(csv.reader([header], delimiter=delimiter))
    if len(names) == 1:
        for other, said in _DELIMITERS.items():
            if other in header:
                raise ValueError(
                    f"{path}, line 1: {_DELIMITERS.get(delimiter, repr(delimiter))} is not in the header "
                    f"{header[:80]!r}, but {said}: pass delimiter={other!r}"
                )
    names = [name or f"Unnamed: {place}" for place, name in enumerate(names)]  # such as the index that pandas writes
    return _read_text(path, roles, _Layout(delimiter, tuple(names), header=True, quoted=True))


def read_parquet(path: str | Path, roles: Roles) -> Table:
    """Read columns of a parquet file, row group by row group.

    Raises:
        ImportError: without pyarrow.
        ValueError: for a file that is none, or cut short, without such a column, and without rows.
    """
    pa, wanted = needed("pyarrow", f"reading {path}"), distinct(roles)
    try:
        with _open_parquet(Path(path), roles) as file:
            groups = [
                file.read_row_group(group, columns=wanted, use_threads=False) for group in range(file.num_row_groups)
            ]
            rows = file.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        raise _cut_short(Path(path), error) from error
    if not rows:
        raise ValueError(f"{path} holds no rows")
    table = pa.concat_tables(groups)
    return Table({name: table[name] for name in wanted}, str(path))


def _open_parquet(path: Path, roles: Roles | None = None) -> Any:
    """Open a parquet file, which must have the columns of these roles."""
    pa, parquet = needed("pyarrow", f"reading {path}"), needed("pyarrow.parquet", f"reading {path}")
    _check_size(path)
    try:
        if roles is None:
            return parquet.ParquetFile(path)
        check_names(distinct(roles), parquet.read_schema(path).names, str(path))
        # ids of text are kept as numbers and the distinct words: a repeated one costs four bytes
        return parquet.ParquetFile(path, read_dictionary=[roles.user, roles.item])
    except (pa.ArrowException, OSError) as error:
        raise _cut_short(path, error) from error


def _cut_short(path: Path, error: Exception) -> Exception:
    """Say what is wrong with a parquet file that cannot be read; one that is not there is not wrong."""
    if isinstance(error, FileNotFoundError):
        return error
    return ValueError(f"{path} is no parquet file, or was cut short: {error}")


def _read_jsonl(path: Path, roles: Roles) -> Table:
    """Read keys of a file whose lines are objects."""
    table = _open_jsonl(path)
    wanted = distinct(roles)
    check_names(wanted, table.column_names, str(path))
    return Table({name: table[name] for name in wanted}, str(path), 1)


def _open_jsonl(path: Path) -> Any:
    """Read all keys of a file whose lines are objects: any line may have another one."""
    pa, reader = needed("pyarrow", f"reading {path}"), needed("pyarrow.json", f"reading {path}")
    first = _first_line(path)
    if not first.lstrip().startswith("{"):
        raise ValueError(f"{path}, line 1: expected an object, {{...}}, got {first[:80]!r}")
    try:
        table = reader.read_json(path, read_options=reader.ReadOptions(use_threads=False))
        table.validate(full=True)
    except pa.ArrowException as error:
        _check_encoding(path)
        raise ValueError(f"{path} (rows are counted from 0): {error}") from error
    return table


class _Layout(NamedTuple):
    """How a file of text is made."""

    delimiter: str
    """What stands between columns; a blank is any number of blanks and tabs."""
    names: tuple[str, ...]
    """Of all columns; "" = nothing stands there."""
    header: bool = False
    """Whether the first line is one."""
    quoted: bool = False
    """Whether double quotes may stand around a field."""


def _read_text(path: Path, roles: Roles, layout: _Layout) -> Table:
    """Read columns of text, and make numbers of those that are."""
    columns = _text_columns(path, roles, layout)
    found = Table({}, str(path), 1 + layout.header)
    if not columns.num_rows:
        raise ValueError(f"{path} holds a header and no rows")
    for name in columns.column_names:
        if name.startswith(_NAMELESS):
            _check_empty(found, columns[name])
    for name in distinct(roles):
        found.columns[name] = _typed(found, name, columns[name], roles)
    return found


def _text_columns(path: Path, roles: Roles, layout: _Layout) -> Any:
    """Return an arrow table of text: the wanted columns, ids with distinct words, and those that must be empty."""
    pa, reader = needed("pyarrow", f"reading {path}"), needed("pyarrow.csv", f"reading {path}")
    wanted = distinct(roles)
    check_names(wanted, [name for name in layout.names if name], str(path))
    names = [name or f"{_NAMELESS}{place}" for place, name in enumerate(layout.names)]
    ids = pa.dictionary(pa.int32(), pa.string())
    wrong: list[Any] = []

    def uneven(row: Any) -> str:
        wrong.append(row)
        return "error"

    try:
        return reader.read_csv(
            _single_blanks(path) if layout.delimiter == " " else path,
            reader.ReadOptions(use_threads=False, column_names=names, skip_rows=int(layout.header)),
            reader.ParseOptions(
                delimiter=layout.delimiter,
                quote_char='"' if layout.quoted else False,
                invalid_row_handler=uneven,
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
        if wrong:
            row = wrong[0]
            raise ValueError(
                f"{path}, line {row.number}: {row.actual_columns} columns, expected {row.expected_columns}: "
                f"{row.text[:80]!r}"
            ) from None
        _check_encoding(path)
        if "Empty CSV" in str(error):
            raise ValueError(f"{path} holds a header and no rows") from None
        raise ValueError(f"{path}: {error}") from error


def _single_blanks(path: Path) -> io.BytesIO:
    """Return the content of a file, one blank in place of several blanks and tabs, none at the ends of lines."""
    lines = re.sub(rb"[ \t]+", b" ", path.read_bytes())
    return io.BytesIO(re.sub(rb"^ | (?=\r?$)", b"", lines, flags=re.MULTILINE))


def _check_empty(table: Table, column: Any) -> None:
    """Refuse text between two delimiters where there must be none."""
    row = compute().index(compute().is_valid(column), True).as_py()
    if row >= 0:
        raise ValueError(f"{table.what}, {table.row(row)}: {column[row].as_py()!r} stands between two delimiters")


def _typed(table: Table, name: str, column: Any, roles: Roles) -> Any:
    """Return a column of text as what its role says: numbers, or ids and times that may be whole numbers."""
    pa = needed("pyarrow", "reading a file")
    if name == roles.value:
        return _as_numbers(table, name, column)
    if name == roles.time:
        return _as_whole(column)
    column = column.combine_chunks()
    if not len(column.dictionary):
        return column
    return pa.DictionaryArray.from_arrays(column.indices, _as_whole(column.dictionary))


def _as_whole(column: Any) -> Any:
    """Return text as whole numbers of 64 bits if all of it is written as such, and as it is otherwise."""
    pa, pc = needed("pyarrow", "reading a file"), compute()
    if not pc.all(pc.match_substring_regex(column, _WHOLE)).as_py():
        return column
    for type_ in (pa.int64(), pa.uint64()):
        try:
            return pc.cast(column, type_)
        except pa.ArrowInvalid:
            pass
    return column


def _as_numbers(table: Table, name: str, column: Any) -> Any:
    """Return text as whole numbers, or else as float64."""
    pa, pc = needed("pyarrow", "reading a file"), compute()
    whole = _as_whole(column)
    if whole is not column:
        return whole
    fits = pc.match_substring_regex(column, _NUMBER)
    row = pc.index(fits, False).as_py()
    if row >= 0:
        raise ValueError(f"{table.name(name)} must hold numbers, got {column[row].as_py()!r} in {table.row(row)}")
    return pc.cast(pc.replace_substring_regex(column, r"^\+", ""), pa.float64())


def _check_size(path: Path) -> None:
    if path.is_dir():
        raise ValueError(f"{path} is a folder: pass one file")
    if not path.stat().st_size:
        raise ValueError(f"{path} is empty: it holds no rows")


def _first_line(path: Path) -> str:
    """Return the first line of a file that is not empty, without its end."""
    _check_size(path)
    with path.open("rb") as file:
        line = re.split(rb"[\r\n]", file.readline(2**20), maxsplit=1)[0]
    try:
        return line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}, line 1 is not UTF-8 ({error.reason}): save the file as UTF-8") from None


def _check_encoding(path: Path) -> None:
    """Refuse a file that is not UTF-8, and say where."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                shown = line[max(0, error.start - 20) : error.start + 20]
                raise ValueError(
                    f"{path}, line {number}: byte {error.start} is not UTF-8, in {shown!r}: save the file as UTF-8"
                ) from None


_EDGE_FILES = (
    "a file of edges, such as 'user item rating time', is read column by column, for instance with pandas.read_csv or "
    "numpy.loadtxt, and built with Interactions.from_columns(user, item, rating), or split with "
    "Interactions.leave_last_out(user, item, time)"
)


def read_lines(path: Path) -> tuple[Tensor, Tensor]:
    """Read the edges [2, E] of a file of `user item item ...` lines, and the user of each line."""
    users, counts, items = [], [], []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig", errors="replace").splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        if not all(word.isdecimal() and len(word) < 19 for word in words):
            raise ValueError(
                f"{path}, line {number}: expected whole numbers 'user item item ...', got {line[:60]!r}; {_EDGE_FILES}"
            )
        user, *rest = map(int, words)
        users.append(user)
        counts.append(len(rest))
        items += rest
    if set(counts) in ({2}, {3}) and len(set(users)) < len(users):
        user = next(user for user, times in Counter(users).items() if times > 1)
        raise ValueError(
            f"{path} has {1 + counts[0]} columns in every line and user {user} in several: these seem to be edges, not "
            f"'user item item ...'; {_EDGE_FILES}"
        )
    columns = tuple(torch.tensor(x, dtype=torch.int64, device="cpu") for x in (users, counts, items))
    return torch.stack([columns[0].repeat_interleave(columns[1]), columns[2]]), columns[0]
