"""Ranks from counts, with the three tie policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.arrays import float_dtype, search
from torchrecmetrics.checks import Violations, any_of_row
from torchrecmetrics.kernels import Kernels
from torchrecmetrics.ranking.data import Depth, Lists, RankedItems, RankingData
from torchrecmetrics.ranking.rules import Needs, Ties

if TYPE_CHECKING:
    from typing_extensions import Self

# a policy that favours relevant items puts unwanted items last
_MIRRORED: dict[Ties, Ties] = {
    "optimistic": "pessimistic",
    "realistic": "realistic",
    "pessimistic": "optimistic",
}

_UNRANKED = 2**40
"""Number of better items that is written for items that take no part in the ranking."""


class TargetCounts(NamedTuple):
    """The counts for the targets of a batch; tensors [B, T] are in the order of the targets' ids."""

    relevant: Tensor  # bool
    unwanted: Tensor | None  # bool, with a negative gain; None where every relevant item gains 1
    gains: Tensor | None  # float
    candidate: Tensor  # bool, takes part in the ranking
    better: Tensor  # int64, candidates with a higher score
    group_size: Tensor  # int64, candidates with the same score, itself included
    num_ranked: Tensor | None = None  # int64 [B]
    num_recommended: Tensor | None = None  # int64 [B]
    kernels: Kernels | None = None
    lists: Lists | None = None


class SortedRanks(NamedTuple):
    """The relevant (or the unwanted) items of each row, best first."""

    order: Tensor  # int64 [B, T], the slot that each item came from
    ranks: Tensor  # float [B, T], ascending; inf for other items and beyond the depth
    group: Tensor  # int64 [B, T], the sorted slot at which the tie group begins
    tied: Tensor  # bool [B, T]: the item shares its score with another candidate


def sort_ranks(
    counts: TargetCounts, member: Tensor, ties: Ties, secondary: Tensor | None, depth: int | None
) -> SortedRanks:
    """Sort the items of `member` by score, best first, and give each a rank; ranks beyond `depth` become `inf`.

    `secondary` orders the items of a tie group, ascending. Counts beyond `depth` may be inexact.
    """
    member, dtype = member & counts.candidate, float_dtype(member.device)
    better, size = torch.where(member, counts.better, _UNRANKED), counts.group_size
    order = group = torch.zeros_like(better)
    number: Tensor | int = 1  # 1, 2, 3, ... within the tie group
    members: Tensor | int = 1  # number of members of the tie group
    if better.shape[1] > 1:
        first = None if secondary is None else secondary.argsort(dim=1, stable=True)
        better, order = (better if first is None else better.gather(1, first)).sort(dim=1, stable=True)
        order = order if first is None else first.gather(1, order)
        size = size.gather(1, order)
        group = search(better, better)
        members = search(better, better, right=True) - group
        number = torch.arange(1, better.shape[1] + 1, device=better.device) - group
    if ties == "optimistic":
        ranks = (better + number).to(dtype)
    elif ties == "pessimistic":
        ranks = (better + size.clamp(min=members) + (number - members)).to(dtype)
    else:
        ranks = better + ((size.clamp(min=1) + 1) * number).to(dtype) / (members + 1)
    near = ranks <= (_UNRANKED // 2 if depth is None else depth)
    return SortedRanks(order, torch.where(near, ranks, torch.inf), group, (size > 1) & near)


class FromCounts(RankingData):
    """Base of `Ranking` with its constructor from counts."""

    @classmethod
    def from_counts(
        cls,
        counts: TargetCounts,
        ties: Ties,
        made_with: Mapping[str, object],
        needs: Needs = Needs(),  # noqa: B008  # immutable
        depth: int | None = None,
        violations: Violations = Violations(),  # noqa: B008  # immutable
    ) -> Self:
        """Return the ranking down to `depth`; `needs` says which ranks are read, and for which ranks ties are noted."""
        gains = counts.gains
        secondary = gains if gains is None or ties == "pessimistic" else -gains

        def ranked(member: Tensor, found: SortedRanks) -> RankedItems:
            if gains is None:
                return RankedItems(found.ranks)
            own = torch.where(member, gains, 0).gather(1, found.order)
            return RankedItems(found.ranks, own, found.group if ties == "realistic" else None)

        found = sort_ranks(counts, counts.relevant, ties, secondary, depth)
        penalties = None
        if counts.unwanted is not None:
            behind = sort_ranks(counts, counts.unwanted, _MIRRORED[ties], secondary, depth)
            penalties = ranked(counts.unwanted, behind)
        num_relevant = counts.relevant.sum(1)
        last = needs.last_rank(num_relevant)
        tied = found.tied if last is None or last is depth else found.tied & (found.ranks <= last)
        return cls(
            found=ranked(counts.relevant, found),
            num_relevant=num_relevant,
            tied=any_of_row(tied),
            unreachable=any_of_row(counts.relevant > counts.candidate),
            penalties=penalties,
            num_ranked=counts.num_ranked,
            num_recommended=counts.num_recommended,
            score_threshold=needs.score_threshold,
            reach=Depth(depth),
            violations=violations,
            made_with=made_with,
            kernels=counts.kernels,
            lists=counts.lists,
        )
