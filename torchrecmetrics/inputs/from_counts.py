"""Ranks, and tie groups, from counts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import can_sync, float_dtype
from torchrecmetrics.core.checks import Checks, any_of_row
from torchrecmetrics.core.options import Needs, Options, Ties
from torchrecmetrics.core.ranked_items import LAST_RANK, RankedItems, TiedItems, expected_ranks, numbers_in_groups
from torchrecmetrics.core.ranking import ListedItems, RankedRows, Ranking

# a rule that favours relevant items puts items with a negative gain last
MIRRORED: dict[Ties, Ties] = {
    "expected": "expected",
    "optimistic": "pessimistic",
    "realistic": "realistic",
    "pessimistic": "optimistic",
}


class TargetCounts(NamedTuple):
    """The counts for the targets of a batch; tensors [B, T] are in the order of the targets' ids."""

    relevant: Tensor  # bool
    penalised: Tensor | None  # bool, with a negative gain; None where every relevant item gains 1
    gains: Tensor | None  # float
    missing: Tensor  # bool, not in the ranking: not a candidate, or padding
    better: Tensor  # candidates with a higher score, integers or floats
    group_size: Tensor  # candidates with the same score, itself included
    num_ranks: int  # that a row can have: at least its number of candidates
    num_ranked: Tensor | None = None  # [B]
    num_recommended: Tensor | None = None  # [B]
    lists: ListedItems | None = None
    kernels: str | None = None  # that counted


class SortedRanks(NamedTuple):
    """The relevant (or the penalised) items of each row, best first."""

    order: Tensor | None  # int64 [B, T], the column that each item came from; None = the given order
    items: RankedItems  # ranks are inf for other items and beyond the depth
    num_before: Tensor  # float [B, T], number of ranks before the first that the item may have by the tie rule
    tied: Tensor  # bool [B, T]: the item shares its score with another candidate


def sort_ranks(
    counts: TargetCounts,
    left_out: Tensor,
    ties: Ties,
    secondary: Tensor | None,
    depth: int | None,
    gains: Tensor | None = None,
) -> SortedRanks:
    """Sort the items that are not `left_out` by score, best first, and rank them; ranks beyond `depth` are `inf`.

    `secondary` orders the items of a tie group, ascending. Counts of groups that begin beyond `depth` may be inexact.
    If m of the n candidates of a tie group are ranked, the i-th of them has the rank better + i (n + 1) / (m + 1), its
    expected rank ("expected", "realistic"), better + i ("optimistic") or better + n - m + i ("pessimistic"). "expected"
    returns `TiedItems`, unless the values can be read and have no ties.
    """
    dtype = float_dtype(left_out.device)
    better, size = counts.better.to(dtype).masked_fill(left_out, torch.inf), counts.group_size.to(dtype)
    order = None
    if better.shape[1] > 1:
        by_gain = None if secondary is None else secondary.argsort(dim=1, stable=True)
        better, order = (better if by_gain is None else better.gather(1, by_gain)).sort(dim=1, stable=True)
        order = order if by_gain is None else by_gain.gather(1, order)
        size, gains = size.gather(1, order), None if gains is None else gains.gather(1, order)
    last_rank = LAST_RANK if depth is None else depth
    if ties == "expected":
        tied = (size > 1) & (better < last_rank)
        if not can_sync(tied) or tied.any():
            num_places = counts.num_ranks if depth is None else min(depth, counts.num_ranks)
            return SortedRanks(order, TiedItems(better, size, num_places, gains), better, tied)
        ranks = (better + 1).masked_fill(better >= last_rank, torch.inf)
        return SortedRanks(order, RankedItems(ranks, gains), better, tied)
    tie_group, num_members, number = numbers_in_groups(better)
    size = size.clamp(min=num_members)  # beyond the depth kernels may count fewer equal scores
    if ties == "optimistic":
        ranks = better + number
    elif ties == "pessimistic":
        ranks = better + (size + (number - num_members))
    else:
        ranks = expected_ranks(better, size, num_members, number)
    averaged_over = tie_group if ties == "realistic" and gains is not None else None
    items = RankedItems(ranks.masked_fill(ranks > last_rank, torch.inf), gains, averaged_over)
    return SortedRanks(order, items, ranks.ceil() - 1, (size > 1) & (ranks <= last_rank))


def rank_counts(
    counts: TargetCounts,
    needs: Needs,
    options: Options,
    checks: Checks,
    depth: int | None = None,
    made_with: tuple[str, ...] = (),
    rows: RankedRows = RankedRows(),  # noqa: B008  # immutable
    history: Tensor | None = None,
) -> Ranking:
    """Finish the checks and return the ranking down to `depth`.

    Args:
        counts: counts for the targets.
        needs: ranks that metrics read, for which `tied` is set.
        options: the tie rule.
        checks: checks of the batch.
        depth: number of ranks to know; None = all.
        made_with: names of the options that affected these ranks; empty = all.
        rows: ids of the rows, and which of them this process counts.
        history: earlier items of each row's user, int64 [B, H], for the lists.
    """
    valid, violations = checks.finish()
    gains, ties = counts.gains, options.tie_rule
    secondary = None
    if gains is not None and ties != "expected":
        secondary = gains if ties == "pessimistic" else -gains

    # without gains, items that are not relevant are missing
    left_out = counts.missing if gains is None else counts.missing | ~counts.relevant
    relevant_gains = None if gains is None else gains.where(counts.relevant, 0)
    in_order = sort_ranks(counts, left_out, ties, secondary, depth, relevant_gains)
    penalties = None
    if gains is not None and counts.penalised is not None:
        left_out, lost = counts.missing | ~counts.penalised, gains.where(counts.penalised, 0)
        penalties = sort_ranks(counts, left_out, MIRRORED[ties], secondary, depth, lost).items
    dtype, tied = in_order.num_before.dtype, in_order.tied
    num_relevant = counts.relevant.sum(1, dtype=dtype)
    if needs.depth is not None and (needs.whole_targets or depth is None or depth > needs.depth):  # deeper than read
        last_read = num_relevant[:, None].clamp(min=needs.depth) if needs.whole_targets else needs.depth
        tied = tied & (in_order.num_before < last_read)
    return Ranking(
        relevant=in_order.items,
        num_relevant=num_relevant,
        tied=any_of_row(tied),
        unreachable=any_of_row(counts.relevant & counts.missing),
        penalties=penalties,
        num_ranked=None if counts.num_ranked is None else counts.num_ranked.to(dtype),
        num_recommended=None if counts.num_recommended is None else counts.num_recommended.to(dtype),
        score_threshold=needs.score_threshold,
        depth=depth,
        rows=rows._replace(valid=valid, violations=violations),
        options={name: options.of_ranks[name] for name in made_with} if made_with else options.of_ranks,
        lists=counts.lists if counts.lists is None or history is None else counts.lists._replace(history=history),
        kernels=counts.kernels,
    )
