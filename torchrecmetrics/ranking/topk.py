"""From a recommender's lists to places."""

from __future__ import annotations

from operator import eq, ge
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from torchrecmetrics.arrays import among, ascending, compare, float_dtype, keep, met_once, scalar, search
from torchrecmetrics.checks import Checks, Validation, check_choice, check_ids, check_integer_target, shown
from torchrecmetrics.data.jagged import Jagged, Pair, as_jagged, as_spans, side_by_side
from torchrecmetrics.ranking.excluded import Exclude
from torchrecmetrics.ranking.places import Graded, Lists, Places, Reach
from torchrecmetrics.ranking.rules import Overlap, Rules
from torchrecmetrics.ranking.targets import Gains, Target, Targets, selected

if TYPE_CHECKING:
    from typing_extensions import Self

Duplicates: TypeAlias = Literal["error", "first"]
"""An item that a list holds twice is an error, or its first place alone stands."""


class FromTopk(Places):
    """The way from lists to a ranking."""

    @classmethod
    @torch.no_grad()
    def from_topk(
        cls,
        item_ids: Tensor | Jagged | Pair,
        target: Target | None = None,
        *,
        gains: Gains | None = None,
        exclude: Exclude | None = None,
        complete: bool = False,
        duplicates: Duplicates = "error",
        padding_idx: int | None = None,
        overlap: Overlap = "error",
        validate_args: Validation = True,
    ) -> Self:
        """Read a recommender's lists: `LightGCN.recommend`, FAISS, a two-stage retriever.

        Args:
            item_ids: integer [B, K], best first. A negative id = the recommender had no more items; it takes no
                place. An item that the catalogue does not know takes one: give it an id beyond the catalogue, not the
                -1 of `Vocabulary.rows(..., unknown="mark")`. Lists of uneven length may be jagged, as targets are.
            target: integer ids [B] or [B, T], negative = padding, or jagged, as in `from_scores`; None = none, for
                metrics that read the lists alone.
            gains: as in `from_scores`.
            exclude: as in `from_scores`: these items leave the list and those behind move up.
                A row left with fewer places than a metric's k is an error unless its recommender had no more items
                (a negative id): fetch k + history.
            complete: the lists are all that is recommended; an item that is not listed is a miss at every k.
            duplicates: an item listed twice is an "error", or only its "first" place stands (beam search): the others
                leave the list as excluded items do, so fetch more than k, and `num_repeated` counts them.
            padding_idx: this id is padding in target and exclude, and leaves the list like an excluded item.
            overlap: as in `from_scores`.
            validate_args: as in `from_scores`.

        Examples:
            >>> import torch
            >>> import torchrecmetrics as trm
            >>> lists = torch.tensor([[7, 3, 9], [4, 8, -1]])
            >>> trm.Ranking.from_topk(lists, torch.tensor([[9, 1], [4, -1]])).ranks
            tensor([[3., inf],
                    [1., inf]], dtype=torch.float64)
        """
        rules = Rules(padding_idx=padding_idx, overlap=overlap, validate_args=validate_args)
        check_choice("duplicates", duplicates, get_args(Duplicates))
        item_ids, checks = _lists(item_ids, validate_args)
        rows, depth = item_ids.shape
        device = item_ids.device
        if target is None:
            target = torch.full((rows, 1), -1, dtype=torch.int64, device=device)
        target, gains = selected(target, gains, checks)
        _check_target(target, rows)
        first_stands = duplicates == "first"
        met = None
        if gains is None and not first_stands and target.shape[:-1] == (rows,) and target.device == device:
            met = met_once(item_ids, target)
        targets = Targets.read(target, gains, exclude, (rows, None), rules, checks, met is not None)

        # what leaves the list makes those behind it move up
        item_ids = item_ids.long()
        given = compare(ge, item_ids, 0)
        again = None
        if first_stands or targets.gains is not None:
            by_id, slot = keep(item_ids, given, -1).sort(dim=1, stable=first_stands)
            again = _again(by_id, padding_idx) if first_stands or checks.enabled else None
        elif checks.enabled and met is None:
            again = _again(ascending(keep(item_ids, given, -1)), padding_idx)
        if again is not None and not first_stands:
            checks.reject("list_repeat", again, lambda row: _repeat_detail(row, item_ids))
        removed = None
        if targets.excluded:
            removed = targets.excluded.contains(item_ids, given)
        if padding_idx is not None:
            padding = item_ids == padding_idx
            removed = padding if removed is None else removed | padding
        if (both := targets.overlapping) is not None and removed is not None and rules.take_overlap == "keep":
            removed = removed & ~among(item_ids, ascending(keep(targets.ids, both, -1)))
        stays = given if removed is None else given & ~removed
        repeated = None
        if again is not None and first_stands:
            repeated = torch.zeros_like(stays).scatter(1, slot[:, 1:], again)
            stays = stays & ~repeated
        length = stays.sum(1)
        places = stays.cumsum(1)

        relevant = checks.without_rejected(targets.relevant)
        width = targets.ids.shape[1]
        penalties = None
        if targets.gains is None:
            hit = among(item_ids, targets.ascending) if met is None else met
            hit = stays & checks.without_rejected(hit)
            found = Graded(_first_hits(places, hit, width))
        else:
            # where each target stands in its list, if it does
            nearest = search(by_id, targets.ids).clamp(max=depth - 1)
            at = slot.gather(1, nearest)
            placed = targets.listed & (by_id.gather(1, nearest) == targets.ids) & stays.gather(1, at)
            place = places.gather(1, at).to(float_dtype(device))
            ranks, order = keep(place, placed & relevant, torch.inf).sort(dim=1, stable=True)
            found = Graded(ranks, keep(targets.gains, relevant, 0).gather(1, order))
            if (unwanted := targets.unwanted) is not None:
                unwanted = placed & unwanted
                penalties = Graded(keep(place, unwanted, torch.inf), keep(targets.gains, unwanted, 0))
        shortens = exclude is not None or padding_idx is not None or first_stands
        cut = shortens and not complete and checks.enabled
        none = scalar(False, torch.bool, device).expand(rows)
        return cls(
            found=found,
            num_relevant=relevant.sum(1),
            tied=none,
            unreachable=none if targets.outside is None or overlap != "miss" else (relevant & targets.outside).any(1),
            penalties=penalties,
            num_recommended=length,
            num_repeated=again.sum(1) if again is not None and first_stands else None,
            reach=Reach(None if complete else depth, rows=length.where(given.all(1), depth) if cut else None),
            faults=checks.faults,
            made_with=rules.shaping("padding_idx", "overlap"),
            lists=Lists(item_ids, keep(targets.ids, relevant, -1), stays, repeated),
            in_halves=True,
        )


def _first_hits(places: Tensor, hit: Tensor, width: int) -> Tensor:
    """Places of the hits of each list, ascending, `inf` behind the last: float [B, width]."""
    ranks = keep(places.to(float_dtype(places.device)), hit, torch.inf)
    if width == 1:
        return ranks.amin(1, keepdim=True)
    ranks = ascending(ranks)[:, :width]
    missing = width - ranks.shape[1]
    return torch.nn.functional.pad(ranks, (0, missing), value=torch.inf) if missing else ranks.contiguous()


def _again(by_id: Tensor, padding_idx: int | None) -> Tensor:
    """Which entries of ascending lists hold the item before them once more, bool [B, K - 1]."""
    again = compare(eq, by_id[:, 1:], by_id[:, :-1]) & compare(ge, by_id[:, 1:], 0)
    return again if padding_idx is None else again & (by_id[:, 1:] != padding_idx)


def _repeat_detail(row: int, item_ids: Tensor) -> str:
    return f"row {row} is {shown(item_ids[row])} (duplicates='first' lets an item's first place stand alone)"


def _lists(item_ids: Tensor | Jagged | Pair, validate_args: Validation) -> tuple[Tensor, Checks]:
    """Return lists side by side, -1 behind the end of shorter ones, and what collects their faults."""
    jagged = as_jagged("item_ids", item_ids)
    if jagged is not None:
        checks = Checks(validate_args, jagged.values.device, len(jagged.offsets) - 1)
        check_ids("item_ids", jagged.values)
        lists = as_spans("item_ids", jagged, checks)
        return side_by_side(lists.values, lists.start, lists.stop, lists.longest, -1), checks
    check_ids("item_ids", item_ids)
    assert isinstance(item_ids, Tensor)
    if item_ids.dim() != 2 or item_ids.shape[1] == 0:
        raise ValueError(f"item_ids must be [rows, places] with at least one place, got {list(item_ids.shape)}")
    return item_ids, Checks(validate_args, item_ids.device, len(item_ids))


def _check_target(target: Tensor, rows: int) -> None:
    check_integer_target(target, "from_topk")
    if target.dim() == 2 and len(target) == 2 != rows:
        raise ValueError(
            f"target ids must be [{rows}] or [{rows}, T], got {list(target.shape)}; an edge_index is "
            "brought to padded ids by Interactions.from_edge_index(...).select(rows).items"
        )
