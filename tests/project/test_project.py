"""Files agree about the project's address, version, extras, paths and numbers."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import torchrecmetrics as trm
from benchmarks import gpu, report
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
    paths = [
        *ROOT.glob("*.md"),
        ROOT / "CITATION.cff",
        ROOT / "pyproject.toml",
        ROOT / "docs/conf.py",
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob(".github/**/*.*"),
    ]
    named = re.compile(r"OWNER|github\.com/\w+/torchrecmetrics|\w+\.github\.io/torchrecmetrics")
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert not named.findall(text), path
        assert not re.findall(r"\]\(/", text), path


def targets_in(text):
    """Return where the links and pictures of a text lead."""
    return re.findall(r"\]\(([^)]+)\)", text) + re.findall(r'src(?:set)?="([^"]+)"', text)


def test_links_of_readme():
    """Links and pictures of README lead to files of the repository or to other sites."""
    assert all(target.startswith("https://") or (ROOT / target).is_file() for target in targets_in(README))


def test_page_of_pypi(tmp_path):
    """With an address in `pyproject.toml`, links and pictures of a wheel's page lead to the tag's files."""
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name in ("README.md", "LICENSE", "torchrecmetrics/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    kinds = iter(("blob", "raw"))
    settings = re.sub(
        r"(?<=replacement = ')[^']*", lambda _: rf"\1https://made.up/{next(kinds)}/v$HFPR_VERSION/", settings
    )
    (tmp_path / "pyproject.toml").write_text(settings, encoding="utf-8")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel"], cwd=tmp_path, check=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    page = zipfile.ZipFile(wheel).read(f"torchrecmetrics-{trm.__version__}.dist-info/METADATA").decode()

    assert all(target.startswith("https://") for target in targets_in(page))
    assert f"](https://made.up/blob/v{trm.__version__}/docs/benchmarks.md)" in page
    assert f'src="https://made.up/raw/v{trm.__version__}/docs/pictures/doors-light.svg"' in page


def numbers_in(text):
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


RESULTS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in report.RESULTS.glob("*.json")}
BULLETS = [" ".join(part.split()) for part in README.split("\n- ")]


def test_speeds_of_readme():
    """The numbers of README's sentence on speed are those of the committed results."""
    cases = [case for case in RESULTS["cpu"]["cases"] if "skipped" not in case and report.is_main(case)]
    (case,) = [case for case in cases if case["case"] == "far, T = 1"]
    times, median = case["times_ours"], case["contenders"][0]["median_ms"]
    slower = [faster for case in cases if (faster := report.faster(case))]
    most = [max(row.get(name, 0) for row in slower) for name in ("hand-written loop", "torch.topk", "torchmetrics")]
    (bullet,) = [part.partition("), ")[2] for part in BULLETS if "512 x 50,000" in part]

    shares = [round(times["torch.topk"], 1), round(times["PyG"], 1), round(times["torchmetrics"])]
    counts = [len(slower), len(cases), *(round(multiple, 1) for multiple in most)]
    assert numbers_in(bullet) == [6, 5, 10, 20, 512, 50_000, round(median), *shares, *counts]


def test_days_of_measurements():
    """README says the day and the commit of the committed results, of the CPU and of the card."""
    for name in ("cpu", "nvidia-h100-80gb-hbm3"):
        assert any(f"({report.measured(RESULTS[name])})" in bullet for bullet in BULLETS)


def test_intervals_of_readme():
    """The shares of held intervals in README are those of the page on standard errors."""
    page = (ROOT / "docs" / "explanations" / "standard-errors.md").read_text(encoding="utf-8")
    held = [float(share) for share in re.findall(r"^\| NDCG@10 \| [\d ]+% \| ([\d.]+) \|", page, re.M)]
    (bullet,) = [part for part in BULLETS if "NDCG@10 covered" in part]
    assert numbers_in(bullet) == [95, 10, min(held), max(held), 200]


QUERIES = [0.9, 0.8, 0.7], [0.1, 0.2, 0.3]  # targets at ranks 1 and 3


def test_table_of_readme():
    """The numbers under "here" in README's table of differences; those of others are in tests/test_peers.py."""
    zeros, item = torch.zeros(1, 50), torch.tensor([0])
    ranks = torch.tensor([[1, 20, 21]])
    mrr = trm.MRR()
    for scores in QUERIES:
        mrr.update(trm.Sessions(torch.tensor(scores), torch.tensor([1, 0, 0]), torch.tensor([0, 0, 0])))
    values = [
        *(1, trm.HR(1)(zeros, item), 10, trm.NDCG(10)(zeros, item)),
        trm.MRR()(zeros[:, :5], item),
        trm.MAP(10)(trm.Ranks(ranks, complete=True)),
        *(1, trm.Precision(1)(torch.tensor([[-0.1, -0.2, -0.3]]), item)),
        mrr.compute(),
    ]
    cells = [row.split("|")[2] for row in README[README.index("| case |") :].split("\n\n")[0].splitlines()[2:]]
    shown = [number for cell in cells for number in numbers_in(cell)]
    assert shown == pytest.approx([*map(float, values)], abs=6e-5)


FOLDERS = r"\.ci|\.github|benchmarks|conformance|docs|examples|tests|torchrecmetrics"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def paths_in(text):
    """Return the paths of files of the repository that a text names."""
    return re.findall(rf"(?<![\w./-])(?:{FOLDERS})/[\w./-]*\w", text)


def test_paths_on_pages():
    """Paths of the repository that a page names, and modules named from the package's folder, exist."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        paths = paths_in(text) + re.findall(r"`([\w/]+/(?:\w+\.py)?)`", text)
        bases = (ROOT, ROOT / "torchrecmetrics")
        assert not sorted({path for path in paths if not any((base / path).exists() for base in bases)}), page


def extra(name):
    """Return the packages of an extra, those of the extras that it includes among them."""
    packages = set()
    for requirement in SETTINGS["project"]["optional-dependencies"][name]:
        if included := re.match(r"torchrecmetrics\[(.*)\]", requirement):
            packages.update(*map(extra, included[1].split(",")))
        else:
            packages.add(re.match(r"[\w-]+", requirement)[0].replace("-", "_"))
    return packages


def test_recorded_cards_have_results():
    """Triton is taken by itself on cards alone of which the results are in benchmarks/results."""
    kept = [json.loads(path.read_text()) for path in (ROOT / "benchmarks" / "results").glob("nvidia-*.json")]
    capabilities = {results["machine"]["capability"] for results in kept}
    assert {f"{major}.{minor}" for major, minor in kernels._RECORDED} == capabilities
    assert all({case["id"] for case in results["cases"]} == gpu.ROWS.keys() for results in kept)


def test_version_is_one():
    """Changelog and citation have the package's version; changes since the last release are under "Unreleased"."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version = trm.__version__
    heading = "Unreleased" if "dev" in version else rf"{re.escape(version)} - \d{{4}}-\d\d-\d\d"
    assert re.fullmatch(heading, re.search(r"^## (.+)$", changelog, re.M)[1])
    assert f"version = {{{version}}}," in README
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(rf"^version: {re.escape(version)}$", citation, re.M)
