"""Ids of two sides that do not meet: refuse those that are the same ids in another spelling, or several in a cell."""

from __future__ import annotations

import re
from typing import Any

import torch

from torchrecmetrics.tables.frames import arrow, compute, tensor_of
from torchrecmetrics.tables.vocabulary import Vocabulary

_SHARE = 0.05
"""Share of the smaller side's ids without a partner that must find one in another spelling: honest ids reach .01."""
_FEW = 5
"""Fewest ids whose common prefix is no accident."""
_TRIED = 1000
"""Most ids without a partner that are tried."""
_BEGINNINGS = (
    ("[A-Za-z]+[^A-Za-z0-9]+", "[A-Za-z0-9].*"),
    ("[A-Za-z]+", "[0-9].*"),
    ("[0-9]+[^A-Za-z0-9]+", "[A-Za-z0-9].*"),
    ("[0-9]+", "[A-Za-z].*"),
    ("[^A-Za-z0-9]+", "[A-Za-z0-9].*"),
)
"""Patterns of the first word or number of an id, with the signs behind it, and of the rest."""
_INVISIBLE = r"[\x00-\x1f\x7f\x{ad}\x{200b}-\x{200f}\x{2060}\x{feff}]"
_SEPARATORS = r"[^\pL\pN_/-]+"


def check_spelling(what: str, ids: Vocabulary | None, other_what: str, other_ids: Vocabulary | None) -> None:
    """Refuse ids of two sides if some that do not meet would meet without a difference of spelling.

    Args:
        what: name of the ids of one side, in messages.
        ids: distinct ids; None, and other ids than text, have no spelling.
        other_what: name of the other side, in messages.
        other_ids: as `ids`.

    Raises:
        ValueError: if 5 % of the smaller side's ids without a partner meet; shows two ids, and says what differs.
    """
    if ids is None or other_ids is None or ids == other_ids or not ids.kind == other_ids.kind == "text":
        return
    pc, arrays = compute(), (ids.array, other_ids.array)
    alone = [_alone(*arrays), _alone(*arrays[::-1])]
    needed = _SHARE * min((len(texts) for texts in alone if len(texts)), default=0)
    for side, others in enumerate(arrays[::-1]):
        tried = alone[side][:: 1 + len(alone[side]) // _TRIED]
        spellings = _spellings(tried, others) if len(tried) and len(others) else {}
        known = others.filter(pc.is_in(others, value_set=arrow().concat_arrays([tried, *spellings.values()])))
        for difference, spelt in spellings.items():
            meets = pc.is_in(spelt, value_set=known)
            number = pc.sum(meets).as_py() * len(alone[side]) / len(tried)
            if not number or number < needed:
                continue
            row = pc.index(meets, True).as_py()
            pair = tried[row].as_py(), spelt[row].as_py()
            raise ValueError(
                f"{what}: {pair[side]!r} is {pair[1 - side]!r} in {other_what} but for {difference}, and {number:.0f} "
                f"of {len(alone[side])} ids that do not meet are such: write both alike"
            )


def several_ids(what: str, ids: Vocabulary | None, other_ids: Vocabulary | None) -> str | None:
    """Return an error, which names the separator, if half of the ids without a partner are several ids of the other
    side in one text; None if they are not.
    """
    if ids is None or other_ids is None or not ids.kind == other_ids.kind == "text":
        return None
    pc, cells = compute(), _alone(ids.array, other_ids.array)
    lists = pc.split_pattern_regex(cells, _SEPARATORS)
    is_id = pc.is_in(pc.list_flatten(lists), value_set=other_ids.array)
    number = torch.bincount(tensor_of(pc.list_parent_indices(lists).filter(is_id)), minlength=len(cells))
    number += tensor_of(pc.match_substring_regex(cells, r"^\s*[\[(]")) * (number > 0)
    if not len(cells) or int((number > 1).sum()) < len(cells) / 2:
        return None
    cell = cells[int(number.argmax())].as_py()
    if cell.strip()[:1] in "[(":
        return f"{what}: cells hold text of lists, such as {cell!r}: make lists, frame[column].map(ast.literal_eval)"
    separator = re.findall(r"[^\w/-]+", cell.strip())[0]
    separator = separator if separator.strip() else " "  # which several blanks are, too
    return (
        f"{what}: cells hold several ids, such as {cell!r}: pass split={separator!r} if they are in order, best first"
    )


def _alone(ids: Any, others: Any) -> Any:
    """Return the ids that the other side lacks."""
    return ids.filter(compute().invert(compute().is_in(ids, value_set=others)))


def _spellings(ids: Any, others: Any) -> dict[str, Any]:
    """Return ids, as the other side may write them, by the name of the difference."""
    pc = compute()
    spellings = {
        "blanks": pc.utf8_trim_whitespace(pc.replace_substring_regex(ids, r"[\s\x{a0}]+", " ")),
        "invisible characters": pc.replace_substring_regex(ids, _INVISIBLE, ""),
        "'.0' behind a whole number": pc.replace_substring_regex(ids, r"^([+-]?\d+)\.0+$", r"\1"),
        "small letters": pc.utf8_lower(ids),
        "capital letters": pc.utf8_upper(ids),
        "signs": pc.replace_substring_regex(ids, r"[!-/:-@\[-\x60{-~\s]+", ""),
    }
    spellings |= {f"the form of Unicode, {form}": pc.utf8_normalize(ids, form=form) for form in ("NFC", "NFKC")}
    if all(pc.all(pc.match_substring_regex(texts, r"^\d+$")).as_py() for texts in (ids, others)):
        spellings["leading zeros"] = pc.replace_substring_regex(ids, r"^0+(\d)", r"\1")
    for name, turn in (("the prefix", lambda texts: texts), ("the ending", pc.utf8_reverse)):
        turned = turn(ids)
        prefix = _prefix(turned, turn(others))
        rests = pc.if_else(pc.starts_with(turned, prefix), pc.utf8_slice_codeunits(turned, len(prefix)), turned)
        spellings[f"{name} {turn(arrow().array([prefix]))[0].as_py()!r}"] = turn(rests)
    return spellings


def _prefix(ids: Any, others: Any) -> str:
    """Return the first word or number, with the signs behind it, without which most ids are ids of the other side.

    Returns "" if there are less than five such ids.
    """
    pc = compute()
    groups = "".join(rf"\{number}" for number in range(1, len(_BEGINNINGS) + 1))
    before, rests = (
        pc.replace_substring_regex(ids, f"^(?:{'|'.join(text.format(*pair) for pair in _BEGINNINGS)})$", groups)
        for text in ("({}){}", "{}({})")
    )
    known = others.filter(pc.is_in(others, value_set=rests))
    counts = pc.value_counts(before.filter(pc.is_in(rests, value_set=known)))
    most = pc.max(counts.field("counts"))
    if not len(counts) or most.as_py() < _FEW:
        return ""
    prefix: str = counts.field("values")[pc.index(counts.field("counts"), most).as_py()].as_py()
    return prefix
