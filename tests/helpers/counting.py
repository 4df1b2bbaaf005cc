"""Random inputs of the counting kernels, and their counts by definition, with NumPy alone."""

import math

import hypothesis.strategies as st
import numpy as np
import torch

from torchrecmetrics.kernels import Counts, Question

INF, NAN = math.inf, math.nan
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@st.composite
def problems(draw):
    """Random scores with ties, -inf, NaN and +inf in all dtypes and layouts; thresholds, masks and removed items."""
    rows, items, width = draw(st.integers(0, 4)), draw(st.integers(1, 23)), draw(st.integers(1, 5))
    choose = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    levels = torch.tensor(
        draw(st.sampled_from([[1.0], [0.0, 1, 2], [-INF, -1, 0, 1], [-INF, 0, 1, 2, NAN, INF], [-INF]]))
    )
    if draw(st.booleans()):
        levels = torch.cat([levels, torch.randn(20, generator=choose)])
    dtype = draw(st.sampled_from(DTYPES))

    def some(*shape):
        return levels[torch.randint(len(levels), shape, generator=choose)].to(dtype)

    scores = some(rows, items)
    layout = draw(st.sampled_from(["contiguous", "transposed", "strided", "expanded", "part"]))
    if layout == "transposed":
        scores = scores.T.contiguous().T
    elif layout == "strided":
        scores = scores.repeat_interleave(2, 1)[:, ::2]
    elif layout == "expanded":
        scores = some(1, items).expand(rows, items)
    elif layout == "part":
        scores = torch.cat([scores, some(rows, 3)], 1)[:, :items]
    thresholds = some(rows, width)
    if draw(st.booleans()):
        thresholds = scores.gather(1, torch.randint(items, (rows, width), generator=choose))
    thresholds = thresholds.where(thresholds > -INF, NAN)
    if draw(st.booleans()):
        thresholds = thresholds.T.contiguous().T
    masks = [
        torch.rand(shape, generator=choose) < 0.3 for shape in draw(st.sampled_from([[], [(items,)], [(rows, items)]]))
    ]
    masks += [torch.rand(rows, items, generator=choose) < 0.1] * draw(st.integers(0, 1))
    if draw(st.booleans()):
        masks = [mask.T.contiguous().T if mask.dim() == 2 else mask.repeat_interleave(2)[::2] for mask in masks]
    out = (torch.rand(rows, items, generator=choose) < draw(st.sampled_from([0.0, 0.2, 0.9]))) & (scores > -INF)
    for mask in masks:
        out &= ~mask
    min_scores = draw(st.sampled_from([(), (-1e4,), (1.0, -1e4)]))
    depth = draw(st.sampled_from([None, 1, 2, 3, 7, 50]))
    return scores, thresholds, depth, min_scores, masks, out


def removed(scores, out, width):
    """Return the scores of `out` as the kernel takes them: ascending, with -inf in front as padding."""
    if not out.any() and width == 0:
        return None
    values = scores.where(out, -INF).sort(1).values
    return values[:, max(0, values.shape[1] - int(out.sum(1).max()) - width) :] if len(values) else values


def defined(scores, question):
    """Return the counts by their definition: candidates of each row, sorted, less the scores taken out of them."""
    (rows, items), (thresholds, _, min_scores, masks, taken, _) = scores.shape, question
    better, equal = torch.zeros(2, *thresholds.shape, dtype=torch.float64)
    at_least = torch.zeros(rows, len(min_scores), dtype=torch.float64)
    highest = torch.zeros(rows, dtype=torch.float64)
    for row in range(rows):
        values = plain(scores[row])
        highest[row] = values.max()
        out = np.zeros(items, dtype=bool)
        for mask in masks:
            out |= (mask if mask.dim() == 1 else mask[row]).cpu().numpy()
        for sign, part in ((1, values[~out]), (-1, plain(scores[:0, 0] if taken is None else taken[row]))):
            part = np.sort(part[~np.isnan(part)])
            wanted = plain(thresholds[row])
            above, reaching = (len(part) - np.searchsorted(part, wanted, side) for side in ("right", "left"))
            better[row] += torch.from_numpy(sign * above)
            equal[row] += torch.from_numpy(sign * (reaching - above))
            at_least[row] += torch.tensor([sign * int((part >= least).sum()) for least in min_scores])
    dtype = torch.float64 if scores.dtype == torch.float64 else torch.float32
    counts = Counts(better, equal, at_least if len(min_scores) else None, highest.to(dtype))
    return Counts(*(None if part is None else part.to(scores.device) for part in counts))


def plain(values):
    return values.double().cpu().numpy()


def check(counts, scores, thresholds, depth, min_scores, masks, out):
    """Compare the counts with their definition; they are exact where fewer than `depth` scores are better."""
    scores, thresholds = scores.to(counts.better.device), thresholds.to(counts.better.device)
    expected = defined(scores, Question(thresholds, None, min_scores, [*masks, out]))
    near = torch.full_like(expected.better, depth is None, dtype=torch.bool)
    near |= expected.better < (depth or 0)
    same(counts, expected, thresholds.where(near, NAN))
    beyond = ~near & ~thresholds.isnan()
    assert (counts.better[beyond] >= (depth or 0)).all()


def same(found, expected, thresholds):
    """Assert that both counts are equal for thresholds that are not NaN, and that their other fields are equal."""
    asked = ~thresholds.isnan()
    for name in ("better", "equal"):
        counts = getattr(found, name)
        assert counts.dtype == torch.float64
        assert counts.shape == thresholds.shape
        assert torch.equal(counts[asked], getattr(expected, name)[asked]), name
    assert (found.at_least is None) is (expected.at_least is None)
    assert found.at_least is None or torch.equal(found.at_least, expected.at_least)
    torch.testing.assert_close(found.highest, expected.highest, rtol=0, atol=0, equal_nan=True)
