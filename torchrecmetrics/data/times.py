"""Convert times of any library to numbers that sort in the same order."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from datetime import timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from torchrecmetrics.data.columns import exact, words_of

_UNITS = ("s", "ms", "us", "ns", "ps", "fs", "as")


class Times:
    """Times of events as numbers that sort in the same order: exact, whatever type they were read from.

    Args:
        when: array [E] of numpy: whole numbers (int64, uint64, or Python's int) or float64.
        dtype: numpy's dtype of the datetimes whose steps `when` counts; None = the times are numbers.
    """

    def __init__(self, when: Any, dtype: Any = None) -> None:
        self.when = when
        self.dtype = dtype

    @classmethod
    def read(cls, column: Any, rows: int) -> Times:
        """Read a column [E] of numbers or datetimes, as they are or as text.

        Raises:
            TypeError: if the column holds anything else.
            ValueError: if the column does not have `rows` entries, or a time is missing.
        """
        import numpy as np

        when, missing, dtype = _moments("times", column)
        if missing.shape != (rows,):
            raise ValueError(
                f"users, items and times must be equally long, got {rows} users and times {[len(missing)]}"
            )
        if missing.any():
            raise ValueError(
                f"{int(missing.sum())} of {rows} times are missing, the first in row {int(missing.argmax())}"
            )
        return cls(when if rows else when.astype(np.int64), dtype)

    @property
    def unit(self) -> str | None:
        """Unit of datetimes since 1970 in UTC: "s", "ns", "D"...; None = the times are numbers."""
        import numpy as np

        if self.dtype is None:
            return None
        unit, step = np.datetime_data(self.dtype)
        return unit if step == 1 else f"{step}{unit}"

    @property
    def numbers(self) -> Tensor:
        """The times as int64 or float64 [E].

        Raises:
            ValueError: if a time does not fit into int64.
        """
        if self.when.dtype.kind not in "if":
            raise ValueError("times must be below 2^63: pass them in a coarser unit")
        return torch.from_numpy(self.when)

    def order(self) -> Tensor:
        """Return the rows in order of time, int64 [E]; equal times keep the order given."""
        return torch.from_numpy(self.when.argsort(kind="stable"))

    def take(self, rows: Tensor) -> Times:
        """Return the times of the given rows, int64 [n], or of a mask, bool [E]."""
        return Times(self.when[rows.numpy()], self.dtype)

    def bound(self, name: str, value: Any) -> Any:
        """Convert a time of the same type as these times to a number that can be compared with `when`.

        Raises:
            TypeError: if it is a number and the times are datetimes, or the reverse.
            ValueError: if it is no time.
        """
        import numpy as np

        given, absent, dtype = _moments(name, np.fromiter([value], object, 1), dates=self.dtype is not None)
        if absent.any():
            raise ValueError(f"{name} must be a time, got {value!r}")
        if (dtype is None) != (self.dtype is None) and len(self.when):
            kind = "numbers" if self.dtype is None else "datetimes"
            raise TypeError(f"{name} is {value!r}, but times are {kind}: bounds must have the type of the times")
        at = given.tolist()[0]
        if self.dtype is not None and dtype is not None:
            at = Fraction(at) / _per_second(dtype) * _per_second(self.dtype)
        whole = self.when.dtype.kind != "f" and math.isfinite(at)
        return math.ceil(at) if whole else at  # for whole times, >= 2.5 means >= 3

    def since(self, bound: Any) -> Tensor:
        """Mark the times at or after `bound`, a result of the method `bound`: bool [E]."""
        return torch.from_numpy((self.when >= bound).astype(bool))

    def shown(self, row: int) -> str:
        """Return the time of a row as text, for a message."""
        import numpy as np

        at = self.when[row : row + 1]
        return str(at.tolist()[0] if self.dtype is None else at.astype(np.int64).view(self.dtype)[0])

    def state(self) -> dict[str, Any]:
        """Return the argument of `from_state`: the times as a tensor, and their unit."""
        return {"numbers": self.numbers, "unit": self.unit}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Times:
        """Make times from a result of `state`."""
        import numpy as np

        unit = state["unit"]
        return cls(state["numbers"].numpy(), None if unit is None else np.dtype(f"M8[{unit}]"))

    def __len__(self) -> int:
        return len(self.when)


def in_one_unit(times: Sequence[Times]) -> list[Tensor]:
    """Return the times of several columns as numbers of one unit, a tensor [E] per column.

    Raises:
        TypeError: if some are numbers and some are datetimes.
    """
    import numpy as np

    dtypes = [part.dtype for part in times if len(part)]
    if any(dtype is None for dtype in dtypes) and not all(dtype is None for dtype in dtypes):
        raise TypeError("times are numbers in one part and datetimes in another: make them all one kind")
    if len(set(dtypes)) <= 1:
        return [part.numbers for part in times]
    common = np.result_type(*dtypes)
    return [torch.from_numpy(part.when.view(part.dtype or common).astype(common).view(np.int64)) for part in times]


def _per_second(dtype: Any) -> Fraction:
    import numpy as np

    unit, step = np.datetime_data(dtype)
    return Fraction(1000 ** _UNITS.index(unit), step)


def _moments(name: str, column: Any, dates: bool | None = None) -> tuple[Any, Any, Any]:
    """Return times as numbers, a mask of missing rows, and numpy's dtype of datetimes (None for numbers).

    Text is read as numbers if all of it is (`dates=True`: never), as ISO dates otherwise.
    """
    import numpy as np

    values, missing, kind = words_of(name, column)
    if kind == "text":
        numbers = None if dates else _numbers(name, values)
        values, kind = (values, "datetimes") if numbers is None else (numbers, "floats")
    if values.dtype.kind == "f":
        values = values.astype(np.float64)  # bounds are not to be rounded to float32
        missing[~missing] = np.isnan(values)  # "nan" in text is missing, too
    if kind in ("whole numbers", "floats", "missing"):
        return values, missing, None
    if kind != "datetimes":
        raise TypeError(f"{name} must be numbers or datetimes, got {kind}")
    values = _datetimes(name, values)
    missing[~missing] = np.isnat(values)
    return values.astype(np.int64), missing, values.dtype


def _numbers(name: str, words: Any) -> Any:
    """Convert text to whole numbers, or else to floats; None if no entry is a number; refuse a mixture."""
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
    """Convert datetimes, those with a time zone to UTC, to the finest unit that occurs, seconds or finer."""
    import numpy as np

    try:
        if values.dtype.kind == "O":
            values = np.fromiter(map(_without_zone, values), object, len(values))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy warns that it converts time zones to UTC
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
    """Return a datetime that numpy accepts, in UTC; a datetime of pandas keeps its nanoseconds."""
    if hasattr(value, "to_datetime64"):
        return value.to_datetime64()
    return value.astimezone(timezone.utc).replace(tzinfo=None) if getattr(value, "tzinfo", None) else value
