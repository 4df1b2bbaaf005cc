"""Columns that are candidates give the same bits as full scores with -inf elsewhere."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from sizes import examples
from torch import tensor

import torchrecmetrics as trm

INF, NAN = float("inf"), float("nan")
ITEMS = 30
CATALOGUE = trm.Catalogue(ITEMS, popularity=torch.arange(ITEMS) + 1, num_users=99)
NAMES = ["NDCG", "HR", "MAP", "AUROC", "Coverage", "Novelty", "Seen"]


def values(batch, **options):
    """Return the values of many metrics, and the number of users and of rows whose item cannot be found."""
    metrics = trm.RecMetricCollection(NAMES, k=[1, 3], catalogue=CATALOGUE, **options)
    metrics.update(batch)
    numbers = {key: value.nan_to_num(7).item() for key, value in metrics.compute().items()}
    return numbers, metrics["HR@1"].num_users, metrics["HR@1"].num_unreachable


@settings(max_examples=examples(100), deadline=None)
@given(
    seed=st.integers(0, 2**20),
    shared=st.booleans(),
    padding_idx=st.sampled_from([None, 0]),
    width=st.integers(1, 9),
    overlap=st.sampled_from(["miss", "keep"]),
    ties=st.sampled_from(["expected", "realistic", "optimistic", "pessimistic"]),
)
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_random_candidates_have_the_bits_of_full_scores(seed, shared, padding_idx, width, overlap, ties):
    """Also repeated and padded candidates, and targets and excluded items that are no candidates."""
    generator = torch.Generator().manual_seed(seed)
    items = torch.randint(-2, ITEMS, (width,) if shared else (5, width), generator=generator)
    scores = torch.randint(4, (5, width), generator=generator).float()
    target = torch.rand(5, ITEMS, generator=generator).argsort(1)[:, :3]
    target[torch.rand(5, 3, generator=generator) < 0.2] = -1
    exclude, history = torch.randint(-1, ITEMS, (2, 5, 4), generator=generator)
    columns = {"gains": torch.randint(1, 4, (5, 3), generator=generator), "exclude": exclude, "history": history}
    full = torch.full((5, ITEMS), -INF)
    for row, ids in enumerate(items.expand(5, width).tolist()):
        listed = [(item, score) for item, score in zip(ids, scores[row], strict=True) if item >= 0]
        for item, score in reversed(listed):  # of repeated candidates, the first counts
            full[row, item] = score
    options = {"padding_idx": padding_idx, "overlap": overlap, "ties": ties}

    assert values(trm.Candidates(scores, target, items=items, **columns), **options) == values(
        trm.Scores(full, target, **columns), **options
    )


def test_a_repeated_item_competes_once():
    items = tensor([[0, 0, 10**12], [4, -1, -1]])  # padding is no item that is repeated
    ranking = trm.Candidates(tensor([[3.0, 3, 1], [3, 2, 1]]), tensor([10**12, 4]), items=items).ranking()

    assert (ranking.ranks.tolist(), ranking.num_repeated.tolist()) == ([[2], [1]], [1, 0])


def test_a_target_that_is_no_candidate_is_a_miss_and_unreachable():
    metric, scores, target = trm.MRR(), tensor([[0.9, 0.5], [0.9, 0.5]]), tensor([1, 6])
    metric.update(trm.Candidates(scores, target, items=tensor([[0, 1], [4, 5]])))

    assert (metric.compute(), metric.num_unreachable) == ((1 / 2 + 0) / 2, 1)


def test_a_target_that_is_no_candidate_is_refused_on_demand():
    candidates = trm.Candidates(torch.rand(2, 3), tensor([0, 6]), items=torch.arange(3), missing="error")

    with pytest.raises(ValueError, match=r"1 of 2 rows with a target that is not a candidate .*: row 1 has \[6\]"):
        candidates.ranking()
    assert candidates.ranking(validate_args="deferred").rows.valid.tolist() == [True, False]


SCORES = torch.rand(2, 3)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"items": torch.arange(4)}, ValueError, r"\[3\] for all rows or \[2, 3\], got \[4\]"),
        ({"items": torch.rand(3)}, TypeError, "candidates must hold int64"),
        ({"items": torch.arange(3, device="meta")}, ValueError, "candidates is on meta"),
        ({"target": SCORES > 0.5}, ValueError, r"more items than the 3 ids of a row, .* with scores as Scores\(scores"),
        ({"target": torch.ones(2, 5), "items": tensor([4, 5, -1])}, ValueError, "2 of 2 .*: row 0 has 5 of 5 items"),
        ({"target": None}, TypeError, "target must be a tensor, got NoneType"),
        ({"exclude": SCORES > 0.5}, TypeError, "a bool could mean items or columns"),
        ({"exclude": torch.zeros(3, 1, dtype=torch.int64)}, ValueError, r"exclude ids must be \[2\] or \[2, H\]"),
        ({"missing": "skip"}, ValueError, "missing must be one of 'unreachable', 'error'"),
    ],
)
def test_bad_candidates_are_refused(change, error, message):
    with pytest.raises(error, match=message):
        trm.Candidates(**{"scores": SCORES, "target": tensor([1, 2]), "items": torch.arange(3)} | change).ranking()


def test_a_dense_target_has_a_column_for_each_item_of_the_catalogue():
    grades = tensor([[2.0, 0, 0, 0, 1, 0]])  # items 0 and 4, of which item 4 is no candidate
    ranking = trm.Candidates(tensor([[0.1, 0.9, 0.5]]), grades, items=tensor([5, 0, 3])).ranking()

    assert (ranking.ranks.tolist(), ranking.gains.tolist()) == ([[1, INF]], [[2, 1]])


def test_scores_of_padding_are_not_read():
    scores, items = tensor([[0.1, NAN], [0.1, 0.3]]), tensor([[1, -1], [2, 3]])

    assert trm.HR(1)(trm.Candidates(scores, tensor([1, 3]), items=items)) == 1


def test_embeddings_of_items_that_are_not_allowed_are_not_read():
    items = tensor([[NAN, 0], [1, 1], [2, 2]])
    allowed = trm.Interactions.from_columns([0, 1, 1], [1, 1, 2], num_users=2, num_items=3)
    target = trm.Interactions.from_columns([0, 1], [1, 2], num_users=2, num_items=3)

    assert trm.evaluate("HR@1", trm.Embeddings(torch.ones(2, 2), items, allowed=allowed), target=target) == {"HR@1": 1}
