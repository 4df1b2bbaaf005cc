"""The worst group and the gap: against plain Python, by exact sums over hits, at the edges, and what they cover."""

import math
from itertools import permutations
from statistics import NormalDist

import pytest
import torch

from torchrecmetrics.analysis import worst as module
from torchrecmetrics.analysis.intervals import interval
from torchrecmetrics.analysis.student import quantile_above
from torchrecmetrics.analysis.worst import GroupMeans, ends_of

NAN, INF = math.nan, math.inf


def plain_end(m, error, n, tail):
    """The lower end of one mean within 0 .. 1, by bisection."""
    share = error**2 * (n - 1) / (m * (1 - m)) if 0 < m < 1 else 1
    hits = abs(share - 1) < 1e-6
    q = m - (share if error else 1) / n
    if q <= 0:
        return 0.0
    t = NormalDist().inv_cdf(1 - tail) if hits else quantile_above(tail, n - 1)
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
    """Both ends of one group."""
    if m != m:
        return NAN, NAN
    if error != error or n <= 1:
        return bounds or (-INF, INF)
    if bounds is None or not bounds[0] <= m <= bounds[1]:
        t = quantile_above(tail, n - 1)
        return m - t * error, m + t * error
    least, width = bounds[0], bounds[1] - bounds[0]
    scaled, error = (m - least) / width, error / width
    return (
        least + width * plain_end(scaled, error, n, tail),
        bounds[1] - width * plain_end(1 - scaled, error, n, tail),
    )


def plain(values, errors, sizes, bounds, level):
    """Intervals of all groups, of the smallest true value, and of the gap; groups that may be the worst."""
    groups = list(zip(values, errors, sizes, strict=True))
    known = [m == m and e == e and n > 1 for m, e, n in groups]
    there = [g for g, m in enumerate(values) if m == m]
    at = lambda tail: [plain_ends(*group, bounds, tail) for group in groups]  # noqa: E731
    a = 1 - level
    intervals = at((1 - level ** (1 / max(1, sum(known)))) / 2)
    own, all_at_once = at(a / 2), at(1 - (1 - a / 2) ** (1 / max(1, sum(known))))
    low, high = min(own[g][0] for g in there), min(all_at_once[g][1] for g in there)
    possible = tuple(g for g in there if own[g][0] <= high)
    pairs = list(permutations(there, 2))
    far = at(a / 2 / len(pairs))
    most, least = 0.0, 0.0
    for g, h in pairs:
        d = values[g] - values[h]
        most = max(most, d + math.hypot(own[g][1] - values[g], values[h] - own[h][0]))
        least = max(least, d - math.hypot(values[g] - far[g][0], far[h][1] - values[h]))
    return intervals, (low, high), possible, (least, most)


def some_groups(generator, bounds):
    """Hits, fractions, weighted rows, rows that are all alike, hits at the edges, one user, none."""
    rand = lambda *shape: torch.rand(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    rows = [(rand(n) < share).double() for n, share in ((300, 0.3), (25, 0.1), (40, 0.9), (12, 0.0), (9, 1.0))]
    rows += [rand(60) ** 2, rand(7), torch.full((5,), 0.4).double(), rand(1), rand(0)]
    least, width = (0, 1) if bounds is None else (bounds[0], bounds[1] - bounds[0])
    rows = [least + width * each for each in rows]
    values = [each.mean().item() if len(each) else NAN for each in rows]
    errors = [each.std().item() / len(each) ** 0.5 if len(each) > 1 else NAN for each in rows]
    sizes = [float(len(each)) for each in rows]
    sizes[6] = 6.3  # as if weighted
    return values, errors, sizes


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 3.0), None])
@pytest.mark.parametrize("level", [0.95, 0.8])
def test_against_plain_python(bounds, level):
    generator = torch.Generator().manual_seed(1)
    for taken in ([0, 1, 5], [0, 5], [2, 3, 4], [0, 1, 2, 5, 6, 7, 9], list(range(10))):
        values, errors, sizes = ([column[g] for g in taken] for column in some_groups(generator, bounds))
        means = GroupMeans(torch.tensor(values).double(), torch.tensor(errors).double(), torch.tensor(sizes), bounds)
        intervals, (low, high), possible, gap = plain(values, errors, sizes, bounds, level)
        near = {"rel": 2e-4, "abs": 1e-6, "nan_ok": True}  # t is at most a little larger
        assert torch.stack(means.intervals(level), 1).tolist() == [pytest.approx(each, **near) for each in intervals]
        found = means.worst(level=level)
        known = [v for v in values if v == v]
        assert (found.group, found.value) == (values.index(min(known)), pytest.approx(min(known)))
        assert (found.low, found.high) == pytest.approx((low, high), **near)
        assert found.possible == possible
        apart = means.gap(level)
        assert (apart.low, apart.high) == pytest.approx(gap, **near)
        assert (values[apart.highest], values[apart.lowest]) == (max(known), min(known))
        assert apart.value == pytest.approx(max(known) - min(known))
        assert found.empty == apart.empty == taken.count(9)
        assert found.single == apart.single == taken.count(8)


def test_less_is_better():
    """The worst group is the one with the largest mean, and all is mirrored."""
    values, errors, sizes = torch.tensor([0.2, 0.35, 0.3]), torch.tensor([0.02, 0.05, 0.04]), torch.tensor([90, 60, 70])
    worst = GroupMeans(values, errors, sizes).worst(higher_is_better=False)
    other = GroupMeans(1 - values, errors, sizes).worst()
    assert worst.group == other.group == 1
    mirrored = 1 - other.value, 1 - other.high, 1 - other.low
    assert (worst.value, worst.low, worst.high) == pytest.approx(mirrored, abs=1e-7)
    assert worst.possible == other.possible
    nothing = GroupMeans(torch.zeros(2), torch.zeros(2), torch.tensor([9, 9])).worst(False)
    assert math.copysign(1, nothing.value) == math.copysign(1, nothing.low) == 1


def test_neither_is_better():
    """There is no worst group, but a gap."""
    means = GroupMeans(torch.tensor([0.2, 0.3]), torch.tensor([0.01, 0.01]), torch.tensor([90, 90]))
    with pytest.raises(ValueError, match="higher_is_better is None, neither more nor less of this metric is better"):
        means.worst(None)
    assert means.gap().highest == 1


@pytest.mark.parametrize("n", [2, 5, 20, 200])
@pytest.mark.parametrize("tail", [0.025, 1e-3, 1e-6])
def test_ends_of_hits_are_sure(n, tail):
    """Summed over all outcomes, for shares just inside each end too: neither is missed more often than `tail`."""
    hits = torch.arange(n + 1, dtype=torch.float64)
    values, sizes = hits / n, torch.full_like(hits, n)
    low, high = ends_of(values, (values * (1 - values) / (n - 1)).sqrt(), sizes, (0, 1), tail)
    shares = torch.cat([torch.linspace(1e-4, 0.9999, 500, dtype=torch.float64), low - 1e-12, high + 1e-12])
    shares = shares[(shares > 0) & (shares < 1)][:, None]
    chances = torch.distributions.Binomial(n, shares, validate_args=False).log_prob(hits).exp()
    assert (chances * (low > shares)).sum(1).max() <= tail
    assert (chances * (high < shares)).sum(1).max() <= tail


def test_many_equal_groups():
    """The more groups, the lower the smallest mean; the upper end moves away from it, the lower one does not."""
    worsts = []
    for groups in (1, 10, 1000):
        means = GroupMeans(torch.full((groups,), 0.2), torch.full((groups,), 0.01), torch.full((groups,), 400))
        worsts.append(means.worst())
        assert worsts[-1].possible == tuple(range(groups))
    assert worsts[0].low == worsts[1].low == worsts[2].low
    assert worsts[0].high < worsts[1].high < worsts[2].high


def test_groups_that_cannot_be_the_worst():
    """Far from the others a group is known; its own one-sided end is the lower one."""
    values, errors = torch.tensor([0.5, 0.1, 0.6, 0.12]).double(), torch.full((4,), 0.01).double()
    means = GroupMeans(values, errors, torch.full((4,), 900))
    assert means.worst().possible == (1, 3)
    own, _ = ends_of(values[1:2], errors[:1], torch.tensor([900.0]).double(), (0, 1), 0.025)
    assert means.worst().low == own.item()
    assert means.gap().low > 0.4


def test_groups_without_users_are_left_out():
    full = GroupMeans(torch.tensor([0.26, 0.3]), torch.tensor([0.02, 0.02]), torch.tensor([50, 60]))
    values, errors = torch.tensor([NAN, 0.26, NAN, 0.3]), torch.tensor([NAN, 0.02, NAN, 0.02])
    with_empty = GroupMeans(values, errors, torch.tensor([0, 50, 0, 60]))
    assert with_empty.worst() == full.worst()._replace(group=1, possible=(1, 3), empty=2)
    assert with_empty.gap() == full.gap()._replace(highest=3, lowest=1, empty=2)
    assert with_empty.intervals()[0][[1, 3]].equal(full.intervals()[0])


def test_one_user_may_stand_anywhere():
    """The lower end is the bound, or none; the upper end, and what is known of the others, stay."""
    few = torch.tensor([0.26, 0.3]), torch.tensor([0.02, 0.02]), torch.tensor([50, 60])
    more = torch.tensor([0.26, 0.3, 1.0]), torch.tensor([0.02, 0.02, NAN]), torch.tensor([50, 60, 1])
    for bounds, end in (((0.0, 1.0), 0.0), ((-2.0, 2.0), -2.0), (None, -INF)):
        without, found = GroupMeans(*few, bounds).worst(), GroupMeans(*more, bounds).worst()
        assert found == without._replace(low=end, possible=(0, 1, 2), single=1)
        gap = GroupMeans(*more, bounds).gap()
        assert (gap.highest, gap.low, gap.single) == (2, 0, 1)
        assert gap.high > 0.7 if bounds else gap.high == INF
        low, high = GroupMeans(*more, bounds).intervals()
        assert (low[2], high[2]) == (bounds or (-INF, INF))


def test_nothing_to_go_by():
    """No group with a value has no worst, less than two have no gap; one user alone is known to be the worst."""
    none = GroupMeans(torch.tensor([NAN]), torch.tensor([NAN]), torch.tensor([0]))
    assert none.worst() == (None, pytest.approx(NAN, nan_ok=True), *[pytest.approx(NAN, nan_ok=True)] * 2, (), 1, 0)
    assert none.gap()[:2] == (None, None)
    assert all(map(math.isnan, none.gap()[2:5]))
    alone = GroupMeans(torch.tensor([0.5]), torch.tensor([NAN]), torch.tensor([1]))
    assert alone.worst() == (0, 0.5, 0.0, 1.0, (0,), 0, 1)
    assert alone.gap().highest is None
    nobody = GroupMeans(torch.tensor([]), torch.tensor([]), torch.tensor([]))
    assert nobody.worst().group is None
    assert nobody.intervals()[0].shape == (0,)


def test_rows_that_are_all_alike():
    """Two users with 0.5 each say little of a group, where rows have bounds."""
    means = GroupMeans(torch.tensor([0.5, 0.6]), torch.zeros(2), torch.tensor([2, 2000]))
    assert means.worst().low == 0
    assert 0.5 < means.worst().high < 0.65


def test_means_beyond_their_bounds():
    """Student's ends, as without bounds."""
    errors, sizes = torch.tensor([0.01, 0.01]), torch.tensor([50, 50])
    beyond = GroupMeans(torch.tensor([-0.2, 0.3]), errors, sizes)
    free = GroupMeans(torch.tensor([-0.2, 0.3]), errors, sizes, None)
    assert beyond.worst()[:4] == pytest.approx(free.worst()[:4])


def test_quantiles_are_few():
    """A thousand sizes ask for a few hundred quantiles at most, and get them from above within 0.1 %."""
    asked = []

    def counted(tail, df):
        asked.append(df)
        return quantile_above(tail, df)

    degrees = torch.cat([torch.tensor([1, 1.01, 2.5]), 1 + torch.rand(1000) * torch.logspace(0, 5, 1000)]).double()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "quantile_above", counted)
        found = module._quantiles(1e-5, degrees)
    assert len(asked) < 700
    exact = torch.tensor([quantile_above(1e-5, df) for df in degrees.tolist()], dtype=torch.float64)
    assert (found / exact - 1).min() > -1e-12
    assert (found / exact - 1).max() < 1e-3


def test_ends_are_found():
    """Newton's steps end where bisection does, also for many rows and far ends."""
    for hits, n, tail in ((1, 3, 1e-6), (5, 20, 0.025), (999, 1000, 1e-3), (7, 10**6, 0.025), (5 * 10**8, 10**9, 1e-5)):
        m, inverse, z = torch.tensor([hits / n, 1 / n, NormalDist().inv_cdf(1 - tail)], dtype=torch.float64)
        found = module._below(m, inverse, z).item()
        expected = plain_end(m.item(), math.sqrt(m.item() * (1 - m.item()) / (n - 1)), n, tail)
        assert found == pytest.approx(expected, rel=1e-9)


def test_pairs_in_pieces(monkeypatch):
    """However few pairs are held at once, the gap is the same."""
    values = torch.rand(40, generator=torch.Generator().manual_seed(5))
    means = GroupMeans(values, values / 20, torch.arange(40) * 50 + 9)
    whole = means.gap()
    monkeypatch.setattr(module, "_PAIRS", 1)
    assert means.gap() == whole


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"values": [0.1, 0.2]}, TypeError, r"values must be a tensor of numbers, one a group, got"),
        ({"values": torch.zeros(2, 2)}, TypeError, r"values must be a tensor of numbers, one a group, got"),
        ({"sizes": torch.ones(3)}, ValueError, "sizes must be of 2 groups, got 3"),
        ({"standard_errors": torch.tensor([0.1, -0.2])}, ValueError, "must not be negative, got -0.2"),
        ({"bounds": (1, 0)}, ValueError, r"bounds must be \(least, greatest\)"),
    ],
)
def test_refused(options, error, says):
    given = {"values": torch.ones(2), "standard_errors": torch.ones(2), "sizes": torch.ones(2), **options}
    with pytest.raises(error, match=says):
        GroupMeans(**given)


@pytest.mark.parametrize("what", ["worst", "gap", "intervals"])
def test_level_refused(what):
    means = GroupMeans(torch.ones(2), torch.ones(2), torch.ones(2))
    with pytest.raises(ValueError, match=r"level must be between 0 and 1, such as 0\.95, got 95"):
        getattr(means, what)(level=95)


@pytest.mark.slow
@pytest.mark.parametrize(
    "hit_rates", [[0.1] * 5, [0.1] * 50, [0.04] + [0.1] * 49], ids=["5 equal", "50 equal", "one 0.04"]
)
def test_coverage(hit_rates):
    """95 % intervals of the worst group and the gap hold in 95 % of 300 simulated samples, less 3 standard errors."""
    num_samples, num_users, generator = 300, 200, torch.Generator().manual_seed(0)
    true = torch.tensor(hit_rates, dtype=torch.float64)
    least, gap = true.min().item(), (true.max() - true.min()).item()
    held, bias = {"worst": 0, "possible": 0, "gap": 0, "naive": 0}, 0.0
    sizes = torch.full((num_samples, len(true)), float(num_users), dtype=torch.float64)
    for values in torch.binomial(sizes, true.expand_as(sizes), generator=generator) / num_users:
        errors = (values * (1 - values) / (num_users - 1)).sqrt()
        means = GroupMeans(values, errors, torch.full((len(true),), num_users))
        worst, found = means.worst(), means.gap()
        low, high = interval(worst.value, errors[worst.group].item(), num_users, (0.0, 1.0), 0.95)
        held["worst"] += worst.low <= least <= worst.high
        held["possible"] += int(true.argmin()) in worst.possible
        held["gap"] += found.low <= gap <= found.high
        held["naive"] += low <= least <= high
        bias += (worst.value - least) / num_samples
    enough = num_samples * (0.95 - 3 * (0.95 * 0.05 / num_samples) ** 0.5)
    assert min(held["worst"], held["possible"], held["gap"]) >= enough
    if hit_rates == [0.1] * 50:  # as docs/how-to/for-whom.md says
        assert held["naive"] < num_samples / 2
        assert bias == pytest.approx(-0.045, abs=0.003)
