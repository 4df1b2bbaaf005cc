"""`Log`: a sequence of events, and its splits: leave-last-out, by time, by ratio, by users."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.core.checks import check_k
from torchrecmetrics.core.saving import read, write
from torchrecmetrics.data.edges import DuplicatePairs, Reduce
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.tables.events import Events, events_of, read_bound, shown_time
from torchrecmetrics.tables.sources import open_file
from torchrecmetrics.tables.table import Name, Table, Use
from torchrecmetrics.tables.vocabulary import Vocabulary


class LogSplit(NamedTuple):
    """A log divided in three parts, which share their vocabularies."""

    train: Log
    """For training the model."""
    valid: Log
    """For choosing the model."""
    test: Log
    """For measuring the model."""


class UserSplit(NamedTuple):
    """A log with some users held out, in three parts, which share their vocabularies."""

    fit: Log
    """All events of the other users, to fit a model on."""
    train: Log
    """History of the held-out users."""
    test: Log
    """Ground truth of the held-out users."""


@dataclass(frozen=True, eq=False, repr=False)
class Log(Events):
    """A sequence of events: user, item and, if known, time and value; repeated events are kept.

    Make a log with `from_frame` or `from_file`; divide it with `leave_last_out`,
    `split_by_time`, `split_random` or `split_users`, whose parts are logs of the same vocabularies; look for faults
    with `audit`; evaluate on the result of `to_interactions`.

    Examples:
        >>> import torchrecmetrics as trm
        >>> frame = {"user": ["al", "bo", "al", "al"], "item": list("xxyz")}
        >>> frame["day"] = [1, 2, 3, 4]
        >>> log = trm.Log.from_frame(frame, time="day")
        >>> log
        Log(4 events, 2 users x 3 items, times 1 to 4)
        >>> train, valid, test = log.leave_last_out()
        >>> test.items, test.item_ids.ids(test.items)
        (tensor([2]), ['z'])
        >>> len(train.to_interactions())
        2
    """

    user_ids: Vocabulary
    """Ids of the user rows."""
    item_ids: Vocabulary
    """Ids of the item rows."""
    questions: Mapping[str, str] = field(default_factory=dict)
    """Questions of methods that need a column that was not named, by its role: "time", the order of events, or "value",
    which of them are relevant. Each question asks for both if both are open."""

    # ----------------------------------------------------------------------------------------------------- constructors

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        user: Name = ...,
        item: Name = ...,
        time: Name = ...,
        value: Name = ...,
        *,
        user_ids: Any = None,
        item_ids: Any = None,
    ) -> Log:
        """Read a frame, whose rows are events.

        Args:
            frame: of pandas, polars, pyarrow or another library with Arrow's interface; a dict of columns; a structured
                array; or a `Table`, which says its columns itself.
            user: name of the column of users: whole numbers of any size, text, bytes, categories; default: user,
                user_id or userId.
            item: name of the column of items: as users; default: item, item_id, itemId or movieId.
            time: name of the column of times: numbers or datetimes, both also as text; datetimes without a time zone
                count as UTC; default: time or timestamp. None = the rows are in order of time, and the log has no
                times. If there is none, any other column that could be the times is an error in `leave_last_out` and
                other methods that depend on order.
            value: name of the column of values, numbers such as ratings; default: value. None = events have no values.
                If there is none, any other column that could say which events are relevant is an error in
                `to_interactions`.
            user_ids: vocabulary of the users, such as `other.user_ids`; default: the users that occur, ascending.
            item_ids: vocabulary of the items, such as `other.item_ids`; default: the items that occur, ascending.

        Raises:
            TypeError: for anything but a frame, and columns of other types.
            ValueError: if there is no such column (names the nearest), for missing entries (names column and row), and
                ids that a given vocabulary does not hold.
        """
        table = Table.with_columns(frame, user=user, item=item, time=time, value=value)
        return cls._of_table(table, user_ids, item_ids)

    @classmethod
    def from_file(
        cls,
        path: str | Path | Table,
        user: Name = ...,
        item: Name = ...,
        time: Name = ...,
        value: Name = ...,
        *,
        user_ids: Any = None,
        item_ids: Any = None,
        delimiter: str | None = None,
    ) -> Log:
        """Read a file of any known format, identified by its name and its content.

        csv, tsv, parquet, jsonl, RecBole's .inter, MovieLens' u.data and ratings.dat, lines of `user item item ...`
        (LightGCN), TREC's runs and qrels. Files without a header have columns named user and item and, by format,
        rating and timestamp, rank and score, or relevance.

        Ids in text are whole numbers if all of a column are written as such ("7", not "07"), and text otherwise.

        Args:
            path: path of the file, or a `Table`; text is UTF-8.
            user: as in `from_frame`, like the arguments after it.
            item: column of items.
            time: column of times.
            value: column of values.
            user_ids: vocabulary of the users.
            item_ids: vocabulary of the items.
            delimiter: separator of a csv file of any name, one character; default: a tab for .tsv, for .csv the only
                one of ",", ";", tab and "|" in the header, or ",".

        Raises:
            ImportError: without pyarrow, which the extra `frames` brings.
            ValueError: also for a file of another format, a file that is empty, has no rows, lines of unequal width or
                another encoding; names the file, the row and the column.
        """
        source = path if isinstance(path, Table) else open_file(path, delimiter)
        table = Table.with_columns(source, user=user, item=item, time=time, value=value)
        return cls._of_table(table, user_ids, item_ids)

    @classmethod
    def _of_table(cls, table: Table, user_ids: Any, item_ids: Any) -> Log:
        """Read a table; vocabularies and errors are those of `from_frame`."""
        question = table.question("time", "value")
        events = events_of(table.read("time", "value"), user_ids, item_ids)
        uses: tuple[Use, ...] = ("time", "value")
        questions: dict[str, str] = {use: question for use in uses if question and table.open_columns(use)}
        return cls(**vars(events), questions=questions)

    def _check_times(self) -> None:
        """Raise if an unread column could be the times, and for times that cannot be ordered."""
        self.check_read("time")
        self.check_times()

    def check_read(self, role: str) -> None:
        """Raise if an unread column could have this role."""
        if role in self.questions:
            raise ValueError(self.questions[role])

    # ----------------------------------------------------------------------------------------- contents and conversions

    def __repr__(self) -> str:
        times = f", times {self._time_range()}" if self.times is not None and len(self) else ""
        return f"Log({len(self)} events, {self.num_users} users x {self.num_items} items{times})"

    def _time_range(self) -> str:
        """Return the first and the last time as text, for a message."""
        assert self.times is not None
        rows = int(self.times.argmin()), int(self.times.argmax())
        return " to ".join(shown_time(self.times, row, self.time_unit) for row in rows)

    def to_interactions(
        self,
        min_value: float | None = None,
        *,
        duplicates: DuplicatePairs = "merge",
        values_reduce: Reduce | None = None,
    ) -> Interactions:
        """Return the items of each user as `Interactions` with the same vocabularies; repeated events are merged.

        Args:
            min_value: smallest value of the events to take, such as 4 for ratings; the result has no values. None = all
                events, with their values (as gains of a ground truth).
            duplicates: as in `Interactions.from_edge_index`.
            values_reduce: as in `Interactions.from_edge_index`; "last" is the value at the latest time, of equal times,
                and in a log without times, that of the last event.

        Raises:
            ValueError: for a `min_value` if the log has no values, for repeated events with values if `values_reduce`
                is None, and if a column that was not read may say which events are relevant.
        """
        self.check_read("value")
        if isinstance(min_value, str) or min_value != min_value:
            raise ValueError(f"min_value must be a number, got {min_value!r}")
        events: Events = self
        if values_reduce == "last" and self.values is not None:
            self.check_read("time")
        if min_value is not None:
            if self.values is None:
                raise ValueError(f"min_value={min_value!r} needs values: name their column, value=")
            events = replace(self.take(self.values >= min_value), values=None)
        return Interactions.of_events(events, duplicates=duplicates, values_reduce=values_reduce)

    def recode(self, user_ids: Any, item_ids: Any) -> Log:
        """Return the events with the row numbers of other vocabularies; users and items are matched by id.

        Args:
            user_ids: a `Vocabulary`, or a list of ids, that holds all users of these events.
            item_ids: a `Vocabulary`, or a list of ids, that holds all items of these events.

        Raises:
            ValueError: for an id that is not in its new vocabulary; says which.
        """
        new_users, new_items = Vocabulary.named("user_ids", user_ids), Vocabulary.named("item_ids", item_ids)
        users, items = self.user_ids.recode(self.users, new_users), self.item_ids.recode(self.items, new_items)
        for name, ids, rows, new_rows in (
            ("user", self.user_ids, self.users, users),
            ("item", self.item_ids, self.items, items),
        ):
            if bool((new_rows < 0).any()):
                at = int((new_rows < 0).nonzero()[0])
                raise ValueError(f"{name}_ids has no {ids[int(rows[at])]!r}, the {name} of event {at}")
        return self._numbered(users, new_users, items, new_items)

    def _numbered(self, users: Tensor, user_ids: Vocabulary, items: Tensor, item_ids: Vocabulary) -> Log:
        """Return the events with other row numbers."""
        shape = (len(user_ids), len(item_ids))
        return replace(self, users=users, items=items, shape=shape, user_ids=user_ids, item_ids=item_ids)

    def save(self, path: str | Path) -> None:
        """Write a file that `load` reads, and `torch.load` with its default `weights_only=True`."""
        fields = {
            "users": self.users,
            "items": self.items,
            "times": None if self.times is None else {"numbers": self.times, "unit": self.time_unit},
            "values": self.values,
            "user_ids": self.user_ids.state(),
            "item_ids": self.item_ids.state(),
            "questions": dict(self.questions),
        }
        write(path, "Log", fields)

    @classmethod
    def load(cls, path: str | Path) -> Log:
        """Read a file that `save` wrote.

        Raises:
            ValueError: for any other file.
        """
        fields = read(path, "Log")
        user_ids, item_ids = (Vocabulary.from_state(fields[name]) for name in ("user_ids", "item_ids"))
        times = fields["times"] or {"numbers": None, "unit": None}
        return cls(
            users=fields["users"],
            items=fields["items"],
            shape=(len(user_ids), len(item_ids)),
            user_ids=user_ids,
            item_ids=item_ids,
            times=times["numbers"],
            time_unit=times["unit"],
            values=fields["values"],
            questions=fields["questions"],
        )

    # ---------------------------------------------------------------------------------------------------------- subsets

    def k_core(self, n: int) -> Log:
        """Return the n-core: the largest set of events in which every user and every item has at least `n` events.

        Users and items with fewer events are removed again and again, until all have enough. Vocabularies shrink to
        the remaining ids, in the same order; removed items are not candidates.

        Raises:
            ValueError: if nothing is left.
        """
        n = check_k(n, "n")
        remaining = torch.arange(len(self), device="cpu")
        while True:
            enough = torch.ones_like(remaining, dtype=torch.bool)
            for side in (self.users[remaining], self.items[remaining]):
                enough &= torch.bincount(side)[side] >= n if len(side) else enough
            if bool(enough.all()):
                break
            remaining = remaining[enough]
        if not len(remaining):
            raise ValueError(f"no event is left: {self} has no part whose users and items all have {n} events")
        users, user_rows = torch.unique(self.users[remaining], return_inverse=True)
        items, item_rows = torch.unique(self.items[remaining], return_inverse=True)
        user_ids, item_ids = self.user_ids.take(users), self.item_ids.take(items)
        return self.take(remaining)._numbered(user_rows, user_ids, item_rows, item_ids)

    # ------------------------------------------------------------------------------------------------------- splits

    def leave_last_out(self) -> LogSplit:
        """Put each user's last event into test, the one before into validation, the rest into train.

        Users with fewer than three events stay in train whole. Equal or missing times keep the order of the log.
        Test events may be older than train events of other users (`audit` counts them); `split_by_time` avoids this.

        Raises:
            ValueError: if the log has no times, and a column that was not read may hold them; for times in two units,
                and -1 among times (`time_units` of `audit`).
        """
        self._check_times()
        order = torch.arange(len(self), device="cpu") if self.times is None else self.times.argsort(stable=True)
        order = order[self.users[order].argsort(stable=True)]
        count = torch.bincount(self.users, minlength=self.num_users)
        place_from_end = count.cumsum(0)[self.users[order]] - torch.arange(len(order), device="cpu")
        part_of_event = torch.zeros_like(self.users)
        part_of_event[order] = (3 - place_from_end).clamp(min=0) * (count[self.users[order]] >= 3)
        return self._split(part_of_event)

    def split_by_time(self, valid_from: Any = None, test_from: Any = None) -> LogSplit:
        """Put events before `valid_from` into train, those before `test_from` into validation, the rest into test.

        Args:
            valid_from: a time of the type of the log's times, a number or a datetime (also as text). None: the
                validation part is empty, and train ends at `test_from`.
            test_from: a time of the same type, not before `valid_from`; always needed.

        Raises:
            TypeError: without `test_from`, and if a bound is not of the type of the times.
            ValueError: if the log has no times, for times in two units and -1 among times, for bounds in the wrong
                order, and if no event is left for train or for test.
        """
        self._check_times()
        if self.times is None:
            raise ValueError("the events have no times: name their column, time=")
        if test_from is None:
            raise TypeError("test_from= is missing; without valid_from= there is no validation part")
        name = "test_from" if valid_from is None else "valid_from"
        valid_from = test_from if valid_from is None else valid_from
        valid_start = read_bound(name, valid_from, self.times, self.time_unit)
        test_start = read_bound("test_from", test_from, self.times, self.time_unit)
        if not valid_start <= test_start:
            raise ValueError(f"valid_from must not be later than test_from, got {valid_from} and {test_from}")
        part_of_event = (self.times >= valid_start).long() + (self.times >= test_start).long()
        for part, what in ((0, f"train, before {name}={valid_from}"), (2, f"test, from test_from={test_from} on")):
            if len(self) and not bool((part_of_event == part).any()):
                raise ValueError(f"no event is left for {what}; times run from {self._time_range()}")
        return self._split(part_of_event)

    def split_random(self, ratio: Sequence[float] = (0.8, 0.1, 0.1), seed: int = 0) -> LogSplit:
        """Put events into train, validation and test at random.

        Args:
            ratio: three numbers >= 0, such as (0.8, 0.1, 0.1) or (8, 1, 1): sizes of the parts, rounded.
            seed: the same seed gives the same parts.

        Raises:
            ValueError: for ratios that are not three numbers, or make an empty train or test part.
        """
        shares = torch.tensor(ratio, dtype=torch.float64, device="cpu")
        if shares.shape != (3,) or not bool((shares >= 0).all()) or not 0 < float(shares.sum()) < math.inf:
            raise ValueError(
                f"ratio must be three numbers >= 0, train, validation and test, such as (0.8, 0.1, 0.1), got {ratio!r}"
            )
        ends = (shares.cumsum(0) / shares.sum() * len(self)).round().long()
        if not int(ends[0]) or int(ends[1]) == len(self):
            raise ValueError(f"ratio={ratio!r} leaves no event for {'test' if int(ends[0]) else 'train'}: {self}")
        part_of_event = torch.empty_like(self.users)
        part_of_event[_shuffled(len(self), seed)] = torch.searchsorted(
            ends, torch.arange(len(self), device="cpu"), right=True
        )
        return self._split(part_of_event)

    def split_users(self, users: int | float, share_of_items: float = 0.3, seed: int = 0) -> UserSplit:
        """Hold some users out: part of their items is history, the rest ground truth; fit a model on the other users.

        Args:
            users: number of held-out users, an int, or their share, a float between 0 and 1; they are chosen at random
                from the users with at least two items.
            share_of_items: share of a user's items in the ground truth: rounded, at least one item, and never all. All
                events of a user with an item are in the same part.
            seed: the same seed gives the same parts.

        Raises:
            TypeError: if `users` is neither an int nor a float.
            ValueError: if there are fewer such users, and for shares that are not between 0 and 1.
        """
        if not isinstance(share_of_items, (int, float)) or not 0 < share_of_items < 1:
            raise ValueError(f"share_of_items must be between 0 and 1, got {share_of_items!r}")
        pairs, pair_of_event = torch.unique(self.users * max(self.num_items, 1) + self.items, return_inverse=True)
        user_of_pair = torch.div(pairs, max(self.num_items, 1), rounding_mode="floor")
        num_pairs = torch.bincount(user_of_pair, minlength=self.num_users)
        eligible = (num_pairs >= 2).nonzero()[:, 0]
        chosen = eligible[_shuffled(len(eligible), seed)[: _how_many(users, len(eligible))]]
        is_held_out = torch.zeros(self.num_users, dtype=torch.bool, device="cpu")
        is_held_out[chosen] = True
        order = _shuffled(len(pairs), seed + 1)
        order = order[user_of_pair[order].argsort(stable=True)]
        place_in_user = torch.empty_like(order)
        place_in_user[order] = (
            torch.arange(len(order), device="cpu") - (num_pairs.cumsum(0) - num_pairs)[user_of_pair[order]]
        )
        num_test = (num_pairs * share_of_items).round().long().clamp(min=1).minimum(num_pairs - 1)
        in_test = (place_in_user < num_test[user_of_pair])[pair_of_event] & is_held_out[self.users]
        return UserSplit(
            self.take(~is_held_out[self.users]), self.take(is_held_out[self.users] & ~in_test), self.take(in_test)
        )

    def _split(self, part_of_event: Tensor) -> LogSplit:
        """Return the events of part 0 as train, of part 1 as validation, of part 2 as test; `part_of_event`: [E]."""
        train, valid, test = (self.take(part_of_event == part) for part in range(3))
        return LogSplit(train, valid, test)


def _how_many(users: int | float, able: int) -> int:
    """Return the number of users to hold out, given as a number or as a share of `able` users."""
    if isinstance(users, float):
        if not 0 < users < 1:
            raise ValueError(f"users must be a number of users (an int), or a share between 0 and 1, got {users!r}")
        users = max(1, round(users * able))
    number = check_k(users, "users")
    if number > able:
        raise ValueError(f"cannot hold out {number} users: {able} have two items or more")
    return number


def _shuffled(n: int, seed: int) -> Tensor:
    """Return a permutation of 0 .. n - 1 that the seed determines, int64 [n]."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed), device="cpu")
