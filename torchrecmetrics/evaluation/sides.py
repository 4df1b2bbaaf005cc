"""`read_sides`: lists, ground truth and exclusions, numbered together by their ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.core.checks import describe
from torchrecmetrics.data.catalogue import Catalogue
from torchrecmetrics.data.edges import Reduce
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.data.log import Log
from torchrecmetrics.evaluation.recommend import Recommendations
from torchrecmetrics.evaluation.test_set import check_target, wrong_exclusion
from torchrecmetrics.tables.columns import arrow, ids_of
from torchrecmetrics.tables.entries import Entries, entries_of_dict, entries_of_lists
from torchrecmetrics.tables.events import Events
from torchrecmetrics.tables.frames import may_be_frame
from torchrecmetrics.tables.table import Table, Use, has_columns
from torchrecmetrics.tables.vocabulary import Numbered, Vocabulary, numbered_together


def opened(name: str, argument: Any) -> Any:
    """Return frames and paths as a `Table`, and other forms of lists, ground truths and exclusions as they are.

    Args:
        name: name of the argument in messages; those of lists begin with "lists".
        argument: the argument.

    Raises:
        TypeError: for objects of no such form.
    """
    is_lists = name.startswith("lists")
    others = (tuple, Recommendations) if is_lists else (Interactions, Log)
    is_mask = name == "exclude" and isinstance(argument, Tensor)
    if isinstance(argument, others) or is_mask or (isinstance(argument, Mapping) and not has_columns(argument)):
        return argument
    if isinstance(argument, (str, Path, Table)) or may_be_frame(argument):
        return Table.of(argument, name)
    if is_lists:
        raise TypeError(
            f"lists must be a frame, a path, a dict {{user: [items]}} or a tuple, got {describe(argument)}: to say "
            "who the users are, pass (lists, users)"
        )
    check_target(argument, name, "Interactions, a Log, a Table, a frame, a dict or a file")


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
        if not len(entries.columns["user"]):
            raise ValueError(f"{lists.what} holds no rows")
        return entries
    if isinstance(lists, Recommendations):
        return _of_recommendations(lists)
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


def ground_truth(target: Any, values_reduce: Reduce | None) -> Interactions:
    """Return the ground truth of any accepted form, on the CPU."""
    if isinstance(target, Interactions):
        truth = target.to("cpu")
    elif isinstance(target, Log):
        truth = target.to_interactions(values_reduce=values_reduce)
    else:
        roles = ("value", "time") if values_reduce == "last" else ("value",)
        entries = target.read(*roles) if isinstance(target, Table) else entries_of_dict("target", target)
        truth = Interactions.of_events(Events.of_entries(entries), values_reduce=values_reduce)
    if not len(truth):
        raise ValueError(f"target holds no interactions, there is nothing to evaluate: {truth}")
    return truth


def history_of(history: Any) -> Interactions | Log | Entries:
    """Return the excluded pairs of any accepted form; no values are read."""
    if isinstance(history, Interactions):
        return history.to("cpu")
    if isinstance(history, Log):
        return history
    return entries_of_dict("exclude", history) if isinstance(history, Mapping) else history.read()


def written_of(argument: Any) -> frozenset[str]:
    """Return "user" and "item" if these ids of an argument were read from text, where 7 and "7" look the same."""
    if not isinstance(argument, Table):
        return frozenset()
    return frozenset(("user", "item") if argument.source.written else ("item",) if argument.split is not None else ())


def check_ids(arguments: Mapping[str, Any]) -> None:
    """Refuse arguments with ids beside others that hold row numbers; a dict, a tuple or a mask may hold either."""
    for side in ("user", "item"):
        sure = {
            name: isinstance(argument, Table) or getattr(argument, f"{side}_ids") is not None
            for name, argument in arguments.items()
            if not isinstance(argument, (Mapping, tuple, Tensor)) or isinstance(argument, Recommendations)
        }
        if len({*sure.values()}) > 1:
            has = next(name for name in sure if sure[name])
            lacks = next(name for name in sure if not sure[name])
            raise ValueError(
                f"{has} has {side}_ids, {lacks} has none: row 5 could mean two {side}s. If their rows are the same, "
                f"say so: {lacks}.with_ids({side}_ids=...); if not, make {lacks} with ids, too (from_frame)"
            )


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
        return cls(
            user_rows.index_select(0, entries.users), item_rows.index_select(0, entries.items), user_rows, entries
        )


class Sides(NamedTuple):
    """Lists, ground truth and exclusions with one numbering: ids of the ground truth first, ids only in lists last."""

    lists: ListEntries
    user_ids: Vocabulary | None
    """Users of the ground truth, then those only in exclusions, then those only in lists; None = row numbers."""
    item_ids: Vocabulary | None
    """Items of the catalogue and the ground truth, then those only in exclusions, then those only in lists."""
    target: Interactions
    exclude: list[Any]
    """Interactions, and masks of items, bool [I]."""
    num_known_items: int
    """Number of items of the catalogue and the ground truth, which come first."""
    unread: dict[str, list[str]]
    """Names of the columns that were not read, by table."""


def read_sides(
    lists: Any, target: Any, exclude: Sequence[Any], values_reduce: Reduce | None, catalogue: Catalogue | None
) -> Sides:
    """Read the arguments of `evaluate_lists`, and number their ids together.

    Raises:
        ValueError: with one question for all columns that were not read and could be the order or the relevance.
    """
    lists, target = opened("lists", lists), opened("target", target)
    exclude = [opened("exclude", history) for history in exclude]
    uses: list[tuple[Any, list[Use]]] = [(lists, ["order"]), (target, ["value"]), *((pairs, []) for pairs in exclude)]
    tables = [(table, uses_of_table) for table, uses_of_table in uses if isinstance(table, Table)]
    ask(*(table.question(*uses_of_table) for table, uses_of_table in tables))
    truth, entries = ground_truth(target, values_reduce), entries_of(lists)
    named = {f"exclude[{at}]" if len(exclude) > 1 else "exclude": history for at, history in enumerate(exclude)}
    check_ids({"target": truth, "lists": lists, **named})
    if entries.is_padded and truth.item_ids is not None and -1 in truth.item_ids:
        raise ValueError(
            "-1 pads lists, but it is also an item of target: pass a dict or a frame without such entries, and "
            "another id for the item"
        )
    histories = [history for history in exclude if not isinstance(history, Tensor)]
    sides = _numbered(
        Side("target", truth, written_of(target)),
        [Side("exclude", history_of(history), written_of(history)) for history in histories],
        [_mask_of_items(history, truth.num_items) for history in exclude if isinstance(history, Tensor)],
        Side(entries.what, entries, entries.written),
        catalogue,
    )
    unread = {table.what: table.not_read(*uses_of_table) for table, uses_of_table in tables}
    return sides._replace(unread={what: names for what, names in unread.items() if names})


def _mask_of_items(mask: Tensor, num_items: int) -> Tensor:
    """Return a mask of excluded items on the CPU; refuse any other than bool [I], in the order of target's items."""
    if mask.dtype != torch.bool or mask.shape != (num_items,):
        raise wrong_exclusion(mask, num_items)
    return mask.cpu()


def _numbered(
    target: Side, histories: Sequence[Side], masks: Sequence[Tensor], lists: Side, catalogue: Catalogue | None
) -> Sides:
    """Return all sides with one numbering, in which the items of the catalogue come first; `masks` are bool [I]."""
    truth, known = target.pairs, [] if catalogue is None else [_side_of(catalogue, target.pairs)]
    users = numbered_sides("user", [target, *histories, lists])
    items = numbered_sides("item", [*known, target, *histories, lists])
    item_rows = items.rows[len(known) :]  # of the ground truth, the exclusions and the lists
    num_known_items = max(map(number_of, items.rows[: len(known) + 1]))
    shape = (truth.num_users, max(map(number_of, items.rows[:-1])))
    ids: dict[str, Any] = {
        "user_ids": None if truth.user_ids is None else users.ids.first(shape[0]),
        "item_ids": None if truth.item_ids is None else items.ids.first(shape[1]),
    }
    if catalogue is None:  # the rows of the ground truth stay as they are
        numbered = Interactions(truth.offsets, truth.items, shape[1], truth.values, **ids)
    else:
        numbered = Interactions.of_edges((truth.users, item_rows[0].long()[truth.items]), shape, truth.values, **ids)
    no_item = torch.zeros(shape[1], dtype=torch.bool, device="cpu")
    rows = zip(histories, users.rows[1:], item_rows[1:], strict=False)
    return Sides(
        lists=ListEntries.of(lists.pairs, users.rows[-1], items.rows[-1]),
        user_ids=None if truth.user_ids is None else users.ids,
        item_ids=None if truth.item_ids is None else items.ids,
        target=numbered,
        exclude=[
            *(_excluded(history, user_rows, its_items, numbered, users.ids) for history, user_rows, its_items in rows),
            *(no_item.index_fill(0, item_rows[0][mask].long(), True) for mask in masks),
        ],
        num_known_items=num_known_items,
        unread={},
    )


def _excluded(
    history: Side, user_rows: Tensor, item_rows: Tensor, target: Interactions, user_ids: Vocabulary
) -> Interactions:
    """Return excluded pairs with the row numbers of the ground truth; users without ground truth are left out.

    Args:
        history: excluded pairs.
        user_rows: row of each distinct user of the history, int32 [n].
        item_rows: row of each distinct item, int32 [n].
        target: ground truth, whose items include those of the history.
        user_ids: ids of all users.
    """
    users, items = user_rows.long()[history.pairs.users], item_rows.long()[history.pairs.items]
    is_known = users < target.num_users
    if len(is_known) and not bool(is_known.any()):
        raise ValueError(
            f"no user of exclude is a user of target, such as {user_ids[int(users[0])]!r} and {user_ids[0]!r}: leave "
            "exclude= out if these users are new"
        )
    shape = (target.num_users, target.num_items)
    ids: dict[str, Any] = {"user_ids": target.user_ids, "item_ids": target.item_ids}
    return Interactions.of_edges((users[is_known], items[is_known]), shape, **ids)


def numbered_sides(role: str, sides: Sequence[Side]) -> Numbered:
    """Return the users, or the items, of several sides, numbered together."""
    vocabularies, columns = [side.ids(role) for side in sides], [side.column(role) for side in sides]
    return numbered_together(vocabularies, columns, [role in side.written for side in sides])


def number_of(rows: Tensor) -> int:
    """Return the number of rows up to the last one."""
    return int(rows.max()) + 1 if len(rows) else 0


def _side_of(catalogue: Catalogue, truth: Interactions) -> Side:
    """Return the catalogue as a side; refuse one whose items cannot be compared with those of the ground truth."""
    if (catalogue.item_ids is None) != (truth.item_ids is None):
        has, lacks = ("target", "the catalogue") if catalogue.item_ids is None else ("the catalogue", "target")
        raise ValueError(
            f"{has} has item_ids, {lacks} has none: row 5 could mean two items; make both with ids "
            "(Catalogue.from_interactions of a Log's train), or both without"
        )
    if catalogue.item_ids is None and catalogue.num_items != truth.num_items:
        raise ValueError(f"the catalogue has {catalogue.num_items} items, target has {truth.num_items}")
    return Side("the catalogue", catalogue)
