"""`audit`: find and count faults of a log or a split (leaks, repeated events, unknown users), with examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.core.checks import describe, ids_beside_rows, nearest
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.data.log import Log, LogSplit, UserSplit
from torchrecmetrics.tables.columns import arrow
from torchrecmetrics.tables.events import UNIT_RATIO, Events, in_one_unit, shown_time, wrong_times
from torchrecmetrics.tables.vocabulary import Vocabulary

_POPULAR = 0.5
_HEAD = 0.5
_HEAVY = 0.1
_HEAVY_TIMES_MEAN = 5
_EMPTY_IDS: dict[str, list[Any]] = {
    "whole numbers": [-1],
    "text": ["", "-1", "nan", "NaN", "NA", "N/A", "<NA>", "null", "NULL", "none", "None"],
    "bytes": [b"", b"nan", b"NaN", b"NA", b"null", b"NULL", b"None"],
}


class Finding(NamedTuple):
    """Result of one check of `audit`: a count, the total, a description and an example."""

    number: int
    """Number of events, users, items or pairs that the check counted."""
    of: int
    """Total that `number` is a part of; 0 = there is no total."""
    says: str
    """Description of the counted events, users, items or pairs."""
    example: str = ""
    """One of the counted events, users or items, as text; "" = none."""
    wrong: bool = False
    """True if the finding is a fault."""

    def __str__(self) -> str:
        share = f" of {self.of} ({self.number / self.of:.1%})" if self.of else ""
        return f"{self.number}{share} {self.says}{f': {self.example}' if self.example and self.number else ''}"


class Audit(Mapping[str, Finding]):
    """Result of `audit`: a mapping {name: `Finding`}, with the names of the `faults`; `str()` returns a report."""

    def __init__(self, title: str, findings: dict[str, Finding]) -> None:
        self.title = title
        self._findings = findings

    @property
    def faults(self) -> tuple[str, ...]:
        """Names of the findings that are faults."""
        return tuple(name for name, finding in self._findings.items() if finding.wrong)

    def __getitem__(self, name: str) -> Finding:
        if name not in self._findings:
            raise KeyError(f"there is no finding {name!r}{nearest(name, list(self._findings))}")
        return self._findings[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._findings)

    def __len__(self) -> int:
        return len(self._findings)

    def __str__(self) -> str:
        width = max(map(len, self._findings))
        lines = [
            f"{'FAULT' if finding.wrong else '     '} {name:{width}}  {finding}"
            for name, finding in self._findings.items()
        ]
        number = len(self.faults)
        return "\n".join([self.title, *lines, f"{number} {'fault' if number == 1 else 'faults'}"])

    __repr__ = __str__


def audit(what: Log | LogSplit | UserSplit | Interactions) -> Audit:
    """Look for faults of a data set that make metrics wrong or misleading.

    | finding about a log, or about all parts of a split | fault |
    |---|---|
    | `repeated_events` | events repeat user, item and time (if known) of another event, in test or in the rest |
    | `empty_ids` | events of a user or item called "", "nan", "None", "null", -1 |
    | `blank_ids` | events of an id with blanks around it, such as "x ", which also occurs without |
    | `one_time` | all events have one time |
    | `time_units` | times form narrow ranges more than 100 times apart, such as seconds among milliseconds, or are -1 |
    | `head_share` | the most popular hundredth of the items has more than half of the events |
    | `heaviest_user` | one user has more than a tenth of the events, and more than 5 times the mean of all users |
    | `popular_item` | one item, recommended to all, reaches more than half of the users of test; no fault of a log |
    | `unused_users`, `unused_items` | ids of the vocabulary have no event; no fault of a log, which may be one part |
    | finding about a split only | |
    | `no_train`, `no_test` | the part is empty |
    | `no_times` | parts have no times, so that their order cannot be checked; reported, but never a fault |
    | `in_train`, `in_valid` | test pairs (user, item) that also occur in train, or in validation |
    | `before_train_ends` | test events before the last train event: the model has seen the future (leave-one-out) |
    | `before_own_train` | test events before the same user's last train event |
    | `equal_times` | test events at the time of the same user's last train event: their order is unknown |
    | `unseen_users`, `unseen_items` | test events of a user, or with an item, that does not occur in train |

    Findings that are never faults: `events`, `users` and `items` (the ids that occur, with their range), `pairs` (with
    the density).

    Args:
        what: a `Log`, `Interactions`, or a split of a log. Times are checked if there are any. For a `UserSplit` the
            users are the held-out ones, but items and popularity come from `fit` and `train` together.

    Raises:
        TypeError: for anything else.
        ValueError: if there are no events at all, or if some parts have vocabularies and others have none.

    Examples:
        >>> import torchrecmetrics as trm
        >>> frame = {"user": list("aaabbb"), "item": list("xyzxyx"), "time": range(1, 7)}
        >>> report = trm.audit(trm.Log.from_frame(frame, time="time").leave_last_out())
        >>> report.faults
        ('in_train', 'before_train_ends', 'unseen_items')
        >>> report["before_train_ends"].example
        "user 'a', item 'z' at 3, train ends at 4"
    """
    parts = _parts(what)
    all_events = _joined_events(list(parts.values()))
    if not len(all_events):
        raise ValueError(f"there are no events to audit: {what}")
    times = _times(parts)
    is_split = len(parts) > 1
    in_test = torch.cat(
        [torch.full((len(events),), int(is_split and name == "test"), device="cpu") for name, events in parts.items()]
    )
    all_times = None if times is None else torch.cat(list(times.values()))
    findings = _findings_of_parts(all_events, all_times, in_test, is_split)
    if is_split:
        findings |= _findings_of_split(parts, times)
    title = ", ".join(f"{name} {len(events)}" for name, events in parts.items())
    return Audit(f"{type(what).__name__}: {title} events" if is_split else f"{type(what).__name__}: {title}", findings)


def _parts(what: Any) -> dict[str, Events]:
    """Return the events of each part, {name: Events}, all with the row numbers of shared vocabularies."""
    logs: dict[str, Any]
    for log in what if isinstance(what, tuple) else [what]:
        if isinstance(log, Log):
            log.check_read("time")
    if isinstance(what, (Log, Interactions)):
        logs = {"events": what}
    elif isinstance(what, UserSplit):
        logs = {"train": what.train, "test": what.test, "others": what.fit}
    elif isinstance(what, LogSplit):
        logs = {"train": what.train, "valid": what.valid, "test": what.test}
    else:
        cure = "pass a Log, Interactions, or a split of one, such as LogSplit(train, valid, test)"
        raise TypeError(f"audit takes logs and their splits, got {describe(what)}: {cure}")
    parts = {}
    for name, events in logs.items():
        if isinstance(events, Interactions):
            shape = (events.num_users, events.num_items)
            users, items = events.users.cpu(), events.items.cpu()
            events = Events(users, items, shape, user_ids=events.user_ids, item_ids=events.item_ids)
        elif not isinstance(events, Log):
            raise TypeError(f"{name} must be a Log or Interactions, got {describe(events)}")
        parts[name] = events
    user_ids, item_ids = _vocabulary(parts, "user"), _vocabulary(parts, "item")
    return {name: _recoded(events, user_ids, item_ids) for name, events in parts.items()}


def _vocabulary(parts: Mapping[str, Events], role: str) -> Vocabulary | None:
    """Return the union of the users, or the items, of all parts; None if no part has a vocabulary."""
    known = {name: ids for name, events in parts.items() if (ids := getattr(events, f"{role}_ids")) is not None}
    if lacks := [name for name in parts if known and name not in known]:
        has = next(iter(known))
        raise ids_beside_rows(role, has, lacks[0], f"{lacks[0]}.with_ids({role}_ids={has}.{role}_ids)")
    return reduce(Vocabulary.union, known.values()) if known else None


def _recoded(events: Events, user_ids: Vocabulary | None, item_ids: Vocabulary | None) -> Events:
    """Return the events of a part with the row numbers of vocabularies that hold all ids of the part."""
    users, items = events.users, events.items
    num_users, num_items = events.shape
    if user_ids is not None and events.user_ids is not None:
        users, num_users = events.user_ids.recode(users, user_ids), len(user_ids)
    if item_ids is not None and events.item_ids is not None:
        items, num_items = events.item_ids.recode(items, item_ids), len(item_ids)
    return replace(events, users=users, items=items, shape=(num_users, num_items), user_ids=user_ids, item_ids=item_ids)


def _joined_events(parts: list[Events]) -> Events:
    """Return the users and items of all parts as one `Events`, without times and values."""
    shape = (max(events.shape[0] for events in parts), max(events.shape[1] for events in parts))
    users, items = torch.cat([events.users for events in parts]), torch.cat([events.items for events in parts])
    return Events(users, items, shape, user_ids=parts[0].user_ids, item_ids=parts[0].item_ids)


def _times(parts: dict[str, Events]) -> dict[str, Tensor] | None:
    """Return the times of each part in one unit, {name: [E]}; None if a part has no times."""
    times = [events.times for events in parts.values() if events.times is not None]
    if len(times) < len(parts):
        return None
    return dict(zip(parts, in_one_unit(times, [events.time_unit for events in parts.values()]), strict=True))


def _findings_of_parts(events: Events, times: Tensor | None, in_test: Tensor, split: bool) -> dict[str, Finding]:
    """Return the findings about the events of all parts together."""
    per_user = torch.bincount(events.users, minlength=events.shape[0])
    per_item = torch.bincount(events.items, minlength=events.shape[1])
    of_all = " of all parts" if split else ""
    findings = _sizes(events, per_user, per_item, times, split)
    findings |= _findings_of_events(events, times, in_test, of_all)
    if times is not None:
        findings |= _findings_of_times(times, of_all)
    findings |= _most_frequent(events, per_user, per_item, of_all)
    if not split:
        popular_item = _popular_item_finding(events, events, "users have the most popular item")
        findings["popular_item"] = popular_item._replace(wrong=False)
    return findings | _unused(events, per_user, per_item, split)


def _sizes(events: Events, per_user: Tensor, per_item: Tensor, times: Tensor | None, split: bool) -> dict[str, Finding]:
    """Return the findings `events`, `users`, `items` and `pairs`: counts, never faults."""
    of_all, in_all = (" of all parts", " in all parts") if split else ("", "")
    findings = {"events": Finding(len(events), 0, f"events{of_all}{_time_range_text(times)}")}
    for name, count, ids in (("users", per_user, events.user_ids), ("items", per_item, events.item_ids)):
        used = int((count > 0).sum())
        findings[name] = Finding(used, 0, f"{name}{of_all} occur; {_id_range(count, ids)}")
    pairs = torch.unique(_pair_keys(events))
    density = len(pairs) / max(1, findings["users"].number * findings["items"].number)
    says = f"different pairs of user and item{in_all}, density {density:.2g}"
    findings["pairs"] = Finding(len(pairs), 0, says)
    return findings


def _findings_of_events(events: Events, times: Tensor | None, in_test: Tensor, of_all: str) -> dict[str, Finding]:
    """Return the findings `repeated_events`, `empty_ids` (such as "" and "nan") and `blank_ids`."""
    when = "" if times is None else " and time"
    says = f"events{of_all} repeat the user, item{when} of another"
    findings = {"repeated_events": _finding(_repeats(_pair_keys(events) * 2 + in_test, times), says, _namer(events))}
    empty = torch.zeros(len(events), dtype=torch.bool, device="cpu")
    blank = empty.clone()
    for rows, ids in ((events.users, events.user_ids), (events.items, events.item_ids)):
        if ids is None:
            continue
        nothing = ids.rows(_EMPTY_IDS[ids.kind], unknown="mark")
        empty |= torch.isin(rows, nothing[nothing >= 0])
        if ids.kind == "text":
            pc = arrow().compute
            trimmed = pc.utf8_trim_whitespace(ids.array)
            is_other = pc.and_(pc.not_equal(trimmed, ids.array), pc.is_in(trimmed, value_set=ids.array))
            blank |= torch.tensor(is_other.to_pylist(), dtype=torch.bool, device="cpu")[rows]
    says = f"events{of_all} are of an id that seems to mean a missing value"
    findings["empty_ids"] = _finding(empty, says, _namer(events))
    says = f"events{of_all} are of an id with blanks around it, which also occurs without"
    findings["blank_ids"] = _finding(blank, says, _namer(events))
    return findings


def _findings_of_times(times: Tensor, of_all: str) -> dict[str, Finding]:
    """Return the findings `one_time` (all events at the same time) and `time_units` (times in several units)."""
    number = len(times)
    same = number > 1 and bool((times == times[0]).all())
    says = f"events{of_all} have the same time"
    findings = {"one_time": Finding(number if same else 0, number, says, example=str(times[0].item()), wrong=same)}
    findings["time_units"] = _finding(
        wrong_times(times),
        f"times{of_all} are more than {UNIT_RATIO} times as large, or as small, as most, or -1",
        lambda row: f"{times[row].item()}, median {times.median().item()}",
    )
    return findings


def _most_frequent(events: Events, per_user: Tensor, per_item: Tensor, of_all: str) -> dict[str, Finding]:
    """Return the findings `head_share` (events of the most popular items) and `heaviest_user`."""
    number, num_users, num_items = len(events), int((per_user > 0).sum()), int((per_item > 0).sum())
    head = max(1, num_items // 100)
    top = int(per_item.sort(descending=True).values[:head].sum())
    says = f"events{of_all} are with the {'' if head == 1 else f'{head} '}most popular item{'' if head == 1 else 's'}"
    crowded = top > _HEAD * number and head < num_items
    heaviest = int(per_user.max())
    return {
        "head_share": Finding(top, number, says, example=_item(events, per_item), wrong=crowded),
        "heaviest_user": Finding(
            heaviest,
            number,
            f"events{of_all} are of one user",
            example=f"user {_id_text(events.user_ids, int(per_user.argmax()))}",
            wrong=heaviest > max(_HEAVY, _HEAVY_TIMES_MEAN / num_users) * number,
        ),
    }


def _unused(events: Events, per_user: Tensor, per_item: Tensor, split: bool) -> dict[str, Finding]:
    """Return the findings `unused_users` and `unused_items`: ids of the vocabularies without an event."""
    findings = {}
    for name, count, ids in (("users", per_user, events.user_ids), ("items", per_item, events.item_ids)):
        unused = count == 0
        number, says = int(unused.sum()), f"{name} of the vocabulary have no event{' in any part' if split else ''}"
        example = f"{name[:-1]} {_id_text(ids, int(unused.long().argmax()))}"
        findings[f"unused_{name}"] = Finding(number, len(count), says, example=example, wrong=split and number > 0)
    return findings


def _findings_of_split(parts: dict[str, Events], times: dict[str, Tensor] | None) -> dict[str, Finding]:
    """Return the findings that compare the parts of a split: empty parts, leaks, order in time, unseen ids."""
    train, test = parts["train"], parts["test"]
    known_events = _joined_events([events for name, events in parts.items() if name in ("train", "others")])
    findings = {
        f"no_{name}": Finding(
            int(not len(events)), 0, f"{name} {'parts are' if len(events) else 'part is'} empty", wrong=not len(events)
        )
        for name, events in (("train", known_events), ("test", test))
    }
    if times is None:
        says = "parts have no times, so their order is unknown (time= names the column)"
        findings["no_times"] = Finding(len(parts), len(parts), says)
    name_row = _namer(test)
    if len(test) and len(known_events):
        says = f"users of test have the most popular item of {'train' if 'others' not in parts else 'fit and train'}"
        findings["popular_item"] = _popular_item_finding(known_events, test, says)
    for name in ("train", "valid"):
        if name in parts:
            both = torch.isin(_pair_keys(test, known_events), _pair_keys(parts[name], known_events))
            findings[f"in_{name}"] = _finding(both, f"test pairs of user and item are in {name} too", name_row)
    if times is not None and len(train):
        when, last = times["test"], times["train"].max()

        def dated(row: int) -> str:
            return f"{name_row(row)} at {_shown(parts['test'], row)}"

        ends = _shown(train, int(times["train"].argmax()))
        if "others" not in parts:
            findings["before_train_ends"] = _finding(
                when < last,
                "test events are older than the last train event",
                lambda row: f"{dated(row)}, train ends at {ends}",
            )
        last_train_times = times["train"].min().repeat(max(train.shape[0], test.shape[0]))
        known_user = torch.isin(test.users, train.users)
        last_train_times = last_train_times.scatter_reduce(0, train.users, times["train"], "amax")[test.users]
        if "others" not in parts:  # a `UserSplit` holds out random items, whatever their times
            says = "test events are older than the same user's last train event"
            findings["before_own_train"] = _finding(known_user & (when < last_train_times), says, dated)
            says = "test events have the time of the same user's last train event"
            findings["equal_times"] = _finding(known_user & (when == last_train_times), says, dated)
    for name, side, seen in (("users", test.users, train.users), ("items", test.items, known_events.items)):
        says = f"test events are of {name} that train has never seen"
        findings[f"unseen_{name}"] = _finding(~torch.isin(side, seen), says, name_row)
    return findings


def _finding(rows: Tensor, says: str, name_row: Callable[[int], str]) -> Finding:
    """Return a fault that counts the marked events, bool [E], and gives the first as its example."""
    count = int(rows.sum())
    example = name_row(int(rows.long().argmax())) if count else ""
    return Finding(count, len(rows), says, example=example, wrong=count > 0)


def _popular_item_finding(known_events: Events, tested: Events, says: str) -> Finding:
    """Return a finding that counts the users of `tested` who have the most popular item of `known_events`."""
    num_items = known_events.num_items
    popularity = torch.bincount(torch.unique(_pair_keys(known_events)) % max(num_items, 1), minlength=num_items)
    best = int(popularity.argmax())
    reached = len(torch.unique(tested.users[tested.items == best]))
    number = len(torch.unique(tested.users))
    wrong = reached > _POPULAR * number
    return Finding(reached, number, says, example=_item(known_events, popularity), wrong=wrong)


def _repeats(keys: Tensor, times: Tensor | None) -> Tensor:
    """Mark the events with the key (and the time, if given) of an earlier event, bool [E]."""
    order = torch.arange(len(keys), device="cpu") if times is None else times.argsort(stable=True)
    order = order[keys[order].argsort(stable=True)]
    same = keys[order][1:] == keys[order][:-1]
    if times is not None:
        same &= times[order][1:] == times[order][:-1]
    repeated = torch.zeros(len(keys), dtype=torch.bool, device="cpu")
    repeated[order[1:][same]] = True
    return repeated


def _pair_keys(events: Events, other: Events | None = None) -> Tensor:
    """Return user * num_items + item of each event, int64 [E], with the larger num_items of `events` and `other`."""
    return events.users * max(events.shape[1], 1 if other is None else other.shape[1]) + events.items


def _namer(events: Events) -> Callable[[int], str]:
    """Return a function that names the user and the item of a row."""

    def named(row: int) -> str:
        user, item = int(events.users[row]), int(events.items[row])
        return f"user {_id_text(events.user_ids, user)}, item {_id_text(events.item_ids, item)}"

    return named


def _item(events: Events, popularity: Tensor) -> str:
    """Return the most popular item as text, by its id or row number."""
    return f"item {_id_text(events.item_ids, int(popularity.argmax()))}"


def _id_text(ids: Vocabulary | None, row: int) -> str:
    """Return the id of a row as text, or the row number if there is no vocabulary."""
    return repr(ids[row]) if ids is not None and len(ids) else str(row)


def _shown(events: Events, row: int) -> str:
    """Return the time of an event as text; "" without times."""
    return "" if events.times is None else shown_time(events.times, row, events.time_unit)


def _time_range_text(times: Tensor | None) -> str:
    """Return the first and the last time as text; "" without times."""
    return "" if times is None or not len(times) else f", times {times.min().item()} to {times.max().item()}"


def _id_range(count: Tensor, ids: Vocabulary | None) -> str:
    """Return the kind of the ids that occur, and the first and the last id in order, as text."""
    used = count.nonzero()[:, 0]
    if ids is None:
        return f"rows {int(used.min())} to {int(used.max())}"
    used_ids = ids.ids(used)
    return f"{ids.kind}, {min(used_ids)!r} to {max(used_ids)!r}"
