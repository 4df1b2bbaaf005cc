"""Ids of two sides that do not meet: refuse those that are the same ids in another spelling, or several in a cell."""

from __future__ import annotations

import re
from typing import Any

import torch

from torchrecmetrics.tables.sources import arrow, compute, tensor_of
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
_MARKS = ("blanks", "invisible characters", "the form of Unicode, NFC", "the form of Unicode, NFKC")
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
    if not any(map(len, alone)) or not all(map(len, arrays)):
        return
    tried = [texts[:: 1 + len(texts) // _TRIED] for texts in alone]
    spellings = [_spellings(tried[0], arrays[1]), _spellings(tried[1], arrays[0])]
    needed = _SHARE * min(len(texts) for texts in alone if len(texts))
    for side, others in enumerate(arrays[::-1]):
        all_spelt = arrow().concat_arrays([spelt for spelt, _ in spellings[side].values()])
        known = others.filter(pc.is_in(others, value_set=all_spelt))
        for difference, (spelt, cure) in spellings[side].items():
            if difference in _MARKS:  # both sides may have these, and no id needs them
                others_spelt = spellings[1 - side][difference][0]
                meets = pc.is_in(spelt, value_set=arrow().concat_arrays([known, others_spelt]))
            else:  # not "john1" of a side that has "john", too
                is_other_id = pc.is_in(spelt, value_set=arrays[side])
                meets = pc.and_not(pc.is_in(spelt, value_set=known), is_other_id)
            number = (pc.sum(meets).as_py() or 0) * len(alone[side]) / max(1, len(tried[side]))
            if not number or number < needed:
                continue
            row = pc.index(meets, True).as_py()
            partner = spelt[row]
            if pc.index(known, partner).as_py() < 0:
                partner = tried[1 - side][pc.index(others_spelt, partner).as_py()]
            pair = (tried[side][row].as_py(), partner.as_py())[:: -1 if side else 1]
            raise ValueError(
                f"{what}: {pair[0]!r} is {pair[1]!r} in {other_what} but for {difference}, and so are {number:.0f} of "
                f"{len(alone[side])} ids that do not meet. Write both alike: {cure} on both sides"
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


def _spellings(ids: Any, others: Any) -> dict[str, tuple[Any, str]]:
    """Return ids as the other side may write them, with the code that makes one of them, by the difference."""
    pc = compute()
    normal = {form: pc.utf8_normalize(ids, form=form) for form in ("NFC", "NFKC")}
    visible = pc.replace_substring_regex(ids, _INVISIBLE, "")
    single = pc.utf8_trim_whitespace(pc.replace_substring_regex(ids, r"[\s\x{a0}]+", " "))
    integers = pc.replace_substring_regex(ids, r"^([+-]?\d+)\.0+$", r"\1")
    bare = pc.replace_substring_regex(ids, r"[!-/:-@\[-\x60{-~\s]+", "")
    spellings = {
        "blanks": (single, '" ".join(id.split())'),
        "invisible characters": (visible, '"".join(filter(str.isprintable, id))'),
        "the form of Unicode, NFC": (normal["NFC"], 'unicodedata.normalize("NFC", id)'),
        "the form of Unicode, NFKC": (normal["NFKC"], 'unicodedata.normalize("NFKC", id)'),
        "'.0' behind a whole number": (integers, 'id.removesuffix(".0")'),
        "small letters": (pc.utf8_lower(ids), "id.lower()"),
        "capital letters": (pc.utf8_upper(ids), "id.upper()"),
        "signs": (bare, 're.sub("[^a-zA-Z0-9]", "", id)'),
    }
    if all(pc.all(pc.match_substring_regex(texts, r"^\d+$")).as_py() for texts in (ids, others)):
        spellings["leading zeros"] = pc.replace_substring_regex(ids, r"^0+(\d)", r"\1"), 'id.lstrip("0")'
    for name, turn, cut in (("prefix", _same, "removeprefix"), ("ending", pc.utf8_reverse, "removesuffix")):
        turned = turn(ids)
        prefix = _prefix(turned, turn(others))
        rests = pc.if_else(pc.starts_with(turned, prefix), pc.utf8_slice_codeunits(turned, len(prefix)), turned)
        shown = turn(arrow().array([prefix]))[0].as_py()
        spellings[f"the {name} {shown!r}"] = turn(rests), f"id.{cut}({shown!r})"
    return spellings


def _same(texts: Any) -> Any:
    return texts


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
