"""`RecMetricCollection`: many metrics at many cut-offs with one ranking per batch and one packed synchronisation."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from torchrecmetrics.analysis.curves import Curve, Point, curve_of, plot_points
from torchrecmetrics.analysis.plots import draw_steps, unit_of
from torchrecmetrics.analysis.rows import Rows
from torchrecmetrics.base.compute import compute_all, summarize
from torchrecmetrics.base.group_value import GroupValue
from torchrecmetrics.base.kept_rows import Columns, RowKeeper
from torchrecmetrics.base.metric import RankingMetric
from torchrecmetrics.base.options import MetricOptions, check_spelling
from torchrecmetrics.base.row_buffer import RowKeys
from torchrecmetrics.base.row_values import RowEvaluator, RowGroups, RowValues
from torchrecmetrics.base.sessions import Complete, FlatRows, Ranked, Sessions, rank_sessions
from torchrecmetrics.base.state import (
    SparseUpdate,
    Summary,
    SumState,
    add_to_states,
    batch_states,
    check_replicated,
    note_replicated,
    outside_graphs,
)
from torchrecmetrics.base.window import Window
from torchrecmetrics.checks import describe, nearest
from torchrecmetrics.data.catalogue import Catalogue
from torchrecmetrics.data.groups import Groups, check_names
from torchrecmetrics.data.jagged import Spans
from torchrecmetrics.ranking import Exclude, Gains, Ranking, Target
from torchrecmetrics.ranking.candidates import MissingTarget
from torchrecmetrics.ranking.rules import RULES, Needs
from torchrecmetrics.ranking.shards import ItemShard, together
from torchrecmetrics.ranking.update_args import UpdateArgs, to_ranking
from torchrecmetrics.registry import KeyFormat, Metrics, key_of, members_of, ours

if TYPE_CHECKING:
    from typing_extensions import Unpack

# options on which all members must agree: one kernel call serves all, and all average the same rows
_AGREED = (*RULES, "empty_target_action", "catalogue")
_DEFAULTS = {"ties": "realistic", "overlap": "error"}


class Found(NamedTuple):
    """The result of a metric, or of a group of rows, in one `compute`."""

    key: str
    label: str
    """`key` without prefix and postfix."""
    metric: RankingMetric
    group: str | None
    """Name of the group of rows; None = all rows."""
    summary: Summary


class RecMetricCollection(MetricCollection):
    """Metrics that share one ranking: `update` and `forward` call the kernel once, as deep as the members need.

    Members are scalar metrics under keys like `NDCG@10`, in ascending order of k (those without a cut-off last), so
    `self.log_dict(collection)`, `MetricTracker` and nesting in a `MetricCollection` work as with any torchmetrics
    collection. `compute` synchronises all members with two all-reduces. A call that raises leaves every member as it
    was.

    Args:
        metrics: names, crossed with `k` unless they carry a cut-off ("MAP@100") or need none (AUROC, RPrecision), and
            instances of this package's metrics; or a dict of instances with their keys. Names are "HR", "NDCG", "MRR",
            "Precision", "Recall", "RPrecision", "MAP", "F1", "AUROC"; of one rank "AMR", "AMRI", "AdjustedHR",
            "AdjustedMRR", "MeanRank", "MedianRank"; beyond accuracy "AveragePopularity", "Calibration",
            "CategoryShare", "Coverage", "Entropy", "EqualOpportunity", "ExposureGini", "Gini", "IntraListDiversity",
            "Missing", "Novelty", "Personalization", "PopularityLift", "Repeats", "Seen", "Serendipity",
            "StatisticalParity", "TailShare"; case is ignored; Hit, Hits, HitRatio, HitRate = HR, P = Precision, R =
            Recall, MR = MeanRank, AdjustedHitRate = AdjustedHR, MeanAveragePrecision = MAP, MeanReciprocalRank = MRR.
        k: cut-off or cut-offs for the names.
        prefix: put in front of every key.
        postfix: put behind every key.
        key_format: format string of `name` and `k`, or a function of both, that makes the keys; members without a
            cut-off go by their name alone (a function gets k = None).
        groups: names of groups of rows, such as ["cold", "warm"], each with a value of its own beside the one over all
            rows, under keys like `NDCG@10/cold`; `update` then takes `groups=`. Metrics that are no means over rows,
            such as Coverage, have none. Update the collection itself, not a member, and do not nest it in another.
        keep_rows: keep per-row values, on the device (9 bytes per metric and row; beyond 256 MB on the host),
            for `rows` after `compute`, the input of comparisons and of intervals of clustered rows.
        window: also give the value of the last rows, under keys such as `HR@10/window`: a number of rows, at least 100,
            over the processes that `compute` adds up, or "50 updates". Sums are kept in 100 slots, so the window is up
            to 1 % longer. Metrics that count items over all lists are an error. Update the collection itself, not a
            member, do not nest it in another, and save and load each process's state on its own, without `sync()`.
        half_life: also give a value in which a row's weight halves after so many rows of all processes, under keys such
            as `HR@10/decayed`; in place of `window`.
        options: keyword options of every metric (`ties`, `padding_idx`, `overlap`, `empty_target_action`,
            `max_relevant`, `validate_args`, `kernels`, `catalogue`, torchmetrics' own). Instances must have been made
            with the same options; the catalogue may be missing.

    Raises:
        TypeError: for something that is no metric of this package.
        ValueError: for an unknown name, a name that lacks a cut-off, a key that occurs twice, or options that disagree.

    Examples:
        >>> import torch
        >>> from torchrecmetrics import RecMetricCollection
        >>> collection = RecMetricCollection(["HR", "MRR"], k=[1, 2])
        >>> collection.update(torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([2]))
        >>> {key: value.item() for key, value in collection.compute().items()}
        {'HR@1': 0.0, 'MRR@1': 0.0, 'HR@2': 1.0, 'MRR@2': 0.5}
    """

    def __init__(
        self,
        metrics: Metrics,
        k: int | Iterable[int] | None = None,
        *,
        prefix: str | None = None,
        postfix: str | None = None,
        key_format: KeyFormat = "{name}@{k}",
        keep_rows: bool = False,
        groups: Iterable[str] | None = None,
        window: int | str | None = None,
        half_life: float | None = None,
        **options: Unpack[MetricOptions],
    ) -> None:
        check_spelling(options)
        if not isinstance(keep_rows, bool):
            raise TypeError(f"keep_rows must be True or False, got {keep_rows!r}")
        super().__init__({}, prefix=prefix, postfix=postfix, compute_groups=False)
        self._groups = {}  # torchmetrics 1.4 sets it in its add_metrics, which this class overrides
        self._keeper = RowKeeper() if keep_rows else None
        self._rows: Rows | None = None
        self._lost_rows_message: str | None = None
        self._window: Window | None = None
        self._recent: list[Summary] | None = None
        self.groups: tuple[str, ...] = () if groups is None else check_names(groups, in_keys=True)
        """Names of the groups of rows that have values of their own."""
        if isinstance(metrics, (Mapping, MetricCollection)):
            keyed: list[tuple[Any, Any]] = list(metrics.items())
        else:
            made = members_of(metrics, k, options)
            keyed = [(key_of(metric, key_format), metric) for metric in made]
        for key, metric in keyed:  # check all metrics before the first is split into groups
            first = ours(keyed[0][0], keyed[0][1])
            _check_agreement(key, ours(key, metric), options)
            _check_agreement(key, metric, {name: getattr(first, name) for name in _AGREED if name != "catalogue"})
        for key, metric in keyed:
            self[key] = metric
        if not keyed:
            raise ValueError("a collection needs at least one metric")
        if window is not None or half_life is not None:
            self.keep_window(window, half_life)

    @classmethod
    def fresh(
        cls,
        metrics: Metrics | RecMetricCollection,
        k: int | Iterable[int] | None,
        options: MetricOptions,
        key_format: KeyFormat = "{name}@{k}",
        keep_rows: bool = False,
        memory_budget: int | None = None,
        groups: Sequence[str] | None = None,
    ) -> RecMetricCollection:
        """Return an empty copy of a collection, or an empty collection of copies of the given metrics.

        Kept rows stay on the device up to `memory_budget` bytes. The `groups` passed here have values, but no keys in
        `items()`.
        """
        if isinstance(metrics, RecMetricCollection):
            if k is not None or options:
                given = ", ".join([*(["k"] if k is not None else []), *options])
                raise ValueError(f"{given} given beside a collection, which has its own")
            collection = deepcopy(metrics)
            if keep_rows and collection._keeper is None:
                collection._keeper = RowKeeper()
        else:
            collection = RecMetricCollection(
                deepcopy(metrics), k, key_format=key_format, keep_rows=keep_rows, **options
            )
        if collection._keeper is not None and memory_budget is not None:
            collection._keeper.budget = memory_budget
        collection.reset()
        collection._window = None  # the last rows of an evaluation are those with the longest lists
        if groups is not None and collection.groups != tuple(groups):
            if collection.groups:
                raise ValueError(f"the collection has the groups {', '.join(collection.groups)}, not these: {groups}")
            for key in collection._modules:
                _check_parts(key, collection._modules, groups)
            collection.groups = tuple(groups)
            for member in collection.members:
                if not member.of_items:
                    member.split(collection.groups)
        return collection

    if TYPE_CHECKING:  # the types of torchmetrics' methods

        def __iter__(self) -> Iterator[str]: ...
        def keys(self, keep_base: bool = False) -> Iterable[str]: ...  # type: ignore[override]  # noqa: D102
        def values(self, copy_state: bool = True) -> Iterable[RankingMetric]: ...  # type: ignore[override]  # noqa: D102
        def items(  # type: ignore[override]  # noqa: D102
            self, keep_base: bool = False, copy_state: bool = True
        ) -> Iterable[tuple[str, RankingMetric]]: ...

    def __getitem__(self, key: str, copy_state: bool = True) -> RankingMetric:
        """Return the metric of a key.

        Raises:
            KeyError: for an unknown key; the message names the nearest one.
        """
        try:
            return super().__getitem__(key, copy_state)  # type: ignore[return-value]
        except KeyError:
            raise KeyError(f"no metric has the key {key!r}{nearest(str(key), list(self.keys()))}") from None

    def __delitem__(self, key: str) -> None:
        if self._keeper or self._window:  # which hold rows
            raise ValueError(f"{key}: its rows are kept; call reset() first")
        if isinstance(self._modules.get(key), GroupValue):
            raise ValueError(f"{key} is a part of a metric: delete that")
        whole = self._modules.get(key)
        super().__delitem__(key)
        for name, part in [*self._modules.items()]:
            if isinstance(part, GroupValue) and part.whole is whole:
                del self._modules[name]

    def add_metrics(
        self,
        metrics: Metric | MetricCollection | Sequence[Metric | MetricCollection] | dict[str, Metric | MetricCollection],
        *additional_metrics: Metric,
    ) -> None:
        """Add instances of this package's metrics under their labels or, from a dict or collection, under its keys."""
        if isinstance(metrics, (Mapping, MetricCollection)):
            keyed = list(metrics.items())
        else:
            given = [metrics] if isinstance(metrics, Metric) else list(metrics)
            keyed = [(getattr(metric, "label", str(metric)), metric) for metric in (*given, *additional_metrics)]
        for key, metric in keyed:
            self[key] = metric  # type: ignore[assignment]  # __setitem__ refuses anything else

    def __setitem__(self, key: str, module: Metric) -> None:  # type: ignore[override]
        metric = ours(key, module)
        if not isinstance(key, str) or not key or "." in key:
            raise ValueError(
                f"a key must be a string that is not empty and holds no '.' (ModuleDict refuses it), got {key!r}"
            )
        if key in self._modules:
            raise ValueError(f"two metrics have the key {key!r}; keys come from name and k, see key_format")
        members = self.members
        if any(member is metric for member in members):
            raise ValueError(f"{key}: {metric.label} is in the collection already; add a clone")
        if self._keeper or self._window:  # which hold rows
            raise ValueError(
                f"{key}: rows of the other metrics are kept already; add it before the first batch, or call reset()"
            )
        if self._window is not None:
            self._window.check([metric])
        if members:
            agreed = {name: getattr(members[0], name) for name in _AGREED}
            _check_agreement(key, metric, {**agreed, "catalogue": self.catalogue})
            Needs.union(member.needs for member in [*members, metric])
        if metric.groups and metric.groups != self.groups:
            raise ValueError(f"{key}: {metric.label} has the groups {', '.join(metric.groups)}, the collection others")
        _check_parts(key, self._modules, () if metric.of_items else self.groups)
        if self.groups and not metric.of_items and metric.groups != self.groups:
            metric.split(self.groups)
        super().__setitem__(key, metric)
        for number, name in enumerate(metric.groups):
            super().__setitem__(f"{key}/{name}", GroupValue(metric, number))
        self._link_members()

    @property
    def members(self) -> list[RankingMetric]:
        """The metrics in the order of their keys, without the `GroupValue` parts of their groups."""
        if not self.groups:
            return list(self._modules.values())  # type: ignore[arg-type]
        modules = list(self._modules.values())
        held: tuple[list[Any], list[RankingMetric]] = self.__dict__.get("_members", ([], []))
        if len(held[0]) != len(modules) or not all(map(is_, held[0], modules)):
            held = modules, [metric for metric in modules if isinstance(metric, RankingMetric)]
            self.__dict__["_members"] = held
        return list(held[1])

    def keyed(self, keep_base: bool = False) -> dict[str, RankingMetric]:
        """Return the metrics by key; `keep_base`: by key without prefix and postfix."""
        return {
            label if keep_base else self._set_name(label): metric
            for label, metric in self._modules.items()
            if isinstance(metric, RankingMetric)
        }

    @property
    def labels(self) -> dict[str, RankingMetric]:
        """The metric of each key of `compute`, except keys of windows: a metric's own key, then those of its groups."""
        return {key: metric for key, _, metric, _ in self._entries()}

    def _entries(self) -> Iterator[tuple[str, str, RankingMetric, int | None]]:
        """Yield key, key without prefix and postfix, metric, and group number or None: a metric, then its groups."""
        for label, metric in self.keyed(keep_base=True).items():
            yield self._set_name(label), label, metric, None
            for number, group in enumerate(metric.groups):
                part = f"{label}/{group}"
                yield self._set_name(part), part, metric, number

    def found(self) -> list[Found]:
        """Return the results of the last `compute`: for each metric over all rows, then for each of its groups."""
        entries = []
        for key, label, metric, number in self._entries():
            summary = metric.last_summary()
            if number is None:
                entries.append(Found(key, label, metric, None, summary))
            else:
                entries.append(Found(key, label, metric, metric.groups[number], summary.groups[number]))
        return entries

    @property
    def leading(self) -> RankingMetric:
        """The member whose counts stand for the collection: the first metric of accuracy, or else the first member."""
        return next((metric for metric in self.members if not metric.of_lists and not metric.of_items), self.members[0])

    @property
    def catalogue(self) -> Catalogue | None:
        """The members' catalogue; None if no member has one."""
        return next((member.catalogue for member in self.members if member.catalogue is not None), None)

    @property
    def evaluator(self) -> RowEvaluator:
        """The `RowEvaluator` that evaluates the members together, made anew when the members change."""
        members = self.members
        evaluator: RowEvaluator | None = self.__dict__.get("_evaluator")
        if evaluator is None or len(evaluator.given) != len(members) or not all(map(is_, evaluator.given, members)):
            evaluator = self.__dict__["_evaluator"] = RowEvaluator(members)
        return evaluator

    @property
    def needs(self) -> Needs:
        """The data of a batch that the members read, taken together."""
        return self.evaluator.needs

    @outside_graphs
    def update(  # type: ignore[override]  # ModuleDict's own is hidden by MetricCollection's, too
        self,
        scores: Tensor | Ranking | None = None,
        target: Target | None = None,
        *,
        gains: Gains | None = None,
        exclude: Exclude | None = None,
        weights: Tensor | None = None,
        ranks: Tensor | None = None,
        ranking: Ranking | None = None,
        depth: int | None = None,
        history: Target | Spans | None = None,
        groups: Tensor | None = None,
        row_ids: Tensor | None = None,
        clusters: Tensor | None = None,
        candidates: Tensor | None = None,
        missing_target: MissingTarget = "unreachable",
        shard: ItemShard | None = None,
        indexes: Tensor | None = None,
        lengths: Tensor | None = None,
        complete: Complete = False,
    ) -> None:
        """Add a batch to every member; arguments as in `RankingMetric.update`.

        Metrics that compare lists with the user's history (`PopularityLift`, `Calibration`, `Seen`) read `history`. A
        collection with groups needs `groups`, integers [B]: the number of each row's group among their names, -1 = in
        no group. With `keep_rows=True`, `row_ids`, integers [B], unique over all batches, pair the rows of two runs
        (without them, rows are numbered as they come, on one process), and `clusters`, integers [B], are equal for rows
        that belong together, such as those of one user. Flat entries (`indexes` or `lengths`) make one row per session,
        with the session's id; their `groups` are [E], equal within a session.
        """
        args = UpdateArgs(
            scores,
            target,
            gains,
            exclude,
            ranks,
            ranking,
            depth,
            history,
            indexes,
            lengths,
            candidates,
            missing_target,
            shard,
        )
        with torch.no_grad():
            if args.is_flat:
                self._update_flat(args, weights, groups, complete, row_ids, clusters)
                return
            rows = self._rows_of(args, weights, groups)
            self.add(rows, RowKeys.read(row_ids, clusters, weights, rows.values.shape[1]))
            note_replicated(self.members, shard is not None)

    @outside_graphs
    @torch.no_grad()
    def forward(
        self,
        scores: Tensor | Ranking | None = None,
        target: Target | None = None,
        *,
        gains: Gains | None = None,
        exclude: Exclude | None = None,
        weights: Tensor | None = None,
        ranks: Tensor | None = None,
        ranking: Ranking | None = None,
        depth: int | None = None,
        history: Target | Spans | None = None,
        groups: Tensor | None = None,
        row_ids: Tensor | None = None,
        clusters: Tensor | None = None,
        candidates: Tensor | None = None,
        missing_target: MissingTarget = "unreachable",
        shard: ItemShard | None = None,
        indexes: Tensor | None = None,
        lengths: Tensor | None = None,
        complete: Complete = False,
    ) -> dict[str, Tensor]:
        """Add a batch to every member and return the batch's own values; waits for the device.

        A session that goes on in other batches counts with its entries in this batch alone.
        """
        args = UpdateArgs(
            scores,
            target,
            gains,
            exclude,
            ranks,
            ranking,
            depth,
            history,
            indexes,
            lengths,
            candidates,
            missing_target,
            shard,
        )
        members = self.evaluator.members
        if args.is_flat:
            rules = members[0].rules
            parts = rank_sessions(FlatRows.read(args, weights, groups, rules), rules, len(self.groups))
            rows = self.row_values(parts.ranking, parts.weights, parts.groups)
            self._update_flat(args, weights, groups, complete, row_ids, clusters)
        else:
            rows = self._rows_of(args, weights, groups)
        batch = batch_states(members, self.evaluator.batch_sums(rows))
        summaries = summarize(members, batch, "dist_sync_on_step")
        if not args.is_flat:
            self.add(rows, RowKeys.read(row_ids, clusters, weights, rows.values.shape[1]))
            note_replicated(self.members, shard is not None)
        for metric, summary in zip(members, summaries, strict=True):
            metric._forward_cache = summary.value
        found = dict(zip(map(id, members), summaries, strict=True))
        for part in self._parts():
            part.__dict__["_forward_cache"] = found[id(part.whole)].groups[part.group].value
        return {key: metric.__dict__["_forward_cache"] for key, metric in self.items(copy_state=False)}

    def _rows_of(self, args: UpdateArgs, weights: Tensor | None, groups: Tensor | None) -> RowValues:
        """Return the row values of a batch; with `shard=`, an error of one process is raised on all processes."""
        with together(args.shard, weights, groups):
            check_replicated(self.members, args.shard is not None)
            if args.shard is not None and (self.keep_rows or self._window is not None):
                raise ValueError(
                    "shard= does not go with keep_rows, window and half_life: all processes hold the same rows"
                )
            return self.row_values(self.rank(args), weights, groups)

    def _update_flat(
        self,
        args: UpdateArgs,
        weights: Tensor | None,
        groups: Tensor | None,
        complete: Complete,
        row_ids: Tensor | None,
        clusters: Tensor | None,
    ) -> None:
        """Keep flat rows until `compute`, or rank and add sessions that are whole in this batch."""
        check_replicated(self.members, False)
        if row_ids is not None or clusters is not None:
            raise ValueError("row_ids and clusters are not for flat rows: the id of a row is its session's")
        if groups is not None and not self.groups:
            raise ValueError("groups were given: name them when the collection is made, groups=['cold', 'warm']")
        if self._window is not None and args.lengths is None and not complete:
            raise ValueError("a window needs rows in order, which unfinished sessions lack: give complete=True")
        if self.keep_rows and args.lengths is not None:
            raise ValueError("keep_rows=True tells sessions apart by their ids: give indexes with complete=True")
        ranked = self.sessions.take(self.evaluator, args, weights, groups, complete)
        if ranked is not None:
            rows = self.row_values(ranked.ranking, ranked.weights, ranked.groups)
            self.add(rows, RowKeys(ranked.ids, None, ranked.weights) if self.keep_rows else None)
            self.sessions.remember(ranked.seen)

    @property
    def sessions(self) -> Sessions:
        """The flat rows that are kept until `compute` ranks them."""
        sessions: Sessions | None = self.__dict__.get("_sessions")
        if sessions is None:
            sessions = self.__dict__["_sessions"] = Sessions()
        return sessions

    def rank(self, args: UpdateArgs) -> Ranking:
        """Return the ranking of the arguments of `update`, as deep as the members need."""
        if not len(self._modules):
            raise ValueError("the collection holds no metric any more")
        evaluator = self.evaluator
        return to_ranking(args, evaluator.needs, evaluator.given[0].rules)

    def row_values(self, ranking: Ranking, weights: Tensor | None = None, groups: Tensor | None = None) -> RowValues:
        """Return the value of every row for each member; a collection with groups needs `groups`, integers [B]."""
        if groups is None:
            if self.groups and len(ranking):
                raise ValueError(
                    f"the collection has the groups {', '.join(self.groups)}: update(..., groups=) says to which each "
                    "row belongs, integers [B], -1 = to none"
                )
            return self.evaluator.row_values(ranking, weights)
        if isinstance(groups, Groups):
            raise TypeError(
                "update takes the groups of the batch's rows, integers [B]: groups=groups.of(train)[user_ids]"
            )
        if not self.groups:
            raise ValueError("groups were given: name them when the collection is made, groups=['cold', 'warm']")
        return self.evaluator.row_values(ranking, weights, RowGroups(groups, len(self.groups)))

    def add(self, rows: RowValues, keys: RowKeys | None = None) -> None:
        """Add a batch to the state of every member, and keep its rows with `keep_rows=True`."""
        columns = self._columns(rows, keys)
        sums = self.evaluator.batch_sums(rows)
        self.add_sums(sums)
        if self._window is not None:
            # a window refuses counters: no SparseUpdate
            self._window.add(rows, cast("list[SumState]", sums), self.evaluator.metrics[0])
        if self._keeper is not None and columns is not None:
            self._keeper.add(self.evaluator.metrics, columns)

    def add_sums(self, sums: Sequence[SumState | SparseUpdate]) -> None:
        """Add sums of a batch to the states of `evaluator.members`."""
        add_to_states(self.evaluator.members, sums)

    @outside_graphs
    def compute(self) -> dict[str, Tensor]:
        """Return every member's value under its key: two all-reduces, and one synchronisation of kept rows."""
        if any(member._computed is None for member in self.members):
            self._recent = None  # all processes sum the window where they sum the states
        found = self.compute_members()
        values = {
            key: (found[id(metric)] if group is None else found[id(metric)].groups[group]).value.clone()
            for key, _, metric, group in self._entries()
        }
        return values | {key: summary.value.clone() for key, summary in self._window_summaries().items()}

    def keep_window(self, window: int | str | None = None, half_life: float | None = None) -> None:
        """Also give values of recent rows from now on; arguments as in the constructor.

        Raises:
            ValueError: for a window below 100 rows, and for metrics that count items over all lists.
        """
        recent = Window(window, half_life)
        recent.check(self.members)
        self._window, self._recent = recent, None

    def _window_summaries(self) -> dict[str, Summary]:
        """Return the results of the window by key, such as `HR@10/window`; empty without a window."""
        if self._window is None:
            return {}
        if self._recent is None:
            self._recent = self._window.summaries(self.evaluator)
        found = dict(zip(map(id, self.evaluator.metrics), self._recent, strict=True))
        return {
            f"{key}/{self._window.name}": found[id(metric)] if group is None else found[id(metric)].groups[group]
            for key, _, metric, group in self._entries()
        }

    def compute_members(self) -> dict[int, Summary]:
        """Return the results of all members by the member's `id`, and gather kept rows, unless both exist already."""
        members = self.members
        is_new = any(member._computed is None for member in members)
        keeper = RowKeeper() if self._keeper is not None else None
        if keeper is not None and self._keeper is not None:
            keeper.budget = self._keeper.budget
            keeper.extend(self._keeper)

        def use(values: RowValues, ranked: Ranked) -> None:
            """Keep the row values of the sessions that `compute` has just ranked."""
            if keeper is not None:
                metrics = self.evaluator.metrics
                columns = keeper.columns(metrics, values, RowKeys(ranked.ids, None, ranked.weights))
                keeper.add(metrics, columns)

        waiting = [self.sessions, *(member.sessions for member in members)]  # a member updated alone has its own
        extra = partial(self._session_sums, waiting, use)
        num_waiting = sum(map(len, waiting))
        summaries = dict(zip(map(id, members), compute_all(members, extra, num_waiting), strict=True))
        if is_new and keeper is not None:
            self._gather_rows(keeper)
        return summaries

    def _session_sums(
        self, waiting: Sequence[Sessions], use: Callable[[RowValues, Ranked], None], *, across: bool, group: Any
    ) -> dict[int, SumState]:
        """Return each member's sums by `id`, over the sessions of the collection and those of the member alone."""
        numbers = torch.tensor([len(sessions) for sessions in waiting], device=self.members[0].device)
        if across:
            torch.distributed.all_reduce(numbers, group=group)
        found = {id(member): member.empty_state() for member in self.members}
        evaluators = [self.evaluator, *(RowEvaluator([member]) for member in self.members)]
        for place, (sessions, number) in enumerate(zip(waiting, numbers.tolist(), strict=True)):
            if number:
                keep = use if place == 0 else None
                sums = sessions.sums(evaluators[place], across=across, group=group, use=keep)
                for metric, state in sums.items():
                    found[metric] = SumState(*(a + b for a, b in zip(found[metric], state, strict=True)))
        return found

    def _gather_rows(self, keeper: RowKeeper) -> None:
        self._rows = self._lost_rows_message = None
        labels = {member: key for key, member in self.keyed(keep_base=True).items() if not member.of_items}
        try:
            self._rows = rows = keeper.gathered(self.evaluator.metrics, labels)
        except ValueError as error:  # raised by `rows`: the values do not need them
            self._lost_rows_message = str(error)
            return
        for metric, key in labels.items():
            values = rows.values[key]
            if (kept := len(values) - int(values.isnan().count_nonzero())) != metric.num_users:
                self._lost_rows_message = (
                    f"{kept} rows of {key} are kept, but it is a mean over {metric.num_users}: rows are lost where "
                    "a state is loaded, or a member is updated or reset alone"
                )

    def reset(self) -> None:
        """Forget all updates; the results of the last `compute` stay readable."""
        super().reset()
        if self._keeper is not None:
            self._keeper.clear()
        self.__dict__.pop("_sessions", None)
        if self._window is not None:
            self._window.clear()

    @property
    def keep_rows(self) -> bool:
        """True if per-row values are kept."""
        return self._keeper is not None

    @property
    def rows(self) -> Rows:
        """Per-row values of the last `compute`, by id, of all processes.

        Raises:
            ValueError: if no rows were kept or some are lost, for repeated ids, and for several processes without ids.
        """
        if not self.keep_rows:
            raise ValueError("no rows were kept: make the collection with keep_rows=True")
        if self._lost_rows_message is not None:
            raise ValueError(self._lost_rows_message)
        if self._rows is None:
            raise RuntimeError("rows are those of the last compute(); call it first")
        return self._rows

    def standard_errors(self) -> dict[str, Tensor]:
        """Return the standard error of the last `compute` for every member, under its key."""
        errors = {entry.key: entry.summary.standard_error.clone() for entry in self.found()}
        recent = {} if self._recent is None else self._window_summaries()
        return errors | {key: summary.standard_error.clone() for key, summary in recent.items()}

    @property
    def points(self) -> list[Point]:
        """Results of the last `compute` for each member, in the order of the keys."""
        return [_point(entry) for entry in self.found()]

    def plot(self, val: Any = None, ax: Any = None, together: bool = True) -> Any:
        """Plot all values in one figure: against k with 95 % intervals, one line per metric.

        Metrics without a cut-off are horizontal lines. With a single cut-off, each key is a dot in a row of its own.
        Metrics with other bounds than 0 to 1, or none, have axes of their own, one below the other: `figure.axes`.

        Args:
            val: values as `compute` or `forward` returns them, drawn without intervals; or a list of such values, one
                per step; None = the values of `compute`.
            ax: matplotlib axes, or a list of axes, one for each scale; None = a new figure.
            together: False = one figure per metric, as torchmetrics' collections draw; `ax` is then a list of axes.

        Returns:
            Figure and the first axes; with `together=False` a list of both.

        Raises:
            ImportError: without matplotlib.
            ValueError: for values that lack a key, and if scales and axes differ in number.
        """
        if not together:
            if val is not None:
                return super().plot(val, ax, together=False)
            axes = [None] * len(self.members) if ax is None else ax
            return [member.plot(ax=axis) for member, axis in zip(self.members, axes, strict=True)]
        if val is None:
            self.compute()
            return plot_points(self.points, ax)
        keys, series = [*self.keys()], [val] if isinstance(val, Mapping) else val
        for values in series:
            if not isinstance(values, Mapping):
                raise TypeError(f"val must be values by key, or a list of these, got {describe(values)}")
            if missing := [key for key in keys if key not in values]:
                raise ValueError(f"val has no value of {missing[0]!r}; it holds {', '.join(map(str, values))}")
        if series is val:
            units: dict[str, dict[str, list[float]]] = {}
            for key, m in self.keyed().items():
                units.setdefault(unit_of(m.name, m.bounds), {})[key] = [float(values[key]) for values in series]
            return draw_steps(units, ax)
        labels = zip(self.keyed().items(), self.keyed(keep_base=True), strict=True)
        points = [
            Point(key, label, m.name, m.k, float(val[key]), math.nan, math.nan, m.bounds, 0)
            for (key, m), label in labels
        ]
        return plot_points(points, ax)

    def curve(self, name: str, *, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> Curve:
        """Return a metric's value at each of its cut-offs, with a band that holds at all of them together.

        The band consists of intervals of `confidence_interval` at a higher level: without kept rows Bonferroni's, 1 -
        (1 - level) / K; with kept rows at most that, and lower the more the K values depend on each other, found from
        the largest deviation over all k, in standard errors, in each resample of the rows (or clusters).

        Args:
            name: name of the metric without cut-off, "NDCG" or "NDCG-exponential".
            level: confidence level, for all cut-offs together.
            resamples: number of resamples, where rows are kept.
            seed: seed of the hash of ids.

        Raises:
            ValueError: for an unknown name, or a metric without a cut-off.

        Source: Montiel Olea and Plagborg-Møller, Simultaneous confidence bands: theory, implementation, and an
        application to SVARs, Journal of Applied Econometrics 34, 2019.

        Examples:
            >>> import torch
            >>> import torchrecmetrics as trm
            >>> collection = trm.RecMetricCollection("HR", k=[1, 2], keep_rows=True)
            >>> collection.update(torch.tensor([1, 2, 3, 3] * 25))
            >>> curve = collection.curve("HR")
            >>> curve.k, curve.values
            ((1, 2), (0.25, 0.5))
        """
        self.compute()
        return curve_of(self.points, name, self.rows if self.keep_rows else None, level, resamples, seed)

    def merge_state(self, other: RecMetricCollection) -> None:
        """Check all members, then add the state of a collection with the same metrics and options."""
        if not isinstance(other, RecMetricCollection):
            raise TypeError(f"a collection merges a RecMetricCollection, got {describe(other)}")
        mine, theirs = self.keyed(keep_base=True), other.keyed(keep_base=True)
        if lone := mine.keys() ^ theirs.keys():
            raise ValueError(f"collections of the same metrics can be merged; only one of the two has {sorted(lone)}")
        options = [item._window.option if item._window is not None else "no window" for item in (self, other)]
        if options[0] != options[1]:
            raise ValueError(f"one of the two collections has {options[0]}, the other {options[1]}: make both alike")
        if self.keep_rows != other.keep_rows:
            raise ValueError("one of the two collections keeps rows, the other does not: make both with keep_rows=True")
        for key, member in mine.items():
            member.check_mergeable(theirs[key])
        self.sessions.check(other.sessions)
        if self._keeper is not None and other._keeper is not None:
            if list(mine) != list(theirs):
                raise ValueError("rows are merged of collections whose metrics have the same order")
            self._keeper.extend(other._keeper)
        for key, member in mine.items():
            member.merge_state(theirs[key])
        self.sessions.extend(other.sessions)
        if self._window is not None and other._window is not None:
            names = list(other._window_states())
            self._window.extend(other._window, [names.index(name) for name in self._window_states()])

    def _columns(self, rows: RowValues, keys: RowKeys | None) -> Columns | None:
        """Return the columns of a batch that are kept, or refuse the batch; None where no rows are kept."""
        if self._keeper is not None:
            return self._keeper.columns(self.evaluator.metrics, rows, keys)
        if keys is not None and not (keys.ids is None is keys.clusters):
            raise ValueError("row_ids and clusters tell kept rows apart: make the collection with keep_rows=True")
        return None

    def _link_members(self) -> None:
        """Link each member to this collection, so that the first member that is computed synchronises all members."""
        for metric in self.members:
            metric.__dict__["_collection"] = self
        for key, part in self._modules.items():
            if isinstance(part, GroupValue):
                whole: Any = self._modules[key.removesuffix(f"/{part.name}")]
                part.belong_to(whole)

    def _parts(self) -> list[GroupValue]:
        return [metric for metric in self._modules.values() if isinstance(metric, GroupValue)] if self.groups else []

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if any(any(member._persistent.values()) for member in self.members):
            self.sessions.save_to(destination, prefix)
            if self._window is not None:
                self._window.save_to(destination, prefix, self._window_states())

    def _window_states(self) -> dict[str, RankingMetric]:
        """Return the metrics in the order of the window, by the names of their states in a state dict."""
        keys = {id(metric): key for key, metric in self.keyed(keep_base=True).items()}
        return {f"{keys[id(metric)]}.{metric.state_name}": metric for metric in self.evaluator.metrics}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        if any(key.startswith(prefix) for key in state_dict):  # else the members are not persistent: all stays
            if self._window is not None:
                self._window.load_from(state_dict, prefix, self._window_states())
            self.sessions.load_from(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in ("_evaluator", "_members")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._link_members()


def _point(found: Found) -> Point:
    """Return a result of `found` as a `Point`, for plots and curves."""
    metric, summary = found.metric, found.summary
    value, error, size = (float(number) for number in summary[:3])
    return Point(
        *(found.key, found.label, metric.name, metric.k, value, error, size, metric.bounds, summary.num_users),
        found.group,
    )


def _check_parts(key: str, keys: Container[str], groups: Iterable[str]) -> None:
    """Refuse a metric if a key of one of its groups is taken."""
    for part in [f"{key}/{group}" for group in groups]:
        if part in keys:
            raise ValueError(f"{part!r} would be the key of two values, of a metric and of a group of {key!r}")


def _check_agreement(key: str, metric: RankingMetric, options: Mapping[str, Any]) -> None:
    """Refuse a metric with other options, which would need its own kernel call or synchronisation."""
    for name, wanted in options.items():
        if not hasattr(metric, name):
            raise ValueError(f"unknown option {name!r}")
        own = getattr(metric, name)
        if name == "catalogue" and (own is None or wanted is None):
            continue  # a metric without a catalogue reads none
        if own is None or wanted is None:
            default = _DEFAULTS.get(name)
            own, wanted = (default if value is None else value for value in (own, wanted))
        if own != wanted:
            raise ValueError(
                f"{key} was made with {name}={own!r}, the collection with {name}={wanted!r}: give both the same "
                f"{name}, or make a collection of each (with a prefix)"
            )
