"""Formulas of accuracy: hit rate, precision, recall, NDCG, MRR, MAP, AUROC per row of a `Ranking`.

One cut-off gives [B], several (a list or tuple of K) give [K, B] at little extra cost.

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

from torchrecmetrics.arrays import running_sums
from torchrecmetrics.checks import check_choice, check_cutoffs, describe
from torchrecmetrics.ranking import DEPTH_UNKNOWN, Ranking
from torchrecmetrics.ranking.data import derived

Denominator: TypeAlias = Literal["k", "min", "recommended"]
"""Divisor of hits: k, min(k, R), or min(k, n') with n' the number of recommended items."""
Normalization: TypeAlias = Literal["relevant", "min"]
"""Divisor of recall and average precision: R or min(k, R)."""
NormalizationByK: TypeAlias = Literal["k", "min"]
"""Divisor of precision: k or min(k, R)."""
Gain: TypeAlias = Literal["linear", "exponential"]
"""Gain of a relevant item of grade g in DCG: g or 2^g - 1."""
Cutoffs: TypeAlias = int | Sequence[int]
"""One cut-off, which gives a result [B], or a list or tuple of K cut-offs, which gives [K, B]."""

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
    """Return 1 if a relevant item of the row is in the top `k`, else 0.

    Returns float [B] for one cut-off, [K, B] for K of them; 0 or 1, NaN in rows without a relevant item. Rows with
    fewer than `k` items are no special case. `score_threshold`: only items with score >= this are recommended. Also
    called hit ratio, Hit@k, Success@k. Source: Deshpande & Karypis, Item-based top-N recommendation algorithms, 2004.
    """
    _check(ranking, "hit_rate")
    if score_threshold is None:
        return _defined(ranking, ranking.any_hit(k))
    return _defined(ranking, _num_found(ranking, k, score_threshold) > 0)


def precision(
    ranking: Ranking,
    k: Cutoffs,
    *,
    normalize: NormalizationByK = "k",
    denominator: Denominator = "k",
    score_threshold: float | None = None,
    zero_division: float = 0.0,
) -> Tensor:
    """Return h(k) / k, the share of the top `k` that is relevant; `normalize="min"` divides by min(k, R).

    `denominator`: see `Precision`; its "min" is the same as `normalize="min"`.

    Returns float [B] for one cut-off, [K, B] for K of them; 0 to 1, NaN in rows without a relevant item. With fewer
    than `k` items the denominator stays `k`. Also called P@k. Source: Manning, Raghavan & Schütze, Introduction to
    Information Retrieval, 2008, chapter 8.
    """
    _check(ranking, "precision")
    _check_zero_division(zero_division)
    denominator = _divided_by(normalize, denominator)
    hits = _hits(ranking, k, score_threshold)
    if denominator == "k":
        return _defined(ranking, hits / ranking.cutoffs(k))
    places = _places(ranking, k, denominator, score_threshold)
    return _defined(ranking, (hits / places).where(places > 0, zero_division))


def recall(
    ranking: Ranking,
    k: Cutoffs,
    *,
    normalize: Normalization = "relevant",
    truncated: bool = False,
    weighted: bool = False,
    score_threshold: float | None = None,
) -> Tensor:
    """Return h(k) / R, the share of the relevant items that is in the top `k`.

    `normalize="min"`, or its alias `truncated=True`: h(k) / min(k, R); `weighted`: gains of the hits / all gains.
    Returns float [B] for one cut-off, [K, B] for K of them; 0 to 1, NaN in rows without a relevant item. Rows with
    fewer than `k` items are no special case. Also called R@k. Source: Manning, Raghavan & Schütze, Introduction to
    Information Retrieval, 2008, chapter 8.
    """
    _check(ranking, "recall")
    if not isinstance(truncated, bool) or not isinstance(weighted, bool):
        raise TypeError(f"truncated and weighted are True or False, got {truncated!r} and {weighted!r}")
    check_choice("normalize", normalize, ("relevant", "min"))
    by_min = truncated or normalize == "min"
    if truncated and normalize == "min":
        raise ValueError("normalize='min' and truncated=True are one option: leave truncated out")
    if by_min and weighted:
        raise ValueError(
            "recall is either divided by min(k, R) (normalize='min', truncated=True) or weighted by gains, not both"
        )
    if weighted:
        found = _sum_of_first(_gains(ranking), _num_found(ranking, k, score_threshold))
        return _defined(ranking, found / (_relevant(ranking) if ranking.gains is None else ranking.ideal_gains.sum(1)))
    hits = _hits(ranking, k, score_threshold)
    return _defined(ranking, hits / (_max_hits(ranking, k) if by_min else _relevant(ranking)))


def f1(
    ranking: Ranking,
    k: Cutoffs,
    *,
    normalize: NormalizationByK = "k",
    denominator: Denominator = "k",
    score_threshold: float | None = None,
) -> Tensor:
    """Return 2 h(k) / (k + R), the harmonic mean of precision and recall; both options are those of `precision`.

    Returns float [B] for one cut-off, [K, B] for K of them; 0 to 1, NaN in rows without a relevant item. With fewer
    than `k` items k does not change. Source: van Rijsbergen, Information Retrieval, 1979, chapter 7.
    """
    _check(ranking, "f1")
    denominator = _divided_by(normalize, denominator)
    places = _places(ranking, k, denominator, score_threshold)
    return _defined(ranking, 2 * _hits(ranking, k, score_threshold) / (places + _relevant(ranking)))


def r_precision(ranking: Ranking) -> Tensor:
    """Return h(R) / R, the precision at cut-off R, which equals the recall there.

    Returns float [B]; 0 to 1, NaN in rows without a relevant item. With fewer than R items R does not change. Source:
    Manning, Raghavan & Schütze, Introduction to Information Retrieval, 2008, section 8.4.
    """
    _check(ranking, "r_precision")
    return _defined(ranking, ranking.num_hits(ranking.num_relevant) / _relevant(ranking))


def average_precision(ranking: Ranking, k: Cutoffs | None = None, *, normalize: Normalization = "relevant") -> Tensor:
    """Return (1/R) sum over the hits of i / r_i: the precision at each hit's rank, averaged over all relevant items.

    `normalize="min"` divides by min(k, R). Returns float [B] for one cut-off or none (the whole ranking), [K, B] for K
    of them; 0 to 1, NaN in rows without a relevant item. Rows with fewer than `k` items are no special case. Also
    called AP@k. Source: Manning, Raghavan & Schütze, Introduction to Information Retrieval, 2008, section 8.4.
    """
    _check(ranking, "average_precision")
    check_choice("normalize", normalize, ("relevant", "min"))
    found = _over_hits(ranking, _precisions(ranking), k)
    relevant = _relevant(ranking) if k is None or normalize == "relevant" else _max_hits(ranking, k)
    return _defined(ranking, found / relevant)


def ndcg(ranking: Ranking, k: Cutoffs | None = None, *, gain: Gain = "linear") -> Tensor:
    """Return DCG / IDCG, DCG = sum over hits of gain_i / log2(1 + r_i); IDCG orders all gains of the row best first.

    `gain="exponential"`: 2^gain - 1 in both. Returns float [B] for one cut-off or none (the whole ranking), [K, B] for
    K of them; 0 to 1, below 0 with negative gains, NaN in rows without a relevant item. Fewer than `k` items do not
    lower the ideal. Sources: Järvelin & Kekäläinen, Cumulated gain-based evaluation of IR techniques, 2002; exponential
    gains: Burges et al., Learning to rank using gradient descent, 2005.
    """
    _check(ranking, "ndcg")
    check_choice("gain", gain, ("linear", "exponential"))
    width = ranking.ranks.shape[1]
    plain = ranking.gains is None and ranking.penalties is None
    found = _over_hits(ranking, _dcg(ranking) if plain else _graded_dcg(ranking, gain), k)
    if plain and width == 1:
        return _defined(ranking, found)  # the ideal is 1
    # no row has more than `width` relevant items
    at_most = [min(cutoff, width) for cutoff in k] if isinstance(k, Sequence) else width if k is None else min(k, width)
    relevant = ranking.num_relevant.clamp(max=ranking.cutoffs(at_most))
    if plain:
        return _defined(ranking, found / _ideal_dcg(ranking).take(relevant))
    if ranking.penalties is not None:
        found = found + _lost_dcg_at(ranking, gain, k)
    return _defined(ranking, found / _sum_of_first(_graded_ideal_dcg(ranking, gain), relevant))


def reciprocal_rank(ranking: Ranking, k: Cutoffs | None = None) -> Tensor:
    """Return 1 / r_1 if the best relevant item is in the top `k`, else 0.

    Returns float [B] for one cut-off or none (the whole ranking), [K, B] for K of them; 0 to 1, NaN in rows without a
    relevant item. Rows with fewer than `k` items are no special case. Also called RR@k. Source: Voorhees, The TREC-8
    question answering track report, 1999.
    """
    _check(ranking, "reciprocal_rank")
    return _defined(ranking, ranking.any_hit(k) / ranking.ranks[:, 0])


def auroc(ranking: Ranking) -> Tensor:
    """Return the share of (relevant, other) pairs in the right order; a realistic tie counts half.

    Returns float [B]; 0 to 1, NaN in rows without a relevant item or without another candidate. A relevant item that is
    no candidate loses to all others. Also called AUC, GAUC as a mean over users. Source: Hanley & McNeil, The meaning
    and use of the area under a receiver operating characteristic curve, 1982.
    """
    _check(ranking, "auroc")
    if ranking.num_ranked is None:
        raise ValueError(
            "AUROC needs to know how many items were ranked: pass scores, or Ranking.from_ranks(..., num_ranked=...)"
        )
    num_found = ranking.num_hits(None).to(ranking.ranks.dtype)
    others = ranking.num_ranked - num_found
    overtaken_by = ranking.ranks.where(ranking.ranks.isfinite(), 0).sum(1) - num_found * (num_found + 1) / 2
    return _defined(ranking, (num_found * others - overtaken_by) / (_relevant(ranking) * others))


# ----------------------------------------------------------------------------------------- helpers


def _check(ranking: object, name: str) -> None:
    """Raise unless the first argument of the formula `name` is a `Ranking`."""
    if not isinstance(ranking, Ranking):
        raise TypeError(
            f"{name} reads a Ranking, got {describe(ranking)}: {name}(Ranking.from_scores(scores, target), ...), or "
            "from_topk for lists of item ids, from_ranks for ranks"
        )


def _defined(ranking: Ranking, values: Tensor) -> Tensor:
    """Return `values` as floats, with NaN in rows without a relevant item."""
    return values * _one_or_nan(ranking)


@derived
def _one_or_nan(ranking: Ranking) -> Tensor:
    """Return 1 for each row with a relevant item, else NaN: float [B]."""
    return (ranking.num_relevant / ranking.num_relevant).to(ranking.ranks.dtype)


@derived
def _relevant(ranking: Ranking) -> Tensor:
    """Return R, the number of relevant items of each row, float [B]."""
    return ranking.num_relevant.to(ranking.ranks.dtype)


def _max_hits(ranking: Ranking, k: Cutoffs) -> Tensor:
    """Return min(k, R), the most hits that a row can have, float [B] or [K, B]."""
    return _relevant(ranking).clamp(max=ranking.cutoffs(k))


def _hits(ranking: Ranking, k: Cutoffs, score_threshold: float | None) -> Tensor:
    """Return h(k), the number of hits, float [B] or [K, B]; `score_threshold` as in `_num_found`."""
    return _num_hits(ranking, check_cutoffs(k), score_threshold)


@derived
def _num_hits(ranking: Ranking, k: int | tuple[int, ...], score_threshold: float | None) -> Tensor:
    is_single = ranking.near.shape[1] == 1 and score_threshold is None
    return (ranking.any_hit(k) if is_single else _num_found(ranking, k, score_threshold)).to(ranking.ranks.dtype)


def _num_found(ranking: Ranking, k: Cutoffs, score_threshold: float | None) -> Tensor:
    """Return h(k), int64 [B] or [K, B]; with a threshold, only hits with score >= threshold count."""
    found = ranking.num_hits(check_cutoffs(k))
    if score_threshold is None:
        return found
    return torch.minimum(found, ranking.num_within(_recommended(ranking, score_threshold)))


def _places(ranking: Ranking, k: Cutoffs, denominator: Denominator, score_threshold: float | None) -> Tensor:
    """Return the divisor that `denominator` names: k, min(k, R) or min(k, n'), float [B], [K, B] or [K, 1]."""
    check_choice("denominator", denominator, ("k", "min", "recommended"))
    if denominator == "min":
        return _max_hits(ranking, k)
    cut = ranking.cutoffs(k)
    if denominator == "recommended":
        return _recommended(ranking, score_threshold).clamp(max=cut).to(ranking.ranks.dtype)
    return cut.to(ranking.ranks.dtype) if isinstance(cut, Tensor) else torch.full_like(ranking.ranks[:, 0], cut)


def _divided_by(normalize: NormalizationByK, denominator: Denominator) -> Denominator:
    """Return the denominator of precision that both options give together, or raise if they contradict each other."""
    check_choice("normalize", normalize, ("k", "min"))
    if normalize == "k":
        return denominator
    if denominator != "k":
        raise ValueError(f"normalize='min' was given beside denominator={denominator!r}: leave denominator out")
    return "min"


def _recommended(ranking: Ranking, score_threshold: float | None) -> Tensor:
    """Return the number n' of recommended items: those that reach the threshold, the list's length, or `num_ranked`."""
    if score_threshold is None:
        lengths = ranking.num_recommended if ranking.score_threshold is None else None
        count = ranking.num_ranked if lengths is None else lengths
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
        raise ValueError(refusal if ranking.reach.known else DEPTH_UNKNOWN)
    return count


def _check_zero_division(value: float) -> None:
    if value not in (0.0, 1.0) and not (isinstance(value, float) and math.isnan(value)):
        raise ValueError(f"zero_division must be 0.0, 1.0 or nan, got {value!r}")


def _over_hits(ranking: Ranking, sums: Tensor, k: Cutoffs | None) -> Tensor:
    """Return the sum of the hits' values in the top `k`, [B] or [K, B]; `sums` are running sums of `_sums`."""
    k = None if k is None else check_cutoffs(k)
    if sums.shape[1] == 1:
        return ranking.any_hit(k) * sums[:, 0]
    return _sum_of_first(sums, ranking.num_hits(k))


def _sum_of_first(sums: Tensor, number: Tensor) -> Tensor:
    """Return the sum of the first `number` [B] or [K, B] values of each row, in that shape; `sums` is from `_sums`."""
    if sums.shape[1] == 1:
        return torch.where(number > 0, sums[:, 0], 0)
    if number.dim() == 1:
        return sums.gather(1, number[:, None])[:, 0]
    return sums.gather(1, number.T).T


def _sums(values: Tensor) -> Tensor:
    """Return the sums of the first 0, 1, ..., T values of each row, [B, T + 1]; if T = 1 the values, [B, 1]."""
    if values.shape[1] == 1:
        return values
    return torch.nn.functional.pad(running_sums(values), (1, 0))


@derived
def _hit_precisions(ranking: Ranking) -> Tensor:
    """Return the precision at each hit, i / r_i, [B, T]; 0 for items that were not found."""
    number = torch.arange(1, ranking.near.shape[1] + 1, dtype=ranking.ranks.dtype, device=ranking.ranks.device)
    return number / ranking.near


@derived
def _precisions(ranking: Ranking) -> Tensor:
    """Return the running sums (`_sums`) of the precision at each hit."""
    return _sums(_hit_precisions(ranking))


@derived
def _gains(ranking: Ranking) -> Tensor:
    """Return the running sums (`_sums`) of the gains in the order of the ranks."""
    return _sums(ranking.found.placed(_linear))


@derived
def _discounts(ranking: Ranking) -> Tensor:
    """Return the discounts 1 / log2(1 + r), [B, T]; 0 for items that were not found."""
    return torch.log2(1 + ranking.near).reciprocal()


@derived
def _dcg(ranking: Ranking) -> Tensor:
    """Return the running sums (`_sums`) of the discounts, the DCG if each relevant item gains 1."""
    return _sums(_discounts(ranking))


def log2_discounts(places: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the discounts 1 / log2(1 + rank) of ranks 1 to `places`; metrics of lists read them, too."""
    return torch.log2(1 + torch.arange(1, places + 1, dtype=dtype, device=device)).reciprocal()


@derived
def _ideal_dcg(ranking: Ranking) -> Tensor:
    """Return the running sums of the discounts of ranks 1 to T, [T + 1]: the ideal DCG for 0 to T relevant items."""
    ranks = ranking.ranks
    return _sums(log2_discounts(ranks.shape[1], ranks.dtype, ranks.device)[None])[0]


@derived
def _graded_dcg(ranking: Ranking, gain: Gain) -> Tensor:
    """Return the running sums (`_sums`) of the discounted gains in the order of the ranks."""
    return _sums(ranking.found.placed(_transform(ranking, gain)) * _discounts(ranking))


@derived
def _graded_ideal_dcg(ranking: Ranking, gain: Gain) -> Tensor:
    """Return the running sums (`_sums`) of the discounted gains in the ideal order, best first."""
    return _sums(_transform(ranking, gain)(ranking.ideal_gains) / torch.log2(1 + ranking.hit_number))


@derived
def _lost_dcg(ranking: Ranking, gain: Gain) -> Tensor:
    """Return the discounted gains of the unwanted items, [B, T]; 0 or less."""
    assert ranking.penalties is not None
    return ranking.penalties.placed(_transform(ranking, gain)) / torch.log2(1 + ranking.penalties.ranks)


def _lost_dcg_at(ranking: Ranking, gain: Gain, k: Cutoffs | None) -> Tensor:
    """Return the sum of the discounted gains of unwanted items in the top `k`, [B] or [K, B]."""
    assert ranking.penalties is not None
    ranks = ranking.penalties.ranks
    if k is None:
        near = ranks.isfinite()
    else:
        cut = ranking.cutoffs(k)
        near = ranks <= (cut[:, None] if isinstance(cut, Tensor) else cut)
    return _lost_dcg(ranking, gain).where(near, 0).sum(-1)


def _transform(ranking: Ranking, gain: Gain) -> partial[Tensor]:
    # DCG / IDCG does not change when both are divided by 2^(highest gain), and then no power of two overflows
    return partial(_linear) if gain == "linear" else partial(_exponential, top=ranking.ideal_gains[:, :1])


def _linear(gains: Tensor) -> Tensor:
    return gains


def _exponential(gains: Tensor, top: Tensor) -> Tensor:
    """Return (2^gain - 1) / 2^top, precise for small and for large gains."""
    ln2 = math.log(2)
    wanted = torch.exp2(gains - top) * -torch.expm1(-gains * ln2)
    return wanted.where(gains > 0, torch.expm1(gains * ln2) * torch.exp2(-top))
