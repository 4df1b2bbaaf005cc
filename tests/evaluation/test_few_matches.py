"""What lists, ground truth, history and groups have in common is counted; hardly anything is asked about."""

import json

import pytest
import torch

import torchrecmetrics as trm

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")


def counted(lists, target, k=1, **options):
    return {name: n for name, n in trm.evaluate_lists("HR", lists, target=target, k=k, **options).counts().items() if n}


TARGET, LISTS = {"al": ["x"], "bo": ["y", "z"], "eve": ["w"]}, {"al": ["y", "x"], "bo": ["x", "v"], "kim": ["x"]}
HISTORY = {"al": ["q"], "ida": ["v"]}


def test_users_and_items_of_one_side_are_counted():
    counts = {"num_users": 3, "num_unserved": 1, "num_left_out": 1, "num_unlisted": 1 + 1, "num_unknown": 1}

    assert counted(LISTS, TARGET) == counts


def test_excluded_pairs_are_counted():
    """Of al and ida, ida has no ground truth; bo and eve have no history; q is neither listed nor relevant."""
    counts = counted(LISTS, TARGET, exclude=HISTORY)

    assert {name: counts[name] for name in ("num_excluded", "num_without_history", "num_unmet")} == {
        "num_excluded": 2,
        "num_without_history": 2,
        "num_unmet": 1,
    }


def test_counts_are_printed_with_an_id_of_each_side():
    text = str(trm.evaluate_lists("HR", LISTS, target=TARGET, k=1, exclude=HISTORY))

    assert (
        "3 users, 1 without a list (such as 'eve'; lists have such as 'kim'), 1 with a list but no ground truth, "
        "2 without excluded items (such as 'bo'; exclude has such as 'ida'), 2 relevant items in no list, 1 list entry "
        "with an item that the ground truth lacks (such as 'v'; it has such as 'w')\n"
        "exclude: 2 pairs, 1 item is neither listed nor relevant (such as 'q'; lists have such as 'x')\n"
    ) in text


def test_an_id_of_the_other_side_is_shown_if_all_of_its_ids_match():
    found = trm.evaluate_lists("HR", {"al": ["y", "x"]}, target={"al": ["x"], "bo": ["x"]}, k=1)

    assert found.examples == {"num_unserved": ["bo", "al"], "num_unknown": ["y", "x"]}
    assert "1 without a list (such as 'bo'; lists have such as 'al'), 1 list entry" in str(found)


def test_row_numbers_are_shown_as_ids_are():
    """Item 99 is beyond the six items of the ground truth, and keeps its number."""
    target = trm.Interactions.from_columns([0, 1], [1, 1], num_items=6)
    found = trm.evaluate_lists("HR", ([[1, 99]], [0]), target=target, k=1)

    assert found.examples == {"num_unserved": [1, 0], "num_unknown": [99, 1]}


def test_json_has_counts_and_ids():
    result = json.loads(trm.evaluate_lists("HR", LISTS, target=TARGET, k=1, exclude=HISTORY).to_json())

    assert result["counts"]["num_unmet"] == 1
    assert result["examples"]["num_unmet"] == ["q", "x"]


def test_lists_of_users_without_ground_truth_are_counted():
    """Items in lists of users without ground truth are listed, and may be unknown to the ground truth."""
    assert counted({0: [7], 1: [9]}, {0: [9]}) == {"num_users": 1, "num_left_out": 1, "num_unknown": 1}
    frame = pd.DataFrame({"user": [*"aabbcc"], "item": [*"xvywzu"], "rank": [1, 2] * 3})
    counts = {"num_users": 3, "num_unserved": 1, "num_left_out": 1, "num_unlisted": 1, "num_unknown": 3}
    assert counted(frame, {"a": ["x"], "b": ["z", "q"], "d": ["y"]}, k=2) == counts
    target = trm.Interactions.from_columns([0, 1, 1], [0, 3, 4], num_users=4, num_items=5)
    lists = (torch.tensor([[0, 1], [2, 7], [2, 3]]), torch.tensor([0, 1, 2]))
    counts = {"num_users": 2, "num_skipped": 2, "num_left_out": 1, "num_unlisted": 1, "num_unknown": 1}
    assert counted(lists, target, k=2) == counts


def test_empty_lists():
    """If all lists are empty, no user has a list, and no list a relevant item."""
    counts = {"num_users": 1, "num_unserved": 1, "num_left_out": 1, "num_unlisted": 1}
    assert counted({"al": [], "bo": []}, {"al": ["x"]}, complete=True) == counts


def test_history_of_a_model_is_counted():
    """`evaluate` counts the users without excluded items, by id, too."""
    users, items = torch.eye(3), torch.eye(3)
    test = trm.Interactions.from_frame({"user": [*"abc"], "item": [*"xyz"]})
    train = trm.Interactions.from_frame({"user": [*"ba"], "item": [*"xz"]})
    assert trm.evaluate("HR@1", users, items, target=test, exclude=train).num_without_history == 1
    assert trm.evaluate("HR@1", users, items, target=test).num_without_history == 0


def test_a_history_that_meets_nobody_is_an_error():
    """No known user: an error at every entry point, and a warning of a callback; the call without it is the cure."""
    test = trm.Interactions.from_frame({"user": [*"abc"], "item": [*"xyz"]})
    train = trm.Interactions.from_frame({"user": [*"pq"], "item": [*"xz"]})
    message = r"no user of exclude \(such as 'p'\) is a user of target \(such as 'a'\): leave exclude= out if these"
    with pytest.raises(ValueError, match=message):
        trm.evaluate("HR@1", torch.eye(3), torch.eye(3), target=test, exclude=train)
    with pytest.raises(ValueError, match=message):
        trm.evaluate_lists("HR@1", {"a": ["x"]}, target=test, exclude=train)
    assert trm.evaluate("HR@1", torch.eye(3), torch.eye(3), target=test)["HR@1"] == 1
    strange = trm.Interactions.from_frame({"user": [*"ab"], "item": [*"mn"]})
    with pytest.raises(ValueError, match=r"no item of exclude \(such as 'm'\) is an item of target \(such as 'x'\)"):
        trm.evaluate("HR@1", torch.eye(3), torch.eye(3), target=test, exclude=strange)


def test_groups_that_know_nobody():
    """Groups of other users are an error."""
    strangers = trm.Groups.from_column(["a"], user_ids=["p"])
    with pytest.raises(ValueError, match="no user of target is in groups, such as 'u0'"):
        trm.evaluate_lists("HR@1", {"u0": ["x"]}, target={"u0": ["x"]}, groups=strangers)


def one_item_each(number, letter):
    """Return lists of one item each, which ten users share."""
    return {user: [f"{letter}{user % 10}"] for user in range(number)}


def shifted(number):
    """Return a ground truth of which no list of the same users holds an item, though others do."""
    return {user: [f"a{(user + 1) % 10}"] for user in range(number)}


@pytest.mark.parametrize("number", [10, 3000])
def test_a_model_without_a_hit_is_0_with_a_warning(number):
    with pytest.warns(
        UserWarning, match=rf"no list of {number} users holds .* such as 'a0', those of target such as 'a0'"
    ):
        found = trm.evaluate_lists("HR@1", one_item_each(number, "a"), target=shifted(number))

    assert found["HR@1"] == 0


@pytest.mark.parametrize("number", [10, 3000])
def test_lists_without_any_item_of_the_ground_truth_are_an_error(number):
    message = "no item of lists is an item of target; .* such as 'a0', those of target such as 'b0': .* pass catalogue="
    with pytest.raises(ValueError, match=message):
        trm.evaluate_lists("HR@1", one_item_each(number, "a"), target=one_item_each(number, "b"))


def test_a_catalogue_of_both_makes_such_lists_0():
    items = [f"{letter}{number}" for letter in "ab" for number in range(10)]
    with pytest.warns(UserWarning, match="no list of 10 users holds an item that is relevant to its user"):
        found = trm.evaluate_lists(
            "HR@1", one_item_each(10, "a"), target=one_item_each(10, "b"), catalogue=trm.Catalogue(20, item_ids=items)
        )

    assert found["HR@1"] == 0


def test_few_lists_without_a_hit_are_0():
    assert trm.evaluate_lists("HR@1", one_item_each(9, "a"), target=one_item_each(9, "b"))["HR@1"] == 0


def test_empty_lists_of_all_users_are_a_warning():
    target = one_item_each(10, "b")
    with pytest.warns(UserWarning, match="no list of 10 users holds an item$"):
        found = trm.evaluate_lists("HR@1", {user: [] for user in target}, target=target, complete=True)

    assert (found["HR@1"], found.num_unserved) == (0, 10)


def test_scores_of_minus_infinity_are_a_warning():
    target = one_item_each(30, "b")
    lists = {"user": [*target], "item": [item for (item,) in target.values()], "score": [-torch.inf] * 30}
    with pytest.warns(UserWarning, match="no list of 30 users holds an item with a score above -inf"):
        found = trm.evaluate_lists("HR@1", lists, target=target)

    assert found["HR@1"] == 0


def test_lists_of_other_users():
    """90 of 100 users without a list, while 90 of 100 lists are of others: a warning."""
    lists = {user: ["x", "y"] for user in range(100)}
    for users, asks in ((range(90, 190), True), (range(50, 150), False), (range(1000), False), (range(10), False)):
        target = {user: ["x"] for user in users}
        if asks:
            with pytest.warns(
                UserWarning,
                match="90 of 100 users of .* no list, while 90 of 100 lists .* such as 100, lists such as 0: are",
            ):
                assert trm.evaluate_lists("HR@1", lists, target=target)["HR@1"] == 0.1
        else:
            served = len({*users} & {*lists})
            assert trm.evaluate_lists("HR@1", lists, target=target)["HR@1"] == served / len(users)
    few = {user: ["x"] for user in range(9)}
    assert trm.evaluate_lists("HR@1", few, target={user + 8: ["x"] for user in range(9)})["HR@1"] == 1 / 9


def test_lists_that_end_among_equal_scores():
    """Lists of a constant model may lack items of the same score, which counts and prints; whole lists do not."""
    test = trm.Interactions.from_dense(torch.eye(5) > 0)
    for k, expected in ((1, 0), (2, 5), (3, 5)):
        lists = trm.recommend(torch.ones(5, 2), torch.ones(5, 2), k)
        found = trm.evaluate_lists("HR", lists, target=test, k=k)
        assert found.num_cut_ties == expected
        assert ("5 whose lists end among equal scores" in str(found)) == (expected > 0)
        assert trm.evaluate_lists("HR", lists, target=test, k=k, complete=True).num_cut_ties == 0
    columns = {"user": [1, 1, 1, 2, 2, 2], "item": [1, 2, 3, 1, 2, 3], "score": [9, 8, 8, 9, 9, 8]}
    for k, expected in ((1, 0), (2, 1), (3, 1)):  # of the first user's list, from rank 2 on
        assert trm.evaluate_lists("HR", columns, target={1: [1], 2: [3]}, k=k).num_cut_ties == expected


def test_unread_columns_are_printed():
    """Columns that were not read, of `exclude=` too, are named below the result."""
    lists = pd.DataFrame({"user": ["a"], "item": ["x"], "rank": [1], "model": ["m"]})
    target = {"user": ["a"], "item": ["x"], "timestamp": [3]}
    exclude = {"user": ["a"], "item": ["q"], "rating": [3], "timestamp": [1]}
    found = trm.evaluate_lists("HR@1", lists, target=target, exclude=exclude)
    assert found.unread == {"lists": ["model"], "target": ["timestamp"], "exclude": ["rating", "timestamp"]}
    assert "columns not read: 'model' of lists; 'timestamp' of target\n" in str(found)
    assert (
        "exclude: 1 pair, 1 item is neither listed nor relevant (such as 'q'; lists have such as 'x'), not read: "
        in str(found)
    )
    labelled = trm.evaluate_lists("HR@1", lists.assign(y=1), label="y")
    assert labelled.unread == {"lists": ["model"]}


def test_scored_lists_have_thresholds():
    """Surprise's worked example: two of a user's four rated items reach 3.5, and one of these is relevant."""
    estimates = {"user": ["u"] * 4, "item": [*"abcd"], "score": [4.9, 4.5, 3.4, 2.3]}
    target = {"u": ["a", "c", "d"]}  # true ratings 5, 2, 5, 4
    for threshold, expected in ((3.5, [1 / 2, 1 / 3]), (None, [2 / 3, 2 / 3])):
        precision = trm.Precision(3, denominator="recommended", score_threshold=threshold)
        found = trm.evaluate_lists([precision, trm.Recall(3, score_threshold=threshold)], estimates, target=target)
        assert [value.item() for value in found.values()] == pytest.approx(expected)


def test_excluded_entries_do_not_reach_a_threshold():
    """An excluded entry is not recommended, whatever its score: one of one entry from 3.5 on is a hit."""
    metric = trm.Precision(3, denominator="recommended", score_threshold=3.5)
    scores, excluded = torch.tensor([[4.9, 4.5, 3.4, 2.3]]), torch.tensor([[0]])
    metric.update(trm.Lists(torch.arange(4)[None], torch.tensor([[1]]), scores=scores, exclude=excluded, complete=True))
    assert metric.compute() == 1


def test_times_that_order_the_values_of_a_pair_are_read():
    """Without `values_reduce="last"`, nobody reads the times of a ground truth."""
    truth = {"user": ["al", "bo"], "item": ["x", "y"], "value": [1, 2], "time": [2, 1]}

    assert trm.evaluate_lists("HR", LISTS, target=truth, k=1).unread == {"target": ["time"]}
    assert trm.evaluate_lists("HR", LISTS, target=truth, k=1, values_reduce="last").unread == {}
