"""`Negatives`: rankings from the score of one positive per row and the scores of its negatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchrecmetrics import kernels
from torchrecmetrics.core.arrays import working
from torchrecmetrics.core.checks import (
    SCORE_DTYPES,
    Checks,
    check_device,
    check_ids,
    check_strided,
    check_tensor,
    describe,
)
from torchrecmetrics.core.options import Needs, Options
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.inputs.base import BatchInput
from torchrecmetrics.inputs.ties import TargetCounts, rank_counts
from torchrecmetrics.kernels import Question
from torchrecmetrics.kernels.thresholds import without_nan


@dataclass(frozen=True, eq=False, repr=False)
class Negatives(BatchInput):
    """The score of one positive per row and the scores of its negatives: rank = 1 + negatives that score higher.

    A negative that is the positive itself has the same score, and counts as a tie: leave it out, or write `-inf`. A row
    without a negative is an error, since its positive would always be a hit.

    Args:
        positive: float [B] or [B, 1], the score of the one relevant item of each row; `-inf` = not a candidate.
        negative: the scores of the other candidates in the same dtype: [B, N], `-inf` = none; or [N], one pool for
            all positives, which is sorted once (memory for B + N numbers). A flat tensor of B * N numbers is a
            pool, too: reshape it to [B, N] where each row has negatives of its own.
        lengths: integer [B], how many of a row's N negatives count, from the first on; only for negatives [B, N].

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> positive, negative = torch.tensor([0.5, 0.2]), torch.tensor([[0.9, 0.1, 0.3], [0.4, 0.2, 0.1]])
        >>> trm.Negatives(positive, negative).ranking().ranks  # behind 0.9; behind 0.4, tied with 0.2
        tensor([[2.0000],
                [2.5000]], dtype=torch.float64)
    """

    positive: Tensor
    negative: Tensor
    lengths: Tensor | None = None

    @torch.no_grad()
    def rank(self, needs: Needs, options: Options) -> Ranking:
        """Count the negatives that score higher than the positive, and as high."""
        if needs.list_depth or needs.history:
            raise ValueError("scores of negatives do not name items, which metrics of the lists read")
        positive, negative = _check_scores(self.positive, self.negative), self.negative
        checks = Checks(options.validate_args, positive.device, len(positive))
        wrong = positive.isnan() | (positive == torch.inf)
        checks.reject("scores", wrong, lambda row: f"the positive of row {row} scores {positive[row, 0]}")
        if negative.dim() == 1:
            counted = _count_pool(positive, negative, self.lengths)
        else:
            counted = _count_rows(positive, _shortened(negative, self.lengths, checks), options)
        better, equal, num_negatives, highest = counted
        high = ~(highest < torch.inf)
        checks.reject("scores", high, lambda row: f"the highest negative of row {row} scores {highest[row]}")
        checks.reject("negatives", num_negatives == 0, lambda row: f"row {row}")
        candidate = positive > -torch.inf
        counts = TargetCounts(
            relevant=torch.ones_like(candidate),
            penalised=None,
            gains=None,
            missing=~candidate,
            better=better,
            group_size=equal + 1,
            num_ranks=negative.shape[-1] + 1,
            num_ranked=num_negatives + candidate[:, 0],
        )
        return rank_counts(counts, needs, options, checks, made_with=("ties",))


class _Counted(NamedTuple):
    better: Tensor  # [B, 1], negatives that score higher, integers or floats
    equal: Tensor  # [B, 1], negatives of the same score
    num_negatives: Tensor  # [B]
    highest: Tensor  # [B], the highest negative; NaN if a negative is NaN


def _count_rows(positive: Tensor, negative: Tensor, options: Options) -> _Counted:
    thresholds = positive.where(positive > -torch.inf, torch.nan)
    question = Question(thresholds, min_scores=[torch.finfo(negative.dtype).min])
    counts = kernels.count(negative, question, kernels.choose(options.kernels, negative.device, negative.numel()))
    assert counts.at_least is not None
    return _Counted(counts.better, counts.equal, counts.at_least[:, 0], counts.highest)


def _count_pool(positive: Tensor, pool: Tensor, lengths: Tensor | None) -> _Counted:
    if lengths is not None:
        raise ValueError("lengths are those of rows: give negatives [B, N] with them, or the pool [N] without")
    pool, asked = working(pool), working(positive[:, 0]).contiguous()
    ascending = without_nan(pool, -torch.inf).sort().values
    behind = torch.searchsorted(ascending, asked, right=True)
    equal = behind - torch.searchsorted(ascending, asked)
    num_negatives = (ascending > -torch.inf).sum().expand(len(positive))
    return _Counted((len(pool) - behind)[:, None], equal[:, None], num_negatives, pool.amax().expand(len(positive)))


def _shortened(negative: Tensor, lengths: Tensor | None, checks: Checks) -> Tensor:
    """Return the negatives with `-inf` after the first `lengths` of each row; without `lengths` as they are."""
    if lengths is None:
        return negative
    rows, width = negative.shape
    check_ids("lengths", lengths)
    check_device("lengths", lengths, negative.device)
    if lengths.shape != (rows,):
        raise ValueError(f"lengths must be [{rows}], one per row of negative, got {list(lengths.shape)}")
    outside = (lengths < 0) | (lengths > width)
    checks.reject("negatives", outside, lambda row: f"row {row} is to have {int(lengths[row])} of {width}")
    beyond = torch.arange(width, device=negative.device) >= lengths[:, None]
    return negative.masked_fill(beyond, -torch.inf)


def _check_scores(positive: Tensor, negative: Tensor) -> Tensor:
    """Return the positives as [B, 1]; raise unless both have accepted dtypes, and fit in shape, dtype and device."""
    for name, scores in (("positive", positive), ("negative", negative)):
        check_tensor(name, scores)
        check_strided(name, scores, "-torch.inf")
        if scores.dtype not in SCORE_DTYPES:
            raise TypeError(f"{name} must be float64, float32, float16 or bfloat16, got {describe(scores)}")
    check_device("negative", negative, positive.device)
    if positive.dtype != negative.dtype:
        raise TypeError(f"positive and negative must have one dtype, got {positive.dtype} and {negative.dtype}")
    if positive.dim() == 1:
        positive = positive[:, None]
    if positive.dim() != 2 or positive.shape[1] != 1:
        raise ValueError(
            f"positive must be [B], one relevant item per row, got {list(positive.shape)}; for rows of several "
            "Sessions(scores, labels, indexes)"
        )
    if negative.dim() not in (1, 2) or (negative.dim() == 2 and len(negative) != len(positive)):
        raise ValueError(
            f"negative must be [{len(positive)}, N], or one pool [N] for all positives, got {list(negative.shape)}"
        )
    if negative.shape[-1] == 0:
        raise ValueError("negative holds no score: a positive alone is always a hit")
    return positive
