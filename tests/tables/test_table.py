"""Roles of columns are named or found by exact names; an unread column that could be a missing role is asked about."""

import math

import pytest

import torchrecmetrics as trm
from torchrecmetrics import Table

pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")

PAIRS = {"user_id": [1, 1], "item_id": [7, 8]}


@pytest.mark.parametrize(
    ("columns", "said", "expected"),
    [
        ({"rank": [2, 1], "score": [9, 8]}, {}, {"rank": "rank"}),
        ({"rank": [2, 1], "score": [9, 8]}, {"score": "score"}, {"score": "score"}),
        ({"rank": [2, 1], "score": [9, 8]}, {"rank": None}, {"score": "score"}),
        ({"rank": [2, 1], "p": [9, 8]}, {"score": "p"}, {"score": "p"}),
        ({"score": [9, 8]}, {"value": "score"}, {"value": "score"}),
        ({"timestamp": [5, 6], "value": [1, 2]}, {}, {"value": "value", "time": "timestamp"}),
        ({"Rank": [2, 1], "rating": [9, 8]}, {}, {}),
    ],
)
def test_a_role_that_was_said_beats_one_that_was_found(columns, said, expected):
    """Where a rank and a score are found, the rank orders."""
    assert Table(PAIRS | columns, **said).columns == {"user": "user_id", "item": "item_id"} | expected


@pytest.mark.parametrize("item", ["itemId", "movieId"])
def test_names_of_movielens_are_found(item):
    table = Table({"userId": [1], item: [7], "rating": [4.5], "timestamp": [30]})

    assert table.columns == {"user": "userId", "item": item, "time": "timestamp"}


RATED = {"userId": [1, 1, 2], "movieId": [7, 8, 7], "rating": [4.5, 2, 5]}


@pytest.mark.parametrize(
    "call",
    [
        lambda table: trm.Log.from_frame(table).to_interactions(),
        trm.Interactions.from_frame,
        lambda table: trm.evaluate_lists("HR@1", {1: [7]}, target=table),
    ],
    ids=["log", "interactions", "target"],
)
@pytest.mark.parametrize("form", [dict, pd.DataFrame])
def test_every_entry_of_a_ground_truth_asks_for_the_rating(call, form):
    with pytest.raises(ValueError, match=r"not read: 'rating'\. .*Table\([^=,]*, value='rating'\), or value=None"):
        call(form(RATED))


@pytest.mark.parametrize(
    ("columns", "use", "is_asked"),
    [
        ({"p": [1, 2]}, "order", True),
        ({"title": ["a", "b"]}, "order", True),
        ({"hit": [True, False]}, "time", True),
        ({"day": pd.to_datetime(["2024-01-01", "2024-01-02"])}, "value", True),
        ({"day": pd.to_datetime(["2024-01-01", "2024-01-02"])}, "time", True),
        ({"timestamp": [5, 6]}, "order", False),
        ({"timestamp": [5, 6]}, "value", False),
        ({"rank": [1, 2]}, "value", True),
        ({"rating": [4.5, 2], "timestamp": [5, 6]}, "value", True),  # MovieLens
        ({"rating": [4.5, 2], "timestamp": [5, 6]}, "time", False),
        ({"overall": [5, 2], "unixReviewTime": [5, 6]}, "time", True),  # Amazon
        ({}, "value", False),
    ],
)
def test_any_column_that_is_not_read_is_asked_about(columns, use, is_asked):
    """A column called time is no order and no relevance."""
    table = Table(pd.DataFrame(PAIRS | columns))

    assert bool(table.question(use)) == is_asked


SCORED = {"uid": [1, 1], "item": [7, 8], "p": [0.1, 0.9]}
GRADED = {"user": [1, 1], "item": [7, 8], "rating": [5, 0]}


@pytest.mark.parametrize(
    ("lists", "of_lists"),
    [
        (SCORED, r"trm.Table\(lists, user=\.\.\.\)"),
        (Table(SCORED, user="uid"), r"trm.Table\(lists, user='uid', score='p'\), or rank=None"),
    ],
    ids=["users", "order"],
)
def test_lists_and_truth_are_asked_about_in_one_error(lists, of_lists):
    with pytest.raises(ValueError, match=rf"(?s){of_lists}.*\n.*trm.Table\(target, value='rating'\), or value=None"):
        trm.evaluate_lists("HR@1", lists, target=GRADED)


def test_unread_columns_are_shown():
    table = Table({"session": [1], "item": ["x"], "p": [0.1], "price": [3]}, user="session", score="p")

    assert repr(table) == "Table(user='session', item='item', score='p'; not read: 'price')"


def test_grades_of_excluded_items_are_not_read():
    result = trm.evaluate_lists("MRR@2", {1: [7, 8]}, target={1: [8]}, exclude={1: {7: 0.0}}, complete=True)

    assert result == {"MRR@2": 1}


VALUES = pd.DataFrame({"user": [1, 1], "item": ["a", "b"], "value": [1, -2]})


@pytest.mark.parametrize(
    "target",
    [VALUES, trm.Log.from_frame(VALUES), trm.Interactions.from_frame(VALUES), {1: {"a": 1, "b": -2}}],
    ids=["frame", "log", "interactions", "dict"],
)
def test_values_below_0_are_not_relevant(target):
    """The only hit, a, has rank 2."""
    result = trm.evaluate_lists("NDCG@2", {1: ["b", "a"]}, target=target)

    assert result["NDCG@2"].item() == pytest.approx(1 / math.log2(3))


CHANGED = pd.DataFrame({"user": [1, 1], "item": [7, 7], "value": [3, 1], "time": [9, 2]})


@pytest.mark.parametrize(
    "target",
    [CHANGED, Table(CHANGED.rename(columns={"time": "at"}), time="at"), trm.Log.from_frame(CHANGED)],
    ids=["found", "named", "log"],
)
def test_the_last_value_is_that_of_the_latest_time(target):
    """3 at time 9, and not 1 of the last row."""
    assert trm.evaluate_lists("DCG@1", {1: [7]}, target=target, values_reduce="last") == {"DCG@1": 3}


@pytest.mark.parametrize(("cell", "field"), [({"item": 7, "p": 0.3}, "'item'"), ((7, 0.3), "0")], ids=["dict", "tuple"])
@pytest.mark.parametrize(
    "form",
    [
        lambda cell: {"user": [1], "item": [[cell]]},
        lambda cell: pd.DataFrame({"user": [1], "item": [[cell]]}),
        lambda cell: {1: [cell]},
    ],
    ids=["columns", "frame", "dict"],
)
def test_cells_of_several_fields_are_refused_with_the_line_that_takes_one(form, cell, field):
    with pytest.raises(TypeError, match=rf"take one field of each, \[cell\[{field}\] for cell in \.\.\.\]"):
        trm.evaluate_lists("HR@1", form(cell), target={1: [7]})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Table(Table(PAIRS)), "source is a Table already"),
        (lambda: Table(PAIRS | {"user": [1, 2]}), "the columns 'user' and 'user_id': say which"),
        (
            lambda: trm.Interactions.from_frame(PAIRS | {"user": [1, 2], "p": [1, 2]}, user="user_id"),
            r"trm.Table\(frame, user='user_id', value=\.\.\.\)",
        ),
        (lambda: Table({"userId": [1], "movieId": [8]}, user="movieId"), "'movieId' cannot be user and item at once"),
        (lambda: Table({0: [1]}, user=0), r"columns go by name, got 0 \(int\): pass '0'"),
        (lambda: Table(PAIRS, rank="a", score="b"), "rank='a' and score='b' both order frame"),
        (lambda: trm.Log.from_frame(Table(PAIRS), time="day"), "time='day' stands beside a Table"),
        (lambda: trm.evaluate_lists("HR@1", PAIRS, target=PAIRS, rank="r"), r"no option .*Table\(frame, rank='r'\)"),
        (lambda: trm.agreement(PAIRS, PAIRS, user="u"), r"no option 'user': .*trm.Table\(frame, user='u'\)"),
    ],
)
def test_bad_columns_are_refused(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


STARS = Table({"user": ["a"], "item": ["x"], "stars": [3]})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: trm.evaluate_lists("HR@1", STARS, target=STARS), r"^lists has .*Table\(lists, .*\ntarget has "),
        (lambda: trm.evaluate_lists("HR@1", {"a": ["x"]}, target=STARS), r"^target has a column .*trm.Table\(target, "),
        (lambda: trm.Interactions.from_frame(STARS), r"^frame has a column .*trm.Table\(frame, value='stars'\)"),
    ],
    ids=["lists", "target", "frame"],
)
def test_a_table_is_called_by_the_argument_of_the_call_at_hand(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_message_names_at_most_twelve_columns():
    table = Table(PAIRS | {f"c{number}": [0, 1] for number in range(14)})

    assert "'c11', and 2 more." in table.question("value")
