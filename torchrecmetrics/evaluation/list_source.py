"""`ListSource`: recommended lists as a source of rankings, with checks of their length, items and hits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.core.checks import warn_caller
from torchrecmetrics.core.options import Needs, Options
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.data.catalogue import Catalogue
from torchrecmetrics.evaluation.evaluate import FEW
from torchrecmetrics.evaluation.ranked_lists import RankedLists
from torchrecmetrics.evaluation.scorers import ENTRY_BYTES, RankingSource
from torchrecmetrics.evaluation.sides import Sides
from torchrecmetrics.evaluation.test_set import Batch, TestSet
from torchrecmetrics.inputs.lists import Duplicates, Lists
from torchrecmetrics.results.evaluation import EvaluationCounts
from torchrecmetrics.tables.vocabulary import Vocabulary

LISTS_MEMORY = 2**19 * ENTRY_BYTES
"""Bytes that listed, relevant and excluded items of a batch may take, padding included."""
_MOST = 0.9
"""Share of unmatched users, on both sides, from which on a warning is given."""


class ListSource(RankingSource):
    """Source of users' recommended lists, with counts over the lists that it has ranked.

    Args:
        lists: the lists.
        sides: names their users and items.
        collection: the metrics, which say how deep they read; and their catalogue.
        complete: True if nothing but the lists is recommended.
        duplicates: as in `evaluate_lists`.
    """

    device: torch.device = torch.device("cpu")
    memory: int = LISTS_MEMORY

    def __init__(
        self,
        lists: RankedLists,
        sides: Sides,
        collection: RecMetricCollection,
        complete: bool,
        duplicates: Duplicates,
    ) -> None:
        self.lists, self.sides, self.complete = lists, sides, complete
        self.catalogue: Catalogue | None = collection.catalogue
        self.depth: int | None = collection.evaluator.formulas.needs.depth
        """Largest cut-off of the metrics; None = all ranks."""
        self.duplicates: Duplicates = duplicates
        self.lengths: Tensor = lists.lengths
        """Number of items in each user's list, int64 [U]."""
        self.longest: int = int(self.lengths.max())
        self.row_bytes: int = (self.depth or 1) * ENTRY_BYTES
        self.num_entries: int | Tensor = self.lengths
        self.num_repeated: int = lists.num_repeated
        """Number of repeated entries in the lists that were ranked."""
        self.has_hit: bool = False
        """True if a relevant item was in a list that was ranked."""

    def check(self, collection: RecMetricCollection) -> None:
        """Raise if lists are too short for the metrics, or the catalogue lacks listed items."""
        for key, metric in collection.metrics.items():
            check_depth(key, metric.needs, self.complete, (self.longest, self.lists.source.what))
        if self.catalogue is None or not collection.evaluator.formulas.needs.list_depth:
            return
        beyond = self.lists.items >= self.catalogue.num_items
        if bool(beyond.any()):
            number, item = int(beyond.sum()), self.sides.item_ids[int(self.lists.items[beyond][0])]
            raise ValueError(
                f"the catalogue lacks the items of {number} list {'entry' if number == 1 else 'entries'} of "
                f"{self.lists.source.what}, such as {item!r}: make the catalogue of all items that can be recommended, "
                "Catalogue.from_interactions(train.recode(item_ids=every_id)), with categories and embeddings in the "
                "order of these ids"
            )

    def input(self, batch: Batch, at_once: int) -> ListsOfUsers:
        """Return the lists of a batch of users."""
        return ListsOfUsers(self, batch)

    def user(self, user: int) -> str:
        """Return a user by id, for messages."""
        return f"user {self.sides.user_ids[user]!r}"

    def counts(self, test: TestSet) -> EvaluationCounts:
        """Return the counts of what did not meet, with an id of each side; warn if hardly anything met.

        Raises:
            ValueError: if ten users or more have lists, and no listed item is relevant to any user or in the catalogue.
        """
        lists, target, users, items = self.lists, test.target, self.sides.user_ids, self.sides.item_ids
        histories = [] if test.exclusions is None else test.exclusions.interactions
        has_list, has_target = _mask(self.sides.lists.owners, users), _mask(target.users, users)
        is_served, has_history = _mask(self.lengths.nonzero()[:, 0], users), self.sides.has_history
        num_listed = torch.bincount(torch.cat([lists.items, lists.left_out]), minlength=len(items))
        is_listed, is_relevant = num_listed > 0, _mask(target.items, items)
        is_unknown = is_listed.clone()
        is_unknown[: self.sides.num_known_items] = False
        is_excluded = _mask(torch.cat([target.items[:0], *(history.items for history in histories)]), items)
        unmatched = {
            "num_unserved": _Unmatched(has_target & ~is_served, has_target, has_list, users),
            "num_left_out": _Unmatched(has_list & ~has_target, has_list, has_target, users),
            "num_unlisted": _Unmatched(is_relevant & ~is_listed, is_relevant, is_listed, items),
            "num_unknown": _Unmatched(is_unknown, is_listed, is_relevant, items),
            "num_unmet": _Unmatched(is_excluded & ~is_listed & ~is_relevant, is_excluded, is_listed, items),
        }
        if histories:
            unmatched["num_without_history"] = _Unmatched(has_target & ~has_history, has_target, has_history, users)
        numbers = {name: int(of_count.rows.sum()) for name, of_count in unmatched.items()}
        examples = {name: of_count.examples() for name, of_count in unmatched.items() if numbers[name]}
        numbers["num_unknown"] = int(num_listed[is_unknown].sum())
        _warn_of_other_users(unmatched["num_unserved"], unmatched["num_left_out"])
        if not self.has_hit:
            self._explain_no_hit(unmatched["num_unserved"], unmatched["num_unlisted"])
        return EvaluationCounts(
            **numbers,
            num_excluded=self.sides.num_excluded,
            num_repeated=self.num_repeated,
            num_cut_ties=0 if self.complete else lists.num_cut_ties(self.depth),
            examples=examples,
            unread=self.sides.unread,
        )

    def _explain_no_hit(self, unserved: _Unmatched, unlisted: _Unmatched) -> None:
        """Warn of ten lists or more without a hit; raise if no item is on both sides, and no catalogue holds both."""
        num_users, num_items, scores = int(unserved.side.sum()), int(unlisted.side.sum()), self.lists.scores
        num_served, what = num_users - int(unserved.rows.sum()), self.lists.source.what
        if not num_served or (scores is not None and not bool((scores > -torch.inf).any())):
            if num_users >= FEW:
                holds = "holds an item" if scores is None else "holds an item with a score above -inf"
                warn_caller(f"no list of {num_users} users {holds}")
            return
        if num_served < FEW:
            return
        relevant, listed = unlisted.examples()
        such = (
            f"items of {what} are such as {listed!r}, those of target such as {relevant!r}: are these ids of one kind?"
        )
        held = 0 if self.catalogue is None else self.catalogue.num_items
        both_are_held = bool(unlisted.side[:held].any()) and bool(unlisted.other[:held].any())
        if int(unlisted.rows.sum()) == num_items and not both_are_held:
            raise ValueError(
                f"no item of {what} is an item of target; {such} If they are, pass catalogue= with the items of both, "
                "trm.Catalogue.from_interactions(train)"
            )
        warn_caller(f"no list of {num_served} users holds an item that is relevant to its user; {such}")


class _Unmatched(NamedTuple):
    """Users or items of one side that another side lacks."""

    rows: Tensor
    """The unmatched ones, bool [n]."""
    side: Tensor
    """All of this side, bool [n]."""
    other: Tensor
    """All of the other side, bool [n]."""
    ids: Vocabulary
    """Ids of all sides, [n]."""

    def examples(self) -> list[Any]:
        """Return an id of each side, an unmatched one where there is any; of a side without ids none."""
        alone = (self.side, self.rows), (self.other, self.other & ~self.side)
        rows = [int((side.int() + unmatched.int()).argmax()) for side, unmatched in alone if bool(side.any())]
        return [self.ids[row] for row in rows]


def _mask(rows: Tensor, ids: Vocabulary) -> Tensor:
    """Return a mask of the given rows, bool [len(ids)]."""
    return torch.zeros(len(ids), dtype=torch.bool, device="cpu").index_fill_(0, rows.long(), True)


def _warn_of_other_users(unserved: _Unmatched, left_out: _Unmatched) -> None:
    """Warn if most users have no list, and most lists are of users without ground truth."""
    num_users, num_lists = int(unserved.side.sum()), int(left_out.side.sum())
    num_unserved, num_left_out = int(unserved.rows.sum()), int(left_out.rows.sum())
    few_meet = num_unserved >= _MOST * num_users and num_left_out >= _MOST * num_lists
    if few_meet and min(num_users, num_lists) >= FEW:
        user, other = unserved.examples()
        warn_caller(
            f"{num_unserved} of {num_users} users of target have no list, while {num_left_out} of {num_lists} lists "
            f"are of users without ground truth, such as {user!r} and {other!r}: are these ids of one kind, and of one "
            "split?"
        )


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
                raise ValueError(
                    f"{where}: {source.user(user)} has item {source.sides.item_ids[item]!r} twice; duplicates='first' "
                    "keeps only its first rank; if these are lists of several models, pass "
                    "one list per user"
                ) from None
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
            f"complete=True",
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
