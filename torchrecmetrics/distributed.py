"""Process helpers: gather objects, and raise an error of one process on all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import distributed

Thing = TypeVar("Thing")


def is_distributed() -> bool:
    """Return True if this process is one of several that can communicate."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def gathered(thing: Thing) -> list[Thing]:
    """Return the objects of all processes, in their order."""
    things: list[Thing] = [thing] * distributed.get_world_size()
    distributed.all_gather_object(things, thing)
    return things


@contextmanager
def raise_on_all_ranks(device: torch.device) -> Iterator[None]:
    """Raise an error of one process on all processes, as soon as the last of them has come to the end.

    Costs one all-reduce of a number on `device` where nothing is raised.
    """
    if not is_distributed():
        yield
        return
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
    failed = torch.tensor(int(error is not None), device=device)
    distributed.all_reduce(failed)
    if not failed:
        return
    told = gathered(None if error is None else f"{type(error).__name__}: {error}")
    if error is not None:
        raise error
    process, text = next((process, text) for process, text in enumerate(told) if text is not None)
    raise RuntimeError(f"process {process} failed with {text}")
