"""Files from shells and other programs: compressed, from pipes, without a suffix, with decimal ids."""

import bz2
import gzip
import io
import json
import lzma
import math
import os
import subprocess
import sys
import threading
import zipfile

import pytest
import torch

import torchrecmetrics as trm
from torchrecmetrics.data.files import open_file

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

PROGRAMS = {"gz": "gzip", "bz2": "bz2", "xz": "xz", "zst": "zstd", "zip": "zip"}
PAIRS = pd.DataFrame({"user": ["al", "bo"], "item": ["x", "y"]})


def pairs_of(log):
    return list(zip(log.user_ids.ids(log.users), log.item_ids.ids(log.items), strict=True))


def parquet():
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(pa.Table.from_pandas(PAIRS), sink)
    return sink.getvalue().to_pybytes()


pytest.importorskip("pyarrow.parquet")
CONTENT = {
    "csv": PAIRS.to_csv(index=False).encode(),
    "jsonl": PAIRS.to_json(orient="records", lines=True).encode(),
    "run": b"al Q0 x 1 2.5 tag\nbo Q0 y 1 1.5 tag\n",
    "qrels": b"al 0 x 1\nbo 0 y 1\n",
    "parquet": parquet(),
}


@pytest.mark.parametrize("kind", CONTENT)
@pytest.mark.parametrize("suffix", ["gz", "bz2", "zst"])
def test_compressed_files_are_read(kind, suffix, tmp_path):
    """A compressed file of any format is read; the suffix before the last one names the format."""
    path = tmp_path / f"log.{kind}.{suffix}"
    compress = {"gz": gzip.compress, "bz2": bz2.compress, "zst": lambda data: zstd(data)}[suffix]
    path.write_bytes(compress(CONTENT[kind]))
    assert pairs_of(trm.Log.from_file(path)) == [("al", "x"), ("bo", "y")]


def zstd(data):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def test_a_file_that_is_not_compressed_as_its_name_says(tmp_path):
    (tmp_path / "log.csv.gz").write_bytes(CONTENT["csv"])
    with pytest.raises(ValueError, match=r"log.csv.gz is no gzip file, or was cut short"):
        trm.Log.from_file(tmp_path / "log.csv.gz")


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
        assert pairs_of(trm.Log.from_file(f"/dev/fd/{reading}")) == [("al", "x"), ("bo", "y")]
    finally:
        writer.join()
        os.close(reading)


@pytest.mark.slow
def test_the_command_reads_its_input(tmp_path):
    """`evaluate /dev/stdin TRUTH` reads the lists from its input."""
    (tmp_path / "truth.qrels").write_bytes(CONTENT["qrels"])
    done = subprocess.run(
        [sys.executable, "-m", "torchrecmetrics", "evaluate", "/dev/stdin", tmp_path / "truth.qrels", "-m", "MRR@1"],
        input=CONTENT["run"],
        capture_output=True,
        timeout=120,
    )
    assert done.stdout.startswith(b"MRR@1  1.0000"), done.stderr


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["7.0", "10.0", "-3.0", "0.0"], [7, 10, -3, 0]),  # pandas writes whole numbers like this if some are missing
        (["7.0", "7.5"], ["7.0", "7.5"]),
        (["7.0", "7"], ["7.0", "7"]),
        (["07.0", "7.0"], ["07.0", "7.0"]),
        (["-0.0", "0.0"], ["-0.0", "0.0"]),
        (["7.00", "7.0"], ["7.00", "7.0"]),
    ],
)
def test_ids_are_whole_numbers_where_all_end_in_point_zero(ids, expected, tmp_path):
    """Ids become whole numbers if all end in .0 and stay distinct; otherwise they stay text."""
    (tmp_path / "log.csv").write_text("user,item\n" + "".join(f"{id_},1\n" for id_ in ids))
    log = trm.Log.from_file(tmp_path / "log.csv")
    assert log.user_ids.ids(log.users) == expected


def test_decimal_ids_meet_whole_ones(tmp_path):
    """Lists with the item 7.0 and the rank 1.0 match a truth with the item 7."""
    (tmp_path / "lists.csv").write_text("user,item,rank\n1.0,7.0,1.0\n1.0,8.0,2.0\n")
    (tmp_path / "truth.csv").write_text("user,item\n1,8\n")
    found = trm.evaluate_lists("MRR", tmp_path / "lists.csv", target=tmp_path / "truth.csv", rank="rank", k=2)
    assert found["MRR@2"] == 0.5


def test_the_command_takes_a_delimiter(tmp_path, capsys):
    """`--delimiter` reads files whose header holds several delimiters or whose suffix is unknown."""
    from torchrecmetrics.cli import main

    (tmp_path / "lists.log").write_text("user:item:a,b\nal:x:1\nal:y:0\n")
    (tmp_path / "truth.csv").write_text("user:item:a,b\nal:y:0\n")
    files = [str(tmp_path / name) for name in ("lists.log", "truth.csv")]
    assert main(["evaluate", *files, "-m", "MRR@2", "--delimiter", ":", "--in-order"]) == 0
    assert capsys.readouterr().out.startswith("MRR@2  0.5000")
    assert main(["evaluate", *files, "-m", "MRR@2"]) == 2
    assert "lists.log is of no known kind" in capsys.readouterr().err


def test_the_command_compares_ids_of_files_as_text_with_and_without_gains(tmp_path, capsys):
    """Ids of all files are text, with and without gains: 7 in the truth matches 7 in lists that also hold x."""
    from torchrecmetrics.cli import main

    (tmp_path / "lists.csv").write_text("user,item\nal,7\nal,x\n")
    (tmp_path / "truth.csv").write_text("uid,item,gain\nal,7,1\n")
    (tmp_path / "history.csv").write_text("uid,item\nal,x\n")
    files = [str(tmp_path / name) for name in ("lists.csv", "truth.csv")]
    names = ["--truth-user", "uid", "--history", str(tmp_path / "history.csv"), "--complete", "-m", "MRR@1"]
    for gains in (["--value", "gain"], ["--no-value"]):
        assert main(["evaluate", *files, *names, *gains]) == 0
        assert capsys.readouterr().out.startswith("MRR@1  1.0000")


LISTS = {"user": ["al"] * 4 + ["bo"] * 4, "item": list("xyzw") * 2}


@pytest.mark.parametrize("form", ["frame", "csv", "parquet", "dict"])
@pytest.mark.parametrize("name", ["prob", "y_pred", "logit", "pctr", "cosine", "score", "rank", "position", "xyz"])
def test_a_column_that_may_order_lists_is_a_question(name, form, tmp_path):
    """At every door, a column that the rows do not follow is a question; rows that follow it are quiet."""
    is_rank = name in ("rank", "position")
    in_order = [1, 2, 3, 4] * 2 if is_rank else [0.4, 0.3, 0.2, 0.1] * 2
    for values, expected in ((in_order, None), (in_order[::-1], (1 / 4 + 1 / 3) / 2)):
        lists = made(pd.DataFrame({**LISTS, name: values, "note": ["a"] * 8}), form, tmp_path)
        if expected is not None:
            with pytest.raises(ValueError, match=f"has a column that may order the lists: '{name}' .* rank=None"):
                trm.evaluate_lists("MRR", lists, target=TRUTH, k=4)
            said = {"rank" if is_rank else "score": name}
            assert float(trm.evaluate_lists("MRR", lists, target=TRUTH, k=4, **said)["MRR@4"]) == expected
        assert trm.evaluate_lists("MRR", lists, target=TRUTH, k=4, rank=None)["MRR@4"] == 0.75
        if expected is None:
            assert trm.evaluate_lists("MRR", lists, target=TRUTH, k=4)["MRR@4"] == 0.75


TRUTH = {"al": ["x"], "bo": ["y"]}


def made(frame, form, folder):
    """Return a frame as it is, as a dict of columns, or as a file."""
    if form == "csv":
        frame.to_csv(folder / "table.csv", index=False)
    elif form == "parquet":
        frame.to_parquet(folder / "table.parquet")
    return {"frame": frame, "dict": frame.to_dict("list")}.get(form, folder / f"table.{form}")


@pytest.mark.parametrize("form", ["frame", "csv", "parquet", "dict"])
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("is_click", [1, 0, 0, 1]),
        ("clicked", [True, False, False, True]),
        ("stars", [5, 0, 0, 4]),
        ("xyz", [0, 1, 0, 1]),
    ],
)
def test_a_column_that_may_be_relevance_is_a_question(name, values, form, tmp_path):
    """At every door, rows with 0 or False in a column are not taken as relevant without a word."""
    truth = pd.DataFrame({"user": ["al", "al", "bo", "bo"], "item": list("xyxy"), name: values})
    lists = {"al": ["y", "x"], "bo": ["x", "y"]}
    with pytest.raises(ValueError, match=f"a column that may say which rows are relevant: '{name}' .* value=None"):
        trm.evaluate_lists("MRR", lists, target=made(truth, form, tmp_path), k=2)
    expected = (
        sum(
            1 / next(r for r, item in enumerate(lists[user], 1) if truth[name][2 * u + "xy".index(item)] > 0)
            for u, user in enumerate(lists)
        )
        / 2
    )
    if values[0] is not True and values[0] is not False:
        found = trm.evaluate_lists("MRR", lists, target=made(truth, form, tmp_path), k=2, value=name)
        assert float(found["MRR@2"]) == expected
    assert float(trm.evaluate_lists("MRR", lists, target=made(truth, form, tmp_path), k=2, value=None)["MRR@2"]) == 1


def test_positive_ratings_are_a_question_for_metrics_of_gains_alone():
    """Ratings above 0 change NDCG, but not MRR."""
    truth = {"user": ["al", "al"], "item": ["x", "y"], "rating": [5, 1]}
    lists = {"al": ["y", "x"]}
    assert trm.evaluate_lists("MRR", lists, target=truth, k=2)["MRR@2"] == 1
    with pytest.raises(ValueError, match="may say which rows are relevant: 'rating'"):
        trm.evaluate_lists("NDCG", lists, target=truth, k=2)


@pytest.mark.parametrize("columns", [{"price": [3, 3, 2, 3] * 2}, {"n": range(8)}, {"at": [1.5e9, 1.6e9] * 4}])
def test_other_columns_of_numbers_are_ignored(columns):
    """Properties of items, numbers of rows and times are no order."""
    found = trm.evaluate_lists("MRR", pd.DataFrame({**LISTS, **columns}), target=TRUTH, k=4)
    assert found["MRR@4"] == 0.75


def test_the_index_that_pandas_writes_orders_nothing(tmp_path):
    pd.DataFrame(LISTS).to_csv(tmp_path / "lists.csv")
    found = trm.evaluate_lists("MRR", tmp_path / "lists.csv", target={"al": ["x"], "bo": ["y"]}, k=4)
    assert found["MRR@4"] == 0.75


def test_repeated_gains_are_named_by_id():
    """The error about repeated gains names the user and the item by the caller's ids, or by number without ids."""
    frame = {"user": ["al", "al"], "item": ["x", "x"], "gain": [1, 5]}
    with pytest.raises(ValueError, match=r"such as user 'al', item 'x' with \[1, 5\]: values_reduce="):
        trm.Interactions.from_frame(frame, value="gain")
    with pytest.raises(ValueError, match=r"such as user 0, item 1 with \[1, 5\]: values_reduce="):
        trm.Interactions.from_edge_index(torch.tensor([[0, 0], [1, 1]]), 1, 2, torch.tensor([1, 5]))


def test_lists_in_cells(tmp_path):
    """A frame or file with one row per user and a list of items in a cell holds these lists, best first."""
    frame = pd.DataFrame({"user": ["al", "bo"], "item": [["x", "y"], ["z"]]})
    frame.to_parquet(tmp_path / "lists.parquet")
    for lists in (frame, tmp_path / "lists.parquet", frame.to_dict("list"), pl.DataFrame(frame)):
        found = trm.evaluate_lists("MRR", lists, target={"al": ["y"], "bo": ["z"]}, k=2, complete=True)
        assert found["MRR@2"] == 0.75
        assert trm.evaluate_lists("HR@1", {"al": ["x"], "bo": ["y"]}, target=lists)["HR@1"] == 0.5


TABLE = "user,item\nal,x\nal,z\nbo,z\nbo,y\n"
ROWS = [dict(zip(("user", "item"), line.split(","), strict=True)) for line in TABLE.split()[1:]]
RUN = "al {} x 1 .9{}\nal {} z 2 .1{}\nbo {} z 1 .9{}\nbo {} y 2 .1{}\n"


def zipped(name, *files):
    """Return the content of a zip archive."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for file in (name, *files):
            archive.writestr(file, TABLE)
    return content.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv.gz", gzip.compress(TABLE.encode(), mtime=0)),
        ("a.csv.bz2", bz2.compress(TABLE.encode())),
        ("a.csv.xz", lzma.compress(TABLE.encode())),
        ("a.csv.zip", zipped("a.csv")),
        ("bom.csv", b"\xef\xbb\xbf" + TABLE.encode()),
        ("crlf.csv", TABLE.replace("\n", "\r\n").encode()),
        ("cr.csv", TABLE.replace("\n", "\r").encode()),
        ("utf16.csv", TABLE.encode("utf-16")),
        ("blank.csv", (TABLE + "\n\n").encode()),
        ("blank-crlf.csv", (TABLE + "\n\n").replace("\n", "\r\n").encode()),
        ("semicolons.csv", TABLE.replace(",", ";").encode()),
        ("lines.json", "\n".join(map(json.dumps, ROWS)).encode()),
        ("list.json", json.dumps(ROWS).encode()),
        ("a.run", RUN.format(*["Q0", " tag"] * 4).encode()),
        ("zero.run", RUN.format(*["0", " tag"] * 4).encode()),
        ("five.run", RUN.format(*["Q0", ""] * 4).encode()),
        ("blank.run", RUN.format(*["Q0", " my tag"] * 4).encode()),
    ],
)
def test_forms_of_files(name, content, tmp_path):
    """The same lists in any form of file give the same value, as lists and as ground truth."""
    (tmp_path / name).write_bytes(content)
    assert trm.evaluate_lists("MRR@2", tmp_path / name, target=TRUTH)["MRR@2"] == 0.75
    if not name.endswith(".run"):
        found = trm.evaluate_lists("HR@1", {"al": ["z"], "bo": ["x"]}, target=tmp_path / name)
        assert found["HR@1"] == 0.5


def test_forms_of_tables(tmp_path):
    """Records, a named index, columns named by numbers, a folder of parquet files and grades of a dict are read."""
    frame = pd.DataFrame(ROWS)
    (tmp_path / "folder").mkdir()
    frame[:2].to_parquet(tmp_path / "folder" / "0.parquet")
    frame[2:].to_parquet(tmp_path / "folder" / "1.parquet")
    for lists in (ROWS, frame.set_index("user"), frame.set_index(["user", "item"]), tmp_path / "folder"):
        assert trm.evaluate_lists("MRR@2", lists, target=TRUTH)["MRR@2"] == 0.75
    numbers = pd.DataFrame(frame.to_numpy())
    truth = pd.DataFrame([["al", "x"], ["bo", "y"]])
    assert trm.evaluate_lists("MRR@2", numbers, target=truth, user=0, item=1)["MRR@2"] == 0.75
    grades = {"al": {"x": 1, "z": 0}, "bo": {"y": 3, "q": -1}}
    assert trm.evaluate_lists("MRR@2", ROWS, target=grades)["MRR@2"] == 0.75
    expected = (1 + 1 / math.log2(3)) / 2
    assert float(trm.evaluate_lists("NDCG@2", ROWS, target=grades)["NDCG@2"]) == pytest.approx(expected)


def test_files_that_are_refused(tmp_path):
    """An archive of two files, and a folder without parquet files, raise an error that names the cure."""
    (tmp_path / "two.zip").write_bytes(zipped("a.csv", "b.csv"))
    with pytest.raises(ValueError, match=r"two.zip holds 2 files \(a.csv, b.csv\): take one out"):
        trm.Log.from_file(tmp_path / "two.zip")
    with pytest.raises(ValueError, match="is a folder without parquet files: pass one file"):
        trm.Log.from_file(tmp_path)


def test_records_with_other_keys(tmp_path):
    """A record that lacks a key of others has no entry there; no key is lost."""
    records = [{"user": 1, "item": 10}, {"user": 1, "item": 11, "score": 0.9}]
    path = tmp_path / "lists.json"
    path.write_text(json.dumps(records))
    for lists in (records, path):
        with pytest.raises(ValueError, match=r"'score' .*1 missing"):
            trm.evaluate_lists("HR@1", lists, target={1: [11]})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv.xz", b"no xz"),
        ("a.csv.zip", b"no zip"),
        ("a.csv.gz", b"no gz"),
        ("a.csv.bz2", b"no bz2"),
        ("a.csv.zst", b"no zst"),
        ("a.csv.xz", lzma.compress(TABLE.encode())[:-9]),
    ],
)
def test_broken_archives(name, content, tmp_path):
    """A file that is not what its name says is an error that names it."""
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} is no {PROGRAMS[name[6:]]}"):
        open_file(path)


def test_broken_utf16(tmp_path):
    """Text that begins as UTF-16 and ends within a character is an error that names the file."""
    path = tmp_path / "a.csv"
    path.write_bytes(TABLE.encode("utf-16")[:-1])
    with pytest.raises(ValueError, match=r"a.csv begins as UTF-16 and is none"):
        open_file(path)


def test_what_macos_adds_to_an_archive(tmp_path):
    """The folder __MACOSX is no member."""
    path = tmp_path / "a.csv.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.csv", TABLE)
        archive.writestr("__MACOSX/._a.csv", "x")
    assert open_file(path).names == TABLE.splitlines()[0].split(",")


@pytest.mark.parametrize("name", ["qrels.robust04.txt", "test_qrels.txt", "qrels.dev"])
def test_qrels_by_their_name(name, tmp_path):
    """Such files are qrels, not lines of a user and items."""
    path = tmp_path / name
    path.write_text("301 0 7 1\n301 0 8 0\n")
    assert open_file(path).trec == "qrels"


def test_qrels_without_the_name_are_told_it(tmp_path):
    """Their lines are no csv, which the error advises for other files."""
    path = tmp_path / "judged.dev"
    path.write_text("301 0 7 1\n301 0 8 0\n")
    with pytest.raises(ValueError, match=r"Qrels have qrels in their name, such as judged\.qrels"):
        open_file(path)


@pytest.mark.parametrize("header", ["1,10,4.5", "u1,i1,4.5", "196\t242\t3\t881250949"])
def test_a_first_line_of_numbers_is_no_header(header, tmp_path):
    """Files without a header would lose their first row: the error says how to read them."""
    path = tmp_path / "log.csv"
    path.write_text(f"{header}\n{header}\n")
    with pytest.raises(ValueError, match=r"line 1 holds numbers where names of columns are expected.*header=None"):
        open_file(path)


def test_columns_that_pandas_has_numbered(tmp_path):
    """The header 0,1,2 is one."""
    path = tmp_path / "log.csv"
    path.write_text("0,1,2\n5,6,7\n")
    assert len(trm.Log.from_file(path, user="0", item="1", value=None)) == 1


@pytest.mark.parametrize("lines", ["0 25 5\n1 30 4\n2 31 3\n", "0\t25\t5\t881250949\n1\t30\t4\t881250950\n"])
def test_edges_with_a_line_for_each_user(lines, tmp_path):
    """A third column of ratings says that lines are edges, also where no user occurs twice."""
    path = tmp_path / "edges.txt"
    path.write_text(lines)
    with pytest.raises(ValueError, match="the third seems to hold ratings or times"):
        open_file(path)


def test_two_items_in_each_line(tmp_path):
    """Lines of a user and two items are not edges, if the numbers are those of items."""
    path = tmp_path / "test.txt"
    path.write_text("0 25 17\n1 4 30\n2 31 8\n")
    assert len(trm.Log.from_file(path)) == 6


def test_a_header_in_the_middle(tmp_path):
    """Files that were joined with their headers are refused."""
    path = tmp_path / "log.csv"
    path.write_text("user,item\nal,x\nuser,item\nbo,y\n")
    with pytest.raises(ValueError, match="has its header twice"):
        trm.Log.from_file(path)


def test_folders_of_other_kinds(tmp_path):
    """A table of Delta Lake, and a folder with files that are no parquet, are errors that say so."""
    pd.DataFrame({"user": [1], "item": [2]}).to_parquet(tmp_path / "a.parquet")
    (tmp_path / "README.parquet").write_text("no parquet")
    with pytest.raises(ValueError, match="holds a file that is no parquet file"):
        open_file(tmp_path)
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(ValueError, match="is a table of Delta Lake: pass deltalake"):
        open_file(tmp_path)


def test_notes_of_several_kinds(tmp_path):
    """A column without a role may hold numbers and text in records, too."""
    path = tmp_path / "lists.json"
    path.write_text(json.dumps([{"user": 1, "item": 10, "note": 1}, {"user": 1, "item": 11, "note": "q"}]))
    assert trm.evaluate_lists("MRR@2", path, target={1: [11]}) == {"MRR@2": 1 / 2}
