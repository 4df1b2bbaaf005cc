"""`RecMetricsCallback`: update metrics with the outputs of validation and test steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchrecmetrics.base.options import MetricOptions
from torchrecmetrics.checks import VIOLATIONS, Violations, describe, in_words
from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.data.groups import Groups
from torchrecmetrics.data.interactions import Batch, Interactions
from torchrecmetrics.data.jagged import Jagged, Spans
from torchrecmetrics.evaluation.models import check_item_ids
from torchrecmetrics.lightning.reporting import SHORT, Reporting, Stage, check_function
from torchrecmetrics.lightning.samples import MAY_REPEAT, SampleRows, Share, left_out, share_of
from torchrecmetrics.ranking import Ranking
from torchrecmetrics.ranking.update_args import UpdateArgs
from torchrecmetrics.registry import KeyFormat, Metrics

if TYPE_CHECKING:
    from typing_extensions import Unpack

_FORMS = ("scores", "ranks", "ranking")
_MISSPELT = {"targets": "target", "excluded": "exclude", "excludes": "exclude", "gain": "gains", "weight": "weights"}


class RecMetricsCallback(Reporting):
    """Callback that computes metrics of the output of `validation_step` and `test_step`, and logs them after the epoch.

    A step returns a mapping with

    - `scores` and `target`, and optionally `gains`, `exclude`, `weights`; or `ranks`, and optionally `depth`,
      `weights`; or `ranking`, and optionally `weights`: arguments of `RecMetricCollection.update`. Flat rows of
      sessions are `scores` and `target` [E] with `indexes` or `lengths`, and optionally `complete`. Scores of the items
      of this process come with `shard`, an `ItemShard`; the rows are then the same on all processes,
      `Trainer(use_distributed_sampler=False)`;
    - `user_ids`, if `exclude=` is given here, or if metrics compare lists with the history of a `catalogue` that was
      made from interactions (whose users are matched by id with the users of `exclude`, else of `groups`); or `history`
      itself. Other entries are ignored.

    Each loader has its own collection on the module's device, empty at the start of an epoch. Values are logged as
    `val/NDCG@10`, `test/NDCG@10` when the epoch ends, so ModelCheckpoint and EarlyStopping see them. The sanity check
    also computes values, and discards them: deferred errors stop the run there. Checkpoints hold no metric state.
    Prediction is not affected.

    Several processes give the values of a single process: samples that a `DistributedSampler` repeats are not counted.
    The only communication is one packed synchronisation (two all-reduces) per loader. Inputs are then checked as with
    `validate_args="deferred"`.

    Args:
        metrics: as for `RecMetricCollection`, or a collection (a clone is used, without prefix and postfix).
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
            the step's `user_ids`; with both, the rows of a user are a cluster. With neither, rows are numbered in
            order, on a single process only.
        groups: groups of users whose values are logged as `val/NDCG@10/cold`: `Groups`, looked up by the step's
            `user_ids`, which are row numbers of `exclude` if it is given (ids are matched), else of the groups; or
            names, whose numbers the step returns as `groups`, integers [B], -1 = none.
        window: values of the last training rows, logged as `train/NDCG@10/window` every `log_every_n_steps` batches;
            `training_step` then returns the same mapping, with its loss. As in `RecMetricCollection`, like `half_life`.
        half_life: in place of `window`: values with decaying row weights, logged as `train/NDCG@10/decayed`.
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
        if window is not None or half_life is not None:
            deepcopy(self._metrics).keep_window(window, half_life)  # raises for wrong arguments now
        self._training: RecMetricCollection | None = None
        self.collections: dict[str, RecMetricCollection] = {}
        self._loaders: list[_Loader] = []
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
        if self.window is not None or self.half_life is not None:
            self._training = self._empty(trainer).to(pl_module.device)
            self._training.keep_window(self.window, self.half_life)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Add the output of the training step, and log the recent values every `log_every_n_steps` batches."""
        if self._training is None:
            return
        if self.outputs is not None:
            outputs = self.outputs(outputs, batch)
        given = _read(outputs, "training_step", pl_module.device)
        groups = None if self.groups is None else outputs.get("groups")
        self._training.update(**given, groups=groups)
        if (batch_idx + 1) % trainer.log_every_n_steps == 0:
            recent = "/window" if self.half_life is None else "/decayed"
            values = {f"train/{key}": value for key, value in self._training.compute().items() if key.endswith(recent)}
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
        loaders, names = self._name_loaders(trainer, stage)
        for loader, (name, postfix) in zip(loaders, names, strict=True):
            collection = self._empty(trainer).to(pl_module.device)
            for metric in collection.members if self.sample_ids is not None else ():
                metric.sync_on_compute = False  # SampleRows gives all rows to every process
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
            past = self._past(collection, exclude)
            past = None if past is None else past.to(pl_module.device)
            exclude = None if exclude is None else exclude.to(pl_module.device)
            self.collections[name + postfix] = collection
            prefix = self._prefix(stage, name)
            codes = None
            if isinstance(self.groups, Groups):  # users are row numbers of `exclude`, if it is given
                codes = self.groups.codes if exclude is None else self.groups.of(exclude)
            self._loaders.append(
                _Loader(name + postfix, prefix, postfix, collection, exclude, past, codes, samples, share)
            )
        keys = [key + postfix for name, postfix in names for key in self._keys(stage, [name])]
        self._announce(trainer, keys)

    def _past(self, collection: RecMetricCollection, exclude: Interactions | None) -> Interactions | None:
        """Return the catalogue's interactions with the row numbers of `user_ids`; None if no metric reads them."""
        catalogue = collection.catalogue
        if catalogue is None:
            return None
        if exclude is not None and exclude.item_ids is not None:  # columns of the scores are items of both
            check_item_ids(catalogue, exclude, "exclude")
        past = catalogue.interactions
        if past is None or not collection.needs.history:
            return None
        if exclude is not None:
            return past.numbered_as(exclude, "the catalogue's train", "exclude")
        if not isinstance(self.groups, Groups):
            return past
        ids = self.groups.user_ids
        if (ids is None) != (past.user_ids is None):
            has, lacks = ("groups=", "the catalogue's train") if past.user_ids is None else ("it", "groups=")
            raise ValueError(
                f"metrics read the catalogue's train, and {has} has user_ids, {lacks} none: row 5 could mean two "
                "users. If their rows are the same, say so: with_ids(user_ids=...), Groups(..., user_ids=...)"
            )
        return past if ids is None or past.user_ids == ids else past.recode(user_ids=ids)

    def _name_loaders(self, trainer: Any, stage: str) -> tuple[list[Any], list[tuple[str, str]]]:
        """Return the stage's loaders, and the name and the postfix of keys for each loader."""
        loop = trainer.test_loop if stage == "test" else trainer.validate_loop
        if trainer.state.fn == "fit":
            loop = trainer.fit_loop.epoch_loop.val_loop
        combined = loop._combined_loader  # trainer.val_dataloaders may hold loaders of an earlier fit
        loaders = combined.flattened
        if combined._mode != "sequential":
            return [combined], [(SHORT[stage], "")]
        names = list(map(str, combined.iterables)) if isinstance(combined.iterables, Mapping) else []
        if self.dataloaders and not (len(loaders) == 1 < len(self.dataloaders)):
            names = self.dataloaders
            if len(names) != len(loaders):
                raise ValueError(f"dataloaders names {', '.join(names)}, but {stage} has {len(loaders)} loaders")
        if len(names) == len(loaders):
            return loaders, [(name, "") for name in names]
        if len(loaders) == 1:
            return loaders, [(SHORT[stage], "")]
        return loaders, [(SHORT[stage], f"/dataloader_idx_{i}") for i in range(len(loaders))]

    def _add(self, step: str, pl_module: Any, returned: Any, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
        if not self._loaders:
            return
        loader = self._loaders[dataloader_idx]
        given: dict[str, Any] = {}
        try:
            outputs = returned if self.outputs is None else self.outputs(returned, batch)
            source = step if self.outputs is None else "the function outputs="
            given = _read(outputs, source, pl_module.device)
            past = None if "history" in given or "ranks" in given else loader.past
            readers = {"exclude=": loader.exclude, "metrics that read history": past, "groups=": loader.codes}
            reader = next((name for name, needed in readers.items() if needed is not None), None)
            # moved to the host once for all readers, since the move from a GPU waits for the device
            rows = None if reader is None else _user_ids(outputs, given, source, reader)
            if loader.exclude is not None and rows is not None:
                given["exclude"] = (given.get("exclude", ()), loader.exclude.select(rows).items)
            if past is not None and rows is not None:
                given["history"] = past.select(rows)
            if loader.samples is None and loader.collection.keep_rows and outputs.get("user_ids") is None:
                self._check_row_ids(outputs, source)
            weights = given.pop("weights", None)
            if given.keys() & {"indexes", "lengths"}:
                self._add_flat(loader, given, weights, outputs, batch_idx, reader)
                return
            if "shard" in given:
                if loader.samples is not None:
                    raise ValueError("sample_ids= is not for shards of items: every process has every row once")
                codes = self._codes(loader, outputs, rows, source, pl_module.device)
                loader.collection.update(**given, weights=weights, groups=codes)
                return
            ranking = loader.collection.rank(UpdateArgs(**given))
            users = None
            if loader.collection.keep_rows and outputs.get("user_ids") is not None:
                users = torch.as_tensor(outputs["user_ids"]).reshape(-1)
            groups = self._codes(loader, outputs, rows, source, ranking.ranks.device)
            if loader.samples is None:
                weights, doubt = loader.without_repeats(weights, batch_idx, ranking)
                self._warn(doubt)
                loader.collection.update(ranking, weights=weights, groups=groups, row_ids=users)
            else:
                loader.samples.add(self._ids(outputs, returned, batch, source), ranking, weights, users, groups)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            told = kind(f"{type(self).__name__}, loader {loader.name!r}, batch {batch_idx}: {error}")
            if not self._share_errors or "shard" in given:  # with shards, all processes raise together
                raise told from error
            # raised alone, the error would leave the other processes waiting: all raise when the epoch ends
            loader.error = loader.error or told

    def _add_flat(
        self,
        loader: _Loader,
        given: dict[str, Any],
        weights: Tensor | None,
        outputs: Mapping[str, Any],
        batch_idx: int,
        reader: str | None,
    ) -> None:
        """Add flat rows, an entry per (session, candidate), without the rows that a sampler repeats."""
        if loader.samples is not None:
            reader = "sample_ids="
        if reader is not None:
            raise ValueError(f"{reader} is not for flat rows, which hold the candidates alone")
        columns = {**given, "weights": weights, "groups": outputs.get("groups") if self.groups is not None else None}
        columns = {name: column for name, column in columns.items() if column is not None}
        lengths = given.get("lengths")
        samples = len(given["scores"]) if lengths is None else len(lengths)
        kept = samples if loader.share is None else loader.share.kept(batch_idx, samples)
        if kept is None:
            self._warn(f"a batch with repeated samples has {samples} rows, which are not its samples{MAY_REPEAT}")
        elif kept < samples:
            num_rows = kept if lengths is None else int(lengths[:kept].sum())
            per_sample = ("lengths", "weights", "groups") if lengths is not None else ()
            columns = {name: column[: kept if name in per_sample else num_rows] for name, column in columns.items()}
        loader.collection.update(**columns, complete=outputs.get("complete", False))

    def _check_row_ids(self, outputs: Mapping[str, Any], source: str) -> None:
        """Refuse rows without ids if several processes keep rows."""
        if self._share_errors:
            raise ValueError(
                "keep_rows=True over several processes tells rows apart by ids: pass sample_ids=, the name of the "
                f"step's entry that numbers its samples, or let {source} return 'user_ids', one a row; it returned "
                f"{_keys_of(outputs)}"
            )

    def _codes(
        self, loader: _Loader, outputs: Mapping[str, Any], users: Tensor | None, source: str, device: torch.device
    ) -> Tensor | None:
        if self.groups is None:
            return None
        if loader.codes is not None and users is not None:
            known = len(loader.codes)
            if len(users) and not 0 <= int(users.min()) <= int(users.max()) < known:
                raise ValueError(f"'user_ids' hold {int(users.min())}..{int(users.max())}, groups= has {known} users")
            return loader.codes[users].to(device)
        codes: Tensor | None = outputs.get("groups")
        if codes is None:
            raise ValueError(f"{source} must return 'groups' too, for groups=, got {_keys_of(outputs)}")
        return codes

    def _ids(self, outputs: Mapping[str, Any], returned: Any, batch: Any, source: str) -> Tensor:
        if not isinstance(self.sample_ids, str):
            return self.sample_ids(returned, batch)  # type: ignore[misc]  # not None: there are SampleRows
        found: Tensor | None = outputs.get(self.sample_ids)
        if found is None:
            raise ValueError(f"{source} must return {self.sample_ids!r} (sample_ids=); it returned {_keys_of(outputs)}")
        return found

    def _end(self, trainer: Any, pl_module: Any) -> None:
        self._check_module(trainer)
        for loader in self._loaders:
            if loader.error is not None:
                loader.add_violation("step", pl_module.device)
            try:
                if loader.samples is not None:
                    loader.samples.settle()
                values = loader.collection.compute()
            except ValueError as error:
                where = f"{type(self).__name__}, loader {loader.name!r}"
                raise loader.error or ValueError(f"{where}: {error}") from error
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


@dataclass
class _Loader:
    name: str
    prefix: str
    postfix: str
    collection: RecMetricCollection
    exclude: Interactions | None
    past: Interactions | None
    codes: Tensor | None
    samples: SampleRows | None
    share: Share | None
    error: Exception | None = None

    def add_violation(self, kind: str, device: torch.device) -> None:
        """Add a violation without a row, so that all processes raise in `compute`."""
        invalid = torch.tensor([int(other == kind) for other in VIOLATIONS], device=device)
        nobody = Ranking.without_relevant(0, device, self.collection.needs.score_threshold)
        nobody = replace(nobody, violations=Violations(counts=invalid))
        if self.samples is None:
            self.collection.update(nobody)
        else:
            self.samples.add(invalid[:0], nobody)

    def without_repeats(
        self, weights: Tensor | None, batch_idx: int, ranking: Ranking
    ) -> tuple[Tensor | None, str | None]:
        """Return weights that are 0 for repeated samples, and a message if repeats cannot be known."""
        rows = len(ranking)
        kept = rows if self.share is None else self.share.kept(batch_idx, rows)
        if kept is None:
            return weights, f"a batch with repeated samples has {in_words(rows)}, which are not its samples{MAY_REPEAT}"
        if kept < rows:
            device = ranking.ranks.device
            weights = torch.ones(rows, device=device) if weights is None else weights
            weights = weights.where(torch.arange(rows, device=device) < kept, 0)
        return weights, None


def _read(outputs: Any, source: str, device: torch.device) -> dict[str, Any]:
    """Return the arguments of `update` that a step's mapping holds."""
    wanted = f"{source} must return a mapping with 'scores' and 'target', or with 'ranks', or with 'ranking'"
    cure = "outputs= takes a function of (output of the step, batch) that returns one"
    if not isinstance(outputs, Mapping):
        raise TypeError(f"{wanted}, got {describe(outputs)}; {cure}")
    given = {name: outputs[name] for name in (*UpdateArgs._fields, "weights") if outputs.get(name) is not None}
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
        for tensor in _tensors(value):
            if not isinstance(tensor, Tensor) and name not in ("depth", "missing_target", "shard"):
                raise TypeError(f"{source} returned {name!r} that is no tensor: {describe(tensor)}")
            there = getattr(tensor, "device", device)
            if there != device:
                raise ValueError(f"{source} returned {name!r} on {there}, the module is on {device}")
    return given


def _tensors(value: Any) -> list[Any]:
    """Return the tensors in one argument, or the argument itself in a list."""
    if type(value) is tuple:
        return [tensor for part in value for tensor in _tensors(part)]
    if isinstance(value, (Jagged, Spans)):
        return [value.values]
    return [value.ranks if isinstance(value, Ranking) else value.items if isinstance(value, Batch) else value]


def _user_ids(outputs: Mapping[str, Any], given: Mapping[str, Any], source: str, reader: str) -> Tensor:
    """Return the user ids of a batch, int64 [B] on the host."""
    ids = outputs.get("user_ids")
    if ids is None:
        raise ValueError(f"{source} must return 'user_ids' too, for {reader}, got {_keys_of(outputs)}")
    try:
        ids = torch.as_tensor(ids).cpu()
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{source} must return 'user_ids' as row numbers of the history (the position in a vocabulary), got "
            f"{describe(ids)}: {error}"
        ) from error
    rows = len(given["scores"]) if "scores" in given else len(ids)
    if ids.shape not in ((rows,), (rows, 1)) or ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError(f"{source} must return 'user_ids' as integers [{rows}], got {describe(ids)}")
    return ids.reshape(rows).long()  # uint8 would index as a mask


def _keys_of(outputs: Mapping[str, Any]) -> str:
    return ", ".join(repr(key) for key in outputs) or "an empty mapping"
