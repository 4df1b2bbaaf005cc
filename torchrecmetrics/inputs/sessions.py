"""`Sessions`: rankings from flat scores, labels and session ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import float_dtype, run_starts
from torchrecmetrics.core.checks import (
    Checks,
    check_device,
    check_ids,
    check_scores,
    check_strided,
    check_tensor,
    describe,
)
from torchrecmetrics.core.options import Needs, Options
from torchrecmetrics.core.ranking import RankedRows, Ranking
from torchrecmetrics.inputs.batch_input import BatchInput
from torchrecmetrics.inputs.from_counts import TargetCounts, rank_counts


@dataclass(frozen=True, eq=False, repr=False)
class Sessions(BatchInput):
    """Flat entries of sessions, one per (session, candidate); every session is complete in its batch.

    For sessions that continue in later batches or on other processes use `CollectSessions`. With `indexes`, rows are in
    ascending order of session ids, and `weights`, `groups` and other columns of `update` are given per entry, equal
    within a session. Needs host syncs to find the number of sessions.

    Args:
        scores: float [E], as in `Scores`.
        labels: bool or number [E]: > 0 = relevant, the value is the gain.
        indexes: integer [E], the session that each entry belongs to, in any order.
        lengths: integer [S], in place of `indexes` for sessions one after the other: number of entries of each session,
            0 or more. `weights` and other columns are then [S].

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> scores, labels = torch.tensor([0.2, 0.3, 0.5]), torch.tensor([0, 1, 0])
        >>> trm.Sessions(scores, labels, torch.tensor([0, 0, 0])).ranking().ranks
        tensor([[2.]], dtype=torch.float64)
    """

    scores: Tensor
    labels: Tensor
    indexes: Tensor | None = None
    lengths: Tensor | None = None

    def __post_init__(self) -> None:
        if (self.indexes is None) == (self.lengths is None):
            raise ValueError("give either indexes= or lengths=, which say which entries form a session")

    @torch.no_grad()
    def rank(self, needs: Needs, options: Options) -> Ranking:
        """Sort the entries of each session by score."""
        if needs.list_depth or needs.history:
            raise ValueError("metrics of lists need item ids, which entries of sessions lack")
        if self.lengths is None:
            assert self.indexes is not None
            check_entries(self.scores, self.labels, self.indexes)
            ids, session = torch.unique(self.indexes, return_inverse=True)
            number, row_ids, entry_rows = len(ids), ids.long(), session
        else:
            session = _session_numbers(self.lengths, self.scores)
            check_entries(self.scores, self.labels, session)
            number, row_ids, entry_rows = len(self.lengths), None, None
        checks = Checks(options.validate_args, self.scores.device, number)

        def name(row: int) -> str:
            return f"session {row if row_ids is None else int(row_ids[row])}"

        counts = count_sessions(self.scores, self.labels, session, checks, name, min_score=needs.score_threshold)
        rows = RankedRows(ids=row_ids, of_entries=entry_rows)
        return rank_counts(counts, needs, options, checks, made_with=("ties",), rows=rows)


def count_sessions(
    scores: Tensor,
    labels: Tensor,
    session: Tensor,
    checks: Checks,
    name: Callable[[int], str],
    min_score: float | None = None,
) -> TargetCounts:
    """Count within each session; `session` holds numbers from 0 to `checks.num_rows` - 1 in any order.

    T of the result is the largest number of non-zero labels of a session. Entries that reach `min_score` are counted as
    recommended.
    """
    rows = checks.num_rows
    # sort entries by session, best first; find where runs of equal scores begin, and their lengths
    order = scores.where(~scores.isnan(), -torch.inf).argsort(descending=True, stable=True)
    order = order[session[order].argsort(stable=True)]
    session, scores, labels = session[order], scores[order], labels[order]
    usable = scores > -torch.inf
    start = run_starts(session)
    run = torch.maximum(start, run_starts(scores))
    run_length = torch.bincount(run, minlength=len(run))[run]
    gain = labels.to(float_dtype(scores.device))
    if checks.enabled:
        rules = {
            "scores": scores.isnan() | (scores == torch.inf),
            "gains": ~gain.isfinite(),
            "negative_label": gain < 0,
        }
        for kind, wrong in rules.items():
            bad_sessions = torch.zeros(rows, dtype=torch.bool, device=scores.device)
            bad_sessions[session[wrong]] = True
            checks.reject(kind, bad_sessions, name)

    picked = gain.nonzero()[:, 0]  # entries with a non-zero label
    row = session[picked]
    size = torch.bincount(row, minlength=rows)
    slot = torch.arange(len(row), device=row.device) - (size.cumsum(0) - size)[row]
    width = max(1, int(size.max())) if rows else 1

    def by_session(values: Tensor, fill: int | bool) -> Tensor:
        """Return the values of entries with a non-zero label, by session, [S, T], padded with `fill`."""
        padded = torch.full((rows, width), fill, dtype=values.dtype, device=values.device)
        padded[row, slot] = values[picked]
        return padded

    is_item = by_session(torch.ones_like(usable), False)
    gains = by_session(gain, 0)
    return TargetCounts(
        relevant=is_item & (gains > 0),
        penalised=None if labels.dtype == torch.bool else is_item & (gains < 0),
        gains=None if labels.dtype == torch.bool else gains,
        missing=~(is_item & by_session(usable, False)),
        better=by_session(run - start, 0),
        group_size=by_session(run_length, 0),
        num_ranks=int(torch.bincount(session, minlength=1).max()),
        num_ranked=torch.bincount(session[usable], minlength=rows),
        num_recommended=None if min_score is None else torch.bincount(session[scores >= min_score], minlength=rows),
    )


def check_entries(scores: Tensor, labels: Tensor, indexes: Tensor) -> None:
    """Raise unless flat scores, labels and session ids have accepted dtypes, one shape and one device."""
    check_scores(scores, dims=1)
    if not isinstance(indexes, (Tensor, Mapping)) and len(indexes) and isinstance(indexes[0], str):
        raise TypeError(
            f"indexes must be a tensor, got text such as {str(indexes[0])!r}: number the sessions of all batches, "
            "_, indexes = trm.Vocabulary.number(ids)"
        )
    check_ids("indexes", indexes)
    check_tensor("labels", labels)
    check_strided("labels", labels)
    if not (labels.shape == indexes.shape == scores.shape):
        raise ValueError(
            f"scores, labels and indexes must be tensors of one shape, got {describe(scores)}, "
            f"{describe(labels)} and {describe(indexes)}"
        )
    if labels.is_complex():
        raise TypeError(f"labels must be bool or real numbers, got {describe(labels)}")
    for name, tensor in (("labels", labels), ("indexes", indexes)):
        check_device(name, tensor, scores.device)


def _session_numbers(lengths: Tensor, scores: Tensor) -> Tensor:
    """Return the session number of each entry, int64 [E], from the lengths of sessions; waits for the device."""
    check_tensor("scores", scores)
    check_ids("lengths", lengths)
    check_device("lengths", lengths, scores.device)
    if lengths.dim() != 1 or scores.dim() != 1:
        raise ValueError(
            f"lengths and scores must be [sessions] and [entries], got {list(lengths.shape)} and {list(scores.shape)}"
        )
    wrong = (lengths < 0) | (lengths > len(scores))
    if len(lengths) and bool(wrong.any()):
        raise ValueError(f"lengths must be 0 to {len(scores)}, the number of entries, got {int(lengths[wrong][0])}")
    if int(lengths.sum()) != len(scores):
        raise ValueError(f"lengths add up to {int(lengths.sum())}, but scores has {len(scores)} entries")
    return torch.arange(len(lengths), device=scores.device).repeat_interleave(lengths)
