"""Counting over scores: for every target, the candidates with a higher and with an equal score; see `contract`.

`eager` is plain PyTorch, for any device. `triton` is for CUDA, and the only kernel that counts over `Products`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from torchrecmetrics.core.options import KernelChoice
from torchrecmetrics.kernels import eager
from torchrecmetrics.kernels.contract import Counts, Products, Question
from torchrecmetrics.kernels.topk_ids import best_items, merged, topk_ids

Kernels: TypeAlias = Literal["eager", "triton"]

# Compute capabilities with a recorded run of tests/gpu and of the benchmarks (benchmarks/results).
_RECORDED: frozenset[tuple[int, int]] = frozenset({(9, 0)})
# Number of scores from which "auto" takes Triton; fewer take longer to launch than to count.
_MANY_SCORES = 2**26

__all__ = [
    "Counts",
    "KernelChoice",
    "Kernels",
    "Products",
    "Question",
    "best_items",
    "choose",
    "count",
    "look_up",
    "merged",
    "topk_ids",
]


def choose(kernels: KernelChoice, device: torch.device, num_scores: int = _MANY_SCORES) -> Kernels:
    """Return the kernels to use: the requested ones; "auto" = Triton's for 2^26 scores or more on a recorded GPU.

    Raises:
        ValueError: if "triton" is requested and cannot run on the device; gives the reason.
    """
    if kernels == "eager" or (kernels == "auto" and not (num_scores >= _MANY_SCORES and _is_recorded(device))):
        return "eager"
    try:
        from torchrecmetrics.kernels import triton
    except ImportError as error:
        reason: str | None = f"Triton cannot be imported ({error})"
    else:
        reason = triton.unavailable(device)
    if reason is None:
        return "triton"
    if kernels == "auto":
        return "eager"
    raise refusal(reason)


def refusal(reason: str) -> ValueError:
    """Return the error for a request of Triton's kernels that cannot be met."""
    return ValueError(f"kernels='triton' cannot be used: {reason}. kernels='auto' falls back to 'eager'")


def _is_recorded(device: torch.device) -> bool:
    on_cuda = device.type == "cuda" and torch.cuda.is_available()
    return on_cuda and torch.cuda.get_device_capability(device) in _RECORDED


def count(scores: Tensor | Products, question: Question, kernels: Kernels = "eager") -> Counts:
    """Count with the given kernels; for `Products`, host syncs may find rows that need no further counting."""
    if isinstance(scores, Products):
        return _count_products(scores, question)
    if kernels == "triton":
        from torchrecmetrics.kernels import triton

        return triton.count(scores, question)
    return eager.count(scores, question)


def _count_products(scores: Products, question: Question) -> Counts:
    from torchrecmetrics.kernels import triton

    min_scores = question.min_scores
    for mask in question.masks:
        bias = scores.bias if scores.bias is not None else question.thresholds.new_zeros(scores.shape[1])
        scores = scores._replace(bias=bias.masked_fill(mask, -torch.inf))
    # every finite score reaches the lowest minimum: the number of candidates is the count, without products
    lowest = torch.finfo(scores.dtype).min
    higher = [min_score for min_score in min_scores if min_score > lowest]
    counts = triton.count_products_until(scores, question._replace(min_scores=higher, masks=()))
    if lowest not in min_scores:
        return counts
    candidates = counts.better.new_full((len(question.thresholds),), scores.shape[1])
    if scores.bias is not None:
        candidates -= (scores.bias == -torch.inf).sum()
    if question.removed is not None:
        candidates -= (question.removed > -torch.inf).sum(1)
    columns = iter(() if counts.at_least is None else counts.at_least.unbind(1))
    reached = [next(columns) if min_score > lowest else candidates for min_score in min_scores]
    return counts._replace(at_least=torch.stack(reached, 1))


def look_up(scores: Tensor | Products, ids: Tensor) -> Tensor:
    """Return the scores of the items `ids`, int64 [B, N], in their rows: the same bits that `count` compares."""
    if isinstance(scores, Products):
        from torchrecmetrics.kernels import triton

        return triton.pair_scores(scores, ids)
    return scores.gather(1, ids)
