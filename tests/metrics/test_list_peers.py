"""Metrics beyond accuracy compared with other packages: equal, or different for a reason that a test shows.

Comparisons with a package that is not installed are skipped.
"""

import importlib
import itertools
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
NAMES = [f"{name}-{k}" for name in ("full", "short") for k in K]
LISTS_AND_K = pytest.mark.parametrize(("lists", "k"), [*itertools.product((FULL, SHORT), K)], ids=NAMES)
EACH_K = pytest.mark.parametrize("k", K)
NAMED = {"ids": lambda part: part if isinstance(part, str) else ""}


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


def ours(metric, lists=FULL):
    """Return the value of our metric for all lists."""
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


# PyG 2.8.1


def pyg(name, k, lists=LISTS, **options):
    metric = getattr(peer("torch_geometric.metrics"), f"LinkPred{name}")(k, **options)
    metric.update(lists, TEST.to_edge_index())
    return metric.compute().item()


@EACH_K
@pytest.mark.parametrize(
    ("metric", "options", "name", "given"),
    [
        (trm.Coverage, {}, "Coverage", {"num_dst_nodes": ITEMS}),
        (trm.IntraListDiversity, {"of": "categories"}, "Diversity", {"category": GENRE}),
        (trm.Personalization, {}, "Personalization", {}),
        (trm.AveragePopularity, {}, "AveragePopularity", {"popularity": TRAIN.popularity}),
    ],
    **NAMED,
)
def test_pyg_has_our_value_in_float32(metric, options, name, given, k):
    assert ours(metric(k, catalogue=CATALOGUE, **options)) == near(pyg(name, k, **given), 1e-6)


def test_pygs_diversity_of_a_single_item_divides_by_no_pairs_and_ours_is_nan():
    assert rows(functional.intra_list_diversity, 1, catalogue=CATALOGUE, of="categories") == near([nan] * USERS)
    with pytest.raises(ZeroDivisionError):
        pyg("Diversity", 1, category=GENRE)


def test_pygs_coverage_takes_the_padding_for_the_last_item():
    lists = tensor([[0, -1]])

    assert pyg("Coverage", 2, lists, num_dst_nodes=ITEMS) == near(2 / ITEMS, 1e-6)
    assert trm.Coverage(2, catalogue=CATALOGUE)(trm.Lists(lists)) == 1 / ITEMS


# RecTools 0.19


def rectools(name, lists, k, *given, **options):
    """Return the values of a metric of lists, of which some are given a log of TRAIN, or of TEST and the items."""
    frame = peer("pandas").DataFrame
    train, test = (frame({"user_id": edges.users, "item_id": edges.items}) for edges in (TRAIN, TEST))
    tables = {"prev_interactions": train, "interactions": test, "catalog": range(ITEMS)}
    metric = getattr(peer("rectools.metrics"), name)(k=k, **options)
    return metric.calc_per_user(log_of(lists), **{argument: tables[argument] for argument in given}).tolist()


@LISTS_AND_K
@pytest.mark.parametrize(
    ("formula", "name", "given"),
    [
        (functional.average_popularity, "AvgRecPopularity", ["prev_interactions"]),
        (functional.novelty, "MeanInvUserFreq", ["prev_interactions"]),
        (functional.serendipity, "Serendipity", ["prev_interactions", "interactions", "catalog"]),
    ],
    **NAMED,
)
def test_rectools_has_our_values(formula, name, given, lists, k):
    values = rows(formula, k, lists, catalogue=CATALOGUE)

    assert values == near(rectools(name, lists, k, *given))
    assert sum(values) > 0


@LISTS_AND_K
def test_rectools_coverage_is_ours_and_its_sufficiency_1_minus_our_missing_share(lists, k):
    coverage = peer("rectools.metrics", "CatalogCoverage")(k=k, normalize=True).calc(log_of(lists), range(ITEMS))
    sufficient = rectools("SufficientReco", lists, k, deep=True)

    assert ours(trm.Coverage(k, catalogue=CATALOGUE), lists) == near(coverage)
    assert rows(functional.missing, k, lists) == near([1 - share for share in sufficient])


@LISTS_AND_K
def test_rectools_diversity_of_two_genres_is_twice_ours_and_0_where_ours_is_nan(lists, k):
    """Its Hamming distance counts both one-hot columns."""
    one_hot = peer("pandas").DataFrame(torch.nn.functional.one_hot(GENRE).numpy(), index=range(ITEMS))
    distance = peer("rectools.metrics", "PairwiseHammingDistanceCalculator")(one_hot)
    diversity = rows(functional.intra_list_diversity, k, lists, catalogue=CATALOGUE, of="categories")

    assert [math.isnan(each) for each in diversity] == [len(items) < 2 for items in lists]
    assert [0 if math.isnan(each) else 2 * each for each in diversity] == near(
        rectools("IntraListDiversity", lists, k, distance_calculator=distance)
    )


@EACH_K
def test_rectools_unrepeated_share_is_1_minus_our_repeats(k):
    lists = [items[: 3 + u % 3] + items[: 1 + u % 4] for u, items in enumerate(FULL)]
    unrepeated = rectools("UnrepeatedReco", lists, k, deep=True)

    assert rows(functional.repeats, k, lists) == near([1 - share for share in unrepeated])


# RePlay 0.22


def replay(name, lists, k, *given):
    metrics = peer("replay.metrics")
    scored = {u: [(i, 1 / r) for r, i in enumerate(items, start=1)] for u, items in enumerate(lists)}
    (found,) = getattr(metrics, name)(k, mode=metrics.PerUser())(scored, *given).values()
    return [found[user] for user in range(len(lists))]


def train_dict():
    return {u: TRAIN.select([u]).items[0].tolist() for u in range(TRAIN.num_users) if TRAIN.degree[u]}


def over_k(values, lists, k):
    """Return means over the items of lists, divided by k instead."""
    return [value * min(len(items), k) / k for value, items in zip(values, lists, strict=True)]


@LISTS_AND_K
def test_replays_surprisal_is_our_normalised_novelty_over_k(lists, k):
    novelty = rows(functional.novelty, k, lists, catalogue=CATALOGUE, normalize=True)
    assert over_k(novelty, lists, k) == near(replay("Surprisal", lists, k, train_dict()))


@LISTS_AND_K
def test_replays_diversity_is_our_share_of_categories_over_k(lists, k):
    frame = log_of(lists).assign(category_id=lambda log: log["item_id"].map(GENRE.tolist().__getitem__))
    metrics = peer("replay.metrics")
    metric = metrics.CategoricalDiversity(
        k, query_column="user_id", category_column="category_id", rating_column="score", mode=metrics.PerUser()
    )
    (expected,) = metric(frame).values()
    categories = rows(functional.category_share, k, lists, catalogue=CATALOGUE)

    assert over_k(categories, lists, k) == near([*expected.values()])


@EACH_K
def test_replays_novelty_of_full_lists_is_1_minus_our_seen_share(k):
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


@EACH_K
def test_juritys_cosine_distances_within_lists_and_between_full_lists_are_ours(k):
    diversity = ours(trm.IntraListDiversity(k, catalogue=CATALOGUE, of="embeddings"))

    assert diversity == near(jurity("IntraListDiversity", FULL, k, features(VECTORS)))
    assert ours(trm.Personalization(k, catalogue=CATALOGUE)) == near(jurity("InterListDiversity", FULL, k))


def test_jurity_takes_the_cosine_of_genre_shares_and_we_their_product():
    shares = tensor([[1.0, 0], [0.5, 0.5]]).double().repeat(ITEMS // 2, 1)
    catalogue, lists = trm.Catalogue(ITEMS, categories=shares), [[0, 1]] * USERS

    assert rows(functional.intra_list_diversity, 2, lists, catalogue=catalogue) == near([1 - 0.5] * USERS)
    assert jurity("IntraListDiversity", lists, 2, features(shares)) == near(1 - math.sqrt(0.5))


def test_jurity_takes_the_cosine_of_lists_of_unequal_lengths():
    lists = tensor([[0, 1, 2, 3], [2, -1, -1, -1]])

    assert trm.Personalization(4, catalogue=CATALOGUE)(trm.Lists(lists)) == 1 - 1 / 1
    assert jurity("InterListDiversity", [[0, 1, 2, 3], [2]], 4) == near(1 - 1 / math.sqrt(4 * 1))


# recpack 0.3.6


def recpack_coverage(k, relevant):
    """Return the coverage of LISTS for users with relevant items, [USERS, ITEMS]."""
    sparse = peer("scipy.sparse").csr_matrix
    scores = torch.zeros(USERS, ITEMS).scatter(1, LISTS, torch.linspace(1, 0.5, DEPTH).expand(USERS, -1))
    metric = peer("recpack.metrics.coverage", "CoverageK")(k)
    metric.calculate(sparse(relevant.numpy()), sparse(scores.numpy()))
    return metric.value


@EACH_K
def test_recpacks_coverage_is_ours_of_the_users_with_a_relevant_item(k):
    of_all, of_the_first = torch.ones(USERS, ITEMS), torch.eye(USERS, 1).expand(-1, ITEMS)

    assert recpack_coverage(k, of_all) == near(ours(trm.Coverage(k, catalogue=CATALOGUE)))
    assert recpack_coverage(k, of_the_first) == near(k / ITEMS)


# LensKit 2025


def lenskit(name, k, lists, **options):
    """Return the value of a LensKit metric for lists."""
    items = peer("lenskit.data", "ItemList")
    metric = peer("lenskit.metrics.ranking", name)(k, items=ITEMS, **options)
    return metric.global_aggregate([metric.compute_list_data(items(each, ordered=True), None) for each in lists])


@LISTS_AND_K
def test_lenskits_gini_of_lists_and_of_exposure_is_ours(lists, k):
    peer("lenskit.metrics.ranking")
    weight = importlib.import_module("lenskit.metrics.ranking._weighting").LogRankWeight(offset=1)
    exposure = lenskit("ExposureGini", k, lists, weight=weight)

    assert ours(trm.Gini(k, catalogue=CATALOGUE), lists) == near(lenskit("ListGini", k, lists))
    assert ours(trm.ExposureGini(k, catalogue=CATALOGUE), lists) == near(exposure, 1e-6)
