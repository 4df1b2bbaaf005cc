"""Members of a collection share what they read of a ranking."""

import torch

import torchrecmetrics as trm
from torchrecmetrics.core import arrays
from torchrecmetrics.core import ranked_items as ranked_module


def test_five_cutoffs_sum_once(monkeypatch, generator):
    """Sums that depend on no cut-off are computed once for all members of a collection."""
    made = []
    sums = arrays.running_sums
    monkeypatch.setattr(ranked_module, "running_sums", lambda values: (made.append(1), sums(values))[1])
    scores, target = torch.rand(4, 99, generator=generator), torch.tensor([[1, 2]] * 4)
    for k in (3, 3, [1, 2, 3, 5, 8]):
        made.clear()
        trm.RecMetricCollection(["HR", "NDCG", "MAP", "Recall", "MRR"], k=k).update(scores, target)
        assert len(made) == 2  # DCG and the precisions
