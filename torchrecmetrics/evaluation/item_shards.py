"""`evaluate(shard="items")`: every process has the embeddings of some items, and all those of the users."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchrecmetrics.checks import check_k
from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.distributed import is_distributed, raise_on_all_ranks
from torchrecmetrics.evaluation.candidates import CandidateScores
from torchrecmetrics.evaluation.result import Evaluation
from torchrecmetrics.evaluation.scoring import Budget
from torchrecmetrics.ranking.shards import ItemShard
from torchrecmetrics.ranking.update_args import UpdateArgs

_ENTRY_BYTES = 64
"""Working memory beside the scores, per excluded item of a row."""


def evaluate_item_shards(
    collection: RecMetricCollection,
    scorer: CandidateScores,
    target: Interactions,
    exclude: Sequence[Interactions],
    user_ids: Any,
    budget: Budget,
) -> Evaluation:
    """Rank all items of all processes for the same users on each, batch by batch.

    Items are numbered in the order of the processes. Users, target and history are whole on every process; the number
    of rows of a batch is the smallest that any process has memory for.

    Raises:
        ValueError: on all processes, where one cannot, and for interactions of other sizes.
    """
    if not is_distributed():
        raise ValueError('shard="items" is for several processes: initialise torch.distributed first')
    device = scorer.users.device
    world, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    sizes = torch.zeros(world, dtype=torch.int64, device=device)
    sizes[rank] = len(scorer.items)
    torch.distributed.all_reduce(sizes)
    num_items, first = int(sizes.sum()), int(sizes[:rank].sum())
    with raise_on_all_ranks(device):
        for name, part in (("target", target), *(("exclude", part) for part in exclude)):
            if not isinstance(part, Interactions):
                raise TypeError(f'{name} beside shard="items" must be Interactions')
            if (part.num_users, part.num_items) != (len(scorer.users), num_items):
                raise ValueError(
                    f"{name} is {part.num_users} x {part.num_items}; there are {len(scorer.users)} users and, on all "
                    f"processes together, {num_items} items"
                )
    target, *histories = (part.to(device) for part in (target, *exclude))
    ids = torch.unique(target.users) if user_ids is None else torch.as_tensor(user_ids, device=device)
    longest = sum(part.max_degree for part in histories)
    row_bytes = 2 * len(scorer.items) * scorer.users.element_size() + _ENTRY_BYTES * (longest + 1)
    rows = max(1, budget.bytes_on(device) // row_bytes)
    if budget.batch_size is not None:
        rows = min(rows, check_k(budget.batch_size, "batch_size"))
    agreed = torch.tensor([rows], device=device)
    torch.distributed.all_reduce(agreed, op=torch.distributed.ReduceOp.MIN)
    collection.to(device)
    for batch in torch.split(ids, int(agreed)):
        args = UpdateArgs(
            _scores(scorer, batch),
            target.select(batch),
            exclude=tuple(part.select(batch) for part in histories) or None,
            shard=ItemShard(first, num_items),
        )
        collection.add(collection.row_values(collection.rank(args)))
    for metric in collection.members:
        metric.replicated = True
    return Evaluation(collection, "eager")


def _scores(scorer: CandidateScores, ids: Tensor) -> Tensor:
    """Return the scores of this process's items, [b, I_local]."""
    scores = scorer.users[ids] @ scorer.items.T
    return scores if scorer.bias is None else scores + scorer.bias
