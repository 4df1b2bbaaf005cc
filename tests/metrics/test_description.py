"""A user's own metric, five lines as in the documentation, works wherever ours do and equals a plain Python loop."""

import math
import pickle
from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import Tensor
from torchmetrics import MetricCollection

import torchrecmetrics as trm


def rank_biased_precision(ranking: trm.Ranking, k: int, *, p: float = 0.8) -> Tensor:
    return (1 - p) * (p ** (ranking.ranks - 1) * ranking.hits(k)).sum(-1)


class RBP(trm.RankingMetric):
    """Rank-biased precision: Moffat & Zobel, Rank-biased precision for measurement of retrieval effectiveness, 2008."""

    formula = staticmethod(rank_biased_precision)


SCORES = torch.tensor([[0.1, 0.9, 0.5, 0.3], [0.4, 0.3, 0.2, 0.1], [0.4, 0.3, 0.2, 0.1], [0.8, 0.2, 0.7, 0.6]])
TARGET = torch.tensor([[2, 0], [3, -1], [-1, -1], [0, 2]])  # the third user has no relevant item


def expected(k, p=0.8):
    """Return the mean rank-biased precision, added up one user and one rank at a time."""
    total = []
    for scores, target in zip(SCORES.tolist(), TARGET.tolist(), strict=True):
        order = sorted(range(len(scores)), key=lambda item: -scores[item])
        if relevant := {item for item in target if item >= 0}:
            total.append((1 - p) * sum(p**place for place, item in enumerate(order[:k]) if item in relevant))
    return pytest.approx(sum(total) / len(total), abs=1e-15)


def test_alone(device):
    """A user's own metric can be updated, called, reset, cloned and pickled, and skips rows without relevant items."""
    metric = RBP(2, p=0.5).to(device)
    metric.update(SCORES.to(device), TARGET.to(device))
    assert metric.compute().item() == expected(2, 0.5)
    assert (metric.num_users, metric.num_skipped) == (3, 1)
    for copy in (metric.clone(), deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        assert (copy.compute(), copy.label) == (metric.compute(), metric.label)
    metric.reset()
    ranks = trm.get_topk_ranks(SCORES, TARGET, 2).to(device)
    assert metric(ranks, depth=2).item() == expected(2, 0.5)


class FirstPlace(trm.RankingMetric):
    """The rank of the first relevant item, k + 1 for a miss; lower is better."""

    formula = staticmethod(lambda ranking, k: ranking.ranks[:, 0].nan_to_num(posinf=k + 1))
    higher_is_better = False


@pytest.mark.parametrize("others", [[], ["NDCG@3"], ["NDCG@4"], ["AUROC"]])
def test_what_is_beside_it_changes_nothing(others):
    """A formula sees the first k ranks, however deep the batch was ranked for other metrics."""
    members = [*others, FirstPlace(1), FirstPlace(2)]
    for given in ((SCORES, TARGET), (trm.Scores(SCORES, TARGET).ranking(),)):
        collection = trm.RecMetricCollection(members)
        collection.update(*given)
        values = collection.compute()
        assert (values["FirstPlace@1"], values["FirstPlace@2"]) == ((2 + 2 + 1) / 3, (2 + 3 + 1) / 3)
    with pytest.raises(ValueError, match=r"needs the first 2 ranks, but .* depth 1 only"):
        FirstPlace(2).update(trm.Scores(SCORES, TARGET).ranking(depth=1))


def test_what_a_formula_writes_stays_with_it():
    """A formula gets copies of ranks and numbers of hits: writing to them changes no other metric and no Ranking."""

    class Writes(trm.RankingMetric):
        @staticmethod
        def formula(ranking, k):
            ranking.ranks.sub_(1)
            return ranking.num_hits(k).clamp_(max=1).double()

    ranking = trm.Scores(SCORES, TARGET).ranking()
    before = ranking.ranks.clone()
    collection = trm.RecMetricCollection([Writes(4), "Recall@4", "MRR@4"])
    collection.update(ranking)
    values = collection.compute()
    assert torch.equal(ranking.ranks, before)
    assert (values["Recall@4"], values["MRR@4"]) == (1, trm.MRR(4)(ranking))


class Gained(trm.RankingMetric):
    formula = staticmethod(lambda ranking, k, *, scale=1.0: scale * (ranking.gains * ranking.hits(k)).sum(-1))


def test_a_formula_that_reads_gains():
    """`evaluate` hands gains to a formula, which are 0 for users without ground truth, beside our metrics."""
    edges, values = torch.tensor([[0, 1], [1, 0]]), torch.tensor([3.0, 2.0])
    test = trm.Interactions.from_edge_index(edges, num_users=3, num_items=4, values=values)
    found = trm.evaluate([Gained(4, scale=2.0), "HR@4"], SCORES[:3], torch.eye(4), target=test)
    assert found.floats() == {"Gained-scale2@4": 2 * (3 + 2) / 2, "HR@4": 1}
    assert "Gained-scale2@4  " in str(found)


class Logged(trm.RankingMetric):
    """A metric of which two options have the same label part, `Logged-log@2`."""

    @staticmethod
    def formula(ranking, k, *, head="none", tail="none"):
        hits = ranking.num_hits(k).double()
        return torch.log2(1 + hits) if head == "log" else hits


class Heavy(trm.NDCG):
    """NDCG in which the weight of a row is multiplied by its number of relevant items."""

    weights = staticmethod(lambda ranking: ranking.num_relevant)


@pytest.mark.parametrize(("one", "other"), [(Logged(2, head="log"), Logged(2, tail="log")), (trm.NDCG(2), Heavy(2))])
def test_equal_labels_are_not_taken_for_one_metric(one, other):
    """Metrics with equal labels are not merged, though torchmetrics merges equal states after a first batch."""
    together, alone = MetricCollection({"one": one.clone(), "other": other.clone()}), (one.clone(), other.clone())
    for target in (torch.tensor([[1], [0], [0], [0]]), TARGET):
        for metrics in (together, *alone):
            metrics.update(SCORES, target)
    assert list(together.compute().values()) == [metric.compute() for metric in alone]
    with pytest.raises(ValueError, match="merges states named"):
        one.clone().merge_state(other.clone())


class FirstAtLast(trm.MRR):
    """1 where the first relevant item has rank 1, and no value elsewhere, unlike MRR, which always has a value."""

    formula = staticmethod(lambda ranking, k=None: torch.where(ranking.ranks[:, 0] == 1, 1.0, torch.nan))


def test_another_formula_need_not_have_a_value():
    """A subclass of one of our metrics may leave rows out if it has its own formula."""
    for metric in (FirstAtLast(2), trm.RecMetricCollection([FirstAtLast(2), trm.MRR(2)])):
        metric.update(SCORES, TARGET)
        found = metric.compute()
        assert (found["FirstAtLast@2"] if isinstance(found, dict) else found) == 1


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"p": 0.8, "strict": False}, ""),
        ({"p": 0.25}, "p0_25"),
        ({"p": 1e-7}, "p1e-07"),
        ({"p": -0.5}, "p-0_5"),
        ({"p": None}, "no_p"),
        ({"p": (1, 0.5)}, "p_1_0_5"),
        ({"kind": "a.b"}, "a_2e_b"),
        ({"kind": False}, "no_kind"),
        ({"strict": True, "p": 0.5}, "p0_5-strict"),
    ],
)
def test_options_in_labels(options, part):
    """A label shows every option other than the default in letters, digits, '-' and '_', which loggers keep."""

    class M(trm.RankingMetric):
        formula = staticmethod(lambda ranking, k, *, p=0.8, kind="slow", strict=False: ranking.ranks[:, 0])

    assert M(3, **options).label == (f"M-{part}@3" if part else "M@3")


def formula_of(function, **attributes):
    return type("M", (trm.RankingMetric,), {"formula": staticmethod(function), **attributes})


def update_with(function):
    formula_of(function)(3).update(RANKS, depth=3)


RANKS = torch.tensor([[1], [2]])
FIRST_RANKS = formula_of(lambda ranking, k: ranking.ranks[:, 0], many_cutoffs=True)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: trm.RankingMetric(3), TypeError, "RankingMetric has no formula: write a subclass with"),
        (partial(formula_of, 3), TypeError, r"M.formula must be a function of \(ranking, k, \*, ...\)"),
        (partial(formula_of, lambda self, ranking, k: 3), TypeError, "has no self"),
        (partial(formula_of, lambda ranking, k, **rest: 3), TypeError, "with keyword-only options"),
        (partial(formula_of, lambda ranking, k, ties=3: 3), TypeError, "the option ties, which every"),
        (partial(type, "Präzision", (RBP,), {"formula": RBP.formula}), TypeError, "letters, digits, '-' and '_'"),
        (lambda: RBP(3, q=0.9), ValueError, "RBP has no option 'q'"),
        (lambda: formula_of(lambda ranking, k, *, p: 3)(3), TypeError, "M needs p="),
        (lambda: RBP(), TypeError, r"'RBP' needs a cut-off: RBP\(10\)"),
        (lambda: formula_of(lambda ranking: 3)(3), ValueError, "M has no cut-off, got k=3"),
        (lambda: RBP(3, p=torch.tensor(0.5)), TypeError, "a label can show numbers, strings"),
        (
            partial(update_with, lambda ranking, k: ranking.ranks.mean()),
            TypeError,
            r"formula of M@3 must return one value per row, a tensor \[2\] on cpu, got a torch.float64 .* shape \[\]",
        ),
        (lambda: RBP(3).update(RANKS, depth=2), ValueError, "needs the first 3 ranks, but .* depth 2 only"),
        (
            lambda: trm.RecMetricCollection([FIRST_RANKS(2), FIRST_RANKS(3)]).update(RANKS, depth=3),
            TypeError,
            r"a row for each of the cut-offs \(2, 3\)",
        ),
    ],
)
def test_mistakes(call, error, message):
    """Each mistake raises an error that says what to write."""
    with pytest.raises(error, match=message):
        call()


def test_our_metrics_have_the_bounds_0_and_1():
    for name in {*trm.metrics.accuracy.__all__} - {"DCG"}:
        cls = getattr(trm, name)
        assert cls.bounds == (cls.plot_lower_bound, cls.plot_upper_bound) == (0.0, 1.0)
    assert (trm.DCG.bounds, trm.DCG.plot_lower_bound) == (None, None)  # gains may be negative, and of any size


def test_a_metric_of_ones_own_has_the_bounds_that_its_class_sets():
    limited = formula_of(lambda ranking, k: 3, bounds=(-1.0, 2.0))

    assert (limited.plot_lower_bound, limited.plot_upper_bound) == (-1.0, 2.0)
    assert (RBP.bounds, RBP.plot_lower_bound, RBP.plot_upper_bound) == (None, None, None)


@pytest.mark.parametrize("unknown", [math.inf, None])
def test_an_interval_ends_at_the_bound_that_is_known(unknown):
    """Student's t of 1 degree of freedom alone reaches far below 0."""
    half = formula_of(lambda ranking, k: ranking.ranks[:, 0], bounds=(0.0, unknown))
    metric = half(2)
    metric.update(torch.tensor([1, 2]), depth=10)

    assert (half.bounds, half.plot_upper_bound) == ((0.0, math.inf), None)
    assert (metric.compute(), metric.confidence_interval()[0]) == (3 / 2, 0)


def test_a_subclass_keeps_its_name_until_it_has_another_formula():
    """A subclass of one of our metrics keeps its label until it has another formula, and goes by its name then."""
    assert type("Mine", (trm.HR,), {})(3).label == "HR@3"
    own = {"formula": staticmethod(lambda ranking, k, score_threshold=None: ranking.hits(k).any(-1).double())}
    assert type("Mine", (trm.HR,), own)(3).label == "Mine@3"
    assert type("Mine", (RBP,), {"formula": RBP.formula})(3, p=0.5).label == "Mine-p0_5@3"
