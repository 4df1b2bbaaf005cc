"""Cells that hold several ids, as lists or in one text: each entry is a row of its own."""

from decimal import Decimal

import pytest

from torchrecmetrics import Table, evaluate_lists

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

TRUTH = {1: [10, 11], 2: [12]}
TWO_LISTS = {"user": [1, 2], "item": [[9, 10], [12, 8]]}
"""Their MRR@2 is (1 / 2 + 1) / 2, and 1 where 10 is before 9."""
SCORES = [[0.1, 0.9], [0.7, 0.2]]


def mrr(lists, target=TRUTH, **options):
    return evaluate_lists("MRR@2", lists, target=target, complete=True, **options)["MRR@2"].item()


@pytest.mark.parametrize("form", [dict, pa.table, pd.DataFrame, pl.DataFrame])
@pytest.mark.parametrize(
    ("name", "said", "expected"),
    [("score", {}, 1), ("p", {"score": "p"}, 1), ("score", {"score": None}, (1 / 2 + 1) / 2)],
    ids=["found", "named", "none"],
)
def test_scores_in_cells_order_the_items_beside_them(form, name, said, expected):
    assert mrr(Table(form(TWO_LISTS | {name: SCORES}), **said)) == expected


def test_an_unread_column_beside_cells_is_asked_about():
    with pytest.raises(ValueError, match=r"a column that is not read: 'p'\. .*score='p'"):
        mrr(TWO_LISTS | {"p": SCORES})


ARRAYS = {"user": [1, 2], "item": [np.array([9, 10]), np.array([12, 8])]}


@pytest.mark.parametrize("cells", [pd.DataFrame(TWO_LISTS), ARRAYS], ids=["frame", "arrays"])
def test_cells_are_lists_or_sets_of_relevant_items(cells):
    assert mrr(cells) == (1 / 2 + 1) / 2
    assert mrr({1: [7, 10], 2: [8, 7]}, cells) == (1 / 2 + 1) / 2


@pytest.mark.parametrize(
    "truth",
    [
        {"user": [1, 2], "item": [[10], []]},
        {"user": [1, 2], "item": np.array([np.array([10]), np.array([], int)], dtype=object)},
        Table({"user": [1, 2], "item": ["10", ""]}, split=" "),
    ],
    ids=["lists", "arrays", "text"],
)
def test_a_user_with_an_empty_cell_has_no_relevant_item(truth):
    assert mrr({1: [10], 2: [12]}, truth, empty_target_action="neg") == (1 + 0) / 2


TEXT_TRUTH = {"user": [1, 1, 2], "item": ["10", "11", "12"]}


@pytest.mark.parametrize(
    ("items", "truth", "expected"),
    [
        (["9 10", "12"], TRUTH, (1 / 2 + 1) / 2),
        (["9 10", "12"], TEXT_TRUTH, (1 / 2 + 1) / 2),
        (["x 10", "12"], TEXT_TRUTH, (1 / 2 + 1) / 2),
        (["10", "12"], TRUTH, 1),
        ([10, 12], TEXT_TRUTH, 1),  # a file whose cells hold one number each is not text
    ],
)
@pytest.mark.parametrize("form", [dict, pl.DataFrame, "file"])
def test_pieces_of_text_are_whole_numbers_if_all_are(form, items, truth, expected, tmp_path):
    lists = {"user": [1, 2], "item": items}
    pd.DataFrame(lists).to_csv(tmp_path / "lists.csv", index=False)
    source = tmp_path / "lists.csv" if form == "file" else form(lists)

    assert mrr(Table(source, split=" "), truth) == expected


def test_decimals_are_scores():
    """Spark and BigQuery write them."""
    scores = [Decimal("0.10"), Decimal("0.90")]

    assert mrr(pa.table({"user": [1, 1], "item": [9, 10], "score": scores}), {1: [10]}) == 1


TWO_OF_USER_1 = "two lists of user 1, in rows 0 and 1"  # they are no longer list
HUGE = pa.table({"user": [1], "item": [9], "score": pa.array([2**63], pa.uint64())})


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        (TWO_LISTS | {"score": [[0.1, 0.9], [0.7]]}, "1 entries in row 1, column 'item' of lists holds 2"),
        ({"user": [1, 1], "item": [[9], [10]]}, TWO_OF_USER_1),
        (Table({"user": [1, 1], "item": ["9 8", "10"]}, split=" "), TWO_OF_USER_1),
        (Table({"user": [1], "item": [b"10 11"]}, split=" "), "split= is for text, .* holds binary"),
        (Table({"user": [1], "item": ["10 11"]}, split=""), "split= is the separator .* got ''"),
        (HUGE, r"'score' of lists must hold numbers below 2.63: make them floats"),
    ],
)
def test_bad_cells_are_refused(lists, message):
    with pytest.raises((TypeError, ValueError), match=message):
        mrr(lists)
