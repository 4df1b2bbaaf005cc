"""Find columns that may be the order of lists, relevance or time, although the caller named none.

A question is asked only where its possible answers give different numbers: a column of scores that the rows follow is
silent, and so is a column of times by which the rows of every user are sorted. `question` lists all candidates with
their content and proposes none. Names count by the words in the sets below; all else is decided by content.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torchrecmetrics.tables.cells import without_lists
from torchrecmetrics.tables.columns import words
from torchrecmetrics.tables.frames import Role

_ORDER = {
    *("score", "scores", "pred", "prediction", "predicted", "est", "yhat", "prob", "probability", "logit"),
    *("ctr", "pctr", "similarity", "sim", "cosine", "relevance", "rating", "weight"),
}
_ORDER_FROM_LOWEST = {"rank", "ranks", "ranking", "position", "pos", "place", "order", "distance", "dist"}
_RELEVANCE = {
    *("label", "labels", "rating", "ratings", "stars", "overall", "value", "grade", "gain", "relevance", "relevant"),
    *("rel", "judgment", "judgement", "click", "clicked", "clk", "like", "liked", "recommended", "feedback", "reward"),
    "target",
}
_TIME = {"time", "timestamp", "date", "datetime", "timeframe", "when", "unix", "ts", "dt", "dat"}
_PARTS = {"train", "training", "valid", "validation", "val", "dev", "test", "testing", "eval", "holdout"}
_ID = {"id", "ids", "idx", "index", "key", "code", "sku", "asin", "isbn", "unnamed"}

_SAMPLE_KEYS = 2048
_SAMPLE_ROWS = 2**17
_MIN_REPEATS = 5
_MAX_CLASSES = 10
_STEPS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_FIRST_SECOND, _LAST_SECOND = 631_152_000, 1_924_992_000  # 1990-01-01, 2031-01-01
_ISO_DATE = r"^\d{4}[-/.]\d\d[-/.]\d\d([T ]\d\d:\d\d.*)?$"
_DATE = r"^(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([^0-9]|$)"

_QUESTIONS: dict[Role, tuple[str, str, str]] = {
    "order": ("may order the lists", "score= or rank=", "rank=None if the rows are in order"),
    "relevance": ("may say which rows are relevant", "value=", "value=None if every row is relevant"),
    "gains": ("may say which rows are relevant", "value=", "value=None if every row is relevant"),
    "time": ("may be the times", "time=", "time=None if the rows of each user are in order of time"),
}


def question(what: str, role: Role, table: pa.Columns, user: str, item: str) -> str | None:
    """Return an error that lists all candidates for a role, and how to answer; None if there is no candidate.

    Args:
        what: name of the table.
        role: the role.
        table: the table, a row per user and item.
        user: name of the column of users.
        item: name of the column of items.
    """
    if role in ("relevance", "gains"):
        candidates = value_candidates(table, user, item, reads_gains=role == "gains")
    else:
        candidates = (order_candidates if role == "order" else time_candidates)(table, user, item)
    if not candidates:
        return None
    purpose, options, decline = _QUESTIONS[role]
    columns, answer = ("columns", "one of them") if len(candidates) > 1 else ("a column", "it")
    listed = ", ".join(f"{name!r} ({content})" for name, content in candidates.items())
    return f"{what} has {columns} that {purpose}: {listed}: pass {options} with {answer}, or {decline}"


def order_candidates(table: pa.Columns, user: str, item: str) -> dict[str, str]:
    """Return the columns of lists that may order them, with their content; empty if the rows follow all of them.

    A candidate is numeric or text, and the last word of its name is usual; or it is numeric, no id, no row number, no
    time and no property of the user or the item, and most of its values in a list differ.
    """
    leftovers = _Leftovers(table, user, item)
    numbers = {
        name: column
        for name, column in leftovers.columns.items()
        if _is_number(column) or (_is_text(column) and _last_word(name) in _ORDER | _ORDER_FROM_LOWEST)
    }
    ignored = {name for name, column in numbers.items() if not _rows_follow(name, column, leftovers.by_user)}
    if not ignored:
        return {}
    candidates = {name: column for name, column in numbers.items() if _may_order(name, column, leftovers)}
    return {name: _content(column) for name, column in candidates.items() if ignored & candidates.keys()}


def value_candidates(table: pa.Columns, user: str, item: str, reads_gains: bool) -> dict[str, str]:
    """Return the columns of a ground truth that may say which rows are relevant, with their content.

    A candidate holds both true and false (or missing), or whole numbers from 0 or -1 up to at most 5, and is no id and
    no property of the user or the item; or the last word of its name is usual, and some values are not above 0 or
    missing, or text; or it tells rows of training from rows of test.

    Args:
        table: the ground truth, a row per user and item.
        user: name of the column of users.
        item: name of the column of items.
        reads_gains: True if a metric reads gains, so that positive ratings under a usual name change its value, too.
    """
    leftovers = _Leftovers(table, user, item)
    return {
        name: _content(column)
        for name, column in leftovers.columns.items()
        if _may_be_relevance(name, column, leftovers, reads_gains)
    }


def time_candidates(table: pa.Columns, user: str, item: str) -> dict[str, str]:
    """Return the columns that may be times, with their content; empty if each sorts the rows of all users as they are.

    A candidate holds datetimes, ISO text or numbers that are dates of 1990 to 2030, or has a word of time in its name,
    and is no property of the item.
    """
    leftovers = _Leftovers(table, user, item)
    times = {name: column for name, column in leftovers.columns.items() if _may_be_time(name, column)}
    moving = {name for name, column in times.items() if _sorting_moves_rows(column, leftovers.by_user)}
    if not moving:
        return {}
    candidates = {
        name: column
        for name, column in times.items()
        if leftovers.by_user.varies(column) and not leftovers.by_item.fixes(column)
    }
    return {name: _content(column) for name, column in candidates.items() if moving & candidates.keys()}


class _Leftovers:
    """Columns of a table that are neither users, items nor empty, and samples of its rows by user and by item."""

    def __init__(self, table: pa.Columns, user: str, item: str) -> None:
        columns = dict(zip(table.column_names, table.columns, strict=True))
        self.columns = {}
        if user in columns and item in columns:  # else the table cannot be read, which the reader says
            columns = {name: _plain(column) for name, column in without_lists(columns, item).items()}
            self._users, self._items = columns.pop(user), columns.pop(item)
            self.columns = {name: column for name, column in columns.items() if column.null_count < len(column)}

    @cached_property
    def by_user(self) -> _GroupedRows:
        """Rows grouped by user."""
        return _GroupedRows(self._users)

    @cached_property
    def by_item(self) -> _GroupedRows:
        """Rows grouped by item."""
        return _GroupedRows(self._items)

    def is_property(self, column: pa.ChunkedArray) -> bool:
        """Return True if a column describes the user alone or the item alone."""
        return self.by_user.fixes(column) or self.by_item.fixes(column)


class _GroupedRows:
    """Rows grouped by a key, users or items; of a long table all rows of up to 2,048 random keys, at most 2^17 rows."""

    def __init__(self, keys: pa.ChunkedArray) -> None:
        chosen = keys
        if len(keys) > _SAMPLE_ROWS:  # whole keys at random: neither sorted nor shuffled files mislead
            chosen = keys.take(pa.array(np.random.default_rng(0).integers(len(keys), size=_SAMPLE_KEYS)))
        chosen = chosen.unique().drop_null()
        codes = pc.fill_null(pc.index_in(keys, value_set=chosen), -1).to_numpy()
        rows = np.flatnonzero(codes >= 0)
        counts = np.bincount(codes[rows], minlength=len(chosen))
        shortest = counts.argsort(kind="stable")
        num_kept = max(1, int(np.searchsorted(counts[shortest].cumsum(), _SAMPLE_ROWS, side="right")))
        is_kept = np.zeros(len(chosen), dtype=bool)
        is_kept[shortest[:num_kept]] = True
        rows = rows[is_kept[codes[rows]]]
        rows = rows[codes[rows].argsort(kind="stable")][:_SAMPLE_ROWS]
        self._rows = pa.array(rows)
        self._codes = codes[rows].astype(np.int64)
        self._same_key = self._codes[1:] == self._codes[:-1]

    def take(self, column: pa.ChunkedArray) -> pa.Array:
        """Return the values of the sampled rows."""
        return column.take(self._rows).combine_chunks()

    def neighbours(self, column: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
        """Return the values of each row and of the next row with the same key, for rows that have a next one."""
        values, mask = self.take(column), pa.array(self._same_key)
        return values[:-1].filter(mask), values[1:].filter(mask)

    def varies(self, column: pa.ChunkedArray) -> bool:
        """Return True if a column has more than one value."""
        return bool(pc.count_distinct(self.take(column), mode="all").as_py() > 1)

    def fixes(self, column: pa.ChunkedArray) -> bool:
        """Return True if no key has two values of a column, and 5 repeats of keys carry a value but the commonest."""
        values = _value_codes(self.take(column))
        if (values[1:] != values[:-1])[self._same_key].any():
            return False
        uncommon = values != np.bincount(values, minlength=1).argmax()
        return int((self._same_key & uncommon[1:]).sum()) >= _MIN_REPEATS

    def distinct_share(self, column: pa.ChunkedArray) -> float:
        """Return the median over keys of the number of distinct values divided by the number of rows."""
        values = _value_codes(self.take(column))
        num_values = int(values.max()) + 1
        pairs = pc.unique(pa.array(self._codes * num_values + values)).to_numpy()
        return float(np.median(np.bincount(pairs // num_values) / np.bincount(self._codes)))


def _may_order(name: str, column: pa.ChunkedArray, leftovers: _Leftovers) -> bool:
    if _last_word(name) in _ORDER | _ORDER_FROM_LOWEST:
        return True
    if _has_word(name, _ID) or _is_row_number(column, leftovers.by_user) or _unit_of_time(column):
        return False
    return leftovers.by_user.distinct_share(column) > 0.5 and not leftovers.is_property(column)


def _rows_follow(name: str, column: pa.ChunkedArray, rows: _GroupedRows) -> bool:
    """Return True if each list is strictly in order of the column: falling, or rising by its name or in steps of 1."""
    before, after = rows.neighbours(column)
    if _is_text(column):  # such as "10 %" or "0,9", whose order is unknown
        return _all(pc.equal(before, after))
    if not (_all(pc.is_finite(before)) and _all(pc.is_finite(after))):
        return False
    usual = [word for word in words(name) if word in _ORDER | _ORDER_FROM_LOWEST]
    if usual and usual[-1] in _ORDER_FROM_LOWEST:
        return _all(pc.greater(after, before))
    return _all(pc.less(after, before)) or _all(pc.equal(pc.subtract(after, before), 1))


def _is_row_number(column: pa.ChunkedArray, rows: _GroupedRows) -> bool:
    """Return True if a column holds n consecutive whole numbers in any order."""
    if not pa.types.is_integer(column.type) or column.null_count:
        return False
    low, high = _range(column)
    sample = rows.take(column)
    return bool(high - low == len(column) - 1 and pc.count_distinct(sample).as_py() == len(sample))


def _may_be_relevance(name: str, column: pa.ChunkedArray, leftovers: _Leftovers, reads_gains: bool) -> bool:
    is_usual, is_bool = _last_word(name) in _RELEVANCE, pa.types.is_boolean(column.type)
    if _is_text(column):
        few = pc.unique(column[:_SAMPLE_ROWS]).drop_null().to_pylist()
        if not 1 < len(few) <= _MAX_CLASSES:
            return False
        return {value.lower() for value in few} <= _PARTS or (is_usual and not leftovers.is_property(column))
    if not (is_bool or _is_number(column)):
        return False
    low, high = _range(column)
    if high <= 0 or (low == high and not column.null_count):
        return False
    if is_usual and (low <= 0 or low == high or reads_gains):
        return True
    if not is_bool and (low < -1 or low > 0 or high > 5 or column.null_count or not _is_whole(column)):
        return False
    return not _has_word(name, _ID) and not leftovers.is_property(column)


def _may_be_time(name: str, column: pa.ChunkedArray) -> bool:
    of_type, types = column.type, pa.types
    if types.is_timestamp(of_type) or types.is_date(of_type) or _is_text_like(column, _DATE):
        return True
    if _has_word(name, _TIME):
        return _is_number(column) or _is_text(column) or types.is_temporal(of_type)
    return _is_number(column) and not _has_word(name, _ID) and _unit_of_time(column) is not None


def _sorting_moves_rows(column: pa.ChunkedArray, rows: _GroupedRows) -> bool:
    """Return True if sorting by the column may move a row within a user; text that is not ISO has no known order."""
    before, after = rows.neighbours(column)
    unknown_order = _is_text(column) and not _is_text_like(column, _ISO_DATE)
    moved = pc.not_equal(after, before) if unknown_order else pc.less(after, before)
    return pc.any(pc.fill_null(moved, True)).as_py() is True


def _unit_of_time(column: pa.ChunkedArray) -> str | None:
    """Return the unit if all numbers are dates of 1990 to 2030: "s", "ms", "us", "ns" or "YYYYMMDD", else None."""
    low, high = _range(column)
    for unit, steps in _STEPS_PER_SECOND.items():
        if _FIRST_SECOND * steps <= low and high < _LAST_SECOND * steps:
            return unit
    if low < 19900101 or high > 20301231 or not _is_whole(column.drop_null()):
        return None
    days = column.drop_null().to_numpy().astype(np.int64)
    months, days = days // 100 % 100, days % 100
    return "YYYYMMDD" if ((months >= 1) & (months <= 12) & (days >= 1) & (days <= 31)).all() else None


def _content(column: pa.ChunkedArray) -> str:
    """Describe the content of a column in words: its kind and its range."""
    if pa.types.is_boolean(column.type):
        content = "true or false"
    elif _is_text(column):
        content = f"text such as {pc.first(column).as_py()!r}"
    elif pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        low, high = _range(column.cast(pa.timestamp("s"), safe=False))
        content = f"datetimes {low} .. {high}"
    else:
        low, high = _range(column)
        kind, digits = ("floats", ".4g") if pa.types.is_floating(column.type) else ("whole numbers", "")
        content = f"{kind} {low:{digits}} .. {high:{digits}}" if _is_number(column) else f"times {low} .. {high}"
        unit = _unit_of_time(column) if _is_number(column) else None
        if unit in _STEPS_PER_SECOND:
            first, last = np.array([low, high]).astype(f"M8[{unit}]").astype("M8[D]")
            content += f", as {unit} since 1970 {first} .. {last}"
    return f"{content}, {column.null_count} missing" if column.null_count else content


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert columns to types that all functions of pyarrow read; text of numbers, true and false to these."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.large_string())
    if _is_text(column):
        for type_ in (pa.int64(), pa.float64(), pa.bool_()):
            try:
                column[:100].cast(type_)
                return column.cast(type_)
            except pa.ArrowInvalid:
                continue
        return column
    if pa.types.is_duration(column.type):
        return column.cast(pa.int64())
    if pa.types.is_decimal(column.type) or pa.types.is_uint64(column.type):
        return column.cast(pa.float64(), safe=False)
    return column.cast(pa.float32()) if pa.types.is_float16(column.type) else column


def _last_word(name: str) -> str:
    return (words(name) or [""])[-1]


def _has_word(name: str, usual: set[str]) -> bool:
    return not usual.isdisjoint(words(name))


def _is_number(column: pa.ChunkedArray) -> bool:
    return bool(pa.types.is_integer(column.type) or pa.types.is_floating(column.type))


def _is_text(column: pa.ChunkedArray) -> bool:
    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def _is_text_like(column: pa.ChunkedArray, pattern: str) -> bool:
    """Return True if the first 50 values are text of a pattern."""
    head = column[:50].drop_null() if _is_text(column) else []
    return len(head) > 0 and _all(pc.match_substring_regex(head, pattern))


def _is_whole(column: pa.ChunkedArray) -> bool:
    return bool(pa.types.is_integer(column.type)) or _all(pc.equal(pc.round(column), column))


def _range(column: pa.ChunkedArray) -> tuple[Any, Any]:
    """Return the smallest and the largest value."""
    bounds = pc.min_max(column)
    return bounds["min"].as_py(), bounds["max"].as_py()


def _value_codes(values: pa.Array) -> Any:
    """Return a number from 0 for each value, equal for equal values; a missing value is a value, too."""
    return values.dictionary_encode(null_encoding="encode").indices.to_numpy(zero_copy_only=False)


def _all(mask: pa.Array) -> bool:
    """Return True if no entry is False or missing."""
    return pc.all(mask, skip_nulls=False, min_count=0).as_py() is True
