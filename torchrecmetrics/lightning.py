"""Lightning callbacks: metrics of what the steps return, and whole-catalogue evaluation at the end of an epoch.

They work with `lightning` and with `pytorch_lightning`, whichever is there.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torchmetrics import Metric

from torchrecmetrics.collection import _BY_NAME, KeyFormat, Metrics, RecMetricCollection
from torchrecmetrics.evaluation import Excluded, ScoreFunction, check_target, evaluate, evaluating, without_relevant
from torchrecmetrics.inputs import VIOLATIONS, check_choice, check_k, describe
from torchrecmetrics.interactions import Interactions
from torchrecmetrics.metrics import make_ranking, shared_threshold
from torchrecmetrics.ranking import Ranking
from torchrecmetrics.samples import MAY_REPEAT, SampleRows, Share, share_of

Stage: TypeAlias = Literal["validate", "test"]

__all__ = ["CatalogueEvaluationCallback", "RecMetricsCallback"]

_SHORT: dict[str, str] = {"validate": "val", "test": "test"}
_COUNTS = ("num_users", "num_skipped", "num_unreachable", "num_tied")
_FORMS = ("scores", "ranks", "ranking")
_BESIDE = ("target", "gains", "exclude", "weights", "depth")
_MISSPELT = {"targets": "target", "excluded": "exclude", "excludes": "exclude", "gain": "gains", "weight": "weights"}
_PROG_BAR = ("NDCG@10",)


def _callback_classes() -> tuple[type, ...]:
    """Return `Callback` of the Lightning packages that are imported already, or else of those that are installed."""
    names = ("lightning.pytorch", "pytorch_lightning")
    installed = [name for name in names if importlib.util.find_spec(name.partition(".")[0])]
    if not installed:
        raise ImportError("torchrecmetrics.lightning needs Lightning: pip install 'torchrecmetrics[lightning]'")
    loaded = [name for name in names if sys.modules.get(name)]
    return tuple(importlib.import_module(name).Callback for name in loaded or installed)


class _Reporting(*_callback_classes()):  # type: ignore[misc]
    """What both callbacks share: stages, keys, logging, and checks of keys before the first epoch."""

    def __init__(
        self,
        metrics: Metrics | RecMetricCollection,
        k: int | Iterable[int] | None,
        stages: Sequence[Stage],
        prefix: str,
        key_format: KeyFormat,
        prog_bar: Sequence[str],
        log_counts: bool,
        options: dict[str, Any],
    ) -> None:
        super().__init__()
        self.stages = (stages,) if isinstance(stages, str) else tuple(stages)
        for stage in self.stages:
            check_choice("stages", stage, get_args(Stage))
        if isinstance(metrics, RecMetricCollection):
            if k is not None or options:
                given = ", ".join([*(["k"] if k is not None else []), *options])
                raise ValueError(f"{given} given beside a collection, which has its own")
            self._metrics = deepcopy(metrics)
            self._metrics.prefix = self._metrics.postfix = None
        else:
            self._metrics = RecMetricCollection(deepcopy(metrics), k, key_format=key_format, **options)
        self._metrics.reset()
        try:
            prefix.format(stage="val", name="val")
        except (AttributeError, LookupError, ValueError) as error:
            raise ValueError(
                f"prefix must be a string, in which {{stage}} and {{name}} may stand, got {prefix!r}"
            ) from error
        self.prefix = prefix
        self._labels = [str(key) for key in self._metrics]
        keys = {metric.label: key for key, metric in zip(self._labels, self._metrics._members(), strict=True)}
        keys |= {key: key for key in self._labels}
        prog_bar = (prog_bar,) if isinstance(prog_bar, str) else prog_bar
        unknown = [name for name in prog_bar if name not in keys]
        if unknown and prog_bar is not _PROG_BAR:
            raise ValueError(f"prog_bar names {', '.join(unknown)}, the metrics are {', '.join(self._labels)}")
        self.prog_bar = {keys[name] for name in prog_bar if name in keys}
        self.log_counts = log_counts
        self._current: list[str] = []  # keys that the stage now running logs

    def _names(self, stage: str) -> list[str]:
        """Return what stands for {name} in the keys of a stage, as far as that is known before it begins."""
        raise NotImplementedError

    def _prefix(self, stage: str, name: str) -> str:
        return self.prefix.format(stage=_SHORT[stage], name=name)

    def _keys(self, stage: str, names: Iterable[str]) -> list[str]:
        """All keys that a stage logs under these names."""
        keys = [*self._labels, *(_COUNTS if self.log_counts else ())]
        return [self._prefix(stage, name) + key for name in names for key in keys]

    def _announce(self, trainer: Any, keys: list[str]) -> None:
        """Refuse keys that would be logged twice, the last value winning, or that are monitored upside down."""
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
        _check_modes(trainer, keys)

    def _empty(self, trainer: Any) -> RecMetricCollection:
        """Make a collection for a run."""
        collection = deepcopy(self._metrics)
        for metric in collection._members():
            if trainer.world_size > 1 and metric.validate_args is True:
                metric.validate_args = "deferred"  # a process that raised alone would leave the others waiting
        return collection

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuse monitors and loggers that cannot work with the keys, as far as these are known."""
        self._current = []
        asked = "validate" if stage == "fit" else stage
        if asked not in self.stages:
            return
        keys = self._keys(asked, self._names(asked))
        _check_loggers(trainer.loggers, keys)
        if stage == "fit":
            _check_modes(trainer, keys)
            if not (trainer.num_sanity_val_steps and trainer.enable_validation):
                elsewhere = {key for other in _reporting(trainer) for key in other._keys(asked, other._names(asked))}
                # what metrics of the module's own are logged as is its own affair
                if not any(isinstance(part, Metric) for part in pl_module.modules()):
                    self._check_monitors(trainer, elsewhere, [asked])

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Refuse monitors of keys that nothing has logged, at the end of the sanity check already."""
        if trainer.state.fn == "fit":
            ours = {key for other in _reporting(trainer) for key in other._current}
            self._check_monitors(trainer, {*trainer.callback_metrics, *ours})
            for config in trainer.lr_scheduler_configs:
                _check_mode("the learning rate scheduler", config.monitor, config.scheduler, self._current)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Forget what the run has logged."""
        self._current = []

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Forget what the run has logged."""
        self._current = []

    def _check_monitors(self, trainer: Any, logged: set[str], stages: Iterable[str] = _SHORT) -> None:
        """Refuse a monitored key that is none of `logged` and looks like one of ours."""
        prefixes = {self._prefix(stage, name) for stage in stages for name in self._names(stage)} - {""}
        counts = {prefix + count for prefix in prefixes for count in _COUNTS}
        ours = {prefix + label for prefix in prefixes for label in self._labels}
        alike = {re.sub(r"[^\w@]|_", "", key) for key in ours}
        for callback in trainer.callbacks:
            monitor = getattr(callback, "monitor", None)
            if (
                isinstance(monitor, str)
                and monitor not in logged
                and (
                    monitor in {*self._labels, *counts, *ours}
                    or re.sub(r"[^\w@]|_", "", monitor) in alike
                    or any(monitor.startswith(prefix) and _is_label(monitor[len(prefix) :]) for prefix in prefixes)
                )
            ):
                known = difflib.get_close_matches(monitor, sorted(logged & {*self._current, *ours}), n=5, cutoff=0.0)
                hint = f"Logged are {', '.join(known)}, ..." if known else f"stages={self.stages} log nothing in fit"
                hint = "Counts are logged with log_counts=True" if monitor in counts else hint
                raise ValueError(f"{type(callback).__name__}(monitor={monitor!r}): nothing logs that key. {hint}")

    def _log(self, pl_module: Any, values: Mapping[str, Tensor], counts: Any, prefix: str, postfix: str = "") -> None:
        """Log what all processes have agreed on; `counts` has the four counts as attributes."""
        logged = dict(values)
        if self.log_counts:
            like = next(iter(values.values()))
            logged |= {count: like.new_tensor(getattr(counts, count)) for count in _COUNTS}
        for key, value in logged.items():
            key_there = prefix + key + postfix
            pl_module.log(
                key_there,
                _Agreed(value),
                prog_bar=key in self.prog_bar,
                on_step=False,
                on_epoch=True,
                add_dataloader_idx=False,
                metric_attribute=key_there,
            )


def _reporting(trainer: Any) -> list[_Reporting]:
    return [callback for callback in trainer.callbacks if isinstance(callback, _Reporting)]


class _Agreed(Metric):
    """A value that every process has: Lightning neither reduces a metric again nor asks for `sync_dist`."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value

    def update(self) -> None:
        """Take nothing: the value is there."""

    def compute(self) -> Tensor:
        """Return the value."""
        return self.value

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        return compute  # without the warning that nothing was updated


class RecMetricsCallback(_Reporting):
    """Metrics of what `validation_step` and `test_step` return, logged at the end of their epoch.

    A step returns a mapping with

    - `scores` and `target`, and optionally `gains`, `exclude`, `weights`; or `ranks`, and optionally `depth`,
      `weights`; or `ranking`, and optionally `weights`: what `RecMetricCollection.update` takes;
    - `user_ids`, where `exclude=` is given here; what else it holds is left alone.

    Each loader has a collection of its own on the module's device, empty at the start of an epoch. Values are logged as
    `val/NDCG@10`, `test/NDCG@10` when the epoch ends, so ModelCheckpoint and EarlyStopping see them. The sanity check
    computes them too, and throws them away: deferred errors stop the run there. Checkpoints hold no metric state.
    Prediction is left alone.

    Over several processes the values are those of one: what a `DistributedSampler` repeats to make shares equal is not
    counted, and one packed synchronisation (two all-reduces) a loader is all that is communicated. Values are then
    checked as with `validate_args="deferred"`.

    Args:
        metrics: what `RecMetricCollection` takes, or such a collection (a clone is used, without prefix and postfix).
        k: cut-offs, where `metrics` are names.
        stages: "validate" (in `fit` too), "test", or both.
        prog_bar: keys without prefix that the progress bar shows.
        outputs: a function of (what the step returned, batch) that makes the mapping.
        prefix: put in front of every key; {name} stands for the loader's name, or `val` or `test` where it has none,
            {stage} always for `val` or `test`.
        key_format: as in `RecMetricCollection`; MLflow refuses `@`: "{name}_at_{k}".
        dataloaders: names of the loaders in their order, such as ["valid", "test"], or a dict with these keys. Not
            needed where the Trainer is given a dict of loaders. A single loader goes by `val` or `test` without one,
            several by Lightning's `/dataloader_idx_0`.
        exclude: `Interactions` whose items leave the candidates of the users in `user_ids` (kept on the host, they cost
            no wait for the device), or a dict of these by the loader's name or by `val` and `test`.
        sample_ids: where repeated samples cannot be recognised (own samplers, iterable data sets): name of the step's
            entry, or a function of (what the step returned, batch), that gives each row's index in the data set,
            integers [B]. An index counts once however often it is met. Not the user: a user may have several rows.
            Rows are kept until the epoch ends (24 bytes a row and metric) and gathered by every process. Without it,
            the rows of a batch are taken to be in the order in which the sampler gives the samples.
        log_counts: log `num_users`, `num_skipped`, `num_unreachable` and `num_tied` of the first metric, too.
        options: keyword options of the metrics, as in `RecMetricCollection`.

    After an epoch `collections` holds each loader's collection by name, for `standard_error()` and counts.

    Example:
        >>> from torchrecmetrics.lightning import RecMetricsCallback
        >>> callback = RecMetricsCallback(["HR", "NDCG"], k=[5, 10], prog_bar=["HR@5"])
        >>> # Trainer(callbacks=[callback, ModelCheckpoint(monitor="val/NDCG@10", mode="max")])

    Raises:
        ValueError: at `setup`, for a callback that monitors one of the keys with `mode="min"`, or a key that looks like
            one and is not logged, and for keys that a logger refuses; in a step, for a mapping that does not fit.
    """

    def __init__(
        self,
        metrics: Metrics | RecMetricCollection,
        k: int | Iterable[int] | None = None,
        *,
        stages: Sequence[Stage] = ("validate", "test"),
        prog_bar: Sequence[str] = _PROG_BAR,
        outputs: Callable[[Any, Any], Mapping[str, Any]] | None = None,
        prefix: str = "{name}/",
        key_format: KeyFormat = "{name}@{k}",
        dataloaders: Iterable[str] | None = None,
        exclude: Interactions | Mapping[str, Interactions] | None = None,
        sample_ids: str | Callable[[Any, Any], Tensor] | None = None,
        log_counts: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(metrics, k, stages, prefix, key_format, prog_bar, log_counts, options)
        if outputs is not None:
            _check_function("outputs", outputs, "(what the step returned, batch)", 2)
        if sample_ids is not None and not isinstance(sample_ids, str):
            _check_function(
                "sample_ids", sample_ids, "(what the step returned, batch), or the name of a step's entry", 2
            )
        if isinstance(dataloaders, Mapping) and any(isinstance(names, (list, tuple)) for names in dataloaders.values()):
            raise ValueError(f"dataloaders holds the loaders' names themselves, not lists of them, got {dataloaders}")
        self.outputs = outputs
        self.sample_ids = sample_ids
        self.dataloaders = [dataloaders] if isinstance(dataloaders, str) else list(map(str, dataloaders or ()))
        if len(set(self.dataloaders)) < len(self.dataloaders):
            raise ValueError(f"dataloaders holds a name twice: {self.dataloaders}")
        for history in exclude.values() if isinstance(exclude, Mapping) else [exclude]:
            if history is not None and not isinstance(history, Interactions):
                raise TypeError(
                    f"exclude must be Interactions or a dict of them by the loader's name, got {describe(history)}"
                )
        self.exclude = exclude
        self.collections: dict[str, RecMetricCollection] = {}
        self._loaders: list[_Loader] = []
        self._said: set[str] = set()

    def _names(self, stage: str) -> list[str]:
        return [*self.dataloaders, _SHORT[stage]]

    # ------------------------------------------------------------------------------------------------------- the hooks

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Make an empty collection for each loader."""
        self._begin(trainer, pl_module, "validate")

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Make an empty collection for each loader."""
        self._begin(trainer, pl_module, "test")

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Add what the step returned."""
        self._add("validation_step", pl_module, outputs, batch, batch_idx, dataloader_idx)

    def on_test_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Add what the step returned."""
        self._add("test_step", pl_module, outputs, batch, batch_idx, dataloader_idx)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Compute, log and reset."""
        self._end(trainer, pl_module)

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Compute, log and reset."""
        self._end(trainer, pl_module)

    # -------------------------------------------------------------------------------------------------------- the work

    def _begin(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.collections, self._loaders, self._current = {}, [], []
        self._share_errors = trainer.world_size > 1
        if stage not in self.stages:
            return
        loaders, names = self._name_loaders(trainer, stage)
        for loader, (name, postfix) in zip(loaders, names, strict=True):
            collection = self._empty(trainer).to(pl_module.device)
            for metric in collection._members() if self.sample_ids is not None else ():
                metric.sync_on_compute = False  # SampleRows leaves all rows in every process
            exclude = self.exclude
            if isinstance(exclude, Mapping):
                key = name if name in exclude else _SHORT[stage]
                if key not in exclude:
                    raise ValueError(f"exclude holds {', '.join(exclude)}, neither {name!r} nor {key!r}")
                exclude = exclude[key]
            samples = share = None
            if self.sample_ids is not None:
                samples = SampleRows(collection)
            elif trainer.world_size > 1:
                share, doubt = share_of(loader)
                if trainer.is_global_zero:
                    self._warn(doubt)
            exclude = None if exclude is None else exclude.to(pl_module.device)
            self.collections[name + postfix] = collection
            prefix = self._prefix(stage, name)
            self._loaders.append(_Loader(name + postfix, prefix, postfix, collection, exclude, samples, share))
        keys = [key + postfix for name, postfix in names for key in self._keys(stage, [name])]
        self._announce(trainer, keys)

    def _name_loaders(self, trainer: Any, stage: str) -> tuple[list[Any], list[tuple[str, str]]]:
        """Return the stage's loaders, and name and postfix of each."""
        loop = trainer.test_loop if stage == "test" else trainer.validate_loop
        if trainer.state.fn == "fit":
            loop = trainer.fit_loop.epoch_loop.val_loop
        combined = loop._combined_loader  # trainer.val_dataloaders may be those of an earlier fit
        loaders = combined.flattened
        if combined._mode != "sequential":
            return [None], [(_SHORT[stage], "")]
        names = list(map(str, combined.iterables)) if isinstance(combined.iterables, Mapping) else []
        if self.dataloaders and not (len(loaders) == 1 < len(self.dataloaders)):
            names = self.dataloaders
            if len(names) != len(loaders):
                raise ValueError(f"dataloaders names {', '.join(names)}, but {stage} has {len(loaders)} loaders")
        if len(names) == len(loaders):
            return loaders, [(name, "") for name in names]
        if len(loaders) == 1:
            return loaders, [(_SHORT[stage], "")]
        return loaders, [(_SHORT[stage], f"/dataloader_idx_{i}") for i in range(len(loaders))]

    def _add(self, step: str, pl_module: Any, returned: Any, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
        if not self._loaders:
            return
        loader = self._loaders[dataloader_idx]
        try:
            outputs = returned if self.outputs is None else self.outputs(returned, batch)
            source = step if self.outputs is None else "the function outputs="
            given = _read(outputs, source, pl_module.device)
            if loader.exclude is not None:
                history = loader.exclude.select(_user_ids(outputs, given, source)).items
                own = given.get("exclude", ())
                given["exclude"] = (*(own if isinstance(own, tuple) else (own,)), history)
            weights = given.pop("weights", None)
            ranking = make_ranking(loader.collection._members(), **given)
            if loader.samples is None:
                weights, doubt = loader.without_repeats(weights, batch_idx, ranking)
                self._warn(doubt)
                loader.collection.update(ranking, weights=weights)
            else:
                loader.samples.add(self._ids(outputs, returned, batch, source), ranking, weights)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            told = kind(f"{type(self).__name__}, loader {loader.name!r}, batch {batch_idx}: {error}")
            if not self._share_errors:
                raise told from error
            # alone, it would leave the other processes waiting: all of them raise when the epoch ends
            loader.error = loader.error or told

    def _ids(self, outputs: Mapping[str, Any], returned: Any, batch: Any, source: str) -> Tensor:
        if not isinstance(self.sample_ids, str):
            return self.sample_ids(returned, batch)  # type: ignore[misc]  # not None: there are SampleRows
        found: Tensor | None = outputs.get(self.sample_ids)
        if found is None:
            raise ValueError(f"{source} must return {self.sample_ids!r} (sample_ids=); it returned {_keys_of(outputs)}")
        return found

    def _end(self, trainer: Any, pl_module: Any) -> None:
        for loader in self._loaders:
            if loader.error is not None:
                loader.add_violation("step", pl_module.device)
            if loader.samples is not None:
                loader.samples.settle()
            try:
                values = loader.collection.compute()
            except ValueError as error:
                where = f"{type(self).__name__}, loader {loader.name!r}"
                raise loader.error or ValueError(f"{where}: {error}") from error
            if not trainer.sanity_checking:
                self._log(pl_module, values, loader.collection._members()[0], loader.prefix, loader.postfix)
            loader.collection.reset()
        self._loaders = []
        if trainer.sanity_checking:
            self.collections = {}

    def _warn(self, doubt: str | None) -> None:
        if doubt and doubt not in self._said:
            self._said.add(doubt)
            warnings.warn(f"RecMetricsCallback: {doubt}.", UserWarning, stacklevel=2)


@dataclass
class _Loader:
    name: str
    prefix: str
    postfix: str
    collection: RecMetricCollection
    exclude: Interactions | None
    samples: SampleRows | None
    share: Share | None
    error: Exception | None = None

    def add_violation(self, kind: str, device: torch.device) -> None:
        """Add no row, but a violation that all processes will learn of."""
        invalid = torch.tensor([int(other == kind) for other in VIOLATIONS], device=device)
        nobody = without_relevant(0, device, shared_threshold(self.collection._members()))
        if self.samples is None:
            self.collection.update(replace(nobody, invalid=invalid))
        else:
            self.samples.add(invalid[:0], replace(nobody, invalid=invalid))

    def without_repeats(
        self, weights: Tensor | None, batch_idx: int, ranking: Ranking
    ) -> tuple[Tensor | None, str | None]:
        """Return weights that leave repeated samples out; or a doubt, where they cannot be told."""
        rows = len(ranking)
        kept = rows if self.share is None else self.share.kept(batch_idx, rows)
        if kept is None:
            return weights, f"a batch with repeated samples has {rows} rows, which are not its samples{MAY_REPEAT}"
        if kept < rows:
            device = ranking.ranks.device
            weights = torch.ones(rows, device=device) if weights is None else weights
            weights = weights.where(torch.arange(rows, device=device) < kept, 0)
        return weights, None


def _read(outputs: Any, source: str, device: torch.device) -> dict[str, Any]:
    """Return what a step's mapping holds for `make_ranking`, and `weights`."""
    wanted = f"{source} must return a mapping with 'scores' and 'target', or with 'ranks', or with 'ranking'"
    cure = "outputs= takes a function of (what the step returned, batch) that makes one"
    if not isinstance(outputs, Mapping):
        raise TypeError(f"{wanted}, got {describe(outputs)}; {cure}")
    given = {name: outputs[name] for name in (*_FORMS, *_BESIDE) if outputs.get(name) is not None}
    forms = [name for name in _FORMS if name in given]
    if len(forms) > 1:
        raise ValueError(f"{source} returned {' and '.join(map(repr, forms))}: return one of them")
    for meant, name in _MISSPELT.items() if forms == ["scores"] else ():
        if name not in given and outputs.get(meant) is not None:
            raise ValueError(f"{source} returned {meant!r}; did you mean {name!r}?")
    if not forms or (forms == ["scores"] and "target" not in given):
        raise ValueError(f"{wanted}, got {_keys_of(outputs)}; {cure}")
    if forms != ["scores"]:
        given.pop("target", None)  # ranks were made with it
    for name, value in given.items():
        for part in value if isinstance(value, tuple) else (value,):
            if not isinstance(part, (Tensor, Ranking)) and name != "depth":
                raise TypeError(f"{source} returned {name!r} that is no tensor: {describe(part)}")
            there = part.ranks.device if isinstance(part, Ranking) else getattr(part, "device", device)
            if there != device:
                raise ValueError(f"{source} returned {name!r} on {there}, the module is on {device}")
    return given


def _user_ids(outputs: Mapping[str, Any], given: Mapping[str, Any], source: str) -> Tensor:
    """Return the users of a batch, on the host."""
    ids = outputs.get("user_ids")
    if ids is None:
        raise ValueError(f"{source} must return 'user_ids' too, for exclude=, got {_keys_of(outputs)}")
    ids = torch.as_tensor(ids).cpu()
    rows = len(given["scores"]) if "scores" in given else len(ids)
    if ids.shape != (rows,) or ids.is_floating_point():
        raise ValueError(f"{source} must return 'user_ids' as integers [{rows}], got {describe(ids)}")
    return ids


def _keys_of(outputs: Mapping[str, Any]) -> str:
    return ", ".join(repr(key) for key in outputs) or "an empty mapping"


def _check_function(name: str, function: Any, takes: str, arguments: int) -> None:
    """Refuse what cannot be called with so many arguments."""
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError as error:
        raise TypeError(f"{name} must be a function of {takes}, got {function!r}") from error
    except ValueError:
        pass  # some built-in functions do not tell


def _check_modes(trainer: Any, keys: Iterable[str]) -> None:
    """Refuse callbacks that take low values of these keys for good ones."""
    for callback in trainer.callbacks:
        _check_mode(type(callback).__name__, getattr(callback, "monitor", None), callback, keys)


def _check_mode(name: str, monitor: Any, judge: Any, keys: Iterable[str]) -> None:
    if monitor in keys and getattr(judge, "mode", None) == "min" and not monitor.endswith(_COUNTS):
        raise ValueError(f"{name} (monitor={monitor!r}, mode='min'): higher is better, pass mode='max'")


def _is_label(text: str) -> bool:
    """Whether a key reads like one of this package's, `NDCG-exponential@10`."""
    return re.fullmatch(r"[\w-]+@\d+", text) is not None and re.split("[-@]", text)[0].lower() in _BY_NAME


def _check_loggers(loggers: Iterable[Any], keys: Iterable[str]) -> None:
    """Refuse keys that a logger would refuse only when the first epoch has ended."""
    refused = [key for key in keys if not re.fullmatch(r"[\w\-./ ]+", key, re.ASCII)]
    for logger in loggers:
        if refused and any(kind.__name__ == "MLFlowLogger" for kind in type(logger).__mro__):
            raise ValueError(
                f"MLflow takes letters, digits, '_', '-', '.', '/' and space in keys, not {refused[0]!r}: pass "
                "key_format='{name}_at_{k}'"
            )


_SANITY_USERS = 64


class CatalogueEvaluationCallback(_Reporting):
    """Ranks the whole catalogue for every user at the end of an epoch, with `evaluate`, and logs the metrics.

    In `fit` it runs when a validation epoch ends or, without validation loaders, when a training epoch ends; in
    `trainer.validate` and `trainer.test` when theirs ends. The users are split over the processes; every process embeds
    once. The sanity check evaluates a few users and throws the values away.

    Args:
        metrics: what `RecMetricCollection` takes, or such a collection.
        k: cut-offs, where `metrics` are names.
        embed: a function of the module that returns (users [U, d], items [I, d]), or (a function of user ids that
            returns scores, None). It is called without gradients, with the module in eval mode.
        target: ground truth, `Interactions` [U, I], logged as `val/...` in validation and `test/...` in
            `trainer.test`; or a dict of them by name, all evaluated in each of `stages`. For one ground truth in `fit`
            and another in `trainer.test`, take two callbacks with `stages="validate"` and `stages="test"`.
        exclude: what leaves a user's candidates, as in `evaluate`, for all targets; or a dict of that by target's name,
            `{"val": train, "test": train.union(valid)}` for a plain target.
        every_n_epochs: in `fit`, evaluate after epochs n, 2n, ... only; give ModelCheckpoint the same. EarlyStopping
            wants a value each time: use the Trainer's `check_val_every_n_epoch` with it.
        stages: "validate" (in `fit` too), "test", or both.
        prog_bar: keys without prefix that the progress bar shows.
        prefix: put in front of every key; {name} stands for the target's name, or `val` or `test` where it has none,
            {stage} always for `val` or `test`.
        key_format: as in `RecMetricCollection`.
        log_counts: log `num_users`, `num_skipped`, `num_unreachable` and `num_tied` of the first metric, too.
        similarity: as in `evaluate`.
        items_allowed: as in `evaluate`.
        batch_size: as in `evaluate`.
        memory_budget: as in `evaluate`.
        options: keyword options of the metrics, as in `RecMetricCollection`.

    After an epoch `results` holds each target's `Evaluation` by name.

    Example:
        >>> import torch
        >>> from torchrecmetrics import Interactions
        >>> from torchrecmetrics.lightning import CatalogueEvaluationCallback
        >>> valid = Interactions.from_edge_index(torch.tensor([[0, 1], [2, 0]]), num_users=2, num_items=3)
        >>> callback = CatalogueEvaluationCallback(
        ...     "NDCG", k=2, embed=lambda module: (module.users.weight, module.items.weight), target=valid
        ... )
    """

    def __init__(
        self,
        metrics: Metrics | RecMetricCollection,
        k: int | Iterable[int] | None = None,
        *,
        embed: Callable[[Any], tuple[Tensor | ScoreFunction, Tensor | None]],
        target: Interactions | Mapping[str, Interactions],
        exclude: Excluded | Mapping[str, Excluded | None] | None = None,
        every_n_epochs: int = 1,
        stages: Sequence[Stage] = ("validate", "test"),
        prog_bar: Sequence[str] = _PROG_BAR,
        prefix: str = "{name}/",
        key_format: KeyFormat = "{name}@{k}",
        log_counts: bool = False,
        similarity: Literal["dot", "cosine"] = "dot",
        items_allowed: Tensor | None = None,
        batch_size: int | None = None,
        memory_budget: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(metrics, k, stages, prefix, key_format, prog_bar, log_counts, options)
        _check_function("embed", embed, "(the module) that returns (users, items)", 1)
        self.embed = embed
        self.target = target
        for truth in target.values() if isinstance(target, Mapping) else [target]:
            check_target(truth)
        known = list(target) if isinstance(target, Mapping) else list(_SHORT.values())
        if isinstance(exclude, Mapping) and set(exclude) - set(known):
            raise ValueError(f"exclude holds {', '.join(exclude)}, expected {', '.join(known)}")
        self.exclude = exclude
        self.every_n_epochs = check_k(every_n_epochs, "every_n_epochs")
        self._options: dict[str, Any] = {
            "similarity": similarity,
            "items_allowed": items_allowed,
            "batch_size": batch_size,
            "memory_budget": memory_budget,
        }
        self.results: dict[str, Any] = {}

    def _names(self, stage: str) -> list[str]:
        return list(self.target) if isinstance(self.target, Mapping) else [_SHORT[stage]]

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuse monitors, loggers and other callbacks that cannot work with the keys."""
        super().setup(trainer, pl_module, stage)
        asked = "validate" if stage == "fit" else stage
        if asked in self.stages:
            self._announce(trainer, self._keys(asked, self._names(asked)))
        every = (trainer.check_val_every_n_epoch or 1) if trainer.enable_validation else 1
        for callback in trainer.callbacks if stage == "fit" and every % self.every_n_epochs else ():
            stops = any(kind.__name__ == "EarlyStopping" for kind in type(callback).__mro__) and callback.strict
            if stops and callback.monitor in self._current:
                raise ValueError(
                    f"EarlyStopping(monitor={callback.monitor!r}) reads its key every time, which every_n_epochs="
                    f"{self.every_n_epochs} does not log: leave that out and pass Trainer(check_val_every_n_epoch="
                    f"{self.every_n_epochs}), or EarlyStopping(strict=False)"
                )

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Evaluate and log."""
        self._evaluate(trainer, pl_module, "validate")

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Evaluate and log."""
        self._evaluate(trainer, pl_module, "test")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Evaluate and log, where there is no validation that would."""
        if not trainer.enable_validation:
            self._evaluate(trainer, pl_module, "validate")

    def _evaluate(self, trainer: Any, pl_module: Any, stage: str) -> None:
        fitting = trainer.state.fn == "fit" and not trainer.sanity_checking
        if stage not in self.stages or (fitting and (trainer.current_epoch + 1) % self.every_n_epochs):
            return
        self.results = {}
        with torch.no_grad(), evaluating(pl_module):
            embeddings = self.embed(pl_module)
            if not isinstance(embeddings, tuple) or len(embeddings) != 2:
                raise TypeError(f"embed must return (users, items), got {describe(embeddings)}")
            users, items = embeddings
            for name in self._names(stage):
                target = self.target[name] if isinstance(self.target, Mapping) else self.target
                exclude = self.exclude
                if isinstance(exclude, Mapping):
                    if name not in exclude:
                        raise ValueError(f"exclude holds {', '.join(exclude)}, not {name!r} (None: exclude nothing)")
                    exclude = exclude[name]
                few = target.degree.nonzero()[:_SANITY_USERS, 0] if trainer.sanity_checking else None
                with _progress(trainer, stage, f"Catalogue, {name}") as progress:
                    result = evaluate(
                        self._empty(trainer),
                        users,
                        items,
                        target=target,
                        exclude=exclude,
                        user_ids=few,
                        device=users.device if isinstance(users, Tensor) else pl_module.device,
                        progress=progress,
                        shard="users" if trainer.world_size > 1 else None,
                        **self._options,
                    )
                if not trainer.sanity_checking:
                    self.results[name] = result
                    self._log(pl_module, result, result, self._prefix(stage, name))


@contextmanager
def _progress(trainer: Any, stage: str, description: str) -> Iterator[Callable[[int, int], None] | bool]:
    """Yield a function of (users done, users in all) that shows them in the trainer's bar; False without one."""
    shown = trainer.progress_bar_callback
    if shown is None or not getattr(shown, "is_enabled", False) or trainer.sanity_checking:
        yield False
    elif hasattr(shown, "init_validation_tqdm"):
        # the bar of the stage has come to its end; a training epoch without validation has none, and gets one
        own = None
        if trainer.state.fn == "fit" and not trainer.validating:
            own = shown.init_validation_tqdm()
        bar = own if own is not None else shown.test_progress_bar if stage == "test" else shown.val_progress_bar
        bar.set_description(description)

        def advance(done: int, total: int) -> None:
            bar.total, bar.n = total, done
            bar.refresh()

        try:
            yield advance
        finally:
            if own is not None:
                own.close()
    elif hasattr(getattr(shown, "progress", None), "add_task"):  # rich
        task = shown.progress.add_task(description, total=1)
        try:
            yield lambda done, total: shown.progress.update(task, completed=done, total=total)
        finally:
            shown.progress.update(task, visible=False)
    else:
        yield False
