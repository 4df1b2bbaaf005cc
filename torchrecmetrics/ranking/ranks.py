"""From ranks made elsewhere to places."""

from __future__ import annotations

from operator import eq, gt, lt
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchrecmetrics.arrays import (
    ascending,
    ascends,
    compare,
    float_dtype,
    keep,
    may_look,
    running_sums,
    scalar,
    zero_last_,
)
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
from torchrecmetrics.ranking.places import Graded, Places, Reach, as_ranks, cut
from torchrecmetrics.ranking.rules import Rules
from torchrecmetrics.ranking.scores import INVALID_RANK

if TYPE_CHECKING:
    from typing_extensions import Self


class FromRanks(Places):
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
            depth: places that were looked at; None = what the tensor says (`get_topk_ranks`), or the whole list.
            num_ranked: candidates a row, a number or integer [B]; AUROC needs it.
            depth_known: False if the ranks may have been cut at a depth nobody told: metrics without a cut-off refuse.
            padding: 0 says that a 0 in [B] or [B, 1] is a row without a relevant item. None (default) refuses it, since
                it may be the best of ranks that start at 0; the tensor that `get_topk_ranks` returned may hold it.
            validate_args: as in `from_scores`.
        """
        check_choice("padding", padding, (None, 0))
        reach = Reach(depth, depth_known)
        return cls._from_ranks(ranks, reach, num_ranked, Rules(validate_args=validate_args), padding=padding)

    @classmethod
    @torch.no_grad()
    def _from_ranks(
        cls,
        ranks: Tensor,
        reach: Reach,
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
        dtype = float_dtype(ranks.device)
        whole = not ranks.is_floating_point()
        if whole:
            ranks = ranks.long()  # what they are compared with may not fit a smaller type
        several = whole and ranks.shape[1] > 1
        last: float = torch.inf  # this rank and all behind it are nowhere
        if several:  # integers sort faster
            kind, last = _kind(columns, ranks)
            places = ranks.contiguous().clamp(0, last).to(kind)
            relevant = compare(gt, places, 0)
        else:
            places, relevant = ranks.to(dtype), ranks > 0
        known = last if reach.depth is None else min(last, reach.depth + 1)
        placed = zero_last_(places, int(last)) if several else keep(places, relevant, last)
        in_order = several and ascends(placed, known)
        if not in_order:
            placed = ascending(placed.to(torch.int32) if placed.itemsize == 1 else placed)
        if several and columns is not None and columns + 1 < placed.shape[1]:
            placed = placed[:, : columns + 1].contiguous()  # of so many in the first places, two share one
        quick = whole and num_ranked is None
        if checks.enabled and not (
            quick and checks.clear(lambda: _different(ranks, placed, known, in_order, zero_is_rank))
        ):
            wrong, again = _no_places(ranks, placed, known, reach)
            if zero_is_rank:
                wrong = wrong | (ranks == 0)
            if again is not None and (ranks.device.type != "cpu" or again.any()):
                # a place taken twice is the k + 1 of somebody's "not in the top k"
                repeated = placed[:, 1:].where(again, last).amin(1)
                reach = reach._replace(rows=repeated.long() - 1)
            if num_ranked is not None:
                beyond = placed > (num_ranked[:, None] if isinstance(num_ranked, Tensor) else num_ranked)
                wrong[:, : placed.shape[1]] |= beyond & (placed < known)
            checks.reject("ranks", wrong, lambda row: _detail(row, ranks))
        if columns is not None and columns < placed.shape[1]:
            placed = placed[:, :columns]
        if not placed.is_floating_point():
            placed = as_ranks(placed, int(last), dtype)
        relevant = checks.without_rejected(relevant)
        if (rejected := checks.rejected) is not None:
            placed = placed.masked_fill(rejected[:, None], torch.inf)
        if columns is None or reach.depth is None or columns > reach.depth:
            placed = cut(placed, reach.depth)
        if num_ranked is not None and not isinstance(num_ranked, Tensor):
            num_ranked = torch.full((len(ranks),), num_ranked, dtype=torch.int64, device=ranks.device)
        none = scalar(False, torch.bool, ranks.device).expand(len(ranks))
        return cls(
            found=Graded(placed),
            num_relevant=relevant.sum(1),
            tied=none,
            unreachable=none,
            num_ranked=num_ranked,
            reach=reach,
            faults=checks.faults,
            in_halves=whole,
        )


def _reach(ranks: Tensor, reach: Reach) -> Reach:
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
    return Reach(depth, reach.known or depth is not None)


def _kind(columns: int | None, ranks: Tensor) -> tuple[torch.dtype, int]:
    """Return what holds whole ranks, of which so many places are looked at, and the rank that is behind all of them."""
    if columns is None or columns >= 2**30:
        return torch.int64, 2**62
    return torch.int8 if columns < 100 and may_look(ranks) else torch.int32, columns + 1


def _num_ranked(num_ranked: int | Tensor | None, rows: int, device: torch.device) -> int | Tensor | None:
    """Return how many candidates there were, checked."""
    if isinstance(num_ranked, Tensor):
        check_ids("num_ranked", num_ranked)
        if num_ranked.shape != (rows,) or num_ranked.device != device:
            raise ValueError(f"num_ranked must be a number or [{rows}] on {device}, got {describe(num_ranked)}")
    elif num_ranked is not None and num_ranked != 0:
        num_ranked = check_k(num_ranked, "num_ranked")
    return num_ranked


def _detail(row: int, ranks: Tensor) -> str:
    """Describe the ranks of a row for a message, with the cure for a single 0."""
    cure = ""
    if ranks[row].tolist() == [0]:
        cure = (
            ": if ranks start at 0, pass ranks + 1; if 0 is a row without a relevant item, write -1 or say "
            "Ranking.from_ranks(ranks, padding=0)"
        )
    return f"row {row} is {shown(ranks[row])}{cure}"


def _different(ranks: Tensor, placed: Tensor, known: float, in_order: bool, zero_is_rank: bool) -> bool:
    """Whether a quick look shows that whole ranks are places, each another one; `placed` and `known` as below.

    `in_order`: it has shown the latter. `zero_is_rank`: a 0 is no padding.
    """
    if not in_order and ranks.shape[1] > 1:
        in_line = placed.view(-1)  # the last of a row and the first of the next may be the same, too: then look again
        again = compare(eq, in_line[1:], in_line[:-1]) & compare(lt, in_line[1:], known)
        if again.count_nonzero():
            return False
    if not len(ranks):
        return True
    lowest = int(ranks.aminmax().min)
    return lowest > 0 if zero_is_rank else lowest != INVALID_RANK


def _no_places(ranks: Tensor, placed: Tensor, known: float, reach: Reach) -> tuple[Tensor, Tensor | None]:
    """Return which entries show that a row holds no places; and, at an unknown depth, which stand where another does.

    `placed` are the ranks in order, as far as they are looked at; from `known` on they say nothing.
    """
    if ranks.is_floating_point():  # places among equal scores may be averages; i of them add up to 1 + ... + i
        wrong = ranks.isnan() | ((ranks > 0) & (ranks < 1))
        number = torch.arange(1, placed.shape[1] + 1, dtype=placed.dtype, device=ranks.device)
        return wrong | (running_sums(placed) < number * (number + 1) / 2 * (1 - 1e-9)), None
    wrong = ranks == INVALID_RANK
    if ranks.shape[1] == 1:
        return wrong, None
    again = (placed[:, 1:] == placed[:, :-1]) & (placed[:, 1:] < known)
    if reach.known:
        wrong[:, 1 : placed.shape[1]] |= again
        return wrong, None
    return wrong, again
