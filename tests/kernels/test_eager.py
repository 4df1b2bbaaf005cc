"""Every counting strategy agrees with plain Python on every input, and rules choose the strategy and the kernels."""

import math
import sys
from functools import partial
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
import torch
from counting import DTYPES, check, problems, removed
from hypothesis import given, settings
from sizes import examples
from torch._subclasses.fake_tensor import FakeTensorMode

import torchrecmetrics as trm
from torchrecmetrics import functional, kernels
from torchrecmetrics.core import arrays
from torchrecmetrics.core.options import Needs, Options
from torchrecmetrics.inputs.scores import ScoreRows, TargetCounter
from torchrecmetrics.kernels import Question, blocks, eager

INF, NAN = math.inf, math.nan
STRATEGIES = (eager.compare_all, eager.limit, eager.sort, eager.bucket, eager.select)
EACH_STRATEGY = pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.__name__)


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
@EACH_STRATEGY
@pytest.mark.parametrize(
    ("block", "tile"),
    [(2, 8), *(pytest.param(*sizes, marks=pytest.mark.nightly) for sizes in ((4, 2**20), (1, 1), (64, 24)))],
)
@pytest.mark.parametrize("device_may_wait", [True, False])
@settings(max_examples=examples(150), deadline=None)
@given(problem=problems(), width=st.integers(0, 2))
def test_every_strategy_is_exact_and_writes_to_no_score(strategy, block, tile, device_may_wait, problem, width):
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


@EACH_STRATEGY
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("items", "behind"), [(63, 0), (64, 8), (1000, 8), (3000, 0)])
@pytest.mark.parametrize("num_masks", [1, 0])  # with a copy of the scores, and in place
def test_strategies_are_exact_at_full_size(strategy, dtype, items, behind, num_masks, generator, device, monkeypatch):
    """For no block of items, a part of one, and several; rows may end before their memory, which is not read there."""
    scores = (torch.randn(9, items, generator=generator) * 4).round().to(dtype)  # with ties across the depth
    scores[4] = 0
    thresholds = scores.gather(1, torch.rand(9, items, generator=generator).argsort(1)[:, :40])
    masks = [torch.rand(items, generator=generator) < 0.1][:num_masks]
    out = torch.rand(9, items, generator=generator) < 0.05
    for mask in masks:
        out &= ~mask
    on_device = [mask.to(device) for mask in masks]
    question = Question(thresholds.to(device), 10, (0.5,), on_device, removed(scores, out, 0).to(device))
    wider = torch.nn.functional.pad(scores, (0, behind), value=INF).to(device)
    counts = counted(strategy, wider[:, :items], question, monkeypatch)

    check(counts, scores, thresholds, 10, (0.5,), masks, out)


@pytest.mark.parametrize("items", [3000, 40_000])
@pytest.mark.parametrize("width", [1, 30])
@pytest.mark.parametrize(("bad", "better"), [(NAN, 0), (INF, 1)])
def test_constant_scores_are_compared_where_too_many_reach_the_limit(bad, better, width, items, monkeypatch):
    scores = torch.zeros(4, items)
    scores[1, 70], scores[2, 5] = bad, 1.0
    counts = counted(eager.limit, scores, Question(torch.zeros(4, width), 20), monkeypatch)

    # counts of the last threshold, as of all: each is 0
    assert counts.better[:, -1].tolist() == [0, better, 1, 0]
    assert counts.equal[:, -1].tolist() == [items, items - 1, items - 1, items]
    assert (~(counts.highest < INF)).tolist() == [False, True, False, False]


@pytest.mark.parametrize("strategy", [eager.select, eager.limit])
@pytest.mark.parametrize("bad", [NAN, INF])
def test_rows_beside_one_that_will_be_rejected_are_counted(bad, strategy, generator, monkeypatch):
    """NaN and +inf are the highest score of their row, which the caller leaves out."""
    scores = torch.randn(4, 6400, generator=generator)
    thresholds = scores.topk(3).values
    scores[1, 70] = bad
    counts = counted(strategy, scores, Question(thresholds, 20, nan_is_rejected=True), monkeypatch)

    assert (~(counts.highest < INF)).tolist() == [False, True, False, False]
    assert counts.better[[0, 2, 3]].tolist() == [[0, 1, 2]] * 3


def rows(scores, at_once=2):
    """Return the same scores as `ScoreRows`, made for two rows at a time in a buffer that is reused."""
    buffer = torch.empty(at_once, scores.shape[1], dtype=scores.dtype)
    parts = lambda: (buffer[: len(part)].copy_(part) for part in scores.split(at_once))  # noqa: E731
    return ScoreRows(scores.shape, scores.dtype, scores.device, parts)


def ranked(scores, exclude, **rules):
    """Rank items 1 and 2 as `Scores.ranking` does, also where the package makes the scores."""
    target = torch.tensor([[1], [2]])
    return trm.Scores(scores, target, None, exclude).rank(Needs(3, num_ranked=True), Options(**rules))


MASK = torch.arange(2 * 9).view(2, 9) == 9 + 5  # item 5 of row 1
EXCLUDED = pytest.mark.parametrize("exclude", [torch.tensor([[-1], [5]]), MASK[1], MASK], ids=["ids", "items", "mask"])
BAD_SCORES = pytest.mark.parametrize("bad", [NAN, INF])
OWNERS = pytest.mark.parametrize("made", [lambda scores: scores, rows], ids=["of the caller", "of the package"])


@BAD_SCORES
@EXCLUDED
@OWNERS
def test_a_bad_score_of_an_excluded_item_is_refused_and_stays(made, exclude, bad):
    scores, mask = torch.rand(2, 9).masked_fill(MASK, bad), exclude.clone()

    with pytest.raises(ValueError, match=r"1 of 2 rows with a score that is NaN or .inf: the highest of row 1"):
        ranked(made(scores), exclude)
    assert (~(scores < INF)).nonzero().tolist() == [[1, 5]]
    assert torch.equal(exclude, mask)


@BAD_SCORES
@EXCLUDED
@OWNERS
@pytest.mark.parametrize("copies", [True, False])
def test_an_unchecked_score_of_an_excluded_item_changes_no_rank(copies, made, exclude, bad, monkeypatch):
    clean = torch.rand(2, 9)
    expected = ranked(clean, exclude).ranks
    monkeypatch.setattr(TargetCounter, "copies_pay", lambda *_: copies)
    unchecked = ranked(made(clean.masked_fill(MASK, bad)), exclude, validate_args=False)

    assert torch.equal(unchecked.ranks, expected)


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
def test_shape_and_device_choose_the_strategy(rows, items, width, depth, device, expected):
    scores, thresholds = (torch.empty(1, 1, device=device).expand(rows, columns) for columns in (items, width))
    assert eager.choose_strategy(scores, Question(thresholds, depth)) is expected


@pytest.mark.parametrize(("num_removed", "expected"), [(50, eager.limit), (51, eager.sort)])
def test_the_depth_that_chooses_the_strategy_counts_removed_items(num_removed, expected, monkeypatch):
    choose, chosen = eager.choose_strategy, []
    monkeypatch.setattr(eager, "choose_strategy", lambda *given: chosen.append(choose(*given)) or eager.compare_all)
    eager.count(torch.zeros(64, 800), Question(torch.zeros(64, 30), 50, removed=torch.zeros(64, num_removed)))

    assert chosen == [expected]


@pytest.mark.parametrize(("name", "device"), [("TILE_SCORES_CPU", "cpu"), ("TILE_SCORES", "meta")])
@pytest.mark.parametrize(("tile", "copies"), [(120, 3), (119, 4)])
def test_memory_for_masked_scores_is_bounded_by_the_tile(name, device, tile, copies, monkeypatch):
    """Of 12 rows of 30 items, 4 fit into 120 scores, 3 into 119."""
    monkeypatch.setattr(eager, name, tile)
    scores = torch.zeros(12, 30, device=device)
    question = Question(scores[:, :1], masks=[torch.zeros(30, dtype=torch.bool, device=device)])

    assert len(list(eager._tiles(scores, question))) == copies


@pytest.mark.parametrize(
    ("read", "counts_candidates"),
    [
        (lambda *batch: trm.Scores(*batch).ranking(depth=5), True),
        (lambda *batch: trm.get_topk_ranks(*batch, 5), False),
        (lambda *batch: trm.HR(5).update(*batch), False),
        (lambda *batch: trm.Precision(5).update(*batch), False),
        (lambda *batch: trm.Precision(5, denominator="recommended").update(*batch), True),
        (lambda *batch: trm.MRR().update(*batch), True),
        (lambda *batch: trm.RecMetricCollection(["HR", "AUROC"], k=5).update(*batch), True),
    ],
)
def test_candidates_are_counted_only_for_who_reads_them(read, counts_candidates, monkeypatch):
    min_scores, count = [], eager.count
    monkeypatch.setattr(eager, "count", lambda *given: min_scores.append(given[1].min_scores) or count(*given))
    read(torch.rand(3, 50), torch.tensor([1, 2, 3]))

    assert [len(each) == 1 for each in min_scores] == [counts_candidates]


@EACH_STRATEGY
def test_no_strategy_needs_denormal_numbers(strategy, monkeypatch):
    """Counts are the same where the processor flushes denormal numbers to 0, as some libraries set it to."""
    monkeypatch.setattr(blocks, "MIN_GROUPS", 1)
    scores = torch.tensor([[0.0, -1.0, 0.0, 1.0, *[-INF] * 28]])
    torch.set_flush_denormal(True)
    try:
        counts = counted(strategy, scores, Question(torch.tensor([[0.0, 1.0, -1.0]]), 4), monkeypatch)
    finally:
        torch.set_flush_denormal(False)

    assert counts.better.tolist() == [[1, 0, 3]]
    assert counts.equal.tolist() == [[2, 1, 1]]


CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def put_card(monkeypatch):
    """Return a function that puts a stand-in for the Triton kernels on a card of compute capability 9.0."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def put(reason=None, recorded=(9, 0), installed=True):
        card = SimpleNamespace(unavailable=lambda device: reason)
        monkeypatch.setattr(kernels, "_RECORDED", frozenset({recorded}))
        monkeypatch.delattr(kernels, "triton", raising=False)
        monkeypatch.setitem(sys.modules, "torchrecmetrics.kernels.triton", card if installed else None)

    return put


@pytest.mark.parametrize(
    ("asked", "card", "expected"),
    [
        (("auto", CUDA), {}, "triton"),
        (("auto", CUDA), {"recorded": (8, 0)}, "eager"),
        (("auto", CUDA), {"reason": "too old"}, "eager"),
        (("auto", CUDA), {"installed": False}, "eager"),
        (("auto", CUDA, 2**26), {}, "triton"),
        (("auto", CUDA, 2**26 - 1), {}, "eager"),  # launches are the cost
        (("auto", CPU), {}, "eager"),
        (("eager", CUDA), {}, "eager"),
        (("triton", CUDA), {"recorded": (8, 0)}, "triton"),
    ],
)
def test_auto_takes_triton_for_many_scores_where_a_run_is_on_record(asked, card, expected, put_card):
    put_card(**card)
    assert kernels.choose(*asked) == expected


@pytest.mark.parametrize("card", [{"reason": "cannot run"}, {"installed": False}])
def test_triton_that_cannot_run_is_refused_with_the_reason(card, put_card):
    put_card(**card)
    with pytest.raises(ValueError, match=r"kernels='triton' cannot be used: .*(cannot run|cannot be imported)"):
        kernels.choose("triton", CUDA)


BATCH = torch.tensor([[0.5, 0.2, 0.3, 0.1, 0.4]] * 2), torch.tensor([1, 2])
EYE, DIAGONAL = torch.eye(3), trm.Interactions.from_dense(torch.eye(3) > 0)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: trm.Scores(*BATCH).ranking(kernels="triton"),
        lambda: trm.get_topk_ranks(*BATCH, 2, kernels="triton"),
        lambda: trm.evaluate("HR@1", EYE, EYE, target=DIAGONAL, kernels="triton"),
    ],
)
def test_triton_on_the_cpu_is_refused(ask):
    with pytest.raises(ValueError, match="kernels='triton' cannot be used"):
        ask()


def test_a_refused_update_changes_no_state():
    collection = trm.RecMetricCollection(["HR"], k=2, kernels="triton")

    with pytest.raises(ValueError, match="kernels='triton' cannot be used"):
        collection.update(*BATCH)
    assert not collection["HR@2"].update_called


def test_kernels_of_another_name_are_refused():
    with pytest.raises(ValueError, match="kernels must be one of 'auto', 'eager', 'triton', got 'cuda'"):
        trm.HR(2, kernels="cuda")


def test_a_ranking_knows_the_kernels_that_made_it():
    assert trm.Scores(*BATCH).ranking().kernels == "eager"
    assert trm.Ranks(torch.tensor([1, 2]), complete=True).ranking().kernels is None


@pytest.mark.parametrize(("rows", "items"), [(64, 60), (256, 5000)])
def test_a_compiled_function_returns_the_ranks_of_a_plain_one(rows, items, generator):
    """For few scores and for many, which a plain function counts otherwise than a compiled one."""
    scores, target = torch.randn(rows, items, generator=generator), torch.randint(items, (rows, 1), generator=generator)
    ranks = partial(trm.get_topk_ranks, k=10, validate_args=False)
    torch._dynamo.reset()
    with torch.inference_mode():
        compiled_ranks = torch.compile(lambda *given: ranks(*given), backend="eager")(scores, target)

    assert torch.equal(compiled_ranks, ranks(scores, target))


def test_a_metric_of_fake_tensors_does_not_change_later_values():
    """Cut-offs are kept as a tensor for later calls; no other test has this pair of them."""

    def hit_rate():
        return functional.hit_rate(
            trm.Ranks(torch.tensor([[2]]), complete=True).ranking(validate_args=False), [1, 4321]
        )

    with FakeTensorMode():
        hit_rate()

    assert hit_rate().tolist() == [[0], [1]]


def test_an_export_does_not_change_later_values_of_its_ranking():
    ranking = trm.Ranks(torch.tensor([[1.0, 3.0], [2.0, INF]]), complete=True).ranking()

    class Model(torch.nn.Module):
        def forward(self, offset):
            return functional.hit_rate(ranking, 1) + offset

    torch.export.export(Model(), (torch.zeros(2),), strict=False)

    assert functional.hit_rate(ranking, 1).tolist() == [1, 0]
