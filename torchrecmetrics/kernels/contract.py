"""`Question`, `Counts` and `Products`: the input and the output of every counting kernel.

Kernels know nothing of metrics, item ids of targets, ties or padding.

- `scores`: [B, I] in any float dtype and layout, read and never written; or `Products`, which are never in memory. NaN
  is not a candidate; `+inf` is a candidate.
- `Question`: the other input; `Counts`: the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Question(NamedTuple):
    """What a kernel counts: how many candidates of each row score higher than, or the same as, each threshold."""

    thresholds: Tensor
    """[B, T], in the scores' dtype: the scores of the relevant items, > -inf. NaN pads the row; its counts have no
    meaning."""
    depth: int | None = None
    """Ranks beyond `depth` need not be exact: where `better >= depth`, `better` and `equal` may be any such numbers.
    None = all counts are exact. Counts of parts of the catalogue add up with a `depth` too."""
    min_scores: Sequence[float] = ()
    """Finite numbers, the same for every row; `Counts.at_least` counts the candidates that reach them."""
    masks: Sequence[Tensor] = ()
    """Bool [I] or [B, I] (for `Products` [I]): True = the item is not a candidate."""
    removed: Tensor | None = None
    """[B, H], ascending: scores of further items that are not candidates and are not counted. -inf pads the row."""
    nan_is_rejected: bool = False
    """True = the caller leaves out rows with a NaN score, so their counts have no meaning."""

    def rows(self, rows: Tensor | slice) -> Question:
        """Return the question for some of the rows."""
        return self._replace(
            thresholds=self.thresholds[rows],
            masks=[mask[rows] if mask.dim() == 2 else mask for mask in self.masks],
            removed=None if self.removed is None else self.removed[rows],
        )


class Counts(NamedTuple):
    """The numbers of candidates that a kernel counted, as floats: float64 is exact up to 2^53."""

    better: Tensor
    """[B, T]: candidates that score higher than the threshold."""
    equal: Tensor
    """[B, T]: candidates whose score is the threshold; the relevant item is one of them."""
    at_least: Tensor | None
    """[B, len(min_scores)]: candidates that reach each minimum; None = there was no minimum."""
    highest: Tensor
    """[B]: the highest score of the row, masked items included; NaN if the row holds a NaN, 0 for `Products`."""


class Products(NamedTuple):
    """Scores [B, I] that are never stored: `users @ items.T + bias`, which the caller knows to be finite.

    Operands of the same 16-bit dtype are multiplied in this dtype, all others as float32, whose precision follows
    `torch.get_float32_matmul_precision()`; sums, bias and comparisons are float32.
    """

    users: Tensor
    """Float32, float16 or bfloat16 [B, d], of any strides."""
    items: Tensor
    """[I, d], in one of these dtypes."""
    bias: Tensor | None = None
    """Float32 [I]; -inf = the item is not a candidate."""

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
