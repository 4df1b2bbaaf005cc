"""Scores in memory on a GPU: the Triton kernels count what the definition says, in every run."""

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
@pytest.mark.parametrize("width", [0, 1, 4, 10, 40, 1100])
@pytest.mark.parametrize("dtype", DTYPES)
def test_counts_are_exact_in_every_run(dtype, width, place):
    """For scores with ties, NaN and both infinities, masks of both kinds and removed scores."""
    rows, items = place.pick((257, 100_003), (2, 9000))
    scores = (torch.randn(rows, items, device=place.device) * 64).round().to(dtype)
    scores[0, -1], scores[1, 3], scores[:, 5:90] = NAN, INF, -INF
    thresholds = scores[:, torch.randint(items, (width,), device=place.device)]
    thresholds = thresholds.where(thresholds > -INF, NAN)
    masks = [torch.rand(shape, device=place.device) < 0.1 for shape in ((items,), (rows, items)) * 2]
    removed = torch.randn(rows, 50, device=place.device).mul(64).round().to(dtype).sort(1).values
    question = Question(thresholds, None, (0.5, -100.0), masks, removed)
    expected = defined(scores, question)

    for _ in range(place.pick(3, 1)):
        same(kernels.count(scores, question), expected, thresholds)


@pytest.mark.parametrize("width", [1, 4, 10, 40, 1100])
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_item_of_a_constant_row_is_better(dtype, width, place):
    rows, items = place.pick((257, 100_003), (2, 9000))
    scores = torch.zeros(rows, items, dtype=dtype, device=place.device)
    counts = kernels.count(scores, Question(torch.zeros_like(scores[:, :width]), 5))

    assert (counts.better == 0).all()
    assert (counts.equal == items).all()
    assert (counts.highest == 0).all()


@pytest.mark.parametrize("width", [1, 40])
def test_rows_behind_2_to_the_31_scores_are_counted(width, place):
    rows, items = place.pick((2400, 1_000_000), (6, 500))
    if not place.small and torch.cuda.mem_get_info()[0] < 8 * 2**30:
        pytest.skip("less than 8 GiB of memory free")
    scores = torch.randn(rows, items, device=place.device, dtype=torch.float16)
    thresholds = scores[:, -width:].clone()
    counts = kernels.count(scores, Question(thresholds))
    alone = defined(scores[-3:].clone(), Question(thresholds[-3:]))

    assert torch.equal(counts.better[-3:], alone.better)
    assert torch.equal(counts.equal[-3:], alone.equal)
