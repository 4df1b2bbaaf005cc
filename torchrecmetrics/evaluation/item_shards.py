"""`evaluate` and `recommend` with item embeddings that are sharded over processes or come in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.core.checks import check_k, describe
from torchrecmetrics.core.distributed import fingerprint, raise_on_all_ranks, same_on_all_ranks
from torchrecmetrics.core.options import Needs, Options
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.evaluation.item_pieces import ItemPieces
from torchrecmetrics.evaluation.progress import ProgressBar
from torchrecmetrics.evaluation.scoring import (
    Budget,
    EmbeddingScorer,
    History,
    ScoreOptions,
    TargetDevice,
    batches,
)
from torchrecmetrics.inputs.item_shard import PiecewiseRows, best_of_processes, merged, over_processes

_PER_ITEM = ("item_bias", "items_allowed")
"""Options of which each process gives the part of its own items."""


class Counted(NamedTuple):
    """Counts of a batch of users, from which the ranking is made."""

    rows: PiecewiseRows
    own: Tensor
    counted: Tensor
    top: Tensor
    """Scores of the best items, [b, list_depth]."""
    top_ids: Tensor
    """Ids of the best items, int64 [b, list_depth]; -1 = fewer candidates."""

    def ranking(self, history: Tensor | None = None) -> Ranking:
        """Return the ranking over all items; `history` are earlier items of the users, int64 [b, H], -1 = padding."""
        return self.rows.ranking(self.own, self.counted, (self.top, self.top_ids), history=history)


class _Rows(NamedTuple):
    """Row size and device for `batches` in place of a scorer, the same on all processes."""

    row_bytes: int
    device: torch.device
    reuses_memory: bool = False


def on_all(
    shard: object, group: Any, facts: dict[str, Any] | None = None, own: str = ""
) -> AbstractContextManager[None]:
    """Return a context that raises on all processes if one raises or if `facts` differ; without shards, do nothing."""
    if shard not in ("items", "both"):
        return nullcontext()
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        raise ValueError(f'shard="{shard}" is for several processes: initialise torch.distributed first')
    return same_on_all_ranks({} if facts is None else facts, group, own)


def group_of(items: Any, group: Any) -> Any:
    """Return the process group that shares the items: `group`, or that of a DTensor's mesh; None = all processes."""
    mesh = getattr(items, "device_mesh", None)
    if group is not None or mesh is None:
        return group
    if mesh.ndim != 1:
        raise ValueError("items as a DTensor must be on a mesh of one dimension: pass mesh[name], or items.to_local()")
    return mesh.get_group()


class SharedItems:
    """Sharded or piecewise items, ranked for a batch of users and a piece of items at a time, in step on all processes.

    Args:
        users: float [U, d]; with `shard="both"` the users of this process.
        items: float [I, d] of this process, also a row-sharded DTensor, an array, or a sequence of tensors.
        options: similarity, and the bias [I] and allowed items of this process.
        budget: limits of memory and of users per batch.
        device: device of the scores; None = the device of the users.
        shard: "items", "both", or None = items in pieces on a single process.
        group: process group that shares the items; None = all processes.
    """

    def __init__(
        self,
        users: Any,
        items: Any,
        options: ScoreOptions,
        budget: Budget,
        device: str | torch.device | None,
        shard: object,
        group: Any,
    ) -> None:
        self.shard, self._group = shard, group
        self.rank: int = 0 if shard is None else torch.distributed.get_rank(group)
        facts: dict[str, Any] = {}
        with on_all(shard, group, facts, own="sizes"):
            users, items = _local("users", users, shard == "both"), _local("items", items, shard is not None)
            if not isinstance(users, Tensor) or users.dim() != 2:
                raise TypeError(
                    f"users beside items in pieces or shards must be embeddings, a tensor [U, d], got {describe(users)}"
                )
            self.place: TargetDevice = TargetDevice.of(device, users)
            self._users, memory = self.place.move("users", users), budget.bytes_on(self.place.device)
            self._pieces = ItemPieces(items, memory // 4, self.place.device)
            if self._pieces.is_whole:
                self.place.move("items", items)
            if self._pieces.width != users.shape[1]:
                raise ValueError(f"embedding widths differ: users {users.shape[1]}, items {self._pieces.width}")
            self._options = options.read(self._pieces.num_items, self.place)
            self.dtype: torch.dtype = (
                torch.float64 if torch.float64 in (users.dtype, self._pieces.dtype) else torch.float32
            )
            number = 2**52 if budget.batch_size is None else check_k(budget.batch_size, "batch_size")
            score_bytes, row_bytes = 2 * max(1, self._pieces.longest) * self.dtype.itemsize, 8 * users.shape[1] + 128
            self._at_once = max(1, memory // (2 * score_bytes)) if not self._pieces.is_whole else 2**62
            row_bytes += score_bytes if self._pieces.is_whole else 0
            facts |= {"width of embeddings": users.shape[1], "similarity": options.similarity}
            facts |= {f"whether {name} is given": getattr(options, name) is not None for name in _PER_ITEM}
            facts |= {"dtype of users": users.dtype, "dtype of items": self._pieces.dtype}
            if shard == "items":
                facts["users, which must be the same (no dropout; broadcast them)"] = fingerprint(self._users)
            facts["sizes"] = len(users), self._pieces.num_items, number, memory, row_bytes
        sizes: list[tuple[int, ...]] = [facts["sizes"]] if shard is None else facts["sizes"]
        self.num_items: int = sum(size[1] for size in sizes)
        self._first = sum(size[1] for size in sizes[: self.rank])
        self.num_users: int = len(users)
        self._first_user = 0
        if shard == "both":
            self.num_users = sum(size[0] for size in sizes)
            self._first_user = sum(size[0] for size in sizes[: self.rank])
        self._budget = Budget(min(size[2] for size in sizes), min(size[3] for size in sizes))
        self._rows = _Rows(max(size[4] for size in sizes), self.place.device)

    def same(self, facts: dict[str, Any]) -> AbstractContextManager[None]:
        """Return a context that raises on all processes if one process raises or if `facts` differ."""
        return on_all(self.shard, self._group, facts)

    def batches(self, ids: Tensor, sizes: Tensor, use: Callable[[Tensor], None]) -> Iterator[Tensor]:
        """Apply `use` to batches of users by ascending `sizes`, and yield each when done; equal on all processes."""
        ids = ids[sizes[ids].argsort(stable=True)]
        scorer: Any = self._rows
        return batches(scorer, ids, sizes, lambda batch, at_once: use(batch.to(self.place.device)), self._budget)

    def count(self, ids: Tensor, target: Any, gains: Any, exclude: Any, needs: Needs, rules: Options) -> Counted:
        """Count the items ranked before each relevant item, over all items, for a batch of users.

        With several pieces, scores are computed twice: the counts need the relevant items' own scores from all pieces.
        """
        device, k = self.place.device, needs.list_depth
        with self._together():
            shape = len(ids), self.num_items
            rows = PiecewiseRows(target, gains, exclude, shape, self.dtype, device, needs, rules)
            vectors = self._vectors(ids)
        if self.shard == "both":
            vectors = over_processes(vectors, ReduceOp.SUM, self._group)
        scored: list[tuple[int, Tensor, slice]] = []
        with self._together():
            own = torch.full(rows.targets.ids.shape, -torch.inf, dtype=self.dtype, device=device)
            for first, scores, part in self._scores(vectors):
                own[part] = torch.maximum(own[part], rows.own_scores(scores, first, part))
                scored = [(first, scores, part)]  # valid until the next scores
        if self.shard is not None:
            own = over_processes(own, ReduceOp.MAX, self._group)
        top = torch.full((len(ids), k), -torch.inf, dtype=self.dtype, device=device)
        top_ids = torch.full((len(ids), k), -1, device=device)
        with self._together():
            counted = torch.zeros(len(ids), rows.num_counts, dtype=torch.int32, device=device)
            for first, scores, part in scored if self._pieces.is_whole else self._scores(vectors):
                counted[part] += rows.count(scores, first, own, part)
                if k:
                    found = merged([(top[part], top_ids[part]), rows.best(scores, first, part)], k)
                    top[part], top_ids[part] = found
        if self.shard is not None:
            counted = over_processes(counted, ReduceOp.SUM, self._group)
            if k:
                top, top_ids = best_of_processes((top, top_ids), self._group)
        return Counted(rows, own, counted, top, top_ids)

    def _together(self) -> AbstractContextManager[None]:
        return nullcontext() if self.shard is None else raise_on_all_ranks(self.place.device, self._group)

    def _vectors(self, ids: Tensor) -> Tensor:
        """Return the embeddings of users [b, d], 0 for users of other processes."""
        place = ids - self._first_user
        mine = (place >= 0) & (place < len(self._users))
        found = self._users.new_zeros(len(ids), self._users.shape[1])
        found[mine] = self._users[place[mine]]
        return found

    def _scores(self, vectors: Tensor) -> Iterator[tuple[int, Tensor, slice]]:
        """Yield (first item id, scores [n, items], slice of rows) per piece; scores are valid until the next yield."""
        numbers = torch.arange(len(vectors), device="cpu")
        bias, similarity, allowed = self._options
        for first, piece in self._pieces:
            items = slice(first, first + len(piece))
            options = ScoreOptions(
                None if bias is None else bias[items], similarity, None if allowed is None else allowed[items]
            )
            scorer = EmbeddingScorer(vectors, piece, (len(vectors), len(piece)), options, self.place)
            for part in torch.split(numbers, self._at_once):
                scores = next(iter(scorer.scores(part, len(part)).parts()))
                yield self._first + first, scores, slice(int(part[0]), int(part[-1]) + 1)
            del piece, scorer


def _local(name: str, embeddings: Any, is_shared: bool) -> Any:
    """Return this process's rows of a DTensor; other embeddings are returned unchanged."""
    if not hasattr(embeddings, "device_mesh"):
        return embeddings
    (placement, *others) = embeddings.placements
    if others or not (placement.is_shard(0) if is_shared else placement.is_replicate()):
        cure = "sharded by row (Shard(0))" if is_shared else 'replicated, or given with shard="both"'
        if name == "items" and not is_shared:
            cure = 'given with shard="items", or, where users are sharded too, "both"'
        raise ValueError(f"{name} as a DTensor must be {cure}; got {embeddings.placements}")
    return embeddings.to_local()


def evaluate_item_shards(
    collection: RecMetricCollection,
    shared: SharedItems,
    target: Interactions,
    history: History,
    past: Interactions | None,
    user_ids: Tensor,
    sizes: Tensor,
    bar: ProgressBar,
) -> None:
    """Rank all items for the same users on each process, batch by batch, and add the rankings to the collection.

    `sizes` [U] holds the number of relevant, excluded and history items of every user.
    """
    needs, rules = collection.evaluator.batch_needs, collection.evaluator.rules

    def use(batch: Tensor) -> None:
        relevant, exclude = target.select(batch), history.select(batch)
        earlier = None if past is None else past.select(batch).items
        counted = shared.count(batch, relevant.items, relevant.values, exclude, needs, rules)
        collection.update(counted.ranking(earlier))

    for batch in shared.batches(user_ids, sizes, use):
        bar.advance(batch, collection)


def recommend_item_shards(
    shared: SharedItems, history: History, user_ids: Tensor, sizes: Tensor, k: int, bar: ProgressBar
) -> tuple[Tensor, Tensor]:
    """Return ids, int64, and scores of each user's `k` best items, [users, k], on each process."""
    device, needs = shared.place.device, Needs(k, target=False, list_depth=k)
    items = torch.full((len(user_ids), k), -1, device=device)
    scores = torch.full((len(user_ids), k), -torch.inf, dtype=shared.dtype, device=device)
    places, users = torch.arange(len(user_ids), device="cpu"), user_ids.to(device)

    def use(rows: Tensor) -> None:
        batch, nothing = users[rows], torch.full((len(rows), 1), -1, device=device)
        found = shared.count(batch, nothing, None, history.select(batch), needs, Options())
        found.ranking()  # raises for NaN and infinity
        items[rows], scores[rows] = found.top_ids, found.top

    for rows in shared.batches(places, sizes.index_select(0, user_ids), use):
        bar.advance(rows, None)
    return items, scores
