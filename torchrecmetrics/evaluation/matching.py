"""Match tables by id: ids of one kind, and one numbering for the ground truth, exclusions and lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from torchrecmetrics.tables.ids import other_kind
from torchrecmetrics.tables.vocabulary import Vocabulary


class IdColumn(NamedTuple):
    """The users, or the items, of one table: its own ids, and the row number of each entry among them."""

    what: str
    """Name of the column, or of the vocabulary, in messages."""
    ids: Vocabulary | None
    """Distinct ids; None = `rows` are row numbers of the ground truth."""
    rows: Tensor
    """Int64 [E]."""
    written: bool = False
    """True if the ids were read from text, where 7 and "7" look the same."""

    def numbered_in(self, ids: Vocabulary | None) -> Tensor:
        """Return the row number of each entry in another vocabulary, int64 [E], which holds all of these ids."""
        return self.rows if self.ids is None or ids is None else self.ids.recode(self.rows, ids)


def of_one_kind(columns: Sequence[IdColumn]) -> list[IdColumn]:
    """Return the columns; if one holds text, whole numbers that were read from text become text, too.

    Raises:
        TypeError: for ids of several kinds, which cannot be compared.
        ValueError: for ids such as 07 in one column that are 7 in another.
    """
    texts = [column for column in columns if column.ids is not None and column.ids.kind == "text"]
    converted = []
    for column in columns:
        ids = column.ids
        if texts and ids is not None and ids.kind == "whole numbers" and column.written:
            for text in texts:
                assert text.ids is not None
                _check_zeros(column.what, text.ids, ids)
            column = column._replace(ids=ids.as_text())
        converted.append(column)
    first, first_ids = converted[0], converted[0].ids
    for column in converted[1:]:
        if first_ids and column.ids and column.ids.kind != first_ids.kind:
            raise other_kind(column.what, column.ids.array, first.what, first_ids.array)
    return converted


def union(columns: Sequence[IdColumn]) -> Vocabulary | None:
    """Return the union of the ids, in the order of the columns; None = row numbers."""
    ids = columns[0].ids
    for column in columns[1:]:
        if ids is None or column.ids is None:
            return None
        ids = ids.union(column.ids)
    return ids


def _check_zeros(what: str, text: Vocabulary, numbers: Vocabulary) -> None:
    """Refuse text ids with leading zeros that the numbers lack, as after a frame has read and rewritten them."""
    bare = {*numbers.as_text()} - {*text}
    zeros = next((id_ for id_ in text if id_[:1] == "0" and (id_.lstrip("0") or "0") in bare), None)
    if zeros is not None and all(id_.isdecimal() for id_ in text):
        raise ValueError(
            f"{what}: {zeros!r} in one file is {int(zeros)} in another, which seems to lack leading zeros: read ids "
            "as text before you write a file, pandas.read_csv(..., dtype=str)"
        )
