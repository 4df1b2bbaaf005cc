"""Recommender-system metrics for PyTorch: exact, on the GPU, one kernel call for all of them."""

from torchrecmetrics import metrics
from torchrecmetrics.audit import Audit, audit
from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.evaluation import Evaluation, evaluate, recommend
from torchrecmetrics.interactions import Interactions
from torchrecmetrics.log import Log
from torchrecmetrics.metric import RankingMetric
from torchrecmetrics.metrics import *  # noqa: F403
from torchrecmetrics.ranking import Ranking, get_topk_ranks
from torchrecmetrics.recommendations import Recommendations
from torchrecmetrics.recommended import evaluate_lists
from torchrecmetrics.vocabulary import Vocabulary

__version__ = "0.1.0"

__all__ = [
    "Audit",
    "Evaluation",
    "Interactions",
    "Log",
    "Ranking",
    "RankingMetric",
    "RecMetricCollection",
    "Recommendations",
    "Vocabulary",
    "audit",
    "evaluate",
    "evaluate_lists",
    "get_topk_ranks",
    "recommend",
]
__all__ += metrics.__all__
