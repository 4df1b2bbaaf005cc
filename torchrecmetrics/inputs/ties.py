"""Ranks from counts, with the three tie rules."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import float_dtype, search
from torchrecmetrics.core.checks import Checks, any_of_row
from torchrecmetrics.core.options import Needs, Options, Ties
from torchrecmetrics.core.ranked_items import RankedItems, positions
from torchrecmetrics.core.ranking import ListedItems, Ranking

# a rule that favours relevant items puts items with a negative gain last
MIRRORED: dict[Ties, Ties] = {
    "optimistic": "pessimistic",
    "realistic": "realistic",
    "pessimistic": "optimistic",
}


LAST_RANK = 2**52
"""Above every rank; a relevant item that is missing is beyond."""


class TargetCounts(NamedTuple):
    """The counts for the targets of a batch; tensors [B, T] are in the order of the targets' ids."""

    relevant: Tensor  # bool
    penalised: Tensor | None  # bool, with a negative gain; None where every relevant item gains 1
    gains: Tensor | None  # float
    missing: Tensor  # bool, takes no part in the ranking: no candidate, or padding
    better: Tensor  # candidates with a higher score, integers or floats
    group_size: Tensor  # candidates with the same score, itself included
    num_ranked: Tensor | None = None  # [B]
    num_recommended: Tensor | None = None  # [B]
    lists: ListedItems | None = None
    kernels: str | None = None  # that counted


class SortedRanks(NamedTuple):
    """The relevant (or the penalised) items of each row, best first."""

    order: Tensor | None  # int64 [B, T], the slot that each item came from; None = the given order
    ranks: Tensor  # float [B, T], ascending; inf for other items and beyond the depth
    group: Tensor | None  # int64 [B, T], the sorted slot at which the tie group begins; None = one item a row
    tied: Tensor  # bool [B, T]: the item shares its score with another candidate


def sort_ranks(
    counts: TargetCounts, others: Tensor, ties: Ties, secondary: Tensor | None, depth: int | None
) -> SortedRanks:
    """Sort the items that are not `others` by score, best first, and give each a rank; beyond `depth` it is `inf`.

    `secondary` orders the items of a tie group, ascending. Counts beyond `depth` may be inexact. Of a tie group of n
    items, m of them ours, the i-th of ours has the rank better + i (n + 1) / (m + 1) ("realistic", the expected rank),
    better + i ("optimistic") or better + n - m + i ("pessimistic").
    """
    dtype = float_dtype(others.device)
    better, size = counts.better.to(dtype).masked_fill(others, torch.inf), counts.group_size.to(dtype)
    order = group = None
    number: Tensor | float = 1.0  # 1, 2, 3, ... within the tie group
    members: Tensor | float = 1.0  # number of our items in the tie group
    if better.shape[1] > 1:
        by_gain = None if secondary is None else secondary.argsort(dim=1, stable=True)
        better, order = (better if by_gain is None else better.gather(1, by_gain)).sort(dim=1, stable=True)
        order = order if by_gain is None else by_gain.gather(1, order)
        size = size.gather(1, order)
        group = search(better, better)
        members = search(better, better, right=True) - group
        number = positions(better.shape[1], dtype, better.device) - group
    if ties == "optimistic":
        ranks = better + number
    elif ties == "pessimistic":
        ranks = better + (size.clamp(min=members) + (number - members))
    else:
        # beyond the depth kernels may count fewer than 0 equal scores
        ranks = better + (size.clamp(min=0) + 1) * (number / (members + 1))
    far = ranks > (LAST_RANK if depth is None else depth)
    return SortedRanks(order, ranks.masked_fill(far, torch.inf), group, (size > 1) > far)


def rank_counts(
    counts: TargetCounts,
    needs: Needs,
    options: Options,
    checks: Checks,
    depth: int | None = None,
    made_with: tuple[str, ...] = (),
    **known: Any,
) -> Ranking:
    """Settle the checks and return the ranking down to `depth`.

    Args:
        counts: counts for the targets.
        needs: which ranks metrics read; ties are noted for these ranks.
        options: the tie rule.
        checks: checks of the batch.
        depth: number of ranks to know; None = all.
        made_with: names of the options that decided on these ranks; none = all.
        known: other fields of the ranking.
    """
    valid, violations = checks.settle()
    gains, ties = counts.gains, options.tie_rule
    secondary = gains if gains is None or ties == "pessimistic" else -gains

    # without gains, items that are not relevant are missing
    others = counts.missing if gains is None else counts.missing | ~counts.relevant
    placed = sort_ranks(counts, others, ties, secondary, depth)
    penalties = None
    if gains is None:
        relevant = RankedItems(placed.ranks)
    else:
        relevant = _with_gains(placed, gains.where(counts.relevant, 0), ties)
        if counts.penalised is not None:
            behind = sort_ranks(counts, counts.missing | ~counts.penalised, MIRRORED[ties], secondary, depth)
            penalties = _with_gains(behind, gains.where(counts.penalised, 0), ties)
    num_relevant = counts.relevant.sum(1, dtype=placed.ranks.dtype)
    tied = placed.tied
    if needs.whole_targets and needs.depth is not None:  # ranks are known further than metrics read
        tied = tied & (placed.ranks <= num_relevant[:, None].clamp(min=needs.depth))
    return Ranking(
        relevant=relevant,
        num_relevant=num_relevant,
        tied=any_of_row(tied),
        unreachable=any_of_row(counts.relevant & counts.missing),
        penalties=penalties,
        num_ranked=None if counts.num_ranked is None else counts.num_ranked.to(placed.ranks.dtype),
        num_recommended=None if counts.num_recommended is None else counts.num_recommended.to(placed.ranks.dtype),
        score_threshold=needs.score_threshold,
        depth=depth,
        valid=valid,
        violations=violations,
        options={name: options.of_ranks[name] for name in made_with} if made_with else options.of_ranks,
        lists=counts.lists,
        kernels=counts.kernels,
        **known,
    )


def _with_gains(placed: SortedRanks, gains: Tensor, ties: Ties) -> RankedItems:
    """Return ranked items with their gains, which are 0 for other items."""
    gains = gains if placed.order is None else gains.gather(1, placed.order)
    return RankedItems(placed.ranks, gains, placed.group if ties == "realistic" else None)
