"""What is to be evaluated, and what the answer is: a plain float64 numpy computation that shares no code with ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torchrecmetrics import Interactions

Array: TypeAlias = npt.NDArray[Any]
Values: TypeAlias = dict[str, float]
Run: TypeAlias = Callable[[], "Values | None"]

NAMES = ("HR", "NDCG", "MRR", "Precision", "Recall", "MAP")
CUTOFFS = (5, 10, 20)
#: Users whose scores are made together by those who make them in a plain loop.
BATCH = 512


class Batch(NamedTuple):
    """Some users: their rows, and as (row within the batch, item) their relevant items and their history."""

    rows: slice
    relevant: Tensor  # int64 [2, E]
    history: Tensor | None  # int64 [2, E]


@dataclass(frozen=True)
class Problem:
    """Rank all items for every user, from scores [B, I] or from embeddings [B, d] and [I, d]."""

    target: Interactions
    history: Interactions | None = None
    scores: Tensor | None = None
    users: Tensor | None = None
    items: Tensor | None = None
    names: tuple[str, ...] = NAMES
    cutoffs: tuple[int, ...] = CUTOFFS

    @property
    def num_users(self) -> int:
        """B."""
        return self.target.num_users

    @property
    def depth(self) -> int:
        """The largest cut-off."""
        return max(self.cutoffs)

    @cached_property
    def batches(self) -> list[Batch]:
        """What a data loader would hand over: part of the inputs, made once."""
        size = self.num_users if self.scores is not None else BATCH
        return [
            Batch(
                slice(first, min(first + size, self.num_users)),
                _pairs(self.target, first, size),
                None if self.history is None else _pairs(self.history, first, size),
            )
            for first in range(0, self.num_users, size)
        ]

    def head(self, rows: int) -> Problem:
        """Return the first `rows` users alone."""

        def cut(part: Interactions) -> Interactions:
            return Interactions(part.offsets[: rows + 1], part.items[: part.offsets[rows]], part.num_items)

        return replace(
            self,
            target=cut(self.target),
            history=None if self.history is None else cut(self.history),
            scores=None if self.scores is None else self.scores[:rows],
            users=None if self.users is None else self.users[:rows],
        )

    def scorer(self, mask: bool = True) -> Callable[[], Iterator[tuple[Batch, Tensor]]]:
        """Return a loop over batches of scores, made in one buffer that is kept, with the history at -inf if asked."""
        buffer: Tensor | None = None

        def loop() -> Iterator[tuple[Batch, Tensor]]:
            nonlocal buffer
            for batch in self.batches:
                scores = self.scores
                if self.users is not None and self.items is not None:
                    users = self.users[batch.rows]
                    if buffer is None:
                        buffer = torch.empty(BATCH, len(self.items))
                    scores = torch.mm(users, self.items.T, out=buffer[: len(users)])
                assert scores is not None
                if mask and batch.history is not None:
                    scores[batch.history[0], batch.history[1]] = -torch.inf
                yield batch, scores

        return loop


def _pairs(part: Interactions, first: int, size: int) -> Tensor:
    last = min(first + size, part.num_users)
    begin, end = int(part.offsets[first]), int(part.offsets[last])
    rows = torch.repeat_interleave(torch.arange(last - first), part.offsets[first : last + 1].diff())
    return torch.stack([rows, part.items[begin:end]])


# ------------------------------------------------------------------------------------------------------- the answer


def expected(problem: Problem) -> dict[str, Array]:
    """Return every user's value by label, float64 [B]: from scores in float64, by counting the items in front."""
    parts: list[dict[str, Array]] = []
    for batch in problem.batches:
        if problem.scores is not None:
            scores = problem.scores[batch.rows].numpy().astype(np.float64)
        else:
            assert problem.users is not None
            assert problem.items is not None
            scores = (problem.users[batch.rows].double() @ problem.items.double().T).numpy()
        if batch.history is not None:
            scores[tuple(batch.history.numpy())] = -np.inf
        rows, items = batch.relevant.numpy()
        relevant = np.bincount(rows, minlength=len(scores))
        places = np.full((len(scores), relevant.max()), np.inf)
        column = np.arange(len(rows)) - np.repeat(relevant.cumsum() - relevant, relevant)
        for row, item, at in zip(rows, items, column, strict=True):
            own = scores[row, item]
            tied = np.count_nonzero(scores[row] == own) - 1
            places[row, at] = 1 + np.count_nonzero(scores[row] > own) + tied / 2
        values = formulas(np.sort(places, axis=1), relevant, problem.cutoffs)
        if "AUROC" in problem.names:
            others = (scores > -np.inf).sum(1) - relevant
            behind = np.where(places < np.inf, places, 0).sum(1) - relevant * (relevant + 1) / 2
            values["AUROC"] = 1 - behind / (relevant * others)
        parts.append(values)
    return {label: np.concatenate([part[label] for part in parts]) for label in parts[0]}


def formulas(places: Array, relevant: Array, cutoffs: tuple[int, ...]) -> dict[str, Array]:
    """Return the values of rows by label; places ascending [B, T], inf = not found; relevant [B] >= 1.

    "MAP-min" is divided by min(k, R), as several peers define MAP.
    """
    nth = np.arange(1, places.shape[1] + 1)
    values: dict[str, Array] = {}
    for k in cutoffs:
        found = places <= k
        hits = found.sum(1)
        precision = np.where(found, nth / places, 0).sum(1)
        best = np.cumsum(1 / np.log2(1 + nth))[np.minimum(relevant, k) - 1]
        values |= {
            f"HR@{k}": (hits > 0).astype(np.float64),
            f"Precision@{k}": hits / k,
            f"Recall@{k}": hits / relevant,
            f"MRR@{k}": np.where(found[:, 0], 1 / places[:, 0], 0),
            f"MAP@{k}": precision / relevant,
            f"MAP-min@{k}": precision / np.minimum(relevant, k),
            f"NDCG@{k}": np.where(found, 1 / np.log2(1 + places), 0).sum(1) / best,
        }
    return values
