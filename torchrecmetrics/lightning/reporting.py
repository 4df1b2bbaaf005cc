"""Shared code of both callbacks: stages, keys, logging, and checks of monitored keys."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

from torch import Tensor
from torchmetrics import Metric

from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.core.accumulators import ByGroup, check_group_names
from torchrecmetrics.core.checks import check_choice, extra
from torchrecmetrics.core.signature import METRIC_OPTIONS, MetricOptions
from torchrecmetrics.data.groups import Groups
from torchrecmetrics.names import KeyFormat, Metrics, check_options, is_name

Stage: TypeAlias = Literal["validate", "test"]
"""Stage in which a callback evaluates; "validate" is also the validation in `fit`."""

SHORT: dict[str, str] = {"validate": "val", "test": "test"}
_PROG_BAR = ("NDCG@10",)
_COUNTS = ("num_users", "num_skipped", "num_unreachable", "num_tied")


def _callback_classes() -> tuple[type, ...]:
    """Return the `Callback` classes of the imported Lightning packages, or else of the installed packages."""
    names = ("lightning.pytorch", "pytorch_lightning")
    installed = [name for name in names if importlib.util.find_spec(name.partition(".")[0])]
    if not installed:
        raise ImportError(f"torchrecmetrics.lightning needs Lightning: {extra('lightning')}")
    loaded = [name for name in names if sys.modules.get(name)]
    return tuple(importlib.import_module(name).Callback for name in loaded or installed)


if TYPE_CHECKING:
    from pytorch_lightning import Callback
else:

    class Callback(*_callback_classes()):
        """Subclass of the `Callback` of every Lightning package in use."""


class Reporting(Callback):
    """Base class of both callbacks: stages, keys, logging, and checks of keys before the first epoch."""

    _reads: ClassVar[str]
    """Input of the callback, for messages."""

    def __init__(
        self,
        metrics: Metrics | RecMetricCollection,
        k: int | Iterable[int] | None,
        stages: Stage | Sequence[Stage],
        prefix: str,
        key_format: KeyFormat,
        prog_bar: str | Sequence[str] | None,
        log_counts: bool,
        keep_rows: bool,
        groups: Groups | Iterable[str] | None,
        options: MetricOptions,
    ) -> None:
        super().__init__()
        self.stages: tuple[Stage, ...] = (stages,) if isinstance(stages, str) else tuple(stages or ())
        if not self.stages:
            raise ValueError("stages holds none: pass 'validate', 'test' or both")
        for stage in self.stages:
            _check_stage(stage)
        try:
            names = (
                groups.names if isinstance(groups, Groups) else None if groups is None else check_group_names(groups)
            )
            accumulators = [] if names is None else [ByGroup(*names)]
            self._metrics = RecMetricCollection.fresh(metrics, k, options, key_format, accumulators)
        except (TypeError, ValueError) as error:
            own = list(inspect.signature(type(self).__init__).parameters)[1:-1]
            for name in options.keys() - set(METRIC_OPTIONS):
                for other in Reporting.__subclasses__():
                    if name in inspect.signature(other.__init__).parameters:
                        raise ValueError(
                            f"{type(self).__name__} has no option {name!r}: it is one of {other.__name__}, which "
                            f"{other._reads}; {type(self).__name__} {self._reads}"
                        ) from error
                if nearest := difflib.get_close_matches(name, [*own, *METRIC_OPTIONS], n=1):
                    message = f"{type(self).__name__} has no option {name!r}; did you mean {nearest[0]!r}?"
                    raise ValueError(message) from error
            check_options(type(self).__name__, options, [*own, *METRIC_OPTIONS])
            raise
        self._metrics.prefix = self._metrics.postfix = None
        try:
            prefix.format(stage="val", name="val")
        except (AttributeError, LookupError, ValueError) as error:
            raise ValueError(
                f"prefix must be a string, in which {{stage}} and {{name}} may stand, got {prefix!r}"
            ) from error
        self.prefix = prefix
        self._labels = self._metrics.evaluator.keys_of_results
        keys = {value.label: key for key, value in self._metrics.items()} | {key: key for key in self._labels}
        if prog_bar is None:
            prog_bar = [name for name in _PROG_BAR if name in keys]
        prog_bar = (prog_bar,) if isinstance(prog_bar, str) else prog_bar
        if unknown := [name for name in prog_bar if name not in keys]:
            raise ValueError(f"prog_bar names {', '.join(unknown)}, the metrics are {', '.join(self._labels)}")
        self.prog_bar: set[str] = {keys[name] for name in prog_bar}
        self.log_counts = log_counts
        self.keep_rows = keep_rows
        self._falling = [key for key, metric in self._metrics.metrics.items() if metric.higher_is_better is False]
        self._current: list[str] = []  # keys that the running stage logs

    def _names(self, stage: str) -> list[str]:
        """Return the possible values of {name} in the keys of a stage, if known before it begins."""
        raise NotImplementedError

    def _prefix(self, stage: str, name: str) -> str:
        return self.prefix.format(stage=SHORT[stage], name=name)

    def _keys(self, stage: str, names: Iterable[str]) -> list[str]:
        """Return all keys that a stage logs under the given names."""
        keys = [*self._labels, *(_COUNTS if self.log_counts else ())]
        return [self._prefix(stage, name) + key for name in names for key in keys]

    def _announce(self, trainer: Any, keys: list[str]) -> None:
        """Set the keys of the running stage; refuse keys logged twice, and keys monitored with the wrong mode."""
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"{type(self).__name__} would log two values as {key!r}: let prefix= hold {{name}}")
        for other in _reporting(trainer):
            twice = set(keys) & set(other._current)
            if twice and other is not self:
                raise ValueError(
                    f"{type(self).__name__} and {type(other).__name__} would both log {min(twice)!r}: give one of them "
                    "another prefix, such as prefix='{name}/full_'"
                )
        self._current = keys
        _check_modes(trainer, keys, self._falling)

    def _empty(self, trainer: Any, metrics: RecMetricCollection | None = None) -> RecMetricCollection:
        """Return an empty copy of a collection (None = the callback's) for a run.

        If there are several processes, its checks are deferred.
        """
        collection = deepcopy(self._metrics if metrics is None else metrics)
        for evaluator in (collection.evaluator, *collection.metrics.values()):  # copies take the rules of the metrics
            if trainer.world_size > 1 and evaluator.rules.validate_args is True:
                # a process that raises alone would leave the other processes waiting
                evaluator.rules = replace(evaluator.rules, validate_args="deferred")
        return collection

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuse monitors and loggers that cannot work with the keys, as far as the keys are known."""
        if sum(callback is self for callback in trainer.callbacks) > 1:
            raise ValueError(f"one {type(self).__name__} is in the Trainer's callbacks twice: leave one of them out")
        self._current = []
        asked = "validate" if stage == "fit" else stage
        if asked not in self.stages:
            return
        keys = self._keys(asked, self._names(asked))
        _check_loggers([*trainer.loggers, *trainer.callbacks], keys)
        if stage == "fit":
            _check_modes(trainer, keys, self._falling)
            elsewhere = {key for other in _reporting(trainer) for key in other._keys(asked, other._names(asked))}
            # metrics of the module itself may be logged under any key
            if not any(isinstance(part, Metric) for part in pl_module.modules()):
                self._check_monitors(trainer, elsewhere, [asked], known=False)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse learning rate schedulers that cannot work with the keys, as far as the keys are known."""
        if "validate" in self.stages:
            _check_schedulers(trainer, self._keys("validate", self._names("validate")), self._falling)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Refuse monitors of keys that nothing has logged, from the end of the sanity check on."""
        if trainer.state.fn == "fit":
            ours = {key for other in _reporting(trainer) for key in other._current}
            self._check_monitors(trainer, {*trainer.callback_metrics, *ours})
            _check_schedulers(trainer, self._current, self._falling)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Clear the keys that the run has logged."""
        self._current = []

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Clear the keys that the run has logged."""
        self._current = []

    def _check_monitors(
        self, trainer: Any, logged: set[str], stages: Iterable[str] = SHORT, *, known: bool = True
    ) -> None:
        """Refuse a monitored key that is not in `logged` but looks like a key of this callback.

        If the module's own keys are not `known`, a key that may be the module's causes a warning only.
        """
        prefixes = {self._prefix(stage, name) for stage in stages for name in self._names(stage)} - {""}
        counts = {prefix + count for prefix in prefixes for count in _COUNTS}
        ours = {prefix + label for prefix in prefixes for label in self._labels}
        stems = {
            _plain(prefix + metric.name) for prefix in {*prefixes, ""} for metric in self._metrics.metrics.values()
        }
        alike = {re.sub(r"[^\w@]|_", "", key) for key in ours}
        monitors = [(type(callback).__name__, getattr(callback, "monitor", None)) for callback in trainer.callbacks]
        monitors += [("the learning rate scheduler", config.monitor) for config in trainer.lr_scheduler_configs]
        for name, monitor in monitors:
            if not isinstance(monitor, str) or monitor in logged:
                continue
            certain = (
                monitor in {*self._labels, *counts, *ours}
                or re.sub(r"[^\w@]|_", "", monitor) in alike
                or any(monitor.startswith(prefix) and _is_label(monitor[len(prefix) :]) for prefix in prefixes)
            )
            plain = _plain(monitor)
            if not certain and plain not in stems and not any(_one_edit(plain, _plain(key)) for key in ours):
                continue
            candidates = {_plain(key): key for key in sorted(logged & {*self._current, *ours})}
            nearest = [candidates[found] for found in difflib.get_close_matches(plain, candidates, n=5, cutoff=0.0)]
            if certain and not known and trainer.num_sanity_val_steps and trainer.enable_validation:
                continue  # the sanity check will show which keys are logged
            if certain or known:
                hint = f"Logged are {', '.join(nearest)}, ..."
                hint = hint if nearest else f"stages={self.stages} log nothing in fit"
                hint = "Counts are logged with log_counts=True" if monitor in counts else hint
                raise ValueError(f"{name} (monitor={monitor!r}): nothing logs that key. {hint}")
            warnings.warn(
                f"{name} (monitor={monitor!r}): did you mean {nearest[0]!r}? Unless the module logs that key, the run "
                "ends with its first validation.",
                UserWarning,
                stacklevel=2,
            )

    def _check_module(self, trainer: Any) -> None:
        """Refuse keys that the module logs itself, since one value would silently replace the other."""
        fitting = [trainer.fit_loop.epoch_loop._results] if trainer.state.fn == "fit" else []
        for results in [trainer._results, *fitting]:
            for logged in (results or {}).values():
                meta = logged.meta
                key = meta.name if meta.dataloader_idx is None else f"{meta.name}/dataloader_idx_{meta.dataloader_idx}"
                if key in self._current and not isinstance(getattr(logged, "value", None), Agreed):
                    hook = meta.fx.partition(".")[0]
                    raise ValueError(
                        f"the module logs {key!r} in {hook}, as {type(self).__name__} does: leave that out, or give "
                        "the callback another prefix, such as prefix='{name}/full_'"
                    )

    def _log(self, pl_module: Any, values: Mapping[str, Tensor], counts: Any, prefix: str, postfix: str = "") -> None:
        """Log values that are equal on all processes; `counts` has the four counts as attributes."""
        logged = dict(values)
        if self.log_counts:
            like = next(iter(values.values()))
            logged |= {count: like.new_tensor(getattr(counts, count)) for count in _COUNTS}
        for key, value in logged.items():
            key_there = prefix + key + postfix
            pl_module.log(
                key_there,
                Agreed(value),
                prog_bar=key in self.prog_bar,
                on_step=False,
                on_epoch=True,
                add_dataloader_idx=False,
                metric_attribute=key_there,
            )


def _check_stage(stage: object) -> None:
    """Refuse anything but a stage; the error explains other names of a stage."""
    meant = {
        **dict.fromkeys(("val", "valid", "validation"), "that stage is called 'validate' here and in Lightning"),
        **dict.fromkeys(("fit", "train"), "'validate' is that of the Trainer's fit, too"),
    }
    if isinstance(stage, str) and stage in meant:
        raise ValueError(f"stages must be one of 'validate', 'test', or both, got {stage!r}: {meant[stage]}")
    check_choice("stages", stage, get_args(Stage))


def _reporting(trainer: Any) -> list[Reporting]:
    return [callback for callback in trainer.callbacks if isinstance(callback, Reporting)]


class Agreed(Metric):
    """Metric that holds a value equal on all processes: Lightning neither reduces it nor asks for `sync_dist`."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value

    def update(self) -> None:
        """Do nothing, since the value is set at construction."""

    def compute(self) -> Tensor:
        """Return the value."""
        return self.value

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        return compute  # without torchmetrics' warning that `update` was not called


def check_function(name: str, function: Any, takes: str, arguments: int) -> None:
    """Refuse anything but a function that accepts `arguments` positional arguments."""
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError as error:
        raise TypeError(f"{name} must be a function of {takes}, got {function!r}") from error
    except ValueError:
        pass  # some built-in functions have no signature


def _check_modes(trainer: Any, keys: Iterable[str], falling: Sequence[str]) -> None:
    """Refuse callbacks with mode "min" for keys where higher is better, or mode "max" for keys of `falling` metrics."""
    for callback in trainer.callbacks:
        _check_mode(type(callback).__name__, getattr(callback, "monitor", None), callback, keys, falling)


def _check_schedulers(trainer: Any, keys: Iterable[str], falling: Sequence[str]) -> None:
    """Refuse learning rate schedulers with mode "min" for keys where higher is better, or "max" for `falling` ones."""
    for config in trainer.lr_scheduler_configs:
        _check_mode("the learning rate scheduler", config.monitor, config.scheduler, keys, falling)


def _check_mode(name: str, monitor: Any, judge: Any, keys: Iterable[str], falling: Sequence[str]) -> None:
    if monitor not in keys or monitor.endswith(_COUNTS):
        return
    mode, falls = (
        getattr(judge, "mode", None),
        any(re.search(rf"{re.escape(label)}(?!\d)", monitor) for label in falling),
    )
    if mode == ("max" if falls else "min"):
        better, cure = ("lower", "min") if falls else ("higher", "max")
        raise ValueError(f"{name} (monitor={monitor!r}, mode={mode!r}): {better} is better, pass mode={cure!r}")


def _is_label(text: str) -> bool:
    """Return True if a key looks like a label of this package, such as `NDCG-exponential@10`."""
    return re.fullmatch(r"[\w-]+@\d+", text) is not None and is_name(re.split("[-@]", text)[0])


def _plain(key: str) -> str:
    """Return a key without the parts that are often mistaken: case, punctuation, `valid` for `val`."""
    return re.sub("^valid(ation)?", "val", re.sub(r"[\W_]", "", key.lower()))


def _one_edit(first: str, second: str) -> bool:
    """Return True if texts differ by one letter, or by two swapped neighbours."""
    start = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
    first, second = first[start:], second[start:]
    return second in (first, first[1:], first[1::-1] + first[2:]) or first[1:] == second[1:] or first == second[1:]


def _check_loggers(loggers: Iterable[Any], keys: Iterable[str]) -> None:
    """Refuse keys that a logger, or the callback of `mlflow.pytorch.autolog`, would refuse at an epoch's end."""
    refused = [key for key in keys if not re.fullmatch(r"[\w\-./: ]+", key, re.ASCII)]
    for logger in loggers:
        if refused and any(kind.__name__ in ("MLFlowLogger", "__MlflowPLCallback") for kind in type(logger).__mro__):
            raise ValueError(
                f"MLflow takes letters, digits, '_', '-', '.', '/', ':' and space in keys, not {refused[0]!r}: pass "
                "key_format='{name}_at_{k}'"
            )
