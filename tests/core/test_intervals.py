"""Student's t and intervals from sums agree with scipy and hand calculations, at the edges too, and cover as stated."""

import math

import pytest
import torch

import torchrecmetrics as trm
from torchrecmetrics.core import intervals as student
from torchrecmetrics.core.intervals import interval, quantile, skewed_interval

stats = pytest.importorskip("scipy.stats")

EACH_DF = pytest.mark.parametrize("df", [0.5, 1, 1.5, 2, 3.7, 10, 49, 101, 1999, 2001, 30_000, 10**6, 10**7])
T = (0, 1e-3, 0.1, 0.7, 1, 1.96, 2.5, 4, 8)


@EACH_DF
def test_tails_are_scipys(df):
    """Small tails keep their relative precision."""
    assert [student.upper_tail(t, df) for t in T] == pytest.approx([stats.t.sf(t, df) for t in T], rel=1e-9)
    assert [student.upper_tail(-t, df) for t in T] == pytest.approx([stats.t.cdf(t, df) for t in T], abs=1e-10)


@EACH_DF
def test_quantiles_are_scipys(df):
    shares = (1e-6, 0.025, 0.3, 0.5, 0.6, 0.8, 0.975, 0.9995)
    expected = [stats.t.ppf(share, df) for share in shares]

    assert [student.quantile(share, df) for share in shares] == pytest.approx(expected, rel=1e-10, abs=1e-10)


def test_a_quarter_of_a_distribution_of_one_degree_of_freedom_lies_above_1():
    assert student.upper_tail(1, 1) == pytest.approx(1 / 4)  # 1 / 2 - atan(1) / pi
    assert student.quantile(3 / 4, 1) == pytest.approx(1)


def test_the_distribution_ends_at_0_and_1_and_the_tail_of_nan_is_nan():
    assert [student.upper_tail(t, 3) for t in (-math.inf, math.inf)] == [1, 0]
    assert [student.quantile(share, 3) for share in (0, 1)] == [-math.inf, math.inf]
    assert math.isnan(student.upper_tail(math.nan, 3))


def test_a_quantile_of_no_probability_is_refused():
    with pytest.raises(ValueError, match=r"probability must be between 0 and 1, got 1\.5"):
        student.quantile(1.5, 3)


def wilson(mean, size, t):
    """Return Wilson's score interval, with t for z."""
    middle, half = mean + t**2 / (2 * size), t * math.sqrt(mean * (1 - mean) / size + t**2 / (4 * size**2))
    return pytest.approx(((middle - half) / (1 + t**2 / size), (middle + half) / (1 + t**2 / size)))


def error_of(values):
    return (values.std() / len(values) ** 0.5).item()


def test_rows_of_0_and_1_have_wilsons_interval_of_one_row_less():
    """Standard errors divide by n - 1."""
    values = (torch.arange(80) % 5 == 0).double()
    assert interval(0.2, error_of(values), 80) == wilson(0.2, 79, stats.t.ppf(0.975, 79))


def test_equal_rows_whose_spread_is_unknown_have_wilsons_interval_by_score_and_none_by_student():
    assert interval(0.5, 0, 10) == wilson(0.5, 10, stats.t.ppf(0.975, 9))
    assert interval(0.5, 0, 10, method="student") == (0.5, 0.5)


@pytest.mark.parametrize(
    ("bounds", "options"), [((0, 1), {"method": "student"}), (None, {}), ((0, math.inf), {})], ids=str
)
def test_students_interval_is_scipys_by_its_name_or_for_a_bound_that_is_not_known(bounds, options, generator):
    values = torch.rand(30, generator=generator, dtype=torch.float64)
    mean, error = values.mean().item(), error_of(values)

    assert interval(mean, error, 30, bounds, 0.9, **options) == pytest.approx(stats.t.interval(0.9, 29, mean, error))


LARGEST_ERROR = (0.05 * 0.95 / 49) ** 0.5  # of 50 rows between 0 and 1 whose mean is 0.05


@pytest.mark.parametrize(
    ("mean", "error", "is_student"),
    [(0.05, LARGEST_ERROR, False), (0.05, 1.001 * LARGEST_ERROR, True), (-0.1, 0.03, True), (0, 0.03, True)],
)
def test_a_mean_or_error_that_rows_within_the_bounds_cannot_have_gives_students_interval(mean, error, is_student):
    assert (interval(mean, error, 50) == interval(mean, error, 50, method="student")) == is_student


HALF = stats.t.ppf(0.975, 11)


@pytest.mark.parametrize(
    ("bounds", "options", "expected"),
    [
        (None, {}, (1 - HALF, 1 + HALF)),
        ((0, math.inf), {}, (0, 1 + HALF)),
        ((-math.inf, 2), {}, (1 - HALF, 2)),
        ((1.5, math.inf), {}, (1 - HALF, 1 + HALF)),  # the mean is beyond it
        ((0, math.inf), {"method": "student"}, (1 - HALF, 1 + HALF)),
    ],
)
def test_students_interval_ends_at_the_one_bound_that_is_known(bounds, options, expected):
    assert interval(1.0, 1.0, 12, bounds, **options) == pytest.approx(expected)


def test_the_interval_of_a_mean_of_0_or_1_jumps_at_the_first_hit_as_is_documented():
    one_hit = torch.tensor([0.1] + [0] * 199, dtype=torch.float64)

    assert interval(0, 0, 200) == pytest.approx((0, 0.0191), abs=5e-5)
    assert interval(1, 0, 200) == pytest.approx((0.9809, 1), abs=5e-5)
    assert interval(one_hit.mean().item(), error_of(one_hit), 200)[1] == pytest.approx(0.003, abs=5e-4)


def test_other_bounds_are_scaled():
    low, high = interval(0.2, 0.05, 40)
    assert interval(-1 + 4 * 0.2, 4 * 0.05, 40, (-1, 3)) == pytest.approx((-1 + 4 * low, -1 + 4 * high))


def test_weighted_rows_are_as_many_as_the_squared_sum_over_the_sum_of_squares():
    metric = trm.HR(1)
    metric.update(torch.tensor([1, 2, 1, 1]), depth=10, weights=torch.tensor([1, 2, 0.5, 3], dtype=torch.float64))
    size = (1 + 2 + 0.5 + 3) ** 2 / (1 + 4 + 0.25 + 9)
    expected = interval(metric.compute().item(), metric.standard_error().item(), size)

    assert metric.confidence_interval() == pytest.approx(expected)


@pytest.mark.parametrize(("mean", "error", "size"), [(math.nan, 0.1, 9), (0.5, math.nan, 9), (0.5, 0, 1), (0, 0, 0)])
def test_an_unknown_mean_or_error_or_fewer_than_two_rows_have_no_interval(mean, error, size):
    assert all(map(math.isnan, interval(mean, error, size)))
    assert all(map(math.isnan, skewed_interval(mean, error, size, 0)))


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"level": 95}, ValueError, "level must be between 0 and 1, such as 0.95, got 95"),
        ({"level": "0.95"}, TypeError, "level must be a number between 0 and 1, such as 0.95, got '0.95'"),
        ({"method": "wald"}, ValueError, "method must be one of 'score', 'student', got 'wald'"),
        ({"bounds": (1, 0)}, ValueError, r"bounds must be \(least, greatest\) of a row's value, or None, got \(1, 0\)"),
        ({"bounds": 1}, ValueError, r"bounds must be \(least, greatest\)"),
    ],
)
def test_an_option_of_intervals_is_refused(options, error, says):
    with pytest.raises(error, match=says):
        interval(0.5, 0.1, 10, **options)


def covered(draw, truth):
    """Return how often the score interval and mean ± 2 se cover the truth, of 40,000 samples of 200 rows."""
    generator = torch.Generator().manual_seed(3)
    score = plain = 0
    for _ in range(10):
        values = draw((4000, 200), generator)
        means, errors = values.mean(1), values.std(1) / 200**0.5
        plain += int(((means - truth).abs() <= 2 * errors).sum())
        for mean, error in zip(means.tolist(), errors.tolist(), strict=True):
            low, high = interval(mean, error, 200)
            score += low <= truth <= high
    return score / 40_000, plain / 40_000


def hits(share):
    """Return a function that draws rows of 0 and 1."""
    return lambda shape, g: (torch.rand(shape, generator=g) < share).double()


GAINS = 1 / torch.arange(2, 12).double().log2()


def ndcg(share):
    """Return a function that draws NDCG of one relevant item, found with probability `share` at any of ten ranks."""
    return lambda shape, g: hits(share)(shape, g) * GAINS[torch.randint(10, shape, generator=g)]


def recall(shape, g):
    """Draw the share of five relevant items, each found with probability 0.2."""
    return hits(0.2)((*shape, 5), g).mean(-1)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    ("draw", "truth", "score", "plain"),
    [
        (ndcg(0.03), 0.03 * GAINS.mean().item(), 0.934, 0.891),
        (ndcg(0.1), 0.1 * GAINS.mean().item(), 0.950, 0.935),
        (ndcg(0.3), 0.3 * GAINS.mean().item(), 0.951, 0.947),
        (hits(0.01), 0.01, 0.948, 0.863),
        (hits(0.1), 0.1, 0.95, 0.94),
        (recall, 0.2, 0.949, 0.95),
    ],
)
def test_the_stated_shares_of_40_000_samples_of_200_rows_cover_the_truth(draw, truth, score, plain):
    """Fewer by mean ± 2 se where few rows hit."""
    assert covered(draw, truth) == pytest.approx((score, plain), abs=0.012)


def test_a_curvature_that_leaves_no_end_makes_it_infinite():
    """1 + u c with u = -t is below 0; the other end is m + t SE / 4."""
    low, high = skewed_interval(0.1, 0.02, 200, 0.0, curvature=3 / quantile(0.975, 199))

    assert low == -math.inf
    assert high == pytest.approx(0.1 + quantile(0.975, 199) * 0.02 / 4)


def test_a_level_beyond_its_skewness_has_the_least_end_that_there_is():
    """u = v / (1 - a v)^2 has its least value at v = -1 / a, -1 / (4 a), and a lower v does not turn it back."""
    low, _ = skewed_interval(0.1, 0.02, 11, 0.16, level=1 - 1e-5)

    assert 0.16 - quantile(1 - 5e-6, 10) < -1 / 0.16
    assert low == pytest.approx(0.1 - 0.02 / (4 * 0.16))
