"""`recommend`: each user's best items, as `Recommendations`, which can be exported as frames and dicts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from torchrecmetrics.core.checks import VIOLATIONS, check_k, frame_of, in_words
from torchrecmetrics.core.distributed import agreement, fingerprint
from torchrecmetrics.core.options import Needs, Options
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.evaluation.evaluate import Progress, ProgressBar, batches, check_shard, scorer_of
from torchrecmetrics.evaluation.scorers import (
    CandidateScorer,
    Embeddings,
    FunctionScorer,
    ScoreFunction,
    Scorer,
    evaluating,
)
from torchrecmetrics.evaluation.test_set import (
    Batch,
    Exclusions,
    Histories,
    TargetDevice,
    exclude_entries,
    from_matrix,
    user_rows,
    warn_of_item_0,
)
from torchrecmetrics.inputs.batch_input import SelectedItems, no_target
from torchrecmetrics.tables.vocabulary import Vocabulary


class Recommendations(tuple[Tensor, Tensor]):
    """Result of `recommend`: a tuple, `ids, scores = recommendations`, that also holds the users.

    `ids` int64 [n, k] are row numbers of items, best first, -1 = no candidate; `scores` [n, k] are the items' scores;
    `users` int64 [n] are row numbers of users. `user_ids` and `item_ids` are the ids of these row numbers, or None if
    neither the history (`exclude`) has vocabularies nor `with_ids` gave them.
    """

    users: Tensor
    user_ids: Vocabulary | None
    item_ids: Vocabulary | None

    def __new__(
        cls,
        ids: Tensor,
        scores: Tensor,
        users: Tensor,
        user_ids: Vocabulary | None = None,
        item_ids: Vocabulary | None = None,
    ) -> Recommendations:
        """Return the tuple (ids, scores), with users and vocabularies as attributes."""
        made = super().__new__(cls, (ids, scores))
        made.users, made.user_ids, made.item_ids = users, user_ids, item_ids
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (*self, self.users, self.user_ids, self.item_ids)

    @property
    def ids(self) -> Tensor:
        """Row numbers of items, int64 [n, k]."""
        return self[0]

    @property
    def scores(self) -> Tensor:
        """Scores of the items, [n, k]."""
        return self[1]

    def with_ids(self, user_ids: Any = None, item_ids: Any = None) -> Recommendations:
        """Return the recommendations with other vocabularies; None = keep the present vocabulary.

        Raises:
            ValueError: for a vocabulary that is too short.
        """
        users = self.user_ids if user_ids is None else Vocabulary.named("user_ids", user_ids)
        items = self.item_ids if item_ids is None else Vocabulary.named("item_ids", item_ids)
        for name, ids, rows in (("user_ids", users, self.users), ("item_ids", items, self.ids)):
            if ids is not None and rows.numel() and len(ids) <= int(rows.max()):
                raise ValueError(f"{name} holds {len(ids)} ids, but row {int(rows.max())} is recommended")
        return Recommendations(self.ids, self.scores, self.users, user_ids=users, item_ids=items)

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the columns user, item, rank (from 1) and score, a row per recommended item; ids where known."""
        ids, scores = self.ids.cpu(), self.scores.cpu()
        row, column = (ids >= 0).nonzero(as_tuple=True)
        users, items = self.users.cpu()[row], ids[row, column]
        return {
            "user": users.tolist() if self.user_ids is None else self.user_ids.ids(users),
            "item": items.tolist() if self.item_ids is None else self.item_ids.ids(items),
            "rank": (column + 1).tolist(),
            "score": scores[row, column].tolist(),
        }

    def to_frame(self, library: str = "pandas") -> Any:
        """Return the columns of `to_dict` as a frame of "pandas", "polars" or "pyarrow".

        Raises:
            ImportError: where that library is not installed.
        """
        return frame_of(library, self.to_dict())


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
    check_shard(shard, (None, "items", "both"))
    facts: dict[str, Any] = {}
    with agreement(facts, process_group, applies=shard is not None):
        k = check_k(k)
        interactions, exclude = _in_one_numbering(exclude)
        embeddings = Embeddings.of(users, items)
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
        exclusions = Exclusions(exclude, scorer.num_items, TargetDevice(scorer.device, device is not None))
        if isinstance(scorer, CandidateScorer):
            interactions = _use_candidates(scorer, interactions, exclusions, num_users)
        sizes = exclusions.lengths(torch.zeros(num_users, dtype=torch.int64, device="cpu")).index_select(0, ids)
        is_first = shard is None or torch.distributed.get_rank(process_group) == 0
        bar = ProgressBar(progress, len(ids), is_first)
        if shard is not None:
            facts |= {"k": k, "user_ids": fingerprint(ids), "batch_size": batch_size, "history": exclusions.hashes()}
    if is_first:
        out = scorer.leaves_out_item_0 or any(mask[0] for mask in exclusions.masks)
        warn_of_item_0(exclusions.interactions, out, f"Embeddings(..., allowed=torch.arange({scorer.num_items}) > 0)")
    together = partial(agreement, None, process_group, device=scorer.device, applies=shard is not None)
    top_items = torch.full((len(ids), k), -1, device=scorer.device)
    top_scores = torch.full(top_items.shape, -torch.inf, dtype=scorer.dtype, device=scorer.device)

    def add(rows: Tensor, at_once: int) -> None:
        """Rank the items for the users in rows of `ids`."""
        nonlocal top_scores
        ranking = _ranking(scorer, exclusions, ids[rows], at_once, k)
        with together():
            items, scores = _listed(ranking, ids[rows])
        top_scores, at = top_scores.to(scores.dtype), rows.to(scorer.device)  # a function may score in another dtype
        top_items[at, : items.shape[1]], top_scores[at, : items.shape[1]] = items, scores

    with bar, evaluating(users):
        for rows in batches(scorer, torch.arange(len(ids), device="cpu"), sizes, add, batch_size):
            with together():
                bar.advance(rows, None)
    user_ids, item_ids = (interactions[0].user_ids, interactions[0].item_ids) if interactions else (None, None)
    return Recommendations(top_items, top_scores, ids, user_ids=user_ids, item_ids=item_ids)


def _use_candidates(
    scorer: CandidateScorer, history: Sequence[Interactions], exclusions: Exclusions, num_users: int
) -> Sequence[Interactions]:
    """Give candidates the row numbers of the history, and take masked items out of them; return what has the ids."""
    candidates = scorer.candidates
    if history:
        candidates = candidates.numbered_as(history[0], "allowed", "exclude")
    for mask in exclusions.masks:
        candidates = candidates.without(mask.to(candidates.device))
    exclusions.masks = []
    scorer.use(candidates, num_users)
    return history or [candidates]


def _ranking(scorer: Scorer, exclusions: Exclusions, users: Tensor, at_once: int, k: int) -> Ranking:
    """Return the ranking of the items for users, [b], of which no item is relevant, with lists of `k` items."""
    nothing = SelectedItems(no_target(len(users), scorer.device), None)
    batch = Batch(users, nothing, exclusions.select(users), None)
    needs = Needs(depth=1, target=False, list_depth=k)
    return scorer.input(batch, at_once).rank(needs, Options(validate_args="deferred"))


def _listed(ranking: Ranking, users: Tensor) -> tuple[Tensor, Tensor]:
    """Return the listed items of users and their scores, [b, k] each; raise for scores that are NaN or infinite."""
    if ranking.rows.valid is not None and not bool(ranking.rows.valid.all()):
        wrong = ~ranking.rows.valid.cpu()
        count = in_words(int(wrong.sum()), len(wrong))
        raise ValueError(f"{count} {VIOLATIONS['scores']}: user {int(users[wrong][0])}")
    lists = ranking.listed()
    assert lists.scores is not None
    return lists.ids, lists.scores


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
