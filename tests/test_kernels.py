"""Counting: every strategy alone against plain Python on whatever can be handed over, and the rule that picks one."""

import math
import os
import shutil
import sys
from functools import partial

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import torchrecmetrics as trm
from torchrecmetrics import arrays, functional, kernels
from torchrecmetrics.evaluation import scoring
from torchrecmetrics.kernels import Question, eager
from torchrecmetrics.ranking import Needs, Rules, ScoreRows
from torchrecmetrics.ranking import scores as ranking_scores
from torchrecmetrics.ranking.scores import unplaced
from torchrecmetrics.scratch import Scratch

INF, NAN = math.inf, math.nan
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@st.composite
def problems(draw):
    """Scores with ties, -inf, NaN and +inf in all dtypes and layouts; thresholds, masks and removed items."""
    rows, items, width = draw(st.integers(0, 4)), draw(st.integers(1, 23)), draw(st.integers(1, 5))
    choose = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    levels = torch.tensor(
        draw(st.sampled_from([[1.0], [0.0, 1, 2], [-INF, -1, 0, 1], [-INF, 0, 1, 2, NAN, INF], [-INF]]))
    )
    if draw(st.booleans()):
        levels = torch.cat([levels, torch.randn(20, generator=choose)])
    dtype = draw(st.sampled_from(DTYPES))

    def some(*shape):
        return levels[torch.randint(len(levels), shape, generator=choose)].to(dtype)

    scores = some(rows, items)
    layout = draw(st.sampled_from(["contiguous", "transposed", "strided", "expanded", "part"]))
    if layout == "transposed":
        scores = scores.T.contiguous().T
    elif layout == "strided":
        scores = scores.repeat_interleave(2, 1)[:, ::2]
    elif layout == "expanded":
        scores = some(1, items).expand(rows, items)
    elif layout == "part":
        scores = torch.cat([scores, some(rows, 3)], 1)[:, :items]
    thresholds = some(rows, width)
    if draw(st.booleans()):
        thresholds = scores.gather(1, torch.randint(items, (rows, width), generator=choose))
    thresholds = thresholds.where(thresholds > -INF, NAN)
    if draw(st.booleans()):
        thresholds = thresholds.T.contiguous().T
    masks = [
        torch.rand(shape, generator=choose) < 0.3 for shape in draw(st.sampled_from([[], [(items,)], [(rows, items)]]))
    ]
    masks += [torch.rand(rows, items, generator=choose) < 0.1] * draw(st.integers(0, 1))
    if draw(st.booleans()):
        masks = [mask.T.contiguous().T if mask.dim() == 2 else mask.repeat_interleave(2)[::2] for mask in masks]
    out = (torch.rand(rows, items, generator=choose) < draw(st.sampled_from([0.0, 0.2, 0.9]))) & (scores > -INF)
    for mask in masks:
        out &= ~mask
    floors = draw(st.sampled_from([(), (-1e4,), (1.0, -1e4)]))
    depth = draw(st.sampled_from([None, 1, 2, 3, 7, 50]))
    return scores, thresholds, depth, floors, masks, out


def removed(scores, out, width):
    """The scores of `out`, as the kernel takes them: ascending behind -inf."""
    if not out.any() and width == 0:
        return None
    values = scores.where(out, -INF).sort(1).values
    return values[:, max(0, values.shape[1] - int(out.sum(1).max()) - width) :] if len(values) else values


def check(counts, scores, thresholds, depth, floors, masks, out):
    """One score at a time."""
    for row in range(len(scores)):
        gone = [
            bool(out[row, i]) or any(bool((m if m.dim() == 1 else m[row])[i]) for m in masks)
            for i in range(scores.shape[1])
        ]
        values = [s for s, is_gone in zip(scores[row].tolist(), gone, strict=True) if not is_gone]
        for slot, threshold in enumerate(thresholds[row].tolist()):
            better = sum(s > threshold for s in values)
            if math.isnan(threshold):
                continue
            if depth is None or better < depth:
                assert counts.better[row, slot] == better
                assert counts.equal[row, slot] == sum(s == threshold for s in values)
            else:
                assert counts.better[row, slot] >= depth
        found = [] if counts.at_least is None else counts.at_least[row].tolist()
        assert found == [sum(s >= floor for s in values) for floor in floors]
        highest = max((INF if math.isnan(s) else s) for s in scores[row].tolist())
        found = counts.highest[row].item()
        assert math.isnan(found) if scores[row].isnan().any() else found == highest
    assert {part.dtype for part in counts[:3] if part is not None} == {torch.int64}
    assert (counts.at_least is None) is (not floors)
    assert counts.better.shape == counts.equal.shape == thresholds.shape


@pytest.mark.slow
@pytest.mark.parametrize("strategy", eager.STRATEGIES, ids=lambda strategy: strategy.__name__)
@pytest.mark.parametrize(("block", "at_once"), [(4, 2**21), (4, 24), (2, 8), (1, 1), (64, 2**21)])
@settings(max_examples=150, deadline=None)
@given(
    problem=problems(),
    width=st.integers(0, 2),
    calls=st.sampled_from([0, 2**15]),
    near=st.sampled_from([0, 2**19]),
    few=st.sampled_from([0, 40, 2**20]),
    apart=st.sampled_from([0, 1, 8]),
    select=st.sampled_from([0, 2]),
)
def test_every_strategy_counts(strategy, block, at_once, problem, width, calls, near, few, apart, select):
    """Each strategy alone is exact for every input, whether or not the rule would pick it, and writes to nothing."""
    scores, thresholds, depth, floors, masks, out = problem
    before = scores.clone()
    patch = pytest.MonkeyPatch()
    patch.setattr(eager, "_BLOCK", block)
    patch.setattr(eager, "_AT_ONCE", at_once)
    patch.setattr(eager, "_GROUPS_FROM", near)
    patch.setattr(eager, "_NEAR_FROM", near)
    patch.setattr(eager, "_FEW", few)
    patch.setattr(eager, "_APART", apart)
    patch.setattr(eager, "_SELECT", select)
    patch.setattr(eager, "_CALLS", calls)  # 0: PyTorch compares, however little
    every = not bool(thresholds.isnan().any())
    counts = strategy(scores, Question(thresholds, depth, floors, masks, removed(scores, out, width), every))
    patch.undo()
    check(counts, *problem)
    assert torch.equal(before.nan_to_num(7.5), scores.nan_to_num(7.5))


@pytest.mark.parametrize("strategy", eager.STRATEGIES, ids=lambda strategy: strategy.__name__)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("items", [63, 64, 1000])
@pytest.mark.parametrize("calls", [0, 2**15])
def test_strategies_on_real_shapes(strategy, dtype, items, calls, generator, device, monkeypatch):
    """Blocks and searches of full size: ties across the depth, no block, a part of one, more targets than places."""
    monkeypatch.setattr(eager, "_CALLS", calls)
    if device.type != "cpu" and strategy in (eager.by_topk, eager.by_blocks):
        pytest.skip("looks at data")
    scores = (torch.randn(9, items, generator=generator) * 4).round().to(dtype)
    thresholds = scores.gather(1, torch.rand(9, items, generator=generator).argsort(1)[:, :40])
    mask = torch.rand(items, generator=generator) < 0.1
    out = (torch.rand(9, items, generator=generator) < 0.05) & ~mask
    question = Question(thresholds.to(device), 10, (0.5,), [mask.to(device)], removed(scores, out, 0).to(device))
    check(strategy(scores.to(device), question), scores, thresholds, 10, (0.5,), [mask], out)


def test_constant_scores_everywhere():
    """A tie group of all items straddles every depth: nobody is better, all are equal."""
    scores, thresholds = torch.zeros(3, 700), torch.zeros(3, 2)
    for strategy in eager.STRATEGIES:
        counts = strategy(scores, Question(thresholds, 5))
        assert (counts.better == 0).all()
        assert (counts.equal == 700).all()


def test_far_rows_are_read_once(monkeypatch, generator):
    """Where no target can be within the depth, nothing is looked at again."""
    scores = torch.rand(8, 6400, generator=generator)
    scores[:, :3] = -1.0
    near = Question(scores.amax(1, keepdim=True), 20)
    for few, again in ((2**21, "_compare_rows"), (1, "_compare_blocks")):  # few scores, or many
        with monkeypatch.context() as patch:
            patch.setattr(eager, again, None)
            patch.setattr(eager, "_FEW", few)
            assert (eager.by_blocks(scores, Question(scores[:, :3], 20)).better >= 20).all()
            with pytest.raises(TypeError):
                eager.by_blocks(scores, near)


@pytest.mark.parametrize("every", [False, True])
def test_far_targets_stay_far_beside_near_ones(every, monkeypatch, generator):
    """Rows with fewer open thresholds than others are filled up, and what fills them up changes nothing."""
    for name, value in (
        ("_GROUPS_FROM", 0),
        ("_FEW_OF_LONG", 0),
        ("_FEW", 0),
        ("_APART", 4.7),
        ("_SELECT", 100),
        ("_FEW_MAXIMA", 0),
    ):
        monkeypatch.setattr(eager, name, value)
    scores = torch.randn(30, 6400, generator=generator)
    best = scores.topk(40).values
    # maxima of groups leave what stands a little behind the depth open, those of blocks do not
    thresholds = best[:, [0, 21, 21, 22, 22, 23]]
    thresholds[::2] = torch.cat([best[::2, [1, 20, 21, 22, 23]], scores[::2, :1]], 1)
    question = Question(thresholds, 20, every=every)
    found, expected = eager.by_blocks(scores, question), eager.by_comparing(scores, question)
    matters = expected.better < 20
    assert torch.equal(found.better[matters], expected.better[matters])
    assert (found.better[~matters] >= 20).all()


@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.parametrize(("near_rows", "groups_from"), [(300, 0), (40, 0), (40, 2**40)])
def test_many_near_targets_are_looked_up_among_the_best(near_rows, groups_from, threads, monkeypatch, generator):
    """Where selecting is cheaper than comparing with blocks, near rows are; few, or hidden ones, are not."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(eager, "_NEAR_FROM", 0)
    monkeypatch.setattr(eager, "_GROUPS_FROM", groups_from)
    scores = (torch.randn(300, 6400, generator=generator) * 4).round()
    near = scores.topk(20).values
    near[near_rows:] = scores[near_rows:, :20]
    rows = []
    select = eager._best
    monkeypatch.setattr(eager, "_best", lambda *given: rows.append(len(given[1])) or select(*given))
    question = Question(near, 20)
    found, expected = eager.by_blocks(scores, question), eager.by_comparing(scores, question)
    matters = expected.better < 20
    assert torch.equal(found.better[matters], expected.better[matters])
    assert torch.equal(found.equal[matters], expected.equal[matters])
    assert (found.better[~matters] >= 20).all()
    (selected,) = rows
    assert (selected == 300) is (near_rows == 300)
    for few in (near[:, 18:19], near[:5].where(torch.arange(20) < 1, torch.nan)):
        eager.by_blocks(scores[: len(few)], Question(few, 20))
    eager.by_blocks(scores, question._replace(removed=near[:, :1]))
    scores[near_rows - 1, 0] = NAN
    assert torch.equal(eager.by_blocks(scores, question).better < 20, matters)
    assert len(rows) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("shape", [(300, 1000), (1000,)])
@pytest.mark.parametrize("overlap", ["keep", "miss"])
def test_masks_are_written_over_a_copy(overlap, shape, dtype, monkeypatch, generator):
    """What the user gave stays as it is; what is under a mask is checked, too; values are those of reading masks."""
    scores = torch.randint(900, (300, 1000), generator=generator).to(dtype)
    mask = torch.rand(shape, generator=generator) < 0.3
    target, ids = torch.rand(scores.shape, generator=generator).argsort(1)[:, :40].split([30, 10], dim=1)
    given = scores.clone(), mask.clone()
    options = {"depth": 10, "exclude": (mask, ids), "overlap": overlap, "score_threshold": 800.0}
    found = fields(ranked(scores, target, **options))
    assert torch.equal(scores, given[0])
    assert torch.equal(mask, given[1])
    row, column = mask.expand(300, 1000).nonzero()[0]
    for bad in (INF, NAN):
        scores[row, column] = bad
        with pytest.raises(ValueError, match="NaN"):
            ranked(scores, target, **options)
    unchecked = fields(ranked(scores, target, validate_args=False, **options))
    scores[row, column] = given[0][row, column]
    monkeypatch.setattr(kernels, "hampered", lambda *_: False)
    for name, expected in fields(ranked(scores, target, **options)).items():
        assert torch.equal(found[name], expected), name
    scores[row, column] = NAN
    for name, expected in fields(ranked(scores, target, validate_args=False, **options)).items():
        assert torch.equal(unchecked[name], expected), name


@pytest.mark.parametrize(
    ("items", "width", "depth", "taken", "device", "expected"),
    [
        (4_800, 1, 100, 0, "cpu", "by_blocks"),
        (4_799, 1, 100, 0, "cpu", "by_comparing"),  # hardly more blocks than places
        (4_799, 10, 100, 0, "cpu", "by_topk"),
        (4_799, 9, 100, 0, "cpu", "by_comparing"),
        (150, 32, 100, 60, "cpu", "by_comparing"),  # all would have to be taken
        (50_000, 500, 20, 60, "cpu", "by_blocks"),
        (50_000, 79, None, 0, "cpu", "by_comparing"),
        (50_000, 80, None, 0, "cpu", "by_buckets"),
        (50_000, 1, 20, 0, "meta", "by_comparing"),  # nothing that looks at data
        (50_000, 80, 20, 0, "meta", "by_buckets"),
        (1_000, 50, 100, 0, "meta", "by_comparing"),
    ],
)
def test_the_rule(items, width, depth, taken, device, expected, monkeypatch):
    """Which strategy serves which shapes."""
    picked = []
    for strategy in eager.STRATEGIES:
        monkeypatch.setattr(eager, strategy.__name__, lambda *_, name=strategy.__name__: picked.append(name))
    scores, thresholds = torch.empty(2, items, device=device), torch.empty(2, width, device=device)
    removed = torch.empty(2, taken, device=device) if taken else None
    small = "_SMALL" if items < 10_000 else "_SMALL_OF_LONG"
    monkeypatch.setattr(eager, small, 2 * items * width - 1)
    eager.count(scores, Question(thresholds, depth, removed=removed))
    monkeypatch.setattr(eager, small, 2 * items * width)  # so little work that nothing is worth leaving out
    eager.count(scores, Question(thresholds, depth, removed=removed))
    assert picked == [expected, "by_buckets" if width >= 80 else "by_comparing"]


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("every", [False, True])
def test_wide_rows_are_told_far_by_one_maximum(every, removed, monkeypatch, generator):
    """Whether `depth` maxima are above a threshold is whether the `depth`-th largest is: ties, NaN and all."""
    maxima = torch.randint(20, (50, 30), generator=generator).float()
    maxima[torch.rand(maxima.shape, generator=generator) < 0.3] = -INF
    maxima[torch.rand(maxima.shape, generator=generator) < 0.1] = torch.nan
    asked = torch.randint(-1, 21, (50, 7), generator=generator).float()
    if not every:
        asked[torch.rand(asked.shape, generator=generator) < 0.1] = torch.nan  # not asked for
    taken = torch.randint(20, (50, 2), generator=generator).float().sort(dim=1).values if removed else None
    for depth in (1, 5, 30, 31):
        above = (maxima[:, :, None] > asked[:, None]).sum(1)
        above -= 0 if taken is None else (taken[:, :, None] > asked[:, None]).sum(1)
        for wide, few in ((1, 0), (100, 0), (100, 2000)):
            monkeypatch.setattr(eager, "_WIDE", wide)
            monkeypatch.setattr(eager, "_FEW_MAXIMA", few)
            assert torch.equal(eager._open(maxima, asked, depth, taken, every), (above < depth) & (asked > -INF))


# -------------------------------------------------------------------------------------------- what stands on the counts


@st.composite
def batches(draw):
    rows, items = draw(st.integers(0, 3)), draw(st.integers(2, 30))
    choose = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    scores = torch.randint(0, draw(st.sampled_from([2, 9, 1000])), (rows, items), generator=choose).float()
    scores[torch.rand(rows, items, generator=choose) < 0.1] = -INF
    target = torch.rand(rows, items, generator=choose).argsort(1)[:, : draw(st.integers(1, items))]
    target = target.where(torch.rand(target.shape, generator=choose) < 0.8, -1)
    history = torch.randint(-3, items, (rows, draw(st.integers(1, 6))), generator=choose)
    mask = torch.rand(items, generator=choose) < 0.2
    exclude = draw(st.sampled_from([None, history, mask, (history, mask), (history, mask.expand(rows, items))]))
    gains = torch.randint(-1, 4, target.shape, generator=choose) if draw(st.booleans()) else None
    options = {
        "gains": gains,
        "exclude": exclude,
        "ties": draw(st.sampled_from(["optimistic", "realistic", "pessimistic"])),
    }
    options |= {"overlap": draw(st.sampled_from(["keep", "miss"])), "padding_idx": draw(st.sampled_from([None, 0]))}
    return scores, target, options | {"score_threshold": draw(st.sampled_from([None, 1.0]))}


@pytest.mark.parametrize("overlap", ["keep", "miss"])
@pytest.mark.parametrize("at_once", [2**20, 64 * 1000])
def test_many_excluded_items_are_overwritten_in_copies(overlap, at_once, monkeypatch, generator):
    """What the user gave stays as it is, and the values are those of taking excluded items off the counts."""
    scores = torch.randint(900, (300, 1000), generator=generator).float()
    before = scores.clone()
    target, exclude = torch.rand(scores.shape, generator=generator).argsort(1)[:, :80].split([30, 50], dim=1)
    exclude = exclude.where(torch.rand(exclude.shape, generator=generator) < 0.9, -1)
    exclude[:, :3] = target[:, :3]
    options = {"exclude": exclude, "overlap": overlap, "padding_idx": 7}
    monkeypatch.setattr(ranking_scores, "_AT_ONCE", at_once)
    made = []
    monkeypatch.setattr(
        ranking_scores, "_copies", lambda given, copies=ranking_scores._copies: made.append(given) or copies(given)
    )
    found = fields(ranked(scores, target, depth=10, **options))
    assert len(made) == 1
    assert torch.equal(scores, before)
    monkeypatch.setattr(kernels, "hampered", lambda *_: False)
    for name, expected in fields(ranked(scores, target, depth=10, **options)).items():
        assert torch.equal(found[name], expected), name
    assert len(made) == 1


@pytest.mark.parametrize(
    ("items", "width", "depth", "taken", "device", "expected"),
    [
        (1_000, 20, 20, 13, "cpu", True),
        (1_000, 20, 20, 12, "cpu", False),  # 32 blocks, one of them of 8
        (1_000, 20, 20, 0, "cpu", False),
        (1_000, 20, None, 50, "cpu", False),
        (900, 20, 20, 50, "cpu", False),  # by top-k
        (1_000, 1, 20, 50, "cpu", False),  # so little that every score is compared
        (1_000, 20, 20, 50, "meta", False),
    ],
)
def test_when_copies_are_made(items, width, depth, taken, device, expected):
    """Where blocks would bound nothing, and would be looked at; and where masks are written over few scores."""
    scores = torch.empty(300, items, device=device)
    assert eager.hampered(scores, width, depth, taken) is expected
    assert eager.hampered(scores, width, depth, 0, masked=True) is (device == "cpu")
    assert eager.hampered(torch.empty(2000, items, device=device), width, depth, 0, masked=True) is False


def rows(scores, at_once=2):
    """The same scores, made for two rows at a time in a buffer that is used again."""
    buffer = torch.empty(at_once, scores.shape[1])
    parts = lambda: (buffer[: len(part)].copy_(part) for part in scores.split(at_once))  # noqa: E731
    return ScoreRows(scores.shape, scores.dtype, scores.device, parts)


def ranked(scores, target, depth, gains=None, exclude=None, score_threshold=None, **rules):
    """`Ranking.from_scores`, for scores that the package makes."""
    needs = Needs(depth, num_ranked=True, score_threshold=score_threshold)
    return trm.Ranking.placed(unplaced(scores, target, gains, exclude, needs, Rules(**rules)))


def fields(ranking):
    """All tensors of a Ranking, by name."""
    found = {}
    for name, value in vars(ranking).items():
        parts = value if isinstance(value, tuple) else (value,)
        found |= {f"{name}{i}": part for i, part in enumerate(parts) if isinstance(part, torch.Tensor)}
    return found


@settings(max_examples=200, deadline=None)
@given(batch=batches(), owned=st.booleans(), k=st.integers(1, 8), calls=st.sampled_from([0, 2**15]))
def test_depth_and_ownership_change_nothing_within_the_depth(batch, owned, k, calls):
    """A ranking to a depth is the whole one cut there, whatever was skipped and whatever was overwritten."""
    scores, target, options = batch
    whole = trm.Ranking.from_scores(scores, target, **options)
    patch = pytest.MonkeyPatch()
    patch.setattr(eager, "_BLOCK", 2)
    patch.setattr(eager, "_AT_ONCE", 8)
    patch.setattr(eager, "_CALLS", calls)
    got = ranked(rows(scores) if owned else scores, target, depth=k, **options)
    patch.undo()
    expected = fields(whole)
    for name, tensor in fields(got).items():
        want, part = expected[name], name[:-1]
        if name in ("found0", "penalties0"):
            want = want.where(want <= k, INF)
        elif part in ("found", "penalties"):  # who is in a group with whom behind the depth is all the same
            near = expected[f"{part}0"] <= k
            tensor, want = tensor.where(near, 0), want.where(near, 0)
        if name == "tied0":
            continue  # within the depth: below
        assert torch.equal(tensor, want), name
    again = trm.Ranking.from_scores(scores, target, **options, depth=k)
    assert torch.equal(got.tied, again.tied)
    assert not (got.tied & ~whole.tied).any()


@pytest.mark.parametrize("bad", [NAN, INF])
def test_an_owned_score_is_checked_before_it_is_overwritten(bad):
    """A NaN or +inf of an excluded item is reported like any other."""
    scores, target = torch.rand(2, 9), torch.tensor([[1], [2]])
    scores[1, 5] = bad
    for owned in (False, True):
        with pytest.raises(ValueError, match=r"1 of 2 rows with a score that is NaN or .inf: the highest of row 1"):
            ranked(rows(scores) if owned else scores, target, depth=3, exclude=torch.tensor([[-1], [5]]))


def test_candidates_are_counted_only_for_who_reads_them(monkeypatch):
    """`num_ranked` costs a read of its own: Ranking.from_scores has it, a collection only if a member needs it."""
    floors = []
    count = kernels.count

    def counting(scores, question, *args):
        floors.append(len(question.floors))
        return count(scores, question, *args)

    monkeypatch.setattr(kernels, "count", counting)
    scores, target = torch.rand(3, 50), torch.tensor([1, 2, 3])
    assert trm.Ranking.from_scores(scores, target, depth=5).num_ranked.tolist() == [50, 50, 50]
    for metric in (trm.HR(5), trm.Precision(5), trm.Precision(5, denominator="recommended"), trm.AUROC(), trm.MRR()):
        metric.update(scores, target)
    trm.F1(5, denominator="recommended", score_threshold=0.5).update(scores, target)
    trm.RecMetricCollection(["HR", "AUROC"], k=5).update(scores, target)
    trm.get_topk_ranks(scores, target, 5)
    assert floors == [1, 0, 0, 1, 1, 1, 1, 1, 0]


def test_five_cutoffs_sum_once(monkeypatch, generator):
    """What depends on no cut-off is made once for all members; the batch's ranking is not kept."""
    made = []
    sums = functional._sums
    monkeypatch.setattr(functional, "_sums", lambda values: (made.append(1), sums(values))[1])
    scores, target = torch.rand(4, 99, generator=generator), torch.tensor([[1, 2]] * 4)
    for k in (3, 3, [1, 2, 3, 5, 8]):
        made.clear()
        trm.RecMetricCollection(["HR", "NDCG", "MAP", "Recall", "MRR"], k=k).update(scores, target)
    assert len(made) == 2  # DCG and the precisions; the ideal depends on no batch


def test_one_ranking_serves_every_option(generator):
    """What is kept for one option is not taken for another's: a ranking read before equals a fresh one."""
    scores, graded = torch.rand(4, 30, generator=generator), torch.randint(-2, 4, (4, 30), generator=generator).float()
    read = trm.Ranking.from_scores(scores, graded)
    for function, options in (
        (functional.ndcg, {"gain": "linear"}),
        (functional.ndcg, {"gain": "exponential"}),
        (functional.recall, {"weighted": True}),
        (functional.recall, {"truncated": True}),
        (functional.average_precision, {"normalize": "min"}),
    ):
        for k in (3, 10):
            fresh = trm.Ranking.from_scores(scores, graded)
            assert torch.equal(function(read, k, **options), function(fresh, k, **options))


RANKINGS = {
    "scores": lambda: trm.Ranking.from_scores(torch.rand(5, 40), torch.rand(5, 40) < 0.2),
    "graded": lambda: trm.Ranking.from_scores(
        torch.rand(5, 40).round(decimals=1), torch.randint(-1, 4, (5, 40)).float()
    ),
    "ranks": lambda: trm.Ranking.from_ranks(torch.tensor([[1, 5, 0], [2, 30, 11]]), num_ranked=40),
}


OPTIONS = {
    "precision": [{}, {"denominator": "min"}, {"denominator": "recommended", "zero_division": 1.0}],
    "recall": [{}, {"truncated": True}, {"weighted": True}],
    "f1": [{}, {"denominator": "min"}, {"denominator": "recommended"}],
    "average_precision": [{}, {"normalize": "min"}],
    "ndcg": [{}, {"gain": "exponential"}],
}


@pytest.mark.parametrize("name", sorted(set(functional.__all__) - {"auroc", "r_precision"}))
@pytest.mark.parametrize("kind", [*RANKINGS, "large"])
def test_several_cutoffs_are_each_of_them(name, kind):
    """A list of cut-offs gives [K, B], one row for each, in the order of the list."""
    cutoffs = [10, 1, 3, 40, 10]
    for options in OPTIONS.get(name, [{}]):
        ranking = (RANKINGS | {"large": large})[kind]()
        got = getattr(functional, name)(ranking, cutoffs, **options)
        ranking._derived.clear()
        expected = torch.stack([getattr(functional, name)(ranking, k, **options) for k in cutoffs])
        assert torch.equal(got.nan_to_num(-1), expected.nan_to_num(-1))
        assert got.dtype == expected.dtype


def large():
    """As many ranks as are searched, not compared."""
    generator = torch.Generator().manual_seed(1)
    ranks = torch.rand(2**12, 45, generator=generator).argsort(1)[:, :9]
    return trm.Ranking.from_ranks(ranks, num_ranked=50)


def test_cutoffs_are_checked_one_by_one():
    ranking = trm.Ranking.from_ranks(torch.tensor([[1, 5]]), depth=5)
    for several in ([3, 6], [6, 3]):
        with pytest.raises(ValueError, match="depth 5 only"):
            functional.ndcg(ranking, several)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        functional.ndcg(ranking, (3, 0))
    with pytest.raises(TypeError, match="'3'"):
        functional.ndcg(ranking, ["3"])
    for name in sorted(set(functional.__all__) - {"auroc", "r_precision"}):
        function = getattr(functional, name)
        for several in (torch.tensor([1, 2]), torch.tensor([1, 2]).numpy(), "12"):  # not a row's own cut-offs either
            with pytest.raises(TypeError, match="k must be an integer >= 1"):
                function(ranking, several)
        with pytest.raises(ValueError, match="no cut-off"):
            function(ranking, [])
        assert torch.equal(function(ranking, range(2, 4)), function(ranking, [torch.tensor(2), 3]))
    with pytest.raises(TypeError, match="got None"):
        functional.precision(ranking, None)


@pytest.mark.parametrize("width", [0, 1, 2, 3, 4, 7, 8, 9, 100])
def test_sums_by_doubling(width, generator):
    """What stands in for `cumsum` where that refuses to be deterministic."""
    values = torch.randint(-9, 9, (3, width), generator=generator).double()
    assert torch.equal(arrays.doubling_sums(values), values.cumsum(1))


def test_a_formula_is_asked_once(monkeypatch, generator):
    """All cut-offs of a metric go through its formula together; other options are another formula."""
    asked = []

    def ndcg(ranking, k=None, *, gain="linear"):
        asked.append(k)
        return functional.ndcg(ranking, k, gain=gain)

    monkeypatch.setattr(trm.NDCG, "formula", staticmethod(ndcg))
    members = [trm.NDCG(5), trm.NDCG(), trm.NDCG(2), trm.NDCG(5, gain="exponential"), trm.HR(5)]
    asked.clear()
    trm.RecMetricCollection(members).update(torch.rand(4, 9, generator=generator), torch.tensor([1, 2, 3, 4]))
    assert sorted(asked, key=str) == [(2, 5), 5, None]


def test_members_keep_their_own_cutoffs(generator):
    """In any order, beside others of the same formula, and with options that cannot be hashed."""
    scores, target = torch.rand(9, 30, generator=generator), torch.randint(30, (9, 1), generator=generator)
    alone = {k: trm.NDCG(k) for k in (9, 2, 5)}
    together = trm.RecMetricCollection({f"n{k}": trm.NDCG(k) for k in alone} | {"n": trm.NDCG(), "hit": trm.HR(9)})
    for metric in (*alone.values(), together):
        metric.update(scores, target)
    values = together.compute()
    assert all(values[f"n{k}"] == metric.compute() for k, metric in alone.items())

    listed = [1, 2]

    class Within(trm.HR):
        formula = staticmethod(lambda ranking, k, score_threshold=None, places=(): functional.hit_rate(ranking, k))

    one = trm.RecMetricCollection({f"w{k}": Within(k, places=listed) for k in (5, 2)})
    one.update(scores, target)
    Within.formula = staticmethod(lambda ranking, k, score_threshold=None, places=(): ranking.ranks[:, 0])
    with pytest.raises(TypeError, match="a row for each of the cut-offs \\(5, 2\\)"):
        one.update(scores, target)


@pytest.mark.slow
@pytest.mark.parametrize("name", functional.__all__)
@pytest.mark.parametrize("kind", RANKINGS)
@pytest.mark.parametrize("k", [10, (3, 10)])
def test_functions_compile(name, kind, k):
    """torch.compile(fullgraph=True) takes every function on every kind of ranking, first or second time."""
    function = getattr(functional, name)
    ranking = RANKINGS[kind]()
    args = () if name in ("auroc", "r_precision") else (k,)
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(ranking, *args).nan_to_num(-1), function(ranking, *args).nan_to_num(-1))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="no C++ compiler")
def test_inductor(tmp_path, monkeypatch):
    """The default backend gives the same numbers."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    ranking = RANKINGS["graded"]()
    torch._dynamo.reset()
    got = torch.compile(functional.ndcg, fullgraph=True)(ranking, 10)
    assert got.tolist() == pytest.approx(functional.ndcg(ranking, 10).tolist(), nan_ok=True)


@pytest.mark.parametrize("strategy", eager.STRATEGIES, ids=lambda strategy: strategy.__name__)
@pytest.mark.parametrize("calls", [0, 2**15])
def test_no_strategy_needs_denormal_numbers(strategy, calls, monkeypatch):
    """Where the processor takes the smallest numbers for 0, as some libraries set it to, counts are the same."""
    monkeypatch.setattr(eager, "_CALLS", calls)
    scores = torch.tensor([[0.0, -1.0, 0.0, 1.0, -torch.inf]])
    torch.set_flush_denormal(True)
    try:
        counts = strategy(scores, Question(torch.tensor([[0.0, 1.0, -1.0]])))
    finally:
        torch.set_flush_denormal(False)
    assert counts.better.tolist() == [[1, 0, 3]]
    assert counts.equal.tolist() == [[2, 1, 1]]


# ------------------------------------------------------------------------------------------------- which kernels count


CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


class Card:
    """Stands for the Triton kernels on a machine that has, or lacks, what they need."""

    def __init__(self, reason):
        self.unavailable = lambda device: reason


@pytest.mark.parametrize(
    ("card", "recorded", "auto", "triton"),
    [
        (Card(None), {(9, 0)}, "triton", "triton"),
        (Card(None), {(8, 0)}, "eager", "triton"),
        (Card("too old"), {(9, 0)}, "eager", "too old"),
        (None, {(9, 0)}, "eager", "cannot be imported"),
    ],
    ids=["recorded", "not recorded", "unavailable", "not installed"],
)
def test_kernels_are_chosen(card, recorded, auto, triton, monkeypatch):
    """Auto takes Triton's where a run is on record; who asks for them gets them, or an error that says why not."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert kernels.choose("auto", CUDA) == "eager", "no run is on record yet"
    monkeypatch.setattr(kernels, "_RECORDED", frozenset(recorded))
    monkeypatch.setitem(sys.modules, "torchrecmetrics.kernels.triton", card)
    monkeypatch.delattr(kernels, "triton", raising=False)
    if card is not None:
        monkeypatch.setattr(kernels, "triton", card, raising=False)
    assert kernels.choose("auto", CUDA) == auto
    assert kernels.choose("auto", CPU) == kernels.choose("eager", CPU) == kernels.choose("eager", CUDA) == "eager"
    if triton == "triton":
        assert kernels.choose("triton", CUDA) == "triton"
    else:
        with pytest.raises(ValueError, match=f"kernels='triton' cannot be used: .*{triton}"):
            kernels.choose("triton", CUDA)


def test_a_request_that_cannot_be_met_changes_nothing():
    """On the CPU there is nothing for Triton to run on: every door says so, and no state moves."""
    scores, target = torch.rand(2, 5), torch.tensor([1, 2])
    for form in (trm.Ranking.from_scores, partial(trm.get_topk_ranks, k=2)):
        with pytest.raises(ValueError, match="kernels='triton' cannot be used"):
            form(scores, target, kernels="triton")
        with pytest.raises(ValueError, match="kernels must be one of 'auto', 'eager', 'triton', got 'cuda'"):
            form(scores, target, kernels="cuda")
    collection = trm.RecMetricCollection(["HR"], k=2, kernels="triton")
    with pytest.raises(ValueError, match="kernels='triton' cannot be used"):
        collection.update(scores, target)
    assert not collection["HR@2"].update_called
    held = trm.Interactions.from_padded(target[:, None], 5)
    with pytest.raises(ValueError, match="kernels='triton' cannot be used"):
        trm.evaluate("HR", torch.rand(2, 3), torch.rand(5, 3), target=held, k=1, kernels="triton")
    with pytest.raises(ValueError, match="kernels must be one of"):
        trm.HR(2, kernels="cuda")
    with pytest.raises(ValueError, match="kernels"):
        trm.RecMetricCollection([trm.HR(2, kernels="eager")], kernels="auto")


def test_what_counted_can_be_asked_for():
    scores, target = torch.rand(2, 5), torch.tensor([1, 2])
    assert trm.Ranking.from_scores(scores, target).kernels == "eager"
    assert trm.Ranking.from_ranks(target).kernels is None
    held = trm.Interactions.from_padded(target[:, None], 5)
    assert trm.evaluate("HR", scores, torch.rand(5, 5), target=held, k=1).kernels == "eager"


@pytest.mark.parametrize("rows", [1, 9])
def test_rows_with_room_behind_them(rows, generator):
    """Rows that begin with a cache line are counted, and their best found, as they are without."""
    scores = (torch.randn(rows, 1000, generator=generator) * 9).round()
    room = torch.full((rows, 1008), torch.inf)
    room[:, :1000] = scores
    question = Question(scores[:, :3].contiguous(), 10, (0.5,))
    for strategy in eager.STRATEGIES:
        check(strategy(room[:, :1000], question), scores, question.thresholds, 10, (0.5,), [], scores.isnan())
    assert torch.equal(kernels.best(room[:, :1000], 10), kernels.best(scores, 10))


def test_products_begin_with_a_cache_line(generator):
    """On the CPU, where that makes products of an odd number of items up to twice as fast; nobody sees the room."""
    users, items = torch.randn(40, 8, generator=generator), torch.randn(501, 8, generator=generator)
    scorer = scoring.scorer_of(users, items, (40, 501), scoring.Terms(), scoring.Place.of(None, users))
    (part,) = scorer.scores(torch.arange(40), 40).parts()
    assert part.shape == (40, 501)
    assert part.stride() == (512, 1)
    torch.testing.assert_close(part, users @ items.T)


@pytest.mark.parametrize("share", [0.2, 1])
@pytest.mark.parametrize("apart", [0, 8])
def test_what_is_open_at_any_level(share, apart, monkeypatch, generator):
    """Near rows, few of them or most, are settled by groups, by blocks or whole: all the same, and where they stand."""
    for name, value in {"_BLOCK": 4, "_GROUPS_FROM": 0, "_NEAR_FROM": 0, "_APART": apart}.items():
        monkeypatch.setattr(eager, name, value)
    scores = torch.randn(12, 96, generator=generator)
    thresholds = scores.gather(1, scores.argsort(1)[:, torch.tensor([0, 95, 88, 86])])  # far, near, between
    thresholds = thresholds.where(torch.rand(12, 1, generator=generator) < share, thresholds[:, :1])
    for few in range(0, 96 * 48, 96):
        monkeypatch.setattr(eager, "_FEW", few)
        check(eager.by_blocks(scores, Question(thresholds, 5)), scores, thresholds, 5, (), [], scores.isnan())


@pytest.mark.parametrize(("rows", "items"), [(64, 60), (64, 3000), (256, 5000), (256, 5120)])
def test_ranking_inside_a_compiled_function(rows, items, generator):
    """Memory that is kept from call to call stays out of a trace, and the trace out of it."""
    scores, target = torch.randn(rows, items, generator=generator), torch.randint(items, (rows, 1), generator=generator)
    ranks = partial(trm.get_topk_ranks, k=10, validate_args=False)
    expected = ranks(scores, target)
    torch._dynamo.reset()
    with torch.inference_mode():
        assert torch.equal(torch.compile(lambda *given: ranks(*given), backend="eager")(scores, target), expected)
    assert torch.equal(ranks(scores, target), expected)


def test_nothing_fake_is_kept(generator, monkeypatch):
    """Shapes may be asked for without data, and numbers counted after that; nor does an export leave its own behind."""
    monkeypatch.setattr(eager, "_maxima", Scratch(2**20))
    scores = torch.randn(512, 5000, generator=generator)
    with FakeTensorMode():
        target = torch.zeros(512, 1, dtype=torch.int64)
        shape = eager.count(torch.empty(512, 5000), Question(torch.empty(512, 1), 10)).better.shape
        ranks = trm.Ranking.from_scores(
            torch.empty(512, 5000), target.expand(-1, 2), depth=10, validate_args=False
        ).ranks
    assert (shape, ranks.shape) == ((512, 1), (512, 2))
    counts = eager.count(scores, Question(scores.amax(1, keepdim=True), 10))
    assert (counts.better == 0).all()
    ranking = trm.Ranking.from_ranks(torch.tensor([[1.0, 3.0], [2.0, INF]]))

    class Model(torch.nn.Module):
        def forward(self, offset):
            return functional.hit_rate(ranking, 10) + offset

    torch.export.export(Model(), (torch.zeros(2),), strict=False)
    assert functional.hit_rate(ranking, 1).tolist() == [1, 0]
    assert not any(isinstance(kept, FakeTensor) for kept in ranking._derived.values())
