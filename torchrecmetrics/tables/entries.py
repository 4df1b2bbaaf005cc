"""`Entries`: what any source holds, as arrays of pyarrow: users, items, and a rank, score, value, time or label."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.core.checks import describe
from torchrecmetrics.tables.columns import array_of, arrow, ids_of, is_list, is_text, numbers_of, tensor_of
from torchrecmetrics.tables.sources import Source
from torchrecmetrics.tables.vocabulary import Vocabulary, check_present


class Entries(NamedTuple):
    """Users, items and further columns, a row per item, with the names that messages give them."""

    columns: Mapping[str, Any]
    """Arrays of pyarrow [E] by role, without missing entries: "user" and "item" dictionary arrays, whose dictionary of
    users also holds those without items; "rank", "score", "value", "time" and "label" as they are."""
    what: str
    """Name of the source in messages: a path, or the name of an argument."""
    names: Mapping[str, str] = {}
    """Names of the columns in the source by role; none for a dict or a tuple."""
    first_line: int | None = None
    """Line number of the file's row 0; None = rows are not lines of a file."""
    written: frozenset[str] = frozenset()
    """Roles of ids that were read from text, where 7 and "7" look the same."""
    is_padded: bool = False
    """True if -1, which means no item, was left out."""

    @property
    def users(self) -> Tensor:
        """Row of the user of each entry among `user_ids`, int32 [E]."""
        return tensor_of(self.columns["user"].indices)

    @property
    def items(self) -> Tensor:
        """Row of the item of each entry among `item_ids`, int32 [E]."""
        return tensor_of(self.columns["item"].indices)

    @property
    def user_ids(self) -> Vocabulary:
        """Distinct users, in the order in which they occur, also those without items."""
        return Vocabulary.of_array(self.columns["user"].dictionary)

    @property
    def item_ids(self) -> Vocabulary:
        """Distinct items, in the order in which they occur."""
        return Vocabulary.of_array(self.columns["item"].dictionary)

    def row(self, row: int) -> str:
        """Return the name of a row in messages."""
        return f"row {row}" if self.first_line is None else f"row {row} (line {row + self.first_line})"

    def name(self, role: str) -> str:
        """Return the name of a column in messages."""
        return f"column {self.names[role]!r} of {self.what}" if role in self.names else f"the {role}s of {self.what}"

    def at(self, row: int, role: str) -> str:
        """Return the source, the row and the column of a role, for messages."""
        return f"{self.what}, {self.row(row)}, column {self.names[role]!r}" if role in self.names else self.what

    def numbers(self, role: str) -> Tensor | None:
        """Return a column of numbers, [E]; None = it was not read."""
        return numbers_of(self.name(role), self.columns[role], self.row) if role in self.columns else None


# ----------------------------------------------------------------------------------------------------- frames and files


def entries_of_columns(
    source: Source, names: Mapping[str, str], read: dict[str, Any], split: str | None, lists: bool
) -> Entries:
    """Return the entries of columns; a cell of several items is a row for each, and none for an empty cell.

    Args:
        source: names the columns and rows in messages.
        names: names of the columns by role.
        read: columns of any library by name; emptied, so that no column is in memory twice.
        split: separator of the items of a cell of text; None = cells of text hold one item.
        lists: refuse two cells of several items that one user has.

    Raises:
        TypeError: for ids of mixed kinds, or that are neither whole numbers nor text nor bytes.
        ValueError: for missing ids, and columns that are not equally long; names column and row.
    """
    written = {"user", "item"} if source.written else set()
    entries = Entries({}, source.what, names, source.first_line)
    arrays = {role: array_of(entries.name(role), read.pop(name)) for role, name in names.items()}
    if len({*map(len, arrays.values())}) > 1:
        lengths = {names[role]: len(array) for role, array in arrays.items()}
        raise ValueError(f"columns of {source.what} must be equally long, got {lengths}")
    users = ids_of(entries.name("user"), arrays["user"], source.written)
    check_present(entries.name("user"), users, entries.row)
    item = arrays.get("item")
    if split is not None and item is not None and not is_list(item.type):
        item = _pieces(entries.name("item"), item, split)
        written.add("item")
    if item is not None and is_list(item.type):
        if lists:
            check_one_list_each(source.what, users)
        arrays = _one_row_per_item(entries, {**arrays, "item": item})
        users, item = _taken(users, arrays.pop("user")), arrays["item"]
    if item is not None:
        arrays["item"] = ids_of(entries.name("item"), item, "item" in written)
        check_present(entries.name("item"), arrays["item"], entries.row)
    return entries._replace(columns={**arrays, "user": users}, written=frozenset(written))


def _pieces(name: str, cells: Any, separator: str) -> Any:
    """Return the lists of the ids that cells of text hold; null for a cell without any."""
    pa = arrow()
    pc = pa.compute
    if not separator:
        raise ValueError("split= is the separator of the items of a cell, such as ' ', got ''")
    cells = cells.dictionary_decode() if pa.types.is_dictionary(cells.type) else cells
    if not is_text(cells.type) and not pa.types.is_integer(cells.type):
        raise TypeError(f"split= is for text, {name} holds {cells.type}")
    several = rf"(\s*{re.escape(separator)})+\s*"
    text = pc.replace_substring_regex(cells.cast(pa.large_string()), several, separator)
    text = pc.utf8_trim(text, characters=f" {separator}")
    return pc.split_pattern(pc.if_else(pc.equal(text, ""), None, text), separator)


def _one_row_per_item(entries: Entries, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns with a row for each entry of the lists of items; "user" holds the row of each entry's cell.

    Lists of other columns are taken apart, too: their entries belong to those of the items.
    """
    pc = arrow().compute
    lengths = pc.list_value_length(arrays["item"]).fill_null(0)
    rows = pc.list_parent_indices(arrays["item"])
    columns = {}
    for role, array in arrays.items():
        if not is_list(array.type):
            columns[role] = rows if role == "user" else array.take(rows)
            continue
        own_lengths = pc.list_value_length(array).fill_null(0)
        if (row := pc.index(pc.equal(own_lengths, lengths), False).as_py()) >= 0:
            raise ValueError(
                f"{entries.name(role)} holds {own_lengths[row]} entries in {entries.row(row)}, "
                f"{entries.name('item')} holds {lengths[row]}: lists of one row must be equally long"
            )
        columns[role] = pc.list_flatten(array)
    return columns


def _taken(users: Any, rows: Any) -> Any:
    """Return the users of rows; the dictionary stays whole, with those that no row has."""
    return arrow().DictionaryArray.from_arrays(users.indices.take(rows), users.dictionary)


def check_one_list_each(what: str, users: Any) -> None:
    """Refuse two lists of one user; `users` is a dictionary array of the user of each list."""
    if len(users.dictionary) == len(users):
        return
    order = tensor_of(users.indices)
    ordered, rows = order.sort(stable=True)
    second = int((ordered[1:] == ordered[:-1]).nonzero()[0]) + 1
    user = users.dictionary[int(ordered[second])].as_py()
    raise ValueError(
        f"{what} has two lists of user {user!r}, in rows {int(rows[second - 1])} and {int(rows[second])}: pass one of "
        "them"
    )


# ------------------------------------------------------------------------------------------------------ a list per user


def entries_of_dict(what: str, items_of: Mapping[Any, Any], role: str = "value") -> Entries:
    """Return the entries of a dict {user: items}, or {user: {item: value}}; a user may have no items.

    `role` is what the values are, "value" or "score".

    Raises:
        TypeError: for anything but such a dict, ids of mixed kinds, and users with and without values.
        ValueError: for missing ids.
    """
    kinds = {*map(type, items_of.values())}
    wrong = [kind for kind in kinds if issubclass(kind, (str, bytes)) or not hasattr(kind, "__iter__")]
    if wrong:
        user, items = next((user, items) for user, items in items_of.items() if type(items) is wrong[0])
        raise TypeError(f"{what} must be a dict {{user: items}}, got {describe(items)} for {user!r}")
    entries = entries_of_lists(what, [*items_of.values()], [*items_of])
    is_graded = {kind: issubclass(kind, Mapping) for kind in kinds}
    graded = [user for user, items in items_of.items() if is_graded[type(items)]]
    if not graded:
        return entries
    plain = [user for user, items in items_of.items() if not is_graded[type(items)] and len(items)]
    if plain:
        raise TypeError(
            f"{what} holds a dict of {role}s for {graded[0]!r} and a list without for {plain[0]!r}: make them all one "
            "kind"
        )
    grades = chain.from_iterable(items_of[user].values() for user in graded)
    values = array_of(f"the {role}s of {what}", [*grades])
    return entries._replace(columns={**entries.columns, role: values})


def entries_of_lists(what: str, lists: Sequence[Any], users: Any, padding: int | None = None) -> Entries:
    """Return the entries of lists of items, [items] each, and of the user of each list, [n].

    Args:
        what: name of the argument in messages.
        lists: the items of each user, a list, set or array each; or a matrix [n, K] of torch or numpy.
        users: [n].
        padding: number that stands for no item, as a missing entry does; None = entries are items.

    Raises:
        TypeError: for ids of several kinds.
        ValueError: for two lists of one user, other numbers of users, and missing ids.
    """
    pa = arrow()
    lengths, items = _flat(lists)
    items = items.tolist() if getattr(items, "dtype", None) == object else items  # noqa: E721
    owners = ids_of(f"the users of {what}", users)
    if len(owners) != len(lengths):
        raise ValueError(f"there are {len(lengths)} lists and {len(owners)} users: each list has one user")
    check_present(f"the users of {what}", owners)
    check_one_list_each(what, owners)
    if padding is not None and isinstance(items, list) and {int, str} <= {*map(type, items)}:
        items = [None if item == padding else item for item in items]  # -1 may pad lists of text
    array, is_padded = array_of(f"the items of {what}", items), False
    rows = pa.array(torch.arange(len(lengths), device="cpu").repeat_interleave(lengths).numpy())
    if padding is not None:
        is_padding = pa.compute.equal(array, padding) if pa.types.is_signed_integer(array.type) else array.is_null()
        is_padded = bool(pa.compute.any(is_padding).as_py()) and pa.types.is_signed_integer(array.type)
        is_item = pa.compute.invert(is_padding.fill_null(True))
        array, rows = array.filter(is_item), rows.filter(is_item)
    ids = ids_of(f"the items of {what}", array)
    check_present(f"the items of {what}", ids)
    return Entries({"user": _taken(owners, rows), "item": ids}, what, is_padded=is_padded)


def _flat(lists: Any) -> tuple[Tensor, Any]:
    """Return the length of each list, int64 [n], and the entries of all lists."""
    lists = lists.to_numpy() if hasattr(lists, "to_numpy") else lists  # a frame with a column per rank
    shape = getattr(lists, "shape", None)
    if shape is not None:
        if len(shape) != 2:
            raise ValueError(f"lists must be [users, K], item ids best first, got shape {[*shape]}")
        return torch.full((int(shape[0]),), int(shape[1]), device="cpu"), lists.reshape(-1)
    if any(hasattr(kind, "tolist") for kind in {*map(type, lists)}):
        lists = [entries.tolist() if hasattr(entries, "tolist") else entries for entries in lists]
        if {*map(type, lists)} & {int, float, bool}:
            raise TypeError("the items of each user must be a list, got a tensor or an array of a single number")
    return torch.tensor([*map(len, lists)], dtype=torch.int64, device="cpu"), [*chain.from_iterable(lists)]
