"""What is said of the project in several files is said alike: address, version, licence; the README is one screen."""

import re
import sys
from pathlib import Path

import pytest

import torchrecmetrics as trm

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ADDRESS = PROJECT["urls"]["Repository"]
SITE = PROJECT["urls"]["Documentation"]


def test_one_address():
    """The repository and the site have one address each, wherever they are named; a placeholder until there is one."""
    host, owner, name = re.fullmatch(r"https://(github\.com)/(\w+)/(\w+)", ADDRESS).groups()
    assert name == "torchrecmetrics"
    allowed = (ADDRESS, SITE, f"https://raw.githubusercontent.com/{owner}/{name}/main/")
    named = re.compile(
        rf"https://(?:{host}|raw\.githubusercontent\.com)/\w+/torchrecmetrics[^\s)\"'>`]*|https://\w+\.github\.io[^\s)\"'>`]*"
    )
    files = [
        ROOT / name
        for name in ("README.md", "mkdocs.yml", "CITATION.cff", "SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md")
    ]
    for path in [*files, *(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.*")]:
        wrong = [url for url in named.findall(path.read_text(encoding="utf-8")) if not url.startswith(allowed)]
        assert not wrong, path


def test_readme_is_one_screen():
    """At most 120 lines; whole addresses only, since package indexes show it too; pages of the site that exist."""
    assert README.count("\n") <= 120
    targets = re.findall(r"\]\(([^)]+)\)", README)
    assert not [target for target in targets if not target.startswith("https://")]
    for target in targets:
        if target.startswith(SITE):
            page = target.removeprefix(SITE).partition("#")[0].strip("/")
            assert any((ROOT / "docs" / f).exists() for f in (f"{page}.md", f"{page}/index.md")), target
        elif "raw.githubusercontent.com" in target:
            assert (ROOT / target.partition("/main/")[2]).is_file()


def test_readme_has_the_metrics():
    """Every metric stands in the table."""
    assert not [name for name in trm.metrics.__all__ if f"`{name}`" not in README]


def test_two_commands():
    """One installs and runs the example, one installs and runs the tests, which is what CI takes from here."""
    commands = re.findall(r"^python -m pip install .*$", README, re.M)
    assert [command.rpartition("&& ")[2] for command in commands] == [
        "python examples/sasrec_lightning.py",
        "python -m pytest",
    ]
    assert README[: README.index(commands[1])].endswith("<!-- test command -->\n<!-- not run: installs -->\n```bash\n")
    assert "<!-- test command -->" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_no_run_on_a_card_is_claimed():
    """Until a card is on record, one sentence does not say what the GPU does."""
    from torchrecmetrics import kernels

    assert not kernels._RECORDED
    for text in (PROJECT["description"], trm.__doc__, README, (ROOT / "mkdocs.yml").read_text(encoding="utf-8")):
        assert "GPU" not in text


def test_version_is_one():
    """Not a release, until tagged: then changelog and citation bear its number and a date."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version, date = re.search(r"^## (\S+) \((.+)\)$", changelog, re.M).groups()
    assert version == trm.__version__
    assert (date == "unreleased") == ("dev" in version)
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(rf"^version: {re.escape(version)}$", citation, re.M)
