"""Sums of units with random signs, and their normal limit for many units."""

import contextlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples

import torchrecmetrics as trm
from torchrecmetrics.results import pairing

stats = pytest.importorskip("scipy.stats")


def units(values, numbers=None):
    """Return units of values [columns, units]."""
    return pairing.Units(torch.arange(values.shape[1]) if numbers is None else numbers, values)


def random(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_signs_are_plus_and_minus_with_mean_0():
    """Of all, of each resample and of each unit."""
    signs = pairing.signs(4000, 512, torch.Generator().manual_seed(5))

    assert (signs.shape, signs.unique().tolist()) == ((4000, 512), [-1, 1])
    assert signs.mean().abs() < 4 / signs.numel() ** 0.5
    assert [(signs.mean(along).abs() * signs.shape[along] ** 0.5).max() < 5 for along in (0, 1)] == [True, True]


def test_signs_are_uncorrelated_with_neighbours_other_resamples_and_other_draws():
    generator = torch.Generator().manual_seed(5)
    signs = pairing.signs(4000, 512, generator)
    others = signs.roll(1, 0), signs.roll(1, 1), signs.roll(8, 1), pairing.signs(4000, 512, generator)

    assert max((signs * other).mean().abs() for other in others) < 5 / signs.numel() ** 0.5


@settings(max_examples=examples(25), deadline=None)
@given(
    n=st.integers(0, 700),
    resamples=st.integers(1, 600),
    seed=st.integers(0, 2**62),
    block=st.sampled_from([65_536, 256, 512]),
)
def test_a_unit_has_one_sign_in_all_columns_and_tables(n, resamples, seed, block):
    """The signs of units that are told apart by their column give back the sums of any other column and table."""
    values, single = random(3, n, seed=seed % 1000), torch.eye(n, dtype=torch.float64)
    third = torch.arange(0, n, 3)
    tables = [units(values), units(values[:, third], third)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairing, "_BLOCK", block)
        signs = pairing.flipped_sums([units(single)], n, resamples, seed)
        sums = pairing.flipped_sums(tables, n, resamples, seed)
    expected = torch.cat([signs @ values.T, signs[:, third] @ values[:, third].T], 1)

    assert (signs.shape, set(signs.flatten().tolist()) <= {-1.0, 1.0}) == ((resamples, n), True)
    assert torch.allclose(sums, expected, rtol=0, atol=1e-11)


def test_sums_of_many_units_are_normal_with_the_covariance_of_the_flips():
    """The third column is the first one, and the last one has some units of the second one."""
    values = random(3, 20_000) - 0.3
    values[2] = values[0]
    part = units(values[1:2, 5000:9000].contiguous(), torch.arange(5000, 9000))
    sums = pairing.flipped_sums([units(values), part], 20_000, 40_000, 1)
    dense = torch.zeros(4, 20_000, dtype=torch.float64)
    dense[:3], dense[3, 5000:9000] = values, values[1, 5000:9000]
    scale = dense.square().sum(1).sqrt()
    probabilities = [0.001, 0.025, 0.5, 0.975, 0.999]
    shares = [(sums[:, 1] <= scale[1] * end).double().mean().item() for end in stats.norm.ppf(probabilities)]

    assert shares == pytest.approx(probabilities, abs=0.006)
    assert ((sums.T @ sums / 40_000 - dense @ dense.T) / scale / scale[:, None]).abs().max() < 0.025
    assert torch.allclose(sums[:, 2], sums[:, 0], rtol=0, atol=3e-4 * scale[0].item())


def test_large_units_among_many_are_flipped():
    """The sums of 6 units among 20,000 are those of all 2^6 signs, beside a column of small ones and one of 0."""
    values = torch.zeros(3, 20_000, dtype=torch.float64)
    values[0, ::3400] = 2.0 ** torch.arange(6)
    values[1] = random(20_000)
    large, small, none = pairing.flipped_sums([units(values)], 20_000, 5000, 7).T

    assert large.unique().tolist() == list(range(-63, 64, 2))
    assert small.std() == pytest.approx(values[1].square().sum().item() ** 0.5, rel=0.05)
    assert none.abs().max() == 0


@pytest.mark.parametrize("options", [{}, {"level": 2}], ids=["done", "refused"])
def test_compare_runs_on_one_thread_and_gives_the_others_back(options, monkeypatch):
    rows, set_to = trm.Rows({"a": random(40)}, torch.arange(40)), []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    with contextlib.suppress(ValueError):
        trm.compare({"a": rows, "b": rows}, **options)

    assert set_to == [1, 3]
