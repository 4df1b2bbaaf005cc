"""Files agree about the project's address and version, internal names stay internal, and the README is one screen."""

import json
import re
import sys
from pathlib import Path

import pytest

import torchrecmetrics as trm
from benchmarks import gpu
from torchrecmetrics import kernels

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_no_address_that_does_not_exist():
    """The repository has no address yet: no file names one, and links inside the repository are relative."""
    names = ["README.md", "CITATION.cff", "SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md", "pyproject.toml"]
    paths = [
        *map(ROOT.joinpath, names),
        ROOT / "docs/conf.py",
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob(".github/**/*.*"),
    ]
    named = re.compile(r"OWNER|github\.com/\w+/torchrecmetrics|\w+\.github\.io/torchrecmetrics")
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert not named.findall(text), path
        assert not re.findall(r"\]\(/", text), path


def test_readme_is_one_screen():
    """README has at most 120 lines and names every metric; links lead to files of the repository or other sites."""
    assert README.count("\n") <= 120
    assert not [name for name in trm.metrics.__all__ if f"`{name}`" not in README]
    targets = re.findall(r"\]\(([^)]+)\)", README)
    assert not [target for target in targets if not target.startswith("https://") and not (ROOT / target).is_file()]


def test_badges():
    """The badges of README say what pyproject.toml says."""
    badges = re.findall(r"^!\[(.*?)\]\(https://img\.shields\.io/badge/", README, re.M)
    oldest, license = SETTINGS["project"]["requires-python"].removeprefix(">="), SETTINGS["project"]["license"]
    assert badges[:3] == [f"License: {license}", f"Python: {oldest} or newer", "Typed: mypy strict"]
    assert SETTINGS["tool"]["mypy"]["strict"]
    assert (ROOT / "torchrecmetrics" / "py.typed").is_file()


def test_internal_names_are_not_public():
    """Internal names, such as those of options, needs and cached tensors, are in no `__all__`."""
    internal = {"Evaluator", "Layout", "Needs", "Options", "RankedItems", "ScoreRows", "Targets", "derived"}
    for path in (ROOT / "torchrecmetrics").rglob("*.py"):
        for names in re.findall(r"^__all__ = (.*?\])", path.read_text(encoding="utf-8"), re.M | re.S):
            assert not internal & set(re.findall(r'"(\w+)"', names)), path


def test_two_commands():
    """README has one command that installs and runs the example, and one for the tests, which CI takes from README."""
    commands = re.findall(r"^python -m pip install .* && .*$", README, re.M)
    assert [command.rpartition("&& ")[2] for command in commands] == [
        "python examples/sasrec_lightning.py",
        "python -m pytest -n auto",
    ]
    assert README[: README.index(commands[1])].endswith("<!-- test command -->\n<!-- not run: installs -->\n```bash\n")
    assert "<!-- test command -->" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_recorded_cards_have_results():
    """Triton is taken by itself on cards alone of which the results are in benchmarks/results."""
    kept = [json.loads(path.read_text()) for path in (ROOT / "benchmarks" / "results").glob("nvidia-*.json")]
    capabilities = {results["machine"]["capability"] for results in kept}
    assert {f"{major}.{minor}" for major, minor in kernels._RECORDED} == capabilities
    assert all({case["id"] for case in results["cases"]} == gpu.ROWS.keys() for results in kept)


def test_version_is_one():
    """Changelog and citation have the package's version; the changelog has a date unless it is a dev version."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version, date = re.search(r"^## (\S+) \((.+)\)$", changelog, re.M).groups()
    assert version == trm.__version__
    assert (date == "unreleased") == ("dev" in version)
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(rf"^version: {re.escape(version)}$", citation, re.M)
