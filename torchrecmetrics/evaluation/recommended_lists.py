"""`RecommendedLists`: the lists of the users of a ground truth, in order, with its row numbers."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from torchrecmetrics.core.cures import Cure, CuredError
from torchrecmetrics.evaluation.list_entries import ListEntries
from torchrecmetrics.inputs.jagged import side_by_side
from torchrecmetrics.tables.unmatched import closest_pair
from torchrecmetrics.tables.vocabulary import Vocabulary, called

FIRST = Cure.option("duplicates", "first")
BY_SCORE = Cure.option("score", ...)


class RecommendedLists(NamedTuple):
    """Recommended lists of all users, concatenated."""

    offsets: Tensor
    """Int64 [U + 1]: index in `items` at which the list of each user of the ground truth begins."""
    items: Tensor
    """Int32 or int64 [E], best first."""
    scores: Tensor | None
    """Float64 [E], beside `items`, never rising within a list; None = the lists were not ordered by scores."""
    rows: Tensor
    """Row of `entries` of each entry, int64 [E], for messages."""
    entries: ListEntries
    user_ids: Vocabulary | None
    """Ids of the ground truth, then those of others; None = there are only row numbers."""
    item_ids: Vocabulary | None
    left_out: Tensor
    """Users whose lists are left out, row numbers of `user_ids`, int64 [n]."""
    num_repeated: int = 0
    """Number of rows of a ranked table that repeat another row's user, item and rank, and were left out."""

    @classmethod
    def of(
        cls,
        entries: ListEntries,
        user_ids: Vocabulary | None,
        item_ids: Vocabulary | None,
        is_ranked: Tensor | None,
        may_repeat: bool = False,
    ) -> RecommendedLists:
        """Put entries in order, with the row numbers of vocabularies.

        Args:
            entries: the lists.
            user_ids: all ids of users, those of a ground truth first; None = the rows of entries are row numbers.
            item_ids: as `user_ids`.
            is_ranked: bool [U]: users of the ground truth whose lists are ranked; the lists of other users are left
                out. None = all users.
            may_repeat: True if rows of one user, item and rank are the same row.

        Raises:
            ValueError: for ranks that do not number a list, and if no list is of a user who is ranked.
        """
        users, items = entries.users.numbered_in(user_ids), entries.items.numbered_in(item_ids)
        owners = entries.users._replace(rows=entries.owners).numbered_in(user_ids)
        rows, left_out = torch.arange(len(users), device="cpu"), owners[:0]
        num_users = len(user_ids or ()) or int(owners.max()) + 1
        if is_ranked is not None:
            num_users = len(is_ranked)
            known = torch.nn.functional.pad(is_ranked, (0, max(0, int(owners.max()) + 1 - num_users)))
            if not bool(known[owners].any()):
                raise _nobody(entries, user_ids, owners, is_ranked)
            left_out = torch.unique(owners[~known[owners]])
            rows = known[users].nonzero()[:, 0]
        order = entries.scores if entries.ranks is None else entries.ranks
        num_repeated = 0
        if may_repeat and entries.ranks is not None:
            new = _new_rows(users[rows], items[rows], entries.ranks[rows])
            num_repeated, rows = len(rows) - int(new.sum()), rows[new]
        if len(rows) < len(users):
            users, items = users[rows], items[rows]
            order = None if order is None else order[rows]
        offsets = torch.nn.functional.pad(torch.bincount(users, minlength=num_users).cumsum(0), (1, 0))
        fits = True
        indices: Tensor | None
        if entries.ranks is not None and order is not None:
            indices, fits = _by_rank(users, order, offsets)
        else:
            indices = _by_score(users, items, order)
        if indices is not None:
            rows, items = rows[indices], items[indices]
            order = None if order is None else order[indices]
        lists = cls(
            offsets=offsets,
            items=items,
            scores=None if entries.scores is None or order is None else _as_scores(order),
            rows=rows,
            entries=entries,
            user_ids=user_ids,
            item_ids=item_ids,
            left_out=left_out,
            num_repeated=num_repeated,
        )
        if not fits:
            assert order is not None
            lists._refuse_ranks(order)
        return lists

    @property
    def lengths(self) -> Tensor:
        """Number of items in each user's list, int64 [U]."""
        return self.offsets.diff()

    def select(self, ids: Tensor, width: int) -> tuple[Tensor, Tensor | None]:
        """Return the lists of the given users, int64 [B, width], padded with -1, and the scores beside them."""
        start, stop = self.offsets[ids], self.offsets[ids + 1]
        lists = side_by_side(self.items, start, stop, width, -1).long()
        return lists, None if self.scores is None else side_by_side(self.scores, start, stop, width, 0)

    def repeat(self, ids: Tensor) -> tuple[int, int] | None:
        """Return the first given user whose list repeats an item, and the repeated entry; None if no list does."""
        lists, _ = self.select(ids, max(1, int(self.lengths[ids].max())))
        by_id, slot = lists.sort(dim=1, stable=True)
        again = (by_id[:, 1:] == by_id[:, :-1]) & (by_id[:, 1:] >= 0)
        if not bool(again.any()):
            return None
        row = int(again.any(1).nonzero()[0])
        user = int(ids[row])
        return user, int(self.offsets[user]) + int(slot[row, 1:][again[row]].min())

    def at(self, entry: int, role: str) -> str:
        """Return the source, the row of an entry, and the column of a role, for messages."""
        return self.entries.at(int(self.rows[entry]), role)

    def num_cut_ties(self, depth: int | None) -> int:
        """Return the number of lists whose end, within the first `depth` places, is among equal scores."""
        lengths = self.lengths
        if self.scores is None or not len(self.scores):
            return 0
        may_be_cut = lengths > 1
        starts, lengths = self.offsets[:-1][may_be_cut], lengths[may_be_cut]
        last = self.scores[starts + lengths - 1]
        deepest = lengths if depth is None else lengths.clamp(max=depth)
        return int(((self.scores[starts + lengths - 2] == last) & (self.scores[starts + deepest - 1] == last)).sum())

    def _refuse_ranks(self, ranks: Tensor) -> NoReturn:
        """Raise an error that names the first rank, in the order of the lists, that is missing or repeated."""
        starts, lengths = self.offsets[:-1], self.lengths
        index = torch.arange(len(ranks), device="cpu") - starts.repeat_interleave(lengths)
        entry = int((ranks != index + _lowest_rank(ranks, self.offsets)).nonzero()[0])
        user = int(torch.searchsorted(self.offsets, entry, right=True)) - 1
        fault = f"user {called(self.user_ids, user)} has rank {int(ranks[entry])}"
        cure = f"if places were left out on purpose, the negated ranks will do as {BY_SCORE}"
        if not int(index[entry]):
            fault += " as the best"
        elif ranks[entry] == ranks[entry - 1]:
            fault += " twice"
            cure = f"{FIRST} takes rows that repeat as the same row; other items are two lists: pass one list"
        else:
            fault += f" after {int(ranks[entry - 1])}"
        raise CuredError(
            f"{self.at(entry, 'rank')}: {fault}, but ranks must run 1, 2, 3, ... in each list (or 0, 1, 2, ... in "
            f"all); {cure}",
            FIRST,
            BY_SCORE,
        )


def _lowest_rank(ranks: Tensor, offsets: Tensor) -> int:
    """Return 0 if each list has one rank 0, and 1 otherwise."""
    return 0 if int((ranks == 0).sum()) == int((offsets.diff() > 0).sum()) else 1


def _by_rank(users: Tensor, ranks: Tensor, offsets: Tensor) -> tuple[Tensor, bool]:
    """Return the indices that order entries by user and rank, int64 [E], and True if the ranks number each list.

    Ranks run 1, 2, 3, ... in each list, or 0, 1, 2, ... in all.
    """
    index = ranks.long() - _lowest_rank(ranks, offsets)
    target = offsets[users] + index
    if bool(((index >= 0) & (target < offsets[users + 1])).all()):
        indices = torch.full_like(target, -1)
        indices[target] = torch.arange(len(target), device="cpu")
        if bool((indices >= 0).all()):
            return indices, True
    indices = ranks.argsort(stable=True)
    return indices[users[indices].argsort(stable=True)], False


def _by_score(users: Tensor, items: Tensor, scores: Tensor | None) -> Tensor | None:
    """Return the indices that order entries by user, descending score, and row number of the item, int64 [E].

    Without scores the entries of a user stay in order. None = all entries are in order already.
    """
    in_order = users[1:] >= users[:-1]
    if scores is not None:
        falls = (scores[1:] < scores[:-1]) | ((scores[1:] == scores[:-1]) & (items[1:] >= items[:-1]))
        in_order &= (users[1:] != users[:-1]) | falls
    if bool(in_order.all()):
        return None
    if scores is None:
        return users.argsort(stable=True)
    indices = items.argsort(stable=True)
    indices = indices[scores[indices].argsort(stable=True, descending=True)]
    return indices[users[indices].argsort(stable=True)]


def _as_scores(scores: Tensor) -> Tensor:
    """Return scores as float64 in the same order; whole numbers that it does not hold become their ranks."""
    if scores.is_floating_point() or not len(scores) or int(scores.abs().max()) <= 2**53:
        return scores.double()
    ascending: Tensor = torch.unique(scores, return_inverse=True)[1]
    return ascending.double()


def _new_rows(*columns: Tensor) -> Tensor:
    """Return which rows repeat no earlier row in all columns, bool [E]."""
    order = torch.arange(len(columns[0]), device="cpu")
    for column in columns:
        order = order[column[order].argsort(stable=True)]
    new = torch.ones(len(order), dtype=torch.bool, device="cpu")
    new[order[1:]] = torch.stack([column[order].diff() != 0 for column in columns]).any(0)
    return new


def _nobody(entries: ListEntries, user_ids: Vocabulary | None, owners: Tensor, is_ranked: Tensor) -> ValueError:
    """Return the error for lists of which no user has ground truth."""
    owners, known = torch.unique(owners), is_ranked.nonzero()[:, 0]
    pair = None if user_ids is None else closest_pair(user_ids.take(owners), user_ids.take(known))
    listed, other = map(repr, pair) if pair else (called(user_ids, int(rows[0])) for rows in (owners, known))
    return ValueError(
        f"no user of {entries.what} has ground truth; such as user {listed}, while target has {other}: are these ids "
        "of one kind?"
        + (" (A dict of columns needs the columns that user= and item= name.)" if entries.table is None else "")
    )
