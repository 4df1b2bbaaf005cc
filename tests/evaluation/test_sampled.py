"""`bound_sampled` agrees with a linear program over all ranks and with simulations, `propensity` with its formula."""

import math

import numpy as np
import pytest
import torch

import torchrecmetrics as trm
from torchrecmetrics.evaluation import sampled

optimize = pytest.importorskip("scipy.optimize")
stats = pytest.importorskip("scipy.stats")


def draw(true_ranks, num_items, num_negatives, seed):
    """Draw sampled ranks of rows that have `true_ranks` among all items."""
    generator = np.random.default_rng(seed)
    better = generator.hypergeometric(true_ranks - 1, num_items - true_ranks, num_negatives)
    return torch.from_numpy(better) + 1


def rank_law(number, num_items, rows, seed):
    """Draw ranks from one of 20 laws: powers, mixtures of hits and other ranks, and one rank for all rows."""
    generator = np.random.default_rng(seed)
    uniform = generator.random(rows)
    if number < 10:
        return 1 + (uniform ** (0.5 + number) * (num_items - 1)).astype(int)
    if number < 16:
        hit = generator.random(rows) < 0.1 * (number - 9)
        return np.where(hit, generator.integers(1, 11, rows), 11 + (uniform**2 * (num_items - 11)).astype(int))
    return np.full(rows, [1, 10, 11, num_items][number - 16])


def test_distribution_is_scipys():
    """The probability of each sampled rank, for every true rank, is that of scipy."""
    law = sampled._Law(30, 7)
    ranks = np.arange(1, 31)
    expected = stats.hypergeom.pmf(np.arange(8)[:, None], 29, ranks[None] - 1, 7)
    assert law.exactly(ranks) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", ["HR@3", "MRR", "NDCG@5"])
def test_equals_a_program_over_all_ranks(metric, monkeypatch):
    """The bounds are those of a program over all ranks, however few of its columns the search begins with."""
    num_items, num_negatives, rows = 60, 9, 150
    ranks = draw(rank_law(3, num_items, rows, 0), num_items, num_negatives, 0)
    values = sampled._values(metric, num_items)
    table = sampled._Law(num_items, num_negatives).at_most(np.arange(1, num_items + 1))
    seen = np.bincount(ranks - 1, minlength=num_negatives + 1).cumsum()[:-1] / rows
    width = math.sqrt(math.log(2 / 0.05) / (2 * rows))
    monkeypatch.setattr(sampled, "_GRID", 5)
    found = trm.bound_sampled(ranks, metric, num_items=num_items, num_negatives=num_negatives)
    for sign, bound in ((1, found.low), (-1, found.high)):
        program = optimize.linprog(
            sign * values,
            A_ub=np.concatenate([table, -table]),
            b_ub=np.concatenate([np.clip(seen + width, 0, 1), -np.clip(seen - width, 0, 1)]),
            A_eq=np.ones((1, num_items)),
            b_eq=[1],
        )
        assert bound == pytest.approx(sign * program.fun, abs=1e-6)
        assert sign * bound <= program.fun + 1e-9  # a certified bound is never inside the program's
    assert found.low <= found.estimate <= found.high


@pytest.mark.parametrize(
    "number",
    [number if number in (2, 12, 18) else pytest.param(number, marks=pytest.mark.nightly) for number in range(20)],
)
def test_bounds_hold_the_truth(number):
    """In 20 draws of 300 rows at least 19 intervals of 95 % hold HR@10 of the law, because the band is wide."""
    num_items, num_negatives = 500, 50
    values = sampled._values("HR@10", num_items)
    truth = values[rank_law(number, num_items, 20_000, 99) - 1].mean()
    held = 0
    for seed in range(20):
        ranks = draw(rank_law(number, num_items, 300, seed), num_items, num_negatives, seed)
        found = trm.bound_sampled(ranks, "HR@10", num_items=num_items, num_negatives=num_negatives)
        held += found.low - 1e-9 <= truth <= found.high + 1e-9
    assert held >= 19


def test_all_items_as_negatives_are_the_full_ranking():
    """With every other item as a negative, only the band around the value of the full ranking remains."""
    ranks = torch.tensor([1, 2, 30, 4] * 500)
    found = trm.bound_sampled(ranks, "HR@3", num_items=40, num_negatives=39)
    assert found.low < 0.5 < found.high < found.low + 0.1
    assert found.estimate == pytest.approx(0.5, abs=1e-3)


def test_bounds_are_values_of_the_metric():
    """Bounds lie between the lowest and the highest value of the metric, the lower one first."""
    found = trm.bound_sampled(torch.tensor([1, 2, 3] * 10), "HR@500", num_items=100, num_negatives=9)
    assert (found.low, found.high) == (1, 1)


RANKS = torch.tensor([1, 2, 3])
GOOD = {"ranks": RANKS, "metric": "HR@10", "num_items": 100, "num_negatives": 10}


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"num_negatives": 100}, ValueError, "num_negatives must be below num_items, got 100 of 100"),
        ({"ranks": RANKS - 1}, ValueError, "ranks must be 1 to 11, got 0 to 2; if they start at 0, pass ranks"),
        ({"ranks": RANKS.float()}, TypeError, "ranks must hold int64"),
        ({"ranks": RANKS[:0]}, ValueError, r"ranks must be \[n\], one per row, got \[0\]"),
        ({"level": 1}, ValueError, "level must be between 0 and 1, got 1"),
        ({"metric": ["HR@10", "MRR"]}, ValueError, "metric must be one metric, such as 'HR@10'"),
        ({"metric": "MedianRank"}, ValueError, "'MRR', 'AUROC' or 'MeanRank', a mean over rows .* got MedianRank"),
        ({"metric": trm.Missing(10)}, ValueError, "a mean over rows that reads ranks alone, got Missing@10"),
        ({"ranks": torch.full((100_000,), 6)}, ValueError, "no law of ranks gives these sampled ranks"),
    ],
)
def test_bad_input(changed, error, message):
    """The error message says which value was given and which ones are accepted."""
    with pytest.raises(error, match=message):
        trm.bound_sampled(**(GOOD | changed))


@pytest.mark.parametrize("gamma", [1.0, 1.5, 2])
def test_propensity_is_a_power_of_popularity(gamma):
    """The propensity is (n / max n) ** ((gamma + 1) / 2), as in Yang et al., and 1 for items without interactions."""
    popularity = torch.tensor([9.0, 3, 1, 0])
    expected = [(n / 9) ** ((gamma + 1) / 2) if n else 1 for n in (9, 3, 1, 0)]
    assert trm.propensity(popularity, gamma).tolist() == pytest.approx(expected)
    assert trm.propensity(popularity.long(), gamma=gamma).dtype == torch.float64


@pytest.mark.parametrize(
    ("popularity", "gamma", "error", "message"),
    [
        ([1, 2], 1, TypeError, "popularity must be a tensor of numbers"),
        (torch.tensor([[1]]), 1, ValueError, r"popularity must be \[items\], got \[1, 1\]"),
        (torch.tensor([1, -1]), 1, ValueError, "finite and 0 or more"),
        (torch.tensor([1, 1]), -1, ValueError, "gamma must be a number above -1, got -1"),
    ],
)
def test_propensity_refuses(popularity, gamma, error, message):
    with pytest.raises(error, match=message):
        trm.propensity(popularity, gamma)
    with pytest.raises(TypeError, match="gamma"):
        trm.propensity(torch.tensor([1]))
