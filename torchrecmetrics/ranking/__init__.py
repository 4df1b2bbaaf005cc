"""`Ranking`, the ranks of each row's relevant items, and the modules that make it, which alone see scores.

Every metric reads a `Ranking`. `get_topk_ranks` returns ranks of the same kernel as a plain integer tensor.
"""

from __future__ import annotations

from torchrecmetrics.ranking.data import DEPTH_UNKNOWN
from torchrecmetrics.ranking.exclusion import Exclude
from torchrecmetrics.ranking.flat import FromFlat
from torchrecmetrics.ranking.negatives import FromNegatives
from torchrecmetrics.ranking.ranks import FromRanks
from torchrecmetrics.ranking.rules import Overlap, Ties
from torchrecmetrics.ranking.scores import FromScores, get_topk_ranks
from torchrecmetrics.ranking.targets import Gains, Target
from torchrecmetrics.ranking.topk import Duplicates, FromTopk

__all__ = [
    "DEPTH_UNKNOWN",
    "Duplicates",
    "Exclude",
    "Gains",
    "Overlap",
    "Ranking",
    "Target",
    "Ties",
    "get_topk_ranks",
]


class Ranking(FromScores, FromTopk, FromRanks, FromFlat, FromNegatives):
    """The ranks of the relevant items of a batch, with all else that metrics read of it; each row is one ranking.

    Make one with `from_scores`, `from_topk`, `from_ranks`, `from_flat` or `from_negatives`; the fields are for reading.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[0.1, 0.9, 0.5, 0.3]])
        >>> trm.Ranking.from_scores(scores, torch.tensor([[2, 0]])).ranks
        tensor([[2., 4.]], dtype=torch.float64)
    """
