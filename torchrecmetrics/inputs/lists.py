"""`Lists`: rankings from lists of recommended item ids, best first."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import count_above, count_at_least, find_first, float_dtype, rowwise_isin, sort_rows
from torchrecmetrics.core.checks import (
    Checks,
    check_choice,
    check_device,
    check_ids,
    check_scores,
    shown,
)
from torchrecmetrics.core.options import Needs, Options
from torchrecmetrics.core.ranked_items import RankedItems
from torchrecmetrics.core.ranking import ListedItems, RankedRows, Ranking
from torchrecmetrics.inputs.batch_input import BatchInput, no_target
from torchrecmetrics.inputs.exclusion import Exclude
from torchrecmetrics.inputs.from_counts import TargetCounts, rank_counts
from torchrecmetrics.inputs.jagged import Jagged, Pair, Spans, as_jagged, as_spans, side_by_side
from torchrecmetrics.inputs.scores import round_up
from torchrecmetrics.inputs.targets import Gains, Target, Targets, dense_to_ids

DuplicateLabels: TypeAlias = Literal["error", "first"]
"""A label given twice is an error, or only the first of the two counts."""
Duplicates: TypeAlias = Literal["error", "first", "keep_place"]
"""Treatment of an item listed twice: an error; only its first rank counts; or the repeat keeps its rank, as a miss."""


@dataclass(frozen=True, eq=False, repr=False)
class Lists(BatchInput):
    """Lists of recommended item ids, best first, with the relevant items: `LightGCN.recommend`, FAISS, a retriever.

    Args:
        item_ids: integer [B, K], best first. A negative id means that the recommender had no more items, and has no
            rank. An item outside the catalogue has a rank: give it an id beyond the catalogue, not the -1 of
            `Vocabulary.rows(..., unknown="mark")`. Lists of uneven length may be jagged, as targets are.
        target: as in `Scores`; a dense target has a column per item, and more columns than K. None = no target, for
            metrics of lists.
        gains: as in `Scores`.
        exclude: as in `Scores`: these items are removed from the list, and later items move up. A row with fewer than k
            items left is an error, unless its recommender had no more items (a negative id): fetch k + history.
        complete: True if nothing else was recommended; an item that is not listed is then a miss at every k.
        duplicates: an item listed twice is an "error"; or only its "first" rank counts (beam search): repeats are
            removed, so fetch more than k, and `num_repeated` counts them; or repeats keep their ranks as misses
            ("keep_place").
        history: as in `Scores`.
        scores: scores of the entries, float [B, K] (for jagged lists [E]), which never rise along a list. Entries of
            equal scores are tied (see the metric's `ties`); -inf = no item. Unlisted items that tie with the last entry
            are not counted. None = no ties.

    A `padding_idx` of the metric is padding in target and exclude, and is removed from the list.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> lists = torch.tensor([[7, 3, 9], [4, 8, -1]])
        >>> trm.Lists(lists, torch.tensor([[9, 1], [4, -1]])).ranking().ranks
        tensor([[3., inf],
                [1., inf]], dtype=torch.float64)
    """

    item_ids: Tensor | Jagged | Pair
    target: Target | None = None
    gains: Gains | None = None
    exclude: Exclude | None = None
    complete: bool = False
    duplicates: Duplicates = "error"
    history: Target | Spans | None = None
    scores: Tensor | None = None

    def __post_init__(self) -> None:
        check_choice("duplicates", self.duplicates, get_args(Duplicates))
        if self.scores is not None and self.duplicates == "keep_place":
            raise ValueError(
                "duplicates='keep_place' needs lists without scores, since a repeat in a tie has no rank of "
                "its own: pass the lists without scores (evaluate_lists: rank=), or duplicates='first'"
            )

    @torch.no_grad()
    def rank(self, needs: Needs, options: Options) -> Ranking:
        """Find each relevant item in the list of its row."""
        item_ids, scores, checks = _lists(self.item_ids, self.scores, options)
        (rows, depth), device = item_ids.shape, item_ids.device
        target, gains = dense_to_ids(*self._target_and_gains(checks), item_ids, options, checks)
        targets = Targets.read(target, gains, self.exclude, (rows, None), options, checks)
        entries = _Entries.read(item_ids.long(), targets, self.duplicates, options, checks)
        length = entries.stays.sum(1)
        shortens = self.exclude is not None or options.padding_idx is not None or self.duplicates == "first"
        row_depth = None
        if shortens and not self.complete and checks.enabled:
            row_depth = torch.where(entries.is_item.all(1), length, depth)
        none = torch.zeros(rows, dtype=torch.bool, device=device)
        fields: dict[str, Any] = {
            "num_repeated": None if entries.repeated is None else entries.repeated.sum(1),
            "row_depth": row_depth,
            "unreachable": none if targets.excluded is None else (targets.relevant & ~targets.may_rank).any(1),
            "lists": ListedItems(
                ids=entries.ids,
                relevant=torch.where(targets.relevant, targets.ids, -1),
                stays=entries.stays,
                repeated=entries.repeated,
                history=self.read_history(needs, checks),
            ),
        }
        known_depth = None if self.complete else depth
        if scores is not None or targets.gains is not None:
            rules = options if scores is not None else replace(options, ties="optimistic")  # without ties
            counts = entries.counts(targets, scores, checks)._replace(num_recommended=length)
            made_with = ("padding_idx", "overlap") if scores is None else ()
            if scores is None:
                needs = needs._replace(score_threshold=None)
            elif needs.score_threshold is not None:
                reaches = entries.stays & (scores >= round_up(needs.score_threshold, scores.dtype))
                counts = counts._replace(num_recommended=reaches.sum(1))
            return replace(rank_counts(counts, needs, rules, checks, known_depth, made_with), **fields)
        relevant = entries.hits(targets)
        valid, violations = checks.finish()
        return Ranking(
            relevant=relevant,
            num_relevant=targets.relevant.sum(1, dtype=relevant.ranks.dtype),
            tied=none,
            num_recommended=length.to(relevant.ranks.dtype),
            depth=known_depth,
            rows=RankedRows(valid, violations),
            options={name: options.of_ranks[name] for name in ("padding_idx", "overlap")},
            **fields,
        )

    def _target_and_gains(self, checks: Checks) -> tuple[Target, Gains | None]:
        """Return the target and its gains."""
        return no_target(checks.num_rows, checks.device) if self.target is None else self.target, self.gains


@dataclass(frozen=True, eq=False, repr=False)
class LabelledLists(Lists):
    """Lists whose relevant items are labels: pairs of a row of the batch and an item, as PyG has them.

    Args:
        edges: int64 [2, E]: row of the batch, and relevant item.
        weights: gains of the labels, [E]; None = 1.
        duplicate_labels: a label given twice is an "error", or the "first" of the two counts, with its weight.
    """

    _: KW_ONLY
    edges: Tensor
    weights: Tensor | None = None
    duplicate_labels: DuplicateLabels = "error"

    def _target_and_gains(self, checks: Checks) -> tuple[Target, Gains | None]:
        (row, item), rows, weights = self.edges, checks.num_rows, self.weights
        wrong = (row < 0) | (row >= rows) | (item < 0)
        checks.reject("labels", wrong.any().expand(rows), lambda _: self._wrong_label(wrong, rows))
        row, item = row.clamp(0, max(rows - 1, 0)), item.where(~wrong, -1)
        if self.duplicate_labels == "first":
            order = item.argsort(stable=True)
            order = order[row[order].argsort(stable=True)]  # by row, then by item
            row, item, weights = row[order], item[order], None if weights is None else weights[order]
            is_repeat = torch.zeros_like(wrong)
            is_repeat[1:] = (row[1:] == row[:-1]) & (item[1:] == item[:-1])
            item = item.where(~is_repeat, -1)
        target = Jagged.from_pairs(row, item, rows)
        gains = None if weights is None else Jagged.from_pairs(row, weights, rows)
        return target, gains

    def _wrong_label(self, wrong: Tensor, rows: int) -> str:
        at = int(wrong.nonzero()[0])
        return (
            f"edge_label_index[:, {at}] is {self.edges[:, at].tolist()}, in a batch of {rows} rows (their positions in "
            "pred_index_mat, not user ids)"
        )


class _Entries(NamedTuple):
    """The entries of lists; every tensor is [B, K]."""

    ids: Tensor  # int64
    is_item: Tensor  # bool: holds an item
    stays: Tensor  # bool: has a rank; entries after one without a rank move up
    repeated: Tensor | None  # bool: repeats an earlier entry; None = not computed
    ranks: Tensor  # int64, the rank of an entry that stays

    @classmethod
    def read(cls, ids: Tensor, targets: Targets, duplicates: Duplicates, options: Options, checks: Checks) -> _Entries:
        """Return the entries and their ranks; reject repeated items if `duplicates` is "error"."""
        is_item = ids >= 0
        stays, repeated = is_item, None
        if duplicates != "error":
            by_id, slot = torch.where(is_item, ids, -1).sort(dim=1, stable=True)
            repeated = torch.zeros_like(is_item).scatter(1, slot[:, 1:], _repeats(by_id, options.padding_idx))
            stays = stays & ~repeated if duplicates == "first" else stays
        elif checks.enabled:
            repeats = _repeats(sort_rows(torch.where(is_item, ids, -1)), options.padding_idx)
            checks.reject("list_repeat", repeats, lambda row: _repeat_detail(row, ids))
        if targets.excluded is not None:
            removed = targets.excluded.contains(ids, is_item)
            if targets.kept is not None:
                removed = removed & ~rowwise_isin(ids, sort_rows(torch.where(targets.kept, targets.ids, -1)))
            stays = stays & ~removed
        return cls(ids=ids, is_item=is_item, stays=stays, repeated=repeated, ranks=stays.cumsum(1))

    def counts(self, targets: Targets, scores: Tensor | None, checks: Checks) -> TargetCounts:
        """Return for each target the numbers of entries with a higher and an equal score; reject scores that rise."""
        slot, present = find_first(torch.where(self.is_item, self.ids, -1), targets.ids)
        is_ranked = targets.is_item & present & self.stays.gather(1, slot)
        if scores is None:
            better = self.ranks.gather(1, slot) - 1
            size = torch.ones_like(better)
        else:
            lowest = scores.where(self.is_item, torch.inf).cummin(1).values
            wrong = self.is_item & ~(scores < torch.inf)
            wrong[:, 1:] |= self.is_item[:, 1:] & (scores[:, 1:] > lowest[:, :-1])
            checks.reject("list_order", wrong, partial(_order_detail, scores=scores))
            values = scores.where(self.stays & ~scores.isnan(), -torch.inf)
            target_scores, ascending = values.gather(1, slot), sort_rows(values)
            is_ranked = is_ranked & (target_scores > -torch.inf)
            better = count_above(ascending, target_scores)
            size = count_at_least(ascending, target_scores) - better
        penalised = None if targets.gains is None else targets.penalised
        return TargetCounts(
            relevant=targets.relevant,
            penalised=penalised,
            gains=targets.gains,
            missing=~is_ranked,
            better=better,
            group_size=size,
            num_ranks=self.ids.shape[1],
        )

    def hits(self, targets: Targets) -> RankedItems:
        """Return the ranks of the relevant items in ascending order, [B, T]."""
        relevant, width = targets.relevant, targets.ids.shape[1]
        counts_once = self.stays if self.repeated is None else self.stays & ~self.repeated
        hit = counts_once & rowwise_isin(self.ids, sort_rows(torch.where(relevant, targets.ids, -1)))
        ranks = torch.where(hit, self.ranks.to(float_dtype(hit.device)), torch.inf)
        if width == 1:
            return RankedItems(ranks.amin(1, keepdim=True))
        ranks = sort_rows(ranks)[:, :width]
        return RankedItems(torch.nn.functional.pad(ranks, (0, width - ranks.shape[1]), value=torch.inf))


def _repeats(by_id: Tensor, padding_idx: int | None) -> Tensor:
    """Return which entries of ascending lists repeat the item before them, bool [B, K - 1]."""
    repeats = (by_id[:, 1:] == by_id[:, :-1]) & (by_id[:, 1:] >= 0)
    return repeats if padding_idx is None else repeats & (by_id[:, 1:] != padding_idx)


def _order_detail(row: int, scores: Tensor) -> str:
    return f"those of row {row} are {shown(scores[row])}"


def _repeat_detail(row: int, item_ids: Tensor) -> str:
    return f"row {row} is {shown(item_ids[row])} (duplicates='first' keeps the first of repeated items)"


def _lists(
    item_ids: Tensor | Jagged | Pair, scores: Tensor | None, options: Options
) -> tuple[Tensor, Tensor | None, Checks]:
    """Return lists padded with -1, int64 [B, K], their scores, and the `Checks` of their rows."""
    jagged = as_jagged("item_ids", item_ids)
    ids: Any = item_ids if jagged is None else jagged.values
    check_ids("item_ids", ids)
    if jagged is None and (ids.dim() != 2 or ids.shape[1] == 0):
        raise ValueError(f"item_ids must be [B, K] with K >= 1, got {list(ids.shape)}")
    if scores is not None:
        check_scores(scores, dims=ids.dim())
        check_device("scores", scores, ids.device)
        if scores.shape != ids.shape:
            raise ValueError(f"scores must have the shape of item_ids, {list(ids.shape)}, got {list(scores.shape)}")
        ids = ids.where(scores != -torch.inf, -1)
    if jagged is None:
        return ids, scores, Checks(options.validate_args, ids.device, len(ids))
    checks = Checks(options.validate_args, ids.device, len(jagged.offsets) - 1)
    lists = as_spans("item_ids", jagged._replace(values=ids), checks)
    if scores is not None:
        scores = side_by_side(scores, lists.start, lists.stop, lists.longest, -torch.inf)
    return side_by_side(lists.values, lists.start, lists.stop, lists.longest, -1), scores, checks
