"""`never_waits`: a context in which calls that would wait for a GPU raise, on tensors of "meta" in its place.

"meta" has no values, and refuses by itself to read one: `item`, `nonzero`, `unique`, `bincount`, `cpu`. What it takes,
and a GPU takes only by waiting for the host, is refused here: copies from the CPU, numbers of Python that become a
tensor or an index, and masks as indices. (A fake "cuda" would not do: without CUDA, PyTorch cannot index its tensors.)
"""

import copy
from contextlib import contextmanager
from types import EllipsisType, NoneType

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

TENSORS_OF_NUMBERS = (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor)
INDEXING = (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_)
COPYING = (torch.ops.aten._to_copy, torch.ops.aten.copy_)


@contextmanager
def never_waits():
    """Raise at calls that would wait, where tensors of "meta" stand for those of a GPU."""
    with _NoNumbers(), _NoCopies():
        yield


class _NoNumbers(TorchFunctionMode):
    """Refuses to make tensors and indices of "meta" from numbers, which leave no trace below Python."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if func in (Tensor.__getitem__, Tensor.__setitem__) and args[0].is_meta:
            parts = (*(args[1] if isinstance(args[1], tuple) else args[1:2]), *args[2:])
            if not all(isinstance(part, (int, float, slice, Tensor, NoneType, EllipsisType)) for part in parts):
                raise AssertionError(f"{func.__name__} by numbers of Python waits for the device")
        if func in TENSORS_OF_NUMBERS and found.is_meta:
            raise AssertionError(f"{func.__name__} copies numbers to the device, which waits for it")
        return found


class _NoCopies(TorchDispatchMode):
    """Refuses copies between devices, and indices that are masks or on another device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        tensors = [part for part in tree_leaves((args, kwargs, found)) if isinstance(part, Tensor)]
        copies = func.overloadpacket in COPYING  # other calls take single numbers from the host without a copy
        if len({part.device for part in tensors if part.dim() or copies}) > 1:
            raise AssertionError(f"{func} copies between devices, which waits for them")
        if func.overloadpacket in INDEXING and any(part.dtype == torch.bool for part in args[1] if part is not None):
            raise AssertionError(f"{func} by a mask waits for the device")
        return found


def away(value):
    """Return a value with all its tensors on "meta": those of tuples, dicts and objects of this package."""
    if isinstance(value, Tensor):
        return value.to("meta")
    if isinstance(value, tuple):
        parts = map(away, value)
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, dict):
        return {name: away(part) for name, part in value.items()}
    if not type(value).__module__.startswith("torchrecmetrics."):
        return value
    moved = copy.copy(value)
    vars(moved).update(away(vars(value)))
    return moved
