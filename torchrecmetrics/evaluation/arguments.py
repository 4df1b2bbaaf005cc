"""Lists, ground truth and exclusions of any form, as `Entries` or `Interactions`; `sides` numbers them together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from torchrecmetrics.core.checks import describe
from torchrecmetrics.core.cures import CuredError, joined
from torchrecmetrics.data.edges import Reduce
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.data.log import Log
from torchrecmetrics.evaluation.recommendations import Recommendations
from torchrecmetrics.evaluation.test_set import check_target
from torchrecmetrics.tables.columns import arrow, ids_of
from torchrecmetrics.tables.entries import Entries, entries_of_dict, entries_of_lists
from torchrecmetrics.tables.events import Events
from torchrecmetrics.tables.frames import may_be_frame
from torchrecmetrics.tables.table import Table, has_columns


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


def ask(*questions: CuredError | None) -> None:
    """Raise one error with all questions that are open."""
    if errors := [question for question in questions if question is not None]:
        raise joined(errors)


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
        entries = target.read("value") if isinstance(target, Table) else entries_of_dict("target", target)
        truth = Interactions.of_events(Events.of_entries(entries), values_reduce=values_reduce)
    if not len(truth):
        raise ValueError(f"target holds no interactions, there is nothing to evaluate: {truth}")
    return truth


def history_of(history: Any) -> Interactions | Log | Entries:
    """Return the excluded pairs of any accepted form; of a table with values, those whose value is above 0."""
    if isinstance(history, Interactions):
        return history.to("cpu")
    if isinstance(history, Log):
        return history
    if isinstance(history, Mapping):
        pairs = entries_of_dict("exclude", history)
        if "value" in pairs.columns:
            user = next(iter(history))
            raise TypeError(
                f"exclude holds a dict for {user!r}, but {{user: items}} has no values: pass lists of items"
            )
        return pairs
    entries: Entries = history.read("value")
    values = entries.numbers("value")
    return entries if values is None else entries.where(values > 0)


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
