"""`sort_ranks`: counts beyond the depth change nothing."""

import math

import pytest
import torch
from torch import tensor

from torchrecmetrics.inputs.from_counts import TargetCounts, sort_ranks

INF = math.inf


@pytest.mark.parametrize("ties", ["expected", "optimistic", "realistic", "pessimistic"])
@pytest.mark.parametrize("gains", [None, torch.ones(1, 3)])
@pytest.mark.parametrize(("better", "expected"), [([20], [INF]), ([20, 3, 20], [3 + 1, INF, INF])])
def test_wrong_counts_of_an_item_behind_the_depth_make_no_hit_and_no_tie(better, expected, gains, ties):
    """Kernels count right only items with fewer than `depth` better ones: 20 better ones are rank 21, behind 20."""
    width = len(better)
    wrong_sizes, every = tensor([[-40, 1, 0]])[:, :width], torch.ones(1, width, dtype=torch.bool)
    gains = None if gains is None else gains[:, :width].double()
    counts = TargetCounts(every, None, gains, ~every, tensor([better]), wrong_sizes, num_ranks=100)
    in_order = sort_ranks(counts, ~every, ties, secondary=None, depth=20)

    assert in_order.items.ranks.tolist() == [expected]
    assert not in_order.tied.any()
