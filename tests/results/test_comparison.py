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


def make(values, ids=None, **options):
    """Return `Rows` of these columns, as float64; higher values are better."""
    values = {label: torch.as_tensor(column, dtype=torch.float64) for label, column in values.items()}
    options.setdefault("higher_is_better", dict.fromkeys(values, True))
    return trm.Rows(values, torch.arange(len(next(iter(values.values())))) if ids is None else ids, **options)


def labelled(columns):
    """Return rows [n, labels] as `Rows` with the labels m0, m1, ..."""
    return make({f"m{i}": column for i, column in enumerate(columns.T)})


def models(n, labels=1, shift=0.0, seed=0, alike=0.8):
    """Return two runs of n rows whose labels are correlated."""
    generator = torch.Generator().manual_seed(seed)
    rand = lambda *shape: torch.rand(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    users = rand(n, 1)
    return {
        name: labelled(users + alike * rand(n, 1) + (1 - alike) * rand(n, labels) + at)
        for name, at in (("pop", 0), ("gcn", shift))
    }


def again(runs, **options):
    """Return runs with the same values and ids, and these options."""
    return {name: make(rows.values, rows.ids, **options) for name, rows in runs.items()}


def differences(runs, label="m0"):
    return (runs["gcn"].values[label] - runs["pop"].values[label]).numpy()


@pytest.mark.parametrize(
    ("alternative", "level", "quantile"), [("two-sided", 0.95, 0.975), ("greater", 0.9, 0.9), ("less", 0.9, 0.9)]
)
def test_t_test_is_scipys(alternative, level, quantile):
    """Difference, p and interval are scipy's, and d_z = t / sqrt(n)."""
    runs = models(60, shift=0.05)
    found = trm.compare(runs, test="t", alternative=alternative, level=level)["m0"]
    expected = stats.ttest_rel(runs["gcn"].values["m0"], runs["pop"].values["m0"], alternative=alternative)

    assert found.difference == pytest.approx(differences(runs).mean())
    assert found.p == found.adjusted_p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(level)))
    assert found.effect_size == pytest.approx(expected.statistic / 60**0.5)
    detectable = stats.t(59).ppf([quantile, 0.8]).sum() * stats.sem(differences(runs))
    assert found.detectable == pytest.approx(detectable)


@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
def test_flips_of_60_rows_are_near_the_t_test(alternative):
    runs = models(60, shift=0.05)
    by_t = trm.compare(runs, test="t", alternative=alternative)["m0"]
    flipped = trm.compare(runs, resamples=20_000, alternative=alternative)["m0"]

    assert flipped.p == pytest.approx(by_t.p, abs=0.007)
    assert (flipped.low, flipped.high) == pytest.approx((by_t.low, by_t.high), abs=0.1 * stats.sem(differences(runs)))


@pytest.mark.parametrize(
    "tenths", [(1, 2, 3, -1, 2, 1, -3, 2, 1, -2, 3), (1, 2, -3, 1, 2, -3, *[0] * 5), (1, 1, 1, -3, *[0] * 7)]
)
@pytest.mark.parametrize("base", [torch.zeros(11), torch.arange(11) / 7])
def test_equal_sums_are_equal(tenths, base):
    """Of 11 differences of 0.1 to 0.3, flips whose sums are equal count as equal in spite of rounding."""
    runs = {"a": make({"m": base}), "b": make({"m": base.double() + torch.tensor(tenths).double() / 10})}
    flips = itertools.product((1, -1), repeat=11)
    sums = [sum(sign * tenth for sign, tenth in zip(signs, tenths, strict=True)) for signs in flips]
    p = sum(abs(each) >= abs(sum(tenths)) for each in sums) / 2**11
    found = trm.compare(runs)
    assert (found.exact, found.resamples) == (True, 2**11 - 1)
    assert found["m"].p == p
    assert trm.compare(runs, alternative="greater")["m"].p == sum(each >= sum(tenths) for each in sums) / 2**11
    many = trm.compare(runs, resamples=2000)  # fewer than all 2,048 flips
    assert not many.exact
    assert many["m"].p == pytest.approx(p, abs=0.05)


def test_equal_runs():
    """Equal runs have p = 1, a difference of 0 and only ties."""
    rows = models(30)["pop"]
    for test, alternative in itertools.product(("randomization", "t"), ("two-sided", "greater", "less")):
        found = trm.compare({"a": rows, "b": rows}, test=test, alternative=alternative)["m0"]
        assert (found.p, found.adjusted_p, found.difference, found.effect_size) == (1, 1, 0, 0)
        assert (found.wins, found.ties, found.losses, found.detectable) == (0, 30, 0, 0)


def constant(value, **options):
    return make({"m": [value] * 60}, **options)


THIRDS = {"clusters": torch.arange(60) // 3}
OWN = {"own_weights": {"m": (torch.arange(60) % 4 + 1).double()}}


@pytest.mark.parametrize(
    ("one", "two", "ties"),
    [
        ([constant(value) for value in (0.1, 0.2, 0.3)], [constant(value) for value in (0.3, 0.2, 0.1)], 60),
        ([constant(value, **OWN) for value in (0.1, 0.2, 0.3)], constant(0.2, **OWN), 60),
        (make({"m": [0, 0, 0.3] * 20}, **THIRDS), make({"m": [0.1, 0.2, 0] * 20}, **THIRDS), 0),
    ],
    ids=["means over seeds", "weighted means over seeds", "clusters whose rows cancel"],
)
def test_equal_but_for_rounding(one, two, ties):
    found = trm.compare({"one": one, "two": two})["m"]
    assert (found.p, found.ties) == (1, ties)


def test_one_difference_for_all():
    """The same difference in all rows has the smallest p that the number of rows, or of draws, allows."""
    base = torch.rand(30, generator=torch.Generator().manual_seed(0)).double()
    for n, resamples, p in ((30, 10_000, 1 / 10_001), (30, 19, 1 / 20), (8, 10_000, 2 / 2**8), (3, 10_000, 2 / 2**3)):
        runs = {"a": make({"m": base[:n]}), "b": make({"m": base[:n] + 0.1})}
        found = trm.compare(runs, resamples=resamples)["m"]
        assert found.p == pytest.approx(p)
        assert found.low == pytest.approx(0.1 if p <= 0.05 else -math.inf)
        assert found.effect_size == math.inf
        assert found.detectable == (math.inf if n == 3 else pytest.approx(0, abs=1e-9))  # no flip is rare enough


def test_joint_intervals_by_enumeration():
    """Half the width of a max-T interval is the error times the 12th largest maximum of |t| of 255 flips of 8 rows."""
    d = torch.randn(8, 3, generator=torch.Generator().manual_seed(4)).double()

    def t(column, signs):
        units = [sign * value for sign, value in zip(signs, column, strict=True)]
        return sum(units) / 8**0.5 / stats.tstd(units)

    columns = d.T.tolist()
    flips = [*itertools.product((1, -1), repeat=8)][1:]
    critical = sorted(max(abs(t(column, signs)) for column in columns) for signs in flips)[-12]  # 12 / 256 < 0.05
    found = trm.compare({"a": labelled(torch.zeros(8, 3)), "b": labelled(d)})
    for result, column in zip(found.results, columns, strict=True):
        half = critical * stats.sem(column)
        ends = sum(column) / 8 - half, sum(column) / 8 + half
        assert (result.adjusted_low, result.adjusted_high) == pytest.approx(ends)


@pytest.mark.parametrize("options", [{}, {"test": "t"}, {"correction": "holm", "margin": 0.1}])
def test_fewer_than_two_rows(options):
    """A label with fewer than two defined rows gives nan, and labels with enough rows are still tested."""
    runs = {name: make({"a": [at, NAN, NAN], "b": [NAN] * 3, "c": [at, 0.2, 1.5]}) for name, at in (("x", 1), ("y", 0))}
    found = trm.compare(runs, **options)

    assert (found["a"].num_rows, found["a"].num_left_out, found["b"].num_rows) == (1, 2, 0)
    assert found["a"].difference == -1
    for field in ("p", "low", "high", "adjusted_p", "adjusted_low", "effect_size", "detectable"):
        assert math.isnan(getattr(found["a"], field)), field
    assert not math.isnan(found["c"].adjusted_p)
    assert "nan" not in str(found) + found.to_markdown()


def test_comparisons_without_rows_are_nan():
    empty = make({"a": []})
    assert math.isnan(trm.compare({"x": empty, "y": empty})["a"].p)


def test_text_of_a_comparison_that_tests_nothing():
    found = trm.compare({"x": make({"a": [1]}), "y": make({"a": [0]})})
    assert str(found).split("\n\n")[1] == "Not tested, with fewer than two rows: a."
    head = ["metric", "runs", "value", "against", "difference", "95 % interval", "p"]
    lines = found._repr_html_().splitlines()
    assert lines[1] == f"<tr>{''.join(f'<td>{name}</td>' for name in head)}</tr>"
    assert lines[-1] == "<p>Not tested, with fewer than two rows: a.</p>"


# pairing


HALVES = {"a": make({"m": [0.5, 0.5, NAN, 1.0, 0.0, NAN]}), "b": make({"m": [0.7, 0.5, 1.0, 0.2, 0.1, NAN]})}


def test_wins_ties_losses():
    found = trm.compare(HALVES)["m"]

    assert (found.wins, found.ties, found.losses) == (2, 1, 1)
    assert found.difference == pytest.approx((0.2 + 0 - 0.8 + 0.1) / 4)
    assert found.value == pytest.approx((0.7 + 0.5 + 0.2 + 0.1) / 4)
    assert found.against_value == pytest.approx((0.5 + 0.5 + 1.0 + 0.0) / 4)


def test_a_row_that_is_undefined_in_one_of_the_runs_is_left_out_and_counted():
    comparison = trm.compare(HALVES)
    found = comparison["m"]

    assert (found.num_rows, found.num_left_out, found.num_units) == (4, 2, 4)
    assert "Left out: up to 2 rows, undefined in one of two runs" in str(comparison)
    assert "Left out" not in str(trm.compare({"a": ROWS, "b": ROWS}))


@settings(max_examples=examples(15), deadline=None)
@given(seed=st.integers(0, 10**6), kind=st.sampled_from(["numbers", "words"]), clustered=st.booleans())
def test_any_order(seed, kind, clustered):
    """Results are bitwise equal for every order of the rows in each run."""
    generator = torch.Generator().manual_seed(seed)
    runs = models(70, labels=3, shift=0.02)

    def shuffled(rows):
        order = torch.randperm(70, generator=generator)
        values = {label: column[order] for label, column in rows.values.items()}
        ids, clusters = order, order % 23 if clustered else None
        if kind == "words":
            ids = [f"user {i}" for i in ids.tolist()]
            clusters = [f"cluster {i}" for i in clusters.tolist()] if clustered else None
        return trm.Rows(values, ids, clusters=clusters)

    first, second = ({name: shuffled(rows) for name, rows in runs.items()} for _ in range(2))
    assert trm.compare(first, resamples=200).results == trm.compare(second, resamples=200).results


def test_pairs():
    """All pairs are compared, the later run less the earlier one; with a baseline, each other run less the baseline."""
    runs = {name: make({"m": [at, at + 0.1, 0.3], "n": [1.0, 2.0, at]}) for name, at in (("a", 0), ("b", 1), ("c", 2))}
    everything = trm.compare(runs)
    assert [r[:3] for r in everything.results[::2]] == [("m", "b", "a"), ("m", "c", "a"), ("m", "c", "b")]
    with_b = trm.compare(runs, baseline="b")
    assert [r[:3] for r in with_b.results] == [("m", "a", "b"), ("n", "a", "b"), ("m", "c", "b"), ("n", "c", "b")]
    assert with_b["m", "a", "b"].difference == -everything["m", "b", "a"].difference
    for key, says in (
        ("m", r"name the label and the two runs, one of .*'m', 'a', 'b'"),
        (("m", "b", "a"), "the two runs, one of"),
        ("M", r"no result has the key 'M'\. There are m, n"),
    ):
        with pytest.raises(KeyError, match=says):
            with_b[key]


ROWS = make({"m": [1.0, 0.5, 0.2]})
ONES = torch.ones(3)


def rows(**options):
    return make({"m": ONES}, **options)


@pytest.mark.parametrize(
    ("one", "other", "error", "says"),
    [
        (ROWS, make({"n": ONES}), ValueError, r"m only in 'a'; n only in 'b'; or choose some with metrics=\["),
        (ROWS, make({"m": [1] * 4}), ValueError, r"pair: 1 of 4 ids of 'b' are not in 'a' \(such as id 3\); com"),
        (
            ROWS,
            rows(ids=torch.tensor([2, 1, 9])),
            ValueError,
            r"1 of 3 ids of 'a' .*1 of 3 .* 'b' .*\(such as id 9",
        ),
        (ROWS, rows(ids=["0", "1", "2"]), ValueError, "one of 'a' and 'b' has whole numbers, the other text"),
        (ROWS, rows(options={"ties": "mean"}), ValueError, "ties is 'not told' in 'a' and 'mean' in 'b'"),
        (ROWS, rows(weights=ONES), ValueError, "only one of 'a' and 'b' has weights"),
        (ROWS, rows(clusters=ONES.int()), ValueError, "only one of 'a' and 'b' has clusters"),
        (rows(weights=ONES), rows(weights=torch.arange(3)), ValueError, "weights of some rows differ"),
        (rows(clusters=[4, 4, 4]), rows(clusters=[4, 4, 5]), ValueError, "clusters of some rows differ"),
        (ROWS, make({"m": [1, math.inf, 2]}), ValueError, "values of m are infinite in 1 of 3 rows"),
        (ROWS, trm.RecMetricCollection("HR@1"), ValueError, "run 'b': no rows were kept: make the collection with acc"),
        (ROWS, [], ValueError, "run 'b' is an empty list"),
        (ROWS, "b.parquet", TypeError, r"must be an evaluation, Rows.* got str: pass Rows.from_parquet\('b.parquet'"),
        (ROWS, type("Other", (), {"rows": 1})(), TypeError, "got Other: pass {name: evaluation"),
    ],
)
def test_runs_that_do_not_pair(one, other, error, says):
    with pytest.raises(error, match=says):
        trm.compare({"a": one, "b": other})


def groups(codes, **options):
    return {"groups": trm.Groups(torch.tensor(codes), ["x"], **options)}


IN_X = groups([0, 0, 0])


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"baseline": "c"}, ValueError, r"baseline 'c' is not a run\. There are a, b"),
        ({"test": "sign"}, ValueError, r"not offered: it tests signs or ranks .*Smucker, .* CIKM 2007\): use 'rand"),
        ({"test": "z"}, ValueError, "test must be one of 'randomization', 't', got 'z'"),
        ({"metrics": [trm.NDCG(10)]}, TypeError, r"metrics must be labels, such as \['NDCG@10'\], got NDCG"),
        ({"metrics": ["m", "M"]}, ValueError, r"run 'a' has no metric 'M'\. There are m"),
        ({"metrics": []}, ValueError, "metrics is empty: name the metrics"),
        ({"test": "t", "correction": "max-t"}, ValueError, "needs the flips of test='randomization'"),
        ({"resamples": 0}, ValueError, "resamples must be at least 1"),
        ({"level": 95}, ValueError, "level must be between 0 and 1, such as 0.95, got 95"),
        ({"margin": 0}, ValueError, "margin must be a number > 0 in the metrics' unit, .*, got 0"),
        ({"margin": "nan%"}, ValueError, "margin must be a number > 0 .*, got 'nan%'"),
        ({"groups": ["x"]}, TypeError, r"groups must be Groups, got list: trm.group_users\(train\)"),
        (groups([0, 0]), ValueError, "have 2 users and no user_ids, but rows have the id 2"),
        (groups([0], user_ids=["0"]), TypeError, r"ids of rows hold whole numbers \(0\), user_ids of groups hold text"),
        (groups([0], user_ids=[9]), ValueError, "none of 3 rows has a user that is in groups, such as 0"),
    ],
)
def test_refused(options, error, says):
    with pytest.raises(error, match=says):
        trm.compare({"a": ROWS, "b": ROWS}, **options)


@pytest.mark.parametrize(
    ("runs", "options", "error", "says"),
    [
        ({"a": ROWS}, {}, ValueError, "compare needs two or more runs, got 1"),
        ([ROWS, ROWS], {}, TypeError, "runs must be a dict of evaluations or Rows by name, got list"),
        (trm.evaluate_lists("MRR", {1: [2]}, target={1: [2]}, k=1), {}, TypeError, "got Evaluation.*pass {name: eval"),
        (dict.fromkeys("ab", rows(ids=["a", "b", "c"])), IN_X, ValueError, "no user_ids, but rows have the id 'a'"),
        (
            dict.fromkeys("ab", make({"m": ONES, "m/x": ONES})),
            IN_X,
            ValueError,
            "m/x is a label of the runs and would",
        ),
    ],
)
def test_refused_runs(runs, options, error, says):
    with pytest.raises(error, match=says):
        trm.compare(runs, **options)


# units


def test_weights():
    """The difference is that of the weighted means, u = w (x - y) is tested, and a row of weight 0 is left out."""
    runs = models(50, shift=0.05)
    weights = torch.rand(50, generator=torch.Generator().manual_seed(1)).double()
    weights[4] = 0
    runs = again(runs, weights=weights)
    found = trm.compare(runs, test="t")["m0"]
    assert found.difference == pytest.approx(runs["gcn"].mean()["m0"] - runs["pop"].mean()["m0"])
    kept = weights.numpy() > 0
    assert found.p == pytest.approx(stats.ttest_1samp((weights.numpy() * differences(runs))[kept], 0).pvalue)
    assert (found.num_rows, found.num_left_out) == (49, 1)
    runs = {n: make({"m": m}, weights=torch.tensor([0, 0, 0, 1])) for n, m in (("a", [0.0] * 4), ("b", [1, -1, 0, 1]))}
    found = trm.compare(runs)["m"]
    assert (found.wins, found.ties, found.losses) == (1, 0, 0)


def test_weights_of_any_size():
    """Weights of any size give the same p if they are proportional."""
    sizes = (1e-170, 1.0, 1e160)
    runs = [again(models(60), weights=torch.full((60,), size, dtype=torch.float64)) for size in sizes]
    small, one, large = (trm.compare(each, resamples=500)["m0"].p for each in runs)
    assert small == one == large < 1


def test_weights_of_metrics_themselves():
    """A metric's own weights in each run make that run's mean; if equal in both runs, they act like row weights."""
    a = make({"m": [0, 1, 1, 1]}, own_weights={"m": torch.tensor([1.0, 2, 0, 1])})
    b = make({"m": [1, 0, 1, 0]}, own_weights={"m": torch.tensor([0.0, 1, 2, 1])})
    result = trm.compare({"a": a, "b": b})["m"]
    assert (result.value, result.against_value, result.difference) == pytest.approx((2 / 4, 3 / 4, -1 / 4))
    assert result.num_rows == 4
    runs, weights = models(50, shift=0.05), torch.rand(50, generator=torch.Generator().manual_seed(1)).double()
    own, plain = (
        trm.compare(again(runs, **options), test="t", margin=0.1)["m0"]
        for options in ({"own_weights": {"m0": weights}}, {"weights": weights})
    )
    assert own[4:] == pytest.approx(plain[4:])


@pytest.mark.parametrize("words", [False, True])
def test_clusters(words):
    """Clusters of equal size, such as all rows of a seed, give the result of rows that are their means."""
    runs, clusters = models(60, shift=0.03), torch.arange(60) % 20
    means = {name: make({"m0": rows.values["m0"].view(3, 20).mean(0)}) for name, rows in runs.items()}
    named = [f"user {c + 10}" for c in clusters.tolist()] if words else clusters
    for options in ({}, {"test": "t"}):
        found = trm.compare(again(runs, clusters=named), **options)
        alone = trm.compare(means, **options)
        for name in ("difference", "low", "high", "p", "effect_size", "detectable", "value", "num_units"):
            assert getattr(found["m0"], name) == pytest.approx(getattr(alone["m0"], name)), name
        assert (found["m0"].num_rows, found["m0"].num_units) == (60, 20)
        assert "20 whole clusters" in str(found)


# many units


@pytest.mark.parametrize(("wins", "losses"), [(10_400, 10_100), (5, 15)])
def test_hits_are_mcnemars(wins, losses):
    """Of 30,000 rows that hit or miss, p is the binomial test's of the rows in which the runs differ, be they few."""
    a, b = torch.zeros(2, 30_000)
    a[:losses], b[losses : losses + wins] = 1, 1
    runs = {"a": make({"m": a}), "b": make({"m": b})}
    found = trm.compare(runs)
    assert found["m"].p == pytest.approx(stats.binomtest(wins, wins + losses).pvalue, abs=0.008)
    told = " ".join(str(found).split())
    assert "signs of 30000 rows flipped (10000 draws, seed 0, of their normal limit), two-sided." in told
    assert not trm.compare(runs, test="t").normal


@pytest.mark.parametrize("clustered", [False, True])
def test_the_limit_is_that_of_the_flips(clustered, monkeypatch):
    """p values of 12,000 units and a group of 40 are those of the flips, up to the error of the draws."""
    n = 24_000 if clustered else 12_000
    runs = models(n, labels=3, shift=0.001, seed=3, alike=0.5)
    if clustered:
        runs = again(runs, clusters=torch.arange(n) // 2)
    groups = trm.Groups(torch.where(torch.arange(n) < 40, 0, -1), ["x"])
    options = {"groups": groups, "margin": 0.002, "resamples": 4000}
    limit = trm.compare(runs, **options)
    assert limit.normal
    monkeypatch.setattr(pairing, "MANY", 10**9)
    flips = trm.compare(runs, **options)
    for mine, other in zip(limit.results, flips.results, strict=True):
        assert mine.difference == other.difference
        for name in ("p", "adjusted_p", "noninferior_p", "adjusted_noninferior_p"):
            p = getattr(other, name)
            assert getattr(mine, name) == pytest.approx(p, abs=6 * (p * (1 - p) / 4000) ** 0.5 + 1e-3), (mine.key, name)
        assert (mine.low, mine.high) == pytest.approx((other.low, other.high), abs=0.1 * (other.high - other.low))


# corrections


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


@pytest.mark.parametrize(("shift", "grouped"), [(0, False), (0.2, False), (0, True), (0.2, True)])
def test_max_t_is_enumerated(shift, grouped):
    """The max-T p values of 10 rows, two labels, three pairs and three groups of rows are those of all 2^10 flips."""
    several = [models(10, labels=2, shift=shift, seed=seed, alike=0.5) for seed in (0, 1)]
    runs = {"a": several[0]["pop"], "b": several[0]["gcn"], "c": several[1]["gcn"]}
    codes = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, -1])
    found = trm.compare(runs, groups=trm.Groups(codes, ["x", "y", "z"]) if grouped else None)
    assert found.exact
    assert len(found) == (2 * 3 * 4 if grouped else 2 * 3)
    columns = []
    for r in found.results:
        column = runs[r.run].values[r.label] - runs[r.against].values[r.label]
        columns.append(column if r.group is None else column.where(codes == "xyz".index(r.group), NAN))
    raw, adjusted = enumerated(torch.stack(columns, 1).numpy())
    assert [r.p for r in found.results] == pytest.approx(raw.tolist())
    assert [r.adjusted_p for r in found.results] == pytest.approx(adjusted.tolist())


@pytest.mark.parametrize("test", ["t", "randomization"])
@pytest.mark.parametrize(("correction", "method"), [("none", None), ("holm", "holm"), ("bh", "fdr_bh")])
def test_corrections_are_statsmodels(test, correction, method):
    """Adjusted p values are those of statsmodels; intervals have the level that Holm's first step or BH's last has.

    With BH that is 1 - 0.05 R / m for R significant comparisons of m, as Benjamini and Yekutieli say.
    """
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    runs = models(60, labels=8, seed=2, alike=0.3)
    for i in range(8):
        runs["gcn"].values[f"m{i}"].add_(0.04 * i)
    found = trm.compare(runs, test=test, correction=correction)
    p = [r.p for r in found.results]
    expected = multitest.multipletests(p, method=method)[1].tolist() if method else p
    assert [r.adjusted_p for r in found.results] == pytest.approx(expected)
    significant = sum(each <= 0.05 for each in expected)
    assert 0 < significant < 8
    share = {"none": 1, "holm": 1 / 8, "bh": significant / 8}[correction]
    for r in found.results:
        excludes_0 = not r.adjusted_low <= 0 <= r.adjusted_high
        assert excludes_0 == (r.adjusted_p <= 0.05) or (correction == "holm" and not excludes_0)
        if test == "t":
            half = stats.sem(differences(runs, r.label)) * stats.t(59).ppf(1 - 0.025 * share)
            assert r.adjusted_high - r.difference == pytest.approx(half)
    assert trm.compare(runs, test="t").correction == "holm"


def test_benjamini_hochberg_without_significant_differences():
    found = trm.compare(models(60, labels=3), correction="bh")
    assert all(r.adjusted_low < 0 < r.adjusted_high for r in found.results)
    told = " ".join(str(found).split())
    assert "(Benjamini-Hochberg); intervals exclude 0 where the adjusted p <= 0.05, and a share" in told


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
def test_interval_and_p_agree(n, labels, seed, shift, coarse, test, correction, alternative, level, resamples):
    """An interval excludes 0 exactly where p <= 1 - level; a corrected one only where its corrected p is."""
    runs = models(n, labels, shift, seed, alike=0.5)
    if coarse:
        runs = {name: make({k: (v * 4).round() / 4 for k, v in rows.values.items()}) for name, rows in runs.items()}
    found = trm.compare(
        runs, test=test, correction=correction, alternative=alternative, level=level, resamples=resamples
    )
    for r in found.results:
        assert (r.p <= 1 - level + 1e-12) == (not r.low <= 0 <= r.high)
        assert r.adjusted_p <= 1 - level + 1e-12 or r.adjusted_low <= 0 <= r.adjusted_high
        assert r.p <= r.adjusted_p
        if alternative == "two-sided":
            assert r.adjusted_low <= r.low <= r.difference <= r.high <= r.adjusted_high


# groups of rows


def taken(rows, chosen):
    """Return the chosen rows."""
    part = lambda column: None if column is None else column[chosen]  # noqa: E731
    values, own = ({n: part(v) for n, v in each.items()} for each in (rows.values, rows.own_weights))
    return make(values, part(rows.ids), weights=part(rows.weights), clusters=part(rows.clusters), own_weights=own)


@pytest.mark.parametrize("clusters", [None, "whole", "divided by groups"])
@pytest.mark.parametrize("options", [{"test": "t"}, {"alternative": "greater", "margin": 0.1, "level": 0.8}])
def test_a_group_is_its_rows(clusters, options):
    """Without a correction, the result of a group is that of a comparison of its rows alone, up to the signs drawn.

    Runs are means of two, with weights, undefined values and a metric's own weights.
    """
    generator = torch.Generator().manual_seed(5)
    random = lambda: torch.rand(90, generator=generator).double()  # noqa: E731
    ids = torch.randperm(90, generator=generator)
    codes, weights = torch.randint(-1, 3, (90,), generator=generator), random()
    clusters = {"whole": codes * 12 + ids % 12, "divided by groups": ids % 20}.get(clusters)

    def run(shift):
        values = {"m": (random() + shift).masked_fill(ids % 9 == int(10 * shift), NAN), "n": random()}
        return make(values, ids, weights=weights, clusters=clusters, own_weights={"n": random()})

    runs = {name: [run(shift), run(shift)] for name, shift in (("a", 0.0), ("b", 0.1), ("c", 0.2))}
    by_id = torch.empty(90, dtype=torch.int64).scatter(0, ids, codes)
    options = {"correction": "none", "resamples": 3000, **options}
    found = trm.compare(runs, groups=trm.Groups(by_id, ["x", "y", "z"]), **options)
    expected = {None: trm.compare(runs, **options)}
    for code, name in enumerate("xyz"):
        of_group = {n: [taken(r, codes == code) for r in each] for n, each in runs.items()}
        expected[name] = trm.compare(of_group, **options)
    assert len(found) == 3 * 2 * 4
    for r in found.results:
        alone = expected[r.group][r.label, r.run, r.against]
        near = dict.fromkeys(("p", "adjusted_p", "noninferior_p", "adjusted_noninferior_p"), 0.06)
        near |= dict.fromkeys(
            ("low", "high", "adjusted_low", "adjusted_high", "largest_loss"), 0.2 * abs(alone.detectable)
        )
        near |= {"detectable": 0.1 * abs(alone.detectable)}
        for name in r._fields[4:]:
            value, other = (NAN if getattr(each, name) is None else getattr(each, name) for each in (r, alone))
            tolerance = 0 if found.test == "t" else near.get(name, 0)
            assert value == pytest.approx(other, rel=1e-9, abs=tolerance + 1e-12, nan_ok=True), (r.key, name)
    assert found.groups == {name: int((codes == code).sum()) for code, name in enumerate("xyz")}
    assert found.num_in_none == int((codes < 0).sum())


OF_60 = trm.Groups(torch.tensor([0] * 30 + [1] * 29 + [2]), ["x", "y", "one", "nobody"])


def test_groups_are_corrected_together():
    """Holm's correction counts all labels of all rows and of the groups, but only those that can be tested."""
    found = trm.compare(models(60, labels=2, shift=0.1), groups=OF_60, test="t")
    least = min(found.results, key=lambda r: r.p if r.p == r.p else 2)

    assert least.adjusted_p == pytest.approx(6 * least.p)
    assert "Corrected for 6 comparisons" in str(found)


def test_groups_of_one_and_no_row_are_not_tested():
    runs = models(60, labels=2, shift=0.1)
    found = trm.compare(runs, groups=OF_60, test="t")
    one, nobody = found["m0/one"], found["m0/nobody"]

    assert (one.num_rows, one.num_left_out, nobody.num_rows) == (1, 0, 0)
    assert one.difference == pytest.approx(differences(runs)[59])
    assert math.isnan(one.adjusted_p)
    assert math.isnan(nobody.adjusted_high)
    assert "Not tested, with fewer than two rows: m0/one, m0/nobody, m1/one, m1/nobody." in str(found)


def test_units_of_groups_are_clusters():
    runs = again(models(60, labels=2), clusters=torch.arange(60) // 2)
    found = trm.compare(runs, groups=OF_60)

    assert [found[f"m0{group}"].num_units for group in ("", "/x", "/y", "/one", "/nobody")] == [30, 15, 15, 1, 0]
    assert "with fewer than two whole clusters: m0/one" in str(found)


def test_groups_of_ids():
    """Groups are matched to rows by user id, and rows of other users are in no group."""
    rows = models(4)
    for convert in (int, str):
        ids = [convert(user) for user in (8, 5, 7, 1)]
        groups = trm.Groups(torch.tensor([1, 1, 0, 0]), ["x", "y"], user_ids=[convert(user) for user in (7, 5, 9, 8)])
        found = trm.compare({name: make(each.values, ids) for name, each in rows.items()}, groups=groups)
        assert found.groups == {"x": 1, "y": 2}
        assert found.num_in_none == 1
        assert found["m0/y"].difference == pytest.approx(differences(rows)[1:3].mean())


def test_collections_are_runs():
    """A collection that kept its rows is compared by them."""
    runs = {}
    for name, ranks in (("a", [1, 2, 3]), ("b", [1, 1, 2])):
        runs[name] = trm.RecMetricCollection("MRR", accumulators=[trm.KeptRows()])
        runs[name].update(trm.Ranks(torch.tensor(ranks), complete=True))
        runs[name].compute()
    assert trm.compare(runs)["MRR"].difference == pytest.approx((0 + (1 - 1 / 2) + (1 / 2 - 1 / 3)) / 3)


# non-inferiority, several runs of one model


@pytest.mark.parametrize("margin", [0.02, 0.2])
def test_noninferiority(margin):
    """The non-inferiority p is that of the one-sided t test of d + margin; the randomisation test agrees."""
    runs = models(80, shift=-0.03, seed=4)
    expected = stats.ttest_1samp(differences(runs) + margin, 0, alternative="greater").pvalue
    assert trm.compare(runs, test="t", margin=margin)["m0"].noninferior_p == pytest.approx(expected)
    found = trm.compare(runs, margin=margin, resamples=20_000)["m0"]
    assert found.noninferior_p == pytest.approx(expected, abs=0.01)
    without = trm.compare(runs, resamples=20_000)["m0"]
    of_margin = dict.fromkeys(("margin", "noninferior_p", "adjusted_noninferior_p", "largest_loss"))
    assert without == found._replace(**of_margin)
    exactly = trm.compare({"a": constant(0.2 + margin), "b": constant(0.2)}, margin=margin)["m"]
    assert exactly.noninferior_p == 1  # a difference as large as the margin is not within it


BASE = torch.rand(400, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
NOISE = torch.randn(400, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
NOISE = (NOISE - NOISE.mean()) / NOISE.std()
MAX_LOSS = stats.t(399).ppf(0.975) * 0.1 / 20
"""Half the width of the 95 % interval of `NOISE / 10` over 400 rows: 0.0098."""
FOUND = "A difference of 0.0140 would be found in four of five cases."


@pytest.mark.parametrize(
    ("change", "lower", "margin", "verdict"),
    [
        (-0.1, False, 0.02, "Failed: m fell by 0.1000, by at least 0.0902 (95 %): more than the margin 0.0200."),
        (0.1, True, 0.02, "Failed: m rose by 0.1000, by at least 0.0902 (95 %): more than the margin 0.0200."),
        (
            -0.015,
            False,
            0.02,
            f"Inconclusive: m fell by 0.0150, by at most 0.0248 (95 %): not less than the margin 0.0200. {FOUND}",
        ),
        (
            -0.005,
            True,
            0.001,
            f"Inconclusive: m fell by 0.0050, or rose by at most 0.0048 (95 %): not less than the margin "
            f"0.0010. {FOUND}",
        ),
        (-0.005, False, 0.02, "Passed: m fell by 0.0050, by at most 0.0148 (95 %): less than the margin 0.0200."),
        (
            0.005,
            False,
            0.02,
            "Passed: m rose by 0.0050, or fell by at most 0.0048 (95 %): less than the margin 0.0200.",
        ),
        (0.1, False, "1%", "Passed: m rose by 0.1000, by at least 0.0902 (95 %): no loss."),
        (-0.1, True, 0.02, "Passed: m fell by 0.1000, by at least 0.0902 (95 %): no loss."),
    ],
)
def test_gate(change, lower, margin, verdict):
    """A run passes if its difference is significantly better than a loss by the margin; lower values may be better."""
    sides = {"higher_is_better": {"m": False}} if lower else {}
    runs = {"old": make({"m": BASE}, **sides), "new": make({"m": BASE + change + NOISE / 10}, **sides)}
    for test in ("t", "randomization"):
        found = trm.compare(runs, margin=margin, test=test)
        assert found.passed is verdict.startswith("Passed")
        assert f"{'. All' if found.passed else '. Not all'} results pass, each tested" in " ".join(str(found).split())
        assert ("(lower values of m are better)" in " ".join(str(found).split())) is lower
        r, sign = found["m"], -1 if lower else 1
        assert r.margin == (BASE.mean().item() / 100 if margin == "1%" else margin)
        expected = stats.ttest_1samp(sign * r.difference + NOISE / 10 + r.margin, 0, alternative="greater").pvalue
        assert r.noninferior_p == pytest.approx(expected, rel=1e-6 if test == "t" else 0.5, abs=1e-4)
    assert trm.compare(runs, margin=margin, test="t").verdict == verdict


def test_a_margin_is_a_share_of_the_size_of_a_negative_mean():
    runs = {"old": make({"m": BASE - 2}), "new": make({"m": BASE - 2 + NOISE / 10})}

    assert trm.compare(runs, margin="10%")["m"].margin == pytest.approx(0.1 * (2 - BASE.mean().item()))


def test_a_gate_is_not_corrected():
    """All must pass, so that each is tested at .025; single claims of non-inferiority are corrected."""
    loss = 0.02 - stats.t(399).ppf(0.985) * 0.1 / 20  # p = .015 one-sided
    runs = {"old": make({f"m{i}": BASE for i in range(9)})}
    runs["new"] = make({f"m{i}": BASE - loss + NOISE / 10 for i in range(9)})
    found = trm.compare(runs, margin=0.02, test="t")
    assert [r.noninferior_p for r in found.results] == pytest.approx([0.015] * 9)
    assert [r.adjusted_noninferior_p for r in found.results] == pytest.approx([0.015 * 9] * 9)
    assert found.passed
    wider = trm.compare(runs, margin=0.02, test="t", level=0.98)
    assert not wider.passed
    assert trm.compare(runs).passed is None
    with pytest.raises(ValueError, match="verdict needs a margin"):
        _ = trm.compare(runs).verdict


def test_gates_of_several_candidates():
    """The worst metric of all candidates decides; a metric that cannot be tested does not pass."""
    runs = {"old": BASE, "good": BASE + 0.01, "bad": BASE - 0.3 + NOISE / 10, "worse": BASE - 0.5 + NOISE / 10}
    found = trm.compare({name: make({"m": column}) for name, column in runs.items()}, baseline="old", margin=0.1)
    assert found.verdict.startswith("Failed: m of worse fell by 0.5000, by at least 0.4")
    one = {name: make({"m": [1.0, NAN], "l": [1.0, 1.0]}) for name in ("a", "b")}
    found = trm.compare(one, margin=0.1)
    assert (found.passed, found.outcome) == (False, "inconclusive")
    assert found.verdict == "Inconclusive: m has too few rows or clusters for an interval, 1."


@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
def test_the_worst_of_a_passed_gate(alternative):
    """The metric whose loss may be the largest share of its margin is the worst, not the one that changed most."""
    shifts = {"NDCG@10": 0.05, "HR@10": -0.012, "MRR": 0}
    sides = {"higher_is_better": {"MeanRank": False}}
    for change, worst in ((-0.3, "HR@10 fell by 0.0120"), (0.013, "MeanRank rose by 0.0130")):
        shifts["MeanRank"] = change
        new = {label: BASE + shift + NOISE / 99 for label, shift in shifts.items()}
        runs = {"old": make(dict.fromkeys(shifts, BASE), **sides), "new": make(new, **sides)}
        found = trm.compare(runs, margin=0.02, alternative=alternative)
        assert found.verdict.startswith(f"Passed: {worst}, by at most ")


@pytest.mark.parametrize("test", ["t", "randomization"])
@pytest.mark.parametrize("seed", range(5))
def test_the_largest_loss_is_below_the_margin_if_and_only_if_the_run_is_noninferior(seed, test):
    values = models(400, seed=seed)["gcn"].values["m0"]
    runs = {"old": make({"m": BASE}), "new": make({"m": BASE - 0.03 + (values - values.mean()) / 9})}
    margin = trm.compare(runs, margin=0.05, test=test)["m"].largest_loss
    above, below = (trm.compare(runs, margin=margin * factor, test=test, seed=0) for factor in (1.02, 0.98))

    assert (above.passed, below.passed) == (True, False)
    assert above["m"].largest_loss < above["m"].margin
    assert below["m"].largest_loss > below["m"].margin


def test_the_largest_loss_is_the_end_of_students_interval():
    """The loss is 0.005, and its 97.5 % quantile t(399) x 0.1 / sqrt(400) further."""
    runs = {"old": make({"m": BASE}), "new": make({"m": BASE - 0.005 + NOISE / 10})}

    assert trm.compare(runs, margin=0.02, test="t")["m"].largest_loss == pytest.approx(0.005 + MAX_LOSS)


def lists_of(users, item):
    return {user: [item, "other"] for user in users}


def evaluated(lists):
    """Return HR@2 over 200 users, whose relevant item is "relevant"."""
    return trm.evaluate_lists("HR@2", lists, target={user: ["relevant"] for user in range(200)}, keep_rows=True)


BAD = {**lists_of(range(200), "wrong"), **lists_of(range(20, 30), "relevant")}


def test_a_run_that_was_cut_short_is_compared_over_the_users_of_both():
    """Over all users the candidate has HR@2 10 / 200, the incumbent 8 / 200; over the 8 of both 0 and 1."""
    found = trm.compare({"half": evaluated(lists_of(range(8), "relevant")), "bad": evaluated(BAD)}, margin=0.1)
    served = found["HR@2/served by both"]

    assert found.unserved == {"half": 192}
    assert "Without a list: 192 rows of half." in str(found)
    assert (found["HR@2"].difference, served.difference) == (pytest.approx(2 / 200), -1)
    assert (found["HR@2"].noninferior_p < 0.025, served.noninferior_p) == (True, 1)
    assert (found.passed, found.outcome) == (False, "failed")


def test_an_incumbent_of_empty_lists_lets_no_candidate_pass():
    rows = evaluated(BAD).rows
    empty = trm.Rows({"HR@2": torch.zeros(200)}, rows.ids, options=rows.options, served=torch.zeros(200))
    found = trm.compare({"empty": empty, "bad": rows}, margin=0.1)

    assert (found.outcome, found["HR@2/served by both"].num_rows) == ("inconclusive", 0)


@pytest.mark.parametrize("users", [range(100), range(200)])
def test_a_candidate_that_serves_more_users_passes(users):
    """The incumbent serves 90 users; the candidate has the same lists, and further ones."""
    runs = {"old": evaluated(lists_of(range(90), "relevant")), "new": evaluated(lists_of(users, "relevant"))}
    found = trm.compare(runs, margin=0.1)

    assert (found.outcome, found.unserved["old"]) == ("passed", 110)


def test_served_rows_are_compared_within_groups():
    groups = trm.Groups(torch.arange(200) % 2, ["even", "odd"])
    runs = {"half": evaluated(lists_of(range(8), "relevant")), "bad": evaluated(BAD)}
    found = trm.compare(runs, margin=0.1, groups=groups)

    assert found["HR@2/odd, served by both"].num_rows == 4
    assert found.groups == {"even": 100, "odd": 100}


def test_without_a_margin_unserved_users_are_counted_alone():
    found = trm.compare({"half": evaluated(lists_of(range(8), "relevant")), "bad": evaluated(BAD)})

    assert (found.result_keys, found.unserved) == (["HR@2"], {"half": 192})


def of_unknown_side(values):
    """Return `Rows` that do not say which values are better."""
    return make(values, higher_is_better={})


@pytest.mark.parametrize("label", ["MeanRank", "Gini@10", "Calibration-kl@20"])
def test_sides_of_our_own_metrics_are_known_by_name(label):
    runs = {"old": of_unknown_side({label: BASE}), "new": of_unknown_side({label: BASE + 5})}
    found = trm.compare(runs, margin=0.1)

    assert (found.passed, found.higher_is_better) == (False, {label: False})
    assert trm.compare(runs, baseline="new", margin=0.1).passed


COSTS = {name: of_unknown_side({"HR@1": BASE, "cost": BASE + cost}) for name, cost in (("old", 0), ("new", 5))}


def test_margins_need_a_side():
    with pytest.raises(ValueError, match=r"it is not known whether higher values of cost .*=\{'cost': False\}\)"):
        trm.compare(COSTS, margin=0.1)
    assert trm.compare(COSTS, "HR@1", margin=0.1).passed
    assert trm.compare(COSTS).higher_is_better == {"HR@1": True, "cost": True}


@pytest.mark.parametrize("side", [False, True])
def test_one_run_that_tells_the_side_is_enough(side):
    old = make({"HR@1": BASE, "cost": BASE}, higher_is_better={"cost": side})

    assert trm.compare({"old": old, "new": COSTS["new"]}, margin=0.1).passed is side


def test_metrics_of_which_no_side_is_better_have_no_margin():
    rows = of_unknown_side({"AveragePopularity@5": BASE})

    with pytest.raises(ValueError, match="neither higher nor lower values of AveragePopularity@5"):
        trm.compare({"a": rows, "b": rows}, margin=0.1)


def test_sides_of_our_names():
    """`Rows` knows the side of each metric class, of the package and of users, by its name."""

    class Waste(trm.RankingMetric):
        formula = staticmethod(trm.functional.hit_rate)
        higher_is_better = False

    for name, metric in {**_CLASSES, "Waste": Waste}.items():
        rows = of_unknown_side({f"{name}@10": BASE, name: BASE, f"{name}-option": BASE})
        assert set(rows.higher_is_better.values()) == {metric.higher_is_better}
        assert len(rows.higher_is_better) == 3


def test_margins_that_are_shares():
    """A tenth of 1 is 0.1, and of 0 there is no share."""
    old = {"MeanRank": torch.ones(40), "HR@1": torch.ones(40)}
    new = {"MeanRank": 7 + NOISE[:40] / 99, "HR@1": torch.zeros(40)}
    runs = {"old": make(old, higher_is_better={}), "new": make(new, higher_is_better={})}
    found = trm.compare(runs, margin="10%")

    assert found.higher_is_better == {"MeanRank": False, "HR@1": True}
    assert [r.margin for r in found.results] == [0.1, 0.1]
    with pytest.raises(ValueError, match="the mean of HR@1 in 'new' is 0, and so is any share of it: pass a margin"):
        trm.compare(runs, "HR@1", baseline="new", margin="2%")


def test_evaluations_say_which_values_are_better():
    catalogue = trm.Catalogue.from_interactions(trm.Interactions.from_frame({"user": ["al"], "item": ["x"]}))
    metrics = ["MeanRank", trm.Seen(1, catalogue=catalogue)]
    found = trm.evaluate_lists(metrics, {"al": ["x"]}, target={"al": ["x"]}, complete=True, keep_rows=True)

    assert found.rows.higher_is_better == {"MeanRank": False, "Seen@1": None}


def test_runs_are_averaged():
    """A list of runs is compared by its mean in each row, which is undefined where one of the runs is."""
    a, b, c = (models(40, seed=seed)["pop"] for seed in (1, 2, 3))
    b.values["m0"][5] = NAN
    found = trm.compare({"x": [a, b], "y": c})
    mean = make({"m0": (a.values["m0"] + b.values["m0"]) / 2})
    assert found["m0"] == trm.compare({"x": mean, "y": c})["m0"]
    assert found["m0"].num_left_out == 1
    assert "x is the mean of 2 runs: the test is about these runs, not about" in str(found)


# forms


def test_table_has_both_values_their_difference_and_its_corrected_interval():
    runs = models(60, labels=2, shift=0.1)
    found = trm.compare(runs, margin=0.01)
    header, line, *others = str(found).splitlines()
    columns = ["metric", "runs", "value", "against", "difference", "95 % interval", "adjusted p", "non-inferior p"]
    assert re.split("  +", header) == columns
    r, means = found["m0"], [runs[name].values["m0"].mean().item() for name in ("gcn", "pop")]
    assert re.split("  +", line)[:5] == ["m0", "gcn - pop", *(f"{mean:.4f}" for mean in means), f"{r.difference:+.4f}"]
    assert line.endswith(
        f"[{r.adjusted_low:+.4f}, {r.adjusted_high:+.4f}]      {r.adjusted_p:.4f}          "
        f"{r.adjusted_noninferior_p:.4f}"
    )
    assert r.adjusted_p != r.p
    assert all(line == line.rstrip() for line in others)


def test_text_below_the_table_names_the_test_and_the_correction():
    runs = models(60, labels=2, shift=0.1)
    text = str(trm.compare(runs, margin=0.01))
    assert "\nPaired randomisation test: signs of 60 rows flipped (10000 draws, seed 0), two-sided.\n" in text
    assert "Corrected for 2 comparisons (step-down max-T; exact for each, asymptotic for all" in text
    assert "Non-inferior: worse by less than 0.01. All results pass, each tested one-sided at" in text
    assert "Not corrected for 2 comparisons" in str(trm.compare(runs, correction="none"))
    assert "all 255 other signs" in str(trm.compare(models(8)))


def test_a_single_comparison_is_not_corrected():
    text = str(trm.compare(models(60, labels=2, shift=0.1), "m0", test="t", alternative="less"))
    assert "adjusted p" not in text
    assert "Paired t test over 60 rows, one-sided (less)" in text
    assert "The interval excludes 0 exactly where p <= 0.05." in text


def test_small_differences_are_shown_with_their_digits():
    small = trm.compare({name: make({"m": rows.values["m0"] / 1e5}) for name, rows in models(100, shift=0.1).items()})
    assert f"{small['m'].difference:+.8f}"[:9] in str(small)


def test_markdown_and_latex():
    """A | in a name stays in its cell; TeX, which sets a plain < as an inverted !, gets < and minus in maths."""
    base = torch.rand(40, generator=torch.Generator().manual_seed(0)).double()
    found = trm.compare({"a-1|b": make({"m": base}), "c": make({"m": base - 0.25})})
    head, rule, line = found.to_markdown().splitlines()
    assert head.startswith("| metric | runs       |  value | against | difference |")
    assert rule.startswith("| ------ | ---------- | -----: | ------: | ---------: |")
    assert line.startswith("| m      | c - a-1\\|b | ")
    latex = found.to_latex().splitlines()
    assert latex[:2] == [r"% \usepackage{booktabs}", r"\begin{tabular}{llrrrrr}"]
    cells = latex[5].rstrip("\\ ").split(" & ")
    assert cells[1] == r"c - a-1\textbar{}b"
    assert cells[4:] == ["$-$0.2500", "[$-$0.2500, $-$0.2500]", "$<$0.0001"]


def by_model(labels, others=1):
    """Return the comparison of models with a baseline, and its table; the first is better by 0.3, others alike."""
    shifts = {"old": 0, "new_1": 0.3, **{f"new_{n}": 0.001 * n for n in range(2, others + 1)}}
    sides = {"higher_is_better": {"cost": False}} if "cost" in labels else {}
    runs = {name: make(dict.fromkeys(labels, BASE + shift + NOISE / 99), **sides) for name, shift in shifts.items()}
    runs["old"] = make(dict.fromkeys(labels, BASE), **sides)
    found = trm.compare(runs, baseline="old")
    return found, found.by_model()


def test_a_row_per_model_and_a_column_per_metric():
    _, table = by_model(["m", "cost"])
    means = pytest.approx([BASE.mean().item(), BASE.mean().item() + 0.3])

    assert table.to_dict() == {"model": ["old", "new_1"], "m": means, "cost": means}


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
    found, table = by_model(["m"], others)
    significant = [result.adjusted_p <= 0.05 for result in found.results]

    assert ["†" in line for line in str(table).splitlines()[2 : 2 + others]] == significant
    assert table.notes[0] == f"The best values have a star or are bold; † differs from old, {p} <= 0.05."


def test_standard_errors_by_model():
    """Standard errors are those of the means over the compared rows, clusters and weights included; NaN is "-"."""
    weights = (torch.arange(60) % 3 + 1).double()
    runs = {"a": models(60)["pop"].values, "b": models(60, shift=0.3)["gcn"].values}
    for options in ({}, {"weights": weights}, {"clusters": torch.arange(60) // 4}):
        rows = {
            name: trm.Rows({**values, "n": values["m0"] * NAN}, torch.arange(60), **options)
            for name, values in runs.items()
        }
        table = trm.compare(rows).by_model(standard_errors=True)
        columns = table.to_dict()
        assert [*columns] == ["model", "m0", "m0 standard error", "n", "n standard error"]
        number, w = options.get("clusters", torch.arange(60)), options.get("weights", torch.ones(60).double())
        for name, value, error in zip(*[*columns.values()][:3], strict=True):
            x = runs[name]["m0"]
            mean = (w * x).sum() / w.sum()
            sums = torch.zeros(int(number.max()) + 1).double().index_add(0, number, w * (x - mean))
            n = len(sums)
            assert value == pytest.approx(mean.item())
            assert error == pytest.approx(((sums.square().sum() * n / (n - 1)).sqrt() / w.sum()).item())
            assert f"{value:.4f} ± {error:.4f}" in str(table)
        assert str(table).splitlines()[1].split()[-1] == "-"


OWN_ROWS = {"p": [1, 1, 0.8, 0.8, 0.2, 0.2], "q": [1, 1, 0, 0, NAN, NAN], "r": [NAN, NAN, NAN, NAN, 0.4, 0.1]}


@pytest.mark.parametrize("order", ["pqr", "prq"])
def test_means_by_model_are_of_own_rows(order):
    """A model's mean is over its own rows, whatever it is compared with."""
    runs = {name: make({"MRR": OWN_ROWS[name], "HR@1": [0.0, 1, 0, 1, 0, 1]}) for name in order}
    groups = trm.Groups(torch.tensor([0, 0, 0, 1, 1, 1]), ["a", "b"])
    table = trm.compare(runs, baseline="p", groups=groups).by_model()
    values = {row["model"]: row for row in table.result_rows()}

    assert [values[name]["MRR"] for name in "pqr"] == pytest.approx([4 / 6, 2 / 4, 0.5 / 2])
    assert [values[name]["MRR/a"] for name in "pqr"] == pytest.approx([2.8 / 3, 2 / 3, NAN], nan_ok=True)
    assert [values[name]["MRR/b"] for name in "pqr"] == pytest.approx([1.2 / 3, 0 / 1, 0.5 / 2])


def test_a_note_counts_the_rows_of_each_model_where_they_differ():
    runs = {name: make({"MRR": OWN_ROWS[name], "HR@1": [0.0, 1, 0, 1, 0, 1]}) for name in "pqr"}

    assert (
        trm.compare(runs, baseline="p")
        .by_model()
        .notes[0]
        .endswith(" Each mean is over the model's own rows, of p, q, r: 6, 4, 2 (MRR); none has a star.")
    )
    assert "own rows" not in " ".join(trm.compare(runs, "HR@1").by_model().notes)


def test_groups_by_model():
    """Each group has a column of its own; metrics of which neither values are better have no best one."""
    runs = {name: make({"m": BASE + shift}, higher_is_better={"m": None}) for name, shift in (("a", 0), ("b", 1))}
    table = trm.compare(runs, groups=trm.Groups(torch.arange(400) % 2, ["cold", "warm"])).by_model()
    assert [*table.to_dict()] == ["model", "m", "m/cold", "m/warm"]
    assert str(table).count("†") == 3 + 1
    assert "*" not in str(table)
    frame = pytest.importorskip("pandas").DataFrame(table.to_pandas())
    assert frame["model"].tolist() == ["a", "b"]
    assert frame.loc[1, "m/cold"] == pytest.approx(BASE[::2].mean().item() + 1)


@pytest.mark.parametrize("num_undefined", [2, 10, 20])
def test_rows_that_are_undefined_in_both_runs_are_no_units(num_undefined):
    """Three pairs have 8 signs, so p is 2 / 8 and no interval is finite, whatever other rows there are."""
    undefined = [NAN] * num_undefined
    runs = {"a": make({"m": [0.2, 0.5, 0.3, *undefined]}), "b": make({"m": [0.35, 0.7, 0.35, *undefined]})}
    comparison = trm.compare(runs)
    found = comparison["m"]

    assert (comparison.exact, comparison.resamples) == (True, 2**3 - 1)
    assert (found.p, found.low, found.high) == (2 / 2**3, -math.inf, math.inf)
    assert found.num_left_out == num_undefined


def test_a_group_of_few_rows_has_the_interval_of_these_rows():
    """Four rows have at least p = 1 / 8, so none of their intervals is finite, as when they are compared alone."""
    runs = models(100)
    four = {name: make({"m0": rows.values["m0"][:4]}) for name, rows in runs.items()}
    groups = trm.Groups((torch.arange(100) >= 4).long(), ["few", "many"])
    found = trm.compare(runs, groups=groups)["m0/few"]

    assert (found.low, found.high) == (trm.compare(four)["m0"].low, trm.compare(four)["m0"].high)
    assert (found.adjusted_low, found.adjusted_high, found.detectable) == (-math.inf, math.inf, math.inf)


@pytest.mark.parametrize("sides", [(True, False), (False, True), (None, True)])
def test_runs_that_say_different_sides_are_refused(sides):
    runs = {name: make({"m": BASE}, higher_is_better={"m": side}) for name, side in zip("ab", sides, strict=True)}
    says = f"higher_is_better of m is {sides[0]} in 'a' and {sides[1]} in 'b'"

    with pytest.raises(ValueError, match=says):
        trm.compare(runs, margin=0.1)


def test_means_that_are_equal_but_for_rounding_are_all_best():
    """0.1 + 0.2 is 0.30000000000000004."""
    runs = {"a": make({"m": [0.3] * 30}), "b": make({"m": [0.1 + 0.2] * 30})}

    assert trm.compare(runs).by_model().to_markdown().count("**") == 4


def test_means_over_different_rows_have_no_star():
    """Both runs have 29 rows, but not the same."""
    columns = {"a": [NAN, *BASE[1:30].tolist()], "b": [*BASE[:29].tolist(), NAN]}
    table = trm.compare({name: make({"m": column, "n": BASE[:30]}) for name, column in columns.items()}).by_model()

    assert {label for label, _ in table._best} == {"n"}
    assert "of a, b: 29, 29 (m); none has a star." in table.notes[0]


@pytest.fixture(scope="module")
def grouped():
    """Three runs of two labels, compared over all rows and two groups."""
    runs = {**models(60, labels=2), "third": models(60, labels=2, seed=1)["gcn"]}
    return trm.compare(runs, baseline="pop", groups=trm.Groups(torch.arange(60) % 3 - 1, ["cold", "warm"]))


def test_keys_have_the_group_and_are_ordered_by_label(grouped):
    assert [r.key for r in grouped.results[:6]] == ["m0", "m0/cold", "m0/warm", "m1", "m1/cold", "m1/warm"]
    assert [r.run for r in grouped.results] == ["gcn"] * 6 + ["third"] * 6
    assert grouped["m0/cold", "third", "pop"] is grouped.results[7]
    with pytest.raises(KeyError, match=r"no result has the key 'm0/cald'; did you mean 'm0/cold'"):
        grouped["m0/cald"]


def test_groups_are_in_every_export(grouped):
    assert [*grouped.to_dict()] == [*grouped.results[0]._fields]
    assert grouped.to_dict()["group"] == [None, "cold", "warm"] * 4
    assert grouped.to_dict()["p"] == [r.p for r in grouped.results]
    assert '"group": "cold"' in grouped.to_json()
    assert "| m0/cold | gcn - pop " in grouped.to_markdown()
    assert "Over all rows, and over the rows of each of 2 groups; 20 rows are in none." in str(grouped)


def test_groups_are_a_column_of_the_frame(grouped):
    frame = pytest.importorskip("pandas").DataFrame(grouped.to_pandas())
    assert frame["group"].where(frame["group"].notna(), "all").tolist() == ["all", "cold", "warm"] * 4
    assert frame["noninferior_p"].isna().all()
    assert frame["noninferior_p"].dtype == "float64"
