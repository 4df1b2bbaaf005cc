"""`Embeddings`: vectors of users and items whose products are the scores of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from torchrecmetrics.core.arrays import as_tensor
from torchrecmetrics.core.checks import ID_DTYPES, check_choice, check_strided
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.evaluation.test_set import TargetDevice

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
