"""`read_sides`: lists, ground truth and exclusions of any form, read once and numbered together by their ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.core.checks import describe
from torchrecmetrics.core.cures import joined
from torchrecmetrics.data.catalogue import Catalogue
from torchrecmetrics.data.interactions import Interactions, Reduce
from torchrecmetrics.data.log import Log
from torchrecmetrics.evaluation.list_entries import ListEntries, Numbering
from torchrecmetrics.evaluation.matching import IdColumn, of_one_kind, union
from torchrecmetrics.evaluation.recommendations import Recommendations
from torchrecmetrics.evaluation.test_set import check_target
from torchrecmetrics.evaluation.user_exclusions import matched
from torchrecmetrics.tables.events import Events
from torchrecmetrics.tables.files import FileSource
from torchrecmetrics.tables.sources import holds_records
from torchrecmetrics.tables.table import Table, Use, has_columns
from torchrecmetrics.tables.unmatched import several_ids
from torchrecmetrics.tables.vocabulary import Vocabulary


class Sides(NamedTuple):
    """Lists, ground truth and exclusions with one numbering: ids of the ground truth first, ids only in lists last."""

    lists: ListEntries
    user_ids: Vocabulary | None
    """Users of the ground truth, then those only in lists; None = the rows of lists are row numbers."""
    item_ids: Vocabulary | None
    """Items of the ground truth, then those only in exclusions, then those only in lists."""
    target: Interactions
    exclude: list[Any]
    """Interactions, and masks of items, bool [I]."""
    num_known_items: int
    """Number of items of the ground truth or the catalogue, which come first."""
    unread: dict[str, list[str]]
    """Names of the columns that were not read, by table."""


def read_sides(
    lists: Any, target: Any, exclude: Sequence[Any], values_reduce: Reduce | None, catalogue: Catalogue | None
) -> Sides:
    """Read the arguments of `evaluate_lists`, and number their ids together.

    Raises:
        ValueError: with one question for all columns that were not read and could be the order or the relevance.
    """
    lists, target = opened_lists(lists), _opened("target", target)
    exclude = [_opened("exclude", history) for history in exclude]
    questions = []
    if isinstance(target, Log):
        questions.append(target.questions.get("value"))
    sides: list[tuple[Any, Use, str]] = [(lists, "order", "qrels"), (target, "value", "run")]
    for table, use, swapped in sides:
        if isinstance(table, Table):
            if table.source.trec == swapped:
                raise ValueError(
                    f"{table.what} is {'qrels' if swapped == 'qrels' else 'a run'} of TREC, got as "
                    f"{'lists' if swapped == 'qrels' else 'target'}: lists are runs and target is qrels; are the two "
                    "swapped?"
                )
            questions.append(table.question(use))
    questions += [history.question_of_flags() for history in exclude if isinstance(history, Table)]
    if errors := [error for error in questions if error is not None]:
        raise joined(errors)
    truth = _interactions("target", target, values_reduce)
    if not len(truth):
        raise ValueError(f"target holds no interactions, there is nothing to evaluate: {truth}")
    histories = [h.cpu() if isinstance(h, Tensor) else _interactions("exclude", h) for h in exclude]
    known = Numbering("target", truth.user_ids, truth.item_ids, (truth.num_users, truth.num_items))
    entries = ListEntries.read(lists, known)
    tables = [(lists, ("rank", "score")), (target, ("value",)), *((history, ()) for history in exclude)]
    unread = {table.what: table.not_read(*roles) for table, roles in tables if isinstance(table, Table)}
    numbered = _number_sides([target, *exclude], [truth, *histories], entries, catalogue)
    return numbered._replace(unread={what: names for what, names in unread.items() if names})


def _number_sides(
    arguments: Sequence[Any], pairs: Sequence[Any], entries: ListEntries, catalogue: Catalogue | None
) -> Sides:
    """Return all sides with one numbering.

    Args:
        arguments: ground truth and exclusions as they were passed, tables as `Table`.
        pairs: the same as interactions, and masks of items.
        entries: the lists.
        catalogue: the catalogue, whose items come first.
    """
    pairs, lists = list(pairs), []
    is_split = entries.table is not None and entries.table.split is not None
    for side, listed in (("user", entries.users), ("item", entries.items)):
        columns: list[IdColumn] = []
        for argument, of_side in zip(arguments, pairs, strict=True):
            if isinstance(of_side, Interactions):
                table = argument if isinstance(argument, Table) else None
                written = (table is not None and table.source.as_written) or (is_split and side == "item")
                what = f"{side}_ids of {'exclude' if table is None else table.what}"
                what = what if columns else f"target's {side}_ids"
                columns.append(IdColumn(what, getattr(of_side, f"{side}_ids"), listed.rows, written))
        *columns, column = of_one_kind([*columns, listed])
        lists.append(column)
        made = iter(columns)
        for at, of_side in enumerate(pairs):
            if isinstance(of_side, Interactions) and (ids := next(made).ids) is not getattr(of_side, f"{side}_ids"):
                pairs[at] = of_side.with_ids(**{f"{side}_ids": ids})
    truth, *exclude = pairs
    if catalogue is not None:
        truth = _numbered_as(catalogue, truth)
    num_known_items, target_ids, item_ids = truth.num_items, truth.item_ids, truth.item_ids
    if item_ids is not None:
        for history in exclude:
            if isinstance(history, Interactions) and history.item_ids is not None:
                item_ids = item_ids.union(history.item_ids)
        truth = truth if item_ids == truth.item_ids else truth.recode(item_ids=item_ids)
    users, items = lists
    all_items = union([items._replace(ids=item_ids), items])
    if all_items and items.ids and len(all_items) == len(items.ids) + len(item_ids or ()):  # no item matches
        _check_cells([entries.table, arguments[0]], [items.ids, target_ids])
    for at, history in enumerate(exclude):
        if isinstance(history, Interactions):
            if isinstance(table := arguments[1 + at], Table):
                _check_cells([table], [history.item_ids, target_ids])
            exclude[at] = matched(history, truth)
        elif history.dtype == torch.bool and history.shape == (num_known_items,):  # others are refused by Exclusions
            exclude[at] = torch.nn.functional.pad(history, (0, truth.num_items - num_known_items))
    return Sides(
        lists=entries._replace(users=users, items=items),
        user_ids=union([users._replace(ids=truth.user_ids), users]),
        item_ids=all_items,
        target=truth,
        exclude=exclude,
        num_known_items=num_known_items,
        unread={},
    )


def _check_cells(tables: Sequence[Any], ids: Sequence[Vocabulary | None]) -> None:
    """Refuse tables whose cells hold several ids of the other side each; `ids` are the items of both sides."""
    for table, ids_of_table, others in zip(tables, ids, reversed(ids), strict=False):
        if isinstance(table, Table) and table.split is None and not table.holds_lists:
            error = several_ids(f"items of {table.what}", ids_of_table, others)
            if error is not None:
                raise error


def _numbered_as(catalogue: Catalogue, truth: Interactions) -> Interactions:
    """Return the ground truth with the catalogue's row numbers; items that the catalogue lacks come last."""
    if (catalogue.item_ids is None) != (truth.item_ids is None):
        has, lacks = ("target", "the catalogue") if catalogue.item_ids is None else ("the catalogue", "target")
        raise ValueError(
            f"{has} has item_ids, {lacks} has none: row 5 could mean two items; make both with ids "
            "(Catalogue.from_interactions of a Log's train), or both without"
        )
    if catalogue.item_ids is None or truth.item_ids is None:
        if catalogue.num_items != truth.num_items:
            raise ValueError(f"the catalogue has {catalogue.num_items} items, target has {truth.num_items}")
        return truth
    return truth.recode(item_ids=catalogue.item_ids.union(truth.item_ids))


# --------------------------------------------------------------------------------------------------- one argument


def opened_lists(lists: Any, what: str = "lists") -> Any:
    """Return frames and paths as a `Table`, and other forms of lists as they are; refuse objects without lists."""
    if isinstance(lists, (Table, str, Path)) or holds_records(lists):
        return Table.of(lists, what)
    if isinstance(lists, Recommendations) or (isinstance(lists, Mapping) and not has_columns(lists)):
        return lists
    if isinstance(lists, tuple):
        if len(lists) != 2:
            raise TypeError(f"lists must be a tuple of two, (item ids [B, K], users [B]), got {len(lists)} values")
        return lists
    fields = getattr(getattr(lists, "dtype", None), "names", None)
    if isinstance(lists, (Tensor, list)) or (hasattr(lists, "__array__") and hasattr(lists, "reshape") and not fields):
        raise TypeError(
            f"lists must be a frame, a path, a dict {{user: [items]}} or a tuple, got {describe(lists)}: to say "
            "who the users are, pass (lists, users)"
        )
    return Table.of(lists, what)


def _opened(name: str, argument: Any) -> Any:
    """Return frames and paths as a `Table`, and other forms of interactions as they are."""
    if isinstance(argument, (Interactions, Log, Tensor)):
        return argument
    if isinstance(argument, Mapping) and not has_columns(argument):
        return argument
    table = Table.of(argument, name)
    if not table.source.names and not isinstance(table.source, FileSource):
        check_target(argument, name, "Interactions, a Log, a Table, a frame, a dict or a file")
    return table


def _interactions(name: str, argument: Any, values_reduce: Reduce | None = None) -> Interactions:
    """Return the interactions of any accepted form, on the CPU; those to exclude have no values."""
    if isinstance(argument, Interactions):
        return argument.to("cpu")
    if isinstance(argument, Log):
        log = argument if name == "target" else replace(argument, values=None, questions={})
        return log.to_interactions(values_reduce=values_reduce)
    if isinstance(argument, Mapping):
        events = _events_of_dict(name, argument)
        judged = events.values is not None
    else:
        reads_value = name == "target" or argument.said.get("value") is not None
        events = Events.of_table(argument, *(("value",) if reads_value else ()))
        judged = argument.source.trec == "qrels"
    if name != "target" and events.values is not None:
        events = replace(events.take(events.values > 0), values=None)
    duplicates: Literal["merge", "error"] = "error" if judged and values_reduce is None else "merge"
    return Interactions.of_events(events, duplicates=duplicates, values_reduce=values_reduce)


def _events_of_dict(name: str, argument: Mapping[Any, Any]) -> Events:
    """Return the pairs of a dict {user: items}, or of a ground truth {user: {item: grade}}."""
    for user, items in argument.items():
        if isinstance(items, Interactions):
            raise TypeError(
                f"{name} holds several ground truths, but lists are looked up in one: "
                "{name: evaluate_lists(..., target=part) for name, part in slices.items()}"
            )
        if isinstance(items, Mapping) and name != "target":
            raise TypeError(f"{name} holds a dict for {user!r}, but {{user: items}} has no values: pass lists of items")
    return Events.of_dict(name, argument)
