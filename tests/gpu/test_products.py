"""Products on a card: pairs have the bits of their tiles, and ranks are those of float64 as far as rounding allows."""

import math
from collections import namedtuple

import pytest
import torch
from counting import defined, same

pytest.importorskip("triton", reason="Triton is not installed")

from torchrecmetrics.kernels import Counts, Question
from torchrecmetrics.kernels import triton as kernels

INF, NAN = math.inf, math.nan


# `operands` is the relative error of rounding them: tf32 cuts a mantissa to 10 bits, bfloat16 rounds it to 7
Kind = namedtuple("Kind", "dtype precision operands")
KINDS = {
    "bf16": Kind(torch.bfloat16, "highest", 0.0),
    "fp16": Kind(torch.float16, "highest", 0.0),
    "tf32": Kind(torch.float32, "high", 2**-9 + 2**-20),
    "fp32": Kind(torch.float32, "highest", 0.0),
    "fp32 as bf16": Kind(torch.float32, "medium", 2**-8 + 2**-18),
}


@pytest.fixture(params=KINDS)
def kind(request, place, precision):
    """Return a kind of product that this machine can make, with its precision set."""
    if place.small and "bf16" in request.param:
        pytest.skip("the interpreter gives wrong products of bfloat16")
    precision(KINDS[request.param].precision)
    return KINDS[request.param]


def counts_of_matrix(scores, question):
    """Return the counts of a matrix by their definition; products have 0 for the highest score."""
    return defined(scores, question)._replace(highest=scores.new_zeros(len(scores)))


def random_products(d, biased, kind, place):
    """Return products, every seventh item with a bias of -inf, and the scores of all 10^7 pairs, one by one."""
    rows, items = place.pick((500, 20_011), (5, 130))
    users, others = (torch.randn(n, d, device=place.device).to(kind.dtype) for n in (rows, items))
    bias = torch.randn(items, device=place.device) if biased else None
    if bias is not None:
        bias[::7] = -INF
    products = kernels.Products(users, others, bias)
    return products, kernels.pair_scores(products, torch.arange(items, device=place.device).expand(rows, items))


WIDTHS = pytest.mark.parametrize(("d", "biased"), [(64, False), (96, True), (128, False), (300, False)])


@pytest.mark.timeout(900)
@WIDTHS
def test_tiles_have_the_bits_of_all_their_pairs(d, biased, kind, place):
    """A score that differed in its last bit in the tiles would be missing from its own `equal`."""
    products, pairs = random_products(d, biased, kind, place)
    question = Question(pairs.where(pairs > -INF, NAN))
    counts = kernels.count_products(products, question)

    same(counts, counts_of_matrix(pairs, question), question.thresholds)


@pytest.mark.timeout(900)
@WIDTHS
def test_one_target_of_a_row_has_the_bits_of_many(d, biased, kind, place):
    """One target per row is another kernel: each row is repeated once per target."""
    products, pairs = random_products(d, biased, kind, place)
    (rows, items), repeats = pairs.shape, place.pick(512, 2)
    row = torch.arange(rows, device=place.device).repeat_interleave(repeats)
    ids = torch.randint(items, (len(row), 1), device=place.device)
    repeated = products._replace(users=products.users[row])
    own = kernels.pair_scores(repeated, ids)
    thresholds = own.where(own > -INF, NAN)
    counts = kernels.count_products(repeated, Question(thresholds))
    better, equal, *_ = defined(pairs, Question(thresholds.view(rows, repeats)))

    assert torch.equal(own, pairs[row[:, None], ids])
    same(counts, Counts(better.view(-1, 1), equal.view(-1, 1), None, own.new_zeros(len(row))), thresholds)


@pytest.mark.parametrize("targets", [1, 5])
@pytest.mark.parametrize("d", [64, 300])
def test_ranks_are_those_of_float64_within_rounding(d, targets, kind, place):
    """A score is off by less than (operands + d 2^-22) |u| |v|: the rounding of its operands, and d sums in float32."""
    rows, items, num_checked = place.pick((4096, 50_000, 64), (40, 300, 8))
    users, others = (torch.randn(n, d, device=place.device).to(kind.dtype) for n in (rows, items))
    ids = torch.randint(items, (rows, targets), device=place.device)
    products = kernels.Products(users, others)
    counts = kernels.count_products(products, Question(kernels.pair_scores(products, ids)))

    checked = torch.randperm(rows, device=place.device)[:num_checked]
    u, v = users[checked].double(), others.double()
    exact, off = u @ v.T, (kind.operands + d * 2**-22) * u.norm(dim=1)[:, None] * v.norm(dim=1)
    own, own_off = (part.gather(1, ids[checked])[:, :, None] for part in (exact, off))
    surely_better = (exact[:, None] > own + own_off + off[:, None]).sum(2)
    perhaps_better = (exact[:, None] >= own - own_off - off[:, None]).sum(2)
    better, equal = counts.better[checked], counts.equal[checked]

    assert (equal >= 1).all()
    assert ((surely_better <= better) & (better + equal <= perhaps_better)).all()
    assert (perhaps_better - surely_better).double().mean() < items * (0.1 if kind.operands else 0.02), "loose bounds"


class WholeNumbers:
    """Products of whole numbers, which are exact in every order of sums, their matrix, thresholds and removed items."""

    def __init__(self, targets, kind, place):
        rows, items, d = place.pick((1000, 30_000, 64), (30, 200, 24))
        users, others = (torch.randint(-2, 3, (n, d), device=place.device) for n in (rows, items))
        bias = torch.randint(-3, 3, (items,), device=place.device).float()
        bias[1::7] = -INF
        self.products = kernels.Products(users.to(kind.dtype), others.to(kind.dtype), bias)
        self.matrix = (users.double() @ others.double().T + bias).float()
        self.ids, history = (torch.randint(items, (rows, n), device=place.device) for n in (targets, 10))
        own = self.matrix.gather(1, self.ids)
        self.thresholds = own.where(own > -INF, NAN)
        self.removed = self.matrix.gather(1, history).sort(1).values


TARGETS = pytest.mark.parametrize("targets", [1, 20])


@TARGETS
def test_products_of_whole_numbers_are_counted_as_their_matrix(targets, kind, place):
    whole = WholeNumbers(targets, kind, place)
    question = Question(whole.thresholds, min_scores=(0.5,), removed=whole.removed)
    counts = kernels.count_products(whole.products, question)

    assert torch.equal(kernels.pair_scores(whole.products, whole.ids), whole.matrix.gather(1, whole.ids))
    same(counts, counts_of_matrix(whole.matrix, question), whole.thresholds)


@TARGETS
def test_an_early_exit_is_exact_up_to_the_depth(targets, kind, place):
    whole = WholeNumbers(targets, kind, place)
    question = Question(whole.thresholds, 100, removed=whole.removed)
    chunk = len(whole.products.items) // 5
    counts = kernels.count_products_until(whole.products, question, chunk)
    exact = counts_of_matrix(whole.matrix, question)
    beyond = exact.better >= 100

    same(counts, exact, whole.thresholds.masked_fill(beyond, NAN))
    assert (counts.better[beyond & ~whole.thresholds.isnan()] >= 100).all()


@TARGETS
@pytest.mark.parametrize("d", [96, 300])
def test_every_run_gives_the_same_bits(d, targets, kind, cuda):
    """Above 256 bytes or so Triton 3.6 copies both operands without a fence between copy and multiplication."""
    rows, items = 3000, 100_000
    users, others = (torch.randn(n, d, device=cuda).to(kind.dtype) for n in (rows, items))
    products = kernels.Products(users, others)
    ids = torch.randint(items, (rows, targets), device=cuda)
    runs = []
    for _ in range(6):
        own = kernels.pair_scores(products, ids)
        better, equal, at_least, _ = kernels.count_products(products, Question(own, None, (0.0,)))
        early = kernels.count_products_until(products, Question(own, 100), items // 5)
        runs.append((own, better, equal, at_least, early.better, early.equal))

    assert all(torch.equal(part, first) for run in runs for part, first in zip(run, runs[0], strict=True))
