"""Scores against sorting one user at a time: ties, padding, dtypes, shapes, top-k ranks, and refused arguments."""

import math
from functools import partial

import hypothesis.strategies as st
import pytest
import reference
import torch
from hypothesis import given, settings
from rankings import batches, padded, rank_lists, rank_scores
from sizes import examples

import torchrecmetrics as trm
from torchrecmetrics.inputs import targets
from torchrecmetrics.inputs.scores import INVALID_RANK
from torchrecmetrics.kernels import eager

TIES = ("optimistic", "realistic", "pessimistic")


INF = math.inf


def pairs(ranks, gains):
    """Return (rank, gain) of each relevant item that was found."""
    return [(r, g) for r, g in zip(ranks.tolist(), gains.tolist(), strict=True) if r < INF]


def close(expected):
    return [pytest.approx(pair, abs=1e-12) for pair in expected]


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("buckets_from", [0, 128])
@settings(max_examples=examples(150), deadline=None)
@given(batch=batches(), padding=st.booleans(), overlap=st.sampled_from(["keep", "miss"]), form=st.integers(0, 3))
def test_equals_sorting(ties, buckets_from, batch, padding, overlap, form):
    """Ranks, gains, counts and flags equal those of sorting every user, for all forms of exclusion."""
    scores, targets, gains, history, items = batch
    padding_idx = 0 if padding else None
    exclude = padded(history, -1, torch.int64)
    dense = torch.zeros(len(scores), items, dtype=torch.bool)
    for row, ids in enumerate(history):
        dense[row, [i for i in ids if i >= 0 and i != padding_idx]] = True
    everywhere = torch.zeros(items, dtype=torch.bool)
    everywhere[items - 1] = form == 3
    exclude = (exclude, dense, (exclude, dense[:, :]), (exclude[:, :2], everywhere, dense))[form]
    patch = pytest.MonkeyPatch()
    patch.setattr(eager, "BUCKET_THRESHOLDS_CPU", buckets_from)
    ranking = trm.Scores(
        torch.tensor(scores, dtype=torch.float32).reshape(len(scores), items),
        padded(targets, -1, torch.int64),
        gains=padded(gains, 0.0, torch.float64),
        exclude=exclude,
    ).ranking(ties=ties, padding_idx=padding_idx, overlap=overlap, score_threshold=0.3)
    patch.undo()
    placed, unwanted = ranking.relevant.placed(torch.clone), ranking.penalties.placed(torch.clone)
    for row in range(len(scores)):
        out = set(history[row]) | ({items - 1} if form == 3 else set())
        gain = dict(zip(targets[row], gains[row], strict=True))
        user = reference.rank(scores[row], gain, out, ties, padding_idx, overlap, threshold=0.3)
        assert pairs(ranking.ranks[row], placed[row]) == close(user.hits)
        assert sorted(pairs(ranking.penalties.ranks[row], unwanted[row])) == close(sorted(user.unwanted))
        assert ranking.num_relevant[row] == len(user.gains)
        assert ranking.ideal_gains[row].tolist()[: len(user.gains)] == sorted(user.gains, reverse=True)
        assert ranking.num_ranked[row] == user.num_ranked
        assert ranking.num_recommended[row] == user.num_recommended
        assert bool(ranking.tied[row]) == user.tied
        assert bool(ranking.unreachable[row]) == user.unreachable


def test_topk_ranks_by_hand(device):
    """Rank 1 is first, k + 1 is not in the top k, and 0 is padding; ranks have the shape of the target and know k."""
    scores = torch.tensor([[0.1, 0.9, 0.5, 0.3], [0.4, 0.3, 0.2, 0.1]], device=device)
    ranks = trm.get_topk_ranks(scores, torch.tensor([[0, 2, -1], [0, 1, 3]], device=device), 2)
    assert ranks.tolist() == [[3, 2, 0], [1, 2, 3]]
    assert (ranks.dtype, ranks.depth, ranks.device) == (torch.int64, 2, scores.device)
    assert trm.get_topk_ranks(scores, torch.tensor([2, 0], device=device), 9).tolist() == [[2], [1]]


@pytest.mark.parametrize(
    ("ties", "expected"),
    [("optimistic", [2, 4, 3]), ("pessimistic", [4, 6, 5]), ("realistic", [3, 6, 4])],  # realistic: ceil(1 + i * 6 / 4)
)
def test_topk_ranks_number_ties_by_item(ties, expected, device):
    """Three targets among five equal scores behind one better item are numbered by item id, whatever their order."""
    scores = torch.tensor([[9.0, 1, 1, 1, 1, 1]], device=device)
    ranks = trm.get_topk_ranks(scores, torch.tensor([[1, 5, 3]], device=device), 6, ties=ties)
    assert ranks.tolist() == [expected]


@settings(max_examples=examples(60), deadline=None)
@given(batch=batches(), k=st.integers(1, 10), ties=st.sampled_from(TIES))
def test_topk_ranks_agree_with_the_ranking(batch, k, ties):
    """Sorted and cut at k, the integer ranks are those of Ranking rounded up: no hit at any cut-off differs."""
    scores, targets, _, history, items = batch
    args = torch.tensor(scores).reshape(len(scores), items), padded(targets, -1, torch.int64)
    options = {"exclude": padded(history, -1, torch.int64), "ties": ties, "overlap": "miss"}
    ranking = rank_scores(*args, **options, depth=k)
    ranks = trm.get_topk_ranks(*args, k, **options)
    assert torch.equal((ranks > 0).sum(1).double(), ranking.num_relevant)
    ascending = ranks.where((ranks > 0) & (ranks <= k), 10**6).sort(1).values
    assert torch.equal(ascending.clamp(max=10**6).double(), ranking.ranks.ceil().nan_to_num(posinf=10**6))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided", "expanded"])
def test_dtypes_and_strides(dtype, layout, device, generator):
    """Scores are compared as they are, in their dtype and layout, and are never modified."""
    scores = torch.randn(7, 301, generator=generator).to(device, dtype)
    scores = {
        "contiguous": scores,
        "transposed": scores.T.contiguous().T,
        "strided": scores.repeat_interleave(2, 1)[:, ::2],
        "expanded": scores[:1].expand(7, 301),
    }[layout]
    before = scores.clone()
    target = torch.randint(0, 301, (7, 1), generator=generator).to(device)
    own = scores.gather(1, target)
    better, same = (scores > own).sum(1, keepdim=True), (scores == own).sum(1, keepdim=True)
    exclude = torch.arange(301, device=device) % 7 == 3
    ranking = trm.Scores(scores, target).ranking()
    assert torch.equal(ranking.ranks, better + (same + 1).double() / 2)
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


def test_bad_scores_in_any_tile(monkeypatch):
    """A NaN score is found, wherever the scores are cut into tiles."""

    def single_columns(matrix, wide):
        for left in range(matrix.shape[1]):
            here = slice(0, len(matrix)), slice(left, left + 1)
            yield here, matrix[here]

    monkeypatch.setattr(eager, "tiles", single_columns)
    for column in range(3):
        scores = SCORES.clone()
        scores[1, column] = math.nan
        with pytest.raises(ValueError, match="the highest of row 1 is nan"):
            trm.Scores(scores, TARGET).ranking()


@pytest.mark.nightly
def test_more_items_than_int32(monkeypatch):
    """Item ids and columns beyond 2^31 are ranked correctly.

    The scores are one number seen through an expanded view, of which only the last 100 columns are counted.
    """
    items = 2**31 + 10

    def last_tile(matrix, wide):
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
    import os
    import subprocess
    import sys

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
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert int(done.stdout) < 64


def test_no_rows(device):
    """An empty batch is a Ranking of no rows."""
    for target in (torch.empty(0, 3, dtype=torch.int64), torch.empty(0, 5, dtype=torch.bool)):
        ranking = trm.Scores(torch.empty(0, 5, device=device), target.to(device)).ranking()
        assert len(ranking) == 0
        assert ranking.ranks.shape[1] >= 1


def test_no_target_columns(device):
    """A batch without a target column has ranks of width T = 1."""
    ranking = trm.Scores(torch.rand(2, 5, device=device), torch.empty(2, 0, dtype=torch.int64, device=device)).ranking()
    assert ranking.ranks.tolist() == [[INF], [INF]]


def test_minus_infinity_is_no_candidate(device):
    """An item at -inf is no candidate: with two candidates left, the worst relevant one has rank 2."""
    scores = torch.tensor([[0.5, -INF, 0.7, -INF]], device=device)
    ranking = trm.Scores(scores, torch.tensor([[0, 1]], device=device)).ranking()
    assert ranking.ranks.tolist() == [[2.0, INF]]
    assert (ranking.num_ranked.item(), ranking.num_relevant.item(), ranking.unreachable.item()) == (2, 2, True)


@pytest.mark.parametrize("buckets_from", [0, 128])
def test_nan_is_worse_than_every_number(buckets_from, monkeypatch, device):
    """Unchecked, an item with a NaN score takes no rank, and is never a hit as a target (torch.topk ranks it first)."""
    monkeypatch.setattr(eager, "BUCKET_THRESHOLDS_CPU", buckets_from)
    scores = torch.tensor([[math.nan, 0.2, 0.9], [0.1, math.nan, -INF]], device=device)
    assert scores.topk(1).indices.tolist() == [[0], [1]]
    for exclude in (None, torch.tensor([[0], [0]], device=device)):
        ranking = trm.Scores(scores, torch.tensor([[0, 1]] * 2, device=device), exclude=exclude).ranking(
            overlap="keep", validate_args=False
        )
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


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.float16])
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
    for name in ("ranks", "num_relevant", "unreachable", "valid"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    number = dense.bool().sum(1)
    assert torch.equal(found.valid, number <= max_relevant)
    assert torch.equal(found.num_relevant[found.valid], number[found.valid].double())


@pytest.mark.parametrize("max_relevant", [None, 3, 50])
def test_dense_targets_are_id_targets(max_relevant, device, generator):
    """Dense targets, bool [B, I] or graded floats [B, I], rank like item ids with gains."""
    scores = torch.randn(4, 6, generator=generator).to(device)
    graded = torch.tensor([[0.0, 2, 0, 0, 0, 3], [0] * 6, [1, 0, 0, 0, 0, 0], [0, 0, 0, 5, 0, 1]], device=device)
    ids = torch.tensor([[5, 1], [-1, -1], [0, -1], [3, 5]], device=device)
    gains = torch.tensor([[3, 2], [0, 0], [1, 0], [5, 1]], device=device)
    expected = trm.Scores(scores, ids, gains=gains).ranking()
    got = trm.Scores(scores, graded).ranking(max_relevant=max_relevant)
    width = min(expected.ranks.shape[1], got.ranks.shape[1])
    for a, b in ((got.ranks, expected.ranks), (got.gains, expected.gains)):
        assert torch.equal(a[:, :width], b[:, :width])
    binary = trm.Scores(scores, graded > 0).ranking(max_relevant=max_relevant)
    assert torch.equal(binary.ranks[:, :2], expected.ranks[:, :2])
    assert binary.num_relevant.tolist() == [2, 0, 1, 2]
    if device.type == "cpu":
        with pytest.raises(ValueError, match=r"row 0 holds .*\[0\.0|1 of 4 rows with a label below 0"):
            trm.Scores(scores, graded - 1 * (graded == 3) * 4).ranking(max_relevant=max_relevant)


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
def test_integer_dtypes(dtype, device):
    """Item ids may have any signed integer dtype above int8."""
    scores = torch.tensor([[0.1, 0.2, 0.3]], device=device)
    ids = torch.tensor([[1]], dtype=dtype, device=device)
    assert trm.get_topk_ranks(scores, ids, 3, exclude=ids + 1).tolist() == [[1]]


@pytest.mark.parametrize("history", [[[1, 2]], [[1, 2, 0, 0]], [[2, 1, 4, 3]]])
def test_padding_column_equals_no_padding_column(history, device):
    """Ids from 1 with padding_idx=0 rank like ids from 0 without a padding column, in padded and in full rows."""
    scores = torch.tensor([[9.0, 0.4, 0.3, 0.2, 0.1, 0.05]], device=device)
    history = torch.tensor(history, device=device)
    target = torch.tensor([[5]], device=device)
    one_based = trm.Scores(scores, target, exclude=history).ranking(padding_idx=0)
    zero_based = trm.Scores(scores[:, 1:], target - 1, exclude=history - 1).ranking()
    assert torch.equal(one_based.ranks, zero_based.ranks)
    assert torch.equal(one_based.num_ranked, zero_based.num_ranked)
    assert trm.Scores(scores, target).ranking(padding_idx=0).num_ranked.item() == 5


def test_padding_id_is_padding_in_target(device):
    """A target equal to padding_idx is no target."""
    ranking = trm.Scores(torch.rand(2, 4, device=device), torch.tensor([0, 1], device=device)).ranking(padding_idx=0)
    assert ranking.num_relevant.tolist() == [0, 1]


def test_excluding_ids_equals_masking(generator):
    """Excluding a list of ids equals scoring them -inf, also with repeats and padding in the list."""
    scores = torch.randint(0, 50, (64, 200), generator=generator).float()
    exclude = torch.randint(-3, 200, (64, 40), generator=generator)
    mask = torch.zeros(64, 201, dtype=torch.bool).scatter_(1, exclude.where(exclude >= 0, 200), True)[:, :200]
    target = torch.randint(0, 200, (64, 1), generator=generator)
    masked = trm.Scores(scores.masked_fill(mask, -INF), target).ranking()
    for form in (exclude, mask, (exclude[:, :20], mask), (exclude[:, :20], exclude[:, 20:])):
        got = trm.Scores(scores, target, exclude=form).ranking(overlap="miss")
        assert torch.equal(got.ranks, masked.ranks)
        assert torch.equal(got.num_ranked, masked.num_ranked)


@pytest.mark.parametrize("ratings", [None, torch.tensor([1, 0, 2, 2, 3])])
def test_a_selection_is_its_items(ratings, device):
    """`Interactions.select` gives item ids and, as a target, gains; as a history its ratings are ignored."""
    edges = torch.tensor([[0, 0, 1, 2, 2], [4, 5, 4, 0, 1]], device=device)
    ratings = None if ratings is None else ratings.to(device)
    seen = trm.Interactions.from_edge_index(edges, 3, 6, ratings).select([0, 1, 2])
    scores = torch.rand(3, 6, generator=torch.Generator().manual_seed(0)).to(device)
    lists, target = scores.argsort(1, descending=True), torch.tensor([[3], [2], [5]], device=device)
    mask = torch.arange(6, device=device) == 1
    for exclude, meant in ((seen, seen.items), ((mask, seen), (mask, seen.items))):
        for make, what in ((rank_scores, scores), (rank_lists, lists)):
            assert torch.equal(make(what, target, exclude=exclude).ranks, make(what, target, exclude=meant).ranks)
        metric, same = trm.MRR(3).to(device), trm.MRR(3).to(device)
        metric.update(scores, target, exclude=exclude)
        same.update(scores, target, exclude=meant)
        assert metric.compute() == same.compute()
        ranks = trm.get_topk_ranks(scores, target, 3, exclude=exclude)
        assert torch.equal(ranks, trm.get_topk_ranks(scores, target, 3, exclude=meant))
    for make, what in ((rank_scores, scores), (rank_lists, lists)):
        got, wanted = make(what, seen), make(what, seen.items, gains=seen.values)
        assert torch.equal(got.ranks, wanted.ranks)
        assert torch.equal(trm.functional.ndcg(got, 3), trm.functional.ndcg(wanted, 3))
    metric = trm.NDCG(3).to(device)
    metric.update(scores, seen, exclude=target)
    assert metric.compute() == trm.functional.ndcg(trm.Scores(scores, seen, exclude=target).ranking(), 3).mean()
    if ratings is None:
        assert torch.equal(trm.get_topk_ranks(scores, seen, 3), trm.get_topk_ranks(scores, seen.items, 3))
    else:
        with pytest.raises(TypeError, match=r"knows no gains, and target holds values: pass target\.items"):
            trm.get_topk_ranks(scores, seen, 3)
        with pytest.raises(ValueError, match=r"gains were given beside a target that holds values: pass target\.items"):
            metric.update(scores, seen, gains=seen.values)


@pytest.mark.parametrize("overlap", ["error", "keep", "miss"])
def test_what_is_not_relevant_may_be_excluded(overlap, device):
    """An excluded target with a gain of 0 or less is no overlap, and cannot be recommended."""
    scores = torch.tensor([[0.9, 0.8, 0.7, 0.6, 0.5]], device=device)
    target, gains = torch.tensor([[1, 0, 3]], device=device), torch.tensor([[1.0, -1.0, 0.0]], device=device)
    exclude = torch.tensor([[0, 3]], device=device)
    ranking = trm.Scores(scores, target, gains=gains, exclude=exclude).ranking(overlap=overlap)
    assert ranking.ranks.tolist() == [[1, INF, INF]]
    assert ranking.penalties.ranks.tolist() == [[INF, INF, INF]]


@pytest.mark.parametrize("gain", [-INF, math.nan, -1.0])
def test_gains_of_padding_are_not_read(gain):
    """The gain beside a padding id may be anything: a hit at rank 1, a penalty at rank 2 or 3, and no more."""
    target, gains = torch.tensor([[0, 1, -1]]), torch.tensor([[1.0, -1.0, gain]])
    ranking = trm.Scores(torch.tensor([[0.9, 0.8, 0.8]]), target, gains=gains).ranking()
    assert trm.functional.ndcg(ranking).item() == pytest.approx(1 - (1 / math.log2(3) + 1 / math.log2(4)) / 2)


@pytest.mark.parametrize("k", [2**53, 2**63])
def test_k_beyond_float64_is_refused(k):
    """k of 2^53 and above is refused, because k + 1 and k would be one rank in float64."""
    for make in (trm.HR, trm.MRR, lambda k: trm.get_topk_ranks(SCORES, TARGET, k)):
        with pytest.raises(ValueError, match=f"k must be below 2\\^53, .*, got {k}"):
            make(k)


@pytest.mark.parametrize(
    ("history", "padding_idx"),
    [
        (torch.zeros(2, 12, dtype=torch.int64), 0),
        (torch.eye(12)[:2].long(), 0),
        (torch.eye(12)[:2].long(), 1),
        (torch.tensor([[1] + [0] * 11, [2] * 12]), None),
    ],
)
def test_a_history_of_0_and_1_is_no_matrix(history, padding_idx):
    """A history as wide as the catalogue may hold only 0 and 1 if one is padding, or if another row holds more."""
    ranking = trm.Scores(torch.rand(2, 12), torch.tensor([3, 4]), exclude=history).ranking(padding_idx=padding_idx)
    assert len(ranking) == 2


def test_default_device_does_not_matter():
    """Tensors made on the CPU stay there, whatever the default device is (`meta` would raise)."""
    with torch.device("meta"):
        ranking = trm.Scores(SCORES, TARGET).ranking(score_threshold=0.2)
    assert ranking.num_recommended.tolist() == [2, 2]


def test_topk_ranks_of_no_targets():
    assert trm.get_topk_ranks(SCORES, TARGET[:, :0], 2).shape == (2, 0)


SCORES = torch.tensor([[0.1, 0.9, 0.5], [0.3, 0.2, 0.1]])


TARGET = torch.tensor([[2, 0], [1, -1]])


RANKING = trm.Scores(SCORES, TARGET).ranking(depth=2)


BAD_SCORES = {
    "not a tensor": ({"scores": [[0.1]]}, TypeError, "scores must be a tensor, got list"),
    "1-D": ({"scores": SCORES[0]}, ValueError, r"scores must be \[rows, items\].*got shape \[3\]"),
    "no items": ({"scores": SCORES[:, :0]}, ValueError, "at least one item"),
    "integer scores": ({"scores": SCORES.long()}, TypeError, r"got a torch.int64 tensor.*Lists\(item_ids, target\)"),
    "target not a tensor": ({"target": [[1]]}, TypeError, "target must be a tensor, got list"),
    "rows differ": ({"target": TARGET[:1]}, ValueError, r"target ids must be \[2\] or \[2, T\].*got \[1, 2\]"),
    "target list": ({"exclude": [[1]]}, TypeError, r"exclude must be a tensor, got list: torch.as_tensor\(exclude\)"),
    "3-D scores": ({"scores": SCORES[None]}, ValueError, r"scores\[:, -1\]"),
    "sparse": ({"target": (SCORES > 0).to_sparse()}, TypeError, r"target is sparse .*target.to_dense\(\)"),
    "int mask": ({"target": (SCORES > 0).to(torch.uint8)}, TypeError, r"pass target.bool\(\), target.float\(\)"),
    "grades as ids": ({"target": torch.tensor([[2, 2, 0]] * 2)}, ValueError, r"for grades .* pass target.float\(\)"),
    "exclude 0/1 matrix": (
        {"scores": torch.rand(2, 12), "exclude": torch.eye(12)[:2].long()},
        ValueError,
        r"2 of 2 rows whose exclude looks like a 0/1 matrix \(pass exclude.bool\(\)\)",
    ),
    "3-D target": ({"target": TARGET[None]}, ValueError, "target ids must be"),
    "uint8 target": ({"target": TARGET.to(torch.uint8)}, TypeError, "int64, int32 or int16, got a torch.uint8"),
    "int8 target": ({"target": TARGET.to(torch.int8)}, TypeError, "got a torch.int8"),
    "dense width": ({"target": torch.ones(2, 4)}, ValueError, r"dense and must have the scores' shape \[2, 3\]"),
    "dense with gains": ({"target": SCORES > 0, "gains": SCORES}, ValueError, "gains belong beside id targets"),
    "id too large": (
        {"target": torch.tensor([0, 3])},
        ValueError,
        "1 of 2 rows with a target id beyond.*row 1 holds 3",
    ),
    "duplicates": ({"target": torch.tensor([[1, 1], [0, 2]])}, ValueError, "twice in target: row 0 holds item 1"),
    "duplicates of 0": ({"target": torch.tensor([[1, 2], [0, 0]])}, ValueError, "twice in target: row 1 holds item 0"),
    "0/1 matrix": ({"target": torch.tensor([[0, 1, 1], [1, 0, 0]])}, ValueError, r"pass target.bool\(\)"),
    "gains shape": ({"gains": torch.ones(2)}, ValueError, r"gains must be numbers in the shape of target \[2, 2\]"),
    "gains NaN": ({"gains": torch.tensor([[1, math.nan], [1, 1]])}, ValueError, "with a gain that is NaN or infinite"),
    "graded NaN": ({"target": torch.tensor([[1, 0, math.nan]] * 2)}, ValueError, "with a gain that is NaN or infinite"),
    "NaN score": ({"scores": SCORES.where(SCORES < 0.9, math.nan)}, ValueError, "NaN or .inf: the highest of row 0"),
    "+inf score": ({"scores": SCORES.where(SCORES < 0.9, INF)}, ValueError, "1 of 2 rows with a score that is NaN or"),
    "exclude dtype": ({"exclude": SCORES}, TypeError, "exclude must hold int64, int32 or int16, got a torch.float32"),
    "exclude uint8": (
        {"exclude": (SCORES > 0).to(torch.uint8)},
        TypeError,
        r"got a torch.uint8 tensor of shape \[2, 3\]: ids are exclude.long\(\), a mask is exclude.bool\(\)",
    ),
    "exclude rows": ({"exclude": TARGET[:1]}, ValueError, r"exclude ids must be \[2\] or \[2, H\], got \[1, 2\]"),
    "exclude mask": (
        {"exclude": torch.ones(2, 4).bool()},
        ValueError,
        r"bool exclude must be \[3\] or \[2, 3\].*\[2, 4\]",
    ),
    "exclude id": ({"exclude": torch.tensor([[0], [7]])}, ValueError, "excluded id beyond.*row 1 excludes 7 of 3"),
    "overlap": (
        {"exclude": torch.tensor([[2], [1]])},
        ValueError,
        "2 of 2 rows with a target that is also excluded: 2 pairs, in row 0 item 2.*'keep'.*'miss'",
    ),
    "ties": (
        {"ties": "random"},
        ValueError,
        "ties must be one of 'expected', 'realistic', 'optimistic', 'pessimistic', got 'random'",
    ),
    "overlap option": ({"overlap": "drop"}, ValueError, "overlap must be one of"),
    "padding_idx": ({"padding_idx": 3}, ValueError, r"padding_idx must be an item id in 0..2, got 3"),
    "validate_args": ({"validate_args": "never"}, ValueError, "validate_args must be True, False or 'deferred'"),
    "max_relevant": ({"target": SCORES > 0, "max_relevant": 2}, ValueError, "more relevant items than max_relevant"),
    "depth": ({"depth": 0}, ValueError, "depth must be at least 1, got 0"),
    "padding type": ({"padding_idx": "0"}, TypeError, "padding_idx must be an item id, got '0'"),
    "threshold": ({"score_threshold": -INF}, ValueError, "score_threshold must be finite"),
    "validate 1": ({"validate_args": 1}, ValueError, "validate_args must be True, False or 'deferred'"),
    "device": ({"target": TARGET.to("meta")}, ValueError, "target is on meta, but the scores .* are on cpu"),
}


@pytest.mark.parametrize("name", BAD_SCORES)
def test_bad_scores(name):
    """`Scores` refuses bad arguments, each with its type of error and message."""
    given_, error, message = BAD_SCORES[name]
    arguments = {"scores": SCORES, "target": TARGET} | given_
    with pytest.raises(error, match=message):
        rank_scores(**arguments)


@pytest.mark.parametrize("k", [0, -3])
def test_k_below_one(k):
    with pytest.raises(ValueError, match=f"k must be at least 1, got {k}"):
        trm.get_topk_ranks(SCORES, TARGET, k)


@pytest.mark.parametrize("k", [True, 2.0, "5", None])
def test_k_not_an_integer(k):
    with pytest.raises(TypeError, match="k must be an integer >= 1, got"):
        trm.get_topk_ranks(SCORES, TARGET, k)


def held_by(name):
    """Return users x items, or a batch of ids, in a container that is no plain tensor."""
    if name == "jagged":
        return torch.nested.nested_tensor([torch.tensor([1, 2]), torch.tensor([0])], layout=torch.jagged)
    if name == "nested":
        return torch.nested.nested_tensor([torch.tensor([1, 2]), torch.tensor([0])])
    if name == "sparse":
        return TARGET.to_sparse()
    if name == "scipy":
        return pytest.importorskip("scipy.sparse").csr_matrix((2, 3))
    if name == "frame":
        return pytest.importorskip("pandas").DataFrame({"user": [0], "item": [1]})
    if name == "interactions":
        return trm.Interactions.from_padded(TARGET, 3)
    return {"numpy": TARGET.numpy(), "list": TARGET.tolist(), "string": "12"}[name]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "nested",
            r"NAME is a nested tensor of the strided layout: pass torch.nested.to_padded_tensor\(NAME, -1\), or",
        ),
        ("sparse", r"NAME is sparse \(torch.sparse_coo\): pass this batch's item ids, or NAME.to_dense\(\)"),
        (
            "scipy",
            r"NAME must be a tensor, got csr_matrix: pass Interactions.from_scipy\(NAME\).select\(user_ids\).items",
        ),
        ("frame", r"got DataFrame: pass Interactions.from_columns\(NAME\['user'\], .*\).select\(user_ids\).items"),
        ("interactions", r"NAME must be a tensor, got Interactions: pass NAME.select\(user_ids\).items"),
        ("numpy", r"NAME must be a tensor, got ndarray: torch.as_tensor\(NAME\), .*pad_sequence"),
        ("list", r"NAME must be a tensor, got list: torch.as_tensor\(NAME\), .*pad_sequence"),
    ],
)
def test_what_is_no_tensor_of_ids_is_told_how_it_becomes_one(name, message):
    """Every argument of ids refuses other containers with a message that says how to convert, and no state changes."""
    metric, what = trm.HR(2), held_by(name)
    before = {name: state.clone() for name, state in metric.metric_state.items()}
    for argument, call in (
        ("target", lambda: metric.update(SCORES, what)),
        ("target", lambda: trm.Scores(SCORES, what).ranking()),
        ("target", lambda: trm.get_topk_ranks(SCORES, what, 2)),
        ("target", lambda: trm.Lists(TARGET, what).ranking()),
        ("item_ids", lambda: trm.Lists(what, TARGET).ranking()),
        ("exclude", lambda: metric.update(SCORES, TARGET, exclude=what)),
        ("exclude", lambda: metric.update(SCORES, TARGET, exclude=(what, TARGET))),
        ("exclude", lambda: trm.Lists(TARGET, TARGET, exclude=what).ranking()),
    ):
        with pytest.raises(TypeError, match=message.replace("NAME", argument)):
            call()
    assert all(torch.equal(state, before[name]) for name, state in metric.metric_state.items())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize(
    ("argument", "name"),
    [
        (argument, name)
        for argument in ("scores", "gains", "weights", "ranks")
        for name in ("jagged", "nested", "sparse", "numpy", "list")
        if (argument, name) != ("gains", "jagged")  # jagged gains go with a jagged target
    ],
)
def test_other_arguments_that_are_no_tensor(name, argument):
    what = held_by(name)
    what = what.float() if isinstance(what, torch.Tensor) and argument == "scores" else what
    padding = {"scores": "-torch.inf", "ranks": "-1"}.get(argument, "0")
    message = {
        "jagged": rf"{argument} is a nested tensor.*: pass torch.nested.to_padded_tensor\({argument}, {padding}\)",
        "sparse": rf"{argument} is sparse \(torch.sparse_coo\): pass .*{argument}.to_dense\(\)",
        "numpy": rf"{argument} must be a.* tensor, got ndarray.* torch.as_tensor\({argument}\)",
        "list": rf"{argument} must be a.* tensor, got list.* torch.as_tensor\({argument}\)",
    }
    arguments = {"scores": SCORES, "target": TARGET, argument: what}
    if argument == "ranks":
        arguments = {"scores": trm.Ranks(what)}
    with pytest.raises(TypeError, match=message[name.replace("nested", "jagged")]):
        trm.HR(2).update(**arguments)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128])
def test_complex_gains_are_refused_at_every_door(dtype):
    """Complex gains are refused, because their imaginary part would be dropped."""
    with pytest.raises(ValueError, match=r"gains must be numbers in the shape of target \[2, 2\], got a torch.complex"):
        trm.Scores(SCORES, TARGET, gains=torch.zeros(2, 2, dtype=dtype)).ranking()
    with pytest.raises(TypeError, match=r"labels must be bool or real numbers, got a torch.complex"):
        trm.Sessions(
            SCORES[0], torch.zeros(SCORES.shape[1], dtype=dtype), torch.zeros(SCORES.shape[1]).long()
        ).ranking()


def test_dense_target_for_topk_ranks():
    """`get_topk_ranks` refuses dense targets, because one rank per target needs ids."""
    with pytest.raises(TypeError, match="takes integer item ids as target"):
        trm.get_topk_ranks(SCORES, SCORES > 0, 2)


@pytest.mark.parametrize(
    "name", [name for name, case in BAD_SCORES.items() if " rows with " in case[2] or "twice" in case[2]]
)
def test_deferred_violations_mark_their_rows(name):
    """With "deferred" nothing raises: a bad row is rejected and counted under its kind, the others are unchanged."""
    given_ = BAD_SCORES[name][0]
    ranking = rank_scores(**{"scores": SCORES, "target": TARGET} | given_, validate_args="deferred")
    assert ranking.violations.sum() == (~ranking.valid).sum() > 0
    assert torch.equal(trm.functional.recall(ranking, 1).isnan(), ~ranking.valid)
    assert (ranking.num_relevant[ranking.valid] > 0).all()


def test_topk_ranks_mark_invalid_rows():
    """With deferred checks `get_topk_ranks` writes the smallest int64 into a bad row."""
    scores = SCORES.where(SCORES < 0.9, math.nan)
    ranks = trm.get_topk_ranks(scores, TARGET, 2, validate_args="deferred")
    assert ranks.tolist() == [[INVALID_RANK] * 2, [2, INVALID_RANK * 0]]


@pytest.mark.parametrize("width", [1, 12, 120])
def test_many_rows_in_any_layout_and_context(width, generator):
    """Many rows rank like a few at a time, also in column-major layout and with another default device."""
    scores = torch.randn(300, 2000, generator=generator)
    target = torch.stack([torch.randperm(2000, generator=generator)[:width] for _ in range(300)])
    by_column = [each.T.contiguous().T for each in (scores, target)]
    few = [trm.Scores(scores[i : i + 3], target[i : i + 3]).ranking(depth=9, items=True) for i in range(0, 300, 3)]
    with torch.device("meta"):
        whole = [
            trm.Scores(scores, target).ranking(depth=9, items=True),
            trm.Scores(*by_column).ranking(depth=9, items=True),
        ]
    for made in whole:
        assert torch.equal(made.ranks, torch.cat([each.ranks for each in few]))
        assert torch.equal(made.items, torch.cat([each.items for each in few]))
    ranks = trm.get_topk_ranks(*by_column, 9)
    assert torch.equal(
        ranks, torch.cat([trm.get_topk_ranks(scores[i:][:3], target[i:][:3], 9) for i in range(0, 300, 3)])
    )
    for some in (ranks, ranks.T.contiguous().T):
        assert torch.equal(trm.Ranks(some, depth=9).ranking().ranks, whole[0].ranks)
