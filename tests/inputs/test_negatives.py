"""`Negatives`: a positive among its negatives, against plain Python, OGB, TGB and PyKEEN."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from rankings import rank_negatives
from sizes import examples

import torchrecmetrics as trm

INF, NAN = math.inf, math.nan
LEVELS = [-INF, -1.0, 0.0, 0.5, 1.0]


@st.composite
def rows(draw):
    """Positives [B] and negatives [B, N] with few distinct scores, so that many are equal; every row has a negative."""
    number, width = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    levels = st.sampled_from(LEVELS)
    positive = draw(st.lists(levels, min_size=number, max_size=number))
    row = st.lists(levels, min_size=width, max_size=width).filter(lambda values: max(values) > -INF)
    return positive, draw(st.lists(row, min_size=number, max_size=number))


def plain(positive, negatives, ties):
    """Return the rank and the number of candidates of one row, and whether the positive is tied, or no candidate."""
    candidates = [score for score in negatives if score > -INF]
    if positive == -INF:
        return INF, len(candidates), False, True
    better = sum(score > positive for score in candidates)
    equal = sum(score == positive for score in candidates)
    rank = {"optimistic": better + 1, "pessimistic": better + equal + 1, "realistic": better + 1 + equal / 2}[ties]
    return rank, len(candidates) + 1, equal > 0, False


@pytest.mark.parametrize("ties", ["optimistic", "realistic", "pessimistic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@settings(max_examples=examples(80), deadline=None)
@given(batch=rows())
def test_equals_plain_python(ties, dtype, batch):
    """Ranks, numbers of candidates and flags equal plain Python's, for negatives of each row and for one pool."""
    positive, negative = (torch.tensor(scores, dtype=dtype) for scores in batch)
    pool = negative.flatten()
    pools = [pool.tolist()] * len(positive)
    for found, negatives in (
        (trm.Negatives(positive, negative), batch[1]),
        (trm.Negatives(positive[:, None], pool, pool=True), pools),
    ):
        ranking = found.ranking(ties=ties)
        fields = ranking.ranks[:, 0], ranking.num_ranked, ranking.tied, ranking.unreachable
        expected = [plain(*row, ties) for row in zip(batch[0], negatives, strict=True)]
        assert list(zip(*(field.tolist() for field in fields), strict=True)) == expected
        assert ranking.num_relevant.tolist() == [1] * len(positive)


ONE, TWO = torch.zeros(2), torch.zeros(2, 3)
BAD = [
    (lambda: (ONE, torch.zeros(2, 0)), {}, ValueError, "negative holds no score"),
    (lambda: (ONE, torch.zeros(3, 3)), {}, ValueError, r"^negative must be \[2, N\], got \[3, 3\]$"),
    (lambda: (ONE, TWO, True), {}, ValueError, r"pool=True negative must be \[N\].*, got \[2, 3\]"),
    (lambda: (TWO, TWO), {}, ValueError, r"positive must be \[B\], one relevant item per row, got \[2, 3\]"),
    (lambda: (ONE, TWO.double()), {}, TypeError, "one dtype, got torch.float32 and torch.float64"),
    (lambda: (ONE.long(), TWO), {}, TypeError, "positive must be float64.* got a torch.int64"),
    (lambda: (ONE, [1.0]), {}, TypeError, "negative must be a tensor, got list"),
    (lambda: (ONE, TWO.to("meta")), {}, ValueError, "negative is on meta"),
    (lambda: (ONE * NAN, TWO), {}, ValueError, "the positive of row 0 scores nan"),
    (lambda: (ONE, TWO + INF), {}, ValueError, "the highest negative of row 0 scores inf"),
    (lambda: (ONE, TWO - INF), {}, ValueError, "2 of 2 rows without a negative .* row 0"),
    (lambda: (ONE, TWO), {"ties": "first"}, ValueError, "ties must be one of"),
]


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_flat_negatives_are_a_pool_only_if_this_is_said(number):
    """However many there are, they could be those of each row; both cures of the message work."""
    positive, negative = torch.tensor([0.5, 0.6]), torch.arange(number) - 0.5
    with pytest.raises(ValueError, match=r"got \[\d\]\. Flat.* pool=True\); .* of each row are negative.view\(2, -1\)"):
        trm.Negatives(positive, negative).ranking()

    assert trm.Negatives(positive, negative, pool=True).ranking().num_ranked.tolist() == [number + 1, number + 1]
    assert len(trm.Negatives(positive, negative.repeat(2).view(2, -1)).ranking()) == 2


@pytest.mark.parametrize(("scores", "options", "error", "message"), BAD)
def test_bad_input(scores, options, error, message):
    """A bad argument raises an error that says what was given or what is accepted."""
    with pytest.raises(error, match=message):
        rank_negatives(*scores(), **options)


def test_bad_rows_are_left_out_and_counted_where_they_cannot_raise():
    """With deferred checks `compute` raises, and says how many rows are bad in which way."""
    negative = torch.tensor([[0.0, 1.0], [-INF, -INF], [NAN, 1.0]])
    ranking = trm.Negatives(torch.tensor([0.5, 0.5, NAN]), negative).ranking(validate_args="deferred")
    metric = trm.MRR(validate_args="deferred")
    metric.update(ranking)
    with pytest.raises(ValueError, match=r"1 row with a score that is NaN or \+inf; 1 row without a negative"):
        metric.compute()


GENERATOR = torch.Generator().manual_seed(0)
POSITIVE = (torch.randn(500, generator=GENERATOR) * 2 + 2).round()
NEGATIVE = (torch.randn(500, 100, generator=GENERATOR) * 2).round()  # many ties


def peer_values(names, negative=NEGATIVE, ties="realistic"):
    """Return our values by name."""
    metrics = trm.RecMetricCollection(names)
    metrics.update(trm.Negatives(POSITIVE, negative, pool=negative.dim() == 1).ranking(ties=ties))
    return {name: value.item() for name, value in metrics.compute().items()}


def test_ogb_ranks_rows():
    """MRR and HR@10 are those of ogbl-citation2."""
    ogb = pytest.importorskip("ogb.linkproppred")
    found = ogb.Evaluator("ogbl-citation2").eval({"y_pred_pos": POSITIVE, "y_pred_neg": NEGATIVE})
    mrr, hits = (found[key].double().mean().item() for key in ("mrr_list", "hits@10_list"))
    assert peer_values(["MRR", "HR@10"]) == pytest.approx({"MRR": mrr, "HR@10": hits}, abs=1e-7)


@pytest.mark.parametrize("name", ["ogbl-ddi", "ogbl-collab", "ogbl-ppa"])
def test_ogb_ranks_a_pool(name):
    """OGB finds a positive if it scores higher than the k-th best negative, which is the pessimistic rank."""
    ogb = pytest.importorskip("ogb.linkproppred")
    pool = NEGATIVE[:5].flatten()
    evaluator = ogb.Evaluator(name)
    (theirs,) = evaluator.eval({"y_pred_pos": POSITIVE, "y_pred_neg": pool}).values()
    assert peer_values([f"HR@{evaluator.K}"], pool, "pessimistic") == {f"HR@{evaluator.K}": pytest.approx(theirs)}


def test_tgb_ranks_an_edge_at_a_time():
    """MRR is that of tgbl-wiki, which is called for one edge at a time as in TGB's examples."""
    tgb = pytest.importorskip("tgb.linkproppred.evaluate")
    evaluator = tgb.Evaluator(name="tgbl-wiki")
    theirs = [
        evaluator.eval({"y_pred_pos": own.numpy()[None], "y_pred_neg": row.numpy(), "eval_metric": ["mrr"]})["mrr"]
        for own, row in zip(POSITIVE, NEGATIVE, strict=True)
    ]
    assert peer_values(["MRR"])["MRR"] == pytest.approx(np.mean(theirs), abs=1e-6)
