"""Files and frames of any kind are read alike; errors name the file, the row and the column."""

import bz2
import gzip
import io
import json
import lzma
import math
import os
import sys
import tarfile
import threading
import zipfile

import pytest
import torch
from said import evaluate_lists

import torchrecmetrics as trm
from torchrecmetrics import Interactions, Log, Table
from torchrecmetrics.tables.sources import open_file, source_of_frame

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
np = pytest.importorskip("numpy")
pl = pytest.importorskip("polars")

EVENTS = [("u9", "i3", 4, 30), ("u10", "i1", 5, 10), ("u9", "i1", 3, 20)]
NUMBERED = [(9, 3, 4, 30), (10, 1, 5, 10), (9, 1, 3, 20)]


def rows(events, delimiter, *header):
    return "\n".join([*header, *(delimiter.join(map(str, event)) for event in events), ""])


HEADER = ["user", "item", "stars", "when"]
MOVIELENS = ["user", "item", "rating", "timestamp"]
RECBOLE = ["user_id", "item_id", "rating", "timestamp"]
FRAME = pd.DataFrame(EVENTS, columns=HEADER)
FILES = {  # name -> text, names of (user, item, value, time)
    "a.csv": (rows(EVENTS, ",", "user,item,stars,when"), HEADER),
    "b.tsv": (rows(NUMBERED, "\t", "user\titem\tstars\twhen"), HEADER),
    "c.jsonl": (FRAME.to_json(orient="records", lines=True), HEADER),
    "c.json": (FRAME.to_json(orient="records"), HEADER),
    "d.inter": (rows(EVENTS, "\t", "user_id:token\titem_id:token\trating:float\ttimestamp:float"), RECBOLE),
    "u.data": (rows(NUMBERED, "\t"), MOVIELENS),
    "ratings.dat": (rows(NUMBERED, "::"), MOVIELENS),
    "e.csv": ("\ufeff" + rows([event[::-1] for event in EVENTS], ",", "when,stars,item,user"), HEADER),
    "g.qrels": ("u9 0 i3 4\nu10 0 i1 5\nu9 0 i1 3\n", ["user", "item", "relevance", None]),
}


@pytest.mark.parametrize("name", FILES)
def test_known_kinds_are_read(name, tmp_path):
    """Every kind is read by name and content, in the order of its rows; a byte order mark is no part of a name."""
    text, (user, item, value, time) = FILES[name]
    (tmp_path / name).write_text(text)
    log = Log.from_file(tmp_path / name, user, item, time, value)
    expected = EVENTS if "u9" in text else NUMBERED
    found = zip(log.user_ids.ids(log.users), log.item_ids.ids(log.items), log.values.tolist(), strict=True)
    assert list(found) == [event[:3] for event in expected]
    assert time is None or log.times.tolist() == [30, 10, 20]
    assert list(log.user_ids) == sorted({event[0] for event in expected})


@pytest.mark.parametrize("name", ["run.txt", "a.trec"])
def test_runs_of_trec_are_read(name, tmp_path):
    """Runs may have any number of blanks and tabs between columns, and scores are read as floats."""
    (tmp_path / name).write_text("u9 Q0 i3 1 0.9 tag\nu9  Q0\ti1 2 1e-1  tag \nu10 Q0 i1 1 .5 tag\n")
    log = Log.from_file(tmp_path / name, time="rank", value="score")
    assert (log.values.tolist(), log.times.tolist()) == ([0.9, 0.1, 0.5], [1, 2, 1])
    assert log.user_ids.ids(log.users) == ["u9", "u9", "u10"]


@pytest.mark.parametrize("line", ["al 0 {}", "al Q0 {} my tag"])
def test_a_tag_may_be_missing_or_hold_blanks(line, tmp_path):
    (tmp_path / "a.run").write_text("\n".join(line.format(entry) for entry in ("x 1 0.9", "z 2 0.1")))

    assert evaluate_lists("MRR@2", tmp_path / "a.run", target={"al": ["z"]})["MRR@2"] == 1 / 2


def test_parquet_is_read_as_pandas_wrote_it(tmp_path):
    """Categories, several row groups and typed numbers are read; parquet is known by its first bytes, too."""
    frame = pd.DataFrame(EVENTS * 50, columns=HEADER).astype({"item": "category"})
    frame["when"] = pd.to_datetime(frame["when"], unit="D")
    frame.to_parquet(tmp_path / "x.parquet", row_group_size=7)
    log = Log.from_file(tmp_path / "x.parquet", time="when", value="stars")
    assert log.user_ids.ids(log.users) == list(frame["user"])
    assert log.item_ids.ids(log.items) == list(frame["item"])
    assert pd.to_datetime(log.times.numpy(), unit=log.time_unit).tolist() == frame["when"].tolist()
    (tmp_path / "x.parquet").rename(tmp_path / "part-0.snappy")

    assert repr(Log.from_file(tmp_path / "part-0.snappy")) == "Log(150 events, 2 users x 2 items)"


def test_lines_of_items_are_read(tmp_path):
    """LightGCN's text is read as `Interactions.from_text` reads it; lines of two items are not edges."""
    (tmp_path / "train.txt").write_text("5 1 9\n2 9\n")
    log = Log.from_file(tmp_path / "train.txt")
    assert (log.user_ids.ids(log.users), log.item_ids.ids(log.items)) == ([5, 5, 2], [1, 9, 9])
    (tmp_path / "test.txt").write_text("0 25 17\n1 4 30\n2 31 8\n")
    assert len(Log.from_file(tmp_path / "test.txt")) == 6


def zstd(data):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def parquet(frame):
    file = io.BytesIO()
    frame.to_parquet(file)
    return file.getvalue()


PAIRS = pd.DataFrame({"user": ["al", "bo"], "item": ["x", "y"]})
CONTENT = {
    "csv": PAIRS.to_csv(index=False).encode(),
    "jsonl": PAIRS.to_json(orient="records", lines=True).encode(),
    "run": b"al Q0 x 1 2.5 tag\nbo Q0 y 1 1.5 tag\n",
    "qrels": b"al 0 x 1\nbo 0 y 1\n",
    "parquet": parquet(PAIRS),
}
PROGRAMS = {"gz": "gzip", "bz2": "bz2", "xz": "xz", "zst": "zstd"}
COMPRESS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd}


def pairs_of(log):
    return list(zip(log.user_ids.ids(log.users), log.item_ids.ids(log.items), strict=True))


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_files_are_read(suffix, tmp_path):
    """A compressed file of any format is read; the suffix before the last one names the format."""
    for kind, content in CONTENT.items():
        path = tmp_path / f"log.{kind}.{suffix}"
        path.write_bytes(COMPRESS[suffix](content))
        assert pairs_of(Log.from_file(path)) == [("al", "x"), ("bo", "y")]
    path.write_bytes(COMPRESS[suffix](CONTENT["csv"])[:-9])
    with pytest.raises(ValueError, match=rf"log.parquet.{suffix} is no {PROGRAMS[suffix]} file, (or )?was cut"):
        open_file(path)


@pytest.mark.parametrize("kind", CONTENT)
def test_pipes_are_read_once(kind):
    """A pipe, such as /dev/fd/N of `<(...)` in a shell, is read once, and its first bytes tell the format."""
    reading, writing = os.pipe()

    def write():
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(CONTENT[kind])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert pairs_of(Log.from_file(f"/dev/fd/{reading}")) == [("al", "x"), ("bo", "y")]
    finally:
        writer.join()
        os.close(reading)


def archive(kind):
    """Return a zip or tar archive of one csv file, or its text in UTF-16, or compressed."""
    content, data = io.BytesIO(), CONTENT["csv"]
    if kind == "zip":
        with zipfile.ZipFile(content, "w") as archive:
            archive.writestr("log.csv", data)
    elif kind == "tar":
        with tarfile.open(fileobj=content, mode="w") as archive:
            archive.addfile(tarfile.TarInfo("log.csv"), io.BytesIO(b""))
    elif kind == "gzip":
        content.write(gzip.compress(data))
    else:
        content.write(data.decode().encode(kind))
    return content.getvalue()


@pytest.mark.parametrize("kind", ["zip", "tar", "gzip", "utf-16"])
def test_files_of_other_kinds_are_never_tables_of_bytes(kind, tmp_path):
    """Whatever the suffix, an archive, another encoding, and a compressed file without its suffix name pandas."""
    for name in ("log.csv", "log", "log.jsonl"):
        (tmp_path / name).write_bytes(archive(kind))
        with pytest.raises(ValueError, match=rf"{name}, line 1: .* or read it with pandas \(zip, tar, UTF-16\)"):
            open_file(tmp_path / name)
    (tmp_path / "log.tar.gz").write_bytes(gzip.compress(archive(kind)))
    with pytest.raises(ValueError, match=r"log.tar.gz, line 1: .* read it with pandas"):
        open_file(tmp_path / "log.tar.gz")


TITLES, ROW = b"user,item,stars,when\n", b"a,b,1,2\n"
OBJECT = b'{"user": 1, "item": 1, "stars": 1, "when": 1}\n'
BAD = {
    "empty.csv": (b"", r"is empty: it holds no rows"),
    "lacking.parquet": (parquet(FRAME.drop(columns="when")), r"has no column 'when'.* There are user, item, stars"),
    "twice.csv": ((TITLES + ROW) * 2, "has its header twice"),
    "column.csv": (
        b"user,itm,stars,when\n" + ROW,
        r"no column 'item' or 'item_id'; did you mean 'itm'\?",
    ),
    "text.csv": (TITLES + ROW + b"a,b,four,2\n", r"'stars' of .* must hold numbers, got 'four' in row 1 \(line 3\)"),
    "id.csv": (TITLES + ROW + b"c,nan,1,2\n,b,1,2\n", r"column 'user' .*: 1 of 3 rows, the first is row 2 \(line 4\)"),
    "late.csv": (
        TITLES + ROW + b"a,b,1,\n",
        r"column 'when' of .*late.csv: 1 of 2 are missing, the first in row 1 \(line 3\)",
    ),
    "uneven.csv": (
        TITLES + ROW + b"a,b,1,2,5\n",
        r"uneven.csv is no table .*Row #3: Expected 4 columns, got 5: a,b,1,2,5",
    ),
    "encoding.csv": (TITLES + ROW + b"Jos\xe9,b,1,2\n", r"line 3: byte 3 is not UTF-8, in b'Jos\\xe9,b,1"),
    "header.csv": (TITLES, "header.csv holds a header and no rows"),
    "none.parquet": (b"user,item\n", r"none.parquet is no parquet file, or was cut short"),
    "array.jsonl": (b"[1]", r"array.jsonl: expected a list of objects, \[\{...\}\], got '\[1\]'"),
    "word.jsonl": (b"user\n", r"word.jsonl is no file of json lines, .*Invalid value. in row 0"),
    "cut.json": (b'[{"user": 1}', r"cut.json is no JSON: "),
    "mixed.jsonl": (OBJECT + b'{"user": "a", "item": 1}\n', r"mixed.jsonl is no file of json lines, .*/user.*row 1"),
    "x.inter": (b"user_id\titem_id\n1\t2\n", r"is no RecBole file: its header must be name:type.*, tabs between, got"),
    "u.data": (b"a\tb\t3\t4\n", r"is no file like MovieLens', four numbers and '\\t' between them: 'a\\tb\\t3\\t4'"),
    "x.qrels": (b"1 0 2\n", r"is no TREC qrels file, 'query 0 document relevance': '1 0 2'"),
    "edges.txt": (b"0 1 5\n0 2 4\n", r"has 3 columns in every line and a user in several: these seem to be"),
    "notes.txt": (b"hello world\n", r"notes.txt is of no known kind; there are .csv, .tsv, .parquet, .json, .jsonl"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files(name, tmp_path):
    """The message names the file, as a path or as text, and the row and the column where there are any."""
    content, message = BAD[name]
    (tmp_path / name).write_bytes(content)
    for path in (tmp_path / name, str(tmp_path / name)):
        with pytest.raises((TypeError, ValueError), match=f"(?s){message}") as raised:
            Log.from_file(path, time="when", value="stars")
        assert str(path) in str(raised.value)


def test_folders(tmp_path):
    """A folder of parquet files is one table; other folders are refused, and so are files that are not there."""
    path = tmp_path / "x.csv"
    path.mkdir()
    with pytest.raises(ValueError, match=r"x.csv is a folder without parquet files: pass one file"):
        Log.from_file(path)
    FRAME[:2].to_parquet(path / "0.parquet")
    FRAME[2:].to_parquet(path / "1.parquet")
    assert pairs_of(Log.from_file(path)) == [event[:2] for event in EVENTS]
    (path / "README.parquet").write_text("no parquet")
    with pytest.raises(ValueError, match="is no parquet file"):
        Log.from_file(path)
    (path / "_delta_log").mkdir()
    with pytest.raises(ValueError, match="is a table of Delta Lake: pass deltalake"):
        open_file(path)
    for name in ("no.csv", "no.parquet", "no.dat"):
        with pytest.raises(FileNotFoundError):
            Log.from_file(tmp_path / name)


def test_records_with_other_keys(tmp_path):
    """A record that lacks a key of others has no entry there; a column without a role may hold numbers and text."""
    records = [{"user": 1, "item": 10, "note": 1}, {"user": 1, "item": 11, "score": 0.9, "note": "q"}]
    path = tmp_path / "lists.json"
    path.write_text(json.dumps(records))
    for lists in (records, path):
        with pytest.raises(ValueError, match=r"'score' .*is missing in row 0"):
            evaluate_lists("HR@1", lists, target={1: [11]})
        assert evaluate_lists("MRR@2", lists, target={1: [11]}, rank=None, score=None) == {"MRR@2": 1 / 2}


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    (tmp_path / "x.csv").write_text("user,item\n1,2\n")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"reading .*x.csv needs pyarrow: pip install 'torchrecmetrics\[frames\]'"):
        Log.from_file(tmp_path / "x.csv")


def test_users_without_items(tmp_path):
    """A line of LightGCN's text, or an empty cell, is a user without items: of three, one has a hit and one none."""
    path = tmp_path / "test.txt"
    path.write_text("1 5 6\n2\n3 6\n")
    log = Log.from_file(path)
    assert (len(log), log.shape) == (3, (3, 2))
    cells = pd.DataFrame({"user": [1, 2, 3], "item": [[5, 6], [], [6]]})
    lists = {1: [5], 2: [6], 3: [5]}
    for target in (path, log, Interactions.from_frame(Table(path)), cells, Log.from_frame(cells)):
        found = trm.evaluate_lists("HR@1", lists, target=target, empty_target_action="neg", complete=True)
        assert found == {"HR@1": pytest.approx(1 / 3)}
    split = Log.from_frame(Table({"user": [1, 2], "item": ["5 6", ""]}, split=" "))
    assert (len(split), split.shape) == (2, (2, 2))


DEEP = "[" * 200_000 + "]" * 200_000
UNUSUAL = {  # name -> content, start of the error or number of events, length of the error at most
    "deep.jsonl": ('{"user": 1, "item": 2, "tree": ' + DEEP + "}\n", "line 1 holds 200001 brackets", 300),
    "deep.json": ('[{"user": 1, "tree": ' + DEEP + "}]\n", "is no JSON: maximum recursion depth", 300),
    "long.csv": ("user,item,note\n1,2," + "n" * 3_000_000 + "\n1,3,n\n", 2, 0),
    "wide.csv": (f"{','.join(f'c{n}' for n in range(200_000))}\n{',' * 199_999}\n", "c49 and 199950 more", 1200),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_files(name, tmp_path):
    """Deep, wide and long files are read, or refused in a short message."""
    content, expected, length = UNUSUAL[name]
    path = tmp_path / name
    path.write_bytes(content.encode())
    if isinstance(expected, int):
        assert len(Log.from_file(path, value=None, time=None)) == expected
        return
    with pytest.raises(ValueError, match=expected) as raised:
        Log.from_file(path)
    assert len(str(raised.value)) < length


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("uid:token\tiid:token\tday:float", {"user": "uid", "item": "iid"}),
        ("day:float\tuid:token\titem_id:token", {"user": "uid", "item": "item_id"}),
        ("item_id:token\tuid:token\ttimestamp:float", {"item": "item_id", "time": "timestamp"}),
        ("uid:token\tiid:token\tcity:token", {}),
        ("user_id:token\tiids:token_seq\tday:float", {"user": "user_id"}),
    ],
)
def test_types_of_recbole_are_roles(header, expected, tmp_path):
    """Two columns of tokens are users and items in this order, unless their names say otherwise; others are asked."""
    (tmp_path / "x.inter").write_text(header + "\n1\t2\t3\n")
    assert Table(tmp_path / "x.inter").columns == expected


COLUMNS = {
    "user": ["bo", "al", "bo", "ü"],
    "item": [7, 2**62, 7, -1],
    "when": [3, 1, 2, 2],
    "stars": [4.0, 2.5, 5.0, 1.0],
}


class OtherLibrary:
    """A frame of any library with Arrow's interface."""

    def __init__(self, columns):
        self.table = pa.table(columns)

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def of_tensors(columns):
    return {name: column if name == "user" else torch.tensor(column) for name, column in columns.items()}


FORMS = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "pyarrow": pa.table,
    "dict": dict,
    "structured": lambda columns: pd.DataFrame(columns).to_records(index=False),
    "records": lambda columns: pd.DataFrame(columns).to_dict("records"),
    "dict of tensors": of_tensors,
    "dict of series": lambda columns: {name: pd.Series(column) for name, column in columns.items()},
    "other": OtherLibrary,
}


def read(frame, **options):
    return Log.from_frame(frame, time="when", value="stars", **options)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_log(form):
    """Every form of frame gives its rows, repeats, times and values unchanged, with ids in ascending order."""
    log = read(FORMS[form](COLUMNS))

    assert log.user_ids.ids(log.users) == COLUMNS["user"]
    assert log.item_ids.ids(log.items) == COLUMNS["item"]
    assert (list(log.user_ids), list(log.item_ids)) == (["al", "bo", "ü"], [-1, 7, 2**62])
    assert (log.times.tolist(), log.time_unit, log.values.tolist()) == (COLUMNS["when"], None, COLUMNS["stars"])


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_interactions(form):
    """bo's two rows are summed."""
    built = Interactions.from_frame(FORMS[form](COLUMNS), value="stars", values_reduce="sum")

    assert (built.users.tolist(), built.items.tolist()) == ([0, 1, 2], [2, 1, 0])
    assert built.values.tolist() == [2.5, 4 + 5, 1.0]


def test_a_wrong_column_is_told_the_right_one():
    """The error for a column that is missing suggests the nearest name, lists all, and says how to name columns."""
    cure = "did you mean 'stars'.* There are user, item, when, stars; say which is which: user=..., item=..."
    with pytest.raises(ValueError, match=f"frame has no column 'star'; {cure}"):
        Log.from_frame(COLUMNS, value="star")


def test_other_frames_are_lists_and_ground_truths(tmp_path):
    """Records, a named index and columns named by numbers are lists; a dict may hold grades."""
    frame = pd.DataFrame({"user": ["al", "al", "bo", "bo"], "item": ["x", "z", "z", "y"]})
    truth, numbers = {"al": ["x"], "bo": ["y"]}, pd.DataFrame(frame.to_numpy())
    for lists in (frame.to_dict("records"), frame.set_index("user"), frame.set_index(["user", "item"])):
        assert evaluate_lists("MRR@2", lists, target=truth)["MRR@2"] == (1 + 1 / 2) / 2
    assert evaluate_lists("MRR@2", numbers, target=numbers, user="0", item="1")["MRR@2"] == 1
    grades = {"al": {"x": 1, "z": 0}, "bo": {"y": 3, "q": -1}}
    found = evaluate_lists(["MRR@2", "NDCG@2"], frame, target=grades)
    assert found["MRR@2"] == (1 + 1 / 2) / 2
    assert float(found["NDCG@2"]) == pytest.approx((1 + 1 / math.log2(3)) / 2)


def test_ids_of_a_given_vocabulary():
    """Ids get the row numbers of a given vocabulary, and the error for an id that it lacks names the id."""
    train = read(COLUMNS)
    columns = {"user": ["al", "eve"], "item": [7, 7], "when": [0, 0], "stars": [0.0, 0.0]}
    test = Log.from_frame(columns, item_ids=train.item_ids, value=None)

    assert (test.items.tolist(), test.item_ids) == ([1, 1], train.item_ids)
    lacks = r"column 'user' of frame holds 'eve' in row 1, which is not in user_ids \(1 of 2 rows\): leave such rows"
    with pytest.raises(ValueError, match=lacks):
        Log.from_frame(columns, user_ids=train.user_ids)


MISSING = [
    ("user", None, r"column 'user' of frame holds a missing value: 1 of 4 rows, the first is row 2"),
    ("item", None, r"column 'item' of frame holds (a missing value: 1 of 4 rows, the first is row 2|.*rounds whole)"),
    ("when", None, r"column 'when' of frame: 1 of 4 are missing, the first in row 2"),
    ("stars", None, r"column 'stars' of frame (is missing|holds no number) in row 2"),
    ("stars", math.nan, r"column 'stars' of frame (is missing|holds no number) in row 2"),
]


@pytest.mark.parametrize("form", ["pandas", "pyarrow", "dict"])
@pytest.mark.parametrize(("name", "value", "message"), MISSING)
def test_a_missing_entry_is_named(form, name, value, message):
    """The error for a missing entry names its column and row, in every library."""
    column = [*COLUMNS[name][:2], value, COLUMNS[name][3]]
    with pytest.raises(ValueError, match=message):
        read(FORMS[form](COLUMNS | {name: column}))


def pair(user=(1,), item=(1,), **more):
    return {"user": [*user], "item": [*item], **more}


TWICE = pd.DataFrame([[1, 2, 3]], columns=["user", "item", "item"])
LARGE = pd.DataFrame(pair(pd.Series([5, 2**62 + 1], dtype="Int64"), [1, 2]))
NO_FRAME = (
    "frame must be a frame, got .*: pass a frame of pandas, polars or pyarrow, a dict of columns, a list of records"
)
BAD_FRAMES = [
    *((wrong, {}, TypeError, NO_FRAME) for wrong in ([[0, 1]], 7, torch.zeros(2, 2))),
    ("log.csv", {}, TypeError, r"frame must be a frame, got a path: Log\.from_file"),
    (pl.DataFrame(COLUMNS).lazy(), {}, TypeError, r"not computed yet, LazyFrame: pass frame.collect\(\)"),
    (TWICE, {}, ValueError, "frame has 2 columns named 'item': rename them"),
    (pair(item=[1, 2]), {}, ValueError, r"must be equally long, got \{'user': 1, 'item': 2\}"),
    (LARGE, {"user_ids": [5]}, ValueError, f"holds {2**62 + 1} in row 1, which is not in user_ids"),
    (pair(item="7"), {"item_ids": [7]}, TypeError, r"'item' of frame holds text \('7'\), item_ids hold whole numbers"),
    (pair(user=[0.5, 1.0], item=[1, 2]), {}, TypeError, r"column 'user' of frame holds floats such as 0\.5"),
    (pair(stars=["x"]), {"value": "stars"}, ValueError, r"'stars' of frame must hold numbers, got 'x' in row 0"),
    (pair(when=["noon"]), {"time": "when"}, TypeError, "column 'when' of frame must be numbers or datetimes"),
]


@pytest.mark.parametrize(("frame", "options", "error", "message"), BAD_FRAMES)
def test_bad_frames(frame, options, error, message):
    with pytest.raises(error, match=message):
        Log.from_frame(frame, **options)


def test_missing_libraries_are_named(monkeypatch):
    """Without pyarrow the error for a frame names the extra to install."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"needs pyarrow: pip install 'torchrecmetrics\[frames\]'"):
        Log.from_frame(COLUMNS)


@pytest.mark.parametrize("form", [pd.DataFrame, "csv", "parquet"])
@pytest.mark.parametrize(
    ("scores", "expected"),
    [(["2.5", "+1e3"], 1), ([" .5", " 5."], 1), (["-1", "-2"], 1 / 2), (["False", "True"], 1), (["2", "-inf"], 0)],
)
def test_numbers_of_text(form, scores, expected, tmp_path):
    """MRR@2 of y beside x: scores of text are read alike from frames and files; -inf is no candidate."""
    lists = pd.DataFrame({"user": [1, 1], "item": ["x", "y"], "score": scores})
    if isinstance(form, str):
        getattr(lists, f"to_{form}")(tmp_path / f"lists.{form}", index=False)
        lists = tmp_path / f"lists.{form}"
    assert trm.evaluate_lists("MRR@2", lists, target={1: ["y"]}, complete=True) == {"MRR@2": expected}


@pytest.mark.parametrize("flags", [[True, False], ["True", "False"]])
def test_flags_are_values_and_labels(flags, tmp_path):
    """A true value is relevant, as a label and as a gain; a rank of text is a rank."""
    frame = pd.DataFrame({"user": [1, 1], "item": ["x", "y"], "rank": ["2", "1"], "flag": flags})
    frame.to_csv(tmp_path / "x.csv", index=False)
    for table in (frame, tmp_path / "x.csv"):
        assert trm.evaluate_lists("MRR@2", table, label="flag") == {"MRR@2": 1 / 2}
        assert trm.evaluate_lists("MRR@2", {1: ["y", "x"]}, target=trm.Table(table, value="flag")) == {"MRR@2": 1 / 2}


@pytest.mark.parametrize("names", [["user", None], ["user", "item"]], ids=["unnamed level", "level like a column"])
def test_only_named_levels_that_are_no_columns_become_columns(names):
    """An index level without a name stays in the index, as does one whose name a column has."""
    levels = pd.MultiIndex.from_arrays([[1, 1], ["y", "x"]], names=names)
    frame = pd.DataFrame({"item": ["x", "y"], "score": [0.1, 0.9]}, index=levels)
    assert source_of_frame(frame, "frame").names == ["user", "item", "score"]
    assert trm.evaluate_lists("MRR@2", trm.Table(frame, score="score"), target={1: ["y"]}) == {"MRR@2": 1}


def test_columns_with_numbers_for_names_go_by_text():
    frame = pd.DataFrame({0: [1, 1], 1: ["x", "y"], 2: [0.1, 0.9]})
    with pytest.raises(TypeError, match=r"columns go by name, got 0 \(int\): pass '0'"):
        trm.Table(frame, user=0, item=1)

    assert trm.evaluate_lists("MRR@2", trm.Table(frame, user="0", item="1", score="2"), target={1: ["y"]}) == {
        "MRR@2": 1
    }
