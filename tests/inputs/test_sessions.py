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


def test_nan_is_worst():
    scores, labels = torch.tensor([math.nan, 0.5, 0.2]), torch.tensor([0, 1, 0])
    ranking = trm.Sessions(scores, labels, torch.zeros(3, dtype=torch.int64)).ranking(validate_args=False)
    assert ranking.ranks.tolist() == [[1]]


@settings(max_examples=examples(100), deadline=None)
@given(batch=batches(), ties=st.sampled_from(TIES), seed=st.integers(0, 100))
def test_sessions_are_rows(batch, ties, seed):
    """Shuffled (score, target, query) triples rank like the rows that they came from."""
    scores, targets, gains, _, items = batch
    scores = torch.tensor(scores, dtype=torch.float64).reshape(len(scores), items)
    dense = torch.zeros_like(scores)
    for row, ids in enumerate(targets):
        dense[row, ids] = torch.tensor(gains[row], dtype=dense.dtype).clamp(min=0)
    shuffle = torch.randperm(scores.numel(), generator=torch.Generator().manual_seed(seed))
    queries = torch.arange(len(scores)).repeat_interleave(items) * 3 + 5
    flat = trm.Sessions(scores.flatten()[shuffle], dense.flatten()[shuffle], queries[shuffle]).ranking(ties=ties)
    rows = trm.Scores(scores, dense).ranking(ties=ties)
    for name in ("ranks", "num_relevant", "num_ranked", "tied"):
        assert torch.equal(getattr(flat, name), getattr(rows, name)), name
    for k in (2, None):
        expected = trm.functional.ndcg(rows, k).tolist()
        assert trm.functional.ndcg(flat, k).tolist() == pytest.approx(expected, nan_ok=True)


def test_score_threshold_of_sessions():
    """Entries that reach the score threshold are the recommended ones, as with dense scores and with `lengths`."""
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.rand(20, 9, generator=generator), torch.randint(0, 2, (20, 9), generator=generator)
    metrics = [trm.Precision(5, denominator="recommended", score_threshold=0.5), trm.HR(5, score_threshold=0.5)]
    flat = {"ids": {"indexes": torch.arange(20).repeat_interleave(9)}, "lengths": {"lengths": torch.full((20,), 9)}}
    for metric in metrics:
        dense = metric.clone()
        dense.update(scores, labels.bool())
        for how in flat.values():
            sessions = metric.clone()
            sessions.update(trm.Sessions(scores.flatten(), labels.flatten(), **how))
            assert sessions.compute() == dense.compute()
        collected = trm.CollectSessions(metric.clone())
        collected.update(scores.flatten(), labels.flatten(), flat["ids"]["indexes"])
        (value,) = collected.compute().values()
        assert value == dense.compute()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"indexes": torch.zeros(2)}, TypeError, "indexes must hold"),
        ({"indexes": torch.zeros(3, dtype=torch.int64)}, ValueError, "must be tensors of one shape"),
        ({"scores": torch.tensor([0.1, math.nan])}, ValueError, "NaN or .inf: session 4"),
        ({"labels": torch.tensor([INF, 0])}, ValueError, "gain that is NaN or infinite: session 4"),
        ({"labels": torch.tensor([1, -1])}, ValueError, r"row with a label below 0 .* gains="),
        ({"labels": torch.zeros(2, dtype=torch.complex64)}, TypeError, "bool or real numbers, got a torch.complex64"),
        ({"ties": "none"}, ValueError, "ties must be one of"),
    ],
)
def test_bad_sessions(change, error, message):
    arguments = {"scores": torch.tensor([0.1, 0.2]), "labels": torch.tensor([0, 1]), "indexes": torch.tensor([4, 4])}
    with pytest.raises(error, match=message):
        rank_sessions(**(arguments | change))


def test_entries_of_other_forms():
    """Sessions named by text, and scores [E, 1], are refused with the cure."""
    labels = torch.tensor([0, 1, 1])
    for scores, indexes, words in (
        (torch.rand(3), ["a", "a", "b"], r"text such as 'a': .* trm.Vocabulary.number\(ids\)"),
        (torch.rand(3, 1), torch.tensor([0, 0, 1]), r"pass scores\[:, 0\]"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            trm.MRR(2).update(trm.Sessions(scores, labels, indexes))
        with pytest.raises((TypeError, ValueError), match=words):
            trm.CollectSessions(trm.MRR(2)).update(scores, labels, indexes)


def test_two_entries_of_a_session_with_two_weights_are_an_error():
    session = trm.Sessions(torch.tensor([0.2, 0.9]), torch.tensor([0, 1]), torch.tensor([7, 7]))

    with pytest.raises(ValueError, match="session 7"):
        trm.HR(1).update(session, weights=torch.tensor([1.0, 2.0]))
