"""The command line: its output, its exit status, and its errors for bad files."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torchrecmetrics as trm
from torchrecmetrics.cli import main, metrics_of

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")
pytest.importorskip("yaml")

LISTS = pd.DataFrame(
    {
        "user": ["al", "al", "bo", "bo"],
        "item": ["x", "y", "z", "é"],
        "rank": [1, 2, 1, 2],
        "score": [0.9, 0.5, 0.7, 0.1],
    }
)
TABLE = LISTS.to_csv(index=False)
FILES = {
    "lists.csv": TABLE,
    "truth.csv": "user,item\nal,y\nbo,z\n",
    "other.csv": "uid,iid\nal,y\nbo,z\n",
    "history.csv": "user,item\nal,x\n",
    "other_history.csv": "uid,iid\nal,x\n",
    "both.csv": "user,item\nal,y\n",  # also in truth.csv
    "train.csv": "user,item\nal,x\nbo,x\neve,x\neve,w\n",
    "twice.csv": "user,item\nal,x\nal,x\nal,y\n",
    "graded.csv": "user,item,stars\nal,y,0\nbo,z,2\n",
    "rated.csv": "user,item,rating\nal,y,0\nbo,z,1\nbo,z,3\n",
    "swapped.csv": "user,item,rank\nal,x,2\nal,y,1\n",
    "placed.csv": "user,item,place\nal,x,2\nal,y,1\n",
    "days.csv": "user,item,day\nal,x,1\nal,y,2\n",
    "log.csv": "user,item,time\nal,y,2\nal,z,1\n",
    "ratings.csv": "userId,movieId,rating,timestamp\n1,7,4.5,20\n1,8,0.5,10\n2,7,5,30\n",
    "films.csv": "userId,itemId\n1,7\n2,8\n",
    "al.qrels": "al 0 x 0\n",
    "blank.csv": "\n\n",
    "order.csv": TABLE.replace("é,2", "é,3"),
    "bars.xyz": "user|item\nal|x\n",
    "steering.csv": TABLE.replace("item", "item\x1b[2J"),
    "two.yaml": "HR: {k: 1, validate_args: true}\nMRR: 2\n",
    "keep.yaml": "HR: {k: 1, overlap: keep}\n",
    "novelty.yaml": "Novelty: {k: 2, normalize: true}\n",
    "many.yaml": "ndcg: [5, 10]\nMAP: {k: [1, 5], normalize: min}\nRPrecision:\nHR@3:\n"
    "Precision@2: {normalize: min}\nMRR: 10\n",
    "list.yaml": "- HR@1\n- NDCG: {k: 2}\n- NDCG: {k: 2, gain: exponential}\n",
    "whole.yaml": "NDCG:\n",
    "name.yaml": "NDGC: [5]",
    "cutoff.yaml": "NDCG: {k: five, gain: linear}",
    "open.yaml": "NDCG: [5",
    "empty.yaml": "",
    "number.yaml": "1: 2",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with lists, ground truth and bad files, where the commands are run."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text, encoding="utf-8")
    LISTS.to_parquet("lists.parquet")
    pd.DataFrame({"uid": ["al"], "item": ["y"]}).to_parquet("other.parquet")
    Path("short.parquet").write_bytes(Path("lists.parquet").read_bytes()[:-9])
    LISTS.to_pickle("lists.pkl")
    return tmp_path


@pytest.fixture
def run(folder, capsys):
    """A function that runs a command and returns its exit status, stdout and stderr."""

    def called(words, *more):
        try:
            status = main([*words.split(), *more])
        except SystemExit as left:
            status = left.code
        return status, *capsys.readouterr()

    return called


TRUTH = "evaluate lists.csv truth.csv --rank rank"
IN_ORDER = "evaluate lists.csv rated.csv -m HR@1 --in-order"
OTHER_NAMES = "evaluate lists.csv other.csv --rank rank -m HR@1 --complete --history other_history.csv"
EVALUATE = f"{TRUTH} -m HR@1 -m MRR@2"


def rows_of(name):
    return {f"{row['metric']}@{row['k']}": row["value"] for row in json.loads(Path(name).read_text())["rows"]}


def test_evaluate_prints_what_evaluate_lists_finds(run):
    """`evaluate` prints what `evaluate_lists` returns, as a table or Markdown; without a terminal stderr is empty."""
    found = trm.evaluate_lists(["HR@1", "MRR@2"], "lists.csv", target="truth.csv")
    assert run(EVALUATE) == (0, f"{found}\n", "")
    counts = "2 users, 2 list entries with an item that the ground truth lacks (such as 'x'; it has such as 'y')"
    assert run(f"{EVALUATE} --markdown") == (0, f"{found.to_markdown()}\n\n{counts}\n", "")
    by_score = f"{found}".replace("'score' of lists.csv", "'rank' of lists.parquet")
    assert run("evaluate lists.parquet truth.csv --score score -m HR@1,MRR@2") == (0, f"{by_score}\n", "")


def test_the_note_below_intervals_names_the_command(run):
    """The note below intervals names the command that compares models; Markdown has the counts without the note."""
    users = [f"u{n:03}" for n in range(20)]
    pd.DataFrame({"user": users, "item": ["x", "y"] * 10}).to_csv("truth.csv", index=False)
    pd.DataFrame({"user": users, "item": ["x"] * 20}).to_csv("lists.csv", index=False)
    assert "; compare models with torchrecmetrics compare, not" in run("evaluate lists.csv truth.csv -m HR@1")[1]
    assert run("evaluate lists.csv truth.csv -m HR@1 --markdown")[1].endswith(
        " |\n\n20 users, 1 relevant item in no list (such as 'y'; lists have such as 'x')\n"
    )


def test_json_is_written_whole_or_not_at_all(run, folder, monkeypatch):
    """JSON is written also where a metric misses its limit; a run that fails leaves the old file and no other."""
    assert run(f"{EVALUATE} --json out.json --fail-under HR@1=0.9")[0] == 1
    assert rows_of("out.json") == {"HR@1": 0.5, "MRR@2": 0.75}
    before = Path("out.json").read_text()
    assert run("evaluate lists.csv truth.csv --rank item -m HR@1 --json out.json")[0] == 2
    write = type(folder).write_text

    def cut_off(path, text, **how):
        write(path, text[:9], **how)
        raise OSError("disk full")

    monkeypatch.setattr(type(folder), "write_text", cut_off)
    assert run(f"{EVALUATE} --json out.json")[0] == 2
    assert Path("out.json").read_text() == before
    assert not list(folder.glob("*.part"))


def test_json_replaces_the_file_that_a_link_points_to(run, folder):
    """And touches no other file."""
    (folder / "there").mkdir()
    (folder / "link.json").symlink_to(folder / "there" / "real.json")
    (folder / "link.json.part").write_text("mine")
    run(f"{EVALUATE} --json link.json")

    assert rows_of("there/real.json")["HR@1"] == 0.5
    assert (folder / "link.json").is_symlink()
    assert (folder / "link.json.part").read_text() == "mine"
    assert [path.name for path in (folder / "there").iterdir()] == ["real.json"]


def test_json_goes_to_a_device(run):
    assert run(f"{EVALUATE} --json {os.devnull}")[0] == 0
    assert not Path(os.devnull).is_file()


BEYOND = f"{TRUTH} --train truth.csv -m Gini@1 -m HR@2"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (f"{EVALUATE} --fail-under HR@1=0.5 --fail-under mrr@2=0.75", 0, ""),
        (f"{BEYOND} --fail-over Gini@1=0.9", 0, ""),
        (f"{BEYOND} --fail-over Gini@1=0.1", 1, "Gini@1 is 0.5, above 0.1\n"),
        # NaN, the value if no user has a relevant item, is below every limit
        ("evaluate lists.csv al.qrels --rank rank -m HR@1 --fail-under HR@1=0", 1, "HR@1 is nan, below 0\n"),
        (f"{TRUTH} -c list.yaml --fail-under NDCG-exponential@2=0.1", 0, ""),
    ],
)
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_limits(words, status, said, run):
    """The exit status is 1 if a metric is below its --fail-under, or above its --fail-over."""
    found, _, error = run(words)
    assert (found, error) == (status, said)


def test_history_and_complete(run):
    """Lists that the history makes too short are an error that names --complete."""
    words = f"{EVALUATE} --history history.csv"
    status, _, said = run(words)
    assert status == 2
    assert "user 'al' holds 1 item after" in said
    assert said.rstrip().endswith("complete= is --complete")
    assert "| 1.0000 |" in run(f"{words} --complete --markdown")[1]


def test_train_is_the_catalogue(run):
    """Metrics beyond accuracy read the catalogue of --train, whose items are those of all files."""
    words = f"{TRUTH} --train train.csv -m Coverage@1 -m AveragePopularity@2 -m Seen@1 --json found.json"
    assert run(words)[0] == 0
    assert rows_of("found.json") == {"Coverage@1": 2 / 5, "AveragePopularity@2": 0.75, "Seen@1": 0.5}
    assert "Novelty-normalize@2" in run(f"{TRUTH} -c novelty.yaml --train train.csv")[1]


@pytest.mark.parametrize("asked", ["-m HR@1 -m MRR@2", "-c two.yaml"])
def test_overlap(asked, run):
    """A pair of both TRUTH and history is an error that names --overlap, unless that option says how to count it."""
    words = f"{TRUTH} {asked} --history both.csv --complete"
    for more in ("", " --overlap error"):
        status, _, said = run(words + more)
        assert status == 2
        assert "pair of target is also in exclude, such as [['al', 'y']]. overlap='without' takes" in said
        assert said.endswith("in this command: target is TRUTH, exclude is --history, overlap= is --overlap\n")
    files = {"target": "truth.csv", "exclude": "both.csv", "complete": True}
    for overlap in ("keep", "miss", "without"):
        found = trm.evaluate_lists(["HR@1", "MRR@2"], "lists.csv", **files, overlap=overlap)
        assert run(f"{words} --overlap {overlap}") == (0, f"{found}\n", "")
    assert "HR@1  0.5" in run(f"{TRUTH} -c keep.yaml --history both.csv --complete")[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("evaluate twice.csv truth.csv -m MRR@2 --first", "1 repeated list entry"),
        ("evaluate lists.csv graded.csv --rank rank -m HR@1 --value stars", "1 user, 1 without a relevant item"),
        ("evaluate swapped.csv truth.csv -m HR@1 --in-order", "HR@1  0.0000"),
        (f"{IN_ORDER} --value rating --values-reduce max", "1 user"),
        (f"{OTHER_NAMES} --truth-user uid --truth-item iid --history-user uid --history-item iid", "1.0000"),
        ("audit log.csv --no-time", "2 events"),
    ],
)
def test_options_of_columns(words, said, run):
    """Options name the columns of gains, ranks and ids, or say that a column is none of these; one allows repeats."""
    status, out, _ = run(words)
    assert status == 0
    assert said in out


def test_names_of_lists_hold_for_the_truth(run):
    """--user and --item name the columns of TRUTH and of the history, too, where these have them."""
    for name in ("lists", "truth", "history"):
        Path(f"{name}.csv").write_text(FILES[f"{name}.csv"].replace("user", "userID").replace("item", "itemID"))
    status, out, _ = run(f"{EVALUATE} --user userID --item itemID --history history.csv --complete")

    assert status == 0
    assert "HR@1   1.0000" in out


def test_a_link_to_itself_is_no_file_to_write(run):
    Path("a.json").symlink_to("b.json")
    Path("b.json").symlink_to("a.json")
    status, _, error = run(f"{EVALUATE} --json a.json")

    assert (status, error.count("\n")) == (2, 1)
    assert "--json a.json is a link that leads to itself" in error


def test_a_closed_stdout_is_no_error(run, monkeypatch):
    """Without stdout, as after `>&-`, the file of results is written."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        assert main([*EVALUATE.split(), "--json", "out.json"]) == 0
    assert rows_of("out.json") == {"HR@1": 0.5, "MRR@2": 0.75}


def test_metrics_of_yaml(folder):
    """YAML holds names with cut-offs, options, both, or neither, or a list of these where a name comes twice."""
    labels = ["NDCG@5", "NDCG@10", "MAP-min@1", "MAP-min@5", "RPrecision", "HR@3", "Precision-min@2", "MRR@10"]
    assert [metric.label for metric in metrics_of("many.yaml")] == labels
    assert [metric.label for metric in metrics_of("list.yaml")] == ["HR@1", "NDCG@2", "NDCG-exponential@2"]


BAD = [
    # files
    ("evaluate no.csv truth.csv -m HR@1", "error: there is no file no.csv\n"),
    ("evaluate blank.csv truth.csv -m HR@1", "error: blank.csv is empty: it holds no rows"),
    ("evaluate twice.csv truth.csv -m MRR@2", "duplicates='first' is --first"),
    ("evaluate order.csv truth.csv --rank rank -m HR@1", "order.csv, row 3 (line 5), column 'rank': user 'bo'"),
    ("evaluate bars.xyz truth.csv -m HR@1", "delimiter= is --delimiter"),
    (f"{EVALUATE} --history other_history.csv", "item= is --history-item or --item or --truth-item\n"),
    ("evaluate steering.csv truth.csv -m HR@1 --rank rank", r"\x1b[2J"),  # would steer the terminal
    # columns whose meaning was not given
    (
        "evaluate lists.csv rated.csv -m HR@1",
        "value= is --no-value or --value\n",
    ),
    ("evaluate placed.csv truth.csv -m HR@1", "rank=None is --in-order, rank= is --rank, score= is --score\n"),
    (f"{IN_ORDER} --value rating", "values_reduce= is --values-reduce\n"),
    ("audit days.csv", "time= is --no-time or --time\n"),
    # metrics and limits
    (TRUTH, "no metric is named: pass -m NDCG@10"),
    (f"{TRUTH} -m Coverage@1", "catalogue= is --train\n"),
    (f"{TRUTH} -c whole.yaml", "NDCG reads the whole ranking, but the longest list of lists.csv holds 2 items"),
    (f"{TRUTH} -c name.yaml", "name.yaml, NDGC: unknown metric 'NDGC'; did you mean 'NDCG'?"),
    (f"{TRUTH} -c cutoff.yaml", "cutoff.yaml, NDCG: k must be whole numbers"),
    (f"{TRUTH} -c empty.yaml", "empty.yaml must hold metrics by name"),
    (f"{TRUTH} -c number.yaml", "a metric must be a name, got 1"),
    (f"{EVALUATE} --fail-under NDCG@1=0.1", "--fail-under names 'NDCG@1', which is not computed: HR@1, MRR@2"),
    (f"{BEYOND} --fail-under Gini@1=0.1", "lower values of Gini@1 are better, use --fail-over Gini@1=0.1"),
    (f"{BEYOND} --fail-over HR@2=0.1", "higher values of HR@2 are better, use --fail-under HR@2=0.1"),
    *((f"{EVALUATE} --fail-under {text}", "such as NDCG@10=0.07") for text in ("HR@1", "HR@1=x", "=1", "HR@1=nan")),
    # arguments
    ("evaluate", "--help\n"),
    (f"{TRUTH} --metrics HR@1", "--metrics HR@1; did you mean --metric?; see torchrecmetrics evaluate --help\n"),
    (f"{TRUTH} --fail-below HR@1=0", "did you mean --fail-"),
    (f"{TRUTH} --csv found.csv", "unrecognized arguments: --csv found.csv"),
    (f"{TRUTH} -m HR@1 NDCG@1", "values of one option are joined by commas, such as -m HR@10,NDCG@10"),
    # outputs
    (f"{EVALUATE} --json nowhere/out.json", "there is no folder"),
    (f"{TRUTH} -c two.yaml --json two.yaml", "--json two.yaml would overwrite a file that is read"),
    (f"{TRUTH} -m HR@1 --train train.csv --json train.csv", "would overwrite a file that is read"),
    (f"{EVALUATE} --rows lists.csv", "--rows lists.csv would overwrite a file that is read"),
    (f"{EVALUATE} --json ./truth.csv", "--json truth.csv would overwrite a file that is read"),
    (f"{EVALUATE} --rows out --json ./out", "--json out is the file of --rows, too"),
    ("audit log.csv --json log.csv", "would overwrite a file that is read"),
]


@pytest.mark.parametrize(("words", "said"), BAD)
def test_bad_input(words, said, run, folder):
    """Bad input exits with 2 and Python's error, below which a line has the flags; nothing is written."""
    before = {path: path.read_bytes() for path in folder.iterdir()}
    status, out, error = run(words)
    assert (status, out) == (2, "")
    assert said in error
    assert all(line.startswith("in this command: ") for line in error.splitlines()[1:])
    assert "\x1b" not in error
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_invalid_yaml(run):
    """The error shows on several lines where the YAML is invalid."""
    status, _, error = run(f"{TRUTH} -c open.yaml")
    assert status == 2
    assert "open.yaml is not YAML" in error


def test_audit(run):
    """`audit` reads a log, or train and test; with --strict the exit status is 1 if there are faults."""
    frame = pd.DataFrame({"user": ["al"] * 3 + ["bo"] * 3, "item": list("xyzxyx"), "day": [1, 2, 3, 4, 5, 6]})
    frame.to_csv("log.csv", index=False)
    frame[frame.day < 3].to_csv("train.csv", index=False)
    frame[frame.day >= 3].to_csv("test.csv", index=False)
    assert run("audit log.csv --time day") == (0, f"{trm.audit(trm.Log.from_file('log.csv', time='day'))}\n", "")
    status, out, _ = run("audit train.csv test.csv --time day --json a.json --strict")
    assert status == 1
    assert "unseen_users" in out
    read = json.loads(Path("a.json").read_text())
    assert "unseen_users" in read["faults"]
    assert read["findings"]["unseen_users"]["number"] == 3


def test_agreement_is_a_gate(run):
    """`agreement` prints overlap, RBO and churn of two files, and exits with 1 where one misses its threshold."""
    LISTS.assign(item=["x", "q", "z", "é"]).to_csv("new.csv", index=False)
    command = "agreement lists.csv new.csv --rank rank -k 2 -k 1"
    status, out, _ = run(f"{command} --fail-over churn@2=.25 --fail-under overlap@1=1 --json out.json")
    assert status == 0
    assert "Churn@2    0.2500 ± 0.2500" in out
    found = {label: value for label, value in rows_of("out.json").items() if not label.startswith("RBO")}
    assert list(found.items()) == [("Overlap@1", 1.0), ("Churn@1", 0.0), ("Overlap@2", 0.75), ("Churn@2", 0.25)]
    rbo = (1 + 0.5 * (1 + 0.5 * 0.5 + 0.5 * 0.5)) / 2
    for options, expected, message in (
        ("--fail-over churn@2=.2", 1, "Churn@2 is 0.25, above 0.2\n"),
        ("-p 0.5 --fail-under rbo-p0_5@2=0.9", 1, f"RBO-p0_5@2 is {rbo:.6g}, below 0.9\n"),
        ("--fail-over churn@10=.3", 2, "--fail-over names 'churn@10', which is not computed: Overlap@1, RBO@1"),
        ("--fail-under churn@2=.3", 2, "lower values of Churn@2 are better, use --fail-over Churn@2=0.3"),
        ("--json new.csv", 2, "--json new.csv would overwrite a file that is read"),
    ):
        status, _, error = run(f"{command} {options}")
        assert status == expected
        assert message in error


@pytest.fixture
def rows(run):
    """Rows of the same evaluation in a.parquet and b.parquet."""
    for name in "ab":
        run(f"{EVALUATE} --rows {name}.parquet")
    return [trm.Rows.from_parquet(f"{name}.parquet") for name in "ab"]


def test_compare_prints_what_trm_compare_finds(run, rows):
    status, out, _ = run("compare a.parquet other=b.parquet --json found.json")
    found = json.loads(Path("found.json").read_text())["results"]

    assert (status, out) == (0, f"{trm.compare({'a': rows[0], 'other': rows[1]})}\n")
    assert [(each["label"], each["run"], each["against"], each["p"]) for each in found] == [
        (label, "other", "a", 1) for label in ("HR@1", "MRR@2")
    ]


def test_compare_prints_tables_of_models(run, rows):
    """Files with the same name are seeds of one run."""
    named = "compare x=a.parquet y=a.parquet y=b.parquet --baseline x"
    table = trm.compare({"x": rows[0], "y": rows}, baseline="x").by_model()

    assert run(f"{named} --markdown")[1] == "\n\n".join([table.to_markdown(), *table.notes]) + "\n"
    assert run(f"{named} --latex")[1].startswith(f"{table.to_latex()}\n% The best values")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("a.parquet a=b.parquet", "compare needs two or more runs, got 1"),
        ("a.parquet b=there/a.parquet", "there is no file there/a.parquet"),
        ("a.parquet a.parquet", "two files have the name 'a'"),
        ("a.parquet b.parquet --baseline c", "'c'"),
        ("a.parquet b.parquet --json a.parquet", "would overwrite a file that is read"),
    ],
)
@pytest.mark.usefixtures("rows")
def test_bad_calls_of_compare(words, message, run):
    status, _, error = run(f"compare {words}")

    assert status == 2
    assert message in error


def test_compare_is_a_gate(run):
    """With --strict a candidate that may be worse than the first file by the margin exits with 1, and one sentence."""
    ids = torch.arange(400)
    for name, loss in (("incumbent", 0.0), ("same", 0.0), ("worse", 0.3)):
        column = torch.rand(400, generator=torch.Generator().manual_seed(0)).double() - loss
        trm.Rows({"NDCG@10": column, "HR@10": column + loss}, ids).to_parquet(f"{name}.parquet")
    files, fell = "incumbent.parquet same.parquet", "more than the margin 0.0200.\n"
    for words, status, error in (
        (f"{files} --margin .02 --strict", 0, ""),
        (f"{files} worse.parquet --margin .02", 0, ""),
        (f"{files} worse.parquet --margin .02 --strict", 1, f"Failed: NDCG@10 of worse fell by 0.3000, .*: {fell}"),
        (f"worse.parquet {files} --margin .02 --strict", 0, ""),
        (f"worse.parquet {files} --margin .02 --strict --baseline same", 1, f"Failed: NDCG@10 of worse fell.*: {fell}"),
        ("incumbent.parquet worse.parquet --margin 2% --strict -m HR@10", 0, ""),
        ("incumbent.parquet worse.parquet --margin 2% --strict -m HR@10,NDCG@10 --markdown", 1, "Failed: NDCG@10 .*\n"),
        (
            f"{files} --strict",
            2,
            "torchrecmetrics compare: error: --strict needs --margin, by which a run may be worse\n",
        ),
    ):
        found = run(f"compare {words}")
        assert found[0] == status
        assert re.fullmatch(error, found[2])
    assert run(f"compare {files} --margin much")[0] == 2


def test_an_inconclusive_comparison_exits_with_3(run):
    """Differences of 0.1 and -0.1 of 20 users show neither a loss of 0.02 nor that there is none."""
    ids = torch.arange(20)
    trm.Rows({"HR@1": torch.full((20,), 0.5)}, ids).to_parquet("old.parquet")
    trm.Rows({"HR@1": 0.5 + 0.1 * (-1.0) ** ids}, ids).to_parquet("new.parquet")
    status, _, error = run("compare old.parquet new.parquet --margin .02 --strict")

    assert status == 3
    assert error.startswith("Inconclusive: HR@1 ")


@pytest.mark.parametrize(("limit", "status", "error"), [(1, 0, ""), (0, 1, "num_unserved is 1, above 0\n")])
def test_a_gate_of_unserved_users(limit, status, error, run, folder):
    """One of the two users of the ground truth has no list."""
    (folder / "one.csv").write_text("user,item,rank\nal,x,1\n")
    (folder / "two.csv").write_text("user,item\nal,x\nbo,x\n")
    found = run(f"evaluate one.csv two.csv -m HR@1 --fail-over num_unserved={limit}")

    assert (found[0], found[2]) == (status, error)


@pytest.mark.parametrize(
    "words",
    [
        "lists.csv other.csv",
        "a=lists.csv 'b=my lists.parquet'",
        "kept.parquet lists.csv",
        "a=lists.csv b=lists.parquet",
        "lists.csv old=lists-rows.parquet",
        "lists.csv new=lr=0.1/lists.csv other.csv",
    ],
)
def test_compare_of_lists_shows_the_commands(words, run, folder):
    """For files of lists the error shows commands that make and compare files of rows; pasted, they work."""
    lists = pd.DataFrame({"user": ["al"] * 10 + ["bo"] * 10, "item": [*"abcdefghyz"] * 2, "rank": [*range(1, 11)] * 2})
    lists.to_csv("lists.csv", index=False)
    lists.assign(item=[*"zyabcdefgh"] * 2).to_csv("other.csv", index=False)
    lists.to_parquet("my lists.parquet")
    Path("truth.csv").rename("test.csv")
    for path in ("lists.parquet", "lr=0.1/lists.csv"):
        Path(path).parent.mkdir(exist_ok=True)
        shutil.copy("my lists.parquet" if path.endswith("t") else "lists.csv", path)
    for path in ("kept.parquet", "lists-rows.parquet"):
        assert run(f"evaluate other.csv test.csv -m NDCG@10 --rows {path}")[0] == 0
    status, out, error = run("compare", *shlex.split(words))
    assert (status, out) == (2, "")
    first, *commands = error.splitlines()
    written = {shlex.split(command)[-1] for command in commands[:-1]}
    assert "not a file of evaluate --rows" in first
    assert len(written - {*re.split("[= ]", words)}) == len(re.findall(r"lists\b(?!-)|other", words))
    results = [run("", *shlex.split(command)[1:]) for command in commands]
    assert {(status, error) for status, _, error in results} == {(0, "")}
    assert "NDCG@10" in results[-1][1]


UNREAD = [
    ("evaluate none.csv truth.csv -m HR@1", "there is no file none.csv"),
    ("evaluate lists.csv truth.csv -m HR@1 --history history.csv --history none.csv", "there is no file none.csv"),
    ("evaluate lists.csv truth.csv -m HR@1 --train none.csv", "there is no file none.csv"),
    ("evaluate lists.csv truth.csv -c none.yaml --train train.csv", "there is no file none.yaml"),
    ("compare lists.csv none.csv", "there is no file none.csv"),
    ("compare lists.csv b=truth.csv --strict", "--strict needs --margin"),
    ("agreement lists.csv none.csv", "there is no file none.csv"),
    ("agreement lists.csv lists.csv -p 2", "p, the probability"),
    ("audit log.csv none.csv", "there is no file none.csv"),
]


@pytest.mark.parametrize(("words", "said"), UNREAD)
def test_bad_arguments_are_said_before_a_table_is_read(words, said, run, monkeypatch):
    """Missing files, unknown metrics and options that do not go together are reported before a table is read."""

    def read(*_, **__):
        raise AssertionError("a table was read")

    for name in ("_read_catalogue", "evaluate_lists", "agreement", "Log.from_file", "Rows.from_parquet"):
        monkeypatch.setattr(f"torchrecmetrics.cli.{name}", read)
    status, out, error = run(words)
    assert (status, out) == (2, "")
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("delimiter", ["|", "\t", "\\t"])
def test_a_delimiter_is_for_all_files(delimiter, run):
    """--delimiter reads .txt files of columns; a tab may be typed as `\\t`."""
    for name in ("lists", "truth"):
        Path(f"{name}.txt").write_text(FILES[f"{name}.csv"].replace(",", delimiter.replace("\\t", "\t")))
    status, out, _ = run("evaluate lists.txt truth.txt --rank rank -m HR@1 --delimiter", delimiter)
    assert status == 0
    assert "HR@1" in out


def test_relevant_from_a_grade(run):
    """bo's item of 2 stars has rank 1; NDCG has no grade."""
    run("evaluate lists.csv graded.csv --rank rank --value stars -m NDCG@2,MRR@2 --relevant-from 2 --json out.json")

    assert rows_of("out.json") == {"NDCG@2": 1, "MRR-from2@2": 1}


def test_entries_of_yaml_have_grades_of_their_own(run):
    """MRR has the grade of its entry, and weighted Recall, which reads grades, has none."""
    Path("own.yaml").write_text("MRR: {k: 2, relevant_from: 1}\nRecall: {k: 2, weighted: true}\n")
    run("evaluate lists.csv graded.csv --rank rank --value stars -m HR@2 -c own.yaml --relevant-from 2 --json out.json")

    assert [*rows_of("out.json")] == ["HR-from2@2", "MRR-from1@2", "Recall-weighted@2"]


def test_progress_on_a_terminal(run, monkeypatch):
    """On a terminal stderr shows the users done so far, batch by batch, and is cleared at the end."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("torchrecmetrics.evaluation.ranked_lists.ListSource.memory", 1 * 160)
    status, _, error = run(EVALUATE)
    assert status == 0
    assert "1 of 2 users" in error
    assert error.endswith("\r\x1b[K")


COMMANDS = ("evaluate", "compare", "agreement", "audit")


def test_help_has_examples(run):
    for command in COMMANDS:
        status, out, _ = run(f"{command} --help")
        assert status == 0
        assert "examples:\n  torchrecmetrics " in out
        assert f"\n  torchrecmetrics {command} " in out


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_version(command, run):
    """Every command has `--version`."""
    assert run(f"{command} --version") == (0, f"torchrecmetrics {trm.__version__}\n", "")


def test_bugs_and_ctrl_c(run, monkeypatch):
    """A bug exits with 2, not with 1, which means that a metric misses its limit; Ctrl-C prints nothing."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("torchrecmetrics.cli.evaluate_lists", lambda *_, **__: 1 / 0)
    status, _, error = run(EVALUATE)
    assert status == 2
    assert "ZeroDivisionError" in error
    monkeypatch.setattr("torchrecmetrics.cli.evaluate_lists", interrupted)
    assert run(EVALUATE) == (130, "", "")


@pytest.mark.slow
def test_a_closed_pipe_ends_quietly(folder):
    """The program exits with the status of the command, and without a traceback."""
    command = f"{sys.executable} -m torchrecmetrics {EVALUATE} | true; echo ${{PIPESTATUS[0]}}"
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (found.stdout, found.stderr) == ("141\n", "")
