"""`Negatives` and the metrics of the rank against the evaluators of OGB, TGB and PyKEEN.

These packages are not in any extra: .ci/nightly installs them by `pip install --no-deps ogb py-tgb pykeen`, together
with the packages that they import.
"""

import numpy as np
import pytest
import torch

import torchrecmetrics as trm

pytestmark = pytest.mark.fixed

GENERATOR = torch.Generator().manual_seed(0)
POSITIVE = (torch.randn(500, generator=GENERATOR) * 2 + 2).round()
NEGATIVE = (torch.randn(500, 100, generator=GENERATOR) * 2).round()  # many ties


def values(names, negative=NEGATIVE, ties="realistic"):
    """Return our values by name."""
    metrics = trm.RecMetricCollection(names)
    metrics.update(trm.Negatives(POSITIVE, negative).ranking(ties=ties))
    return {name: value.item() for name, value in metrics.compute().items()}


def test_ogb_ranks_rows():
    """MRR and HR@10 are those of ogbl-citation2."""
    ogb = pytest.importorskip("ogb.linkproppred")
    found = ogb.Evaluator("ogbl-citation2").eval({"y_pred_pos": POSITIVE, "y_pred_neg": NEGATIVE})
    theirs = {name: found[key].double().mean().item() for name, key in (("MRR", "mrr_list"), ("HR@10", "hits@10_list"))}
    assert values(["MRR", "HR@10"]) == pytest.approx(theirs, abs=1e-7)


@pytest.mark.parametrize("name", ["ogbl-ddi", "ogbl-collab", "ogbl-ppa"])
def test_ogb_ranks_a_pool(name):
    """OGB finds a positive if it scores higher than the k-th best negative, which is the pessimistic rank."""
    ogb = pytest.importorskip("ogb.linkproppred")
    pool = NEGATIVE[:5].flatten()
    evaluator = ogb.Evaluator(name)
    (theirs,) = evaluator.eval({"y_pred_pos": POSITIVE, "y_pred_neg": pool}).values()
    assert values([f"HR@{evaluator.K}"], pool, "pessimistic") == {f"HR@{evaluator.K}": pytest.approx(theirs)}


def test_tgb_ranks_an_edge_at_a_time():
    """MRR is that of tgbl-wiki, which is called for one edge at a time as in TGB's examples."""
    tgb = pytest.importorskip("tgb.linkproppred.evaluate")
    evaluator = tgb.Evaluator(name="tgbl-wiki")
    theirs = [
        evaluator.eval({"y_pred_pos": own.numpy()[None], "y_pred_neg": row.numpy(), "eval_metric": ["mrr"]})["mrr"]
        for own, row in zip(POSITIVE, NEGATIVE, strict=True)
    ]
    assert values(["MRR"])["MRR"] == pytest.approx(np.mean(theirs), abs=1e-6)


def test_pykeen_adjusts():
    """Mean, median and adjusted metrics are those of PyKEEN for the same ranks and numbers of candidates."""
    pykeen = pytest.importorskip("pykeen.metrics.ranking")
    kinds = {
        "MeanRank": pykeen.ArithmeticMeanRank(),
        "MedianRank": pykeen.MedianRank(),
        "AMR": pykeen.AdjustedArithmeticMeanRank(),
        "AMRI": pykeen.AdjustedArithmeticMeanRankIndex(),
        "AdjustedMRR": pykeen.AdjustedInverseHarmonicMeanRank(),
        "AdjustedHR@10": pykeen.AdjustedHitsAtK(k=10),
    }
    ranking = trm.Negatives(POSITIVE, NEGATIVE).ranking()
    ranks, number = ranking.ranks[:, 0].numpy(), ranking.num_ranked.long().numpy()
    theirs = {name: float(kind(ranks=ranks, num_candidates=number)) for name, kind in kinds.items()}
    assert values(list(kinds)) == pytest.approx(theirs, abs=1e-12)
