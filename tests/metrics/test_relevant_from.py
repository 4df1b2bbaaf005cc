"""`relevant_from`: a grade from which items are relevant, beside metrics that read the grades."""

import math

import numpy as np
import pytest
import torch

import torchrecmetrics as trm

SCORES = torch.tensor([[0.9, 0.7, 0.5, 0.3, 0.1]])
GRADES = torch.tensor([[1.0, 0.0, 3.0, 2.0, 0.0]])
"""Best first: grades 1, 0, 3, 2, 0. From grade 2 on, the relevant items have ranks 3 and 4."""

EXPECTED = {
    trm.HitRate(3, relevant_from=2): 1,
    trm.Precision(3, relevant_from=2): 1 / 3,
    trm.Recall(3, relevant_from=2): 1 / 2,
    trm.F1(3, relevant_from=2): 2 * 1 / (3 + 2),
    trm.MRR(3, relevant_from=2): 1 / 3,
    trm.MAP(4, relevant_from=2): (1 / 3 + 2 / 4) / 2,
    trm.RPrecision(relevant_from=2): 0,
    trm.AUROC(relevant_from=2): 2 / 6,  # both beat one of three other items
    trm.NDCG(3): (1 + 3 / 2) / (3 + 2 / math.log2(3) + 1 / 2),
}
"""Metric -> value of the row above."""


@pytest.mark.parametrize(("metric", "expected"), EXPECTED.items(), ids=lambda part: getattr(part, "label", ""))
def test_metrics_count_items_from_the_grade_on_and_ndcg_reads_every_grade(metric, expected):
    metric = metric.clone()
    metric.update(SCORES, GRADES)

    assert metric.compute().item() == pytest.approx(expected)


@pytest.mark.parametrize("ties", ["expected", "optimistic", "pessimistic"])
@pytest.mark.parametrize("k", [1, 5, None])
def test_values_of_equal_scores_are_those_of_the_binary_target(ties, k, generator):
    scores = torch.randint(0, 8, (40, 30), generator=generator) / 8
    grades = torch.randint(0, 4, (40, 30), generator=generator) * (torch.rand(40, 30, generator=generator) < 0.3)
    names = ["MRR", "MAP", "RPrecision", "AUROC"] + ([] if k is None else ["HR", "Precision", "Recall", "F1"])
    graded = trm.RecMetricCollection(names, k=k, ties=ties, relevant_from=2)
    binary = trm.RecMetricCollection(names, k=k, ties=ties)
    graded.update(scores, grades.double())
    binary.update(scores, grades >= 2)
    expected = [value.item() for value in binary.compute().values()]

    assert [value.item() for value in graded.compute().values()] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("grade", "label"),
    [(2, "MRR-from2@10"), (2.0, "MRR-from2@10"), (3.5, "MRR-from3_5@10"), (np.int64(2), "MRR-from2@10")],
)
def test_the_label_shows_the_grade(grade, label):
    assert trm.MRR(10, relevant_from=grade).label == label


def test_a_collection_passes_by_metrics_that_read_grades():
    collection = trm.RecMetricCollection(["NDCG", trm.DCG(5), "MRR"], k=5, relevant_from=2)
    assert [*collection] == ["NDCG@5", "DCG@5", "MRR-from2@5"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: trm.NDCG(10, relevant_from=2),
        lambda: trm.DCG(10, relevant_from=2),
        lambda: trm.Recall(10, weighted=True, relevant_from=2),
        lambda: trm.Coverage(10, catalogue=trm.Catalogue(5), relevant_from=2),
    ],
)
def test_metrics_that_read_grades_or_lists_refuse_the_option(make):
    with pytest.raises(ValueError, match="does not take relevant_from"):
        make()


@pytest.mark.parametrize("grade", [0, -1, True, "2", math.inf, math.nan])
def test_a_grade_that_is_no_number_above_0_is_refused(grade):
    """Every grade above 0 is relevant without the option, so 0 says nothing."""
    with pytest.raises(ValueError, match="relevant_from must be a grade above 0"):
        trm.MRR(relevant_from=grade)


@pytest.mark.parametrize(
    "batch", [(SCORES, GRADES > 0), (SCORES, torch.tensor([2])), (trm.Hits(torch.tensor([[True, False]]), 1),)]
)
def test_targets_without_grades_are_refused(batch):
    metric = trm.MRR(2, relevant_from=2)

    with pytest.raises(ValueError, match="relevant_from=2 reads the grade"):
        metric.update(*batch)
    assert not metric.update_called


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_grade_equal_to_the_threshold_is_relevant(dtype):
    """0.7 of float32 is below 0.7 of Python; torch compares `target >= 0.7` in float32."""
    metric = trm.HitRate(1, relevant_from=0.7)
    metric.update(SCORES, torch.tensor([[0.7, 0, 0, 0, 0]], dtype=dtype))

    assert metric.compute() == 1


def test_grades_without_a_zero_are_not_asked_about():
    """Every item of 40 rows has a grade from 1 to 3, of which 2 and 3 are relevant."""
    collection = trm.RecMetricCollection(["NDCG", "HR"], k=3, relevant_from=2)
    collection.update(SCORES.repeat(40, 1), torch.tensor([[1.0, 2.0, 3.0, 1.0, 1.0]]).repeat(40, 1))

    assert collection.compute()["HR-from2@3"] == 1


def test_realistic_ranks_are_refused():
    """The realistic rank of a tied item depends on how many of its tie group are relevant."""
    with pytest.raises(ValueError, match="needs ties='expected', 'optimistic' or 'pessimistic'"):
        trm.MRR(ties="realistic", relevant_from=2).update(SCORES, GRADES)


def test_rows_without_an_item_of_the_grade_are_left_out_and_the_result_says_so():
    grades = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
    collection = trm.RecMetricCollection([trm.NDCG(2), trm.MRR(2, relevant_from=2)])
    collection.update(torch.tensor([[0.9, 0.1]]).expand(3, 2), grades)
    result = collection.result()

    assert result.floats()["MRR-from2@2"] == (1 + 1 / 2) / 2
    assert "other numbers of users: MRR-from2@2 2" in str(result)


def test_a_row_without_an_item_of_the_grade_can_be_an_error():
    metric = trm.MRR(2, relevant_from=4, empty_target_action="error")

    with pytest.raises(ValueError, match="1 row without a relevant item"):
        metric.update(SCORES, GRADES)


def test_row_weights_of_auroc_count_items_from_the_grade_on():
    metric = trm.AUROC(weight="relevant", relevant_from=2)  # of 2 relevant items in the first row, 1 in the second
    metric.update(SCORES.expand(2, 5), torch.cat([GRADES, torch.tensor([[2.0, 1.0, 1.0, 0.0, 0.0]])]))

    assert metric.compute().item() == pytest.approx((2 * 2 / 6 + 1 * 1) / 3)


FROM_2 = {"k": 4, "relevant_from": 2}
IDS, JUDGEMENTS = [0, 2, 3], {"q": {"a": 1, "c": 3, "d": 2}}  # of the grades above 0


def updated(*batch, **columns):
    collection = trm.RecMetricCollection("MRR", **FROM_2)
    collection.update(*batch, **columns)
    return collection.compute()


def of_embeddings():
    truth = trm.Interactions.from_edge_index(torch.tensor([[0, 0, 0], IDS]), 1, 5, values=GRADES[0, IDS])
    return trm.evaluate("MRR", torch.ones(1, 1), SCORES.T, target=truth, **FROM_2)


DOORS = {
    "lists": lambda: trm.evaluate_lists("MRR", {"q": ["a", "b", "c", "d"]}, target=JUDGEMENTS, **FROM_2),
    "embeddings": of_embeddings,
    "gains": lambda: updated(SCORES, torch.tensor([IDS]), gains=GRADES[:, IDS]),
    "sessions": lambda: updated(trm.Sessions(SCORES[0], GRADES[0], torch.zeros(5, dtype=torch.int64))),
}


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_every_door_counts_from_the_grade_on(door):
    assert door()["MRR-from2@4"].item() == pytest.approx(1 / 3)


def test_two_grades_in_one_collection_have_relevant_items_of_their_own():
    collection = trm.RecMetricCollection([trm.Recall(1, relevant_from=2), trm.Recall(1, relevant_from=3)])
    collection.update(torch.tensor([[0.9, 0.8]]), torch.tensor([[2.0, 3.0]]))

    assert collection.compute() == {"Recall-from2@1": 1 / 2, "Recall-from3@1": 0 / 1}
