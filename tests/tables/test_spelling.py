"""Ids of two sides in another spelling are refused, with a pair; honest ids, whatever they look like, are not."""

from __future__ import annotations

import random
import re
import string
import unicodedata
import uuid

import pytest

import torchrecmetrics as trm
from torchrecmetrics.tables.spelling import check_spelling, several_ids
from torchrecmetrics.tables.vocabulary import Vocabulary

WORDS = [
    "night",
    "river",
    "Stone",
    "glass",
    "Winter",
    "song",
    "empire",
    "of",
    "the",
    "Lost",
    "little",
    "Fire",
    "garden",
    "house",
    "blue",
    "Paper",
    "king",
    "moon",
]
ACCENTED = ["café", "Zoë", "naïve", "Århus", "ßtraße", "東京", "мир", "élan", "niño"]
BASE62 = string.ascii_letters + string.digits


def text(rng, letters, length):
    return "".join(rng.choices(letters, k=length))


def title(rng, words=WORDS):
    return " ".join(rng.choices(words, k=rng.randint(1, 4))).capitalize()


HONEST = {
    "hex": lambda rng: text(rng, "0123456789abcdef", 12),
    "base62": lambda rng: text(rng, BASE62, 8),
    "short codes": lambda rng: text(rng, BASE62, 3),
    "capitals": lambda rng: text(rng, string.ascii_uppercase, 3),
    "titles": title,
    "titles, numbered": lambda rng: f"{title(rng)} ({rng.randint(1950, 2025)})",
    "accents": lambda rng: title(rng, ACCENTED + WORDS),
    "signs": lambda rng: (
        f"{rng.choice('abcdef')}{rng.choice('-/_.')}{rng.choice('abcdef')}{rng.choice('-/_.')}{rng.randint(1, 9)}"
    ),
    "uuid": lambda rng: str(uuid.UUID(int=rng.getrandbits(128))),
    "e-mails": lambda rng: f"{rng.choice(WORDS).lower()}.{rng.choice(WORDS).lower()}{rng.randint(1, 99)}@mail.org",
    "kinds": lambda rng: f"{rng.choice(['movie', 'show', 'clip'])}_{rng.randint(1, 300)}",
    "numbers and words": lambda rng: str(rng.randint(1, 2000)) if rng.random() < 0.9 else text(rng, "abcdef", 4),
    "versions": lambda rng: f"{rng.randint(1, 40)}.{rng.randint(0, 9)}",
    "ASIN": lambda rng: f"B0{text(rng, string.ascii_uppercase + string.digits, 8)}",
    "IMDb": lambda rng: f"tt{rng.randint(1, 9_999_999):07}",
}
SIZES = [3, 10, 30, 100, 1000]


def sides(kind, num_users, rng):
    """Listed and relevant ids of a catalogue: half of them popular, some cold, which one side alone has."""
    ids = sorted({HONEST[kind](rng) for _ in range(2 * num_users + 20)})
    rng.shuffle(ids)
    listed, relevant = ids[: len(ids) * 2 // 3], ids[len(ids) // 3 :]
    if rng.random() < 0.2:  # disjoint
        relevant = ids[len(ids) * 2 // 3 :]
    return sorted(rng.sample(listed, min(len(listed), 10 * num_users))), sorted(relevant)


def num_alarms(seed, per_case):
    number = 0
    for kind in HONEST:
        for size in SIZES:
            rng = random.Random(f"{seed} {kind} {size}")
            for _ in range(per_case if size < 1000 else max(1, per_case // 4)):
                listed, relevant = map(Vocabulary, sides(kind, size, rng))
                try:
                    check_spelling("items", listed, "target", relevant)
                    number += several_ids("items", listed, relevant) is not None
                except ValueError:
                    number += 1
    return number


@pytest.mark.parametrize("seed", [1, 2])
def test_honest_ids_are_not_refused(seed):
    """Of 255 pairs of honest sides, 15 kinds in sizes of 3 to 1,000 users, at most one is taken for a misspelling."""
    assert num_alarms(seed, 4) <= 1


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [3, 4])
def test_honest_ids_are_hardly_ever_refused(seed):
    """Of 1,500 pairs of honest sides at most three are."""
    assert num_alarms(seed, 23) <= 3


FAULTS = {
    "blanks": ("B{:04}", lambda id_: f"{id_} ", "blanks"),
    "blanks in front": ("B{:04} x", lambda id_: f" {id_.replace(' ', '  ')}", "blanks"),
    "invisible": ("B{:04}", lambda id_: f"{id_}\u200b", "invisible characters"),
    "NUL": ("B{:04}", lambda id_: f"{id_}\0", "invisible characters"),
    "NFD": ("é{:04}", lambda id_: unicodedata.normalize("NFD", id_), "the form of Unicode, NFC"),
    "small letters": ("B{:04}", str.lower, "(small|capital) letters"),
    "capitals": ("The River {}", str.upper, "(small|capital) letters"),
    "prefix": ("B{:04}", lambda id_: f"item_{id_}", "the prefix 'item_'"),
    "track:": ("B{:04}", lambda id_: f"track:{id_}", "the prefix 'track:'"),
    "letter": ("{}", lambda id_: f"i{id_}", "the prefix 'i'"),
    "ending": ("B{:04}", lambda id_: f"{id_}.jpg", r"the ending '\.jpg'"),
    "decimals": ("{}", lambda id_: f"{id_}.0", r"'\.0' behind a whole number"),
    "zeros": ("{:04}", lambda id_: id_.lstrip("0") or "0", "leading zeros"),
    "signs": ("B-{:04}", lambda id_: id_.replace("-", ""), "signs"),
}


@pytest.mark.parametrize("side", ["items of lists", "items of target", "users of lists"])
@pytest.mark.parametrize("fault", FAULTS)
def test_misspelt_ids_are_refused(fault, side):
    """All ids of a side, or those of every second list, in another spelling are an error that shows what differs."""
    name, change, difference = FAULTS[fault]
    for num_users in (9, 40):
        users = [name.format(7 * user) for user in range(num_users)]
        items = [name.format(item) for item in range(1, 10 * num_users)]
        lists = {user: items[9 * number : 9 * number + 10] for number, user in enumerate(users)}
        truth = {user: listed[1:3] for user, listed in lists.items()}
        assert trm.evaluate_lists("HR@2", lists, target=truth)["HR@2"] == 1
        for step in (1, 2) if "sign" not in fault else (1,):
            wrong, wrong_truth = dict(lists), dict(truth)
            for user in users[::step]:
                if side == "users of lists":
                    wrong[change(user)] = wrong.pop(user)
                elif side == "items of target":
                    wrong_truth[user] = [*map(change, wrong_truth[user])]
                else:
                    wrong[user] = [*map(change, wrong[user])]
            message = rf"(?s)s of lists: .* in target but for {difference}, and so are \d+ of .*: (.*) on both sides"
            with pytest.raises(ValueError, match=message) as error:
                trm.evaluate_lists("HR@2", wrong, target=wrong_truth)
            cure = re.search(r"alike: (.*) on both", str(error.value)).group(1)
            alike = eval(f"lambda id: {cure}", {"re": re, "unicodedata": unicodedata})
            if side == "users of lists":
                wrong, wrong_truth = ({alike(user): ids[user] for user in ids} for ids in (wrong, wrong_truth))
            else:
                wrong, wrong_truth = ({user: [*map(alike, ids[user])] for user in ids} for ids in (wrong, wrong_truth))
            assert trm.evaluate_lists("HR@2", wrong, target=wrong_truth)["HR@2"] == 1


@pytest.mark.parametrize("spelt", ["john1", "john!", "John", "john.jpg", "item_john"])
def test_ids_of_which_one_side_has_both_spellings_differ(spelt):
    """A side that holds "john" and "john1" has two people; blanks and invisible characters make no second one."""
    names = ["john", "mary", "olaf", "petra", "ruth", "sven"]
    others = [spelt.replace("john", name).replace("John", name.title()) for name in names]
    check_spelling("users", Vocabulary(names + others), "target", Vocabulary(names))
    check_spelling("users", Vocabulary(names), "target", Vocabulary(names + others))
    with pytest.raises(ValueError, match=r"users: '\w+ ' is '\w+' in target but for blanks"):
        check_spelling("users", Vocabulary([*names, *(f"{name} " for name in names)]), "target", Vocabulary(names))
    with pytest.raises(ValueError, match=r"users: '\w+ ' is '\w+   ' in target but for blanks"):
        check_spelling("users", Vocabulary([f"{n} " for n in names]), "target", Vocabulary([f"{n}   " for n in names]))
