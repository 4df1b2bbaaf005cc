"""`Log` and its splits give what plain Python gives, one event at a time."""

import math
from collections import Counter
from functools import partial
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from sizes import examples

import torchrecmetrics as trm
from torchrecmetrics import Log

np = pytest.importorskip("numpy")
pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

DAY = {"user": ["al", "bo", "al", "al", "bo"], "item": ["x", "x", "y", "x", "z"], "day": [3, 1, 4, 5, 2]}


@st.composite
def events(draw):
    """Draw events of a few users and items, with repeated events and repeated times."""
    event = st.tuples(st.integers(0, 5), st.integers(0, 6), st.integers(0, 8), st.integers(1, 5))
    return draw(st.lists(event, min_size=1, max_size=40))


def log_of(events):
    users, items, times, values = zip(*events, strict=True)
    names, numbers = [f"u{user}" for user in users], [item * 10 for item in items]
    frame = {"user": names, "item": numbers, "time": times, "value": values}
    return Log.from_frame(frame, time="time", value="value")


def events_of(log):
    """Return the events of a log as tuples (user, item, time, value)."""
    users, items = log.user_ids.ids(log.users), log.item_ids.ids(log.items)
    users, items = [int(user[1:]) for user in users], [item // 10 for item in items]
    return list(zip(users, items, log.times.tolist(), log.values.tolist(), strict=True))


@settings(max_examples=examples(100), deadline=None)
@given(events=events(), bounds=st.tuples(st.integers(0, 9), st.integers(0, 9)))
def test_splits_are_those_of_python(events, bounds):
    """A split puts every event in one part, in the order of the log, and all parts share the vocabularies."""
    log = log_of(events)
    assert events_of(log) == events
    order = sorted(range(len(events)), key=lambda row: (events[row][0], events[row][2]))
    places = {}
    for user in {event[0] for event in events}:
        mine = [row for row in order if events[row][0] == user]
        for place, row in enumerate(reversed(mine)):
            places[row] = {0: 2, 1: 1}.get(place, 0) if len(mine) >= 3 else 0
    expected = [[event for row, event in enumerate(events) if places[row] == part] for part in range(3)]
    parts = log.leave_last_out()
    assert [events_of(part) for part in parts] == expected
    assert all(part.user_ids is log.user_ids and part.item_ids is log.item_ids for part in parts)
    first, second = sorted(bounds)
    cut = [[event for event in events if (event[2] >= first) + (event[2] >= second) == part] for part in range(3)]
    if cut[0] and cut[2]:
        assert [events_of(part) for part in log.split_by_time(first, second)] == cut
    else:
        with pytest.raises(ValueError, match=r"no event is left for (train|test), .*times run from"):
            log.split_by_time(first, second)
    cut = [[event for event in events if event[2] < first], [], [event for event in events if event[2] >= first]]
    if cut[0] and cut[2]:  # without valid_from there is no validation
        assert [events_of(part) for part in log.split_by_time(test_from=first)] == cut
    else:
        with pytest.raises(ValueError, match=rf"no event is left for (train, before|test, from) test_from={first}"):
            log.split_by_time(test_from=first)


@settings(max_examples=examples(100), deadline=None)
@given(events=events(), n=st.integers(1, 5))
def test_k_core_is_what_is_left_in_turns(events, n):
    """`k_core` keeps the events that are left after removing one event at a time, and their sorted vocabularies."""
    left = list(events)
    while True:
        users, items = Counter(event[0] for event in left), Counter(event[1] for event in left)
        wrong = next((event for event in left if users[event[0]] < n or items[event[1]] < n), None)
        if wrong is None:
            break
        left.remove(wrong)
    if not left:
        with pytest.raises(ValueError, match=f"no event is left: .* whose users and items all have {n} events"):
            log_of(events).k_core(n)
        return
    core = log_of(events).k_core(n)
    assert events_of(core) == left
    assert list(core.user_ids) == sorted({f"u{event[0]}" for event in left})
    assert list(core.item_ids) == sorted({event[1] * 10 for event in left})


@settings(max_examples=examples(100), deadline=None)
@given(events=events(), seed=st.integers(0, 3), share=st.sampled_from([0.1, 0.3, 0.5, 0.9]))
def test_users_are_held_out_with_a_share_of_their_items(events, seed, share):
    """A held-out user's items are split with all their events, at least one item per part; other users stay whole."""
    log = log_of(events)
    items = {user: {event[1] for event in events if event[0] == user} for user in {event[0] for event in events}}
    able = [user for user in items if len(items[user]) >= 2]
    if not able:
        with pytest.raises(ValueError, match="cannot hold out 1 users: 0 have two items or more"):
            log.split_users(1)
        return
    for users, number in ((1, 1), (len(able), len(able)), (0.5, max(1, round(len(able) / 2)))):
        fit, train, test = log.split_users(users, share, seed)
        held = {event[0] for event in events_of(test)}
        assert len(held) == number
        assert held <= set(able)
        assert events_of(fit) == [event for event in events if event[0] not in held]
        hidden = {(event[0], event[1]) for event in events_of(test)}
        assert events_of(test) == [event for event in events if event[:2] in hidden]
        assert events_of(train) == [event for event in events if event[0] in held and event[:2] not in hidden]
        for user in held:
            wanted = min(max(round(len(items[user]) * share), 1), len(items[user]) - 1)
            assert sum(pair[0] == user for pair in hidden) == wanted
        again = log.split_users(users, share, seed)
        assert [events_of(part) for part in again] == [events_of(fit), events_of(train), events_of(test)]


def test_random_splits(generator):
    """The parts have rounded shares of the events and make up the log; a seed gives one split, another seed another."""
    events = [tuple(row) for row in torch.randint(1, 5, (101, 4), generator=generator).tolist()]
    log = log_of(events)
    parts = log.split_random((8, 1, 1), seed=1)
    assert [len(part) for part in parts] == [81, 10, 10]
    assert Counter(event for part in parts for event in events_of(part)) == Counter(events)
    same = log.split_random((0.8, 0.1, 0.1), seed=1)
    assert [events_of(part) for part in parts] == [events_of(part) for part in same]
    assert [len(part) for part in log.split_random((0.5, 0, 0.5))] == [50, 0, 51]
    assert len({tuple(log.split_random(seed=seed).test.users.tolist()) for seed in range(20)}) == 20


def test_every_user_may_be_held_out():
    """Over 200 seeds, each user and each item is held out several times."""
    log = log_of([(user, item, 0, 1) for user in range(4) for item in range(5)])
    tests = [log.split_users(1, 0.2, seed).test for seed in range(200)]
    users, items = Counter(test.users[0].item() for test in tests), Counter(test.items[0].item() for test in tests)
    assert (len(users), len(items)) == (4, 5)
    assert min(users.values()) > 30
    assert min(items.values()) > 20


def test_to_interactions():
    """Repeated events become one edge by sum, maximum or last value; `min_value` keeps edges without values."""
    log = log_of([(1, 1, 0, 5), (0, 2, 0, 1), (1, 1, 3, 2), (0, 1, 0, 4)])
    for reduce, value in {"sum": 5 + 2, "max": 5, "last": 2}.items():
        graph = log.to_interactions(values_reduce=reduce)
        assert (graph.users.tolist(), graph.items.tolist()) == ([0, 0, 1], [0, 1, 0])
        assert graph.values.tolist() == [4, 1, value]
    assert (graph.user_ids, graph.item_ids, graph.num_items_inferred) == (log.user_ids, log.item_ids, False)
    liked = log.to_interactions(4)
    assert (liked.users.tolist(), liked.items.tolist(), liked.values) == ([0, 1], [0, 0], None)
    assert (liked.num_users, liked.num_items) == (2, 2)


@settings(max_examples=examples(100), deadline=None)
@given(events=events())
def test_the_last_value_is_that_of_the_latest_time(events):
    """`values_reduce="last"` takes the value at the latest time, of equal times the last; times in two units raise."""
    log = log_of(events)
    latest = {event[:2]: event[3] for event in sorted(events, key=lambda event: event[2])}
    graph = log.to_interactions(values_reduce="last")
    pairs = zip(log.user_ids.ids(graph.users), log.item_ids.ids(graph.items), strict=True)
    assert {
        (int(user[1:]), item // 10): value for (user, item), value in zip(pairs, graph.values, strict=True)
    } == latest
    mixed = Log.from_frame({"user": ["al"] * 3, "item": ["x"] * 3, "time": [1.7e9, 1.7e12, 1.6e9], "value": [1, 2, 3]})
    assert mixed.to_interactions(values_reduce="max").values.tolist() == [3]
    with pytest.raises(ValueError, match="times are of another unit than most"):
        mixed.to_interactions(values_reduce="last")


def test_a_model_that_has_rows_already():
    """Vocabularies of all row numbers keep rows without an event, so that a split fits the model's embeddings."""
    users, items = torch.eye(4), torch.eye(6)[:, :4]
    frame = {"user": [0, 0, 2, 2], "item": [1, 0, 4, 2]}
    bare = Log.from_frame(frame)
    assert (bare.num_users, bare.num_items) == (2, 4)
    with pytest.raises(ValueError, match=r"user_ids=range\(4\) if these ids are its rows"):
        trm.evaluate("HR@1", users, items, target=bare.to_interactions())
    whole = Log.from_frame(frame, user_ids=range(4), item_ids=range(6))
    train, _, test = whole.split_random((1, 0, 1), seed=0)
    assert whole.items.tolist() == frame["item"]
    for part in (train.to_interactions(), test.to_interactions()):
        assert trm.evaluate("HR@6", users, items, target=part)["HR@6"] == 1


@pytest.mark.parametrize("unit", [None, "D", "ns"])
def test_survives_a_file(unit, tmp_path):
    """A saved log keeps times with their unit, values and vocabularies, and `torch.load` reads it with its default."""
    times = [3.5, 1, 2] if unit is None else np.array([3, 1, 2], dtype=f"M8[{unit}]")
    frame = {"user": ["b", "a", "b"], "item": [2**63, 0, 1], "t": times, "v": [1, 2, 3]}
    log = Log.from_frame(frame, time="t", value="v")
    log.save(tmp_path / "log")
    torch.load(tmp_path / "log", weights_only=True)
    back = Log.load(tmp_path / "log")
    assert repr(back) == repr(log)
    assert (back.users.tolist(), back.items.tolist(), back.values.tolist()) == ([1, 0, 1], [2, 0, 1], [1, 2, 3])
    assert (back.time_unit, back.times.tolist()) == (log.time_unit, log.times.tolist())
    assert (back.user_ids, back.item_ids) == (log.user_ids, log.item_ids)
    plain = Log.from_frame({"user": [1], "item": [1]})
    plain.save(tmp_path / "log")
    assert (Log.load(tmp_path / "log").times, Log.load(tmp_path / "log").values) == (None, None)


def test_logs_of_two_sources_share_rows_after_recode():
    """`recode` gives logs of two sources the same rows by id, and names an id that a vocabulary does not have."""
    train, test = Log.from_frame(DAY), Log.from_frame({"user": ["zoe", "al"], "item": ["z", "q"]})
    users, items = train.user_ids.union(test.user_ids), train.item_ids.union(test.item_ids)
    both = test.recode(users, items)
    assert (both.users.tolist(), both.items.tolist()) == ([2, 0], [2, 3])
    assert (both.num_users, both.num_items) == (3, 4)
    with pytest.raises(ValueError, match="user_ids has no 'zoe', the user of event 0"):
        test.recode(train.user_ids, items)


LOG = Log.from_frame(DAY, time="day")
REPEATED = log_of([(1, 1, 0, 5), (0, 2, 0, 1), (1, 1, 3, 2)])
RATED = Log.from_frame({"user": [1], "item": [10], "rating": [5]}, value="rating")
NO_RATIO = "ratio must be three numbers >= 0, .*, got "
BAD = [
    (lambda: LOG.split_by_time("2024-01-01", 3), TypeError, "valid_from is '2024-01-01', but times are numbers"),
    (lambda: Log.from_frame(DAY | {"at": [1, 2, 3, 4, 5]}, item="user"), ValueError, "cannot be item and user at once"),
    (
        lambda: Log.from_frame(DAY, time=None).split_by_time(1, 3),
        ValueError,
        "events have no times: name their column, time=",
    ),
    (lambda: LOG.split_by_time(3), TypeError, r"is missing; without valid_from= there is no"),
    (lambda: LOG.split_by_time(4, 2), ValueError, "valid_from must not be later than test_from, got 4 and 2"),
    (lambda: LOG.split_random(0.8), ValueError, NO_RATIO + "0.8"),
    (lambda: LOG.split_random((1, 1)), ValueError, NO_RATIO),
    (lambda: LOG.split_random((1, -1, 1)), ValueError, NO_RATIO),
    (lambda: LOG.split_random((1, math.nan, 1)), ValueError, NO_RATIO),
    (lambda: LOG.split_random((1, 0, 0)), ValueError, r"ratio=\(1, 0, 0\) leaves no event for test"),
    (lambda: LOG.split_random((0, 1, 1)), ValueError, "leaves no event for train"),
    (lambda: LOG.split_users(3), ValueError, "cannot hold out 3 users: 2 have two items or more"),
    (lambda: LOG.split_users(1.5), ValueError, "a number of users .* or a share between 0 and 1, got 1.5"),
    (lambda: LOG.split_users("2"), TypeError, "users must be an integer >= 1, got '2'"),
    (lambda: LOG.split_users(True), TypeError, "users must be an integer >= 1, got True"),
    (lambda: LOG.split_users(1, 1.0), ValueError, "share_of_items must be between 0 and 1, got 1.0"),
    (lambda: LOG.k_core(0), ValueError, "n must be at least 1"),
    (lambda: LOG.k_core(9), ValueError, "no event is left"),
    (lambda: LOG.to_interactions(4), ValueError, "min_value=4 needs values: name their column, value="),
    (lambda: RATED.to_interactions(math.nan), ValueError, "min_value must be a number, got"),
    (lambda: RATED.to_interactions("4"), ValueError, "min_value must be a number, got"),
    (lambda: REPEATED.to_interactions(), ValueError, r"1 of 3 rows .* user 'u1', item 10 with \[5, 2\]: values_red"),
    (lambda: REPEATED.to_interactions(duplicates="error"), ValueError, "1 pairs of user and item occur more than once"),
    (lambda: Log.load(__file__), ValueError, "was not written by Log.save"),
    (lambda: Log.from_frame(DAY | {"day": [2**63] * 5}, time="day"), ValueError, r"2\^63: pass them in a coarser unit"),
]


def test_a_split_by_time_without_a_validation_part():
    """`test_from` alone makes train and test; the validation part is empty."""
    split = LOG.split_by_time(test_from=3)
    assert [len(part) for part in split] == [len(part) for part in LOG.split_by_time(3, 3)]
    assert not len(split.valid)
    with pytest.raises(TypeError, match="test_from= is missing"):
        LOG.split_by_time(3)
    with pytest.raises(ValueError, match="no event is left for train, before test_from=-9"):
        LOG.split_by_time(test_from=-9)


@pytest.mark.parametrize(("make", "error", "message"), BAD)
def test_bad_input(make, error, message):
    """The error message says which value was given, which ones are accepted, and what to do."""
    with pytest.raises(error, match=message):
        make()


def test_files_of_movielens_bring_their_times(tmp_path):
    """MovieLens files are read with their times: without times, a split would follow the order of the lines."""
    (tmp_path / "u.data").write_text("1\t5\t3\t300\n1\t6\t3\t100\n1\t7\t3\t200\n")
    split = Log.from_file(tmp_path / "u.data").leave_last_out()
    assert split.test.item_ids.ids(split.test.items) == [5]
    assert Log.from_file(tmp_path / "u.data", time=None).times is None


@pytest.mark.parametrize("name", ["time", "t_dat", "created"])
def test_a_column_of_times_is_found_named_or_asked_about(name, tmp_path):
    """A column of another name that may be times is a question of splits that depend on order, not of reading.

    Without times, the oldest event of a newest-first log would be the test event.
    """
    columns = {"user": [1, 1, 1], "item": [3, 4, 5], name: [1_500_000_009, 1_500_000_008, 1_500_000_007]}
    frame = pd.DataFrame(columns)
    frame.to_csv(tmp_path / "log.csv", index=False)
    frame.to_parquet(tmp_path / "log.parquet")
    for source in (frame, columns, tmp_path / "log.csv", tmp_path / "log.parquet"):
        make = Log.from_file if isinstance(source, Path) else Log.from_frame
        if name == "time":
            assert make(source).leave_last_out().test.items.tolist() == [0]
            continue
        log = make(source)
        assert log.times is None
        assert len(log.split_random((1, 1, 1)).train) == 1
        for split in (log.leave_last_out, log.take(torch.tensor([0, 1])).leave_last_out, partial(trm.audit, log)):
            with pytest.raises(ValueError, match=f"has a column that is not read: '{name}'\\. .*time=None"):
                split()
        assert make(source, time=None).leave_last_out().test.items.tolist() == [2]
        assert make(source, time=name).leave_last_out().test.items.tolist() == [0]


def test_events_that_may_be_irrelevant_are_asked_about(tmp_path):
    """A column of clicks that was not read is an error of to_interactions, also after a split and in a saved log."""
    frame = {"user": [1, 1, 1], "item": [10, 11, 12], "is_click": [1, 0, 1]}
    log = Log.from_frame(frame, time=None)
    log.save(tmp_path / "log.pt")
    for part in (log, log.take(torch.tensor([0, 1])), log.leave_last_out().train, Log.load(tmp_path / "log.pt")):
        with pytest.raises(ValueError, match=r"not read: 'is_click'\. .*pass .*value='is_click'"):
            part.to_interactions()
    with pytest.raises(ValueError, match="is_click"):
        trm.evaluate_lists("HR@1", {1: [11]}, target=log)
    assert trm.evaluate_lists("HR@1", {1: [11]}, target=Log.from_frame(frame, value="is_click")) == {"HR@1": 0}
    assert len(Log.from_frame(frame, value=None).to_interactions()) == 3
    Log.from_frame({**frame, "ts": [1_700_000_009, 1_700_000_001, 1_700_000_005]}).save(tmp_path / "log.pt")
    with pytest.raises(ValueError, match="'ts'"):
        Log.load(tmp_path / "log.pt").leave_last_out()


def test_columns_that_are_no_relevance():
    """A column that is read is no candidate for the relevance, nor is one called time; all others are asked about."""
    assert len(Log.from_frame({"user": [1, 1], "item": [10, 11], "day": [0, 1]}, time="day").to_interactions()) == 2
    log = Log.from_frame({"user": ["al", "al"], "item": ["x", "w"], "rating": [5, 1]})
    with pytest.raises(ValueError, match=r"not read: 'rating'\. .*pass .*value='rating'"):
        trm.evaluate_lists("NDCG@2", {"al": ["w", "x"]}, target=log)
    assert trm.evaluate_lists("HR@1", {"al": ["x"]}, target={"al": ["y"]}, exclude=log, complete=True) == {"HR@1": 0}


def test_qrels_have_grades_wherever_they_are_read(tmp_path):
    """The relevance of qrels is the value, and what is below 0 is not relevant, as in trec_eval."""
    path = tmp_path / "q.qrels"
    path.write_text("q1 0 d1 2\nq1 0 d2 0\nq1 0 d3 -1\n")
    assert Log.from_file(path).values.tolist() == [2, 0, -1]
    assert Log.from_file(path, value=None).values is None
    run = {"q1": ["d2", "d3", "d1"]}
    assert trm.evaluate_lists("MRR@3", run, target=Log.from_file(path)) == {"MRR@3": 1 / 3}
