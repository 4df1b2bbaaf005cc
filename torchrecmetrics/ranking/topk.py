"""`Ranking.from_topk`: rankings from lists of recommended item ids, best first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor

from torchrecmetrics.arrays import float_dtype, rowwise_isin, search, sort_rows
from torchrecmetrics.checks import Checks, Validation, check_choice, check_ids, check_integer_target, shown
from torchrecmetrics.data.jagged import Jagged, Pair, as_jagged, as_spans, side_by_side
from torchrecmetrics.ranking.data import Depth, Lists, RankedItems, RankingData
from torchrecmetrics.ranking.exclusion import Exclude
from torchrecmetrics.ranking.rules import Overlap, Rules
from torchrecmetrics.ranking.targets import Gains, Target, Targets, selected

if TYPE_CHECKING:
    from typing_extensions import Self

Duplicates: TypeAlias = Literal["error", "first", "keep_place"]
"""An item listed twice is an error; or only its first rank counts; or the repeat keeps its rank, as a miss."""


class FromTopk(RankingData):
    """Base of `Ranking` with its constructor from lists of item ids."""

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
        """Return the ranking of a recommender's lists: `LightGCN.recommend`, FAISS, a two-stage retriever.

        Args:
            item_ids: integer [B, K], best first. A negative id = the recommender had no more items; it has no rank. An
                item that the catalogue does not know has a rank: give it an id beyond the catalogue, not the -1 of
                `Vocabulary.rows(..., unknown="mark")`. Lists of uneven length may be jagged, as targets are.
            target: integer ids [B] or [B, T], negative = padding, or jagged, as in `from_scores`; None = none, for
                metrics that read the lists alone.
            gains: as in `from_scores`.
            exclude: as in `from_scores`: these items leave the list and later items move up. A row left with fewer
                items than a metric's k is an error unless its recommender had no more items (a negative id): fetch k +
                history.
            complete: the lists are all that is recommended; an item that is not listed is a miss at every k.
            duplicates: an item listed twice is an "error"; or only its "first" rank counts (beam search): repeats leave
                the list as excluded items do, so fetch more than k, and `num_repeated` counts them; or repeats keep
                their ranks and are no hits ("keep_place").
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
        targets = Targets.read(target, gains, exclude, (rows, None), rules, checks)
        entries = _Entries.read(item_ids.long(), targets, duplicates, rules, checks)
        relevant = checks.without_rejected(targets.relevant)
        if targets.gains is None:
            found, penalties = entries.hits(targets, relevant), None
        else:
            found, penalties = entries.graded_hits(targets, targets.gains, relevant)
        length = entries.stays.sum(1)
        shortens = exclude is not None or padding_idx is not None or duplicates == "first"
        known = None
        if shortens and not complete and checks.enabled:
            known = torch.where(entries.given.all(1), length, depth)
        none = torch.zeros(rows, dtype=torch.bool, device=device)
        return cls(
            found=found,
            num_relevant=relevant.sum(1),
            tied=none,
            unreachable=none if targets.outside is None or overlap != "miss" else (relevant & targets.outside).any(1),
            penalties=penalties,
            num_recommended=length,
            num_repeated=None if entries.repeated is None else entries.repeated.sum(1),
            reach=Depth(None if complete else depth, rows=known),
            violations=checks.violations,
            made_with=rules.shaping("padding_idx", "overlap"),
            lists=Lists(entries.ids, torch.where(relevant, targets.ids, -1), entries.stays, entries.repeated),
        )


class _Entries(NamedTuple):
    """The entries of lists; every tensor is [B, K]."""

    ids: Tensor  # int64
    given: Tensor  # bool: holds an item
    stays: Tensor  # bool: has a rank; entries behind one that has none move up
    repeated: Tensor | None  # bool: repeats an earlier entry; None = was not asked for
    ranks: Tensor  # int64, the rank of an entry that stays

    @classmethod
    def read(cls, ids: Tensor, targets: Targets, duplicates: Duplicates, rules: Rules, checks: Checks) -> _Entries:
        """Return the entries, and which of them have a rank; reject repeated items if `duplicates` is "error"."""
        given = ids >= 0
        stays, repeated = given, None
        if duplicates != "error":
            by_id, slot = torch.where(given, ids, -1).sort(dim=1, stable=True)
            repeated = torch.zeros_like(given).scatter(1, slot[:, 1:], _again(by_id, rules.padding_idx))
            stays = stays & ~repeated if duplicates == "first" else stays
        elif checks.enabled:
            again = _again(sort_rows(torch.where(given, ids, -1)), rules.padding_idx)
            checks.reject("list_repeat", again, lambda row: _repeat_detail(row, ids))
        if targets.excluded:
            removed = targets.excluded.contains(ids, given)
            if (both := targets.overlapping) is not None and rules.take_overlap == "keep":
                removed = removed & ~rowwise_isin(ids, sort_rows(torch.where(both, targets.ids, -1)))
            stays = stays & ~removed
        if rules.padding_idx is not None:
            stays = stays & (ids != rules.padding_idx)
        return cls(ids, given, stays, repeated, stays.cumsum(1))

    def hits(self, targets: Targets, relevant: Tensor) -> RankedItems:
        """Return the ranks of the relevant items in ascending order, [B, T]."""
        width = targets.ids.shape[1]
        first = self.stays if self.repeated is None else self.stays & ~self.repeated
        hit = first & rowwise_isin(self.ids, sort_rows(torch.where(relevant, targets.ids, -1)))
        ranks = torch.where(hit, self.ranks.to(float_dtype(hit.device)), torch.inf)
        if width == 1:
            return RankedItems(ranks.amin(1, keepdim=True))
        ranks = sort_rows(ranks)[:, :width]
        return RankedItems(torch.nn.functional.pad(ranks, (0, width - ranks.shape[1]), value=torch.inf))

    def graded_hits(self, targets: Targets, gains: Tensor, relevant: Tensor) -> tuple[RankedItems, RankedItems]:
        """Return ranks and gains of the relevant items, and those of the unwanted items."""
        by_id, slot = torch.where(self.given, self.ids, -1).sort(dim=1, stable=True)
        nearest = search(by_id, targets.ids).clamp(max=by_id.shape[1] - 1)  # the first of repeated items
        place = slot.gather(1, nearest)
        listed = targets.listed & (by_id.gather(1, nearest) == targets.ids) & self.stays.gather(1, place)
        rank = self.ranks.gather(1, place).to(float_dtype(listed.device))
        ranks, order = torch.where(listed & relevant, rank, torch.inf).sort(dim=1, stable=True)
        found = RankedItems(ranks, torch.where(relevant, gains, 0).gather(1, order))
        unwanted = listed & (gains < 0)
        return found, RankedItems(torch.where(unwanted, rank, torch.inf), torch.where(unwanted, gains, 0))


def _again(by_id: Tensor, padding_idx: int | None) -> Tensor:
    """Return which entries of ascending lists repeat the item before them, bool [B, K - 1]."""
    again = (by_id[:, 1:] == by_id[:, :-1]) & (by_id[:, 1:] >= 0)
    return again if padding_idx is None else again & (by_id[:, 1:] != padding_idx)


def _repeat_detail(row: int, item_ids: Tensor) -> str:
    return f"row {row} is {shown(item_ids[row])} (duplicates='first' keeps the first of repeated items)"


def _lists(item_ids: Tensor | Jagged | Pair, validate_args: Validation) -> tuple[Tensor, Checks]:
    """Return lists padded with -1, int64 [B, K], and the `Checks` of their rows."""
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
