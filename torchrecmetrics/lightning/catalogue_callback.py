"""`CatalogueEvaluationCallback`: evaluate the whole catalogue at the end of an epoch, from embeddings or a function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn

from torchrecmetrics.collection.by_group import ByGroup
from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.core.checks import check_k, describe
from torchrecmetrics.core.distributed import agreement, gathered, is_distributed
from torchrecmetrics.data.groups import Groups, check_groups
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.evaluation.evaluate import evaluate
from torchrecmetrics.evaluation.scorers import Embeddings, evaluating
from torchrecmetrics.evaluation.test_set import Histories, Matrix, check_target, from_matrix, histories_that_meet
from torchrecmetrics.lightning.reporting import SHORT, Reporting, Stage, check_function, readers
from torchrecmetrics.metrics.accumulator import Accumulator
from torchrecmetrics.metrics.description import MetricOptions
from torchrecmetrics.metrics.names import KeyFormat, Metrics
from torchrecmetrics.results.evaluation import Evaluation

if TYPE_CHECKING:
    from typing_extensions import Unpack


_MAX_ROWS = 1000
"""Maximum number of rows of embeddings or scores that processes compare."""


@contextmanager
def buffers_of_the_first(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Set the module's buffers, such as BatchNorm's running statistics, to process 0's, and restore them at the end."""
    changed: list[tuple[Tensor, Tensor]] = []
    for buffer in module.buffers() if is_distributed() else ():
        if type(buffer) is Tensor and buffer.layout == torch.strided:  # others show in the embeddings
            changed.append((buffer, buffer.clone()))
            buffer.copy_(_sent_by_the_first(buffer, device))
    try:
        yield
    finally:
        for buffer, values in changed:
            buffer.copy_(values)


def check_equal_on_all(name: str, values: Any, device: torch.device) -> None:
    """Raise if some rows of embeddings or scores differ between processes by more than rounding errors."""
    if not is_distributed():
        return
    shapes = gathered(describe(values))
    is_equal = [shape == shapes[0] for shape in shapes]
    if all(is_equal) and type(values) is Tensor and values.layout == torch.strided and values.is_floating_point():
        rows = torch.linspace(0, max(len(values) - 1, 0), min(_MAX_ROWS, len(values)), device="cpu").long()
        values = values[rows.to(values.device)]
        reference = _sent_by_the_first(values, device)
        tolerance = torch.finfo(values.dtype).eps ** 0.5
        size = reference.abs().double().masked_fill(~reference.isfinite(), torch.nan).nanmedian().nan_to_num()
        atol = tolerance * size.item()
        is_close = torch.isclose(values.double(), reference.double(), tolerance, atol, equal_nan=True)
        is_equal = gathered(bool(is_close.all()))
    if not all(is_equal):
        process = is_equal.index(False)
        both = f" ({shapes[0]}, {shapes[process]})" if shapes[0] != shapes[process] else ""
        raise ValueError(
            f"processes 0 and {process} have different {name}{both}: embed must return the same on every process, for "
            "all users and items, from the same parameters and without randomness (dropout, sampling)"
        )


def _sent_by_the_first(tensor: Tensor, device: torch.device) -> Tensor:
    """Return process 0's values of a tensor."""
    # as bytes, since some backends lack some dtypes
    sent = tensor.detach().to(device, copy=True).contiguous().reshape(-1).view(torch.uint8)
    distributed.broadcast(sent, src=0)
    return sent.view(tensor.dtype).view(tensor.shape).to(tensor.device)


_FEW_USERS = 64
"""Maximum number of users that the sanity check evaluates, and whose scores processes compare."""


class CatalogueEvaluationCallback(Reporting):
    """Callback that ranks the whole catalogue for every user at the end of an epoch, and logs the metrics.

    It calls `evaluate` at the end of a validation epoch or, in `fit` without validation loaders, of a training epoch,
    and at the end of a test epoch. The users are split over the processes; every process calls `embed` once, with the
    first process's buffers (BatchNorm's running statistics), as checkpoints have them. An error on one process is
    raised on all. The sanity check evaluates a few users and discards the values.

    Args:
        metrics: as for `RecMetricCollection`, or a collection.
        k: cut-offs, if `metrics` are names.
        embed: a function of the module that returns (users [U, d], items [I, d]), `Embeddings`, or a function of user
            ids that returns scores. It is called without gradients, with the module in eval mode. All processes must
            return the same: some rows of embeddings, or scores of a few users, are compared, and a difference is an
            error.
        target: ground truth, `Interactions` [U, I] or a matrix as in `evaluate`, logged as `val/...` in validation and
            `test/...` in `trainer.test`. Use one callback per ground truth: with `stages="validate"` and
            `stages="test"`, or with different `prefix` for two in the same stage.
        exclude: excluded items of each user, as in `evaluate`.
        every_n_epochs: in `fit`, evaluate after epochs n, 2n, ... only; give ModelCheckpoint the same, and
            ReduceLROnPlateau the same `frequency`. EarlyStopping needs a value after each validation: use the Trainer's
            `check_val_every_n_epoch` with it.
        stages: "validate" (in `fit` too), "test", or both.
        prog_bar: keys that the progress bar shows, with or without prefix; True: all; None: `NDCG@10` if it is logged.
        prefix: put in front of every key; {name} and {stage} stand for `val` or `test`.
        key_format: as in `RecMetricCollection`.
        log_counts: also log `num_users`, `num_skipped`, `num_unreachable` and `num_tied` of the first metric.
        groups: as in `evaluate`; values of groups are logged as `val/NDCG@10/cold`.
        batch_size: as in `evaluate`.
        accumulators: as in `RecMetricCollection`, if `metrics` are names: with `KeptRows()`, `results["val"].rows`
            holds per-user values.
        options: keyword options of the metrics, as in `RecMetricCollection`.

    After an epoch `results` holds the `Evaluation` under `val` or `test`, beside that of the other stage.

    Examples:
        >>> import torch
        >>> from torchrecmetrics import Interactions
        >>> from torchrecmetrics.lightning import CatalogueEvaluationCallback
        >>> edges = torch.tensor([[0, 1], [2, 0]])
        >>> valid = Interactions.from_edge_index(edges, num_users=2, num_items=3)
        >>> def embed(module):
        ...     return module.users.weight, module.items.weight
        >>> callback = CatalogueEvaluationCallback("NDCG", k=2, embed=embed, target=valid)
    """

    def __init__(
        self,
        metrics: Metrics | RecMetricCollection,
        k: int | Iterable[int] | None = None,
        *,
        embed: Callable[[Any], Any],
        target: Interactions | Matrix,
        exclude: Histories | None = None,
        every_n_epochs: int = 1,
        stages: Stage | Sequence[Stage] = ("validate", "test"),
        prog_bar: bool | str | Sequence[str] | None = None,
        prefix: str = "{name}/",
        key_format: KeyFormat = "{name}@{k}",
        log_counts: bool = False,
        groups: Groups | None = None,
        batch_size: int | None = None,
        accumulators: Sequence[Accumulator] = (),
        **options: Unpack[MetricOptions],
    ) -> None:
        check_groups(groups)
        check_function("embed", embed, "(the module) that returns (users, items)", 1)
        interactions = from_matrix("target", target)
        check_target(interactions)
        by_group = [] if groups is None else [ByGroup(*groups.names)]
        super().__init__(metrics, k, stages, prefix, key_format, prog_bar, log_counts, accumulators, options, by_group)
        self.embed = embed
        self.target: Interactions = interactions
        self.exclude: Any = histories_that_meet(interactions, exclude)
        self.every_n_epochs: int = check_k(every_n_epochs, "every_n_epochs")
        self.groups = groups
        self.batch_size = batch_size
        self.results: dict[str, Evaluation] = {}

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse monitors that cannot work with the keys."""
        super().on_fit_start(trainer, pl_module)
        self._begin(trainer, "validate")
        num_epochs = (trainer.check_val_every_n_epoch or 1) if trainer.enable_validation else 1
        for reader in readers(trainer):
            if reader.monitor in self._current and math.lcm(num_epochs, reader.num_epochs) % self.every_n_epochs:
                raise ValueError(
                    f"{reader.name} (monitor={reader.monitor!r}) also reads its key after epochs without a value; it "
                    f"is logged every {self.every_n_epochs} epochs. Pass every_n_epochs={self.every_n_epochs} to "
                    f"ModelCheckpoint, 'frequency': {self.every_n_epochs} with the monitor of a learning rate "
                    f"scheduler, strict=False to EarlyStopping, or "
                    f"check_val_every_n_epoch={self.every_n_epochs} to the Trainer instead"
                )

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse monitors that cannot work with the keys."""
        self._begin(trainer, "validate")

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse keys that another callback logs."""
        self._begin(trainer, "test")

    def _begin(self, trainer: Any, stage: str) -> None:
        self._current = []
        if stage in self.stages:
            self._announce(trainer, self._keys(stage))

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Evaluate the ground truth and log the metrics."""
        self._evaluate(trainer, pl_module, "validate")

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Evaluate the ground truth and log the metrics."""
        self._evaluate(trainer, pl_module, "test")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Evaluate the ground truth and log the metrics, if there is no validation."""
        if not trainer.enable_validation:
            self._evaluate(trainer, pl_module, "validate")

    def _evaluate(self, trainer: Any, pl_module: Any, stage: str) -> None:
        fitting = trainer.state.fn == "fit" and not trainer.sanity_checking
        if stage not in self.stages or (fitting and (trainer.current_epoch + 1) % self.every_n_epochs):
            return
        self.results.pop(SHORT[stage], None)
        device = pl_module.device
        few_users = self.target.degree.nonzero()[:_FEW_USERS, 0].cpu()
        with torch.no_grad(), evaluating(pl_module), buffers_of_the_first(pl_module, device):
            with agreement(device=device):
                embedded, compared = self._embed(pl_module, few_users.to(device))
            for name, values in compared.items():
                check_equal_on_all(name, values, device)
            users = compared.get("users")
            bar = trainer.progress_bar_callback
            result = evaluate(
                self._metrics,
                *embedded,
                target=self.target,
                exclude=self.exclude,
                user_ids=few_users if trainer.sanity_checking else None,
                device=users.device if isinstance(users, Tensor) else device,
                progress=getattr(bar, "is_enabled", False) and hasattr(bar, "init_validation_tqdm"),
                shard="users" if trainer.world_size > 1 else None,
                groups=self.groups,
                batch_size=self.batch_size,
            )
        if not trainer.sanity_checking:
            self.results[SHORT[stage]] = result
            self._log(pl_module, result, result, self._prefix(stage, SHORT[stage]))

    def _embed(self, pl_module: Any, few_users: Tensor) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return `embed`'s result as arguments of `evaluate`, and by name the tensors that processes compare."""
        embedded = self.embed(pl_module)
        if isinstance(embedded, (tuple, list)):
            if len(embedded) != 2:
                raise TypeError(f"embed must return (users, items), got {len(embedded)} values")
            users, items = embedded
        else:
            users, items = embedded, None
        embeddings = Embeddings.of(users, items)
        if embeddings is None:
            return (users,), {"scores": users(few_users)} if is_distributed() else {}
        tensors = {"users": embeddings.users, "items": embeddings.items, "bias": embeddings.bias}
        return (embeddings,), {name: tensor for name, tensor in tensors.items() if tensor is not None}
