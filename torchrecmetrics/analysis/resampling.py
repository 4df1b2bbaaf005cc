"""Bootstrap weights and sign flips from a hash of row ids, so that order, chunks and processes do not matter.

A resample is a vector of signs (flips) or of Poisson(1) weights (bootstrap), one per unit. The sums of all
resamples are the product [resamples, units] x [units, columns], computed in bounded chunks and in float64.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock
from typing import TypeAlias

import torch
from torch import Tensor

Units: TypeAlias = Iterator[tuple[Tensor, Tensor]]
"""Chunks of units: int64 keys [c], float64 values [c, columns]."""

CHUNK = 256
"""Number of units that are resampled at once."""

_AT_ONCE = 512  # resamples at once: the weights of a chunk take 1 MB, and its words are few enough for one thread
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # constants of splitmix64, as int64
_FACTORS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)
#: How many of the 65,536 values of 16 bits stand for weight 0, 1, 2, ...: Poisson(1), mean and variance exactly 1.
_POISSON = (24107, 24113, 12055, 4017, 1004, 201, 33, 5, 1)


_thread_counts: list[int] = []
_thread_lock = Lock()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit PyTorch to one thread inside a `with` block.

    Chunks fit into the cache of one core and take less time than the synchronisation of threads: on a machine that
    others use too, two threads took ten times as long as one.
    """
    with _thread_lock:
        _thread_counts.append(torch.get_num_threads())  # the first entry is the number before any block
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _thread_lock:
            before = _thread_counts[0]
            _thread_counts.pop()
            if not _thread_counts:
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


def hashes(ids: Tensor | list[str]) -> Tensor:
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
    found = _words(keys, seed, first_word, words).view(torch.uint8)
    return _signs_of_byte(keys.device).index_select(0, found.flatten().int()).view(len(keys), -1)


def poisson(keys: Tensor, seed: int, first_word: int, words: int) -> Tensor:
    """Return random Poisson(1) weights of the units, 4 resamples per word, float64 [c, 4 * words]."""
    found = _words(keys, seed, first_word, words).view(torch.int16).flatten().int().bitwise_and_(0xFFFF)
    return _poisson_of_16_bits(keys.device).index_select(0, found).view(len(keys), -1)


def flipped_sums(units: Units, columns: int, resamples: int, seed: int) -> Tensor:
    """Return sums of the units with random signs, float64 [resamples, columns]; all columns share a unit's sign."""
    return _sums(units, columns, resamples, seed, signs, 64)


def resampled_sums(units: Units, columns: int, resamples: int, seed: int) -> Tensor:
    """Return sums of the units with Poisson(1) weights, float64 [resamples, columns], the same for all columns."""
    return _sums(units, columns, resamples, seed, poisson, 4)


def _sums(
    units: Units,
    columns: int,
    resamples: int,
    seed: int,
    make: Callable[[Tensor, int, int, int], Tensor],
    a_word: int,
) -> Tensor:
    words, at_once = -(-resamples // a_word), _AT_ONCE // a_word
    totals = torch.zeros(columns, words * a_word, dtype=torch.float64, device="cpu")
    for keys, values in units:
        for part in range(0, len(keys), CHUNK):  # a piece may hold more units than a chunk
            chunk_keys, chunk_values = keys[part : part + CHUNK], values[part : part + CHUNK]
            for first in range(0, words, at_once):
                num_words = min(at_once, words - first)
                weights = make(chunk_keys, seed, first, num_words)
                totals[:, first * a_word : (first + num_words) * a_word].addmm_(chunk_values.T, weights)
    return totals.T[:resamples]


def all_flips(units: Tensor) -> Tensor:
    """Return sums of units, float64 [n, columns], under all combinations of signs but all +: [2^n - 1, columns]."""
    sums = units.new_zeros(1, units.shape[1])
    for unit in units.flip(0):
        sums = torch.stack([sums + unit, sums - unit], 1).flatten(0, 1)
    return sums[1:]


def chunked(rows: int, ends: Tensor | None, chunk: int = 32 * CHUNK) -> Iterable[tuple[int, int]]:
    """Yield the start and stop of consecutive pieces of about `chunk` rows.

    Args:
        rows: number of rows.
        ends: end of each unit, int64 [units], ascending; a unit is never divided. None = every row is a unit.
        chunk: approximate number of rows per piece.
    """
    stops = torch.arange(chunk, rows + chunk, chunk, device="cpu").clamp_(max=rows)
    if ends is not None and len(ends):
        stops = ends[torch.searchsorted(ends, stops)]
    if not rows:
        yield 0, 0
    start = 0
    for stop in stops.tolist():
        if stop > start:
            yield start, stop
            start = stop
