"""`evaluate(candidates=)`: rank each user's own candidates, by the scores of these candidates alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchrecmetrics.checks import describe
from torchrecmetrics.data.interactions import Batch, Interactions
from torchrecmetrics.evaluation.scoring import ENTRY_BYTES, EmbeddingScorer
from torchrecmetrics.ranking import Ranking
from torchrecmetrics.ranking.candidates import rank_candidates
from torchrecmetrics.ranking.rules import Needs, Rules


class CandidateScorer:
    """Scorer that multiplies the embeddings of users with those of their candidates alone."""

    reuses_memory: bool = False
    row_bytes: int = 0

    def __init__(self, scorer: EmbeddingScorer, candidates: Interactions) -> None:
        self.device: torch.device = scorer.device
        self._scorer, self._candidates = scorer, candidates
        row_bytes = scorer.width * scorer.dtype.itemsize
        self.sizes: Tensor = candidates.host_degree * (1 + row_bytes // ENTRY_BYTES)
        """Memory that each user's candidates take, in entries of lists, int64 [U] on the host."""

    def rank(self, ids: Tensor, target: Batch, exclude: Any, needs: Needs, rules: Rules) -> Ranking:
        """Return the ranking of each user's candidates; a user without candidates has no hits."""
        listed = self._candidates.select(ids).items
        if not listed.shape[1]:
            listed = listed.new_full((len(ids), 1), -1)
        scores = self._scorer.scores_of(ids, listed)
        return rank_candidates(scores, target.items, target.values, exclude, listed, "unreachable", needs, rules)


def check_embeddings(users: Any, items: Any) -> None:
    """Refuse users and items that are not embeddings, which candidates are scored by."""
    if not isinstance(users, Tensor) or not isinstance(items, Tensor):
        raise TypeError(
            f"candidates= reads embeddings of users and items, got {describe(users)} and {describe(items)}; scores "
            "of your own: update(scores, target, candidates=ids)"
        )
