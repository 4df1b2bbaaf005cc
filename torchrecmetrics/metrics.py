"""The metrics: one few-line class each over `RankingMetric`, which holds state, labels, checks and synchronisation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn import Module
from torchmetrics import Metric
from torchmetrics.utilities import rank_zero_warn
from torchmetrics.utilities.distributed import gather_all_tensors
from torchmetrics.utilities.exceptions import TorchMetricsUserError

from torchrecmetrics import functional
from torchrecmetrics.functional import Denominator, Gain, Normalization
from torchrecmetrics.inputs import (
    VIOLATIONS,
    Checks,
    Exclude,
    Validation,
    check_choice,
    check_k,
    check_padding_idx,
    check_score_threshold,
    describe,
    float_dtype,
)
from torchrecmetrics.kernels import KernelChoice, Products
from torchrecmetrics.ranking import Overlap, Ranking, ScoreRows, Ties, rank

EmptyTargetAction: TypeAlias = Literal["skip", "neg", "pos", "error"]

__all__ = ["AUROC", "F1", "HR", "MAP", "MRR", "NDCG", "HitRate", "Precision", "RPrecision", "RankingMetric", "Recall"]


class Summary(NamedTuple):
    """What one `compute` found."""

    value: Tensor
    standard_error: Tensor
    num_users: int
    num_skipped: int
    num_unreachable: int
    num_tied: int


class Rows(NamedTuple):
    """What each row of a batch adds to some metrics."""

    values: Tensor  # float [metrics, B], 0 where the row is not used
    weights: Tensor | None  # float [metrics, B], 0 where the row is not used; None = 1 where it is
    used: Tensor  # bool [metrics, B]
    notes: Tensor  # bool [3, metrics, B], or [3, 1, B] if all metrics agree: skipped, unreachable, tied
    invalid: Tensor  # int64 [metrics, kinds]: violations of the batch

    def tallies(self) -> list[Tally]:
        """Add the rows up, for each metric."""
        num_used = self.used.sum(1)
        if self.weights is None:
            w, wv = num_used.to(self.values.dtype), self.values.sum(1)
            sums = [w, wv, w, wv, self.values.square().sum(1)]
        else:
            weighted = self.weights * self.values
            terms = (self.weights, weighted, self.weights.square(), self.weights * weighted, weighted.square())
            sums = [term.sum(1) for term in terms]
        noted = self.notes.sum(2).T.expand(len(num_used), 3)
        counts = torch.cat([num_used[:, None], noted, self.invalid], 1)
        return [Tally(*parts) for parts in zip(torch.stack(sums, 1).unbind(), counts.unbind(), strict=True)]


class Tally(NamedTuple):
    """What one batch adds to a metric's state."""

    sums: Tensor  # float [5]: w, wv, w^2, w^2 v, w^2 v^2
    counts: Tensor  # int64: users, skipped, unreachable, tied, then one per kind of violation


class RankingMetric(Metric):
    """Weighted mean over rows of a function of their `Ranking`; what all metrics of this package share.

    A row is one ranking: a user, a session, an event. `update` takes one of three forms, positional or by keyword:

    - `update(scores, target, *, gains=None, exclude=None, weights=None)`, as described in `Ranking.from_scores`;
    - `update(ranks, *, depth=None, weights=None)` with integer ranks [B], [B, 1] or [B, T] as `get_topk_ranks` gives
      them (1 = best, `<= 0` = padding);
    - `update(ranking, *, weights=None)` with a `Ranking`.

    A call that raises leaves the metric as it was. Values are checked at once on the CPU; elsewhere nothing
    waits and `compute` raises. `forward` returns the value of its batch; for that it waits for the device, and raises
    on its own process.

    Args:
        k: cut-off, >= 1: places of the ranking that count.
        ties: place of an item among equal scores: "realistic" (default), "optimistic" or "pessimistic".
        padding_idx: item id that is padding in target and exclude, and never a candidate.
        overlap: what a relevant item that is also excluded means: "error" (default), "keep" or "miss".
        empty_target_action: rows without a relevant item are left out ("skip", default; torchmetrics' default is
            "neg"), count as 0 ("neg") or 1 ("pos"), or are an "error".
        max_relevant: width for dense targets, which then need no host sync.
        validate_args: True, "deferred" (violations raise in `compute` on the CPU too) or False (no value checks).
        kernels: what counts over scores: "auto" (default), "eager" or "triton"; see `Ranking.from_scores`.
        kwargs: torchmetrics' own, such as `sync_on_compute`.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    _computed: Tensor | None  # type: ignore[assignment]
    _forward_cache: Tensor | None  # type: ignore[assignment]
    _name: ClassVar[str]
    _function: ClassVar[Callable[..., Tensor]]
    _needs_k: ClassVar[bool] = True  # False: the whole ranking is allowed
    _takes_k: ClassVar[bool] = True

    def __init__(
        self,
        k: int | None = None,
        *,
        options: dict[str, Any] | None = None,
        ties: Ties | None = None,
        padding_idx: int | None = None,
        overlap: Overlap | None = None,
        empty_target_action: EmptyTargetAction = "skip",
        max_relevant: int | None = None,
        validate_args: Validation = True,
        kernels: KernelChoice = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.k = check_k(k) if self._needs_k or k is not None else None
        self.options = options or {}
        for name, value, choices in (
            ("ties", ties, (None, *get_args(Ties))),
            ("overlap", overlap, (None, *get_args(Overlap))),
            ("empty_target_action", empty_target_action, get_args(EmptyTargetAction)),
            ("kernels", kernels, get_args(KernelChoice)),
        ):
            check_choice(name, value, choices)
        self.ties = ties
        self.padding_idx = check_padding_idx(padding_idx)
        self.overlap = overlap
        self.empty_target_action = empty_target_action
        self.max_relevant = max_relevant
        self.validate_args = validate_args
        self.kernels = kernels
        if max_relevant is not None:
            check_k(max_relevant, "max_relevant")
        if "score_threshold" in self.options:
            self.options["score_threshold"] = check_score_threshold(self.options["score_threshold"])
        # those who work with these refuse what they do not know; better now than at the first batch
        Checks(validate_args, torch.device("cpu"), 0)
        if self._changed_options():
            _values([self], _no_rows(self.options.get("score_threshold")))

        # MetricCollection takes metrics with equal state names and equal first values for one metric: names say it all
        shaped_by = [self.label, ties or "realistic", overlap or "error", empty_target_action]
        shaped_by += [] if padding_idx is None else [f"padding{padding_idx}"]
        self._sums_name = "-".join([*shaped_by, "sums"])
        self._counts_name = "-".join([*shaped_by, "counts"])
        sums = torch.zeros(5, dtype=float_dtype(self._device), device=self._device)
        counts = torch.zeros(4 + len(VIOLATIONS), dtype=torch.int64, device=self._device)
        self.add_state(self._sums_name, sums, dist_reduce_fx="sum")
        self.add_state(self._counts_name, counts, dist_reduce_fx="sum")
        self._summary: Summary | None = None

    # ------------------------------------------------------------------------------------------------- names, results

    @property
    def name(self) -> str:
        """Label without the cut-off: `NDCG-exponential`."""
        return "-".join([self._name, *(_label_part(key, value) for key, value in self._changed_options().items())])

    def _changed_options(self) -> dict[str, Any]:
        defaults = _defaults(self._function)
        return {key: value for key, value in self.options.items() if value != defaults[key]}

    @property
    def label(self) -> str:
        """Name under which the metric is logged: `NDCG-exponential@10`."""
        return self.name if self.k is None else f"{self.name}@{self.k}"

    @property
    def num_users(self) -> int:
        """Rows that the last `compute` averaged over."""
        return self._last_summary().num_users

    @property
    def num_skipped(self) -> int:
        """Rows without a relevant item that the last `compute` met (left out under "skip")."""
        return self._last_summary().num_skipped

    @property
    def num_unreachable(self) -> int:
        """Rows of the last `compute` with a relevant item that was no candidate, and so could only be missed."""
        return self._last_summary().num_unreachable

    @property
    def num_tied(self) -> int:
        """Rows of the last `compute` with a relevant item that shared its score, within the depth looked at."""
        return self._last_summary().num_tied

    def standard_error(self) -> Tensor:
        """Return the standard error of the mean that the last `compute` gave, scalar; NaN for fewer than two rows."""
        return self._last_summary().standard_error.clone()

    def _last_summary(self) -> Summary:
        if self._summary is None:
            raise RuntimeError(
                f"{self.label}: counts and standard errors are those of the last compute(); call it first"
            )
        return self._summary

    # ------------------------------------------------------------------------------------------------- update, forward

    @torch.no_grad()
    def update(
        self,
        scores: Tensor | Ranking | None = None,
        target: Tensor | None = None,
        *,
        gains: Tensor | None = None,
        exclude: Exclude | None = None,
        weights: Tensor | None = None,
        ranks: Tensor | None = None,
        ranking: Ranking | None = None,
        depth: int | None = None,
    ) -> None:
        """Add a batch: `(scores, target)`, `(ranks)` or `(ranking)`; see the class."""
        batch = make_ranking(
            [self], scores, target, gains=gains, exclude=exclude, ranks=ranks, ranking=ranking, depth=depth
        )
        self.add(self.tally(batch, weights))

    @torch.no_grad()
    def forward(self, *args: Any, weights: Tensor | None = None, **kwargs: Any) -> Tensor:
        """Add a batch and return its value alone; takes what `update` takes and waits for the device."""
        tally = self.tally(make_ranking([self], *args, **kwargs), weights)
        (summary,) = summarize([(self, tally)], "dist_sync_on_step")
        self.add(tally)
        self._forward_cache = summary.value
        return summary.value.clone()

    def tally(self, ranking: Ranking, weights: Tensor | None = None) -> Tally:
        """Compute what `ranking` adds to the state, without touching it; raises if the metric cannot use it."""
        (tally,) = rows_together([self], ranking, weights).tallies()
        return tally

    def state(self) -> Tally:
        """Return the state as it is on this process."""
        return Tally(getattr(self, self._sums_name), getattr(self, self._counts_name))

    def add(self, tally: Tally) -> None:
        """Add a tally to the state."""
        # not in place: torchmetrics lets metrics and checkpoints share one tensor; and past what Module does when a
        # parameter may be set, which takes longer than the sums
        state = self.__dict__
        state[self._sums_name] = state[self._sums_name] + tally.sums
        state[self._counts_name] = state[self._counts_name] + tally.counts
        state["_computed"] = state["_summary"] = None
        state["_update_count"] += 1

    def reset(self) -> None:
        """Forget all updates; what the last `compute` found stays."""
        state = self.__dict__
        for name, default in self._defaults.items():
            # ours are the defaults themselves, for nothing writes into them, see `add`; subclasses may have more
            state[name] = default if name in (self._sums_name, self._counts_name) else deepcopy(default)
        state |= {"_update_count": 0, "_forward_cache": None, "_computed": None, "_cache": None, "_is_synced": False}

    def _row_weights(self, ranking: Ranking, weights: Tensor) -> Tensor:
        return weights

    def depth_for(self, target: Tensor) -> int | None:
        """Places of the ranking that the metric needs for this target; None = all."""
        return self.k

    @property
    def reads_num_ranked(self) -> bool:
        """Whether the metric needs `Ranking.num_ranked`, which costs a read of the scores of its own."""
        return self.options.get("denominator") == "recommended" and self.options["score_threshold"] is None

    def _check_usable(self, ranking: Ranking) -> None:
        """Refuse a batch now, a Ranking elsewhere, or one made with other options than the metric was given."""
        if self._is_synced:
            raise TorchMetricsUserError(f"{self.label} is synchronised: call unsync() before the next batch")
        for name, made in (ranking.made_with or {}).items():
            asked = getattr(self, name)
            if asked is not None and asked != made:
                raise ValueError(f"{self.label} has {name}={asked!r}, but the ranking was made with {name}={made!r}")
        device = getattr(self, self._sums_name).device
        if ranking.ranks.device != device:
            raise ValueError(
                f"{self.label} is on {device}, its input on {ranking.ranks.device}: move the metric with .to(device)"
            )

    # ------------------------------------------------------------------------------------------------- compute, sync

    def compute(self) -> Tensor:
        """Mean over all rows of all processes: a scalar float64 tensor; NaN and a warning if there were none.

        Raises:
            ValueError: if updates held bad values that could not raise at once; says how many rows of what.
        """
        collection = self.__dict__.get("_collection")
        members = [] if collection is None else list(collection.values())
        compute_together(members if any(member is self for member in members) else [self])
        return self._last_summary().value.clone()

    def _wrap_update(self, update: Callable[..., None]) -> Callable[..., None]:
        return update  # counts updates itself, after they succeeded

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        return compute  # synchronises by itself: packed, and with errors raised when all processes have agreed on them

    def _sync_dist(
        self, dist_sync_fn: Callable[..., Any] = gather_all_tensors, process_group: Any | None = None
    ) -> None:
        """Reduce both states over the processes (for `Metric.sync`)."""
        for name in (self._sums_name, self._counts_name):
            setattr(self, name, _reduce(getattr(self, name), dist_sync_fn, process_group or self.process_group))

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the state of another metric with the same label and options, or such a state as a dict."""
        state = incoming_state.metric_state if isinstance(incoming_state, Metric) else incoming_state
        expected = {name: getattr(self, name).shape for name in (self._sums_name, self._counts_name)}
        if {name: getattr(value, "shape", None) for name, value in state.items()} != expected:
            raise ValueError(
                f"{self.label} merges states named like its own {list(self.metric_state)}, got {list(state)}"
            )
        self._reduce_states(state)
        self._computed = None

    # ------------------------------------------------------------------------------------------------- torch, pickling

    def _apply(self, fn: Callable[[Tensor], Tensor], *_: Any, **__: Any) -> Module:
        """Move to another device; the state keeps its dtype whatever the module around it is cast to."""
        Module._apply(self, fn)  # type: ignore[no-untyped-call]
        self._device = fn(torch.zeros(1, device=self._device)).device

        def moved(state: Tensor) -> Tensor:
            if state.is_meta and self._device.type != "meta":  # to_empty(): there is nothing to move
                return torch.zeros(state.shape, dtype=state.dtype, device=self._device)
            return state.to(self._device, float_dtype(self._device) if state.is_floating_point() else state.dtype)

        for name in (self._sums_name, self._counts_name):
            default = self._defaults[name]
            assert isinstance(default, Tensor)
            self._defaults[name] = moved(default)
            setattr(self, name, moved(getattr(self, name)))
        if self._forward_cache is not None:
            self._forward_cache = moved(self._forward_cache)
        if self._summary is not None:
            value, error = moved(self._summary.value), moved(self._summary.standard_error)
            self._summary = self._summary._replace(value=value, standard_error=error)
            self._computed = None if self._computed is None else value
        return self

    def set_dtype(self, dst_type: str | torch.dtype) -> RankingMetric:
        """Return the metric as it is: sums stay float64 and counts int64."""
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        for name in (self._sums_name, self._counts_name):
            default = self._defaults[name]
            assert isinstance(default, Tensor)
            setattr(self, name, getattr(self, name).to(default.dtype))
        self._computed = self._summary = None

    def __getstate__(self) -> dict[str, Any]:
        # a copy of the metric alone does not belong to its collection
        return {key: value for key, value in super().__getstate__().items() if key != "_collection"}

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot the value, or a sequence of values, as other torchmetrics metrics do (needs matplotlib)."""
        return self._plot(val, ax)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.label})"


# torchmetrics asks for this whenever a metric is made
RankingMetric.update.__signature__ = inspect.signature(RankingMetric.update)  # type: ignore[attr-defined]


class HitRate(RankingMetric):
    """Hit rate at k: share of rows with a relevant item in the first `k` places.

    Range 0 to 1. Also called hit ratio, Hit@k, Success@k. `score_threshold=t`: only items with
    score >= t are recommended.

    Other keywords (`ties`, `padding_idx`, ...): see `RankingMetric`.

    Example:
        >>> import torch
        >>> from torchrecmetrics import HitRate
        >>> metric = HitRate(2)
        >>> metric.update(torch.tensor([[0.1, 0.9, 0.5], [0.3, 0.2, 0.1]]), torch.tensor([2, 2]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    _name = "HR"
    _function = staticmethod(functional.hit_rate)

    def __init__(self, k: int, *, score_threshold: float | None = None, **kwargs: Any) -> None:
        super().__init__(k, options={"score_threshold": score_threshold}, **kwargs)


HR = HitRate


class Precision(RankingMetric):
    """Precision at k: mean of h(k) / k, the share of the first `k` places that is relevant.

    Range 0 to 1; with fewer than `k` items the denominator stays `k`. `denominator="min"`: h / min(k, R) (TP@k of
    recometrics, r_precision of RecTools); `"recommended"`: h / min(k, n') with n' the length of the list handed in, the
    number of candidates, or with `score_threshold=t` the candidates with score >= t (relison, Surprise). A denominator
    of 0 gives `zero_division`: 0.0, 1.0 or nan (the row is left out).

    Other keywords (`ties`, `padding_idx`, ...): see `RankingMetric`.

    Example:
        >>> import torch
        >>> from torchrecmetrics import Precision
        >>> metric = Precision(2)
        >>> metric.update(torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([[2, 0]]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    _name = "Precision"
    _function = staticmethod(functional.precision)

    def __init__(
        self,
        k: int,
        *,
        denominator: Denominator = "k",
        score_threshold: float | None = None,
        zero_division: float = 0.0,
        **kwargs: Any,
    ) -> None:
        options = {"denominator": denominator, "score_threshold": score_threshold, "zero_division": zero_division}
        super().__init__(k, options=options, **kwargs)


class Recall(RankingMetric):
    """Recall at k: mean of h(k) / R, the share of the relevant items that stands in the first `k` places.

    Range 0 to 1. `truncated=True`: h / min(k, R) (LensKit's Recall, recpack's CalibratedRecallK). `weighted=True`:
    gains found / all gains (PyG weighted). `score_threshold=t`: only items with score >= t are recommended.

    Other keywords (`ties`, `padding_idx`, ...): see `RankingMetric`.

    Example:
        >>> import torch
        >>> from torchrecmetrics import Recall
        >>> metric = Recall(1)
        >>> metric.update(torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([[1, 0]]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    _name = "Recall"
    _function = staticmethod(functional.recall)

    def __init__(
        self,
        k: int,
        *,
        truncated: bool = False,
        weighted: bool = False,
        score_threshold: float | None = None,
        **kwargs: Any,
    ) -> None:
        options = {"truncated": truncated, "weighted": weighted, "score_threshold": score_threshold}
        super().__init__(k, options=options, **kwargs)


class F1(RankingMetric):
    """F1 at k: mean of 2 h(k) / (k + R), the harmonic mean of the row's precision and recall.

    Range 0 to 1. `denominator` and `score_threshold` as in `Precision`.

    Other keywords (`ties`, `padding_idx`, ...): see `RankingMetric`.

    Example:
        >>> import torch
        >>> from torchrecmetrics import F1
        >>> metric = F1(2)
        >>> metric.update(torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([[1, 0]]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    _name = "F1"
    _function = staticmethod(functional.f1)

    def __init__(
        self, k: int, *, denominator: Denominator = "k", score_threshold: float | None = None, **kwargs: Any
    ) -> None:
        super().__init__(k, options={"denominator": denominator, "score_threshold": score_threshold}, **kwargs)


class RPrecision(RankingMetric):
    """R-precision: mean of #{r_i <= R} / R, precision at each row's own number of relevant items (= recall there).

    Range 0 to 1, no cut-off.

    Other keywords (`ties`, `padding_idx`, ...): see `RankingMetric`.

    Example:
        >>> import torch
        >>> from torchrecmetrics import RPrecision
        >>> metric = RPrecision()
        >>> metric.update(torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([[1, 0]]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    _name = "RPrecision"
    _function = staticmethod(functional.r_precision)
    _needs_k = _takes_k = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(None, **kwargs)

    def depth_for(self, target: Tensor) -> int | None:
        """As many places as a row can have relevant items."""
        if target.dtype == torch.bool or target.is_floating_point():
            return self.max_relevant
        return max(1, target.shape[1]) if target.dim() == 2 else 1


class MAP(RankingMetric):
    """Mean average precision: mean of (1/R) sum over hits in the first `k` places of i / r_i.

    Range 0 to 1. `k=None`: the whole ranking (area under the precision-recall curve). `normalize="min"` divides by
    min(k, R) instead of R (RecBole, PyG, RePlay, Spark; recometrics' TAP@k); without `k` the two are equal.

    Other keywords (`ties`, `padding_idx`, ...): see `RankingMetric`.

    Example:
        >>> import torch
        >>> from torchrecmetrics import MAP
        >>> metric = MAP()
        >>> metric.update(torch.tensor([[0.1, 0.9, 0.5, 0.3]]), torch.tensor([[1, 3]]))
        >>> metric.compute()  # (1/1 + 2/3) / 2
        tensor(0.8333, dtype=torch.float64)
    """

    _name = "MAP"
    _function = staticmethod(functional.average_precision)
    _needs_k = False

    def __init__(self, k: int | None = None, *, normalize: Normalization = "relevant", **kwargs: Any) -> None:
        super().__init__(k, options={"normalize": normalize}, **kwargs)


class NDCG(RankingMetric):
    """Normalised discounted cumulative gain: mean of DCG / IDCG, DCG = sum over hits in the first `k` places of
    gain_i / log2(1 + r_i).

    The ideal orders *all* of the row's gains best first and cuts at `k`. Range 0 to 1 (below 0 with negative gains,
    which count in DCG only). Gain 1 for every relevant item unless `gains` or a graded target say otherwise;
    `gain="exponential"` uses 2^gain - 1. `k=None`: the whole ranking. Tied items share the mean of their gains.

    Other keywords (`ties`, `padding_idx`, ...): see `RankingMetric`.

    Example:
        >>> import torch
        >>> from torchrecmetrics import NDCG
        >>> metric = NDCG(10)
        >>> metric.update(torch.tensor([[0.1, 0.9, 0.5, 0.3]]), torch.tensor([[2]]))
        >>> metric.compute()  # 1 / log2(1 + 2)
        tensor(0.6309, dtype=torch.float64)
    """

    _name = "NDCG"
    _function = staticmethod(functional.ndcg)
    _needs_k = False

    def __init__(self, k: int | None = None, *, gain: Gain = "linear", **kwargs: Any) -> None:
        super().__init__(k, options={"gain": gain}, **kwargs)


class MRR(RankingMetric):
    """Mean reciprocal rank: mean of 1 / r_1, the place of the best relevant item, or 0 if it is not in the first `k`.

    Range 0 to 1. `k=None`: the whole ranking.

    Other keywords (`ties`, `padding_idx`, ...): see `RankingMetric`.

    Example:
        >>> import torch
        >>> from torchrecmetrics import MRR
        >>> metric = MRR()
        >>> metric.update(torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([[0, 2]]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    _name = "MRR"
    _function = staticmethod(functional.reciprocal_rank)
    _needs_k = False

    def __init__(self, k: int | None = None, **kwargs: Any) -> None:
        super().__init__(k, **kwargs)


class AUROC(RankingMetric):
    """Area under the ROC curve, averaged over rows: share of (relevant, other) pairs in the right order.

    Range 0 to 1; a tie counts half under `ties="realistic"`. Needs the whole ranking and the number of candidates. Rows
    in which every candidate is relevant are left out; a relevant item that is no candidate loses to every other one.
    The mean over users is also called GAUC; `weight="relevant"` weighs each row by its number of relevant items.

    Other keywords (`ties`, `padding_idx`, ...): see `RankingMetric`.

    Example:
        >>> import torch
        >>> from torchrecmetrics import AUROC
        >>> metric = AUROC()
        >>> metric.update(torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([2]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    _name = "AUROC"
    _function = staticmethod(functional.auroc)
    _needs_k = _takes_k = False

    def __init__(self, *, weight: Literal["relevant"] | None = None, **kwargs: Any) -> None:
        if weight not in (None, "relevant"):
            raise ValueError(f"weight must be None or 'relevant', got {weight!r}")
        self._weight = weight
        super().__init__(None, **kwargs)

    @property
    def name(self) -> str:
        """Label: `AUROC` or `AUROC-relevant`."""
        return self._name if self._weight is None else f"{self._name}-{self._weight}"

    @property
    def reads_num_ranked(self) -> bool:
        """True: the pairs it counts are those with all other candidates."""
        return True

    def _row_weights(self, ranking: Ranking, weights: Tensor) -> Tensor:
        return weights if self._weight is None else weights * ranking.num_relevant


# -------------------------------------------------------------------------------- what a metric and a collection share


def make_ranking(
    metrics: Sequence[RankingMetric],
    scores: Tensor | Ranking | None = None,
    target: Tensor | None = None,
    *,
    gains: Tensor | None = None,
    exclude: Exclude | None = None,
    ranks: Tensor | None = None,
    ranking: Ranking | None = None,
    depth: int | None = None,
    **unknown: Any,
) -> Ranking:
    """Bring the three forms of `update` to one Ranking, as deep as `metrics` need; they share their kernel options."""
    if unknown:
        raise TypeError(
            f"update takes scores, target, gains, exclude, weights, ranks, ranking and depth, got {', '.join(unknown)}"
        )
    if isinstance(scores, Ranking):
        if ranking is not None:
            raise ValueError("two rankings given, positional and by keyword: pass one")
        scores, ranking = None, scores
    elif isinstance(scores, Tensor) and target is None and not scores.is_floating_point():
        if ranks is not None:
            raise ValueError("ranks given twice, positional and by keyword: pass one")
        scores, ranks = None, scores
    given = [name for name, value in (("scores", scores), ("ranks", ranks), ("ranking", ranking)) if value is not None]
    if len(given) != 1:
        raise ValueError(
            f"update takes scores with target, or ranks, or a ranking; got {' and '.join(given) or 'none'}"
        )
    if scores is not None and target is None:
        raise ValueError("scores were given without target; ranks are integers")
    options = metrics[0]
    if scores is not None and target is not None:
        if depth is not None:
            raise ValueError("depth belongs to ranks; the depth of scores follows from the metrics' k")
        return rank_batch(metrics, scores, target, gains, exclude)
    for name, value in (("target", target), ("gains", gains), ("exclude", exclude)):
        if value is not None:
            raise ValueError(
                f"{name} was given beside {given[0]}, made already: give it where they are made "
                "(get_topk_ranks, Ranking.from_scores, Ranking.from_topk)"
            )
    if ranking is not None:
        if not isinstance(ranking, Ranking):
            raise TypeError(f"ranking must be a Ranking, got {type(ranking).__name__}")
        if depth is not None:
            raise ValueError("depth was given beside a Ranking, which knows its own")
        return ranking
    if not isinstance(ranks, Tensor) or ranks.is_floating_point():
        raise TypeError(
            f"ranks must be an integer tensor, got {describe(ranks)}; for float ranks use Ranking.from_ranks"
        )
    cutoffs = [metric.k for metric in metrics if metric.k is not None]
    # no more than k items stand in the first k places
    columns = max(cutoffs) if len(cutoffs) == len(metrics) else None
    return Ranking._from_ranks(ranks, depth, None, False, options.validate_args, columns)


def rank_batch(
    metrics: Sequence[RankingMetric],
    scores: Tensor | ScoreRows | Products,
    target: Tensor,
    gains: Tensor | None,
    exclude: Exclude | None,
) -> Ranking:
    """Rank as deep as `metrics` need."""
    options = metrics[0]
    depths = [m.depth_for(target) for m in metrics] if isinstance(target, Tensor) else [None]
    return rank(
        scores,
        target,
        gains=gains,
        exclude=exclude,
        depth=None if None in depths else max(d for d in depths if d is not None),
        ties=options.ties or "realistic",
        padding_idx=options.padding_idx,
        overlap=options.overlap or "error",
        score_threshold=shared_threshold(metrics),
        max_relevant=options.max_relevant,
        validate_args=options.validate_args,
        kernels=options.kernels,
        count_ranked=any(metric.reads_num_ranked for metric in metrics),
    )


def shared_threshold(metrics: Sequence[RankingMetric]) -> float | None:
    """Return the score_threshold of the metrics that have one; a batch can be counted against one only."""
    thresholds = {m.options["score_threshold"] for m in metrics if m.options.get("score_threshold") is not None}
    if len(thresholds) > 1:
        raise ValueError(f"metrics with different score_thresholds {sorted(thresholds)} need a collection each")
    return next(iter(thresholds), None)


def rows_together(metrics: Sequence[RankingMetric], ranking: Ranking, weights: Tensor | None = None) -> Rows:
    """Compute what each row of `ranking` adds to the metrics, touching none; raises if one of them cannot use it.

    The metrics have the same rule for empty rows and for validation; they share every operation over the rows.
    """
    device, rows = ranking.ranks.device, len(ranking)
    for metric in metrics:
        metric._check_usable(ranking)
    action, dtype = metrics[0].empty_target_action, float_dtype(device)
    # an error that was asked for is given even where values are not checked otherwise
    checks = Checks(metrics[0].validate_args or action == "error", device, rows)
    values = _values(metrics, ranking).to(dtype)
    counted = torch.ones_like(ranking.tied) if ranking.rejected is None else ~ranking.rejected
    empty = (ranking.num_relevant == 0) & counted
    if action == "error":
        checks.reject("empty", empty, lambda row: f"row {row}")
    elif action in ("neg", "pos"):
        values = values.where(~empty, 0.0 if action == "neg" else 1.0)
    short = None
    if checks.enabled and ranking.invalid is not None and ranking.row_depth is not None:
        furthest = [ranking.num_relevant if m.k is None else ranking.row_depth.new_full((rows,), m.k) for m in metrics]
        short = (ranking.row_depth < torch.stack(furthest)) & counted
        if checks.at_once:
            checks.reject("list_short", short.any(0), lambda row: f"row {row}")
    if weights is not None:
        weights = _check_weights(weights, rows, device, checks).to(dtype)
        counted = counted & (weights > 0)
    if checks.rejected is not None:
        counted = counted & ~checks.rejected
    invalid = torch.zeros((len(metrics), len(VIOLATIONS)), dtype=torch.int64, device=device)
    for found in (ranking.invalid, checks.invalid):
        invalid = invalid if found is None else invalid + found
    counted = counted[None]
    if short is not None:
        invalid[:, list(VIOLATIONS).index("list_short")] += short.sum(1)
        counted = counted & ~short
    used = counted & ~values.isnan()
    values = values.where(used, 0)
    if weights is not None or any(type(metric)._row_weights is not RankingMetric._row_weights for metric in metrics):
        own = used.to(dtype) if weights is None else weights.where(used, 0)
        weights = torch.stack([metric._row_weights(ranking, row) for metric, row in zip(metrics, own, strict=True)])
        used = used & (weights > 0)
    notes = torch.stack([empty, ranking.unreachable, ranking.tied])[:, None] & counted
    return Rows(values, weights, used, notes, invalid)


def _values(metrics: Sequence[RankingMetric], ranking: Ranking) -> Tensor:
    """Value of each row for each metric, [metrics, B]; a formula is asked once for all the cut-offs it has."""
    alike: list[list[int]] = []
    for place, metric in enumerate(metrics):
        for places in alike if metric.k is not None else ():
            other = metrics[places[0]]
            same = type(metric)._function is type(other)._function and metric.options == other.options
            if same and other.k is not None:
                places.append(place)
                break
        else:
            alike.append([place])
    values: list[Tensor] = [ranking.ranks] * len(metrics)
    for places in alike:
        first = metrics[places[0]]
        cutoffs = tuple(metrics[place].k for place in places)
        which = (cutoffs if len(places) > 1 else first.k,) if first._takes_k else ()
        found = type(first)._function(ranking, *which, **first.options)
        if len(places) > 1 and found.dim() != 2:
            raise TypeError(f"the function of {first.label} must give a row for each of the cut-offs {cutoffs}")
        for place, value in zip(places, found if len(places) > 1 else (found,), strict=True):
            values[place] = value
    return torch.stack(values)


def compute_together(metrics: Sequence[RankingMetric]) -> None:
    """Compute metrics with one packed synchronisation and leave each its value; all of them, or none if one fails."""
    if all(metric._computed is not None for metric in metrics):
        return
    summaries = summarize([(metric, metric.state()) for metric in metrics], "sync_on_compute")
    empty = [m for m, summary in zip(metrics, summaries, strict=True) if summary.num_users == 0]
    if len(empty) < len(metrics):
        empty = [m for m in empty if m.update_called]  # a member that was left alone on purpose is no surprise
    if empty:
        rank_zero_warn(f"no row to average over, the value is nan: {', '.join(m.label for m in empty)}", UserWarning)
    for metric, summary in zip(metrics, summaries, strict=True):
        metric.__dict__["_summary"] = summary
        metric.__dict__["_computed"] = summary.value if metric.compute_with_cache else None


def summarize(
    tallies: Sequence[tuple[RankingMetric, Tally]], when: Literal["sync_on_compute", "dist_sync_on_step"]
) -> list[Summary]:
    """Turn tallies into results, after adding those of all processes: two all-reduces however many there are."""
    reduced = [tally for _, tally in tallies]
    together: dict[tuple[Any, ...], list[int]] = {}
    for index, (metric, _) in enumerate(tallies):
        if getattr(metric, when) and not metric._is_synced and metric.distributed_available_fn():
            together.setdefault((metric.dist_sync_fn, metric.process_group), []).append(index)
    for (gather, group), indices in together.items():
        packed = [torch.cat(part) for part in zip(*(reduced[i] for i in indices), strict=True)]
        sums, counts = (_reduce(vector, gather or gather_all_tensors, group) for vector in packed)
        for place, i in enumerate(indices):
            reduced[i] = Tally(sums.view(len(indices), -1)[place], counts.view(len(indices), -1)[place])
    counts = torch.stack([tally.counts for tally in reduced])
    host_counts = counts.tolist()  # one copy for all of them
    for (metric, _), (_, _, _, _, *invalid) in zip(tallies, host_counts, strict=True):
        if any(invalid):
            what = "; ".join(f"{n} rows {text}" for n, text in zip(invalid, VIOLATIONS.values(), strict=True) if n)
            raise ValueError(f"{metric.label}: bad input since the last reset: {what}")
    w, wv, w2, w2v, w2v2 = torch.stack([tally.sums for tally in reduced], 1).unbind()
    mean = wv / w
    spread = (w2v2 - 2 * mean * w2v + mean.square() * w2).clamp(min=0).sqrt() / w
    used = counts[:, 0].to(w.dtype)
    error = (spread * (used / (used - 1)).sqrt()).where(used > 1, torch.nan)
    return [
        Summary(value, deviation, *numbers[:4])
        for value, deviation, numbers in zip(mean.unbind(), error.unbind(), host_counts, strict=True)
    ]


def _reduce(vector: Tensor, gather: Callable[..., Any], group: Any | None) -> Tensor:
    """Add up one vector over the processes."""
    if gather is not gather_all_tensors:
        return torch.stack(gather(vector, group=group)).sum(0)
    total = vector.clone()
    torch.distributed.all_reduce(total, group=group)
    return total


def _check_weights(weights: Tensor, rows: int, device: torch.device, checks: Checks) -> Tensor:
    if not isinstance(weights, Tensor):
        raise TypeError(f"weights must be a tensor, got {type(weights).__name__}")
    if weights.shape != (rows,) or weights.is_complex() or weights.device != device:
        raise ValueError(f"weights must be numbers [{rows}] on {device}, got {describe(weights)} on {weights.device}")
    if checks.enabled:
        wrong = ~(weights.isfinite() & (weights >= 0))
        checks.reject("weights", wrong, lambda row: f"row {row} weighs {weights[row]}")
    return weights


@cache
def _defaults(function: Callable[..., Tensor]) -> dict[str, Any]:
    return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}


def _label_part(option: str, value: Any) -> str:
    """Spell an option in letters, digits, '-' and '_': what ModuleDict and file names can hold."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return option
    short = {"score_threshold": "t", "zero_division": "zero_division_"}[option]
    return f"{short}{float(value)!r}".removesuffix(".0").replace(".", "_").replace("+", "")


def _no_rows(score_threshold: float | None) -> Ranking:
    """Make a batch of no rows that knows everything a metric may ask for."""
    none = torch.zeros(0, dtype=torch.int64)
    return Ranking(
        ranks=torch.zeros((0, 1), dtype=torch.float64),
        num_relevant=none,
        tied=none.bool(),
        unreachable=none.bool(),
        num_ranked=none,
        num_recommended=none,
        score_threshold=score_threshold,
    )
