"""Time and memory of tallies over Parquet files, in one process that streams the files and in Ray with two workers,
which get either whole files or blocks from Ray Data.

python -m benchmarks.engines                        1,000,000 lists of 20 in 8 files, 18 metrics at 3 cut-offs
python -m benchmarks.engines --rows 10000000        more lists: some 170 MB of disk per million, removed afterwards
python -m benchmarks.engines --row-group 1000000    the number of rows in a row group
python -m benchmarks.engines --only stream          without Ray

Each run is a separate process. Compare runs by CPU seconds if other programs use the machine at the same time.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.problem import CUTOFFS, NAMES

WIDE, FILES, CATALOGUE = 20, 8, 100_000


def written(folder: Path, rows: int, row_group: int) -> int:
    """Write lists of twenty recommended items with one to five relevant items each; return the size in bytes."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    for number in range(FILES):
        with pq.ParquetWriter(folder / f"{number}.parquet", _schema(pa)) as file:
            left = rows // FILES
            while left:
                some = min(left, row_group)
                # steps of 1 to 4,999 from a random item: all twenty differ
                lists = (rng.integers(1, 5_000, (some, WIDE)).cumsum(1) + rng.integers(0, CATALOGUE, (some, 1))) % (
                    CATALOGUE
                )
                lengths = rng.integers(1, 6, some)
                offsets = np.concatenate([[0], lengths.cumsum()])
                row = np.repeat(np.arange(some), lengths)
                place = np.arange(len(row)) - offsets[row] + rng.integers(0, 15, some)[row]
                target = np.where(rng.random(len(row)) < 0.3, lists[row, place], CATALOGUE + place)
                columns = [
                    pa.ListArray.from_arrays(np.arange(some + 1, dtype=np.int32) * WIDE, lists.ravel()),
                    pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), target),
                ]
                file.write_table(pa.Table.from_arrays(columns, schema=_schema(pa)), row_group_size=some)
                left -= some
    return sum(path.stat().st_size for path in folder.iterdir())


def _schema(pa: Any) -> Any:
    return pa.schema([("item_ids", pa.list_(pa.int64())), ("target", pa.list_(pa.int64()))])


def _peak() -> int:
    """Return the peak memory of this process in MB; `getrusage` would include memory of the process that started it."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(r"VmHWM:\s*(\d+)", text)[1]) // 1024  # type: ignore[index]


def stream(folder: Path) -> dict[str, Any]:
    """Read one file after another in this process, on one thread."""
    import pyarrow.parquet as pq
    import torch

    from torchrecmetrics import arrow

    torch.set_num_threads(1)
    imports = _peak()
    begin, cpu = time.perf_counter(), time.process_time()
    tallies: list[Any] = []
    for path in sorted(folder.iterdir()):
        batches = pq.ParquetFile(path, pre_buffer=False).iter_batches(use_threads=False)
        tallies += arrow.tally(batches, NAMES, CUTOFFS)
    found = arrow.merge(tallies, NAMES, CUTOFFS)
    spent = {"wall": time.perf_counter() - begin, "cpu": time.process_time() - cpu}
    return {**spent, "imports_mb": imports, "peak_mb": _peak(), "values": {key: found[key].item() for key in found}}


def ray_files(folder: Path) -> dict[str, Any]:
    """Run two Ray workers that each stream one file at a time."""
    import ray as engine

    def tally_file(path: Path) -> list[Any]:
        import pyarrow.parquet as pq

        from torchrecmetrics import arrow

        batches = pq.ParquetFile(path, pre_buffer=False).iter_batches(use_threads=False)
        return list(arrow.tally(batches, NAMES, CUTOFFS))

    remote = engine.remote(tally_file)

    def run(paths: list[Path]) -> list[Any]:
        return [tally for each in engine.get([remote.remote(path) for path in paths]) for tally in each]

    return _with_ray(run, sorted(folder.iterdir()))


def ray_data(folder: Path) -> dict[str, Any]:
    """Run two Ray Data workers that each get one block at a time."""
    import ray as engine

    from torchrecmetrics import arrow

    one = partial(arrow.tally, metrics=NAMES, k=CUTOFFS)

    def run(paths: list[Path]) -> Any:
        data = engine.data.read_parquet([str(path) for path in paths], override_num_blocks=len(paths))
        made = data.map_batches(one, batch_format="pyarrow", batch_size=None)
        return made.iter_batches(batch_format="pyarrow", batch_size=None)

    return _with_ray(run, sorted(folder.iterdir()))


def _with_ray(run: Callable[[list[Path]], Any], paths: list[Path]) -> dict[str, Any]:
    """Start Ray, warm it up on two files so that the workers have imported everything, and time a run."""
    import ray as engine

    from torchrecmetrics import arrow

    started = time.perf_counter()
    engine.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    engine.data.DataContext.get_current().enable_progress_bars = False
    engine.data.DataContext.get_current().target_max_block_size = 32 * 2**20  # 128 MB of fresh memory take longer
    arrow.merge(run(paths[:2]), NAMES, CUTOFFS)
    begin = time.perf_counter()
    found = arrow.merge(run(paths), NAMES, CUTOFFS)
    wall = time.perf_counter() - begin
    engine.shutdown()
    return {"wall": wall, "start": begin - started, "values": {key: found[key].item() for key in found}}


RUNS = {"stream": stream, "ray_files": ray_files, "ray_data": ray_data}


def main(arguments: list[str] | None = None) -> None:
    """Write the files, run the engines, print the results, and remove the files."""
    parser = argparse.ArgumentParser(
        "benchmarks.engines", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--row-group", type=int, default=65_536)
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.child:
        print(json.dumps(RUNS[chosen.child[0]](Path(chosen.child[1]))))
        return
    rows = chosen.rows // FILES * FILES
    with tempfile.TemporaryDirectory() as folder:
        size = written(Path(folder), rows, chosen.row_group)
        print(f"{rows} lists of {WIDE}, {size / 2**20:.0f} MB of parquet, {len(NAMES) * len(CUTOFFS)} metrics")
        values: dict[str, float] | None = None
        for name in chosen.only:
            command = [sys.executable, "-m", "benchmarks.engines", "--child", name, folder]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ)
            found = json.loads(done.stdout.splitlines()[-1])
            held = found.pop("values")
            values = held if values is None else values
            apart = max(abs(held[key] - values[key]) for key in values)
            told = ", ".join(f"{key} {value:.4g}" for key, value in found.items())
            each = f", {found['cpu'] / rows * 1e6:.2f} us of CPU a row" if "cpu" in found else ""
            print(f"{name}: {told}{each}, values within {apart:.1g} of the first")


if __name__ == "__main__":
    main()
