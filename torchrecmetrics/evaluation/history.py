"""`History`: the excluded items of each user, as interactions and masks of items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from torchrecmetrics.core.checks import as_interactions
from torchrecmetrics.core.distributed import fingerprint
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.evaluation.embeddings import TargetDevice
from torchrecmetrics.inputs.base import SelectedItems
from torchrecmetrics.inputs.exclude import Exclude

Histories: TypeAlias = Interactions | Tensor | Sequence[Interactions | Tensor]
"""Types of `exclude=` for a whole catalogue: interactions, bool [I] for all users alike, or a tuple of these."""


def histories(exclude: Any) -> Sequence[Any]:
    """Return one, several or no histories as a sequence."""
    if exclude is None:
        return ()
    return exclude if type(exclude) in (tuple, list) else (exclude,)  # SelectedItems and Split are one argument


class History:
    """Excluded items of each user, as interactions and masks of items."""

    def __init__(self, exclude: Histories | None, num_items: int, place: TargetDevice) -> None:
        self.parts: list[Interactions] = []
        self.masks: list[Tensor] = []
        for part in histories(exclude):
            if isinstance(part, Interactions):
                if part.num_items != num_items:
                    raise ValueError(f"exclude has {part.num_items} items, the scores have {num_items}")
                self.parts.append(place.move("exclude", part))
            elif isinstance(part, Tensor) and part.dtype == torch.bool and part.shape == (num_items,):
                self.masks.append(place.move("exclude", part))
            else:
                what = f"{part.dtype} {list(part.shape)}" if isinstance(part, Tensor) else type(part).__name__
                if isinstance(part, SelectedItems):
                    what += ": pass the Interactions whole, without select"
                elif (whole := as_interactions("exclude", part)) is not None:
                    what += f": pass {whole}"
                elif isinstance(part, Tensor) and part.dtype == torch.uint8 and part.shape == (num_items,):
                    what += ": pass exclude.bool()"
                raise TypeError(f"exclude must be Interactions, bool [{num_items}] or a tuple of these, got {what}")

    def lengths(self, others: Tensor) -> Tensor:
        """Return `others` plus the number of excluded items of each user, masks apart, int64 [U] on the host."""
        total = others
        for part in self.parts:
            if part.num_users != len(others):
                raise ValueError(f"exclude has {part.num_users} users, expected {len(others)}")
            total = total + part.host_degree
        return total

    def select(self, ids: Tensor) -> Exclude | None:
        """Return the excluded items of users as the kernel's `exclude`; None if nothing is excluded."""
        chosen = (*(part.select(ids).items for part in self.parts), *self.masks)
        return chosen or None

    def excluded(self, ids: Tensor) -> Tensor | None:
        """Return the excluded items of users without the masks, int64 [b, H], negative = padding; None if no parts."""
        parts = [part.select(ids).items for part in self.parts]
        return torch.cat(parts, 1) if parts else None

    def fingerprint(self) -> list[object]:
        """Return hashes of the parts and masks, to compare histories across processes; costs host syncs."""
        return [*(fingerprint(part.keys) for part in self.parts), *map(fingerprint, self.masks)]

    def holds(self, target: Interactions) -> Tensor:
        """Return which pairs of the ground truth are excluded, bool [E]."""
        both = torch.zeros(len(target), dtype=torch.bool, device=target.device)
        keys = target.keys
        for part in self.parts:
            if len(part):
                known = part.keys  # ascending
                both |= known[torch.searchsorted(known, keys).clamp(max=len(known) - 1)] == keys
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
        if not self.parts and not self.masks:
            return
        if cure is None:
            alone = len(self.parts) == 1 and not self.masks
            cure = "target.without(exclude)" if alone else "target.without(part), for each part of exclude,"
        asked = torch.zeros(target.num_users, dtype=torch.bool, device=target.device)
        asked[ids.to(target.device)] = True
        both = self.holds(target) & asked[target.users]
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
