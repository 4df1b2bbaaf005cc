"""Metrics of the rank itself, for one relevant item per row: MeanRank, MedianRank, AMR, AMRI, AdjustedMRR, AdjustedHR.

Adjusted metrics compare with a ranking in random order, in which all ranks 1 .. N of a row's N candidates are equally
likely; so they can be compared between data sets. Each is a mean of row values with row weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from torchrecmetrics.base.metric import RankingMetric
from torchrecmetrics.base.options import Formula, MetricOptions
from torchrecmetrics.base.row_values import ListBatch
from torchrecmetrics.base.state import SparseUpdate, Summary, SumState
from torchrecmetrics.checks import VIOLATIONS, check_k
from torchrecmetrics.data.catalogue import Catalogue
from torchrecmetrics.ranking import Ranking
from torchrecmetrics.ranking.rules import Needs

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = ["AMR", "AMRI", "AdjustedHitRate", "AdjustedMRR", "MeanRank", "MedianRank"]

EULER_GAMMA = 0.57721566490153286


def mean_rank(ranking: Ranking) -> Tensor:
    """Return the rank of the row's relevant item, float [B]: 1 to N, `inf` for one that is no candidate."""
    _check_single(ranking)
    ranking.hits(None)  # raises where ranks are known to a depth only
    return torch.where(ranking.num_relevant > 0, ranking.ranks[:, 0], torch.nan)


def median_rank(ranking: Ranking, *, max_rank: int = 2**16) -> Tensor:
    """Return the same ranks, of which `MedianRank` takes the middle one."""
    return mean_rank(ranking)


def expected_rank(ranking: Ranking) -> Tensor:
    """Return (N + 1) / 2, the mean rank of a row in random order, float [B]."""
    return (_candidates(ranking) + 1) / 2


def above_first(ranking: Ranking) -> Tensor:
    """Return the expected rank less 1, float [B]."""
    return expected_rank(ranking) - 1


def expected_reciprocal_rank(ranking: Ranking) -> Tensor:
    """Return (1 + 1/2 + ... + 1/N) / N, the mean of 1 / rank in random order, float [B]."""
    candidates = _candidates(ranking)
    return (torch.digamma(candidates + 1) + EULER_GAMMA) / candidates


def below_best_reciprocal_rank(ranking: Ranking) -> Tensor:
    """Return 1 less the expected 1 / rank, float [B]; 0 where there is one candidate."""
    return _spread(1 - expected_reciprocal_rank(ranking), ranking)


def expected_hit_rate(ranking: Ranking, k: int) -> Tensor:
    """Return min(k, N) / N, the probability of a hit in random order, float [B]."""
    candidates = _candidates(ranking)
    return candidates.clamp(max=k) / candidates


def below_best_hit_rate(ranking: Ranking, k: int) -> Tensor:
    """Return 1 less the probability of a hit, float [B]; 0 where k >= N."""
    return 1 - expected_hit_rate(ranking, k)


def adjusted_rank(ranking: Ranking) -> Tensor:
    """Return rank / expected rank, float [B]: above 0; 1 in random order."""
    return mean_rank(ranking) / expected_rank(ranking)


def adjusted_rank_index(ranking: Ranking) -> Tensor:
    """Return 1 - (rank - 1) / (expected rank - 1), float [B]: -1 to 1; NaN where there is one candidate."""
    return 1 - (mean_rank(ranking) - 1) / above_first(ranking)


def adjusted_reciprocal_rank(ranking: Ranking) -> Tensor:
    """Return (1 / rank - expected) / (1 - expected), float [B]: up to 1; NaN where there is one candidate."""
    expected = expected_reciprocal_rank(ranking)
    return (1 / mean_rank(ranking) - expected) / below_best_reciprocal_rank(ranking)


def adjusted_hit(ranking: Ranking, k: int) -> Tensor:
    """Return (hit - probability) / (1 - probability), float [B]: up to 1; NaN where k >= N."""
    _check_single(ranking)
    hit = ranking.any_hit(k).to(ranking.ranks.dtype)
    found = (hit - expected_hit_rate(ranking, k)) / below_best_hit_rate(ranking, k)
    return torch.where(ranking.num_relevant > 0, found, torch.nan)


def _check_single(ranking: Ranking) -> None:
    """Refuse rows with several relevant items."""
    if ranking.ranks.shape[1] != 1:
        raise ValueError(
            f"metrics of the rank read one relevant item per row, got up to {ranking.ranks.shape[1]}: make a row of "
            "each (Ranking.from_negatives, pyg.evaluate_triples, or one target per row)"
        )


def _candidates(ranking: Ranking) -> Tensor:
    """N, float [B]."""
    if ranking.num_ranked is None:
        raise ValueError(
            "adjusted metrics need to know how many items were ranked: pass scores, Ranking.from_negatives, or "
            "Ranking.from_ranks(..., num_ranked=...)"
        )
    return ranking.num_ranked.to(ranking.ranks.dtype)


def _spread(weights: Tensor, ranking: Ranking) -> Tensor:
    """Return weights that are exactly 0 where there is one candidate."""
    return weights.masked_fill(_candidates(ranking) <= 1, 0)


class _OfRank(RankingMetric):
    """A metric of the whole ranking in which rows without a relevant item have no value."""

    def __init__(self, k: int | None = None, **options: Any) -> None:
        super().__init__(k, **options)
        if self.empty_target_action not in ("skip", "error"):
            raise ValueError(
                f"{self.label}: rows without a relevant item have no rank: empty_target_action must be 'skip' or "
                f"'error', got {self.empty_target_action!r}"
            )


class MeanRank(_OfRank):
    """Mean rank: mean of the rank of the row's one relevant item, from 1 (best) to the number of candidates.

    Less is better. A relevant item that is no candidate has rank `inf`, and so has the mean; `num_unreachable` counts
    them. Ranks start at 1 here; PyG's `KGEModel.test` counts from 0.

    Also called MR. Source: Bordes et al., Translating embeddings for modeling multi-relational data, 2013.

    Args:
        options: keywords of every metric (`ties`, ...), see `RankingMetric`, as for methods and counts;
            `empty_target_action` is "skip" or "error".

    Raises:
        ValueError: in `update`, for rows with several relevant items, and ranks that are known to a depth only.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> metric = trm.MeanRank()
        >>> metric.update(torch.tensor([[0.1, 0.9, 0.5], [0.3, 0.2, 0.1]]), torch.tensor([2, 2]))
        >>> metric.compute()  # ranks 2 and 3
        tensor(2.5000, dtype=torch.float64)
    """

    formula: ClassVar[Formula] = staticmethod(mean_rank)
    bounds: ClassVar[tuple[float, float]] = (1.0, float("inf"))
    higher_is_better: bool | None = False

    def __init__(self, **options: Unpack[MetricOptions]) -> None:
        super().__init__(**options)


class MedianRank(_OfRank):
    """Median rank: the middle one of the ranks of the rows' one relevant item; of an even number, the mean of two.

    Less is better. It is no mean over rows: the state counts ranks in steps of 1/2 up to `max_rank`, 16 bytes x
    `max_rank`, and all ranks beyond together. So it is exact, and there is no standard error, nor values of groups.
    Rows of weight 0 are left out, other weights count as 1.

    Source: as `MeanRank`; less sensitive to a few bad ranks.

    Args:
        max_rank: the highest median that can be told, >= 1.
        options: as in `MeanRank`.

    Raises:
        ValueError: in `update` as in `MeanRank`; in `compute`, if the median is beyond `max_rank`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> metric = trm.MedianRank()
        >>> metric.update(trm.Ranking.from_ranks(torch.tensor([1, 7, 3, 4])))
        >>> metric.compute()
        tensor(3.5000, dtype=torch.float64)
    """

    formula: ClassVar[Formula] = staticmethod(median_rank)
    bounds: ClassVar[tuple[float, float]] = (1.0, float("inf"))
    higher_is_better: bool | None = False
    of_items: ClassVar[bool] = True

    def __init__(self, *, max_rank: int = 2**16, **options: Unpack[MetricOptions]) -> None:
        super().__init__(max_rank=check_k(max_rank, "max_rank"), **options)

    def _check_catalogue(self, catalogue: Any) -> Catalogue | None:
        return None if catalogue is None else super()._check_catalogue(catalogue)  # it counts ranks, not items

    def _begin(self, name: str) -> None:
        self._add_sum_states(name, 0, len(VIOLATIONS) + 2 * self.options["max_rank"] + 2)

    def sparse_update(self, lists: ListBatch, violations: Tensor | None) -> SparseUpdate:
        """Return how many rows have each rank."""
        assert lists.ranking is not None
        ranking, beyond, kinds = lists.ranking, 2 * self.options["max_rank"] + 1, len(VIOLATIONS)
        rank = mean_rank(ranking)
        rows = ranking.num_relevant > 0
        if lists.counted is not None:
            rows = rows & lists.counted
        indices, values = [(2 * rank).nan_to_num(0).clamp(max=beyond).long() + kinds], [rows.long()]
        if violations is not None:
            indices.append(torch.arange(kinds, device=rank.device))
            values.append(violations)
        return SparseUpdate(None, (torch.cat(indices), torch.cat(values)))

    @classmethod
    def summaries(cls, metrics: Sequence[Self], states: Sequence[SumState]) -> list[Summary]:
        """Find the middle of the counts."""
        found: list[Summary] = []
        for metric, state in zip(metrics, states, strict=True):
            invalid, counts = torch.split(state.counts, [len(VIOLATIONS), len(state.counts) - len(VIOLATIONS)])
            metric._check_input(invalid.tolist())
            reached = counts.cumsum(0)
            rows = int(reached[-1])
            middle = torch.tensor([(rows - 1) // 2, rows // 2], device=counts.device)
            ranks = torch.searchsorted(reached, middle, right=True) / 2
            if rows and bool(ranks[1] > metric.options["max_rank"]):
                raise ValueError(
                    f"{metric.label}: the median is beyond max_rank={metric.options['max_rank']}: give the number of "
                    "candidates, MedianRank(max_rank=...)"
                )
            value = ranks.mean() if rows else torch.full_like(ranks[0], torch.nan)
            found.append(Summary.without_error(value.to(state.sums.dtype), rows))
        return found


class _Adjusted(_OfRank):
    """A metric that compares with a ranking in random order."""

    @property
    def needs(self) -> Needs:
        """The whole ranking, or its first `k` ranks, and how many items were ranked."""
        return super().needs._replace(num_ranked=True)


class AMR(_Adjusted):
    """Adjusted mean rank: mean rank / its expectation in random order, the sum of (N + 1) / 2 over rows.

    Range 0 to 2; 1 in random order, less is better. N is the number of the row's candidates, the relevant item
    included. The mean of rank / expected rank, each row weighing its expected rank.

    Source: Berrendorf et al., On the ambiguity of rank-based evaluation of entity alignment or link prediction methods,
    2020; PyKEEN's adjusted_arithmetic_mean_rank.

    Args:
        options: as in `MeanRank`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> metric = trm.AMR()
        >>> metric.update(torch.tensor([[0.1, 0.9, 0.5], [0.3, 0.2, 0.1]]), torch.tensor([2, 2]))
        >>> metric.compute()  # (2 + 3) / (2 + 2)
        tensor(1.2500, dtype=torch.float64)
    """

    formula: ClassVar[Formula] = staticmethod(adjusted_rank)
    weights: Callable[..., Tensor] | None = staticmethod(expected_rank)
    bounds: ClassVar[tuple[float, float]] = (0.0, 2.0)
    higher_is_better: bool | None = False

    def __init__(self, **options: Unpack[MetricOptions]) -> None:
        super().__init__(**options)


class AMRI(_Adjusted):
    """Adjusted mean rank index: 1 - (mean rank - 1) / (its expectation in random order - 1).

    Range -1 (all are last) to 1 (all are first); 0 in random order. Rows with one candidate are left out. The mean of
    1 - (rank - 1) / (E - 1), each row weighing E - 1, with E = (N + 1) / 2.

    Source: Berrendorf et al., 2020, as `AMR`; PyKEEN's adjusted_arithmetic_mean_rank_index.

    Args:
        options: as in `MeanRank`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> metric = trm.AMRI()
        >>> metric.update(torch.tensor([[0.1, 0.9, 0.5], [0.3, 0.2, 0.1]]), torch.tensor([2, 2]))
        >>> metric.compute()  # 1 - 1.5 / 1
        tensor(-0.5000, dtype=torch.float64)
    """

    formula: ClassVar[Formula] = staticmethod(adjusted_rank_index)
    weights: Callable[..., Tensor] | None = staticmethod(above_first)
    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __init__(self, **options: Unpack[MetricOptions]) -> None:
        super().__init__(**options)


class AdjustedMRR(_Adjusted):
    """Adjusted mean reciprocal rank: (MRR - E) / (1 - E), E the expected MRR in random order.

    Range up to 1; 0 in random order, below 0 for worse ones. A row of N candidates has the expectation (1 + 1/2 + ... +
    1/N) / N. Rows with one candidate are left out. A mean of rows, each weighing 1 less its expectation.

    Source: Hoyt et al., A unified framework for rank-based evaluation metrics for link prediction, 2022; PyKEEN's
    adjusted_inverse_harmonic_mean_rank.

    Args:
        options: as in `MeanRank`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> metric = trm.AdjustedMRR()
        >>> metric.update(torch.tensor([[0.1, 0.9], [0.2, 0.3]]), torch.tensor([1, 0]))
        >>> metric.compute()  # MRR and its expectation are 3/4
        tensor(0., dtype=torch.float64)
    """

    formula: ClassVar[Formula] = staticmethod(adjusted_reciprocal_rank)
    weights: Callable[..., Tensor] | None = staticmethod(below_best_reciprocal_rank)
    bounds: ClassVar[tuple[float, float]] = (-float("inf"), 1.0)

    def __init__(self, **options: Unpack[MetricOptions]) -> None:
        super().__init__(**options)


class AdjustedHitRate(_Adjusted):
    """Adjusted hit rate at k: (HR@k - E) / (1 - E), E the expected hit rate in random order.

    Range up to 1; 0 in random order, below 0 for worse ones. A row of N candidates has the expectation min(k, N) / N.
    Rows with at most k candidates are left out. A mean of rows, each weighing 1 less its expectation.

    Source: as `AdjustedMRR`; PyKEEN's adjusted_hits_at_k.

    Args:
        k: cut-off, >= 1.
        options: as in `MeanRank`.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> metric = trm.AdjustedHitRate(1)
        >>> metric.update(torch.tensor([[0.1, 0.9, 0.5, 0.3]]), torch.tensor([1]))
        >>> metric.compute()
        tensor(1., dtype=torch.float64)
    """

    formula: ClassVar[Formula] = staticmethod(adjusted_hit)
    weights: Callable[..., Tensor] | None = staticmethod(below_best_hit_rate)
    bounds: ClassVar[tuple[float, float]] = (-float("inf"), 1.0)
    _name = "AdjustedHR"

    def __init__(self, k: int, **options: Unpack[MetricOptions]) -> None:
        super().__init__(k, **options)
