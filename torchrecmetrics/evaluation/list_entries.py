"""`ListEntries`: read recommended lists of any form: a table, a dict, a tuple or the result of `recommend`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.core.cures import Cure, CuredError
from torchrecmetrics.evaluation.matching import IdColumn
from torchrecmetrics.evaluation.recommendations import Recommendations
from torchrecmetrics.tables.events import Events, check_owners
from torchrecmetrics.tables.ids import read_ids
from torchrecmetrics.tables.numbers import row_numbers, words
from torchrecmetrics.tables.sources import Columns, arrow, compute, tensor_of
from torchrecmetrics.tables.table import Table
from torchrecmetrics.tables.vocabulary import Vocabulary

#: Usual last words of names of columns of ranks, and of numbers of which the lowest is best.
_RANKS = {"rank", "ranks", "ranking", "position", "pos", "place", "order"}
_DISTANCES = {"distance", "distances", "dist"}


class Numbering(NamedTuple):
    """The vocabularies to which lists are matched; None = there are row numbers alone."""

    owner: str
    """Argument that has them, for messages."""
    users: Vocabulary | None
    items: Vocabulary | None
    shape: tuple[int, int]


class ListEntries(NamedTuple):
    """The entries of all lists, in the order of their rows; those of one user are a list."""

    users: IdColumn
    items: IdColumn
    owners: Tensor
    """Row number, among `users.ids`, of the user of each list, also of empty lists, int64 [n]."""
    what: str
    """Source of the lists, for messages: a path, or the argument's name."""
    ranks: Tensor | None = None
    """Rank of each entry, int32 [E]; without ranks and scores the entries of a user are in order."""
    scores: Tensor | None = None
    """Score of each entry, [E]."""
    table: Table | None = None
    """The table of the lists; None = the lists are not in columns."""
    source: Columns | None = None
    """Names rows in messages; None = the lists are not in columns."""

    @classmethod
    def read(cls, lists: Any, known: Numbering) -> ListEntries:
        """Read lists of any form; see `evaluate_lists`.

        Args:
            lists: the lists, tables as `Table`.
            known: the vocabularies to which the lists will be matched.

        Raises:
            TypeError: for anything without lists.
            ValueError: for missing columns or ids, values that are no ranks, two lists of one user, and no rows.
        """
        if isinstance(lists, Recommendations):
            entries = _of_recommendations(lists, known)
        elif isinstance(lists, Table):
            entries = _of_table(lists, known)
        else:
            entries = _of_each_user(lists, known)
        if not len(entries.owners):
            raise ValueError(f"{entries.what} holds no rows")
        if entries.users.ids is None and int(entries.owners.min()) < 0:
            raise ValueError(f"the users of {entries.what} hold {int(entries.owners.min())}: row numbers are 0 or more")
        return entries

    def at(self, row: int, role: str) -> str:
        """Return the source, the row and the column of a role, for messages."""
        if self.table is None or self.source is None:
            return self.what
        return f"{self.what}, {self.source.row(row)}, column {self.table.columns[role]!r}"


# ------------------------------------------------------------------------------------------- a row per listed item


def _of_table(lists: Table, known: Numbering) -> ListEntries:
    """Return the entries of a table with a row per listed item, or a cell per list."""
    for name, ids, size in (("user", known.users, known.shape[0]), ("item", known.items, known.shape[1])):
        if ids is None:
            raise ValueError(
                f"{lists.what} holds ids, {known.owner} has no {name}_ids: row 5 could mean two {name}s. Make "
                f"{known.owner} with ids, too (from_frame); if its row numbers are the ids, say so: "
                f"{known.owner}.with_ids({name}_ids=torch.arange({size}))"
            )
    if lists.split is not None and lists.order is not None:
        raise ValueError("split= reads the items of a cell in order, best first: leave rank= and score= out")
    events = Events.of_table(lists, "order", one_cell_per_user=True)
    assert events.source is not None
    names, as_written = lists.columns, lists.source.as_written
    users = IdColumn(events.source.name(names["user"]), events.user_ids, events.users, as_written)
    is_written = as_written or lists.split is not None
    items = IdColumn(events.source.name(names["item"]), events.item_ids, events.items, is_written)
    owners = torch.arange(events.shape[0], device="cpu")
    entries = ListEntries(users, items, owners, lists.what, table=lists, source=events.source)
    if events.values is None:
        return entries
    order = order_values(lists, events.values)
    if "score" in names:
        return entries._replace(scores=order)
    wrong = (order < 0) | (order >= 2**31 - 1)
    if order.is_floating_point():
        wrong |= order != order.floor()
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        cure = Cure.option("score", names["rank"])
        raise CuredError(
            f"{events.source.name(names['rank'])} holds {order[row].item()} in {events.source.row(row)}, which is no "
            f"rank: 1, 2, 3, ..., 1 = best; numbers of which the highest is best are {cure}",
            cure,
        )
    return entries._replace(ranks=order.int())


def order_values(lists: Table, values: Tensor) -> Tensor:
    """Return the ranks or scores of a table.

    Raises:
        ValueError: for ranks that are scores by their name, and scores of which the lowest is best by name and values.
    """
    name = lists.order or ""
    last = {*[word for word in words(name) if word not in ("no", "nr", "number")][-1:]}
    by_rank, by_score = Cure.option("rank", name), Cure.option("score", name)
    if "rank" in lists.columns:
        if last & {"score", "scores"}:
            raise CuredError(
                f"{by_rank} would turn {lists.what} upside down if the highest is best: pass {by_score}, or rename the "
                "column if 1 is the best",
                by_rank,
                by_score,
            )
    elif name == "rank" or (last & _RANKS and bool(((values >= 0) & (values == values.double().floor())).all())):
        raise CuredError(
            f"{by_score} would turn {lists.what} upside down if 1 is the best: pass {by_rank}, or rename the column if "
            "the highest is best",
            by_rank,
            by_score,
        )
    elif last & _DISTANCES and bool((values >= 0).all()):
        raise CuredError(
            f"{by_score} would turn {lists.what} upside down if the smallest is the best: negate the column and rename "
            "it",
            by_score,
        )
    return values


# ------------------------------------------------------------------------------------------------ a list per user


def _of_each_user(lists: Any, known: Numbering) -> ListEntries:
    """Return the entries of a dict {user: [items]}, or of a tuple (lists, users)."""
    cells, owners = (list(lists.values()), list(lists)) if isinstance(lists, Mapping) else lists
    entries, lengths = _concatenated(cells)
    if not len(lengths):
        raise ValueError("lists is empty")
    users = _id_column("user", "the users of lists", owners, known.users, known.owner)
    if len(users.rows) != len(lengths):
        raise ValueError(f"there are {len(lengths)} lists and {len(users.rows)} users: each list has one user")
    check_owners("lists", users.rows, users.ids)
    if known.items is None:
        numbers = row_numbers("the items of lists", entries)
        is_item, entries = numbers >= 0, numbers[numbers >= 0]
    else:
        entries, is_item = _without_padding(entries, known.items)
    items = _id_column("item", "the items of lists", entries, known.items, known.owner)
    of_entries = users._replace(rows=users.rows.repeat_interleave(lengths)[is_item])
    return ListEntries(of_entries, items, users.rows, "lists")


def _id_column(side: str, what: str, column: Any, known: Vocabulary | None, owner: str) -> IdColumn:
    """Return ids with their own vocabulary, or row numbers where there is none to match."""
    if known is not None:
        return IdColumn(what, *Vocabulary.number(column, what))
    otherwise = f", as {owner} has no {side}_ids ({owner}.with_ids names its rows)"
    return IdColumn(what, None, row_numbers(what, column, otherwise))


def _without_padding(entries: Any, known: Vocabulary) -> tuple[Any, Tensor]:
    """Return the ids of lists without padding (-1, missing), and a mask of the entries that are items, bool [E]."""
    entries = entries.tolist() if getattr(entries, "dtype", None) == object else entries  # noqa: E721
    if isinstance(entries, list) and {int, str} <= {*map(type, entries)}:  # -1 may pad lists of text
        entries = [None if entry == -1 else entry for entry in entries]
    ids = read_ids("the items of lists", entries)
    is_item, is_padding = tensor_of(ids.is_valid()), torch.zeros(len(ids), dtype=torch.bool, device="cpu")
    if ids.type == arrow().int64():
        is_padding = tensor_of(compute().equal(ids, -1).fill_null(False))
    if bool(is_padding.any()) and -1 in known:
        raise ValueError(
            "-1 pads lists, but it is also an item of target: pass a dict or a frame without such entries, and "
            "another id for the item"
        )
    is_item &= ~is_padding
    return ids.filter(arrow().array(is_item.numpy())), is_item


def _concatenated(lists: Any) -> tuple[Any, Tensor]:
    """Return the concatenated entries of lists, and the length of each list, int64 [B]."""
    if hasattr(lists, "columns") and hasattr(lists, "to_numpy"):  # a frame with a column per rank
        lists = lists.to_numpy()
    shape = getattr(lists, "shape", None)
    if shape is not None:
        if len(shape) != 2:
            raise ValueError(f"lists must be [users, K], item ids best first, got shape {[*shape]}")
        return lists.reshape(-1), torch.full((int(shape[0]),), int(shape[1]), device="cpu")
    lists = list(lists)
    kinds = set(map(type, lists))
    wrong = [kind.__name__ for kind in kinds if kind in (str, bytes, dict, set) or not hasattr(kind, "__len__")]
    if wrong:
        cure = ": of a dict {item: score} pass sorted(scores, key=scores.get, reverse=True)" if "dict" in wrong else ""
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


def _of_recommendations(lists: Recommendations, known: Numbering) -> ListEntries:
    """Return the entries of a result of `recommend`."""
    for name, known_ids, own_ids in (("user", known.users, lists.user_ids), ("item", known.items, lists.item_ids)):
        if (known_ids is None) != (own_ids is None):
            has, lacks = known.owner, "the recommendations"
            has, lacks = (has, lacks) if own_ids is None else (lacks, has)
            cure = f"{'recommendations' if own_ids is None else known.owner}.with_ids({name}_ids=...)"
            raise ValueError(
                f"{has} has {name}_ids, {lacks} has none: row 5 could mean two {name}s; {cure} says what its rows are"
            )
    ids, owners = lists.ids.cpu(), lists.users.cpu()
    check_owners("the recommendations", owners, lists.user_ids)
    is_item = ids >= 0
    users = IdColumn("the users of the recommendations", lists.user_ids, owners[is_item.nonzero()[:, 0]])
    items = IdColumn("the items of the recommendations", lists.item_ids, ids[is_item])
    scores = lists.scores.cpu()[is_item].double()
    return ListEntries(users, items, owners, "the recommendations", scores=scores)
