"""`read_sides`: lists, ground truth and exclusions, numbered together by their ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.core.checks import describe, ids_beside_rows
from torchrecmetrics.data.catalogue import Catalogue
from torchrecmetrics.data.edges import Reduce
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.data.log import Log
from torchrecmetrics.evaluation.recommend import Recommendations
from torchrecmetrics.evaluation.test_set import check_target, from_edges, from_matrix, wrong_exclusion
from torchrecmetrics.tables.columns import arrow, ids_of, tensor_of
from torchrecmetrics.tables.entries import Entries, entries_of_dict, entries_of_lists
from torchrecmetrics.tables.events import events_of
from torchrecmetrics.tables.sources import may_be_frame
from torchrecmetrics.tables.table import Table, Use, has_columns
from torchrecmetrics.tables.vocabulary import Numbered, Vocabulary, numbered_together

_PAIRS = "Interactions, a Log, a Table, a frame, a matrix, a dict or a file"
"""Accepted forms of a ground truth, and of exclusions."""

# ------------------------------------------------------------------------------------------------------- one argument


def opened(name: str, argument: Any) -> Any:
    """Return frames and paths as a `Table`, matrices as `Interactions`, and other accepted forms as they are.

    Args:
        name: name of the argument in messages; those of lists begin with "lists".
        argument: lists, ground truth or exclusions.

    Raises:
        TypeError: for objects of no such form.
    """
    is_lists = name.startswith("lists")
    argument = argument if is_lists else from_matrix(name, argument)
    others = (tuple, Recommendations) if is_lists else (Interactions, Log, Tensor)
    if isinstance(argument, others) or (isinstance(argument, Mapping) and not has_columns(argument)):
        return argument
    if isinstance(argument, (str, Path, Table)) or may_be_frame(argument):
        return Table.of(argument, name)
    if is_lists:
        raise TypeError(
            f"{name} must be a frame, a path, a dict {{user: [items]}} or a tuple, got {describe(argument)}: to say "
            f"who the users are, pass ({name}, users)"
        )
    check_target(argument, name, _PAIRS)


def ask(*questions: str) -> None:
    """Raise one error with all questions that are open."""
    if text := "\n".join(filter(None, questions)):
        raise ValueError(text)


def entries_of(lists: Any) -> Entries:
    """Return the entries of lists that `opened` returned: those of one user are a list.

    Raises:
        TypeError: for lists of anything but items.
        ValueError: for missing ids, two lists of one user, and no rows.
    """
    if isinstance(lists, Table):
        if lists.split is not None and lists.order is not None:
            raise ValueError("split= reads the items of a cell in order, best first: leave rank= and score= out")
        entries = lists.read("rank", "score", lists=True)
        if not len(entries.users):
            raise ValueError(f"{lists.what} holds no rows")
        return entries
    if isinstance(lists, Recommendations):
        return _of_recommendations(lists)
    if isinstance(lists, Mapping) and any(isinstance(scores, Mapping) for scores in lists.values()):
        return entries_of_dict("lists", lists, "score")
    if not isinstance(lists, Mapping) and len(lists) != 2:
        raise TypeError(f"lists must be a tuple of two, (item ids [B, K], users [B]), got {len(lists)} values")
    cells, users = ([*lists.values()], [*lists]) if isinstance(lists, Mapping) else lists
    kinds = set() if hasattr(cells, "shape") else {*map(type, cells)}
    wrong = [kind for kind in kinds if issubclass(kind, (str, bytes, set, Mapping)) or not hasattr(kind, "__len__")]
    if wrong:
        raise TypeError(f"each of the lists must be a list of item ids, best first, got {wrong[0].__name__}")
    if not len(cells):
        raise ValueError("lists is empty")
    return entries_of_lists("lists", cells, users, padding=-1)


def _of_recommendations(lists: Recommendations) -> Entries:
    """Return the entries of a result of `recommend`; row numbers are ids where there are no others."""
    pa, ids, owners = arrow(), lists.ids.cpu(), lists.users.cpu()
    row, column = (ids >= 0).nonzero(as_tuple=True)
    sides = []
    for rows, vocabulary in ((owners, lists.user_ids), (ids[row, column], lists.item_ids)):
        array = pa.array(rows.numpy())
        sides.append(ids_of("recommendations", array if vocabulary is None else vocabulary.array.take(array)))
    users, items = sides
    users = pa.DictionaryArray.from_arrays(users.indices.take(pa.array(row.numpy())), users.dictionary)
    scores = pa.array(lists.scores.cpu()[row, column].double().numpy())
    return Entries({"user": users, "item": items, "score": scores}, "the recommendations")


class Side(NamedTuple):
    """Pairs of users and items of one argument."""

    name: str
    """Name of the argument in messages."""
    pairs: Any
    """`Interactions`, a `Log`, `Entries`, or a `Catalogue`, which has items alone."""
    written: frozenset[str] = frozenset()
    """"user" and "item" if these ids were read from text, where 7 and "7" look the same."""

    def ids(self, role: str) -> Vocabulary:
        """Return the ids of users or items; row numbers are ids where there are no others."""
        ids: Vocabulary | None = getattr(self.pairs, f"{role}_ids")
        if ids is None:
            return Vocabulary(torch.arange(getattr(self.pairs, f"num_{role}s"), device="cpu"))
        return ids

    def column(self, role: str) -> str:
        """Return the name of the users or items in messages."""
        return self.pairs.name(role) if isinstance(self.pairs, Entries) else f"{self.name}'s {role}_ids"


def _ground_truth(target: Any, values_reduce: Reduce | None, num_lists: int) -> Side:
    """Return the ground truth of any accepted form as `Interactions` on the CPU; edges have the sizes of their ids."""
    written = frozenset[str]()
    if isinstance(target, Tensor):
        sizes = [int(ids.max()) + 1 if ids.numel() else 0 for ids in target] if target.dim() == 2 else [0, 0]
        sizes[0] = 2 if num_lists == 2 else sizes[0]  # which may also be two rows of items
        target = from_edges("target", target.cpu(), sizes[0], sizes[-1])
        check_target(target, "target", _PAIRS)
    if isinstance(target, Interactions):
        truth = target.to("cpu")
    elif isinstance(target, Log):
        truth = target.to_interactions(values_reduce=values_reduce)
    else:
        roles = ("value", "time") if values_reduce == "last" else ("value",)
        entries = target.read(*roles) if isinstance(target, Table) else entries_of_dict("target", target)
        written = entries.written
        truth = Interactions.of_events(events_of(entries), values_reduce=values_reduce)
    if not len(truth):
        raise ValueError(f"target holds no interactions, there is nothing to evaluate: {truth}")
    return Side("target", truth, written)


def _excluded_pairs(name: str, history: Any, truth: Interactions) -> Any:
    """Return the excluded pairs of any accepted form, whatever their values; or a mask of items, bool [I].

    Raises:
        TypeError: for tensors that are no mask of the ground truth's items and no edges.
    """
    if isinstance(history, Tensor):
        if history.dtype == torch.bool and history.shape == (truth.num_items,):
            return history.cpu()
        history = from_edges(name, history.cpu(), truth.num_users, truth.num_items)
        if isinstance(history, Tensor):
            raise wrong_exclusion(history, truth.num_items)
    if isinstance(history, (Mapping, Table)):
        return entries_of_dict(name, history) if isinstance(history, Mapping) else history.read()
    return history.to("cpu") if isinstance(history, Interactions) else history


def check_ids(arguments: Mapping[str, Any]) -> None:
    """Refuse ids beside row numbers, and row numbers of other users or items; a dict or a tuple of lists holds either.

    Args:
        arguments: lists, ground truth, exclusions and catalogue by name.
    """
    for role in ("user", "item"):
        ids = {name: getattr(pairs, f"{role}_ids", ...) for name, pairs in arguments.items()}
        has = [name for name in ids if ids[name] is not None and ids[name] is not ...]
        lacks = [name for name in ids if ids[name] is None]
        if has and lacks:
            call = "Catalogue(..., " if lacks[0] == "the catalogue" else f"{lacks[0]}.with_ids("
            raise ids_beside_rows(role, has[0], lacks[0], f"{call}{role}_ids=...)")
        sizes = {name: getattr(arguments[name], f"num_{role}s", None) for name in lacks}
        for name, size in sizes.items():
            if size is not None and size != sizes["target"]:
                raise ValueError(
                    f"{name} has {size} {role}s, target has {sizes['target']}: their rows are not the same"
                )


def _without_negative_rows(entries: Entries, truth: Interactions) -> Entries:
    """Return entries of lists; of row numbers of items, those below 0 are padding, and those of users are refused."""
    lowest = {}
    for role, ids in (("user", truth.user_ids), ("item", truth.item_ids)):
        if ids is None and getattr(entries, f"{role}_ids").kind == "whole numbers":
            lowest[role] = arrow().compute.min(entries.columns[role].dictionary).as_py() or 0
    if lowest.get("user", 0) < 0:
        raise ValueError(f"{entries.name('user')} hold {lowest['user']}: row numbers are 0 or more")
    if lowest.get("item", 0) < 0:
        is_item = arrow().array((tensor_of(entries.item_ids.array)[entries.items] >= 0).numpy())
        return entries._replace(columns={role: column.filter(is_item) for role, column in entries.columns.items()})
    return entries


# ------------------------------------------------------------------------------------------------------- all together


class ListEntries(NamedTuple):
    """The entries of all lists, in the order of their rows; those of one user are a list."""

    users: Tensor
    """Row number of the user of each entry, int32 [E]."""
    items: Tensor
    """Row number of the item of each entry, int32 [E]."""
    owners: Tensor
    """Row number of each user who has a list, also an empty one, int32 [n]."""
    source: Entries
    """The entries as they were read: their ranks or scores, and the names of rows."""

    @classmethod
    def of(cls, entries: Entries, user_rows: Tensor, item_rows: Tensor) -> ListEntries:
        """Return numbered entries; `user_rows` and `item_rows` are the rows of their distinct ids, int32 [n] each."""
        users, items = user_rows.index_select(0, entries.users), item_rows.index_select(0, entries.items)
        return cls(users, items, user_rows, entries)


class Sides(NamedTuple):
    """Lists, ground truth and exclusions with one numbering: ids of the ground truth first, ids only in lists last."""

    lists: ListEntries
    user_ids: Vocabulary
    """Users of the ground truth, then those only in exclusions, then those only in lists; or their row numbers."""
    item_ids: Vocabulary
    """Items of the catalogue and the ground truth, then those only in exclusions, then those only in lists."""
    target: Interactions
    exclude: list[Any]
    """Interactions, and masks of items, bool [I]."""
    has_history: Tensor
    """Bool [len(user_ids)]: users of whom items are excluded, masks aside."""
    num_excluded: int
    """Number of excluded pairs, as they were given."""
    num_known_items: int
    """Number of items of the catalogue and the ground truth, which come first."""
    unread: dict[str, list[str]]
    """Names of the columns that were not read, by table; of all exclusions together."""


def read_sides(
    lists: Any, target: Any, exclude: Sequence[Any], values_reduce: Reduce | None, catalogue: Catalogue | None
) -> Sides:
    """Read the arguments of `evaluate_lists`, and number their ids together.

    Raises:
        ValueError: with one question for all columns that were not read and could be the order or the relevance.
    """
    lists, target = opened("lists", lists), opened("target", target)
    exclude = [opened("exclude", history) for history in exclude]
    of_truth: tuple[Use, ...] = ("value", "time") if values_reduce == "last" else ("value",)
    uses_of_tables: list[tuple[Any, tuple[Use, ...]]] = [(lists, ("order",)), (target, of_truth)]
    ask(*(table.question(uses[0]) for table, uses in uses_of_tables if isinstance(table, Table)))
    entries = entries_of(lists)
    truth = _ground_truth(target, values_reduce, len(entries.user_ids))
    names = ["exclude"] if len(exclude) == 1 else [f"exclude[{at}]" for at in range(len(exclude))]
    histories = {name: _excluded_pairs(name, part, truth.pairs) for name, part in zip(names, exclude, strict=True)}
    of_lists = entries if isinstance(lists, Table) else lists
    check_ids({"target": truth.pairs, "lists": of_lists, **histories, "the catalogue": catalogue})
    if entries.is_padded and truth.pairs.item_ids is not None and -1 in truth.pairs.item_ids:
        raise ValueError(
            "-1 pads the lists of a dict or a tuple, but it is also an item of target: pass a frame, or another id for "
            "the item"
        )
    entries = _without_negative_rows(entries, truth.pairs)
    unread = {table.what: table.not_read(*uses) for table, uses in uses_of_tables if isinstance(table, Table)}
    unread["exclude"] = [name for table in exclude if isinstance(table, Table) for name in table.not_read()]
    sides = _numbered(truth, histories, entries, catalogue)
    return sides._replace(unread={what: names for what, names in unread.items() if names})


def _numbered(truth: Side, histories: Mapping[str, Any], lists: Entries, catalogue: Catalogue | None) -> Sides:
    """Return all sides with one numbering, in which the items of the catalogue come first.

    Args:
        truth: ground truth, as `Interactions`.
        histories: excluded pairs by name, and masks of the ground truth's items, bool [I].
        lists: entries of the lists.
        catalogue: the catalogue; None = its items are those of the other sides.
    """
    target, masks = truth.pairs, [history for history in histories.values() if isinstance(history, Tensor)]
    known = [] if catalogue is None else [Side("the catalogue", catalogue)]
    excluded = [
        Side(name, pairs, getattr(pairs, "written", frozenset()))
        for name, pairs in histories.items()
        if not isinstance(pairs, Tensor)
    ]
    sides = [truth, *excluded, Side(lists.what, lists, lists.written)]
    users, items = numbered_sides("user", sides), numbered_sides("item", [*known, *sides])
    item_rows = items.rows[len(known) :]  # of the ground truth, the exclusions and the lists
    num_items = max(map(_number_of, items.rows[:-1]))
    ids: dict[str, Any] = {
        "user_ids": None if target.user_ids is None else users.ids.first(target.num_users),
        "item_ids": None if target.item_ids is None else items.ids.first(num_items),
    }
    if catalogue is None:  # the rows of the ground truth stay as they are
        numbered = Interactions(target.offsets, target.items, num_items, target.values, **ids)
    else:
        edges = (target.users, item_rows[0].long()[target.items])
        numbered = Interactions.of_edges(edges, (target.num_users, num_items), target.values, **ids)
    no_item = torch.zeros(num_items, dtype=torch.bool, device="cpu")
    exclude: list[Any] = [no_item.index_fill(0, item_rows[0][mask].long(), True) for mask in masks]
    has_history = torch.zeros(len(users.ids), dtype=torch.bool, device="cpu")
    for history, user_rows, rows_of_items in zip(excluded, users.rows[1:], item_rows[1:], strict=False):
        owners, rows = user_rows.long()[history.pairs.users], rows_of_items.long()[history.pairs.items]
        is_known = owners < target.num_users
        if len(is_known) and not bool(is_known.any()):
            raise ValueError(
                f"no user of {history.name} (such as {users.ids[int(owners[0])]!r}) is a user of target (such as "
                f"{users.ids[0]!r}): leave {history.name}= out if these users are new"
            )
        has_history.index_fill_(0, owners, True)
        pairs = (owners[is_known], rows[is_known])
        exclude.append(Interactions.of_edges(pairs, (target.num_users, num_items), **ids))
    return Sides(
        lists=ListEntries.of(lists, users.rows[-1], items.rows[-1]),
        user_ids=users.ids,
        item_ids=items.ids,
        target=numbered,
        exclude=exclude,
        has_history=has_history,
        num_excluded=sum(len(history.pairs.users) for history in excluded),
        num_known_items=max(map(_number_of, items.rows[: len(known) + 1])),
        unread={},
    )


def numbered_sides(role: str, sides: Sequence[Side]) -> Numbered:
    """Return the users, or the items, of several sides, numbered together."""
    vocabularies, columns = [side.ids(role) for side in sides], [side.column(role) for side in sides]
    return numbered_together(vocabularies, columns, [role in side.written for side in sides])


def _number_of(rows: Tensor) -> int:
    """Return the number of rows up to the last one."""
    return int(rows.max()) + 1 if len(rows) else 0
