"""`SanityCheck`: asks about one batch of a metric or collection, the first one of at least `MIN_ROWS` rows."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch import Tensor
from torchmetrics.utilities.prints import rank_zero_only

from torchrecmetrics.core.arrays import can_sync, is_traced, ordinary_tensors
from torchrecmetrics.core.checks import plain, warn_caller
from torchrecmetrics.core.options import Needs, Options
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.inputs.sanity_questions import MIN_ROWS, QUESTIONS, SAMPLE_COLUMNS, SAMPLE_ROWS, Sample, tied_rows
from torchrecmetrics.inputs.scores import ScoreRows
from torchrecmetrics.kernels import Products


class SanityCheck:
    """Asks the questions of one metric or collection, and of its copies in `evaluate`, once, as warnings."""

    def __init__(self) -> None:
        self.is_done: bool = False  # also if a sample is kept
        self.sample: Sample | None = None  # of a batch on another device than the CPU, until `warn_of_sample` reads it

    def see(self, batch: Any, ranking: Ranking, needs: Needs, options: Options) -> None:
        """Ask about a batch with enough rows, on the CPU at once, elsewhere in `compute`, which waits anyway."""
        batch, device, num_rows = getattr(batch, "source", batch), ranking.num_relevant.device.type, len(ranking)
        kind = type(batch).__name__ if type(batch).__module__.startswith("torchrecmetrics.inputs.") else ""
        enough = (len(batch.scores) if kind == "Sessions" else num_rows) >= MIN_ROWS
        if not enough or not options.validate_args or device == "meta" or is_traced():
            return
        if device == "cuda" and torch.cuda.is_current_stream_capturing():
            return
        scores = getattr(batch, "negative", getattr(batch, "scores", None))
        num_columns = getattr(batch, "num_items", getattr(scores, "shape", (None,))[-1])
        with ordinary_tensors():
            copies = cut_fields(batch) if kind in QUESTIONS else None, cut_fields(ranking)
        self.is_done, self.sample = True, Sample(kind, *copies, needs, options.padding_idx, num_rows, num_columns)
        if can_sync(ranking.num_relevant):
            self.warn_of_sample()

    def warn_of_sample(self) -> None:
        """Ask the questions about the sample, on one process, and drop it."""
        sample, self.sample = self.sample, None
        assert sample is not None
        for question in (tied_rows, *QUESTIONS.get(sample.kind, ())):
            if sentence := question(sample):
                rank_zero_only(warn_caller)(sentence)


def cut_fields(record: Any) -> Any:
    """Return a copy of an input or ranking whose tensors are small copies, without waiting for the device."""
    sample = copy(record)
    vars(sample).update({name: _cut(value) for name, value in vars(record).items()})
    return sample


def _cut(value: Any) -> Any:
    """Return a copy of the first rows and columns of a tensor, or of the tensors in a tuple; None for other objects."""
    if isinstance(value, Products):
        product = value.users[:SAMPLE_ROWS].float() @ value.items[:SAMPLE_COLUMNS].float().T
        return product if value.bias is None else product + value.bias[:SAMPLE_COLUMNS]
    if isinstance(value, ScoreRows):
        return _cut(next(iter(value.chunks())))
    if isinstance(value, tuple):
        return tuple(map(_cut, value))
    if not isinstance(value, Tensor):
        return value if isinstance(value, (int, str)) or hasattr(value, "look_up") else None  # `SemanticIds`
    if value.is_nested or not value.dim():
        return None
    entries = plain(value).detach()
    sample = (entries[:SAMPLE_COLUMNS] if value.dim() == 1 else entries[:SAMPLE_ROWS, :SAMPLE_COLUMNS]).clone()
    vars(sample).update(vars(value))  # `ties` of get_topk_ranks
    return sample
