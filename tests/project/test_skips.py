"""No test skips for ever: what README's environment lacks is installed by a stage of `.ci/nightly`."""

import ast
import re
import sys

import pytest
import skips
from pages import PAGES, ROOT, blocks

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DISTRIBUTIONS = {
    "ignite": "pytorch-ignite",
    "replay": "replay-rec",
    "sklearn": "scikit-learn",
    "tgb": "py-tgb",
    "yaml": "pyyaml",
    "pytrec-eval": "pytrec-eval-terrier",
}
"""Names of distributions that differ from those of their modules."""
WITH_PYTORCH = {"numpy", "torch", "tomli"}


def of_groups(*names):
    """Return the distributions of dependency groups and, for `all`, of all extras."""
    requirements = [each for name in names for each in SETTINGS["dependency-groups"].get(name, [])]
    if "all" in names:
        requirements += [each for extra in SETTINGS["project"]["optional-dependencies"].values() for each in extra]
    included = [each["include-group"] for each in requirements if isinstance(each, dict)]
    found = {re.match(r"[\w-]+", each)[0].lower().replace("_", "-") for each in requirements if isinstance(each, str)}
    return found | (of_groups(*included) if included else set())


def skippable():
    """Return the modules without which a test, or a block of a page, skips."""
    modules = {name for page in PAGES for block in blocks(page) for name in block.needs}
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args and ast.unparse(node.func) in ("pytest.importorskip", "peer"):
                modules |= {node.args[0].value} if isinstance(node.args[0], ast.Constant) else set()
    return {module.partition(".")[0] for module in modules}


def distribution(module):
    name = module.lower().replace("_", "-")
    return DISTRIBUTIONS.get(name, name)


def test_a_package_without_which_a_test_skips_is_in_the_environment_of_readme_or_of_a_nightly_stage():
    by_readme = of_groups("all", "test") | of_groups("docs") | WITH_PYTORCH
    assert {module for module in skippable() if distribution(module) not in by_readme} <= skips.PACKAGES.keys()


def test_stages_of_nightly_install_what_is_listed_for_them():
    nightly, engines = (ROOT / ".ci" / "nightly").read_text(encoding="utf-8"), of_groups("engines")
    of_peers = [distribution(module) for module, stage in skips.PACKAGES.items() if stage == "peers"]

    assert {module for module, stage in skips.PACKAGES.items() if stage == "engines"} <= engines
    assert not [name for name in of_peers if not re.search(rf"(?<![\w-]){name}\b", nightly)]


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("SKIPPED [15] tests/metrics/test_list_peers.py:47: rectools.metrics is not installed", "peers"),
        ("SKIPPED [1] tests/pyg/test_triples.py:271: could not import 'pykeen.evaluation': No module named", "peers"),
        ("SKIPPED [1] tests/test_engines.py:135: SPARK WAS NOT TESTED: pip install --group engines", "engines"),
        ("SKIPPED [1] tests/helpers/pages.py:111: docs/none.md:77: needs optuna, which is not installed", "peers"),
        ("SKIPPED [24] tests/gpu/test_scores.py:32: no CUDA device", "card"),
        ("SKIPPED [1] tests/test_cli.py:16: could not import 'pandas': No module named 'pandas'", None),
    ],
)
def test_the_reason_of_a_skip_says_where_the_test_runs(line, place):
    assert skips.place_of(line) == place


@pytest.mark.parametrize(("place", "status"), [("card", True), ("data", False)])
def test_a_test_that_skips_where_it_must_run_fails_the_check(place, status):
    assert skips.main([place], ["SKIPPED [24] tests/gpu/test_scores.py:32: no CUDA device"]) is status
