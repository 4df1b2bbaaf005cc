"""`recommend`: each user's best items, as `Recommendations`, which can be exported as frames and dicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from torchrecmetrics.core.checks import VIOLATIONS, check_choice, check_k, in_words
from torchrecmetrics.core.distributed import fingerprint, raise_on_all_ranks
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.evaluation.batches import batches
from torchrecmetrics.evaluation.embeddings import Embeddings
from torchrecmetrics.evaluation.evaluate import in_agreement, scorer_of, together
from torchrecmetrics.evaluation.progress import Progress, ProgressBar
from torchrecmetrics.evaluation.recommendations import Recommendations
from torchrecmetrics.evaluation.scorers import FunctionScorer, ScoreFunction, Scorer, evaluating
from torchrecmetrics.evaluation.target_device import TargetDevice
from torchrecmetrics.evaluation.test_set import from_matrix, user_rows, warn_of_item_0
from torchrecmetrics.evaluation.user_exclusions import Exclusions, Histories, exclude_entries
from torchrecmetrics.inputs.item_shard import best_items, best_of_processes


@torch.no_grad()
def recommend(
    users: Tensor | Embeddings | ScoreFunction,
    items: Tensor | None = None,
    k: int = 10,
    *,
    exclude: Histories | None = None,
    user_ids: Any = None,
    num_users: int | None = None,
    num_items: int | None = None,
    batch_size: int | None = None,
    device: str | torch.device | None = None,
    progress: bool | Progress = False,
    shard: Literal["items", "both"] | None = None,
    process_group: Any = None,
) -> Recommendations:
    """Return each user's `k` best items and their scores; arguments as in `evaluate`.

    With a score function, pass `num_items` and `num_users` (or `user_ids`), unless a history gives both sizes; with
    `Embeddings(bias=)` alone, `num_users` or `user_ids`.

    Returns:
        `Recommendations`, a tuple of ids int64 [users, k] and scores [users, k], best first, ties by lower id; -1 and
        -inf where fewer than `k` candidates exist. Both are on the scores' device, rows in the order of `user_ids`. The
        result has the vocabularies of the first history (other histories are matched by id); its `to_frame()` has a
        row per recommended item, and `evaluate_lists` accepts it as `lists`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> had = trm.Interactions.from_frame({"user": ["al", "bo"], "item": ["x", "y"]})
        >>> best = trm.recommend(torch.eye(2), torch.eye(2), 1, exclude=had)
        >>> ids, scores = best
        >>> ids, best.to_dict()["item"]
        (tensor([[1],
                [0]]), ['y', 'x'])
    """
    check_choice("shard", shard, (None, "items", "both"))
    facts: dict[str, Any] = {}
    with in_agreement(shard, process_group, facts):
        k = check_k(k)
        interactions, exclude = _in_one_numbering(exclude)
        embeddings, allowed = Embeddings.of(users, items), None
        if embeddings is not None and isinstance(embeddings.allowed, Interactions) and shard is None:
            allowed, embeddings = embeddings.allowed, replace(embeddings, allowed=None)
            interactions = interactions or [allowed]
            allowed = allowed.numbered_as(interactions[0], "allowed", "exclude")
        if embeddings is None:
            assert callable(users)
            function_device = TargetDevice.of(device, torch.device("cpu")).device
            num_items = interactions[0].num_items if num_items is None and interactions else num_items
            if num_items is None:
                raise ValueError("with a score function, recommend needs num_items")
            scorer: Scorer = FunctionScorer(users, check_k(num_items, "num_items"), function_device)
        else:
            scorer = scorer_of(embeddings, None, None, device, shard, process_group)
            _check_size("num_items", num_items, scorer.num_items)
        if scorer.num_users is not None:
            _check_size("num_users", num_users, scorer.num_users)
            num_users = scorer.num_users
        num_users = interactions[0].num_users if num_users is None and interactions else num_users
        if num_users is None:
            if user_ids is None:
                raise ValueError("without embeddings of users, recommend needs num_users or user_ids")
            num_users = 1 + max(user_rows(user_ids, None).tolist(), default=-1)
        ids = user_rows(user_ids, check_k(num_users, "num_users", 0))
        check_k(scorer.num_items, "num_items")
        target_device = TargetDevice(scorer.device, device is not None)
        exclusions = Exclusions(exclude, scorer.num_items, target_device)
        if allowed is not None:
            if (allowed.num_users, allowed.num_items) != (num_users, scorer.num_items):
                has = f"{allowed.num_users} x {allowed.num_items}"
                raise ValueError(f"allowed is {has}, but there are {num_users} users and {scorer.num_items} items")
            allowed = target_device.move("allowed", allowed)
        sizes = exclusions.lengths(torch.zeros(num_users, dtype=torch.int64, device="cpu")).index_select(0, ids)
        is_first = shard is None or torch.distributed.get_rank(process_group) == 0
        bar = ProgressBar(progress, len(ids), is_first)
        if shard is not None:
            facts |= {"k": k, "user_ids": fingerprint(ids), "batch_size": batch_size}
            facts["history"] = exclusions.hashes()
    if is_first:
        is_out = scorer.leaves_out_item_0 or any(mask[0] for mask in exclusions.masks)
        cure = f"Embeddings(..., allowed=torch.arange({scorer.num_items}) > 0)"
        warn_of_item_0(exclusions.interactions, is_out, cure)
    top = _TopItems(scorer, exclusions, allowed, ids, k=k, is_shared=shard is not None, process_group=process_group)
    with bar, evaluating(users):
        for batch in batches(scorer, torch.arange(len(ids), device="cpu"), sizes, top.add, batch_size):
            with together(shard is not None, scorer.device, process_group):
                bar.advance(batch, None)
    user_ids, item_ids = (interactions[0].user_ids, interactions[0].item_ids) if interactions else (None, None)
    return Recommendations(top.items, top.scores, ids, user_ids=user_ids, item_ids=item_ids)


class _TopItems:
    """The `k` best items of each user and their scores, collected batch by batch."""

    def __init__(
        self,
        scorer: Scorer,
        exclusions: Exclusions,
        allowed: Interactions | None,
        ids: Tensor,
        k: int,
        is_shared: bool,
        process_group: Any,
    ) -> None:
        self._scorer = scorer
        self._exclusions = exclusions
        self._allowed = allowed
        self._ids = ids
        self._is_shared = is_shared
        self._process_group = process_group
        self.items = torch.full((len(ids), k), -1, device=scorer.device)
        """Int64 [n, k], best first; -1 = fewer candidates."""
        self.scores = torch.empty((0, k), dtype=scorer.dtype, device=scorer.device)
        """Float [n, k], -inf = fewer candidates; empty before the first batch."""

    def add(self, batch: Tensor, at_once: int) -> None:
        """Rank the items for the users in a batch of rows of `ids`, `at_once` users at a time."""
        for rows in torch.split(batch, at_once):
            users = self._ids[rows]
            scored = self._scorer.scores(users, at_once)
            scores = scored if isinstance(scored, Tensor) else next(iter(scored.chunks()))  # type: ignore[union-attr]
            if self._is_shared:
                with raise_on_all_ranks(self._scorer.device, self._process_group):
                    _check_finite(scores, users)
            else:
                _check_finite(scores, users)
            start, stop = self._scorer.offset, self._scorer.offset + scores.shape[1]
            masks = [mask[start:stop] for mask in self._exclusions.masks]
            if self._allowed is not None:
                candidates = self._allowed.select(users).items
                is_out = torch.ones(len(users), scores.shape[1] + 1, dtype=torch.bool, device=scores.device)
                is_out.scatter_(1, candidates.where(candidates >= 0, scores.shape[1]), False)
                masks.append(is_out[:, :-1])
            columns = self._exclusions.excluded(users)
            if columns is not None:  # items of other processes become padding
                columns = torch.where((columns >= start) & (columns < stop), columns - start, -1)
            top_scores, top_items = best_items(scores, start, self.items.shape[1], masks, columns)
            if self._is_shared:
                top_scores, top_items = best_of_processes((top_scores, top_items), self._process_group)
            if not len(self.scores):  # a function's scores may have another dtype than the scorer expects
                self.scores = scores.new_full(self.items.shape, -torch.inf)
            rows = rows.to(self.items.device)
            self.items[rows], self.scores[rows] = top_items, top_scores


def _check_finite(scores: Tensor, users: Tensor) -> None:
    """Raise for NaN and infinity."""
    if not scores.shape[1]:
        return
    wrong = ~(scores.amax(1) < torch.inf)
    if wrong.any():
        user = int(users[wrong.cpu()][0])
        raise ValueError(f"{in_words(int(wrong.sum()), len(wrong))} {VIOLATIONS['scores']}: user {user}")


def _check_size(name: str, number: int | None, known: int) -> None:
    """Refuse a `num_users` or `num_items` that differs from the sizes of the embeddings."""
    if number not in (None, known):
        raise ValueError(f"{name}={number!r} contradicts the {known} embeddings: leave {name} out")


def _in_one_numbering(exclude: Histories | None) -> tuple[Sequence[Interactions], tuple[Any, ...]]:
    """Return the `Interactions` in `exclude`, and all of `exclude` with the row numbers of its first `Interactions`."""
    entries = [from_matrix("exclude", excluded) for excluded in exclude_entries(exclude)]
    renumbered = list(entries)
    indices = [index for index, excluded in enumerate(renumbered) if isinstance(excluded, Interactions)]
    for index in indices[1:]:
        reference = renumbered[indices[0]]
        renumbered[index] = renumbered[index].numbered_as(reference, f"exclude[{index}]", f"exclude[{indices[0]}]")
    return [entries[index] for index in indices], tuple(renumbered)
