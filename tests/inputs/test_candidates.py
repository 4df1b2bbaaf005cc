"""Columns that are candidates give the same bits as full scores with -inf elsewhere."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from sizes import examples

import torchrecmetrics as trm

INF = float("inf")
ITEMS = 30
CATALOGUE = trm.Catalogue(ITEMS, popularity=torch.arange(ITEMS) + 1, num_users=99)
NAMES = ["NDCG", "HR", "MAP", "AUROC", "Coverage", "Novelty", "Seen"]


def make(overlap="miss", **options):
    return trm.RecMetricCollection(NAMES, k=[1, 3], catalogue=CATALOGUE, overlap=overlap, **options)


@settings(max_examples=examples(100), deadline=None)
@given(
    seed=st.integers(0, 2**20),
    shared=st.booleans(),
    padding=st.booleans(),
    width=st.integers(1, 9),
    overlap=st.sampled_from(["miss", "keep"]),
    ties=st.sampled_from(["expected", "realistic", "optimistic", "pessimistic"]),
)
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_equals_full_scores(seed, shared, padding, width, overlap, ties):
    """Repeated and padded candidates, and targets and excluded items that are no candidates, give full scores' bits."""
    generator = torch.Generator().manual_seed(seed)
    shape = (1, width) if shared else (5, width)
    candidates = torch.randint(-2, ITEMS, shape, generator=generator)
    scores = torch.randint(4, (5, width), generator=generator).float()
    target = torch.rand(5, ITEMS, generator=generator).argsort(1)[:, :3]
    target[torch.rand(5, 3, generator=generator) < 0.2] = -1
    exclude = torch.randint(-1, ITEMS, (5, 4), generator=generator)
    history = torch.randint(-1, ITEMS, (5, 4), generator=generator)
    gains = torch.randint(1, 4, (5, 3), generator=generator)
    options = {"padding_idx": 0 if padding else None, "overlap": overlap, "ties": ties}
    full = torch.full((5, ITEMS), -torch.inf)
    for row in range(5):
        for column in reversed(range(width)):  # of repeated candidates, the first counts
            if candidates[row % len(candidates), column] >= 0:
                full[row, candidates[row % len(candidates), column]] = scores[row, column]
    one, other = make(**options), make(**options)
    given = {"exclude": exclude, "history": history, "gains": gains}
    one.update(trm.Candidates(scores, target, items=candidates[0] if shared else candidates, **given))
    other.update(trm.Scores(full, target, **given))
    found, expected = one.compute(), other.compute()
    assert all(torch.equal(found[key].nan_to_num(7), expected[key].nan_to_num(7)) for key in expected)
    for count in ("num_users", "num_skipped", "num_unreachable"):
        assert getattr(one["HR@1"], count) == getattr(other["HR@1"], count)


def test_repeated_and_missing_items_are_counted():
    """An item listed twice competes once, and a target that is no candidate cannot be found."""
    ranking = trm.MRR()
    scores, candidates = torch.tensor([[3.0, 3.0, 1.0], [3.0, 2.0, 1.0]]), torch.tensor([[0, 0, 10**12], [4, -1, -1]])
    batch = trm.Candidates(scores, torch.tensor([10**12, 6]), items=candidates)
    assert batch.ranking().num_repeated.tolist() == [1, 0]  # padding is no item that is repeated
    ranking.update(batch)
    assert (ranking.compute(), ranking.num_unreachable) == ((0.5 + 0) / 2, 1)
    with pytest.raises(ValueError, match=r"1 of 2 rows with a target that is not a candidate .*: row 1 has \[6\]"):
        ranking.update(trm.Candidates(scores, torch.tensor([0, 6]), items=candidates, missing="error"))
    deferred = trm.MRR(validate_args="deferred")
    deferred.update(trm.Candidates(scores, torch.tensor([0, 6]), items=candidates, missing="error"))
    with pytest.raises(ValueError, match="1 row with a target that is not a candidate"):
        deferred.compute()


SCORES, TARGET = torch.rand(2, 3), torch.tensor([1, 2])
BAD = [
    ({"items": torch.arange(4)}, ValueError, r"\[3\] for all rows or \[2, 3\], got \[4\]"),
    ({"items": torch.rand(3)}, TypeError, "candidates must hold int64"),
    ({"items": torch.arange(3, device="meta")}, ValueError, "candidates is on meta"),
    (
        {"target": SCORES > 0.5},
        ValueError,
        r"more items than the 3 ids of a row, .* with scores as Scores\(scores",
    ),
    (
        {"target": torch.ones(2, 5), "items": torch.tensor([4, 5, -1])},
        ValueError,
        "2 of 2 rows .*: row 0 has 5 of 5 items",
    ),
    ({"target": None}, TypeError, "target must be a tensor, got NoneType"),
    ({"exclude": SCORES > 0.5}, TypeError, "a bool could mean items or columns"),
    ({"exclude": torch.zeros(3, 1, dtype=torch.int64)}, ValueError, r"exclude ids must be \[2\] or \[2, H\]"),
    ({"missing": "skip"}, ValueError, "missing must be one of 'unreachable', 'error'"),
]


@pytest.mark.parametrize(("changed", "error", "message"), BAD)
def test_bad_input(changed, error, message):
    """Each error names what was given and what is accepted."""
    with pytest.raises(error, match=message):
        trm.Candidates(**{"scores": SCORES, "target": TARGET, "items": torch.arange(3)} | changed).ranking()


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("items", [torch.tensor([5, 0, 3]), torch.tensor([[5, 0, 3], [4, 2, -1]])])
def test_dense_targets_are_of_the_items(items, graded):
    """A matrix of all items gives the values of the ids and gains that it holds, not of the columns of the scores."""
    scores = torch.tensor([[0.1, 0.9, 0.5], [0.7, 0.2, 0.1]])
    grades = torch.tensor([[2.0, 0, 0, 0, 1, 0], [0, 0, 3, 0, 0, 0]])
    target, gains = torch.tensor([[0, 4], [2, -1]]), torch.tensor([[2.0, 1], [3, 0]])
    dense = trm.Candidates(scores, grades if graded else grades > 0, items=items).ranking()
    by_id = trm.Candidates(scores, target, items=items, gains=gains if graded else None).ranking()
    for name in ("ranks", "num_relevant", "unreachable"):
        assert getattr(dense, name).tolist() == getattr(by_id, name).tolist()
    assert dense.ranks[0].tolist() == [1, INF]
    assert trm.functional.ndcg(dense, 2).tolist() == trm.functional.ndcg(by_id, 2).tolist()


def test_scores_of_padding_are_not_read():
    """The score of a padding candidate may be NaN: its rank and the other ranks do not depend on it."""
    scores, candidates = torch.tensor([[0.1, float("nan")], [0.1, 0.3]]), torch.tensor([[1, -1], [2, 3]])
    metric = trm.HR(1)
    metric.update(trm.Candidates(scores, torch.tensor([1, 3]), items=candidates))
    assert metric.compute() == 1
    items = torch.tensor([[float("nan"), 0], [1, 1], [2, 2]])
    pairs = {"num_users": 2, "num_items": 3}
    shown = trm.Interactions.from_columns([0, 1, 1], [1, 1, 2], **pairs)
    target = trm.Interactions.from_columns([0, 1], [1, 2], **pairs)
    assert trm.evaluate("HR@1", trm.Embeddings(torch.ones(2, 2), items, allowed=shown), target=target) == {"HR@1": 1}
