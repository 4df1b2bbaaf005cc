"""Compare `evaluate_lists` of a shuffled frame with pandas by hand: `python -m benchmarks.tables [ROWS ...]`.

Users have lists of 20 and five relevant items. The output is the CPU seconds of the fastest of interleaved runs on one
thread, from the frames to 18 values, and the most memory in MB that a run adds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch

import torchrecmetrics as trm
from benchmarks.timing import peak_memory

NAMES, CUTOFFS, LENGTH = ["HR", "NDCG", "MRR", "Precision", "Recall", "MAP"], [5, 10, 20], 20


def frames(num_rows: int, order: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return lists in random order, with a column of ranks or of scores, and the ground truth."""
    generator, num_users = np.random.default_rng(0), num_rows // LENGTH
    rows = generator.permutation(num_users * LENGTH)
    items = generator.integers(0, 1000, num_users)[:, None] * LENGTH + np.arange(LENGTH)
    others = 30_000 + np.arange(num_users * 2).reshape(num_users, 2) % 9000
    lists = pd.DataFrame({"user": np.repeat(np.arange(num_users), LENGTH), "item": items.ravel()})
    if order == "rank":
        lists["rank"] = np.tile(np.arange(1, LENGTH + 1), num_users)
    else:
        lists["score"] = generator.random(num_users * LENGTH)
    relevant = np.concatenate([items[:, [1, 7, 15]], others], 1)
    truth = pd.DataFrame({"user": np.repeat(np.arange(num_users), relevant.shape[1]), "item": relevant.ravel()})
    return lists.iloc[rows].reset_index(drop=True), truth


def ours(lists: pd.DataFrame, truth: pd.DataFrame) -> dict[str, float]:
    """Return the values, from `evaluate_lists`."""
    return trm.evaluate_lists(NAMES, lists, target=truth, k=CUTOFFS).floats()


def by_pandas(lists: pd.DataFrame, truth: pd.DataFrame) -> dict[str, float]:
    """Return the values, from a merge and groups."""
    if "score" in lists:
        lists = lists.sort_values(["user", "score"], ascending=[True, False])
        lists["rank"] = lists.groupby("user").cumcount() + 1
    hits = lists.merge(truth, on=["user", "item"]).sort_values(["user", "rank"])
    hits["number"] = hits.groupby("user").cumcount() + 1
    num_relevant = truth.groupby("user").size()
    values: dict[str, float] = {}
    ideal = np.cumsum(1 / np.log2(np.arange(2, LENGTH + 2)))
    for k in CUTOFFS:
        top = hits[hits["rank"] <= k]
        ranks = top.groupby("user")["rank"]
        num_hits = ranks.size().reindex(num_relevant.index, fill_value=0)
        gains = (1 / np.log2(1 + top["rank"])).groupby(top["user"]).sum()
        precisions = (top["number"] / top["rank"]).groupby(top["user"]).sum()
        best = ideal[np.minimum(num_relevant.loc[gains.index], k) - 1]
        sums = {
            "HR": (num_hits > 0).sum(),
            "NDCG": (gains / best).sum(),
            "MRR": (1 / ranks.min()).sum(),
            "Precision": (num_hits / k).sum(),
            "Recall": (num_hits / num_relevant).sum(),
            "MAP": (precisions / num_relevant.loc[precisions.index]).sum(),
        }
        values |= {f"{name}@{k}": float(total) / len(num_relevant) for name, total in sums.items()}
    return values


def cpu_seconds(run: Callable[[], Any]) -> float:
    """Return the CPU seconds of a run."""
    start = time.process_time()
    run()
    return time.process_time() - start


def main() -> None:
    """Print a line per size and order."""
    torch.set_num_threads(1)
    for num_rows in [int(float(number)) for number in sys.argv[1:]] or [100_000, 1_000_000, 10_000_000]:
        for order in ("rank", "score"):
            lists, truth = frames(num_rows, order)
            runs = {"ours": partial(ours, lists, truth), "pandas": partial(by_pandas, lists, truth)}
            values = {name: run() for name, run in runs.items()}
            assert all(abs(value - values["pandas"][key]) < 1e-12 for key, value in values["ours"].items())
            memory = {name: peak_memory(run) for name, run in runs.items()}
            times: dict[str, list[float]] = {name: [] for name in runs}
            for _ in range(3 if num_rows > 2_000_000 else 10):
                for name, run in runs.items():
                    times[name].append(cpu_seconds(run))
            fastest = {name: min(seconds) for name, seconds in times.items()}
            ratio = fastest["ours"] / fastest["pandas"]
            text = ", ".join(f"{name} {fastest[name]:.3f} s, {memory[name] or 0:.0f} MB" for name in runs)
            print(f"{num_rows:>10,} rows by {order}: {text}; ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
