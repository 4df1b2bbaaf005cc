"""Our values of `conformance/*.json`, the cases that any library can be tried with, and the files themselves."""

import importlib.util
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rankings import padded

import torchrecmetrics as trm

FOLDER = Path(__file__).parents[1] / "conformance"
PAGE = (FOLDER.parent / "docs" / "explanations" / "conformance.md").read_text(encoding="utf-8")
TOPICS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}
CASES = [
    pytest.param(given, case, id=f"{topic}, {given['name']}: {case['metric']}, k = {case['k']}, {case['options']}")
    for topic in TOPICS
    for given in TOPICS[topic]["inputs"]
    for case in given["cases"]
]


def input_of(given, duplicates, device):
    fillers = {"target": (-1, torch.int64), "gains": (0.0, torch.float32), "exclude": (-1, torch.int64)}
    columns = {name: padded(given[name], *filler).to(device) for name, filler in fillers.items() if name in given}
    if "scores" in given:
        return trm.Scores(torch.tensor([[*map(float, row)] for row in given["scores"]], device=device), **columns)
    lists = padded(given["lists"], -1, torch.int64).to(device)
    return trm.Lists(lists, **columns, complete=True, duplicates=duplicates)


@pytest.mark.parametrize(("given", "case"), CASES)
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_our_values_are_those_of_the_definitions(given, case, device):
    """The values of all rows, NaN where a row has none, and their mean."""
    options = {"overlap": "error", **case["options"], "validate_args": False}
    duplicates = options.pop("duplicates", "error")
    cutoff = {} if case["k"] is None else {"k": case["k"]}
    metric = getattr(trm, case["metric"])(**cutoff, **options)
    collection = trm.RecMetricCollection({"value": metric}, accumulators=[trm.KeptRows()]).to(device)
    collection.update(input_of(given, duplicates, device))
    mean, rows = collection.compute()["value"].item(), collection.rows
    kept = dict(zip(rows.ids.tolist(), rows.values["value"].tolist(), strict=True))
    values = [kept.get(row, math.nan) for row in range(len(given["target"]))]

    expected = [math.nan if value is None else value for value in [*case["values"], case["mean"]]]
    assert [*values, mean] == pytest.approx(expected, abs=1e-12, nan_ok=True)


def program(name):
    """Return a program of the folder as a module."""
    spec = importlib.util.spec_from_file_location(f"conformance_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_files_are_those_that_the_program_makes_of_the_definitions():
    """Nobody wrote a value by hand."""
    make = program("make")

    files = {topic: (FOLDER / f"{topic}.json").read_text(encoding="utf-8") for topic in TOPICS}
    assert files == {topic: make.text_of(topic) for topic in make.TOPICS}


def test_the_page_has_the_number_of_cases():
    assert f"\n{len(CASES)} small cases with known values" in PAGE


def run(file, text):
    """Return what `run.py` does with the metrics of a file with this text."""
    file.write_text(text)
    return subprocess.run([sys.executable, FOLDER / "run.py", file], capture_output=True, text=True)


def test_a_metric_with_a_wrong_value_is_named_and_exits_with_1(tmp_path):
    done = run(tmp_path / "wrong.py", "def MRR(scores, target, k):\n    return 2.0\n")

    assert done.returncode == 1
    assert re.search(r"^distinct +0 equal, \d+ different\n  distinct, .*: MRR, k = 1: 2.0000, not ", done.stdout)


DCG = """
from math import log2

def DCG(scores, target, k, gains):
    ranks = [1 + sum(score > scores[item] for score in scores) for item in target]
    return sum(gain / log2(1 + rank) for gain, rank in zip(gains, ranks) if rank <= (k or rank))
"""


def test_a_fourth_argument_takes_the_gains(tmp_path):
    """The plain definition of DCG agrees where nothing is tied, excluded or NaN."""
    printed = run(tmp_path / "dcg.py", DCG).stdout

    assert re.search(r"^distinct +[1-9]\d* equal, 0 different\n", printed)
    assert re.search(r"^gains +[1-9]\d* equal, ", printed, re.M)


@pytest.mark.nightly
def test_the_table_of_the_page_is_that_of_the_installed_versions(capsys):
    program("peers").main()
    printed = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    versions = re.findall(r"^\| ([\w-]+ \d[\w.]+) \|", PAGE, re.M)
    known = [row for row in printed if row.split("|")[1].strip() in versions]

    assert known
    assert not {*known} - {*PAGE.splitlines()}
