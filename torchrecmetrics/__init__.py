"""Recommender-system metrics for PyTorch: exact, over whole catalogues, with one ranking for all metrics."""

from torchrecmetrics import functional as functional
from torchrecmetrics.collection.by_group import ByGroup
from torchrecmetrics.collection.collect_sessions import CollectSessions
from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.collection.kept_rows import KeptRows
from torchrecmetrics.collection.windows import Window
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.data.audit import Audit, audit
from torchrecmetrics.data.catalogue import Catalogue
from torchrecmetrics.data.groups import Groups, group_users, slice_targets
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.data.log import Log
from torchrecmetrics.evaluation.agreement import agreement
from torchrecmetrics.evaluation.evaluate import evaluate
from torchrecmetrics.evaluation.evaluate_lists import evaluate_lists
from torchrecmetrics.evaluation.recommend import Recommendations, recommend
from torchrecmetrics.evaluation.scorers import Embeddings
from torchrecmetrics.inputs.candidates import Candidates
from torchrecmetrics.inputs.codes import SemanticIds
from torchrecmetrics.inputs.item_shard import ItemShard
from torchrecmetrics.inputs.jagged import Jagged, prefix_history
from torchrecmetrics.inputs.lists import Lists
from torchrecmetrics.inputs.negatives import Negatives
from torchrecmetrics.inputs.ranks import Hits, Ranks
from torchrecmetrics.inputs.scores import Scores, get_topk_ranks
from torchrecmetrics.inputs.sessions import Sessions
from torchrecmetrics.metrics import accuracy, item_counts, item_groups, of_lists, one_rank
from torchrecmetrics.metrics.accumulator import Accumulator
from torchrecmetrics.metrics.accuracy import *  # noqa: F403
from torchrecmetrics.metrics.item_counts import *  # noqa: F403
from torchrecmetrics.metrics.item_counts import ItemCountMetric
from torchrecmetrics.metrics.item_groups import *  # noqa: F403
from torchrecmetrics.metrics.of_lists import *  # noqa: F403
from torchrecmetrics.metrics.of_lists import ListMetric
from torchrecmetrics.metrics.one_rank import *  # noqa: F403
from torchrecmetrics.metrics.ranking_metric import RankingMetric
from torchrecmetrics.results.comparison import Comparison, compare
from torchrecmetrics.results.evaluation import Evaluation
from torchrecmetrics.results.plots import plot
from torchrecmetrics.results.rows import Rows
from torchrecmetrics.tables.table import Table
from torchrecmetrics.tables.vocabulary import Vocabulary

__version__ = "0.1.0.dev0"

__all__ = [
    "Accumulator",
    "Audit",
    "ByGroup",
    "Candidates",
    "Catalogue",
    "CollectSessions",
    "Comparison",
    "Embeddings",
    "Evaluation",
    "Groups",
    "Hits",
    "Interactions",
    "ItemCountMetric",
    "ItemShard",
    "Jagged",
    "KeptRows",
    "ListMetric",
    "Lists",
    "Log",
    "Negatives",
    "Ranking",
    "RankingMetric",
    "Ranks",
    "RecMetricCollection",
    "Recommendations",
    "Rows",
    "Scores",
    "SemanticIds",
    "Sessions",
    "Table",
    "Vocabulary",
    "Window",
    "agreement",
    "audit",
    "compare",
    "evaluate",
    "evaluate_lists",
    "get_topk_ranks",
    "group_users",
    "plot",
    "prefix_history",
    "recommend",
    "slice_targets",
]
__all__ += [name for module in (accuracy, one_rank, of_lists, item_counts, item_groups) for name in module.__all__]
