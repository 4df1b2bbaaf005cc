"""Scores against sorting one user at a time: ties, padding, dtypes, shapes, top-k ranks, and refused arguments."""

import math
import os
import subprocess
import sys
from functools import partial

import pytest
import torch
from rankings import rank_lists, rank_scores

import torchrecmetrics as trm
from torchrecmetrics.inputs import targets
from torchrecmetrics.inputs.scores import INVALID_RANK
from torchrecmetrics.kernels import eager

INF, NAN = math.inf, math.nan
SCORES = torch.tensor([[0.1, 0.9, 0.5], [0.3, 0.2, 0.1]])
TARGET = torch.tensor([[2, 0], [1, -1]])


def test_topk_ranks_by_hand(device):
    """Rank 1 is first, k + 1 is not in the top k, 0 is padding, and the smallest int64 marks a row with bad values."""
    scores = torch.tensor([[0.1, 0.9, 0.5, 0.3], [0.4, 0.3, 0.2, 0.1]], device=device)
    for dtype in (torch.int64, torch.int32, torch.int16):
        target = torch.tensor([[0, 2, -1], [0, 1, 3]], dtype=dtype, device=device)
        ranks = trm.get_topk_ranks(scores, target, 2)
        assert ranks.tolist() == [[3, 2, 0], [1, 2, 3]]
        assert (ranks.dtype, ranks.depth, ranks.device) == (torch.int64, 2, scores.device)
        assert trm.get_topk_ranks(scores, target[:, 1], 9, exclude=target[:, 0]).tolist() == [[2], [1]]
    assert trm.get_topk_ranks(scores, target[:, :0], 2).shape == (2, 0)
    scores[0, 1] = NAN
    ranks = trm.get_topk_ranks(scores, target, 2, validate_args="deferred")
    assert ranks.tolist() == [[INVALID_RANK] * 3, [1, 2, 3]]


@pytest.mark.parametrize(
    ("ties", "expected"),
    [("optimistic", [2, 4, 3]), ("pessimistic", [4, 6, 5]), ("realistic", [3, 6, 4])],  # realistic: ceil(1 + i * 6 / 4)
)
def test_topk_ranks_number_ties_by_item(ties, expected, device):
    """Three targets among five equal scores behind one better item are numbered by item id, whatever their order."""
    scores = torch.tensor([[9.0, 1, 1, 1, 1, 1]], device=device)
    ranks = trm.get_topk_ranks(scores, torch.tensor([[1, 5, 3]], device=device), 6, ties=ties)
    assert ranks.tolist() == [expected]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_dtypes_and_strides(dtype, device, generator):
    """Scores are compared as they are, in their dtype and layout, and are never modified."""
    dense = torch.randn(7, 301, generator=generator).to(device, dtype)
    target = torch.randint(0, 301, (7, 1), generator=generator).to(device)
    exclude = torch.arange(301, device=device) % 7 == 3
    for scores in (dense, dense.T.contiguous().T, dense.repeat_interleave(2, 1)[:, ::2], dense[:1].expand(7, 301)):
        before, target_scores = scores.clone(), scores.gather(1, target)
        better = (scores > target_scores).sum(1, keepdim=True)
        equal = (scores == target_scores).sum(1, keepdim=True)
        assert torch.equal(trm.Scores(scores, target).ranking().ranks, better + (equal + 1).double() / 2)
        trm.Scores(scores, target, exclude=(exclude, target)).ranking(overlap="miss")
        assert torch.equal(scores, before)


@pytest.mark.parametrize("height", [1, 3])
@pytest.mark.parametrize("max_relevant", [None, 40])
def test_tiles_do_not_show(height, max_relevant, monkeypatch, generator):
    """Ranks are the same, however the scores are cut into tiles by rows and by columns."""
    scores = torch.randint(0, 30, (11, 97), generator=generator).float()
    dense = torch.rand(11, 97, generator=generator) < 0.1
    exclude = torch.rand(11, 97, generator=generator) < 0.2
    expected = trm.Scores(scores, dense, exclude=exclude).ranking(overlap="miss")

    def tiny(matrix, wide):
        width = 10 if matrix.is_floating_point() or height == 1 else matrix.shape[1]
        for top in range(0, len(matrix), height):
            for left in range(0, matrix.shape[1], width):
                here = slice(top, top + height), slice(left, left + width)
                yield here, matrix[here]

    monkeypatch.setattr(eager, "tiles", tiny)
    monkeypatch.setattr(targets, "tiles", tiny)
    got = trm.Scores(scores, dense, exclude=exclude).ranking(overlap="miss", max_relevant=max_relevant)
    assert torch.equal(got.ranks[:, : expected.ranks.shape[1]], expected.ranks)
    assert torch.equal(got.num_ranked, expected.num_ranked)


@pytest.mark.nightly
def test_more_items_than_int32(monkeypatch):
    """Item ids and columns beyond 2^31 are ranked correctly.

    The scores are one number seen through an expanded view, of which only the last 100 columns are counted.
    """
    items = 2**31 + 10

    def last_tile(matrix, *_):
        here = slice(0, 1), slice(items - 100, items)
        yield here, matrix[here]

    monkeypatch.setattr(eager, "tiles", last_tile)
    scores = torch.zeros(1, 1).expand(1, items)
    ranking = trm.Scores(scores, torch.tensor([2**31 + 5]), exclude=torch.tensor([[2**31 + 6]])).ranking()
    assert ranking.num_ranked.tolist() == [99]
    assert ranking.ranks.tolist() == [[50]]
    with pytest.raises(ValueError, match=f"row 0 holds {items} of {items} items"):
        trm.Scores(scores, torch.tensor([items])).ranking()


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("width", [1, 100])
def test_memory_beside_the_scores(width):
    """Memory beside the scores does not grow with B x I: it stays below 64 MB.

    As whole matrices the scores would take 600 MB with one target per row, and 120 MB with 100. The C allocator gives
    freed tensors back to the system, so that only memory in use at one time counts.
    """
    program = f"""
import resource, torch, torchrecmetrics as trm
scores = torch.rand(1, 300_000).expand(500, 300_000)
target = torch.randint(0, 300_000, (500, 1)) + torch.arange({width})
exclude = torch.zeros(300_000, dtype=torch.bool)
metric = trm.RecMetricCollection(["HR", "NDCG", "AUROC"], k=10)
metric.update(scores[:8], target[:8] % 300_000, exclude=exclude)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = 500 if {width} == 1 else 100
metric.update(scores[:rows], target[:rows] % 300_000, exclude=exclude)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}
    call = [sys.executable, "-c", program]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert int(done.stdout) < 64


def test_the_padding_item_is_no_candidate_and_not_relevant():
    ranking = trm.Scores(torch.tensor([[0.9, 0.5, 0.1]]), torch.tensor([[0, 2]])).ranking(padding_idx=0)

    assert (ranking.ranks.tolist(), ranking.num_relevant.tolist()) == ([[2, INF]], [1])


def test_no_rows_and_no_target_columns(device):
    """An empty batch is a Ranking of no rows, and one without a target column has ranks of width T = 1."""
    for target in (torch.empty(0, 3, dtype=torch.int64), torch.empty(0, 5, dtype=torch.bool)):
        ranking = trm.Scores(torch.empty(0, 5, device=device), target.to(device)).ranking()
        assert len(ranking) == 0
        assert ranking.ranks.shape[1] >= 1
    none = torch.empty(2, 0, dtype=torch.int64, device=device)
    for gains in (None, none):
        assert trm.Scores(torch.rand(2, 5, device=device), none, gains).ranking().ranks.tolist() == [[INF], [INF]]


@pytest.mark.parametrize("sorts", [True, False])
def test_nan_is_worse_than_every_number(sorts, monkeypatch, device):
    """Unchecked, an item with a NaN score takes no rank, and is never a hit as a target (torch.topk ranks it first)."""
    monkeypatch.setattr(eager, "choose_strategy", lambda *_: eager.sort if sorts else eager.compare_all)
    scores = torch.tensor([[NAN, 0.2, 0.9], [0.1, NAN, -INF]], device=device)
    target = torch.tensor([[0, 1]] * 2, device=device)
    for exclude in (None, torch.tensor([[0], [0]], device=device)):
        ranking = trm.Scores(scores, target, exclude=exclude).ranking(overlap="keep", validate_args=False)
        assert ranking.ranks.tolist() == [[2.0, INF], [1.0, INF]]
        assert ranking.num_ranked.tolist() == [2, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("threshold", [0.1, -0.1, 3.5, 0.0])
def test_score_threshold_is_not_rounded(dtype, threshold):
    """Scores of any dtype are compared with the threshold itself, not with its nearest neighbour in that dtype."""
    near = torch.tensor(threshold, dtype=dtype)
    up, down = (torch.nextafter(near, torch.tensor(x, dtype=dtype)) for x in (INF, -INF))
    scores = torch.stack([down, near, up])[None]
    ranking = trm.Scores(scores, torch.tensor([0])).ranking(score_threshold=threshold)
    assert ranking.num_recommended.item() == sum(float(s) >= threshold for s in scores[0])


@pytest.mark.parametrize("dtype", [torch.bool, torch.float16])
@pytest.mark.parametrize("max_relevant", [3, 40])
def test_dense_targets_without_a_look(dtype, max_relevant, monkeypatch, generator):
    """Dense targets rank the same where values may not be read, and a row with too many relevant items is left out."""
    dense = (torch.rand(300, 97, generator=generator) < 0.05).to(dtype)
    dense[0] = 0
    scores = torch.rand(dense.shape, generator=generator)
    read = partial(rank_scores, scores, dense, max_relevant=max_relevant, validate_args="deferred")
    found = read()
    monkeypatch.setattr(targets, "can_sync", lambda _: False)
    expected = read()
    for name in ("ranks", "num_relevant", "unreachable"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert torch.equal(found.rows.valid, expected.rows.valid)
    number = dense.bool().sum(1)
    assert torch.equal(found.rows.valid, number <= max_relevant)
    assert torch.equal(found.num_relevant[found.rows.valid], number[found.rows.valid].double())


@pytest.mark.parametrize("max_relevant", [None, 3, 50])
def test_dense_targets_are_id_targets(max_relevant, device, generator):
    """Dense targets, bool [B, I] or graded floats [B, I], rank like item ids with gains."""
    scores = torch.randn(4, 6, generator=generator).to(device)
    graded = torch.tensor([[0.0, 2, 0, 0, 0, 3], [0] * 6, [1, 0, 0, 0, 0, 0], [0, 0, 0, 5, 0, 1]], device=device)
    ids = torch.tensor([[5, 1], [-1, -1], [0, -1], [3, 5]], device=device)
    gains = torch.tensor([[3, 2], [0, 0], [1, 0], [5, 1]], device=device)
    expected = trm.Scores(scores, ids, gains=gains).ranking()
    for target in (graded, graded > 0):
        ranking = trm.Scores(scores, target).ranking(max_relevant=max_relevant)
        assert torch.equal(ranking.ranks[:, :2], expected.ranks)
        assert ranking.num_relevant.tolist() == [2, 0, 1, 2]
        if target is graded:
            assert torch.equal(ranking.gains[:, :2], expected.gains)


@pytest.mark.parametrize("ratings", [None, torch.tensor([1, 0, 2, 2, 3])])
def test_a_selection_is_its_items(ratings, device):
    """`Interactions.select` as a target gives item ids and gains (test_exclude.py: as a history, ids alone)."""
    edges = torch.tensor([[0, 0, 1, 2, 2], [4, 5, 4, 0, 1]], device=device)
    ratings = None if ratings is None else ratings.to(device)
    seen = trm.Interactions.from_edge_index(edges, 3, 6, ratings).select([0, 1, 2])
    scores = torch.rand(3, 6, generator=torch.Generator().manual_seed(0)).to(device)
    for make, ranked in ((rank_scores, scores), (rank_lists, scores.argsort(1, descending=True))):
        got, expected = make(ranked, seen), make(ranked, seen.items, gains=seen.values)
        assert torch.equal(got.ranks, expected.ranks)
        assert torch.equal(trm.functional.ndcg(got, 3), trm.functional.ndcg(expected, 3))
    if ratings is None:
        assert torch.equal(trm.get_topk_ranks(scores, seen, 3), trm.get_topk_ranks(scores, seen.items, 3))
    else:
        with pytest.raises(TypeError, match=r"takes no gains, but target has values: pass target\.items"):
            trm.get_topk_ranks(scores, seen, 3)
        with pytest.raises(ValueError, match=r"gains= needs a target without values: pass target\.items"):
            trm.NDCG(3).to(device).update(scores, seen, gains=seen.values)


@pytest.mark.parametrize("gain", [-INF, NAN, -1.0])
def test_gains_of_padding_are_not_read(gain):
    """The gain beside a padding id may be anything: a hit at rank 1, a penalty at rank 2 or 3, and no more."""
    target, gains = torch.tensor([[0, 1, -1]]), torch.tensor([[1.0, -1.0, gain]])
    ranking = trm.Scores(torch.tensor([[0.9, 0.8, 0.8]]), target, gains=gains).ranking()
    assert trm.functional.ndcg(ranking).item() == pytest.approx(1 - (1 / math.log2(3) + 1 / math.log2(4)) / 2)


@pytest.mark.parametrize("width", [1, 12, 120])
def test_many_rows_in_any_layout_and_context(width, generator):
    """Many rows rank like a few at a time, also in column-major layout and with another default device."""
    scores = torch.randn(300, 2000, generator=generator)
    target = torch.stack([torch.randperm(2000, generator=generator)[:width] for _ in range(300)])
    by_column = [matrix.T.contiguous().T for matrix in (scores, target)]
    options = {"depth": 9, "items": True, "score_threshold": 0.2}
    few = [trm.Scores(scores[i : i + 3], target[i : i + 3]).ranking(**options) for i in range(0, 300, 3)]
    with torch.device("meta"):  # which would raise if a tensor were made there
        whole = [trm.Scores(*arguments).ranking(**options) for arguments in ((scores, target), by_column)]
    for ranking in whole:
        for name in ("ranks", "items", "num_recommended"):
            assert torch.equal(getattr(ranking, name), torch.cat([getattr(rows, name) for rows in few]))
    ranks = trm.get_topk_ranks(*by_column, 9)
    few_ranks = [trm.get_topk_ranks(scores[i : i + 3], target[i : i + 3], 9) for i in range(0, 300, 3)]
    assert torch.equal(ranks, torch.cat(few_ranks))
    for layout in (ranks, ranks.T.contiguous().T):
        assert torch.equal(trm.Ranks(layout, depth=9).ranking().ranks, whole[0].ranks)


WHOLE_TARGETS = {
    "grades": (torch.tensor([[3, 1, 4, 0, 2], [0, 1, 2, 3, 4], [4, 3, 2, 1, 0]]), torch.Tensor.float),
    "grades of one row": (torch.tensor([[0, 1, 2, 3, 4]], dtype=torch.int16), torch.Tensor.float),
    "two items": (torch.tensor([[0, 1], [1, 0]]), torch.Tensor.bool),
}


@pytest.mark.parametrize(("target", "cure"), WHOLE_TARGETS.values(), ids=WHOLE_TARGETS)
def test_ids_of_all_items_in_all_rows_are_refused(target, cure):
    """Integers that hold every item in every row could be grades, and every metric would be 1; the cures work."""
    items = target.shape[1]
    scores = torch.rand(target.shape, generator=torch.Generator().manual_seed(1))
    message = r"holds every item in every row \(.*target.float\(\), .*target.bool\(\); .* -1\): row 0 is \["
    metric = trm.NDCG(3)
    for call in (metric.update, metric, trm.RecMetricCollection("NDCG", k=3).update, partial(trm.get_topk_ranks, k=3)):
        with pytest.raises(ValueError, match=message):
            call(scores, target)
    metric.update(scores, cure(target))
    graded = trm.NDCG(3)
    graded.update(scores, torch.arange(items).expand(target.shape), gains=target)
    assert metric.compute().item() == pytest.approx(graded.compute().item())
    deferred = trm.NDCG(3, validate_args="deferred")
    deferred.update(scores, target)
    with pytest.raises(ValueError, match=f"NDCG@3: bad input .*: {len(target)} rows? whose target holds every item"):
        deferred.compute()
    trm.NDCG(3).to("meta").update(scores.to("meta"), target.to("meta"))  # reads no value
    trm.NDCG(3, validate_args=False).update(scores, target)


def test_ids_of_all_items_where_they_are_certain():
    """Padded, jagged and selected ids, gains beside ids, and a row with fewer items leave one reading."""
    whole = torch.arange(3).expand(2, 3)
    edges = torch.stack([torch.arange(2).repeat_interleave(3), torch.arange(3).repeat(2)])
    targets = [
        torch.nn.functional.pad(whole, (0, 1), value=-1),
        (whole.reshape(-1), torch.tensor([0, 3, 6])),
        trm.Interactions.from_edge_index(edges, 2, 3).select([0, 1]),
        torch.tensor([[0, 1, 2], [0, 1, -1]]),
        torch.ones(2, 3, dtype=torch.bool),
    ]
    for target in targets:
        trm.NDCG(3).update(SCORES, target)
    trm.NDCG(3).update(SCORES, whole, gains=whole)
    trm.HR(1).update(SCORES[:, :1], torch.tensor([[0], [0]]))


BAD_ROWS = [
    ({"target": torch.tensor([0, 3])}, "1 of 2 rows with a target id beyond.*row 1 holds 3"),
    ({"target": torch.tensor([[1, 1], [0, 2]])}, "twice in target: row 0 holds item 1"),
    ({"target": torch.tensor([[1, 2], [0, 0]])}, "twice in target: row 1 holds item 0"),
    ({"target": torch.tensor([[2, 2, 0]] * 2)}, r"pass grades .* as target.float\(\)"),
    ({"target": torch.tensor([[0, 1, 1], [1, 0, 0]])}, r"0/1 matrix: pass target.bool\(\)"),
    (
        {"scores": SCORES[:1, :2].expand(8, 2), "target": torch.tensor([[0, 1], [1, 0]] * 4)},
        r"8 of 8 rows whose target holds every item .* a 0/1 matrix target.bool\(\); if",
    ),
    ({"target": torch.tensor([[1, -2.0, 0], [1, 0, 0]])}, r"1 of 2 rows with a label below 0.*row 0 holds"),
    ({"target": torch.tensor([[1, 0, NAN]] * 2)}, "with a gain that is NaN or infinite"),
    ({"target": SCORES > 0, "max_relevant": 2}, "more relevant items than max_relevant: row 0 has 3 > 2"),
    ({"gains": torch.tensor([[1, NAN], [1, 1]])}, "with a gain that is NaN or infinite"),
    ({"scores": SCORES.where(SCORES < 0.9, NAN)}, "NaN or .inf: the highest of row 0 is nan"),
    ({"exclude": torch.tensor([[0], [7]])}, "excluded id beyond.*row 1 excludes 7 of 3"),
    (
        {"exclude": torch.tensor([[2], [1]])},
        "2 of 2 rows with a target that is also excluded: 2 pairs, such as item 2 in row 0.*'keep'.*'miss'",
    ),
]


@pytest.mark.parametrize(("change", "message"), BAD_ROWS)
def test_bad_rows(change, message):
    """A bad row raises; with deferred checks it is rejected and counted under its kind, and others are unchanged."""
    arguments = {"scores": SCORES, "target": TARGET} | change
    with pytest.raises(ValueError, match=message):
        rank_scores(**arguments)
    ranking = rank_scores(**arguments, validate_args="deferred")
    assert ranking.rows.violations.sum() == (~ranking.rows.valid).sum() > 0
    assert torch.equal(trm.functional.recall(ranking, 1).isnan(), ~ranking.rows.valid)
    assert (ranking.num_relevant[ranking.rows.valid] > 0).all()


BYTES = (SCORES > 0).to(torch.uint8)
BAD_ARGUMENTS = [
    ({"scores": SCORES[0]}, ValueError, r"scores must be \[rows, items\].*got shape \[3\]"),
    ({"scores": SCORES[None]}, ValueError, r"scores\[:, -1\]"),
    ({"scores": SCORES[:, :0]}, ValueError, "at least one item"),
    ({"scores": SCORES.long()}, TypeError, r"got a torch.int64 tensor.*Lists\(item_ids, target\)"),
    ({"target": TARGET[:1]}, ValueError, r"target ids must be \[2\] or \[2, T\].*got \[1, 2\]"),
    ({"target": BYTES}, TypeError, r"pass target.bool\(\), target.float\(\)"),
    ({"target": TARGET.to(torch.uint8)}, TypeError, "int64, int32 or int16, got a torch.uint8"),
    ({"target": torch.ones(2, 4)}, ValueError, r"dense and must have the scores' shape \[2, 3\]"),
    ({"target": SCORES > 0, "gains": SCORES}, ValueError, "gains= is for id targets"),
    ({"target": TARGET.to("meta")}, ValueError, "target is on meta, but the scores .* are on cpu"),
    ({"gains": torch.ones(2)}, ValueError, r"gains must be numbers in the shape of target \[2, 2\]"),
    ({"exclude": SCORES}, TypeError, "exclude must hold int64, int32 or int16, got a torch.float32"),
    ({"exclude": BYTES}, TypeError, r"uint8.*ids are exclude.long\(\), a mask is exclude.bool\(\)"),
    ({"exclude": torch.ones(2, 4).bool()}, ValueError, r"bool exclude must be \[3\] or \[2, 3\].*\[2, 4\]"),
    ({"padding_idx": 3}, ValueError, r"padding_idx must be an item id in 0..2, got 3"),
    ({"depth": 0}, ValueError, "depth must be at least 1, got 0"),
    ({"score_threshold": -INF}, ValueError, "score_threshold must be finite"),
    ({"validate_args": 1}, ValueError, "validate_args must be True, False or 'deferred'"),  # though 1 == True
]


@pytest.mark.parametrize(("change", "error", "message"), BAD_ARGUMENTS)
def test_bad_arguments(change, error, message):
    """`Scores` refuses bad arguments, each with its type of error and a message with the cure."""
    with pytest.raises(error, match=message):
        rank_scores(**{"scores": SCORES, "target": TARGET} | change)


@pytest.mark.parametrize(
    ("k", "target", "error", "message"),
    [
        *((k, TARGET, ValueError, f"k must be at least 1, got {k}") for k in (0, -3)),
        *((k, TARGET, TypeError, "k must be an integer >= 1, got") for k in (True, 2.0, "5", None)),
        (2**53, TARGET, ValueError, f"k must be below 2\\^53, .*, got {2**53}"),  # k + 1 and k are one float64
        (2, SCORES > 0, TypeError, "target with scores of get_topk_ranks must be item ids"),
    ],
)
def test_bad_arguments_of_topk_ranks(k, target, error, message):
    with pytest.raises(error, match=message):
        trm.get_topk_ranks(SCORES, target, k)


def nested(layout):
    return torch.nested.nested_tensor([torch.tensor([1.0, 2.0]), torch.tensor([0.0])], layout=layout)


CALLS_OF_INPUTS = [
    ("target", "-1", lambda value: trm.get_topk_ranks(SCORES, value, 2)),
    ("target", "-1", lambda value: trm.Lists(TARGET, value).ranking()),
    ("item_ids", "-1", lambda value: trm.Lists(value, TARGET).ranking()),
    ("exclude", "-1", lambda value: trm.Lists(TARGET, TARGET, exclude=value).ranking()),
]
CALLS_WITH_IDS = [
    ("target", "-1", lambda value: trm.HR(2).update(SCORES, value)),
    ("exclude", "-1", lambda value: trm.HR(2).update(SCORES, TARGET, exclude=(value, TARGET))),
    *CALLS_OF_INPUTS,
]
CALLS_WITH_NUMBERS = [
    ("scores", "-torch.inf", lambda value: trm.HR(2).update(value, TARGET)),
    ("gains", "0", lambda value: trm.HR(2).update(SCORES, TARGET, gains=value)),
    ("weights", "0", lambda value: trm.HR(2).update(SCORES, TARGET, weights=value)),
    ("ranks", "-1", lambda value: trm.HR(2).update(trm.Ranks(value, complete=True))),
]
ALL_CALLS = CALLS_WITH_IDS + CALLS_WITH_NUMBERS
NESTED = r"NAME is a nested tensor.*: pass torch.nested.to_padded_tensor\(NAME, PADDING\)"
CONTAINERS = {
    "nested": (lambda: nested(torch.strided), NESTED, ALL_CALLS),
    "jagged": (lambda: nested(torch.jagged), NESTED, [call for call in CALLS_WITH_NUMBERS if call[0] != "gains"]),
    "sparse": (TARGET.to_sparse, r"NAME is sparse \(torch.sparse_coo\): pass .*NAME.to_dense\(\)", ALL_CALLS),
    "numpy": (
        TARGET.numpy,
        r"NAME must be a.* tensor, got ndarray.* torch.as_tensor\(NAME\)",
        CALLS_OF_INPUTS,
    ),  # update takes them
    "list": (TARGET.tolist, r"NAME must be a.* tensor, got list.* torch.as_tensor\(NAME\)", ALL_CALLS),
    "scipy": (
        lambda: pytest.importorskip("scipy.sparse").csr_matrix((2, 3)),
        r"got csr_matrix: pass Interactions.from_scipy\(NAME\).select\(user_ids\).items",
        CALLS_WITH_IDS,
    ),
    "frame": (
        lambda: pytest.importorskip("pandas").DataFrame({"user": [0], "item": [1]}),
        r"got DataFrame: pass Interactions.from_columns\(NAME\['user'\], .*\).select\(user_ids\).items",
        CALLS_WITH_IDS,
    ),
    "interactions": (
        lambda: trm.Interactions.from_padded(TARGET, 3),
        r"must be a tensor, got Interactions: pass NAME.select\(user_ids\).items",
        CALLS_WITH_IDS,
    ),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("name", CONTAINERS)
def test_what_is_no_tensor_is_told_how_it_becomes_one(name):
    """Every argument refuses other containers with a message that says how to convert them."""
    make, message, calls = CONTAINERS[name]
    for argument, padding, call in calls:
        with pytest.raises(TypeError, match=message.replace("NAME", argument).replace("PADDING", padding)):
            call(make())
