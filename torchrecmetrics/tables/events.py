"""`Events`: columns of users, items, times and values as tensors, made of any entries; the base of `Log`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor

from torchrecmetrics.core.checks import check_choice
from torchrecmetrics.core.numbers import check_exact, entry_at, holds, values_of
from torchrecmetrics.tables.columns import array_of, arrow, first_null, is_text, tensor_of
from torchrecmetrics.tables.entries import Entries
from torchrecmetrics.tables.vocabulary import Vocabulary, ascending, codes_of

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
UNIT_RATIO = 100
"""Times that are more than so many times apart, with none between, are of two units."""
_SMALLEST_CLOCK_TIME = 1e6
"""If no time reaches this number, times count days or steps from any start, and their units are not checked."""


def read_times(name: str, column: Any, row_name: Callable[[int], str] = "row {}".format) -> tuple[Tensor, str | None]:
    """Read a column [E] of numbers or datetimes, as they are or as text.

    Returns:
        int64 or float64 [E], and the unit "s", "ms", "us" or "ns" of datetimes, counted since 1970 in UTC; None = the
        times are numbers.

    Raises:
        TypeError: if the column holds anything else.
        ValueError: if a time is missing, infinite or beyond 64 bits, and for floats that may have been rounded.
    """
    pa, array = arrow(), array_of(name, column)
    types = pa.types
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if is_text(array.type):
        array = array_of(name, _of_text(name, array))
    if array.null_count:
        missing = row_name(first_null(array))
        raise ValueError(f"{name}: {array.null_count} of {len(array)} are missing, the first in {missing}")
    unit = None
    if types.is_date(array.type):
        array = array.cast(pa.timestamp("s"))
    if types.is_timestamp(array.type):
        unit = array.type.unit
    elif types.is_floating(array.type):
        numbers = tensor_of(array)
        if numbers.dtype != torch.float64 or bool(numbers.isinf().any()):
            check_exact(name, numbers)
        return numbers.double(), None
    elif not types.is_integer(array.type) and len(array):
        raise TypeError(f"{name} must be numbers or datetimes, got {array.type}")
    try:
        return tensor_of(array.cast(pa.int64())), unit
    except pa.ArrowInvalid:
        raise ValueError(f"{name} must be below 2^63: pass them in a coarser unit") from None


def read_bound(name: str, value: Any, times: Tensor, unit: str | None) -> int | float:
    """Convert a time of the same type as `times`, in `unit`, to a number that can be compared with them.

    Raises:
        TypeError: if it is a number and the times are datetimes, or the reverse.
        ValueError: if it is no time.
    """
    at, unit_of_bound = read_times(name, [value])
    if (unit_of_bound is None) != (unit is None):
        kind, numbers, call = "numbers", "they are", f"pandas.Timestamp({str(value)!r}).timestamp()"
        if unit is not None:
            kind, numbers, call = "datetimes", "it is in", f"pandas.Timestamp({value!r}, unit='s')"
        raise TypeError(
            f"{name} is {value!r}, but times are {kind}: if {numbers} seconds since 1970, pass {name}={call}"
        )
    number: Any = at.tolist()[0]
    if unit is not None and unit_of_bound is not None:
        number = Fraction(number * _PER_SECOND[unit], _PER_SECOND[unit_of_bound])
    if times.is_floating_point():
        return float(number)
    # of whole times, >= 2.5 means >= 3; datetimes of a fine unit end before those of a coarse one
    return int(max(-(2**63), min(math.ceil(number), 2**63 - 1)))


def shown_time(times: Tensor, row: int, unit: str | None) -> str:
    """Return the time of a row as text, for a message."""
    import numpy as np

    at = times[row].item()
    return str(at if unit is None else np.array(at).view(f"M8[{unit}]"))


def in_one_unit(times: Sequence[Tensor], units: Sequence[str | None]) -> list[Tensor]:
    """Return the times of several columns as numbers of one unit, the finest, a tensor [E] per column.

    Raises:
        TypeError: if some are numbers and some are datetimes.
    """
    used = {unit for column, unit in zip(times, units, strict=True) if len(column)}
    if None in used and len(used) > 1:
        raise TypeError("times are numbers in one part and datetimes in another: make them all one kind")
    finest = max((_PER_SECOND[unit] for unit in used if unit is not None), default=1)
    return [
        column * (finest // _PER_SECOND[unit] if unit and len(column) else 1)
        for column, unit in zip(times, units, strict=True)
    ]


def wrong_times(times: Tensor) -> Tensor:
    """Return which times are of another unit than most, or stand for a missing time (-1 among larger times); bool [E].

    Times are of several units if they form narrow ranges that are more than `UNIT_RATIO` times apart.
    """
    sizes = times.double()  # int64 overflows at 100 times a time in nanoseconds
    none = torch.zeros_like(times, dtype=torch.bool)
    if not len(times) or 0 < sizes.max() <= sizes.min() * UNIT_RATIO:
        return none
    missing = (times == -1) | (times == -(2**63))  # the second is numpy's missing date as a number
    if bool(missing.all()) or sizes[~missing].min() <= UNIT_RATIO:  # where times are small numbers, -1 may be one
        missing = none
    levels = torch.unique(sizes[~missing])
    jumps = levels[1:] > levels[:-1] * UNIT_RATIO
    ends = jumps.new_ones(1)
    lowest, highest = levels[torch.cat([ends, jumps])], levels[torch.cat([jumps, ends])]  # of each range
    mixed = (levels[0] > 0) & (levels[-1] >= _SMALLEST_CLOCK_TIME) & (highest <= lowest * UNIT_RATIO).all()
    unit = torch.bucketize(sizes, lowest, right=True)
    return missing.logical_or((unit != unit[~missing].median()) & mixed)


def _of_text(name: str, array: Any) -> Any:
    """Convert text to whole numbers, or else to floats, or else to datetimes of the coarsest unit that holds all."""
    pa, reasons = arrow(), []
    datetimes = [pa.timestamp(unit, zone) for zone in (None, "UTC") for unit in _PER_SECOND]
    for type_ in (pa.int64(), pa.float64(), *datetimes):
        try:
            converted = array.cast(type_)
        except pa.ArrowInvalid as error:
            reasons.append(str(error).partition(" as a scalar")[0])
            continue
        if type_ == pa.float64():
            check_exact(name, tensor_of(converted.drop_null()))
        return converted
    raise TypeError(
        f"{name} must be numbers or datetimes, with a time zone in all rows or in none: {reasons[2]}; of other forms "
        "pandas.to_datetime makes datetimes"
    )


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

    def check_times(self) -> None:
        """Raise for times that cannot be ordered: in two units, or with -1 among them."""
        if self.times is None or not bool((wrong := wrong_times(self.times)).any()):
            return
        odd_time, usual_time = (
            shown_time(self.times, int(rows.nonzero()[0]), self.time_unit) for rows in (wrong, ~wrong)
        )
        raise ValueError(
            f"{int(wrong.sum())} of {len(self)} times are of another unit than most, or mean a missing time, such as "
            f"{odd_time}, where others are like {usual_time}: convert the times to one unit, and leave out missing "
            "times, log.take(log.times > 0)"
        )

    def take(self: _Events, rows: Tensor) -> _Events:
        """Return the events of the given rows, int64 [n], or of a mask, bool [E]; the vocabularies stay whole."""
        times, values = (None if column is None else column[rows] for column in (self.times, self.values))
        return replace(self, users=self.users[rows], items=self.items[rows], times=times, values=values)


def events_of(entries: Entries, user_ids: Any = None, item_ids: Any = None) -> Events:
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
    return Events(
        users=users,
        items=items,
        shape=(len(user_ids), len(users) if item_ids is None else len(item_ids)),
        user_ids=user_ids,
        item_ids=item_ids,
        times=None if times is None else times.clone(),  # the frame, whose memory it is, may change
        time_unit=unit,
        values=None if values is None else values.clone(),
    )


def events_of_columns(
    pairs: tuple[Any, Any],
    values: Any,
    ids: tuple[Any, Any],
    shape: tuple[int | None, int | None],
    unknown: Unknown,
) -> Events:
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
    events = Events(users, items, (num_users, num_items), user_ids=user_ids, item_ids=item_ids, values=values)
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
