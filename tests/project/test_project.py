"""Files agree about the project's address, version, paths and numbers."""

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

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDRESS = re.compile(r"OWNER|github\.com/\w+/torchrecmetrics|\w+\.github\.io/torchrecmetrics")


def test_no_file_names_an_address_of_the_repository():
    """It has none yet, and links inside the repository are relative."""
    patterns = ("*.md", "CITATION.cff", "pyproject.toml", "docs/conf.py", "docs/**/*.md", ".github/**/*.*")
    texts = {path: path.read_text(encoding="utf-8") for pattern in patterns for path in ROOT.glob(pattern)}

    assert not {path for path, text in texts.items() if ADDRESS.search(text) or "](/" in text}


def targets_in(text):
    """Return where the links and pictures of a text lead."""
    return re.findall(r"\]\(([^)]+)\)", text) + re.findall(r'src(?:set)?="([^"]+)"', text)


def test_links_and_pictures_of_readme_lead_to_files_or_other_sites():
    assert not [to for to in targets_in(README) if not to.startswith("https://") and not (ROOT / to).is_file()]


def test_links_of_the_page_on_pypi_lead_to_files_of_the_tag(tmp_path):
    """As soon as `pyproject.toml` has an address."""
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


def test_the_numbers_of_readmes_sentence_on_speed_are_those_of_the_committed_results():
    cases = [case for case in RESULTS["cpu"]["cases"] if "skipped" not in case and report.is_main(case)]
    (case,) = [case for case in cases if case["case"] == "far, T = 1"]
    times, median = case["times_ours"], case["contenders"][0]["median_ms"]
    slower = [faster for case in cases if (faster := report.faster(case))]
    most = [max(row.get(name, 0) for row in slower) for name in ("hand-written loop", "torch.topk", "torchmetrics")]
    (bullet,) = [part.partition("), ")[2] for part in BULLETS if "512 x 50,000" in part]

    shares = [round(times["torch.topk"], 1), round(times["PyG"], 1), round(times["torchmetrics"])]
    counts = [len(slower), len(cases), *(round(multiple, 1) for multiple in most)]
    assert numbers_in(bullet) == [6, 5, 10, 20, 512, 50_000, round(median), *shares, *counts]


def test_readme_says_the_day_and_the_commit_of_the_results_of_cpu_and_card():
    days = [f"({report.measured(RESULTS[name])})" for name in ("cpu", "nvidia-h100-80gb-hbm3")]
    assert not [day for day in days if not any(day in bullet for bullet in BULLETS)]


def test_intervals_of_readme_are_those_of_the_page_on_standard_errors():
    page = (ROOT / "docs" / "explanations" / "standard-errors.md").read_text(encoding="utf-8")
    held = [float(share) for share in re.findall(r"^\| NDCG@10 \| [\d ]+% \| ([\d.]+) \|", page, re.M)]
    (bullet,) = [part for part in BULLETS if "NDCG@10 covered" in part]

    assert numbers_in(bullet) == [95, 10, min(held), max(held), 200]


def test_the_values_of_ours_in_the_table_of_readme_are_those_that_metrics_give():
    """Those of others are in tests/test_peers.py."""
    zeros, item = torch.zeros(1, 50), torch.tensor([0])
    mrr = trm.MRR()
    for scores in ([0.9, 0.8, 0.7], [0.1, 0.2, 0.3]):  # targets at ranks 1 and 3
        mrr.update(trm.Sessions(torch.tensor(scores), torch.tensor([1, 0, 0]), torch.tensor([0, 0, 0])))
    values = [
        *(1, trm.HR(1)(zeros, item), 10, trm.NDCG(10)(zeros, item)),
        trm.MRR()(zeros[:, :5], item),
        trm.MAP(10)(trm.Ranks(torch.tensor([[1, 20, 21]]), complete=True)),
        *(1, trm.Precision(1)(torch.tensor([[-0.1, -0.2, -0.3]]), item)),
        mrr.compute(),
    ]
    cells = [row.split("|")[2] for row in README[README.index("| case |") :].split("\n\n")[0].splitlines()[2:]]

    assert [number for cell in cells for number in numbers_in(cell)] == pytest.approx([*map(float, values)], abs=6e-5)


FOLDERS = r"\.ci|\.github|benchmarks|conformance|docs|examples|tests|torchrecmetrics"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def missing_paths(page):
    """Return the paths that a page names, of the repository or the package, that do not exist."""
    text = page.read_text(encoding="utf-8")
    paths = re.findall(rf"(?<![\w./-])(?:{FOLDERS})/[\w./-]*\w", text) + re.findall(r"`([\w/]+/(?:\w+\.py)?)`", text)
    return {path for path in paths if not (ROOT / path).exists() and not (ROOT / "torchrecmetrics" / path).exists()}


def test_paths_on_pages_exist():
    assert not {page: missing for page in PAGES if (missing := missing_paths(page))}


def test_triton_is_taken_by_itself_on_cards_with_results_of_all_rows_alone():
    cards = [results for name, results in RESULTS.items() if name.startswith("nvidia-")]

    assert {results["machine"]["capability"] for results in cards} == {f"{a}.{b}" for a, b in kernels._RECORDED}
    assert [{case["id"] for case in results["cases"]} for results in cards] == [gpu.ROWS.keys()] * len(cards)


def test_the_changelog_ends_with_the_version_or_unreleased_changes():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = "Unreleased" if "dev" in trm.__version__ else rf"{re.escape(trm.__version__)} - \d{{4}}-\d\d-\d\d"

    assert re.fullmatch(heading, re.search(r"^## (.+)$", changelog, re.M)[1])


def test_readme_and_citation_have_the_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()

    assert f"version = {{{trm.__version__}}}," in README
    assert f"version: {trm.__version__}" in citation
