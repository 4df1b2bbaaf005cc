"""The fixed point: configurations of the library whose results are recorded in `values.json` and may not change.

A group is a function that returns the results of its cases, {case: {key: numbers}}; the numbers are those of
`adapter.results`, of one row or of one column. The library is called through `adapter` alone, so that names may move.
Inputs are small, seeded, and the same on every machine: uniform random numbers, permutations and whole numbers, whose
products are exact.
"""

import itertools
import math

import adapter as lib
import torch
from adapter import Beams, Candidates, CollectSessions, Hits, ItemShard, Lists, Negatives, Ranks, Scores, Sessions

ACCURACY = ["HR", "NDCG", "MRR", "Precision", "Recall", "MAP", "F1"]
WHOLE = ["AUROC", "RPrecision"]
OF_RANK = ["AMR", "AMRI", "AdjustedMRR", "MeanRank", "MedianRank"]
TIES = ("realistic", "optimistic", "pessimistic")

GROUPS = {}
"""The groups that run on one process, by name."""
NEEDS = {}
"""The libraries that a group needs, by the name of the group."""
PROCESS_GROUPS = {}
"""(function of rank and world size, number of processes) by the name of the group and the number of processes."""


def group(function=None, *, needs=()):
    """Register a group of cases."""

    def register(function):
        GROUPS[function.__name__] = function
        NEEDS[function.__name__] = needs
        return function

    return register if function is None else register(function)


def process_group(*world_sizes):
    """Register a group of cases that runs on several processes, which must have the same results."""

    def register(function):
        for world_size in world_sizes:
            PROCESS_GROUPS[f"{function.__name__}-{world_size}"] = function, world_size
        return function

    return register


# -------------------------------------------------------------------------------------------------------------- inputs


def random(seed):
    return torch.Generator().manual_seed(seed)


def scores_of(g, rows, items, tied=False, dtype=torch.float32):
    """Return scores without ties, or whole numbers with many."""
    if tied:
        return torch.randint(0, 12, (rows, items), generator=g).to(dtype)
    return distinct(g, rows, items).to(dtype)


def distinct(g, rows, items):
    """Return a permutation of 0 to items - 1 for each row."""
    return torch.stack([torch.randperm(items, generator=g) for _ in range(rows)])


def ids_of(g, rows, items, width, padding=0.3):
    """Return different item ids [rows, width], a share of them replaced by -1."""
    ids = distinct(g, rows, items)[:, :width]
    return ids.where(torch.rand(rows, width, generator=g) >= padding, -1)


def weights_of(g, rows):
    """Return weights 0, 0.25, ..., 1.75."""
    return torch.randint(0, 8, (rows,), generator=g) / 4


def jagged(ids):
    """Return padded ids as (values, offsets)."""
    listed = ids >= 0
    return ids[listed], torch.nn.functional.pad(listed.sum(1).cumsum(0), (1, 0))


def of_whole_rankings(**options):
    """Return metrics without a cut-off that also exist with one."""
    return [lib.metric(name, **options) for name in ("MRR", "MAP", "NDCG")]


def fed(measured, batches):
    """Return the results of a metric or collection after updates with (input, keyword arguments)."""
    for given, more in batches:
        lib.update(measured, given, **more)
    return lib.results(measured)


# ------------------------------------------------------------------------------------------------------------- accuracy


def of_scores(tied):
    """Return every combination of ties, number of relevant items, depth, and options or arguments."""
    g, found = random(1 + tied), {}
    for width, ties, whole in itertools.product((1, 3, 20), TIES, (False, True)):
        names = ACCURACY + (WHOLE if whole else [])
        batches = []
        for rows in (40, 24):
            target = ids_of(g, rows, 300, width)
            more = {
                "weights": weights_of(g, rows),
                "exclude": (ids_of(g, rows, 300, 20), torch.rand(300, generator=g) < 0.1),
                "gains": torch.randint(-2, 4, (rows, width), generator=g).float(),
            }
            batches.append((scores_of(g, rows, 300, tied), target, more))
        variants = {
            "": ({}, ()),
            "weights": ({}, ("weights",)),
            "exclude, miss": ({"overlap": "miss"}, ("exclude",)),
            "exclude, keep": ({"overlap": "keep"}, ("exclude",)),
            "gains": ({}, ("gains",)),
            "empty rows count 0": ({"empty_target_action": "neg"}, ()),
            "padding 0": ({"padding_idx": 0}, ()),
        }
        for name, (options, arguments) in variants.items():
            measured = lib.collection(names, k=[1, 5, 20], ties=ties, **options)
            for scores, target, more in batches:
                lib.update(measured, scores, target, **{key: more[key] for key in arguments})
            whole_or_not = "whole" if whole else "top"
            found[f"{width} relevant, {ties}, {whole_or_not}, {name}"] = lib.results(measured)
    return found


@group
def scores_without_ties():
    return of_scores(tied=False)


@group
def scores_with_ties():
    return of_scores(tied=True)


@group
def many_scores():
    """Many relevant items, and catalogues that are much longer than the lists that are read."""
    g, found = random(2), {}
    for rows, items, width in ((12, 300, 100), (12, 1200, 20), (4, 12_000, 3)):
        for tied, ties in itertools.product((False, True), TIES):
            scores = torch.randint(0, 300 if tied else 2**23, (rows, items), generator=g).float()
            target, history = ids_of(g, rows, items, width), ids_of(g, rows, items, 10)
            scores[torch.arange(rows)[:, None], target.clamp(min=0)] += 20 if tied else 2.0**20
            shape = f"{items} items, {width} relevant, {'tied' if tied else 'not tied'}, {ties}"
            for names in (ACCURACY, ACCURACY + WHOLE):
                name = f"{shape}, {'top' if names is ACCURACY else 'whole'}"
                found[name] = fed(lib.collection(names, k=[5, 50], ties=ties), [(Scores(scores, target), {})])
                for overlap in ("miss", "keep"):
                    measured = lib.collection(names, k=[5, 50], ties=ties, overlap=overlap)
                    given = Scores(scores, target, exclude=history)
                    found[f"{name}, exclude, {overlap}"] = fed(measured, [(given, {})])
    catalogue = lib.catalogue(items, popularity=torch.arange(items) % 50, num_users=50)
    measured = lib.collection(["HR", "Novelty", "Coverage", "Gini"], k=[5, 50], catalogue=catalogue)
    found["metrics of lists"] = fed(measured, [(Scores(scores, target), {})])
    return found


@group
def kinds_of_scores():
    """Dtypes of scores, items that are no candidates, and NaN where values are not checked."""
    g, found = random(3), {}
    scores, target = scores_of(g, 50, 60, tied=True), ids_of(g, 50, 60, 4)
    scores[torch.rand(50, 60, generator=g) < 0.2] = -torch.inf
    exclude = ids_of(g, 50, 60, 8)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        given = scores.to(dtype) * 0.1  # rounded to the dtype: other ties than those of whole numbers
        for ties in TIES:
            measured = lib.collection(ACCURACY + WHOLE, k=[1, 5], ties=ties, overlap="miss")
            found[f"{dtype}, {ties}"] = fed(measured, [(Scores(given, target, exclude=exclude), {})])
    unchecked = scores.where(torch.rand(50, 60, generator=g) > 0.1, torch.nan)
    measured = lib.collection(ACCURACY + WHOLE, k=[1, 5], validate_args=False)
    found["NaN, not checked"] = fed(measured, [(Scores(unchecked, target), {})])
    single = Scores(scores[:, :1], target.clamp(max=0)[:, 0])
    found["one candidate"] = fed(lib.collection(ACCURACY, k=2), [(single, {})])
    measured = lib.collection(ACCURACY + WHOLE, k=[100])
    found["k above the number of items"] = fed(measured, [(Scores(scores, target), {})])
    measured = lib.collection(ACCURACY, k=2)
    parts = [(Scores(scores[:rows], target[:rows]), {}) for rows in (0, 9)]
    found["no row, then rows"] = fed(measured, parts)
    for action in ("skip", "neg", "pos"):
        measured = lib.collection(ACCURACY + WHOLE, k=[1, 5], empty_target_action=action)
        empty = target.where(torch.arange(50)[:, None] % 3 > 0, -1)
        found[f"empty rows, {action}"] = fed(measured, [(Scores(scores, empty), {})])
    return found


@group
def kinds_of_targets():
    """One item per row, jagged and dense targets, and all kinds of excluded items."""
    g, found = random(4), {}
    rows, items = 40, 50
    scores, target = scores_of(g, rows, items, tied=True), ids_of(g, rows, items, 4)
    history, mask = ids_of(g, rows, items, 6), torch.rand(items, generator=g) < 0.1
    by_row = torch.rand(rows, items, generator=g) < 0.15
    gains = torch.randint(0, 4, (rows, 4), generator=g)
    dense = torch.zeros(rows, items, dtype=torch.bool)
    graded = torch.zeros(rows, items)
    row, slot = (target >= 0).nonzero(as_tuple=True)
    dense[row, target[row, slot]] = True
    graded[row, target[row, slot]] = gains[row, slot].float()
    listed = target >= 0
    targets = {
        "[B]": Scores(scores, target[:, 0]),
        "int32": Scores(scores, target.int()),
        "jagged": Scores(scores, jagged(target)),
        "jagged with gains": Scores(scores, jagged(target), gains=(gains[listed], jagged(target)[1])),
        "with gains": Scores(scores, target, gains=gains),
        "dense": Scores(scores, dense),
        "dense and graded": Scores(scores, graded),
        "dense and graded, float64": Scores(scores.double(), graded.double() / 3),
    }
    excluded = {
        "ids": history,
        "one id each": history[:, 0],
        "repeated ids": torch.cat([history, history[:, :3]], 1),
        "jagged ids": jagged(history),
        "bool [I]": mask,
        "bool [B, I]": by_row,
        "ids and bool [I]": (history, mask),
        "all": (history, mask, by_row),
    }
    for name, given in targets.items():
        found[f"target {name}"] = fed(lib.collection(ACCURACY + WHOLE, k=[1, 5]), [(given, {})])
        graded_gains = lib.metric("NDCG", 5, gain="exponential")
        found[f"target {name}, exponential gains"] = fed(graded_gains, [(given, {})])
    for overlap, (name, exclude) in itertools.product(("miss", "keep"), excluded.items()):
        for kind, given in (("ids", target), ("dense", dense)):
            measured = lib.collection(ACCURACY + WHOLE, k=[1, 5], overlap=overlap)
            found[f"exclude {name}, {overlap}, {kind}"] = fed(measured, [(Scores(scores, given, exclude=exclude), {})])
    measured = lib.collection(ACCURACY + WHOLE, k=[1, 5], overlap="keep", padding_idx=3)
    found["padding and exclude"] = fed(measured, [(Scores(scores, target, exclude=(history, mask)), {})])
    sequences, ends = torch.randint(0, items, (rows,), generator=g), torch.tensor([0, 7, 7, 30, rows])
    measured = lib.collection(ACCURACY, k=[1, 5], overlap="miss")
    given = Scores(scores, sequences, exclude=lib.past(sequences, ends))
    found["items before each position"] = fed(measured, [(given, {})])
    for ties in TIES:
        ranks = lib.topk_ranks(scores, target, 7, ties=ties, exclude=(history, mask), overlap="miss")
        found[f"ranks, {ties}"] = {f"row {row}": numbers for row, numbers in enumerate(ranks.tolist())}
        found[f"update with ranks, {ties}"] = fed(lib.collection(ACCURACY, k=[1, 7]), [(ranks, {})])
    return found


@group
def ranks():
    """Ranks made elsewhere, to a depth that is known or not, and of whole rankings."""
    g, found = random(5), {}
    ranks = distinct(g, 60, 80)[:, :9] + 1
    ranks = ranks.where(torch.rand(60, 9, generator=g) > 0.3, 0)
    one = torch.randint(1, 40, (60,), generator=g)
    halves = torch.randint(2, 40, (60, 1), generator=g) / 2
    weights = weights_of(g, 60)
    cases = {
        "depth not known": Ranks(ranks),
        "depth 30": Ranks(ranks, depth=30),
        "[B]": Ranks(one),
        "[B, 1], depth 20": Ranks(one[:, None], depth=20),
        "from 0, -1 is a miss": Ranks(one.where(one < 30, 0) - 1, depth=40, zero_based=True, miss=-1),
        "from 0, negative is padding": Ranks(one.where(one < 30, 0) - 1, depth=40, zero_based=True, padding=-1),
        "999 is a miss": Ranks(one.where(one < 30, 999), depth=40, miss=999),
        "0 is padding": Ranks(one.where(one < 30, 0), depth=40, padding=0),
        "averages": Ranks(halves, depth=20),
        "misses": Ranks(halves.where(halves < 15, torch.inf), depth=20),
    }
    for name, given in cases.items():
        found[name] = fed(lib.collection(ACCURACY, k=[1, 5, 20]), [(given, {}), (given, {"weights": weights})])
    everything = [*ACCURACY, *WHOLE, *of_whole_rankings()]
    several = Ranks(ranks, num_ranked=80, whole=True)
    found["whole"] = fed(lib.collection(everything, k=[1, 5]), [(several, {})])
    one = Ranks(halves, num_ranked=80 + torch.arange(60), whole=True)
    found["whole, of one item"] = fed(lib.collection([*everything, *OF_RANK, "AdjustedHR"], k=[1, 5]), [(one, {})])
    # recorded when metrics kept the rows of every collection that they were in
    found["whole, of one item"] |= fed(lib.collection(of_whole_rankings()), [(several, {}), (one, {})])
    found["whole, infinite"] = fed(
        lib.collection(["MRR", "HR", "MeanRank"], k=3),
        [(Ranks(halves.where(halves < 19, torch.inf), num_ranked=80, whole=True), {})],
    )
    return found


@group
def lists_and_hits():
    """Lists of recommended items, short, jagged, with repeats, gains and excluded items; flags of hits."""
    g, found = random(6), {}
    lists, target = ids_of(g, 50, 60, 12, padding=0), ids_of(g, 50, 60, 5)
    short = lists.where(torch.arange(12) < torch.randint(0, 13, (50, 1), generator=g), -1)
    repeated = torch.randint(0, 25, (50, 12), generator=g)
    history, mask = ids_of(g, 50, 60, 10), torch.rand(60, generator=g) < 0.1
    gains = torch.randint(-1, 4, (50, 5), generator=g)
    cases = {
        "full": Lists(lists, target),
        "short": Lists(short, target),
        "jagged": Lists(jagged(short), jagged(target)),
        "one target": Lists(short, target[:, 0]),
        "gains": Lists(lists, target, gains=gains),
        "short with gains": Lists(short, target, gains=gains),
        "repeats, first": Lists(repeated, target, duplicates="first", complete=True),
        "repeats, keep_place": Lists(repeated, target, duplicates="keep_place"),
        "repeats, keep_place, with gains": Lists(repeated, target, gains=gains, duplicates="keep_place"),
    }
    for name, given in cases.items():
        weights = weights_of(g, 50)
        measured = lib.collection(ACCURACY, k=[1, 3, 10])
        found[name] = fed(measured, [(given, {}), (given, {"weights": weights})])
    complete = {
        "complete": Lists(short, target, complete=True),
        "complete, exclude": Lists(short, target, exclude=(history, mask), complete=True),
        "complete, exclude, with gains": Lists(short, target, gains=gains, exclude=history, complete=True),
        "complete, repeats, exclude": Lists(repeated, target, exclude=history, complete=True, duplicates="first"),
    }
    for overlap, (name, given) in itertools.product(("miss", "keep"), complete.items()):
        names = [*ACCURACY, "RPrecision", *of_whole_rankings(overlap=overlap)]
        measured = lib.collection(names, k=[1, 5, 20], overlap=overlap)
        found[f"{name}, {overlap}"] = fed(measured, [(given, {})])
    measured = lib.collection(ACCURACY, k=[1, 5], padding_idx=0)
    found["padding 0"] = fed(measured, [(Lists(lists, target), {})])
    measured = lib.collection(ACCURACY, k=[1, 2], overlap="miss")
    given = Lists(lists, target, exclude=history[:, :3])
    found["exclude from lists that are long enough"] = fed(measured, [(given, {})])
    flags = torch.rand(50, 8, generator=g) < 0.2
    numbers = flags.sum(1) + torch.randint(0, 3, (50,), generator=g)
    hits = {
        "hits": Hits(flags, num_relevant=8),
        "hits as numbers": Hits(flags.long(), num_relevant=numbers),
        "hits, one relevant item": Hits(flags & (flags.cumsum(1) < 2), num_relevant=1),
    }
    for name, given in hits.items():
        found[name] = fed(lib.collection(ACCURACY, k=[1, 5, 8]), [(given, {}), (given, {"weights": weights_of(g, 50)})])
    measured = lib.collection([*ACCURACY, "RPrecision", *of_whole_rankings()], k=[1, 5, 20])
    found["hits, complete"] = fed(measured, [(Hits(flags, num_relevant=numbers, complete=True), {})])
    return found


def with_options():
    """Return metrics with options by key."""
    return {
        "Precision-min": lib.metric("Precision", 5, normalize="min"),
        "Precision-recommended": lib.metric("Precision", 5, denominator="recommended"),
        "Recall-min": lib.metric("Recall", 5, normalize="min"),
        "Recall-weighted": lib.metric("Recall", 5, weighted=True),
        "F1-min": lib.metric("F1", 5, normalize="min"),
        "F1-recommended": lib.metric("F1", 5, denominator="recommended"),
        "MAP-min": lib.metric("MAP", 5, normalize="min"),
        "MAP-min-whole": lib.metric("MAP", normalize="min"),
        "NDCG-exponential": lib.metric("NDCG", 5, gain="exponential"),
        "NDCG-exponential-whole": lib.metric("NDCG", gain="exponential"),
        "MRR-whole": lib.metric("MRR"),
        "MAP-whole": lib.metric("MAP"),
        "NDCG-whole": lib.metric("NDCG"),
        "AUROC": lib.metric("AUROC"),
        "AUROC-relevant": lib.metric("AUROC", weight="relevant"),
        "AUROC-candidates": lib.metric("AUROC", weight="candidates"),
        "RPrecision": lib.metric("RPrecision"),
    }


def with_threshold(threshold, zero_division):
    """Return metrics that count only items which reach a score, by key."""
    of_recommended = {"denominator": "recommended", "score_threshold": threshold}
    return {
        "HR": lib.metric("HR", 4, score_threshold=threshold),
        "Precision": lib.metric("Precision", 4, score_threshold=threshold),
        "Precision-recommended": lib.metric("Precision", 4, zero_division=zero_division, **of_recommended),
        "Recall": lib.metric("Recall", 4, score_threshold=threshold),
        "Recall-weighted": lib.metric("Recall", 4, score_threshold=threshold, weighted=True),
        "F1": lib.metric("F1", 4, score_threshold=threshold),
        "F1-recommended": lib.metric("F1", 4, **of_recommended),
    }


@group
def options_of_metrics():
    """Options of formulas, each metric under a key of its own."""
    g, found = random(7), {}
    scores, target = scores_of(g, 60, 30, tied=True), ids_of(g, 60, 30, 6)
    gains = torch.randint(0, 4, (60, 6), generator=g)
    few = scores.masked_fill(torch.rand(60, 30, generator=g) < 0.7, -torch.inf)
    batches = {
        "plain": (Scores(scores, target), {}),
        "gains": (Scores(scores, target, gains=gains), {}),
        "weights": (Scores(scores, target), {"weights": weights_of(g, 60)}),
        "few candidates": (Scores(few, target), {}),
    }
    for name, batch in batches.items():
        found[f"together, {name}"] = fed(lib.collection(with_options()), [batch, batch])
    for key, measured in with_options().items():
        found[f"alone, {key}"] = fed(measured, [batches["gains"], batches["weights"]])
    choices = itertools.product((3.5, 10.5, 12.0), (0.0, 1.0, math.nan), ("plain", "gains"))
    for threshold, zero_division, name in choices:
        measured = lib.collection(with_threshold(threshold, zero_division))
        found[f"threshold {threshold}, 0 / 0 = {zero_division}, {name}"] = fed(measured, [batches[name]])
    short = ids_of(g, 60, 30, 8, padding=0).where(torch.arange(8) < torch.randint(0, 9, (60, 1), generator=g), -1)
    listed = {
        "Precision-recommended": lib.metric("Precision", 5, denominator="recommended", zero_division=1.0),
        "F1-recommended": lib.metric("F1", 5, denominator="recommended"),
    }
    found["length of lists"] = fed(lib.collection(listed), [(Lists(short, target), {})])
    return found


# --------------------------------------------------------------------------- sessions, negatives, candidates, generated


def entries(g, sessions, tied=False, graded=True, dtype=torch.float32):
    """Return scores, labels and session ids of entries in random order."""
    lengths = torch.randint(1, 12, (sessions,), generator=g)
    indexes = (torch.arange(sessions) * 7919 - 5000).repeat_interleave(lengths)
    number = len(indexes)
    scores = torch.randint(0, 5 if tied else 2**20, (number,), generator=g).to(dtype)
    labels = torch.randint(1, 4, (number,), generator=g) * (torch.rand(number, generator=g) < 0.3)
    order = torch.randperm(number, generator=g)
    labels = labels if graded else labels > 0
    return scores[order], labels[order], indexes[order]


def of_sessions(by_group=(), keep_rows=False, **options):
    """Return a collection for sessions."""
    names = [*ACCURACY, *WHOLE, lib.metric("AUROC", weight="candidates", **options)]
    return lib.collection(names, k=[1, 3], by_group=by_group, keep_rows=keep_rows, **options)


@group
def sessions():
    """Whole sessions by ids and by lengths, and sessions that go on in later batches."""
    g, found = random(8), {}
    for tied, graded in itertools.product((False, True), (False, True)):
        scores, labels, indexes = entries(g, 50, tied, graded)
        name = f"{'tied' if tied else 'not tied'}, {'graded' if graded else 'bool'}"
        by_session = indexes.argsort(stable=True)
        _, number, lengths = torch.unique(indexes, return_inverse=True, return_counts=True)
        groups, weights = number % 3 - 1, (number * 5 % 8) / 4
        own_groups, own_weights = torch.arange(len(lengths)) % 3 - 1, (torch.arange(len(lengths)) * 5 % 8) / 4
        by_index = Sessions(scores, labels, indexes)
        by_length = Sessions(scores[by_session], labels[by_session], lengths=lengths)
        for ties in TIES if tied else TIES[:1]:
            found[f"{name}, {ties}, whole"] = fed(of_sessions(ties=ties), [(by_index, {})])
            found[f"{name}, {ties}, lengths"] = fed(of_sessions(ties=ties), [(by_length, {})])
            ranked = [(lib.ranking(by_index, ties=ties), {})]
            found[f"{name}, {ties}, ranked outside"] = fed(of_sessions(ties=ties), ranked)
            collected = CollectSessions(of_sessions(ties=ties))
            for part in torch.arange(len(scores)).split(70):
                lib.update(collected, scores[part], labels[part], indexes=indexes[part])
            found[f"{name}, {ties}, in batches"] = lib.results(collected)
        given = {"groups": groups, "weights": weights}
        named = {"by_group": ("a", "b")}
        found[f"{name}, whole, groups and weights"] = fed(of_sessions(**named), [(by_index, given)])
        given = {"groups": own_groups, "weights": own_weights}
        found[f"{name}, lengths, groups and weights"] = fed(of_sessions(**named), [(by_length, given)])
        collected = CollectSessions(of_sessions(keep_rows=True, **named))
        for part in torch.arange(len(scores)).split(90):
            more = {"weights": weights[part], "groups": groups[part]}
            lib.update(collected, scores[part], labels[part], indexes=indexes[part], **more)
        found[f"{name}, in batches, groups and weights"] = lib.results(collected)
        found[f"{name}, in batches, rows"] = lib.rows(collected)
    scores, labels, indexes = entries(g, 60, tied=True, dtype=torch.float64)
    scores = (scores / 10).masked_fill(torch.rand(len(scores), generator=g) < 0.2, -torch.inf)
    for action in ("skip", "neg", "pos"):
        measured = of_sessions(empty_target_action=action)
        found[f"float64, no candidates, {action}"] = fed(measured, [(Sessions(scores, labels, indexes), {})])
    halves = scores.bfloat16()
    found["bfloat16"] = fed(of_sessions(), [(Sessions(halves, labels.float(), indexes), {})])
    kept = of_sessions(keep_rows=True)
    lib.update(kept, Sessions(scores, labels, indexes))
    found["whole, rows"] = lib.rows(kept)
    return found


@group
def negatives():
    """One relevant item per row among negatives of its own, or among one pool."""
    g, found = random(9), {}
    positive = torch.randint(0, 40, (60,), generator=g).float()
    negative = torch.randint(0, 40, (60, 25), generator=g).float()
    negative[torch.rand(60, 25, generator=g) < 0.1] = -torch.inf
    lengths = torch.randint(5, 26, (60,), generator=g)
    cases = {
        "of each row": Negatives(positive, negative),
        "of each row, [B, 1]": Negatives(positive[:, None], negative),
        "of each row, with lengths": Negatives(
            positive, negative.masked_fill(torch.arange(negative.shape[1]) >= lengths[:, None], -torch.inf)
        ),
        "pool": Negatives(positive, negative[0]),
        "float16": Negatives((positive / 3).half(), (negative / 3).half()),
        "float64": Negatives((positive / 3).double(), (negative / 3).double()),
        "no candidate": Negatives(positive.where(positive > 5, -torch.inf), negative),
    }
    for ties, (name, given) in itertools.product(TIES, cases.items()):
        names = [*ACCURACY, *WHOLE, *OF_RANK, "AdjustedHR"]
        measured = lib.collection(names, k=[1, 5], ties=ties)
        found[f"{name}, {ties}"] = fed(measured, [(given, {}), (given, {"weights": weights_of(g, 60)})])
    return found


@group
def candidates():
    """Scores of some items each: the same for all rows or each row's own, repeated, padded, and without targets."""
    g, found = random(10), {}
    rows, items, width = 40, 60, 20
    scores = scores_of(g, rows, width, tied=True)
    shared = torch.randperm(items, generator=g)[:width]
    own = ids_of(g, rows, items, width, padding=0)
    padded = ids_of(g, rows, items, width, padding=0.2)
    repeated = torch.randint(0, 30, (rows, width), generator=g)
    target, history = ids_of(g, rows, items, 4), ids_of(g, rows, items, 8)
    inside = own[:, [3, 9]]
    gains = torch.randint(0, 4, (rows, 4), generator=g)
    plays = torch.randint(0, 30, (items,), generator=g)
    catalogue = lib.catalogue(items, popularity=plays, num_users=40, categories=torch.arange(items) % 5)
    for ties in TIES:
        cases = {
            "[C]": Candidates(scores, target, shared),
            "[B, C]": Candidates(scores, target, own),
            "padding": Candidates(scores, target, padded),
            "repeated": Candidates(scores, target, repeated),
            "gains": Candidates(scores, target, own, gains=gains),
            "exclude": Candidates(scores, target, own, exclude=history),
            "all present": Candidates(scores, inside, own, missing="error"),
            "one target": Candidates(scores, inside[:, 0], own, missing="error"),
        }
        for name, given in cases.items():
            measured = lib.collection([*ACCURACY, *WHOLE], k=[1, 5], ties=ties, overlap="miss")
            found[f"{name}, {ties}"] = fed(measured, [(given, {}), (given, {"weights": weights_of(g, rows)})])
    measured = lib.collection([*ACCURACY, *WHOLE], k=[1, 5], overlap="keep", padding_idx=3)
    found["exclude, keep, padding 3"] = fed(measured, [(Candidates(scores, target, own, exclude=history), {})])
    names = ["HR", "Novelty", "Seen", "Coverage", "Gini", "IntraListDiversity", "Serendipity", "Missing", "Repeats"]
    for name, numbers in {"own": own, "shared": shared, "padded": padded, "repeated": repeated}.items():
        measured = lib.collection(names, k=[1, 5], catalogue=catalogue)
        found[f"lists of {name}"] = fed(measured, [(Candidates(scores, target, numbers, history=history), {})])
    return found


@group
def generated_codes():
    """Beams of codes: shared codes, repeated and unknown codes, prefixes, excluded items."""
    g, found = random(11), {}
    codes = torch.randint(0, 3, (60, 3), generator=g)
    beams = codes[torch.randint(0, 60, (50, 10), generator=g)]
    beams[torch.rand(50, 10, generator=g) < 0.15] = 3  # codes of no item
    ended = beams.where((torch.arange(10) < torch.randint(4, 11, (50, 1), generator=g))[..., None], -1)
    target, history = ids_of(g, 50, 60, 3), ids_of(g, 50, 60, 6)
    choices = itertools.product(("tie", "first", "code"), ("first", "keep_place"), ("keep", "drop"))
    for shared, duplicates, invalid in choices:
        given = Beams(codes, ended, target, shared=shared, duplicates=duplicates, invalid=invalid)
        found[f"{shared}, {duplicates}, {invalid}"] = fed(lib.collection(ACCURACY, k=[1, 4]), [(given, {})])
    for ties in TIES:
        given = Beams(codes, beams, target, complete=True)
        measured = lib.collection([*ACCURACY, *of_whole_rankings(ties=ties)], k=[1, 4], ties=ties)
        found[f"complete, {ties}"] = fed(measured, [(given, {}), (given, {"weights": weights_of(g, 50)})])
    for levels, duplicates in itertools.product((1, 2), ("first", "keep_place")):
        given = Beams(codes, beams, target, prefix=levels, duplicates=duplicates, complete=True)
        found[f"prefix {levels}, {duplicates}"] = fed(lib.collection(ACCURACY, k=[1, 4]), [(given, {})])
    for shared, overlap in itertools.product(("tie", "first", "code"), ("miss", "keep")):
        given = Beams(codes, beams, target, exclude=history, shared=shared, complete=True)
        measured = lib.collection(ACCURACY, k=[1, 4], overlap=overlap)
        found[f"exclude, {shared}, {overlap}"] = fed(measured, [(given, {})])
    one = Beams(codes, beams, target_codes=codes[torch.randint(0, 60, (50,), generator=g)], complete=True)
    found["code of the target"] = fed(lib.collection(ACCURACY, k=[1, 4]), [(one, {})])
    gains = torch.randint(1, 4, (50, 3), generator=g)
    given = Beams(codes, beams, target, gains=gains, complete=True)
    found["gains"] = fed(lib.collection(ACCURACY, k=[1, 4]), [(given, {})])
    return found


# ---------------------------------------------------------------------------------------------- metrics beyond accuracy

POPULARITY = ["AveragePopularity", "Novelty", "TailShare", "PopularityLift", "Serendipity"]
OF_CATEGORIES = ["CategoryShare", "Calibration", "IntraListDiversity"]
OF_HISTORY = ["Seen"]
OF_LENGTHS = ["Repeats", "Missing"]
OF_ALL_LISTS = ["Coverage", "Gini", "Entropy", "Personalization", "ExposureGini"]
OF_ITEM_GROUPS = ["StatisticalParity", "EqualOpportunity"]
BEYOND = [*POPULARITY, *OF_CATEGORIES, *OF_HISTORY, *OF_LENGTHS, *OF_ALL_LISTS, *OF_ITEM_GROUPS]
READ_HISTORY = ["Calibration", "PopularityLift", "Seen", "StatisticalParity"]


def catalogues(g, items):
    """Return catalogues with a category per item, with shares of categories, and with embeddings."""
    data = {"popularity": torch.randint(0, 25, (items,), generator=g), "num_users": 30}
    shares = torch.nn.functional.one_hot(torch.arange(items) % 4) + 0.5 * (torch.rand(items, 4, generator=g) < 0.2)
    vectors = torch.randint(-2, 3, (items, 5), generator=g).float()
    return {
        "codes": lib.catalogue(items, categories=torch.randint(0, 6, (items,), generator=g), **data),
        "shares": lib.catalogue(items, categories=shares.double() / shares.sum(1, keepdim=True), **data),
        "vectors": lib.catalogue(items, embeddings=vectors, **data),
    }


@group
def beyond_accuracy():
    """Metrics of lists, of scores and of lists passed in, with history and categories, beside metrics of accuracy."""
    g, found = random(12), {}
    rows, items = 50, 40
    made = catalogues(g, items)
    scores, target = scores_of(g, rows, items, tied=True), ids_of(g, rows, items, 3)
    scores[:5, 3:] = -torch.inf  # short lists
    history, weights = ids_of(g, rows, items, 7), weights_of(g, rows)
    lists = ids_of(g, rows, items, 10, padding=0)
    short = lists.where(torch.arange(10) < torch.randint(0, 11, (rows, 1), generator=g), -1)
    repeated = torch.randint(0, items, (rows, 10), generator=g)
    inputs = {
        "scores": Scores(scores, target, history=history),
        "scores without history items": Scores(scores, target, exclude=history, history=history),
        "scores, jagged history": Scores(scores, target, history=jagged(history)),
        "lists": Lists(lists, target, history=history),
        "short lists": Lists(short, target, history=history, complete=True),
        "repeats, first": Lists(repeated, target, history=history, complete=True, duplicates="first"),
        "repeats, keep_place": Lists(repeated, target, history=history, duplicates="keep_place"),
    }
    for kind, (name, given) in itertools.product(made, inputs.items()):
        names = [name for name in BEYOND if kind != "vectors" or name not in ("CategoryShare", "Calibration")]
        for more in ({}, {"weights": weights}):
            measured = lib.collection(["HR", "NDCG", *names], k=[1, 5], catalogue=made[kind], overlap="miss")
            found[f"{kind}, {name}{', weights' if more else ''}"] = fed(measured, [(given, more), (given, more)])
    for padding in (None, 3):
        measured = lib.collection(["HR", *BEYOND], k=[2, 6], catalogue=made["codes"], padding_idx=padding)
        found[f"padding {padding}"] = fed(measured, [(Scores(scores, target, history=history), {})])
    measured = lib.collection(["HR", *BEYOND], k=[2, 6], catalogue=made["codes"], overlap="keep")
    found["exclude, keep"] = fed(measured, [(Scores(scores, target, exclude=history, history=history), {})])
    alone = ["Novelty", "Coverage", "AveragePopularity", "Missing"]
    found["without target"] = fed(lib.collection(alone, k=3, catalogue=made["codes"]), [(Scores(scores), {})])
    codes = {"catalogue": made["codes"]}
    options = {
        "Novelty-normalize": lib.metric("Novelty", 5, normalize=True, **codes),
        "TailShare-head": lib.metric("TailShare", 5, head=0.3, **codes),
        "Calibration-js": lib.metric("Calibration", 5, divergence="js", **codes),
        "StatisticalParity-categories": lib.metric("StatisticalParity", 5, of="categories", **codes),
        "EqualOpportunity-categories": lib.metric("EqualOpportunity", 5, of="categories", **codes),
        "StatisticalParity-head": lib.metric("StatisticalParity", 5, head=0.3, **codes),
    }
    found["options"] = fed(lib.collection(options, **codes), [(Scores(scores, target, history=history), {})])
    for name in BEYOND:
        measured = lib.metric(name, 4, catalogue=made["codes"])
        given = Scores(scores, target, history=history if name in READ_HISTORY else None)
        found[f"alone, {name}"] = fed(measured, [(given, {})])
    return found


@group
def metrics_of_rank():
    """Metrics of the rank of one relevant item, over batches of scores with and without ties."""
    g, found = random(13), {}
    names = [*OF_RANK, "AdjustedHR", "HR", "MRR"]
    for tied, ties in itertools.product((False, True), TIES):
        batches = []
        for rows in (30, 21):
            scores, target = scores_of(g, rows, 25, tied), torch.randint(-1, 25, (rows,), generator=g)
            scores[torch.rand(rows, 25, generator=g) < 0.1] = -torch.inf
            scores[torch.arange(rows), target.clamp(min=0)] = torch.randint(0, 12, (rows,), generator=g).float()
            batches.append((Scores(scores, target), {"weights": weights_of(g, rows)}))
        name = f"{'tied' if tied else 'not tied'}, {ties}"
        found[name] = fed(lib.collection(names, k=[1, 5], ties=ties), [(given, {}) for given, _ in batches])
        found[f"{name}, weights"] = fed(lib.collection(names, k=[1, 5], ties=ties), batches)
    scores, target = scores_of(g, 40, 9, tied=True), torch.randint(0, 9, (40,), generator=g)
    few = scores.masked_fill(torch.rand(40, 9, generator=g) < 0.6, -torch.inf)
    without_median = [name for name in names if name != "MedianRank"]
    measured = lib.collection(without_median, k=[1, 3])
    found["targets that are no candidates"] = fed(measured, [(Scores(few, target), {})])
    for name in ("MeanRank", "MedianRank", "AMR", "AMRI", "AdjustedMRR"):
        found[f"alone, {name}"] = fed(lib.metric(name), [(Scores(scores, target), {})])
    grouped = lib.collection(names, k=2, by_group=("a", "b"))
    found["groups"] = fed(grouped, [(Scores(scores, target), {"groups": torch.arange(40) % 3 - 1})])
    return found


# ------------------------------------------------------------------------------------- groups, rows, windows, and calls


def batches_of(g, number, rows, items=60, width=3, tied=True):
    """Return batches of scores with row weights and groups."""
    made = []
    for _ in range(number):
        scores, target = scores_of(g, rows, items, tied), ids_of(g, rows, items, width)
        more = {"weights": weights_of(g, rows), "groups": torch.randint(-1, 2, (rows,), generator=g)}
        made.append((Scores(scores, target), more))
    return made


def only(batches, *names):
    """Return batches with some of their keyword arguments."""
    return [(given, {name: more[name] for name in names}) for given, more in batches]


@group
def groups():
    """Values of groups of rows, with weights, whole rankings, metrics of lists, and a group without rows."""
    g, found = random(14), {}
    for tied, width in itertools.product((False, True), (1, 4)):
        batches = batches_of(g, 4, 25, width=width, tied=tied)
        name = f"{'tied' if tied else 'not tied'}, {width} relevant"
        measured = lib.collection([*ACCURACY, *WHOLE], k=[1, 5], by_group=("cold", "warm"))
        found[name] = fed(measured, only(batches, "groups"))
        measured = lib.collection([*ACCURACY, *WHOLE], k=[1, 5], by_group=("cold", "warm", "none"))
        found[f"{name}, weights"] = fed(measured, only(batches, "groups", "weights"))
    made = catalogues(g, 60)["codes"]
    history = ids_of(g, 25, 60, 5)
    listed = [(Scores(given.scores, given.target, history=history), more) for given, more in batches]
    measured = lib.collection(["HR", *BEYOND], k=[1, 5], by_group=("cold", "warm"), catalogue=made)
    found["metrics of lists"] = fed(measured, listed)
    named = lib.collection(with_options(), by_group=("cold", "warm"))
    found["options of metrics"] = fed(named, batches)
    ranked = [(lib.ranking(given), more) for given, more in batches]
    found["rankings"] = fed(lib.collection(ACCURACY, k=3, by_group=("cold", "warm")), ranked)
    return found


@group
def kept_rows():
    """Values, ids, weights and clusters of the rows that a collection keeps."""
    g, found = random(15), {}

    def kept(name, batches, **options):
        measured = lib.collection(**options, keep_rows=True)
        found[f"{name}, results"] = fed(measured, batches)
        found[f"{name}, rows"] = lib.rows(measured)

    batches = batches_of(g, 3, 12)
    numbers = [torch.randperm(12, generator=g) + 12 * place for place in range(3)]
    plain = {"metrics": [*ACCURACY, "AUROC"], "k": [1, 5]}
    kept("numbered as they come", only(batches), **plain)
    with_ids = [(given, {"row_ids": ids}) for (given, _), ids in zip(batches, numbers, strict=True)]
    kept("ids", with_ids, **plain)
    with_ids = [
        (given, {"row_ids": ids, "clusters": ids // 5, "weights": more["weights"]})
        for (given, more), ids in zip(batches, numbers, strict=True)
    ]
    kept("ids, clusters and weights", with_ids, **plain)
    kept("row weights of metrics", with_ids, metrics=with_options())
    with_ids = [(given, more | {"row_ids": ids}) for (given, more), ids in zip(batches, numbers, strict=True)]
    kept("groups", with_ids, **plain, by_group=("a", "b"))
    kept("empty rows count 0", only(batches), metrics=["HR", "NDCG"], k=5, empty_target_action="neg")
    history = ids_of(g, 12, 60, 5)
    listed = [(Scores(given.scores, given.target, history=history), {}) for given, _ in batches]
    names = ["HR", *POPULARITY, *OF_CATEGORIES, *OF_HISTORY, *OF_LENGTHS]
    kept("metrics of lists", listed, metrics=names, k=4, catalogue=catalogues(g, 60)["codes"])
    return found


def recent_rows_by_group(batches, names, **options):
    """Return the results of recent rows, of all and of groups "a" and "b".

    Recorded when each group had recent rows, too: those of all rows, where rows of other groups weigh 0.
    """
    found = fed(lib.collection(names, k=3, by_group=("a", "b"), **options), batches)
    for number, name in enumerate("ab"):
        inside = [(given, {"weights": more["weights"].where(more["groups"] == number, 0)}) for given, more in batches]
        for key, numbers in fed(lib.collection(names, k=3, **options), inside).items():
            if "/" in key:
                found[key.replace("/", f"/{name}/")] = numbers
    return found


@group
def recent_rows():
    """Windows of rows and of updates, and weights that decay with the age of a row."""
    g, found = random(16), {}
    recent = {
        "window 100": {"window": 100},
        "window 260": {"window": 260},
        "window 5000": {"window": 5000},
        "window of 3 updates": {"window": "3 updates"},
        "half-life 20": {"half_life": 20},
        "half-life 150.5": {"half_life": 150.5},
    }
    batches = batches_of(g, 12, 40, items=30, width=2)
    batches += batches_of(g, 2, 25, items=30, width=2)
    names = [*ACCURACY, *WHOLE]
    for name, options in recent.items():
        found[name] = fed(lib.collection(names, k=3, **options), only(batches))
        found[f"{name}, weights and groups"] = recent_rows_by_group(batches, names, **options)
        measured = lib.collection(with_options(), **options)
        found[f"{name}, row weights of metrics"] = fed(measured, only(batches, "weights"))
    empty = [(Scores(given.scores, torch.full_like(given.target, -1)), {}) for given, _ in batches[:4]]
    measured = lib.collection(["HR", "NDCG"], k=3, window=100)
    found["window without a relevant item"] = fed(measured, only(batches) + empty)
    return found


@group
def calls():
    """`forward`, metrics alone, rankings made outside, states that are merged, and checks that are deferred."""
    g, found = random(17), {}
    batches = batches_of(g, 3, 20, width=4)
    made = catalogues(g, 60)["codes"]
    history = ids_of(g, 20, 60, 5)
    for name, options in {"collection": {}, "groups": {"by_group": ("a", "b")}}.items():
        measured = lib.collection([*ACCURACY, *WHOLE], k=[1, 5], **options)
        for place, (given, more) in enumerate(batches):
            more = more if options else {"weights": more["weights"]}
            batch = lib.forward(measured, given, **more)
            found[f"forward of batch {place}, {name}"] = {key: [value] for key, value in batch.items()}
        found[f"after forward, {name}"] = lib.results(measured)
    measured = lib.collection(["HR", *BEYOND], k=[1, 5], catalogue=made)
    batch = lib.forward(measured, Scores(batches[0][0].scores, batches[0][0].target, history=history))
    found["forward, metrics of lists"] = {key: [value] for key, value in batch.items()}
    scores, labels, indexes = entries(g, 30, tied=True)
    measured = of_sessions()
    batch = lib.forward(measured, Sessions(scores, labels, indexes))
    found["forward, sessions"] = {key: [value] for key, value in batch.items()}
    for key, measured in with_options().items():
        found[f"forward, {key}"] = {key: [value] for key, value in lib.forward(measured, batches[0][0]).items()}
        found[f"alone, {key}"] = fed(measured, only(batches, "weights"))
    for ties in TIES:
        ranked = [(lib.ranking(given, ties=ties), {"weights": more["weights"]}) for given, more in batches]
        found[f"rankings, {ties}"] = fed(lib.collection([*ACCURACY, *WHOLE], k=[1, 5], ties=ties), ranked)
        ranked = [(lib.ranking(given, depth=5, ties=ties), {}) for given, _ in batches]
        found[f"rankings to depth 5, {ties}"] = fed(lib.collection(ACCURACY, k=[1, 5], ties=ties), ranked)
    parts = []
    for batch in batches:
        parts.append(lib.collection(["HR", "NDCG", "AUROC", *BEYOND], k=[1, 5], by_group=("a", "b"), catalogue=made))
        lib.update(parts[-1], Scores(batch[0].scores, batch[0].target, history=history), **batch[1])
    found["merged"] = lib.results(lib.merged(*parts))
    for checks in (True, "deferred", False):
        measured = lib.collection([*ACCURACY, *WHOLE], k=[1, 5], by_group=("a", "b"), validate_args=checks)
        found[f"checks {checks}, scores"] = fed(measured, batches)
        lists = Lists(ids_of(g, 20, 60, 8, padding=0), batches[0][0].target)
        measured = lib.collection(ACCURACY, k=[1, 5], validate_args=checks)
        found[f"checks {checks}, lists"] = fed(measured, [(lists, {})])
        found[f"checks {checks}, sessions"] = fed(
            of_sessions(validate_args=checks), [(Sessions(scores, labels, indexes), {})]
        )
    return found


# ----------------------------------------------------------------------------------------------------------- evaluation


def problem(users=40, items=50):
    """Return embeddings of whole numbers, whose products are exact and often equal, with targets and train items."""
    g = random(18)
    vectors = [torch.randint(-3, 4, (number, 6), generator=g).float() for number in (users, items)]
    edges = [torch.rand(users, items, generator=g) < share for share in (0.06, 0.1)]
    target, train = (lib.interactions_of_dense(dense) for dense in edges)
    bias = torch.randint(-2, 3, (items,), generator=g).float()
    return *vectors, bias, target, train


NAMES = ["HR", "NDCG", "MRR", "Recall", "MAP", "AUROC"]


@group
def evaluations():
    """`evaluate` and `recommend` with embeddings and functions, groups, kept rows, candidates, and metrics of lists."""
    users, items, bias, target, train = problem()
    g, found = random(19), {}
    scores = users @ items.T
    allowed = torch.rand(len(items), generator=g) < 0.8
    names = [*NAMES, "RPrecision"]
    variants = {
        "plain": {},
        "exclude": {"exclude": train},
        "exclude and mask": {"exclude": (train, torch.rand(len(items), generator=g) < 0.1)},
        "bias": {"bias": bias},
        "cosine": {"similarity": "cosine"},
        "allowed": {"allowed": allowed},
        "some users": {"user_ids": [3, 1, 30, 22, 17]},
        "small batches": {"batch_size": 7, "exclude": train},
        "padding 0": {"padding_idx": 0},
        "groups": {"groups": lib.groups_by_degree(train, [0, 3, 6])},
        "groups of codes": {"groups": lib.groups_of(torch.arange(len(users)) % 4 - 1, ["a", "b", "c"])},
        "candidates": {"candidates": lib.interactions_of_dense(torch.rand(40, 50, generator=g) < 0.4)},
        "empty users count 0": {"empty_target_action": "neg"},
    }
    for ties, (name, more) in itertools.product(TIES, variants.items()):
        if name == "cosine":
            continue  # products are not exact
        evaluation = lib.evaluate(names, users, items, target=target, k=[1, 5], ties=ties, **{"overlap": "miss"} | more)
        found[f"{name}, {ties}"] = lib.results(evaluation)
    rounded = torch.nn.functional.one_hot(torch.arange(50) % 6, 6).float() * (1 + torch.arange(50) % 3)[:, None]
    evaluation = lib.evaluate(names, users, rounded, target=target, k=[1, 5], similarity="cosine")
    found["cosine"] = lib.results(evaluation)
    by_function = lib.evaluate(names, lambda ids: scores[ids], target=target, exclude=train, k=[1, 5], overlap="keep")
    found["function"] = lib.results(by_function)
    found["bias alone"] = lib.results(lib.evaluate(names, None, target=target, k=[1, 5], bias=bias))
    kept = lib.evaluate(["HR", "NDCG", "AUROC"], users, items, target=target, k=5, keep_rows=True)
    found["kept rows"] = lib.rows(kept)
    gains = torch.arange(len(target.items)) % 4 + 1.0
    graded = lib.interactions(target.users, target.items, gains, num_users=40, num_items=50)
    metrics = {"NDCG": lib.metric("NDCG", 5), "NDCG-exponential": lib.metric("NDCG", 5, gain="exponential")}
    found["graded"] = lib.results(lib.evaluate(metrics, users, items, target=graded))
    made = lib.catalogue_of(train, categories=torch.arange(50) % 6)
    names = ["HR", *BEYOND]
    for every in (False, True):
        more = {"exclude": train, "catalogue": made, "overlap": "miss", "all_users": every}
        found[f"metrics of lists, {'all users' if every else 'users with a target'}"] = lib.results(
            lib.evaluate(names, users, items, target=target, k=[1, 5], **more)
        )
    found["recommend"] = lib.recommend(users, items, 6, exclude=train, bias=bias)
    return found


def frames():
    """Return users, items and ranks of lists as columns with text ids, a ground truth, and a history."""
    g = random(20)
    listed = {"user": [], "item": [], "rank": []}
    for user, items in enumerate(distinct(g, 30, 40)[:, :8].tolist()):
        for rank, item in enumerate(items[: 3 + user % 6]):
            listed["user"].append(f"u{user:02}"), listed["item"].append(f"i{item:02}"), listed["rank"].append(rank + 1)
    truth, history = ({"user": [], "item": []} for _ in range(2))
    for share, columns in ((0.15, truth), (0.05, history)):
        for user, item in (torch.rand(33, 38, generator=g) < share).nonzero().tolist():
            columns["user"].append(f"u{user:02}"), columns["item"].append(f"i{item:02}")
    return listed, truth, history


@group(needs=("pyarrow",))
def evaluations_of_lists():
    """`evaluate_lists` of frames, dicts and tensors, and of sessions with a column of labels."""
    import pyarrow as pa

    g, found = random(21), {}
    listed, truth, history = frames()
    names = ["HR", "NDCG", "MRR", "Precision", "Recall", "MAP"]
    more = {"k": [1, 3], "rank": "rank", "complete": True}
    found["columns"] = lib.results(lib.evaluate_lists(names, listed, target=truth, **more))
    found["tables"] = lib.results(lib.evaluate_lists(names, pa.table(listed), target=pa.table(truth), **more))
    for overlap in ("miss", "keep", "without"):
        evaluation = lib.evaluate_lists(names, listed, target=truth, exclude=history, overlap=overlap, **more)
        found[f"columns, exclude, {overlap}"] = lib.results(evaluation)
    graded = {**truth, "gain": [place % 4 + 1 for place in range(len(truth["user"]))]}
    metrics = {"NDCG": lib.metric("NDCG", 3), "NDCG-exponential": lib.metric("NDCG", 3, gain="exponential")}
    more = {"rank": "rank", "complete": True}
    found["gains"] = lib.results(lib.evaluate_lists(metrics, listed, target=graded, value="gain", **more))
    kept = lib.evaluate_lists(["HR", "NDCG"], listed, target=truth, k=3, keep_rows=True, **more)
    found["kept rows"] = lib.rows(kept)
    target = lib.interactions_of_dense(torch.rand(25, 40, generator=g) < 0.1)
    best = distinct(g, 25, 40)[:, :6].tolist()
    by_user = {user: items[: 2 + user % 5] for user, items in enumerate(best)}
    more = {"target": target, "k": [1, 5]}
    found["dict"] = lib.results(lib.evaluate_lists(names, by_user, complete=True, **more))
    found["tensors"] = lib.results(lib.evaluate_lists(names, (torch.tensor(best), torch.arange(25)), **more))
    groups = lib.groups_of(torch.arange(25) % 3 - 1, ["a", "b"])
    found["groups"] = lib.results(lib.evaluate_lists(names, by_user, complete=True, groups=groups, **more))
    repeated = {user: torch.randint(0, 40, (12,), generator=g).tolist() for user in range(25)}
    for duplicates in ("first", "keep_place"):
        evaluation = lib.evaluate_lists(names, repeated, complete=True, duplicates=duplicates, **more)
        found[f"repeats, {duplicates}"] = lib.results(evaluation)
    train = lib.interactions_of_dense(torch.rand(25, 40, generator=g) < 0.2)
    made = lib.catalogue_of(train, categories=torch.arange(40) % 5)
    evaluation = lib.evaluate_lists(["HR", *BEYOND], by_user, complete=True, catalogue=made, **more)
    found["metrics of lists"] = lib.results(evaluation)
    labelled = {**listed, "score": torch.randperm(len(listed["user"]), generator=g).tolist()}
    labelled["label"] = [int(number < 0.3) for number in torch.rand(len(listed["user"]), generator=g).tolist()]
    del labelled["rank"]
    evaluation = lib.evaluate_lists([*names, "AUROC"], labelled, label="label", score="score", k=[1, 3])
    found["labels"] = lib.results(evaluation)
    return found


@group(needs=("pyarrow",))
def tallies():
    """Partial sums of tables of Arrow, added up."""
    import pyarrow as pa

    g, found = random(22), {}
    rows = 60
    lists = [items[: row % 9] for row, items in enumerate(distinct(g, rows, 30)[:, :8].tolist())]
    target = [[item for item in items if item >= 0] for items in ids_of(g, rows, 30, 4).tolist()]
    table = pa.table(
        {
            "item_ids": pa.array(lists, pa.list_(pa.int64())),
            "target": pa.array(target, pa.list_(pa.int64())),
            "gains": pa.array([[1 + item % 3 for item in items] for items in target], pa.list_(pa.int64())),
            "seen": pa.array(distinct(g, rows, 30)[:, :3].tolist(), pa.list_(pa.int64())),
            "weight": weights_of(g, rows).tolist(),
            "group": [["a", "b", None][row % 3] for row in range(rows)],
            "rank": [1 + row % 11 for row in range(rows)],
        }
    )
    names = ["HR", "NDCG", "MRR", "Precision", "Recall", "MAP"]
    made = lib.catalogue(30, popularity=torch.arange(30) % 7, num_users=20, categories=torch.arange(30) % 4)
    of_lists = ["HR", "Coverage", "Gini", "Entropy", "Novelty", "CategoryShare", "Missing", "ExposureGini"]
    variants = {
        "plain": (names, {}, {}),
        "complete": (names, {"complete": True}, {}),
        "gains": (names, {"gains": "gains"}, {}),
        "exclude": (names, {"exclude": "seen", "complete": True}, {"overlap": "miss"}),
        "weights": (names, {"weights": "weight"}, {}),
        "groups": (names, {}, {"groups": "group"}),
        "ranks": (["HR", "MRR", "NDCG"], {"ranks": "rank"}, {}),
        "metrics of lists": (of_lists, {}, {"catalogue": made}),
    }
    for name, (metrics, columns, options) in variants.items():
        parts = [lib.tally(table[first : first + 25], metrics, [1, 5], **columns, **options) for first in (0, 25, 50)]
        found[name] = lib.results(lib.merged_tallies(parts, metrics, [1, 5], **options))
    return found


# ---------------------------------------------------------------------------------------------------- several processes


def share(given, more, rank, world_size):
    """Return this process's rows of a batch of scores."""
    part = slice(rank, None, world_size)
    own = {name: value[part] for name, value in more.items()}
    return Scores(given.scores[part], given.target[part]), own


@process_group(2, 3)
def sums_on_processes(rank, world_size):
    """Rows that are divided over processes, of which the last one has none, or has none in the first batch."""
    g, found = random(23), {}
    made = catalogues(g, 60)["codes"]
    batches = batches_of(g, 3, 21, width=4)
    history = ids_of(g, 21, 60, 5)
    for idle, kind in itertools.product((0, 1), ("accuracy", "options", "metrics of lists")):
        measured = {
            "accuracy": lambda: lib.collection([*ACCURACY, *WHOLE], k=[1, 5], by_group=("a", "b")),
            "options": lambda: lib.collection(with_options(), by_group=("a", "b")),
            "metrics of lists": lambda: lib.collection(["HR", *BEYOND], k=[1, 5], catalogue=made, by_group=("a", "b")),
        }[kind]()
        for given, more in batches:
            if rank < world_size - idle:
                own, more = share(given, more, rank, world_size - idle)
                if kind == "metrics of lists":
                    own = Scores(own.scores, own.target, history=history[rank :: world_size - idle])
                lib.update(measured, own, **more)
        found[f"{kind}, {idle} idle"] = lib.results(measured)
    for key, measured in with_options().items():
        for given, more in batches:
            lib.update(measured, share(given, more, rank, world_size)[0])
        found[f"alone, {key}"] = lib.results(measured)
    ranked = lib.collection([*OF_RANK, "AdjustedHR"], k=3)
    scores, target = scores_of(g, 40, 20, tied=True), torch.randint(0, 20, (40,), generator=g)
    lib.update(ranked, Scores(scores[rank::world_size], target[rank::world_size]))
    found["metrics of rank"] = lib.results(ranked)
    return found


@process_group(2)
def recent_rows_on_processes(rank, world_size):
    """Windows and decay on processes that all have batches of one size."""
    g, found = random(24), {}
    own = [share(given, more, rank, world_size) for given, more in batches_of(g, 9, 80, items=30, width=2)]
    recent = {
        "window 200": {"window": 200},
        "window of 3 updates": {"window": "3 updates"},
        "half-life 60": {"half_life": 60},
    }
    for name, options in recent.items():
        found[name] = recent_rows_by_group(own, ACCURACY, **options)
    return found


@process_group(2, 3)
def sessions_on_processes(rank, world_size):
    """Sessions whose entries lie on several processes, and rows that are kept on several processes."""
    g, found = random(25), {}
    scores, labels, indexes = entries(g, 60, tied=True)
    _, number = torch.unique(indexes, return_inverse=True)
    measured = CollectSessions(of_sessions(keep_rows=True, by_group=("a", "b")))
    for part in torch.arange(rank, len(scores), world_size).split(40):
        more = {"weights": (number[part] * 5 % 8) / 4, "groups": number[part] % 3 - 1}
        lib.update(measured, scores[part], labels[part], indexes=indexes[part], **more)
    found["sessions"], found["rows of sessions"] = lib.results(measured), lib.rows(measured)
    kept = lib.collection([*ACCURACY, lib.metric("AUROC", weight="relevant")], k=3, keep_rows=True)
    for place, (given, more) in enumerate(batches_of(g, 2, 20)):
        own, more = share(given, more | {"row_ids": torch.arange(20) + 20 * place}, rank, world_size)
        lib.update(kept, own, weights=more["weights"], row_ids=more["row_ids"], clusters=more["row_ids"] // 3)
    found["kept rows, results"], found["kept rows"] = lib.results(kept), lib.rows(kept)
    return found


@process_group(1, 2, 3)
def item_shards(rank, world_size):
    """Scores of items that are divided over processes, one of which has none."""
    g, found = random(26), {}
    rows, items = 30, 40
    borders = {1: (0, 40), 2: (0, 13, 40), 3: (0, 25, 25, 40)}[world_size]
    first, last = borders[rank], borders[rank + 1]
    scores, target, history = scores_of(g, rows, items, tied=True), ids_of(g, rows, items, 3), ids_of(g, rows, items, 6)
    scores[torch.rand(rows, items, generator=g) < 0.1] = -torch.inf
    gains, mask = torch.randint(-1, 4, (rows, 3), generator=g), torch.rand(items, generator=g) < 0.1
    more = {"weights": weights_of(g, rows), "groups": torch.arange(rows) % 3 - 1}
    for ties, overlap in itertools.product(TIES, ("miss", "keep")):
        measured = lib.collection([*ACCURACY, *WHOLE], k=[1, 5], ties=ties, overlap=overlap, by_group=("a", "b"))
        given = ItemShard(scores[:, first:last], target, first, items, gains=gains, exclude=(history, mask))
        lib.update(measured, given, **more)
        given = ItemShard(scores[:, first:last], target, first, items)
        batch = lib.forward(measured, given, **more)
        found[f"{ties}, {overlap}"] = lib.results(measured)
        found[f"forward, {ties}, {overlap}"] = {key: [value] for key, value in batch.items()}
    measured = lib.collection(["HR", *BEYOND], k=[1, 5], overlap="miss", catalogue=catalogues(g, items)["codes"])
    given = ItemShard(scores[:, first:last], target, first, items, exclude=history, history=history)
    lib.update(measured, given)
    found["metrics of lists"] = lib.results(measured)
    return found


@process_group(2)
def evaluations_on_processes(rank, world_size):
    """`evaluate` with users, items or both divided over processes."""
    users, items, bias, target, train = problem()
    found = {}
    parts = slice(0, 17) if rank == 0 else slice(17, 50)
    mine = slice(0, 23) if rank == 0 else slice(23, 40)
    more = {"target": target, "exclude": train, "k": [1, 5], "overlap": "miss"}
    found["users"] = lib.results(lib.evaluate(NAMES, users, items, bias=bias, shard="users", **more))
    found["items"] = lib.results(lib.evaluate(NAMES, users, items[parts], bias=bias[parts], shard="items", **more))
    found["both"] = lib.results(lib.evaluate(NAMES, users[mine], items[parts], bias=bias[parts], shard="both", **more))
    groups = lib.groups_by_degree(train, [0, 3, 6])
    found["users, groups"] = lib.results(lib.evaluate(NAMES, users, items, shard="users", groups=groups, **more))
    kept = lib.evaluate(["HR", "NDCG"], users, items, shard="users", keep_rows=True, **more)
    found["users, kept rows"] = lib.rows(kept)
    return found
