"""Run cases, print their results, and write the tables of docs/benchmarks.md from the saved results."""

from __future__ import annotations

import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

import benchmarks
from benchmarks import gpu, workloads
from benchmarks.timing import interleave, peak_cuda_memory, peak_memory, ratio
from benchmarks.workloads import Case, Goal, Skip

ROWS = workloads.ROWS | gpu.ROWS

ROOT = Path(benchmarks.__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
OTHERS = ("machine_code", "scaling")  # results files that do not hold rows of the table
#: Cases that are shown on the page, beside all cases of these rows; the other cases are only in the results file.
MAIN_ROWS = {"small-catalogues", "growth"}
MAIN = {
    "scores far, T = 1",
    "scores near, T = 1",
    "scores near, T = 20",
    "embeddings from embeddings",
    "gowalla Gowalla",
    "ranks from ranks",
    "scores near, tied, T = 1",
    "scores near, tied, T = 20",
    "lists from lists, T = 1",
    "lists from lists, T = 50",
    "one-row one update",
    "metric-collections in a MetricCollection",
}
MARKS = "<!-- benchmarks: written by `python -m benchmarks table` -->", "<!-- end of benchmarks -->"


# ---------------------------------------------------------------------------------------------------------- measure


def run_case(case: Case, rounds: int | None = None, seconds: float = 8.0) -> dict[str, Any]:
    """Check the values of every contender, then time all contenders.

    Raises:
        ValueError: if the values of a contender differ from the reference.
    """
    on_card = case.device == "cuda"
    rows = {one.name: one.rows or case.rows for one in case.contenders}
    limits = {one.name: one.max_rounds for one in case.contenders if one.max_rounds is not None}
    absent = {one.name: one.absent for one in case.contenders if one.absent is not None}
    peaks: dict[str, float] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of the other packages
        checked = check(case, absent)
        runs = {one.name: one.run for one in case.contenders if one.run is not None and one.name not in absent}
        for name, run in list(runs.items()):
            try:
                if on_card:
                    peaks[name] = peak_cuda_memory(run)
                elif name not in limits:
                    run()
            except torch.cuda.OutOfMemoryError:
                if name == case.contenders[0].name:
                    raise
                absent[name] = "out of memory"
                del runs[name]
        wait = torch.cuda.synchronize if on_card else lambda: None
        times = interleave(runs, rounds=rounds, seconds=seconds, limits=limits, wait=wait)
    # the time of a contender that ran on only a part of the rows is scaled up to all rows
    times = {name: [t * case.rows / rows[name] for t in taken] for name, taken in times.items()}
    contenders: list[dict[str, Any]] = [
        {
            "name": name,
            "median_ms": 1e3 * statistics.median(taken),
            "min_ms": 1e3 * min(taken),
            "rounds": len(taken),
            "rows": rows[name],
            "checked": checked[name],
        }
        for name, taken in times.items()
    ]
    for one in contenders:
        if one["name"] in peaks:
            one["memory_mb"] = peaks[one["name"]]
    result: dict[str, Any] = {
        "id": case.id,
        "case": case.name,
        "workload": case.text,
        "contenders": contenders,
        "not_installed": [one.name for one in case.contenders if one.run is None and one.absent is None],
        "absent": absent,
        "times_ours": {name: ratio(taken, times["ours"]) for name, taken in times.items() if name != "ours"},
        "goals": [
            judge(goal, times) for goal in case.goals if not goal.memory and {goal.top, goal.bottom} <= {*runs, None}
        ],
    }
    if on_card:
        _judge_memory(result, case, peaks)
    return result


def check(case: Case, absent: dict[str, str]) -> dict[str, int]:
    """Compare every contender's means with the reference; return how many were compared.

    Contenders that run out of memory are added to `absent`.
    """
    reference = case.expected()
    checked = {}
    for one in case.contenders:
        if one.run is None:
            continue
        try:
            values = (one.check or one.run)() or {}
        except torch.cuda.OutOfMemoryError:
            if one is case.contenders[0]:
                raise
            absent[one.name] = "out of memory"
            continue
        shared = values.keys() & reference.keys()
        if values and not shared:
            raise ValueError(f"{case.id} {case.name}: nothing to compare {one.name} with")
        for label in sorted(shared):
            wanted = float(reference[label][: None if one.check is not None else one.rows].mean())
            if not abs(values[label] - wanted) <= case.tolerance:
                raise ValueError(f"{case.id} {case.name}: {one.name} has {label} = {values[label]}, expected {wanted}")
        checked[one.name] = len(shared)
    return checked


def judge(goal: Goal, times: dict[str, list[float]]) -> dict[str, Any]:
    """Compare the measured times with a goal."""
    top = times[goal.top]
    if goal.bottom is None:
        return verdict(goal, f"{goal.top}, ms", 1e3 * statistics.median(top), 1e3 * min(top))
    bottom = times[goal.bottom]
    return verdict(goal, f"{goal.top} / {goal.bottom}", ratio(top, bottom), min(top) / min(bottom))


def verdict(goal: Goal, name: str, value: float, of_minima: float | None = None) -> dict[str, Any]:
    """Return a value together with its limit and whether it meets the limit."""

    def met(limit: float) -> bool:
        return value >= limit if goal.at_least else value <= limit

    return {
        "name": name,
        "value": value,
        "of_minima": of_minima,
        "sense": ">=" if goal.at_least else "<=",
        "limit": goal.limit,
        "stretch": goal.stretch,
        "met": met(goal.limit),
        "stretch_met": None if goal.stretch is None else met(goal.stretch),
    }


def memory_of(id: str, index: int, tiny: bool, data: Path) -> dict[str, float | None]:
    """Return the MB that each contender of one case adds, measured in a fresh process that holds only the inputs."""

    def nth(small: bool) -> Case:
        return next(case for at, case in enumerate(ROWS[id](small, data)) if at == index)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one in nth(True).contenders:  # load the code and start the threads first
            if one.run is not None:
                one.run()
        return {one.name: peak_memory(one.run) for one in nth(tiny).contenders if one.run is not None}


def add_memory(result: dict[str, Any], case: Case, index: int, tiny: bool, data: Path) -> None:
    """Measure the memory of a case in a separate process and add it to the result."""
    command = [sys.executable, "-m", "benchmarks", "memory", case.id, str(index), "--data", str(data)]
    # freed memory returns to the system at once, so that no contender reuses memory of the contender before it
    settings = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run(
        command + ["--tiny"] * tiny, cwd=ROOT, env=settings, capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        raise RuntimeError(f"measuring memory failed:\n{done.stderr}")
    added = json.loads(done.stdout.splitlines()[-1])
    for one in result["contenders"]:
        one["memory_mb"] = added[one["name"]]
    _judge_memory(result, case, added)


def _judge_memory(result: dict[str, Any], case: Case, added: Mapping[str, float | None]) -> None:
    result["goals"] += [
        verdict(goal, f"{goal.top}, MB added", mb)
        for goal in case.goals
        if goal.memory and (mb := added[goal.top]) is not None
    ]


def run_rows(
    ids: Iterable[str], rounds: int | None, tiny: bool, data: Path, memory: bool = True
) -> list[dict[str, Any]]:
    """Run rows of the table and print each case when it is finished."""
    ids, results = list(ids), []
    without = [id for id in ids if id in gpu.ROWS] if (missing := gpu.missing(tiny)) is not None else []
    if without:
        results += [{"id": id, "skipped": missing} for id in without]
        print(f"\n{', '.join(without)}: skipped, {missing}", flush=True)
    for id in ids:
        if id in without:
            continue
        try:
            index = 0
            for case in ROWS[id](tiny, data):
                reason = case.skipped
                try:
                    result = {} if reason is not None else run_case(case, rounds)
                except torch.cuda.OutOfMemoryError:
                    reason = "ours ran out of memory"
                if reason is not None:
                    results.append({"id": id, "case": case.name, "skipped": reason})
                    print(f"\n{id} {case.name}: skipped, {reason}", flush=True)
                else:
                    if memory and id not in gpu.ROWS:
                        add_memory(result, case, index, tiny, data)
                    results.append(result)
                    print(text_of(result), flush=True)
                index += 1  # noqa: SIM113 - enumerate would keep a case, and its memory, while the next one is made
                del case
        except Skip as why:
            results.append({"id": id, "skipped": str(why)})
            print(f"\n{id}: skipped, {why}", flush=True)
    return results


# ------------------------------------------------------------------------------------------------------------ print


def header(machine: dict[str, Any]) -> str:
    """Return the machine and the package versions as two lines of text."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{card_of(machine) or machine['device']}: {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['threads']} threads, OMP_WAIT_POLICY {machine['OMP_WAIT_POLICY']}, {machine['system']}, "
        f"Python {machine['python']}\n{versions}"
    )


def card_of(machine: dict[str, Any]) -> str | None:
    """Return a description of the GPU, or None if the machine's device is the CPU."""
    if machine["device"] == "cpu":
        return None
    return (
        f"{machine['device']} (compute capability {machine['capability']}, {machine['memory_gb']:.0f} GB, "
        f"driver {machine['driver']}, CUDA {machine['cuda']})"
    )


def file_for(machine: dict[str, Any]) -> Path:
    """Return the path of a machine's results file, for example `cpu.json` or `nvidia-h200.json`."""
    return RESULTS / (re.sub(r"[^a-z0-9]+", "-", machine["device"].lower()).strip("-") + ".json")


def text_of(result: dict[str, Any]) -> str:
    """Return the result of a case as text."""
    lines = [
        "",
        f"{result['id']} {result['case']}: {result['workload']}",
        f"  {'':22}{'median ms':>12}{'min ms':>12}{'x ours':>9}{'MB added':>10}{'rounds':>8}{'checked':>9}",
    ]
    for one in result["contenders"]:
        times = result["times_ours"].get(one["name"], 1.0)
        memory = one.get("memory_mb")
        scaled = "" if one["rows"] == result["contenders"][0]["rows"] else f"  on {one['rows']} rows, scaled up"
        lines.append(
            f"  {one['name']:22}{_number(one['median_ms']):>12}{_number(one['min_ms']):>12}{_number(times):>9}"
            f"{'-' if memory is None else _megabytes(memory):>10}{one['rounds']:>8}{one['checked'] or '-':>9}{scaled}"
        )
    lines += [f"  {name:22}not installed" for name in result["not_installed"]]
    lines += [f"  {name:22}{reason}" for name, reason in result["absent"].items()]
    lines += [f"  {result['id']} {result['case']}: {goal_text(goal)}" for goal in result["goals"]]
    return "\n".join(lines)


def goal_text(goal: dict[str, Any]) -> str:
    """Return a goal as text, with its value and whether the value meets it."""
    stretch = ""
    if goal["stretch"] is not None:
        stretch = f", stretch {goal['stretch']:g}{' met' if goal['stretch_met'] else ''}"
    minima = "" if goal["of_minima"] is None else f", of minima {_number(goal['of_minima'])}"
    return (
        f"{goal['name']} {_number(goal['value'])} (goal {goal['sense']} {goal['limit']:g}{stretch}{minima}) "
        f"{'ok' if goal['met'] else 'MISSED'}"
    )


def _number(value: float) -> str:
    """Format a number with about three significant digits and with commas between thousands."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _megabytes(value: float) -> str:
    """Format added memory: less than half a MB, or memory that was returned, is none."""
    return f"{max(0, round(value))} MB"


# ------------------------------------------------------------------------------------------------------------- page


def is_main(case: dict[str, Any]) -> bool:
    """Return True if a case is shown on the page."""
    return case["id"] in MAIN_ROWS or f"{case['id']} {case['case']}" in MAIN


def slower(kept: dict[str, Any]) -> str:
    """Return a table of the cases in which a package, the hand-written loop or `torch.topk` is faster, and how much."""
    shown = [case for case in kept["cases"] if "skipped" not in case and is_main(case)]
    table = ["| CPU row | who is faster, and how many times as fast |", "|---|---|"]
    for case in shown:
        if times := faster(case):
            names = ", ".join(f"{name} {_number(multiple)}" for name, multiple in times.items())
            table.append(f"| {_workload(case)} | {names} |")
    text = f"In {len(table) - 2} of {len(shown)} CPU rows, another is faster than torchrecmetrics:"
    return "\n".join([text, "", *table]) if len(table) > 2 else ""


def faster(case: dict[str, Any]) -> dict[str, float]:
    """Return how many times as fast as ours faster contenders are: those that compute the metrics, and `torch.topk`."""
    bare = {"one read", "product, kept buffer"}
    return {name: 1 / share for name, share in case["times_ours"].items() if share < 0.995 and name not in bare}


def measured(kept: dict[str, Any]) -> str:
    """Return the day and the commit of a machine's results, for example `26 November 2026, commit c1727c2`."""
    day = datetime.date.fromisoformat(kept["date"])
    return f"{day.day} {day:%B %Y}, commit {kept['commit']}"


def markdown(kept: dict[str, Any]) -> str:
    """Return the main cases of one machine as a table: our time in milliseconds, the others as multiples of it."""
    cases = [case for case in kept["cases"] if "skipped" not in case]
    if not cases:
        return f"No row was run on {card_of(kept['machine']) or kept['machine']['cpu']}."
    machine = kept["machine"]
    card = card_of(machine)
    main = [case for case in cases if card or is_main(case)] or cases
    table = [["workload", "time, memory added", "others, as multiples of the time"], ["---", "---", "---"]]
    for case in main:
        ours, *others = sorted(case["contenders"], key=lambda one: (one["name"] != "ours", one["checked"] > 0))
        memory = "" if ours.get("memory_mb") is None else f", {_megabytes(ours['memory_mb'])}"
        shares = ", ".join(_share(one, case, ours["rows"]) for one in others)
        table.append([_workload(case), f"**{_number(ours['median_ms'])} ms**{memory}", shares])
    versions = ", ".join(f"{name} {v}" for name, v in machine["versions"].items() if v != "not installed")
    threads = f"{machine['threads']} thread{'' if machine['threads'] == 1 else 's'}"
    where = f"{card or threads}, {machine['cpu']}, {machine['cores']} cores, Python {machine['python']}"
    return "\n".join([*("| " + " | ".join(row) + " |" for row in table), "", f"{measured(kept)}: {where}; {versions}."])


def _workload(case: dict[str, Any]) -> str:
    """Return the data of a case, and its metrics where they are not those of the page."""
    return str(case["workload"]).removesuffix(f"; {workloads.METRICS}")


def _share(contender: dict[str, Any], case: dict[str, Any], rows: int) -> str:
    """Return a contender's time as a multiple of ours; it says so if the time was scaled up from fewer rows."""
    share = f"{contender['name']} {_number(case['times_ours'][contender['name']])}"
    return share if contender["rows"] == rows else f"{share} (scaled up from {contender['rows']:,} rows)"


def write_page(files: list[Path] | None = None, page: Path = PAGE) -> None:
    """Replace the text between the page's marks by the tables of these files (by default, of all results files)."""
    text = page.read_text()
    begin, end = (text.index(mark) for mark in MARKS)
    page.write_text(text[: begin + len(MARKS[0])] + section(files) + text[end:])


def section(files: list[Path] | None = None) -> str:
    """Return the text between the page's marks: one table for each machine, CPUs first."""
    if files is None:
        files = [path for path in RESULTS.glob("*.json") if path.stem not in OTHERS]
    runs = [json.loads(path.read_text()) for path in sorted(files)]
    cpus = [kept for kept in runs if card_of(kept["machine"]) is None]
    cards = [kept for kept in runs if card_of(kept["machine"]) is not None]
    parts = [f"{slower(kept)}\n\n## On a CPU\n\n{markdown(kept)}".lstrip() for kept in cpus]
    parts += [f"## On a GPU: {kept['machine']['device']}\n\n{markdown(kept)}" for kept in cards]
    return "".join(f"\n\n{part}" for part in parts) + "\n\n"
