"""`RecommendedLists`: the lists of the users of a ground truth, in order, with its row numbers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.core.cures import Cure, CuredError
from torchrecmetrics.evaluation.list_entries import ListEntries
from torchrecmetrics.inputs.jagged import side_by_side
from torchrecmetrics.tables.unmatched import closest_pair
from torchrecmetrics.tables.vocabulary import Vocabulary, called

FIRST = Cure.option("duplicates", "first")
BY_SCORE = Cure.option("score", ...)
_BATCH_ENTRIES = 2**18
"""Maximum number of entries, padding included, of lists that are sorted at once."""


class RecommendedLists(NamedTuple):
    """Recommended lists of all users, concatenated."""

    offsets: Tensor
    """Int64 [U + 1]: index in `items` at which the list of each user of the ground truth begins."""
    items: Tensor
    """Int32 or int64 [E], best first."""
    scores: Tensor | None
    """Float64 [E], one per item, never increasing within a list; None = the lists were not ordered by scores."""
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
        kept, left_out, num_repeated = torch.ones(len(users), dtype=torch.bool, device="cpu"), owners[:0], 0
        num_users = len(user_ids or ()) or int(owners.max()) + 1
        if is_ranked is not None:
            num_users = len(is_ranked)
            known = torch.nn.functional.pad(is_ranked, (0, max(0, int(owners.max()) + 1 - num_users)))
            if not bool(known[owners].any()):
                raise _nobody(entries, user_ids, owners, is_ranked)
            left_out = torch.unique(owners[~known[owners]])
            kept = known.index_select(0, users)
        if may_repeat and entries.ranks is not None:
            is_new = _new_rows(users, items, entries.ranks)
            num_repeated = int((kept & ~is_new).sum())
            kept &= is_new
        ranks, scores = entries.ranks, entries.scores
        if not bool(kept.all()):
            users, items = users[kept], items[kept]
            ranks, scores = (None if column is None else column[kept] for column in (ranks, scores))
        offsets = torch.nn.functional.pad(torch.bincount(users, minlength=num_users).cumsum(0), (1, 0))
        if ranks is None:
            items, scores = _by_score(users, items, None if scores is None else _as_scores(scores), offsets)
        else:
            items = _by_rank(users, items, ranks, offsets)
            if bool((items < 0).any()):
                raise _wrong_rank(entries, user_ids, users, ranks, kept.nonzero()[:, 0])
        return cls(
            offsets=offsets,
            items=items,
            scores=scores,
            entries=entries,
            user_ids=user_ids,
            item_ids=item_ids,
            left_out=left_out,
            num_repeated=num_repeated,
        )

    @property
    def lengths(self) -> Tensor:
        """Number of items in each user's list, int64 [U]."""
        return self.offsets.diff()

    def select(self, ids: Tensor, width: int) -> tuple[Tensor, Tensor | None]:
        """Return the lists of the given users, int64 [B, width], padded with -1, and the scores of their items."""
        start, stop = self.offsets[ids], self.offsets[ids + 1]
        lists = side_by_side(self.items, start, stop, width, -1).long()
        return lists, None if self.scores is None else side_by_side(self.scores, start, stop, width, 0)

    def repeat(self, ids: Tensor) -> tuple[int, int, str] | None:
        """Return the first given user whose list repeats an item, the item, and where it is repeated; or None."""
        lists, _ = self.select(ids, max(1, int(self.lengths[ids].max())))
        by_id, slot = lists.sort(dim=1, stable=True)
        again = (by_id[:, 1:] == by_id[:, :-1]) & (by_id[:, 1:] >= 0)
        if not bool(again.any()):
            return None
        row = int(again.any(1).nonzero()[0])
        user, item = int(ids[row]), int(lists[row, slot[row, 1:][again[row]].min()])
        entries = self.entries
        is_user = entries.users.numbered_in(self.user_ids) == user
        rows = (is_user & (entries.items.numbered_in(self.item_ids) == item)).nonzero()[:, 0]
        order = entries.scores if entries.ranks is None else entries.ranks
        if order is not None:
            rows = rows[order[rows].argsort(stable=True, descending=entries.ranks is None)]
        return user, item, entries.at(int(rows[1]), "item")

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


def _by_rank(users: Tensor, items: Tensor, ranks: Tensor, offsets: Tensor) -> Tensor:
    """Return items by user and rank; a -1 remains unless ranks run 1, 2, 3, ... (or 0, 1, 2, ... in all lists).

    No item is put before the start of its list. So if no -1 remains, the first list fills its own positions, only the
    second list can then fill those that follow, and so on.
    """
    lowest = 0 if bool((ranks == 0).any()) else 1
    places = (offsets - lowest).index_select(0, users).add_(ranks).clamp_(max=len(items))
    return items.new_full((len(items) + 1,), -1).scatter_(0, places, items)[:-1]


def _by_score(users: Tensor, items: Tensor, scores: Tensor | None, offsets: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return items and scores by user, descending score, and item; without scores a user's entries stay in order."""
    in_order = users[1:] >= users[:-1]
    if scores is not None:
        falls = (scores[1:] < scores[:-1]) | ((scores[1:] == scores[:-1]) & (items[1:] >= items[:-1]))
        in_order &= (users[1:] != users[:-1]) | falls
    if bool(in_order.all()):
        return items, scores
    by_user = users.int().argsort(stable=True)  # takes half of the time and memory that int64 takes
    items = items.index_select(0, by_user)
    if scores is None:
        return items, None
    scores, lengths = scores.index_select(0, by_user), offsets.diff()
    lists = lengths.argsort(descending=True)
    while len(lists) and (width := int(lengths[lists[0]])) > 1:
        batch, lists = lists.tensor_split([max(1, _BATCH_ENTRIES // width)])
        start, stop = offsets[batch], offsets[batch + 1]
        sorted_items, by_item = side_by_side(items, start, stop, width, torch.iinfo(items.dtype).max).sort(dim=1)
        sorted_scores = side_by_side(scores, start, stop, width, -torch.inf).gather(1, by_item)
        sorted_scores, by_score = sorted_scores.sort(dim=1, stable=True, descending=True)
        places = start[:, None] + torch.arange(width, device="cpu")
        is_entry = places < stop[:, None]
        items[places[is_entry]] = sorted_items.gather(1, by_score)[is_entry]
        scores[places[is_entry]] = sorted_scores[is_entry]
    return items, scores


def _wrong_rank(
    entries: ListEntries, user_ids: Vocabulary | None, users: Tensor, ranks: Tensor, rows: Tensor
) -> CuredError:
    """Return the error that names the first rank, by user and rank, that is missing or repeated."""
    order = ranks.argsort(stable=True)
    order = order[users[order].argsort(stable=True)]
    rows, users, ranks = rows[order], users[order], ranks[order]
    starts = torch.searchsorted(users, users)
    lowest = 0 if int((ranks == 0).sum()) == len(torch.unique(users)) else 1
    entry = int((ranks - lowest != torch.arange(len(ranks), device="cpu") - starts).nonzero()[0])
    where = entries.at(int(rows[entry]), "rank")
    fault = f"{where}: user {called(user_ids, int(users[entry]))} has rank {int(ranks[entry])}"
    cure = f"if ranks are missing on purpose, pass the negated ranks as {BY_SCORE}"
    if entry == int(starts[entry]):
        fault += " as the best"
    elif ranks[entry] == ranks[entry - 1]:
        fault += " twice"
        if entries.table is not None and (separate := entries.table.several_tables("user", "rank")):
            return CuredError(f"{fault}; {separate}")
        cure = f"{FIRST} merges repeated rows; other items at this rank are a second list: pass one list"
    else:
        fault += f" after {int(ranks[entry - 1])}"
    return CuredError(
        f"{fault}, but ranks must run 1, 2, 3, ... in each list (or 0, 1, 2, ... in all); {cure}",
        *(FIRST, BY_SCORE),
    )


def _as_scores(scores: Tensor) -> Tensor:
    """Return scores as float64 in the same order; integers that float64 cannot hold are replaced by their ranks."""
    if scores.is_floating_point() or not len(scores) or int(scores.abs().max()) <= 2**53:
        return scores.double()
    ascending: Tensor = torch.unique(scores, return_inverse=True)[1]
    return ascending.double()


def _new_rows(*columns: Tensor) -> Tensor:
    """Return a mask of the rows that do not repeat an earlier row, bool [E]."""
    order = torch.arange(len(columns[0]), device="cpu")
    for column in columns:
        order = order[column[order].argsort(stable=True)]
    new = torch.ones(len(order), dtype=torch.bool, device="cpu")
    new[order[1:]] = torch.stack([column[order].diff() != 0 for column in columns]).any(0)
    return new


def _nobody(entries: ListEntries, user_ids: Vocabulary | None, owners: Tensor, is_ranked: Tensor) -> ValueError:
    """Return the error for lists whose users all lack ground truth."""
    owners, known = torch.unique(owners), is_ranked.nonzero()[:, 0]
    pair = None if user_ids is None else closest_pair(user_ids.take(owners), user_ids.take(known))
    listed, other = map(repr, pair) if pair else (called(user_ids, int(rows[0])) for rows in (owners, known))
    return ValueError(
        f"no user of {entries.what} has ground truth: users are such as {listed}, but target has {other}; are these "
        "ids of one kind?"
        + (" (A dict of columns needs the columns that user= and item= name.)" if entries.table is None else "")
    )
