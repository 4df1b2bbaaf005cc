"""What lists, ground truth, history and groups have in common is counted; hardly anything is asked about."""

import pytest
import torch

import torchrecmetrics as trm
from torchrecmetrics import Interactions

pytest.importorskip("pyarrow")


def counted(lists, target, k=1, **options):
    """Return the counts that are not 0."""
    return {name: n for name, n in trm.evaluate_lists("HR", lists, target=target, k=k, **options).counts().items() if n}


# eve has no list, kim no ground truth; z and w are in no list, v in no ground truth
TARGET = {"al": ["x"], "bo": ["y", "z"], "eve": ["w"]}
LISTS = {"al": ["y", "x"], "bo": ["x", "v"], "kim": ["x"]}
# bo and eve have no history, ida no ground truth; q is neither listed nor relevant
HISTORY = {"al": ["q"], "ida": ["v"]}


def test_users_and_items_that_only_lists_or_only_the_truth_have_are_counted():
    counts = {"num_users": 3, "num_unserved": 1, "num_left_out": 1, "num_unlisted": 2, "num_unknown": 1}

    assert counted(LISTS, TARGET) == counts


def test_excluded_pairs_are_counted_beside_the_others():
    of_history = {"num_excluded": 2, "num_without_history": 2, "num_unmet": 1}

    assert counted(LISTS, TARGET, exclude=HISTORY) == counted(LISTS, TARGET) | of_history


def test_counts_are_printed_with_an_id_of_each_side():
    text = str(trm.evaluate_lists("HR@1", LISTS, target=TARGET, exclude=HISTORY))

    assert (
        "3 users, 1 without a list (such as 'eve'; lists have such as 'kim'), 1 with a list but no ground truth, "
        "2 without excluded items (such as 'bo'; exclude has such as 'ida'), 2 relevant items in no list, 1 list entry "
        "with an item that the ground truth lacks (such as 'v'; it has such as 'w')\n"
        "exclude: 2 pairs, 1 item is neither listed nor relevant (such as 'q'; lists have such as 'x')\n"
    ) in text


def test_an_id_of_the_other_side_is_shown_if_all_of_its_ids_match():
    result = trm.evaluate_lists("HR@1", {"al": ["y", "x"]}, target={"al": ["x"], "bo": ["x"]})

    assert result.examples == {"num_unserved": ["bo", "al"], "num_unknown": ["y", "x"]}
    assert "1 without a list (such as 'bo'; lists have such as 'al'), 1 list entry" in str(result)


def test_row_numbers_are_shown_as_ids_are():
    """Item 99 is beyond the six items of the ground truth, and keeps its number."""
    target = Interactions.from_columns([0, 1], [1, 1], num_items=6)
    result = trm.evaluate_lists("HR@1", ([[1, 99]], [0]), target=target)

    assert result.examples == {"num_unserved": [1, 0], "num_unknown": [99, 1]}


# rows 2 and 3 have no item; item 7 is beyond the five
WITH_EMPTY_ROWS = Interactions.from_columns([0, 1, 1], [0, 3, 4], num_users=4, num_items=5)


@pytest.mark.parametrize(
    ("lists", "target", "counts"),
    [
        ({0: [7], 1: [9]}, {0: [9]}, {"num_users": 1, "num_left_out": 1, "num_unknown": 1}),  # 9 is in a list
        ({0: [9, 7], 1: [7, 9]}, {0: [9]}, {"num_users": 1, "num_left_out": 1, "num_unknown": 2}),  # entries
        ({0: [], 1: []}, {0: [9]}, {"num_users": 1, "num_unserved": 1, "num_left_out": 1, "num_unlisted": 1}),
        (
            ([[0, 1], [2, 7], [2, 3]], [0, 1, 2]),
            WITH_EMPTY_ROWS,
            {"num_users": 2, "num_skipped": 2, "num_left_out": 1, "num_unlisted": 1, "num_unknown": 1},
        ),
    ],
    ids=["a list that is left out", "two entries", "empty lists", "empty rows"],
)
def test_lists_that_are_left_out_or_empty_are_counted(lists, target, counts):
    assert counted(lists, target, complete=True) == counts


TEST = Interactions.from_frame({"user": [*"abc"], "item": [*"xyz"]})


@pytest.mark.parametrize(
    ("train", "number"), [(Interactions.from_frame({"user": [*"ba"], "item": [*"xz"]}), 1), (None, 0)]
)
def test_users_without_history_are_counted_for_models_too(train, number):
    """c is not in the history."""
    assert trm.evaluate("HR@1", torch.eye(3), torch.eye(3), target=TEST, exclude=train).num_without_history == number


STRANGERS = Interactions.from_frame({"user": [*"pq"], "item": [*"xz"]})
OTHER_ITEMS = Interactions.from_frame({"user": [*"ab"], "item": [*"mn"]})
GROUPS = trm.Groups.from_column(["a"], user_ids=["p"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exclude": STRANGERS}, r"no user of exclude \(such as 'p'\) is a user of target \(such as 'a'\): leave excl"),
        ({"exclude": OTHER_ITEMS}, r"no item of exclude \(such as 'm'\) is an item of target \(such as 'x'\)"),
        ({"groups": GROUPS}, "no user of target is in groups, such as 'a'"),
    ],
)
def test_a_history_and_groups_without_anything_of_the_target_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        trm.evaluate("HR@1", torch.eye(3), torch.eye(3), target=TEST, **options)


def one_item_each(number, letter):
    """Return lists of one item each, of which there are ten: a0, ..., a9."""
    return {user: [f"{letter}{user % 10}"] for user in range(number)}


@pytest.mark.parametrize("number", [10, 3000])
def test_lists_without_a_hit_are_0_with_a_warning(number):
    """Every relevant item is listed for others."""
    target = {user: [f"a{(user + 1) % 10}"] for user in range(number)}
    with pytest.warns(
        UserWarning, match=rf"no list of {number} users holds .* such as 'a0', those of target such as 'a0'"
    ):
        result = trm.evaluate_lists("HR@1", one_item_each(number, "a"), target=target)

    assert result["HR@1"] == 0


@pytest.mark.parametrize("number", [10, 3000])
def test_lists_without_any_item_of_the_truth_are_refused(number):
    message = "no item of lists is an item of target; .* such as 'a0', those of target such as 'b0': .* pass catalogue="
    with pytest.raises(ValueError, match=message):
        trm.evaluate_lists("HR@1", one_item_each(number, "a"), target=one_item_each(number, "b"))


def test_lists_without_any_item_of_the_truth_are_0_beside_a_catalogue_of_both():
    items = [f"{letter}{number}" for letter in "ab" for number in range(10)]
    catalogue = trm.Catalogue(20, item_ids=items)
    with pytest.warns(UserWarning, match="no list of 10 users holds an item that is relevant to its user"):
        result = trm.evaluate_lists("HR@1", one_item_each(10, "a"), target=one_item_each(10, "b"), catalogue=catalogue)

    assert result["HR@1"] == 0


def test_nine_lists_without_any_item_of_the_truth_are_0():
    assert trm.evaluate_lists("HR@1", one_item_each(9, "a"), target=one_item_each(9, "b"))["HR@1"] == 0


USERS = [*range(10)]


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({user: [] for user in USERS}, "no list of 10 users holds an item$"),
        (
            {"user": USERS, "item": USERS, "score": [-torch.inf] * 10},
            "no list of 10 users holds an item with a score ab",
        ),
    ],
    ids=["empty", "scores of minus infinity"],
)
def test_lists_without_a_candidate_are_0_with_a_warning(lists, message):
    with pytest.warns(UserWarning, match=message):
        result = trm.evaluate_lists("HR@1", lists, target={user: [user] for user in USERS}, complete=True)

    assert result["HR@1"] == 0


def test_lists_of_other_users_are_a_warning():
    """Users 90 to 99 of 0 to 99 have a list, and are users of the ground truth."""
    lists, target = {user: ["x"] for user in range(100)}, {user: ["x"] for user in range(90, 190)}
    message = "90 of 100 users of .* no list, while 90 of 100 lists .* such as 100, lists such as 0: are"
    with pytest.warns(UserWarning, match=message):
        assert trm.evaluate_lists("HR@1", lists, target=target)["HR@1"] == 10 / 100


@pytest.mark.parametrize(
    ("with_list", "with_truth", "hit_rate"),
    [
        (range(100), range(50, 150), 1 / 2),  # half of both sides is matched
        (range(100), range(1000), 1 / 10),  # all lists are
        (range(100), range(10), 1),  # all users are
        (range(9), range(8, 17), 1 / 9),  # few users
    ],
    ids=str,
)
def test_lists_of_other_users_are_no_warning_if_half_match_or_there_are_nine(with_list, with_truth, hit_rate):
    lists, target = ({user: ["x"] for user in users} for users in (with_list, with_truth))

    assert trm.evaluate_lists("HR@1", lists, target=target)["HR@1"] == hit_rate


CUT = {"user": [1, 1, 1, 2, 2, 2], "item": [1, 2, 3, 1, 2, 3], "score": [9, 8, 8, 9, 9, 8]}
"""The list of user 1 ends among equal scores, from rank 2 on; that of user 2 has them at ranks 1 and 2."""


@pytest.mark.parametrize(("k", "complete", "number"), [(1, False, 0), (2, False, 1), (3, False, 1), (3, True, 0)])
def test_lists_that_end_among_equal_scores_are_counted(k, complete, number):
    """Items of the same score may be missing, unless the lists are complete."""
    result = trm.evaluate_lists("HR", CUT, target={1: [1], 2: [3]}, k=k, complete=complete)

    assert result.num_cut_ties == number
    assert ("1 whose list ends among equal scores" in str(result)) == (number > 0)


def test_columns_that_were_not_read_are_named():
    lists = {"user": ["a"], "item": ["x"], "rank": [1], "model": ["m"]}
    target = {"user": ["a"], "item": ["x"], "timestamp": [3]}
    exclude = {"user": ["a"], "item": ["q"], "rating": [3], "timestamp": [1]}
    result = trm.evaluate_lists("HR@1", lists, target=target, exclude=exclude)

    assert result.unread == {"lists": ["model"], "target": ["timestamp"], "exclude": ["rating", "timestamp"]}
    assert "columns not read: 'model' of lists; 'timestamp' of target\n" in str(result)
    assert "such as 'q'; lists have such as 'x'), not read: " in str(result)


def test_columns_of_sessions_that_were_not_read_are_named():
    sessions = {"user": ["a"], "item": ["x"], "rank": [1], "model": ["m"], "clicked": [1]}

    assert trm.evaluate_lists("HR@1", sessions, label="clicked").unread == {"lists": ["model"]}


@pytest.mark.parametrize(("rule", "unread"), [(None, {"target": ["time"]}), ("last", {})])
def test_times_of_a_truth_are_read_for_the_last_value_alone(rule, unread):
    truth = {"user": ["al", "bo"], "item": ["x", "y"], "value": [1, 2], "time": [2, 1]}

    assert trm.evaluate_lists("HR@1", LISTS, target=truth, values_reduce=rule).unread == unread
