"""`Events`: users, items, times and values of interactions as row numbers, and the order of events in time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchrecmetrics.data.columns import entry_at, values_of
from torchrecmetrics.data.frames import Roles, Table, arrow, arrow_array, compute, tensor_of
from torchrecmetrics.data.times import Times
from torchrecmetrics.data.vocabulary import Vocabulary


@dataclass(frozen=True, eq=False)
class Events:
    """Users and items of events as row numbers, in the order in which they were given, on the CPU."""

    users: Tensor
    """Row number of the user of each event, int64 [E]; -1 = not in the vocabulary."""
    items: Tensor
    """Row number of the item of each event, int64 [E]; -1 = not in the vocabulary."""
    shape: tuple[int, int]
    """Number of users and number of items, with or without events."""
    user_ids: Vocabulary | None = None
    """Ids of the user rows, if known."""
    item_ids: Vocabulary | None = None
    """Ids of the item rows, if known."""
    times: Times | None = None
    """Time of each event, if known."""
    values: Tensor | None = None
    """Value of each event, [E], if known."""

    def __len__(self) -> int:
        return len(self.users)

    @classmethod
    def of_table(cls, table: Table, roles: Roles, user_ids: Any, item_ids: Any) -> Events:
        """Make events from the columns of a table.

        Args:
            table: the columns.
            roles: names of the columns of users, items, times and values.
            user_ids: vocabulary; None = the distinct users, ascending.
            item_ids: vocabulary; None = the distinct items, ascending.

        Raises:
            TypeError: for columns of mixed kinds, values that are no numbers, and times of another type.
            ValueError: for missing entries, and ids that are not in their vocabulary; names column and row.
        """
        users, user_ids = _numbered(table, "user_ids", roles.user, user_ids)
        items, item_ids = _numbered(table, "item_ids", roles.item, item_ids)
        lengths = {roles.user: len(users), roles.item: len(items)}
        times = values = None
        if roles.time is not None:
            times = Times.read(table.name(roles.time), _present(table, roles.time))
            lengths[roles.time] = len(times)
        if roles.value is not None:
            values = numbers_in(table, roles.value)
            lengths[roles.value] = len(values)
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of {table.what} must be equally long, got {lengths}")
        return cls(users, items, (len(user_ids), len(item_ids)), user_ids, item_ids, times, values)

    def take(self, rows: Tensor) -> Events:
        """Return the events of the given rows, int64 [n], or of a mask, bool [E]."""
        return Events(
            self.users[rows],
            self.items[rows],
            self.shape,
            self.user_ids,
            self.item_ids,
            None if self.times is None else self.times.take(rows),
            None if self.values is None else self.values[rows],
        )

    def in_order(self) -> Tensor:
        """Return the rows of events by user, then by time, int64 [E]; equal or missing times keep the order given."""
        order = torch.arange(len(self), device="cpu") if self.times is None else self.times.order()
        return order[self.users[order].argsort(stable=True)]

    def last_out(self) -> Tensor:
        """Return the part of each event in a leave-last-out split, int64 [E]: a user's last event is for testing.

        0 = train, 1 = validation, 2 = test. Users with fewer than three events stay in train whole.
        """
        order = self.in_order()
        count = torch.bincount(self.users, minlength=self.shape[0])
        place_from_end = count.cumsum(0)[self.users[order]] - torch.arange(len(order), device="cpu")
        part = torch.zeros_like(self.users)
        part[order] = (3 - place_from_end).clamp(min=0) * (count[self.users[order]] >= 3)
        return part

    def by_time(self, valid_from: Any, test_from: Any) -> Tensor:
        """Return the part of each event in a split at two times, int64 [E].

        0 = train, 1 = validation, 2 = test; an event at a bound is in the later part.

        Raises:
            TypeError: if a bound is not of the type of the times.
            ValueError: for bounds in the wrong order, and if no event is left for train or for test.
        """
        if self.times is None:
            raise ValueError("the events have no times: name their column, time=")
        first, second = self.times.bound("valid_from", valid_from), self.times.bound("test_from", test_from)
        if not first <= second:
            raise ValueError(f"valid_from must not be later than test_from, got {valid_from} and {test_from}")
        part = (self.times.numbers >= first).long() + (self.times.numbers >= second).long()
        for which, name in ((0, f"train, before valid_from={valid_from}"), (2, f"test, from test_from={test_from} on")):
            if len(self) and not bool((part == which).any()):
                raise ValueError(f"no event is left for {name}; times run from {self.times.range()}")
        return part


def _numbered(table: Table, name: str, column: str, vocabulary: Any) -> tuple[Tensor, Vocabulary]:
    """Return the row number of each entry of a column of ids, int64 [E], and the vocabulary."""
    named, given = table.name(column), table.columns[column]
    if vocabulary is None:
        made, rows = Vocabulary.number(given, named, table.row)
        return rows, made
    known = Vocabulary.named(name, vocabulary)
    rows = known.rows_of(named, given, name)
    unknown = (rows < 0).nonzero()[:, 0]
    if len(unknown):
        what = repr(entry_at(given, int(unknown[0])))
        raise ValueError(
            f"{named} holds {what} in {table.row(int(unknown[0]))}, which is not in {name} ({len(unknown)} of "
            f"{len(rows)} rows): leave {name} out, or join the two, {name}.union(...)"
        )
    return rows, known


def numbers_in(table: Table, column: str) -> Tensor:
    """Return a column of values as a tensor [E]; refuse missing entries and entries that are no numbers."""
    array, types = _present(table, column), arrow().types
    if not (types.is_integer(array.type) or types.is_floating(array.type) or types.is_boolean(array.type)) and len(
        array
    ):
        raise TypeError(
            f"{table.name(column)} must hold numbers, got {array.type}: {array[0].as_py()!r} in {table.row(0)}"
        )
    if types.is_uint64(array.type):
        array = array.cast(arrow().int64())  # refuses 2^63 and more
    return values_of(tensor_of(array))


def _present(table: Table, column: str) -> Any:
    """Return a column as an array of pyarrow, or name its first missing entry."""
    array = arrow_array(table.name(column), table.columns[column])
    if array.null_count:
        row = table.row(compute().index(array.is_null(), True).as_py())
        raise ValueError(f"{table.name(column)} is missing in {row}: leave such rows out")
    return array.dictionary_decode() if arrow().types.is_dictionary(array.type) else array
