"""Cells that hold several ids, as lists or in one text: each entry is a row of its own."""

from decimal import Decimal

import numpy as np
import pytest
import torch

import torchrecmetrics as trm

pa = pytest.importorskip("pyarrow")

TRUTH = {1: [10, 11], 2: [12]}


def value(lists, target=TRUTH, **options):
    """MRR@2 of the lists as a float."""
    return trm.evaluate_lists("MRR", lists, target=target, k=2, complete=True, **options)["MRR@2"].item()


def frames(columns):
    """The same columns as a dict, a table and a frame."""
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    return [columns, pa.table(columns), pd.DataFrame(columns), pl.DataFrame(columns)]


def test_scores_beside_items_order_the_cells():
    """Lists of scores belong to lists of items: unnamed, they are asked about; named, they order the entries."""
    for frame in frames({"user": [1, 2], "item": [[9, 10], [12, 8]], "score": [[0.1, 0.9], [0.7, 0.2]]}):
        with pytest.raises(ValueError, match=r"'score' \(floats 0.1 .. 0.9\)"):
            value(frame)
        assert value(frame, score="score") == 1
        assert value(frame, score=None) == (1 / 2 + 1) / 2


def test_scores_that_the_cells_follow_are_not_asked_about():
    """Falling scores change nothing."""
    for frame in frames({"user": [1, 2], "item": [[9, 10], [12, 8]], "score": [[0.9, 0.1], [0.7, 0.2]]}):
        assert value(frame) == value(frame, score="score") == (1 / 2 + 1) / 2


def test_lists_of_one_row_are_equally_long():
    """A list of scores that is shorter than its list of items is an error that names the row."""
    frame = {"user": [1, 2], "item": [[9, 10], [12, 8]], "score": [[0.1, 0.9], [0.7]]}
    with pytest.raises(ValueError, match=r"column 'score' of .* 1 entries in row 1, column 'item' holds 2"):
        value(frame, score="score")


def test_users_of_empty_cells_stay():
    """A user whose ground truth is an empty cell has no relevant item, which is what empty_target_action is about."""
    lists = {1: [10], 2: [12]}
    for cells in ([[10], []], np.array([np.array([10]), np.array([], int)], dtype=object)):
        truth = {"user": [1, 2], "item": cells}
        assert value(lists, truth) == 1
        assert value(lists, truth, empty_target_action="neg") == 1 / 2
    assert value(lists, {"user": [1, 2], "item": ["10", ""]}, split=" ", empty_target_action="neg") == 1 / 2


def test_two_cells_of_one_user_are_two_lists():
    """Each cell is a list: two of one user are no longer list, unless the scores say so for a row per item."""
    with pytest.raises(ValueError, match="two lists of user 1, in rows 0 and 1"):
        value({"user": [1, 1], "item": [[9], [10]]})
    with pytest.raises(ValueError, match="two lists of user 1, in rows 0 and 1"):
        value({"user": [1, 1], "item": ["9 8", "10"]}, split=" ")


@pytest.mark.parametrize("truth", [TRUTH, {"user": [1, 1, 2], "item": ["10", "11", "12"]}])
def test_pieces_of_text_are_whole_numbers_if_all_are(truth, tmp_path):
    """Pieces compare with whole numbers and with text; a file whose cells hold one number each is not text."""
    assert value({"user": [1, 2], "item": ["9 10", "12"]}, truth, split=" ") == (1 / 2 + 1) / 2
    assert value({"user": [1, 2], "item": ["x 10", "12"]}, truth, split=" ") == (1 / 2 + 1) / 2
    path = tmp_path / "lists.csv"
    path.write_text("user,item\n1,10\n2,12\n")
    assert value(path, truth, split=" ") == 1
    path.write_text("user,item\n1,9 10\n2,12\n")
    assert value(path, truth, split=" ") == (1 / 2 + 1) / 2


def test_records_of_tuples():
    """Columns of tuples have numbers for names, as in pandas; which is which is said, not guessed."""
    records = [(1, 9, 0.1), (1, 10, 0.9), (2, 12, 0.5)]
    assert value(records, user="0", item="1", score="2") == 1
    with pytest.raises(ValueError, match="no column 'user'"):
        value(records)
    with pytest.raises(ValueError, match=r"'2' \(floats 0.1 .. 0.9\)"):
        value(records, user="0", item="1")


def test_a_column_for_each_place():
    """Frames with a column per place are arrays beside their users, as the page says."""
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"user": [1, 2], "rec_1": [9, 12], "rec_2": [10, 8]})
    assert value((frame[["rec_1", "rec_2"]].to_numpy(), frame["user"])) == (1 / 2 + 1) / 2
    assert value((frame[["rec_1", "rec_2"]], frame["user"])) == (1 / 2 + 1) / 2


def test_an_empty_separator_is_no_separator():
    """The error says what is wanted."""
    with pytest.raises(ValueError, match=r"split= is the separator of the items of a cell, such as ' ', got ''"):
        value({"user": [1], "item": ["10 11"]}, split="")


def test_tensors_in_cells():
    """Cells may hold arrays."""
    assert value({"user": [1, 2], "item": [torch.tensor([9, 10]).numpy(), torch.tensor([12, 8]).numpy()]}) == 3 / 4


def test_text_of_lists():
    """Lists that a csv has made text of are no cells with a separator."""
    with pytest.raises(ValueError, match=r"cells hold text of lists, .*ast.literal_eval"):
        value({"user": [1], "item": ["['x', 'y']"]}, {1: ["x"]})


def test_decimals_are_numbers():
    """Decimals, such as Spark's and BigQuery's, may be scores."""
    frame = pa.table({"user": [1, 1], "item": [9, 10], "score": [Decimal("0.10"), Decimal("0.90")]})
    assert value(frame, {1: [10]}, score="score") == 1


def test_numbers_beyond_64_bits():
    """Scores of 2^63 and more are named with a cure."""
    frame = pa.table({"user": [1], "item": [9], "score": pa.array([2**63], pa.uint64())})
    with pytest.raises(ValueError, match=r"'score' of lists must hold numbers below 2.63: make them floats"):
        value(frame, score="score")
