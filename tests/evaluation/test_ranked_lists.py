"""`RankedLists`: the order is that of a plain sort, and messages name the rows that it puts at fault."""

import re
from itertools import groupby, pairwise

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import torchrecmetrics as trm
from torchrecmetrics.evaluation.ranked_lists import RankedLists
from torchrecmetrics.evaluation.sides import ListEntries
from torchrecmetrics.tables.events import events_of


def lists_of(rows, order, is_ranked=None, may_repeat=False):
    """Return the lists of rows (user, item, rank or score), in the order of the column `order`, and all ids."""
    columns = dict(zip(("user", "item", order), map(list, zip(*rows, strict=True)), strict=True))
    source = trm.Table(columns).read("rank", "score", lists=True)
    events = events_of(source)
    ids = events.user_ids, events.item_ids
    entries = ListEntries(events.users, events.items, torch.arange(len(ids[0])), source)
    ranked = torch.tensor([is_ranked is None or user in is_ranked for user in ids[0]])
    return RankedLists.of(entries, ranked, ids[0], may_repeat), *ids


def as_rows(lists, user_ids, item_ids):
    """Return rows (user, item) in the order of the lists."""
    users = torch.arange(len(lists.lengths)).repeat_interleave(lists.lengths)
    return [(user_ids[user], item_ids[item]) for user, item in zip(users, lists.items, strict=True)]


def sorted_or_fault(rows, ranked):
    """Return rows (user, item) in order, or the number of the row that is at fault."""
    try:
        return as_rows(*lists_of(rows, "rank", ranked))
    except ValueError as error:
        return int(re.search(r"row (\d+), column 'rank': user \d has rank", str(error))[1])


def plainly_sorted_or_fault(rows, ranked):
    """Do the same by sorting: ranks run 1, 2, 3, ... in each list (or 0, 1, 2, ... in all lists)."""
    ordered = sorted((user, rank, at) for at, (user, _, rank) in enumerate(rows) if user in ranked)
    lists = [list(entries) for _, entries in groupby(ordered, lambda entry: entry[0])]
    lowest = 0 if sum(rank == 0 for _, rank, _ in ordered) == len(lists) else 1
    for entries in lists:
        for place, (_, rank, at) in enumerate(entries):
            if rank != place + lowest:
                return at
    return [rows[at][:2] for _, _, at in ordered]


USERS, ITEMS = st.integers(0, 3), st.integers(0, 9)
RANKED = st.sets(USERS, min_size=1)


@settings(max_examples=300, deadline=None)
@given(rows=st.lists(st.tuples(USERS, ITEMS, st.integers(0, 4)), min_size=1, max_size=9), ranked=RANKED)
def test_ranks_are_sorted_or_refused_with_the_row_of_a_plain_sort(rows, ranked):
    """Ranks with gaps, repeats or a 0 where they begin at 1 are refused."""
    assume(ranked & {user for user, _, _ in rows})

    assert sorted_or_fault(rows, ranked) == plainly_sorted_or_fault(rows, ranked)


LISTS = st.lists(st.lists(ITEMS, min_size=1, max_size=6), min_size=1, max_size=4)


@settings(deadline=None)
@given(LISTS, st.sampled_from([0, 1]), st.randoms(use_true_random=False))
def test_equal_rows_are_one_row_if_they_may_repeat(lists, lowest, random):
    rows = [(user, item, rank) for user, items in enumerate(lists) for rank, item in enumerate(items, start=lowest)]
    twice = rows + rows[::2]
    random.shuffle(twice)
    result = lists_of(twice, "rank", may_repeat=True)

    assert as_rows(*result) == [row[:2] for row in rows]
    assert result[0].num_repeated == len(rows[::2])


def test_rank_0_is_not_put_before_its_list():
    """Ranks 1, 3 and 0, 2 of two lists would then fill four places, each once."""
    with pytest.raises(ValueError, match="row 1, column 'rank': user 0 has rank 3 after 1"):
        lists_of([(0, 5, 1), (0, 6, 3), (1, 5, 0), (1, 6, 2)], "rank")


PAIRS = st.lists(st.tuples(USERS, ITEMS), min_size=1, max_size=12)
SCORES = st.one_of(
    st.lists(st.sampled_from([-float("inf"), -1.5, 0.0, 0.5, 2.0]), min_size=12, max_size=12),
    st.lists(st.sampled_from([-(2**63), -3, 0, 2**62, 2**62 + 1]), min_size=12, max_size=12),
)


def with_scores(pairs, scores):
    """Return rows (user, item, score)."""
    return [(*pair, score) for pair, score in zip(pairs, scores, strict=False)]


@settings(max_examples=200, deadline=None)
@given(pairs=PAIRS, scores=SCORES, ranked=RANKED)
def test_the_highest_score_is_first_then_the_first_item(pairs, scores, ranked):
    """Scores stay beside their items: equal ones are equal."""
    rows = [row for row in with_scores(pairs, scores) if row[0] in ranked]
    assume(rows)
    result = lists_of([*rows, (9, 0, 1)], "score", ranked)
    ordered = sorted(rows, key=lambda row: (row[0], -row[2], row[1]))

    assert as_rows(*result) == [row[:2] for row in ordered]
    assert [a == b for a, b in pairwise(result[0].scores)] == [a[2] == b[2] for a, b in pairwise(ordered)]


@settings(max_examples=200, deadline=None)
@given(pairs=st.lists(st.tuples(USERS, st.integers(0, 4)), min_size=1, max_size=12), scores=SCORES)
def test_the_entry_that_repeats_an_item_is_the_second_in_the_order_of_the_list(pairs, scores):
    rows = with_scores(pairs, scores)
    ordered = sorted(enumerate(rows), key=lambda entry: (entry[1][0], -entry[1][2], entry[1][1], entry[0]))
    seen, expected = set(), []
    for at, (user, item, _) in ordered:
        expected += [(user, item, f"frame, row {at}, column 'item'")] if (user, item) in seen else []
        seen.add((user, item))
    lists, user_ids, item_ids = lists_of(rows, "score")
    repeats = [lists.repeat(torch.arange(len(lists.lengths)))]

    result = [(user_ids[user], item_ids[item], where) for user, item, where in filter(None, repeats)]
    assert result == expected[:1]


def test_the_columns_of_the_caller_stay_in_order():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"user": [0, 0, 1], "item": [5, 6, 7], "score": [0.1, 0.2, 0.3]})
    before = frame.copy()
    trm.evaluate_lists("HR@1", frame, target={0: [6], 1: [7]})

    assert frame.equals(before)
