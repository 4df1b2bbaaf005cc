"""`ItemShard`: scores of which every process holds the columns of some items, ranked exactly by two all-reduces."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchrecmetrics import kernels
from torchrecmetrics.arrays import count_above, count_at_least, sort_rows
from torchrecmetrics.checks import Checks, check_k, check_scores, describe
from torchrecmetrics.kernels import Question
from torchrecmetrics.kernels.thresholds import working
from torchrecmetrics.ranking import Ranking
from torchrecmetrics.ranking.rules import Needs, Rules
from torchrecmetrics.ranking.targets import Targets, selected
from torchrecmetrics.ranking.ties import TargetCounts


class ItemShard:
    """The items of this process: columns `offset` to `offset + I_local - 1` of a catalogue that processes share.

    `update(local_scores, target, shard=)` then takes scores [B, I_local] of the same B rows on every process. Counts
    add up, so nothing but the targets' own scores and integers travels: at most 20 bytes per row, target and process.
    The state is the same on every process, and `compute` does not sum it.

    Args:
        offset: the first item of this process.
        num_items: items of the whole catalogue.
        process_group: the processes that share it; None = all.

    Raises:
        ValueError: for numbers that are none, and at the first `update` on all processes for shards that overlap or
            leave items out, and other numbers of rows, targets, depths or dtypes than on the other processes.

    Examples:
        >>> import torchrecmetrics as trm
        >>> trm.ItemShard(offset=500, num_items=1000)
        ItemShard(from item 500 of 1,000)
    """

    def __init__(self, offset: int, num_items: int, process_group: Any = None) -> None:
        self.offset: int = check_k(offset, "offset", 0)
        self.num_items: int = check_k(num_items, "num_items")
        self.process_group: Any = process_group
        self._agreed = False

    def __repr__(self) -> str:
        return f"ItemShard(from item {self.offset} of {self.num_items:,})"

    def agree(self, scores: Tensor, targets: int, depth: int | None) -> None:
        """Compare with the other processes, once; an error is raised by all of them."""
        if self._agreed:
            return
        dtype = (torch.float64, torch.float32, torch.float16, torch.bfloat16).index(scores.dtype)
        mine = [
            self.offset,
            scores.shape[1],
            self.num_items,
            len(scores),
            targets,
            -1 if depth is None else depth,
            dtype,
        ]
        told = [torch.empty(len(mine), dtype=torch.int64, device=scores.device) for _ in range(self.world_size)]
        torch.distributed.all_gather(told, torch.tensor(mine, device=scores.device), group=self.process_group)
        rows = [part.tolist() for part in told]
        names = ("num_items", "rows", "target width", "depth of metrics", "dtype of scores")
        for name, column in zip(names, list(zip(*rows, strict=True))[2:], strict=True):
            if len(set(column)) > 1:
                raise ValueError(f"processes that share items differ in {name}: {list(column)}, in order of rank")
        ends = sorted((offset, offset + size) for offset, size, *_ in rows if size)
        starts, stops = [start for start, _ in ends], [stop for _, stop in ends]
        if starts != [0, *stops[:-1]] or stops[-1:] != [self.num_items]:
            raise ValueError(
                f"shards must hold each of {self.num_items} items once, got the ranges {[list(end) for end in ends]}"
            )
        self._agreed = True

    @property
    def world_size(self) -> int:
        """How many processes share the items."""
        if not torch.distributed.is_available() or not torch.distributed.is_initialized():
            raise ValueError("shard= is for several processes: initialise torch.distributed first")
        return torch.distributed.get_world_size(self.process_group)


def rank_shard(
    scores: Tensor, target: Any, gains: Any, exclude: Any, shard: ItemShard, needs: Needs, rules: Rules
) -> Ranking:
    """Rank the columns of all processes; every process returns the same ranking."""
    if not isinstance(shard, ItemShard):
        raise TypeError(f"shard must be an ItemShard, got {describe(shard)}")
    if needs.list_depth or needs.history:
        raise ValueError("metrics that read which items are listed are not computed over shards of items")
    if not (isinstance(scores, Tensor) and scores.dim() == 2 and scores.shape[1] == 0):
        check_scores(scores, dims=2)
    rows, width = scores.shape
    checks = Checks(rules.validate_args, scores.device, rows)
    ids, gains = selected(target, gains, checks, rules.max_relevant)
    if not isinstance(ids, Tensor) or ids.dtype == torch.bool or ids.is_floating_point():
        raise TypeError(f"target beside a shard is item ids [B] or [B, T], got {describe(ids)}")
    asked, needs = needs, needs.within(ids, rules)
    targets = Targets.read(ids, gains, exclude, (rows, shard.num_items), rules, checks)
    if any(mask.dim() == 2 for mask in targets.excluded.masks):
        raise TypeError("exclude beside a shard is item ids, or bool [items] of the whole catalogue")
    shard.agree(scores, targets.ids.shape[1], needs.depth)

    def local(items: Tensor) -> Tensor:
        """Return the scores of items, [B, n]; -inf where another process has them."""
        column = items - shard.offset
        inside = (column >= 0) & (column < width)
        if not width:
            return torch.full(items.shape, -torch.inf, dtype=scores.dtype, device=scores.device)
        return scores.gather(1, column.where(inside, 0)).where(inside, -torch.inf)

    own = working(local(targets.ids))
    torch.distributed.all_reduce(own, op=torch.distributed.ReduceOp.MAX, group=shard.process_group)
    kept = targets.overlapping if rules.take_overlap == "keep" else None
    may_rank = targets.listed if targets.outside is None else targets.listed & ~targets.outside
    if kept is not None:
        may_rank = may_rank | kept
    candidate = may_rank & (own > -torch.inf)
    lowest = torch.finfo(scores.dtype).min
    min_scores = [lowest] if needs.score_threshold is None else [needs.score_threshold, lowest]
    counted = _count(scores, own.where(candidate, torch.nan), targets, shard, local, needs, min_scores, rules)
    torch.distributed.all_reduce(counted, group=shard.process_group)
    slots = own.shape[1]
    better, equal, at_least, bad = torch.split(counted.long(), [slots, slots, len(min_scores), 1], 1)
    if checks.enabled:
        checks.reject("scores", bad > 0, lambda row: f"row {row}, on one of the processes")
    if kept is not None:  # excluded items that compete all the same
        theirs = sort_rows(own.where(kept, -torch.inf))
        above = count_above(theirs, own)
        better, equal = better + above, equal + count_at_least(theirs, own) - above
        reached = [(theirs >= min_score).sum(1) for min_score in min_scores]
        at_least = at_least + torch.stack(reached, 1)
    counts = TargetCounts(
        relevant=checks.without_rejected(targets.relevant),
        unwanted=None if targets.unwanted is None else checks.without_rejected(targets.unwanted),
        gains=targets.gains,
        candidate=candidate,
        better=better,
        group_size=equal,
        num_ranked=at_least[:, -1],
        num_recommended=at_least[:, 0] if len(min_scores) > 1 else None,
        kernels="eager",
    )
    return Ranking.from_counts(counts, rules.place_ties, rules.shaping(), asked, needs.depth, checks.violations)


def _count(
    scores: Tensor,
    thresholds: Tensor,
    targets: Targets,
    shard: ItemShard,
    local: Any,
    needs: Needs,
    min_scores: list[float],
    rules: Rules,
) -> Tensor:
    """Return the counts of this process, int32 [B, 2 T + minimum scores + 1]: better, equal, at least, bad row."""
    rows, width = scores.shape
    if not width:
        return torch.zeros(rows, 2 * thresholds.shape[1] + len(min_scores) + 1, dtype=torch.int32, device=scores.device)
    excluded, masks, removed = targets.excluded.ids(slice(None)), targets.excluded.masks, None
    if excluded is not None and excluded.shape[1]:
        first = excluded >= 0
        first[:, 1:] &= excluded[:, 1:] != excluded[:, :-1]  # ascending
        for mask in masks:  # what it hides is taken off already
            first &= ~mask[excluded.clamp(min=0)]
        values = local(excluded.clamp(min=0)).where(first, -torch.inf)
        removed = sort_rows(values.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf))
    masks = [mask[shard.offset : shard.offset + width] for mask in masks]
    question = Question(thresholds.to(scores.dtype), needs.depth, min_scores, masks, removed)
    counts = kernels.count(scores, question, kernels.choose(rules.kernels, scores.device))
    assert counts.at_least is not None
    bad = ~(counts.highest < torch.inf)
    return torch.cat([counts.better, counts.equal, counts.at_least, bad[:, None].long()], 1).int()
