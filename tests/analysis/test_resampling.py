"""Sums of units with random signs: functions of ids, of all parts, and their normal limit for many units."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples

import torchrecmetrics as trm
from torchrecmetrics.analysis import resampling

stats = pytest.importorskip("scipy.stats")


def test_hashes_do_not_change():
    """Hashes are splitmix64's (its published first outputs from 0) and BLAKE2b's, so files of other versions pair."""
    import hashlib

    first = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    steps = torch.arange(3) * resampling._GOLDEN
    assert [h % 2**64 for h in resampling.hashes(steps).tolist()] == first
    word = int.from_bytes(hashlib.blake2b("ü".encode(), digest_size=8).digest(), "little")
    assert resampling.hashes(["ü"]).item() % 2**64 == word


def test_signs_are_random():
    """Signs have mean 0, and are uncorrelated with neighbours, other resamples and seeds."""
    keys = resampling.hashes(torch.arange(4000))
    z = resampling.signs(keys, 5, 0, 8)
    assert z.shape == (4000, 512)
    assert z.unique().tolist() == [-1, 1]
    assert z.mean().abs() < 4 / z.numel() ** 0.5
    for direction in (0, 1):
        assert (z.mean(direction).abs() * z.shape[direction] ** 0.5).max() < 5
    for other in (z.roll(1, 0), z.roll(1, 1), resampling.signs(keys, 6, 0, 8)):
        assert (z * other).mean().abs() < 5 / z.numel() ** 0.5
    assert torch.equal(resampling.signs(keys, 5, 1, 1), z[:, 64:128])


def units(values, numbers=None):
    """Return units of values [columns, units]."""
    return resampling.Units(torch.arange(values.shape[1]) if numbers is None else numbers, values)


def random(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=examples(25), deadline=None)
@given(cuts=st.lists(st.integers(0, 700), max_size=5), resamples=st.integers(1, 600), seed=st.integers(0, 2**62))
def test_sums_of_any_parts(cuts, resamples, seed):
    """Sums are those of the parts, however units are divided, and fewer resamples are the first of more resamples."""
    keys, values = resampling.hashes(torch.arange(700)), random(3, 700, seed=seed % 1000)
    whole = resampling.flipped_sums(keys, [units(values)], resamples, seed)
    assert whole.shape == (resamples, 3)
    parts = [
        resampling.flipped_sums(keys[a:b], [units(values[:, a:b])], resamples, seed)
        for a, b in pairwise([0, *sorted(cuts), 700])
    ]
    assert torch.allclose(sum(parts), whole, rtol=0, atol=1e-11)
    more = resampling.flipped_sums(keys, [units(values)], resamples + 70, seed)
    assert torch.allclose(more[:resamples], whole, rtol=0, atol=1e-11)


def test_tables_share_signs(monkeypatch):
    """A unit has the same sign in all tables, also where a table lacks units and where blocks are small."""
    keys, values, numbers = resampling.hashes(torch.arange(700)), random(2, 700), torch.arange(0, 700, 3)
    part = torch.zeros(2, 700, dtype=torch.float64)
    part[:, ::3] = values[:, ::3]
    expected = resampling.flipped_sums(keys, [units(torch.cat([values, part]))], 100, 4)
    monkeypatch.setattr(resampling, "_BLOCK", 64)
    tables = [units(values), units(values[:, ::3].contiguous(), numbers)]
    assert torch.allclose(resampling.flipped_sums(keys, tables, 100, 4), expected, rtol=0, atol=1e-11)


def test_all_flips():
    """All 2^n - 1 combinations of signs appear once each; the one without a minus is left out."""
    values = torch.tensor([[1.0, 2.0, 4.0]]).double()
    assert sorted(resampling.all_flips(values)[:, 0].tolist()) == [-7, -5, -3, -1, 1, 3, 5]


class TestManyUnits:
    """Beyond 10,000 units, sums of small units are drawn from the normal limit of their flips."""

    def test_covariance(self):
        """The sums have mean 0 and the covariance of the flips, the sum of products; equal columns are equal."""
        values = random(3, 20_000) - 0.3
        values[2] = values[0]
        part = units(values[1:2, 5000:9000].contiguous(), torch.arange(5000, 9000))
        sums = resampling.flipped_sums(resampling.hashes(torch.arange(20_000)), [units(values), part], 40_000, 1)
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

    def test_large_units_are_flipped(self):
        """Of a column with 12 units among 20,000, all are flipped with their own signs, also beside another column."""
        keys = resampling.hashes(torch.arange(20_000))
        values = torch.zeros(2, 20_000, dtype=torch.float64)
        values[0, ::1700] = torch.arange(1.0, 13).double()
        values[1] = random(20_000)
        expected = resampling.flipped_sums(keys[::1700], [units(values[:1, ::1700].contiguous())], 500, 7)
        sums = resampling.flipped_sums(keys, [units(values)], 500, 7)
        assert torch.allclose(sums[:, 0], expected[:, 0], rtol=0, atol=1e-11)
        assert sums[:, 1].std() == pytest.approx(values[1].square().sum().item() ** 0.5, rel=0.15)
        assert not torch.allclose(sums[:, 1].round(), sums[:, 1])

    def test_columns_without_a_difference(self):
        """A column of zeros has sums of 0, and does not disturb the others."""
        values = torch.stack([torch.zeros(20_000).double(), random(20_000)])
        sums = resampling.flipped_sums(resampling.hashes(torch.arange(20_000)), [units(values)], 200, 0)
        assert sums[:, 0].abs().max() == 0
        assert sums[:, 1].isfinite().all()


def test_threads_are_given_back():
    """Resampling runs on one thread and then restores their number, also after errors."""
    before, rows = torch.get_num_threads(), trm.Rows({"a": random(40)}, torch.arange(40))
    torch.set_num_threads(3)
    try:
        with resampling.one_thread(), resampling.one_thread():
            assert torch.get_num_threads() == 1
        with pytest.raises(ValueError, match="level"):
            trm.compare({"a": rows, "b": rows}, level=2)
        trm.compare({"a": rows, "b": rows})
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
