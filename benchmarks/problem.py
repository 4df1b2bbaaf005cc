"""Inputs of the benchmarks, and their expected values in plain float64 numpy, without code of the package."""

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
#: Users per batch for the contenders that score users in a plain loop.
BATCH = 512


class Batch(NamedTuple):
    """A batch of users: their rows, and the pairs (row within the batch, item) of relevant items and of the history."""

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
    batch: int = BATCH
    times: int = 1
    """Number of batches of the loop."""

    @property
    def device(self) -> torch.device:
        """Device of all tensors."""
        return self.target.device

    @property
    def num_users(self) -> int:
        """Number of users, B."""
        return self.target.num_users

    @property
    def depth(self) -> int:
        """The largest cut-off."""
        return max(self.cutoffs)

    @cached_property
    def batches(self) -> list[Batch]:
        """Batches as a data loader would return them, made once."""
        size = self.num_users if self.scores is not None else self.batch
        return [
            Batch(
                slice(first, min(first + size, self.num_users)),
                _pairs(self.target, first, size),
                None if self.history is None else _pairs(self.history, first, size),
            )
            for first in range(0, self.num_users, size)
        ]

    def head(self, rows: int) -> Problem:
        """Return the problem of the first `rows` users only."""

        def cut(part: Interactions) -> Interactions:
            return Interactions(part.offsets[: rows + 1], part.items[: part.offsets[rows]], part.num_items)

        return replace(
            self,
            target=cut(self.target),
            history=None if self.history is None else cut(self.history),
            scores=None if self.scores is None else self.scores[:rows],
            users=None if self.users is None else self.users[:rows],
        )

    def some(self, rows: Tensor) -> Problem:
        """Return the problem of the users in `rows` only, a tensor on the CPU."""

        def cut(part: Interactions) -> Interactions:
            return Interactions.from_padded(part.select(rows).items, part.num_items)

        return replace(
            self,
            target=cut(self.target),
            history=None if self.history is None else cut(self.history),
            scores=None if self.scores is None else self.scores[rows],
            users=None if self.users is None else self.users[rows],
            batch=min(self.batch, len(rows)),
        )

    def cpu(self) -> Problem:
        """Return the same problem on the CPU."""
        parts = {name: getattr(self, name) for name in ("target", "history", "scores", "users", "items")}
        return replace(self, **{name: part.to("cpu") for name, part in parts.items() if part is not None})

    def scorer(self, mask: bool = True) -> Callable[[], Iterator[tuple[Batch, Tensor]]]:
        """Return a loop that yields each batch with its scores; with `mask`, items of the history score -inf.

        Scores of embeddings are computed in one buffer, which is used again for every batch. Given scores are masked in
        a copy, which is made in the first loop and kept.
        """
        buffer: Tensor | None = None

        def loop() -> Iterator[tuple[Batch, Tensor]]:
            nonlocal buffer
            for batch in self.times * self.batches:
                scores = self.scores
                if self.users is not None and self.items is not None:
                    users = self.users[batch.rows]
                    if buffer is None:
                        buffer = torch.empty(self.batch, len(self.items), device=users.device)
                    scores = multiply(users, self.items, buffer[: len(users)])
                elif mask and batch.history is not None:
                    assert scores is not None
                    scores = buffer = scores.clone() if buffer is None else buffer
                assert scores is not None
                if mask and batch.history is not None:
                    scores[batch.history[0], batch.history[1]] = -torch.inf
                yield batch, scores

        return loop


def _pairs(part: Interactions, first: int, size: int) -> Tensor:
    last = min(first + size, part.num_users)
    begin, end = int(part.offsets[first]), int(part.offsets[last])
    users = torch.arange(last - first, device=part.offsets.device)
    rows = torch.repeat_interleave(users, part.offsets[first : last + 1].diff())
    return torch.stack([rows, part.items[begin:end]])


def multiply(users: Tensor, items: Tensor, out: Tensor) -> Tensor:
    """Return `users @ items.T` in float32; scores of 16 bits would be full of ties."""
    if users.dtype == torch.float32:
        return torch.mm(users, items.T, out=out)
    if users.is_cuda and hasattr(torch.ops.aten.mm, "dtype_out"):
        return torch.ops.aten.mm.dtype_out(users, items.T, torch.float32, out=out)  # type: ignore[no-any-return]
    return torch.mm(users.float(), items.float().T, out=out)


# ------------------------------------------------------------------------------------------------------- the answer


def expected(problem: Problem) -> dict[str, Array]:
    """Return every user's values by label, float64 [B], by counting the items in front of each target in float64."""
    parts: list[dict[str, Array]] = []
    for batch in problem.batches:
        if problem.scores is not None:
            scores = problem.scores[batch.rows].to(torch.float64, copy=True).numpy()
        else:
            assert problem.users is not None
            assert problem.items is not None
            scores = (problem.users[batch.rows].double() @ problem.items.double().T).numpy()
        if batch.history is not None:
            scores[tuple(batch.history.numpy())] = -np.inf
        rows, items = batch.relevant.numpy()
        own = scores[rows, items]
        in_front = [
            np.count_nonzero(scores[row] > score) + (np.count_nonzero(scores[row] == score) - 1) / 2
            for row, score in zip(rows, own, strict=True)
        ]
        places, relevant = _padded(rows, 1 + np.array(in_front), len(scores))
        values = formulas(np.sort(places, axis=1), relevant, problem.cutoffs)
        if "AUROC" in problem.names:
            others = (scores > -np.inf).sum(1) - relevant
            behind = np.where(places < np.inf, places, 0).sum(1) - relevant * (relevant + 1) / 2
            values["AUROC"] = 1 - behind / (relevant * others)
        parts.append(values)
    return {label: np.concatenate([part[label] for part in parts]) for label in parts[0]}


def _padded(rows: Array, places: Array, num_rows: int) -> tuple[Array, Array]:
    """Return the ranks of each row, padded with inf, [B, T], and the number of relevant items per row, [B]."""
    relevant = np.bincount(rows, minlength=num_rows)
    padded = np.full((num_rows, relevant.max()), np.inf)
    padded[rows, np.arange(len(rows)) - np.repeat(relevant.cumsum() - relevant, relevant)] = places
    return padded, relevant


def expected_in_parts(problem: Problem, numbers: int = 2**27) -> dict[str, Array]:
    """Return what `expected` returns, for embeddings too many for one product: some items at a time, on their device.

    Scores are float64 as well, about `numbers` of them at once. Ties are not counted: no other item may have exactly
    the score of a target.
    """
    assert problem.users is not None
    assert problem.items is not None
    users, size = problem.users.double(), len(problem.items)
    rows, wanted = _pairs(problem.target, 0, problem.num_users)
    history = None if problem.history is None else _pairs(problem.history, 0, problem.num_users)
    own = (users[rows] * problem.items[wanted].double()).sum(1, keepdim=True)
    in_front = torch.zeros(len(rows), dtype=torch.int64, device=users.device)
    step = max(1, numbers // max(len(rows), len(users)))
    for first in range(0, size, step):
        scores = users @ problem.items[first : first + step].double().T
        if history is not None:
            here = (history[1] >= first) & (history[1] < first + step)
            scores[history[0][here], history[1][here] - first] = -torch.inf
        better = scores[rows] > own
        here = ((wanted >= first) & (wanted < first + step)).nonzero()[:, 0]
        better[here, wanted[here] - first] = False  # the target's own score, summed in another order, may differ
        in_front += better.sum(1)
    places, relevant = _padded(rows.cpu().numpy(), 1 + in_front.cpu().numpy(), problem.num_users)
    return formulas(np.sort(places, axis=1), relevant, problem.cutoffs)


def formulas(places: Array, relevant: Array, cutoffs: tuple[int, ...]) -> dict[str, Array]:
    """Return the values of rows by label, from ascending ranks [B, T], inf = not found, and counts `relevant` [B] >= 1.

    "MAP-min" is divided by min(k, R), as several peers define MAP.
    """
    nth = np.arange(1, places.shape[1] + 1)
    gains, ideal = 1 / np.log2(1 + places), np.cumsum(1 / np.log2(1 + nth))
    values: dict[str, Array] = {
        "RPrecision": (places <= relevant[:, None]).sum(1) / relevant,
        "MRR": 1 / places[:, 0],
        "MAP": (nth / places).sum(1) / relevant,
        "NDCG": gains.sum(1) / ideal[relevant - 1],
    }
    for k in cutoffs:
        found = places <= k
        hits = found.sum(1)
        precision = np.where(found, nth / places, 0).sum(1)
        best = ideal[np.minimum(relevant, k) - 1]
        values |= {
            f"HR@{k}": (hits > 0).astype(np.float64),
            f"Precision@{k}": hits / k,
            f"Recall@{k}": hits / relevant,
            f"MRR@{k}": np.where(found[:, 0], 1 / places[:, 0], 0),
            f"MAP@{k}": precision / relevant,
            f"MAP-min@{k}": precision / np.minimum(relevant, k),
            f"NDCG@{k}": np.where(found, gains, 0).sum(1) / best,
            f"F1@{k}": 2 * hits / (k + relevant),
        }
    return values
