"""Functions over arrays of ids, on which `Vocabulary` stands: read ids exactly, number them, find their rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchrecmetrics.tables.numbers import check_exact, holds
from torchrecmetrics.tables.sources import arrow, arrow_array, compute, tensor_of

_LOWEST = -(2**63)
_MAX_GAPS = 2
"""Numbers from the lowest to the highest id, per id of a column, up to which ids are counted."""


def read_ids(name: str, column: Any) -> Any:
    """Read a column of ids from any library.

    Args:
        name: name of the column in messages.
        column: anything that `arrow_array` reads; categories count as their values.

    Returns:
        Array of pyarrow: int64, uint64 (if an id is 2^63 or more), large_string or large_binary, or a dictionary array
        of these; null = missing.

    Raises:
        TypeError: for ids that are neither whole numbers nor text nor bytes.
        ValueError: for floats that are so large that ids may have been rounded.
    """
    pa, array = arrow(), arrow_array(name, column)
    if isinstance(column, Tensor) and column.is_floating_point():  # bfloat16 has become float32
        check_exact(name, column)
    if not pa.types.is_dictionary(array.type):
        return _typed(name, array)
    if array.dictionary.null_count:  # a category that is missing is a missing id
        return _typed(name, array.dictionary_decode())
    return pa.DictionaryArray.from_arrays(array.indices, _typed(name, array.dictionary))


def _typed(name: str, array: Any) -> Any:
    """Return ids in one of the four types of `read_ids`."""
    pa = arrow()
    types = pa.types
    if types.is_integer(array.type) or types.is_null(array.type):
        try:
            return array.cast(pa.int64())
        except pa.ArrowInvalid:
            return array.cast(pa.uint64())
    if types.is_floating(array.type):
        values = tensor_of(array.drop_null())
        check_exact(name, values)
        wrong = values[values != values.floor()]
        if len(wrong):
            raise TypeError(
                f"{name} {holds(name)} floats such as {wrong[0].item()!r}, which are no ids: make them whole numbers "
                "or text"
            )
        return array.cast(pa.int64())
    if types.is_string(array.type) or types.is_large_string(array.type) or types.is_string_view(array.type):
        return array.cast(pa.large_string())
    if types.is_binary(array.type) or types.is_large_binary(array.type) or types.is_fixed_size_binary(array.type):
        return array.cast(pa.large_binary())
    if types.is_nested(array.type):
        raise TypeError(
            f"{name} {holds(name)} {array.type} in each row: a row is one user and one item, as "
            "frame.explode(column) of pandas or polars makes them; ids in several parts become one text, "
            "[f'{a}/{b}' for a, b in ids]"
        )
    raise TypeError(
        f"{name} {holds(name)} {array.type}, such as {array.drop_null()[0].as_py()!r}: ids are whole numbers, text or "
        "bytes; make them text, [str(id) for id in ids]"
    )


def kind_of(ids: Any) -> str:
    """Return the kind of ids for messages and comparisons: "whole numbers", "text" or "bytes"."""
    types = arrow().types
    value_type = ids.type.value_type if types.is_dictionary(ids.type) else ids.type
    if types.is_integer(value_type):
        return "whole numbers"
    return "text" if types.is_large_string(value_type) else "bytes"


def other_kind(name: str, ids: Any, where: str, known: Any) -> TypeError:
    """Return the error for ids of another kind than those of the vocabulary `where`."""
    example = ids.drop_null()[0].as_py()
    return TypeError(
        f"{name} {holds(name)} {kind_of(ids)} ({example!r}), {where} {holds(where)} {kind_of(known)} "
        f"({known[0].as_py()!r}): they cannot be compared; convert one of the two"
    )


def numbered(ids: Any) -> tuple[Any, Tensor]:
    """Return the distinct ids, ascending, and the index of each id among them, int64 [n]; no id may be missing."""
    types, pc = arrow().types, compute()
    if types.is_int64(ids.type) and len(ids):
        values = tensor_of(ids)
        low, high = map(int, values.aminmax())
        if high - low < _MAX_GAPS * len(values):  # counted, without a hash table
            values = values - low
            is_used = torch.bincount(values) > 0
            return arrow().array((is_used.nonzero()[:, 0] + low).numpy()), (is_used.cumsum(0) - 1)[values]
    encoded = ids if types.is_dictionary(ids.type) else ids.dictionary_encode()
    codes, distinct = tensor_of(encoded.indices), encoded.dictionary
    if encoded is ids:  # of another library: categories may be unused, or the same
        used = torch.bincount(codes, minlength=len(distinct)) > 0
        if not bool(used.all()) or len(distinct.unique()) < len(distinct):
            return numbered(ids.dictionary_decode())
    order = tensor_of(pc.sort_indices(distinct))
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device="cpu")
    return take(distinct, order), place[codes]


def find(known: Any, wanted: Any) -> Tensor:
    """Return the row of each wanted id among known ids of the same kind, int64 [n]; -1 = unknown or missing."""
    pa, pc = arrow(), compute()
    if pa.types.is_dictionary(wanted.type):
        rows = find(known, wanted.dictionary)
        codes = tensor_of(wanted.indices.cast(pa.int64()).fill_null(len(rows)))
        return torch.cat([rows, rows.new_full((1,), -1)])[codes]
    if wanted.type != known.type:  # one is signed, the other unsigned: numbers that do not fit into both are unknown
        unsigned = pa.types.is_uint64(wanted.type)
        fits = (
            pc.less_equal(wanted, pa.scalar(2**63 - 1, pa.uint64()))
            if unsigned
            else pc.greater_equal(wanted, pa.scalar(0))
        )
        wanted = pc.if_else(fits, wanted, pa.scalar(None, wanted.type)).cast(known.type)
    if 8 * len(wanted) < len(known):  # a hash table of few ids is faster: find those known, and look ids up there
        rows = tensor_of(pc.indices_nonzero(pc.is_in(known, value_set=wanted.unique())))
        return torch.cat([rows, rows.new_full((1,), -1)])[find(take(known, rows), wanted)]
    return tensor_of(pc.index_in(wanted, value_set=known).fill_null(-1))


def repeat(ids: Any) -> tuple[int, int] | None:
    """Return two rows that hold the same id; rows are compared only if there are fewer distinct ids than rows."""
    if len(ids.unique()) == len(ids):
        return None
    first_rows = find(ids, ids)
    row = int((first_rows != torch.arange(len(ids), device="cpu")).nonzero()[0])
    return int(first_rows[row]), row


def take(ids: Any, rows: Tensor) -> Any:
    """Return the ids of the given rows."""
    return ids.take(arrow().array(rows.numpy()))


def to_list(ids: Any) -> list[Any]:
    """Return ids as a list of int, str or bytes."""
    entries: list[Any] = ids.to_numpy().tolist() if kind_of(ids) == "whole numbers" else ids.to_pylist()
    return entries


def joined(ids: Any, others: Any) -> Any:
    """Concatenate two columns of ids of the same kind."""
    pa = arrow()
    if ids.type != others.type:
        try:
            return pa.concat_arrays([ids.cast(pa.uint64()), others.cast(pa.uint64())])
        except pa.ArrowInvalid:
            raise ValueError("some ids are below 0 and others 2^63 or more, too far apart for 64 bits") from None
    return pa.concat_arrays([ids, others])


def to_state(ids: Any) -> dict[str, Any]:
    """Return ids as tensors and text, for `from_state`: integers, or bytes and the offset at which each id begins."""
    import numpy as np

    pa, kind = arrow(), kind_of(ids)
    plain = pa.concat_arrays([ids, ids[:0]])  # a copy: slices share whole buffers
    if kind == "whole numbers":
        unsigned = pa.types.is_uint64(ids.type)
        bits = torch.from_numpy(plain.to_numpy().view(np.int64).copy())
        return {"kind": kind, "bits": bits ^ _LOWEST if unsigned else bits, "unsigned": unsigned}
    _, offsets, data = plain.buffers()
    bounds = np.frombuffer(offsets, np.int64)[plain.offset : plain.offset + len(plain) + 1].copy()
    packed = np.frombuffer(data or b"", np.uint8)[bounds[0] : bounds[-1]].copy()
    return {"kind": kind, "offsets": torch.from_numpy(bounds - bounds[0]), "data": torch.from_numpy(packed)}


def from_state(state: dict[str, Any]) -> Any:
    """Return ids from a result of `to_state`."""
    pa = arrow()
    if state["kind"] == "whole numbers":
        bits = (state["bits"] ^ _LOWEST if state["unsigned"] else state["bits"]).numpy()
        return pa.array(bits.view("u8") if state["unsigned"] else bits)
    type_ = pa.large_binary() if state["kind"] == "bytes" else pa.large_string()
    buffers = [None, pa.py_buffer(state["offsets"].numpy()), pa.py_buffer(state["data"].numpy())]
    return pa.Array.from_buffers(type_, len(state["offsets"]) - 1, buffers)
