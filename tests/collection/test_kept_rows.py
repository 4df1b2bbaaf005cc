"""`KeptRows`: collections keep the values of every row once, by id, over batches and processes."""

import pytest
import torch

import torchrecmetrics as trm

IDS = torch.arange(5)


def keeping(metrics="HR@1", **options):
    return trm.RecMetricCollection(metrics, accumulators=[trm.KeptRows()], **options)


def batch(seed, rows=5):
    """Return random scores and targets, without a relevant item in the first row."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(rows, 12, generator=generator)
    target = torch.rand(rows, 12, generator=generator).argsort(1)[:, :2]
    target[0] = -1
    return scores, target


def collection(*ids, **options):
    """Return a collection that keeps rows, after an update with each of the batches 0, 1, ... and these ids."""
    metrics = keeping(["HR@2", "NDCG@2", "AUROC"], **options)
    for seed, row_ids in enumerate(ids):
        metrics.update(*batch(seed), row_ids=row_ids)
    return metrics


def columns(rows):
    """Return ids and values of rows to compare bit by bit; NaN is -1."""
    return rows.ids.tolist(), {label: values.nan_to_num(-1).tolist() for label, values in rows.values.items()}


def test_a_row_keeps_its_id_value_weight_and_cluster():
    metrics, numbers, clusters = keeping(), torch.tensor([7, 5]), torch.tensor([3, 3])
    metrics.update(torch.tensor([1, 2]), depth=10, row_ids=numbers, clusters=clusters, weights=torch.tensor([2, 0.5]))
    rows = metrics.rows

    assert (rows.ids.tolist(), rows.values["HR@1"].tolist()) == ([7, 5], [1, 0])
    assert (rows.weights.tolist(), rows.clusters.tolist()) == ([2, 0.5], [3, 3])


def test_a_weighted_metric_keeps_weights_of_its_own():
    """AUROC weighted by the number of relevant items, 0, 1, 2 and 2; the row of weight 0 is left out."""
    metrics = keeping([trm.HR(2), trm.AUROC(weight="relevant")])
    scores, target = batch(0)
    target[1, 1] = -1
    metrics.update(scores, target, weights=torch.tensor([1.0, 2.0, 0.0, 0.5, 1.0]))

    assert metrics.rows.own_weights["AUROC-relevant"].tolist() == [0, 2 * 1, 0.5 * 2, 1 * 2]
    assert metrics.rows.mean() == {label: pytest.approx(value.item()) for label, value in metrics.compute().items()}


def test_a_row_of_weight_0_is_left_out_but_takes_a_number():
    """So rows of two runs with other weights pair correctly."""
    metrics = keeping()
    metrics.update(torch.tensor([1, 2, 1, 2]), depth=10, weights=torch.tensor([1.0, 0, 1, 1]))

    assert metrics.rows.ids.tolist() == [0, 2, 3]


def test_a_row_without_a_relevant_item_counts_as_0_if_asked_for():
    assert collection(IDS, empty_target_action="neg").rows.values["HR@2"][0] == 0


@pytest.mark.parametrize("read", [trm.RecMetricCollection.compute, trm.RecMetricCollection.rows.fget])
def test_a_deferred_error_is_raised_for_rows_too(read):
    metrics = collection(validate_args="deferred")
    metrics.update(torch.rand(2, 3), torch.tensor([1, 7]))

    with pytest.raises(ValueError, match="HR@2: bad input since the last reset: 1 row with a target id beyond"):
        read(metrics)


def test_rows_without_ids_are_numbered_from_the_last_reset_on():
    metrics = collection(None)
    metrics.reset()
    metrics.update(*batch(1, rows=3))
    metrics.update(*batch(2, rows=4))

    assert metrics.rows.ids.tolist() == list(range(7))


def test_forward_keeps_a_row_once():
    metrics = collection()
    metrics(*batch(0))

    assert columns(metrics.rows) == columns(collection(None).rows)


def test_rows_are_gathered_once_and_stay_readable_after_reset():
    metrics = collection(None)
    rows = metrics.rows
    metrics["NDCG@2"].compute()  # as `log_dict` does, one by one

    assert metrics.rows is rows
    metrics.reset()
    assert metrics.rows is rows


def test_a_batch_is_copied():
    """A loader may write its next batch into the same memory."""
    metrics, numbers, weights = keeping(), torch.tensor([3, 4]), torch.tensor([1.0, 2.0], dtype=torch.float64)
    metrics.update(torch.tensor([1, 2]), depth=10, row_ids=numbers, clusters=numbers, weights=weights)
    numbers += 5
    weights += 5

    assert metrics.rows.ids.tolist() == metrics.rows.clusters.tolist() == [3, 4]
    assert metrics.rows.weights.tolist() == [1, 2]


def test_beyond_the_budget_rows_go_to_the_host(monkeypatch):
    """Values, weights and two flags of 4 rows take 4 * (8 + 8 + 2) = 72 bytes: of 4 batches, every second moves all."""
    moved = []
    metrics = trm.RecMetricCollection("HR", k=1, accumulators=[trm.KeptRows(budget=100)], validate_args=False)
    metrics.to("meta")
    monkeypatch.setattr(torch.Tensor, "cpu", lambda column: moved.append(column) or column)
    for _ in range(4):
        metrics.update(torch.zeros(4, 3, device="meta"), torch.zeros(4, dtype=torch.int64, device="meta"))

    assert len(moved) == 4 * (2 + 4)
    assert len(metrics.accumulators[0]) == 16


def test_merge_state_appends_the_rows_of_the_other_collection():
    first, second = collection(IDS), collection()
    second.update(*batch(1), row_ids=IDS + 5)
    _ = first.rows  # gathered before the merge, and anew after it
    first.merge_state(second)

    assert columns(first.rows) == columns(collection(IDS, IDS + 5).rows)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (trm.RecMetricCollection(["HR@2", "NDCG@2", "AUROC"]), r"one of the two has KeptRows\(\), the other no accum"),
        (collection(None), "pass ids for all batches, or for none"),
    ],
)
def test_a_merge_that_is_refused_changes_nothing(other, message):
    metrics = collection(IDS)
    before = columns(metrics.rows)

    with pytest.raises(ValueError, match=message):
        metrics.merge_state(other)
    assert columns(metrics.rows) == before


def test_kept_rows_under_a_key_of_ones_own_carry_the_label():
    """`compare` refuses rows of two metrics under one key."""
    runs = {str(k): keeping({"ndcg": trm.NDCG(k)}) for k in (1, 3)}
    for metrics in runs.values():
        metrics.update(*batch(0))

    with pytest.raises(ValueError, match=r"same options: metric of ndcg is 'NDCG@1' in '1' and 'NDCG@3' in '3'"):
        trm.compare({name: metrics.rows for name, metrics in runs.items()})


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
def test_a_refused_batch_changes_nothing(call, keywords, error, message):
    metrics = collection(IDS)

    with pytest.raises(error, match=message):
        getattr(metrics, call)(*batch(1), **keywords)
    assert len(metrics.rows) == 5
    assert metrics.evaluator._update_count == 1


TWICE = torch.tensor([1, 2, 3, 4, 1])


@pytest.mark.parametrize("call", ["update", "forward"])
def test_an_id_in_two_rows_of_a_batch_is_refused_unless_one_has_weight_0(call):
    metrics = collection()

    with pytest.raises(ValueError, match=r"id 1 is in 2 rows of a batch.*clusters="):
        getattr(metrics, call)(*batch(0), row_ids=TWICE)
    assert not metrics["HR@2"].update_called
    getattr(metrics, call)(*batch(0), row_ids=TWICE, weights=torch.tensor([1.0, 1, 1, 1, 0]))
    assert metrics.rows.ids.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "metrics", [collection(TWICE, validate_args="deferred"), collection(IDS, IDS)], ids=["one batch", "two batches"]
)
def test_an_id_in_two_rows_that_is_found_later_raises_for_rows_alone(metrics):
    assert not any(value.isnan() for value in metrics.compute().values())
    with pytest.raises(ValueError, match=r"id \d+ occurs in 2 rows.*clusters="):
        _ = metrics.rows


def gathered(rank, world_size, named):
    """Return ids and values after one batch on each process, or the error that says what they need."""
    metrics = collection(IDS + 5 * rank if named else None)
    metrics.evaluator.sync()  # by hand
    metrics.compute()
    try:
        return columns(metrics.rows)
    except ValueError as error:
        return str(error)


def test_every_process_has_the_rows_of_all(processes):
    _, alone = columns(collection(IDS).rows)
    expected = list(range(10)), {label: values * 2 for label, values in alone.items()}

    assert processes.run(gathered, 2, True) == [expected] * 2


def test_rows_of_several_processes_need_ids(processes):
    assert ["need unique row_ids" in error for error in processes.run(gathered, 2, False)] == [True, True]


USERS, ITEMS = torch.rand(2, 9, 4, generator=torch.Generator().manual_seed(0))


def test_evaluate_keeps_rows_by_user_id():
    names = [f"u{user}" for user in range(6)]
    target = trm.Interactions.from_frame({"user": names, "item": [0, 3, 4, 8, 2, 1]}, item_ids=range(9))
    result = trm.evaluate(["HR", "NDCG"], USERS[:6], ITEMS, target=target, k=3, keep_rows=True)

    assert result.rows.ids == names
    assert result.rows.mean() == {label: pytest.approx(value.item()) for label, value in result.items()}


def test_evaluate_keeps_no_rows_unless_asked_for():
    target = trm.Interactions.from_columns([0], [0], num_users=1, num_items=9)
    with pytest.raises(ValueError, match="keep_rows=True"):
        _ = trm.evaluate("HR@3", USERS[:1], ITEMS, target=target).rows
