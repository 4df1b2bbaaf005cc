"""The definitions of the metrics in plain Python, one user at a time, without torch and without the package.

A user is `scores` (a list, higher is better), `gains` ({item: gain}; > 0 relevant, < 0 unwanted) and `excluded` items.
"""

import functools
import itertools
import math
from dataclasses import dataclass, field, replace

MIRROR = {"optimistic": "pessimistic", "pessimistic": "optimistic", "realistic": "realistic"}


@dataclass
class User:
    hits: list  # (rank, gain) of relevant candidates, best place first
    unwanted: list  # (rank, gain) of candidates with a negative gain
    gains: list  # of all relevant items, candidates or not
    num_ranked: int
    num_recommended: int
    tied: bool
    unreachable: bool
    orders: list = field(default_factory=list)  # the user in each order of equal scores, of "expected"


def over_orders(formula):
    """Return the formula whose value for `ties="expected"` is the mean over all orders of equal scores."""

    @functools.wraps(formula)
    def expected(user, *args, **options):
        values = [formula(order, *args, **options) for order in user.orders or [user]]
        return math.fsum(values) / len(values)

    return expected


def rank(scores, gains, excluded=(), ties="realistic", padding_idx=None, overlap="miss", threshold=-math.inf):
    """Rank the items of one user by sorting all candidates."""
    gains = {item: gain for item, gain in gains.items() if item != padding_idx}
    relevant = {item for item, gain in gains.items() if gain > 0}
    gone = {item for item in excluded if item >= 0} | ({padding_idx} - {None})
    if overlap == "keep":
        gone -= relevant
    candidates = [i for i, score in enumerate(scores) if i not in gone and score > -math.inf]
    if ties == "expected":
        user = rank(scores, gains, excluded, "realistic", padding_idx, overlap, threshold)
        scores = [score if i in candidates else -math.inf for i, score in enumerate(scores)]
        orders = [
            rank(order, gains, excluded, "realistic", padding_idx, overlap, -math.inf)
            for order in all_orders(scores, [i for i in gains if gains[i]])
        ]
        orders = [replace(order, num_recommended=user.num_recommended) for order in orders]
        return replace(user, orders=orders)
    candidates.sort(key=lambda i: -scores[i])
    hits, unwanted, tied = [], [], False
    start = 0
    while start < len(candidates):
        group = [i for i in candidates[start:] if scores[i] == scores[candidates[start]]]
        for members, places, kind in (
            (sorted(gains[i] for i in group if gains.get(i, 0) > 0), hits, ties),
            (sorted(gains[i] for i in group if gains.get(i, 0) < 0), unwanted, MIRROR[ties]),
        ):
            n, m = len(group), len(members)
            if ties == "optimistic":
                members.reverse()
            for i, gain in enumerate(members, start=1):
                if kind == "optimistic":
                    place = start + i
                elif kind == "pessimistic":
                    place = start + n - m + i
                else:
                    place, gain = start + i * (n + 1) / (m + 1), math.fsum(members) / m
                places.append((place, gain))
        tied = tied or (len(group) > 1 and any(i in relevant for i in group))
        start += len(group)
    return User(
        hits=hits,
        unwanted=unwanted,
        gains=[gains[i] for i in relevant],
        num_ranked=len(candidates),
        num_recommended=sum(scores[i] >= threshold for i in candidates),
        tied=tied,
        unreachable=any(i not in candidates for i in relevant),
    )


def all_orders(scores, special):
    """Yield scores without ties, in each order of equal scores that puts the `special` items elsewhere."""
    levels = sorted({score for score in scores if score > -math.inf})
    groups = [[i for i, score in enumerate(scores) if score == level] for level in levels]
    ways = []
    for group in groups:
        chosen = [i for i in group if i in special]
        others = [i for i in group if i not in special]
        ways.append([])
        for places in itertools.permutations(range(len(group)), len(chosen)):
            free = [place for place in range(len(group)) if place not in places]
            ways[-1].append({**dict(zip(chosen, places, strict=True)), **dict(zip(others, free, strict=True))})
    for way in itertools.product(*ways):
        order = list(scores)
        for level, places in enumerate(way):
            for i, place in places.items():
                order[i] = level + place / (2 * len(scores))
        yield order


def found(user, k, threshold=False):
    limit = min(k, user.num_recommended) if threshold else k
    return sum(place <= limit for place, _ in user.hits)


@over_orders
def hit_rate(user, k, threshold=False):
    return float(found(user, k, threshold) > 0)


@over_orders
def precision(user, k, denominator="k", threshold=False, zero_division=0.0):
    recommended = user.num_recommended if threshold else user.num_ranked
    places = {"k": k, "min": min(k, len(user.gains)), "recommended": min(k, recommended)}[denominator]
    return found(user, k, threshold) / places if places else zero_division


@over_orders
def recall(user, k, normalize="relevant", weighted=False, threshold=False, zero_division=0.0):
    if not user.gains:
        return zero_division
    if weighted:
        return math.fsum(gain for place, gain in user.hits if place <= k) / math.fsum(user.gains)
    return found(user, k, threshold) / (min(k, len(user.gains)) if normalize == "min" else len(user.gains))


@over_orders
def f1(user, k):
    p, r = precision(user, k), recall(user, k)
    return 2 * p * r / (p + r) if p + r else 0.0


@over_orders
def r_precision(user):
    return found(user, len(user.gains)) / len(user.gains)


@over_orders
def average_precision(user, k=math.inf, normalize="relevant"):
    total = math.fsum(i / place for i, (place, _) in enumerate(user.hits, start=1) if place <= k)
    return total / (len(user.gains) if normalize == "relevant" else min(k, len(user.gains)))


@over_orders
def dcg(user, k=math.inf):
    return math.fsum(gain / math.log2(1 + place) for place, gain in user.hits + user.unwanted if place <= k)


@over_orders
def ndcg(user, k=math.inf):
    best = sorted(user.gains, reverse=True)
    ideal = math.fsum(gain / math.log2(1 + i) for i, gain in enumerate(best, start=1) if i <= k)
    return dcg(user, k) / ideal


@over_orders
def reciprocal_rank(user, k=math.inf):
    return 1 / user.hits[0][0] if user.hits and user.hits[0][0] <= k else 0.0


@over_orders
def auroc(user):
    """Count (relevant, other candidate) pairs; a relevant item that is no candidate loses its pairs."""
    others = user.num_ranked - len(user.hits)
    won = math.fsum(others - (place - i) for i, (place, _) in enumerate(user.hits, start=1))
    return won / (len(user.gains) * others) if others else math.nan


def mean(values, weights=None):
    """Return the weighted mean of the defined values and its standard error."""
    weights = [1.0] * len(values) if weights is None else weights
    kept = [(v, w) for v, w in zip(values, weights, strict=True) if not math.isnan(v) and w > 0]
    if not kept:
        return math.nan, math.nan
    total, n = math.fsum(w for _, w in kept), len(kept)
    mu = math.fsum(w * v for v, w in kept) / total
    if n < 2:
        return mu, math.nan
    return mu, math.sqrt(math.fsum((w * (v - mu)) ** 2 for v, w in kept) * n / (n - 1)) / total
