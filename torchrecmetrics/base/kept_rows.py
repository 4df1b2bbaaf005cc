"""`RowKeeper`: keep per-row values of a collection (`keep_rows=True`) and gather them as `Rows`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from torchrecmetrics.analysis.rows import Rows
from torchrecmetrics.base.metric import RankingMetric
from torchrecmetrics.base.row_buffer import BUDGET, KeptRows, RowKeys, all_gather
from torchrecmetrics.base.row_values import RowValues

Columns: TypeAlias = dict[str, Tensor | None]


class RowKeeper:
    """Buffer of per-row values of metrics; all calls must pass the same `metrics`, in the same order."""

    def __init__(self) -> None:
        self._kept: KeptRows | None = None
        self.budget: int = BUDGET
        """Bytes of rows that may stay on a device other than the CPU."""

    def __len__(self) -> int:
        return 0 if self._kept is None else len(self._kept)

    def columns(self, metrics: Sequence[RankingMetric], rows: RowValues, keys: RowKeys | None) -> Columns:
        """Return the columns to keep of a batch, [height, B] each; raise if earlier batches have other columns."""
        ids, clusters, weights = keys or (None, None, None)
        device, dtype = rows.values.device, rows.values.dtype
        if ids is not None and device.type == ids.device.type == "cpu" and metrics and metrics[0].validate_args is True:
            counted = torch.unique(ids if weights is None else ids[weights > 0], return_counts=True)
            if len(twice := (counted[1] > 1).nonzero()):
                id_, times = (int(column[twice[0, 0]]) for column in counted)
                raise ValueError(
                    f"id {id_} stands in {times} rows of a batch: ids tell rows apart; clusters= says that rows belong "
                    "together (the sessions of a user)"
                )
        weight = torch.ones((), dtype=dtype, device=device) if weights is None else weights.to(dtype, copy=True)
        columns: Columns = {
            "values": rows.values,
            "used": rows.mask,
            "weights": weight.expand(1, rows.values.shape[1]),
            "ids": None if ids is None else ids.to(device)[None],
            "clusters": None if clusters is None else clusters.to(device)[None],
        }
        if own := [place for place, metric in enumerate(metrics) if metric.weighs_rows()]:
            assert rows.weights is not None  # set by metrics with their own weights
            columns["own"] = rows.weights[own]
        if self._kept is not None:
            self._kept.check(columns)
        return columns

    def add(self, metrics: Sequence[RankingMetric], columns: Columns) -> None:
        """Keep the columns of a batch."""
        self._kept = _store(metrics) if self._kept is None else self._kept
        self._kept.budget = self.budget
        self._kept.add(columns)

    def extend(self, other: RowKeeper) -> None:
        """Add the kept rows of another buffer."""
        if other._kept is not None:
            self._kept = other._kept.empty() if self._kept is None else self._kept
            self._kept.extend(other._kept)

    def clear(self) -> None:
        """Forget all rows."""
        self._kept = None

    def gathered(self, metrics: Sequence[RankingMetric], labels: Mapping[RankingMetric, str]) -> Rows:
        """Return the rows of all processes, with a column per label in the order of `labels`.

        Raises:
            ValueError: for repeated ids, several processes without ids, or no metric that is a mean over rows.
        """
        if not metrics:
            raise ValueError(
                "keep_rows=True keeps what rows are worth to metrics that are means over rows, and there is none: "
                "leave it out, or add one"
            )
        kept, first = _store(metrics) if self._kept is None else self._kept, metrics[0]
        device = first.state().sums.device
        if first.distributed_available_fn() and (first.sync_on_compute or first._is_synced):
            gather = all_gather if first.dist_sync_fn is None else first.dist_sync_fn
            columns, _ = kept.joined(device, partial(gather, group=first.process_group))
            if "ids" not in columns and columns["values"].shape[1]:
                raise ValueError("rows of several processes are told apart by row_ids: pass them to update")
        else:
            columns = kept.here(device)
        columns.setdefault("ids", torch.arange(columns["values"].shape[1], device="cpu")[None])
        columns = {name: column.cpu() for name, column in columns.items()}
        weighs = columns["weights"][0] > 0  # rows of weight 0, such as a sampler's repeats, are in no mean
        columns = {name: column[:, weighs] for name, column in columns.items()}
        values, weights = columns["values"].double(), columns["weights"][0].double()
        values = values.where(columns["used"].bool(), torch.nan)
        by_label = {labels[metric]: row for metric, row in zip(metrics, values, strict=True)}
        weighing = [labels[metric] for metric in metrics if metric.weighs_rows()]
        return Rows(
            {label: by_label[label] for label in labels.values()},
            columns["ids"][0].long(),
            None if bool((weights == 1).all()) else weights,
            columns["clusters"][0] if "clusters" in columns else None,
            dict(zip(weighing, columns["own"].double().unbind(), strict=True)) if weighing else {},
            {
                "ties": first.rules.place_ties,
                "overlap": first.rules.take_overlap,
                "padding_idx": None if first.padding_idx is None else str(first.padding_idx),
                "empty_target_action": first.empty_target_action,
                **{f"metric of {key}": metric.label for metric, key in labels.items() if key != metric.label},
            },
        )


def _store(metrics: Sequence[RankingMetric]) -> KeptRows:
    """Return an empty buffer, with one row of values per metric."""
    own = sum(metric.weighs_rows() for metric in metrics)
    heights = {"values": len(metrics), "used": len(metrics), "weights": 1, **({"own": own} if own else {})}
    return KeptRows(heights, {"ids": 1, "clusters": 1})
