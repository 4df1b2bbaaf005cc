"""`Evaluator`: ranks each batch once for one or several metrics, adds their row values up, and computes the results."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torchmetrics import Metric
from torchmetrics.utilities import rank_zero_warn
from torchmetrics.utilities.distributed import gather_all_tensors
from torchmetrics.utilities.exceptions import TorchMetricsUserError

from torchrecmetrics.core.arrays import as_tensor, float_dtype, ordinary_tensors
from torchrecmetrics.core.checks import VIOLATIONS, Checks, in_words, nearest
from torchrecmetrics.core.distributed import gathered, is_distributed, sum_and_compare, sum_over_processes
from torchrecmetrics.core.options import Input, Options
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.core.result import Result, RowValues
from torchrecmetrics.inputs.as_input import as_input
from torchrecmetrics.inputs.questions import Questions
from torchrecmetrics.metrics.accumulator import Accumulator, BareMetric, State, own_lists
from torchrecmetrics.metrics.description import Description, Formulas, empty_result

Method = TypeVar("Method", bound=Callable[..., Any])

ARGUMENTS = ("scores", "target", "gains", "exclude", "weights", "depth")
"""Parameters of `update`."""


def outside_graphs(method: Method) -> Method:
    """Keep a method out of the graphs of torch.compile, as `torch.compiler.disable` does.

    `torch.compiler.disable` imports the compiler, which takes seconds; this decorator disables the method only if the
    compiler has been imported already.
    """
    disabled = _disable_dynamo(method)

    @wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        return (disabled if "torch._dynamo" in sys.modules else method)(*args, **kwargs)

    return cast(Method, run)


class Totals(NamedTuple):
    """States that are summed over the processes."""

    violations: Tensor
    """Int64 [kinds]."""
    states: list[State]
    """The evaluator's own, then those of each accumulator."""


class Evaluator(BareMetric):
    """The sums of one or several metrics, from one ranking per batch; base of `RankingMetric`, part of a collection.

    The states are the matrix `<name>-sums` (see `Layout`), `<name>-violations` by kind and, for devices without
    float64, `<name>-counts` of rows. Updates replace them and never write to them: torchmetrics shares states between
    members of a compute group, copies and state dicts. With `persistent(True)` a state dict has this process's sums:
    for a checkpoint of several processes call `sync()` before saving, and after loading call `reset()` on all processes
    but one.

    Metrics that are not means over rows are computed from the states of accumulators, which they share.
    """

    _computed: Any
    """Number of updates and results of the last `compute`; None = the states have changed since."""
    _forward_cache: Any
    """Values of the last batch that `forward` added, by key."""

    def _begin(self, metrics: Mapping[str, Description], name: str, accumulators: Sequence[Accumulator] = ()) -> None:
        """Set the metrics, by key, and register empty states; `name` contains everything that values depend on."""
        counts: dict[str, Accumulator] = {}
        self._counts_of: dict[str, int] = {}
        """Number of the accumulator from which a metric is computed, by key, for metrics that are not means."""
        for key, metric in metrics.items():
            if metric.kind == "counted":
                accumulator: Accumulator = metric.metric_class.make_counts(metric)
                counts.setdefault(accumulator.option, accumulator)
                self._counts_of[key] = [*counts].index(accumulator.option)
        suffixes = [suffix for accumulator in accumulators for suffix in accumulator.suffixes]
        self.formulas: Formulas = Formulas(metrics, suffixes)
        self.ranking_options: Options = self.formulas.leader.ranking_options
        """Options with which batches are ranked: those of the metrics, unless a caller replaces them."""
        self._add_states(name, [*counts.values(), *accumulators])
        self._questions: Questions = Questions()
        """Questions about odd data, which are asked once."""
        self._last_results: dict[str, Result] = {}
        """Results of the last `compute` by key, also after `reset`; empty, and another dict, after each update."""

    def _add_states(self, name: str, accumulators: Sequence[Accumulator]) -> None:
        self._state_name: str = name
        layout = self.formulas.layout
        self._readers: dict[str, Accumulator] = {}
        """Accumulators by the names of the columns that they read from `update`."""
        for accumulator in accumulators:
            for column in accumulator.columns:
                if column in self._readers:
                    raise ValueError(f"{self._readers[column].option} and {accumulator.option} both read {column}=")
                if column in ARGUMENTS:
                    raise ValueError(f"{accumulator.option} reads {column}=, which is an argument of update: rename it")
                self._readers[column] = accumulator
            if hasattr(accumulator, "layout"):
                raise ValueError(f"{accumulator.option} already belongs to a metric or collection: make one for each")
            for option in ("sync_on_compute", "dist_sync_fn", "process_group", "distributed_available_fn", "_device"):
                setattr(accumulator, option, getattr(self, option))
            accumulator.begin(layout)
        self.accumulators: Sequence[Accumulator] = cast(Sequence[Accumulator], nn.ModuleList(accumulators))
        self._sums, self._violations, self._counts = (f"{name}-{state}" for state in ("sums", "violations", "counts"))
        with ordinary_tensors():
            sums = layout.zeros(device=self._device)
            violations = torch.zeros(len(VIOLATIONS), dtype=torch.int64, device=self._device)
            counts = violations.new_zeros(layout.num_counts)
            if not layout.keys:  # nothing reads these sums; torchmetrics does not merge metrics of NaN states
                sums = sums.fill_(torch.nan)
        for state, empty in ((self._sums, sums), (self._violations, violations), (self._counts, counts)):
            self.add_state(state, empty, dist_reduce_fx="sum")
        self._synced: Totals | None = None

    @property
    def label(self) -> str:
        """Label of the first metric, which messages name."""
        return self.formulas.leader.label

    # -------------------------------------------------------------------------------------------------------- a batch

    @outside_graphs
    @torch.no_grad()
    def update(
        self,
        scores: Tensor | NDArray[Any] | Ranking | Input | None = None,
        target: Any = None,
        *,
        gains: Any = None,
        exclude: Any = None,
        weights: Tensor | NDArray[Any] | None = None,
        depth: int | None = None,
        **columns: Tensor | NDArray[Any] | None,
    ) -> None:
        """Add a batch: `(scores, target)`, `(ranks)`, a `Ranking`, or an input such as `Lists`.

        Args:
            scores: a tensor or, as the other arguments, a NumPy array: float [B, I], higher is better; or integer ranks
                [B], [B, 1] or [B, T], 1 = best, negative = padding; or a `Ranking`; or an input: `Scores`, `Ranks`,
                `Hits`, `Lists`, `Sessions`, `Negatives`, `Candidates`, `ItemShard`, `SemanticIds.beams(...)`.
            target: relevant items, as in `Scores`: ids [B] or [B, T], negative = padding, or jagged; bool [B, I]; or
                graded floats [B, I].
            gains: gains [B, T] of target ids, as in `Scores`.
            exclude: items that are removed from the candidates, as in `Scores`.
            weights: weight of each row, [B], >= 0.
            depth: for ranks only: number of known ranks, such as the k of `get_topk_ranks`; required unless `scores` is
                the very tensor that `get_topk_ranks` returned.
            columns: further columns [B] that accumulators read: `groups`, `row_ids`, ...

        Raises:
            TypeError: for a dtype that is not accepted, and for an unknown argument.
            ValueError: for shapes or devices that do not fit and, on the CPU, for bad values. Nothing is added then.
        """
        if scores is None:
            self._check_names(columns)
        self._add_rows(self._batch_rows(as_input(scores, target, gains, exclude, depth), weights, columns))

    @outside_graphs
    @torch.no_grad()
    def forward(
        self,
        scores: Any = None,
        target: Any = None,
        *,
        gains: Any = None,
        exclude: Any = None,
        weights: Any = None,
        depth: int | None = None,
        **columns: Any,
    ) -> Any:
        """Add a batch and return its own values; takes the arguments of `update` and waits for the device."""
        if scores is None:
            self._check_names(columns)
        batch = as_input(scores, target, gains, exclude, depth)
        rows = self._batch_rows(batch, weights, columns)
        results = self._batch_results(rows, getattr(batch, "process_group", None))
        kept, values = (values_of(results, self.device) for _ in range(2))
        self._add_rows(rows)
        self._forward_cache = kept
        return values

    def _batch_rows(
        self,
        batch: Input | Ranking,
        weights: Tensor | NDArray[Any] | None = None,
        columns: Mapping[str, Tensor | NDArray[Any] | None] | None = None,
        options: Options | None = None,
    ) -> RowValues:
        """Return the values of a batch of rows for each metric; changes no state. Errors as in `update`.

        `options` replace `ranking_options`.
        """
        options = options or self.ranking_options
        present = {name: as_tensor(column) for name, column in (columns or {}).items() if column is not None}
        weights = None if weights is None else as_tensor(weights)
        scope = getattr(batch, "scope", None)  # of an input that several processes share
        with nullcontext() if scope is None else scope(weights, present):
            if columns:
                self._check_names(columns)
            ranking = batch if isinstance(batch, Ranking) else batch.rank(self.formulas.needs, options)
            if self._is_synced:
                self._check_not_synced("add a batch")
            if ranking.options is not options.of_ranks and ranking.options:
                self._check_options(ranking)
            rows, device = len(ranking.num_relevant), ranking.num_relevant.device
            if device != vars(self)[self._sums].device:
                raise ValueError(
                    f"{self.label} is on {self.device}, its input on {device}: move the metric with .to(device)"
                )
            checks_values = options.validate_args or self.formulas.leader.empty_target_action == "error"
            checks = Checks(checks_values, device, rows, ranking.rows.own)
            ranking = self.formulas.check(ranking, checks)
            if weights is not None:
                weights = checked_weights(ranking.per_row("weights", weights, checks), checks).nan_to_num(0)
            present = {name: ranking.per_row(name, column, checks) for name, column in present.items()}
            for accumulator in self.accumulators:
                accumulator.check(rows, present if weights is None else {**present, "weights": weights}, checks)
            valid, violations = checks.finish()
            if valid is not None:
                ranking = ranking.rejecting(valid, violations)
            if not self._questions.are_asked:
                self._questions.ask(batch, ranking, self.formulas.needs, options)
            return self.formulas.values(ranking, weights, present)

    def _check_options(self, ranking: Ranking) -> None:
        """Raise for a ranking that was made with other options."""
        if text := self.ranking_options.contradiction(ranking.options):
            raise ValueError(f"{self.label} {text}")

    def _check_names(self, columns: Iterable[str]) -> None:
        """Raise for a column that no accumulator reads."""
        for name in columns:
            if name not in self._readers:
                known = nearest(name, [*ARGUMENTS, *self._readers])
                raise TypeError(f"update has no argument {name!r}{known}")

    def _add_rows(self, rows: RowValues) -> None:
        """Add a batch of rows to the states, also of accumulators; all new states exist before one is replaced."""
        with ordinary_tensors():
            attributes = vars(self)  # Module.__setattr__ takes longer than the additions
            batch, new, violations = rows.sums(self.formulas.layout), {}, rows.ranking.rows.violations
            if violations is not None:
                new[self._violations] = attributes[self._violations] + violations
            if batch.dtype != torch.float64:  # float32 stalls at 2^24
                number = self.formulas.layout.num_counts
                new[self._counts] = attributes[self._counts] + batch[:number, 0].long()
                batch = torch.cat([torch.nn.functional.pad(batch[:number, 1:], (1, 0)), batch[number:]])
            new[self._sums] = attributes[self._sums] + batch
            added = [(accumulator, accumulator.added(rows)) for accumulator in self.accumulators]
        new["_update_count"] = attributes["_update_count"] + 1
        self._assign(new, added)

    def _assign(self, new: State, added: Sequence[tuple[Accumulator, State]] = ()) -> None:
        """Replace states, also of accumulators, and forget the results of the old ones; never raises."""
        for accumulator, state in added:
            accumulator.assign(state)
        vars(self).update(new, _computed=None, _last_results={})

    def _batch_results(self, rows: RowValues, process_group: Any = None) -> dict[str, Result]:
        """Return the results of one batch by key; keys whose value needs more than a batch are left out.

        `process_group`: the processes that share the same rows; None = this metric's.
        """
        of_batch = [(accumulator, accumulator.batch_totals(rows)) for accumulator in self.accumulators]
        totals = {accumulator: state for accumulator, state in of_batch if state is not None}
        violations = rows.ranking.rows.violations
        violations = torch.zeros_like(vars(self)[self._violations]) if violations is None else violations
        states = [{self._sums: rows.sums(self.formulas.layout)}, *totals.values()]
        across, summing_group = self.dist_sync_on_step and self.distributed_available_fn(), self.process_group
        if not across and rows.ranking.rows.own is not None:
            across = is_distributed()
            summing_group = self.process_group if process_group is None else process_group
        if across:
            states = summed([{"violations": violations}, *states], self.dist_sync_fn, summing_group)
            violations = states.pop(0)["violations"]
        return self._summarize(Totals(violations, states), [*totals])

    # -------------------------------------------------------------------------------------------------------- results

    @outside_graphs
    def compute(self) -> Any:
        """Return the values over all processes; NaN and a warning if there was no row.

        Raises:
            ValueError: if updates held bad values that could not raise at once; the message counts the rows by kind.
        """
        return values_of(self.compute_results(), self.device)

    def compute_results(self) -> dict[str, Result]:
        """Return the results over all processes by key; they are computed once, until the next update."""
        computed, updates = self._computed, self._update_count
        if computed is not None and computed[0] == updates:  # unless another thread has updated since
            results: dict[str, Result] = computed[1]
        else:
            sync = self.sync_on_compute and self._synced is None and self.distributed_available_fn()
            results = self._summarize(self._totals(sync) if self._synced is None else self._synced, self.accumulators)
            if empty := [key for key in self.formulas.metrics if results[key].num_users == 0]:
                rank_zero_warn(f"no row to average over, the value is nan: {', '.join(empty)}", UserWarning)
            self._computed = (updates, results) if self.compute_with_cache else None
        self._last_results = results
        return results

    def _summarize(self, totals: Totals, accumulators: Sequence[Accumulator]) -> dict[str, Result]:
        """Return the results by key from totals over the processes, of this metric and of accumulators."""
        self._check_violations(totals.violations)
        own, *states = totals.states
        results = self.formulas.layout.results(own[self._sums], own.get(self._counts))
        for key, place in self._counts_of.items():
            metric = self.formulas.metrics[key]
            value, number = metric.metric_class.counted_value(metric, states[place])
            results[key] = empty_result(key, metric).with_value(value, number)
        for accumulator, state in zip(accumulators, states, strict=True):
            results |= accumulator.results(state)
        return {key: results[key] for key in self.formulas.metric_of_key if key in results}

    def _check_violations(self, counts: Tensor) -> None:
        """Raise if updates held bad input; `counts` are the numbers of bad rows of each kind."""
        numbers = counts.tolist()
        if any(numbers):
            pairs = zip(numbers, VIOLATIONS.values(), strict=True)
            kinds = "; ".join(f"{in_words(rows)} {text}" for rows, text in pairs if rows)
            raise ValueError(f"{self.label}: bad input since the last reset: {kinds}")

    # ------------------------------------------------------------------------------------------------------- processes

    def _totals(self, sync: bool, gather: Any = None, process_group: Any = None) -> Totals:
        """Return the states and those of the accumulators; with `sync`, summed over the processes.

        The first all-reduce has the same length whatever the metrics are, and tells whether all processes have the same
        metrics. The second sums the floats, a third the integers of accumulators, if any. `gather` and `process_group`
        replace the metric's own `dist_sync_fn` and `process_group`.
        """
        gather, group = gather or self.dist_sync_fn, process_group or self.process_group
        violations: Tensor = vars(self)[self._violations]
        own: State = {self._sums: vars(self)[self._sums]}
        if own[self._sums].dtype != torch.float64:
            own[self._counts] = vars(self)[self._counts]
        states = [own, *(accumulator.totals() for accumulator in self.accumulators)]
        if not sync:
            return Totals(violations, states)
        options = ", ".join(accumulator.option for accumulator in self.accumulators) or "none"
        digest = hashlib.sha256(f"{self._state_name} with {options}".encode()).digest()
        violations, are_same = sum_and_compare(violations, int.from_bytes(digest[:7], "big"), gather, group)
        if not are_same:
            held = f"{', '.join(self.formulas.layout.keys)} with accumulators: {options}"
            of_each = gathered(held, group) if gather in (None, gather_all_tensors) else [held]
            names = "; ".join(f"process {process} {text}" for process, text in enumerate(of_each))
            raise ValueError(f"processes differ in their metrics or accumulators: {names}")
        return Totals(violations, summed(states, gather, group))

    # ----------------------------------------------------------------------------------------- methods of torchmetrics

    def reset(self) -> None:
        """Forget all updates; the results of the last `compute` stay readable."""
        with ordinary_tensors():
            own_lists(self)
            super().reset()
            for accumulator in self.accumulators:
                accumulator.reset()
        self._synced = None

    def persistent(self, mode: bool = False) -> None:
        """Set whether state dicts hold the states, those of the accumulators included."""
        super().persistent(mode)
        for accumulator in self.accumulators:
            accumulator.persistent(mode)

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the state of a metric, or collection, with the same metrics and options; or such a state as a dict.

        Raises:
            TypeError: for anything else.
            ValueError: for a state of other metrics or options, or on another device. Nothing is added then.
        """
        self._check_not_synced("merge")
        with ordinary_tensors():
            new, merged = self._merged(incoming_state)
        self._assign(new, merged)

    def _check_not_synced(self, action: str) -> None:
        if self._is_synced:
            raise TorchMetricsUserError(f"{self.label} is synchronised: call unsync() before you {action}")

    def _check_state(self, state: Mapping[str, Any]) -> None:
        """Raise for impossible states."""
        super()._check_state(state)
        if self.formulas.layout.keys:
            self.formulas.layout.check_sums(state[self._sums])

    def _check_state_dict(self, state_dict: Mapping[str, Any], prefix: str) -> None:
        """Raise if a state dict lacks states, or holds damaged ones, since torch would load the rest."""
        owners: dict[str, BareMetric] = {prefix: self}
        owners |= {f"{prefix}accumulators.{place}.": acc for place, acc in enumerate(self.accumulators)}
        names = {start + name for start, owner in owners.items() for name in owner._defaults}
        if not any(key in names or key.startswith(f"{prefix}accumulators.") for key in state_dict):
            return
        self._check_not_synced("load a state")
        for start, owner in owners.items():
            state = {key.removeprefix(start): value for key, value in state_dict.items() if key.startswith(start)}
            try:
                owner._check_state(state)
            except ValueError as error:
                raise ValueError(f"{self.label} {error}") from None

    def _merged(self, other: Any) -> tuple[State, list[tuple[Accumulator, State]]]:
        state: Any = other.metric_state if isinstance(other, Metric) else other
        if not isinstance(state, dict):
            raise TypeError(
                f"{self.label} merges a metric of the same kind or its metric_state, got {type(other).__name__}"
            )
        incoming: Sequence[Accumulator] = other.accumulators if isinstance(other, Evaluator) else []
        options = [[accumulator.option for accumulator in owner] for owner in (self.accumulators, incoming)]
        if options[0] != options[1]:
            has = [", ".join(names) or "no accumulators" for names in options]
            raise ValueError(f"one of the two has {has[0]}, the other {has[1]}: make both the same")
        expected: dict[str, Tensor] = {name: getattr(self, name) for name in self._defaults}
        shapes = {name: value.shape for name, value in expected.items()}
        if {name: getattr(value, "shape", None) for name, value in state.items()} != shapes:
            raise ValueError(f"{self.label} merges states named {list(expected)}, got {list(state)}")
        for name, value in state.items():
            if value.device != expected[name].device:
                device = expected[name].device
                raise ValueError(f"{self.label} is on {device}, the state on {value.device}: move one with .to(device)")
        new = {name: value + state[name] for name, value in expected.items()}
        pairs = zip(self.accumulators, incoming, strict=True)
        return new, [(accumulator, accumulator.merged(added)) for accumulator, added in pairs]

    def __copy__(self) -> Evaluator:
        """Return a shallow copy, which shares the states until one of the two is updated."""
        copied = type(self).__new__(type(self))
        copied.__setstate__(self.__getstate__())
        accumulators = nn.ModuleList(copy(accumulator) for accumulator in self.accumulators)
        copied._modules = {**self._modules, "accumulators": accumulators}
        return copied

    def _filter_kwargs(self, **kwargs: Any) -> dict[str, Any]:
        """Return the arguments that `update` has; a `MetricCollection` may have others for other metrics."""
        return {name: value for name, value in kwargs.items() if name in ARGUMENTS or name in self._readers}

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Replace the states by those summed over all processes, until `unsync`; as torchmetrics' own method."""
        super().sync(*args, **kwargs)
        self._computed = None

    def unsync(self, should_unsync: bool = True) -> None:
        """Restore the states of this process."""
        was_synced = self._is_synced
        super().unsync(should_unsync)
        for accumulator in self.accumulators if was_synced and should_unsync else ():
            if accumulator._is_synced:
                accumulator.unsync()
        self._synced = self._computed = None

    def _sync_dist(self, dist_sync_fn: Any = gather_all_tensors, process_group: Any | None = None) -> None:
        """Sum all states over the processes, in place of torchmetrics' gathers with barriers."""
        gather = None if dist_sync_fn is gather_all_tensors else dist_sync_fn
        self._synced = totals = self._totals(True, gather, process_group)
        vars(self).update({self._violations: totals.violations, **totals.states[0]})
        for accumulator in self.accumulators:
            accumulator.sync(
                gather or self.dist_sync_fn, process_group or self.process_group, distributed_available=lambda: True
            )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        self._check_state_dict(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self._assign({})


def values_of(results: Mapping[str, Result], device: torch.device) -> dict[str, Tensor]:
    """Return the values of results by key, as scalars on a device, which the caller may write to."""
    dtype = float_dtype(device)
    return {key: torch.tensor(result.value, dtype=dtype, device=device) for key, result in results.items()}


def summed(states: Sequence[State], gather: Any, process_group: Any) -> list[State]:
    """Return states summed over the processes, with one all-reduce per dtype."""
    tensors = [value for state in states for value in state.values()]
    totals = iter(sum_over_processes(tensors, gather, process_group))
    return [{name: next(totals) for name in state} for state in states]


def checked_weights(weights: Tensor, checks: Checks, unit: str = "row") -> Tensor:
    """Return weights as floats, or raise for complex ones; `checks` rejects negative, huge and NaN ones."""
    if weights.is_complex():
        raise TypeError(f"weights must be real numbers, got {weights.dtype}")
    weights = weights.to(float_dtype(weights.device))
    largest = torch.finfo(weights.dtype).max ** 0.25  # squares of sums are below the largest number
    wrong = ~((weights >= 0) & (weights <= largest))
    checks.reject(
        "weights", wrong, lambda row: f"{unit} {row} has weight {weights[row]}, accepted are 0 to {largest:.0e}"
    )
    return weights
