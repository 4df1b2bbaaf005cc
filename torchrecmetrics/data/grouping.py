"""Groups made from interactions: users by their number, targets by the popularity of their items."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import slices
from torchrecmetrics.core.checks import check_k, check_tensor, describe
from torchrecmetrics.data.groups import Groups
from torchrecmetrics.data.interactions import Interactions


def group_users(train: Interactions, bins: Sequence[int] = (0, 1, 5, 20)) -> Groups:
    """Group users by their number of interactions, cold users first.

    Args:
        train: training interactions.
        bins: smallest number of interactions of each group, ascending, >= 0; users below the first bin are in no
            group. Groups are called "0", "1-4", "5-19", "20+".

    Raises:
        TypeError: for anything but `Interactions`, and bins that are not whole numbers.
        ValueError: for bins that do not ascend.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> columns = {"users": [0, 1, 1, 1], "items": [0, 0, 1, 2]}
        >>> train = trm.Interactions.from_columns(**columns, num_users=3, num_items=3)
        >>> trm.group_users(train, bins=[0, 1, 3])
        Groups(0: 1, 1-2: 1, 3+: 1)
    """
    if not isinstance(train, Interactions):
        raise TypeError(
            f"users are grouped by Interactions, got {describe(train)}; of a graph: "
            "torchrecmetrics.pyg.message_passing_interactions(graph, num_users, num_items)"
        )
    starts = [check_k(start, "bins", 0) for start in bins]
    if not starts or sorted(set(starts)) != starts:
        raise ValueError(f"bins must ascend, such as [0, 1, 5, 20], got {list(bins)}")
    ends = [start - 1 for start in starts[1:]]
    names = [str(start) if end == start else f"{start}-{end}" for start, end in zip(starts, ends, strict=False)]
    names.append(f"{starts[-1]}+")
    codes = torch.bucketize(train.host_degree, torch.tensor(starts, device="cpu"), right=True) - 1
    return Groups(codes, names, user_ids=train.user_ids)


def slice_targets(
    target: Interactions, popularity: Tensor, shares: Sequence[float] = (0.2, 0.8)
) -> dict[str, Interactions]:
    """Divide a ground truth by the popularity of its items.

    Args:
        target: ground truth [U, I].
        popularity: number [I], >= 0, such as `train.popularity`.
        shares: shares of the total popularity, ascending, between 0 and 1: the first slice is the fewest items with the
            first share, and so on; of equally popular items at a border the lower ids come first. One share gives
            "head" and "tail", two give "head", "mid" and "tail", more give "1", "2", ...

    Returns:
        The slices by name, each of the shape of `target`: users without an item in a slice have no ground truth in it.

    Raises:
        TypeError: for anything but `Interactions`.
        ValueError: for another length, negative or NaN popularity, shares that do not ascend between 0 and 1.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> test = trm.Interactions.from_columns(users=[0, 0, 1], items=[0, 2, 1], num_items=3)
        >>> slices = trm.slice_targets(test, torch.tensor([90, 6, 4]), shares=[0.8])
        >>> {name: len(part) for name, part in slices.items()}
        {'head': 1, 'tail': 2}
    """
    if not isinstance(target, Interactions):
        raise TypeError(f"target must be Interactions, got {describe(target)}")
    check_tensor("popularity", popularity)
    if popularity.shape != (target.num_items,) or popularity.is_complex():
        raise ValueError(f"popularity must be [{target.num_items}], one number per item, got {describe(popularity)}")
    counts = popularity.to(target.device, torch.float64)
    if not bool(((counts >= 0) & counts.isfinite()).all()) or not float(counts.sum()) > 0:
        raise ValueError("popularity must be >= 0 and finite, and above 0 for some item")
    if not shares or sorted(set(shares)) != list(shares) or not 0 < shares[0] <= shares[-1] < 1:
        raise ValueError(f"shares must ascend between 0 and 1, such as [0.2, 0.8], got {list(shares)}")
    names = {1: ["head", "tail"], 2: ["head", "mid", "tail"]}.get(
        len(shares), [str(n + 1) for n in range(len(shares) + 1)]
    )
    slice_of_item = slices(counts, shares)
    return {name: target.take(slice_of_item[target.items] == number) for number, name in enumerate(names)}
