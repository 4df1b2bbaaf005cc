"""`Sessions`: flat rows rank as the rows that they came from; refused arguments."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from rankings import batches, rank_sessions
from sizes import examples
from torch import tensor

import torchrecmetrics as trm

INF, NAN = math.inf, math.nan


def test_entries_rank_within_their_session_in_ascending_order_of_session_ids():
    sessions = trm.Sessions(tensor([0.9, 0.8, 0.7, 0.6]), tensor([0, 1, 1, 0]), tensor([7, 4, 7, 4]))

    assert sessions.ranking().ranks.tolist() == [[1], [2]]  # of 0.8 in session 4, and of 0.7 in session 7


def test_an_unchecked_nan_is_the_worst_score():
    ranking = trm.Sessions(tensor([NAN, 0.5, 0.2]), tensor([0, 1, 0]), tensor([0, 0, 0])).ranking(validate_args=False)

    assert ranking.ranks.tolist() == [[1]]


@settings(max_examples=examples(100), deadline=None)
@given(batch=batches(), ties=st.sampled_from(["optimistic", "realistic", "pessimistic"]), seed=st.integers(0, 100))
def test_shuffled_entries_of_random_rows_rank_as_scores_and_labels_of_these_rows(batch, ties, seed):
    scores, targets, gains, _, items = batch
    scores = tensor(scores, dtype=torch.float64).reshape(len(scores), items)
    labels = torch.zeros_like(scores)
    for row, ids in enumerate(targets):
        labels[row, ids] = tensor(gains[row], dtype=labels.dtype).clamp(min=0)
    shuffle = torch.randperm(scores.numel(), generator=torch.Generator().manual_seed(seed))
    ids = torch.arange(len(scores)).repeat_interleave(items) * 3 + 5
    flat = trm.Sessions(scores.flatten()[shuffle], labels.flatten()[shuffle], ids[shuffle]).ranking(ties=ties)
    rows = trm.Scores(scores, labels).ranking(ties=ties)

    for name in ("ranks", "num_relevant", "num_ranked", "tied"):
        assert getattr(flat, name).tolist() == getattr(rows, name).tolist(), name
    assert trm.functional.ndcg(flat).tolist() == pytest.approx(trm.functional.ndcg(rows).tolist(), nan_ok=True)


@pytest.mark.parametrize("sessions", [{"indexes": tensor([4, 4, 4])}, {"lengths": tensor([3])}], ids=["ids", "lengths"])
def test_entries_that_reach_the_score_threshold_are_recommended(sessions):
    ranking = trm.Sessions(tensor([0.9, 0.5, 0.1]), tensor([0, 1, 0]), **sessions).ranking(score_threshold=0.5)

    assert ranking.num_recommended.tolist() == [2]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"indexes": torch.zeros(2)}, TypeError, "indexes must hold"),
        ({"indexes": tensor([0, 0, 0])}, ValueError, "must be tensors of one shape"),
        ({"scores": tensor([0.1, NAN])}, ValueError, "NaN or .inf: session 4"),
        ({"labels": tensor([INF, 0])}, ValueError, "gain that is NaN or infinite: session 4"),
        ({"labels": tensor([1, -1])}, ValueError, r"row with a label below 0 .* gains="),
        ({"labels": torch.zeros(2, dtype=torch.complex64)}, TypeError, "bool or real numbers, got a torch.complex64"),
        ({"ties": "none"}, ValueError, "ties must be one of"),
    ],
)
def test_bad_sessions_are_refused(change, error, message):
    with pytest.raises(error, match=message):
        rank_sessions(**{"scores": tensor([0.1, 0.2]), "labels": tensor([0, 1]), "indexes": tensor([4, 4])} | change)


@pytest.mark.parametrize("read", [trm.CollectSessions(trm.MRR()).update, rank_sessions], ids=["collected", "ranked"])
@pytest.mark.parametrize(
    ("scores", "indexes", "error", "message"),
    [
        (torch.rand(3), ["a", "a", "b"], TypeError, r"text such as 'a': .* trm.Vocabulary.number\(ids\)"),
        (torch.rand(3, 1), tensor([0, 0, 1]), ValueError, r"pass scores\[:, 0\]"),
    ],
    ids=["text as ids", "a column of scores"],
)
def test_entries_of_another_form_are_refused_with_the_cure(scores, indexes, error, message, read):
    with pytest.raises(error, match=message):
        read(scores, tensor([0, 1, 1]), indexes)


def test_two_entries_of_a_session_with_two_weights_are_an_error():
    session = trm.Sessions(tensor([0.2, 0.9]), tensor([0, 1]), tensor([7, 7]))

    with pytest.raises(ValueError, match="session 7"):
        trm.HR(1).update(session, weights=tensor([1.0, 2.0]))
