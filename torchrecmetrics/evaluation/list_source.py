"""`ListSource`: recommended lists as a source of rankings, with checks of their length, items and hits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.core.checks import warn_caller
from torchrecmetrics.core.options import Needs, Options
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.evaluation.ranked_lists import RankedLists
from torchrecmetrics.evaluation.scorers import ENTRY_BYTES, RankingSource
from torchrecmetrics.evaluation.sides import Sides
from torchrecmetrics.evaluation.test_set import Batch
from torchrecmetrics.inputs.lists import Duplicates, Lists
from torchrecmetrics.tables.vocabulary import called

LISTS_MEMORY = 2**19 * ENTRY_BYTES
"""Bytes that listed, relevant and excluded items of a batch may take, padding included."""
FEW = 10
"""Minimum number of users for questions about a lack of hits, which is likely by chance for fewer users."""
_CHANCE = 1e-6
"""Probability that random lists have no hit below which a lack of hits is an error."""


class ListSource(RankingSource):
    """Source of users' recommended lists, with counts over the lists that it has ranked.

    Args:
        lists: the lists.
        sides: names their users and items.
        depth: largest cut-off of the metrics; None = all ranks.
        complete: True if nothing but the lists is recommended.
        duplicates: as in `evaluate_lists`.
    """

    device: torch.device = torch.device("cpu")
    memory: int = LISTS_MEMORY

    def __init__(
        self, lists: RankedLists, sides: Sides, depth: int | None, complete: bool, duplicates: Duplicates
    ) -> None:
        self.lists, self.sides = lists, sides
        self.depth, self.complete = depth, complete
        self.duplicates: Duplicates = duplicates
        self.lengths: Tensor = lists.lengths
        """Number of items in each user's list, int64 [U]."""
        self.longest: int = int(self.lengths.max())
        self.row_bytes: int = (depth or 1) * ENTRY_BYTES
        self.num_entries: int | Tensor = self.lengths
        self.num_repeated: int = lists.num_repeated
        """Number of repeated entries in the lists that were ranked."""
        self.has_hit: bool = False
        """True if a relevant item was in a list that was ranked."""

    def check(self, collection: RecMetricCollection) -> None:
        """Raise if lists are too short for the metrics, or the catalogue lacks listed items."""
        for key, metric in collection.metrics.items():
            check_depth(key, metric.needs, self.complete, (self.longest, self.lists.source.what))
        catalogue = collection.catalogue
        if catalogue is None or not collection.evaluator._batch_needs.list_depth:
            return
        beyond = self.lists.items >= catalogue.num_items
        if bool(beyond.any()):
            number, item = int(beyond.sum()), called(self.sides.item_ids, int(self.lists.items[beyond][0]))
            raise ValueError(
                f"the catalogue lacks the items of {number} list {'entry' if number == 1 else 'entries'} of "
                f"{self.lists.source.what}, such as {item}: make the catalogue of all items that can be recommended, "
                "Catalogue.from_interactions(train.recode(item_ids=every_id)), with categories and embeddings in the "
                "order of these ids"
            )

    def input(self, batch: Batch, at_once: int) -> ListsOfUsers:
        """Return the lists of a batch of users."""
        return ListsOfUsers(self, batch)

    def user(self, user: int) -> str:
        """Return a user by id, for messages."""
        return f"user {called(self.sides.user_ids, user)}"


class ListsOfUsers(NamedTuple):
    """Input of the lists of a batch of users."""

    source: ListSource
    batch: Batch

    def rank(self, needs: Needs, options: Options) -> Ranking:
        """Return the ranking of the lists.

        Raises:
            ValueError: if a list repeats an item or is too short without excluded items, where the options forbid it.
        """
        source, batch = self.source, self.batch
        lengths = source.lengths[batch.users]
        # padded to the longest list of all users, up to the width from which more padding changes no value
        width = max(needs.depth or 1, batch.target.items.shape[1], int(lengths.max()) + 1)
        item_ids, scores = source.lists.select(batch.users, min(source.longest, width) or 1)
        lists = Lists(
            item_ids,
            target=batch.target.items,
            gains=batch.target.values,
            exclude=batch.exclude,
            complete=source.complete,
            duplicates=source.duplicates,
            history=batch.history,
            scores=scores,
        )
        try:
            ranking = lists.rank(needs, options)
        except ValueError:
            if source.duplicates == "error" and (repeated := source.lists.repeat(batch.users)) is not None:
                user, item, where = repeated
                fault = f"{source.user(user)} has item {called(source.sides.item_ids, item)} twice"
                raise ValueError(f"{where}: {fault}; duplicates='first' keeps only its first rank") from None
            raise
        may_shorten = batch.exclude is not None or ranking.num_repeated is not None or options.padding_idx is not None
        if may_shorten and not source.complete and options.validate_args is not False:
            check_shortened(ranking, lengths, needs.depth, batch.users, source.user)
        source.has_hit = source.has_hit or bool(ranking.ranks.isfinite().any())
        if ranking.num_repeated is not None:
            source.num_repeated += int(ranking.num_repeated.sum())
        return ranking


def check_depth(label: str, needs: Needs, complete: bool, longest: tuple[int, str] | None = None) -> None:
    """Refuse a metric that needs more than lists, and lists that are all shorter than the metric's cut-off.

    Args:
        label: label of the metric.
        needs: needs of the metric.
        complete: True if nothing but the lists is recommended.
        longest: length of the longest list, and the name of the lists; None = the lists are not known yet.
    """
    if needs.num_ranked and needs.depth is None:
        raise ValueError(f"{label} compares all items, also those that no list holds: pass scores, or embeddings")
    if complete:
        return
    if longest is None and needs.depth is None:
        raise ValueError(
            f"{label} reads the whole ranking, but lists are only its top: if nothing else is recommended, pass "
            "complete=True"
        )
    if longest is not None and (needs.depth is None or needs.depth > longest[0]):
        extent = "the whole ranking" if needs.depth is None else f"{needs.depth} ranks"
        raise ValueError(
            f"{label} reads {extent}, but the longest list of {longest[1]} holds {_items_text(longest[0])}: recommend "
            f"more, or if nothing else is recommended, pass complete=True",
        )


def check_shortened(
    ranking: Ranking, before: Tensor, depth: int | None, numbers: Tensor, user_of: Callable[[int], str]
) -> None:
    """Refuse lists that became shorter than the metrics' cut-off when items were removed from them.

    Args:
        ranking: ranking of the lists.
        before: length of each list as it was passed in, [B].
        depth: largest cut-off of the metrics; None = all ranks.
        numbers: row numbers, [B], for messages.
        user_of: function from a row number to the name of the list's user.
    """
    if ranking.lists is None or ranking.lists.stays is None or depth is None:
        return
    left = ranking.lists.stays.sum(1)
    short = (left < depth) & (before >= depth)
    if bool(short.any()):
        row = int(short.nonzero()[0])
        raise ValueError(
            f"the list of {user_of(int(numbers[row]))} holds {_items_text(int(left[row]))} after excluded and "
            f"repeated ones are removed, but the metrics read {depth} ranks: recommend k + history, or if nothing else "
            f"is recommended, pass complete=True",
        )


def _items_text(number: int) -> str:
    return f"{number} {'item' if number == 1 else 'items'}"


def check_hits(lists: RankedLists, sides: Sides) -> None:
    """Warn if no listed item is relevant to its user, from ten users on.

    Args:
        lists: the lists.
        sides: the ground truth, and the ids of users and items.

    Raises:
        ValueError: if no listed item is one of the ground truth or the catalogue, where random lists of the items of
            both sides would hit nothing with a chance below one in a million.
    """
    target = sides.target
    lengths = lists.lengths * (target.host_degree > 0)
    num_users = int((lengths > 0).sum())
    if num_users < FEW:
        return
    num_distinct = len(torch.unique(torch.cat([lists.items.long(), target.items])))
    mean_hits = float((lengths * target.host_degree).sum()) / num_distinct
    listed, relevant = (called(sides.item_ids, int(items[0])) for items in (lists.items, target.items))
    text = (
        f"no list of {num_users} users holds an item that is relevant to its user; items of {lists.source.what} look "
        f"like {listed}, those of target like {relevant}"
    )
    if math.exp(-mean_hits) < _CHANCE and not bool((lists.items < sides.num_known_items).any()):
        raise ValueError(f"{text}; random lists would hold {mean_hits:.0f}: are these ids of one kind?")
    warn_caller(f"{text}: are these ids of one kind?")
