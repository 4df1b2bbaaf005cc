"""`compare` agrees with scipy, statsmodels and enumeration: pairing, corrections, clusters, seeds and groups."""

import itertools
import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples

import torchrecmetrics as trm
from torchrecmetrics.metrics.names import _CLASSES
from torchrecmetrics.results import pairing

np = pytest.importorskip("numpy")
stats = pytest.importorskip("scipy.stats")

NAN = float("nan")


def rows_of(values, ids=None, **options):
    """Return `Rows` of these columns, as float64; higher values are better."""
    values = {label: torch.as_tensor(column, dtype=torch.float64) for label, column in values.items()}
    options.setdefault("higher_is_better", dict.fromkeys(values, True))
    return trm.Rows(values, torch.arange(len(next(iter(values.values())))) if ids is None else ids, **options)


def labelled(columns):
    """Return rows [n, labels] as `Rows` with the labels m0, m1, ..."""
    return rows_of({f"m{i}": column for i, column in enumerate(columns.T)})


def models(n, labels=1, shift=0.0, seed=0, alike=0.8):
    """Return two runs of n rows whose labels are correlated."""
    generator = torch.Generator().manual_seed(seed)
    rand = lambda *shape: torch.rand(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    users = rand(n, 1)
    return {
        name: labelled(users + alike * rand(n, 1) + (1 - alike) * rand(n, labels) + at)
        for name, at in (("pop", 0), ("gcn", shift))
    }


def with_options(runs, **options):
    """Return runs with the same values and ids, and these options."""
    return {name: rows_of(rows.values, rows.ids, **options) for name, rows in runs.items()}


def differences(runs, label="m0"):
    return (runs["gcn"].values[label] - runs["pop"].values[label]).numpy()


def words(text):
    """Return the text without its line breaks."""
    return " ".join(str(text).split())


@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
def test_the_t_test_is_scipys(alternative):
    runs = models(60, shift=0.05)
    result = trm.compare(runs, test="t", alternative=alternative, level=0.9)["m0"]
    expected = stats.ttest_rel(runs["gcn"].values["m0"], runs["pop"].values["m0"], alternative=alternative)

    assert result.p == result.adjusted_p == pytest.approx(expected.pvalue)
    assert (result.low, result.high) == pytest.approx(tuple(expected.confidence_interval(0.9)))
    assert result.effect_size == pytest.approx(expected.statistic / 60**0.5)


@pytest.mark.parametrize(
    ("alternative", "level", "quantile"), [("two-sided", 0.95, 0.975), ("greater", 0.9, 0.9), ("less", 0.9, 0.9)]
)
def test_the_detectable_difference_has_power_0_8(alternative, level, quantile):
    runs = models(60, shift=0.05)
    result = trm.compare(runs, test="t", alternative=alternative, level=level)["m0"]
    t = stats.t(59)

    assert result.detectable == pytest.approx((t.ppf(quantile) + t.ppf(0.8)) * stats.sem(differences(runs)))


@pytest.mark.parametrize(("alternative", "size"), [("two-sided", abs), ("greater", int)])
@pytest.mark.parametrize(
    "tenths", [(1, 2, 3, -1, 2, 1, -3, 2, 1, -2, 3), (1, 2, -3, 1, 2, -3, *[0] * 5), (1, 1, 1, -3, *[0] * 7)]
)
@pytest.mark.parametrize("base", [torch.zeros(11), torch.arange(11) / 7], ids=["exact", "rounded"])
def test_p_is_the_share_of_all_flips_whose_sum_is_as_large_but_for_rounding(base, tenths, alternative, size):
    runs = {"a": rows_of({"m": base}), "b": rows_of({"m": base.double() + torch.tensor(tenths).double() / 10})}
    flips = itertools.product((1, -1), repeat=11)
    sums = [sum(sign * tenth for sign, tenth in zip(signs, tenths, strict=True)) for signs in flips]

    p = sum(size(each) >= size(sum(tenths)) for each in sums) / 2**11
    assert trm.compare(runs, alternative=alternative)["m"].p == p


@pytest.mark.parametrize(("resamples", "used"), [(10_000, (True, 2047)), (2048, (True, 2047)), (2047, (False, 2047))])
def test_all_flips_of_11_rows_are_used_if_they_are_no_more_than_the_resamples(resamples, used):
    comparison = trm.compare(models(11), resamples=resamples)
    assert (comparison.exact, comparison.resamples) == used


@pytest.mark.parametrize("test", ["randomization", "t"])
@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
def test_equal_runs_have_p_1_and_only_ties(alternative, test):
    rows = models(30)["pop"]
    result = trm.compare({"a": rows, "b": rows}, test=test, alternative=alternative)["m0"]

    assert (result.p, result.adjusted_p, result.difference, result.effect_size) == (1, 1, 0, 0)
    assert (result.wins, result.ties, result.losses, result.detectable) == (0, 30, 0, 0)


def test_means_over_seeds_that_are_equal_but_for_rounding_are_ties():
    """(0.1 + 0.2 + 0.3) / 3 and (0.3 + 0.2 + 0.1) / 3 differ in their last bit."""
    two_rows = [rows_of({"m": [value] * 2}) for value in (0.1, 0.2, 0.3)]
    result = trm.compare({"up": two_rows, "down": two_rows[::-1]})["m"]

    assert (result.p, result.ties) == (1, 2)


def test_clusters_whose_rows_cancel_but_for_rounding_have_p_1():
    thirds = {"clusters": torch.arange(60) // 3}
    up, down = rows_of({"m": [0.1, 0.2, 0] * 20}, **thirds), rows_of({"m": [0, 0, 0.3] * 20}, **thirds)

    assert trm.compare({"down": down, "up": up})["m"].p == 1


def moved_by_a_tenth(n):
    """Return two runs of n rows, the second of which is better by 0.1 in every row."""
    base = torch.rand(30, generator=torch.Generator().manual_seed(0)).double()[:n]
    return {"a": rows_of({"m": base}), "b": rows_of({"m": base + 0.1})}


@pytest.mark.parametrize(
    ("n", "resamples", "p"), [(30, 10_000, 1 / 10_001), (30, 19, 1 / 20), (8, 10_000, 2 / 2**8), (3, 10_000, 2 / 2**3)]
)
def test_a_difference_in_all_rows_has_the_smallest_p_that_the_flips_allow(n, resamples, p):
    assert trm.compare(moved_by_a_tenth(n), resamples=resamples)["m"].p == pytest.approx(p)


def test_equal_differences_have_an_interval_without_width():
    result = trm.compare(moved_by_a_tenth(30))["m"]

    assert (result.low, result.high) == pytest.approx((0.1, 0.1))
    assert (result.effect_size, result.detectable) == (math.inf, pytest.approx(0, abs=1e-9))


def test_joint_intervals_are_those_of_the_12th_largest_of_255_flips():
    """Half the width is the error times the 12th largest maximum of |t|: 12 / 256 < 0.05."""
    columns = torch.randn(3, 8, generator=torch.Generator().manual_seed(4)).double()

    def t(column, signs):
        units = [sign * value for sign, value in zip(signs, column, strict=True)]
        return sum(units) / 8**0.5 / stats.tstd(units)

    flips = [*itertools.product((1, -1), repeat=8)][1:]
    critical = sorted(max(abs(t(column, signs)) for column in columns.tolist()) for signs in flips)[-12]
    comparison = trm.compare({"a": labelled(torch.zeros(8, 3)), "b": labelled(columns.T)})

    halves = [critical * stats.sem(column) for column in columns.tolist()]
    means = [sum(column) / 8 for column in columns.tolist()]
    assert [(r.adjusted_low, r.adjusted_high) for r in comparison.results] == [
        pytest.approx((mean - half, mean + half)) for mean, half in zip(means, halves, strict=True)
    ]


@pytest.mark.parametrize("options", [{}, {"test": "t"}, {"correction": "holm", "margin": 0.1}])
def test_a_label_with_one_row_is_not_tested_and_others_are(options):
    """Its effect size is undefined even if the difference is 0."""
    columns = {"a": [1, NAN, NAN], "equal": [1, NAN, NAN], "c": [1, 0.2, 1.5]}
    runs = {"x": rows_of(columns), "y": rows_of(columns | {"a": [0, NAN, NAN], "c": [0, 0.2, 1.5]})}
    comparison = trm.compare(runs, **options)
    one_row, equal = comparison["a"], comparison["equal"]
    numbers = (one_row.p, one_row.low, one_row.high, one_row.adjusted_p, one_row.detectable, equal.effect_size)

    assert (one_row.difference, one_row.num_rows, one_row.num_left_out) == (-1, 1, 2)
    assert all(map(math.isnan, numbers))
    assert not math.isnan(comparison["c"].adjusted_p)


@pytest.mark.parametrize("weight", [1, 1e-170, 1e160])
def test_two_rows_of_equal_weight_are_enough_for_a_test(weight):
    """Of 4 flips of 0.1 and 0.3, two have a sum as far from 0."""
    weights = torch.tensor([weight] * 2, dtype=torch.float64)
    runs = {"a": rows_of({"m": [0, 0]}, weights=weights), "b": rows_of({"m": [0.1, 0.3]}, weights=weights)}

    assert trm.compare(runs)["m"].p == 2 / 4


ONE_ROW = {"x": rows_of({"a": [1]}), "y": rows_of({"a": [0]})}


def test_labels_that_are_not_tested_are_named_below_the_table():
    comparison = trm.compare(ONE_ROW)

    assert str(comparison).split("\n\n")[1] == "Not tested, with fewer than two rows: a."
    assert comparison._repr_html_().splitlines()[-1] == "<p>Not tested, with fewer than two rows: a.</p>"
    assert "nan" not in str(comparison) + comparison.to_markdown()


@pytest.mark.parametrize("num_undefined", [2, 10, 20])
def test_rows_that_are_undefined_in_both_runs_are_no_units(num_undefined):
    """Three pairs have 8 signs, so p is 2 / 8 and no interval is finite, whatever other rows there are."""
    undefined = [NAN] * num_undefined
    runs = {"a": rows_of({"m": [0.2, 0.5, 0.3, *undefined]}), "b": rows_of({"m": [0.35, 0.7, 0.35, *undefined]})}
    comparison = trm.compare(runs)
    result = comparison["m"]

    assert (comparison.exact, comparison.resamples) == (True, 2**3 - 1)
    assert (result.p, result.low, result.high) == (2 / 2**3, -math.inf, math.inf)
    assert result.num_left_out == num_undefined


def test_a_group_of_four_rows_has_no_finite_interval_beside_many_rows():
    """Four rows have at least p = 2 / 2^4."""
    groups = trm.Groups((torch.arange(100) >= 4).long(), ["few", "many"])
    few = trm.compare(models(100), groups=groups)["m0/few"]

    assert (few.low, few.high, few.detectable) == (-math.inf, math.inf, math.inf)
    assert (few.adjusted_low, few.adjusted_high) == (-math.inf, math.inf)


HALVES = {"a": rows_of({"m": [0.5, 0.5, NAN, 1.0, 0.0, NAN]}), "b": rows_of({"m": [0.7, 0.5, 1.0, 0.2, 0.1, NAN]})}


def test_means_and_wins_are_those_of_the_rows_that_both_runs_have():
    result = trm.compare(HALVES)["m"]

    assert (result.wins, result.ties, result.losses) == (2, 1, 1)
    assert result.difference == pytest.approx((0.2 + 0 - 0.8 + 0.1) / 4)
    assert [result.value, result.against_value] == pytest.approx([1.5 / 4, 2.0 / 4])


def test_a_row_that_is_undefined_in_one_of_the_runs_is_left_out_and_counted():
    comparison = trm.compare(HALVES)
    result = comparison["m"]

    assert (result.num_rows, result.num_left_out, result.num_units) == (4, 2, 4)
    assert "Left out: up to 2 rows, undefined in one of two runs" in str(comparison)
    assert "Left out" not in str(trm.compare({"a": ROWS, "b": ROWS}))


@settings(max_examples=examples(15), deadline=None)
@given(seed=st.integers(0, 10**6), with_words=st.booleans(), clustered=st.booleans())
def test_the_order_of_the_rows_of_each_run_changes_no_bit(seed, with_words, clustered):
    generator = torch.Generator().manual_seed(seed)
    runs = models(70, labels=3, shift=0.02)

    def shuffled(rows):
        order = torch.randperm(70, generator=generator)
        values = {label: column[order] for label, column in rows.values.items()}
        ids, clusters = order, order % 23
        if with_words:
            ids, clusters = [f"user {i}" for i in ids.tolist()], [f"cluster {i}" for i in clusters.tolist()]
        return trm.Rows(values, ids, clusters=clusters if clustered else None)

    first, second = ({name: shuffled(rows) for name, rows in runs.items()} for _ in range(2))
    assert trm.compare(first, resamples=200).results == trm.compare(second, resamples=200).results


ABC = {name: rows_of({"m": [at, at + 0.1, 0.3], "n": [1.0, 2.0, at]}) for name, at in (("a", 0), ("b", 1), ("c", 2))}


def test_without_a_baseline_each_run_is_compared_with_each_earlier_one():
    pairs = [(r.label, r.run, r.against) for r in trm.compare(ABC, ["m"]).results]
    assert pairs == [("m", "b", "a"), ("m", "c", "a"), ("m", "c", "b")]


def test_with_a_baseline_each_other_run_is_compared_with_it():
    comparison = trm.compare(ABC, baseline="b")
    pairs = [(r.label, r.run, r.against) for r in comparison.results]

    assert pairs == [("m", "a", "b"), ("n", "a", "b"), ("m", "c", "b"), ("n", "c", "b")]
    assert comparison["m", "a", "b"].difference == -trm.compare(ABC)["m", "b", "a"].difference


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("m", r"name the label and the two runs, one of .*'m', 'a', 'b'"),
        (("m", "b", "a"), "the two runs, one of"),
        ("M", r"no result has the key 'M'\. There are m, n"),
    ],
)
def test_an_unknown_key_is_refused(key, message):
    with pytest.raises(KeyError, match=message):
        trm.compare(ABC, baseline="b")[key]


ROWS = rows_of({"m": [1.0, 0.5, 0.2]})
ONES = torch.ones(3)


def ones(**options):
    return rows_of({"m": ONES}, **options)


@pytest.mark.parametrize(
    ("one", "other", "error", "message"),
    [
        (ROWS, rows_of({"n": ONES}), ValueError, r"m only in 'a'; n only in 'b'; or choose some with metrics=\["),
        (ROWS, rows_of({"m": [1] * 4}), ValueError, r"pair: 1 of 4 ids of 'b' are not in 'a' \(such as id 3\); com"),
        (ROWS, ones(ids=torch.tensor([2, 1, 9])), ValueError, r"1 of 3 ids of 'a' .*1 of 3 .* 'b' .*\(such as id 9"),
        (ROWS, ones(ids=["0", "1", "2"]), ValueError, "one of 'a' and 'b' has whole numbers, the other text"),
        (ROWS, ones(options={"ties": "mean"}), ValueError, "ties is 'not told' in 'a' and 'mean' in 'b'"),
        (ROWS, ones(weights=ONES), ValueError, "only one of 'a' and 'b' has weights"),
        (ROWS, ones(clusters=ONES.int()), ValueError, "only one of 'a' and 'b' has clusters"),
        (ones(weights=ONES), ones(weights=torch.arange(3)), ValueError, "weights of some rows differ"),
        (ones(clusters=[4, 4, 4]), ones(clusters=[4, 4, 5]), ValueError, "clusters of some rows differ"),
        (ROWS, rows_of({"m": [1, math.inf, 2]}), ValueError, "values of m are infinite in 1 of 3 rows"),
        (ROWS, trm.RecMetricCollection("HR@1"), ValueError, "run 'b': no rows were kept: make the collection with acc"),
        (ROWS, [], ValueError, "run 'b' is an empty list"),
        (ROWS, "b.parquet", TypeError, r"must be an evaluation, Rows.* got str: pass Rows.from_parquet\('b.parquet'"),
        (ROWS, type("Other", (), {"rows": 1})(), TypeError, "got Other: pass {name: evaluation"),
    ],
)
def test_runs_that_do_not_pair_are_refused(one, other, error, message):
    with pytest.raises(error, match=message):
        trm.compare({"a": one, "b": other})


BOTH = {"a": ROWS, "b": ROWS}


def groups(codes, **options):
    return {"groups": trm.Groups(torch.tensor(codes), ["x"], **options)}


@pytest.mark.parametrize(
    ("runs", "options", "error", "message"),
    [
        (BOTH, {"baseline": "c"}, ValueError, r"baseline 'c' is not a run\. There are a, b"),
        (BOTH, {"test": "sign"}, ValueError, r"it tests signs or ranks .*Smucker, .* CIKM 2007\): use 'rand"),
        (BOTH, {"test": "z"}, ValueError, "test must be one of 'randomization', 't', got 'z'"),
        (BOTH, {"metrics": [trm.NDCG(10)]}, TypeError, r"metrics must be labels, such as \['NDCG@10'\], got NDCG"),
        (BOTH, {"metrics": ["m", "M"]}, ValueError, r"run 'a' has no metric 'M'\. There are m"),
        (BOTH, {"metrics": []}, ValueError, "metrics is empty: name the metrics"),
        (BOTH, {"test": "t", "correction": "max-t"}, ValueError, "needs the flips of test='randomization'"),
        (BOTH, {"resamples": 0}, ValueError, "resamples must be at least 1"),
        (BOTH, {"level": 95}, ValueError, "level must be between 0 and 1, such as 0.95, got 95"),
        (BOTH, {"margin": 0}, ValueError, "margin must be a number > 0 in the metrics' unit, .*, got 0"),
        (BOTH, {"margin": "nan%"}, ValueError, "margin must be a number > 0 .*, got 'nan%'"),
        (BOTH, {"groups": ["x"]}, TypeError, r"groups must be Groups, got list: trm.group_users\(train\)"),
        (BOTH, groups([0, 0]), ValueError, "have 2 users and no user_ids, but rows have the id 2"),
        (BOTH, groups([0], user_ids=["0"]), TypeError, r"ids of rows hold whole numbers \(0\), user_ids of gr"),
        (BOTH, groups([0], user_ids=[9]), ValueError, "none of 3 rows has a user that is in groups, such as 0"),
        ({"a": ROWS}, {}, ValueError, "compare needs two or more runs, got 1"),
        ([ROWS, ROWS], {}, TypeError, "runs must be a dict of evaluations or Rows by name, got list"),
        (trm.evaluate_lists("MRR", {1: [2]}, target={1: [2]}, k=1), {}, TypeError, "got Evaluation.*pass {name: eval"),
        (dict.fromkeys("ab", ones(ids=["a", "b", "c"])), groups([0, 0, 0]), ValueError, "no user_ids, but .* id 'a'"),
        (dict.fromkeys("ab", rows_of({"m/x": ONES, "m": ONES})), groups([0] * 3), ValueError, "m/x is a label of the"),
    ],
)
def test_bad_runs_and_options_are_refused(runs, options, error, message):
    with pytest.raises(error, match=message):
        trm.compare(runs, **options)


def test_collections_that_kept_their_rows_are_runs():
    a, b = (trm.RecMetricCollection("MRR", accumulators=[trm.KeptRows()]) for _ in range(2))
    a.update(trm.Ranks(torch.tensor([1, 2, 3]), complete=True))
    b.update(trm.Ranks(torch.tensor([1, 1, 2]), complete=True))
    a.compute(), b.compute()

    assert trm.compare({"a": a, "b": b})["MRR"].difference == pytest.approx((0 + (1 - 1 / 2) + (1 / 2 - 1 / 3)) / 3)


def test_several_runs_of_a_model_are_their_mean_in_each_row():
    a, b, c = (models(40, seed=seed)["pop"] for seed in (1, 2, 3))
    mean = rows_of({"m0": (a.values["m0"] + b.values["m0"]) / 2})
    comparison = trm.compare({"x": [a, b], "y": c})

    assert comparison["m0"] == trm.compare({"x": mean, "y": c})["m0"]
    assert "x is the mean of 2 runs: the test is about these runs, not about" in str(comparison)


def test_a_row_that_is_undefined_in_one_of_several_runs_is_left_out():
    seeds = [rows_of({"m": [0.1, 0.2, 0.3]}), rows_of({"m": [0.1, NAN, 0.5]})]
    assert trm.compare({"x": seeds, "y": ROWS})["m"].num_left_out == 1


def test_weighted_rows_are_tested_by_their_weighted_differences():
    weights = torch.rand(50, generator=torch.Generator().manual_seed(1)).double()
    runs = with_options(models(50, shift=0.05), weights=weights)
    result = trm.compare(runs, test="t")["m0"]
    weighted = weights.numpy() * differences(runs)

    assert result.difference == pytest.approx(weighted.sum() / weights.sum().item())
    assert result.p == pytest.approx(stats.ttest_1samp(weighted, 0).pvalue)


def test_rows_of_weight_0_are_left_out():
    weights = torch.tensor([0, 0, 0, 1])
    runs = {"a": rows_of({"m": [0.0] * 4}, weights=weights), "b": rows_of({"m": [1, -1, 0, 1]}, weights=weights)}
    result = trm.compare(runs)["m"]

    assert (result.wins, result.ties, result.losses) == (1, 0, 0)
    assert (result.num_rows, result.num_left_out) == (1, 3)


def test_a_metrics_own_weights_make_the_mean_of_their_run():
    a = rows_of({"m": [0, 1, 1, 1]}, own_weights={"m": torch.tensor([1.0, 2, 0, 1])})
    b = rows_of({"m": [1, 0, 1, 0]}, own_weights={"m": torch.tensor([0.0, 1, 2, 1])})
    result = trm.compare({"a": a, "b": b})["m"]

    assert (result.value, result.against_value, result.difference) == pytest.approx((2 / 4, 3 / 4, -1 / 4))
    assert result.num_rows == 4


def test_own_weights_that_are_equal_in_both_runs_act_like_weights_of_rows():
    runs, weights = models(50, shift=0.05), torch.rand(50, generator=torch.Generator().manual_seed(1)).double()
    own = trm.compare(with_options(runs, own_weights={"m0": weights}), test="t", margin=0.1)["m0"]
    of_rows = trm.compare(with_options(runs, weights=weights), test="t", margin=0.1)["m0"]

    assert own[4:] == pytest.approx(of_rows[4:])


@pytest.mark.parametrize("options", [{}, {"test": "t"}])
@pytest.mark.parametrize(
    "clusters", [torch.arange(60) % 20, [f"user {10 + row % 20}" for row in range(60)]], ids=["numbers", "words"]
)
def test_clusters_of_equal_size_give_the_result_of_their_means(clusters, options):
    runs = models(60, shift=0.03)
    means = {name: rows_of({"m0": rows.values["m0"].view(3, 20).mean(0)}) for name, rows in runs.items()}
    clustered, alone = (
        trm.compare(each, **options)["m0"]._asdict() for each in (with_options(runs, clusters=clusters), means)
    )

    names = ("difference", "low", "high", "p", "effect_size", "detectable", "value", "num_units")
    assert {name: clustered[name] for name in names} == pytest.approx({name: alone[name] for name in names})


@pytest.mark.parametrize(("wins", "losses"), [(10_400, 10_100), (5, 15)])
def test_p_of_rows_that_hit_or_miss_is_mcnemars(wins, losses):
    """Of 30,000 rows, p is the binomial test's of the rows in which the runs differ, be they few."""
    a, b = torch.zeros(2, 30_000)
    a[:losses], b[losses : losses + wins] = 1, 1
    p = trm.compare({"a": rows_of({"m": a}), "b": rows_of({"m": b})})["m"].p

    assert p == pytest.approx(stats.binomtest(wins, wins + losses).pvalue, abs=0.008)


@pytest.mark.parametrize(
    ("n", "drawn"),
    [
        (10_000, "signs of 10000 rows flipped (100 draws, seed 0), two-sided."),
        (10_001, "signs of 10001 rows flipped (100 draws, seed 0, of their normal limit), two-sided."),
    ],
)
def test_flips_of_more_than_10_000_units_are_drawn_from_their_limit(n, drawn):
    assert drawn in words(trm.compare(models(n), resamples=100))


def near_by_draws(p):
    """Return a p value that another one of 4,000 draws equals, up to six standard errors and the limit's own."""
    return pytest.approx(p, abs=6 * (p * (1 - p) / 4000) ** 0.5 + 1e-3)


@pytest.mark.parametrize("rows_per_cluster", [1, 2])
def test_the_limit_of_many_units_is_that_of_their_flips(rows_per_cluster, monkeypatch):
    n = 12_000 * rows_per_cluster
    runs = models(n, labels=3, shift=0.001, seed=3, alike=0.5)
    runs = with_options(runs, clusters=torch.arange(n) // rows_per_cluster)
    groups = trm.Groups(torch.where(torch.arange(n) < 40, 0, -1), ["x"])
    options = {"groups": groups, "margin": 0.002, "resamples": 4000}
    limit = trm.compare(runs, **options).results
    monkeypatch.setattr(pairing, "MANY", 10**9)
    flips = trm.compare(runs, **options).results

    names = ("p", "adjusted_p", "noninferior_p", "adjusted_noninferior_p")
    assert [[getattr(r, name) for name in names] for r in limit] == [
        [near_by_draws(getattr(r, name)) for name in names] for r in flips
    ]
    ends = [pytest.approx((r.low, r.high), abs=0.1 * (r.high - r.low)) for r in flips]
    assert [(r.low, r.high) for r in limit] == ends


def enumerated(columns):
    """Return raw and step-down max-T p values by enumeration of all 2^n sign flips."""
    n, m = columns.shape
    signs = np.array(list(itertools.product((1, -1), repeat=n)))

    def t_of(u):  # nan marks a row outside the column's group
        return abs(np.nanmean(u, 0)) / (np.nanstd(u, 0, ddof=1) / (~np.isnan(u)).sum(0) ** 0.5)

    flips = np.array([t_of(s[:, None] * columns) for s in signs])
    at = t_of(columns)
    raw = (flips >= at * (1 - 1e-9)).mean(0)
    order = np.argsort(-at)
    adjusted, worst = np.empty(m), 0.0
    for step, column in enumerate(order):
        largest = flips[:, order[step:]].max(1)
        worst = max(worst, (largest >= at[column] * (1 - 1e-9)).mean())
        adjusted[column] = worst
    return raw, adjusted


@pytest.mark.parametrize("shift", [0, 0.2])
@pytest.mark.parametrize(("names", "number"), [([], 2 * 3), (["x", "y", "z"], 2 * 3 * 4)])
def test_max_t_p_values_of_10_rows_are_those_of_all_1024_flips(names, number, shift):
    """Two labels and three pairs, over all rows and over three groups of rows."""
    several = [models(10, labels=2, shift=shift, seed=seed, alike=0.5) for seed in (0, 1)]
    runs = {"a": several[0]["pop"], "b": several[0]["gcn"], "c": several[1]["gcn"]}
    codes = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, -1])
    results = trm.compare(runs, groups=trm.Groups(codes, names) if names else None).results
    chosen = {None: codes < 9, **{name: codes == code for code, name in enumerate(names)}}
    pairs = [runs[r.run].values[r.label] - runs[r.against].values[r.label] for r in results]
    columns = [pair.where(chosen[r.group], NAN) for r, pair in zip(results, pairs, strict=True)]
    raw, adjusted = enumerated(torch.stack(columns, 1).numpy())

    assert len(results) == number
    assert [r.p for r in results] == pytest.approx(raw.tolist())
    assert [r.adjusted_p for r in results] == pytest.approx(adjusted.tolist())


def eight_labels():
    """Return two runs whose labels m0 to m7 differ by 0 to 0.28: some significantly, some not."""
    runs = models(60, labels=8, seed=2, alike=0.3)
    for i in range(8):
        runs["gcn"].values[f"m{i}"].add_(0.04 * i)
    return runs


@pytest.mark.parametrize("test", ["t", "randomization"])
@pytest.mark.parametrize(("correction", "method"), [("holm", "holm"), ("bh", "fdr_bh")])
def test_adjusted_p_values_are_statsmodels(correction, method, test):
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    results = trm.compare(eight_labels(), test=test, correction=correction).results
    expected = multitest.multipletests([r.p for r in results], method=method)[1]

    assert [r.adjusted_p for r in results] == pytest.approx(expected.tolist())


@pytest.mark.parametrize(
    ("correction", "share"),
    [
        ("none", lambda num_significant: 1),
        ("holm", lambda num_significant: 1 / 8),  # its first step
        ("bh", lambda num_significant: num_significant / 8),  # as Benjamini and Yekutieli say
    ],
)
def test_corrected_intervals_have_the_level_of_a_step_of_the_correction(correction, share):
    runs = eight_labels()
    results = trm.compare(runs, test="t", correction=correction).results
    num_significant = sum(r.adjusted_p <= 0.05 for r in results)
    t = stats.t(59).ppf(1 - 0.025 * share(num_significant))

    assert 0 < num_significant < 8
    assert [r.adjusted_high - r.difference for r in results] == pytest.approx(
        [t * stats.sem(differences(runs, r.label)) for r in results]
    )


def test_without_a_correction_p_stays():
    results = trm.compare(eight_labels(), correction="none").results
    assert [r.adjusted_p for r in results] == [r.p for r in results]


@pytest.mark.parametrize(("test", "correction"), [("t", "holm"), ("randomization", "max-t")])
def test_each_test_has_its_correction(test, correction):
    assert trm.compare({"a": ROWS, "b": ROWS}, test=test).correction == correction


def test_benjamini_hochberg_intervals_include_0_if_nothing_is_significant():
    comparison = trm.compare(models(60, labels=3), correction="bh")

    assert all(r.adjusted_low < 0 < r.adjusted_high for r in comparison.results)
    assert "(Benjamini-Hochberg); intervals exclude 0 where the adjusted p <= 0.05, and a share" in words(comparison)


@settings(max_examples=examples(150), deadline=None)
@given(
    n=st.integers(2, 40),
    labels=st.integers(1, 5),
    seed=st.integers(0, 10**6),
    shift=st.sampled_from([0.0, 0.05, 0.2]),
    coarse=st.booleans(),
    test=st.sampled_from(["randomization", "t"]),
    correction=st.sampled_from([None, "holm", "bh", "none"]),
    alternative=st.sampled_from(["two-sided", "greater", "less"]),
    level=st.sampled_from([0.8, 0.85, 0.9, 0.95, 0.99]),
    resamples=st.sampled_from([19, 99, 500]),
)
def test_an_interval_excludes_0_exactly_where_p_is_significant(n, labels, seed, shift, coarse, level, **options):
    """A corrected interval excludes 0 only where its corrected p is significant."""
    runs = models(n, labels, shift, seed, alike=0.5)
    if coarse:
        runs = {name: rows_of({k: (v * 4).round() / 4 for k, v in rows.values.items()}) for name, rows in runs.items()}
    for r in trm.compare(runs, level=level, **options).results:
        assert (r.p <= 1 - level + 1e-12) == (not r.low <= 0 <= r.high)
        assert r.p <= r.adjusted_p
        assert r.adjusted_p <= 1 - level + 1e-12 or r.adjusted_low <= 0 <= r.adjusted_high


@pytest.mark.parametrize(
    "clusters", [None, torch.arange(60) // 6, torch.arange(60) % 7], ids=["no", "whole", "divided"]
)
def test_the_result_of_a_group_is_that_of_its_rows_alone(clusters):
    """Rows have weights, undefined values and, in the metric n, weights of its own; clusters may cross groups."""
    in_x = torch.arange(60) < 30
    draws = torch.rand(2, 4, 60, generator=torch.Generator().manual_seed(5)).double()

    def run(m, n, own, unused, rows):
        columns = {"m": m.masked_fill(m > 0.9, NAN)[rows], "n": n[rows]}
        options = {} if clusters is None else {"clusters": clusters[rows]}
        weights = draws[0, 3][rows]
        return rows_of(columns, torch.arange(60)[rows], weights=weights, own_weights={"n": own[rows]}, **options)

    def compared(rows, **options):
        runs = {name: run(*columns, rows) for name, columns in zip("ab", draws, strict=True)}
        return trm.compare(runs, test="t", correction="none", margin=0.1, **options)

    grouped, alone = compared(in_x | True, groups=trm.Groups((~in_x).long(), ["x", "y"])), compared(in_x)

    assert grouped["m/x"][4:] == pytest.approx(alone["m"][4:], rel=1e-9)
    assert grouped["n/x"][4:] == pytest.approx(alone["n"][4:], rel=1e-9)


OF_60 = trm.Groups(torch.tensor([0] * 30 + [1] * 29 + [2]), ["x", "y", "one", "nobody"])


def test_groups_are_corrected_together():
    """Holm's correction counts two labels of all rows and of two groups; those of one and no row are not tested."""
    comparison = trm.compare(models(60, labels=2, shift=0.1), groups=OF_60, test="t")
    least = min(comparison.results, key=lambda r: r.p if r.p == r.p else 2)

    assert least.adjusted_p == pytest.approx(6 * least.p)
    assert "Corrected for 6 comparisons" in str(comparison)


def test_groups_of_one_and_no_row_are_not_tested():
    runs = models(60, labels=2, shift=0.1)
    comparison = trm.compare(runs, groups=OF_60, test="t")
    one, nobody = comparison["m0/one"], comparison["m0/nobody"]

    assert (one.num_rows, one.num_left_out, one.difference) == (1, 0, pytest.approx(differences(runs)[59]))
    assert (nobody.num_rows, math.isnan(one.adjusted_p), math.isnan(nobody.adjusted_high)) == (0, True, True)
    assert "Not tested, with fewer than two rows: m0/one, m0/nobody, m1/one, m1/nobody." in str(comparison)


def test_units_of_groups_are_clusters():
    runs = with_options(models(60, labels=2), clusters=torch.arange(60) // 2)
    comparison = trm.compare(runs, groups=OF_60)

    assert [comparison[f"m0{group}"].num_units for group in ("", "/x", "/y", "/one", "/nobody")] == [30, 15, 15, 1, 0]
    assert "signs of 30 whole clusters flipped" in words(comparison)
    assert "with fewer than two whole clusters: m0/one" in str(comparison)


@pytest.mark.parametrize("kind", [int, str])
def test_groups_are_matched_to_rows_by_user_id(kind):
    """Of the users 8, 5, 7 and 1, the groups have 7 and 5 in y, 8 in x, and 1 in none."""
    runs = {name: rows_of(rows.values, [*map(kind, (8, 5, 7, 1))]) for name, rows in models(4).items()}
    groups = trm.Groups(torch.tensor([1, 1, 0, 0]), ["x", "y"], user_ids=[*map(kind, (7, 5, 9, 8))])
    comparison = trm.compare(runs, groups=groups)

    assert (comparison.groups, comparison.num_in_none) == ({"x": 1, "y": 2}, 1)
    assert comparison["m0/y"].difference == pytest.approx(differences(runs)[1:3].mean())


@pytest.fixture(scope="module")
def grouped():
    """Three runs of two labels, compared over all rows and two groups."""
    runs = {**models(60, labels=2), "third": models(60, labels=2, seed=1)["gcn"]}
    return trm.compare(runs, baseline="pop", groups=trm.Groups(torch.arange(60) % 3 - 1, ["cold", "warm"]))


def test_results_are_ordered_by_pair_label_and_group(grouped):
    assert [r.key for r in grouped.results[:6]] == ["m0", "m0/cold", "m0/warm", "m1", "m1/cold", "m1/warm"]
    assert [r.run for r in grouped.results] == ["gcn"] * 6 + ["third"] * 6
    assert grouped["m0/cold", "third", "pop"] is grouped.results[7]


def test_columns_are_the_fields_of_results(grouped):
    columns = grouped.to_dict()

    assert [*columns] == [*grouped.results[0]._fields]
    assert columns["group"] == [None, "cold", "warm"] * 4
    assert columns["p"] == [r.p for r in grouped.results]


def test_groups_are_in_every_text(grouped):
    assert '"group": "cold"' in grouped.to_json()
    assert "| m0/cold | gcn - pop " in grouped.to_markdown()
    assert "Over all rows, and over the rows of each of 2 groups; 20 rows are in none." in str(grouped)


def test_a_column_of_the_frame_without_values_is_of_floats(grouped):
    column = pytest.importorskip("pandas").DataFrame(grouped.to_pandas())["noninferior_p"]
    assert (column.isna().all(), column.dtype) == (True, "float64")


@pytest.mark.parametrize("margin", [0.02, 0.2])
@pytest.mark.parametrize(("is_better", "sign"), [(True, 1), (False, -1)], ids=["higher", "lower"])
@pytest.mark.parametrize(("test", "tolerance"), [("t", 1e-9), ("randomization", 0.01)])
def test_the_noninferiority_p_is_the_one_sided_t_tests(test, tolerance, is_better, sign, margin):
    runs = with_options(models(80, shift=-0.03, seed=4), higher_is_better={"m0": is_better})
    result = trm.compare(runs, test=test, margin=margin, resamples=20_000)["m0"]
    expected = stats.ttest_1samp(sign * differences(runs) + margin, 0, alternative="greater").pvalue

    assert result.noninferior_p == pytest.approx(expected, abs=tolerance)


def test_a_loss_as_large_as_the_margin_is_inferior():
    runs = {"a": rows_of({"m": [0.3] * 9}), "b": rows_of({"m": [0.2] * 9})}
    assert trm.compare(runs, margin=0.1)["m"].noninferior_p == 1


BASE = torch.rand(400, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
NOISE = torch.randn(400, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
NOISE = (NOISE - NOISE.mean()) / NOISE.std()
HALF = stats.t(399).ppf(0.975) * 0.1 / 20
"""Half the width of the 95 % interval of `NOISE / 10` over 400 rows, t x 0.1 / sqrt(400): 0.0098."""


def gate(change, *, higher_is_better=True, **options):
    """Compare a run that differs from the old one by this change and `NOISE / 10`."""
    side = {"higher_is_better": {"m": higher_is_better}}
    runs = {"old": rows_of({"m": BASE}, **side), "new": rows_of({"m": BASE + change + NOISE / 10}, **side)}
    return trm.compare(runs, **options)


@pytest.mark.parametrize(
    ("change", "higher_is_better", "margin", "verdict"),
    [
        (-0.1, True, 0.02, "Failed: m fell by 0.1000, by at least 0.0902 (95 %): more than the margin 0.0200."),
        (0.1, False, 0.02, "Failed: m rose by 0.1000, by at least 0.0902 (95 %): more than the margin 0.0200."),
        (-0.005, True, 0.02, "Passed: m fell by 0.0050, by at most 0.0148 (95 %): less than the margin 0.0200."),
        (0.005, True, 0.02, "Passed: m rose by 0.0050, or fell by at most 0.0048 (95 %): less than the margin 0.0200."),
        (0.1, True, "1%", "Passed: m rose by 0.1000, by at least 0.0902 (95 %): no loss."),
        (-0.1, False, 0.02, "Passed: m fell by 0.1000, by at least 0.0902 (95 %): no loss."),
    ],
)
def test_a_verdict_has_the_change_and_its_bound(change, higher_is_better, margin, verdict):
    assert gate(change, higher_is_better=higher_is_better, margin=margin, test="t").verdict == verdict


@pytest.mark.parametrize(
    ("change", "higher_is_better", "margin", "verdict"),
    [
        (-0.015, True, 0.02, "m fell by 0.0150, by at most 0.0248 (95 %): not less than the margin 0.0200."),
        (-0.005, False, 0.001, "m fell by 0.0050, or rose by at most 0.0048 (95 %): not less than the margin 0.0010."),
    ],
)
def test_an_inconclusive_verdict_has_the_difference_that_would_be_found(change, higher_is_better, margin, verdict):
    """(t(399).ppf(0.975) + t(399).ppf(0.8)) x 0.1 / sqrt(400) = 0.0140."""
    comparison = gate(change, higher_is_better=higher_is_better, margin=margin, test="t")

    end = "A difference of 0.0140 would be found in four of five cases."
    assert comparison.verdict == f"Inconclusive: {verdict} {end}"


def test_the_text_says_that_not_all_results_pass_and_of_which_lower_values_are_better():
    text = words(gate(0.1, higher_is_better=False, margin=0.02))
    assert "worse by less than 0.02 (lower values of m are better). Not all results pass, each tested" in text


def test_a_run_beside_itself_has_no_loss():
    rows = rows_of({"m": [0, 1] * 20})
    comparison = trm.compare({"old": rows, "new": rows}, margin=0.1)

    assert comparison.verdict == "Passed: m rose by 0.0000, by at least 0.0000 (95 %): no loss."


def test_a_difference_of_0_is_printed_without_a_sign():
    comparison = trm.compare({"old": rows_of({"m": [0, 1] * 20}), "new": rows_of({"m": [1, 0] * 20})}, margin=0.1)

    assert "m fell by 0.0000, by at most " in comparison.verdict


def test_without_a_margin_there_is_no_verdict():
    comparison = gate(0.0)

    assert comparison.passed is comparison.outcome is None
    with pytest.raises(ValueError, match="verdict needs a margin"):
        _ = comparison.verdict


@pytest.mark.parametrize("mean", [0.4, -1.5])
def test_a_margin_is_a_share_of_the_size_of_the_mean(mean):
    old = BASE - BASE.mean() + mean
    runs = {"old": rows_of({"m": old}), "new": rows_of({"m": old + NOISE / 10})}

    assert trm.compare(runs, margin="10%")["m"].margin == pytest.approx(0.1 * abs(mean))


def test_of_a_mean_of_0_there_is_no_share():
    runs = {"old": rows_of({"HR@1": torch.zeros(40)}), "new": rows_of({"HR@1": torch.ones(40)})}
    with pytest.raises(ValueError, match="the mean of HR@1 in 'old' is 0, and so is any share of it: pass a margin"):
        trm.compare(runs, margin="2%")


@pytest.mark.parametrize(("level", "passed"), [(0.95, True), (0.98, False)])
def test_a_gate_is_not_corrected_but_single_claims_are(level, passed):
    """Of nine one-sided p of .015 all must pass, so that each is tested at (1 - level) / 2, .025 or .01."""
    loss = 0.02 - stats.t(399).ppf(1 - 0.015) * 0.1 / 20
    runs = {"old": rows_of({f"m{i}": BASE for i in range(9)})}
    runs["new"] = rows_of({f"m{i}": BASE - loss + NOISE / 10 for i in range(9)})
    comparison = trm.compare(runs, margin=0.02, test="t", level=level)

    assert [r.noninferior_p for r in comparison.results] == pytest.approx([0.015] * 9)
    assert [r.adjusted_noninferior_p for r in comparison.results] == pytest.approx([0.015 * 9] * 9)
    assert comparison.passed is passed


def test_the_worst_metric_of_all_candidates_decides():
    runs = {"old": BASE, "good": BASE + 0.01, "bad": BASE - 0.3 + NOISE / 10, "worse": BASE - 0.5 + NOISE / 10}
    comparison = trm.compare({name: rows_of({"m": v}) for name, v in runs.items()}, baseline="old", margin=0.1)

    assert comparison.verdict.startswith("Failed: m of worse fell by 0.5000, by at least 0.4")


def test_a_metric_that_cannot_be_tested_does_not_pass():
    one_row = rows_of({"m": [1.0, NAN], "l": [1.0, 1.0]})
    comparison = trm.compare({"a": one_row, "b": one_row}, margin=0.1)

    assert (comparison.passed, comparison.outcome) == (False, "inconclusive")
    assert comparison.verdict == "Inconclusive: m has too few rows or clusters for an interval, 1."


@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
@pytest.mark.parametrize(("change", "worst"), [(-0.3, "HR@10 fell by 0.0120"), (0.013, "MeanRank rose by 0.0130")])
def test_the_worst_of_a_passed_gate_may_lose_the_largest_share_of_its_margin(change, worst, alternative):
    """It is not the metric that changed most."""
    shifts = {"NDCG@10": 0.05, "HR@10": -0.012, "MRR": 0, "MeanRank": change}
    sides = {"higher_is_better": {"MeanRank": False}}
    new = {label: BASE + shift + NOISE / 99 for label, shift in shifts.items()}
    runs = {"old": rows_of(dict.fromkeys(shifts, BASE), **sides), "new": rows_of(new, **sides)}

    assert trm.compare(runs, margin=0.02, alternative=alternative).verdict.startswith(f"Passed: {worst}, by at most ")


def test_the_worst_of_margins_that_are_shares_may_lose_the_largest_part_of_its_own():
    """0.02 of a margin of 0.0512 is more than 0.1 of one of 0.512."""
    old, losses = {"small": BASE, "large": 10 * BASE}, {"small": 0.02, "large": 0.1}
    new = {label: old[label] - loss + NOISE / 99 for label, loss in losses.items()}
    comparison = trm.compare({"old": rows_of(old), "new": rows_of(new)}, margin="10%")

    assert comparison.verdict.startswith("Passed: small fell by 0.0200")


@pytest.mark.parametrize("test", ["t", "randomization"])
@pytest.mark.parametrize("seed", range(5))
def test_the_largest_loss_is_below_the_margin_if_and_only_if_the_run_is_noninferior(seed, test):
    values = models(400, seed=seed)["gcn"].values["m0"]
    runs = {"old": rows_of({"m": BASE}), "new": rows_of({"m": BASE - 0.03 + (values - values.mean()) / 9})}
    margin = trm.compare(runs, margin=0.05, test=test)["m"].largest_loss
    above, below = (trm.compare(runs, margin=margin * factor, test=test, seed=0) for factor in (1.02, 0.98))

    assert (above.passed, below.passed) == (True, False)
    assert above["m"].largest_loss < above["m"].margin
    assert below["m"].largest_loss > below["m"].margin


def test_the_largest_loss_is_the_end_of_students_interval():
    assert gate(-0.005, margin=0.02, test="t")["m"].largest_loss == pytest.approx(0.005 + HALF)


def lists_of(users, item):
    return {user: [item, "other"] for user in users}


def evaluated(lists):
    """Return HR@2 over 200 users, whose relevant item is "relevant"."""
    return trm.evaluate_lists("HR@2", lists, target={user: ["relevant"] for user in range(200)}, keep_rows=True)


TEN_HITS = {**lists_of(range(200), "wrong"), **lists_of(range(20, 30), "relevant")}
EIGHT_LISTS = lists_of(range(8), "relevant")


def test_a_run_that_was_cut_short_is_compared_over_the_users_of_both():
    """Over all users the candidate has HR@2 10 / 200, the incumbent 8 / 200; over the 8 of both 0 and 1."""
    comparison = trm.compare({"half": evaluated(EIGHT_LISTS), "bad": evaluated(TEN_HITS)}, margin=0.1)
    of_all, served = comparison["HR@2"], comparison["HR@2/served by both"]

    assert (of_all.difference, served.difference) == (pytest.approx(2 / 200), -1)
    assert (of_all.noninferior_p < 0.025, served.noninferior_p) == (True, 1)
    assert comparison.outcome == "failed"


def test_without_a_margin_users_without_a_list_are_counted_alone():
    comparison = trm.compare({"half": evaluated(EIGHT_LISTS), "bad": evaluated(TEN_HITS)})

    assert (comparison.result_keys, comparison.unserved) == (["HR@2"], {"half": 192})
    assert "Without a list: 192 rows of half." in str(comparison)


def test_an_incumbent_of_empty_lists_lets_no_candidate_pass():
    rows = evaluated(TEN_HITS).rows
    empty = trm.Rows({"HR@2": torch.zeros(200)}, rows.ids, options=rows.options, served=torch.zeros(200))
    comparison = trm.compare({"empty": empty, "bad": rows}, margin=0.1)

    assert (comparison.outcome, comparison["HR@2/served by both"].num_rows) == ("inconclusive", 0)


@pytest.mark.parametrize("users", [range(100), range(200)])
def test_a_candidate_that_serves_more_users_passes(users):
    """The incumbent serves 90 users; the candidate has the same lists, and further ones."""
    runs = {"old": evaluated(lists_of(range(90), "relevant")), "new": evaluated(lists_of(users, "relevant"))}
    comparison = trm.compare(runs, margin=0.1)

    assert (comparison.outcome, comparison.unserved["old"]) == ("passed", 110)


def test_served_rows_are_compared_within_groups():
    groups = trm.Groups(torch.arange(200) % 2, ["even", "odd"])
    runs = {"half": evaluated(EIGHT_LISTS), "bad": evaluated(TEN_HITS)}
    comparison = trm.compare(runs, margin=0.1, groups=groups)

    assert comparison["HR@2/odd, served by both"].num_rows == 4
    assert comparison.groups == {"even": 100, "odd": 100}


def of_unknown_side(values):
    """Return `Rows` that do not say which values are better."""
    return rows_of(values, higher_is_better={})


class Waste(trm.RankingMetric):
    """A metric of a user's own."""

    formula = staticmethod(trm.functional.hit_rate)
    higher_is_better = False


@pytest.mark.parametrize(("name", "metric"), {**_CLASSES, "Waste": Waste}.items())
def test_rows_know_the_side_of_each_metric_class_by_its_name(name, metric):
    labels = [f"{name}@10", name, f"{name}-option"]

    rows = of_unknown_side(dict.fromkeys(labels, ONES))
    assert rows.higher_is_better == dict.fromkeys(labels, metric.higher_is_better)


COSTS = {name: of_unknown_side({"HR@1": BASE, "cost": BASE + cost}) for name, cost in (("old", 0), ("new", 5))}


def test_a_margin_of_a_metric_of_unknown_side_is_refused():
    with pytest.raises(ValueError, match=r"it is not known whether higher values of cost .*=\{'cost': False\}\)"):
        trm.compare(COSTS, margin=0.1)


def test_metrics_of_unknown_side_that_are_left_out_need_none():
    assert trm.compare(COSTS, "HR@1", margin=0.1).passed


def test_without_a_margin_higher_values_of_unknown_metrics_are_taken_for_better():
    assert trm.compare(COSTS).higher_is_better == {"HR@1": True, "cost": True}


@pytest.mark.parametrize("side", [False, True])
def test_one_run_that_tells_the_side_is_enough(side):
    old = rows_of({"HR@1": BASE, "cost": BASE}, higher_is_better={"cost": side})
    assert trm.compare({"old": old, "new": COSTS["new"]}, margin=0.1).passed is side


def test_metrics_of_which_no_side_is_better_have_no_margin():
    rows = of_unknown_side({"AveragePopularity@5": BASE})
    with pytest.raises(ValueError, match="neither higher nor lower values of AveragePopularity@5"):
        trm.compare({"a": rows, "b": rows}, margin=0.1)


@pytest.mark.parametrize("sides", [(True, False), (False, True), (None, True)])
def test_runs_that_say_different_sides_are_refused(sides):
    a, b = (rows_of({"m": BASE}, higher_is_better={"m": side}) for side in sides)
    with pytest.raises(ValueError, match=f"higher_is_better of m is {sides[0]} in 'a' and {sides[1]} in 'b'"):
        trm.compare({"a": a, "b": b}, margin=0.1)


def test_evaluations_say_which_values_are_better():
    catalogue = trm.Catalogue.from_interactions(trm.Interactions.from_frame({"user": ["al"], "item": ["x"]}))
    metrics = ["MeanRank", trm.Seen(1, catalogue=catalogue)]
    result = trm.evaluate_lists(metrics, {"al": ["x"]}, target={"al": ["x"]}, complete=True, keep_rows=True)

    assert result.rows.higher_is_better == {"MeanRank": False, "Seen@1": None}


def test_the_table_has_values_difference_corrected_interval_and_corrected_p():
    runs = models(60, labels=2, shift=0.1)
    comparison = trm.compare(runs, margin=0.01)
    header, line, *_ = str(comparison).splitlines()
    r = comparison["m0"]

    columns = ["metric", "runs", "value", "against", "difference", "95 % interval", "adjusted p", "non-inferior p"]
    assert re.split("  +", header) == columns
    interval = f"[{r.adjusted_low:+.4f}, {r.adjusted_high:+.4f}]"
    cells = ["m0", "gcn - pop", f"{r.value:.4f}", f"{r.against_value:.4f}", f"{r.difference:+.4f}", interval]
    assert re.split("  +", line) == [*cells, f"{r.adjusted_p:.4f}", f"{r.adjusted_noninferior_p:.4f}"]


def test_no_line_of_the_text_ends_with_blanks():
    lines = str(trm.compare(models(60, labels=2), margin=0.01)).splitlines()
    assert lines == [line.rstrip() for line in lines]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "Paired randomisation test: signs of 60 rows flipped (10000 draws, seed 0), two-sided."),
        ({}, "Corrected for 2 comparisons (step-down max-T; exact for each, asymptotic for all"),
        ({"margin": 0.01}, "Non-inferior: worse by less than 0.01. All results pass, each tested one-sided at"),
        ({"correction": "none"}, "Not corrected for 2 comparisons"),
        ({"test": "t", "alternative": "less"}, "Paired t test over 60 rows, one-sided (less)"),
        ({"metrics": "m0"}, "The interval excludes 0 exactly where p <= 0.05."),
    ],
)
def test_the_text_below_the_table_names_test_and_correction(options, said):
    assert said in words(trm.compare(models(60, labels=2, shift=0.1), **options))


def test_the_text_of_an_exact_test_has_the_number_of_signs():
    assert "all 255 other signs" in str(trm.compare(models(8)))


def test_a_single_comparison_has_no_adjusted_p():
    assert "adjusted p" not in str(trm.compare(models(60)))


def test_small_differences_are_shown_with_their_digits():
    runs = {"a": rows_of({"m": [0.0, 0.0]}), "b": rows_of({"m": [0.0000123, 0.0000125]})}
    assert "+0.0000124" in str(trm.compare(runs, test="t"))


WITH_A_BAR = {"a-1|b": rows_of({"m": BASE}), "c": rows_of({"m": BASE - 0.25})}


def test_markdown_keeps_a_bar_in_its_cell():
    head, rule, line = trm.compare(WITH_A_BAR).to_markdown().splitlines()

    assert head.startswith("| metric | runs       |  value | against | difference |")
    assert rule.startswith("| ------ | ---------- | -----: | ------: | ---------: |")
    assert line.startswith("| m      | c - a-1\\|b | ")


def test_latex_has_signs_in_mathematics_and_escaped_names():
    """TeX sets a plain < as an inverted !."""
    lines = trm.compare(WITH_A_BAR).to_latex().splitlines()
    cells = lines[5].rstrip("\\ ").split(" & ")

    assert lines[:2] == [r"% \usepackage{booktabs}", r"\begin{tabular}{llrrrrr}"]
    assert cells[1] == r"c - a-1\textbar{}b"
    assert cells[4:] == ["$-$0.2500", "[$-$0.2500, $-$0.2500]", "$<$0.0001"]


def by_model(labels, others=1):
    """Return the comparison of models with a baseline, and its table; the first is better by 0.3, others alike."""
    shifts = {"old": 0, "new_1": 0.3, **{f"new_{n}": 0.001 * n for n in range(2, others + 1)}}
    sides = {"higher_is_better": {"cost": False}} if "cost" in labels else {}
    runs = {name: rows_of(dict.fromkeys(labels, BASE + shift + NOISE / 99), **sides) for name, shift in shifts.items()}
    runs["old"] = rows_of(dict.fromkeys(labels, BASE), **sides)
    comparison = trm.compare(runs, baseline="old")
    return comparison, comparison.by_model()


def test_the_best_values_have_a_star_and_differences_a_dagger():
    """Lower costs are better; the mean of `BASE` is 0.5118."""
    lines = str(by_model(["m", "cost"])[1]).splitlines()

    assert lines[1].split() == ["old", "0.5118", "0.5118*"]
    assert lines[2].split() == ["new_1", "0.8118*†", "0.8118", "†"]


def test_the_best_values_are_bold_in_markdown_and_latex():
    _, table = by_model(["m"])

    assert table.to_markdown().splitlines()[3].startswith("| new_1 | **0.8118†** |")
    assert table.to_latex().splitlines()[6].startswith(r"new\_1 & \textbf{0.8118$^{\dagger}$}")


@pytest.mark.parametrize(("others", "p"), [(1, "p"), (9, "adjusted p")])
def test_a_dagger_is_a_significant_difference(others, p):
    comparison, table = by_model(["m"], others)
    significant = [result.adjusted_p <= 0.05 for result in comparison.results]

    assert ["†" in line for line in str(table).splitlines()[2 : 2 + others]] == significant
    assert table.notes[0] == f"The best values have a star or are bold; † differs from old, {p} <= 0.05."


@pytest.mark.parametrize(
    "options", [{}, {"weights": (torch.arange(60) % 3 + 1).double()}, {"clusters": torch.arange(60) // 4}], ids=str
)
def test_standard_errors_by_model_are_those_of_weighted_means_over_clusters(options):
    runs = with_options(models(60), **options)
    columns = trm.compare(runs).by_model(standard_errors=True).to_dict()
    weights, clusters = options.get("weights", torch.ones(60)).double(), options.get("clusters", torch.arange(60))

    def error_of(x):
        mean, n = (weights * x).sum() / weights.sum(), int(clusters.max()) + 1
        sums = torch.zeros(n).double().index_add(0, clusters, weights * (x - mean))
        return ((sums.square().sum() * n / (n - 1)).sqrt() / weights.sum()).item()

    assert columns["model"] == ["pop", "gcn"]
    assert columns["m0 standard error"] == pytest.approx([error_of(rows.values["m0"]) for rows in runs.values()])


def test_standard_errors_are_beside_the_means_and_a_dash_where_there_is_none():
    """The mean of 1, 2, 3 and 4 is 2.5, its error sqrt(5 / 3) / 2 = 0.6455."""
    rows = rows_of({"m": [1, 2, 3, 4], "n": [NAN] * 4})
    table = trm.compare({"a": rows, "b": rows}).by_model(standard_errors=True)

    assert str(table).splitlines()[1].split() == ["a", "2.5000", "±", "0.6455*", "-"]


OWN_ROWS = {"p": [1, 1, 0.8, 0.8, 0.2, 0.2], "q": [1, 1, 0, 0, NAN, NAN], "r": [NAN, NAN, NAN, NAN, 0.4, 0.1]}


@pytest.mark.parametrize("order", ["pqr", "prq"])
def test_means_by_model_are_of_own_rows(order):
    """A model's mean is over its own rows, whatever it is compared with."""
    runs = {name: rows_of({"MRR": OWN_ROWS[name], "HR@1": [0.0, 1, 0, 1, 0, 1]}) for name in order}
    groups = trm.Groups(torch.tensor([0, 0, 0, 1, 1, 1]), ["a", "b"])
    table = trm.compare(runs, baseline="p", groups=groups).by_model()
    values = {row["model"]: row for row in table.result_rows()}

    assert [values[name]["MRR"] for name in "pqr"] == pytest.approx([4 / 6, 2 / 4, 0.5 / 2])
    assert [values[name]["MRR/a"] for name in "pqr"] == pytest.approx([2.8 / 3, 2 / 3, NAN], nan_ok=True)
    assert [values[name]["MRR/b"] for name in "pqr"] == pytest.approx([1.2 / 3, 0 / 1, 0.5 / 2])


def test_means_over_different_rows_have_no_star():
    """Both runs have 29 rows, but not the same."""
    columns = {"a": [NAN, *BASE[1:30].tolist()], "b": [*BASE[:29].tolist(), NAN]}
    table = trm.compare({name: rows_of({"m": column, "n": BASE[:30]}) for name, column in columns.items()}).by_model()

    assert {label for label, _ in table._best} == {"n"}
    assert " Each mean is over the model's own rows, of a, b: 29, 29 (m); none has a star." in table.notes[0]


def test_means_that_are_equal_but_for_rounding_are_all_best():
    """0.1 + 0.2 is 0.30000000000000004."""
    runs = {"a": rows_of({"m": [0.3] * 30}), "b": rows_of({"m": [0.1 + 0.2] * 30})}
    assert trm.compare(runs).by_model().to_markdown().count("**") == 4


def by_model_and_group(higher_is_better):
    side = {"higher_is_better": {"m": higher_is_better}}
    runs = {"a": rows_of({"m": BASE}, **side), "b": rows_of({"m": BASE + 1}, **side)}
    return trm.compare(runs, groups=trm.Groups(torch.arange(400) % 2, ["cold", "warm"])).by_model()


def test_each_group_has_a_column_of_the_table_by_model():
    table = by_model_and_group(True)
    frame = pytest.importorskip("pandas").DataFrame(table.to_pandas())

    assert [*table.to_dict()] == [*frame.columns] == ["model", "m", "m/cold", "m/warm"]
    assert frame["model"].tolist() == ["a", "b"]
    assert frame.loc[1, "m/cold"] == pytest.approx(BASE[::2].mean().item() + 1)


def test_metrics_of_which_no_side_is_better_have_no_star():
    """Daggers are in three columns and in the note."""
    text = str(by_model_and_group(None))
    assert (text.count("†"), text.count("*")) == (3 + 1, 0)
