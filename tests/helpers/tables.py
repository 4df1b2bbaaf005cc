"""Reader of public_tables.txt, for tests of the roles of columns."""

import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

TEXT = (Path(__file__).parents[1] / "data" / "public_tables.txt").read_text(encoding="utf-8")
NUM_EVENTS, NUM_USERS, NUM_ITEMS = 400, 25, 300
ROLES = {"logs": ("relevance", "time"), "lists": ("order",)}
CHOICES = {"stars": "1.0 2.0 3.0 4.0 5.0", "halves": "0.5 1.0 1.5 2.0 2.5 3.0 3.5 4.0 4.5 5.0"}
OF_SCORES = {
    "score": lambda score: score,
    "float32": lambda score: score.astype("f4"),
    "float16": lambda score: score.astype("f2"),
    "tenths": lambda score: score.round(1),
    "quarters": lambda score: (score * 4).round() / 4,
    "hundredths": lambda score: (score * 100).astype(int),
    "millionths": lambda score: (score * 1e6).astype(int),
    "probability": lambda score: 1 / (1 + np.exp(-score)),
    "distance": lambda score: np.exp(-score),
    "negative": lambda score: -score,
    "estimate": lambda score: score.clip(-1.5, 1.5) + 3,
    "at most 1": lambda score: score.clip(max=1).astype("f4"),
    "five levels": lambda score: (score + 3).round().clip(1, 5),
}
OF_MOMENTS = {
    "datetimes": lambda moments: moments,
    "dates": lambda moments: moments.astype("M8[D]"),
    "seconds": lambda moments: moments.astype(int),
    "ms": lambda moments: moments.astype(int) * 1000,
    "yyyymmdd": lambda moments: np.array([int(f"{moment:%Y%m%d}") for moment in moments.tolist()]),
}


class Case(NamedTuple):
    """A table, the column that each role needs (None = none does), one whose question is fair, and what is asked."""

    name: str
    table: pa.Table
    user: str
    item: str
    needed: dict
    fair: str
    asked: set


def read_cases(section):
    """Return the tables of a section of public_tables.txt."""
    body = TEXT.split(f"[{section}]\n")[1].split("\n\n")[0]
    kind = "lists" if section in ("recommendations", "lists_of_libraries", "served_lists") else "logs"
    return [case(line, kind) for line in body.strip().replace("\n  ", " ").split("\n")]


def case(line, kind):
    name, shape, *rest = (field.strip() for field in line.split("|"))
    columns, needs = (fields(field) for field in [*rest, "", ""][:2])
    draft = (Lists if kind == "lists" else Log)(name, shape)
    user, item = shape.split() if kind == "logs" else ("user_id", "item_id")
    table = {user: draft.ids["user"], item: draft.ids["item"]}
    table |= {column: draft.make(values, len(draft.score)) for column, values in columns.items()}
    needed = {role: needs.get(role) for role in ROLES[kind]}
    asked = {*needs["asked"].split()} - {"none"}
    return Case(name, pa.table(table), user, item, needed, needs.get("fair"), asked)


def fields(text):
    """Split "a = b; c = d" into a dict."""
    return dict(field.strip().split(" = ") for field in text.split(";") if field.strip())


def number(word):
    """Return a number or a truth value that is written as text, or the text."""
    for convert in (int, float, {"True": True, "False": False}.__getitem__):
        try:
            return convert(word)
        except (KeyError, ValueError):
            pass
    return word


class Draft:
    """The rows of a table, and random columns for them: `ids` of users and items, the true `score` and `place`."""

    def __init__(self, name):
        self.rng = np.random.default_rng([0, zlib.crc32(name.encode())])

    def make(self, values, size, order=None):
        """Return a column of "0..9", "a b c", "flag 0.1" (1 in a tenth of the rows), "rising seconds" and so on."""
        word, _, rest = values.partition(" ")
        if word in ("rising", "falling"):
            return self.make(rest, size, word)
        if word in ("user", "item"):  # equal in all rows of a user or item
            ids, codes = np.unique(self.ids[word], return_inverse=True)
            return self.make(rest, len(ids))[codes]
        if word == "mostly":  # one value in 95 % of the rows, others in the rest
            value, _, others = rest.partition(" ")
            return np.where(self.rng.random(size) < 0.95, number(value), self.make(others, size))
        if values in OF_SCORES:
            return OF_SCORES[values](self.score)
        if values in OF_MOMENTS or "%" in values:
            seconds = self.ordered(1_500_000_000 + self.rng.integers(0, 600 * 86400, size), order)
            moments = seconds.astype("M8[s]")
            if values in OF_MOMENTS:
                return OF_MOMENTS[values](moments)
            return np.array([moment.strftime(values) for moment in moments.tolist()])
        if word in ("flag", "bool"):
            return (self.rng.random(size) < float(rest)).astype(int if word == "flag" else bool)
        if ".." in values:
            return self.ordered(self.between(*map(number, values.split("..")), size), order)
        draw = {
            "places": lambda: self.place,
            "ranks": lambda: self.place + 1,
            "rows": lambda: np.arange(size),
            "shuffled rows": lambda: self.rng.permutation(size),
            "noisy": lambda: self.score + self.rng.normal(size=size),
            "counts": lambda: self.rng.negative_binomial(0.25, 0.15, size),
            "plays": lambda: self.rng.zipf(1.4, size).clip(1, 300_000),
        }.get(values)
        if draw is not None:
            return draw()
        choices = [number(word) for word in CHOICES.get(values, values).split()]
        return self.rng.choice(choices, size)

    def between(self, low, high, size):
        if isinstance(low, float):
            return low + self.rng.random(size) * (high - low)
        return self.rng.integers(low, high, size, endpoint=True)

    def ordered(self, values, order):
        return values if order is None else np.sort(values)[:: 1 if order == "rising" else -1]


class Log(Draft):
    """Rows of users and items in any order; those of popular items are many."""

    def __init__(self, name, shape):
        super().__init__(name)
        pairs = [self.rng.integers(0, NUM_USERS, NUM_EVENTS), self.rng.zipf(1.3, NUM_EVENTS) % NUM_ITEMS]
        _, rows = np.unique(pairs, axis=1, return_index=True)
        users, items = np.stack(pairs)[:, np.sort(rows)]
        by_user = users.argsort(kind="stable")
        first = np.searchsorted(users[by_user], users[by_user])
        self.place = np.empty_like(users)
        self.place[by_user] = np.arange(len(users)) - first
        if "asin" in shape or "business" in shape:  # these data sets have ids of letters and digits
            users, items = np.char.mod("A%013d", users), np.char.mod("B%09d", items)
        self.ids, self.score = {"user": users, "item": items}, np.zeros(len(users))


class Lists(Draft):
    """Lists of items, best first, or shuffled, or reversed."""

    def __init__(self, name, shape):
        super().__init__(name)
        order, *options = shape.split(", ")
        size = {"k": 10, "users": 20, "pool": NUM_ITEMS}
        size |= {option: int(value) for option, value in (text.split(" = ") for text in options)}
        k, users, pool = size.values()
        popularity = 1 / np.arange(1, pool + 1) ** (1 if pool == NUM_ITEMS else 0)
        popularity /= popularity.sum()
        items = [self.rng.choice(pool, k, replace=False, p=popularity) for _ in range(users)]
        scores = -np.sort(-self.rng.normal(size=(users, k)), axis=1).ravel()
        rows = np.arange(users * k)
        rows = {"in order": rows, "shuffled": self.rng.permutation(users * k), "reversed": rows[::-1]}[order]
        self.ids = {"user": rows // k, "item": np.concatenate(items)[rows]}
        self.score, self.place = scores[rows], rows % k
