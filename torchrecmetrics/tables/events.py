"""`Events`: columns of users, items, times and values as tensors, made of any entries; the base of `Log`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor

from torchrecmetrics.core.checks import check_choice, describe
from torchrecmetrics.core.numbers import entry_at, holds, values_of
from torchrecmetrics.tables.columns import tensor_of
from torchrecmetrics.tables.entries import Entries, entries_of_dict
from torchrecmetrics.tables.table import has_columns
from torchrecmetrics.tables.times import read_times
from torchrecmetrics.tables.vocabulary import Vocabulary, ascending, codes_of

Unknown: TypeAlias = Literal["error", "drop"]

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
    def of_entries(cls: type[_Events], entries: Entries, user_ids: Any = None, item_ids: Any = None) -> _Events:
        """Return events with row numbers of users and items; without a column of items, each row is an item of its own.

        Args:
            entries: the entries, with any of the roles "time" and "value".
            user_ids: vocabulary; None = the distinct users, ascending.
            item_ids: vocabulary; None = the distinct items, ascending.

        Raises:
            TypeError: for values that are no numbers, and times of another type.
            ValueError: for missing values and times, and ids that are not in their vocabulary; names column and row.
        """
        users, user_ids = _numbered(entries, "user", user_ids)
        if "item" in entries.columns:
            items, item_ids = _numbered(entries, "item", item_ids)
        else:
            items = torch.arange(len(users), device="cpu")
        times, unit, values = None, None, entries.numbers("value")
        if "time" in entries.columns:
            times, unit = read_times(entries.name("time"), entries.columns["time"], entries.row)
        return cls(
            users=users,
            items=items,
            shape=(len(user_ids), len(users) if item_ids is None else len(item_ids)),
            user_ids=user_ids,
            item_ids=item_ids,
            times=None if times is None else times.clone(),  # the frame, whose memory it is, may change
            time_unit=unit,
            values=None if values is None else values.clone(),
        )

    @classmethod
    def of_dict(cls: type[_Events], relevant: Mapping[Any, Any], user_ids: Any = None, item_ids: Any = None) -> _Events:
        """Return the events of a dict {user: items} or {user: {item: value}}; errors are those of `entries_of_dict`."""
        if not isinstance(relevant, Mapping) or has_columns(relevant):
            raise TypeError(f"relevant must be {{user: items}}, got {describe(relevant)}: from_frame reads columns")
        return cls.of_entries(entries_of_dict("relevant", relevant), user_ids, item_ids)

    @classmethod
    def of_columns(
        cls: type[_Events],
        pairs: tuple[Any, Any],
        values: Any,
        ids: tuple[Any, Any],
        shape: tuple[int | None, int | None],
        unknown: Unknown,
    ) -> _Events:
        """Return events of columns of users and items, without those whose id is unknown.

        The arguments, in pairs of users and items, and errors are those of `Interactions.from_columns`.
        """
        check_choice("unknown", unknown, ("error", "drop"))
        users, num_users, user_ids = codes_of("users", pairs[0], ids[0], shape[0])
        items, num_items, item_ids = codes_of("items", pairs[1], ids[1], shape[1])
        if users.shape != items.shape:
            raise ValueError(f"users and items must be equally long, got {len(users)} and {len(items)}")
        if values is not None and (values := values_of(values)).shape != users.shape:
            raise ValueError(f"values must be as long as users ({len(users)}), got {list(values.shape)}")
        events = cls(users, items, (num_users, num_items), user_ids=user_ids, item_ids=item_ids, values=values)
        known = (users >= 0) & (items >= 0)
        dropped = len(known) - int(known.sum())
        if dropped and unknown == "error":
            at = int((~known).nonzero()[0])
            which, column = ("user", pairs[0]) if int(users[at]) < 0 else ("item", pairs[1])
            raise ValueError(
                f"{dropped} of {len(known)} rows hold an id that is not in its vocabulary, the first in row {at}: "
                f"{which} {entry_at(column, at)!r}; unknown='drop' leaves them out"
            )
        return events.take(known) if dropped else events

    def take(self: _Events, rows: Tensor) -> _Events:
        """Return the events of the given rows, int64 [n], or of a mask, bool [E]; the vocabularies stay whole."""
        times, values = (None if column is None else column[rows] for column in (self.times, self.values))
        return replace(self, users=self.users[rows], items=self.items[rows], times=times, values=values)


def _numbered(entries: Entries, role: str, vocabulary: Any) -> tuple[Tensor, Vocabulary]:
    """Return the row number of each user or item, int64 [E], and the vocabulary; None = the ids, ascending."""
    column = entries.columns[role]
    if vocabulary is None:
        new_ids, rows = ascending(column)
        return rows, new_ids
    name, where = entries.name(role), f"{role}_ids"
    known = Vocabulary.named(where, vocabulary)
    rows = Vocabulary.of_array(column.dictionary).rows_in(known, name, where)
    rows = rows.index_select(0, tensor_of(column.indices))
    if len(unknown := (rows < 0).nonzero()[:, 0]):
        row = int(unknown[0])
        raise ValueError(
            f"{name} {holds(name)} {column[row].as_py()!r} in {entries.row(row)}, which is not in {where} "
            f"({len(unknown)} of {len(rows)} rows): leave such rows out, or join the two, {where}.union(...)"
        )
    return rows, known
