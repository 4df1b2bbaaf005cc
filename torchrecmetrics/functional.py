"""Formulas of accuracy: hit rate, precision, recall, DCG, NDCG, MRR, MAP, AUROC per row of a `Ranking`.

One cut-off gives float [B], several (a list or tuple of K) give [K, B] at little extra cost; `k=None` is the whole
ranking. Rows without a relevant item are NaN. R is the number of a row's relevant items, h(k) the number of them in the
first k ranks. The class of each metric documents range, edge cases, options, other names and source.
"""

from torchrecmetrics.core.ranked_items import AnyCutoff as AnyCutoff
from torchrecmetrics.metrics.accuracy import Denominator as Denominator
from torchrecmetrics.metrics.accuracy import Gain as Gain
from torchrecmetrics.metrics.accuracy import Normalization as Normalization
from torchrecmetrics.metrics.accuracy import NormalizationByK as NormalizationByK
from torchrecmetrics.metrics.accuracy import (
    auroc,
    average_precision,
    dcg,
    f1,
    hit_rate,
    ndcg,
    precision,
    r_precision,
    recall,
    reciprocal_rank,
)

__all__ = [
    "auroc",
    "average_precision",
    "dcg",
    "f1",
    "hit_rate",
    "ndcg",
    "precision",
    "r_precision",
    "recall",
    "reciprocal_rank",
]
