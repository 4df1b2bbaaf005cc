"""`Evaluator`: ranks each batch once for one or several metrics, adds their row values up, and computes the results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import reduce, wraps
from typing import Any, TypeVar, cast

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._compile import _disable_dynamo
from torchmetrics.utilities import rank_zero_warn

from torchrecmetrics.core.arrays import as_tensor, cached_constant, float_dtype
from torchrecmetrics.core.checks import VIOLATIONS, Checks, in_words, shown
from torchrecmetrics.core.distributed import is_distributed, sum_over_processes
from torchrecmetrics.core.options import Input, Needs, Options
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.core.result import Result
from torchrecmetrics.core.row_values import Layout, RowValues
from torchrecmetrics.inputs.as_input import as_input, too_many_arguments, unknown_argument
from torchrecmetrics.inputs.sanity import SanityCheck
from torchrecmetrics.metrics.accumulator import Accumulator
from torchrecmetrics.metrics.description import Counted, Description, FormulaBatch, formula_batches
from torchrecmetrics.metrics.summed_states import ARGUMENTS, SummedStates, Totals

Method = TypeVar("Method", bound=Callable[..., Any])


def outside_graphs(method: Method) -> Method:
    """Keep a method out of the graphs of torch.compile, as `torch.compiler.disable` does.

    `torch.compiler.disable` imports the compiler, which takes seconds; this decorator disables the method only if the
    compiler has been imported already.
    """
    disabled = _disable_dynamo(method)

    @wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) > 2:
            raise too_many_arguments(args[2])
        return (disabled if "torch._dynamo" in sys.modules else method)(self, *args, **kwargs)

    return cast(Method, run)


class Evaluator(SummedStates):
    """Means over rows of the formulas of one or several metrics, from one ranking per batch and one matrix of sums.

    Metrics that are not means over rows are computed from accumulators.
    """

    _leader: Description
    """The first metric, whose options are those of all."""

    def _begin(self, metrics: Mapping[str, Description], name: str, accumulators: Sequence[Accumulator] = ()) -> None:
        """Set the metrics, by key, and register an empty state; `name` contains everything that values depend on."""
        self._metrics: dict[str, Description] = dict(metrics)
        """All metrics by key."""
        vars(self)["_leader"] = next(iter(metrics.values()))  # no submodule
        self._ranking_options: Options = self._leader._rules
        """Options with which batches are ranked: those of the metrics, unless a caller replaces them."""
        self._batch_needs: Needs = Needs.union(metric.needs for metric in metrics.values())
        """The data of a batch that the metrics read, taken together."""
        self._batches: list[FormulaBatch] = formula_batches(metrics)
        rows = {key: metric for batch in self._batches for key, metric in batch.metrics.items()}
        self._row_metrics: dict[str, Description] = rows
        """Metrics that are means over rows, by key; those with their own row weights come last."""
        self._counted_metrics: dict[str, Counted] = {
            key: cast(Counted, metric) for key, metric in metrics.items() if metric._is_of_items
        }
        self._with_own_weights = [metric for metric in rows.values() if metric.weights is not None]
        self._of_lists = tuple(metric._is_of_lists for metric in rows.values())
        self._zero_divisions: list[bool] = [bool(metric.options.get("zero_division")) for metric in rows.values()]
        """Which metrics have a `zero_division` other than 0, and also read rows without a relevant item."""
        self._reads_lists = bool(self._batch_needs.list_depth) or any(self._of_lists)
        self._reads_relevant = any(not metric._is_of_lists and not metric._is_of_items for metric in metrics.values())
        infinite = [place for place, metric in enumerate(rows.values()) if metric._may_be_infinite()]
        num_plain = len(rows) - len(self._with_own_weights)
        layout = Layout(
            [metric._empty_result(key) for key, metric in rows.items()],
            num_plain=num_plain,
            unbounded=infinite,
            of_lists=self._of_lists,
        )
        # metrics that count the same share an accumulator
        counting = {metric.counts_key: metric for metric in self._counted_metrics.values()}
        self._place_of_counts = {key: place for place, key in enumerate(counting)}
        counts = [metric.make_counts() for metric in counting.values()]
        self._add_states(name, layout, [*counts, *accumulators])
        self._metric_of_key: dict[str, tuple[str, str]] = {}
        """Key of the metric and its ending, empty for all rows, for each key of a result, in their order."""
        suffixes = ["", *(suffix for accumulator in self._accumulators for suffix in accumulator.suffixes)]
        for key in metrics:
            for suffix in suffixes if key in rows else [""]:
                if key + suffix in self._metric_of_key:
                    raise ValueError(f"{key + suffix!r} would be the key of two values")
                self._metric_of_key[key + suffix] = key, suffix
        self._sanity: SanityCheck = SanityCheck()
        """Questions about odd data, which are asked once."""
        self._last_results: dict[str, Result] = {}
        """Results of the last `compute` by key; empty before it, and after an update."""
        self._batch_values: dict[str, Tensor] = {}
        """Values of the last batch that `forward` added, by key."""
        self._gathered: tuple[int | None, dict[str, Tensor]] | None = None
        """Number of updates, and the columns of kept rows of all processes that were gathered after them."""
        self._num_value_updates: int = 0
        """Number of updates through the values of a collection."""

    @property
    def _user_accumulators(self) -> list[Accumulator]:
        """The accumulators that the user gave; others count items or ranks for metrics."""
        return self._accumulators[len(self._place_of_counts) :]

    @property
    def label(self) -> str:
        """Label of the first metric, which messages name."""
        return self._leader.label

    # ------------------------------------------------------------------------------------------------- update, compute

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
    def forward(self, scores: Any = None, target: Any = None, **arguments: Any) -> Any:
        """Add a batch and return its own values; takes the arguments of `update` and waits for the device."""
        gains, exclude = arguments.pop("gains", None), arguments.pop("exclude", None)
        weights, depth = arguments.pop("weights", None), arguments.pop("depth", None)
        if scores is None:
            self._check_names(arguments)
        batch = as_input(scores, target, gains, exclude, depth)
        rows = self._batch_rows(batch, weights, arguments)
        results = self._batch_results(rows, getattr(batch, "process_group", None))
        self._batch_values, values = self._as_tensors(results), self._as_tensors(results)
        self._add_rows(rows)
        self._forward_cache = self._batch_values
        return values

    def _batch_rows(
        self,
        batch: Input | Ranking,
        weights: Tensor | NDArray[Any] | None = None,
        columns: Mapping[str, Tensor | NDArray[Any] | None] | None = None,
        options: Options | None = None,
    ) -> RowValues:
        """Return the values of a batch of rows for each of `row_metrics`; changes no state. Errors as in `update`.

        Asks about odd data once. `options` replace `_ranking_options`.
        """
        options = options or self._ranking_options
        present = {name: as_tensor(column) for name, column in (columns or {}).items() if column is not None}
        weights = None if weights is None else as_tensor(weights)
        scope = getattr(batch, "scope", None)  # of an input that several processes share
        with nullcontext() if scope is None else scope(weights, present):
            if columns:
                self._check_names(columns)
            ranking = batch if isinstance(batch, Ranking) else batch.rank(self._batch_needs, options)
            rows = self._row_values(ranking, weights, present, options)
            if not self._sanity.is_done:
                self._sanity.see(batch, ranking, self._batch_needs, options)
            return rows

    def _check_names(self, columns: Iterable[str]) -> None:
        """Raise for a column that no accumulator reads."""
        for name in columns:
            if name not in self._readers:
                raise unknown_argument(name, [*ARGUMENTS, *self._readers])

    @outside_graphs
    def compute(self) -> Any:
        """Return the values over all processes; NaN and a warning if there was no row.

        Raises:
            ValueError: if updates held bad values that could not raise at once; the message counts the rows by kind.
        """
        return self._as_tensors(self._compute_results())

    def _compute_results(self) -> dict[str, Result]:
        """Return the results over all processes by key; they are computed once, until the next update."""
        computed, updates = self._computed, self._update_count
        if computed is not None and computed[0] == updates:  # unless another thread has updated since
            results: dict[str, Result] = computed[1]
        else:
            sync = self.sync_on_compute and self._synced is None and self.distributed_available_fn()
            totals = self._totals(sync) if self._synced is None else self._synced
            if self._sanity.sample is not None:
                self._sanity.warn_of_sample()  # before bad values raise, whose cause a question may name
            results = self._summarize(totals, self._accumulators)
            self._warn(results)
            # recent rows of one process depend on the number of updates of all
            in_common = sync and any(accumulator.is_recent for accumulator in self._accumulators)
            self._computed = (updates, results) if self.compute_with_cache and not in_common else None
            if self._gathered is not None and self._gathered[0] is None:
                self._gathered = None  # rows before a reset, which stay readable until here
        self._last_results = results
        return results

    def reset(self) -> None:
        """Forget all updates; the results of the last `compute` stay readable."""
        super().reset()
        self._num_value_updates = 0
        if self._gathered is not None:
            self._gathered = None, self._gathered[1]

    def _forget_results(self) -> None:
        """Forget the results of the last `compute` and the gathered rows, since the states have changed."""
        vars(self).update(_computed=None, _last_results={}, _gathered=None)

    def _local_results(self) -> dict[str, Result]:
        """Return the results of this process only, by key, without communication and warnings."""
        return self._summarize(self._totals(False), self._accumulators)

    def _as_tensors(self, results: Mapping[str, Result]) -> dict[str, Tensor]:
        """Return the values of results by key, as scalars on the metric's device, which the caller may write to."""
        device, dtype = self.device, float_dtype(self.device)
        return {key: torch.tensor(result.value, dtype=dtype, device=device) for key, result in results.items()}

    def _kept_columns(self) -> dict[str, Tensor]:
        """Return the columns of `KeptRows` of all processes, all of which must call it; they are gathered once.

        Raises:
            ValueError: without `KeptRows`, for several processes without ids, and for bad values that could not raise
                at once.
        """
        keeper: Any = next((accumulator for accumulator in self._user_accumulators if accumulator.keeps_rows), None)
        if keeper is None:
            raise ValueError("no rows were kept: make the collection with accumulators=[trm.KeptRows()]")
        updates, gathered = self._update_count, self._gathered
        if gathered is None or (updates and gathered[0] != updates):
            columns, violations = keeper.gathered(self._violation_counts)
            self._check_violations(violations)
            self._gathered = gathered = updates, columns
        return gathered[1]

    # ------------------------------------------------------------------------------------------------------ row values

    def _row_values(
        self, ranking: Ranking, weights: Tensor | None, columns: Mapping[str, Tensor], options: Options
    ) -> RowValues:
        """Return the values of the rows of a ranking; rows that do not count in a mean are undefined there."""
        self._check_ready(ranking)
        checks_values = options.validate_args or self._leader.empty_target_action == "error"
        checks = Checks(checks_values, ranking.num_relevant.device, len(ranking.num_relevant))
        checks.own_rows = ranking.own_rows
        if self._reads_lists:
            ranking = inside_catalogue(ranking, self._batch_needs, checks)
        empty = ranking.num_relevant == 0
        values, undefined = self._formula_values(ranking, empty)
        weights, columns, ranking = self._checked(ranking, weights, columns, checks)
        masks = [mask for mask in (ranking.valid, ranking.own_rows) if mask is not None]
        if weights is not None:
            masks.append(weights > 0)
        counted = reduce(torch.logical_and, masks) if masks else None
        if counted is not None:
            undefined = undefined | ~counted
        own_weights = None
        if self._with_own_weights:
            own_weights, undefined = self._own_weights(ranking, weights, undefined)
        return RowValues(
            values=values.masked_fill(undefined, 0),
            undefined=undefined,
            flags=torch.stack([empty, ranking.unreachable, ranking.tied]),
            weights=weights,
            own_weights=own_weights,
            counted=counted,
            violations=ranking.violations,
            ranking=ranking,
            columns=columns,
        )

    def _formula_values(self, ranking: Ranking, empty: Tensor) -> tuple[Tensor, Tensor]:
        """Return the value of each row for each of `row_metrics`, [metrics, B], and which rows have none, bool.

        `empty`, bool [B], are the rows without a relevant item.
        """
        # formulas raise for short rows at once; here they are rejected with other bad rows
        readable = ranking if ranking.row_depth is None else replace(ranking, row_depth=None)
        batch_values = [batch.values(readable) for batch in self._batches]
        values = torch.cat(batch_values) if batch_values else ranking.num_relevant.new_zeros(0, len(ranking))
        of_lists = None
        if any(self._of_lists):  # metrics of lists also read rows without a relevant item
            of_lists = _flags_column(self._of_lists, values.device)
            empty = empty & ~of_lists
        action = self._leader.empty_target_action
        if action == "neg" and any(self._zero_divisions):  # the formula decides first
            empty = empty & ~_flags_column(tuple(self._zero_divisions), values.device)
        if action in ("neg", "pos"):
            values = values.masked_fill(empty, float(action == "pos"))
            undefined = values.isnan()
        else:
            undefined = values.isnan() | empty
        wants_list = None if of_lists is None else ranking.listed().wants_list
        if of_lists is not None and wants_list is not None:
            undefined = undefined | (of_lists & ~wants_list)
        return values, undefined

    def _checked(
        self, ranking: Ranking, weights: Tensor | None, columns: Mapping[str, Tensor], checks: Checks
    ) -> tuple[Tensor | None, dict[str, Tensor], Ranking]:
        """Return the weights and columns of the rows, and the ranking with its bad rows; raise for bad columns."""
        if self._leader.empty_target_action == "error" and self._reads_relevant:
            checks.reject("empty", ranking.num_relevant == 0, lambda row: f"row {row}")
        if ranking.row_depth is not None:
            checks.reject("list_short", self._short_rows(ranking), ranking.describe_short_row)
        if weights is not None:
            weights = self._read_weights(ranking, weights, checks)
        of_rows = {name: self._read_column(ranking, name, column, checks) for name, column in columns.items()}
        for accumulator in self._accumulators:
            accumulator.check(len(ranking), of_rows if weights is None else {**of_rows, "weights": weights}, checks)
        return weights, of_rows, ranking.rejecting(*checks.finish())

    def _check_ready(self, ranking: Ranking) -> None:
        """Raise while the metric is synchronised, and for a ranking with another device or other options."""
        if self._is_synced:
            self._check_not_synced("add a batch")
        metric_device, device = vars(self)[self._sums].device, ranking.num_relevant.device
        if metric_device != device:
            raise ValueError(
                f"{self.label} is on {metric_device}, its input on {device}: move the metric with .to(device)"
            )
        options = self._ranking_options
        if ranking.options is not options.of_ranks and (text := options.contradiction(ranking.options)):
            raise ValueError(f"{self.label} {text}")

    def _short_rows(self, ranking: Ranking) -> Tensor:
        """Return which valid rows are ranked less deep than a metric reads, bool [B]."""
        deepest = max((metric.k for metric in self._metrics.values() if metric.k is not None), default=0)
        short = ranking.short_rows(deepest)
        return short | ranking.short_rows(None) if any(metric.k is None for metric in self._metrics.values()) else short

    def _read_weights(self, ranking: Ranking, weights: Tensor, checks: Checks) -> Tensor:
        """Return the weight of each row, float [B]; `checks` rejects bad ones."""
        return self._check_weights(self._read_column(ranking, "weights", weights, checks), checks).nan_to_num(0)

    def _check_weights(self, weights: Tensor, checks: Checks, unit: str = "row") -> Tensor:
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

    def _read_column(self, ranking: Ranking, name: str, column: Tensor, checks: Checks) -> Tensor:
        """Return a column of `update` with one value per row; `checks` rejects sessions with several values."""
        values, differs = ranking.per_row(name, column)
        if differs is not None:
            ids = ranking.row_ids
            checks.reject("session", differs, lambda row: f"session {row if ids is None else int(ids[row])}")
        return values

    def _own_weights(self, ranking: Ranking, weights: Tensor | None, undefined: Tensor) -> tuple[Tensor, Tensor]:
        """Return the row weights of metrics with their own, float [n, B], and `undefined` updated for them."""
        shared = torch.ones_like(ranking.num_relevant) if weights is None else weights
        own_weights = torch.stack([metric._row_weights(ranking, shared) for metric in self._with_own_weights])
        number = len(undefined) - len(own_weights)  # of metrics with the shared weights
        unweighted = undefined[number:] | ~(own_weights > 0)
        return own_weights.masked_fill(unweighted, 0), torch.cat([undefined[:number], unweighted])

    # ------------------------------------------------------------------------------------------------- states, results

    def _batch_results(self, rows: RowValues, process_group: Any = None) -> dict[str, Result]:
        """Return the results of one batch by key; keys whose value needs more than a batch are left out.

        `process_group`: the processes that share the same rows; None = this metric's.
        """
        accumulators: list[Accumulator] = []
        counts: list[Tensor] = []
        sums: list[Tensor] = []
        for accumulator in self._accumulators:
            totals = accumulator.batch_totals(rows)
            if totals is not None:
                accumulators.append(accumulator)
                counts += totals[0]
                sums += totals[1]
        violations = torch.zeros_like(self._violation_counts) if rows.violations is None else rows.violations
        counts = [violations, torch.zeros_like(vars(self)[self._counts]), *counts]
        sums = [rows.sums(self._layout), *sums]
        across, summing_group = self.dist_sync_on_step and self.distributed_available_fn(), self.process_group
        if not across and rows.ranking is not None and rows.ranking.own_rows is not None:
            across = is_distributed()
            summing_group = self.process_group if process_group is None else process_group
        if across:
            counts = sum_over_processes(counts, self.dist_sync_fn, summing_group)
            sums = sum_over_processes(sums, self.dist_sync_fn, summing_group)
        return self._summarize(Totals(counts[0], counts[1:], sums), accumulators)

    def _summarize(self, totals: Totals, accumulators: Sequence[Accumulator]) -> dict[str, Result]:
        """Return the results by key from totals over the processes, of this metric and of accumulators."""
        counts, sums = iter(totals.counts), iter(totals.sums)
        self._check_violations(totals.violations)
        results = self._layout.results(next(sums), next(counts))
        accumulator_totals = []
        for accumulator in accumulators:
            its_counts = [next(counts) for _ in accumulator.counts()]
            its_sums = [next(sums) for _ in range(accumulator.num_sums)]
            accumulator_totals.append((its_counts, its_sums))
        for key, metric in self._counted_metrics.items():
            totals_of_key = accumulator_totals[self._place_of_counts[metric.counts_key]]
            results[key] = metric.counted_result(key, *totals_of_key)
        for accumulator, its_totals in zip(accumulators, accumulator_totals, strict=True):
            results |= accumulator.results(*its_totals)
        return {key: results[key] for key in self._metric_of_key if key in results}

    def _check_violations(self, counts: Tensor) -> None:
        """Raise if updates held bad input; `counts` are the numbers of bad rows of each kind."""
        numbers = counts.tolist()
        if any(numbers):
            pairs = zip(numbers, VIOLATIONS.values(), strict=True)
            kinds = "; ".join(f"{in_words(rows)} {text}" for rows, text in pairs if rows)
            raise ValueError(f"{self.label}: bad input since the last reset: {kinds}")

    def _warn(self, results: Mapping[str, Result]) -> None:
        """Warn of metrics that average over no row."""
        empty = [key for key in self._metrics if results[key].num_users == 0]
        if empty:
            rank_zero_warn(f"no row to average over, the value is nan: {', '.join(empty)}", UserWarning)


@cached_constant
def _flags_column(flags: tuple[bool, ...], device: torch.device) -> Tensor:
    """Return flags as bool [n, 1], created on the device, since a copy from the host could wait for it."""
    return torch.cat([torch.full((1, 1), flag, device=device) for flag in flags])


def inside_catalogue(ranking: Ranking, needs: Needs, checks: Checks) -> Ranking:
    """Return the ranking without ids beyond the catalogue in its lists and history."""
    lists, size = ranking.listed(), needs.num_items
    if size is None:
        return ranking
    if lists.num_items is None or lists.num_items > size:
        ids = lists.ids
        beyond = ids >= size
        checks.reject("catalogue_range", beyond, lambda row: f"row {row} lists {shown(ids[row])} of {size} items")
        stays = ~beyond if lists.stays is None else lists.stays & ~beyond
        lists = lists._replace(stays=stays, num_items=size)
    if needs.history and lists.history is not None:
        history = lists.history
        past = history >= size
        checks.reject("catalogue_range", past, lambda row: f"row {row} had {shown(history[row])} of {size} items")
        lists = lists._replace(history=history.where(~past, -1))
    return replace(ranking, lists=lists)
