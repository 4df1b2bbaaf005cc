"""`RankedLists`: the order is that of a plain sort, and messages name the rows that it puts at fault."""

from itertools import groupby

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torchrecmetrics as trm
from torchrecmetrics.evaluation.ranked_lists import RankedLists
from torchrecmetrics.evaluation.sides import ListEntries
from torchrecmetrics.tables.events import events_of


def lists_of(rows, order, is_ranked=None, may_repeat=False):
    """Return the lists of rows (user, item, rank or score), in the order of the column `order`."""
    columns = dict(zip(("user", "item", order), map(list, zip(*rows, strict=True)), strict=True))
    source = trm.Table(columns).read("rank", "score", lists=True)
    events = events_of(source)
    ids = events.user_ids, events.item_ids
    entries = ListEntries(events.users, events.items, torch.arange(len(ids[0])), source)
    ranked = torch.tensor([is_ranked is None or user in is_ranked for user in ids[0]])
    return RankedLists.of(entries, ranked, ids[0], may_repeat), *ids


def as_rows(found):
    """Return rows (user, item) in the order of the lists."""
    lists, user_ids, item_ids = found
    users = torch.arange(len(lists.lengths)).repeat_interleave(lists.lengths)
    return [(user_ids[user], item_ids[item]) for user, item in zip(users, lists.items, strict=True)]


def fault_of(rows, ranked):
    """Return the row number at which ranks first do not run 1, 2, 3, ... (or 0, 1, 2, ... in all lists); or None."""
    ordered = sorted((user, rank, at) for at, (user, _, rank) in enumerate(rows) if user in ranked)
    lists = [list(entries) for _, entries in groupby(ordered, lambda entry: entry[0])]
    lowest = 0 if sum(rank == 0 for _, rank, _ in ordered) == len(lists) else 1
    wrong = (at for entries in lists for place, (_, rank, at) in enumerate(entries) if rank != place + lowest)
    return next(wrong, None)


USERS, ITEMS = st.integers(0, 3), st.integers(0, 9)
RANKED = st.sets(USERS, min_size=1)


@settings(max_examples=300, deadline=None)
@given(rows=st.lists(st.tuples(USERS, ITEMS, st.integers(0, 4)), min_size=1, max_size=9), ranked=RANKED)
def test_ranks_of_any_kind(rows, ranked):
    """Ranks with gaps, repeats or a 0 where they begin at 1 are refused with the row of a plain sort."""
    if not ranked & {user for user, _, _ in rows}:
        return
    fault = fault_of(rows, ranked)
    if fault is None:
        expected = [(user, item) for user, _, item in sorted((u, rank, item) for u, item, rank in rows if u in ranked)]
        assert as_rows(lists_of(rows, "rank", ranked)) == expected
    else:
        with pytest.raises(ValueError, match=rf"row {fault}, column 'rank': user {rows[fault][0]} has rank"):
            lists_of(rows, "rank", ranked)


@settings(deadline=None)
@given(
    lists=st.lists(st.lists(ITEMS, min_size=1, max_size=6), min_size=1, max_size=4),
    lowest=st.sampled_from([0, 1]),
    random=st.randoms(use_true_random=False),
)
def test_ranks_of_lists(lists, lowest, random):
    """Shuffled ranks give the lists back, and rows that are the same row count once."""
    rows = [(user, item, lowest + place) for user, items in enumerate(lists) for place, item in enumerate(items)]
    expected = [row[:2] for row in rows]
    random.shuffle(rows)
    assert as_rows(lists_of(rows, "rank")) == expected
    twice = rows + rows[::2]
    random.shuffle(twice)
    found = lists_of(twice, "rank", may_repeat=True)
    assert (as_rows(found), found[0].num_repeated) == (expected, len(rows[::2]))


def test_rank_0_where_ranks_begin_at_1():
    """Ranks 1, 3 and 0, 2 of two lists would fill four places, each once, if rank 0 were before its list."""
    with pytest.raises(ValueError, match="row 1, column 'rank': user 0 has rank 3 after 1"):
        lists_of([(0, 5, 1), (0, 6, 3), (1, 5, 0), (1, 6, 2)], "rank")


SCORES = st.one_of(
    st.lists(st.sampled_from([-float("inf"), -1.5, 0.0, 0.5, 2.0]), min_size=12, max_size=12),
    st.lists(st.sampled_from([-(2**63), -3, 0, 2**62, 2**62 + 1]), min_size=12, max_size=12),
)


@settings(max_examples=200, deadline=None)
@given(
    pairs=st.lists(st.tuples(USERS, ITEMS), min_size=1, max_size=12),
    scores=SCORES,
    ranked=RANKED,
)
def test_scores(pairs, scores, ranked):
    """The highest score is first, then the first item; scores stay beside their items; all sizes of batches agree."""
    rows = [(*pair, score) for pair, score in zip(pairs, scores, strict=False) if pair[0] in ranked]
    if not rows:
        return
    found = lists_of([*rows, (9, 0, 1)], "score", ranked)
    lists = found[0]
    ordered = sorted(rows, key=lambda row: (row[0], -row[2], row[1]))
    assert as_rows(found) == [row[:2] for row in ordered]
    same = [a == b for a, b in zip(lists.scores[1:], lists.scores[:-1], strict=True)]
    assert same == [a[2] == b[2] for a, b in zip(ordered[1:], ordered[:-1], strict=True)]


@settings(max_examples=200, deadline=None)
@given(pairs=st.lists(st.tuples(USERS, st.integers(0, 4)), min_size=1, max_size=12), scores=SCORES)
def test_repeats(pairs, scores):
    """The entry that repeats an item is the second one in the order of the list, wherever it is in the table."""
    rows = [(*pair, score) for pair, score in zip(pairs, scores, strict=False)]
    numbered = [(*row, at) for at, row in enumerate(rows)]
    ordered = sorted(numbered, key=lambda row: (row[0], -row[2], row[1], row[3]))
    repeats = (row for place, row in enumerate(ordered) if row[:2] in {earlier[:2] for earlier in ordered[:place]})
    expected = next(repeats, None)
    lists, user_ids, item_ids = lists_of(rows, "score")
    found = lists.repeat(torch.arange(len(lists.lengths)))
    if expected is None:
        assert found is None
    else:
        user, item, where = found
        assert (user_ids[user], item_ids[item]) == expected[:2]
        assert where == f"frame, row {expected[3]}, column 'item'"


def test_scores_of_the_caller_stay_in_order():
    """Lists are sorted in a copy of the table's columns."""
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"user": [0, 0, 1], "item": [5, 6, 7], "score": [0.1, 0.2, 0.3]})
    before = frame.copy()
    trm.evaluate_lists("HR@1", frame, target={0: [6], 1: [7]})
    assert frame.equals(before)
