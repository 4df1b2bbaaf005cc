"""`RankedLists`: lists in order, by one scatter of ranks or one sort of scores. `ListSource`: their input by batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.core.checks import warn_caller
from torchrecmetrics.core.options import Needs, Options
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.data.catalogue import Catalogue
from torchrecmetrics.evaluation.evaluate import FEW
from torchrecmetrics.evaluation.scorers import ENTRY_BYTES, RankingSource
from torchrecmetrics.evaluation.sides import ListEntries, Sides
from torchrecmetrics.evaluation.test_set import Batch, TestSet
from torchrecmetrics.inputs.jagged import side_by_side
from torchrecmetrics.inputs.lists import Duplicates, Lists
from torchrecmetrics.results.evaluation import EvaluationCounts
from torchrecmetrics.tables.entries import Entries
from torchrecmetrics.tables.vocabulary import Vocabulary

Column = TypeVar("Column", Tensor, Tensor | None)


class RankedLists(NamedTuple):
    """Recommended lists of all users, concatenated."""

    offsets: Tensor
    """Int64 [U + 1]: index in `items` at which the list of each user begins."""
    items: Tensor
    """Int32 [E], best first."""
    scores: Tensor | None
    """Float64 [E], one per item, never increasing within a list; None = the lists were not ordered by scores."""
    rows: Tensor | None
    """Row of each entry in the source, int64 [E]; None = the entries of the source are in order."""
    source: Entries
    """The entries as they were read, which name rows in messages."""
    left_out: Tensor
    """Items of lists that are not ranked, int32 [n]."""
    num_repeated: int = 0
    """Number of rows of a ranked table that repeat another row's user, item and rank, and were left out."""

    @classmethod
    def of(cls, lists: ListEntries, is_ranked: Tensor, user_ids: Vocabulary, merges: bool = False) -> RankedLists:
        """Put entries in order: by user, then by rank, or by descending score and item.

        Args:
            lists: the entries.
            is_ranked: bool [U]: users whose lists are ranked; the lists of others are left out.
            user_ids: ids of all users.
            merges: True if rows of one user, item and rank are the same row.

        Raises:
            ValueError: for values that are no ranks, ranks that do not number a list, and if no user's list is ranked.
        """
        num_users = len(is_ranked)
        is_ranked = torch.nn.functional.pad(is_ranked, (0, len(user_ids) - num_users))
        if not bool(is_ranked[lists.owners].any()):
            listed, known = user_ids[int(lists.owners[0])], user_ids[int(is_ranked.nonzero()[0])]
            hint = "" if lists.source.names else " (A dict of columns needs the columns that user= and item= name.)"
            raise ValueError(
                f"no user of {lists.source.what} has ground truth: users are such as {listed!r}, but target has "
                f"{known!r}; are these ids of one kind?{hint}"
            )
        users, items, ranks, scores = lists.users, lists.items, _ranks(lists.source), _scores(lists.source)
        kept = is_ranked.index_select(0, users)
        left_out, num_repeated = ~kept, 0
        if merges and ranks is not None:
            is_new = _new_rows(users, ranks, items)
            num_repeated, kept, left_out = int((kept & ~is_new).sum()), kept & is_new, left_out & is_new
        rows = None if bool(kept.all()) else kept.nonzero()[:, 0]
        users, ranks, scores = _taken(users, rows), _taken(ranks, rows), _taken(scores, rows)
        left_out, items = items[left_out], _taken(items, rows)
        offsets = torch.nn.functional.pad(torch.bincount(users, minlength=num_users).cumsum(0), (1, 0))
        if ranks is None:
            order = _order(users) if scores is None else _order(users, ~_sort_keys(scores), items)
        else:
            order = _by_rank(users, ranks, offsets)
            if order is None:
                raise _wrong_rank(users, ranks, rows, lists.source, user_ids)
        return cls(
            offsets=offsets,
            items=_taken(items, order),
            scores=_taken(scores, order),
            rows=order if rows is None else _taken(rows, order),
            source=lists.source,
            left_out=left_out,
            num_repeated=num_repeated,
        )

    @property
    def lengths(self) -> Tensor:
        """Number of items in each user's list, int64 [U]."""
        return self.offsets.diff()

    def select(self, users: Tensor, width: int) -> tuple[Tensor, Tensor | None]:
        """Return the lists of the given users, int64 [B, width], padded with -1, and the scores of their items."""
        start, stop = self.offsets[users], self.offsets[users + 1]
        lists = side_by_side(self.items, start, stop, width, -1).long()
        return lists, None if self.scores is None else side_by_side(self.scores, start, stop, width, 0)

    def at(self, entry: int, role: str) -> str:
        """Return the source, the row and the column of an entry, for messages."""
        return self.source.at(entry if self.rows is None else int(self.rows[entry]), role)

    def repeat(self, users: Tensor) -> tuple[int, int, str] | None:
        """Return the first given user whose list repeats an item, the item, and where it is repeated; or None."""
        for user in users.tolist():
            start, stop = self.offsets[user : user + 2].tolist()
            items = self.items[start:stop]
            earlier = (items[:, None] == items[None, :]).tril(-1).any(1).nonzero()[:, 0]
            if len(earlier):
                return user, int(items[earlier[0]]), self.at(start + int(earlier[0]), "item")
        return None

    def num_cut_ties(self, depth: int | None) -> int:
        """Return the number of lists that end within the first `depth` ranks, among equal scores."""
        lengths = self.lengths
        if self.scores is None or not len(self.scores):
            return 0
        may_be_cut = lengths > 1
        starts, lengths = self.offsets[:-1][may_be_cut], lengths[may_be_cut]
        last = self.scores[starts + lengths - 1]
        deepest = lengths if depth is None else lengths.clamp(max=depth)
        return int(((self.scores[starts + lengths - 2] == last) & (self.scores[starts + deepest - 1] == last)).sum())


def _ranks(source: Entries) -> Tensor | None:
    """Return the ranks of entries, int32 [E]; None = they have none."""
    ranks = source.numbers("rank")
    if ranks is None:
        return None
    wrong = (ranks < 0) | (ranks >= 2**31 - 1) | (ranks != ranks.floor() if ranks.is_floating_point() else False)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise ValueError(
            f"{source.name('rank')} holds {ranks[row].item()} in {source.row(row)}, which is no rank: 1, 2, 3, ..., "
            f"1 = best; numbers of which the highest is best are score={source.names['rank']!r}"
        )
    return ranks.int()


def _scores(source: Entries) -> Tensor | None:
    """Return the scores of entries in their order, float64 [E]; None = they have none.

    Integers that float64 cannot hold are replaced by their ranks.
    """
    scores = source.numbers("score")
    if scores is not None and not scores.is_floating_point() and len(scores) and int(scores.abs().max()) > 2**53:
        scores = torch.unique(scores, return_inverse=True)[1]
    return None if scores is None else scores.double()


def _sort_keys(scores: Tensor) -> Tensor:
    """Return the bits of float64 scores as int64 in the same order, [E]: integers are sorted in half of the time."""
    bits = (scores + 0.0).view(torch.int64)  # -0.0 becomes 0.0
    return torch.where(bits < 0, bits ^ (2**63 - 1), bits)


def _by_rank(users: Tensor, ranks: Tensor, offsets: Tensor) -> Tensor | None:
    """Return the entry at each place of the lists, int [E]; None unless ranks run 1, 2, 3, ... in each list, or 0, 1,
    2, ... in all.

    No entry is put before the start of its list. So if each place is filled, the first list fills its own places, only
    the second list can then fill those that follow, and so on.
    """
    lowest = 0 if bool((ranks == 0).any()) else 1
    places = (offsets - lowest).index_select(0, users).add_(ranks).clamp_(max=len(ranks))
    rows = torch.arange(len(ranks), dtype=torch.int32 if len(ranks) < 2**31 else torch.int64, device="cpu")
    entries = rows.new_full((len(ranks) + 1,), -1).scatter_(0, places, rows)[:-1]
    return None if bool((entries < 0).any()) else entries


def _wrong_rank(users: Tensor, ranks: Tensor, rows: Tensor | None, source: Entries, user_ids: Vocabulary) -> ValueError:
    """Return the error that names the first rank, by user and rank, that is missing or repeated."""
    order = _order(users, ranks)
    users, ranks = _taken(users, order), _taken(ranks, order)
    starts = torch.searchsorted(users, users)
    lowest = 0 if int((ranks == 0).sum()) == len(torch.unique(users)) else 1
    entry = int((ranks - lowest != torch.arange(len(ranks), device="cpu") - starts).nonzero()[0])
    row = entry if order is None else int(order[entry])
    where = source.at(row if rows is None else int(rows[row]), "rank")
    fault = f"{where}: user {user_ids[int(users[entry])]!r} has rank {int(ranks[entry])}"
    cure = "if ranks are missing on purpose, pass"
    if entry == int(starts[entry]):
        fault += " as the best"
    elif ranks[entry] == ranks[entry - 1]:
        fault += " twice"
        cure = "duplicates='first' merges repeated rows; other items at this rank are a second list: pass one list, or"
    else:
        fault += f" after {int(ranks[entry - 1])}"
    return ValueError(
        f"{fault}, but ranks must run 1, 2, 3, ... in each list (or 0, 1, 2, ... in all); {cure} the negated ranks as "
        "score=..."
    )


def _order(*keys: Tensor) -> Tensor | None:
    """Return the order by the first key, then by the second, and so on, all [E]; None = the entries are in order.

    Entries with the same keys stay in their order.
    """
    if _in_order(keys):
        return None
    order: Tensor | None = None
    for key in reversed(keys):
        by_key = (key if order is None else key.index_select(0, order)).argsort(stable=True)
        order = by_key if order is None else order.index_select(0, by_key)
    return order


def _in_order(keys: Sequence[Tensor]) -> bool:
    """Return True if rows, whose keys are [E] each, ascend by the first key, then by the second, and so on."""
    ascends = torch.ones(max(0, len(keys[0]) - 1), dtype=torch.bool, device="cpu")
    for key in reversed(keys):
        ascends = (key[1:] > key[:-1]) | ((key[1:] == key[:-1]) & ascends)
    return bool(ascends.all())


def _new_rows(*columns: Tensor) -> Tensor:
    """Return which rows of columns, [E] each, do not repeat an earlier row, bool [E]."""
    order = _order(*columns)
    differs = torch.ones(len(columns[0]), dtype=torch.bool, device="cpu")
    differs[1:] = torch.stack([_taken(column, order).diff() != 0 for column in columns]).any(0)
    return differs if order is None else torch.empty_like(differs).scatter_(0, order, differs)


def _taken(column: Column, rows: Tensor | None) -> Column:
    """Return the entries of a column, [E], at the given rows; None = all, in their order."""
    return column if column is None or rows is None else column.index_select(0, rows)


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
        self.lists: RankedLists = lists
        self.sides: Sides = sides
        self.complete: bool = complete
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
        """Return the counts of unmatched ids, with an id of each side; warn if hardly any id matches.

        Raises:
            ValueError: if ten users or more have lists, and no listed item is relevant to any user, unless a
                catalogue holds listed and relevant items.
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
        num_known = 0 if self.catalogue is None else self.catalogue.num_items
        knows_both = bool(unlisted.side[:num_known].any()) and bool(unlisted.other[:num_known].any())
        if int(unlisted.rows.sum()) == num_items and not knows_both:
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
            f"are of users without ground truth; target has users such as {user!r}, lists such as {other!r}: are these "
            "ids of one kind, and of one split?"
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
