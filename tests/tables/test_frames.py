"""Frames of every library give the same log, and errors name the column, the row and what to do."""

import datetime
import math
import sys

import pytest
import torch
from said import evaluate_lists

import torchrecmetrics as trm
from torchrecmetrics import Interactions, Log
from torchrecmetrics.tables.frames import source_of_frame

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


class OtherLibrary:
    """A frame of any library with Arrow's interface."""

    def __init__(self, columns):
        self.table = pa.table(columns)

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def of_tensors(columns):
    return {name: column if name == "user" else torch.tensor(column) for name, column in columns.items()}


FORMS = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "pyarrow": pa.table,
    "dict": dict,
    "structured": lambda columns: pd.DataFrame(columns).to_records(index=False),
    "records": lambda columns: pd.DataFrame(columns).to_dict("records"),
    "dict of tensors": of_tensors,
    "dict of series": lambda columns: {name: pd.Series(column) for name, column in columns.items()},
    "other": OtherLibrary,
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
    assert (built.users.tolist(), built.items.tolist()) == ([0, 1, 2], [2, 1, 0])
    assert built.values.tolist() == [2.5, 9.0, 1.0]  # bo's two rows are summed
    assert (built.user_ids, built.item_ids) == (log.user_ids, log.item_ids)


@pytest.mark.parametrize("form", FORMS)
def test_a_wrong_column_is_told_the_right_one(form):
    """The error for a column that is missing suggests the nearest name, lists all, and says how to name columns."""
    cure = "did you mean 'stars'.* There are user, item, when, stars; say which is which: user=..., item=..."
    with pytest.raises(ValueError, match=f"frame has no column 'star'; {cure}"):
        Log.from_frame(FORMS[form](COLUMNS), value="star")


def test_other_frames_are_lists_and_ground_truths(tmp_path):
    """Records, a named index and columns named by numbers are lists; a dict may hold grades."""
    frame = pd.DataFrame({"user": ["al", "al", "bo", "bo"], "item": ["x", "z", "z", "y"]})
    truth, numbers = {"al": ["x"], "bo": ["y"]}, pd.DataFrame(frame.to_numpy())
    for lists in (frame.to_dict("records"), frame.set_index("user"), frame.set_index(["user", "item"])):
        assert evaluate_lists("MRR@2", lists, target=truth)["MRR@2"] == (1 + 1 / 2) / 2
    assert evaluate_lists("MRR@2", numbers, target=numbers, user="0", item="1")["MRR@2"] == 1
    grades = {"al": {"x": 1, "z": 0}, "bo": {"y": 3, "q": -1}}
    found = evaluate_lists(["MRR@2", "NDCG@2"], frame, target=grades)
    assert found["MRR@2"] == (1 + 1 / 2) / 2
    assert float(found["NDCG@2"]) == pytest.approx((1 + 1 / math.log2(3)) / 2)


@pytest.mark.parametrize(("unit", "steps"), [("s", 1), ("ms", 1000), ("us", 10**6), ("ns", 10**9)])
def test_datetimes_keep_their_unit(unit, steps):
    """Datetimes of pandas, polars and pyarrow keep their unit; a datetime without a time zone is in UTC."""
    naive = pd.Series(pd.to_datetime(["2024-01-03", "2024-01-02", "2024-01-01"])).astype(f"datetime64[{unit}]")
    for times in (naive, naive.dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo")):
        frame = pd.DataFrame({"user": [0, 0, 0], "item": [0, 1, 2], "when": times})
        for made in (frame, pa.Table.from_pandas(frame), *([pl.from_pandas(frame)] if unit != "s" else [])):
            log = Log.from_frame(made, time="when")
            assert log.times.tolist() == [1704240000 * steps, 1704153600 * steps, 1704067200 * steps]
            assert log.time_unit == unit
            parts = log.split_by_time("2024-01-02", datetime.date(2024, 1, 3))
            assert [part.items.tolist() for part in parts] == [[2], [1], [0]]


@pytest.mark.parametrize("form", FORMS)
def test_ids_of_a_given_vocabulary(form):
    """Ids get the row numbers of a given vocabulary, and the error for an id that it lacks names the id."""
    train = read(COLUMNS)
    columns = {"user": ["al", "eve"], "item": [7, 7], "when": [0, 0], "stars": [0.0, 0.0]}
    test = Log.from_frame(FORMS[form](columns), item_ids=train.item_ids, value=None)
    assert (test.items.tolist(), test.item_ids) == ([1, 1], train.item_ids)
    lacks = r"column 'user' of frame holds 'eve' in row 1, which is not in user_ids \(1 of 2 rows\): leave such rows"
    with pytest.raises(ValueError, match=lacks):
        Log.from_frame(FORMS[form](columns), user_ids=train.user_ids)


MISSING = [
    ("user", None, r"column 'user' of frame holds a missing value: 1 of 4 rows, the first is row 2"),
    ("item", None, r"column 'item' of frame holds (a missing value: 1 of 4 rows, the first is row 2|.*rounds whole)"),
    ("when", None, r"column 'when' of frame: 1 of 4 are missing, the first in row 2"),
    ("stars", None, r"column 'stars' of frame (is missing|holds no number) in row 2"),
    ("stars", math.nan, r"column 'stars' of frame (is missing|holds no number) in row 2"),
]


@pytest.mark.parametrize("form", ["pandas", "polars", "pyarrow", "dict"])
@pytest.mark.parametrize(("name", "value", "message"), MISSING)
def test_a_missing_entry_is_named(form, name, value, message):
    """The error for a missing entry names its column and row, in every library."""
    column = [*COLUMNS[name][:2], value, COLUMNS[name][3]]
    with pytest.raises(ValueError, match=message):
        read(FORMS[form](COLUMNS | {name: column}))


def pair(user=(1,), item=(1,), **more):
    return {"user": [*user], "item": [*item], **more}


TWICE = pd.DataFrame([[1, 2, 3]], columns=["user", "item", "item"])
LARGE = pd.DataFrame(pair(pd.Series([5, 2**62 + 1], dtype="Int64"), [1, 2]))
NO_FRAME = (
    "frame must be a frame, got .*: pass a frame of pandas, polars or pyarrow, a dict of columns, a list of records"
)
BAD = [
    *((wrong, {}, TypeError, NO_FRAME) for wrong in ([[0, 1]], 7, torch.zeros(2, 2), np.zeros((2, 2)), None)),
    ("log.csv", {}, TypeError, r"frame must be a frame, got a path: Log\.from_file"),
    (pl.DataFrame(COLUMNS).lazy(), {}, TypeError, r"not computed yet, LazyFrame: pass frame.collect\(\)"),
    (TWICE, {}, ValueError, "frame has 2 columns named 'item': rename them"),
    (pair(item=[1, 2]), {}, ValueError, r"must be equally long, got \{'user': 1, 'item': 2\}"),
    (LARGE, {"user_ids": [5]}, ValueError, f"holds {2**62 + 1} in row 1, which is not in user_ids"),
]
BAD_COLUMNS = [
    (COLUMNS, {"item": "product"}, ValueError, r"frame has no column 'product'\. There are user, item"),
    (COLUMNS, {"user": 0}, TypeError, r"columns go by name, got 0 \(int\): pass '0'"),
    (pair(item="7"), {"item_ids": [7]}, TypeError, r"'item' of frame holds text \('7'\), item_ids hold whole numbers"),
    (pair(user=["a", 1], item=[1, 2]), {}, TypeError, "'user' of frame holds int and str: make them all one kind"),
    (pair(user=[0.5, 1.0], item=[1, 2]), {}, TypeError, r"column 'user' of frame holds floats such as 0\.5"),
    (pair(stars=["x"]), {"value": "stars"}, ValueError, r"'stars' of frame must hold numbers, got 'x' in row 0"),
    (pair(when=["noon"]), {"time": "when"}, TypeError, "column 'when' of frame must be numbers or datetimes"),
]


@pytest.mark.parametrize(("frame", "options", "error", "message"), BAD)
def test_bad_frames(frame, options, error, message):
    with pytest.raises(error, match=message):
        Log.from_frame(frame, **options)


@pytest.mark.parametrize("form", [dict, pd.DataFrame])
@pytest.mark.parametrize(("columns", "options", "error", "message"), BAD_COLUMNS)
def test_bad_columns(form, columns, options, error, message):
    """A dict of columns and a frame of pandas with the same fault raise the same error."""
    with pytest.raises(error, match=message):
        Log.from_frame(form(columns), **options)


def test_missing_libraries_are_named(monkeypatch):
    """Without pyarrow the error for a frame names the extra to install."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"needs pyarrow: pip install 'torchrecmetrics\[frames\]'"):
        Log.from_frame(COLUMNS)


def test_two_frames_with_ids_of_their_own_agree():
    """Ground truth of one frame and history of another are matched by id, with rows in any order."""
    history = Interactions.from_frame(pd.DataFrame({"user": ["b", "c", "a"], "item": ["x", "y", "z"]}))
    truth = pl.DataFrame({"user": ["a", "b"], "item": ["y", "z"]})
    test = Interactions.from_frame(truth, item_ids=["x", "y", "z"])
    found = trm.evaluate(["MRR"], trm.Embeddings(bias=torch.tensor([3, 1, 2])), target=test, exclude=history)
    assert found["MRR"] == pytest.approx((1 / 2 + 1 / 1) / 2)  # a: x, y without z; b: z, y without x


NUMBERS_OF_TEXT = [  # text of scores of x and y -> MRR@2 of y
    (["1", "2"], 1),
    (["2.5", "+1e3"], 1),
    ([" .5", " 5."], 1),
    (["-1", "-2"], 1 / 2),
    (["False", "True"], 1),
    (["TRUE", "false"], 1 / 2),
    (["2", "-inf"], 0),
    (["-Infinity", "2"], 1),
]


@pytest.mark.parametrize("form", [pd.DataFrame, pl.DataFrame, pa.table, "csv", "parquet"])
@pytest.mark.parametrize(("scores", "expected"), NUMBERS_OF_TEXT)
def test_numbers_of_text(form, scores, expected, tmp_path):
    """Scores of text are read alike from frames and files; a score of -inf is no candidate."""
    lists = columns = {"user": [1, 1], "item": ["x", "y"], "score": scores}
    if isinstance(form, str):
        lists = tmp_path / f"lists.{form}"
        getattr(pd.DataFrame(columns), f"to_{form}")(lists, index=False)
    else:
        lists = form(columns)
    assert trm.evaluate_lists("MRR@2", lists, target={1: ["y"]}, complete=True) == {"MRR@2": expected}


@pytest.mark.parametrize("flags", [[True, False], ["True", "False"]])
def test_flags_are_values_and_labels(flags, tmp_path):
    """A true value is relevant, as a label and as a gain; a rank of text is a rank."""
    frame = pd.DataFrame({"user": [1, 1], "item": ["x", "y"], "rank": ["2", "1"], "flag": flags})
    frame.to_csv(tmp_path / "x.csv", index=False)
    for table in (frame, tmp_path / "x.csv"):
        assert trm.evaluate_lists("MRR@2", table, label="flag") == {"MRR@2": 1 / 2}
        assert trm.evaluate_lists("MRR@2", {1: ["y", "x"]}, target=trm.Table(table, value="flag")) == {"MRR@2": 1 / 2}


@pytest.mark.parametrize("names", [["user", None], ["user", "item"]], ids=["unnamed level", "level like a column"])
def test_only_named_levels_that_are_no_columns_become_columns(names):
    """An index level without a name stays in the index, as does one whose name a column has."""
    levels = pd.MultiIndex.from_arrays([[1, 1], ["y", "x"]], names=names)
    frame = pd.DataFrame({"item": ["x", "y"], "score": [0.1, 0.9]}, index=levels)
    assert source_of_frame(frame, "frame").names == ["user", "item", "score"]
    assert trm.evaluate_lists("MRR@2", trm.Table(frame, score="score"), target={1: ["y"]}) == {"MRR@2": 1}


def test_columns_with_numbers_for_names():
    """Columns named 0, 1, 2 go by "0", "1", "2"; a number in their place is an error that says so."""
    frame = pd.DataFrame({0: [1, 1], 1: ["x", "y"], 2: [0.1, 0.9]})
    with pytest.raises(TypeError, match="pass '0'"):
        trm.Table(frame, user=0, item=1)
    table = trm.Table(frame, user="0", item="1", score="2")
    assert trm.evaluate_lists("MRR@2", table, target={1: ["y"]}) == {"MRR@2": 1}
