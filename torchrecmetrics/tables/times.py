"""Convert times of any library to numbers that sort in the same order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from torchrecmetrics.core.numbers import check_exact
from torchrecmetrics.tables.columns import array_of, arrow, first_null, is_text, tensor_of

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
