"""Sums of units with random signs, and their normal limit for many units."""

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


def test_signs_are_random():
    """Signs have mean 0, and are uncorrelated with neighbours, other resamples and other draws."""
    generator = torch.Generator().manual_seed(5)
    z = pairing.signs(4000, 512, generator)
    assert z.shape == (4000, 512)
    assert z.unique().tolist() == [-1, 1]
    assert z.mean().abs() < 4 / z.numel() ** 0.5
    for direction in (0, 1):
        assert (z.mean(direction).abs() * z.shape[direction] ** 0.5).max() < 5
    for other in (z.roll(1, 0), z.roll(1, 1), z.roll(8, 1), pairing.signs(4000, 512, generator)):
        assert (z * other).mean().abs() < 5 / z.numel() ** 0.5


@settings(max_examples=examples(25), deadline=None)
@given(
    n=st.integers(0, 700),
    resamples=st.integers(1, 600),
    seed=st.integers(0, 2**62),
    block=st.sampled_from([65_536, 256, 512]),
)
def test_a_unit_has_one_sign(n, resamples, seed, block):
    """The signs of units that are told apart by their column give back the sums of any other column and table."""
    values, single = random(3, n, seed=seed % 1000), torch.eye(n, dtype=torch.float64)
    third = torch.arange(0, n, 3)
    tables = [units(values), units(values[:, third], third)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairing, "_BLOCK", block)
        signs = pairing.flipped_sums([units(single)], n, resamples, seed)
        sums = pairing.flipped_sums(tables, n, resamples, seed)
    assert signs.shape == (resamples, n)
    assert set(signs.flatten().tolist()) <= {-1.0, 1.0}
    expected = torch.cat([signs @ values.T, signs[:, third] @ values[:, third].T], 1)
    assert torch.allclose(sums, expected, rtol=0, atol=1e-11)


def test_all_flips():
    """All 2^n - 1 combinations of signs appear once each; the one without a minus is left out."""
    values = torch.tensor([[1.0, 2.0, 4.0]]).double()
    assert sorted(pairing.all_flips([units(values)], 3)[:, 0].tolist()) == [-7, -5, -3, -1, 1, 3, 5]


def test_the_normal_limit():
    """Beyond 10,000 units, sums have mean 0 and the covariance of the flips; equal columns are equal."""
    values = random(3, 20_000) - 0.3
    values[2] = values[0]
    part = units(values[1:2, 5000:9000].contiguous(), torch.arange(5000, 9000))
    sums = pairing.flipped_sums([units(values), part], 20_000, 40_000, 1)
    dense = torch.zeros(4, 20_000, dtype=torch.float64)
    dense[:3], dense[3, 5000:9000] = values, values[1, 5000:9000]
    expected = dense @ dense.T
    scale = expected.diagonal().sqrt()
    assert (sums.mean(0) / scale).abs().max() < 4 / 40_000**0.5
    assert ((sums.T @ sums / 40_000 - expected) / scale / scale[:, None]).abs().max() < 0.025
    assert torch.allclose(sums[:, 2], sums[:, 0], rtol=0, atol=3e-4 * scale[0].item())
    quantiles = stats.norm.ppf([0.001, 0.025, 0.5, 0.975, 0.999])
    shares = [(sums[:, 1] / scale[1] <= quantile).double().mean().item() for quantile in quantiles]
    assert shares == pytest.approx([0.001, 0.025, 0.5, 0.975, 0.999], abs=0.006)


def test_large_units_are_flipped():
    """Of a column with 6 units among 20,000, sums are those of all 2^6 signs, beside a column of 0 and another."""
    values = torch.zeros(3, 20_000, dtype=torch.float64)
    values[0, ::3400] = 2.0 ** torch.arange(6)
    values[1] = random(20_000)
    sums = pairing.flipped_sums([units(values)], 20_000, 5000, 7)
    assert sums[:, 0].unique().tolist() == [float(odd) for odd in range(-63, 64, 2)]
    assert sums[:, 1].std() == pytest.approx(values[1].square().sum().item() ** 0.5, rel=0.05)
    assert sums[:, 2].abs().max() == 0


def test_threads_are_given_back():
    """Resampling runs on one thread and then restores their number, also after errors."""
    before, rows = torch.get_num_threads(), trm.Rows({"a": random(40)}, torch.arange(40))
    torch.set_num_threads(3)
    try:
        with pairing.one_thread(), pairing.one_thread():
            assert torch.get_num_threads() == 1
        with pytest.raises(ValueError, match="level"):
            trm.compare({"a": rows, "b": rows}, level=2)
        trm.compare({"a": rows, "b": rows})
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
