"""Every counting strategy agrees with plain Python on every input, and rules choose the strategy and the kernels."""

import math
import sys
from functools import partial

import hypothesis.strategies as st
import pytest
import torch
from counting import DTYPES, check, problems, removed
from hypothesis import given, settings
from rankings import rank_scores
from sizes import examples
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import torchrecmetrics as trm
from torchrecmetrics import functional, kernels
from torchrecmetrics.core import arrays
from torchrecmetrics.core.options import Needs, Options
from torchrecmetrics.core.ranked_items import RankedItems
from torchrecmetrics.data.exclusions import TargetDevice
from torchrecmetrics.evaluation import scoring
from torchrecmetrics.inputs.scores import ScoreRows, TargetCounter
from torchrecmetrics.kernels import Question, blocks, eager

INF, NAN = math.inf, math.nan


def counted(strategy, scores, question, patch):
    """Count by one strategy, whether or not the rule would pick it."""
    if strategy is eager.select and (question.depth is None or question.depth >= scores.shape[1] or not len(scores)):
        strategy = eager.compare  # `select` needs rows, and a depth below the number of items
    patch.setattr(eager, "choose_strategy", lambda *_: strategy)
    return eager.count(scores, question)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", eager.STRATEGIES, ids=lambda strategy: strategy.__name__)
@pytest.mark.parametrize(
    ("block", "tile"),
    [(2, 8), *(pytest.param(*sizes, marks=pytest.mark.nightly) for sizes in ((4, 2**20), (1, 1), (64, 24)))],
)
@pytest.mark.parametrize("device_may_wait", [True, False])
@settings(max_examples=examples(150), deadline=None)
@given(problem=problems(), width=st.integers(0, 2))
def test_every_strategy_counts(strategy, block, tile, device_may_wait, problem, width):
    """Each strategy is exact for every input, whether or not it may read values, and does not write to the scores."""
    scores, thresholds, depth, min_scores, masks, out = problem
    before = scores.clone()
    question = Question(thresholds, depth, min_scores, masks, removed(scores, out, width))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_ITEMS", block)
        patch.setattr(eager, "TILE_SCORES_CPU", tile)
        if not device_may_wait:  # as on devices other than the CPU
            patch.setattr(eager, "can_sync", lambda _: False)
            patch.setattr(arrays, "can_sync", lambda _: False)
        counts = counted(strategy, scores, question, patch)
    check(counts, *problem)
    assert torch.equal(before.nan_to_num(7.5), scores.nan_to_num(7.5))


@pytest.mark.parametrize("strategy", eager.STRATEGIES, ids=lambda strategy: strategy.__name__)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("items", "behind"), [(63, 0), (64, 8), (1000, 8), (3000, 0)])
def test_strategies_on_real_shapes(strategy, dtype, items, behind, generator, device, monkeypatch):
    """Each strategy is exact at full size, with no block of items, a part of one, and several.

    Ties extend across the depth, there are more targets than the depth, one row is constant, and rows may end before
    their memory, which is not read there.
    """
    scores = (torch.randn(9, items, generator=generator) * 4).round().to(dtype)
    scores[4] = 0
    thresholds = scores.gather(1, torch.rand(9, items, generator=generator).argsort(1)[:, :40])
    mask = torch.rand(items, generator=generator) < 0.1
    out = (torch.rand(9, items, generator=generator) < 0.05) & ~mask
    question = Question(thresholds.to(device), 10, (0.5,), [mask.to(device)], removed(scores, out, 0).to(device))
    wider = torch.nn.functional.pad(scores, (0, behind), value=INF).to(device)
    check(counted(strategy, wider[:, :items], question, monkeypatch), scores, thresholds, 10, (0.5,), [mask], out)
    question = Question(thresholds.to(device), 10)  # without a copy
    check(counted(strategy, wider[:, :items], question, monkeypatch), scores, thresholds, 10, (), [], scores.isnan())


@pytest.mark.parametrize("threads", [1, 8])
def test_best_scores_by_threads(threads, monkeypatch, generator):
    """NumPy selects the best scores with few threads and PyTorch with many, and the counts are the same."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    scores = (torch.randn(300, 6400, generator=generator) * 4).round()
    question = Question(torch.cat([scores.topk(20).values, scores[:, :20]], 1), 20)
    check(eager.select(scores, question), scores, question.thresholds, 20, (), [], scores.isnan())


@pytest.mark.parametrize("bad", [NAN, INF])
def test_bad_scores_that_are_rejected_later(bad, generator):
    """NaN and +inf are the row's highest score, and other rows are counted as usual."""
    scores = torch.randn(4, 6400, generator=generator)
    thresholds = scores.topk(3).values
    scores[1, 70] = bad
    counts = eager.select(scores, Question(thresholds, 20, nan_is_rejected=True))
    assert (~(counts.highest < INF)).tolist() == [False, True, False, False]
    assert counts.better[[0, 2, 3]].tolist() == [[0, 1, 2]] * 3


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("form", ["ids", "mask of items", "mask"])
@pytest.mark.parametrize("owned", [False, True])
def test_an_excluded_score_is_checked_before_it_is_overwritten(bad, form, owned, monkeypatch):
    """A NaN or +inf of an excluded item raises; unchecked it changes no rank. Scores and mask are not changed."""
    clean, target = torch.rand(2, 9, dtype=torch.float64), torch.tensor([[1], [2]])
    mask = torch.zeros(2, 9, dtype=torch.bool)
    mask[1, 5] = True
    exclude = {"ids": torch.tensor([[-1], [5]]), "mask of items": mask[1], "mask": mask}[form]
    scores = clean.masked_fill(mask, bad)
    with pytest.raises(ValueError, match=r"1 of 2 rows with a score that is NaN or .inf: the highest of row 1"):
        ranked(rows(scores) if owned else scores, target, depth=3, exclude=exclude)
    assert torch.equal(scores.nan_to_num(7.5), clean.masked_fill(mask, bad).nan_to_num(7.5))
    expected = ranked(clean, target, depth=3, exclude=exclude).ranks
    for pays in (True, False):
        monkeypatch.setattr(TargetCounter, "copies_pay", lambda *_, pays=pays: pays)
        unchecked = ranked(rows(scores) if owned else scores, target, depth=3, exclude=exclude, validate_args=False)
        assert torch.equal(unchecked.ranks, expected)
    assert mask.nonzero().tolist() == [[1, 5]]


@pytest.mark.parametrize(
    ("items", "width", "depth", "taken", "device", "expected"),
    [
        (16_384, 1, 100, 0, "cpu", eager.select),
        (16_383, 1, 100, 0, "cpu", eager.compare),  # too few comparisons for `select`
        (1_024, 16, 100, 0, "cpu", eager.select),
        (1_024, 15, 100, 0, "cpu", eager.compare),
        (161, 200, 100, 60, "cpu", eager.bucket),  # `select` would have to take all items
        (162, 200, 100, 60, "cpu", eager.select),
        (50_000, 79, None, 0, "cpu", eager.compare),
        (50_000, 80, None, 0, "cpu", eager.bucket),
        (2**23, 1, 20, 0, "meta", eager.select),
        (2**23 - 1, 1, 20, 0, "meta", eager.compare),
        (2**19, 16, 20, 0, "meta", eager.select),
        (1_000, 15, None, 0, "meta", eager.compare),
        (1_000, 16, None, 0, "meta", eager.bucket),
    ],
)
def test_the_rule(items, width, depth, taken, device, expected):
    """The strategy is chosen by shape and device; the cases lie on both sides of each bound."""
    scores, thresholds = torch.empty(2, items, device=device), torch.empty(2, width, device=device)
    removed = torch.empty(2, taken, device=device) if taken else None
    assert eager.choose_strategy(scores, Question(thresholds, depth, removed=removed)) is expected


@pytest.mark.parametrize(("name", "device"), [("TILE_SCORES_CPU", "cpu"), ("TILE_SCORES", "meta")])
@pytest.mark.parametrize(("tile", "copies"), [(120, 3), (119, 4)])
def test_rows_are_copied_a_tile_at_a_time(name, device, tile, copies, monkeypatch):
    """Memory for masked scores is bounded by the tile, not by the batch."""
    monkeypatch.setattr(eager, name, tile)
    scores = torch.zeros(12, 30, device=device)
    question = Question(scores[:, :1], masks=[torch.zeros(30, dtype=torch.bool, device=device)])
    assert len(list(eager._copies(scores, question))) == copies


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


def rows(scores, at_once=2):
    """Return the same scores as `ScoreRows`, made for two rows at a time in a buffer that is reused."""
    buffer = torch.empty(at_once, scores.shape[1])
    parts = lambda: (buffer[: len(part)].copy_(part) for part in scores.split(at_once))  # noqa: E731
    return ScoreRows(scores.shape, scores.dtype, scores.device, parts)


def ranked(scores, target, depth, gains=None, exclude=None, score_threshold=None, **rules):
    """Rank scores as `Scores.ranking` does, also where the package makes the scores."""
    needs = Needs(depth, num_ranked=True, score_threshold=score_threshold)
    return trm.Scores(scores, target, gains, exclude).rank(needs, Options(**rules))


def fields(ranking):
    """Return all tensors of a Ranking, by name."""
    found = {}
    for name, value in vars(ranking).items():
        if isinstance(value, RankedItems):
            value = (value.ranks, value.gains, value.tie_group)
        parts = value if isinstance(value, tuple) else (value,)
        found |= {f"{name}{i}": part for i, part in enumerate(parts) if isinstance(part, torch.Tensor)}
    return found


@settings(max_examples=examples(200), deadline=None)
@given(batch=batches(), owned=st.booleans(), k=st.integers(1, 8), least=st.sampled_from([0, 2**14]))
def test_depth_and_ownership_change_nothing_within_the_depth(batch, owned, k, least):
    """A ranking to a depth is the whole one cut there, whichever scores are skipped or overwritten."""
    scores, target, options = batch
    whole = rank_scores(scores, target, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_ITEMS", 2)
        patch.setattr(eager, "TILE_SCORES_CPU", 8)
        patch.setattr(eager, "SELECT_COMPARISONS_CPU", least)  # 0: select wherever it can
        got = ranked(rows(scores) if owned else scores, target, depth=k, **options)
    expected = fields(whole)
    for name, tensor in fields(got).items():
        want, part = expected[name], name[:-1]
        if name in ("relevant0", "penalties0"):
            want = want.where(want <= k, INF)
        elif part in ("relevant", "penalties"):  # tie groups beyond the depth do not matter
            near = expected[f"{part}0"] <= k
            tensor, want = tensor.where(near, 0), want.where(near, 0)
        if name == "tied0":
            continue  # compared below, within the depth
        assert torch.equal(tensor, want), name
    again = rank_scores(scores, target, **options, depth=k)
    assert torch.equal(got.tied, again.tied)
    assert not (got.tied & ~whole.tied).any()


def test_candidates_are_counted_only_for_who_reads_them(monkeypatch):
    """`num_ranked` costs another read: `Scores.ranking` counts it, a collection only if a member needs it."""
    min_scores = []
    count = eager.count

    def counting(scores, question, *args):
        min_scores.append(len(question.min_scores))
        return count(scores, question, *args)

    monkeypatch.setattr(eager, "count", counting)
    scores, target = torch.rand(3, 50), torch.tensor([1, 2, 3])
    assert trm.Scores(scores, target).ranking(depth=5).num_ranked.tolist() == [50, 50, 50]
    for metric in (trm.HR(5), trm.Precision(5), trm.Precision(5, denominator="recommended"), trm.MRR()):
        metric.update(scores, target)
    trm.RecMetricCollection(["HR", "AUROC"], k=5).update(scores, target)
    trm.get_topk_ranks(scores, target, 5)
    assert min_scores == [1, 0, 0, 1, 1, 1, 0]


@pytest.mark.parametrize("strategy", eager.STRATEGIES, ids=lambda strategy: strategy.__name__)
def test_no_strategy_needs_denormal_numbers(strategy):
    """Counts are the same where the processor flushes denormal numbers to 0, as some libraries set it to."""
    scores = torch.tensor([[0.0, -1.0, 0.0, 1.0, -torch.inf]])
    torch.set_flush_denormal(True)
    try:
        counts = strategy(scores, Question(torch.tensor([[0.0, 1.0, -1.0]]), 4))
    finally:
        torch.set_flush_denormal(False)
    assert counts.better.tolist() == [[1, 0, 3]]
    assert counts.equal.tolist() == [[2, 1, 1]]


CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


class Card:
    """A stand-in for the Triton kernels on a machine that meets, or does not meet, their requirements."""

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
    """Auto takes Triton where a run is on record; asking for Triton gives it, or an error that says why not."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(kernels, "_RECORDED", frozenset(recorded))
    monkeypatch.setitem(sys.modules, "torchrecmetrics.kernels.triton", card)
    monkeypatch.delattr(kernels, "triton", raising=False)
    if card is not None:
        monkeypatch.setattr(kernels, "triton", card, raising=False)
    assert kernels.choose("auto", CUDA) == kernels.choose("auto", CUDA, 2**26) == auto
    assert kernels.choose("auto", CUDA, 2**26 - 1) == "eager", "few scores: launches are the cost"
    assert kernels.choose("auto", CPU) == kernels.choose("eager", CPU) == kernels.choose("eager", CUDA) == "eager"
    if triton == "triton":
        assert kernels.choose("triton", CUDA) == "triton"
    else:
        with pytest.raises(ValueError, match=f"kernels='triton' cannot be used: .*{triton}"):
            kernels.choose("triton", CUDA)


def test_a_request_that_cannot_be_met_changes_nothing():
    """A request for Triton on the CPU, where it cannot run, raises in every function and changes no state."""
    scores, target, users, items = torch.rand(2, 5), torch.tensor([1, 2]), torch.rand(2, 3), torch.rand(5, 3)
    collection = trm.RecMetricCollection(["HR"], k=2, kernels="triton")
    truth = trm.Interactions.from_padded(target[:, None], 5)
    for ask in (
        lambda: rank_scores(scores, target, kernels="triton"),
        lambda: trm.get_topk_ranks(scores, target, 2, kernels="triton"),
        lambda: collection.update(scores, target),
        lambda: trm.evaluate("HR", users, items, target=truth, k=1, kernels="triton"),
    ):
        with pytest.raises(ValueError, match="kernels='triton' cannot be used"):
            ask()
    assert not collection["HR@2"].update_called
    with pytest.raises(ValueError, match="kernels must be one of 'auto', 'eager', 'triton', got 'cuda'"):
        trm.HR(2, kernels="cuda")
    assert trm.Scores(scores, target).ranking().kernels == "eager"
    assert trm.Ranks(target).ranking().kernels is None


def test_products_begin_with_a_cache_line(generator):
    """On the CPU, rows of products begin with a cache line: up to twice as fast for an odd number of items."""
    users, items = torch.randn(40, 8, generator=generator), torch.randn(501, 8, generator=generator)
    scorer = scoring.EmbeddingScorer(trm.Embeddings(users, items), TargetDevice(users.device, False))
    (part,) = scorer.scores(torch.arange(40), 40).chunks()
    assert part.shape == (40, 501)
    assert part.stride() == (512, 1)
    torch.testing.assert_close(part, users @ items.T)


@pytest.mark.parametrize(("rows", "items"), [(64, 60), (256, 5000)])
def test_ranking_inside_a_compiled_function(rows, items, generator):
    """Buffers that are kept between calls stay out of a compiled graph, and its tensors out of the buffers."""
    scores, target = torch.randn(rows, items, generator=generator), torch.randint(items, (rows, 1), generator=generator)
    ranks = partial(trm.get_topk_ranks, k=10, validate_args=False)
    expected = ranks(scores, target)
    torch._dynamo.reset()
    with torch.inference_mode():
        assert torch.equal(torch.compile(lambda *given: ranks(*given), backend="eager")(scores, target), expected)
    assert torch.equal(ranks(scores, target), expected)


def test_nothing_fake_is_kept(generator):
    """Fake tensors of shape inference and of an export are not kept: later counts and metrics are of real numbers."""
    scores = torch.randn(512, 5000, generator=generator)
    with FakeTensorMode():
        target = torch.zeros(512, 1, dtype=torch.int64)
        shape = eager.count(torch.empty(512, 5000), Question(torch.empty(512, 1), 10)).better.shape
        ranks = trm.Scores(torch.empty(512, 5000), target.expand(-1, 2)).ranking(depth=10, validate_args=False).ranks
    assert (shape, ranks.shape) == ((512, 1), (512, 2))
    counts = eager.count(scores, Question(scores.amax(1, keepdim=True), 10))
    assert (counts.better == 0).all()
    ranking = trm.Ranks(torch.tensor([[1.0, 3.0], [2.0, INF]])).ranking()

    class Model(torch.nn.Module):
        def forward(self, offset):
            return functional.hit_rate(ranking, 10) + offset

    torch.export.export(Model(), (torch.zeros(2),), strict=False)
    assert functional.hit_rate(ranking, 1).tolist() == [1, 0]
    assert not any(isinstance(kept, FakeTensor) for kept in ranking._cache.values())


def test_nothing_is_asked():
    """Without thresholds and minimum scores the counts are empty, and the highest scores are returned."""
    scores = torch.rand(3, 50)
    counts = eager.compare(scores, Question(scores[:, :0]))
    assert counts.better.shape == (3, 0)
    assert torch.equal(counts.highest, scores.amax(1))
