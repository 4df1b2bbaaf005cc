"""`Log` and its splits give what plain Python gives, one event at a time."""

import math
from collections import Counter

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import assume, given, settings
from sizes import examples

import torchrecmetrics as trm
from torchrecmetrics import Log

np = pytest.importorskip("numpy")
pytest.importorskip("pandas")
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
@given(events=events())
def test_the_last_two_events_of_a_user_are_left_out(events):
    """Users of fewer than three events stay in train; parts keep the order of the log and share its vocabularies."""
    log = log_of(events)
    part_of = [0] * len(events)
    for user in {event[0] for event in events}:
        mine = sorted((row for row, event in enumerate(events) if event[0] == user), key=lambda row: events[row][2])
        if len(mine) >= 3:
            part_of[mine[-2]], part_of[mine[-1]] = 1, 2
    expected = [[event for row, event in enumerate(events) if part_of[row] == part] for part in range(3)]
    parts = log.leave_last_out()

    assert [events_of(part) for part in parts] == expected
    assert all(part.user_ids is log.user_ids and part.item_ids is log.item_ids for part in parts)


@settings(max_examples=examples(100), deadline=None)
@given(events=events(), bounds=st.tuples(st.integers(0, 9), st.integers(0, 9)), has_valid=st.booleans())
def test_a_split_by_time_is_cut_at_its_bounds(events, bounds, has_valid):
    first, second = sorted(bounds) if has_valid else (bounds[1], bounds[1])
    cut = [[event for event in events if (event[2] >= first) + (event[2] >= second) == part] for part in range(3)]
    assume(cut[0] and cut[2])
    parts = log_of(events).split_by_time(*([first] if has_valid else []), test_from=second)

    assert [events_of(part) for part in parts] == cut


@settings(max_examples=examples(100), deadline=None)
@given(events=events(), n=st.integers(1, 5))
def test_k_core_is_what_is_left_after_removing_one_event_at_a_time(events, n):
    left = list(events)
    while True:
        users, items = Counter(event[0] for event in left), Counter(event[1] for event in left)
        wrong = next((event for event in left if users[event[0]] < n or items[event[1]] < n), None)
        if wrong is None:
            break
        left.remove(wrong)
    assume(left)
    core = log_of(events).k_core(n)

    assert events_of(core) == left
    assert list(core.user_ids) == sorted({f"u{event[0]}" for event in left})
    assert list(core.item_ids) == sorted({event[1] * 10 for event in left})


@settings(max_examples=examples(100), deadline=None)
@given(events=events(), seed=st.integers(0, 3), share=st.sampled_from([0.1, 0.3, 0.5, 0.9]))
def test_users_are_held_out_with_a_share_of_their_items(events, seed, share):
    """A held-out user's items are split with all their events, at least one item per part; other users stay whole."""
    items = {user: {event[1] for event in events if event[0] == user} for user in {event[0] for event in events}}
    able = [user for user in items if len(items[user]) >= 2]
    assume(able)
    fit, train, test = map(events_of, log_of(events).split_users(len(able), share, seed))
    hidden = {event[:2] for event in test}
    part_of = lambda event: 1 + (event[:2] in hidden) if event[0] in able else 0  # noqa: E731
    num_hidden = {user: min(max(round(len(items[user]) * share), 1), len(items[user]) - 1) for user in able}

    assert [fit, train, test] == [[event for event in events if part_of(event) == part] for part in range(3)]
    assert Counter(user for user, _ in hidden) == num_hidden


@pytest.mark.parametrize(("users", "number"), [(1, 1), (3, 3), (0.5, 2), (0.01, 1)])
def test_as_many_users_are_held_out_as_asked(users, number):
    """Of four users, u0 has a single item and stays."""
    log = log_of([(0, 0, 0, 1), *((user, item, 0, 1) for user in (1, 2, 3) for item in range(4))])
    assert len(set(log.split_users(users).test.users.tolist()) - {0}) == number


EACH_ITEM = log_of([(user, item, 0, 1) for user in range(4) for item in range(5)])


def test_a_seed_holds_out_the_same_events_again():
    assert events_of(EACH_ITEM.split_users(2, seed=1).test) == events_of(EACH_ITEM.split_users(2, seed=1).test)


def test_every_user_and_item_is_held_out_by_about_as_many_seeds():
    tests = [EACH_ITEM.split_users(1, 0.2, seed).test for seed in range(200)]  # a fifth of the items: one
    users, items = Counter(test.users.item() for test in tests), Counter(test.items.item() for test in tests)

    assert users == {user: pytest.approx(200 / 4, abs=20) for user in range(4)}
    assert items == {item: pytest.approx(200 / 5, abs=20) for item in range(5)}


EVENTS = [(row % 5, row % 7, row % 9, 1 + row) for row in range(101)]


@pytest.mark.parametrize(
    ("ratio", "sizes"), [((8, 1, 1), [81, 10, 10]), ((0.8, 0.1, 0.1), [81, 10, 10]), ((0.5, 0, 0.5), [50, 0, 51])]
)
def test_random_parts_have_rounded_shares_and_make_up_the_log(ratio, sizes):
    parts = log_of(EVENTS).split_random(ratio)

    assert [len(part) for part in parts] == sizes
    assert sorted(event for part in parts for event in events_of(part)) == sorted(EVENTS)


def test_a_seed_gives_one_random_split_and_another_seed_another():
    log = log_of(EVENTS)

    assert events_of(log.split_random(seed=1).test) == events_of(log.split_random(seed=1).test)
    assert len({tuple(log.split_random(seed=seed).test.values.tolist()) for seed in range(20)}) == 20


# user u1 has item 10 twice, with the values 5 and 2
REPEATED = log_of([(1, 1, 0, 5), (0, 2, 0, 1), (1, 1, 3, 2), (0, 1, 0, 4)])


@pytest.mark.parametrize(("reduce", "value"), [("sum", 5 + 2), ("max", 5), ("last", 2)])
def test_repeated_events_become_one_edge(reduce, value):
    graph = REPEATED.to_interactions(values_reduce=reduce)

    assert (graph.users.tolist(), graph.items.tolist()) == ([0, 0, 1], [0, 1, 0])
    assert graph.values.tolist() == [4, 1, value]
    assert (graph.user_ids, graph.item_ids, graph.num_items_inferred) == (REPEATED.user_ids, REPEATED.item_ids, False)


def test_a_minimum_keeps_edges_without_values():
    liked = REPEATED.to_interactions(4)

    assert (liked.users.tolist(), liked.items.tolist(), liked.values) == ([0, 1], [0, 0], None)
    assert (liked.num_users, liked.num_items) == (2, 2)


@settings(max_examples=examples(100), deadline=None)
@given(events=events())
def test_the_last_value_is_that_of_the_latest_time(events):
    log = log_of(events)
    latest = {event[:2]: event[3] for event in sorted(events, key=lambda event: event[2])}
    graph = log.to_interactions(values_reduce="last")
    users = [int(user[1:]) for user in log.user_ids.ids(graph.users)]
    items = [item // 10 for item in log.item_ids.ids(graph.items)]

    assert dict(zip(zip(users, items, strict=True), graph.values.tolist(), strict=True)) == latest


def test_times_in_two_units_have_no_latest():
    frame = {"user": ["al"] * 3, "item": ["x"] * 3, "time": [1.7e9, 1.7e12, 1.6e9], "value": [1, 2, 3]}
    mixed = Log.from_frame(frame)

    assert mixed.to_interactions(values_reduce="max").values.tolist() == [3]
    with pytest.raises(ValueError, match="times are of another unit than most"):
        mixed.to_interactions(values_reduce="last")


@pytest.mark.parametrize("times", [[3.5, 1, 2], np.array([3, 1, 2], "M8[D]"), np.array([3, 1, 2], "M8[ns]")])
def test_a_log_survives_a_file(times, tmp_path):
    frame = {"user": ["b", "a", "b"], "item": [2**63, 0, 1], "t": times, "v": [1, 2, 3]}
    log = Log.from_frame(frame, time="t", value="v")
    log.save(tmp_path / "log")
    torch.load(tmp_path / "log", weights_only=True)
    back = Log.load(tmp_path / "log")

    assert (back.users.tolist(), back.items.tolist(), back.values.tolist()) == ([1, 0, 1], [2, 0, 1], [1, 2, 3])
    assert (back.time_unit, back.times.tolist()) == (log.time_unit, log.times.tolist())
    assert (back.user_ids, back.item_ids, repr(back)) == (log.user_ids, log.item_ids, repr(log))


TRAIN, OTHER = Log.from_frame(DAY), Log.from_frame({"user": ["zoe", "al"], "item": ["z", "q"]})


def test_logs_of_two_sources_share_rows_after_recode():
    both = OTHER.recode(TRAIN.user_ids.union(OTHER.user_ids), TRAIN.item_ids.union(OTHER.item_ids))
    assert (both.users.tolist(), both.items.tolist(), both.num_users, both.num_items) == ([2, 0], [2, 3], 3, 4)


LOG = Log.from_frame(DAY, time="day")
RATED = Log.from_frame({"user": [1], "item": [10], "rating": [5]}, value="rating")
NO_RATIO = "ratio must be three numbers >= 0, .*, got "
BAD = [
    (lambda: LOG.split_by_time("2024-01-01", 3), TypeError, "valid_from is '2024-01-01', but times are numbers"),
    (lambda: Log.from_frame(DAY | {"at": [1, 2, 3, 4, 5]}, item="user"), ValueError, "cannot be item and user at once"),
    (lambda: Log.from_frame(DAY, time=None).split_by_time(1, 3), ValueError, "events have no times: name their column"),
    (lambda: LOG.split_by_time(3), TypeError, "test_from= is missing; without valid_from= there is no"),
    (lambda: LOG.split_by_time(4, 2), ValueError, "valid_from must not be later than test_from, got 4 and 2"),
    (lambda: LOG.split_random((1, 1)), ValueError, NO_RATIO),
    (lambda: LOG.split_random((1, math.nan, 1)), ValueError, NO_RATIO),
    (lambda: LOG.split_random((1, 0, 0)), ValueError, r"ratio=\(1, 0, 0\) leaves no event for test"),
    (lambda: LOG.split_users(3), ValueError, "cannot hold out 3 users: 2 have two items or more"),
    (lambda: LOG.split_users(1.5), ValueError, "a number of users .* or a share between 0 and 1, got 1.5"),
    (lambda: LOG.split_users("2"), TypeError, "users must be an integer >= 1, got '2'"),
    (lambda: LOG.split_users(1, 1.0), ValueError, "share_of_items must be between 0 and 1, got 1.0"),
    (lambda: LOG.split_by_time(test_from=6), ValueError, "no event is left for test, .*times run from"),
    (lambda: LOG.split_by_time(test_from=1), ValueError, "no event is left for train, .*times run from"),
    (lambda: LOG.k_core(9), ValueError, "no event is left: .* whose users and items all have 9 events"),
    (lambda: OTHER.recode(TRAIN.user_ids, OTHER.item_ids), ValueError, "user_ids has no 'zoe', the user of event 0"),
    (lambda: LOG.k_core(0), ValueError, "n must be at least 1"),
    (lambda: LOG.to_interactions(4), ValueError, "min_value=4 needs values: name their column, value="),
    (lambda: RATED.to_interactions("4"), ValueError, "min_value must be a number, got"),
    (lambda: REPEATED.to_interactions(), ValueError, r"1 of 4 rows .* user 'u1', item 10 with \[5, 2\]: values_red"),
    (lambda: REPEATED.to_interactions(duplicates="error"), ValueError, "1 pairs of user and item occur more than once"),
    (lambda: Log.load(__file__), ValueError, "was not written by Log.save"),
    (lambda: Log.from_frame(DAY | {"day": [2**63] * 5}, time="day"), ValueError, r"2\^63: pass them in a coarser unit"),
]


@pytest.mark.parametrize(("make", "error", "message"), BAD)
def test_bad_input_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_files_of_movielens_bring_their_times(tmp_path):
    """The last event is that of item 5 in the first line."""
    (tmp_path / "u.data").write_text("1\t5\t3\t300\n1\t6\t3\t100\n1\t7\t3\t200\n")
    test = Log.from_file(tmp_path / "u.data").leave_last_out().test

    assert test.item_ids.ids(test.items) == [5]


NEWEST_FIRST = {"user": [1, 1, 1], "item": [3, 4, 5], "t_dat": [1_500_000_009, 1_500_000_008, 1_500_000_007]}


def saved(log, path):
    log.save(path)
    return Log.load(path)


@pytest.mark.parametrize(
    "look",
    [
        lambda log, path: log.leave_last_out(),
        lambda log, path: log.take(torch.arange(2)).leave_last_out(),
        lambda log, path: saved(log, path).leave_last_out(),
        lambda log, path: trm.audit(log),
    ],
)
def test_a_column_that_may_be_the_time_is_asked_about_by_what_depends_on_order(look, tmp_path):
    """The oldest event of a newest-first log would be the test event."""
    with pytest.raises(ValueError, match=r"has a column that is not read: 't_dat'\. .*time=None"):
        look(Log.from_frame(NEWEST_FIRST), tmp_path / "log.pt")


def test_a_random_split_asks_for_no_time():
    assert len(Log.from_frame(NEWEST_FIRST).split_random((1, 1, 1)).train) == 1


@pytest.mark.parametrize(("time", "item"), [(None, 5), ("t_dat", 3)])
def test_a_time_that_was_said_is_not_asked_about(time, item):
    test = Log.from_frame(NEWEST_FIRST, time=time).leave_last_out().test
    assert test.item_ids.ids(test.items) == [item]


CLICKS = {"user": [1, 1, 1], "item": [10, 11, 12], "is_click": [1, 0, 1]}


@pytest.mark.parametrize(
    "use",
    [
        lambda log, path: log.to_interactions(),
        lambda log, path: log.take(torch.tensor([0, 1])).to_interactions(),
        lambda log, path: log.leave_last_out().train.to_interactions(),
        lambda log, path: saved(log, path).to_interactions(),
        lambda log, path: trm.evaluate_lists("HR@1", {1: [11]}, target=log),
    ],
)
def test_a_column_of_clicks_that_is_not_read_is_asked_about(use, tmp_path):
    with pytest.raises(ValueError, match=r"not read: 'is_click'\. .*value='is_click'"):
        use(Log.from_frame(CLICKS, time=None), tmp_path / "log.pt")


@pytest.mark.parametrize(("value", "hit_rate"), [("is_click", 0), (None, 1)])
def test_a_value_that_was_said_is_not_asked_about(value, hit_rate):
    """Item 11 was shown, but not clicked."""
    assert trm.evaluate_lists("HR@1", {1: [11]}, target=Log.from_frame(CLICKS, value=value)) == {"HR@1": hit_rate}


def test_the_relevance_of_qrels_is_the_value_and_0_or_less_not_relevant(tmp_path):
    """As in trec_eval."""
    (tmp_path / "q.qrels").write_text("q1 0 d1 2\nq1 0 d2 0\nq1 0 d3 -1\n")
    log = Log.from_file(tmp_path / "q.qrels")

    assert log.values.tolist() == [2, 0, -1]
    assert trm.evaluate_lists("MRR", {"q1": ["d2", "d3", "d1"]}, target=log, k=3) == {"MRR@3": 1 / 3}
