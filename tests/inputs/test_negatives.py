"""`Negatives`: a positive among its negatives, against plain Python, OGB, TGB and PyKEEN."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from rankings import rank_negatives
from sizes import examples
from torch import tensor

import torchrecmetrics as trm

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(("negative", "pool"), [(tensor([[0.4, 0.2, 0.1]]), False), (tensor([0.4, 0.2, 0.1]), True)])
@pytest.mark.parametrize(("ties", "rank"), [("optimistic", 2), ("realistic", (2 + 3) / 2), ("pessimistic", 3)])
def test_a_positive_ranks_behind_higher_negatives_and_before_or_behind_equal_ones(ties, rank, negative, pool):
    ranking = trm.Negatives(tensor([0.2]), negative, pool).ranking(ties=ties)

    assert ranking.ranks.tolist() == [[rank]]


@st.composite
def batches(draw):
    """Positives [B] and negatives [B, N] with few distinct scores, so that many are equal; every row has a negative."""
    number, width = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    score = st.sampled_from([-INF, -1.0, 0.0, 0.5, 1.0])
    positive = draw(st.lists(score, min_size=number, max_size=number))
    row = st.lists(score, min_size=width, max_size=width).filter(lambda values: max(values) > -INF)
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


def facts(ranking):
    columns = ranking.ranks[:, 0], ranking.num_ranked, ranking.tied, ranking.unreachable
    return list(zip(*(column.tolist() for column in columns), strict=True))


DTYPES = st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16])
TIES = st.sampled_from(["optimistic", "realistic", "pessimistic"])


@settings(max_examples=examples(400), deadline=None)
@given(batch=batches(), ties=TIES, dtype=DTYPES)
def test_ranks_among_random_negatives_of_each_row_equal_plain_python(dtype, batch, ties):
    positive, negative = (tensor(scores, dtype=dtype) for scores in batch)

    assert facts(trm.Negatives(positive, negative).ranking(ties=ties)) == [
        plain(*row, ties) for row in zip(*batch, strict=True)
    ]


@settings(max_examples=examples(400), deadline=None)
@given(batch=batches(), ties=TIES, dtype=DTYPES)
def test_ranks_among_a_random_pool_of_negatives_equal_plain_python(dtype, batch, ties):
    positive, pool = tensor(batch[0], dtype=dtype)[:, None], tensor(batch[1], dtype=dtype).flatten()
    ranking = trm.Negatives(positive, pool, pool=True).ranking(ties=ties)

    assert facts(ranking) == [plain(score, pool.tolist(), ties) for score in batch[0]]


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_flat_negatives_of_two_positives_are_refused_with_two_cures(number):
    """They could be a pool or, however many there are, those of each row."""
    with pytest.raises(ValueError, match=r"got \[\d\]\. Flat.* pool=True\); .* of each row are negative.view\(2, -1\)"):
        trm.Negatives(tensor([0.5, 0.6]), torch.zeros(number)).ranking()


ONE, THREE = torch.zeros(2), torch.zeros(2, 3)  # scores of each of two rows


@pytest.mark.parametrize(
    ("scores", "options", "error", "message"),
    [
        ((ONE, torch.zeros(2, 0)), {}, ValueError, "negative holds no score"),
        ((ONE, torch.zeros(3, 3)), {}, ValueError, r"^negative must be \[2, N\], got \[3, 3\]$"),
        ((ONE, THREE, True), {}, ValueError, r"pool=True negative must be \[N\].*, got \[2, 3\]"),
        ((THREE, THREE), {}, ValueError, r"positive must be \[B\], one relevant item per row, got \[2, 3\]"),
        ((ONE, THREE.double()), {}, TypeError, "one dtype, got torch.float32 and torch.float64"),
        ((ONE.long(), THREE), {}, TypeError, "positive must be float64.* got a torch.int64"),
        ((ONE, [1.0]), {}, TypeError, "negative must be a tensor, got list"),
        ((ONE, THREE.to("meta")), {}, ValueError, "negative is on meta"),
        ((ONE * NAN, THREE), {}, ValueError, "the positive of row 0 scores nan"),
        ((ONE, THREE + INF), {}, ValueError, "the highest negative of row 0 scores inf"),
        ((ONE, THREE - INF), {}, ValueError, "2 of 2 rows without a negative .* row 0"),
        ((ONE, THREE), {"ties": "first"}, ValueError, "ties must be one of"),
    ],
)
def test_bad_negatives_are_refused(scores, options, error, message):
    with pytest.raises(error, match=message):
        rank_negatives(*scores, **options)


def test_bad_rows_are_counted_where_they_cannot_raise():
    negative, metric = tensor([[0.0, 1.0], [-INF, -INF], [NAN, 1.0]]), trm.MRR(validate_args="deferred")
    metric.update(trm.Negatives(tensor([0.5, 0.5, NAN]), negative))

    with pytest.raises(ValueError, match=r"1 row with a score that is NaN or \+inf; 1 row without a negative"):
        metric.compute()


GENERATOR = torch.Generator().manual_seed(0)
POSITIVES = (torch.randn(500, generator=GENERATOR) * 2 + 2).round()
NEGATIVES = (torch.randn(500, 100, generator=GENERATOR) * 2).round()  # many ties


def test_an_unchecked_nan_in_a_pool_is_below_every_positive():
    pool = tensor([0.5, NAN, 0.9])
    metric = trm.MRR(validate_args=False)

    assert metric(trm.Negatives(tensor([0.7]), pool, pool=True)) == 1 / 2  # behind 0.9 alone


def test_mrr_and_hits_are_those_of_ogbl_citation2():
    ogb = pytest.importorskip("ogb.linkproppred")
    theirs = ogb.Evaluator("ogbl-citation2").eval({"y_pred_pos": POSITIVES, "y_pred_neg": NEGATIVES})
    mrr, hits = (theirs[key].double().mean().item() for key in ("mrr_list", "hits@10_list"))
    metrics = trm.RecMetricCollection(["MRR", "HR@10"])
    metrics.update(trm.Negatives(POSITIVES, NEGATIVES).ranking(ties="realistic"))

    assert metrics.result().floats() == pytest.approx({"MRR": mrr, "HR@10": hits}, abs=1e-7)


@pytest.mark.parametrize("name", ["ogbl-ddi", "ogbl-collab", "ogbl-ppa"])
def test_hits_in_a_pool_are_those_of_ogb(name):
    """OGB finds a positive if it scores higher than the k-th best negative, which is the pessimistic rank."""
    ogb = pytest.importorskip("ogb.linkproppred")
    pool, evaluator = NEGATIVES[:5].flatten(), ogb.Evaluator(name)
    (theirs,) = evaluator.eval({"y_pred_pos": POSITIVES, "y_pred_neg": pool}).values()
    ranking = trm.Negatives(POSITIVES, pool, pool=True).ranking(ties="pessimistic")

    assert trm.HR(evaluator.K)(ranking).item() == pytest.approx(theirs)


def test_mrr_is_that_of_tgbl_wiki_for_one_edge_at_a_time():
    evaluator = pytest.importorskip("tgb.linkproppred.evaluate").Evaluator(name="tgbl-wiki")
    edges = [
        {"y_pred_pos": positive.numpy()[None], "y_pred_neg": row.numpy(), "eval_metric": ["mrr"]}
        for positive, row in zip(POSITIVES, NEGATIVES, strict=True)
    ]
    theirs = sum(evaluator.eval(edge)["mrr"] for edge in edges) / 500

    assert trm.MRR()(trm.Negatives(POSITIVES, NEGATIVES).ranking(ties="realistic")).item() == pytest.approx(
        theirs, abs=1e-6
    )
