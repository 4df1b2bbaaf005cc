"""`CatalogueEvaluationCallback`: evaluate the whole catalogue at the end of an epoch, from embeddings or a function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.core.checks import check_k, describe
from torchrecmetrics.core.distributed import raise_on_all_ranks
from torchrecmetrics.core.signature import MetricOptions
from torchrecmetrics.data.groups import Groups, check_groups
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.evaluation.arguments import check_target
from torchrecmetrics.evaluation.history import Histories
from torchrecmetrics.evaluation.models import evaluate
from torchrecmetrics.evaluation.result import Evaluation
from torchrecmetrics.evaluation.scoring import ScoreFunction, evaluating
from torchrecmetrics.lightning.replicas import buffers_of_the_first, check_alike, check_scores_alike
from torchrecmetrics.lightning.reporting import SHORT, Reporting, Stage, check_function
from torchrecmetrics.names import KeyFormat, Metrics

if TYPE_CHECKING:
    from typing_extensions import Unpack

_SANITY_USERS = 64


class CatalogueEvaluationCallback(Reporting):
    """Callback that ranks the whole catalogue for every user at the end of an epoch, and logs the metrics.

    It calls `evaluate` at the end of a validation epoch or, in `fit` without validation loaders, of a training epoch,
    and at the end of a test epoch. The users are split over the processes; every process calls `embed` once, with the
    buffers (BatchNorm's running statistics) of the first process, which are the buffers in checkpoints. An error on one
    process raises on all. The sanity check evaluates a few users and discards the values.

    Args:
        metrics: as for `RecMetricCollection`, or a collection.
        k: cut-offs, if `metrics` are names.
        embed: a function of the module that returns (users [U, d], items [I, d]), or (a function of user ids that
            returns scores, None). It is called without gradients, with the module in eval mode. All processes must
            return the same: embeddings, and scores of a few users, are compared, and a difference is an error.
        target: ground truth, `Interactions` [U, I], logged as `val/...` in validation and `test/...` in `trainer.test`;
            or a dict of ground truths by name, all evaluated in each of `stages`. For one ground truth in `fit` and
            another in `trainer.test`, take two callbacks with `stages="validate"` and `stages="test"`.
        exclude: excluded items of each user, as in `evaluate`, for all targets; or a dict of such histories by the
            target's name, `{"val": train, "test": train.union(valid)}` for a plain target.
        every_n_epochs: in `fit`, evaluate after epochs n, 2n, ... only; give ModelCheckpoint the same, and
            ReduceLROnPlateau the same `frequency`. EarlyStopping needs a value after each validation: use the Trainer's
            `check_val_every_n_epoch` with it.
        stages: "validate" (in `fit` too), "test", or both.
        prog_bar: keys without prefix that the progress bar shows; None: `NDCG@10` if it is logged.
        prefix: put in front of every key; {name} stands for the target's name, or `val` or `test` if the target has
            none, {stage} always for `val` or `test`.
        key_format: as in `RecMetricCollection`.
        log_counts: also log `num_users`, `num_skipped`, `num_unreachable` and `num_tied` of the first metric.
        keep_rows: keep per-user values, for `results["val"].rows` after the epoch.
        all_users: as in `evaluate`.
        groups: as in `evaluate`; values of groups are logged as `val/NDCG@10/cold`.
        similarity: as in `evaluate`.
        items_allowed: as in `evaluate`.
        batch_size: as in `evaluate`.
        memory_budget: as in `evaluate`.
        options: keyword options of the metrics, as in `RecMetricCollection`.

    After an epoch `results` holds each target's `Evaluation` by name.

    Examples:
        >>> import torch
        >>> from torchrecmetrics import Interactions
        >>> from torchrecmetrics.lightning import CatalogueEvaluationCallback
        >>> valid = Interactions.from_edge_index(torch.tensor([[0, 1], [2, 0]]), num_users=2, num_items=3)
        >>> callback = CatalogueEvaluationCallback(
        ...     "NDCG", k=2, embed=lambda module: (module.users.weight, module.items.weight), target=valid
        ... )
    """

    _reads = "ranks the whole catalogue by embeddings"

    def __init__(
        self,
        metrics: Metrics | RecMetricCollection,
        k: int | Iterable[int] | None = None,
        *,
        embed: Callable[[Any], tuple[Tensor | ScoreFunction, Tensor | None]],
        target: Interactions | Mapping[str, Interactions],
        exclude: Histories | Mapping[str, Histories | None] | None = None,
        every_n_epochs: int = 1,
        stages: Stage | Sequence[Stage] = ("validate", "test"),
        prog_bar: str | Sequence[str] | None = None,
        prefix: str = "{name}/",
        key_format: KeyFormat = "{name}@{k}",
        log_counts: bool = False,
        keep_rows: bool = False,
        all_users: bool = False,
        groups: Groups | None = None,
        similarity: Literal["dot", "cosine"] = "dot",
        items_allowed: Tensor | None = None,
        batch_size: int | None = None,
        memory_budget: int | None = None,
        **options: Unpack[MetricOptions],
    ) -> None:
        check_groups(groups)
        super().__init__(metrics, k, stages, prefix, key_format, prog_bar, log_counts, keep_rows, groups, options)
        self.groups = groups
        check_function("embed", embed, "(the module) that returns (users, items)", 1)
        self.embed = embed
        self.target = target
        for truth in target.values() if isinstance(target, Mapping) else [target]:
            check_target(truth)
        known = list(target) if isinstance(target, Mapping) else list(SHORT.values())
        if isinstance(exclude, Mapping) and set(exclude) - set(known):
            raise ValueError(f"exclude holds {', '.join(exclude)}, expected {', '.join(known)}")
        self.exclude = exclude
        self.all_users = all_users
        self.every_n_epochs: int = check_k(every_n_epochs, "every_n_epochs")
        self._batch_size = batch_size
        self.results: dict[str, Any] = {}

    def _names(self, stage: str) -> list[str]:
        return list(self.target) if isinstance(self.target, Mapping) else [SHORT[stage]]

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuse monitors, loggers and other callbacks that cannot work with the keys."""
        super().setup(trainer, pl_module, stage)
        asked = "validate" if stage == "fit" else stage
        if asked in self.stages:
            self._announce(trainer, self._keys(asked, self._names(asked)))
        if stage == "fit":
            for callback in trainer.callbacks:
                self._check_pace(trainer, type(callback).__name__, getattr(callback, "monitor", None), callback)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse learning rate schedulers that cannot work with the keys."""
        super().on_fit_start(trainer, pl_module)
        for config in trainer.lr_scheduler_configs if pl_module.automatic_optimization else ():
            self._check_pace(trainer, "the learning rate scheduler", config.monitor, config)

    def _check_pace(self, trainer: Any, name: str, monitor: str | None, reader: Any) -> None:
        """Refuse callbacks that read a key after epochs that do not log it."""
        ours, validated = (
            self.every_n_epochs,
            (trainer.check_val_every_n_epoch or 1) if trainer.enable_validation else 1,
        )
        if monitor not in self._current or validated % ours == 0:
            return
        period, cure = _pace(reader, ours, validated)
        if period % ours:
            logged = math.lcm(ours, validated)
            raise ValueError(
                f"{name} (monitor={monitor!r}) reads its key after epochs {period}, {2 * period}, ..., every_n_epochs="
                f"{ours} logs it after {logged}, {2 * logged}, ...: {cure}"
            )

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Evaluate the targets and log the metrics."""
        self._evaluate(trainer, pl_module, "validate")

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Evaluate the targets and log the metrics."""
        self._evaluate(trainer, pl_module, "test")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Evaluate the targets and log the metrics, if there is no validation."""
        if not trainer.enable_validation:
            self._evaluate(trainer, pl_module, "validate")

    def _evaluate(self, trainer: Any, pl_module: Any, stage: str) -> None:
        fitting = trainer.state.fn == "fit" and not trainer.sanity_checking
        if stage not in self.stages or (fitting and (trainer.current_epoch + 1) % self.every_n_epochs):
            return
        self._check_module(trainer)
        self.results = {}
        device, name = pl_module.device, type(self).__name__
        with torch.no_grad(), evaluating(pl_module), buffers_of_the_first(pl_module, device):
            with _naming(name), raise_on_all_ranks(device):
                embeddings = self.embed(pl_module)
                listed = isinstance(embeddings, (tuple, list))
                if not listed or len(embeddings) != 2:
                    what = f"{len(embeddings)} things" if listed else describe(embeddings)
                    raise TypeError(f"embed must return (users, items), got {what}")
            users, items = embeddings
            with _naming(name):
                check_alike({"users": users, "items": items})
            for target in self._names(stage):
                with _naming(f"{name}, target {target!r}"):
                    result = self._evaluate_target(trainer, stage, target, users, items, device)
                if not trainer.sanity_checking:
                    self.results[target] = result
                    self._log(pl_module, result, result, self._prefix(stage, target))

    def _evaluate_target(
        self, trainer: Any, stage: str, name: str, users: Any, items: Any, device: torch.device
    ) -> Evaluation:
        target = self.target[name] if isinstance(self.target, Mapping) else self.target
        exclude = self.exclude
        if isinstance(exclude, Mapping):
            if name not in exclude:
                raise ValueError(f"exclude holds {', '.join(exclude)}, not {name!r} (None: exclude nothing)")
            exclude = exclude[name]
        with_truth = target.degree.nonzero()[:, 0]
        few = with_truth[:_SANITY_USERS] if trainer.sanity_checking else None
        if not isinstance(users, Tensor) and callable(users):
            check_scores_alike(users, (with_truth if few is None else few).cpu(), device)
        with _progress(trainer, stage, f"Catalogue, {name}") as progress:
            return evaluate(
                self._empty(trainer),
                users,
                items,
                target=target,
                exclude=exclude,
                user_ids=few,
                device=users.device if isinstance(users, Tensor) else device,
                progress=progress,
                shard="users" if trainer.world_size > 1 else None,
                all_users=self.all_users,
                groups=self.groups,
                keep_rows=self.keep_rows,
                batch_size=self._batch_size,
            )


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Put the name of the callback in front of the message of an error."""
    try:
        yield
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{where}: {error}") from error
    except Exception as error:
        text = str(error) if isinstance(error, RuntimeError) else f"{type(error).__name__}: {error}"
        raise RuntimeError(f"{where}: {text}") from error


def _pace(reader: Any, ours: int, validated: int) -> tuple[int, str]:
    """Return the number of epochs between reads of a callback's or scheduler's key (0 = not by epochs), and a cure."""
    kinds = {kind.__name__ for kind in type(reader).__mro__}
    if "ModelCheckpoint" in kinds:
        own = reader._every_n_epochs
        period = own if reader._save_on_train_epoch_end else math.lcm(own, validated)
        return period, f"pass it every_n_epochs={math.lcm(own, ours)}, too"
    if "EarlyStopping" in kinds and (reader.strict or reader.patience < ours):
        return validated, (
            f"leave that out and pass Trainer(check_val_every_n_epoch={ours}); or pass EarlyStopping(strict=False, "
            f"patience={reader.patience * ours}), which reads each value {ours} times"
        )
    if getattr(reader, "reduce_on_plateau", False) and reader.interval == "epoch":
        return reader.frequency, f"pass 'frequency': {math.lcm(reader.frequency, ours)} beside its 'monitor'"
    return 0, ""


@contextmanager
def _progress(trainer: Any, stage: str, description: str) -> Iterator[Callable[[int, int], None] | bool]:
    """Yield a function of (users done, users in all) that updates the trainer's bar; yield False without a bar."""
    shown = trainer.progress_bar_callback
    if shown is None or not getattr(shown, "is_enabled", False) or trainer.sanity_checking:
        yield False
    elif hasattr(shown, "init_validation_tqdm"):
        # the bar of the stage is at its end; a training epoch without validation has no such bar and gets a new one
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
