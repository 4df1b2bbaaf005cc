"""Expected values over all orders of equal scores: against enumeration, exact fractions, peers, and limits."""

import itertools
import math
import pickle
from fractions import Fraction
from unittest.mock import Mock

import hypothesis.strategies as st
import pytest
import reference
import torch
from hypothesis import HealthCheck, given, settings
from metric_classes import ACCURACY, cutoffs_of, reference_of
from sizes import examples

import torchrecmetrics as trm
from torchrecmetrics import functional
from torchrecmetrics.core import arrays, ranked_items
from torchrecmetrics.inputs import from_counts as ties
from torchrecmetrics.inputs.batch_input import SelectedItems

CUTOFFS = [1, 2, 3, 5, 9]
FORMULAS = [(cls.formula, k) for cls in ACCURACY for k in cutoffs_of(cls.formula, CUTOFFS)]
WITH_OPTIONS = [  # and the options of the formula in plain Python
    (functional.recall, {"weighted": True}, {"weighted": True}),
    (functional.hit_rate, {"score_threshold": 0.3}, {"threshold": True}),
    (functional.precision, {"score_threshold": 0.3}, {"threshold": True}),
    (functional.recall, {"score_threshold": 0.3}, {"threshold": True}),
]


@st.composite
def users(draw):
    """Return scores of 4 levels, or -inf, and gains of some of the items, of which one is positive."""
    items = draw(st.integers(1, 6))
    scores = draw(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, -math.inf]), min_size=items, max_size=items))
    ids = draw(st.lists(st.integers(0, items - 1), min_size=1, unique=True))
    gains = [draw(st.sampled_from([-2.0, -1.0, 0.5, 1.0, 3.0])) for _ in ids]
    return scores, dict(zip(ids, [abs(gains[0]), *gains[1:]], strict=True))


@pytest.fixture(params=["as it is", "as on devices"])
def path(request, monkeypatch):
    """Run with and without the look at the values that only the CPU takes, which finds rows without ties."""
    if request.param == "as on devices":
        for module in (ties, ranked_items):
            monkeypatch.setattr(module, "can_sync", lambda values: False)


def tensors_of(batch, signed):
    """Return scores, targets and gains of drawn users, padded; unsigned gains are 1."""
    width, items = max([1, *(len(gains) for _, gains in batch)]), max([1, *(len(scores) for scores, _ in batch)])
    scores, target = torch.full((len(batch), items), -torch.inf), torch.full((len(batch), width), -1)
    values = torch.zeros(len(batch), width, dtype=torch.float64)
    for row, (own, gains) in enumerate(batch):
        scores[row, : len(own)] = torch.tensor(own)
        target[row, : len(gains)] = torch.tensor(list(gains))
        values[row, : len(gains)] = torch.tensor(list(gains.values()))
    return scores, SelectedItems(target, values if signed else None)


def near(values):
    return pytest.approx(values, abs=1e-12, nan_ok=True)


def all_orders_of(batch, signed):
    """Return each drawn user in all orders of equal scores, for the formulas in plain Python."""
    gains = [own if signed else dict.fromkeys(own, 1.0) for _, own in batch]
    rows = zip(batch, gains, strict=True)
    return [reference.rank(scores, own, ties="expected", threshold=0.3) for (scores, _), own in rows]


# one path holds for all examples
SWEEP = settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
RANDOM_BATCHES = given(batch=st.lists(users(), max_size=4), signed=st.booleans())


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("depth", [9, None])
@SWEEP
@RANDOM_BATCHES
def test_formulas_at_cut_offs_are_means_over_all_orders_of_equal_scores_in_random_rows(depth, batch, signed):
    ranking = trm.Scores(*tensors_of(batch, signed)).ranking(depth, score_threshold=0.3)
    orders = all_orders_of(batch, signed)
    formulas = [(formula, {}, {}) for formula, k in FORMULAS if k] + WITH_OPTIONS
    values = [formula(ranking, CUTOFFS, **options).tolist() for formula, options, _ in formulas]

    assert values == [
        [near([reference_of(formula)(user, k, **options) for user in orders]) for k in CUTOFFS]
        for formula, _, options in formulas
    ]


@pytest.mark.usefixtures("path")
@SWEEP
@RANDOM_BATCHES
def test_formulas_of_whole_rankings_are_means_over_all_orders_of_equal_scores_in_random_rows(batch, signed):
    ranking = trm.Scores(*tensors_of(batch, signed)).ranking()
    orders = all_orders_of(batch, signed)
    formulas = [formula for formula, k in FORMULAS if not k]

    assert [formula(ranking).tolist() for formula in formulas] == [
        near([reference_of(formula)(user) for user in orders]) for formula in formulas
    ]
    assert ranking.tied.tolist() == [user.tied for user in orders]


def random_batch(generator, rows, items, width, levels):
    """Return scores of this number of levels, distinct target ids, and gains 0 to 3."""
    scores = torch.randint(levels, (rows, items), generator=generator).float()
    target = torch.rand(rows, items, generator=generator).argsort(1)[:, :width]
    return scores, target, torch.randint(0, 4, target.shape, generator=generator)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("with_gains", [False, True])
def test_a_row_without_ties_has_the_same_bits_beside_rows_with_ties(width, with_gains, generator):
    scores = torch.rand(40, 30, generator=generator)
    _, target, gains = random_batch(generator, rows=40, items=30, width=width, levels=1)
    both = torch.cat([scores, torch.zeros_like(scores)]), target.repeat(2, 1)
    alone = trm.Scores(scores, target, gains=gains + 1 if with_gains else None).ranking(ties="realistic")
    beside = trm.Scores(*both, gains=gains.repeat(2, 1) + 1 if with_gains else None).ranking()
    differing = [f.__name__ for f, k in FORMULAS if not torch.equal(f(alone, *k), f(beside, *k)[..., :40])]

    assert not differing


def exact(items, members, k):
    """Return hit rate, recall, reciprocal rank, average precision of `members` among equal scores, as fractions."""
    miss, first, precisions = Fraction(1), Fraction(0), Fraction(0)
    for place in range(1, k + 1):
        hazard = Fraction(members, items - place + 1) if items - place + 1 > 0 else Fraction(0)
        first += miss * min(hazard, 1) / place
        miss *= 1 - min(hazard, Fraction(1))
        before = Fraction((place - 1) * (members - 1), items - 1) if items > 1 else 0
        precisions += (1 + before) / place / items
    return [float(value) for value in (1 - miss, Fraction(min(k, items), items), first, precisions)]


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("items", [20, 1000, 20_000, 10**6])
@pytest.mark.parametrize("members", [1, 3, 20])
def test_equal_scores_however_many_have_the_values_of_exact_fractions_to_9_digits(items, members):
    k = min(items, 50)
    ranking = trm.Scores(torch.zeros(1, items), torch.arange(items)[None] < members).ranking(k)
    formulas = functional.hit_rate, functional.recall, functional.reciprocal_rank, functional.average_precision

    assert [formula(ranking, k).item() for formula in formulas] == pytest.approx(exact(items, members, k), rel=1e-9)


@pytest.mark.parametrize("better", [0, 63, 64, 1000, 200_000])
def test_two_of_five_equal_scores_behind_many_better_ones_keep_their_digits(better):
    scores = torch.cat([torch.arange(better + 1.0, 1.0, -1.0), torch.zeros(5), torch.full((3,), -1.0)])
    ranking = trm.Scores(scores.double()[None], torch.tensor([[better, better + 3]])).ranking()
    pairs = list(itertools.combinations(range(better + 1, better + 6), 2))  # of ranks, equally likely
    precision = sum((Fraction(1, first) + Fraction(2, second)) / 2 for first, second in pairs) / len(pairs)
    reciprocal = sum(Fraction(1, first) for first, _ in pairs) / len(pairs)

    assert functional.average_precision(ranking).item() == pytest.approx(float(precision), rel=1e-11)
    assert functional.reciprocal_rank(ranking).item() == pytest.approx(float(reciprocal), rel=1e-11)


@pytest.mark.parametrize("tile_numbers", [5, 70])
def test_many_places_are_read_a_few_rows_at_a_time_with_the_same_values(tile_numbers, monkeypatch, generator):
    scores = torch.randint(0, 3, (5, 60), generator=generator).float()
    batch = trm.Scores(scores, torch.arange(15).view(5, 3))
    at_once = functional.reciprocal_rank(batch.ranking())
    monkeypatch.setattr(ranked_items, "TILE_NUMBERS", tile_numbers)

    assert torch.allclose(functional.reciprocal_rank(batch.ranking()), at_once, rtol=1e-14)


# relevant items 0 and 1 have one of three equal scores, and item 3 one of the next two
ONE_ROW = trm.Scores(torch.tensor([[1.0, 1.0, 1.0, 0.5, 0.5, 0.0]]), torch.tensor([[0, 1, 3]]))
GAINS = torch.tensor([[6.0, 3.0, 8.0]], dtype=torch.float64)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("depth", [4, None])
def test_gains_that_a_formula_passes_count_with_the_mean_of_their_tie_group(depth):
    sums = ONE_ROW.ranking(depth).sum_hits(torch.reciprocal, [2, 4], GAINS)[:, 0]

    assert sums.tolist() == pytest.approx(
        [(6 + 3) / 3 * (1 + 1 / 2), (6 + 3) / 3 * (1 + 1 / 2 + 1 / 3) + 8 / 2 * 1 / 4]
    )


@pytest.mark.usefixtures("path")
def test_gains_that_a_formula_passes_count_over_whole_rankings():
    total = ONE_ROW.ranking().sum_hits(torch.reciprocal, None, GAINS)
    assert total.item() == pytest.approx((6 + 3) / 3 * (1 + 1 / 2 + 1 / 3) + 8 / 2 * (1 / 4 + 1 / 5))


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("k", [2, [2, 3, 5]])
@pytest.mark.parametrize("depth", [5, None])
def test_cut_offs_beyond_the_places_described_one_by_one_have_the_same_values(depth, k, monkeypatch, generator):
    scores, target, gains = random_batch(generator, rows=20, items=30, width=5, levels=4)
    batch, formulas = trm.Scores(scores, target, gains=gains), [formula for formula, cutoff in FORMULAS if cutoff]
    described = [formula(batch.ranking(depth), k) for formula in formulas]
    monkeypatch.setattr(ranked_items, "MAX_PLACES", 1)
    deep = [formula(batch.ranking(depth), k) for formula in formulas]

    assert all(torch.allclose(*both, rtol=1e-12, equal_nan=True) for both in zip(described, deep, strict=True))


class Changing:
    """A discount that cannot be hashed, since it can change."""

    p = 0.5
    __hash__ = None

    def __call__(self, ranks):
        return self.p ** (ranks - 1)


def test_a_discount_of_ones_own_is_asked_each_time():
    discount, ranking = Changing(), trm.Scores(torch.zeros(1, 4), torch.tensor([1])).ranking()
    before = ranking.sum_hits(discount, 2).item()
    discount.p = 0.1

    assert before == pytest.approx((1 + 0.5) / 4)
    assert ranking.sum_hits(discount, 2).item() == pytest.approx((1 + 0.1) / 4)


def test_a_discount_that_rises_is_finite_for_misses():
    ranking = trm.Scores(torch.tensor([[0.5, 0.5, -math.inf, 0.1]]), torch.tensor([[0, 2]])).ranking()
    assert ranking.sum_hits(lambda ranks: 2.0**ranks, 2).item() == (2**1 + 2**2) / 2


@pytest.mark.parametrize("depth", [4, None])
@pytest.mark.parametrize(
    "other_of", [lambda ranking: pickle.loads(pickle.dumps(ranking)), lambda ranking: ranking.within(2)]
)
def test_tie_groups_are_kept_in_pickles_and_by_within(depth, other_of):
    """Though the expected rank of both items, 10 / 3 and 20 / 3, lies beyond the cut."""
    ranking = trm.Scores(torch.zeros(1, 9), torch.tensor([[2, 5]])).ranking(depth)

    assert functional.hit_rate(other_of(ranking), 2).item() == pytest.approx(1 - 7 / 9 * 6 / 8)


def test_ranks_of_get_topk_ranks_are_refused_by_a_metric_of_expected_values():
    ranks = trm.get_topk_ranks(torch.zeros(1, 5), torch.tensor([2]), 5)

    with pytest.raises(ValueError, match=r"ties='expected' needs scores: these are 'realistic' ranks of get_topk_ran"):
        trm.HR(2, ties="expected").update(ranks)


def test_ranks_cannot_be_expected():
    with pytest.raises(ValueError, match="ties of ranks must be one of 'realistic', 'optimistic', 'pessimistic'"):
        trm.get_topk_ranks(torch.zeros(1, 5), torch.tensor([2]), 5, ties="expected")


GENERATOR = torch.Generator().manual_seed(3)
SCORES = torch.randint(0, 3, (12, 7), generator=GENERATOR) / 2
TARGET = torch.rand(12, 7, generator=GENERATOR).argsort(1)[:, :2]
FLAGS = torch.zeros(12, 7, dtype=torch.bool).scatter(1, TARGET, True)
ROWS = torch.arange(12)[:, None].expand(-1, 7)
BEST_FIRST = SCORES.sort(dim=1, descending=True, stable=True)
SHUFFLED = torch.tensor([3, 0, 6, 1, 5, 2, 4])
DOORS = {
    "scores": trm.Scores(SCORES, TARGET),
    "scores in another order": trm.Scores(SCORES[:, SHUFFLED], FLAGS[:, SHUFFLED]),
    "lists": trm.Lists(BEST_FIRST.indices, TARGET, scores=BEST_FIRST.values, complete=True),
    "candidates": trm.Candidates(SCORES[:, SHUFFLED], TARGET, items=SHUFFLED),
    "sessions": trm.Sessions(SCORES.flatten(), FLAGS.flatten(), ROWS.flatten()),
    "sessions by length": trm.Sessions(SCORES.flatten(), FLAGS.flatten(), lengths=torch.full((12,), 7)),
}


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_the_same_scores_have_the_values_of_plain_python_however_they_come(door):
    users = [
        reference.rank(row, dict.fromkeys(ids, 1.0), ties="expected")
        for row, ids in zip(SCORES.tolist(), TARGET.tolist(), strict=True)
    ]
    classes = [cls for cls in ACCURACY if cls is not trm.AUROC]  # lists do not tell the number of candidates
    metrics = [(cls(*k), k) for cls in classes for k in cutoffs_of(cls.formula, 2)]
    collection = trm.RecMetricCollection([metric for metric, _ in metrics])
    collection.update(door)

    assert {key: value.item() for key, value in collection.compute().items()} == {
        metric.label: near(reference.mean([reference_of(metric.formula)(user, *k) for user in users])[0])
        for metric, k in metrics
    }
    assert collection["NDCG"].num_tied == sum(user.tied for user in users)


@pytest.mark.parametrize("k", [3, [1, 2, 3, 5, 8]])
def test_sums_that_depend_on_no_cut_off_are_computed_once_for_all_members(k, monkeypatch, generator):
    metrics = trm.RecMetricCollection(["HR", "NDCG", "MAP", "Recall", "MRR"], k=k)
    running_sums = Mock(wraps=arrays.running_sums)
    monkeypatch.setattr(ranked_items, "running_sums", running_sums)
    metrics.update(torch.rand(4, 99, generator=generator), torch.tensor([[1, 2]] * 4))

    assert running_sums.call_count == 2  # of DCG and of the precisions
