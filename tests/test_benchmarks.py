"""The benchmarks run at a tiny size and check values; how long anything takes is not asserted."""

import json
import sys
from dataclasses import replace

import pytest

from benchmarks import __main__ as program
from benchmarks import report, scaling, timing, workloads

MULTIPLES = {"PyG", "RecBole-style", "recometrics", "ranx", "torcheval", "torchmetrics"}


@pytest.fixture(scope="module")
def kept():
    cases = report.run_rows(workloads.ROWS, rounds=1, tiny=True, data=workloads.DATA, memory=False)
    return json.loads(json.dumps({"machine": timing.machine(), "cases": cases}))


def test_every_row_checks_values(kept):
    """Ours gives all labels, every peer at least the ones that mean the same; bare operations give none."""
    assert [case["id"] for case in kept["cases"]] == ["C1"] * 4 + ["C2"] * 2 + ["C3", "C4"]
    seen = set()
    for case in kept["cases"]:
        checked = {one["name"]: one["checked"] for one in case["contenders"]}
        assert checked["ours"] == 18 + (case["case"] == "with AUROC")
        assert {name for name, count in checked.items() if count} == (MULTIPLES | {"ours"}) & set(checked)
        seen |= set(checked) | set(case["not_installed"])
        assert all(one["rounds"] == 1 and one["median_ms"] > 0 for one in case["contenders"])
    assert seen >= MULTIPLES


def test_goals(kept):
    """Every case has its goals, told with their limits."""
    goals = {(case["id"], case["case"]): [report.goal_text(goal) for goal in case["goals"]] for case in kept["cases"]}
    assert "ours / torch.topk" in goals["C1", "near, T = 1"][0]
    assert "(goal <= 0.6, stretch 0.33" in goals["C1", "near, T = 1"][0]
    assert any(text.startswith("ours, ms") for text in goals["C4", "from ranks"])
    judged = report.judge(workloads.Goal("a", 3, "b", at_least=True), {"a": [6.0, 9.0, 7.0], "b": [2.0, 1.0, 2.0]})
    assert judged["value"] == 3.5
    assert judged["met"]
    assert not report.judge(workloads.Goal("a", 3, "b"), {"a": [6.0], "b": [1.0]})["met"]


def test_a_wrong_value_is_not_timed():
    """A contender whose numbers are not the reference's stops the run."""
    case = next(workloads.c1(True, workloads.DATA))
    wrong = workloads.Contender("wrong", lambda: {"HR@5": 0.5})
    with pytest.raises(ValueError, match=r"C1 far, T = 1: wrong has HR@5 = 0\.5, expected"):
        report.run_case(replace(case, contenders=[case.contenders[0], wrong]), rounds=1)


def test_a_missing_peer_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "torcheval.metrics.functional", None)
    result = report.run_case(next(workloads.c1(True, workloads.DATA)), rounds=1)
    assert "torcheval" in result["not_installed"]
    assert "torcheval             not installed" in report.text_of(result)


def test_missing_data_is_reported(tmp_path, capsys):
    (result,) = report.run_rows(["C3"], rounds=1, tiny=False, data=tmp_path)
    assert result == {"id": "C3", "skipped": f"no Gowalla in {tmp_path}: pass --data"}
    assert "C3: skipped, no Gowalla" in capsys.readouterr().out


def test_contenders_take_turns():
    """Each round begins with the next one; one with a limit leaves after its rounds."""
    order = []
    runs = {name: lambda name=name: order.append(name) for name in "abc"}
    times = timing.interleave(runs, rounds=3, limits={"b": 2})
    assert "".join(order) == "abc" + "bca" + "ca"
    assert [len(taken) for taken in times.values()] == [3, 2, 3]


def test_ratio_is_taken_within_rounds():
    assert timing.ratio([1.0, 20.0, 3.0], [1.0, 10.0]) == 1.5


def test_memory_is_measured():
    """Numbers where Linux's counter can be reset, None elsewhere; for all that have run."""
    added = report.memory_of("C4", 0, True, workloads.DATA)
    assert "ours" in added
    assert all(mb is None or mb >= 0 for mb in added.values())


def test_table(kept, tmp_path):
    """A column for each case, ours in milliseconds, the others as multiples; nothing outside the marks changes."""
    file, readme = tmp_path / "here.json", tmp_path / "README.md"
    file.write_text(json.dumps(kept))
    readme.write_text("\n".join(["before", report.MARKS[0], "old", report.MARKS[1], "after"]))
    for _ in range(2):
        report.write_readme([file], readme)
    text = readme.read_text()
    assert text.startswith(f"before\n{report.MARKS[0]}\n\n|  | C1 far, T = 1 | ")
    assert text.endswith(f"\n\n{report.MARKS[1]}\nafter")
    assert "old" not in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in table} == {len(kept["cases"]) + 2}
    assert table[2].startswith("| **torchrecmetrics** | **")


def test_readme_shows_what_is_kept():
    """README's table is the one that the committed results give."""
    text = (report.ROOT / "README.md").read_text()
    begin, end = (text.index(mark) for mark in report.MARKS)
    assert text[begin + len(report.MARKS[0]) : end] == report.section()


def test_command_line(tmp_path, capsys):
    program.main(["--tiny", "--only", "C4", "--rounds", "1", "--no-memory", "--out", str(tmp_path / "c4.json")])
    kept = json.loads((tmp_path / "c4.json").read_text())
    assert [case["id"] for case in kept["cases"]] == ["C4"]
    assert kept["machine"]["versions"]["torch"] in capsys.readouterr().out


def test_scaling(tmp_path, capsys):
    """Each panel holds every contender's cost at every size; the plot is drawn from the file alone."""
    panels = {"items": [400, 800], "rows": [1, 4], "relevant": [1, 30], "metrics": [1, 30]}
    measured = list(scaling.measure(panels, rounds=1, items=400, rows=8))
    for panel in measured:
        assert "torchrecmetrics" in panel["us_per_row"]
        assert {len(cost) for cost in panel["us_per_row"].values()} == {2}
    pytest.importorskip("matplotlib")
    (tmp_path / "scaling.json").write_text(json.dumps({"fixed": "tiny", "panels": measured}))
    scaling.main(tmp_path, plot_only=True)
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")
