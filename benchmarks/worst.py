"""How often intervals of the worst group and of the gap cover what is true: `python -m benchmarks.worst`.

What is naive: the interval of the group that happens to look worst, and m_g - m_h ± 1.96 sqrt(s_g^2 + s_h^2) of the two
that look furthest apart.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from torchrecmetrics.analysis.intervals import interval
from torchrecmetrics.analysis.worst import apart, ends_of, lowest

GAINS: Tensor = 1 / torch.arange(2, 12).double().log2()
"""Of NDCG@10's places."""

Draw: TypeAlias = Callable[[Tensor, torch.Generator], Tensor]
"""Rows from the share that hits."""


class Case(NamedTuple):
    """Groups as they truly are."""

    name: str
    shares: list[float]
    """Of rows that hit."""
    sizes: list[int]
    draw: Draw
    a_hit: float
    """What a hit is worth on average."""
    bounds: tuple[float, float] | None = (0.0, 1.0)


class Found(NamedTuple):
    """Shares of samples in which an interval held."""

    together: float
    """The intervals of all groups."""
    worst: float
    naive_worst: float
    gap: float
    naive_gap: float
    possible: float
    """The truly worst group was among those that may be."""
    bias: float
    """What the smallest mean is above the smallest true value, on average."""


def hits(shares: Tensor, generator: torch.Generator) -> Tensor:
    """Rows of HR."""
    return (torch.rand(shares.shape, generator=generator) < shares).double()


def ndcg(shares: Tensor, generator: torch.Generator) -> Tensor:
    """Rows of NDCG@10 with one relevant item, found at any of ten places."""
    return hits(shares, generator) * GAINS[torch.randint(10, shares.shape, generator=generator)]


def normal(shares: Tensor, generator: torch.Generator) -> Tensor:
    """Rows without bounds, with deviation 1."""
    return shares + torch.randn(shares.shape, generator=generator).double()


def cases() -> list[Case]:
    """Return what is simulated."""
    found = []
    for groups in (2, 5, 50):
        found.append(Case(f"HR, {groups} x 200, all 0.1", [0.1] * groups, [200] * groups, hits, 1))
    for groups in (2, 5, 50):
        shares = [0.04, *[0.1] * (groups - 1)]
        found.append(Case(f"HR, {groups} x 200, one 0.04, others 0.1", shares, [200] * groups, hits, 1))
    for groups in (5, 50):
        found.append(Case(f"HR, {groups} x 20, all 0.05", [0.05] * groups, [20] * groups, hits, 1))
        found.append(Case(f"HR, {groups} x 20, all 0.95", [0.95] * groups, [20] * groups, hits, 1))
    many = [round(10 * 500 ** (i / 49)) for i in range(50)]
    found.append(Case("HR, 50 of 10 to 5,000, all 0.1", [0.1] * 50, many, hits, 1))
    found.append(Case("HR, 50 of 10 to 5,000, smallest 0.02", [0.02, *[0.1] * 49], many, hits, 1))
    found.append(Case("HR, 50 x 100, 0.05 to 0.3", [0.05 + 0.25 * i / 49 for i in range(50)], [100] * 50, hits, 1))
    mean = GAINS.mean().item()
    for groups in (5, 50):
        found.append(Case(f"NDCG@10, {groups} x 40, all 20 % hit", [0.2] * groups, [40] * groups, ndcg, mean))
        shares = [0.05, *[0.3] * (groups - 1)]
        found.append(Case(f"NDCG@10, {groups} x 40, 5 % and 30 % hit", shares, [40] * groups, ndcg, mean))
    for groups in (2, 50):
        found.append(Case(f"no bounds, {groups} x 5, all equal", [0.0] * groups, [5] * groups, normal, 1, None))
    found.append(Case("no bounds, 5 x 30, one worse", [-1.0, 0, 0, 0, 0], [30] * 5, normal, 1, None))
    return found


def drawn(case: Case, samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return means and standard errors of groups, [samples, groups]."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.tensor(case.sizes)
    group = torch.arange(len(sizes)).repeat_interleave(sizes)
    shares = torch.tensor(case.shares, dtype=torch.float64)[group]
    sums = torch.zeros(samples, len(sizes), dtype=torch.float64)
    squares = torch.zeros_like(sums)
    some = max(1, 2**22 // len(group))
    for start in range(0, samples, some):
        here = slice(start, min(start + some, samples))
        rows = case.draw(shares.expand(here.stop - start, -1), generator)
        sums[here].index_add_(1, group, rows)
        squares[here].index_add_(1, group, rows.square())
    values = sums / sizes
    variances = squares / sizes - values.square()
    variances = variances.where(variances > 1e-13, 0)  # what rounding leaves is none
    return values, (variances / (sizes - 1)).sqrt()


def simulate(case: Case, samples: int = 2000, level: float = 0.95, seed: int = 0) -> Found:
    """Draw samples and count in how many of them intervals hold."""
    values, errors = drawn(case, samples, seed)
    groups, sizes = len(case.sizes), torch.tensor(case.sizes, dtype=torch.float64)
    true = torch.tensor(case.shares, dtype=torch.float64) * case.a_hit
    made: dict[float, tuple[Tensor, Tensor]] = {}

    def ends(tail: float) -> tuple[Tensor, Tensor]:
        if tail not in made:
            made[tail] = ends_of(values, errors, sizes.expand_as(values), case.bounds, tail)
        return made[tail]

    low, high = ends((1 - level ** (1 / groups)) / 2)
    together = ((low <= true) & (true <= high)).all(1)
    low, high = lowest(ends, groups, level)
    worst = (low <= true.min()) & (true.min() <= high)
    possible = (ends((1 - level) / 2)[0] <= high[:, None])[:, int(true.argmin())]
    looks, best = values.argmin(1), values.argmax(1)
    numbers = [x.gather(1, looks[:, None])[:, 0].tolist() for x in (values, errors)]
    lowest_looking = zip(*numbers, sizes[looks].tolist(), strict=True)
    naive = [interval(value, error, size, case.bounds, level) for value, error, size in lowest_looking]
    naive_worst = sum(one <= true.min().item() <= other for one, other in naive) / samples
    least, most = apart(values, ends, level)
    gap = true.max() - true.min()
    around = 1.96 * (errors.gather(1, looks[:, None]).square() + errors.gather(1, best[:, None]).square()).sqrt()[:, 0]
    apart_by = values.amax(1) - values.amin(1)
    naive_gap = (gap - apart_by).abs() <= around
    return Found(
        together.double().mean().item(),
        worst.double().mean().item(),
        naive_worst,
        ((least <= gap + 1e-12) & (gap <= most)).double().mean().item(),
        naive_gap.double().mean().item(),
        possible.double().mean().item(),
        (values.amin(1).mean() - true.min()).item(),
    )


def main(samples: int = 10_000) -> None:
    """Print a table in Markdown."""
    print(f"Shares in % of {samples:,} samples in which 95 % intervals hold.\n")
    print("| groups | all together | worst | naive | gap | naive | bias of the smallest |")
    print("|---|---|---|---|---|---|---|")
    for case in cases():
        f = simulate(case, samples)
        shares = [f"{100 * share:.1f}" for share in (f.together, f.worst, f.naive_worst, f.gap, f.naive_gap)]
        print(f"| {case.name} | {' | '.join(shares)} | {f.bias:+.3f} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
