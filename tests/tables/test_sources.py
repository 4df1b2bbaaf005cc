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

from torchrecmetrics import Interactions, Log, Table, evaluate_lists
from torchrecmetrics.tables.sources import open_file, source_of_frame

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
pytest.importorskip("numpy")
pl = pytest.importorskip("polars")

EVENTS = [("u9", "i3", 4, 30), ("u10", "i1", 5, 10), ("u9", "i1", 3, 20)]
NUMBERED = [(9, 3, 4, 30), (10, 1, 5, 10), (9, 1, 3, 20)]
"""Users, items, stars and times."""


def rows(events, delimiter, *header):
    return "\n".join([*header, *(delimiter.join(map(str, event)) for event in events), ""])


def pairs_of(log):
    """Return the user and the item of each row."""
    return list(zip(log.user_ids.ids(log.users), log.item_ids.ids(log.items), strict=True))


HEADER = ["user", "item", "stars", "when"]
MOVIELENS = ["user", "item", "rating", "timestamp"]
RECBOLE = ["user_id", "item_id", "rating", "timestamp"]
FRAME = pd.DataFrame(EVENTS, columns=HEADER)
BACKWARDS = [event[::-1] for event in EVENTS]
FILES = {  # name -> text, names of (user, item, value, time), events
    "a.csv": (rows(EVENTS, ",", "user,item,stars,when"), HEADER, EVENTS),
    "b.tsv": (rows(NUMBERED, "\t", "user\titem\tstars\twhen"), HEADER, NUMBERED),
    "c.jsonl": (FRAME.to_json(orient="records", lines=True), HEADER, EVENTS),
    "c.json": (FRAME.to_json(orient="records"), HEADER, EVENTS),
    "d.inter": (rows(EVENTS, "\t", "user_id:token\titem_id:token\trating:float\ttimestamp:float"), RECBOLE, EVENTS),
    "u.data": (rows(NUMBERED, "\t"), MOVIELENS, NUMBERED),
    "ratings.dat": (rows(NUMBERED, "::"), MOVIELENS, NUMBERED),
    "e.csv": ("\ufeff" + rows(BACKWARDS, ",", "when,stars,item,user"), HEADER, EVENTS),  # with a byte order mark
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_known_kinds_are_read_in_the_order_of_their_rows(name, tmp_path):
    text, (user, item, value, time), events = FILES[name]
    (tmp_path / name).write_text(text)
    log = Log.from_file(tmp_path / name, user, item, time, value)

    assert pairs_of(log) == [event[:2] for event in events]
    assert list(log.user_ids) == sorted({event[0] for event in events})
    assert (log.values.tolist(), log.times.tolist()) == ([4, 5, 3], [30, 10, 20])


@pytest.mark.parametrize("name", ["run.txt", "a.trec"])
def test_runs_of_trec_are_read(name, tmp_path):
    """They may have any number of blanks and tabs between columns."""
    (tmp_path / name).write_text("u9 Q0 i3 1 0.9 tag\nu9  Q0\ti1 2 1e-1  tag \nu10 Q0 i1 1 .5 tag\n")
    log = Log.from_file(tmp_path / name, time="rank", value="score")

    assert pairs_of(log) == [("u9", "i3"), ("u9", "i1"), ("u10", "i1")]
    assert (log.values.tolist(), log.times.tolist()) == ([0.9, 0.1, 0.5], [1, 2, 1])


@pytest.mark.parametrize("text", ["al 0 x 1 0.9\nal 0 z 2 0.1", "al Q0 x 1 0.9 my tag\nal Q0 z 2 0.1 my tag"])
def test_the_tag_of_a_run_may_be_missing_or_hold_blanks(text, tmp_path):
    (tmp_path / "a.run").write_text(text)

    assert evaluate_lists("MRR@2", tmp_path / "a.run", target={"al": ["z"]})["MRR@2"] == 1 / 2


def test_parquet_is_read_as_pandas_wrote_it(tmp_path):
    frame = pd.DataFrame(EVENTS * 50, columns=HEADER).astype({"item": "category"})
    frame["when"] = pd.to_datetime(frame["when"], unit="D")
    frame.to_parquet(tmp_path / "x.parquet", row_group_size=7)
    log = Log.from_file(tmp_path / "x.parquet", time="when", value="stars")

    assert pairs_of(log) == [event[:2] for event in EVENTS * 50]
    assert pd.to_datetime(log.times.numpy(), unit=log.time_unit).tolist() == frame["when"].tolist()


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("5 1 9\n2 9\n", [(5, 1), (5, 9), (2, 9)]),
        ("0 5 3 9 1 2\n", [(0, 5), (0, 3), (0, 9), (0, 1), (0, 2)]),  # six numbers are no line of a run
        ("0 25 17\n1 4 30\n", [(0, 25), (0, 17), (1, 4), (1, 30)]),  # lines of two items are not edges
    ],
)
def test_lines_of_lightgcn_are_a_user_and_items(text, pairs, tmp_path):
    (tmp_path / "train.txt").write_text(text)

    assert pairs_of(Log.from_file(tmp_path / "train.txt")) == pairs


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
COMPRESS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd}


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("kind", CONTENT)
def test_compressed_files_are_read(kind, suffix, tmp_path):
    """The suffix before the last one names the format."""
    (tmp_path / f"log.{kind}.{suffix}").write_bytes(COMPRESS[suffix](CONTENT[kind]))

    assert pairs_of(Log.from_file(tmp_path / f"log.{kind}.{suffix}")) == [("al", "x"), ("bo", "y")]


@pytest.mark.parametrize(("suffix", "program"), [("gz", "gzip"), ("bz2", "bz2"), ("xz", "xz"), ("zst", "zstd")])
def test_compressed_files_that_were_cut_are_refused(suffix, program, tmp_path):
    path = tmp_path / f"log.csv.{suffix}"
    path.write_bytes(COMPRESS[suffix](CONTENT["csv"])[:-9])
    with pytest.raises(ValueError, match=rf"log.csv.{suffix} is no {program} file, (or )?was cut"):
        open_file(path)


@pytest.mark.parametrize("kind", CONTENT)
def test_pipes_are_read_once(kind):
    """The first bytes tell the format of /dev/fd/N, which is `<(...)` in a shell."""
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
@pytest.mark.parametrize("name", ["log.csv", "log", "log.jsonl", "log.tar.gz"])
def test_files_of_other_kinds_are_never_tables_of_bytes(name, kind, tmp_path):
    """Whatever the suffix, pandas is named for an archive, another encoding, and a file compressed without suffix."""
    content = archive(kind)
    (tmp_path / name).write_bytes(gzip.compress(content) if name == "log.tar.gz" else content)
    with pytest.raises(ValueError, match=rf"{name}, line 1: .* read it with pandas \(zip, tar, UTF-16\)"):
        open_file(tmp_path / name)


TITLES, ROW = b"user,item,stars,when\n", b"a,b,1,2\n"
OBJECT = b'{"user": 1, "item": 1, "stars": 1, "when": 1}\n'
BAD_FILES = {
    "empty.csv": (b"", r"is empty: it holds no rows"),
    "lacking.parquet": (parquet(FRAME.drop(columns="when")), r"has no column 'when'.* There are user, item, stars"),
    "twice.csv": ((TITLES + ROW) * 2, "has its header twice"),
    "column.csv": (b"user,itm,stars,when\n" + ROW, r"no column 'item' or 'item_id'; did you mean 'itm'\?"),
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


@pytest.mark.parametrize("name", BAD_FILES)
@pytest.mark.parametrize("as_path", [lambda path: path, str], ids=["path", "text"])
def test_bad_files_are_refused_by_name(as_path, name, tmp_path):
    """The message names the row and the column where there are any."""
    content, message = BAD_FILES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises((TypeError, ValueError), match=f"(?s){message}") as error:
        Log.from_file(as_path(tmp_path / name), time="when", value="stars")

    assert str(tmp_path / name) in str(error.value)


def test_a_folder_of_parquet_files_is_one_table(tmp_path):
    FRAME[["user", "item"]][:2].to_parquet(tmp_path / "0.parquet")
    FRAME[["user", "item"]][2:].to_parquet(tmp_path / "1.parquet")

    assert pairs_of(Log.from_file(tmp_path)) == [event[:2] for event in EVENTS]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("notes.txt", "is a folder without parquet files: pass one file"),
        ("README.parquet", "is no parquet file"),
        ("_delta_log/0.parquet", "is a table of Delta Lake: pass deltalake"),
    ],
)
def test_other_folders_are_refused(name, message, tmp_path):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("no parquet")
    with pytest.raises(ValueError, match=message):
        open_file(tmp_path)


# the first record has no score; a column without a role may hold numbers and text
RECORDS = [{"user": 1, "item": 10, "note": 1}, {"user": 1, "item": 11, "score": 0.9, "note": "q"}]


def as_json(folder):
    (folder / "lists.json").write_text(json.dumps(RECORDS))
    return folder / "lists.json"


@pytest.mark.parametrize("form", [lambda _: RECORDS, as_json], ids=["records", "file"])
def test_a_record_without_a_key_of_others_has_no_entry_there(form, tmp_path):
    lists = form(tmp_path)
    with pytest.raises(ValueError, match=r"'score' .*is missing in row 0"):
        evaluate_lists("HR@1", lists, target={1: [11]})

    assert evaluate_lists("MRR@2", Table(lists, rank=None, score=None), target={1: [11]}) == {"MRR@2": 1 / 2}


def test_without_pyarrow_a_file_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "x.csv").write_text("user,item\n1,2\n")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"reading .*x.csv needs pyarrow: pip install 'torchrecmetrics\[frames\]'"):
        Log.from_file(tmp_path / "x.csv")


def lines_of_cells(folder):
    (folder / "test.txt").write_text("1 5 6\n2\n3 6\n")
    return folder / "test.txt"


@pytest.mark.parametrize(
    "truth",
    [
        lines_of_cells,
        lambda folder: Log.from_file(lines_of_cells(folder)),
        lambda folder: Interactions.from_frame(Table(lines_of_cells(folder))),
        lambda _: Log.from_frame({"user": [1, 2, 3], "item": [[5, 6], [], [6]]}),
    ],
    ids=["lines", "log of lines", "interactions of lines", "log of cells"],
)
def test_a_line_or_a_cell_without_items_is_a_user_without_items(truth, tmp_path):
    """Of three users, one has a hit, one none, and one nothing to find."""
    options = {"target": truth(tmp_path), "empty_target_action": "neg", "complete": True}

    assert evaluate_lists("HR@1", {1: [5], 2: [6], 3: [5]}, **options)["HR@1"].item() == pytest.approx(1 / 3)


DEEP = "[" * 200_000 + "]" * 200_000


@pytest.mark.parametrize(
    ("name", "content", "message", "length"),
    [
        ("deep.jsonl", f'{{"user": 1, "item": 2, "tree": {DEEP}}}\n', "line 1 holds 200001 brackets", 300),
        ("deep.json", f'[{{"user": 1, "tree": {DEEP}}}]\n', "is no JSON: maximum recursion depth", 300),
        ("wide.csv", f"{','.join(f'c{n}' for n in range(200_000))}\n{',' * 199_999}\n", "c49 and 199950 more", 1200),
    ],
    ids=["deep.jsonl", "deep.json", "wide.csv"],
)
def test_deep_and_wide_files_are_refused_in_few_words(name, content, message, length, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        Log.from_file(tmp_path / name)

    assert len(str(error.value)) < length


def test_long_lines_are_read(tmp_path):
    (tmp_path / "long.csv").write_text("user,item,note\n1,2," + "n" * 3_000_000 + "\n1,3,n\n")

    assert len(Log.from_file(tmp_path / "long.csv", value=None, time=None)) == 2


@pytest.mark.parametrize(
    ("header", "roles"),
    [
        ("uid:token\tiid:token\tday:float", {"user": "uid", "item": "iid"}),
        ("day:float\tuid:token\titem_id:token", {"user": "uid", "item": "item_id"}),
        ("item_id:token\tuid:token\ttimestamp:float", {"item": "item_id", "time": "timestamp"}),
        ("uid:token\tiid:token\tcity:token", {}),
        ("user_id:token\tiids:token_seq\tday:float", {"user": "user_id"}),
    ],
)
def test_two_columns_of_tokens_are_users_and_items(header, roles, tmp_path):
    """They come in this order, unless their names say otherwise; others are asked about."""
    (tmp_path / "x.inter").write_text(header + "\n1\t2\t3\n")

    assert Table(tmp_path / "x.inter").columns == roles


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


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_log(form):
    log = Log.from_frame(FORMS[form](COLUMNS), time="when", value="stars")

    assert pairs_of(log) == list(zip(COLUMNS["user"], COLUMNS["item"], strict=True))
    assert (list(log.user_ids), list(log.item_ids)) == (["al", "bo", "ü"], [-1, 7, 2**62])
    assert (log.times.tolist(), log.time_unit, log.values.tolist()) == (COLUMNS["when"], None, COLUMNS["stars"])


LISTS = pd.DataFrame({"user": ["al", "al", "bo", "bo"], "item": ["x", "z", "z", "y"]})


@pytest.mark.parametrize(
    "lists",
    [LISTS.to_dict("records"), LISTS.set_index("user"), LISTS.set_index(["user", "item"])],
    ids=["records", "named index", "two named levels"],
)
def test_records_and_named_levels_of_an_index_are_columns(lists):
    assert evaluate_lists("MRR@2", lists, target={"al": ["x"], "bo": ["y"]})["MRR@2"] == (1 + 1 / 2) / 2


@pytest.mark.parametrize("names", [["user", None], ["user", "item"]], ids=["unnamed level", "level like a column"])
def test_other_levels_of_an_index_stay_in_it(names):
    levels = pd.MultiIndex.from_arrays([[1, 1], ["y", "x"]], names=names)
    frame = pd.DataFrame({"item": ["x", "y"], "score": [0.1, 0.9]}, index=levels)

    assert source_of_frame(frame, "frame").names == ["user", "item", "score"]
    assert evaluate_lists("MRR@2", frame, target={1: ["y"]}) == {"MRR@2": 1}


NUMBERED_COLUMNS = pd.DataFrame({0: [1, 1], 1: ["x", "y"], 2: [0.1, 0.9]})


def test_columns_with_numbers_for_names_go_by_text():
    lists = Table(NUMBERED_COLUMNS, user="0", item="1", score="2")

    assert evaluate_lists("MRR@2", lists, target={1: ["y"]}) == {"MRR@2": 1}


@pytest.mark.parametrize("form", ["pandas", "pyarrow", "dict"])
@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"user": ["al", None]}, r"column 'user' of frame holds a missing value: 1 of 2 rows, the first is row 1"),
        ({"item": [7, None]}, r"column 'item' of frame holds a missing value: 1 of 2 rows, .* row 1"),
        ({"when": [3, None]}, r"column 'when' of frame: 1 of 2 are missing, the first in row 1"),
        ({"stars": [4.0, None]}, r"column 'stars' of frame (is missing|holds no number) in row 1"),
        ({"stars": [4.0, math.nan]}, r"column 'stars' of frame (is missing|holds no number) in row 1"),
    ],
    ids=["user", "item", "when", "stars", "NaN"],
)
def test_a_missing_entry_is_named_by_column_and_row(form, column, message):
    frame = {"user": ["al", "bo"], "item": [7, 8], "when": [3, 1], "stars": [4.0, 2.5]} | column
    with pytest.raises(ValueError, match=message):
        Log.from_frame(FORMS[form](frame), time="when", value="stars")


def pair(user=(1,), item=(1,), **more):
    return {"user": [*user], "item": [*item], **more}


TWICE = pd.DataFrame([[1, 2, 3]], columns=["user", "item", "item"])
LARGE = pd.DataFrame(pair(pd.Series([5, 2**62 + 1], dtype="Int64"), [1, 2]))
NO_FRAME = "frame must be a frame, got .*: pass a frame of pandas, polars or pyarrow, a dict of columns, a list of rec"


@pytest.mark.parametrize(
    ("frame", "options", "error", "message"),
    [
        ([[0, 1]], {}, TypeError, NO_FRAME),
        (7, {}, TypeError, NO_FRAME),
        (torch.zeros(2, 2), {}, TypeError, NO_FRAME),
        ("log.csv", {}, TypeError, r"frame must be a frame, got a path: Log\.from_file"),
        (pl.DataFrame(COLUMNS).lazy(), {}, TypeError, r"not computed yet, LazyFrame: pass frame.collect\(\)"),
        (COLUMNS, {"value": "star"}, ValueError, "no column 'star'; did you mean 'stars'.* item, when, stars"),
        (COLUMNS, {"user_ids": ["al", "bo"]}, ValueError, r"holds 'ü' in row 3, .* user_ids \(1 of 4 rows\)"),
        (TWICE, {}, ValueError, "frame has 2 columns named 'item': rename them"),
        (pair(item=[1, 2]), {}, ValueError, r"must be equally long, got \{'user': 1, 'item': 2\}"),
        (LARGE, {"user_ids": [5]}, ValueError, "holds 4611686018427387905 in row 1, which is not in user_ids"),
        (pair(item="7"), {"item_ids": [7]}, TypeError, r"frame holds text \('7'\), item_ids hold whole numbers"),
        (pair(user=[0.5, 1.0], item=[1, 2]), {}, TypeError, r"column 'user' of frame holds floats such as 0\.5"),
        (pair(stars=["x"]), {"value": "stars"}, ValueError, r"'stars' of frame must hold numbers, got 'x' in row 0"),
        (pair(when=["noon"]), {"time": "when"}, TypeError, "column 'when' of frame must be numbers or datetimes"),
    ],
)
def test_bad_frames_are_refused(frame, options, error, message):
    with pytest.raises(error, match=message):
        Log.from_frame(frame, **options)


def as_csv(frame, folder):
    frame.to_csv(folder / "x.csv", index=False)
    return folder / "x.csv"


def as_parquet(frame, folder):
    frame.to_parquet(folder / "x.parquet", index=False)
    return folder / "x.parquet"


SAVED = pytest.mark.parametrize("save", [lambda frame, _: frame, as_csv, as_parquet], ids=["frame", "csv", "parquet"])


@SAVED
@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        (["2.5", "+1e3"], 1),
        ([" .5", " 5."], 1),
        (["-1", "-2"], 1 / 2),
        (["False", "True"], 1),
        (["2", "-inf"], 0),  # -inf is no candidate
    ],
)
def test_scores_of_text_are_numbers(scores, expected, save, tmp_path):
    lists = pd.DataFrame({"user": [1, 1], "item": ["x", "y"], "score": scores})

    assert evaluate_lists("MRR@2", save(lists, tmp_path), target={1: ["y"]}, complete=True) == {"MRR@2": expected}


@SAVED
@pytest.mark.parametrize("flags", [[True, False], ["True", "False"]])
def test_a_true_label_is_relevant(flags, save, tmp_path):
    """x, at rank 2; ranks of text are ranks."""
    frame = pd.DataFrame({"user": [1, 1], "item": ["x", "y"], "rank": ["2", "1"], "flag": flags})

    assert evaluate_lists("MRR@2", save(frame, tmp_path), label="flag") == {"MRR@2": 1 / 2}
