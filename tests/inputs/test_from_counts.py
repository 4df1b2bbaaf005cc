"""`sort_ranks`: counts beyond the depth change nothing."""

import math

import pytest
import torch

from torchrecmetrics.inputs.from_counts import TargetCounts, sort_ranks

TIES = ("expected", "optimistic", "realistic", "pessimistic")
INF = math.inf


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("width", [1, 3])
def test_counts_behind_the_depth_may_be_anything(ties, width):
    """Wrong counts of an item with `depth` or more better items make neither a hit nor a tie of it.

    Kernels count right only items with fewer than `depth` better ones.
    """
    better, size = torch.tensor([[20, 3, 20]]), torch.tensor([[-40, 1, 0]])
    every = torch.ones(1, width, dtype=torch.bool)
    counts = TargetCounts(every, None, None, ~every, better[:, :width], size[:, :width], 100)
    expected = [INF] if width == 1 else [4, INF, INF]
    for gains in (None, torch.ones(1, width).double()):
        found = sort_ranks(counts._replace(gains=gains), ~every, ties, None, 20)
        assert found.items.ranks.tolist() == [expected]
        assert not found.tied.any()
