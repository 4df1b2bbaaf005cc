"""The calls of PyTorch's operators and of numpy that a run makes, and these alone: what is left is Python."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchrecmetrics import arrays
from torchrecmetrics.kernels import eager

#: Functions that may ask numpy.
BY_NUMPY: list[Callable[..., Any]] = [
    *(arrays.ascending, arrays.ascends, arrays.compare, arrays.in_order, arrays.in_turn),
    *(arrays.met_once, arrays.take_top_, arrays.true_places, eager._by_numpy),
]


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the calls of PyTorch's operators, and of `BY_NUMPY`, and what they are given."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
        self.operators = 0  # calls of these, those inside of others among them
        self._inside = False  # of a function that may ask numpy: it is one call

    @classmethod
    def of(cls, run: Callable[[], object]) -> Recorder:
        """Return the calls of a run that finds what is kept from one to the next."""
        run()
        recorded = cls()
        with recorded.listening():
            run()
        return recorded

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear all calls."""
        modules = [module for name, module in sys.modules.items() if name.startswith("torchrecmetrics")]
        with ExitStack() as patches:
            for module in modules:
                for name, found in list(vars(module).items()):
                    if any(found is function for function in BY_NUMPY):
                        patches.enter_context(patch.object(module, name, self._heard(found)))
            patches.enter_context(self)
            yield

    def _heard(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return function(*args, **kwargs)
            self.calls.append((function, args, kwargs))
            self._inside = True
            try:
                return function(*args, **kwargs)
            finally:
                self._inside = False

        return run

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with self:  # in inference mode calls that are made of others come whole
            parts = func.decompose(*args, **kwargs or {})
        if parts is not NotImplemented:
            return parts
        self.operators += 1
        if not self._inside:
            self.calls.append((func, args, kwargs or {}))
        return func(*args, **kwargs or {})

    def replay(self) -> None:
        """Make the calls again, and nothing between them; what they write in place moves on from run to run."""
        with torch.inference_mode():  # as an update does
            for func, args, kwargs in self.calls:
                func(*args, **kwargs)


def alone(run: Callable[[], object]) -> Callable[[], None]:
    """Return the calls that a run makes, and no others; they are recorded at the first time."""
    recorded: list[Recorder] = []

    def replay() -> None:
        if not recorded:
            recorded.append(Recorder.of(run))
        recorded[0].replay()

    return replay
