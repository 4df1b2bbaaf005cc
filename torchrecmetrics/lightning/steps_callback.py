"""`RecMetricsCallback`: update metrics with the outputs of validation and test steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset
from torchmetrics.utilities.distributed import gather_all_tensors

from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.collection.kept_rows import check_keys
from torchrecmetrics.core.arrays import float_dtype
from torchrecmetrics.core.checks import describe, in_words
from torchrecmetrics.core.distributed import is_distributed
from torchrecmetrics.core.options import Input
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.inputs.batch_input import BatchInput
from torchrecmetrics.inputs.scores import Scores
from torchrecmetrics.lightning.reporting import SHORT, Reporting, Stage, check_function
from torchrecmetrics.metrics.accumulator import Accumulator
from torchrecmetrics.metrics.description import MetricOptions
from torchrecmetrics.metrics.names import KeyFormat, Metrics

if TYPE_CHECKING:
    from typing_extensions import Unpack


_INSTEAD = {
    "targets": "'target'",
    "excluded": "'exclude'",
    "gain": "'gains'",
    "weight": "'weights'",
    "ranks": "'input', trm.Ranks(ranks, depth)",
    "ranking": "'input', which may be a Ranking",
    "candidates": "'input', trm.Candidates(scores, target, items=items)",
    "lengths": "'input', trm.Sessions(scores, labels, lengths=)",
    "indexes": "'input', trm.Sessions(scores, labels, indexes), or let the module hold trm.CollectSessions",
    "shard": "'input', trm.ItemShard(scores, target, offset=, num_items=)",
}
"""Entries that are not read, and the entry that a step returns instead."""


def read_outputs(outputs: Any, source: str) -> Input | Ranking:
    """Return the input in a step's mapping, or one made from its scores and target.

    Raises:
        TypeError: for anything but a mapping, and if "input" is not an input.
        ValueError: for a mapping without an input, and for entries that no input accepts.
    """
    wanted = f"{source} must return a mapping with 'scores' and 'target', or with 'input'"
    cure = "outputs= takes a function of (output of the step, batch) that returns one"
    if not isinstance(outputs, Mapping):
        raise TypeError(f"{wanted}, got {describe(outputs)}; {cure}")
    present = {name: value for name, value in outputs.items() if value is not None}
    if "input" in present:
        for name in ("scores", "gains", "exclude", "history"):
            if name in present:
                raise ValueError(f"{source} returned {name!r} together with 'input': pass it to the input")
        rows_input: Input | Ranking = present["input"]
        if not isinstance(rows_input, Ranking) and not hasattr(rows_input, "rank"):
            raise TypeError(
                f"'input' must be an input, such as trm.Lists(item_ids, target), got {describe(rows_input)}"
            )
        return rows_input
    for name, instead in _INSTEAD.items():
        if name in present:
            raise ValueError(f"{source} returned {name!r}: return {instead}")
    if not {"scores", "target"} <= present.keys():
        raise ValueError(f"{wanted}, got {names_of(outputs)}; {cure}")
    return Scores(present["scores"], *(present.get(name) for name in ("target", "gains", "exclude", "history")))


def user_ids_of(outputs: Mapping[str, Any], source: str) -> Tensor:
    """Return the user ids of a batch, [B] on the host."""
    if outputs.get("user_ids") is None:
        raise ValueError(f"{source} must also return 'user_ids' for exclude=, got {names_of(outputs)}")
    return torch.as_tensor(outputs["user_ids"]).cpu().reshape(-1)


def names_of(outputs: Mapping[str, Any]) -> str:
    """Return the names of a mapping's entries, for a message."""
    return ", ".join(repr(name) for name in outputs) or "an empty mapping"


_MAY_REPEAT = (
    ", so some may count twice. Pass sample_ids=, the index of each row in the data set, to count every sample once"
)


@dataclass
class Share:
    """Part of a data set that this process loads; its last samples may be repeats that make all parts equally long."""

    batch_size: int | None
    """None = the loader's samples are batches already."""
    num_samples: int
    num_distinct: int
    """Number of samples before the repeats."""

    def num_kept(self, batch_idx: int, rows: int) -> int | None:
        """Return the number of rows of a batch that count; None if rows are not samples."""
        if self.batch_size is None:
            return rows if batch_idx < self.num_distinct else 0
        start = batch_idx * self.batch_size
        size = min(self.batch_size, self.num_samples - start)
        num_kept = min(max(self.num_distinct - start, 0), size)
        if num_kept in (0, size):
            return rows if num_kept else 0
        return num_kept if rows == size else None

    def without_repeats(
        self, weights: Tensor | None, batch_idx: int, ranking: Ranking
    ) -> tuple[Tensor | None, str | None]:
        """Return weights that are 0 for repeated samples, and a message if repeats cannot be known."""
        rows = len(ranking)
        num_kept = self.num_kept(batch_idx, rows)
        if num_kept is None:
            fault = f"a batch with repeated samples has {in_words(rows)}, not one per sample"
            if ranking.rows.of_entries is not None:  # sample_ids would have to be those of sessions
                cure = "make each sample one session, or pass sample_ids=, one per session in ascending order of ids"
                return weights, f"{fault}, so some may count twice: for flat rows, {cure}"
            return weights, f"{fault}{_MAY_REPEAT}"
        if num_kept == rows:
            return weights, None
        return _weights_of(ranking, torch.arange(rows, device=ranking.ranks.device) < num_kept, weights), None


def share_of(loader: Any) -> tuple[Share | None, str | None]:
    """Return the `Share` of a loader, None without repeated samples, and a warning if that may be wrong."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        source = "an iterable data set" if isinstance(loader, DataLoader) else f"a {type(loader).__name__}"
        return None, f"it is unknown which samples of {source} each process gets{_MAY_REPEAT}"
    batches: Any = loader.batch_sampler
    sampler: Any = batches.sampler if type(batches) is BatchSampler else loader.sampler
    kind: Any = type(sampler)
    by_lightning = kind.__module__.partition(".")[0] in ("lightning", "lightning_fabric", "pytorch_lightning")
    if not isinstance(sampler, DistributedSampler) or not (
        kind.__iter__ is DistributedSampler.__iter__ or by_lightning
    ):
        return None, f"it is unknown which samples {kind.__name__} gives to each process{_MAY_REPEAT}"
    doubt = None
    if by_lightning:
        inner = type(getattr(sampler.dataset, "_sampler", None)).__name__
        doubt = f"processes may draw different samples from {inner}, unless all use the same seed{_MAY_REPEAT}"
    total = len(sampler.dataset)  # type: ignore[arg-type]
    if total % sampler.num_replicas == 0 or sampler.drop_last:
        return None, doubt
    if (batches is not None and type(batches) is not BatchSampler) or not getattr(loader, "in_order", True):
        return None, f"the order of the batches of samples is unknown{_MAY_REPEAT}"
    # sample j of process r is number j * processes + r of the epoch; numbers from `total` on are repeats
    num_distinct = len(range(sampler.rank, total, sampler.num_replicas))
    return Share(None if batches is None else batches.batch_size, len(sampler), num_distinct), doubt


@dataclass
class SampleRows:
    """Batches of rows with the ids of their samples, which `add_to` adds to a collection, each sample once."""

    ids: list[Tensor] = field(default_factory=list)
    batches: list[tuple[Ranking, Tensor | None, Mapping[str, Any]]] = field(default_factory=list)

    def add(self, ids: Any, ranking: Ranking, weights: Tensor | None, columns: Mapping[str, Any]) -> None:
        """Keep a batch; `ids`, integers [B], are the samples' indices in the data set."""
        self.ids.append(check_keys("sample_ids", ids, len(ranking)).to(ranking.ranks.device))
        self.batches.append((ranking, weights, columns))

    def add_to(self, collection: RecMetricCollection) -> None:
        """Add the rows to the collection, with weight 0 for samples that an earlier row or process has."""
        evaluator = collection.evaluator
        counts = _first_of_each(torch.cat([torch.zeros(0, dtype=torch.int64, device=evaluator.device), *self.ids]))
        counts_of_batches = torch.split(counts, [len(batch_ids) for batch_ids in self.ids])
        for batch_ids, is_first, batch in zip(self.ids, counts_of_batches, self.batches, strict=True):
            ranking, weights, columns = batch
            row_ids = {"row_ids": batch_ids} if "row_ids" in _columns_of(collection) else {}
            collection.update(ranking, weights=_weights_of(ranking, is_first, weights), **{**columns, **row_ids})


def _columns_of(collection: RecMetricCollection) -> list[str]:
    """Return the names of the columns that accumulators of a collection read."""
    return [name for accumulator in collection.accumulators for name in accumulator.columns]


def _first_of_each(ids: Tensor) -> Tensor:
    """Return a mask of this process's ids that no earlier row or process has, bool [n].

    Raises:
        ValueError: for a negative id.
    """
    start, all_ids = 0, ids
    if is_distributed():
        of_processes = gather_all_tensors(ids)
        all_ids = torch.cat(of_processes)
        start = sum(map(len, of_processes[: torch.distributed.get_rank()]))
    if len(all_ids) and int(all_ids.min()) < 0:
        raise ValueError(
            f"sample_ids hold {int(all_ids.min())}, which is not an index in the data set: number the samples from 0, "
            "and return rows of samples only"
        )
    in_order, order = all_ids.sort(stable=True)
    is_first = torch.ones_like(all_ids, dtype=torch.bool)
    is_first[order[1:]] = in_order[1:] != in_order[:-1]
    return is_first[start : start + len(ids)]


def _weights_of(ranking: Ranking, counts: Tensor, weights: Tensor | None) -> Tensor:
    """Return the weights of rows, or of session entries, with 0 for rows that do not count."""
    if ranking.rows.of_entries is not None:
        counts = counts[ranking.rows.of_entries]
    return counts.to(float_dtype(counts.device)) if weights is None else weights.where(counts, 0)


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
      `trm.Lists(item_ids, target)`, `trm.Ranks(ranks, depth)` or a `Ranking`. An `ItemShard` has the same rows on all
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
        prog_bar: keys that the progress bar shows, with or without prefix; True: all; None: `NDCG@10` if it is logged.
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
            may have several rows. The rankings of all rows are kept until the epoch ends; `rows` are in the order of
            the steps. Without `sample_ids`, the rows of a batch must be in the sampler's order.
        log_counts: also log `num_users`, `num_skipped`, `num_unreachable` and `num_tied` of the first metric.
        accumulators: as in `RecMetricCollection`, if `metrics` are names.
        options: keyword options of the metrics, as in `RecMetricCollection`.

    After an epoch `collections` holds each loader's collection by name, for `result()`, counts and `rows`; those of the
    last validation stay beside those of a test.

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
        self._names_of_stage: dict[str, list[str]] = {}
        """Names of the `collections` of the last run of each stage."""
        self._loaders: list[LoaderRows] = []
        self._recent = self._collection.windows
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
        self._loaders, self._current = [], []
        if stage not in self.stages:
            return
        self._forget(stage)
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
            self._names_of_stage.setdefault(stage, []).append(rows.name)
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
                if not isinstance(rows_input, BatchInput):
                    type_name = type(rows_input).__name__
                    raise ValueError(f"exclude= cannot change {type_name}: exclude the items in the step")
                rows_input = rows_input.excluding(loader.exclude.select(user_ids_of(outputs, source)).items)
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
        columns = {name: outputs[name] for name in _columns_of(collection) if outputs.get(name) is not None}
        if collection.keep_rows and outputs.get("user_ids") is not None:
            users = torch.as_tensor(outputs["user_ids"]).reshape(-1).to(evaluator.device)
            columns.setdefault("row_ids" if loader.samples is None else "clusters", users)
        if hasattr(rows_input, "scope"):  # all processes have these rows
            if loader.samples is not None:
                raise ValueError("sample_ids= cannot be used with shards of items: every process has every row once")
        elif loader.samples is not None or loader.share is not None:
            if not isinstance(rows_input, Ranking):
                rows_input = rows_input.rank(evaluator.formulas.needs, evaluator.ranking_options)
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
            self._forget("validate")

    def _forget(self, stage: str) -> None:
        """Drop the collections of the last run of a stage."""
        for name in self._names_of_stage.pop(stage, ()):
            self.collections.pop(name, None)

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
