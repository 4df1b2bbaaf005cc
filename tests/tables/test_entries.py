"""Cells that hold several ids, as lists or in one text: each entry is a row of its own."""

from decimal import Decimal

import pytest
from said import evaluate_lists

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

TRUTH = {1: [10, 11], 2: [12]}


def value(lists, target=TRUTH, **options):
    """MRR@2 of the lists as a float."""
    return evaluate_lists("MRR", lists, target=target, k=2, complete=True, **options)["MRR@2"].item()


def two_lists(scores=None):
    """Columns of the lists 9, 10 and 12, 8, whose MRR@2 is (1 / 2 + 1) / 2."""
    columns = {"user": [1, 2], "item": [[9, 10], [12, 8]]}
    return columns if scores is None else columns | {"score": scores}


@pytest.mark.parametrize("form", [dict, pa.table, pd.DataFrame, pl.DataFrame])
def test_scores_beside_items_order_the_cells(form):
    """Lists of scores belong to lists of items: their column is read by its name, or asked about."""
    frame = form(two_lists([[0.1, 0.9], [0.7, 0.2]]))
    assert value(frame) == value(frame, score="score") == 1
    assert value(frame, score=None) == (1 / 2 + 1) / 2
    named = form(two_lists() | {"p": [[0.1, 0.9], [0.7, 0.2]]})
    with pytest.raises(ValueError, match=r"a column that is not read: 'p'\. .*score='p'"):
        value(named)
    assert value(named, score="p") == 1


def test_cells_are_lists_and_ground_truths(tmp_path):
    """Cells may hold arrays, and stand in files; in a ground truth they are sets."""
    frame = pd.DataFrame(two_lists())
    frame.to_parquet(tmp_path / "lists.parquet")
    arrays = {"user": [1, 2], "item": [np.array([9, 10]), np.array([12, 8])]}
    for lists in (frame, tmp_path / "lists.parquet", arrays):
        assert value(lists) == (1 / 2 + 1) / 2
        assert value({1: [7, 10], 2: [8, 7]}, lists) == (1 / 2 + 1) / 2


def test_users_of_empty_cells_stay():
    """A user whose ground truth is an empty cell has no relevant item, which is what empty_target_action is about."""
    lists = {1: [10], 2: [12]}
    for cells in ([[10], []], np.array([np.array([10]), np.array([], int)], dtype=object)):
        truth = {"user": [1, 2], "item": cells}
        assert value(lists, truth) == 1
        assert value(lists, truth, empty_target_action="neg") == 1 / 2
    assert value(lists, {"user": [1, 2], "item": ["10", ""]}, split=" ", empty_target_action="neg") == 1 / 2


@pytest.mark.parametrize("truth", [TRUTH, {"user": [1, 1, 2], "item": ["10", "11", "12"]}])
def test_pieces_of_text_are_whole_numbers_if_all_are(truth, tmp_path):
    """Pieces compare with whole numbers and with text; a file whose cells hold one number each is not text."""
    assert value({"user": [1, 2], "item": ["9 10", "12"]}, truth, split=" ") == (1 / 2 + 1) / 2
    if truth is not TRUTH:
        for form in (dict, pl.DataFrame):
            assert value(form({"user": [1, 2], "item": ["x 10", "12"]}), truth, split=" ") == (1 / 2 + 1) / 2
    path = tmp_path / "lists.csv"
    path.write_text("user,item\n1,10\n2,12\n")
    assert value(path, truth, split=" ") == 1
    path.write_text("user,item\n1,9 10\n2,12\n")
    assert value(path, truth, split=" ") == (1 / 2 + 1) / 2


def test_decimals_are_numbers():
    """Decimals, such as Spark's and BigQuery's, may be scores."""
    frame = pa.table({"user": [1, 1], "item": [9, 10], "score": [Decimal("0.10"), Decimal("0.90")]})
    assert value(frame, {1: [10]}, score="score") == 1


TWO_LISTS = "two lists of user 1, in rows 0 and 1"  # they are no longer list
HUGE = pa.table({"user": [1], "item": [9], "score": pa.array([2**63], pa.uint64())})
BAD = [
    (
        two_lists([[0.1, 0.9], [0.7]]),
        {"score": "score"},
        r"'score' of .* 1 entries in row 1, column 'item' of lists holds 2",
    ),
    ({"user": [1, 1], "item": [[9], [10]]}, {}, TWO_LISTS),
    ({"user": [1, 1], "item": ["9 8", "10"]}, {"split": " "}, TWO_LISTS),
    ({"user": [1], "item": [b"10 11"]}, {"split": " "}, "split= is for text, column 'item' of lists holds binary"),
    ({"user": [1], "item": ["10 11"]}, {"split": ""}, r"split= is the separator of .* a cell, such as ' ', got ''"),
    (HUGE, {"score": "score"}, r"'score' of lists must hold numbers below 2.63: make them floats"),
]


@pytest.mark.parametrize(("lists", "options", "message"), BAD)
def test_bad_cells(lists, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        value(lists, **options)
