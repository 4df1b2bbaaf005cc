"""Metrics of lists and of the users whom lists serve, by definition: plain Python, no torch, no import of the package.

A list holds item ids, best first, each once; `k` is the cut-off. Undefined values are nan.
"""

import math
from collections import Counter
from itertools import combinations, product

NAN = math.nan


def mean(values):
    values = list(values)
    return math.fsum(values) / len(values) if values else NAN


def dot(a, b):
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def average_popularity(items, k, popularity):
    return mean(popularity[i] for i in items[:k])


def popularity_lift(items, k, popularity, history):
    usual = mean(popularity[i] for i in set(history))
    return mean(popularity[i] for i in items[:k]) / usual - 1 if usual else NAN


def novelty(items, k, popularity, num_users, normalize=False):
    if not num_users or (normalize and num_users == 1):
        return NAN
    value = mean(-math.log2(max(popularity[i], 1) / num_users) for i in items[:k])
    return value / math.log2(num_users) if normalize else value


def head_items(popularity, share):
    """Return the fewest items that hold this share of the popularity; of equally popular ones, those with lower ids."""
    head, held = set(), 0
    for i in sorted(range(len(popularity)), key=lambda i: (-popularity[i], i)):
        if held >= share * sum(popularity):
            break
        head.add(i)
        held += popularity[i]
    return head


def tail_share(items, k, popularity, head=0.8):
    return mean(i not in head_items(popularity, head) for i in items[:k])


def one_hot(codes):
    return [[float(code == each) for each in range(max(codes) + 1)] for code in codes]


def unit(vectors):
    lengths = [math.hypot(*vector) for vector in vectors]
    return [[x / n if n else 0.0 for x in vector] for vector, n in zip(vectors, lengths, strict=True)]


def intra_list_diversity(items, k, vectors):
    """Return 1 - the mean over pairs of the product of their vectors: categories' shares, or embeddings of length 1."""
    return 1 - mean(dot(vectors[i], vectors[j]) for i, j in combinations(items[:k], 2))


def category_share(items, k, shares):
    items = items[:k]
    return len({c for i in items for c, share in enumerate(shares[i]) if share}) / len(items) if items else NAN


def serendipity(items, k, popularity, relevant):
    """Return serendipity as in RecTools: popularity ranks are dense, and an item that nobody had has likelihood 0."""
    size, distinct = len(popularity), sorted({p for p in popularity if p}, reverse=True)

    def likely_for_all(item):
        return (size + 1 - (distinct.index(popularity[item]) + 1)) / size if popularity[item] else 0

    return mean(
        max((size + 1 - place) / size - likely_for_all(item), 0) * (item in relevant)
        for place, item in enumerate(items[:k], start=1)
    )


def calibration(items, k, shares, history, divergence="kl"):
    items, history = items[:k], set(history)
    if not items or not history:
        return NAN
    p = [mean(column) for column in zip(*(shares[i] for i in history), strict=True)]
    q = [mean(column) for column in zip(*(shares[i] for i in items), strict=True)]
    if divergence == "kl":
        return kl(p, [0.99 * b + 0.01 * a for a, b in zip(p, q, strict=True)])
    middle = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    return (kl(p, middle) + kl(q, middle)) / 2


def kl(p, q):
    return math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a)


def seen(items, k, history):
    return mean(i in history for i in items[:k])


def repeats(entries, k):
    """Return the share of repeated entries in a list as it was given, where an item may occur twice."""
    entries = entries[:k]
    return 1 - len(set(entries)) / len(entries) if entries else NAN


def invalid(entries, k, known):
    """Return the share of entries that are none of the known ones."""
    return mean(entry not in known for entry in entries[:k])


def missing(items, k):
    return 1 - len(items[:k]) / k


def counts(lists, k, num_items):
    found = Counter(i for items in lists for i in items[:k])
    return [found[i] for i in range(num_items)]


def exposure(lists, k, num_items):
    found = Counter()
    for items in lists:
        for place, i in enumerate(items[:k], start=1):
            found[i] += 1 / math.log2(1 + place)
    return [found[i] for i in range(num_items)]


def coverage(lists, k, num_items):
    found = counts(lists, k, num_items)
    return sum(map(bool, found)) / num_items if any(found) else NAN


def gini(values):
    """Return the mean difference of two items drawn with replacement, over twice the mean."""
    total = sum(values)
    return sum(abs(a - b) for a in values for b in values) / (2 * len(values) * total) if total else NAN


def entropy(lists, k, num_items):
    found = counts(lists, k, num_items)
    total = sum(found)
    return -math.fsum(c / total * math.log2(c / total) for c in found if c) if total else NAN


def attainable(lists, k, num_items):
    """Return coverage, Gini and entropy scaled from the least to the most even of all lists of these lengths.

    Every way to fill lists of these lengths with items is tried; NaN where all ways have one value.
    """
    tops = [items[:k] for items in lists]
    values = []
    for filled in [tops, *product(*(combinations(range(num_items), len(items)) for items in tops))]:
        number = counts(filled, k, num_items)
        values.append((coverage(filled, k, num_items), gini(number), entropy(filled, k, num_items)))
    ends = [(min(column), max(column)) for column in zip(*values, strict=True)]
    return [
        (value - low) / (high - low) if high - low > 1e-9 else NAN
        for value, (low, high) in zip(values[0], ends, strict=True)
    ]


def personalization(lists, k):
    """Return 1 - the items that two lists share, summed over all pairs, over the items that they could share."""
    tops = [set(items[:k]) for items in lists]
    could = sum(min(len(a), len(b)) for a, b in combinations(tops, 2))
    return 1 - sum(len(a & b) for a, b in combinations(tops, 2)) / could if could else NAN
