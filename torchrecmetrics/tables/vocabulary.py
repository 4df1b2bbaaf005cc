"""`Vocabulary`: ids by row number and back, for callers; the functions that read and find ids are in `ids`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from torchrecmetrics.core.checks import check_choice
from torchrecmetrics.core.saving import read, write
from torchrecmetrics.tables.ids import (
    find,
    from_state,
    joined,
    kind_of,
    numbered,
    other_kind,
    read_ids,
    repeat,
    take,
    to_list,
    to_state,
)
from torchrecmetrics.tables.numbers import check_range, check_size, check_spread, entry_at, holds, row_numbers
from torchrecmetrics.tables.sources import arrow, compute


class Vocabulary:
    """Ids and their row numbers: id `vocabulary[row]` has row `row` in embeddings and interactions.

    Args:
        ids: distinct ids [n] in the order of the rows: whole numbers of 64 bits, signed or unsigned (hashes), text,
            bytes, or categories of these; a list, a tensor, an array, or a column of pandas, polars or pyarrow. Floats
            count as whole numbers if all are whole (pandas makes floats of whole numbers if some are missing).

    Raises:
        ImportError: without pyarrow, which the extra `frames` brings.
        TypeError: for ids of several or other kinds, and anything but a list or array.
        ValueError: for a missing id (names the row), a repeated id (names the id), and floats so large that they may
            have been rounded.

    Two vocabularies are equal if they hold the same ids in the same order.

    Examples:
        >>> import torchrecmetrics as trm
        >>> users = trm.Vocabulary(["al", "bo", "eve"])
        >>> users.rows(["eve", "al"]), users[1], "zoe" in users, len(users)
        (tensor([2, 0]), 'bo', False, 3)
        >>> users.rows(["zoe", "bo"], unknown="mark")
        tensor([-1,  1])
    """

    def __init__(self, ids: Any) -> None:
        self._ids = _id_entries("ids", ids)

    @classmethod
    def named(cls, name: str, ids: Any) -> Vocabulary:
        """Return a vocabulary unchanged, or make a vocabulary of ids, which messages call `name`."""
        return ids if isinstance(ids, Vocabulary) else cls._of(_id_entries(name, ids))

    @classmethod
    def number(
        cls, ids: Any, name: str = "ids", row_name: Callable[[int], str] = "row {}".format
    ) -> tuple[Vocabulary, Tensor]:
        """Assign row numbers to the distinct ids of a column in ascending order, whatever the order of the column.

        Whole numbers 0 .. n - 1 that all occur keep their numbers.

        Args:
            ids: [E], as in the constructor, but with repeats.
            name: name of the column in messages.
            row_name: returns the name of a row in messages.

        Returns:
            The vocabulary, and the row number of each entry, int64 [E].

        Raises:
            TypeError: as the constructor does.
            ValueError: for a missing id; says in which row.

        Examples:
            >>> import torchrecmetrics as trm
            >>> vocabulary, rows = trm.Vocabulary.number(["b", "a", "b"])
            >>> list(vocabulary), rows
            (['a', 'b'], tensor([1, 0, 1]))
        """
        distinct, rows = numbered(_complete(name, ids, row_name))
        return cls._of(distinct), rows

    @classmethod
    def _of(cls, ids: Any) -> Vocabulary:
        made = cls.__new__(cls)
        made._ids = ids
        return made

    @property
    def kind(self) -> str:
        """Kind of the ids: "whole numbers", "text" or "bytes"."""
        return kind_of(self._ids)

    def rows(self, ids: Any, *, unknown: Literal["error", "mark"] = "error") -> Tensor:
        """Return the row numbers of ids.

        Args:
            ids: [E], of the kind that the vocabulary holds (text is no number).
            unknown: an id that is not in the vocabulary, or missing, is an "error", or is "mark"ed by -1. A `Ranking`
                reads -1 as padding, so that an unknown item of a list would take no rank: pass ids to `evaluate_lists`,
                or replace -1 by a row number beyond the catalogue.

        Returns:
            int64 [E], on the CPU.

        Raises:
            TypeError: for ids of another kind.
            ValueError: for an unknown id; says which, and in which row.
        """
        check_choice("unknown", unknown, ("error", "mark"))
        rows = self.rows_of("ids", ids, "the vocabulary")
        if unknown == "error" and bool((rows < 0).any()):
            row = int((rows < 0).nonzero()[0])
            raise ValueError(
                f"{int((rows < 0).sum())} of {len(rows)} ids are not in the vocabulary, the first in row {row}: "
                f"{entry_at(ids, row)!r}; unknown='mark' gives -1 for them"
            )
        return rows

    @property
    def array(self) -> Any:
        """The ids as an array of pyarrow."""
        return self._ids

    def ids(self, rows: Any) -> list[Any]:
        """Return the ids of the given rows, whole numbers [n] >= 0.

        Raises:
            ValueError: for a row number that is out of range.
        """
        wanted = rows if isinstance(rows, Tensor) else row_numbers("rows", rows)
        if wanted.dim() != 1 or wanted.is_floating_point() or wanted.dtype == torch.bool:
            raise ValueError(f"rows must be whole numbers [n], got {wanted.dtype} {list(wanted.shape)}")
        wanted = wanted.detach().cpu().long()
        hint = "; take ids[ids >= 0] of a list that is filled up with -1" if bool((wanted < 0).any()) else ""
        check_range("rows", wanted, 0, len(self), hint)
        return to_list(take(self._ids, wanted))

    def union(self, other: Any) -> Vocabulary:
        """Return the ids of this vocabulary in their rows, followed by the ids that only `other` has, in its order."""
        added = Vocabulary.named("other", other)
        if not len(added) or self == added:
            return self
        if not len(self):
            return added
        if added.kind != self.kind:
            raise other_kind("other", added._ids, "the vocabulary", self._ids)
        new = (find(self._ids, added._ids) < 0).nonzero()[:, 0]
        return Vocabulary._of(joined(self._ids, take(added._ids, new))) if len(new) else self

    def rows_in(self, other: Vocabulary) -> Tensor:
        """Return the row of each id in another vocabulary, int64 [n]; -1 = the id is not in it.

        Raises:
            TypeError: if the two vocabularies hold ids of different kinds.
        """
        return other._find("the one", self._ids, "the other")

    def recode(self, rows: Tensor, other: Vocabulary) -> Tensor:
        """Return row numbers of this vocabulary as row numbers of another; -1 = the id is not in it."""
        return rows if self == other else other._find("the one", self._ids, "the other").to(rows.device)[rows]

    def as_text(self) -> Vocabulary:
        """Return the vocabulary with whole numbers as text, "7" for 7, in the same rows; text does not change."""
        return self if self.kind != "whole numbers" else Vocabulary._of(self._ids.cast(arrow().large_string()))

    def take(self, rows: Tensor) -> Vocabulary:
        """Return the vocabulary of the given rows, int64 [n], which must be distinct."""
        return Vocabulary._of(take(self._ids, rows))

    def save(self, path: str | Path) -> None:
        """Write a file that `load` reads, and `torch.load` with its default `weights_only=True`."""
        write(path, "Vocabulary", self.state())

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read a file that `save` wrote.

        Raises:
            ValueError: for any other file.
        """
        return cls.from_state(read(path, "Vocabulary"))

    def state(self) -> dict[str, Any]:
        """Return the argument of `from_state`: the ids as tensors, numbers and text."""
        return to_state(self._ids)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Vocabulary:
        """Make a vocabulary from a result of `state`."""
        return cls._of(from_state(state))

    def rows_of(self, name: str, column: Any, where: str) -> Tensor:
        """Return the row of each id, int64 [E]; -1 = unknown or missing; messages call the vocabulary `where`."""
        return self._find(name, read_ids(name, column), where)

    def _find(self, name: str, ids: Any, where: str) -> Tensor:
        """Return the row of each id, int64 [E]; -1 = unknown or missing; refuse ids of another kind."""
        if not len(self) or ids.null_count == len(ids):
            return torch.full((len(ids),), -1, device="cpu")
        if kind_of(ids) != self.kind:
            raise other_kind(name, ids, where, self._ids)
        return find(self._ids, ids)

    def __getitem__(self, row: int) -> Any:
        row = check_size("row", row)
        if row >= len(self):
            raise IndexError(f"row {row} of a vocabulary of {len(self)}")
        return self._ids[row].as_py()

    def __contains__(self, id_: object) -> bool:
        try:
            return bool(self.rows_of("ids", [id_], "the vocabulary")[0] >= 0)
        except (TypeError, ValueError):
            return False

    def __iter__(self) -> Iterator[Any]:
        return iter(to_list(self._ids))

    def __len__(self) -> int:
        return len(self._ids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and (
            self is other or len(self) == len(other) == 0 or bool(self._ids.equals(other._ids))
        )

    def __repr__(self) -> str:
        shown = ", ".join(repr(self[row]) for row in range(min(3, len(self))))
        return f"Vocabulary({len(self)} ids, {self.kind}: {shown}{', ...' if len(self) > 3 else ''})"


def _complete(name: str, column: Any, row_name: Callable[[int], str] = "row {}".format) -> Any:
    """Read a column of ids; refuse missing ids."""
    ids = read_ids(name, column)
    if ids.null_count:
        missing = row_name(compute().index(ids.is_null(), True).as_py())
        raise ValueError(
            f"{name} {holds(name)} a missing value: {ids.null_count} of {len(ids)} rows, the first is {missing}; leave "
            "them out"
        )
    return ids


def _id_entries(name: str, column: Any) -> Any:
    """Read a column of ids; refuse repeated and missing ids."""
    if isinstance(column, Vocabulary):
        return column._ids
    ids = _complete(name, column)
    ids = ids.dictionary_decode() if hasattr(ids, "dictionary") else ids
    twice = repeat(ids)
    if twice is not None:
        raise ValueError(
            f"{name} lists {ids[twice[0]].as_py()!r} twice, in rows {twice[0]} and {twice[1]}: each id has one row "
            "(Vocabulary.number takes a column with repeats)"
        )
    return ids


def codes_of(name: str, column: Any, vocabulary: Any, size: int | None) -> tuple[Tensor, int, Vocabulary | None]:
    """Return the rows of a column, int64 [E] (-1 = unknown id), the number of rows, and the vocabulary or None."""
    if vocabulary is None:
        codes = row_numbers(name, column, f", or come with a vocabulary such as {name[:-1]}_ids=sorted(set({name}))")
        if size is None:
            size = int(codes.max()) + 1 if len(codes) else 0
            check_spread(name, codes, f", or num_{name}={size} where there are so many")
        size = check_size(f"num_{name}", size)
        check_range(name, codes, 0, size, "")
        return codes, size, None
    if size is not None:
        raise ValueError(f"num_{name} follows from {name[:-1]}_ids: give one of the two")
    known = Vocabulary.named(f"{name[:-1]}_ids", vocabulary)
    return known.rows_of(name, column, f"{name[:-1]}_ids"), len(known), known


def called(ids: Vocabulary | None, row: int) -> str:
    """Return the id of a row, or the row number without a vocabulary, for messages."""
    return str(row) if ids is None else repr(ids[row])
