"""`Negatives`: rankings from the score of one positive per row and the scores of its negatives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchrecmetrics import kernels
from torchrecmetrics.core.arrays import working
from torchrecmetrics.core.checks import (
    SCORE_DTYPES,
    Checks,
    check_choice,
    check_device,
    check_strided,
    check_tensor,
    describe,
)
from torchrecmetrics.core.options import Needs, Options
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.inputs.batch_input import BatchInput
from torchrecmetrics.inputs.from_counts import TargetCounts, rank_counts
from torchrecmetrics.kernels import Counts, Question
from torchrecmetrics.kernels.contract import replace_nan


@dataclass(frozen=True, eq=False, repr=False)
class Negatives(BatchInput):
    """The scores of one positive and of its negatives per row; the rank is 1 + the number of higher negatives.

    If the positive is among the negatives, it counts as a tie: leave it out, or set it to `-inf`. A row without a
    negative is an error, since its positive would always be a hit.

    Args:
        positive: float [B] or [B, 1], the score of the one relevant item of each row; `-inf` = not a candidate.
        negative: the scores of the other candidates of the same dtype: [B, N], `-inf` = none; or with `pool=True` [N].
        pool: True = `negative` is one pool [N] for all positives, which is sorted once (memory for B + N numbers).

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> positive = torch.tensor([0.5, 0.2])
        >>> negative = torch.tensor([[0.9, 0.1, 0.3], [0.4, 0.2, 0.1]])
        >>> # behind 0.9; behind 0.4, tied with 0.2
        >>> trm.Negatives(positive, negative).ranking().ranks
        tensor([[2.0000],
                [2.5000]], dtype=torch.float64)
    """

    positive: Tensor
    negative: Tensor
    pool: bool = False

    @torch.no_grad()
    def rank(self, needs: Needs, options: Options) -> Ranking:
        """Count the negatives with a higher and with the same score as the positive."""
        if needs.list_depth or needs.history:
            raise ValueError("metrics of lists need item ids, which scores of negatives lack")
        positive, negative = _check_scores(self.positive, self.negative, self.pool), self.negative
        checks = Checks(options.validate_args, positive.device, len(positive))
        wrong = positive.isnan() | (positive == torch.inf)
        checks.reject("scores", wrong, lambda row: f"the positive of row {row} scores {positive[row, 0]}")
        numbers = _count_pool(positive, negative) if self.pool else _count_rows(positive, negative, options)
        assert numbers.at_least is not None
        num_negatives, highest = numbers.at_least[:, 0], numbers.highest
        high = ~(highest < torch.inf)
        checks.reject("scores", high, lambda row: f"the highest negative of row {row} scores {highest[row]}")
        checks.reject("negatives", num_negatives == 0, lambda row: f"row {row}")
        candidate = positive > -torch.inf
        counts = TargetCounts(
            relevant=torch.ones_like(candidate),
            penalised=None,
            gains=None,
            missing=~candidate,
            better=numbers.better,
            group_size=numbers.equal + 1,
            num_ranks=negative.shape[-1] + 1,
            num_ranked=num_negatives + candidate[:, 0],
        )
        return rank_counts(counts, needs, options, checks, made_with=("ties",))


def _count_rows(positive: Tensor, negative: Tensor, options: Options) -> Counts:
    thresholds = positive.where(positive > -torch.inf, torch.nan)
    question = Question(thresholds, min_scores=[torch.finfo(negative.dtype).min])
    return kernels.count(negative, question, kernels.choose(options.kernels, negative.device, negative.numel()))


def _count_pool(positive: Tensor, pool: Tensor) -> Counts:
    pool, thresholds = working(pool), working(positive[:, 0]).contiguous()
    ascending = replace_nan(pool, -torch.inf).sort().values
    num_at_most = torch.searchsorted(ascending, thresholds, right=True)
    equal = num_at_most - torch.searchsorted(ascending, thresholds)
    num_negatives = (ascending > -torch.inf).sum().expand(len(positive), 1)
    return Counts(
        better=(len(pool) - num_at_most)[:, None],
        equal=equal[:, None],
        at_least=num_negatives,
        highest=pool.amax().expand(len(positive)),
    )


def _check_scores(positive: Tensor, negative: Tensor, pool: bool) -> Tensor:
    """Return the positives as [B, 1]; raise unless both have accepted dtypes, and fit in shape, dtype and device."""
    check_choice("pool", pool, (True, False))
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
            f"positive must be [B], one relevant item per row, got {list(positive.shape)}; for several per row "
            "pass Sessions(scores, labels, indexes)"
        )
    if pool and negative.dim() != 1:
        raise ValueError(f"with pool=True negative must be [N], the same for all rows, got {list(negative.shape)}")
    if not pool and (negative.dim() != 2 or len(negative) != len(positive)):
        flat = (
            ". Flat negatives: one pool for all positives is Negatives(positive, negative, pool=True); negatives of "
            f"each row are negative.view({len(positive)}, -1)"
        )
        raise ValueError(
            f"negative must be [{len(positive)}, N], got {list(negative.shape)}{flat if negative.dim() == 1 else ''}"
        )
    if negative.shape[-1] == 0:
        raise ValueError("negative holds no score: a positive alone is always a hit")
    return positive
