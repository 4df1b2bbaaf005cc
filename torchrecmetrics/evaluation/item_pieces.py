"""`ItemPieces`: item embeddings of a tensor, a file or several tensors, with at most two pieces in memory at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from torchrecmetrics.core.checks import describe


def is_in_pieces(items: Any) -> bool:
    """Return whether items are an array, such as `numpy.memmap`, or a sequence of tensors or arrays."""
    return isinstance(items, (list, tuple)) or (not isinstance(items, Tensor) and hasattr(items, "__array__"))


class ItemPieces:
    """Iterable of item embeddings [n, d], piece by piece in the order of the items.

    Args:
        items: float [I, d] as one piece; or an array or a sequence, in pieces of at most `memory` bytes.
        memory: bytes of a piece.
        device: device to which pieces are moved.
    """

    def __init__(self, items: Any, memory: int, device: torch.device) -> None:
        self.is_whole: bool = not is_in_pieces(items)
        arrays = list(items) if isinstance(items, (list, tuple)) else [items]
        if not arrays:
            raise ValueError("items are an empty list")
        kinds = {
            (getattr(part, "shape", None) and tuple(part.shape[1:]), getattr(part, "dtype", None)) for part in arrays
        }
        # numpy's float64 equals None
        if len(kinds) > 1 or any(kind is None for kind in next(iter(kinds))) or arrays[0].ndim != 2:
            told = ", ".join(map(_described, arrays))
            raise ValueError(
                f"items must be embeddings [n, d] of one width and dtype, all arrays or all tensors, got {told}: "
                "tensor.float(), or array.astype('float32')"
            )
        head = _as_tensor(arrays[0][:1])
        self.dtype: torch.dtype = head.dtype
        self.width: int = head.shape[1]
        self.num_items: int = sum(map(len, arrays))
        rows = max(1, self.num_items if self.is_whole else memory // max(1, self.width * head.element_size()))
        self.longest: int = min(rows, max(map(len, arrays)))
        self._parts = [part[first : first + rows] for part in arrays for first in range(0, len(part), rows)]
        self._device = device
        stream: Any = torch.cuda.Stream
        self._stream = stream(device) if device.type == "cuda" and not self.is_whole else None

    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        """Yield each piece's first item id and embeddings [n, d], while the next piece is read."""
        if self.is_whole:
            yield from ((0, self._read(part)) for part in self._parts)
            return
        first = 0
        with ThreadPoolExecutor(1) as reader:
            waiting = reader.submit(self._read, self._parts[0]) if self._parts else None
            for following in (*self._parts[1:], None):
                if waiting is None:
                    break
                piece = waiting.result()
                waiting = None if following is None else reader.submit(self._read, following)
                if self._stream is not None:
                    current = torch.cuda.current_stream(self._device)
                    current.wait_stream(self._stream)
                    piece.record_stream(current)
                yield first, piece
                first += len(piece)

    def _read(self, part: Any) -> Tensor:
        piece = _as_tensor(part)
        if self._stream is None or piece.device.type != "cpu":
            return piece.to(self._device)
        with torch.cuda.stream(self._stream):
            return piece.pin_memory().to(self._device, non_blocking=True)


def _as_tensor(part: Any) -> Tensor:
    """Return a tensor as it is, or a tensor with a copy of an array, which may be a read-only file."""
    return part if isinstance(part, Tensor) else torch.tensor(part)


def _described(part: Any) -> str:
    """Describe a piece for a message: type, dtype and shape of an array, too."""
    has_dtype = not isinstance(part, Tensor) and hasattr(part, "dtype") and hasattr(part, "shape")
    return f"{describe(part)} of {part.dtype}, shape {list(part.shape)}" if has_dtype else describe(part)
