"""`audit` finds each planted fault, and reports no fault in clean data."""

import pytest
import torch

import torchrecmetrics as trm
from torchrecmetrics import Interactions, Log
from torchrecmetrics.data.log import LogSplit

np = pytest.importorskip("numpy")

USERS, ITEMS = 30, 40


def clean():
    """Return parts without faults: all users are in each, train ends before valid and test begin, pairs differ."""
    parts = {}
    for part, start, rounds in (("train", 1000, range(8)), ("valid", 2000, [8, 9]), ("test", 3000, [10, 11])):
        pairs = [(f"u{user}", f"i{(user * 7 + number * 3) % ITEMS}") for number in rounds for user in range(USERS)]
        parts[part] = [(*pair, start + row) for row, pair in enumerate(pairs)]
    return parts


def log_of(events, **vocabularies):
    columns = {name: [event[at] for event in events] for at, name in enumerate(("user", "item", "time"))}
    return Log.from_frame(columns, time="time", **vocabularies)


def split_of(changes=None, extra_users=(), extra_items=()):
    """Return clean parts as a split with one vocabulary; rows of a part are replaced, added, or all left out (None)."""
    parts = clean()
    for part, change in (changes or {}).items():
        if isinstance(change, dict):
            parts[part] = [change.get(row, event) for row, event in enumerate(parts[part])]
        else:
            parts[part] = [] if change is None else parts[part] + change
    events = [event for part in parts.values() for event in part]
    users = sorted({user for user, _, _ in events} | set(extra_users))
    items = sorted({item for _, item, _ in events} | set(extra_items))
    return LogSplit(*(log_of(part, user_ids=users, item_ids=items) for part in parts.values()))


def test_a_clean_split_has_no_faults():
    """The report of a clean split has no faults and states the split's size, on any default device."""
    report = trm.audit(split_of())
    assert report.faults == ()
    assert str(report).endswith("\n0 faults")
    assert str(report).startswith("LogSplit: train 240, valid 60, test 60 events\n      events ")
    assert (report["users"].number, report["items"].number, report["pairs"].number) == (30, 40, 360)
    for line in (
        "360 events of all parts, times 1000 to 3059",
        "40 items of all parts occur; text, 'i0' to 'i9'",
        "density 0.3",
        "events of all parts are with the most popular item: ",
        "users of test have the most popular item of train",
        "no_train           0 train parts are empty\n",
    ):
        assert line in str(report)
    with torch.device("meta"):
        assert str(trm.audit(split_of())) == str(report)


HITS = {
    "train": [(f"x{number}", "hit", 1300 + number) for number in range(50)],
    "test": [(f"u{number}", "hit", 3300 + number) for number in range(20)],
}
ONE_TIME = {part: {row: (*event[:2], 7) for row, event in enumerate(events)} for part, events in clean().items()}
LATE_TRAIN = {"train": {239: ("u29", "i24", 3060)}, "test": {29: ("u29", "i33", 9999), 59: ("u29", "i36", 9999)}}
PLANTED = {  # the fault: what is changed, how many there are, the example in the report, and the faults that it causes
    "in_train": ({"test": {4: ("u9", "i23", 3004)}}, 1, "user 'u9', item 'i23'", ()),
    "in_valid": ({"test": {4: ("u4", "i12", 3004)}}, 1, "user 'u4', item 'i12'", ()),
    # the last event of train is of u29, so only other users' test events are older
    "before_train_ends": (LATE_TRAIN, 58, "user 'u0', item 'i30' at 3000, train ends at 3060", ()),
    "before_own_train": ({"test": {5: ("u5", "i25", 1)}}, 1, "user 'u5', item 'i25' at 1", ("before_train_ends",)),
    "equal_times": ({"test": {29: ("u29", "i33", 1239)}}, 1, "user 'u29', item 'i33' at 1239", ()),
    "unseen_users": ({"test": [("nobody", "i1", 4000)]}, 1, "user 'nobody', item 'i1'", ()),
    "unseen_items": ({"test": [("u1", "new", 4000)]}, 1, "user 'u1', item 'new'", ()),
    "repeated_events": ({"train": [("u7", "i9", 1007)]}, 1, "user 'u7', item 'i9'", ()),
    "empty_ids": ({"train": {11: ("u11", "nan", 1011)}}, 1, "user 'u11', item 'nan'", ()),
    "one_time": (ONE_TIME, 360, "7", ("equal_times",)),
    "time_units": ({"test": {59: ("u29", "i36", 3_059_000)}}, 1, "3059000, median", ()),
    "head_share": ({"train": [(f"u{n % 30}", "i5", 1100 + n) for n in range(400)]}, 408, "item 'i5'", ("in_train",)),
    "heaviest_user": ({"train": [("u3", f"i{n % 40}", 1300 + n) for n in range(100)]}, 112, "user 'u3'", ("in_train",)),
    "popular_item": (HITS, 20, "item 'hit'", ()),
    "no_test": ({"test": None}, 1, "1 test part is empty", ()),
    "no_train": ({"train": None}, 1, "", ("unseen_users", "unseen_items")),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_faults_are_found(fault):
    """Each planted fault is found with its number and an example, and the only other faults are those it causes."""
    changes, number, example, more = PLANTED[fault]
    report = trm.audit(split_of(changes))
    assert set(report.faults) == {fault, *more}
    assert report[fault].number == number
    assert example in str(report[fault])
    assert f"FAULT {fault} " in str(report)


@pytest.mark.parametrize("time", [999, 1000, 1239, 1240])
def test_who_train_has_never_seen_has_no_time_there(time):
    """A user without train events has no fault about own times, whatever the time of the test event."""
    report = trm.audit(split_of({"test": [("nobody", "i1", time)]}))
    assert set(report.faults) - {"before_train_ends"} == {"unseen_users"}


def test_ids_without_events_are_counted():
    """Ids without events are a fault in a split, where nobody can have them, but not in a log, which may be a part."""
    split = split_of(extra_users=["zz"], extra_items=["i400", "i401"])
    report = trm.audit(split)
    assert set(report.faults) == {"unused_users", "unused_items"}
    says = "items of the vocabulary have no event in any part"
    assert str(report["unused_items"]) == f"2 of 42 (4.8%) {says}: item 'i400'"
    assert trm.audit(split.train).faults == ()


def test_a_log_is_looked_at_alone():
    """A log, which has no parts that could leak, is audited alone; the number -1 is a missing id."""
    report = trm.audit(log_of([(1, 5, 1), (1, 5, 1), (2, 5, 1), (-1, 6, 2)]))
    repeated = "1 of 4 (25.0%) events repeat the user, item and time of another: user 1, item 5"

    assert set(report.faults) == {"repeated_events", "empty_ids", "head_share"}
    assert str(report["repeated_events"]) == repeated
    assert str(report["popular_item"]) == "2 of 3 (66.7%) users have the most popular item: item 5"
    assert "part" not in str(report)
    assert len(report) == len(list(report)) == 14


def test_a_misspelt_finding_is_told_the_nearest():
    with pytest.raises(KeyError, match="there is no finding 'popular_itm'; did you mean 'popular_item'"):
        trm.audit(log_of([(1, 5, 1)]))["popular_itm"]


@pytest.mark.parametrize(("users", "says"), [([1, -1, 2], "whole numbers, -1 to 2"), ([*"bam"], "text, 'a' to 'm'")])
def test_ids_have_a_range(users, says):
    """In the order of the ids, not of the rows or of the vocabulary, which may hold more."""
    log = Log.from_frame({"user": users, "item": [*"xyx"]}, user_ids=["z", *users] if "a" in users else None)

    assert says in trm.audit(log)["users"].says


def test_users_that_are_held_out():
    """A split by users has no order of time, and no held-out user or pair is unseen or leaked."""
    report = trm.audit(split_of().train.split_users(2))
    assert "the most popular item of fit and train" in report["popular_item"].says
    assert "before_train_ends" not in report
    assert (report["unseen_users"].number, report["in_train"].number) == (0, 0)


def test_splits_of_interactions_are_looked_at_without_times():
    """Splits of interactions are audited by row number if they have no vocabularies, without findings about times."""
    train = Interactions.from_columns([0, 0, 1, 2], [0, 1, 0, 2], num_users=3, num_items=4)
    test = Interactions.from_columns([0, 1], [1, 3], num_users=3, num_items=4)
    empty = Interactions.from_columns([], [], num_users=3, num_items=4)
    report = trm.audit(LogSplit(train, empty, test))
    assert {"in_train", "unseen_items"} <= set(report.faults)
    assert report["in_train"].example == "user 0, item 1"
    assert not {"before_train_ends", "equal_times", "one_time"} & set(report)
    log = Log.from_frame({"user": list("aaabbb"), "item": list("xyzxyz")})
    report = trm.audit(log.leave_last_out())
    assert report["no_times"].number == 3
    assert "no_times" not in report.faults


def timed(users, items, times, unit):
    return Log.from_frame({"user": users, "item": items, "t": np.array(times, f"M8[{unit}]")}, time="t")


def test_parts_with_vocabularies_of_their_own_are_matched():
    """Parts with different vocabularies and units of time, as two files have them, are matched by id and by time."""
    train = timed(["a", "b"], ["x", "y"], [86400, 172800], "s")
    test = timed(["b", "c"], ["y", "x"], [172800001, 172799999], "ms")
    report = trm.audit(LogSplit(train, test.take(torch.tensor([], dtype=torch.int64)), test))
    assert report["in_train"].example == "user 'b', item 'y'"
    example = "user 'c', item 'x' at 1970-01-02T23:59:59.999, train ends at 1970-01-03T00:00:00"
    assert report["before_train_ends"].example == example
    assert (report["before_train_ends"].number, report["equal_times"].number) == (1, 0)
    assert report["unseen_users"].number == 1
    with pytest.raises(ValueError, match="train has user_ids, valid has none: row 5 could mean two users"):
        trm.audit(LogSplit(train, Interactions.from_columns([0], [0]), test))
    with pytest.raises(TypeError, match="times are numbers in one part and datetimes in another"):
        trm.audit(LogSplit(train, log_of([("b", "y", 3)]), test))


@pytest.mark.parametrize("wrong", ["log.csv", torch.zeros(2), [1], (1, 2, 3)], ids=str)
def test_what_cannot_be_audited_is_refused(wrong):
    with pytest.raises(TypeError, match=r"audit takes logs and their splits, got .*: pass a Log, Interactions, or"):
        trm.audit(wrong)


def test_parts_that_cannot_be_audited_are_refused():
    with pytest.raises(TypeError, match="valid must be a Log or Interactions, got NoneType"):
        trm.audit(LogSplit(Log.from_frame({"user": [1], "item": [1]}), None, None))
    with pytest.raises(ValueError, match="there are no events to audit"):
        trm.audit(Log.from_frame({"user": [], "item": []}))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_in_any_unit_are_no_fault(unit):
    """Datetimes in any unit are no fault, though 100 times a time in nanoseconds does not fit into 64 bits."""
    times = ["2020-01-01", "2021-01-01", "2020-06-01", "2022-01-01"]
    assert trm.audit(timed(list("aabb"), list("xyxy"), times, unit)).faults == ()


def of_times(times):
    """Return a log of 30 users with events of different items at these times."""
    return log_of([(row % 30, row, time) for row, time in enumerate(times)])


@pytest.mark.parametrize(
    "times",
    [range(1, 366), range(1, 10**6, 97), [1, 150, 300, 364], [3, 400, *range(5000, 2_600_000, 9000)]],
    ids=["days", "steps", "few days", "seconds from the start"],
)
def test_times_that_count_from_one_are_in_one_unit(times):
    """Times that count from one are in one unit, though the first are less than a hundredth of most."""
    assert "time_units" not in trm.audit(of_times(times)).faults


@pytest.mark.parametrize(("few", "most"), [(1000, 1), (1, 1000), (1, 10**9), (86_400_000, 1)])
def test_times_in_two_units_are_a_fault(few, most):
    """Times in two units are a fault, however far apart the units are and whichever has more events."""
    report = trm.audit(of_times([(1_500_000 + 10 * n) * (few if n % 9 == 4 else most) for n in range(90)]))
    assert report["time_units"][:2] == (10, 90)
    assert "time_units" in report.faults


@pytest.mark.parametrize(("heaviest", "fault"), [(12, False), (80, False), (100, True)])
def test_a_user_of_few_is_heavy_beside_the_others(heaviest, fault):
    """One of ten users is a fault only with more than half of the events, which is 5 times the mean."""
    users = [user for user in range(10) for _ in range(heaviest if user == 4 else 10)]
    report = trm.audit(Log.from_frame({"user": users, "item": list(range(len(users)))}))
    assert ("heaviest_user" in report.faults) == fault
    assert report["heaviest_user"].number == heaviest


@pytest.mark.parametrize(
    ("pairs", "fault"),
    [([(0, 1), (1, 5)], "in_train"), ([(0, 4), (1, 5)], "in_valid"), ([(0, 2)] * 2, "repeated_events")],
)
def test_a_leaked_pair_is_one_fault(pairs, fault):
    """A test pair that is in train or validation is one fault, and not a repeated event as well."""
    train = Log.from_frame({"user": [0, 0, 1, 1, 2, 2], "item": [0, 1, 2, 3, 4, 5]})
    valid = Log.from_frame({"user": [0, 1], "item": [4, 0]})
    test = Log.from_frame({"user": [user for user, _ in pairs], "item": [item for _, item in pairs]})
    report = trm.audit(LogSplit(train, valid, test))
    assert set(report.faults) - {"head_share", "unused_items", "unused_users", "popular_item"} == {fault}
    assert report[fault].number == 1


def test_pairs_that_repeat_in_two_parts_are_counted_once():
    """One pair of train is in validation, one of test twice."""
    train = Log.from_frame({"user": [0, 0, 1, 1, 2, 2], "item": [0, 1, 2, 3, 4, 5]})
    valid = Log.from_frame({"user": [0, 1], "item": [0, 5]})
    test = Log.from_frame({"user": [0, 0], "item": [2, 2]})

    assert trm.audit(LogSplit(train, valid, test))["repeated_events"].number == 1 + 1


def test_blanks_around_ids():
    """An id with blanks around it beside the same id without is a fault; blanks alone are none."""
    events = {"user": ["al", "al ", "bo", "cy "], "item": ["x", "y", " x", "z"]}
    assert trm.audit(Log.from_frame(events))["blank_ids"][:2] == (2, 4)
    assert "blank_ids" in trm.audit(Log.from_frame(events)).faults
    assert "blank_ids" not in trm.audit(Log.from_frame({"user": ["al "], "item": ["x"]})).faults
