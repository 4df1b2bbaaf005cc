"""Scores in memory on a GPU: the Triton kernels count what the eager kernel counts, in every run."""

import math

import pytest
import torch
from counting import defined, same

pytest.importorskip("triton", reason="Triton is not installed")

from torchrecmetrics.kernels import Question
from torchrecmetrics.kernels import triton as kernels

INF, NAN = math.inf, math.nan
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# thresholds that are compared, searched on the chip, and searched with atomics
WIDTHS = [0, 1, 4, 10, 40, 1100]


def problem(width, dtype, place):
    """Scores with ties, NaN and both infinities, masks of both kinds, removed scores."""
    rows, items = place.pick((257, 100_003), (2, 9000))
    scores = (torch.randn(rows, items, device=place.device) * 64).round().to(dtype)
    scores[0, -1], scores[1, 3], scores[:, 5:90] = NAN, INF, -INF
    thresholds = scores[:, torch.randint(items, (width,), device=place.device)]
    thresholds = thresholds.where(thresholds > -INF, NAN)
    masks = [torch.rand(shape, device=place.device) < 0.1 for shape in ((items,), (rows, items)) * 2]
    removed = torch.randn(rows, 50, device=place.device).mul(64).round().to(dtype).sort(1).values
    return scores, thresholds, None, (0.5, -100.0), masks, removed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_counts_are_those_of_eager(width, dtype, place):
    """Counts equal those of the eager kernel for every dtype and way of counting, in each of three runs."""
    scores, thresholds, *rest = problem(width, dtype, place)
    wanted = defined(scores, Question(thresholds, *rest))
    for _ in range(place.pick(3, 1)):
        same(kernels.count(scores, Question(thresholds, *rest)), wanted, thresholds)
    constant = Question(torch.zeros_like(thresholds), 5)
    zeros = torch.zeros_like(scores)
    same(kernels.count(zeros, constant), defined(zeros, constant), constant.thresholds)


@pytest.mark.parametrize("width", [1, 40])
def test_more_scores_than_32_bits_can_number(width, place):
    """The last rows of a matrix of 2.4 * 10^9 scores have the counts that they have in a small matrix."""
    rows, items = place.pick((2400, 1_000_000), (6, 500))
    if not place.small and torch.cuda.mem_get_info()[0] < 8 * 2**30:
        pytest.skip("less than 8 GiB of memory free")
    scores = torch.randn(rows, items, device=place.device, dtype=torch.float16)
    thresholds = scores[:, -width:].clone()
    whole = kernels.count(scores, Question(thresholds))
    last = slice(rows - 3, rows)
    alone = defined(scores[last].clone(), Question(thresholds[last]))
    assert torch.equal(whole.better[last], alone.better)
    assert torch.equal(whole.equal[last], alone.equal)
