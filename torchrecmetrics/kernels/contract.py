"""`Question`, `Counts` and `Products`: the input and the output of every counting kernel; helpers of all kernels.

Kernels know nothing of metrics, item ids of targets, ties or padding.

- `scores`: [B, I] in any float dtype and layout, read and never written; or `Products`, which are never in memory. NaN
  is not a candidate; `+inf` is a candidate.
- `Question`: the other input; `Counts`: the output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import count_above, count_at_least, float_dtype, search


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


def with_min_scores(thresholds: Tensor, min_scores: Sequence[float]) -> Tensor:
    """Append the minimum scores to the thresholds of each row, [B, T + len(min_scores)]."""
    if not min_scores:
        return thresholds
    columns = [thresholds.new_full((len(thresholds), 1), min_score) for min_score in min_scores]
    return torch.cat([thresholds, *columns], 1)


def replace_nan(values: Tensor, instead: float) -> Tensor:
    """Replace NaN by `instead`; infinities stay."""
    return values.nan_to_num(nan=instead, posinf=torch.inf, neginf=-torch.inf)


def mask_(scores: Tensor, masks: Iterable[Tensor]) -> Tensor:
    """Write -inf over masked items, [I] or [B, I]; on the CPU a minimum is several times faster than `masked_fill_`."""
    for mask in masks:
        limit = mask.view(torch.uint8).to(scores.dtype).sub_(0.5).mul_(-torch.inf)  # True: -inf, False: inf
        torch.minimum(scores, limit, out=scores)
    return scores


def from_buckets(edge: Tensor, order: Tensor, reaching: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
    """Return the counts > and >= each edge, int64 [B, edges], in the order of the edges before they were sorted.

    `reaching[:, n]` scores reach exactly n of the ascending edges, and `same[:, n]` of these equal the n-th edge.
    """
    reached = reaching[:, 1:].flip(1).cumsum(1).flip(1)
    # scores equal to an edge are in the bucket of the last edge equal to it
    equal = same.gather(1, search(edge, edge, right=True))
    at_least = torch.empty_like(reached).scatter_(1, order, reached)
    return at_least - torch.empty_like(equal).scatter_(1, order, equal), at_least


def count_removed(removed: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    """Return the numbers of removed scores > and >= each edge, float [B, edges]."""
    dtype = float_dtype(removed.device)
    return count_above(removed, edges).to(dtype), count_at_least(removed, edges).to(dtype)


def to_counts(
    edges: Tensor, width: int, above: Tensor, at_least: Tensor, highest: Tensor, removed: Tensor | None
) -> Counts:
    """Return `Counts` from the counts > the first `width` edges and >= all edges, less the removed items."""
    dtype = float_dtype(edges.device)
    above, at_least = above.to(dtype), at_least.to(dtype)
    if removed is not None:
        fewer_above, fewer = count_removed(removed, edges)
        above, at_least = above - fewer_above[:, :width], at_least - fewer
    reached = None if width == at_least.shape[1] else at_least[:, width:]
    return Counts(better=above, equal=at_least[:, :width] - above, at_least=reached, highest=highest)
