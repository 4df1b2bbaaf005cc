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
    return Log.from_frame({"user": [0] * len(times), "item": range(len(times)), "time": times}, time="time")


def in_order(times):
    """Return the items 0, 1, 2 of one user in the order that `leave_last_out` gives them by time."""
    return [part.items.tolist()[0] for part in log_at(times).leave_last_out()]


def parts(times, valid_from, test_from):
    return [part.items.tolist() for part in log_at(times).split_by_time(valid_from, test_from)]


SECONDS = [1112486027, 1420070400, 1420070401]


@pytest.mark.parametrize(
    "bound",
    ["2015-01-01", "2015-01-01T02:00+02:00", date(2015, 1, 1), datetime(2015, 1, 1), np.datetime64("2015-01-01")],
)
def test_dates_beside_seconds_come_with_the_line_that_converts_them(bound):
    """The line of the error cuts a log of seconds since 1970 at the date."""
    for times in (SECONDS, [float(time) for time in SECONDS]):
        log = log_at(times)
        for name, more in (("test_from", {}), ("valid_from", {"test_from": bound})):
            with pytest.raises(
                TypeError, match=rf"{name} is .*, but times are numbers: if they are .*pass {name}="
            ) as error:
                log.split_by_time(**{name: bound, **more})
            line = str(error.value).partition(f"pass {name}=")[2]
            assert log.split_by_time(test_from=eval(line, {"pandas": pd})).test.items.tolist() == [1, 2]


def test_large_whole_times_are_not_rounded():
    """Large whole times are exact: nanoseconds do not fit into float32, nor all of them into float64."""
    base = 1_700_000_000_000_000_000
    assert parts([base, base + 1, base + 2], base + 1, base + 2) == [[0], [1], [2]]
    unix = list(range(1_600_000_000, 1_600_001_000))
    for times in (unix, [float(t) for t in unix], tensor(unix)):
        for bounds in ((1_600_000_800, 1_600_000_900), (1_600_000_799.5, 1_600_000_900.0)):
            assert [len(part) for part in parts(times, *bounds)] == [800, 100, 100]


NEW_YEAR = datetime(2024, 1, 1)
IN_UTC, EAST_1, EAST_2 = (NEW_YEAR.replace(tzinfo=timezone(timedelta(hours=hours))) for hours in range(3))
ZONED = ["2024-01-01T01:00:00Z", "2024-01-01T01:30:00+02:00", "2023-12-31T23:00Z"]
FAR = ["9999-12-31", "2024-01-01", "0001-01-01T00:00:00.123456"]
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
def test_times_are_ordered_whatever_they_are_written_in(times, expected, bounds):
    """Times are ordered as numbers, dates or text, beyond float64, int64 and nanoseconds, and across time zones."""
    assert in_order(times) == expected
    assert parts(times, *bounds) == [[item] for item in expected]


@pytest.mark.parametrize("unit", ["D", "s", "us", "ns"])
def test_datetimes_of_numpy_keep_their_unit(unit):
    """A bound of a finer unit counts from the next step on; a bound beyond the unit's range is after all times."""
    times = np.array(["2024-01-03", "2024-01-02", "2024-01-01"], dtype=f"M8[{unit}]")
    assert in_order(times) == [2, 1, 0]
    assert parts(times, np.datetime64("2024-01-01T00:00:00.000000001"), date(2024, 1, 3)) == [[2], [1], [0]]
    assert parts([*times], times[1], times[0]) == [[2], [1], [0]]
    with pytest.raises(ValueError, match=r"for test, from test_from=9999-12-31 on; .* from 2024-01-01"):
        parts(times, "2024-01-02", "9999-12-31")


@pytest.mark.parametrize("zone", ["Europe/Paris", "America/New_York", "UTC"])
@pytest.mark.parametrize("unit", ["ns", "us", "s"])
def test_time_zones_of_pandas_are_brought_to_utc(zone, unit):
    """Times with a zone work as a column, an index or objects, without a warning; a bound may be in another zone."""
    naive = pd.to_datetime(["2024-01-03", "2024-01-02", "2024-01-01"]).as_unit(unit)
    column = pd.Series(naive.tz_localize(zone))
    bounds = pd.Timestamp("2024-01-02", tz=zone), pd.Timestamp("2024-01-03", tz=zone).tz_convert("Asia/Tokyo")
    for times in (column, pd.DatetimeIndex(column), column.astype(object), list(column)):
        assert in_order(times) == [2, 1, 0]
        assert parts(times, *bounds) == [[2], [1], [0]]


BAD = [
    (lambda: in_order(["7", "2024-01-01", "9"]), TypeError, r"must be numbers or datetimes.* '[79]'"),
    (lambda: in_order(["2024-01-01", "2024-01-02Z", "2024-01-03"]), TypeError, "a time zone in all rows or in none"),
    (lambda: in_order([NEW_YEAR, IN_UTC, NEW_YEAR]), ValueError, "holds datetimes with and without a time zone"),
    (lambda: in_order([NEW_YEAR, NEW_YEAR.date(), NEW_YEAR]), TypeError, "holds date and datetime: make them all one"),
    (lambda: in_order(["1337922397123456788.5", "1"]), ValueError, r"float64 rounds whole numbers from 2\^53 on"),
    (lambda: in_order([2**63, 5, 6]), ValueError, r"must be below 2\^63: pass them in a coarser unit"),
    (lambda: in_order(tensor([16777216.0, 1, 2])), ValueError, r"float32 rounds whole numbers from 2\^24 on"),
    (lambda: in_order([1.0, math.inf, 2]), ValueError, "holds inf"),
    (
        lambda: in_order(np.ma.array([2, 9, 1], mask=[0, 1, 0])),
        ValueError,
        "'time' of frame: 1 of 3 are missing, the first in row 1",
    ),
    (lambda: parts(["2024-01-01"], pd.NaT, 3), ValueError, "valid_from: 1 of 1 are missing"),
    (lambda: parts([NEW_YEAR] * 3, NEW_YEAR, 3), TypeError, "test_from is 3, but times are datetimes"),
]


@pytest.mark.parametrize(("make", "error", "message"), BAD)
def test_bad_times(make, error, message):
    """The error says which times were given and what is accepted."""
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("column", [[1j], tensor([1j]), np.array([1j])], ids=str)
def test_complex_times_are_refused(column):
    for function in (lambda: log_at(column), lambda: parts([0, 1, 2], column[0], 2)):
        with pytest.raises((TypeError, ValueError), match=r"complex|1j|Tensor"):
            function()


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
def test_times_in_two_units_and_missing_times_are_no_order(times, wrong):
    """A fault of times that `audit` finds, two units or -1 beside times, is an error of splits in order of time."""
    log = log_at(times)
    assert "time_units" in audit(log).faults
    for split in (log.leave_last_out, lambda: log.split_by_time(times[0], times[0])):
        with pytest.raises(ValueError, match=rf"^[12] of {len(times)} times are .*, such as {wrong}.*others are like"):
            split()
    assert len(log.split_random((1, 1, 1)).train) == len(times) // 3  # which reads no times


RIGHT = {
    "negative": [-3, -2, -1],
    "days from a release": [-1, 0, 1, 30],
    "days from 1": [1, 150, 300, 364],
    "-1 beside small numbers": [-1, 3, 100],
    "before 1970": np.array(["1965-01-01", "1971-01-01", "2024-01-01"], "M8[s]"),
    "from 0": [0, 1_500_000, 3_000_000],
}


@pytest.mark.parametrize("times", RIGHT.values(), ids=RIGHT)
def test_times_that_may_be_right_are_split(times):
    """Small and negative numbers, and times of one unit, are not refused."""
    log = log_at(times)
    assert "time_units" not in audit(log).faults
    log.leave_last_out()
