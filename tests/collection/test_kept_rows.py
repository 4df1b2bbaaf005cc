"""`KeptRows`: collections keep the values of every row once, by id, over batches and processes."""

import pytest
import torch

import torchrecmetrics as trm

LABELS = ["HR@2", "NDCG@2", "AUROC"]
IDS = torch.arange(5)


def batch(seed, rows=5, items=12):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(rows, items, generator=generator)
    target = torch.rand(rows, items, generator=generator).argsort(1)[:, :2]
    target[0] = -1  # a row without a relevant item
    return scores, target


def collection(*ids, **options):
    """Return a collection that keeps rows, after an update with each of the batches 0, 1, ... and these ids."""
    metrics = trm.RecMetricCollection(LABELS, accumulators=[trm.KeptRows()], **options)
    for seed, row_ids in enumerate(ids):
        metrics.update(*batch(seed), row_ids=row_ids)
    return metrics


def same(rows, other):
    """Assert that rows have the same ids and values, bit by bit."""
    assert list(rows.values) == list(other.values)
    for label in rows.values:
        torch.testing.assert_close(rows.values[label], other.values[label], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(rows.ids, other.ids)


def test_weights_and_clusters():
    """Weights and clusters are kept, a row of weight 0 is left out, and a weighted metric has weights of its own."""
    metrics = trm.RecMetricCollection([trm.HR(2), trm.AUROC(weight="relevant")], accumulators=[trm.KeptRows()])
    scores, target = batch(0)
    target[1, 1] = -1
    weights = torch.tensor([1.0, 2.0, 0.0, 0.5, 1.0])
    metrics.update(scores, target, weights=weights, row_ids=torch.arange(5), clusters=torch.tensor([7, 7, 8, 8, 9]))
    values = metrics.compute()
    rows = metrics.rows
    assert rows.ids.tolist() == [0, 1, 3, 4]
    assert rows.weights.tolist() == [1, 2, 0.5, 1]
    assert rows.clusters.tolist() == [7, 7, 8, 9]
    assert rows.own_weights["AUROC-relevant"].tolist() == [0, 2 * 1, 0.5 * 2, 1 * 2]
    assert rows.mean() == {label: pytest.approx(value.item()) for label, value in values.items()}


def test_empty_rows_and_bad_rows():
    """With "neg" a row without a relevant item counts as 0; a deferred error raises in `compute` and for `rows`."""
    assert collection(IDS, empty_target_action="neg").rows.values["HR@2"][0] == 0
    metrics = collection(validate_args="deferred")
    metrics.update(torch.rand(2, 3), torch.tensor([1, 7]))
    for ask in (metrics.compute, lambda: metrics.rows):
        with pytest.raises(ValueError, match="HR@2: bad input since the last reset: 1 row with a target id beyond"):
            ask()


def test_rows_from_update_to_reset():
    """Rows are numbered as they come, gathered once until the next change, and stay readable after `reset`."""
    metrics, other = collection(None), collection()
    other(*batch(0))  # `forward` keeps a row once
    rows = metrics.rows
    same(rows, other.rows)
    metrics["NDCG@2"].compute()  # as `log_dict` does, one by one
    assert metrics.rows is rows
    metrics.reset()
    assert metrics.rows is rows
    for seed, size in ((1, 3), (2, 4)):
        metrics.update(*batch(seed, rows=size))
    assert metrics.rows.ids.tolist() == list(range(7))


def test_merge_appends():
    """`merge_state` appends the rows of the other collection; one that keeps no rows is refused and changes nothing."""
    one, two, whole = collection(IDS), collection(), collection(IDS, IDS + 5)
    two.update(*batch(1), row_ids=IDS + 5)
    one.rows  # noqa: B018 - gathered before the merge
    one.merge_state(two)
    values = one.compute()
    same(one.rows, whole.rows)
    plain = trm.RecMetricCollection(LABELS)
    plain.update(*batch(2))
    for other, message in (
        (plain, r"one of the two has KeptRows\(\), the other no accumulators"),
        (collection(None), "pass ids for all batches, or for none"),
    ):
        with pytest.raises(ValueError, match=message):
            one.merge_state(other)
    assert one.compute() == values
    same(one.rows, whole.rows)


def test_beyond_the_budget_rows_go_to_the_host(monkeypatch):
    """Kept rows on a device move to the CPU whenever they exceed the budget, and all rows stay."""
    moved = []
    metrics = trm.RecMetricCollection("HR", k=1, accumulators=[trm.KeptRows(budget=100)], validate_args=False)
    metrics.to("meta")
    monkeypatch.setattr(torch.Tensor, "cpu", lambda column: moved.append(column) or column)
    for _ in range(4):  # values, weights and two flags of 4 rows take 4 * (8 + 8 + 2) = 72 bytes
        metrics.update(torch.zeros(4, 3, device="meta"), torch.zeros(4, dtype=torch.int64, device="meta"))
    assert len(moved) == 4 * (2 + 4)
    assert len(metrics.accumulators[0]) == 16


def test_memory_that_is_used_again():
    """Ids, clusters and weights are copied, so that all batches may share one buffer."""
    metrics = collection()
    ids, weights = torch.arange(5), torch.ones(5, dtype=torch.float64)
    for seed in range(2):
        metrics.update(*batch(seed), row_ids=ids, clusters=ids, weights=weights)
        ids += 5
        weights += 1
    metrics.compute()
    assert metrics.rows.ids.tolist() == metrics.rows.clusters.tolist() == list(range(10))
    assert metrics.rows.weights.tolist() == [1] * 5 + [2] * 5


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"row_ids": IDS[:3]}, ValueError, r"row_ids must be \[5\]"),
        ({"row_ids": IDS.float()}, TypeError, "row_ids must be an integer tensor"),
        ({"row_ids": ["a"] * 5}, TypeError, "encode text with a Vocabulary"),
        ({}, ValueError, "pass ids for all batches, or for none"),
        ({"row_ids": IDS, "clusters": IDS}, ValueError, "pass clusters for all batches, or for none"),
    ],
)
@pytest.mark.parametrize("call", ["update", "forward"])
def test_a_refused_batch_changes_nothing(keywords, error, message, call):
    metrics = collection(IDS)
    with pytest.raises(error, match=message):
        getattr(metrics, call)(*batch(1), **keywords)
    metrics.compute()
    assert len(metrics.rows) == 5
    assert metrics.evaluator._update_count == 1


@pytest.mark.parametrize("call", ["update", "forward"])
def test_ids_that_stand_twice_in_a_batch(call):
    """A batch with an id in two rows is refused on the CPU, unless a row has no weight or checks are deferred."""
    twice = torch.tensor([1, 2, 3, 4, 1])
    metrics, deferred = collection(), collection(validate_args="deferred")
    with pytest.raises(ValueError, match=r"id 1 is in 2 rows of a batch.*clusters="):
        getattr(metrics, call)(*batch(0), row_ids=twice)
    assert not metrics["HR@2"].update_called
    getattr(metrics, call)(*batch(0), row_ids=twice, weights=torch.tensor([1.0, 1, 1, 1, 0]))
    metrics.compute()
    assert metrics.rows.ids.tolist() == [1, 2, 3, 4]
    getattr(deferred, call)(*batch(0), row_ids=twice)
    deferred.compute()
    with pytest.raises(ValueError, match=r"id 1 occurs in 2 rows.*clusters="):
        deferred.rows  # noqa: B018


def test_ids_that_stand_twice_in_several_batches():
    """If an id occurs in two batches, the values stand, and `rows` raises until the next `compute`."""
    metrics, plain = collection(IDS, IDS), trm.RecMetricCollection(LABELS)
    for seed in range(2):
        plain.update(*batch(seed))
    assert metrics.compute() == plain.compute()
    with pytest.raises(ValueError, match=r"id \d+ occurs in 2 rows.*clusters="):
        metrics.rows  # noqa: B018
    metrics.reset()
    metrics.update(*batch(0), row_ids=IDS)
    assert len(metrics.rows) == 5


def test_weightless_rows_have_numbers_too():
    """A row of weight 0 takes a number too, so that rows of two runs with other weights pair correctly."""
    metrics = trm.RecMetricCollection("HR@1", accumulators=[trm.KeptRows()])
    metrics.update(torch.tensor([1, 2, 1, 2]), depth=10, weights=torch.tensor([1.0, 0, 1, 1]))
    metrics.compute()
    assert metrics.rows.ids.tolist() == [0, 2, 3]


def test_keys_that_hide_what_they_are_of():
    """Kept rows under a key that is no label carry the label, so that `compare` refuses rows of two metrics."""
    runs = {}
    for k in (1, 3):
        metrics = trm.RecMetricCollection({"ndcg": trm.NDCG(k)}, accumulators=[trm.KeptRows()])
        metrics.update(*batch(0))
        metrics.compute()
        runs[str(k)] = metrics.rows
    with pytest.raises(ValueError, match=r"same options: metric of ndcg is 'NDCG@1' in '1' and 'NDCG@3' in '3'"):
        trm.compare(runs)


def gathered(rank, world_size, named):
    """Return ids and values of NDCG after one batch on each process, or the error that says what they need."""
    metrics = collection(IDS + 5 * rank if named else None)
    metrics.evaluator.sync()  # by hand
    metrics.compute()
    try:
        rows = metrics.rows
    except ValueError as error:
        return str(error)
    return rows.ids.tolist(), rows.values["NDCG@2"].nan_to_num(-1).tolist()


def test_every_process_has_the_rows_of_all(processes):
    alone = collection(IDS).rows.values["NDCG@2"].nan_to_num(-1).tolist()

    assert processes.run(gathered, 2, True) == [(list(range(10)), alone * 2)] * 2


def test_rows_of_several_processes_need_ids(processes):
    assert ["need unique row_ids" in error for error in processes.run(gathered, 2, False)] == [True, True]


USERS, ITEMS = torch.rand(2, 9, 4, generator=torch.Generator().manual_seed(0))
NAMES = [f"u{user}" for user in range(6)]
NAMED = trm.Interactions.from_frame({"user": NAMES, "item": [0, 3, 4, 8, 2, 1]}, item_ids=range(9))


def test_evaluate():
    """`evaluate` keeps rows by user id, or by row number without a vocabulary; users without targets have rows too."""
    found = trm.evaluate(["HR", "NDCG"], USERS[:6], ITEMS, target=NAMED, k=3, keep_rows=True)
    assert found.rows.ids == NAMES
    assert found.rows.mean() == {label: pytest.approx(value.item()) for label, value in found.items()}
    plain = trm.Interactions.from_columns(range(6), [0, 3, 4, 8, 2, 1], num_users=8, num_items=9)
    found = trm.evaluate(["HR", "NDCG"], USERS[:8], ITEMS, target=plain, k=3, keep_rows=True)
    assert found.rows.ids.tolist() == list(range(8))  # those without ground truth, too
    assert int(found.rows.values["HR@3"].isnan().sum()) == 2
    with pytest.raises(ValueError, match="keep_rows=True"):
        trm.evaluate("HR@3", USERS[:6], ITEMS, target=NAMED).rows  # noqa: B018
