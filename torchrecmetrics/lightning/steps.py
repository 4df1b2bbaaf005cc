"""`RecMetricsCallback`: update metrics with the outputs of validation and test steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.core.accumulators import Accumulator
from torchrecmetrics.core.checks import describe
from torchrecmetrics.core.kept_rows import KeptRows
from torchrecmetrics.core.options import Input
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.core.signature import MetricOptions
from torchrecmetrics.core.windows import Decay, Window
from torchrecmetrics.data.groups import Groups
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.inputs.item_shard import ItemShard
from torchrecmetrics.inputs.sessions import Sessions
from torchrecmetrics.lightning.loaders import EntryCounts, LoaderRows, named_loaders, past_of
from torchrecmetrics.lightning.outputs import (
    excluding,
    input_of,
    names_of,
    read_outputs,
    takes_history,
    user_ids_of,
    with_history,
)
from torchrecmetrics.lightning.reporting import SHORT, Reporting, Stage, check_function
from torchrecmetrics.lightning.samples import SampleRows, left_out, share_of
from torchrecmetrics.names import KeyFormat, Metrics

if TYPE_CHECKING:
    from typing_extensions import Unpack


class RecMetricsCallback(Reporting):
    """Callback that computes metrics of the output of `validation_step` and `test_step`, and logs them after the epoch.

    A step returns a mapping with

    - `scores` and `target`, and optionally `gains`, `exclude`, `history`, as in `Scores`; or `ranks`, and optionally
      `depth`; or `ranking`, a `Ranking`; or `input`, such as `trm.Lists(item_ids, target)`. An `ItemShard` has the same
      rows on all processes: `Trainer(use_distributed_sampler=False)`;
    - or entries of sessions that go on in other batches: `scores` and `target` [E] with `indexes` [E], the session of
      each entry. They are kept until the epoch ends, as by `CollectSessions`. Sessions that are whole in a batch are
      `input`: `trm.Sessions(scores, labels, lengths=)`;
    - optionally `weights`, and columns that accumulators read, such as `clusters`;
    - `user_ids`, if `exclude=` is given here, or if metrics compare lists with the history of a `catalogue` that was
      made from interactions (whose users are matched by id with the users of `exclude`, else of `groups`). Other
      entries are ignored.

    Each loader has its own collection on the module's device, empty at the start of an epoch. Values are logged as
    `val/NDCG@10`, `test/NDCG@10` when the epoch ends, so ModelCheckpoint and EarlyStopping see them. The sanity check
    also computes values, and discards them: deferred errors stop the run there. Checkpoints hold no metric state.
    Prediction is not affected.

    Several processes give the values of a single process: samples that a `DistributedSampler` repeats are not counted.
    The only communication is one packed synchronisation (two all-reduces) per loader. Inputs are then checked as with
    `validate_args="deferred"`.

    Args:
        metrics: as for `RecMetricCollection`, or a collection (a clone is used, without prefix, postfix and windows).
        k: cut-offs, if `metrics` are names.
        stages: "validate" (in `fit` too), "test", or both.
        prog_bar: keys without prefix that the progress bar shows; None: `NDCG@10` if it is logged.
        outputs: a function of (output of the step, batch) that returns the mapping.
        prefix: put in front of every key; {name} stands for the loader's name, or `val` or `test` if the loader has
            none, {stage} always for `val` or `test`.
        key_format: as in `RecMetricCollection`; MLflow refuses `@`: `"{name}_at_{k}"`.
        dataloaders: names of the loaders in their order, such as ["valid", "test"], or a dict with these keys. Not
            needed if the Trainer is given a dict of loaders. Without names, a single loader is called `val` or `test`,
            and several loaders get Lightning's `/dataloader_idx_0`.
        exclude: `Interactions` whose items are removed from the candidates of the users in `user_ids` (ids on the host
            need no host sync), or a dict of these by the loader's name or by `val` and `test`.
        sample_ids: for loaders whose repeated samples cannot be recognised (own samplers, iterable data sets): name of
            the step's entry, or a function of (output of the step, batch), that returns each row's index in the data
            set, integers [B]. An index counts once, however often it occurs. Not user ids: a user may have several
            rows. Rows are stored until the epoch ends (24 bytes per row and metric) and gathered by every process.
            Without `sample_ids`, the rows of a batch must be in the sampler's order.
        log_counts: also log `num_users`, `num_skipped`, `num_unreachable` and `num_tied` of the first metric.
        keep_rows: keep per-row values, for `collections["val"].rows` after the epoch. Row ids are `sample_ids`, else
            the step's `row_ids` or `user_ids`; with `sample_ids`, the rows of a user are a cluster. With neither, rows
            are numbered in order, on a single process only.
        groups: groups of users whose values are logged as `val/NDCG@10/cold`: `Groups`, looked up by the step's
            `user_ids`, which are row numbers of `exclude` if it is given (ids are matched), else of the groups; or
            names, whose numbers the step returns as `groups`, integers [B], -1 = none.
        window: number of the last training rows, at least 100, or of updates ("50 updates"), whose values are logged as
            `train/NDCG@10/window` every `log_every_n_steps` batches; `training_step` then returns the same mapping,
            with its loss. See `Window`.
        half_life: number of training rows after which the weight of a row is halved, for values that are logged as
            `train/NDCG@10/decayed`. See `Decay`.
        options: keyword options of the metrics, as in `RecMetricCollection`.

    After an epoch `collections` holds each loader's collection by name, for `standard_error()` and counts.

    Examples:
        >>> from torchrecmetrics.lightning import RecMetricsCallback
        >>> callback = RecMetricsCallback(["HR", "NDCG"], k=[5, 10], prog_bar=["HR@5"])
        >>> # Trainer(callbacks=[callback, ModelCheckpoint(monitor="val/NDCG@10", mode="max")])

    Raises:
        ValueError: at `setup`, for a callback that monitors one of the keys with `mode="min"`, or a similar key that is
            not logged, and for keys that a logger refuses; in a step, for a mapping that does not fit.
    """

    _reads = "takes the output of a step"

    def __init__(
        self,
        metrics: Metrics | RecMetricCollection,
        k: int | Iterable[int] | None = None,
        *,
        stages: Stage | Sequence[Stage] = ("validate", "test"),
        prog_bar: str | Sequence[str] | None = None,
        outputs: Callable[[Any, Any], Mapping[str, Any]] | None = None,
        prefix: str = "{name}/",
        key_format: KeyFormat = "{name}@{k}",
        dataloaders: Iterable[str] | None = None,
        exclude: Interactions | Mapping[str, Interactions] | None = None,
        sample_ids: str | Callable[[Any, Any], Tensor] | None = None,
        log_counts: bool = False,
        keep_rows: bool = False,
        groups: Groups | Iterable[str] | None = None,
        window: int | str | None = None,
        half_life: float | None = None,
        **options: Unpack[MetricOptions],
    ) -> None:
        super().__init__(metrics, k, stages, prefix, key_format, prog_bar, log_counts, keep_rows, groups, options)
        self.groups = groups
        if outputs is not None:
            check_function("outputs", outputs, "(output of the step, batch)", 2)
        if sample_ids is not None and not isinstance(sample_ids, str):
            check_function("sample_ids", sample_ids, "(output of the step, batch), or the name of a step's entry", 2)
        if isinstance(dataloaders, Mapping) and any(isinstance(names, (list, tuple)) for names in dataloaders.values()):
            raise ValueError(f"dataloaders holds the loaders' names themselves, not lists of them, got {dataloaders}")
        self.outputs = outputs
        self.sample_ids = sample_ids
        self.dataloaders: list[str] = (
            [dataloaders] if isinstance(dataloaders, str) else list(map(str, dataloaders or ()))
        )
        if len(set(self.dataloaders)) < len(self.dataloaders):
            raise ValueError(f"dataloaders holds a name twice: {self.dataloaders}")
        for history in exclude.values() if isinstance(exclude, Mapping) else [exclude]:
            if history is not None and not isinstance(history, Interactions):
                raise TypeError(
                    f"exclude must be Interactions or a dict of them by the loader's name, got {describe(history)}"
                )
        self.exclude = exclude
        self.window = window
        self.half_life = half_life
        recent = _recent(window, half_life)
        self._recent: RecMetricCollection | None = None
        """Empty collection of recent training rows; None without `window` and `half_life`."""
        if recent:
            self._recent = RecMetricCollection.fresh(self._metrics, None, {}, accumulators=recent)
        self._training: RecMetricCollection | None = None
        self.collections: dict[str, RecMetricCollection] = {}
        self._loaders: list[LoaderRows] = []
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
        self._add("validation_step", pl_module, outputs, batch, batch_idx, dataloader_idx)

    def on_test_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Add the output of the step to the loader's collection."""
        self._add("test_step", pl_module, outputs, batch, batch_idx, dataloader_idx)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Compute and log the metrics, and reset their states."""
        self._end(trainer, pl_module)

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Compute and log the metrics, and reset their states."""
        self._end(trainer, pl_module)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Make an empty collection of recent rows, if `window` or `half_life` is set."""
        if self._recent is not None:
            self._training = self._empty(trainer, self._recent).to(pl_module.device)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Add the output of the training step, and log the recent values every `log_every_n_steps` batches."""
        if self._training is None:
            return
        if self.outputs is not None:
            outputs = self.outputs(outputs, batch)
        arguments = read_outputs(outputs, "training_step", pl_module.device)
        if "indexes" in arguments:
            raise ValueError(
                "window= and half_life= need rows in order, which entries of sessions lack: return 'input', "
                "trm.Sessions(scores, labels, lengths=)"
            )
        columns = {name: outputs.get(name) for name in self._training.evaluator.columns}
        self._training.update(input_of(arguments), weights=arguments.get("weights"), **columns)
        if (batch_idx + 1) % trainer.log_every_n_steps == 0:
            endings = tuple(suffix for acc in _recent(self.window, self.half_life) for suffix in acc.suffixes)
            values = {f"train/{key}": value for key, value in self._training.compute().items() if key.endswith(endings)}
            pl_module.log_dict(values, on_step=True, on_epoch=False)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Drop the collection of recent rows."""
        self._training = None

    # -------------------------------------------------------------------------------------------------------- the work

    def _begin(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.collections, self._loaders, self._current = {}, [], []
        self._share_errors = trainer.world_size > 1
        if stage not in self.stages:
            return
        loaders, names = named_loaders(trainer, stage, self.dataloaders)
        for loader, (name, postfix) in zip(loaders, names, strict=True):
            accumulators = [EntryCounts(), *([KeptRows()] if self.keep_rows else [])]
            metrics = RecMetricCollection.fresh(self._metrics, None, {}, accumulators=accumulators)
            collection = self._empty(trainer, metrics).to(pl_module.device)
            if self.sample_ids is not None:
                collection.evaluator.set_sync_on_compute(False)  # SampleRows gives all rows to every process
            exclude = self.exclude
            if isinstance(exclude, Mapping):
                key = name if name in exclude else SHORT[stage]
                if key not in exclude:
                    raise ValueError(f"exclude holds {', '.join(exclude)}, neither {name!r} nor {key!r}")
                exclude = exclude[key]
            replicas = trainer.distributed_sampler_kwargs or {"num_replicas": trainer.world_size, "rank": 0}
            self._warn(left_out(loader, replicas["num_replicas"], replicas["rank"]))
            samples = share = None
            if self.sample_ids is not None:
                samples = SampleRows(collection)
            elif trainer.world_size > 1:
                share, doubt = share_of(loader)
                if trainer.is_global_zero:
                    self._warn(doubt)
            past = past_of(collection, exclude, self.groups)
            past = None if past is None else past.to(pl_module.device)
            exclude = None if exclude is None else exclude.to(pl_module.device)
            self.collections[name + postfix] = collection
            prefix = self._prefix(stage, name)
            codes = None
            if isinstance(self.groups, Groups):  # users are row numbers of `exclude`, if it is given
                codes = self.groups.codes if exclude is None else self.groups.of(exclude)
            self._loaders.append(
                LoaderRows(name + postfix, prefix, postfix, collection, exclude, past, codes, samples, share)
            )
        keys = [key + postfix for name, postfix in names for key in self._keys(stage, [name])]
        self._announce(trainer, keys)

    def _add(self, step: str, pl_module: Any, returned: Any, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
        if not self._loaders:
            return
        loader = self._loaders[dataloader_idx]
        raises_on_all = False
        try:
            outputs = returned if self.outputs is None else self.outputs(returned, batch)
            source = step if self.outputs is None else "the function outputs="
            arguments = read_outputs(outputs, source, pl_module.device)
            if "indexes" in arguments:
                self._add_entries(loader, arguments, outputs, source, batch_idx)
                return
            rows_input = input_of(arguments)
            raises_on_all = isinstance(rows_input, ItemShard)
            past = loader.past if takes_history(rows_input) else None
            readers = {"exclude=": loader.exclude, "metrics that read history": past, "groups=": loader.codes}
            reader = next((name for name, needed in readers.items() if needed is not None), None)
            # moved to the host once for all readers, since the move from a GPU waits for the device
            users = None if reader is None else user_ids_of(outputs, rows_input, source, reader)
            if loader.exclude is not None and users is not None:
                rows_input = excluding(rows_input, loader.exclude.select(users).items)
            if past is not None and users is not None:
                rows_input = with_history(rows_input, past.select(users).items)
            sample_ids = None if self.sample_ids is None else self._ids(outputs, returned, batch, source)
            columns = self._columns(loader, rows_input, outputs, users, source)
            self._add_rows(loader, rows_input, arguments.get("weights"), columns, sample_ids, batch_idx)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            named_error = kind(f"{type(self).__name__}, loader {loader.name!r}, batch {batch_idx}: {error}")
            if not self._share_errors or raises_on_all:
                raise named_error from error
            # raised alone, the error would leave the other processes waiting: all raise when the epoch ends
            loader.error = loader.error or named_error

    def _columns(
        self,
        loader: LoaderRows,
        rows_input: Input | Ranking,
        outputs: Mapping[str, Any],
        users: Tensor | None,
        source: str,
    ) -> dict[str, Any]:
        """Return the columns of the rows that accumulators read, by name."""
        device = loader.collection.evaluator.device
        columns = self._named_columns(loader, outputs, users, source, device)
        has_ids = isinstance(rows_input, Sessions) and rows_input.indexes is not None
        if loader.collection.keep_rows and not has_ids:
            if outputs.get("user_ids") is not None:
                ids = torch.as_tensor(outputs["user_ids"]).reshape(-1).to(device)
                columns.setdefault("row_ids" if loader.samples is None else "clusters", ids)
            if self._share_errors and loader.samples is None and "row_ids" not in columns:
                raise ValueError(
                    "keep_rows=True over several processes tells rows apart by ids: pass sample_ids=, the name of the "
                    f"step's entry that numbers its samples, or let {source} return 'user_ids', one a row; it returned "
                    f"{names_of(outputs)}"
                )
        return columns

    def _add_rows(
        self,
        loader: LoaderRows,
        rows_input: Input | Ranking,
        weights: Tensor | None,
        columns: dict[str, Any],
        sample_ids: Any,
        batch_idx: int,
    ) -> None:
        """Add the rows of a batch to the loader's collection, without those that a sampler repeats."""
        collection, doubt = loader.collection, None
        if isinstance(rows_input, ItemShard):
            if loader.samples is not None:
                raise ValueError("sample_ids= is not for shards of items: every process has every row once")
            collection.update(rows_input, weights=weights, **columns)
            return
        by_entry = False
        if isinstance(rows_input, Sessions) and rows_input.indexes is not None:
            by_entry = True  # samples are entries
            if loader.samples is not None:
                raise ValueError("sample_ids= is not for entries of sessions: pass lengths= to Sessions")
            rows_input, weights, columns, doubt = loader.first_entries(rows_input, weights, columns, batch_idx)
        evaluator = collection.evaluator
        ranking = rows_input
        if not isinstance(ranking, Ranking):
            ranking = ranking.rank(evaluator.batch_needs, evaluator.rules)
        if loader.samples is not None:
            loader.samples.add(sample_ids, ranking, weights, columns)
            return
        if not by_entry:
            weights, doubt = loader.without_repeats(weights, batch_idx, ranking)
        self._warn(doubt)
        collection.update(ranking, weights=weights, **columns)

    def _add_entries(
        self,
        loader: LoaderRows,
        arguments: Mapping[str, Any],
        outputs: Mapping[str, Any],
        source: str,
        batch_idx: int,
    ) -> None:
        """Keep entries of sessions, one per (session, candidate), without those that a sampler repeats."""
        readers = {"sample_ids=": loader.samples, "exclude=": loader.exclude, "groups=": loader.codes}
        for reader, needed in readers.items():
            if needed is not None:
                raise ValueError(f"{reader} is not for entries of sessions, which hold the candidates alone")
        for name in ("gains", "exclude", "history", "depth"):
            if name in arguments:
                raise ValueError(f"{name} was given beside entries of sessions, whose labels are gains")
        columns = self._named_columns(loader, outputs, None, source, arguments["scores"].device)
        entries = {"scores": arguments["scores"], "labels": arguments["target"], "indexes": arguments["indexes"]}
        if "weights" in arguments:
            entries["weights"] = arguments["weights"]
        self._warn(loader.add_entries({**entries, **columns}, batch_idx))

    def _named_columns(
        self, loader: LoaderRows, outputs: Mapping[str, Any], users: Tensor | None, source: str, device: torch.device
    ) -> dict[str, Any]:
        """Return the step's entries that accumulators read, and the groups of the rows."""
        columns = {name: outputs[name] for name in loader.columns if outputs.get(name) is not None}
        if self.groups is not None:
            columns["groups"] = self._codes(loader, outputs, users, source, device)
        return columns

    def _codes(
        self, loader: LoaderRows, outputs: Mapping[str, Any], users: Tensor | None, source: str, device: torch.device
    ) -> Tensor:
        """Return the group of each row, as the step's users or the step itself tell it."""
        if loader.codes is not None and users is not None:
            known = len(loader.codes)
            if len(users) and not 0 <= int(users.min()) <= int(users.max()) < known:
                raise ValueError(f"'user_ids' hold {int(users.min())}..{int(users.max())}, groups= has {known} users")
            return loader.codes[users].to(device)
        codes: Tensor | None = outputs.get("groups")
        if codes is None:
            raise ValueError(f"{source} must return 'groups' too, for groups=, got {names_of(outputs)}")
        return codes

    def _ids(self, outputs: Mapping[str, Any], returned: Any, batch: Any, source: str) -> Tensor:
        if not isinstance(self.sample_ids, str):
            return self.sample_ids(returned, batch)  # type: ignore[misc]  # not None: there are SampleRows
        ids: Tensor | None = outputs.get(self.sample_ids)
        if ids is None:
            raise ValueError(f"{source} must return {self.sample_ids!r} (sample_ids=); it returned {names_of(outputs)}")
        return ids

    def _end(self, trainer: Any, pl_module: Any) -> None:
        self._check_module(trainer)
        for loader in self._loaders:
            if loader.error is not None:
                loader.add_violation("step", pl_module.device)
            try:
                values = loader.compute()
            except ValueError as error:
                where = f"{type(self).__name__}, loader {loader.name!r}"
                raise loader.error or ValueError(f"{where}: {error}") from error
            self.collections[loader.name] = loader.collection
            if not trainer.sanity_checking:
                self._log(pl_module, values, loader.collection.leading, loader.prefix, loader.postfix)
            loader.collection.reset()
        self._loaders = []
        if trainer.sanity_checking:
            self.collections = {}

    def _warn(self, doubt: str | None) -> None:
        if doubt and doubt not in self._warnings_given:
            self._warnings_given.add(doubt)
            warnings.warn(f"RecMetricsCallback: {doubt}.", UserWarning, stacklevel=2)


def _recent(window: int | str | None, half_life: float | None) -> list[Accumulator]:
    """Return the accumulators of recent rows that the callback's options ask for."""
    accumulators: list[Accumulator] = []
    if window is not None:
        number, _, unit = str(window).partition(" ")
        per_update = isinstance(window, str)
        if per_update and (unit not in ("update", "updates") or not number.isdecimal()):
            raise ValueError(f"window must be a number of rows, or such as '50 updates', got {window!r}")
        try:
            accumulators.append(Window(updates=int(number)) if per_update else Window(window))  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise type(error)(f"window={window!r}: {error}") from error
    if half_life is not None:
        accumulators.append(Decay(half_life))
    return accumulators
