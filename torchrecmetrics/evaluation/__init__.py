"""Whole evaluations: of a catalogue by scores, of lists that somebody made."""

from torchrecmetrics.evaluation.catalogue import Evaluation, evaluate, recommend
from torchrecmetrics.evaluation.lists import evaluate_lists
from torchrecmetrics.evaluation.recommendations import Recommendations

__all__ = ["Evaluation", "Recommendations", "evaluate", "evaluate_lists", "recommend"]
