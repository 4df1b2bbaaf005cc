"""What lists, ground truth, history and groups have in common is counted; hardly anything is asked about."""

import json

import pytest
import torch

import torchrecmetrics as trm

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")


def counted(lists, target, k=1, **options):
    return {name: n for name, n in trm.evaluate_lists("HR", lists, target=target, k=k, **options).counts().items() if n}


def test_counts_of_what_did_not_meet():
    """Users and items that one side lacks, and users whose history is unknown, are counted and printed."""
    target, lists = {"al": ["x"], "bo": ["y", "z"], "eve": ["w"]}, {"al": ["y", "x"], "bo": ["x", "v"], "kim": ["x"]}
    counts = {"num_users": 3, "num_unserved": 1, "num_left_out": 1, "num_unlisted": 2, "num_unknown": 1}
    assert counted(lists, target) == counts
    history = {"al": ["q"], "ida": ["v"]}
    assert counted(lists, target, exclude=history) == counts | {"num_without_history": 2, "num_unmet": 1}
    text = str(trm.evaluate_lists("HR", lists, target=target, k=1, exclude=history))
    assert (
        "3 users, 1 without a list (such as 'eve'; lists have such as 'kim'), 1 more with a list but no ground truth, "
        "2 without excluded items, 2 relevant items in no list, 1 list entry with an item that the ground truth lacks "
        "(such as 'v'; it has such as 'w')\n"
        "0 of 1 items of exclude are listed or relevant (such as 'q'; lists have such as 'x')\n"
    ) in text


def test_ids_of_one_side_stand_alone():
    """Where the other side lacks nothing, an unmatched id is shown without another; each count has its own in JSON."""
    found = trm.evaluate_lists("HR", {"al": ["y", "x"]}, target={"al": ["x"], "bo": ["x"]}, k=1)
    assert (
        "1 without a list (such as 'bo'), 1 list entry with an item that the ground truth lacks (such as 'y')"
        in str(found)
    )
    assert json.loads(found.to_json())["examples"] == {"num_unserved": ["bo"], "num_unknown": ["y"]}
    found = trm.evaluate_lists("HR", {"al": ["x"], "Bo": ["x"]}, target={"al": ["x"], "bo": ["x"]}, k=1)
    assert found.examples == {"num_unserved": ["bo", "Bo"], "num_left_out": ["Bo", "bo"]}
    rows = trm.evaluate_lists("HR", ([[1]], [0]), target=trm.Interactions.from_columns([0, 1], [1, 1]), k=1)
    assert (rows.num_unserved, rows.examples) == (1, {})


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
    message = "no user of exclude is a user of target, such as 'p' and 'a': leave exclude= out if these users are new"
    with pytest.raises(ValueError, match=message):
        trm.evaluate("HR@1", torch.eye(3), torch.eye(3), target=test, exclude=train)
    with pytest.raises(ValueError, match=message):
        trm.evaluate_lists("HR@1", {"a": ["x"]}, target=test, exclude=train)
    assert trm.evaluate("HR@1", torch.eye(3), torch.eye(3), target=test)["HR@1"] == 1
    strange = trm.Interactions.from_frame({"user": [*"ab"], "item": [*"mn"]})
    with pytest.raises(ValueError, match="no item of exclude is an item of target, such as 'm' and 'x'"):
        trm.evaluate("HR@1", torch.eye(3), torch.eye(3), target=test, exclude=strange)


def test_groups_that_know_nobody():
    """Groups of other users are an error."""
    strangers = trm.Groups.from_column(["a"], user_ids=["p"])
    with pytest.raises(ValueError, match="no user of target is in groups, such as 'u0'"):
        trm.evaluate_lists("HR@1", {"u0": ["x"]}, target={"u0": ["x"]}, groups=strangers)


@pytest.mark.parametrize("number", [9, 10, 999, 1000])
def test_lists_without_a_hit(number):
    """Lists of ten users that hit nothing are asked about; it is an error if no item of theirs is one of the truth, and
    random lists would hit something.
    """
    message = rf"no list of {number} users holds an item that is relevant to its user; .* like '\w+', .* like '\w+'"
    lists, others = ({user: [f"{letter}{user % 10}"] for user in range(number)} for letter in "ab")
    shifted = {user: [f"a{(user + 1) % 10}"] for user in range(number)}
    for target in (others, shifted):
        if number >= 999 and target is others:
            with pytest.raises(ValueError, match=message):
                trm.evaluate_lists("HR@1", lists, target=target)
        elif number >= 10:
            with pytest.warns(UserWarning, match=message):
                assert trm.evaluate_lists("HR@1", lists, target=target)["HR@1"] == 0
        else:
            assert trm.evaluate_lists("HR@1", lists, target=target)["HR@1"] == 0
    deep = {user: [*items, *others[user]] for user, items in lists.items()}  # a hit below the cut-off
    assert trm.evaluate_lists("HR@1", deep, target=others)["HR@1"] == 0


def test_lists_of_other_users():
    """90 of 100 users without a list, while 90 of 100 lists are of others: a warning."""
    lists = {user: ["x", "y"] for user in range(100)}
    for users, asks in ((range(90, 190), True), (range(50, 150), False), (range(1000), False), (range(10), False)):
        target = {user: ["x"] for user in users}
        if asks:
            with pytest.warns(
                UserWarning, match="90 of 100 users of .* no list, while 90 of 100 lists .* such as 100 and 0: are"
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
    found = trm.evaluate_lists("HR@1", lists, target=target, exclude=trm.Table(exclude, value=None))
    assert found.unread == {"lists": ["model"], "target": ["timestamp"], "exclude": ["rating", "timestamp"]}
    assert "columns not read: 'model' of lists; 'timestamp' of target; 'rating', 'timestamp' of exclude\n" in str(found)
    labelled = trm.evaluate_lists("HR@1", lists.assign(y=1), label="y")
    assert labelled.unread == {"lists": ["model"]}


def test_scored_lists_have_thresholds():
    """Surprise's worked example: two of a user's four rated items reach 3.5, and one of these is relevant."""
    estimates = {"user": ["u"] * 4, "item": [*"abcd"], "score": [4.9, 4.5, 3.4, 2.3]}
    target = {"u": ["a", "c", "d"]}  # true ratings 5, 2, 5, 4
    for threshold, precision, recall in ((3.5, 1 / 2, 1 / 3), (None, 2 / 3, 2 / 3)):
        metrics = [
            trm.Precision(3, denominator="recommended", score_threshold=threshold),
            trm.Recall(3, score_threshold=threshold),
        ]
        found = trm.evaluate_lists(metrics, estimates, target=target)
        assert [value.item() for value in found.values()] == pytest.approx([precision, recall])
        lists = trm.Lists(
            torch.tensor([[0, 1, 2, 3]]), torch.tensor([[0, 2, 3]]), scores=torch.tensor([[4.9, 4.5, 3.4, 2.3]])
        )
        for metric, expected in zip(metrics, (precision, recall), strict=True):
            metric = metric.clone()
            metric.update(lists)
            assert metric.compute().item() == pytest.approx(expected)


def test_excluded_entries_do_not_reach_a_threshold():
    """An excluded entry is not recommended, whatever its score: one of one entry from 3.5 on is a hit."""
    metric = trm.Precision(3, denominator="recommended", score_threshold=3.5)
    scores, excluded = torch.tensor([[4.9, 4.5, 3.4, 2.3]]), torch.tensor([[0]])
    metric.update(trm.Lists(torch.arange(4)[None], torch.tensor([[1]]), scores=scores, exclude=excluded, complete=True))
    assert metric.compute() == 1
