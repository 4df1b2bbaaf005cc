"""Rankings against sorting one user at a time: ties, exclusion, padding, dtypes, shapes, and refused arguments."""

import math
from functools import partial

import hypothesis.strategies as st
import pytest
import reference
import torch
from hypothesis import given, settings
from sizes import examples

import torchrecmetrics as trm
from torchrecmetrics import arrays
from torchrecmetrics.kernels import eager
from torchrecmetrics.ranking import targets
from torchrecmetrics.ranking.rules import Needs, Rules
from torchrecmetrics.ranking.scores import INVALID_RANK
from torchrecmetrics.ranking.ties import TargetCounts, sort_ranks
from torchrecmetrics.ranking.update_args import UpdateArgs, to_ranking

TIES = ("optimistic", "realistic", "pessimistic")
INF = math.inf


@st.composite
def batches(draw):
    """Random batches with few distinct scores, so that most are tied; targets and history overlap, of any length."""
    rows, items = draw(st.integers(0, 4)), draw(st.integers(1, 9))
    score = st.sampled_from([-INF, -2.0, -1.0, 0.0, 0.5, 1.0, 3.0])
    scores = draw(st.lists(st.lists(score, min_size=items, max_size=items), min_size=rows, max_size=rows))
    ids = st.lists(st.integers(0, items - 1), max_size=items, unique=True)
    targets = draw(st.lists(ids, min_size=rows, max_size=rows))
    gain = st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0, 5.0])
    gains = [[draw(gain) for _ in row] for row in targets]
    history = draw(st.lists(st.lists(st.integers(-2, items - 1), max_size=6), min_size=rows, max_size=rows))
    return scores, targets, gains, history, items


def padded(rows, fill, dtype):
    width = max([1, *map(len, rows)])
    return torch.tensor([row + [fill] * (width - len(row)) for row in rows], dtype=dtype).reshape(len(rows), width)


def pairs(ranks, gains):
    """Return (rank, gain) of each relevant item that was found."""
    return [(r, g) for r, g in zip(ranks.tolist(), gains.tolist(), strict=True) if r < INF]


def close(expected):
    return [pytest.approx(pair, abs=1e-12) for pair in expected]


@pytest.mark.fixed
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
    patch.setattr(eager, "BUCKET_THRESHOLDS", buckets_from)
    ranking = trm.Ranking.from_scores(
        torch.tensor(scores, dtype=torch.float32).reshape(len(scores), items),
        padded(targets, -1, torch.int64),
        gains=padded(gains, 0.0, torch.float64),
        exclude=exclude,
        ties=ties,
        padding_idx=padding_idx,
        overlap=overlap,
        score_threshold=0.3,
    )
    patch.undo()
    placed, unwanted = ranking.found.placed(torch.clone), ranking.penalties.placed(torch.clone)
    for row in range(len(scores)):
        out = set(history[row]) | ({items - 1} if form == 3 else set())
        gain = dict(zip(targets[row], gains[row], strict=True))
        user = reference.rank(scores[row], gain, out, ties, padding_idx, overlap, threshold=0.3)
        assert pairs(ranking.ranks[row], placed[row]) == close(user.hits)
        assert sorted(pairs(ranking.penalties[0][row], unwanted[row])) == close(sorted(user.unwanted))
        assert ranking.num_relevant[row] == len(user.gains)
        assert ranking.ideal_gains[row].tolist()[: len(user.gains)] == sorted(user.gains, reverse=True)
        assert ranking.num_ranked[row] == user.num_ranked
        assert ranking.num_recommended[row] == user.num_recommended
        assert bool(ranking.tied[row]) == user.tied
        assert bool(ranking.unreachable[row]) == user.unreachable


# ------------------------------------------------------------------------------------------------- get_topk_ranks


@pytest.mark.fixed
def test_topk_ranks_by_hand(device):
    """Rank 1 is first, k + 1 is not in the top k, and 0 is padding; ranks have the shape of the target and know k."""
    scores = torch.tensor([[0.1, 0.9, 0.5, 0.3], [0.4, 0.3, 0.2, 0.1]], device=device)
    ranks = trm.get_topk_ranks(scores, torch.tensor([[0, 2, -1], [0, 1, 3]], device=device), 2)
    assert ranks.tolist() == [[3, 2, 0], [1, 2, 3]]
    assert (ranks.dtype, ranks.depth, ranks.device) == (torch.int64, 2, scores.device)
    assert trm.get_topk_ranks(scores, torch.tensor([2, 0], device=device), 9).tolist() == [[2], [1]]


@pytest.mark.fixed
@pytest.mark.parametrize(
    ("ties", "expected"),
    [("optimistic", [2, 4, 3]), ("pessimistic", [4, 6, 5]), ("realistic", [3, 6, 4])],  # realistic: ceil(1 + i * 6 / 4)
)
def test_topk_ranks_number_ties_by_item(ties, expected, device):
    """Three targets among five equal scores behind one better item are numbered by item id, whatever their order."""
    scores = torch.tensor([[9.0, 1, 1, 1, 1, 1]], device=device)
    ranks = trm.get_topk_ranks(scores, torch.tensor([[1, 5, 3]], device=device), 6, ties=ties)
    assert ranks.tolist() == [expected]


@pytest.mark.fixed
@settings(max_examples=examples(60), deadline=None)
@given(batch=batches(), k=st.integers(1, 10), ties=st.sampled_from(TIES))
def test_topk_ranks_agree_with_the_ranking(batch, k, ties):
    """Sorted and cut at k, the integer ranks are those of Ranking rounded up: no hit at any cut-off differs."""
    scores, targets, _, history, items = batch
    args = torch.tensor(scores).reshape(len(scores), items), padded(targets, -1, torch.int64)
    options = {"exclude": padded(history, -1, torch.int64), "ties": ties, "overlap": "miss"}
    ranking = trm.Ranking.from_scores(*args, **options, depth=k)
    ranks = trm.get_topk_ranks(*args, k, **options)
    assert torch.equal((ranks > 0).sum(1), ranking.num_relevant)
    ascending = ranks.where((ranks > 0) & (ranks <= k), 10**6).sort(1).values
    assert torch.equal(ascending.clamp(max=10**6).double(), ranking.ranks.ceil().nan_to_num(posinf=10**6))


@pytest.mark.fixed
def test_constant_scores_stand_in_the_middle(device):
    """One target among I equal scores has the rank (I + 1) / 2."""
    ranking = trm.Ranking.from_scores(torch.zeros(1, 100, device=device), torch.tensor([7], device=device))
    assert ranking.ranks.tolist() == [[50.5]]


# ------------------------------------------------------------------------------------------------- scores of all kinds


@pytest.mark.fixed
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
    ranking = trm.Ranking.from_scores(scores, target)
    assert torch.equal(ranking.ranks, better + (same + 1).double() / 2)
    trm.Ranking.from_scores(scores, target, exclude=(exclude, target), overlap="miss")
    assert torch.equal(scores, before)


@pytest.mark.parametrize("height", [1, 3])
@pytest.mark.parametrize("max_relevant", [None, 40])
def test_tiles_do_not_show(height, max_relevant, monkeypatch, generator):
    """Ranks are the same, however the scores are cut into tiles by rows and by columns."""
    scores = torch.randint(0, 30, (11, 97), generator=generator).float()
    dense = torch.rand(11, 97, generator=generator) < 0.1
    exclude = torch.rand(11, 97, generator=generator) < 0.2
    expected = trm.Ranking.from_scores(scores, dense, exclude=exclude, overlap="miss")

    def tiny(matrix, wide):
        width = 10 if matrix.is_floating_point() or height == 1 else matrix.shape[1]
        for top in range(0, len(matrix), height):
            for left in range(0, matrix.shape[1], width):
                here = slice(top, top + height), slice(left, left + width)
                yield here, matrix[here]

    monkeypatch.setattr(eager, "tiles", tiny)
    monkeypatch.setattr(targets, "tiles", tiny)
    got = trm.Ranking.from_scores(scores, dense, exclude=exclude, overlap="miss", max_relevant=max_relevant)
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
            trm.Ranking.from_scores(scores, TARGET)


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
    ranking = trm.Ranking.from_scores(scores, torch.tensor([2**31 + 5]), exclude=torch.tensor([[2**31 + 6]]))
    assert ranking.num_ranked.tolist() == [99]
    assert ranking.ranks.tolist() == [[50]]
    with pytest.raises(ValueError, match=f"row 0 holds {items} of {items} items"):
        trm.Ranking.from_scores(scores, torch.tensor([items]))


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


@pytest.mark.fixed
def test_no_rows(device):
    """An empty batch is a Ranking of no rows."""
    for target in (torch.empty(0, 3, dtype=torch.int64), torch.empty(0, 5, dtype=torch.bool)):
        ranking = trm.Ranking.from_scores(torch.empty(0, 5, device=device), target.to(device))
        assert len(ranking) == 0
        assert ranking.ranks.shape[1] >= 1


@pytest.mark.fixed
def test_no_target_columns(device):
    """A batch without a target column has ranks of width T = 1."""
    ranking = trm.Ranking.from_scores(
        torch.rand(2, 5, device=device), torch.empty(2, 0, dtype=torch.int64, device=device)
    )
    assert ranking.ranks.tolist() == [[INF], [INF]]


@pytest.mark.fixed
def test_minus_infinity_is_no_candidate(device):
    """An item at -inf is no candidate: with two candidates left, the worst relevant one has rank 2."""
    scores = torch.tensor([[0.5, -INF, 0.7, -INF]], device=device)
    ranking = trm.Ranking.from_scores(scores, torch.tensor([[0, 1]], device=device))
    assert ranking.ranks.tolist() == [[2.0, INF]]
    assert (ranking.num_ranked.item(), ranking.num_relevant.item(), ranking.unreachable.item()) == (2, 2, True)


@pytest.mark.parametrize("buckets_from", [0, 128])
def test_nan_is_worse_than_every_number(buckets_from, monkeypatch, device):
    """Unchecked, an item with a NaN score takes no rank, and is never a hit as a target (torch.topk ranks it first)."""
    monkeypatch.setattr(eager, "BUCKET_THRESHOLDS", buckets_from)
    scores = torch.tensor([[math.nan, 0.2, 0.9], [0.1, math.nan, -INF]], device=device)
    assert scores.topk(1).indices.tolist() == [[0], [1]]
    for exclude in (None, torch.tensor([[0], [0]], device=device)):
        ranking = trm.Ranking.from_scores(
            scores, torch.tensor([[0, 1]] * 2, device=device), exclude=exclude, overlap="keep", validate_args=False
        )
        assert ranking.ranks.tolist() == [[2.0, INF], [1.0, INF]]
        assert ranking.num_ranked.tolist() == [2, 1]


@pytest.mark.fixed
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("threshold", [0.1, -0.1, 3.5, 0.0])
def test_score_threshold_is_not_rounded(dtype, threshold):
    """Scores of any dtype are compared with the threshold itself, not with its nearest neighbour in that dtype."""
    near = torch.tensor(threshold, dtype=dtype)
    up, down = (torch.nextafter(near, torch.tensor(x, dtype=dtype)) for x in (INF, -INF))
    scores = torch.stack([down, near, up])[None]
    ranking = trm.Ranking.from_scores(scores, torch.tensor([0]), score_threshold=threshold)
    assert ranking.num_recommended.item() == sum(float(s) >= threshold for s in scores[0])


# ------------------------------------------------------------------------------------------------- targets, padding


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.float16])
@pytest.mark.parametrize("max_relevant", [3, 40])
def test_dense_targets_without_a_look(dtype, max_relevant, monkeypatch, generator):
    """Dense targets rank the same where values may not be read, and a row with too many relevant items is left out."""
    dense = (torch.rand(300, 97, generator=generator) < 0.05).to(dtype)
    dense[0] = 0
    scores = torch.rand(dense.shape, generator=generator)
    read = partial(trm.Ranking.from_scores, scores, dense, max_relevant=max_relevant, validate_args="deferred")
    found = read()
    monkeypatch.setattr(targets, "can_sync", lambda _: False)
    expected = read()
    for name in ("ranks", "num_relevant", "unreachable"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert torch.equal(found.num_relevant, dense.bool().sum(1).where(dense.bool().sum(1) <= max_relevant, 0))


@pytest.mark.parametrize("max_relevant", [None, 3, 50])
def test_dense_targets_are_id_targets(max_relevant, device, generator):
    """Dense targets, bool [B, I] or graded floats [B, I], rank like item ids with gains."""
    scores = torch.randn(4, 6, generator=generator).to(device)
    graded = torch.tensor([[0.0, 2, 0, -1, 0, 3], [0] * 6, [1, 0, 0, 0, 0, 0], [0, 0, 0, 5, -2, 1]], device=device)
    ids = torch.tensor([[5, 3, 1], [-1, -1, -1], [0, -1, -1], [3, 4, 5]], device=device)
    gains = torch.tensor([[3, -1, 2], [0, 0, 0], [1, 0, 0], [5, -2, 1]], device=device)
    expected = trm.Ranking.from_scores(scores, ids, gains=gains)
    got = trm.Ranking.from_scores(scores, graded, max_relevant=max_relevant)
    width = min(expected.ranks.shape[1], got.ranks.shape[1])
    for a, b in ((got.ranks, expected.ranks), (got.gains, expected.gains), (got.penalties[0], expected.penalties[0])):
        assert torch.equal(a[:, :width], b[:, :width])
    binary = trm.Ranking.from_scores(scores, graded > 0, max_relevant=max_relevant)
    assert torch.equal(binary.ranks[:, :2], expected.ranks[:, :2])
    assert binary.num_relevant.tolist() == [2, 0, 1, 2]


@pytest.mark.fixed
@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
def test_integer_dtypes(dtype, device):
    """Item ids may have any signed integer dtype above int8."""
    scores = torch.tensor([[0.1, 0.2, 0.3]], device=device)
    ids = torch.tensor([[1]], dtype=dtype, device=device)
    assert trm.get_topk_ranks(scores, ids, 3, exclude=ids + 1).tolist() == [[1]]


@pytest.mark.fixed
@pytest.mark.parametrize("history", [[[1, 2]], [[1, 2, 0, 0]], [[2, 1, 4, 3]]])
def test_padding_column_equals_no_padding_column(history, device):
    """Ids from 1 with padding_idx=0 rank like ids from 0 without a padding column, in padded and in full rows."""
    scores = torch.tensor([[9.0, 0.4, 0.3, 0.2, 0.1, 0.05]], device=device)
    history = torch.tensor(history, device=device)
    target = torch.tensor([[5]], device=device)
    one_based = trm.Ranking.from_scores(scores, target, exclude=history, padding_idx=0)
    zero_based = trm.Ranking.from_scores(scores[:, 1:], target - 1, exclude=history - 1)
    assert torch.equal(one_based.ranks, zero_based.ranks)
    assert torch.equal(one_based.num_ranked, zero_based.num_ranked)
    assert trm.Ranking.from_scores(scores, target, padding_idx=0).num_ranked.item() == 5


@pytest.mark.fixed
def test_padding_id_is_padding_in_target(device):
    """A target equal to padding_idx is no target."""
    ranking = trm.Ranking.from_scores(
        torch.rand(2, 4, device=device), torch.tensor([0, 1], device=device), padding_idx=0
    )
    assert ranking.num_relevant.tolist() == [0, 1]


@pytest.mark.fixed
def test_excluding_ids_equals_masking(generator):
    """Excluding a list of ids equals scoring them -inf, also with repeats and padding in the list."""
    scores = torch.randint(0, 50, (64, 200), generator=generator).float()
    exclude = torch.randint(-3, 200, (64, 40), generator=generator)
    mask = torch.zeros(64, 201, dtype=torch.bool).scatter_(1, exclude.where(exclude >= 0, 200), True)[:, :200]
    target = torch.randint(0, 200, (64, 1), generator=generator)
    masked = trm.Ranking.from_scores(scores.masked_fill(mask, -INF), target)
    for form in (exclude, mask, (exclude[:, :20], mask), (exclude[:, :20], exclude[:, 20:])):
        got = trm.Ranking.from_scores(scores, target, exclude=form, overlap="miss")
        assert torch.equal(got.ranks, masked.ranks)
        assert torch.equal(got.num_ranked, masked.num_ranked)


@pytest.mark.fixed
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
        for make, what in ((trm.Ranking.from_scores, scores), (trm.Ranking.from_topk, lists)):
            assert torch.equal(make(what, target, exclude=exclude).ranks, make(what, target, exclude=meant).ranks)
        metric, same = trm.MRR(3).to(device), trm.MRR(3).to(device)
        metric.update(scores, target, exclude=exclude)
        same.update(scores, target, exclude=meant)
        assert metric.compute() == same.compute()
        ranks = trm.get_topk_ranks(scores, target, 3, exclude=exclude)
        assert torch.equal(ranks, trm.get_topk_ranks(scores, target, 3, exclude=meant))
    for make, what in ((trm.Ranking.from_scores, scores), (trm.Ranking.from_topk, lists)):
        got, wanted = make(what, seen), make(what, seen.items, gains=seen.values)
        assert torch.equal(got.ranks, wanted.ranks)
        assert torch.equal(trm.functional.ndcg(got, 3), trm.functional.ndcg(wanted, 3))
    metric = trm.NDCG(3).to(device)
    metric.update(scores, seen, exclude=target)
    assert metric.compute() == trm.functional.ndcg(trm.Ranking.from_scores(scores, seen, exclude=target), 3).mean()
    if ratings is None:
        assert torch.equal(trm.get_topk_ranks(scores, seen, 3), trm.get_topk_ranks(scores, seen.items, 3))
    else:
        with pytest.raises(TypeError, match=r"knows no gains, and target holds values: pass target\.items"):
            trm.get_topk_ranks(scores, seen, 3)
        with pytest.raises(ValueError, match=r"gains were given beside a target that holds values: pass target\.items"):
            metric.update(scores, seen, gains=seen.values)


# ------------------------------------------------------------------------------------------------- lists, ranks, flat


@pytest.mark.fixed
def test_from_topk_by_hand(device):
    """Excluded ids leave the list and later items move up; a negative id ends the list."""
    lists = torch.tensor([[7, 3, 9, 4], [4, 8, -1, -1], [1, 2, 3, 4]], device=device)
    target = torch.tensor([[9, 1], [4, -1], [3, 4]], device=device)
    plain = trm.Ranking.from_topk(lists, target)
    assert plain.ranks.tolist() == [[3, INF], [1, INF], [3, 4]]
    assert (plain.depth, plain.num_ranked, plain.num_recommended.tolist()) == (4, None, [4, 2, 4])
    history = torch.tensor([[3, 7], [8, 8], [5, -1]], device=device)
    moved = trm.Ranking.from_topk(lists, target, exclude=history)
    assert moved.ranks.tolist() == [[1, INF], [1, INF], [3, 4]]
    assert moved.reach.rows.tolist() == [2, 4, 4]  # the second list ended early: it is whole
    assert moved.num_recommended.tolist() == [2, 1, 4]
    mask = torch.zeros(8, dtype=torch.bool, device=device)  # item 9 lies beyond the mask: not excluded
    mask[[3, 7]] = True
    assert trm.Ranking.from_topk(lists[:1], target[:1], exclude=mask).ranks.tolist() == [[1, INF]]
    assert trm.Ranking.from_topk(lists, target, complete=True).depth is None


def test_a_rejected_list_holds_nothing():
    """With "deferred", a list with a repeated item counts no relevant item, and the other row is unchanged."""
    lists, target = torch.tensor([[4, 4, 9], [5, 8, 2]]), torch.tensor([[9, 4], [5, 2]])
    ranking = trm.Ranking.from_topk(lists, target, validate_args="deferred")
    assert ranking.ranks.tolist() == [[INF, INF], [1, 3]]
    assert ranking.num_relevant.tolist() == [0, 2]
    assert ranking.violations.rows.tolist() == [True, False]


@pytest.mark.fixed
@pytest.mark.parametrize("validate_args", [True, "deferred"])
def test_a_list_is_known_as_far_as_it_reaches(validate_args):
    """A list of three items of which one is excluded is enough for k = 2 and raises for k = 3.

    With "deferred" only metrics raise, not formulas.
    """
    lists, target = torch.tensor([[4, 3, 9], [5, 8, 2]]), torch.tensor([[9], [5]])
    short = trm.Ranking.from_topk(lists, target, exclude=torch.tensor([[3], [-1]]), validate_args=validate_args)
    assert short.hits(2).tolist() == [[True], [True]]
    assert trm.HR(2)(short) == 1
    message = "1 .* known to fewer than k places"
    with pytest.raises(ValueError, match=message):
        trm.HR(3)(short)
    if validate_args is True:
        with pytest.raises(ValueError, match=message):
            short.hits(3)


@pytest.mark.fixed
def test_from_topk_padding_idx(device):
    """`padding_idx` leaves the list like an excluded item, however often it occurs."""
    lists = torch.tensor([[0, 3, 4], [3, 0, 0], [3, 4, 5]], device=device)
    ranking = trm.Ranking.from_topk(lists, torch.tensor([[4], [0], [5]], device=device), padding_idx=0)
    assert ranking.ranks.tolist() == [[2], [INF], [3]]
    assert ranking.num_relevant.tolist() == [1, 0, 1]
    assert ranking.reach.rows.tolist() == [2, 1, 3]


@pytest.mark.fixed
@pytest.mark.parametrize(("overlap", "expected"), [("keep", [[2, 3]]), ("miss", [[2, INF]])])
def test_from_topk_overlap(overlap, expected, device):
    """A listed target that is also excluded stays with overlap="keep", and is lost with overlap="miss"."""
    lists, target, seen = (torch.tensor(x, device=device) for x in ([[5, 6, 7]], [[6, 7]], [[7]]))
    ranking = trm.Ranking.from_topk(lists, target, exclude=seen, overlap=overlap)
    assert ranking.ranks.tolist() == expected
    assert ranking.unreachable.tolist() == [overlap == "miss"]


@pytest.mark.fixed
@pytest.mark.parametrize("overlap", ["error", "keep", "miss"])
def test_what_is_not_relevant_may_be_excluded(overlap, device):
    """An excluded target with a gain of 0 or less is no overlap, and cannot be recommended."""
    scores = torch.tensor([[0.9, 0.8, 0.7, 0.6, 0.5]], device=device)
    target, gains = torch.tensor([[1, 0, 3]], device=device), torch.tensor([[1.0, -1.0, 0.0]], device=device)
    exclude = torch.tensor([[0, 3]], device=device)
    ranking = trm.Ranking.from_scores(scores, target, gains=gains, exclude=exclude, overlap=overlap)
    assert ranking.ranks.tolist() == [[1, INF, INF]]
    assert ranking.penalties[0].tolist() == [[INF, INF, INF]]


@pytest.mark.fixed
def test_repeats_by_hand(device):
    """With duplicates="first" a repeated item takes no rank, and later items move up.

    A list that is shortened in this way is known to fewer ranks, as with excluded items.
    """
    lists = torch.tensor([[7, 7, 3, 9], [4, 4, 8, -1], [1, 2, 1, 2]], device=device)
    target = torch.tensor([[9, 7], [8, -1], [2, -1]], device=device)
    ranking = trm.Ranking.from_topk(lists, target, duplicates="first")
    assert ranking.ranks.tolist() == [[1, 3], [2, INF], [2, INF]]
    assert (ranking.num_recommended.tolist(), ranking.num_repeated.tolist()) == ([3, 2, 2], [1, 1, 2])
    assert (ranking.depth, ranking.reach.rows.tolist()) == (4, [3, 4, 2])  # the second list ended early
    whole = trm.Ranking.from_topk(lists, target, duplicates="first", complete=True)
    assert (whole.depth, whole.reach.rows) == (None, None)
    assert trm.functional.recall(whole, 4).tolist() == [1, 1, 1]
    kept = trm.Ranking.from_topk(lists[:1], target[:1], duplicates="first", exclude=target[:1, 1:], overlap="keep")
    assert (kept.ranks.tolist(), kept.reach.rows.tolist()) == ([[1, 3]], [3])
    if device.type == "cpu":
        with pytest.raises(ValueError, match=r"2 of 3 rows known to fewer than k places .*, and repeats.*: row 0 to 3"):
            trm.HR(4).update(ranking)
        trm.HR(2).update(ranking)


@pytest.mark.fixed
@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_repeats_leave_their_list(data):
    """Lists with repeats rank as if walked item by item, with history, padding and ends, also with deferred checks."""
    rows, k = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 7))
    item = st.integers(-1, 5)
    lists = data.draw(st.lists(st.lists(item, min_size=k, max_size=k), min_size=rows, max_size=rows))
    targets = data.draw(st.lists(st.lists(item, min_size=3, max_size=3, unique=True), min_size=rows, max_size=rows))
    history = data.draw(st.lists(st.lists(item, min_size=2, max_size=2), min_size=rows, max_size=rows))
    padding_idx, validate_args = data.draw(st.sampled_from([None, 0])), data.draw(st.sampled_from([True, "deferred"]))
    ranking = trm.Ranking.from_topk(
        *map(torch.tensor, (lists, targets)),
        exclude=torch.tensor(history),
        padding_idx=padding_idx,
        overlap="miss",
        duplicates="first",
        validate_args=validate_args,
    )
    for row in range(rows):
        walked, repeats = [], 0
        for at, number in enumerate(lists[row]):
            repeats += 0 <= number != padding_idx and number in lists[row][:at]
            if number >= 0 and number != padding_idx and number not in history[row] and number not in walked:
                walked.append(number)
        found = [1 + walked.index(number) for number in targets[row] if number in walked]
        assert ranking.ranks[row].tolist() == sorted(found) + [INF] * (3 - len(found))
        assert ranking.num_recommended[row] == len(walked)
        assert ranking.num_repeated[row] == repeats
        assert ranking.reach.rows[row] == (k if -1 in lists[row] else len(walked))
    assert ranking.invalid is None or not ranking.invalid.any()


@pytest.mark.fixed
def test_lists_without_repeats_stay_as_they_are(device, generator):
    """Lists without repeats give the same bits with duplicates="first" as with the default."""
    lists = torch.rand(20, 50, generator=generator).argsort(1)[:, :9].to(device)
    target = torch.rand(20, 50, generator=generator).argsort(1)[:, :6].to(device)
    options = {"gains": torch.randint(-2, 4, (20, 6), generator=generator).to(device), "exclude": target[:, :1] + 50}
    strict = trm.Ranking.from_topk(lists, target, **options)
    lenient = trm.Ranking.from_topk(lists, target, **options, duplicates="first")
    assert (strict.num_repeated, lenient.num_repeated.tolist()) == (None, [0] * 20)
    for name in ("ranks", "gains", "num_relevant", "num_recommended"):
        assert torch.equal(getattr(strict, name), getattr(lenient, name))
    assert torch.equal(strict.reach.rows, lenient.reach.rows)
    names = ["HR", "NDCG", "MRR", "MAP", "Precision", "Recall", "F1"]
    mine, theirs = (trm.RecMetricCollection(names, k=[1, 9]).to(device) for _ in range(2))
    assert mine(strict) == theirs(lenient)


def test_repeats_without_reading_values():
    """Repeats are left out without reading a value: on the device `meta`, reading a value raises."""
    lists, target = torch.empty(6, 9, dtype=torch.int64, device="meta"), torch.empty(6, dtype=int, device="meta")
    ranking = trm.Ranking.from_topk(lists, target, duplicates="first")
    assert ranking.num_repeated.shape == (6,)
    trm.RecMetricCollection(["HR", "NDCG"], k=9).to("meta").update(ranking)


@pytest.mark.fixed
def test_from_topk_equals_from_scores(device, generator):
    """The list of the best K items gives the ranks of its scores, gains and penalties included."""
    scores = torch.rand(20, 50, generator=generator).to(device)
    target = torch.rand(20, 50, generator=generator).argsort(1)[:, :6].to(device)
    gains = torch.randint(-2, 4, (20, 6), generator=generator).to(device)
    for k in (5, 50):
        whole = trm.Ranking.from_scores(scores, target, gains=gains, depth=k)
        listed = trm.Ranking.from_topk(scores.topk(k).indices, target, gains=gains)
        assert torch.equal(listed.ranks, whole.ranks)
        assert torch.equal(listed.num_relevant, whole.num_relevant)
        assert trm.functional.ndcg(listed, k).tolist() == pytest.approx(
            trm.functional.ndcg(whole, k).tolist(), nan_ok=True
        )


@pytest.mark.fixed
def test_ranks_know_their_depth(device):
    """`from_ranks` takes the depth that the tensor carries, or a smaller one, and refuses a greater one."""
    ranks = trm.get_topk_ranks(torch.rand(3, 9, device=device), torch.tensor([1, 2, 3], device=device), 4)
    assert trm.Ranking.from_ranks(ranks).depth == 4
    assert trm.Ranking.from_ranks(ranks, depth=2).depth == 2
    with pytest.raises(ValueError, match="depth=5 was given for ranks that were cut at 4"):
        trm.Ranking.from_ranks(ranks, depth=5)


def test_a_selection_is_no_list():
    """`from_topk` refuses a selection of `Interactions`, whose items are ascending and not best first."""
    chosen = trm.Interactions.from_padded(TARGET, 3).select([0, 1])
    with pytest.raises(TypeError, match=r"item_ids must be a tensor, got Batch: pass item_ids\.items"):
        trm.Ranking.from_topk(chosen, TARGET)


@pytest.mark.fixed
@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("k", "depth"),
    [
        (k, depth)
        for k in (1, 3, 40_000, 2**31 - 1, 2**31, 2**40, 2**53 - 1)
        for depth in (None, 2**40, 2**53 - 1)
        if depth is None or depth >= k
    ],
)
def test_ranks_of_any_integer_type(dtype, k, depth, device):
    """Ranks <= 0 are padding and ranks up to k are hits in any integer dtype, also where the dtype cannot hold k."""
    largest = torch.iinfo(dtype).max
    ranks = torch.tensor([[0, 2, -1], [3, largest, 0], [0, 0, 0]], dtype=dtype, device=device)
    found = [k >= 2, k >= 3], [1 / 2 if k > 1 else 0.0, 1 / 3 if k > 2 else 0.0], [k >= 2, (k >= 3) + (largest <= k)]
    for metric, expected in zip((trm.HR(k), trm.MRR(k), trm.Precision(k)), found, strict=True):
        metric.to(device).update(ranks, depth=depth)
        expected = sum(expected) / 2 / (k if isinstance(metric, trm.Precision) else 1)
        assert metric.compute().item() == pytest.approx(expected, rel=1e-12)
        assert (metric.num_users, metric.num_skipped) == (2, 1)
    if depth is None:
        assert trm.Ranking.from_ranks(ranks).num_relevant.tolist() == [1, 2, 0]


@pytest.mark.fixed
@pytest.mark.parametrize("k", [2**53, 2**63])
def test_k_beyond_float64_is_refused(k):
    """k of 2^53 and above is refused, because k + 1 and k would be one rank in float64."""
    for make in (trm.HR, trm.MRR, lambda k: trm.get_topk_ranks(SCORES, TARGET, k)):
        with pytest.raises(ValueError, match=f"k must be below 2\\^53, .*, got {k}"):
            make(k)


@pytest.mark.fixed
def test_a_repeated_place_tells_the_depth():
    """A rank that occurs twice tells the depth of ranks, because two relevant items cannot share a rank.

    Two 11s are the "not in the top 10" of ranks cut at 10.
    """
    joined = torch.cat([torch.tensor([[11, 2, 11]]), torch.tensor([[1, 2, 3]])])
    metric = trm.HR(10)
    metric.update(joined)
    assert metric.compute() == 1
    with pytest.raises(
        ValueError, match=r"1 of 2 rows known to fewer than k places .*: row 0 to 10, since rank 11 stands twice"
    ):
        trm.HR(11).update(joined)
    with pytest.raises(ValueError, match="a place twice"):
        trm.Ranking.from_ranks(torch.tensor([[1, 1]]), depth=5)
    with pytest.raises(ValueError, match="a place twice"):
        trm.HR(1).update(torch.tensor([[1, 3, 1]]), depth=3)
    assert trm.Ranking.from_ranks(torch.tensor([[2.5, 2.5]])).ranks.tolist() == [[2.5, 2.5]]  # the mean place of a tie


@pytest.mark.fixed
@pytest.mark.parametrize("ranks", [[[1.0, 1.0, 1.0]], [[2.0, 5.0, 1.0, 1.0]]])
def test_impossible_mean_places(ranks):
    """Ranks are refused if the mean of the i lowest is below that of the first i ranks."""
    with pytest.raises(ValueError, match="ranks that are no places"):
        trm.Ranking.from_ranks(torch.tensor(ranks))


@pytest.mark.fixed
def test_ranks_beyond_the_ranked():
    with pytest.raises(ValueError, match="beyond num_ranked"):
        trm.Ranking.from_ranks(torch.tensor([[5]]), num_ranked=3)
    with pytest.raises(ValueError, match="num_ranked must be at least 1, got -3"):
        trm.Ranking.from_ranks(torch.tensor([[5]]), num_ranked=-3)
    with pytest.raises(TypeError, match="num_ranked must be an integer"):
        trm.Ranking.from_ranks(torch.tensor([[1]]), num_ranked=True)


@pytest.mark.fixed
@pytest.mark.parametrize("history", [torch.zeros(2, 12, dtype=torch.int64), torch.eye(12)[:2].long()])
def test_a_history_padded_with_0_is_no_matrix(history):
    """With padding_idx=0 a history as wide as the catalogue may hold only 0 and 1."""
    assert len(trm.Ranking.from_scores(torch.rand(2, 12), torch.tensor([3, 4]), exclude=history, padding_idx=0)) == 2


@pytest.mark.fixed
def test_default_device_does_not_matter():
    """Tensors made on the CPU stay there, whatever the default device is (`meta` would raise)."""
    with torch.device("meta"):
        ranking = trm.Ranking.from_scores(SCORES, TARGET, score_threshold=0.2)
    assert ranking.num_recommended.tolist() == [2, 2]


@pytest.mark.fixed
def test_from_flat_nan_is_worst():
    ranking = trm.Ranking.from_flat(
        torch.tensor([math.nan, 0.5, 0.2]),
        torch.tensor([0, 1, 0]),
        torch.zeros(3, dtype=torch.int64),
        validate_args=False,
    )
    assert ranking.ranks.tolist() == [[1]]


@pytest.mark.fixed
def test_topk_ranks_of_no_targets():
    assert trm.get_topk_ranks(SCORES, TARGET[:, :0], 2).shape == (2, 0)


def test_repr():
    """A Ranking shows its shape, not its tensors."""
    assert repr(RANKING) == "Ranking(2 rows, up to 2 relevant items, first 2, cpu)"
    assert "whole" in repr(trm.Ranking.from_ranks(torch.tensor([1])))


@pytest.mark.parametrize("columns", [None, 3, 99, 100, 130])
@pytest.mark.parametrize("rows", [2, 4000])
def test_what_is_no_rank_is_padding(rows, columns, device):
    """Ranks <= 0 are padding; a rank beyond the depth that is read counts as relevant, but is not found."""
    row = [2, 0, -1, 2**50, 1, -(2**62), 128]
    ranks = torch.tensor([row] * rows, device=device)
    ranking = to_ranking(UpdateArgs(ranks=ranks), Needs(columns), Rules())
    assert ranking.num_relevant.tolist() == [4] * rows
    found = [rank for rank in (1, 2, 128, 2**50) if columns is None or rank <= columns]
    assert all([rank for rank in one if rank < INF] == found for one in ranking.ranks.tolist())


@pytest.mark.fixed
def test_from_ranks(device):
    """`from_ranks` takes ranks in any order and dtype; <= 0 is padding, and beyond the depth is a miss."""
    ranks = torch.tensor([[3, 1, 0], [11, 2, -5]], device=device)
    ranking = trm.Ranking.from_ranks(ranks, depth=10, num_ranked=20)
    assert ranking.ranks.tolist() == [[1, 3, INF], [2, INF, INF]]
    assert (ranking.num_relevant.tolist(), ranking.num_ranked.tolist()) == ([2, 2], [20, 20])
    assert trm.Ranking.from_ranks(torch.tensor([1.5, INF], device=device)).ranks.tolist() == [[1.5], [INF]]


@settings(max_examples=examples(100), deadline=None)
@given(batch=batches(), ties=st.sampled_from(TIES), seed=st.integers(0, 100))
def test_from_flat_equals_rows(batch, ties, seed):
    """Shuffled (score, target, query) triples rank like the rows that they came from."""
    scores, targets, gains, _, items = batch
    scores = torch.tensor(scores, dtype=torch.float64).reshape(len(scores), items)
    dense = torch.zeros_like(scores)
    for row, ids in enumerate(targets):
        dense[row, ids] = torch.tensor(gains[row], dtype=dense.dtype)
    shuffle = torch.randperm(scores.numel(), generator=torch.Generator().manual_seed(seed))
    queries = torch.arange(len(scores)).repeat_interleave(items) * 3 + 5
    flat = trm.Ranking.from_flat(scores.flatten()[shuffle], dense.flatten()[shuffle], queries[shuffle], ties=ties)
    rows = trm.Ranking.from_scores(scores, dense, ties=ties)
    assert torch.equal(flat.ranks, rows.ranks)
    assert torch.equal(flat.num_relevant, rows.num_relevant)
    assert torch.equal(flat.num_ranked, rows.num_ranked)
    assert torch.equal(flat.tied, rows.tied)
    for got, expected in ((trm.functional.ndcg(flat, k), trm.functional.ndcg(rows, k)) for k in (2, None)):
        assert got.tolist() == pytest.approx(expected.tolist(), nan_ok=True)


# ------------------------------------------------------------------------------------------------- bad input


SCORES = torch.tensor([[0.1, 0.9, 0.5], [0.3, 0.2, 0.1]])
TARGET = torch.tensor([[2, 0], [1, -1]])
RANKING = trm.Ranking.from_scores(SCORES, TARGET, depth=2)

BAD_SCORES = {
    "not a tensor": ({"scores": [[0.1]]}, TypeError, "scores must be a tensor, got list"),
    "1-D": ({"scores": SCORES[0]}, ValueError, r"scores must be \[rows, items\].*got shape \[3\]"),
    "no items": ({"scores": SCORES[:, :0]}, ValueError, "at least one item"),
    "integer scores": ({"scores": SCORES.long()}, TypeError, r"got a torch.int64 tensor.*Ranking.from_topk"),
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
        "ties must be one of 'optimistic', 'realistic', 'pessimistic', got 'random'",
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
    """`from_scores` refuses bad arguments, each with its type of error and message."""
    given_, error, message = BAD_SCORES[name]
    arguments = {"scores": SCORES, "target": TARGET} | given_
    with pytest.raises(error, match=message):
        trm.Ranking.from_scores(**arguments)


@pytest.mark.fixed
@pytest.mark.parametrize("k", [0, -3])
def test_k_below_one(k):
    with pytest.raises(ValueError, match=f"k must be at least 1, got {k}"):
        trm.get_topk_ranks(SCORES, TARGET, k)


@pytest.mark.fixed
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
    before = [state.clone() for state in metric.state()]
    for argument, call in (
        ("target", lambda: metric.update(SCORES, what)),
        ("target", lambda: trm.Ranking.from_scores(SCORES, what)),
        ("target", lambda: trm.get_topk_ranks(SCORES, what, 2)),
        ("target", lambda: trm.Ranking.from_topk(TARGET, what)),
        ("item_ids", lambda: trm.Ranking.from_topk(what, TARGET)),
        ("exclude", lambda: metric.update(SCORES, TARGET, exclude=what)),
        ("exclude", lambda: metric.update(SCORES, TARGET, exclude=(what, TARGET))),
        ("exclude", lambda: trm.Ranking.from_topk(TARGET, TARGET, exclude=what)),
    ):
        with pytest.raises(TypeError, match=message.replace("NAME", argument)):
            call()
    assert all(map(torch.equal, metric.state(), before))


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
    arguments = {"ranks": what} if argument == "ranks" else {"scores": SCORES, "target": TARGET, argument: what}
    with pytest.raises(TypeError, match=message[name.replace("nested", "jagged")]):
        trm.HR(2).update(**arguments)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128])
def test_complex_gains_are_refused_at_every_door(dtype):
    """Complex gains are refused, because their imaginary part would be dropped."""
    with pytest.raises(ValueError, match=r"gains must be numbers in the shape of target \[2, 2\], got a torch.complex"):
        trm.Ranking.from_scores(SCORES, TARGET, gains=torch.zeros(2, 2, dtype=dtype))
    with pytest.raises(TypeError, match=r"target must be bool or real numbers, got a torch.complex"):
        trm.Ranking.from_flat(SCORES[0], torch.zeros(SCORES.shape[1], dtype=dtype), torch.zeros(SCORES.shape[1]).long())


@pytest.mark.fixed
def test_dense_target_for_topk_ranks():
    """`get_topk_ranks` refuses dense targets, because one rank per target needs ids."""
    with pytest.raises(TypeError, match="takes integer item ids as target"):
        trm.get_topk_ranks(SCORES, SCORES > 0, 2)


BAD_LISTS = {
    "floats": ({"item_ids": SCORES}, TypeError, "item_ids must hold int64, int32 or int16"),
    "1-D": ({"item_ids": TARGET[0]}, ValueError, r"item_ids must be \[rows, places\]"),
    "repeated": (
        {"item_ids": torch.tensor([[1, 2, 1]] * 2)},
        ValueError,
        r"an item recommended twice: row 0 is \[1, 2, 1\] \(duplicates='first' ",
    ),
    "duplicates": (
        {"duplicates": "last"},
        ValueError,
        "duplicates must be one of 'error', 'first', 'keep_place', got 'last'",
    ),
    "dense target": ({"target": SCORES > 0}, TypeError, "from_topk takes integer item ids as target"),
    "overlap": ({"exclude": torch.tensor([[2], [5]])}, ValueError, "1 of 2 rows with a target that is also excluded"),
}


@pytest.mark.parametrize("name", BAD_LISTS)
def test_bad_lists(name):
    """`from_topk` refuses bad arguments, each with its type of error and message."""
    given_, error, message = BAD_LISTS[name]
    arguments = {"item_ids": torch.tensor([[0, 1, 2], [2, 1, 0]]), "target": TARGET} | given_
    with pytest.raises(error, match=message):
        trm.Ranking.from_topk(**arguments)


@pytest.mark.fixed
@pytest.mark.parametrize(
    ("ranks", "error", "message"),
    [
        (torch.tensor([[0.5, 1.0]]), ValueError, "ranks that are no places"),
        (torch.tensor([[math.nan, 1.0]]), ValueError, "ranks that are no places"),
        (torch.tensor([[INVALID_RANK, 1]]), ValueError, "marked invalid"),
        (torch.tensor([[True]]), TypeError, "ranks must be an integer or float tensor"),
        (torch.ones(1, 1, 1), ValueError, r"ranks must be \[B\] or \[B, T\]"),
    ],
)
def test_bad_ranks(ranks, error, message):
    with pytest.raises(error, match=message):
        trm.Ranking.from_ranks(ranks)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"indexes": torch.zeros(2)}, TypeError, "indexes must hold"),
        ({"indexes": torch.zeros(3, dtype=torch.int64)}, ValueError, "must be tensors of one shape"),
        ({"scores": torch.tensor([0.1, math.nan])}, ValueError, "NaN or .inf: query 4"),
        ({"target": torch.tensor([INF, 0])}, ValueError, "gain that is NaN or infinite: query 4"),
        ({"ties": "none"}, ValueError, "ties must be one of"),
    ],
)
def test_bad_flat(change, error, message):
    arguments = {"scores": torch.tensor([0.1, 0.2]), "target": torch.tensor([0, 1]), "indexes": torch.tensor([4, 4])}
    with pytest.raises(error, match=message):
        trm.Ranking.from_flat(**(arguments | change))


@pytest.mark.parametrize(
    "name", [name for name, case in BAD_SCORES.items() if " rows with " in case[2] or "twice" in case[2]]
)
def test_deferred_violations_mark_their_rows(name):
    """With "deferred" nothing raises: a bad row is rejected and counted under its kind, the others are unchanged."""
    given_ = BAD_SCORES[name][0]
    ranking = trm.Ranking.from_scores(**({"scores": SCORES, "target": TARGET} | given_), validate_args="deferred")
    assert ranking.invalid.sum() == ranking.violations.rows.sum() > 0
    assert (ranking.num_relevant[ranking.violations.rows] == 0).all()
    assert ranking.ranks[ranking.violations.rows].isinf().all()
    assert (ranking.num_relevant[~ranking.violations.rows] > 0).all()


@pytest.mark.fixed
def test_topk_ranks_mark_invalid_rows():
    """With deferred checks `get_topk_ranks` writes the smallest int64 into a bad row."""
    scores = SCORES.where(SCORES < 0.9, math.nan)
    ranks = trm.get_topk_ranks(scores, TARGET, 2, validate_args="deferred")
    assert ranks.tolist() == [[INVALID_RANK] * 2, [2, INVALID_RANK * 0]]


@pytest.mark.fixed
def test_a_rejected_list_is_not_also_too_short():
    """A bad row is counted only under the first violation that was found."""
    lists, target = torch.tensor([[4, 4, 9], [5, 8, 2]]), torch.tensor([[9], [5]])
    ranking = trm.Ranking.from_topk(
        lists, target, exclude=torch.tensor([[9], [2]]), overlap="miss", validate_args="deferred"
    )
    metric = trm.HR(3, validate_args="deferred")
    metric.update(ranking)
    with pytest.raises(ValueError, match="1 row with an item recommended twice; 1 row known to fewer than k places"):
        metric.compute()


def test_a_ranking_that_was_read_can_be_kept():
    """A ranking can be pickled after metrics have read it, without cached results, and gives the same values."""
    import pickle

    ranking = trm.Ranking.from_scores(torch.rand(2, 5), torch.tensor([1, 2]))
    trm.RecMetricCollection(["NDCG", "HR"], k=[1, 3]).update(ranking)
    again = pickle.loads(pickle.dumps(ranking))
    assert ranking._derived
    assert not again._derived
    assert torch.equal(again.ranks, ranking.ranks)
    assert trm.NDCG(3)(again) == trm.NDCG(3)(ranking)


@pytest.mark.parametrize("ties", ["optimistic", "realistic", "pessimistic"])
@pytest.mark.parametrize("width", [1, 3])
def test_counts_behind_the_depth_may_be_anything(ties, width):
    """Wrong counts of an item with `depth` or more better items make neither a hit nor a tie of it.

    Kernels count right only items with fewer than `depth` better ones.
    """
    better, size = torch.tensor([[20, 3, 20]]), torch.tensor([[-40, 1, 0]])
    every = torch.ones(1, width, dtype=torch.bool)
    counts = TargetCounts(every, None, None, every, better[:, :width], size[:, :width])
    expected = [INF] if width == 1 else [4, INF, INF]
    for gains in (None, torch.ones(1, width).double()):
        found = sort_ranks(counts._replace(gains=gains), every, ties, None, 20)
        assert found.ranks.tolist() == [expected]
        assert not found.tied.any()


@pytest.mark.parametrize(
    "kind", [torch.int32, torch.int64, torch.float32, torch.float64, torch.bfloat16, torch.float16]
)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (5, 7), (600, 40)])
def test_rows_are_sorted(shape, kind, generator):
    """`sort_rows` gives the values of `torch.sort`, NaN last, and leaves its input unchanged."""
    values = torch.randint(-50, 50, shape, generator=generator).to(kind)
    if kind.is_floating_point and values.numel():
        values[::2, 0] = torch.nan
        values.requires_grad_()
    before = values.detach().clone()
    torch.testing.assert_close(arrays.sort_rows(values), values.detach().sort(dim=1).values, equal_nan=True)
    torch.testing.assert_close(values.detach(), before, equal_nan=True)


@pytest.mark.fixed
@pytest.mark.parametrize("width", [1, 12, 120])
def test_many_rows_in_any_layout_and_context(width, generator):
    """Many rows rank like a few at a time, also in column-major layout and with another default device."""
    scores = torch.randn(300, 2000, generator=generator)
    target = torch.stack([torch.randperm(2000, generator=generator)[:width] for _ in range(300)])
    by_column = [each.T.contiguous().T for each in (scores, target)]
    few = [trm.Ranking.from_scores(scores[i : i + 3], target[i : i + 3], depth=9, items=True) for i in range(0, 300, 3)]
    with torch.device("meta"):
        whole = [
            trm.Ranking.from_scores(scores, target, depth=9, items=True),
            trm.Ranking.from_scores(*by_column, depth=9, items=True),
        ]
    for made in whole:
        assert torch.equal(made.ranks, torch.cat([each.ranks for each in few]))
        assert torch.equal(made.items, torch.cat([each.items for each in few]))
    ranks = trm.get_topk_ranks(*by_column, 9)
    assert torch.equal(
        ranks, torch.cat([trm.get_topk_ranks(scores[i:][:3], target[i:][:3], 9) for i in range(0, 300, 3)])
    )
    for some in (ranks, ranks.T.contiguous().T):
        assert torch.equal(trm.Ranking.from_ranks(some, depth=9).ranks, whole[0].ranks)


def test_ranks_without_a_sort_of_their_own():
    """Ranks [B, T] in any order are sorted and cut at the largest k.

    The last rank of a row may equal the first of the next row: only a rank that occurs twice in one row is refused.
    """
    ranks = torch.tensor([[3, 0, 1, 9], [9, 0, 0, 2], [2**62, 2**63 - 1, -5, 4]])
    needs = trm.RecMetricCollection(["NDCG"], k=[2, 3]).needs
    ranking = to_ranking(UpdateArgs(ranks=ranks, depth=9), needs, Rules())
    assert ranking.ranks.tolist() == [[1, 3, INF], [2, INF, INF], [INF, INF, INF]]
    assert ranking.num_relevant.tolist() == [3, 2, 3]
    whole = trm.Ranking.from_ranks(ranks)
    assert whole.ranks.tolist() == [[1, 3, 9, INF], [2, 9, INF, INF], [4, INF, INF, INF]]
    with pytest.raises(ValueError, match=r"1 of 2 rows .* a place twice.*: row 1 is \[3, 3\]"):
        trm.Ranking.from_ranks(torch.tensor([[1, 3], [3, 3]]))


@pytest.mark.fixed
def test_places_that_are_none():
    """A rank that occurs twice is refused up to the depth, not beyond it; a row that was marked invalid is refused."""
    with pytest.raises(ValueError, match="a place twice"):
        trm.Ranking.from_ranks(torch.tensor([[2, 2]]), depth=2)
    assert trm.Ranking.from_ranks(torch.tensor([[3, 3]]), depth=2).ranks.tolist() == [[INF, INF]]
    with pytest.raises(ValueError, match="marked invalid"):
        trm.Ranking.from_ranks(torch.tensor([[INVALID_RANK, 1]]))
