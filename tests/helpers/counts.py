"""Comparisons of the counts that two kernels return."""

import torch

from torchrecmetrics.kernels import Counts, eager


def same(found, expected, thresholds):
    """Assert that both counts are equal for thresholds that are not NaN, and that their other fields are equal."""
    asked = ~thresholds.isnan()
    for name in ("better", "equal"):
        mine, theirs = getattr(found, name), getattr(expected, name)
        assert mine.dtype == torch.float64
        assert mine.shape == thresholds.shape
        assert torch.equal(mine[asked], theirs[asked]), name
    assert (found.at_least is None) is (expected.at_least is None)
    assert found.at_least is None or torch.equal(found.at_least, expected.at_least)
    assert found.highest.dtype == expected.highest.dtype
    torch.testing.assert_close(found.highest, expected.highest, rtol=0, atol=0, equal_nan=True)


def compared(scores, question):
    """Return the counts of plain comparisons, with masked items left out."""
    if not question.masks:
        return eager.compare(scores, question)
    parts = [eager.compare(tile, part) for tile, part in eager._copies(scores, question)]
    counts = Counts(*(None if column[0] is None else torch.cat(column) for column in zip(*parts, strict=True)))
    return counts._replace(highest=scores.amax(1).to(counts.highest.dtype))
