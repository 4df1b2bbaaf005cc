"""Columns that may be the order of lists, relevance or time are asked for where the answers give different numbers."""

import datetime
import decimal

import pytest

import torchrecmetrics as trm

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")

from tables import read_cases  # noqa: E402

from torchrecmetrics.data import roles  # noqa: E402
from torchrecmetrics.data.questions import questions as ask_about  # noqa: E402
from torchrecmetrics.results.frames import frame_of  # noqa: E402
from torchrecmetrics.tables.frames import FrameSource, Roles  # noqa: E402

FIND = {
    "order": roles.order_candidates,
    "relevance": lambda table, user, item: roles.value_candidates(table, user, item, reads_gains=False),
    "time": roles.time_candidates,
}


@pytest.mark.parametrize(
    ("section", "bounds"),
    [
        ("recommendations", {"order": (33, 1, 1)}),
        ("ground_truths", {"relevance": (21, 0, 10), "time": (22, 0, 2)}),
        # tables made after the rules
        ("lists_of_libraries", {"order": (9, 0, 0)}),
        ("logs_of_media", {"relevance": (8, 0, 0), "time": (10, 0, 1)}),
        ("served_lists", {"order": (6, 2, 6)}),
        ("logs_of_shops", {"relevance": (6, 0, 4), "time": (10, 0, 3)}),
    ],
)
def test_public_tables(section, bounds):
    """Of tables with the columns of public data sets at least so many are asked, at most so many missed or needless."""
    cases = read_cases(section)
    for role, (least_asked, most_missed, most_needless) in bounds.items():
        asked, missed, needless = [], [], []
        for case in cases:
            candidates = FIND[role](case.table, case.user, case.item)
            if case.needed[role] is not None:
                (asked if case.needed[role] in candidates else missed).append(case.name)
            elif candidates and case.fair not in candidates:
                needless.append(case.name)
        assert len(asked) >= least_asked, missed
        assert len(missed) <= most_missed, missed
        assert len(needless) <= most_needless, needless


# Small tables: three users with four rows each. Each value of a row of NAMES stands for one row.
USERS, ITEMS = np.repeat(["a", "b", "c"], 4), np.array([7, 8, 9, 5, 9, 7, 6, 5, 1, 2, 3, 9])
FALLING = np.tile([0.9, 0.5, 0.2, 0.1], 3)
MIXED = np.tile([0.5, 0.9, 0.1, 0.2], 3)
RANKS = np.tile([1, 2, 3, 4], 3)
BY_USER, BY_ITEM = np.repeat([30, 41, 52], 4), ITEMS * 10
MORE_USERS, MORE_ITEMS = np.repeat(np.arange(6), 4), np.tile([1, 2, 3, 4], 6)  # as many repeats as a property needs


def small(columns, users=USERS, items=ITEMS):
    return pa.table({"user": users, "item": items, **columns})


def asked_about(role, columns, users=USERS, items=ITEMS):
    return [*FIND[role](small(columns, users, items), "user", "item")]


USUAL_SCORES = ("prob", "y_pred", "logit", "pctr", "cosine", "score", "est", "rec_score", "yhat", "Similarity", "isSim")
ORDER = {
    **{f"rows do not follow {name}": ({name: MIXED}, [name]) for name in USUAL_SCORES},
    **{f"rows follow {name}": ({name: FALLING}, []) for name in (*USUAL_SCORES, "vorhersage")},
    "rows follow steps of 1": ({"step": RANKS}, []),
    **{f"rows follow {name}": ({name: RANKS * 2}, []) for name in ("rank", "Ranking", "position", "pos", "ORDER")},
    **{f"rows follow {name}": ({name: FALLING[::-1]}, []) for name in ("distance", "cosine_distance", "distance_km")},
    "an unusual name": ({"vorhersage": MIXED}, ["vorhersage"]),
    "the worst first": ({"prob": FALLING[::-1]}, ["prob"]),
    "the worst rank first": ({"rank": RANKS[::-1]}, ["rank"]),
    "two equal ranks": ({"rank": np.tile([1, 2, 2, 3], 3)}, ["rank"]),
    "the farthest first": ({"distance": FALLING}, ["distance"]),
    "the score of a rank falls": ({"rank_score": FALLING[::-1]}, ["rank_score"]),
    "all equal": ({"score": np.ones(12)}, ["score"]),
    "two equal": ({"score": np.tile([3, 2, 2, 1], 3)}, ["score"]),
    "a missing score": ({"score": pa.array([*FALLING[:11], None])}, ["score"]),
    "all missing": ({"score": pa.nulls(12, pa.float64()), "level": pa.nulls(12, pa.int64())}, []),
    "all NaN": ({"level": np.full(12, np.nan)}, []),
    "a number at the end of the name": ({"score_1": np.ones(12)}, ["score_1"]),
    "NaN": ({"score": np.array([*FALLING[:11], np.nan])}, ["score"]),
    "-inf last": ({"score": np.array([*FALLING[:11], -np.inf])}, ["score"]),
    "decimals": ({"prob": [decimal.Decimal(f"{value}") for value in MIXED]}, ["prob"]),
    "unsigned numbers": ({"prob": (FALLING * 100).astype("u1")}, []),
    "all candidates": ({"rank": RANKS, "prob": MIXED, "logit": MIXED}, ["rank", "prob", "logit"]),
    "scores as categories": ({"prob": pa.array(MIXED).dictionary_encode()}, ["prob"]),
    "a price of few items": ({"price": ITEMS * 1.5}, ["price"]),
    "a row counter": ({"row": np.arange(12)}, []),
    "a shuffled row counter": ({"level": np.array([5, 3, 0, 8, 1, 2, 11, 4, 6, 7, 9, 10])}, []),
    "nearly a row counter": ({"level": np.array([5, 3, 0, 8, 1, 2, 11, 4, 6, 7, 9, 12])}, ["level"]),
    "as long as a row counter": ({"level": np.array([5, 3, 0, 8, 1, 2, 11, 4, 6, 7, 9, 9])}, ["level"]),
    "not the last word": ({"score_version": np.ones(12), "rank_source": np.tile([2, 1, 2, 1], 3)}, []),
    "an id": ({"candidate_id": (MIXED * 1000).astype(int), "Unnamed: 0": MIXED, "articleCode": MIXED}, []),
    "seconds": ({"generated_at": 1_700_000_000 + MIXED * 100}, []),
    "days": ({"generated_at": 20240100 + np.tile([2, 4, 1, 3], 3)}, []),
    "few values": ({"source": np.tile([0, 1, 0, 1], 3)}, []),
    "three values of four": ({"source": np.tile([0, 1, 2, 1], 3)}, ["source"]),
    "lists, nothing and structs": ({"path": [[1]] * 12, "empty": pa.nulls(12), "s": [{"a": 1}] * 12}, []),
}


def test_order_of_single_and_of_interleaved_rows():
    """Lists of one item have one order; rows of a user count in their order, wherever they stand in the table."""
    assert asked_about("order", {"prob": MIXED, "score": [None] * 11 + [1.0]}, users=np.arange(12)) == []
    rows = np.arange(12).reshape(3, 4).T.ravel()
    assert asked_about("order", {"prob": FALLING[rows]}, USERS[rows], ITEMS[rows]) == []
    columns = {"prob": FALLING[rows], "score": MIXED[rows]}
    assert asked_about("order", columns, USERS[rows], ITEMS[rows]) == ["prob", "score"]


CLICKS = np.tile([0, 1, 1, 0], 3)
USUAL_LABELS = ("is_click", "clicked", "label", "isLiked", "review/overall", "Book-Rating", "target")
RELEVANCE = {
    **{f"{name}, 0 and 1": ({name: CLICKS}, [name]) for name in (*USUAL_LABELS, "y", "achat", "converted")},
    **{f"{name}, up to 10": ({name: CLICKS * 10}, [name]) for name in USUAL_LABELS},
    "true and false": ({"bought": CLICKS > 0}, ["bought"]),
    "true, false and missing": ({"bought": pa.array([None, *(CLICKS[1:] > 0)])}, ["bought"]),
    "all true": ({"bought": CLICKS >= 0}, []),
    "-1 and 1": ({"mood": CLICKS * 2 - 1}, ["mood"]),
    "0.0 and 1.0": ({"mood": CLICKS * 1.0}, ["mood"]),
    "grades up to 5": ({"urteil": CLICKS * 5}, ["urteil"]),
    "above 5": ({"visits": CLICKS * 6}, []),
    "below -1": ({"timezone": CLICKS - 2 * (CLICKS == 0)}, []),
    "halves": ({"share": CLICKS * 0.5}, []),
    "a missing number": ({"votes": pa.array([None, *CLICKS[1:]])}, []),
    "a missing label": ({"label": pa.array([None, *CLICKS[1:]])}, ["label"]),
    "all missing": ({"label": pa.nulls(12, pa.float64()), "votes": pa.nulls(12, pa.bool_())}, []),
    "NaN": ({"votes": np.array([np.nan, *CLICKS[1:]])}, []),
    "0 alone": ({"label": CLICKS * 0, "tag": CLICKS * 0}, []),
    "1 alone": ({"label": CLICKS * 0 + 1, "score": CLICKS * 0 + 1}, []),
    "ratings above 0": ({"rating": CLICKS + 1, "quantity": CLICKS + 1}, []),
    "below 0": ({"rating": CLICKS - 2, "mood": CLICKS - 1}, []),
    "not the last word": ({"click_os": CLICKS * 7, "rating_count": CLICKS * 7}, []),
    "an id": ({"campaign_id": CLICKS, "clickKey": CLICKS}, []),
    "text": ({"event": np.where(CLICKS > 0, "view", "buy")}, []),
    "all candidates": ({"is_click": CLICKS, "like": CLICKS, "price": MIXED}, ["is_click", "like"]),
}


def test_relevance_of_gains():
    """Positive ratings are asked for where a metric reads gains, by usual names alone and not if all are equal."""
    table = small({"rating": CLICKS + 1, "quantity": CLICKS + 1, "stars": CLICKS * 0 + 5, "overall": CLICKS - 2})
    assert [*roles.value_candidates(table, "user", "item", reads_gains=True)] == ["rating"]
    assert not roles.value_candidates(table, "user", "item", reads_gains=False)


NOW = 1_600_000_000
ORDERED, MOVED = np.tile([1, 2, 2, 4], 3), np.tile([1, 3, 2, 4], 3)


def dates(steps):
    return (NOW + steps * 86400).astype("M8[s]")


def texts(steps, separator=" "):
    return np.char.replace(np.datetime_as_string(dates(steps)), "T", separator)


MOVED_TIMES = {
    "t_dat": [value.date() for value in dates(MOVED).tolist()],
    "created_at": dates(MOVED),
    "utc": pa.array(dates(MOVED), pa.timestamp("ns", "UTC")),
    "ts": NOW + MOVED,
    "seen": NOW + MOVED,
    "gesehen": NOW * 1000 + MOVED,
    "us": NOW * 10**6 + MOVED,
    "ns": NOW * 10**9 + MOVED,
    "at": (NOW + MOVED) * 1.0,
    "half": NOW + MOVED / 2,
    "day": 20200100 + MOVED,
    "float_day": 20200100.0 + MOVED,
    "visit": texts(MOVED),
    "visit2": texts(MOVED, "T"),
    "date_only": [text[:10] for text in texts(MOVED).tolist()],
    "category": pa.array(texts(MOVED)).dictionary_encode(),
    "gap": pa.array([*(NOW + MOVED[:11]).tolist(), None]),
    "timeframe": MOVED,
    "unixReviewTime": MOVED,
    "reviewTime": np.char.mod("%02d May", ORDERED),
    "day_gap": pa.array([*(20200100 + MOVED[:11]).tolist(), None]),
    "float_day_gap": pa.array([*(20200100.0 + MOVED[:11]).tolist(), None]),
    "slashes": np.char.replace(texts(MOVED), "-", "/"),
    "visit_gap": pa.array([None, *texts(MOVED)[1:].tolist()]),
    "long": pa.array(texts(MOVED), pa.large_string()),
    "time": [datetime.time(hour) for hour in MOVED.tolist()],
}


QUIET_TIMES = {
    "timestamp": NOW + ORDERED,
    "when": ORDERED,
    "date": dates(ORDERED),
    "visit": texts(ORDERED),
    "one moment": dates(ORDERED * 0),
    "one time": ORDERED * 0 + NOW,
    "month": np.tile([1, 3, 2, 4], 3),
    "year": 2000 + MOVED,
    "before 1990": 600_000_000 + MOVED,
    "after 2030": 1_930_000_000 + MOVED,
    "month 0": 20200000 + MOVED,
    "month 13": 20201300 + MOVED,
    "day 0": 20200099 + MOVED,
    "day 32": 20200128 + MOVED,
    "days before 1990": 19890100 + MOVED,
    "days after 2030": 20310100 + MOVED,
    "shelf": 1100 + MOVED,
    "parts of days": 20200101.5 + MOVED,
    "tweet_id": NOW + MOVED,
    "price": MIXED,
    "category": np.tile(["b", "d", "c", "a"], 3),
    "version": np.tile(["2020-1", "2020-3", "2020-2", "2020-4"], 3),
    "timestamp of the user": NOW - BY_USER,
    "is_first_time": MOVED > 2,
}


SMALL = {
    **{f"order: {name}": ("order", *case) for name, case in ORDER.items()},
    **{f"relevance: {name}": ("relevance", *case) for name, case in RELEVANCE.items()},
    **{f"time: {name}": ("time", {name: values}, [name]) for name, values in MOVED_TIMES.items()},
    **{f"no time: {name}": ("time", {name: values}, []) for name, values in QUIET_TIMES.items()},
}


@pytest.mark.parametrize(("role", "columns", "expected"), SMALL.values(), ids=SMALL)
def test_small_tables(role, columns, expected):
    """Asked for where rows do not strictly follow an order, are not all relevant, or move when sorted by time."""
    assert asked_about(role, columns) == expected


PRICES, RELEASED, RARE = MORE_ITEMS % 3 + 0.5, dates(np.tile([3, 1, 2, 4], 6)), 1 * (np.arange(24) == 5)
PROPERTIES = [  # of six users and four items; they have no role, unless a name is usual or there are few repeats
    ("order", {"age": MORE_USERS * 7, "price": PRICES, "year": [None, 1990, 1980, 2000] * 6}, []),
    ("order", {"weight": MORE_ITEMS % 3}, ["weight"]),
    ("order", {"offer": np.where(np.arange(24) == 23, 9.5, PRICES)}, ["offer"]),
    ("relevance", {"premium": MORE_USERS % 2, "Action": MORE_ITEMS == 2, "age": MORE_USERS % 5}, []),
    ("relevance", {"free": 1 * (MORE_ITEMS == 2), "none": 1 * (MORE_ITEMS == 9)}, []),
    ("relevance", {"stars": MORE_ITEMS - 1}, ["stars"]),
    ("relevance", {"free": (MORE_ITEMS == 2) & (MORE_USERS < 5)}, ["free"]),
    ("relevance", {"bought": RARE}, ["bought"]),
    ("time", {"release_date": RELEASED}, []),
    ("time", {"release_date": np.r_[RELEASED[:1] + 1, RELEASED[1:]]}, ["release_date"]),
]


@pytest.mark.parametrize(("role", "columns", "expected"), PROPERTIES)
def test_properties_of_users_and_items(role, columns, expected):
    assert asked_about(role, columns, MORE_USERS, MORE_ITEMS) == expected


def test_properties_have_five_repeats():
    """Of users of two rows each, four with the rarer value are no evidence that it is theirs, five are."""
    pairs, items = np.arange(48) // 2, np.arange(48)
    assert asked_about("relevance", {"bought": RARE}, pairs[:24], items[:24]) == ["bought"]
    assert asked_about("relevance", {"seen": 1 * (pairs < 4)}, pairs, items) == ["seen"]
    assert asked_about("relevance", {"seen": 1 * (pairs < 5)}, pairs, items) == []


def test_times_together():
    """If one column moves rows all columns of times are candidates, but constant ones."""
    times = {"date": 20200100 + ORDERED, "clock": MOVED, "time_ms": NOW * 1000 + MOVED, "split_date": dates(0 * MOVED)}
    assert asked_about("time", times) == ["date", "time_ms"]


def test_ids_of_any_type():
    """Users and items are text, its views, categories or numbers, with entries missing."""
    columns = {"prob": MIXED, "clicked": CLICKS, "when": dates(MOVED)}
    numbers = pa.array(np.repeat([1, 2, 3], 4), mask=np.arange(12) == 3)
    users = [[None, *USERS[1:]], pa.array(USERS).cast(pa.string_view()), pa.array(USERS).dictionary_encode(), numbers]
    table = small(columns)
    for rows in (*(small(columns, ids) for ids in users), pa.concat_tables([table[:5], table[5:]])):
        assert [[*FIND[role](rows, "user", "item")] for role in FIND] == [["prob"], ["clicked"], ["when"]]
        assert not any(FIND[role](rows[:0], "user", "item") for role in FIND)
    missing = {"mood": CLICKS, "level": MIXED, "when": dates(MOVED)}
    for role, expected in {"order": [], "relevance": ["mood"], "time": []}.items():
        assert asked_about(role, missing, users=pa.nulls(12, pa.string())) == expected


@pytest.mark.parametrize("in_order", [True, False])
def test_long_tables(in_order):
    """Of a long table whole users and items are read, whatever the order of its rows."""
    rng = np.random.default_rng(0)
    num_lists, k = 40_000, 10
    rows = np.arange(num_lists * k).reshape(num_lists, k).T.ravel() if in_order else rng.permutation(num_lists * k)
    users = np.repeat(np.arange(num_lists), k)
    items = np.where(rng.random(len(users)) < 0.5, 0, rng.zipf(1.3, len(users)) % 5000)
    scores = -np.sort(-rng.normal(size=(num_lists, k)), axis=1).ravel()
    columns = {"prob": scores, "price": rng.random(5000)[items], "age": rng.integers(18, 90, num_lists)[users]}
    columns |= {"free": rng.integers(0, 2, 5000)[items], "adult": rng.integers(0, 2, num_lists)[users]}
    columns |= {"bought": 1 * (rng.random(len(users)) < 0.001), "level": rng.permutation(len(users))}
    table = small(columns, users, items).take(rows)
    assert [*FIND["order"](table, "user", "item")] == ([] if in_order else ["prob"])
    assert [*FIND["relevance"](table, "user", "item")] == ["bought"]
    times = small({"time": NOW + np.arange(len(users)), "release_date": dates(items)}, users, items).take(rows)
    assert [*FIND["time"](times, "user", "item")] == ([] if in_order else ["time"])


def test_one_long_list():
    """A user with more rows than are read is read in part."""
    size = roles._SAMPLE_ROWS * 2 + 1
    scores = np.random.default_rng(0).random(size)
    table = small({"prob": scores}, np.zeros(size, dtype=int), np.arange(size))
    assert [*FIND["order"](table, "user", "item")] == ["prob"]
    table = small({"prob": -np.sort(-scores)}, np.zeros(size, dtype=int), np.arange(size))
    assert FIND["order"](table, "user", "item") == {}
    assert len(roles._Leftovers(table, "user", "item").by_user.take(table["prob"])) == roles._SAMPLE_ROWS


def test_question():
    """One message lists all candidates of a role with their content, and how to answer; it proposes none."""
    ranks = pa.array([*RANKS[:11], None])
    for role, columns, message in (
        (
            "order",
            {"prob": np.tile([0.5, 0.99, 0.01, 0.2], 3), "rank": ranks},
            "columns that may order the lists: 'prob' (floats 0.01 .. 0.99), 'rank' (whole numbers 1 .. 4, 1 missing): "
            "pass score= or rank= with one of them, or rank=None if the rows are in order",
        ),
        (
            "relevance",
            {"clicked": CLICKS > 0, "target": CLICKS},
            "columns that may say which rows are relevant: 'clicked' (true or false), 'target' (whole numbers 0 .. 1): "
            "pass value= with one of them, or value=None if every row is relevant",
        ),
        (
            "time",
            {"when": texts(MOVED)},
            "a column that may be the times: 'when' (text such as '2020-09-14 12:26:40'): "
            "pass time= with it, or time=None if the rows of each user are in order of time",
        ),
    ):
        assert roles.question("log.csv", role, small(columns), "user", "item") == f"log.csv has {message}"


@pytest.mark.parametrize(
    ("values", "content"),
    [
        (dates(MOVED), "datetimes 2020-09-14 12:26:40 .. 2020-09-17 12:26:40"),
        (NOW + MOVED, "whole numbers 1600000001 .. 1600000004, as s since 1970 2020-09-13 .. 2020-09-13"),
        ((NOW + MOVED * 86400) * 1e3, "floats 1.6e+12 .. 1.6e+12, as ms since 1970 2020-09-14 .. 2020-09-17"),
        (20200100 + MOVED, "whole numbers 20200101 .. 20200104"),
        ([datetime.time(hour) for hour in MOVED.tolist()], "times 01:00:00 .. 04:00:00"),
        (pa.array(MOVED, pa.duration("s")), "whole numbers 1 .. 4"),
    ],
)
def test_content_of_times(values, content):
    """Times are shown as the dates that they are."""
    assert FIND["time"](small({"time": values}), "user", "item") == {"time": content}


QUESTIONS = [
    ("order", ["0.1", "0.9"], "score"),
    ("order", ["1e-3", "2"], "score"),
    ("order", ["0,1", "0,9"], "score"),
    ("order", ["10%", "90%"], "score"),
    ("relevance", ["1", "0"], "label"),
    ("relevance", ["True", "False"], "is_click"),
    ("relevance", ["false", "true"], "is_click"),
    ("relevance", ["yes", "no"], "clicked"),
    ("relevance", ["test", "train"], "part"),  # rows of training in a ground truth
    ("relevance", [1, None], "clicked"),  # missing where it is 0
    ("relevance", [True, None], "bought"),
    ("time", ["1700000009", "1700000001"], "ts"),
    ("time", ["12/31/2020", "2/5/2020"], "seen"),
    ("time", ["31.12.2020", "5.2.2020"], "seen"),
    ("time", ["2020-12-31", "2020-1-5"], "seen"),
    ("time", ["2020-12-31", None, "2020-02-05"], "seen"),
]
MIXED_QUESTIONS = [  # of several kinds, which some libraries cannot hold
    ("order", [False, 0.9], "score"),
    ("order", ["0.1", 0.9], "score"),
    ("relevance", [1, "0"], "clicked"),
    ("time", [datetime.datetime(2020, 12, 31), datetime.date(2020, 2, 5)], "seen"),
]


def questions(frame, *of_roles):
    return ask_about(FrameSource(frame), of_roles, Roles("user", "item"))


def of_two_users(name, values):
    """Return columns in which each of two users has these values."""
    n = len(values)
    return {"user": [1] * n + [2] * n, "item": [*range(2 * n)], name: values * 2}


@pytest.mark.parametrize(("role", "values", "name"), [*QUESTIONS, *MIXED_QUESTIONS])
def test_columns_in_other_writing_are_asked_about(role, values, name):
    """Numbers, labels and dates change the answer as much where they are text, of several kinds, or have gaps."""
    assert questions(of_two_users(name, values), role).keys() == {role}


@pytest.mark.parametrize("library", ["pyarrow", "pandas", "polars"])
@pytest.mark.parametrize(("role", "values", "name"), QUESTIONS)
def test_columns_of_any_library_are_asked_about(role, values, name, library):
    assert questions(frame_of(library, of_two_users(name, values)), role).keys() == {role}


def test_columns_that_cannot_be_read_are_no_reason_to_be_silent():
    """Names that occur twice, and columns of other shapes or lengths are errors."""
    twice = pd.DataFrame([[1, 10, 0.1, 0.2], [1, 11, 0.9, 0.1]], columns=["user", "item", "score", "score"])
    columns = {"user": [1, 1], "item": [10, 11]}
    for frame, match in (
        (twice, "2 columns named 'score'"),
        (columns | {"score": np.array([[0.1], [0.9]])}, r"'score' .*one column.*\[2, 1\]"),
        (columns | {"score": [0.1]}, "equally long"),
    ):
        with pytest.raises(ValueError, match=match):
            questions(frame, "order")


def test_columns_without_a_role_may_hold_anything():
    """Hashes, numbers of more than 64 bits, text that is no Unicode, and objects are no error."""
    columns = {"user": [1, 1], "item": [10, 11]}
    zone = datetime.timezone.utc
    objects = {"hash": [2**70, 1], "note": ["\ud800", "b"], "object": [object(), {1: 2}]}
    objects["when"] = [datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 2, tzinfo=zone)]
    assert questions(columns | objects, "order", "relevance") == {}
    for ids in ([2**63 + 5, 2**63], [2**64 - 1, 0]):
        table = pa.table(columns | {"session_key": pa.array(ids, pa.uint64())})
        assert questions(table, "order", "relevance", "time") == {}


def made(columns, form, folder):
    """Return columns as a dict, a frame or a file."""
    frame = pd.DataFrame(columns)
    if form == "csv":
        frame.to_csv(folder / "table.csv", index=False)
    elif form == "parquet":
        frame.to_parquet(folder / "table.parquet")
    return {"frame": frame, "dict": columns}.get(form, folder / f"table.{form}")


@pytest.mark.parametrize("form", ["frame", "csv", "parquet", "dict"])
def test_lists_and_ground_truths_are_asked_about(form, tmp_path):
    """However they are passed, rows that do not follow a column, and rows with 0 or False in one, are questions."""
    target = {"al": ["x"], "bo": ["y"]}
    for name, values in (("score", [0.1, 0.2, 0.3, 0.4]), ("rank", [4, 3, 2, 1]), ("xyz", [0.1, 0.2, 0.3, 0.4])):
        columns = {"user": ["al"] * 4 + ["bo"] * 4, "item": [*"xyzw"] * 2, name: values * 2, "note": ["a"] * 8}
        lists = made(columns, form, tmp_path)
        with pytest.raises(ValueError, match=f"has a column that may order the lists: '{name}' .* rank=None"):
            trm.evaluate_lists("MRR", lists, target=target, k=4)
        found = trm.evaluate_lists("MRR", lists, target=target, k=4, **{"rank" if name == "rank" else "score": name})
        assert found["MRR@4"].item() == (1 / 4 + 1 / 3) / 2
        assert trm.evaluate_lists("MRR", lists, target=target, k=4, rank=None)["MRR@4"] == (1 + 1 / 2) / 2
        lists = made(columns | {name: values[::-1] * 2}, form, tmp_path)  # in order
        assert trm.evaluate_lists("MRR", lists, target=target, k=4)["MRR@4"] == (1 + 1 / 2) / 2
    lists = {"al": ["y", "x"], "bo": ["x", "y"]}
    for name, values, expected in (
        ("stars", [5, 0, 0, 4], (1 / 2 + 1 / 2) / 2),
        ("xyz", [0, 1, 0, 1], (1 + 1 / 2) / 2),
        ("clicked", [True, False, False, True], (1 / 2 + 1 / 2) / 2),
    ):
        truth = made({"user": ["al", "al", "bo", "bo"], "item": [*"xyxy"], name: values}, form, tmp_path)
        with pytest.raises(ValueError, match=f"may say which rows are relevant: '{name}' .* value=None"):
            trm.evaluate_lists("MRR", lists, target=truth, k=2)
        assert trm.evaluate_lists("MRR", lists, target=truth, k=2, value=None)["MRR@2"] == 1
        if (name, form) != ("clicked", "csv"):  # where True and False are text
            assert trm.evaluate_lists("MRR", lists, target=truth, k=2, value=name)["MRR@2"] == expected


def test_positive_ratings_are_a_question_for_metrics_of_gains_alone():
    """Ratings above 0 change NDCG, but not MRR."""
    truth = {"user": ["al", "al"], "item": ["x", "y"], "rating": [5, 1]}
    assert trm.evaluate_lists("MRR", {"al": ["y", "x"]}, target=truth, k=2)["MRR@2"] == 1
    with pytest.raises(ValueError, match="may say which rows are relevant: 'rating'"):
        trm.evaluate_lists("NDCG", {"al": ["y", "x"]}, target=truth, k=2)
