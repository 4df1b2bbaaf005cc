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
"""Where an item among equal scores stands: first, at its expected place, or last."""
Overlap: TypeAlias = Literal["error", "keep", "miss"]
"""A relevant item that is also excluded: an error, a candidate all the same, or a miss."""


@dataclass(frozen=True)
class Rules:
    """How a user wants rankings to be made; None = not said.

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
        """Where an item among equal scores stands."""
        return "realistic" if self.ties is None else self.ties

    @property
    def take_overlap(self) -> Overlap:
        """Meaning of a relevant item that is also excluded."""
        return "error" if self.overlap is None else self.overlap

    def check_items(self, num_items: int) -> None:
        """Refuse a padding_idx beyond the items."""
        if self.padding_idx is not None and self.padding_idx >= num_items:
            raise ValueError(f"padding_idx must be an item id in 0..{num_items - 1}, got {self.padding_idx}")

    def shaping(self, *names: str) -> dict[str, object]:
        """Return those of the rules that decide about places, by name: all of them, or some."""
        options = {"ties": self.place_ties, "padding_idx": self.padding_idx, "overlap": self.take_overlap}
        return {name: options[name] for name in names or options}

    def contradiction(self, made_with: Mapping[str, object]) -> str | None:
        """Say which rule that was given a ranking was not made with; None if there is none."""
        for name, made in made_with.items():
            asked = getattr(self, name)
            if asked is not None and asked != made:
                return f"has {name}={asked!r}, but the ranking was made with {name}={made!r}"
        return None


RULES = tuple(Rules.__dataclass_fields__)


class Needs(NamedTuple):
    """The data of a batch that one or several metrics read."""

    depth: int | None = None
    """Places; None = the whole list."""
    depth_is_num_relevant: bool = False
    """True: also as many places as the row has relevant items."""
    num_ranked: bool = False
    """How many items were candidates: a read of the scores of its own, unless the whole list is ranked."""
    score_threshold: float | None = None
    """How many of them reach this score."""
    target: bool = True
    """Which items are relevant."""
    list_depth: int = 0
    """Places whose item ids are read."""
    history: bool = False
    """The history of each row's user."""
    num_items: int | None = None
    """Number of items of the catalogue, if one is read."""

    @classmethod
    def union(cls, all_needs: Iterable[Needs]) -> Needs:
        """Return the needs of all of them.

        Raises:
            ValueError: for different score thresholds: a batch can be counted against one only; for catalogues of
                different sizes.
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
        """Say `depth_is_num_relevant` as a depth: that of the widest row which this target can hold."""
        if not self.depth_is_num_relevant or self.depth is None or not isinstance(target, Tensor):
            return self
        if target.dtype == torch.bool or target.is_floating_point():
            widest = rules.max_relevant
        else:
            widest = max(1, target.shape[1]) if target.dim() == 2 else 1
        return self._replace(depth=None if widest is None else max(self.depth, widest))

    def last_rank(self, num_relevant: Tensor) -> int | Tensor | None:
        """Return the last rank that is read of each row, a number or [B, 1]; None = all."""
        if not self.depth_is_num_relevant or self.depth is None:
            return self.depth
        return num_relevant[:, None].clamp(min=self.depth)
