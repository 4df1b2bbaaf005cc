"""The benchmarks run at a tiny size and check values; how long anything takes is not asserted."""

import itertools
import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks import __main__ as program
from benchmarks import core, gpu, report, scaling, timing, workloads
from benchmarks.problem import Problem, expected, expected_in_parts
from torchrecmetrics import Interactions

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

MULTIPLES = {"hand-written loop", "PyG", "RecBole-style", "recometrics", "ranx", "torcheval", "torchmetrics"}


@pytest.fixture(scope="module")
def kept():
    cases = report.run_rows(workloads.ROWS, rounds=1, tiny=True, data=workloads.DATA, memory=False)
    kept = {"date": "2026-11-28", "commit": "c1727c2", "machine": timing.machine(), "cases": cases}
    return json.loads(json.dumps(kept))


def test_every_row_checks_values(kept):
    """All our labels are checked, and those of peers with our definition; bare operations have no value to check."""
    assert {case["id"] for case in kept["cases"]} == workloads.ROWS.keys()
    seen = set()
    for case in kept["cases"]:
        checked = {one["name"]: one["checked"] for one in case["contenders"]}
        if case["case"] != "one update" and "tied" not in case["case"]:  # no value; other rules for ties
            assert checked["ours"] == {"one-row": 1, "comparisons": 2}.get(case["id"], 18)
            same_values = MULTIPLES | {"ours", "NumPy, mean and error"}
            same_values |= {f"MetricCollection from {how}" for how in ("tensors", "ranks", "a ranking")}
            assert {name for name, count in checked.items() if count} == same_values & set(checked)
        seen |= set(checked) | set(case["not_installed"])
        assert all(one["rounds"] == 1 and one["median_ms"] > 0 for one in case["contenders"])
    assert seen >= MULTIPLES


def test_goals():
    """A goal limits the median of the ratios of each round; its text has the ratio of the minima and the verdict."""
    times = {"a": [6.0, 9.0, 7.0], "b": [2.0, 1.0, 2.0]}
    judged = report.judge(workloads.Goal("a", 3, "b", stretch=4, at_least=True), times)
    assert report.goal_text(judged) == "a / b 3.50 (goal >= 3, stretch 4, of minima 6.00) ok"
    assert report.goal_text(report.judge(workloads.Goal("a", 3, "b"), times)).endswith("MISSED")
    assert timing.ratio([1.0, 20.0, 3.0], [1.0, 10.0]) == 1.5


def test_a_wrong_value_is_not_timed():
    """A contender whose values differ from the reference stops the run."""
    case = next(workloads.scores_rows(True, workloads.DATA))
    wrong = workloads.Contender("wrong", lambda: {"HR@5": 0.5})
    with pytest.raises(ValueError, match=r"scores far, T = 1: wrong has HR@5 = 0\.5, expected"):
        report.run_case(replace(case, contenders=[case.contenders[0], wrong]), rounds=1)


def test_what_is_missing_is_reported(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "torcheval.metrics.functional", None)
    result = report.run_case(next(workloads.scores_rows(True, workloads.DATA)), rounds=1)
    assert "torcheval" in result["not_installed"]
    assert "torcheval             not installed" in report.text_of(result)
    (result,) = report.run_rows(["gowalla"], rounds=1, tiny=False, data=tmp_path)
    assert result == {"id": "gowalla", "skipped": f"no Gowalla in {tmp_path}: pass --data"}
    assert "gowalla: skipped, no Gowalla" in capsys.readouterr().out


def test_contenders_take_turns():
    """Every round runs all contenders, in changing order; a contender with a limit runs in that many rounds only."""
    order = []
    runs = {name: lambda name=name: order.append(name) for name in "abc"}
    times = timing.interleave(runs, rounds=3, limits={"b": 2})
    rounds = "".join(order[:3]), "".join(order[3:6]), "".join(order[6:])
    assert list(map(sorted, rounds)) == [["a", "b", "c"], ["a", "b", "c"], ["a", "c"]]
    assert rounds[0] != rounds[1]  # no contender always follows the same one
    assert [len(taken) for taken in times.values()] == [3, 2, 3]


@pytest.mark.parametrize(("step", "rounds"), [(1e-7, 1_000), (0.0102, 35), (0.051, 30), (0.21, 15), (2.0, 5)])
def test_what_is_quick_goes_on(monkeypatch, step, rounds):
    """Quick contenders run up to 1,000 rounds within a second, others 30 within 8 seconds, and all at least 5."""
    clock = itertools.count()  # advances with each call
    monkeypatch.setattr(timing.time, "perf_counter", lambda: step * next(clock))
    assert len(timing.interleave({"a": lambda: None})["a"]) == rounds


def test_table(kept, tmp_path):
    """The table has one line per main case, and nothing outside the marks of the page changes.

    Ours is in milliseconds, the others are multiples.
    """
    file, page = tmp_path / "here.json", tmp_path / "page.md"
    file.write_text(json.dumps(kept))
    page.write_text("\n".join(["before", report.MARKS[0], "what was there", report.MARKS[1], "after"]))
    for _ in range(2):
        report.write_page([file], page)
    text = page.read_text()
    assert text.startswith(f"before\n{report.MARKS[0]}\n\n{report.slower(kept)}".rstrip())
    assert text.endswith(f"\n\n{report.MARKS[1]}\nafter")
    assert "what was there" not in text
    table = [line for line in text.partition("\n\n## On a CPU\n\n")[2].splitlines() if line.startswith("|")][2:]
    main = [case for case in kept["cases"] if report.is_main(case)]
    for case, line in zip(main, table, strict=True):
        ours, _, others = line.split(" | ")[2:]
        assert re.fullmatch(r"\*\*[\d,.]+ ms\*\*", ours), line
        assert all(re.search(rf"{re.escape(name)} [\d,.]+", others) for name in case["times_ours"]), line


SHARES = {"PyG": 0.8, "torch.topk": 0.5, "one read": 0.1, "RecBole-style": 1.0, "hand-written loop": 0.4}


def test_slower_cases_are_named():
    """A table names the cases of the page in which others are faster, except bare reads and ties of 1."""
    slow = {"id": "growth", "case": "B = 16", "workload": "scores [16, 3706]", "times_ours": SHARES}
    other = {"id": "scores", "case": "far, T = 20", "times_ours": SHARES}  # not on the page
    skipped = {"id": "gowalla", "skipped": "no data"}
    first, *table = report.slower({"cases": [slow, other, skipped]}).splitlines()

    assert first == "In 1 of 1 CPU rows, another is faster than torchrecmetrics:"
    assert table[-1] == "| scores [16, 3706] | PyG 1.25, torch.topk 2.00, hand-written loop 2.50 |"


def test_page_shows_what_is_kept():
    """The tables of the page are those of the committed results."""
    text = report.PAGE.read_text()
    begin, end = (text.index(mark) for mark in report.MARKS)
    assert text[begin + len(report.MARKS[0]) : end] == report.section()


def test_scaling(tmp_path, capsys):
    """Each panel holds every contender's cost at every size, and the plot is drawn from the file alone."""
    panels = {"items": [400, 800], "rows": [1, 4], "relevant": [1, 30], "metrics": [1, 30]}
    measured = list(scaling.measure(panels, rounds=1, items=400, rows=8))
    for panel in measured:
        assert "torchrecmetrics" in panel["us_per_row"]
        assert {len(cost) for cost in panel["us_per_row"].values()} == {2}
    pytest.importorskip("matplotlib")
    (tmp_path / "scaling.json").write_text(json.dumps({"fixed": "tiny", "panels": measured}))
    scaling.main(tmp_path, plot_only=True)
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_counts_of_the_core(capsys):
    """The functions, files, device calls, parameters and lines are printed beside their limits."""
    core.main(["--tiny", "--rounds", "1"])
    text = capsys.readouterr().out

    assert all(f"({limit})" in text for limit in core.LIMITS.values())
    assert text.count("  hand-written loop ") == 6


def test_views_are_no_device_calls():
    with core.DeviceCalls() as calls:
        torch.ones(3, 1).view(-1).sum()

    assert calls.names[-1] == "sum.default"
    assert not any("view" in name for name in calls.names)


def check_rows_of_a_card(cases, ours):
    """Check that peers and ours, in each way to count that `ours` names, have all been compared with float64."""
    assert {case["id"] for case in cases} == gpu.ROWS.keys()
    seen = set()
    for case in cases:
        checked = {one["name"]: one["checked"] for one in case["contenders"]}
        labels = {"all metrics": 23, "whole list": 2, "first 100": 6}.get(case["case"], 18)
        assert all(checked[name] == labels for name in ours)
        assert {name for name, count in checked.items() if count} == ({"PyG", "RecBole-style"} | ours) & set(checked)
        assert case["goals"] or case["case"] == "float32"
        seen |= set(checked)
    assert seen >= {gpu.RATE, gpu.COPY, "one read", "matmul + topk", "PyG", "RecBole-style", "ours, graph replay"}


@pytest.fixture(scope="module")
def small():
    """Results of the rows of a GPU at a tiny size, on the CPU where there is no GPU."""
    return report.run_rows(gpu.ROWS, rounds=1, tiny=True, data=workloads.DATA, memory=True)


def test_rows_of_a_card(small):
    ours = {"ours"} if gpu.best(gpu.device(True)) == "eager" else {"ours", "ours, eager"}
    check_rows_of_a_card(small, ours)


def test_rows_of_a_card_in_the_interpreter(tmp_path):
    """The rows of a GPU run with interpreted Triton kernels, beside eager, in a process that reads the variable."""
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "benchmarks", "--tiny", "--rounds", "1", "--only", *gpu.ROWS]
    env = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    out = ["--out", str(tmp_path / "g.json")]
    done = subprocess.run(command + out, cwd=report.ROOT, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    kept = json.loads((tmp_path / "g.json").read_text())
    check_rows_of_a_card(kept["cases"], {"ours", "ours, eager"})
    assert all("ours by triton kernels" in case["workload"] for case in kept["cases"])


def test_rows_of_a_card_without_one(monkeypatch, capsys, tmp_path):
    """Without a GPU one reason is printed for all its rows, nothing is measured, and no results are replaced."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    program.main(["--only", "card-scores", "card-1M-items", "--out", str(tmp_path / "g.json")])
    assert capsys.readouterr().out.count("card-scores, card-1M-items: skipped, no CUDA device") == 1
    cases = json.loads((tmp_path / "g.json").read_text())["cases"]
    assert cases == [{"id": id, "skipped": "no CUDA device"} for id in ("card-scores", "card-1M-items")]
    program.main(["--device", "cuda"])
    assert f"{', '.join(gpu.ROWS)}: skipped, no CUDA device" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["g.json"]


def test_a_second_machine_on_the_page(kept, small, tmp_path):
    """Results of a GPU have a table of their own after the CPU's."""
    card = {"device": "NVIDIA H200", "capability": "9.0", "memory_gb": 150.1, "driver": "580.1", "cuda": "13.0"}
    other = kept | {"machine": kept["machine"] | card, "cases": small}
    assert report.file_for(other["machine"]).name == "nvidia-h200.json"
    assert report.header(other["machine"]).startswith("NVIDIA H200 (compute capability 9.0, 150 GB, driver 580.1, CUDA")
    files = [tmp_path / "cpu.json", tmp_path / "nvidia-h200.json"]
    for file, results in zip(files, (kept, other), strict=True):
        file.write_text(json.dumps(results))
    text = report.section(files)
    order = ["| ranks | ranks int64", "| card-scores | scores float32", "NVIDIA H200 (compute"]
    assert [*map(text.index, order)] == sorted(map(text.index, order))
    assert "## On a GPU: NVIDIA H200" in text


def test_a_case_that_does_not_fit_is_left_out(monkeypatch, capsys):
    """A case that does not fit, or runs out of memory, is reported with its reason, and the next case is run."""
    full = replace(next(workloads.scores_rows(True, workloads.DATA)), contenders=[], skipped="needs 900 GB")

    def out_of_memory():
        raise torch.cuda.OutOfMemoryError("pretended")

    def row(tiny, data):
        yield full
        case = next(workloads.scores_rows(tiny, data))
        greedy = workloads.Contender("greedy", out_of_memory)
        yield replace(case, contenders=[case.contenders[0], greedy])
        yield replace(case, contenders=[greedy], goals=[])

    monkeypatch.setitem(report.ROWS, "scores", row)
    first, second, third = report.run_rows(["scores"], rounds=1, tiny=True, data=workloads.DATA, memory=False)
    assert first["skipped"] == "needs 900 GB"
    assert ([one["name"] for one in second["contenders"]], second["absent"]) == (["ours"], {"greedy": "out of memory"})
    assert third["skipped"] == "ours ran out of memory"
    assert "greedy                out of memory" in capsys.readouterr().out


def test_measured_on_a_card(monkeypatch):
    """On a GPU the memory that PyTorch counts is shown and judged, and times are taken when the GPU is done."""
    waits, allocated = [], iter(range(0, 10**12, 2**20))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(1))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: next(allocated))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: next(allocated))
    case = replace(next(workloads.scores_rows(True, workloads.DATA)), device="cuda")
    result = report.run_case(replace(case, goals=[workloads.Goal("ours", 0.5, memory=True)]), rounds=2)
    assert all(one["memory_mb"] == 1 for one in result["contenders"])
    assert [report.goal_text(goal) for goal in result["goals"]] == ["ours, MB added 1.00 (goal <= 0.5) MISSED"]
    assert len(waits) >= 2 * sum(one["rounds"] for one in result["contenders"])


def test_a_row_that_does_not_fit_a_card_says_what_it_needs(monkeypatch):
    monkeypatch.setattr(gpu, "free_cuda_memory", lambda: 10**9)

    assert gpu.lacks(torch.device("cuda"), 2e9) == "needs 2 GB of the card's memory, 1 GB are free"
    assert gpu.lacks(torch.device("cuda"), 1e9) is None


def test_large_catalogues_are_expected_in_parts():
    """Values computed in parts equal those from all scores at once, with history, wherever the catalogue is cut."""
    torch.manual_seed(0)
    ids = gpu.apart(20, 30, 500, torch.device("cpu"))
    assert all(len(row.unique()) == 30 for row in ids)
    target, history = (Interactions.from_padded(part, 500) for part in (gpu.ragged(ids[:, :9], 1), ids[:, 9:]))
    items = torch.randn(500, 8)
    users = items[ids[:, :3]].sum(1)
    whole = Problem(target, history, users=users, items=items)
    for problem in (whole, whole.some(torch.tensor([3, 7, 8]))):
        wanted = expected(problem)
        for numbers in (100, 5_000, 10**6):
            found = expected_in_parts(problem, numbers)
            assert found.keys() == wanted.keys()
            assert all(np.allclose(found[label], wanted[label]) for label in wanted)
    gpu.matmul_topk(replace(whole, history=None), at_once=100)()
    with pytest.raises(ValueError, match="whole rows"):
        gpu.matmul_topk(whole, at_once=100)
