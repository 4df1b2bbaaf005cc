"""Every metric class of the package keeps the contract of a torchmetrics metric: the same tests run for all classes."""

import copy
import math
import pickle
import re
from pathlib import Path

import pytest
import torch
from distributed import counted_collectives
from states import same, snapshot, tensors
from torch import nn
from torchmetrics import MeanMetric
from torchmetrics.utilities.exceptions import TorchMetricsUserError
from waiting import never_waits

import torchrecmetrics as trm
from torchrecmetrics.metrics.names import _CLASSES

CATALOGUE = trm.Catalogue(20, popularity=torch.arange(20) * 2, num_users=40, categories=torch.arange(20) % 5)
METRICS = {
    metric.label: metric
    for metric in (
        *(trm.HR(3), trm.Precision(3, denominator="recommended"), trm.Recall(3), trm.F1(3), trm.RPrecision()),
        *(trm.MAP(3), trm.NDCG(3), trm.NDCG(gain="exponential"), trm.MRR(3), trm.MRR()),
        *(trm.AUROC(), trm.AUROC(weight="relevant"), trm.HR(3, score_threshold=0.2)),
        *(kind(3, catalogue=CATALOGUE) for kind in (trm.Novelty, trm.IntraListDiversity, trm.Serendipity)),
        *(kind(3, catalogue=CATALOGUE) for kind in (trm.Coverage, trm.Gini, trm.Personalization, trm.ExposureGini)),
        trm.EqualOpportunity(3, catalogue=CATALOGUE, of="categories"),
    )
}
SUMS_AND_COUNTS = {torch.float64, torch.int64}


def batch(seed, device="cpu"):
    """Return 8 rows of 20 scores, which require gradients, and up to 4 relevant items each."""
    generator = torch.Generator().manual_seed(seed)
    scores = (torch.randint(0, 20, (8, 20), generator=generator) / 20).requires_grad_()
    target = torch.rand(8, 20, generator=generator).argsort(1)[:, :4]
    target[torch.rand(8, 4, generator=generator) < 0.3] = -1
    gains = torch.randint(1, 4, (8, 4), generator=generator)
    return {"scores": scores.to(device), "target": target.to(device), "gains": gains.to(device)}


def fed(metric, *seeds):
    """Return the metric after an update with each of these batches."""
    for seed in seeds:
        metric.update(**batch(seed, metric.device))
    return metric


def found(metric):
    """Return value and standard error."""
    return metric.compute().item(), metric.standard_error().item()


def expected(metric, *seeds):
    """Return value and standard error of all batches at once."""
    parts = [batch(seed) for seed in seeds]
    metric = METRICS[metric.label].clone()
    metric.update(**{key: torch.cat([part[key] for part in parts]) for key in parts[0]})
    return tuple(pytest.approx(number, abs=1e-12, nan_ok=True) for number in found(metric))


def fresh(metric):
    """Return a new metric of the same kind and options."""
    options = {}
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


def test_update_compute_reset(metric):
    """Updates add up without a graph; `compute` gives the same scalar again, whatever the caller wrote to it."""
    fed(metric, 1, 2)
    for _ in range(2):
        assert found(metric) == expected(metric, 1, 2)
        metric.compute().mul_(7)
        metric.standard_error().mul_(7)
    value = metric.compute()
    assert (value.shape, value.dtype, value.requires_grad) == ((), torch.float64, False)
    metric.reset()
    assert not metric.update_called
    assert found(fed(metric, 3)) == expected(metric, 3)


def test_forward(metric):
    """`forward` returns the value of its batch and adds the batch to the state."""
    for seed in (1, 2):
        value = metric(**batch(seed, metric.device))
        assert value.item() == expected(metric, seed)[0]
        assert metric._forward_cache.item() == value.item()
    assert found(metric) == expected(metric, 1, 2)
    assert metric.update_count == 2


COPIES = [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), lambda m: m.clone()]


@pytest.mark.parametrize("duplicate", COPIES)
def test_copies(metric, duplicate):
    """A copy, a shallow one too, has the state and result of its metric, and then both add to states of their own."""
    fed(metric, 1).compute()
    other = duplicate(metric)
    assert other.standard_error().item() == expected(metric, 1)[1]
    fed(other, 2)
    assert found(metric) == expected(metric, 1)
    fed(metric, 3)
    assert found(other) == expected(metric, 1, 2)
    assert found(metric) == expected(metric, 1, 3)


def test_state_dict(metric):
    """After `persistent(True)` a checkpoint holds all states, which later updates do not write to, and may be cast."""
    fed(metric, 1)
    assert not metric.state_dict()
    metric.persistent(True)
    module, other = nn.ModuleDict({"m": metric}), nn.ModuleDict({"m": fresh(metric).to(metric.device)})
    other["m"].persistent(True)
    saved, value = module.state_dict(), metric.compute().item()
    for loaded, tolerance in ((saved, 0), ({name: state.float() for name, state in saved.items()}, 1e-6)):
        other.load_state_dict(loaded)
        assert other["m"].compute().item() == pytest.approx(value, abs=tolerance)
        fed(metric, 2)
        fed(other["m"], 3)
        assert {state.dtype for state in tensors(other["m"])} == SUMS_AND_COUNTS
    other.load_state_dict(saved)
    assert other["m"].compute().item() == value
    assert found(metric) == expected(metric, 1, 2, 2)
    assert found(fed(other["m"], 3)) == expected(metric, 1, 3)


def test_a_description_cannot_be_changed():
    """Cut-off, options and catalogue belong to the state: another value needs another metric."""
    metric = trm.AveragePopularity(1, catalogue=CATALOGUE)
    for name in ("k", "options", "catalogue", "empty_target_action"):
        with pytest.raises(AttributeError):
            setattr(metric, name, None)


def test_to_and_from_meta(metric):
    """A batch on another device than the state is refused; a metric on "meta" is materialised with an empty state."""
    moved = fed(metric.clone(), 2)
    moved.compute()
    assert moved.to("meta").standard_error().is_meta
    metric.to("meta")
    with pytest.raises(ValueError, match=r"is on meta, its input on cpu: move the metric with \.to"):
        metric.update(**batch(1))
    assert not metric.update_called
    metric.to_empty(device="cpu")
    assert found(fed(metric, 1)) == expected(metric, 1)


def test_merge_state(metric):
    """The states of two halves merge to that of the whole, also after `compute`, and other states are refused."""
    other = fed(metric.clone(), 2)
    fed(metric, 1).compute()
    metric.merge_state(other)
    assert found(metric) == expected(metric, 1, 2)
    other_states = r"merges states named|the other no accumulators"
    for wrong, error, message in (
        (trm.HR(99), ValueError, other_states),
        ({name: state[:1] for name, state in metric.metric_state.items()}, ValueError, other_states),
        (3, TypeError, "merges a metric of the same kind or its metric_state, got int"),
    ):
        with pytest.raises(error, match=message):
            metric.merge_state(wrong)
    assert found(metric) == expected(metric, 1, 2)


def test_low_precision_default_dtype(metric, device):
    """The value does not depend on the default dtype, which Lightning's "bf16-true" sets to bfloat16."""
    data, values = batch(1, device), []
    for dtype in (torch.bfloat16, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            other = fresh(metric).to(device)
            other.update(**data)
            values.append(other.compute().item())
        finally:
            torch.set_default_dtype(torch.float32)
    assert values[0] == values[1]


def test_rankings_are_no_inference_tensors(device):
    """A ranking that a user makes, or that a user's formula reads, is no inference tensor and can be part of a loss."""
    seen = []

    class Own(trm.RankingMetric):
        @staticmethod
        def formula(ranking, k):
            seen.append(ranking.ranks)
            return ranking.any_hit(k)

    scores, target = torch.rand(4, 5, device=device), torch.tensor([[1, 0], [2, 1], [3, 2], [4, 3]], device=device)
    ranking = trm.Scores(scores, target).ranking()
    metrics = trm.RecMetricCollection([Own(2), trm.NDCG(2), trm.MAP(2)]).to(device)
    for given in ((scores, target), (ranking,)) * 2:
        metrics.update(*given)
    assert [ranks.is_inference() for ranks in seen] == [False] * 4
    (scores.requires_grad_().sum() * ranking.num_hits(2).sum()).backward()


def test_no_users(device):
    """`compute` without a user is nan and warns once, for one metric as for a collection of many."""
    metric, collection = trm.HR(3).to(device), trm.RecMetricCollection(["HR", "MRR"], k=[1, 2]).to(device)
    for empty, names in ((metric, "HR@3"), (collection, "HR@1, MRR@1, HR@2, MRR@2")):
        with pytest.warns(UserWarning, match=f"no row to average over, the value is nan: {names}$") as caught:
            results = [empty.compute() for _ in range(2)]
        assert len(caught) == 1
        for result in results:
            assert all(map(math.isnan, result.values() if isinstance(result, dict) else [result]))


def test_public_names_are_those_of_the_reference():
    """The reference lists every public name that a metric adds to torchmetrics' `Metric`: at most 24, and no other."""
    page = Path(__file__).parents[2] / "docs/reference/base-classes.md"
    rows = [row for row in page.read_text(encoding="utf-8").splitlines() if row.startswith("| `")]
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row.split(" | ")[0])]
    added = set(dir(trm.HR(5))) - set(dir(MeanMetric())) - set(trm.HR(5)._defaults)
    assert sorted(listed) == sorted(name for name in added if not name.startswith("_"))
    assert len(listed) <= 24


def test_counts_are_those_of_the_last_compute_after_a_reset():
    """An epoch was logged and reset."""
    metric = trm.HR(3)
    metric.update(torch.tensor([1]), depth=10)
    metric.compute()
    metric.reset()

    assert metric.num_users == 1


def made():
    """Return a metric, a value of a collection, and one of sessions, each with the batches of its `update`."""
    ranks = torch.tensor([1, 9]), torch.tensor([2])
    batches = [{"scores": ranks_of_batch, "depth": 10} for ranks_of_batch in ranks]
    collection, sessions = trm.RecMetricCollection("HR", k=3), trm.CollectSessions(trm.HR(3))
    flat = [
        (torch.tensor([2.0, 1, 0, -1]), torch.tensor(labels)) for labels in ([1, 0, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0])
    ]
    entries = [{"scores": s, "labels": y, "indexes": torch.full((4,), number)} for number, (s, y) in enumerate(flat)]
    metric = trm.HR(3)
    yield metric, metric, batches
    yield collection, collection["HR@3"], batches
    yield sessions, sessions["HR@3"], entries


@pytest.mark.parametrize("number", range(3))
def test_counts_after_a_further_update_are_those_of_the_state(number):
    """They are computed when they are read, whether or not `compute` was called."""
    updated, value, batches = list(made())[number]
    updated.update(**batches[0])
    updated.compute()
    for batch in batches[1:]:
        updated.update(**batch)

    assert value.num_users == 3
    assert value.standard_error().item() == pytest.approx(1 / 3)


def bad_batches():
    """Return batches with bad values, and what errors say of them."""
    good = {"scores": torch.tensor([[0.1, 0.9, 0.5], [0.3, 0.2, 0.1]]), "target": torch.tensor([[0, 1], [2, -1]])}
    nan = {"scores": torch.tensor([[0.1, math.nan, 0.5], [0.3, 0.2, 0.1]])}
    ranks = trm.get_topk_ranks(nan["scores"], good["target"], 3, validate_args="deferred")
    excluding = trm.Lists(torch.tensor([[0, 1, 2]] * 2), good["target"], exclude=torch.tensor([[2], [5]]))
    short = excluding.ranking(validate_args="deferred")
    no_score = "1 row with a score that is NaN or .inf"
    changes = [
        (nan, no_score),
        ({"target": torch.tensor([[0, 3], [4, 1]])}, "2 rows with a target id beyond the last item"),
        ({"target": torch.tensor([[1, 1], [0, 1]])}, "1 row with an item listed twice"),
        ({"exclude": torch.tensor([[1], [3]])}, "1 row with an excluded id .*; 1 row with a target that"),
        ({"gains": torch.tensor([[1, math.inf], [1, 1]])}, "1 row with a gain"),
        ({"weights": torch.tensor([-1.0, 1.0])}, "1 row with a weight"),
        ({**nan, "target": torch.tensor([1, -1])}, f"{no_score}; 1 row without a relevant item"),
        ({"scores": ranks, "target": None}, "1 row with invalid ranks"),
        ({"scores": short, "target": None}, "1 row with fewer than k known ranks"),
    ]
    return [({**good, **change}, message) for change, message in changes]


@pytest.mark.parametrize(("arguments", "message"), bad_batches())
def test_deferred_violations_raise_in_compute(arguments, message):
    """A deferred check raises in `compute`, which counts bad rows until reset, and in `forward`, which adds nothing."""
    metric = trm.HR(3, validate_args="deferred", empty_target_action="error")
    with pytest.raises(ValueError, match=message):
        metric(**arguments)
    assert metric.update_count == 0
    assert not any(state.any() for state in tensors(metric))
    metric.update(**arguments)
    for _ in range(2):
        with pytest.raises(ValueError, match=f"HR@3: bad input since the last reset: .*{message}"):
            metric.compute()
    metric.reset()
    metric.update(torch.tensor([1]), depth=10)
    assert metric.compute() == 1


def test_unchecked_values():
    """`validate_args=False` raises nothing, and ids out of range are still safe."""
    metric = trm.HR(1, validate_args=False)
    metric.update(torch.tensor([[0.1, math.nan], [0.5, 0.1]]), torch.tensor([[1, -1], [0, 9]]))
    assert metric.compute() == 0.5


META = torch.empty(6, 20, device="meta"), torch.empty(6, 3, dtype=torch.int64, device="meta")
META_UPDATES = {
    "ids [B]": lambda s, t: trm.Scores(s, t[:, 0], history=t),
    "gains": lambda s, t: trm.Scores(s, t, gains=t, history=t),
    "exclude": lambda s, t: trm.Scores(s, t[:, 0], exclude=(t, s > 0, (s > 0)[0]), history=t),
    "dense": lambda s, t: trm.Scores(s, s > 0, history=t),
    "graded": lambda s, t: trm.Scores(s, s, exclude=t, history=t),
    "many targets": lambda s, t: trm.Scores(s, t.repeat(1, 100), history=t),
    "bfloat16": lambda s, t: trm.Scores(s.bfloat16(), t, history=t),
}
CODES, SHARES = {"categories": torch.arange(20) % 5}, {"categories": torch.ones(20, 2) / 2}
VECTORS = {"embeddings": torch.ones(20, 3)}
OF_ONE_RANK = {name for name, kind in _CLASSES.items() if kind.__module__ == "torchrecmetrics.metrics.one_rank"}


@pytest.mark.parametrize(
    ("form", "data", "lacking"),
    [
        *((form, CODES, set() if form in ("ids [B]", "exclude") else OF_ONE_RANK) for form in META_UPDATES),
        ("ids [B]", SHARES, {"EqualOpportunity", "StatisticalParity"}),
        ("ids [B]", VECTORS, {"CategoryShare", "Calibration"}),
    ],
)
def test_update_never_waits_for_the_device(form, data, lacking):
    """All metrics of the package run on "meta", which has no values, and so read no value; nor do they copy one."""
    catalogue = trm.Catalogue(20, popularity=torch.arange(20), num_users=40, **data)
    rules = {"max_relevant": 5, "padding_idx": 0, "empty_target_action": "error"}
    with_options = [
        trm.HR(3, score_threshold=0.2, **rules),
        trm.Precision(3, denominator="recommended", **rules),
        trm.NDCG(gain="exponential", **rules),
        trm.AUROC(weight="relevant", **rules),
    ]
    members = [*sorted(_CLASSES.keys() - lacking), *with_options]
    collection = trm.RecMetricCollection(members, k=[2, 3], catalogue=catalogue, **rules).to("meta")
    catalogue.on("meta")  # the first batch copies it
    with never_waits():
        for _ in range(2):
            collection.update(META_UPDATES[form](*META), weights=META[0][:, 0])


WAITS = {
    "number": lambda x: x[0, 0].item(),
    "truth": lambda x: bool(x.any()),
    "nonzero": lambda x: x.nonzero(),
    "repeat_interleave": lambda x: x[0].repeat_interleave(x[0].long()),
    "mask": lambda x: x[x > 0],
    "index on the CPU": lambda x: x[torch.tensor([0, 2])],
    "to the CPU": lambda x: x.cpu(),
    "from the CPU": lambda x: torch.ones(20).to(x.device),
    "made of a number": lambda x: torch.tensor(1.0, device=x.device),
    "dense target of unknown width": lambda x: trm.HR(3).to("meta").update(x, x > 0),
}


@pytest.mark.parametrize("name", WAITS)
def test_waiting_would_be_noticed(name):
    """Whatever waits for a GPU raises in the tests above, and what does not wait does not raise."""
    x = torch.zeros(6, 20, device="meta")
    with never_waits():
        x[0], x[:, -1], x[1:, None, ...], x[x[0].long()], x.where(x > 0, 0) + torch.tensor(1.0)
        x[:, 1:] += x[:, :-1]
        with pytest.raises((AssertionError, RuntimeError, NotImplementedError)):
            WAITS[name](x)


def synced_values(rank, world_size, split):
    """Update each process with its own batches, and return the values that the process computes over all batches."""
    out = {}
    for label, metric in METRICS.items():
        metric = fed(metric.clone(), *split[rank])
        local = snapshot(metric)
        other = metric.clone()
        other.sync()
        with pytest.raises(TorchMetricsUserError, match="unsync"):
            other.update(**batch(1))
        synced = other.compute().item(), other.num_users
        other.unsync()
        assert same(snapshot(other), local)
        out[label] = found(metric), (metric.compute().item(), metric.num_users), synced
    return out


@pytest.mark.parametrize("split", [((), (1, 2)), ((1, 2, 3), (4,), ())])
def test_processes_do_not_show(split, processes):
    """Uneven processes, one of them (first or later) without a batch, give the value of all batches and no warning."""
    seeds = sum(split, ())
    for result in processes.run(synced_values, len(split), split):
        for label, (values, reduced, synced) in result.items():
            assert values == expected(METRICS[label], *seeds)
            assert synced == reduced


def deferred_error(rank, world_size):
    """Give bad input to one process alone; all must raise, none may hang, and all go on afterwards."""
    metric = trm.HR(1, validate_args="deferred")
    scores = torch.tensor([[0.1, math.nan if rank == 1 else 0.2]])
    metric.update(scores, torch.tensor([0]))
    with pytest.raises(ValueError, match="HR@1: bad input since the last reset: 1 row with a score that is NaN") as e:
        metric.compute()
    assert not metric._is_synced
    metric.reset()
    metric.update(torch.tensor([1]), depth=10)
    assert metric.compute() == 1
    return str(e.value)


def test_deferred_errors_are_the_same_everywhere(processes):
    assert len(set(processes.run(deferred_error, 2))) == 1


def own_values(rank, world_size):
    """Return values with `sync_on_compute=False`, with `dist_sync_on_step` and with a user's gather function."""
    calls, ranks = [], torch.tensor([rank + 1])

    def gather(tensor, group=None):
        calls.append(tensor.dtype)
        out = [torch.zeros_like(tensor) for _ in range(world_size)]
        torch.distributed.all_gather(out, tensor)
        return out

    mine, own = trm.HR(1, sync_on_compute=False), trm.HR(1, dist_sync_fn=gather)
    mine.update(ranks, depth=10)
    own.update(ranks, depth=10)
    step = trm.HR(1, dist_sync_on_step=True)(ranks, depth=10)
    return mine.compute().item(), step.item(), own.compute().item(), len(calls)


def test_torchmetrics_sync_keywords(processes):
    """The synchronisation keywords of torchmetrics mean here what they mean there."""
    assert processes.run(own_values, 2) == [(1.0, 0.5, 0.5, 2), (0.0, 0.5, 0.5, 2)]


def test_reset_gives_every_state_back_as_it_was():
    """`reset` restores all states, lists of a subclass too, and ends the synchronised state of a metric."""

    class Batches(trm.HR):
        def __init__(self):
            super().__init__(2)
            self.add_state("seen", [], dist_reduce_fx="cat")

        def update(self, *args, **kwargs):
            super().update(*args, **kwargs)
            self.seen.append(1)

    metric = Batches()
    for _ in range(3):
        metric._is_synced = True
        metric.reset()
        metric.update(torch.tensor([1, 2]), depth=10)
        metric.compute()
        assert (metric.seen, metric.num_users) == ([1], 2)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize(
    "metric", [trm.HR(1), trm.RecMetricCollection("HR@1"), trm.CollectSessions(trm.HR(1)), trm.KeptRows()], ids=str
)
@pytest.mark.parametrize("is_inner", [False, True])
def test_scripts_are_refused(metric, is_inner):
    """`torch.jit.script` of a metric, or of a model that holds one, says what to do, and the metric stays as it was."""
    model = torch.nn.ModuleDict({"metric": metric}) if is_inner else metric
    with pytest.raises(TypeError, match=r"torch.jit.script cannot compile .*: a metric stays outside of the compiled"):
        torch.jit.script(model)


def of_several_kinds(rank, world_size):
    catalogue = trm.Catalogue(2)
    metrics = trm.RecMetricCollection([trm.HR(1), trm.Coverage(1, catalogue=catalogue), trm.MRR(), trm.MedianRank()])
    metrics.update(torch.tensor([[0.1, 0.9]]), torch.tensor([rank]))
    with counted_collectives() as calls:
        values = metrics.compute()
    return [(values[key].item(), value.num_users) for key, value in metrics.items()], len(calls)


def test_metrics_of_several_kinds_synchronise_together(processes):
    """Metrics that read counts of their own are synchronised with the means over rows, by three collectives."""
    wanted = [(1 / 2, 2), (1 / 2, 2), ((1 / 2 + 1) / 2, 2), ((1 + 2) / 2, 2)]
    assert processes.run(of_several_kinds, 2) == [(wanted, 3)] * 2
