"""Tools to count each sample once if a distributed sampler repeats samples on several processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset
from torchmetrics.utilities.distributed import gather_all_tensors

from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.collection.row_buffer import check_keys
from torchrecmetrics.core.arrays import float_dtype
from torchrecmetrics.core.checks import in_words
from torchrecmetrics.core.distributed import is_distributed
from torchrecmetrics.core.ranking import Ranking

_MAY_REPEAT = (
    ", so some may count twice. Pass sample_ids=, the index of each row in the data set, to count every sample once"
)


@dataclass
class Share:
    """Part of a data set that this process loads; its last samples may be repeats that make all parts equally long."""

    batch_size: int | None
    """None = the loader's samples are batches already."""
    num_samples: int
    num_distinct: int
    """Number of samples before the repeats."""

    def num_kept(self, batch_idx: int, rows: int) -> int | None:
        """Return the number of rows of a batch that count; None if rows are not samples."""
        if self.batch_size is None:
            return rows if batch_idx < self.num_distinct else 0
        start = batch_idx * self.batch_size
        size = min(self.batch_size, self.num_samples - start)
        num_kept = min(max(self.num_distinct - start, 0), size)
        if num_kept in (0, size):
            return rows if num_kept else 0
        return num_kept if rows == size else None

    def without_repeats(
        self, weights: Tensor | None, batch_idx: int, ranking: Ranking
    ) -> tuple[Tensor | None, str | None]:
        """Return weights that are 0 for repeated samples, and a message if repeats cannot be known."""
        rows = len(ranking)
        num_kept = self.num_kept(batch_idx, rows)
        if num_kept is None:
            fault = f"a batch with repeated samples has {in_words(rows)}, not one per sample"
            if ranking.rows.of_entries is not None:  # sample_ids would have to be those of sessions
                cure = "make each sample one session, or pass sample_ids=, one per session in ascending order of ids"
                return weights, f"{fault}, so some may count twice: for flat rows, {cure}"
            return weights, f"{fault}{_MAY_REPEAT}"
        if num_kept == rows:
            return weights, None
        return _weights_of(ranking, torch.arange(rows, device=ranking.ranks.device) < num_kept, weights), None


def share_of(loader: Any) -> tuple[Share | None, str | None]:
    """Return the `Share` of a loader, None without repeated samples, and a warning if that may be wrong."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        source = "an iterable data set" if isinstance(loader, DataLoader) else f"a {type(loader).__name__}"
        return None, f"it is unknown which samples of {source} each process gets{_MAY_REPEAT}"
    batches: Any = loader.batch_sampler
    sampler: Any = batches.sampler if type(batches) is BatchSampler else loader.sampler
    kind: Any = type(sampler)
    by_lightning = kind.__module__.partition(".")[0] in ("lightning", "lightning_fabric", "pytorch_lightning")
    if not isinstance(sampler, DistributedSampler) or not (
        kind.__iter__ is DistributedSampler.__iter__ or by_lightning
    ):
        return None, f"it is unknown which samples {kind.__name__} gives to each process{_MAY_REPEAT}"
    doubt = None
    if by_lightning:
        inner = type(getattr(sampler.dataset, "_sampler", None)).__name__
        doubt = f"processes may draw different samples from {inner}, unless all use the same seed{_MAY_REPEAT}"
    total = len(sampler.dataset)  # type: ignore[arg-type]
    if total % sampler.num_replicas == 0 or sampler.drop_last:
        return None, doubt
    if (batches is not None and type(batches) is not BatchSampler) or not getattr(loader, "in_order", True):
        return None, f"the order of the batches of samples is unknown{_MAY_REPEAT}"
    # sample j of process r is number j * processes + r of the epoch; numbers from `total` on are repeats
    num_distinct = len(range(sampler.rank, total, sampler.num_replicas))
    return Share(None if batches is None else batches.batch_size, len(sampler), num_distinct), doubt


@dataclass
class SampleRows:
    """Batches of rows with the ids of their samples, which `add_to` adds to a collection, each sample once."""

    ids: list[Tensor] = field(default_factory=list)
    batches: list[tuple[Ranking, Tensor | None, Mapping[str, Any]]] = field(default_factory=list)

    def add(self, ids: Any, ranking: Ranking, weights: Tensor | None, columns: Mapping[str, Any]) -> None:
        """Keep a batch; `ids`, integers [B], are the samples' indices in the data set."""
        self.ids.append(check_keys("sample_ids", ids, len(ranking)).to(ranking.ranks.device))
        self.batches.append((ranking, weights, columns))

    def add_to(self, collection: RecMetricCollection) -> None:
        """Add the rows to the collection, with weight 0 for samples that an earlier row or process has."""
        evaluator = collection.evaluator
        counts = _first_of_each(torch.cat([torch.zeros(0, dtype=torch.int64, device=evaluator.device), *self.ids]))
        counts_of_batches = torch.split(counts, [len(batch_ids) for batch_ids in self.ids])
        for batch_ids, is_first, batch in zip(self.ids, counts_of_batches, self.batches, strict=True):
            ranking, weights, columns = batch
            row_ids = {"row_ids": batch_ids} if "row_ids" in evaluator._readers else {}
            collection.update(ranking, weights=_weights_of(ranking, is_first, weights), **{**columns, **row_ids})


def _first_of_each(ids: Tensor) -> Tensor:
    """Return a mask of this process's ids that no earlier row or process has, bool [n].

    Raises:
        ValueError: for a negative id.
    """
    start, all_ids = 0, ids
    if is_distributed():
        of_processes = gather_all_tensors(ids)
        all_ids = torch.cat(of_processes)
        start = sum(map(len, of_processes[: torch.distributed.get_rank()]))
    if len(all_ids) and int(all_ids.min()) < 0:
        raise ValueError(
            f"sample_ids hold {int(all_ids.min())}, which is not an index in the data set: number the samples from 0, "
            "and return rows of samples only"
        )
    in_order, order = all_ids.sort(stable=True)
    is_first = torch.ones_like(all_ids, dtype=torch.bool)
    is_first[order[1:]] = in_order[1:] != in_order[:-1]
    return is_first[start : start + len(ids)]


def _weights_of(ranking: Ranking, counts: Tensor, weights: Tensor | None) -> Tensor:
    """Return the weights of rows, or of session entries, with 0 for rows that do not count."""
    if ranking.rows.of_entries is not None:
        counts = counts[ranking.rows.of_entries]
    return counts.to(float_dtype(counts.device)) if weights is None else weights.where(counts, 0)
