"""A model's rows are those of the ground truth: a history with as many other ids is warned of; cures are run."""

import re

import pytest
import torch

import torchrecmetrics as trm
from torchrecmetrics import Interactions

pytest.importorskip("pyarrow")


TRUTH = {"user": ["a", "c", "d"], "item": ["x", "y", "z"]}
HISTORY = {"user": ["a", "b", "c"], "item": ["y", "x", "z"]}
"""As many other users: the model's row 1 is the c of the ground truth or the b of the history."""


def read(side):
    """Return the ground truth and the history, in which users are items if the side is "item"."""
    other = {"user": "item", "item": "user"}[side]
    return [Interactions.from_frame({side: frame["user"], other: frame["item"]}) for frame in (TRUTH, HISTORY)]


def perfect_model(target):
    """Return embeddings that rank the relevant items of each row first."""
    return torch.from_numpy(target.to_scipy().toarray()), torch.eye(target.num_items, dtype=torch.float64)


def hit_rate(model, target, exclude=None):
    return trm.evaluate("HR@1", *model, target=target, exclude=exclude)["HR@1"].item()


@pytest.mark.parametrize("side", ["user", "item"])
def test_as_many_other_ids_of_a_history_are_a_warning_with_two_cures(side):
    """One for a model with the rows of the history, and one for a model with those of the ground truth."""
    test, train = read(side)
    trained = perfect_model(test.recode(user_ids=train.user_ids, item_ids=train.item_ids))
    message = rf"^row 1 of the model's {side}s is taken as target's 'c', not exclude's 'b': if it is exclude's, "
    message += r"pass (target\.recode\(.*\)), else (exclude\.recode\(.*\))$"
    with pytest.warns(UserWarning, match=message) as warned:
        assert hit_rate(trained, test, train) < 1
    calls = re.search(message, str(warned[0].message)).groups()
    as_train, as_test = (eval(call, {"target": test, "exclude": train}) for call in calls)

    assert hit_rate(trained, as_train, train) == 1
    assert hit_rate(perfect_model(test), test, as_test) == 1


def test_a_bias_has_rows_of_items():
    test, train = read("item")
    histories = test.without(test), train
    with pytest.warns(UserWarning, match=r"^row 1 of the model's items .*\(item_ids=exclude\[1\]\.item_ids\), else"):
        trm.evaluate("HR@1", trm.Embeddings(bias=train.popularity), target=test, exclude=histories)


@pytest.mark.parametrize(
    ("side", "model", "other_ids"),
    [
        ("item", lambda train: (lambda users: torch.rand(len(users), 3),), []),  # a function has no rows
        ("user", lambda train: (trm.Embeddings(bias=train.popularity),), []),  # a bias has none of users
        ("user", lambda train: (torch.eye(3), torch.eye(3)), ["d"]),  # 4 users are no rows of 3
    ],
    ids=["function", "bias", "another size"],
)
def test_a_history_whose_rows_the_model_cannot_have_is_no_warning(side, model, other_ids):
    test, train = read(side)
    history = train.recode(user_ids=train.user_ids.union(other_ids)) if other_ids else train

    trm.evaluate("HR@1", *model(train), target=test, exclude=history)  # where warnings are errors


ABC, ABCD = {"user": [*"abc"], "item": [*"xyz"]}, {"user": [*"abcd"], "item": [*"yzwx"]}
BCDE, ABCDE = {"user": [*"bcde"], "item": [*"xyzw"]}, {"user": [*"abcde"], "item": [*"vwxyz"]}
NUMBERS, OTHERS = {"user": [0, 1, 3], "item": [1, 2, 3]}, {"user": [7, 8, 9, 10], "item": [1, 2, 3, 0]}
FROM_1 = {"user": [1, 2, 3, 4], "item": [2, 3, 1, 0]}
OF_4 = torch.eye(4), torch.eye(4)


def recoded(target, train, side, ids):
    """Return the ground truth after the call of the message about a side that has not four rows, as OF_4 has."""
    with pytest.raises(ValueError, match=rf"^4 {side}s have embeddings, .*: target\.recode\(.*{re.escape(ids)}"):
        hit_rate(OF_4, target)
    return eval(f"target.recode({side}_ids={ids})", {"target": target, "train": train})


@pytest.mark.parametrize(
    ("target", "train", "users", "items"),
    [
        (ABC, ABCD, "train.user_ids", "train.item_ids"),
        (ABCDE, BCDE, "train.user_ids", "train.item_ids"),
        (NUMBERS, NUMBERS, "range(4)", "range(4)"),
        (NUMBERS | {"user": [8, 9, 10]}, OTHERS, "train.user_ids", "range(4)"),
        (NUMBERS | {"user": [1, 2, 4]}, FROM_1, "train.user_ids", "range(4)"),
    ],
)
def test_the_cure_for_another_size_numbers_the_target_as_the_model(target, train, users, items):
    target, train = Interactions.from_frame(target), Interactions.from_frame(train)
    cured = recoded(recoded(target, train, "user", users), train, "item", items)

    assert (cured.num_users, cured.num_items) == (4, 4)
    assert len(cured) >= 3


TRAIN = Interactions.from_frame({"user": [1, 2, 3, 4], "item": [*"abcd"]})
TEST = Interactions.from_frame({"user": [1, 2, 3], "item": [*"bcd"]}, item_ids=TRAIN.item_ids)


def test_whole_numbers_may_be_ids_of_a_log_or_rows_of_the_model():
    """The message names both; here user 1 is row 0."""
    model = torch.eye(4), torch.eye(4)[[3, 0, 1, 2]]
    message = r"has 3 users: (.*) numbers it by .* and drops others; user_ids=range\(4\) if these ids are its rows$"
    with pytest.raises(ValueError, match=message) as error:
        hit_rate(model, TEST, TRAIN)
    call = re.search(message, str(error.value))[1]

    assert hit_rate(model, eval(call, {"target": TEST, "train": TRAIN}), TRAIN) == 1


@pytest.mark.parametrize("ids", [[-1, 2, 3], [2, 3, 4]])
def test_numbers_that_are_no_rows_of_the_model_are_ids_of_a_log(ids):
    with pytest.raises(ValueError, match=r"and drops others$"):
        hit_rate(OF_4, TEST.with_ids(user_ids=ids))
