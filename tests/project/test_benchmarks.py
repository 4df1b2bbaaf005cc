"""The benchmarks run at a tiny size and check values; how long anything takes is not asserted."""

import itertools
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks import core, gpu, report, timing, workloads
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
        ours, others = line.split(" | ")[1:]
        assert re.match(r"\*\*[\d,.]+ ms\*\*", ours), line
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
