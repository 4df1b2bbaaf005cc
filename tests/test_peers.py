"""Our values beside those of other packages: equal for every user where they agree, with the reason where they do not.

The shared data are free of ties and all scores are positive, because several peers need both. Tests of a peer that is
not installed are skipped.
"""

import math
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from packaging.version import Version
from torch import inf, nan, tensor
from torchmetrics import MetricCollection
from torchmetrics import __version__ as torchmetrics_version
from torchmetrics import retrieval as tm
from values import numbers

import torchrecmetrics as trm

USERS, ITEMS = 12, 40
K = (1, 10, 50)  # the last is above the number of items

_generator = torch.Generator().manual_seed(0)
GAINS = torch.randint(1, 5, (USERS, ITEMS), generator=_generator)
GAINS[torch.rand(GAINS.shape, generator=_generator) > 0.1] = 0
GAINS[:, 0] = 2  # every user has a relevant item
GAINS[:2, 1:] = 0  # two users have no other relevant item
_liking = torch.rand(GAINS.shape, generator=_generator) + 0.3 * (GAINS > 0)
_liking[1, 0] = 2  # one of these two users has it at rank 1
SCORES = (_liking.argsort(1).argsort(1) + 1) / (ITEMS + 1)  # distinct, between 0 and 1
HISTORY = (torch.rand(GAINS.shape, generator=_generator) < 0.3) & (GAINS == 0)
TIED = {"distinct": SCORES, "tied": (SCORES * 5).floor(), "equal": torch.ones_like(SCORES)}
LOG3 = math.log2(3)


def peer(module):
    """Import a peer or skip the test; PyG's metrics of lists are those of 2.7 or newer."""
    if module == "torch_geometric.metrics":
        pytest.importorskip("torch_geometric", minversion="2.7")
    return pytest.importorskip(module, reason=f"{module} is not installed")


def as_dict(matrix):
    """Return {user: {item: value}}, as tools of information retrieval read it."""
    rows = matrix.tolist()
    return {f"{u:02}": {f"{i:02}": value for i, value in enumerate(row)} for u, row in enumerate(rows)}


def ranx_evaluate(gains, scores, name, **options):
    ranx = peer("ranx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of numba, where it compiles
        return ranx.evaluate(ranx.Qrels(as_dict(gains)), ranx.Run(as_dict(scores)), name, **options)


def ranx_values(name):
    """Return the values of ranx: AP is divided by R, gains are linear in "ndcg" and 2^gain - 1 in "ndcg_burges"."""
    return ranx_evaluate(GAINS, SCORES, name, return_mean=False)


def trec_eval_values(name, scores=SCORES, gains=GAINS):
    """Return the values of trec_eval: AP / R, linear gains, and the ideal DCG of all judged items."""
    measure = ".".join(name.rsplit("_", 1)) if name[-1].isdigit() else name
    found = peer("pytrec_eval").RelevanceEvaluator(as_dict(gains), {measure}).evaluate(as_dict(scores))
    return [found[user][name] for user in sorted(found)]


def recometrics_values(name, scores=SCORES, gains=GAINS, history=None):
    """Return the values of recometrics: AP / R, TAP and TP over min(k, R), and PR-AUC, the AP of the whole list."""
    csr, (name, _, k) = peer("scipy.sparse").csr_array, name.partition("@")
    train = None if history is None else csr(history.double().numpy())
    factors = scores.double().numpy(), np.eye(scores.shape[1])  # scores = users @ items.T, in float64
    found = peer("recometrics").calc_reco_metrics(
        train, csr(gains.double().numpy()), *factors, k=int(k or 1), all_metrics=True, as_df=False, nthreads=1
    )
    return found[f"{name}@K" if k else name]


def torchmetrics_values(name):
    """Return the values of torchmetrics, of which NDCG alone takes gains, and check the mean that it computes."""
    name, _, k = name.partition("@")
    metric = getattr(tm, f"Retrieval{name}")(**({"top_k": int(k)} if k else {}))
    target = GAINS if name == "NormalizedDCG" else GAINS.clamp(max=1)
    query = torch.arange(USERS)[:, None].expand(SCORES.shape)
    values = [metric(SCORES[u], target[u], indexes=query[u]).item() for u in range(USERS)]
    assert metric.compute().item() == pytest.approx(np.mean(values))
    return values


def pyg(name, k, **options):
    return getattr(peer("torch_geometric.metrics"), f"LinkPred{name}")(k, **options)


def pyg_values(name):
    """Return the values of PyG, AP / min(k, R), gains in weighted metrics only; check the mean that it computes."""
    name, _, k = name.partition("@")
    metric = pyg(name.removeprefix("Weighted"), int(k), **({"weighted": True} if name.startswith("Weighted") else {}))
    values = []
    for u in range(USERS):
        edges = (GAINS[u : u + 1] > 0).nonzero().T
        values.append(
            metric(SCORES[u : u + 1].topk(min(int(k), ITEMS)).indices, edges, GAINS[u, edges[1]].float()).item()
        )
    assert metric.compute().item() == pytest.approx(np.mean(values))
    return values


def sklearn_values(name, scores=SCORES, gains=GAINS):
    """Return the values of scikit-learn; NDCG has linear gains, other functions read which items are relevant."""
    name, _, k = name.partition("@")
    function = getattr(peer("sklearn.metrics"), name)
    if name == "ndcg_score":
        return [function([g.numpy()], [s.numpy()], k=int(k) if k else None) for s, g in zip(scores, gains, strict=True)]
    return [function(g.numpy() > 0, s.numpy()) for s, g in zip(scores, gains, strict=True)]


def scores_and_gains(rows):
    return SCORES[rows], GAINS[rows].double()


def without_history(rows):
    item = torch.arange(ITEMS)
    exclude = HISTORY[rows] & (item < 20), item.where(HISTORY[rows] & (item >= 20), -1)  # some as a mask, some as ids
    return (trm.Scores(*scores_and_gains(rows), exclude=exclude).ranking(),)


def flat_triples(rows):
    query = torch.arange(USERS)[rows, None].expand(-1, ITEMS)
    return (trm.Sessions(SCORES[rows].flatten(), GAINS[rows].flatten(), query.flatten()).ranking(),)


def ranked_lists(rows, gains=None):
    ids = torch.arange(ITEMS).where(GAINS[rows] > 0, -1)
    lists = SCORES[rows].argsort(1, descending=True)
    return (trm.Lists(lists, ids, gains=None if gains is None else gains[rows], complete=True).ranking(),)


def check_agreement(metric, theirs, tolerance, inputs=scores_and_gains):
    """Compare the value of every user, then the mean over all of them in one batch."""
    values = [metric(*inputs(slice(user, user + 1))).item() for user in range(USERS)]
    assert values == pytest.approx(list(theirs), rel=tolerance, abs=tolerance)
    metric.reset()
    metric.update(*inputs(slice(None)))
    assert metric.compute().item() == pytest.approx(np.mean(list(theirs)), rel=tolerance)


# peer: function of its values, tolerance, function of the arguments of our metrics
PEERS = {
    "ranx": (ranx_values, 1e-9, scores_and_gains),
    "trec_eval": (trec_eval_values, 1e-9, scores_and_gains),
    "recometrics": (recometrics_values, 1e-9, scores_and_gains),
    "torchmetrics": (torchmetrics_values, 1e-6, flat_triples),
    "pyg": (pyg_values, 1e-6, ranked_lists),
    "sklearn": (sklearn_values, 1e-9, scores_and_gains),
}
# our metric and its name at each of these peers
SAME = [
    (trm.Precision, "precision@{k}", "P_{k}", "P@{k}", "Precision@{k}", "Precision@{k}", ""),
    (partial(trm.Precision, normalize="min"), "", "", "TP@{k}", "", "", ""),
    (trm.Recall, "recall@{k}", "recall_{k}", "R@{k}", "Recall@{k}", "Recall@{k}", ""),
    (partial(trm.Recall, weighted=True), "", "", "", "", "WeightedRecall@{k}", ""),
    (trm.F1, "f1@{k}", "", "", "", "F1@{k}", ""),
    (trm.HitRate, "hit_rate@{k}", "success_{k}", "Hit@{k}", "HitRate@{k}", "HitRatio@{k}", ""),
    (trm.MRR, "mrr@{k}", "", "RR@{k}", "MRR@{k}", "MRR@{k}", ""),
    (trm.MRR, "mrr", "recip_rank", "", "MRR", "", ""),
    (trm.MAP, "map@{k}", "map_cut_{k}", "AP@{k}", "", "", ""),
    (partial(trm.MAP, normalize="min"), "", "", "TAP@{k}", "", "MAP@{k}", ""),
    (trm.MAP, "map", "map", "PR_AUC", "MAP", "", "average_precision_score"),
    (trm.NDCG, "ndcg@{k}", "ndcg_cut_{k}", "NDCG@{k}", "NormalizedDCG@{k}", "WeightedNDCG@{k}", "ndcg_score@{k}"),
    (trm.NDCG, "ndcg", "ndcg", "", "NormalizedDCG", "", "ndcg_score"),
    (trm.NDCG, "", "", "", "", "NDCG@{k}", ""),  # without gains
    (partial(trm.NDCG, gain="exponential"), "ndcg_burges@{k}", "", "", "", "", ""),
    (trm.RPrecision, "r-precision", "Rprec", "", "RPrecision", "", ""),
    (trm.AUROC, "", "", "ROC_AUC", "AUROC", "", "roc_auc_score"),
]
CASES = [
    pytest.param(who, name.format(k=k), make if k is None else partial(make, k), id=f"{who}-{name.format(k=k)}")
    for make, *names in SAME
    for who, name in zip(PEERS, names, strict=True)
    for k in (K if "{k}" in name else [None])
    if name and not (who == "recometrics" and k == K[-1])  # recometrics refuses k > items
]


@pytest.mark.parametrize(("who", "name", "make"), CASES)
def test_our_value_is_that_of_the_peer_for_every_user(who, name, make):
    values, tolerance, inputs = PEERS[who]
    check_agreement(make(), values(name), tolerance, partial(inputs, gains=GAINS) if "Weighted" in name else inputs)


@pytest.mark.parametrize(("who", "name", "make"), [case for case in CASES if case.values[0] == "recometrics"])
def test_recometrics_leaves_out_training_items_as_exclude_does(who, name, make):
    check_agreement(make(), recometrics_values(name, history=HISTORY), 1e-9, without_history)


each_scores = pytest.mark.parametrize("scores", TIED.values(), ids=TIED)


@each_scores
def test_auroc_gives_half_credit_for_ties_as_scikit_learn_does(scores):
    theirs = sklearn_values("roc_auc_score", scores)
    check_agreement(trm.AUROC(), theirs, 1e-9, lambda rows: (scores[rows], GAINS[rows] > 0))


@each_scores
@pytest.mark.parametrize("k", K)
def test_ndcg_of_ties_is_the_mean_over_all_orders_as_in_scikit_learn(scores, k):
    theirs = sklearn_values(f"ndcg_score@{k}", scores)
    check_agreement(trm.NDCG(k), theirs, 1e-9, lambda rows: (scores[rows], GAINS[rows].double()))


@each_scores
@pytest.mark.parametrize("k", K)
@pytest.mark.parametrize(("metric", "name"), [(trm.HitRate, "hit_rate"), (trm.MRR, "reciprocal_rank")])
def test_optimistic_ties_are_those_of_torcheval(scores, k, metric, name):
    """It counts items with a higher score, and takes one relevant item per row."""
    target = torch.arange(USERS)
    theirs = getattr(peer("torcheval.metrics.functional"), name)(scores, target, k=k).tolist()
    check_agreement(metric(k, ties="optimistic"), theirs, 1e-6, lambda rows: (scores[rows], target[rows]))


def ours(metric, scores, gains):
    """Our value for one user."""
    return metric(tensor([scores]), tensor([gains], dtype=torch.float64)).item()


def torchmetrics_value(metric, scores, gains):
    """The value of torchmetrics for one user."""
    return metric(tensor(scores), tensor(gains), indexes=torch.zeros(len(scores), dtype=torch.int64)).item()


@pytest.mark.parametrize("k", [2, 3, 10])
def test_torchmetrics_map_divides_by_hits_found(k):
    """A hit at rank 1 gives 1, however many are missed."""
    scores, gains = torch.linspace(0.9, 0.1, 20).tolist(), [1] + [0] * 17 + [1, 1]

    assert torchmetrics_value(tm.RetrievalMAP(top_k=k), scores, gains) == 1
    assert ours(trm.MAP(k), scores, gains) == pytest.approx(1 / 3)
    assert ours(trm.MAP(k, normalize="min"), scores, gains) == pytest.approx(1 / min(k, 3))


@pytest.mark.skipif(Version(torchmetrics_version) < Version("1.9"), reason="older torchmetrics only order")
@pytest.mark.parametrize("scores", [[-0.1, -0.2, -0.3], [0.0, -1.0, -2.0]], ids=str)
@pytest.mark.parametrize(
    ("theirs", "metric", "expected"),
    [
        (tm.RetrievalPrecision(top_k=1), trm.Precision(1), 0),
        (tm.RetrievalRecall(top_k=1), trm.Recall(1), 0),
        (tm.RetrievalMRR(), trm.MRR(), 0),
        (tm.RetrievalMAP(), trm.MAP(), 0),
        (tm.RetrievalHitRate(top_k=1), trm.HitRate(1), 1),
        (tm.RetrievalNormalizedDCG(top_k=1), trm.NDCG(1), 1),
        (tm.RetrievalRPrecision(), trm.RPrecision(), 1),
    ],
)
def test_four_metrics_of_torchmetrics_do_not_retrieve_scores_up_to_zero(theirs, metric, expected, scores):
    assert torchmetrics_value(theirs, scores, [1, 0, 0]) == expected
    assert ours(metric, scores, [1, 0, 0]) == 1  # ours read only the order of scores


def test_auroc_of_a_user_without_a_pair_to_order_is_0_in_torchmetrics_and_left_out_here():
    metric = trm.AUROC()
    metric.update(tensor([[0.2, 0.3], [0.1, 0.5]]), tensor([[0, 1], [1, -1]]))

    assert torchmetrics_value(tm.RetrievalAUROC(), [0.2, 0.3], [1, 1]) == 0
    assert (metric.compute(), metric.num_users) == (1, 1)


def test_torchmetrics_auroc_hides_a_sigmoid():
    """It puts scores outside [0, 1] through a float32 sigmoid, where 20 and 30 are both 1: a tie."""
    assert torchmetrics_value(tm.RetrievalAUROC(), [20.0, 30.0], [0, 1]) == 1 / 2
    assert ours(trm.AUROC(), [20.0, 30.0], [0, 1]) == 1


def test_torchmetrics_merges_queries_with_the_same_id():
    """It joins query 0 of every batch (and process) into one; ours keeps the rows of each call apart."""
    theirs, metric = tm.RetrievalMRR(), trm.MRR()
    for scores in ([0.9, 0.8, 0.7], [0.1, 0.2, 0.3]):
        triple = tensor(scores), tensor([1, 0, 0]), tensor([0, 0, 0])
        theirs.update(*triple)
        metric.update(trm.Sessions(*triple))

    assert theirs.compute() == 1
    assert metric.compute().item() == pytest.approx((1 / 1 + 1 / 3) / 2)


ONE_HOT = torch.eye(5, dtype=torch.int64)
# MRR of five equal scores if this item is the relevant one, by peer
FIVE_EQUAL_SCORES = {
    "torchmetrics": lambda item: torchmetrics_value(tm.RetrievalMRR(), [1.0] * 5, ONE_HOT[item].tolist()),
    "PyG": lambda item: pyg("MRR", 5)(torch.ones(1, 5).topk(5).indices, tensor([[0], [item]])),
    "trec_eval": lambda item: trec_eval_values("recip_rank", torch.ones(1, 5), ONE_HOT[[item]])[0],
    "ranx": lambda item: ranx_evaluate(ONE_HOT[[item]], torch.ones(1, 5), "mrr"),
}


@pytest.mark.parametrize("who", FIVE_EQUAL_SCORES)
def test_peers_give_five_equal_scores_five_values(who):
    """They order equal scores by column, name or row."""
    values = [float(FIVE_EQUAL_SCORES[who](item)) for item in range(5)]
    assert sorted(values) == pytest.approx([1 / 5, 1 / 4, 1 / 3, 1 / 2, 1])


@pytest.mark.parametrize(
    ("ties", "expected"), [("expected", (1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5) / 5), ("realistic", 1 / 3)]
)
def test_ours_gives_five_equal_scores_one_value(ties, expected):
    values = [ours(trm.MRR(ties=ties), [1.0] * 5, gains) for gains in ONE_HOT.tolist()]
    assert values == pytest.approx([expected] * 5)


@pytest.mark.parametrize(("name", "k", "theirs"), [("HitRate", 1, 0), ("NDCG", 10, 1)])
def test_ignite_has_two_orders_of_equal_scores(name, k, theirs):
    """torch.topk for its hit rate, and a stable sort for its NDCG."""
    metric = getattr(peer("ignite.metrics.rec_sys"), name)(top_k=[k])
    metric.update((torch.zeros(1, 50), torch.eye(50)[:1]))

    assert metric.compute() == [theirs]


def test_ours_are_means_over_all_orders_of_50_equal_scores():
    """The relevant item has a chance of 1/50 at each rank."""
    scores, gains = [0.0] * 50, [1] + [0] * 49

    assert ours(trm.HitRate(1), scores, gains) == pytest.approx(1 / 50)
    assert ours(trm.NDCG(10), scores, gains) == pytest.approx(sum(1 / math.log2(1 + r) for r in range(1, 11)) / 50)


# 1 if item 0 is among the first k, by peer
HITS = {
    "torchmetrics": lambda scores, k: torchmetrics_value(tm.RetrievalHitRate(top_k=k), scores, [1, 0, 0]),
    "torcheval": lambda scores, k: peer("torcheval.metrics.functional").hit_rate(tensor([scores]), tensor([0]), k=k),
    "pyg": lambda scores, k: pyg("HitRatio", k)(tensor([scores]).topk(k).indices, tensor([[0], [0]])),
}


@pytest.mark.parametrize("who", HITS)
def test_peers_find_a_hit_at_nan(who):
    """A sort or torch.topk puts NaN first; here it is refused."""
    assert HITS[who]([nan, 0.5, 0.4], 1) == 1


@pytest.mark.parametrize("who", HITS)
def test_peers_find_a_hit_at_minus_infinity_which_is_no_candidate_here(who):
    """With fewer candidates than k, items at -inf are in the peers' top k."""
    assert HITS[who]([-inf, 0.5, 0.4], 3) == 1
    assert trm.HitRate(3)(tensor([[-inf, 0.5, 0.4]]), tensor([0])) == 0


def test_pyg_counts_padding_as_the_item_before():
    """It reads -1 as the last item of the row above, a hit if relevant to that user; here -1 is padding."""
    lists, target = tensor([[0, 1], [2, -1]]), tensor([4, 3])

    assert pyg("HitRatio", 2)(lists, tensor([[0, 1], [4, 3]])) == 1 / 2
    assert trm.HitRate(2)(trm.Lists(lists, target).ranking()) == 0


def test_pyg_counts_an_item_twice():
    """Here a list with an item twice is refused, or the item takes one rank."""
    lists, target = tensor([[3, 3]]), tensor([3])

    assert pyg("Recall", 2)(lists, tensor([[0], [3]])) == 2
    assert trm.Recall(1)(trm.Lists(lists, target, duplicates="first").ranking()) == 1


def test_pyg_looks_beyond_the_list():
    """It gives recall at 20 for lists of 2 as if nothing followed; here that needs complete=True."""
    lists, target = tensor([[0, 1]]), tensor([[1, 2]])

    assert pyg("Recall", 20)(lists, tensor([[0, 0], [1, 2]])) == 1 / 2
    assert trm.Recall(20)(trm.Lists(lists, target, complete=True).ranking()) == 1 / 2


# means of precision, NDCG and MRR at 2 of two users with the list [0, 1]: no hit, then a hit at rank 2
MEANS_OF_TWO = {"P": (0 + 1 / 2) / 2, "NDCG": (0 + 1 / LOG3) / 2, "MRR": (0 + 1 / 2) / 2}


def pyg_values_of_two(collection):
    """Return the values of a collection of PyG's metrics, updated with one user per batch."""
    metrics = collection({"P": pyg("Precision", 2), "NDCG": pyg("NDCG", 2), "MRR": pyg("MRR", 2)})
    for target in (5, 1):
        metrics.update(tensor([[0, 1]]), tensor([[0], [target]]))
    return numbers(metrics.compute())


def test_a_collection_of_torchmetrics_merges_pyg_metrics_with_equal_sums():
    values = pyg_values_of_two(MetricCollection)
    assert values == dict.fromkeys(values, values["P"]) != pytest.approx(MEANS_OF_TWO)


def test_a_collection_of_pyg_keeps_its_metrics_apart():
    collection = peer("torch_geometric.metrics").LinkPredMetricCollection
    assert pyg_values_of_two(collection) == pytest.approx(MEANS_OF_TWO)


def test_a_collection_of_torchmetrics_keeps_our_metrics_apart():
    metrics = MetricCollection({"P": trm.Precision(2), "NDCG": trm.NDCG(2), "MRR": trm.MRR(2)})
    for target in (5, 1):
        metrics.update(trm.Lists(tensor([[0, 1]]), tensor([target])))

    assert numbers(metrics.compute()) == pytest.approx(MEANS_OF_TWO)


def test_lightgcn_recommends_users_and_training_edges():
    """LightGCN.recommend ranks users too without dst_index, and excludes no training edge; our `exclude` does."""
    model = peer("torch_geometric.nn").LightGCN(5, 2, num_layers=0)  # users 0 and 1, items 2, 3, 4
    model.embedding.weight.data = tensor([[1.0, 0.0], [9.0, 1.0], [3.0, 0.0], [2.0, 0.0], [1.0, 0.0]])
    edges, user, items = tensor([[0, 0], [2, 3]]), tensor([0]), tensor([2, 3, 4])
    lists = model.recommend(edges, src_index=user, dst_index=items, k=3)

    assert model.recommend(edges, src_index=user, k=1).tolist() == [[1]]
    assert lists.tolist() == [[2, 3, 4]]
    assert trm.HitRate(1)(trm.Lists(lists, tensor([4]), exclude=edges[1:]).ranking()) == 1


TWO_SCORES, FIRST_HAS_ONE = tensor([[0.9, 0.8], [0.9, 0.8]]), tensor([[1, 0], [0, 0]])
# MRR of a user with a hit at rank 1 and one without a relevant item
MEANS = {
    "torchmetrics": lambda: tm.RetrievalMRR()(TWO_SCORES, FIRST_HAS_ONE, indexes=tensor([[0, 0], [1, 1]])),
    "ranx": lambda: ranx_evaluate(FIRST_HAS_ONE, TWO_SCORES, "mrr"),
    "pyg": lambda: pyg("MRR", 2)(tensor([[0, 1], [0, 1]]), tensor([[0], [0]])),
    "recometrics": lambda: np.nanmean(recometrics_values("RR@1", TWO_SCORES, FIRST_HAS_ONE)),
    "ours": lambda: trm.MRR()(TWO_SCORES, FIRST_HAS_ONE > 0),
    "ours, neg": lambda: trm.MRR(empty_target_action="neg")(TWO_SCORES, FIRST_HAS_ONE > 0),
}


@pytest.mark.parametrize("who", ["torchmetrics", "ranx", "ours, neg"])
def test_users_without_a_relevant_item_count_as_0(who):
    assert MEANS[who]() == (1 + 0) / 2


@pytest.mark.parametrize("who", ["pyg", "recometrics", "ours"])
def test_users_without_a_relevant_item_are_left_out(who):
    assert MEANS[who]() == pytest.approx(1 / 1)


FIVE_SCORES, ONE_NEGATIVE = tensor([[0.9, 0.8, 0.7, 0.6, 0.5]]), tensor([[1, -2, 0, 3, 0]])
DCG, IDEAL_DCG = 1 - 2 / LOG3 + 3 / math.log2(5), 3 + 1 / LOG3


def test_negative_gains_count_in_dcg_and_not_in_the_ideal_as_in_recometrics():
    assert trm.NDCG(4)(FIVE_SCORES, torch.arange(5)[None], gains=ONE_NEGATIVE).item() == pytest.approx(DCG / IDEAL_DCG)
    assert recometrics_values("NDCG@4", FIVE_SCORES, ONE_NEGATIVE) == pytest.approx([DCG / IDEAL_DCG])


def test_torchmetrics_counts_negative_gains_in_the_ideal_dcg_too():
    theirs = torchmetrics_value(tm.RetrievalNormalizedDCG(), FIVE_SCORES[0].tolist(), ONE_NEGATIVE[0].tolist())
    assert theirs == pytest.approx(DCG / (IDEAL_DCG - 2 / math.log2(6)))


def test_ranx_cuts_gains_to_integers():
    """ranx stores a gain of 1.9 as 1, and one of 0.5 as not relevant; here every gain > 0 counts at its value."""
    scores, gains = [0.9, 0.8, 0.7], [0.5, 1.9, 1.0]
    theirs = ranx_evaluate(tensor([gains]), tensor([scores]), "ndcg")
    dcg, ideal_dcg = 0.5 + 1.9 / LOG3 + 1.0 / 2, 1.9 + 1.0 / LOG3 + 0.5 / 2

    assert theirs == pytest.approx((1 / LOG3 + 1 / 2) / (1 + 1 / LOG3))
    assert ours(trm.NDCG(), scores, gains) == pytest.approx(dcg / ideal_dcg)


@pytest.mark.parametrize(
    ("name", "metric", "expected"),
    [("Hit@3", trm.HitRate, 1), ("P@3", trm.Precision, 1 / 3), ("R@3", trm.Recall, 1 / 1)],
)
def test_recometrics_has_no_value_when_k_takes_in_every_item(name, metric, expected):
    theirs = recometrics_values(name, tensor([[0.9, 0.8, 0.7]]), tensor([[0, 1, 0]]))

    assert theirs == pytest.approx([nan], nan_ok=True)
    assert ours(metric(3), [0.9, 0.8, 0.7], [0, 1, 0]) == pytest.approx(expected)
