"""`as_input`: the input of the arguments of `update`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from torchrecmetrics.core.arrays import as_tensor
from torchrecmetrics.core.checks import check_tensor, describe
from torchrecmetrics.core.options import Input
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.inputs.ranks import Ranks
from torchrecmetrics.inputs.scores import Scores


def as_input(scores: Any, target: Any, gains: Any, exclude: Any, depth: int | None) -> Input | Ranking:
    """Return the input of `update(scores, target)`, `update(ranks)`, `update(ranking)` or `update(input)`.

    Raises:
        TypeError: for other arguments, and for a target with an input that has its own.
    """
    scores, target, gains, exclude = (  # arrays of numpy become tensors
        value if value is None or isinstance(value, Tensor) else as_tensor(value)
        for value in (scores, target, gains, exclude)
    )
    if isinstance(scores, Tensor) and (target is not None or scores.is_floating_point()):
        if depth is not None:
            raise ValueError("depth= is for ranks; the depth of scores follows from the metrics' k")
        return Scores(scores, target, gains=gains, exclude=exclude)
    is_input = isinstance(scores, Ranking) or (hasattr(scores, "rank") and not hasattr(scores, "to_numpy"))  # a frame
    if scores is not None and not is_input:
        check_tensor("scores", scores)
    for name, value in (("target", target), ("gains", gains), ("exclude", exclude)):
        if value is not None and scores is not None:
            with errors_of_all_processes(scores):
                raise TypeError(
                    f"{name}= needs scores, got {describe(scores)} as the first argument: pass {name}= to "
                    "Scores, Lists or get_topk_ranks"
                )
    if isinstance(scores, Tensor):
        return Ranks(scores, depth)
    if depth is not None:
        with errors_of_all_processes(scores):
            raise ValueError(f"depth= is for ranks, got {describe(scores)} as the first argument")
    if not is_input:
        raise TypeError(
            "update takes scores with target, or ranks, a Ranking, or an input such as Lists; got none (a "
            "torchmetrics.MetricCollection passes on only the names scores and target, not preds=)"
        )
    batch: Input | Ranking = scores
    return batch


def errors_of_all_processes(batch: Any) -> AbstractContextManager[None]:
    """Return a context that raises an error of one process on all processes that share the batch, as `ItemShard` does.

    It is the input's `scope`; most inputs have none, since their errors concern one process.
    """
    scope: Callable[..., AbstractContextManager[None]] | None = getattr(batch, "scope", None)
    return nullcontext() if scope is None else scope(weights=None, columns={})
