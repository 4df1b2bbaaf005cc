"""Files of events are read by their kind; bad files raise errors that name the file, the row and the column."""

import io
import re
from pathlib import Path

import pytest
import torch

from torchrecmetrics import Interactions, Log

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")

EVENTS = [("u9", "i3", 4, 30), ("u10", "i1", 5, 10), ("u9", "i1", 3, 20)]
NUMBERED = [(9, 3, 4, 30), (10, 1, 5, 10), (9, 1, 3, 20)]


def rows(events, between, header=None):
    lines = [between.join(map(str, event)) for event in events]
    return "\n".join([*([header] if header else []), *lines]) + "\n"


HEADER = ["user", "item", "stars", "when"]
FILES = {  # name -> text, names of (user, item, value, time), whether ids are numbers
    "a.csv": (rows(EVENTS, ",", "user,item,stars,when"), HEADER, False),
    "b.tsv": (rows(NUMBERED, "\t", "user\titem\tstars\twhen"), HEADER, True),
    "c.jsonl": (pd.DataFrame(EVENTS, columns=HEADER).to_json(orient="records", lines=True), HEADER, False),
    "d.inter": (
        rows(EVENTS, "\t", "user_id:token\titem_id:token\trating:float\ttimestamp:float"),
        ["user_id", "item_id", "rating", "timestamp"],
        False,
    ),
    "u.data": (rows(NUMBERED, "\t"), ["user", "item", "rating", "timestamp"], True),
    "ratings.dat": (rows(NUMBERED, "::"), ["user", "item", "rating", "timestamp"], True),
    "e.csv": ("\ufeff" + rows([event[::-1] for event in EVENTS], ",", "when,stars,item,user"), HEADER, False),
    "f.txt": (
        "u9 Q0 i3 1 0.9 tag\nu9  Q0\ti1 2 1e-1  tag \nu10 Q0 i1 1 .5 tag\n",
        ["user", "item", "score", "rank"],
        False,
    ),
    "g.qrels": ("u9 0 i3 4\nu10 0 i1 5\nu9 0 i1 3\n", ["user", "item", "relevance", None], False),
}


@pytest.mark.parametrize("name", [name for name in FILES if name != "f.txt"])
def test_known_kinds_are_read(name, tmp_path):
    """Every known kind of file is read by name and content, with ids, values and times in the order of its rows.

    A byte order mark is no part of the first column's name, and columns may stand in any order.
    """
    text, (user, item, value, time), numbered = FILES[name]
    (tmp_path / name).write_text(text)
    log = Log.from_file(tmp_path / name, user, item, time, value)
    expected = NUMBERED if numbered else EVENTS
    found = zip(log.user_ids.ids(log.users), log.item_ids.ids(log.items), log.values.tolist(), strict=True)
    assert list(found) == [event[:3] for event in expected]
    if time is not None:
        assert log.times.tolist() == [30, 10, 20]
    assert list(log.user_ids) == ([9, 10] if numbered else ["u10", "u9"])


def test_runs_of_trec_are_read(tmp_path):
    """TREC runs may have any number of blanks and tabs between columns, and scores are read as floats."""
    text, (user, item, value, time), _ = FILES["f.txt"]
    for name in ("run.txt", "a.run", "a.trec"):
        (tmp_path / name).write_text(text)
        log = Log.from_file(tmp_path / name, user, item, time, value)
        assert (log.values.tolist(), log.times.tolist()) == ([0.9, 0.1, 0.5], [1, 2, 1])
        assert log.user_ids.ids(log.users) == ["u9", "u9", "u10"]


def test_parquet_is_read_as_pandas_wrote_it(tmp_path, monkeypatch):
    """Categories, several row groups and typed numbers are read from parquet, and only the columns that are named."""
    frame = pd.DataFrame(EVENTS * 50, columns=HEADER)
    frame["item"] = frame["item"].astype("category")
    frame["when"] = pd.to_datetime(frame["when"], unit="D")
    frame["waste"] = [f"{row:09d}" for row in range(len(frame))]
    frame.to_parquet(tmp_path / "x.parquet", row_group_size=7)
    parquet = pytest.importorskip("pyarrow.parquet")
    read, asked = parquet.ParquetFile.read, []

    def spied(file, columns=None, **options):
        asked.append(columns)
        return read(file, columns=columns, **options)

    monkeypatch.setattr(parquet.ParquetFile, "read", spied)
    log = Log.from_file(tmp_path / "x.parquet", time="when", value="stars")
    assert asked == [["user", "item", "when", "stars"]]
    assert log.user_ids.ids(log.users) == list(frame["user"])
    assert log.item_ids.ids(log.items) == list(frame["item"])
    assert pd.to_datetime(log.times.numpy(), unit=log.time_unit).tolist() == frame["when"].tolist()
    (tmp_path / "x.parquet").rename(tmp_path / "part-0")  # parquet is known by its first bytes, too
    (tmp_path / "part-0").with_suffix(".snappy").write_bytes((tmp_path / "part-0").read_bytes())
    for name in ("part-0", "part-0.snappy"):
        assert repr(Log.from_file(tmp_path / name)) == "Log(150 events, 2 users x 2 items)"


def test_lines_of_items_are_read(tmp_path):
    """LightGCN's text is read as `Interactions.from_text` reads it; lines that seem to be edges are refused."""
    (tmp_path / "train.txt").write_text("5 1 9\n2 9\n")
    log = Log.from_file(tmp_path / "train.txt")
    assert (log.user_ids.ids(log.users), log.item_ids.ids(log.items)) == ([5, 5, 2], [1, 9, 9])
    with pytest.raises(ValueError, match=r"train.txt has no column 'time'\. There are user, item"):
        Log.from_file(tmp_path / "train.txt", time="time")
    (tmp_path / "edges.txt").write_text("0 1 5\n0 2 4\n")
    with pytest.raises(
        ValueError, match=r"edges.txt has 3 columns in every line and user 0 in several: these seem to be"
    ):
        Log.from_file(tmp_path / "edges.txt")


def ids_of(text, tmp_path, name="x.csv", **options):
    (tmp_path / name).write_text(text)
    log = Log.from_file(tmp_path / name, **options)
    return log.user_ids.ids(log.users)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["7", "10", "-3"], [7, 10, -3]),
        (["7", "07"], ["7", "07"]),  # as numbers they would be one
        (["7", "7.0"], ["7", "7.0"]),
        (["7", "x"], ["7", "x"]),
        (["1e3", "1000"], ["1e3", "1000"]),
        ([str(2**64 - 1), "0"], [2**64 - 1, 0]),
        ([str(2**70), "0"], [str(2**70), "0"]),
        (["-0", "0"], ["-0", "0"]),
        (['"NA"', '""""', "é, ü".join('""')], ["NA", '"', "é, ü"]),  # a quoted id is an id like any other
    ],
)
def test_ids_of_text_are_numbers_only_if_all_are_written_so(ids, expected, tmp_path):
    """Reading ids makes no two of them equal, and loses none."""
    assert ids_of("user,item\n" + "".join(f"{one},0\n" for one in ids), tmp_path) == expected


def test_a_delimiter_can_be_said(tmp_path):
    """`delimiter=` is read for .csv and for other endings, which need it; Windows' line ends are read, too."""
    assert ids_of("user;item\r\na;1\r\nb;2\r\n", tmp_path, delimiter=";") == ["a", "b"]
    assert ids_of("user|item\na|1\n", tmp_path, "x.log", delimiter="|") == ["a"]
    assert ids_of("user;item\na;1\n", tmp_path, "x.data", delimiter=";") == ["a"]
    with pytest.raises(ValueError, match="delimiter must be one character, got '::'"):
        Log.from_file(tmp_path / "x.log", delimiter="::")


def test_times_of_text(tmp_path):
    """Times of text may be whole numbers, fractions, and dates with or without a zone."""
    for times, unit, first in (
        (["3", "10"], None, 3),
        (["3.5", "10"], None, 3.5),
        (["2024-01-01", "2024-01-02T12:00:00.5"], "ms", 1704067200_000),
        (["2024-01-01T01:00+01:00", "2024-01-01T00:00:01Z"], "s", 1704067200),
    ):
        (tmp_path / "x.csv").write_text("user,item,when\n" + "".join(f"a,b,{time}\n" for time in times))
        log = Log.from_file(tmp_path / "x.csv", time="when")
        assert (log.time_unit, log.times[0]) == (unit, first)
        assert log.times[0] < log.times[1]


def parquet(frame):
    file = io.BytesIO()
    frame.to_parquet(file)
    return file.getvalue()


def truncated():
    return parquet(pd.DataFrame(EVENTS, columns=HEADER))[:-20]


def zero():
    return parquet(pd.DataFrame(EVENTS, columns=HEADER)[:0])


def whole():
    return parquet(pd.DataFrame(EVENTS, columns=["user", "item", "stars", "time"]))


BAD = {
    "empty.csv": (b"", r"is empty: it holds no rows"),
    "lacking.parquet": (whole, r"lacking.parquet has no column 'when'.* There are user, item, stars, time"),
    "header.csv": (b"user,item,stars,when\n", r"holds a header and no rows"),
    "column.csv": (
        b"user,itm,stars,when\na,b,1,2\n",
        r"has no column 'item'; did you mean 'itm'\? There are user, itm",
    ),
    "text.csv": (
        b"user,item,stars,when\na,b,1,2\na,b,four,2\n",
        r"column 'stars' of .*text.csv must hold numbers, got 'four' in row 1 \(line 3\)",
    ),
    "nan.csv": (
        b"user,item,stars,when\na,b,1,2\na,b,NaN,2\n",
        r"column 'stars' of .*nan.csv is missing in row 1 \(line 3\): leave such rows out",
    ),
    "id.csv": (
        b"user,item,stars,when\na,b,1,2\nc,nan,1,2\n,b,1,2\n",
        r"column 'user' of .*id.csv holds a missing value: 1 of 3 rows, the first is row 2 \(line 4\)",
    ),
    "gap.csv": (
        b"user,item,stars,when\na,b,1,2\n\na,b,1,2\n",
        r"column 'user' of .*gap.csv holds a missing value: 1 of 3 rows, the first is row 1 \(line 3\)",
    ),
    "time.csv": (
        b"user,item,stars,when\na,b,1,noon\n",
        r"column 'when' of .*time.csv must be numbers or datetimes.*noon",
    ),
    "late.csv": (
        b"user,item,stars,when\na,b,1,1\na,b,1,\n",
        r"column 'when' of .*late.csv is missing in row 1 \(line 3\)",
    ),
    "uneven.csv": (
        b"user,item,stars,when\na,b,1,2\na,b,1,2,5\n",
        r"uneven.csv, line 3: 5 columns, expected 4: 'a,b,1,2,5'",
    ),
    "short.csv": (b"user,item,stars,when\na,b,1,2\na,b\n", r"short.csv, line 3: 2 columns, expected 4: 'a,b'"),
    "encoding.csv": (
        b"user,item,stars,when\na,b,1,2\nJos\xe9,b,1,2\n",
        r"encoding.csv, line 3: byte 3 is not UTF-8, in b'Jos\\xe9,b,1,2\\n': save the file as UTF-8",
    ),
    "latin.csv": (b"us\xe9r,item\n", r"latin.csv, line 1 is not UTF-8 .*: save the file as UTF-8"),
    "semicolons.tsv": (
        b"user;item;stars;when\na;b;1;2\n",
        r"line 1: a tab is not in the header 'user;item;stars;when', but ';': pass delimiter=';'",
    ),
    "cut.parquet": (truncated, r"cut.parquet is no parquet file, or was cut short"),
    "none.parquet": (b"user,item\n", r"none.parquet is no parquet file, or was cut short"),
    "array.jsonl": (b"[1]", r"array.jsonl, line 1: expected a list of objects, \[\{...\}\], got '\[1\]'"),
    "cut.json": (b'[{"user": 1}', r"cut.json is no JSON: "),
    "mixed.jsonl": (
        b'{"user": 1, "item": 1, "stars": 1, "when": 1}\n{"user": "a", "item": 1}\n',
        r"mixed.jsonl \(rows are counted from 0\): .*/user.*row 1",
    ),
    "lacking.jsonl": (
        b'{"user": 1, "item": 1, "stars": 1, "when": 1}\n{"user": 2, "stars": 1, "when": 1}\n',
        r"column 'item' of .*lacking.jsonl holds a missing value: 1 of 2 rows, the first is row 1 \(line 2\)",
    ),
    "x.inter": (b"user_id\titem_id\n1\t2\n", r"is no RecBole file: its header must be name:type.*, tabs between, got"),
    "u.data": (b"a\tb\t3\t4\n", r"is no file like MovieLens' u.data, four whole numbers and tabs: 'a\\tb\\t3\\t4'"),
    "ratings.dat": (b"1::2::3\n", r"is no file like MovieLens' ratings.dat, user::item::rating::time: '1::2::3'"),
    "middle.dat": (
        b"1::2::3::4\n1:9:2::3::4\n",
        r"middle.dat, row 1 \(line 2\): '9' stands between two delimiters",
    ),
    "zero.parquet": (zero, r"zero.parquet holds no rows"),
    "x.qrels": (b"1 0 2\n", r"is no TREC qrels file, 'query 0 document relevance': '1 0 2'"),
    "users.txt": (b"1\n2\n", r"users.txt holds users alone, and no item"),
    "notes.txt": (b"hello world\n", r"notes.txt is of no known kind; there are .csv, .tsv, .parquet, .json, .jsonl"),
    "x.xlsx": (b"PK\x03\x04\n", r"x.xlsx is of no known kind; .*Other files of columns: delimiter="),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files(name, tmp_path):
    """The message names the file, and the row and the column where there are any."""
    content, message = BAD[name]
    (tmp_path / name).write_bytes(content() if callable(content) else content)
    time, value = {"middle.dat": ("timestamp", "rating"), "users.txt": (None, None)}.get(name, ("when", "stars"))
    with pytest.raises((TypeError, ValueError), match=f"(?s){message}") as raised:
        Log.from_file(tmp_path / name, time=time, value=value)
    assert name in str(raised.value)


def test_paths_that_are_no_files(tmp_path):
    (tmp_path / "x.csv").mkdir()
    with pytest.raises(ValueError, match=r"x.csv is a folder without parquet files: pass one file"):
        Log.from_file(tmp_path / "x.csv")
    for name in ("no.csv", "no.parquet", "no.dat"):
        with pytest.raises(FileNotFoundError):
            Log.from_file(tmp_path / name)


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    (tmp_path / "x.csv").write_text("user,item\n1,2\n")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"reading .*x.csv needs pyarrow: pip install 'torchrecmetrics\[frames\]'"):
        Log.from_file(tmp_path / "x.csv")


DATA = Path(__file__).parents[3] / "shared" / "data"


@pytest.mark.skipif(not DATA.exists(), reason="the data sets are not here")
def test_real_files():
    """MovieLens 100K is read as pandas reads it, Gowalla and Beauty as `Interactions.from_text` does."""
    path = DATA / "ml-100k" / "u.data"
    log = Log.from_file(path, time="timestamp", value="rating")
    frame = pd.read_csv(path, sep="\t", names=["user", "item", "rating", "timestamp"])
    assert log.user_ids.ids(log.users) == frame["user"].tolist()
    assert log.item_ids.ids(log.items) == frame["item"].tolist()
    assert (log.values.tolist(), log.times.tolist()) == (frame["rating"].tolist(), frame["timestamp"].tolist())
    for name in ("gowalla/test.txt", "beauty/Beauty.txt"):
        log, expected = Log.from_file(DATA / name), Interactions.from_text(DATA / name)
        users, items = (
            torch.tensor(list(ids))[rows] for ids, rows in ((log.user_ids, log.users), (log.item_ids, log.items))
        )
        keys = (users * expected.num_items + items).sort().values
        assert torch.equal(keys, expected.keys)


def test_messages_name_the_path_as_given(tmp_path):
    """Messages name the path as it was given, as a Path or as text."""
    for path in (tmp_path / "x.csv", str(tmp_path / "x.csv")):
        Path(path).write_text("")
        with pytest.raises(ValueError, match=re.escape(str(path))):
            Log.from_file(path)


@pytest.mark.parametrize(
    "text",
    [
        "user;item\nal;x\nbo;y\n",
        "user\titem\nal\tx\nbo\ty\n",
        "user|item\r\nal|x\r\nbo|y\r\n",
        "user,item\ral,x\rbo,y\r",
        ",user,item\n0,al,x\n1,bo,y\n",
        "user,item, note\nal,x,a;b\nbo,y,\n",
    ],
    ids=["semicolon", "tab", "pipe", "carriage-return", "index-of-pandas", "blank-before-a-name"],
)
def test_csv_as_other_programs_write_it(text, tmp_path):
    path = tmp_path / "log.csv"
    path.write_bytes(text.encode())
    log = Log.from_file(path)
    assert log.user_ids.ids(log.users) == ["al", "bo"]
    assert log.item_ids.ids(log.items) == ["x", "y"]


def test_a_name_with_a_blank_can_be_named(tmp_path):
    (tmp_path / "log.csv").write_text("user, item\nal,x\n")
    with pytest.raises(ValueError, match="has no column 'item'; did you mean ' item'"):
        Log.from_file(tmp_path / "log.csv")
    assert list(Log.from_file(tmp_path / "log.csv", item=" item").item_ids) == ["x"]
