"""The Triton kernels on the CPU. test_triton.py runs this with TRITON_INTERPRET=1, which Triton reads at import."""

import math
import runpy
import traceback
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from counting import check, defined, problems, removed, same
from hypothesis import given, settings
from values import near, numbers

import torchrecmetrics as trm
from torchrecmetrics.kernels import Question
from torchrecmetrics.kernels import triton as kernels

INF, NAN = math.inf, math.nan
FP32, FP16, MIXED = (torch.float32,) * 2, (torch.float16,) * 2, (torch.float16, torch.float32)


@pytest.mark.parametrize("way", ["comparing", "histograms", "atomics"])
@settings(max_examples=20, deadline=None)
@given(problem=problems())
def test_each_way_of_counting_is_exact_and_writes_to_no_score(way, problem):
    scores, thresholds, depth, min_scores, masks, out = problem
    before = scores.clone()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "_DIRECT", 32 if way == "comparing" else 0)
        patch.setattr(kernels, "_KEYS", 1024 if way == "histograms" else 0)
        counts = kernels.count(scores, Question(thresholds, depth, min_scores, masks, removed(scores, out, 1)))

    check(counts, *problem)
    assert torch.equal(before.nan_to_num(7.5), scores.nan_to_num(7.5))


@pytest.mark.parametrize("width", [1, 9, 600], ids=["comparing", "histograms", "atomics"])
def test_small_case_of_scores_is_exact(width, generator):
    scores = (torch.randn(2, 1300, generator=generator) * 4).round()
    scores[0, 1299], scores[1, 3], scores[:, 5:90] = NAN, INF, -INF
    masks = [torch.rand(1300, generator=generator) < 0.1]
    taken = torch.randn(2, 9, generator=generator).round().sort(1).values
    question = Question(scores[:, 100 : 100 + width], None, (0.5,), masks, taken)

    same(kernels.count(scores, question), defined(scores, question), question.thresholds)


def far_apart(values, steps):
    """Return the same numbers with rows or columns so far apart that offsets need more than 32 bits."""
    last = sum((size - 1) * step for size, step in zip(values.shape, steps, strict=True))
    assert last >= 2**31
    try:
        flat = torch.empty(last + 1, dtype=values.dtype)  # the system maps only the pages that are used
    except RuntimeError:
        pytest.skip("no 5 GB of address space")
    return flat.as_strided(values.shape, steps).copy_(values)


VALUES = torch.tensor([[0.0, 2, 1, 2], [1, 1, 0, 2], [2, 0, 0, 1]], dtype=torch.float16)
FAR = pytest.mark.parametrize("steps", [(2**30, 1), (1, 2**30), (2**31, 1)])
"""Steps from row to row and from column to column."""


@FAR
@pytest.mark.parametrize("width", [1, 40])
def test_scores_or_masks_may_be_2_to_the_31_numbers_apart(width, steps, generator):
    mask = torch.tensor([[1, 0, 0, 1], [0, 0, 1, 0], [1, 0, 1, 0]], dtype=torch.int8)
    question = Question(VALUES[:, torch.randint(4, (width,), generator=generator)], masks=[mask.bool()])
    far_masks = question._replace(masks=[far_apart(mask, steps).view(torch.bool)])
    expected = defined(VALUES, question)

    same(kernels.count(far_apart(VALUES, steps), question), expected, question.thresholds)
    same(kernels.count(VALUES, far_masks), expected, question.thresholds)


@FAR
def test_embeddings_may_be_2_to_the_31_numbers_apart(steps):
    far, ids = far_apart(VALUES, steps), torch.tensor([[0], [1], [2]])

    check_products(kernels.Products(far, VALUES), ids)
    check_products(kernels.Products(VALUES, far), ids)


def whole_numbers(rows, items, width, operands, generator):
    """Return embeddings whose products are exact for every order of sums, with many ties."""
    users = torch.randint(-2, 3, (rows, width), generator=generator).to(operands[0])
    return users, torch.randint(-2, 3, (items, width), generator=generator).to(operands[1])


def counts_of_matrix(scores, question):
    """Return the counts of a matrix by their definition; products have 0 for the highest score."""
    return defined(scores, question)._replace(highest=torch.zeros(len(scores)))


def check_products(products, ids, min_scores=(), taken=None, kept=1.0):
    """Assert that pair scores and counts are those of the product in memory; early exit is exact up to the depth."""
    users, items, bias = products
    scores = users.float() @ items.float().T + (0 if bias is None else bias)
    own = kernels.pair_scores(products, ids)
    assert torch.equal(own, scores.gather(1, ids))
    keep = (own > -INF) & (torch.rand(own.shape, generator=torch.Generator().manual_seed(1)) < kept)
    thresholds = own.where(keep, NAN).T.contiguous().T
    out = None if taken is None else kernels.pair_scores(products, taken).sort(1).values
    question = Question(thresholds, 5, min_scores, (), out)
    same(kernels.count_products(products, question), counts_of_matrix(scores, question), thresholds)
    exact = counts_of_matrix(scores, Question(thresholds, removed=out))
    for depth, chunk in ((1, 64), (10, 100)):
        early = kernels.count_products_until(products, Question(thresholds, depth, (), (), out), chunk)
        same(early, exact, thresholds.masked_fill(exact.better >= depth, NAN))
        assert (early.better[keep & (exact.better >= depth)] >= depth).all()
    floored = Question(thresholds, 1, (0.5,), (), out)  # a minimum score needs all items
    same(kernels.count_products_until(products, floored, 7), counts_of_matrix(scores, floored), thresholds)


@pytest.mark.parametrize(
    ("rows", "items", "width", "targets", "operands"),
    [
        (1, 1, 1, 1, FP32),
        pytest.param(1, 700, 16, 1, FP16, id="small_case, one target"),
        pytest.param(3, 150, 24, 9, FP32, id="small_case, nine targets"),
        (3, 500, 8, 2, MIXED),
        (300, 150, 100, 1, FP16),  # several blocks of rows, embeddings padded
        (130, 130, 40, 9, FP16),
        (130, 100, 20, 9, FP32),
        (70, 130, 300, 10, FP16),  # embeddings read in parts
        (5, 64, 64, 33, FP32),
        (4, 90, 3, 100, FP16),
        (20, 70, 130, 3, MIXED),
    ],
)
def test_products_of_odd_shapes_are_exact(rows, items, width, targets, operands, generator):
    users, others = whole_numbers(rows, items, width, operands, generator)
    bias = torch.randint(-3, 3, (items,), generator=generator).float()
    bias[1::7] = -INF
    ids = torch.randint(items, (rows, targets), generator=generator)
    taken = torch.rand(rows, items, generator=generator).argsort(1)[:, :5]

    check_products(kernels.Products(users, others), ids)
    check_products(kernels.Products(users, others, bias), ids, (1.0, -1e4), taken, kept=0.5)


@pytest.mark.parametrize(
    "of_users",
    [lambda u: u.T.contiguous().T, lambda u: u.repeat_interleave(3, 1)[:, ::3], lambda u: u[:1].expand(20, 24)],
)
@pytest.mark.parametrize(
    "of_items", [lambda i: i.T.contiguous().T, lambda i: i.repeat_interleave(2, 0)[::2]], ids=["transposed", "strided"]
)
def test_embeddings_may_have_any_strides(of_users, of_items, generator):
    users, items = whole_numbers(20, 150, 24, FP32, generator)
    ids = torch.randint(150, (20, 2), generator=generator)
    bias = torch.arange(300.0).view(150, 2)[:, 1]

    check_products(kernels.Products(of_users(users), of_items(items), bias), ids, (), ids)


EQUAL = kernels.Products(torch.ones(130, 4), torch.ones(200, 4))  # 130 rows of 200 items whose scores are all 4


@pytest.mark.parametrize("columns", [1, 2, 20])
def test_rows_may_ask_for_no_threshold_or_for_one_in_any_column(columns):
    thresholds = torch.full((130, columns), NAN)
    thresholds[7, columns - 1] = thresholds[129] = 4.0
    thresholds[64, 0] = 3.0
    counts = kernels.count_products(EQUAL, Question(thresholds))

    assert (counts.better[64, 0], counts.equal[64, 0]) == (200, 0)
    assert (counts.better[7, -1], counts.equal[7, -1]) == (0, 200)
    assert (counts.equal[129] == 200).all()


def test_a_minimum_score_needs_no_threshold():
    assert (kernels.count_products(EQUAL, Question(torch.ones(130, 0), None, (4.0,))).at_least == 200).all()


@pytest.mark.parametrize(("rows", "items"), [(0, 0), (0, 200), (130, 0)])
def test_without_rows_or_items_nothing_is_counted(rows, items):
    products = kernels.Products(EQUAL.users[:rows], EQUAL.items[:items])
    counts = kernels.count_products(products, Question(torch.ones(rows, 20), None, (4.0,)))

    assert [part.shape for part in counts] == [(rows, 20), (rows, 20), (rows, 1), (rows,)]
    assert not any(part.any() for part in counts)


def test_more_thresholds_than_a_grid_can_hold_are_refused():
    products = kernels.Products(torch.ones(1, 2), torch.ones(1, 2))
    with pytest.raises(ValueError, match="at most 524280 of a row, got 524281; kernels='eager'"):
        kernels.count_products(products, Question(torch.ones(1, 524_281)))


def test_an_early_exit_leaves_out_rows_that_are_settled(monkeypatch):
    """Ten items at a time: scores fall from 198 by 2, and row 1 has two removed items."""
    products = kernels.Products(torch.ones(3, 2), torch.arange(100.0).flip(0)[:, None].repeat(1, 2))
    thresholds = torch.tensor([[199.0, NAN], [150.0, 100.0], [NAN, NAN]])
    question = Question(thresholds, 10, removed=torch.tensor([[-INF, -INF], [180.0, 196.0], [0.0, 0.0]]))
    asked, count = [], kernels._count_products

    def counting(users, items, bias, edges):
        asked.append((len(users), int((~edges.isnan()).sum())))  # rows, thresholds
        return count(users, items, bias, edges)

    monkeypatch.setattr(kernels, "_count_products", counting)
    counts = kernels.count_products_until(products, question, 10)

    # after 20 items 150 and 100 have ten better items besides the removed ones; 199 never has, until the last item
    assert asked == [(3, 3), (2, 3), *[(1, 1)] * 8]
    assert counts.better[0, 0] == 0
    assert (counts.better[1] >= 10).all()


def test_operators_pass_opcheck(generator):
    users, items = whole_numbers(3, 20, 5, FP32, generator)
    scores, ids = users @ items.T, torch.randint(20, (3, 2), generator=generator)
    edges = scores.gather(1, ids)

    torch.library.opcheck(kernels._count_scores, (scores, edges, [torch.rand(20) < 0.5]))
    torch.library.opcheck(kernels._count_scores, (scores.double(), edges.double().repeat(1, 20), []))
    torch.library.opcheck(kernels._pair_scores, (users, items, torch.zeros(20), ids))
    torch.library.opcheck(kernels._count_products, (users, items, None, edges))


def test_compiled_counts_are_the_same(generator):
    users, items = whole_numbers(3, 20, 5, FP32, generator)
    edges = (users @ items.T)[:, :2]
    compiled = torch.compile(kernels.count_products, fullgraph=True, backend="eager")
    args = kernels.Products(users, items, torch.zeros(20)), Question(edges, min_scores=(0.5,))

    same(compiled(*args), kernels.count_products(*args), edges)


class Watched:
    """The interpreter's memory, in which a kernel may touch only the tensors that it was launched with."""

    def __init__(self, memory):
        self.memory, self.known, self.beyond = memory, [], set()

    def launched(self, tensors):
        """Record where the tensors begin and end."""
        steps = [(t, zip(t.shape, t.stride(), strict=True)) for t in tensors if isinstance(t, torch.Tensor)]
        ends = [(t, sum((size - 1) * step for size, step in dims) + 1) for t, dims in steps if t.numel()]
        self.known = [(t.data_ptr(), t.data_ptr() + end * t.itemsize) for t, end in ends]

    def check(self, pointers, mask, size):
        """Record the lines of a kernel that touch any other memory."""
        at = pointers.astype(np.int64)[mask.astype(bool)]
        inside = [(at >= first) & (at + size <= end) for first, end in self.known]
        if not np.logical_or.reduce([np.zeros(at.shape, bool), *inside]).all():
            self.beyond.update(
                frame.lineno for frame in traceback.extract_stack() if frame.filename == kernels.__file__
            )

    def load(self, pointers, mask, other, dtype):
        self.check(pointers, mask, np.dtype(dtype).itemsize)
        return self.memory.load(pointers, mask, other, dtype)

    def store(self, pointers, value, mask):
        self.check(pointers, mask, value.dtype.itemsize)
        return self.memory.store(pointers, value, mask)

    def atomic_rmw(self, how, pointers, value, mask, order):
        self.check(pointers, mask, value.dtype.itemsize)
        return self.memory.atomic_rmw(how, pointers, value, mask, order)


def test_no_kernel_touches_memory_of_others(monkeypatch):
    """On the small odd shapes that compute-sanitizer gets on a GPU."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    watched = Watched(interpreter._interpreter)
    bring = interpreter.GridExecutor._init_args_hst

    def brought(self, *args):
        tensors, named = bring(self, *args)
        watched.launched([*tensors, *named.values()])
        return tensors, named

    monkeypatch.setattr(interpreter, "_interpreter", watched)
    monkeypatch.setattr(interpreter.GridExecutor, "_init_args_hst", brought)
    runpy.run_path(str(Path(__file__).parents[1] / "gpu" / "small_case.py"), run_name="__main__")

    assert watched.known
    assert not watched.beyond, f"lines of {kernels.__file__} that do, and those that call them"


def test_the_interpreter_runs_on_the_cpu_alone_and_refuses_bfloat16():
    half = torch.ones(2, 4, dtype=torch.bfloat16)

    assert kernels.unavailable(torch.device("cpu")) is None
    assert "interpret" in kernels.unavailable(torch.device("cuda")).lower()
    with pytest.raises(RuntimeError, match="bfloat16"):
        kernels.pair_scores(kernels.Products(half, half), torch.zeros(2, 1, dtype=torch.int64))


def catalogue(generator, rows=19, items=210, width=12):
    """Return whole-number embeddings, whose products are exact on every path, with ground truth and history."""
    users, vectors = (torch.randint(-3, 4, (n, width), generator=generator).float() for n in (rows, items))
    pick = torch.rand(rows, items, generator=generator).argsort(1)
    held = pick[:, :5].where(torch.rand(rows, 5, generator=generator) < 0.7, -1)
    held[0] = -1
    target, history = (trm.Interactions.from_padded(part, items) for part in (held, pick[:, 5:15]))
    return users, vectors, target, history


@pytest.mark.parametrize("metrics", [["HR", "NDCG", "MRR"], ["Recall", "AUROC", "MAP"]], ids=["to a depth", "whole"])
@pytest.mark.parametrize("name", ["plain", "history", "masks", "bias", "allowed", "padding", "cosine"])
def test_evaluations_equal_those_of_scores_in_memory(metrics, name, monkeypatch, generator):
    users, items, target, history = catalogue(generator)
    some = torch.rand(len(items), generator=generator) < 0.1
    bias = torch.randint(-2, 3, (len(items),), generator=generator).float()
    of_embeddings, options = {
        "plain": ({}, {}),
        "history": ({}, {"exclude": history}),
        "masks": ({}, {"exclude": (history, some, ~some.roll(7)), "overlap": "miss"}),
        "bias": ({"bias": bias.masked_fill(some, -INF)}, {"exclude": history, "batch_size": 4}),
        "allowed": ({"allowed": ~some, "bias": bias.half()}, {}),
        "padding": ({}, {"exclude": history, "padding_idx": 0, "overlap": "keep", "ties": "pessimistic"}),
        "cosine": ({"similarity": "cosine"}, {}),
    }[name]
    if name == "cosine":  # one nonzero number each, so that norms and quotients are exact
        users, items = (x * torch.eye(x.shape[1]).repeat(len(x), 1)[: len(x)] for x in (users, items))
    monkeypatch.setattr(kernels, "_SMALLEST_CHUNK", 64)
    embeddings = trm.Embeddings(users, items, **of_embeddings)
    evaluate = partial(trm.evaluate, metrics, embeddings, target=target, k=7, **options)
    plain, result = evaluate(kernels="eager"), evaluate(kernels="triton")
    counts = ("num_users", "num_skipped", "num_unreachable", "num_tied")

    assert numbers(result) == near(plain)  # batches have other sizes, so sums are added in another order
    assert numbers(result.standard_errors) == near(plain.standard_errors)
    assert [getattr(result, count) for count in counts] == [getattr(plain, count) for count in counts]


@pytest.mark.parametrize("further", [[], [trm.AUROC]])
def test_a_score_threshold_counts_as_in_memory(further, generator):
    users, items, target, history = catalogue(generator)

    def evaluate(kernels):
        options = {"score_threshold": 20.0, "kernels": kernels}
        metrics = [trm.HR(5, **options), trm.Precision(40, denominator="recommended", **options)]
        metrics += [make(kernels=kernels) for make in further]
        return trm.evaluate(metrics, users, items, target=target, exclude=history)

    plain, result = evaluate("eager"), evaluate("triton")

    assert (plain.kernels, result.kernels, result) == ("eager", "triton", plain)


@pytest.mark.parametrize(
    ("of_items", "similarity", "expected"),
    [(torch.float16, "dot", FP16), (torch.float32, "dot", MIXED), (torch.float16, "cosine", FP32)],
)
def test_16_bits_stay_16_bits_unless_they_are_normalised(of_items, similarity, expected, monkeypatch, generator):
    users, items, target, _ = catalogue(generator)
    counted, count = [], kernels.count_products_until
    monkeypatch.setattr(kernels, "count_products_until", lambda *given: counted.append(given[0]) or count(*given))
    embeddings = trm.Embeddings(users.half(), items.to(of_items), similarity=similarity)
    trm.evaluate("HR@3", embeddings, target=target, kernels="triton")

    assert {(products.users.dtype, products.items.dtype) for products in counted} == {expected}


def bias_with(value, dtype):
    return torch.zeros(210, dtype=dtype).index_fill(0, torch.tensor(3), value)


UNSUITABLE = [
    (lambda users, items: (users.double(), items), "float64"),
    (lambda users, items: (users, items.to(torch.float8_e5m2)), "float8"),
    (lambda users, items: (users * 2.0**61, items * 2.0**61), "so large"),
    (lambda users, items: (users, items, bias_with(1e300, torch.float64)), "embeddings and bias are .*float64"),
]
NOT_FINITE = [
    (lambda users, items: (users.where(users < 3, NAN), items), "NaN or infinity"),
    (lambda users, items: (users, items.where(items < 3, INF)), "NaN or infinity"),
    (lambda users, items: (users, items, bias_with(NAN, torch.float32)), "bias hold NaN"),
]


@pytest.mark.parametrize(("spoil", "reason"), UNSUITABLE + NOT_FINITE)
def test_unsuitable_embeddings_are_refused_if_triton_was_asked_for(spoil, reason, generator):
    users, items, target, _ = catalogue(generator)
    with pytest.raises(ValueError, match=f"kernels='triton' cannot be used: .*{reason}"):
        trm.evaluate("HR@3", trm.Embeddings(*spoil(users, items)), target=target, kernels="triton")


COUNTED, REJECTED = nullcontext(), pytest.raises(ValueError, match="NaN or \\+inf")


@pytest.mark.parametrize(
    ("spoil", "outcome"),
    [*((spoil, COUNTED) for spoil, _ in UNSUITABLE), *((spoil, REJECTED) for spoil, _ in NOT_FINITE)],
)
def test_auto_makes_the_scores_of_unsuitable_embeddings_and_checks_them(spoil, outcome, monkeypatch, generator):
    users, items, target, _ = catalogue(generator)
    monkeypatch.setattr("torchrecmetrics.kernels.choose", lambda kernels, device: "triton")

    with outcome:
        assert trm.evaluate("HR@3", trm.Embeddings(*spoil(users, items)), target=target).kernels == "triton"


def test_only_products_must_be_finite(generator):
    """Squares of these embeddings are beyond float32."""
    users, items, target, _ = catalogue(generator)
    evaluate = partial(trm.evaluate, "MRR", target=target)

    assert evaluate(users * 2.0**70, items * 2.0**-70, kernels="triton") == evaluate(users, items, kernels="eager")


def test_scores_of_a_function_are_counted_as_asked(generator):
    users, items, target, history = catalogue(generator)
    scores = users @ items.T
    evaluate = partial(trm.evaluate, ["HR@5", "MAP"], lambda ids: scores[ids], target=target, exclude=history)
    plain, result = evaluate(kernels="eager"), evaluate(kernels="triton")

    assert (plain.kernels, result.kernels, result) == ("eager", "triton", plain)
