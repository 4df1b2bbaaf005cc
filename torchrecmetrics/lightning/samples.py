"""Tools to count each sample once if a distributed sampler repeats samples on several processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    default_collate,
    default_convert,
)

from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.core.checks import VIOLATIONS
from torchrecmetrics.core.ranking import ListedItems, Ranking
from torchrecmetrics.core.row_buffer import check_keys, check_same_columns, gathered_columns
from torchrecmetrics.core.rows import RowValues

_CURE = ". Pass sample_ids=, the index of each row in the data set, and every sample counts once"
MAY_REPEAT = ", so some may count twice" + _CURE


@dataclass
class Share:
    """Part of a data set that this process loads; its last samples may be repeats that make all parts equally long."""

    batch_size: int | None  # None = the loader's samples are batches already
    samples: int
    own: int  # samples before the repeats

    def kept(self, batch_idx: int, rows: int) -> int | None:
        """Return the number of rows of a batch that count; None if rows are not samples."""
        if self.batch_size is None:
            return rows if batch_idx < self.own else 0
        first = batch_idx * self.batch_size
        size = min(self.batch_size, self.samples - first)
        if first >= self.own:
            return 0
        kept = min(self.own - first, size)
        if kept == size:
            return rows
        return kept if rows == size else None


def left_out(loader: Any, replicas: int, rank: int) -> str | None:
    """Return a warning if process `rank` of `replicas` does not load its share or samples are dropped; else None."""
    if not isinstance(loader, DataLoader):
        return None
    batches, sampler = loader.batch_sampler, _sampler(loader)
    name = type(sampler).__name__
    if isinstance(sampler, DistributedSampler) and (sampler.num_replicas, sampler.rank) != (replicas, rank):
        return (
            f"{name}(num_replicas={sampler.num_replicas}, rank={sampler.rank}) is not made for process {rank} of "
            f"{replicas}, so samples are left out or count twice: leave num_replicas and rank to it"
        )
    if rank:  # the first process warns for all
        return None
    if isinstance(sampler, DistributedSampler) and sampler.drop_last and (missed := _total(sampler) % replicas):
        return f"{name}(drop_last=True) leaves {missed} of {_total(sampler)} samples out: pass drop_last=False"
    if isinstance(batches, BatchSampler) and batches.drop_last:
        if isinstance(loader.dataset, IterableDataset):
            return "DataLoader(drop_last=True) leaves a last batch out that is not full: pass drop_last=False"
        if missed := len(sampler) % batches.batch_size:
            whose = " of each process" if replicas > 1 else ""
            return (
                f"DataLoader(drop_last=True) leaves {missed} of {len(sampler)} samples{whose} out: pass drop_last=False"
            )
    return None


def share_of(loader: Any) -> tuple[Share | None, str | None]:
    """Return the `Share` of a loader, None without repeated samples, and a warning if that may be wrong."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        what = "an iterable data set" if isinstance(loader, DataLoader) else f"a {type(loader).__name__}"
        return None, f"which samples of {what} each process gets is unknown{MAY_REPEAT}"
    batches, sampler = loader.batch_sampler, _sampler(loader)
    kind: Any = type(sampler)
    by_lightning = kind.__module__.partition(".")[0] in ("lightning", "lightning_fabric", "pytorch_lightning")
    if not isinstance(sampler, DistributedSampler) or not (
        kind.__iter__ is DistributedSampler.__iter__ or by_lightning
    ):
        return None, f"which samples {kind.__name__} gives to each process is unknown{MAY_REPEAT}"
    if kind.__name__.startswith("Unrepeated"):
        return None, None
    doubt = None
    if by_lightning:
        inner = type(getattr(sampler.dataset, "_sampler", None)).__name__
        doubt = f"processes may draw different samples from {inner}, unless all are seeded alike{MAY_REPEAT}"
    total = _total(sampler)
    if total % sampler.num_replicas == 0 or sampler.drop_last:
        return None, doubt
    if (batches is not None and type(batches) is not BatchSampler) or not getattr(loader, "in_order", True):
        return None, f"the order in which batches of samples come is unknown{MAY_REPEAT}"
    # sample j of process r is number j * processes + r of the epoch; numbers from `total` on are repeats
    own = len(range(sampler.rank, total, sampler.num_replicas))
    collate = loader.collate_fn
    several_rows = batches is not None and batches.batch_size > 1
    if doubt is None and several_rows and collate not in (default_collate, default_convert):
        name = getattr(collate, "__qualname__", type(collate).__name__)
        doubt = f"{name} (collate_fn) must keep samples in their order, or repeats count in place of others{_CURE}"
    return Share(None if batches is None else batches.batch_size, len(sampler), own), doubt


def _sampler(loader: DataLoader[Any]) -> Any:
    """Return the sampler of single samples."""
    batches = loader.batch_sampler
    return batches.sampler if type(batches) is BatchSampler else loader.sampler


def _total(sampler: DistributedSampler[Any]) -> int:
    """Return the number of samples in the data set."""
    return len(sampler.dataset)  # type: ignore[arg-type]


class SampleRows:
    """Buffer of the values of every sample; the collection stays empty until `settle` fills it.

    The collection must not synchronise by itself: `settle` gives every process the rows of all processes.
    """

    def __init__(self, collection: RecMetricCollection) -> None:
        self._evaluator = evaluator = collection.evaluator
        for key, metric in evaluator.counted_metrics.items():
            if metric.needs.history or metric.needs.target:
                raise ValueError(
                    f"{key} reads the history or ground truth of each row, which are not kept by sample: leave "
                    "sample_ids out, or let evaluate or CatalogueEvaluationCallback compute it"
                )
        number = len(evaluator.row_metrics)
        self._heights: dict[str, int] = {"ids": 1, "values": number, "undefined": number, "flags": 3}
        self._heights |= {"weights": 1, "counted": 1}
        if own := number - evaluator.layout.num_plain:
            self._heights["own_weights"] = own
        self._list_depth = evaluator.batch_needs.list_depth if evaluator.counted_metrics else 0
        if self._list_depth:
            self._heights |= {"items": self._list_depth, "wants_list": 1}
        self._heights |= dict.fromkeys(evaluator.columns, 1)
        self._batches: list[dict[str, Tensor]] = []
        self._violations = torch.zeros(len(VIOLATIONS), dtype=torch.int64)

    def add(
        self, sample_ids: Tensor, ranking: Ranking, weights: Tensor | None, columns: Mapping[str, Tensor | None]
    ) -> None:
        """Store the rows of a batch; `sample_ids`, integers [B], are the samples' indices in the data set."""
        ids = check_keys("sample_ids", sample_ids, len(ranking)).to(ranking.ranks.device)
        rows = self._evaluator.rows(ranking, weights, columns)
        every_row = torch.ones_like(ids, dtype=torch.bool)
        batch = {
            "ids": ids,
            "values": rows.values,
            "undefined": rows.undefined,
            "flags": rows.flags,
            "weights": torch.ones_like(ranking.num_relevant) if rows.weights is None else rows.weights,
            "counted": every_row if rows.counted is None else rows.counted,
        }
        if rows.own_weights is not None:
            batch["own_weights"] = rows.own_weights
        if self._list_depth:
            assert rows.ranking is not None
            items, wants_list = rows.ranking.items[:, : self._list_depth], rows.ranking.listed().wants_list
            missing = self._list_depth - items.shape[1]
            batch["items"] = torch.nn.functional.pad(items, (0, missing), value=-1).T
            batch["wants_list"] = every_row if wants_list is None else wants_list
        batch |= rows.columns
        if rows.violations is not None:
            self._violations = self._violations.to(ids.device) + rows.violations
        if not len(ids):
            return
        if self._batches:
            check_same_columns(self._batches[0], batch)
        # a loader may reuse the memory of its tensors
        self._batches.append({name: column.clone().view(self._heights[name], -1) for name, column in batch.items()})

    def settle(self) -> None:
        """Gather the rows of all processes, in one collective, and add each sample to the metrics once."""
        evaluator = self._evaluator
        device, violations = evaluator.device, self._violations.to(evaluator.device)
        names = self._batches[0] if self._batches else ()
        columns = {name: torch.cat([batch[name] for batch in self._batches], 1) for name in names}
        self._batches = []
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            columns, violations = gathered_columns(columns, violations)
            columns, violations = {name: column.to(device) for name, column in columns.items()}, violations.to(device)
        evaluator.reset()
        if not columns:
            nobody = Ranking.without_relevant(0, device, evaluator.batch_needs.score_threshold)
            evaluator.add(replace(evaluator.rows(nobody), violations=violations))
            return
        columns = _first_of_each(columns)
        evaluator.add(
            RowValues(
                columns["values"],
                columns["undefined"],
                columns["flags"],
                columns["weights"][0],
                columns.get("own_weights"),
                columns["counted"][0],
                violations,
                self._ranking(columns, device),
                self._facts(columns),
            )
        )

    def _ranking(self, columns: Mapping[str, Tensor], device: torch.device) -> Ranking:
        """Return a ranking that holds the listed items of the rows, and nothing else."""
        ranking = Ranking.without_relevant(len(columns["ids"][0]), device)
        if not self._list_depth:
            return replace(ranking, lists=None)
        items = columns["items"].T
        return replace(
            ranking, lists=ListedItems(items, torch.full_like(items[:, :1], -1), wants_list=columns["wants_list"][0])
        )

    def _facts(self, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the columns that accumulators read; the samples' ids are the rows' ids."""
        facts = {name: columns[name][0] for name in self._evaluator.columns if name in columns}
        return {**facts, "row_ids": columns["ids"][0]} if "row_ids" in self._evaluator.columns else facts


def _first_of_each(columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the columns of the first row of each sample, by ascending id.

    Raises:
        ValueError: for a negative id.
    """
    ids, order = columns["ids"][0].sort(stable=True)
    if int(ids[0]) < 0:
        raise ValueError(
            f"sample_ids hold {int(ids[0])}, which is no index in the data set: number the samples from 0, and return "
            "no row that is none of them"
        )
    first = torch.ones_like(ids, dtype=torch.bool)
    first[1:] = ids[1:] != ids[:-1]
    return {name: column[:, order[first]] for name, column in columns.items()}
