"""Formulas: several cut-offs at once, options beside each other, what they read, and `torch.compile`."""

import os
import shutil

import pytest
import torch

import torchrecmetrics as trm
from torchrecmetrics import functional

WITHOUT_K = ("auroc", "r_precision")
WITH_K = sorted(set(functional.__all__) - set(WITHOUT_K))


TWO_OF_DEPTH_5 = trm.Ranks(torch.tensor([[1, 5]]), depth=5).ranking()


def test_a_list_of_cutoffs_gives_a_row_for_each_in_its_order():
    assert functional.recall(TWO_OF_DEPTH_5, [5, 1, 3]).tolist() == [[2 / 2], [1 / 2], [1 / 2]]


def test_cutoffs_may_be_a_range():
    assert functional.precision(TWO_OF_DEPTH_5, range(2, 4)).tolist() == [[1 / 2], [1 / 3]]


def many_ranks():
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
CUTOFFS = [10, 1, 3, 40, 10]
WITH_OPTIONS = [pytest.param(name, opts, id=f"{name} {opts}") for name in WITH_K for opts in OPTIONS.get(name, [{}])]


@pytest.mark.parametrize("kind", [*INPUTS, "many ranks"])
@pytest.mark.parametrize(("name", "options"), WITH_OPTIONS)
def test_values_at_several_cutoffs_equal_those_at_each_alone_on_random_rows(kind, name, options):
    function, batch = getattr(functional, name), (INPUTS | {"many ranks": many_ranks})[kind]()
    values = function(batch.ranking(), CUTOFFS, **options)
    expected = torch.stack([function(batch.ranking(), k, **options) for k in CUTOFFS])

    torch.testing.assert_close(values, expected, rtol=1e-14, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", INPUTS)
def test_a_ranking_that_was_read_before_gives_the_values_of_a_fresh_one(kind):
    """A value cached for one formula or option is not used for another."""
    batch = INPUTS[kind]()
    read = batch.ranking()

    def values(ranking, name, options):
        return getattr(functional, name)(ranking, CUTOFFS, **options).nan_to_num(-1)

    cases = [case.values for case in WITH_OPTIONS]
    assert not [case for case in cases if not values(read, *case).equal(values(batch.ranking(), *case))]


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
def test_each_cutoff_of_a_list_is_checked(name, cutoffs, error, message):
    with pytest.raises(error, match=message):
        getattr(functional, name)(TWO_OF_DEPTH_5, cutoffs)


@pytest.mark.parametrize("scores", [torch.zeros(1, 3), None], ids=["scores", "None"])
@pytest.mark.parametrize("name", functional.__all__)
def test_functions_say_how_what_is_no_ranking_becomes_one(name, scores):
    cutoff = () if name in WITHOUT_K else (2,)

    with pytest.raises(TypeError, match=rf"{name} reads a Ranking, got .*: {name}\(Scores\(scores, target\).ranking"):
        getattr(functional, name)(scores, *cutoff)


@pytest.mark.parametrize(
    ("name", "cutoff"),
    [*((name, ()) for name in WITHOUT_K), *((name, (k,)) for name in WITH_K for k in (1, [1, 3]))],
    ids=str,
)
@pytest.mark.parametrize("target", [[[1, 2], [-1, -1]], [[1], [-1]]], ids=str)
def test_formulas_are_nan_in_rows_without_a_relevant_item_alone(name, cutoff, target):
    ranking = trm.Scores(torch.tensor([[0.1, 0.9, 0.5, 0.3]] * 2), torch.tensor(target)).ranking()
    values = getattr(functional, name)(ranking, *cutoff)

    assert values[..., 0].isfinite().all()
    assert values[..., 1].isnan().all()


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("name", functional.__all__)
@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("k", [10, (3, 10)])
def test_functions_compile_as_a_whole_graph(name, kind, k):
    function, ranking = getattr(functional, name), INPUTS[kind]().ranking()
    cutoff = () if name in WITHOUT_K else (k,)
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    expected = function(ranking, *cutoff)
    first, second = (compiled(ranking, *cutoff) for _ in range(2))

    torch.testing.assert_close([first, second], [expected, expected], rtol=0, atol=0, equal_nan=True)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="no C++ compiler")
def test_inductor_gives_the_same_numbers(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    ranking = INPUTS["graded"]().ranking()
    torch._dynamo.reset()
    values = torch.compile(functional.ndcg, fullgraph=True)(ranking, 10)

    assert values.tolist() == pytest.approx(functional.ndcg(ranking, 10).tolist(), nan_ok=True)
