"""`Ranking.from_ranks` and `from_hits`: rankings from ranks, or flags of hits, that were computed elsewhere."""

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
    check_tensor,
    describe,
    shown,
)
from torchrecmetrics.ranking.data import Depth, RankedItems, RankingData
from torchrecmetrics.ranking.rules import Rules
from torchrecmetrics.ranking.scores import INVALID_RANK

if TYPE_CHECKING:
    from typing_extensions import Self


LONGEST_LIST = 2**61
"""Highest rank that counts; higher ranks, such as int64's largest number, are misses."""
_MOST_RANKS = 2**30
"""Most ranks, 8 GiB, that `from_hits` makes of fewer flags."""


class FromRanks(RankingData):
    """Base of `Ranking` with its constructors from ranks and from flags of hits."""

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
        zero_based: bool = False,
        miss: int | None = None,
        validate_args: Validation = True,
    ) -> Self:
        """Return the ranking of ranks made elsewhere, taken as ranks of the whole list unless a depth is known.

        Args:
            ranks: integers or floats [B], [B, 1] or [B, T], 1 = best; `<= 0` is padding, but see `padding`; `inf`, or a
                rank beyond `depth`, is a relevant item that was missed.
            depth: number of known ranks; None = the tensor's own (`get_topk_ranks`), or the whole list.
            num_ranked: number of candidates per row, a number or integer [B]; AUROC needs it.
            depth_known: False if the ranks may have been cut at an unknown depth: metrics without a cut-off refuse
                them.
            padding: 0 says that a 0 in [B] or [B, 1] is a row without a relevant item. None (default) refuses it, since
                it may be the best of ranks that start at 0; the tensor that `get_topk_ranks` returned may hold it.
            zero_based: True: ranks start at 0; a negative one is padding.
            miss: this whole number means "not found", such as -1 or 999, and is then no padding.
            validate_args: as in `from_scores`.

        Examples:
            >>> import torch
            >>> import torchrecmetrics as trm
            >>> trm.Ranking.from_ranks(torch.tensor([0, 4, -1]), zero_based=True, miss=-1, depth=10).ranks
            tensor([[1.],
                    [5.],
                    [inf]], dtype=torch.float64)
        """
        check_choice("padding", padding, (None, 0))
        check_choice("zero_based", zero_based, (True, False))
        if miss is not None and (isinstance(miss, bool) or not hasattr(miss, "__index__")):
            raise TypeError(f"miss must be a whole number, such as -1 or 999, got {miss!r}; inf is a miss anyway")
        if zero_based and padding is not None:
            raise ValueError("padding=0 and zero_based=True contradict each other: 0 is the best rank then")
        whole = isinstance(ranks, Tensor) and ranks.dtype in ID_DTYPES
        if isinstance(ranks, Tensor) and (whole or ranks.is_floating_point()) and (zero_based or miss is not None):
            if hasattr(ranks, "depth"):
                raise ValueError("ranks of get_topk_ranks start at 1, and say themselves what was missed")
            ranks = ranks.long() if whole else ranks.to(float_dtype(ranks.device))
            missed = torch.zeros_like(ranks, dtype=torch.bool) if miss is None else ranks == miss
            if zero_based:
                ranks = ranks + (ranks >= 0)
            ranks = ranks.masked_fill(missed, 2**62 if whole else torch.inf)  # above any length of a list
        reach = Depth(depth, depth_known)
        return cls._from_ranks(ranks, reach, num_ranked, Rules(validate_args=validate_args), padding=padding)

    @classmethod
    @torch.no_grad()
    def from_hits(
        cls,
        hits: Tensor,
        *,
        num_relevant: int | Tensor,
        complete: bool = False,
        validate_args: Validation = True,
    ) -> Self:
        """Return the ranking of flags of hits in lists; a row without a hit is a miss, and still has relevant items.

        Args:
            hits: bool or integer [B, K], best first: True where the list holds a relevant item.
            num_relevant: number of relevant items of each row, found or not: one number for all, or integer [B] (waits
                for the device); 0 = a row without a relevant item. With `complete=True` memory grows with the largest.
            complete: the list is all that is recommended: an item that is not in it is a miss at every k.
            validate_args: as in `from_scores`; more hits than relevant items are an error.

        Examples:
            >>> import torch
            >>> import torchrecmetrics as trm
            >>> metrics = trm.RecMetricCollection(["Recall", "NDCG"], k=3)
            >>> metrics.update(trm.Ranking.from_hits(torch.tensor([[0, 1, 0], [0, 0, 0]]), num_relevant=1))
            >>> metrics.compute()["Recall@3"]
            tensor(0.5000, dtype=torch.float64)
        """
        check_tensor("hits", hits)
        check_strided("hits", hits)
        if hits.dtype not in (torch.bool, torch.int8, torch.uint8, *ID_DTYPES):
            raise TypeError(f"hits must be bool, or integers 0 and 1, got {describe(hits)}")
        if hits.dim() != 2 or hits.shape[1] == 0:
            raise ValueError(f"hits must be [rows, places], got {list(hits.shape)}")
        rows, depth = hits.shape
        given = _num_ranked(num_relevant, rows, hits.device, "num_relevant")
        number = given if isinstance(given, Tensor) else hits.new_full((rows,), given or 0, dtype=torch.int64)
        number = number.long().clamp(min=0)
        width = max(1, given or 0 if not isinstance(given, Tensor) else int(number.max()) if rows else 1)
        if not complete:
            width = min(width, depth + 1)  # a metric that reads more is refused
        elif width > depth and rows * width > _MOST_RANKS:
            raise ValueError(
                f"complete=True keeps {rows} x {width} ranks, rows x num_relevant, at most {_MOST_RANKS}: pass fewer "
                "rows at once or, for cut-offs up to the length of the lists, complete=False"
            )
        checks = Checks(validate_args, hits.device, rows)
        flags = hits.bool()
        if checks.enabled:
            if hits.dtype != torch.bool:
                wrong = (hits != 0) & (hits != 1)
                checks.reject("ranks", wrong, lambda row: f"row {row} is {shown(hits[row])}, hits are 0 or 1")
            more = flags.sum(1) > number
            checks.reject(
                "ranks", more, lambda row: f"row {row} has more hits than its {int(number[row])} relevant items"
            )
        places = torch.arange(1, depth + 1, dtype=float_dtype(hits.device), device=hits.device)
        ranks = sort_rows(torch.where(flags, places, torch.inf))[:, :width]
        ranks = torch.nn.functional.pad(ranks, (0, width - ranks.shape[1]), value=torch.inf)
        if checks.rejected is not None:
            number = number.masked_fill(checks.rejected, 0)
            ranks = ranks.masked_fill(checks.rejected[:, None], torch.inf)
        none = torch.zeros(rows, dtype=torch.bool, device=hits.device)
        return cls(
            found=RankedItems(ranks),
            num_relevant=number,
            tied=none,
            unreachable=none,
            num_recommended=torch.full_like(number, depth),
            reach=Depth(None if complete else depth),
            violations=checks.violations,
        )

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
        """Check ranks and return their ranking; `columns`: keep so many columns, and take higher ranks as misses."""
        reach = _reach(ranks, reach)
        one_each = ranks.shape[1:] in ((), (1,))  # one entry per row, with no other entry that it could pad
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
            ranks = ranks.long()  # a smaller type may not hold the limits
        relevant = ranks > 0
        in_order = sort_rows(torch.where(relevant, ranks.to(float_dtype(ranks.device)), torch.inf))
        last = min(LONGEST_LIST if limit is None else limit for limit in (columns, reach.depth))  # higher: misses
        if checks.enabled:
            reach = _check_values(ranks, in_order, last, num_ranked, reach, checks, zero_is_rank)
        if columns is not None:
            in_order = in_order[:, :columns]  # at most `columns` items are in the top `columns`
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
    """Return the depth to which ranks are known, as given or as the tensor's own `.depth`."""
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


def _num_ranked(
    num_ranked: int | Tensor | None, rows: int, device: torch.device, name: str = "num_ranked"
) -> int | Tensor | None:
    """Return the number of candidates, or of relevant items, checked: a number, or integer [B]."""
    if isinstance(num_ranked, Tensor):
        check_ids(name, num_ranked)
        if num_ranked.shape != (rows,) or num_ranked.device != device:
            raise ValueError(f"{name} must be a number or [{rows}] on {device}, got {describe(num_ranked)}")
    elif num_ranked is not None and num_ranked != 0:
        num_ranked = check_k(num_ranked, name)
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
    """Reject rows whose entries, ascending in `in_order`, cannot be ranks; return the depth known of other rows."""
    if ranks.is_floating_point():  # tied ranks may be averages; the first i add up to at least 1 + ... + i
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
            # a repeated rank is taken for the k + 1 that other libraries write for "not in the top k"
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
    """Return a description of a row's ranks for a message, with the cure for a single 0."""
    cure = ""
    if ranks[row].tolist() == [0]:
        cure = (
            ": if ranks start at 0, say Ranking.from_ranks(ranks, zero_based=True); if 0 is a row without a relevant "
            "item, write -1 or say Ranking.from_ranks(ranks, padding=0); flags of hits are Ranking.from_hits"
        )
    return f"row {row} is {shown(ranks[row])}{cure}"
