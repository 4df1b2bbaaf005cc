"""`Ids`: columns of integer, text or object ids, with exact comparison and look-up of one column in another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from torchrecmetrics.core.checks import ID_DTYPES
from torchrecmetrics.data.columns import ONE_ID_PER_ROW, check_container, exact, words_of
from torchrecmetrics.data.frames import arrow, arrow_array, compute

_LOWEST = -(2**63)
_TEXT = {str: "text", bytes: "bytes"}


class Ids(ABC):
    """A column of ids of one kind, without missing entries."""

    kind: str
    """Kind of the ids, for messages and comparisons: whole numbers, text, bytes, ..."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def tolist(self) -> list[Any]:
        """Return the ids as a list of Python objects."""

    @abstractmethod
    def take(self, rows: Tensor) -> Ids:
        """Return the ids of the given rows, int64 [n]."""

    @abstractmethod
    def find(self, asked: Ids) -> Tensor:
        """Return the row of each id of `asked` in this column, int64 [n]; -1 = absent; `asked` has the same class."""

    @abstractmethod
    def repeat(self) -> tuple[int, int] | None:
        """Return two rows that hold the same id; None if all ids are distinct."""

    @abstractmethod
    def numbered(self) -> tuple[Ids, Tensor]:
        """Return the distinct ids, ascending, and the index of each id of this column among them, int64 [n]."""

    @abstractmethod
    def joined(self, other: Ids) -> Ids:
        """Return the ids of this column, followed by the ids of `other`, a column of the same class."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the argument of `from_state`: a dict of tensors, numbers, text and lists."""

    def at(self, row: int) -> Any:
        """Return the id of one row as a Python object."""
        return self.take(torch.tensor([row], device="cpu")).tolist()[0]

    def same(self, other: Ids) -> bool:
        """Return True if both columns hold the same ids in the same order."""
        mine, theirs = alike(self, other)
        return len(mine) == len(theirs) and mine.kind == theirs.kind and mine._equal(theirs)

    @abstractmethod
    def _equal(self, other: Any) -> bool: ...


class IntIds(Ids):
    """Ids that are whole numbers of 64 bits; unsigned ids are stored minus 2^63."""

    kind: str = "whole numbers"

    def __init__(self, bits: Tensor, unsigned: bool = False) -> None:
        self.bits: Tensor = bits
        self.unsigned: bool = unsigned

    def __len__(self) -> int:
        return len(self.bits)

    def tolist(self) -> list[Any]:
        """Return the ids as a list of int."""
        numbers: list[Any] = self.bits.tolist()
        return [number - _LOWEST for number in numbers] if self.unsigned else numbers

    def take(self, rows: Tensor) -> Ids:
        """Return the ids of the given rows."""
        return IntIds(self.bits[rows], self.unsigned)

    @cached_property
    def _ascending(self) -> tuple[Tensor, Tensor]:
        values, order = self.bits.sort(stable=True)
        return values, order

    def find(self, asked: Ids) -> Tensor:
        """Return the row of each id of `asked` in this column, by binary search."""
        assert isinstance(asked, IntIds)
        bits, fits = asked.bits, torch.ones(len(asked), dtype=torch.bool, device="cpu")
        if asked.unsigned != self.unsigned:  # one is stored minus 2^63: flip the highest bit of ids that fit both
            fits = bits < 0 if asked.unsigned else bits >= 0
            bits = bits ^ _LOWEST
        if not len(self):
            return torch.full_like(bits, -1)
        values, order = self._ascending
        at = torch.searchsorted(values, bits).clamp(max=len(values) - 1)
        return order[at].where(fits & (values[at] == bits), -1)

    def repeat(self) -> tuple[int, int] | None:
        """Return two rows that hold the same id: neighbours in sorted order."""
        values, order = self._ascending
        twice = (values[1:] == values[:-1]).nonzero()[:, 0]
        return (int(order[twice[0]]), int(order[twice[0] + 1])) if len(twice) else None

    def numbered(self) -> tuple[Ids, Tensor]:
        """Return the distinct ids and the index of each id among them, from the sorted ids."""
        values, order = self._ascending
        first = torch.ones_like(values, dtype=torch.bool)
        first[1:] = values[1:] != values[:-1]
        places = torch.empty_like(order)
        places[order] = first.cumsum(0) - 1
        return IntIds(values[first], self.unsigned), places

    def joined(self, other: Ids) -> Ids:
        """Concatenate both columns; signed and unsigned ids may need `ObjectIds`."""
        assert isinstance(other, IntIds)
        if self.unsigned == other.unsigned:
            return IntIds(torch.cat([self.bits, other.bits]), self.unsigned)
        return whole_numbers(self.tolist() + other.tolist())

    def state(self) -> dict[str, Any]:
        """Return the stored integers, and True if they are unsigned."""
        return {"kind": self.kind, "bits": self.bits, "unsigned": self.unsigned}

    def _equal(self, other: Any) -> bool:
        return bool(self.unsigned == other.unsigned) and torch.equal(self.bits, other.bits)


class TextIds(Ids):
    """Ids that are text or bytes, in an array of pyarrow."""

    def __init__(self, array: Any) -> None:
        pa = arrow()
        binary = pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type)
        self.kind: str = "bytes" if binary or pa.types.is_fixed_size_binary(array.type) else "text"
        self.array: Any = array.cast(pa.large_binary() if self.kind == "bytes" else pa.large_string())

    def __len__(self) -> int:
        return len(self.array)

    def tolist(self) -> list[Any]:
        """Return the ids as a list of str or bytes."""
        listed: list[Any] = self.array.to_pylist()
        return listed

    def take(self, rows: Tensor) -> Ids:
        """Return the ids of the given rows."""
        return TextIds(self.array.take(arrow().array(rows.numpy())))

    def find(self, asked: Ids) -> Tensor:
        """Return the row of each id of `asked` in this column, by hashing."""
        assert isinstance(asked, TextIds)
        found = compute().index_in(asked.array, value_set=self.array)
        return _tensor(found.fill_null(-1))

    def repeat(self) -> tuple[int, int] | None:
        """Return two rows that hold the same id; rows are compared only if there are fewer distinct ids than rows."""
        if len(self.array.unique()) == len(self):
            return None
        first = self.find(self)
        row = int((first != torch.arange(len(self), device="cpu")).nonzero()[0])
        return int(first[row]), row

    def numbered(self) -> tuple[Ids, Tensor]:
        """Return the distinct ids, sorted, and the index of each id among them, from a dictionary encoding."""
        encoded = self.array.dictionary_encode()
        order = _tensor(compute().sort_indices(encoded.dictionary))
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device="cpu")
        return TextIds(encoded.dictionary).take(order), place[_tensor(encoded.indices)]

    def joined(self, other: Ids) -> Ids:
        """Concatenate both columns."""
        assert isinstance(other, TextIds)
        return TextIds(arrow().concat_arrays([self.array, other.array]))

    def state(self) -> dict[str, Any]:
        """Return the bytes of all ids, concatenated, and the offset at which each id begins."""
        import numpy as np

        pa = arrow()
        plain = pa.concat_arrays([self.array, self.array[:0]])  # a copy: slices share whole buffers
        _, offsets, data = plain.buffers()
        bounds = np.frombuffer(offsets, np.int64)[plain.offset : plain.offset + len(plain) + 1].copy()
        packed = np.frombuffer(data or b"", np.uint8)[bounds[0] : bounds[-1]].copy()
        return {"kind": self.kind, "offsets": torch.from_numpy(bounds - bounds[0]), "data": torch.from_numpy(packed)}

    def _equal(self, other: Any) -> bool:
        return bool(self.array.equals(other.array))


class ObjectIds(Ids):
    """Ids that the other two classes do not hold, any hashable Python objects; also text without pyarrow."""

    def __init__(self, things: list[Any], kind: str) -> None:
        self.things: list[Any] = things
        self.kind: str = kind

    def __len__(self) -> int:
        return len(self.things)

    def tolist(self) -> list[Any]:
        """Return the ids."""
        return self.things

    def take(self, rows: Tensor) -> Ids:
        """Return the ids of the given rows."""
        return ObjectIds([self.things[row] for row in rows.tolist()], self.kind)

    @cached_property
    def _rows(self) -> dict[Any, int]:
        return dict(zip(self.things, range(len(self.things)), strict=True))

    def find(self, asked: Ids) -> Tensor:
        """Return the row of each id of `asked` in this column, by hashing."""
        return torch.tensor([self._rows.get(thing, -1) for thing in asked.tolist()], dtype=torch.int64, device="cpu")

    def repeat(self) -> tuple[int, int] | None:
        """Return two rows that hold the same id; rows are compared only if there are fewer distinct ids than rows."""
        if len(self._rows) == len(self.things):
            return None
        first: dict[Any, int] = {}
        second = next(row for row, thing in enumerate(self.things) if first.setdefault(thing, row) != row)
        return first[self.things[second]], second

    def numbered(self) -> tuple[Ids, Tensor]:
        """Return the distinct ids, sorted, and the index of each id among them."""
        distinct = ObjectIds(sorted(set(self.things)), self.kind)
        return distinct, distinct.find(self)

    def joined(self, other: Ids) -> Ids:
        """Concatenate both columns."""
        return ObjectIds(self.things + other.tolist(), self.kind)

    def state(self) -> dict[str, Any]:
        """Return text and bytes packed as by `TextIds.state`, and whole numbers as a list; refuse other kinds."""
        if self.kind in _TEXT.values():
            packed = [thing.encode() if isinstance(thing, str) else thing for thing in self.things]
            offsets = torch.tensor([0, *map(len, packed)], device="cpu").cumsum(0)
            data = torch.tensor([*b"".join(packed)], dtype=torch.uint8, device="cpu")
            return {"kind": self.kind, "offsets": offsets, "data": data}
        if self.kind not in ("whole numbers", "missing"):
            raise TypeError(f"ids that are {self.kind} cannot be saved: make them text, [str(id) for id in ids]")
        return {"kind": self.kind, "things": self.things}

    def _equal(self, other: Any) -> bool:
        return bool(self.things == other.things)


def from_state(state: dict[str, Any]) -> Ids:
    """Make ids from a result of `Ids.state`."""
    if "bits" in state:
        return IntIds(state["bits"], state["unsigned"])
    if "things" in state:
        return ObjectIds(state["things"], state["kind"])
    pa, offsets, data = arrow(), state["offsets"], state["data"]
    if pa is not None:
        kind = pa.large_binary() if state["kind"] == "bytes" else pa.large_string()
        buffers = [None, pa.py_buffer(offsets.numpy()), pa.py_buffer(data.numpy())]
        return TextIds(pa.Array.from_buffers(kind, len(offsets) - 1, buffers))
    whole, bounds = bytes(data.tolist()), offsets.tolist()
    parts: list[Any] = [whole[start:end] for start, end in pairwise(bounds)]
    return ObjectIds([part.decode() for part in parts] if state["kind"] == "text" else parts, state["kind"])


def read_ids(name: str, column: Any) -> tuple[Ids, Tensor | None]:
    """Read a column of ids from any library.

    Args:
        name: name of the column in messages.
        column: a tensor, list, array, series of pandas or polars, array of pyarrow; categories count as their values.

    Returns:
        The ids that are not missing, and a mask of the missing rows, bool [E]; None = no row is missing.

    Raises:
        TypeError: for a column of mixed kinds, and for anything that is not a column.
    """
    check_container(name, column)
    if isinstance(column, Tensor) and column.dim() == 1 and column.dtype in (*ID_DTYPES, torch.int8, torch.uint8):
        return IntIds(column.detach().cpu().long()), None
    if not isinstance(column, (list, tuple)):
        array = arrow_array(column)
        if array is not None:
            read = _read_arrow(name, array)
            if read is not None:
                return read
        if getattr(getattr(column, "dtype", None), "kind", "") in ("U", "S", "O") and hasattr(column, "tolist"):
            column = column.tolist()
    if isinstance(column, (list, tuple)):
        kinds = set(map(type, column))
        for type_, kind in _TEXT.items():
            if kinds and kinds <= {type_, type(None)} and type_ in kinds:
                missing = None
                if len(kinds) == 2:
                    missing = torch.tensor([entry is None for entry in column], device="cpu")
                    column = [entry for entry in column if entry is not None]
                return _words(list(column), kind), missing
    values, absent, kind = words_of(name, column)
    gaps = torch.from_numpy(absent) if absent.any() else None
    if kind == "whole numbers":
        return whole_numbers(values), gaps
    return (_words if kind in _TEXT.values() else ObjectIds)(values.tolist(), kind), gaps


def _read_arrow(name: str, array: Any) -> tuple[Ids, Tensor | None] | None:
    """Read an array of pyarrow with text, bytes, whole numbers, or categories of these types; None for other types."""
    pa = arrow()
    kinds = pa.types
    codes = None
    if kinds.is_dictionary(array.type):
        array, codes = array.dictionary, array.indices
        if array.null_count:
            return None
    if kinds.is_null(array.type) or kinds.is_boolean(array.type):
        return None
    if kinds.is_nested(array.type):
        raise TypeError(f"{name} holds {array.type} in each row: {ONE_ID_PER_ROW}")
    column = array if codes is None else codes
    missing = None
    if column.null_count:
        missing = _tensor(column.is_null())
        column = column.drop_null()
        array, codes = (column, None) if codes is None else (array, column)
    string = kinds.is_string(array.type) or kinds.is_large_string(array.type) or kinds.is_string_view(array.type)
    binary = kinds.is_binary(array.type) or kinds.is_large_binary(array.type) or kinds.is_fixed_size_binary(array.type)
    ids: Ids
    if string or binary:
        ids = TextIds(array)
    elif kinds.is_integer(array.type):
        ids = whole_numbers(array.to_numpy(zero_copy_only=False))
    else:
        return None
    return ids if codes is None else ids.take(_tensor(codes)), missing


def whole_numbers(values: Any) -> Ids:
    """Make ids of whole numbers, an array or a list of int: `IntIds` if 64 bits hold all of them, else `ObjectIds`."""
    import numpy as np

    if not len(values):
        return IntIds(torch.zeros(0, dtype=torch.int64, device="cpu"))
    values = values if isinstance(values, np.ndarray) else np.fromiter(values, object, len(values))
    (values,) = exact(values)
    if values.dtype.kind == "O":
        return ObjectIds(values.tolist(), "whole numbers")
    if values.dtype.kind == "u":
        return IntIds(torch.from_numpy((values ^ np.uint64(2**63)).view(np.int64)), unsigned=True)
    return IntIds(torch.from_numpy(np.ascontiguousarray(values)))


def alike(first: Ids, second: Ids) -> tuple[Ids, Ids]:
    """Return two columns of ids in one class, so that ids of one column can be found in the other."""
    if type(first) is type(second):
        return first, second
    return ObjectIds(first.tolist(), first.kind), ObjectIds(second.tolist(), second.kind)


def _words(words: list[Any], kind: str) -> Ids:
    """Make ids of text or bytes: `TextIds`, or `ObjectIds` without pyarrow."""
    pa = arrow()
    if pa is None:
        return ObjectIds(words, kind)
    return TextIds(pa.array(words, pa.large_binary() if kind == "bytes" else pa.large_string()))


def _tensor(array: Any) -> Tensor:
    """Convert an array of pyarrow without missing entries to a tensor, bool or int64."""
    import numpy as np

    values = array.to_numpy(zero_copy_only=False)
    return torch.from_numpy(np.array(values, dtype=bool if values.dtype == bool else np.int64))
