"""A sample that several processes meet counts once: by its place in the sampler's order, or by its id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DistributedSampler

from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.inputs import ID_DTYPES, VIOLATIONS, describe
from torchrecmetrics.metrics import Rows
from torchrecmetrics.ranking import Ranking

MAY_REPEAT = (
    ", so some may count twice. Pass sample_ids=, the index of each row in the data set, and every sample counts once"
)


@dataclass
class Share:
    """The part of a data set that this process loads: its last samples may be there to make shares equal."""

    batch_size: int | None  # None: the loader's samples are batches already
    samples: int
    own: int  # samples before the repeats

    def kept(self, batch_idx: int, rows: int) -> int | None:
        """How many rows of a batch count; None where rows are not samples."""
        if self.batch_size is None:
            return rows if batch_idx < self.own else 0
        first = batch_idx * self.batch_size
        size = min(self.batch_size, self.samples - first)
        kept = min(max(self.own - first, 0), size)
        if kept == size:
            return rows
        return kept if rows == size else None


def share_of(loader: Any) -> tuple[Share | None, str | None]:
    """Return which samples of a loader this process repeats, None for none; and a doubt, where that cannot be known."""
    sampler = getattr(loader, "sampler", None)
    kind: Any = type(sampler)
    lightnings_own = kind.__module__.partition(".")[0] in ("lightning", "lightning_fabric", "pytorch_lightning")
    if not isinstance(sampler, DistributedSampler) or not (
        kind.__iter__ is DistributedSampler.__iter__ or lightnings_own
    ):
        what = kind.__name__ if sampler is not None else type(loader).__name__
        return None, f"which samples {what} gives to several processes is unknown{MAY_REPEAT}"
    if kind.__name__.startswith("Unrepeated"):
        return None, None
    total = len(sampler.dataset)  # type: ignore[arg-type]
    if sampler.drop_last:
        left_out = total % sampler.num_replicas
        doubt = f"DistributedSampler(drop_last=True) leaves {left_out} of {total} samples out: pass drop_last=False"
        return None, doubt if left_out else None
    batches = loader.batch_sampler
    if getattr(batches, "drop_last", False) and len(sampler) % batches.batch_size:
        left_out = len(sampler) % batches.batch_size
        return None, f"DataLoader(drop_last=True) leaves {left_out} samples of each process out: pass drop_last=False"
    # sample j of process r is number j * processes + r of the epoch; numbers from `total` on begin anew
    own = len(range(sampler.rank, total, sampler.num_replicas))
    if own == len(sampler):
        return None, None
    if (batches is not None and type(batches) is not BatchSampler) or not getattr(loader, "in_order", True):
        return None, f"the order in which {type(batches).__name__} batches samples is unknown{MAY_REPEAT}"
    return Share(None if batches is None else batches.batch_size, len(sampler), own), None


class SampleRows:
    """What every sample adds to the metrics of a collection, which stays empty until `settle` fills it.

    The collection must not synchronise by itself: `settle` leaves the state of all processes in each of them.
    """

    def __init__(self, collection: RecMetricCollection) -> None:
        self._members = collection._members()
        self.reset()

    def reset(self) -> None:
        """Forget all rows."""
        self._kept: list[Tensor] = []
        self._invalid: list[Tensor] = []

    def add(self, sample_ids: Tensor, ranking: Ranking, weights: Tensor | None = None) -> None:
        """Keep a batch: `sample_ids`, integers [B], number the samples of the data set."""
        if not isinstance(sample_ids, Tensor) or sample_ids.dtype not in ID_DTYPES:
            raise TypeError(f"sample_ids must be an integer tensor, got {describe(sample_ids)}")
        if sample_ids.shape != (len(ranking),):
            raise ValueError(f"sample_ids must be [{len(ranking)}], one a row, got {list(sample_ids.shape)}")
        rows = [metric.rows(ranking, weights) for metric in self._members]
        device = ranking.ranks.device
        bits = 2 ** torch.arange(4, device=device)
        columns = [sample_ids.to(device, torch.int64)]
        for row in rows:
            columns += [_as_int(row.values), _as_int(row.weights), (row.flags * bits[:, None]).sum(0)]
        self._kept.append(torch.stack(columns, 1))
        self._invalid.append(torch.stack([row.invalid for row in rows]))

    def settle(self) -> None:
        """Gather the rows of all processes, in two collectives, and add each sample to the metrics once."""
        width, device = len(self._members), self._members[0].state().sums.device
        kept = torch.cat([torch.zeros((0, 1 + 3 * width), dtype=torch.int64, device=device), *self._kept])
        invalid = torch.zeros((width, len(VIOLATIONS)), dtype=torch.int64, device=device)
        for found in self._invalid:
            invalid = invalid + found
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            kept, invalid = _gather(kept, invalid)
        # a stable sort puts equal ids side by side; the first of each run counts
        ids, order = kept[:, 0].sort(stable=True)
        first = torch.ones_like(ids, dtype=torch.bool)
        first[1:] = ids[1:] != ids[:-1]
        kept = kept[order[first]]
        shifts = torch.arange(4, device=device)[:, None]
        for place, metric in enumerate(self._members):
            values, weights, flags = kept[:, 1 + 3 * place : 4 + 3 * place].unbind(1)
            dtype = metric.state().sums.dtype
            metric.reset()
            metric.add(
                Rows(
                    _as_float(values, dtype), _as_float(weights, dtype), (flags >> shifts) % 2 > 0, invalid[place]
                ).tally()
            )
        self.reset()


def _gather(kept: Tensor, invalid: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of all processes one below the other, and their violations added up."""
    message = torch.cat([invalid.new_tensor([len(kept)]), invalid.flatten()])
    messages = [torch.empty_like(message) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(messages, message)
    lengths = [int(other[0]) for other in messages]
    longest = max(lengths)
    padded = torch.cat([kept, kept.new_zeros((longest - len(kept), kept.shape[1]))])
    shares = [torch.empty_like(padded) for _ in lengths]
    if longest:
        torch.distributed.all_gather(shares, padded)
    rows = torch.cat([share[:length] for share, length in zip(shares, lengths, strict=True)])
    return rows, torch.stack(messages)[:, 1:].sum(0).view_as(invalid)


def _as_int(values: Tensor) -> Tensor:
    """Return the bits of floats as int64: one matrix can then hold ids and values."""
    return (
        values.to(torch.float64).view(torch.int64) if values.dtype == torch.float64 else values.view(torch.int32).long()
    )


def _as_float(bits: Tensor, dtype: torch.dtype) -> Tensor:
    return bits.contiguous().view(torch.float64) if dtype == torch.float64 else bits.to(torch.int32).view(dtype)
