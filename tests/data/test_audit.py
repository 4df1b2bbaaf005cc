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


CLEAN = trm.audit(split_of())


def test_the_default_device_does_not_change_a_report():
    with torch.device("meta"):
        report = trm.audit(split_of())

    assert str(report) == str(CLEAN)


@pytest.mark.parametrize(
    "line",
    [
        "LogSplit: train 240, valid 60, test 60 events\n      events ",
        "360 events of all parts, times 1000 to 3059",
        "30 users of all parts occur; text, 'u0' to 'u9'",
        "40 items of all parts occur; text, 'i0' to 'i9'",
        "360 different pairs of user and item in all parts, density 0.3\n",  # 360 / (30 * 40)
        "users of test have the most popular item of train",
        "no_train           0 train parts are empty\n",
        "\n0 faults",
    ],
)
def test_a_report_states_the_size_of_the_split(line):
    assert line in str(CLEAN)


HITS = {
    "train": [(f"x{number}", "hit", 1300 + number) for number in range(50)],
    "test": [(f"u{number}", "hit", 3300 + number) for number in range(20)],
}
ONE_TIME = {part: {row: (*event[:2], 7) for row, event in enumerate(events)} for part, events in clean().items()}
LATE_TRAIN = {"train": {239: ("u29", "i24", 3060)}, "test": {29: ("u29", "i33", 9999), 59: ("u29", "i36", 9999)}}
PLANTED = [  # the fault, what is changed, how many there are, the example in the report, and the faults that it causes
    ("in_train", {"test": {4: ("u9", "i23", 3004)}}, 1, "user 'u9', item 'i23'", ()),
    ("in_valid", {"test": {4: ("u4", "i12", 3004)}}, 1, "user 'u4', item 'i12'", ()),
    # the last event of train is of u29, so only other users' test events are older
    ("before_train_ends", LATE_TRAIN, 58, "user 'u0', item 'i30' at 3000, train ends at 3060", ()),
    ("before_own_train", {"test": {5: ("u5", "i25", 1)}}, 1, "user 'u5', item 'i25' at 1", ("before_train_ends",)),
    ("equal_times", {"test": {29: ("u29", "i33", 1239)}}, 1, "user 'u29', item 'i33' at 1239", ()),
    ("unseen_users", {"test": [("nobody", "i1", 4000)]}, 1, "user 'nobody', item 'i1'", ()),
    ("unseen_items", {"test": [("u1", "new", 4000)]}, 1, "user 'u1', item 'new'", ()),
    ("repeated_events", {"train": [("u7", "i9", 1007)]}, 1, "user 'u7', item 'i9'", ()),
    ("empty_ids", {"train": {11: ("u11", "nan", 1011)}}, 1, "user 'u11', item 'nan'", ()),
    ("one_time", ONE_TIME, 360, "7", ("equal_times",)),
    ("time_units", {"test": {59: ("u29", "i36", 3_059_000)}}, 1, "3059000, median", ()),
    ("head_share", {"train": [(f"u{n % 30}", "i5", 1100 + n) for n in range(400)]}, 408, "item 'i5'", ("in_train",)),
    ("heaviest_user", {"train": [("u3", f"i{n % 40}", 1300 + n) for n in range(100)]}, 112, "user 'u3'", ("in_train",)),
    ("popular_item", HITS, 20, "item 'hit'", ()),
    ("no_test", {"test": None}, 1, "1 test part is empty", ()),
    ("no_train", {"train": None}, 1, "", ("unseen_users", "unseen_items")),
]


@pytest.mark.parametrize(("fault", "changes", "number", "example", "caused"), PLANTED, ids=[row[0] for row in PLANTED])
def test_a_planted_fault_is_found_with_its_number_and_an_example(fault, changes, number, example, caused):
    report = trm.audit(split_of(changes))

    assert set(report.faults) == {fault, *caused}
    assert (report[fault].number, f"FAULT {fault} " in str(report)) == (number, True)
    assert example in str(report[fault])


@pytest.mark.parametrize("time", [999, 1000, 1239, 1240])
def test_who_train_has_never_seen_has_no_time_there(time):
    """A user without train events has no fault about own times, whatever the time of the test event."""
    report = trm.audit(split_of({"test": [("nobody", "i1", time)]}))
    assert set(report.faults) - {"before_train_ends"} == {"unseen_users"}


def test_ids_without_events_are_a_fault_of_a_split_but_not_of_a_log():
    split = split_of(extra_users=["zz"], extra_items=["i400", "i401"])
    report, says = trm.audit(split), "items of the vocabulary have no event in any part"

    assert set(report.faults) == {"unused_users", "unused_items"}
    assert str(report["unused_items"]) == f"2 of 42 (4.8%) {says}: item 'i400'"
    assert trm.audit(split.train).faults == ()


def test_a_log_is_audited_without_parts():
    report = trm.audit(log_of([(1, 5, 1), (1, 5, 1), (2, 5, 1), (-1, 6, 2)]))
    repeated = "1 of 4 (25.0%) events repeat the user, item and time of another: user 1, item 5"
    popular = "2 of 3 (66.7%) users have the most popular item: item 5"

    assert set(report.faults) == {"repeated_events", "empty_ids", "head_share"}
    assert [str(report["repeated_events"]), str(report["popular_item"])] == [repeated, popular]
    assert "part" not in str(report)


@pytest.mark.parametrize(("items", "fault"), [([9, 8], False), ([9, 9], True)])
def test_an_item_of_more_than_half_of_the_users_is_popular(items, fault):
    train = Log.from_frame({"user": [0, 1, 2], "item": [9, 9, 8]})
    test = Log.from_frame({"user": [0, 1], "item": items})

    assert trm.audit(LogSplit(train, test, test))["popular_item"].wrong == fault


def test_a_report_of_one_event_has_findings_but_no_faults():
    report = trm.audit(log_of([(1, 5, 1)]))
    assert (len(report), len(list(report)), report.faults) == (14, 14, ())


def test_a_finding_that_is_misspelt_is_answered_with_the_name():
    with pytest.raises(KeyError, match="there is no finding 'popular_itm'; did you mean 'popular_item'"):
        CLEAN["popular_itm"]


@pytest.mark.parametrize(
    ("users", "user_ids", "says"),
    [([1, -1, 2], None, "whole numbers, -1 to 2"), ([*"bam"], [*"zbam"], "text, 'a' to 'm'")],
)
def test_users_that_occur_have_a_range_in_the_order_of_their_ids(users, user_ids, says):
    log = Log.from_frame({"user": users, "item": [*"xyx"]}, user_ids=user_ids)
    assert says in trm.audit(log)["users"].says


def test_users_that_are_held_out_have_no_order_and_are_not_unseen():
    report = trm.audit(split_of().train.split_users(2))

    assert "the most popular item of fit and train" in report["popular_item"].says
    assert "before_train_ends" not in report
    assert (report["unseen_users"].number, report["in_train"].number) == (0, 0)


def test_parts_of_interactions_are_audited_by_row_number_without_times():
    train = Interactions.from_columns([0, 0, 1, 2], [0, 1, 0, 2], num_users=3, num_items=4)
    test = Interactions.from_columns([0, 1], [1, 3], num_users=3, num_items=4)
    report = trm.audit(LogSplit(train, train.without(train), test))

    assert {"in_train", "unseen_items"} <= set(report.faults)
    assert report["in_train"].example == "user 0, item 1"
    assert (report["no_times"].number, report["no_times"].wrong, "equal_times" in report) == (3, False, False)


def timed(users, items, times, unit):
    return Log.from_frame({"user": users, "item": items, "t": np.array(times, f"M8[{unit}]")}, time="t")


TRAIN = timed(["a", "b"], ["x", "y"], [86400, 172800], "s")
TEST = timed(["b", "c"], ["y", "x"], [172800001, 172799999], "ms")


def test_parts_with_vocabularies_and_units_of_their_own_are_matched():
    report = trm.audit(LogSplit(TRAIN, TEST.take(torch.tensor([], dtype=torch.int64)), TEST))
    early = "user 'c', item 'x' at 1970-01-02T23:59:59.999, train ends at 1970-01-03T00:00:00"

    assert report["in_train"].example == "user 'b', item 'y'"
    assert report["before_train_ends"].example == early
    assert [report[fault].number for fault in ("before_train_ends", "equal_times", "unseen_users")] == [1, 0, 1]


NO_EVENTS = Log.from_frame({"user": [], "item": []})
UNTIMED, ROWS = Log.from_frame({"user": [1], "item": [1]}), Interactions.from_columns([0], [0])
TAKES = "audit takes logs and their splits, got .*: pass a Log, Interactions, or"


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        *((wrong, TypeError, TAKES) for wrong in ("log.csv", torch.zeros(2), [1], (1, 2, 3))),
        (LogSplit(UNTIMED, None, None), TypeError, "valid must be a Log or Interactions, got NoneType"),
        (LogSplit(TRAIN, ROWS, TEST), ValueError, "train has user_ids, valid has none: row 5 could mean two users"),
        (LogSplit(TRAIN, log_of([("b", "y", 3)]), TEST), TypeError, "times are numbers in one part and datetimes in"),
        (NO_EVENTS, ValueError, "there are no events to audit"),
    ],
)
def test_what_cannot_be_audited_is_refused(what, error, message):
    with pytest.raises(error, match=message):
        trm.audit(what)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_in_any_unit_are_no_fault(unit):
    """100 times a time in nanoseconds does not fit into 64 bits."""
    times = ["2020-01-01", "2021-01-01", "2020-06-01", "2022-01-01"]
    assert trm.audit(timed(list("aabb"), list("xyxy"), times, unit)).faults == ()


def of_times(times):
    """Return the finding about these times of 30 users with different items."""
    return trm.audit(log_of([(row % 30, row, time) for row, time in enumerate(times)]))["time_units"]


@pytest.mark.parametrize(
    "times",
    [range(1, 366), range(1, 10**6, 97), [1, 150, 300, 364], [3, 400, *range(5000, 2_600_000, 9000)]],
    ids=["days", "steps", "few days", "seconds from the start"],
)
def test_times_that_count_from_one_are_in_one_unit(times):
    assert not of_times(times).wrong


@pytest.mark.parametrize(("few", "most"), [(1000, 1), (1, 1000), (1, 10**9), (86_400_000, 1)])
def test_times_in_two_units_are_a_fault(few, most):
    """However far apart the units are, and whichever has more events: 10 of 90 are in the other one."""
    finding = of_times([(1_500_000 + 10 * n) * (few if n % 9 == 4 else most) for n in range(90)])
    assert (finding.number, finding.of, finding.wrong) == (10, 90, True)


@pytest.mark.parametrize(("heaviest", "fault"), [(12, False), (80, False), (100, True)])
def test_a_user_of_ten_is_heavy_with_more_than_half_of_the_events(heaviest, fault):
    """Half is 5 times the mean; each of the other nine has 10 events."""
    users = [user for user in range(10) for _ in range(heaviest if user == 4 else 10)]
    finding = trm.audit(Log.from_frame({"user": users, "item": list(range(len(users)))}))["heaviest_user"]

    assert (finding.number, finding.wrong) == (heaviest, fault)


def parts_with(test):
    """Return a split with these pairs in test."""
    train = Log.from_frame({"user": [0, 0, 1, 1, 2, 2], "item": [0, 1, 2, 3, 4, 5]})
    valid = Log.from_frame({"user": [0, 1], "item": [4, 0]})
    return LogSplit(train, valid, Log.from_frame({"user": [u for u, _ in test], "item": [i for _, i in test]}))


@pytest.mark.parametrize(
    ("test", "fault"),
    [([(0, 1), (1, 5)], "in_train"), ([(0, 4), (1, 5)], "in_valid"), ([(0, 2)] * 2, "repeated_events")],
)
def test_a_leaked_pair_is_one_fault_and_no_repeated_event(test, fault):
    report = trm.audit(parts_with(test))

    assert set(report.faults) - {"head_share", "unused_items", "unused_users", "popular_item"} == {fault}
    assert report[fault].number == 1


def test_events_of_train_that_repeat_in_validation_are_counted_beside_those_of_test():
    train, _, test = parts_with([(0, 2), (0, 2)])
    valid = Log.from_frame({"user": [0, 1], "item": [0, 5]})  # the first is in train

    assert trm.audit(LogSplit(train, valid, test))["repeated_events"].number == 1 + 1


@pytest.mark.parametrize(
    ("users", "items", "number"), [(["al", "al ", "bo", "cy "], ["x", "y", " x", "z"], 2), (["al "], ["x"], 0)]
)
def test_an_id_with_blanks_beside_the_same_without_is_a_fault(users, items, number):
    """Blanks alone, as of 'cy ', are none."""
    finding = trm.audit(Log.from_frame({"user": users, "item": items}))["blank_ids"]
    assert (finding.number, finding.of, finding.wrong) == (number, len(users), number > 0)
