"""Give each entry of cells that hold several ids, as lists or in one text, a row of its own."""

from __future__ import annotations

from typing import Any

from torchrecmetrics.tables.sources import TEXT, Columns, arrow, as_whole, compute


def exploded(table: Columns, column: str, separator: str | None = None) -> Columns:
    """Return a table with a row for each entry of the cells of a column, in their order.

    Without a separator, cells that hold no lists are left as they are. Lists of other columns are taken apart, too:
    their entries belong to those of the column.

    Args:
        table: the table.
        column: name of the column.
        separator: separator of the entries of a cell of text; entries are whole numbers if all are written as such.

    Raises:
        TypeError: if there is a separator, and the column is no text.
        ValueError: for an empty separator, and lists of other lengths; names column and row.
    """
    arrays = table.columns
    if separator is None:
        return Columns(_one_row_per_entry(table, column, arrays), table.what) if _is_list(arrays[column]) else table
    pa, pc, cells = arrow(), compute(), arrays[column]
    cells = cells.dictionary_decode() if pa.types.is_dictionary(cells.type) else cells
    if not separator:
        raise ValueError("split= is the separator of the items of a cell, such as ' ', got ''")
    if pa.types.is_integer(cells.type):  # each cell holds one id
        return table
    if str(cells.type) not in TEXT:
        raise TypeError(f"split= is for text, {table.name(column)} holds {cells.type}")
    lists = pc.split_pattern(cells, separator)
    entries, rows = pc.utf8_trim_whitespace(pc.list_flatten(lists)), pc.list_parent_indices(lists)
    is_id = pc.not_equal(entries, "")
    entries, rows = entries.filter(is_id), rows.filter(is_id)
    columns = {name: array.take(rows) for name, array in arrays.items()}
    return Columns({**columns, column: as_whole(entries)}, table.what)


def _one_row_per_entry(table: Columns, column: str, arrays: dict[str, Any]) -> dict[str, Any]:
    pc = compute()
    lengths, rows = _lengths(arrays[column]), pc.list_parent_indices(arrays[column])
    columns = {}
    for name, array in arrays.items():
        if not _is_list(array):
            columns[name] = array.take(rows)
            continue
        differs = pc.index(pc.equal(_lengths(array), lengths), False).as_py()
        if differs >= 0:
            raise ValueError(
                f"{table.name(name)} holds {_lengths(array)[differs]} entries in {table.row(differs)}, column "
                f"{column!r} holds {lengths[differs]}: lists of one row must be equally long"
            )
        columns[name] = pc.list_flatten(array)
    return columns


def _lengths(lists: Any) -> Any:
    return compute().list_value_length(lists).fill_null(0)


def _is_list(array: Any) -> bool:
    types = arrow().types
    return bool(types.is_list(array.type) or types.is_large_list(array.type) or types.is_fixed_size_list(array.type))
