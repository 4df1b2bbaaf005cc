"""The benchmarks run at a tiny size and check values; how long anything takes is not asserted."""

import itertools
import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from benchmarks import core, gpu, report, timing, workloads
from benchmarks.problem import Problem, expected, expected_in_parts
from torchrecmetrics import Interactions

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


@pytest.fixture(scope="module")
def results():
    """Results of the rows of a CPU, as their file holds them."""
    cases = report.run_rows(workloads.ROWS, rounds=1, tiny=True, data=workloads.DATA, memory=False)
    results = {"date": "2026-11-28", "commit": "c1727c2", "machine": timing.machine(), "cases": cases}
    return json.loads(json.dumps(results))


def uncompared(cases):
    """Return the contenders of which no value was compared with the reference."""
    return {contender["name"] for case in cases for contender in case["contenders"] if not contender["checked"]}


def with_values(cases):
    """Leave out cases without a value, and those with ties, for which each package has a rule of its own."""
    return [case for case in cases if case["case"] != "one update" and "tied" not in case["case"]]


def test_all_values_of_ours_are_compared(results):
    """They are 18 in most rows: six metrics at three cut-offs."""
    numbers = {(case["id"], case["contenders"][0]["checked"]) for case in with_values(results["cases"])}
    assert numbers == set((dict.fromkeys(workloads.ROWS, 18) | {"one-row": 1, "comparisons": 2}).items())


def test_all_contenders_but_bare_operations_are_compared(results):
    bare = {"one read", "torch.topk", "product, kept buffer", "ours, items at random"}
    assert uncompared(with_values(results["cases"])) == bare


@pytest.mark.parametrize(
    ("goal", "text"),
    [
        (workloads.Goal("a", 3, "b", stretch=4, at_least=True), "(goal >= 3, stretch 4, of minima 6.00) ok"),
        (workloads.Goal("a", 3, "b"), "(goal <= 3, of minima 6.00) MISSED"),
    ],
)
def test_a_goal_limits_the_median_ratio_of_the_rounds(goal, text):
    three_rounds = {"a": [6.0, 9.0, 7.0], "b": [2.0, 1.0, 2.0]}  # ratios 3, 9 and 3.5; of the minima 6
    assert report.goal_text(report.judge(goal, three_rounds)) == f"a / b 3.50 {text}"


def case_of(*contenders):
    """Return a case of two rows, whose HR@5 are 1 and 0."""
    return workloads.Case("made", "up", "", 2, [*contenders], lambda: {"HR@5": np.array([1.0, 0.0])})


OURS = workloads.Contender("ours", lambda: {"HR@5": 0.5})


def test_a_contender_with_a_wrong_value_is_named_and_nothing_is_timed():
    timed = []
    ours = replace(OURS, run=lambda: timed.append("ours"), check=OURS.run)
    wrong = workloads.Contender("wrong", lambda: timed.append("wrong"), check=lambda: {"HR@5": 0.4})

    with pytest.raises(ValueError, match=r"made up: wrong has HR@5 = 0\.4, expected 0\.5"):
        report.run_case(case_of(ours, wrong), rounds=1)
    assert timed == []


def out_of_memory():
    raise torch.cuda.OutOfMemoryError("pretended")


GREEDY = workloads.Contender("greedy", out_of_memory)


def run(monkeypatch, *cases):
    monkeypatch.setitem(report.ROWS, "made", lambda tiny, data: iter(cases))
    return report.run_rows(["made"], rounds=1, tiny=True, data=workloads.DATA, memory=False)


def test_a_contender_that_runs_out_of_memory_is_absent(monkeypatch, capsys):
    (result,) = run(monkeypatch, case_of(OURS, GREEDY))

    assert result["absent"] == {"greedy": "out of memory"}
    assert "greedy                out of memory" in capsys.readouterr().out


def test_cases_that_do_not_fit_are_skipped_with_the_reason_and_the_next_is_run(monkeypatch):
    results = run(monkeypatch, replace(case_of(), skipped="needs 900 GB"), case_of(GREEDY), case_of(OURS))
    assert [result.get("skipped") for result in results] == ["needs 900 GB", "ours ran out of memory", None]


def test_the_contenders_of_two_rounds_follow_each_other_in_opposite_orders():
    order = []
    timing.interleave({name: partial(order.append, name) for name in "abc"}, rounds=2)

    assert sorted(order[:3]) == ["a", "b", "c"]
    assert order[3:] == order[2::-1]


def test_a_contender_with_a_limit_runs_in_that_many_rounds():
    times = timing.interleave({"a": lambda: None, "b": lambda: None}, rounds=3, limits={"b": 2})
    assert {name: len(seconds) for name, seconds in times.items()} == {"a": 3, "b": 2}


@pytest.mark.parametrize(("step", "rounds"), [(1e-7, 1_000), (0.0102, 35), (0.051, 30), (0.21, 15), (2.0, 5)])
def test_quick_contenders_run_more_rounds(monkeypatch, step, rounds):
    """Up to 1,000 rounds within a second; others 30 within 8 seconds, and all at least 5."""
    clock = itertools.count()  # advances with each call
    monkeypatch.setattr(timing.time, "perf_counter", lambda: step * next(clock))

    assert len(timing.interleave({"a": lambda: None})["a"]) == rounds


GROWTH = {
    "id": "growth",
    "case": "B = 16",
    "workload": "scores [16, 3706]",
    "contenders": [
        {"name": "PyG", "median_ms": 2.0, "rows": 8, "checked": 18},
        {"name": "ours", "median_ms": 2.5, "rows": 16, "checked": 18, "memory_mb": 3.2},
        {"name": "torch.topk", "median_ms": 1.25, "rows": 16, "checked": 0},
        {"name": "RecBole-style", "median_ms": 2.5, "rows": 16, "checked": 18},
    ],
    "times_ours": {"PyG": 0.8, "torch.topk": 0.5, "RecBole-style": 1.0, "one read": 0.1},
}
NOT_ON_THE_PAGE = {**GROWTH, "id": "scores", "case": "far, T = 20"}
SKIPPED = {"id": "gowalla", "skipped": "no data"}


def test_a_table_has_our_milliseconds_and_the_multiples_of_others():
    """Bare operations are named before what computes the metrics."""
    day, cases = {"date": "2026-11-28", "commit": "c1727c2"}, [GROWTH, NOT_ON_THE_PAGE, SKIPPED]
    lines = report.markdown({**day, "machine": timing.machine(), "cases": cases}).splitlines()

    others = "torch.topk 0.50, PyG 0.80 (scaled up from 8 rows), RecBole-style 1.00"
    assert lines[2:-2] == [f"| scores [16, 3706] | **2.50 ms**, 3 MB | {others} |"]


def test_cases_of_the_page_in_which_another_is_faster_are_named():
    """A bare read and ties of 1 are not."""
    first, *table = report.slower({"cases": [GROWTH, NOT_ON_THE_PAGE, SKIPPED]}).splitlines()

    assert first == "In 1 of 1 CPU rows, another is faster than torchrecmetrics:"
    assert table[-1] == "| scores [16, 3706] | PyG 1.25, torch.topk 2.00 |"


def test_tables_replace_what_is_between_the_marks_of_a_page(results, tmp_path):
    file, page, (begin, end) = tmp_path / "here.json", tmp_path / "page.md", report.MARKS
    file.write_text(json.dumps(results))
    page.write_text(f"before\n{begin}\nwhat was there\n{end}\nafter")
    for _ in range(2):
        report.write_page([file], page)

    assert page.read_text() == f"before\n{begin}{report.section([file])}{end}\nafter"


def test_the_page_shows_the_tables_of_the_kept_results():
    begin, end = report.MARKS
    assert f"{begin}{report.section()}{end}" in report.PAGE.read_text()


def test_the_core_is_printed_beside_its_limits_and_timed_beside_a_loop(capsys):
    core.main(["--tiny", "--rounds", "1"])
    text = capsys.readouterr().out

    assert all(f"({limit})" in text for limit in core.LIMITS.values())
    assert text.count("  hand-written loop ") == 3 * 2  # three catalogues, 1 and 20 relevant items


def test_views_are_no_device_calls():
    numbers = torch.ones(3, 1)
    with core.DeviceCalls() as calls:
        numbers.view(-1).sum()

    assert calls.names == ["sum.default"]


@pytest.fixture(scope="module")
def card_cases():
    """Results of the rows of a GPU at a tiny size, on the CPU where there is no GPU."""
    return report.run_rows(gpu.ROWS, rounds=1, tiny=True, data=workloads.DATA)


def test_all_values_of_ours_are_compared_on_a_card(card_cases):
    numbers = {case["case"]: case["contenders"][0]["checked"] for case in card_cases}
    others = {name: number for name, number in numbers.items() if number != 18}

    assert {case["id"] for case in card_cases} == gpu.ROWS.keys()
    assert others == {"all metrics": 23, "whole list": 2, "first 100": 6}


def test_all_contenders_but_bare_operations_are_compared_on_a_card(card_cases):
    bare = {gpu.RATE, gpu.COPY, "one read", "torch.topk", "product, kept buffer", "matmul + topk"}
    assert uncompared(card_cases) == bare | {"ours, counts alone", "ours, graph replay"}


def problem_with_history():
    """Return 20 users whose relevant items and history are 30 of 500 items."""
    torch.manual_seed(0)
    ids = gpu.apart(20, 30, 500, torch.device("cpu"))
    target, history = (Interactions.from_padded(part, 500) for part in (gpu.ragged(ids[:, :9], 1), ids[:, 9:]))
    items = torch.randn(500, 8)
    return Problem(target, history, users=items[ids[:, :3]].sum(1), items=items)


@pytest.mark.parametrize("numbers", [100, 5_000, 10**6])
def test_values_computed_in_parts_are_those_of_all_scores(numbers):
    problem, rows = problem_with_history(), [3, 7, 8]
    wanted = {label: values[rows] for label, values in expected(problem).items()}
    values = expected_in_parts(problem.some(torch.tensor(rows)), numbers)

    assert values.keys() == wanted.keys()
    assert all(np.allclose(values[label], wanted[label]) for label in wanted)


def test_a_topk_of_parts_masks_no_history():
    problem = problem_with_history()
    gpu.matmul_topk(replace(problem, history=None), at_once=100)()

    with pytest.raises(ValueError, match="whole rows"):
        gpu.matmul_topk(problem, at_once=100)
