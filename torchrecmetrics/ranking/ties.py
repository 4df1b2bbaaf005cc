"""Where items stand among equal scores: the one place that knows the three policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics.arrays import ascending, counting, float_dtype, in_turn, keep, may_look, scalar, search
from torchrecmetrics.checks import Faults, any_of_row
from torchrecmetrics.kernels import Kernels
from torchrecmetrics.ranking.places import Graded, Lists, Places, Reach, cut
from torchrecmetrics.ranking.rules import Needs, Ties

if TYPE_CHECKING:
    from typing_extensions import Self

# the mirror image: a policy that is kind to relevant items puts unwanted ones at the back
_MIRRORED: dict[Ties, Ties] = {
    "optimistic": "pessimistic",
    "realistic": "realistic",
    "pessimistic": "optimistic",
}

#: So many are better than those that take no part.
_NOWHERE = 2**40


class Located(NamedTuple):
    """What was counted for the targets; every tensor [B, T] stands beside their ids."""

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


class Unplaced(NamedTuple):
    """A batch whose relevant items are located, and how they are to be placed: by `Ranking.placed`."""

    located: Located
    ties: Ties
    made_with: Mapping[str, object]
    asked: Needs = Needs()
    depth: int | None = None  # to which the batch is ranked: as deep as is asked
    faults: Faults = Faults()

    @property
    def lists(self) -> Lists | None:
        """The items in the first places, where somebody asked for them."""
        return self.located.lists

    def listing(self, lists: Lists) -> Unplaced:
        """Return the same with other lists."""
        return self._replace(located=self.located._replace(lists=lists))


class Placed(NamedTuple):
    """Members of a class (relevant, or unwanted items) sorted best first."""

    order: Tensor | None  # int64 [B, T], the slot each came from; may be None without `secondary`
    ranks: Tensor  # float [B, T], ascending, inf for non-members and behind the depth
    group: Tensor | None  # int64 [B, T], the sorted slot at which the tie group begins; None = each is one of its own
    tied: Tensor | None  # bool [B, T], one of these that shares its score with another candidate; None = nobody does


def place(located: Located, member: Tensor, ties: Ties, secondary: Tensor | None, depth: int | None) -> Placed:
    """Sort members by score, best first, and give each its place, if that is among the first `depth`.

    `secondary` orders the members of a tie group. What is behind `depth` need not have been counted right.
    """
    member, dtype = member & located.candidate, float_dtype(member.device)
    better, size = keep(located.better, member, _NOWHERE), located.group_size
    group = None
    last = _NOWHERE // 2 if depth is None else depth
    number: int | Tensor = 1  # 1, 2, 3, ... in the group, of so many
    members: int | Tensor = 1
    alone = member.shape[1] == 1
    order: Tensor | None = None
    if not alone and located.gains is None and _untied(member, size):
        if secondary is None:
            better = ascending(better)
        else:
            better, order = in_turn(better)
        return Placed(order, cut((better + 1).to(dtype), last), None, None)
    tied = size > 1
    if alone:
        if secondary is not None:
            order = scalar(0, torch.int64, member.device).expand(member.shape)
    else:
        if secondary is None:
            better, order = in_turn(better)  # which of two equals stands first changes no rank
        else:
            first = secondary.argsort(dim=1, stable=True)
            better, second = better.gather(1, first).sort(dim=1, stable=True)
            order = first.gather(1, second)
        size, tied = size.gather(1, order), tied.gather(1, order)
        group = search(better, better)
        members = search(better, better, right=True) - group
        number = counting(member.shape[1], torch.int64, member.device) - group
    # a group holds its members, unless it is behind `depth`, where it need not have been counted right
    if ties == "optimistic":
        ranks = (better + number).to(dtype)
    elif ties == "pessimistic":
        ranks = (better + size.clamp(min=members) + (number - members)).to(dtype)
    elif group is None:
        ranks = torch.add(better.to(dtype), size.clamp(min=1) + 1, alpha=0.5)
    else:
        ranks = better + ((size.clamp(min=1) + 1) * number).to(dtype) / (members + 1)
    near = ranks <= last
    return Placed(order, keep(ranks, near, torch.inf), group, tied & near)


def _untied(member: Tensor, size: Tensor) -> bool:
    """Whether it can be said without waiting that no member shares its score."""
    if not member.numel() or not may_look(member):
        return False
    return int(size.amax()) <= 1 or not (member & (size > 1)).count_nonzero()


class FromLocated(Places):
    """The way from counts to a ranking."""

    @classmethod
    def placed(cls, batch: Unplaced) -> Self:
        """Place the located items and keep what metrics need."""
        located, ties, made_with, asked, depth, faults = batch
        gains = located.gains
        secondary = gains if gains is None or ties == "pessimistic" else -gains

        def graded(member: Tensor, placed: Placed) -> Graded:
            if gains is None:
                return Graded(placed.ranks)
            assert placed.order is not None
            own = keep(gains, member, 0).gather(1, placed.order)
            return Graded(placed.ranks, own, placed.group if ties == "realistic" else None)

        placed = place(located, located.relevant, ties, secondary, depth)
        found, penalties = graded(located.relevant, placed), None
        if located.unwanted is not None:
            penalties = graded(located.unwanted, place(located, located.unwanted, _MIRRORED[ties], secondary, depth))
        num_relevant = located.relevant.sum(1)
        if placed.tied is None:
            tied = scalar(False, torch.bool, num_relevant.device).expand(num_relevant.shape)
        else:
            places = asked.places(num_relevant)
            counted = placed.tied if places is None or places is depth else placed.tied & (found.ranks <= places)
            tied = any_of_row(counted)
        return cls(
            found=found,
            num_relevant=num_relevant,
            tied=tied,
            unreachable=any_of_row(located.relevant > located.candidate),
            penalties=penalties,
            num_ranked=located.num_ranked,
            num_recommended=located.num_recommended,
            score_threshold=asked.score_threshold,
            reach=Reach(depth),
            faults=faults,
            made_with=made_with,
            kernels=located.kernels,
            lists=located.lists,
            in_halves=placed.group is None,
        )
