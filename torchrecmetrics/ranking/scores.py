"""`Ranking.from_scores` and `get_topk_ranks`: count, for every target, the items that score higher."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from torchrecmetrics import kernels
from torchrecmetrics.arrays import count_above, count_at_least, sort_rows
from torchrecmetrics.checks import (
    Checks,
    Validation,
    check_integer_target,
    check_k,
    check_score_threshold,
    check_scores,
)
from torchrecmetrics.kernels import KernelChoice, Products, Question
from torchrecmetrics.kernels.thresholds import working_dtype
from torchrecmetrics.ranking.data import Lists
from torchrecmetrics.ranking.exclusion import Exclude
from torchrecmetrics.ranking.rules import Needs, Overlap, Rules, Ties
from torchrecmetrics.ranking.targets import Gains, Target, Targets, selected
from torchrecmetrics.ranking.ties import FromCounts, TargetCounts, sort_ranks

if TYPE_CHECKING:
    from typing_extensions import Self

#: Rank that `get_topk_ranks` writes in an invalid row, on devices that cannot raise without a host sync.
INVALID_RANK = torch.iinfo(torch.int64).min

COPIED_SCORES = 2**20
"""Number of scores that are copied at once on the CPU to overwrite excluded items; such a copy fits the cache."""


class ScoreRows(NamedTuple):
    """Scores [B, I] made a few rows at a time, in memory that may be overwritten, which is the cheapest exclusion."""

    shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device
    parts: Callable[[], Iterable[Tensor]]  # yields consecutive rows; each part is valid until the next


class FromScores(FromCounts):
    """Base of `Ranking` with its constructor from scores."""

    @classmethod
    @torch.no_grad()
    def from_scores(
        cls,
        scores: Tensor,
        target: Target,
        *,
        gains: Gains | None = None,
        exclude: Exclude | None = None,
        depth: int | None = None,
        items: bool = False,
        ties: Ties = "realistic",
        padding_idx: int | None = None,
        overlap: Overlap = "error",
        score_threshold: float | None = None,
        max_relevant: int | None = None,
        validate_args: Validation = True,
        kernels: KernelChoice = "auto",
    ) -> Self:
        """Rank every item by its score and return the ranks of the relevant items.

        Args:
            scores: float64, float32, float16 or bfloat16 [B, I], higher is better. `-inf` = not a candidate; NaN and
                `+inf` are errors (unchecked, NaN is worse than every number and never a hit). Never modified.
            target: relevant items. Integers [B] or [B, T] are item ids, negative = padding; bool [B, I] is dense;
                floats [B, I] are graded: > 0 relevant, the value is the gain. Dense targets cost one host sync. Ids may
                be jagged: `(values, offsets)`, a `Jagged`, or a nested tensor of the jagged layout.
            gains: number [B, T] beside id targets: > 0 relevant, 0 not relevant, < 0 a penalty that only NDCG reads.
                Jagged beside a jagged target.
            exclude: items that leave the candidates (history): ids [B] or [B, H], also jagged, a result of
                `prefix_history`, bool [B, I], bool [I] for every row, or a tuple of these. Repeated ids count
                once. Of a tuple of two columns of integers, a second one of B + 1 entries is the offsets of the first.
            depth: number of ranks that will be read; relevant items beyond get rank `inf`. None = the whole list.
            items: also keep the ids of the top `depth` items, as `Ranking.items`.
            ties: rank of an item among equal scores: "realistic" (the expected rank), "optimistic" (the first) or
                "pessimistic" (the last).
            padding_idx: this id is padding in target and exclude, and its column is never a candidate.
            overlap: a relevant item that is also excluded is an "error", stays a candidate ("keep"), or is a "miss".
            score_threshold: count the candidates with score >= this in `num_recommended`.
            max_relevant: width for dense and jagged targets, which then need no host sync; a row with more entries
                (other than 0) is an error.
            validate_args: True = check values at once on the CPU and count violations elsewhere; "deferred" = count
                everywhere; False = no value checks.
            kernels: "eager" (PyTorch, any device), "triton" (CUDA) or "auto" (Triton's on GPUs where a run is on
                record, else eager). `Ranking.kernels` names the kernels that ran.

        Raises:
            TypeError: for a dtype that is not accepted.
            ValueError: for shapes or devices that do not fit, kernels that cannot run there and, on the CPU, for bad
                values.
        """
        rules = Rules(ties, padding_idx, overlap, max_relevant, validate_args, kernels)
        depth = None if depth is None else check_k(depth, "depth")
        if items and depth is None:
            raise ValueError("items=True names the items in the first places: say how many, depth=")
        threshold = check_score_threshold(score_threshold)
        list_depth = (depth or 0) if items else 0
        needs = Needs(depth, num_ranked=True, score_threshold=threshold, list_depth=list_depth)
        return cls.rank(scores, target, gains, exclude, needs, rules)

    @classmethod
    def rank(
        cls,
        scores: Tensor | ScoreRows | Products,
        target: Target,
        gains: Gains | None,
        exclude: Exclude | None,
        needs: Needs,
        rules: Rules,
    ) -> Self:
        """Rank every item as deep as `needs` says; within the package scores may also be `ScoreRows` or `Products`."""
        shape, device = check_shape(scores, rules)
        if needs.num_items not in (None, shape[1]):
            raise ValueError(f"the catalogue has {needs.num_items} items, the scores have {shape[1]}")
        checks = Checks(rules.validate_args, device, shape[0])
        target, gains = selected(target, gains, checks, rules.max_relevant)
        asked, needs = needs, needs.within(target, rules)
        targets = Targets.read(target, gains, exclude, shape, rules, checks)
        counts = count_targets(scores, targets, needs, rules, checks)
        return cls.from_counts(counts, rules.place_ties, rules.shaping(), asked, needs.depth, checks.violations)


@torch.no_grad()
def get_topk_ranks(
    scores: Tensor,
    target: Target,
    k: int,
    *,
    exclude: Exclude | None = None,
    ties: Ties = "realistic",
    padding_idx: int | None = None,
    overlap: Overlap = "error",
    validate_args: Validation = True,
    kernels: KernelChoice = "auto",
) -> Tensor:
    """Return the rank of each target in its row's ranking, down to rank `k`.

    Args:
        scores: float [B, I], higher is better (see `Ranking.from_scores`).
        target: integer ids [B] or [B, T], negative = padding; or jagged, as in `Ranking.from_scores`.
        k: number of top ranks, >= 1.
        exclude: as in `Ranking.from_scores`.
        ties: as in `Ranking.from_scores`; realistic ranks are rounded up, which changes no hit at any cut-off.
        padding_idx: as in `Ranking.from_scores`.
        overlap: as in `Ranking.from_scores`.
        validate_args: as in `Ranking.from_scores`.
        kernels: as in `Ranking.from_scores`.

    Returns:
        Ranks int64 [B, T] beside `target` ([B, 1] for [B]); 1 = first, `k + 1` = not in the top k, 0 = padding. Off the
        CPU an invalid row holds the smallest int64, which `metric.update` counts. The tensor carries `.depth = k`.

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
    k = check_k(k)
    rules = Rules(ties, padding_idx, overlap, None, validate_args, kernels)
    shape, device = check_shape(scores, rules)
    checks = Checks(validate_args, device, shape[0])
    target, gains = selected(target, None, checks)
    if gains is not None:
        raise TypeError("get_topk_ranks knows no gains, and target holds values: pass target.items")
    check_integer_target(target, "get_topk_ranks")
    targets = Targets.read(target, None, exclude, shape, rules, checks)
    counts = count_targets(scores, targets, Needs(k), rules, checks)
    found = sort_ranks(counts, counts.relevant, ties, targets.ids, k)
    rounded = found.ranks.ceil().nan_to_num(posinf=k + 1).to(torch.int64)
    ranks = torch.empty_like(rounded).scatter_(1, found.order, rounded)
    ranks = torch.where(targets.listed, ranks, 0)
    if checks.rejected is not None:
        ranks = ranks.where(~checks.rejected[:, None], INVALID_RANK)
    if target.dim() == 2:
        ranks = ranks[:, : target.shape[1]]
    ranks.depth = k  # type: ignore[attr-defined]
    return ranks


def check_shape(scores: Tensor | ScoreRows | Products, rules: Rules) -> tuple[tuple[int, int], torch.device]:
    """Return (rows, items) and the device; refuse anything but scores, and a padding_idx beyond the last item."""
    if not isinstance(scores, (ScoreRows, Products)):
        check_scores(scores, dims=2)
    rows, items = scores.shape
    rules.check_items(items)
    return (rows, items), scores.device


def count_targets(
    scores: Tensor | ScoreRows | Products, targets: Targets, needs: Needs, rules: Rules, checks: Checks
) -> TargetCounts:
    """Return the numbers of candidates that score higher than, and the same as, each target."""
    chosen = kernels.choose(rules.kernels, checks.device)
    may_rank = targets.listed if targets.outside is None else targets.listed & ~targets.outside
    kept = targets.overlapping if rules.take_overlap == "keep" else None  # excluded items that are still candidates
    if kept is not None:
        may_rank = may_rank | kept
    counts_ranked = needs.num_ranked or needs.depth is None  # costs nothing where the whole list is ranked
    min_scores = [] if needs.score_threshold is None else [round_up(needs.score_threshold, scores.dtype)]
    if counts_ranked:
        min_scores.append(torch.finfo(scores.dtype).min)
    if (
        chosen == "eager"
        and isinstance(scores, Tensor)
        and scores.device.type == "cpu"
        and not targets.excluded.is_empty
    ):
        # copies that fit the cache: no excluded item is read again to be taken off the counts
        shape = scores.shape[0], scores.shape[1]
        scores = ScoreRows(
            shape, working_dtype(scores), scores.device, partial(_copies, scores, targets.excluded.rows_at_once)
        )
    asked = _Asked(needs, min_scores, checks.enabled, chosen, isinstance(scores, ScoreRows))
    found, start = [], 0
    for part in _parts(scores, targets.excluded.rows_at_once):
        rows = slice(start, start + part.shape[0])
        start = rows.stop
        found.append(_count_part(part, rows, targets, may_rank, kept, asked))
    counted = found[0] if len(found) == 1 else _Counted(*map(_cat, zip(*found, strict=True)))  # type: ignore[arg-type]
    if checks.enabled:
        highest = counted.highest
        checks.reject("scores", ~(highest < torch.inf), lambda row: f"the highest of row {row} is {highest[row]}")
    own, better, equal = counted.own, counted.better, counted.equal
    at_least = [] if counted.at_least is None else list(counted.at_least.unbind(1))
    if kept is not None:  # `kept` items were not counted: add them
        theirs = sort_rows(torch.where(kept, own, -torch.inf))
        above = count_above(theirs, own)
        better, equal = better + above, equal + count_at_least(theirs, own) - above
        at_least = [n + (theirs >= min_score).sum(1) for n, min_score in zip(at_least, min_scores, strict=True)]
    relevant = checks.without_rejected(targets.relevant)
    lists = None
    if counted.topk_ids is not None:
        lists = Lists(counted.topk_ids, torch.where(relevant, targets.ids, -1), num_items=scores.shape[1])
    return TargetCounts(
        relevant=relevant,
        unwanted=None if (unwanted := targets.unwanted) is None else checks.without_rejected(unwanted),
        gains=targets.gains,
        candidate=counted.candidate,
        better=better,
        group_size=equal,
        num_ranked=at_least.pop() if counts_ranked else None,
        num_recommended=at_least.pop() if at_least else None,
        kernels=chosen,
        lists=lists,
    )


class _Asked(NamedTuple):
    """Settings of a count that are the same for every part of the rows."""

    needs: Needs
    min_scores: list[float]
    checks_scores: bool
    kernels: kernels.Kernels
    owns_memory: bool  # excluded items may be overwritten


class _Counted(NamedTuple):
    """The counts of one part of the rows."""

    own: Tensor  # [n, T], the targets' scores
    candidate: Tensor  # bool [n, T]
    better: Tensor
    equal: Tensor
    at_least: Tensor | None
    highest: Tensor
    topk_ids: Tensor | None


def _count_part(
    part: Tensor | Products, rows: slice, targets: Targets, may_rank: Tensor, kept: Tensor | None, asked: _Asked
) -> _Counted:
    """Return the counts of one part of the rows, over its scores."""
    excluded, ids, needs = targets.excluded, targets.ids[rows], asked.needs
    own = kernels.look_up(part, ids)
    candidate = may_rank[rows] & (own > -torch.inf)
    masks = [mask[rows] if mask.dim() == 2 else mask for mask in excluded.masks]
    overwritten = removed = None
    if asked.owns_memory:
        assert isinstance(part, Tensor)
        written, masks = (masks, []) if asked.kernels == "eager" else ([], masks)  # Triton reads masks as it counts
        overwritten = excluded.overwrite(part, rows, written)
    else:
        removed = excluded.scores_of(partial(kernels.look_up, part), rows)
    thresholds = torch.where(candidate, own, torch.nan)
    question = Question(thresholds, needs.depth, asked.min_scores, masks, removed, asked.checks_scores)
    counts = kernels.count(part, question, asked.kernels)
    highest = counts.highest if overwritten is None else torch.maximum(counts.highest, overwritten)
    first = None
    if needs.list_depth:
        assert isinstance(part, Tensor)  # lists are never read of products
        leaving = excluded.ids(rows) if overwritten is None else None
        first = kernels.topk_ids(part, needs.list_depth, masks, leaving)
        if kept is not None:
            first = _with_kept(first, part, ids, torch.where(kept[rows], own, -torch.inf))
    return _Counted(own, candidate, counts.better, counts.equal, counts.at_least, highest, first)


def _cat(parts: tuple[Tensor | None, ...]) -> Tensor | None:
    return None if parts[0] is None else torch.cat(parts)  # type: ignore[arg-type]


def _with_kept(first: Tensor, scores: Tensor, ids: Tensor, own: Tensor) -> Tensor:
    """Return the ids of the k best of `first` [B, k] and of excluded items that are still candidates, best first."""
    values = torch.where(first >= 0, scores.gather(1, first.clamp(min=0)), -torch.inf)
    ids, by_id = torch.cat([first, torch.where(own > -torch.inf, ids, -1)], 1).sort(dim=1, stable=True)
    best = torch.cat([values, own], 1).gather(1, by_id).sort(dim=1, descending=True, stable=True).indices
    return ids.gather(1, best[:, : first.shape[1]])


def _parts(scores: Tensor | ScoreRows | Products, rows_at_once: int) -> Iterable[Tensor | Products]:
    """Return the parts of scores: those of `ScoreRows`, or `rows_at_once` rows of a tensor or `Products`."""
    if isinstance(scores, ScoreRows):
        return scores.parts()
    if isinstance(scores, Products):
        return (scores._replace(users=users) for users in torch.split(scores.users, rows_at_once))
    return torch.split(scores, rows_at_once)


def _copies(scores: Tensor, rows_at_once: int) -> Iterator[Tensor]:
    """Yield copies of at most `rows_at_once` rows, which may be overwritten."""
    for part in torch.split(scores, min(rows_at_once, max(1, COPIED_SCORES // scores.shape[1]))):
        yield torch.empty(part.shape, dtype=working_dtype(scores), device=scores.device).copy_(part)


def round_up(threshold: float, dtype: torch.dtype) -> float:
    """Return the smallest number of `dtype` >= `threshold`: scores of `dtype` reach both, or neither."""
    near = torch.tensor(threshold, dtype=dtype, device="cpu")
    if float(near) < threshold:
        near = torch.nextafter(near, torch.tensor(torch.inf, dtype=dtype, device="cpu"))
    return float(near)
