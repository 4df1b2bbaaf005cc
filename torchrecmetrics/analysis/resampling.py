"""Units of rows, and their bootstrap weights and sign flips from a hash of ids, so that order does not matter.

A resample is a vector of signs (flips) or of Poisson(1) weights (bootstrap), one per unit. The sums of all
resamples are the product [resamples, units] x [units, columns], computed in bounded chunks and in float64.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from torchrecmetrics.analysis.row_ids import RowIds, numbered

EQUAL = 1e-12
"""Relative difference up to which two numbers count as equal, since sums are rounded."""

_CHUNK = 256  # units that are resampled at once
_AT_ONCE = 512  # resamples at once: the weights of a chunk take 1 MB, and its words are few enough for one thread
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # constants of splitmix64, as int64
_FACTORS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)
#: How many of the 65,536 values of 16 bits stand for weight 0, 1, 2, ...: Poisson(1), mean and variance exactly 1.
_POISSON = (24107, 24113, 12055, 4017, 1004, 201, 33, 5, 1)


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


@lru_cache(maxsize=4)
def _poisson_of_16_bits(device: torch.device) -> Tensor:
    """Return the Poisson(1) weight of each value of 16 bits, float64 [65536]."""
    return torch.arange(len(_POISSON), device=device).repeat_interleave(torch.tensor(_POISSON, device=device)).double()


def signs(keys: Tensor, seed: int, first_word: int, words: int) -> Tensor:
    """Return random signs of the units, 64 resamples per word, float64 [c, 64 * words]."""
    random_bytes = _words(keys, seed, first_word, words).view(torch.uint8)
    return _signs_of_byte(keys.device).index_select(0, random_bytes.flatten().int()).view(len(keys), -1)


def poisson(keys: Tensor, seed: int, first_word: int, words: int) -> Tensor:
    """Return random Poisson(1) weights of the units, 4 resamples per word, float64 [c, 4 * words]."""
    random_bits = _words(keys, seed, first_word, words).view(torch.int16).flatten().int().bitwise_and_(0xFFFF)
    return _poisson_of_16_bits(keys.device).index_select(0, random_bits).view(len(keys), -1)


def flipped_sums(keys: Tensor, units: Tensor, resamples: int, seed: int) -> Tensor:
    """Return sums of the units, float64 [c, columns], with random signs: float64 [resamples, columns]."""
    return _sums(keys, units, resamples, seed, signs, 64)


def resampled_sums(keys: Tensor, units: Tensor, resamples: int, seed: int) -> Tensor:
    """Return sums of the units, float64 [c, columns], with Poisson(1) weights: float64 [resamples, columns]."""
    return _sums(keys, units, resamples, seed, poisson, 4)


def _sums(
    keys: Tensor,
    units: Tensor,
    resamples: int,
    seed: int,
    make: Callable[[Tensor, int, int, int], Tensor],
    per_word: int,
) -> Tensor:
    """Return sums of the units under `resamples` random signs or weights that `make` returns, `per_word` per word."""
    words, at_once = -(-resamples // per_word), _AT_ONCE // per_word
    totals = torch.zeros(units.shape[1], words * per_word, dtype=torch.float64, device="cpu")
    for start in range(0, len(keys), _CHUNK):
        chunk_keys, chunk = keys[start : start + _CHUNK], units[start : start + _CHUNK]
        for first in range(0, words, at_once):
            num_words = min(at_once, words - first)
            weights = make(chunk_keys, seed, first, num_words)
            totals[:, first * per_word : (first + num_words) * per_word].addmm_(chunk.T, weights)
    return totals.T[:resamples]


def all_flips(units: Tensor) -> Tensor:
    """Return sums of units, float64 [n, columns], under all combinations of signs but all +: [2^n - 1, columns]."""
    sums = units.new_zeros(1, units.shape[1])
    for unit in units.flip(0):
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
    """Number of the unit of each row in `order`, ascending, int64 [n]; None = every row is a unit."""

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

    def only(self, chosen: Tensor) -> Layout:
        """Return the layout of the rows that `chosen`, bool [n], selects, without units that have no selected row."""
        kept = chosen[self.order]
        if self.unit_of_row is None:
            return Layout(self.order[kept], self.keys[kept], None)
        units, unit_of_row = torch.unique(self.unit_of_row[kept], return_inverse=True)
        return Layout(self.order[kept], self.keys[units], unit_of_row)

    def sums(self, columns: Tensor) -> Tensor:
        """Return the sums of rows in `order`, float64 [n, columns], by unit, [units, columns]."""
        if self.unit_of_row is None:
            return columns
        none = columns.new_zeros(len(self.keys), columns.shape[1])
        sums = none.index_add(0, self.unit_of_row, columns)
        sizes = none.index_add(0, self.unit_of_row, columns.abs())
        return sums.masked_fill(sums.abs() <= EQUAL * sizes, 0)  # sums that are only rounding error are 0
