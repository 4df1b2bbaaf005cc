"""`audit` finds each planted fault, and reports no fault in clean data."""

from collections import Counter
from pathlib import Path

import pytest
import torch

import torchrecmetrics as trm
from torchrecmetrics import Interactions, Log
from torchrecmetrics.data.log import LogSplit

USERS, ITEMS = 30, 40


def clean():
    """Return parts without faults: all users are in each, train ends before valid and test begin, pairs differ."""
    parts = {}
    for part, (start, places) in {
        "train": (1000, range(8)),
        "valid": (2000, range(8, 10)),
        "test": (3000, [10, 11]),
    }.items():
        events = [(user, place) for place in places for user in range(USERS)]
        parts[part] = [
            [f"u{user}", f"i{(user * 7 + place * 3) % ITEMS}", start + number]
            for number, (user, place) in enumerate(events)
        ]
    return parts


def split_of(parts, extra_users=(), extra_items=()):
    """Return a split of lists of (user, item, time), in which all parts have one vocabulary."""
    every = [event for part in parts.values() for event in part]
    users = sorted({user for user, _, _ in every} | set(extra_users))
    items = sorted({item for _, item, _ in every} | set(extra_items))
    made = []
    for part in parts.values():
        columns = {name: [event[place] for event in part] for place, name in enumerate(("user", "item", "time"))}
        made.append(Log.from_frame(columns, time="time", user_ids=users, item_ids=items))
    return LogSplit(*made)


def test_a_clean_split_has_no_faults():
    """The report of a clean split has no faults and states the split's size."""
    report = trm.audit(split_of(clean()))
    assert report.faults == ()
    assert str(report).endswith("\n0 faults")
    assert str(report).startswith("LogSplit: train 240, valid 60, test 60 events\n      events ")
    assert "360 events of all parts, times 1000 to 3059" in str(report)
    assert (report["users"].number, report["items"].number, report["pairs"].number) == (30, 40, 360)
    assert "40 items of all parts occur; text, 'i0' to 'i9'" in str(report)
    assert "density 0.3" in report["pairs"].says


def in_train(parts):
    parts["test"][4][:2] = parts["train"][9][:2]


def in_valid(parts):
    parts["test"][4][:2] = parts["valid"][4][:2]


def before_train_ends(parts):
    parts["train"][-1][2] = parts["test"][-1][2] + 1  # u29's event: only other users' test events are older
    parts["test"] = [event for event in parts["test"] if event[0] != "u29"] + [["u29", "i33", 9999]]


def before_own_train(parts):
    parts["test"][5][2] = 1


def equal_times(parts):
    at = max(event[2] for event in parts["train"] if event[0] == "u29")
    parts["test"][29][2] = at  # the last train event of all users is u29's


def unseen_users(parts):
    parts["test"].append(["nobody", "i1", 4000])


def unseen_items(parts):
    parts["test"].append(["u1", "new", 4000])


def repeated_events(parts):
    parts["train"].insert(3, list(parts["train"][7]))


def empty_ids(parts):
    parts["train"][11][1] = "nan"


def one_time(parts):
    for part in parts.values():
        for event in part:
            event[2] = 7


def time_units(parts):
    parts["test"][-1][2] = 3_059_000


def head_share(parts):
    for number in range(400):
        parts["train"].append([f"u{number % USERS}", "i5", 1100 + number])


def heaviest_user(parts):
    parts["train"] += [["u3", f"i{number % ITEMS}", 1300 + number] for number in range(100)]


def popular_item(parts):
    parts["train"] += [[f"x{number}", "hit", 1300 + number] for number in range(50)]
    parts["test"] += [[f"u{number}", "hit", 3300 + number] for number in range(20)]


def no_test(parts):
    parts["test"].clear()


def no_train(parts):
    parts["train"].clear()


FAULTS = {  # the fault: how many there are, the example in the report, and the faults that come with it
    in_train: (1, "user 'u9', item 'i23'", ()),
    in_valid: (1, "user 'u4', item 'i12'", ()),
    before_train_ends: (58, "user 'u0', item 'i30' at 3000, train ends at 3060", ()),
    before_own_train: (1, "user 'u5', item 'i25' at 1", ("before_train_ends",)),
    equal_times: (1, "user 'u29', item 'i33' at 1239", ()),
    unseen_users: (1, "user 'nobody', item 'i1'", ()),
    unseen_items: (1, "user 'u1', item 'new'", ()),
    repeated_events: (1, "user 'u7', item 'i9'", ()),
    empty_ids: (1, "user 'u11', item 'nan'", ()),
    one_time: (360, "7", ("equal_times",)),
    time_units: (1, "3059000 beside", ()),
    head_share: (408, "item 'i5'", ("in_train",)),
    heaviest_user: (112, "user 'u3'", ("in_train",)),
    popular_item: (20, "item 'hit'", ()),
    no_test: (1, "", ()),
    no_train: (1, "", ("unseen_users", "unseen_items")),
}


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_planted_faults_are_found(plant):
    """Each planted fault is found with its number and an example, and the only other faults are those it causes."""
    parts = clean()
    plant(parts)
    report = trm.audit(split_of(parts))
    number, example, more = FAULTS[plant]
    assert set(report.faults) == {plant.__name__, *more}
    finding = report[plant.__name__]
    assert finding.number == number
    assert example in str(finding)
    assert f"FAULT {plant.__name__} " in str(report)


def test_who_train_has_never_seen_has_no_time_there():
    """A user without train events has no fault about own times, whatever the time of the test event."""
    for time in (999, 1000, 1239, 1240):
        parts = clean()
        parts["test"].append(["nobody", "i1", time])
        assert set(trm.audit(split_of(parts)).faults) - {"before_train_ends"} == {"unseen_users"}


def test_ids_without_events_are_counted():
    """Ids without events are a fault in a split, where nobody can have them, but not in a log, which may be a part."""
    split = split_of(clean(), extra_users=["zz"], extra_items=["i400", "i401"])
    report = trm.audit(split)
    assert set(report.faults) == {"unused_users", "unused_items"}
    says = "items of the vocabulary have no event in any part"
    assert str(report["unused_items"]) == f"2 of 42 (4.8%) {says}: item 'i400'"
    assert trm.audit(split.train).faults == ()


def test_a_log_is_looked_at_alone():
    """A log, which has no parts that could leak, is audited alone; the number -1 is a missing id."""
    log = Log.from_frame({"user": [1, 1, 2, -1], "item": [5, 5, 5, 6], "time": [1, 1, 1, 2]}, time="time")
    report = trm.audit(log)
    assert set(report.faults) == {"repeated_events", "empty_ids", "head_share"}
    assert str(report["repeated_events"]) == (
        "1 of 4 (25.0%) events repeat the user, item and time of another: user 1, item 5"
    )
    assert str(report["popular_item"]) == "2 of 3 (66.7%) users have the most popular item: item 5"
    assert "in_train" not in report
    assert "whole numbers, -1 to 2" in report["users"].says
    assert len(report) == len(list(report)) == 14
    with pytest.raises(KeyError, match="nothing was looked at under 'popular_itm'; did you mean 'popular_item'"):
        report["popular_itm"]


def test_lines_say_which_part_they_are_about():
    """Lines about a split name the parts that they describe and an empty part; lines about a log name none."""
    said = [str(trm.audit(split)) for split in (split_of(clean()), split_of(clean()).train)]
    for line in (
        "events of all parts, times",
        "events of all parts are with the most popular item: ",
        "users of test have the most popular item of train",
        "no_train           0 train parts are empty\n",
    ):
        assert line in said[0]
    assert "part" not in said[1]
    parts = clean()
    no_test(parts)
    assert str(trm.audit(split_of(parts))["no_test"]) == "1 test part is empty"
    known = trm.audit(split_of(clean()).train.split_users(2))
    assert "the most popular item of fit and train" in known["popular_item"].says


def test_splits_of_interactions_are_looked_at_without_times():
    """Splits of interactions are audited by row number if they have no vocabularies, without findings about times."""
    train = Interactions.from_columns([0, 0, 1, 2], [0, 1, 0, 2], num_users=3, num_items=4)
    test = Interactions.from_columns([0, 1], [1, 3], num_users=3, num_items=4)
    empty = Interactions.from_columns([], [], num_users=3, num_items=4)
    report = trm.audit(LogSplit(train, empty, test))
    assert {"in_train", "unseen_items"} <= set(report.faults)
    assert report["in_train"].example == "user 0, item 1"
    assert not {"before_train_ends", "equal_times", "one_time"} & set(report)


def test_parts_with_vocabularies_of_their_own_are_matched():
    """Parts with different vocabularies and units of time, as two files have them, are matched by id and by time."""
    np = pytest.importorskip("numpy")
    train = Log.from_frame({"user": ["a", "b"], "item": ["x", "y"], "t": np.array([86400, 172800], "M8[s]")}, time="t")
    test = Log.from_frame(
        {"user": ["b", "c"], "item": ["y", "x"], "t": np.array([172800001, 172799999], "M8[ms]")}, time="t"
    )
    report = trm.audit(LogSplit(train, test.take(torch.tensor([], dtype=torch.int64)), test))
    assert report["in_train"].example == "user 'b', item 'y'"
    assert report["before_train_ends"].example == (
        "user 'c', item 'x' at 1970-01-02T23:59:59.999, train ends at 1970-01-03T00:00:00"
    )
    assert (report["before_train_ends"].number, report["equal_times"].number) == (1, 0)
    assert report["unseen_users"].number == 1
    bare = Interactions.from_columns([0], [0])
    with pytest.raises(ValueError, match="some parts have user_ids, others have none: row 5 could mean two things"):
        trm.audit(LogSplit(train, bare, test))
    late = Log.from_frame({"user": ["b"], "item": ["y"], "t": [3]}, time="t")
    with pytest.raises(TypeError, match="times are numbers in one part and datetimes in another"):
        trm.audit(LogSplit(train, late, test))


def test_what_cannot_be_audited_is_refused():
    for wrong in ("log.csv", torch.zeros(2), [1], (1, 2, 3)):
        with pytest.raises(
            TypeError, match=r"audit looks at logs and their splits, got .*: pass a Log, Interactions, or"
        ):
            trm.audit(wrong)
    with pytest.raises(TypeError, match="valid must be a Log or Interactions, got NoneType"):
        trm.audit(LogSplit(Log.from_frame({"user": [1], "item": [1]}), None, None))
    with pytest.raises(ValueError, match="there are no events to audit"):
        trm.audit(Log.from_frame({"user": [], "item": []}))


DATA = Path(__file__).parents[3] / "shared" / "data"


@pytest.mark.skipif(not DATA.exists(), reason="the data sets are not here")
def test_movielens():
    """Leave-one-out of MovieLens leaks: a quarter of its test events are as old as the user's last train event."""
    pytest.importorskip("pyarrow")
    log = Log.from_file(DATA / "ml-100k" / "u.data", time="timestamp", value="rating")
    split = log.leave_last_out()
    report = trm.audit(split)
    assert set(report.faults) == {"before_train_ends", "equal_times", "unseen_items"}
    last = split.train.times.max()
    assert report["before_train_ends"].number == sum(time < last for time in split.test.times.tolist())
    own = {}
    for user, time in zip(split.train.users.tolist(), split.train.times.tolist(), strict=True):
        own[user] = max(time, own.get(user, time))
    equal = sum(
        own[user] == time for user, time in zip(split.test.users.tolist(), split.test.times.tolist(), strict=True)
    )
    assert report["equal_times"].number == equal
    top = sum(count for _, count in Counter(log.items.tolist()).most_common(16))
    assert report["head_share"].number == top
    known = trm.audit(log.split_users(100))
    assert "before_train_ends" not in known
    assert known["unseen_users"].number == known["in_train"].number == 0


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_in_any_unit_are_no_fault(unit):
    """Datetimes in any unit are no fault, though 100 times a time in nanoseconds does not fit into 64 bits."""
    np = pytest.importorskip("numpy")
    times = np.array(["2020-01-01", "2021-01-01", "2020-06-01", "2022-01-01"], f"M8[{unit}]")
    log = Log.from_frame({"user": list("aabb"), "item": list("xyxy"), "time": times}, time="time")
    assert trm.audit(log).faults == ()


@pytest.mark.parametrize(
    "times",
    [range(1, 366), range(1, 10**6, 97), [1, 150, 300, 364], [3, 400, *range(5000, 2_600_000, 9000)]],
    ids=["days", "steps", "few days", "seconds from the start"],
)
def test_times_that_count_from_one_are_in_one_unit(times):
    """Times that count from one are in one unit, though the first are less than a hundredth of most."""
    times = list(times)
    log = Log.from_frame({"user": [n % 30 for n in range(len(times))], "item": list(times), "time": times}, time="time")
    assert "time_units" not in trm.audit(log).faults


def test_times_in_two_units_are_a_fault():
    """Times in two units are a fault, however far apart the units are and whichever has more events."""
    for few, most in ((1000, 1), (1, 1000), (1, 10**9), (86_400_000, 1)):
        times = [(1_500_000 + 10 * n) * (few if n % 9 == 4 else most) for n in range(90)]
        log = Log.from_frame({"user": [n % 30 for n in range(90)], "item": list(range(90)), "time": times}, time="time")
        assert trm.audit(log)["time_units"][:2] == (10, 90)
        assert "time_units" in trm.audit(log).faults


def test_a_user_of_few_is_heavy_beside_the_others():
    """One of ten users is a fault only with more than half of the events, which is 5 times the mean."""
    for heaviest, fault in ((12, False), (80, False), (100, True)):
        users = [user for user in range(10) for _ in range(heaviest if user == 4 else 10)]
        log = Log.from_frame({"user": users, "item": list(range(len(users)))})
        report = trm.audit(log)
        assert ("heaviest_user" in report.faults) == fault
        assert report["heaviest_user"].number == heaviest


def test_a_leaked_pair_is_one_fault():
    """A test pair that is in train or validation is one fault, and not a repeated event as well."""
    users, items = [0, 0, 1, 1, 2, 2], [0, 1, 2, 3, 4, 5]
    train, valid = Log.from_frame({"user": users, "item": items}), Log.from_frame({"user": [0, 1], "item": [4, 0]})
    for pairs, faults in (
        ([(0, 1), (1, 5)], {"in_train"}),
        ([(0, 4), (1, 5)], {"in_valid"}),
        ([(0, 2), (0, 2)], {"repeated_events"}),
    ):
        test = Log.from_frame({"user": [user for user, _ in pairs], "item": [item for _, item in pairs]})
        report = trm.audit(LogSplit(train, valid, test))
        assert set(report.faults) - {"head_share", "unused_items", "unused_users", "popular_item"} == faults
        assert sum(report[fault].number for fault in faults) == 1
    again = Log.from_frame({"user": [0, 1], "item": [0, 5]})
    assert trm.audit(LogSplit(train, again, test))["repeated_events"].number == 2  # 1 of train in valid, 1 within test


def test_parts_without_times_are_told():
    """Parts of a split without times are counted under no_times, which is no fault; a log has no such finding."""
    log = Log.from_frame({"user": list("aaabbb"), "item": list("xyzxyz")})
    assert trm.audit(log.leave_last_out())["no_times"].number == 3
    assert "no_times" not in trm.audit(log.leave_last_out()).faults
    assert "no_times" not in trm.audit(log)


def test_ids_are_told_from_the_first_to_the_last():
    """The report gives the first and the last id that occur, in the order of the ids and not of the rows."""
    log = Log.from_frame({"user": ["b", "a", "m"], "item": ["x", "y", "x"]}, user_ids=["z", "b", "m", "a"])
    assert "text, 'a' to 'm'" in str(trm.audit(log)["users"])


def test_default_device_does_not_matter():
    """An audit of a split is the same whatever torch's default device is."""
    split = split_of(clean())
    expected = str(trm.audit(split))
    torch.set_default_device("meta")
    try:
        assert str(trm.audit(split)) == expected
    finally:
        torch.set_default_device(None)


def test_blanks_around_ids():
    """An id with blanks around it beside the same id without is a fault; blanks alone are none."""
    events = {"user": ["al", "al ", "bo", "cy "], "item": ["x", "y", " x", "z"]}
    finding = trm.audit(trm.Log.from_frame(events))["blank_ids"]
    assert (finding.number, finding.of, finding.wrong) == (2, 4, True)
    assert "blank_ids" not in trm.audit(trm.Log.from_frame({"user": ["al "], "item": ["x"]})).faults
