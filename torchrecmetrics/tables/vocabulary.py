"""`Vocabulary`: ids by row number and back; `numbered_together` numbers the ids of several vocabularies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.core.checks import check_choice
from torchrecmetrics.core.numbers import check_range, check_size, check_spread, entry_at, holds, row_numbers
from torchrecmetrics.core.saving import read, write
from torchrecmetrics.tables.columns import arrow, first_null, ids_of, tensor_of


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
        self.array: Any = _distinct("ids", ids)
        """The ids as an array of pyarrow: int64, uint64, large_string or large_binary."""

    @classmethod
    def named(cls, name: str, ids: Any) -> Vocabulary:
        """Return a vocabulary unchanged, or make a vocabulary of ids, which messages call `name`."""
        return ids if isinstance(ids, Vocabulary) else cls.of_array(_distinct(name, ids))

    @classmethod
    def of_array(cls, array: Any) -> Vocabulary:
        """Return the vocabulary of distinct ids, as `array` holds them."""
        made = cls.__new__(cls)
        made.array = array
        return made

    @classmethod
    def number(
        cls, ids: Any, name: str = "ids", row_name: Callable[[int], str] = "row {}".format
    ) -> tuple[Vocabulary, Tensor]:
        """Assign row numbers to the distinct ids of a column in ascending order, whatever the order of the column.

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
        return ascending(_complete(name, ids, row_name))

    @property
    def kind(self) -> str:
        """Kind of the ids: "whole numbers", "text" or "bytes"."""
        types = arrow().types
        if types.is_integer(self.array.type):
            return "whole numbers"
        return "text" if types.is_large_string(self.array.type) else "bytes"

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

    def rows_of(self, name: str, column: Any, where: str) -> Tensor:
        """Return the row of each id, int64 [E]; -1 = unknown or missing; messages call the vocabulary `where`."""
        encoded = ids_of(name, column)
        rows = Vocabulary.of_array(encoded.dictionary).rows_in(self, name, where)
        return torch.cat([rows, rows.new_full((1,), -1)])[tensor_of(encoded.indices.fill_null(-1))]

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
        return list(self.take(wanted))

    def union(self, other: Any) -> Vocabulary:
        """Return the ids of this vocabulary in their rows, followed by the ids that only `other` has, in its order."""
        return numbered_together([self, Vocabulary.named("other", other)], ["the vocabulary", "other"])[0]

    def rows_in(self, other: Vocabulary, name: str = "the one", where: str = "the other") -> Tensor:
        """Return the row of each id in another vocabulary, int64 [n]; -1 = the id is not in it.

        Raises:
            TypeError: if the two vocabularies, called `name` and `where`, hold ids of different kinds.
        """
        if not len(self) or not len(other):
            return torch.full((len(self),), -1, device="cpu")
        pa, wanted, known = arrow(), self.array, other.array
        if self.kind != other.kind:
            raise _other_kind(name, self, where, other)
        if wanted.type != known.type:  # one is signed, the other unsigned
            wanted, known = (ids.cast(pa.decimal128(20, 0)) for ids in (wanted, known))
        return tensor_of(pa.compute.index_in(wanted, value_set=known).cast(pa.int64()).fill_null(-1))

    def recode(self, rows: Tensor, other: Vocabulary) -> Tensor:
        """Return row numbers of this vocabulary as row numbers of another; -1 = the id is not in it."""
        return rows if self == other else self.rows_in(other).to(rows.device)[rows]

    def as_text(self) -> Vocabulary:
        """Return the vocabulary with ids as `str` writes them, "7" for 7, in the same rows; text does not change."""
        if self.kind == "bytes":
            return Vocabulary([*map(str, self)])
        return Vocabulary.of_array(self.array.cast(arrow().large_string())) if self.kind == "whole numbers" else self

    def take(self, rows: Tensor) -> Vocabulary:
        """Return the vocabulary of the given rows, int64 [n], which must be distinct."""
        return Vocabulary.of_array(self.array.take(arrow().array(rows.numpy())))

    def first(self, number: int) -> Vocabulary:
        """Return the vocabulary of the first rows."""
        return self if number == len(self) else Vocabulary.of_array(self.array[:number])

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
        """Return the argument of `from_state`: the ids as Arrow writes them to a stream, uint8 [bytes]."""
        pa = arrow()
        sink, batch = pa.BufferOutputStream(), pa.RecordBatch.from_arrays([self.array], ["ids"])
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        return {"stream": torch.frombuffer(bytearray(sink.getvalue()), dtype=torch.uint8)}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Vocabulary:
        """Make a vocabulary from a result of `state`."""
        with arrow().ipc.open_stream(arrow().py_buffer(state["stream"].numpy())) as stream:
            return cls.of_array(stream.read_next_batch().column(0))

    def __getitem__(self, row: int) -> Any:
        row = check_size("row", row)
        if row >= len(self):
            raise IndexError(f"row {row} of a vocabulary of {len(self)}")
        return self.array[row].as_py()

    def __contains__(self, id_: object) -> bool:
        try:
            return bool(self.rows_of("ids", [id_], "the vocabulary")[0] >= 0)
        except (TypeError, ValueError):
            return False

    def __iter__(self) -> Iterator[Any]:
        return iter(self.array.to_pylist())

    def __len__(self) -> int:
        return len(self.array)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and (
            self is other or len(self) == len(other) == 0 or bool(self.array.equals(other.array))
        )

    def __repr__(self) -> str:
        shown = ", ".join(repr(self[row]) for row in range(min(3, len(self))))
        return f"Vocabulary({len(self)} ids, {self.kind}: {shown}{', ...' if len(self) > 3 else ''})"


class Numbered(NamedTuple):
    """Vocabularies that were numbered together."""

    ids: Vocabulary
    """Distinct ids of all: those of the first in their order, then those that only the second has, and so on."""
    rows: list[Tensor]
    """Row of each id of each vocabulary, int32 [n] each."""


def numbered_together(
    vocabularies: Sequence[Vocabulary], names: Sequence[str], written: Sequence[bool] = ()
) -> Numbered:
    """Return the ids of several vocabularies, numbered so that a row means the same id in all.

    Args:
        vocabularies: the vocabularies, of which some may be empty.
        names: names of the vocabularies in messages.
        written: True for each vocabulary that was read from text, whose numbers are text if others hold text.

    Raises:
        TypeError: for vocabularies of several kinds, which cannot be compared.
        ValueError: if no integer of 64 bits holds all ids.
    """
    pa = arrow()
    texts = [ids for ids in vocabularies if len(ids) and ids.kind == "text"]
    if any(written) and texts:
        for ids, name, was_text in zip(vocabularies, names, written, strict=True):
            if was_text and ids.kind == "whole numbers":
                _check_zeros(name, ids.as_text(), texts)
        pairs = zip(vocabularies, written, strict=True)
        vocabularies = [ids.as_text() if was_text else ids for ids, was_text in pairs]
    filled = [(ids, name) for ids, name in zip(vocabularies, names, strict=True) if len(ids)]
    for ids, name in filled[1:]:
        if ids.kind != filled[0][0].kind:
            raise _other_kind(name, ids, filled[0][1], filled[0][0])
    arrays = [ids.array for ids, _ in filled]
    if len({array.type for array in arrays}) > 1:  # some are signed, others unsigned
        try:
            arrays = [array.cast(pa.uint64()) for array in arrays]
        except pa.ArrowInvalid:
            raise ValueError("some ids are below 0 and others 2^63 or more, too far apart for 64 bits") from None
    if not arrays:
        return Numbered(vocabularies[0], [torch.empty(0, dtype=torch.int32, device="cpu") for _ in vocabularies])
    if all(array.equals(arrays[0]) for array in arrays):  # the most frequent case needs no hash table
        same = torch.arange(len(arrays[0]), dtype=torch.int32, device="cpu")
        return Numbered(Vocabulary.of_array(arrays[0]), [same[: len(ids)] for ids in vocabularies])
    chunks = pa.chunked_array(arrays).dictionary_encode().chunks  # all have one dictionary, of the ids of all
    encoded = iter(chunks)
    rows = [tensor_of((next(encoded) if len(ids) else chunks[0][:0]).indices) for ids in vocabularies]
    return Numbered(Vocabulary.of_array(chunks[0].dictionary), rows)


def _check_zeros(name: str, numbers: Vocabulary, texts: Sequence[Vocabulary]) -> None:
    """Refuse text such as "07" of other sides, all digits, where the numbers of a file have lost their zeros."""
    pc = arrow().compute
    for text in texts:
        bare = pc.replace_substring_regex(text.array, r"^0+([0-9]+)$", r"\1")
        is_lost = pc.and_(pc.is_in(bare, value_set=numbers.array), pc.invert(pc.is_in(bare, value_set=text.array)))
        if pc.any(is_lost).as_py() and pc.all(pc.match_substring_regex(text.array, "^[0-9]+$")).as_py():
            zeros = text.array.filter(is_lost)[0].as_py()
            raise ValueError(
                f"{name} {holds(name)} {int(zeros)}, which another file writes as {zeros!r}: leading zeros seem to be "
                "lost; read ids as text before you write a file, pandas.read_csv(..., dtype=str)"
            )


def _other_kind(name: str, ids: Vocabulary, where: str, known: Vocabulary) -> TypeError:
    """Return the error for ids of another kind than those of the vocabulary `where`."""
    return TypeError(
        f"{name} {holds(name)} {ids.kind} ({ids[0]!r}), {where} {holds(where)} {known.kind} ({known[0]!r}): they "
        "cannot be compared; convert one of the two"
    )


def ascending(encoded: Any) -> tuple[Vocabulary, Tensor]:
    """Return the vocabulary of a dictionary array in ascending order, and the row of each entry, int64 [E]."""
    pa = arrow()
    order = pa.compute.sort_indices(encoded.dictionary).cast(pa.int64())
    rows = torch.empty(len(order), dtype=torch.int64, device="cpu")
    rows[tensor_of(order)] = torch.arange(len(order), device="cpu")
    return Vocabulary.of_array(encoded.dictionary.take(order)), rows.index_select(0, tensor_of(encoded.indices))


def _complete(name: str, column: Any, row_name: Callable[[int], str] = "row {}".format) -> Any:
    """Encode a column of ids as `ids_of` does; refuse missing ids."""
    encoded = ids_of(name, column)
    check_present(name, encoded, row_name)
    return encoded


def check_present(name: str, array: Any, row_name: Callable[[int], str] = "row {}".format) -> None:
    """Refuse a column of ids in which some are missing."""
    if array.null_count:
        missing = f"{array.null_count} of {len(array)} rows, the first is {row_name(first_null(array))}"
        raise ValueError(f"{name} {holds(name)} a missing value: {missing}; leave them out")


def _distinct(name: str, column: Any) -> Any:
    """Return the ids of a column in their order; refuse repeated and missing ids."""
    if isinstance(column, Vocabulary):
        return column.array
    encoded = _complete(name, column)
    ids = encoded.dictionary.take(encoded.indices)
    if len(encoded.dictionary) < len(ids):
        first_rows = tensor_of(ids.dictionary_encode().indices)  # up to the first repeat, ids are numbered 0, 1, 2, ...
        row = int((first_rows != torch.arange(len(ids), device="cpu")).nonzero()[0])
        raise ValueError(
            f"{name} lists {ids[row].as_py()!r} twice, in rows {int(first_rows[row])} and {row}: each id has one row "
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
