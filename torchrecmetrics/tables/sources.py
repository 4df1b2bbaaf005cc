"""`Source`: named columns that a frame or a file holds, and how to read them."""

from __future__ import annotations

import codecs
import csv
import io
import json
import lzma
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.core.checks import describe, needed
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


_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".xz": "xz"}
_DELIMITERS = ",;\t|"
_MISSING = ["", "NaN", "nan", "NA", "N/A", "<NA>", "null", "NULL", "None"]
"""Unquoted text that means a missing entry; in quotes it is an id."""
_BLOCK_BYTES = 2**20
"""Bytes of a text file that are parsed at once, unless a line is longer."""
_FIRST_LINE_BYTES = 2**22
"""Most bytes of the first line that are looked at."""
_MAX_DEPTH = 1000
"""Most brackets of JSON within each other; from some thousands on, pyarrow's reader crashes."""
_NUMBER = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
_RECBOLE = {"token", "token_seq", "float", "float_seq"}
_MOVIELENS = ("user", "item", "rating", "timestamp")
_FORMATS = (
    ".csv, .tsv, .parquet, .json, .jsonl, .ndjson, RecBole's .inter, MovieLens' u.data (.data, .base, .test) and "
    "ratings.dat, LightGCN's lines of 'user item item ...' (.txt), TREC's runs (.run, .trec, .txt) and qrels (.qrels, "
    "or qrels in the name), each also with .gz, .bz2, .xz or .zst behind it"
)


def open_file(path: str | Path, delimiter: str | None = None) -> Source:
    """Open a file in the format that its name implies, and check the format by its first line.

    | format | name | columns |
    |---|---|---|
    | csv, tsv | .csv, .tsv | those of the header |
    | parquet | .parquet, .pq, any name | those of the file |
    | json lines, or a list of objects | .jsonl, .ndjson, .json | the keys |
    | RecBole | .inter; a header of name:type | the names |
    | MovieLens | .data, .base, .test; four whole numbers, tabs between | user, item, rating, timestamp |
    | MovieLens | .dat; four fields, "::" between | user, item, rating, timestamp |
    | TREC run | .run, .trec, also .txt; five words or more, the second Q0 or 0 | user, item, rank, score, tag |
    | TREC qrels | .qrels, .qrel, or qrels in the name; four words | user, item, relevance |
    | LightGCN | .txt; lines of whole numbers | user, item |

    Compressed files end in .gz, .bz2, .xz or .zst. A folder of parquet files is one table. Text is UTF-8; blank lines
    are no rows. If the name has no suffix, as /dev/stdin, the first bytes identify parquet, json lines, runs and qrels;
    any other content must be csv with a header.

    Args:
        path: path of the file.
        delimiter: separator of a csv file, one character, whatever its name; None = a tab for .tsv, otherwise the only
            one of ",", ";", tab and "|" that is in the header, and "," if the header has several or none.

    Raises:
        ImportError: without pyarrow.
        ValueError: for an unknown format, such as zip, tar and UTF-16, content that contradicts the name, an empty
            file, and other folders.
    """
    path = Path(path)
    arrow(f"reading {path}")
    if path.is_dir():
        _check_folder(path)
        return _parquet(path, None)
    content = _content(path)
    suffix, words = content.suffix, content.first_line.split()
    is_run = len(words) >= 5 and words[1].upper() in ("Q0", "0") and bool(re.fullmatch(_NUMBER, words[4]))
    if suffix in (".parquet", ".pq") or content.first_line.startswith("PAR1"):
        return _parquet(path, content.data)
    if delimiter is not None or suffix in (".csv", ".tsv"):
        return _csv(content, delimiter)
    if suffix in (".jsonl", ".ndjson", ".json") or (not suffix and content.first_line.lstrip()[:1] in ("{", "[")):
        return _json(content)
    if suffix == ".inter":
        return _recbole(content)
    if suffix in (".run", ".trec") or (suffix in (".txt", "") and is_run):
        return _run(content, len(words))
    if suffix in (".qrels", ".qrel") or "qrels" in path.name or (not suffix and words[1:2] in (["0"], ["Q0"])):
        return _qrels(content, len(words))
    if suffix in (".data", ".base", ".test", ".dat"):
        return _movielens(content)
    if suffix == ".txt" and all(word.isdecimal() for word in words):
        return _item_lists(content)
    if not suffix:
        return _csv(content, None)
    raise ValueError(f"{path} is of no known kind; there are {_FORMATS}. For another table, pass delimiter=','")


# ------------------------------------------------------------------------------------------------------------- content


class _Content(NamedTuple):
    """Content of a file; compressed files, and pipes, which cannot be read twice, are read into memory at once."""

    path: Path
    suffix: str
    """The suffix in lower case, without that of a compression."""
    data: bytes | None
    """The content; None = it is read from the path."""
    first_line: str

    def open(self) -> IO[bytes]:
        """Return the content as a file that is open at its beginning."""
        return self.path.open("rb") if self.data is None else io.BytesIO(self.data)


def _content(path: Path) -> _Content:
    """Return the content of a file, decompressed as its suffix says; refuse what is not read as text or parquet."""
    data = None if path.is_file() else path.read_bytes()
    compression = _COMPRESSIONS.get(path.suffix.lower())
    if compression is not None:
        data = _decompressed(path, path.read_bytes() if data is None else data, compression)
    suffix = Path(path.name if compression is None else path.stem).suffix.lower()
    content = _Content(path, suffix, data, "")
    with content.open() as file:
        line = file.readline(_FIRST_LINE_BYTES)
    if not line.startswith(b"PAR1"):
        _check_text(path, 1, line)
    if not line.strip() and not (path.read_bytes() if data is None else data).strip():
        raise ValueError(f"{path} is empty: it holds no rows")
    return content._replace(first_line=re.split(r"[\r\n]", line.decode("utf-8-sig", "replace"), maxsplit=1)[0])


def _check_text(path: Path, number: int, line: bytes) -> None:
    """Refuse a line of a file that is not text in UTF-8, such as one of a zip file."""
    try:
        fault = "a byte is 0" if "\0" in codecs.getincrementaldecoder("utf-8")().decode(line) else ""
    except UnicodeDecodeError as error:
        fault = f"byte {error.start} is not UTF-8, in {line[max(0, error.start - 20) : error.start + 20]!r}"
    if fault:
        raise ValueError(
            f"{path}, line {number}: {fault}: save the file as UTF-8, or read it with pandas (zip, tar, UTF-16), and "
            "pass the frame; compressed files end in .gz, .bz2, .xz or .zst"
        )


def _decompressed(path: Path, data: bytes, compression: str) -> bytes:
    pa = arrow()
    try:
        if compression == "xz":
            return lzma.decompress(data)
        with pa.CompressedInputStream(pa.BufferReader(data), compression) as stream:
            return bytes(stream.read())
    except (pa.ArrowException, lzma.LZMAError, OSError) as error:
        raise ValueError(f"{path} is no {compression} file, or was cut short: {error}") from error


@contextmanager
def _naming(path: Path, what: str) -> Iterator[None]:
    """Name the file in errors of pyarrow."""
    try:
        yield
    except (arrow().ArrowException, OSError) as error:
        raise ValueError(f"{path} is no {what}, or was cut short: {str(error)[:400]}") from error


# -------------------------------------------------------------------------------------------------------- text files


class _Layout(NamedTuple):
    """The format of a text file."""

    delimiter: str
    """Separator of columns; " " = any number of blanks and tabs; "::" is the only one of two characters."""
    names: tuple[str, ...]
    """Names of all columns."""
    header: bool = False
    """True if the first line is a header."""
    quoted: bool = False
    """True if fields may be in double quotes."""


def _text(content: _Content, layout: _Layout, roles: Mapping[str, str] | None = None) -> Source:
    """Return the source of a text file; ids are read as text, other columns as numbers where all entries are."""
    if layout.header:
        _check_rows(content)

    def read(wanted: Sequence[str], ids: Sequence[str]) -> dict[str, Any]:
        reader, pa = needed("pyarrow.csv", "reading files"), arrow()
        convert = reader.ConvertOptions(
            include_columns=wanted,
            column_types=dict.fromkeys(ids, pa.dictionary(pa.int32(), pa.string())),
            null_values=_MISSING,
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )

        def parsed(file: IO[bytes], block_size: int) -> Any:
            stream, delimiter = _single_delimiters(file, layout.delimiter)
            lines = reader.ReadOptions(
                use_threads=False, block_size=block_size, column_names=layout.names, skip_rows=int(layout.header)
            )
            parse = reader.ParseOptions(delimiter=delimiter, quote_char='"' if layout.quoted else False)
            return reader.read_csv(stream, lines, parse, convert)

        with _naming(content.path, "table of this delimiter in UTF-8"):
            table = _in_blocks(content, parsed)
        if layout.header:
            _check_header(content.path, {name: table[name] for name in ids})
        return {name: table[name] for name in wanted}

    return Source(str(content.path), layout.names, read, roles or {}, written=True, first_line=1 + layout.header)


def _in_blocks(content: _Content, parsed: Callable[[IO[bytes], int], Any]) -> Any:
    """Return the table that `parsed(file, block_size)` reads; a file with a line longer than a block is one block."""
    try:
        with content.open() as file:
            return parsed(file, _BLOCK_BYTES)
    except arrow().ArrowInvalid:
        with content.open() as file:
            for number, line in enumerate(file, start=1):
                _check_text(content.path, number, line)
            size = file.tell()
            file.seek(0)
            return parsed(file, min(size + 1, 2**31 - 1))


def _check_rows(content: _Content) -> None:
    """Refuse a file that ends after its header."""
    with content.open() as file:
        if not re.search(rb"[\r\n]\s*\S", file.read(len(content.first_line.encode()) + 2**12)):
            raise ValueError(f"{content.path} holds a header and no rows")


def _check_header(path: Path, ids: Mapping[str, Any]) -> None:
    """Refuse a table with a row in which the ids are the names of their columns; `ids` are the columns by name."""
    pa = arrow()
    masks = [pa.compute.equal(column.cast(pa.string()), name) for name, column in ids.items()]
    if len(masks) > 1 and pa.compute.any(pa.compute.and_(*masks)).as_py():
        raise ValueError(f"{path} has its header twice: files that were joined need one header")


def _single_delimiters(stream: IO[bytes], delimiter: str) -> tuple[IO[bytes], str]:
    """Return the content with one character between columns, and this character."""
    if delimiter == "::":
        return io.BytesIO(stream.read().replace(b"::", b"\t")), "\t"
    if delimiter == " ":
        lines = re.sub(rb"[ \t]+", b" ", stream.read())
        return io.BytesIO(re.sub(rb"^ | (?=\r?$)", b"", lines, flags=re.MULTILINE)), " "
    return stream, delimiter


def _csv(content: _Content, delimiter: str | None) -> Source:
    """Open a csv file, whose first line names its columns."""
    header = content.first_line
    if delimiter is None:
        delimiters = [character for character in _DELIMITERS if character in header]
        delimiter = "\t" if content.suffix == ".tsv" else delimiters[0] if len(delimiters) == 1 else ","
    elif len(delimiter) != 1:
        raise ValueError(f"delimiter must be one character, got {delimiter!r}")
    names = next(csv.reader([header], delimiter=delimiter))
    # pandas writes the column of its index without a name
    names = [name or f"Unnamed: {number}" for number, name in enumerate(names)]
    return _text(content, _Layout(delimiter, tuple(names), header=True, quoted=True))


def _recbole(content: _Content) -> Source:
    """Open a RecBole file, whose header says the type of each column: two columns of tokens are users and items."""
    fields = [field.partition(":") for field in content.first_line.split("\t")]
    if not all(name and type_ in _RECBOLE for name, _, type_ in fields):
        fault = f"its header must be name:type, tabs between, got {content.first_line[:80]!r}"
        raise ValueError(f"{content.path} is no RecBole file: {fault}")
    tokens = [name for name, _, type_ in fields if type_ == "token"]
    is_pair = len(tokens) == 2 and not tokens[0].startswith("item") and not tokens[1].startswith("user")
    roles = dict(zip(("user", "item"), tokens, strict=True)) if is_pair else {}
    return _text(content, _Layout("\t", tuple(name for name, _, _ in fields), header=True), roles)


def _run(content: _Content, num_words: int) -> Source:
    """Open a TREC run: query Q0 document rank score [tag], which is ordered by score."""
    tags = ("tag", *(f"tag{number}" for number in range(7, num_words + 1)))  # a tag may hold blanks
    names = ("user", "Q0", "item", "rank", "score", *tags)[:num_words]
    return _text(content, _Layout(" ", names), {"score": "score"})


def _qrels(content: _Content, num_words: int) -> Source:
    """Open TREC qrels: query 0 document relevance."""
    if num_words != 4:
        fault = f"'query 0 document relevance': {content.first_line[:80]!r}"
        raise ValueError(f"{content.path} is no TREC qrels file, {fault}")
    return _text(content, _Layout(" ", ("user", "0", "item", "relevance")), {"value": "relevance"})


def _movielens(content: _Content) -> Source:
    """Open MovieLens' u.data or ratings.dat: user, item, rating, timestamp."""
    separator = "::" if content.suffix == ".dat" else "\t"
    fields = content.first_line.split(separator)
    if len(fields) != 4 or not all(re.fullmatch(_NUMBER, field) for field in fields):
        fault = f"four numbers and {separator!r} between them: {content.first_line[:80]!r}"
        raise ValueError(f"{content.path} is no file like MovieLens', {fault}")
    return _text(content, _Layout(separator, _MOVIELENS))


# ------------------------------------------------------------------------------------------------- files of other kinds


def _parquet(path: Path, data: bytes | None) -> Source:
    """Open a parquet file, or a folder of parquet files, which are parts of one table.

    Ids of text are read dictionary-encoded: a repeated id takes four bytes.
    """
    pa, parquet = arrow(), needed("pyarrow.parquet", f"reading {path}")

    def dataset(ids: Sequence[str] = ()) -> Any:
        return parquet.ParquetDataset(path if data is None else pa.BufferReader(data), read_dictionary=[*ids])

    with _naming(path, "parquet file"):
        schema = dataset().schema

    def read(wanted: Sequence[str], ids: Sequence[str]) -> dict[str, Any]:
        texts = [name for name in ids if pa.types.is_string(schema.field(name).type)]
        with _naming(path, "parquet file"):
            table = dataset(texts).read(columns=[*wanted], use_threads=False)
        return {name: table[name] for name in wanted}

    return Source(str(path), schema.names, read)


def _check_folder(path: Path) -> None:
    """Refuse folders without parquet files, and Delta Lake's, in which some files are outdated."""
    if not any(path.rglob("*.parquet")):
        raise ValueError(f"{path} is a folder without parquet files: pass one file")
    if (path / "_delta_log").is_dir():
        raise ValueError(f"{path} is a table of Delta Lake: pass deltalake.DeltaTable(path).to_pyarrow_table()")


def _json(content: _Content) -> Source:
    """Read a file whose lines are json objects, which may have different keys, or a list of objects."""
    path = content.path
    with content.open() as stream:
        if not content.first_line.lstrip().startswith("["):
            _check_depth(stream, str(path))
            reader = needed("pyarrow.json", f"reading {path}")

            def parsed(file: IO[bytes], block_size: int) -> Any:
                return reader.read_json(file, reader.ReadOptions(use_threads=False, block_size=block_size))

            with _naming(path, "file of json lines"):
                return source_of_frame(_in_blocks(content, parsed), str(path))._replace(first_line=1)
        try:
            rows = json.load(stream)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is no JSON: {error}") from error
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path}: expected a list of objects, [{{...}}], got {content.first_line[:80]!r}")
    return source_of_frame(rows, str(path))


def _check_depth(stream: IO[bytes], what: str) -> None:
    """Refuse lines of json with so many brackets within each other that pyarrow could crash."""
    for number, line in enumerate(stream, start=1):
        depth = deepest = 0
        if line.count(b"{") + line.count(b"[") > _MAX_DEPTH:
            for sign in re.findall(rb"[][{}]", line):
                depth += 1 if sign in b"{[" else -1
                deepest = max(deepest, depth)
        if deepest > _MAX_DEPTH:
            raise ValueError(f"{what}, line {number} holds {deepest} brackets within each other: leave them out")


def _item_lists(content: _Content) -> Source:
    """Read LightGCN's lines of `user item item ...` as a row per line, whose items are a list, which may be empty."""
    pa = arrow()
    with content.open() as stream:
        users, lengths, items = _item_lines(stream, str(content.path))
    ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).numpy()
    cells = pa.LargeListArray.from_arrays(ends, items.numpy())
    columns = {"user": users.numpy(), "item": cells}
    return Source(str(content.path), [*columns], lambda wanted, ids: dict(columns), written=True, first_line=1)


def read_item_lines(path: Path) -> tuple[Tensor, Tensor]:
    """Read a file of `user item item ...` lines: the edges, int64 [2, E], and the user of each line, int64 [lines]."""
    with path.open("rb") as stream:
        users, lengths, items = _item_lines(stream, str(path))
    return torch.stack([users.repeat_interleave(lengths), items]), users


def _item_lines(stream: IO[bytes], what: str) -> tuple[Tensor, ...]:
    """Return the user of each line, the number of items of each line, and the items of all lines, int64."""
    users, lengths, items = [], [], []
    for number, line in enumerate(stream.read().decode("utf-8-sig", errors="replace").splitlines(), start=1):
        words = line.split()
        if not all(word.isdecimal() and len(word) < 19 for word in words):
            raise ValueError(f"{what}, line {number}: expected whole numbers 'user item item ...', got {line[:60]!r}")
        if words:
            user, *rest = map(int, words)
            users.append(user)
            lengths.append(len(rest))
            items += rest
    if {*lengths} in ({2}, {3}) and len({*users}) < len(users):
        raise ValueError(
            f"{what} has {1 + lengths[0]} columns in every line and a user in several: these seem to be edges, not "
            "'user item item ...', which Interactions.from_columns(user, item) takes"
        )
    return tuple(torch.tensor(x, dtype=torch.int64, device="cpu") for x in (users, lengths, items))
