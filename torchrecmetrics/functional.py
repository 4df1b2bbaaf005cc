"""Formulas of accuracy: hit rate, precision, recall, DCG, NDCG, MRR, MAP, AUROC per row of a `Ranking`.

One cut-off gives float [B], several (a list or tuple of K) give [K, B] at little extra cost; `k=None` is the whole
ranking. Rows without a relevant item are NaN. R is the number of a row's relevant items, h(k) the number of them in the
first k ranks. The class of each metric documents range, edge cases, options, other names and source.
"""

from torchrecmetrics.core.ranked_items import AnyCutoff as AnyCutoff
from torchrecmetrics.metrics import accuracy as _accuracy
from torchrecmetrics.metrics.accuracy import Denominator as Denominator
from torchrecmetrics.metrics.accuracy import Gain as Gain
from torchrecmetrics.metrics.accuracy import Normalization as Normalization
from torchrecmetrics.metrics.accuracy import NormalizationByK as NormalizationByK
from torchrecmetrics.metrics.accuracy import of_rows as _of_rows

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

auroc = _of_rows(_accuracy.auroc)
average_precision = _of_rows(_accuracy.average_precision)
dcg = _of_rows(_accuracy.dcg)
f1 = _of_rows(_accuracy.f1)
hit_rate = _of_rows(_accuracy.hit_rate)
ndcg = _of_rows(_accuracy.ndcg)
precision = _of_rows(_accuracy.precision)
r_precision = _of_rows(_accuracy.r_precision)
recall = _of_rows(_accuracy.recall)
reciprocal_rank = _of_rows(_accuracy.reciprocal_rank)
