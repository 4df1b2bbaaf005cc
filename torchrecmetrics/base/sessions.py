"""`Sessions`: flat rows of sessions that may go on in later batches and on other processes, ranked in `compute`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from torchrecmetrics.arrays import float_dtype
from torchrecmetrics.base.row_buffer import KeptRows, all_gather, from_bits, to_bits
from torchrecmetrics.base.row_values import RowEvaluator, RowGroups, RowValues
from torchrecmetrics.base.state import SparseUpdate, SumState
from torchrecmetrics.checks import VIOLATIONS, Checks, check_choice, check_device, check_ids, check_tensor
from torchrecmetrics.ranking import Ranking
from torchrecmetrics.ranking.flat import check_triple
from torchrecmetrics.ranking.rules import Rules
from torchrecmetrics.ranking.update_args import UpdateArgs

Complete: TypeAlias = bool | Literal["checked"]
"""True if sessions are whole in one call of `update`; "checked" also refuses a session that "checked" had before."""

BUCKETS = 256
"""Number of buckets of sessions, by a hash of their ids: a bucket is summed by one process, in a fixed order."""
NAMES = ("scores", "gains", "ids", "weights", "groups")
ROWS_AT_ONCE = 2**20
"""Approximate number of flat rows that are ranked together, in whole buckets."""


class FlatRows(NamedTuple):
    """Flat rows of one batch, one entry per (session, candidate); all fields are [E]."""

    scores: Tensor
    gains: Tensor
    """Labels, bool or numbers: > 0 is relevant."""
    ids: Tensor
    """Session of each row, int64."""
    weights: Tensor | None = None
    groups: Tensor | None = None

    @classmethod
    def read(cls, args: UpdateArgs, weights: Tensor | None, groups: Tensor | None, rules: Rules) -> FlatRows:
        """Return the flat rows of `update(scores, labels, indexes=)` or `update(scores, labels, lengths=)`, checked.

        Raises:
            TypeError: for dtypes that are not accepted.
            ValueError: for shapes and devices that do not fit and, on the CPU, for bad values.
        """
        for name in ("gains", "exclude", "ranks", "ranking", "depth", "history", "candidates", "shard"):
            if getattr(args, name) is not None:
                raise ValueError(f"{name} was given beside flat rows, which take scores, target, weights and groups")
        if args.missing_target != "unreachable":
            raise ValueError("missing_target belongs to candidates=, which flat rows do not take")
        scores, target, indexes, lengths = args.scores, args.target, args.indexes, args.lengths
        if indexes is not None and lengths is not None:
            raise ValueError("indexes and lengths both say which rows belong together: give one of them")
        check_tensor("scores", scores)
        assert isinstance(scores, Tensor)
        if lengths is not None:
            indexes = _session_numbers(lengths, scores)
            weights, groups = (
                None if part is None else _per_row(name, part, lengths, indexes)
                for name, part in (("weights", weights), ("groups", groups))
            )
        assert indexes is not None
        check_triple(scores, target, indexes)  # type: ignore[arg-type]  # which refuses None
        assert isinstance(target, Tensor)
        for name, part in (("weights", weights), ("groups", groups)):
            if part is not None:
                check_tensor(name, part)
                check_device(name, part, scores.device)
                if part.shape != scores.shape:
                    raise ValueError(
                        f"{name} must be [{len(scores)}], one per flat row and equal within a session, got "
                        f"{list(part.shape)}"
                    )
        if rules.validate_args is True and scores.device.type == "cpu":
            for name, wrong in (("score", scores.isnan() | (scores == torch.inf)), ("label", ~target.isfinite())):
                if wrong.any():
                    row = int(wrong.nonzero()[0])
                    kinds = "NaN or +inf" if name == "score" else "NaN or infinite"
                    raise ValueError(
                        f"{int(wrong.sum())} of {len(wrong)} rows with a {name} that is {kinds}: row {row}"
                    )
        return cls(scores, target, indexes.long(), weights, groups)

    def columns(self) -> dict[str, Tensor | None]:
        """Return copies of the rows as the columns to keep, [1, E] by name."""
        wide = torch.float64 if self.scores.dtype == torch.float64 else torch.float32
        columns = {
            "scores": self.scores.to(wide, copy=True),
            "gains": self.gains.clone() if self.gains.dtype == torch.bool else self.gains.to(torch.float64, copy=True),
            "ids": self.ids.clone(),
            "weights": None if self.weights is None else self.weights.to(torch.float64, copy=True),
            "groups": None if self.groups is None else self.groups.to(torch.int64, copy=True),
        }
        return {name: None if column is None else column[None] for name, column in columns.items()}


class Ranked(NamedTuple):
    """Ranked sessions, one row per session."""

    ranking: Ranking
    weights: Tensor | None
    groups: Tensor | None
    ids: Tensor
    """Session ids, int64 [S]."""
    seen: Tensor | None = None
    """All session ids given so far, for `complete="checked"`; None = not checked."""


def rank_sessions(
    rows: FlatRows, rules: Rules, num_groups: int, ids: Tensor | None = None, width: int | None = None
) -> Ranked:
    """Rank whole sessions; if the session ids are given as `ids`, [S], `rows.ids` are session numbers from 0."""
    session = rows.ids
    if ids is None:
        ids, session = torch.unique(rows.ids, return_inverse=True)
    number = len(ids)
    checks = Checks(rules.validate_args, rows.scores.device, number)
    own: list[Tensor | None] = []
    for part in (rows.weights, rows.groups):
        first = None if part is None else part.new_zeros(number).scatter(0, session, part)
        if part is not None and first is not None and checks.enabled:
            differ = torch.zeros(number, dtype=torch.bool, device=part.device)
            differ[session[first[session] != part]] = True
            checks.reject("session", differ, lambda row: f"session {int(ids[row])}")
        own.append(first)
    weights, groups = own
    if groups is not None and checks.enabled:
        outside = (groups < -1) | (groups >= num_groups)
        checks.reject("groups", outside, lambda row: f"session {int(ids[row])} is of group {int(groups[row])}")
    ranking = Ranking.from_sessions(
        rows.scores, rows.gains, session, rules, checks, lambda row: f"session {int(ids[row])}", width
    )
    return Ranked(ranking, weights, groups, ids)


class Sessions:
    """Buffer of flat rows until `compute`: 13 to 40 bytes per row, on their device or, beyond a budget, on the CPU."""

    def __init__(self) -> None:
        self.rows: KeptRows = KeptRows({"scores": 1, "gains": 1, "ids": 1}, {"weights": 1, "groups": 1})
        self._dtypes: tuple[torch.dtype, torch.dtype] | None = None
        self._seen: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, rows: FlatRows) -> None:
        """Keep a batch of flat rows.

        Raises:
            ValueError: for weights or groups that only some batches have, and scores or labels of another dtype.
        """
        columns = rows.columns()
        self.rows.check(columns)
        scores, gains = columns["scores"], columns["gains"]
        assert scores is not None
        assert gains is not None
        dtypes = scores.dtype, gains.dtype
        if len(self) and dtypes != self._dtypes:
            raise ValueError(f"scores and labels are {dtypes}, those of batches before {self._dtypes}: give all alike")
        self._dtypes = dtypes
        self.rows.add(columns)

    def take(
        self,
        evaluator: RowEvaluator,
        args: UpdateArgs,
        weights: Tensor | None,
        groups: Tensor | None,
        complete: Complete,
    ) -> Ranked | None:
        """Keep flat rows until `compute` and return None; or return whole sessions, ranked, for the caller to add.

        Raises:
            ValueError: for metrics that read items, which flat rows do not name, and as `FlatRows.read`.
        """
        check_choice("complete", complete, (False, True, "checked"))
        if len(self) if complete == "checked" else not complete and args.lengths is None and self._seen is not None:
            raise ValueError(
                "a session could be both in a batch with complete='checked' and in a batch without complete=: give all "
                "batches since the last reset alike"
            )
        first = evaluator.given[0]
        if evaluator.needs.list_depth or evaluator.needs.history:
            raise ValueError(f"{first.label}: flat rows do not name items, which metrics of the lists read")
        rows = FlatRows.read(args, weights, groups, first.rules)
        for metric in evaluator.members:
            metric.check_ready(rows.scores.device)
        if first.groups and groups is None:
            raise ValueError(f"update(..., groups=) says to which of {', '.join(first.groups)} each row belongs")
        if args.lengths is None and not complete:
            self.add(rows)
            for metric in evaluator.members:
                metric.count_update()
            return None
        ids = None
        if args.lengths is not None:
            ids = torch.arange(len(args.lengths), device=rows.scores.device)
            if complete == "checked":
                raise ValueError("complete='checked' compares session ids: give indexes")
        ranked = rank_sessions(rows, first.rules, len(first.groups), ids)
        return ranked._replace(seen=self._seen_with(ranked.ids)) if complete == "checked" else ranked

    def _seen_with(self, ids: Tensor) -> Tensor:
        """Return all session ids seen so far and `ids`; raise if one of `ids` was seen before."""
        seen = ids[:0] if self._seen is None else self._seen.to(ids.device)
        again = ids[torch.isin(ids, seen)]
        if len(again):
            raise ValueError(f"session {int(again[0])} was given before: with complete='checked' each is given once")
        return torch.cat([seen, ids])

    def remember(self, seen: Tensor | None) -> None:
        """Store the session ids seen so far; None changes nothing."""
        self._seen = self._seen if seen is None else seen

    def check(self, other: Sessions) -> None:
        """Raise if the kept rows of another metric have other columns or dtypes than those of this metric."""
        if len(self) and len(other) and other._dtypes != self._dtypes:
            raise ValueError(f"scores and labels are {other._dtypes}, those kept here {self._dtypes}: give all alike")
        self.rows.check_all(other.rows)
        for checked, waiting in ((self, other), (other, self)):
            if checked._seen is not None and len(waiting):
                raise ValueError("sessions given with complete='checked' do not merge with sessions without complete=")
        if self._seen is not None and other._seen is not None:
            self._seen_with(other._seen)

    def extend(self, other: Sessions) -> None:
        """Add the kept rows of another metric."""
        if len(other):
            self.rows.extend(other.rows)
            self._dtypes = other._dtypes
        if other._seen is not None:
            self._seen = self._seen_with(other._seen)

    def save_to(self, destination: dict[str, Any], prefix: str) -> None:
        """Write the rows of this process into a state dict, if there are any."""
        if len(self):
            for name, column in self.columns(torch.device("cpu")).items():
                destination[f"{prefix}sessions-{name}"] = column

    def load_from(self, state_dict: dict[str, Any], prefix: str) -> None:
        """Replace the rows by those of a state dict, which are removed from the dict."""
        columns = {}
        for name in NAMES:
            column = state_dict.pop(f"{prefix}sessions-{name}", None)
            columns[name] = None if column is None else column.clone()[None]
        self.__init__()  # type: ignore[misc]
        if columns["scores"] is not None:
            self.rows.add(columns)
            self._dtypes = columns["scores"].dtype, columns["gains"].dtype  # type: ignore[union-attr]

    def refuse_sync(self, device: torch.device, group: Any) -> None:
        """Raise on all processes if any process has kept rows, since `sync()` only adds sums up."""
        waiting = torch.tensor(len(self), device=device)
        torch.distributed.all_reduce(waiting, group=group)
        if waiting:
            raise ValueError("sync() moves no flat rows: compute() puts sessions of several processes together")

    def columns(self, device: torch.device) -> dict[str, Tensor]:
        """Return the kept rows of this process as columns by name, [E]."""
        return {name: column[0] for name, column in self.rows.here(device).items()}

    def sums(
        self,
        evaluator: RowEvaluator,
        *,
        across: bool,
        group: Any,
        use: Callable[[RowValues, Ranked], None] | None = None,
    ) -> dict[int, SumState]:
        """Rank this process's share of the sessions; return the sums of each metric by its `id`.

        Sums are taken bucket by bucket in the order of hashed ids, so that they do not depend on batches or on the
        number of processes.

        Args:
            evaluator: the metrics.
            across: True = exchange rows with the other processes, and add up the sums of all processes.
            group: process group.
            use: function that is called with the row values and the ranked sessions of each chunk.
        """
        metrics, first = evaluator.metrics, evaluator.given[0]
        device = first.state().sums.device
        columns = self.columns(device)
        if across:
            columns = _exchange(columns, len(self) > 0, group)
        number = 1 + len(first.groups)
        sums = torch.zeros(len(metrics), BUCKETS, number, 5, dtype=float_dtype(device), device=device)
        counts = torch.zeros(len(metrics), BUCKETS, number, 4, dtype=torch.int64, device=device)
        violations = torch.zeros(len(metrics), len(VIOLATIONS), dtype=torch.int64, device=device)
        counted = [metric.empty_state() for metric in evaluator.counters]
        rules = replace(first.rules, validate_args=first.rules.validate_args and "deferred")  # all processes raise
        for rows, ids, width in _chunks(columns):
            ranked = rank_sessions(rows, rules, number - 1, ids, width)
            codes = _bucket(ids).long() * number
            if ranked.groups is not None:
                codes = codes + 1 + ranked.groups.clamp(-1, number - 2)
            values = evaluator.row_values(ranked.ranking, ranked.weights, RowGroups(codes, BUCKETS * number), True)
            added = evaluator.batch_sums(values)
            if metrics:
                found = values.sums()
                sums += found.sums.view(len(metrics), -1, 5)[:, 1:].reshape(sums.shape)
                counts += found.counts[:, 4 + len(VIOLATIONS) :].view(counts.shape)
                violations += found.counts[:, 4 : 4 + len(VIOLATIONS)]
            updates = cast("list[SparseUpdate]", added[len(metrics) :])
            counted = [update.added_to(state) for update, state in zip(updates, counted, strict=True)]
            if use is not None:
                use(values, ranked)
        if across:
            for part in (sums, counts, violations, *(part for state in counted for part in state)):
                torch.distributed.all_reduce(part, group=group)
        states = [*_states(sums.sum(1), counts.sum(1), violations), *counted]
        return dict(zip(map(id, evaluator.members), states, strict=True))


def _states(sums: Tensor, counts: Tensor, violations: Tensor) -> list[SumState]:
    """Return the state of each metric from sums by group; the first entry has the sums of rows of no group."""
    sums, counts = (torch.cat([part.sum(1, keepdim=True), part[:, 1:]], 1) for part in (sums, counts))
    whole = torch.cat([counts[:, 0], violations, counts[:, 1:].flatten(1)], 1)
    return [SumState(*state) for state in zip(sums.flatten(1).unbind(), whole.unbind(), strict=True)]


def _chunks(columns: Mapping[str, Tensor]) -> Iterator[tuple[FlatRows, Tensor, int]]:
    """Yield flat rows of whole sessions, with sessions numbered from 0, the session ids, and the width of targets.

    A chunk holds the sessions of one width, a power of 2, from one or more whole buckets.
    """
    bucket = _bucket(columns["ids"])
    order = bucket.argsort(stable=True)
    part = torch.bincount(bucket, minlength=BUCKETS).cumsum(0) // ROWS_AT_ONCE  # chunk of each bucket
    ends = torch.bincount(part[bucket.long()]).tolist()
    for at in torch.split(order, ends):
        if not len(at):
            continue
        rows = {name: column[at] for name, column in columns.items()}
        ids, session = torch.unique(rows.pop("ids"), return_inverse=True)
        relevant = torch.bincount(session[rows["gains"] != 0], minlength=len(ids))
        width = torch.exp2(relevant.clamp(min=1).double().log2().ceil()).long()
        for wide in torch.unique(width).tolist():
            chosen = width == wide
            number = chosen.cumsum(0) - 1
            inside = chosen[session]
            taken = {name: column[inside] for name, column in rows.items()}
            yield FlatRows(ids=number[session[inside]], **taken), ids[chosen], wide


def _bucket(ids: Tensor) -> Tensor:
    """Return the bucket of each session id, uint8 [n], in steps of `ROWS_AT_ONCE` ids."""
    parts = [(_hashed(part) & (BUCKETS - 1)).to(torch.uint8) for part in torch.split(ids, ROWS_AT_ONCE)]
    return torch.cat(parts) if parts else ids.to(torch.uint8)


def _hashed(ids: Tensor) -> Tensor:
    """Mix the bits of int64 ids, one-to-one (the finaliser of splitmix64)."""
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        ids = (ids ^ ((ids >> shift) & (2 ** (64 - shift) - 1))) * factor
    return ids ^ ((ids >> 31) & (2**33 - 1))


def _exchange(columns: Mapping[str, Tensor], has_rows: bool, group: Any) -> dict[str, Tensor]:
    """Send each row to the process that owns its bucket; return the rows that this process received, [E] by name.

    Raises:
        ValueError: on all processes, if weights, groups or dtypes are not the same on all processes with rows.
    """
    dtypes = (torch.float64, torch.float32, torch.int64, torch.bool)
    device, world = columns["scores"].device, torch.distributed.get_world_size(group)
    owner = _bucket(columns["ids"].long()) % world
    order = owner.argsort(stable=True)
    sent = torch.bincount(owner, minlength=world)
    kinds = [1 + dtypes.index(columns[name].dtype) if has_rows and name in columns else 0 for name in NAMES]
    told = torch.stack(all_gather(torch.cat([torch.tensor(kinds, device=device), sent]), group))
    alike = {tuple(row[: len(NAMES)]) for row in told.tolist() if any(row[: len(NAMES)])}
    if len(alike) > 1:
        raise ValueError(
            "flat rows have weights, groups, or dtypes of scores and labels on some processes that others have not"
        )
    present = {name: dtypes[kind - 1] for name, kind in zip(NAMES, alike.pop(), strict=True) if kind}
    packed = torch.zeros(len(owner), len(present), dtype=torch.int64, device=device)
    if has_rows:
        packed = torch.stack([to_bits(columns[name])[order] for name in present], 1)
    rank = torch.distributed.get_rank(group)
    got = told[:, len(NAMES) + rank].tolist()
    received = packed.new_empty(sum(got), len(present))
    torch.distributed.all_to_all_single(received, packed, got, sent.tolist(), group=group)
    return {name: from_bits(received[:, at], dtype) for at, (name, dtype) in enumerate(present.items())}


def _session_numbers(lengths: Tensor, scores: Tensor) -> Tensor:
    """Return the session number of each row, int64 [E], from the lengths of sessions; waits for the device."""
    check_ids("lengths", lengths)
    check_device("lengths", lengths, scores.device)
    if lengths.dim() != 1 or scores.dim() != 1:
        raise ValueError(
            f"lengths and scores must be [sessions] and [rows], got {list(lengths.shape)} and {list(scores.shape)}"
        )
    if len(lengths) and int(lengths.min()) < 0:
        raise ValueError(f"lengths must be 0 or more, got {int(lengths.min())}")
    if int(lengths.sum()) != len(scores):
        raise ValueError(f"lengths add up to {int(lengths.sum())}, scores has {len(scores)} rows")
    return torch.arange(len(lengths), device=scores.device).repeat_interleave(lengths)


def _per_row(name: str, values: Any, lengths: Tensor, session: Tensor) -> Any:
    """Return weights or groups per row, [E], from values per session, [S]."""
    check_tensor(name, values)
    if values.shape != lengths.shape:
        raise ValueError(f"{name} must be [{len(lengths)}], one per session, got {list(values.shape)}")
    return values[session]
