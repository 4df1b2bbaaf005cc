"""`Rules`: the user's options of ranking; `Needs`: the data that metrics read (depth, counts, lists)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor

from torchrecmetrics.checks import Validation, check_choice, check_k, check_padding_idx
from torchrecmetrics.kernels import KernelChoice

Ties: TypeAlias = Literal["optimistic", "realistic", "pessimistic"]
"""Rank of an item among items of equal scores: the first, the expected or the last of their ranks."""
Overlap: TypeAlias = Literal["error", "keep", "miss"]
"""A relevant item that is also excluded: an error, still a candidate, or a miss."""


@dataclass(frozen=True)
class Rules:
    """The user's options for making rankings; None = not given.

    Raises:
        TypeError: for a `padding_idx` or `max_relevant` that is no whole number.
        ValueError: for a word that is not accepted.
    """

    ties: Ties | None = None
    padding_idx: int | None = None
    overlap: Overlap | None = None
    max_relevant: int | None = None
    validate_args: Validation = True
    kernels: KernelChoice = "auto"

    def __post_init__(self) -> None:
        check_choice("ties", self.place_ties, get_args(Ties))
        check_choice("overlap", self.take_overlap, get_args(Overlap))
        check_choice("kernels", self.kernels, get_args(KernelChoice))
        if not isinstance(self.validate_args, bool) and self.validate_args != "deferred":
            raise ValueError(f"validate_args must be True, False or 'deferred', got {self.validate_args!r}")
        if self.max_relevant is not None:
            object.__setattr__(self, "max_relevant", check_k(self.max_relevant, "max_relevant"))
        object.__setattr__(self, "padding_idx", check_padding_idx(self.padding_idx))

    @property
    def place_ties(self) -> Ties:
        """Rank of an item among equal scores: `ties`, or the default, realistic."""
        return "realistic" if self.ties is None else self.ties

    @property
    def take_overlap(self) -> Overlap:
        """Meaning of a relevant item that is also excluded: `overlap`, or the default, an error."""
        return "error" if self.overlap is None else self.overlap

    def check_items(self, num_items: int) -> None:
        """Raise if `padding_idx` is beyond the last item."""
        if self.padding_idx is not None and self.padding_idx >= num_items:
            raise ValueError(f"padding_idx must be an item id in 0..{num_items - 1}, got {self.padding_idx}")

    def shaping(self, *names: str) -> dict[str, object]:
        """Return the rules that decide on ranks (ties, padding_idx, overlap), by name: all, or those in `names`."""
        options = {"ties": self.place_ties, "padding_idx": self.padding_idx, "overlap": self.take_overlap}
        return {name: options[name] for name in names or options}

    def contradiction(self, made_with: Mapping[str, object]) -> str | None:
        """Return which given rule differs from the options of a ranking, for a message; None if all agree."""
        for name, made in made_with.items():
            asked = getattr(self, name)
            if asked is not None and asked != made:
                return f"has {name}={asked!r}, but the ranking was made with {name}={made!r}"
        return None


RULES = tuple(Rules.__dataclass_fields__)


class Needs(NamedTuple):
    """The data of a batch that one or several metrics read."""

    depth: int | None = None
    """Number of top ranks that are read; None = the whole list."""
    depth_is_num_relevant: bool = False
    """True: as many ranks of a row as it has relevant items are read, too."""
    num_ranked: bool = False
    """True: the number of candidates is read, which costs a pass over the scores unless the whole list is ranked."""
    score_threshold: float | None = None
    """Minimum score: the number of candidates that reach it is read; None = not read."""
    target: bool = True
    """True: the relevant items are read."""
    list_depth: int = 0
    """Number of top ranks whose item ids are read."""
    history: bool = False
    """True: the history of each row's user is read."""
    num_items: int | None = None
    """Number of items of the catalogue, if one is read."""

    @classmethod
    def union(cls, all_needs: Iterable[Needs]) -> Needs:
        """Return the union of `all_needs`: the data that any of them reads.

        Raises:
            ValueError: for different score thresholds, of which a batch can be counted against one only, and for
                catalogues of different sizes.
        """
        needs = list(all_needs)
        depths = [need.depth for need in needs]
        thresholds = {need.score_threshold for need in needs if need.score_threshold is not None}
        if len(thresholds) > 1:
            raise ValueError(f"metrics with different score_thresholds {sorted(thresholds)} need a collection each")
        sizes = {need.num_items for need in needs if need.num_items is not None}
        if len(sizes) > 1:
            raise ValueError(f"metrics with catalogues of {sorted(sizes)} items need a collection each")
        return cls(
            None if None in depths else max((depth for depth in depths if depth is not None), default=0),
            any(need.depth_is_num_relevant for need in needs),
            any(need.num_ranked for need in needs),
            next(iter(thresholds), None),
            any(need.target for need in needs),
            max((need.list_depth for need in needs), default=0),
            any(need.history for need in needs),
            next(iter(sizes), None),
        )

    def within(self, target: Any, rules: Rules) -> Needs:
        """Return needs whose depth covers the most relevant items that a row of `target` can have, if they are read."""
        if not self.depth_is_num_relevant or self.depth is None or not isinstance(target, Tensor):
            return self
        if target.dtype == torch.bool or target.is_floating_point():
            widest = rules.max_relevant
        else:
            widest = max(1, target.shape[1]) if target.dim() == 2 else 1
        return self._replace(depth=None if widest is None else max(self.depth, widest))

    def last_rank(self, num_relevant: Tensor) -> int | Tensor | None:
        """Return the last rank of each row that is read, a number or int64 [B, 1]; None = all ranks."""
        if not self.depth_is_num_relevant or self.depth is None:
            return self.depth
        return num_relevant[:, None].clamp(min=self.depth)
