"""`Question`, `Counts` and `Products`: the input and the output of every counting kernel.

Kernels know nothing of metrics, item ids of targets, ties or padding.

- `scores`: [B, I] in any float dtype and layout, read and never written; or `Products`, which are never in memory. NaN
  is no candidate; `+inf` is a candidate.
- `Question`: the other input; `Counts`: the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Question(NamedTuple):
    """Input of a kernel besides the scores."""

    thresholds: Tensor
    """[B, T], in the scores' dtype: scores > -inf to rank. NaN = no threshold: its counts may be anything."""
    depth: int | None = None
    """Ranks that matter: `better` and `equal` are exact where `better < depth`; elsewhere only `better >= depth` is
    sure. None = exact everywhere. Counts over parts of the items may be added, with a `depth` too."""
    min_scores: Sequence[float] = ()
    """Finite numbers, the same for every row, for `Counts.at_least`."""
    masks: Sequence[Tensor] = ()
    """Bool [I] or [B, I], True = no candidate; for products [I]."""
    removed: Tensor | None = None
    """[B, H], ascending: scores of further items that are no candidates, subtracted from the counts (-inf = none)."""
    nan_is_rejected: bool = False
    """True = rows that hold NaN are left out later: their counts may be anything."""

    def rows(self, rows: Tensor | slice) -> Question:
        """Return the question for some of the rows."""
        return self._replace(
            thresholds=self.thresholds[rows],
            masks=[mask[rows] if mask.dim() == 2 else mask for mask in self.masks],
            removed=None if self.removed is None else self.removed[rows],
        )


class Counts(NamedTuple):
    """Output of a kernel."""

    better: Tensor  # float [B, T], candidates > the threshold; float64 counts exactly up to 2^53
    equal: Tensor  # float [B, T], candidates == the threshold
    at_least: Tensor | None  # float [B, len(min_scores)], candidates >= each minimum; None = no minimum
    highest: Tensor  # [B], the row's maximum, masked items included; NaN if the row holds NaN; 0 for products


class Products(NamedTuple):
    """Scores [B, I] that are never in memory: `users @ items.T + bias`, which the caller knows to be finite.

    Operands of the same 16-bit dtype are multiplied in this dtype, all others as float32, whose precision follows
    `torch.get_float32_matmul_precision()`; sums, bias and comparisons are float32.
    """

    users: Tensor  # float32, float16 or bfloat16 [B, d], of any strides
    items: Tensor  # [I, d], of the same dtypes
    bias: Tensor | None = None  # float32 [I], -inf = no candidate

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and number of items."""
        return len(self.users), len(self.items)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the scores."""
        return torch.float32

    @property
    def device(self) -> torch.device:
        """Device of the embeddings."""
        return self.users.device
