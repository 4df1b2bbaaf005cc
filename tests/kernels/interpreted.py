"""The Triton kernels on the CPU. test_triton.py runs this with TRITON_INTERPRET=1, which Triton reads at import."""

import math
import runpy
import traceback
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from counting import check, defined, problems, removed, same
from hypothesis import given, settings

import torchrecmetrics as trm
from torchrecmetrics.core.options import Options
from torchrecmetrics.kernels import Question
from torchrecmetrics.kernels import triton as kernels

INF, NAN = math.inf, math.nan
FP32, FP16, MIXED = (torch.float32,) * 2, (torch.float16,) * 2, (torch.float16, torch.float32)


@pytest.mark.parametrize("way", ["comparing", "histograms", "atomics"])
@settings(max_examples=20, deadline=None)
@given(problem=problems())
def test_scores(way, problem):
    """Each way of counting is exact for every input and does not change the scores."""
    scores, thresholds, depth, min_scores, masks, out = problem
    before = scores.clone()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "_DIRECT", 32 if way == "comparing" else 0)
        patch.setattr(kernels, "_KEYS", 1024 if way == "histograms" else 0)
        counts = kernels.count(scores, Question(thresholds, depth, min_scores, masks, removed(scores, out, 1)))
    check(counts, *problem)
    assert torch.equal(before.nan_to_num(7.5), scores.nan_to_num(7.5))


def test_quick_cases(generator):
    """Each kernel is exact on a small case. With every change this runs, and one case of `test_evaluate`."""
    scores = (torch.randn(2, 1300, generator=generator) * 4).round()
    scores[0, 1299], scores[1, 3], scores[:, 5:90] = NAN, INF, -INF
    masks = [torch.rand(1300, generator=generator) < 0.1]
    taken = torch.randn(2, 9, generator=generator).round().sort(1).values
    for width in (1, 9, 600):  # comparing, histograms, atomics
        question = Question(scores[:, 100 : 100 + width], None, (0.5,), masks, taken)
        same(kernels.count(scores, question), defined(scores, question), question.thresholds)
    users, items = whole_numbers(3, 150, 24, FP32, generator)
    for targets in (1, 9):
        check_products(kernels.Products(users, items), torch.randint(150, (3, targets), generator=generator), (), None)


def far_apart(*shape, steps, dtype):
    """Return zeros whose rows or columns are so far apart that offsets need more than 32 bits."""
    last = sum((size - 1) * step for size, step in zip(shape, steps, strict=True))
    assert last >= 2**31
    try:
        flat = torch.empty(last + 1, dtype=dtype)  # the system maps only the pages that are used
    except RuntimeError:
        pytest.skip("no 5 GB of address space")
    return flat.as_strided(shape, steps).zero_()


@pytest.mark.parametrize("steps", [(2**30, 1), (1, 2**30), (2**31, 1)])
def test_far_offsets(steps, generator):
    """Rows and columns of scores, masks and embeddings may be more than 2^31 numbers apart."""
    scores = far_apart(3, 4, steps=steps, dtype=torch.int8).view(torch.bool)
    mask = scores.copy_(torch.tensor([[1, 0, 0, 1], [0, 0, 1, 0], [1, 0, 1, 0]]))
    values = torch.randint(3, (3, 4), generator=generator).float()
    far = far_apart(3, 4, steps=steps, dtype=torch.float16).copy_(values)
    for width in (1, 40):
        thresholds = values[:, torch.randint(4, (width,), generator=generator)].half()
        for question in (Question(thresholds, min_scores=(0.5,)), Question(thresholds, 9)):  # without masks
            same(kernels.count(far, question), defined(values.half(), question), thresholds)
        question = Question(thresholds.float(), 9, masks=[mask])
        same(kernels.count(values, question), defined(values, question), thresholds)
    for users, items in ((far, values.half()), (values.half(), far)):
        check_products(kernels.Products(users, items), torch.tensor([[0], [1], [2]]), (), None)


def whole_numbers(rows, items, width, operands, generator):
    """Return embeddings whose products are exact for every order of sums, with many ties."""
    users = torch.randint(-2, 3, (rows, width), generator=generator).to(operands[0])
    return users, torch.randint(-2, 3, (items, width), generator=generator).to(operands[1])


def check_products(products, ids, min_scores, taken, kept=1.0):
    """Assert that pair scores and counts are those of the product in memory; early exit is exact up to the depth."""
    users, items, bias = products
    scores = users.float() @ items.float().T + (0 if bias is None else bias)
    own = kernels.pair_scores(products, ids)
    assert torch.equal(own, scores.gather(1, ids))
    keep = (own > -INF) & (torch.rand(own.shape, generator=torch.Generator().manual_seed(1)) < kept)
    thresholds = own.where(keep, NAN).T.contiguous().T
    out = None if taken is None else kernels.pair_scores(products, taken).sort(1).values
    found = kernels.count_products(products, Question(thresholds, 5, min_scores, (), out))
    expected = defined(scores, Question(thresholds, None, min_scores, [], out))
    same(found, expected._replace(highest=torch.zeros(len(users))), thresholds)
    for depth, chunk in ((1, 64), (10, 100)):
        early = kernels.count_products_until(products, Question(thresholds, depth, (), (), out), chunk)
        near = keep & (expected.better < depth)
        assert torch.equal(early.better[near], expected.better[near])
        assert torch.equal(early.equal[near], expected.equal[near])
        assert (early.better[keep & ~near] >= depth).all()
    question = Question(thresholds, 1, (0.5,), (), out)
    exact, floored = defined(scores, question), kernels.count_products_until(products, question, 7)
    same(floored, exact._replace(highest=torch.zeros(len(users))), thresholds)


@pytest.mark.parametrize(
    ("rows", "items", "width", "targets", "operands"),
    [
        (1, 1, 1, 1, FP32),
        (1, 700, 16, 1, FP16),
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
def test_products(rows, items, width, targets, operands, generator):
    """Products are counted exactly for odd shapes, ties, -inf items, empty rows, minimum scores and removed items."""
    users, others = whole_numbers(rows, items, width, operands, generator)
    bias = torch.randint(-3, 3, (items,), generator=generator).float()
    bias[1::7] = -INF
    ids = torch.randint(items, (rows, targets), generator=generator)
    taken = torch.rand(rows, items, generator=generator).argsort(1)[:, :5]
    check_products(kernels.Products(users, others), ids, (), None)
    check_products(kernels.Products(users, others, bias), ids, (1.0, -1e4), taken, kept=0.5)


def test_products_of_any_strides(generator):
    """Embeddings may be transposed, strided or expanded."""
    users, items = whole_numbers(20, 150, 24, FP32, generator)
    ids = torch.randint(150, (20, 2), generator=generator)
    bias = torch.arange(300.0).view(150, 2)[:, 1]
    for u in (users.T.contiguous().T, users.repeat_interleave(3, 1)[:, ::3], users[:1].expand(20, 24)):
        for i in (items.T.contiguous().T, items.repeat_interleave(2, 0)[::2]):
            check_products(kernels.Products(u, i, bias), ids, (), ids)


@pytest.mark.parametrize("columns", [1, 2, 20])
def test_ragged_and_constant(columns, generator):
    """Rows may ask for no threshold, for one in any column or for all, and all scores may be equal."""
    users, items = torch.ones(130, 4), torch.ones(200, 4)
    thresholds = torch.full((130, columns), NAN)
    thresholds[7, columns - 1] = thresholds[129] = 4.0
    thresholds[64, 0] = 3.0
    found = kernels.count_products(kernels.Products(users, items), Question(thresholds))
    assert (found.better[64, 0], found.equal[64, 0]) == (200, 0)
    assert (found.better[7, -1], found.equal[7, -1]) == (0, 200)
    assert (found.equal[129] == 200).all()
    nothing = kernels.count_products(kernels.Products(users, items), Question(thresholds[:, :0], None, (4.0,)))
    assert (nothing.at_least == 200).all()
    for some in (items[:0], items):
        none = kernels.count_products(kernels.Products(users[:0], some), Question(thresholds[:0], None, (4.0,)))
        assert [part.shape for part in none] == [(0, columns), (0, columns), (0, 1), (0,)]
    empty = kernels.count_products(kernels.Products(users, items[:0]), Question(thresholds, None, (4.0,)))
    assert not any(part.any() for part in empty)


def test_too_many_thresholds():
    """More thresholds than the grid of a kernel can hold raise an error."""
    users, items = torch.ones(1, 2), torch.ones(1, 2)
    with pytest.raises(ValueError, match="at most 524280 of a row, got 524281; kernels='eager'"):
        kernels.count_products(kernels.Products(users, items), Question(torch.ones(1, 524_281)))


def test_early_exit_stops(monkeypatch, generator):
    """Only rows with unsettled thresholds go on, and no product is computed when no such row is left."""
    users, items = torch.ones(3, 2), torch.arange(100.0).flip(0)[:, None].repeat(1, 2)
    thresholds = torch.tensor([[199.0, NAN], [150.0, 100.0], [NAN, NAN]])
    asked, count = [], kernels._count_products

    def counting(users, items, bias, edges):
        asked.append((len(users), int((~edges.isnan()).sum())))
        return count(users, items, bias, edges)

    monkeypatch.setattr(kernels, "_count_products", counting)
    removed = torch.tensor([[-INF, -INF], [180.0, 196.0], [0.0, 0.0]])
    question = Question(thresholds, 10, removed=removed)
    found = kernels.count_products_until(kernels.Products(users, items), question, 10)
    # after 20 items 150 and 100 have ten better items besides the removed ones; 199 never has, until the last item
    assert asked[:3] == [(3, 3), (2, 3), (1, 1)]
    assert len(asked) == 10
    assert found.better[0, 0] == 0
    assert (found.better[1] >= 10).all()


def test_operators(generator):
    """The operators pass `opcheck` for fake tensors and give the same counts under torch.compile."""
    users, items = whole_numbers(3, 20, 5, FP32, generator)
    scores, ids, bias = users @ items.T, torch.randint(20, (3, 2), generator=generator), torch.zeros(20)
    edges = scores.gather(1, ids)
    torch.library.opcheck(kernels._count_scores, (scores, edges, [torch.rand(20) < 0.5]))
    torch.library.opcheck(kernels._count_scores, (scores.double(), edges.double().repeat(1, 20), []))
    torch.library.opcheck(kernels._pair_scores, (users, items, bias, ids))
    torch.library.opcheck(kernels._count_products, (users, items, None, edges))
    compiled = torch.compile(kernels.count_products, fullgraph=True, backend="eager")
    args = kernels.Products(users, items, bias), Question(edges, min_scores=(0.5,))
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


def test_no_other_memory_is_touched(monkeypatch):
    """No kernel touches other memory, on the small odd shapes that compute-sanitizer gets on a GPU."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    watched = Watched(interpreter._interpreter)
    bring = interpreter.GridExecutor._init_args_hst

    def brought(self, *args):
        found, named = bring(self, *args)
        watched.launched([*found, *named.values()])
        return found, named

    monkeypatch.setattr(interpreter, "_interpreter", watched)
    monkeypatch.setattr(interpreter.GridExecutor, "_init_args_hst", brought)
    runpy.run_path(str(Path(__file__).parents[1] / "gpu" / "small_case.py"), run_name="__main__")
    assert watched.known
    assert not watched.beyond, f"lines of {kernels.__file__} that do, and those that call them"


def test_the_interpreter_is_no_device_of_its_own():
    """The interpreter runs on the CPU in place of CUDA, and refuses bfloat16, which it gets wrong."""
    assert kernels.unavailable(torch.device("cpu")) is None
    assert "interpret" in kernels.unavailable(torch.device("cuda")).lower()
    half = torch.ones(2, 4, dtype=torch.bfloat16)
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
def test_evaluate(metrics, name, monkeypatch, generator):
    """Values, errors and counts equal those of scores in memory, for whole lists and with an early exit."""
    users, items, target, history = catalogue(generator)
    some = torch.rand(len(items), generator=generator) < 0.1
    bias = torch.randint(-2, 3, (len(items),), generator=generator).float()
    of_embeddings = {
        "bias": {"bias": bias.masked_fill(some, -INF)},
        "allowed": {"allowed": ~some, "bias": bias.half()},
        "cosine": {"similarity": "cosine"},
    }
    options = {
        "history": {"exclude": history},
        "masks": {"exclude": (history, some, ~some.roll(7)), "overlap": "miss"},
        "bias": {"exclude": history, "batch_size": 4},
        "padding": {"exclude": history, "padding_idx": 0, "overlap": "keep", "ties": "pessimistic"},
    }
    if name == "cosine":  # one nonzero number each, so that norms and quotients are exact
        users, items = (x * torch.eye(x.shape[1]).repeat(len(x), 1)[: len(x)] for x in (users, items))
    monkeypatch.setattr(kernels, "_SMALLEST_CHUNK", 64)
    embeddings = trm.Embeddings(users, items, **of_embeddings.get(name, {}))
    evaluate = partial(trm.evaluate, metrics, embeddings, target=target, k=7, **options.get(name, {}))
    eagerly, found = evaluate(kernels="eager"), evaluate(kernels="triton")
    assert (eagerly.kernels, found.kernels) == ("eager", "triton")
    # batches have other sizes, so sums are added in another order
    assert list(found) == list(eagerly)
    torch.testing.assert_close(list(found.values()), list(eagerly.values()), rtol=1e-12, atol=0)
    for count in ("num_users", "num_skipped", "num_unreachable", "num_tied"):
        assert getattr(found, count) == getattr(eagerly, count)
    for key, error in eagerly.standard_errors.items():
        assert found.standard_errors[key].item() == pytest.approx(error.item(), rel=1e-12)


@pytest.mark.parametrize("counts", [False, True])
def test_recommended_by_their_score(counts, generator):
    """Candidates at or above a score threshold are counted as in eager, with and without a metric of the whole list."""
    users, items, target, history = catalogue(generator)
    metrics = [trm.HR(5, score_threshold=20.0), trm.Precision(40, denominator="recommended", score_threshold=20.0)]
    metrics += [trm.AUROC()] if counts else []
    evaluate = partial(trm.evaluate, metrics, users, items, target=target, exclude=history)
    eagerly = evaluate()
    for metric in metrics:
        metric.ranking_options = Options(kernels="triton")
    found = evaluate()
    assert (eagerly.kernels, found.kernels) == ("eager", "triton")
    assert found == eagerly


def test_sixteen_bits_stay_sixteen_bits(monkeypatch, generator):
    """The kernel gets 16-bit embeddings as they are; only normalised embeddings become float32."""
    given = []
    count = kernels.count_products_until

    def seen(products, *args):
        given.append(products)
        return count(products, *args)

    monkeypatch.setattr(kernels, "count_products_until", seen)
    users, items, target, _ = catalogue(generator)
    for kind, similarity, expected in ((torch.float16, "dot", torch.float16), (torch.float16, "cosine", torch.float32)):
        embeddings = trm.Embeddings(users.to(kind), items.to(kind), similarity=similarity)
        trm.evaluate("HR", embeddings, target=target, k=3, kernels="triton")
        assert given[-1].users.dtype == given[-1].items.dtype == expected
    evaluate = partial(trm.evaluate, ["HR", "MRR"], users.half(), items, target=target, k=3)
    assert evaluate(kernels="eager") == evaluate(kernels="triton")
    assert given[-1].users.dtype == torch.float16


def bias_with(value, dtype):
    return torch.zeros(210, dtype=dtype).index_fill(0, torch.tensor(3), value)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda users, items: (users.double(), items), "float64"),
        (lambda users, items: (users, items.to(torch.float8_e5m2)), "float8"),
        (lambda users, items: (users * 2.0**61, items * 2.0**61), "so large"),
        (lambda users, items: (users, items, bias_with(1e300, torch.float64)), "embeddings and bias are .*float64"),
        (lambda users, items: (users.where(users < 3, NAN), items), "NaN or infinity"),
        (lambda users, items: (users, items.where(items < 3, INF)), "NaN or infinity"),
        (lambda users, items: (users, items, bias_with(NAN, torch.float32)), "bias hold NaN"),
    ],
)
def test_embeddings_it_cannot_take(spoil, reason, monkeypatch, generator):
    """If embeddings are unsuitable, an explicit request raises; auto makes scores, checks them and counts those."""
    users, items, target, _ = catalogue(generator)
    evaluate = partial(trm.evaluate, "HR", trm.Embeddings(*spoil(users, items)), target=target, k=3)
    with pytest.raises(ValueError, match=f"kernels='triton' cannot be used: .*{reason}"):
        evaluate(kernels="triton")
    monkeypatch.setattr("torchrecmetrics.kernels.choose", lambda kernels, device: "triton")
    if "NaN" in reason:
        with pytest.raises(ValueError, match="NaN or \\+inf"):
            evaluate()
    else:
        assert evaluate().kernels == "triton"


def test_only_products_must_be_finite(generator):
    """Embeddings whose squares are beyond float32 are taken where their products are not."""
    users, items, target, _ = catalogue(generator)
    evaluate = partial(trm.evaluate, "MRR", target=target)
    assert evaluate(users * 2.0**70, items * 2.0**-70, kernels="triton") == evaluate(users, items, kernels="eager")


def test_metrics_and_score_functions(generator):
    """The same request counts scores in memory: in `update`, from a function and as plain ranks."""
    users, items, target, history = catalogue(generator)
    scores = users @ items.T
    ids = torch.arange(1, len(users))
    batch = scores[1:], target.select(ids).items
    past = history.select(ids).items
    values = []
    for name in ("eager", "triton"):
        collection = trm.RecMetricCollection(["HR", "AUROC", "Precision"], k=[2, 30], kernels=name)
        collection.update(*batch, exclude=past)
        by_function = trm.evaluate(
            ["HR", "MAP"], lambda at: scores[at], target=target, exclude=history, k=5, kernels=name
        )
        assert by_function.kernels == name
        ranking = trm.Scores(*batch, exclude=past).ranking(depth=9, kernels=name)
        assert ranking.kernels == name
        places = trm.get_topk_ranks(*batch, 9, exclude=past, kernels=name)
        values.append((collection.compute(), by_function, ranking.ranks.tolist(), places.tolist()))
    assert values[0] == values[1]
