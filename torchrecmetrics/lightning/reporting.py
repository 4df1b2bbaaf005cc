"""Shared code of both callbacks: stages, keys, logging, and checks of monitored keys."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

from torch import Tensor
from torchmetrics import Metric

from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.core.checks import check_choice, extra
from torchrecmetrics.metrics.accumulator import Accumulator
from torchrecmetrics.metrics.description import METRIC_OPTIONS, MetricOptions
from torchrecmetrics.metrics.names import KeyFormat, Metrics, check_options, is_name

Stage: TypeAlias = Literal["validate", "test"]
"""Stage in which a callback evaluates; "validate" is also the validation in `fit`."""

SHORT: dict[str, str] = {"validate": "val", "test": "test"}
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


class Reader(NamedTuple):
    """A callback or learning rate scheduler that reads a logged value."""

    name: str
    monitor: str
    mode: str | None
    num_epochs: int
    """Number of epochs between two values that it reads; 0 if it also accepts epochs without a value."""


class Reporting(Callback):
    """Base class of both callbacks: stages, keys, logging, and checks of keys before the first epoch."""

    def __init__(
        self,
        metrics: Metrics | RecMetricCollection,
        k: int | Iterable[int] | None,
        stages: Stage | Sequence[Stage],
        prefix: str,
        key_format: KeyFormat,
        prog_bar: bool | str | Sequence[str] | None,
        log_counts: bool,
        accumulators: Sequence[Accumulator],
        options: MetricOptions,
        by_group: Sequence[Accumulator] = (),
    ) -> None:
        super().__init__()
        self.stages: tuple[Stage, ...] = (stages,) if isinstance(stages, str) else tuple(stages)
        for stage in self.stages:
            check_choice("stages", stage, get_args(Stage))
        own_options = list(inspect.signature(type(self).__init__).parameters)[1:-1]
        check_options(type(self).__name__, options, [*own_options, *METRIC_OPTIONS])
        if not isinstance(metrics, RecMetricCollection):
            metrics = RecMetricCollection(metrics, k, key_format=key_format, accumulators=accumulators, **options)
        elif k is not None or options or accumulators:
            names = [*(["k"] if k is not None else []), *options, *(["accumulators"] if accumulators else [])]
            raise ValueError(f"{', '.join(names)} cannot be combined with a collection, which has its own")
        self._collection = metrics
        """The collection as it was given."""
        self._metrics = RecMetricCollection.fresh(metrics, None, {}, accumulators=by_group)
        """An empty copy without prefix, postfix and windows."""
        self._metrics.prefix = self._metrics.postfix = None
        self.prefix = prefix
        self._labels = list(self._metrics.evaluator.formulas.metric_of_key)
        self._logged_keys = [*self._labels, *(_COUNTS if log_counts else ())]  # without prefix
        keys = {value.label: key for key, value in self._metrics.items()} | {key: key for key in self._logged_keys}
        if prog_bar is None:
            prog_bar = [name for name in ("NDCG@10",) if name in keys]
        elif isinstance(prog_bar, bool):
            prog_bar = self._logged_keys if prog_bar else []
        prog_bar = (prog_bar,) if isinstance(prog_bar, str) else prog_bar
        any_prefix = re.sub(r"\\{(name|stage)\\}", ".+", re.escape(prefix))
        plain = {name: name if name in keys else re.sub(f"^{any_prefix}", "", name) for name in prog_bar}
        if unknown := [name for name in prog_bar if plain[name] not in keys]:
            raise ValueError(f"prog_bar has {', '.join(unknown)}, but the metrics are {', '.join(self._labels)}")
        self.prog_bar: set[str] = {keys[plain[name]] for name in prog_bar}
        self.log_counts = log_counts
        self._current: list[str] = []  # keys that the running stage logs

    def _names(self, stage: str) -> list[str]:
        """Return the possible values of {name} in the keys of a stage, if known before it begins."""
        return [SHORT[stage]]

    def _prefix(self, stage: str, name: str) -> str:
        return self.prefix.format(stage=SHORT[stage], name=name)

    def _keys(self, stage: str, names: Iterable[str] | None = None) -> list[str]:
        """Return all keys that a stage logs under the given names; None = under all possible names."""
        names = self._names(stage) if names is None else names
        return [self._prefix(stage, name) + key for name in names for key in self._logged_keys]

    def _empty(self, trainer: Any) -> RecMetricCollection:
        """Return an empty copy of the collection for a run; if there are several processes, its checks are deferred."""
        collection = RecMetricCollection.fresh(self._metrics, None, {})
        evaluator = collection.evaluator
        if trainer.world_size > 1 and evaluator.ranking_options.validate_args is True:
            # a process that raises alone would leave the other processes waiting
            evaluator.set_ranking_options(validate_args="deferred")
        return collection

    # ---------------------------------------------------------------------------------------------- checks before a run

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuse keys that a logger, or the callback of `mlflow.pytorch.autolog`, would refuse at an epoch's end."""
        self._current = []
        stage = "validate" if stage == "fit" else stage
        keys = self._keys(stage) if stage in self.stages else []
        refused = [key for key in keys if not re.fullmatch(r"[\w\-./: ]+", key, re.ASCII)]
        loggers = [*trainer.loggers, *trainer.callbacks]
        class_names = {base.__name__ for logger in loggers for base in type(logger).__mro__}
        if refused and class_names & {"MLFlowLogger", "__MlflowPLCallback"}:
            raise ValueError(
                f"MLflow takes letters, digits, '_', '-', '.', '/', ':' and space in keys, not {refused[0]!r}: pass "
                "key_format='{name}_at_{k}'"
            )

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse monitors that cannot work with the keys, as far as the keys are known."""
        if "validate" in self.stages:
            self._check_modes(trainer, self._keys("validate"))
            if not trainer.num_sanity_val_steps or not trainer.enable_validation:
                ours = [key for other in _reporting(trainer) for key in other._keys("validate")]
                self._check_monitors(trainer, ours, known=False)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Refuse monitors of keys that nothing has logged, from the end of the sanity check on."""
        if trainer.state.fn == "fit":
            ours = [key for other in _reporting(trainer) for key in other._current]
            self._check_monitors(trainer, [*trainer.callback_metrics, *ours], known=True)

    def _announce(self, trainer: Any, keys: list[str]) -> None:
        """Set the keys of the running stage; refuse keys logged twice, and keys monitored with the wrong mode."""
        self._current = keys
        all_keys = [key for other in _reporting(trainer) for key in other._current]
        if twice := [key for key in keys if all_keys.count(key) > 1]:
            raise ValueError(
                f"two values would be logged as {twice[0]!r}: put {{name}} into prefix=, or give one callback another "
                "prefix, such as prefix='{name}/full_'"
            )
        self._check_modes(trainer, keys)

    def _check_modes(self, trainer: Any, keys: Collection[str]) -> None:
        """Refuse monitors with mode "min" for keys where higher is better, or mode "max" where lower is better."""
        falling = [key for key, metric in self._metrics.metrics.items() if metric.higher_is_better is False]
        for reader in readers(trainer):
            if reader.monitor not in keys or reader.monitor.endswith(_COUNTS):
                continue
            falls = any(re.search(rf"{re.escape(label)}(?!\d)", reader.monitor) for label in falling)
            if reader.mode == ("max" if falls else "min"):
                better, cure = ("lower", "min") if falls else ("higher", "max")
                raise ValueError(
                    f"{reader.name} (monitor={reader.monitor!r}, mode={reader.mode!r}): {better} is better, pass "
                    f"mode={cure!r}"
                )

    def _check_monitors(self, trainer: Any, logged: Collection[str], known: bool) -> None:
        """Refuse a monitor that resembles a key of this callback and is not logged.

        If the module's own keys are not `known`, only warn.
        """
        for reader in readers(trainer):
            if reader.monitor in logged or not self._resembles(reader.monitor):
                continue
            candidates = [key for key in logged if "@" in key] or logged
            nearest = difflib.get_close_matches(reader.monitor, candidates, 3, 0.0)
            hint = f" Logged keys are {', '.join(nearest)}, ..." if nearest else ""
            message = f"{reader.name} (monitor={reader.monitor!r}): nothing logs that key.{hint}"
            if known:
                raise ValueError(message)
            warnings.warn(f"{message} Unless the module logs it, the run stops after its first epoch.", stacklevel=2)

    def _resembles(self, monitor: str) -> bool:
        """Return True if a monitor is nearly a key of this callback, or another metric under one of its prefixes."""
        prefixes = [self._prefix(stage, name) for stage in SHORT for name in self._names(stage)]
        words = re.findall("[a-z]+", monitor.lower())
        under_ours = "".join(words[:-1]) in {"", *("".join(re.findall("[a-z]+", p.lower())) for p in prefixes)}
        if words and is_name(words[-1]) and under_ours:
            return True
        keys = [_plain(prefix + key) for prefix in prefixes for key in [*self._labels, *_COUNTS]]
        return bool(difflib.get_close_matches(_plain(monitor), keys, 1, 0.85))

    # ------------------------------------------------------------------------------------------------------- logging

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


def readers(trainer: Any) -> list[Reader]:
    """Return the callbacks and learning rate schedulers that monitor a key."""
    monitoring: list[Reader] = []
    for callback in trainer.callbacks:
        monitor, mode = getattr(callback, "monitor", None), getattr(callback, "mode", None)
        if isinstance(monitor, str):
            num_epochs = getattr(callback, "_every_n_epochs", int(getattr(callback, "strict", True)))
            monitoring.append(Reader(type(callback).__name__, monitor, mode=mode, num_epochs=num_epochs))
    for config in trainer.lr_scheduler_configs:
        if isinstance(config.monitor, str):
            num_epochs = config.frequency if config.interval == "epoch" else 0
            mode = getattr(config.scheduler, "mode", None)
            monitoring.append(Reader("the learning rate scheduler", config.monitor, mode=mode, num_epochs=num_epochs))
    return monitoring


def check_function(name: str, function: Any, takes: str, arguments: int) -> None:
    """Refuse anything but a function that accepts `arguments` positional arguments."""
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError as error:
        raise TypeError(f"{name} must be a function of {takes}, got {function!r}") from error
    except ValueError:
        pass  # some built-in functions have no signature


def _reporting(trainer: Any) -> list[Reporting]:
    return [callback for callback in trainer.callbacks if isinstance(callback, Reporting)]


def _plain(key: str) -> str:
    """Return a key without common differences in spelling: case, punctuation, `valid` for `val`."""
    return re.sub("^valid(ation)?", "val", re.sub(r"[\W_]", "", key.lower()))
