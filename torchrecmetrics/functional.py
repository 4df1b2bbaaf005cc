"""The formulas: each function maps a `Ranking` to one value per row, NaN where the row has no relevant item.

One cut-off gives [B], several (a list or tuple of K) give [K, B] for little more than the price of one.

Ranks are 1-based and `inf` where an item was not found, so `ranks <= k` needs no mask. R is the number of a row's
relevant items, h(k) the number of them in the first k places.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from torchrecmetrics.inputs import check_choice, check_cutoffs, running_sums
from torchrecmetrics.ranking import DEPTH_UNKNOWN, Ranking

Denominator: TypeAlias = Literal["k", "min", "recommended"]
Normalization: TypeAlias = Literal["relevant", "min"]
Gain: TypeAlias = Literal["linear", "exponential"]
Cutoffs: TypeAlias = int | Sequence[int]

__all__ = [
    "auroc",
    "average_precision",
    "f1",
    "hit_rate",
    "ndcg",
    "precision",
    "r_precision",
    "recall",
    "reciprocal_rank",
]


def hit_rate(ranking: Ranking, k: Cutoffs, *, score_threshold: float | None = None) -> Tensor:
    """1 if a relevant item stands in the first `k` places, else 0."""
    return _defined(ranking, _num_found(ranking, k, score_threshold) > 0)


def precision(
    ranking: Ranking,
    k: Cutoffs,
    *,
    denominator: Denominator = "k",
    score_threshold: float | None = None,
    zero_division: float = 0.0,
) -> Tensor:
    """h(k) / k: the share of the first `k` places that is relevant; see `Precision` for the other denominators."""
    if zero_division not in (0.0, 1.0) and not (isinstance(zero_division, float) and math.isnan(zero_division)):
        raise ValueError(f"zero_division must be 0.0, 1.0 or nan, got {zero_division!r}")
    places = _denominator(ranking, k, denominator, score_threshold)
    share = _num_found(ranking, k, score_threshold) / places
    return _defined(ranking, share if denominator == "k" else share.where(places > 0, zero_division))


def recall(
    ranking: Ranking,
    k: Cutoffs,
    *,
    truncated: bool = False,
    weighted: bool = False,
    score_threshold: float | None = None,
) -> Tensor:
    """h(k) / R: the share of the relevant items that stands in the first `k` places."""
    if not isinstance(truncated, bool) or not isinstance(weighted, bool):
        raise TypeError(f"truncated and weighted are True or False, got {truncated!r} and {weighted!r}")
    if truncated and weighted:
        raise ValueError("recall is either truncated (divided by min(k, R)) or weighted by gains, not both")
    found = _num_found(ranking, k, score_threshold)
    if weighted:
        gains = ranking.shared("gains", lambda: _sums(ranking.placed_gains(_linear)))
        return _defined(ranking, _at(gains, found) / ranking.ideal_gains.sum(1))
    return _defined(ranking, found / (_at_most(ranking, k) if truncated else _relevant(ranking)))


def f1(ranking: Ranking, k: Cutoffs, *, denominator: Denominator = "k", score_threshold: float | None = None) -> Tensor:
    """2 h(k) / (k + R): the harmonic mean of precision and recall."""
    places = _denominator(ranking, k, denominator, score_threshold)
    return _defined(ranking, 2 * _num_found(ranking, k, score_threshold) / (places + _relevant(ranking)))


def r_precision(ranking: Ranking) -> Tensor:
    """h(R) / R: precision at the number of relevant items, which is recall there too."""
    return _defined(ranking, ranking.num_hits(ranking.num_relevant) / _relevant(ranking))


def average_precision(ranking: Ranking, k: Cutoffs | None = None, *, normalize: Normalization = "relevant") -> Tensor:
    """(1/R) sum over the hits of i / r_i: precision at each hit's place, averaged over all relevant items."""
    check_choice("normalize", normalize, ("relevant", "min"))
    precisions = ranking.shared("precisions", lambda: _sums(ranking.hit_number / ranking.ranks))
    relevant = _relevant(ranking) if k is None or normalize == "relevant" else _at_most(ranking, k)
    return _defined(ranking, _at(precisions, _hits(ranking, k)) / relevant)


def ndcg(ranking: Ranking, k: Cutoffs | None = None, *, gain: Gain = "linear") -> Tensor:
    """DCG / IDCG with DCG = sum over the hits of gain_i / log2(1 + r_i); IDCG orders all the row's gains best first."""
    check_choice("gain", gain, ("linear", "exponential"))
    cut = None if k is None else _cut(ranking, k)
    relevant = ranking.num_relevant.clamp(max=ranking.ranks.shape[1])
    relevant = relevant if cut is None else relevant.clamp(max=cut)
    if ranking.gains is None and ranking.penalties is None:
        dcg = ranking.shared("dcg", lambda: _sums(ranking.discounts))
        ideal = ranking.shared("ideal", lambda: _sums(torch.log2(1 + ranking.hit_number).reciprocal()[None]))
        return _defined(ranking, _at(dcg, _hits(ranking, k)) / ideal[0][relevant])
    # DCG / IDCG does not change when both are divided by 2^(highest gain), and then no power of two overflows
    transform = _linear if gain == "linear" else partial(_exponential, top=ranking.ideal_gains[:, :1])
    dcg = ranking.shared(("dcg", gain), lambda: _sums(ranking.placed_gains(transform) * ranking.discounts))
    ideal = ranking.shared(
        ("ideal", gain), lambda: _sums(transform(ranking.ideal_gains) / torch.log2(1 + ranking.hit_number))
    )
    found = _at(dcg, _hits(ranking, k))
    if ranking.penalties is not None:
        places = ranking.penalties[0]
        lost = ranking.shared(("lost", gain), lambda: ranking.placed_penalties(transform) / torch.log2(1 + places))
        near = places.isfinite() if cut is None else places <= (cut[:, None] if isinstance(cut, Tensor) else cut)
        found = found + lost.where(near, 0).sum(-1)
    return _defined(ranking, found / _at(ideal, relevant))


def reciprocal_rank(ranking: Ranking, k: Cutoffs | None = None) -> Tensor:
    """1 / r_1 if the best relevant item stands in the first `k` places, else 0."""
    best = ranking.shared("best", lambda: 1 / ranking.ranks[:, 0])
    return _defined(ranking, best.where(_hits(ranking, k) > 0, 0))


def auroc(ranking: Ranking) -> Tensor:
    """Share of (relevant, other) pairs in the right order (realistic ties: half); NaN too if every item is relevant."""
    if ranking.num_ranked is None:
        raise ValueError(
            "AUROC needs to know how many items were ranked: pass scores, or Ranking.from_ranks(..., num_ranked=...)"
        )
    num_found = ranking.num_hits(None).to(ranking.ranks.dtype)
    others = ranking.num_ranked - num_found
    overtaken_by = ranking.ranks.where(ranking.ranks.isfinite(), 0).sum(1) - num_found * (num_found + 1) / 2
    return _defined(ranking, (num_found * others - overtaken_by) / (_relevant(ranking) * others))


def _defined(ranking: Ranking, values: Tensor) -> Tensor:
    """Keep the values of rows with a relevant item; NaN elsewhere."""
    some = ranking.shared("some", lambda: ranking.num_relevant > 0)
    return values.to(ranking.ranks.dtype).where(some, torch.nan)


def _relevant(ranking: Ranking) -> Tensor:
    return ranking.shared("relevant", lambda: ranking.num_relevant.to(ranking.ranks.dtype))


def _cut(ranking: Ranking, k: Cutoffs) -> int | Tensor:
    """One cut-off, or a column of several that broadcasts against rows."""
    return ranking.cutoffs(check_cutoffs(k))


def _hits(ranking: Ranking, k: Cutoffs | None) -> Tensor:
    return ranking.num_hits(None if k is None else check_cutoffs(k))


def _at_most(ranking: Ranking, k: Cutoffs) -> Tensor:
    """min(k, R), at most as many as can be found."""
    return _relevant(ranking).clamp(max=_cut(ranking, k))


def _num_found(ranking: Ranking, k: Cutoffs, score_threshold: float | None) -> Tensor:
    found = ranking.num_hits(check_cutoffs(k))
    if score_threshold is None:
        return found
    return torch.minimum(found, ranking.num_in_front(_recommended(ranking, score_threshold)))


def _sums(values: Tensor) -> Tensor:
    """Add up the first 0, 1, ..., T values of each row, [B, T + 1]."""
    return torch.nn.functional.pad(running_sums(values), (1, 0))


def _at(sums: Tensor, number: Tensor) -> Tensor:
    """Sum of the first `number` [B] or [K, B] values of each row, in the shape of `number`."""
    if number.dim() == 1:
        return sums.gather(1, number[:, None])[:, 0]
    return sums.gather(1, number.T).T


def _denominator(ranking: Ranking, k: Cutoffs, denominator: Denominator, score_threshold: float | None) -> Tensor:
    check_choice("denominator", denominator, ("k", "min", "recommended"))
    if denominator == "min":
        return _at_most(ranking, k)
    cut = _cut(ranking, k)
    if denominator == "recommended":
        return _recommended(ranking, score_threshold).clamp(max=cut).to(ranking.ranks.dtype)
    return cut.to(ranking.ranks.dtype) if isinstance(cut, Tensor) else torch.full_like(ranking.ranks[:, 0], cut)


def _recommended(ranking: Ranking, score_threshold: float | None) -> Tensor:
    """How many items were recommended: those that reach the threshold, the list's length, or all that were ranked."""
    if score_threshold is None:
        listed = ranking.num_recommended if ranking.score_threshold is None else None
        count = ranking.num_ranked if listed is None else listed
        refusal = (
            "denominator='recommended' needs to know how many items were recommended: pass scores, "
            "Ranking.from_topk, or Ranking.from_ranks(..., num_ranked=...)"
        )
    else:
        count = ranking.num_recommended if ranking.score_threshold == score_threshold else None
        refusal = (
            f"the metric counts items with score >= {score_threshold}, but the ranking was made with "
            f"score_threshold={ranking.score_threshold}: pass scores, or name it in Ranking.from_scores"
        )
    if count is None:
        raise ValueError(refusal if ranking.depth_known else DEPTH_UNKNOWN)
    return count


def _linear(gains: Tensor) -> Tensor:
    return gains


def _exponential(gains: Tensor, top: Tensor) -> Tensor:
    """(2^gain - 1) / 2^top, precise for small gains and large ones."""
    ln2 = math.log(2)
    wanted = torch.exp2(gains - top) * -torch.expm1(-gains * ln2)
    return wanted.where(gains > 0, torch.expm1(gains * ln2) * torch.exp2(-top))
