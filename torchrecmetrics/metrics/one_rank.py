"""Metrics of the rank of one relevant item per row: MeanRank, MedianRank, AMR, AMRI, AdjustedMRR, AdjustedHR.

Adjusted metrics compare with a ranking in random order, in which all ranks 1 .. N of a row's N candidates are equally
likely, so that values of different data sets can be compared. Each adjusted metric is a weighted mean over rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from torchrecmetrics.core.checks import check_counted, check_k
from torchrecmetrics.core.options import Needs
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.core.result import RowValues
from torchrecmetrics.metrics.accumulator import State, Summed
from torchrecmetrics.metrics.description import Description, MetricOptions
from torchrecmetrics.metrics.ranking_metric import CountedMetric, RankingMetric

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["AMR", "AMRI", "AdjustedHitRate", "AdjustedMRR", "MeanRank", "MedianRank"]

EULER_GAMMA = 0.57721566490153286


def mean_rank(ranking: Ranking) -> Tensor:
    """Return the (mean) rank of each row's relevant item, float [B]: 1 to N, or `inf` if it is not a candidate."""
    _check_single(ranking)
    ranking.hits(None)  # raises if only the first ranks are known
    return torch.where(ranking.num_relevant > 0, ranking.ranks[:, 0], torch.nan)


def median_rank(counts: Tensor, *, max_rank: int = 2**16) -> Tensor:
    """Return the median of ranks from the counts of `RankCounts`, int64 [2 max_rank + 3], scalar; NaN without rows.

    It is `inf` if half of the relevant items are not candidates.
    """
    reached = counts.cumsum(0)
    rows = int(reached[-1])
    middle = torch.tensor([(rows - 1) // 2, rows // 2], device=reached.device)
    ranks = torch.searchsorted(reached, middle, right=True) / 2
    ranks = ranks.masked_fill(ranks > max_rank + 0.5, torch.inf)  # the last entry: no candidates
    if rows and bool((ranks == max_rank + 0.5).any()):
        raise ValueError(
            f"MedianRank: the median is beyond max_rank={max_rank}: give the number of candidates, "
            "MedianRank(max_rank=...)"
        )
    return ranks.mean() if rows else torch.full_like(ranks[0], torch.nan)


def expected_rank(ranking: Ranking) -> Tensor:
    """Return (N + 1) / 2, the expected rank of an item in random order, float [B]; 0 for rows without candidates."""
    candidates = _num_candidates(ranking)
    return torch.where(candidates > 0, (candidates + 1) / 2, 0)


def above_first(ranking: Ranking) -> Tensor:
    """Return the expected rank minus 1, the row weight of `AMRI`, float [B]."""
    return expected_rank(ranking) - 1


def expected_reciprocal_rank(ranking: Ranking) -> Tensor:
    """Return (1 + 1/2 + ... + 1/N) / N, the mean of 1 / rank in random order, float [B]."""
    candidates = _num_candidates(ranking)
    return (torch.digamma(candidates + 1) + EULER_GAMMA) / candidates


def below_best_reciprocal_rank(ranking: Ranking) -> Tensor:
    """Return 1 - expected 1 / rank, the row weight of `AdjustedMRR`, float [B]; 0 for rows with one candidate."""
    return _spread(1 - expected_reciprocal_rank(ranking), ranking)


def expected_hit_rate(ranking: Ranking, k: int) -> Tensor:
    """Return min(k, N) / N, the probability of a hit in random order, float [B]."""
    candidates = _num_candidates(ranking)
    return candidates.clamp(max=k) / candidates


def below_best_hit_rate(ranking: Ranking, k: int) -> Tensor:
    """Return 1 - probability of a random hit, the row weight of `AdjustedHitRate`, float [B]; 0 where k >= N."""
    return 1 - expected_hit_rate(ranking, k)


def adjusted_rank(ranking: Ranking) -> Tensor:
    """Return rank / expected rank, float [B]: above 0; 1 is the mean in random order; no value without candidates."""
    return mean_rank(ranking) / expected_rank(ranking)


def adjusted_rank_index(ranking: Ranking) -> Tensor:
    """Return 1 - (rank - 1) / (expected rank - 1), float [B]: up to 1; NaN for rows with one candidate."""
    return 1 - (mean_rank(ranking) - 1) / above_first(ranking)


def adjusted_reciprocal_rank(ranking: Ranking) -> Tensor:
    """Return (1 / rank - expected) / (1 - expected), float [B]: up to 1; NaN for rows with one candidate."""
    _check_single(ranking)
    reciprocal, expected = ranking.reciprocal_first(None), expected_reciprocal_rank(ranking)
    adjusted = (reciprocal - expected) / below_best_reciprocal_rank(ranking)
    return torch.where(ranking.num_relevant > 0, adjusted, torch.nan)


def adjusted_hit(ranking: Ranking, k: int) -> Tensor:
    """Return (hit - probability) / (1 - probability), float [B]: up to 1; NaN for rows with k >= N."""
    _check_single(ranking)
    adjusted = (ranking.any_hit(k) - expected_hit_rate(ranking, k)) / below_best_hit_rate(ranking, k)
    return torch.where(ranking.num_relevant > 0, adjusted, torch.nan)


def _check_single(ranking: Ranking) -> None:
    """Refuse rows with several relevant items."""
    if ranking.ranks.shape[1] != 1:
        raise ValueError(
            f"metrics of the rank need one relevant item per row, got up to {ranking.ranks.shape[1]}: make one "
            "row per relevant item (Negatives, pyg.evaluate_triples, or one target per row)"
        )


def _num_candidates(ranking: Ranking) -> Tensor:
    """Return N, the number of candidates of each row, float [B]."""
    if ranking.num_ranked is None:
        raise ValueError(
            "adjusted metrics need to know how many items were ranked: pass scores, Negatives, or "
            "Ranks(..., num_ranked=...)"
        )
    return ranking.num_ranked


def _spread(weights: Tensor, ranking: Ranking) -> Tensor:
    """Return `weights` with exact zeros in rows with one candidate, where rounding could leave a remainder."""
    return weights.masked_fill(_num_candidates(ranking) <= 1, 0)


class _OfRank(RankingMetric):
    """Base of the metrics of the rank, which have no value for rows without a relevant item."""

    _empty_target_actions: ClassVar[tuple[str, ...]] = ("skip", "error")


class MeanRank(_OfRank, formula=mean_rank, bounds=(1.0, float("inf")), higher_is_better=False):
    """Mean rank: mean of the rank of the row's one relevant item, from 1 (best) to the number of candidates.

    Range: from 1; lower is better. No relevant item: the row is left out, or an error (`empty_target_action`). A
    relevant item that is not a candidate has rank `inf`, which makes the mean `inf`; `num_unreachable` counts such
    rows. Ties: the mean rank, unless `ties` says otherwise.

    Also called MR. Ranks start at 1 here; PyG's `KGEModel.test` counts from 0. Source: Bordes et al., Translating
    embeddings for modeling multi-relational data, 2013.

    Args:
        options: keywords of every metric (`ties`, ...), see `RankingMetric`, also for methods and counts;
            `empty_target_action` is "skip" or "error".

    Raises:
        ValueError: in `update`, for rows with several relevant items, and for ranks with a depth.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> target = torch.tensor([0, 2, 2])  # at ranks 1, 2 and 4 of 4
        >>> metric = trm.MeanRank()
        >>> metric.update(scores, target)
        >>> metric.compute()  # (1 + 2 + 4) / 3
        tensor(2.3333, dtype=torch.float64)
    """

    def __init__(self, **options: Unpack[MetricOptions]) -> None:
        super().__init__(**options)


class MedianRank(_OfRank, CountedMetric, formula=median_rank, bounds=(1.0, float("inf")), higher_is_better=False):
    """Median rank: half of the rows have their one relevant item at this rank or a better one.

    For an even number of rows it is the mean of the two middle ranks.

    Range: from 1; lower is better. It is exact: the state counts ranks in steps of 1/2 up to `max_rank` (16 bytes x
    `max_rank`), and all higher ranks together. It is not a mean over rows, so it has no standard error and no values of
    groups. Rows of weight 0 are left out, other weights count as 1. No relevant item: the row is left out, or an error
    (`empty_target_action`). A relevant item that is not a candidate has rank `inf`. Ties: the mean rank, unless `ties`
    says otherwise.

    Source: as `MeanRank`; less sensitive to a few bad ranks.

    Args:
        max_rank: the highest median that can be computed, 1 to 2^28.
        options: as in `MeanRank`.

    Raises:
        ValueError: in `update` as in `MeanRank`; in `compute`, if the median is beyond `max_rank`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> target = torch.tensor([0, 2, 2])  # at ranks 1, 2 and 4 of 4
        >>> metric = trm.MedianRank()
        >>> metric.update(scores, target)
        >>> metric.compute()
        tensor(2., dtype=torch.float64)
        >>> metric.update(trm.Ranks(torch.tensor([7]), complete=True))  # a fourth user
        >>> metric.compute()  # (2 + 4) / 2
        tensor(3., dtype=torch.float64)
    """

    def __init__(self, *, max_rank: int = 2**16, **options: Unpack[MetricOptions]) -> None:
        super().__init__(max_rank=check_counted(check_k(max_rank, "max_rank"), "max_rank"), **options)

    @classmethod
    def make_counts(cls, metric: Description) -> RankCounts:
        """Return the accumulator of ranks."""
        return RankCounts(metric.options["max_rank"])

    @classmethod
    def _try_formula(cls, metric: Description) -> None:
        """Do nothing: the option is checked already."""

    @classmethod
    def counted_value(cls, metric: Description, totals: State) -> tuple[Tensor, int]:
        """Return the median from the counts of ranks, and the number of rows."""
        counts = totals["rank_counts"]
        return cls.formula(counts, **metric.options), int(counts.sum())


class RankCounts(Summed):
    """Number of rows with each rank of the relevant item in steps of 1/2, beyond `max_rank`, and without a rank."""

    def __init__(self, max_rank: int) -> None:
        super().__init__()
        self.max_rank: int = max_rank

    @property
    def option(self) -> str:
        """The class with its options."""
        return f"RankCounts({self.max_rank})"

    def empty(self) -> State:
        """Return the counts of no rows."""
        return {"rank_counts": torch.zeros(2 * self.max_rank + 3, dtype=torch.int64, device=self._device)}

    def added_to(self, state: State, rows: RowValues) -> State:
        """Return counts with the ranks of a batch added."""
        rank, beyond = mean_rank(rows.ranking), 2 * self.max_rank + 1
        number = rows.ranking.num_relevant > 0
        if rows.counted is not None:
            number = number & rows.counted
        place = torch.where(rank == torch.inf, beyond + 1, (2 * rank).nan_to_num(0, posinf=0).clamp(max=beyond)).long()
        return {"rank_counts": state["rank_counts"].index_add(0, place, number.long())}


class _Adjusted(_OfRank):
    """Base of the metrics that compare the rank with a ranking in random order."""

    @property
    def needs(self) -> Needs:
        """The whole ranking, or its first `k` ranks, and the number of candidates."""
        return super().needs._replace(num_ranked=True)


class AMR(_Adjusted, formula=adjusted_rank, weights=expected_rank, bounds=(0.0, float("inf")), higher_is_better=False):
    """Adjusted mean rank: mean rank / its expectation in random order, the mean of (N + 1) / 2 over rows.

    Range: from 0, below 2 where all relevant items are candidates; 1 in random order, lower is better. N is the number
    of the row's candidates, the relevant item included. Equals the mean of rank / expected rank with the expected rank
    as row weight. No relevant item: the row is left out, or an error (`empty_target_action`). Rows without candidates
    are left out. A relevant item that is not a candidate among others makes the value `inf`. Ties: the mean rank,
    unless `ties` says otherwise.

    Source: Berrendorf et al., On the ambiguity of rank-based evaluation of entity alignment or link prediction methods,
    2020; PyKEEN's adjusted_arithmetic_mean_rank.

    Args:
        options: as in `MeanRank`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> target = torch.tensor([0, 2, 2])  # at ranks 1, 2 and 4 of 4
        >>> metric = trm.AMR()
        >>> metric.update(scores, target)
        >>> metric.compute()  # (1 + 2 + 4) / (2.5 + 2.5 + 2.5)
        tensor(0.9333, dtype=torch.float64)
    """

    def __init__(self, **options: Unpack[MetricOptions]) -> None:
        super().__init__(**options)


class AMRI(_Adjusted, formula=adjusted_rank_index, weights=above_first, bounds=(-float("inf"), 1.0)):
    """Adjusted mean rank index: 1 - (mean rank - 1) / (its expectation in random order - 1).

    Range: up to 1 (all relevant items first); 0 in random order, -1 if all are last. Equals the mean of 1 - (rank - 1)
    / (E - 1) with row weights E - 1, where E = (N + 1) / 2. No relevant item: the row is left out, or an error
    (`empty_target_action`). Rows with one candidate or none are left out. A relevant item that is not a candidate among
    others makes the value `-inf`. Ties: the mean rank, unless `ties` says otherwise.

    Source: Berrendorf et al., 2020, as `AMR`; PyKEEN's adjusted_arithmetic_mean_rank_index.

    Args:
        options: as in `MeanRank`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> target = torch.tensor([0, 2, 2])  # at ranks 1, 2 and 4 of 4
        >>> metric = trm.AMRI()
        >>> metric.update(scores, target)
        >>> metric.compute()  # 1 - (0 + 1 + 3) / (1.5 + 1.5 + 1.5)
        tensor(0.1111, dtype=torch.float64)
    """

    def __init__(self, **options: Unpack[MetricOptions]) -> None:
        super().__init__(**options)


class AdjustedMRR(
    _Adjusted, formula=adjusted_reciprocal_rank, weights=below_best_reciprocal_rank, bounds=(-float("inf"), 1.0)
):
    """Adjusted mean reciprocal rank: (MRR - E) / (1 - E), where E is the expected MRR in random order.

    Range: up to 1; 0 in random order, below 0 if worse. A row of N candidates has the expectation (1 + 1/2 + ... + 1/N)
    / N. It is the mean over rows with weights 1 - expectation. No relevant item: the row is left out, or an error
    (`empty_target_action`). Rows with one candidate are left out. A relevant item that is not a candidate counts as 1 /
    rank = 0. Ties: the mean over all orders of equal scores, unless `ties` says otherwise.

    Source: Hoyt et al., A unified framework for rank-based evaluation metrics for link prediction, 2022; PyKEEN's
    adjusted_inverse_harmonic_mean_rank.

    Args:
        options: as in `MeanRank`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> target = torch.tensor([0, 2, 2])  # at ranks 1, 2 and 4 of 4
        >>> metric = trm.AdjustedMRR()
        >>> metric.update(scores, target)
        >>> metric.compute()  # (0.5833 - E) / (1 - E): E = (1 + 1/2 + 1/3 + 1/4) / 4
        tensor(0.1304, dtype=torch.float64)
    """

    def __init__(self, **options: Unpack[MetricOptions]) -> None:
        super().__init__(**options)


class AdjustedHitRate(
    _Adjusted, formula=adjusted_hit, weights=below_best_hit_rate, bounds=(-float("inf"), 1.0), _name="AdjustedHR"
):
    """Adjusted hit rate at k: (HR@k - E) / (1 - E), where E is the expected hit rate in random order.

    Range: up to 1; 0 in random order, below 0 if worse. A row of N candidates has the expectation min(k, N) / N. It is
    the mean over rows with weights 1 - expectation. No relevant item: the row is left out, or an error
    (`empty_target_action`). Rows with at most `k` candidates are left out. A relevant item that is not a candidate is
    no hit. Ties: the mean over all orders of equal scores, unless `ties` says otherwise.

    Source: as `AdjustedMRR`; PyKEEN's adjusted_hits_at_k.

    Args:
        k: cut-off, >= 1.
        options: as in `MeanRank`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[4.0, 3, 2, 1], [1, 4, 3, 2], [3, 4, 1, 2]])
        >>> target = torch.tensor([0, 2, 2])  # at ranks 1, 2 and 4 of 4
        >>> metric = trm.AdjustedHitRate(2)
        >>> metric.update(scores, target)
        >>> metric.compute()  # (2/3 - 2/4) / (1 - 2/4)
        tensor(0.3333, dtype=torch.float64)
    """

    def __init__(self, k: int, **options: Unpack[MetricOptions]) -> None:
        super().__init__(k, **options)
