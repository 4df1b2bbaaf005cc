"""What leaves the candidates of each row: a set of items, given as ids, as masks, or as both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from torchrecmetrics.arrays import ascending, search
from torchrecmetrics.checks import Checks, check_device, check_ids, check_strided, in_words
from torchrecmetrics.data.interactions import Batch
from torchrecmetrics.data.jagged import Jagged, Pair, Spans, as_jagged, as_spans
from torchrecmetrics.kernels.edges import bar_
from torchrecmetrics.ranking.rules import Rules

Exclude: TypeAlias = Tensor | Batch | Jagged | Spans | tuple[Tensor | Batch | Jagged | Spans | Pair, ...]
"""What `exclude=` takes for a batch: ids, what `Interactions.select` gives, ids that are jagged, what `prefix_history`
gives, masks, or a tuple of these. A tuple of two columns of integers is `(values, offsets)` where the second has one
entry more than there are rows."""


def _parts(exclude: Any, checks: Checks) -> list[Any]:
    """Return what was given as one thing, several or none as several: ids, stretches of ids, and masks."""
    if exclude is None:
        return []
    if type(exclude) is tuple and not _is_pair(exclude, checks.num_rows):
        return [each for part in exclude for each in _parts(part, checks)]
    if isinstance(exclude, Batch):
        return [exclude.items]
    jagged = as_jagged("exclude", exclude)
    return [exclude if jagged is None else as_spans("exclude", jagged, checks)]


def _is_pair(parts: tuple[Any, ...], rows: int) -> bool:
    """Whether two columns are values and offsets: two columns of ids would have an entry a row each."""
    if len(parts) != 2 or not all(isinstance(part, Tensor) and not part.is_nested for part in parts):
        return False
    offsets = parts[1]
    return offsets.dim() == 1 and len(offsets) == rows + 1 and offsets.dtype != torch.bool


#: Excluded ids that stand side by side at once, on the CPU and elsewhere, where rows are stretches of one array.
_AT_ONCE, _AT_ONCE_ELSEWHERE = 2**18, 2**22


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
        self._spans: list[Spans] = []  # beside them, where they are too many to stand side by side
        self.pieces = [slice(None)]  # rows whose excluded items are looked at together
        self._of_row = (rows, device)
        self.padding_idx = padding_idx
        columns = []
        spans = []
        for part in _parts(exclude, checks):
            if isinstance(part, Tensor) and part.dtype == torch.bool:
                check_strided("exclude", part)
                fits = part.dim() in (1, 2) and (items is None or part.shape[-1] == items)
                if not fits or (part.dim() == 2 and len(part) != rows):
                    width = "items" if items is None else items
                    raise ValueError(
                        f"a bool exclude must be [{width}] or [{rows}, {width}] to fit, got {list(part.shape)}"
                    )
                self.masks.append(part)
            elif isinstance(part, Spans):
                spans.append(self._inside(part, items, checks))
                continue
            else:
                check_ids("exclude", part)
                ids = part[:, None] if part.dim() == 1 else part
                if ids.dim() != 2 or len(ids) != rows:
                    offsets = "" if part.dim() != 1 else f"; offsets of a jagged exclude are [{rows + 1}]"
                    raise ValueError(f"exclude ids must be [{rows}] or [{rows}, H], got {list(part.shape)}{offsets}")
                if items is not None and 10 <= items == ids.shape[1] and padding_idx not in (0, 1) and checks.enabled:
                    # no history lists the items 0 and 1 alone, as many times as there are items
                    binary = ((ids == 0) | (ids == 1)).all(1)
                    checks.reject("exclude_matrix", binary & binary.all(), lambda row: f"row {row} holds 0 and 1 alone")
                columns.append(ids.long())
            check_device("exclude", part, device)
        if spans:
            at_once = _AT_ONCE if device.type == "cpu" else _AT_ONCE_ELSEWHERE
            tall = max(1, at_once // max(1, sum(span.longest for span in spans)))
            if tall < rows:
                self.pieces = [slice(top, top + tall) for top in range(0, rows, tall)]
                self._spans = spans
            else:
                columns += [span.padded(-1) for span in spans]
        if not columns:
            return
        ids = (columns[0] if len(columns) == 1 else torch.cat(columns, 1)).clamp(min=-1)
        if padding_idx is not None:
            ids = ids.where(ids != padding_idx, -1)
        # a look at the largest tells at once that all is well
        if items is not None and ids.numel() and not checks.clear(lambda: int(ids.amax()) < items):
            if checks.enabled:
                beyond = (ids >= items).any(1)
                checks.reject(
                    "exclude_range", beyond, lambda row: f"row {row} excludes {int(ids[row].max())} of {items} items"
                )
            ids = ids.where(ids < items, -1)
        self.ids = ascending(ids)

    def _inside(self, span: Spans, items: int | None, checks: Checks) -> Spans:
        """Check rows that are stretches of an array; ids that are padding or beyond the last item become -1."""
        rows, device = self._of_row
        check_ids("exclude", span.values)
        if len(span) != rows:
            raise ValueError(f"exclude has {in_words(len(span))}, the scores (or lists) have {rows}")
        check_device("exclude", span.values, device)
        if checks.enabled:
            checks.reject("offsets", span.broken, lambda row: f"exclude's row {row}")
        ids = span.values.long().clamp(min=-1)
        if self.padding_idx is not None:
            ids = ids.where(ids != self.padding_idx, -1)
        if items is not None:
            beyond = ids >= items
            if checks.enabled:
                checks.reject("exclude_range", span.hold(beyond), partial(_beyond_detail, span, items))
            ids = ids.where(~beyond, -1)
        return replace(span, values=ids)

    @property
    def width(self) -> int:
        """How many items `ids` and `padding_idx` exclude in a row at most."""
        beside = (0 if self.ids is None else self.ids.shape[1]) + sum(span.longest for span in self._spans)
        return beside + (self.padding_idx is not None)

    def __bool__(self) -> bool:
        return bool(self.masks) or bool(self._spans) or (self.ids is not None and self.ids.shape[1] > 0)

    def contains(self, ids: Tensor, listed: Tensor) -> Tensor:
        """Whether each of `ids` [B, N] is excluded in its row; False where not `listed`."""
        found = torch.zeros_like(listed)
        for rows in self.pieces:
            held = self._held(rows)
            if held is not None and held.shape[1]:
                at = search(held, ids[rows]).clamp(max=held.shape[1] - 1)
                found[rows] = held.gather(1, at) == ids[rows]
        for mask in self.masks:
            found = found | self._masked(mask, ids)
        return found & listed

    def subtracted(self, look_up: Callable[[Tensor], Tensor], rows: slice) -> Tensor | None:
        """Scores, ascending, of what `ids` and `padding_idx` exclude beyond the masks; -inf for the rest.

        `look_up` finds the scores of ids in these rows.
        """
        ids = self.removed(rows)
        if ids is None or not ids.shape[1]:
            return None
        counted = ids >= 0
        counted[:, 1:] &= ids[:, 1:] != ids[:, :-1]
        for mask in self.masks:
            counted = counted & ~self._masked(mask[rows] if mask.dim() == 2 else mask, ids)
        values = look_up(ids.clamp(min=0))
        return ascending(values.where(counted & (values > -torch.inf), -torch.inf))

    def overwrite(self, scores: Tensor, rows: slice, masks: Sequence[Tensor]) -> Tensor | None:
        """Write -inf over what `ids` and `padding_idx` exclude in these rows, and `masks` of theirs.

        Returns the highest that was there, [n].
        """
        dtype, highest = torch.promote_types(scores.dtype, torch.float32), None
        if masks:
            highest = scores.amax(1).to(dtype)
            bar_(scores, masks)
        ids = self.removed(rows)
        if ids is None or not ids.shape[1]:
            return highest
        # padding repeats the row's last id; a row that has none rewrites a score with itself
        last = ids[:, -1:]
        ids = ids.where(ids >= 0, last.clamp(min=0))
        values = scores.gather(1, ids)
        scores.scatter_(1, ids, values.where(last < 0, -torch.inf))
        return values.amax(1).to(dtype) if highest is None else highest

    def _held(self, rows: slice) -> Tensor | None:
        """Ids that leave the candidates of some rows, ascending, -1 = padding."""
        ids = None if self.ids is None else self.ids[rows]
        if not self._spans:
            return ids
        columns = [span[rows].padded(-1) for span in self._spans]
        return ascending(torch.cat(columns if ids is None else [ids, *columns], 1))

    def removed(self, rows: slice) -> Tensor | None:
        """Ids [n, H] of what `ids` and `padding_idx` exclude in some rows, negative = padding."""
        ids = self._held(rows)
        if self.padding_idx is None:
            return ids
        of, device = self._of_row
        padding = torch.full((of, 1), self.padding_idx, dtype=torch.int64, device=device)[rows]
        return padding if ids is None else torch.cat([ids, padding], 1)

    @staticmethod
    def _masked(mask: Tensor, ids: Tensor) -> Tensor:
        inside = (ids >= 0) & (ids < mask.shape[-1])
        ids = ids.where(inside, 0)
        return inside & (mask.gather(1, ids) if mask.dim() == 2 else mask[ids])


def _beyond_detail(span: Spans, items: int, row: int) -> str:
    return f"row {row} excludes {int(span.values[span.start[row] : span.stop[row]].max())} of {items} items"
