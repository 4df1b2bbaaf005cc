"""The command line: its output, its exit status, and its errors for bad files."""

import json
import os
import shlex
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

LISTS = pd.DataFrame({"user": ["al", "al", "bo", "bo"], "item": ["x", "y", "z", "é"], "rank": [1, 2, 1, 2]})
FILES = {
    "lists.csv": LISTS.to_csv(index=False),  # x, y of al and z, é of bo
    "truth.csv": "user,item\nal,y\nbo,z\n",  # at the ranks 2 and 1
    "graded.csv": "user,item,stars\nal,y,0\nbo,z,2\n",
    "history.csv": "user,item\nal,x\n",
    "both.csv": "user,item\nal,y\n",  # also in truth.csv
    "train.csv": "user,item\nal,x\nbo,x\neve,x\neve,w\n",
    "al.csv": "user,item,rank\nal,x,2\nal,y,1\n",  # bo has no list
    "al.qrels": "al 0 x 0\n",
    "bars.xyz": "user|item\nal|x\n",
    "log.csv": "user,item,time\nal,y,2\nal,z,1\n",
    "two.yaml": "HR: {k: 1, validate_args: true}\nMRR: 2\n",
    "exponential.yaml": "NDCG: {k: 2, gain: exponential}\n",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with FILES, where the commands are run."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text, encoding="utf-8")
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


def rows_of(name):
    return {f"{row['metric']}@{row['k']}": row["value"] for row in json.loads(Path(name).read_text())["rows"]}


TRUTH = "evaluate lists.csv truth.csv --rank rank"
EVALUATE = f"{TRUTH} -m HR@1 -m MRR@2"  # 1 / 2 and 3 / 4


def test_evaluate_prints_what_evaluate_lists_finds(run):
    """Without a terminal stderr is empty."""
    result = trm.evaluate_lists(["HR@1", "MRR@2"], "lists.csv", target="truth.csv")

    assert run(EVALUATE) == (0, f"{result}\n", "")


def test_markdown_is_followed_by_the_counts(run):
    table, counts = run(f"{EVALUATE} --markdown")[1].split("\n\n")

    assert [row[:25] for row in table.splitlines()[2:]] == ["| HR     |   1 | 0.5000 |", "| MRR    |   2 | 0.7500 |"]
    assert counts.startswith("2 users, 2 list entries with an item that the ground truth lacks (such as 'x';")


def test_the_note_below_intervals_names_the_command_that_compares(run):
    """Intervals are of ten users or more."""
    pairs = "user,item\n" + "".join(f"u{n},x\n" for n in range(10))
    Path("truth.csv").write_text(pairs)
    Path("lists.csv").write_text(pairs)

    assert "; compare models with torchrecmetrics compare, not" in run("evaluate lists.csv truth.csv -m HR@1")[1]


def test_json_is_written_also_where_a_metric_misses_its_limit(run):
    assert run(f"{EVALUATE} --json out.json --fail-under HR@1=0.9")[0] == 1
    assert rows_of("out.json") == {"HR@1": 1 / 2, "MRR@2": 3 / 4}


def test_json_is_written_whole_or_not_at_all(run, folder, monkeypatch):
    Path("out.json").write_text("old")
    write = type(folder).write_text

    def cut_off(path, text, **how):
        write(path, text[:9], **how)
        raise OSError("disk full")

    monkeypatch.setattr(type(folder), "write_text", cut_off)

    assert run(f"{EVALUATE} --json out.json")[0] == 2
    assert Path("out.json").read_text() == "old"
    assert not list(folder.glob("*.part"))


def test_json_replaces_the_file_that_a_link_points_to(run, folder):
    (folder / "there").mkdir()
    (folder / "link.json").symlink_to(folder / "there" / "real.json")
    (folder / "link.json.part").write_text("mine")
    run(f"{EVALUATE} --json link.json")

    assert rows_of("there/real.json")["HR@1"] == 1 / 2
    assert (folder / "link.json").is_symlink()
    assert [path.name for path in (folder / "there").iterdir()] == ["real.json"]


def test_a_link_to_itself_is_no_file_to_write(run):
    Path("a.json").symlink_to("b.json")
    Path("b.json").symlink_to("a.json")
    status, _, error = run(f"{EVALUATE} --json a.json")

    assert (status, error.count("\n")) == (2, 1)
    assert "--json a.json is a link that leads to itself" in error


def test_json_goes_to_a_device(run):
    assert run(f"{EVALUATE} --json {os.devnull}")[0] == 0
    assert not Path(os.devnull).is_file()


def test_a_closed_stdout_is_no_error(run, monkeypatch):
    """The shell closes it with `>&-`: the file of results is written."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        assert main([*EVALUATE.split(), "--json", "out.json"]) == 0
    assert rows_of("out.json") == {"HR@1": 1 / 2, "MRR@2": 3 / 4}


BEYOND = f"{TRUTH} --train truth.csv -m Gini@1 -m HR@2"


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        (f"{EVALUATE} --fail-under HR@1=0.5 --fail-under mrr@2=0.75", 0, ""),
        (f"{BEYOND} --fail-over Gini@1=0.9", 0, ""),
        (f"{BEYOND} --fail-over Gini@1=0.1", 1, "Gini@1 is 0.5, above 0.1\n"),
        # NaN, the value if no user has a relevant item, is below every limit
        ("evaluate lists.csv al.qrels --rank rank -m HR@1 --fail-under HR@1=0", 1, "HR@1 is nan, below 0\n"),
        (f"{TRUTH} -c exponential.yaml --fail-under NDCG-exponential@2=0.1", 0, ""),
        ("evaluate al.csv truth.csv -m HR@1 --fail-over num_unserved=1", 0, ""),  # bo has no list
        ("evaluate al.csv truth.csv -m HR@1 --fail-over num_unserved=0", 1, "num_unserved is 1, above 0\n"),
    ],
)
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_the_status_is_1_if_a_value_misses_its_limit(words, status, error, run):
    result = run(words)

    assert (result[0], result[2]) == (status, error)


def test_lists_that_the_history_makes_too_short_are_refused(run):
    status, _, error = run(f"{EVALUATE} --history history.csv")

    assert status == 2
    assert "user 'al' holds 1 item after" in error
    assert error.endswith("complete= is --complete\n")


def test_complete_lists_lose_the_history(run):
    """al's y is at rank 1 then."""
    assert "HR@1   1.0000" in run(f"{EVALUATE} --history history.csv --complete")[1]


def test_train_is_the_catalogue_with_the_items_of_all_files(run):
    """At rank 1 are x and z, of x, y, z, é and w; x has three interactions, and z, y and é none."""
    words = f"{TRUTH} --train train.csv -m Coverage@1 -m AveragePopularity@2 -m Seen@1 --json found.json"

    assert run(words)[0] == 0
    assert rows_of("found.json") == {"Coverage@1": 2 / 5, "AveragePopularity@2": 3 / 4, "Seen@1": 1 / 2}


OVERLAP = f"{TRUTH} --history both.csv --complete"


@pytest.mark.parametrize(
    "words", [f"{OVERLAP} -m HR@1", f"{OVERLAP} -c two.yaml", f"{OVERLAP} -m HR@1 --overlap error"]
)
def test_a_pair_of_both_truth_and_history_is_refused(words, run):
    status, _, error = run(words)

    assert status == 2
    assert "pair of target is also in exclude, such as [['al', 'y']]. overlap='without' takes" in error
    assert error.endswith("in this command: target is TRUTH, exclude is --history, overlap= is --overlap\n")


@pytest.mark.parametrize(("overlap", "expected"), [("keep", "0.7500"), ("miss", "0.5000"), ("without", "1.0000")])
@pytest.mark.parametrize("asked", ["-m HR@1,MRR@2", "-c two.yaml"])
def test_overlap_says_how_a_pair_of_both_counts(asked, overlap, expected, run):
    """al's y at rank 2 stays, is a miss, or is no relevant item; bo's z is at rank 1."""
    assert f"MRR@2  {expected}" in run(f"{OVERLAP} {asked} --overlap {overlap}")[1]


TO_NEW = "evaluate lists.csv new.csv --rank rank -m HR@1"
WITHOUT_NEW = "evaluate lists.csv truth.csv --rank rank -m HR@1 --complete --history new.csv"
SESSIONS = "session,item,score,clicked\ns,a,0.9,0\ns,b,0.2,1\n"  # the click is at rank 2
OF_SESSIONS = "evaluate new.csv --user session --score score -m MRR"


@pytest.mark.parametrize(
    ("text", "words", "shown"),
    [
        ("user,item\nal,x\nal,x\nal,y\n", "evaluate new.csv truth.csv -m MRR@2 --first", "1 repeated list entry"),
        ("user,item,rank\nal,x,2\nal,y,1\n", "evaluate new.csv truth.csv -m HR@1 --in-order", "HR@1  0.0000"),
        ("user,item,stars\nal,y,0\nbo,z,2\n", f"{TO_NEW} --value stars", "1 user, 1 without a relevant item"),
        ("user,item,stars\nbo,z,1\nbo,z,3\n", f"{TO_NEW} --value stars --values-reduce max", "1 user"),
        ("uid,iid\nal,y\nbo,z\n", f"{TO_NEW} --truth-user uid --truth-item iid", "HR@1  0.5000"),
        ("uid,iid\nal,x\n", f"{WITHOUT_NEW} --history-user uid --history-item iid", "HR@1  1.0000"),
        ("user,item,time\nal,y,2\nal,z,1\n", "audit new.csv --no-time", "2 events"),
        (SESSIONS, f"{OF_SESSIONS} --label clicked", "MRR  0.5000"),
        (f"{SESSIONS}s,a,0.5,1\n", f"{OF_SESSIONS} --label clicked --first", "MRR  1.0000"),  # a, clicked once
    ],
)
def test_options_name_columns_or_say_that_there_are_none(text, words, shown, run):
    Path("new.csv").write_text(text)
    status, out, _ = run(words)

    assert status == 0
    assert shown in out


def test_names_of_lists_hold_for_truth_and_history(run):
    for name in ("lists", "truth", "history"):
        Path(f"{name}.csv").write_text(FILES[f"{name}.csv"].replace("user", "userID").replace("item", "itemID"))
    words = f"{EVALUATE} --user userID --item itemID --history history.csv --complete"

    assert "HR@1   1.0000" in run(words)[1]


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("ndcg: [5, 10]\nRPrecision:\nHR@3:\n", ["NDCG@5", "NDCG@10", "RPrecision", "HR@3"]),
        ("MAP: {k: [1, 5], normalize: min}\nRecall@2: {normalize: min}", ["MAP-min@1", "MAP-min@5", "Recall-min@2"]),
        ("- HR@1\n- NDCG: {k: 2}\n- NDCG: {k: 2, gain: exponential}\n", ["HR@1", "NDCG@2", "NDCG-exponential@2"]),
    ],
    ids=["names", "options", "a list, where a name comes twice"],
)
def test_yaml_holds_names_with_cutoffs_options_both_or_neither(text, labels, folder):
    Path("new.yaml").write_text(text)

    assert [metric.label for metric in metrics_of("new.yaml")] == labels


def test_relevant_from_is_the_lowest_relevant_grade(run):
    """bo's item of 2 stars has rank 1; NDCG has no grade."""
    run("evaluate lists.csv graded.csv --rank rank --value stars -m NDCG@2,MRR@2 --relevant-from 2 --json out.json")

    assert rows_of("out.json") == {"NDCG@2": 1, "MRR-from2@2": 1}


def test_entries_of_yaml_have_grades_of_their_own(run):
    """Weighted Recall, which reads grades, has none."""
    Path("new.yaml").write_text("MRR: {k: 2, relevant_from: 1}\nRecall: {k: 2, weighted: true}\n")
    run("evaluate lists.csv graded.csv --rank rank --value stars -m HR@2 -c new.yaml --relevant-from 2 --json out.json")

    assert [*rows_of("out.json")] == ["HR-from2@2", "MRR-from1@2", "Recall-weighted@2"]


@pytest.mark.parametrize(("typed", "delimiter"), [("|", "|"), ("\t", "\t"), ("\\t", "\t")])
def test_a_delimiter_is_for_all_files(typed, delimiter, run):
    for name in ("lists", "truth"):
        Path(f"{name}.txt").write_text(FILES[f"{name}.csv"].replace(",", delimiter))

    assert "HR@1  0.5000" in run("evaluate lists.txt truth.txt --rank rank -m HR@1 --delimiter", typed)[1]


def test_progress_is_shown_on_a_terminal_and_cleared(run, monkeypatch):
    """Here a batch is one user."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("torchrecmetrics.evaluation.ranked_lists.ListSource.memory", 1 * 160)
    status, _, error = run(EVALUATE)

    assert status == 0
    assert "1 of 2 users" in error
    assert error.endswith("\r\x1b[K")


@pytest.fixture
def events(folder):
    """A log of two users, and its first two and last four events."""
    frame = pd.DataFrame({"user": ["al"] * 3 + ["bo"] * 3, "item": list("xyzxyx"), "day": [1, 2, 3, 4, 5, 6]})
    frame.to_csv("log.csv", index=False)
    frame[:2].to_csv("train.csv", index=False)
    frame[2:].to_csv("test.csv", index=False)


def test_audit_prints_what_trm_audit_finds(run, events):
    result = trm.audit(trm.Log.from_file("log.csv", time="day"))

    assert run("audit log.csv --time day") == (0, f"{result}\n", "")


def test_audit_with_strict_exits_with_1_for_faults(run, events):
    """bo's three events are of a user without training events."""
    status, out, _ = run("audit train.csv test.csv --time day --json a.json --strict")
    result = json.loads(Path("a.json").read_text())

    assert status == 1
    assert "unseen_users" in out
    assert ("unseen_users" in result["faults"], result["findings"]["unseen_users"]["number"]) == (True, 3)


@pytest.fixture
def agreement(run):
    """A function that compares lists.csv, x y of al and z é of bo, with new.csv, x q of al and z é of bo."""
    LISTS.assign(item=["x", "q", "z", "é"]).to_csv("new.csv", index=False)
    return lambda options: run(f"agreement lists.csv new.csv --rank rank -k 2 -k 1 {options}")


def test_agreement_prints_and_writes_overlap_rbo_and_churn(agreement):
    status, out, _ = agreement("--json out.json")
    expected = {"Overlap@1": 1, "RBO@1": 1, "Churn@1": 0, "Overlap@2": 3 / 4, "Churn@2": 1 / 4}

    assert status == 0
    assert "Churn@2    0.2500 ± 0.2500" in out
    assert {label: value for label, value in rows_of("out.json").items() if label != "RBO@2"} == expected


@pytest.mark.parametrize(
    ("options", "status", "error"),
    [
        ("--fail-over churn@2=.25 --fail-under overlap@1=1", 0, ""),
        ("--fail-over churn@2=.2", 1, "Churn@2 is 0.25, above 0.2\n"),
        # of al 0.5 * (1 / 1 + 0.5 * 1 / 2) + 0.5**2 * 1 / 2 = 0.75, of bo 1
        ("-p 0.5 --fail-under rbo-p0_5@2=0.9", 1, "RBO-p0_5@2 is 0.875, below 0.9\n"),
        ("--fail-over churn@10=.3", 2, "--fail-over names 'churn@10', which is not computed: Overlap@1, RBO@1"),
        ("--fail-under churn@2=.3", 2, "lower values of Churn@2 are better, use --fail-over Churn@2=0.3"),
        ("--json new.csv", 2, "--json new.csv would overwrite a file that is read"),
    ],
)
def test_agreement_is_a_gate(options, status, error, agreement):
    result = agreement(options)

    assert result[0] == status
    assert error in result[2]


@pytest.fixture
def rows(run):
    """Rows of the same evaluation in a.parquet and b.parquet."""
    for name in "ab":
        run(f"{EVALUATE} --rows {name}.parquet")
    return [trm.Rows.from_parquet(f"{name}.parquet") for name in "ab"]


def test_compare_prints_and_writes_what_trm_compare_finds(run, rows):
    status, out, _ = run("compare a.parquet other=b.parquet --json found.json")
    written = json.loads(Path("found.json").read_text())["results"]

    assert (status, out) == (0, f"{trm.compare({'a': rows[0], 'other': rows[1]})}\n")
    assert [(row["label"], row["run"], row["p"]) for row in written] == [("HR@1", "other", 1), ("MRR@2", "other", 1)]


@pytest.mark.parametrize("option", ["--markdown", "--latex"])
def test_compare_prints_tables_of_models(option, run, rows):
    """Files with the same name are seeds of one run."""
    table = trm.compare({"x": rows[0], "y": rows}, baseline="x").by_model()
    expected = {"--markdown": table.to_markdown() + "\n\n", "--latex": table.to_latex() + "\n% The best values"}[option]

    assert run(f"compare x=a.parquet y=a.parquet y=b.parquet --baseline x {option}")[1].startswith(expected)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("a.parquet lists.csv", "not a file of evaluate --rows"),
        ("a.parquet a=b.parquet", "compare needs two or more runs, got 1"),
        ("a.parquet b=there/a.parquet", "there is no file there/a.parquet"),
        ("a.parquet a.parquet", "two files have the name 'a'"),
        ("a.parquet b.parquet --baseline c", "'c'"),
        ("a.parquet b.parquet --json a.parquet", "would overwrite a file that is read"),
        ("a.parquet b.parquet --strict", "--strict needs --margin, by which a run may be worse\n"),
        ("a.parquet b.parquet --margin much", "margin"),
    ],
)
@pytest.mark.usefixtures("rows")
def test_bad_calls_of_compare_are_refused(words, message, run):
    status, _, error = run(f"compare {words}")

    assert status == 2
    assert message in error


@pytest.fixture
def three_runs(folder):
    """Rows of the same values, but that NDCG@10 of worse.parquet is lower by 0.3."""
    column = torch.rand(400, generator=torch.Generator().manual_seed(0)).double()
    for name, loss in (("incumbent", 0.0), ("same", 0.0), ("worse", 0.3)):
        trm.Rows({"NDCG@10": column - loss, "HR@10": column}, torch.arange(400)).to_parquet(f"{name}.parquet")


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        ("incumbent.parquet same.parquet --margin .02 --strict", 0, ""),
        ("incumbent.parquet worse.parquet --margin .02", 0, ""),
        ("incumbent.parquet worse.parquet --margin .02 --strict", 1, "Failed: NDCG@10 fell by 0.3000, "),
        ("incumbent.parquet same.parquet worse.parquet --margin .02 --strict", 1, "Failed: NDCG@10 of worse fell"),
        ("worse.parquet incumbent.parquet --margin .02 --strict", 0, ""),  # the first file is the baseline
        ("worse.parquet same.parquet --margin .02 --strict --baseline same", 1, "Failed: NDCG@10 fell by"),
        ("incumbent.parquet worse.parquet --margin 2% --strict -m HR@10", 0, ""),
        ("incumbent.parquet worse.parquet --margin 2% --strict -m HR@10,NDCG@10 --markdown", 1, "Failed: NDCG@10 "),
    ],
)
@pytest.mark.usefixtures("three_runs")
def test_compare_with_strict_exits_with_1_where_a_run_may_be_worse_by_the_margin(words, status, error, run):
    result = run(f"compare {words}")

    assert result[0] == status
    assert result[2].startswith(error)
    assert result[2].count("\n") == status


def test_an_inconclusive_comparison_exits_with_3(run):
    """Differences of 0.1 and -0.1 of 20 users show neither a loss of 0.02 nor that there is none."""
    ids = torch.arange(20)
    trm.Rows({"HR@1": torch.full((20,), 0.5)}, ids).to_parquet("old.parquet")
    trm.Rows({"HR@1": 0.5 + 0.1 * (-1.0) ** ids}, ids).to_parquet("new.parquet")
    status, _, error = run("compare old.parquet new.parquet --margin .02 --strict")

    assert status == 3
    assert error.startswith("Inconclusive: HR@1 ")


@pytest.fixture
def models(run, folder):
    """Lists of ten items of three models in lists.*, my lists.parquet and other.csv, and files of rows of the last."""
    users, items = ["al"] * 10 + ["bo"] * 10, [*"abcdefghyz"] * 2
    lists = pd.DataFrame({"user": users, "item": items, "rank": [*range(1, 11)] * 2})
    (folder / "lr=0.1").mkdir()
    for path in ("lists.csv", "lr=0.1/lists.csv"):
        lists.to_csv(path, index=False)
    for path in ("lists.parquet", "my lists.parquet"):
        lists.to_parquet(path)
    lists.assign(item=[*"zyabcdefgh"] * 2).to_csv("other.csv", index=False)
    Path("truth.csv").rename("test.csv")
    for path in ("kept.parquet", "lists-rows.parquet"):
        run(f"evaluate other.csv test.csv -m NDCG@10 --rows {path}")


@pytest.mark.parametrize(
    ("words", "number"),
    [  # of commands that make files of rows
        ("lists.csv other.csv", 2),
        ("a=lists.csv 'b=my lists.parquet'", 2),
        ("kept.parquet lists.csv", 1),
        ("a=lists.csv b=lists.parquet", 2),
        ("lists.csv old=lists-rows.parquet", 1),
        ("lists.csv new=lr=0.1/lists.csv other.csv", 3),
    ],
)
@pytest.mark.usefixtures("models")
def test_compare_of_lists_shows_commands_that_work_when_they_are_pasted(words, number, run, folder):
    """They make and compare files of rows, and overwrite no file."""
    before = {*folder.rglob("*")}
    _, *commands = run("compare", *shlex.split(words))[2].splitlines()
    results = [run("", *shlex.split(command)[1:]) for command in commands]

    assert [(status, error) for status, _, error in results] == [(0, "")] * (number + 1)
    assert "NDCG@10" in results[-1][1]
    assert len({*folder.rglob("*")} - before) == number


BY_RANK = "evaluate new.csv truth.csv --rank rank -m HR@1"
BAD_FILES = [  # text of new.csv, command, error
    ("\n\n", "evaluate new.csv truth.csv -m HR@1", "error: new.csv is empty: it holds no rows"),
    ("user,item\nal,x\nal,x\n", "evaluate new.csv truth.csv -m MRR@2", "duplicates='first' is --first"),
    ("user,item,rank\nal,x,1\nal,y,3\n", BY_RANK, "new.csv, row 1 (line 3), column 'rank': user 'al'"),
    ("user,it\x1b[2Jem,rank\nal,x,1\n", BY_RANK, r"it\x1b[2Jem"),  # would steer the terminal
    ("uid,iid\nal,x\n", f"{EVALUATE} --history new.csv", "item= is --history-item or --item or --truth-item\n"),
    ("user,item,stars\nal,y,0\n", "evaluate lists.csv new.csv -m HR@1", "value= is --no-value or --value\n"),
    ("user,item,stars\nbo,z,1\nbo,z,3\n", f"{TO_NEW} --value stars", "values_reduce= is --values-reduce\n"),
    (
        "user,item,place\nal,x,1\n",
        "evaluate new.csv truth.csv -m HR@1",
        "--in-order, rank= is --rank, score= is --score\n",
    ),
    ("user,item,day\nal,x,1\n", "audit new.csv", "time= is --no-time or --time\n"),
    (f"{SESSIONS}s,a,0.5,1\n", f"{OF_SESSIONS} --label clicked", "duplicates='first' is --first"),
    (SESSIONS, OF_SESSIONS, "pass either TRUTH, a file of ground truth, or --label COLUMN"),
    (SESSIONS, f"{OF_SESSIONS} --label clicked --history x", "cannot be combined with --label"),
]
BAD = [
    # files
    ("evaluate no.csv truth.csv -m HR@1", "error: there is no file no.csv\n"),
    ("evaluate bars.xyz truth.csv -m HR@1", "delimiter= is --delimiter"),
    # metrics and limits
    (TRUTH, "no metric is named: pass -m NDCG@10"),
    (f"{TRUTH} -m Coverage@1", "catalogue= is --train\n"),
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


def refusal(run, words):
    """Return the error of a command that exits with 2: one of Python's, below which a line has the flags."""
    status, out, error = run(words)

    assert (status, out, "\x1b" in error) == (2, "", False)
    assert all(line.startswith("in this command: ") for line in error.splitlines()[1:])
    return error


@pytest.mark.parametrize(("text", "words", "message"), BAD_FILES)
def test_a_bad_file_is_refused_with_2(text, words, message, run):
    Path("new.csv").write_text(text)

    assert message in refusal(run, words)


@pytest.mark.parametrize(("words", "message"), BAD)
def test_bad_arguments_are_refused_with_2(words, message, run):
    assert message in refusal(run, words)


@pytest.mark.parametrize("words", [words for words, _ in BAD])
def test_bad_arguments_write_nothing(words, run, folder):
    before = {path: path.read_bytes() for path in folder.iterdir()}
    run(words)

    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("NDCG:\n", "NDCG reads the whole ranking, but the longest list of lists.csv holds 2 items"),
        ("NDGC: [5]", "bad.yaml, NDGC: unknown metric 'NDGC'; did you mean 'NDCG'?"),
        ("NDCG: {k: five, gain: linear}", "bad.yaml, NDCG: k must be whole numbers"),
        ("NDCG: [5", "bad.yaml is not YAML"),
        ("", "bad.yaml must hold metrics by name"),
        ("1: 2", "a metric must be a name, got 1"),
    ],
)
def test_bad_yaml_is_refused_with_2(text, message, run):
    Path("bad.yaml").write_text(text)
    status, _, error = run(f"{TRUTH} -c bad.yaml")

    assert status == 2
    assert message in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("evaluate none.csv truth.csv -m HR@1", "there is no file none.csv"),
        ("evaluate lists.csv truth.csv -m HR@1 --history history.csv --history none.csv", "there is no file none.csv"),
        ("evaluate lists.csv truth.csv -m HR@1 --train none.csv", "there is no file none.csv"),
        ("evaluate lists.csv truth.csv -c none.yaml --train train.csv", "there is no file none.yaml"),
        ("compare lists.csv none.csv", "there is no file none.csv"),
        ("compare lists.csv b=truth.csv --strict", "--strict needs --margin"),
        ("agreement lists.csv none.csv", "there is no file none.csv"),
        ("agreement lists.csv lists.csv -p 2", "p, the probability"),
        ("audit log.csv none.csv", "there is no file none.csv"),
    ],
)
def test_bad_arguments_are_refused_before_a_table_is_read(words, message, run, monkeypatch):
    def read(*_, **__):
        raise AssertionError("a table was read")

    for name in ("_read_catalogue", "evaluate_lists", "agreement", "Log.from_file", "Rows.from_parquet"):
        monkeypatch.setattr(f"torchrecmetrics.cli.{name}", read)
    status, out, error = run(words)

    assert (status, out, error.count("\n")) == (2, "", 1)
    assert message in error


COMMANDS = ("evaluate", "compare", "agreement", "audit")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(command, run):
    status, out, _ = run(f"{command} --help")

    assert status == 0
    assert "examples:\n  torchrecmetrics " in out
    assert f"\n  torchrecmetrics {command} " in out


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_command_has_a_version(command, run):
    assert run(f"{command} --version") == (0, f"torchrecmetrics {trm.__version__}\n", "")


def test_a_bug_exits_with_2(run, monkeypatch):
    """An exit with 1 means that a metric misses its limit."""
    monkeypatch.setattr("torchrecmetrics.cli.evaluate_lists", lambda *_, **__: 1 / 0)
    status, _, error = run(EVALUATE)

    assert status == 2
    assert "ZeroDivisionError" in error


def test_ctrl_c_prints_nothing(run, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("torchrecmetrics.cli.evaluate_lists", interrupted)

    assert run(EVALUATE) == (130, "", "")


@pytest.mark.slow
def test_a_closed_pipe_ends_quietly(folder):
    """The program exits with the status of the command, and without a traceback."""
    command = f"{sys.executable} -m torchrecmetrics {EVALUATE} | true; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)

    assert (result.stdout, result.stderr) == ("141\n", "")
