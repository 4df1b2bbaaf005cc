"""`Options` of rankings, `Needs` of metrics, and the protocol `Input`, which makes a ranking from both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, TypedDict, get_args

from torchrecmetrics.core.checks import Validation, check_choice, check_k, check_padding_idx

if TYPE_CHECKING:
    from torchrecmetrics.core.ranking import Ranking

PlacedTies: TypeAlias = Literal["realistic", "optimistic", "pessimistic"]
"""Rank of an item among items of equal scores: the expected, the first or the last of their ranks."""
Ties: TypeAlias = Literal["expected", "realistic", "optimistic", "pessimistic"]
"""Meaning of equal scores: the expected value over all their orders, or one rank for each item (`PlacedTies`)."""
OverlapRule: TypeAlias = Literal["error", "keep", "miss"]
"""Treatment of a relevant item that is also excluded: an error, a candidate, or a miss."""
KernelChoice: TypeAlias = Literal["auto", "eager", "triton"]
"""PyTorch ("eager"), Triton ("triton"), or Triton on GPUs with a recorded run and PyTorch elsewhere ("auto")."""


class RankingOptions(TypedDict, total=False):
    """Keyword options of rankings, which all metrics also take; see `RankingMetric`."""

    ties: Ties | None
    """Meaning of equal scores: "expected" (the default), "realistic", "optimistic" or "pessimistic"."""
    padding_idx: int | None
    """Item id that is padding in target and exclude, and never a candidate."""
    overlap: OverlapRule | None
    """Meaning of a relevant item that is also excluded."""
    max_relevant: int | None
    """Maximum number of relevant items per row; with it, dense and jagged targets need no host sync."""
    validate_args: Validation
    """True = values are checked, at once on the CPU, else in `compute`; "deferred" = in `compute`; False = never."""
    kernels: KernelChoice
    """Implementation of the kernels that count over scores: "auto", "eager" or "triton"."""


DEFAULTS: dict[str, Any] = {"ties": "expected", "overlap": "error"}
"""Values of options that are None."""


@dataclass(frozen=True)
class Options:
    """The user's options for making rankings; None = not given.

    Raises:
        TypeError: for a `padding_idx` or `max_relevant` that is not a whole number.
        ValueError: for a word that is not accepted.
    """

    ties: Ties | None = None
    padding_idx: int | None = None
    overlap: OverlapRule | None = None
    max_relevant: int | None = None
    validate_args: Validation = True
    kernels: KernelChoice = "auto"

    def __post_init__(self) -> None:
        tie_rule: Ties = DEFAULTS["ties"] if self.ties is None else self.ties
        overlap_rule: OverlapRule = DEFAULTS["overlap"] if self.overlap is None else self.overlap
        check_choice("ties", tie_rule, get_args(Ties))
        check_choice("overlap", overlap_rule, get_args(OverlapRule))
        check_choice("kernels", self.kernels, get_args(KernelChoice))
        if not isinstance(self.validate_args, bool) and self.validate_args != "deferred":
            raise ValueError(f"validate_args must be True, False or 'deferred', got {self.validate_args!r}")
        max_relevant = None if self.max_relevant is None else check_k(self.max_relevant, "max_relevant")
        padding_idx = check_padding_idx(self.padding_idx)
        ranks = {"ties": tie_rule, "padding_idx": padding_idx, "overlap": overlap_rule}
        derived = {"max_relevant": max_relevant, "padding_idx": padding_idx, "of_ranks": ranks}
        for name, value in {**derived, "tie_rule": tie_rule, "overlap_rule": overlap_rule}.items():
            object.__setattr__(self, name, value)

    tie_rule: Ties = field(init=False, repr=False, compare=False)
    """Meaning of equal scores: `ties`, or the default, expected."""
    overlap_rule: OverlapRule = field(init=False, repr=False, compare=False)
    """Meaning of a relevant item that is also excluded: `overlap`, or the default, an error."""
    of_ranks: dict[str, object] = field(init=False, repr=False, compare=False)
    """The options that decide on ranks (ties, padding_idx, overlap), by name."""

    def contradiction(self, made_with: Mapping[str, object]) -> str | None:
        """Return, for a message, the first option that differs from those of a ranking; None if all agree."""
        for name, ranking_option in made_with.items():
            option = getattr(self, name)
            if option is not None and option != ranking_option:
                return f"has {name}={option!r}, but the ranking was made with {name}={ranking_option!r}"
        return None


OPTIONS = tuple(option.name for option in fields(Options) if option.init)


class Needs(NamedTuple):
    """The data of a batch that one or several metrics read."""

    depth: int | None = None
    """Number of top ranks that are read; None = the whole list."""
    whole_targets: bool = False
    """True: the top R ranks of a row with R relevant items are also read."""
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
    graded: bool = False
    """True: all metrics read the gains of relevant items."""
    num_items: int | None = None
    """Number of items of the catalogue, if one is read."""

    @classmethod
    def union(cls, all_needs: Iterable[Needs]) -> Needs:
        """Return the union of `all_needs`: the data that any of them reads.

        Raises:
            ValueError: if score thresholds or sizes of catalogues differ.
        """
        needs = list(all_needs)
        depths = [need.depth for need in needs]
        thresholds = {need.score_threshold for need in needs if need.score_threshold is not None}
        if len(thresholds) > 1:
            raise ValueError(f"metrics with different score_thresholds {sorted(thresholds)} need separate collections")
        sizes = {need.num_items for need in needs if need.num_items is not None}
        if len(sizes) > 1:
            raise ValueError(f"metrics with catalogues of {sorted(sizes)} items need separate collections")
        return cls(
            depth=None if None in depths else max((depth for depth in depths if depth is not None), default=0),
            whole_targets=any(need.whole_targets for need in needs),
            num_ranked=any(need.num_ranked for need in needs),
            score_threshold=next(iter(thresholds), None),
            target=any(need.target for need in needs),
            list_depth=max((need.list_depth for need in needs), default=0),
            history=any(need.history for need in needs),
            graded=all(need.graded for need in needs),
            num_items=next(iter(sizes), None),
        )

    def depth_for(self, width: int) -> int | None:
        """Return the depth for rows of at most `width` relevant items; None = the whole list."""
        if not self.whole_targets or self.depth is None:
            return self.depth
        return max(self.depth, width)


class Input(Protocol):
    """Data of one batch that `update` takes in place of scores and target.

    An input that several processes share may have a method `scope(weights, columns)`: a context for ranking and
    checking the batch, which raises one process's error on all of them.
    """

    def rank(self, needs: Needs, options: Options) -> Ranking:
        """Return the ranking, as deep as `needs` says; raise for bad values that are checked at once."""
        ...
