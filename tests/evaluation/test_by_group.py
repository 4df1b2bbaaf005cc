"""The worst group and the gap: against plain Python, in edge cases, and the coverage of their intervals."""

import math
from statistics import NormalDist

import pytest
import torch

from torchrecmetrics.analysis.curves import Point
from torchrecmetrics.core.intervals import interval
from torchrecmetrics.core.student import quantile_above
from torchrecmetrics.evaluation.by_group import GroupResults, _ends

NAN, INF = math.nan, math.inf


def groups(values, errors, sizes, bounds=(0.0, 1.0), better=True):
    """Return results of groups 0, 1, ... of a metric m."""
    points = [
        Point(f"m/{g}", "m", "m", None, value, error, size, bounds, int(size), str(g))
        for g, (value, error, size) in enumerate(zip(values, errors, sizes, strict=True))
    ]
    return GroupResults(points, [], {"m": better})


def hits(rates, n):
    """Return results of groups of n users each, whose hit rates are `rates`."""
    return groups(rates, [(rate * (1 - rate) / (n - 1)) ** 0.5 for rate in rates], [n] * len(rates))


def plain_end(m, error, n, tail):
    """Return the lower end of one mean's interval within 0 .. 1, by bisection."""
    share = error**2 * (n - 1) / (m * (1 - m)) if 0 < m < 1 else 1
    q = m - (share if error else 1) / n
    if q <= 0:
        return 0.0
    t = NormalDist().inv_cdf(1 - tail) if abs(share - 1) < 1e-6 else quantile_above(tail, n - 1)
    far = t**2 * (share if error else 1) / n / 2
    low, high = 0.0, q
    for _ in range(200):
        p = (low + high) / 2
        if p and q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p)) <= far:
            high = p
        else:
            low = p
    return low


def plain_ends(m, error, n, bounds, tail):
    """Return both ends of one group's interval."""
    if bounds is None:
        t = quantile_above(tail, n - 1)
        return m - t * error, m + t * error
    least, width = bounds[0], bounds[1] - bounds[0]
    m, error = (m - least) / width, error / width
    return least + width * plain_end(m, error, n, tail), bounds[1] - width * plain_end(1 - m, error, n, tail)


@pytest.mark.parametrize("n", [2, 5, 20, 200])
@pytest.mark.parametrize("tail", [0.025, 1e-3, 1e-6])
def test_ends_of_hits_are_sure(n, tail):
    """Each end of an interval misses the true hit rate with a probability of at most `tail`.

    Probabilities are summed over all outcomes, also for rates just beyond each end.
    """
    hits = torch.arange(n + 1, dtype=torch.float64)
    errors = [(m * (1 - m) / (n - 1)) ** 0.5 for m in (hits / n).tolist()]
    points = [Point("m", "m", "m", None, m, e, n, (0, 1), n) for m, e in zip((hits / n).tolist(), errors, strict=True)]
    low, high = torch.tensor([_ends(point, tail) for point in points], dtype=torch.float64).T
    shares = torch.cat([torch.linspace(1e-4, 0.9999, 500, dtype=torch.float64), low - 1e-12, high + 1e-12])
    shares = shares[(shares > 0) & (shares < 1)][:, None]
    chances = torch.distributions.Binomial(n, shares, validate_args=False).log_prob(hits).exp()
    assert (chances * (low > shares)).sum(1).max() <= tail
    assert (chances * (high < shares)).sum(1).max() <= tail


@pytest.mark.parametrize("level", [0.95, 0.8])
@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 3.0), None])
def test_against_plain_python(bounds, level):
    """Each group's interval has the level level^(1 / G), and the worst and the gap are made from their ends."""
    values, errors, sizes = [0.3, 0.1, 0.5, 0.12], [0.02, 0.05, 0.03, 0.01], [300, 25, 40, 900.5]
    results = groups(values, errors, sizes, bounds)
    tail = (1 - level ** (1 / 4)) / 2
    expected = [plain_ends(*row, bounds, tail) for row in zip(values, errors, sizes, strict=True)]
    found = results.corrected("m", level)
    assert [each[:2] for each in found] == [(str(g), value) for g, value in enumerate(values)]
    assert [each[2:] for each in found] == [pytest.approx(ends) for ends in expected]
    lows, highs = zip(*expected, strict=True)
    worst, gap = results.worst("m", level), results.gap("m", level)
    assert worst[:4] == ("1", 0.1, pytest.approx(min(lows)), pytest.approx(min(highs)))
    assert worst.possible == tuple(str(g) for g, low in enumerate(lows) if low <= min(highs))
    assert gap[:3] == ("2", "1", pytest.approx(0.4))
    assert gap[3:] == pytest.approx((max(0, max(lows) - min(highs)), max(highs) - min(lows)))


def test_less_is_better():
    """Where lower values are better, the worst group has the largest mean, and its interval is mirrored."""
    values, errors, sizes = [0.2, 0.35, 0.3], [0.02, 0.05, 0.04], [90, 60, 70]
    worst = groups(values, errors, sizes, better=False).worst("m")
    other = groups([1 - value for value in values], errors, sizes).worst("m")
    assert worst.group == other.group == "1"
    assert (worst.value, worst.low, worst.high) == pytest.approx((1 - other.value, 1 - other.high, 1 - other.low))
    assert worst.possible == other.possible


def test_neither_is_better():
    """Where neither direction is better, there is a gap but no worst group."""
    results = groups([0.2, 0.3], [0.01, 0.01], [90, 90], better=None)
    with pytest.raises(ValueError, match="higher_is_better is None, neither more nor less of this metric is better"):
        results.worst("m")
    assert results.gap("m").highest == "1"


def test_groups_that_cannot_be_the_worst():
    """A group far from the worst is not among the possible worst groups."""
    results = groups([0.5, 0.1, 0.6, 0.12], [0.01] * 4, [900] * 4)
    assert results.worst("m").possible == ("1", "3")
    assert results.gap("m").low > 0.4


def test_more_groups_are_less_sure():
    """With more equal groups the interval of the worst is wider; each may be the worst, and the gap may be 0."""
    widths = []
    for number in (1, 10, 1000):
        found = hits([0.2] * number, 400)
        widths.append(found.worst("m").high - found.worst("m").low)
        assert len(found.worst("m").possible) == number
        assert number == 1 or found.gap("m").low == 0
    assert widths == sorted(widths)
    assert widths[0] < widths[1] < widths[2]


def test_groups_without_users_are_left_out():
    """Groups without users have no interval, and do not widen the intervals of the others."""
    full = groups([0.26, 0.3], [0.02, 0.02], [50, 60])
    with_empty = groups([NAN, 0.26, NAN, 0.3], [NAN, 0.02, NAN, 0.02], [0, 50, 0, 60])
    assert with_empty.worst("m") == full.worst("m")._replace(group="1", possible=("1", "3"))
    assert with_empty.gap("m") == full.gap("m")._replace(highest="3", lowest="1")
    assert math.isnan(with_empty.corrected("m")[0].low)


def test_one_user_may_stand_anywhere():
    """A group of one user may have any value within the bounds, or any value at all without bounds.

    The upper end of the worst group is what it is without that group.
    """
    without = groups([0.26, 0.3], [0.02, 0.02], [50, 60])
    for bounds, end in (((0.0, 1.0), 0.0), ((-2.0, 2.0), -2.0), (None, -INF)):
        found = groups([0.26, 0.3, 1.0], [0.02, 0.02, NAN], [50, 60, 1], bounds)
        assert (found.worst("m").low, found.worst("m").possible) == (end, ("0", "1", "2"))
        assert found.corrected("m")[2][2:] == (bounds or (-INF, INF))
        assert (found.gap("m").highest, found.gap("m").low) == ("2", 0)
    assert groups([0.26, 0.3, 1.0], [0.02, 0.02, NAN], [50, 60, 1]).worst("m").high == without.worst("m").high


def test_nothing_to_go_by():
    """Without any value there is no worst group, with fewer than two there is no gap; a single group is the worst."""
    none = groups([NAN], [NAN], [0])
    assert (none.worst("m").group, none.worst("m").possible) == (None, ())
    assert (none.gap("m").highest, none.gap("m").lowest) == (None, None)
    assert all(map(math.isnan, (*none.worst("m")[1:4], *none.gap("m")[2:])))
    alone = groups([0.5], [NAN], [1])
    assert alone.worst("m") == ("0", 0.5, 0.0, 1.0, ("0",))
    assert alone.gap("m").highest is None


def test_rows_that_are_all_alike():
    """Two users with equal values give a wide interval although their standard error is 0, where rows have bounds."""
    worst = groups([0.5, 0.6], [0.0, 0.0], [2, 2000]).worst("m")
    assert worst.low < 0.1
    assert 0.5 < worst.high < 0.7


@pytest.mark.parametrize("what", ["worst", "gap", "corrected"])
def test_refused(what):
    results = hits([0.1, 0.2], 50)
    with pytest.raises(ValueError, match=r"level must be between 0 and 1, such as 0\.95, got 95"):
        getattr(results, what)("m", level=95)
    with pytest.raises(ValueError, match=r"no metric with groups is 'n'"):
        getattr(results, what)("n")


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    "hit_rates", [[0.1] * 5, [0.1] * 50, [0.04] + [0.1] * 49], ids=["5 equal", "50 equal", "one 0.04"]
)
def test_coverage(hit_rates):
    """95 % intervals of the worst group and the gap hold in 95 % of 300 simulated samples, less 3 standard errors."""
    num_samples, num_users, generator = 300, 200, torch.Generator().manual_seed(0)
    true = torch.tensor(hit_rates, dtype=torch.float64)
    least, gap = true.min().item(), (true.max() - true.min()).item()
    held, bias = {"all": 0, "worst": 0, "possible": 0, "gap": 0, "naive": 0}, 0.0
    sizes = torch.full((num_samples, len(true)), float(num_users), dtype=torch.float64)
    for values in (torch.binomial(sizes, true.expand_as(sizes), generator=generator) / num_users).tolist():
        results = hits(values, num_users)
        worst, found = results.worst("m"), results.gap("m")
        error = (worst.value * (1 - worst.value) / (num_users - 1)) ** 0.5
        low, high = interval(worst.value, error, num_users, (0.0, 1.0), 0.95)
        ends = zip(hit_rates, results.corrected("m"), strict=True)
        held["all"] += all(each.low <= rate <= each.high for rate, each in ends)
        held["worst"] += worst.low <= least <= worst.high
        held["possible"] += str(int(true.argmin())) in worst.possible
        held["gap"] += found.low <= gap <= found.high
        held["naive"] += low <= least <= high
        bias += (worst.value - least) / num_samples
    enough = num_samples * (0.95 - 3 * (0.95 * 0.05 / num_samples) ** 0.5)
    assert min(held["all"], held["worst"], held["possible"], held["gap"]) >= enough
    if hit_rates == [0.1] * 50:  # as docs/how-to/for-whom.md says
        assert held["naive"] < num_samples / 2
        assert bias == pytest.approx(-0.045, abs=0.003)


def test_one_known_bound():
    """An interval is cut at the one finite bound of a metric, unless the mean itself is beyond that bound."""
    point = groups([0.5], [1.0], [12], (0.0, INF))._points[0]
    low, high = _ends(point._replace(bounds=None), 0.025)
    assert low < 0
    assert _ends(point, 0.025) == (0, high)
    assert _ends(point._replace(bounds=(1.0, INF)), 0.025) == (low, high)
    assert _ends(point._replace(standard_error=NAN, size=1.0), 0.025) == (0, INF)
