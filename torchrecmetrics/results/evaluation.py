"""`Evaluation`: the result of an evaluation, a dict of values that prints as a table, with intervals and exports."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from torchrecmetrics.core.result import Result
from torchrecmetrics.results.result_table import ResultTable, decimals, records, unknown_key
from torchrecmetrics.results.rows import Rows

if TYPE_CHECKING:
    from torchrecmetrics.kernels import Kernels
    from torchrecmetrics.tables.vocabulary import Vocabulary

MIN_USERS = 10
"""Minimum number of users for which a table shows an interval; for fewer users it is too wide and uncertain."""
_OTHER_SIDE = {
    "num_unserved": "lists have",
    "num_left_out": "target has",
    "num_without_history": "exclude has",
    "num_unlisted": "lists have",
    "num_unknown": "it has",
    "num_unmet": "lists have",
}
"""Words before the id of the other side that is shown beside a count of unmatched ids."""
_SHOWN_AT = {"num_left_out": "num_unserved", "num_unlisted": "num_unknown"}
"""Counts that are shown without ids if another count, their value, is shown with ids."""
_COMPARE = "compare models with trm.compare, not by intervals"


class PointTable(ResultTable):
    """Base class of results with a row for each metric, cut-off and group, and counts."""

    _gaps: ClassVar[dict[str, str]] = {"k": "whole numbers", "group": "text", "low": "floats", "high": "floats"}
    _words: ClassVar[tuple[str, ...]] = ("metric", "group", "value, error")
    _prints_head: ClassVar[bool] = False

    points: Sequence[Result]
    """Values with their standard errors, which `trm.plot` draws."""

    def result_rows(self) -> list[dict[str, Any]]:
        """Return a row per metric, cut-off and group, {column: value}; None = absent or unknown."""
        rows = []
        for point in self.points:
            low, high = (None if math.isnan(end) else end for end in point.interval())
            row = {"metric": point.name, "k": point.k, "group": point.group, "value": point.value}
            row |= {"standard_error": point.standard_error, "low": low, "high": high, "num_users": point.num_users}
            rows.append(row)
        return rows

    def counts(self) -> dict[str, int]:
        """Return the counts by name."""
        raise NotImplementedError

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return JSON text: {"rows": [{"metric": ..., "k": ..., ...}], "counts": {"num_users": ...}}; NaN is null.

        If some ids did not match, {"examples": {"num_unlisted": [id, id of the other side]}} follows.
        """
        results: dict[str, Any] = {"rows": records(self.result_rows()), "counts": self.counts()}
        if examples := getattr(self, "examples", None):
            results["examples"] = examples
        return json.dumps(results, indent=indent, allow_nan=False, default=str)


class GroupResults(PointTable):
    """Table of the values of groups of users, with a row for each metric, cut-off and group; `str()` prints it.

    `to_dict`, `to_json`, `to_pandas`, `to_polars`, `to_markdown` and `to_latex` export the table.
    """

    def __init__(self, points: Sequence[Result]) -> None:
        self.points: Sequence[Result] = [point for point in points if point.group is not None]
        if not self.points:
            raise ValueError("there are no groups: evaluate with groups=, such as trm.group_users(train)")

    def __str__(self) -> str:
        return self.to_markdown()

    def counts(self) -> dict[str, int]:
        """Return the number of groups without a user."""
        return {"num_empty": len({point.group for point in self.points if not point.num_users})}


@dataclass(eq=False, repr=False)
class EvaluationCounts:
    """Counts of an evaluation, examples of unmatched ids, and columns that were not read; see `Evaluation`."""

    num_unserved: int = 0
    num_left_out: int = 0
    num_unlisted: int = 0
    num_unknown: int = 0
    num_repeated: int = 0
    num_cut_ties: int = 0
    num_without_history: int = 0
    num_excluded: int = 0
    num_unmet: int = 0
    examples: dict[str, list[Any]] = field(default_factory=dict)
    unread: dict[str, list[str]] = field(default_factory=dict)


COUNTS = tuple(count.name for count in fields(EvaluationCounts) if count.name.startswith("num_"))
"""Names of the counts of lists and exclusions."""


class Evaluation(dict[str, Tensor], PointTable, EvaluationCounts):
    """Result of `evaluate`, `evaluate_lists` or `RecMetricCollection.result`: {label: value}; `str()` is a table.

    With `groups` it also holds the value of each group, under labels like `NDCG@10/cold`. `floats` returns the values
    as Python floats; `to_dict`, `to_json`, `to_pandas`, `to_polars`, `to_markdown` and `to_latex` export the results;
    notebooks show a table.

    Attributes:
        num_users: users that the first accuracy metric averages over; AUROC may average fewer. `num_skipped`,
            `num_unreachable` and `num_tied` also belong to that metric.
        num_without_history: evaluated users without an item in `exclude`.
        num_unserved: users of the ground truth without a list; they score 0.
        num_left_out: users with a list but no ground truth.
        num_unlisted: relevant items that are in no list.
        num_unknown: entries of lists whose item is neither in the ground truth nor in the catalogue.
        num_repeated: entries that repeat an item of their list, with `duplicates="first"`.
        num_cut_ties: lists that end among equal scores within the cut-off, so that items of that score may be missing.
        num_excluded: pairs of `exclude` of `evaluate_lists`.
        num_unmet: items of these pairs that are neither in a list nor relevant.
        examples: for each count of unmatched ids that is not 0, [such an id, an id of the other side].
        unread: names of the columns that were not read, by table.
        kernels: "eager" or "triton"; None for a collection, where each batch chooses.
    """

    def __init__(
        self,
        points: Sequence[Result],
        leading: Result,
        rows: Rows | None = None,
        kernels: Kernels | None = None,
        user_ids: Vocabulary | None = None,
        num_lists: int | None = None,
        counts: EvaluationCounts | None = None,
    ) -> None:
        super().__init__({point.key: torch.tensor(point.value, dtype=torch.float64, device="cpu") for point in points})
        self.points: Sequence[Result] = points
        vars(self).update(vars(EvaluationCounts() if counts is None else counts))
        self.kernels: Kernels | None = kernels
        self._rows = None if rows is None else _named(rows, user_ids)
        self._num_lists = leading.num_users if num_lists is None else num_lists
        self.num_users: int = leading.num_users
        self.num_skipped: int = leading.num_skipped
        self.num_unreachable: int = leading.num_unreachable
        self.num_tied: int = leading.num_tied

    @cached_property
    def standard_errors(self) -> dict[str, Tensor]:
        """Standard errors by label; nan if a value is not a mean over users."""
        return {
            point.key: torch.tensor(point.standard_error, dtype=torch.float64, device="cpu") for point in self.points
        }

    @cached_property
    def confidence_intervals(self) -> dict[str, tuple[float, float]]:
        """95 % intervals by label, as `RankingMetric.confidence_interval` gives them."""
        return {point.key: point.interval() for point in self.points}

    @cached_property
    def groups(self) -> GroupResults:
        """Results of the groups of users: a table with exports, for `trm.plot` too.

        Raises:
            ValueError: if the evaluation was made without groups.
        """
        return GroupResults(self.points)

    def __missing__(self, key: str) -> Tensor:
        raise unknown_key(key, self)

    def floats(self, digits: int | None = None) -> dict[str, float]:
        """Return the values as Python floats by label, such as for `json.dumps`; `to_json` writes null for nan.

        Args:
            digits: number of decimals to round to; None = not rounded.

        Examples:
            >>> import torchrecmetrics as trm
            >>> evaluation = trm.evaluate_lists("MRR", {7: [1, 2, 3]}, target={7: [3]}, k=3)
            >>> evaluation.floats(4)
            {'MRR@3': 0.3333}
        """
        values = {label: value.item() for label, value in self.items()}
        return values if digits is None else {label: round(value, digits) for label, value in values.items()}

    def _printed(self) -> dict[str, list[str]]:
        """Return each row's key and value as text, the value with its error and interval if it has them."""
        values = []
        for point in self.points:
            low, high = self.confidence_intervals[point.key]
            error = "" if math.isnan(point.standard_error) else f" ± {decimals(point.standard_error)}"
            has_interval = not math.isnan(low) and point.num_users >= MIN_USERS
            interval = f"  [{decimals(low)}, {decimals(high)}]" if has_interval else ""
            values.append(f"{decimals(point.value)}{error}{interval}")
        return {"metric": [*self], "value, error": values}

    @property
    def notes(self) -> list[str]:
        """Sentences below the table: counts, and the meaning or absence of errors and intervals."""
        means = [point for point in self.points if not math.isnan(point.size)]  # those with standard errors
        spread = [point.num_users >= MIN_USERS for point in means if not math.isnan(point.interval()[0])]
        sentences = [self.counted()]
        numbers = {point.key: point.num_users for point in means if point.group is None}
        others = [f"{key} {n}" for key, n in numbers.items() if n not in (self.num_users, self._num_lists)]
        if others:
            sentences.append(f"other numbers of users: {', '.join(others)}")
        if self.num_excluded:
            sentences.append(self._excluded())
        unread = {what: ", ".join(map(repr, names)) for what, names in self.unread.items() if what != "exclude"}
        if unread:
            sentences.append(f"columns not read: {'; '.join(f'{names} of {what}' for what, names in unread.items())}")
        if True in spread:
            limit = f" from {MIN_USERS} users on" if False in spread else ""
            sentences.append(f"± standard error, [95 % interval]{limit}; {_COMPARE}")
        elif spread:
            sentences.append(f"± standard error; no interval for fewer than {MIN_USERS} users")
        elif any(point.num_users == 1 for point in means):
            sentences.append("no standard error and no interval for one user")
        return sentences

    def counted(self) -> str:
        """Return the counts in words, without counts of 0."""
        counts = f"{self.num_users} {'user' if self.num_users == 1 else 'users'}"
        cut, unlisted = self.num_cut_ties, self.num_unlisted
        for name, number, text in (
            ("", self.num_skipped, "without a relevant item"),
            ("", self.num_unreachable, "with an unreachable relevant item (no candidate)"),
            ("", self.num_tied, "with a tie at a relevant item"),
            ("", self._num_lists if self._num_lists != self.num_users else 0, "with a list"),
            ("num_unserved", self.num_unserved, "without a list"),
            ("num_left_out", self.num_left_out, "with a list but no ground truth"),
            ("num_without_history", self.num_without_history, "without excluded items"),
            ("", cut, f"whose {'list ends' if cut == 1 else 'lists end'} among equal scores"),
            ("num_unlisted", unlisted, f"relevant {'item' if unlisted == 1 else 'items'} in no list"),
            (
                "num_unknown",
                self.num_unknown,
                f"list {_entry_or_entries(self.num_unknown)} with an item that the ground truth lacks",
            ),
            ("", self.num_repeated, f"repeated list {_entry_or_entries(self.num_repeated)}"),
        ):
            counts += f", {number} {text}{self._example(name)}" if number else ""
        return counts

    def _excluded(self) -> str:
        """Return the number of excluded pairs, that of their unmatched items, and columns not read, in words."""
        text = f"exclude: {self.num_excluded} {'pair' if self.num_excluded == 1 else 'pairs'}"
        if self.num_unmet:
            noun = "item is" if self.num_unmet == 1 else "items are"
            text += f", {self.num_unmet} {noun} neither listed nor relevant{self._example('num_unmet')}"
        unread = ", ".join(map(repr, self.unread.get("exclude", [])))
        return f"{text}, not read: {unread}" if unread else text

    def _example(self, name: str) -> str:
        """Return an unmatched id of a count, and an id of the other side, in brackets."""
        if name not in self.examples or _SHOWN_AT.get(name) in self.examples:
            return ""
        ids = f"; {_OTHER_SIDE[name]} such as ".join(map(repr, self.examples[name]))
        return f" (such as {ids})"

    @property
    def rows(self) -> Rows:
        """Per-user values, by id: ids of the ground truth's vocabulary, or row numbers.

        Evaluations of a whole ground truth have a row per user, in its order; `RecMetricCollection.result` has rows in
        the order of updates.
        """
        if self._rows is None:
            raise ValueError("no rows were kept: evaluate with keep_rows=True")
        return self._rows

    def counts(self) -> dict[str, int]:
        """Return all counts by name."""
        names = ("num_users", "num_skipped", "num_unreachable", "num_tied", *COUNTS)
        return {name: getattr(self, name) for name in names}


def _named(rows: Rows, user_ids: Vocabulary | None) -> Rows:
    """Return rows with ids of a vocabulary instead of row numbers."""
    if user_ids is None or not isinstance(rows.ids, Tensor):
        return rows
    ids = user_ids.ids(rows.ids)
    are_integers = all(isinstance(id_, int) and abs(id_) < 2**63 for id_ in ids)
    return replace(rows, ids=torch.tensor(ids, dtype=torch.int64) if are_integers else [str(id_) for id_ in ids])


def _entry_or_entries(number: int) -> str:
    return "entry" if number == 1 else "entries"
