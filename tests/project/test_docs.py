"""Examples in docstrings and example programs run; README and the pages of docs are tested in test_pages.py."""

import doctest
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import torchrecmetrics as trm
from torchrecmetrics.metrics import names

ROOT = Path(__file__).parents[2]


def test_examples_in_docstrings_print_what_they_show():
    modules = [importlib.import_module(info.name) for info in pkgutil.walk_packages(trm.__path__, "torchrecmetrics.")]
    results = {module.__name__: doctest.testmod(module) for module in modules}

    assert not {name for name, result in results.items() if result.failed}
    assert sum(result.attempted for result in results.values()) >= 100


METRICS = sorted({cls.__name__ for cls in names._CLASSES.values()})
PAGES = ROOT / "docs" / "reference" / "metrics"


def test_every_metric_has_a_page_and_no_other_page_is_there():
    assert sorted(path.stem for path in PAGES.glob("*.md")) == METRICS


def test_the_table_of_metrics_names_every_page():
    table = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| \[(\w+)\]\(metrics/\1\.md\)", table, re.M)) == METRICS


def test_every_page_of_a_metric_is_in_the_contents_of_the_site():
    table = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    assert table.endswith(":glob:\n\nmetrics/*\n```\n")


@pytest.mark.parametrize("name", METRICS)
def test_the_page_of_a_metric_shows_its_class(name):
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")

    assert page.startswith(f"# {name}\n")
    assert f".. autoclass:: torchrecmetrics.{name}\n" in page


@pytest.mark.parametrize("name", METRICS)
def test_lines_of_the_example_of_a_metric_fit_the_page(name):
    lines = [line.strip() for line in inspect.getdoc(getattr(trm, name)).splitlines()]
    assert not [line for line in lines if line.startswith(">>>") and len(line) > 86]


@pytest.mark.parametrize("name", sorted({*METRICS} - {"MedianRank"}))
def test_the_example_of_a_metric_says_in_a_comment_how_its_value_comes_about(name):
    assert "metric.compute()  #" in inspect.getdoc(getattr(trm, name))


EXAMPLES = {  # arguments for a short run, and what must be printed
    "ray_parquet.py": (
        [],
        ["one process, 80,000 rows", "the same numbers" if importlib.util.find_spec("ray") else "Ray is not installed"],
    ),
    "sharded_evaluation.py": (
        [],
        [
            "2,000 users on every process, 2,500 of 5,000 items on the first",
            "evaluate            HR@10 0.5286  NDCG@10 0.1375  HR@100 0.9012  NDCG@100 0.2190  AUROC 0.7733",
            "update(ItemShard)   HR@10 0.5286  NDCG@10 0.1375  HR@100 0.9012  NDCG@100 0.2190  AUROC 0.7733",
            "items [4519, 4918, 2158]",
        ],
    ),
    "sasrec_lightning.py": (
        ["--epochs", "1"],
        ["generated data: 2,000 users", "epoch   1  loss", "popularity", "NDCG@10"],
    ),
    "generative_retrieval.py": (
        ["--epochs", "1", "--users", "300"],
        ["SemanticIds(300 items, 230 codes", "epoch  1", "items, shared codes tied  Recall@10 ", "popularity  "],
    ),
    "kge_pyg.py": (
        ["--epochs", "2"],
        ["225 entities, 6 relations, 2,029 triples", "untrained", "epoch   2", "AdjustedHR@10/tail"],
    ),
    "lightgcn_pyg.py": (
        ["--epochs", "2", "--out", "{folder}/curve.png"],
        ["epoch   1  loss", "popularity", "LightGCN", "RPrecision"],
    ),
}
ON_TWO_PROCESSES = {"sharded_evaluation.py"}
NOT_NIGHTLY = {"sasrec_lightning.py"}


def test_every_example_is_run():
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(EXAMPLES)


def run_example(name, arguments, folder):
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if name in ON_TWO_PROCESSES else []
    program = [sys.executable, *run, ROOT / "examples" / name, *arguments]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return subprocess.run(program, cwd=folder, capture_output=True, text=True, timeout=200, env=environment)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in NOT_NIGHTLY else pytest.param(name, marks=pytest.mark.nightly) for name in EXAMPLES]
)
def test_examples(name, tmp_path):
    """Without data, each prints its table, no warning and no progress bar, and leaves no file behind."""
    arguments, printed = EXAMPLES[name]
    work, out = tmp_path / "work", tmp_path / "out"
    work.mkdir(), out.mkdir()
    done = run_example(name, [argument.format(folder=out) for argument in arguments], work)

    assert done.returncode == 0, done.stderr
    assert not [text for text in printed if text not in done.stdout]
    assert not re.search(r"[\r\x1b\u2501]|it/s|examples/\w+\.py:\d+: UserWarning", done.stdout + done.stderr)
    assert not list(work.iterdir())


WALKS = {user: [(user * 7 + step * 3) % 20 + 1 for step in range(6)] for user in range(1, 9)}  # all of 20 items
FORMATS = {  # MovieLens' u.data, and lines of "user item item ..."
    "u.data": "\n".join(
        f"{user}\t{item}\t5\t{step // 2}" for user, items in WALKS.items() for step, item in enumerate(items)
    ),
    "sequences": "\n".join(" ".join(map(str, [user, *items])) for user, items in WALKS.items()),
}


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("name", FORMATS)
def test_sasrec_reads_both_formats(name, tmp_path):
    (tmp_path / "data").write_text(FORMATS[name])
    done = run_example("sasrec_lightning.py", ["--data", tmp_path / "data", "--epochs", "1"], tmp_path)

    assert "8 users, 20 items, 48 events" in done.stdout, done.stderr
    assert "Test, 8 users" in done.stdout


@pytest.mark.nightly
@pytest.mark.slow
def test_a_checkpoint_of_sasrec_gives_the_same_table_on_two_processes(tmp_path):
    """The sampler of two processes repeats one of 47 users."""
    walks = [[user, *((user + step * 7) % 30 + 1 for step in range(5 + user % 3))] for user in range(1, 48)]
    (tmp_path / "walks.txt").write_text("\n".join(" ".join(map(str, walk)) for walk in walks))
    common = ["--data", tmp_path / "walks.txt", "--epochs", "2", "--batch-size", "8"]
    trained = run_example("sasrec_lightning.py", [*common, "--out", tmp_path / "best"], tmp_path)
    assert trained.returncode == 0, trained.stderr
    (checkpoint,) = (tmp_path / "best").glob("*.ckpt")
    tested = run_example("sasrec_lightning.py", [*common, "--checkpoint", checkpoint, "--devices", "2"], tmp_path)
    assert tested.returncode == 0, tested.stderr
    tables = [done.stdout[done.stdout.index("Test, 47 users") :] for done in (trained, tested)]

    assert tables[0] == tables[1]
    assert tables[0].count("\n") == 11
