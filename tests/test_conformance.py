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
INPUTS = [pytest.param(given, id=f"{topic}: {given['name']}") for topic in TOPICS for given in TOPICS[topic]["inputs"]]


def our_values(given, case, device):
    """Return our value of each row, None where there is none, and the mean."""
    options = dict(case["options"])
    duplicates = options.pop("duplicates", "error")
    overlap = options.pop("overlap", "error")
    cutoff = {} if case["k"] is None else {"k": case["k"]}
    metric = getattr(trm, case["metric"])(**cutoff, **options, overlap=overlap, validate_args=False)
    collection = trm.RecMetricCollection({"value": metric}, accumulators=[trm.KeptRows()]).to(device)
    columns = {"target": padded(given["target"], -1, torch.int64)}
    if "gains" in given:
        columns["gains"] = padded(given["gains"], 0.0, torch.float32)
    if "exclude" in given:
        columns["exclude"] = padded(given["exclude"], -1, torch.int64)
    columns = {name: column.to(device) for name, column in columns.items()}
    if "scores" in given:
        scores = torch.tensor([[*map(float, row)] for row in given["scores"]], device=device)
        rows = trm.Scores(scores, **columns)
    else:
        lists = padded(given["lists"], -1, torch.int64).to(device)
        rows = trm.Lists(lists, **columns, complete=True, duplicates=duplicates)
    collection.update(rows)
    mean = collection.compute()["value"].item()
    values = dict(zip(collection.rows.ids.tolist(), collection.rows.values["value"].tolist(), strict=True))
    values = [values.get(row, math.nan) for row in range(len(given["target"]))]
    return [None if math.isnan(value) else value for value in values], None if math.isnan(mean) else mean


@pytest.mark.parametrize("given", INPUTS)
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_our_values(given, device):
    """Every value of a row, and the mean, are those of the definitions in plain Python."""
    for case in given["cases"]:
        values, mean = our_values(given, case, device)
        told = f"{case['metric']}, k = {case['k']}, {case['options']}"
        assert values == [None if v is None else pytest.approx(v, abs=1e-12) for v in case["values"]], told
        assert mean == (None if case["mean"] is None else pytest.approx(case["mean"], abs=1e-12)), told


def program(name):
    """Return a program of the folder as a module."""
    spec = importlib.util.spec_from_file_location(f"conformance_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_files_are_those_of_the_definitions():
    """Nobody wrote a value by hand."""
    make = program("make")
    assert sorted(TOPICS) == sorted(make.TOPICS)
    for topic in TOPICS:
        assert (FOLDER / f"{topic}.json").read_text(encoding="utf-8") == make.text_of(topic), topic


def test_the_page_has_the_number_of_cases():
    number = sum(len(given["cases"]) for topic in TOPICS.values() for given in topic["inputs"])
    assert f"\n{number} small cases with known values" in PAGE


RUN = [sys.executable, str(FOLDER / "run.py")]


def test_metrics_of_a_file_are_run(tmp_path):
    """Functions of a file are compared with the values of the cases for them; a difference exits with 1."""
    (tmp_path / "wrong.py").write_text("def MRR(scores, target, k):\n    return 2.0\n")
    done = subprocess.run([*RUN, str(tmp_path / "wrong.py")], capture_output=True, text=True)
    assert done.returncode == 1
    assert re.search(r"^distinct +0 equal, \d+ different\n  distinct, .*: MRR, k = 1: 2.0000, not ", done.stdout)
    (tmp_path / "none.py").write_text("def helper(scores, target, k):\n    return 2.0\n")
    done = subprocess.run([*RUN, str(tmp_path / "none.py")], capture_output=True, text=True)
    assert (done.returncode, set(re.findall(r"\d+ equal, \d+ different", done.stdout))) == (0, {"0 equal, 0 different"})


def test_metrics_with_gains_are_run(tmp_path):
    """A fourth argument takes the gains: the plain definition of DCG agrees where nothing is tied, excluded or NaN."""
    (tmp_path / "dcg.py").write_text(
        "from math import log2\n\n\ndef DCG(scores, target, k, gains):\n"
        "    ranks = [1 + sum(score > scores[item] for score in scores) for item in target]\n"
        "    return sum(gain / log2(1 + rank) for gain, rank in zip(gains, ranks) if rank <= (k or rank))\n"
    )
    done = subprocess.run([*RUN, str(tmp_path / "dcg.py")], capture_output=True, text=True)
    assert re.search(r"^distinct +[1-9]\d* equal, 0 different\n", done.stdout)
    assert re.search(r"^gains +[1-9]\d* equal, ", done.stdout, re.M)


@pytest.mark.nightly
def test_table_of_peers(capsys):
    """The rows of the page's table are what the installed versions give; scikit-learn agrees with all ties."""
    program("peers").main()
    printed = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    versions = re.findall(r"^\| ([\w-]+ \d[\w.]+) \|", PAGE, re.M)
    known = [row for row in printed if row.split("|")[1].strip() in versions]
    assert known
    assert [row for row in known if row not in PAGE.splitlines()] == []
