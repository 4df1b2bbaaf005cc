"""States of metrics are plain tensors of torchmetrics that can be read, written, reset and compiled as usual."""

import copy
import itertools
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
import torch.distributed as dist
from states import same, snapshot, tensors
from values import numbers

import torchrecmetrics as trm

SCORES = torch.tensor([[0.1, 0.9, 0.5, 0.2], [0.4, 0.3, 0.2, 0.1], [0.9, 0.1, 0.2, 0.3]])
TARGET = torch.tensor([2, 0, 1])  # ranks 2, 1 and 4


def collection():
    return trm.RecMetricCollection(["HR", "NDCG"], k=[1, 2])


@pytest.mark.parametrize("make", [collection, lambda: trm.HR(2)], ids=["collection", "metric"])
def test_writing_to_a_state_in_place_changes_no_default(make):
    """A state that is loaded by `copy_` counts once, and reset starts from zero."""
    saved, metrics = make(), make()
    saved.update(SCORES, TARGET)
    for source, state in zip(tensors(saved), tensors(metrics), strict=True):
        state.copy_(source)
    metrics.update(SCORES, TARGET)
    value = metrics["HR@2"] if isinstance(metrics, trm.RecMetricCollection) else metrics
    written = value.num_users
    metrics.reset()
    metrics.update(SCORES, TARGET)

    assert (written, value.num_users) == (3 + 3, 3)


def read_until(done, metrics):
    """Compute until it is done; return how often, and what was not of one moment."""
    torn = []
    for number in itertools.count(1):
        values = metrics.compute()
        torn += [key for key, value in values.items() if value != values[key.replace("HR", "Recall")]]
        lengths = {len(metrics.rows.ids), *map(len, metrics.rows.values.values())}
        torn += ["rows"] if len(lengths) > 2 else []  # each of two reads has rows of one moment
        if done.is_set():
            return number, torn


def test_values_computed_beside_updates_of_another_thread_are_of_one_moment(request, generator):
    """Where each row has one relevant item, HR is Recall; and no value of a past moment is kept."""
    accumulators = [trm.ByGroup("a", "b"), trm.Window(100), trm.KeptRows()]
    metrics, done = trm.RecMetricCollection(["HR", "Recall"], k=[1, 2], accumulators=accumulators), threading.Event()
    batches = torch.randint(1, 4, (150, 5), generator=generator)
    metrics.update(batches[0], depth=10, groups=batches[0] % 2)
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-5)
    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read_until, done, metrics) for _ in range(2)]
        try:
            for ranks in batches[1:]:
                metrics.update(ranks, depth=10, groups=ranks % 2)
        finally:
            done.set()
    (first, torn), (second, also_torn) = (reader.result() for reader in readers)

    assert (torn + also_torn, first + second > 5) == ([], True)
    assert metrics.compute()["HR@2"] == (batches <= 2).double().mean()
    assert metrics["Recall@1"].num_users == len(metrics.rows) == batches.numel()


@pytest.mark.parametrize("method", ["compute_results", "_summarize"])
def test_a_result_that_an_update_overtakes_is_of_its_own_moment_and_not_kept(method):
    metrics = collection()
    metrics.update(SCORES, TARGET)
    inner = getattr(metrics.evaluator, method)

    def overtaken(*args):
        results = inner(*args)
        metrics.update(SCORES, TARGET)
        return results

    setattr(metrics.evaluator, method, overtaken)

    assert [metrics.result().num_users for _ in range(2)] == [3, 3 + 3]


@pytest.mark.parametrize("scores", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("autocast", [torch.float16, torch.bfloat16])
def test_scores_of_any_precision_are_ranked_as_they_are_under_autocast(scores, autocast):
    metrics = trm.RecMetricCollection(["AUROC", "MRR", "HR@2"])
    with torch.autocast("cpu", dtype=autocast):
        metrics.update(SCORES.to(scores), TARGET, exclude=torch.tensor([[3], [3], [3]]))

    assert metrics.compute()["MRR"].item() == pytest.approx((1 / 2 + 1 + 1 / 3) / 3)


@pytest.mark.parametrize(("weights", "num_users"), [(None, 2), (torch.tensor([1.0, 0.0, 1.0]), 1)])
def test_rows_that_do_not_count_have_no_weight_whatever_a_metrics_own_weights_are(weights, num_users):
    class Own(trm.RankingMetric):
        formula = staticmethod(lambda ranking, k: ranking.any_hit(k).double())
        weights = staticmethod(lambda ranking: ranking.num_relevant + 1)

    metric = Own(2)
    metric.update(SCORES, torch.tensor([2, 1, -1]), weights=weights)  # two hits, and no relevant item

    assert metric.compute() == 1
    assert metric.num_users == num_users


def test_a_collection_that_cannot_be_made_takes_no_metric_and_no_accumulator():
    metric, groups = trm.HR(2), trm.ByGroup("a")

    with pytest.raises(ValueError, match="ties"):
        trm.RecMetricCollection([metric, trm.NDCG(2, ties="optimistic")], accumulators=[groups])
    assert metric(SCORES, TARGET) == 2 / 3
    assert trm.RecMetricCollection([metric], accumulators=[groups]).groups == ("a",)


def test_metrics_that_differ_in_validate_args_have_states_of_different_names():
    """So that compute groups of torchmetrics do not merge them."""
    assert len({trm.HR(2, validate_args=checks)._state_name for checks in (True, False, "deferred")}) == 3


@pytest.mark.parametrize("name", ["compute", "standard_errors"])
def test_writing_to_results_of_a_collection_changes_no_result(name):
    metrics = collection()
    metrics.update(SCORES, TARGET)
    results = getattr(metrics, name)
    before = numbers(results())
    for result in results().values():
        result.fill_(9)

    assert numbers(results()) == before


def test_rows_are_counted_in_int64_where_a_device_has_no_float64(monkeypatch):
    """float32 stalls at 2^24."""
    ours = [module for name, module in sys.modules.items() if name.startswith("torchrecmetrics.")]
    for module in [module for module in ours if hasattr(module, "float_dtype")]:
        monkeypatch.setattr(module, "float_dtype", lambda device: torch.float32)
    metric = trm.HR(1)
    metric.update(torch.tensor([1]), depth=10)
    for _ in range(24):
        metric.merge_state(metric.metric_state)
    for _ in range(3):
        metric.update(torch.tensor([1]), depth=10)

    assert metric.compute().dtype == torch.float32
    assert metric.num_users == 2**24 + 3


NEGATIVE, NAN = torch.tensor(-1.0), torch.tensor(torch.nan)
DAMAGES = {
    "a count below 0": ("sums", (0, 0), NEGATIVE),
    "a count that is NaN": ("sums", (0, 0), NAN),
    "a weight below 0": ("sums", (0, 1), NEGATIVE),
    "a weight that is NaN": ("sums", (3, 2), NAN),
    "a sum of values that is NaN": ("sums", (4, 1), NAN),
    "violations below 0": ("violations", (0,), -1),
    "a group's count below 0": ("group_sums", (0, 0, 0), NEGATIVE),
    "a slot's weight that is NaN": ("slots", (0, 1), NAN),
    "a slot's size below 0": ("sizes", (0,), -1),
    "kept weights below 0": ("weights", (0, 0), NEGATIVE),
}


def with_everything():
    accumulators = [trm.ByGroup("a", "b"), trm.Window(updates=2), trm.KeptRows()]
    metrics = trm.RecMetricCollection("HR", k=2, accumulators=accumulators)
    metrics.persistent(True)
    metrics.update(torch.tensor([1, 3]), depth=10, groups=torch.tensor([0, 1]), weights=torch.tensor([1.0, 2.0]))
    return metrics


def state_of_everything(name):
    """Return a state dict of copies, and the key of the state of this name."""
    state = copy.deepcopy(with_everything().state_dict())
    (key,) = (key for key in state if key.endswith((f"-{name}", f".{name}")))
    return state, key


@pytest.mark.parametrize(("name", "place", "value"), DAMAGES.values(), ids=DAMAGES)
def test_a_state_that_no_batches_can_give_is_refused_and_changes_nothing(name, place, value):
    metrics, (damaged, key) = with_everything(), state_of_everything(name)
    before = snapshot(metrics)
    tensor = damaged[key][0] if isinstance(damaged[key], list) else damaged[key]
    tensor[place] = value

    with pytest.raises(ValueError, match="HR@2 cannot load"):
        metrics.load_state_dict(damaged)
    assert same(snapshot(metrics), before)
    assert metrics.compute()["HR@2"] == 1 / (1 + 2)


@pytest.mark.parametrize("sizes", [torch.tensor([3, 3]), torch.zeros(1), "x", None])
def test_sizes_of_slots_of_another_shape_or_type_are_refused(sizes):
    metrics, (damaged, key) = with_everything(), state_of_everything("sizes")
    before = snapshot(metrics)
    damaged[key] = sizes

    with pytest.raises(ValueError, match=r"HR@2 cannot load the sizes of Window\(updates=2, .*must be int64 \[1\]"):
        metrics.load_state_dict(damaged)
    assert same(snapshot(metrics), before)


def test_a_negative_sum_of_values_is_loaded():
    """DCG of penalties is below 0."""
    metric, other = trm.DCG(2), trm.DCG(2)
    metric.persistent(True)
    metric.update(SCORES[:1], torch.tensor([[1, 2]]), gains=torch.tensor([[-1.0, 1.0]]))
    other.load_state_dict(metric.state_dict())

    assert other.compute() == metric.compute() < 0


@pytest.mark.parametrize("weights", [[1e308] * 3, [1e80, 1.0, 1.0]])
def test_weights_whose_squares_overflow_are_refused(weights):
    says = r"a weight that is negative, NaN or too large: row 0 has weight .*, accepted are 0 to 1e\+77"

    with pytest.raises(ValueError, match=says):
        trm.HR(2).update(SCORES, TARGET, weights=torch.tensor(weights, dtype=torch.float64))


def test_weights_of_1e76_have_a_value_and_a_standard_error():
    metric = trm.HR(2)
    metric.update(SCORES, TARGET, weights=torch.full((3,), 1e76, dtype=torch.float64))

    assert metric.compute().item() == pytest.approx((1 + 1 + 0) / 3)
    assert metric.standard_error().item() == pytest.approx(1 / 3)  # sqrt(1 / 3) / sqrt(3)


def synchronised_by(rank, world_size):
    """Return the values of a metric that is synchronised over a group of its own, and by a function of the caller."""
    groups = [dist.new_group([member]) for member in range(world_size)]
    metric, values = trm.HR(1), []
    metric.update(torch.full((10,), rank + 1), depth=10)
    metric.sync(process_group=groups[rank])
    values.append((metric.compute().item(), metric.num_users))
    metric.unsync()
    calls = []

    def twice(tensor, group=None):
        calls.append(group)
        return [tensor, tensor]

    metric.sync(dist_sync_fn=twice, process_group=groups[rank])
    values.append((metric.compute().item(), metric.num_users))
    return values, calls == [groups[rank]] * len(calls), len(calls)


def test_sync_takes_the_group_and_the_function_that_it_is_given(processes):
    first, second = processes.run(synchronised_by, 2)

    assert first == ([(1.0, 10), (1.0, 20)], True, 2)
    assert second == ([(0.0, 10), (0.0, 20)], True, 2)


def test_a_sync_function_alone_says_what_all_processes_have():
    metric = trm.MRR(
        dist_sync_fn=lambda tensor, group=None: [tensor, tensor, tensor], distributed_available_fn=lambda: True
    )
    metric.update(trm.Ranks(torch.tensor([1, 2]), complete=True))

    assert metric.compute() == (1 + 1 / 2) / 2
    assert metric.num_users == 3 * 2


DIFFERENT = {
    "cut-off": lambda rank: trm.RecMetricCollection("HR", k=[6, 5][rank]),
    "numbers of metrics": lambda rank: trm.RecMetricCollection(["HR", "MRR"][: rank + 1], k=5),
    "accumulators": lambda rank: trm.RecMetricCollection("HR", k=5, accumulators=[trm.Window(100)][rank:]),
    "metrics alone": lambda rank: [trm.HR(6), trm.HR(5)][rank],
}


def different(rank, world_size, kind):
    """Return the error of processes that hold different metrics, and the value after each holds the same."""
    metric = DIFFERENT[kind](rank)
    metric.update(torch.tensor([1, 2]), depth=10)
    with pytest.raises(ValueError, match="processes differ in their metrics or accumulators") as error:
        metric.compute()
    same_everywhere = trm.HR(1)
    same_everywhere.update(torch.tensor([1 + rank]), depth=10)
    return str(error.value), same_everywhere.compute().item()


@pytest.mark.parametrize("kind", DIFFERENT)
def test_processes_with_different_metrics_raise_the_same_error_and_go_on_afterwards(processes, kind):
    (first, value), (second, _) = processes.run(different, 2, kind)

    assert first == second
    assert "process 0 HR@" in first
    assert value == (1 + 0) / 2
