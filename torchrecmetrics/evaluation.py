"""`evaluate` and `recommend`: the whole catalogue, batched to a memory budget, from embeddings or a score function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from torchrecmetrics.collection import Metrics, RecMetricCollection
from torchrecmetrics.inputs import Exclude, check_k, describe
from torchrecmetrics.interactions import Interactions
from torchrecmetrics.kernels import Kernels, Products, choose, refusal
from torchrecmetrics.metrics import RankingMetric, rank_batch, shared_threshold, summarize
from torchrecmetrics.ranking import Ranking, ScoreRows

ScoreFunction: TypeAlias = Callable[[Tensor], Tensor]
Progress: TypeAlias = Callable[[int, int], None]
Excluded: TypeAlias = Interactions | Tensor | Sequence[Interactions | Tensor]

_CPU_BUDGET = 256 * 2**20
# On the CPU products go through a buffer of this size: fresh memory costs more than what is written to it, and each
# piece costs some calls (2,000 x 20,000 and 8,000 x 40,981: 8 to 20 MB take 1.1 times as long, 100 MB as long). What
# does not touch scores is done for many more users at once.
_BUFFER_BYTES = 64 * 2**20
_USERS_TOGETHER = 4096
# bytes that one target or history entry of a row takes on its way through the kernel, generously
_ENTRY_BYTES = 160
# products of fewer rows go through another path of the BLAS library, whose last bits differ
_MIN_ROWS = 16


class Evaluation(dict[str, Tensor]):
    """What `evaluate` found: {label: value}, and a table of it as `str()`.

    `standard_errors` has the same keys; `kernels` says what counted, "eager" or "triton"; `num_users`, `num_skipped`,
    `num_unreachable` and `num_tied` are those of the first metric (AUROC alone may average fewer users
    than the others).
    """

    def __init__(self, collection: RecMetricCollection, kernels: Kernels) -> None:
        super().__init__(collection.compute())
        self.kernels = kernels
        members = collection._members()
        self.standard_errors = {key: m.standard_error() for key, m in zip(self, members, strict=True)}
        first = members[0]
        self.num_users, self.num_skipped = first.num_users, first.num_skipped
        self.num_unreachable, self.num_tied = first.num_unreachable, first.num_tied

    def __str__(self) -> str:
        width = max(map(len, self))
        lines = [f"{key:{width}}  {value:.4f} ± {self.standard_errors[key]:.4f}" for key, value in self.items()]
        counts = f"{self.num_users} users"
        for number, text in (
            (self.num_skipped, "without a relevant item"),
            (self.num_unreachable, "with one that is no candidate"),
            (self.num_tied, "with a tie at one"),
        ):
            counts += f", {number} {text}" if number else ""
        return "\n".join([*lines, counts])


def check_target(target: Any) -> None:
    """Refuse a ground truth that is not `Interactions`."""
    if not isinstance(target, Interactions):
        hint = (
            "pass split.test"
            if hasattr(target, "test")
            else "Interactions.from_edge_index(edges, num_users, num_items)"
        )
        raise TypeError(f"target must be Interactions, got {describe(target)}: {hint}")


@torch.no_grad()
def evaluate(
    metrics: Metrics | RecMetricCollection,
    users: Tensor | ScoreFunction,
    items: Tensor | None = None,
    *,
    target: Interactions,
    exclude: Excluded | None = None,
    k: int | Iterable[int] | None = None,
    user_ids: Any = None,
    item_bias: Tensor | None = None,
    similarity: Literal["dot", "cosine"] = "dot",
    items_allowed: Tensor | None = None,
    batch_size: int | None = None,
    memory_budget: int | None = None,
    device: str | torch.device | None = None,
    progress: bool | Progress = False,
    shard: Literal["users"] | None = None,
    **options: Any,
) -> Evaluation:
    """Rank the whole catalogue for every user with ground truth and return the metrics.

    Args:
        metrics: what `RecMetricCollection` takes, or such a collection: a fresh clone is used.
        users: embeddings [U, d], or a function of user ids (int64 [b] on `device`) that returns scores [b, I]; a
            module is put into eval mode meanwhile.
        items: embeddings [I, d]; None with a function.
        target: ground truth [U, I].
        exclude: what leaves a user's candidates: `Interactions` (train items), bool [I], or a tuple of these.
        k: cut-offs, where `metrics` are names.
        user_ids: evaluate only these users (row numbers, each once).
        item_bias: float [I], added to the scores.
        similarity: "dot" or "cosine" of the embeddings.
        items_allowed: bool [I]: only these items are candidates (released, in stock). A relevant item among the others
            can only be missed.
        batch_size: most users scored together; default: what `memory_budget` allows.
        memory_budget: bytes for scores and what the kernel needs beside them; default at most 256 MB on the CPU, half
            of the free memory of a GPU.
        device: move everything there first; default: where the embeddings (or `target`) are.
        progress: show a bar with users per second and the running value of the first metric (needs tqdm); or a function
            of (users done, users in all) that shows them elsewhere. Over several processes the first one shows its own.
        shard: "users": every process of the default group evaluates its share of the users, and all get the result.
            None: nothing is communicated.
        options: keyword options for metrics given by name.

    Scores are computed and kept in float32 (float64 for float64 embeddings), whatever autocast says. Users without
    ground truth are never scored. Batches are halved and repeated when a GPU runs out of memory. With
    `kernels="triton"` scores of embeddings are counted as they are made and never kept; bfloat16 and float16 embeddings
    are then multiplied as they are, float32 ones as `torch.get_float32_matmul_precision()` says.

    Raises:
        ValueError: for shapes, devices, ids or values that do not fit, and kernels that cannot run there.

    Example:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> users, items = torch.eye(2, 3), torch.eye(4, 3)
        >>> test = trm.Interactions.from_edge_index(torch.tensor([[0, 1], [0, 2]]), num_users=2, num_items=4)
        >>> print(trm.evaluate(["HR", "MRR"], users, items, target=test, k=1))
        HR@1   0.5000 ± 0.5000
        MRR@1  0.5000 ± 0.5000
        2 users
    """
    collection = _fresh(metrics, k, options, sync=shard is not None)
    check_target(target)
    if not len(target):
        raise ValueError(f"target holds no interactions, there is nothing to evaluate: {target}")
    scorer = _Scorer(
        users, items, target.num_users, target.num_items, item_bias, similarity, items_allowed, device, target
    )
    target = scorer.bring("target", target)
    history = _History(exclude, scorer)
    ids = _ids(user_ids, target.num_users)
    if user_ids is not None and len(torch.unique(ids)) < len(ids):
        raise ValueError("user_ids hold a user twice")
    members = collection._members()
    member = members[0]
    if member.overlap in (None, "error"):
        history.check_overlap(target, ids)

    degree = target._host_offsets.diff()
    listed = history.lengths(target.num_users) + degree
    empty = ids[degree[ids] == 0]
    ids = ids[degree[ids] > 0]
    ids = ids[listed[ids].argsort(stable=True)]
    rank, world = 0, 1
    if shard is not None:
        if shard != "users":
            raise ValueError(f"shard must be None or 'users', got {shard!r}")
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    ids = ids[rank::world]
    if member.device != scorer.device:
        collection.to(scorer.device)
    if len(empty) and (rank == 0 or member.empty_target_action == "error"):
        collection.update(without_relevant(len(empty), scorer.device, shared_threshold(members)))

    kernels = choose(member.kernels, scorer.device)
    in_memory = scorer.function is not None or kernels == "eager"
    if not in_memory and (obstacle := scorer.no_products(ids, member.validate_args is not False)) is not None:
        if member.kernels == "triton":
            raise refusal(obstacle)
        in_memory = True

    def update(batch: Tensor, at_once: int) -> None:
        relevant = target.select(batch)
        scores: Tensor | ScoreRows | Products
        if scorer.function is not None:
            scores = scorer(batch)
        else:
            scores = scorer.rows(batch, at_once) if in_memory else scorer.products(batch)
        collection.update(rank_batch(members, scores, relevant.items, relevant.values, history.select(batch)))

    with _Bar(progress if rank == 0 else False, len(ids)) as bar:
        for batch in _run(scorer, ids, listed[ids], update, batch_size, memory_budget, in_memory):
            bar.advance(batch, member)
    return Evaluation(collection, kernels)


@torch.no_grad()
def recommend(
    users: Tensor | ScoreFunction,
    items: Tensor | None = None,
    k: int = 10,
    *,
    exclude: Excluded | None = None,
    user_ids: Any = None,
    num_users: int | None = None,
    num_items: int | None = None,
    item_bias: Tensor | None = None,
    similarity: Literal["dot", "cosine"] = "dot",
    items_allowed: Tensor | None = None,
    batch_size: int | None = None,
    memory_budget: int | None = None,
    device: str | torch.device | None = None,
    progress: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return each user's `k` best items and their scores; arguments as in `evaluate`.

    With a score function, `num_users` (unless `user_ids` are given) and `num_items` say how large the catalogue is.

    Returns:
        ids int64 [users, k] and scores [users, k], best first, ties by lower id; -1 and -inf where fewer than `k`
        candidates exist. Both on the scores' device, rows in the order of `user_ids`.
    """
    k = check_k(k)
    if isinstance(users, Tensor) and isinstance(items, Tensor):
        num_users, num_items = len(users), len(items)
    for part in _parts(exclude):
        if isinstance(part, Interactions):
            num_users, num_items = num_users or part.num_users, num_items or part.num_items
    if num_items is None or (num_users is None and user_ids is None):
        raise ValueError("with a score function, recommend needs num_items and num_users or user_ids")
    if num_users is None and not len(user_ids):
        num_users = 0
    if num_users is None:
        num_users = int(torch.as_tensor(user_ids, device="cpu").max()) + 1
    scorer = _Scorer(users, items, num_users, num_items, item_bias, similarity, items_allowed, device, None)
    history = _History(exclude, scorer)
    ids = _ids(user_ids, num_users)
    lengths = history.lengths(num_users)[ids]
    order = lengths.argsort(stable=True)
    best = torch.full((len(ids), k), -1, device=scorer.device)
    values: Tensor | None = None
    done = 0

    def keep(batch: Tensor, at_once: int) -> None:
        nonlocal values
        for part, rows in zip(torch.split(batch, at_once), torch.split(order[done:], at_once), strict=False):
            scores = history.masked(part, scorer(part))
            if values is None:
                values = scores.new_full((len(ids), k), -torch.inf)
            rows = rows[: len(part)].to(scorer.device)
            found = _topk(scores, min(k, num_items))
            top = scores.gather(1, found)
            real = top > -torch.inf
            values[rows, : found.shape[1]] = top.where(real, -torch.inf)
            best[rows, : found.shape[1]] = found.where(real, -1)

    with _Bar(progress, len(ids)) as bar:
        for batch in _run(scorer, ids[order], lengths[order], keep, batch_size, memory_budget):
            done += len(batch)
            bar.advance(batch, None)
    return best, best.new_empty((0, k), dtype=scorer.dtype) if values is None else values


def _topk(scores: Tensor, k: int) -> Tensor:
    """Ids of the k best of each row, best first, ties by lower id; NaN and -inf come last."""
    scores = scores.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    top, ids = scores.topk(k, dim=1)
    # which of several equal scores topk took at the k-th place is up to it: ask anew where there was a choice
    contested = ((scores >= top[:, -1:]).sum(1) > k).nonzero()[:, 0]
    if len(contested):
        ids[contested] = scores[contested].sort(dim=1, descending=True, stable=True).indices[:, :k]
    ids = ids.sort(dim=1).values
    return ids.gather(1, scores.gather(1, ids).sort(dim=1, descending=True, stable=True).indices)


# ---------------------------------------------------------------------------------------------------------- the engine


class _Scorer:
    """Scores of a batch of users, in a buffer that is used again."""

    def __init__(
        self,
        users: Tensor | ScoreFunction,
        items: Tensor | None,
        num_users: int,
        num_items: int,
        item_bias: Tensor | None,
        similarity: str,
        items_allowed: Tensor | None,
        device: str | torch.device | None,
        fallback: Interactions | None,
    ) -> None:
        self.num_items = num_items
        self.moves = device is not None
        self.function: ScoreFunction | None = None
        self.dtype = torch.float32
        if isinstance(users, Tensor):
            if items is None:
                raise ValueError(
                    "user embeddings need item embeddings, evaluate(metrics, users, items, ...); a score matrix is "
                    "passed as a function: lambda ids: scores[ids]"
                )
            if not isinstance(items, Tensor):
                raise TypeError(f"items must be a tensor [I, d], got {_weight_hint(items)}")
            for name, tensor in (("users", users), ("items", items)):
                if tensor.dim() != 2 or not tensor.is_floating_point():
                    raise ValueError(f"{name} must be float [n, d], got {tensor.dtype} {list(tensor.shape)}")
            if users.shape[1] != items.shape[1]:
                raise ValueError(f"embedding widths differ: users {users.shape[1]}, items {items.shape[1]}")
            for name, have, want in (("users", len(users), num_users), ("items", len(items), num_items)):
                if have != want:
                    raise ValueError(f"{have} {name} have embeddings, but target has {want} {name}")
            self.device = torch.device(device) if device is not None else users.device
            if torch.float64 in (users.dtype, items.dtype):
                self.dtype = torch.float64
            self.users: Tensor = self.bring("users", users)
            self.given_items: Tensor = self.bring("items", items)
            self.cosine = similarity == "cosine"
            if similarity not in ("dot", "cosine"):
                raise ValueError(f"similarity must be 'dot' or 'cosine', got {similarity!r}")
            self.buffer = torch.empty((0, num_items), dtype=self.dtype, device=self.device)
        elif callable(users) and not isinstance(users, nn.Embedding):
            if items is not None:
                raise ValueError("a score function scores the items itself: leave items out (k and others go by name)")
            if similarity != "dot":
                raise ValueError("similarity is for embeddings; a score function normalises by itself")
            self.function = users
            self.device = torch.device(device or (fallback.device if fallback is not None else "cpu"))
        else:
            raise TypeError(f"users must be a tensor [U, d] or a function of user ids, got {_weight_hint(users)}")
        self.bias = self._vector("item_bias", item_bias, floating=True)
        self.allowed = self._vector("items_allowed", items_allowed, floating=False)

    def bring(self, name: str, thing: Any) -> Any:
        """Move to the device asked for, or insist that it is there already."""
        if thing.device == self.device:
            return thing
        if not self.moves:
            raise ValueError(f"{name} is on {thing.device}, the scores are made on {self.device}: pass device=")
        return thing.to(self.device)

    def _vector(self, name: str, vector: Tensor | None, floating: bool) -> Tensor | None:
        if vector is None:
            return None
        if not isinstance(vector, Tensor):
            raise TypeError(f"{name} must be a tensor, got {_weight_hint(vector)}")
        fits = vector.is_floating_point() if floating else vector.dtype == torch.bool
        if vector.shape != (self.num_items,) or not fits:
            kind = "float" if floating else "bool"
            raise ValueError(f"{name} must be {kind} [{self.num_items}], got {vector.dtype} {list(vector.shape)}")
        brought: Tensor = self.bring(name, vector)
        return brought

    @cached_property
    def items(self) -> Tensor:
        """Item embeddings in the dtype of the scores, normalised if they are to be."""
        items = self.given_items.to(self.dtype)
        return torch.nn.functional.normalize(items, dim=1) if self.cosine else items

    def some_users(self, at: Tensor) -> Tensor:
        """User embeddings in the dtype of the scores, normalised if they are to be."""
        users = self.users[at].to(self.dtype)
        return torch.nn.functional.normalize(users, dim=1) if self.cosine else users

    def no_products(self, ids: Tensor, check: bool) -> str | None:
        """Say why scores of these users cannot be counted without being kept; None if they can.

        To check that the scores will be finite waits for the device, once.
        """
        kinds = {self.users.dtype, self.given_items.dtype}
        if not kinds <= {torch.float32, torch.bfloat16, torch.float16}:
            return f"it multiplies float32, bfloat16 and float16, the embeddings are {', '.join(map(str, kinds))}"
        if not check or not len(ids):
            return None
        # with a dtype, nothing is converted beforehand
        users, items = (torch.linalg.vector_norm(x, dim=1, dtype=torch.float64) for x in (self.users, self.given_items))
        users = users[ids.to(self.device)]
        if self.allowed is not None:
            items = items.where(self.allowed, 0)
        bound = torch.maximum(users.max(), items.max()) if self.cosine else users.max() * items.max()
        if self.added is not None:
            bound = bound + self.added.where(self.added != -torch.inf, 0).abs().max()
        if not bound <= torch.finfo(torch.float32).max:
            return "embeddings or item_bias hold NaN or infinity, or numbers so large that a score could be infinite"
        return None

    @cached_property
    def added(self) -> Tensor | None:
        """What is added to products: float32 [I], -inf where an item is not allowed."""
        bias = self.bias
        if self.allowed is not None:
            bias = torch.zeros(self.num_items, device=self.device) if bias is None else bias
            bias = bias.masked_fill(~self.allowed, -torch.inf)
        return None if bias is None else bias.float()

    def products(self, ids: Tensor) -> Products:
        """Scores of many users that are never in memory; embeddings keep their dtype unless they are normalised."""
        at = ids.to(self.device)
        if self.cosine:
            return Products(self.some_users(at), self.items, self.added)
        return Products(self.users[at], self.given_items, self.added)

    def rows(self, ids: Tensor, at_once: int) -> ScoreRows:
        """Scores of many users, made for a few at a time."""
        parts = torch.split(ids, at_once)
        return ScoreRows((len(ids), self.num_items), self.dtype, self.device, lambda: map(self, parts))

    def __call__(self, ids: Tensor) -> Tensor:
        """Scores [b, I] of users on the host's list; valid until the next call."""
        at = ids.to(self.device, copy=True)  # the function may do with it as it likes
        if self.function is not None:
            scores = self.function(at)
            fits = isinstance(scores, Tensor) and scores.is_floating_point()
            if not fits or scores.shape != (len(ids), self.num_items):
                wanted = f"float [{len(ids)}, {self.num_items}]"
                raise ValueError(f"the score function must return {wanted}, got {describe(scores)}")
            if scores.device != self.device:
                raise ValueError(f"the score function returned {scores.device}, everything else is on {self.device}")
            scores = scores if self.bias is None else scores + self.bias
            return scores if self.allowed is None else scores.masked_fill(~self.allowed, -torch.inf)
        rows = max(len(ids), _MIN_ROWS)
        if len(self.buffer) < rows:
            self.buffer = torch.empty((rows, self.num_items), dtype=self.dtype, device=self.device)
        out = self.buffer[:rows]
        batch = torch.zeros((rows, self.users.shape[1]), dtype=self.dtype, device=self.device)
        batch[: len(ids)] = self.some_users(at)
        torch.mm(batch, self.items.T, out=out)  # with out=, autocast keeps its hands off
        if self.bias is not None:
            out += self.bias
        if self.allowed is not None:
            out.masked_fill_(~self.allowed, -torch.inf)
        return out[: len(ids)]


def _weight_hint(thing: Any) -> str:
    """Say what was given instead of a tensor, and how to make it one."""
    cure = "pass its .weight" if isinstance(thing, nn.Embedding) else "torch.as_tensor(...)"
    return f"{type(thing).__name__}: {cure}"


def _parts(exclude: Excluded | None) -> Sequence[Any]:
    """Return what was given as one thing, several or none as several."""
    if exclude is None:
        return ()
    return exclude if isinstance(exclude, (tuple, list)) else (exclude,)


class _History:
    """What leaves the candidates of each user."""

    def __init__(self, exclude: Excluded | None, scorer: _Scorer) -> None:
        self.parts: list[Interactions] = []
        self.masks: list[Tensor] = []
        for part in _parts(exclude):
            if isinstance(part, Interactions):
                if part.num_items != scorer.num_items:
                    raise ValueError(f"exclude has {part.num_items} items, the scores have {scorer.num_items}")
                self.parts.append(scorer.bring("exclude", part))
            elif isinstance(part, Tensor) and part.dtype == torch.bool and part.shape == (scorer.num_items,):
                self.masks.append(scorer.bring("exclude", part))
            else:
                what = f"{part.dtype} {list(part.shape)}" if isinstance(part, Tensor) else type(part).__name__
                raise TypeError(
                    f"exclude must be Interactions, bool [{scorer.num_items}] or a tuple of these, got {what}"
                )

    def lengths(self, num_users: int) -> Tensor:
        """Excluded items of each user, on the host."""
        total = torch.zeros(num_users, dtype=torch.int64, device="cpu")
        for part in self.parts:
            if part.num_users != num_users:
                raise ValueError(f"exclude has {part.num_users} users, expected {num_users}")
            total += part._host_offsets.diff()
        return total

    def select(self, ids: Tensor) -> Exclude | None:
        """Return what the kernel takes as `exclude` for these users."""
        chosen = (*(part.select(ids).items for part in self.parts), *self.masks)
        return chosen or None

    def masked(self, ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores with everything excluded at -inf, in a copy if there is any."""
        for part in self.parts:
            items = part.select(ids).items
            # one column more, for padding to fall into
            extra = torch.cat([scores, scores.new_empty(len(scores), 1)], 1)
            scores = extra.scatter_(1, items.where(items >= 0, scores.shape[1]), -torch.inf)[:, :-1]
        for mask in self.masks:
            scores = scores.masked_fill(mask, -torch.inf)
        return scores

    def check_overlap(self, target: Interactions, ids: Tensor) -> None:
        """Raise if items to be found are excluded too: the numbers would depend on what that is taken to mean."""
        asked = torch.zeros(target.num_users, dtype=torch.bool, device=target.device)
        asked[ids.to(target.device)] = True
        shared = torch.zeros(len(target), dtype=torch.bool, device=target.device)
        keys = target.keys
        for part in self.parts:
            if len(part):
                known = part.keys  # ascending
                shared |= known[torch.searchsorted(known, keys).clamp(max=len(known) - 1)] == keys
        for mask in self.masks:
            shared |= mask[target.items]
        shared &= asked[target.users]
        if target.values is not None:
            shared &= target.values > 0
        count = int(shared.sum())
        if count:
            pairs = torch.stack([target.users[shared][:3], target.items[shared][:3]], 1).tolist()
            raise ValueError(
                f"{count} (user, item) pairs of target are also in exclude, such as {pairs}. "
                "target.without(exclude) takes them out of the test; overlap='keep' lets them compete all the same "
                "(repeat consumption); overlap='miss' counts them as not found"
            )


def _run(
    scorer: _Scorer,
    ids: Tensor,
    sizes: Tensor,
    use: Callable[[Tensor, int], None],
    batch_size: int | None,
    memory_budget: int | None,
    in_memory: bool = True,
) -> Iterator[Tensor]:
    """Use up users, `ids` in ascending order of `sizes` (listed items), batch by batch; yield each batch when done.

    `use` is told how many of them to score at once. Scores that are not `in_memory` take none of it.
    """
    at_once = len(ids) if batch_size is None else check_k(batch_size, "batch_size")
    together = at_once
    row_bytes = scorer.num_items * (8 if scorer.dtype == torch.float64 else 4) if in_memory else 0
    if in_memory and scorer.function is None and scorer.device.type == "cpu":
        if batch_size is None:
            at_once = max(_MIN_ROWS, _BUFFER_BYTES // row_bytes)
        together = max(at_once, _USERS_TOGETHER)
    if memory_budget is None:
        on_gpu = scorer.device.type == "cuda"
        memory_budget = torch.cuda.mem_get_info(scorer.device)[0] // 2 if on_gpu else _CPU_BUDGET
    done = 0
    with evaluating(scorer.function):
        while done < len(ids):
            # the largest batch whose scores and padded lists fit: its last user has the longest list
            low, high = 1, min(together, len(ids) - done)
            while low < high:
                middle = (low + high + 1) // 2
                needed = min(middle, at_once) * row_bytes + middle * _ENTRY_BYTES * int(sizes[done + middle - 1])
                low, high = (middle, high) if needed <= memory_budget else (low, middle - 1)
            batch = ids[done : done + low]
            try:
                use(batch, min(low, at_once))
            except torch.cuda.OutOfMemoryError:
                if low == 1:
                    raise
                at_once = together = low // 2
            else:
                done += low
                yield batch
                continue
            torch.cuda.empty_cache()  # out here, where the error no longer holds what the batch had made


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Put a module, if it is one, into eval mode, and each of its parts back into its own."""
    before = {part: part.training for part in model.modules()} if isinstance(model, nn.Module) else {}
    if before:
        model.eval()
    try:
        yield
    finally:
        for part, training in before.items():
            part.training = training


def _fresh(
    metrics: Metrics | RecMetricCollection, k: int | Iterable[int] | None, options: dict[str, Any], sync: bool
) -> RecMetricCollection:
    """Make a collection of its own, empty, that synchronises or not."""
    if isinstance(metrics, RecMetricCollection):
        if k is not None or options:
            given = ", ".join([*(["k"] if k is not None else []), *options])
            raise ValueError(f"{given} given beside a collection, which has its own")
        collection = deepcopy(metrics)
    else:
        collection = RecMetricCollection(deepcopy(metrics), k, **options)
    collection.reset()
    for metric in collection._members():
        metric.sync_on_compute = sync
    return collection


def _ids(user_ids: Any, num_users: int) -> Tensor:
    """User ids on the host."""
    if user_ids is None:
        return torch.arange(num_users, device="cpu")
    try:
        ids = torch.as_tensor(user_ids, device="cpu")
    except (TypeError, ValueError) as error:
        raise TypeError("user_ids must be row numbers (the position in a vocabulary), not strings") from error
    if not len(ids):
        return ids.long()
    if ids.dtype == torch.bool or ids.is_floating_point() or ids.dim() != 1:
        raise ValueError(f"user_ids must be whole numbers [n], got {ids.dtype} {list(ids.shape)}")
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= num_users):
        raise ValueError(f"user_ids hold {int(ids.min())}..{int(ids.max())}, expected 0..{num_users - 1}")
    return ids.long()


def without_relevant(rows: int, device: torch.device, score_threshold: float | None) -> Ranking:
    """Users that need no scores: nothing of theirs can be found."""
    none = torch.zeros(rows, dtype=torch.int64, device=device)
    ranking = Ranking.from_ranks(none, num_ranked=0)
    return replace(ranking, num_recommended=none, score_threshold=score_threshold)


class _Bar:
    """A progress bar, somebody else's, or nothing."""

    def __init__(self, shown: bool | Progress, total: int) -> None:
        self._bar: Any = None
        self._tell = shown if callable(shown) else None
        self._done, self._total = 0, total
        if shown and self._tell is None:
            try:
                from tqdm.auto import tqdm
            except ImportError as error:
                raise ImportError("progress=True needs tqdm: pip install 'torchrecmetrics[progress]'") from error
            self._bar = tqdm(total=total, unit="user")

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, batch: Tensor, metric: RankingMetric | None) -> None:
        self._done += len(batch)
        if self._tell is not None:
            self._tell(self._done, self._total)
        if self._bar is None:
            return
        self._bar.update(len(batch))
        if metric is not None:
            (summary,) = summarize([(metric, metric.state())], "dist_sync_on_step")
            self._bar.set_postfix({metric.label: f"{summary.value:.4f}"})
