"""Where items stand among equal scores: the one place that knows the three policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.arrays import float_dtype, search
from torchrecmetrics.checks import Checks
from torchrecmetrics.kernels import Kernels
from torchrecmetrics.ranking.places import Graded, Places, Reach, cut
from torchrecmetrics.ranking.rules import Needs, Ties

if TYPE_CHECKING:
    from typing_extensions import Self

# the mirror image: a policy that is kind to relevant items puts unwanted ones at the back
_MIRRORED: dict[Ties, Ties] = {
    "optimistic": "pessimistic",
    "realistic": "realistic",
    "pessimistic": "optimistic",
}


class Located(NamedTuple):
    """What was counted for the targets; every tensor [B, T] stands beside their ids."""

    relevant: Tensor  # bool
    unwanted: Tensor | None  # bool, with a negative gain; None where every relevant item gains 1
    gains: Tensor | None  # float
    candidate: Tensor  # bool, takes part in the ranking
    scores: Tensor  # float
    better: Tensor  # int64, candidates with a higher score
    group_size: Tensor  # int64, candidates with the same score, itself included
    num_ranked: Tensor | None = None  # int64 [B]
    num_recommended: Tensor | None = None  # int64 [B]
    kernels: Kernels | None = None


class Placed(NamedTuple):
    """Members of a class (relevant, or unwanted items) sorted best first."""

    order: Tensor  # int64 [B, T], the slot each came from
    ranks: Tensor  # float [B, T], ascending, inf for non-members
    group: Tensor  # int64 [B, T], the sorted slot at which the tie group begins


def place(located: Located, member: Tensor, ties: Ties, secondary: Tensor | None) -> Placed:
    """Sort members by score, best first, and give each its place; `secondary` orders the members of a tie group."""
    member = member & located.candidate
    dtype = float_dtype(member.device)
    slot = torch.arange(member.shape[1], device=member.device)
    untied = located.gains is None and member.device.type == "cpu"
    if untied and not (member & (located.group_size > 1)).count_nonzero():
        ranks, order = (located.better + 1).to(dtype).where(member, torch.inf).sort(dim=1)
        return Placed(order, ranks, slot.expand(member.shape))
    key = located.scores.to(dtype).where(member, -torch.inf)
    if secondary is None:
        key, order = key.sort(dim=1, descending=True)  # which of two equals stands first changes no rank
    else:
        first = secondary.argsort(dim=1, stable=True)
        key, second = key.gather(1, first).sort(dim=1, descending=True, stable=True)
        order = first.gather(1, second)
    group = search(-key, -key)
    members = (search(-key, -key, right=True) - group).to(dtype)
    number = (slot + 1 - group).to(dtype)
    better = located.better.gather(1, order).to(dtype)
    size = located.group_size.gather(1, order).to(dtype)
    if ties == "optimistic":
        ranks = better + number
    elif ties == "pessimistic":
        ranks = better + size - members + number
    else:
        ranks = better + number * (size + 1) / (members + 1)
    return Placed(order, ranks.where(member.gather(1, order), torch.inf), group)


class FromLocated(Places):
    """The way from counts to a ranking."""

    @classmethod
    def _from_located(
        cls,
        located: Located,
        ties: Ties,
        checks: Checks,
        *,
        depth: int | None = None,
        asked: Needs,
        made_with: dict[str, object],
    ) -> Self:
        """Place the located items and keep what metrics need: a batch is ranked to one `depth`, as deep as is asked."""
        gains = located.gains
        secondary = gains if gains is None or ties == "pessimistic" else -gains

        def graded(member: Tensor, placed: Placed) -> Graded:
            ranks = cut(placed.ranks, depth)
            if gains is None:
                return Graded(ranks)
            own = gains.where(member, 0).gather(1, placed.order)
            return Graded(ranks, own, placed.group if ties == "realistic" else None)

        placed = place(located, located.relevant, ties, secondary)
        found, penalties = graded(located.relevant, placed), None
        if located.unwanted is not None:
            penalties = graded(located.unwanted, place(located, located.unwanted, _MIRRORED[ties], secondary))
        num_relevant = located.relevant.sum(1)
        places = asked.places(num_relevant)
        near = found.ranks < torch.inf if places is None else found.ranks <= places
        return cls(
            found=found,
            num_relevant=num_relevant,
            tied=(near & (located.group_size.gather(1, placed.order) > 1)).any(1),
            unreachable=(located.relevant & ~located.candidate).any(1),
            penalties=penalties,
            num_ranked=located.num_ranked,
            num_recommended=located.num_recommended,
            score_threshold=asked.score_threshold,
            reach=Reach(depth),
            faults=checks.faults,
            made_with=made_with,
            kernels=located.kernels,
        )
