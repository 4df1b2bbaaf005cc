"""Frames of every library give the same log, and errors name the column, the row and what to do."""

import datetime
import re
import sys

import pytest
import torch

import torchrecmetrics as trm
from torchrecmetrics import Interactions, Log

np = pytest.importorskip("numpy")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")

COLUMNS = {
    "user": ["bo", "al", "bo", "ü"],
    "item": [7, 2**62, 7, -1],
    "when": [3, 1, 2, 2],
    "stars": [4.0, 2.5, 5.0, 1.0],
}
FORMS = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "pyarrow": pa.table,
    "dict": dict,
    "structured": lambda columns: pd.DataFrame(columns).to_records(index=False),
    "dict of tensors": lambda columns: {
        name: torch.tensor(column) if name != "user" else column for name, column in columns.items()
    },
    "dict of series": lambda columns: {name: pd.Series(column) for name, column in columns.items()},
}


def read(frame, **options):
    return Log.from_frame(frame, time="when", value="stars", **options)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_log(form):
    """Every form of frame gives its rows, repeats, times and values unchanged, with ids in ascending order."""
    log = read(FORMS[form](COLUMNS))
    assert log.user_ids.ids(log.users) == COLUMNS["user"]
    assert log.item_ids.ids(log.items) == COLUMNS["item"]
    assert (list(log.user_ids), list(log.item_ids)) == (["al", "bo", "ü"], [-1, 7, 2**62])
    assert (log.times.tolist(), log.time_unit, log.values.tolist()) == (COLUMNS["when"], None, COLUMNS["stars"])
    plain = Log.from_frame(FORMS[form](COLUMNS))
    assert (plain.times, plain.values, len(plain)) == (None, None, 4)
    built = Interactions.from_frame(FORMS[form](COLUMNS), value="stars", values_reduce="sum")
    expected = log.to_interactions(values_reduce="sum")
    assert torch.equal(built.keys, expected.keys)
    assert torch.equal(built.values, expected.values)
    assert (built.user_ids, built.item_ids) == (expected.user_ids, expected.item_ids)
    assert built.values.tolist() == [2.5, 9.0, 1.0]  # bo's two rows are summed


@pytest.mark.parametrize("form", FORMS)
def test_a_wrong_column_is_told_the_right_one(form):
    """The error for a column that is missing suggests the nearest name, lists all, and says how to name columns."""
    frame = FORMS[form](COLUMNS)
    cure = "did you mean 'stars'.* There are user, item, when, stars; say which is which: user=..., item=..."
    with pytest.raises(ValueError, match=f"frame has no column 'star'; {cure}"):
        Log.from_frame(frame, value="star")
    with pytest.raises(ValueError, match=r"frame has no column 'product'\. There are user, item"):
        Interactions.from_frame(frame, item="product")
    with pytest.raises(TypeError, match=r"columns go by name, got 0 \(int\)"):
        Log.from_frame(frame, user=0)


def test_categories_are_what_they_stand_for():
    """A categorical column gives the values of its categories as ids; unused categories are no ids."""
    for column in (
        pd.Categorical(["b", "a", "b"], categories=["z", "b", "a"]),
        pl.Series(["b", "a", "b"], dtype=pl.Enum(["z", "b", "a"])),
    ):
        frame = (pd.DataFrame if isinstance(column, pd.Categorical) else pl.DataFrame)(
            {"user": column, "item": [1, 2, 3]}
        )
        log = Log.from_frame(frame)
        assert (list(log.user_ids), log.users.tolist()) == (["a", "b"], [1, 0, 1])


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_datetimes_keep_their_unit(unit):
    """Datetimes of pandas, polars and pyarrow keep their unit; a datetime without a time zone is in UTC."""
    naive = pd.Series(pd.to_datetime(["2024-01-03", "2024-01-02", "2024-01-01"])).astype(f"datetime64[{unit}]")
    zoned = naive.dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo")
    seconds = [1704240000, 1704153600, 1704067200]
    steps = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}[unit]
    for times in (naive, zoned):
        frame = pd.DataFrame({"user": [0, 0, 0], "item": [0, 1, 2], "when": times})
        for made in (frame, pa.Table.from_pandas(frame), *([pl.from_pandas(frame)] if unit != "s" else [])):
            log = Log.from_frame(made, time="when")
            assert (log.times.tolist(), log.time_unit) == ([second * steps for second in seconds], unit)
            parts = log.split_by_time("2024-01-02", datetime.date(2024, 1, 3))
            assert [part.items.tolist() for part in parts] == [[2], [1], [0]]


def test_ids_of_a_given_vocabulary():
    """Ids get the row numbers of a given vocabulary, and the error for an id that it lacks names the id."""
    train = read(COLUMNS)
    test = Log.from_frame({"user": ["al"], "item": [7]}, user_ids=train.user_ids, item_ids=train.item_ids)
    assert (test.users.tolist(), test.items.tolist(), test.user_ids) == ([0], [1], train.user_ids)
    message = (
        r"column 'user' of frame holds 'eve' in row 1, which is not in user_ids \(1 of 2 rows\): leave user_ids out"
    )
    for form in FORMS.values():
        frame = form({"user": ["al", "eve"], "item": [7, 7], "when": [0, 0], "stars": [0.0, 0.0]})
        with pytest.raises(ValueError, match=message):
            Log.from_frame(frame, user_ids=train.user_ids)
    large = pd.DataFrame({"user": pd.Series([5, 2**62 + 1, None], dtype="Int64"), "item": [1, 2, 3]})
    with pytest.raises(ValueError, match=f"holds {2**62 + 1} in row 1, which is not in user_ids"):
        Log.from_frame(large, user_ids=[5])
    with pytest.raises(TypeError, match=r"column 'item' of frame holds text \('7'\), item_ids hold whole numbers"):
        Log.from_frame({"user": ["al"], "item": ["7"]}, item_ids=train.item_ids)


def changed(name, row, value):
    columns = {key: list(column) for key, column in COLUMNS.items()}
    columns[name][row] = value
    return columns


BAD = [
    ("user", None, r"column 'user' of frame holds a missing value: 1 of 4 rows, the first is row 2"),
    ("item", None, r"column 'item' of frame holds (a missing value: 1 of 4 rows, the first is row 2|.*rounds whole)"),
    ("when", None, r"column 'when' of frame.*missing in row 2"),
    ("stars", None, r"column 'stars' of frame (is missing|holds no number) in row 2"),
    ("stars", float("nan"), r"column 'stars' of frame (is missing|holds no number) in row 2"),
]


@pytest.mark.parametrize("form", ["pandas", "polars", "pyarrow", "dict"])
@pytest.mark.parametrize(("name", "value", "message"), BAD)
def test_a_missing_entry_is_named(form, name, value, message):
    """The error for a missing entry names its column and row, in every library."""
    with pytest.raises(ValueError, match=message):
        read(FORMS[form](changed(name, 2, value)))


def test_what_is_no_frame_is_refused():
    """Arrays, paths, lazy frames, columns twice or of unequal length, and mixed or wrong types are refused."""
    cure = "pass a frame of pandas, polars or pyarrow, a dict of columns, a list of records, or a structured array of"
    for wrong in ([[0, 1]], 7, torch.zeros(2, 2), np.zeros((2, 2)), None):
        with pytest.raises(TypeError, match=f"frame must be a frame, got .*: {cure}"):
            Log.from_frame(wrong)
    with pytest.raises(TypeError, match=r"frame must be a frame, got a path: Log\.from_file"):
        Log.from_frame("log.csv")
    with pytest.raises(TypeError, match=re.escape("frame is not computed yet, LazyFrame: pass frame.collect()")):
        Log.from_frame(pl.DataFrame(COLUMNS).lazy())
    twice = pd.DataFrame([[1, 2, 3]], columns=["user", "item", "item"])
    with pytest.raises(ValueError, match="frame has 2 columns named 'item': rename them"):
        Log.from_frame(twice)
    with pytest.raises(ValueError, match=r"must be equally long, got \{'user': 1, 'item': 2\}"):
        Log.from_frame({"user": [1], "item": [1, 2]})
    for form in (pd.DataFrame, dict):
        with pytest.raises(TypeError, match="column 'user' of frame holds int and str: make them all one kind"):
            Log.from_frame(form({"user": ["a", 1], "item": [1, 2]}))
        with pytest.raises(TypeError, match=r"column 'user' of frame holds floats such as 0\.5"):
            Log.from_frame(form({"user": [0.5, 1.0], "item": [1, 2]}))
        with pytest.raises(
            TypeError, match=r"column 'stars' of frame must hold numbers, got (large_)?string: 'x' in row 0"
        ):
            Log.from_frame(form({"user": [1], "item": [1], "stars": ["x"]}), value="stars")
        with pytest.raises(TypeError, match="column 'when' of frame must be numbers or datetimes"):
            Log.from_frame(form({"user": [1], "item": [1], "when": ["noon"]}), time="when")


def test_missing_libraries_are_named(monkeypatch):
    """Without pyarrow the error for a frame names the extra to install."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"needs pyarrow: pip install 'torchrecmetrics\[frames\]'"):
        Log.from_frame(COLUMNS)


def test_frames_of_other_libraries():
    """A frame of any library with Arrow's interface is read."""

    class Other:
        def __arrow_c_stream__(self, requested_schema=None):
            return pa.table(COLUMNS).__arrow_c_stream__(requested_schema)

    assert read(Other()).users.tolist() == [1, 0, 1, 2]


def test_two_frames_with_ids_of_their_own_agree():
    """Ground truth of one frame and history of another are matched by id, with rows in any order."""
    history = pd.DataFrame({"user": ["b", "c", "a"], "item": ["x", "y", "z"]})
    truth = pl.DataFrame({"user": ["a", "b"], "item": ["y", "z"]})
    test = Interactions.from_frame(truth, item_ids=["x", "y", "z"])
    found = trm.evaluate(
        ["MRR"],
        trm.Embeddings(bias=torch.tensor([3, 1, 2])),
        target=test,
        exclude=Interactions.from_frame(history),
    )
    assert found["MRR"] == pytest.approx((1 / 2 + 1 / 1) / 2)  # a: x, y without z; b: z, y without x
