"""`Table`: what the columns of one frame or file are; columns that are not read are asked about, never guessed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from pathlib import Path
from types import EllipsisType
from typing import Any, Literal, TypeAlias

from torchrecmetrics.core.checks import nearest
from torchrecmetrics.core.cures import Cure, CuredError
from torchrecmetrics.tables.files import open_file
from torchrecmetrics.tables.numbers import words
from torchrecmetrics.tables.sources import FrameSource, Roles, Source, arrow, check_names, compute, two_roles

Name: TypeAlias = str | EllipsisType | None
"""Name of a column; None = there is none; `...` = the column of the role's own name, if there is one."""
Use: TypeAlias = Literal["order", "value", "time"]
"""Facts that a number depends on: the order of lists, the relevance of pairs, the times of events."""

_NAMES = {
    "user": ("user", "user_id"),
    "item": ("item", "item_id"),
    "rank": ("rank",),
    "score": ("score",),
    "value": ("value",),
    "time": ("time", "timestamp"),
}
"""Names by which columns are found."""
_OTHER_NAMES = {"user": ("userId",), "item": ("itemId", "movieId")}
"""Names by which columns are found if none of `_NAMES` is there."""
_USES: dict[Use, tuple[dict[str, str], str, str]] = {
    "order": (
        {"rank": "numbers each list from 1, the best", "score": "is highest for the best"},
        "rank",
        "if the rows are in order, best first",
    ),
    "value": (
        {"value": "is the gain of each row, and 0 means not relevant"},
        "value",
        "if all rows are relevant (drop the others first, such as ratings below 4)",
    ),
    "time": ({"time": "is the time"}, "time", "if the rows of each user are in order of time"),
}
"""Roles that answer a question, with the meaning of such a column; the role that is None where there is none, and when
that is so.
"""
_READ: dict[Use, tuple[str, ...]] = {"order": ("rank", "score"), "value": ("value",), "time": ("time", "value")}
"""Roles that are read, with users and items, for each use."""
_INDEX = re.compile(r"Unnamed: \d+|__index_level_\d+__")
"""Names under which pandas writes its index."""
_TIME_WORDS = {"at", "created", "dat", "date", "datetime", "day", "epoch", "time", "timestamp", "ts", "unix", "when"}
"""Words of names of columns of times, which the call of an error proposes."""
_FLAGS = ({"0", "1"}, {"0.0", "1.0"}, {"false", "true"}, {"no", "yes"}, {"f", "t"}, {"n", "y"})
"""Entries of a column of flags, as text."""
_SHOWN = 12
"""Most columns that a message or a repr shows."""


class Table:
    """A frame or a file, and what its columns are.

    A role that is not given is the column of that name: user or user_id, else userId; item or item_id, else itemId or
    movieId; rank; score; value; time or timestamp. Where both a rank and a score are found, the rank orders the lists
    (in TREC's runs the score). All other columns are not read; where one of them could be the order of lists, the
    relevance of a ground truth, or the time of a split by time, an error asks.

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
        self.source: Source = source if isinstance(source, Source) else FrameSource(source, "frame")
        self.split = split
        said = {"user": user, "item": item, "rank": rank, "score": score, "value": value, "time": time}
        if isinstance(rank, str) and isinstance(score, str):
            raise ValueError(f"rank={rank!r} and score={score!r} are both to order {self.what}: give one of the two")
        self.said: dict[str, Name] = {role: name for role, name in said.items() if name is not ...}
        """Names of columns by role that the caller gave; None = there is no such column."""
        self.columns: dict[str, str] = {role: name for role, name in said.items() if isinstance(name, str)}
        """Names of columns by role, said and found."""
        if wrong := [name for name in self.said.values() if name is not None and not isinstance(name, str)]:
            raise TypeError(f"columns go by name, got {wrong[0]!r} ({type(wrong[0]).__name__}): pass {str(wrong[0])!r}")
        if len({*self.columns.values()}) < len(self.columns):
            raise two_roles(self.columns)
        for role in [role for role in said if role not in self.said]:
            if (column := self._found(role)) is not None:
                self.columns[role] = column
        for role in [role for role in ("user", "item") if role not in self.columns and role not in self.said]:
            for taken in [name for name in self._names_of(role) if name in self.columns.values()]:
                raise two_roles({**self.columns, role: taken})
        if {"rank", "score"} <= self.columns.keys():
            by_score = isinstance(score, str) or ("score" in self.source.known and not isinstance(rank, str))
            del self.columns["rank" if by_score else "score"]

    @classmethod
    def of(cls, argument: Any, what: str) -> Table:
        """Return a table as it is, and anything else as a table of which nothing was said; `what` names frames."""
        if not isinstance(argument, Table):
            return cls(argument if isinstance(argument, (str, Path, Source)) else FrameSource(argument, what))
        if argument.what != "frame":
            return argument
        table, source = copy(argument), copy(argument.source)  # the name is that of this call alone
        source.what, table.source = what, source
        return table

    @classmethod
    def with_columns(cls, source: Any, **said: Any) -> Table:
        """Return a `Table` as it is; wrap a frame or an open file with the columns that were passed with it.

        Raises:
            ValueError: for columns that are passed with a `Table`.
        """
        if not isinstance(source, Table):
            return cls(source if isinstance(source, Source) else FrameSource(source), **said)
        if columns := [f"{role}={name!r}" for role, name in said.items() if name is not ...]:
            raise ValueError(f"{columns[0]} stands beside a Table, which says its columns itself: say it there")
        return source

    def _names_of(self, role: str) -> list[str]:
        """Return the columns that have a name of a role."""
        names = (self.source.known[role],) if role in self.source.known else _NAMES[role]
        columns = [name for name in names if name in self.source.names]
        return columns or [name for name in _OTHER_NAMES.get(role, ()) if name in self.source.names]

    def _found(self, role: str) -> str | None:
        """Return the column that has the name of a role, and no other role."""
        columns_of_role = [name for name in self._names_of(role) if name not in self.columns.values()]
        if len(columns_of_role) > 1:
            first, second = map(repr, columns_of_role[:2])
            raise ValueError(
                f"{self.what} has the columns {first} and {second}: say which, {role}={first} or {role}={second}"
            )
        return columns_of_role[0] if columns_of_role else None

    @property
    def what(self) -> str:
        """Name in messages: a path, or the name of an argument."""
        return self.source.what

    @property
    def order(self) -> str | None:
        """Name of the column of ranks or of scores; None = the rows are in order."""
        return self.columns.get("rank", self.columns.get("score"))

    @property
    def holds_lists(self) -> bool:
        """True if the cells of items are lists."""
        return self._is_nested_item(self.source.all_columns())

    def _is_nested_item(self, table: Any) -> bool:
        item = self.columns.get("item")
        return item in table.column_names and _is_nested(table.schema.field(item).type)

    def __repr__(self) -> str:
        said = ", ".join(f"{role}={self.columns[role]!r}" for role in _NAMES if role in self.columns)
        unread = self.unread(*self.columns)
        return f"Table({said}{'; not read: ' if unread else ''}{_joined(map(repr, unread[:_SHOWN]), len(unread))})"

    def unread(self, *roles: str) -> list[str]:
        """Return the names of the columns that have none of the roles."""
        read = [self.columns[role] for role in roles if role in self.columns]
        return [name for name in self.source.names if name not in read]

    def not_read(self, *roles: str) -> list[str]:
        """Return the names of the columns that are not read, those of TREC's files, which are known, aside."""
        said = [role for role, name in self.said.items() if name is not None]
        return [] if self.source.trec else self.unread("user", "item", *roles, *said)

    def roles(self, *roles: str) -> Roles:
        """Return the names of the columns of users, items and other roles, "order" among them.

        Raises:
            ValueError: if there is no column of users or of items, and if a column is not there.
        """
        if not self.source.names:
            self.source.read(Roles("user", "item"))  # which says what it is
        if (error := self.question()) is not None:
            raise error
        value = self.order if "order" in roles else self.columns.get("value") if "value" in roles else None
        return Roles(
            self.columns["user"], self.columns["item"], self.columns.get("time") if "time" in roles else None, value
        )

    def column(self, role: str) -> str:
        """Return the name of the column of a role.

        Raises:
            ValueError: if there is none.
        """
        if not self.source.names:
            self.source.read(Roles("user", "item"))  # which says what it is
        if (error := self.question(needed=(role,))) is not None:
            raise error
        return self.columns[role]

    def question(self, *uses: Use, needed: Sequence[str] = ("user", "item")) -> CuredError | None:
        """Return an error that asks for the columns that are needed, and for all that `uses` may need; None if nothing
        is open.

        A use is open if no column has its role, and an unread column could have it. Names and types of columns alone
        decide: datetimes, and columns named time or timestamp, are no order and no relevance; flags are no order and no
        time; columns without a value, and those in which pandas writes its index, are ignored.

        Args:
            uses: what a number depends on.
            needed: roles that must have a column.
        """
        if not self.source.names:
            return None
        check_names(self.columns.values(), self.source.names, self.what)
        missing = [role for role in needed if role not in self.columns]
        if missing:
            return self._names_missing(missing, [use for use in self._unanswered(uses) if len(self.source.names) > 2])
        item = self.columns.get("item")
        if self.split is None and item in self.source.sequences:
            call = self._call(item=item, split=" ")
            return CuredError(f"column {item!r} of {self.what} holds several items in a cell: pass {call}", call)
        names_by_use = self.open_uses(*uses)
        return self._columns_unread(names_by_use) if names_by_use else None

    def _unanswered(self, uses: Sequence[Use]) -> list[Use]:
        """Return the uses of which no column has a role, and none was said to be there."""
        said = {*self.columns, *self.said}
        return [use for use in uses if not {*_USES[use][0]} & said and (use != "order" or self.split is None)]

    def open_uses(self, *uses: Use) -> dict[Use, list[str]]:
        """Return the names of the unread columns that could be what is missing, for the uses that are open."""
        unanswered = self._unanswered(uses)
        unread = self.unread("user", "item", *(role for use in uses for role in _READ[use])) if unanswered else []
        if not unread:
            return {}
        table = self.source.all_columns()
        columns = {name: table[name] for name in unread if name in table.column_names and not _INDEX.fullmatch(name)}
        columns = {name: column for name, column in columns.items() if column.null_count < len(column)}
        in_cells = self._is_nested_item(table)
        names_by_use: dict[Use, list[str]] = {}
        for use in unanswered:
            wants_lists = in_cells and use == "order"
            names = [name for name, column in columns.items() if _could_be(use, name, column.type, wants_lists)]
            names_by_use |= {use: names} if names else {}
        return names_by_use

    def _names_missing(self, missing: Sequence[str], uses: Sequence[Use]) -> CuredError:
        """Return the error for a table without columns of users or items; the call it shows answers `uses`, too."""
        if "item" in self.said and "item" in missing:
            return CuredError(f"item=None is for label=: {self.what} is matched by its items")
        names_of_roles = " and ".join(f"{_NAMES[role][0]!r} or {_NAMES[role][1]!r}" for role in missing)
        known, header = nearest(missing[0], self.source.names), self.source.without_header
        if header is not None and len(missing) == 2:
            known += f"; if line 1 is a row and no header, {header}"
        call = self._call(**dict.fromkeys([*missing, *(next(iter(_USES[use][0])) for use in uses)], ...))
        text, cures = f"{self.what} has no column {names_of_roles}{known}; say which is which, {call}", [call]
        for use in uses:
            answers, none, otherwise = _USES[use]
            first, *others = (Cure.option(role, ...) for role in answers)
            cures += [first, *others, Cure.option(none, None)]
            text += "".join(f", or {other} in place of {first}" for other in others) + f", or {none}=None {otherwise}"
        return CuredError(text, *cures, *([] if header is None else [header]))

    def _columns_unread(self, names_by_use: Mapping[Use, Sequence[str]]) -> CuredError:
        """Return the error for unread columns that could be what is missing."""
        table = self.source.all_columns()
        names = [name for name in table.column_names if any(name in names for names in names_by_use.values())]
        shown = _joined((f"{name!r} ({_content(table[name])})" for name in names[:_SHOWN]), len(names))
        text = f"{self.what} has {'a column that is' if len(names) == 1 else 'columns that are'} not read: {shown}. "
        if len(names_by_use) == 1:
            ((use, _),) = names_by_use.items()
            answers, none, otherwise = _USES[use]
            calls = [self._call(**{role: names[0]}) for role in answers]
            subject = "it" if len(names) == 1 else "one of them"
            meanings = zip(answers.values(), calls, strict=True)
            cures = "; if ".join(f"{subject} {meaning}, pass {call}" for meaning, call in meanings)
            return CuredError(f"{text}If {cures}, or {none}=None {otherwise}", *calls, Cure.option(none, None))
        roles: dict[str, Any] = {}
        for use, candidates in names_by_use.items():
            is_time = [name for name in candidates if bool(_TIME_WORDS & {*words(name)}) == (use == "time")]
            roles[_USES[use][1]] = next(iter(is_time), None)
        call = self._call(**roles)
        uses = [_USES[use] for use in names_by_use]
        rules = "; ".join(f"{none} {answers[none]}, or {none}=None {otherwise}" for answers, none, otherwise in uses)
        return CuredError(
            f"{text}Say what they are, such as {call}: {rules}", call, *(Cure.option(none, None) for _, none, _ in uses)
        )

    def several_tables(self, *roles: str, label: str | None = None) -> str | None:
        """Return the cure for a table that holds the lists of several models, by an unread column that names them.

        Rows of one model differ in `roles`, such as user and item. None = no such column; `label` is none.
        """
        if self.holds_lists or self.split is not None:
            return None
        table, keys = self.source.all_columns(), [self.columns[role] for role in roles]
        for name in self.unread(*self.columns):
            values = _distinct(table[name])
            if name != label and 1 < len(values) <= _SHOWN:
                rows = table.select([*keys, name]).group_by([*keys, name]).aggregate([([], "count_all")])
                if compute().max(rows["count_all"]).as_py() == 1:
                    shown = ", ".join(map(repr, values.to_pylist()))
                    return f"column {name!r}, which is not read, tells such rows apart ({shown}): pass a table for each"
        return None

    def question_of_flags(self) -> CuredError | None:
        """Return an error for excluded pairs if one column that is not read holds flags; None if none or several do."""
        names = self.unread("user", "item", "time")
        if (error := self.question()) is not None or "value" in self.said or not names:
            return error
        columns = self.source.all_columns()
        flags = [name for name in names if name in columns.column_names and _is_flag(columns[name])]
        if len(flags) != 1:
            return None
        call, none = self._call(value=flags[0]), Cure.option("value", None)
        return CuredError(
            f"{self.what} has a column of flags that is not read: {flags[0]!r} ({_content(columns[flags[0]])}). If it "
            f"says which pairs count, pass {call}, or {none} if all pairs count",
            *(call, none),
        )

    def _call(self, **roles: Any) -> Cure:
        """Return a call that makes this table with further roles; `...` = a name that the caller knows."""
        arguments: dict[str, Any] = {**self.said, **({} if self.split is None else {"split": self.split}), **roles}
        source = self.what if self.what.isidentifier() else repr(self.what)
        text = ", ".join([source, *(Cure.option(role, name).text for role, name in arguments.items())])
        return Cure(f"trm.Table({text})", "Table", {"source": self.what, **arguments})


def has_columns(columns: Mapping[Any, Any]) -> bool:
    """Return True for a dict of columns, and False for a dict {user: items}."""
    names = _NAMES["user"] + _NAMES["item"] + _OTHER_NAMES["user"] + _OTHER_NAMES["item"]
    return not {*names}.isdisjoint(columns)


SAID_BY_TABLES = {"split", *_NAMES}
"""Keywords that a `Table` takes, in place of functions that take several tables."""


def column_option(function: str, options: Mapping[str, Any]) -> TypeError:
    """Return the error for keywords of a function that a `Table` takes."""
    role = next(role for role in options if role in SAID_BY_TABLES)
    return TypeError(
        f"{function} has no option {role!r}: say what the columns of a table are where it is passed, "
        f"trm.Table(frame, {role}={options[role]!r})"
    )


def _could_be(use: Use, name: str, type_: Any, wants_lists: bool) -> bool:
    """Return True if an unread column could be what a use needs, by its name and type."""
    types = arrow().types
    if use != "time" and (types.is_temporal(type_) or name in _NAMES["time"]):
        return False
    return (use == "value" or not types.is_boolean(type_)) and _is_nested(type_) >= wants_lists


def _is_flag(column: Any) -> bool:
    """Return True for a column of true and false, or of 0 and 1, also as text, that holds both."""
    entries = _distinct(column.drop_null())
    return len(entries) == 2 and {str(entry).lower() for entry in entries.to_pylist()} in _FLAGS


def _distinct(column: Any) -> Any:
    """Return the distinct entries of a column; none for types that Arrow does not compare, such as lists."""
    try:
        return column.unique()
    except arrow().ArrowNotImplementedError:
        return column[:0]


def _is_nested(type_: Any) -> bool:
    return bool(arrow().types.is_nested(type_))


def _joined(texts: Iterable[str], number: int) -> str:
    """Return the first texts of a number of them with commas between, and the number of those that are not shown."""
    more = [f"and {number - _SHOWN} more"] if number > _SHOWN else []
    return ", ".join([*texts, *more])


def _content(column: Any) -> str:
    """Describe the content of a column in two words: its kind and its range."""
    pa, types = arrow(), arrow().types
    column = column.drop_null()
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not len(column):
        return "empty"
    if types.is_boolean(column.type):
        return "true or false"
    if types.is_string(column.type) or types.is_large_string(column.type):
        return f"text {column[0].as_py()[:20]!r}"
    if types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("s"), safe=False)
    if types.is_float16(column.type):
        column = column.cast(pa.float32())
    if types.is_integer(column.type) or types.is_floating(column.type) or types.is_timestamp(column.type):
        low, high = (compute().min_max(column)[end].as_py() for end in ("min", "max"))
        if types.is_floating(column.type):
            return f"floats {low:.4g} .. {high:.4g}"
        return f"{'times' if types.is_timestamp(column.type) else 'numbers'} {low} .. {high}"
    return str(column.type)[:40]
