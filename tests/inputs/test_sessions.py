"""`Sessions`: flat rows rank as the rows that they came from; refused arguments."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from rankings import batches, rank_sessions
from sizes import examples

import torchrecmetrics as trm

TIES = ("optimistic", "realistic", "pessimistic")
INF = math.inf


@pytest.mark.fixed
def test_nan_is_worst():
    ranking = trm.Sessions(
        torch.tensor([math.nan, 0.5, 0.2]), torch.tensor([0, 1, 0]), torch.zeros(3, dtype=torch.int64)
    ).ranking(validate_args=False)
    assert ranking.ranks.tolist() == [[1]]


@settings(max_examples=examples(100), deadline=None)
@given(batch=batches(), ties=st.sampled_from(TIES), seed=st.integers(0, 100))
def test_sessions_are_rows(batch, ties, seed):
    """Shuffled (score, target, query) triples rank like the rows that they came from."""
    scores, targets, gains, _, items = batch
    scores = torch.tensor(scores, dtype=torch.float64).reshape(len(scores), items)
    dense = torch.zeros_like(scores)
    for row, ids in enumerate(targets):
        dense[row, ids] = torch.tensor(gains[row], dtype=dense.dtype)
    shuffle = torch.randperm(scores.numel(), generator=torch.Generator().manual_seed(seed))
    queries = torch.arange(len(scores)).repeat_interleave(items) * 3 + 5
    flat = trm.Sessions(scores.flatten()[shuffle], dense.flatten()[shuffle], queries[shuffle]).ranking(ties=ties)
    rows = trm.Scores(scores, dense).ranking(ties=ties)
    assert torch.equal(flat.ranks, rows.ranks)
    assert torch.equal(flat.num_relevant, rows.num_relevant)
    assert torch.equal(flat.num_ranked, rows.num_ranked)
    assert torch.equal(flat.tied, rows.tied)
    for got, expected in ((trm.functional.ndcg(flat, k), trm.functional.ndcg(rows, k)) for k in (2, None)):
        assert got.tolist() == pytest.approx(expected.tolist(), nan_ok=True)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"indexes": torch.zeros(2)}, TypeError, "indexes must hold"),
        ({"indexes": torch.zeros(3, dtype=torch.int64)}, ValueError, "must be tensors of one shape"),
        ({"scores": torch.tensor([0.1, math.nan])}, ValueError, "NaN or .inf: session 4"),
        ({"labels": torch.tensor([INF, 0])}, ValueError, "gain that is NaN or infinite: session 4"),
        ({"ties": "none"}, ValueError, "ties must be one of"),
    ],
)
def test_bad_sessions(change, error, message):
    arguments = {"scores": torch.tensor([0.1, 0.2]), "labels": torch.tensor([0, 1]), "indexes": torch.tensor([4, 4])}
    with pytest.raises(error, match=message):
        rank_sessions(**(arguments | change))
