"""Unmatched ids of two sides: the closest pair, to show a misspelling, and cells of several ids."""

from __future__ import annotations

import re
from typing import Any

import torch

from torchrecmetrics.core.cures import Cure, CuredError
from torchrecmetrics.tables.delimited import list_of_text
from torchrecmetrics.tables.sources import arrow, compute, tensor_of
from torchrecmetrics.tables.vocabulary import Vocabulary

_MOST_IDS = 2**17
"""Ids of each side whose letters and digits are compared."""
_MOST_ENDS = 300
"""Ids of each side whose ends are compared, each with each."""
_FEWEST_LETTERS = 2
"""Fewest letters and digits of an id that another one may end or begin with."""


def closest_pair(ids: Vocabulary, others: Vocabulary, ends: bool = True) -> tuple[Any, Any] | None:
    """Return an id of each side that may be one id in two spellings, the first such pair in the order of `ids`.

    Two ids are close if their letters and digits are equal, but for case and zeros in front of numbers; with `ends`
    also if one begins or ends with those of the other. None = no pair is close.
    """
    keys, other_keys = _letters_and_digits(ids), _letters_and_digits(others)
    rows = tensor_of(compute().index_in(keys, value_set=other_keys, skip_nulls=True).fill_null(-1))
    if bool((rows >= 0).any()):
        row = int((rows >= 0).nonzero()[0])
        return ids[row], others[int(rows[row])]
    if not ends:
        return None
    for row, key in enumerate(keys[:_MOST_ENDS].to_pylist()):
        for other_row, other in enumerate(other_keys[:_MOST_ENDS].to_pylist()):
            shorter, longer = sorted((key or "", other or ""), key=len)
            if len(shorter) >= _FEWEST_LETTERS and (longer.startswith(shorter) or longer.endswith(shorter)):
                return ids[row], others[other_row]
    return None


def _letters_and_digits(ids: Vocabulary) -> Any:
    """Return the letters and digits of ids in lower case, without zeros in front of numbers; null if there are none."""
    pc, array = compute(), ids.array[:_MOST_IDS]
    if ids.kind == "bytes":
        array = arrow().array([id_.decode(errors="replace") for id_ in array.to_pylist()])
    text = pc.replace_substring(pc.utf8_lower(array.cast(arrow().large_string())), "&amp;", "&")
    text = pc.replace_substring_regex(text, r"(^|[^0-9])0+([0-9])", r"\1\2")
    text = pc.replace_substring_regex(text, r"[^\p{L}\p{N}]+", "")
    return pc.if_else(pc.equal(text, ""), None, text)


def several_ids(what: str, ids: Vocabulary | None, others: Vocabulary | None) -> CuredError | None:
    """Return an error if no id is one of the other side, but half of them hold several of its ids in one text."""
    if ids is None or others is None or not ids.kind == others.kind == "text" or bool((ids.rows_in(others) >= 0).any()):
        return None
    pc = compute()
    pieces = pc.split_pattern_regex(ids.array, r"[\s,;|\[\]()'\"]+")
    is_id = pc.is_in(pc.list_flatten(pieces), value_set=others.array)
    rows = torch.unique(tensor_of(pc.list_parent_indices(pieces).filter(is_id)))
    cells = [ids[int(row)] for row in rows[:1]]
    if 2 * len(rows) < len(ids) or not re.search(r"\w[^\w]+\w", "".join(cells)):
        return None
    cell = cells[0].strip()
    such = f"such as {cells[0]!r}"
    if cell[:1] in "[(":
        change = f"frame[column] = frame[column]{list_of_text(cell)}"
        return CuredError(f"{what}: cells hold text of lists, {such}: make lists, {change}")
    separator = re.findall(r"[\s,;|]+", cell)[0]
    cure = Cure.option("split", separator if separator.strip() else " ")  # which several blanks are, too
    return CuredError(f"{what}: cells hold several ids, {such}: pass {cure} if they are in order, best first", cure)
