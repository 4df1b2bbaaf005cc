"""Times of logs: numbers, dates and text are put in order and cut without rounding, in any unit and time zone."""

import math
from datetime import date, datetime, timedelta, timezone

import pytest
from torch import tensor

from torchrecmetrics import Log, audit

np = pytest.importorskip("numpy")
pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")


def log_at(times):
    """Return a log in which one user has the items 0, 1, 2, ... at these times."""
    return Log.from_frame({"user": [0] * len(times), "item": range(len(times)), "time": times})


def in_order(times):
    """Return the items 0, 1, 2 of one user in the order that `leave_last_out` gives them by time."""
    return [part.items.tolist()[0] for part in log_at(times).leave_last_out()]


def parts(times, valid_from, test_from):
    """Return the items of train, valid and test."""
    return [part.items.tolist() for part in log_at(times).split_by_time(valid_from, test_from)]


SECONDS = [1112486027, 1420070400, 1420070401]  # the second is 2015-01-01


@pytest.mark.parametrize(
    "bound",
    ["2015-01-01", "2015-01-01T02:00+02:00", date(2015, 1, 1), datetime(2015, 1, 1), np.datetime64("2015-01-01")],
)
@pytest.mark.parametrize("times", [SECONDS, list(map(float, SECONDS))], ids=["int", "float"])
def test_the_message_about_a_date_beside_seconds_holds_a_bound_that_cuts_them(times, bound):
    with pytest.raises(TypeError, match=r"test_from is .*, but times are numbers: if they are .*") as error:
        log_at(times).split_by_time(test_from=bound)
    shown = str(error.value).partition("pass test_from=")[2]

    assert log_at(times).split_by_time(test_from=eval(shown, {"pandas": pd})).test.items.tolist() == [1, 2]


def test_the_message_about_a_date_beside_seconds_names_the_first_bound():
    with pytest.raises(TypeError, match=r"valid_from is .*, but times are numbers: if they are .*pass valid_from="):
        log_at(SECONDS).split_by_time("2015-01-01", "2015-01-01")


def test_nanoseconds_are_not_rounded():
    """They do not fit into float32, nor all of them into float64."""
    base = 1_700_000_000_000_000_000

    assert parts([base, base + 1, base + 2], base + 1, base + 2) == [[0], [1], [2]]


UNIX = [*range(1_600_000_000, 1_600_001_000)]


@pytest.mark.parametrize("times", [UNIX, [float(time) for time in UNIX], tensor(UNIX)], ids=["int", "float", "tensor"])
@pytest.mark.parametrize("bounds", [(1_600_000_800, 1_600_000_900), (1_600_000_799.5, 1_600_000_900.0)], ids=str)
def test_seconds_are_not_rounded(times, bounds):
    assert [len(part) for part in parts(times, *bounds)] == [800, 100, 100]


NEW_YEAR = datetime(2024, 1, 1)
IN_UTC, EAST_1, EAST_2 = (NEW_YEAR.replace(tzinfo=timezone(timedelta(hours=hours))) for hours in range(3))
ZONED = ["2024-01-01T01:00:00Z", "2024-01-01T01:30:00+02:00", "2023-12-31T23:00Z"]
FAR = ["9999-12-31", "2024-01-01", "0001-01-01T00:00:00.123456"]
TWO_DAYS = np.array(["2024-01-01", "2024-01-02", "2024-01-02"], dtype="M8[ns]")
STAMPS = [pd.Timestamp("2024-01-01") + pd.Timedelta(n, unit="ns") for n in (2, 1, 0)]


@pytest.mark.parametrize(
    ("times", "expected", "bounds"),
    [
        (tensor([16777215.0, 16777213.0, 16777214.0]), [1, 2, 0], (16777214, 16777215)),
        (["1337922397", "1072575677", "1042233828"], [2, 1, 0], ("1072575677", "1337922397")),
        (["1337922397", "1072575677", "1042233828"], [2, 1, 0], (1072575677, 1337922396.5)),
        (["1.5", "-2e1", ".25"], [1, 2, 0], ("0.25", 1.5)),
        (["20240301", "20231231", "20240101"], [1, 2, 0], (20240101, "20240201")),
        ([2**53 + 2, 2**53 + 1, 2**53], [2, 1, 0], (2**53 + 1, 2**53 + 2)),
        ([datetime.max, NEW_YEAR, datetime.min], [2, 1, 0], (NEW_YEAR, "2024-01-02")),
        (FAR, [2, 1, 0], ("2024-01-01", "2024-01-01T00:00:00.000001")),
        (ZONED, [2, 1, 0], ("2023-12-31T23:30Z", NEW_YEAR)),
        ([IN_UTC, EAST_1, EAST_2], [2, 1, 0], (EAST_1, NEW_YEAR)),
        (pd.to_datetime(["2024-03-01", "2024-02-01", "2024-01-02"]), [2, 1, 0], ("2024-02-01", "2024-03-01")),
        (pd.Series(STAMPS, dtype=object), [2, 1, 0], (STAMPS[1], STAMPS[0])),  # nanoseconds count
    ],
)
def test_times_are_ordered_and_cut_whatever_they_are_written_in(times, expected, bounds):
    assert in_order(times) == expected
    assert parts(times, *bounds) == [[item] for item in expected]


@pytest.mark.parametrize("unit", ["D", "s", "us", "ns"])
def test_datetimes_of_numpy_keep_their_unit(unit):
    """A bound of a finer unit counts from the next step on."""
    times = np.array(["2024-01-03", "2024-01-02", "2024-01-01"], dtype=f"M8[{unit}]")

    assert in_order(times) == [2, 1, 0]
    assert parts(times, np.datetime64("2024-01-01T00:00:00.000000001"), date(2024, 1, 3)) == [[2], [1], [0]]
    assert parts([*times], times[1], times[0]) == [[2], [1], [0]]


@pytest.mark.parametrize("unit", ["ns", "s"])
@pytest.mark.parametrize(
    "form",
    [pd.Series, pd.DatetimeIndex, lambda column: column.astype(object), list],
    ids=["column", "index", "objects", "list"],
)
def test_times_of_pandas_are_cut_at_bounds_of_another_time_zone(form, unit):
    naive = pd.to_datetime(["2024-01-03", "2024-01-02", "2024-01-01"]).as_unit(unit)
    times = form(pd.Series(naive.tz_localize("Europe/Paris")))
    bounds = pd.Timestamp("2024-01-02", tz="Europe/Paris"), pd.Timestamp("2024-01-03 08:00", tz="Asia/Tokyo")

    assert in_order(times) == [2, 1, 0]
    assert parts(times, *bounds) == [[2], [1], [0]]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: in_order(["7", "2024-01-01", "9"]), TypeError, r"must be numbers or datetimes.* '[79]'"),
        (lambda: in_order(["2024-01-01", "2024-01-02Z", "2024-01-03"]), TypeError, "a time zone in all rows"),
        (lambda: in_order([NEW_YEAR, IN_UTC, NEW_YEAR]), ValueError, "holds datetimes with and without a time zone"),
        (lambda: in_order([NEW_YEAR, NEW_YEAR.date(), NEW_YEAR]), TypeError, "holds date and datetime: make them all"),
        (lambda: in_order(["1337922397123456788.5", "1"]), ValueError, r"float64 rounds whole numbers from 2\^53 on"),
        (lambda: in_order([2**63, 5, 6]), ValueError, r"must be below 2\^63: pass them in a coarser unit"),
        (lambda: in_order(tensor([16777216.0, 1, 2])), ValueError, r"float32 rounds whole numbers from 2\^24 on"),
        (lambda: in_order([1.0, math.inf, 2]), ValueError, "holds inf"),
        (lambda: in_order(np.ma.array([2, 9, 1], mask=[0, 1, 0])), ValueError, "1 of 3 are missing, .* row 1"),
        (lambda: parts(["2024-01-01"], pd.NaT, 3), ValueError, "valid_from: 1 of 1 are missing"),
        (lambda: parts(TWO_DAYS, "2024-01-02", "9999-12-31"), ValueError, "for test, from test_from=9999-12-31 on"),
        (lambda: parts([NEW_YEAR] * 3, NEW_YEAR, 3), TypeError, "test_from is 3, but times are datetimes"),
    ],
)
def test_bad_times_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("column", [[1j], tensor([1j]), np.array([1j])], ids=str)
@pytest.mark.parametrize("call", [log_at, lambda column: parts([0, 1, 2], column[0], 2)], ids=["times", "bound"])
def test_complex_times_are_refused(call, column):
    with pytest.raises((TypeError, ValueError), match=r"complex|1j|Tensor"):
        call(column)


MORNING = 1_600_000_000
WRONG = {  # times, the first of another unit or missing
    "seconds among milliseconds": ([MORNING * 1000, MORNING * 1000 + 1, MORNING], MORNING),
    "milliseconds among seconds": ([MORNING, MORNING * 1000, MORNING + 1], MORNING * 1000),
    "-1": ([MORNING, MORNING + 1, -1], -1),
    "-1 in text": ([str(MORNING), str(MORNING + 1), "-1"], -1),
    "-1 beside days": ([19_000, 19_001, -1], -1),
    "-1 beside two units": ([MORNING * 1000, MORNING * 1000 + 1, -1, MORNING], -1),
    "dates of two units": (np.array([MORNING * 1000, MORNING * 1000 + 1, MORNING]).astype("M8[ms]"), "1970-01-19"),
    "missing dates as numbers": (np.array(["2024-01-02", "2024-01-03", "NaT"], "M8[ns]").astype(np.int64), -(2**63)),
}


@pytest.mark.parametrize(("times", "wrong"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize(
    "split",
    [lambda log, _: log.leave_last_out(), lambda log, times: log.split_by_time(times[0], times[0])],
    ids=["leave_last_out", "split_by_time"],
)
def test_times_in_two_units_and_missing_times_are_no_order(split, times, wrong):
    with pytest.raises(ValueError, match=rf"^[12] of {len(times)} times are .*, such as {wrong}.*others are like"):
        split(log_at(times), times)


def test_a_random_split_reads_no_times():
    assert len(log_at([MORNING, MORNING + 1, -1]).split_random((1, 1, 1)).train) == 1


RIGHT = {
    "negative": [-3, -2, -1],
    "days from a release": [-1, 0, 1, 30],
    "days from 1": [1, 150, 300, 364],
    "-1 beside small numbers": [-1, 3, 100],
    "before 1970": np.array(["1965-01-01", "1971-01-01", "2024-01-01"], "M8[s]"),
    "from 0": [0, 1_500_000, 3_000_000],
}


@pytest.mark.parametrize("times", RIGHT.values(), ids=RIGHT)
def test_small_and_negative_times_and_those_of_one_unit_are_an_order(times):
    log = log_at(times)

    assert "time_units" not in audit(log).faults
    assert len(log.leave_last_out().test) == 1
