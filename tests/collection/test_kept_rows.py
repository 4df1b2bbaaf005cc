"""`KeptRows`: collections keep the values of every row once, by id, over batches and processes."""

import pytest
import torch
from states import same, snapshot

import torchrecmetrics as trm


def keeping(*batches, metrics="MRR", **options):
    """Return a collection that keeps rows, after an update with each of these batches of ranks and row ids."""
    collection = trm.RecMetricCollection(metrics, accumulators=[trm.KeptRows()], **options)
    for ranks, ids in batches:
        collection.update(all_ranks(ranks), row_ids=None if ids is None else torch.tensor(ids))
    return collection


def all_ranks(ranks):
    return trm.Ranks(torch.tensor(ranks), complete=True)


def test_a_row_keeps_its_id_value_weight_and_cluster():
    metrics, clusters = keeping(), torch.tensor([3, 3])
    metrics.update(all_ranks([1, 2]), row_ids=torch.tensor([7, 5]), clusters=clusters, weights=torch.tensor([2, 0.5]))

    assert metrics.rows.to_dict() == {"id": [7, 5], "cluster": [3, 3], "weight": [2, 0.5], "MRR": [1, 1 / 2]}


def test_a_weighted_metric_keeps_weights_of_its_own():
    """They are the numbers of relevant items, 2, 1, 1 and 0, times the weights; the row of weight 0 is left out."""
    metrics = keeping(metrics=[trm.MRR(), trm.AUROC(weight="relevant")])
    ranks = trm.Ranks(
        torch.tensor([[1, 2], [2, -1], [1, -1], [-1, -1]]), complete=True, num_ranked=torch.tensor([3] * 4)
    )
    metrics.update(ranks, weights=torch.tensor([0.5, 2.0, 0.0, 1.0]))

    assert metrics.rows.own_weights["AUROC-relevant"].tolist() == [0.5 * 2, 2 * 1, 1 * 0]
    assert metrics.rows.mean()["AUROC-relevant"] == metrics.compute()["AUROC-relevant"] == (1 * 1 + 2 * 0.5) / 3


def test_a_row_of_weight_0_is_left_out_but_takes_a_number():
    """So rows of two runs with other weights pair correctly."""
    metrics = keeping()
    metrics.update(all_ranks([1, 2, 1, 2]), weights=torch.tensor([1.0, 0, 1, 1]))

    assert metrics.rows.ids.tolist() == [0, 2, 3]


def test_a_row_without_a_relevant_item_counts_as_0_if_asked_for():
    metrics = keeping(empty_target_action="neg")
    metrics.update(trm.Ranks(torch.tensor([2, 0]), complete=True, padding=0))

    assert metrics.rows.to_dict() == {"id": [0, 1], "MRR": [1 / 2, 0]}


@pytest.mark.parametrize("read", [trm.RecMetricCollection.compute, trm.RecMetricCollection.rows.fget])
def test_a_deferred_error_is_raised_for_rows_too(read):
    metrics = keeping(validate_args="deferred")
    metrics.update(torch.rand(2, 3), torch.tensor([1, 7]))

    with pytest.raises(ValueError, match="MRR: bad input since the last reset: 1 row with a target id beyond"):
        read(metrics)


def test_rows_without_ids_are_numbered_from_the_last_reset_on():
    metrics = keeping(([1], None))
    metrics.reset()
    metrics.update(all_ranks([1, 2, 3]))
    metrics.update(all_ranks([4]))

    assert metrics.rows.to_dict() == {"id": [0, 1, 2, 3], "MRR": [1, 1 / 2, 1 / 3, 1 / 4]}


def test_forward_keeps_a_row_once():
    metrics = keeping()
    metrics(all_ranks([1, 2]))

    assert metrics.rows.to_dict() == {"id": [0, 1], "MRR": [1, 1 / 2]}


def test_rows_are_gathered_once():
    metrics = keeping(([1, 2], None))
    rows = metrics.rows
    metrics["MRR"].compute()  # as `log_dict` does

    assert metrics.rows is rows


def test_rows_stay_readable_after_a_reset():
    metrics = keeping(([1, 2], None))
    rows = metrics.rows
    metrics.reset()

    assert metrics.rows is rows


def test_a_batch_is_copied():
    """A loader may write its next batch into the same memory."""
    metrics, numbers, weights = keeping(), torch.tensor([3, 4]), torch.tensor([1.0, 2.0], dtype=torch.float64)
    metrics.update(all_ranks([1, 2]), row_ids=numbers, clusters=numbers, weights=weights)
    numbers += 5
    weights += 5

    assert metrics.rows.to_dict() == {"id": [3, 4], "cluster": [3, 4], "weight": [1, 2], "MRR": [1, 1 / 2]}


def test_beyond_the_budget_all_rows_go_to_the_host(monkeypatch):
    """Values, weights and two flags of 4 rows take 4 * (8 + 8 + 2) = 72 bytes: of 4 batches, every second moves all."""
    moved = []

    def to_the_host(column):
        moved.append(column)
        return column

    metrics = trm.RecMetricCollection("HR", k=1, accumulators=[trm.KeptRows(budget=100)], validate_args=False)
    metrics.to("meta")
    monkeypatch.setattr(torch.Tensor, "cpu", to_the_host)
    for _ in range(4):
        metrics.update(torch.zeros(4, 3, device="meta"), torch.zeros(4, dtype=torch.int64, device="meta"))

    assert len(moved) == 4 * (2 + 4)  # four columns of two batches, and later of four


def test_reset_gives_back_the_budget_of_the_device(monkeypatch):
    """A batch of 4 rows takes 72 bytes, as above, so two within 100 bytes would be too many."""
    metrics = trm.RecMetricCollection("HR", k=1, accumulators=[trm.KeptRows(budget=100)], validate_args=False)
    metrics.to("meta")
    monkeypatch.setattr(torch.Tensor, "cpu", lambda column: pytest.fail("rows were moved to the host"))
    for _ in range(3):
        metrics.reset()
        metrics.update(torch.zeros(4, 3, device="meta"), torch.zeros(4, dtype=torch.int64, device="meta"))


def test_merge_state_appends_the_rows_of_the_other_collection():
    first, second = keeping(([1, 2], [0, 1])), keeping(([3], [9]))
    _ = first.rows  # gathered before the merge, and anew after it
    first.merge_state(second)

    assert first.rows.to_dict() == {"id": [0, 1, 9], "MRR": [1, 1 / 2, 1 / 3]}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (trm.RecMetricCollection("MRR"), r"one of the two has KeptRows\(\), the other no accumulator"),
        (keeping(([1], None)), "pass ids for all batches, or for none"),
    ],
)
def test_a_merge_that_is_refused_changes_nothing(other, message):
    metrics = keeping(([1, 2], [0, 1]))
    before = snapshot(metrics)

    with pytest.raises(ValueError, match=message):
        metrics.merge_state(other)
    assert same(snapshot(metrics), before)


def test_kept_rows_under_a_key_of_ones_own_carry_the_label():
    """`compare` refuses rows of two metrics under one key."""
    runs = {str(k): keeping(([1, 2], None), metrics={"ndcg": trm.NDCG(k)}).rows for k in (1, 3)}

    with pytest.raises(ValueError, match=r"same options: metric of ndcg is 'NDCG@1' in '1' and 'NDCG@3' in '3'"):
        trm.compare(runs)


IDS = torch.tensor([8, 9])


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"row_ids": IDS[:1]}, ValueError, r"row_ids must be \[2\]"),
        ({"row_ids": IDS.float()}, TypeError, "row_ids must be an integer tensor"),
        ({"row_ids": ["a", "b"]}, TypeError, "encode text with a Vocabulary"),
        ({}, ValueError, "pass ids for all batches, or for none"),
        ({"row_ids": IDS, "clusters": IDS}, ValueError, "pass clusters for all batches, or for none"),
        ({"row_ids": torch.tensor([8, 8])}, ValueError, r"id 8 is in 2 rows of a batch.*clusters="),
    ],
)
@pytest.mark.parametrize("call", ["update", "forward"])
def test_a_refused_batch_changes_nothing(call, keywords, error, message):
    metrics = keeping(([1, 2], [0, 1]))
    before = snapshot(metrics)

    with pytest.raises(error, match=message):
        getattr(metrics, call)(all_ranks([3, 4]), **keywords)
    assert same(snapshot(metrics), before)


def test_an_id_may_be_in_two_rows_of_a_batch_of_which_one_has_weight_0():
    metrics = keeping()
    metrics.update(all_ranks([1, 2]), row_ids=torch.tensor([8, 8]), weights=torch.tensor([1.0, 0.0]))

    assert metrics.rows.to_dict() == {"id": [8], "MRR": [1]}


@pytest.mark.parametrize(
    "metrics",
    [keeping(([1, 2], [8, 8]), validate_args="deferred"), keeping(([1], [8]), ([2], [8]))],
    ids=["one batch", "two batches"],
)
def test_an_id_in_two_rows_that_is_found_later_raises_for_rows_alone(metrics):
    assert metrics.compute()["MRR"] == (1 + 1 / 2) / 2
    with pytest.raises(ValueError, match=r"id 8 occurs in 2 rows.*clusters="):
        _ = metrics.rows


def gathered(rank, world_size, named):
    """Return the rows after a batch with ranks 1 and 2, or 3 and 4, or the error that says what they need."""
    metrics = keeping(([[1, 2], [3, 4]][rank], [rank, rank + 5] if named else None))
    metrics.evaluator.sync()  # by hand
    metrics.compute()
    try:
        return metrics.rows.to_dict()
    except ValueError as error:
        return str(error)


def test_every_process_has_the_rows_of_all(processes):
    rows = {"id": [0, 5, 1, 6], "MRR": [1, 1 / 2, 1 / 3, 1 / 4]}
    assert processes.run(gathered, 2, True) == [rows, rows]


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
