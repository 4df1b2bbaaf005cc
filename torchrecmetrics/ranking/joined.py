"""Several batches, placed or not, as one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from torchrecmetrics.checks import Faults
from torchrecmetrics.ranking import Ranking
from torchrecmetrics.ranking.places import Graded
from torchrecmetrics.ranking.ties import Unplaced

Rankable: TypeAlias = Ranking | Unplaced
"""What is a ranking, or becomes one when it is asked for."""

# fields of a ranking that have an entry a row
_OF_ROWS = ("num_relevant", "tied", "unreachable", "num_ranked", "num_recommended", "num_repeated")


def kind_of(batch: Rankable) -> Hashable | None:
    """Return what batches must have in common to be joined; None if this one cannot be.

    Metrics that can read one of a kind can read all of them.
    """
    own: tuple[Hashable, ...]
    if isinstance(batch, Unplaced):
        located, ties, made_with, asked, depth, _ = batch
        own = located.better.device, ties, asked, depth, located.kernels, _given(located[:-1])
    elif batch.gains is None and batch.reach.rows is None:
        made_with = batch.made_with
        fields = [getattr(batch, name) for name in _OF_ROWS]
        own = batch.ranks.device, batch.ranks.dtype, batch.reach, batch.kernels, batch.score_threshold, _given(fields)
    else:
        return None
    lists = batch.lists
    of_lists = None if lists is None else (lists.num_items, lists.ids.shape[1], _given(lists))
    return (*own, *made_with.items(), of_lists, batch.faults.rows is None)


def entries_of(batch: Rankable) -> Tensor:
    """Return what is known of each relevant item, [B, T]."""
    return batch.located.better if isinstance(batch, Unplaced) else batch.ranks


def shape_of(batch: Rankable) -> tuple[int, ...]:
    """Return its rows, and how many relevant items, places and items of history a row has at most."""
    lists = batch.lists
    of_lists = (0, 0) if lists is None else (lists.ids.shape[1], 0 if lists.history is None else lists.history.shape[1])
    return *entries_of(batch).shape, *of_lists


def placed(batch: Rankable) -> Ranking:
    """Return the ranking that it is, or becomes."""
    return batch if isinstance(batch, Ranking) else Ranking.placed(batch)


def borrows(batch: Rankable) -> bool:
    """Whether it may hold memory of what `update` was given."""
    return batch.lists is not None or (isinstance(batch, Unplaced) and batch.located.gains is not None)


def joined(batches: Sequence[Rankable]) -> Rankable:
    """Return the rows of batches of one kind, one after the other, in memory of their own."""
    first: Any = batches[0]
    several: Sequence[Any] = batches
    more = {
        "lists": _fields([each.lists for each in several], -1),
        "faults": Faults(_rows([each.faults.rows for each in several]), _sum([each.faults.counts for each in several])),
    }
    joined: Rankable
    if isinstance(first, Unplaced):
        located = _fields([each.located._replace(lists=None) for each in several], 0)
        joined = first._replace(located=located._replace(lists=more["lists"]), faults=more["faults"])
        return joined
    of_rows = {name: _rows([getattr(each, name) for each in several]) for name in _OF_ROWS}
    found = Graded(_rows([each.ranks for each in several], torch.inf))
    joined = replace(first, found=found, in_halves=all(each.in_halves for each in several), **of_rows, **more)
    return joined


def _given(fields: Sequence[Any]) -> tuple[bool, ...]:
    return tuple([each is not None for each in fields])


def _fields(several: Sequence[Any], padding: float) -> Any:
    """Join tuples of tensors field by field; what is no tensor is the same in all of them."""
    first = several[0]
    if first is None:
        return None
    fields = zip(*several, strict=True)
    return type(first)(*(_rows(each, padding) if isinstance(each[0], Tensor) else each[0] for each in fields))


def _rows(several: Sequence[Any], padding: float = 0) -> Any:
    """Put rows, [B] or [B, n] with an n of its own each, under each other; None where they are."""
    first = several[0]
    if first is None:
        return None
    widths = {part.shape[1:] for part in several}
    if len(widths) == 1:
        return torch.cat(list(several))
    together = first.new_full((sum(map(len, several)), *max(widths)), padding)
    start = 0
    for part in several:
        together[start : start + len(part), : part.shape[1]] = part
        start += len(part)
    return together


def _sum(several: Sequence[Any]) -> Any:
    return None if several[0] is None else torch.stack(list(several)).sum(0)
