"""`Scores` and `get_topk_ranks`: count, for every target, the items that score higher."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor

from torchrecmetrics import kernels
from torchrecmetrics.core.arrays import count_above, count_at_least, sort_rows, working_dtype
from torchrecmetrics.core.checks import (
    Checks,
    Validation,
    check_choice,
    check_k,
    check_scores,
    nearest,
)
from torchrecmetrics.core.options import KernelChoice, Needs, Options, OverlapRule, PlacedTies
from torchrecmetrics.core.ranking import ListedItems, Ranking
from torchrecmetrics.inputs.batch_input import BatchInput, SelectedItems, no_target, refuse_dense
from torchrecmetrics.inputs.exclusion import ALL_ROWS, Exclude, ExcludedItems
from torchrecmetrics.inputs.from_counts import TargetCounts, rank_counts, sort_ranks
from torchrecmetrics.inputs.jagged import Spans
from torchrecmetrics.inputs.targets import Gains, Target, Targets, reject_whole
from torchrecmetrics.kernels import Counts, Products, Question, eager

if TYPE_CHECKING:
    from typing_extensions import Never

#: Rank that `get_topk_ranks` writes in an invalid row, on devices that cannot raise without a host sync.
INVALID_RANK = torch.iinfo(torch.int64).min

Best: TypeAlias = tuple[Tensor, Tensor]
"""Scores and ids of the best candidates of each row, [B, k], best first; -inf and -1 where there are no more."""
REQUIRED: Any = None
"""Default of arguments that must be given, so that other names of them reach a message."""
COPIED_SCORES = 2**20
"""Number of scores that are copied at once on the CPU to overwrite excluded items; such a copy fits the cache."""


class ScoreRows(NamedTuple):
    """Scores [B, I] computed a few rows at a time, in memory that may be overwritten to exclude items cheaply."""

    shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device
    chunks: Callable[[], Iterable[Tensor]]  # yields consecutive rows; each chunk is valid until the next


@dataclass(frozen=True, eq=False, repr=False)
class Scores(BatchInput):
    """Scores of all items, with the relevant items: every item is ranked by its score.

    Args:
        scores: float64, float32, float16 or bfloat16 [B, I], higher is better. `-inf` = not a candidate; NaN and
            `+inf` are errors (unchecked, NaN is worse than every number and never a hit). Never modified.
        target: relevant items. Integers [B] or [B, T] are item ids, negative = padding; bool [B, I] is dense; floats
            [B, I] >= 0 are graded: > 0 relevant, the value is the gain. Dense targets cost one host sync. Ids may be
            jagged: `(values, offsets)`, a `Jagged`, or a nested tensor of the jagged layout. None = no target, for
            metrics of lists.
        gains: number [B, T], with id targets: > 0 relevant, 0 not relevant, < 0 a penalty that only NDCG reads. Jagged
            for a jagged target.
        exclude: items that are not candidates: ids [B] or [B, H], also jagged, a result of `prefix_history`, bool [B,
            I], bool [I] for every row, or a tuple of these. Repeated ids count once. A tuple of two columns of integers
            is `(values, offsets)` if the second has B + 1 entries.
        history: earlier items of the row's user, ids [B] or [B, H], negative = padding; read by metrics that compare
            lists with it (`PopularityLift`, `Calibration`, `Seen`). These items stay candidates unless `exclude` has
            them too.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores, target = torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([[2, 0]])
        >>> trm.Scores(scores, target).ranking(depth=2).ranks
        tensor([[2., inf]], dtype=torch.float64)
    """

    scores: Tensor | ScoreRows | Products
    target: Target | None = None
    gains: Gains | None = None
    exclude: Exclude | None = None
    history: Target | Spans | None = None

    @torch.no_grad()
    def rank(self, needs: Needs, options: Options) -> Ranking:
        """Count the items that score higher than each relevant item, as deep as `needs` says."""
        scores = self.scores
        if not isinstance(scores, (ScoreRows, Products)):
            check_scores(scores, dims=2)
        (rows, items), device = scores.shape, scores.device
        if options.padding_idx is not None:
            check_padding_item(options, items)
        if needs.num_items not in (None, items):
            raise ValueError(f"the catalogue has {needs.num_items} items, the scores have {items}")
        if self.target is None and needs.target:
            raise ValueError("scores need a target; pass ranks as integers, or as Ranks(ranks, depth=)")
        checks = Checks(options.validate_args, device, rows)
        target = no_target(rows, device) if self.target is None else self.target
        if isinstance(target, Tensor) and not target.is_nested and target.shape == (rows, items):
            reject_whole(target, self.gains, checks)
        targets = Targets.read(target, self.gains, self.exclude, (rows, items), options, checks)
        depth = needs.depth_for(targets.ids.shape[1]) if needs.whole_targets else needs.depth
        counts = count_targets(scores, targets, needs._replace(depth=depth), options, checks)
        history = None if self.history is None else self.read_history(needs, checks)
        return rank_counts(counts, needs, options, checks, depth, history=history)


@torch.no_grad()
def get_topk_ranks(
    scores: Tensor = REQUIRED,
    target: Target = REQUIRED,
    k: int = REQUIRED,
    *,
    exclude: Exclude | None = None,
    ties: PlacedTies = "realistic",
    padding_idx: int | None = None,
    overlap: OverlapRule = "error",
    validate_args: Validation = True,
    kernels: KernelChoice = "auto",
    **unknown: Never,
) -> Tensor:
    """Return the rank of each target in its row's ranking, down to rank `k`.

    Args:
        scores: float [B, I], higher is better (see `Scores`).
        target: integer ids [B] or [B, T], negative = padding; or jagged, as in `Scores`.
        k: number of top ranks, >= 1.
        exclude: as in `Scores`.
        ties: rank of an item among equal scores: "realistic" (the expected rank, rounded up, which changes no hit of a
            metric with `ties="realistic"`), "optimistic" (the first) or "pessimistic" (the last).
        padding_idx: as in `Scores`.
        overlap: as in `Scores`.
        validate_args: as in `Scores`.
        kernels: as in `Scores`.
        unknown: no other argument; an error names the nearest one.

    Returns:
        Ranks of `target`, int64 [B, T] ([B, 1] for [B]): 1 = first, `k + 1` = not in the top k, 0 = padding. On devices
        other than the CPU an invalid row holds the smallest int64, which `metric.update` counts. The tensor has
        `.depth = k` and `.ties`, which copies lose: `update(copy, depth=k)`. Ranks hold no ties, so a metric with an
        explicit `ties="expected"` refuses them.

    Raises:
        TypeError: for a dtype that is not accepted.
        ValueError: for `k` < 1, shapes or devices that do not fit and, on the CPU, for bad values.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores = torch.tensor([[0.1, 0.9, 0.5, 0.3], [0.4, 0.3, 0.2, 0.1]])
        >>> trm.get_topk_ranks(scores, torch.tensor([[2, 0], [0, -1]]), k=3)
        tensor([[2, 4],
                [1, 0]])
    """
    for name in unknown:
        known = ("scores", "target", "k", "exclude", "ties", "padding_idx", "overlap", "validate_args", "kernels")
        raise TypeError(f"get_topk_ranks has no argument {name!r}{nearest(name, known)}")
    k = check_k(k)
    check_choice("ties of ranks", ties, get_args(PlacedTies))
    options = Options(ties=ties, padding_idx=padding_idx, overlap=overlap, validate_args=validate_args, kernels=kernels)
    check_scores(scores, dims=2)
    rows, items = scores.shape
    check_padding_item(options, items)
    checks = Checks(validate_args, scores.device, rows)
    if isinstance(target, SelectedItems) and target.values is not None:
        raise TypeError("get_topk_ranks takes no gains, but target has values: pass target.items")
    refuse_dense("target", target, "scores of get_topk_ranks")
    if isinstance(target, Tensor) and not target.is_nested and target.shape == (rows, items):
        reject_whole(target, None, checks)
    targets = Targets.read(target, None, exclude, (rows, items), options, checks)
    counts = count_targets(scores, targets, Needs(k), options, checks)
    valid, _ = checks.finish()
    in_order = sort_ranks(counts, counts.missing, ties, targets.ids, k)
    ranks = in_order.items.ranks.ceil().nan_to_num(posinf=k + 1).to(torch.int64)
    if in_order.order is not None:
        ranks = torch.empty_like(ranks).scatter_(1, in_order.order, ranks)
    ranks = torch.where(targets.is_item, ranks, 0)
    if valid is not None:
        ranks = ranks.where(valid[:, None], INVALID_RANK)
    if isinstance(target, Tensor) and target.shape[1:] == (0,):
        ranks = ranks[:, :0]
    ranks.depth, ranks.ties = k, ties  # type: ignore[attr-defined]
    return ranks


def check_padding_item(options: Options, items: int) -> None:
    """Raise if `padding_idx` is beyond the last item."""
    if options.padding_idx is not None and options.padding_idx >= items:
        raise ValueError(f"padding_idx must be an item id in 0..{items - 1}, got {options.padding_idx}")


def count_targets(
    scores: Tensor | ScoreRows | Products, targets: Targets, needs: Needs, options: Options, checks: Checks
) -> TargetCounts:
    """Return the numbers of candidates that score higher than, and the same as, each target."""
    counter, excluded = TargetCounter(targets, needs, options, scores.dtype, checks), targets.excluded
    if excluded is None and isinstance(scores, Tensor):
        target_scores = scores.gather(1, targets.ids)
        missing = counter.missing(target_scores)
        return counter.finish(target_scores, missing, *counter.count(scores, target_scores, missing))
    if excluded is not None and isinstance(scores, Tensor) and counter.copies_pay(scores):
        # copies that fit the cache: excluded items are not read again to be subtracted
        scores = ScoreRows(
            shape=(scores.shape[0], scores.shape[1]),
            dtype=working_dtype(scores),
            device=scores.device,
            chunks=partial(_copies, scores, excluded),
        )
    pieces, owns_memory, start = [], isinstance(scores, ScoreRows), 0
    for piece in _row_chunks(scores, counter.num_rows if excluded is None else excluded.rows_at_once):
        rows = slice(start, start + piece.shape[0])
        start = rows.stop
        target_scores = kernels.look_up(piece, targets.ids[rows])
        missing = counter.missing(target_scores, rows)
        counts, top = counter.count(piece, target_scores, missing, rows, owns_memory=owns_memory)
        pieces.append((target_scores, missing, *(top or (None, None)), *counts))
    columns: Any = pieces[0] if len(pieces) == 1 else map(_cat, zip(*pieces, strict=True))
    target_scores, missing, top_scores, top_ids, *all_counts = columns
    top = None if top_ids is None else (top_scores, top_ids)
    return counter.finish(target_scores, missing, Counts(*all_counts), top)


class TargetCounter:
    """Counter of the better and equal candidates of a batch's targets, which reads the scores in pieces.

    It removes excluded items for all inputs and kernels: their scores are overwritten if the memory allows it, else
    subtracted from the counts.
    """

    def __init__(self, targets: Targets, needs: Needs, options: Options, dtype: torch.dtype, checks: Checks) -> None:
        self.targets: Targets = targets
        self.needs: Needs = needs
        self.checks: Checks = checks
        self.num_rows: int = max(1, len(targets.ids))
        on_cpu = checks.device.type == "cpu" and options.kernels != "triton"
        self.num_ranks: int = targets.num_items or 0
        num_scores = self.num_rows * self.num_ranks
        self.kernels: kernels.Kernels = (
            "eager" if on_cpu else kernels.choose(options.kernels, checks.device, num_scores)
        )
        self._counts_ranked = needs.num_ranked or needs.depth is None
        self.min_scores: list[float] = []
        if needs.score_threshold is not None:
            self.min_scores.append(round_up(needs.score_threshold, dtype))
        if self._counts_ranked:
            self.min_scores.append(torch.finfo(dtype).min)

    def copies_pay(self, scores: Tensor) -> bool:
        """Return True if scores are copied to overwrite excluded items."""
        return scores.device.type == "cpu" and self.kernels == "eager"

    def missing(self, target_scores: Tensor, rows: slice = ALL_ROWS) -> Tensor:
        """Return which targets are not candidates, bool [n, T]; `target_scores` [n, T] are their scores."""
        may_rank = self.targets.may_rank if rows is ALL_ROWS else self.targets.may_rank[rows]
        return ~(may_rank & (target_scores > -torch.inf))

    def count(
        self,
        scores: Tensor | Products,
        target_scores: Tensor,
        missing: Tensor,
        rows: slice = ALL_ROWS,
        first_item: int = 0,
        owns_memory: bool = False,
    ) -> tuple[Counts, Best | None]:
        """Return the counts over a piece: scores of some rows and of the items from `first_item` on.

        Also return its best candidates, [n, list_depth], if lists are read.

        Args:
            scores: scores [n, C], or `Products`.
            target_scores: scores of the targets, [n, T], over all items.
            missing: which targets are not candidates, bool [n, T].
            rows: rows of the piece.
            first_item: item of the first column.
            owns_memory: True = the scores may be overwritten.
        """
        excluded, k = self.targets.excluded, self.needs.list_depth
        columns = None if excluded is None else excluded.among(rows, first_item, scores.shape[1])
        overwritten = removed = None
        masks: list[Tensor] = []
        if columns is not None and owns_memory:
            assert isinstance(scores, Tensor)
            if self.kernels == "triton":  # which reads masks as it counts
                columns, masks = columns._replace(masks=[]), columns.masks
            overwritten = columns.overwrite(scores)
        elif columns is not None:
            masks, removed = columns.masks, columns.scores(partial(kernels.look_up, scores))
        thresholds = target_scores.masked_fill(missing, torch.nan).to(scores.dtype)
        question = Question(
            thresholds=thresholds,
            depth=self.needs.depth,
            min_scores=self.min_scores,
            masks=masks,
            removed=removed,
            nan_is_rejected=self.checks.enabled,
        )
        if self.kernels == "eager" and isinstance(scores, Tensor):  # the path of most updates
            counts = eager.count(scores, question)
        else:
            counts = kernels.count(scores, question, self.kernels)
        highest = counts.highest if overwritten is None else torch.maximum(counts.highest, overwritten)
        top = None
        if k:
            assert isinstance(scores, Tensor)  # products are never listed
            leaving = None if columns is None or owns_memory else columns.ids
            top = self.with_kept(kernels.best_items(scores, k, masks, leaving), target_scores, missing, rows)
        return counts._replace(highest=highest), top

    def with_kept(self, best: Best, target_scores: Tensor, missing: Tensor, rows: slice = ALL_ROWS) -> Best:
        """Return the best candidates of some rows, with relevant items that stay although they are excluded."""
        if self.targets.kept is None:
            return best
        kept = self.targets.kept[rows] & ~missing
        kept_scores = target_scores.where(kept, -torch.inf).to(best[0].dtype)
        return kernels.merged([best, (kept_scores, self.targets.ids[rows].where(kept, -1))], best[0].shape[1])

    def finish(
        self,
        target_scores: Tensor,
        missing: Tensor,
        counts: Counts,
        top: Best | None,
        check_scores: bool = True,
    ) -> TargetCounts:
        """Return the counts over all items; `target_scores` are [B, T], `missing` targets are not candidates.

        `check_scores` rejects rows whose highest score is NaN or infinite.
        """
        targets, highest = self.targets, counts.highest
        better, equal, kept = counts.better, counts.equal, targets.kept
        at_least = [] if counts.at_least is None else list(counts.at_least.unbind(1))
        if check_scores and self.checks.enabled:
            high = ~(highest < torch.inf)
            self.checks.reject("scores", high, lambda row: f"the highest of row {row} is {highest[row]}")
        if kept is not None:  # they are not in the counts
            kept_scores = sort_rows(torch.where(kept, target_scores, -torch.inf))
            above = count_above(kept_scores, target_scores)
            better, equal = better + above, equal + (count_at_least(kept_scores, target_scores) - above)
            at_least = [n + (kept_scores >= limit).sum(1) for n, limit in zip(at_least, self.min_scores, strict=True)]
        lists = None
        if top is not None:
            relevant = torch.where(targets.relevant, targets.ids, -1)
            lists = ListedItems(top[1], relevant, num_items=targets.num_items, scores=top[0])
        return TargetCounts(
            relevant=targets.relevant,
            penalised=None if targets.gains is None else targets.penalised,
            gains=targets.gains,
            missing=missing,
            better=better,
            group_size=equal,
            num_ranks=self.num_ranks,
            num_ranked=at_least.pop() if self._counts_ranked else None,
            num_recommended=at_least.pop() if at_least else None,
            lists=lists,
            kernels=self.kernels,
        )


def _cat(pieces: tuple[Tensor | None, ...]) -> Tensor | None:
    return None if pieces[0] is None else torch.cat(pieces)  # type: ignore[arg-type]


def _row_chunks(scores: Tensor | ScoreRows | Products, rows_at_once: int) -> Iterable[Tensor | Products]:
    """Return the scores of some rows at a time: those of `ScoreRows`, or `rows_at_once` of a tensor or `Products`."""
    if isinstance(scores, ScoreRows):
        return scores.chunks()
    if isinstance(scores, Products):
        return (scores._replace(users=users) for users in torch.split(scores.users, rows_at_once))
    return torch.split(scores, rows_at_once)


def _copies(scores: Tensor, excluded: ExcludedItems) -> Iterator[Tensor]:
    """Yield copies of some rows, which may be overwritten."""
    for rows in torch.split(scores, min(excluded.rows_at_once, max(1, COPIED_SCORES // scores.shape[1]))):
        yield torch.empty(rows.shape, dtype=working_dtype(scores), device=scores.device).copy_(rows)


def round_up(threshold: float, dtype: torch.dtype) -> float:
    """Return the smallest number of `dtype` >= `threshold`: scores of `dtype` reach both, or neither."""
    rounded = torch.tensor(threshold, dtype=dtype, device="cpu")
    if float(rounded) < threshold:
        rounded = torch.nextafter(rounded, torch.tensor(torch.inf, dtype=dtype, device="cpu"))
    return float(rounded)
