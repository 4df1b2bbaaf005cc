"""Metrics beyond accuracy compared with other packages: equal, or different for a reason that a test shows.

Comparisons with a package that is not installed are skipped. Elliot, RecBole and the newest LensKit cannot be installed
beside this package, so a few lines of plain Python after their sources take their place.
"""

import importlib
import math
import warnings
from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest
import torch
from torch import nan, tensor

import torchrecmetrics as trm
from torchrecmetrics.beyond import functional

USERS, ITEMS, DEPTH, GENRES = 14, 30, 10, 4
K = (2, 5, 10)

_generator = torch.Generator().manual_seed(3)


def _some(*shape):
    return torch.rand(*shape, generator=_generator)


LISTS = (_some(USERS, ITEMS) + torch.linspace(1, 0, ITEMS)).argsort(1, descending=True)[:, :DEPTH]  # low ids more often
TRAIN = trm.Interactions.from_dense(_some(USERS + 6, ITEMS) < torch.linspace(0.9, 0, ITEMS))  # the last ids never
TEST = trm.Interactions.from_dense(_some(USERS, ITEMS) < 0.3)
GENRE = torch.randint(GENRES, (ITEMS,), generator=_generator)
VECTORS = _some(ITEMS, 3).double() - 0.3
CATALOGUE = trm.Catalogue.from_interactions(TRAIN, categories=GENRE, embeddings=VECTORS)
SHORT = [items[: 1 + user % 4] for user, items in enumerate(LISTS.tolist())]  # of 1 to 4 items
FULL = LISTS.tolist()


def peer(module, name=None):
    """Import a peer or skip the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of the modules that the peer imports
        found = pytest.importorskip(module, reason=f"{module} is not installed", exc_type=ImportError)
    return getattr(found, name) if name else found


def ranking(lists):
    padded = tensor([[*items, *[-1] * (DEPTH - len(items))] for items in lists])
    history = TRAIN.select(range(USERS)).items
    made = trm.Lists(padded, TEST.select(range(USERS)), complete=True, duplicates="first").ranking()
    return replace(made, lists=made.lists._replace(history=history))


def ours(label, lists=FULL, **options):
    """Return the value of our metric, such as `Gini@5`, for lists and the catalogue."""
    name, _, k = label.partition("@")
    metric = getattr(trm, name)(int(k), **{"catalogue": CATALOGUE, **options})
    metric.update(ranking(lists))
    return metric.compute().item()


def rows(formula, k, lists=FULL, **options):
    """Return the values of our formula, one per list."""
    return formula(ranking(lists), k, **options).tolist()


def near(values, tolerance=1e-12):
    return pytest.approx(values, rel=tolerance, abs=tolerance, nan_ok=True)


def log_of(lists):
    """Return lists as a table of user, item, rank and a score that falls with the rank."""
    pandas = peer("pandas")
    entries = [(u, i, r, 1 / r) for u, items in enumerate(lists) for r, i in enumerate(items, start=1)]
    return pandas.DataFrame(entries, columns=["user_id", "item_id", "rank", "score"])


def train_log():
    pandas = peer("pandas")
    return pandas.DataFrame({"user_id": TRAIN.users.tolist(), "item_id": TRAIN.items.tolist()})


# -------------------------------------------------------------------------------------------------------- PyG 2.8.1


def pyg(name, k, lists=LISTS, **options):
    metric = getattr(peer("torch_geometric.metrics"), f"LinkPred{name}")(k, **options)
    metric.update(lists, TEST.to_edge_index())
    return metric.compute().item()


@pytest.mark.parametrize("k", K)
def test_pyg(k):
    """PyG's coverage, diversity of categories, personalization and popularity equal ours, in float32."""
    assert ours(f"Coverage@{k}") == near(pyg("Coverage", k, num_dst_nodes=ITEMS), 1e-6)
    assert ours(f"IntraListDiversity@{k}", of="categories") == near(pyg("Diversity", k, category=GENRE), 1e-6)
    assert ours(f"Personalization@{k}") == near(pyg("Personalization", k), 1e-6)
    assert ours(f"AveragePopularity@{k}") == near(pyg("AveragePopularity", k, popularity=TRAIN.popularity), 1e-6)


def test_pyg_divides_by_zero_pairs():
    """PyG's diversity at k = 1, which has no pair of items, divides by zero, where ours is nan."""
    with pytest.raises(ZeroDivisionError):
        pyg("Diversity", 1, category=GENRE)
    assert rows(functional.intra_list_diversity, 1, catalogue=CATALOGUE, of="categories") == near([nan] * USERS)


def test_pyg_takes_padding_for_the_last_item():
    """PyG takes the padding -1 for the index of the last item, so a list of one item covers two items."""
    lists = tensor([[0, -1]])
    assert pyg("Coverage", 2, lists, num_dst_nodes=ITEMS) == near(2 / ITEMS, 1e-6)
    metric = trm.Coverage(2, catalogue=CATALOGUE)
    metric.update(trm.Lists(lists))
    assert metric.compute() == 1 / ITEMS


# ---------------------------------------------------------------------------------------------------- RecTools 0.19


def rectools(name, lists, given, k, **options):
    metric = getattr(peer("rectools.metrics"), name)(k=k, **options)
    return metric.calc_per_user(log_of(lists), **given).tolist()


@pytest.mark.parametrize("k", K)
@pytest.mark.parametrize("lists", [FULL, SHORT], ids=["full", "short"])
def test_rectools(lists, k):
    """RecTools' popularity, novelty, serendipity, sufficiency and coverage equal ours, also for short lists."""
    train = {"prev_interactions": train_log()}
    found = rows(functional.average_popularity, k, lists, catalogue=CATALOGUE)
    assert found == near(rectools("AvgRecPopularity", lists, train, k))
    assert rows(functional.novelty, k, lists, catalogue=CATALOGUE) == near(rectools("MeanInvUserFreq", lists, train, k))
    users, items = TEST.to_edge_index().tolist()
    test = {"interactions": peer("pandas").DataFrame({"user_id": users, "item_id": items}), "catalog": range(ITEMS)}
    expected = rectools("Serendipity", lists, {**train, **test}, k)
    assert rows(functional.serendipity, k, lists, catalogue=CATALOGUE) == near(expected)
    assert sum(expected) > 0
    full = rectools("SufficientReco", lists, {}, k, deep=True)
    assert rows(functional.missing, k, lists) == near([1 - each for each in full])
    coverage = peer("rectools.metrics", "CatalogCoverage")(k=k, normalize=True).calc(log_of(lists), range(ITEMS))
    assert ours(f"Coverage@{k}", lists) == near(coverage)


def test_rectools_documents_another_serendipity():
    """RecTools documents serendipity divided by k, but divides by the list's length: one hit in one item, k = 2."""
    pandas = peer("pandas")
    table = pandas.DataFrame({"user_id": [1], "item_id": [29], "rank": [1]})
    metric = peer("rectools.metrics", "Serendipity")(k=2)
    assert metric.calc(table, table, train_log(), range(ITEMS)) == 1


@pytest.mark.parametrize("k", K)
def test_rectools_counts_both_columns_of_two_genres(k):
    """RecTools' Hamming distance of one-hot columns is 2 per pair of unlike items, which is twice our diversity."""
    pandas = peer("pandas")
    one_hot = pandas.DataFrame(torch.nn.functional.one_hot(GENRE).numpy(), index=range(ITEMS))
    distance = peer("rectools.metrics", "PairwiseHammingDistanceCalculator")(one_hot)
    expected = rectools("IntraListDiversity", FULL, {}, k, distance_calculator=distance)
    found = rows(functional.intra_list_diversity, k, catalogue=CATALOGUE, of="categories")
    assert [2 * each for each in found] == near(expected)


def test_rectools_gives_a_list_without_pairs_zero():
    """RecTools gives a list of one item a diversity of 0, as if its items were alike, where ours is nan."""
    pandas = peer("pandas")
    one_hot = pandas.DataFrame(torch.nn.functional.one_hot(GENRE).numpy(), index=range(ITEMS))
    distance = peer("rectools.metrics", "PairwiseHammingDistanceCalculator")(one_hot)
    expected = rectools("IntraListDiversity", SHORT, {}, 5, distance_calculator=distance)
    found = rows(functional.intra_list_diversity, 5, SHORT, catalogue=CATALOGUE, of="categories")
    for items, mine, theirs in zip(SHORT, found, expected, strict=True):
        assert mine == near(theirs / 2 if len(items) > 1 else nan)
        assert len(items) > 1 or theirs == 0


@pytest.mark.parametrize("k", K)
def test_rectools_repeats(k):
    """RecTools' UnrepeatedReco is 1 - our share of repeated entries."""
    lists = [items[: 3 + u % 3] + items[: 1 + u % 4] for u, items in enumerate(FULL)]
    expected = rectools("UnrepeatedReco", lists, {}, k, deep=True)
    assert rows(functional.repeats, k, lists) == near([1 - each for each in expected])


# ------------------------------------------------------------------------------------------------------ RePlay 0.22


def replay(name, lists, k, *given, **options):
    metrics = peer("replay.metrics")
    scored = {u: [(i, 1 / r) for r, i in enumerate(items, start=1)] for u, items in enumerate(lists)}
    (found,) = getattr(metrics, name)(k, mode=metrics.PerUser(), **options)(scored, *given).values()
    return [found[user] for user in range(len(lists))]


def train_dict():
    return {u: TRAIN.select([u]).items[0].tolist() for u in range(TRAIN.num_users) if TRAIN.degree[u]}


@pytest.mark.parametrize("k", K)
def test_replay(k):
    """RePlay's Surprisal is our normalised novelty, and its Novelty is 1 - our share of seen items, for full lists."""
    expected = replay("Surprisal", FULL, k, train_dict())
    assert rows(functional.novelty, k, catalogue=CATALOGUE, normalize=True) == near(expected)
    seen = rows(functional.seen, k)
    assert [1 - each for each in seen] == near(replay("Novelty", FULL, k, train_dict())[:USERS])
    assert 0 < sum(seen) < USERS


def replay_categories(lists, k):
    frame = log_of(lists).assign(category_id=lambda log: log["item_id"].map(GENRE.tolist().__getitem__))
    metrics = peer("replay.metrics")
    metric = metrics.CategoricalDiversity(
        k, query_column="user_id", category_column="category_id", rating_column="score", mode=metrics.PerUser()
    )
    (found,) = metric(frame).values()
    return [found[user] for user in range(len(lists))]


@pytest.mark.parametrize("k", K)
def test_replay_divides_by_k(k):
    """RePlay divides categories and surprisal by k, where ours are divided by the length of the list."""
    assert rows(functional.category_share, k, catalogue=CATALOGUE) == near(replay_categories(FULL, k))
    mine = rows(functional.category_share, k, SHORT, catalogue=CATALOGUE)
    filled = [min(len(items), k) / k for items in SHORT]
    assert [m * f for m, f in zip(mine, filled, strict=True)] == near(replay_categories(SHORT, k))
    mine = rows(functional.novelty, k, SHORT, catalogue=CATALOGUE, normalize=True)
    expected = replay("Surprisal", SHORT, k, train_dict())
    assert [m * f for m, f in zip(mine, filled, strict=True)] == near(expected)
    assert mine != near(expected)


# ------------------------------------------------------------------------------------------------------ jurity 2.1


def jurity(name, lists, k, *features):
    metric = getattr(peer("jurity.recommenders"), name)(
        *features, click_column="score", k=k, user_id_column="user_id", item_id_column="item_id", user_sample_size=None
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of pandas
        return metric.get_score(None, log_of(lists))


def features(vectors):
    return peer("pandas").DataFrame({"item_id": range(ITEMS), **{f"f{c}": each for c, each in enumerate(vectors.T)}})


@pytest.mark.parametrize("k", K)
def test_jurity(k):
    """jurity's cosine distances within lists and between full lists equal ours."""
    expected = jurity("IntraListDiversity", FULL, k, features(VECTORS))
    assert ours(f"IntraListDiversity@{k}", of="embeddings") == near(expected)
    assert ours(f"Personalization@{k}") == near(jurity("InterListDiversity", FULL, k))


def test_jurity_turns_shares_to_one_length():
    """jurity takes the cosine of two items' genre shares; ours takes the chance that a genre of each is the same."""
    shares = tensor([[1.0, 0], [0.5, 0.5]]).double().repeat(ITEMS // 2, 1)
    catalogue = trm.Catalogue(ITEMS, categories=shares)
    lists = [[0, 1]] * USERS
    assert rows(functional.intra_list_diversity, 2, lists, catalogue=catalogue) == near([1 - 0.5] * USERS)
    assert jurity("IntraListDiversity", lists, 2, features(shares)) == near(1 - math.sqrt(0.5))


def test_jurity_compares_short_lists_by_their_cosine():
    """jurity compares short lists by their cosine, ours by the share of items that could be common.
    A list of 4 items and a list of 1 of these share 1 of sqrt(4 x 1) in jurity, and 1 of 1 here.
    """
    lists = [[0, 1, 2, 3], [2]]
    metric = trm.Personalization(4, catalogue=CATALOGUE)
    metric.update(trm.Lists(tensor([[0, 1, 2, 3], [2, -1, -1, -1]])))
    assert metric.compute() == 0
    assert jurity("InterListDiversity", lists, 4) == near(1 - 1 / math.sqrt(4 * 1))


# --------------------------------------------------------------------------------------------------- recpack 0.3.6


def recpack_coverage(lists, k, relevant):
    sparse = peer("scipy.sparse").csr_matrix
    scores = torch.zeros(USERS, ITEMS).scatter(1, tensor(lists), torch.linspace(1, 0.5, DEPTH).expand(USERS, -1))
    metric = peer("recpack.metrics.coverage", "CoverageK")(k)
    metric.calculate(sparse(relevant.numpy()), sparse(scores.numpy()))
    return metric.value


@pytest.mark.parametrize("k", K)
def test_recpack(k):
    """recpack's coverage equals ours, except that it leaves out users without a relevant item."""
    relevant = torch.ones(USERS, ITEMS)
    assert ours(f"Coverage@{k}") == near(recpack_coverage(FULL, k, relevant))
    relevant[1:] = 0
    assert recpack_coverage(FULL, k, relevant) == near(k / ITEMS)


# --------------------------------------------------------------------------------------------------------- LensKit


def lenskit(metric, lists):
    """Return the value of a LensKit metric for lists."""
    items = peer("lenskit.data", "ItemList")
    return metric.global_aggregate([metric.compute_list_data(items(each, ordered=True), None) for each in lists])


@pytest.mark.parametrize("k", K)
@pytest.mark.parametrize("lists", [FULL, SHORT], ids=["full", "short"])
def test_lenskit_gini(lists, k):
    """LensKit's Gini of lists equals ours, and so does its Gini of exposure with NDCG's weight, in float32."""
    of_lists = peer("lenskit.metrics.ranking", "ListGini")(k, items=ITEMS)
    assert ours(f"Gini@{k}", lists) == near(lenskit(of_lists, lists))
    counts = Counter(i for items in lists for i in items[:k])
    assert ours(f"Gini@{k}", lists) == near(peer("lenskit.stats", "gini")([counts[i] for i in range(ITEMS)]))
    weight = importlib.import_module("lenskit.metrics.ranking._weighting").LogRankWeight(offset=1)
    exposure = peer("lenskit.metrics.ranking", "ExposureGini")(k, items=ITEMS, weight=weight)
    assert ours(f"ExposureGini@{k}", lists) == near(lenskit(exposure, lists), 1e-6)


def lenskit_similarity(items, vectors):
    """Return the ILS of src/lenskit/metrics/ranking/_ils.py in lkpy's main (2026; not in 2025.8.1), of unit rows."""
    units = [vectors[i] / vectors[i].norm() for i in items]
    return sum(float(a @ b) for a, b in combinations(units, 2)) / math.comb(len(items), 2) if len(items) > 1 else 1.0


@pytest.mark.parametrize("k", K)
def test_lenskit_similarity(k):
    """LensKit's ILS is 1 - our diversity for one-hot categories and embeddings; for one item it is 1 and ours nan."""
    for of, vectors in (("categories", torch.nn.functional.one_hot(GENRE).double()), ("embeddings", VECTORS)):
        expected = [1 - lenskit_similarity(items[:k], vectors) for items in FULL]
        assert rows(functional.intra_list_diversity, k, catalogue=CATALOGUE, of=of) == near(expected)
        assert lenskit_similarity([3], vectors) == 1
        single = rows(functional.intra_list_diversity, k, [[3]] * USERS, catalogue=CATALOGUE, of=of)
        assert single == near([nan] * USERS)


# ----------------------------------------------------------------------------------------------------- SciPy, Steck


@pytest.mark.parametrize("k", K)
def test_scipy_divergences(k):
    """js is the square of scipy's `jensenshannon`, and kl the `entropy` to the smoothed distribution, in nats."""
    distance, entropy = peer("scipy.spatial.distance", "jensenshannon"), peer("scipy.stats", "entropy")
    expected = {"js": [], "kl": []}
    for user, items in enumerate(FULL):
        history = TRAIN.select([user]).items[0]
        p = torch.bincount(GENRE[history], minlength=GENRES).double() / len(history)
        q = torch.bincount(GENRE[tensor(items[:k])], minlength=GENRES).double() / k
        expected["js"].append(distance(p, q) ** 2)
        expected["kl"].append(entropy(p, 0.99 * q + 0.01 * p))
    for divergence, values in expected.items():
        found = rows(functional.calibration, k, catalogue=CATALOGUE, divergence=divergence)
        assert found == near(values)


# -------------------------------------------------------------------------------- Elliot 0.3.1, after its sources


def elliot_aplt(lists, k):
    """Return the mean of bias/aplt/aplt.py over users, with the head of popularity_utils/popularity.py."""
    popularity = TRAIN.popularity.tolist()
    left, head = sum(popularity) * 0.8, set()
    for item in sorted(range(ITEMS), key=popularity.__getitem__, reverse=True):
        head.add(item)
        left -= popularity[item]
        if left <= 0:
            break
    return sum(len(set(items[:k]) - head) / len(items[:k]) for items in lists) / len(lists)


def elliot_gini(lists, k):
    """Return diversity/gini_index/gini_index.py, which is also RankSys' GiniIndex.java: high means even."""
    counts = Counter(i for items in lists for i in items[:k])
    total = sum(counts.values())
    first = ITEMS - len(counts) + 1
    summed = sum((2 * j - ITEMS - 1) * c / total for j, c in enumerate(sorted(counts.values()), start=first))
    return 1 - summed / (ITEMS - 1)


def elliot_entropy(lists, k):
    """Return diversity/shannon_entropy/shannon_entropy.py, in which an entry weighs 1 / the length of its list."""
    counts, weights = Counter(), Counter()
    for items in lists:
        for i in items[:k]:
            counts[i] += 1
            weights[i] += 1 / len(items[:k])
    total = sum(counts.values())
    return sum(w * -math.log2(counts[i] / total) for i, w in weights.items()) / len(lists)


@pytest.mark.parametrize("k", K)
def test_elliot(k):
    """Elliot's APLT is our tail share, its Gini is 1 - ours on I - 1 items, and its entropy is ours for full lists."""
    for lists in (FULL, SHORT):
        assert ours(f"TailShare@{k}", lists) == near(elliot_aplt(lists, k))
        assert 1 - ours(f"Gini@{k}", lists) * ITEMS / (ITEMS - 1) == near(elliot_gini(lists, k))
    assert ours(f"Entropy@{k}") == near(elliot_entropy(FULL, k))
    assert ours(f"Entropy@{k}", SHORT) != near(elliot_entropy(SHORT, k))


# ---------------------------------------------------------------- RecBole 1.2, after its sources: evaluator/metrics.py


def recbole(lists, k):
    """Return RecBole's values for ids from 1, where `num_items` counts the padding item 0, too."""
    counts, size = Counter(i + 1 for items in lists for i in items[:k]), ITEMS + 1
    total, ascending = len(lists) * k, sorted(counts.values())
    places = range(size - len(counts) + 1, size + 1)
    return {
        "Coverage": len(counts) / size,
        "Gini": sum((2 * j - size - 1) * c for j, c in zip(places, ascending, strict=True)) / total / size,
        "Entropy": sum(-c / total * math.log(c / total) for c in ascending) / len(counts),
    }


@pytest.mark.parametrize("k", K)
def test_recbole_counts_padding(k):
    """RecBole counts I + 1 items where we count I, and divides entropy in nats by the number of recommended items."""
    theirs = recbole(FULL, k)
    shifted = trm.Catalogue(ITEMS + 1)  # an item 0 that nobody gets makes our values RecBole's
    given = trm.Lists(LISTS + 1).ranking()
    metrics = trm.RecMetricCollection(["Coverage", "Gini"], k=k, catalogue=shifted)
    metrics.update(given)
    found = {label.partition("@")[0]: each.item() for label, each in metrics.compute().items()}
    assert found == near({"Coverage": theirs["Coverage"], "Gini": theirs["Gini"]})
    distinct = len(set(LISTS[:, :k].flatten().tolist()))
    assert ours(f"Entropy@{k}") * math.log(2) / distinct == near(theirs["Entropy"])
    assert ours(f"Coverage@{k}") == near(theirs["Coverage"] * (ITEMS + 1) / ITEMS)


def test_recbole_takes_a_share_of_the_items_for_tail():
    """RecBole's `tail_ratio` is a share of the items that occur in train, our head holds a share of the occurrences."""
    popularity = tensor([9, 3, 2, 1, 0])
    ascending = sorted((p, i) for i, p in enumerate(popularity.tolist()) if p)
    theirs = {i for _, i in ascending[: max(int(len(ascending) * 0.5), 1)]}
    tail = trm.Catalogue(5, popularity=popularity).tail(0.5).nonzero().flatten().tolist()
    assert (theirs, {*tail}) == ({2, 3}, {1, 2, 3, 4})  # item 0 alone holds half of the occurrences
