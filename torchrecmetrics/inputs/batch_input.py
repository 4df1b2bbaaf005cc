"""`BatchInput`: base class of the inputs of `update`, which can also make a `Ranking` outside a metric."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.core.checks import (
    Checks,
    check_device,
    check_ids,
    check_k,
    check_score_threshold,
    describe,
    is_dense,
)
from torchrecmetrics.core.options import Needs, Options, RankingOptions
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.inputs.jagged import Spans, as_jagged, as_spans

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class BatchInput:
    """Data of one batch; subclasses are frozen data classes with a method `rank`."""

    def rank(self, needs: Needs, options: Options) -> Ranking:
        """Return the ranking, as deep as `needs` says; raise for bad values that are checked at once."""
        raise NotImplementedError

    @torch.no_grad()
    def ranking(
        self,
        depth: int | None = None,
        *,
        items: bool = False,
        score_threshold: float | None = None,
        **options: Unpack[RankingOptions],
    ) -> Ranking:
        """Return the ranking outside a metric.

        Args:
            depth: number of top ranks; relevant items beyond it get rank `inf`. None = the whole list.
            items: also keep the ids of the top `depth` items, as `Ranking.items`.
            score_threshold: count the candidates with score >= this in `num_recommended`.
            options: `ties`, `padding_idx`, `overlap`, `max_relevant`, `validate_args`, `kernels`, as metrics take them.

        Raises:
            TypeError: for dtypes and options that are not accepted.
            ValueError: for shapes or devices that do not fit and, on the CPU, for bad values.
        """
        depth = None if depth is None else check_k(depth, "depth")
        if items and depth is None:
            raise ValueError("items=True keeps the top items: pass their number as depth=")
        threshold = check_score_threshold(score_threshold)
        list_depth = (depth or 0) if items else 0
        has_history = getattr(self, "history", None) is not None
        needs = Needs(depth, num_ranked=True, score_threshold=threshold, list_depth=list_depth, history=has_history)
        return self.rank(needs, Options(**options))

    def read_history(self, needs: Needs, checks: Checks) -> Tensor | None:
        """Return the input's `history` as item ids, int64 [rows, H], negative = padding; None if it was not given.

        Raises:
            TypeError: for anything but ids [B] or [B, H], a result of `Interactions.select`, or jagged ids.
            ValueError: for shapes and devices that do not fit.
        """
        history: Any = getattr(self, "history", None)
        if history is None:
            return None
        if needs.history:
            object.__setattr__(self, "_history_was_read", True)  # of a frozen class
        history = history.items if isinstance(history, SelectedItems) else history
        if (jagged := as_jagged("history", history)) is not None:
            history = as_spans("history", jagged, checks)
        if isinstance(history, Spans):
            history = history.padded(-1)
        if isinstance(history, Tensor) and history.dtype == torch.bool:
            raise TypeError(
                "history must be item ids [B, H], negative = padding; pass a mask [B, I] of removed items as exclude="
            )
        check_ids("history", history)
        check_device("history", history, checks.device)
        rows = checks.num_rows
        if history.dim() not in (1, 2) or len(history) != rows:
            raise ValueError(f"history ids must be [{rows}] or [{rows}, H], got {list(history.shape)}")
        ids: Tensor = (history[:, None] if history.dim() == 1 else history).long()
        return ids

    def excluding(self, items: Tensor) -> Self:
        """Return the input with further excluded items, ids [B, H].

        Raises:
            ValueError: for an input that cannot exclude items.
        """
        if not hasattr(self, "exclude"):
            raise ValueError(f"exclude= cannot change {type(self).__name__}: exclude the items in the step")
        excluded = () if self.exclude is None else self.exclude
        return replace(self, exclude=(excluded, items))  # type: ignore[type-var]

    def has_unread_history(self, needs: Needs) -> bool:
        """Return True for a history that no metric has read so far, where nothing is excluded."""
        is_read = needs.history or getattr(self, "_history_was_read", False)
        return getattr(self, "history", None) is not None and getattr(self, "exclude", None) is None and not is_read

    def __repr__(self) -> str:
        names = [field.name for field in fields(self) if getattr(self, field.name) is not None]  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(f'{name}=...' for name in names)})"


class SelectedItems(NamedTuple):
    """Items of a batch of users, padded to one width, and their values: a result of `Interactions.select`."""

    items: Tensor
    """Item ids of each user, int64 [B, T], ascending, -1 = padding; T >= 1."""
    values: Tensor | None
    """Value of each item, [B, T], 0 = padding; None if the interactions have no values."""


def no_target(rows: int, device: torch.device) -> Tensor:
    """Return a target without relevant items, int64 [rows, 1]."""
    return torch.full((rows, 1), -1, dtype=torch.int64, device=device)


def refuse_dense(name: str, target: Any, where: str) -> None:
    """Raise unless a target, given with `where`, is item ids."""
    if is_dense(target):
        raise TypeError(f"{name} with {where} must be item ids [B] or [B, T], got {describe(target)}")
