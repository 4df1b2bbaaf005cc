"""`ItemShard` and `PiecewiseRows`: exact ranks of scores whose columns come in pieces, here or on other processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from torchrecmetrics import kernels
from torchrecmetrics.arrays import count_above, count_at_least, sort_rows
from torchrecmetrics.checks import Checks, check_k, check_scores, describe
from torchrecmetrics.distributed import fingerprint, same_on_all_ranks
from torchrecmetrics.kernels import Question
from torchrecmetrics.kernels.thresholds import working
from torchrecmetrics.ranking import Ranking
from torchrecmetrics.ranking.data import Lists
from torchrecmetrics.ranking.rules import Needs, Rules
from torchrecmetrics.ranking.scores import round_up
from torchrecmetrics.ranking.targets import Targets, selected
from torchrecmetrics.ranking.ties import TargetCounts

ALL_ROWS = slice(None)


class ItemShard:
    """The items of this process: columns `offset` to `offset + I_local - 1` of a catalogue that processes share.

    `update(local_scores, target, shard=)` then takes scores [B, I_local] of the same B rows on every process. Counts
    add up, so processes exchange only the targets' own scores and integers: at most 20 bytes per row, target and
    process. Metrics that read which items are listed add 12 bytes per row and listed item. The state is the same on
    every process, and `compute` does not sum it.

    On the CPU the processes compare their arguments at each batch, elsewhere at the first batch alone, since the
    comparison waits for the device.

    Args:
        offset: id of the first item of this process.
        num_items: number of items of the whole catalogue.
        process_group: the processes that share the catalogue; None = all.

    Raises:
        ValueError: for invalid numbers; at `update`, on all processes, if shards overlap or leave items out, or if
            rows, targets, history, depths or dtypes differ between processes.

    Examples:
        >>> import torchrecmetrics as trm
        >>> trm.ItemShard(offset=500, num_items=1000)
        ItemShard(from item 500 of 1,000)
    """

    def __init__(self, offset: int, num_items: int, process_group: Any = None) -> None:
        self.offset: int = check_k(offset, "offset", 0)
        self.num_items: int = check_k(num_items, "num_items")
        self.process_group: Any = process_group
        self._trusted = False

    def __repr__(self) -> str:
        return f"ItemShard(from item {self.offset} of {self.num_items:,})"

    @contextmanager
    def agreement(self, device: torch.device, facts: dict[str, Any]) -> Iterator[None]:
        """Raise on all processes if one raises inside the block, or if the `facts` that the block fills in differ."""
        if not torch.distributed.is_available() or not torch.distributed.is_initialized():
            raise ValueError("shard= is for several processes: initialise torch.distributed first")
        if self._trusted:
            yield
            return
        with same_on_all_ranks(facts, self.process_group, own="items"):
            yield
        ends = sorted([first, last] for first, last in facts["items"] if first < last)
        starts, stops = [start for start, _ in ends], [stop for _, stop in ends]
        if starts != [0, *stops[:-1]] or stops[-1:] != [self.num_items]:
            raise ValueError(f"shards must hold each of {self.num_items} items once, got the ranges {ends}")
        self._trusted = device.type != "cpu"

    @contextmanager
    def update_together(self, weights: Any, groups: Any) -> Iterator[None]:
        """Raise on all processes if an update raises inside the block, or if weights or groups differ."""
        if self._trusted or not torch.distributed.is_available() or not torch.distributed.is_initialized():
            yield
            return
        facts: dict[str, Any] = {}
        with same_on_all_ranks(facts, self.process_group):
            yield
            facts |= {"weights": fingerprint(weights), "groups": fingerprint(groups)}


def together(shard: Any, weights: Any, groups: Any) -> AbstractContextManager[None]:
    """Return `shard.update_together(weights, groups)`, or a context that does nothing if there is no shard."""
    if shard is None:
        return nullcontext()
    if not isinstance(shard, ItemShard):
        raise TypeError(f"shard must be an ItemShard, got {describe(shard)}")
    return shard.update_together(weights, groups)


class PiecewiseRows:
    """Ranker of rows whose scores come in pieces of columns: first the scores of targets, then counts, which add up.

    A piece is scores [n, C] of the items `first` to `first + C - 1`, for the rows `rows`.

    Args:
        target: as in `update`.
        gains: as in `update`.
        exclude: ids, or bool [items].
        shape: rows, and items of all pieces.
        dtype: the scores' dtype.
        device: the scores' device.
        needs: data that the metrics read.
        rules: how rankings are made.
    """

    def __init__(
        self,
        target: Any,
        gains: Any,
        exclude: Any,
        shape: tuple[int, int],
        dtype: torch.dtype,
        device: torch.device,
        needs: Needs,
        rules: Rules,
    ) -> None:
        if needs.num_items not in (None, shape[1]):
            raise ValueError(f"the catalogue has {needs.num_items} items, the scores have {shape[1]}")
        rules.check_items(shape[1])
        self.checks: Checks = Checks(rules.validate_args, device, shape[0])
        ids, gains = selected(target, gains, self.checks, rules.max_relevant)
        if not isinstance(ids, Tensor) or ids.dtype == torch.bool or ids.is_floating_point():
            raise TypeError(f"target beside a shard is item ids [B] or [B, T], got {describe(ids)}")
        for part in exclude if isinstance(exclude, tuple) else (exclude,):
            if isinstance(part, Tensor) and part.dtype == torch.bool and part.dim() == 2:
                accepted = f"item ids [B, H], or bool [{shape[1]}]"
                raise TypeError(f"exclude beside a shard is {accepted}, got {describe(part)}")
        self.asked, self.needs, self.rules, self.shape = needs, needs.within(ids, rules), rules, shape
        self.targets: Targets = Targets.read(ids, gains, exclude, shape, rules, self.checks)
        lowest, threshold = torch.finfo(dtype).min, self.needs.score_threshold
        self.min_scores: list[float] = [lowest] if threshold is None else [round_up(threshold, dtype), lowest]

    @property
    def num_counts(self) -> int:
        """Number of columns of the counts."""
        return 2 * self.targets.ids.shape[1] + len(self.min_scores) + 1

    def own_scores(self, scores: Tensor, first: int, rows: slice = ALL_ROWS) -> Tensor:
        """Return the scores of the targets in this piece, [n, T]; -inf for targets of other pieces."""
        return working(_look_up(scores, first, self.targets.ids[rows]))

    def candidate(self, own: Tensor) -> Tensor:
        """Return which targets are candidates, bool [B, T]; `own` are their scores over all pieces."""
        targets = self.targets
        may_rank = targets.listed if targets.outside is None else targets.listed & ~targets.outside
        return (may_rank if self._kept is None else may_rank | self._kept) & (own > -torch.inf)

    @property
    def _kept(self) -> Tensor | None:
        """Excluded targets that are still candidates, bool [B, T], counted in no piece; None where there are none."""
        return self.targets.overlapping if self.rules.take_overlap == "keep" else None

    def count(self, scores: Tensor, first: int, own: Tensor, rows: slice = ALL_ROWS) -> Tensor:
        """Return the counts of a piece, int32 [n, 2 T + minimum scores + 1]: better, equal, at least, bad row.

        `own` are the targets' scores over all pieces, [B, T].
        """
        width = scores.shape[1]
        thresholds = own.where(self.candidate(own), torch.nan)[rows]
        if not width:
            return torch.zeros(len(thresholds), self.num_counts, dtype=torch.int32, device=scores.device)
        excluded = self.targets.excluded
        removed = excluded.scores_of(lambda ids: _look_up(scores, first, ids), rows)
        if removed is not None:
            removed = working(removed).nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        masks = [mask[first : first + width] for mask in excluded.masks]
        question = Question(thresholds.to(scores.dtype), self.needs.depth, self.min_scores, masks, removed)
        counts = kernels.count(scores, question, kernels.choose(self.rules.kernels, scores.device))
        assert counts.at_least is not None
        bad = ~(counts.highest < torch.inf)
        return torch.cat([counts.better, counts.equal, counts.at_least, bad[:, None].long()], 1).int()

    def best(self, scores: Tensor, first: int, rows: slice = ALL_ROWS) -> tuple[Tensor, Tensor]:
        """Return scores and ids of a piece's best candidates, [n, list_depth]; -inf and -1 if it has fewer."""
        k = self.needs.list_depth
        top = torch.full((len(scores), k), -torch.inf, dtype=scores.dtype, device=scores.device)
        ids = torch.full((len(scores), k), -1, device=scores.device)
        width, excluded = scores.shape[1], self.targets.excluded
        if width and k:
            leaving = excluded.ids(rows)
            if leaving is not None:
                leaving = (leaving - first).where((leaving >= first) & (leaving < first + width), -1)
            found = kernels.topk_ids(scores, k, [mask[first : first + width] for mask in excluded.masks], leaving)
            top[:, : found.shape[1]] = scores.gather(1, found.clamp(min=0)).where(found >= 0, -torch.inf)
            ids[:, : found.shape[1]] = (found + first).where(found >= 0, -1)
        return top, ids

    def ranking(self, own: Tensor, counted: Tensor, best: tuple[Tensor, Tensor]) -> Ranking:
        """Return the ranking over all pieces from the scores of targets, the sum of all counts and the best items."""
        targets, kept, checks = self.targets, self._kept, self.checks
        slots, candidate = own.shape[1], self.candidate(own)
        better, equal, at_least, bad = torch.split(counted.long(), [slots, slots, len(self.min_scores), 1], 1)
        if checks.enabled:
            checks.reject("scores", bad > 0, lambda row: f"row {row}")
        if kept is not None:
            theirs = sort_rows(own.where(kept, -torch.inf))
            above = count_above(theirs, own)
            better, equal = better + above, equal + count_at_least(theirs, own) - above
            reached = [(theirs >= min_score).sum(1) for min_score in self.min_scores]
            at_least = at_least + torch.stack(reached, 1)
        relevant, lists = checks.without_rejected(targets.relevant), None
        if self.needs.list_depth:
            if kept is not None:
                theirs = own.where(kept & candidate, -torch.inf).to(best[0].dtype)
                best = merged([best, (theirs, targets.ids.where(theirs > -torch.inf, -1))], best[0].shape[1])
            lists = Lists(best[1], targets.ids.where(relevant, -1), num_items=self.shape[1])
        counts = TargetCounts(
            relevant=relevant,
            unwanted=None if targets.unwanted is None else checks.without_rejected(targets.unwanted),
            gains=targets.gains,
            candidate=candidate,
            better=better,
            group_size=equal,
            num_ranked=at_least[:, -1],
            num_recommended=at_least[:, 0] if len(self.min_scores) > 1 else None,
            kernels=kernels.choose(self.rules.kernels, own.device),
            lists=lists,
        )
        return Ranking.from_counts(
            counts, self.rules.place_ties, self.rules.shaping(), self.asked, self.needs.depth, checks.violations
        )

    def facts(self) -> dict[str, Any]:
        """Return the values, by name, that must be the same on all processes; waits for the device."""
        excluded = self.targets.excluded.ids(ALL_ROWS)
        return {
            "num_items": self.shape[1],
            "rows": self.shape[0],
            "depth of metrics": self.needs.depth,
            "listed places": self.needs.list_depth,
            "score_threshold": self.needs.score_threshold,
            "options": self.rules,
            "targets": fingerprint(self.targets.ids.where(self.targets.listed, -1)),
            "gains": fingerprint(self.targets.gains),
            "history": (fingerprint(excluded), *map(fingerprint, self.targets.excluded.masks)),
        }


def rank_shard(
    scores: Tensor, target: Any, gains: Any, exclude: Any, shard: ItemShard, needs: Needs, rules: Rules
) -> Ranking:
    """Rank the columns of all processes; every process returns the same ranking."""
    facts: dict[str, Any] = {}
    device = scores.device if isinstance(scores, Tensor) else torch.device("cpu")
    with shard.agreement(device, facts):
        if not (isinstance(scores, Tensor) and scores.dim() == 2 and scores.shape[1] == 0):
            check_scores(scores, dims=2)
        shape = scores.shape[0], shard.num_items
        rows = PiecewiseRows(target, gains, exclude, shape, scores.dtype, device, needs, rules)
        if not shard._trusted:
            facts |= rows.facts() | {"dtype of scores": scores.dtype}
            facts["items"] = [shard.offset, shard.offset + scores.shape[1]]
    own = over_processes(rows.own_scores(scores, shard.offset), torch.distributed.ReduceOp.MAX, shard.process_group)
    counted = over_processes(rows.count(scores, shard.offset, own), torch.distributed.ReduceOp.SUM, shard.process_group)
    best = rows.best(scores, shard.offset)
    if needs.list_depth:
        best = best_of_processes(best, shard.process_group)
    return rows.ranking(own, counted, best)


def over_processes(numbers: Tensor, operation: Any, group: Any) -> Tensor:
    """Return the sum or maximum of `numbers` over processes, which overwrites `numbers`."""
    torch.distributed.all_reduce(numbers, op=operation, group=group)
    return numbers


def best_of_processes(best: tuple[Tensor, Tensor], group: Any) -> tuple[Tensor, Tensor]:
    """Return scores and ids of the best items over all processes, [B, k]; `best` is that of this process."""
    parts = []
    for column in best:
        told = [torch.empty_like(column) for _ in range(torch.distributed.get_world_size(group))]
        torch.distributed.all_gather(told, column.contiguous(), group=group)
        parts.append(told)
    return merged(list(zip(*parts, strict=True)), best[0].shape[1])


def merged(parts: list[tuple[Tensor, Tensor]], k: int) -> tuple[Tensor, Tensor]:
    """Return scores and ids of the `k` best items of several lists, items of equal scores by ascending id."""
    scores, ids = (torch.cat(columns, 1) for columns in zip(*parts, strict=True))
    ids, by_id = ids.sort(dim=1, stable=True)
    scores, order = scores.gather(1, by_id).sort(dim=1, descending=True, stable=True)
    return scores[:, :k], ids.gather(1, order)[:, :k]


def _look_up(scores: Tensor, first: int, items: Tensor) -> Tensor:
    """Return the scores of `items`, [n, m], in the piece that begins with item `first`; -inf for other pieces."""
    if not scores.shape[1]:
        return torch.full(items.shape, -torch.inf, dtype=scores.dtype, device=scores.device)
    column = items - first
    inside = (column >= 0) & (column < scores.shape[1])
    return scores.gather(1, column.where(inside, 0)).where(inside, -torch.inf)
