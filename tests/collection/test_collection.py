"""RecMetricCollection: one kernel call, one synchronisation, ordered keys, right values after any first batch."""

import copy

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


def alone(collection, *batches, **columns):
    """Return the value of every metric when it is updated by itself."""
    out = {}
    for key, metric in metrics_of(collection).items():
        metric = metric.to(batches[0][0].device)
        for args in batches:
            metric.update(*args, **columns)
        out[key] = pytest.approx(metric.compute().item(), abs=1e-12)
    return out


@pytest.fixture
def collection(device):
    return make(NAMES, k=[1, 5]).to(device)


def test_equals_its_members_alone(collection, device):
    """update, forward, compute and standard_errors give the values that every member gives by itself."""
    first, second = batch(1, device=device), batch(2, device=device)
    collection.update(*first)
    assert numbers(collection(*second)) == alone(collection, second)
    assert numbers(collection.compute()) == alone(collection, first, second)
    errors = {key: metric.standard_error().item() for key, metric in collection.items()}
    assert numbers(collection.standard_errors()) == errors
    assert all(metric._forward_cache is not None for metric in collection.values())
    collection.reset()
    assert collection["HR@1"].num_users == 16  # the last result stays
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
def test_one_kernel_call_at_the_depth_needed(metrics, k, depth, monkeypatch, device):
    """Scores are counted once per update or forward, only as deep as the deepest of all members needs."""
    depths = []
    count = eager.count

    def counting(scores, question):
        depths.append(question.depth)
        return count(scores, question)

    collection = make(metrics, k=k).to(device)
    monkeypatch.setattr(eager, "count", counting)
    collection.update(*batch(1, device=device))
    collection(*batch(2, device=device))
    assert depths == [depth, depth]


def test_a_member_gets_what_it_alone_needs(device):
    """All candidates are counted if any member needs it, and not only if the first one does."""
    collection = make([trm.HR(2), trm.Precision(5, denominator="recommended"), trm.NDCG(3)]).to(device)
    collection.update(*batch(1, items=4, device=device))
    assert numbers(collection.compute()) == alone(collection, batch(1, items=4, device=device))


def test_columns_of_ranks(device):
    """Columns of ranks that no cut-off can reach change no value; R-precision reads ranks beyond all cut-offs."""
    ranks = torch.tensor([[9, 2, 0, 4, 1], [3, 0, 7, 8, 2], [6, 5, 4, 3, 9]], device=device)
    collection, whole = (make(["HR", "NDCG", "MAP", "Recall", "F1", "MRR"], k=[1, 3]).to(device) for _ in range(2))
    collection.update(ranks, depth=9)
    whole.update(trm.Ranks(ranks, depth=9))
    assert numbers(collection.compute()) == numbers(whole.compute())
    assert collection["Recall@3"].compute().item() == pytest.approx((2 / 4 + 2 / 4 + 1 / 5) / 3)
    collection = make(["HR", "RPrecision"], k=2).to(device)
    collection.update(torch.tensor([[4, 1, 9, 3], [2, 7, 0, 0]], device=device), depth=20)
    assert numbers(collection.compute()) == {"HR@2": 1.0, "RPrecision": (3 / 4 + 1 / 2) / 2}


def test_keys_in_numeric_order():
    """Keys are in order of k, then in the order of the names; members without a cut-off come last."""
    collection = make(["NDCG", "hitrate", "AUROC", "map@7", trm.MRR(), trm.HR(3)], k=[100, 5, 20])
    expected = "HR@3 NDCG@5 HR@5 MAP@7 NDCG@20 HR@20 NDCG@100 HR@100 AUROC MRR"
    assert list(collection.keys()) == expected.split()
    collection.update(*batch(1))
    assert list(collection.compute()) == expected.split()


@pytest.mark.parametrize(
    ("collection", "keys"),
    [
        (make(["HR", "AUROC"], k=5, prefix="val/", postfix="_x"), ["val/HR@5_x", "val/AUROC_x"]),
        (make(["HR", "AUROC"], k=5, key_format="top{k}_{name}"), ["top5_HR", "AUROC"]),
        (make(["HR", "AUROC"], k=5, key_format=lambda name, k: f"{name.lower()}:{k}"), ["hr:5", "auroc:None"]),
        (make({"mine": trm.HR(3)}), ["mine"]),
        (make("HR@3"), ["HR@3"]),
        (make("HR", k=torch.tensor(3)), ["HR@3"]),
        *((make([name], k=1), ["HR@1"]) for name in ("hr", "HitRatio", "hit_rate", "Hit-Ratio")),
        (make(["hits@1"]), ["HR@1"]),
        (make(["P@5", "R@5", "mean_average_precision"], k=3), ["MAP@3", "Precision@5", "Recall@5"]),
    ],
)
def test_keys(collection, keys):
    """Keys are made of names, in any spelling, with prefix, postfix and key_format, a string or a function."""
    assert list(collection.keys()) == keys
    assert list(collection.clone(prefix="test/").keys()) == [f"test/{key.removeprefix('val/')}" for key in keys]


def test_a_metric_of_ones_own_may_name_or_know_its_k():
    class Own(trm.RankingMetric):
        formula = staticmethod(trm.functional.hit_rate)

        def __init__(self, top_k):
            super().__init__(top_k)

    class Ten(trm.HitRate):
        def __init__(self):
            super().__init__(10)

    assert Own(top_k=3).k == copy.deepcopy(Own(3)).k == 3
    assert Ten().k == copy.deepcopy(Ten()).k == copy.copy(Ten()).k == 10


def test_merge_state(collection, device):
    """Two halves merge to the whole, with a prefix or without; a merge that is refused changes no member."""
    other = collection.clone(prefix="b/")
    first, second = batch(1, device=device), batch(2, device=device)
    collection.update(*first)
    collection.compute()
    other.update(*second)
    collection.merge_state(other)
    assert numbers(collection.compute()) == alone(collection, first, second)
    before, (*metrics, (last, _)) = snapshot(collection), collection.metrics.items()
    wrong = make({**dict(metrics), last: trm.HR(77)}).to(device)
    fewer = make(dict(metrics)).to(device)
    for bad, error, message in (
        (wrong, ValueError, "merges states named"),
        (fewer, ValueError, rf"collections of the same metrics can be merged; only one of the two has \['{last}'\]"),
        (collection.clone().to("meta"), ValueError, r"the state on meta: move one with .to\(device\)"),
        (collection[last], TypeError, "merges a RecMetricCollection, got "),
        ({}, TypeError, "merges a RecMetricCollection, got dict"),
    ):
        with pytest.raises(error, match=message):
            collection.merge_state(bad)
        assert same(snapshot(collection), before)


@pytest.mark.parametrize("call", ["update", "forward"])
def test_a_rejected_call_changes_no_member(call, device):
    """All members check the input before any of them changes: a call that the last one refuses changes none."""
    collection = make(["HR@2", "MRR@3", "HR@9"]).to(device)
    collection.update(*batch(1, device=device))
    before = snapshot(collection)
    with pytest.raises(ValueError, match="needs the first 9 ranks"):
        getattr(collection, call)(trm.Scores(*batch(2, device=device)).ranking(depth=3))
    assert same(snapshot(collection), before)
    assert collection.evaluator.update_count == 1


OTHER_TIES = trm.MRR(ties="pessimistic")
THRESHOLDS = [trm.HR(5, score_threshold=1.0), trm.HR(5, score_threshold=2.0)]
BAD = [
    ([], {}, ValueError, "at least one metric"),
    (["nDGC"], {"k": 5}, ValueError, "unknown metric 'nDGC'; did you mean 'NDCG'?"),
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
    ([trm.HR], {}, TypeError, "HitRate is a class: pass an instance, such as HitRate\\(10\\)"),
    ({3: trm.HR(5)}, {}, ValueError, "a key must be a string"),
    (["HR"], {"k": 5, "key_format": "{name}.{k}"}, ValueError, "holds no '.'"),
    (["HR"], {"k": 5, "key_format": "{metric}"}, ValueError, "key_format takes {name} and {k}"),
    (["HR"], {"k": 5, "key_format": lambda name, k: k}, TypeError, "must return a string, got 5"),
    (["HR"], {"k": 5, "key_format": 3}, TypeError, "a string or a function of name and k, got 3"),
    (["HR"], {"k": 5, "tie": "realistic"}, ValueError, "no option 'tie'; did you mean 'ties'"),
    (
        ["NDCG"],
        {"k": 5, "gain": "linear"},
        ValueError,
        r"has no option 'gain': pass an instance, such as trm\.DCG\(10, gain=\.\.\.\)",
    ),
    (["HR", OTHER_TIES], {"k": 5}, ValueError, "MRR was made with ties='pessimistic', HR@5 with ties='expected'"),
    (["HR", trm.MRR()], {"k": 5, "padding_idx": 0}, ValueError, "padding_idx=None, the collection with padding_idx=0"),
    ([trm.HR(5)], {"sync_on_compute": False}, ValueError, "sync_on_compute=True"),
    (THRESHOLDS, {}, ValueError, r"different score_thresholds \[1.0, 2.0\] need separate collections"),
]


@pytest.mark.parametrize(("metrics", "options", "error", "message"), BAD)
def test_bad_arguments(metrics, options, error, message):
    """A bad argument of a collection raises an error that says what is wrong."""
    with pytest.raises(error, match=message.replace("?", r"\?")):
        make(metrics, **options)


def test_what_a_collection_does_not_have():
    with pytest.raises(KeyError, match="the key 'NDGC@5'; did you mean 'NDCG@5'"):
        make(["NDCG"], k=5)["NDGC@5"]
    with pytest.raises(KeyError, match=r"the key 'mrr'. There are val/HR@5"):
        make("HR@5", prefix="val/")["mrr"]
    with pytest.raises(TypeError, match="update has no argument 'mask'"):
        make("HR@5").update(mask=1)
    with pytest.raises(ValueError, match="no rows were kept: make the collection with accumulators="):
        _ = make("HR@5").rows


def collection_of(how_many):
    return make(NAMES, k=range(1, how_many + 1)) if how_many else make("HR@1")


def collectives(rank, world_size, how_many, order):
    """Compute on two processes, one of which has no update, and count the collectives."""
    collection = collection_of(how_many)
    if rank == order:
        collection.update(*batch(1))
    with distributed.counted_collectives() as calls:
        values = numbers(collection.compute())
        once = len(calls)
        collection.compute()
        # log_dict computes members one by one
        collection.update(*batch(2)) if rank == 0 else collection.update(*batch(3))
        one_by_one = {key: metric.compute().item() for key, metric in collection.items()}
    return values, once, one_by_one, len(calls)


@pytest.mark.parametrize("how_many", [0, 1, 5])
@pytest.mark.parametrize("order", [0, 1])
def test_two_collectives_for_all_members(how_many, order, processes):
    """A compute reduces one float and one integer vector, for 1, 9 or 37 metrics, also if members compute singly."""
    for values, once, one_by_one, twice in processes.run(collectives, 2, how_many, order):
        collection = collection_of(how_many)
        assert values == alone(collection, batch(1))
        assert one_by_one == alone(collection, batch(1), batch(2), batch(3))
        assert (once, twice) == (2, 4)


class RowNumber(trm.RankingMetric):
    """The number of the row, which does not depend on ranks."""

    formula = staticmethod(
        lambda ranking, k: torch.arange(len(ranking), dtype=torch.float64, device=ranking.ranks.device)
    )


@pytest.mark.parametrize("action", ["skip", "neg", "pos"])
@pytest.mark.parametrize("ties", ["realistic", "optimistic", "pessimistic"])
def test_one_relevant_item_a_row(ties, action, device):
    """Formulas of one rank, which are looked up by that rank, give the same numbers as each metric by itself."""
    generator = torch.Generator().manual_seed(0)
    scores = (3 * torch.randn(200, 40, generator=generator)).round().to(device)  # full of ties
    target = torch.randint(-1, 40, (200,), generator=generator).to(device)
    options = {"ties": ties, "empty_target_action": action}
    own = [trm.MAP(7, normalize="min", **options), trm.Precision(5, normalize="min", **options)]
    own += [trm.Recall(5, weighted=True, **options), trm.RPrecision(**options)]
    for members in (
        [trm.HR(1, **options), trm.NDCG(5, **options), trm.MRR(20, **options), trm.MAP(20, **options)],
        own,
        [trm.Precision(5, denominator="recommended", **options), trm.HR(5, score_threshold=2.0, **options)],
        [trm.MRR(5, **options), trm.HR(5, **options), RowNumber(5, **options)],
    ):
        several = make(members, accumulators=[trm.KeptRows()], **options).to(device)
        several.update(scores, target)
        several.compute()
        for key, metric in several.metrics.items():
            by_itself = make([metric], accumulators=[trm.KeptRows()], **options).to(device)
            by_itself.update(scores, target)
            assert several[key].compute().item() == pytest.approx(by_itself.compute()[key].item(), abs=1e-15)
            one, other = (rows.values[key].nan_to_num(-1) for rows in (several.rows, by_itself.rows))
            assert one.equal(other)


def test_places_of_others_are_not_looked_up():
    """Ranks made by the caller are not looked up, as they may be any numbers from 1 on."""
    collection = make(["MRR", "NDCG", "HR"], k=5)
    collection.update(trm.Ranks(torch.tensor([[2.2], [4.4]]), depth=5))
    assert collection.compute()["MRR@5"].item() == pytest.approx((1 / 2.2 + 1 / 4.4) / 2)


def test_values_are_not_updated_alone(device):
    """A value has no state of its own."""
    args, collection = batch(1, device=device), make(["HR", "NDCG"], k=[2, 5]).to(device)
    collection.update(*args)
    collection["HR@5"].update(*args)

    with pytest.raises(ValueError, match="HR@2 was not updated with the other values: update the collection"):
        collection["HR@2"].compute()
    assert numbers(collection.compute()) == alone(collection, args)
    with pytest.raises(TypeError, match="HR@5 has no state of its own: merge the collections"):
        collection["HR@5"].merge_state(collection["HR@2"])


def test_a_reset_of_one_value_is_that_of_all(device):
    collection = make(["HR", "NDCG"], k=[2, 5]).to(device)
    collection.update(*batch(1, device=device))
    collection["NDCG@2"].reset()

    assert not any(state.any() for state in tensors(collection))


@pytest.mark.parametrize(
    "call", [("add_metrics", trm.NDCG(10)), ("__setitem__", "mine", trm.NDCG(10)), ("__delitem__", "HR@2")], ids=str
)
def test_a_collection_is_made_with_all_its_metrics(call):
    name, *arguments = call
    with pytest.raises(TypeError, match="a collection is made with all its metrics"):
        getattr(make("HR@2"), name)(*arguments)


def test_values_of_a_batch_may_be_overwritten(device):
    """Values that were added may be overwritten, as recorded graphs do, after the first batch and after later ones."""
    collection, args = make(["HR", "NDCG"], k=[2, 5]).to(device), batch(1, device=device)
    wanted = numbers(collection(*args))
    collection.reset()
    for _ in range(2):
        rows = collection.evaluator._batch_rows(trm.Scores(*args))
        collection.evaluator._add_rows(rows)
        rows.values.fill_(torch.nan)
        rows.undefined.fill_(True)
    assert numbers(collection.compute()) == wanted
    assert collection["HR@2"].num_users == 16


def test_names_of_papers():
    """Names that papers print are those of metrics of ours, or told so by the error."""
    assert list(trm.RecMetricCollection(["Success", "RR", "AP"], k=10).keys()) == ["HR@10", "MRR@10", "MAP@10"]
    others = {"ILD": "IntraListDiversity", "ARP": "AveragePopularity", "APLT": "TailShare", "Cov": "Coverage"}
    others |= {"RSP": "StatisticalParity", "REO": "EqualOpportunity"}
    for printed, ours in others.items():
        with pytest.raises(ValueError, match=f"^{ours}"):
            trm.RecMetricCollection([printed], k=10)


@pytest.mark.parametrize(
    "metrics",
    ["NDCG@10", ["NDCG@10", "MAP@100"], [trm.NDCG(10)], "AUROC", {"a": trm.NDCG(10)}, ["NDCG@10", trm.AUROC()]],
)
def test_a_cutoff_that_no_metric_reads_is_refused(metrics):
    """Each metric has a cut-off of its own, or none, so that `k=` would be ignored."""
    with pytest.raises(ValueError, match=r"k=\[5, 20\] is (read by no metric|for names of metrics)"):
        make(metrics, k=[5, 20])


def test_accumulators_are_those_that_were_given():
    """Coverage counts items in an accumulator of its own, which is not among them."""
    window = trm.Window(updates=1)
    collection = trm.RecMetricCollection(["Coverage"], k=2, catalogue=trm.Catalogue(5), accumulators=[window])

    assert collection.accumulators == [window]
