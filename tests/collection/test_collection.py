"""RecMetricCollection: one kernel call, one synchronisation, ordered keys, right values after any first batch."""

import copy
from math import log2

import distributed
import pytest
import torch
from states import same, snapshot, tensors
from torchmetrics import MeanMetric
from values import numbers

import torchrecmetrics as trm
from torchrecmetrics.kernels import eager

NAMES = ["HR", "NDCG", "MRR", "Precision", "Recall", "F1", "MAP", "RPrecision", "AUROC"]
make = trm.RecMetricCollection


def batch(seed, rows=8, items=30, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(rows, items, generator=generator)
    return scores.to(device), torch.rand(rows, items, generator=generator).argsort(1)[:, :3].to(device)


def metrics_of(collection):
    """Return a new metric for each description of a collection."""
    shared = collection.evaluator.ranking_options
    return {
        key: metric.metric_class(*[metric.k] * (metric.k is not None), **metric.options, overlap=shared.overlap)
        for key, metric in collection.metrics.items()
    }


def alone(collection, *batches):
    """Return the value of every metric when it is updated by itself."""
    values = {}
    for key, metric in metrics_of(collection).items():
        metric = metric.to(batches[0][0].device)
        for args in batches:
            metric.update(*args)
        values[key] = pytest.approx(metric.compute().item(), abs=1e-12)
    return values


@pytest.fixture
def collection(device):
    return make(NAMES, k=[1, 5]).to(device)


def test_update_forward_and_compute_give_the_values_of_each_metric_alone(collection, device):
    first, second = batch(1, device=device), batch(2, device=device)
    collection.update(*first)

    assert numbers(collection(*second)) == alone(collection, second)
    assert numbers({key: value._forward_cache for key, value in collection.items()}) == alone(collection, second)
    assert numbers(collection.compute()) == alone(collection, first, second)


def test_standard_errors_are_those_of_each_value(collection, device):
    collection.update(*batch(1, device=device))
    errors = {key: value.standard_error().item() for key, value in collection.items()}

    assert numbers(collection.standard_errors()) == errors


def test_a_reset_forgets_all_batches_and_keeps_the_last_result(collection, device):
    first, second = batch(1, rows=16, device=device), batch(2, device=device)
    collection.update(*first)
    collection.compute()
    collection.reset()

    assert collection["HR@1"].num_users == 16
    collection.update(*second)
    assert numbers(collection.compute()) == alone(collection, second)


@pytest.mark.parametrize(
    ("metrics", "k", "depth"),
    [
        (["HR", "NDCG"], [20, 5], 20),
        (["HR", "MAP@7"], 5, 7),
        (["HR", "RPrecision"], 2, 3),
        (["HR", "AUROC"], 2, None),
        (["HR", trm.MRR()], 2, None),
    ],
)
def test_scores_are_counted_once_a_batch_as_deep_as_the_deepest_metric_needs(metrics, k, depth, monkeypatch, device):
    depths, count = [], eager.count

    def recording(scores, question):
        depths.append(question.depth)
        return count(scores, question)

    monkeypatch.setattr(eager, "count", recording)
    collection = make(metrics, k=k).to(device)
    collection.update(*batch(1, device=device))
    collection(*batch(2, device=device))

    assert depths == [depth, depth]


def test_candidates_are_counted_if_any_metric_needs_it(device):
    """Not only if the first one does: precision among the recommended items does."""
    collection = make([trm.HR(2), trm.Precision(5, denominator="recommended"), trm.NDCG(3)]).to(device)
    collection.update(*batch(1, items=4, device=device))

    assert numbers(collection.compute()) == alone(collection, batch(1, items=4, device=device))


def test_columns_of_ranks_beyond_all_cutoffs_change_no_value_but_r_precision(device):
    collection = make(["HR", "Recall", "RPrecision"], k=3).to(device)
    collection.update(torch.tensor([[9, 2, 0, 4, 1], [6, 5, 4, 3, 9]], device=device), depth=9)

    assert numbers(collection.compute()) == pytest.approx(
        {"HR@3": 1, "Recall@3": (2 / 4 + 1 / 5) / 2, "RPrecision": (3 / 4 + 3 / 5) / 2}
    )


def test_metrics_of_a_row_with_one_relevant_item_are_made_of_its_rank():
    collection = make([trm.HR(1), trm.Precision(5), trm.NDCG(5), trm.MRR(20)])
    collection.update(torch.tensor([1, 4]), depth=20)
    expected = {"HR@1": 1 / 2, "Precision@5": 1 / 5, "NDCG@5": (1 + 1 / log2(5)) / 2, "MRR@20": (1 / 1 + 1 / 4) / 2}

    assert numbers(collection.compute()) == pytest.approx(expected)


def test_mean_ranks_between_whole_numbers_count_as_they_are():
    collection = make("MRR", k=5)
    collection.update(trm.Ranks(torch.tensor([[2.2], [4.4]]), depth=5))

    assert collection.compute()["MRR@5"].item() == pytest.approx((1 / 2.2 + 1 / 4.4) / 2)


def test_keys_are_in_order_of_k_and_then_of_the_names():
    """Metrics without a cut-off come last."""
    collection = make(["NDCG", "hitrate", "AUROC", "map@7", trm.HR(3)], k=[20, 5])
    collection.update(*batch(1))

    assert list(collection.compute()) == ["HR@3", "NDCG@5", "HR@5", "MAP@7", "NDCG@20", "HR@20", "AUROC"]


@pytest.mark.parametrize(
    ("collection", "keys"),
    [
        (make(["HR", "AUROC"], k=5, prefix="val/", postfix="_x"), ["val/HR@5_x", "val/AUROC_x"]),
        (make(["HR", "AUROC"], k=5, key_format="top{k}_{name}"), ["top5_HR", "AUROC"]),
        (make(["HR", "AUROC"], k=5, key_format=lambda name, k: f"{name.lower()}:{k}"), ["hr:5", "auroc:None"]),
        (make({"mine": trm.HR(3)}), ["mine"]),
        (make("HR@3"), ["HR@3"]),
        (make("HR", k=torch.tensor(3)), ["HR@3"]),
        *((make([name], k=1), ["HR@1"]) for name in ("hr", "HitRatio", "hit_rate", "Hit-Ratio", "Success")),
        (make("hits@1"), ["HR@1"]),
        (make(["P@5", "R@5", "mean_average_precision"], k=3), ["MAP@3", "Precision@5", "Recall@5"]),
        (make(["RR", "AP"], k=10), ["MRR@10", "MAP@10"]),
    ],
)
def test_keys_are_made_of_names_in_any_spelling_with_prefix_postfix_and_format(collection, keys):
    assert list(collection.keys()) == keys


def test_a_clone_has_the_prefix_that_it_is_given_in_place_of_its_own():
    assert list(make("HR@5", prefix="val/", postfix="_x").clone(prefix="test/").keys()) == ["test/HR@5_x"]


OURS = {"ILD": "IntraListDiversity", "ARP": "AveragePopularity", "APLT": "TailShare", "Cov": "Coverage"}


@pytest.mark.parametrize(("printed", "ours"), {**OURS, "RSP": "StatisticalParity", "REO": "EqualOpportunity"}.items())
def test_a_name_that_papers_print_is_answered_with_ours(printed, ours):
    with pytest.raises(ValueError, match=f"^{ours}"):
        make([printed], k=10)


class NamesItsCutoff(trm.RankingMetric):
    formula = staticmethod(trm.functional.hit_rate)

    def __init__(self, top_k):
        super().__init__(top_k)


class KnowsItsCutoff(trm.HitRate):
    def __init__(self):
        super().__init__(3)


@pytest.mark.parametrize("metric", [NamesItsCutoff(top_k=3), KnowsItsCutoff()])
def test_a_metric_of_ones_own_may_name_or_know_its_cutoff(metric):
    assert [each.k for each in (metric, copy.copy(metric), copy.deepcopy(metric))] == [3, 3, 3]


OTHER_TIES = trm.MRR(ties="pessimistic")
THRESHOLDS = [trm.HR(5, score_threshold=1.0), trm.HR(5, score_threshold=2.0)]


@pytest.mark.parametrize(
    ("metrics", "options", "error", "message"),
    [
        ([], {}, ValueError, "at least one metric"),
        (["nDGC"], {"k": 5}, ValueError, "unknown metric 'nDGC'; did you mean 'NDCG'"),
        (["xyz9"], {"k": 5}, ValueError, "unknown metric 'xyz9'. Cut-offs follow '@'. Known: AUROC, DCG"),
        (["MRR@k"], {}, ValueError, "'MRR@k': the cut-off after '@' must be a whole number, such as MRR@10"),
        (["HR"], {}, ValueError, "'HR' needs a cut-off: pass k="),
        (["AUROC@5"], {}, ValueError, "AUROC has no cut-off"),
        (["HR"], {"k": [5, 5]}, ValueError, "two metrics have the key 'HR@5'"),
        (["HR"], {"k": 0}, ValueError, "k must be at least 1"),
        (["HR"], {"k": True}, TypeError, "k must be an integer"),
        (torch.rand(2, 3), {}, TypeError, "metrics come first, .*, got a torch.float32 tensor"),
        (5, {}, TypeError, "metrics come first, as a name, a metric, a list of them or a dict"),
        ([MeanMetric()], {}, TypeError, "holds names such as .*, got MeanMetric"),
        ([trm.HR], {}, TypeError, r"HitRate is a class: pass an instance, such as HitRate\(10\)"),
        ({3: trm.HR(5)}, {}, ValueError, "a key must be a string"),
        (["HR"], {"k": 5, "key_format": "{name}.{k}"}, ValueError, "holds no '.'"),
        (["HR"], {"k": 5, "key_format": "{metric}"}, ValueError, "key_format takes {name} and {k}"),
        (["HR"], {"k": 5, "key_format": lambda name, k: k}, TypeError, "must return a string, got 5"),
        (["HR"], {"k": 5, "key_format": 3}, TypeError, "a string or a function of name and k, got 3"),
        (["HR"], {"k": 5, "tie": "realistic"}, ValueError, "no option 'tie'; did you mean 'ties'"),
        (["NDCG"], {"k": 5, "gain": "linear"}, ValueError, r"no option 'gain': pass an instance, such as trm\.DCG\(10"),
        (["HR", OTHER_TIES], {"k": 5}, ValueError, "MRR was made with ties='pessimistic', HR@5 with ties='expected'"),
        (["HR", trm.MRR()], {"k": 5, "padding_idx": 0}, ValueError, "padding_idx=None, the collection with padding_i"),
        ([trm.HR(5)], {"sync_on_compute": False}, ValueError, "sync_on_compute=True"),
        (THRESHOLDS, {}, ValueError, r"different score_thresholds \[1.0, 2.0\] need separate collections"),
    ],
)
def test_a_bad_argument_is_refused(metrics, options, error, message):
    with pytest.raises(error, match=message):
        make(metrics, **options)


@pytest.mark.parametrize(
    "metrics",
    ["NDCG@10", ["NDCG@10", "MAP@100"], [trm.NDCG(10)], "AUROC", {"a": trm.NDCG(10)}, ["NDCG@10", trm.AUROC()]],
)
def test_a_cutoff_that_no_metric_reads_is_refused(metrics):
    """Each metric has a cut-off of its own, or none, so that `k=` would be ignored."""
    with pytest.raises(ValueError, match=r"k=\[5, 20\] is (read by no metric|for names of metrics)"):
        make(metrics, k=[5, 20])


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda: make(["NDCG"], k=5)["NDGC@5"], KeyError, "the key 'NDGC@5'; did you mean 'NDCG@5'"),
        (lambda: make("HR@5", prefix="val/")["mrr"], KeyError, "the key 'mrr'. There are val/HR@5"),
        (lambda: make("HR@5").update(mask=1), TypeError, "update has no argument 'mask'"),
        (lambda: make("HR@5").rows, ValueError, "no rows were kept: make the collection with accumulators="),
        (lambda: make("HR@2").add_metrics(trm.NDCG(10)), TypeError, "a collection is made with all its metrics"),
        (lambda: make("HR@2").__setitem__("mine", trm.NDCG(10)), TypeError, "a collection is made with all its"),
        (lambda: make("HR@2").__delitem__("HR@2"), TypeError, "a collection is made with all its metrics"),
    ],
)
def test_what_a_collection_does_not_have_is_refused(ask, error, message):
    with pytest.raises(error, match=message):
        ask()


def test_accumulators_are_those_that_were_given():
    """Coverage counts items in an accumulator of its own, which is not among them."""
    window = trm.Window(updates=1)
    collection = make(["Coverage"], k=2, catalogue=trm.Catalogue(5), accumulators=[window])

    assert collection.accumulators == [window]


def test_two_halves_merge_to_the_whole(collection, device):
    first, second = batch(1, device=device), batch(2, device=device)
    other = collection.clone(prefix="b/")
    collection.update(*first)
    collection.compute()
    other.update(*second)
    collection.merge_state(other)

    assert numbers(collection.compute()) == alone(collection, first, second)


@pytest.mark.parametrize(
    ("other", "error", "message"),
    [
        (make({"HR@1": trm.HR(1), "MRR@2": trm.MRR(7)}), ValueError, "merges states named"),
        (make(["HR@1"]), ValueError, r"the same metrics can be merged; only one of the two has \['MRR@2'\]"),
        (make(["HR@1", "MRR@2"]).to("meta"), ValueError, r"the state on meta: move one with .to\(device\)"),
        (make(["HR@1", "MRR@2"])["MRR@2"], TypeError, "merges a RecMetricCollection, got "),
        ({}, TypeError, "merges a RecMetricCollection, got dict"),
    ],
)
def test_a_merge_that_is_refused_changes_no_metric(other, error, message):
    collection = make(["HR@1", "MRR@2"])
    collection.update(*batch(1))
    before = snapshot(collection)

    with pytest.raises(error, match=message):
        collection.merge_state(other)
    assert same(snapshot(collection), before)


@pytest.mark.parametrize("call", ["update", "forward"])
def test_a_call_that_the_last_metric_refuses_changes_no_metric(call, device):
    three_ranks = trm.Scores(*batch(1, device=device)).ranking(depth=3)  # enough for HR@2
    collection = make(["HR@2", "HR@9"]).to(device)
    before = snapshot(collection)

    with pytest.raises(ValueError, match="needs the first 9 ranks"):
        getattr(collection, call)(three_ranks)
    assert same(snapshot(collection), before)


def test_a_value_cannot_be_computed_when_another_one_was_updated_alone():
    collection = make(["HR@2", "HR@5"])
    collection["HR@5"].update(*batch(1))

    with pytest.raises(ValueError, match="HR@2 was not updated with the other values: update the collection"):
        collection["HR@2"].compute()


def test_a_value_which_has_no_state_of_its_own_cannot_be_merged():
    collection = make(["HR@2", "HR@5"])
    with pytest.raises(TypeError, match="HR@5 has no state of its own: merge the collections"):
        collection["HR@5"].merge_state(collection["HR@2"])


def test_a_reset_of_one_value_is_that_of_all(device):
    collection = make(["HR", "NDCG"], k=[2, 5]).to(device)
    collection.update(*batch(1, device=device))
    collection["NDCG@2"].reset()

    assert not any(state.any() for state in tensors(collection))


def collection_of(how_many):
    return make(NAMES, k=range(1, how_many + 1)) if how_many else make("HR@1")


def collectives(rank, world_size, how_many, order):
    """Compute all values, then one by one as `log_dict` does; return values and the number of collectives of each.

    Only process `order` has a first update.
    """
    collection = collection_of(how_many)
    if rank == order:
        collection.update(*batch(1))
    with distributed.counted_collectives() as calls:
        values = numbers(collection.compute())
        collection.compute()
        once = len(calls)
        collection.update(*batch(2 + rank))
        one_by_one = {key: metric.compute().item() for key, metric in collection.items()}
    return values, once, one_by_one, len(calls) - once


@pytest.mark.parametrize("how_many", [0, 1, 5])
@pytest.mark.parametrize("order", [0, 1])
def test_1_9_or_37_metrics_need_two_collectives(how_many, order, processes):
    """One float and one integer vector are reduced, also if values are computed singly."""
    collection = collection_of(how_many)
    first, all_three = alone(collection, batch(1)), alone(collection, batch(1), batch(2), batch(3))

    assert processes.run(collectives, 2, how_many, order) == [(first, 2, all_three, 2)] * 2
