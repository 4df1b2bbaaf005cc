"""Time positives ranked among negatives, beside the evaluators of OGB and TGB: `python -m benchmarks.negatives`.

The first case is one million positives with 1,000 negatives each: 10,000 rows are timed (2,000 for TGB's evaluator,
which takes one edge per call) and the time is scaled. The second case is three million positives against one pool of
three million negatives. The programme prints seconds, ratios within one run, and the memory that the pool adds.
"""

from __future__ import annotations

import resource

import torch
from torch import Tensor

import torchrecmetrics as trm
from benchmarks.timing import seconds

ROWS, NEGATIVES, PART, EDGES = 1_000_000, 1_000, 10_000, 2_000


def ours(positive: Tensor, negative: Tensor) -> None:
    """Rank the positives among the negatives and compute four metrics."""
    metrics = trm.RecMetricCollection(["MRR", "HR@1", "HR@3", "HR@10"])
    metrics.update(trm.Negatives(positive, negative, pool=negative.dim() == 1))
    metrics.compute()


def peak_mb() -> int:
    """Return the largest resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> None:
    """Time all contenders and the pool, and print one line for each."""
    generator = torch.Generator().manual_seed(0)
    positive = torch.randn(PART, generator=generator)
    negative = torch.randn(PART, NEGATIVES, generator=generator)
    scale = ROWS / PART
    found = {"one read of the scores": seconds(lambda: negative.amax(1)) * scale}
    found["ours"] = seconds(lambda: ours(positive, negative)) * scale
    try:
        from ogb.linkproppred import Evaluator as Ogb

        evaluator = Ogb("ogbl-citation2")
        found["OGB"] = seconds(lambda: evaluator.eval({"y_pred_pos": positive, "y_pred_neg": negative})) * scale
    except ImportError:
        print("OGB is not installed")
    try:
        from tgb.linkproppred.evaluate import Evaluator as Tgb

        per_edge = Tgb(name="tgbl-wiki")
        rows = list(zip(positive.numpy()[:EDGES, None], negative.numpy()[:EDGES], strict=True))

        def tgb() -> None:
            for own, others in rows:
                per_edge.eval({"y_pred_pos": own, "y_pred_neg": others, "eval_metric": ["mrr"]})

        found["TGB"] = seconds(tgb) * ROWS / EDGES
    except ImportError:
        print("TGB is not installed")
    print(f"{ROWS:,} positives x {NEGATIVES:,} negatives, {torch.get_num_threads()} threads")
    for name, spent in found.items():
        print(f"  {name:22} {spent:8.2f} s   {spent / found['ours']:6.2f} x ours")
    positive, pool = (torch.randn(3 * ROWS, generator=generator) for _ in range(2))
    before = peak_mb()
    spent = seconds(lambda: ours(positive, pool))
    print(f"a pool, {len(pool):,} x {len(pool):,}: {spent:.2f} s, {peak_mb() - before} MB beside the scores")


if __name__ == "__main__":
    main()
