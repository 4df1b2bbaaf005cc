"""Roles of columns are named or found by exact names; an unread column that could be a missing role is asked about."""

import math

import pytest

import torchrecmetrics as trm
from torchrecmetrics import Table

pa = pytest.importorskip("pyarrow")
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
def test_roles(columns, said, expected):
    """A role that was said beats one that was found; of a found rank and a found score the rank orders."""
    assert Table(PAIRS | columns, **said).columns == {"user": "user_id", "item": "item_id"} | expected


@pytest.mark.parametrize("item", ["itemId", "movieId"])
def test_names_of_movielens_are_found(item, tmp_path):
    frame = pd.DataFrame({"userId": [1, 1, 2], item: [7, 8, 7], "rating": [4.5, 2, 5], "timestamp": [30, 10, 20]})
    frame.to_csv(path := tmp_path / "ratings.csv", index=False)
    log = trm.Log.from_file(path)

    assert ([*log.user_ids], [*log.item_ids], log.times.tolist()) == ([1, 2], [7, 8], [30, 10, 20])


RATED = pd.DataFrame({"userId": [1, 1, 2], "movieId": [7, 8, 7], "rating": [4.5, 2, 5], "timestamp": [30, 10, 20]})


@pytest.mark.parametrize(
    "call",
    [
        lambda table: trm.Log.from_frame(table).to_interactions(),
        trm.Interactions.from_frame,
        lambda table: trm.evaluate_lists("HR@1", {1: [7]}, target=table),
    ],
    ids=["log", "interactions", "target"],
)
@pytest.mark.parametrize("table", [RATED, RATED.to_dict("list")], ids=["frame", "dict"])
def test_every_entry_of_a_ground_truth_asks_for_the_rating(call, table):
    with pytest.raises(ValueError, match=r"not read: 'rating'\. .*Table\([^=,]*, value='rating'\), or value=None"):
        call(table)


@pytest.mark.parametrize(
    ("columns", "use", "is_asked"),
    [
        ({"p": [1, 2]}, "order", True),
        ({"title": ["a", "b"]}, "order", True),
        ({"hit": [True, False]}, "order", True),
        ({"hit": [True, False]}, "value", True),
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
def test_the_rule_reads_names_alone(columns, use, is_asked):
    """Any column that is not read is asked about, whatever it holds; one called time is no order and no relevance."""
    table = Table(pd.DataFrame(PAIRS | columns))
    assert bool(table.question(use)) == is_asked


def test_lists_and_truth_are_asked_at_once():
    """One error holds both questions, with a call for each; the calls answer them."""
    lists = pd.DataFrame({"uid": [1, 1], "item": [7, 8], "p": [0.1, 0.9]})
    truth = pd.DataFrame(PAIRS | {"rating": [5, 0]})
    with pytest.raises(ValueError, match=r"trm.Table\(lists, user=\.\.\.\)\n.*value='rating'"):
        trm.evaluate_lists("HR@1", lists, target=truth)
    with pytest.raises(ValueError, match=r"trm.Table\(lists, user='uid', score='p'\), or rank=None") as error:
        trm.evaluate_lists("HR@1", Table(lists, user="uid"), target=truth)
    assert "trm.Table(target, value='rating'), or value=None" in str(error.value)
    answered = Table(lists, user="uid", score="p")
    assert trm.evaluate_lists("HR@1", answered, target=Table(truth, value="rating")) == {"HR@1": 0}
    assert trm.evaluate_lists("HR@1", answered, target=Table(truth, value=None)) == {"HR@1": 1}


def test_unread_columns_are_shown():
    table = Table({"session": [1], "item": ["x"], "p": [0.1], "price": [3]}, user="session", score="p")
    assert repr(table) == "Table(user='session', item='item', score='p'; not read: 'price')"


def test_grades_of_excluded_items_are_not_read():
    found = trm.evaluate_lists("MRR@2", {1: [7, 8]}, target={1: [8]}, exclude={1: {7: 0.0}}, complete=True)

    assert found == {"MRR@2": 1}


def test_values_below_0_are_not_relevant(tmp_path):
    """At every entry of a table: list b, a with values a 1, b -2 has the NDCG@2 of a hit at rank 2, 1 / log2(3)."""
    frame = pd.DataFrame({"user": [1, 1], "item": ["a", "b"], "value": [1, -2]})
    frame.to_csv(tmp_path / "truth.csv", index=False)
    truths = (frame, tmp_path / "truth.csv", trm.Log.from_frame(frame), trm.Interactions.from_frame(frame))
    for target in (*truths, {1: {"a": 1, "b": -2}}):
        found = trm.evaluate_lists("NDCG@2", {1: ["b", "a"]}, target=target)["NDCG@2"].item()
        assert found == pytest.approx(1 / math.log2(3))


def test_values_reduce_of_qrels(tmp_path):
    """A pair that qrels repeat has the gain that `values_reduce` says, and is an error without it."""
    (tmp_path / "a.qrels").write_text("q 0 d 1\nq 0 d 3\nq 0 e 2\n")
    with pytest.raises(ValueError, match="1 of 3 rows repeat a user and an item"):
        trm.evaluate_lists("DCG@1", {"q": ["d"]}, target=tmp_path / "a.qrels")
    found = trm.evaluate_lists("DCG@1", {"q": ["d"]}, target=tmp_path / "a.qrels", values_reduce="max")
    assert found["DCG@1"] == 3


def test_the_last_value_is_that_of_the_latest_time(tmp_path):
    """In a frame, a file and a log, wherever a time is found or named: of 3 at time 9 and 1 at time 2 it is 3."""
    frame = pd.DataFrame({"user": [1, 1], "item": [7, 7], "value": [3, 1], "time": [9, 2]})
    frame.to_csv(path := tmp_path / "truth.csv", index=False)
    named = Table(frame.rename(columns={"time": "at"}), time="at")
    for target in (frame, path, named, trm.Log.from_frame(frame)):
        assert trm.evaluate_lists("DCG@1", {1: [7]}, target=target, values_reduce="last") == {"DCG@1": 3}


@pytest.mark.parametrize("cell", [{"item": 7, "p": 0.3}, (7, 0.3)])
def test_cells_of_several_fields_name_the_line_that_takes_one(cell):
    for lists in ({"user": [1], "item": [[cell]]}, pd.DataFrame({"user": [1], "item": [[cell]]}), {1: [cell]}):
        with pytest.raises(TypeError, match=r"take one field of each, \[cell\[('item'|0)\] for cell in \.\.\.\]"):
            trm.evaluate_lists("HR@1", lists, target={1: [7]})


BAD = [
    (lambda: Table(Table(PAIRS)), "source is a Table already"),
    (
        lambda: Table(PAIRS | {"user": [1, 2]}),
        "the columns 'user' and 'user_id': say which",
    ),
    (
        lambda: trm.Interactions.from_frame(PAIRS | {"user": [1, 2], "p": [1, 2]}, user="user_id"),
        r"trm.Table\(frame, user='user_id', value=\.\.\.\)",
    ),
    (lambda: Table({"userId": [1], "movieId": [8]}, user="movieId"), "'movieId' cannot be user and item at once"),
    (lambda: Table(PAIRS, rank="a", score="b"), "rank='a' and score='b' both order frame"),
    (lambda: trm.Log.from_frame(Table(PAIRS), time="day"), "time='day' stands beside a Table"),
    (
        lambda: trm.evaluate_lists("HR@1", PAIRS, target=PAIRS, rank="r"),
        r"no option .*Table\(frame, rank='r'\)",
    ),
    (lambda: trm.agreement(PAIRS, PAIRS, user="u"), r"no option 'user': .*trm.Table\(frame, user='u'\)"),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_input(call, message):
    """The error names the columns, and the call that says what they are."""
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_messages_name_the_argument_of_their_own_call():
    """A `Table` is called by the argument for which it was passed, in each call anew, and stays a frame elsewhere."""
    table = Table(pd.DataFrame({"user": ["a"], "item": ["x"], "stars": [3]}))
    with pytest.raises(ValueError, match=r"^lists has .*trm.Table\(lists, rank='stars'\).*\ntarget has "):
        trm.evaluate_lists("HR@1", table, target=table)
    with pytest.raises(ValueError, match=r"^target has a column .*trm.Table\(target, value='stars'\)"):
        trm.evaluate_lists("HR@1", {"a": ["x"]}, target=table)
    with pytest.raises(ValueError, match=r"^frame has a column .*trm.Table\(frame, value='stars'\)"):
        trm.Interactions.from_frame(table)


def test_a_message_names_at_most_twelve_columns():
    table = Table(PAIRS | {f"c{number}": [0, 1] for number in range(14)})

    assert "'c11', and 2 more." in table.question("value")
