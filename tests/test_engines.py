"""Tallies over files in Ray, Spark, DuckDB and Dask equal those of one process."""

import ast
import shutil
import subprocess
import sys

import pytest

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")

import pyarrow.parquet as pq  # noqa: E402

from torchrecmetrics import arrow  # noqa: E402

ROWS, FILES, WIDE = 40_000, 8, 20
NAMES, K = ["HR", "NDCG", "MRR", "MAP", "Precision", "Recall"], [5, 10, 20]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Write eight files of lists of twenty items, each with one to three relevant items and one that is not listed."""
    folder, rng = tmp_path_factory.mktemp("lists"), np.random.default_rng(0)
    for number in range(FILES):
        steps = rng.integers(1, 100, (ROWS // FILES, WIDE))
        lists = rng.permuted(steps.cumsum(1), axis=1).tolist()  # distinct items
        first = rng.integers(0, WIDE, len(lists)).tolist()
        target = [[*items[rank : rank + 3], 10_000] for items, rank in zip(lists, first, strict=True)]
        table = pa.table({"item_ids": lists, "target": target})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=2_000)
    return folder


@pytest.fixture(scope="module")
def one_process(files):
    """Return the tally of all files, made in this process."""
    return arrow.tally(pq.read_table(files), NAMES, K)


def totals(tallies):
    """Return the sums of the counts and of the sums of all tallies."""
    tallies = tallies.cast(arrow.SCHEMA)
    return [np.sum(tallies[name].to_pylist(), axis=0).tolist() for name in ("counts", "sums")]


def near(tally):
    """Return the counts, and the sums, which compare equal to others within 1e-12 of their own."""
    counts, sums = totals(tally)
    return [counts, pytest.approx(sums, rel=1e-12)]


def run(script, *paths):
    """Run a script in a process of its own; return what it prints."""
    command = [sys.executable, "-c", script % (NAMES, K), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


RAY = """
import os, signal, sys
from functools import partial
import pyarrow as pa, pyarrow.parquet, ray
from torchrecmetrics import arrow

def killed_once(table, flag, **how):
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return arrow.tally(table, **how)
    os.kill(os.getpid(), signal.SIGKILL)

files, out, flag = sys.argv[1:]
ray.init(num_cpus=2, object_store_memory=100 * 2**20, include_dashboard=False, log_to_driver=False)
ray.data.DataContext.get_current().enable_progress_bars = False
data = ray.data.read_parquet(files, override_num_blocks=8)
how = {"metrics": %r, "k": %r}
tallies = data.map_batches(partial(killed_once, flag=flag, **how), batch_format="pyarrow", batch_size=None)
pa.parquet.write_table(pa.concat_tables(ray.get(tallies.to_arrow_refs())), out)

@ray.remote
def streamed(path):
    batches = pa.parquet.ParquetFile(path, pre_buffer=False).iter_batches(use_threads=False)
    return list(arrow.tally(batches, **how))

paths = sorted(os.path.join(files, name) for name in os.listdir(files))
tallies = [tally for of_file in ray.get([streamed.remote(path) for path in paths]) for tally in of_file]
print(arrow.merge(tallies, **how).floats())
ray.shutdown()
"""


def test_ray_replaces_a_killed_worker_and_counts_no_row_twice(files, one_process, tmp_path):
    pytest.importorskip("ray", reason="RAY WAS NOT TESTED: pip install --group engines")
    flag, out = tmp_path / "killed", tmp_path / "tallies.parquet"
    printed = run(RAY, files, out, flag)

    assert flag.exists()
    assert totals(pq.read_table(out)) == near(one_process)
    assert ast.literal_eval(printed.splitlines()[-1]) == pytest.approx(arrow.merge(one_process, NAMES, K).floats())


SPARK = """
import os, sys
from functools import partial
from pyspark.sql import SparkSession
import pyarrow.parquet as pq
from torchrecmetrics import arrow

files, out = sys.argv[1:]
os.environ["PYSPARK_PYTHON"] = sys.executable
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = spark.config("spark.driver.host", "127.0.0.1").getOrCreate()
tallies = spark.read.parquet(files).mapInArrow(partial(arrow.tally, metrics=%r, k=%r), arrow.SCHEMA_DDL)
pq.write_table(tallies.toArrow(), out)
spark.stop()
"""


def test_spark_gets_the_values_of_one_process(files, one_process, tmp_path):
    pytest.importorskip("pyspark", reason="SPARK WAS NOT TESTED: pip install --group engines")
    if shutil.which("java") is None:
        pytest.skip("SPARK WAS NOT TESTED: there is no Java on this machine")
    out = tmp_path / "tallies.parquet"
    run(SPARK, files, out)

    assert totals(pq.read_table(out)) == near(one_process)


def test_tallies_of_one_file_after_another_add_up(files, one_process):
    tallies = []
    for path in sorted(files.iterdir()):
        stream = pq.ParquetFile(path, pre_buffer=False).iter_batches(use_threads=False)
        tallies += arrow.tally(stream, NAMES, K)

    assert totals(pa.Table.from_batches(tallies)) == near(one_process)


def test_a_stream_of_duckdb_is_tallied(files, one_process):
    duckdb = pytest.importorskip("duckdb", reason="DUCKDB WAS NOT TESTED: pip install --group engines")
    reader = duckdb.sql(f"select item_ids, target from '{files}/*.parquet'").to_arrow_reader(10_000)

    assert totals(pa.Table.from_batches(arrow.tally(reader, NAMES, K))) == near(one_process)


def test_dask_tallies_a_file_per_task(files, one_process):
    dask = pytest.importorskip("dask", reason="DASK WAS NOT TESTED: pip install --group engines")
    read, tally = dask.delayed(pq.read_table), dask.delayed(arrow.tally)
    tallies = [tally(read(path), NAMES, K) for path in sorted(files.iterdir())]

    assert totals(pa.concat_tables(dask.compute(*tallies, scheduler="threads", num_workers=2))) == near(one_process)
