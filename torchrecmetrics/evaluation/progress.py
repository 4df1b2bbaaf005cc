"""`ProgressBar`: number of users done, shown by tqdm or by a function of the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from torch import Tensor

from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.core.checks import extra

Progress: TypeAlias = Callable[[int, int], None]
"""A function of (users done, users in all)."""


class ProgressBar:
    """Display of progress: a tqdm bar, a function of the caller, or nothing."""

    def __init__(self, shown: bool | Progress, total: int, on_this_process: bool = True, unit: str = "user") -> None:
        if not isinstance(shown, bool) and not callable(shown):
            what = "True, False or a function of (users done, users in all)"
            raise TypeError(f"progress must be {what}, got {shown!r} ({type(shown).__name__})")
        self._bar: Any = None
        self._tell = shown if callable(shown) and on_this_process else None
        self._done, self._total = 0, total
        if shown is True and on_this_process:
            try:
                from tqdm.auto import tqdm
            except ImportError as error:
                raise ImportError(f"progress=True needs tqdm: {extra('progress')}") from error
            self._bar = tqdm(total=total, unit=unit)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, batch: Tensor, collection: RecMetricCollection | None) -> None:
        """Count a batch of users as done, and show the running value of a collection's leading metric."""
        self._done += len(batch)
        if self._tell is not None:
            self._tell(self._done, self._total)
        if self._bar is None:
            return
        self._bar.update(len(batch))
        if collection is not None:
            leading = collection.leading
            result = collection.evaluator._local_results()[leading.key]
            self._bar.set_postfix({leading.label: f"{result.value:.4f}"})
