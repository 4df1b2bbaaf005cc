"""The command line: its output, its exit status, and its errors for bad files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
TRUTH = pd.DataFrame({"user": ["al", "bo"], "item": ["y", "z"]})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with lists and ground truth, where the commands are run."""
    monkeypatch.chdir(tmp_path)
    LISTS.to_csv("lists.csv", index=False)
    LISTS.to_parquet("lists.parquet")
    TRUTH.to_csv("truth.csv", index=False)
    return tmp_path


EVALUATE = ["evaluate", "lists.csv", "truth.csv", "--rank", "rank", "-m", "HR@1", "-m", "MRR@2"]


def test_evaluate_prints_what_evaluate_lists_finds(folder, capsys):
    """`evaluate` prints what `evaluate_lists` returns, as a table or Markdown; without a terminal stderr is empty."""
    assert main(EVALUATE) == 0
    found = trm.evaluate_lists(["HR@1", "MRR@2"], "lists.csv", target="truth.csv", rank="rank")
    assert capsys.readouterr() == (f"{found}\n", "")
    assert main([*EVALUATE, "--markdown"]) == 0
    counts = "2 users, 2 list entries whose item the ground truth does not know"
    assert capsys.readouterr().out == f"{found.to_markdown()}\n\n{counts}\n"
    assert main(["evaluate", "lists.parquet", "truth.csv", "--score", "score", "-m", "HR@1,MRR@2"]) == 0
    assert capsys.readouterr().out == f"{found}\n"


def test_markdown_of_many_users_has_the_counts_below_it(folder, capsys):
    """Markdown has the counts below the table, without the note on intervals that is below a printed table."""
    users = [f"u{n:03}" for n in range(200)]
    pd.DataFrame({"user": users, "item": ["x", "y"] * 100}).to_csv("truth.csv", index=False)
    pd.DataFrame({"user": users, "item": ["x"] * 200}).to_csv("lists.csv", index=False)
    assert main(["evaluate", "lists.csv", "truth.csv", "-m", "HR@1", "--markdown"]) == 0
    assert capsys.readouterr().out.endswith(" |\n\n200 users\n")


def test_json_is_written_whole_or_not_at_all(folder, monkeypatch):
    """JSON is written also where a metric misses its limit; a run that fails leaves the old file and no other."""
    assert main([*EVALUATE, "--json", "out.json", "--fail-under", "HR@1=0.9"]) == 1
    rows = json.loads((folder / "out.json").read_text())["rows"]
    assert [(row["metric"], row["k"], row["value"]) for row in rows] == [("HR", 1, 0.5), ("MRR", 2, 0.75)]
    before = (folder / "out.json").read_text()
    assert main(["evaluate", "lists.csv", "truth.csv", "--rank", "item", "-m", "HR@1", "--json", "out.json"]) == 2
    write = type(folder).write_text

    def cut_off(path, text, **how):
        write(path, text[:9], **how)
        raise OSError("disk full")

    monkeypatch.setattr(type(folder), "write_text", cut_off)
    assert main([*EVALUATE, "--json", "out.json"]) == 2
    assert (folder / "out.json").read_text() == before
    assert not list(folder.glob("*.part"))


@pytest.mark.parametrize(
    ("least", "status", "said"),
    [
        (["HR@1=0.5", "mrr@2=0.75"], 0, ""),
        (["HR@1=0.5", "MRR@2=0.76"], 1, "MRR@2 is 0.75, below 0.76\n"),
        (["NDCG@1=0.1"], 2, "--fail-under names 'NDCG@1', which is not computed: HR@1, MRR@2"),
    ],
)
def test_fail_under(least, status, said, folder, capsys):
    """The exit status is 1 if a metric is below its limit, and 2 if the limit is for a metric that is not computed."""
    assert main([*EVALUATE, *(word for one in least for word in ("--fail-under", one))]) == status
    assert said in capsys.readouterr().err


def test_fail_over(folder, capsys):
    """--fail-over is a highest value, for metrics where lower is better; both options refuse the other metrics."""
    command = [*EVALUATE[:5], "--train", "truth.csv", "-m", "Gini@1", "-m", "HR@2"]
    assert main([*command, "--fail-over", "Gini@1=0.9"]) == 0
    assert main([*command, "--fail-over", "Gini@1=0.1"]) == 1
    assert "Gini@1 is 0.5, above 0.1" in capsys.readouterr().err
    assert main([*command, "--fail-under", "Gini@1=0.1"]) == 2
    assert "lower values of Gini@1 are better, use --fail-over Gini@1=0.1" in capsys.readouterr().err
    assert main([*command, "--fail-over", "HR@2=0.1"]) == 2
    assert "higher values of HR@2 are better, use --fail-under HR@2=0.1" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:no row to average over")
def test_a_value_that_is_not_there_is_below(folder, capsys):
    """NaN, the value if no user has a relevant item, is below every limit."""
    (folder / "a.qrels").write_text("al 0 x 0\n")
    words = ["evaluate", "lists.csv", "a.qrels", "--rank", "rank", "-m", "HR@1", "--fail-under", "HR@1=0"]
    assert main(words) == 1
    assert "HR@1 is nan, below 0" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["HR@1", "HR@1=x", "=1", "HR@1=nan"])
def test_thresholds_that_are_none(text, folder, capsys):
    with pytest.raises(SystemExit) as left:
        main([*EVALUATE, "--fail-under", text])
    assert left.value.code == 2
    assert "such as NDCG@10=0.07" in capsys.readouterr().err


def test_history_and_complete(folder, capsys):
    """Lists that the history makes too short are an error that names --complete."""
    pd.DataFrame({"user": ["al"], "item": ["x"]}).to_csv("had.csv", index=False)
    words = [*EVALUATE, "--history", "had.csv"]
    assert main(words) == 2
    assert "user 'al' holds 1 item after" in (said := capsys.readouterr().err)
    assert said.rstrip().endswith("if the lists are all that is recommended, --complete")
    assert main([*words, "--complete", "--markdown"]) == 0
    assert "| 1.0000 |" in capsys.readouterr().out


def test_train_is_the_catalogue(folder, capsys):
    """Metrics beyond accuracy read the catalogue of --train, whose items are those of all files.

    Without --train the error names that option.
    """
    pd.DataFrame({"user": ["al", "bo", "eve", "eve"], "item": ["x", "x", "x", "w"]}).to_csv("train.csv", index=False)
    words = [*EVALUATE[:5], "-m", "Coverage@1", "-m", "AveragePopularity@2", "-m", "Seen@1"]
    assert main(words) == 2
    assert "Coverage needs to know the items: --train FILE, the training data\n" in capsys.readouterr().err
    assert main([*words, "--train", "train.csv", "--json", "found.json"]) == 0
    found = {f"{row['metric']}@{row['k']}": row["value"] for row in json.loads(Path("found.json").read_text())["rows"]}
    assert found == {"Coverage@1": 2 / 5, "AveragePopularity@2": 0.75, "Seen@1": 0.5}
    assert main([*words, "--train", "train.csv", "--json", "train.csv"]) == 2
    assert "would overwrite a file that is read" in capsys.readouterr().err
    assert main([*EVALUATE[:5], "-m", "Calibration@2", "--train", "train.csv"]) == 2
    assert "the metric reads categories of items, which the command does not take: eval" in capsys.readouterr().err
    (folder / "m.yaml").write_text("Novelty: {k: 2, normalize: true}\n")
    assert main([*EVALUATE[:5], "-c", "m.yaml", "--train", "train.csv"]) == 0
    assert "Novelty-normalize@2" in capsys.readouterr().out


def test_overlap(folder, capsys):
    """A pair of both TRUTH and history is an error that names --overlap, unless that option says how to count it."""
    pd.DataFrame({"user": ["al"], "item": ["y"]}).to_csv("had.csv", index=False)
    (folder / "m.yaml").write_text("HR: {k: 1, validate_args: true}\nMRR: 2\n")
    (folder / "own.yaml").write_text("HR: {k: 1, overlap: keep}\n")
    for asked in (["-m", "HR@1", "-m", "MRR@2"], ["-c", "m.yaml"]):
        words = [*EVALUATE[:5], *asked, "--history", "had.csv", "--complete"]
        for more in ([], ["--overlap", "error"]):
            assert main([*words, *more]) == 2
            said = capsys.readouterr().err
            assert "pair of TRUTH is also in the history, such as [['al', 'y']]. --overlap without takes" in said
            assert "--overlap keep lets them" in said
            assert "overlap=" not in said
        for overlap in ("keep", "miss", "without"):
            assert main([*words, "--overlap", overlap]) == 0
            found = trm.evaluate_lists(
                ["HR@1", "MRR@2"],
                "lists.csv",
                target="truth.csv",
                exclude="had.csv",
                rank="rank",
                complete=True,
                overlap=overlap,
            )
            assert capsys.readouterr().out == f"{found}\n"
    words = [*EVALUATE[:5], "-c", "own.yaml", "--history", "had.csv", "--complete"]
    assert main(words) == 0
    assert "HR@1  0.5" in capsys.readouterr().out


def test_repeats_and_gains(folder, capsys):
    """--first keeps the first rank of a repeated item, and --value names the gains of the ground truth."""
    pd.DataFrame({"user": ["al"] * 3, "item": ["x", "x", "y"]}).to_csv("twice.csv", index=False)
    words = ["evaluate", "twice.csv", "truth.csv", "-m", "MRR@2"]
    assert main(words) == 2
    assert "error: twice.csv, row 1 (line 3), column 'item': user 'al'" in (said := capsys.readouterr().err)
    assert "--first lets its first place" in said
    assert main([*words, "--first"]) == 0
    assert "1 list entry whose item stands in front of it already" in capsys.readouterr().out
    TRUTH.assign(stars=[0, 2]).to_csv("graded.csv", index=False)
    assert main(["evaluate", "lists.csv", "graded.csv", "--rank", "rank", "-m", "HR@1", "--value", "stars"]) == 0
    assert "1 user, 1 without a relevant item" in capsys.readouterr().out


def test_metrics_of_yaml(folder, capsys):
    """YAML holds names with cut-offs, options, both, or neither, or a list of these where a name comes twice.

    NDCG without a cut-off is a metric of the whole ranking, which these lists are not.
    """
    (folder / "m.yaml").write_text(
        "ndcg: [5, 10]\nMAP: {k: [1, 5], normalize: min}\nRPrecision:\nHR@3:\nPrecision@2: {normalize: min}\nMRR: 10\n"
    )
    labels = ["NDCG@5", "NDCG@10", "MAP-min@1", "MAP-min@5", "RPrecision", "HR@3", "Precision-min@2", "MRR@10"]
    assert [metric.label for metric in metrics_of("m.yaml")] == labels
    (folder / "l.yaml").write_text("- HR@1\n- NDCG: {k: 2}\n- NDCG: {k: 2, gain: exponential}\n")
    assert [metric.label for metric in metrics_of("l.yaml")] == ["HR@1", "NDCG@2", "NDCG-exponential@2"]
    assert main([*EVALUATE[:5], "-c", "l.yaml", "--fail-under", "NDCG-exponential@2=0.1"]) == 0
    (folder / "whole.yaml").write_text("NDCG:\n")
    assert main([*EVALUATE[:5], "-c", "whole.yaml"]) == 2
    assert "NDCG looks at the whole ranking, but the longest list of lists.csv holds 2 items" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("NDGC: [5]", "m.yaml, NDGC: unknown metric 'NDGC'; did you mean 'NDCG'?"),
        ("NDCG: {k: 5, gian: linear}", "m.yaml, NDCG: NDCG has no option 'gian'; did you mean 'gain'?"),
        ("NDCG: {k: five, gain: linear}", "m.yaml, NDCG: k must be whole numbers"),
        ("NDCG: [5", "m.yaml is no YAML"),
        ("", "m.yaml must hold metrics by name"),
        ("1: 2", "a metric goes by its name, got 1"),
    ],
)
def test_yaml_that_holds_no_metrics(text, said, folder, capsys):
    """YAML without valid metrics exits with 2, and the error names the file and the metric."""
    (folder / "m.yaml").write_text(text)
    status = main([*EVALUATE[:5], "-c", "m.yaml"])
    assert (status, said in capsys.readouterr().err) == (2, True)


def test_without_a_metric(folder, capsys):
    assert main(EVALUATE[:5]) == 2
    assert "no metric is named: pass -m NDCG@10" in capsys.readouterr().err


def bad_files():
    """Return some bad files and the error for each; tests/data/test_files.py has the others."""
    table = LISTS.to_csv(index=False)
    return {
        "empty.csv": (b"", "empty.csv is empty: it holds no rows"),
        "column.csv": (table.replace("rank", "rnk").encode(), "column.csv has no column 'rank'; did you mean 'rnk'"),
        "twice.csv": (table.replace("é", "z").encode(), "error: twice.csv, row 3 (line 5), column 'item': user 'bo'"),
        "order.csv": (
            table.replace("é,2", "é,3").encode(),
            "error: order.csv, row 3 (line 5), column 'rank': user 'bo'",
        ),
        "short.parquet": (LISTS.to_parquet()[:-9], "short.parquet is no parquet file, or was cut short"),
        "lists.xyz": (table.encode(), "lists.xyz is of no known kind"),
    }


@pytest.mark.parametrize("name", bad_files())
def test_bad_files_are_named(name, folder, capsys):
    """A bad file exits with 2 and an error of one line on stderr; stdout is empty, and no file is written."""
    text, said = bad_files()[name]
    (folder / name).write_bytes(text)
    status = main(["evaluate", name, "truth.csv", "--rank", "rank", "-m", "HR@1", "--json", "out.json"])
    out, error = capsys.readouterr()
    assert (status, out) == (2, "")
    assert said in error
    assert error.count("\n") == 1
    assert not (folder / "out.json").exists()


def test_files_that_are_not_there(folder, capsys):
    for words in (
        ["evaluate", "no.csv", "truth.csv", "-m", "HR@1"],
        ["evaluate", "lists.csv", "no.parquet", "-m", "HR@1"],
    ):
        assert main([*words, "--rank", "rank"]) == 2
        assert words[1 if "no.csv" in words else 2] in capsys.readouterr().err


def test_audit(folder, capsys):
    """`audit` reads a log, or train and test; with --strict the exit status is 1 if there are faults."""
    frame = pd.DataFrame({"user": ["al"] * 3 + ["bo"] * 3, "item": list("xyzxyx"), "day": [1, 2, 3, 4, 5, 6]})
    frame.to_csv("log.csv", index=False)
    frame[frame.day < 3].to_csv("train.csv", index=False)
    frame[frame.day >= 3].to_csv("test.csv", index=False)
    assert main(["audit", "log.csv", "--time", "day"]) == 0
    assert capsys.readouterr().out == f"{trm.audit(trm.Log.from_file('log.csv', time='day'))}\n"
    assert main(["audit", "train.csv", "test.csv", "--time", "day", "--json", "a.json", "--strict"]) == 1
    assert "unseen_users" in capsys.readouterr().out
    read = json.loads((folder / "a.json").read_text())
    assert "unseen_users" in read["faults"]
    assert read["findings"]["unseen_users"]["number"] == 3
    assert main(["audit", "log.csv", "--time", "when"]) == 2
    assert "log.csv has no column 'when'" in capsys.readouterr().err


def test_agreement_is_a_gate(folder, capsys):
    """`agreement` prints overlap, RBO and churn of two files, and exits with 1 where one misses its threshold."""
    LISTS.assign(item=["x", "q", "z", "é"]).to_csv("new.csv", index=False)
    command = ["agreement", "lists.csv", "new.csv", "--rank", "rank", "-k", "2", "-k", "1"]
    assert main([*command, "--fail-over", "churn@2=.25", "--fail-under", "overlap@1=1", "--json", "out.json"]) == 0
    rows = json.loads(Path("out.json").read_text())["rows"]
    assert [(row["metric"], row["k"], row["value"]) for row in rows if row["metric"] != "RBO"] == [
        ("Overlap", 1, 1.0),
        ("Churn", 1, 0.0),
        ("Overlap", 2, 0.75),
        ("Churn", 2, 0.25),
    ]
    assert "Churn@2    0.2500 ± 0.2500" in capsys.readouterr().out
    assert main([*command, "--fail-over", "churn@2=.2"]) == 1
    assert capsys.readouterr().err == "Churn@2 is 0.25, above 0.2\n"
    assert main([*command, "-p", "0.5", "--fail-under", "rbo-p0_5@2=0.9"]) == 1
    assert capsys.readouterr().err == f"RBO-p0_5@2 is {(1 + 0.5 * (1 + 0.5 * 0.5 + 0.5 * 0.5)) / 2:.6g}, below 0.9\n"
    for options, message in (
        (["--fail-over", "churn@10=.3"], "--fail-over names 'churn@10', which is not computed: Overlap@1, RBO@1"),
        (["--fail-under", "churn@2=.3"], "lower values of Churn@2 are better, use --fail-over Churn@2=0.3"),
        (["--json", "new.csv"], "--json new.csv would overwrite a file that is read"),
    ):
        assert main([*command, *options]) == 2
        assert message in capsys.readouterr().err


def test_progress_on_a_terminal(folder, capsys, monkeypatch):
    """On a terminal stderr shows the users done so far, batch by batch, and is cleared at the end."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("torchrecmetrics.evaluation.lists._CELLS", 1)
    assert main(EVALUATE) == 0
    error = capsys.readouterr().err
    assert "1 of 2 users" in error
    assert error.endswith("\r\x1b[K")


def test_help_has_examples(capsys):
    for command in ("evaluate", "agreement", "audit"):
        with pytest.raises(SystemExit) as left:
            main([command, "--help"])
        assert left.value.code == 0
        assert f"examples:\n  torchrecmetrics {command} " in capsys.readouterr().out


@pytest.mark.slow
def test_as_a_program(folder):
    """`python -m torchrecmetrics` exits with the status of the command, without a traceback."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "torchrecmetrics", *EVALUATE, "--fail-under", "HR@1=0.9"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr


def test_a_parquet_file_without_a_column_is_bad_input(folder, capsys):
    """A parquet file without a column that is read exits with 2, because 1 is for metrics that have dropped."""
    TRUTH.rename(columns={"user": "uid"}).to_parquet("other.parquet")
    for arguments in (
        ["evaluate", "lists.parquet", "other.parquet", "--rank", "rank", "-m", "HR@1"],
        ["evaluate", "lists.parquet", "truth.csv", "--history", "other.parquet", "--rank", "rank", "-m", "HR@1"],
        ["audit", "other.parquet"],
    ):
        assert main(arguments) == 2
        said = capsys.readouterr().err
        assert "other.parquet has no column 'user'; did you mean 'uid'?" in said or "There are uid, item" in said
        assert "Traceback" not in said


def test_a_mistake_of_ours_is_no_metric_that_dropped(folder, capsys, monkeypatch):
    monkeypatch.setattr("torchrecmetrics.cli.evaluate_lists", lambda *_, **__: 1 / 0)
    assert main(EVALUATE) == 2
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_columns_of_the_ground_truth_have_names_of_their_own(folder, capsys):
    TRUTH.rename(columns={"user": "uid", "item": "iid"}).to_csv("other.csv", index=False)
    pd.DataFrame({"uid": ["al"], "iid": ["x"]}).to_csv("seen.csv", index=False)
    assert main([*EVALUATE, "--history", "seen.csv"]) == 2
    assert "seen.csv has no column 'user'" in (said := capsys.readouterr().err)
    assert said.rstrip().endswith("--truth-user ..., --truth-item ...")
    arguments = ["evaluate", "lists.csv", "other.csv", "--rank", "rank", "-m", "HR@1", "--complete"]
    assert main([*arguments, "--history", "seen.csv", "--truth-user", "uid", "--truth-item", "iid"]) == 0
    assert "1.0000" in capsys.readouterr().out


def test_results_go_to_devices_and_through_links(folder, capsys):
    """--json writes to a device, replaces the file that a link points to, and touches no other file."""
    (folder / "there").mkdir()
    (folder / "there" / "real.json").write_text("old")
    (folder / "link.json").symlink_to(folder / "there" / "real.json")
    (folder / "link.json.part").write_text("mine")
    assert main([*EVALUATE, "--json", "link.json"]) == 0
    assert (folder / "link.json").is_symlink()
    assert json.loads((folder / "there" / "real.json").read_text())["rows"]
    assert (folder / "link.json.part").read_text() == "mine"
    assert [path.name for path in (folder / "there").iterdir()] == ["real.json"]
    assert main([*EVALUATE, "--json", os.devnull]) == 0
    assert not Path(os.devnull).is_file()
    assert main([*EVALUATE, "--json", "nowhere/out.json"]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_compare(folder, capsys):
    """`compare` prints the result of `trm.compare` for rows of several evaluations by name, as a table or JSON.

    Files with the same name are seeds of one run.
    """
    for name in ("a", "b"):
        assert main([*EVALUATE, "--rows", f"{name}.parquet"]) == 0
    capsys.readouterr()
    assert main(["compare", "a.parquet", "other=b.parquet", "--json", "found.json"]) == 0
    out = capsys.readouterr().out
    rows = [trm.Rows.from_parquet(f"{name}.parquet") for name in "ab"]
    assert out == f"{trm.compare({'a': rows[0], 'other': rows[1]})}\n"
    found = json.loads(Path("found.json").read_text())["results"]
    assert [(each["label"], each["run"], each["against"], each["p"]) for each in found] == [
        (label, "other", "a", 1) for label in ("HR@1", "MRR@2")
    ]
    assert main(["compare", "x=a.parquet", "y=a.parquet", "y=b.parquet", "--baseline", "x", "--markdown"]) == 0
    assert capsys.readouterr().out.startswith("| metric | runs ")
    for words, message in (
        (["a.parquet", "a=b.parquet"], "two runs or more are compared, got 1"),
        (["a.parquet"], "two runs or more are compared, got 1"),
        (["a.parquet", "b=there/a.parquet"], "there is no file there/a.parquet"),
        (["a.parquet", "a.parquet"], "two files go by the name 'a'"),
        (["a.parquet", "lists.csv"], "lists.csv is no parquet file"),
        (["a.parquet", "lists.parquet"], "lists.parquet was not written by torchrecmetrics evaluate --rows"),
        (["a.parquet", "b.parquet", "--baseline", "c"], "'c'"),
    ):
        assert main(["compare", *words]) == 2
        assert message in capsys.readouterr().err


def test_columns_whose_meaning_was_not_given(folder, capsys):
    """The error for a column whose meaning was not given names the options of the command."""
    pd.DataFrame({"user": ["al", "bo", "bo"], "item": ["y", "z", "z"], "rating": [0, 1, 3]}).to_csv(
        "rated.csv", index=False
    )
    command = ["evaluate", "lists.csv", "rated.csv", "-m", "HR@1"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "rated.csv has a column that may say which rows are relevant: 'rating' (whole numbers 0 .. 3): pass " in said
    assert "--value with it, or --no-value if every row is relevant" in said
    assert main([*command, "--no-value"]) == 0  # the rows follow the ranks
    pd.DataFrame({"user": ["al", "al"], "item": ["x", "y"], "rank": [2, 1]}).to_csv("lists.csv", index=False)
    assert main([*command, "--no-value"]) == 2
    assert "may order the lists: 'rank' (whole numbers 1 .. 2): pass --score or --rank with it, or --in-order if" in (
        capsys.readouterr().err
    )
    assert main([*command, "--no-value", "--in-order"]) == 0
    assert main([*command, "--value", "rating", "--in-order"]) == 2
    assert "--values-reduce sum, max or last says which counts" in capsys.readouterr().err
    assert main([*command, "--value", "rating", "--in-order", "--values-reduce", "max"]) == 0
    pd.DataFrame({"user": ["al"] * 2, "item": ["y", "z"], "time": [2, 1]}).to_csv("log.csv", index=False)
    assert main(["audit", "log.csv"]) == 2
    assert "may be the times: 'time' (whole numbers 1 .. 2): pass --time with it, or --no-time" in (
        capsys.readouterr().err
    )
    assert main(["audit", "log.csv", "--no-time"]) == 0


def test_ctrl_c_ends_quietly(folder, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("torchrecmetrics.cli.evaluate_lists", interrupted)
    assert main(EVALUATE) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_a_closed_pipe_ends_quietly(folder):
    command = f"{sys.executable} -m torchrecmetrics {' '.join(EVALUATE)} | true; echo ${{PIPESTATUS[0]}}"
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (found.stdout, found.stderr) == ("141\n", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("evaluate no.csv truth.csv -m HR@1", "No such file or directory: 'no.csv'\n"),
        ("evaluate blank.csv truth.csv -m HR@1", "error: blank.csv is empty: it holds no rows"),
        ("evaluate lists.csv truth.csv -m HR@1,2", "unknown metric '2'"),
        ("evaluate lists.csv truth.csv -m HR@1 --delimiter ab", "'ab'"),
        ("evaluate lists.csv truth.csv -m HR@1 --score rank", "pass --rank 'rank', or rename the column"),
        ("evaluate lists.csv other.csv --rank rank -m HR@1", "are these ids of one kind?\n"),
        (
            "evaluate lists.pkl truth.csv -m HR@1",
            "lists.pkl is no text in UTF-8, and .pkl is no known kind; there are .csv",
        ),
        ("evaluate lists.xyz truth.csv -m HR@1", "Other files of columns: --delimiter ','"),
        ("evaluate comma.csv truth.csv --score p -m HR@1", "got '5,46' in row 0 (line 2): decimals have a point"),
    ],
)
def test_messages_say_what_to_type(words, said, folder, capsys):
    """The error for bad input names the cure in words of the command line."""
    (folder / "blank.csv").write_text("\n\n")
    (folder / "other.csv").write_text("user,item\neve,x\n")
    (folder / "comma.csv").write_text("user;item;p\nal;x;5,46\n")
    (folder / "lists.xyz").write_text("user|item\nal|x\n")
    LISTS.to_pickle("lists.pkl")
    assert main(words.split()) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("delimiter", ["|", "\t", "\\t"])
def test_a_delimiter_is_for_all_files(delimiter, folder, capsys):
    """--delimiter reads .txt files of columns; a tab is typed as `\\t`."""
    for table, name in ((LISTS, "lists.txt"), (TRUTH, "truth.txt")):
        table.to_csv(name, index=False, sep=delimiter.replace("\\t", "\t"))
    assert main(["evaluate", "lists.txt", "truth.txt", "--delimiter", delimiter, *EVALUATE[3:]]) == 0
    assert "HR@1" in capsys.readouterr().out


def test_the_note_below_intervals_names_the_command(folder, capsys):
    """Below the intervals of many users stands the command that compares models."""
    users = [f"u{n:03}" for n in range(20)]
    pd.DataFrame({"user": users, "item": ["x", "y"] * 10}).to_csv("truth.csv", index=False)
    pd.DataFrame({"user": users, "item": ["x"] * 20}).to_csv("lists.csv", index=False)
    assert main(["evaluate", "lists.csv", "truth.csv", "-m", "HR@1"]) == 0
    assert "; compare models with torchrecmetrics compare, not" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--metrics HR@1", "--metrics HR@1; did you mean --metric?"),
        ("--fail-below HR@1=0", "did you mean --fail-"),
        ("--metrics=HR@1", "did you mean --metric?"),
        ("--csv found.csv", "unrecognized arguments: --csv found.csv"),
        ("-m HR@1 NDCG@1", "values of one option are joined by commas, such as -m HR@10,NDCG@10"),
    ],
)
def test_unknown_options_name_the_right_one(words, said, folder, capsys):
    """The error for an unknown option names the option that was meant, and the help of the command."""
    with pytest.raises(SystemExit) as left:
        main(["evaluate", "lists.csv", "truth.csv", *words.split()])
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.endswith("; see torchrecmetrics evaluate --help\n")


def test_errors_of_arguments_are_one_line(folder, capsys):
    """The error for wrong arguments is one line."""
    for words in ("evaluate", "evalute a b"):
        with pytest.raises(SystemExit) as left:
            main(words.split())
        assert left.value.code == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert said.endswith("--help\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-c", "m.yaml", "--json", "m.yaml"], "--json m.yaml would overwrite a file that is read"),
        (["--rows", "lists.csv"], "--rows lists.csv would overwrite a file that is read"),
        (["--json", "./truth.csv"], "--json truth.csv would overwrite a file that is read"),
        (["--rows", "out", "--json", "out"], "--json out is the file of --rows, too"),
        (["--rows", "out", "--json", "./out"], "--json out is the file of --rows, too"),
    ],
)
def test_outputs_are_files_of_their_own(options, message, folder, capsys):
    """A configuration is not overwritten, and two outputs do not go to one file, however it is called."""
    (folder / "m.yaml").write_text("NDCG: [1]\n")
    before = Path("lists.csv").read_bytes()
    assert main([*EVALUATE, *options]) == 2
    assert Path("lists.csv").read_bytes() == before
    assert message in capsys.readouterr().err
    assert (folder / "m.yaml").read_text() == "NDCG: [1]\n"
    assert not (folder / "out").exists()


def test_outputs_of_the_other_commands(folder, capsys):
    """`compare` and `audit` do not overwrite what they read, either."""
    for words in (["audit", "lists.csv", "--json", "lists.csv"], ["compare", "a=lists.csv", "b=truth.csv"]):
        before = Path("lists.csv").read_bytes()
        assert main([*words, *(["--json", "lists.csv"] if words[0] == "compare" else [])]) == 2
        assert Path("lists.csv").read_bytes() == before
    assert main([*EVALUATE, "--rows", "a.parquet"]) == 0
    assert main([*EVALUATE, "--rows", "b.parquet"]) == 0
    capsys.readouterr()
    assert main(["compare", "a.parquet", "b.parquet", "--json", "a.parquet"]) == 2
    assert "would overwrite a file that is read" in capsys.readouterr().err


def test_nothing_steers_the_terminal(folder, capsys):
    """Characters of a header that would steer the terminal are escaped in messages."""
    LISTS.rename(columns={"item": "item\x1b[2J"}).to_csv("lists.csv", index=False)
    assert main(EVALUATE) == 2
    told = capsys.readouterr().err
    assert "\x1b" not in told
    assert r"\x1b[2J" in told
