"""A model's rows are those of the ground truth: a history with as many other ids is warned of; cures are run."""

import re

import pytest
import torch

import torchrecmetrics as trm
from torchrecmetrics import Interactions

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")


def frame_of(side, without, shift):
    """Return two rows for each of 19 ids x00, x01, ... of one side, with five partners on the other."""
    numbers = [number for number in range(20) if number != without] * 2
    ids = [f"x{number:02}" for number in numbers]
    partners = [f"p{(number + shift + 2 * (row >= 19)) % 5}" for row, number in enumerate(numbers)]
    return pd.DataFrame({"user": ids, "item": partners} if side == "user" else {"user": partners, "item": ids})


def read(side):
    """Return a ground truth without x02 and a history without x19, each with ids of its own."""
    frames = frame_of(side, 2, 1), frame_of(side, 19, 0)
    return tuple(map(Interactions.from_frame, frames))


def perfect_model(target):
    """Return embeddings that rank the relevant items of each row first."""
    return torch.from_numpy(target.to_scipy().toarray()), torch.eye(target.num_items, dtype=torch.float64)


def ids_of(interactions):
    return {"user_ids": interactions.user_ids, "item_ids": interactions.item_ids}


def hit_rate(target, exclude, model=None):
    embeddings = perfect_model(target) if model is None else model
    return trm.evaluate("HR@1", *embeddings, target=target, exclude=exclude)["HR@1"].item()


@pytest.mark.parametrize("side", ["user", "item"])
def test_files_read_apart(side):
    """Each file has ids of its own, as many by chance: a warning with two cures, for rows of either numbering."""
    test, train = read(side)
    message = rf"^row 2 of the model's {side}s is taken as target's 'x03', not exclude's 'x02': if it is exclude's, "
    message += r"pass (target\.recode\(.*\)), else (exclude\.recode\(.*\))$"
    trained = perfect_model(test.recode(**ids_of(train)))
    with pytest.warns(UserWarning, match=message) as warned:
        assert hit_rate(test, train, trained) < 0.75
    names = {"target": test, "exclude": train}
    as_train, as_test = (eval(call, names) for call in re.search(message, str(warned[0].message)).groups())
    assert hit_rate(as_train, train, trained) == hit_rate(test, as_test) == 1


def test_rows_of_one_side():
    """A bias has rows of items alone, and a function none; a history of another size does not fit the model."""
    test, train = read("item")
    popular = trm.Embeddings(bias=train.popularity)
    for exclude, name in ((train, "exclude"), ((test.without(test), train), r"exclude\[1\]")):
        with pytest.warns(UserWarning, match=rf"^row 2 of the model's items .*\(item_ids={name}\.item_ids\), else"):
            trm.evaluate("HR@1", popular, target=test, exclude=exclude)
    trm.evaluate("HR@1", lambda users: torch.rand(len(users), 19), target=test, exclude=train)
    test, train = read("user")
    trm.evaluate("HR@1", trm.Embeddings(bias=train.popularity), target=test, exclude=train)
    hit_rate(test, train.recode(user_ids=train.user_ids.union(["x19"])))


ABC, ABCD = {"user": [*"abc"], "item": [*"xyz"]}, {"user": [*"abcd"], "item": [*"yzwx"]}
BCDE, ABCDE = {"user": [*"bcde"], "item": [*"xyzw"]}, {"user": [*"abcde"], "item": [*"vwxyz"]}
NUMBERS, OTHERS = {"user": [0, 1, 3], "item": [1, 2, 3]}, {"user": [7, 8, 9, 10], "item": [1, 2, 3, 0]}


@pytest.mark.parametrize(
    ("target", "train", "users", "items"),
    [
        (ABC, ABCD, "train.user_ids", "train.item_ids"),
        (ABCDE, BCDE, "train.user_ids", "train.item_ids"),
        (NUMBERS, NUMBERS, "range(4)", "range(4)"),
        (NUMBERS | {"user": [8, 9, 10]}, OTHERS, "train.user_ids", "range(4)"),
        (NUMBERS | {"user": [1, 2, 4]}, {"user": [1, 2, 3, 4], "item": [2, 3, 1, 0]}, "train.user_ids", "range(4)"),
    ],
)
def test_the_cure_of_another_size_is_run(target, train, users, items):
    """The calls that the messages show number the ground truth as the four rows of the model, whatever its ids are."""
    target, train = Interactions.from_frame(target), Interactions.from_frame(train)
    model = torch.eye(4), torch.eye(4)
    for side, ids in (("user", users), ("item", items)):
        number = target.num_users if side == "user" else target.num_items
        message = rf"^4 {side}s have embeddings, but target has {number} {side}s: target\.recode\(.*{re.escape(ids)}"
        with pytest.raises(ValueError, match=message):
            hit_rate(target, None, model)
        target = eval(f"target.recode({side}_ids={ids})", {"target": target, "train": train})
    assert len(target) >= 3
    hit_rate(target, None, model)
    if users == "train.user_ids":
        hit_rate(target, train, model)


def test_the_cure_for_ids_from_1():
    """Whole numbers may be ids of a log or the model's rows: the message names both, rows only where they fit."""
    train = trm.Interactions.from_frame({"user": [1, 2, 3, 4], "item": [*"abcd"]})
    test = trm.Interactions.from_frame({"user": [1, 2, 3], "item": [*"bcd"]}, item_ids=train.item_ids)
    model = torch.eye(4), torch.eye(4)[[3, 0, 1, 2]]
    both = r"target has 3 users: (.*) numbers it by .* and drops others; user_ids=range\(4\) if these ids are its rows$"
    with pytest.raises(ValueError, match=both) as raised:
        hit_rate(test, train, model)
    call = re.search(both, str(raised.value))[1]
    assert hit_rate(eval(call, {"target": test, "train": train}), train, model) == 1
    for ids in ([-1, 2, 3], [2, 3, 4]):  # no rows of the model
        with pytest.raises(ValueError, match=r"and drops others$"):
            hit_rate(test.with_ids(user_ids=ids), None, model)
