"""Memory that is used again: fresh pages cost more than what is written to them."""

from __future__ import annotations

import math
import threading
from typing import Any

import torch
from torch import Tensor


class Scratch(threading.local):
    """A tensor's memory for one user, in each thread its own: what was handed out is overwritten by the next."""

    def __init__(self, at_most: int | None = None) -> None:
        self._flat: Tensor | None = None
        self._parts: dict[Any, Tensor] = {}  # of that, by shape and dtype: a view takes as long as a small comparison
        self._at_most = at_most  # so many numbers are kept

    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return a tensor that holds anything; always from the same device, and not while tensors are traced."""
        key = *shape, dtype
        if (part := self._parts.get(key)) is not None:
            return part
        size = math.prod(shape)
        flat = self._flat
        with torch.inference_mode(False):  # it may be written to outside
            if flat is None or flat.shape[0] < size or flat.dtype != dtype:
                flat = torch.empty(size, dtype=dtype, device=device)
                if self._at_most is None or size <= self._at_most:
                    self._flat = flat
                    self._parts.clear()
            part = flat[:size].view(shape)
        if flat is self._flat:
            if len(self._parts) >= 64:
                self._parts.clear()
            self._parts[key] = part
        return part
