"""Formulas: several cut-offs at once, options beside each other, what they read, and `torch.compile`."""

import os
import shutil

import pytest
import torch

import torchrecmetrics as trm
from torchrecmetrics import functional


def test_one_ranking_serves_every_option(generator):
    """Cached results of one option are not used for another: a ranking that was read before equals a fresh one."""
    scores, graded = torch.rand(4, 30, generator=generator), torch.randint(0, 4, (4, 30), generator=generator).float()
    read = trm.Scores(scores, graded).ranking()
    for function, options in (
        (functional.ndcg, {"gain": "linear"}),
        (functional.ndcg, {"gain": "exponential"}),
        (functional.recall, {"weighted": True}),
        (functional.recall, {"normalize": "min"}),
        (functional.average_precision, {"normalize": "min"}),
    ):
        for k in (3, 10):
            fresh = trm.Scores(scores, graded).ranking()
            assert torch.equal(function(read, k, **options), function(fresh, k, **options))


RANKINGS = {
    "scores": lambda: trm.Scores(torch.rand(5, 40), torch.rand(5, 40) < 0.2).ranking(),
    "graded": lambda: trm.Scores(torch.rand(5, 40).round(decimals=1), torch.randint(0, 4, (5, 40)).float()).ranking(),
    "ranks": lambda: trm.Ranks(torch.tensor([[1, 5, 0], [2, 30, 11]]), num_ranked=40).ranking(),
}
OPTIONS = {
    "precision": [{}, {"normalize": "min"}, {"denominator": "recommended", "zero_division": 1.0}],
    "recall": [{}, {"normalize": "min"}, {"weighted": True}],
    "f1": [{}, {"normalize": "min"}, {"denominator": "recommended"}],
    "average_precision": [{}, {"normalize": "min"}],
    "ndcg": [{}, {"gain": "exponential"}],
}


@pytest.mark.parametrize("name", sorted(set(functional.__all__) - {"auroc", "r_precision"}))
@pytest.mark.parametrize("kind", [*RANKINGS, "large"])
def test_several_cutoffs_are_each_of_them(name, kind):
    """A list of cut-offs gives [K, B], one row per cut-off, in the order of the list."""
    cutoffs = [10, 1, 3, 40, 10]
    for options in OPTIONS.get(name, [{}]):
        ranking = (RANKINGS | {"large": large})[kind]()
        got = getattr(functional, name)(ranking, cutoffs, **options)
        ranking._cache.clear()
        expected = torch.stack([getattr(functional, name)(ranking, k, **options) for k in cutoffs])
        torch.testing.assert_close(got, expected, rtol=1e-14, atol=0, equal_nan=True)


def large():
    """Return so many ranks that they are searched, not compared."""
    generator = torch.Generator().manual_seed(1)
    ranks = torch.rand(2**12, 45, generator=generator).argsort(1)[:, :9]
    return trm.Ranks(ranks, num_ranked=50).ranking()


def test_cutoffs_are_checked_one_by_one():
    ranking = trm.Ranks(torch.tensor([[1, 5]]), depth=5).ranking()
    for several in ([3, 6], [6, 3]):
        with pytest.raises(ValueError, match="depth 5 only"):
            functional.ndcg(ranking, several)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        functional.ndcg(ranking, (3, 0))
    with pytest.raises(TypeError, match="'3'"):
        functional.ndcg(ranking, ["3"])
    for name in sorted(set(functional.__all__) - {"auroc", "r_precision"}):
        function = getattr(functional, name)
        for several in (torch.tensor([1, 2]), torch.tensor([1, 2]).numpy(), "12"):  # no cut-offs by row either
            with pytest.raises(TypeError, match="k must be an integer >= 1"):
                function(ranking, several)
        with pytest.raises(ValueError, match="no cut-off"):
            function(ranking, [])
        assert torch.equal(function(ranking, range(2, 4)), function(ranking, [torch.tensor(2), 3]))
    with pytest.raises(TypeError, match="got None"):
        functional.precision(ranking, None)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("name", functional.__all__)
@pytest.mark.parametrize("kind", RANKINGS)
@pytest.mark.parametrize("k", [pytest.param(10, marks=pytest.mark.nightly), (3, 10)])
def test_functions_compile(name, kind, k):
    """`torch.compile(fullgraph=True)` takes every function on every kind of ranking, in a first and a second call."""
    function = getattr(functional, name)
    ranking = RANKINGS[kind]()
    args = () if name in ("auroc", "r_precision") else (k,)
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(ranking, *args).nan_to_num(-1), function(ranking, *args).nan_to_num(-1))


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="no C++ compiler")
def test_inductor(tmp_path, monkeypatch):
    """The default backend of `torch.compile` gives the same numbers."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    ranking = RANKINGS["graded"]()
    torch._dynamo.reset()
    got = torch.compile(functional.ndcg, fullgraph=True)(ranking, 10)
    assert got.tolist() == pytest.approx(functional.ndcg(ranking, 10).tolist(), nan_ok=True)


@pytest.mark.parametrize("name", trm.functional.__all__)
@pytest.mark.parametrize("width", [1, 2])
def test_formulas_are_nan_without_a_relevant_item(name, width):
    """Formulas are nan in rows without a relevant item, and only there, for one cut-off and for several."""
    target = torch.tensor([[1, 2], [-1, -1]])[:, :width]
    ranking = trm.Scores(torch.tensor([[0.1, 0.9, 0.5, 0.3]] * 2), target).ranking()
    formula = getattr(trm.functional, name)
    for k in [()] if name in ("auroc", "r_precision") else [(1,), ([1, 3],)]:
        values = formula(ranking, *k)
        assert values[..., 1].isnan().all()
        assert values[..., 0].isfinite().all()
