"""Products on a card: pairs have the bits of their tiles, and ranks are those of float64 as far as rounding allows."""

import math
from typing import NamedTuple

import pytest
import torch
from counting import defined

pytest.importorskip("triton", reason="Triton is not installed")

from torchrecmetrics.kernels import Question
from torchrecmetrics.kernels import triton as kernels

INF, NAN = math.inf, math.nan


class Kind(NamedTuple):
    """The dtype and precision of a product, and the rounding of its operands relative to |u| |v|."""

    dtype: torch.dtype
    precision: str
    operands: float  # relative error of rounding the operands before the product


# tf32 cuts the mantissa of an operand to 10 bits, bfloat16 rounds it to 7
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


def embeddings(rows, items, d, dtype, device, whole=False):
    """Return random embeddings, or whole numbers whose products are exact in every order of sums."""
    if whole:
        users, others = (torch.randint(-2, 3, (n, d), device=device) for n in (rows, items))
    else:
        users, others = (torch.randn(n, d, device=device) for n in (rows, items))
    return users.to(dtype), others.to(dtype)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("d", "biased"), [(64, False), (96, True), (128, False), (300, False)])
def test_pairs_have_the_bits_of_their_tiles(d, biased, kind, place):
    """Tiles and pairs have the same scores bit by bit, as counts against the scores of all 10^7 pairs show.

    The count of scores > and >= a pair's score in the tiles is the count in the pairs themselves. A score that differed
    in its last bit would be missing from its own `equal`.
    """
    rows, items = place.pick((500, 20_011), (5, 130))
    users, others = embeddings(rows, items, d, kind.dtype, place.device)
    bias = torch.randn(items, device=place.device) if biased else None
    if bias is not None:
        bias[::7] = -INF
    products = kernels.Products(users, others, bias)
    pairs = kernels.pair_scores(products, torch.arange(items, device=place.device).expand(rows, items))
    question = Question(pairs.where(pairs > -INF, NAN))
    found, expected = kernels.count_products(products, question), defined(pairs, question)
    ranked = pairs > -INF
    assert torch.equal(found.better[ranked], expected.better[ranked])
    assert torch.equal(found.equal[ranked], expected.equal[ranked])

    # one target per row is another kernel: each row is repeated once per target
    asks = place.pick(512, 2)
    row = torch.arange(rows, device=place.device).repeat_interleave(asks)
    ids = torch.randint(items, (rows * asks, 1), device=place.device)
    again = products._replace(users=users[row])
    own = kernels.pair_scores(again, ids)
    assert torch.equal(own, pairs[row[:, None], ids])
    ranked = own > -INF
    thresholds = own.where(ranked, NAN)
    expected = defined(pairs, Question(thresholds.view(rows, asks)))
    better, equal = (part.view(-1, 1)[ranked] for part in (expected.better, expected.equal))
    found = kernels.count_products(again, Question(thresholds))
    assert torch.equal(found.better[ranked], better)
    assert torch.equal(found.equal[ranked], equal)
    # only better scores reach the next float above an item's own score
    further = kernels.count_products(again, Question(thresholds.nextafter(own.new_tensor(INF))))
    assert torch.equal((further.better + further.equal)[ranked], better)


@pytest.mark.parametrize("targets", [1, 5])
@pytest.mark.parametrize("d", [64, 300])
def test_places_are_those_of_float64(d, targets, kind, place):
    """Only items whose scores are within rounding of a target's score may be counted on the wrong side of it.

    A score is off by less than (operands + d 2^-22) |u| |v|: the rounding of its operands, and d sums in float32.
    """
    rows, items, sampled = place.pick((4096, 50_000, 64), (40, 300, 8))
    users, others = embeddings(rows, items, d, kind.dtype, place.device)
    ids = torch.randint(items, (rows, targets), device=place.device)
    products = kernels.Products(users, others)
    found = kernels.count_products(products, Question(kernels.pair_scores(products, ids)))
    sample = torch.randperm(rows, device=place.device)[:sampled]
    u, v = users[sample].double(), others.double()
    exact, wanted = u @ v.T, ids[sample]
    off = (kind.operands + d * 2**-22) * u.norm(dim=1)[:, None] * v.norm(dim=1)
    for slot in range(targets):
        own, own_off = (part.gather(1, wanted[:, slot : slot + 1]) for part in (exact, off))
        surely = (exact > own + own_off + off).sum(1)
        perhaps = (exact >= own - own_off - off).sum(1)
        better, equal = found.better[sample, slot], found.equal[sample, slot]
        assert (equal >= 1).all()
        assert (surely <= better).all()
        assert (better + equal <= perhaps).all()
        assert (perhaps - surely).double().mean() < items * (0.1 if kind.operands else 0.02)


@pytest.mark.parametrize("targets", [1, 20])
def test_whole_numbers_have_no_rounding(targets, kind, place):
    """Counts over products of whole numbers equal eager counts over the matrix, with history, bias and early exit."""
    rows, items, d = place.pick((1000, 30_000, 64), (30, 200, 24))
    users, others = embeddings(rows, items, d, kind.dtype, place.device, whole=True)
    bias = torch.randint(-3, 3, (items,), device=place.device).float()
    bias[1::7] = -INF
    products = kernels.Products(users, others, bias)
    scores = (users.double() @ others.double().T + bias).float()
    ids, history = (torch.randint(items, (rows, n), device=place.device) for n in (targets, 10))
    own = kernels.pair_scores(products, ids)
    assert torch.equal(own, scores.gather(1, ids))
    thresholds = own.where(own > -INF, NAN)
    asked = ~thresholds.isnan()
    removed = kernels.pair_scores(products, history).sort(1).values
    found = kernels.count_products(products, Question(thresholds, None, (0.5,), (), removed))
    wanted = defined(scores, Question(thresholds, None, (0.5,), [], removed))
    for name in ("better", "equal"):
        assert torch.equal(getattr(found, name)[asked], getattr(wanted, name)[asked])
    assert torch.equal(found.at_least, wanted.at_least)
    early = kernels.count_products_until(products, Question(thresholds, 100, (), (), removed), items // 5)
    near = asked & (wanted.better < 100)
    assert torch.equal(early.better[near], wanted.better[near])
    assert torch.equal(early.equal[near], wanted.equal[near])
    assert (early.better[asked & ~near] >= 100).all()


@pytest.mark.parametrize("targets", [1, 20])
@pytest.mark.parametrize("d", [96, 300])
def test_every_run_gives_the_same_bits(d, targets, kind, cuda):
    """Pairs, counts and early exit have the same bits in every run, in whatever order the programs finish.

    For widths above 256 bytes or so Triton 3.6 copies both operands without a fence between copy and multiplication.
    """
    rows, items = 3000, 100_000
    users, others = embeddings(rows, items, d, kind.dtype, cuda)
    products = kernels.Products(users, others)
    ids = torch.randint(items, (rows, targets), device=cuda)
    runs = []
    for _ in range(6):
        own = kernels.pair_scores(products, ids)
        whole = kernels.count_products(products, Question(own, None, (0.0,)))
        early = kernels.count_products_until(products, Question(own, 100), items // 5)
        runs.append((own, *whole, *early))
    for run in runs[1:]:
        for part, first in zip(run, runs[0], strict=True):  # without a minimum score `at_least` is None
            assert part is first is None or torch.equal(part, first)
