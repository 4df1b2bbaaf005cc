"""Student's t and intervals from sums agree with scipy and hand calculations, at the edges too, and cover as stated."""

import math

import pytest
import torch

import torchrecmetrics as trm
from torchrecmetrics.core import intervals as student
from torchrecmetrics.core.intervals import interval, quantile, skewed_interval

stats = pytest.importorskip("scipy.stats")

DEGREES = (0.5, 1, 1.5, 2, 3.7, 10, 49, 101, 1999, 2001, 30_000, 10**6, 10**7)


@pytest.mark.parametrize("df", DEGREES)
def test_student(df):
    """Tails and quantiles equal scipy's within 1e-10, and small tails keep their relative precision."""
    for t in (0, 1e-3, 0.1, 0.7, 1, 1.96, 2.5, 4, 8):
        assert student.upper_tail(-t, df) == pytest.approx(stats.t.cdf(t, df), abs=1e-10)
        assert student.upper_tail(t, df) == pytest.approx(stats.t.cdf(-t, df), abs=1e-10)
        assert student.upper_tail(t, df) == pytest.approx(stats.t.sf(t, df), rel=1e-9)
    for p in (1e-6, 0.025, 0.3, 0.5, 0.6, 0.8, 0.975, 0.9995):
        assert student.quantile(p, df) == pytest.approx(stats.t.ppf(p, df), rel=1e-10, abs=1e-10)


def test_student_at_the_ends():
    """The distribution is 0 at -inf and 1 at inf, quantiles of 0 and 1 are infinite, and 1.5 is no probability."""
    assert (student.upper_tail(-math.inf, 3), student.upper_tail(math.inf, 3)) == (1, 0)
    assert math.isnan(student.upper_tail(math.nan, 3))
    assert (student.quantile(0, 3), student.quantile(1, 3)) == (-math.inf, math.inf)
    with pytest.raises(ValueError, match=r"probability must be between 0 and 1, got 1\.5"):
        student.quantile(1.5, 3)


def wilson(mean, size, t):
    """Return Wilson's score interval, with t for z."""
    middle, half = mean + t**2 / (2 * size), t * math.sqrt(mean * (1 - mean) / size + t**2 / (4 * size**2))
    return pytest.approx(((middle - half) / (1 + t**2 / size), (middle + half) / (1 + t**2 / size)))


def error_of(values):
    return (values.std() / len(values) ** 0.5).item()


def test_score_is_wilsons():
    """Rows of 0 and 1 have n_e = n - 1, as their error divides by n - 1; equal rows, of unknown spread, have n."""
    values = (torch.arange(80) % 5 == 0).double()
    assert interval(0.2, error_of(values), 80) == wilson(0.2, 79, stats.t.ppf(0.975, 79))
    assert interval(0.5, 0, 10) == wilson(0.5, 10, stats.t.ppf(0.975, 9))
    assert interval(0.5, 0, 10, method="student") == (0.5, 0.5)


def test_student_is_scipys():
    """Student's interval is asked for by its name, or by a bound that is not known."""
    values = torch.rand(30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mean, error = values.mean().item(), error_of(values)
    expected = pytest.approx(stats.t.interval(0.9, 29, mean, error))
    assert interval(mean, error, 30, level=0.9, method="student") == expected
    assert interval(mean, error, 30, None, 0.9) == expected
    assert interval(mean, error, 30, (0, math.inf), 0.9) == expected


LARGEST_ERROR = (0.05 * 0.95 / 49) ** 0.5  # of 50 rows between 0 and 1 whose mean is 0.05


@pytest.mark.parametrize(
    ("mean", "error", "is_student"),
    [(0.05, LARGEST_ERROR, False), (0.05, 1.001 * LARGEST_ERROR, True), (-0.1, 0.03, True), (0, 0.03, True)],
)
def test_rows_beyond_their_bounds(mean, error, is_student):
    """A mean outside the bounds, or more error than rows within the bounds can have, gives Student's interval."""
    assert (interval(mean, error, 50) == interval(mean, error, 50, method="student")) == is_student


def test_one_known_bound():
    """With one finite bound, Student's interval ends there, unless the mean is beyond it or the method is Student's."""
    low, high = interval(1.0, 1.0, 12, None)
    assert low < 0
    assert interval(1.0, 1.0, 12, (0, math.inf)) == (0, high)
    assert interval(1.0, 1.0, 12, (-math.inf, 2)) == (low, 2)
    assert interval(1.0, 1.0, 12, (1.5, math.inf)) == (low, high)
    assert interval(1.0, 1.0, 12, (0, math.inf), method="student") == (low, high)


def test_at_the_edges():
    """For means of 0 and 1, n_e is n, so that the interval jumps at the first hit, as is documented."""
    assert interval(0, 0, 200) == pytest.approx((0, 0.0191), abs=5e-5)
    assert interval(1, 0, 200) == pytest.approx((0.9809, 1), abs=5e-5)
    one_hit = 0.1 * torch.eye(1, 200, dtype=torch.float64)[0]
    assert interval(one_hit.mean().item(), error_of(one_hit), 200)[1] == pytest.approx(0.003, abs=5e-4)


def test_other_bounds_are_scaled():
    low, high = interval(0.2, 0.05, 40)
    assert interval(-1 + 4 * 0.2, 0.2, 40, (-1, 3)) == pytest.approx((-1 + 4 * low, -1 + 4 * high))


def test_weights_are_a_smaller_number_of_rows():
    """Rows of weights w are as many as (sum w)^2 / sum w^2."""
    metric = trm.HR(1)
    metric.update(torch.tensor([1, 2, 1, 1]), depth=10, weights=torch.tensor([1, 2, 0.5, 3], dtype=torch.float64))
    size = (1 + 2 + 0.5 + 3) ** 2 / (1 + 4 + 0.25 + 9)
    expected = interval(metric.compute().item(), metric.standard_error().item(), size)

    assert metric.confidence_interval() == pytest.approx(expected)


def test_nothing_to_go_by():
    """There is no interval of fewer than two rows, or of an unknown value or error."""
    for value, error, size in ((math.nan, 0.1, 9), (0.5, math.nan, 9), (0.5, 0, 1), (0, 0, 0)):
        assert all(map(math.isnan, interval(value, error, size)))
    assert all(map(math.isnan, skewed_interval(0.5, 0, 1, 0)))


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
def test_mistakes(options, error, says):
    with pytest.raises(error, match=says):
        interval(0.5, 0.1, 10, **options)


def covered(draw, truth, samples=40_000, n=200):
    """Return how often the score interval and mean ± 2 se cover the truth."""
    generator = torch.Generator().manual_seed(3)
    score = plain = 0
    for _ in range(samples // 4000):
        values = draw((4000, n), generator)
        means, errors = values.mean(1), values.std(1) / n**0.5
        plain += int(((means - truth).abs() <= 2 * errors).sum())
        for mean, error in zip(means.tolist(), errors.tolist(), strict=True):
            low, high = interval(mean, error, n)
            score += low <= truth <= high
    return score / samples, plain / samples


def hits(share):
    """Return a function that draws rows of 0 and 1."""
    return lambda shape, g: (torch.rand(shape, generator=g) < share).double()


GAINS = 1 / torch.arange(2, 12).double().log2()


def ndcg(share):
    """Return a function that draws NDCG of one relevant item, found with probability `share` at any of ten ranks."""
    return lambda shape, g: hits(share)(shape, g) * GAINS[torch.randint(10, shape, generator=g)]


@pytest.mark.nightly
@pytest.mark.slow
def test_coverage():
    """Of 40,000 samples of 200 rows, the given shares cover the truth, fewer by mean ± 2 se where few rows hit."""
    for draw, truth, score, plain in (
        (ndcg(0.03), 0.03 * GAINS.mean().item(), 0.934, 0.891),
        (ndcg(0.1), 0.1 * GAINS.mean().item(), 0.950, 0.935),
        (ndcg(0.3), 0.3 * GAINS.mean().item(), 0.951, 0.947),
        (hits(0.01), 0.01, 0.948, 0.863),
        (hits(0.1), 0.1, 0.95, 0.94),
        (lambda shape, g: hits(0.2)((*shape, 5), g).mean(-1), 0.2, 0.949, 0.95),  # Recall
    ):
        assert covered(draw, truth) == pytest.approx((score, plain), abs=0.012)
    shares = (0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.35, 0.5)
    found = [covered(hits(share), share, samples=8000)[0] for share in shares]
    assert sum(found) / len(found) == pytest.approx(0.953, abs=0.006)
    assert 0.925 < min(found) <= max(found) < 0.98


def test_abc_interval_where_an_end_is_unbounded():
    """A curvature that leaves no end makes it infinite: 1 + u c with u = -t is below 0; the other is m + t SE / 4."""
    low, high = skewed_interval(0.1, 0.02, 200, 0.0, curvature=3 / quantile(0.975, 199))
    assert low == -math.inf
    assert high == pytest.approx(0.1 + quantile(0.975, 199) * 0.02 / 4)


def test_abc_interval_of_a_level_beyond_its_skewness():
    """u = v / (1 - a v)^2 has its least value at v = -1 / a, -1 / (4 a), and a lower v does not turn it back."""
    t = quantile(1 - 5e-6, 10)
    assert 0.16 - t < -1 / 0.16
    low, _ = skewed_interval(0.1, 0.02, 11, 0.16, level=1 - 1e-5)
    assert low == pytest.approx(0.1 - 0.02 / (4 * 0.16))
