"""Values of every metric: by hand, against plain Python, and at the edges."""

import math

import hypothesis.strategies as st
import pytest
import reference
import torch
from hypothesis import example, given, settings
from metric_classes import ACCURACY, cutoffs_of, reference_of
from rankings import batches, padded, rank_scores
from sizes import examples
from states import same, snapshot

import torchrecmetrics as trm

INF = math.inf


def value(metric, *args, **kwargs):
    metric.update(*args, **kwargs)
    return metric.compute().item()


# Three users: R = 3 with hits at ranks 1, 3, 9; R = 1 with rank 2; R = 2 with ranks 6 and 8, beyond the first five.
RANKS = [[1, 3, 9], [2, 0, 0], [6, 8, 0]]
LOG = {place: 1 / math.log2(1 + place) for place in range(1, 10)}
NDCG_5 = ((LOG[1] + LOG[3]) / (LOG[1] + LOG[2] + LOG[3]) + LOG[2] / LOG[1] + 0) / 3
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
    (trm.NDCG(5), NDCG_5),
    (trm.NDCG(5, gain="exponential"), NDCG_5),  # without gains 2^1 - 1 = 1
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
def test_three_users_have_the_value_worked_out_on_paper(metric, expected, device):
    ranking = trm.Ranks(torch.tensor(RANKS, device=device), num_ranked=10, complete=True).ranking()
    metric = metric.clone().to(device)

    assert value(metric, ranking) == pytest.approx(expected, abs=1e-15)
    assert (metric.num_users, metric.num_skipped) == (3, 0)


@pytest.mark.parametrize(
    ("true", "estimated", "precision", "recall"),
    [
        ([2, 5, 4, 2, 3, 4], [4.9, 4.5, 4.3, 3.6, 3.4, 2.3], 2 / 3, 2 / 3),
        ([5, 2, 5, 4], [4.9, 4.5, 3.4, 2.3], 1 / 2, 1 / 3),
    ],
)
def test_a_score_threshold_recommends_what_surprises_faq_prints(true, estimated, precision, recall, device):
    """Only estimates from 3.5 on are recommended, and precision is the share of these."""
    batch = torch.tensor([estimated], device=device), torch.tensor([true], device=device) >= 3.5

    assert value(trm.Precision(3, denominator="recommended", score_threshold=3.5).to(device), *batch) == precision
    assert value(trm.Recall(3, score_threshold=3.5).to(device), *batch) == recall
    assert value(trm.F1(3, score_threshold=3.5).to(device), *batch) == pytest.approx(recall)  # 2 h / (3 + 3)


ONE_HIT = torch.tensor([[0.1, 0.9]]), torch.tensor([1])


@pytest.mark.parametrize(("zero_division", "num_users"), [(0.0, 1), (1.0, 1), (math.nan, 0)])
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_a_row_whose_scores_are_all_below_the_threshold_has_the_value_zero_division(zero_division, num_users):
    """0 / 0; nan leaves the row out."""
    metric = trm.Precision(2, denominator="recommended", score_threshold=9.0, zero_division=zero_division)

    assert value(metric, *ONE_HIT) == pytest.approx(zero_division, nan_ok=True)
    assert metric.num_users == num_users


ONE_HIT_AND_ONE_EMPTY_ROW = torch.tensor([[0.1, 0.9], [0.3, 0.2]]), torch.tensor([[1], [-1]])


@pytest.mark.parametrize(
    ("action", "zero_division", "expected"),
    [
        *((action, zero_division, 1) for action in ("skip", "pos") for zero_division in (0.0, 1.0, math.nan)),
        ("neg", 0.0, (1 + 0) / 2),
        ("neg", 1.0, (1 + 1) / 2),
        ("neg", math.nan, 1 / 1),
    ],
)
@pytest.mark.parametrize("options", [{}, {"normalize": "min"}, {"weighted": True}], ids=str)
def test_rows_without_a_relevant_item_have_zero_division_as_recall_with_neg_alone(
    action, zero_division, expected, options
):
    metric = trm.Recall(1, zero_division=zero_division, empty_target_action=action, **options)
    assert value(metric, *ONE_HIT_AND_ONE_EMPTY_ROW, gains=torch.ones(2, 1)) == expected


def test_zero_division_is_not_read_where_k_divides():
    metric = trm.Precision(1, zero_division=1.0, empty_target_action="neg")
    assert value(metric, *ONE_HIT_AND_ONE_EMPTY_ROW) == (1 / 1 + 0 / 1) / 2


# each metric, and the arguments of its formula in plain Python behind the user
DEFAULTS = [(cls(*k), *k) for cls in ACCURACY for k in cutoffs_of(cls.formula, 3)]
WITH_OPTIONS = [
    (trm.HitRate(3, score_threshold=0.3), 3, True),
    (trm.Precision(3, normalize="min"), 3, "min"),
    (trm.Precision(3, denominator="recommended", zero_division=1.0), 3, "recommended", False, 1.0),
    (trm.Precision(3, denominator="recommended", score_threshold=0.3), 3, "recommended", True),
    (trm.Recall(2, normalize="min"), 2, "min"),
    (trm.Recall(3, weighted=True), 3, "relevant", True),
    (trm.Recall(3, zero_division=1.0), 3, "relevant", False, False, 1.0),
    (trm.Recall(3, score_threshold=0.3), 3, "relevant", False, True),
    (trm.MAP(2, normalize="min"), 2, "min"),
    (trm.DCG(3, gain="exponential"), 3),
    (trm.NDCG(3, gain="exponential"), 3),
    (trm.NDCG(gain="exponential"),),
]


def arguments(batch):
    """Return scores, and further arguments of `update`; a matrix would not be as wide as the target."""
    scores, targets, gains, history, items = batch
    target = torch.nn.functional.pad(padded(targets, -1, torch.int64), (0, items), value=-1)
    gains = torch.nn.functional.pad(padded(gains, 0.0, torch.float32), (0, items))
    exclude = padded(history, -1, torch.int64)
    return torch.tensor(scores).view(-1, items), {"target": target, "gains": gains, "exclude": exclude}


def plain_values(metric, options, batch, ties, overlap):
    """Return the value of each row by the definition of one user; the gain 2^g - 1 may be below 0."""
    scores, targets, gains, history, _ = batch
    values = []
    for row_scores, items, item_gains, excluded in zip(scores, targets, gains, history, strict=True):
        if "exponential" in metric.label:
            item_gains = [2.0**gain - 1 for gain in item_gains]
        gain_of = dict(zip(items, item_gains, strict=True))
        user = reference.rank(row_scores, gain_of, excluded, ties, overlap=overlap, threshold=0.3)
        values.append(reference_of(metric.formula)(user, *options) if user.gains else math.nan)
    return values


# scores, targets, gains and history of five equal scores, and of two pairs of them; and the number of items
TIES = [[0.0] * 5, [1.0, 1.0, 0.5, 0.5, -INF]], [[2], [0, 3, 1]], [[1.0], [1.0, 2.0, -1.0]], [[0], [1]], 5


@pytest.mark.parametrize("row", DEFAULTS + WITH_OPTIONS, ids=lambda row: row[0].label)
@settings(max_examples=examples(80), deadline=None)
@given(
    batch_and_ties=st.one_of(
        st.tuples(batches(), st.sampled_from(["optimistic", "realistic", "pessimistic"])),
        st.tuples(batches(most_items=5), st.just("expected")),  # of nine equal scores there are 9! orders
    ),
    weights=st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=4, max_size=4),
    overlap=st.sampled_from(["keep", "miss"]),
)
@example(batch_and_ties=(TIES, "expected"), weights=[1.0, 3.0], overlap="miss")
@pytest.mark.filterwarnings("ignore:no row to average over")
def test_value_error_and_number_of_users_of_random_rows_are_those_of_plain_python(
    row, batch_and_ties, weights, overlap
):
    (metric, *options), (batch, ties) = row, batch_and_ties
    weights = weights[: len(batch[0])]
    values = plain_values(metric, options, batch, ties, overlap)
    mean, error = reference.mean(values, weights)
    num_users = sum(not math.isnan(v) and w > 0 for v, w in zip(values, weights, strict=True))
    metric = type(metric)(*([metric.k] if metric.k else []), **metric.options, ties=ties, overlap=overlap)
    scores, more = arguments(batch)
    metric.update(scores, **more, weights=torch.tensor(weights))

    assert metric.compute().item() == pytest.approx(mean, abs=1e-12, nan_ok=True)
    assert metric.standard_error().item() == pytest.approx(error, abs=1e-7, nan_ok=True)
    assert metric.num_users == num_users


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ([2e-14, 1e-14], (1 + 2 * LOG[2]) / (2 + LOG[2])),
        ([3000, 2999], (0.5 * LOG[1] + LOG[2]) / (LOG[1] + 0.5 * LOG[2])),  # 2^3000 overflows
    ],
)
def test_exponential_gains_may_be_near_0_or_beyond_all_floats(gains, expected):
    batch = {"target": torch.tensor([[0, 1]]), "gains": torch.tensor([gains])}
    metric = trm.NDCG(gain="exponential")

    assert value(metric, torch.tensor([[0.1, 0.2]]), **batch) == pytest.approx(expected, rel=1e-12)


def test_items_that_share_a_score_share_their_mean_gain_at_realistic_ranks():
    metric = trm.DCG(2, ties="realistic")
    metric.update(torch.tensor([[0.5, 0.5, 0.1]]), torch.tensor([[0, 1]]), gains=torch.tensor([[3.0, 1.0]]))

    assert metric.compute().item() == pytest.approx((3 + 1) / 2 * (LOG[1] + LOG[2]))


def of_found(empty):
    """Return a class whose formula gives rows without a relevant item this value."""

    class Found(trm.RankingMetric):
        formula = staticmethod(
            lambda ranking, k: (ranking.num_hits(k) > 0).double().where(ranking.num_relevant > 0, empty)
        )

    return Found


@pytest.mark.parametrize(
    ("action", "expected", "num_users"), [("skip", 1 / 1, 1), ("neg", (1 + 0) / 2, 2), ("pos", (1 + 1) / 2, 2)]
)
@pytest.mark.parametrize("make", [*ACCURACY, *map(of_found, [0.0, 7, INF, math.nan])])
def test_rows_without_a_relevant_item_are_left_out_or_count_0_or_1(make, action, expected, num_users):
    metric = make(*cutoffs_of(make.formula, 1)[0], empty_target_action=action)

    assert value(metric, *ONE_HIT_AND_ONE_EMPTY_ROW) == expected
    assert (metric.num_users, metric.num_skipped) == (num_users, 1)


@pytest.mark.parametrize(("metric", "num_users"), [(trm.AUROC(empty_target_action="neg"), 1), (trm.HR(1), 2)], ids=str)
def test_auroc_alone_leaves_out_rows_in_which_all_items_are_relevant(metric, num_users):
    """It has no pair to compare, whatever `empty_target_action` is."""
    metric.update(torch.tensor([[0.3, 0.2], [0.1, 0.2]]), torch.tensor([[0, 1], [1, -1]]))

    assert metric.compute() == 1
    assert metric.num_users == num_users


@pytest.mark.parametrize("validate_args", [True, False])
def test_rows_without_a_relevant_item_can_be_an_error(validate_args):
    metric = trm.HR(1, empty_target_action="error", validate_args=validate_args)

    with pytest.raises(ValueError, match=r"1 of 2 rows without a relevant item .*: row 1"):
        metric.update(*ONE_HIT_AND_ONE_EMPTY_ROW)


@pytest.mark.filterwarnings("ignore:no row to average over")
def test_auroc_weighted_by_relevant_items_does_not_count_rows_without_one():
    metric = trm.AUROC(weight="relevant", empty_target_action="pos")

    assert math.isnan(value(metric, torch.tensor([[0.1, 0.2]]), torch.tensor([-1])))
    assert metric.num_users == 0


def test_rows_with_a_weight_are_counted_as_averaged_empty_unreachable_and_tied():
    plain, tied, unreachable = [0.1, 0.2, 0.3], [0.1, 0.1, 0.3], [-INF, 0.2, 0.3]
    scores = torch.tensor([plain, tied, unreachable, plain, tied, plain])
    metric = trm.MRR()
    metric.update(scores, torch.tensor([0, 0, 0, -1, 0, -1]), weights=torch.tensor([1, 1, 1, 1, 0, 0]))
    metric.compute()

    assert (metric.num_users, metric.num_skipped, metric.num_unreachable, metric.num_tied) == (3, 1, 1, 1)


@pytest.mark.parametrize(("k", "num_tied"), [(1, 0), (2, 1)])
def test_a_tie_counts_that_begins_within_the_cut_off(k, num_tied):
    metric = trm.HR(k)
    metric.update(torch.tensor([[0.9, 0.1, 0.1]]), torch.tensor([1]))

    assert metric.num_tied == num_tied


@pytest.mark.parametrize(("others", "tied"), [([], 1), (["HR@3"], 2), (["MRR"], 3)])
@pytest.mark.parametrize("split", [1, 2, 4])
def test_a_tie_counts_within_the_ranks_that_metrics_read_whatever_the_other_rows(others, tied, split):
    """RPrecision reads R ranks."""
    scores = torch.tensor([[5.0, 4, 4, 3, 2, 1], [6, 5, 4, 3, 2, 2], [6, 5, 3, 3, 2, 1], [6, 5, 4, 3, 2, 1]])
    target = torch.tensor([[1, -1, -1, -1], [4, 0, 1, -1], [2, 0, 3, -1], [0, 1, 2, 3]])
    # relevant items are tied at ranks 2 and 3, R = 1; at 5 and 6, R = 3; at 3 and 4, R = 3; nowhere
    metrics = trm.RecMetricCollection(["RPrecision", *others])
    for rows in torch.arange(4).split(split):
        metrics.update(scores[rows], target[rows])

    assert metrics["RPrecision"].num_tied == tied


def error_of(values, weights, at_once):
    """Return the standard error of a mean of row values >= 1, added `at_once` rows at a time."""
    metric = trm.MeanRank()
    for some, weight in zip(values.split(at_once), weights.split(at_once), strict=True):
        metric.update(trm.Ranks(some, complete=True), weights=weight)
    metric.compute()
    return metric.standard_error().item()


@pytest.mark.parametrize("rows", [2, 3, 1000])
@pytest.mark.parametrize("constant", [1.0, 1.1, 4 / 3, 1.7, 123.456])
def test_equal_values_have_a_standard_error_of_exactly_0(rows, constant, generator):
    values = torch.full((rows,), constant, dtype=torch.float64)
    weights = torch.rand(rows, generator=generator, dtype=torch.float64) * 9 + 1e-3

    assert error_of(values, torch.ones(rows), at_once=97) == 0
    assert error_of(values, weights, at_once=97) == 0


@pytest.mark.parametrize("at_once", [500, 100_000])
@pytest.mark.parametrize(("rows", "spread"), [(2, 1e-6), (1000, 1e-5), (100_000, 1e-4)])
def test_a_standard_error_of_a_ten_millionth_of_the_value_is_not_lost_in_rounding(rows, spread, at_once, generator):
    values = 3 * (1 + spread * (torch.arange(rows, dtype=torch.float64) % 2))
    weights = torch.rand(rows, generator=generator, dtype=torch.float64) + 0.5
    mean = (weights * values).sum() / weights.sum()
    expected = ((weights * (values - mean)).square().sum() * rows / (rows - 1)).sqrt() / weights.sum()

    assert error_of(values, weights, at_once) == pytest.approx(expected.item(), rel=0.05)


@pytest.mark.parametrize(
    ("metric", "label"),
    [
        (trm.HR(10), "HR@10"),
        (trm.NDCG(10, gain="exponential"), "NDCG-exponential@10"),
        (trm.Precision(3, denominator="recommended", score_threshold=3.5), "Precision-recommended-t3_5@3"),
        (trm.Precision(3, denominator="recommended", zero_division=1.0), "Precision-recommended-zero_division_1@3"),
        (trm.Recall(5, weighted=True), "Recall-weighted@5"),
        (trm.Recall(5, zero_division=1.0), "Recall-zero_division_1@5"),
        (trm.HR(3, score_threshold=1000000.1), "HR-t1000000_1@3"),
        (trm.AUROC(weight="relevant"), "AUROC-relevant"),
    ],
)
def test_a_label_is_made_of_name_options_and_cut_off(metric, label):
    """In letters, digits, "-", "_" and "@", which ModuleDict and file names can hold."""
    assert metric.label == label


BAD_OPTIONS = [
    (lambda: trm.HR(0), ValueError, "k must be at least 1, got 0"),
    (lambda: trm.HR(None), TypeError, r"'HR' needs a cut-off: HitRate\(10\)"),
    (lambda: trm.NDCG(5, gain="log"), ValueError, "gain must be one of 'linear', 'exponential', got 'log'"),
    (lambda: trm.Recall(5, normalize="k"), ValueError, "normalize must be one of 'relevant', 'min', got 'k'"),
    (lambda: trm.Recall(5, normalize="min", weighted=True), ValueError, "normalize='min'.* or weighted"),
    (lambda: trm.Recall(5, weighted="no"), TypeError, "weighted is True or False, got 'no'"),
    (lambda: trm.Recall(5, truncated=True), ValueError, "Recall has no option 'truncated'"),
    (lambda: trm.Precision(5, denominator="R"), ValueError, "denominator must be one of 'k', 'recommended'"),
    (lambda: trm.Precision(5, normalize="min", denominator="recommended"), ValueError, "or by the recommended items"),
    (lambda: trm.Precision(5, zero_division=0.5), ValueError, "zero_division must be 0.0, 1.0 or nan"),
    (lambda: trm.AUROC(weight="all"), ValueError, "weight must be one of None, 'relevant', 'candidates'"),
    (lambda: trm.HR(5, ties="first"), ValueError, "ties must be one of"),
    (lambda: trm.HR(5, validate_args="lazily"), ValueError, "validate_args must be"),
    (lambda: trm.HR(5, padding_idx=0.5), TypeError, "padding_idx must be an item id, got 0.5"),
    (lambda: trm.HR(5, padding_idx=-100), ValueError, "padding_idx must be an item id >= 0"),
    (lambda: trm.HR(5, score_threshold="3"), TypeError, "score_threshold must be a number, got '3'"),
    (lambda: trm.HR(5, weights=3), ValueError, r"HR has no option 'weights': pass weights of rows to update\("),
    (lambda: trm.HR(10, topk=5), ValueError, "HR has no option 'topk'; did you mean 'k'"),
    (lambda: trm.HR(5, xyz=3), ValueError, "HR has no option 'xyz'. There are k, score_threshold, ties, "),
    (lambda: trm.HR(5, max_relevant=0), ValueError, "max_relevant must be at least 1"),
]


@pytest.mark.parametrize(("make", "error", "message"), BAD_OPTIONS)
def test_an_option_is_refused_when_the_metric_is_made(make, error, message):
    with pytest.raises(error, match=message):
        make()


SCORES, TARGET = torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([2])
RANKING = trm.Scores(SCORES, TARGET).ranking(depth=2)
SHORT = trm.Lists(torch.tensor([[0, 1, 2]]), TARGET, exclude=torch.tensor([0])).ranking()
BAD_UPDATES = [
    ((), {}, TypeError, "update takes scores with target, or ranks, a Ranking, .*; got none"),
    ((SCORES,), {}, ValueError, r"scores need a target.*ranks as integers, or as Ranks\(ranks, depth=\)"),
    ((RANKING,), {"ranking": RANKING}, TypeError, "update has no argument 'ranking'"),
    ((TARGET, TARGET), {}, TypeError, r"Lists\(item_ids, target\)"),
    ((SCORES, TARGET), {"depth": 3}, ValueError, "depth= is for ranks"),
    ((RANKING, TARGET), {}, TypeError, "target= needs scores, got Ranking as the first argument"),
    ((TARGET,), {"exclude": TARGET}, TypeError, "exclude= needs scores, got a torch.int64 tensor"),
    ((RANKING,), {}, ValueError, "needs the first 3 ranks, but the ranks are known to depth 2"),
    ((trm.get_topk_ranks(SCORES, TARGET, 2),), {}, ValueError, "known to depth 2 only"),
    ((SHORT,), {}, ValueError, "with fewer than k known ranks"),
    ((SCORES, TARGET), {"weights": torch.ones(2)}, ValueError, r"weights must be \[1\], one per row, on cpu"),
    ((SCORES, TARGET), {"weights": torch.tensor([-1.0])}, ValueError, "a weight that is negative"),
    ((SCORES.to("meta"), TARGET.to("meta")), {}, ValueError, r"HR@3 is on cpu, its input on meta.*\.to\(device\)"),
    ((torch.tensor([[math.nan, 1.0]]), TARGET * 0), {}, ValueError, "NaN or .inf"),
]


@pytest.mark.parametrize("call", ["update", "forward"])
@pytest.mark.parametrize(("args", "kwargs", "error", "message"), BAD_UPDATES)
def test_a_batch_that_is_refused_changes_no_state_count_or_cached_value(call, args, kwargs, error, message):
    metric = trm.HR(3)
    metric.update(SCORES, TARGET)
    metric.compute()
    before, result = snapshot(metric), metric.last_result

    with pytest.raises(error, match=message):
        getattr(metric, call)(*args, **kwargs)
    assert same(snapshot(metric), before)
    assert metric.last_result is result


CUT_RANKS = trm.Ranks(torch.tensor([[1, 4, 5]]), depth=2, num_ranked=10)


@pytest.mark.parametrize(
    ("metric", "batch", "message"),
    [
        *(
            (metric, CUT_RANKS, "known to depth 2 only")
            for metric in (trm.RPrecision(), trm.MRR(), trm.MAP(), trm.NDCG(), trm.AUROC())
        ),
        (trm.AUROC(), trm.Ranks(torch.tensor([[1, 4]]), complete=True), "AUROC needs to know how many"),
        (trm.AUROC(), trm.Lists(torch.tensor([[1, 2]]), TARGET, complete=True), r"Ranks\(..., num_ranked=...\)"),
        (
            trm.Precision(1, denominator="recommended"),
            trm.Ranks(torch.tensor([1]), complete=True),
            "denominator='recommended' needs to know",
        ),
        (trm.HR(1, score_threshold=2.0), RANKING, "was made with score_threshold=None"),
    ],
)
def test_a_ranking_that_lacks_what_a_metric_reads_is_refused(metric, batch, message):
    with pytest.raises(ValueError, match=message):
        metric.update(batch)


OPTIONS = pytest.mark.parametrize("option", [{"ties": "pessimistic"}, {"padding_idx": 0}, {"overlap": "keep"}], ids=str)


@OPTIONS
def test_a_metric_without_options_takes_a_ranking_made_with_any(option):
    assert trm.HR(2)(rank_scores(SCORES, TARGET, **option)) == 1


@OPTIONS
def test_a_ranking_made_with_another_option_is_refused(option):
    with pytest.raises(ValueError, match="but the ranking was made with"):
        trm.HR(1, **option).update(trm.Scores(SCORES, TARGET).ranking())


def test_relevant_items_that_a_list_lacks_count():
    lists = trm.Lists(torch.tensor([[9, 8]]), torch.tensor([[9, 1, 2, 3, 4]]))
    assert value(trm.Recall(2), lists) == 1 / 5


def test_a_row_whose_value_is_inf_over_inf_is_left_out():
    metric = trm.NDCG(2, validate_args=False)
    metric.update(torch.tensor([[0.1, 0.9], [0.1, 0.9]]), torch.tensor([[1], [1]]), gains=torch.tensor([[INF], [2.0]]))

    assert metric.compute() == 1
    assert metric.num_users == 1


def test_a_formula_is_nan_in_a_row_whose_score_is_nan():
    scores, target = torch.tensor([[0.1, 0.9], [math.nan, 0.9]]), torch.tensor([1, 1])
    ranking = trm.Scores(scores, target).ranking(validate_args="deferred")

    assert trm.functional.hit_rate(ranking, 1).tolist() == pytest.approx([1, math.nan], nan_ok=True)
