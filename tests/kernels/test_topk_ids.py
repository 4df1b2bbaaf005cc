"""The k best items of each row against a stable sort in plain Python, for many kinds of input."""

import importlib
import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from sizes import examples
from torch._subclasses import FakeTensorMode

from torchrecmetrics.kernels import blocks, topk_ids

module = importlib.import_module("torchrecmetrics.kernels.topk_ids")  # as an attribute the name is the function
INF, NAN = math.inf, math.nan
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def expected(scores, k, masks=(), excluded=None):
    """Return the list of each row: candidates by falling score, then by id, padded with -1."""
    lists = []
    for row, values in enumerate(scores.tolist()):
        gone = set() if excluded is None else set(excluded[row].tolist())
        for mask in masks:
            gone |= {item for item, out in enumerate((mask[row] if mask.dim() == 2 else mask).tolist()) if out}
        ids = [item for item, score in enumerate(values) if score > -INF and item not in gone]
        ids = sorted(ids, key=lambda item: (-values[item], item))[:k]
        lists.append(ids + [-1] * (min(k, len(values)) - len(ids)))
    return lists


@st.composite
def problems(draw):
    """Draw scores with ties, -inf, NaN and +inf in all dtypes and layouts, k, masks and excluded ids."""
    rows, items = draw(st.integers(0, 5)), draw(st.sampled_from([1, 2, 5, 23, 64, 100, 131]))
    choose = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    levels = draw(
        st.sampled_from([[1.0], [0.0, 1, 2], [-INF, -1, 0, 1], [-INF, 0, -0.0, 1, NAN, INF], [-INF], [NAN, 1]])
    )
    levels = torch.tensor(levels)
    if draw(st.booleans()):
        levels = torch.cat([levels, torch.randn(draw(st.sampled_from([5, 300])), generator=choose)])
    scores = levels[torch.randint(len(levels), (rows, items), generator=choose)].to(draw(st.sampled_from(DTYPES)))
    if draw(st.booleans()):  # the best items are neighbours, as if items were numbered by popularity
        scores = scores.sort(dim=1, descending=draw(st.booleans())).values
    layout = draw(st.sampled_from(["contiguous", "transposed", "strided", "expanded", "part"]))
    if layout == "transposed":
        scores = scores.T.contiguous().T
    elif layout == "strided":
        scores = scores.repeat_interleave(2, 1)[:, ::2]
    elif layout == "expanded" and rows:
        scores = scores[:1].expand(rows, items)
    elif layout == "part":
        scores = torch.cat([scores, scores[:, :1] + 1], 1)[:, :items]
    masks = [
        torch.rand(shape, generator=choose) < draw(st.sampled_from([0.1, 0.9]))
        for shape in draw(st.sampled_from([[], [(items,)], [(rows, items)], [(items,), (rows, items), (items,)]]))
    ]
    excluded = None
    if draw(st.booleans()):
        excluded = torch.randint(-2, items, (rows, draw(st.sampled_from([0, 1, 3, 150]))), generator=choose)
    return scores, draw(st.sampled_from([1, 2, 3, 7, 20, 99, 200])), masks, excluded


@settings(max_examples=examples(400), deadline=None)
@given(
    problem=problems(), block=st.sampled_from([2, 8, 64]), tile=st.sampled_from([1, 50, 2**20]), may_wait=st.booleans()
)
def test_lists_of_random_scores_are_those_of_a_stable_sort(problem, block, tile, may_wait):
    """For any size of blocks and pieces, with or without a look at values; scores are not written to."""
    scores, k, masks, excluded = problem
    before = scores.clone()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_ITEMS", block)
        patch.setattr(module, "TILE_SCORES_CPU", tile)
        patch.setattr(module, "can_sync", lambda values: may_wait)
        lists = topk_ids(scores, k, masks, excluded)

    assert lists.tolist() == expected(scores, k, masks, excluded)
    assert (lists.dtype, lists.shape) == (torch.int64, (len(scores), min(k, scores.shape[1])))
    assert torch.equal(scores.nan_to_num(nan=7), before.nan_to_num(nan=7))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("levels", [1, 3, 50, 10**6])
@pytest.mark.parametrize("k", [1, 20, 70])
def test_lists_of_many_blocks_of_equal_scores_are_exact(k, levels, dtype, device):
    torch.manual_seed(0)
    scores = torch.randint(levels, (7, 3001)).to(dtype)
    scores[3, :2990] = -INF
    scores[4, 100:200] = NAN
    scores[5] = -INF
    scores[6, 5::64] = INF

    assert topk_ids(scores.to(device), k).tolist() == expected(scores, k)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("items", "listed"), [(3, 3), (30, 20), (3000, 20)])
def test_scores_on_a_device_without_values_are_listed(items, listed, dtype):
    """On "meta", where reading a value raises."""
    scores = torch.empty(4, items, dtype=dtype, device="meta")
    mask, ids = scores.new_zeros(items, dtype=torch.bool), scores.new_zeros((4, 5), dtype=torch.int64)

    assert topk_ids(scores, 20, [mask], ids).shape == (4, listed)
    assert topk_ids(scores, 20, [mask.expand(4, -1)]).shape == (4, listed)


def test_fake_scores_are_listed():
    with FakeTensorMode():
        assert topk_ids(torch.empty(4, 3000), 20, [torch.zeros(3000, dtype=torch.bool)]).shape == (4, 20)


def test_lists_are_no_longer_than_the_items():
    assert topk_ids(torch.zeros(2, 1), 3).tolist() == [[0], [0]]
    assert topk_ids(torch.empty(2, 0), 3).shape == (2, 0)
    assert topk_ids(torch.empty(0, 5), 3).shape == (0, 3)


def test_the_lowest_finite_score_is_listed_and_minus_infinity_is_not():
    lowest = torch.finfo(torch.float32).min
    assert topk_ids(torch.tensor([[-INF, lowest]]), 2).tolist() == [[1, -1]]
