"""Expected values over all orders of equal scores: against enumeration, exact fractions, peers, and limits."""

import math
import pickle
from fractions import Fraction

import hypothesis.strategies as st
import pytest
import reference
import torch
from hypothesis import given, settings
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


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("depth", [9, None])
def test_enumeration(depth):
    """Every formula is the mean of its values over all orders, for all batches, gains, cut-offs and depths."""

    @settings(max_examples=examples(200), deadline=None)
    @given(batch=st.lists(users(), max_size=4), signed=st.booleans())
    def check(batch, signed):
        width, items = max([1, *(len(gains) for _, gains in batch)]), max([1, *(len(scores) for scores, _ in batch)])
        scores, target = torch.full((len(batch), items), -torch.inf), torch.full((len(batch), width), -1)
        values = torch.zeros(len(batch), width, dtype=torch.float64)
        known = []
        for row, (own, gains) in enumerate(batch):
            gains = gains if signed else dict.fromkeys(gains, 1.0)
            scores[row, : len(own)] = torch.tensor(own)
            target[row, : len(gains)] = torch.tensor(list(gains))
            values[row, : len(gains)] = torch.tensor(list(gains.values()))
            known.append(reference.rank(own, gains, ties="expected", threshold=0.3))
        given = trm.Scores(scores, SelectedItems(target, values if signed else None))
        ranking = given.ranking(depth, score_threshold=0.3)
        at_cutoffs = [(formula, {}, {}) for formula, k in FORMULAS if k]
        for formula, options, plain_options in at_cutoffs + WITH_OPTIONS:
            computed = formula(ranking, CUTOFFS, **options)
            for row, user in enumerate(known):
                wanted = [reference_of(formula)(user, k, **plain_options) for k in CUTOFFS]
                assert computed[:, row].tolist() == pytest.approx(wanted, abs=1e-12), formula.__name__
            assert torch.allclose(computed[1], formula(ranking, 2, **options), rtol=1e-14), "one cut-off is as several"
        for formula in [formula for formula, k in FORMULAS if not k and depth is None]:
            wanted = [reference_of(formula)(user) for user in known]
            assert formula(ranking).tolist() == pytest.approx(wanted, abs=1e-12, nan_ok=True), formula.__name__
        assert ranking.tied.tolist() == [user.tied for user in known]

    check()


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("width", [1, 4])
def test_rows_without_ties_keep_their_bits(width, generator):
    """A row without ties has the same value whether or not its neighbours have ties."""
    scores = torch.rand(40, 30, generator=generator)
    target = torch.rand(40, 30, generator=generator).argsort(1)[:, :width]
    gains = torch.randint(1, 4, target.shape, generator=generator)
    both = torch.cat([scores, torch.zeros_like(scores)]), target.repeat(2, 1), gains.repeat(2, 1)
    for with_gains in (False, True):
        alone = trm.Scores(scores, target, gains=gains if with_gains else None).ranking(ties="realistic")
        beside = trm.Scores(both[0], both[1], gains=both[2] if with_gains else None).ranking()
        for formula, k in FORMULAS:
            assert torch.equal(formula(alone, *k), formula(beside, *k)[..., :40])


def exact(items, members, k):
    """Return hit rate, recall, reciprocal rank, average precision of `members` among equal scores, as fractions."""
    miss, first, precisions = Fraction(1), Fraction(0), Fraction(0)
    for place in range(1, k + 1):
        hazard = Fraction(members, items - place + 1) if items - place + 1 > 0 else Fraction(0)
        first += miss * min(hazard, 1) / place
        miss *= 1 - min(hazard, Fraction(1))
        before = Fraction((place - 1) * (members - 1), items - 1) if items > 1 else 0
        precisions += (1 + before) / place / items
    return 1 - miss, Fraction(min(k, items), items), first, precisions


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("items", [20, 1000, 20_000, 10**6])
@pytest.mark.parametrize("members", [1, 3, 20])
def test_constant_scores(items, members):
    """Of equal scores, however many, the values are those of exact fractions, to 9 digits and more."""
    k = min(items, 50)
    ranking = trm.Scores(torch.zeros(1, items), torch.arange(items)[None] < members).ranking(k)
    formulas = functional.hit_rate, functional.recall, functional.reciprocal_rank, functional.average_precision
    for formula, wanted in zip(formulas, exact(items, members, k), strict=True):
        assert formula(ranking, k).item() == pytest.approx(float(wanted), rel=1e-9), formula.__name__
    if members == 1:
        assert functional.hit_rate(ranking, k).item() == pytest.approx(k / items, rel=1e-12)


@pytest.mark.parametrize("first", [0, 63, 64, 1000, 200_000])
def test_ties_far_from_the_top(first):
    """Average precision and reciprocal rank of a few equal scores behind many better ones keep their digits."""
    size, members = 5, 2
    scores = torch.cat([torch.arange(first + 1.0, 1.0, -1.0), torch.zeros(size), torch.full((3,), -1.0)])
    scores = scores.double()[None]
    ranking = trm.Scores(scores, torch.tensor([[first, first + 3]])).ranking()
    precision = reciprocal = Fraction(0)
    for one in range(1, size + 1):
        for other in range(one + 1, size + 1):
            precision += (Fraction(1, first + one) + Fraction(2, first + other)) / members / math.comb(size, 2)
            reciprocal += Fraction(1, first + one) / math.comb(size, 2)
    assert functional.average_precision(ranking).item() == pytest.approx(float(precision), rel=1e-11)
    assert functional.reciprocal_rank(ranking).item() == pytest.approx(float(reciprocal), rel=1e-11)


def test_many_places_are_read_in_tiles(monkeypatch, generator):
    """The reciprocal rank of several relevant items is the same for a few rows at a time."""
    scores = torch.randint(0, 3, (5, 60), generator=generator).float()
    ranking = trm.Scores(scores, torch.arange(15).view(5, 3)).ranking
    whole = functional.reciprocal_rank(ranking())
    for numbers in (5, 70):
        monkeypatch.setattr(ranked_items, "TILE_NUMBERS", numbers)
        assert torch.allclose(functional.reciprocal_rank(ranking()), whole, rtol=1e-14)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("depth", [4, None])
def test_gains_of_a_call_are_averaged(depth):
    """Gains that a formula passes count with the mean of their tie group, at each cut-off and over whole rankings."""
    scores = torch.tensor([[1.0, 1.0, 1.0, 0.5, 0.5, 0.0]])
    ranking = trm.Scores(scores, torch.tensor([[0, 1, 3]])).ranking(depth)
    by_score = torch.tensor([[6.0, 3.0, 8.0]], dtype=torch.float64)
    wanted = [9 / 3 * (1 + 1 / 2), 9 / 3 * (1 + 1 / 2 + 1 / 3) + 8 / 2 / 4]
    assert ranking.sum_hits(torch.reciprocal, [2, 4], by_score)[:, 0].tolist() == pytest.approx(wanted)
    if depth is None:
        whole = wanted[1] + 8 / 2 / 5
        assert ranking.sum_hits(torch.reciprocal, None, by_score).item() == pytest.approx(whole)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("k", [2, [2, 3, 5]])
def test_deep_rankings_have_the_same_values(monkeypatch, k, generator):
    """Cut-offs beyond the places that are described one by one have the values of those within."""
    scores = torch.randint(0, 4, (20, 30), generator=generator).float()
    target = torch.rand(20, 30, generator=generator).argsort(1)[:, :5]
    gains = torch.randint(0, 4, target.shape, generator=generator)
    for depth in (5, None):
        described = trm.Scores(scores, target, gains=gains).ranking(depth)
        for formula in [formula for formula, cutoff in FORMULAS if cutoff]:
            with monkeypatch.context() as patch:
                patch.setattr(ranked_items, "MAX_PLACES", 1)
                deep = formula(trm.Scores(scores, target, gains=gains).ranking(depth), k)
            assert torch.allclose(formula(described, k), deep, rtol=1e-12, equal_nan=True), formula.__name__


def test_discounts_that_change():
    """A discount of one's own is asked each time, and need not be hashable."""

    class Changing:
        p = 0.5
        __hash__ = None

        def __call__(self, ranks):
            return self.p ** (ranks - 1)

    discount, ranking = Changing(), trm.Scores(torch.zeros(1, 4), torch.tensor([1])).ranking()
    assert ranking.sum_hits(discount, 2).item() == pytest.approx((1 + 0.5) / 4)
    discount.p = 0.1
    assert ranking.sum_hits(discount, 2).item() == pytest.approx((1 + 0.1) / 4)


def test_a_discount_that_rises_is_finite_for_misses():
    ranking = trm.Scores(torch.tensor([[0.5, 0.5, -math.inf, 0.1]]), torch.tensor([[0, 2]])).ranking()

    assert ranking.sum_hits(lambda ranks: 2.0**ranks, 2).item() == (2**1 + 2**2) / 2


@pytest.mark.parametrize("depth", [4, None])
def test_a_ranking_is_pickled_and_cut(depth):
    """Tie groups are kept in pickles and by `within`, though the expected rank of an item lies beyond the cut."""
    ranking = trm.Scores(torch.zeros(1, 9), torch.tensor([[2, 5]])).ranking(depth)
    functional.hit_rate(ranking, 2)  # cached values are not pickled
    for other in (pickle.loads(pickle.dumps(ranking)), ranking.within(2)):
        assert functional.hit_rate(other, 2).item() == pytest.approx(1 - 7 / 9 * 6 / 8)
    assert ranking.within(2).ranks.tolist() == [[math.inf, math.inf]]


def test_ranks_hold_no_ties():
    """Ranks place tied items: a metric that was asked for expected values refuses them, others take them."""
    ranks = trm.get_topk_ranks(torch.zeros(1, 5), torch.tensor([2]), 5)

    assert ranks.ties == "realistic"
    assert trm.HR(2)(ranks) == 0
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


@pytest.mark.parametrize("door", DOORS)
def test_every_door(door):
    """The same scores have the same values, down to a place and over whole rankings, however they come."""
    users = [
        reference.rank(row, dict.fromkeys(ids, 1.0), ties="expected")
        for row, ids in zip(SCORES.tolist(), TARGET.tolist(), strict=True)
    ]
    classes = [cls for cls in ACCURACY if cls is not trm.AUROC]  # lists do not tell the number of candidates
    metrics = [(cls(*k), k) for cls in classes for k in cutoffs_of(cls.formula, 2)]
    collection = trm.RecMetricCollection([metric for metric, _ in metrics])
    collection.update(DOORS[door])
    values = collection.compute()
    for metric, k in metrics:
        formula = reference_of(metric.formula)
        expected = reference.mean([formula(user, *k) for user in users])[0]
        assert values[metric.label].item() == pytest.approx(expected, abs=1e-12), metric.label
    assert collection["NDCG"].num_tied == sum(user.tied for user in users)


def test_ties_beyond_the_cutoff_do_not_count():
    """`num_tied` counts rows whose tie begins within the largest cut-off, at every door."""
    scores, flags, rows = torch.tensor([0.9, 0.1, 0.1]), torch.tensor([0, 1, 0]), torch.zeros(3, dtype=torch.int64)
    for batch in (
        trm.Scores(scores[None], torch.tensor([1])),
        trm.Sessions(scores, flags, rows),
        trm.Negatives(torch.tensor([0.1]), torch.tensor([[0.9, 0.1]])),
        trm.Lists(torch.tensor([[0, 1, 2]]), torch.tensor([1]), scores=scores[None]),
    ):
        for k, num_tied in ((1, 0), (2, 1)):
            metric = trm.HR(k)
            metric(batch)
            metric.compute()
            assert metric.num_tied == num_tied


def test_five_cutoffs_sum_once(monkeypatch, generator):
    """Sums that depend on no cut-off are computed once for all members of a collection."""
    made = []
    sums = arrays.running_sums
    monkeypatch.setattr(ranked_items, "running_sums", lambda values: (made.append(1), sums(values))[1])
    scores, target = torch.rand(4, 99, generator=generator), torch.tensor([[1, 2]] * 4)
    for k in (3, 3, [1, 2, 3, 5, 8]):
        made.clear()
        trm.RecMetricCollection(["HR", "NDCG", "MAP", "Recall", "MRR"], k=k).update(scores, target)
        assert len(made) == 2  # DCG and the precisions
