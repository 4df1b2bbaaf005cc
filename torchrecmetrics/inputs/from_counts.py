"""Ranks, and tie groups, from counts."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import can_sync, float_dtype, search
from torchrecmetrics.core.checks import Checks, any_of_row
from torchrecmetrics.core.options import Needs, Options, Ties
from torchrecmetrics.core.ranked_items import RankedItems, positions
from torchrecmetrics.core.ranking import ListedItems, Ranking
from torchrecmetrics.core.tied_items import TiedItems, TieGroups

# a rule that favours relevant items puts items with a negative gain last
MIRRORED: dict[Ties, Ties] = {
    "expected": "expected",
    "optimistic": "pessimistic",
    "realistic": "realistic",
    "pessimistic": "optimistic",
}


LAST_RANK = 2**52
"""Larger than any rank; missing items have rank `inf`."""


class TargetCounts(NamedTuple):
    """The counts for the targets of a batch; tensors [B, T] are in the order of the targets' ids."""

    relevant: Tensor  # bool
    penalised: Tensor | None  # bool, with a negative gain; None where every relevant item gains 1
    gains: Tensor | None  # float
    missing: Tensor  # bool, takes no part in the ranking: no candidate, or padding
    better: Tensor  # candidates with a higher score, integers or floats
    group_size: Tensor  # candidates with the same score, itself included
    num_ranks: int  # that a row can have: at least its number of candidates
    num_ranked: Tensor | None = None  # [B]
    num_recommended: Tensor | None = None  # [B]
    lists: ListedItems | None = None
    kernels: str | None = None  # that counted


class SortedRanks(NamedTuple):
    """The relevant (or the penalised) items of each row, best first."""

    order: Tensor | None  # int64 [B, T], the slot that each item came from; None = the given order
    ranks: Tensor  # float [B, T], ascending; inf for other items and beyond the depth
    tie_group: Tensor | None  # int64 [B, T], the sorted slot at which the tie group begins; None = one item a row
    tie_groups: TieGroups
    first_rank: Tensor  # float [B, T], the first place that the item may have by the tie rule; inf for other items
    tied: Tensor  # bool [B, T]: the item shares its score with another candidate


def sort_ranks(
    counts: TargetCounts, left_out: Tensor, ties: Ties, secondary: Tensor | None, depth: int | None
) -> SortedRanks:
    """Sort the items that are not `left_out` by score, best first, and give each a rank; beyond `depth` it is `inf`.

    `secondary` orders the items of a tie group, ascending. Counts of groups that begin beyond `depth` may be inexact.
    Of a tie group of n items, m of them ours, the i-th of ours has the rank better + i (n + 1) / (m + 1), its expected
    rank ("expected", "realistic"), better + i ("optimistic") or better + n - m + i ("pessimistic").
    """
    dtype = float_dtype(left_out.device)
    better, size = counts.better.to(dtype).masked_fill(left_out, torch.inf), counts.group_size.to(dtype)
    order = tie_group = None
    number: Tensor | float = 1.0  # 1, 2, 3, ... within the tie group
    num_members: Tensor | float = 1.0  # number of our items in the tie group
    if better.shape[1] > 1:
        by_gain = None if secondary is None else secondary.argsort(dim=1, stable=True)
        better, order = (better if by_gain is None else better.gather(1, by_gain)).sort(dim=1, stable=True)
        order = order if by_gain is None else by_gain.gather(1, order)
        size = size.gather(1, order)
        tie_group = search(better, better)
        num_members = search(better, better, right=True) - tie_group
        number = positions(better.shape[1], dtype, better.device) - tie_group
    size = size.clamp(min=num_members)  # beyond the depth kernels may count fewer equal scores
    if ties == "optimistic":
        ranks = better + number
    elif ties == "pessimistic":
        ranks = better + (size + (number - num_members))
    else:
        ranks = better + (size + 1) * (number / (num_members + 1))
    last_rank = LAST_RANK if depth is None else depth
    first_rank = better + 1 if ties == "expected" else ranks
    tied = (size > 1) & (first_rank <= last_rank)
    return SortedRanks(
        order=order,
        ranks=ranks.masked_fill(ranks > last_rank, torch.inf),
        tie_group=tie_group,
        tie_groups=TieGroups(
            better=better.clamp(max=LAST_RANK),
            size=size,
            num_members=num_members,
            number=number,
            num_ranks=counts.num_ranks,
        ),
        first_rank=first_rank,
        tied=tied,
    )


def rank_counts(
    counts: TargetCounts,
    needs: Needs,
    options: Options,
    checks: Checks,
    depth: int | None = None,
    made_with: tuple[str, ...] = (),
    **fields: Any,
) -> Ranking:
    """Settle the checks and return the ranking down to `depth`.

    Args:
        counts: counts for the targets.
        needs: which ranks metrics read; ties are noted for these ranks.
        options: the tie rule.
        checks: checks of the batch.
        depth: number of ranks to know; None = all.
        made_with: names of the options that decided on these ranks; none = all.
        fields: other fields of the ranking.
    """
    valid, violations = checks.finish()
    gains, ties = counts.gains, options.tie_rule
    secondary = None
    if gains is not None and ties != "expected":
        secondary = gains if ties == "pessimistic" else -gains

    # without gains, items that are not relevant are missing
    left_out = counts.missing if gains is None else counts.missing | ~counts.relevant
    ranked = sort_ranks(counts, left_out, ties, secondary, depth)
    penalties = None
    relevant = _ranked(ranked, None if gains is None else gains.where(counts.relevant, 0), ties)
    if gains is not None and counts.penalised is not None:
        ranked_penalties = sort_ranks(counts, counts.missing | ~counts.penalised, MIRRORED[ties], secondary, depth)
        penalties = _ranked(ranked_penalties, gains.where(counts.penalised, 0), ties)
    num_relevant = counts.relevant.sum(1, dtype=ranked.ranks.dtype)
    tied = ranked.tied
    if needs.depth is not None and (needs.whole_targets or depth is None or depth > needs.depth):  # more than is read
        tied = tied & (
            ranked.first_rank <= (num_relevant[:, None].clamp(min=needs.depth) if needs.whole_targets else needs.depth)
        )
    return Ranking(
        relevant=relevant,
        num_relevant=num_relevant,
        tied=any_of_row(tied),
        unreachable=any_of_row(counts.relevant & counts.missing),
        penalties=penalties,
        num_ranked=None if counts.num_ranked is None else counts.num_ranked.to(ranked.ranks.dtype),
        num_recommended=None if counts.num_recommended is None else counts.num_recommended.to(ranked.ranks.dtype),
        score_threshold=needs.score_threshold,
        depth=depth,
        valid=valid,
        violations=violations,
        options={name: options.of_ranks[name] for name in made_with} if made_with else options.of_ranks,
        lists=counts.lists,
        kernels=counts.kernels,
        **fields,
    )


def _ranked(sorted_ranks: SortedRanks, gains: Tensor | None, ties: Ties) -> RankedItems:
    """Return ranked items; `TiedItems` for "expected", unless the values can be read and show no tie."""
    if gains is not None and sorted_ranks.order is not None:
        gains = gains.gather(1, sorted_ranks.order)
    if ties == "expected" and (not can_sync(sorted_ranks.tied) or sorted_ranks.tied.any()):
        return TiedItems(sorted_ranks.ranks, gains, tie_groups=sorted_ranks.tie_groups)
    averages_gains = ties == "realistic" and gains is not None
    return RankedItems(sorted_ranks.ranks, gains, sorted_ranks.tie_group if averages_gains else None)
