"""Values of every metric: by hand, against plain Python, at the edges, and as properties."""

import functools
import math
import operator

import hypothesis.strategies as st
import pytest
import reference
import torch
from hypothesis import given, settings
from rankings import rank_scores
from sizes import examples

import torchrecmetrics as trm
from torchrecmetrics import functional

INF = math.inf


def value(metric, *args, **kwargs):
    metric.update(*args, **kwargs)
    return metric.compute().item()


# Three users: R = 3 with hits at ranks 1, 3, 9; R = 1 with rank 2; R = 2 with ranks 6 and 8, beyond the first five.
RANKS = [[1, 3, 9], [2, 0, 0], [6, 8, 0]]
LOG = {place: 1 / math.log2(1 + place) for place in range(1, 10)}
HAND = [
    (trm.HitRate(1), (1 + 0 + 0) / 3),
    (trm.HitRate(5), (1 + 1 + 0) / 3),
    (trm.Precision(5), (2 / 5 + 1 / 5 + 0) / 3),
    (trm.Precision(5, normalize="min"), (2 / 3 + 1 / 1 + 0) / 3),
    (trm.Recall(5), (2 / 3 + 1 / 1 + 0) / 3),
    (trm.Recall(2), (1 / 3 + 1 / 1 + 0) / 3),
    (trm.Recall(2, normalize="min"), (1 / 2 + 1 / 1 + 0) / 3),
    (trm.F1(5), (2 * 2 / (5 + 3) + 2 * 1 / (5 + 1) + 0) / 3),
    (trm.F1(2, normalize="min"), (2 * 1 / (2 + 3) + 2 * 1 / (1 + 1) + 0) / 3),
    (trm.RPrecision(), (2 / 3 + 0 / 1 + 0) / 3),
    (trm.MAP(5), ((1 / 1 + 2 / 3) / 3 + 1 / 2 + 0) / 3),
    (trm.MAP(2), ((1 / 1) / 3 + 1 / 2 + 0) / 3),
    (trm.MAP(2, normalize="min"), ((1 / 1) / 2 + 1 / 2 + 0) / 3),
    (trm.MAP(), ((1 / 1 + 2 / 3 + 3 / 9) / 3 + 1 / 2 + (1 / 6 + 2 / 8) / 2) / 3),
    (trm.DCG(5), (LOG[1] + LOG[3] + LOG[2] + 0) / 3),
    (trm.DCG(), (LOG[1] + LOG[3] + LOG[9] + LOG[2] + LOG[6] + LOG[8]) / 3),
    (trm.NDCG(5), ((LOG[1] + LOG[3]) / (LOG[1] + LOG[2] + LOG[3]) + LOG[2] / LOG[1] + 0) / 3),
    (
        trm.NDCG(),
        ((LOG[1] + LOG[3] + LOG[9]) / (LOG[1] + LOG[2] + LOG[3]) + LOG[2] + (LOG[6] + LOG[8]) / (LOG[1] + LOG[2])) / 3,
    ),
    (trm.MRR(5), (1 / 1 + 1 / 2 + 0) / 3),
    (trm.MRR(), (1 / 1 + 1 / 2 + 1 / 6) / 3),
    # wrong pairs among 10 items: (rank 3) 1 + (rank 9) 6 of 3 * 7; (rank 2) 1 of 9; (rank 6) 5 + (rank 8) 6 of 2 * 8
    (trm.AUROC(), (1 - 7 / 21 + 1 - 1 / 9 + 1 - 11 / 16) / 3),
    (trm.AUROC(weight="relevant"), (3 * (1 - 7 / 21) + 1 * (1 - 1 / 9) + 2 * (1 - 11 / 16)) / 6),
]


@pytest.mark.parametrize(
    ("metric", "expected"), HAND, ids=lambda p: p.label if isinstance(p, trm.RankingMetric) else ""
)
def test_by_hand(metric, expected, device):
    """Values of three users equal those worked out on paper."""
    ranking = trm.Ranks(torch.tensor(RANKS, device=device), num_ranked=10).ranking()
    metric = metric.clone().to(device)
    assert value(metric, ranking) == pytest.approx(expected, abs=1e-15)
    assert (metric.num_users, metric.num_skipped) == (3, 0)


def test_one_user_as_the_papers_print_it(device):
    """Hits at ranks 1 and 3 of 5, R = 3, have the values of our formulas, which other projects print differently."""
    ranks = torch.tensor([[1, 3, 100]], device=device)
    expected = {"NDCG@5": 0.704, "MAP@2": 1 / 3, "MAP-min@2": 1 / 2, "Recall@2": 1 / 3}
    metrics = [trm.NDCG(5), trm.MAP(2), trm.MAP(2, normalize="min"), trm.Recall(2)]
    for metric in metrics:
        assert value(metric.to(device), ranks) == pytest.approx(expected[metric.label], abs=5e-4)


SURPRISE = {  # two worked examples of Surprise's FAQ: true and estimated ratings, relevant from 3.5 on
    "six": ([2, 5, 4, 2, 3, 4], [4.9, 4.5, 4.3, 3.6, 3.4, 2.3], 2 / 3, 2 / 3, 2 / 3),
    "four": ([5, 2, 5, 4], [4.9, 4.5, 3.4, 2.3], 1 / 2, 1 / 3, 2 / 3),
}


@pytest.mark.parametrize("name", SURPRISE)
def test_score_threshold_as_surprise_prints_it(name, device):
    """Only estimates from 3.5 on are recommended, and precision is the share of these, as Surprise's FAQ prints it."""
    true, estimated, precision, recall, recall_without = SURPRISE[name]
    args = torch.tensor([estimated], device=device), torch.tensor([true], device=device) >= 3.5
    assert value(trm.Precision(3, denominator="recommended", score_threshold=3.5).to(device), *args) == precision
    assert value(trm.Recall(3, score_threshold=3.5).to(device), *args) == recall
    assert value(trm.Recall(3).to(device), *args) == recall_without
    assert value(trm.HitRate(3, score_threshold=3.5).to(device), *args) == 1
    assert value(trm.HitRate(3, score_threshold=4.95).to(device), *args) == 0
    assert value(trm.F1(3, score_threshold=3.5).to(device), *args) == pytest.approx(
        2 * round(recall * sum(t >= 3.5 for t in true)) / (3 + sum(t >= 3.5 for t in true))
    )


@pytest.mark.parametrize(("zero_division", "expected"), [(0.0, 0.0), (1.0, 1.0), (math.nan, math.nan)])
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_zero_division(zero_division, expected):
    """If no score reaches the threshold, the value 0 / 0 is zero_division, and nan leaves the row out."""
    metric = trm.Precision(2, denominator="recommended", score_threshold=9.0, zero_division=zero_division)
    assert value(metric, torch.tensor([[1.0, 2.0]]), torch.tensor([0])) == pytest.approx(expected, nan_ok=True)
    assert metric.num_users == (0 if math.isnan(zero_division) else 1)


def test_precision_over_a_recommended_list():
    """denominator="recommended" divides by the list's length or by the number of candidates."""
    metric = trm.Precision(4, denominator="recommended")
    assert value(metric, trm.Lists(torch.tensor([[3, 5, -1, -1]]), torch.tensor([5])).ranking()) == 1 / 2
    metric.reset()
    assert value(metric, torch.tensor([[0.1, 0.2, 0.3]]), torch.tensor([0]), exclude=torch.tensor([2])) == 1 / 2


# each metric and its formula in plain Python, a function of reference.User
REFERENCE = {
    "HR": (trm.HitRate(3), lambda u: reference.hit_rate(u, 3)),
    "HR-t": (trm.HitRate(3, score_threshold=0.3), lambda u: reference.hit_rate(u, 3, True)),
    "Precision": (trm.Precision(3), lambda u: reference.precision(u, 3)),
    "Precision-min": (trm.Precision(3, normalize="min"), lambda u: reference.precision(u, 3, "min")),
    "Precision-recommended": (
        trm.Precision(3, denominator="recommended", zero_division=1.0),
        lambda u: reference.precision(u, 3, "recommended", zero_division=1.0),
    ),
    "Precision-t": (
        trm.Precision(3, denominator="recommended", score_threshold=0.3),
        lambda u: reference.precision(u, 3, "recommended", True),
    ),
    "Recall": (trm.Recall(3), lambda u: reference.recall(u, 3)),
    "Recall-min": (trm.Recall(2, normalize="min"), lambda u: reference.recall(u, 2, normalize="min")),
    "Recall-weighted": (trm.Recall(3, weighted=True), lambda u: reference.recall(u, 3, weighted=True)),
    "Recall-t": (trm.Recall(3, score_threshold=0.3), lambda u: reference.recall(u, 3, threshold=True)),
    "F1": (trm.F1(3), lambda u: reference.f1(u, 3)),
    "RPrecision": (trm.RPrecision(), reference.r_precision),
    "MAP": (trm.MAP(3), lambda u: reference.average_precision(u, 3)),
    "MAP-min": (trm.MAP(2, normalize="min"), lambda u: reference.average_precision(u, 2, "min")),
    "MAP-whole": (trm.MAP(), reference.average_precision),
    "DCG": (trm.DCG(3), lambda u: reference.dcg(u, 3)),
    "DCG-whole": (trm.DCG(), reference.dcg),
    "NDCG": (trm.NDCG(3), lambda u: reference.ndcg(u, 3)),
    "NDCG-whole": (trm.NDCG(), reference.ndcg),
    "MRR": (trm.MRR(3), lambda u: reference.reciprocal_rank(u, 3)),
    "MRR-whole": (trm.MRR(), reference.reciprocal_rank),
}


@st.composite
def users(draw):
    """Draw users with tied scores, graded and negative gains, history, unreachable targets, and weights."""
    rows, items = draw(st.integers(1, 4)), draw(st.integers(2, 8))
    score = st.sampled_from([-INF, -1.0, 0.0, 0.5, 1.0, 3.0])
    gain = st.sampled_from([0.0, 0.0, 0.0, -2.0, -1.0, 1.0, 2.0, 5.0])
    row = {"min_size": items, "max_size": items}
    scores = draw(st.lists(st.lists(score, **row), min_size=rows, max_size=rows))
    gains = draw(st.lists(st.lists(gain, **row), min_size=rows, max_size=rows))
    history = draw(st.lists(st.lists(st.booleans(), **row), min_size=rows, max_size=rows))
    weights = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=rows, max_size=rows))
    return scores, gains, history, weights


def graded(gains):
    """Return target and gains of `update` for the gains of all items; items of gain 0 are not relevant."""
    gains = torch.as_tensor(gains)
    ids = torch.arange(gains.shape[1]).expand(gains.shape)
    return {"target": pad(ids, -1), "gains": pad(gains, 0)}


def pad(columns, fill):
    """Return columns with one more, so that ids of all items are not taken for a matrix."""
    return torch.nn.functional.pad(columns, (0, 1), value=fill)


def plain(batch, function, ties, overlap, transform=lambda gain: gain):
    scores, gains, history, _ = batch
    values = []
    for s, g, h in zip(scores, gains, history, strict=True):
        gain = {item: transform(x) for item, x in enumerate(g) if x != 0}
        user = reference.rank(s, gain, [i for i, seen in enumerate(h) if seen], ties, overlap=overlap, threshold=0.3)
        values.append(function(user) if user.gains else math.nan)
    return values


@pytest.mark.parametrize("name", REFERENCE)
@settings(max_examples=examples(60), deadline=None)
@given(
    batch=users(),
    ties=st.sampled_from(["optimistic", "realistic", "pessimistic"]),
    overlap=st.sampled_from(["keep", "miss"]),
)
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_equals_plain_python(name, batch, ties, overlap):
    """Value, standard error and number of users equal the per-user definitions."""
    metric, function = REFERENCE[name]
    metric = type(metric)(*([metric.k] if metric.k else []), **metric.options, ties=ties, overlap=overlap)
    scores, gains, history, weights = batch
    values = plain(batch, function, ties, overlap)
    expected, error = reference.mean(values, weights)
    more = {**graded(gains), "exclude": torch.tensor(history)}
    got = value(metric, torch.tensor(scores), **more, weights=torch.tensor(weights))
    assert got == pytest.approx(expected, abs=1e-12, nan_ok=True)
    assert metric.standard_error().item() == pytest.approx(error, abs=1e-7, nan_ok=True)
    assert metric.num_users == sum(not math.isnan(v) and w > 0 for v, w in zip(values, weights, strict=True))
    whole = rank_scores(
        torch.tensor(scores), **more, ties=ties, overlap=overlap, score_threshold=metric.options.get("score_threshold")
    )
    assert metric(whole, weights=torch.tensor(weights)).item() == pytest.approx(expected, abs=1e-12, nan_ok=True)


@settings(max_examples=examples(100), deadline=None)
@given(batch=users(), k=st.sampled_from([1, 3, None]), ties=st.sampled_from(["optimistic", "realistic", "pessimistic"]))
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_exponential_gain_equals_plain_python(batch, k, ties):
    """The exponential gain is 2^gain - 1, also for negative gains and with ties."""
    scores, gains, history, _ = batch
    for metric, function in ((trm.NDCG, reference.ndcg), (trm.DCG, reference.dcg)):
        values = plain(batch, lambda u, f=function: f(u, k or INF), ties, "miss", lambda gain: 2.0**gain - 1)
        made = metric(k, gain="exponential", ties=ties, overlap="miss")
        got = value(made, torch.tensor(scores), **graded(gains), exclude=torch.tensor(history))
        assert got == pytest.approx(reference.mean(values)[0], rel=1e-12, abs=1e-12, nan_ok=True)


def test_ndcg_can_invert_the_order_of_dcg():
    """Of two models, one has more DCG and the other more NDCG: NDCG divides each row by its own ideal."""
    target = torch.tensor([[0, 1, 2], [0, -1, -1]])
    one = torch.tensor([[9.0, 8, 7, 0, 1, 2], [0, 1, 2, 3, 4, 5]])  # all three of the first row, none of the second
    other = torch.tensor([[9.0, 0, 1, 3, 4, 5], [9, 1, 2, 3, 4, 5]])  # one of each row
    ideal = LOG[1] + LOG[2] + LOG[3]
    dcg = value(trm.DCG(3), one, target), value(trm.DCG(3), other, target)
    ndcg = value(trm.NDCG(3), one, target), value(trm.NDCG(3), other, target)
    assert dcg == pytest.approx(((ideal + 0) / 2, (1 + 1) / 2))
    assert ndcg == pytest.approx(((1 + 0) / 2, (1 / ideal + 1) / 2))
    assert dcg[0] > dcg[1]
    assert ndcg[0] < ndcg[1]


@settings(max_examples=examples(50), deadline=None)
@given(batch=users(), k=st.sampled_from([1, 3, None]))
def test_binary_relevance_gains_1_either_way(batch, k):
    """Without gains, linear and exponential NDCG are equal, because 2^1 - 1 = 1."""
    scores, gains, history, _ = (torch.tensor(x) for x in batch)
    ranking = trm.Scores(scores, gains > 0, exclude=history).ranking(overlap="miss")
    linear, exponential = (functional.ndcg(ranking, k, gain=gain) for gain in ("linear", "exponential"))
    assert exponential.tolist() == pytest.approx(linear.tolist(), abs=1e-12, nan_ok=True)


def test_exponential_gain_of_small_gains():
    """2^gain - 1 loses no digits for gains near 0."""
    args = torch.tensor([[0.1, 0.2]]), torch.tensor([[0, 1]])
    small = value(trm.NDCG(gain="exponential"), *args, gains=torch.tensor([[2e-14, 1e-14]]))
    assert small == pytest.approx((1 + 2 * LOG[2]) / (2 + LOG[2]), rel=1e-12)


def test_exponential_gain_does_not_overflow():
    """The ratio of two gains is right even if a gain such as 2^3000 overflows."""
    got = value(
        trm.NDCG(gain="exponential"),
        torch.tensor([[0.1, 0.2]]),
        torch.tensor([[0, 1]]),
        gains=torch.tensor([[3000, 2999]]),
    )
    assert got == pytest.approx((0.5 * LOG[1] + LOG[2]) / (LOG[1] + 0.5 * LOG[2]))


@settings(max_examples=examples(150), deadline=None)
@given(batch=users(), overlap=st.sampled_from(["keep", "miss"]))
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_auroc_counts_pairs(batch, overlap):
    """AUROC is the share of pairs in the right order, counted one by one, with ties as one half."""
    scores, gains, history, _ = batch
    values = []
    for s, g, h in zip(scores, gains, history, strict=True):
        gain = {item: x for item, x in enumerate(g) if x != 0}
        relevant = any(x > 0 for x in gain.values())
        out = [i for i, seen in enumerate(h) if seen]
        values.append(reference.auroc(s, gain, out, overlap=overlap) if relevant else math.nan)
    metric = trm.AUROC(overlap=overlap)
    got = value(metric, torch.tensor(scores), **graded(gains), exclude=torch.tensor(history))
    assert got == pytest.approx(reference.mean(values)[0], abs=1e-12, nan_ok=True)


# ------------------------------------------------------------------------------------------------- edges


@pytest.mark.parametrize(("action", "expected", "num_users"), [("skip", 1.0, 1), ("neg", 0.5, 2), ("pos", 1.0, 2)])
@pytest.mark.parametrize("name", ["HR", "Precision", "Recall", "F1", "RPrecision", "MAP", "NDCG", "MRR", "AUROC"])
def test_rows_without_a_relevant_item(name, action, expected, num_users):
    """All metrics leave rows without a relevant item out, or give them 0 or 1, by the same option."""
    k = [] if name in ("RPrecision", "AUROC") else [1]
    metric = getattr(trm, name)(*k, empty_target_action=action)
    metric.update(torch.tensor([[0.1, 0.9], [0.3, 0.2]]), torch.tensor([1, -1]))
    assert metric.compute().item() == expected
    assert (metric.num_users, metric.num_skipped) == (num_users, 1)


@pytest.mark.parametrize(("action", "expected", "num_users"), [("skip", 1.0, 1), ("neg", 0.5, 2), ("pos", 1.0, 2)])
@pytest.mark.parametrize("empty", [0.0, 7.0, math.inf, math.nan])
def test_a_formula_need_not_know_of_rows_without_a_relevant_item(action, expected, num_users, empty):
    """Rows without a relevant item count once and get the value of the option, whatever a formula returns for them."""

    class Found(trm.RankingMetric):
        formula = staticmethod(
            lambda ranking, k: (ranking.num_hits(k) > 0).double().where(ranking.num_relevant > 0, empty)
        )

    metric = Found(1, empty_target_action=action)
    assert value(metric, torch.tensor([[0.1, 0.2], [0.1, 0.2]]), torch.tensor([1, -1])) == expected
    assert (metric.num_users, metric.num_skipped) == (num_users, 1)


@pytest.mark.parametrize("validate_args", [True, False])
def test_rows_without_a_relevant_item_can_be_an_error(validate_args):
    metric = trm.HR(1, empty_target_action="error", validate_args=validate_args)
    with pytest.raises(ValueError, match=r"1 of 2 rows without a relevant item .*: row 1"):
        metric.update(torch.tensor([[0.1, 0.9], [0.3, 0.2]]), torch.tensor([1, -1]))


def test_more_places_than_items():
    """If k is larger than the catalogue, ranks stop at N, and Precision still divides by k."""
    args = torch.tensor([[0.3, 0.2]]), torch.tensor([[0, 1]])
    assert value(trm.Precision(8), *args) == 2 / 8
    assert value(trm.Recall(8), *args) == 1


def test_auroc_leaves_out_rows_where_everything_is_relevant():
    """AUROC leaves out rows whose items are all relevant, because they have no pair to order; HR counts these rows."""
    args = torch.tensor([[0.3, 0.2], [0.1, 0.2]]), torch.tensor([[0, 1], [1, -1]])
    metric = trm.AUROC(empty_target_action="neg")
    assert value(metric, *args) == 1
    assert metric.num_users == 1
    hits = trm.HR(1)
    assert value(hits, *args) == 1
    assert hits.num_users == 2


def test_constant_scorer():
    """If all 100 scores are equal, items have the middle rank: AUROC 0.5, HR@10 0, HR@51 1, MRR 1 / 50.5."""
    args, middle = (torch.zeros(3, 100), torch.tensor([0, 50, 99])), {"ties": "realistic"}
    expected = {trm.AUROC(**middle): 0.5, trm.HR(10, **middle): 0, trm.HR(50, **middle): 0, trm.HR(51, **middle): 1}
    expected |= {trm.MRR(**middle): 1 / 50.5}
    for metric, number in expected.items():
        assert value(metric, *args) == number
        assert metric.num_tied == (3 if metric.k != 10 and metric.k != 50 else 0)


@pytest.mark.filterwarnings("ignore:no row to average over")
def test_rows_without_weight_are_not_counted():
    """AUROC weighted by R gives a row without relevant items no weight, and does not average over that row."""
    metric = trm.AUROC(weight="relevant", empty_target_action="pos")
    assert math.isnan(value(metric, torch.tensor([[0.1, 0.2]]), torch.tensor([-1])))
    assert metric.num_users == 0


def test_four_counts():
    """Metrics count users averaged over, without a relevant item, with an unreachable one, and with a tie at one."""
    scores = torch.tensor([[0.1, 0.2, 0.3], [0.1, 0.1, 0.3], [-INF, 0.2, 0.3], [0.1, 0.2, 0.3], [0.1, 0.2, 0.3]])
    metric = trm.MRR()
    metric.update(scores, torch.tensor([0, 0, 0, -1, 2]), weights=torch.tensor([1, 1, 1, 1, 0]))
    metric.compute()
    assert (metric.num_users, metric.num_skipped, metric.num_unreachable, metric.num_tied) == (3, 1, 1, 1)


@pytest.mark.parametrize(("others", "tied"), [([], 1), (["HR@3"], 2), (["MRR"], 3)])
@pytest.mark.parametrize("form", ["ids", "padded", "bool", "bool, width given"])
@pytest.mark.parametrize("split", [1, 2, 4])
def test_what_is_tied_depends_on_the_row_alone(others, tied, form, split):
    """A tie at the R ranks that RPrecision reads depends on no other row, no padding and no form of the target."""
    scores = torch.tensor([[5.0, 4, 4, 3, 2, 1], [6, 5, 4, 3, 2, 2], [6, 5, 3, 3, 2, 1], [6, 5, 4, 3, 2, 1]])
    target = torch.tensor([[1, -1, -1, -1], [4, 0, 1, -1], [2, 0, 3, -1], [0, 1, 2, 3]])  # ties: 2.5; 5.5; 3, 4
    metric = trm.RecMetricCollection(["RPrecision", *others], max_relevant=5 if "width" in form else None)
    if form == "padded":
        target = torch.nn.functional.pad(target, (0, 2), value=-1)
    elif form != "ids":
        target = torch.zeros(4, 7).scatter_(1, target.where(target >= 0, 6), 1)[:, :6].bool()
    for s, t in zip(scores.split(split), target.split(split), strict=True):
        metric.update(s, t)
    metric.compute()
    assert metric["RPrecision"].num_tied == tied


@pytest.mark.parametrize("name", trm.functional.__all__)
def test_functions_ask_for_a_ranking(name):
    """A function that is given something else than a Ranking says how scores become one."""
    cut = () if name in ("r_precision", "auroc") else (2,)
    message = rf"{name} reads a Ranking, got .*: {name}\(Scores\(scores, target\).ranking\(\)"
    for scores in (SCORES, SCORES.numpy(), None):
        with pytest.raises(TypeError, match=message):
            getattr(trm.functional, name)(scores, *cut)


def error_of(values, weights=None, at_once=1000):
    """Return the standard error of row values, added `at_once` at a time; 1 adds them one by one in plain Python."""
    parts = iter(values.split(at_once))

    class Given(trm.RankingMetric):
        formula = staticmethod(lambda ranking: next(parts))

    metric = Given()
    if at_once > 1:
        for row in range(0, len(values), at_once):
            some = slice(row, row + at_once)
            metric.update(torch.ones_like(values[some]).long(), weights=None if weights is None else weights[some])
    else:
        w = torch.ones_like(values) if weights is None else weights
        powers = (torch.ones_like(values), w, w.square())
        terms = [factor * power for factor in (torch.ones_like(values), values, values.square()) for power in powers]
        totals = [functools.reduce(operator.add, term.tolist()) for term in terms]
        sums = metric.layout.zeros(device=torch.device("cpu"))
        sums[[0, 4, 5]] = torch.tensor(totals, dtype=torch.float64).view(3, 3)  # rows, values, squares; flags between
        (summary,) = metric.layout.summaries(sums).values()
        return summary.standard_error.item()
    metric.compute()
    return metric.standard_error().item()


@pytest.mark.parametrize("at_once", [1, 97, 100_000])
@pytest.mark.parametrize("rows", [2, 3, 1000, 20_000])
@pytest.mark.parametrize("constant", [0.1, 1 / 3, 0.7, 1.0, 1e-9, 123.456])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_constant_has_no_standard_error(constant, rows, at_once, weighted, generator):
    """Equal values have a standard error of exactly 0, whatever their sums were rounded to."""
    weights = torch.rand(rows, generator=generator, dtype=torch.float64) * 9 + 1e-3 if weighted else None
    assert error_of(torch.full((rows,), constant, dtype=torch.float64), weights, at_once) == 0


@pytest.mark.parametrize("at_once", [1, 100_000])
@pytest.mark.parametrize(("rows", "spread"), [(2, 1e-6), (1000, 1e-5), (100_000, 1e-4)])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_small_spread_survives(rows, spread, at_once, weighted, generator):
    """A standard error of a ten-millionth of the value is not lost in rounding."""
    values = 0.3 * (1 + spread * (torch.arange(rows, dtype=torch.float64) % 2))
    weights = (
        torch.rand(rows, generator=generator, dtype=torch.float64) + 0.5 if weighted else torch.ones(rows).double()
    )
    mean = (weights * values).sum() / weights.sum()
    expected = ((weights * (values - mean)).square().sum() * rows / (rows - 1)).sqrt() / weights.sum()
    got = error_of(values, weights if weighted else None, at_once)
    assert got == pytest.approx(expected.item(), rel=0.05)
    assert error_of(1 - torch.eye(1, rows, dtype=torch.float64)[0], None, at_once) == pytest.approx(1 / rows, rel=1e-6)


def test_counts_do_not_stall_at_2_to_the_24():
    """Counts grow beyond 2^24 = 16,777,216, where float32 counters stop."""
    metric = trm.HR(1)
    ranks = torch.ones(2**22, 1, dtype=torch.int64)
    for _ in range(5):
        metric.update(ranks)
    metric.compute()
    assert metric.num_users == 5 * 2**22


# ------------------------------------------------------------------------------------------------- properties


def per_user(function, ranking, *args, **kwargs):
    return function(ranking, *args, **kwargs).nan_to_num(-1)


@settings(max_examples=examples(150), deadline=None)
@given(batch=users(), data=st.data())
def test_identities(batch, data):
    """HR@1, MRR@1 and P@1 are one number, and RPrecision is P@R and Recall@R.
    With one relevant item, Recall is HR and MAP is MRR. HR, Recall and MRR never fall with k.
    """
    scores, gains, history, _ = batch
    target = torch.tensor(gains) > 0
    exclude = torch.tensor(history)
    options = {"exclude": exclude, "overlap": "miss", "ties": "realistic"}
    ranking = rank_scores(torch.tensor(scores), target, **options)
    k = data.draw(st.integers(1, 9))
    hit, first = per_user(functional.hit_rate, ranking, 1), per_user(functional.reciprocal_rank, ranking, 1)
    assert torch.equal(hit, first)
    assert torch.equal(hit, per_user(functional.precision, ranking, 1))
    # R-precision by asking precision of each user at their own R
    for r in range(1, 9):
        rows = ranking.num_relevant == r
        at_r = per_user(functional.precision, ranking, r)[rows]
        assert torch.equal(per_user(functional.r_precision, ranking)[rows], at_r)
        assert torch.equal(per_user(functional.recall, ranking, r)[rows], at_r)
    single = ranking.num_relevant == 1
    assert torch.equal(
        per_user(functional.recall, ranking, k)[single], per_user(functional.hit_rate, ranking, k)[single]
    )
    assert torch.equal(
        per_user(functional.reciprocal_rank, ranking, k)[single],
        per_user(functional.average_precision, ranking, k)[single],
    )
    for function in (functional.hit_rate, functional.recall, functional.reciprocal_rank):
        assert (per_user(function, ranking, k) <= per_user(function, ranking, k + 1)).all()


@settings(max_examples=examples(100), deadline=None)
@given(batch=users(), seed=st.integers(0, 1000))
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_only_the_order_counts(batch, seed):
    """A linear map of the scores with a positive slope, a permutation of items or of users changes no value."""
    scores, gains, history, _ = (torch.tensor(x) for x in batch)
    generator = torch.Generator().manual_seed(seed)
    users_, items = (
        torch.randperm(len(scores), generator=generator),
        torch.randperm(scores.shape[1], generator=generator),
    )
    collection = trm.RecMetricCollection(["HR", "NDCG", "MAP", "MRR", "AUROC", "RPrecision"], k=[1, 3], overlap="keep")
    collection.update(scores, **graded(gains), exclude=history)
    for change in (
        (scores * 3 - 5, gains, history),
        (scores[:, items], gains[:, items], history[:, items]),
        (scores[users_], gains[users_], history[users_]),
    ):
        other = collection.clone()
        other.reset()
        other.update(change[0], **graded(change[1]), exclude=change[2])
        for key, number in collection.compute().items():
            assert other.compute()[key].item() == pytest.approx(number.item(), abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("relevant", [1, 3])
def test_perfect_and_reversed(relevant, device):
    """A perfect ranking has the value 1, and a reversed one 0 for k <= N - R."""
    scores = torch.arange(10.0, device=device).repeat(2, 1)
    best, worst = (torch.arange(a, a + relevant, device=device).repeat(2, 1) for a in (10 - relevant, 0))
    metrics = [
        *(trm.HR(4), trm.MRR(4), trm.NDCG(4), trm.NDCG(), trm.RPrecision(), trm.AUROC(), trm.MAP(2, normalize="min")),
        *(trm.Recall(2, normalize="min"), trm.Precision(2, normalize="min")),
    ]
    for metric in metrics:
        metric.to(device)
        assert value(metric, scores, best) == 1
        metric.reset()
        if metric.label not in ("NDCG",):
            assert value(metric, scores, worst) == 0


# ------------------------------------------------------------------------------------------------- names, bad input


@pytest.mark.parametrize(
    ("metric", "label"),
    [
        (trm.HR(10), "HR@10"),
        (trm.NDCG(10, gain="exponential"), "NDCG-exponential@10"),
        (trm.Precision(3, denominator="recommended", score_threshold=3.5), "Precision-recommended-t3_5@3"),
        (trm.Precision(3, denominator="recommended", zero_division=1.0), "Precision-recommended-zero_division_1@3"),
        (trm.Precision(5, normalize="min"), "Precision-min@5"),
        (trm.F1(5, normalize="min"), "F1-min@5"),
        (trm.Recall(5, normalize="min"), "Recall-min@5"),
        (trm.Recall(5, weighted=True), "Recall-weighted@5"),
        (trm.MAP(7, normalize="min"), "MAP-min@7"),
        (trm.HR(3, score_threshold=3), "HR-t3@3"),
        (trm.HR(3, score_threshold=1000000.1), "HR-t1000000_1@3"),
        (trm.MRR(), "MRR"),
        (trm.RPrecision(), "RPrecision"),
        (trm.AUROC(weight="relevant"), "AUROC-relevant"),
    ],
)
def test_labels(metric, label):
    """A label is made of name, options and cut-off, in characters that ModuleDict and file names can hold."""
    assert metric.label == label
    assert set(label) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_@")


BAD_OPTIONS = [
    (lambda: trm.HR(0), ValueError, "k must be at least 1, got 0"),
    (lambda: trm.HR(True), TypeError, "k must be an integer >= 1, got True"),
    (lambda: trm.NDCG(2.5), TypeError, "k must be an integer >= 1, got 2.5"),
    *(
        (make, TypeError, rf"'{name}' needs a cut-off: {cls.__name__}\(10\)")
        for name, cls in {"HR": trm.HitRate, "Precision": trm.Precision, "Recall": trm.Recall, "F1": trm.F1}.items()
        for make in (functools.partial(cls, None),)
    ),
    (lambda: trm.NDCG(5, gain="log"), ValueError, "gain must be one of 'linear', 'exponential', got 'log'"),
    (lambda: trm.MAP(5, normalize="hits"), ValueError, "normalize must be one of 'relevant', 'min', got 'hits'"),
    (lambda: trm.Precision(5, denominator="R"), ValueError, "denominator must be one of"),
    (lambda: trm.Precision(5, zero_division=0.5), ValueError, "zero_division must be 0.0, 1.0 or nan"),
    (lambda: trm.Recall(5, normalize="min", weighted=True), ValueError, "normalize='min'.* or weighted"),
    (lambda: trm.Recall(5, normalize="k"), ValueError, "normalize must be one of 'relevant', 'min', got 'k'"),
    (lambda: trm.F1(5, normalize="relevant"), ValueError, "normalize must be one of 'k', 'min', got 'relevant'"),
    (lambda: trm.AUROC(weight="all"), ValueError, "weight must be one of None, 'relevant', 'candidates'"),
    (lambda: trm.HR(5, ties="first"), ValueError, "ties must be one of"),
    (lambda: trm.HR(5, overlap="drop"), ValueError, "overlap must be one of"),
    (lambda: trm.HR(5, empty_target_action="ignore"), ValueError, "empty_target_action must be one of"),
    (lambda: trm.HR(5, validate_args="lazily"), ValueError, "validate_args must be"),
    (lambda: trm.HR(5, padding_idx=0.5), TypeError, "padding_idx must be an item id, got 0.5"),
    (lambda: trm.HR(5, padding_idx=-100), ValueError, "padding_idx must be an item id >= 0"),
    (lambda: trm.HR(5, score_threshold="3"), TypeError, "score_threshold must be a number, got '3'"),
    (lambda: trm.Precision(5, zero_division="x"), ValueError, "zero_division must be"),
    (lambda: trm.HR(5, weights=3), ValueError, r"HR has no option 'weights': rows are weighed in update\("),
    (lambda: trm.AUROC(weights="relevant"), ValueError, "AUROC has no option 'weights'; did you mean 'weight'"),
    (lambda: trm.HR(5, xyz=3), ValueError, "HR has no option 'xyz'. There are score_threshold, ties, "),
    (lambda: trm.Recall(5, truncated=True), ValueError, "Recall has no option 'truncated'"),
    (lambda: trm.Precision(5, denominator="min"), ValueError, "denominator must be one of 'k', 'recommended'"),
    (lambda: trm.Precision(5, normalize="min", denominator="recommended"), ValueError, "or by the recommended items"),
    (lambda: trm.F1(5, normalize="min", denominator="recommended"), ValueError, "or by the recommended items"),
    (lambda: trm.HR(5, max_relevant=0), ValueError, "max_relevant must be at least 1"),
    (lambda: trm.Recall(5, weighted="no"), TypeError, "weighted is True or False, got 'no'"),
]


@pytest.mark.parametrize(("make", "error", "message"), BAD_OPTIONS)
def test_bad_options(make, error, message):
    """Options are refused when the metric is made, not at the first batch."""
    with pytest.raises(error, match=message):
        make()


SCORES, TARGET = torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([2])
RANKING = trm.Scores(SCORES, TARGET).ranking(depth=2)
BAD_UPDATES = [
    ((), {}, TypeError, "update takes scores with target, or ranks, a Ranking, .*; got none"),
    ((SCORES,), {}, ValueError, "scores were given without target"),
    ((SCORES, TARGET), {"ranks": TARGET}, TypeError, r"ranks are update\(ranks\)"),
    ((RANKING,), {"ranking": RANKING}, TypeError, "update has no argument 'ranking'"),
    ((TARGET, TARGET), {}, TypeError, r"Lists\(item_ids, target\)"),
    ((SCORES, TARGET), {"depth": 3}, ValueError, "depth belongs to ranks"),
    (("x",), {}, TypeError, "scores must be a tensor, got str"),
    ((RANKING,), {"depth": 3}, ValueError, "depth belongs to ranks, got Ranking"),
    ((RANKING, TARGET), {}, TypeError, "target goes with scores, got Ranking as the first argument"),
    ((TARGET,), {"exclude": TARGET}, TypeError, "exclude goes with scores, got a torch.int64 tensor"),
    ((SCORES,), {}, ValueError, r"ranks are integers, or Ranks\(ranks\)"),
    ((RANKING,), {}, ValueError, "needs the first 3 ranks, but the ranks are known to depth 2"),
    ((trm.get_topk_ranks(SCORES, TARGET, 2),), {}, ValueError, "known to depth 2 only"),
    ((TARGET,), {"depth": 2}, ValueError, "known to depth 2 only"),
    ((SCORES, TARGET), {"weights": torch.ones(2)}, ValueError, r"weights must be \[1\], one per row, on cpu"),
    ((SCORES, TARGET), {"weights": torch.tensor([-1.0])}, ValueError, "a weight that is negative"),
    ((SCORES, TARGET), {"weights": torch.tensor([math.nan])}, ValueError, "a weight that is negative, NaN"),
    ((SCORES, TARGET), {"weights": [1.0]}, TypeError, "weights must be a tensor, got list"),
    ((SCORES.to("meta"), TARGET.to("meta")), {}, ValueError, r"HR@3 is on cpu, its input on meta.*\.to\(device\)"),
    ((torch.tensor([[math.nan, 1.0]]), TARGET * 0), {}, ValueError, "NaN or .inf"),
    (
        (trm.Lists(torch.tensor([[0, 1, 2]]), TARGET, exclude=torch.tensor([0])).ranking(),),
        {},
        ValueError,
        "known to fewer than k places",
    ),
]


@pytest.mark.parametrize("call", ["update", "forward"])
@pytest.mark.parametrize(("args", "kwargs", "error", "message"), BAD_UPDATES)
def test_a_rejected_call_changes_nothing(call, args, kwargs, error, message):
    """Update and forward raise before any state, count or cached value changes."""
    metric = trm.HR(3)
    metric.update(SCORES, TARGET)
    metric.compute()
    summary = metric.last_summary()
    state = {name: s.clone() for name, s in metric.metric_state.items()}
    with pytest.raises(error, match=message):
        getattr(metric, call)(*args, **kwargs)
    assert all(torch.equal(s, state[name]) for name, s in metric.metric_state.items())
    assert metric.update_count == 1
    assert metric.last_summary() is summary
    assert metric._computed


@pytest.mark.parametrize(
    "metric",
    [
        *(trm.RPrecision(), trm.AUROC(), trm.MRR(), trm.MAP(), trm.NDCG()),
        *(trm.Precision(2, denominator="recommended"), trm.HR(2, score_threshold=1.0)),
    ],
    ids=lambda metric: metric.label,
)
def test_ranks_of_unknown_depth(metric):
    """Ranks without a depth may be cut anywhere: metrics that need more than ranks up to a finite k refuse them."""
    with pytest.raises(ValueError, match=r"is unknown: pass update\(ranks, depth=...\)|AUROC needs to know how many"):
        metric.update(torch.tensor([[1, 4]]))
    assert value(trm.HR(3), torch.tensor([[9], [2]])) == 0.5


def test_truncated_rankings_are_refused():
    """Metrics refuse a Ranking that lacks what they read: all ranks, the number of items, or their score threshold."""
    ranking = trm.Ranks(torch.tensor([[1, 4, 5]]), depth=2, num_ranked=10).ranking()
    for metric in (trm.AUROC(), trm.MRR(), trm.MAP(), trm.NDCG(), trm.RPrecision()):
        with pytest.raises(ValueError, match="known to depth 2 only"):
            metric.update(ranking)
    with pytest.raises(ValueError, match=r"Ranks\(..., num_ranked=...\)"):
        trm.AUROC().update(trm.Lists(torch.tensor([[1, 2]]), torch.tensor([1]), complete=True))
    with pytest.raises(ValueError, match="denominator='recommended' needs to know"):
        trm.Precision(1, denominator="recommended").update(trm.Ranks(torch.tensor([1])))
    with pytest.raises(ValueError, match=r"score >= 2.0, but the ranking was made with score_threshold=None"):
        trm.HR(1, score_threshold=2.0).update(trm.Scores(SCORES, TARGET).ranking())


@pytest.mark.parametrize("option", [{"ties": "pessimistic"}, {"padding_idx": 0}, {"overlap": "keep"}])
def test_options_that_contradict_the_ranking(option):
    """An option given explicitly must be the one that the Ranking was made with; a default accepts any."""
    made_otherwise = trm.Scores(SCORES, TARGET).ranking()
    with pytest.raises(ValueError, match="but the ranking was made with"):
        trm.HR(1, **option).update(made_otherwise)
    trm.HR(1).update(rank_scores(SCORES, TARGET, **option))
    trm.HR(1, **option).update(rank_scores(SCORES, TARGET, **option))


def test_gains_are_binary_for_metrics_that_cannot_use_them():
    """Graded targets are relevant where > 0; only NDCG and weighted recall read the grade."""
    gains = torch.tensor([[3.0, 0.0, -1.0, 0.5]])
    scores = torch.tensor([[0.4, 0.3, 0.2, 0.1]])
    for metric in (
        trm.HR(2),
        trm.Precision(2),
        trm.Recall(2),
        trm.F1(2),
        trm.MAP(2),
        trm.MRR(2),
        trm.RPrecision(),
        trm.AUROC(),
    ):
        other = metric.clone()
        assert value(metric, scores, **graded(gains)) == value(other, scores, gains > 0)


@pytest.mark.parametrize("metric", [trm.Recall(2, weighted=True), trm.Recall(2), trm.F1(2), trm.NDCG(2), trm.MAP(2)])
def test_bare_ranks_count_all_relevant_items(metric):
    """Relevant items count even if they are beyond the columns of ranks that a cut-off reads."""
    ranks = torch.tensor([[1, 3, 4, 5, 6], [2, 0, 7, 1, 0]])
    whole = metric.clone()
    metric.update(ranks)
    whole.update(trm.Ranks(ranks))
    assert metric.compute() == whole.compute()
    lists, target = torch.tensor([[9, 8]]), torch.tensor([[9, 1, 2, 3, 4]])
    metric.reset()
    metric.update(trm.Lists(lists, target))
    whole.reset()
    whole.update(torch.tensor([[1, 99, 99, 99, 99]]), depth=2)
    assert metric.compute() == whole.compute()


def test_a_row_without_a_value_leaves_the_mean():
    """A row whose value is inf / inf, as unchecked gains can make it, is left out, and the other rows count."""
    metric = trm.NDCG(2, validate_args=False)
    metric.update(torch.tensor([[0.1, 0.9], [0.1, 0.9]]), torch.tensor([[1], [1]]), gains=torch.tensor([[INF], [2.0]]))
    assert metric.compute() == 1
    assert metric.num_users == 1


def test_a_bad_row_is_not_empty_too():
    """A row that is left out for a NaN score is not also reported as a row without a relevant item."""
    metric = trm.HR(1, empty_target_action="error", validate_args="deferred")
    metric.update(torch.tensor([[0.1, 0.9], [math.nan, 0.9]]), torch.tensor([[1], [1]]))
    with pytest.raises(ValueError, match="1 row with a score that is NaN") as error:
        metric.compute()
    assert "without a relevant item" not in str(error.value)


def test_a_standard_error_moves_with_its_metric():
    """The standard error of a metric moves to the metric's new device."""
    metric = trm.HR(1)
    metric.update(torch.tensor([[0.1, 0.9], [0.1, 0.9]]), torch.tensor([1, 0]))
    metric.compute()
    assert metric.to("meta").standard_error().is_meta


def test_batches_in_and_out_of_inference_mode():
    """Tensors cached by a batch in inference mode serve batches outside it."""
    scores, target = torch.randn(300, 4000), torch.arange(300)[:, None] + torch.arange(3)
    inside, outside = trm.NDCG(5), trm.NDCG(5)
    with torch.inference_mode():
        inside.update(scores, target)
    outside.update(scores, target)
    assert inside.compute() == outside.compute()
