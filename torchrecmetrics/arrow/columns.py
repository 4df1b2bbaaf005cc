"""Read list columns of Arrow record batches as padded tensors of ids, ranks and gains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from torchrecmetrics.core.accumulators import check_group_names
from torchrecmetrics.data.vocabulary import Vocabulary

_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_TEXT = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
)


class Column(NamedTuple):
    """Lists of an Arrow column, one per row, as slices of an array of all values."""

    name: str
    """Name of the column in error messages."""
    starts: Tensor
    """Start of each list in `values`, int64 [B], ascending."""
    lengths: Tensor
    """Number of values of each list, int64 [B]; 0 where the list is missing."""
    values: Any
    """Values of all lists, an array of pyarrow; some values may belong to no list."""
    holds_lists: bool
    """False if each row holds a single value."""

    @classmethod
    def read(cls, batch: Any, name: str, first_row: int, lists: bool = False) -> Column:
        """Read the lists of a column from its buffers, without a copy; a single value is a list of length 1.

        Args:
            batch: a RecordBatch that has the column.
            name: name of the column.
            first_row: number of rows before this batch, for messages.
            lists: True refuses a column of single values.

        Raises:
            TypeError: for single values, where lists are wanted; the message names the columns that hold lists.
            ValueError: for a missing value in a list; the message says in which row.
        """
        column = _typed(batch.column(name))
        many = next((is_lists for is_lists in _LISTS if is_lists(column.type)), None)
        rows = len(column)
        if many is None and lists:
            known = [f"{field.name!r}" for field in batch.schema if any(is_type(field.type) for is_type in _LISTS)]
            raise TypeError(
                f"column {name!r} must hold a list a row, best first, got {column.type}; columns of lists here: "
                f"{', '.join(known) or 'none'}"
            )
        if many is None:
            starts, lengths, values = (
                torch.arange(rows, device="cpu"),
                torch.ones(rows, dtype=torch.int64, device="cpu"),
                column,
            )
        elif many is pa.types.is_fixed_size_list:
            lengths = torch.full((rows,), column.type.list_size, device="cpu")
            starts, values = (column.offset + torch.arange(rows, device="cpu")) * column.type.list_size, column.values
        else:
            offsets = _numbers(column.offsets).long()
            starts, lengths, values = offsets[:-1], offsets.diff(), column.values
        if column.null_count:
            lengths = lengths * _mask(column.is_valid())
        # the values of a slice are those of the whole column
        begin = int(starts[0]) if rows else 0
        values = values.slice(begin, int((starts + lengths).max()) - begin if rows else 0)
        starts = starts - begin
        if pa.types.is_dictionary(values.type) and values.dictionary.null_count:
            values = values.dictionary_decode()
        if values.null_count and many is not None:
            missing = _mask(values.is_null()).nonzero()[:, 0]
            row = torch.searchsorted(starts, missing, right=True) - 1
            inside = missing < (starts + lengths)[row]
            if bool(inside.any()):
                raise ValueError(
                    f"column {name!r} holds a missing value in the list of row {first_row + int(row[inside][0])}: "
                    "leave it out of the list"
                )
        return cls(f"column {name!r}", starts, lengths, values, many is not None)

    def padded(self, values: Tensor, rows: Tensor, width: int, filler: float) -> Tensor:
        """Return the lists of the given rows as one padded tensor, [n, width].

        Args:
            values: numbers to return, one per entry of the column's values, [E].
            rows: row numbers, int64 [n].
            width: length of the longest list, or more.
            filler: value of the padding after the end of a list.
        """
        if not len(values):
            return values.new_full((len(rows), width), filler)
        if len(values) == len(self.lengths) * width and bool((self.lengths == width).all()):  # full lists without gaps
            return values.view(-1, width)[rows]
        starts, lengths = self.starts[rows], self.lengths[rows]
        place = torch.arange(width, device="cpu")
        at = (starts[:, None] + place).clamp_(max=len(values) - 1)
        return values.take(at).masked_fill_(place >= lengths[:, None], filler)

    def numbers(self) -> Tensor:
        """Return the values as a tensor of integers or float64, [E]; a missing value is an arbitrary number.

        Raises:
            TypeError: for values that are not numbers.
        """
        kind = self.values.type
        if pa.types.is_floating(kind):
            return _numbers(self.values.cast(pa.float64()))
        if not pa.types.is_integer(kind):
            raise TypeError(f"{self.name} must hold numbers, got {kind}")
        return _numbers(self.values if kind in _AS_THEY_ARE else self._cast())

    def ids(self) -> Any:
        """Return the values as an array of pyarrow of whole numbers or text, which may be dictionary-encoded.

        Raises:
            TypeError: for values that cannot be ids.
            ValueError: for floats that are not whole numbers below 2^53.
        """
        values = self.values
        kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
        if pa.types.is_floating(kind):
            if pa.types.is_dictionary(values.type):
                values = values.dictionary_decode()
            values = values.cast(pa.float64())
            wrong = pc.or_kleene(pc.not_equal(pc.floor(values), values), pc.greater_equal(pc.abs(values), 2.0**53))
            if pc.any(wrong).as_py():
                example = values[pc.index(wrong, True).as_py()].as_py()
                raise ValueError(
                    f"{self.name} holds floats, such as {example!r}, which are no ids: whole numbers, which floats "
                    "hold below 2^53 alone; write ids as int64"
                )
            return values.cast(pa.int64())
        if not pa.types.is_integer(kind) and not any(is_text(kind) for is_text in _TEXT):
            raise TypeError(f"{self.name} must hold ids, whole numbers or text, got {kind}")
        return values

    def _cast(self) -> Any:
        """Return the values, whole numbers, as int64; raise for numbers of 2^63 and more."""
        try:
            return self.values.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise ValueError(
                f"{self.name} holds whole numbers of 2^63 and more, which are no row numbers: item_ids=, a Vocabulary, "
                "gives them some"
            ) from error


def rows_of(columns: Mapping[str, Column], item_ids: Vocabulary | None) -> dict[str, Tensor]:
    """Return the row numbers of the ids of each column, {role: integers [E]}; negative = padding.

    Args:
        columns: columns of ids, by role.
        item_ids: vocabulary of the ids; None = ids are row numbers. An id outside the vocabulary gets a row number
            after the vocabulary's own, the same in all columns.

    Raises:
        TypeError: for ids of another kind; for text without `item_ids`.
        ValueError: as in `Column.ids`, and for row numbers of 2^63 and more.
    """
    if item_ids is None:
        return {role: _row_numbers(column) for role, column in columns.items()}
    coded = {role: _encoded(column.ids()) for role, column in columns.items()}
    rows = {role: item_ids.rows_of(columns[role].name, ids, "item_ids") for role, (ids, _) in coded.items()}
    others = Vocabulary([])
    unknown: dict[str, tuple[Tensor, Any]] = {}
    for role, (ids, _) in coded.items():
        new = rows[role] < 0
        if pa.types.is_integer(ids.type):
            new &= ~_mask(pc.equal(ids, -1))
        unknown[role] = new, ids.filter(pa.array(new.numpy()))
        others = others.union(Vocabulary(unknown[role][1].unique()))
    for role, (new, ids) in unknown.items():
        rows[role][new] = others.rows_of(columns[role].name, ids, "item_ids") + len(item_ids)
    return {role: torch.cat([rows[role], rows[role].new_full((1,), -1)])[codes] for role, (_, codes) in coded.items()}


def _encoded(values: Any) -> tuple[Any, Tensor]:
    """Return the distinct ids [n], and the code of each value, int64 [E]; a missing value has the code n."""
    if not pa.types.is_dictionary(values.type):
        values = values.dictionary_encode()
    codes = values.indices.cast(pa.int64())
    return values.dictionary, _numbers(codes.fill_null(len(values.dictionary)) if codes.null_count else codes)


def groups_of(column: Any, name: str) -> tuple[list[str], Tensor]:
    """Return the names of groups, and the code of each row's group, int64 [B]; the number of names = no group.

    Raises:
        TypeError: for a column of another type than text, whole numbers or truth values.
        ValueError: for text that cannot be the name of a group.
    """
    if pa.types.is_null(column.type):  # a partition whose rows are in no group
        column = column.cast(pa.string())
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not any(is_kind(kind) for is_kind in (*_TEXT[:3], pa.types.is_integer, pa.types.is_boolean)):
        raise TypeError(f"column {name!r} must hold names of groups, text or whole numbers, got {kind}")
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    names, codes = _encoded(column.cast(pa.string()))
    listed = names.to_pylist()
    return [*check_group_names(listed)] if listed else [], codes


def _typed(column: Any) -> Any:
    """Return a column, as lists of int64 if engines gave the column or its lists the type null (no values)."""
    if pa.types.is_null(column.type):
        return column.cast(pa.list_(pa.int64()))
    nothing = any(is_lists(column.type) for is_lists in _LISTS) and pa.types.is_null(column.type.value_type)
    return column.cast(pa.list_(pa.int64())) if nothing else column


def _row_numbers(column: Column) -> Tensor:
    values = column.ids()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if not pa.types.is_integer(values.type):
        raise TypeError(
            f"{column.name} holds text, which are no row numbers: item_ids=, a Vocabulary, says which row each id has"
        )
    return column._replace(values=values).numbers()


def _numbers(array: Any) -> Tensor:
    """Return an array of signed numbers as a tensor that shares its memory; missing values are arbitrary."""
    plain = pa.Array.from_buffers(array.type, len(array), [None, array.buffers()[1]], offset=array.offset)
    return from_dlpack(plain) if len(plain) else torch.empty(0, dtype=_DTYPES[str(array.type)], device="cpu")


def _mask(array: Any) -> Tensor:
    """Return an array of truth values as a bool tensor."""
    return torch.from_numpy(array.to_numpy(zero_copy_only=False))


_AS_THEY_ARE = (pa.int16(), pa.int32(), pa.int64())
_DTYPES = {
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "double": torch.float64,
}
