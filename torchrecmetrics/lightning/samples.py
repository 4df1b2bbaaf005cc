"""Tools to count each sample once if a distributed sampler repeats samples on several processes."""

from __future__ import annotations

from dataclasses import dataclass
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

from torchrecmetrics.base.row_buffer import KeptRows, RowKeys, all_gather, check_keys
from torchrecmetrics.base.row_values import ListBatch, RowGroups, RowValues
from torchrecmetrics.checks import VIOLATIONS
from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.ranking import Ranking

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

    The collection must not synchronise by itself: `settle` gives every process the state of all processes.
    """

    def __init__(self, collection: RecMetricCollection) -> None:
        self._collection, self._evaluator = collection, collection.evaluator
        metrics = len(self._evaluator.metrics)
        heights = {"ids": 1, "values": metrics, "weights": metrics, "used": metrics, "notes": 3 * metrics, "given": 1}
        for metric in self._evaluator.counters:
            if metric.needs.history or metric.needs.target:
                raise ValueError(
                    f"{metric.label} reads the history or ground truth of each row, which are not kept by sample: "
                    "leave sample_ids out, or let evaluate or CatalogueEvaluationCallback compute it"
                )
        self._places = self._evaluator.needs.list_depth if self._evaluator.counters else 0
        if self._places:
            heights |= {"items": self._places, "counted": 1}
        if collection.groups:
            heights["groups"] = 1
        self._kept = KeptRows(heights, {"clusters": 1})
        self._invalid = torch.zeros((len(self._evaluator.members), len(VIOLATIONS)), dtype=torch.int64)

    def add(
        self,
        sample_ids: Tensor,
        ranking: Ranking,
        weights: Tensor | None = None,
        clusters: Tensor | None = None,
        groups: Tensor | None = None,
    ) -> None:
        """Store the rows of a batch; `sample_ids`, integers [B], are the samples' indices in the data set."""
        ids = check_keys("sample_ids", sample_ids, len(ranking)).to(ranking.ranks.device)
        rows = self._collection.row_values(ranking, weights, groups)
        metrics, dtype = len(rows.values), rows.values.dtype
        columns = {
            "ids": ids[None],
            "values": rows.values,
            "weights": (rows.mask.to(dtype) if rows.weights is None else rows.weights).expand(metrics, -1),
            "used": rows.mask.expand(metrics, -1),
            "notes": rows.flags.expand(-1, metrics, -1).flatten(0, 1),
            "clusters": None
            if clusters is None
            else check_keys("user_ids", clusters, len(ranking)).to(ids.device)[None],
            "given": (rows.values.new_ones(()) if weights is None else weights.to(dtype, copy=True)).expand(
                1, len(ids)
            ),
        }
        if (listed := rows.lists) is not None:
            items = listed.items[:, : self._places]
            missing = self._places - items.shape[1]
            columns["items"] = torch.nn.functional.pad(items, (0, missing), value=-1).T
            columns["counted"] = (torch.ones_like(ids, dtype=torch.bool) if listed.counted is None else listed.counted)[
                None
            ]
        if rows.groups is not None:
            columns["groups"] = rows.groups.codes[None]
        self._kept.check(columns)
        self._kept.add(columns)
        if rows.violations is not None:
            self._invalid = self._invalid.to(ids.device) + rows.violations

    def settle(self) -> None:
        """Gather the rows of all processes, in two collectives, and add each sample to the metrics once."""
        device = self._evaluator.members[0].state().sums.device
        invalid = self._invalid.to(device)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            columns, told = self._kept.joined(device, all_gather, invalid.flatten())
            assert told is not None
            invalid = told.view_as(invalid)
        else:
            columns = self._kept.here(device)
        self._kept.clear()
        ids = columns.pop("ids")[0].long()
        if len(ids) and (lowest := int(ids.min())) < 0:
            raise ValueError(
                f"sample_ids hold {lowest}, which is no index in the data set: number the samples from 0, and "
                "return no row that is none of them"
            )
        # a stable sort puts equal ids side by side; the first of each run counts
        ids, order = ids.sort(stable=True)
        first = torch.ones_like(ids, dtype=torch.bool)
        first[1:] = ids[1:] != ids[:-1]
        once = order[first]
        columns = {name: column[:, once] for name, column in columns.items()}
        values, weights = columns["values"], columns["weights"]
        notes = columns["notes"].bool().view(3, *values.shape)
        listed = None
        if self._places:
            listed = ListBatch(columns["items"].long().T, columns["counted"][0].bool())
        codes = None
        if self._collection.groups:
            codes = RowGroups(columns["groups"][0].long(), len(self._collection.groups))
        rows = RowValues(values, weights, columns["used"].bool(), notes, invalid, listed, codes)
        for metric in self._evaluator.members:
            metric.reset()
        keys = None
        if self._collection.keep_rows:
            clusters = columns["clusters"][0] if "clusters" in columns else None
            keys = RowKeys(ids[first], clusters, columns["given"][0])
        self._collection.add(rows, keys)
