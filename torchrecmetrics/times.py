"""Points in time from any library, brought to numbers in the same order."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from datetime import timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

from torchrecmetrics.columns import exact, words_of

_UNITS = ("s", "ms", "us", "ns", "ps", "fs", "as")


def times_of(column: Any, rows: int) -> tuple[Any, Callable[[str, Any], Any]]:
    """Return times as numbers [E] that are in order, and the function that makes a bound such a number."""
    import numpy as np

    when, missing, second = _moments("times", column)
    if missing.shape != (rows,):
        raise ValueError(f"users, items and times must be equally long, got {rows} users and times {[len(missing)]}")
    if missing.any():
        raise ValueError(f"{int(missing.sum())} of {rows} times are missing, the first in row {int(missing.argmax())}")

    def bound(name: str, value: Any) -> Any:
        given, absent, unit = _moments(name, np.fromiter([value], object, 1), dates=bool(second))
        if absent.any():
            raise ValueError(f"{name} must be a time, got {value!r}")
        if bool(unit) != bool(second) and rows:
            raise TypeError(
                f"{name} is {value!r}, but times are {'datetimes' if second else 'numbers'}: bounds are what times are"
            )
        at = given.tolist()[0]
        if second and unit:
            at = Fraction(at) / unit * second
        return math.ceil(at) if when.dtype.kind != "f" and math.isfinite(at) else at  # of whole times, >= 2.5 is >= 3

    return when, bound


def _moments(name: str, column: Any, dates: bool | None = None) -> tuple[Any, Any, Fraction | None]:
    """Return times as numbers, which are missing, and how many a second has: None for what is no datetime.

    Text is read as numbers if all of it is (`dates=True`: never), as ISO dates otherwise.
    """
    import numpy as np

    values, missing, kind = words_of(name, column)
    if kind == "text":
        numbers = None if dates else _numbers(name, values)
        values, kind = (values, "datetimes") if numbers is None else (numbers, "floats")
    if values.dtype.kind == "f":
        values = values.astype(np.float64)  # bounds are not to be rounded to float32
        missing[~missing] = np.isnan(values)  # text too
    if kind in ("whole numbers", "floats", "missing"):
        return values, missing, None
    if kind != "datetimes":
        raise TypeError(f"{name} must be numbers or datetimes, got {kind}")
    values = _datetimes(name, values)
    missing[~missing] = np.isnat(values)
    unit, step = np.datetime_data(values.dtype)
    return values.astype(np.int64), missing, Fraction(1000 ** _UNITS.index(unit), step)


def _numbers(name: str, words: Any) -> Any:
    """Read text as whole numbers, or else as floats; None if it is neither."""
    import numpy as np

    texts = words.tolist()
    try:
        return exact(np.fromiter(map(int, texts), object, len(texts)))[0]
    except ValueError:
        pass
    try:
        values = np.fromiter(map(float, texts), float, len(texts))
    except ValueError:
        number = next((text for text in texts if text.strip().lstrip("+-").isdecimal()), None)
        if number is None:
            return None
        raise TypeError(f"{name} are numbers ({number!r}) and other text mixed: make them all one kind") from None
    if not np.isnan(values).any() and len(np.unique(values)) < len(set(map(Decimal, set(texts)))):
        raise ValueError(f"{name} have more digits than float64 holds: pass whole numbers of a smaller unit")
    return values


def _datetimes(name: str, values: Any) -> Any:
    """Bring datetimes, in UTC where they have a time zone, to the finest unit that occurs, seconds at least."""
    import numpy as np

    try:
        if values.dtype.kind == "O":
            values = np.fromiter(map(_without_zone, values), object, len(values))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy warns that it brings time zones to UTC
            moments, seconds = values.astype("M8"), values.astype("M8[s]")
    except (ValueError, OverflowError) as error:
        raise TypeError(f"{name} must be numbers or datetimes: {error}") from error
    if np.datetime_data(moments.dtype)[0] not in _UNITS:
        return seconds
    far = (moments.astype("M8[s]") != seconds) & ~np.isnat(seconds)
    if far.any():
        raise ValueError(
            f"{name} hold {seconds[far][0]}, which {moments.dtype} cannot hold: round them to a coarser unit"
        )
    return moments


def _without_zone(value: Any) -> Any:
    """Return a datetime that numpy takes: of pandas with its nanoseconds, and in UTC."""
    if hasattr(value, "to_datetime64"):
        return value.to_datetime64()
    return value.astimezone(timezone.utc).replace(tzinfo=None) if getattr(value, "tzinfo", None) else value
