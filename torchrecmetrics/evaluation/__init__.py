"""Whole evaluations: of a catalogue by scores, of lists that somebody made."""

from torchrecmetrics.evaluation.lists import evaluate_lists
from torchrecmetrics.evaluation.models import evaluate, recommend
from torchrecmetrics.evaluation.recommendations import Recommendations
from torchrecmetrics.evaluation.result import Evaluation

__all__ = ["Evaluation", "Recommendations", "evaluate", "evaluate_lists", "recommend"]
