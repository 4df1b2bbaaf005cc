"""Every metric class of the package keeps the contract of a torchmetrics metric: the same tests run for all classes."""

import copy
import math
import pickle

import pytest
import torch
from distributed import counted_collectives
from states import same, snapshot, tensors
from torch import nn
from torchmetrics.utilities.exceptions import TorchMetricsUserError
from waiting import never_waits

import torchrecmetrics as trm
from torchrecmetrics.core.metric import CountedMetric
from torchrecmetrics.core.rows import Summary
from torchrecmetrics.names import _CLASSES

CATALOGUE = trm.Catalogue(20, popularity=torch.arange(20) * 2, num_users=40, categories=torch.arange(20) % 5)
METRICS = {
    metric.label: metric
    for metric in (
        *(trm.HR(3), trm.Precision(3), trm.Precision(3, denominator="recommended"), trm.Recall(3), trm.F1(3)),
        *(trm.RPrecision(), trm.MAP(3), trm.MAP(), trm.NDCG(3), trm.NDCG(gain="exponential"), trm.MRR(3), trm.MRR()),
        *(trm.AUROC(), trm.AUROC(weight="relevant"), trm.HR(3, score_threshold=0.2)),
        *(kind(3, catalogue=CATALOGUE) for kind in (trm.Novelty, trm.IntraListDiversity, trm.Serendipity)),
        *(kind(3, catalogue=CATALOGUE) for kind in (trm.Coverage, trm.Gini, trm.Personalization, trm.ExposureGini)),
        trm.EqualOpportunity(3, catalogue=CATALOGUE, of="categories"),
    )
}


def batch(seed, rows=8, items=20, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 20, (rows, items), generator=generator) / 20
    target = torch.rand(rows, items, generator=generator).argsort(1)[:, :4]
    target[torch.rand(rows, 4, generator=generator) < 0.3] = -1
    gains = torch.randint(1, 4, (rows, 4), generator=generator)
    return {"scores": scores.to(device), "target": target.to(device), "gains": gains.to(device)}


def expected(metric, *seeds):
    """Return value and standard error over all batches at once."""
    parts = [batch(seed) for seed in seeds]
    metric = METRICS[metric.label].clone()
    metric.update(**{key: torch.cat([part[key] for part in parts]) for key in parts[0]})
    return metric.compute().item(), metric.standard_error().item()


def fresh(metric, **options):
    """Return a new metric of the same kind, with more options."""
    if isinstance(metric, trm.AUROC):
        options["weight"] = metric._weight
    if metric.catalogue is not None:
        options["catalogue"] = metric.catalogue
    return type(metric)(*([metric.k] if metric.k else []), **metric.options, **options)


@pytest.fixture(params=METRICS)
def metric(request, device):
    return METRICS[request.param].clone().to(device)


def test_class_flags(metric):
    falls = isinstance(metric, (trm.Gini, trm.ExposureGini, trm.EqualOpportunity))
    assert (metric.higher_is_better, metric.is_differentiable, metric.full_state_update) == (not falls, False, False)
    assert type(metric).__doc__
    assert repr(metric) == f"{type(metric).__name__}({metric.label})"


def test_update_compute_reset(metric, device):
    """Updates add up, `compute` returns the same scalar each time, and `reset` starts again."""
    for seed in (1, 2):
        metric.update(**batch(seed, device=device))
    value, error = expected(metric, 1, 2)
    for _ in range(2):
        assert metric.compute().item() == pytest.approx(value, abs=1e-12)
    assert (metric.compute().shape, metric.compute().dtype) == ((), torch.float64)
    assert metric.standard_error().item() == pytest.approx(error, abs=1e-12, nan_ok=True)
    metric.reset()
    assert not metric.update_called
    metric.to(device).update(**batch(3, device=device))
    assert metric.compute().item() == pytest.approx(expected(metric, 3)[0], abs=1e-12)


def test_forward(metric, device):
    """`forward` returns the value of its batch and adds the batch to the state."""
    for seed in (1, 2):
        value = metric(**batch(seed, device=device))
        assert value.item() == pytest.approx(expected(metric, seed)[0], abs=1e-12)
        assert metric._forward_cache.item() == value.item()
    assert metric.compute().item() == pytest.approx(expected(metric, 1, 2)[0], abs=1e-12)
    assert metric.update_count == 2


def test_caller_cannot_change_the_result(metric, device):
    """Writing to the tensor that `compute` returned does not change the result."""
    metric.update(**batch(1, device=device))
    first = metric.compute().item()
    metric.compute().mul_(7)
    assert metric.compute().item() == first


COPIES = [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), lambda m: m.clone()]


@pytest.mark.parametrize("duplicate", COPIES)
def test_copies(metric, duplicate, device):
    """A copy has the state and result of its metric, and updates of the copy leave the metric unchanged."""
    metric.update(**batch(1, device=device))
    metric.compute()
    other = duplicate(metric)
    assert torch.equal(other.standard_error().nan_to_num(-1), metric.standard_error().nan_to_num(-1))
    other.update(**batch(2, device=device))
    assert other.compute().item() == pytest.approx(expected(metric, 1, 2)[0], abs=1e-12)
    assert metric.compute().item() == pytest.approx(expected(metric, 1)[0], abs=1e-12)


def test_state_dict(metric, device):
    """States are in checkpoints only after `persistent(True)`, and are then loaded completely, even inside a module."""
    assert not metric.state_dict()
    metric.update(**batch(1, device=device))
    metric.persistent(True)
    module, other = nn.ModuleDict({"m": metric}), nn.ModuleDict({"m": METRICS[metric.label].clone().to(device)})
    other["m"].persistent(True)
    other.load_state_dict(module.state_dict())
    assert torch.equal(other["m"].compute(), metric.compute())


def test_shared_tensors_are_not_written_to(metric, device):
    """Updates replace state tensors, which a state dict, a shallow copy or torchmetrics' compute groups may share."""
    metric.update(**batch(1, device=device))
    metric.persistent(True)
    saved = metric.state_dict()
    other = fresh(metric).to(device)
    other.load_state_dict(saved)
    shallow = copy.copy(metric)
    metric.update(**batch(2, device=device))
    other.update(**batch(3, device=device))
    assert shallow.compute().item() == pytest.approx(expected(metric, 1)[0], abs=1e-12)
    assert metric.compute().item() == pytest.approx(expected(metric, 1, 2)[0], abs=1e-12)
    assert other.compute().item() == pytest.approx(expected(metric, 1, 3)[0], abs=1e-12)
    again = fresh(metric).to(device)
    again.update(**batch(2, device=device))
    again.compute()
    again.load_state_dict({name: state.to(torch.float32) for name, state in saved.items()})
    assert again.compute().item() == pytest.approx(expected(metric, 1)[0], abs=1e-6)
    assert {state.dtype for state in tensors(again)} == {torch.float64, torch.int64}


def test_a_shallow_copy_adds_to_its_own_state(metric, device):
    """A shallow copy shares the state until one of the two is updated, and an update changes that one alone."""
    metric.update(**batch(1, device=device))
    shallow = copy.copy(metric)
    shallow.update(**batch(2, device=device))
    assert metric.compute().item() == pytest.approx(expected(metric, 1)[0], abs=1e-12)
    assert shallow.compute().item() == pytest.approx(expected(metric, 1, 2)[0], abs=1e-12)


def test_a_catalogue_that_is_changed_between_batches():
    """A catalogue that replaces another one, with new counts, is read from the next batch on."""
    price = trm.AveragePopularity(1, catalogue=trm.Catalogue(3, popularity=torch.tensor([1, 2, 3])))
    for popularity in ([1, 2, 3], [10, 20, 30]):
        price.reset()
        price.catalogue = trm.Catalogue(3, popularity=torch.tensor(popularity))
        price.update(trm.Lists(torch.tensor([[2]])))
        assert price.compute() == popularity[2]


def test_a_batch_from_elsewhere(metric):
    """A batch on another device than the state raises an error, and nothing is added."""
    scores = batch(1)
    metric.to("meta")
    with pytest.raises(ValueError, match=r"is on meta, its input on cpu: move the metric with \.to"):
        metric.update(**scores)
    assert not metric.update_called


def test_merge_state(metric, device):
    """The states of two halves merge to that of the whole, also after `compute`, and other states are refused."""
    other = metric.clone()
    metric.update(**batch(1, device=device))
    other.update(**batch(2, device=device))
    metric.compute()
    metric.merge_state(other)
    assert metric.compute().item() == pytest.approx(expected(metric, 1, 2)[0], abs=1e-12)
    with pytest.raises(ValueError, match=r"merges states named like its own|the other no accumulators"):
        metric.merge_state(trm.HR(99))
    with pytest.raises(TypeError, match="merges a metric like itself or its metric_state, got int"):
        metric.merge_state(3)
    with pytest.raises(ValueError, match=r"merges states named like its own|the other no accumulators"):
        metric.merge_state({name: state[:1] for name, state in metric.metric_state.items()})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_casting_the_module_keeps_the_state(metric, dtype, device):
    """`module.to(dtype)`, `.half()` and `set_dtype` leave sums float64 and counts int64."""
    module = nn.ModuleDict({"linear": nn.Linear(2, 2), "metric": metric}).to(device)
    metric.update(**batch(1, device=device))
    module.to(dtype).half().bfloat16()
    metric.set_dtype(dtype)
    metric.update(**batch(2, device=device))
    assert {state.dtype for state in tensors(metric)} == {torch.float64, torch.int64}
    assert module["linear"].weight.dtype == torch.bfloat16
    assert metric.compute().item() == pytest.approx(expected(metric, 1, 2)[0], abs=1e-12)
    metric.reset()
    assert {state.dtype for state in tensors(metric)} == {torch.float64, torch.int64}


def test_low_precision_default_dtype(metric, device):
    """The value does not depend on the default dtype, which Lightning's "bf16-true" sets to bfloat16."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        other = fresh(metric).to(device)
        data = batch(1, device=device)
        other.update(data["scores"].float(), data["target"], gains=data["gains"])
        low = other.compute().item()
    finally:
        torch.set_default_dtype(torch.float32)
    metric = fresh(metric).to(device)
    metric.update(data["scores"].float(), data["target"], gains=data["gains"])
    assert low == metric.compute().item()


def test_inference_mode_then_training(metric, device):
    """A state that is reset or updated in inference mode can be updated outside it (validate, then fit)."""
    with torch.inference_mode():
        metric.reset()
        metric.update(**batch(1, device=device))
        metric.compute()
    assert not any(state.is_inference() for state in tensors(metric))
    metric.update(**batch(2, device=device))
    assert not any(state.is_inference() for state in tensors(metric))  # though batches are read in inference mode
    with torch.inference_mode():
        metric.update(**batch(3, device=device))
    assert metric.compute().item() == pytest.approx(expected(metric, 1, 2, 3)[0], abs=1e-12)
    metric.reset()
    metric.update(**batch(1, device=device))


def test_what_others_may_keep_is_made_as_ever(device):
    """A ranking that a user makes, or that a user's formula reads, is no inference tensor and can be part of a loss."""
    seen = []

    def keeping(ranking, k):
        seen.append(ranking.ranks)
        return ranking.hits(k).any(1).to(ranking.ranks.dtype)

    class Own(trm.RankingMetric):
        formula = staticmethod(keeping)

    scores, target = torch.rand(4, 5, device=device), torch.tensor([1, 2, 3, 4], device=device)
    own = trm.RecMetricCollection([Own(2), trm.NDCG(2)]).to(device)
    for _ in range(2):
        own.update(scores, target)
    own.compute()
    assert seen
    assert not any(ranks.is_inference() for ranks in seen)
    ranking = trm.Scores(scores, torch.stack([target, target - 1], 1)).ranking()
    metric = trm.RecMetricCollection(["NDCG", "MAP"], k=2).to(device)
    for _ in range(2):
        metric.update(ranking)
    metric.compute()
    reward = ranking.num_hits(2)
    assert not reward.is_inference()
    (scores.requires_grad_().sum() * reward.sum()).backward()


def test_scores_may_require_gradients(metric, device):
    """Scores that require gradients need no `detach`, and the metric builds no graph."""
    data = batch(1, device=device)
    metric.update(data["scores"].requires_grad_(), data["target"], gains=data["gains"])
    assert not metric.compute().requires_grad


def test_to_and_from_meta(metric):
    """A metric on the "meta" device is materialised with an empty state."""
    other = fresh(metric).to("meta")
    assert next(iter(other.metric_state.values())).is_meta
    other.to_empty(device="cpu")
    other.update(**batch(1))
    assert other.compute().item() == pytest.approx(expected(metric, 1)[0], abs=1e-12)


def test_plot(metric, device):
    """`plot` works as for any torchmetrics metric."""
    pytest.importorskip("matplotlib").use("agg")
    import matplotlib.pyplot as plt

    metric.update(**batch(1, device=device))
    figure, _ = metric.plot()
    plt.close(figure)


def test_no_users(device):
    """`compute` without a user is nan and warns once, for one metric as for a collection of many."""
    metric = trm.HR(3).to(device)
    with pytest.warns(UserWarning, match="no row to average over, the value is nan: HR@3") as caught:
        assert [math.isnan(metric.compute()) for _ in range(2)] == [True, True]
    assert len(caught) == 1
    assert math.isnan(metric.standard_error())
    collection = trm.RecMetricCollection(["HR", "MRR"], k=[1, 2]).to(device)
    with pytest.warns(UserWarning, match="HR@1, MRR@1, HR@2, MRR@2") as caught:
        collection.compute()
    assert len(caught) == 1


def test_one_user_has_no_standard_error(device):
    metric = trm.MRR().to(device)
    metric.update(torch.tensor([[0.1, 0.2]], device=device), torch.tensor([0], device=device))
    assert metric.compute() == 0.5
    assert math.isnan(metric.standard_error())


def test_counts_before_compute():
    """Counts and standard errors are those of the last `compute`, and raise an error before it."""
    with pytest.raises(RuntimeError, match=r"HR@3: counts and standard errors are those of the last compute\(\)"):
        _ = trm.HR(3).num_users
    metric = trm.HR(3)
    metric.update(torch.tensor([1]))
    metric.compute()
    metric.reset()
    assert metric.num_users == 1  # the count can be read after an epoch was logged and reset
    metric.update(torch.tensor([1]))
    with pytest.raises(RuntimeError, match="call it first"):
        metric.standard_error()


# ------------------------------------------------------------------------------------------------- deferred checks


def bad_batches():
    good = {"scores": torch.tensor([[0.1, 0.9, 0.5], [0.3, 0.2, 0.1]]), "target": torch.tensor([[0, 1], [2, -1]])}
    nan = good["scores"].clone()
    nan[0, 1] = math.nan
    ranks = trm.get_topk_ranks(nan, good["target"], 3, validate_args="deferred")
    short = trm.Lists(torch.tensor([[0, 1, 2], [0, 1, 2]]), good["target"], exclude=torch.tensor([[2], [5]])).ranking(
        validate_args="deferred"
    )
    return {
        "scores": ({**good, "scores": nan}, "1 row with a score that is NaN or .inf"),
        "target": ({**good, "target": torch.tensor([[0, 3], [4, 1]])}, "2 rows with a target id beyond the last item"),
        "twice": ({**good, "target": torch.tensor([[1, 1], [0, 1]])}, "1 row with an item listed twice"),
        "exclude": (
            {**good, "exclude": torch.tensor([[1], [3]])},
            "1 row with an excluded id .*; 1 row with a target that",
        ),
        "gains": ({**good, "gains": torch.tensor([[1, math.inf], [1, 1]])}, "1 row with a gain"),
        "weights": ({**good, "weights": torch.tensor([-1.0, 1.0])}, "1 row with a weight"),
        "ranks": ({"scores": ranks}, "1 row with ranks that are no places"),
        "short": ({"scores": short}, "1 row known to fewer than k places"),
    }


@pytest.mark.parametrize("name", bad_batches())
def test_deferred_violations_raise_in_compute(name):
    """A deferred check raises in `compute`, which counts bad rows until reset, and in `forward`, which adds nothing."""
    arguments, message = bad_batches()[name]
    metric = trm.HR(3, validate_args="deferred")
    with pytest.raises(ValueError, match=message):
        metric(**arguments)
    assert metric.update_count == 0
    assert not any(state.any() for state in tensors(metric))
    metric.update(**arguments)
    for _ in range(2):
        with pytest.raises(ValueError, match=f"HR@3: bad input since the last reset: .*{message}"):
            metric.compute()
    metric.reset()
    metric.update(torch.tensor([1]))
    assert metric.compute() == 1


def test_deferred_empty_rows_raise_in_compute():
    metric = trm.HR(3, validate_args="deferred", empty_target_action="error")
    metric.update(torch.tensor([[0.1, 0.9, math.nan], [0.3, 0.2, 0.1]]), torch.tensor([1, -1]))
    with pytest.raises(ValueError, match=r"1 row with a score .*; 1 row without a relevant item"):
        metric.compute()


def test_unchecked_values():
    """`validate_args=False` raises nothing, and ids out of range are still safe."""
    metric = trm.HR(1, validate_args=False)
    metric.update(torch.tensor([[0.1, math.nan], [0.5, 0.1]]), torch.tensor([[1, -1], [0, 9]]))
    assert metric.compute() == 0.5


def jagged(ids):
    """Return all rows of [B, T] as `Jagged` values and offsets."""
    return trm.Jagged(ids.flatten(), torch.arange(0, ids.numel() + 1, ids.shape[1], device=ids.device), ids.shape[1])


def past(ids):
    """Return the prefix history of the first column as one sequence."""
    offsets = torch.arange(0, len(ids) + 1, len(ids), device=ids.device)
    return trm.prefix_history(ids[:, 0], offsets, max_length=len(ids))


META_UPDATES = {
    "ids": lambda s, t: ((s, t), {}),
    "ids [B]": lambda s, t: ((s, t[:, 0]), {}),
    "exclude ids": lambda s, t: ((s, t), {"exclude": t}),
    "exclude mask": lambda s, t: ((s, t), {"exclude": s > 0}),
    "exclude items": lambda s, t: ((s, t), {"exclude": (s > 0)[0]}),
    "exclude several": lambda s, t: ((s, t), {"exclude": (t, s > 0, (s > 0)[0])}),
    "gains": lambda s, t: ((s, t), {"gains": t}),
    "weights": lambda s, t: ((s, t), {"weights": s[:, 0]}),
    "dense": lambda s, t: ((s, s > 0), {}),
    "graded": lambda s, t: ((s, s), {"exclude": t}),
    "ranking": lambda s, t: ((s, t), {"exclude": t}),
    "many targets": lambda s, t: ((s, t.repeat(1, 100)), {}),
    "bfloat16": lambda s, t: ((s.bfloat16(), t), {}),
    "jagged": lambda s, t: ((s, jagged(t)), {"exclude": (jagged(t), past(t)), "gains": jagged(t)}),
}


META_OPTIONS = [("skip", None), ("error", 0)]


@pytest.mark.parametrize(
    ("form", "empty", "padding_idx"),
    [(form, *META_OPTIONS[number % 2]) for number, form in enumerate(META_UPDATES)]  # each option with half the forms
    + [
        pytest.param(form, *META_OPTIONS[1 - number % 2], marks=pytest.mark.nightly)
        for number, form in enumerate(META_UPDATES)
    ],
)
def test_update_never_waits_for_the_device(form, empty, padding_idx):
    """Every form of `update` runs on "meta", which has no values, and so reads no value; nor does it copy one."""
    options = {"max_relevant": 5, "empty_target_action": empty, "padding_idx": padding_idx}
    metrics = [fresh(m, **options) for m in METRICS.values()]
    scores, target = torch.empty(6, 20, device="meta"), torch.empty(6, 3, dtype=torch.int64, device="meta")
    CATALOGUE.on("meta")  # the first batch copies it
    with never_waits():
        args, kwargs = META_UPDATES[form](scores, target)
        if form == "ranking":
            metrics = [m for m in metrics if "score_threshold" not in m.options and not m.needs.list_depth]
            args, kwargs = (trm.Scores(*args, **kwargs).ranking(padding_idx=padding_idx),), {}
    collection, alone = trm.RecMetricCollection(metrics, **options).to("meta"), [m.clone().to("meta") for m in metrics]
    with never_waits():
        for updated in (collection, collection, *alone):
            updated.update(*args, **kwargs)
    assert {metric.update_count for metric in alone} == {1}


@pytest.mark.parametrize("k", [1, 3])
def test_update_with_ranks_and_lists_never_waits(k):
    """Updates with integer ranks, and with recommended lists and history, read no value either."""
    scores, target = torch.empty(6, 20, device="meta"), torch.empty(6, 3, dtype=torch.int64, device="meta")
    items = torch.empty(6, 9, dtype=torch.int64, device="meta")
    collections = [trm.RecMetricCollection(["HR", "NDCG", "Precision", "RPrecision"], k=k).to("meta") for _ in range(2)]
    with never_waits():
        collections[0].update(trm.get_topk_ranks(scores, target, 3, exclude=target))
        collections[1].update(trm.Lists(items, target, exclude=target, gains=target).ranking())


@pytest.mark.parametrize(
    ("data", "lacking"),
    [
        ({"categories": torch.arange(20) % 5}, set()),
        ({"categories": torch.ones(20, 2) / 2}, {"EqualOpportunity", "StatisticalParity"}),
        ({"embeddings": torch.ones(20, 3)}, {"CategoryShare", "Calibration"}),
    ],
    ids=["codes", "shares", "embeddings"],
)
def test_no_metric_waits_for_the_device(data, lacking):
    """All metrics of the package, those of single ranks, lists and histories among them, read no value either."""
    catalogue = trm.Catalogue(20, popularity=torch.arange(20), num_users=40, **data)
    collection = trm.RecMetricCollection(sorted(_CLASSES.keys() - lacking), k=[2, 3], catalogue=catalogue).to("meta")
    scores, ids = torch.empty(6, 20, device="meta"), torch.empty(6, 3, dtype=torch.int64, device="meta")
    catalogue.on("meta")
    with never_waits():
        collection.update(trm.Scores(scores, ids[:, 0], history=ids))


def test_meta_would_notice():
    """Reading a value raises on "meta", as `compute` and an update with a dense target of unknown width do."""
    scores = torch.empty(6, 20, device="meta")
    metric = trm.HR(3).to("meta")
    metric.update(scores, torch.empty(6, dtype=torch.int64, device="meta"))
    with pytest.raises((RuntimeError, NotImplementedError)):
        metric.compute()
    with pytest.raises((RuntimeError, NotImplementedError)):
        metric.update(scores, scores > 0)


WAITS = {
    "number": lambda x: x[0, 0].item(),
    "truth": lambda x: bool(x.any()),
    "nonzero": lambda x: x.nonzero(),
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "bincount": lambda x: x[0].long().bincount(),
    "repeat_interleave": lambda x: x[0].repeat_interleave(x[0].long()),
    "mask": lambda x: x[x > 0],
    "written by a mask": lambda x: x.__setitem__(x > 0, 0.0),
    "list": lambda x: x[[0, 2]],
    "written by a list": lambda x: x.__setitem__((slice(None), [0, 2]), 0.0),
    "index on the CPU": lambda x: x[torch.tensor([0, 2])],
    "to the CPU": lambda x: x.cpu(),
    "from the CPU": lambda x: torch.ones(20).to(x.device),
    "written from the CPU": lambda x: x[0].copy_(torch.ones(20)),
    "made of a number": lambda x: torch.tensor(1.0, device=x.device),
    "made of numbers": lambda x: x.new_tensor([1.0, 2.0]),
}


@pytest.mark.parametrize("name", WAITS)
def test_waiting_would_be_noticed(name):
    """Whatever waits for a GPU raises in the tests above, and what does not wait does not raise."""
    x = torch.zeros(6, 20, device="meta")
    with never_waits():
        x[0], x[:, -1], x[1:, None, ...], x[x[0].long()], x.where(x > 0, 0) + torch.tensor(1.0)
        x[:, 1:] += x[:, :-1]
        with pytest.raises((AssertionError, RuntimeError)):
            WAITS[name](x)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # the warning says that the mode is a prototype
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("items", [20, 400])
@pytest.mark.parametrize("form", [form for form in META_UPDATES if form != "ranking"])
def test_update_never_synchronises_cuda(form, items):
    """No form of `update` synchronises on CUDA, where PyTorch is set to raise on any synchronisation."""
    metrics = [fresh(m, max_relevant=20) for m in METRICS.values() if items == 20 or m.catalogue is None]
    collection = trm.RecMetricCollection(metrics, max_relevant=20).to("cuda")
    scores = torch.rand(6, items, device="cuda")
    target = torch.arange(18, device="cuda").view(6, 3)
    args, kwargs = META_UPDATES[form](scores, target)
    CATALOGUE.on("cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        collection.update(*args, **kwargs)
    finally:
        torch.cuda.set_sync_debug_mode("default")


# ------------------------------------------------------------------------------------------------- several processes


def synced_values(rank, world_size, split):
    """Update each process with its own batches, and return the values that the process computes over all batches."""
    out = {}
    for label, metric in METRICS.items():
        metric = metric.clone()
        for seed in split[rank]:
            metric.update(**batch(seed))
        local = snapshot(metric)
        other = metric.clone()
        other.sync()
        with pytest.raises(TorchMetricsUserError, match="unsync"):
            other.update(**batch(1))
        synced = other.compute().item(), other.num_users
        other.unsync()
        assert same(snapshot(other), local)
        value, error, num_users = metric.compute().item(), metric.standard_error().item(), metric.num_users
        out[label] = (value, num_users), error, synced
    return out


@pytest.mark.parametrize("split", [((1, 2, 3), (4,)), ((), (1, 2)), ((1, 2), ()), ((1,), (), (2, 3))])
def test_processes_do_not_show(split, processes):
    """Uneven processes, one of them (first or later) without a batch, give the value of all batches and no warning."""
    seeds = sum(split, ())
    for result in processes.run(synced_values, len(split), split):
        for label, (value, error, synced) in result.items():
            assert (value[0], error) == pytest.approx(expected(METRICS[label], *seeds), abs=1e-12, nan_ok=True)
            assert synced == value


def deferred_error(rank, world_size):
    """Give bad input to one process alone; all must raise, none may hang, and all go on afterwards."""
    metric = trm.HR(1, validate_args="deferred")
    scores = torch.tensor([[0.1, math.nan if rank == 1 else 0.2]])
    metric.update(scores, torch.tensor([0]))
    with pytest.raises(ValueError, match="HR@1: bad input since the last reset: 1 row with a score that is NaN") as e:
        metric.compute()
    assert not metric._is_synced
    metric.reset()
    metric.update(torch.tensor([1]))
    assert metric.compute() == 1
    return str(e.value)


def test_deferred_errors_are_the_same_everywhere(processes):
    assert len(set(processes.run(deferred_error, 2))) == 1


def own_values(rank, world_size):
    """Return values with `sync_on_compute=False`, with `dist_sync_on_step` and with a user's gather function."""
    mine = trm.HR(1, sync_on_compute=False)
    mine.update(torch.tensor([rank + 1]))
    step = trm.HR(1, dist_sync_on_step=True)
    calls = []

    def gather(tensor, group=None):
        calls.append(tensor.dtype)
        out = [torch.zeros_like(tensor) for _ in range(world_size)]
        torch.distributed.all_gather(out, tensor)
        return out

    own = trm.HR(1, dist_sync_fn=gather)
    own.update(torch.tensor([rank + 1]))
    return mine.compute().item(), step(torch.tensor([rank + 1])).item(), own.compute().item(), len(calls)


def test_torchmetrics_sync_keywords(processes):
    """The synchronisation keywords of torchmetrics mean here what they mean there."""
    assert processes.run(own_values, 2) == [(1.0, 0.5, 0.5, 2), (0.0, 0.5, 0.5, 2)]


def test_reset_gives_every_state_back_as_it_was():
    """`reset` restores all states, those of a subclass too, and ends the synchronised state of a metric."""

    class Batches(trm.HR):
        def __init__(self):
            super().__init__(2)
            self.add_state("batches", torch.tensor(0), dist_reduce_fx="sum")
            self.add_state("seen", [], dist_reduce_fx="cat")

        def update(self, *args, **kwargs):
            super().update(*args, **kwargs)
            self.batches += 1
            self.seen.append(1)

    metric = Batches()
    for _ in range(3):
        metric._is_synced = True
        metric.reset()
        metric.update(torch.rand(2, 4), torch.tensor([1, 2]))
        metric.compute()
        assert (int(metric.batches), metric.seen, metric.num_users) == (1, [1], 2)


class Longest(CountedMetric):
    """A metric that is not a mean over rows, read from an accumulator of its own."""

    formula = staticmethod(lambda ranking: ranking.ranks[:, 0])

    @property
    def counts_key(self):
        return "longest"

    def make_counts(self):
        return LongestCounts()

    def summary(self, counts, sums):
        return Summary.without_error(sums[0].max(), int(counts[0]))


class LongestCounts(trm.Accumulator):
    """The sum of all ranks, of their squares, and 5 per row; and the number of rows."""

    num_sums = 1

    def begin(self, layout):
        super().begin(layout)
        self.add_state("longest", torch.zeros(3, dtype=torch.float64), "sum")
        self.add_state("number", torch.zeros(1, dtype=torch.int64), "sum")

    def added(self, rows):
        ranks = rows.ranking.ranks[:, 0]
        sums = torch.stack([ranks.sum(), ranks.square().sum(), 5.0 * torch.ones_like(ranks).sum()])
        return {"longest": self.longest + sums, "number": self.number + len(rows)}

    def batch_totals(self, rows):
        added = self.added(rows)
        return [added["number"] - self.number], [added["longest"] - self.longest]

    def counts(self):
        return [self.number]

    def sums(self, clocks):
        return [self.longest]


def of_several_kinds(rank, world_size):
    metrics = trm.RecMetricCollection([trm.HR(1), Longest(), trm.MRR(), trm.MedianRank()])
    metrics.update(torch.tensor([[0.1, 0.9]]), torch.tensor([rank]))
    with counted_collectives() as calls:
        values = metrics.compute()
    return [(values[key].item(), value.num_users) for key, value in metrics.items()], len(calls)


def test_metrics_of_several_kinds_synchronise_together(processes):
    """Metrics that read counts of their own are synchronised with the means over rows, by two collectives."""
    wanted = [(0.5, 2), (10.0, 2), (0.75, 2), (1.5, 2)]
    assert processes.run(of_several_kinds, 2) == [(wanted, 2)] * 2
