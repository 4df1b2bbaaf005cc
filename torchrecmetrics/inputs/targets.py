"""`Targets`: check the target ids, dense targets and gains of a batch."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import can_sync, float_dtype, sort_rows, tiles
from torchrecmetrics.core.checks import (
    ID_DTYPES,
    Checks,
    check_device,
    check_ids,
    check_strided,
    check_tensor,
    describe,
    is_dense,
    shown,
)
from torchrecmetrics.core.options import Options
from torchrecmetrics.inputs.batch_input import SelectedItems
from torchrecmetrics.inputs.exclusion import Exclude, ExcludedItems
from torchrecmetrics.inputs.jagged import Jagged, Pair, as_jagged, as_spans, side_by_side

Target: TypeAlias = Tensor | SelectedItems | Jagged | Pair
"""Types of `target=`: ids, a result of `Interactions.select`, jagged ids, or a dense tensor."""
Gains: TypeAlias = Tensor | Jagged | Pair
"""Types of `gains=`: numbers in the shape of the target ids, jagged if the ids are."""


class Targets(NamedTuple):
    """The target items of each row, [B, T], with their gains and flags, and the excluded items."""

    ids: Tensor  # int64, clamped into the catalogue
    is_item: Tensor  # bool: an item of the catalogue, not padding
    gains: Tensor | None  # float, None = 1 for all
    relevant: Tensor  # bool
    may_rank: Tensor  # bool: an item that stays a candidate
    kept: Tensor | None  # bool: relevant items that stay candidates although they are excluded; None = none does
    excluded: ExcludedItems | None  # None = no item is excluded
    num_items: int | None  # None = unknown, for lists

    @classmethod
    def read(
        cls,
        target: Target,
        gains: Gains | None,
        exclude: Exclude | None,
        shape: tuple[int, int | None],
        options: Options,
        checks: Checks,
    ) -> Targets:
        """Check target, gains and exclude for scores [rows, items], or for lists (items None), and return them."""
        items = shape[1]
        if type(target) is not Tensor or target.is_nested or gains is not None:
            target, gains = padded(target, gains, checks, options.max_relevant)
        ids, gain = _ids_and_gains(target, gains, shape, options, checks)
        inside = ids if items is None else ids.clamp(0, items - 1)
        is_item = ids >= 0 if items is None else inside == ids
        if options.padding_idx is not None:
            is_item = is_item & (ids != options.padding_idx)
        if checks.enabled:
            _check_values(ids, gain, is_item, target, items, options, checks)
        excluded = None
        if exclude is not None or options.padding_idx is not None:
            exclusion = ExcludedItems(exclude, shape, options, checks)
            excluded = None if exclusion.is_empty else exclusion
        relevant = is_item if gain is None else is_item & (gain > 0)
        may_rank, kept = is_item, None
        if excluded is not None:
            leaves = excluded.contains(inside, is_item)
            overlap = relevant & leaves
            if options.overlap_rule == "keep":
                leaves, kept = leaves & ~overlap, overlap
            elif options.overlap_rule == "error":
                checks.reject("overlap", overlap, lambda row: _overlap_detail(row, inside, overlap))
            may_rank = is_item & ~leaves
        return cls(
            ids=inside,
            is_item=is_item,
            gains=gain,
            relevant=relevant,
            may_rank=may_rank,
            kept=kept,
            excluded=excluded,
            num_items=items,
        )

    @property
    def penalised(self) -> Tensor:
        """Mask of items with a negative gain, bool [B, T]; for targets with gains."""
        assert self.gains is not None
        return self.is_item & (self.gains < 0)


def padded(
    target: Target, gains: Gains | None, checks: Checks, max_relevant: int | None
) -> tuple[Tensor, Tensor | None]:
    """Return the ids and gains of a target: the fields of a result of `Interactions.select`, or padded jagged ids."""
    if isinstance(target, SelectedItems):
        if target.values is not None and gains is not None:
            raise ValueError("gains= needs a target without values: pass target.items")
        gains = target.values if gains is None else gains
        ids: Any = target.items
        target = ids
    jagged, jagged_gains = as_jagged("target", target), None if gains is None else as_jagged("gains", gains, "0")
    if jagged is not None:
        return _pad_jagged(jagged, gains, jagged_gains, checks, max_relevant)
    if jagged_gains is not None:
        raise ValueError("gains are jagged, but target is not: pass both padded or both jagged")
    return cast(Tensor, target), cast("Tensor | None", gains)  # `Targets.read` refuses anything but a tensor


def reject_whole(ids: Tensor, gains: Any, checks: Checks) -> None:
    """Reject all rows if each holds every item once, in ids of the scores' shape without gains: these are grades."""
    if not checks.enabled or gains is not None or ids.dtype not in ID_DTYPES:
        return
    holds_all = (sort_rows(ids) == torch.arange(ids.shape[1], device=ids.device)).all() & (ids.shape[1] > 1)
    checks.reject("target_whole", holds_all.expand(len(ids)), lambda row: f"row {row} is {shown(ids[row])}")


def _pad_jagged(
    ids: Jagged, gains: Gains | None, jagged_gains: Jagged | None, checks: Checks, max_relevant: int | None
) -> tuple[Tensor, Tensor | None]:
    """Return jagged ids and gains as padded ids [B, T] and gains [B, T]."""
    check_ids("target", ids.values)
    spans = as_spans("target", ids, checks, max_relevant)
    start, stop, width = spans.start, spans.stop, spans.longest
    if max_relevant is not None and checks.enabled:
        size = stop - start
        checks.reject("target_width", size > width, lambda row: f"row {row} has {int(size[row])} > {width}")
    padded_ids = side_by_side(ids.values, start, stop, width, -1)
    if gains is None:
        return padded_ids, None
    if jagged_gains is None:
        raise ValueError(f"gains of a jagged target must be jagged, such as (gains, offsets), got {describe(gains)}")
    check_tensor("gains", jagged_gains.values)
    if jagged_gains.values.shape != ids.values.shape or jagged_gains.offsets.shape != ids.offsets.shape:
        raise ValueError(
            f"jagged gains must have the target's rows, {len(start)} of {len(ids.values)} entries, got "
            f"{len(jagged_gains.offsets) - 1} of {len(jagged_gains.values)}"
        )
    check_device("gains", jagged_gains.values, checks.device)
    if jagged_gains.offsets is not ids.offsets and checks.enabled:
        differs = (jagged_gains.offsets[:-1] != ids.offsets[:-1]) | (jagged_gains.offsets[1:] != ids.offsets[1:])
        checks.reject("offsets", differs, lambda row: f"offsets of row {row} differ between gains and target")
    return padded_ids, side_by_side(jagged_gains.values, start, stop, width, 0)


def _ids_and_gains(
    target: Tensor, gains: Tensor | None, shape: tuple[int, int | None], options: Options, checks: Checks
) -> tuple[Tensor, Tensor | None]:
    """Return any form of target as ids int64 [B, T] and gains float [B, T] (None = every item gains 1)."""
    rows, items = shape
    if not isinstance(target, Tensor):
        check_ids("target", target)
    check_strided("target", target)
    check_device("target", target, checks.device)
    if target.dtype == torch.bool or target.is_floating_point():
        return _dense_ids_and_gains(target, gains, shape, options, checks)
    if target.shape == (rows, items) and target.dtype not in ID_DTYPES:
        raise TypeError(f"target is {describe(target)}: pass target.bool(), target.float() for grades, or int64 ids")
    check_ids("target", target)
    ids = (target[:, None] if target.dim() == 1 else target).long()
    if ids.dim() != 2 or ids.shape[0] != rows:
        cure = ""
        if ids.dim() == 2 and len(ids) == 2:
            cure = (
                "; for edges pass target=Interactions.from_edge_index(edges, num_users, "
                "num_items).select(user_ids).items"
            )
        raise ValueError(f"target ids must be [{rows}] or [{rows}, T] for these scores, got {list(target.shape)}{cure}")
    gain: Tensor | None = None
    if gains is not None:
        check_tensor("gains", gains)
        check_strided("gains", gains, "0")
        if gains.shape != target.shape or gains.dtype == torch.bool or gains.is_complex():
            raise ValueError(
                f"gains must be numbers in the shape of target {list(target.shape)}, got {describe(gains)}"
            )
        check_device("gains", gains, checks.device)
        gain = (gains[:, None] if gains.dim() == 1 else gains).to(float_dtype(checks.device))
    if ids.shape[1] == 0:
        ids = ids.new_full((rows, 1), -1)
        gain = None if gain is None else gain.new_zeros((rows, 1))
    return ids, gain


def dense_to_ids(target: Any, gains: Any, item_ids: Tensor, options: Options, checks: Checks) -> tuple[Any, Any]:
    """Convert a dense target [B, I] of item ids [K] or [B, K] to ids and gains; return a target of ids unchanged.

    A dense target that is not wider than the ids is refused, since it could label them.
    """
    if not is_dense(target):
        return target, gains
    check_strided("target", target)
    check_device("target", target, checks.device)
    rows, width = checks.num_rows, item_ids.shape[-1]
    if target.dim() != 2 or len(target) != rows or target.shape[1] <= width:
        raise ValueError(
            f"a dense target with item ids must be [{rows}, items] with more items than the {width} ids of a "
            f"row, got {describe(target)}. Pass labels of these ids as Hits(flags, num_relevant=), or with "
            "scores as Scores(scores, target); a matrix of all items as "
            f"Interactions.from_dense(target).select(range({rows}))"
        )
    ids, items = item_ids.expand(rows, -1), target.shape[1]
    checks.reject("catalogue_range", ids >= items, lambda row: f"row {row} has {int(ids[row].max())} of {items} items")
    return _dense_ids_and_gains(target, gains, (rows, items), options, checks)


def _dense_ids_and_gains(
    target: Tensor, gains: Tensor | None, shape: tuple[int, int | None], options: Options, checks: Checks
) -> tuple[Tensor, Tensor | None]:
    if target.shape != shape:
        raise ValueError(
            f"a {target.dtype} target is dense and must have the scores' shape {list(shape)}, "
            f"got {list(target.shape)}; item ids are integers (target.long())"
        )
    if gains is not None:
        raise ValueError("gains= is for id targets; a dense float target holds its own gains")
    ids = _columns(target, options.max_relevant, checks)
    if target.dtype == torch.bool:
        return ids, None
    labels = target.gather(1, ids.clamp(min=0)).to(float_dtype(checks.device))
    checks.reject("negative_label", labels < 0, lambda row: f"row {row} holds {shown(labels[row])}")
    return ids, labels


def _check_values(
    ids: Tensor,
    gain: Tensor | None,
    is_item: Tensor,
    target: Tensor,
    items: int | None,
    options: Options,
    checks: Checks,
) -> None:
    """Reject rows with a repeated item, an id beyond the last item, or a gain that is NaN or infinite."""
    checked_ids = ids if options.padding_idx is None else torch.where(ids != options.padding_idx, ids, -1)
    if ids.shape[1] > 1 and not (target.dtype == torch.bool or target.is_floating_point()):
        in_order = sort_rows(checked_ids)
        twice = (in_order[:, 1:] == in_order[:, :-1]) & (in_order[:, 1:] >= 0)
        checks.reject("target_repeat", twice, lambda row: _repeat_detail(row, ids, target, items))
    if items is not None:
        checks.reject(
            "target_range",
            checked_ids >= items,
            lambda row: f"row {row} holds {int(ids[row].max())} of {items} items",
        )
    if gain is not None:
        checks.reject("gains", is_item & ~gain.isfinite(), lambda row: f"row {row} is {shown(gain[row])}")


def _columns(dense: Tensor, max_relevant: int | None, checks: Checks) -> Tensor:
    """Return the column numbers of each row's non-zero entries, int64 [B, T], padded with -1."""
    if max_relevant is not None and not can_sync(dense):
        return _columns_unseen(dense, max_relevant, checks)
    rows = len(dense)
    coordinates = [
        torch.stack([row + tile_slices[0].start, column + tile_slices[1].start])
        for tile_slices, tile in tiles(dense, 1)
        for row, column in [tile.nonzero(as_tuple=True)]
    ]
    row, column = torch.cat(coordinates, 1) if coordinates else dense.new_empty((2, 0), dtype=torch.int64)
    size = torch.bincount(row, minlength=rows)
    slot = torch.arange(len(row), device=row.device) - (size.cumsum(0) - size)[row]
    longest = int(size.max()) if rows else 0
    width = max(1, longest) if max_relevant is None else max_relevant
    if longest > width:
        _reject_wide(size, width, checks)
        row, column, slot = (entries[slot < width] for entries in (row, column, slot))
    ids = torch.full((rows, width), -1, dtype=torch.int64, device=dense.device)
    ids[row, slot] = column
    return ids


def _columns_unseen(dense: Tensor, width: int, checks: Checks) -> Tensor:
    """Return `_columns`, at most `width` per row, without the host sync that counts the entries."""
    rows = len(dense)
    size = torch.zeros((rows, 1), dtype=torch.int64, device=dense.device)
    # another slot takes zeros and items that do not fit
    ids = torch.full((rows, width + 1), -1, dtype=torch.int64, device=dense.device)
    for (row, columns), tile in tiles(dense, 4):
        nonzero = tile != 0
        slot = nonzero.cumsum(1) + size[row]
        number = torch.arange(columns.start, columns.start + tile.shape[1], device=dense.device).expand(slot.shape)
        ids[row] = ids[row].scatter(1, (slot - 1).where(nonzero & (slot <= width), width), number)
        size[row] = slot[:, -1:]
    _reject_wide(size[:, 0], width, checks)
    return ids[:, :width]


def _reject_wide(size: Tensor, width: int, checks: Checks) -> None:
    if checks.enabled:
        checks.reject("target_width", size > width, lambda row: f"row {row} has {int(size[row])} > {width}")


def _repeat_detail(row: int, ids: Tensor, target: Tensor, items: int | None) -> str:
    row_items = ids[row][ids[row] >= 0]
    if target.dim() == 2 and items in (None, target.shape[1]) and bool((row_items <= 1).all()):
        return f"target of shape {list(target.shape)} looks like a 0/1 matrix: pass target.bool()"
    values, counts = torch.unique(row_items, return_counts=True)
    hint = ""
    if target.dim() == 2 and target.shape[1] == items:
        hint = " (integers are item ids; pass grades in the scores' shape as target.float())"
    return f"row {row} holds item {int(values[counts > 1][0])} more than once{hint}"


def _overlap_detail(row: int, ids: Tensor, overlap: Tensor) -> str:
    """Return a message that says how many relevant items are excluded, and names the cures."""
    return (
        f"{int(overlap.sum())} pairs, such as item {int(ids[row][overlap[row]][0])} in row {row}. Unless ids "
        "are shifted, or the history holds the targets themselves, remove them from the target, or pass "
        "overlap='keep' (they stay candidates: repeat consumption), overlap='miss' (they cannot be hit) or "
        "overlap='error' (this)"
    )
