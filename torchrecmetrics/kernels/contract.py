"""`Question`, `Counts` and `Products`: the input and the output of every counting kernel.

Nothing here knows of metrics, targets' ids, ties or padding.

- `scores`: [B, I] in any float dtype and layout, read and never written; or `Products`, which are never in memory. NaN
  is no candidate; `+inf` is one.
- `Question`: the input beside them; `Counts`: the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Question(NamedTuple):
    """Input of a kernel beside the scores."""

    thresholds: Tensor
    """[B, T], in the scores' dtype: scores to be placed, above -inf. NaN = not asked for: any answer."""
    depth: int | None = None
    """Places that matter: `better` and `equal` are exact where `better < depth`, elsewhere `better >= depth` is all
    that holds. None = exact everywhere. Counts add up over parts of the items, those of a `depth` too."""
    min_scores: Sequence[float] = ()
    """Finite numbers, the same for every row: how many candidates are >= each."""
    masks: Sequence[Tensor] = ()
    """Bool [I] or [B, I], True = no candidate; for products [I]."""
    removed: Tensor | None = None
    """[B, H], ascending: scores of further items that are no candidates, taken off the counts (-inf = none)."""
    nan_is_rejected: bool = False
    """True: a row that holds NaN is left out later, and any counts will do for it."""

    def rows(self, rows: Tensor | slice) -> Question:
        """Ask the same about some of the rows."""
        return self._replace(
            thresholds=self.thresholds[rows],
            masks=[mask[rows] if mask.dim() == 2 else mask for mask in self.masks],
            removed=None if self.removed is None else self.removed[rows],
        )


class Counts(NamedTuple):
    """Output of a kernel."""

    better: Tensor  # int64 [B, T], candidates > the threshold
    equal: Tensor  # int64 [B, T], candidates == the threshold
    at_least: Tensor | None  # int64 [B, len(min_scores)], candidates >= each minimum; None without
    highest: Tensor  # [B], the row's maximum, masked items included; NaN if it holds one; 0 for products


class Products(NamedTuple):
    """Scores [B, I] that are never in memory: `users @ items.T + bias`, finite as the caller knows.

    Operands of 16 bits are multiplied as they are, unlike ones and all others as float32, whose precision follows
    `torch.get_float32_matmul_precision()`; sums, bias and comparisons are float32.
    """

    users: Tensor  # float32, float16 or bfloat16 [B, d], of any strides
    items: Tensor  # the same kinds, [I, d]
    bias: Tensor | None = None  # float32 [I], -inf = no candidate

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and items."""
        return len(self.users), len(self.items)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the scores."""
        return torch.float32

    @property
    def device(self) -> torch.device:
        """Where the embeddings are."""
        return self.users.device
