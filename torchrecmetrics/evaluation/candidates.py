"""`evaluate(candidates=)`: rank each user's own candidates, by the scores of these candidates alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchrecmetrics.core.checks import describe
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.evaluation.scoring import ENTRY_BYTES, EmbeddingScorer
from torchrecmetrics.inputs.base import SelectedItems
from torchrecmetrics.inputs.candidates import Candidates


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

    def input(self, ids: Tensor, target: SelectedItems, exclude: Any, history: Any) -> Candidates:
        """Return each user's candidates with their scores; a user without candidates has no hits."""
        listed = self._candidates.select(ids).items
        if not listed.shape[1]:
            listed = listed.new_full((len(ids), 1), -1)
        scores = self._scorer.scores_of(ids, listed)
        return Candidates(scores, target.items, listed, gains=target.values, exclude=exclude, history=history)


def check_embeddings(users: Any, items: Any) -> None:
    """Refuse users and items that are not embeddings, which candidates are scored by."""
    if not isinstance(users, Tensor) or not isinstance(items, Tensor):
        raise TypeError(
            f"candidates= reads embeddings of users and items, got {describe(users)} and {describe(items)}; scores "
            "of your own: update(Candidates(scores, target, items))"
        )
