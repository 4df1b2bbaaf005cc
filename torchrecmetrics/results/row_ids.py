"""Ids of rows, an integer tensor or a list of text: number, find and sort them, and divide rows into units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

RowIds: TypeAlias = Tensor | list[str]

EQUAL = 1e-12
"""Relative difference up to which two numbers count as equal, since sums are rounded."""


def numbered_ids(ids: RowIds) -> tuple[RowIds, Tensor]:
    """Return the distinct ids in ascending order, and the index of each id among them, int64 [n]."""
    if isinstance(ids, Tensor):
        distinct, number = torch.unique(ids, return_inverse=True)
        return distinct, number
    index = {id_: position for position, id_ in enumerate(sorted(set(ids)))}
    return [*index], torch.tensor([index[id_] for id_ in ids], dtype=torch.int64, device="cpu")


def find_ids(ids: RowIds, wanted_ids: RowIds) -> Tensor:
    """Return the row of each of `wanted_ids` in the distinct `ids` of the same kind, int64 [n]; -1 = absent."""
    if isinstance(ids, Tensor) and isinstance(wanted_ids, Tensor):
        if not len(ids):
            return torch.full_like(wanted_ids, -1)
        ascending, row = ids.sort()
        position = torch.searchsorted(ascending, wanted_ids).clamp_(max=len(ids) - 1)
        return row[position].where(ascending[position] == wanted_ids, -1)
    rows = {id_: row for row, id_ in enumerate(ids)}
    return torch.tensor([rows.get(id_, -1) for id_ in wanted_ids], dtype=torch.int64, device="cpu")


def id_at(ids: RowIds, row: int) -> int | str:
    """Return the id of a row."""
    return ids[row] if isinstance(ids, list) else int(ids[row])


@dataclass(frozen=True)
class UnitLayout:
    """Rows sorted by id, so that their input order does not matter, and their units: rows or clusters."""

    order: Tensor
    """Row numbers, sorted by cluster if there are any, then by id, int64 [n]."""
    num_units: int
    unit_of_row: Tensor | None
    """Number of the unit of each row in `order`, ascending, int64 [n]; None = every row is a unit."""

    @classmethod
    def of(cls, ids: RowIds, clusters: RowIds | None) -> UnitLayout:
        """Return the layout of rows with these ids and clusters."""
        if isinstance(ids, Tensor):
            order = ids.argsort()
        else:
            order = torch.tensor(sorted(range(len(ids)), key=ids.__getitem__), dtype=torch.int64, device="cpu")
        if clusters is None:
            return cls(order, len(ids), None)
        distinct, number = numbered_ids(clusters)
        unit_of_row, by_unit = number[order].sort(stable=True)
        return cls(order[by_unit], len(distinct), unit_of_row)

    def only(self, selected: Tensor) -> tuple[UnitLayout, Tensor]:
        """Return the layout of the `selected` rows, bool [n], and the numbers of its units in this layout.

        Units that have no selected row are left out.
        """
        in_order = selected[self.order]
        if self.unit_of_row is None:
            units = in_order.nonzero().flatten()
            return UnitLayout(self.order[in_order], len(units), None), units
        units, unit_of_row = torch.unique(self.unit_of_row[in_order], return_inverse=True)
        return UnitLayout(self.order[in_order], len(units), unit_of_row), units

    def sums(self, values: Tensor) -> Tensor:
        """Return the sums of rows in `order`, float64 [n], by unit, [units]."""
        if self.unit_of_row is None:
            return values
        none = values.new_zeros(self.num_units)
        sums = none.index_add(0, self.unit_of_row, values)
        sizes = none.index_add(0, self.unit_of_row, values.abs())
        return sums.masked_fill(sums.abs() <= EQUAL * sizes, 0)  # sums that are only rounding error are 0
