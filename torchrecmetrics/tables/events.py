"""`Events`: columns of users, items, times and values as tensors, read from a table; the base of `Log`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchrecmetrics.core.checks import describe
from torchrecmetrics.tables.cells import exploded
from torchrecmetrics.tables.numbers import entry_at, holds, real_numbers, values_of
from torchrecmetrics.tables.sources import TEXT, Columns, arrow, as_numbers, compute, tensor_of
from torchrecmetrics.tables.table import Table
from torchrecmetrics.tables.times import read_times
from torchrecmetrics.tables.vocabulary import Vocabulary, called

_Events = TypeVar("_Events", bound="Events")


@dataclass(frozen=True, eq=False, repr=False)
class Events:
    """Users and items of events as row numbers, in the order in which they were given, on the CPU."""

    users: Tensor
    """Row number of the user of each event, int64 [E]."""
    items: Tensor
    """Row number of the item of each event, int64 [E]."""
    shape: tuple[int, int]
    """Number of users and number of items, with or without events."""
    user_ids: Vocabulary | None = None
    """Ids of the user rows, if known."""
    item_ids: Vocabulary | None = None
    """Ids of the item rows, if known."""
    times: Tensor | None = None
    """Time of each event, int64 or float64 [E]: numbers as given, datetimes as `time_unit` since 1970 in UTC."""
    time_unit: str | None = None
    """Unit of `times` if they were datetimes, "s", "ms", "us" or "ns"; None if they were numbers."""
    values: Tensor | None = None
    """Value of each event, [E], if known."""
    source: Columns | None = None
    """Names columns and rows of the table of the events, for messages."""

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.users)

    @property
    def num_users(self) -> int:
        """Number of users, with or without events."""
        return self.shape[0]

    @property
    def num_items(self) -> int:
        """Number of items, with or without events."""
        return self.shape[1]

    @classmethod
    def of_table(
        cls: type[_Events],
        table: Table,
        *roles: str,
        user_ids: Any = None,
        item_ids: Any = None,
        one_cell_per_user: bool = False,
    ) -> _Events:
        """Read a table; a cell of several items is an event for each, and none for an empty cell.

        Args:
            table: the table.
            roles: further columns to read: "time", and "value" or "order" (ranks or scores) as values.
            user_ids: vocabulary; None = the distinct users, ascending.
            item_ids: vocabulary; None = the distinct items, ascending.
            one_cell_per_user: refuse two cells of several items that one user has.

        Raises:
            TypeError: for columns of mixed kinds, values that are no numbers, and times of another type.
            ValueError: for missing entries, and ids that are not in their vocabulary; names column and row.
        """
        names = table.roles(*roles)
        cells = table.source.read(names)
        holds_lists = arrow().types.is_nested(cells.columns[names.item].type)
        columns = exploded(cells, names.item, table.split) if holds_lists or table.split is not None else cells
        if columns is not cells and user_ids is None:  # users of empty cells, too
            user_ids, owners = Vocabulary.number(cells.columns[names.user], cells.name(names.user), cells.row)
            if one_cell_per_user:
                check_owners(table.what, owners, user_ids)
        user, item = columns.name(names.user), columns.name(names.item)
        users, user_ids = _numbered(columns.columns[names.user], user_ids, "user_ids", user, columns.row)
        items, item_ids = _numbered(columns.columns[names.item], item_ids, "item_ids", item, columns.row)
        times = values = unit = None
        if names.time is not None:
            times, unit = read_times(columns.name(names.time), _present(columns, names.time))
        if names.value is not None:
            values = numbers_in(columns, names.value)
        return cls(
            users=users,
            items=items,
            shape=(len(user_ids), len(item_ids)),
            user_ids=user_ids,
            item_ids=item_ids,
            times=times,
            time_unit=unit,
            values=values,
            source=columns._replace(columns={}),
        )

    @classmethod
    def of_dict(
        cls: type[_Events], what: str, items_of: Mapping[Any, Any], user_ids: Any = None, item_ids: Any = None
    ) -> _Events:
        """Read a dict {user: items}, or {user: {item: value}}, called `what` in messages; a user may have no items.

        Raises:
            TypeError: for anything but such a dict, ids of mixed kinds, and users with and without values.
            ValueError: for missing ids, and ids that are not in their vocabulary.
        """
        for user, items in items_of.items():
            if isinstance(items, (str, bytes)) or not hasattr(items, "__iter__"):
                raise TypeError(f"{what} must be a dict {{user: items}}, got {describe(items)} for {user!r}")
        lists = {user: [*items] for user, items in items_of.items()}
        graded = {user: items for user, items in items_of.items() if isinstance(items, Mapping)}
        plain = [user for user, items in lists.items() if items and user not in graded]
        if graded and plain:
            raise TypeError(
                f"{what} holds a dict of grades for {next(iter(graded))!r} and a list without for {plain[0]!r}: make "
                "them all one kind"
            )
        values = values_of([grade for items in graded.values() for grade in items.values()]) if graded else None
        entries = [*chain.from_iterable(lists.values())]
        users, user_ids = _numbered([*lists], user_ids, "user_ids", f"{what}'s users")
        items, item_ids = _numbered(entries, item_ids, "item_ids", f"{what}'s items")
        users = users.repeat_interleave(torch.tensor([*map(len, lists.values())], dtype=torch.int64, device="cpu"))
        return cls(users, items, (len(user_ids), len(item_ids)), user_ids, item_ids, values=values)

    def take(self: _Events, rows: Tensor) -> _Events:
        """Return the events of the given rows, int64 [n], or of a mask, bool [E]; the vocabularies stay whole."""
        times, values = (None if column is None else column[rows] for column in (self.times, self.values))
        return replace(self, users=self.users[rows], items=self.items[rows], times=times, values=values)


def check_owners(what: str, owners: Tensor, ids: Vocabulary | None) -> None:
    """Refuse two lists of one user; `owners` is the row number of the user of each list, int64 [n]."""
    ordered, order = owners.sort(stable=True)
    twice = (ordered[1:] == ordered[:-1]).nonzero()[:, 0]
    if len(twice):
        first, second = int(order[twice[0]]), int(order[twice[0] + 1])
        raise ValueError(
            f"{what} has two lists of user {called(ids, int(ordered[twice[0]]))}, in rows {first} and {second}: pass "
            "one of them"
        )


def _numbered(
    entries: Any, vocabulary: Any, name: str, column: str, row_name: Callable[[int], str] = "row {}".format
) -> tuple[Tensor, Vocabulary]:
    """Return the row number of each entry, int64 [E], and the vocabulary; the other arguments are names in messages."""
    if vocabulary is None:
        new_ids, rows = Vocabulary.number(entries, column, row_name)
        return rows, new_ids
    known = Vocabulary.named(name, vocabulary)
    rows = known.rows_of(column, entries, name)
    unknown = (rows < 0).nonzero()[:, 0]
    if len(unknown):
        what = repr(entry_at(entries, int(unknown[0])))
        raise ValueError(
            f"{column} {holds(column)} {what} in {row_name(int(unknown[0]))}, which is not in {name} ({len(unknown)} "
            f"of {len(rows)} rows): leave such rows out, or join the two, {name}.union(...)"
        )
    return rows, known


def numbers_in(table: Columns, column: str) -> Tensor:
    """Return a column of values as a tensor [E]; refuse missing entries and entries that are no numbers."""
    array, types = _present(table, column), arrow().types
    if str(array.type) in TEXT:
        array = as_numbers(table, column, array)
    if types.is_decimal(array.type):
        array = array.cast(arrow().float64())
    is_number = types.is_integer(array.type) or types.is_floating(array.type) or types.is_boolean(array.type)
    if len(array) and not is_number:
        change = ".astype('int64')" if types.is_temporal(array.type) else ".astype(float)"
        change = ".str[0]" if types.is_list(array.type) or types.is_large_list(array.type) else change
        raise TypeError(
            f"{table.name(column)} must hold numbers, got {str(array.type)[:60]}: {str(array[0])[:60]} in "
            f"{table.row(0)}; convert it, frame[{column!r}] = frame[{column!r}]{change}"
        )
    if types.is_uint64(array.type):
        try:
            array = array.cast(arrow().int64())
        except arrow().ArrowInvalid:
            raise ValueError(f"{table.name(column)} must hold numbers below 2^63: make them floats") from None
    return real_numbers(tensor_of(array))


def _present(table: Columns, column: str) -> Any:
    """Return a column as an array of pyarrow, or name its first missing entry."""
    array = table.columns[column]
    if array.null_count:
        row = table.row(compute().index(array.is_null(), True).as_py())
        raise ValueError(
            f"{table.name(column)} is missing in {row}: leave such rows out, frame = frame.dropna(subset=[{column!r}])"
        )
    return array.dictionary_decode() if arrow().types.is_dictionary(array.type) else array
