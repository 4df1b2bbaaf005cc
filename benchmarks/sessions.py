"""Compare sessions from flat rows with torchmetrics, FuxiCTR and pandas: `python -m benchmarks.sessions [SESSIONS]`.

The input is one million sessions of 1 to 39 rows in random order, 20 million rows. The output is the seconds of all
updates and `compute`, the bytes per row beyond the input, and the seconds of the others for 2,000 sessions, scaled up.
"""

from __future__ import annotations

import resource
import sys

import torch
from torch import Tensor

import torchrecmetrics as trm
from benchmarks.timing import seconds

FEW = 2_000


def flat(num_sessions: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores, labels and session ids in random order."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 40, (num_sessions,), generator=generator)
    ids = torch.arange(num_sessions).repeat_interleave(lengths)
    ids = ids[torch.randperm(len(ids), generator=generator)]
    return torch.rand(len(ids), generator=generator), torch.rand(len(ids), generator=generator) < 0.15, ids


def ours(names: list[str], scores: Tensor, labels: Tensor, ids: Tensor) -> None:
    """Update in batches, and compute."""
    metrics = trm.CollectSessions(trm.RecMetricCollection([*names, trm.AUROC(weight="candidates")], k=10))
    for start in range(0, len(ids), 2**16):
        rows = slice(start, start + 2**16)
        metrics.update(scores[rows], labels[rows], ids[rows])
    metrics.compute()


def main() -> None:
    """Print a line per contender."""
    num_sessions = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    few = flat(FEW)
    ours(["NDCG", "MRR"], *few)
    scores, labels, ids = flat(num_sessions)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    spent = {"ours: NDCG@10, MRR@10, gAUC": seconds(lambda: ours(["NDCG", "MRR"], scores, labels, ids), times=1)}
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / len(ids)
    spent["ours: gAUC"] = seconds(lambda: ours([], scores, labels, ids), times=1)
    scale = num_sessions / FEW
    from torchmetrics.retrieval import RetrievalNormalizedDCG

    theirs = RetrievalNormalizedDCG(top_k=10)
    spent["torchmetrics: NDCG@10"] = scale * seconds(lambda: theirs(few[0], few[1], indexes=few[2]), times=1)
    arrays = [column.numpy() for column in few]
    try:
        from fuxictr.metrics import gAUC

        def fuxictr() -> None:
            import polars

            frame = polars.DataFrame({"group": arrays[2], "y": arrays[1], "p": arrays[0]})
            for part in frame.partition_by("group"):
                gAUC(part["y"].to_numpy(), part["p"].to_numpy())

        spent["FuxiCTR: gAUC, one process"] = scale * seconds(fuxictr, times=1)
    except ImportError:
        print("FuxiCTR is not installed")
    try:
        import pandas as pd
        from sklearn.metrics import roc_auc_score

        def groupby() -> None:
            frame = pd.DataFrame({"group": arrays[2], "y": arrays[1], "p": arrays[0]})
            for _, part in frame.groupby("group"):
                if 0 < part["y"].sum() < len(part):
                    roc_auc_score(part["y"], part["p"])

        spent["pandas and scikit-learn: gAUC"] = scale * seconds(groupby, times=1)
    except ImportError:
        print("pandas or scikit-learn is not installed")
    print(f"{num_sessions:,} sessions, {len(ids):,} rows, {torch.get_num_threads()} threads; {peak:.0f} bytes a row")
    for name, time_spent in spent.items():
        print(f"  {name:32} {time_spent:10.1f} s")


if __name__ == "__main__":
    main()
