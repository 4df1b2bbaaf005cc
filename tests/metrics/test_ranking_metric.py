"""Every metric class of the package keeps the contract of a torchmetrics metric: the same tests run for all classes."""

import copy
import math
import pickle
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from distributed import counted_collectives
from states import same, snapshot, tensors
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
    options = {"weight": metric._weight} if isinstance(metric, trm.AUROC) else {}
    if metric.catalogue is not None:
        options["catalogue"] = metric.catalogue
    return type(metric)(*([metric.k] if metric.k else []), **metric.options, **options).to(metric.device)


@pytest.fixture(params=METRICS)
def metric(request, device):
    return METRICS[request.param].clone().to(device)


def test_a_metric_shows_its_class_and_label():
    assert repr(trm.NDCG(3, gain="exponential")) == "NDCG(NDCG-exponential@3)"


def test_batches_add_up(metric):
    assert found(fed(metric, 1, 2)) == expected(metric, 1, 2)


def test_the_value_is_a_scalar_of_float64_without_a_graph(metric):
    value = fed(metric, 1).compute()
    assert (value.shape, value.dtype, value.requires_grad) == ((), torch.float64, False)


def test_writing_to_results_changes_no_later_result(metric):
    fed(metric, 1).compute().mul_(7)
    metric.standard_error().mul_(7)

    assert found(metric) == expected(metric, 1)


def test_a_reset_metric_begins_anew(metric):
    fed(metric, 1).reset()

    assert not metric.update_called
    assert found(fed(metric, 3)) == expected(metric, 3)


def test_forward_gives_the_value_of_its_batch_and_adds_the_batch(metric):
    values = [metric(**batch(seed, metric.device)).item() for seed in (1, 2)]

    assert values == [expected(metric, seed)[0] for seed in (1, 2)]
    assert metric._forward_cache.item() == values[1]  # which Lightning reads
    assert found(metric) == expected(metric, 1, 2)


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda metric: pickle.loads(pickle.dumps(metric)),
    "clone": lambda metric: metric.clone(),
}


@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
def test_a_copy_has_the_state_and_goes_its_own_way(metric, duplicate):
    fed(metric, 1).compute()
    other = duplicate(metric)
    fed(other, 2)
    fed(metric, 3)

    assert found(other) == expected(metric, 1, 2)
    assert found(metric) == expected(metric, 1, 3)


def loaded(metric, state):
    """Return a new metric of the same kind with a state."""
    other = fresh(metric)
    other.persistent(True)
    other.load_state_dict(state)
    return other


def test_a_checkpoint_is_of_its_moment_and_goes_on_where_it_is_loaded(metric):
    fed(metric, 1).persistent(True)
    saved = metric.state_dict()
    fed(metric, 2)

    assert found(fed(loaded(metric, saved), 3)) == expected(metric, 1, 3)
    assert found(metric) == expected(metric, 1, 2)


def test_a_checkpoint_that_was_cast_is_loaded_as_sums_and_counts(metric):
    fed(metric, 1).persistent(True)
    other = loaded(metric, {name: state.float() for name, state in metric.state_dict().items()})

    assert other.compute().item() == pytest.approx(metric.compute().item(), abs=1e-6)
    assert {state.dtype for state in tensors(other)} == SUMS_AND_COUNTS


def test_a_checkpoint_from_the_host_goes_on_on_the_device_of_the_metric():
    on_host, metric = (trm.HR(5, validate_args=False).to(device) for device in ("cpu", "meta"))
    for each in (on_host, metric):
        each.persistent(True)
    metric.load_state_dict(on_host.state_dict())

    metric.update(torch.tensor([1], device="meta"), depth=10)
    assert {state.device.type for state in tensors(metric)} == {"meta"}


@pytest.mark.parametrize("name", ["k", "options", "catalogue", "empty_target_action"])
def test_a_description_cannot_be_changed(name):
    """Cut-off, options and catalogue belong to the state: another value needs another metric."""
    metric = trm.AveragePopularity(1, catalogue=CATALOGUE)

    with pytest.raises(AttributeError):
        setattr(metric, name, None)


def test_a_batch_on_another_device_is_refused(metric):
    metric.to("meta")

    with pytest.raises(ValueError, match=r"is on meta, its input on cpu: move the metric with \.to"):
        metric.update(**batch(1))
    assert not metric.update_called


def test_a_metric_that_was_on_meta_begins_with_an_empty_state(metric):
    metric.to("meta").to_empty(device="cpu")
    assert found(fed(metric, 1)) == expected(metric, 1)


def test_merged_states_are_that_of_all_batches(metric):
    other = fed(metric.clone(), 2)
    fed(metric, 1).compute()
    metric.merge_state(other)

    assert found(metric) == expected(metric, 1, 2)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (trm.HR(99), ValueError, "merges states named|the other no accumulators"),
        ({name: state[:1] for name, state in trm.HR(3).metric_state.items()}, ValueError, "merges states named"),
        (3, TypeError, "merges a metric of the same kind or its metric_state, got int"),
    ],
    ids=["another metric", "cut states", "a number"],
)
def test_merging_another_state_is_refused_and_leaves_the_metric_as_it_was(wrong, error, message):
    metric = fed(METRICS["HR@3"].clone(), 1)

    with pytest.raises(error, match=message):
        metric.merge_state(wrong)
    assert found(metric) == expected(metric, 1)


def test_the_value_does_not_depend_on_the_default_dtype(metric, request):
    """Lightning's "bf16-true" sets the default dtype to bfloat16."""
    scores_and_target = batch(1, metric.device)
    usual = fresh(metric)(**scores_and_target)
    request.addfinalizer(partial(torch.set_default_dtype, torch.float32))
    torch.set_default_dtype(torch.bfloat16)

    assert fresh(metric)(**scores_and_target) == usual


def test_a_formula_reads_no_inference_tensors(device):
    ranks = []

    class Own(trm.RankingMetric):
        formula = staticmethod(lambda ranking, k: ranks.append(ranking.ranks) or ranking.any_hit(k))

    metrics = trm.RecMetricCollection([Own(2), trm.NDCG(2), trm.MAP(2)]).to(device)
    metrics.update(torch.rand(2, 5, device=device), torch.tensor([[1, 0], [2, 1]], device=device))

    assert [each.is_inference() for each in ranks] == [False]


def test_a_ranking_that_metrics_have_read_can_be_part_of_a_loss(device):
    scores = torch.rand(2, 5, device=device, requires_grad=True)
    ranking = trm.Scores(scores, torch.tensor([[1, 0], [2, 1]], device=device)).ranking()
    trm.RecMetricCollection(["NDCG", "MAP"], k=2).to(device).update(ranking)
    (scores.sum() * ranking.num_hits(2).sum()).backward()

    assert scores.grad is not None


def test_compute_without_a_user_is_nan_and_warns_once_of_all_metrics(device):
    metrics = trm.RecMetricCollection(["HR", "MRR"], k=[1, 2]).to(device)

    with pytest.warns(UserWarning, match="no row to average .*, the value is nan: HR@1, MRR@1, HR@2, MRR@2$") as caught:
        values = [value.item() for _ in range(2) for value in metrics.compute().values()]
    assert all(map(math.isnan, values))
    assert len(caught) == 1


def test_public_names_are_those_of_the_reference():
    """The reference lists every public name that a metric adds to torchmetrics' `Metric`: at most 24, and no other."""
    page = Path(__file__).parents[2] / "docs/reference/base-classes.md"
    rows = [row for row in page.read_text(encoding="utf-8").splitlines() if row.startswith("| `")]
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row.split(" | ")[0])]
    added = set(dir(trm.HR(5))) - set(dir(MeanMetric())) - set(trm.HR(5)._defaults)

    assert sorted(listed) == sorted(name for name in added if not name.startswith("_"))
    assert len(listed) <= 24


def test_counts_are_those_of_the_last_compute_after_a_reset():
    metric = trm.HR(3)
    metric.update(torch.tensor([1]), depth=10)
    metric.compute()
    metric.reset()

    assert metric.num_users == 1


@pytest.mark.parametrize("make", [lambda: trm.HR(3), lambda: trm.RecMetricCollection("HR", k=3)["HR@3"]])
def test_counts_after_a_further_update_are_those_of_the_state(make):
    """They are computed when they are read, whether or not `compute` was called."""
    metric = make()
    metric.update(torch.tensor([1, 9]), depth=10)
    metric.compute()
    metric.update(torch.tensor([2]), depth=10)

    assert metric.num_users == 3
    assert metric.standard_error().item() == pytest.approx(1 / 3)  # of 1, 0, 1: sqrt(1 / 3) / sqrt(3)


SCORES, TARGET = torch.tensor([[0.1, 0.9, 0.5], [0.3, 0.2, 0.1]]), torch.tensor([[0, 1], [2, -1]])
NAN_SCORES = torch.tensor([[0.1, math.nan, 0.5], [0.3, 0.2, 0.1]])
DEFERRED = {"validate_args": "deferred"}
NAN_RANKS = trm.get_topk_ranks(NAN_SCORES, TARGET, 3, **DEFERRED)
SHORT = trm.Lists(torch.tensor([[0, 1, 2]] * 2), TARGET, exclude=torch.tensor([[2], [5]])).ranking(**DEFERRED)
VIOLATIONS = [
    ((NAN_SCORES, TARGET), {}, "1 row with a score that is NaN or .inf"),
    ((SCORES, torch.tensor([[0, 3], [4, 1]])), {}, "2 rows with a target id beyond the last item"),
    ((SCORES, torch.tensor([[1, 1], [0, 1]])), {}, "1 row with an item listed twice"),
    ((SCORES, TARGET), {"exclude": torch.tensor([[1], [3]])}, "1 row with an excluded id .*; 1 row with a target that"),
    ((SCORES, TARGET), {"gains": torch.tensor([[1, math.inf], [1, 1]])}, "1 row with a gain"),
    ((SCORES, TARGET), {"weights": torch.tensor([-1.0, 1.0])}, "1 row with a weight"),
    ((NAN_SCORES, torch.tensor([1, -1])), {}, "1 row with a score that is .*; 1 row without a relevant item"),
    ((NAN_RANKS,), {}, "1 row with invalid ranks"),
    ((SHORT,), {}, "1 row with fewer than k known ranks"),
]


@pytest.mark.parametrize(("args", "kwargs", "message"), VIOLATIONS)
def test_compute_raises_deferred_violations_whenever_it_is_called(args, kwargs, message):
    metric = trm.HR(3, validate_args="deferred", empty_target_action="error")
    metric.update(*args, **kwargs)

    for _ in range(2):
        with pytest.raises(ValueError, match=f"HR@3: bad input since the last reset: .*{message}"):
            metric.compute()


@pytest.mark.parametrize(("args", "kwargs", "message"), VIOLATIONS)
def test_forward_raises_deferred_violations_of_its_batch_and_adds_nothing(args, kwargs, message):
    metric = trm.HR(3, validate_args="deferred", empty_target_action="error")

    with pytest.raises(ValueError, match=message):
        metric(*args, **kwargs)
    assert metric.update_count == 0
    assert not any(state.any() for state in tensors(metric))


def test_a_reset_forgets_violations():
    metric = trm.HR(3, validate_args="deferred")
    metric.update(NAN_SCORES, TARGET)
    metric.reset()
    metric.update(torch.tensor([1]), depth=10)

    assert metric.compute() == 1


def test_unchecked_scores_and_ids_raise_nothing_and_hit_nothing():
    metric = trm.HR(1, validate_args=False)
    metric.update(torch.tensor([[0.1, math.nan], [0.5, 0.1]]), torch.tensor([[1, -1], [0, 9]]))

    assert metric.compute() == (0 + 1) / 2


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


WAITS = [
    lambda x: x[0, 0].item(),
    lambda x: x.nonzero(),
    lambda x: x[x > 0],
    lambda x: x[torch.tensor([0, 2])],  # an index on the CPU
    lambda x: x.cpu(),
    lambda x: torch.ones(20).to(x.device),
    lambda x: torch.tensor(1.0, device=x.device),
    lambda x: trm.HR(3).to("meta").update(x, x > 0),  # a dense target of unknown width
]


@pytest.mark.parametrize("wait", WAITS)
def test_whatever_waits_for_a_gpu_raises_in_the_test_above(wait):
    with never_waits(), pytest.raises((AssertionError, RuntimeError, NotImplementedError)):
        wait(torch.zeros(6, 20, device="meta"))


def values_of_process(rank, world_size, split):
    """Update this process with its own batches; return values by `compute`, and between `sync` and `unsync`."""
    computed, synced = {}, {}
    for label, metric in METRICS.items():
        metric = fed(metric.clone(), *split[rank])
        other, local = metric.clone(), snapshot(metric)
        other.sync()
        with pytest.raises(TorchMetricsUserError, match="unsync"):
            other.update(**batch(1))
        synced[label] = found(other)
        other.unsync()
        assert same(snapshot(other), local)
        computed[label] = found(metric)
    return computed, synced


@pytest.mark.parametrize("split", [((), (1, 2)), ((1, 2, 3), (4,), ())])
def test_processes_of_any_batches_give_the_value_of_all_batches(split, processes):
    """One of them, the first or a later one, has no batch, and warns of nothing."""
    of_all = {label: expected(metric, *sum(split, ())) for label, metric in METRICS.items()}

    assert processes.run(values_of_process, len(split), split) == [(of_all, of_all)] * len(split)


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


def test_a_deferred_violation_of_one_process_is_the_same_error_in_all(processes):
    assert len(set(processes.run(deferred_error, 2))) == 1


def with_keywords(rank, world_size):
    """Return values with `sync_on_compute=False` and with `dist_sync_on_step`."""
    metric, ranks = trm.HR(1, sync_on_compute=False), torch.tensor([rank + 1])
    metric.update(ranks, depth=10)
    return metric.compute().item(), trm.HR(1, dist_sync_on_step=True)(ranks, depth=10).item()


def test_synchronisation_keywords_mean_what_they_mean_in_torchmetrics(processes):
    assert processes.run(with_keywords, 2) == [(1 / 1, 1 / 2), (0 / 1, 1 / 2)]


class KeepsBatches(trm.HR):
    """A hit rate that also keeps the number 1 of each batch."""

    def __init__(self, k):
        super().__init__(k)
        self.add_state("seen", [], dist_reduce_fx="cat")

    def update(self, *args, **kwargs):
        super().update(*args, **kwargs)
        self.seen.append(1)


def test_reset_empties_lists_of_a_subclass_and_ends_a_synchronised_state():
    metric = KeepsBatches(2)
    metric.update(torch.tensor([1, 2]), depth=10)
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
def test_scripts_are_refused_and_say_what_to_do(metric, is_inner):
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


def test_metrics_of_several_kinds_synchronise_together_by_three_collectives(processes):
    wanted = [(1 / 2, 2), (1 / 2, 2), ((1 / 2 + 1) / 2, 2), ((1 + 2) / 2, 2)]

    assert processes.run(of_several_kinds, 2) == [(wanted, 3)] * 2
