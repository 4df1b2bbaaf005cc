"""Recommender-system metrics for PyTorch: exact, over whole catalogues, with one ranking for all metrics."""

from torchrecmetrics import metrics, rank_metrics
from torchrecmetrics.analysis.comparison import Comparison, compare
from torchrecmetrics.analysis.differences import differences
from torchrecmetrics.analysis.rows import Rows
from torchrecmetrics.base.metric import RankingMetric
from torchrecmetrics.beyond.histograms import HistogramMetric
from torchrecmetrics.beyond.lists import ListMetric
from torchrecmetrics.beyond.metrics import *  # noqa: F403
from torchrecmetrics.beyond.metrics import __all__ as _beyond
from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.data.audit import Audit, audit
from torchrecmetrics.data.catalogue import Catalogue
from torchrecmetrics.data.groups import Groups, group_users, slice_targets
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.data.jagged import Jagged, prefix_history
from torchrecmetrics.data.log import Log
from torchrecmetrics.data.vocabulary import Vocabulary
from torchrecmetrics.evaluation.lists import evaluate_lists
from torchrecmetrics.evaluation.models import evaluate, recommend
from torchrecmetrics.evaluation.recommendations import Recommendations
from torchrecmetrics.evaluation.result import Evaluation
from torchrecmetrics.evaluation.sampled import SampledBounds, bound_sampled, propensity
from torchrecmetrics.metrics import *  # noqa: F403
from torchrecmetrics.rank_metrics import *  # noqa: F403
from torchrecmetrics.ranking import Ranking, get_topk_ranks
from torchrecmetrics.ranking.semantic_ids import SemanticIds
from torchrecmetrics.ranking.shards import ItemShard

__version__ = "0.1.0.dev0"

__all__ = [
    "Audit",
    "Catalogue",
    "Comparison",
    "Evaluation",
    "Groups",
    "HistogramMetric",
    "Interactions",
    "ItemShard",
    "Jagged",
    "ListMetric",
    "Log",
    "Ranking",
    "RankingMetric",
    "RecMetricCollection",
    "Recommendations",
    "Rows",
    "SampledBounds",
    "SemanticIds",
    "Vocabulary",
    "audit",
    "bound_sampled",
    "compare",
    "differences",
    "evaluate",
    "evaluate_lists",
    "get_topk_ranks",
    "group_users",
    "prefix_history",
    "propensity",
    "recommend",
    "slice_targets",
]
__all__ += [*metrics.__all__, *rank_metrics.__all__, *_beyond]
