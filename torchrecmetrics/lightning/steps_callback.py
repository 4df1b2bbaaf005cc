"""`RecMetricsCallback`: update metrics with the outputs of validation and test steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.core.checks import describe
from torchrecmetrics.core.options import Input
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.inputs.item_shard import ItemShard
from torchrecmetrics.lightning.outputs import excluding, names_of, read_outputs, user_ids_of
from torchrecmetrics.lightning.reporting import SHORT, Reporting, Stage, check_function
from torchrecmetrics.lightning.samples import SampleRows, Share, share_of
from torchrecmetrics.metrics.accumulator import Accumulator
from torchrecmetrics.metrics.names import KeyFormat, Metrics
from torchrecmetrics.metrics.signature import MetricOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass
class LoaderRows:
    """The rows of one loader during an epoch."""

    name: str
    prefix: str
    postfix: str
    collection: RecMetricCollection
    exclude: Interactions | None
    share: Share | None = None
    """Which samples are repeats; None without any."""
    samples: SampleRows | None = None
    """Rows by sample, added at the end of the epoch; None without `sample_ids`."""


class RecMetricsCallback(Reporting):
    """Callback that computes metrics of the output of `validation_step` and `test_step`, and logs them after the epoch.

    A step returns a mapping with

    - `scores` and `target`, and optionally `gains`, `exclude`, `history`, as in `Scores`; or `input`, such as
      `trm.Lists(item_ids, target)`, `trm.Ranks(ranks)` or a `Ranking`. An `ItemShard` has the same rows on all
      processes: `Trainer(use_distributed_sampler=False)`;
    - optionally `weights`, and the columns that the collection's accumulators read: `groups` for `ByGroup`, `row_ids`
      and `clusters` for `KeptRows`. Without `row_ids` it takes `user_ids`; with `sample_ids` it takes these as
      `row_ids` and `user_ids` as `clusters`;
    - `user_ids`, if `exclude=` is given here. Other entries are ignored.

    Each loader has its own collection on the module's device, empty at the start of an epoch. Values are logged as
    `val/NDCG@10`, `test/NDCG@10` when the epoch ends, so ModelCheckpoint and EarlyStopping see them. The sanity check
    also computes values, so that deferred errors stop the run, and discards them. Checkpoints hold no metric state.
    Prediction is not affected.

    If the collection has a `Window`, `training_step` returns the same mapping, with its loss, and values of
    recent training rows are logged as `train/NDCG@10/window` every `log_every_n_steps` batches.

    Several processes give the values of a single one: samples that a `DistributedSampler` repeats are not counted,
    except in windows over training rows.
    Metrics add two all-reduces per loader, `sample_ids` two gathers. Inputs are then checked as with
    `validate_args="deferred"`.

    Args:
        metrics: as for `RecMetricCollection`, or a collection (a copy is used, without prefix and postfix).
        k: cut-offs, if `metrics` are names.
        stages: "validate" (in `fit` too), "test", or both.
        prog_bar: keys without prefix that the progress bar shows; True: all; None: `NDCG@10` if it is logged.
        outputs: a function of (output of the step, batch) that returns the mapping.
        prefix: put in front of every key; {name} stands for the loader's name, or `val` or `test` if the loader has
            none, {stage} always for `val` or `test`.
        key_format: as in `RecMetricCollection`; MLflow refuses `@`: `"{name}_at_{k}"`.
        dataloaders: names of the loaders in their order, such as ["valid", "test"]. Not needed if the Trainer is given
            a dict of loaders. Without names, a single loader is called `val` or `test`, and several loaders get
            Lightning's `/dataloader_idx_0`.
        exclude: `Interactions` whose items are removed, in validation and test, from the candidates of the users in
            `user_ids` (ids on the host need no host sync), or a dict of these by the loader's name, `val` or `test`.
        sample_ids: for loaders whose repeated samples cannot be recognised (custom samplers, iterable data sets, a
            `collate_fn` that sorts): name of the step's entry, or a function of (output of the step, batch), that
            returns each row's index in the data set, integers [B]. Each index counts once. Do not pass user ids: a user
            may have several rows. The rankings of all rows are kept until the epoch ends. Without `sample_ids`, the
            rows of a batch must be in the sampler's order.
        log_counts: also log `num_users`, `num_skipped`, `num_unreachable` and `num_tied` of the first metric.
        accumulators: as in `RecMetricCollection`, if `metrics` are names.
        options: keyword options of the metrics, as in `RecMetricCollection`.

    After an epoch `collections` holds each loader's collection by name, for `result()`, counts and `rows`.

    Examples:
        >>> from torchrecmetrics.lightning import RecMetricsCallback
        >>> callback = RecMetricsCallback(["HR", "NDCG"], k=[5, 10], prog_bar=["HR@5"])
        >>> # Trainer(callbacks=[callback, ModelCheckpoint(monitor="val/NDCG@10", mode="max")])

    Raises:
        ValueError: before the first epoch, for a callback that monitors one of the keys with `mode="min"`, or a similar
            key that is not logged, and for keys that a logger refuses; in a step, for a mapping that does not fit.
    """

    def __init__(
        self,
        metrics: Metrics | RecMetricCollection,
        k: int | Iterable[int] | None = None,
        *,
        stages: Stage | Sequence[Stage] = ("validate", "test"),
        prog_bar: bool | str | Sequence[str] | None = None,
        outputs: Callable[[Any, Any], Mapping[str, Any]] | None = None,
        prefix: str = "{name}/",
        key_format: KeyFormat = "{name}@{k}",
        dataloaders: str | Iterable[str] | None = None,
        exclude: Interactions | Mapping[str, Interactions] | None = None,
        sample_ids: str | Callable[[Any, Any], Tensor] | None = None,
        log_counts: bool = False,
        accumulators: Sequence[Accumulator] = (),
        **options: Unpack[MetricOptions],
    ) -> None:
        super().__init__(metrics, k, stages, prefix, key_format, prog_bar, log_counts, accumulators, options)
        if outputs is not None:
            check_function("outputs", outputs, "(output of the step, batch)", 2)
        if sample_ids is not None and not isinstance(sample_ids, str):
            check_function("sample_ids", sample_ids, "(output of the step, batch), or the name of a step's entry", 2)
        for excluded in exclude.values() if isinstance(exclude, Mapping) else [exclude]:
            if excluded is not None and not isinstance(excluded, Interactions):
                raise TypeError(
                    f"exclude must be Interactions or a dict of them by the loader's name, got {describe(excluded)}"
                )
        self.outputs = outputs
        self.dataloaders: list[str] = [dataloaders] if isinstance(dataloaders, str) else list(dataloaders or ())
        self.exclude = exclude
        self.sample_ids = sample_ids
        self.collections: dict[str, RecMetricCollection] = {}
        self._loaders: list[LoaderRows] = []
        self._recent = [accumulator for accumulator in self._collection.accumulators if accumulator.is_recent]
        self._training: RecMetricCollection | None = None
        """Collection of recent training rows; None outside of training, and without a `Window`."""
        self._warnings_given: set[str] = set()

    def _names(self, stage: str) -> list[str]:
        return [*self.dataloaders, SHORT[stage]]

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
        """Add the output of the step to the loader's collection."""
        self._add("validation_step", outputs, batch, batch_idx, dataloader_idx)

    def on_test_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Add the output of the step to the loader's collection."""
        self._add("test_step", outputs, batch, batch_idx, dataloader_idx)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Compute and log the metrics."""
        self._end(trainer, pl_module)

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Compute and log the metrics."""
        self._end(trainer, pl_module)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Make an empty collection of recent rows, if the collection has a `Window`."""
        if self._recent:
            accumulators = [accumulator.empty_copy() for accumulator in self._recent]
            self._training = RecMetricCollection(self._empty(trainer).metrics, accumulators=accumulators)
            self._training.to(pl_module.device)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Add the output of the training step, and log the recent values every `log_every_n_steps` batches."""
        if self._training is None:
            return
        try:
            entries, rows_input, _ = self._read("training_step", outputs, batch)
        except (TypeError, ValueError) as error:
            options = " and ".join(accumulator.option for accumulator in self._recent)
            raise type(error)(f"{options} of RecMetricsCallback read the output of training_step: {error}") from error
        self._training.update(rows_input, weights=entries.get("weights"))
        if (batch_idx + 1) % trainer.log_every_n_steps == 0:
            endings = tuple(suffix for accumulator in self._recent for suffix in accumulator.suffixes)
            values = {f"train/{key}": value for key, value in self._training.compute().items() if key.endswith(endings)}
            pl_module.log_dict(values, on_step=True, on_epoch=False)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Drop the collection of recent rows."""
        self._training = None

    # -------------------------------------------------------------------------------------------------------- the work

    def _begin(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.collections, self._loaders, self._current = {}, [], []
        if stage not in self.stages:
            return
        loaders, names = named_loaders(trainer, stage, self.dataloaders)
        for loader, (name, postfix) in zip(loaders, names, strict=True):
            exclude = self.exclude
            if isinstance(exclude, Mapping):
                key = name if name in exclude else SHORT[stage]
                if key not in exclude:
                    raise ValueError(f"exclude has the keys {', '.join(exclude)}, but neither {name!r} nor {key!r}")
                exclude = exclude[key]
            exclude = None if exclude is None else exclude.to(pl_module.device)
            collection = self._empty(trainer).to(pl_module.device)
            rows = LoaderRows(
                name=name + postfix,
                prefix=self._prefix(stage, name),
                postfix=postfix,
                collection=collection,
                exclude=exclude,
            )
            if _leaves_out(loader) and trainer.is_global_zero:
                self._warn("DataLoader(drop_last=True) leaves out an incomplete last batch")
            if self.sample_ids is not None:
                rows.samples = SampleRows()
            elif trainer.world_size > 1:
                rows.share, doubt = share_of(loader)
                self._warn(doubt if trainer.is_global_zero else None)
            self.collections[rows.name] = collection
            self._loaders.append(rows)
        self._announce(trainer, [key + postfix for name, postfix in names for key in self._keys(stage, [name])])

    def _read(self, step: str, returned: Any, batch: Any) -> tuple[Mapping[str, Any], Input | Ranking, str]:
        """Return a step's mapping, the input in it, and the name of the function that returned it."""
        outputs = returned if self.outputs is None else self.outputs(returned, batch)
        source = step if self.outputs is None else "the function outputs="
        return outputs, read_outputs(outputs, source), source

    def _add(self, step: str, returned: Any, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
        if not self._loaders:
            return
        loader = self._loaders[dataloader_idx]
        try:
            outputs, rows_input, source = self._read(step, returned, batch)
            if loader.exclude is not None:
                rows_input = excluding(rows_input, loader.exclude.select(user_ids_of(outputs, source)).items)
            self._add_rows(loader, outputs, rows_input, self._ids(outputs, returned, batch, source), batch_idx)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{type(self).__name__}, loader {loader.name!r}, batch {batch_idx}: {error}") from error

    def _add_rows(
        self, loader: LoaderRows, outputs: Mapping[str, Any], rows_input: Input | Ranking, ids: Any, batch_idx: int
    ) -> None:
        """Add the rows of a batch to the loader's collection; rows that a sampler repeats weigh 0."""
        collection, weights = loader.collection, outputs.get("weights")
        evaluator = collection.evaluator
        columns = {name: outputs[name] for name in evaluator._readers if outputs.get(name) is not None}
        if collection.keep_rows and outputs.get("user_ids") is not None:
            users = torch.as_tensor(outputs["user_ids"]).reshape(-1).to(evaluator.device)
            columns.setdefault("row_ids" if loader.samples is None else "clusters", users)
        if isinstance(rows_input, ItemShard):
            if loader.samples is not None:
                raise ValueError("sample_ids= cannot be used with shards of items: every process has every row once")
        elif loader.samples is not None or loader.share is not None:
            if not isinstance(rows_input, Ranking):
                rows_input = rows_input.rank(evaluator._batch_needs, evaluator._ranking_options)
            if loader.samples is not None:
                loader.samples.add(ids, rows_input, weights, columns)
                return
            if loader.share is not None:
                weights, doubt = loader.share.without_repeats(weights, batch_idx, rows_input)
                self._warn(doubt)
        collection.update(rows_input, weights=weights, **columns)

    def _ids(self, outputs: Mapping[str, Any], returned: Any, batch: Any, source: str) -> Any:
        """Return the sample ids of a batch; None without `sample_ids`."""
        if self.sample_ids is None:
            return None
        if not isinstance(self.sample_ids, str):
            return self.sample_ids(returned, batch)
        if outputs.get(self.sample_ids) is None:
            raise ValueError(f"{source} must return {self.sample_ids!r} (sample_ids=); it returned {names_of(outputs)}")
        return outputs[self.sample_ids]

    def _end(self, trainer: Any, pl_module: Any) -> None:
        for loader in self._loaders:
            collection = loader.collection
            try:
                if loader.samples is not None:
                    loader.samples.add_to(collection)
                values = collection.compute()
                if collection.keep_rows:
                    _ = collection.rows  # gathers rows on all processes, so that a single one can read them later
            except ValueError as error:
                raise ValueError(f"{type(self).__name__}, loader {loader.name!r}: {error}") from error
            if not trainer.sanity_checking:
                self._log(pl_module, values, collection.leading, loader.prefix, loader.postfix)
        self._loaders = []
        if trainer.sanity_checking:
            self.collections = {}

    def _warn(self, doubt: str | None) -> None:
        if doubt and doubt not in self._warnings_given:
            self._warnings_given.add(doubt)
            warnings.warn(f"RecMetricsCallback: {doubt}.", UserWarning, stacklevel=2)


def named_loaders(trainer: Any, stage: str, dataloaders: list[str]) -> tuple[list[Any], list[tuple[str, str]]]:
    """Return the stage's loaders, and the name and the postfix of keys for each loader."""
    loop = trainer.test_loop if stage == "test" else trainer.validate_loop
    if trainer.state.fn == "fit":
        loop = trainer.fit_loop.epoch_loop.val_loop
    combined = loop._combined_loader  # trainer.val_dataloaders may hold loaders of an earlier fit
    loaders = combined.flattened
    if combined._mode != "sequential":
        return [combined], [(SHORT[stage], "")]
    names = list(map(str, combined.iterables)) if isinstance(combined.iterables, Mapping) else []
    if dataloaders and not (len(loaders) == 1 < len(dataloaders)):
        names = dataloaders
        if len(names) != len(loaders):
            raise ValueError(f"dataloaders names {', '.join(names)}, but {stage} has {len(loaders)} loaders")
    if len(names) == len(loaders):
        return loaders, [(name, "") for name in names]
    if len(loaders) == 1:
        return loaders, [(SHORT[stage], "")]
    return loaders, [(SHORT[stage], f"/dataloader_idx_{i}") for i in range(len(loaders))]


def _leaves_out(loader: Any) -> bool:
    """Return True if a loader leaves out an incomplete last batch."""
    size = getattr(loader, "batch_size", None)
    return bool(getattr(loader, "drop_last", False) and size and len(loader.sampler) % size)
