"""Metrics beyond accuracy compared with other packages: equal, or different for a reason that a test shows.

Comparisons with a package that is not installed are skipped. Elliot and RecBole cannot be installed beside this
package, so a few lines of plain Python after their sources take their place.
"""

import importlib
import math
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nan, tensor

import torchrecmetrics as trm
from torchrecmetrics.metrics import list_formulas as functional

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
    """Import a peer or skip the test; PyG's metrics of lists are those of 2.7 or newer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of the modules that the peer imports
        if module == "torch_geometric.metrics":
            pytest.importorskip("torch_geometric", minversion="2.7")
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


# PyG 2.8.1


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


def test_pyg_differs():
    """PyG's diversity of a single item divides by no pairs; its coverage takes the padding -1 for the last item."""
    with pytest.raises(ZeroDivisionError):
        pyg("Diversity", 1, category=GENRE)
    assert rows(functional.intra_list_diversity, 1, catalogue=CATALOGUE, of="categories") == near([nan] * USERS)
    lists = tensor([[0, -1]])
    assert pyg("Coverage", 2, lists, num_dst_nodes=ITEMS) == near(2 / ITEMS, 1e-6)
    assert trm.Coverage(2, catalogue=CATALOGUE)(trm.Lists(lists)) == 1 / ITEMS


# RecTools 0.19


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


@pytest.mark.parametrize("k", K)
@pytest.mark.parametrize("lists", [FULL, SHORT], ids=["full", "short"])
def test_rectools_counts_both_columns_of_two_genres(lists, k):
    """RecTools' Hamming distance of one-hot columns is twice our diversity; a list without pairs is 0, and ours nan."""
    one_hot = peer("pandas").DataFrame(torch.nn.functional.one_hot(GENRE).numpy(), index=range(ITEMS))
    distance = peer("rectools.metrics", "PairwiseHammingDistanceCalculator")(one_hot)
    expected = rectools("IntraListDiversity", lists, {}, k, distance_calculator=distance)
    found = rows(functional.intra_list_diversity, k, lists, catalogue=CATALOGUE, of="categories")
    assert [0 if math.isnan(each) else 2 * each for each in found] == near(expected)
    assert [math.isnan(each) for each in found] == [len(items) < 2 for items in lists]


@pytest.mark.parametrize("k", K)
def test_rectools_repeats(k):
    """RecTools' UnrepeatedReco is 1 - our share of repeated entries."""
    lists = [items[: 3 + u % 3] + items[: 1 + u % 4] for u, items in enumerate(FULL)]
    expected = rectools("UnrepeatedReco", lists, {}, k, deep=True)
    assert rows(functional.repeats, k, lists) == near([1 - each for each in expected])


# RePlay 0.22


def replay(name, lists, k, *given, **options):
    metrics = peer("replay.metrics")
    scored = {u: [(i, 1 / r) for r, i in enumerate(items, start=1)] for u, items in enumerate(lists)}
    (found,) = getattr(metrics, name)(k, mode=metrics.PerUser(), **options)(scored, *given).values()
    return [found[user] for user in range(len(lists))]


def train_dict():
    return {u: TRAIN.select([u]).items[0].tolist() for u in range(TRAIN.num_users) if TRAIN.degree[u]}


@pytest.mark.parametrize("k", K)
@pytest.mark.parametrize("lists", [FULL, SHORT], ids=["full", "short"])
def test_replay(lists, k):
    """RePlay's Surprisal is our normalised novelty, and its CategoricalDiversity our share of categories.

    RePlay divides both by k, ours are divided by the length of the list.
    """
    filled = [min(len(items), k) / k for items in lists]
    novelty = rows(functional.novelty, k, lists, catalogue=CATALOGUE, normalize=True)
    expected = replay("Surprisal", lists, k, train_dict())
    assert [each * share for each, share in zip(novelty, filled, strict=True)] == near(expected)
    frame = log_of(lists).assign(category_id=lambda log: log["item_id"].map(GENRE.tolist().__getitem__))
    metrics = peer("replay.metrics")
    metric = metrics.CategoricalDiversity(
        k, query_column="user_id", category_column="category_id", rating_column="score", mode=metrics.PerUser()
    )
    (expected,) = metric(frame).values()
    categories = rows(functional.category_share, k, lists, catalogue=CATALOGUE)
    assert [each * share for each, share in zip(categories, filled, strict=True)] == near([*expected.values()])


@pytest.mark.parametrize("k", K)
def test_replay_novelty_is_the_unseen_share(k):
    """RePlay's Novelty is 1 - our share of seen items, for full lists."""
    seen = rows(functional.seen, k)
    assert [1 - each for each in seen] == near(replay("Novelty", FULL, k, train_dict())[:USERS])
    assert 0 < sum(seen) < USERS


# jurity 2.1


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


def test_jurity_differs():
    """jurity takes cosines: of items' genre shares, and of short lists, of which 4 and 1 items share 1 of sqrt(4)."""
    shares = tensor([[1.0, 0], [0.5, 0.5]]).double().repeat(ITEMS // 2, 1)
    catalogue, lists = trm.Catalogue(ITEMS, categories=shares), [[0, 1]] * USERS
    assert rows(functional.intra_list_diversity, 2, lists, catalogue=catalogue) == near([1 - 0.5] * USERS)
    assert jurity("IntraListDiversity", lists, 2, features(shares)) == near(1 - math.sqrt(0.5))
    lists = [[0, 1, 2, 3], [2]]
    assert trm.Personalization(4, catalogue=CATALOGUE)(trm.Lists(tensor([lists[0], [2, -1, -1, -1]]))) == 0
    assert jurity("InterListDiversity", lists, 4) == near(1 - 1 / math.sqrt(4 * 1))


# recpack 0.3.6


@pytest.mark.parametrize("k", K)
def test_recpack(k):
    """recpack's coverage equals ours, except that it leaves out users without a relevant item."""
    sparse, relevant = peer("scipy.sparse").csr_matrix, torch.ones(USERS, ITEMS)
    scores = torch.zeros(USERS, ITEMS).scatter(1, LISTS, torch.linspace(1, 0.5, DEPTH).expand(USERS, -1))
    for expected in (ours(f"Coverage@{k}"), k / ITEMS):
        metric = peer("recpack.metrics.coverage", "CoverageK")(k)
        metric.calculate(sparse(relevant.numpy()), sparse(scores.numpy()))
        assert metric.value == near(expected)
        relevant[1:] = 0


# LensKit 2025


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
    weight = importlib.import_module("lenskit.metrics.ranking._weighting").LogRankWeight(offset=1)
    exposure = peer("lenskit.metrics.ranking", "ExposureGini")(k, items=ITEMS, weight=weight)
    assert ours(f"ExposureGini@{k}", lists) == near(lenskit(exposure, lists), 1e-6)


# Elliot 0.3.1 and RecBole 1.2, after their sources
