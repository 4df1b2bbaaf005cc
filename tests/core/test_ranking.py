"""A `Ranking` is shown, pickled and cut."""

import pickle

import torch

import torchrecmetrics as trm

SCORES = torch.tensor([[0.1, 0.9, 0.5, 0.3]])


def test_gains_and_penalties_are_cut_with_the_ranks():
    """Cut at rank k, relevant and penalised items beyond k have no rank; the number of items and the gains remain."""
    ranking = trm.Scores(SCORES, torch.tensor([[1, 0, 3]]), gains=torch.tensor([[1.0, 2.0, -1.0]])).ranking()
    two = ranking.within(2)
    assert (ranking.ranks.tolist(), two.ranks.tolist()) == ([[1, 4, float("inf")]], [[1, float("inf"), float("inf")]])
    assert (two.penalties.ranks[0, 0], ranking.penalties.ranks[0, 0]) == (float("inf"), 3)
    assert (two.depth, two.num_relevant.tolist(), two.gains.tolist()) == (2, [2], ranking.gains.tolist())


def test_repr():
    """A Ranking shows its shape, not its tensors."""
    ranking = trm.Scores(SCORES.expand(2, 4), torch.tensor([[2, 0], [1, -1]])).ranking(depth=2)
    assert repr(ranking) == "Ranking(2 rows, up to 2 relevant items, first 2, cpu)"
    assert "whole" in repr(trm.Ranks(torch.tensor([1]), complete=True).ranking())


def test_a_ranking_that_was_read_can_be_kept():
    """A ranking can be pickled after metrics have read it, without cached results, and gives the same values."""
    graded = torch.tensor([[0.0, 1, 2, 0, 0], [3, 0, 0, 0, 1]])
    ranking = trm.Scores(torch.rand(2, 5), graded).ranking()
    trm.RecMetricCollection(["NDCG", "HR"], k=[1, 3]).update(ranking)
    again = pickle.loads(pickle.dumps(ranking))
    assert ranking._cache
    assert ranking.relevant._cache
    assert not again._cache
    assert not again.relevant._cache
    assert torch.equal(again.ranks, ranking.ranks)
    assert trm.NDCG(3)(again) == trm.NDCG(3)(ranking)
