"""RecMetricCollection: one kernel call, one synchronisation, ordered keys, right values after any first batch."""

import copy
import pickle
import re
import sys
from functools import partial

import distributed
import pytest
import torch
from states import same, snapshot, tensors
from torchmetrics import MeanMetric, MetricCollection
from values import numbers

import torchrecmetrics as trm
from torchrecmetrics import names as names_of_metrics
from torchrecmetrics.kernels import eager

NAMES = ["HR", "NDCG", "MRR", "Precision", "Recall", "F1", "MAP", "RPrecision", "AUROC"]


def batch(seed, rows=8, items=30, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(rows, items, generator=generator)
    return scores.to(device), torch.rand(rows, items, generator=generator).argsort(1)[:, :3].to(device)


def alone(collection, *batches):
    """Return the value of every metric when it is updated by itself."""
    out = {}
    for key, metric in collection.metrics.items():
        metric = metric.clone().to(batches[0][0].device)
        for args in batches:
            metric.update(*args)
        out[key] = pytest.approx(metric.compute().item(), abs=1e-12)
    return out


@pytest.fixture
def collection(device):
    return trm.RecMetricCollection(NAMES, k=[1, 5]).to(device)


def test_equals_its_members_alone(collection, device):
    """update, forward and compute give the values that every member gives by itself."""
    first, second = batch(1, device=device), batch(2, device=device)
    collection.update(*first)
    assert numbers(collection(*second)) == alone(collection, second)
    assert numbers(collection.compute()) == alone(collection, first, second)
    assert all(metric._forward_cache is not None for metric in collection.values())
    collection.reset()
    assert collection["HR@1"].num_users == 16  # the last result stays
    collection.update(*second)
    assert numbers(collection.compute()) == alone(collection, second)


@pytest.mark.parametrize("form", ["scores", "ranks", "ranking"])
def test_three_forms_by_position_and_by_keyword(form, device):
    """update and forward take scores, ranks or a Ranking, by position or by keyword `scores`."""
    collection = trm.RecMetricCollection(["HR", "NDCG"], k=[1, 5]).to(device)
    scores, target = batch(1, device=device)
    ranks = trm.get_topk_ranks(scores, target, 5)
    ranking = trm.Scores(scores, target).ranking()
    args = {"scores": (scores, target), "ranks": (ranks,), "ranking": (ranking,)}[form]
    kwargs = {
        "scores": {"scores": scores, "target": target},
        "ranks": {"scores": ranks},
        "ranking": {"scores": ranking},
    }[form]
    for call in (lambda: collection.update(*args), lambda: collection.update(**kwargs), lambda: collection(*args)):
        call()
        collection(**kwargs)
    assert numbers(collection.compute()) == alone(collection, (scores, target))


@pytest.mark.parametrize("first", ["hitless", "all hits"])
def test_first_batch_decides_nothing(first, device):
    """Metrics with equal states after the first batch, all 0 or all 1, are not merged."""
    scores = torch.arange(30.0, device=device).repeat(8, 1)
    target = torch.full((8, 1), 0 if first == "hitless" else 29, device=device)
    names = ["HR", "NDCG", "MRR", "MAP", "Recall"]
    collection = trm.RecMetricCollection(names, k=[1, 5]).to(device)
    plain = MetricCollection({key: metric.clone() for key, metric in collection.metrics.items()}).to(device)
    nested = MetricCollection([collection.clone(prefix="a/"), MetricCollection({"b": trm.HR(5).to(device)})])
    later = batch(3, device=device)
    for several in (collection, plain, nested):
        several.update(scores, target)
        several.update(*later)
    expected = alone(collection, (scores, target), later)
    assert numbers(collection.compute()) == numbers(plain.compute()) == expected
    assert numbers(nested.compute()) == {f"a/{key}": value for key, value in expected.items()} | {"b": expected["HR@5"]}
    assert len({value.item() for value in collection.compute().values()}) > 4


def test_the_classic_snippet():
    """The twenty lines that people copy, with our names in them, are right after a first batch without hits."""
    max_k, metrics = 10, {"HR": trm.HitRate, "NDCG": trm.NDCG, "MRR": trm.MRR}
    metric = MetricCollection({f"{name}@{k}": cls(k) for name, cls in metrics.items() for k in (1, 5, max_k)})
    pred_scores = torch.stack([torch.arange(50.0)] * 4)
    for target in (torch.zeros(4, 1, dtype=torch.int64), torch.tensor([[49], [47], [40], [0]])):
        all_ranks = trm.get_topk_ranks(pred_scores, target, max_k)
        metric.update(all_ranks)
    expected = {"HR@1": 1 / 8, "HR@5": 2 / 8, "HR@10": 3 / 8, "MRR@10": (1 + 1 / 3 + 1 / 10) / 8}
    assert {key: value.item() for key, value in metric.compute().items() if key in expected} == pytest.approx(expected)


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

    collection = trm.RecMetricCollection(metrics, k=k).to(device)
    monkeypatch.setattr(eager, "count", counting)
    collection.update(*batch(1, device=device))
    collection(*batch(2, device=device))
    assert depths == [depth, depth]


def test_a_member_gets_what_it_alone_needs(device):
    """All candidates are counted if any member needs it, and not only if the first one does."""
    members = [trm.HR(2).to(device), trm.Precision(5, denominator="recommended").to(device), trm.NDCG(3).to(device)]
    scores, target = batch(1, items=4, device=device)
    collection = trm.RecMetricCollection([metric.clone() for metric in members]).to(device)
    collection.update(scores, target)
    assert numbers(collection.compute()) == {metric.label: metric(scores, target).item() for metric in members}


def test_ranks_are_kept_as_far_as_any_member_reads(device):
    """R-precision reads ranks beyond every cut-off of the other members."""
    ranks = torch.tensor([[4, 1, 9, 3], [2, 7, 0, 0]], device=device)
    collection = trm.RecMetricCollection(["HR", "RPrecision"], k=2)
    collection.to(device).update(ranks, depth=20)
    assert numbers(collection.compute()) == {"HR@2": 1.0, "RPrecision": (3 / 4 + 1 / 2) / 2}


def test_keys_in_numeric_order():
    """Keys are in order of k, then in the order of the names; members without a cut-off come last."""
    collection = trm.RecMetricCollection(["NDCG", "hitrate", "AUROC", "map@7", trm.MRR(), trm.HR(3)], k=[100, 5, 20])
    expected = "HR@3 NDCG@5 HR@5 MAP@7 NDCG@20 HR@20 NDCG@100 HR@100 AUROC MRR"
    assert list(collection.keys()) == expected.split()
    collection.update(*batch(1))
    assert list(collection.compute()) == expected.split()


def test_key_formats():
    """Keys are made with prefix, postfix and key_format, which is a string or a function."""
    names = ["HR", "AUROC"]
    assert list(trm.RecMetricCollection(names, k=5, prefix="val/", postfix="_x").keys()) == [
        "val/HR@5_x",
        "val/AUROC_x",
    ]
    assert list(trm.RecMetricCollection(names, k=5, key_format="top{k}_{name}").keys()) == ["top5_HR", "AUROC"]
    function = trm.RecMetricCollection(names, k=5, key_format=lambda name, k: f"{name.lower()}:{k}")
    assert list(function.keys()) == ["hr:5", "auroc:None"]
    assert function.clone(prefix="test/")["test/hr:5"].label == "HR@5"
    assert list(trm.RecMetricCollection({"mine": trm.HR(3)}).keys()) == ["mine"]
    assert list(trm.RecMetricCollection("HR@3").keys()) == ["HR@3"]
    assert list(trm.RecMetricCollection(trm.HR(4)).keys()) == ["HR@4"]
    assert list(trm.RecMetricCollection("HR", k=torch.tensor(3)).keys()) == ["HR@3"]


def test_names_are_told():
    """The names in the class's docstring are all the names that are accepted."""
    told = re.search(r"Names are (.*?)\.\n *k: ", trm.RecMetricCollection.__doc__, re.S).group(1)
    told = re.sub("of one rank|beyond accuracy|case is ignored", "", " ".join(told.split()))
    assert sorted({name.lower() for name in re.findall(r"\w+", told)}) == sorted(names_of_metrics._BY_NAME)


@pytest.mark.parametrize("name", ["HR", "hr", "Hit", "HitRatio", "hitrate", "HitRate", "hit_rate", "Hit-Ratio"])
def test_names_of_hit_rate(name):
    assert list(trm.RecMetricCollection([name], k=1).keys()) == ["HR@1"]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("P@5", "Precision@5"),
        ("R@5", "Recall@5"),
        ("mean_average_precision", "MAP@3"),
        ("mAP", "MAP@3"),
        ("hits@10", "HR@10"),
        ("Mean Reciprocal Rank@10", "MRR@10"),
    ],
)
def test_other_names(name, key):
    assert list(trm.RecMetricCollection([name], k=3).keys()) == [key]


@pytest.mark.parametrize("word", ["top_k", "topk", "K", "cutoff"])
def test_what_others_call_k(word):
    """Another word for k is refused with an error that names k."""
    users, items = torch.eye(2), torch.eye(2)
    target = trm.Interactions.from_edge_index(torch.tensor([[0], [0]]), 2, 2)
    for make in (
        partial(trm.HitRate, 10),
        trm.MAP,
        lambda **k: trm.RecMetricCollection(["HR"], **k),
        lambda **k: trm.evaluate(["HR"], users, items, target=target, **k),
    ):
        with pytest.raises(TypeError, match=rf"{word}= is called k here: k=10, or several .* k=\[5, 10\]"):
            make(**{word: 10})


def test_a_metric_of_ones_own_may_use_such_a_word():
    class Own(trm.RankingMetric):
        formula = staticmethod(trm.functional.hit_rate)

        def __init__(self, top_k):
            super().__init__(top_k)

    assert Own(top_k=3).k == copy.deepcopy(Own(3)).k == 3


def test_a_metric_of_ones_own_may_know_its_k():
    class Ten(trm.HitRate):
        def __init__(self):
            super().__init__(10)

    assert Ten().k == copy.deepcopy(Ten()).k == copy.copy(Ten()).k == 10


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda copied: pickle.loads(pickle.dumps(copied)), lambda copied: copied.clone()]
)
def test_copies(collection, duplicate, device):
    """A copy of one value comes with a copy of the collection's evaluator."""
    collection.update(*batch(1, device=device))
    other = duplicate(collection)
    other.update(*batch(2, device=device))
    assert all(value.evaluator is other.evaluator is not collection.evaluator for value in other.values())
    lone = duplicate(collection["MRR@5"])
    assert lone.evaluator is not collection.evaluator
    assert lone.compute() == collection["MRR@5"].compute()


def test_weights_gains_exclude(device):
    """All arguments of update reach every member."""
    scores, target = batch(1, device=device)
    arguments = {
        "gains": torch.arange(1, 25, device=device).view(8, 3),
        "exclude": torch.randint(0, 30, (8, 4), generator=torch.Generator().manual_seed(1)).to(device),
        "weights": torch.arange(8, device=device),
    }
    collection = trm.RecMetricCollection(NAMES, k=5, overlap="miss").to(device)
    collection.update(scores, target, **arguments)
    for key, metric in collection.metrics.items():
        metric = metric.clone().to(device)
        metric.update(scores, target, **arguments)
        assert metric.compute().item() == pytest.approx(collection.compute()[key].item(), abs=1e-12)


def test_lists_of_ids_in_place_of_ranks(device):
    """Item ids without a target, which would be read as ranks, cause a warning or an error."""
    lists = torch.rand(8, 1000, generator=torch.Generator().manual_seed(0)).topk(10).indices.to(device)
    collection = trm.RecMetricCollection(["HR", "MRR"], k=[5, 10]).to(device)
    if device.type == "cpu":
        with pytest.warns(UserWarning, match=r"without a target are ranks, .* look like item ids: .*Lists\(item_ids"):
            collection.update(lists)
        with pytest.raises(ValueError, match=r"ranks that are no places .*item ids are no ranks: Lists\)"):
            collection.update(lists.clamp(max=3), depth=10)
    collection.update(trm.Ranks(lists))  # ranks in a Ranking are taken as they are
    collection.update(lists, depth=10)
    collection.update(torch.where(torch.arange(10, device=device) < 6, lists, 0))  # padded with 0, as ranks are
    collection.update(trm.get_topk_ranks(torch.rand(8, 1000, device=device), lists, 10))
    with pytest.raises(ValueError, match=r"the depth of these ranks is unknown: .* scores \(of item ids: Lists\)"):
        trm.RecMetricCollection(["MRR"]).to(device).update(lists)


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
    wrong = trm.RecMetricCollection({**dict(metrics), last: trm.HR(77)}).to(device)
    fewer = trm.RecMetricCollection(dict(metrics)).to(device)
    for bad, error, message in (
        (wrong, ValueError, "merges states named like its own"),
        (fewer, ValueError, rf"collections of the same metrics can be merged; only one of the two has \['{last}'\]"),
        (collection.clone().to("meta"), ValueError, r"the state on meta: move one with .to\(device\)"),
        (collection[last], TypeError, "merges a RecMetricCollection, got "),
        ({}, TypeError, "merges a RecMetricCollection, got dict"),
    ):
        with pytest.raises(error, match=message):
            collection.merge_state(bad)
        assert same(snapshot(collection), before)


def test_standard_errors(collection, device):
    """standard_errors gives those of the members under the keys of compute."""
    collection.update(*batch(1, device=device))
    with pytest.raises(RuntimeError, match="call it first"):
        collection.standard_errors()
    values = collection.compute()
    errors = collection.standard_errors()
    assert errors.keys() == values.keys()
    assert numbers(errors) == {key: metric.standard_error().item() for key, metric in collection.items()}


@pytest.mark.parametrize("call", ["update", "forward"])
def test_a_rejected_call_changes_no_member(call, device):
    """All members check the input before any of them changes: a call that the last one refuses changes none."""
    collection = trm.RecMetricCollection(["HR@2", "MRR@3", "HR@9"]).to(device)
    collection.update(*batch(1, device=device))
    before = snapshot(collection)
    with pytest.raises(ValueError, match="needs the first 9 ranks"):
        getattr(collection, call)(trm.Scores(*batch(2, device=device)).ranking(depth=3))
    assert same(snapshot(collection), before)
    assert collection.evaluator.update_count == 1


BAD = [
    (lambda: trm.RecMetricCollection([]), ValueError, "at least one metric"),
    (lambda: trm.RecMetricCollection(["NDCG"], k=5)["NDGC@5"], KeyError, "the key 'NDGC@5'; did you mean 'NDCG@5'"),
    (lambda: trm.RecMetricCollection("HR@5", prefix="val/")["mrr"], KeyError, "the key 'mrr'. There are val/HR@5"),
    (lambda: trm.RecMetricCollection(["nDGC"], k=5), ValueError, "unknown metric 'nDGC'; did you mean 'NDCG'?"),
    (
        lambda: trm.RecMetricCollection(["covarage"], k=5),
        ValueError,
        "did you mean .Coverage.. Known: AUROC, DCG, F1, HR",
    ),
    (lambda: trm.RecMetricCollection(["HR"]), ValueError, "'HR' needs a cut-off: pass k="),
    (lambda: trm.RecMetricCollection(["Recall_at_10"]), ValueError, "a cut-off follows '@': Recall@10$"),
    (lambda: trm.RecMetricCollection(["RMSE"]), ValueError, "'RMSE': .* are torchmetrics.MeanSquaredError"),
    (lambda: trm.RecMetricCollection("RetrievalHitRate"), ValueError, "here it is .HR."),
    (lambda: trm.RecMetricCollection(["ERR"], k=5), ValueError, "'ERR': docs/how-to/own-metric.md"),
    (lambda: trm.RecMetricCollection(torch.rand(2, 3)), TypeError, "metrics come first, got a tensor"),
    (lambda: trm.RecMetricCollection([torch.rand(2)]), TypeError, r"^a torch.float32 tensor .* metrics come first"),
    (
        lambda: trm.RecMetricCollection(["HR@x"]),
        ValueError,
        r"what follows '@' must be a whole number, such as \w+@10; or pass '\w+' and k=10",
    ),
    (lambda: trm.RecMetricCollection(["AUROC@5"]), ValueError, "AUROC has no cut-off"),
    (lambda: trm.RecMetricCollection(["HR"], k=[5, 5]), ValueError, "two metrics have the key 'HR@5'"),
    (lambda: trm.RecMetricCollection(["HR"], k=0), ValueError, "k must be at least 1"),
    (lambda: trm.RecMetricCollection(["HR"], k=2.5), TypeError, "k must be an integer"),
    (lambda: trm.RecMetricCollection(["HR"], k=True), TypeError, "k must be an integer"),
    (
        lambda: trm.RecMetricCollection([MeanMetric()]),
        TypeError,
        "instances of torchrecmetrics' metrics .*, got MeanMetric",
    ),
    (lambda: trm.RecMetricCollection(5), TypeError, "metrics must be a name, a metric, a list of them or a dict"),
    (lambda: trm.RecMetricCollection({3: trm.HR(5)}), ValueError, "a key must be a string"),
    (lambda: trm.RecMetricCollection([5], k=5), TypeError, "instances of torchrecmetrics' metrics .*, got int"),
    (lambda: trm.RecMetricCollection({"a": MeanMetric()}), TypeError, "got MeanMetric"),
    (lambda: trm.RecMetricCollection(["HR"], k=5, key_format="{name}.{k}"), ValueError, "holds no '.'"),
    (lambda: trm.RecMetricCollection(["HR"], k=5, tie="realistic"), ValueError, "no option 'tie'; did you mean 'ties'"),
    (
        lambda: trm.RecMetricCollection([trm.HR(5)], tie="x"),
        ValueError,
        "unknown option 'tie'",
    ),
    (
        lambda: trm.RecMetricCollection(["HR", trm.MRR(ties="pessimistic")], k=5),
        ValueError,
        "MRR was made with ties='pessimistic', HR@5 with ties='expected': give both the same ties",
    ),
    (
        lambda: trm.RecMetricCollection(["HR", trm.MRR()], k=5, padding_idx=0),
        ValueError,
        "padding_idx=None, the collection with padding_idx=0",
    ),
    (
        lambda: trm.RecMetricCollection(["NDCG"], k=5, gain="linear"),
        ValueError,
        r"gain: an option of NDCG alone goes to an instance",
    ),
    (lambda: trm.RecMetricCollection(["NDCG-exponential@5"]), ValueError, "given as an instance"),
    (
        lambda: trm.RecMetricCollection([trm.HR]),
        TypeError,
        "HitRate is a class: a collection holds instances, such as HitRate\\(10\\)",
    ),
    (
        lambda: trm.RecMetricCollection(["HR"], k=5, key_format="{metric}"),
        ValueError,
        "key_format takes {name} and {k}",
    ),
    (
        lambda: trm.RecMetricCollection(["HR"], k=5, key_format=lambda name, k: k),
        TypeError,
        "must return a string, got 5",
    ),
    (
        lambda: trm.RecMetricCollection(["HR"], k=5, key_format=3),
        TypeError,
        "a string or a function of name and k, got 3",
    ),
    (
        lambda: trm.RecMetricCollection(["HR"], k=5).update(mask=1),
        TypeError,
        "update has no argument 'mask'",
    ),
    (lambda: trm.RecMetricCollection([trm.HR(5)], empty_target_action="neg"), ValueError, "empty_target_action='skip'"),
    (lambda: trm.RecMetricCollection([trm.HR(5)], sync_on_compute=False), ValueError, "sync_on_compute=True"),
    (
        lambda: trm.RecMetricCollection([trm.HR(5, score_threshold=1.0), trm.HR(5, score_threshold=2.0)]),
        ValueError,
        r"different score_thresholds \[1.0, 2.0\] need a collection each",
    ),
]


@pytest.mark.parametrize(("make", "error", "message"), BAD)
def test_bad_arguments(make, error, message):
    """A bad argument of a collection raises an error that says what is wrong."""
    with pytest.raises(error, match=message.replace("?", r"\?")):
        make()


# ------------------------------------------------------------------------------------------------- several processes


def collection_of(how_many):
    return trm.RecMetricCollection(NAMES, k=range(1, how_many + 1)) if how_many else trm.RecMetricCollection("HR@1")


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


def test_more_ranks_than_the_largest_cutoff(device):
    """Values do not change when columns of ranks that no cut-off can reach are left unread."""
    ranks = torch.tensor([[9, 2, 0, 4, 1], [3, 0, 7, 8, 2], [6, 5, 4, 3, 9]], device=device)
    collection = trm.RecMetricCollection(["HR", "NDCG", "MAP", "Recall", "F1", "MRR"], k=[1, 3]).to(device)
    whole = trm.RecMetricCollection(["HR", "NDCG", "MAP", "Recall", "F1", "MRR"], k=[1, 3]).to(device)
    collection.update(ranks, depth=9)
    whole.update(trm.Ranks(ranks, depth=9))
    assert numbers(collection.compute()) == numbers(whole.compute())
    assert collection["Recall@3"].compute().item() == pytest.approx((2 / 4 + 2 / 4 + 1 / 5) / 3)


def test_short_rows_are_left_out(device):
    """With deferred checks, a row known to 2 ranks is left out and reported where a metric reads further."""
    lists, target = torch.tensor([[1, 2, 3], [4, 5, 6]], device=device), torch.tensor([[1], [4]], device=device)
    ranking = trm.Lists(lists, target, exclude=torch.tensor([[-1], [6]], device=device)).ranking(
        validate_args="deferred"
    )
    collection = trm.RecMetricCollection(["HR", "Recall"], k=[2, 3], validate_args="deferred").to(device)
    collection.update(ranking)
    rows = collection.evaluator.rows(ranking)
    assert rows.counted.tolist() == [True, False]
    with pytest.raises(ValueError, match="HR@2: bad input since the last reset: 1 row known to fewer than k places"):
        collection.compute()


class RowNumber(trm.RankingMetric):
    """The number of the row, which does not depend on ranks."""

    formula = staticmethod(
        lambda ranking, k: torch.arange(len(ranking), dtype=torch.float64, device=ranking.ranks.device)
    )

    def __init__(self, k, **options):
        super().__init__(k, **options)


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
        several = trm.RecMetricCollection(members, accumulators=[trm.KeptRows()], **options).to(device)
        several.update(scores, target)
        several.compute()
        for key, metric in several.metrics.items():
            by_itself = trm.RecMetricCollection([metric], accumulators=[trm.KeptRows()], **options).to(device)
            by_itself.update(scores, target)
            assert several[key].compute().item() == pytest.approx(by_itself.compute()[key].item(), abs=1e-15)
            one, other = (rows.values[key].nan_to_num(-1) for rows in (several.rows, by_itself.rows))
            assert one.equal(other)


def test_places_of_others_are_not_looked_up():
    """Ranks made by the caller are not looked up, as they may be any numbers from 1 on."""
    collection = trm.RecMetricCollection(["MRR", "NDCG", "HR"], k=5)
    collection.update(trm.Ranks(torch.tensor([[2.2], [4.4]]), depth=5))
    assert collection.compute()["MRR@5"].item() == pytest.approx((1 / 2.2 + 1 / 4.4) / 2)


def test_values_are_not_changed_alone(device):
    """A value has no state of its own: `compute` refuses an update of one alone, and a reset is that of all."""
    args = batch(1, device=device)
    collection = trm.RecMetricCollection(["HR", "NDCG"], k=[2, 5]).to(device)
    collection.update(*args)
    collection["HR@5"].update(*args)
    with pytest.raises(ValueError, match="HR@2 was not updated with the other values: update the collection"):
        collection["HR@2"].compute()
    assert numbers(collection.compute()) == alone(collection, args)
    with pytest.raises(TypeError, match="HR@5 has no state of its own: merge the collections"):
        collection["HR@5"].merge_state(collection["HR@2"])
    collection["NDCG@2"].reset()
    assert not any(state.any() for state in tensors(collection))
    for change in (
        lambda: collection.add_metrics(trm.NDCG(10)),
        lambda: collection.__setitem__("mine", trm.NDCG(10)),
        lambda: collection.__delitem__("HR@2"),
    ):
        with pytest.raises(TypeError, match="a collection is made with all its metrics"):
            change()


def test_values_of_a_batch_may_be_overwritten(device):
    """Values that were added may be overwritten, as recorded graphs do, after the first batch and after later ones."""
    collection, args = trm.RecMetricCollection(["HR", "NDCG"], k=[2, 5]).to(device), batch(1, device=device)
    wanted = numbers(collection(*args))
    collection.reset()
    for _ in range(2):
        rows = collection.evaluator.rows(trm.Scores(*args))
        collection.evaluator.add(rows)
        rows.values.fill_(torch.nan)
        rows.undefined.fill_(True)
    assert numbers(collection.compute()) == wanted
    assert collection["HR@2"].num_users == 16


def made_in(cutoffs):
    """Return the number of Python calls, resumed generators included, that a collection with these cut-offs takes."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        trm.RecMetricCollection(["HR", "NDCG", "MRR", "Recall", "MAP"], k=range(1, cutoffs + 1))
    finally:
        sys.setprofile(None)
    return calls


def test_time_to_make_a_collection_grows_linearly():
    """Twice as many cut-offs take twice the calls."""
    few, more, most = map(made_in, (40, 80, 160))
    assert most - more == pytest.approx(2 * (more - few), rel=0.1)  # quadratic growth would double it


@pytest.mark.parametrize(
    ("option", "accumulator"),
    [("groups", "ByGroup"), ("keep_rows", "KeptRows"), ("window", "Window"), ("half_life", "Decay")],
)
@pytest.mark.parametrize("make", [trm.HR, lambda k, **options: trm.RecMetricCollection("HR", k=k, **options)])
def test_options_of_callbacks_are_accumulators_here(make, option, accumulator):
    """An option that callbacks or `evaluate` have is refused with the accumulator that serves for it."""
    with pytest.raises(ValueError, match=rf"no option '{option}': collections have accumulators=\[trm.{accumulator}\("):
        make(5, **{option: 1})
