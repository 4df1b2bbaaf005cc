"""Formulas of accuracy: hit rate, precision, recall, DCG, NDCG, MRR, MAP, AUROC per row of a `Ranking`.

One cut-off gives float [B], several (a list or tuple of K) give [K, B] at little extra cost; `k=None` is the whole
ranking. Rows without a relevant item are NaN. R is the number of a row's relevant items, h(k) the number of them in the
first k places. The metric of each formula tells range, edge cases, options, other names and source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Concatenate, Literal, ParamSpec, TypeAlias, cast

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import cached_constant, running_sums
from torchrecmetrics.core.checks import check_choice, describe
from torchrecmetrics.core.ranked_items import check_cutoffs, log2_discount, sum_first
from torchrecmetrics.core.ranking import DEPTH_UNKNOWN, Ranking

Denominator: TypeAlias = Literal["k", "recommended"]
"""Divisor of hits: k, or min(k, n') with n' the number of recommended items."""
Normalization: TypeAlias = Literal["relevant", "min"]
"""Divisor of recall and average precision: R or min(k, R)."""
NormalizationByK: TypeAlias = Literal["k", "min"]
"""Divisor of precision: k or min(k, R)."""
Gain: TypeAlias = Literal["linear", "exponential"]
"""Gain of a relevant item of grade g in DCG: g or 2^g - 1."""
AnyCutoff: TypeAlias = int | Sequence[int]
"""One cut-off, which gives a result [B], or a list or tuple of K cut-offs, which gives [K, B]."""

__all__ = [
    "auroc",
    "average_precision",
    "dcg",
    "f1",
    "hit_rate",
    "ndcg",
    "precision",
    "r_precision",
    "recall",
    "reciprocal_rank",
]

P = ParamSpec("P")


def of_rows(formula: Callable[Concatenate[Ranking, P], Tensor]) -> Callable[Concatenate[Ranking, P], Tensor]:
    """Check that a formula is given a `Ranking`, and set rows without a relevant item, and bad rows, to NaN.

    Metrics call the formula inside (`inspect.unwrap`), since they leave such rows out themselves.
    """

    @wraps(formula)
    def checked(ranking: Ranking, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        if not isinstance(ranking, Ranking):
            name = formula.__name__
            raise TypeError(
                f"{name} reads a Ranking, got {describe(ranking)}: {name}(Scores(scores, target).ranking(), ...), or "
                "Lists for lists of item ids, Ranks for ranks"
            )
        if args and isinstance(args[0], Tensor):  # no cut-offs by row
            args = (check_cutoffs(args[0]), *args[1:])  # type: ignore[assignment, arg-type]
        defined = ranking.num_relevant > 0
        defined = defined if ranking.valid is None else defined & ranking.valid
        return formula(ranking, *args, **kwargs).where(defined, torch.nan)

    return cast(Callable[Concatenate[Ranking, P], Tensor], checked)


@of_rows
def hit_rate(ranking: Ranking, k: AnyCutoff, *, score_threshold: float | None = None) -> Tensor:
    """Return 1 if a relevant item of the row is in the top `k`, else 0; with ties, its probability; see `HitRate`."""
    return ranking.relevant.any_hit(_reached(ranking, k, score_threshold))


@of_rows
def precision(
    ranking: Ranking,
    k: AnyCutoff,
    *,
    normalize: NormalizationByK = "k",
    denominator: Denominator = "k",
    score_threshold: float | None = None,
    zero_division: float = 0.0,
) -> Tensor:
    """Return h(k) / k, the share of the top `k` that is relevant; see `Precision`."""
    if zero_division != 0.0:
        _check_zero_division(zero_division)
    hits = ranking.relevant.num_hits(_reached(ranking, k, score_threshold))
    if normalize == denominator == "k":
        return hits / ranking.cutoffs(k)
    places = _places(ranking, k, normalize, denominator, score_threshold)
    assert isinstance(places, Tensor)  # an int is k, above
    return (hits / places).where(places > 0, zero_division)


@of_rows
def recall(
    ranking: Ranking,
    k: AnyCutoff,
    *,
    normalize: Normalization = "relevant",
    weighted: bool = False,
    score_threshold: float | None = None,
) -> Tensor:
    """Return h(k) / R, the share of the relevant items that is in the top `k`; see `Recall`."""
    if not isinstance(weighted, bool):
        raise TypeError(f"weighted is True or False, got {weighted!r}")
    check_choice("normalize", normalize, ("relevant", "min"))
    by_min = normalize == "min"
    if by_min and weighted:
        raise ValueError("recall is either divided by min(k, R) (normalize='min') or weighted by gains, not both")
    reached = _reached(ranking, k, score_threshold)
    if weighted and ranking.gains is not None:
        gains = ranking.relevant.placed(_linear)
        return ranking.relevant.sum_hits(torch.ones_like, reached, gains) / ranking.gains.sum(1)
    return ranking.relevant.num_hits(reached) / (_max_hits(ranking, k) if by_min else ranking.num_relevant)


@of_rows
def f1(
    ranking: Ranking,
    k: AnyCutoff,
    *,
    normalize: NormalizationByK = "k",
    denominator: Denominator = "k",
    score_threshold: float | None = None,
) -> Tensor:
    """Return 2 h(k) / (k + R), the harmonic mean of precision and recall; see `F1`."""
    places = _places(ranking, k, normalize, denominator, score_threshold)
    return 2 * ranking.relevant.num_hits(_reached(ranking, k, score_threshold)) / (places + ranking.num_relevant)


@of_rows
def r_precision(ranking: Ranking) -> Tensor:
    """Return h(R) / R, the precision at cut-off R, which equals the recall there; see `RPrecision`."""
    return ranking.num_hits(ranking.num_relevant) / ranking.num_relevant


@of_rows
def average_precision(ranking: Ranking, k: AnyCutoff | None = None, *, normalize: Normalization = "relevant") -> Tensor:
    """Return (1/R) sum over hits of i / r_i, r_i the rank of the i-th best relevant item; see `MAP`."""
    check_choice("normalize", normalize, ("relevant", "min"))
    by_all = k is None or normalize == "relevant"
    sums = ranking.relevant.sum_of_precisions(ranking.check_depth(k))
    return sums / (ranking.num_relevant if by_all else _max_hits(ranking, k))  # type: ignore[arg-type]


@of_rows
def dcg(ranking: Ranking, k: AnyCutoff | None = None, *, gain: Gain = "linear") -> Tensor:
    """Return the sum over hits of gain_i / log2(1 + r_i); see `DCG`."""
    check_choice("gain", gain, ("linear", "exponential"))
    return _dcg(ranking, k, _linear if gain == "linear" else _exponential)


@of_rows
def ndcg(ranking: Ranking, k: AnyCutoff | None = None, *, gain: Gain = "linear") -> Tensor:
    """Return DCG / IDCG, DCG = sum over hits of gain_i / log2(1 + r_i); IDCG of all gains, best first; see `NDCG`."""
    check_choice("gain", gain, ("linear", "exponential"))
    if ranking.relevant.gains is None and ranking.penalties is None:
        dcg = ranking.relevant.sum_hits(log2_discount, ranking.check_depth(k))
        width = ranking.relevant.ranks.shape[1]
        if width == 1:
            return dcg  # the ideal is 1
        return dcg / _ideal_dcg(width, dcg.dtype, dcg.device).take(_num_ideal(ranking, k))
    transform = _transform(ranking, gain)
    best = transform(ranking.ideal_gains) * log2_discount(ranking.hit_number)
    return _dcg(ranking, k, transform) / sum_first(best, _num_ideal(ranking, k))


@of_rows
def reciprocal_rank(ranking: Ranking, k: AnyCutoff | None = None) -> Tensor:
    """Return 1 / r_1 if the best relevant item is in the top `k`, else 0; see `MRR`."""
    return ranking.relevant.reciprocal_first(ranking.check_depth(k))


@of_rows
def auroc(ranking: Ranking) -> Tensor:
    """Return the share of (relevant, other) pairs in the right order; a tied pair counts half; see `AUROC`."""
    if ranking.num_ranked is None:
        raise ValueError("AUROC needs to know how many items were ranked: pass scores, or Ranks(..., num_ranked=...)")
    num_found = ranking.num_hits(None)
    num_others = ranking.num_ranked - num_found
    overtaken_by = ranking.ranks.where(ranking.ranks.isfinite(), 0).sum(1) - num_found * (num_found + 1) / 2
    return (num_found * num_others - overtaken_by) / (ranking.num_relevant * num_others)


# ----------------------------------------------------------------------------------------- helpers


@cached_constant
def log2_discounts(places: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the discounts 1 / log2(1 + rank) of ranks 1 to `places`; metrics of lists read them, too."""
    return log2_discount(torch.arange(1, places + 1, dtype=dtype, device=device))


def _dcg(ranking: Ranking, k: AnyCutoff | None, transform: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the DCG of transformed gains: that of the relevant items, and of penalties."""
    relevant, penalties, reached = ranking.relevant, ranking.penalties, ranking.check_depth(k)
    if relevant.gains is None and penalties is None:
        return relevant.sum_hits(log2_discount, reached)
    total = relevant.sum_hits(log2_discount, reached, relevant.placed(transform))
    if penalties is None:
        return total
    return total + penalties.sum_hits(log2_discount, reached, penalties.placed(transform))


@cached_constant
def _ideal_dcg(most: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the ideal DCG of 0, 1, ..., `most` relevant items that gain 1 each."""
    sums = running_sums(log2_discount(torch.arange(1, most + 1, dtype=dtype, device=device))[None])[0]
    return torch.nn.functional.pad(sums, (1, 0))


def _num_ideal(ranking: Ranking, k: AnyCutoff | None) -> Tensor:
    """Return the number of relevant items in the ideal top `k`, int64 [B] or [K, B]."""
    return (ranking.num_relevant if k is None else _max_hits(ranking, k)).long()


def _max_hits(ranking: Ranking, k: AnyCutoff) -> Tensor:
    """Return min(k, R), the most hits that a row can have, float [B] or [K, B]."""
    return ranking.num_relevant.clamp(max=ranking.cutoffs(k))


def _reached(ranking: Ranking, k: AnyCutoff, score_threshold: float | None) -> AnyCutoff | Tensor:
    """Return the cut-off; with a threshold, at most the number of items with score >= threshold: [B] or [K, B]."""
    if k is None:
        check_cutoffs(k)  # raises
    checked: AnyCutoff = ranking.check_depth(k)  # type: ignore[assignment]  # not a tensor, since `k` is none
    if score_threshold is None:
        return checked
    return _recommended(ranking, score_threshold).clamp(max=ranking.cutoffs(k))


def _places(
    ranking: Ranking, k: AnyCutoff, normalize: NormalizationByK, denominator: Denominator, score_threshold: float | None
) -> Tensor | int:
    """Return the divisor that the options name: k, min(k, R) or min(k, n'), float [B], [K, B] or [K, 1]."""
    check_choice("normalize", normalize, ("k", "min"))
    check_choice("denominator", denominator, ("k", "recommended"))
    if normalize == "min":
        if denominator != "k":
            raise ValueError("hits are divided by min(k, R) (normalize='min') or by the recommended items, not both")
        return _max_hits(ranking, k)
    cutoffs = ranking.cutoffs(k)
    return cutoffs if denominator == "k" else _recommended(ranking, score_threshold).clamp(max=cutoffs)


def _recommended(ranking: Ranking, score_threshold: float | None) -> Tensor:
    """Return the number n' of recommended items: those that reach the threshold, the list's length, or `num_ranked`."""
    if score_threshold is None:
        lengths = ranking.num_recommended if ranking.score_threshold is None else None
        count = ranking.num_ranked if lengths is None else lengths
        refusal = (
            "denominator='recommended' needs to know how many items were recommended: pass scores, Lists, or "
            "Ranks(..., num_ranked=...)"
        )
    else:
        count = ranking.num_recommended if ranking.score_threshold == score_threshold else None
        refusal = (
            f"the metric counts items with score >= {score_threshold}, but the ranking was made with "
            f"score_threshold={ranking.score_threshold}: pass scores, or name it in Scores(...).ranking(...)"
        )
    if count is None:
        raise ValueError(refusal if ranking.depth_known else DEPTH_UNKNOWN)
    return count


def _check_zero_division(value: float) -> None:
    if value not in (0.0, 1.0) and not (isinstance(value, float) and math.isnan(value)):
        raise ValueError(f"zero_division must be 0.0, 1.0 or nan, got {value!r}")


def _transform(ranking: Ranking, gain: Gain) -> Callable[[Tensor], Tensor]:
    """Return the function from grades to gains."""
    if gain == "linear":
        return _linear
    top = ranking.ideal_gains[:, :1]
    # DCG / IDCG does not change when both are divided by 2^(highest gain), and then no power of two overflows
    return lambda gains: _scaled_exponential(gains, top)


def _linear(gains: Tensor) -> Tensor:
    return gains


def _exponential(gains: Tensor) -> Tensor:
    """Return 2^gain - 1, precise for small gains."""
    return torch.expm1(gains * math.log(2))


def _scaled_exponential(gains: Tensor, top: Tensor) -> Tensor:
    """Return (2^gain - 1) / 2^top, precise for small and for large gains."""
    ln2 = math.log(2)
    scaled = torch.exp2(gains - top) * -torch.expm1(-gains * ln2)
    return scaled.where(gains > 0, torch.expm1(gains * ln2) * torch.exp2(-top))
