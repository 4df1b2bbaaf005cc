"""`Exclusions`: the excluded items of each user, as interactions and masks of items, on the device of the scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

from torchrecmetrics.core.checks import as_interactions, warn_caller
from torchrecmetrics.core.cures import Cure, CuredError
from torchrecmetrics.core.distributed import fingerprint
from torchrecmetrics.core.options import Options
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.evaluation.target_device import TargetDevice
from torchrecmetrics.inputs.batch_input import SelectedItems
from torchrecmetrics.inputs.exclusion import Exclude

Matrix: TypeAlias = Tensor | NDArray[Any]
"""Types of a matrix [U, I]: a tensor or an array, dense or sparse; scipy's sparse matrices have no type."""
Histories: TypeAlias = Interactions | Matrix | Sequence[Interactions | Matrix]
"""Types of `exclude=` for a whole catalogue: interactions, a matrix [U, I], bool [I] for all users, or several."""


def exclude_entries(exclude: Any) -> Sequence[Any]:
    """Return what `exclude=` holds, one entry, several or none, as a sequence."""
    if exclude is None:
        return ()
    return exclude if type(exclude) in (tuple, list) else (exclude,)  # SelectedItems and Split are one argument


def wrong_exclusion(excluded: Any, num_items: int) -> TypeError:
    """Return the error for an excluded entry that is neither `Interactions` nor bool [I]."""
    what = f"{excluded.dtype} {list(excluded.shape)}" if isinstance(excluded, Tensor) else type(excluded).__name__
    if isinstance(excluded, SelectedItems):
        what += ": pass the Interactions whole, without select"
    elif (cure := as_interactions("exclude", excluded)) is not None:
        what += f": pass {cure}"
    elif isinstance(excluded, Tensor) and excluded.dtype == torch.uint8 and excluded.shape == (num_items,):
        what += ": pass exclude.bool()"
    return TypeError(f"exclude must be Interactions, bool [{num_items}] or a tuple of these, got {what}")


class Exclusions:
    """Excluded items of each user, as interactions and masks of items."""

    def __init__(self, exclude: Histories | None, num_items: int, target_device: TargetDevice) -> None:
        self.interactions: list[Interactions] = []
        self.masks: list[Tensor] = []
        """Items excluded for all users, bool [I] each."""
        for excluded in exclude_entries(exclude):
            if isinstance(excluded, Interactions):
                if excluded.num_items != num_items:
                    raise ValueError(f"exclude has {excluded.num_items} items, the scores have {num_items}")
                self.interactions.append(target_device.move("exclude", excluded))
            elif isinstance(excluded, Tensor) and excluded.dtype == torch.bool and excluded.shape == (num_items,):
                self.masks.append(target_device.move("exclude", excluded))
            else:
                raise wrong_exclusion(excluded, num_items)

    def lengths(self, others: Tensor) -> Tensor:
        """Return `others` plus the number of excluded items of each user, without masks, int64 [U] on the host."""
        total = others
        for interactions in self.interactions:
            if interactions.num_users != len(others):
                raise ValueError(f"exclude has {interactions.num_users} users, expected {len(others)}")
            total = total + interactions.host_degree
        return total

    def num_without(self, ids: Tensor) -> int:
        """Return the number of users without excluded items, masks aside; 0 without interactions."""
        if not self.interactions:
            return 0
        none = torch.zeros(self.interactions[0].num_users, dtype=torch.int64, device="cpu")
        return int((self.lengths(none)[ids] == 0).sum())

    def select(self, ids: Tensor) -> Exclude | None:
        """Return the excluded items of users as the kernel's `exclude`; None if nothing is excluded."""
        excluded = (*(interactions.select(ids).items for interactions in self.interactions), *self.masks)
        return excluded or None

    def hashes(self) -> list[object]:
        """Return hashes of interactions and masks, to compare exclusions across processes; costs host syncs."""
        return [*(fingerprint(interactions.keys) for interactions in self.interactions), *map(fingerprint, self.masks)]

    def holds(self, target: Interactions) -> Tensor:
        """Return which pairs of the ground truth are excluded, bool [E]."""
        both = torch.zeros(len(target), dtype=torch.bool, device=target.device)
        keys = target.keys
        for interactions in self.interactions:
            if len(interactions):
                excluded = interactions.keys  # ascending
                both |= excluded[torch.searchsorted(excluded, keys).clamp(max=len(excluded) - 1)] == keys
        for mask in self.masks:
            both |= mask[target.items]
        return both

    def check_overlap(self, target: Interactions, ids: Tensor, options: Options, cure: Cure | None = None) -> None:
        """Raise if relevant items are also excluded, unless the options say what such a pair means.

        Args:
            target: ground truth.
            ids: users to check.
            options: the metrics' options; an item that is padding is not checked.
            cure: how to remove such pairs from the ground truth; None = a method of `Interactions`.
        """
        if options.overlap_rule != "error":
            return
        if cure is None:
            is_single = len(self.interactions) == 1 and not self.masks
            remove = "target.without(exclude)" if is_single else "target.without(part), for each part of exclude,"
            cure = Cure(remove, "without")
        is_checked = torch.zeros(target.num_users, dtype=torch.bool, device=target.device)
        is_checked[ids.to(target.device)] = True
        both = self.holds(target) & is_checked[target.users]
        if options.padding_idx is not None:
            both &= target.items != options.padding_idx
        if target.values is not None:
            both &= target.values > 0
        count = int(both.sum())
        if count:
            keep, miss = Cure.option("overlap", "keep"), Cure.option("overlap", "miss")
            sides = Cure(f"of target {'is' if count == 1 else 'are'} also in exclude", "sides")
            lets = f"; {keep} leaves them as candidates (repeat consumption)" if not self.masks else ""
            pairs = torch.stack([target.users[both][:3], target.items[both][:3]], 1).tolist()
            if target.user_ids is not None and target.item_ids is not None:
                pairs = [[target.user_ids[user], target.item_ids[item]] for user, item in pairs]
            raise CuredError(
                f"{count} (user, item) {'pair' if count == 1 else 'pairs'} {sides}, such as {pairs}. {cure} takes them "
                f"out of the test{lets}; {miss} counts them as misses",
                *(sides, cure, keep, miss),
            )


def numbered_as(target: Interactions, exclude: Any) -> tuple[Any, ...]:
    """Return the entries of `exclude`, interactions with the row numbers of the ground truth."""
    return tuple(
        matched(excluded, target) if isinstance(excluded, Interactions) else excluded
        for excluded in exclude_entries(exclude)
    )


def matched(history: Interactions, target: Interactions, name: str = "exclude") -> Interactions:
    """Return a history with the row numbers of the ground truth.

    Raises:
        ValueError: for ids of the ground truth in another spelling, and for a history without a match.
    """
    numbered, text = _matched(history, target, name)
    if text is not None:
        raise ValueError(text)
    return numbered


def warn_of_rows(target: Interactions, exclude: Any, sides: Sequence[str]) -> None:
    """Warn if a model's rows of a side, "user" or "item", could be those of a history with as many other ids."""
    histories = exclude_entries(exclude)
    for index, history in enumerate(histories):
        name = "exclude" if len(histories) == 1 else f"exclude[{index}]"
        for side in sides:
            ids, others = (getattr(pairs, f"{side}_ids", None) for pairs in (target, history))
            if ids is None or others is None or ids == others or len(ids) != len(others):
                continue
            row = int((ids.rows_in(others) != torch.arange(len(ids), device="cpu")).nonzero()[0])
            warn_caller(
                f"row {row} of the model's {side}s is taken as target's {ids[row]!r}, not {name}'s {others[row]!r}: if "
                f"it is {name}'s, pass target.recode({side}_ids={name}.{side}_ids), else "
                f"{name}.recode({side}_ids=target.{side}_ids)"
            )


def histories_that_meet(target: Interactions, exclude: Any) -> Any:
    """Return `exclude` without histories that do not match the ground truth, with a warning for each."""
    if exclude is None:
        return None
    entries = []
    for excluded in exclude_entries(exclude):
        text = _matched(excluded, target, "exclude")[1] if isinstance(excluded, Interactions) else None
        if text is None:
            entries.append(excluded)
        else:
            warn_caller(text)
    return tuple(entries)


def _matched(history: Interactions, target: Interactions, name: str) -> tuple[Interactions, str | None]:
    """Return a history with the row numbers of the ground truth, and an error if it meets no user, or no item."""
    numbered = history.numbered_as(target, name)
    if len(numbered) or not len(history):
        return numbered, None
    for side, ids, known, cure in (
        ("user", history.user_ids, target.user_ids, f"leave {name}= out if these users are new"),
        ("item", history.item_ids, target.item_ids, "are these ids of one kind?"),
    ):
        if ids is not None and known is not None and (side == "item" or not bool((ids.rows_in(known) >= 0).any())):
            what = f"no {side} of {name} is {'an' if side == 'item' else 'a'} {side} of target, such as {ids[0]!r}"
            return numbered, f"{what} and {known[0]!r}: {cure}"
    return numbered, f"no item of {name} is an item of target: are these ids of one kind?"
