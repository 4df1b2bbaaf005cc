"""`TargetDevice`: the device on which scores are computed."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from torchrecmetrics.data.interactions import Interactions

Thing = TypeVar("Thing", Tensor, Interactions)


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
            raise ValueError(f"{name} is on {thing.device}, but scores are computed on {self.device}: pass device=")
        return thing.to(self.device)
