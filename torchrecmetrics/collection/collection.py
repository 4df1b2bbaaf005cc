"""`RecMetricCollection`: many metrics and cut-offs, one ranking per batch, one synchronisation; `Value`: one key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from torchrecmetrics.collection.windows import Window
from torchrecmetrics.core.checks import describe, nearest
from torchrecmetrics.core.options import DEFAULTS, OPTIONS, Input, Options
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.core.result import LastResult, Result
from torchrecmetrics.metrics.accumulator import Accumulator, BareMetric
from torchrecmetrics.metrics.description import (
    TORCHMETRICS_OPTIONS,
    Description,
    MetricOptions,
    option_fingerprint,
    takes_grade,
)
from torchrecmetrics.metrics.evaluator import Evaluator, outside_graphs, values_of
from torchrecmetrics.metrics.names import KeyFormat, Metrics, check_options, description_of, key_of, make_metrics
from torchrecmetrics.results.evaluation import Evaluation, EvaluationCounts
from torchrecmetrics.results.rows import Rows

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from torchrecmetrics.data.catalogue import Catalogue
    from torchrecmetrics.kernels import Kernels
    from torchrecmetrics.tables.vocabulary import Vocabulary


class CollectionEvaluator(Evaluator):
    """The evaluator of a collection, with what only a collection has: values, kept rows, and options that change."""

    def __init__(self, metrics: Mapping[str, Description], name: str, accumulators: Sequence[Accumulator]) -> None:
        super().__init__(**next(iter(metrics.values())).torchmetrics_options)
        self._begin(metrics, name, accumulators)
        self.num_counts: int = len(self.accumulators) - len(accumulators)
        """Number of accumulators of metrics; those of the user follow."""
        self.num_value_updates: int = 0
        """Number of updates through the values of the collection."""
        self._gathered: tuple[dict[str, Result], dict[str, Tensor]] | None = None
        """The last results, and the columns of kept rows of all processes that were gathered beside them."""

    def share_questions(self, other: CollectionEvaluator) -> None:
        """Share with another evaluator which questions have been asked, so that none is asked twice."""
        self._questions = other._questions

    def set_ranking_options(self, **options: Any) -> None:
        """Replace options with which batches are ranked."""
        self.ranking_options: Options = replace(self.ranking_options, **options)

    def set_sync_on_compute(self, sync: bool) -> None:
        """Set whether `compute` adds up over the processes."""
        self.sync_on_compute = sync
        for accumulator in self.accumulators:
            accumulator.sync_on_compute = sync

    @property
    def results(self) -> dict[str, Result]:
        """Results of the last `compute` by key, also after `reset`; computed now if the states have changed since."""
        return self._last_results or self.compute_results()

    def local_results(self) -> dict[str, Result]:
        """Return the results of this process only, by key, without communication and warnings."""
        return self._summarize(self._totals(False), self.accumulators)

    def kept_columns(self) -> dict[str, Tensor]:
        """Return the columns of `KeptRows` of all processes, all of which must call it, as of `results`.

        Raises:
            ValueError: without `KeptRows`, for several processes without ids, and for bad values that could not raise
                at once.
        """
        keeper: Any = next((accumulator for accumulator in self.accumulators if accumulator.keeps_rows), None)
        if keeper is None:
            raise ValueError("no rows were kept: make the collection with accumulators=[trm.KeptRows()]")
        results = self.results
        if self._gathered is None or self._gathered[0] is not results:
            self._gathered = results, keeper.gathered()
        return self._gathered[1]

    def reset(self) -> None:
        """Forget all updates; the results of the last `compute` stay readable."""
        super().reset()
        self.num_value_updates = 0


class Value(LastResult, BareMetric):
    """One value of a collection, under its key, for `log_dict`, ModelCheckpoint and `items()`.

    It has no state: the collection is updated, computed and reset. In a torchmetrics `MetricCollection`, whose `update`
    calls every value, the first value called adds the batch for all.
    """

    def __init__(
        self, evaluator: CollectionEvaluator, key: str, metric: Description, group: str | None, leads: bool
    ) -> None:
        super().__init__()
        self.key: str = key
        """The key in the collection, without prefix and postfix."""
        self.metric: Description = metric
        self.group: str | None = group
        """The ending of the key that an accumulator gave, such as a group's name; None = the metric over all rows."""
        self.leads: bool = leads
        """True for the first value, which holds the evaluator as its submodule."""
        self.num_updates: int = 0
        self.label: str = metric.label if group is None else f"{metric.label}/{group}"
        """Label of the metric, with the ending of its key: `NDCG@10/cold`."""
        self.name: str = metric.name
        """Label of the metric without the cut-off."""
        self.k: int | None = metric.k
        """Cut-off of the metric."""
        self.bounds: tuple[float, float] | None = metric.bounds
        """Lowest and highest value of the metric."""
        constants = ("higher_is_better", "plot_lower_bound", "plot_upper_bound")  # torchmetrics refuses to set them
        vars(self).update({name: getattr(metric.metric_class, name) for name in constants})
        if leads:
            self.evaluator: CollectionEvaluator = evaluator
        else:
            self.__dict__["evaluator"] = evaluator

    @property
    def update_called(self) -> bool:
        """True if the collection has been updated."""
        return self.evaluator.update_called

    def persistent(self, mode: bool = False) -> None:
        """Set whether state dicts hold the states, which the first value saves for all."""
        if self.leads:
            self.evaluator.persistent(mode)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch, if no other value has done so, for all values of the collection."""
        self._add(self.evaluator.update, *args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Add a batch as `update` does, and return the batch's own value."""
        nothing = torch.tensor(torch.nan, dtype=torch.float64)
        self._add(self.evaluator.forward, *args, **kwargs)
        return self.set_batch_value(nothing)

    def _add(self, add: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        if self.num_updates == self.evaluator.num_value_updates:
            add(*args, **kwargs)
            self.evaluator.num_value_updates += 1
        self.num_updates += 1

    def set_batch_value(self, nothing: Tensor) -> Tensor:
        """Return, and keep for Lightning, the value of the last batch; `nothing` if it needs more than a batch."""
        value: Tensor = (self.evaluator._forward_cache or {}).get(self.key, nothing)
        self._forward_cache = value  # type: ignore[assignment]  # torchmetrics types it None
        return value

    def compute(self) -> Tensor:
        """Return the value over all processes, as the collection computes it.

        Raises:
            ValueError: if `update` of other values was called, and not this one's.
        """
        if self.num_updates != self.evaluator.num_value_updates:
            raise ValueError(f"{self.label} was not updated with the other values: update the collection it belongs to")
        result = self.evaluator.compute_results()[self.key]
        return values_of({self.key: result}, self.evaluator.device)[self.key]

    @property
    def last_result(self) -> Result:
        """The result of the last `compute`, or of the state if it has changed since."""
        return self.evaluator.results[self.key]

    def reset(self) -> None:
        """Reset the collection."""
        self.evaluator.reset()
        self.num_updates = 0

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Sum the collection's states over the processes until `unsync`, if this is the first value."""
        if self.leads:
            self.evaluator.sync(*args, **kwargs)

    def unsync(self, should_unsync: bool = True) -> None:
        """Restore the states of this process, if this is the first value."""
        if self.leads:
            self.evaluator.unsync(should_unsync)

    def merge_state(self, incoming_state: Any) -> None:
        """Raise, since only whole collections can be merged."""
        raise TypeError(f"{self.label} has no state of its own: merge the collections")

    def _filter_kwargs(self, **kwargs: Any) -> dict[str, Any]:
        return self.evaluator._filter_kwargs(**kwargs)

    def __repr__(self) -> str:
        return f"Value({self.label})"


# options on which all metrics must agree: one kernel call serves all, and all average the same rows
_AGREED = (*OPTIONS, "empty_target_action", "catalogue")


class RecMetricCollection(MetricCollection):
    """Metrics that share one ranking: `update` and `forward` rank a batch once, as deeply as the metrics need.

    Values have keys like `NDCG@10`, in ascending order of k (metrics without a cut-off last).
    `self.log_dict(collection)`, `MetricTracker` and nesting in a `MetricCollection` work as with any torchmetrics
    collection. `compute` sums over the processes with two or three all-reduces. A call that raises changes nothing.

    Args:
        metrics: names, combined with each `k` unless they have a cut-off ("MAP@100") or need none (AUROC, RPrecision),
            and instances of this package's metrics, which serve as descriptions: their own states stay empty; or a dict
            of instances by key. Names are those of the classes, in any case, and the other names in the table of
            metrics (`docs/reference/metrics.md`): "HR" is "HitRate".
        k: cut-off or cut-offs for the names.
        prefix: put in front of every key.
        postfix: put behind every key.
        key_format: format string of `name` and `k`, or a function of both, that makes the keys; the key of a metric
            without a cut-off is its name (a function gets k = None).
        accumulators: further summaries: `ByGroup("cold", "warm")`, `Window(10_000)`, `KeptRows()`, or your own. They
            add keys such as `NDCG@10/cold`, but not for metrics that are not means over rows, such as Coverage.
        options: keyword options of every metric (`ties`, `padding_idx`, `overlap`, `empty_target_action`,
            `relevant_from`, `max_relevant`, `validate_args`, `kernels`, `catalogue`, torchmetrics' own). Instances
            must have been made with the same options; one without a catalogue takes this one, and metrics that read
            grades themselves ignore `relevant_from`.

    Raises:
        TypeError: for anything but metrics of this package.
        ValueError: for an unknown name, a name that lacks a cut-off, a key that occurs twice, or options that disagree.

    Examples:
        >>> import torch
        >>> from torchrecmetrics import RecMetricCollection
        >>> collection = RecMetricCollection(["HR", "MRR"], k=[1, 2])
        >>> scores = torch.tensor([[0.1, 0.9, 0.5], [0.7, 0.2, 0.1]])
        >>> collection.update(scores, torch.tensor([2, 0]))
        >>> print(collection.result())
        HR@1   0.5000 ± 0.5000
        MRR@1  0.5000 ± 0.5000
        HR@2   1.0000 ± 0.0000
        MRR@2  0.7500 ± 0.2500
        2 users
        ± standard error; no interval for fewer than 10 users
        >>> collection.result().floats()
        {'HR@1': 0.5, 'MRR@1': 0.5, 'HR@2': 1.0, 'MRR@2': 0.75}
    """

    _evaluator_class: ClassVar[type[CollectionEvaluator]] = CollectionEvaluator
    evaluator: CollectionEvaluator
    """It ranks batches and holds the sums of all metrics."""

    def __init__(
        self,
        metrics: Metrics,
        k: int | Iterable[int] | None = None,
        *,
        prefix: str | None = None,
        postfix: str | None = None,
        key_format: KeyFormat = "{name}@{k}",
        accumulators: Sequence[Accumulator] = (),
        **options: Unpack[MetricOptions],
    ) -> None:
        if isinstance(accumulators, Accumulator):
            raise TypeError(f"accumulators must be a list: accumulators=[{accumulators.option}]")
        for accumulator in accumulators:
            if not isinstance(accumulator, Accumulator):
                raise TypeError(
                    f"accumulators must hold objects such as ByGroup('cold', 'warm'), got {describe(accumulator)}"
                )
            if dotted := [suffix for suffix in accumulator.suffixes if "." in suffix]:
                raise ValueError(f"the name of a group must be a string without '/' or '.', got {dotted[0][1:]!r}")
        self._begin(_described(metrics, k, key_format, options), accumulators, prefix, postfix)

    def _begin(
        self,
        metrics: Mapping[str, Description],
        accumulators: Sequence[Accumulator],
        prefix: str | None = None,
        postfix: str | None = None,
    ) -> None:
        """Set up an empty collection: the evaluator, and a value for each key."""
        MetricCollection.__init__(self, {}, prefix=prefix, postfix=postfix, compute_groups=False)
        self._groups = {}  # torchmetrics 1.4 sets it in its add_metrics
        self._rows: tuple[dict[str, Tensor], Rows] | None = None
        """The columns of kept rows, and `Rows` made from them."""
        of_accuracy = [key for key, metric in metrics.items() if metric.kind == "accuracy"]
        self._leading_key: str = (of_accuracy or list(metrics))[0]
        described: dict[str, Any] = {"metrics": [(key, metric.fingerprint) for key, metric in metrics.items()]}
        described["accumulators"] = [accumulator.option for accumulator in accumulators]
        fingerprint = option_fingerprint("torchrecmetrics.collection", "RecMetricCollection", described)
        evaluator = self._evaluator_class(metrics, f"collection-{fingerprint}", accumulators)
        self.__dict__["evaluator"] = evaluator  # a submodule of the first value
        for key, (metric_key, suffix) in evaluator.formulas.metric_of_key.items():
            if "." not in key:  # names of groups from data of `evaluate`; modules cannot have such names
                group = suffix.removeprefix("/") or None
                self._modules[key] = Value(evaluator, key, metrics[metric_key], group, leads=not len(self._modules))

    @classmethod
    def fresh(
        cls,
        metrics: Metrics | RecMetricCollection,
        k: int | Iterable[int] | None,
        options: MetricOptions,
        key_format: KeyFormat = "{name}@{k}",
        accumulators: Sequence[Accumulator] = (),
    ) -> RecMetricCollection:
        """Return an empty copy of a collection, or an empty collection of the given metrics, with more accumulators.

        Windows of a given collection are left out, since the last rows of an evaluation are those with the longest
        lists.
        """
        empty: RecMetricCollection = cls.__new__(cls)
        if not isinstance(metrics, RecMetricCollection):
            empty._begin(_described(metrics, k, key_format, options), accumulators)
            return empty
        if k is not None or options:
            conflicting = ", ".join([*(["k"] if k is not None else []), *options])
            raise ValueError(f"{conflicting} cannot be given with a collection, which has its own")
        inherited = [accumulator for accumulator in metrics.accumulators if accumulator not in metrics.windows]
        added = list(accumulators)
        for accumulator in accumulators:
            same = [acc for acc in inherited if type(acc) is type(accumulator)]
            if accumulator.row_groups and same and all(acc.row_groups != accumulator.row_groups for acc in same):
                has = ", ".join(metrics.groups)
                raise ValueError(f"the collection has the groups {has}, not these: {', '.join(accumulator.row_groups)}")
            if same:
                added.remove(accumulator)
        empty._copy_of(metrics, [*(acc.empty_copy() for acc in inherited), *added])
        return empty

    def _copy_of(self, collection: RecMetricCollection, accumulators: Sequence[Accumulator]) -> None:
        """Make this an empty collection of the same metrics and the given accumulators."""
        with collection.evaluator.device:  # the default device may be another one
            self._begin(collection.metrics, accumulators, collection.prefix, collection.postfix)
        self.evaluator.share_questions(collection.evaluator)  # none again in each epoch

    if TYPE_CHECKING:  # the types of torchmetrics' methods

        def __iter__(self) -> Iterator[str]: ...
        def keys(self, keep_base: bool = False) -> Iterable[str]: ...  # type: ignore[override]  # noqa: D102
        def values(self, copy_state: bool = True) -> Iterable[Value]: ...  # type: ignore[override]  # noqa: D102
        def items(  # type: ignore[override]  # noqa: D102
            self, keep_base: bool = False, copy_state: bool = True
        ) -> Iterable[tuple[str, Value]]: ...

    def __getitem__(self, key: str, copy_state: bool = True) -> Value:
        """Return the value of a key, with its standard error and counts.

        Raises:
            KeyError: for an unknown key; the message names the nearest one.
        """
        try:
            return super().__getitem__(key, copy_state)  # type: ignore[return-value]
        except KeyError:
            raise KeyError(f"no metric has the key {key!r}{nearest(key, self.keys())}") from None

    def add_metrics(self, metrics: Any, *additional_metrics: Metric) -> None:
        """Raise for metrics; torchmetrics' constructor calls this without any."""
        if metrics or additional_metrics:
            raise TypeError("a collection is made with all its metrics: RecMetricCollection([*metrics, another])")

    def __setitem__(self, key: str, module: Metric) -> None:  # type: ignore[override]
        self.add_metrics({key: module})

    def __delitem__(self, key: str) -> None:
        self.add_metrics({key: self[key]})

    # --------------------------------------------------------------------------------------------------- what it holds

    @property
    def metrics(self) -> dict[str, Description]:
        """Description of each metric by key, without prefix and postfix."""
        return self.evaluator.formulas.metrics

    @property
    def accumulators(self) -> list[Accumulator]:
        """The accumulators that were given; others count items or ranks for metrics."""
        return list(self.evaluator.accumulators[self.evaluator.num_counts :])

    @property
    def windows(self) -> list[Accumulator]:
        """The accumulators of recent rows, whose values depend on the order of rows."""
        return [accumulator for accumulator in self.accumulators if isinstance(accumulator, Window)]

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups of the first `ByGroup`; empty without one."""
        return next((accumulator.row_groups for accumulator in self.accumulators if accumulator.row_groups), ())

    @property
    def keep_rows(self) -> bool:
        """True if per-row values are kept."""
        return any(accumulator.keeps_rows for accumulator in self.accumulators)

    @property
    def leading(self) -> Value:
        """The value whose counts represent the collection: the first metric of accuracy, or else the first metric."""
        return self._modules[self._leading_key]  # type: ignore[return-value]

    @property
    def catalogue(self) -> Catalogue | None:
        """The metrics' catalogue; None if no metric has one."""
        catalogue: Catalogue | None = _shared_catalogue(self.metrics)
        return catalogue

    @property
    def points(self) -> list[Result]:
        """Results of each metric over all rows, then of accumulators, as of the last `compute`; `trm.plot` draws them.

        If the state has changed since, they are computed when they are read, which all processes must do.
        """
        return self._points(self.evaluator.results)

    def _points(self, results: Mapping[str, Result]) -> list[Result]:
        return [result._replace(key=self._set_name(key)) for key, result in results.items()]

    @property
    def rows(self) -> Rows:
        """Per-row values of all processes, by id; all processes must read this property.

        Raises:
            ValueError: without `KeptRows`, for repeated ids, for several processes without ids, and for bad values
                that could not raise at once.
        """
        columns = self.evaluator.kept_columns()
        if self._rows is None or self._rows[0] is not columns:
            self._rows = columns, _kept_rows_of(columns, self.evaluator)
        return self._rows[1]

    # ------------------------------------------------------------------------------------------------- update, compute

    def update(  # type: ignore[override]  # ModuleDict's own is hidden by MetricCollection's, too
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
        """Add a batch to every metric; arguments as in `RankingMetric.update`, and columns that accumulators read.

        With `ByGroup`, `groups`, integers [B], is the number of each row's group among the names, -1 = in no group.
        With `KeptRows`, `row_ids`, integers [B], unique over all batches, pair the rows of two runs, and `clusters`,
        integers [B], are equal for rows that belong together, such as those of one user.
        """
        self.evaluator.update(scores, target, gains=gains, exclude=exclude, weights=weights, depth=depth, **columns)

    @outside_graphs
    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Add a batch and return its own values; arguments as in `update`. Waits for the device."""
        nothing = torch.tensor(torch.nan, dtype=torch.float64)
        batch: dict[str, Tensor] = self.evaluator.forward(*args, **kwargs)
        for value in self._modules.values():
            value.set_batch_value(nothing)  # type: ignore[operator]
        return {self._set_name(key): value for key, value in batch.items()}

    def compute(self) -> dict[str, Tensor]:
        """Return every value under its key; two or three all-reduces over several processes.

        Raises:
            ValueError: if updates held bad values that could not raise at once; the message counts the rows by kind.
        """
        return {self._set_name(key): value for key, value in self.evaluator.compute().items()}

    def result(self) -> Evaluation:
        """Return every value with its interval and counts, in a dict that prints as a table, as `evaluate` does.

        Computes as `compute` does, with its errors; all processes must call it.
        """
        return self.evaluation()

    def evaluation(
        self,
        kernels: Kernels | None = None,
        user_ids: Vocabulary | None = None,
        counts: EvaluationCounts | None = None,
        by_id: bool = False,
    ) -> Evaluation:
        """Compute, and return the result with the kernels, the row ids, and counts that the caller knows.

        Kept rows are in ascending order of their row numbers if `by_id`, and otherwise in the order of updates.
        """
        results = self.evaluator.compute_results()
        lists = [results[key].num_users for key, metric in self.metrics.items() if metric.kind != "accuracy"]
        leading = results[self._leading_key]
        num_lists = max(lists, default=leading.num_users)
        rows = None
        if self.keep_rows and by_id:
            columns = self.evaluator.kept_columns()
            order = columns["ids"][0].argsort()
            rows = _kept_rows_of({name: column[:, order] for name, column in columns.items()}, self.evaluator)
        elif self.keep_rows:
            rows = self.rows
        return Evaluation(self._points(results), leading, rows, kernels, user_ids, num_lists, counts)

    def standard_errors(self) -> dict[str, Tensor]:
        """Return the standard error of the last `compute` for every key."""
        points = self.points
        return {point.key: torch.tensor(point.standard_error, dtype=torch.float64, device="cpu") for point in points}

    def reset(self) -> None:
        """Forget all updates; the results of the last `compute` stay readable."""
        self.evaluator.reset()
        for value in self._modules.values():
            value.num_updates = 0

    def persistent(self, mode: bool = True) -> None:
        """Set whether state dicts hold the states."""
        self.evaluator.persistent(mode)

    def merge_state(self, other: RecMetricCollection) -> None:
        """Add the state of a collection with the same metrics, options and accumulators; or raise, and add nothing."""
        if not isinstance(other, RecMetricCollection):
            raise TypeError(f"a collection merges a RecMetricCollection, got {describe(other)}")
        if lone := self.metrics.keys() ^ other.metrics.keys():
            raise ValueError(f"collections of the same metrics can be merged; only one of the two has {sorted(lone)}")
        self.evaluator.merge_state(other.evaluator)

    def clone(self, prefix: str | None = None, postfix: str | None = None) -> Self:
        """Return a copy, with another prefix or postfix if given."""
        return super().clone(prefix, postfix)  # type: ignore[return-value]


def _described(
    metrics: Metrics, k: int | Iterable[int] | None, key_format: KeyFormat, options: MetricOptions
) -> dict[str, Description]:
    """Return the metrics of a collection by key, or raise if they cannot share a ranking."""
    check_options("a collection", options, ["k", *MetricOptions.__annotations__])
    if isinstance(metrics, Mapping):
        if k is not None:
            raise ValueError(f"k={k!r} is for names of metrics; metrics in a dict have cut-offs of their own")
        keyed: list[tuple[Any, Any]] = list(metrics.items())
    else:
        keyed = [(key_of(metric, key_format), metric) for metric in make_metrics(metrics, k, options)]
    if not keyed:
        raise ValueError("a collection needs at least one metric")
    described: dict[str, Description] = {}
    for key, metric in keyed:
        if not isinstance(key, str) or not key or "." in key:
            raise ValueError(
                f"a key must be a string that is not empty and holds no '.' (ModuleDict refuses it), got {key!r}"
            )
        if key in described:
            raise ValueError(f"two metrics have the key {key!r}; keys come from name and k, see key_format")
        described[key] = description_of(key, metric)
    shared = options.get("catalogue", _shared_catalogue(described))
    for key, metric in described.items():
        described[key] = metric.with_catalogue(shared) if metric.lacks_catalogue else metric
    first_key, leader = next(iter(described.items()))
    agreed = {**{name: _option(leader, name) for name in _AGREED}, "catalogue": _shared_catalogue(described)}
    for key, metric in described.items():
        _check_agreement(key, metric, options)
        _check_agreement(key, metric, agreed, first_key)
    return described


def _kept_rows_of(columns: Mapping[str, Tensor], evaluator: CollectionEvaluator) -> Rows:
    """Return the columns of kept rows as `Rows`, with the keys of the metrics and the options in words."""
    formulas, options = evaluator.formulas, evaluator.ranking_options
    means, metrics = formulas.means, formulas.metrics
    if not means:
        raise ValueError("KeptRows keeps the values of metrics that are means over rows, but the collection has none")
    values, weights, served = columns["values"].double(), columns["weights"][0].double(), columns["served"][0].bool()
    by_key = dict(zip(means, values.where(columns["used"].bool(), torch.nan), strict=True))
    own_weights = {}
    if "own_weights" in columns:
        own_weighted = list(means)[formulas.layout.num_plain :]
        own_weights = dict(zip(own_weighted, columns["own_weights"].double(), strict=True))
    return Rows(
        values={key: by_key[key] for key in metrics if key in by_key},
        ids=columns["ids"][0].long(),
        weights=None if bool((weights == 1).all()) else weights,
        clusters=columns["clusters"][0] if "clusters" in columns else None,
        own_weights=own_weights,
        options={
            "ties": options.tie_rule,
            "overlap": options.overlap_rule,
            "padding_idx": None if options.padding_idx is None else str(options.padding_idx),
            "empty_target_action": formulas.leader.empty_target_action,
            **{f"metric of {key}": metric.label for key, metric in means.items() if key != metric.label},
        },
        higher_is_better={key: metric.higher_is_better for key, metric in means.items()},
        served=None if bool(served.all()) else served,
    )


def _shared_catalogue(metrics: Mapping[str, Description]) -> Any:
    return next((metric.catalogue for metric in metrics.values() if metric.catalogue is not None), None)


def _option(metric: Description, name: str) -> Any:
    """Return an option of a metric; None = the default."""
    if name in TORCHMETRICS_OPTIONS:
        return metric.torchmetrics_options[name]
    return getattr(metric.ranking_options if name in OPTIONS else metric, name)


def _check_agreement(key: str, metric: Description, options: Mapping[str, Any], owner: str = "the collection") -> None:
    """Refuse a metric with other options, which would need its own ranking or synchronisation."""
    for name, expected in options.items():
        value = _option(metric, name)
        if name == "catalogue" and (value is None or expected is None):
            continue  # a metric without a catalogue reads none
        if name == "relevant_from" and not takes_grade(metric.kind, metric.options):
            continue
        default = DEFAULTS.get(name)
        value = default if value is None else value
        expected = default if expected is None else expected
        if value != expected:
            raise ValueError(
                f"{key} was made with {name}={value!r}, {owner} with {name}={expected!r}: give both the same "
                f"{name}, or make a collection of each (with a prefix)"
            )
