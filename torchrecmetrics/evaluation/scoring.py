"""Scores of batches of users from embeddings or a function, histories, and batch sizes within a memory budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from torchrecmetrics.core.checks import ID_DTYPES, as_interactions, check_k, check_strided, describe
from torchrecmetrics.core.distributed import fingerprint
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.inputs.base import SelectedItems
from torchrecmetrics.inputs.exclude import Exclude
from torchrecmetrics.inputs.scores import ScoreRows
from torchrecmetrics.kernels import Products

ScoreFunction: TypeAlias = Callable[[Tensor], Tensor]
"""A function, or a module, of user ids int64 [b] that returns scores [b, I]."""
Histories: TypeAlias = Interactions | Tensor | Sequence[Interactions | Tensor]
"""Types of `exclude=` for a whole catalogue: interactions, bool [I] for all users alike, or a tuple of these."""

Thing = TypeVar("Thing", Tensor, Interactions)

_CPU_BUDGET = 256 * 2**20
# On the CPU, products are written to a reused buffer of this size: new memory costs more than writing to it, and each
# piece costs some calls (2,000 x 20,000 and 8,000 x 40,981: 8 to 20 MB take 1.1 times as long, 100 MB as long). Steps
# that do not read scores run for many more users at once.
_BUFFER_BYTES = 64 * 2**20
# Below 32 MB the C library reuses memory, above it maps new pages each time. If all scores take at most `_FEW_BYTES`,
# new pages cost more than additional pieces (1,000 x 20,000: 50 % more time, 2,000 x 20,000: a third more; 4,000 x
# 20,000 takes as long either way, 8,000 x 20,000 takes 6 % less with the large buffer).
_SMALL_BUFFER_BYTES, _FEW_BYTES = 31 * 2**20, 256 * 2**20
_USERS_TOGETHER = 4096
# upper estimate of the bytes that one target or history entry of a row takes in the kernel
ENTRY_BYTES = 160
# numbers of embeddings that are converted to float64 together: 8 MB of memory that is reused; 128 MB off the CPU,
# where each piece costs kernel launches
_NORM_NUMBERS = 2**20
_LINE = 64  # bytes of a cache line
# the BLAS library multiplies fewer rows by another algorithm, whose last bits differ
_MIN_ROWS = 16


class TargetDevice(NamedTuple):
    """Device on which scores are computed."""

    device: torch.device
    moves: bool
    """True if the caller named the device: tensors are moved to it; otherwise they must be on it already."""

    @classmethod
    def of(cls, device: str | torch.device | None, users: object, other: Interactions | None = None) -> TargetDevice:
        """Return `device`, or else the device of the embeddings, or of `other`."""
        if device is not None:
            try:
                named = torch.device(device)
            except (RuntimeError, TypeError):
                what = f"got {device!r} ({type(device).__name__})"
                raise ValueError(
                    f"device must be a torch.device or the name of one, such as 'cuda:0', {what}"
                ) from None
            return cls(torch.empty(0, device=named).device, True)  # "cuda" is the current one, such as "cuda:0"
        if isinstance(users, Tensor):
            return cls(users.device, False)
        return cls(torch.device("cpu") if other is None else other.device, False)

    def move(self, name: str, thing: Thing) -> Thing:
        """Return `thing` on the device; raise if it is elsewhere and the caller did not name the device."""
        if thing.device == self.device:
            return thing
        if not self.moves:
            raise ValueError(f"{name} is on {thing.device}, the scores are made on {self.device}: pass device=")
        return thing.to(self.device)


class ScoreOptions(NamedTuple):
    """Options of the scores, apart from embeddings and score function."""

    item_bias: Tensor | None = None
    """Float or whole numbers [I], added to the scores."""
    similarity: Literal["dot", "cosine"] = "dot"
    items_allowed: Tensor | None = None
    """Bool [I]: only these items are candidates."""

    def read(self, num_items: int, place: TargetDevice) -> ScoreOptions:
        """Check the options, and move them to the device."""
        if self.similarity not in ("dot", "cosine"):
            raise ValueError(f"similarity must be 'dot' or 'cosine', got {self.similarity!r}")
        vectors = []
        for name, vector, kind in (
            ("item_bias", self.item_bias, "float"),
            ("items_allowed", self.items_allowed, "bool"),
        ):
            if vector is not None:
                if not isinstance(vector, Tensor):
                    raise TypeError(f"{name} must be a tensor, got {_weight_hint(vector)}")
                if name == "item_bias" and vector.dtype in ID_DTYPES:  # counts, such as popularity
                    exact = not len(vector) or int(vector.abs().max()) <= 2**24
                    vector = vector.to(torch.float32 if exact else torch.float64)
                fits = vector.is_floating_point() if kind == "float" else vector.dtype == torch.bool
                if vector.shape != (num_items,) or not fits:
                    raise ValueError(f"{name} must be {kind} [{num_items}], got {vector.dtype} {list(vector.shape)}")
                vector = place.move(name, vector)
            vectors.append(vector)
        return ScoreOptions(vectors[0], self.similarity, vectors[1])


class Scorer(Protocol):
    """Protocol of objects that compute the scores of users."""

    num_items: int
    dtype: torch.dtype
    device: torch.device
    row_bytes: int
    """Bytes of memory that the scores of one user take."""
    reuses_memory: bool
    """True if the scores of a batch are written to a reused buffer, a few users at a time."""

    def scores(self, ids: Tensor, at_once: int) -> Tensor | ScoreRows | Products:
        """Return the scores [b, I] of users, `at_once` at a time, valid until the next call; `ids` are on the host."""


class FunctionScorer:
    """Scorer that calls a score function."""

    reuses_memory: bool = False
    dtype: torch.dtype = torch.float32
    num_items: int
    device: torch.device
    row_bytes: int

    def __init__(self, function: ScoreFunction, num_items: int, options: ScoreOptions, place: TargetDevice) -> None:
        if options.similarity == "cosine":
            raise ValueError("similarity is for embeddings; a score function normalises by itself")
        self.num_items, self.device = num_items, place.device
        self.row_bytes = 4 * num_items
        self._function, self._terms = function, options

    def scores(self, ids: Tensor, at_once: int) -> Tensor:
        """Return the function's scores [b, I] plus the item bias, -inf for items that are not allowed."""
        scores = self._function(ids.to(self.device, copy=True))  # a copy, which the function may change
        fits = isinstance(scores, Tensor) and scores.is_floating_point()
        if not fits or scores.shape != (len(ids), self.num_items):
            wanted = f"float [{len(ids)}, {self.num_items}]"
            cure = "" if isinstance(scores, Tensor) or scores is None else ": torch.as_tensor(...)"
            raise ValueError(f"the score function must return {wanted}, got {describe(scores)}{cure}")
        if scores.device != self.device:
            raise ValueError(f"the score function returned {scores.device}, everything else is on {self.device}")
        bias, _, allowed = self._terms
        scores = scores if bias is None else scores + bias
        return scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)


class EmbeddingScorer:
    """Scorer that multiplies embeddings and writes the products to a reused buffer."""

    reuses_memory: bool = True
    num_items: int
    dtype: torch.dtype
    device: torch.device
    row_bytes: int

    def __init__(
        self, users: Tensor, items: Tensor, shape: tuple[int, int], options: ScoreOptions, place: TargetDevice
    ) -> None:
        for name, tensor in (("users", users), ("items", items)):
            check_strided(name, tensor, "0")
            if tensor.dim() != 2 or not tensor.is_floating_point():
                raise ValueError(f"{name} must be float [n, d], got {tensor.dtype} {list(tensor.shape)}")
        if users.shape[1] != items.shape[1]:
            raise ValueError(f"embedding widths differ: users {users.shape[1]}, items {items.shape[1]}")
        for name, have, want in zip(("users", "items"), (len(users), len(items)), shape, strict=True):
            if have != want:
                ids = f"Log.from_frame(..., {name[:-1]}_ids=range({have}))"
                whole = f"; a Log has only those that occur, unless {name[:-1]}_ids= lists all: {ids}"
                raise ValueError(
                    f"{have} {name} have embeddings, but target has {want} {name}{whole if have > want else ''}"
                )
        self.num_items, self.device = len(items), place.device
        self.dtype = torch.float64 if torch.float64 in (users.dtype, items.dtype) else torch.float32
        # the CPU multiplies up to twice as fast if each row begins at a cache line (40,981 and 49,999 items)
        line = _LINE // self.dtype.itemsize if self.device.type == "cpu" else 1
        self._width = -(-self.num_items // line) * line
        self.row_bytes = self._width * self.dtype.itemsize
        self._users, self._items = place.move("users", users), place.move("items", items)
        self._terms, self._cosine = options, options.similarity == "cosine"
        self._buffer = torch.empty((0, self._width), dtype=self.dtype, device=self.device)

    def scores(self, ids: Tensor, at_once: int) -> ScoreRows:
        """Return the scores [b, I], which are multiplied for `at_once` users at a time when they are read."""
        parts = torch.split(ids, at_once)
        return ScoreRows((len(ids), self.num_items), self.dtype, self.device, lambda: map(self._multiply, parts))

    @property
    def width(self) -> int:
        """Number of entries of an embedding."""
        return self._items.shape[1]

    def scores_of(self, ids: Tensor, items: Tensor) -> Tensor:
        """Return the scores [b, C] of users and their own items [b, C]; arbitrary at padding (negative ids)."""
        chosen, bias = items.clamp(min=0), self._terms.item_bias
        with torch.autocast(self.device.type, enabled=False):
            users = self._user_vectors(ids.to(self.device))
            scores = torch.einsum("bd,bcd->bc", users, self._unit_items[chosen])
        return scores if bias is None else (scores + bias[chosen]).to(self.dtype)

    @property
    def needs_exact_products(self) -> bool:
        """True for products of float32 in its full precision, which tensor cores do not have."""
        with_float32 = torch.float32 in {self._users.dtype, self._items.dtype}
        return with_float32 and torch.get_float32_matmul_precision() == "highest"

    def without_memory(self, ids: Tensor, check: bool) -> ProductScorer | str:
        """Return a scorer whose scores are counted without being stored, or the reason why these users have none.

        `ids` are without repeats. The check that scores will be finite costs one host sync.
        """
        kinds = {self._users.dtype, self._items.dtype}
        if not kinds <= {torch.float32, torch.bfloat16, torch.float16}:
            return f"it multiplies float32, bfloat16 and float16, the embeddings are {', '.join(map(str, kinds))}"
        added = self._added()
        if check and len(ids):
            asked = None
            if len(ids) < len(self._users):
                asked = torch.zeros(len(self._users), dtype=torch.bool, device=self.device)
                asked.index_fill_(0, ids.to(self.device), True)
            users, items = longest(self._users, asked), longest(self._items, self._terms.items_allowed)
            bound = torch.maximum(users, items) if self._cosine else users * items
            if added is not None:
                bound = bound + added.where(added != -torch.inf, 0).abs().max()
            if not bound <= torch.finfo(torch.float32).max:
                return (
                    "embeddings or item_bias hold NaN or infinity, or numbers so large that a score could be infinite"
                )
        if self._cosine:
            return ProductScorer(self._user_vectors, Products(self._users, self._unit_items, added))
        return ProductScorer(self._users.__getitem__, Products(self._users, self._items, added))

    def _added(self) -> Tensor | None:
        """Return the addend of the products, float32 [I], -inf for items that are not allowed; None = no addend."""
        bias, _, allowed = self._terms
        if allowed is not None:
            bias = torch.zeros(self.num_items, device=self.device) if bias is None else bias
            bias = bias.masked_fill(~allowed, -torch.inf)
        return None if bias is None else bias.float()

    @cached_property
    def _unit_items(self) -> Tensor:
        """Item embeddings in the dtype of the scores, normalised for cosine similarity."""
        items = self._items.to(self.dtype)
        return nn.functional.normalize(items, dim=1) if self._cosine else items

    def _user_vectors(self, at: Tensor) -> Tensor:
        """Return the embeddings of the given users in the dtype of the scores, normalised for cosine similarity."""
        users = self._users[at].to(self.dtype)
        return nn.functional.normalize(users, dim=1) if self._cosine else users

    def _multiply(self, ids: Tensor) -> Tensor:
        rows = max(len(ids), _MIN_ROWS)
        if len(self._buffer) < rows:
            self._buffer = torch.empty((rows, self._width), dtype=self.dtype, device=self.device)
        out = self._buffer[:rows, : self.num_items]
        batch = torch.zeros((rows, self._users.shape[1]), dtype=self.dtype, device=self.device)
        batch[: len(ids)] = self._user_vectors(ids.to(self.device))
        torch.mm(batch, self._unit_items.T, out=out)  # autocast does not change products with out=
        bias, _, allowed = self._terms
        if bias is not None:
            out += bias
        if allowed is not None:
            out.masked_fill_(~allowed, -torch.inf)
        return out[: len(ids)]


def longest(rows: Tensor, asked: Tensor | None) -> Tensor:
    """Return the largest norm of rows [n, d], or of the rows in `asked` (bool [n]): 0-d, NaN if a row holds NaN.

    Norms are float64, since squares of float32 can overflow, and computed piece by piece, since `vector_norm` copies
    its input to float64. Needs no host sync.
    """
    numbers = _NORM_NUMBERS if rows.device.type == "cpu" else 16 * _NORM_NUMBERS
    at_once = max(1, numbers // max(1, rows.shape[1]))
    found = []
    for first in range(0, len(rows), at_once):
        norms = torch.linalg.vector_norm(rows[first : first + at_once], dim=1, dtype=torch.float64)
        if asked is not None:
            norms = norms.where(asked[first : first + at_once], 0)
        found.append(norms.max())
    return torch.stack(found).max()


class ProductScorer:
    """Scorer whose products are never stored; embeddings keep their dtype unless they are normalised."""

    reuses_memory: bool = False
    num_items: int
    dtype: torch.dtype
    device: torch.device
    row_bytes: int = 0

    def __init__(self, users: Callable[[Tensor], Tensor], products: Products) -> None:
        self._user_vectors, self._products = users, products
        (_, self.num_items), self.dtype, self.device = products.shape, products.dtype, products.device

    def scores(self, ids: Tensor, at_once: int) -> Products:
        """Return the embeddings of the users and of all items, to be multiplied in the kernel."""
        return self._products._replace(users=self._user_vectors(ids.to(self.device)))


def scorer_of(
    users: Tensor | ScoreFunction | None,
    items: Tensor | None,
    shape: tuple[int, int],
    options: ScoreOptions,
    place: TargetDevice,
) -> EmbeddingScorer | FunctionScorer:
    """Return the scorer for a shape (users, items): embeddings, a function, or the item bias alone."""
    if users is None and items is None and options.item_bias is not None:
        nothing = torch.zeros((1, shape[1]), device=place.device)
        return FunctionScorer(lambda ids: nothing.expand(len(ids), -1), shape[1], options.read(shape[1], place), place)
    if isinstance(users, Tensor):
        if items is None:
            raise ValueError(
                "user embeddings need item embeddings, evaluate(metrics, users, items, ...); a score matrix is "
                "passed as a function: lambda ids: scores[ids]"
            )
        if not isinstance(items, Tensor):
            raise TypeError(f"items must be a tensor [I, d], got {_weight_hint(items)}")
        return EmbeddingScorer(users, items, shape, options.read(shape[1], place), place)
    if callable(users) and not isinstance(users, nn.Embedding):
        if items is not None:
            raise ValueError("a score function scores the items itself: leave items out (k and others go by name)")
        return FunctionScorer(users, shape[1], options.read(shape[1], place), place)
    raise no_users(users)


def no_users(users: Any) -> TypeError:
    """Return the error for users that cannot be scored."""
    got = "None: item_bias= alone ranks alike for all" if users is None else _weight_hint(users)
    return TypeError(f"users must be a tensor [U, d] or a function of user ids, got {got}")


def _weight_hint(thing: Any) -> str:
    """Describe a value that is not a tensor, and how to convert it."""
    cure = "pass its .weight" if isinstance(thing, nn.Embedding) else "torch.as_tensor(...)"
    return f"{type(thing).__name__}: {cure}"


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Put a model that is a module into eval mode, and restore the mode of each submodule at the end."""
    before = {part: part.training for part in model.modules()} if isinstance(model, nn.Module) else {}
    if before:
        model.eval()
    try:
        yield
    finally:
        for part, training in before.items():
            part.training = training


# ---------------------------------------------------------------------------------------------------------- history


def histories(exclude: Any) -> Sequence[Any]:
    """Return one, several or no histories as a sequence."""
    if exclude is None:
        return ()
    parts: Sequence[Any] = (
        exclude if type(exclude) in (tuple, list) else (exclude,)
    )  # a SelectedItems or Split is one argument
    return parts


class History:
    """Excluded items of each user, as interactions and masks of items."""

    def __init__(self, exclude: Histories | None, num_items: int, place: TargetDevice) -> None:
        self.parts: list[Interactions] = []
        self.masks: list[Tensor] = []
        for part in histories(exclude):
            if isinstance(part, Interactions):
                if part.num_items != num_items:
                    raise ValueError(f"exclude has {part.num_items} items, the scores have {num_items}")
                self.parts.append(place.move("exclude", part))
            elif isinstance(part, Tensor) and part.dtype == torch.bool and part.shape == (num_items,):
                self.masks.append(place.move("exclude", part))
            else:
                what = f"{part.dtype} {list(part.shape)}" if isinstance(part, Tensor) else type(part).__name__
                if isinstance(part, SelectedItems):
                    what += ": pass the Interactions whole, without select"
                elif (whole := as_interactions("exclude", part)) is not None:
                    what += f": pass {whole}"
                elif isinstance(part, Tensor) and part.dtype == torch.uint8 and part.shape == (num_items,):
                    what += ": pass exclude.bool()"
                raise TypeError(f"exclude must be Interactions, bool [{num_items}] or a tuple of these, got {what}")

    def lengths(self, others: Tensor) -> Tensor:
        """Return `others` plus the number of excluded items of each user, masks apart, int64 [U] on the host."""
        total = others
        for part in self.parts:
            if part.num_users != len(others):
                raise ValueError(f"exclude has {part.num_users} users, expected {len(others)}")
            total = total + part.host_degree
        return total

    def select(self, ids: Tensor) -> Exclude | None:
        """Return the excluded items of users as the kernel's `exclude`; None if nothing is excluded."""
        chosen = (*(part.select(ids).items for part in self.parts), *self.masks)
        return chosen or None

    def excluded(self, ids: Tensor) -> Tensor | None:
        """Return the excluded items of users without the masks, int64 [b, H], negative = padding; None if no parts."""
        parts = [part.select(ids).items for part in self.parts]
        return torch.cat(parts, 1) if parts else None

    def fingerprint(self) -> list[object]:
        """Return hashes of the parts and masks, to compare histories across processes; costs host syncs."""
        return [*(fingerprint(part.keys) for part in self.parts), *map(fingerprint, self.masks)]

    def holds(self, target: Interactions) -> Tensor:
        """Return which pairs of the ground truth are excluded, bool [E]."""
        both = torch.zeros(len(target), dtype=torch.bool, device=target.device)
        keys = target.keys
        for part in self.parts:
            if len(part):
                known = part.keys  # ascending
                both |= known[torch.searchsorted(known, keys).clamp(max=len(known) - 1)] == keys
        for mask in self.masks:
            both |= mask[target.items]
        return both

    def check_overlap(
        self, target: Interactions, ids: Tensor, padding_idx: int | None, cure: str | None = None
    ) -> None:
        """Raise if relevant items are also excluded: the values would depend on the meaning of such a pair.

        Args:
            target: ground truth.
            ids: users to check.
            padding_idx: item that is padding, which is not checked.
            cure: how to remove such pairs from the ground truth; None = a method of `Interactions`.
        """
        if not self.parts and not self.masks:
            return
        if cure is None:
            alone = len(self.parts) == 1 and not self.masks
            cure = "target.without(exclude)" if alone else "target.without(part), for each part of exclude,"
        asked = torch.zeros(target.num_users, dtype=torch.bool, device=target.device)
        asked[ids.to(target.device)] = True
        both = self.holds(target) & asked[target.users]
        if padding_idx is not None:
            both &= target.items != padding_idx
        if target.values is not None:
            both &= target.values > 0
        count = int(both.sum())
        if count:
            pairs = torch.stack([target.users[both][:3], target.items[both][:3]], 1).tolist()
            if target.user_ids is not None and target.item_ids is not None:
                pairs = [[target.user_ids[user], target.item_ids[item]] for user, item in pairs]
            raise ValueError(
                f"{count} (user, item) {'pair of target is' if count == 1 else 'pairs of target are'} also in exclude, "
                f"such as {pairs}. {cure} takes them out of the test; overlap='keep' lets them compete all the same "
                "(repeat consumption); overlap='miss' counts them as not found"
            )


# ---------------------------------------------------------------------------------------------------------- batches


class Budget(NamedTuple):
    """Limits on the number of users that are scored together."""

    batch_size: int | None = None
    """Largest number of users."""
    memory: int | None = None
    """Bytes for the users' scores and the kernel's working memory; None = a share of the free memory."""

    def bytes_on(self, device: torch.device) -> int:
        """Return the number of bytes that may be used on a device."""
        if self.memory is not None:
            return check_k(self.memory, "memory_budget (bytes)")
        return int(torch.cuda.mem_get_info(device)[0] // 2) if device.type == "cuda" else _CPU_BUDGET


def batches(
    scorer: Scorer, ids: Tensor, sizes: Tensor, use: Callable[[Tensor, int], None], budget: Budget
) -> Iterator[Tensor]:
    """Apply `use` to batches of users and yield each batch when done; `ids` ascend by `sizes`.

    `sizes` [U]: target and history entries of every user. `use` takes a batch and the number of users to score at once.
    """
    at_once = len(ids) if budget.batch_size is None else check_k(budget.batch_size, "batch_size")
    together = at_once
    if scorer.reuses_memory and scorer.device.type == "cpu":
        if budget.batch_size is None:
            few = len(ids) * scorer.row_bytes <= _FEW_BYTES
            at_once = max(_MIN_ROWS, (_SMALL_BUFFER_BYTES if few else _BUFFER_BYTES) // scorer.row_bytes)
        together = max(at_once, _USERS_TOGETHER)
    memory = budget.bytes_on(scorer.device)
    done = 0
    while done < len(ids):
        # the largest batch whose scores and padded lists fit: its last user has the longest list
        low, high = 1, min(together, len(ids) - done)
        while low < high:
            middle = (low + high + 1) // 2
            longest_list = int(sizes[ids[done + middle - 1]])
            needed = min(middle, at_once) * scorer.row_bytes + middle * ENTRY_BYTES * longest_list
            low, high = (middle, high) if needed <= memory else (low, middle - 1)
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
        torch.cuda.empty_cache()  # after `except`, where the error no longer holds the batch's tensors
