"""Our values of `conformance/*.json`, the cases that any library can be tried with, and the files themselves."""

import importlib.util
import json
import math
import re
from importlib import metadata
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
    assert f"holds {number} small cases" in PAGE


@pytest.mark.nightly
def test_table_of_peers(capsys):
    """The page's table is what the installed versions give; scikit-learn agrees with all ties, ranx without ties."""
    peers = program("peers")
    told = re.search(r"^\| cases \|.*?\n\n", PAGE, re.M | re.S)[0]
    for peer, version in re.findall(r"([\w-]+) (\d[\w.]+) \|", told.partition("\n")[0]):
        if version not in [found.version for found in metadata.distributions(name=peer)]:
            pytest.skip(f"the table has {peer} {version}")
    peers.main()
    assert capsys.readouterr().out.startswith(told)
