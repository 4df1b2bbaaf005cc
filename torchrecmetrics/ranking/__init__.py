"""Where the relevant items stand in each user's ranking: the only rooms that see scores.

`Ranking` is what every metric reads. `get_topk_ranks` is the same kernel's answer as a plain integer tensor.
"""

from __future__ import annotations

from torchrecmetrics.ranking.excluded import Exclude
from torchrecmetrics.ranking.flat import FromFlat
from torchrecmetrics.ranking.places import DEPTH_UNKNOWN, Graded, Reach, derived
from torchrecmetrics.ranking.ranks import FromRanks
from torchrecmetrics.ranking.rules import Needs, Overlap, Rules, Ties
from torchrecmetrics.ranking.scores import FromScores, ScoreRows, get_topk_ranks
from torchrecmetrics.ranking.targets import Gains, Target
from torchrecmetrics.ranking.topk import Duplicates, FromTopk

__all__ = [
    "DEPTH_UNKNOWN",
    "Duplicates",
    "Exclude",
    "Gains",
    "Graded",
    "Needs",
    "Overlap",
    "Ranking",
    "Reach",
    "Rules",
    "ScoreRows",
    "Target",
    "Ties",
    "derived",
    "get_topk_ranks",
]


class Ranking(FromScores, FromTopk, FromRanks, FromFlat):
    """Where the relevant items of a batch stand: all that a metric needs to know. A row is one ranking.

    Make one with `from_scores`, `from_topk`, `from_ranks` or `from_flat`; the fields are for reading.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[0.1, 0.9, 0.5, 0.3]])
        >>> trm.Ranking.from_scores(scores, torch.tensor([[2, 0]])).ranks
        tensor([[2., 4.]], dtype=torch.float64)
    """
