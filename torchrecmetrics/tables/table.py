"""`Table`: what the columns of one frame or file are; columns that are not read are asked about, never guessed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from types import EllipsisType
from typing import Any, Literal, NamedTuple, TypeAlias

from torchrecmetrics.core.checks import nearest
from torchrecmetrics.tables.columns import check_names
from torchrecmetrics.tables.entries import Entries, entries_of_columns
from torchrecmetrics.tables.sources import Source, open_file, source_of_frame

Name: TypeAlias = str | EllipsisType | None
"""Name of a column; None = there is none; `...` = the column of the role's own name, if there is one."""
Use: TypeAlias = Literal["order", "value", "time"]
"""Facts that a number depends on: the order of lists, the relevance of pairs, the times of events."""

_NAMES = {
    "user": ("user", "user_id", "userId"),
    "item": ("item", "item_id", "itemId", "movieId"),
    "rank": ("rank",),
    "score": ("score",),
    "value": ("value",),
    "time": ("time", "timestamp"),
}
"""Names by which columns are found."""
SAID_BY_TABLES = {"split", *_NAMES}
"""Keywords that a `Table` takes, in place of functions that take several tables."""
_SHOWN = 12
"""Most columns that a message or a repr shows."""


class _Question(NamedTuple):
    """Words of the question about columns that are not read, one of which may be needed for the result."""

    answers: Mapping[str, str]
    """Meaning of the columns that are needed, by role; None for the first role says that there is no such column."""
    otherwise: str
    """Rule that holds if there is no such column."""
    aside: str
    """Role whose column is not asked about."""


_QUESTIONS: dict[Use, _Question] = {
    "order": _Question(
        {"rank": "numbers each list from 1, the best", "score": "is highest for the best"},
        "if the rows are in order, best first",
        "time",
    ),
    "value": _Question(
        {"value": "is the gain of each row, and 0 means not relevant"},
        "if all rows are relevant (drop the others first, such as ratings below 4)",
        "time",
    ),
    "time": _Question({"time": "is the time"}, "if the rows of each user are in order of time", "value"),
}


class Table:
    """A frame or a file, and what its columns are.

    A role that is not given is the column of that name: user, user_id or userId; item, item_id, itemId or movieId;
    rank; score; value; time or timestamp. Where both a rank and a score are found, the rank orders the lists (in TREC's
    runs the score). All other columns are not read. If there are any, an error asks which is the rank or the score of
    lists, the value of a ground truth, or the time of a split, unless it was found, named, or said to be None.

    Args:
        source: a frame of pandas, polars, pyarrow or another library with Arrow's interface, a dict of columns, a list
            of records (dicts, or tuples, whose columns are named "0", "1", ...), a structured array, or a path.
        user: name of the column of users.
        item: name of the column of items. None: for sessions with `label=`, each row is an item of its own.
        rank: name of the column of ranks, which run 1, 2, 3, ... (or 0, 1, 2, ... throughout) in each list. None: there
            are no ranks.
        score: name of the column of scores, highest first.
        value: name of the column of values, such as ratings or clicks: the gains of a ground truth.
        time: name of the column of times, numbers or datetimes.
        split: separator of several items in one cell, best first.
        delimiter: separator of a csv file, one character; default: recognised.

    Raises:
        ValueError: if a role has two columns, or a column two roles.

    Examples:
        >>> import torchrecmetrics as trm
        >>> frame = {"session": [1, 1], "item": ["x", "y"], "p": [0.1, 0.9], "price": [3, 4]}
        >>> trm.Table(frame, user="session", score="p")
        Table(user='session', item='item', score='p'; not read: 'price')
    """

    def __init__(
        self,
        source: Any,
        user: Name = ...,
        item: Name = ...,
        rank: Name = ...,
        score: Name = ...,
        value: Name = ...,
        time: Name = ...,
        *,
        split: str | None = None,
        delimiter: str | None = None,
    ) -> None:
        if isinstance(source, Table):
            raise TypeError("source is a Table already: say all its columns at once")
        if isinstance(source, (str, Path)):
            source = open_file(source, delimiter)
        self.source: Source = source if isinstance(source, Source) else source_of_frame(source, "frame")
        self.split = split
        roles = {"user": user, "item": item, "rank": rank, "score": score, "value": value, "time": time}
        self.said: dict[str, Name] = {role: name for role, name in roles.items() if name is not ...}
        """Names of columns by role that the caller gave; None = there is no such column."""
        self.columns: dict[str, str] = {role: name for role, name in roles.items() if isinstance(name, str)}
        """Names of columns by role, said and found."""
        if wrong := [name for name in self.said.values() if name is not None and not isinstance(name, str)]:
            raise TypeError(f"columns go by name, got {wrong[0]!r} ({type(wrong[0]).__name__}): pass {str(wrong[0])!r}")
        if isinstance(rank, str) and isinstance(score, str):
            raise ValueError(f"rank={rank!r} and score={score!r} both order {self.what}: pass one of the two")
        for role, other in (("rank", "score"), ("score", "rank")):
            if roles[role] == other:
                wrong_way = f"{role}={other!r} would turn {self.what} upside down"
                raise ValueError(f"{wrong_way}: pass {other}={other!r}, or rename the column")
        for role in [role for role in roles if role not in self.said]:
            if (column := self._found(role)) is not None:
                self.columns[role] = column
        if {"rank", "score"} <= self.columns.keys():
            by_score = isinstance(score, str) or ("score" in self.source.roles and not isinstance(rank, str))
            del self.columns["rank" if by_score else "score"]
        check_distinct(self.columns)

    @classmethod
    def of(cls, argument: Any, what: str) -> Table:
        """Return a table as it is, and anything else as a table of which nothing was said; `what` names frames."""
        if not isinstance(argument, Table):
            return cls(argument if isinstance(argument, (str, Path)) else source_of_frame(argument, what))
        table = copy(argument)
        if argument.what == "frame":  # the name is that of this call alone
            table.source = argument.source._replace(what=what)
        return table

    @classmethod
    def with_columns(cls, source: Any, **said: Any) -> Table:
        """Return a `Table` as it is; wrap a frame or an open file with the columns that were passed with it.

        Raises:
            ValueError: for columns that are passed with a `Table`.
        """
        if not isinstance(source, Table):
            return cls(source if isinstance(source, Source) else source_of_frame(source, "frame"), **said)
        if columns := [f"{role}={name!r}" for role, name in said.items() if name is not ...]:
            raise ValueError(f"{columns[0]} stands beside a Table, which says its columns itself: say it there")
        return source

    def _found(self, role: str) -> str | None:
        """Return the column that has the name of a role; other roles than users and items take no column of another."""
        names = (self.source.roles[role],) if role in self.source.roles else _NAMES[role]
        taken = () if role in ("user", "item") else self.columns.values()
        columns = [name for name in names if name in self.source.names and name not in taken]
        if len(columns) > 1:
            column, other = map(repr, columns[:2])
            raise ValueError(
                f"{self.what} has the columns {column} and {other}: say which, {role}={column} or {role}={other}"
            )
        return columns[0] if columns else None

    @property
    def what(self) -> str:
        """Name in messages: a path, or the name of an argument."""
        return self.source.what

    @property
    def order(self) -> str | None:
        """Name of the column of ranks or of scores; None = the rows are in order."""
        return self.columns.get("rank", self.columns.get("score"))

    def __repr__(self) -> str:
        said = ", ".join(f"{role}={self.columns[role]!r}" for role in _NAMES if role in self.columns)
        unread = self.unread(*self.columns)
        return f"Table({said}{f'; not read: {_joined(unread)}' if unread else ''})"

    def unread(self, *roles: str) -> list[str]:
        """Return the names of the columns that have none of the roles."""
        read = [self.columns.get(role) for role in roles]
        return [name for name in self.source.names if name not in read]

    def not_read(self, *uses: Use) -> list[str]:
        """Return the names of the columns that no use needs and, of the roles of uses, that were not said.

        There are none of a format that fixes its columns, such as the tag of TREC's runs.
        """
        if self.source.roles:
            return []
        answers = [role for use in uses for role in _QUESTIONS[use].answers]
        return self.unread("user", "item", *answers, *(self.said if uses else ()))

    def question(self, *uses: Use) -> str:
        """Return the sentences that ask for users and items, or else for all that `uses` may need; "" = nothing is
        open: a use is open if the table has columns that are not read, and none of them is known to answer.
        """
        if missing := self._missing("user", "item"):
            return missing
        open_uses = [use for use in uses if self.open_columns(use)]
        if not open_uses:
            return ""
        names = [name for name in self.source.names if any(name in self.open_columns(use) for use in open_uses)]
        is_single = len(names) == 1
        name, subject = (names[0], "it") if is_single else (..., "one of them")
        columns_are = "a column that is" if is_single else "columns that are"
        sentences = [f"{self.what} has {columns_are} not read: {_joined(names)}"]
        for use in open_uses:
            answers, otherwise, _ = _QUESTIONS[use]
            rules = [f"{subject} {meaning}, pass {self._call(**{role: name})}" for role, meaning in answers.items()]
            sentences.append(f"If {'; if '.join(rules)}, or {next(iter(answers))}=None {otherwise}")
        return ". ".join(sentences)

    def open_columns(self, use: Use) -> list[str]:
        """Return the columns that are not read and could be what a use needs; none if it is known which one is."""
        answers, _, aside = _QUESTIONS[use]
        is_known = any(role in self.said or role in self.columns for role in answers)
        if is_known or (use == "order" and self.split is not None):
            return []
        return self.unread("user", "item", aside)

    def _missing(self, *roles: str) -> str:
        """Return the sentence about users or items that have no column; "" = all have one."""
        check_names(self.columns.values(), self.source.names, self.what)
        missing = [role for role in roles if role not in self.columns]
        if not missing:
            return ""
        if "item" in self.said and "item" in missing:
            return f"item=None is for label= alone: pass the column of items of {self.what}"
        names = " and ".join(f"{_NAMES[role][0]!r} or {_NAMES[role][1]!r}" for role in missing)
        known = nearest(missing[0], list(self.source.names))
        call = self._call(**dict.fromkeys(missing, ...))
        return f"{self.what} has no column {names}{known}; say which is which: {call}"

    def _call(self, **roles: Any) -> str:
        """Return the call that makes this table with further roles; `...` = a name that the caller knows."""
        arguments: dict[str, Any] = {**self.said, **({} if self.split is None else {"split": self.split}), **roles}
        said = [f"{role}={'...' if name is ... else repr(name)}" for role, name in arguments.items()]
        return f"trm.Table({', '.join([self.what if self.what.isidentifier() else repr(self.what), *said])})"

    def read(self, *roles: str, label: str | None = None, items: bool = True, lists: bool = False) -> Entries:
        """Read users, items and further roles, a row per item.

        Args:
            roles: "rank", "score", "value" and "time"; those without a column are not read.
            label: name of a further column, which is read as the role "label"; the table then needs no items.
            items: False: items are not read.
            lists: refuse two cells of several items that one user has.

        Raises:
            ValueError: if there is no column of users or of items, and as `entries_of_columns` does.
        """
        if missing := self._missing("user", *(("item",) if label is None else ())):
            raise ValueError(missing)
        columns = {**self.columns, "label": label}
        wanted = ("user", *(("item",) if items else ()), *roles, "label")
        names = {role: name for role in wanted if (name := columns.get(role)) is not None}
        check_distinct(names)
        check_names(names.values(), self.source.names, self.what)
        ids = [names[role] for role in ("user", "item") if role in names]
        return entries_of_columns(self.source, names, self.source.read([*names.values()], ids), self.split, lists)


def check_distinct(names: Mapping[str, str]) -> None:
    """Refuse a column that has two roles; `names` are the columns by role."""
    for name in names.values():
        roles = [role for role in names if names[role] == name]
        if len(roles) > 1:
            raise ValueError(f"column {name!r} cannot be {' and '.join(roles)} at once: {roles[0]}=... says which is")


def has_columns(columns: Mapping[Any, Any]) -> bool:
    """Return True for a dict of columns, and False for a dict {user: items}."""
    return not {*_NAMES["user"], *_NAMES["item"]}.isdisjoint(columns)


def column_option(function: str, options: Mapping[str, Any]) -> TypeError:
    """Return the error for keywords of a function that a `Table` takes."""
    role = next(role for role in options if role in SAID_BY_TABLES)
    return TypeError(
        f"{function} has no option {role!r}: say what the columns of a table are where it is passed, "
        f"trm.Table(frame, {role}={options[role]!r})"
    )


def _joined(names: Sequence[str]) -> str:
    """Return the first names with commas between, and the number of those that are not shown."""
    more = [f"and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return ", ".join([*map(repr, names[:_SHOWN]), *more])
