"""`RankingSource`: makes the input of a batch of users. Scorers: of embeddings, a function, candidates or a shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed import ReduceOp

from torchrecmetrics.core.arrays import as_tensor
from torchrecmetrics.core.checks import ID_DTYPES, check_choice, check_strided, describe
from torchrecmetrics.core.distributed import agreement, fingerprint
from torchrecmetrics.core.options import Input
from torchrecmetrics.core.ranking import Ranking
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.evaluation.test_set import Batch, Exclusions, TargetDevice
from torchrecmetrics.inputs.batch_input import BatchInput
from torchrecmetrics.inputs.candidates import Candidates
from torchrecmetrics.inputs.item_shard import ItemShard, over_processes
from torchrecmetrics.inputs.scores import ScoreRows, Scores
from torchrecmetrics.kernels import Products

Similarity = Literal["dot", "cosine"]


@dataclass(frozen=True, eq=False, repr=False)
class Embeddings:
    """Embeddings of users and items: the score of an item is a product, `users @ items.T + bias`.

    `evaluate` and `recommend` take an instance in place of `users` and `items`.

    Args:
        users: float [U, d], a tensor or, like the others, a numpy array; None: `bias` alone ranks the items, the same
            for all users.
        items: float [I, d].
        bias: float or whole numbers [I], added to the scores. `Embeddings(bias=train.popularity)` is the baseline to
            beat.
        similarity: "dot" or "cosine" of the embeddings.
        allowed: the items that are candidates: bool [I] for all users (released, in stock), or `Interactions` with each
            user's candidates (impressions, sampled negatives), matched by id as histories are; then only these are
            scored. Relevant items that are not allowed are misses; `num_unreachable` counts their users.

    Raises:
        TypeError: for anything but tensors and, as `allowed`, `Interactions`.
        ValueError: for shapes and dtypes that do not fit.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> edges = torch.tensor([[0, 1], [0, 2]])
        >>> test = trm.Interactions.from_edge_index(edges, num_users=2, num_items=3)
        >>> embeddings = trm.Embeddings(torch.eye(2, 3), torch.eye(3), similarity="cosine")
        >>> trm.evaluate("HR@1", embeddings, target=test)["HR@1"]
        tensor(0.5000, dtype=torch.float64)
    """

    users: Tensor | None = None
    items: Tensor | None = None
    bias: Tensor | None = None
    similarity: Similarity = "dot"
    allowed: Tensor | Interactions | None = None

    def __post_init__(self) -> None:
        check_choice("similarity", self.similarity, get_args(Similarity))
        for name in ("users", "items", "bias", "allowed"):
            object.__setattr__(self, name, as_tensor(getattr(self, name)))
        if self.users is None and self.items is None and self.bias is None:
            raise TypeError("Embeddings take users and items, or bias alone")
        for name, vectors in (("users", self.users), ("items", self.items)):
            if vectors is None and self.users is self.items:
                continue
            if not isinstance(vectors, Tensor):
                raise TypeError(f"{name} must be a tensor [n, d], got {_with_cure(vectors)}")
            check_strided(name, vectors, "0")
            if vectors.dim() != 2 or not vectors.is_floating_point():
                raise ValueError(f"{name} must be float [n, d], got {vectors.dtype} {list(vectors.shape)}")
        if self.users is not None and self.items is not None and self.users.shape[1] != self.items.shape[1]:
            raise ValueError(f"embedding widths differ: users {self.users.shape[1]}, items {self.items.shape[1]}")
        object.__setattr__(self, "bias", self._per_item("bias", self.bias, "float"))
        if not isinstance(self.allowed, Interactions):
            object.__setattr__(self, "allowed", self._per_item("allowed", self.allowed, "bool"))
        elif self.users is None and self.bias is not None:  # embeddings of width 0: the bias is the score
            object.__setattr__(self, "users", self.bias.new_zeros(self.allowed.num_users, 0))
            object.__setattr__(self, "items", self.bias.new_zeros(self.num_items, 0))

    def _per_item(self, name: str, vector: Any, kind: str) -> Tensor | None:
        """Return a vector [I], checked; whole numbers become floats."""
        if vector is None:
            return None
        if not isinstance(vector, Tensor):
            raise TypeError(f"{name} must be a tensor, got {_with_cure(vector)}")
        if kind == "float" and vector.dtype in ID_DTYPES:  # counts, such as popularity
            is_exact = not len(vector) or int(vector.abs().max()) <= 2**24
            vector = vector.to(torch.float32 if is_exact else torch.float64)
        fits = vector.is_floating_point() if kind == "float" else vector.dtype == torch.bool
        if vector.shape != (self.num_items,) or not fits:
            raise ValueError(f"{name} must be {kind} [{self.num_items}], got {vector.dtype} {list(vector.shape)}")
        checked: Tensor = vector
        return checked

    @classmethod
    def of(cls, users: Any, items: Any) -> Embeddings | None:
        """Return the embeddings among the arguments of `evaluate`; None if `users` is a score function."""
        users = as_tensor(users)
        if isinstance(users, Embeddings):
            if items is not None:
                raise ValueError("Embeddings hold the items: leave items out (pass k and others by name)")
            return users
        if callable(users) and not isinstance(users, (Tensor, nn.Embedding)):
            if items is not None:
                raise ValueError("a score function scores the items: leave items out (pass k and others by name)")
            return None
        if isinstance(users, Tensor) and items is None:
            raise ValueError(
                "user embeddings need item embeddings, evaluate(metrics, users, items, ...); a score matrix is "
                "passed as a function: lambda ids: scores[ids]"
            )
        if not isinstance(users, Tensor):
            raise TypeError(
                f"users must be a tensor [U, d], Embeddings or a function of user ids, got {_with_cure(users)}"
            )
        return cls(users, items)

    @property
    def num_items(self) -> int:
        """Number of items."""
        if self.items is not None:
            return len(self.items)
        assert self.bias is not None
        return self.bias.numel()

    @property
    def device(self) -> torch.device:
        """Device of the users, or of the bias if there are none."""
        tensor = self.users if self.users is not None else self.bias
        assert tensor is not None
        return tensor.device

    def moved(self, target_device: TargetDevice) -> Embeddings:
        """Return the embeddings with their tensors on a device; `allowed` interactions move after they are numbered."""
        names = ("users", "items", "bias", "allowed")
        tensors = {name: getattr(self, name) for name in names if isinstance(getattr(self, name), Tensor)}
        return replace(self, **{name: target_device.move(name, tensor) for name, tensor in tensors.items()})


def _with_cure(thing: Any) -> str:
    """Describe a value that is not a tensor, and how to convert it."""
    if thing is None:
        return "None; Embeddings(bias=) ranks the same for all users"
    cure = "pass its .weight" if isinstance(thing, nn.Embedding) else "torch.as_tensor(...)"
    return f"{type(thing).__name__}: {cure}"


ScoreFunction: TypeAlias = Callable[[Tensor], Tensor | NDArray[Any] | BatchInput]
"""A function, or a module, of user ids int64 [b] that returns scores [b, I], or another input without target."""

_CPU_BYTES = 256 * 2**20
"""Bytes that scores and the kernel may take on the CPU."""
ENTRY_BYTES = 160
"""Upper estimate of the bytes that one target or history entry of a row takes in the kernel."""
_LINE_BYTES = 64
"""Bytes of a cache line."""
MIN_ROWS = 16
"""Minimum number of rows to multiply: for fewer, BLAS uses another algorithm, with other last bits."""


def memory_on(device: torch.device) -> int:
    """Return the number of bytes that scores may take on a device: half of the free memory of a GPU."""
    return int(torch.cuda.mem_get_info(device)[0] // 2) if device.type == "cuda" else _CPU_BYTES


class RankingSource:
    """Base class of sources of rankings, which make the input of a batch of users."""

    device: torch.device
    row_bytes: int = 0
    """Bytes of memory that the scores of one user take."""
    reuses_memory: bool = False
    """True if the scores of a batch are written to a reused buffer, a few users at a time."""
    num_entries: int | Tensor = 0
    """Number of entries of each user's list or candidates, of `ENTRY_BYTES` each: int64 [U] on the host, or 0."""

    def input(self, batch: Batch, at_once: int) -> Input:
        """Return the input of a batch of users, `at_once` of whom are scored at a time."""
        raise NotImplementedError

    @cached_property
    def memory(self) -> int:
        """Bytes for the input of a batch and the kernel's working memory."""
        return memory_on(self.device)


class Scorer(RankingSource):
    """Base class of sources that score all items, of which each user's best are recommended."""

    num_users: int | None = None
    """Number of users; None if the scorer does not say it."""
    num_items: int
    offset: int = 0
    """Id of the item of the first column of `scores`."""
    dtype: torch.dtype = torch.float32

    def scores(self, users: Tensor, at_once: int) -> Tensor | ScoreRows | Products:
        """Return the scores [b, I] of users, `at_once` at a time, valid until the next call.

        `users` are on the host.
        """
        raise NotImplementedError

    def input(self, batch: Batch, at_once: int) -> Input:
        """Return the input of a batch of users, `at_once` of whom are scored at a time."""
        return with_data_of(batch, Scores(self.scores(batch.users, at_once)))

    @property
    def leaves_out_item_0(self) -> bool:
        """True if item 0 is no candidate."""
        return False

    def facts(self) -> dict[str, Any]:
        """Return the properties, by name, that must be the same on all processes."""
        return {}

    def misfit(self, target: Interactions) -> str:
        """Return the message for a ground truth of other sizes."""
        name, have, want, ids = "item", self.num_items, target.num_items, target.item_ids
        if self.num_users not in (None, target.num_users):
            name, have, want, ids = "user", self.num_users, target.num_users, target.user_ids
        text = f"{have} {name}s have embeddings, but target has {want} {name}s"
        if ids is None or not len(ids):
            return text
        call = f"target.recode({name}_ids=train.{name}_ids)"
        text += f": {call} numbers it by the ids of the model's rows, and drops others"
        are_rows = ids.kind == "whole numbers" and min(ids) >= 0 and max(ids) < have
        return f"{text}; {name}_ids=range({have}) if these ids are its rows" if are_rows else text


class FunctionScorer(Scorer):
    """Scorer that calls a score function."""

    def __init__(self, function: ScoreFunction, num_items: int, device: torch.device) -> None:
        self.num_items: int = num_items
        self.device: torch.device = device
        self.row_bytes: int = 4 * num_items
        self._function = function

    def scores(self, users: Tensor, at_once: int) -> Tensor:
        """Return the function's scores [b, I]."""
        return self._checked(self._call(users), users)

    def input(self, batch: Batch, at_once: int) -> Input:
        """Return the function's scores, or the input that it made, with the data of the batch."""
        result = self._call(batch.users)
        if isinstance(result, (BatchInput, Ranking)):
            return with_data_of(batch, result)
        return with_data_of(batch, Scores(self._checked(result, batch.users)))

    def _call(self, users: Tensor) -> Any:
        return as_tensor(self._function(users.to(self.device, copy=True)))  # a copy, which the function may change

    def _checked(self, scores: Any, users: Tensor) -> Tensor:
        """Return scores [b, I]; raise for anything else."""
        fits = isinstance(scores, Tensor) and scores.is_floating_point()
        if not fits or scores.shape != (len(users), self.num_items):
            wanted = f"float [{len(users)}, {self.num_items}], or an input such as Lists"
            cure = "" if isinstance(scores, Tensor) or scores is None else ": torch.as_tensor(...)"
            raise ValueError(f"the score function must return {wanted}, got {describe(scores)}{cure}")
        if scores.device != self.device:
            raise ValueError(f"the score function returned {scores.device}, but everything else is on {self.device}")
        checked: Tensor = scores
        return checked


def with_data_of(batch: Batch, made: BatchInput | Ranking) -> Input:
    """Return an input with ground truth, excluded items and history of a batch; refuse one with its own truth."""
    source: Any = made
    if not hasattr(source, "target") or source.target is not None or source.gains is not None:
        raise ValueError(
            f"target= of evaluate is the ground truth, but the function returned {type(made).__name__} with its own: "
            "return scores, or Lists or Candidates without target and gains"
        )
    batch_exclude: Any = batch.exclude
    exclude = batch_exclude if source.exclude is None else (source.exclude, *(batch_exclude or ()))
    history = batch.history if source.history is None else source.history
    complete: Input = replace(source, target=batch.target, exclude=exclude, history=history)
    return complete


class BiasScorer(Scorer):
    """Scorer that gives every user the same scores, the items' bias."""

    def __init__(self, embeddings: Embeddings, target_device: TargetDevice) -> None:
        embeddings = embeddings.moved(target_device)
        assert embeddings.bias is not None
        self._bias = embeddings.bias
        if isinstance(embeddings.allowed, Tensor):
            self._bias = self._bias.masked_fill(~embeddings.allowed, -torch.inf)
        self.num_items: int = len(self._bias)
        self.device: torch.device = target_device.device
        self.dtype: torch.dtype = self._bias.dtype
        self.row_bytes: int = self.num_items * self._bias.element_size()

    @property
    def leaves_out_item_0(self) -> bool:
        """True if item 0 is no candidate."""
        return bool(self._bias[0] == -torch.inf)

    def scores(self, users: Tensor, at_once: int) -> Tensor:
        """Return the bias for each user, [b, I]."""
        return self._bias.repeat(len(users), 1)


class EmbeddingScorer(Scorer):
    """Scorer that multiplies embeddings and writes the products to a reused buffer."""

    reuses_memory: bool = True

    def __init__(self, embeddings: Embeddings, target_device: TargetDevice) -> None:
        embeddings = embeddings.moved(target_device)
        users, items = embeddings.users, embeddings.items
        assert users is not None
        assert items is not None
        self._users, self._items, self._bias = users, items, embeddings.bias
        self._allowed = embeddings.allowed if isinstance(embeddings.allowed, Tensor) else None
        self._is_cosine = embeddings.similarity == "cosine"
        self.num_users: int | None = len(users)
        self.num_items: int = len(items)
        self.device: torch.device = target_device.device
        dtypes = {tensor.dtype for tensor in (users, items, embeddings.bias) if tensor is not None}
        self.dtype: torch.dtype = torch.float64 if torch.float64 in dtypes else torch.float32
        # the CPU multiplies up to twice as fast if each row begins at a cache line (40,981 and 49,999 items)
        line = _LINE_BYTES // self.dtype.itemsize if self.device.type == "cpu" else 1
        self._row_length = -(-self.num_items // line) * line
        self.row_bytes: int = self._row_length * self.dtype.itemsize
        self._buffer = torch.empty((0, self._row_length), dtype=self.dtype, device=self.device)

    def scores(self, users: Tensor, at_once: int) -> Tensor | ScoreRows:
        """Return the scores [b, I], which are multiplied for `at_once` users at a time when they are read."""
        shape, chunks = (len(users), self.num_items), torch.split(users, at_once)
        return ScoreRows(shape, self.dtype, self.device, lambda: (self.product(self.vectors(ids)) for ids in chunks))

    def scores_of(self, users: Tensor, items: Tensor) -> Tensor:
        """Return the scores [b, C] of users and their own items [b, C]; arbitrary at padding (negative ids)."""
        chosen = items.clamp(min=0)
        with torch.autocast(self.device.type, enabled=False):
            scores = torch.einsum("bd,bcd->bc", self.vectors(users), self._item_vectors[chosen])
        return scores if self._bias is None else (scores + self._bias[chosen]).to(self.dtype)

    @property
    def leaves_out_item_0(self) -> bool:
        """True if item 0 is no candidate."""
        return self._allowed is not None and len(self._allowed) > 0 and not self._allowed[0]

    def facts(self) -> dict[str, Any]:
        """Return the properties, by name, that must be the same on all processes."""
        return {
            "similarity": "cosine" if self._is_cosine else "dot",
            "width of embeddings": self._users.shape[1],
            "whether bias is given": self._bias is not None,
            "whether allowed is given": self._allowed is not None,
            "dtype of users": self._users.dtype,
            "dtype of items": self._items.dtype,
        }

    def vectors(self, users: Tensor) -> Tensor:
        """Return the embeddings of users in the dtype of the scores, normalised for cosine similarity."""
        return self._comparable(self._users[users.to(self.device)])

    def product(self, vectors: Tensor) -> Tensor:
        """Return the scores of vectors [b, d] and all items, in the buffer."""
        num_rows = max(len(vectors), MIN_ROWS)
        if len(self._buffer) < num_rows:
            self._buffer = torch.empty((num_rows, self._row_length), dtype=self.dtype, device=self.device)
        scores = self._buffer[:num_rows, : len(self._items)]
        padded = torch.zeros((num_rows, vectors.shape[1]), dtype=self.dtype, device=self.device)
        padded[: len(vectors)] = vectors
        torch.mm(padded, self._item_vectors.T, out=scores)  # autocast does not change products with out=
        if self._bias is not None:
            scores += self._bias
        if self._allowed is not None:
            scores.masked_fill_(~self._allowed, -torch.inf)
        return scores[: len(vectors)]

    @cached_property
    def _item_vectors(self) -> Tensor:
        return self._comparable(self._items)

    def _comparable(self, vectors: Tensor) -> Tensor:
        vectors = vectors.to(self.dtype)
        return nn.functional.normalize(vectors, dim=1) if self._is_cosine else vectors

    @property
    def needs_exact_products(self) -> bool:
        """True if products need the full precision of float32, which tensor cores do not have."""
        with_float32 = torch.float32 in {self._users.dtype, self._items.dtype}
        return with_float32 and torch.get_float32_matmul_precision() == "highest"

    def why_stored(self, check_values: bool) -> str | None:
        """Return the reason why scores must be stored before they are counted; None = they need not be.

        `check_values` checks that all scores will be finite, which costs one host sync.
        """
        dtypes = {self._users.dtype, self._items.dtype, self.dtype}
        if not dtypes <= {torch.float32, torch.bfloat16, torch.float16}:
            return f"it multiplies float32, bfloat16 and float16, embeddings and bias are {', '.join(map(str, dtypes))}"
        if check_values and not self._largest_score() <= torch.finfo(torch.float32).max:
            return "embeddings or bias hold NaN or infinity, or numbers so large that a score could be infinite"
        return None

    def without_storing(self) -> ProductScorer:
        """Return a scorer of the same embeddings whose scores are counted without being stored."""
        bias = self._bias
        if self._allowed is not None:
            bias = torch.zeros(self.num_items, device=self.device) if bias is None else bias
            bias = bias.masked_fill(~self._allowed, -torch.inf)
        bias = None if bias is None else bias.float()
        if self._is_cosine:
            return ProductScorer(self.vectors, Products(self._users, self._item_vectors, bias))
        return ProductScorer(self._users.__getitem__, Products(self._users, self._items, bias))

    def _largest_score(self) -> Tensor:
        """Return an upper bound of scores and, for cosine, of norms: float64 0-d, NaN if a number is NaN."""
        users, items, width = _largest(self._users), _largest(self._items), self._users.shape[1]
        bound = torch.maximum(users, items) * width**0.5 if self._is_cosine else users * items * width
        if self._bias is not None:
            bound = bound + _largest(self._bias.where(self._bias != -torch.inf, 0))
        return bound


def _largest(numbers: Tensor) -> Tensor:
    """Return the largest absolute value, float64 0-d: NaN if a number is NaN, 0 without numbers."""
    if not numbers.numel():
        return torch.zeros((), dtype=torch.float64, device=numbers.device)
    return torch.stack(numbers.aminmax()).double().abs().max()


class ProductScorer(Scorer):
    """Scorer whose products are never stored; embeddings keep their dtype unless they are normalised."""

    def __init__(self, vectors: Callable[[Tensor], Tensor], products: Products) -> None:
        self._vectors, self._products = vectors, products
        self.num_items: int = products.shape[1]
        self.device: torch.device = products.device

    def scores(self, users: Tensor, at_once: int) -> Products:
        """Return the embeddings of the users and of all items, to be multiplied in the kernel."""
        return self._products._replace(users=self._vectors(users.to(self.device)))


class CandidateScorer(EmbeddingScorer):
    """Scorer that multiplies the embeddings of users only with those of their own candidates."""

    reuses_memory: bool = False

    def __init__(self, embeddings: Embeddings, target_device: TargetDevice) -> None:
        super().__init__(embeddings, target_device)
        self.row_bytes = 0
        assert isinstance(embeddings.allowed, Interactions)
        self.candidates: Interactions = target_device.move("allowed", embeddings.allowed)

    def number_as(self, target: Interactions, exclusions: Exclusions | None) -> None:
        """Give the candidates the row numbers of the ground truth; refuse other sizes, and masks of excluded items."""
        if exclusions is not None and exclusions.masks:
            raise ValueError("allowed Interactions cannot be combined with exclude of bool [I]: pass Interactions")
        candidates = self.candidates.numbered_as(target, "allowed")
        self.use(candidates, target.num_users)

    def use(self, candidates: Interactions, num_users: int) -> None:
        """Score these candidates."""
        if (candidates.num_users, candidates.num_items) != (num_users, self.num_items):
            has = f"{candidates.num_users} x {candidates.num_items}"
            raise ValueError(f"allowed is {has}, but there are {num_users} users and {self.num_items} items")
        self.candidates = candidates
        vector_bytes = self._items.shape[1] * self.dtype.itemsize
        self.num_entries = candidates.host_degree * (1 + vector_bytes // ENTRY_BYTES)

    def input(self, batch: Batch, at_once: int) -> Input:
        """Return each user's candidates with their scores; a user without candidates has no hits."""
        candidates = self.candidates.select(batch.users).items
        if not candidates.shape[1]:
            candidates = candidates.new_full((len(batch.users), 1), -1)
        return with_data_of(batch, Candidates(self.scores_of(batch.users, candidates), None, items=candidates))


class ShardScorer(EmbeddingScorer):
    """Scorer of this process's items, where the items of a catalogue, and perhaps the users, are spread over processes.

    Args:
        embeddings: those of this process; with `shares_users` the users of this process, too.
        target_device: device of the scores.
        shares_users: True if each process has some of the users.
        process_group: the processes that share the catalogue; None = all.
    """

    reuses_memory: bool = False

    def __init__(
        self, embeddings: Embeddings, target_device: TargetDevice, shares_users: bool, process_group: Any
    ) -> None:
        sizes: list[tuple[int, int, int]] = []
        facts: dict[str, Any] = {}
        with agreement(facts, process_group, may_differ="sizes"):
            if embeddings.users is None or isinstance(embeddings.allowed, Interactions):
                raise TypeError('shard="items" and "both" take embeddings of users and items, and allowed= as bool [I]')
            super().__init__(embeddings, target_device)
            facts |= self.facts()
            if not shares_users:
                facts["users, which must be the same (no dropout; broadcast them)"] = fingerprint(self._users)
            facts["sizes"] = len(self._users), len(self._items), self.memory
        sizes = facts["sizes"]
        rank = torch.distributed.get_rank(process_group)
        self._group, self._shares_users = process_group, shares_users
        if shares_users:
            self.num_users: int | None = sum(users for users, _, _ in sizes)
        self._first_user = sum(users for users, _, _ in sizes[:rank]) if shares_users else 0
        self.num_items: int = sum(items for _, items, _ in sizes)
        self.offset: int = sum(items for _, items, _ in sizes[:rank])
        # as on the process with most items and that with the least memory, so that all form the same batches
        self.row_bytes: int = 2 * max(items for _, items, _ in sizes) * self.dtype.itemsize + 8 * self._users.shape[1]
        self.memory = min(memory for _, _, memory in sizes)

    def misfit(self, target: Interactions) -> str:
        """Return the message for a ground truth of other sizes."""
        size = f"{target.num_users} x {target.num_items}"
        return (
            f"target is {size}; there are {self.num_users} users and, on all processes together, {self.num_items} "
            'items: each process passes its own items, and its own users only with shard="both"'
        )

    def vectors(self, users: Tensor) -> Tensor:
        """Return the embeddings of users, of whom each process may have some."""
        if not self._shares_users:
            return super().vectors(users)
        row = users.to(self.device) - self._first_user
        is_here = (row >= 0) & (row < len(self._users))
        vectors = torch.zeros(len(row), self._users.shape[1], dtype=self.dtype, device=self.device)
        vectors[is_here] = self._comparable(self._users[row[is_here]])
        return over_processes(vectors, ReduceOp.SUM, self._group)

    def scores(self, users: Tensor, at_once: int) -> Tensor:
        """Return the scores of the items of this process; if one process runs out of memory, all raise that error."""
        vectors = self.vectors(users)
        with agreement(None, self._group, device=self.device):
            return self.product(vectors)

    def input(self, batch: Batch, at_once: int) -> Input:
        """Return the scores of the items of this process, for the same users on every process."""
        scores = self.scores(batch.users, at_once)
        return with_data_of(batch, ItemShard(scores, None, self.offset, self.num_items, process_group=self._group))


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Put a model that is a module into eval mode, and restore the mode of each submodule at the end."""
    modes = {module: module.training for module in model.modules()} if isinstance(model, nn.Module) else {}
    if modes:
        model.eval()
    try:
        yield
    finally:
        for module, is_training in modes.items():
            module.training = is_training
