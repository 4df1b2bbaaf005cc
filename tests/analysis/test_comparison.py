"""`compare` agrees with scipy, statsmodels, ranx and enumeration: pairing, corrections, clusters, seeds and groups."""

import itertools
import math
import re
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples

import torchrecmetrics as trm
from torchrecmetrics.analysis.significance import studentised

np = pytest.importorskip("numpy")
stats = pytest.importorskip("scipy.stats")

NAN = float("nan")


def make(values, ids=None, **options):
    """Return `Rows` of these columns, as float64."""
    values = {label: torch.as_tensor(column, dtype=torch.float64) for label, column in values.items()}
    return trm.Rows(values, torch.arange(len(next(iter(values.values())))) if ids is None else ids, **options)


def models(n, labels=1, shift=0.0, seed=0, alike=0.8):
    """Return two runs of n rows whose labels are correlated."""
    generator = torch.Generator().manual_seed(seed)
    rand = lambda *shape: torch.rand(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    users, names = rand(n, 1), [f"m@{i + 1}" for i in range(labels)]
    both = [users + alike * rand(n, 1) + (1 - alike) * rand(n, labels) + at for at in (0, shift)]
    return {name: make(dict(zip(names, each.T, strict=True))) for name, each in zip(("pop", "gcn"), both, strict=True)}


def differences(runs, label="m@1"):
    return (runs["gcn"].values[label] - runs["pop"].values[label]).numpy()


# one label of one pair


def test_t_test_is_scipys():
    """Difference, p and interval of the t test are scipy's, and the effect size is d_z = t / sqrt(n)."""
    runs = models(60, shift=0.05)
    found = trm.compare(runs, test="t")["m@1"]
    expected = stats.ttest_rel(runs["gcn"].values["m@1"], runs["pop"].values["m@1"])
    assert found.difference == pytest.approx(differences(runs).mean())
    assert found.p == found.adjusted_p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval()))
    assert found.effect_size == pytest.approx(expected.statistic / 60**0.5)
    t = stats.t(59)
    error = stats.sem(differences(runs))
    assert found.detectable == pytest.approx((t.ppf(0.975) + t.ppf(0.8)) * error)


@pytest.mark.parametrize("alternative", ["greater", "less"])
def test_one_sided_t_test_is_scipys(alternative):
    runs = models(60, shift=0.05)
    found = trm.compare(runs, test="t", alternative=alternative, level=0.9)["m@1"]
    expected = stats.ttest_rel(runs["gcn"].values["m@1"], runs["pop"].values["m@1"], alternative=alternative)
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(0.9)))


@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
@pytest.mark.parametrize("shift", [0, 0.05])
def test_randomization_is_scipys(alternative, shift):
    """The p value of the randomisation test of 60 rows is scipy's, within the error of 20,000 draws."""
    runs = models(60, shift=shift)
    found = trm.compare(runs, resamples=20_000, alternative=alternative)["m@1"]
    expected = stats.permutation_test(
        (runs["gcn"].values["m@1"].numpy(), runs["pop"].values["m@1"].numpy()),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        n_resamples=20_000,
        alternative=alternative,
        rng=np.random.default_rng(0),
    ).pvalue
    assert found.p == pytest.approx(expected, abs=4 * (expected * (1 - expected) / 10_000) ** 0.5 + 1e-4)


@pytest.mark.nightly
def test_randomization_is_ranxs():
    """The p values equal those of ranx's Fisher and Student's t tests, whose own functions take one score per query."""
    fisher = pytest.importorskip("ranx.statistical_tests.fisher_randomization_test")
    paired = pytest.importorskip("ranx.statistical_tests.paired_student_t_test")
    runs = models(80, shift=0.03, seed=3)
    x, y = (runs[name].values["m@1"].numpy() for name in ("pop", "gcn"))
    p = fisher.fisher_randomization_test(x, y, n_permutations=20_000, max_p=0.01, random_seed=1)[0]
    assert trm.compare(runs, resamples=20_000)["m@1"].p == pytest.approx(p, abs=0.012)
    p = paired.paired_student_t_test(x, y, max_p=0.01)[0]
    assert trm.compare(runs, test="t")["m@1"].p == pytest.approx(p)


def exact_p(whole):
    """Return the share of all sign flips of whole numbers whose sum is as far from 0; nothing is rounded."""
    at = abs(sum(whole))
    sums = [
        abs(sum(s * d for s, d in zip(signs, whole, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(whole))
    ]
    return Fraction(sum(each >= at for each in sums), len(sums))


@pytest.mark.parametrize(
    "tenths", [(1, 2, 3, -1, 2, 1, -3, 2, 1, -2, 3), (3, 3, -3, 1, 1, -2, 2, 2, 1, -1, -1), (1,) * 8 + (-1, -1, 0)]
)
def test_equal_sums_are_equal(tenths):
    """Of 11 differences of 0.1 to 0.3, flips whose sums are equal count as equal in spite of rounding."""
    base = torch.arange(11) / 7
    runs = {"a": make({"m": base}), "b": make({"m": base.double() + torch.tensor(tenths).double() / 10})}
    found = trm.compare(runs)
    assert found.exact
    assert found.resamples == 2**11 - 1
    assert found["m"].p == exact_p(tenths)
    many = trm.compare(runs, resamples=2000)  # fewer than all 2,048 flips
    assert not many.exact
    assert many["m"].p == pytest.approx(float(exact_p(tenths)), abs=0.05)


def test_equal_runs():
    """Equal runs have p = 1, a difference of 0 and only ties, even where means over several runs are rounded."""
    rows = models(30)["pop"]
    for test in ("randomization", "t"):
        for alternative in ("two-sided", "greater", "less"):
            found = trm.compare({"a": rows, "b": rows}, test=test, alternative=alternative)["m@1"]
            assert (found.p, found.adjusted_p, found.difference, found.effect_size) == (1, 1, 0, 0)
            assert (found.wins, found.ties, found.losses) == (0, 30, 0)
            assert found.detectable == 0
    several = [make({"m": torch.full((30,), value)}) for value in (0.1, 0.2, 0.3)]
    found = trm.compare({"a": several, "b": several[::-1]})["m"]
    assert (found.p, found.ties) == (1, 30)


def test_a_single_row_is_told_in_words():
    """Where nothing is tested, no sentence speaks of a test, and a notebook shows the same table and sentences."""
    found = trm.compare({"x": make({"a": [1]}), "y": make({"a": [0]})})
    table, sentences = str(found).split("\n\n")
    assert table.splitlines()[1].split() == ["a", "y", "-", "x", "0.0000", "1.0000", "-1.0000", "-", "-"]
    assert sentences == "Not tested, with fewer than two rows: a."
    head = ["metric", "runs", "value", "against", "difference", "95 % interval", "p"]
    lines = found._repr_html_().splitlines()
    assert lines[1] == f"<tr>{''.join(f'<td>{name}</td>' for name in head)}</tr>"
    assert lines[-1] == "<p>Not tested, with fewer than two rows: a.</p>"


def test_units_that_are_equal_but_for_rounding_have_an_infinite_t():
    """t = sum u / sqrt(n s^2) is infinite for equal units, also where rounding leaves them a spread of 1e-13."""
    sums = torch.tensor([4.0, 4.0 * (1 - 1e-13), -4.0 * (1 - 1e-13), 3.0], dtype=torch.float64)
    t = studentised(sums, torch.full_like(sums, 4), torch.full_like(sums, 4)).tolist()
    assert t[:3] == [math.inf, math.inf, -math.inf]
    assert t[3] == pytest.approx(3 * (3 / 7) ** 0.5)  # the square of sum u is 9 / 16 of n times the sum of squares


def test_joint_intervals_by_enumeration():
    """Half the width of a max-T interval is the error times the 12th largest maximum of |t| of 255 flips of 8 rows."""
    d = torch.randn(8, 3, generator=torch.Generator().manual_seed(4)).double()

    def t(column, signs):
        units = [sign * value for sign, value in zip(signs, column, strict=True)]
        return sum(units) / 8**0.5 / stats.tstd(units)

    columns = d.T.tolist()
    flips = [*itertools.product((1, -1), repeat=8)][1:]
    critical = sorted(max(abs(t(column, signs)) for column in columns) for signs in flips)[-12]  # 12 / 256 < 0.05
    found = trm.compare({"a": make({f"m{i}": torch.zeros(8) for i in range(3)}), "b": make(columns_of(d))})
    for result, column in zip(found.results, columns, strict=True):
        half = critical * stats.sem(column)
        ends = sum(column) / 8 - half, sum(column) / 8 + half
        assert (result.adjusted_low, result.adjusted_high) == pytest.approx(ends)


def columns_of(values):
    return {f"m{i}": column for i, column in enumerate(values.T)}


def test_own_weights_of_0_in_one_run():
    """A row that one run weighs 0 and the other does not counts: each mean has its own weights."""
    a = make({"m": [0, 1, 1, 1]}, own_weights={"m": torch.tensor([1.0, 2, 0, 1])})
    b = make({"m": [1, 0, 1, 0]}, own_weights={"m": torch.tensor([0.0, 1, 2, 1])})
    result = trm.compare({"a": a, "b": b})["m"]
    assert (result.value, result.against_value, result.difference) == pytest.approx((2 / 4, 3 / 4, -1 / 4))
    assert result.num_rows == 4


def test_markdown_escapes_bars():
    """A | in a name of a run stays in its cell."""
    found = trm.compare({"a|b": make({"m": [0, 1, 1]}), "c": make({"m": [1, 0, 1]})})
    assert [line.replace("\\|", "").count("|") for line in found.to_markdown().splitlines()] == [8, 8, 8]
    assert "c - a\\|b" in found.to_markdown()


def test_latex_has_minus_and_less_than_in_maths():
    """TeX sets a plain < as an inverted ! and a plain - as a hyphen; names keep their hyphens."""
    pytest.importorskip("jinja2")
    base = torch.rand(40, generator=torch.Generator().manual_seed(0)).double()
    found = trm.compare({"a-1|b": make({"m": base}), "c": make({"m": base - 0.25})})
    cells = found.to_latex().splitlines()[4].rstrip("\\ ").split(" & ")
    assert cells[1] == r"c - a-1\textbar{}b"
    assert cells[4:] == ["$-$0.2500", "[$-$0.2500, $-$0.2500]", "$<$0.0001"]


def test_one_difference_for_all():
    """The same difference in all rows has the smallest p that the number of rows, or of draws, allows."""
    base = torch.rand(30, generator=torch.Generator().manual_seed(0)).double()
    for n, p in ((30, 1 / 10_001), (8, 2 / 2**8), (3, 2 / 2**3)):
        found = trm.compare({"a": make({"m": base[:n]}), "b": make({"m": base[:n] + 0.1})})["m"]
        assert found.p == pytest.approx(p)
        assert found.low == pytest.approx(0.1 if p < 0.05 else -math.inf)
        assert found.effect_size == math.inf


def test_fewer_than_two_rows():
    """A label with fewer than two defined rows gives nan, and labels with enough rows are still tested."""
    runs = {name: make({"a": [at, NAN, NAN], "b": [NAN] * 3, "c": [at, 0.2, 1.5]}) for name, at in (("x", 1), ("y", 0))}
    for options in ({}, {"test": "t"}, {"correction": "holm", "margin": 0.1}):
        found = trm.compare(runs, **options)
        assert (found["a"].num_rows, found["a"].num_left_out, found["b"].num_rows) == (1, 2, 0)
        assert found["a"].difference == -1
        for field in ("p", "low", "high", "adjusted_p", "adjusted_low", "effect_size", "detectable"):
            assert math.isnan(getattr(found["a"], field)), field
            assert math.isnan(getattr(found["b"], field)), field
        assert not math.isnan(found["c"].adjusted_p)
        assert "nan" not in str(found) + found.to_markdown()
        lines = [line.split() for line in str(found).splitlines()[1:4]]
        assert [line.count("-") - 1 for line in lines] == ([3, 6, 0] if "margin" in options else [2, 5, 0])
    empty = make({"a": torch.zeros(0)})
    assert math.isnan(trm.compare({"x": empty, "y": empty})["a"].p)


# pairing


def test_wins_ties_losses():
    """A row whose value is undefined in one of the runs is left out of the pair, and is counted."""
    a = make({"m": [0.5, 0.5, NAN, 1.0, 0.0, NAN]})
    b = make({"m": [0.7, 0.5, 1.0, 0.2, 0.1, NAN]})
    found = trm.compare({"a": a, "b": b})["m"]
    assert (found.wins, found.ties, found.losses) == (2, 1, 1)
    assert (found.num_rows, found.num_left_out, found.num_units) == (4, 2, 4)
    assert found.difference == pytest.approx((0.2 + 0 - 0.8 + 0.1) / 4)
    assert found.value == pytest.approx((0.7 + 0.5 + 0.2 + 0.1) / 4)
    assert found.against_value == pytest.approx((0.5 + 0.5 + 1.0 + 0.0) / 4)
    assert "Left out: up to 2 rows, undefined in one of two runs" in str(trm.compare({"a": a, "b": b}))
    assert "Left out" not in str(trm.compare({"a": ROWS, "b": ROWS}))


@settings(max_examples=examples(15), deadline=None)
@given(seed=st.integers(0, 10**6), kind=st.sampled_from(["numbers", "words"]), clustered=st.booleans())
def test_any_order(seed, kind, clustered):
    """Results are bitwise equal for every order of the rows in each run."""
    generator = torch.Generator().manual_seed(seed)
    n = 70
    runs = models(n, labels=3, shift=0.02)
    clusters = torch.arange(n) % 23 if clustered else None

    def shuffled(rows):
        order = torch.randperm(n, generator=generator)
        ids = order if kind == "numbers" else [f"user {i}" for i in order.tolist()]
        values = {label: column[order] for label, column in rows.values.items()}
        of_rows = None if clusters is None else clusters[order]
        if of_rows is not None and kind == "words":
            of_rows = [f"cluster {i}" for i in of_rows.tolist()]
        return trm.Rows(values, ids, clusters=of_rows)

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
    with pytest.raises(KeyError, match=r"which pair, and which less which\? There are .*'m', 'a', 'b'"):
        with_b["m"]
    with pytest.raises(KeyError, match="which pair"):
        with_b["m", "b", "a"]
    with pytest.raises(KeyError, match=r"no label 'M'\. There are m, n"):
        with_b["M"]


ROWS = make({"m": [1.0, 0.5, 0.2]})


@pytest.mark.parametrize(
    ("other", "error", "says"),
    [
        (make({"n": [1.0, 0.5, 0.2]}), ValueError, r"m only in 'a'; n only in 'b'; or choose some with metrics=\["),
        (make({"m": [1, 2]}), ValueError, r"1 of 3 ids of 'a' are not in 'b' \(id 2, for example\); compare runs over"),
        (make({"m": [1, 2, 3, 4]}), ValueError, r"pair: 1 of 4 ids of 'b' are not in 'a' \(id 3, for example\)"),
        (
            make({"m": [1, 2, 3]}, torch.tensor([2, 1, 9])),
            ValueError,
            r"1 of 3 ids of 'a' .*1 of 3 ids of 'b' .*\(id 9",
        ),
        (make({"m": [1, 2, 3]}, ["0", "1", "2"]), ValueError, "one of 'a' and 'b' has whole numbers, the other text"),
        (
            make({"m": [1, 2, 3]}, options={"ties": "optimistic"}),
            ValueError,
            "ties is 'not told' in 'a' and 'optimistic'",
        ),
        (make({"m": [1, 2, 3]}, weights=torch.ones(3)), ValueError, "weights: one of 'a' and 'b' has them"),
        (make({"m": [1, 2, 3]}, clusters=torch.ones(3).int()), ValueError, "clusters: one of 'a' and 'b' has them"),
        ([], ValueError, "run 'b' is an empty list"),
        ("b.parquet", TypeError, r"run 'b' must be an evaluation, Rows.* got str: pass Rows.from_parquet\('b.parquet'"),
        (ROWS.values, TypeError, "run 'b' must be an evaluation, Rows, or a list of them, got dict: pass {name: eval"),
        (type("Other", (), {"rows": 1})(), TypeError, "got Other: pass {name: evaluation"),
    ],
)
def test_runs_that_do_not_pair(other, error, says):
    with pytest.raises(error, match=says):
        trm.compare({"a": ROWS, "b": other})


def test_weights_and_clusters_must_be_equal():
    for options, says in (
        ([{"weights": torch.ones(3)}, {"weights": torch.arange(3)}], "weights of some rows differ"),
        ([{"clusters": torch.ones(3).int()}, {"clusters": torch.arange(3)}], "clusters of some rows differ"),
        ([{"clusters": ["x"] * 3}, {"clusters": torch.arange(3)}], "clusters of some rows differ"),
    ):
        a, b = (make({"m": [1, 2, 3]}, **each) for each in options)
        with pytest.raises(ValueError, match=says):
            trm.compare({"a": a, "b": b})


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"baseline": "c"}, ValueError, r"baseline 'c' is no run\. There are a, b"),
        (
            {"test": "wilcoxon"},
            ValueError,
            r"not offered: it tests signs or ranks .*Smucker, .* CIKM 2007\): use 'rand",
        ),
        ({"test": "sign"}, ValueError, "test='sign' is not offered"),
        ({"test": "z"}, ValueError, "test must be one of 'randomization', 't', got 'z'"),
        ({"correction": "bonferroni"}, ValueError, "correction must be one of 'max-t', 'holm', 'bh', 'none'"),
        ({"metrics": [trm.NDCG(10)]}, TypeError, r"metrics must be labels, such as \['NDCG@10'\], got NDCG"),
        ({"baseline": 3}, ValueError, r"baseline 3 is no run\. There are a, b"),
        ({"metrics": ["m", "M"]}, ValueError, r"run 'a' has no metric 'M'\. There are m"),
        ({"metrics": []}, ValueError, "metrics is empty: name the metrics"),
        ({"test": "t", "correction": "max-t"}, ValueError, "needs the flips of test='randomization'"),
        ({"alternative": "better"}, ValueError, "alternative must be one of 'two-sided', 'greater', 'less'"),
        ({"resamples": 0}, ValueError, "resamples must be at least 1"),
        ({"level": 95}, ValueError, "level must be between 0 and 1, such as 0.95, got 95"),
        ({"margin": 0}, ValueError, "margin must be a number > 0 in the metrics' unit, or None, got 0"),
        ({"margin": True}, ValueError, "margin must be a number > 0 in the metrics' unit, or None, got True"),
        ({"margin": "0.1"}, ValueError, "margin must be a number > 0 in the metrics' unit, or None, got '0.1'"),
    ],
)
def test_refused(options, error, says):
    with pytest.raises(error, match=says):
        trm.compare({"a": ROWS, "b": ROWS}, **options)


def test_refused_runs():
    for runs, error, says in (
        ({"a": ROWS}, ValueError, "two runs or more are compared, got 1"),
        ([ROWS, ROWS], TypeError, "runs must be a dict of evaluations or Rows by name, got list"),
    ):
        with pytest.raises(error, match=says):
            trm.compare(runs)


# units


def test_weights():
    """The difference is that of the weighted means, u = w (x - y) is tested, and a row of weight 0 is left out."""
    runs = models(50, shift=0.05)
    weights = torch.rand(50, generator=torch.Generator().manual_seed(1)).double()
    weights[4] = 0
    runs = {name: trm.Rows(rows.values, rows.ids, weights) for name, rows in runs.items()}
    found = trm.compare(runs, test="t")["m@1"]
    assert found.difference == pytest.approx(runs["gcn"].mean()["m@1"] - runs["pop"].mean()["m@1"])
    kept = weights.numpy() > 0
    assert found.p == pytest.approx(stats.ttest_1samp((weights.numpy() * differences(runs))[kept], 0).pvalue)
    assert (found.num_rows, found.num_left_out) == (49, 1)
    runs = {n: make({"m": m}, weights=torch.tensor([0, 0, 0, 1])) for n, m in (("a", [0.0] * 4), ("b", [1, -1, 0, 1]))}
    assert trm.compare(runs)["m"][-8:-5] == (1, 0, 0)  # wins, ties, losses


def test_weights_of_metrics_themselves():
    """A metric's own weights in each run make that run's mean; if equal in both runs, they act like row weights."""
    runs, ids = models(50, shift=0.05), torch.arange(50)
    weights = [torch.rand(50, generator=torch.Generator().manual_seed(seed)).double() for seed in (1, 2)]

    def weighing(a, b):
        own = dict(zip(runs, (a, b), strict=True))
        return {name: trm.Rows(rows.values, ids, own_weights={"m@1": own[name]}) for name, rows in runs.items()}

    unlike = weighing(*weights)
    found = trm.compare(unlike)["m@1"]
    assert found.difference == pytest.approx(unlike["gcn"].mean()["m@1"] - unlike["pop"].mean()["m@1"])
    alike = trm.compare(weighing(weights[0], weights[0]), test="t", margin=0.1)["m@1"]
    plain = trm.compare({n: trm.Rows(r.values, ids, weights[0]) for n, r in runs.items()}, test="t", margin=0.1)["m@1"]
    assert alike[4:-3] == pytest.approx(plain[4:-3])
    assert alike.noninferior_p == pytest.approx(plain.noninferior_p)


@pytest.mark.parametrize("words", [False, True])
def test_clusters(words):
    """Whole clusters are flipped: p is that of the t test of cluster sums, and the units are the clusters."""
    runs = models(60, shift=0.05)
    clusters = torch.arange(60) % 20
    named = [f"user {c}" for c in clusters.tolist()] if words else clusters
    runs = {name: trm.Rows(rows.values, rows.ids, clusters=named) for name, rows in runs.items()}
    sums = np.bincount(clusters.numpy(), differences(runs))
    found = trm.compare(runs, test="t")["m@1"]
    assert found.difference == pytest.approx(sums.sum() / 60)
    assert found.p == pytest.approx(stats.ttest_1samp(sums, 0).pvalue)
    assert (found.num_rows, found.num_units) == (60, 20)
    flipped = trm.compare(runs, resamples=20_000)["m@1"]
    assert flipped.p == pytest.approx(found.p, abs=0.02)
    assert "20 whole clusters" in str(trm.compare(runs))


def test_clusters_of_equal_rows():
    """Rows that occur twice, in clusters of two, give the same result as the rows once."""
    runs = models(40, shift=0.03)
    twice = {
        name: trm.Rows(
            {"m@1": rows.values["m@1"].repeat_interleave(2)}, torch.arange(80), clusters=torch.arange(80) // 2
        )
        for name, rows in runs.items()
    }
    once = trm.compare(runs)["m@1"]
    found = trm.compare(twice)["m@1"]
    for name in ("difference", "low", "high", "p", "effect_size", "detectable"):
        assert getattr(found, name) == pytest.approx(getattr(once, name)), name


# many units


def test_two_evaluations_are_no_dict_of_runs():
    """An evaluation is a dict of values, and is not read as runs."""
    result = trm.evaluate_lists("MRR", {1: [2]}, target={1: [2]}, k=1)
    with pytest.raises(TypeError, match=r"got Evaluation.*pass {name: evaluation"):
        trm.compare(result)


def test_many_hits_are_mcnemars():
    """Of 30,000 rows that hit or miss, p is the binomial test's of the rows in which the runs differ."""
    a, b = torch.zeros(30_000), torch.zeros(30_000)
    a[:10_100], b[10_100:20_500] = 1, 1
    found = trm.compare({"a": make({"m": a}), "b": make({"m": b})})
    expected = stats.binomtest(10_100, 20_500).pvalue
    assert found["m"].p == pytest.approx(expected, abs=0.008)
    told = " ".join(str(found).split())
    assert "signs of 30000 rows flipped (10000 draws, seed 0, of their normal limit), two-sided." in told
    assert not trm.compare({"a": make({"m": a}), "b": make({"m": b})}, test="t").normal
    few = torch.zeros(30_000)
    few[:15], few[15:20] = 1, -1  # few rows are flipped one by one
    found = trm.compare({"a": make({"m": torch.zeros(30_000)}), "b": make({"m": few})})["m"]
    assert found.p == pytest.approx(stats.binomtest(5, 20).pvalue, abs=0.008)


@pytest.mark.parametrize("clustered", [False, True])
def test_the_limit_is_that_of_the_flips(clustered, monkeypatch):
    """p values of 12,000 units and a group of 40 are those of the flips, up to the error of the draws."""
    n = 24_000 if clustered else 12_000
    runs = models(n, labels=3, shift=0.001, seed=3, alike=0.5)
    if clustered:
        runs = {name: trm.Rows(rows.values, rows.ids, clusters=rows.ids // 2) for name, rows in runs.items()}
    groups = trm.Groups(torch.where(torch.arange(n) < 40, 0, -1), ["x"])
    options = {"groups": groups, "margin": 0.002, "resamples": 4000}
    limit = trm.compare(runs, **options)
    assert limit.normal
    from torchrecmetrics.analysis import resampling

    monkeypatch.setattr(resampling, "MANY", 10**9)
    flips = trm.compare(runs, **options)
    for mine, other in zip(limit.results, flips.results, strict=True):
        assert mine.difference == other.difference
        for name in ("p", "adjusted_p", "noninferior_p"):
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


@pytest.mark.parametrize("seed", range(4))
def test_max_t_is_enumerated(seed):
    """The max-T p values of 10 rows, 5 labels and three pairs are those of all 2^10 flips."""
    several = [models(10, labels=5, shift=0.2 * (seed > 1), seed=10 * seed + i, alike=0.5) for i in range(2)]
    runs = {"a": several[0]["pop"], "b": several[0]["gcn"], "c": several[1]["gcn"]}
    found = trm.compare(runs)
    assert found.exact
    columns = np.stack(
        [(runs[r.run].values[r.label] - runs[r.against].values[r.label]).numpy() for r in found.results], 1
    )
    raw, adjusted = enumerated(columns)
    assert [r.p for r in found.results] == pytest.approx(raw.tolist())
    assert [r.adjusted_p for r in found.results] == pytest.approx(adjusted.tolist())


def test_holm_is_statsmodels():
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    runs = models(60, labels=8, shift=0.03, seed=2, alike=0.3)
    for options in ({"test": "t"}, {"correction": "holm"}):
        found = trm.compare(runs, **options)
        expected = multitest.multipletests([r.p for r in found.results], method="holm")[1]
        assert [r.adjusted_p for r in found.results] == pytest.approx(expected.tolist())


def test_benjamini_hochberg_is_scipys():
    """Adjusted p values are scipy's, and the intervals exclude 0 exactly where they are at most 1 - level.

    The intervals have the level 1 - 0.05 R / m for R significant comparisons of m, as Benjamini and Yekutieli say.
    """
    runs = models(60, labels=8, seed=2, alike=0.3)
    for i in range(8):
        runs["gcn"].values[f"m@{i + 1}"].add_(0.04 * i)
    found = trm.compare(runs, test="t", correction="bh")
    expected = stats.false_discovery_control([r.p for r in found.results])
    assert [r.adjusted_p for r in found.results] == pytest.approx(expected.tolist())
    significant = sum(p <= 0.05 for p in expected)
    assert 0 < significant < 8
    for r in found.results:
        assert (r.adjusted_p <= 0.05) == (not r.adjusted_low <= 0 <= r.adjusted_high)
        error = stats.sem(differences(runs, r.label))
        assert r.adjusted_high - r.difference == pytest.approx(error * stats.t(59).ppf(1 - 0.025 * significant / 8))
    told = " ".join(str(found).split())
    assert "(Benjamini-Hochberg); of those with an adjusted p <= 0.05, whose intervals exclude 0, a share" in told
    flips = trm.compare(runs, correction="bh")
    expected = stats.false_discovery_control([r.p for r in flips.results])
    assert [r.adjusted_p for r in flips.results] == pytest.approx(expected.tolist())
    nothing = trm.compare(models(60, labels=3), correction="bh")
    assert all(r.adjusted_low < 0 < r.adjusted_high for r in nothing.results)


def test_holm_by_hand():
    """Holm multiplies the sorted p values by 3, 2 and 1, and no p becomes less than the one before it."""
    from torchrecmetrics.analysis.significance import decide

    class Given:
        extreme = (3.0, 1.0, 2.0, 0.0)

        def p(self, column):
            return (0.01, 0.04, 0.03, NAN)[column]

        def critical(self, column, alpha):
            return 1 / alpha

    found = decide(Given(), [0, 1, 2], 0.05, "holm")
    assert found.adjusted_p == pytest.approx([0.03, 0.06, 0.06, NAN], nan_ok=True)
    assert found.joint_critical == pytest.approx([60, 60, 60, NAN], nan_ok=True)
    uncorrected = decide(Given(), [0, 1, 2], 0.05, "none")
    assert uncorrected.adjusted_p[:3] == [0.01, 0.04, 0.03]


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


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "expected"),
    [(200, {"none": 0.15, "max-t": 0.06, "holm": 0.02}), (10_001, {"none": 0.195, "max-t": 0.05, "holm": 0.0})],
)
def test_null_simulation(n, expected):
    """With n rows and 18 labels of one ranking, families without a difference have a p <= .05 as often as expected."""
    families = 400
    generator = torch.Generator().manual_seed(0)
    some = dict.fromkeys(("none", "max-t", "holm"), 0)
    for _ in range(families):
        runs = {}
        for name in ("a", "b"):
            metrics = trm.RecMetricCollection(["HR", "NDCG", "MRR"], k=[3, 5, 8, 10, 15, 20])
            ranking = trm.Ranks(torch.randint(1, 41, (n, 1), generator=generator)).ranking()
            formulas = (trm.functional.hit_rate, trm.functional.ndcg, trm.functional.reciprocal_rank)
            values = [formula(ranking, k) for formula in formulas for k in (3, 5, 8, 10, 15, 20)]
            runs[name] = make(dict(zip(metrics, values, strict=True)))
        for correction in some:
            found = trm.compare(runs, correction=correction, resamples=200)
            some[correction] += min(r.adjusted_p for r in found.results) <= 0.05
    shares = {correction: number / families for correction, number in some.items()}
    assert shares == pytest.approx(expected, abs=0.03)


@pytest.mark.nightly
@pytest.mark.slow
def test_intervals_cover():
    """The 95 % intervals of 200 rows of a skewed metric cover the true difference in 95 % of samples."""
    generator, covers = torch.Generator().manual_seed(1), 0
    for _ in range(600):
        x, y = (torch.rand(200, generator=generator).double() ** power for power in (4, 3))
        r = trm.compare({"a": make({"m": x}), "b": make({"m": y})}, resamples=400)["m"]
        covers += r.low <= 1 / 4 - 1 / 5 <= r.high
    assert covers / 600 == pytest.approx(0.95, abs=0.02)


def missed_together(families, labels, **options):
    """Return the share of families in which a corrected interval misses its true difference of 0.6."""
    generator, missed = torch.Generator().manual_seed(3), 0
    zeros = make({f"m{i}": torch.zeros(100) for i in range(labels)})
    for _ in range(families):
        d = torch.randn(100, labels, generator=generator).double() + 0.6
        found = trm.compare({"a": zeros, "b": make({f"m{i}": d[:, i] for i in range(labels)})}, **options)
        missed += any(not r.adjusted_low <= 0.6 <= r.adjusted_high for r in found.results)
    return missed / families


def test_holm_intervals_cover_together():
    """Of five real differences, the corrected 95 % intervals miss one in about 5 % of families, not in 20 %."""
    assert missed_together(150, 5, test="t") < 0.1


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("labels", [5, 10])
def test_max_t_intervals_cover_together(labels):
    """Of several real differences, the corrected 95 % intervals miss one in about 5 % of families."""
    assert missed_together(400, labels, resamples=1000) < 0.09


@pytest.mark.nightly
@pytest.mark.slow
def test_detectable_difference_is_detected():
    """A true difference of the detectable size is found by 80 % of comparisons, after the correction."""
    generator, found, sizes = torch.Generator().manual_seed(2), 0, []
    for _ in range(400):
        d = torch.randn(150, 3, generator=generator).double()
        size = 0.0
        for place in (0, 1):  # first measures the detectable size, then looks for a difference of that size
            runs = {"a": make({f"m{i}": torch.zeros(150) for i in range(3)})}
            runs["b"] = make({f"m{i}": d[:, i] + (size if i == 0 else 0) for i in range(3)})
            r = trm.compare(runs, resamples=400)["m0"]
            size = 0.2648 if place == 0 else size
            sizes.append(r.detectable)
        found += r.adjusted_p <= 0.05
    assert sum(sizes) / len(sizes) == pytest.approx(0.2648, rel=0.03)
    assert found / 400 == pytest.approx(0.8, abs=0.06)


# groups of rows


def taken(rows, chosen):
    """Return the chosen rows."""
    part = lambda column: None if column is None else column[chosen]  # noqa: E731
    values, own = ({n: part(v) for n, v in each.items()} for each in (rows.values, rows.own_weights))
    return trm.Rows(values, part(rows.ids), part(rows.weights), part(rows.clusters), own)


@pytest.mark.parametrize(
    "kind", ["rows", "weights", "own weights", "clusters", "clusters that groups divide", "seeds", "undefined"]
)
@pytest.mark.parametrize("options", [{}, {"test": "t"}, {"alternative": "greater", "margin": 0.1, "level": 0.8}])
def test_a_group_is_its_rows(kind, options):
    """Without a correction, the result of a group is that of a comparison of its rows alone, up to the signs drawn."""
    generator = torch.Generator().manual_seed(5)
    random = lambda: torch.rand(90, generator=generator).double()  # noqa: E731
    ids = torch.randperm(90, generator=generator)
    codes = torch.randint(-1, 3, (90,), generator=generator)
    clusters = {"clusters": codes * 12 + ids % 12, "clusters that groups divide": ids % 20}.get(kind)
    weights = random() if kind == "weights" else None

    def run(shift):
        values = {"m": random() + shift, "n": random()}
        values["m"][ids % 9 == int(10 * shift)] = NAN if kind == "undefined" else 0.5
        return trm.Rows(values, ids, weights, clusters, {"n": random()} if kind == "own weights" else {})

    several = 3 if kind == "seeds" else 1
    runs = {name: [run(shift) for _ in range(several)] for name, shift in (("a", 0.0), ("b", 0.1), ("c", 0.2))}
    by_id = torch.empty(90, dtype=torch.int64).scatter(0, ids, codes)
    options = {"correction": "none", "resamples": 3000, **options}
    found = trm.compare(runs, groups=trm.Groups(by_id, ["x", "y", "z"]), **options)
    expected = {None: trm.compare(runs, **options)}
    for code, name in enumerate("xyz"):
        expected[name] = trm.compare(
            {n: [taken(r, codes == code) for r in each] for n, each in runs.items()}, **options
        )
    assert len(found) == 3 * 2 * 4
    for r in found.results:
        alone = expected[r.group][r.label, r.run, r.against]
        assert r[:3] == alone[:3]
        for name in r._fields[4:]:
            value, other = (NAN if getattr(each, name) is None else getattr(each, name) for each in (r, alone))
            near = {"p": 0.06, "adjusted_p": 0.06, "noninferior_p": 0.06}.get(name, 0)
            near = 0.2 * abs(alone.detectable) if name in ("low", "high", "adjusted_low", "adjusted_high") else near
            near = 0.1 * abs(alone.detectable) if name == "detectable" else near
            near = 0 if found.test == "t" else near
            assert value == pytest.approx(other, rel=1e-9, abs=near + 1e-12, nan_ok=True), (r.key, name)
    assert found.groups == {name: int((codes == code).sum()) for code, name in enumerate("xyz")}
    assert found.num_in_none == int((codes < 0).sum())


@pytest.mark.parametrize("seed", range(3))
def test_max_t_of_groups_is_enumerated(seed):
    """All rows and three groups of them share the signs of all 2^10 flips in one family."""
    runs = models(10, labels=2, shift=0.2 * seed, seed=seed, alike=0.5)
    codes = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, -1])
    found = trm.compare(runs, groups=trm.Groups(codes, ["x", "y", "z"]))
    assert found.exact
    columns = []
    for r in found.results:
        used = torch.ones(10) > 0 if r.group is None else codes == "xyz".index(r.group)
        columns.append(np.where(used.numpy(), differences(runs, r.label), NAN))
    raw, adjusted = enumerated(np.stack(columns, 1))
    assert [r.p for r in found.results] == pytest.approx(raw.tolist())
    assert [r.adjusted_p for r in found.results] == pytest.approx(adjusted.tolist())


def test_groups_are_corrected_together():
    """Holm's correction counts all labels of all rows and of the groups, but only those that can be tested."""
    runs = models(60, labels=2, shift=0.1)
    groups = trm.Groups(torch.tensor([0] * 30 + [1] * 29 + [2]), ["x", "y", "one", "nobody"])
    found = trm.compare(runs, groups=groups, test="t")
    least = min(found.results, key=lambda r: r.p if r.p == r.p else 2)
    assert least.adjusted_p == pytest.approx(6 * least.p)
    assert "Corrected for 6 comparisons" in str(found)
    one, nobody = found["m@1/one"], found["m@1/nobody"]
    assert (one.num_rows, one.num_left_out, nobody.num_rows) == (1, 0, 0)
    assert one.difference == pytest.approx(differences(runs)[59])
    for r in (one, nobody):
        assert all(math.isnan(x) for x in (r.p, r.adjusted_p, r.low, r.adjusted_high, r.effect_size, r.detectable))
    assert "Not tested, with fewer than two rows: m@1/one, m@1/nobody, m@2/one, m@2/nobody." in str(found)
    clustered = {n: trm.Rows(r.values, r.ids, clusters=torch.arange(60) // 2) for n, r in runs.items()}
    found = trm.compare(clustered, groups=groups)
    assert [found[f"m@1{group}"].num_units for group in ("", "/x", "/y", "/one", "/nobody")] == [30, 15, 15, 1, 0]
    assert "with fewer than two whole clusters: m@1/one" in str(found)


def test_forms_of_groups():
    """Groups are in the keys, in all export forms and in the plot, ordered by label and then by group."""
    runs = {**models(60, labels=2), "third": models(60, labels=2, seed=1)["gcn"]}
    found = trm.compare(runs, baseline="pop", groups=trm.Groups(torch.arange(60) % 3 - 1, ["cold", "warm"]))
    assert [r.key for r in found.results[:6]] == ["m@1", "m@1/cold", "m@1/warm", "m@2", "m@2/cold", "m@2/warm"]
    assert [r.run for r in found.results] == ["gcn"] * 6 + ["third"] * 6
    assert found["m@1/cold", "third", "pop"] is found.results[7]
    with pytest.raises(KeyError, match=r"no label 'm@1/cald'; did you mean 'm@1/cold'"):
        found["m@1/cald"]
    assert found.to_dict()["group"] == [None, "cold", "warm"] * 4
    assert '"group": "cold"' in found.to_json()
    assert "| m@1/cold | gcn - pop " in found.to_markdown()
    text = str(found)
    assert "m@1/cold  gcn - pop" in text
    assert "Over all rows, and those of 2 groups each; 20 rows are in none." in text
    pd = pytest.importorskip("pandas")
    column = pd.DataFrame(found.to_pandas())["group"]
    assert column.where(column.notna(), "all").tolist() == ["all", "cold", "warm"] * 4
    pytest.importorskip("matplotlib").use("agg")
    _, axes = trm.plot(found)
    labels = [tick.get_text() for tick in axes.get_yticklabels()]
    assert labels == ["m@1", "m@1/cold", "m@1/warm", "m@2", "m@2/cold", "m@2/warm"]


def test_groups_of_ids():
    """Groups are matched to rows by user id, and rows of other users are in no group."""
    rows = models(4)
    users = [8, 5, 7, 1]
    groups = trm.Groups(torch.tensor([1, 1, 0, 0]), ["x", "y"], user_ids=[7, 5, 9, 8])
    for kind, convert in ((torch.tensor, int), (list, str)):
        ids = kind([convert(user) for user in users])
        named = trm.Groups(groups.codes, groups.names, user_ids=[convert(user) for user in (7, 5, 9, 8)])
        assert named.of_rows(ids).tolist() == [0, 1, 1, -1]
        found = trm.compare({name: make(each.values, ids) for name, each in rows.items()}, groups=named)
        assert found.groups == {"x": 1, "y": 2}
        assert found.num_in_none == 1
        assert found["m@1/y"].difference == pytest.approx(differences(rows)[1:3].mean())


def test_rows_of_an_evaluation_have_groups():
    """Differences of groups are those of the evaluations' group values, by user id and by row number."""
    generator = torch.Generator().manual_seed(0)
    for ids in (None, [f"user {i}" for i in range(40)]):
        users, items = (torch.randint(0, n, (200,), generator=generator) for n in (40, 30))
        target = trm.Interactions.from_columns(users=users, items=items, num_users=40, num_items=30).with_ids(ids)
        groups = trm.Groups(torch.arange(40) % 3 - 1, ["cold", "warm"], user_ids=ids)
        a, b = (
            trm.evaluate(
                "NDCG@10",
                torch.randn(40, 4, generator=generator),
                torch.randn(30, 4, generator=generator),
                target=target,
                groups=groups,
                keep_rows=True,
            )
            for _ in range(2)
        )
        found = trm.compare({"a": a.rows, "b": b.rows}, groups=groups, resamples=100)
        for key in ("NDCG@10", "NDCG@10/cold", "NDCG@10/warm"):
            assert found[key].difference == pytest.approx((b[key] - a[key]).item())


@pytest.mark.parametrize(
    ("groups", "ids", "error", "says"),
    [
        (["x"], None, TypeError, r"groups must be Groups, got list: trm.group_users\(train\)"),
        (
            trm.Groups(torch.tensor([0, 0]), ["x"]),
            None,
            ValueError,
            r"have 2 users and no user_ids, rows have the id 2",
        ),
        (trm.Groups(torch.tensor([0] * 3), ["x"]), ["a", "b", "c"], ValueError, "no user_ids, rows have the id 'a'"),
        (
            trm.Groups(torch.tensor([0]), ["x"], user_ids=["0"]),
            None,
            TypeError,
            r"ids of rows hold whole numbers \(0\), user_ids of groups hold text",
        ),
        (
            trm.Groups(torch.tensor([0]), ["x"], user_ids=[9]),
            None,
            ValueError,
            "none of 3 rows is of a user that groups know, such as 0",
        ),
    ],
)
def test_groups_that_are_refused(groups, ids, error, says):
    rows = make({"m": [1.0, 0.5, 0.2]}, ids)
    with pytest.raises(error, match=says):
        trm.compare({"a": rows, "b": rows}, groups=groups)


def test_a_label_that_a_group_would_have():
    rows = make({"m": [1.0, 0.5], "m/x": [1.0, 0.5]})
    with pytest.raises(ValueError, match=r"m/x is a label of the runs, and would be that of a group"):
        trm.compare({"a": rows, "b": rows}, groups=trm.Groups(torch.tensor([0, 0]), ["x"]))


# non-inferiority, several runs of one model


@pytest.mark.parametrize("margin", [0.02, 0.2])
def test_noninferiority(margin):
    """The non-inferiority p is that of the one-sided t test of d + margin; the randomisation test agrees."""
    runs = models(80, shift=-0.03, seed=4)
    expected = stats.ttest_1samp(differences(runs) + margin, 0, alternative="greater").pvalue
    assert trm.compare(runs, test="t", margin=margin)["m@1"].noninferior_p == pytest.approx(expected)
    found = trm.compare(runs, margin=margin, resamples=20_000)["m@1"]
    assert found.noninferior_p == pytest.approx(expected, abs=0.01)
    assert trm.compare(runs)["m@1"].noninferior_p is None
    assert found[:-1] == trm.compare(runs, resamples=20_000)["m@1"][:-1]


def test_runs_are_averaged():
    """A list of runs is compared by its mean in each row, which is undefined where one of the runs is."""
    a, b, c = (models(40, seed=seed)["pop"] for seed in (1, 2, 3))
    b.values["m@1"][5] = NAN
    found = trm.compare({"x": [a, b], "y": c})
    mean = make({"m@1": (a.values["m@1"] + b.values["m@1"]) / 2})
    assert found["m@1"] == trm.compare({"x": mean, "y": c})["m@1"]
    assert found["m@1"].num_left_out == 1
    assert "x is the mean of 2 runs: this tests these runs, not others" in str(found)


def test_seeds_as_clusters():
    """If rows of all seeds are clustered by seed, the units are the seeds, and the t test is that of their means."""
    x, y = ([models(50, seed=seed)["pop"].values["m@1"] for seed in seeds] for seeds in ((1, 2, 3, 4), (5, 6, 7, 8)))
    seeds = torch.arange(4).repeat_interleave(50)
    runs = {
        name: trm.Rows({"m@1": torch.cat(several)}, torch.arange(200), clusters=seeds)
        for name, several in (("x", x), ("y", y))
    }
    found = trm.compare(runs, test="t")["m@1"]
    means = [[values.mean().item() for values in several] for several in (x, y)]
    assert found.num_units == 4
    assert found.p == pytest.approx(stats.ttest_rel(means[1], means[0]).pvalue)


# forms


def test_table():
    """The table has the values of both runs, the difference, its corrected interval and p, in at most eight columns."""
    runs = models(60, labels=2, shift=0.1)
    found = trm.compare(runs, margin=0.01)
    header, line, *others = str(found).splitlines()
    columns = ["metric", "runs", "value", "against", "difference", "95 % interval", "adjusted p", "non-inferior p"]
    assert re.split("  +", header) == columns
    r, means = found["m@1"], [runs[name].values["m@1"].mean().item() for name in ("gcn", "pop")]
    assert re.split("  +", line)[:5] == ["m@1", "gcn - pop", *(f"{mean:.4f}" for mean in means), f"{r.difference:+.4f}"]
    assert line.endswith(
        f"[{r.adjusted_low:+.4f}, {r.adjusted_high:+.4f}]      {r.adjusted_p:.4f}          {r.noninferior_p:.4f}"
    )
    assert r.adjusted_p != r.p
    assert "Paired randomisation test: signs of 60 rows flipped (10000 draws, seed 0), two-sided." in others
    assert any("Corrected for 2 comparisons (step-down max-T; exact for each, asymptotic for all" in x for x in others)
    assert any("worse by less than 0.01, where higher values are better" in line for line in others)
    assert all(line == line.rstrip() for line in others)
    for name in ("to_markdown", "to_latex"):
        text = getattr(found, name)()
        assert all(column.replace("%", "\\%" if name == "to_latex" else "%") in text for column in columns)
    assert "Not corrected for 2 comparisons" in str(trm.compare(runs, correction="none"))
    assert "adjusted p" not in str(trm.compare(runs, "m@1"))
    assert "Paired t test over 60 rows, one-sided (less)" in str(trm.compare(models(60), test="t", alternative="less"))
    assert "all 255 other signs" in str(trm.compare(models(8)))


def test_evaluations_as_they_are():
    """Evaluations and collections that kept their rows are compared by them; `metrics` chooses labels."""
    generator = torch.Generator().manual_seed(0)
    items, target = torch.randn(30, 4, generator=generator), torch.randint(30, (40, 1), generator=generator)
    test = trm.Interactions.from_padded(target, num_items=30)

    def evaluated(metrics, keep_rows=True):
        users = torch.randn(40, 4, generator=generator)
        return trm.evaluate(metrics, users, items, target=test, k=10, keep_rows=keep_rows)

    runs = {"a": evaluated(["HR", "NDCG"]), "b": [evaluated(["NDCG", "MRR"]) for _ in range(2)]}
    found = trm.compare(runs, "NDCG@10")
    assert found.results == trm.compare(runs, metrics=["NDCG@10", "NDCG@10"]).results
    r = found["NDCG@10"]
    assert r.against_value == pytest.approx(runs["a"]["NDCG@10"].item())
    assert r.value == pytest.approx(sum(each["NDCG@10"].item() for each in runs["b"]) / 2)
    rows = {"a": make({"n": runs["a"].rows.values["NDCG@10"]}), "b": [make(x.rows.values) for x in runs["b"]]}
    rows["b"] = [make({"n": x.values["NDCG@10"]}) for x in rows["b"]]
    assert trm.compare(rows)["n"][3:] == r[3:]
    with pytest.raises(ValueError, match=r"HR@10 only in 'a'; MRR@10 only in 'b'; or choose some with metrics="):
        trm.compare(runs)
    with pytest.raises(ValueError, match=r"run 'a' has no metric 'MRR@10'"):
        trm.compare(runs, ["NDCG@10", "MRR@10"])
    with pytest.raises(ValueError, match=r"run 'b': no rows were kept: evaluate with keep_rows=True"):
        trm.compare({"a": runs["a"], "b": evaluated(["HR", "NDCG"], keep_rows=False)})
    collection = trm.RecMetricCollection("NDCG@10", accumulators=[trm.KeptRows()])
    collection.update(torch.rand(40, 30, generator=generator), target)
    value = collection.compute()["NDCG@10"].item()
    assert trm.compare({**runs, "c": collection}, "NDCG@10", baseline="a")["NDCG@10", "c", "a"].value == (
        pytest.approx(value)
    )
    with pytest.raises(ValueError, match=r"run 'c': no rows were kept: make the collection with accumulators="):
        trm.compare({"a": runs["a"], "c": trm.RecMetricCollection("NDCG@10")})


def test_infinite_values_of_other_metrics():
    """Infinite values are refused in the metrics that are compared, not in others."""
    ranks = {name: make({"MeanRank": [math.inf, 2.0, 3.0], "m": [at, 0.5, 0.2]}) for name, at in (("a", 0), ("b", 1))}
    assert trm.compare(ranks, "m")["m"].difference == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match="values of MeanRank are infinite in 1 of 3 rows"):
        trm.compare(ranks)


def test_small_differences_are_shown():
    """The table shows enough digits for small differences."""
    runs = {n: make({"m": rows.values["m@1"] / 1e5}) for n, rows in models(100, shift=0.1).items()}
    assert f"{trm.compare(runs)['m'].difference:+.8f}"[:9] in str(trm.compare(runs))


def test_other_forms():
    found = trm.compare(models(60, labels=2, shift=0.1))
    assert len(found) == 2
    columns = found.to_dict()
    assert [*columns] == [*found["m@1"]._fields]
    assert columns["p"] == [r.p for r in found.results]
    frame = pytest.importorskip("pandas").DataFrame(found.to_pandas())
    assert frame["label"].tolist() == ["m@1", "m@2"]
    assert frame["noninferior_p"].isna().all()
    assert frame["noninferior_p"].dtype == "float64"
    head, rule, *lines = found.to_markdown().splitlines()
    assert len(lines) == 2
    assert head.startswith("| metric | runs      |  value | against | difference |")
    assert rule.startswith("| ------ | --------- | -----: | ------: | ---------: |")
    assert "non-inferior" not in head
    assert found.to_latex().startswith("\\begin{tabular}{llrrrrr}")


class TestRounding:
    """Values that are equal in exact arithmetic are treated as equal."""

    ids = torch.arange(60)

    def rows(self, values, **options):
        return trm.Rows({"m": torch.as_tensor(values, dtype=torch.float64).expand(len(self.ids))}, self.ids, **options)

    def test_a_difference_of_the_margin(self):
        """A difference as large as the margin is not within the margin."""
        found = trm.compare({"a": self.rows(0.6), "b": self.rows(0.5)}, margin=0.1)["m"]
        assert found.noninferior_p == 1

    def test_clusters_that_cancel(self):
        """Clusters in which the differences of rows cancel have no difference."""
        clusters = self.ids // 3
        one = self.rows(torch.tensor([0, 0, 0.3], dtype=torch.float64).repeat(20), clusters=clusters)
        two = self.rows(torch.tensor([0.1, 0.2, 0], dtype=torch.float64).repeat(20), clusters=clusters)
        assert trm.compare({"one": one, "two": two})["m"].p == 1

    def test_own_weights_and_seeds(self):
        """A mean over seeds that differs from the other run by rounding alone is a tie."""
        own = {"m": (self.ids % 4 + 1).double()}
        seeds = [self.rows(value, own_weights=own) for value in (0.1, 0.2, 0.3)]
        found = trm.compare({"one": self.rows(0.2, own_weights=own), "seeds": seeds})["m"]
        assert (found.p, found.ties) == (1, 60)

    @pytest.mark.parametrize(
        ("values", "p", "greater"), [([0.1, 0.2, -0.3] * 2, 1, 37 / 64), ([0.1, 0.1, 0.1, -0.3], 1, 9 / 16)]
    )
    def test_ties_at_zero(self, values, p, greater):
        """All flips are enumerated, and those with a sum equal to the observed one count."""
        ids = torch.arange(len(values))
        one = trm.Rows({"m": torch.tensor(values, dtype=torch.float64)}, ids)
        nothing = trm.Rows({"m": torch.zeros(len(values), dtype=torch.float64)}, ids)
        runs = {"nothing": nothing, "one": one}
        assert trm.compare(runs)["m"].p == p
        assert trm.compare(runs, alternative="greater")["m"].p == greater

    def test_weights_of_any_size(self):
        """Weights of any size give the same p if they are proportional."""
        generator = torch.Generator().manual_seed(0)
        values = torch.rand(2, 60, dtype=torch.float64, generator=generator)
        found = []
        for size in (1e-170, 1.0, 1e160):
            weights = torch.full((60,), size, dtype=torch.float64)
            one, two = (trm.Rows({"m": each}, self.ids, weights) for each in values)
            found.append(trm.compare({"one": one, "two": two}, resamples=500)["m"].p)
        assert found[0] == found[1] == found[2] < 1

    def test_what_four_rows_cannot_find(self):
        """With four rows no difference is detectable, because no flip is rare enough."""
        ids = torch.arange(4)
        none, every = (trm.Rows({"m": torch.full((4,), value, dtype=torch.float64)}, ids) for value in (0.0, 1.0))
        found = trm.compare({"none": none, "every": every})["m"]
        assert (found.p, found.detectable) == (0.125, math.inf)


def test_ids_beyond_int64():
    """Ids of 2^63 and more are refused, and not wrapped to negative numbers."""
    with pytest.raises(ValueError, match=r"ids must be below 2\^63"):
        trm.Rows({"m": torch.zeros(2)}, torch.tensor([1, 2**63], dtype=torch.uint64))


def test_intervals_of_constant_differences():
    """The corrected interval of a constant difference contains the interval of one comparison at any level."""
    runs = {"a": make({"m": torch.zeros(2)}), "b": make({"m": torch.ones(2)})}
    for alternative in ("two-sided", "greater", "less"):
        for level in (0.2, 0.5, 0.95):
            r = trm.compare(runs, alternative=alternative, level=level)["m"]
            assert r.adjusted_low <= r.low <= r.high <= r.adjusted_high
