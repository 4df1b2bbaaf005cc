"""Ids of rows, whole numbers as a tensor or a list of text: number them, and find one run's ids in another's."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

RowIds: TypeAlias = Tensor | list[str]


def numbered(ids: RowIds) -> tuple[RowIds, Tensor]:
    """Return the distinct ids in ascending order, and the index of each id among them, int64 [n]."""
    if isinstance(ids, Tensor):
        distinct, number = torch.unique(ids, return_inverse=True)
        return distinct, number
    index = {id_: at for at, id_ in enumerate(sorted(set(ids)))}
    return [*index], torch.tensor([index[id_] for id_ in ids], dtype=torch.int64, device="cpu")


def find(ids: RowIds, asked: RowIds) -> Tensor:
    """Return the row of each asked id in `ids`, which are distinct and of the same kind, int64 [n]; -1 = absent."""
    if isinstance(ids, Tensor) and isinstance(asked, Tensor):
        if not len(ids):
            return torch.full_like(asked, -1)
        ascending, row = ids.sort()
        at = torch.searchsorted(ascending, asked).clamp_(max=len(ids) - 1)
        return row[at].where(ascending[at] == asked, -1)
    rows = {id_: row for row, id_ in enumerate(ids)}
    return torch.tensor([rows.get(id_, -1) for id_ in asked], dtype=torch.int64, device="cpu")


def id_at(ids: RowIds, row: int) -> int | str:
    """Return the id of a row."""
    return ids[row] if isinstance(ids, list) else int(ids[row])
