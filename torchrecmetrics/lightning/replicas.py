"""Checks that all processes evaluate the same model: the first process's buffers, equal embeddings, equal scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed, nn

from torchrecmetrics.core.checks import describe
from torchrecmetrics.core.distributed import gathered, is_distributed, raise_on_all_ranks

_SKETCHES = 8
_PROBES = 8


@contextmanager
def buffers_of_the_first(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Set the module's buffers, such as BatchNorm's running statistics, to process 0's, and restore them at the end."""
    changed: list[tuple[Tensor, Tensor]] = []
    if is_distributed():
        # sparse and sharded tensors cannot be sent: a difference shows in the embeddings
        named = {name: b for name, b in module.named_buffers() if type(b) is Tensor and b.layout == torch.strided}
        _check_equal("the module's buffers are", {name: describe(buffer) for name, buffer in named.items()})
        buffers = list(named.values())
        for buffer, first in zip(buffers, _sent_by_the_first(buffers, device), strict=True):
            if not torch.equal(buffer, first):
                changed.append((buffer, buffer.clone()))
                buffer.copy_(first)
    try:
        yield
    finally:
        for buffer, own in changed:
            buffer.copy_(own)


def check_alike(embeddings: Mapping[str, Any]) -> None:
    """Refuse embeddings that differ between processes by more than rounding errors."""
    if not is_distributed():
        return
    _check_equal("embed returned", {name: describe(value) for name, value in embeddings.items()})
    for name, value in embeddings.items():
        if isinstance(value, Tensor) and value.dim() == 2 and value.is_floating_point():
            first, *others = gathered(_sketch(value))
            for process, other in enumerate(others, 1):
                far = max(abs(x - y) for x, y in zip(first[1:], other[1:], strict=True))
                if not far <= torch.finfo(value.dtype).eps ** 0.5 * max(first[0], other[0]):
                    raise ValueError(
                        f"embed returned other {name} on process {process} than on process 0: every process embeds "
                        "all users and items, from the same parameters and without chance (dropout, sampling)"
                    )


def check_scores_alike(function: Callable[[Tensor], Tensor], users: Tensor, device: torch.device) -> None:
    """Refuse a score function whose scores of a few users differ between processes by more than rounding errors."""
    if not is_distributed():
        return
    probes = users[torch.linspace(0, max(len(users) - 1, 0), min(_PROBES, len(users)), device="cpu").long()]
    with raise_on_all_ranks(device):
        scores = function(probes.to(device, copy=True)) if len(probes) else None
    _check_equal("the score function's results are", {"scores": describe(scores)})
    if type(scores) is not Tensor or scores.layout != torch.strided or not scores.is_floating_point():
        return
    (first,) = _sent_by_the_first([scores], device)
    tolerance = torch.finfo(scores.dtype).eps ** 0.5
    size = first.abs().double().masked_fill(~first.isfinite(), torch.nan).nanmedian().nan_to_num()
    near = torch.isclose(scores.double(), first.double(), tolerance, tolerance * size.item(), equal_nan=True)
    for process, equal in enumerate(gathered(bool(near.all()))):
        if not equal:
            raise ValueError(
                f"the score function returned other scores on process {process} than on process 0: every process "
                "scores its share of the users, from the same parameters and without chance (dropout, sampling)"
            )


def _check_equal(what: str, mine: dict[str, str]) -> None:
    """Refuse descriptions by name that differ between processes."""
    first, *others = gathered(mine)
    for process, other in enumerate(others, 1):
        for name in {**first, **other}:
            expected, value = first.get(name, "nothing"), other.get(name, "nothing")
            if expected != value:
                raise ValueError(
                    f"{what} not alike: {name} is {expected} on process 0 and {value} on process {process}"
                )


def _sent_by_the_first(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return process 0's values of the given tensors."""
    if not tensors:
        return []
    # one vector of bytes, which holds tensors of any dtype
    parts = [tensor.contiguous().reshape(-1).view(torch.uint8).to(device) for tensor in tensors]
    packed = torch.cat(parts)
    distributed.broadcast(packed, src=0)
    received = torch.split(packed, [len(part) for part in parts])
    return [
        part.clone().view(tensor.dtype).view(tensor.shape).to(tensor.device)
        for part, tensor in zip(received, tensors, strict=True)
    ]


def _sketch(matrix: Tensor) -> list[float]:
    """Return the norm of a matrix, and sums with random signs: sums of two matrices differ as much as the matrices."""
    generator = torch.Generator().manual_seed(0)
    matrix = matrix if matrix.dtype == torch.float64 else matrix.float()
    rows, columns = (
        torch.randint(0, 2, (_SKETCHES, length), generator=generator).mul(2).sub(1).to(matrix)
        for length in matrix.shape
    )
    norm = torch.linalg.vector_norm(matrix, dtype=torch.float64)
    sums = ((rows @ matrix) * columns).sum(1).double()
    found: list[float] = torch.cat([norm[None], sums]).nan_to_num().tolist()
    return found
