"""Readers of the mapping that a step returns: the input of `update`, the columns of the rows, and their users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchrecmetrics.core.checks import describe
from torchrecmetrics.core.options import Input
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.inputs.base import SelectedItems, read_history
from torchrecmetrics.inputs.jagged import Jagged, Spans
from torchrecmetrics.inputs.ranks import Ranks
from torchrecmetrics.inputs.scores import Scores
from torchrecmetrics.inputs.sessions import Sessions

_FORMS = ("scores", "ranks", "ranking", "input")
_ENTRIES = (*_FORMS, "target", "gains", "exclude", "history", "indexes", "depth", "weights")
_MISSPELT = {"targets": "target", "excluded": "exclude", "excludes": "exclude", "gain": "gains", "weight": "weights"}
_INPUTS = {
    "candidates": "trm.Candidates(scores, target, items)",
    "lengths": "trm.Sessions(scores, labels, lengths=)",
    "shard": "trm.ItemShard(scores, target, offset=, num_items=)",
}
"""Inputs for entries that do not go with scores."""


def read_outputs(outputs: Any, source: str, device: torch.device) -> dict[str, Any]:
    """Return the entries of a step's mapping that make an input, and the weights.

    Raises:
        TypeError: for anything but a mapping, and for entries that are no tensors.
        ValueError: for a mapping without an input, or with several, and for tensors on another device.
    """
    wanted = f"{source} must return a mapping with 'scores' and 'target', or with 'ranks', 'ranking' or 'input'"
    cure = "outputs= takes a function of (output of the step, batch) that returns one"
    if not isinstance(outputs, Mapping):
        raise TypeError(f"{wanted}, got {describe(outputs)}; {cure}")
    arguments = {name: outputs[name] for name in _ENTRIES if outputs.get(name) is not None}
    forms = [name for name in _FORMS if name in arguments]
    if len(forms) > 1:
        raise ValueError(f"{source} returned {' and '.join(map(repr, forms))}: return one of them")
    if forms == ["scores"]:
        for misspelt, name in _MISSPELT.items():
            if name not in arguments and outputs.get(misspelt) is not None:
                raise ValueError(f"{source} returned {misspelt!r}; did you mean {name!r}?")
        for name, instead in _INPUTS.items():
            if outputs.get(name) is not None:
                raise ValueError(f"{source} returned 'scores' with {name!r}: return 'input', {instead}")
    if not forms or (forms == ["scores"] and "target" not in arguments):
        raise ValueError(f"{wanted}, got {names_of(outputs)}; {cure}")
    if forms != ["scores"]:
        _check_made_already(forms[0], arguments)
    for name, value in arguments.items():
        for tensor in _tensors(value):
            if not isinstance(tensor, Tensor) and name not in ("depth", "input", "ranking"):
                raise TypeError(f"{source} returned {name!r} that is no tensor: {describe(tensor)}")
            there = getattr(tensor, "device", device)
            if there != device:
                raise ValueError(f"{source} returned {name!r} on {there}, the module is on {device}")
    return arguments


def _check_made_already(form: str, arguments: dict[str, Any]) -> None:
    """Refuse entries that go with scores beside ranks, a ranking or an input; drop the target that it was made with."""
    arguments.pop("target", None)
    for name in ("gains", "exclude", "indexes"):
        if name in arguments:
            raise ValueError(
                f"{name} was given beside {form}, made already: give it where they are made (get_topk_ranks, Scores, "
                "Lists)"
            )


def _tensors(value: Any) -> list[Any]:
    """Return the tensors in one entry, or the entry itself in a list."""
    if type(value) is tuple:
        return [tensor for element in value for tensor in _tensors(element)]
    if isinstance(value, (Jagged, Spans)):
        return [value.values]
    return [value.ranks if isinstance(value, Ranking) else value.items if isinstance(value, SelectedItems) else value]


def input_of(arguments: Mapping[str, Any]) -> Input | Ranking:
    """Return the input that entries of a step's mapping make.

    Raises:
        TypeError: for ranks that are no integers, and for something that is no ranking or input.
        ValueError: for a depth without ranks.
    """
    depth = arguments.get("depth")
    if "ranks" in arguments:
        ranks = arguments["ranks"]
        if ranks.is_floating_point():
            raise TypeError(f"ranks must be integers, got {describe(ranks)}; floats are 'input': trm.Ranks(ranks)")
        return Ranks(ranks, depth, depth_known=False)
    if depth is not None:
        raise ValueError("depth belongs to ranks; the depth of scores follows from the metrics' k")
    if "scores" in arguments:
        gains, exclude, history = (arguments.get(name) for name in ("gains", "exclude", "history"))
        return Scores(arguments["scores"], arguments.get("target"), gains, exclude, history)
    name = "ranking" if "ranking" in arguments else "input"
    made = arguments[name]
    if not isinstance(made, Ranking) and (name == "ranking" or not hasattr(made, "rank")):
        wanted = "a Ranking" if name == "ranking" else "an input, such as trm.Lists(item_ids, target)"
        raise TypeError(f"{name!r} must be {wanted}, got {describe(made)}")
    rows_input: Input | Ranking = made
    return with_history(rows_input, arguments["history"]) if "history" in arguments else rows_input


def takes_history(rows_input: Input | Ranking) -> bool:
    """Return True if the input has no history, but could have one."""
    if isinstance(rows_input, Ranking):
        return rows_input.lists is not None and rows_input.lists.history is None
    return is_dataclass(rows_input) and getattr(rows_input, "history", ()) is None


def with_history(rows_input: Input | Ranking, history: Any) -> Input | Ranking:
    """Return the input with the history of its rows, if it can have one and has none."""
    if not takes_history(rows_input):
        return rows_input
    if isinstance(rows_input, Ranking):
        assert rows_input.lists is not None
        ids = read_history(history, len(rows_input), rows_input.ranks.device)
        return replace(rows_input, lists=rows_input.lists._replace(history=ids))
    changed: Input = replace(rows_input, history=history)  # type: ignore[type-var]
    return changed


def excluding(rows_input: Input | Ranking, items: Tensor) -> Input:
    """Return the input with more excluded items.

    Raises:
        ValueError: for an input that cannot exclude items.
    """
    if isinstance(rows_input, Sessions):
        raise ValueError("exclude= is not for sessions, which hold the candidates alone")
    if not is_dataclass(rows_input) or isinstance(rows_input, Ranking) or not hasattr(rows_input, "exclude"):
        kind = type(rows_input).__name__
        raise ValueError(f"exclude= was given beside {kind}, made already: exclude items where it is made")
    own = rows_input.exclude
    changed: Input = replace(rows_input, exclude=((), items) if own is None else (own, items))
    return changed


def user_ids_of(outputs: Mapping[str, Any], rows_input: Input | Ranking, source: str, reader: str) -> Tensor:
    """Return the user ids of a batch, int64 [B] on the host; `reader` needs them."""
    ids = outputs.get("user_ids")
    if ids is None:
        raise ValueError(f"{source} must return 'user_ids' too, for {reader}, got {names_of(outputs)}")
    try:
        ids = torch.as_tensor(ids).cpu()
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{source} must return 'user_ids' as row numbers of the history (the position in a vocabulary), got "
            f"{describe(ids)}: {error}"
        ) from error
    scores = getattr(rows_input, "scores", None)
    rows = len(scores) if isinstance(scores, Tensor) and scores.dim() == 2 else len(ids)
    if ids.shape not in ((rows,), (rows, 1)) or ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError(f"{source} must return 'user_ids' as integers [{rows}], got {describe(ids)}")
    return ids.reshape(rows).long()  # uint8 would index as a mask


def names_of(outputs: Mapping[str, Any]) -> str:
    """Return the names of a mapping's entries, for a message."""
    return ", ".join(repr(name) for name in outputs) or "an empty mapping"
