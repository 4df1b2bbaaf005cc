"""Accuracy: HitRate, Precision, Recall, F1, RPrecision, MAP, DCG, NDCG, MRR, AUROC, and their formulas.

The formulas are public, with checks, as `torchrecmetrics.functional`. Rows without a relevant item have any value.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeAlias, cast

import torch
from torch import Tensor
from torchmetrics.utilities import rank_zero_warn

from torchrecmetrics.core.arrays import cached_constant, running_sums
from torchrecmetrics.core.checks import check_choice, describe
from torchrecmetrics.core.options import Needs
from torchrecmetrics.core.ranked_items import AnyCutoff, check_cutoffs, log2_discount, sum_first
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.core.result import Result
from torchrecmetrics.metrics.description import Description, MetricOptions
from torchrecmetrics.metrics.ranking_metric import RankingMetric

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["AUROC", "DCG", "F1", "HR", "MAP", "MRR", "NDCG", "HitRate", "Precision", "RPrecision", "Recall"]


Denominator: TypeAlias = Literal["k", "recommended"]
"""Divisor of hits: k, or min(k, n') with n' the number of recommended items."""
Normalization: TypeAlias = Literal["relevant", "min"]
"""Divisor of recall and average precision: R or min(k, R)."""
NormalizationByK: TypeAlias = Literal["k", "min"]
"""Divisor of precision: k or min(k, R)."""
Gain: TypeAlias = Literal["linear", "exponential"]
"""Gain of a relevant item of grade g in DCG: g or 2^g - 1."""
P = ParamSpec("P")


def of_rows(formula: Callable[Concatenate[Ranking, P], Tensor]) -> Callable[Concatenate[Ranking, P], Tensor]:
    """Return a formula that checks its arguments, with NaN for rows without a relevant item and bad rows.

    Metrics check their options, and leave such rows out, themselves.
    """
    cutoff = inspect.signature(formula).parameters.get("k")

    @wraps(formula)
    def checked(ranking: Ranking, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        if not isinstance(ranking, Ranking):
            name = formula.__name__
            raise TypeError(
                f"{name} reads a Ranking, got {describe(ranking)}: {name}(Scores(scores, target).ranking(), ...), or "
                "Lists for lists of item ids, Ranks for ranks"
            )
        if cutoff is not None and (args or "k" in kwargs):
            k: Any = kwargs.pop("k") if "k" in kwargs else args[0]
            k = k if k is None and cutoff.default is None else check_cutoffs(k)
            args = (k, *args[1:])  # type: ignore[assignment]
        defined = ranking.num_relevant > 0
        defined = defined if ranking.rows.valid is None else defined & ranking.rows.valid
        return formula(ranking, *args, **kwargs).where(defined, torch.nan)

    return cast(Callable[Concatenate[Ranking, P], Tensor], checked)


def hit_rate(ranking: Ranking, k: AnyCutoff, *, score_threshold: float | None = None) -> Tensor:
    """Return 1 if a relevant item of the row is in the top `k`, else 0; with ties, its probability; see `HitRate`."""
    return ranking.any_hit(k, min_score=score_threshold)


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
    hits = ranking.num_hits(k, min_score=score_threshold)
    if normalize == denominator == "k":
        return hits / ranking.cutoffs(k)
    places = _places(ranking, k, normalize, denominator, score_threshold)
    assert isinstance(places, Tensor)  # an int is k, above
    return (hits / places).where(places > 0, zero_division)


def recall(
    ranking: Ranking,
    k: AnyCutoff,
    *,
    normalize: Normalization = "relevant",
    weighted: bool = False,
    score_threshold: float | None = None,
    zero_division: float = 0.0,
) -> Tensor:
    """Return h(k) / R, the share of the relevant items that is in the top `k`; see `Recall`."""
    if not isinstance(weighted, bool):
        raise TypeError(f"weighted is True or False, got {weighted!r}")
    check_choice("normalize", normalize, ("relevant", "min"))
    by_min = normalize == "min"
    if by_min and weighted:
        raise ValueError("recall is either divided by min(k, R) (normalize='min') or weighted by gains, not both")
    if weighted and ranking.gains is not None:
        gains = ranking.relevant.placed(_linear)
        shares = ranking.sum_hits(torch.ones_like, k, gains, min_score=score_threshold) / ranking.gains.sum(1)
    else:
        hits = ranking.num_hits(k, min_score=score_threshold)
        shares = hits / (_max_hits(ranking, k) if by_min else ranking.num_relevant)
    if zero_division != 0.0:
        _check_zero_division(zero_division)
        shares = shares.where(ranking.num_relevant > 0, zero_division)
    return shares


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
    return 2 * ranking.num_hits(k, min_score=score_threshold) / (places + ranking.num_relevant)


def r_precision(ranking: Ranking) -> Tensor:
    """Return h(R) / R, the precision at cut-off R, which equals the recall there; see `RPrecision`."""
    return ranking.num_hits(ranking.num_relevant) / ranking.num_relevant


def average_precision(ranking: Ranking, k: AnyCutoff | None = None, *, normalize: Normalization = "relevant") -> Tensor:
    """Return (1/R) sum over hits of i / r_i, r_i the rank of the i-th best relevant item; see `MAP`."""
    check_choice("normalize", normalize, ("relevant", "min"))
    by_all = k is None or normalize == "relevant"
    sums = ranking.sum_of_precisions(k)
    return sums / (ranking.num_relevant if by_all else _max_hits(ranking, k))  # type: ignore[arg-type]


def dcg(ranking: Ranking, k: AnyCutoff | None = None, *, gain: Gain = "linear") -> Tensor:
    """Return the sum over hits of gain_i / log2(1 + r_i); see `DCG`."""
    check_choice("gain", gain, ("linear", "exponential"))
    return _dcg(ranking, k, _linear if gain == "linear" else _exponential)


def ndcg(ranking: Ranking, k: AnyCutoff | None = None, *, gain: Gain = "linear") -> Tensor:
    """Return DCG / IDCG, DCG = sum over hits of gain_i / log2(1 + r_i); IDCG of all gains, best first; see `NDCG`."""
    check_choice("gain", gain, ("linear", "exponential"))
    if ranking.relevant.gains is None and ranking.penalties is None:
        dcg = ranking.sum_hits(log2_discount, k)
        width = ranking.relevant.width
        if width == 1:
            return dcg  # the ideal is 1
        return dcg / _ideal_dcg(width, dcg.dtype, dcg.device).take(_num_ideal(ranking, k))
    transform = _transform(ranking, gain)
    best = transform(ranking.ideal_gains) * log2_discount(ranking.hit_number)
    return _dcg(ranking, k, transform) / sum_first(best, _num_ideal(ranking, k))


def reciprocal_rank(ranking: Ranking, k: AnyCutoff | None = None) -> Tensor:
    """Return 1 / r_1 if the best relevant item is in the top `k`, else 0; see `MRR`."""
    return ranking.reciprocal_first(k)


def auroc(ranking: Ranking) -> Tensor:
    """Return the share of (relevant, other) pairs in the right order; a tied pair counts half; see `AUROC`."""
    if ranking.num_ranked is None:
        raise ValueError("AUROC needs to know how many items were ranked: pass scores, or Ranks(..., num_ranked=...)")
    num_found = ranking.num_hits(None)
    num_others = ranking.num_ranked - num_found
    overtaken_by = ranking.ranks.where(ranking.ranks.isfinite(), 0).sum(1) - num_found * (num_found + 1) / 2
    return (num_found * num_others - overtaken_by) / (ranking.num_relevant * num_others)


def _dcg(ranking: Ranking, k: AnyCutoff | None, transform: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the DCG of transformed gains, of the relevant items and of penalties."""
    penalties = ranking.penalties
    if ranking.gains is None and penalties is None:
        return ranking.sum_hits(log2_discount, k)
    total = ranking.sum_hits(log2_discount, k, ranking.relevant.placed(transform))
    if penalties is None:
        return total
    return total + penalties.sum_hits(log2_discount, ranking.check_depth(k), penalties.placed(transform))


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
    if score_threshold is not None:
        return ranking.num_reaching(score_threshold)
    lengths = ranking.num_recommended if ranking.score_threshold is None else None
    count = ranking.num_ranked if lengths is None else lengths
    if count is None:
        raise ValueError(
            "denominator='recommended' needs to know how many items were recommended: pass scores, Lists, or "
            "Ranks(..., num_ranked=...)"
        )
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


class _OfRecommended(RankingMetric):
    """Base of metrics whose denominator can be the number of recommended items."""

    @property
    def needs(self) -> Needs:
        """The base class's needs, and the number of candidates if all candidates are recommended."""
        needs = super().needs
        return needs._replace(num_ranked=self.options["denominator"] == "recommended" and needs.score_threshold is None)


class HitRate(RankingMetric, formula=hit_rate, bounds=(0.0, 1.0), many_cutoffs=True, _name="HR"):
    """Hit rate at k: share of rows with a relevant item in the first `k` ranks.

    A row counts 1 if h(k) > 0, else 0, with h(k) the number of its relevant items in the first k ranks.

    Range: 0 to 1. No relevant item: left out, unless `empty_target_action` says otherwise. Fewer than `k` items: all of
    them are read. Ties: the probability of a hit over all orders of equal scores, unless `ties` says otherwise.

    Also called hit ratio, Hit@k, Hits@k, Success@k, accuracy@k; where each row has one relevant item, Recall@k. Source:
    Deshpande & Karypis, Item-based top-N recommendation algorithms, 2004.

    Args:
        k: cut-off, >= 1.
        score_threshold: only items with score >= this are recommended.
        options: keyword options of every metric (`ties`, `padding_idx`, ...); see `RankingMetric`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> target = torch.tensor([[0, 3], [2, -1], [2, -1]])  # at ranks 1 and 4; 2; 4
        >>> metric = trm.HitRate(3)
        >>> metric.update(scores, target)
        >>> metric.compute()  # (1 + 1 + 0) / 3
        tensor(0.6667, dtype=torch.float64)
    """

    def __init__(self, k: int, *, score_threshold: float | None = None, **options: Unpack[MetricOptions]) -> None:
        super().__init__(k, score_threshold=score_threshold, **options)


HR = HitRate


class Precision(_OfRecommended, formula=precision, bounds=(0.0, 1.0), many_cutoffs=True):
    """Precision at k: mean of h(k) / k, the share of the first `k` ranks that is relevant.

    Range: 0 to 1. No relevant item: left out, unless `empty_target_action` says otherwise. Fewer than `k` items: the
    denominator stays `k`, unless an option below says otherwise. Ties: the mean over all orders of equal scores, unless
    `ties` says otherwise.

    Also called P@k. Source: Manning, Raghavan & Schütze, Introduction to Information Retrieval, 2008, chapter 8.

    Args:
        k: cut-off, >= 1.
        normalize: "k", divided by k; or "min", by min(k, R) with R relevant items (TP@k of recometrics, r_precision of
            RecTools).
        denominator: "k"; or "recommended", h / min(k, n'): n' is the length of a list, or for scores the number of
            candidates (with `score_threshold=t`, of those with score >= t; relison, Surprise).
        score_threshold: only items with score >= this are recommended.
        zero_division: value of a row whose denominator is 0: 0.0, 1.0 or nan (the row is left out). It overrides
            `empty_target_action="neg"`; the other actions override it.
        options: keyword options of every metric (`ties`, `padding_idx`, ...); see `RankingMetric`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> target = torch.tensor([[0, 3], [2, -1], [2, -1]])  # at ranks 1 and 4; 2; 4
        >>> metric = trm.Precision(3)
        >>> metric.update(scores, target)
        >>> metric.compute()  # (1/3 + 1/3 + 0/3) / 3
        tensor(0.2222, dtype=torch.float64)
        >>> trm.Precision(3, normalize="min")(scores, target)  # (1/2 + 1/1 + 0/1) / 3
        tensor(0.5000, dtype=torch.float64)
        >>> metric = trm.Precision(3, denominator="recommended", score_threshold=2.5)
        >>> metric(scores, target)  # (1/2 + 1/2 + 0/2) / 3: two scores reach 2.5
        tensor(0.3333, dtype=torch.float64)
    """

    def __init__(
        self,
        k: int,
        *,
        normalize: NormalizationByK = "k",
        denominator: Denominator = "k",
        score_threshold: float | None = None,
        zero_division: float = 0.0,
        **options: Unpack[MetricOptions],
    ) -> None:
        super().__init__(
            k,
            normalize=normalize,
            denominator=denominator,
            score_threshold=score_threshold,
            zero_division=zero_division,
            **options,
        )


class Recall(RankingMetric, formula=recall, bounds=(0.0, 1.0), many_cutoffs=True):
    """Recall at k: mean of h(k) / R, the share of the R relevant items in the first `k` ranks.

    Range: 0 to 1; below 1 where R > k, unless `normalize="min"`. No relevant item: left out, unless
    `empty_target_action` says otherwise. Fewer than `k` items: all of them are read. Ties: the mean over all orders of
    equal scores, unless `ties` says otherwise.

    Also called R@k, sensitivity@k. Source: Manning, Raghavan & Schütze, Introduction to Information Retrieval, 2008,
    chapter 8.

    Args:
        k: cut-off, >= 1.
        normalize: "relevant", divided by R; or "min", by min(k, R) (LensKit's Recall, recpack's CalibratedRecallK).
        weighted: gains of the hits / all gains (PyG's `weighted`).
        score_threshold: only items with score >= this are recommended.
        zero_division: as in `Precision`; the denominator is 0 if no item is relevant.
        options: keyword options of every metric (`ties`, `padding_idx`, ...); see `RankingMetric`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> target = torch.tensor([[0, 3], [2, -1], [2, -1]])  # at ranks 1 and 4; 2; 4
        >>> metric = trm.Recall(3)
        >>> metric.update(scores, target)
        >>> metric.compute()  # (1/2 + 1/1 + 0/1) / 3
        tensor(0.5000, dtype=torch.float64)
        >>> trm.Recall(1)(scores, target)  # (1/2 + 0 + 0) / 3
        tensor(0.1667, dtype=torch.float64)
        >>> trm.Recall(1, normalize="min")(scores, target)  # (1/1 + 0 + 0) / 3
        tensor(0.3333, dtype=torch.float64)
        >>> gains = torch.tensor([[3.0, 1], [1, 0], [1, 0]])
        >>> trm.Recall(3, weighted=True)(scores, target, gains=gains)  # (3/4 + 1/1 + 0/1) / 3
        tensor(0.5833, dtype=torch.float64)
    """

    def __init__(
        self,
        k: int,
        *,
        normalize: Normalization = "relevant",
        weighted: bool = False,
        score_threshold: float | None = None,
        zero_division: float = 0.0,
        **options: Unpack[MetricOptions],
    ) -> None:
        super().__init__(
            k,
            normalize=normalize,
            weighted=weighted,
            score_threshold=score_threshold,
            zero_division=zero_division,
            **options,
        )


def warn_of_certain_ones(
    metrics: Mapping[str, Description], results: Mapping[str, Result], longest: int, rows: str = "sessions"
) -> None:
    """Warn of hit rates and recalls that are 1 for any scores, since no row is longer than their cut-off.

    Rows without a relevant item are left out, and all relevant items of the others are listed.

    Args:
        metrics: description of each metric by key.
        results: result of each metric by key.
        longest: number of items of the longest row.
        rows: what the rows are, in the plural.
    """
    keys = [
        key
        for key, metric in metrics.items()
        if metric.metric_class.formula in (hit_rate, recall) and (metric.k or 0) >= longest
        if results[key].num_skipped and math.isclose(results[key].value, 1)
    ]
    if keys and metrics[keys[0]].empty_target_action == "skip":
        result, k = results[keys[0]], metrics[keys[0]].k
        rank_zero_warn(
            f"{' and '.join(keys)} {'is' if len(keys) == 1 else 'are'} 1 by construction: all {result.num_users} "
            f"{rows} with a relevant item end by rank {k}, and {result.num_skipped} without one are left out. "
            "If these are retrieved lists, pass the ground truth, or Hits(flags, num_relevant=)",
            UserWarning,
        )


class F1(_OfRecommended, formula=f1, bounds=(0.0, 1.0), many_cutoffs=True):
    """F1 at k: mean of 2 h(k) / (k + R), the harmonic mean of the row's precision and recall.

    Range: 0 to 1. No relevant item: left out, unless `empty_target_action` says otherwise. Fewer than `k` items: k
    stays the same. Ties: the mean over all orders of equal scores, unless `ties` says otherwise.

    Also called F-measure@k; other libraries take the harmonic mean of the mean precision and the mean recall, a
    different number. Source: van Rijsbergen, Information Retrieval, 1979, chapter 7.

    Args:
        k: cut-off, >= 1.
        normalize: as in `Precision`, whose denominator replaces k.
        denominator: as in `Precision`.
        score_threshold: only items with score >= this are recommended.
        options: keyword options of every metric (`ties`, `padding_idx`, ...); see `RankingMetric`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> target = torch.tensor([[0, 3], [2, -1], [2, -1]])  # at ranks 1 and 4; 2; 4
        >>> metric = trm.F1(3)
        >>> metric.update(scores, target)
        >>> metric.compute()  # (2 * 1 / (3 + 2) + 2 * 1 / (3 + 1) + 0) / 3
        tensor(0.3000, dtype=torch.float64)
    """

    def __init__(
        self,
        k: int,
        *,
        normalize: NormalizationByK = "k",
        denominator: Denominator = "k",
        score_threshold: float | None = None,
        **options: Unpack[MetricOptions],
    ) -> None:
        super().__init__(k, normalize=normalize, denominator=denominator, score_threshold=score_threshold, **options)


class RPrecision(RankingMetric, formula=r_precision, bounds=(0.0, 1.0)):
    """R-precision: mean of #{r_i <= R} / R, the precision at R, where r_i are the ranks of the row's R relevant items.

    Range: 0 to 1; there is no cut-off. No relevant item: left out, unless `empty_target_action` says otherwise. Fewer
    than R candidates: R stays the same. Ties: the mean over all orders of equal scores, unless `ties` says otherwise.

    Also called precision@R, recall@R. Source: Manning, Raghavan & Schütze, Introduction to Information Retrieval, 2008,
    section 8.4.

    Args:
        options: keyword options of every metric (`ties`, `padding_idx`, ...); see `RankingMetric`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> target = torch.tensor([[0, 3], [2, -1], [2, -1]])  # at ranks 1 and 4; 2; 4
        >>> metric = trm.RPrecision()
        >>> metric.update(scores, target)
        >>> metric.compute()  # (1/2 + 0/1 + 0/1) / 3: ranks up to 2, 1 and 1 are read
        tensor(0.1667, dtype=torch.float64)
    """

    def __init__(self, **options: Unpack[MetricOptions]) -> None:
        super().__init__(**options)

    @property
    def needs(self) -> Needs:
        """As many ranks of each row as it has relevant items."""
        return Needs(depth=0, whole_targets=True)


class MAP(RankingMetric, formula=average_precision, bounds=(0.0, 1.0), many_cutoffs=True):
    """Mean average precision: mean of (1/R) sum of i / r_i over hits in the first `k` ranks.

    r_i is the rank of the i-th best of R relevant items, so i / r_i is the precision at that rank. Without `k` it is
    the area under the precision-recall curve.

    Range: 0 to 1; below 1 where R > k, unless `normalize="min"`. No relevant item: left out, unless
    `empty_target_action` says otherwise. Fewer than `k` items: all of them are read. Ties: the mean over all orders of
    equal scores, unless `ties` says otherwise.

    Also called AP@k for one row; torchmetrics divides by the number of hits, which gives a different number. Source:
    Manning, Raghavan & Schütze, Introduction to Information Retrieval, 2008, section 8.4.

    Args:
        k: cut-off, >= 1; None = the whole ranking.
        normalize: "relevant", divided by R; or "min", by min(k, R) (RecBole, PyG, RePlay, Spark; recometrics' TAP@k).
            Without `k` the two are equal.
        options: keyword options of every metric (`ties`, `padding_idx`, ...); see `RankingMetric`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> target = torch.tensor([[0, 3], [2, -1], [2, -1]])  # at ranks 1 and 4; 2; 4
        >>> metric = trm.MAP()
        >>> metric.update(scores, target)
        >>> metric.compute()  # ((1/1 + 2/4) / 2 + 1/2 + 1/4) / 3
        tensor(0.5000, dtype=torch.float64)
        >>> trm.MAP(1)(scores, target)  # ((1/1) / 2 + 0 + 0) / 3
        tensor(0.1667, dtype=torch.float64)
        >>> trm.MAP(1, normalize="min")(scores, target)  # ((1/1) / 1 + 0 + 0) / 3
        tensor(0.3333, dtype=torch.float64)
    """

    def __init__(
        self, k: int | None = None, *, normalize: Normalization = "relevant", **options: Unpack[MetricOptions]
    ) -> None:
        super().__init__(k, normalize=normalize, **options)


class DCG(RankingMetric, formula=dcg, many_cutoffs=True):
    """Discounted cumulative gain: mean of the sum of gain_i / log2(1 + r_i) over hits in the first `k` ranks.

    Range: from 0, without an upper bound (below 0 with negative gains). Gains as for `NDCG`. No relevant item: left
    out, unless `empty_target_action` says otherwise. Fewer than `k` items: all of them are read. Ties: the mean over
    all orders of equal scores, unless `ties` says otherwise.

    `NDCG` divides each row by its ideal, so the two means can rank models differently; only DCG can be an unbiased
    estimate of the reward in an online test.

    Sources: Järvelin & Kekäläinen, Cumulated gain-based evaluation of IR techniques, 2002; this discount and
    exponential gains: Burges et al., Learning to rank using gradient descent, 2005; orders: Jeunen, Potapov &
    Ustimenko, On (normalised) discounted cumulative gain as an off-policy evaluation metric for top-n recommendation,
    KDD 2024.

    Args:
        k: cut-off, >= 1; None = the whole ranking.
        gain: "linear", or "exponential" for 2^gain - 1.
        options: keyword options of every metric (`ties`, `padding_idx`, ...); see `RankingMetric`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> target = torch.tensor([[0, 3], [2, -1], [2, -1]])  # at ranks 1 and 4; 2; 4
        >>> metric = trm.DCG(3)
        >>> metric.update(scores, target)
        >>> metric.compute()  # (1 / log2(1 + 1) + 1 / log2(1 + 2) + 0) / 3
        tensor(0.5436, dtype=torch.float64)
    """

    def __init__(self, k: int | None = None, *, gain: Gain = "linear", **options: Unpack[MetricOptions]) -> None:
        super().__init__(k, gain=gain, **options)


class NDCG(RankingMetric, formula=ndcg, bounds=(0.0, 1.0), many_cutoffs=True):
    """Normalised discounted cumulative gain: mean of DCG / IDCG, DCG = sum of gain_i / log2(1 + r_i)
    over hits in the first `k` ranks.

    The ideal, IDCG, orders *all* of the row's gains best first and cuts at `k`. Gain 1 for every relevant item unless
    `gains` or a graded target say otherwise; then linear and exponential are equal.

    Range: 0 to 1 (below 0 with negative gains, which count in DCG only). No relevant item: left out, unless
    `empty_target_action` says otherwise. Fewer than `k` items: the ideal is not lowered. Ties: the mean over all orders
    of equal scores, unless `ties` says otherwise.

    Also called nDCG@k. Sources: Järvelin & Kekäläinen, Cumulated gain-based evaluation of IR techniques, 2002, whose
    discount, log2 r from rank 2 on, leaves the first two ranks undiscounted; this discount and exponential gains:
    Burges et al., Learning to rank using gradient descent, 2005.

    Args:
        k: cut-off, >= 1; None = the whole ranking.
        gain: "linear", or "exponential" for 2^gain - 1.
        options: keyword options of every metric (`ties`, `padding_idx`, ...); see `RankingMetric`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> target = torch.tensor([[0, 3], [2, -1], [2, -1]])  # at ranks 1 and 4; 2; 4
        >>> metric = trm.NDCG(3)
        >>> metric.update(scores, target)
        >>> # discounts of ranks 1, 2 and 3: 1, 1 / log2(3) = 0.6309, 1 / log2(4) = 0.5
        >>> metric.compute()  # (1 / (1 + 0.6309) + 0.6309 / 1 + 0) / 3
        tensor(0.4147, dtype=torch.float64)
        >>> gains = torch.tensor([[2.0, 3], [1, 0], [1, 0]])
        >>> trm.NDCG(3)(scores, target, gains=gains)  # first user: 2 / (3 + 2 * 0.6309)
        tensor(0.3667, dtype=torch.float64)
        >>> metric = trm.NDCG(3, gain="exponential")
        >>> metric(scores, target, gains=gains)  # first user: 3 / (7 + 3 * 0.6309)
        tensor(0.3228, dtype=torch.float64)
    """

    def __init__(self, k: int | None = None, *, gain: Gain = "linear", **options: Unpack[MetricOptions]) -> None:
        super().__init__(k, gain=gain, **options)


class MRR(RankingMetric, formula=reciprocal_rank, bounds=(0.0, 1.0), many_cutoffs=True):
    """Mean reciprocal rank: mean of 1 / rank of the best relevant item, or 0 if it is not in the first `k`.

    Range: 0 to 1. No relevant item: left out, unless `empty_target_action` says otherwise. Fewer than `k` items: all of
    them are read. Ties: the mean over all orders of equal scores, unless `ties` says otherwise.

    Also called RR@k for one row, reciprocal hit rate; ARHR where there is one relevant item. Source: Voorhees, The
    TREC-8 question answering track report, 1999.

    Args:
        k: cut-off, >= 1; None = the whole ranking.
        options: keyword options of every metric (`ties`, `padding_idx`, ...); see `RankingMetric`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> target = torch.tensor([[0, 3], [2, -1], [2, -1]])  # at ranks 1 and 4; 2; 4
        >>> metric = trm.MRR(3)
        >>> metric.update(scores, target)
        >>> metric.compute()  # (1/1 + 1/2 + 0) / 3; without k (1/1 + 1/2 + 1/4) / 3
        tensor(0.5000, dtype=torch.float64)
    """

    def __init__(self, k: int | None = None, **options: Unpack[MetricOptions]) -> None:
        super().__init__(k, **options)


def _num_relevant(ranking: Ranking) -> Tensor:
    return ranking.num_relevant


def _num_ranked(ranking: Ranking) -> Tensor:
    assert ranking.num_ranked is not None  # the formula raises if it is None
    return ranking.num_ranked


_WEIGHTS: dict[str, Callable[[Ranking], Tensor]] = {"relevant": _num_relevant, "candidates": _num_ranked}


class AUROC(RankingMetric, formula=auroc, bounds=(0.0, 1.0)):
    """Area under the ROC curve, averaged over rows: share of (relevant, other) pairs in the right order.

    Range: 0 to 1; 0.5 in random order. No relevant item: left out, unless `empty_target_action` says otherwise. Rows
    with no other candidate are left out, so AUROC may average fewer rows than other metrics. A relevant item that is
    not a candidate loses to every other; other items that are not candidates form no pairs. Ties: a tied pair counts
    half, unless `ties` places it. Needs the whole ranking and its length; there is no cut-off.

    Also called AUC, and as a mean over users GAUC. Source: Hanley & McNeil, The meaning and use of the area under a
    receiver operating characteristic curve, 1982.

    Args:
        weight: weight of a row: None, 1; "relevant", its number of relevant items (RecBole's GAUC); "candidates", its
            number of candidates (GAUC weighted by impressions: DIN, FuxiCTR; source: Zhu et al., Optimized cost per
            click in Taobao display advertising, KDD 2017).
        options: keyword options of every metric (`ties`, `padding_idx`, ...); see `RankingMetric`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> target = torch.tensor([[0, 3], [2, -1], [2, -1]])  # at ranks 1 and 4; 2; 4
        >>> metric = trm.AUROC()
        >>> metric.update(scores, target)
        >>> metric.compute()  # (2/4 + 2/3 + 0/3) / 3
        tensor(0.3889, dtype=torch.float64)
        >>> trm.AUROC(weight="relevant")(scores, target)  # (2 * 2/4 + 2/3 + 0) / (2 + 1 + 1)
        tensor(0.4167, dtype=torch.float64)
    """

    def __init__(
        self, *, weight: Literal["relevant", "candidates"] | None = None, **options: Unpack[MetricOptions]
    ) -> None:
        check_choice("weight", weight, (None, *_WEIGHTS))
        self._weight = weight
        if weight is not None:
            self.weights = _WEIGHTS[weight]  # before the base sorts metrics by their row weights
        super().__init__(**options)

    def _full_name(self) -> str:
        """Return `AUROC`, `AUROC-relevant` or `AUROC-candidates`."""
        return self._name if self._weight is None else f"{self._name}-{self._weight}"

    @property
    def needs(self) -> Needs:
        """The whole ranking, and the number of candidates."""
        return super().needs._replace(num_ranked=True)
