"""`ItemShard`: exact ranks of scores whose columns are spread over processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from torchrecmetrics import kernels
from torchrecmetrics.core.arrays import float_dtype, working
from torchrecmetrics.core.checks import Checks, check_device, check_ids, check_k, check_scores
from torchrecmetrics.core.distributed import agreement, checksum, fingerprint
from torchrecmetrics.core.options import Needs, Options
from torchrecmetrics.core.ranking import RankedRows, Ranking
from torchrecmetrics.inputs.batch_input import BatchInput, refuse_dense
from torchrecmetrics.inputs.exclusion import ALL_ROWS
from torchrecmetrics.inputs.from_counts import rank_counts
from torchrecmetrics.inputs.scores import TargetCounter, check_padding_item
from torchrecmetrics.inputs.targets import Targets
from torchrecmetrics.kernels import Counts


@dataclass(frozen=True, eq=False, repr=False)
class ItemShard(BatchInput):
    """Scores of one process's share of the items, for a catalogue that is split over processes.

    Every process scores the same B rows, each for its own items, `offset` to `offset + I_local - 1`, and calls
    `update`. Ranks are among the items of all processes, which exchange only the scores of the targets and how many
    items are better: at most 20 bytes per row, target and process. Metrics of lists add 12 bytes per row and listed
    item. Each row is counted by one of the processes, and `compute` adds up their sums.

    All processes must pass the same rows, targets and options; what is compared depends on the device. On the CPU all
    arguments are compared at each batch, elsewhere only at the first, since the comparison waits for the device.
    Targets, gains and `row_ids` are compared at each batch everywhere, and `compute` raises for a difference that
    cannot raise at once. Scores of different rows with the same targets give wrong values without an error, unless
    `row_ids` identify the rows. A process that has fewer batches makes the others wait until the timeout of the process
    group.

    Args:
        scores: float [B, I_local].
        target: item ids [B] or [B, T], the same on every process.
        offset: id of the first item of this process.
        num_items: number of items of the whole catalogue.
        gains: as in `Scores`.
        exclude: item ids, or bool [num_items].
        history: as in `Scores`.
        process_group: the processes that share the catalogue; None = all.
        row_ids: integers [B] that identify the rows, such as user ids; may be given to `update` instead.

    Raises:
        ValueError: for invalid numbers; when ranked, on all processes, if shards overlap or leave items out, or if
            rows, targets, history, depths or dtypes differ between processes.

    Examples:
        >>> # on each of two processes, which hold 500 of 1,000 items:
        >>> # shard = trm.ItemShard(scores, target, offset=500 * rank, num_items=1000)
        >>> # collection.update(shard)
    """

    scores: Tensor
    target: Any
    offset: int
    num_items: int
    gains: Any = None
    exclude: Any = None
    history: Any = None
    process_group: Any = None
    row_ids: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "offset", check_k(self.offset, "offset", 0))
        object.__setattr__(self, "num_items", check_k(self.num_items, "num_items"))

    @property
    def _device(self) -> torch.device:
        return self.scores.device if isinstance(self.scores, Tensor) else torch.device("cpu")

    @property
    def _is_compared(self) -> bool:
        """True if the processes have compared such shards before and comparing again would wait for the device."""
        return (id(self.process_group), self.offset, self.num_items, self._device) in _compared

    @contextmanager
    def scope(self, weights: Tensor | None, columns: Mapping[str, Tensor]) -> Iterator[None]:
        """Raise on all processes if one raises inside the block, or if weights or columns differ."""
        if self.row_ids is None and "row_ids" in columns:
            object.__setattr__(self, "row_ids", columns["row_ids"])
        if self._is_compared or not torch.distributed.is_available() or not torch.distributed.is_initialized():
            yield
            return
        facts: dict[str, Any] = {}
        with agreement(facts, self.process_group):
            yield
            facts["weights"] = fingerprint(weights)
            facts |= {name: fingerprint(column) for name, column in columns.items()}
        if self._device.type != "cpu":
            _compared.add((id(self.process_group), self.offset, self.num_items, self._device))

    @torch.no_grad()
    def rank(self, needs: Needs, options: Options) -> Ranking:
        """Rank the columns of all processes; every process returns the same ranking, and counts its share of rows."""
        scores, process_group = self.scores, self.process_group
        facts: dict[str, Any] = {}
        with self._agreement(facts):
            if not (isinstance(scores, Tensor) and scores.dim() == 2 and scores.shape[1] == 0):
                check_scores(scores, dims=2)
            shape = scores.shape[0], self.num_items
            counter = ShardCounter(
                target=self.target,
                gains=self.gains,
                exclude=self.exclude,
                shape=shape,
                dtype=scores.dtype,
                device=self._device,
                needs=needs,
                options=options,
            )
            history = self.read_history(needs, counter.checks)
            if self.row_ids is not None:
                _check_row_ids(self.row_ids, shape[0], self._device)
            compared = counter.compared() | {"row_ids": self.row_ids}
            if not self._is_compared:
                facts |= counter.facts() | {name: fingerprint(numbers) for name, numbers in compared.items()}
                facts |= {"dtype of scores": scores.dtype, "items": [self.offset, self.offset + scores.shape[1]]}
        checksums = [checksum(numbers) for numbers in compared.values() if numbers is not None]
        target_scores, differ = highest_over_processes(
            counter.target_scores(scores, self.offset), torch.stack(checksums).sum(), process_group
        )
        counter.checks.reject("shard_rows", differ.expand(shape[0]), lambda row: f"row {row}")
        counted = over_processes(counter.count(scores, self.offset, target_scores), ReduceOp.SUM, process_group)
        best = counter.best(scores, self.offset)
        if needs.list_depth:
            best = best_of_processes(best, process_group)
        world_size = torch.distributed.get_world_size(process_group)
        rows = torch.arange(shape[0], device=self._device)
        own_rows = rows % world_size == torch.distributed.get_rank(process_group)
        return counter.ranking(target_scores, counted, best, RankedRows(own=own_rows, num_holders=world_size), history)

    @contextmanager
    def _agreement(self, facts: dict[str, Any]) -> Iterator[None]:
        """Raise on all processes if one raises inside the block, or if the `facts` that the block fills in differ."""
        if not torch.distributed.is_available() or not torch.distributed.is_initialized():
            raise ValueError("ItemShard is for several processes: initialise torch.distributed first")
        if self._is_compared:
            yield
            return
        with agreement(facts, self.process_group, may_differ="items"):
            yield
        ends = sorted([start, stop] for start, stop in facts["items"] if start < stop)
        starts, stops = [start for start, _ in ends], [stop for _, stop in ends]
        if starts != [0, *stops[:-1]] or stops[-1:] != [self.num_items]:
            raise ValueError(f"shards must hold each of {self.num_items} items once, got the ranges {ends}")


_compared: set[tuple[int, int, int, torch.device]] = set()
"""Shards on devices other than the CPU whose processes have compared their arguments."""


class ShardCounter:
    """Counter of the better and equal candidates of targets in shards of the scores; counts of shards add up.

    A shard is scores [B, C] of the items `offset` to `offset + C - 1`.

    Args:
        target: as in `update`.
        gains: as in `update`.
        exclude: ids, or bool [items].
        shape: rows, and items of all shards.
        dtype: the scores' dtype.
        device: the scores' device.
        needs: data that the metrics read.
        options: how rankings are made.
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
        options: Options,
    ) -> None:
        if needs.num_items not in (None, shape[1]):
            raise ValueError(f"the catalogue has {needs.num_items} items, the scores have {shape[1]}")
        check_padding_item(options, shape[1])
        self.checks: Checks = Checks(options.validate_args, device, shape[0])
        refuse_dense("target", target, "a shard")
        for excluded in exclude if isinstance(exclude, tuple) else (exclude,):
            if isinstance(excluded, Tensor) and excluded.dtype == torch.bool and excluded.dim() == 2:
                accepted = f"item ids [B, H], or bool [{shape[1]}]"
                raise TypeError(f"exclude with a shard must be {accepted}, got {excluded.dtype} {list(excluded.shape)}")
        self.targets: Targets = Targets.read(target, gains, exclude, shape, options, self.checks)
        self.metric_needs: Needs = needs
        self.options: Options = options
        self.shape: tuple[int, int] = shape
        depth = needs.depth_for(self.targets.ids.shape[1])
        self.needs: Needs = needs._replace(depth=depth, num_ranked=True, list_depth=min(needs.list_depth, shape[1]))
        # lists are made of the best items of all shards, by `best`
        self.counter: TargetCounter = TargetCounter(
            self.targets, self.needs._replace(list_depth=0), options, dtype, self.checks
        )

    @property
    def num_counts(self) -> int:
        """Number of columns of the counts."""
        return 2 * self.targets.ids.shape[1] + len(self.counter.min_scores) + 1

    def target_scores(self, scores: Tensor, offset: int) -> Tensor:
        """Return the scores of the targets in this shard, [B, T]; -inf for targets of other shards."""
        return working(_look_up(scores, offset, self.targets.ids))

    def count(self, scores: Tensor, offset: int, target_scores: Tensor) -> Tensor:
        """Return the counts of a shard, int32 [B, 2 T + minimum scores + 1]: better, equal, at least, bad row.

        `target_scores` are the targets' scores over all shards, [B, T].
        """
        if not scores.shape[1]:
            return torch.zeros(len(target_scores), self.num_counts, dtype=torch.int32, device=scores.device)
        missing = self.counter.missing(target_scores)
        counts, *_ = self.counter.count(scores, target_scores, missing, first_item=offset)
        assert counts.at_least is not None
        bad = ~(counts.highest < torch.inf)
        return torch.cat([counts.better, counts.equal, counts.at_least, bad[:, None]], 1).int()

    def best(self, scores: Tensor, offset: int) -> tuple[Tensor, Tensor]:
        """Return scores and ids of a shard's best candidates, [B, list_depth]; -inf and -1 if it has fewer."""
        masks, excluded = [], None
        if self.targets.excluded is not None and scores.shape[1]:
            of_shard = self.targets.excluded.among(ALL_ROWS, offset, scores.shape[1])
            masks, excluded = of_shard.masks, of_shard.ids
        top, columns = kernels.best_items(scores, self.needs.list_depth, masks, excluded)
        ids = (columns + offset).where(columns >= 0, -1)
        padding = (0, self.needs.list_depth - ids.shape[1])
        pad = torch.nn.functional.pad
        return pad(top, padding, value=-torch.inf), pad(ids, padding, value=-1)

    def ranking(
        self,
        target_scores: Tensor,
        counted: Tensor,
        best: tuple[Tensor, Tensor],
        rows: RankedRows = RankedRows(),  # noqa: B008  # immutable
        history: Tensor | None = None,
    ) -> Ranking:
        """Return the ranking over all shards from the scores of targets, the sum of all counts and the best items."""
        checks, counter = self.checks, self.counter
        checks.own_rows = rows.own
        slots, missing = target_scores.shape[1], counter.missing(target_scores)
        sizes = [slots, slots, len(counter.min_scores), 1]
        better, equal, at_least, bad = torch.split(counted.to(float_dtype(target_scores.device)), sizes, 1)
        checks.reject("scores", bad > 0, lambda row: f"row {row}")
        top = counter.with_kept(best, target_scores, missing) if self.needs.list_depth else None
        # highest scores are checked above, so they are not read
        all_counts = Counts(better, equal, at_least, highest=target_scores.new_zeros(0))
        counts = counter.finish(target_scores, missing, all_counts, top, check_scores=False)
        return rank_counts(
            counts, self.metric_needs, self.options, checks, self.needs.depth, rows=rows, history=history
        )

    def compared(self) -> dict[str, Tensor | None]:
        """Return the tensors, by name, that identify the rows and are compared at each batch."""
        targets = self.targets
        return {"targets": targets.ids.where(targets.is_item, -1), "gains": targets.gains}

    def facts(self) -> dict[str, Any]:
        """Return further values, by name, that must be the same on all processes; waits for the device."""
        excluded = self.targets.excluded
        return {
            "num_items": self.shape[1],
            "rows": self.shape[0],
            "depth of metrics": self.needs.depth,
            "length of lists": self.needs.list_depth,
            "score_threshold": self.needs.score_threshold,
            "options": self.options,
            "history": None if excluded is None else (fingerprint(excluded.ids()), *map(fingerprint, excluded.masks)),
        }


def over_processes(numbers: Tensor, operation: Any, process_group: Any) -> Tensor:
    """Return the sum or maximum of `numbers` over processes, which overwrites `numbers`."""
    torch.distributed.all_reduce(numbers, op=operation, group=process_group)
    return numbers


def highest_over_processes(scores: Tensor, number: Tensor, process_group: Any) -> tuple[Tensor, Tensor]:
    """Return the maximum of scores over processes, and whether the integer `number` differs, bool scalar."""
    hashed = ((number * -7046029254386353131) >> 40).to(scores.dtype)  # 24 bits, which float32 holds
    highest = torch.cat([scores.flatten(), torch.stack([hashed, -hashed])])
    over_processes(highest, ReduceOp.MAX, process_group)
    return highest[:-2].view_as(scores), highest[-2:].sum() != 0


def best_of_processes(best: tuple[Tensor, Tensor], process_group: Any) -> tuple[Tensor, Tensor]:
    """Return scores and ids of the best items over all processes, [B, k]; `best` is that of this process."""
    columns = []
    for column in best:
        shards = [torch.empty_like(column) for _ in range(torch.distributed.get_world_size(process_group))]
        torch.distributed.all_gather(shards, column.contiguous(), group=process_group)
        columns.append(shards)
    return kernels.merged(list(zip(*columns, strict=True)), best[0].shape[1])


def _check_row_ids(row_ids: Any, rows: int, device: torch.device) -> None:
    check_ids("row_ids", row_ids)
    check_device("row_ids", row_ids, device)
    if row_ids.shape != (rows,):
        raise ValueError(f"row_ids must be [{rows}], got {list(row_ids.shape)}")


def _look_up(scores: Tensor, offset: int, items: Tensor) -> Tensor:
    """Return the scores of `items`, [B, T], in the shard that begins with item `offset`; -inf for items of others."""
    if not scores.shape[1]:
        return torch.full(items.shape, -torch.inf, dtype=scores.dtype, device=scores.device)
    column = items - offset
    inside = (column >= 0) & (column < scores.shape[1])
    return scores.gather(1, column.where(inside, 0)).where(inside, -torch.inf)
