"""Ids that do not meet: the closest pair of two sides is shown, and honest ids are never refused."""

import random
import string

import pytest

import torchrecmetrics as trm
from torchrecmetrics.tables.unmatched import closest_pair

pytest.importorskip("pyarrow")

IDS = [f"B{number:04}" for number in range(40)]
MISSPELLED = {
    "a blank behind": "{} ".format,
    "small letters": str.lower,
    "a url in front": "https://shop.example/item/{}".format,
    "a scheme in front": "spotify:track:{}".format,
    "bytes written as text": lambda id_: str(id_.encode()),
    "lost zeros": lambda id_: f"B{int(id_[1:])}",
    "an ending": "{}.html".format,
    "signs between": lambda id_: f"{id_[0]}-{id_[1:]}",
    "quotes": "'{}'".format,
}


@pytest.mark.parametrize("spelling", MISSPELLED.values(), ids=MISSPELLED)
def test_a_misspelled_item_is_shown_beside_its_partner(spelling):
    """Lists in which a quarter of the items is misspelled print the pair of ids, one beside each count."""
    lists = {user: [id_] for user, id_ in enumerate(IDS)}
    target = {user: [id_] for user, id_ in enumerate(IDS)}
    lists |= {user: [spelling(IDS[user])] for user in range(7, 17)}
    result = trm.evaluate_lists("HR@1", lists, target=target)
    unlisted, unknown = result.examples["num_unlisted"], result.examples["num_unknown"]
    assert unknown == spelling(unlisted)
    assert f"10 relevant items in no list ({unlisted!r})" in str(result)
    assert f"10 list entries with an item that the ground truth lacks ({unknown!r})" in str(result)


def test_misspelled_users_are_shown():
    """A user without a list and a list without ground truth are shown together if they may be one user."""
    lists = {**{f"u{n}": ["x"] for n in range(20)}, **{f"U{n}": ["x"] for n in range(20, 40)}}
    result = trm.evaluate_lists("HR@1", lists, target={f"u{n}": ["x"] for n in range(40)})
    assert result.examples == {"num_unserved": "u20", "num_left_out": "U20"}
    assert "20 without a list ('u20'), 20 more with a list but no ground truth ('U20')" in str(result)
    assert '"examples": {\n    "num_unserved": "u20"' in result.to_json()


def test_a_misspelled_history_is_shown():
    """Excluded items that are neither listed nor relevant are named if all are so, or if one is close to another id."""
    lists, target = {"a": ["B01", "B02"], "b": ["B02", "B03"]}, {"a": ["B02"], "b": ["B03"]}
    for excluded, note in (
        (
            {"a": ["item_B01"], "b": ["item_B04"]},
            "0 of 2 items are listed or relevant, not 'item_B01' (there is 'B01')",
        ),
        ({"a": ["B02 "], "b": ["B01"]}, "1 of 2 items are listed or relevant, not 'B02 ' (there is 'B02')"),
        ({"a": ["B01"], "b": ["B09"]}, None),
    ):
        result = trm.evaluate_lists("HR@1", lists, target=target, exclude=excluded, complete=True)
        assert result.exclude_notes == ([] if note is None else [f"exclude: {note}"])


def test_honest_ids_are_never_refused():
    """Codes that differ in case alone, as those of YouTube, are other ids: such worlds are evaluated as they are."""
    lists, target = {1: ["aV", "bQ"], 2: ["cC"], 3: ["dD"]}, {1: ["aV"], 2: ["x"], 3: ["av"]}
    assert trm.evaluate_lists("HR@1", lists, target=target)["HR@1"].item() == pytest.approx(1 / 3)
    for seed in range(20):
        rng = random.Random(seed)
        letters = string.ascii_letters + string.digits
        codes = ["".join(rng.choices(letters, k=3)) for _ in range(500)]
        lists = {user: rng.sample(sorted({*codes}), 5) for user in range(50)}
        target = {user: rng.sample(sorted({*codes}), 3) + lists[user][: user % 2] for user in range(50)}
        hits = [lists[user][0] in target[user] for user in range(50)]
        assert trm.evaluate_lists("HR@1", lists, target=target)["HR@1"].item() == pytest.approx(sum(hits) / 50)


def test_no_pair_is_close():
    """Otherwise the first id of each side is shown; ids of signs alone, and of one letter, are close to none."""
    assert closest_pair(trm.Vocabulary(["abc"]), trm.Vocabulary(["xyz"])) is None
    assert closest_pair(trm.Vocabulary(["--"]), trm.Vocabulary(["??"])) is None
    assert closest_pair(trm.Vocabulary(["1"]), trm.Vocabulary(["12"])) is None
    assert closest_pair(trm.Vocabulary([b"x "]), trm.Vocabulary([b"X"])) == (b"x ", b"X")
    result = trm.evaluate_lists("HR@1", {1: ["abc"], 2: ["m"]}, target={1: ["xyz"], 2: ["m"]})
    assert result.examples == {"num_unlisted": "xyz", "num_unknown": "abc"}
