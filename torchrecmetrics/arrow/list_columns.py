"""Read list columns of Arrow record batches as padded tensors of ids, ranks and gains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from torchrecmetrics.metrics.accumulator import Accumulator
from torchrecmetrics.tables.columns import as_ids
from torchrecmetrics.tables.vocabulary import Vocabulary


class Column(NamedTuple):
    """Lists of an Arrow column, one per row; a single value is a list of length 1."""

    name: str
    """Name of the column in error messages."""
    lengths: Tensor
    """Number of values of each list, int64 [B]; 0 where the list is missing."""
    values: Any
    """Values of all lists in order, an array of pyarrow without missing values, [E]."""
    holds_lists: bool
    """False if each row holds a single value."""

    @classmethod
    def read(cls, batch: Any, name: str, lists: bool = False) -> Column:
        """Read a column of a RecordBatch; `lists` refuses a column of single values.

        Raises:
            TypeError: for single values, where lists are wanted; the message names the columns that hold lists.
            ValueError: for a missing value in a list; the message says in which row.
        """
        column = _with_value_type(batch.column(name))
        holds_lists = _is_list(column.type)
        if holds_lists:
            lengths, values = tensor_of(pc.list_value_length(column).fill_null(0)).long(), column.flatten()
        elif lists:
            known = [f"{field.name!r}" for field in batch.schema if _is_list(field.type)]
            raise TypeError(
                f"column {name!r} must hold a list per row, best first, got {column.type}; columns of lists: "
                f"{', '.join(known) or 'none'}"
            )
        else:
            lengths, values = tensor_of(column.is_valid().cast(pa.int64())), column.drop_null()
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        if values.null_count:
            missing = pc.index(values.is_null(), True).as_py()
            row = int((lengths.cumsum(0) <= missing).sum())
            raise ValueError(
                f"column {name!r} holds a missing value in the list of row {row}: leave it out of the list"
            )
        return cls(name=f"column {name!r}", lengths=lengths, values=values, holds_lists=holds_lists)

    def padded(self, values: Tensor, filler: float, least: int = 1) -> Tensor:
        """Return numbers, one per entry of `self.values`, as one row per list, padded to `least` or more columns."""
        inside = torch.arange(max(least, int(self.lengths.max())), device="cpu") < self.lengths[:, None]
        if bool(inside.all()):
            return values.view(inside.shape)
        return torch.full(inside.shape, filler, dtype=values.dtype, device="cpu").masked_scatter_(inside, values)

    def numbers(self) -> Tensor:
        """Return the values as a tensor of int64 or float64, [E].

        Raises:
            TypeError: for values that are not numbers.
        """
        kind = self.values.type
        if not pa.types.is_floating(kind) and not pa.types.is_integer(kind):
            raise TypeError(f"{self.name} must hold numbers, got {kind}")
        return tensor_of(self.values.cast(pa.float64() if pa.types.is_floating(kind) else pa.int64()))

    def ids(self) -> Any:
        """Return the values as ids, an array of pyarrow; see `as_ids`."""
        return as_ids(self.name, self.values)


def rows_of(columns: Mapping[str, Column], item_ids: Vocabulary | None) -> dict[str, Tensor]:
    """Return the row numbers of the ids of each column, {role: int64 [E]}; negative = padding.

    Args:
        columns: columns of ids, by role.
        item_ids: vocabulary of the ids; None = ids are row numbers. An id outside the vocabulary gets a row number
            after the vocabulary's own, the same in all columns; -1 stays padding.

    Raises:
        TypeError: for ids of another kind; for text without `item_ids`.
        ValueError: as in `Column.ids`.
    """
    if item_ids is None:
        for column in columns.values():
            if not pa.types.is_int64(kind := column.ids().type):
                raise TypeError(
                    f"{column.name} holds {kind}, not row numbers: pass item_ids=, a Vocabulary with the row of each id"
                )
        return {role: tensor_of(column.ids()) for role, column in columns.items()}
    rows: dict[str, Tensor] = {}
    unknown: dict[Any, int] = {-1: -1}
    for role, column in columns.items():
        encoded = column.ids().dictionary_encode()
        of_distinct = item_ids.rows_of(column.name, encoded.dictionary, "item_ids")
        for code in (of_distinct < 0).nonzero()[:, 0].tolist():
            of_distinct[code] = unknown.setdefault(encoded.dictionary[code].as_py(), len(item_ids) + len(unknown) - 1)
        rows[role] = of_distinct[tensor_of(encoded.indices).long()]
    return rows


def group_codes(batch: Any, by_group: Accumulator) -> Tensor:
    """Return the code of each row's group, int64 [B], from the column of `by_group`; null is -1.

    Raises:
        ValueError: for the name of another group.
    """
    (name,) = by_group.columns
    column = batch.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    names = column.cast(pa.string())
    codes = pc.index_in(names, value_set=pa.array(by_group.row_groups, pa.string()))
    other = names.filter(pc.and_(codes.is_null(), names.is_valid()))
    if len(other):
        raise ValueError(f"column {name!r} holds {other[0].as_py()!r}, which is not a group of {by_group.option}")
    return tensor_of(codes.fill_null(-1)).long()


def tensor_of(array: Any) -> Tensor:
    """Return an array of signed numbers without missing values as a tensor that shares its memory."""
    if not len(array):
        return torch.empty(0, dtype=torch.float64 if pa.types.is_floating(array.type) else torch.int64, device="cpu")
    tensor: Tensor = from_dlpack(array)
    return tensor


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _with_value_type(column: Any) -> Any:
    """Return a column; one of type null, or of lists of null, becomes one of lists of int64 (it has no values)."""
    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    empty = pa.types.is_null(column.type) or (_is_list(column.type) and pa.types.is_null(column.type.value_type))
    return column.cast(pa.list_(pa.int64())) if empty else column
