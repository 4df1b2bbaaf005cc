"""`RecommendedLists`: the lists of the users of a ground truth, in order, with its row numbers."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from torchrecmetrics.evaluation.list_entries import ListEntries
from torchrecmetrics.evaluation.matching import called
from torchrecmetrics.inputs.jagged import side_by_side
from torchrecmetrics.tables.vocabulary import Vocabulary


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
    """Ids of the ground truth, then those of lists alone; None = there are only row numbers."""
    item_ids: Vocabulary | None
    num_left_out: int = 0
    """Number of users that have a list but no ground truth."""
    num_repeated: int = 0
    """Number of rows of a ranked table that repeat another row's user, item and rank, and were left out."""

    @classmethod
    def of(
        cls,
        entries: ListEntries,
        user_ids: Vocabulary | None,
        item_ids: Vocabulary | None,
        has_target: Tensor | None,
        may_repeat: bool = False,
    ) -> RecommendedLists:
        """Match entries by id with a ground truth, and put them in order.

        Args:
            entries: the lists.
            user_ids: ids of the ground truth; None = row numbers.
            item_ids: as `user_ids`.
            has_target: bool [U]: users with ground truth; the lists of other users are left out. None = all users.
            may_repeat: True if rows of one user, item and rank are the same row.

        Raises:
            ValueError: for ranks that do not number a list, and if no user of the lists has ground truth.
        """
        if user_ids is not None and entries.users.ids is not None:
            user_ids = user_ids.union(entries.users.ids)
        if item_ids is not None and entries.items.ids is not None:
            item_ids = item_ids.union(entries.items.ids)
        owners = entries.users._replace(rows=entries.owners).numbered_in(user_ids)
        users, items = entries.users.numbered_in(user_ids), entries.items.numbered_in(item_ids)
        rows, num_left_out = torch.arange(len(users), device="cpu"), 0
        if has_target is not None:
            known = torch.nn.functional.pad(has_target, (0, max(0, int(owners.max()) + 1 - len(has_target))))
            if not bool(known[owners].any()):
                raise _nobody(entries, user_ids, int(owners.min()), has_target)
            num_left_out = len(torch.unique(owners[~known[owners]]))
            rows = known[users].nonzero()[:, 0]
        num_users = len(has_target) if has_target is not None else len(user_ids or ()) or int(owners.max()) + 1
        ranks, scores, num_repeated = entries.ranks, entries.scores, 0
        if may_repeat and ranks is not None:
            new = _new_rows(users[rows], items[rows], ranks[rows])
            num_repeated, rows = len(rows) - int(new.sum()), rows[new]
        if len(rows) < len(users):
            users, items = users[rows], items[rows]
            ranks, scores = (None if column is None else column[rows] for column in (ranks, scores))
        offsets = torch.nn.functional.pad(torch.bincount(users, minlength=num_users).cumsum(0), (1, 0))
        fits = True
        if ranks is None:
            indices = _by_score(users, items, scores)
        else:
            indices, fits = _by_rank(users, ranks, offsets)
        if indices is not None:
            rows, items = rows[indices], items[indices]
            ranks, scores = (None if column is None else column[indices] for column in (ranks, scores))
        lists = cls(
            offsets=offsets,
            items=items,
            scores=None if scores is None else _as_scores(scores),
            rows=rows,
            entries=entries,
            user_ids=user_ids,
            item_ids=item_ids,
            num_left_out=num_left_out,
            num_repeated=num_repeated,
        )
        if ranks is not None and not fits:
            lists._refuse_ranks(ranks)
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
        cure = "if places were left out on purpose, the negated ranks will do as score=..."
        if not int(index[entry]):
            fault += " as the best"
        elif ranks[entry] == ranks[entry - 1]:
            fault += " twice"
            cure = "duplicates='first' takes rows that repeat as the same row; other items are two lists: pass one list"
        else:
            fault += f" after {int(ranks[entry - 1])}"
        raise ValueError(
            f"{self.at(entry, 'rank')}: {fault}, but ranks must run 1, 2, 3, ... in each list (or 0, 1, 2, ... in "
            f"all); {cure}"
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


def _nobody(entries: ListEntries, user_ids: Vocabulary | None, user: int, has_target: Tensor) -> ValueError:
    """Return the error for lists of which no user has ground truth."""
    return ValueError(
        f"no user of {entries.what} has ground truth; such as user {called(user_ids, user)}, while target "
        f"has {called(user_ids, int(has_target.nonzero()[0]))}: are these ids of one kind?"
        + (" (A dict of columns needs the columns that user= and item= name.)" if entries.names is None else "")
    )
