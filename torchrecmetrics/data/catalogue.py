"""`Catalogue`: popularity, categories and embeddings of the items."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import float_dtype, slices
from torchrecmetrics.core.checks import check_strided, check_tensor, describe
from torchrecmetrics.core.numbers import SIGNED, check_size
from torchrecmetrics.data.interactions import Interactions

if TYPE_CHECKING:
    from typing_extensions import Self

    from torchrecmetrics.tables.vocabulary import Vocabulary

T = TypeVar("T")

_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_AS_SHARES = "categories.double() / categories.sum(1, keepdim=True)"
FROM_TABLES = "of a frame trm.Interactions.from_frame(frame), of a file trm.Log.from_file(path).to_interactions()"
_HOW_TO_PASS = {
    "popularity": "Catalogue(..., popularity=) or Catalogue.from_interactions(train)",
    "num_users": "Catalogue(..., num_users=) or Catalogue.from_interactions(train)",
    "categories": "Catalogue(..., categories=) or Catalogue.from_interactions(train, categories=...)",
    "embeddings": "Catalogue(..., embeddings=) or Catalogue.from_interactions(train, embeddings=...)",
}


class Catalogue:
    """Popularity, categories and embeddings of the items, for metrics beyond accuracy. Immutable.

    All arguments but `num_items` are optional; a metric that needs a missing one says how to pass it. Tensors are
    moved to one device: that of the embeddings, else of the categories, else of the popularity.

    Args:
        num_items: items are 0 .. num_items - 1.
        popularity: number [I], >= 0: how often each item occurs in the training data.
        num_users: number of users who were counted, each at most once per item, so no popularity is larger.
        categories: integer [I], a code >= 0 for each item, or a list of I words; or float [I, C], rows >= 0 that sum
            to 1: an item with several genres has a share of each.
        embeddings: float [I, d], finite; a row of zeros has no direction, and similarity 0 to every item.
        item_ids: ids of the items, a `Vocabulary` or a list of length num_items; None = unknown.

    Raises:
        TypeError: for arguments of another type or dtype.
        ValueError: for other lengths, values that are NaN, infinite or negative, rows that do not sum to 1.

    Examples:
        >>> import torch
        >>> import torchrecmetrics as trm
        >>> popularity, categories = torch.tensor([5, 0, 2]), torch.tensor([0, 1, 0])
        >>> trm.Catalogue(3, popularity=popularity, num_users=5, categories=categories)
        Catalogue(3 items, popularity, 5 users, 2 categories, cpu)
    """

    interactions: Interactions | None = None
    """Interactions that the catalogue was made from; `evaluate` reads the history of each user from them."""

    def __init__(
        self,
        num_items: int,
        *,
        popularity: Tensor | None = None,
        num_users: int | None = None,
        categories: Tensor | Sequence[str] | None = None,
        embeddings: Tensor | None = None,
        item_ids: Any = None,
    ) -> None:
        self.num_items: int = check_size("num_items", num_items)
        self._num_users = None if num_users is None else check_size("num_users", num_users)
        self._popularity = None if popularity is None else _popularity(popularity, self.num_items, self._num_users)
        self._categories = None if categories is None else _categories(categories, self.num_items)
        self._embeddings = None if embeddings is None else _embeddings(embeddings, self.num_items)
        self.item_ids: Vocabulary | None = None
        if item_ids is not None:
            from torchrecmetrics.tables.vocabulary import Vocabulary

            self.item_ids = Vocabulary.named("item_ids", item_ids)
        if self.item_ids is not None and len(self.item_ids) != self.num_items:
            raise ValueError(f"item_ids holds {len(self.item_ids)} ids, but there are {self.num_items} items")
        self._num_categories = 0 if self._categories is None else _number_of(self._categories)
        tensors = [tensor for tensor in (self._embeddings, self._categories, self._popularity) if tensor is not None]
        self.device: torch.device = tensors[0].device if tensors else torch.device("cpu")
        self._move(self.device)
        self._by_device: dict[torch.device, Catalogue] = {self.device: self}

    @classmethod
    def from_interactions(
        cls, train: Interactions, *, categories: Tensor | Sequence[str] | None = None, embeddings: Tensor | None = None
    ) -> Self:
        """Make a catalogue of the popularity, users and item ids of training data, which become its `interactions`.

        Args:
            train: training interactions; `num_users` counts the users with at least one item.
            categories: as in the constructor.
            embeddings: as in the constructor.

        Raises:
            TypeError: for anything but `Interactions`; otherwise as the constructor.

        Examples:
            >>> import torch
            >>> import torchrecmetrics as trm
            >>> train = trm.Interactions.from_columns(users=[0, 0, 2], items=[1, 3, 1], num_items=5)
            >>> catalogue = trm.Catalogue.from_interactions(train)
            >>> catalogue
            Catalogue(5 items, popularity, 2 users, cpu)
            >>> catalogue.popularity
            tensor([0, 2, 0, 1, 0])
        """
        if not isinstance(train, Interactions):
            hint = "pass train.to_interactions()" if hasattr(train, "to_interactions") else FROM_TABLES
            raise TypeError(f"a catalogue is made from Interactions, got {describe(train)}: {hint}")
        catalogue = cls(
            train.num_items,
            popularity=train.popularity,
            num_users=int((train.host_degree > 0).sum()),
            categories=categories,
            embeddings=embeddings,
            item_ids=train.item_ids,
        )
        catalogue.interactions = train
        return catalogue

    # ------------------------------------------------------------------------------------------------------ properties

    @cached_property
    def fingerprint(self) -> str:
        """Text that identifies the data of the catalogue by a checksum, the same on every process."""
        digest = zlib.crc32(repr((self.num_items, self._num_users)).encode())
        for tensor in (self._popularity, self._categories, self._embeddings):
            digest = zlib.crc32(b"none" if tensor is None else repr((tensor.dtype, tensor.shape)).encode(), digest)
            if tensor is not None and not tensor.is_meta:
                for rows in torch.split(tensor, 2**20):
                    digest = zlib.crc32(rows.cpu().contiguous().view(torch.uint8).numpy().tobytes(), digest)
        return f"{self.num_items}items-{digest:08x}"

    @property
    def known(self) -> tuple[str, ...]:
        """Names of the data that the catalogue has: any of popularity, num_users, categories and embeddings."""
        return tuple(name for name in _HOW_TO_PASS if getattr(self, f"_{name}") is not None)

    @property
    def num_users(self) -> int:
        """Number of users who were counted for the popularity.

        Raises:
            ValueError: if it was not given; all properties below raise in the same case.
        """
        return self._has("num_users", self._num_users)

    @property
    def popularity(self) -> Tensor:
        """How often each item occurs in the training data, int64 or float64 [I]."""
        return self._has("popularity", self._popularity)

    @property
    def categories(self) -> Tensor:
        """Category of each item, int64 [I], or its share of each category, float [I, C]."""
        return self._has("categories", self._categories)

    @property
    def num_categories(self) -> int:
        """Number of categories C: the largest code + 1, or the columns of the shares."""
        self._has("categories", self._categories)
        return self._num_categories

    @property
    def embeddings(self) -> Tensor:
        """A vector for each item, float [I, d], as given."""
        return self._has("embeddings", self._embeddings)

    def _has(self, name: str, value: T | None) -> T:
        if value is None:
            raise ValueError(f"the catalogue has no {name}, which the metric reads: {_HOW_TO_PASS[name]}")
        return value

    def __repr__(self) -> str:
        what = {
            "num_users": f"{self._num_users} users",
            "categories": f"{self._num_categories} categories",
            "embeddings": "" if self._embeddings is None else f"embeddings of {self._embeddings.shape[1]}",
        }
        named = [] if self.item_ids is None else ["item ids"]
        parts = [f"{self.num_items} items", *(what.get(name, name) for name in self.known), *named, str(self.device)]
        return f"Catalogue({', '.join(parts)})"

    # ------------------------------------------------------------------------------- derived tensors, cached per device

    def on(self, device: str | torch.device) -> Catalogue:
        """Return the same catalogue with its tensors on `device`; it is made once per device and cached."""
        device = torch.device(device)
        if device.index is None and device.type not in ("cpu", "meta"):
            device = torch.empty(0, device=device).device  # "cuda" means the current CUDA device
        if device not in self._by_device:
            moved = object.__new__(type(self))
            moved.__dict__.update(self._uncached_attributes())
            moved.device = device
            moved._move(device)
            self._by_device[device] = moved
            moved._by_device = self._by_device
        return self._by_device[device]

    def _move(self, device: torch.device) -> None:
        for name in ("_popularity", "_categories", "_embeddings"):
            if (tensor := getattr(self, name)) is not None:
                dtype = float_dtype(device) if tensor.dtype == torch.float64 else tensor.dtype
                setattr(self, name, tensor.to(device, dtype))

    def _uncached_attributes(self) -> dict[str, Any]:
        """Return the attributes without derived tensors and without the catalogues of other devices."""
        tables = {name for name in vars(self) if isinstance(getattr(type(self), name, None), cached_property)}
        return {name: value for name, value in vars(self).items() if name not in {*tables, "_by_device"}}

    def __deepcopy__(self, memo: dict[int, Any]) -> Catalogue:
        return self  # metrics are copied often, and a catalogue is immutable

    def __getstate__(self) -> dict[str, Any]:
        return self._uncached_attributes()

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._by_device = {self.device: self}

    @cached_property
    def self_information(self) -> Tensor:
        """-log2(max(popularity, 1) / num_users), float [I]: an item without users counts like an item with one user."""
        counts = self.popularity.to(float_dtype(self.device)).clamp(min=1)
        if not self.num_users:
            return torch.full_like(counts, torch.nan)
        return -torch.log2(counts / self.num_users)

    @cached_property
    def popularity_rank(self) -> Tensor:
        """Rank of each item by popularity, int64 [I]: 1 = the most popular items; equally popular items share a rank.

        Items of popularity 0 rank last, at num_items + 1.
        """
        popularity, items = self.popularity.sort(descending=True)
        falls = torch.ones_like(items)
        falls[1:] = popularity[1:] != popularity[:-1]
        rank = falls.cumsum(0).masked_fill(popularity == 0, self.num_items + 1)
        return torch.empty_like(rank).scatter(0, items, rank)

    @cached_property
    def _tails(self) -> dict[float, Tensor]:
        return {}

    def tail(self, head: float) -> Tensor:
        """Mark the items outside the head, bool [I]; the head is the fewest items with this share of the popularity.

        Of equally popular items at the border, lower ids are in the head.

        Raises:
            ValueError: for a share that is not between 0 and 1.
        """
        if isinstance(head, bool) or not isinstance(head, (int, float)) or not 0 < head < 1:
            raise ValueError(f"head must be a share between 0 and 1, such as 0.8, got {head!r}")
        if head not in self._tails:
            self._tails[head] = slices(self.popularity, [head]) > 0
        return self._tails[head]

    @cached_property
    def inverse_lengths(self) -> Tensor:
        """1 / |e| of each embedding e, float [I]; 0 if |e| = 0."""
        dtype = float_dtype(self.device)
        parts = torch.split(self.embeddings, 2**16)  # memory may not hold a copy of all embeddings in this dtype
        lengths = torch.cat([torch.linalg.vector_norm(rows.to(dtype), dim=1) for rows in parts])
        return lengths.reciprocal().where(lengths > 0, 0)


# -------------------------------------------------------------------------------------------------- checks of arguments


def _popularity(popularity: Tensor, num_items: int, num_users: int | None) -> Tensor:
    check_tensor("popularity", popularity)
    check_strided("popularity", popularity, "0")
    if popularity.dtype == torch.bool or popularity.is_complex():
        raise TypeError(f"popularity must hold numbers, got {describe(popularity)}")
    if popularity.shape != (num_items,):
        raise ValueError(f"popularity must be [{num_items}], one number per item, got shape {list(popularity.shape)}")
    popularity = popularity.detach()
    popularity = popularity.to(float_dtype(popularity.device)) if popularity.is_floating_point() else popularity.long()
    wrong = ~(popularity >= 0) | (popularity == torch.inf)
    if wrong.any():
        item = int(wrong.nonzero()[0])
        raise ValueError(f"popularity must be >= 0 and finite, item {item} has {popularity[item].item()}")
    if num_users is not None and bool((above := popularity > num_users).any()):
        item = int(above.nonzero()[0])
        raise ValueError(
            f"popularity counts each of num_users={num_users} users once per item, but item {item} has "
            f"{popularity[item].item()}: pass Interactions.popularity, or leave num_users out"
        )
    return popularity


def _categories(column: Any, num_items: int) -> Tensor:
    if isinstance(column, Mapping):
        raise TypeError(
            "categories must be in the order of the items, got a dict: [categories[one] for one in train.item_ids]"
        )
    categories: Tensor = column
    if not isinstance(column, Tensor) and _holds_words(column):
        code = {word: number for number, word in enumerate(sorted({*column}))}
        categories = torch.tensor([code[word] for word in column], device="cpu")
    check_tensor("categories", categories)
    check_strided("categories", categories, "0")
    codes = categories.dtype in (*SIGNED, torch.uint8)
    if not codes and categories.dtype not in _FLOATS:
        cure = ""
        if categories.dtype == torch.bool and categories.dim() == 2:
            cure = ": the shares of an item with several are categories.double() / categories.sum(1, keepdim=True)"
        raise TypeError(
            f"categories must be integer codes [I] or float shares [I, C], got {describe(categories)}{cure}"
        )
    if categories.dim() != (1 if codes else 2) or len(categories) != num_items or 0 in categories.shape[1:]:
        wanted = f"[{num_items}], one code per item" if codes else f"[{num_items}, C], the shares of each item"
        cure = ""
        if codes and categories.dim() == 2:
            cure = f"; a 0/1 matrix becomes shares by {_AS_SHARES}"
        raise ValueError(f"categories must be {wanted}, got shape {list(categories.shape)}{cure}")
    categories = categories.detach()
    if codes:
        negative = categories < 0
        if negative.any():
            item = int(negative.nonzero()[0])
            raise ValueError(
                f"categories must be codes >= 0, item {item} has {categories[item].item()}: give items without a "
                "known category a code of their own"
            )
        return categories.long()
    sums = categories.sum(1, dtype=float_dtype(categories.device))
    wrong = ~((sums - 1).abs() <= 1e-6) | ~(categories >= 0).all(1)
    if wrong.any():
        item = int(wrong.nonzero()[0])
        raise ValueError(
            f"categories as shares must be >= 0 and sum to 1 (within 1e-6) for each item, those of item {item} are "
            f"{categories[item, :8].tolist()}{'' if categories.shape[1] <= 8 else ' ...'} with the sum "
            f"{sums[item].item():.8g}: {_AS_SHARES}; give items without a known category one of their own"
        )
    return categories


def _holds_words(column: Any) -> bool:
    return (
        hasattr(column, "__iter__")
        and hasattr(column, "__len__")
        and bool(len(column))
        and all(isinstance(entry, str) for entry in column)
    )


def _embeddings(embeddings: Tensor, num_items: int) -> Tensor:
    check_tensor("embeddings", embeddings)
    check_strided("embeddings", embeddings, "0")
    if embeddings.dtype not in _FLOATS:
        raise TypeError(f"embeddings must be float64, float32, float16 or bfloat16, got {describe(embeddings)}")
    if embeddings.dim() != 2 or len(embeddings) != num_items or not embeddings.shape[1]:
        raise ValueError(f"embeddings must be [{num_items}, d], one row per item, got shape {list(embeddings.shape)}")
    embeddings = embeddings.detach()
    for start in range(0, num_items, 2**16):
        wrong = ~embeddings[start : start + 2**16].isfinite().all(1)
        if wrong.any():
            item = start + int(wrong.nonzero()[0])
            raise ValueError(f"embeddings must be finite, but that of item {item} holds NaN or infinity")
    return embeddings


def _number_of(categories: Tensor) -> int:
    if categories.dim() == 2:
        return categories.shape[1]
    return int(categories.max()) + 1 if len(categories) else 0
