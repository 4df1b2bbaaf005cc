"""States of metrics are plain tensors of torchmetrics that can be read, written, reset and compiled as usual."""

import copy
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from states import same, snapshot, tensors

import torchrecmetrics as trm

SCORES = torch.tensor([[0.1, 0.9, 0.5, 0.2], [0.4, 0.3, 0.2, 0.1], [0.9, 0.1, 0.2, 0.3]])
TARGET = torch.tensor([2, 0, 1])  # ranks 2, 1 and 4


@pytest.mark.parametrize("metrics", [trm.HR(2), trm.RecMetricCollection(["HR", "NDCG"], k=[1, 2])], ids=str)
def test_a_state_that_was_written_in_place_is_0_after_a_reset(metrics):
    for state in tensors(metrics):
        state.fill_(7)
    metrics.reset()

    assert not any(state.any() for state in tensors(metrics))


@pytest.fixture
def impatient_threads():
    """Let threads take turns every ten microseconds, not every five milliseconds."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def reads_of_two_moments(metrics):
    """Return what 60 reads found to differ: where each row has one relevant item, HR is Recall."""
    differing = []
    for _ in range(60):
        values, rows = metrics.compute(), metrics.rows
        differing += [key for key, value in values.items() if value != values[key.replace("HR", "Recall")]]
        differing += [key for key, column in rows.values.items() if len(column) != len(rows.ids)]
    return differing


@pytest.mark.usefixtures("impatient_threads")
def test_values_and_rows_that_are_read_beside_updates_of_another_thread_are_of_one_moment(generator):
    accumulators = [trm.ByGroup("a", "b"), trm.Window(100), trm.KeptRows()]
    metrics = trm.RecMetricCollection(["HR", "Recall"], k=[1, 2], accumulators=accumulators)
    metrics.update(torch.tensor([1, 2]), depth=10, groups=torch.tensor([0, 1]))
    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(reads_of_two_moments, metrics) for _ in range(2)]
        while not all(reader.done() for reader in readers):
            ranks = torch.randint(1, 4, (5,), generator=generator)
            metrics.update(ranks, depth=10, groups=ranks % 2)

    assert [reader.result() for reader in readers] == [[], []]


@pytest.mark.parametrize("method", ["compute_results", "_summarize"])
def test_a_result_that_an_update_overtakes_is_of_its_own_moment_and_not_kept(method, monkeypatch):
    metrics = trm.RecMetricCollection("HR", k=2)
    metrics.update(SCORES, TARGET)
    inner = getattr(metrics.evaluator, method)

    def overtaken(*args):
        results = inner(*args)
        monkeypatch.undo()
        metrics.update(SCORES, TARGET)
        return results

    monkeypatch.setattr(metrics.evaluator, method, overtaken)
    during, after = metrics.result(), metrics.result()

    assert (during.num_users, after.num_users) == (3, 3 + 3)


@pytest.mark.parametrize("scores", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("autocast", [torch.float16, torch.bfloat16])
def test_scores_of_any_precision_are_ranked_as_they_are_under_autocast(scores, autocast):
    metrics = trm.RecMetricCollection(["AUROC", "MRR", "HR@2"])
    with torch.autocast("cpu", dtype=autocast):
        metrics.update(SCORES.to(scores), TARGET, exclude=torch.tensor([[3], [3], [3]]))

    assert metrics.compute()["MRR"].item() == pytest.approx((1 / 2 + 1 + 1 / 3) / 3)


@pytest.mark.parametrize(
    ("weights", "expected"), [(None, (2 * 1 + 2 * 0) / (2 + 2)), (torch.tensor([1.0, 0.0, 1.0]), 2 * 1 / 2)]
)
def test_a_metrics_own_weights_give_none_to_empty_rows_and_rows_of_weight_0(weights, expected):
    class Own(trm.RankingMetric):
        formula = staticmethod(lambda ranking, k: ranking.any_hit(k).double())
        weights = staticmethod(lambda ranking: ranking.num_relevant + 1)

    metric = Own(2)
    metric.update(SCORES, torch.tensor([2, 3, -1]), weights=weights)  # a hit, a miss, and no relevant item

    assert metric.compute() == expected


def test_a_collection_that_cannot_be_made_takes_no_metric_and_no_accumulator():
    metric, groups = trm.HR(2), trm.ByGroup("a")

    with pytest.raises(ValueError, match="ties"):
        trm.RecMetricCollection([metric, trm.NDCG(2, ties="optimistic")], accumulators=[groups])
    assert trm.RecMetricCollection([metric], accumulators=[groups]).groups == ("a",)


def test_metrics_that_differ_in_validate_args_have_states_of_different_names():
    """Compute groups of torchmetrics merge metrics whose states have equal names and values."""
    assert len({trm.HR(2, validate_args=checks)._state_name for checks in (True, False, "deferred")}) == 3


@pytest.mark.parametrize(("method", "expected"), [("compute", 2 / 3), ("standard_errors", 1 / 3)])
def test_writing_to_results_of_a_collection_changes_no_later_result(method, expected):
    metrics = trm.RecMetricCollection("HR", k=2)
    metrics.update(SCORES, TARGET)  # 1, 1 and 0; their standard error is sqrt(1 / 3) / sqrt(3)
    getattr(metrics, method)()["HR@2"].fill_(9)

    assert getattr(metrics, method)()["HR@2"].item() == pytest.approx(expected)


def test_rows_are_counted_beyond_2_to_the_24_where_a_device_has_no_float64(monkeypatch):
    """In int64: adding 1 to 2^24 in float32 gives 2^24."""
    ours = [module for name, module in sys.modules.items() if name.startswith("torchrecmetrics.")]
    for module in [module for module in ours if hasattr(module, "float_dtype")]:
        monkeypatch.setattr(module, "float_dtype", lambda device: torch.float32)
    metric = trm.HR(1)
    metric.update(torch.tensor([1]), depth=10)
    for _ in range(24):
        metric.merge_state(metric.metric_state)  # doubles the number of rows
    for _ in range(3):
        metric.update(torch.tensor([1]), depth=10)

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


@pytest.mark.parametrize("sizes", [torch.tensor([3, 3]), torch.zeros(1), "x", None])
def test_sizes_of_slots_of_another_shape_or_type_are_refused(sizes):
    metrics, (damaged, key) = with_everything(), state_of_everything("sizes")
    before = snapshot(metrics)
    damaged[key] = sizes

    with pytest.raises(ValueError, match=r"HR@2 cannot load the sizes of Window\(updates=2, .*must be int64 \[1\]"):
        metrics.load_state_dict(damaged)
    assert same(snapshot(metrics), before)


def test_a_negative_sum_of_values_is_loaded():
    saved, loaded = trm.DCG(1), trm.DCG(1)
    saved.persistent(True)
    saved.update(SCORES[:1], torch.tensor([[1, 2]]), gains=torch.tensor([[-3.0, 1.0]]))  # of ranks 1 and 2
    loaded.load_state_dict(saved.state_dict())

    assert loaded.compute() == -3


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


def synchronised_alone(rank, world_size):
    """Return value and number of users of a metric that is synchronised over a group of this process alone."""
    groups = [dist.new_group([member]) for member in range(world_size)]
    metric = trm.HR(1)
    metric.update(torch.full((10,), rank + 1), depth=10)
    metric.sync(process_group=groups[rank])
    return metric.compute().item(), metric.num_users


def test_sync_adds_up_the_processes_of_the_group_that_it_is_given(processes):
    assert processes.run(synchronised_alone, 2) == [(10 / 10, 10), (0 / 10, 10)]


def test_sync_calls_the_function_that_it_is_given_with_the_group():
    groups = []

    def from_two_processes(tensor, group=None):
        groups.append(group)
        return [tensor, tensor]

    metric = trm.HR(1)
    metric.update(torch.tensor([1, 2]), depth=10)
    metric.sync(dist_sync_fn=from_two_processes, process_group="a group", distributed_available=lambda: True)

    assert metric.num_users == 2 + 2
    assert {*groups} == {"a group"}


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


def error_and_later_value(rank, world_size, kind):
    """Return the error of a metric that differs from process to process, and the value of one that does not."""
    metric, later_metric = DIFFERENT[kind](rank), trm.HR(1)
    metric.update(torch.tensor([1, 2]), depth=10)
    with pytest.raises(ValueError, match=r"processes differ in their metrics or .*process 0 HR@") as error:
        metric.compute()
    later_metric.update(torch.tensor([1 + rank]), depth=10)
    return str(error.value), later_metric.compute().item()


@pytest.mark.parametrize("kind", DIFFERENT)
def test_processes_with_different_metrics_raise_the_same_error_and_go_on_afterwards(processes, kind):
    (error, _), _ = results = processes.run(error_and_later_value, 2, kind)

    assert results == [(error, (1 + 0) / 2)] * 2
