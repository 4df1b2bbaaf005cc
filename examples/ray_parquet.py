"""Evaluate recommended lists in parquet files in one process and with Ray Data: the same function, the same numbers.

    python examples/ray_parquet.py                  # generated data: 80,000 lists in 8 files, removed afterwards
    python examples/ray_parquet.py --data lists/    # parquet with columns item_ids (best first) and target

Needs pyarrow, and Ray for the second half: pip install 'torchrecmetrics[arrow]' 'ray[data]'. Without Ray, the program
runs the first half and prints how to install Ray.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import torchrecmetrics as trm
from torchrecmetrics import arrow

METRICS, K = ["HR", "NDCG", "Recall"], [10, 20]
ROWS, FILES, WIDE = 80_000, 8, 20


def generate(folder: Path) -> None:
    """Write lists of twenty items and two relevant items each: one that is often in the list, one that never is."""
    rng, rows = np.random.default_rng(0), ROWS // FILES
    for number in range(FILES):
        lists = rng.integers(1, 500, (rows, WIDE)).cumsum(1)
        place = rng.geometric(0.1, rows) - 1
        taken = lists[np.arange(rows), place.clip(max=WIDE - 1)] + 100_000 * (place >= WIDE)
        columns = {"item_ids": list(lists), "target": [[one, 200_000 + one] for one in taken.tolist()]}
        pq.write_table(pa.table(columns), folder / f"part-{number}.parquet")


def in_one_process(folder: Path) -> trm.Evaluation:
    """Read file after file and batch after batch, so that memory does not grow with the files."""
    tallies = []
    for path in sorted(folder.glob("*.parquet")):
        batches = pq.ParquetFile(path, pre_buffer=False).iter_batches(use_threads=False)
        tallies += arrow.tally(batches, METRICS, K)
    return arrow.merge(tallies, METRICS, K)


def with_ray(folder: Path) -> trm.Evaluation:
    """Tally blocks on two Ray workers; if Ray runs a block again, the new tally replaces the old one."""
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    data = ray.data.read_parquet(str(folder)).select_columns(["item_ids", "target"])
    tallies = data.map_batches(partial(arrow.tally, metrics=METRICS, k=K), batch_format="pyarrow", batch_size=None)
    found = arrow.merge(tallies.iter_batches(batch_format="pyarrow", batch_size=None), METRICS, K)
    ray.shutdown()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of parquet files; default: generated ones")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.data or Path(temporary)
        if chosen.data is None:
            generate(folder)
        begin = time.perf_counter()
        one = in_one_process(folder)
        print(f"one process, {one.num_users:,} rows in {time.perf_counter() - begin:.1f} s\n{one}\n")
        if importlib.util.find_spec("ray") is None:
            print("Ray is not installed, its half was left out: pip install 'ray[data]'")
            return
        begin = time.perf_counter()
        other = with_ray(folder)
        print(f"Ray, {other.num_users:,} rows in {time.perf_counter() - begin:.1f} s, its start included")
        for key in one:
            print(f"{key:9}  {one[key]:.6f}  {other[key]:.6f}")
        if any(abs(one[key] - other[key]) > 1e-12 for key in one):
            sys.exit("they differ")
        print("the same numbers")


if __name__ == "__main__":
    main()
