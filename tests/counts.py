"""What two ways of counting give, compared."""

import torch


def same(found, expected, thresholds):
    """Both count the same for what is asked, and say the same of all else."""
    asked = ~thresholds.isnan()
    for name in ("better", "equal"):
        mine, theirs = getattr(found, name), getattr(expected, name)
        assert mine.dtype == torch.int64
        assert mine.shape == thresholds.shape
        assert torch.equal(mine[asked], theirs[asked]), name
    assert (found.at_least is None) is (expected.at_least is None)
    assert found.at_least is None or torch.equal(found.at_least, expected.at_least)
    assert found.highest.dtype == expected.highest.dtype
    torch.testing.assert_close(found.highest, expected.highest, rtol=0, atol=0, equal_nan=True)
