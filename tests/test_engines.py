"""Tallies over files in Ray, Spark, DuckDB, Polars and Dask equal those of one process."""

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
    """Write eight files of lists of twenty items, each with one to five relevant items."""
    folder, rng = tmp_path_factory.mktemp("lists"), np.random.default_rng(0)
    rows = ROWS // FILES
    for number in range(FILES):
        # twenty distinct items: steps of 1 to 99 from a random start, in random order
        lists = rng.integers(1, 100, (rows, WIDE)).cumsum(1) + rng.integers(0, 10_000, (rows, 1))
        lists = rng.permuted(lists, axis=1)
        lengths = rng.integers(1, 6, rows)
        offsets = np.concatenate([[0], lengths.cumsum()])
        row = np.repeat(np.arange(rows), lengths)
        place = np.arange(len(row)) - offsets[row] + rng.integers(0, 15, rows)[row]
        target = np.where(rng.random(len(row)) < 0.5, lists[row, place], 100_000 + place)
        columns = {
            "item_ids": pa.ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32) * WIDE, lists.ravel()),
            "target": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), target),
        }
        pq.write_table(pa.table(columns), folder / f"{number}.parquet", row_group_size=2_000)
    return folder


@pytest.fixture(scope="module")
def one_process(files):
    """Return the tally of all files, made in this process."""
    return arrow.tally(pq.read_table(files), NAMES, K)


def merged(tallies):
    return arrow.merge(tallies, NAMES, K).floats()


def same(tallies, one_process):
    """Assert that counts equal those of one process, and that sums are within 1e-12 of its sums."""
    tallies = tallies.cast(arrow.SCHEMA)
    counts = np.sum(tallies["counts"].to_pylist(), axis=0).tolist()
    assert counts == one_process["counts"][0].as_py()
    sums, expected = np.sum(tallies["sums"].to_pylist(), axis=0), one_process["sums"][0].as_py()
    assert sums == pytest.approx(expected, rel=1e-12)
    assert arrow.merge(tallies, NAMES, K).num_users == ROWS
    assert merged(tallies) == pytest.approx(merged(one_process), rel=1e-12)


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


def test_ray(files, one_process, tmp_path):
    """Two workers tally blocks or files; a worker that is killed is replaced, and no row counts twice."""
    pytest.importorskip("ray", reason="RAY WAS NOT TESTED: pip install --group engines")
    flag, out = tmp_path / "killed", tmp_path / "tallies.parquet"
    printed = run(RAY, files, out, flag)
    assert flag.exists()
    same(pq.read_table(out), one_process)
    assert ast.literal_eval(printed.splitlines()[-1]) == pytest.approx(merged(one_process))


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


def test_spark(files, one_process, tmp_path):
    pytest.importorskip("pyspark", reason="SPARK WAS NOT TESTED: pip install --group engines")
    if shutil.which("java") is None:
        pytest.skip("SPARK WAS NOT TESTED: there is no Java on this machine")
    out = tmp_path / "tallies.parquet"
    run(SPARK, files, out)
    same(pq.read_table(out), one_process)


def test_one_file_after_another(files, one_process):
    """Tallies of a stream per file, as on the page, add up to those of one process."""
    tallies = []
    for path in sorted(files.iterdir()):
        stream = pq.ParquetFile(path, pre_buffer=False).iter_batches(use_threads=False)
        tallies += arrow.tally(stream, NAMES, K)
    same(pa.Table.from_batches(tallies), one_process)


def test_duckdb(files, one_process):
    duckdb = pytest.importorskip("duckdb", reason="DUCKDB WAS NOT TESTED: pip install --group engines")
    reader = duckdb.sql(f"select item_ids, target from '{files}/*.parquet'").to_arrow_reader(10_000)
    same(pa.Table.from_batches(arrow.tally(reader, NAMES, K)), one_process)


def test_polars(files, one_process):
    polars = pytest.importorskip("polars")
    same(arrow.tally(polars.read_parquet(files), NAMES, K), one_process)


def test_dask(files, one_process):
    dask = pytest.importorskip("dask", reason="DASK WAS NOT TESTED: pip install --group engines")
    read, tally = dask.delayed(pq.read_table), dask.delayed(arrow.tally)
    tallies = [tally(read(path), NAMES, K) for path in sorted(files.iterdir())]
    same(pa.concat_tables(dask.compute(*tallies, scheduler="threads", num_workers=2)), one_process)
