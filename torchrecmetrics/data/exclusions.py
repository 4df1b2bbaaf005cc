"""`Exclusions`: the excluded items of each user, as interactions and masks of items, on the device of the scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from torchrecmetrics.core.checks import as_interactions
from torchrecmetrics.core.distributed import fingerprint
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.inputs.base import SelectedItems
from torchrecmetrics.inputs.exclude import Exclude

Matrix: TypeAlias = Tensor | NDArray[Any]
"""Types of a matrix [U, I]: a tensor or an array, dense or sparse; scipy's sparse matrices have no type."""
Histories: TypeAlias = Interactions | Matrix | Sequence[Interactions | Matrix]
"""Types of `exclude=` for a whole catalogue: interactions, a matrix [U, I], bool [I] for all users, or several."""
Thing = TypeVar("Thing", Tensor, Interactions)


def exclude_entries(exclude: Any) -> Sequence[Any]:
    """Return what `exclude=` holds, one entry, several or none, as a sequence."""
    if exclude is None:
        return ()
    return exclude if type(exclude) in (tuple, list) else (exclude,)  # SelectedItems and Split are one argument


class TargetDevice(NamedTuple):
    """Device on which scores are computed."""

    device: torch.device
    moves: bool
    """True if the caller named the device: tensors are moved to it; otherwise they must be on it already."""

    @classmethod
    def of(cls, device: str | torch.device | None, default: torch.device) -> TargetDevice:
        """Return the device that the caller named, or else `default`."""
        if device is None:
            return cls(default, False)
        try:
            named = torch.device(device)
        except (RuntimeError, TypeError):
            what = f"got {device!r} ({type(device).__name__})"
            raise ValueError(f"device must be a torch.device or the name of one, such as 'cuda:0', {what}") from None
        return cls(torch.empty(0, device=named).device, True)  # "cuda" is the current one, such as "cuda:0"

    def move(self, name: str, thing: Thing) -> Thing:
        """Return `thing` on the device; raise if it is elsewhere and the caller did not name the device."""
        if thing.device == self.device:
            return thing
        if not self.moves:
            raise ValueError(f"{name} is on {thing.device}, the scores are made on {self.device}: pass device=")
        return thing.to(self.device)


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
                what = (
                    f"{excluded.dtype} {list(excluded.shape)}"
                    if isinstance(excluded, Tensor)
                    else type(excluded).__name__
                )
                if isinstance(excluded, SelectedItems):
                    what += ": pass the Interactions whole, without select"
                elif (cure := as_interactions("exclude", excluded)) is not None:
                    what += f": pass {cure}"
                elif isinstance(excluded, Tensor) and excluded.dtype == torch.uint8 and excluded.shape == (num_items,):
                    what += ": pass exclude.bool()"
                raise TypeError(f"exclude must be Interactions, bool [{num_items}] or a tuple of these, got {what}")

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

    def excluded(self, ids: Tensor) -> Tensor | None:
        """Return the excluded items of users without the masks, int64 [b, H], negative = padding; None if no parts."""
        items = [interactions.select(ids).items for interactions in self.interactions]
        return torch.cat(items, 1) if items else None

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

    def check_overlap(
        self, target: Interactions, ids: Tensor, padding_idx: int | None, cure: str | None = None
    ) -> None:
        """Raise if relevant items are also excluded: the values would depend on the meaning of such a pair.

        Args:
            target: ground truth.
            ids: users to check.
            padding_idx: item that is padding, which is not checked.
            cure: how to remove such pairs from the ground truth; None = a method of `Interactions`.
        """
        if not self.interactions and not self.masks:
            return
        if cure is None:
            is_single = len(self.interactions) == 1 and not self.masks
            cure = "target.without(exclude)" if is_single else "target.without(part), for each part of exclude,"
        is_checked = torch.zeros(target.num_users, dtype=torch.bool, device=target.device)
        is_checked[ids.to(target.device)] = True
        both = self.holds(target) & is_checked[target.users]
        if padding_idx is not None:
            both &= target.items != padding_idx
        if target.values is not None:
            both &= target.values > 0
        count = int(both.sum())
        if count:
            keep = "; overlap='keep' lets them compete all the same (repeat consumption)" if not self.masks else ""
            pairs = torch.stack([target.users[both][:3], target.items[both][:3]], 1).tolist()
            if target.user_ids is not None and target.item_ids is not None:
                pairs = [[target.user_ids[user], target.item_ids[item]] for user, item in pairs]
            raise ValueError(
                f"{count} (user, item) {'pair of target is' if count == 1 else 'pairs of target are'} also in exclude, "
                f"such as {pairs}. {cure} takes them out of the test{keep}; overlap='miss' counts them as not found"
            )
