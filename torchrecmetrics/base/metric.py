"""`RankingMetric`: base class of all metrics: options, label, `update`, `forward`, `compute`, standard errors."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import torch
from torch import Tensor
from torchmetrics import Metric

from torchrecmetrics.analysis.intervals import IntervalMethod, interval
from torchrecmetrics.analysis.plots import draw_interval
from torchrecmetrics.base.compute import compute_all, summarize
from torchrecmetrics.base.options import (
    OPTIONS,
    EmptyTargetAction,
    Formula,
    Signature,
    check_positional,
    check_spelling,
    fingerprint,
    label_part,
)
from torchrecmetrics.base.row_values import ListBatch, RowEvaluator
from torchrecmetrics.base.sessions import Complete, FlatRows, Sessions, rank_sessions
from torchrecmetrics.base.state import (
    SparseUpdate,
    Summary,
    SummedMetric,
    SumState,
    add_to_states,
    batch_states,
    check_replicated,
    note_replicated,
    outside_graphs,
)
from torchrecmetrics.checks import (
    VIOLATIONS,
    Validation,
    check_choice,
    check_k,
    check_score_threshold,
    describe,
    in_words,
    nearest,
)
from torchrecmetrics.data.catalogue import FROM_TABLES, Catalogue
from torchrecmetrics.data.jagged import Spans
from torchrecmetrics.kernels import KernelChoice
from torchrecmetrics.ranking import Exclude, Gains, Overlap, Ranking, Target, Ties
from torchrecmetrics.ranking.candidates import MissingTarget
from torchrecmetrics.ranking.rules import RULES, Needs, Rules
from torchrecmetrics.ranking.shards import ItemShard, together
from torchrecmetrics.ranking.update_args import UpdateArgs, to_ranking

if TYPE_CHECKING:
    from typing_extensions import Self


class RankingMetric(SummedMetric):
    """Weighted mean over rows of a function of their `Ranking`; base class of all metrics of this package.

    A row is one ranking: a user, a session, an event. `update` takes one of three forms, positional or by keyword:

    - `update(scores, target, *, gains=None, exclude=None, weights=None)`, as described in `Ranking.from_scores`;
    - `update(ranks, *, depth=None, weights=None)` with integer ranks [B], [B, 1] or [B, T] as `get_topk_ranks` gives
      them (1 = best, negative = padding, in [B, T] 0, too);
    - `update(ranking, *, weights=None)` with a `Ranking`.

    A call that raises leaves the metric as it was. Values are checked at once on the CPU; elsewhere `update` does not
    wait for the device, and `compute` raises. `forward` returns the value of its batch, so it waits for the device, and
    raises at once, on this process alone.

    Args:
        k: cut-off, >= 1: number of ranks that count.
        options: options of the formula, and keywords that every metric has:

            - `ties`: rank of an item among items of equal scores: "realistic" (default), "optimistic" or "pessimistic";
            - `padding_idx`: item id that is padding in target and exclude, and never a candidate;
            - `overlap`: meaning of a relevant item that is also excluded: "error" (default), "keep" or "miss";
            - `empty_target_action`: rows without a relevant item are left out ("skip", default; torchmetrics' default
              is "neg"), count as 0 ("neg") or 1 ("pos"), or are an "error";
            - `max_relevant`: maximum number of relevant items per row; with it, dense and jagged targets need no host
              sync;
            - `validate_args`: True, "deferred" (violations raise in `compute` on the CPU too) or False (no value
              checks);
            - `kernels`: "auto" (default), "eager" or "triton"; see `Ranking.from_scores`;
            - `catalogue`: a `Catalogue` of the items, for metrics beyond accuracy and formulas with that parameter;
            - torchmetrics' own, such as `sync_on_compute`.

    **A metric of your own** is a subclass with a `formula`: a function of a `Ranking`, a cut-off and options, that
    returns one value per row, [B]. It sees the first `k` ranks only: relevant items below them have rank `inf`.
    Without `k` it sees the whole ranking. Options and their defaults are those of its signature; the label shows
    options that are not the default. Rows without a relevant item follow `empty_target_action`; other rows whose
    value is NaN are left out of the mean. `weights`, another function of the ranking (and `k`), gives row weights:
    `weights = staticmethod(lambda ranking: ranking.num_relevant)`. They multiply the weights of `update`. Neither
    function may write into the ranking's tensors. The metric works in collections, `evaluate` and callbacks.
    `ListMetric` is the base for metrics of the lists themselves, `HistogramMetric` for metrics of all lists
    together.

    Attributes:
        formula: function of a `Ranking`, a cut-off and options.
        weights: a function of the ranking, or of the ranking and `k`, that returns the weight of each row, [B], >= 0;
            None = all 1.
        many_cutoffs: True if `k` may be a list of K cut-offs, with a result [K, B], and the ranking may be deeper
            than the last cut-off; else the formula is called once per cut-off.
        higher_is_better: False lets callbacks monitor the metric with `mode="min"`.
        bounds: lowest and highest value; None or infinite = unknown.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> def rank_biased_precision(ranking, k, *, p=0.8):
        ...     return (1 - p) * (p ** (ranking.ranks - 1) * ranking.hits(k)).sum(-1)
        >>> class RBP(trm.RankingMetric):
        ...     formula = staticmethod(rank_biased_precision)
        >>> metric = RBP(10, p=0.5)
        >>> metric.update(torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([[2, 1]]))
        >>> metric.label, metric.compute()  # 0.5 * (1 + 0.5)
        ('RBP-p0_5@10', tensor(0.7500, dtype=torch.float64))
    """

    higher_is_better: bool | None = True

    formula: ClassVar[Formula]
    weights: Callable[..., Tensor] | None = None
    """A function of the ranking, or of the ranking and `k`, that returns the weight of each row, [B]; None = all 1."""
    many_cutoffs: ClassVar[bool] = False
    bounds: ClassVar[tuple[float, float] | None] = None
    groups: tuple[str, ...] = ()
    """Names of groups of rows that have a value of their own."""
    of_lists: ClassVar[bool] = False
    """True for means over all rows with a list, with or without relevant items."""
    of_items: ClassVar[bool] = False
    """True for metrics that count items over all lists and are not means over rows."""
    plot_lower_bound: float | None = None
    plot_upper_bound: float | None = None
    _name: ClassVar[str]
    _signature: ClassVar[Signature | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "formula" in cls.__dict__:
            formula = cls.__dict__["formula"]
            formula = formula.__func__ if isinstance(formula, staticmethod) else formula
            cls._signature = Signature.read(cls.__name__, formula)
            cls.formula = staticmethod(formula)  # a plain function would be bound to the metric
            cls._name = cls.__dict__.get("_name", cls.__name__)
            if not re.fullmatch(r"[A-Za-z0-9_-]+", cls._name):
                raise TypeError(f"{cls._name} becomes a label: letters, digits, '-' and '_' only")
        if isinstance(weights := cls.__dict__.get("weights"), FunctionType):
            cls.weights = staticmethod(weights)
        low, high = cls.bounds or (-math.inf, math.inf)
        low, high = -math.inf if low is None else low, math.inf if high is None else high
        cls.bounds = None if math.isinf(low) and math.isinf(high) else (low, high)
        cls.plot_lower_bound, cls.plot_upper_bound = (end if math.isfinite(end) else None for end in (low, high))

    if not TYPE_CHECKING:  # type checkers read `__init__`

        def __new__(cls, *arguments: Any, **options: Any) -> Self:
            """Refuse positional arguments that `__init__` does not take, and name the keywords instead."""
            check_positional(cls, arguments)
            return super().__new__(cls)

    def __init__(self, k: int | None = None, **options: Any) -> None:
        signature = self._signature
        if signature is None:
            raise TypeError(
                f"{type(self).__name__} has no formula: write a subclass with formula = staticmethod(function), a "
                "function of (ranking, k, *, options) that returns one value a row"
            )
        self._check_known(options)
        ours = (*signature.options, *RULES, "empty_target_action", "catalogue")
        super().__init__(**{name: value for name, value in options.items() if name not in ours})
        if k is not None and not signature.takes_k:
            raise ValueError(f"{self._name} has no cut-off, got k={k!r}")
        if k is None and signature.needs_k:
            raise TypeError(f"{self._name!r} needs a cut-off: {type(self).__name__}(10)")
        self.k: int | None = None if k is None else check_k(k)
        self.rules: Rules = Rules(**{name: options[name] for name in RULES if name in options})
        self.empty_target_action: EmptyTargetAction = options.get("empty_target_action", "skip")
        check_choice("empty_target_action", self.empty_target_action, get_args(EmptyTargetAction))
        self.catalogue: Catalogue | None = self._check_catalogue(options.get("catalogue"))
        self.options: dict[str, Any] = {
            name: deepcopy(options.get(name, default)) for name, default in signature.options.items()
        }
        if "score_threshold" in self.options:
            self.options["score_threshold"] = check_score_threshold(self.options["score_threshold"])
        if (self._changed_options() or self.catalogue is not None) and _is_builtin(type(self)):
            self._try_formula()  # so that bad options raise now, not at the first batch

        shaped_by = [self.label, self.rules.place_ties, self.rules.take_overlap, self.empty_target_action]
        shaped_by += [] if self.padding_idx is None else [f"padding{self.padding_idx}"]
        shaped_by += [] if self.validate_args is True else [f"validate_{self.validate_args}"]
        if not _is_builtin(type(self)):  # another class may have the same name and options
            shaped_by.append(fingerprint(type(self), self.options))
        if signature.reads_catalogue and self.catalogue is not None:
            shaped_by.append(self.catalogue.fingerprint)
        self._begin("-".join(shaped_by))

    def _begin(self, name: str) -> None:
        """Register an empty state; `name` contains everything that the value depends on."""
        parts = 1 + len(self.groups)
        self._add_sum_states(name, 5 * parts, 4 * parts + len(VIOLATIONS))

    def split(self, groups: Sequence[str]) -> None:
        """Extend the state by sums for each group of rows; collections call this before the first batch."""
        if self.update_called:
            raise ValueError(f"{self.label} has seen rows that belong to no group: split it before the first batch")
        if self.groups:
            raise ValueError(f"{self.label} has groups already: {', '.join(self.groups)}")
        self._drop_sum_states()
        self.groups = tuple(groups)
        self._begin(f"{self.state_name}-{fingerprint(type(self), {'groups': self.groups})}")

    def _try_formula(self) -> None:
        """Call the formula on a ranking without rows, so that it raises for bad options now."""
        RowEvaluator([self]).values(Ranking.without_relevant(0, torch.device("cpu"), self.needs.score_threshold))

    def _check_catalogue(self, catalogue: Any) -> Catalogue | None:
        """Return the catalogue, or raise if the metric needs one and none is given."""
        assert self._signature is not None
        if catalogue is None and (self._signature.reads_catalogue or self.of_items):
            k = "10, " if self._signature.takes_k else ""
            raise ValueError(
                f"{self._name} needs a catalogue: {self._name}({k}catalogue=trm.Catalogue.from_interactions(train)); "
                "collections, evaluate and callbacks take catalogue= for all their metrics"
            )
        if catalogue is not None and not isinstance(catalogue, Catalogue):
            raise TypeError(
                f"catalogue must be a Catalogue, got {describe(catalogue)}: trm.Catalogue.from_interactions(train), "
                f"where train is {FROM_TABLES}"
            )
        return catalogue

    def _check_known(self, options: dict[str, Any]) -> None:
        """Refuse unknown options, and name required ones that are missing."""
        assert self._signature is not None
        check_spelling(options)
        own = self._signature.options
        known = [*own, *OPTIONS]
        for name in options:
            if name not in known:
                asked = inspect.signature(type(self).__init__).parameters.values()  # a class may have more keywords
                known = list(
                    dict.fromkeys([*(param.name for param in asked if param.kind is param.KEYWORD_ONLY), *known])
                )
                raise ValueError(f"{self._name} has no option {name!r}{nearest(name, known)}")
        missing = [f"{name}=" for name, default in own.items() if default is inspect.Parameter.empty]
        if missing := [name for name in missing if name[:-1] not in options]:
            raise TypeError(f"{self._name} needs {', '.join(missing)}")
        for name in own.keys() & options.keys():
            label_part(name, options[name])  # refuses values that no label can show

    # ------------------------------------------------------------------------------------------ names, rules, results

    @property
    def name(self) -> str:
        """Label without the cut-off: `NDCG-exponential`."""
        return "-".join([self._name, *(label_part(key, value) for key, value in self._changed_options().items())])

    def _changed_options(self) -> dict[str, Any]:
        assert self._signature is not None
        defaults = self._signature.options
        return {key: value for key, value in self.options.items() if value != defaults[key]}

    @property
    def label(self) -> str:
        """Name under which the metric is logged: `NDCG-exponential@10`."""
        return self.name if self.k is None else f"{self.name}@{self.k}"

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of the formula."""
        reads = self._signature is not None and self._signature.reads_catalogue
        return {**self.options, "catalogue": self.catalogue} if reads else self.options

    @property
    def takes_k(self) -> bool:
        """True if the formula has a cut-off."""
        return self._signature is not None and self._signature.takes_k

    @property
    def ties(self) -> Ties | None:
        """Rank of an item among items of equal scores, as given; None is "realistic"."""
        return self.rules.ties

    @property
    def padding_idx(self) -> int | None:
        """Item id that is padding."""
        return self.rules.padding_idx

    @property
    def overlap(self) -> Overlap | None:
        """Meaning of a relevant item that is also excluded, as given; None is "error"."""
        return self.rules.overlap

    @property
    def max_relevant(self) -> int | None:
        """Maximum number of relevant items per row, for dense and jagged targets."""
        return self.rules.max_relevant

    @property
    def validate_args(self) -> Validation:
        """True, "deferred" or False: when values are checked."""
        return self.rules.validate_args

    @property
    def kernels(self) -> KernelChoice:
        """Implementation of the kernels that count over scores: "auto", "eager" or "triton"."""
        return self.rules.kernels

    @property
    def needs(self) -> Needs:
        """The data that the formula reads: the first `k` ranks, or all; the items that reach `score_threshold`.

        A formula with a parameter `catalogue` also reads the items of the first `k` ranks. If a formula reads
        `Ranking.num_ranked`, override this property: `return super().needs._replace(num_ranked=True)`.
        """
        needs = Needs(self.k, score_threshold=self.options.get("score_threshold"))
        if self._signature is None or not self._signature.reads_catalogue or self.catalogue is None:
            return needs
        return needs._replace(list_depth=self.k or 0, num_items=self.catalogue.num_items)

    @property
    def num_users(self) -> int:
        """Number of rows that the last `compute` averaged over."""
        return self.last_summary().num_users

    @property
    def num_skipped(self) -> int:
        """Number of rows without a relevant item in the last `compute` (left out under "skip")."""
        return self.last_summary().num_skipped

    @property
    def num_unreachable(self) -> int:
        """Number of rows of the last `compute` with a relevant item that was no candidate, and therefore a miss."""
        return self.last_summary().num_unreachable

    @property
    def num_tied(self) -> int:
        """Number of rows of the last `compute` with a relevant item in a tie, within the ranks that are read.

        Ranks are read up to the largest `k` of all metrics that rank together; by RPrecision up to the row's R.
        """
        return self.last_summary().num_tied

    def standard_error(self) -> Tensor:
        """Return the standard error of the mean that the last `compute` gave, scalar; NaN for fewer than two rows."""
        return self.last_summary().standard_error.clone()

    def confidence_interval(self, level: float = 0.95, method: IntervalMethod = "score") -> tuple[float, float]:
        """Return a confidence interval for the true mean, (low, high), from the last `compute`.

        Args:
            level: confidence level, between 0 and 1: the share of samples whose interval holds the true mean.
            method: "score": Wilson's, with the number of rows that the standard error implies; it stays within the
                metric's bounds. "student": mean and standard errors. Metrics whose rows can be beyond their bounds, or
                with an unknown bound, get Student's interval, cut off at a known bound.

        Returns:
            Lower and upper end; nan for fewer than two rows. Rows are taken to be independent: if a user has several
            rows, keep the rows with clusters and use `Rows.confidence_interval`.

        Raises:
            ValueError: for a level that is not between 0 and 1, and for an unknown method.

        Examples:
            >>> import torch
            >>> from torchrecmetrics import HitRate
            >>> metric = HitRate(1)
            >>> metric.update(torch.tensor([1] * 30 + [2] * 70))
            >>> metric.compute()
            tensor(0.3000, dtype=torch.float64)
            >>> [round(end, 3) for end in metric.confidence_interval()]
            [0.218, 0.398]
        """
        found = self.last_summary()
        value, error, size = (float(number) for number in found[:3])
        return interval(value, error, size, self.bounds, level, method)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot the value with its 95 % interval; or the given values, as other torchmetrics metrics do.

        Args:
            val: a value, or a sequence of them, one per step; None = the value of `compute`.
            ax: matplotlib axes; None = a new figure.

        Returns:
            Figure and axes.

        Raises:
            ImportError: without matplotlib.
        """
        figure, axes = super().plot(val, ax)
        if val is None:
            draw_interval(axes, self.last_summary().value.item(), self.confidence_interval(), self.label)
        return figure, axes

    # ------------------------------------------------------------------------------------------------- update, compute

    @outside_graphs
    def update(
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
        candidates: Tensor | None = None,
        missing_target: MissingTarget = "unreachable",
        shard: ItemShard | None = None,
        indexes: Tensor | None = None,
        lengths: Tensor | None = None,
        complete: Complete = False,
    ) -> None:
        """Add a batch: `(scores, target)`, `(ranks)`, `(ranking)`, or flat rows `(scores, target, indexes=)`.

        Args:
            scores: float [B, I], higher is better; the first argument may also be ranks or a `Ranking`.
            target: relevant items: ids [B] or [B, T], negative = padding, or jagged; bool [B, I]; or graded floats
                [B, I].
            gains: gains [B, T] beside target ids, jagged if the ids are jagged.
            exclude: items that are removed from the candidates: ids [B, H] or [B], also jagged, a result of
                `prefix_history`, bool [B, I], bool [I], or a tuple of these.
            weights: weight of each row, [B], >= 0.
            ranks: integers [B], [B, 1] or [B, T], 1 = best, negative = padding, in [B, T] 0, too.
            ranking: a `Ranking`.
            depth: number of positions of the ranking that were looked at to make `ranks`.
            history: items that the row's user had before, ids [B] or [B, H], negative = padding; read by metrics that
                compare lists with it (`PopularityLift`, `Calibration`, `Seen`). These items stay candidates unless
                they are in `exclude`, too.
            candidates: integers [C] or [B, C], the item ids of the scores' columns, negative = padding: target, exclude
                and history are then item ids, and lists hold them. An item that a row lists twice competes once.
            missing_target: a target that is no candidate is "unreachable" (counted) or an "error".
            shard: an `ItemShard`: `scores` are the columns of this process, of the same rows on every process.
            indexes: integers [E], the session of each entry of flat `scores` [E] and labels `target` [E] (bool, or
                numbers: > 0 is relevant, and the value its gain). Entries are kept, and put together in `compute`: a
                session may go on in later batches and on other processes. `weights` are [E], equal within a session.
            lengths: number of entries of each session, integers [S], in place of `indexes`: whole sessions, one after
                the other, are ranked at once; `weights` are [S].
            complete: True promises that each session of `indexes` is whole in this call: it is ranked at once, and
                nothing is kept; "checked" also refuses a session that this process was given before with "checked",
                and batches without `complete` beside it.

        Raises:
            TypeError: for a dtype that is not accepted.
            ValueError: for shapes or devices that do not fit and, on the CPU, for bad values. Nothing is added then.
        """
        self._check_alone()
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
                check_replicated([self], False)
                ranked = self.sessions.take(RowEvaluator([self]), args, weights, None, complete)
                if ranked is not None:
                    self._add(self.batch_sums(ranked.ranking, ranked.weights))
                    self.sessions.remember(ranked.seen)
                return
            self._add(self._sums_of(args, weights))
            note_replicated([self], shard is not None)

    def _check_alone(self) -> None:
        """Raise if the metric is a member of a collection with a window, which would miss the metric's own rows."""
        collection = self.__dict__.get("_collection")
        if collection is not None and collection._window is not None and any(m is self for m in collection.members):
            raise ValueError(f"{self.label} is in a collection with a window: update that, and nest it in no other")

    def _sums_of(self, args: UpdateArgs, weights: Tensor | None) -> SumState | SparseUpdate:
        """Return the sums of a batch; with `shard`, an error of one process is raised on all processes."""
        with together(args.shard, weights, None):
            check_replicated([self], args.shard is not None)
            return self.batch_sums(to_ranking(args, self.needs, self.rules), weights)

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
        candidates: Tensor | None = None,
        missing_target: MissingTarget = "unreachable",
        shard: ItemShard | None = None,
        indexes: Tensor | None = None,
        lengths: Tensor | None = None,
        complete: Complete = False,
    ) -> Tensor:
        """Add a batch and return only its value; takes the arguments of `update` and waits for the device.

        For sessions that go on in other batches, the value is that of their entries in this batch.
        """
        self._check_alone()
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
        if args.is_flat:
            parts = rank_sessions(FlatRows.read(args, weights, None, self.rules), self.rules, 0)
            added = self.batch_sums(parts.ranking, parts.weights)
            self.update(scores, target, weights=weights, indexes=indexes, lengths=lengths, complete=complete)
        else:
            added = self._sums_of(args, weights)
        (summary,) = summarize([self], batch_states([self], [added]), "dist_sync_on_step")
        if not args.is_flat:
            self._add(added)
            note_replicated([self], shard is not None)
        self._forward_cache = summary.value
        return summary.value.clone()

    @outside_graphs
    def compute(self) -> Tensor:
        """Return the value over all processes: a scalar float64 tensor; NaN and a warning if there was no row.

        Raises:
            ValueError: if updates held bad values that could not raise at once; the message counts the rows by kind.
        """
        collection = self.__dict__.get("_collection")
        if collection is not None and any(member is self for member in collection.values()):
            summary: Summary = collection.compute_members()[id(self)]
        else:
            (summary,) = compute_all([self], partial(self.sessions.sums, RowEvaluator([self])), len(self.sessions))
        return summary.value.clone()

    @property
    def sessions(self) -> Sessions:
        """Buffer of flat rows that are kept until `compute`."""
        sessions: Sessions | None = self.__dict__.get("_sessions")
        if sessions is None:
            sessions = self.__dict__["_sessions"] = Sessions()
        return sessions

    def reset(self) -> None:
        """Forget all updates; the results of the last `compute` stay readable."""
        super().reset()
        self.__dict__.pop("_sessions", None)

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the state of another metric with the same label and options, or such a state as a dict."""
        super().merge_state(incoming_state)
        if isinstance(incoming_state, RankingMetric):
            self.sessions.extend(incoming_state.sessions)

    def check_mergeable(self, incoming_state: dict[str, Any] | Metric) -> dict[str, Any]:
        """Return a state that may be added to this one, as a dict; raise for other states and other flat rows."""
        if isinstance(incoming_state, RankingMetric):
            self.sessions.check(incoming_state.sessions)
        return super().check_mergeable(incoming_state)

    def _sync_dist(self, *arguments: Any, **options: Any) -> None:
        super()._sync_dist(*arguments, **options)
        self.sessions.refuse_sync(self.state().sums.device, self.process_group)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if any(self._persistent.values()):
            self.sessions.save_to(destination, prefix)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        if any(key.startswith(prefix) for key in state_dict):  # else the metric is not persistent: its rows stay
            self.sessions.load_from(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def batch_sums(self, ranking: Ranking, weights: Tensor | None = None) -> SumState | SparseUpdate:
        """Return the sums of `ranking` without changing the state; raises if the metric cannot use it."""
        if self.groups:
            raise ValueError(f"{self.label} has groups of rows: update its collection, with groups=")
        evaluator = RowEvaluator([self])
        (added,) = evaluator.batch_sums(evaluator.row_values(ranking, weights))
        return added

    def _add(self, added: SumState | SparseUpdate) -> None:
        """Add a batch to the state."""
        add_to_states([self], [added])

    def sparse_update(self, lists: ListBatch, violations: Tensor | None) -> SparseUpdate:
        """Return the sums of a batch of lists, for a metric that counts items over all lists."""
        raise NotImplementedError

    def row_weights(self, ranking: Ranking, weights: Tensor) -> Tensor:
        """Return the weight of each row, [B]: `weights` of `update` times the metric's own weights."""
        if self.weights is None:
            return weights
        takes_k = len(inspect.signature(self.weights).parameters) > 1
        own: Any = self.weights(ranking, self.k) if takes_k else self.weights(ranking)
        return own if not isinstance(own, Tensor) or own.shape != weights.shape else weights * own.nan_to_num(0)

    def weighs_rows(self) -> bool:
        """Return True if the metric has row weights of its own."""
        return self.weights is not None or type(self).row_weights is not RankingMetric.row_weights

    @classmethod
    def summaries(cls, metrics: Sequence[Self], states: Sequence[SumState]) -> list[Summary]:
        """Return the means, standard errors and counts of metrics from their states; waits for the device."""
        kinds = 4 + len(VIOLATIONS)
        counts = torch.stack([state.counts for state in states]).tolist()  # waits for the device, once
        for metric, numbers in zip(metrics, counts, strict=True):
            metric._check_input(numbers[4:kinds])
        flags = [numbers[at : at + 4] for numbers in counts for at in (0, *range(kinds, len(numbers), 4))]
        sums = torch.cat([state.sums for state in states]).view(-1, 5).T
        errors = _standard_errors(sums, [numbers[0] for numbers in flags])
        results = zip((sums[1] / sums[0]).unbind(), errors.unbind(), (sums[0].square() / sums[2]).unbind(), strict=True)
        summaries = [Summary(*result, *numbers) for result, numbers in zip(results, flags, strict=True)]
        found, place = [], 0
        for metric in metrics:
            behind = place + 1 + len(metric.groups)
            found.append(summaries[place]._replace(groups=summaries[place + 1 : behind]))
            place = behind
        return found

    def _check_input(self, invalid: list[int]) -> None:
        """Raise if updates held bad input; `invalid` has the number of bad rows of each kind of `VIOLATIONS`."""
        if any(invalid):
            found = zip(invalid, VIOLATIONS.values(), strict=True)
            what = "; ".join(f"{in_words(rows)} {text}" for rows, text in found if rows)
            raise ValueError(f"{self.label}: bad input since the last reset: {what}")

    def __getnewargs__(self) -> tuple[Any, ...]:
        return ()  # arguments of `__new__` in copies; torchmetrics would give the letters of the class's name

    def __getstate__(self) -> dict[str, Any]:
        # a copy of the metric alone does not belong to its collection
        return {key: value for key, value in super().__getstate__().items() if key != "_collection"}


def _is_builtin(cls: type) -> bool:
    """Return True for a metric of this package, whose label contains everything that its value depends on."""
    return cls.__module__.startswith("torchrecmetrics.")


def _standard_errors(sums: Tensor, num_used: list[int]) -> Tensor:
    """Return the standard errors of means, [metrics], from their five sums [5, metrics] and number of rows."""
    used = torch.tensor(num_used, dtype=sums.dtype, device=sums.device)
    w, wv, w2, w2v, w2v2 = sums.unbind()
    mean = wv / w
    variance = w2v2 - 2 * mean * w2v + mean.square() * w2
    # The rounding error of a sum of n terms is below (n + 3) eps / 2 times the sum of their sizes, in any order; the
    # terms are rounded, too. A variance below a bound of more than twice that is rounding, not spread.
    rounding = (used + 8) * torch.finfo(w.dtype).eps * (w2v2 + 2 * (mean * w2v).abs() + mean.square() * w2)
    spread = variance.masked_fill(variance <= rounding, 0).sqrt() / w
    return (spread * (used / (used - 1)).sqrt()).masked_fill(used <= 1, torch.nan)
