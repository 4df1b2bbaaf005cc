"""Listed ids that the ground truth lacks: refuse those that are its ids in another spelling, or several in a cell."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from torchrecmetrics.tables.frames import arrow, compute
from torchrecmetrics.tables.vocabulary import Vocabulary

_MIN_SHARE = 0.25
"""Share of the unknown ids that a change must make known: faults reach .48 and more, honest ids .008 and less."""
_MAX_IDS = 20_000
"""Number of unknown ids that are tried."""
_SEPARATORS = re.compile(r"[^\w/-]+")


def refuse_respelled(named: str, ids: Vocabulary, num_known: int) -> None:
    """Refuse unknown ids that are known after a small change, and cells that hold several known ids.

    Args:
        named: name of the ids, for messages.
        ids: ids of the ground truth, then the unknown ids of lists.
        num_known: number of ids of the ground truth.

    Raises:
        ValueError: if a change makes a quarter of the unknown ids known; names it.
    """
    if ids.kind != "text" or not num_known or len(ids) == num_known:
        return
    known = ids.take(torch.arange(num_known, device="cpu")).array
    unknown = ids.take(torch.arange(num_known, min(len(ids), num_known + _MAX_IDS), device="cpu")).array
    for difference, change in _changes(known, unknown).items():
        respelled = _is_known(change(unknown), change(known))
        if sum(respelled) >= _MIN_SHARE * len(unknown):
            example = unknown[respelled.index(True)].as_py()
            raise ValueError(
                f"{named}: {sum(respelled)} of {len(unknown)} ids that target lacks differ from its ids in "
                f"{difference} alone, such as {example!r}: write both alike"
            )
    for owner, cells, others in ((named, unknown, known), (f"target, {named}", known[:_MAX_IDS], unknown)):
        texts = [cell for cell in cells.to_pylist() if len(_SEPARATORS.split(cell.strip())) > 1]
        pieces = [piece for text in texts for piece in _SEPARATORS.split(text) if piece]
        if pieces and sum(_is_known(arrow().array(pieces, others.type), others)) >= _MIN_SHARE * len(pieces):
            if texts[0].strip()[:1] in "[(":
                raise ValueError(
                    f"{owner}: cells hold text of lists, such as {texts[0]!r}: make lists of them, "
                    "frame[column].map(ast.literal_eval)"
                )
            separator = _SEPARATORS.findall(texts[0].strip())[0]
            separator = separator if separator.strip() else " "  # which several blanks are, too
            raise ValueError(
                f"{owner}: cells hold several ids, such as {texts[0]!r}: pass split={separator!r} if they are in "
                "order, best first"
            )


def _is_known(ids: Any, known: Any) -> list[bool]:
    """Return whether each of the ids is known."""
    is_known: list[bool] = compute().is_in(ids, value_set=known).to_pylist()
    return is_known


def _changes(known: Any, unknown: Any) -> dict[str, Callable[[Any], Any]]:
    """Return functions that remove a difference of spelling from columns of text, by the name of the difference."""
    pc = compute()
    changes: dict[str, Callable[[Any], Any]] = {
        "blanks around them": pc.utf8_trim_whitespace,
        "'.0' behind whole numbers": lambda texts: pc.replace_substring_regex(texts, r"^(-?\d+)\.0+$", r"\1"),
        "NUL characters": lambda texts: pc.replace_substring(texts, "\0", ""),
        "the form of Unicode (NFC or NFD)": lambda texts: pc.utf8_normalize(texts, form="NFC"),
    }
    if all(pc.all(pc.match_substring_regex(texts, r"^\d+$")).as_py() for texts in (known, unknown)):
        changes["leading zeros"] = lambda texts: pc.replace_substring_regex(texts, "^0+(.+)$", r"\1")
    if _has_one_case(known) and _has_one_case(unknown):
        changes["upper and lower case"] = pc.utf8_lower
    return changes


def _has_one_case(texts: Any) -> bool:
    """Return True if all letters are capital letters, or none is."""
    pc = compute()
    return any(pc.all(pc.equal(texts, convert(texts))).as_py() for convert in (pc.utf8_lower, pc.utf8_upper))
