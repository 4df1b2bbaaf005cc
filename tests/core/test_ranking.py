"""A `Ranking` is shown, pickled and cut."""

import pickle
from math import inf

import torch

import torchrecmetrics as trm

SCORES = torch.tensor([[0.1, 0.9, 0.5, 0.3]])


def test_a_cut_takes_ranks_and_leaves_the_number_of_items_and_their_gains():
    ranking = trm.Scores(SCORES, torch.tensor([[1, 0]]), gains=torch.tensor([[1.0, 2.0]])).ranking()
    cut = ranking.within(2)

    assert (ranking.ranks.tolist(), cut.ranks.tolist()) == ([[1, 4]], [[1, inf]])
    assert (cut.num_relevant.tolist(), cut.gains.tolist()) == ([2], [[1, 2]])


def test_a_cut_takes_ranks_of_penalties():
    ranking = trm.Scores(SCORES, torch.tensor([[1, 3]]), gains=torch.tensor([[1.0, -1.0]])).ranking()
    assert (ranking.penalties.ranks[0, 0], ranking.within(2).penalties.ranks[0, 0]) == (3, inf)


def test_a_ranking_shows_its_shape_and_not_its_tensors():
    ranking = trm.Scores(SCORES.expand(2, 4), torch.tensor([[2, 0], [1, -1]])).ranking(depth=2)

    assert repr(ranking) == "Ranking(2 rows, up to 2 relevant items, first 2, cpu)"
    assert "whole" in repr(trm.Ranks(torch.tensor([1]), complete=True).ranking())


def test_a_ranking_is_pickled_without_what_metrics_cached():
    ranking = trm.Scores(torch.rand(2, 5), torch.tensor([[0.0, 1, 2, 0, 0], [3, 0, 0, 0, 1]])).ranking()
    trm.RecMetricCollection(["NDCG", "HR"], k=[1, 3]).update(ranking)
    again = pickle.loads(pickle.dumps(ranking))

    assert (bool(ranking._cache), bool(ranking.relevant._cache)) == (True, True)
    assert (again._cache, again.relevant._cache) == ({}, {})
    assert trm.NDCG(3)(again) == trm.NDCG(3)(ranking)
