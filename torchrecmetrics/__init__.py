"""Recommender-system metrics for PyTorch: exact, on the GPU, one kernel call for all of them."""

from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.evaluation import Evaluation, evaluate, recommend
from torchrecmetrics.interactions import Interactions
from torchrecmetrics.metrics import AUROC, F1, HR, MAP, MRR, NDCG, HitRate, Precision, RankingMetric, Recall, RPrecision
from torchrecmetrics.ranking import Ranking, get_topk_ranks

__version__ = "0.1.0"

__all__ = [
    "AUROC",
    "F1",
    "HR",
    "MAP",
    "MRR",
    "NDCG",
    "Evaluation",
    "HitRate",
    "Interactions",
    "Precision",
    "RPrecision",
    "Ranking",
    "RankingMetric",
    "RecMetricCollection",
    "Recall",
    "evaluate",
    "get_topk_ranks",
    "recommend",
]
