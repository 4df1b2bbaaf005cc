"""`Ranks` and `Hits`: rankings from ranks, or flags of hits, that were computed elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import float_dtype, running_sums, sort_rows
from torchrecmetrics.core.checks import (
    ID_DTYPES,
    SCORE_DTYPES,
    Checks,
    check_choice,
    check_ids,
    check_k,
    check_strided,
    check_tensor,
    describe,
    shown,
)
from torchrecmetrics.core.options import Needs, Options
from torchrecmetrics.core.ranked_items import RankedItems
from torchrecmetrics.core.ranking import RankedRows, Ranking
from torchrecmetrics.inputs.batch_input import BatchInput
from torchrecmetrics.inputs.scores import INVALID_RANK

DEPTH_UNKNOWN = (
    "the depth of these ranks is unknown (torch.cat, masks and copies lose it): pass depth=10, the k of "
    "get_topk_ranks, or Ranks(ranks, complete=True) if they were never cut, since the k + 1 of a miss would be read as "
    "a rank. Pass item ids as Lists(item_ids, target), flags of hits as Hits(flags, num_relevant=)"
)
LONGEST_LIST = 2**61
"""Highest rank that counts; higher ranks, such as int64's largest number, are misses."""


@dataclass(frozen=True, eq=False, repr=False)
class Ranks(BatchInput):
    """Ranks computed elsewhere, of the first `depth` places or of the whole list.

    Args:
        ranks: integers or floats [B], [B, 1] or [B, T], 1 = best; `<= 0` is padding, but see `padding`; `inf`, or a
            rank beyond `depth`, is a relevant item that was missed.
        depth: number of known ranks; None = the tensor's own, which `get_topk_ranks` sets and copies lose.
        complete: True if all ranks are known: `inf` and `miss` are then misses at every k. Ranks without a depth of
            their own need it, or `depth`: the k + 1 of a miss would be read as a rank.
        num_ranked: number of candidates per row, a number or integer [B]; AUROC needs it.
        zero_based: True: ranks start at 0; a negative one is padding, but see `padding`.
        miss: whole number that means "not found", such as -1 or 999, and not padding.
        padding: in [B] or [B, 1], -1 = a negative entry is a row without a relevant item, 0 = so is an entry of 0. None
            (default) refuses both, since -1 may be "not found", and 0 the best rank. In [B, T] of 0 and 1 alone, it
            refuses rows such as [0, 1, 0], which are flags of hits. Ranks of `get_topk_ranks` may hold all of these.

    Raises:
        ValueError: for ranks of unknown depth, and for options that contradict each other.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> ranks = torch.tensor([0, 4, -1])
        >>> trm.Ranks(ranks, zero_based=True, miss=-1, depth=10).ranking().ranks
        tensor([[1.],
                [5.],
                [inf]], dtype=torch.float64)
    """

    ranks: Tensor
    depth: int | None = None
    complete: bool = False
    num_ranked: int | Tensor | None = None
    zero_based: bool = False
    miss: int | None = None
    padding: int | None = None

    def __post_init__(self) -> None:
        check_choice("padding", self.padding, (None, 0, -1))
        check_choice("zero_based", self.zero_based, (True, False))
        if self.miss is not None and (isinstance(self.miss, bool) or not hasattr(self.miss, "__index__")):
            raise TypeError(f"miss must be a whole number, such as -1 or 999, got {self.miss!r}; inf is a miss anyway")
        if self.zero_based and self.padding == 0:
            raise ValueError("padding=0 and zero_based=True contradict each other: 0 would be the best rank")
        cut_at = getattr(self.ranks, "depth", None) if self.depth is None else self.depth
        if cut_at is None and not self.complete:
            raise ValueError(DEPTH_UNKNOWN)
        if cut_at is not None and self.complete:
            raise ValueError(
                f"complete=True means that no rank is unknown, but only the first {cut_at} are: leave it out"
            )

    @torch.no_grad()
    def rank(self, needs: Needs, options: Options) -> Ranking:
        """Check the ranks and sort them."""
        input_ranks = self.ranks
        depth = _known_depth(input_ranks, self.depth, options)
        ranks = input_ranks if input_ranks.is_floating_point() else input_ranks.long()  # which holds the limits
        if self.zero_based or self.miss is not None:
            ranks = self._one_based(ranks)
        one_each = ranks.shape[1:] in ((), (1,))  # one entry per row, which cannot be padding between others
        ranks = ranks[:, None] if ranks.dim() == 1 else ranks
        if ranks.shape[1] == 0:
            ranks = ranks.new_zeros(len(ranks), 1)
        device, dtype = ranks.device, float_dtype(ranks.device)
        num_ranked = None
        if self.num_ranked is not None:
            num_ranked = _number_per_row("num_ranked", self.num_ranked, len(ranks), device)
        checks = Checks(options.validate_args, device, len(ranks))
        relevant = ranks > 0
        in_order = sort_rows(torch.where(relevant, ranks.to(dtype), torch.inf))
        # metrics with a cut-off read at most as many items of a row
        columns = None if needs.whole_targets or not needs.depth else needs.depth
        last_rank = min(LONGEST_LIST if limit is None else limit for limit in (columns, depth))  # higher: misses
        if checks.enabled:
            wrong = _wrong_ranks(ranks, in_order, last_rank, num_ranked)
            is_explained = self.zero_based or self.miss is not None or self.padding is not None
            if one_each:
                wrong |= self._ambiguous(ranks)
            elif not is_explained and not hasattr(self.ranks, "depth"):
                # flags of hits: 0 and 1 alone, with a 1 between zeros, while ranks are padded on one side
                wrong[:, 1:-1] |= relevant[:, 1:-1] & (ranks == relevant).all()
            known = "complete=True" if depth is None else f"depth={depth}"
            checks.reject("ranks", wrong, lambda row: _detail(row, ranks, known))
        in_order = in_order if columns is None else in_order[:, :columns]
        none = torch.zeros(len(ranks), dtype=torch.bool, device=device)
        valid, violations = checks.finish()
        return Ranking(
            relevant=RankedItems(torch.where(in_order <= last_rank, in_order, torch.inf)),
            num_relevant=relevant.sum(1, dtype=dtype),
            tied=none,
            unreachable=none,
            num_ranked=None if num_ranked is None else num_ranked.to(dtype),
            depth=depth,
            rows=RankedRows(valid, violations),
        )

    def _one_based(self, ranks: Tensor) -> Tensor:
        """Return ranks that start at 1; misses are beyond any length of a list."""
        if hasattr(self.ranks, "depth"):
            raise ValueError(
                "ranks of get_topk_ranks start at 1 and mark misses themselves: leave out zero_based= and miss="
            )
        shifted = ranks + (ranks >= 0) if self.zero_based else ranks
        if self.miss is None:
            return shifted
        return shifted.masked_fill(ranks == self.miss, torch.inf if ranks.is_floating_point() else 2**62)

    def _ambiguous(self, ranks: Tensor) -> Tensor:
        """Return which `ranks` [B, 1] could be padding, "not found" or the best rank, bool [B, 1]."""
        if hasattr(self.ranks, "depth") or self.padding == 0:
            return torch.zeros_like(ranks, dtype=torch.bool)
        return ranks <= 0 if self.padding is None and self.miss is None else ranks == 0


@dataclass(frozen=True, eq=False, repr=False)
class Hits(BatchInput):
    """Flags of hits in lists, best first; a row without a hit has relevant items that were missed.

    Args:
        flags: bool or integer [B, K], best first: True where the list holds a relevant item.
        num_relevant: number of relevant items of each row, found or not: one number for all, or integer [B] (waits for
            the device); 0 = a row without a relevant item. With `complete=True` memory grows with the largest.
        complete: True if nothing else was recommended; an item that is not listed is then a miss at every k.

    More hits than relevant items are an error.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> metrics = trm.RecMetricCollection(["Recall", "NDCG"], k=3)
        >>> metrics.update(trm.Hits(torch.tensor([[0, 1, 0], [0, 0, 0]]), num_relevant=1))
        >>> metrics.compute()["Recall@3"]
        tensor(0.5000, dtype=torch.float64)
    """

    flags: Tensor
    num_relevant: int | Tensor
    complete: bool = False

    @torch.no_grad()
    def rank(self, needs: Needs, options: Options) -> Ranking:
        """Return the ranking whose hits are at the ranks of the flags."""
        hits = self.flags
        check_tensor("flags", hits)
        check_strided("flags", hits)
        if hits.dtype not in (torch.bool, torch.int8, torch.uint8, *ID_DTYPES):
            raise TypeError(f"flags must be bool, or integers 0 and 1, got {describe(hits)}")
        if hits.dim() != 2 or hits.shape[1] == 0:
            raise ValueError(f"flags must be [rows, ranks], got {list(hits.shape)}")
        (rows, depth), device = hits.shape, hits.device
        dtype = float_dtype(device)
        number = _number_per_row("num_relevant", self.num_relevant, rows, device).clamp(min=0)
        highest = self.num_relevant
        if isinstance(highest, Tensor):
            highest = int(number.max()) if rows else 1
        width = max(1, highest)
        if not self.complete:
            width = min(width, depth + 1)  # metrics that read deeper are refused
        checks = Checks(options.validate_args, device, rows)
        flags = hits.bool()
        if hits.dtype != torch.bool:
            wrong = (hits != 0) & (hits != 1)
            checks.reject("ranks", wrong, lambda row: f"row {row} is {shown(hits[row])}, hits are 0 or 1")
        num_hits = flags.sum(1)
        checks.reject(
            "hits", num_hits > number, lambda row: f"row {row} has {int(num_hits[row])} of {int(number[row])}"
        )
        places = torch.arange(1, depth + 1, dtype=dtype, device=device)
        ranks = sort_rows(torch.where(flags, places, torch.inf))[:, :width]
        ranks = torch.nn.functional.pad(ranks, (0, width - ranks.shape[1]), value=torch.inf)
        none = torch.zeros(rows, dtype=torch.bool, device=device)
        valid, violations = checks.finish()
        return Ranking(
            relevant=RankedItems(ranks),
            num_relevant=number.to(dtype),
            tied=none,
            unreachable=none,
            num_recommended=torch.full_like(number, depth, dtype=dtype),
            depth=None if self.complete else depth,
            rows=RankedRows(valid, violations),
        )


def _known_depth(ranks: Tensor, depth: int | None, options: Options) -> int | None:
    """Return the depth of ranks, as given or as the tensor's own `.depth`; check the ranks."""
    check_tensor("ranks", ranks)
    check_strided("ranks", ranks)
    if ranks.dtype not in (*ID_DTYPES, *SCORE_DTYPES):
        raise TypeError(f"ranks must be an integer or float tensor, got {describe(ranks)}")
    if ranks.dim() not in (1, 2):
        raise ValueError(f"ranks must be [B] or [B, T], got {list(ranks.shape)}")
    if options.ties == "expected" and hasattr(ranks, "ties"):
        raise ValueError(
            f"ties='expected' needs scores: these are {ranks.ties!r} ranks of get_topk_ranks, which hold no "
            "ties. Pass scores, or leave ties= out"
        )
    cut_at: int | None = getattr(ranks, "depth", None)
    if depth is None:
        depth = cut_at
    elif check_k(depth, "depth") > (cut_at or depth):
        raise ValueError(f"depth={depth} was given for ranks that were cut at {cut_at}")
    return depth


def _number_per_row(name: str, number: int | Tensor, rows: int, device: torch.device) -> Tensor:
    """Return the number of candidates, or of relevant items, of each row, checked, int64 [B]."""
    if not isinstance(number, Tensor):
        return torch.full((rows,), check_k(number, name, 0), device=device)
    check_ids(name, number)
    if number.shape != (rows,) or number.device != device:
        raise ValueError(f"{name} must be a number or [{rows}] on {device}, got {describe(number)}")
    return number.long()


def _wrong_ranks(ranks: Tensor, in_order: Tensor, last_rank: float, num_ranked: Tensor | None) -> Tensor:
    """Return which entries, ascending in `in_order`, cannot be ranks, bool [B, T]."""
    if ranks.is_floating_point():  # tied ranks may be averages; the first i add up to at least 1 + ... + i
        number = torch.arange(1, ranks.shape[1] + 1, dtype=in_order.dtype, device=ranks.device)
        wrong = ranks.isnan() | ((ranks > 0) & (ranks < 1))
        wrong = wrong | (running_sums(in_order) < number * (number + 1) / 2 * (1 - 1e-9))
    else:
        wrong = ranks == INVALID_RANK
        wrong[:, 1:] |= (in_order[:, 1:] == in_order[:, :-1]) & (in_order[:, 1:] <= last_rank)
    if num_ranked is not None:
        wrong = wrong | ((in_order > num_ranked[:, None]) & (in_order <= last_rank))
    return wrong


def _detail(row: int, ranks: Tensor, known: str) -> str:
    """Return a description of a row's ranks for a message, with the cure for a single 0 or -1, and for flags.

    `known` is the argument that says which ranks are known.
    """
    cure = ""
    if len(ranks[row]) > 1 and set(ranks.flatten().tolist()) == {0, 1}:
        cure = (
            ": pass flags of hits as Hits(flags, num_relevant=), or the lists as Lists(item_ids, target); if 0 is "
            f"padding, pass Ranks(ranks, {known}, padding=0)"
        )
    if len(ranks[row]) == 1 and ranks[row] == 0:
        cure = (
            f": if ranks start at 0, pass Ranks(ranks, {known}, zero_based=True); if 0 is a row without a "
            f"relevant item, Ranks(ranks, {known}, padding=0); if these are flags of hits, Hits"
        )
    elif len(ranks[row]) == 1 and ranks[row] < 0:
        cure = (
            f": if {int(ranks[row])} is a relevant item that was not found, pass Ranks(ranks, {known}, "
            f"miss={int(ranks[row])}); if it is a row without a relevant item, Ranks(ranks, {known}, padding=-1)"
        )
    return f"row {row} is {shown(ranks[row])}{cure}"
