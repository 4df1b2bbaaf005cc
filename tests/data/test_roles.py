"""Columns that may be the order of lists, relevance or time are asked for where the answers give different numbers."""

import datetime
import decimal

import pytest

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")

import later_tables  # noqa: E402
import tables  # noqa: E402

from torchrecmetrics.data import roles  # noqa: E402
from torchrecmetrics.data.frames import FrameSource, Roles, frame_of  # noqa: E402

FIND = {
    "order": roles.order_candidates,
    "relevance": lambda table, user, item: roles.value_candidates(table, user, item, reads_gains=False),
    "time": roles.time_candidates,
}


def outcomes(cases, role):
    """Return the names of the cases in which a question was needed and asked, needed and missed, asked for nothing."""
    asked, missed, needless = [], [], []
    for case in cases:
        candidates = FIND[role](case.table, case.user, case.item)
        if case.needed[role] is not None:
            (asked if case.needed[role] in candidates else missed).append(case.name)
        elif candidates and not set(candidates) & set(case.fair):
            needless.append(case.name)
    return asked, missed, needless


@pytest.mark.parametrize(
    ("role", "cases", "bounds"),
    [
        ("order", tables.recommendations, (33, 1, 1)),
        ("relevance", tables.ground_truths, (21, 0, 10)),
        ("time", tables.ground_truths, (22, 0, 2)),
        # tables made after the rules
        ("order", later_tables.lists_of_libraries, (9, 0, 0)),
        ("relevance", later_tables.logs_of_media, (8, 0, 0)),
        ("time", later_tables.logs_of_media, (10, 0, 1)),
        ("order", later_tables.served_lists, (6, 2, 6)),
        ("relevance", later_tables.logs_of_shops, (6, 0, 4)),
        ("time", later_tables.logs_of_shops, (10, 0, 3)),
    ],
)
def test_public_tables(role, cases, bounds):
    """Of tables with the columns of public data sets at most so many are missed, or asked for nothing."""
    asked, missed, needless = outcomes(cases(), role)
    counts = len(asked), len(missed), len(needless)
    assert counts[0] >= bounds[0], missed
    assert counts[1] <= bounds[1], missed
    assert counts[2] <= bounds[2], needless


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
    "whole numbers": ({"logit_x100": (MIXED * 100).astype(int)}, ["logit_x100"]),
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
    "half precision": ({"prob": MIXED.astype("f2")}, ["prob"]),
    "decimals": ({"prob": [decimal.Decimal(f"{value}") for value in MIXED]}, ["prob"]),
    "unsigned numbers": ({"prob": (FALLING * 100).astype("u1")}, []),
    "all candidates": ({"rank": RANKS, "prob": MIXED, "logit": MIXED}, ["rank", "prob", "logit"]),
    "scores as categories": ({"prob": pa.array(MIXED).dictionary_encode()}, ["prob"]),
    "a row counter": ({"row": np.arange(12)}, []),
    "a shuffled row counter": ({"level": np.array([5, 3, 0, 8, 1, 2, 11, 4, 6, 7, 9, 10])}, []),
    "nearly a row counter": ({"level": np.array([5, 3, 0, 8, 1, 2, 11, 4, 6, 7, 9, 12])}, ["level"]),
    "as long as a row counter": ({"level": np.array([5, 3, 0, 8, 1, 2, 11, 4, 6, 7, 9, 9])}, ["level"]),
    "not the last word": ({"score_version": np.ones(12), "rank_source": np.tile([2, 1, 2, 1], 3)}, []),
    "an id": ({"candidate_id": (MIXED * 1000).astype(int), "Unnamed: 0": MIXED, "articleCode": MIXED}, []),
    "seconds": ({"generated_at": 1_700_000_000 + MIXED * 100}, []),
    "days": ({"generated_at": 20240100 + np.tile([2, 4, 1, 3], 3)}, []),
    "text and flags": ({"title": np.tile(["b", "a", "d", "c"], 3), "is_new": MIXED > 0.3}, []),
    "few values": ({"source": np.tile([0, 1, 0, 1], 3)}, []),
    "three values of four": ({"source": np.tile([0, 1, 2, 1], 3)}, ["source"]),
    "lists, nothing and structs": ({"path": [[1]] * 12, "empty": pa.nulls(12), "s": [{"a": 1}] * 12}, []),
}


@pytest.mark.parametrize(("columns", "expected"), ORDER.values(), ids=ORDER)
def test_order(columns, expected):
    """A column that may order lists is asked for where the rows do not strictly follow it."""
    assert asked_about("order", columns) == expected


def test_order_of_properties():
    """Columns that describe the user or the item order no list, unless their name is usual or they have few repeats."""
    for columns in ({"age": MORE_USERS * 7}, {"price": MORE_ITEMS % 3 + 0.5}, {"year": [None, 1990, 1980, 2000] * 6}):
        assert asked_about("order", columns, MORE_USERS, MORE_ITEMS) == []
    assert asked_about("order", {"weight": MORE_ITEMS % 3}, MORE_USERS, MORE_ITEMS) == ["weight"]
    assert asked_about("order", {"price": ITEMS * 1.5}) == ["price"]
    almost = np.where(np.arange(24) == 23, 9.5, MORE_ITEMS % 3 + 0.5)
    assert asked_about("order", {"offer": almost}, MORE_USERS, MORE_ITEMS) == ["offer"]


def test_order_of_lists_of_one_item():
    """Lists of one item have one order."""
    assert asked_about("order", {"prob": MIXED, "score": [None] * 11 + [1.0]}, users=np.arange(12)) == []


def test_order_of_interleaved_rows():
    """Rows of a user count in their order, wherever they stand in the table."""
    rows = np.arange(12).reshape(3, 4).T.ravel()
    table = small({"prob": FALLING, "score": MIXED}).take(rows)
    assert [*roles.order_candidates(table, "user", "item")] == ["prob", "score"]
    assert not roles.order_candidates(table.drop_columns("score"), "user", "item")


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


@pytest.mark.parametrize(("columns", "expected"), RELEVANCE.values(), ids=RELEVANCE)
def test_relevance(columns, expected):
    """A column that may say which rows are relevant is asked for where some rows would not be."""
    assert asked_about("relevance", columns) == expected


def test_relevance_of_properties():
    """Flags that describe the user or the item are no labels, unless their name is usual or they have few repeats."""
    users, items = MORE_USERS, MORE_ITEMS
    for columns in ({"premium": users % 2}, {"Action": items == 2}, {"age": users % 5}, {"free": 1 * (items == 2)}):
        assert asked_about("relevance", columns, users, items) == []
    assert asked_about("relevance", {"stars": items - 1}, users, items) == ["stars"]
    assert asked_about("relevance", {"free": 1 * (items == 9)}, users, items) == []
    assert asked_about("relevance", {"free": (items == 2) & (users < 5)}, users, items) == ["free"]
    rare = np.where(np.arange(24) == 5, 1, 0)
    assert asked_about("relevance", {"bought": rare}, users, items) == ["bought"]
    assert asked_about("relevance", {"bought": rare}, np.arange(24) // 2, np.arange(24)) == ["bought"]
    # users of two rows each: four of them with the rarer value are no evidence, five are
    pairs = np.arange(48) // 2
    assert asked_about("relevance", {"seen": 1 * (pairs < 4)}, pairs, np.arange(48)) == ["seen"]
    assert asked_about("relevance", {"seen": 1 * (pairs < 5)}, pairs, np.arange(48)) == []


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


@pytest.mark.parametrize("name", MOVED_TIMES)
def test_times_that_move_rows(name):
    """A column of times is asked for if sorting by it moves a row within a user."""
    assert asked_about("time", {name: MOVED_TIMES[name]}) == [name]


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


@pytest.mark.parametrize("name", QUIET_TIMES)
def test_times_that_are_silent(name):
    """Times in order, times of the user, and numbers and text that are no times are not asked for."""
    assert asked_about("time", {name: QUIET_TIMES[name]}) == []


def test_times_together():
    """One column that moves rows is enough to ask, and then all columns of times are candidates, constant ones not."""
    columns = {
        "date": 20200100 + ORDERED,
        "clock": MOVED,
        "time_ms": NOW * 1000 + MOVED,
        "split_date": dates(0 * MOVED),
    }
    assert asked_about("time", columns) == ["date", "time_ms"]


def test_times_of_items():
    """A date of release describes the item: no time of an event."""
    released = dates(np.tile([3, 1, 2, 4], 6))
    assert asked_about("time", {"release_date": released}, MORE_USERS, MORE_ITEMS) == []
    released[0] += 1
    assert asked_about("time", {"release_date": released}, MORE_USERS, MORE_ITEMS) == ["release_date"]


def test_ids_of_any_type():
    """Users and items are text, its views, categories or numbers, with entries missing."""
    columns = {"prob": MIXED, "clicked": CLICKS, "when": dates(MOVED)}
    table = small(columns)
    text = table.set_column(0, "user", pa.array([None, *USERS[1:]]))
    views = table.set_column(0, "user", pa.array(USERS).cast(pa.string_view()))
    categories = table.set_column(0, "user", pa.array(USERS).dictionary_encode())
    numbers = table.set_column(0, "user", pa.array(np.repeat([1, 2, 3], 4), mask=np.arange(12) == 3))
    chunks = pa.concat_tables([table[:5], table[5:]])
    for rows in (text, views, categories, numbers, chunks):
        assert [*FIND["order"](rows, "user", "item")] == ["prob"]
        assert [*FIND["relevance"](rows, "user", "item")] == ["clicked"]
        assert [*FIND["time"](rows, "user", "item")] == ["when"]
    missing = small({"mood": CLICKS, "level": MIXED, "when": dates(MOVED)}, pa.nulls(12, pa.string()))
    for role, expected in {"order": [], "relevance": ["mood"], "time": []}.items():
        assert not FIND[role](table[:0], "user", "item")
        assert [*FIND[role](missing, "user", "item")] == expected


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
    grouped = roles._Leftovers(table, "user", "item")
    assert len(grouped.by_user.take(table["prob"])) <= 2048 * k
    assert 10_000 < len(grouped.by_item.take(table["prob"])) <= 2**17


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
    table = small({"prob": np.tile([0.5, 0.99, 0.01, 0.2], 3), "rank": pa.array([*RANKS[:11], None])})
    assert roles.question("lists.csv", "order", table, "user", "item") == (
        "lists.csv has columns that may order the lists: 'prob' (floats 0.01 .. 0.99), 'rank' (whole numbers 1 .. 4, "
        "1 missing): pass score= or rank= with one of them, or rank=None if the rows are in order"
    )
    table = small({"clicked": CLICKS > 0, "target": CLICKS})
    assert roles.question("truth.csv", "relevance", table, "user", "item") == (
        "truth.csv has columns that may say which rows are relevant: 'clicked' (true or false), 'target' (whole "
        "numbers 0 .. 1): pass value= with one of them, or value=None if every row is relevant"
    )
    table = small({"when": texts(MOVED)})
    assert roles.question("log.csv", "time", table, "user", "item") == (
        "log.csv has a column that may be the times: 'when' (text such as '2020-09-14 12:26:40'): "
        "pass time= with it, or time=None if the rows of each user are in order of time"
    )


@pytest.mark.parametrize(
    ("values", "content"),
    [
        (dates(MOVED), "datetimes 2020-09-14 12:26:40 .. 2020-09-17 12:26:40"),
        (NOW + MOVED, "whole numbers 1600000001 .. 1600000004, as s since 1970 2020-09-13 .. 2020-09-13"),
        ((NOW + MOVED * 86400) * 1e3, "floats 1.6e+12 .. 1.6e+12, as ms since 1970 2020-09-14 .. 2020-09-17"),
        (20200100 + MOVED, "whole numbers 20200101 .. 20200104"),
        ([datetime.time(hour) for hour in MOVED.tolist()], "times 01:00:00 .. 04:00:00"),
    ],
)
def test_content_of_times(values, content):
    """Times are shown as the dates that they are."""
    assert FIND["time"](small({"time": values}), "user", "item") == {"time": content}


TEXT_QUESTIONS = [
    ("order", {"score": ["0.1", "0.9"]}),
    ("order", {"score": ["1e-3", "2"]}),
    ("relevance", {"label": ["1", "0"]}),
    ("relevance", {"is_click": ["True", "False"]}),
    ("relevance", {"is_click": ["false", "true"]}),
    ("time", {"ts": ["1700000009", "1700000001"]}),
]


@pytest.mark.parametrize(("role", "column"), TEXT_QUESTIONS)
@pytest.mark.parametrize("library", ["dict", "pyarrow", "pandas", "polars"])
def test_numbers_in_text_are_asked_about(role, column, library):
    """Numbers, true and false that a frame holds as text change the answer as much as others."""
    columns = {"user": [1, 1], "item": [10, 11], **column}
    frame = columns if library == "dict" else frame_of(library, columns)
    assert FrameSource(frame).questions([role], Roles("user", "item")).keys() == {role}


def test_columns_that_cannot_be_read_are_no_reason_to_be_silent():
    """Names that occur twice, and columns of other shapes or lengths are errors."""
    pd, np = pytest.importorskip("pandas"), pytest.importorskip("numpy")
    twice = pd.DataFrame([[1, 10, 0.1, 0.2], [1, 11, 0.9, 0.1]], columns=["user", "item", "score", "score"])
    for frame, match in (
        (twice, "2 columns named 'score'"),
        ({"user": [1, 1], "item": [10, 11], "score": np.array([[0.1], [0.9]])}, r"'score' .*one column.*\[2, 1\]"),
        ({"user": [1, 1], "item": [10, 11], "score": [0.1]}, "equally long"),
    ):
        with pytest.raises(ValueError, match=match):
            FrameSource(frame).questions(["order"], Roles("user", "item"))


@pytest.mark.parametrize("ids", [[2**63 + 5, 2**63], [2**64 - 1, 0]])
def test_large_hashes_order_nothing(ids):
    """Columns of unsigned hashes are read without an error."""
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"user": [1, 1], "item": [10, 11], "session_key": pa.array(ids, pa.uint64())})
    assert FrameSource(table).questions(["order", "relevance", "time"], Roles("user", "item")) == {}


def test_a_duration_may_be_the_time():
    """Durations have an order; the question shows their range."""
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"user": [1, 1], "item": [10, 11], "time": pa.array([5, 3], pa.duration("s"))})
    assert "'time' (whole numbers 3 .. 5)" in FrameSource(table).questions(["time"], Roles("user", "item"))["time"]


RELEVANCE_BY_OTHER_MEANS = {
    "missing means no": ("clicked", [1, None, None, 1]),
    "true or missing": ("bought", [True, None, None, True]),
    "yes and no": ("clicked", ["yes", "no", "no", "yes"]),
    "of several kinds": ("clicked", [1, "0", "0", 1]),
    "parts of a split": ("part", ["test", "train", "train", "test"]),
}


@pytest.mark.parametrize(("name", "values"), RELEVANCE_BY_OTHER_MEANS.values(), ids=RELEVANCE_BY_OTHER_MEANS)
def test_relevance_by_other_means(name, values):
    """Labels that are missing where they are 0, text, of several kinds, and rows of training in a ground truth."""
    frame = {"user": [1, 1, 2, 2], "item": [10, 11, 11, 10], name: values}
    assert FrameSource(frame).questions(["relevance"], Roles("user", "item")).keys() == {"relevance"}


@pytest.mark.parametrize("values", [["0,1", "0,9"], ["10%", "90%"], [False, 0.9], ["0.1", 0.9]])
def test_scores_in_other_writing(values):
    """Text that is called a score, and numbers of several kinds, may order the lists."""
    frame = {"user": [1, 1], "item": [10, 11], "score": values}
    assert FrameSource(frame).questions(["order"], Roles("user", "item")).keys() == {"order"}


OTHER_DATES = [
    ["12/31/2020", "2/5/2020"],
    ["31.12.2020", "5.2.2020"],
    ["2020-12-31", "2020-1-5"],
    ["2020-12-31", None, "2020-02-05"],
    [datetime.datetime(2020, 12, 31), datetime.date(2020, 2, 5)],
]


@pytest.mark.parametrize("dates", OTHER_DATES)
def test_dates_in_other_writing(dates):
    """Dates as text of other forms, with gaps and of several kinds may be the times."""
    frame = {"user": [1] * len(dates), "item": [*range(len(dates))], "seen": dates}
    assert FrameSource(frame).questions(["time"], Roles("user", "item")).keys() == {"time"}


def test_columns_without_a_role_may_hold_anything():
    """Numbers of more than 64 bits, text that is no Unicode, and objects beside users and items are no error."""
    frame = {
        "user": [1, 1],
        "item": [10, 11],
        "hash": [2**70, 1],
        "note": ["\ud800", "b"],
        "object": [object(), {1: 2}],
        "when": [datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 2, tzinfo=datetime.timezone.utc)],
    }
    assert FrameSource(frame).questions(["order", "relevance"], Roles("user", "item")) == {}
