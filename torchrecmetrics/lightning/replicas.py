"""Checks that all processes evaluate the same model: the first process's buffers, equal embeddings or scores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed, nn

from torchrecmetrics.core.checks import describe
from torchrecmetrics.core.distributed import gathered, is_distributed

_MAX_ROWS = 1000
"""Maximum number of rows of embeddings or scores that processes compare."""


@contextmanager
def buffers_of_the_first(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Set the module's buffers, such as BatchNorm's running statistics, to process 0's, and restore them at the end."""
    changed: list[tuple[Tensor, Tensor]] = []
    for buffer in module.buffers() if is_distributed() else ():
        if type(buffer) is Tensor and buffer.layout == torch.strided:  # others show in the embeddings
            changed.append((buffer, buffer.clone()))
            buffer.copy_(_sent_by_the_first(buffer, device))
    try:
        yield
    finally:
        for buffer, values in changed:
            buffer.copy_(values)


def check_equal_on_all(name: str, values: Any, device: torch.device) -> None:
    """Raise if some rows of embeddings or scores differ between processes by more than rounding errors."""
    if not is_distributed():
        return
    shapes = gathered(describe(values))
    is_equal = [shape == shapes[0] for shape in shapes]
    if all(is_equal) and type(values) is Tensor and values.layout == torch.strided and values.is_floating_point():
        rows = torch.linspace(0, max(len(values) - 1, 0), min(_MAX_ROWS, len(values)), device="cpu").long()
        values = values[rows.to(values.device)]
        reference = _sent_by_the_first(values, device)
        tolerance = torch.finfo(values.dtype).eps ** 0.5
        size = reference.abs().double().masked_fill(~reference.isfinite(), torch.nan).nanmedian().nan_to_num()
        atol = tolerance * size.item()
        is_close = torch.isclose(values.double(), reference.double(), tolerance, atol, equal_nan=True)
        is_equal = gathered(bool(is_close.all()))
    if not all(is_equal):
        process = is_equal.index(False)
        both = f" ({shapes[0]}, {shapes[process]})" if shapes[0] != shapes[process] else ""
        raise ValueError(
            f"processes 0 and {process} have different {name}{both}: embed must return the same on every process, for "
            "all users and items, from the same parameters and without randomness (dropout, sampling)"
        )


def _sent_by_the_first(tensor: Tensor, device: torch.device) -> Tensor:
    """Return process 0's values of a tensor."""
    # as bytes, since some backends lack some dtypes
    sent = tensor.detach().to(device, copy=True).contiguous().reshape(-1).view(torch.uint8)
    distributed.broadcast(sent, src=0)
    return sent.view(tensor.dtype).view(tensor.shape).to(tensor.device)
