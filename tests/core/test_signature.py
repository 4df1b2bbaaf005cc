"""A user's own metric, five lines as in the documentation, works wherever ours do and equals a plain Python loop."""

import functools
import math
import pickle
import re
from copy import deepcopy

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


class Several(RBP):
    """Rank-biased precision at all cut-offs in one call."""

    many_cutoffs = True

    @staticmethod
    def formula(ranking, k, *, p=0.8):
        cutoffs = [k] if isinstance(k, int) else k
        values = torch.stack([rank_biased_precision(ranking, one, p=p) for one in cutoffs])
        return values[0] if isinstance(k, int) else values


class Depth(trm.RankingMetric):
    """The rank of the last relevant item as a share of the candidates; it has no cut-off."""

    @staticmethod
    def formula(ranking):
        return ranking.ranks.nan_to_num(posinf=0).amax(1) / ranking.num_ranked

    @property
    def needs(self):
        return super().needs._replace(num_ranked=True)


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


@pytest.mark.parametrize("kind", [RBP, Several])
def test_alone(kind, device):
    """A user's own metric can be updated, called, reset, cloned and pickled, and skips rows without relevant items."""
    metric = kind(2, p=0.5).to(device)
    metric.update(SCORES.to(device), TARGET.to(device))
    assert metric.compute().item() == expected(2, 0.5)
    assert (metric.num_users, metric.num_skipped) == (3, 1)
    copies = [metric.clone(), deepcopy(metric), *([pickle.loads(pickle.dumps(metric))] if kind is RBP else [])]
    assert all(copy.compute() == metric.compute() and copy.label == metric.label for copy in copies)
    metric.reset()
    ranks = trm.get_topk_ranks(SCORES, TARGET, 2).to(device)
    assert metric(ranks, depth=2).item() == expected(2, 0.5)


@pytest.mark.parametrize("kind", [RBP, Several])
def test_in_a_collection(kind):
    """A user's own metric works at several cut-offs beside ours, one by one or together, and in a MetricCollection."""
    members = [kind(10, p=0.9), kind(1), kind(3)]
    for collection in (
        trm.RecMetricCollection(["NDCG", *members], k=[5, 10]),
        MetricCollection({metric.label: metric.clone() for metric in members}),
    ):
        collection.update(SCORES, TARGET)
        values = collection.compute()
        name = kind.__name__
        assert {key for key in values if "NDCG" not in key} == {f"{name}-p0_9@10", f"{name}@1", f"{name}@3"}
        assert values[f"{name}-p0_9@10"] == expected(10, 0.9)
        assert values[f"{name}@1"] == expected(1)
        assert values[f"{name}@3"] == expected(3)


def test_in_evaluate():
    """`evaluate` computes a user's own metric from embeddings, beside ours."""
    test = trm.Interactions.from_padded(TARGET, num_items=4)
    found = trm.evaluate([RBP(2), "HR@2"], SCORES, torch.eye(4), target=test)
    assert found["RBP@2"] == expected(2)
    assert "RBP@2  " in str(found)


def first_place(ranking, k, *, missed=1):
    place = ranking.ranks[:, 0]
    return place.where(place.isfinite(), k + missed)


class FirstPlace(trm.RankingMetric):
    """The rank of the first relevant item, of which lower is better."""

    formula = staticmethod(first_place)
    higher_is_better = False


@pytest.mark.parametrize("others", [[], ["NDCG@3"], ["NDCG@4"], ["AUROC"]])
def test_what_is_beside_it_changes_nothing(others):
    """A formula sees the first k ranks, however deep the batch was ranked for other metrics."""
    members = [*others, FirstPlace(1), FirstPlace(2)]
    for given in ((SCORES, TARGET), (trm.Scores(SCORES, TARGET).ranking(),)):
        collection = trm.RecMetricCollection(members)
        collection.reset()
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


def gained(ranking, k, *, scale=1.0):
    return scale * (ranking.gains * ranking.hits(k)).sum(-1)


class Gained(trm.RankingMetric):
    formula = staticmethod(gained)


def test_a_formula_that_reads_gains():
    """A formula can read gains, which are 0 for users without ground truth."""
    edges, values = torch.tensor([[0, 1], [1, 0]]), torch.tensor([3.0, 2.0])
    test = trm.Interactions.from_edge_index(edges, num_users=3, num_items=4, values=values)
    found = trm.evaluate([Gained(4, scale=2.0)], SCORES[:3], torch.eye(4), target=test)
    assert found["Gained-scale2@4"] == 5


def logged_hits(ranking, k, *, head="none", tail="none"):
    hits = ranking.num_hits(k).double()
    return torch.log2(1 + hits) if head == "log" else hits


class Logged(trm.RankingMetric):
    formula = staticmethod(logged_hits)


class Heavy(trm.NDCG):
    """NDCG in which the weight of a row is multiplied by its number of relevant items."""

    weights = staticmethod(lambda ranking: ranking.num_relevant)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Logged(2, head="log"), Logged(2, tail="log")),  # both have the label Logged-log@2
        (trm.NDCG(2), Heavy(2)),
    ],
)
def test_equal_labels_are_not_taken_for_one_metric(one, other):
    """Metrics with equal labels are not merged, though torchmetrics merges equal states after a first batch."""
    together = MetricCollection({"one": one.clone(), "other": other.clone()})
    alone = one.clone(), other.clone()
    for target in (torch.tensor([[1], [0], [0], [0]]), TARGET):
        together.update(SCORES, target)
        for metric in alone:
            metric.update(SCORES, target)
    assert {key: value.item() for key, value in together.compute().items()} == {
        key: metric.compute().item() for key, metric in zip(("one", "other"), alone, strict=True)
    }
    with pytest.raises(ValueError, match="merges states named like its own"):
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


def test_needs_of_its_own(device):
    """A formula that declares that it needs the number of ranked items gets it."""
    metric = Depth().to(device)
    metric.update(SCORES.to(device), TARGET.to(device))
    assert metric.compute() == (4 / 4 + 4 / 4 + 2 / 4) / 3
    assert metric.label == "Depth"


LABELS = {
    "number": ({"p": 0.25}, "p0_25"),
    "whole number": ({"p": 1}, "p1"),
    "small number": ({"p": 1e-7}, "p1e-07"),
    "large number": ({"p": 1e20}, "p1e20"),
    "negative": ({"p": -0.5}, "p-0_5"),
    "word": ({"kind": "fast"}, "fast"),
    "other letters": ({"kind": "a.b"}, "a_2e_b"),
    "true": ({"strict": True}, "strict"),
    "false": ({"kind": False}, "no_kind"),
    "none": ({"p": None}, "no_p"),
    "tuple": ({"p": (1, 0.5)}, "p_1_0_5"),
    "two": ({"strict": True, "p": 0.5}, "p0_5-strict"),
    "default": ({"p": 0.8, "strict": False}, ""),
}


@pytest.mark.parametrize("name", LABELS)
def test_options_in_labels(name):
    """A label shows every option other than the default in letters, digits, '-' and '_', which loggers keep."""

    class M(trm.RankingMetric):
        formula = staticmethod(lambda ranking, k, *, p=0.8, kind="slow", strict=False: ranking.ranks[:, 0])

    options, part = LABELS[name]
    label = M(3, **options).label
    assert label == "-".join(["M", part] if part else ["M"]) + "@3"
    assert re.fullmatch(r"[\w-]+@3", label, re.ASCII)


def formula_of(function, **attributes):
    return type("M", (trm.RankingMetric,), {"formula": staticmethod(function), **attributes})


def several(kind):
    return trm.RecMetricCollection([kind(2), kind(3)])


RANKS = torch.tensor([[1], [2]])
MISTAKES = {
    "the base itself": (lambda: trm.RankingMetric(3), TypeError, "RankingMetric has no formula: write a subclass with"),
    "no formula": (lambda: type("M", (trm.RankingMetric,), {})(3), TypeError, "M has no formula"),
    "no function": (lambda: formula_of(3), TypeError, r"M.formula must be a function of \(ranking, k, \*, ...\)"),
    "no arguments": (lambda: formula_of(lambda: 3), TypeError, r"M.formula must be a function of \(ranking, k"),
    "self": (lambda: formula_of(lambda self, ranking, k: 3), TypeError, "knows no self"),
    "any keywords": (
        lambda: formula_of(lambda ranking, k, **rest: 3),
        TypeError,
        "each option by its name",
    ),
    "a name taken": (
        lambda: formula_of(lambda ranking, k, ties=3: 3),
        TypeError,
        "the option ties, which every",
    ),
    "weights": (lambda: formula_of(lambda ranking, weights=3: 3), TypeError, "the option weights"),
    "a name": (lambda: type("Präzision", (RBP,), {"formula": RBP.formula}), TypeError, "letters, digits, '-' and '_'"),
    "unknown option": (
        lambda: RBP(3, q=0.9),
        ValueError,
        "RBP has no option 'q'",
    ),
    "misspelt option": (lambda: RBP(3, tis="a"), ValueError, "no option 'tis'; did you mean 'ties'"),
    "another word for k": (lambda: formula_of(lambda ranking, top_k: 3), TypeError, "top_k= is called k here"),
    "missing option": (lambda: formula_of(lambda ranking, k, *, p: 3)(3), TypeError, "M needs p="),
    "no k": (lambda: RBP(), TypeError, r"'RBP' needs a cut-off: RBP\(10\)"),
    "a bad k": (lambda: RBP(0), ValueError, "k must be at least 1, got 0"),
    "k for nothing": (lambda: Depth(3), ValueError, "Depth has no cut-off, got k=3"),
    "no label": (lambda: RBP(3, p=torch.tensor(0.5)), TypeError, "a label can show numbers, strings"),
    "one number": (
        lambda: formula_of(lambda ranking, k: ranking.ranks.mean())(3).update(RANKS),
        TypeError,
        r"the formula of M@3 must return one value a row, a tensor \[2\] on cpu, got a torch.float64 .* shape \[\]",
    ),
    "a matrix": (lambda: formula_of(lambda ranking, k: ranking.ranks)(3).update(RANKS), TypeError, r"shape \[2, 1\]"),
    "no tensor": (lambda: formula_of(lambda ranking, k: 0.5)(3).update(RANKS), TypeError, "a tensor .*, got float"),
    "too far": (lambda: RBP(3).update(RANKS, depth=2), ValueError, "needs the first 3 ranks, but .* depth 2 only"),
    "another k": (
        lambda: several(formula_of(lambda ranking, k: ranking.ranks[:, 0], many_cutoffs=True)).update(RANKS),
        TypeError,
        r"a row for each of the cut-offs \(2, 3\)",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake):
    """Each mistake raises an error that says what to write."""
    make, error, message = MISTAKES[mistake]
    with pytest.raises(error, match=message):
        make()


def test_bounds():
    """Our metrics have the bounds 0 and 1, which plots show; other metrics have those that their class sets, if any."""
    assert (RBP.bounds, RBP.plot_lower_bound, RBP.plot_upper_bound) == (None, None, None)
    assert (trm.DCG.bounds, trm.DCG.plot_lower_bound) == (None, None)  # gains may be negative, and of any size
    for name in {*trm.metrics.__all__} - {"DCG"}:
        cls = getattr(trm, name)
        assert cls.bounds == (cls.plot_lower_bound, cls.plot_upper_bound) == (0.0, 1.0)
    limited = formula_of(lambda ranking, k: 3, bounds=(-1.0, 2.0))
    assert (limited.plot_lower_bound, limited.plot_upper_bound) == (-1.0, 2.0)
    for unknown in (math.inf, None):
        half = formula_of(lambda ranking, k: ranking.ranks[:, 0], bounds=(0.0, unknown))
        assert (half.bounds, half.plot_lower_bound, half.plot_upper_bound) == ((0.0, math.inf), 0.0, None)
        metric = half(2)
        metric.update(torch.tensor([1, 2]))
        assert metric.compute() == 3 / 2
        assert metric.confidence_interval()[0] == 0  # Student's t of 1 degree of freedom alone reaches far below 0


def test_a_subclass_keeps_its_name_until_it_has_another_formula():
    """A subclass of one of our metrics keeps its label until it has another formula, and goes by its name then."""
    assert type("Mine", (trm.HR,), {})(3).label == "HR@3"
    own = {"formula": staticmethod(lambda ranking, k, score_threshold=None: ranking.hits(k).any(-1).double())}
    assert type("Mine", (trm.HR,), own)(3).label == "Mine@3"
    assert functools.partial(type("Mine", (RBP,), {"formula": RBP.formula}), p=0.5)(3).label == "Mine-p0_5@3"
