"""Formulas: several cut-offs at once, options beside each other, what they read, and `torch.compile`."""

import os
import shutil

import pytest
import torch

import torchrecmetrics as trm
from torchrecmetrics import functional

WITHOUT_K = ("auroc", "r_precision")
WITH_K = sorted(set(functional.__all__) - set(WITHOUT_K))


def large():
    """Return so many ranks that they are searched, not compared."""
    generator = torch.Generator().manual_seed(1)
    ranks = torch.rand(2**12, 45, generator=generator).argsort(1)[:, :9]
    return trm.Ranks(ranks, num_ranked=50, complete=True)


INPUTS = {
    "scores": lambda: trm.Scores(torch.rand(5, 40), torch.rand(5, 40) < 0.2),
    "graded": lambda: trm.Scores(torch.rand(5, 40).round(decimals=1), torch.randint(0, 4, (5, 40)).float()),
    "ranks": lambda: trm.Ranks(torch.tensor([[1, 5, 0], [2, 30, 11]]), num_ranked=40, complete=True),
}
OPTIONS = {
    "precision": [{}, {"normalize": "min"}, {"denominator": "recommended", "zero_division": 1.0}],
    "recall": [{}, {"normalize": "min"}, {"weighted": True}, {"zero_division": 1.0}],
    "f1": [{}, {"normalize": "min"}, {"denominator": "recommended"}],
    "average_precision": [{}, {"normalize": "min"}],
    "ndcg": [{}, {"gain": "exponential"}],
}


@pytest.mark.parametrize("kind", [*INPUTS, "large"])
@pytest.mark.parametrize("name", WITH_K)
def test_several_cutoffs_are_each_of_them(kind, name):
    """A list of cut-offs gives [K, B], one row per cut-off, in the order of the list.

    Cached results of one option are not used for another: a ranking that was read before equals a fresh one.
    """
    cutoffs, batch = [10, 1, 3, 40, 10], (INPUTS | {"large": large})[kind]()
    function, read = getattr(functional, name), batch.ranking()
    for options in OPTIONS.get(name, [{}]):
        got = function(batch.ranking(), cutoffs, **options)
        expected = torch.stack([function(batch.ranking(), k, **options) for k in cutoffs])

        torch.testing.assert_close(got, expected, rtol=1e-14, atol=0, equal_nan=True)
        assert torch.equal(function(read, cutoffs, **options).nan_to_num(-1), got.nan_to_num(-1))


@pytest.mark.parametrize("name", WITH_K)
@pytest.mark.parametrize(
    ("cutoffs", "error", "message"),
    [
        ([3, 6], ValueError, "depth 5 only"),
        ([6, 3], ValueError, "depth 5 only"),
        ((3, 0), ValueError, "at least 1, got 0"),
        ([], ValueError, "no cut-off"),
        (["3"], TypeError, "'3'"),
        ("12", TypeError, "k must be an integer >= 1"),
        (torch.tensor([1, 2]), TypeError, "k must be an integer >= 1"),  # no cut-offs by row either
        (torch.tensor([1, 2]).numpy(), TypeError, "k must be an integer >= 1"),
    ],
)
def test_cutoffs_are_checked_one_by_one(name, cutoffs, error, message):
    ranking = trm.Ranks(torch.tensor([[1, 5]]), depth=5).ranking()

    with pytest.raises(error, match=message):
        getattr(functional, name)(ranking, cutoffs)


def test_cutoffs_may_be_a_range():
    ranking = trm.Ranks(torch.tensor([[1, 5]]), depth=5).ranking()

    assert functional.precision(ranking, range(2, 4)).tolist() == [[1 / 2], [1 / 3]]


@pytest.mark.parametrize("name", functional.__all__)
def test_functions_ask_for_a_ranking(name):
    """A function that is given something else than a Ranking says how scores become one."""
    cut = () if name in WITHOUT_K else (2,)
    message = rf"{name} reads a Ranking, got .*: {name}\(Scores\(scores, target\).ranking\(\)"
    for scores in (torch.rand(1, 3), None):
        with pytest.raises(TypeError, match=message):
            getattr(functional, name)(scores, *cut)


@pytest.mark.parametrize("name", functional.__all__)
@pytest.mark.parametrize("width", [1, 2])
def test_formulas_are_nan_without_a_relevant_item(name, width):
    """Formulas are nan in rows without a relevant item, and only there, for one cut-off and for several."""
    target = torch.tensor([[1, 2], [-1, -1]])[:, :width]
    ranking = trm.Scores(torch.tensor([[0.1, 0.9, 0.5, 0.3]] * 2), target).ranking()
    for k in [()] if name in WITHOUT_K else [(1,), ([1, 3],)]:
        values = getattr(functional, name)(ranking, *k)
        assert values[..., 1].isnan().all()
        assert values[..., 0].isfinite().all()


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("name", functional.__all__)
@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("k", [10, (3, 10)])
def test_functions_compile(name, kind, k):
    """`torch.compile(fullgraph=True)` takes every function on every kind of ranking, in a first and a second call."""
    function, ranking = getattr(functional, name), INPUTS[kind]().ranking()
    args = () if name in WITHOUT_K else (k,)
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
    ranking = INPUTS["graded"]().ranking()
    torch._dynamo.reset()
    got = torch.compile(functional.ndcg, fullgraph=True)(ranking, 10)
    assert got.tolist() == pytest.approx(functional.ndcg(ranking, 10).tolist(), nan_ok=True)
