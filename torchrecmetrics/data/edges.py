"""Edges of users and items as row numbers: checks of an edge index, and edges in any order sorted to CSR."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor

from torchrecmetrics.core.checks import check_choice, plain, shown, warn_caller
from torchrecmetrics.core.numbers import (
    check_container,
    check_integers,
    check_not_binary,
    check_range,
    check_size,
    real_numbers,
)

if TYPE_CHECKING:
    from torchrecmetrics.tables.vocabulary import Vocabulary

DuplicatePairs: TypeAlias = Literal["merge", "error"]
Reduce: TypeAlias = Literal["sum", "max", "last"]


def checked_edges(
    edge_index: Tensor, num_users: int, num_items: int, values: Any, item_offset: int | None
) -> tuple[Tensor, Tensor]:
    """Return users and items, int64 [E] each, of an edge index; arguments and errors are those of `from_edge_index`."""
    check_integers("edge_index", edge_index)
    if edge_index.dim() != 2 or len(edge_index) != 2:
        hint = "; pass edges.T" if edge_index.dim() == 2 and edge_index.shape[1] == 2 else ""
        raise ValueError(f"edge_index must be [2, E], users above items, got {list(edge_index.shape)}{hint}")
    num_users, num_items = check_size("num_users", num_users), check_size("num_items", num_items)
    offset = check_size("item_offset", 0 if item_offset is None else item_offset)
    check_container("values", values)
    if values is not None and not isinstance(values, Tensor):
        hint = ": pass item_offset= by name" if isinstance(values, int) else ""
        raise TypeError(f"values must be a tensor, got {type(values).__name__}{hint}")
    if item_offset is None and values is None and edge_index.shape[1] > 4:
        check_not_binary("edge_index", edge_index, "; edges of two users are edge_index.unique(dim=1)")
    users, items = plain(edge_index).long()
    check_range("users (edge_index[0])", users, 0, num_users, "")
    lowest, highest = (int(end) for end in items.aminmax()) if len(items) else (0, -1)
    hint = ""
    if offset and 0 <= highest < num_items:
        hint = ": items seem to be numbered from 0; pass item_offset=0"
    elif not offset and num_users <= lowest <= highest < num_users + num_items:
        hint = f": items seem to be numbered after the users; pass item_offset={num_users}"
    check_range("items (edge_index[1])", items, offset, num_items, hint)
    if item_offset is None and 0 < num_users <= lowest <= highest:
        number = len(items.unique())
        if number * num_users >= 10 * num_items:  # by chance, e to the power of -10
            warn_caller(
                f"none of {number} items (edge_index[1]) is below {num_users}, the number of users: if items are "
                f"numbered after the users, pass item_offset={num_users}, else item_offset=0"
            )
    return users, items - offset


def sorted_edges(
    edges: tuple[Tensor, Tensor],
    shape: tuple[int, int],
    values: Tensor | None,
    duplicates: DuplicatePairs,
    values_reduce: Reduce | None,
    ids: tuple[Vocabulary | None, Vocabulary | None],
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return offsets, int64 [U + 1], items and values of distinct edges, which are ascending by user and item.

    Args:
        edges: row numbers of users and of items, int64 [E] each, in any order.
        shape: number of users, number of items.
        values: number [E].
        duplicates: as in `Interactions.from_edge_index`.
        values_reduce: as in `Interactions.from_edge_index`.
        ids: ids of users and of items, for messages.

    Raises:
        ValueError: for more cells than int64 can number, values that do not fit, and repeated edges.
    """
    check_choice("duplicates", duplicates, ("merge", "error"))
    if values_reduce is not None:
        check_choice("values_reduce", values_reduce, ("sum", "max", "last"))
    num_users, num_items = shape
    if num_users * num_items >= 2**63:
        raise ValueError(
            f"{num_users} users x {num_items} items are more cells than int64 can number; hashed ids need a "
            "vocabulary: from_columns(..., user_ids=, item_ids=)"
        )
    keys, order = (edges[0] * num_items + edges[1]).sort(stable=True)
    if values is not None:
        if values.shape != keys.shape:
            raise ValueError(f"values must be [{len(keys)}], one for each edge, got {list(values.shape)}")
        if values.device != keys.device:
            raise ValueError(f"values are on {values.device}, the edges on {keys.device}")
        values = real_numbers(values)[order]
    is_first = torch.ones_like(keys, dtype=torch.bool)
    is_first[1:] = keys[1:] != keys[:-1]
    repeated = len(keys) - int(is_first.sum())
    if repeated and (duplicates == "error" or (values is not None and values_reduce is None)):
        repeats = (keys == keys[~is_first][0]).nonzero()[:, 0]
        rows = divmod(int(keys[repeats[0]]), num_items)
        user, item = (row if of_side is None else of_side[row] for row, of_side in zip(rows, ids, strict=True))
        example = f"user {user!r}, item {item!r}"
        if duplicates == "error" or values is None:
            raise ValueError(f"{repeated} pairs of user and item occur more than once, such as {example}")
        raise ValueError(
            f"{repeated} of {len(keys)} rows repeat a user and an item and have values, such as {example} with "
            f"{shown(values[repeats])}: values_reduce='sum', 'max' or 'last' says which counts"
        )
    if repeated and values is not None:
        edge_rows = is_first.cumsum(0) - 1
        size = len(keys) - repeated
        if values_reduce == "last":
            values = values[torch.cat([is_first[1:], is_first.new_ones(1)])]
        elif values_reduce == "sum":
            values = values.new_zeros(size).index_add_(0, edge_rows, values)
        else:
            values = values.new_zeros(size).scatter_reduce_(0, edge_rows, values, "amax", include_self=False)
    keys = keys[is_first]
    users = torch.div(keys, max(num_items, 1), rounding_mode="floor")
    offsets = torch.zeros(num_users + 1, dtype=torch.int64, device=keys.device)
    offsets[1:] = torch.bincount(users, minlength=num_users).cumsum(0)
    return offsets, keys - users * num_items, values
