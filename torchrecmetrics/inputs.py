"""Reading the arguments: checks of values that never wait for a device, targets and exclusions of every form."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

Validation: TypeAlias = bool | Literal["deferred"]
Exclude: TypeAlias = Tensor | tuple[Tensor, ...]

#: What a value can do wrong. `Ranking.invalid` counts the offending rows in this order.
VIOLATIONS = {
    "target_range": "with a target id beyond the last item",
    "target_repeat": "with an item listed twice in target",
    "target_width": "with more relevant items than max_relevant",
    "gains": "with a gain that is NaN or infinite",
    "exclude_range": "with an excluded id beyond the last item",
    "exclude_matrix": "whose exclude looks like a 0/1 matrix (pass exclude.bool())",
    "overlap": "with a target that is also excluded",
    "scores": "with a score that is NaN or +inf",
    "list_repeat": "with an item recommended twice",
    "list_short": "known to fewer than k places (lists: recommend k + history; ranks: look at k places)",
    "ranks": "with ranks that are no places (NaN, between 0 and 1, a place twice, beyond num_ranked, marked invalid)",
    "weights": "with a weight that is negative, NaN or infinite",
    "empty": "without a relevant item (empty_target_action='error')",
    "step": "in place of a batch that another process could not use (it tells why)",
}
SCORE_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
ID_DTYPES = (torch.int64, torch.int32, torch.int16)


class Checks:
    """Collects what is wrong with the values of one batch, row by row.

    On the CPU (`validate_args=True`) a violation raises where it is found. Elsewhere, or with "deferred", nothing waits
    for the device: the row is marked in `rejected` and counted in `invalid`, and the metric raises in `compute`.
    """

    def __init__(self, validate_args: Validation, device: torch.device, num_rows: int) -> None:
        if not isinstance(validate_args, bool) and validate_args != "deferred":
            raise ValueError(f"validate_args must be True, False or 'deferred', got {validate_args!r}")
        self.enabled = validate_args is not False
        self.at_once = validate_args is True and device.type == "cpu"
        self._zero = torch.zeros((), dtype=torch.int64, device=device)
        self._counts: dict[str, Tensor] = {}
        self._rejected = torch.zeros(num_rows, dtype=torch.bool, device=device)

    def reject(self, kind: str, rows: Tensor, detail: Callable[[int], str]) -> None:
        """Reject rows where `rows` is true, [B] or anywhere in [B, n]; `detail` describes the first of them."""
        if self.at_once:
            if rows.count_nonzero():  # `any` takes several times as long
                rows = rows.any(1) if rows.dim() == 2 else rows
                first = int(rows.nonzero()[0])
                raise ValueError(f"{int(rows.sum())} of {len(rows)} rows {VIOLATIONS[kind]}: {detail(first)}")
        else:
            rows = rows.any(1) if rows.dim() == 2 else rows
            self._counts[kind] = self._counts.get(kind, self._zero) + rows.sum()
            self._rejected |= rows

    @property
    def rejected(self) -> Tensor | None:
        """Rows to leave out, bool [B]; None where there cannot be any."""
        return self._rejected if self.enabled and not self.at_once else None

    @property
    def invalid(self) -> Tensor | None:
        """Offending rows by kind, int64 [len(VIOLATIONS)]; None where values were checked at once or not at all."""
        if self.rejected is None:
            return None
        return torch.stack([self._counts.get(kind, self._zero) for kind in VIOLATIONS])


def check_k(k: Any, name: str = "k") -> int:
    """Return `k` as an int >= 1, or raise."""
    if isinstance(k, bool):
        raise TypeError(f"{name} must be an integer >= 1, got {k!r}")
    try:
        value = operator.index(k)
    except TypeError:
        raise TypeError(f"{name} must be an integer >= 1, got {k!r} ({type(k).__name__})") from None
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value


def check_cutoffs(k: int | Sequence[int]) -> int | tuple[int, ...]:
    """Return one cut-off or several, each an int >= 1, or raise."""
    if not isinstance(k, Sequence) or isinstance(k, str):
        try:
            return check_k(k)
        except TypeError as error:
            raise TypeError(f"{error}; several cut-offs are a list") from None
    if not len(k):
        raise ValueError("k holds no cut-off")
    return tuple(check_k(one) for one in k)


def check_padding_idx(padding_idx: Any) -> int | None:
    """Return an item id >= 0 or None, or raise."""
    if padding_idx is None:
        return None
    if isinstance(padding_idx, bool) or not hasattr(padding_idx, "__index__"):
        raise TypeError(f"padding_idx must be an item id, got {padding_idx!r}")
    if operator.index(padding_idx) < 0:
        raise ValueError(f"padding_idx must be an item id >= 0 (negative ids are padding anyway), got {padding_idx}")
    return operator.index(padding_idx)


def check_score_threshold(threshold: Any) -> float | None:
    """Return a finite number or None, or raise."""
    if threshold is None:
        return None
    if isinstance(threshold, (bool, str)) or not hasattr(threshold, "__float__"):
        raise TypeError(f"score_threshold must be a number, got {threshold!r}")
    if not math.isfinite(threshold):
        raise ValueError(f"score_threshold must be finite, got {threshold!r}")
    return float(threshold)


def tiles(matrix: Tensor, wide: int) -> Iterator[tuple[tuple[slice, slice], Tensor]]:
    """Cut [B, I] into pieces of at most 2^21 / wide elements (2^24 / wide off the CPU): some rows, or a part of one."""
    budget = max(1, 2 ** (21 if matrix.device.type == "cpu" else 24) // wide)
    rows, items = matrix.shape
    wide_piece = min(items, budget)
    tall_piece = max(1, budget // wide_piece)
    for top in range(0, rows, tall_piece):
        for left in range(0, items, wide_piece):
            here = slice(top, top + tall_piece), slice(left, left + wide_piece)
            yield here, matrix[here]


def search(ascending: Tensor, values: Tensor, right: bool = False) -> Tensor:
    """Where each value would be inserted into its sorted row; `searchsorted` warns of layouts it has to copy."""
    return torch.searchsorted(ascending.contiguous(), values.contiguous(), right=right)


def running_sums(values: Tensor) -> Tensor:
    """`cumsum` along rows, which on CUDA refuses floats where algorithms must be deterministic."""
    deterministic = values.is_cuda and torch.are_deterministic_algorithms_enabled()
    return doubling_sums(values) if deterministic else values.cumsum(1)


def doubling_sums(values: Tensor) -> Tensor:
    """`cumsum` along rows by log2(T) additions."""
    step = 1
    while step < values.shape[1]:
        values = values + torch.nn.functional.pad(values[:, :-step], (step, 0))
        step *= 2
    return values


def count_above(ascending: Tensor, thresholds: Tensor) -> Tensor:
    """How many of a sorted row are > each threshold, [B, W]."""
    return ascending.shape[1] - search(ascending, thresholds, right=True)


def count_at_least(ascending: Tensor, thresholds: Tensor) -> Tensor:
    """How many of a sorted row are >= each threshold, [B, W]."""
    return ascending.shape[1] - search(ascending, thresholds)


class Excluded:
    """The items that leave each row's candidates: a set, given as ids, as masks, or as both."""

    def __init__(
        self,
        exclude: Exclude | None,
        shape: tuple[int, int | None],
        device: torch.device,
        padding_idx: int | None,
        checks: Checks,
    ) -> None:
        rows, items = shape
        self.masks: list[Tensor] = []
        self.padding_idx = padding_idx
        columns = []
        for part in () if exclude is None else exclude if isinstance(exclude, tuple) else (exclude,):
            if isinstance(part, Tensor) and part.dtype == torch.bool:
                fits = part.dim() in (1, 2) and (items is None or part.shape[-1] == items)
                if not fits or (part.dim() == 2 and len(part) != rows):
                    width = "items" if items is None else items
                    raise ValueError(
                        f"a bool exclude must be [{width}] or [{rows}, {width}] to fit, got {list(part.shape)}"
                    )
                self.masks.append(part)
            else:
                if hasattr(part, "to_edge_index"):
                    raise TypeError(f"exclude must be ids or bool, got {part}: pass exclude.select(user_ids).items")
                check_ids("exclude", part)
                ids = part[:, None] if part.dim() == 1 else part
                if ids.dim() != 2 or len(ids) != rows:
                    raise ValueError(f"exclude ids must be [{rows}] or [{rows}, H], got {list(part.shape)}")
                check_strided("exclude", part)
                if items is not None and 10 <= items == ids.shape[1] and padding_idx not in (0, 1) and checks.enabled:
                    # no history lists the items 0 and 1 alone, as many times as there are items
                    binary = ((ids == 0) | (ids == 1)).all(1)
                    checks.reject("exclude_matrix", binary & binary.all(), lambda row: f"row {row} holds 0 and 1 alone")
                columns.append(ids.long())
            check_device("exclude", part, device)
        ids = torch.cat(columns, 1) if columns else torch.empty((rows, 0), dtype=torch.int64, device=device)
        ids = ids.clamp(min=-1)
        if padding_idx is not None:
            ids = ids.where(ids != padding_idx, -1)
        if items is not None and ids.shape[1]:
            if checks.enabled:
                beyond = (ids >= items).any(1)
                checks.reject(
                    "exclude_range", beyond, lambda row: f"row {row} excludes {int(ids[row].max())} of {items} items"
                )
            ids = ids.where(ids < items, -1)
        self.ids = ids.sort(dim=1).values  # ascending, -1 = padding

    def __bool__(self) -> bool:
        return bool(self.masks or self.ids.shape[1])

    def contains(self, ids: Tensor, listed: Tensor) -> Tensor:
        """Whether each of `ids` [B, N] is excluded in its row; False where not `listed`."""
        found = torch.zeros_like(listed)
        if self.ids.shape[1]:
            at = search(self.ids, ids).clamp(max=self.ids.shape[1] - 1)
            found = self.ids.gather(1, at) == ids
        for mask in self.masks:
            found = found | self._masked(mask, ids)
        return found & listed

    def subtracted(self, look_up: Callable[[Tensor], Tensor]) -> Tensor | None:
        """Scores, ascending, of what `ids` and `padding_idx` exclude beyond the masks; -inf for the rest.

        `look_up` finds the scores of ids.
        """
        ids = self._removed()
        if not ids.shape[1]:
            return None
        counted = ids >= 0
        counted[:, 1:] &= ids[:, 1:] != ids[:, :-1]
        for mask in self.masks:
            counted = counted & ~self._masked(mask, ids)
        values = look_up(ids.clamp(min=0))
        return values.where(counted & (values > -torch.inf), -torch.inf).sort(dim=1).values

    def overwrite(self, scores: Tensor, rows: slice) -> Tensor | None:
        """Write -inf over what `ids` and `padding_idx` exclude in these rows; return the highest that was there."""
        ids = self._removed()[rows]
        if not ids.shape[1]:
            return None
        # padding repeats the row's last id; a row that has none rewrites a score with itself
        last = ids[:, -1:]
        ids = ids.where(ids >= 0, last.clamp(min=0))
        values = scores.gather(1, ids)
        scores.scatter_(1, ids, values.where(last < 0, -torch.inf))
        return values.amax(1).to(torch.promote_types(scores.dtype, torch.float32))

    def _removed(self) -> Tensor:
        if self.padding_idx is None:
            return self.ids
        return torch.cat([self.ids, self.ids.new_full((len(self.ids), 1), self.padding_idx)], 1)

    @staticmethod
    def _masked(mask: Tensor, ids: Tensor) -> Tensor:
        inside = (ids >= 0) & (ids < mask.shape[-1])
        ids = ids.where(inside, 0)
        return inside & (mask.gather(1, ids) if mask.dim() == 2 else mask[ids])


def entries(
    target: Tensor,
    gains: Tensor | None,
    shape: tuple[int, int | None],
    device: torch.device,
    padding_idx: int | None,
    max_relevant: int | None,
    checks: Checks,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Bring target to ids [B, T] inside the catalogue, `listed` (not padding) and gains beside them."""
    rows, items = shape
    if not isinstance(target, Tensor):
        check_ids("target", target)
    check_strided("target", target)
    check_device("target", target, device)
    gain: Tensor | None = None
    if target.dtype == torch.bool or target.is_floating_point():
        if target.shape != (rows, items):
            raise ValueError(
                f"a {target.dtype} target is dense and must have the scores' shape {[rows, items]}, "
                f"got {list(target.shape)}; item ids are integers (target.long())"
            )
        if gains is not None:
            raise ValueError("gains belong beside id targets; a dense float target holds its own gains")
        ids = columns(target, max_relevant, checks)
        if target.is_floating_point():
            gain = target.gather(1, ids.clamp(min=0)).to(float_dtype(device))
    else:
        if target.shape == (rows, items) and target.dtype not in ID_DTYPES:
            raise TypeError(
                f"target is {describe(target)}: pass target.bool(), target.float() for grades, or int64 ids"
            )
        check_ids("target", target)
        ids = (target[:, None] if target.dim() == 1 else target).long()
        if ids.dim() != 2 or len(ids) != rows:
            raise ValueError(f"target ids must be [{rows}] or [{rows}, T] to fit the scores, got {list(target.shape)}")
        if gains is not None:
            if (
                not isinstance(gains, Tensor)
                or gains.shape != target.shape
                or gains.dtype in (torch.bool, torch.complex64)
            ):
                raise ValueError(
                    f"gains must be numbers in the shape of target {list(target.shape)}, got {describe(gains)}"
                )
            check_device("gains", gains, device)
            gain = (gains[:, None] if gains.dim() == 1 else gains).to(float_dtype(device))
        if ids.shape[1] == 0:
            ids = ids.new_full((rows, 1), -1)
            gain = None if gain is None else gain.new_zeros((rows, 1))
    listed = ids >= 0
    if padding_idx is not None:
        listed &= ids != padding_idx
    if checks.enabled:
        ordered = ids.where(listed, -1).sort(dim=1).values
        twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
        checks.reject("target_repeat", twice, lambda row: _repeat_detail(row, ids, target, items))
        if items is not None:
            beyond = ordered[:, -1] >= items
            checks.reject("target_range", beyond, lambda row: f"row {row} holds {int(ids[row].max())} of {items} items")
        if gain is not None:
            odd = (listed & ~gain.isfinite()).any(1)
            checks.reject("gains", odd, lambda row: f"row {row} is {shown(gain[row])}")
    if items is not None:
        listed &= ids < items
        ids = ids.clamp(0, items - 1)
    return ids, listed, gain


def columns(dense: Tensor, max_relevant: int | None, checks: Checks) -> Tensor:
    """Column numbers of each row's non-zero entries, padded with -1: int64 [B, T]."""
    rows = len(dense)
    if max_relevant is None:
        found = [
            torch.stack([row + here[0].start, column + here[1].start])
            for here, tile in tiles(dense, 1)
            for row, column in [tile.nonzero(as_tuple=True)]
        ]
        row, column = torch.cat(found, 1) if found else dense.new_empty((2, 0), dtype=torch.int64)
        size = torch.bincount(row, minlength=rows)
        width = max(1, int(size.max())) if rows else 1
        ids = torch.full((rows, width), -1, dtype=torch.int64, device=dense.device)
        ids[row, torch.arange(len(row), device=row.device) - (size.cumsum(0) - size)[row]] = column
        return ids
    width = check_k(max_relevant, "max_relevant")
    size = torch.zeros((rows, 1), dtype=torch.int64, device=dense.device)
    # one slot more than asked for: what does not fit, and every zero, lands there
    ids = torch.full((rows, width + 1), -1, dtype=torch.int64, device=dense.device)
    for (row, columns), tile in tiles(dense, 4):
        nonzero = tile != 0
        slot = nonzero.cumsum(1) + size[row]
        number = torch.arange(columns.start, columns.start + tile.shape[1], device=dense.device).expand(slot.shape)
        ids[row] = ids[row].scatter(1, (slot - 1).where(nonzero & (slot <= width), width), number)
        size[row] = slot[:, -1:]
    if checks.enabled:
        checks.reject("target_width", size[:, 0] > width, lambda row: f"row {row} has {int(size[row])} > {width}")
    return ids[:, :width]


def check_scores(scores: Tensor, dims: int) -> None:
    """Refuse scores of another kind, type or number of dimensions."""
    if not isinstance(scores, Tensor):
        raise TypeError(f"scores must be a tensor, got {describe(scores)}")
    if scores.dtype not in SCORE_DTYPES:
        cure = ""
        if dims == 2 and not scores.is_floating_point():
            cure = "; for lists of recommended item ids use Ranking.from_topk(item_ids, target)"
        raise TypeError(f"scores must be float64, float32, float16 or bfloat16, got {describe(scores)}{cure}")
    check_strided("scores", scores)
    if scores.dim() != dims or (dims == 2 and scores.shape[1] == 0):
        wanted = "[rows, items] with at least one item" if dims == 2 else "[entries]"
        hints = {1: "; flat (scores, target, indexes): Ranking.from_flat", 3: "; one position of each: scores[:, -1]"}
        hint = hints.get(scores.dim(), "") if dims == 2 else ""
        raise ValueError(f"scores must be {wanted}, got shape {list(scores.shape)}{hint}")


def check_ids(name: str, ids: Any) -> None:
    """Refuse anything but a tensor of signed integers."""
    if not isinstance(ids, Tensor):
        raise TypeError(
            f"{name} must be a tensor, got {describe(ids)}: torch.as_tensor({name}), or for lists of uneven length "
            "torch.nn.utils.rnn.pad_sequence(..., batch_first=True, padding_value=-1)"
        )
    if ids.dtype not in ID_DTYPES:
        raise TypeError(f"{name} must hold int64, int32 or int16, got {describe(ids)}")


def check_strided(name: str, tensor: Tensor) -> None:
    """Refuse sparse tensors."""
    if tensor.layout != torch.strided:
        raise TypeError(f"{name} is sparse ({tensor.layout}): pass this batch's item ids, or {name}.to_dense()")


def check_integer_target(target: Any, name: str) -> None:
    """Refuse targets that are not item ids."""
    if isinstance(target, Tensor) and (target.dtype == torch.bool or target.is_floating_point()):
        raise TypeError(
            f"{name} takes integer item ids as target, got {describe(target)}; dense targets: Ranking.from_scores"
        )
    check_ids("target", target)


def check_device(name: str, tensor: Tensor, device: torch.device) -> None:
    """Refuse a tensor on another device."""
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}, but the scores (or lists) are on {device}")


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Refuse a word that is not one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def describe(value: object) -> str:
    """Say what was given, for a message."""
    if isinstance(value, Tensor):
        return f"a {value.dtype} tensor of shape {list(value.shape)}"
    return f"{type(value).__name__}"


def _repeat_detail(row: int, ids: Tensor, target: Tensor, items: int | None) -> str:
    held = ids[row][ids[row] >= 0]
    if target.dim() == 2 and target.shape[1] == items and bool((held <= 1).all()):
        return f"target of shape {list(target.shape)} looks like a 0/1 matrix: pass target.bool()"
    values, counts = torch.unique(held, return_counts=True)
    hint = ""
    if target.dim() == 2 and target.shape[1] == items:
        hint = " (integers are item ids; for grades in the scores' shape pass target.float())"
    return f"row {row} holds item {int(values[counts > 1][0])} more than once{hint}"


def shown(values: Tensor) -> str:
    """Write a few entries of a row, for a message."""
    return str(values[:8].tolist()) + ("" if len(values) <= 8 else f" and {len(values) - 8} more")


def overlap_detail(row: int, ids: Tensor, shared: Tensor) -> str:
    """Say how many relevant items are excluded, and what can be done."""
    return (
        f"{int(shared.sum())} pairs, in row {row} item {int(ids[row][shared[row]][0])}. Unless ids are shifted, or the "
        "history holds the targets themselves: take them out of the target, or say what they mean: overlap='keep' "
        "(they stay candidates: repeat consumption), overlap='miss' (they cannot be hit) or overlap='error' (this)"
    )


def float_dtype(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on devices that have none."""
    return torch.float32 if device.type == "mps" else torch.float64
