"""Units of rows, and sums of units with random signs from a hash of ids, so that the order of rows does not matter.

The sums of all resamples are the product [columns, units] x [units, resamples], computed in bounded chunks and in
float64; of many units, most are replaced by their normal limit.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.analysis.row_ids import RowIds, numbered

EQUAL = 1e-12
"""Relative difference up to which two numbers count as equal, since sums are rounded."""

MANY = 10_000
"""Number of units up to which all of them are flipped one by one."""

_BLOCK = 65_536  # units that are laid out at once
_CHUNK = 256  # units that are flipped at once
_PER_WORD = 64  # signs of a random word
_AT_ONCE = 8  # words at once: the signs of a chunk take 1 MB, and its words are few enough for one thread
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # constants of splitmix64, as int64
_FACTORS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit PyTorch to one thread inside a `with` block.

    Chunks fit into the cache of one core and take less time than the synchronisation of threads: on a machine that
    others use too, two threads took ten times as long as one.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def mixed(numbers: Tensor) -> Tensor:
    """Mix the bits of int64 numbers, one-to-one: the last steps of splitmix64 (Steele et al., OOPSLA 2014)."""
    mixed = numbers.clone()
    for shift, factor in zip((30, 27), _FACTORS, strict=True):
        mixed.bitwise_xor_(_shifted(mixed, shift)).mul_(factor)
    return mixed.bitwise_xor_(_shifted(mixed, 31))


def _shifted(numbers: Tensor, by: int) -> Tensor:
    """Shift the bits of int64 numbers to the right and fill up with zeros (a logical shift)."""
    return (numbers >> by).bitwise_and_(2 ** (64 - by) - 1)


def hashes(ids: RowIds) -> Tensor:
    """Return a hash of each id, int64 [n]: splitmix64 of whole numbers, BLAKE2b with a digest of 8 bytes of text."""
    if isinstance(ids, Tensor):
        return mixed(ids + _GOLDEN)
    digests = b"".join(hashlib.blake2b(word.encode(), digest_size=8).digest() for word in ids)
    return torch.tensor(array("q", digests), dtype=torch.int64, device="cpu")


def _words(keys: Tensor, seed: int, first: int, words: int) -> Tensor:
    """Return the random words `first`, `first + 1`, ... of each unit, 64 bits per word, int64 [c, words]."""
    start = mixed(torch.tensor([seed], dtype=torch.int64, device="cpu") + _GOLDEN)
    steps = torch.arange(first + 1, first + words + 1, dtype=torch.int64, device="cpu") * _GOLDEN
    return mixed(mixed(keys ^ start)[:, None] + steps)


@lru_cache(maxsize=4)
def _signs_of_byte(device: torch.device) -> Tensor:
    """Return the 8 signs of each byte, float64 [256, 8]: 1 for a bit that is 0, -1 for a bit that is 1."""
    bits = torch.arange(256, device=device)[:, None] >> torch.arange(8, device=device) & 1
    return 1 - 2 * bits.double()


def signs(keys: Tensor, seed: int, first_word: int, words: int) -> Tensor:
    """Return random signs of the units, 64 resamples per word, float64 [c, 64 * words]."""
    random_bytes = _words(keys, seed, first_word, words).view(torch.uint8)
    return _signs_of_byte(keys.device).index_select(0, random_bytes.flatten().int()).view(len(keys), -1)


class Units(NamedTuple):
    """Units of some columns, all with a number among all units; a unit without a value here counts as 0."""

    numbers: Tensor
    """Number of each unit, ascending, int64 [units]."""
    values: Tensor
    """float64 [columns, units]."""

    def block(self, start: int, stop: int) -> Tensor:
        """Return the values of the units from number `start` up to `stop`, [columns, stop - start]."""
        first, last = torch.searchsorted(self.numbers, torch.tensor([start, stop], device="cpu")).tolist()
        block = self.values.new_zeros(len(self.values), stop - start)
        block[:, self.numbers[first:last] - start] = self.values[:, first:last]
        return block


def flipped_sums(keys: Tensor, tables: Sequence[Units], resamples: int, seed: int) -> Tensor:
    """Return sums of the units with random signs, float64 [resamples, columns of all tables].

    A unit has one sign for all columns, a function of its key, int64 [units], and the seed. Of more than `MANY` units,
    those that make up 1 / `MANY` or less of each column's sum of squares are not flipped one by one: their sums are
    drawn from the normal distribution with the same covariance, which changes the kurtosis by at most 2 / `MANY`. At
    most `MANY` units per column are left to flip.
    """
    words = -(-resamples // _PER_WORD)
    squares = torch.cat([torch.linalg.vector_norm(table.values, dim=1) for table in tables]).square()
    sums = torch.zeros(len(squares), words * _PER_WORD, dtype=torch.float64, device="cpu")
    covariance = torch.zeros(len(squares), len(squares), dtype=torch.float64, device="cpu")
    for start in range(0, len(keys), _BLOCK):
        block_keys = keys[start : start + _BLOCK]
        block = torch.cat([table.block(start, start + len(block_keys)) for table in tables])
        if len(keys) > MANY:
            is_large = (block.square() > squares[:, None] / MANY).any(0)
            small = block[:, ~is_large]
            covariance.addmm_(small, small.T)
            block, block_keys = block[:, is_large], block_keys[is_large]
        _add_flips(sums, block_keys, block, seed)
    if len(keys) > MANY:
        generator = torch.Generator("cpu").manual_seed(seed)
        draws = [torch.randn(sums.shape[1], dtype=torch.float64, generator=generator, device="cpu") for _ in squares]
        sums.addmm_(_root(covariance), torch.stack(draws))
    return sums.T[:resamples]


def _add_flips(sums: Tensor, keys: Tensor, values: Tensor, seed: int) -> None:
    """Add the values of units, [columns, units], to all sums, [columns, resamples], each with its random sign."""
    words = sums.shape[1] // _PER_WORD
    for start in range(0, len(keys), _CHUNK):
        chunk_keys, chunk = keys[start : start + _CHUNK], values[:, start : start + _CHUNK]
        for first in range(0, words, _AT_ONCE):
            num_words = min(_AT_ONCE, words - first)
            flips = signs(chunk_keys, seed, first, num_words)
            sums[:, first * _PER_WORD : (first + num_words) * _PER_WORD].addmm_(chunk, flips)


def _root(covariance: Tensor) -> Tensor:
    """Return the Cholesky root of a covariance; a billionth is added to the variances, since columns may be equal."""
    scale = covariance.diagonal().sqrt()
    nonzero = scale.where(scale > 0, 1)
    correlation = covariance / nonzero[:, None] / nonzero
    correlation.diagonal().fill_(1 + 1e-9)
    root: Tensor = torch.linalg.cholesky(correlation)
    return root * scale[:, None]


def all_flips(values: Tensor) -> Tensor:
    """Return sums of units, float64 [columns, n], under all combinations of signs but all +: [2^n - 1, columns]."""
    sums = values.new_zeros(1, len(values))
    for unit in values.T.flip(0):
        sums = torch.stack([sums + unit, sums - unit], 1).flatten(0, 1)
    return sums[1:]


@dataclass(frozen=True)
class Layout:
    """Order of rows by the hash of their ids, independent of the input order, and the units: rows or clusters."""

    order: Tensor
    """Row numbers in the order of the hash, int64 [n]."""
    keys: Tensor
    """Hash of each unit, ascending, int64 [units]."""
    unit_of_row: Tensor | None
    """Index in `keys` of the unit of each row in `order`, ascending, int64 [n]; None = every row is a unit."""

    @classmethod
    def of(cls, ids: RowIds, clusters: RowIds | None) -> Layout:
        """Return the layout of rows, sorted by the hash of clusters if there are any, then by the hash of ids."""
        keys, order = hashes(ids).sort(stable=True)
        if clusters is None:
            return cls(order, keys, None)
        distinct, number = numbered(clusters)
        keys, by_key = hashes(distinct).sort(stable=True)
        unit_of_row, by_unit = by_key.argsort()[number[order]].sort(stable=True)
        return cls(order[by_unit], keys, unit_of_row)

    def only(self, chosen: Tensor) -> tuple[Layout, Tensor]:
        """Return the layout of the rows that `chosen`, bool [n], selects, and the indexes of its units in `keys`.

        Units that have no selected row are left out.
        """
        kept = chosen[self.order]
        if self.unit_of_row is None:
            return Layout(self.order[kept], self.keys[kept], None), kept.nonzero().flatten()
        units, unit_of_row = torch.unique(self.unit_of_row[kept], return_inverse=True)
        return Layout(self.order[kept], self.keys[units], unit_of_row), units

    def sums(self, values: Tensor) -> Tensor:
        """Return the sums of rows in `order`, float64 [n], by unit, [units]."""
        if self.unit_of_row is None:
            return values
        none = values.new_zeros(len(self.keys))
        sums = none.index_add(0, self.unit_of_row, values)
        sizes = none.index_add(0, self.unit_of_row, values.abs())
        return sums.masked_fill(sums.abs() <= EQUAL * sizes, 0)  # sums that are only rounding error are 0
