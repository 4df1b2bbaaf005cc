"""`Ranking.from_ranks`: from integer or float ranks that were computed elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchrecmetrics.arrays import float_dtype, running_sums, sort_rows
from torchrecmetrics.checks import (
    ID_DTYPES,
    SCORE_DTYPES,
    Checks,
    Validation,
    check_choice,
    check_ids,
    check_k,
    check_strided,
    describe,
    shown,
)
from torchrecmetrics.ranking.data import Depth, RankedItems, RankingData
from torchrecmetrics.ranking.rules import Rules
from torchrecmetrics.ranking.scores import INVALID_RANK

if TYPE_CHECKING:
    from typing_extensions import Self


LONGEST_LIST = 2**61
"""Ranks beyond are misses: int64's largest number, say."""


class FromRanks(RankingData):
    """The way from ranks to a ranking."""

    @classmethod
    @torch.no_grad()
    def from_ranks(
        cls,
        ranks: Tensor,
        *,
        depth: int | None = None,
        num_ranked: int | Tensor | None = None,
        depth_known: bool = True,
        padding: int | None = None,
        validate_args: Validation = True,
    ) -> Self:
        """Take ranks made elsewhere, of the whole list unless a depth is known.

        Args:
            ranks: integers or floats [B], [B, 1] or [B, T], 1 = best; `<= 0` is padding, but see `padding`; `inf`, or a
                rank beyond `depth`, is a relevant item that was missed.
            depth: number of known ranks; None = that of the tensor (`get_topk_ranks`), or the whole list.
            num_ranked: candidates a row, a number or integer [B]; AUROC needs it.
            depth_known: False if the ranks may have been cut at an unknown depth: metrics without a cut-off refuse
                them.
            padding: 0 says that a 0 in [B] or [B, 1] is a row without a relevant item. None (default) refuses it, since
                it may be the best of ranks that start at 0; the tensor that `get_topk_ranks` returned may hold it.
            validate_args: as in `from_scores`.
        """
        check_choice("padding", padding, (None, 0))
        reach = Depth(depth, depth_known)
        return cls._from_ranks(ranks, reach, num_ranked, Rules(validate_args=validate_args), padding=padding)

    @classmethod
    @torch.no_grad()
    def _from_ranks(
        cls,
        ranks: Tensor,
        reach: Depth,
        num_ranked: int | Tensor | None,
        rules: Rules,
        columns: int | None = None,
        padding: int | None = None,
    ) -> Self:
        """Take ranks; `columns`: look no further than so many places."""
        reach = _reach(ranks, reach)
        one_each = ranks.shape[1:] in ((), (1,))  # without an entry beside it that could be padded
        zero_is_rank = one_each and padding is None and not hasattr(ranks, "depth")
        if ranks.dim() == 1:
            ranks = ranks[:, None]
        if ranks.dim() != 2:
            raise ValueError(f"ranks must be [B] or [B, T], got {list(ranks.shape)}")
        if ranks.shape[1] == 0:
            ranks = ranks.new_zeros(len(ranks), 1)
        num_ranked = _num_ranked(num_ranked, len(ranks), ranks.device)
        checks = Checks(rules.validate_args, ranks.device, len(ranks))
        if not ranks.is_floating_point():
            ranks = ranks.long()  # thresholds may not fit a smaller type
        relevant = ranks > 0
        in_order = sort_rows(torch.where(relevant, ranks.to(float_dtype(ranks.device)), torch.inf))
        last = min(LONGEST_LIST if limit is None else limit for limit in (columns, reach.depth))  # beyond are misses
        if checks.enabled:
            reach = _check_values(ranks, in_order, last, num_ranked, reach, checks, zero_is_rank)
        if columns is not None:
            in_order = in_order[:, :columns]  # no more items stand in the first so many places
        relevant = checks.without_rejected(relevant)
        if (rejected := checks.rejected) is not None:
            in_order = in_order.masked_fill(rejected[:, None], torch.inf)
        if num_ranked is not None and not isinstance(num_ranked, Tensor):
            num_ranked = torch.full((len(ranks),), num_ranked, dtype=torch.int64, device=ranks.device)
        none = torch.zeros(len(ranks), dtype=torch.bool, device=ranks.device)
        return cls(
            found=RankedItems(torch.where(in_order <= last, in_order, torch.inf)),
            num_relevant=relevant.sum(1),
            tied=none,
            unreachable=none,
            num_ranked=num_ranked,
            reach=reach,
            violations=checks.violations,
        )


def _reach(ranks: Tensor, reach: Depth) -> Depth:
    """Return how far down ranks are known, which they may say themselves."""
    if isinstance(ranks, Tensor):
        check_strided("ranks", ranks)
    if not isinstance(ranks, Tensor) or ranks.dtype not in (*ID_DTYPES, *SCORE_DTYPES):
        raise TypeError(f"ranks must be an integer or float tensor, got {describe(ranks)}")
    cut_at: int | None = getattr(ranks, "depth", None)
    depth = reach.depth
    if depth is None:
        depth = cut_at
    elif check_k(depth, "depth") > (cut_at or depth):
        raise ValueError(f"depth={depth} was given for ranks that were cut at {cut_at}")
    return Depth(depth, reach.known or depth is not None)


def _num_ranked(num_ranked: int | Tensor | None, rows: int, device: torch.device) -> int | Tensor | None:
    """Return how many candidates there were, checked."""
    if isinstance(num_ranked, Tensor):
        check_ids("num_ranked", num_ranked)
        if num_ranked.shape != (rows,) or num_ranked.device != device:
            raise ValueError(f"num_ranked must be a number or [{rows}] on {device}, got {describe(num_ranked)}")
    elif num_ranked is not None and num_ranked != 0:
        num_ranked = check_k(num_ranked, "num_ranked")
    return num_ranked


def _check_values(
    ranks: Tensor,
    in_order: Tensor,
    last: float,
    num_ranked: int | Tensor | None,
    reach: Depth,
    checks: Checks,
    zero_is_rank: bool,
) -> Depth:
    """Reject rows whose entries, ascending in `in_order`, cannot be ranks; return how deep the others are known."""
    if ranks.is_floating_point():  # ranks among equal scores may be averages; i of them add up to at least 1 + ... + i
        number = torch.arange(1, ranks.shape[1] + 1, dtype=in_order.dtype, device=ranks.device)
        wrong = ranks.isnan() | ((ranks > 0) & (ranks < 1))
        wrong = wrong | (running_sums(in_order) < number * (number + 1) / 2 * (1 - 1e-9))
    else:
        wrong = ranks == INVALID_RANK
        later = in_order[:, 1:]
        again = (later == in_order[:, :-1]) & (later <= last)
        if reach.known:
            wrong[:, 1:] |= again
        elif checks.device.type != "cpu" or again.any():
            # a rank that occurs twice is the k + 1 of somebody's "not in the top k"
            unknown = torch.iinfo(torch.int64).max // 2
            repeated = torch.where(again, later, unknown).long()
            reach = reach._replace(rows=torch.nn.functional.pad(repeated, (0, 1), value=unknown).amin(1) - 1)
    if num_ranked is not None:
        beyond = in_order > (num_ranked[:, None] if isinstance(num_ranked, Tensor) else num_ranked)
        wrong = wrong | (beyond & (in_order <= last))
    if zero_is_rank:
        wrong = wrong | (ranks == 0)
    checks.reject("ranks", wrong, lambda row: _detail(row, ranks))
    return reach


def _detail(row: int, ranks: Tensor) -> str:
    """Describe the ranks of a row for a message, with the cure for a single 0."""
    cure = ""
    if ranks[row].tolist() == [0]:
        cure = (
            ": if ranks start at 0, pass ranks + 1; if 0 is a row without a relevant item, write -1 or say "
            "Ranking.from_ranks(ranks, padding=0)"
        )
    return f"row {row} is {shown(ranks[row])}{cure}"
