"""Functions that evaluate scores of the whole catalogue or recommended lists, and the results that they return."""

from torchrecmetrics.evaluation.lists import evaluate_lists
from torchrecmetrics.evaluation.models import evaluate
from torchrecmetrics.evaluation.recommendations import Recommendations, recommend
from torchrecmetrics.results.evaluation import Evaluation

__all__ = ["Evaluation", "Recommendations", "evaluate", "evaluate_lists", "recommend"]
