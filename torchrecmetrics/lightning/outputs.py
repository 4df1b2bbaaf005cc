"""Readers of the mapping that a step returns: the input of `update`, and the users of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchrecmetrics.core.checks import describe
from torchrecmetrics.core.options import Input
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.inputs.scores import Scores
from torchrecmetrics.inputs.sessions import Sessions

_INSTEAD = {
    "targets": "'target'",
    "excluded": "'exclude'",
    "gain": "'gains'",
    "weight": "'weights'",
    "ranks": "'input', trm.Ranks(ranks, depth)",
    "ranking": "'input', which may be a Ranking",
    "candidates": "'input', trm.Candidates(scores, target, items=items)",
    "lengths": "'input', trm.Sessions(scores, labels, lengths=)",
    "indexes": "'input', trm.Sessions(scores, labels, indexes), or let the module hold trm.CollectSessions",
    "shard": "'input', trm.ItemShard(scores, target, offset=, num_items=)",
}
"""Entries that are not read, and the entry that a step returns instead."""


def read_outputs(outputs: Any, source: str) -> Input | Ranking:
    """Return the input in a step's mapping, or one made from its scores and target.

    Raises:
        TypeError: for anything but a mapping, and if "input" is not an input.
        ValueError: for a mapping without an input, and for entries that no input accepts.
    """
    wanted = f"{source} must return a mapping with 'scores' and 'target', or with 'input'"
    cure = "outputs= takes a function of (output of the step, batch) that returns one"
    if not isinstance(outputs, Mapping):
        raise TypeError(f"{wanted}, got {describe(outputs)}; {cure}")
    present = {name: value for name, value in outputs.items() if value is not None}
    if "input" in present:
        for name in ("scores", "gains", "exclude", "history"):
            if name in present:
                raise ValueError(f"{source} returned {name!r} together with 'input': pass it to the input")
        rows_input: Input | Ranking = present["input"]
        if not isinstance(rows_input, Ranking) and not hasattr(rows_input, "rank"):
            raise TypeError(
                f"'input' must be an input, such as trm.Lists(item_ids, target), got {describe(rows_input)}"
            )
        return rows_input
    for name, instead in _INSTEAD.items():
        if name in present:
            raise ValueError(f"{source} returned {name!r}: return {instead}")
    if not {"scores", "target"} <= present.keys():
        raise ValueError(f"{wanted}, got {names_of(outputs)}; {cure}")
    return Scores(present["scores"], *(present.get(name) for name in ("target", "gains", "exclude", "history")))


def excluding(rows_input: Input | Ranking, items: Tensor) -> Input:
    """Return the input with more excluded items.

    Raises:
        ValueError: for an input that cannot exclude items.
    """
    if isinstance(rows_input, Sessions):
        raise ValueError("exclude= cannot be used with sessions, which hold only the candidates")
    if not is_dataclass(rows_input) or isinstance(rows_input, Ranking) or not hasattr(rows_input, "exclude"):
        kind = type(rows_input).__name__
        raise ValueError(f"exclude= cannot change {kind} that a step returns: exclude the items in the step")
    excluded = () if rows_input.exclude is None else rows_input.exclude
    with_items: Input = replace(rows_input, exclude=(excluded, items))
    return with_items


def user_ids_of(outputs: Mapping[str, Any], source: str) -> Tensor:
    """Return the user ids of a batch, [B] on the host."""
    if outputs.get("user_ids") is None:
        raise ValueError(f"{source} must also return 'user_ids' for exclude=, got {names_of(outputs)}")
    return torch.as_tensor(outputs["user_ids"]).cpu().reshape(-1)


def names_of(outputs: Mapping[str, Any]) -> str:
    """Return the names of a mapping's entries, for a message."""
    return ", ".join(repr(name) for name in outputs) or "an empty mapping"
