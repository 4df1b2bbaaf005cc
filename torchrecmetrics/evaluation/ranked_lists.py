"""`RankedLists`: lists of the users of a ground truth, in order, by one scatter of ranks or one sort of scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from torchrecmetrics.evaluation.sides import ListEntries
from torchrecmetrics.inputs.jagged import side_by_side
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
            ValueError: for values that are no ranks, ranks that do not number a list, and if nobody's list is ranked.
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
