"""`ExcludedItems`: the items excluded from each row (history, padding, masks), to look up, subtract and overwrite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import rowwise_isin, sort_rows
from torchrecmetrics.core.checks import Checks, check_device, check_ids, check_strided, in_words, shown
from torchrecmetrics.core.options import Options
from torchrecmetrics.inputs.batch_input import SelectedItems
from torchrecmetrics.inputs.jagged import Jagged, Pair, Spans, as_jagged, as_spans
from torchrecmetrics.kernels.contract import mask_

Exclude: TypeAlias = (
    Tensor | SelectedItems | Jagged | Spans | tuple[Tensor | SelectedItems | Jagged | Spans | Pair, ...]
)
"""The forms of `exclude=` for a batch: ids, results of `Interactions.select` and `prefix_history`, jagged ids, masks,
or a tuple of these. A tuple of two columns of integers is `(values, offsets)` if the second has one entry more than
there are rows."""


def _as_list(exclude: Any, checks: Checks) -> list[Any]:
    """Return `exclude=` as a list of ids, spans and masks."""
    if exclude is None:
        return []
    if type(exclude) is tuple and not _is_pair(exclude, checks.num_rows):
        return [entry for nested in exclude for entry in _as_list(nested, checks)]
    if isinstance(exclude, SelectedItems):
        return [exclude.items]
    jagged = as_jagged("exclude", exclude)
    return [exclude if jagged is None else as_spans("exclude", jagged, checks)]


def _is_pair(columns: tuple[Any, ...], rows: int) -> bool:
    """Return True if `columns` are values and offsets, of which there are rows + 1; a column of ids has one per row."""
    if len(columns) != 2 or not all(isinstance(column, Tensor) and not column.is_nested for column in columns):
        return False
    offsets = columns[1]
    return offsets.dim() == 1 and len(offsets) == rows + 1 and offsets.dtype != torch.bool


ALL_ROWS = slice(None)
PADDED_IDS_CPU, PADDED_IDS = 2**18, 2**22
"""Maximum number of excluded ids of `Spans` that are padded at once: on the CPU, and on other devices."""


class ExcludedItems:
    """The items that are excluded from each row's candidates."""

    def __init__(
        self, exclude: Exclude | None, shape: tuple[int, int | None], options: Options, checks: Checks
    ) -> None:
        self._shape, self._device, self._padding_idx = shape, checks.device, options.padding_idx
        self.masks: list[Tensor] = []
        self._ids: Tensor | None = None  # [B, H], ascending, with padding_idx; -1 = padding
        self._spans: list[Spans] = []  # further ids, if they are too many to be padded at once
        self.rows_at_once: int = max(1, shape[0])
        """Number of rows whose excluded items are padded together."""
        columns, spans = [], []
        for entry in _as_list(exclude, checks):
            if isinstance(entry, Tensor) and entry.dtype == torch.bool:
                self.masks.append(self._check_mask(entry))
            elif isinstance(entry, Spans):
                spans.append(self._check_spans(entry, checks))
            else:
                columns.append(self._check_ids(entry, checks))
        if spans:
            at_once = PADDED_IDS_CPU if self._device.type == "cpu" else PADDED_IDS
            self.rows_at_once = max(1, at_once // max(1, sum(span.longest for span in spans)))
            if self.rows_at_once < shape[0]:
                self._spans = spans
            else:
                columns += [span.padded(-1) for span in spans]
        if options.padding_idx is not None:
            columns.append(torch.full((shape[0], 1), options.padding_idx, device=self._device))
        if any(ids.shape[1] for ids in columns):
            all_ids = torch.cat(columns, 1) if len(columns) > 1 else columns[0]
            ids, beyond = self._in_catalogue(all_ids)
            if beyond is not None:
                checks.reject("exclude_range", beyond, lambda row: _beyond_detail(row, shape[1], all_ids[row]))
            self._ids = sort_rows(ids)
        self.is_empty: bool = not self._spans and not self.masks and self._ids is None
        """True if all items of all rows are candidates."""

    def _check_mask(self, mask: Tensor) -> Tensor:
        rows, items = self._shape
        check_strided("exclude", mask)
        fits = mask.dim() in (1, 2) and (items is None or mask.shape[-1] == items)
        if not fits or (mask.dim() == 2 and len(mask) != rows):
            width = "items" if items is None else items
            raise ValueError(f"a bool exclude must be [{width}] or [{rows}, {width}], got {list(mask.shape)}")
        check_device("exclude", mask, self._device)
        return mask

    def _check_ids(self, item_ids: Tensor, checks: Checks) -> Tensor:
        """Return ids [B] or [B, H] as int64 [B, H], checked."""
        rows, items = self._shape
        check_ids("exclude", item_ids)
        ids = item_ids[:, None] if item_ids.dim() == 1 else item_ids
        if ids.dim() != 2 or len(ids) != rows:
            offsets = "" if item_ids.dim() != 1 else f"; offsets of a jagged exclude are [{rows + 1}]"
            raise ValueError(f"exclude ids must be [{rows}] or [{rows}, H], got {list(item_ids.shape)}{offsets}")
        if items is not None and 2 < items == ids.shape[1] and self._padding_idx not in (0, 1) and checks.enabled:
            # no history has as many entries as there are items, all of them 0 or 1
            is_matrix = ((ids == 0) | (ids == 1)).all()
            checks.reject("exclude_matrix", is_matrix.expand(rows), lambda row: f"row {row} is {shown(ids[row])}")
        check_device("exclude", item_ids, self._device)
        return ids.long()

    def _check_spans(self, span: Spans, checks: Checks) -> Spans:
        """Check rows that are spans of an array; return them with -1 for padding and for ids beyond the last item."""
        rows, items = self._shape
        check_ids("exclude", span.values)
        if len(span) != rows:
            raise ValueError(f"exclude has {in_words(len(span))}, the scores (or lists) have {rows}")
        check_device("exclude", span.values, self._device)
        if checks.enabled:
            checks.reject("offsets", span.broken, lambda row: f"exclude's row {row}")
        ids, beyond = self._in_catalogue(span.values)
        if beyond is not None and checks.enabled:
            values, start, stop = span.values, span.start, span.stop
            checks.reject(
                "exclude_range",
                span.hold(beyond),
                lambda row: _beyond_detail(row, items, values[start[row] : stop[row]]),
            )
        return replace(span, values=ids)

    def _in_catalogue(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return ids with -1 for padding and beyond the last item, and a mask of the latter (None = no last item)."""
        items = self._shape[1]
        ids = ids.long().clamp(min=-1)
        if items is None:
            return ids, None
        beyond = ids >= items
        return ids.masked_fill(beyond, -1), beyond

    def contains(self, ids: Tensor, is_item: Tensor) -> Tensor:
        """Return which of `ids` [B, N] are excluded in their row, bool [B, N]; False where not `is_item`."""
        excluded = torch.zeros_like(is_item)
        for start in range(0, len(ids), self.rows_at_once):
            rows = slice(start, start + self.rows_at_once)
            excluded_ids = self.ids(rows)
            if excluded_ids is not None:
                excluded[rows] = rowwise_isin(ids[rows], excluded_ids)
        for mask in self.masks:
            excluded = excluded | masked(mask, ids)
        return excluded & is_item

    def ids(self, rows: slice = ALL_ROWS) -> Tensor | None:
        """Return the excluded ids of `rows`, `padding_idx` included, [n, H], ascending, -1 = padding; None = no ids."""
        ids = None if self._ids is None else self._ids[rows]
        if not self._spans:
            return ids
        columns = [span[rows].padded(-1) for span in self._spans]
        return sort_rows(torch.cat(columns if ids is None else [ids, *columns], 1))

    def among(self, rows: slice, first_item: int, width: int) -> ExcludedColumns:
        """Return the excluded items of some rows among `width` items from `first_item` on, as columns."""
        ids = self.ids(rows)
        if ids is not None and (first_item or width != self._shape[1]):
            ids = (ids - first_item).where((ids >= first_item) & (ids < first_item + width), -1)
        masks = [mask[rows] if mask.dim() == 2 else mask for mask in self.masks]
        return ExcludedColumns(ids, [mask[..., first_item : first_item + width] for mask in masks])


class ExcludedColumns(NamedTuple):
    """Excluded items of some rows, as columns of their scores, for the counting kernels."""

    ids: Tensor | None
    """Int64 [n, H], negative = padding, equal ids side by side; None = none."""
    masks: list[Tensor]
    """Bool [C] or [n, C], True = excluded."""

    def scores(self, look_up: Callable[[Tensor], Tensor]) -> Tensor | None:
        """Return the scores of the columns `ids` outside the masks, [n, H], ascending, -inf for padding; None = none.

        `look_up` returns the scores of columns [n, H] of these rows.
        """
        if self.ids is None:
            return None
        ids, counted = self.ids, self.ids >= 0
        counted[:, 1:] &= ids[:, 1:] != ids[:, :-1]
        for mask in self.masks:
            counted = counted & ~masked(mask, ids)
        values = look_up(ids.clamp(min=0))
        return sort_rows(values.where(counted & (values > -torch.inf), -torch.inf))

    def overwrite(self, scores: Tensor) -> Tensor | None:
        """Write -inf over the excluded scores; return their maximum, or the row's for masks, [n]; None = none."""
        dtype, highest = torch.promote_types(scores.dtype, torch.float32), None
        if self.masks:
            highest = scores.amax(1).to(dtype)
            mask_(scores, self.masks)
        if self.ids is None:
            return highest
        # padding becomes an excluded id of the row; rows without one write back the score that they read
        highest_id = self.ids.amax(1, keepdim=True)
        ids = self.ids.where(self.ids >= 0, highest_id.clamp(min=0))
        values = scores.gather(1, ids)
        scores.scatter_(1, ids, values.where(highest_id < 0, -torch.inf))
        return values.amax(1).to(dtype) if highest is None else highest


def masked(mask: Tensor, ids: Tensor) -> Tensor:
    """Return the values of a mask [I] or [n, I] at `ids` [n, N]; False for ids beyond it."""
    inside = (ids >= 0) & (ids < mask.shape[-1])
    ids = ids.where(inside, 0)
    return inside & (mask.gather(1, ids) if mask.dim() == 2 else mask[ids])


def _beyond_detail(row: int, items: int | None, ids: Tensor) -> str:
    return f"row {row} excludes {int(ids.max())} of {items} items"
