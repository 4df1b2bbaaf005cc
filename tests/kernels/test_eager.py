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
from torchrecmetrics.inputs.scores import ScoreRows, TargetCounter
from torchrecmetrics.kernels import Question, blocks, eager

INF, NAN = math.inf, math.nan
STRATEGIES = (eager.compare_all, eager.limit, eager.sort, eager.bucket, eager.select)


def counted(strategy, scores, question, patch):
    """Count by one strategy, whether or not the rule would pick it; by `compare` where it does not apply."""
    patch.setattr(
        eager, "choose_strategy", lambda *_: strategy if applies(strategy, scores, question) else eager.compare_all
    )
    return eager.count(scores, question)


def applies(strategy, scores, question):
    """Return True if a strategy takes the question: `select` and `limit` need rows, and a depth below the items."""
    if strategy not in (eager.select, eager.limit):
        return True
    if question.depth is None or question.depth >= scores.shape[1] or not len(scores):
        return False
    depth, items = question.depth + (0 if question.removed is None else question.removed.shape[1]), scores.shape[1]
    return strategy is eager.select or (eager.can_sync(scores) and items >= 4 * blocks.num_groups(depth))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.__name__)
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
        patch.setattr(blocks, "MIN_GROUPS", 1)
        patch.setattr(eager, "TILE_SCORES_CPU", tile)
        patch.setattr(eager, "TILE_FLAGS_CPU", tile)
        if not device_may_wait:  # as on devices other than the CPU
            patch.setattr(eager, "can_sync", lambda _: False)
            patch.setattr(arrays, "can_sync", lambda _: False)
        counts = counted(strategy, scores, question, patch)
    check(counts, *problem)
    assert torch.equal(before.nan_to_num(7.5), scores.nan_to_num(7.5))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.__name__)
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


@pytest.mark.parametrize("items", [3000, 40_000])
@pytest.mark.parametrize("bad", [NAN, INF])
def test_constant_scores_are_counted_directly(items, bad, monkeypatch):
    """Where too many scores reach the limit, all are compared, and NaN and +inf still show as the highest scores."""
    scores = torch.zeros(4, items)
    scores[1, 70], scores[2, 5] = bad, 1.0
    for width in (1, 30):
        question = Question(torch.tensor([0.0, 1.0, NAN]).repeat(10)[:width].expand(4, width), 20)
        counts = counted(eager.limit, scores, question, monkeypatch)
        assert counts.better[:, 0].tolist() == [0, float(bad == INF), 1, 0]
        assert counts.equal[:, 0].tolist() == [items, items - 1, items - 1, items]
        assert (~(counts.highest < INF)).tolist() == [False, True, False, False]


@pytest.mark.parametrize("strategy", [eager.select, eager.limit])
@pytest.mark.parametrize("bad", [NAN, INF])
def test_bad_scores_that_are_rejected_later(bad, strategy, generator, monkeypatch):
    """NaN and +inf are the row's highest score, and other rows are counted as usual."""
    scores = torch.randn(4, 6400, generator=generator)
    thresholds = scores.topk(3).values
    scores[1, 70] = bad
    counts = counted(strategy, scores, Question(thresholds, 20, nan_is_rejected=True), monkeypatch)
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
    ("rows", "items", "width", "depth", "device", "expected"),
    [
        (64, 4096, 1, 20, "cpu", eager.limit),
        (64, 4095, 1, 20, "cpu", eager.compare_all),  # too few comparisons of a row
        (63, 4096, 1, 20, "cpu", eager.compare_all),  # too few comparisons
        (64, 1024, 4, 20, "cpu", eager.limit),
        (64, 800, 30, 100, "cpu", eager.limit),
        (64, 799, 30, 100, "cpu", eager.sort),  # groups of fewer than four items
        (64, 799, 15, 100, "cpu", eager.compare_all),
        (64, 256, 30, 1, "cpu", eager.limit),
        (64, 255, 30, 1, "cpu", eager.sort),
        (64, 50_000, 15, None, "cpu", eager.compare_all),
        (64, 50_000, 16, None, "cpu", eager.sort),
        (0, 50_000, 24, 20, "cpu", eager.compare_all),
        (2, 2**23, 1, 20, "meta", eager.select),
        (2, 2**23 - 1, 1, 20, "meta", eager.compare_all),
        (2, 2**19, 16, 20, "meta", eager.select),
        (2, 1_000, 15, None, "meta", eager.compare_all),
        (2, 1_000, 16, None, "meta", eager.bucket),
        (2**19, 161, 200, 160, "meta", eager.bucket),  # `select` would have to take all items
        (2**19, 162, 200, 160, "meta", eager.select),
    ],
)
def test_the_rule(rows, items, width, depth, device, expected):
    """The strategy is chosen by shape and device; the cases lie on both sides of each bound."""
    scores, thresholds = (torch.empty(1, 1, device=device).expand(rows, columns) for columns in (items, width))
    assert eager.choose_strategy(scores, Question(thresholds, depth)) is expected


@pytest.mark.parametrize(("removed", "expected"), [(50, eager.limit), (51, eager.sort)])
def test_removed_items_may_be_the_best(removed, expected, monkeypatch):
    """The strategy is chosen for the depth among all scores."""
    choose, chosen = eager.choose_strategy, []
    monkeypatch.setattr(eager, "choose_strategy", lambda *given: chosen.append(choose(*given)) or eager.compare_all)
    eager.count(torch.zeros(64, 800), Question(torch.zeros(64, 30), 50, removed=torch.zeros(64, removed)))
    assert chosen == [expected]


@pytest.mark.parametrize(("name", "device"), [("TILE_SCORES_CPU", "cpu"), ("TILE_SCORES", "meta")])
@pytest.mark.parametrize(("tile", "copies"), [(120, 3), (119, 4)])
def test_rows_are_copied_a_tile_at_a_time(name, device, tile, copies, monkeypatch):
    """Memory for masked scores is bounded by the tile, not by the batch."""
    monkeypatch.setattr(eager, name, tile)
    scores = torch.zeros(12, 30, device=device)
    question = Question(scores[:, :1], masks=[torch.zeros(30, dtype=torch.bool, device=device)])

    assert len(list(eager._tiles(scores, question))) == copies


def rows(scores, at_once=2):
    """Return the same scores as `ScoreRows`, made for two rows at a time in a buffer that is reused."""
    buffer = torch.empty(at_once, scores.shape[1], dtype=scores.dtype)
    parts = lambda: (buffer[: len(part)].copy_(part) for part in scores.split(at_once))  # noqa: E731
    return ScoreRows(scores.shape, scores.dtype, scores.device, parts)


def ranked(scores, target, depth, gains=None, exclude=None, score_threshold=None, **rules):
    """Rank scores as `Scores.ranking` does, also where the package makes the scores."""
    needs = Needs(depth, num_ranked=True, score_threshold=score_threshold)
    return trm.Scores(scores, target, gains, exclude).rank(needs, Options(**rules))


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


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.__name__)
def test_no_strategy_needs_denormal_numbers(strategy, monkeypatch):
    """Counts are the same where the processor flushes denormal numbers to 0, as some libraries set it to."""
    monkeypatch.setattr(blocks, "MIN_GROUPS", 1)
    scores = torch.tensor([[0.0, -1.0, 0.0, 1.0, *[-torch.inf] * 28]])
    torch.set_flush_denormal(True)
    try:
        counts = counted(strategy, scores, Question(torch.tensor([[0.0, 1.0, -1.0]]), 4), monkeypatch)
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


def test_kernels_of_another_name_are_refused():
    with pytest.raises(ValueError, match="kernels must be one of 'auto', 'eager', 'triton', got 'cuda'"):
        trm.HR(2, kernels="cuda")


def test_a_ranking_knows_the_kernels_that_made_it():
    assert trm.Scores(torch.rand(2, 5), torch.tensor([1, 2])).ranking().kernels == "eager"
    assert trm.Ranks(torch.tensor([1, 2]), complete=True).ranking().kernels is None


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
    """Fake tensors of shape inference are not kept: later counts are of real numbers."""
    scores = torch.randn(512, 5000, generator=generator)
    with FakeTensorMode():
        eager.count(torch.empty(512, 5000), Question(torch.empty(512, 1), 10))

    assert (eager.count(scores, Question(scores.amax(1, keepdim=True), 10)).better == 0).all()


def test_nothing_of_an_export_is_kept():
    """A formula caches no fake tensor in a ranking while it is exported."""
    ranking = trm.Ranks(torch.tensor([[1.0, 3.0], [2.0, INF]]), complete=True).ranking()

    class Model(torch.nn.Module):
        def forward(self, offset):
            return functional.hit_rate(ranking, 10) + offset

    torch.export.export(Model(), (torch.zeros(2),), strict=False)

    assert not any(isinstance(kept, FakeTensor) for kept in ranking._cache.values())
    assert functional.hit_rate(ranking, 1).tolist() == [1, 0]


def test_nothing_is_asked():
    """Without thresholds and minimum scores the counts are empty, and the highest scores are returned."""
    scores = torch.rand(3, 50)
    counts = eager.count(scores, Question(scores[:, :0]))
    assert counts.better.shape == (3, 0)
    assert torch.equal(counts.highest, scores.amax(1))
