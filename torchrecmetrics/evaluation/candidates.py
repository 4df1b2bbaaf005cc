"""`evaluate(candidates=)`: rank each user's own candidates, by the scores of these candidates alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.checks import describe
from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.evaluation.result import Evaluation
from torchrecmetrics.evaluation.scoring import Budget
from torchrecmetrics.ranking.update_args import UpdateArgs


class CandidateScores(NamedTuple):
    """Scorer of candidates: the products of user and item embeddings, with an optional item bias."""

    users: Tensor
    items: Tensor
    bias: Tensor | None
    similarity: Literal["dot", "cosine"]

    @classmethod
    def of(cls, users: Any, items: Any, bias: Tensor | None, similarity: Literal["dot", "cosine"]) -> CandidateScores:
        """Return the scorer, with normalised embeddings for "cosine"; refuse anything but embeddings."""
        if not isinstance(users, Tensor) or not isinstance(items, Tensor):
            raise TypeError(
                f"candidates= reads embeddings of users and items, got {describe(users)} and {describe(items)}; scores "
                "of your own: update(scores, target, candidates=ids)"
            )
        if users.dim() != 2 or items.dim() != 2 or users.shape[1] != items.shape[1] or users.device != items.device:
            raise ValueError(
                f"users and items must be [U, d] and [I, d] on one device, got {list(users.shape)} on {users.device} "
                f"and {list(items.shape)} on {items.device}"
            )
        if similarity == "cosine":
            users, items = (torch.nn.functional.normalize(part, dim=1) for part in (users, items))
        return cls(users, items, bias, similarity)

    def score(self, ids: Tensor, candidates: Tensor) -> Tensor:
        """Return the scores [b, C] of candidate ids [b, C]; arbitrary at padding (negative ids)."""
        chosen = candidates.clamp(min=0)
        scores = torch.einsum("bd,bcd->bc", self.users[ids], self.items[chosen])
        return scores if self.bias is None else scores + self.bias[chosen]


def evaluate_candidates(
    collection: RecMetricCollection,
    scorer: CandidateScores,
    target: Interactions,
    exclude: Sequence[Interactions],
    candidates: Interactions,
    user_ids: Any,
    budget: Budget,
) -> Evaluation:
    """Rank each user's own candidates, batch by batch within the budget; a user without candidates has no hits.

    Raises:
        ValueError: for interactions of other sizes than the embeddings.
    """
    shape = len(scorer.users), len(scorer.items)
    for name, part in (("target", target), ("candidates", candidates), *(("exclude", part) for part in exclude)):
        if not isinstance(part, Interactions):
            raise TypeError(f"{name} beside candidates= must be Interactions, got {describe(part)}")
        if (part.num_users, part.num_items) != shape:
            raise ValueError(
                f"{name} is {part.num_users} x {part.num_items}, the embeddings are of {shape[0]} users and {shape[1]} "
                "items"
            )
    device = scorer.users.device
    target, candidates, *histories = (part.to(device) for part in (target, candidates, *exclude))
    ids = torch.unique(target.users) if user_ids is None else torch.as_tensor(user_ids, device=device)
    sizes = candidates.degree[ids]
    order = sizes.argsort(stable=True)
    ids, sizes = ids[order], sizes[order]
    entry_bytes = scorer.items.shape[1] * scorer.items.element_size() + 64
    collection.to(device)
    start = 0
    while start < len(ids):
        number = torch.arange(1, len(ids) - start + 1, device=device)
        fits = number * sizes[start:] * entry_bytes <= budget.bytes_on(device)  # the last row is the longest
        rows = max(1, int(fits.sum()) if budget.batch_size is None else min(int(fits.sum()), budget.batch_size))
        batch = ids[start : start + rows]
        listed = candidates.select(batch).items
        if not listed.shape[1]:
            listed = listed.new_full((len(batch), 1), -1)
        args = UpdateArgs(
            scorer.score(batch, listed),
            target.select(batch),
            exclude=tuple(part.select(batch) for part in histories) or None,
            candidates=listed,
        )
        collection.add(collection.row_values(collection.rank(args)))
        start += rows
    return Evaluation(collection, "eager")
