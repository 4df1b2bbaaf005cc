"""`RecommendedLists`: read recommended lists of any form as row numbers by user; `lists` evaluates them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from torchrecmetrics.core.checks import describe
from torchrecmetrics.data.questions import questions
from torchrecmetrics.data.recommendations import Recommendations
from torchrecmetrics.inputs.jagged import side_by_side
from torchrecmetrics.lists.unknown_ids import refuse_respelled
from torchrecmetrics.tables.cells import exploded
from torchrecmetrics.tables.columns import row_numbers, words
from torchrecmetrics.tables.events import numbers_in
from torchrecmetrics.tables.files import source_of
from torchrecmetrics.tables.frames import Roles, Source, Table, arrow, compute, distinct, holds_records, tensor_of
from torchrecmetrics.tables.ids import read_ids
from torchrecmetrics.tables.vocabulary import Vocabulary

_PIECE = 2**20
#: Usual last words of names of columns of ranks, and of numbers of which the lowest is best.
_RANKS = {"rank", "ranks", "ranking", "position", "pos", "place", "order"}
_DISTANCES = {"distance", "distances", "dist"}


class Names(NamedTuple):
    """Column names by role."""

    user: str = "user"
    item: str = "item"
    rank: str | None = None
    score: str | None = None
    split: str | None = None
    """Separator of several items in one cell; None = a cell holds one item."""


class IdMap:
    """Map from ids of users, or of items, to row numbers: rows of the ground truth, then rows of unknown ids."""

    def __init__(
        self, name: str, ids: Vocabulary | None, size: int, written: bool = False, owner: str = "target"
    ) -> None:
        self.name = name
        self.owner = owner
        """Argument whose ids or row numbers these are, for messages."""
        self.written = written
        """True if the ground truth's ids come from a text file."""
        self.size = size
        """Number of rows of the ground truth."""
        self.ids = ids
        """Ids of the rows: ids of the ground truth, then new ids; None = there are only row numbers."""

    def rows(self, named: str, column: Any, table: Table | None = None, written: bool = False) -> Tensor:
        """Return the row number of each entry of a column, int64 [E]; new ids get new rows.

        Args:
            named: name of the column, for messages.
            column: ids, or row numbers if there is no vocabulary.
            table: table that names rows in messages; None = rows are named by number.
            written: True if the ids were read from a text file: "7" then becomes text if other ids are text.

        Raises:
            TypeError: for ids of another kind than the ground truth's.
            ValueError: for missing ids; names the row.
        """
        if self.ids is None:
            return row_numbers(
                named, column, f", as {self.owner} has no {self.name}_ids ({self.owner}.with_ids names its rows)"
            )
        row_name = "row {}".format if table is None else table.row
        try:
            rows = self.ids.rows_of(named, column, f"{self.owner}'s {self.name}_ids")
        except TypeError:  # ids of another kind
            if not written or not (self.written or self.ids.kind == "text"):
                raise
            column_ids, codes = Vocabulary.number(column, named, row_name)
            if {column_ids.kind, self.ids.kind} != {"text", "whole numbers"}:
                raise
            check_zeros(named, self.ids, column_ids)
            check_zeros(named, column_ids, self.ids)
            self.ids = self.ids.as_text()
            return self._renumbered(column_ids.as_text())[codes]
        if bool((rows < 0).any()):
            column_ids, codes = Vocabulary.number(column, named, row_name)
            rows = self._renumbered(column_ids)[codes]
        return rows

    def recoded(self, rows: Tensor, other: Vocabulary | None) -> Tensor:
        """Return row numbers of another vocabulary as row numbers of this map, int64 [E].

        Raises:
            ValueError: if only one of the two numberings has a vocabulary.
        """
        if (other is None) != (self.ids is None):
            has, lacks = self.owner, "the recommendations"
            if other is not None:
                has, lacks = lacks, has
            cure = f"{'recommendations' if other is None else self.owner}.with_ids({self.name}_ids=...)"
            raise ValueError(
                f"{has} has {self.name}_ids, {lacks} has none: row 5 could mean two {self.name}s; {cure} says what "
                "its rows are"
            )
        return rows if other is None or other == self.ids else self._renumbered(other)[rows]

    def _renumbered(self, other: Vocabulary) -> Tensor:
        """Return the row number of each id of another vocabulary, int64 [n]; new ids get new rows."""
        assert self.ids is not None
        self.ids = self.ids.union(other)
        return other.rows_in(self.ids)

    def check_unknown(self, what: str) -> None:
        """Refuse ids of lists that are the ground truth's ids, written otherwise; `what` names the lists."""
        if self.ids is not None:
            refuse_respelled(f"{self.name}s of {what}", self.ids, self.size)

    def called(self, row: int) -> str:
        """Return the id of a row, or the row number without a vocabulary, for messages."""
        return repr(self.ids[row]) if self.ids is not None else str(row)


def check_zeros(named: str, text: Vocabulary, numbers: Vocabulary) -> None:
    """Refuse ids of text with leading zeros which whole numbers lack, as after a frame has read and written them."""
    if numbers.kind != "whole numbers":
        return
    bare = {*numbers.as_text()} - {*text}
    zeros = next((id_ for id_ in text if id_[:1] == "0" and (id_.lstrip("0") or "0") in bare), None)
    if zeros is not None and all(id_.isdecimal() for id_ in text):
        raise ValueError(
            f"{named}: {zeros!r} in one file is {int(zeros)} in another, whose leading zeros seem to be lost: read all "
            "as text before you write a file, pandas.read_csv(..., dtype=str)"
        )


@dataclass
class Origin:
    """Source of the lists, for messages."""

    what: str
    """A path, or the argument's name."""
    names: Names | None = None
    """Column names; None = the lists are not in columns."""
    first_line: int | None = None
    """As in `Table`."""
    kept_rows: list[Tensor] = field(default_factory=list)
    """Mask of the rows that were kept, bool, for each chunk."""
    places: Tensor | None = None
    """Index in the ordered lists of each kept row, int32 or int64 [E]; None = the rows were in order."""

    def at(self, entry: int, role: str) -> str:
        """Return the source, the row of an entry, and the column of a role, for messages."""
        if self.names is None:
            return self.what
        at = entry if self.places is None else int((self.places == entry).nonzero()[0])
        row = int(torch.cat(self.kept_rows).nonzero()[at])
        return f"{self.what}, {Table({}, self.what, self.first_line).row(row)}, column {getattr(self.names, role)!r}"


class RecommendedLists(NamedTuple):
    """Recommended lists of all users, concatenated."""

    offsets: Tensor
    """Int64 [U + 1]: index in `items` at which the list of each user of the ground truth begins."""
    items: Tensor
    """Int32 or int64 [E], best first."""
    scores: Tensor | None
    """Float64 [E], beside `items`, never rising within a list; None = the lists were not ordered by scores."""
    origin: Origin
    """Source of the lists, for messages."""
    num_left_out: int
    """Number of users that have a list but no ground truth."""
    num_repeated: int = 0
    """Number of rows of a ranked table that repeat another row's user, item and rank, and were left out."""

    @classmethod
    def read(
        cls,
        lists: Any,
        names: Names,
        users: IdMap,
        items: IdMap,
        has_target: Tensor | None,
        in_order: bool,
        may_repeat: bool,
    ) -> RecommendedLists:
        """Read lists of any form.

        Args:
            lists: see `evaluate_lists`.
            names: column names of a frame or a file.
            users: row numbers of the users.
            items: row numbers of the items; new ids in the lists get new rows.
            has_target: bool [U]: users with ground truth; the lists of other users are left out. None = all users.
            in_order: True if the caller said that rows are in order.
            may_repeat: True if rows of one user, item and rank are the same row.

        Raises:
            TypeError: for anything without lists, and ids of another kind than the ground truth's.
            ValueError: for missing columns or ids, ranks that do not number a list, two lists of one user, no rows, and
                if no user of the lists has ground truth.
        """
        chunks: Iterable[_Entries]
        if isinstance(lists, Recommendations):
            chunks, origin = [_recommended(lists, users, items)], Origin("the recommendations")
        elif _is_wide(lists, names):
            chunks, origin = [_wide(lists, names, users, items)], Origin("lists")
        else:
            columns = source_of(lists, "lists")
            names = _checked(columns, names, in_order)
            chunks, origin = _long(columns, names, users, items), Origin(columns.what, names)
        return _in_order(chunks, origin, users, has_target, may_repeat)

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


# ------------------------------------------------------------------------------------------------------------- forms


class _Entries(NamedTuple):
    """Entries of the lists of one chunk of a file, or of all lists."""

    users: Tensor
    """Row number of the user of each entry, int64 [E]."""
    items: Tensor
    """Row number of the item of each entry, int64 [E]."""
    order: Tensor | None
    """Rank or score of each entry, [E]; None = the entries are in order."""
    owners: Tensor
    """Row numbers of all users who have a list, also an empty list, with repeats, int64 [n]."""
    first_line: int | None = None
    """As in `Table`."""


def _is_wide(lists: Any, names: Names) -> bool:
    """Return True if there is one list per user, and False for one row per item; refuse objects without lists."""
    if isinstance(lists, Mapping):
        return not any(name in lists for name in names[:4] if name is not None)
    if isinstance(lists, tuple):
        if len(lists) != 2:
            raise TypeError(f"lists must be a tuple of two, (item ids [B, K], users [B]), got {len(lists)} things")
        return True
    columns = getattr(getattr(lists, "dtype", None), "names", None)
    if holds_records(lists):
        return False
    if isinstance(lists, (Tensor, list)) or (hasattr(lists, "__array__") and hasattr(lists, "reshape") and not columns):
        raise TypeError(
            f"lists must be a frame, a path, a dict {{user: [items]}} or a tuple, got {describe(lists)}: whose are "
            "they? Pass (lists, users)"
        )
    return False


def _checked(lists: Source, names: Names, in_order: bool) -> Names:
    """Return the column names, with at most one column that orders the lists; TREC runs are ordered by score."""
    if names.rank is not None and names.score is not None:
        raise ValueError(
            f"rank={names.rank!r} and score={names.score!r} are both to order {lists.what}: give one of the two"
        )
    if names.split is not None and (names.rank or names.score):
        raise ValueError("split= reads the items of a cell in order, best first: leave rank= and score= out")
    names = names._replace(**{role: name for role, name in lists.known.items() if role in ("user", "item")})
    distinct(names._replace(split=None))
    if names.rank is not None or names.score is not None or in_order:
        return names
    if "score" in lists.known:
        return names._replace(score=lists.known["score"])
    if messages := questions(lists, ["order"], Roles(names.user, names.item)):
        raise ValueError(messages["order"])
    return names


def check_score(what: str, name: str, values: Tensor) -> None:
    """Refuse scores of which the lowest is best by their name (ranks: and values): the highest would be upside down."""
    last = {*[word for word in words(name) if word not in ("no", "nr", "number")][-1:]}
    if last & _RANKS and bool(((values >= 0) & (values == values.double().floor())).all()):
        raise ValueError(
            f"score={name!r} would turn the lists of {what} upside down if 1 is the best: pass rank={name!r}, or "
            "rename the column if the highest is best"
        )
    if last & _DISTANCES and bool((values >= 0).all()):
        raise ValueError(
            f"score={name!r} would turn the lists of {what} upside down if the smallest is the best: negate the column "
            "and rename it"
        )


def _long(lists: Source, names: Names, users: IdMap, items: IdMap) -> Iterator[_Entries]:
    """Yield the entries of a frame or a file with one row per listed item, chunk by chunk."""
    for side in (users, items):
        if side.ids is None:
            raise ValueError(
                f"{lists.what} holds ids, {side.owner} has no {side.name}_ids: row 5 could mean two {side.name}s. Make "
                f"{side.owner} with ids, too (from_frame); if its row numbers are the ids, say so: "
                f"{side.owner}.with_ids({side.name}_ids=torch.arange({side.size}))"
            )
    order = names.score if names.rank is None else names.rank
    owners_of_cells: list[Tensor] = []
    for cells in lists.chunks(Roles(names.user, names.item, value=order)):
        table = exploded(cells, names.item, names.split)
        rows = owners = users.rows(table.name(names.user), table.columns[names.user], table, lists.as_written)
        if table is not cells:  # each cell is a list, which may be empty
            owners = users.rows(cells.name(names.user), cells.columns[names.user], cells, lists.as_written)
            owners_of_cells.append(owners)
        written = lists.as_written or names.split is not None
        columns = items.rows(table.name(names.item), table.columns[names.item], table, written)
        lengths = {names.user: len(rows), names.item: len(columns)}
        values = None
        if order is not None:
            values = numbers_in(table, order)
            lengths[order] = len(values)
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of {lists.what} must be equally long, got {lengths}")
        if values is not None and names.rank is not None:
            values = _ranks(values, table, names.rank)
        elif values is not None and names.score is not None and not table.first_row:
            check_score(lists.what, names.score, values)
        yield _Entries(rows, columns, order=values, owners=owners, first_line=table.first_line)
    if owners_of_cells:
        _check_owners(lists.what, torch.cat(owners_of_cells), users)


def _ranks(values: Tensor, table: Table, name: str) -> Tensor:
    """Return ranks as int32, or refuse values that are not ranks."""
    wrong = (values < 0) | (values >= 2**31 - 1)
    if values.is_floating_point():
        wrong |= values != values.floor()
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise ValueError(
            f"{table.name(name)} holds {values[row].item()} in {table.row(row)}, which is no rank: 1, 2, 3, ..., 1 = "
            f"best; numbers of which the highest is best are score={name!r}"
        )
    return values.int()


def _wide(lists: Any, names: Names, users: IdMap, items: IdMap) -> _Entries:
    """Return the entries of a dict {user: [items]}, or of a tuple (lists, users)."""
    if names.rank is not None or names.score is not None:
        role = "score" if names.rank is None else "rank"
        raise ValueError(
            f"{role}= names a column of a frame; the lists of a dict {{user: [items]}}, or beside their users, are in "
            f"order, best first (a dict of columns has the columns {names.user!r} and {names.item!r})"
        )
    ids, owners = (list(lists.values()), list(lists)) if isinstance(lists, Mapping) else lists
    item_ids, lengths = _concatenated(ids)
    if not len(lengths):
        raise ValueError("lists holds no list")
    rows = users.rows("the users of lists", owners)
    if len(rows) != len(lengths):
        raise ValueError(f"there are {len(lengths)} lists and {len(rows)} users: each list has one user")
    _check_owners("lists", rows, users)
    if items.ids is None:
        columns = row_numbers("the items of lists", item_ids)
        is_item = columns >= 0
        columns = columns[is_item]
    else:
        item_ids = item_ids.tolist() if getattr(item_ids, "dtype", None) == object else item_ids  # noqa: E721
        if isinstance(item_ids, list) and {int, str} <= {*map(type, item_ids)}:  # -1 may fill up lists of text
            item_ids = [None if entry == -1 else entry for entry in item_ids]
        entries = read_ids("the items of lists", item_ids)
        is_item, is_padding = tensor_of(entries.is_valid()), torch.zeros(len(entries), dtype=torch.bool, device="cpu")
        if entries.type == arrow().int64():
            is_padding = tensor_of(compute().equal(entries, -1).fill_null(False))
        if bool(is_padding.any()) and -1 in items.ids:
            raise ValueError(
                "-1 fills up lists, but it is an item of target, too: pass a dict or a frame without such entries, and "
                "another id for the item"
            )
        is_item &= ~is_padding
        columns = items.rows("the items of lists", entries.filter(arrow().array(is_item.numpy())))
    return _Entries(rows.repeat_interleave(lengths)[is_item], columns, order=None, owners=rows)


def _concatenated(lists: Any) -> tuple[Any, Tensor]:
    """Return the concatenated entries of lists, and the length of each list, int64 [B]."""
    if hasattr(lists, "columns") and hasattr(lists, "to_numpy"):  # a frame with a column per place
        lists = lists.to_numpy()
    shape = getattr(lists, "shape", None)
    if shape is not None:
        if len(shape) != 2:
            raise ValueError(f"lists must be [lists, places], item ids best first, got shape {[*shape]}")
        return lists.reshape(-1), torch.full((int(shape[0]),), int(shape[1]), device="cpu")
    lists = list(lists)
    kinds = set(map(type, lists))
    wrong = [kind.__name__ for kind in kinds if kind in (str, bytes, dict, set) or not hasattr(kind, "__len__")]
    if wrong:
        cure = ""
        if "dict" in wrong:
            cure = ": of a dict {item: score} pass sorted(scores, key=scores.get, reverse=True)"
        raise TypeError(
            f"each of the lists must be a list of item ids, best first, got {', '.join(sorted(wrong))}{cure}"
        )
    pair = next((entry for list_ in lists[:1] for entry in list_[:1] if isinstance(entry, (tuple, list))), None)
    if pair is not None:
        raise TypeError(f"each of the lists must hold item ids, best first, got {pair!r}: pass the items alone")
    lengths = torch.tensor(list(map(len, lists)), dtype=torch.int64, device="cpu")
    if kinds == {Tensor}:
        return torch.cat(lists), lengths
    return list(chain.from_iterable(list_.tolist() if hasattr(list_, "tolist") else list_ for list_ in lists)), lengths


def _recommended(lists: Recommendations, users: IdMap, items: IdMap) -> _Entries:
    """Return the entries of a result of `recommend`."""
    ids, owners = lists.ids.cpu(), users.recoded(lists.users.cpu(), lists.user_ids)
    _check_owners("the recommendations", owners, users)
    is_item = ids >= 0
    row, scores = is_item.nonzero()[:, 0], lists.scores.cpu()[is_item].double()
    columns = items.recoded(ids[is_item], lists.item_ids)
    return _Entries(owners[row], columns, order=scores, owners=owners)


def _check_owners(what: str, rows: Tensor, users: IdMap) -> None:
    """Refuse two lists of one user."""
    ordered, order = rows.sort(stable=True)
    twice = (ordered[1:] == ordered[:-1]).nonzero()[:, 0]
    if len(twice):
        first, second = int(order[twice[0]]), int(order[twice[0] + 1])
        raise ValueError(
            f"{what} has two lists of user {users.called(int(ordered[twice[0]]))}, in rows {first} and {second}: pass "
            "one of them"
        )


# ------------------------------------------------------------------------------------------------------------- order


def _in_order(
    chunks: Iterable[_Entries], origin: Origin, users: IdMap, has_target: Tensor | None, may_repeat: bool
) -> RecommendedLists:
    """Return the lists of the users with ground truth, with the entries of all chunks in order."""
    rows: list[Tensor] = []
    columns: list[Tensor] = []
    orders: list[Tensor] = []
    others: list[Tensor] = []
    number, any_target = 0, False
    for entries in chunks:
        origin.first_line = entries.first_line
        number += len(entries.owners)
        if users.ids is None and len(entries.owners) and int(entries.owners.min()) < 0:
            raise ValueError(f"the users of {origin.what} hold {int(entries.owners.min())}: row numbers are 0 or more")
        with_target = _with_target(entries.owners, has_target)
        any_target = any_target or bool(with_target.any())
        others.append(torch.unique(entries.owners[~with_target]))
        is_kept = _with_target(entries.users, has_target)
        keeps_all = bool(is_kept.all())
        origin.kept_rows.append(is_kept)
        rows.append((entries.users if keeps_all else entries.users[is_kept]).int())
        narrow = not len(entries.items) or int(entries.items.max()) < 2**31
        chosen = entries.items if keeps_all else entries.items[is_kept]
        columns.append(chosen.int() if narrow else chosen)
        if entries.order is not None:
            orders.append(entries.order if keeps_all else entries.order[is_kept])
    if not number:
        raise ValueError(f"{origin.what} holds no rows")
    left_out = torch.unique(torch.cat(others))
    size = users.size if has_target is not None or users.ids is None else len(users.ids)
    if has_target is not None and not any_target:
        users.check_unknown(origin.what)
        raise ValueError(
            f"no user of {origin.what} has ground truth; such as user {users.called(int(left_out[0]))}, while target "
            f"has {users.called(int(has_target.nonzero()[0]))}: are these ids of one kind?"
            + (" (A dict of columns needs the columns that user= and item= name.)" if origin.names is None else "")
        )
    owner, item = _joined(rows), _joined(columns)
    order = _joined(orders) if orders else None
    by_rank, num_repeated = origin.names is not None and origin.names.rank is not None, 0
    if may_repeat and by_rank and order is not None:
        new, is_kept = _first_of_each(owner, item, order), torch.cat(origin.kept_rows)
        num_repeated = int((~new).sum())
        origin.kept_rows = [is_kept.masked_scatter(is_kept, new)]
        owner, item, order = owner[new], item[new], order[new]
    offsets = torch.nn.functional.pad(torch.bincount(owner, minlength=size).cumsum(0), (1, 0))
    scores = None if by_rank or order is None else _as_scores(order)
    if by_rank and order is not None:
        origin.places = _by_rank(owner, order, offsets, origin, users)
    else:
        origin.places = _by_score(owner, item, scores)
    if origin.places is not None:
        item = _placed(item, origin.places)
        scores = None if scores is None else _placed(scores, origin.places)
    return RecommendedLists(
        offsets, item, scores=scores, origin=origin, num_left_out=len(left_out), num_repeated=num_repeated
    )


def _as_scores(order: Tensor) -> Tensor:
    """Return scores as float64 in the same order; whole numbers that it does not hold become their ranks."""
    if order.is_floating_point() or not len(order) or int(order.abs().max()) <= 2**53:
        return order.double()
    places: Tensor = torch.unique(order, return_inverse=True)[1]
    return places.double()


def _placed(values: Tensor, places: Tensor) -> Tensor:
    """Return the values [E], each at its new index."""
    placed = torch.empty_like(values)
    for piece in _pieces(len(values)):
        placed[places[piece].long()] = values[piece]
    return placed


def _first_of_each(*columns: Tensor) -> Tensor:
    """Return which rows repeat no earlier row in all columns, bool [E]."""
    order = torch.arange(len(columns[0]), device="cpu")
    for column in columns:
        order = order[column[order].argsort(stable=True)]
    new = torch.ones(len(order), dtype=torch.bool, device="cpu")
    new[order[1:]] = torch.stack([column[order].diff() != 0 for column in columns]).any(0)
    return new


def _joined(chunks: list[Tensor]) -> Tensor:
    """Concatenate chunks, and empty the list to free their memory."""
    joined = torch.cat(chunks)
    chunks.clear()
    return joined


def _with_target(rows: Tensor, has_target: Tensor | None) -> Tensor:
    """Return which rows are of users with ground truth, bool [n]; None = all users count."""
    if has_target is None:
        return torch.ones_like(rows, dtype=torch.bool)
    return (rows < len(has_target)) & has_target[rows.clamp(max=len(has_target) - 1)]


def _by_score(owner: Tensor, item: Tensor, scores: Tensor | None) -> Tensor | None:
    """Return each entry's index by user, descending score, and row number of the item, int32 or int64 [E].

    Without scores the entries of a user stay in order. None = all entries are in order already.
    """
    in_order = owner[1:] >= owner[:-1]
    if scores is not None:
        falls = (scores[1:] < scores[:-1]) | ((scores[1:] == scores[:-1]) & (item[1:] >= item[:-1]))
        in_order &= (owner[1:] != owner[:-1]) | falls
    if bool(in_order.all()):
        return None
    if scores is None:
        return _places(owner.argsort(stable=True))
    order = item.argsort(stable=True)
    order = order[scores[order].argsort(stable=True, descending=True)]
    return _places(order[owner[order].argsort(stable=True)])


def _places(order: Tensor) -> Tensor:
    """Return the index of each entry in `order`, which lists the entries that come first, second, ..."""
    places = torch.empty(len(order), dtype=_indices(len(order)), device="cpu")
    places[order] = torch.arange(len(order), dtype=places.dtype, device="cpu")
    return places


def _indices(n: int) -> torch.dtype:
    """Return the smaller integer dtype that can index `n` entries."""
    return torch.int32 if n < 2**31 else torch.int64


def _by_rank(owner: Tensor, ranks: Tensor, offsets: Tensor, origin: Origin, users: IdMap) -> Tensor:
    """Return each entry's index by user and rank; ranks run 1, 2, 3, ... in each list, or 0, 1, 2, ... in all lists."""
    lengths = offsets.diff()
    lowest_rank = 0 if int((ranks == 0).sum()) == int((lengths > 0).sum()) else 1
    places = torch.empty(len(ranks), dtype=_indices(len(ranks)), device="cpu")
    taken = torch.zeros(len(ranks), dtype=torch.bool, device="cpu")
    fits = True
    for piece in _pieces(len(ranks)):
        user, place = owner[piece].long(), ranks[piece] - lowest_rank
        fits = fits and bool(((place >= 0) & (place < lengths[user])).all())
        if fits:
            at = offsets[user] + place
            places[piece], taken[at] = at.to(places.dtype), True
    if not (fits and bool(taken.all())):
        _refuse_ranks(owner, ranks, lowest_rank, origin, users)
    return places


def _pieces(n: int) -> Iterator[slice]:
    """Return slices of `n` entries, to bound the memory of 64-bit intermediates."""
    return (slice(start, start + _PIECE) for start in range(0, n, _PIECE))


def _refuse_ranks(owner: Tensor, ranks: Tensor, lowest_rank: int, origin: Origin, users: IdMap) -> NoReturn:
    """Raise an error that names the first rank that is missing or repeated."""
    order = (owner.long() * (int(ranks.max()) + 1) + ranks).argsort(stable=True)
    owner, ranks = owner[order], ranks[order]
    wrong = ranks != lowest_rank
    wrong[1:] = (ranks[1:] - ranks[:-1] != 1).where(owner[1:] == owner[:-1], wrong[1:])
    entry = int(wrong.nonzero()[0])
    origin.places = _places(order)
    fault = f"user {users.called(int(owner[entry]))} has rank {int(ranks[entry])}"
    cure = "if places were left out on purpose, the negated ranks will do as score=..."
    if not entry or int(owner[entry - 1]) != int(owner[entry]):
        fault += " as the best"
    else:
        before = int(ranks[entry - 1])
        fault += " twice" if int(ranks[entry]) == before else f" after {before}"
        if int(ranks[entry]) == before:
            cure = "duplicates='first' takes rows that repeat as the same row; other items are two lists: pass one list"
    raise ValueError(
        f"{origin.at(entry, 'rank')}: {fault}, but ranks must run 1, 2, 3, ... in each list (or 0, "
        f"1, 2, ... in all); {cure}"
    )
