"""A user's own metric, five lines as in the documentation, works wherever ours do and equals a plain Python loop."""

import math
from functools import partial

import pytest
import torch
from metric_classes import ACCURACY
from torch import Tensor
from torchmetrics import MetricCollection
from values import numbers

import torchrecmetrics as trm


def rank_biased_precision(ranking: trm.Ranking, k: int, *, p: float = 0.8) -> Tensor:
    return (1 - p) * (p ** (ranking.ranks - 1) * ranking.hits(k)).sum(-1)


class RBP(trm.RankingMetric):
    """Rank-biased precision: Moffat & Zobel, Rank-biased precision for measurement of retrieval effectiveness, 2008."""

    formula = staticmethod(rank_biased_precision)


SCORES = torch.tensor([[0.1, 0.9, 0.5, 0.3], [0.4, 0.3, 0.2, 0.1], [0.4, 0.3, 0.2, 0.1], [0.8, 0.2, 0.7, 0.6]])
TARGET = torch.tensor([[2, 0], [3, -1], [-1, -1], [0, 2]])
"""Ranks 2 and 4; 4; of no relevant item; 1 and 2."""
RBP_2 = (1 - 0.5) * (0.5 + 0 + (1 + 0.5)) / 3  # the mean over three users of (1 - p) (sum of p^(rank - 1)), p = 0.5


def test_a_metric_of_ones_own_is_the_mean_over_users_with_a_relevant_item(device):
    metric = RBP(2, p=0.5).to(device)
    metric.update(SCORES.to(device), TARGET.to(device))

    assert metric.compute().item() == pytest.approx(RBP_2)
    assert (metric.num_users, metric.num_skipped) == (3, 1)


class FirstPlace(trm.RankingMetric):
    """The rank of the first relevant item, k + 1 for a miss; lower is better."""

    formula = staticmethod(lambda ranking, k: ranking.ranks[:, 0].nan_to_num(posinf=k + 1))
    higher_is_better = False


FORMS = {"scores": (SCORES, TARGET), "ranking": (trm.Scores(SCORES, TARGET).ranking(),)}


@pytest.mark.parametrize("others", [[], ["NDCG@3"], ["NDCG@4"], ["AUROC"]])
@pytest.mark.parametrize("batch", FORMS.values(), ids=FORMS)
def test_a_formula_sees_the_first_k_ranks_however_deep_the_batch_was_ranked(others, batch):
    collection = trm.RecMetricCollection([*others, FirstPlace(1), FirstPlace(2)])
    collection.update(*batch)
    values = collection.compute()

    assert (values["FirstPlace@1"], values["FirstPlace@2"]) == ((2 + 2 + 1) / 3, (2 + 3 + 1) / 3)


class Writes(trm.RankingMetric):
    """A metric that writes to the ranks and numbers of hits that it gets."""

    @staticmethod
    def formula(ranking, k):
        ranking.ranks.sub_(1)
        return ranking.num_hits(k).clamp_(max=1).double()


def test_what_a_formula_writes_changes_no_ranking():
    ranking = trm.Ranks(torch.tensor([[2, 4]]), complete=True).ranking()
    Writes(4).update(ranking)

    assert ranking.ranks.tolist() == [[2, 4]]


def test_what_a_formula_writes_changes_no_other_metric():
    metrics = trm.RecMetricCollection([Writes(4), "Recall@4", "MRR@4"])
    metrics.update(trm.Ranks(torch.tensor([[2, 4]]), complete=True))

    assert numbers(metrics.compute()) == {"Writes@4": 1, "Recall@4": 2 / 2, "MRR@4": 1 / 2}


class Gained(trm.RankingMetric):
    formula = staticmethod(lambda ranking, k, *, scale=1.0: scale * (ranking.gains * ranking.hits(k)).sum(-1))


def test_evaluate_hands_gains_to_a_formula_beside_our_metrics():
    edges, values = torch.tensor([[0, 1], [1, 0]]), torch.tensor([3.0, 2.0])
    test = trm.Interactions.from_edge_index(edges, num_users=3, num_items=4, values=values)
    result = trm.evaluate([Gained(4, scale=2.0), "HR@4"], SCORES[:3], torch.eye(4), target=test)

    assert result.floats() == {"Gained-scale2@4": (2 * 3 + 2 * 2) / 2, "HR@4": 1}


class Logged(trm.RankingMetric):
    """A metric of which two options have the same label part, `Logged-log@2`."""

    @staticmethod
    def formula(ranking, k, *, head="none", tail="none"):
        hits = ranking.num_hits(k).double()
        return torch.log2(1 + hits) if head == "log" else hits


class Heavy(trm.NDCG):
    """NDCG in which the weight of a row is multiplied by its number of relevant items."""

    weights = staticmethod(lambda ranking: ranking.num_relevant)


@pytest.mark.parametrize(
    ("metric", "other"), [(Logged(2, head="log"), Logged(2, tail="log")), (trm.NDCG(2), Heavy(2))], ids=str
)
def test_metrics_of_equal_labels_keep_their_values_in_a_collection_of_torchmetrics(metric, other):
    """After a first batch, which gives both the same states, torchmetrics would merge them."""
    together, alone = MetricCollection({"one": metric.clone(), "other": other.clone()}), (metric.clone(), other.clone())
    for target in (torch.tensor([[1], [0], [0], [0]]), TARGET):
        for metrics in (together, *alone):
            metrics.update(SCORES, target)

    assert [*together.compute().values()] == [metric.compute() for metric in alone]


class FirstAtLast(trm.MRR):
    """1 where the first relevant item has rank 1, and no value elsewhere, unlike MRR, which always has a value."""

    formula = staticmethod(lambda ranking, k=None: torch.where(ranking.ranks[:, 0] == 1, 1.0, torch.nan))


@pytest.mark.parametrize("others", [[], [trm.MRR(2)]], ids=["alone", "beside MRR"])
def test_another_formula_of_one_of_our_metrics_may_leave_rows_out(others):
    metrics = trm.RecMetricCollection([FirstAtLast(2), *others])
    metrics.update(SCORES, TARGET)

    assert metrics.compute()["FirstAtLast@2"] == 1
    assert metrics["FirstAtLast@2"].num_users == 1


@pytest.mark.parametrize(
    ("options", "label"),
    [
        ({"p": 0.8, "strict": False}, "M@3"),  # the defaults
        ({"p": 0.25}, "M-p0_25@3"),
        ({"p": 1e-7}, "M-p1e-07@3"),
        ({"p": -0.5}, "M-p-0_5@3"),
        ({"p": None}, "M-no_p@3"),
        ({"p": (1, 0.5)}, "M-p_1_0_5@3"),
        ({"kind": "a.b"}, "M-a_2e_b@3"),
        ({"kind": False}, "M-no_kind@3"),
        ({"strict": True, "p": 0.5}, "M-p0_5-strict@3"),
    ],
)
def test_a_label_shows_every_option_other_than_the_default(options, label):
    """In letters, digits, '-' and '_', which loggers keep."""

    class M(trm.RankingMetric):
        formula = staticmethod(lambda ranking, k, *, p=0.8, kind="slow", strict=False: ranking.ranks[:, 0])

    assert M(3, **options).label == label


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
            lambda: FirstPlace(2).update(trm.Scores(SCORES, TARGET).ranking(depth=1)),
            ValueError,
            "needs the first 2 ranks, but .* depth 1 only",
        ),
        (
            lambda: trm.RecMetricCollection([FIRST_RANKS(2), FIRST_RANKS(3)]).update(RANKS, depth=3),
            TypeError,
            r"a row for each of the cut-offs \(2, 3\)",
        ),
    ],
)
def test_a_mistake_in_a_metric_of_ones_own_raises_what_to_write(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_metrics_of_accuracy_lie_between_0_and_1_but_for_dcg():
    """Gains may be negative, and of any size."""
    assert [cls.__name__ for cls in ACCURACY if cls.bounds != (0.0, 1.0)] == ["DCG"]


def test_a_metric_of_ones_own_has_no_bounds():
    assert (RBP.bounds, RBP.plot_lower_bound, RBP.plot_upper_bound) == (None, None, None)


@pytest.mark.parametrize("bounds", [(-1.0, 2.0), (0.0, None)])
def test_a_plot_ends_at_the_bounds_that_a_class_sets(bounds):
    limited = formula_of(lambda ranking, k: 3, bounds=bounds)
    assert (limited.plot_lower_bound, limited.plot_upper_bound) == bounds


@pytest.mark.parametrize("unknown", [math.inf, None])
def test_an_interval_ends_at_the_bound_that_is_known(unknown):
    metric = formula_of(lambda ranking, k: ranking.ranks[:, 0], bounds=(0.0, unknown))(2)
    metric.update(torch.tensor([1, 2]), depth=10)

    assert metric.confidence_interval()[0] == 0  # Student's of two rows begins at 3 / 2 - 12.7 / 2


@pytest.mark.parametrize(
    ("base", "formula", "options", "label"),
    [
        (trm.HR, None, {}, "HR@3"),
        (trm.HR, lambda ranking, k, score_threshold=None: ranking.any_hit(k).double(), {}, "Mine@3"),
        (RBP, rank_biased_precision, {"p": 0.5}, "Mine-p0_5@3"),
    ],
)
def test_a_subclass_keeps_its_label_until_it_has_another_formula(base, formula, options, label):
    own = {} if formula is None else {"formula": staticmethod(formula)}
    assert type("Mine", (base,), own)(3, **options).label == label
