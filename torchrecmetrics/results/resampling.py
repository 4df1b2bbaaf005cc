"""Sums of units, rows or clusters of rows, with random signs.

The sums of all resamples are the product [columns, units] x [units, resamples], computed in bounded chunks and in
float64; of many units, most are replaced by their normal limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

MANY = 10_000
"""Number of units up to which all of them are flipped one by one."""

_BLOCK = 65_536  # units that are laid out at once
_CHUNK = 256  # units that are flipped at once
_AT_ONCE = 512  # resamples at once: the signs of a chunk take 1 MB


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit PyTorch to one thread: chunks fit into the cache of one core, and take less time than synchronisation."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def signs(units: int, resamples: int, generator: torch.Generator) -> Tensor:
    """Return random signs, float64 [units, resamples], 8 from each random byte; `resamples` is a multiple of 8."""
    bits = torch.arange(256, device="cpu")[:, None] >> torch.arange(8, device="cpu") & 1
    random_bytes = torch.randint(256, (units * resamples // 8,), dtype=torch.int32, generator=generator, device="cpu")
    return (1 - 2 * bits.double()).index_select(0, random_bytes).view(units, resamples)


class Units(NamedTuple):
    """Values of some units, in some columns; the other units count as 0."""

    numbers: Tensor
    """Number of each unit among all units, ascending, int64 [units]."""
    values: Tensor
    """float64 [columns, units]."""

    def block(self, start: int, stop: int) -> Tensor:
        """Return the values of the units from number `start` up to `stop`, [columns, stop - start]."""
        begin, end = torch.searchsorted(self.numbers, torch.tensor([start, stop], device="cpu")).tolist()
        block = self.values.new_zeros(len(self.values), stop - start)
        block[:, self.numbers[begin:end] - start] = self.values[:, begin:end]
        return block


def flipped_sums(tables: Sequence[Units], num_units: int, resamples: int, seed: int) -> Tensor:
    """Return sums of the units with random signs, float64 [resamples, columns of all tables].

    A unit has one sign for all columns. Of more than `MANY` units, those that make up 1 / `MANY` or less of each
    column's sum of squares are not flipped one by one: their sums are drawn from the normal distribution with the same
    covariance, which changes the kurtosis by at most 2 / `MANY`. At most `MANY` units per column are left to flip.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    squares = torch.cat([torch.linalg.vector_norm(table.values, dim=1) for table in tables]).square()
    sums = torch.zeros(len(squares), -(-resamples // 8) * 8, dtype=torch.float64, device="cpu")
    covariance = torch.zeros(len(squares), len(squares), dtype=torch.float64, device="cpu")
    for start in range(0, num_units, _BLOCK):
        stop = min(start + _BLOCK, num_units)
        block = torch.cat([table.block(start, stop) for table in tables])
        if num_units > MANY:
            is_large = (block.square() > squares[:, None] / MANY).any(0)
            small, block = block[:, ~is_large], block[:, is_large]
            covariance.addmm_(small, small.T)
        for chunk in torch.split(block, _CHUNK, 1):
            for some_sums in torch.split(sums, _AT_ONCE, 1):
                some_sums.addmm_(chunk, signs(chunk.shape[1], some_sums.shape[1], generator))
    if num_units > MANY:
        draws = [torch.randn(sums.shape[1], dtype=torch.float64, generator=generator, device="cpu") for _ in squares]
        sums.addmm_(_root(covariance), torch.stack(draws))
    return sums.T[:resamples]


def _root(covariance: Tensor) -> Tensor:
    """Return the Cholesky root of a covariance; a billionth is added to the variances, since columns may be equal."""
    scale = covariance.diagonal().sqrt()
    nonzero = scale.where(scale > 0, 1)
    correlation = covariance / nonzero[:, None] / nonzero
    correlation.diagonal().fill_(1 + 1e-9)
    root: Tensor = torch.linalg.cholesky(correlation)
    return root * scale[:, None]


def all_flips(tables: Sequence[Units], num_units: int) -> Tensor:
    """Return sums of the units under all combinations of signs except all +: [2^n - 1, columns of all tables]."""
    units = torch.cat([table.block(0, num_units) for table in tables]).T
    sums = units.new_zeros(1, units.shape[1])
    for unit in units.flip(0):
        sums = torch.stack([sums + unit, sums - unit], 1).flatten(0, 1)
    return sums[1:]
