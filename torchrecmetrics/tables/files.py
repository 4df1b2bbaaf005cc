"""`open_file`: tell the format of a file by name and content, and make it a `Source` of named columns."""

from __future__ import annotations

import codecs
import csv
import io
import json
import lzma
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from torchrecmetrics.core.cures import Cure, CuredError
from torchrecmetrics.core.extras import needed
from torchrecmetrics.tables.delimited import TextLayout, check_encoding, read_delimited, read_whole_lines, typed_table
from torchrecmetrics.tables.sources import NUMBER, Columns, FrameSource, Roles, Source, check_names, compute

_DELIMITERS = {"\t": "a tab", ";": "';'", "|": "'|'", ",": "','"}
_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".xz": "xz", ".zip": "zip"}
_SIGNATURES = {b"\x1f\x8b": "gzip", b"BZh9": "bz2", b"(\xb5/\xfd": "zstd", b"\xfd7zX": "xz", b"PK\x03\x04": "zip"}
"""Compressed files by their first bytes, whatever their name."""
_MAX_LINE = 2**26
_MAX_DEPTH = 1000
"""Most brackets of JSON within each other; the reader of pyarrow ends the process some thousands deeper."""
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_RECBOLE = {"token", "token_seq", "float", "float_seq"}
_MOVIELENS = ("user", "item", "rating", "timestamp")
_FORMS = {
    r"\d+:": (
        "lines of 'user,rating,date' behind a line 'movie:', as Netflix's",
        """\
with open({path!r}) as lines, open("ratings.csv", "w") as file:
    print("item,user,value,time", file=file)
    for line in map(str.strip, lines):
        if line.endswith(":"):
            item = line[:-1]
        else:
            print(item, line, sep=",", file=file)""",
    ),
    r"\(\d+,\d+\)\t.*": (
        "lines of '(user,item)' and negatives, as NCF's: candidates to score for evaluate_lists(..., label='label')",
        """\
with open({path!r}) as lines, open("candidates.csv", "w") as file:
    print("user,item,label", file=file)
    for pair, *negatives in map(str.split, lines):
        user, item = pair.strip("()").split(",")
        for candidate in [item, *sorted({{*negatives}} - {{item}})]:
            print(user, candidate, int(candidate == item), sep=",", file=file)""",
    ),
    r"\d+ \[\d+(,\d+)*\]": (
        "lines of 'impression [rank,rank,...]', as MIND's predictions, for evaluate_lists(..., label='label')",
        """\
with open("behaviors.tsv") as shown, open({path!r}) as ranked, open("impressions.csv", "w") as file:
    print("user,item,label,rank", file=file)
    for line, ranks in zip(shown, ranked):
        number, *_, items = line.strip().split("\\t")
        for item, rank in zip(items.split(), ranks.strip("]\\n").split("[")[1].split(",")):
            print(number, *item.rsplit("-", 1), rank, sep=",", file=file)""",
    ),
}
"""Forms of files that are no tables, by a pattern of the first line: description, and code that writes a csv file."""
_KNOWN = (
    ".csv, .tsv, .parquet, .json, .jsonl, .ndjson, RecBole's .inter, MovieLens' u.data (.data, .base, .test) and "
    "ratings.dat, LightGCN's lines of 'user item item ...' (.txt), TREC's runs (.run, .trec, .txt) and qrels (.qrels, "
    "or qrels in the name), each also with .gz, .bz2, .xz, .zst or .zip behind it"
)


def open_file(path: str | Path, delimiter: str | None = None) -> FileSource:
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

    After any of these, .gz, .bz2, .xz, .zst and .zip (of one file) mean a compressed file. A folder of parquet files is
    one table. Text is UTF-8, or UTF-16 with its mark; blank lines at the end are no rows. If the name has no suffix,
    as /dev/stdin, the first bytes identify parquet, json lines, runs and qrels; any other content must be csv with a
    header.

    Args:
        path: path of the file.
        delimiter: separator of a csv file, one character, whatever its name; None = a tab for .tsv, otherwise the only
            one of ",", ";", tab and "|" that is in the header, and "," if the header has several or none.

    Raises:
        ImportError: without pyarrow.
        ValueError: for an unknown format, content that contradicts the name, an empty file, and other folders.
    """
    if Path(path).is_dir():
        return _parquet_folder(Path(path))
    content = _Content(Path(path))
    suffix = content.suffix
    if suffix in (".parquet", ".pq") or content.first_line == "PAR1":
        return _Parquet(content)
    first_line = content.first_line
    form = next((form for pattern, form in _FORMS.items() if re.fullmatch(pattern, first_line.rstrip())), None)
    if form is not None:
        code = form[1].format(path=str(path))
        raise ValueError(f"{path} holds {form[0]}. These lines write a csv file, which is read:\n\n{code}")
    words = first_line.split()
    suffix = suffix or _suffix_of(first_line, words)
    if suffix in (".csv", ".tsv"):
        return _Csv(content, delimiter)
    if suffix in (".jsonl", ".ndjson", ".json"):
        return _json_lines(content)
    if suffix == ".inter":
        return _recbole(content)
    if suffix in (".run", ".trec", ".txt") and _is_run(words):
        tags = ("tag", *(f"tag{number}" for number in range(7, len(words) + 1)))  # a tag may hold blanks
        names = ("user", "Q0", "item", "rank", "score", *tags)[: len(words)]
        return _Text(content, TextLayout(" ", names), known={"score": "score"}, trec="run")
    if suffix in (".qrels", ".qrel") or "qrels" in Path(path).name:
        if len(words) != 4:
            raise ValueError(f"{path} is no TREC qrels file, 'query 0 document relevance': {first_line[:80]!r}")
        layout = TextLayout(" ", ("user", "0", "item", "relevance"))
        return _Text(content, layout, known={"value": "relevance"}, trec="qrels")
    if delimiter is not None:
        return _Csv(content, delimiter)
    if suffix in (".data", ".base", ".test", ".dat"):
        separator = "::" if suffix == ".dat" else "\t"
        fields = first_line.split(separator)
        if len(fields) != 4 or not all(re.fullmatch(NUMBER, field) for field in fields):
            raise ValueError(
                f"{path} is no file like MovieLens', four numbers and {separator!r} between them: {first_line[:80]!r}"
            )
        return _Text(content, TextLayout(separator, _MOVIELENS), {"time": "timestamp"})
    if suffix == ".txt" and all(word.isdecimal() for word in words):
        return _item_lines_file(content)
    if len(words) == 4 and words[1] in ("0", "Q0"):
        hint = f"Qrels have qrels in their name, such as {Path(path).stem}.qrels"
        raise ValueError(f"{path} is of no known kind; there are {_KNOWN}. {hint}")
    cure = Cure.option("delimiter", ",")
    raise CuredError(f"{path} is of no known kind; there are {_KNOWN}. Other files of columns: {cure}", cure)


def _suffix_of(first_line: str, words: list[str]) -> str:
    """Return the suffix that the first line of a file without one suggests."""
    if _is_run(words):
        return ".run"
    if first_line.lstrip()[:1] in ("{", "["):
        return ".jsonl"
    return ".qrels" if len(words) == 4 and words[1] in ("0", "Q0") else ".csv"


def _is_run(words: list[str]) -> bool:
    """Return True for words of a line of a TREC run: query Q0 document rank score [tag]."""
    if len(words) < 5 or words[1].upper() not in ("Q0", "0"):
        return False
    return re.fullmatch(r"\d+", words[3]) is not None and re.fullmatch(NUMBER, words[4]) is not None


class _Content:
    """Content of a file; compressed files, and pipes, which cannot be read twice, are read into memory at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data: bytes | None = None
        size = path.stat().st_size
        if size < 2 or not path.is_file():
            self.data = path.read_bytes()
            start, end = self.data[:4], b""
        else:
            with path.open("rb") as file:
                start = file.read(4)
                file.seek(-2, io.SEEK_END)
                end = file.read(2)
        compression = _COMPRESSIONS.get(path.suffix.lower())
        self.suffix = Path(path.stem if compression else path.name).suffix.lower()
        if self.suffix in _KNOWN:  # ".xlsx", a zip archive, is not
            signed = (program for signature, program in _SIGNATURES.items() if start.startswith(signature))
            compression = compression or next(signed, None)
        is_text = start != b"PAR1" and (start[:2] in _UTF16 or end in (b"\n\n", b"\r\r", b"\r\n"))
        if self.data is None and (compression or is_text):
            self.data = path.read_bytes()
        if self.data and compression:
            self.data = _decompressed(path, self.data, compression)
        if self.data is not None and self.data[:4] != b"PAR1":
            if self.data[:2] in _UTF16:
                try:
                    self.data = self.data.decode("utf-16").encode()
                except UnicodeDecodeError as error:
                    message = f"{path} begins as UTF-16 and is none ({error.reason}): save the file as UTF-8"
                    raise ValueError(message) from None
            self.data = self.data.rstrip(b"\r\n") + b"\n" if self.data.strip() else b""
        if not (size if self.data is None else self.data):
            raise ValueError(f"{path} is empty: it holds no rows")

    def open(self) -> IO[bytes]:
        """Return the content as a file that is open at its beginning."""
        return self.path.open("rb") if self.data is None else io.BytesIO(self.data)

    @cached_property
    def first_line(self) -> str:
        """The first line, without its line end."""
        with self.open() as file:
            start = file.read(4)
            start += b"" if start == b"PAR1" else file.readline(_MAX_LINE)
        if start.startswith(b"PAR1"):
            return "PAR1"
        try:
            line = re.split(rb"[\r\n]", start, maxsplit=1)[0]
            return line.decode("utf-8-sig", "ignore" if len(line) > _MAX_LINE else "strict")
        except UnicodeDecodeError as error:
            if self.suffix not in _KNOWN:
                raise ValueError(
                    f"{self.path} is no text in UTF-8, and {self.suffix} is no known kind; there are {_KNOWN}"
                ) from None
            raise ValueError(f"{self.path}, line 1 is not UTF-8 ({error.reason}): save the file as UTF-8") from None


def _decompressed(path: Path, data: bytes, compression: str) -> bytes:
    if compression == "zip":
        return _only_member(path, data)
    pa = needed("pyarrow", f"reading {path}")
    try:
        if compression == "xz":
            return lzma.decompress(data)
        with pa.CompressedInputStream(pa.BufferReader(data), compression) as stream:
            return bytes(stream.read())
    except (pa.ArrowException, lzma.LZMAError, OSError) as error:
        raise ValueError(f"{path} is no {compression} file, or was cut short: {error}") from error


def _only_member(path: Path, data: bytes) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            # folders, and what macOS adds
            names = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")]
            if len(names) != 1:
                raise ValueError(f"{path} holds {len(names)} files ({', '.join(names[:5])}): take one out of it")
            return archive.read(names[0])
    except (zipfile.BadZipFile, RuntimeError) as error:  # RuntimeError: encrypted
        raise ValueError(f"{path} is no zip file, was cut short or is encrypted: {error}") from error


class FileSource(Source):
    """An open file with named columns."""

    as_written = True

    def __init__(self, what: str, names: list[str], known: dict[str, str] | None = None) -> None:
        self.what, self.names, self.known = what, names, known or {}


class _Text(FileSource):
    """A file of delimited text."""

    def __init__(
        self, content: _Content, layout: TextLayout, known: dict[str, str] | None = None, trec: str | None = None
    ) -> None:
        super().__init__(str(content.path), [*layout.names], known)
        self.content, self.layout, self.trec = content, layout, trec

    def read(self, roles: Roles) -> Columns:
        """Read the columns of `roles`."""
        with self.content.open() as stream:
            table = read_delimited(stream, self.layout, roles, self.what)
        if self.trec == "qrels" and roles.value is not None:  # as trec_eval reads them
            table.columns[roles.value] = compute().max_element_wise(table.columns[roles.value], 0)
        return table

    def all_columns(self) -> Any:
        """Return all columns."""
        with self.content.open() as stream:
            return typed_table(stream, self.layout, self.what)


class _Csv(_Text):
    """A csv file, whose first line names its columns."""

    def __init__(self, content: _Content, delimiter: str | None) -> None:
        path, header = content.path, content.first_line
        if delimiter is None:
            others = [other for other in _DELIMITERS if other in header]
            delimiter = others[0] if len(others) == 1 else ","
            if content.suffix == ".tsv":
                delimiter = "\t"
        elif len(delimiter) != 1:
            raise ValueError(f"delimiter must be one character, got {delimiter!r}")
        names = next(csv.reader([header], delimiter=delimiter))
        if len(names) == 1:
            for other, said in _DELIMITERS.items():
                if other in header:
                    cure = Cure.option("delimiter", other)
                    raise CuredError(
                        f"{path}, line 1: {_DELIMITERS.get(delimiter, repr(delimiter))} is not in the header "
                        f"{header[:80]!r}, but {said}: pass {cure}",
                        cure,
                    )
        layout = TextLayout(delimiter, tuple(names), header=True, quoted=True)
        frame = Cure(f"trm.Table({layout.reader(str(path), header=False)}, user='0', item='1')", "header")
        numbered = [str(number) for number in range(len(names))]  # as pandas names columns without names
        if names != numbered and any(re.fullmatch(NUMBER, name) for name in names):
            raise CuredError(
                f"{path}, line 1 holds numbers where names of columns are expected: {header[:80]!r}. If it is a row "
                f"and no header, {frame}",
                frame,
            )
        # pandas writes the column of its index without a name
        layout = layout._replace(names=tuple(name or f"Unnamed: {number}" for number, name in enumerate(names)))
        super().__init__(content, layout)
        self.without_header = frame


def _recbole(content: _Content) -> _Text:
    """Open a RecBole file, whose header says the type of each column: two columns of tokens are users and items."""
    fields = [field.partition(":") for field in content.first_line.split("\t")]
    if not all(name and type_ in _RECBOLE for name, _, type_ in fields):
        raise ValueError(
            f"{content.path} is no RecBole file: its header must be name:type, tabs between, got "
            f"{content.first_line[:80]!r}"
        )
    tokens = [name for name, _, type_ in fields if type_ == "token"]
    sequences = [name for name, _, type_ in fields if type_ == "token_seq"]
    tokens += sequences if len(tokens) < 2 else []
    is_pair = len(tokens) == 2 and tokens[0] not in ("item", "item_id") and tokens[1] not in ("user", "user_id")
    known = {"user": tokens[0], "item": tokens[1]} if is_pair else {}
    file = _Text(content, TextLayout("\t", tuple(name for name, _, _ in fields), header=True), known)
    file.sequences = frozenset(sequences)
    return file


class _Parquet(FileSource):
    """A parquet file."""

    as_written = False

    def __init__(self, content: _Content) -> None:
        super().__init__(str(content.path), [])
        self.content = content
        with self._open() as file:
            self.schema = file.schema_arrow
        self.names = [*map(str, self.schema.names)]

    @contextmanager
    def _open(self, *ids: str) -> Iterator[Any]:
        """Open the file; the text columns among `ids` are read dictionary-encoded: a repeated id takes four bytes."""
        pa, parquet = needed("pyarrow", f"reading {self.what}"), needed("pyarrow.parquet", f"reading {self.what}")
        ids = tuple(name for name in ids if pa.types.is_string(self.schema.field(name).type))
        source = self.content.path if self.content.data is None else pa.BufferReader(self.content.data)
        try:
            with parquet.ParquetFile(source, read_dictionary=list(ids)) as file:
                yield file
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{self.what} is no parquet file, or was cut short: {error}") from error

    def all_columns(self) -> Any:
        """Return all columns."""
        with self._open() as file:
            return file.read(use_threads=False)

    def read(self, roles: Roles) -> Columns:
        """Read the columns of `roles`."""
        wanted = roles.names
        check_names(wanted, self.names, self.what)
        with self._open(roles.user, roles.item) as file:
            table = file.read(columns=wanted, use_threads=False)
        if not table.num_rows:
            raise ValueError(f"{self.what} holds no rows")
        return Columns.of({name: table[name] for name in wanted}, self.what)


class _TableFile(FrameSource, FileSource):
    """A file that was read whole when it was opened: a table of pyarrow, or a list of records."""

    def __init__(self, what: str, table: Any, first_line: int | None = None, as_written: bool = False) -> None:
        FrameSource.__init__(self, table, what)
        self.first_line, self.as_written = first_line, as_written


def _parquet_folder(path: Path) -> _TableFile:
    """Read a folder of parquet files, which are parts of one table."""
    if not any(path.rglob("*.parquet")):
        raise ValueError(f"{path} is a folder without parquet files: pass one file")
    if (path / "_delta_log").is_dir():  # which names the files that count
        raise ValueError(f"{path} is a table of Delta Lake: pass deltalake.DeltaTable(path).to_pyarrow_table()")
    try:
        return _TableFile(str(path), needed("pyarrow.parquet", f"reading {path}").read_table(path))
    except (needed("pyarrow", f"reading {path}").ArrowException, OSError) as error:
        raise ValueError(f"{path} holds a file that is no parquet file: {error}") from error


def _json_lines(content: _Content) -> FileSource:
    """Read a file whose lines are json objects, which may have different keys, or a list of objects."""
    what, first_line = str(content.path), content.first_line
    pa, reader = needed("pyarrow", f"reading {what}"), needed("pyarrow.json", f"reading {what}")
    with content.open() as stream:
        if first_line.lstrip().startswith("["):
            try:
                rows = json.load(stream)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{what} is no JSON: {error}") from error
            if not all(isinstance(row, dict) for row in rows):
                raise ValueError(f"{what}, line 1: expected a list of objects, [{{...}}], got {first_line[:80]!r}")
            return _TableFile(what, rows, as_written=True)
        if not first_line.lstrip().startswith("{"):
            raise ValueError(f"{what}, line 1: expected an object, {{...}}, got {first_line[:80]!r}")
        _check_depth(stream, what)
        options = partial(reader.ReadOptions, use_threads=False)
        try:
            table = read_whole_lines(lambda **block: reader.read_json(stream, options(**block)), stream)
            table.validate(full=True)
        except pa.ArrowException as error:
            check_encoding(stream, what)
            raise ValueError(f"{what} (rows are counted from 0): {str(error)[:400]}") from error
    return _TableFile(what, table, 1)


def _check_depth(stream: IO[bytes], what: str) -> None:
    """Refuse lines of json with more brackets within each other than pyarrow reads without ending the process."""
    import numpy as np

    for number, line in enumerate(stream, start=1):
        if len(line) > _MAX_DEPTH and line.count(b"{") + line.count(b"[") > _MAX_DEPTH:
            signs = np.frombuffer(line, np.uint8)
            opened = np.isin(signs, [*b"{["]).cumsum() - np.isin(signs, [*b"}]"]).cumsum()
            if opened.max() > _MAX_DEPTH:
                raise ValueError(
                    f"{what}, line {number} holds {opened.max()} brackets within each other: leave them out"
                )


def _item_lines_file(content: _Content) -> _TableFile:
    """Read a file of `user item item ...` lines as a row per line, whose items are a list, which may be empty."""
    what = str(content.path)
    pa = needed("pyarrow", f"reading {what}")
    with content.open() as stream:
        users, counts, items = _item_lines(stream, what)
    if not len(items):
        raise ValueError(f"{what} holds users alone, and no item")
    ends = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).numpy()
    cells = pa.LargeListArray.from_arrays(ends, items.numpy())
    return _TableFile(what, pa.table({"user": users.numpy(), "item": cells}), as_written=True)


_EDGE_FILES = (
    "a file of edges is read column by column, as by pandas.read_csv, and built with Interactions.from_columns(user, "
    "item, rating), or split with Log.from_frame(frame, time=...).leave_last_out()"
)
_1990 = 631_152_000
"""Seconds from 1970 to 1990: the lowest time of events that is told from ids."""


def read_item_lines(path: Path) -> tuple[Tensor, Tensor]:
    """Read a file of `user item item ...` lines: the edges, int64 [2, E], and the user of each line, int64 [lines]."""
    with path.open("rb") as stream:
        users, counts, items = _item_lines(stream, str(path))
    return torch.stack([users.repeat_interleave(counts), items]), users


def _item_lines(stream: IO[bytes], what: str) -> tuple[Tensor, ...]:
    """Return the user of each line, the number of items of each line, and the items of all lines, int64."""
    users, counts, items = [], [], []
    text = stream.read().decode("utf-8-sig", errors="replace")
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        if not all(word.isdecimal() and len(word) < 19 for word in words):
            raise ValueError(
                f"{what}, line {number}: expected whole numbers 'user item item ...', got {line[:60]!r}; {_EDGE_FILES}"
            )
        user, *rest = map(int, words)
        users.append(user)
        counts.append(len(rest))
        items += rest
    if {*counts} in ({2}, {3}) and len(users) > 1:
        width, (user, times) = counts[0], Counter(users).most_common(1)[0]
        reason = f"user {user} in several" if times > 1 else "the third seems to hold ratings or times"
        values = items[1::width]
        if times > 1 or max(values) <= 10 < max(items[::width]) or min(values) >= _1990:
            raise ValueError(
                f"{what} has {1 + width} columns in every line and {reason}: these seem to be edges, not 'user item "
                f"item ...'; {_EDGE_FILES}"
            )
    return tuple(torch.tensor(x, dtype=torch.int64, device="cpu") for x in (users, counts, items))
