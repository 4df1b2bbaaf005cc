"""What leaves the candidates of each row: a set of items, given as ids, as masks, or as both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from torchrecmetrics.arrays import search
from torchrecmetrics.checks import Checks, check_device, check_ids, check_strided
from torchrecmetrics.data.interactions import Batch
from torchrecmetrics.ranking.rules import Rules

Exclude: TypeAlias = Tensor | Batch | tuple[Tensor | Batch, ...]
"""What `exclude=` takes for a batch: ids, what `Interactions.select` gives, masks, or a tuple of these."""


def _parts(exclude: Any) -> list[Any]:
    """Return what was given as one thing, several or none as several; what `Interactions.select` gives is one."""
    several = () if exclude is None else exclude if type(exclude) is tuple else (exclude,)
    return [part.items if isinstance(part, Batch) else part for part in several]


class Excluded:
    """The items that leave each row's candidates."""

    def __init__(
        self,
        exclude: Exclude | None,
        shape: tuple[int, int | None],
        rules: Rules,
        checks: Checks,
    ) -> None:
        rows, items = shape
        padding_idx, device = rules.padding_idx, checks.device
        self.masks: list[Tensor] = []
        self.ids: Tensor | None = None  # ascending, -1 = padding
        self._of_row = (rows, device)
        self.padding_idx = padding_idx
        columns = []
        for part in _parts(exclude):
            if isinstance(part, Tensor) and part.dtype == torch.bool:
                check_strided("exclude", part)
                fits = part.dim() in (1, 2) and (items is None or part.shape[-1] == items)
                if not fits or (part.dim() == 2 and len(part) != rows):
                    width = "items" if items is None else items
                    raise ValueError(
                        f"a bool exclude must be [{width}] or [{rows}, {width}] to fit, got {list(part.shape)}"
                    )
                self.masks.append(part)
            else:
                check_ids("exclude", part)
                ids = part[:, None] if part.dim() == 1 else part
                if ids.dim() != 2 or len(ids) != rows:
                    raise ValueError(f"exclude ids must be [{rows}] or [{rows}, H], got {list(part.shape)}")
                if items is not None and 10 <= items == ids.shape[1] and padding_idx not in (0, 1) and checks.enabled:
                    # no history lists the items 0 and 1 alone, as many times as there are items
                    binary = ((ids == 0) | (ids == 1)).all(1)
                    checks.reject("exclude_matrix", binary & binary.all(), lambda row: f"row {row} holds 0 and 1 alone")
                columns.append(ids.long())
            check_device("exclude", part, device)
        if not columns:
            return
        ids = torch.cat(columns, 1).clamp(min=-1)
        if padding_idx is not None:
            ids = ids.where(ids != padding_idx, -1)
        if items is not None and ids.shape[1]:
            if checks.enabled:
                beyond = (ids >= items).any(1)
                checks.reject(
                    "exclude_range", beyond, lambda row: f"row {row} excludes {int(ids[row].max())} of {items} items"
                )
            ids = ids.where(ids < items, -1)
        self.ids = ids.sort(dim=1).values

    def __bool__(self) -> bool:
        return bool(self.masks) or (self.ids is not None and self.ids.shape[1] > 0)

    def contains(self, ids: Tensor, listed: Tensor) -> Tensor:
        """Whether each of `ids` [B, N] is excluded in its row; False where not `listed`."""
        found = torch.zeros_like(listed)
        if self.ids is not None and self.ids.shape[1]:
            at = search(self.ids, ids).clamp(max=self.ids.shape[1] - 1)
            found = self.ids.gather(1, at) == ids
        for mask in self.masks:
            found = found | self._masked(mask, ids)
        return found & listed

    def subtracted(self, look_up: Callable[[Tensor], Tensor]) -> Tensor | None:
        """Scores, ascending, of what `ids` and `padding_idx` exclude beyond the masks; -inf for the rest.

        `look_up` finds the scores of ids.
        """
        ids = self.removed
        if ids is None or not ids.shape[1]:
            return None
        counted = ids >= 0
        counted[:, 1:] &= ids[:, 1:] != ids[:, :-1]
        for mask in self.masks:
            counted = counted & ~self._masked(mask, ids)
        values = look_up(ids.clamp(min=0))
        return values.where(counted & (values > -torch.inf), -torch.inf).sort(dim=1).values

    def overwrite(self, scores: Tensor, rows: slice) -> Tensor | None:
        """Write -inf over what `ids` and `padding_idx` exclude in these rows; return the highest that was there."""
        ids = self.removed
        if ids is None or not ids.shape[1]:
            return None
        ids = ids[rows]
        # padding repeats the row's last id; a row that has none rewrites a score with itself
        last = ids[:, -1:]
        ids = ids.where(ids >= 0, last.clamp(min=0))
        values = scores.gather(1, ids)
        scores.scatter_(1, ids, values.where(last < 0, -torch.inf))
        return values.amax(1).to(torch.promote_types(scores.dtype, torch.float32))

    @property
    def removed(self) -> Tensor | None:
        """Ids [B, H] of what `ids` and `padding_idx` exclude, negative = padding."""
        if self.padding_idx is None:
            return self.ids
        rows, device = self._of_row
        padding = torch.full((rows, 1), self.padding_idx, dtype=torch.int64, device=device)
        return padding if self.ids is None else torch.cat([self.ids, padding], 1)

    @staticmethod
    def _masked(mask: Tensor, ids: Tensor) -> Tensor:
        inside = (ids >= 0) & (ids < mask.shape[-1])
        ids = ids.where(inside, 0)
        return inside & (mask.gather(1, ids) if mask.dim() == 2 else mask[ids])
