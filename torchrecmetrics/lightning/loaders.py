"""`LoaderRows`: the collection of one loader during an epoch, and what decides which of its rows count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchrecmetrics.collect_sessions import CollectSessions
from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.core.accumulators import Accumulator, State
from torchrecmetrics.core.arrays import ordinary_tensors
from torchrecmetrics.core.checks import in_words
from torchrecmetrics.core.ranking import Ranking, count_violation
from torchrecmetrics.core.rows import Layout, RowValues, Summary
from torchrecmetrics.data.catalogue import Catalogue
from torchrecmetrics.data.groups import Groups
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.evaluation.arguments import check_item_ids
from torchrecmetrics.inputs.sessions import Sessions
from torchrecmetrics.lightning.reporting import SHORT
from torchrecmetrics.lightning.samples import MAY_REPEAT, SampleRows, Share


class EntriesFoundError(Exception):
    """Raised by `compute` on all processes if one of them has entries of sessions."""


class EntryCounts(Accumulator):
    """Number of entries of sessions, and of other rows, of one loader.

    Entries are kept by `CollectSessions`, not by the collection that this belongs to. A process without a batch learns
    from the sums over the processes that it takes part in putting sessions together.
    """

    num_entries: Tensor
    num_rows: Tensor

    def begin(self, layout: Layout) -> None:
        """Register the two numbers."""
        super().begin(layout)
        with ordinary_tensors():
            for name in ("num_entries", "num_rows"):
                self.add_state(name, torch.zeros((), dtype=torch.int64, device=self._device), "sum")

    def count_entries(self, number: int) -> None:
        """Add a number of entries."""
        with ordinary_tensors():
            self.assign({"num_entries": self.num_entries + number})

    def added(self, rows: RowValues) -> State:
        """Return the number of rows with those of a batch added."""
        return {"num_rows": self.num_rows + len(rows)}

    def counts(self) -> Sequence[Tensor]:
        """Return both numbers."""
        return [self.num_entries, self.num_rows]

    def results(self, counts: Sequence[Tensor], sums: Sequence[Tensor]) -> dict[str, Summary]:
        """Return no results.

        Raises:
            EntriesFoundError: if there are entries.
            ValueError: if there are also other rows.
        """
        entries, rows = (int(number) for number in counts)
        if entries and rows:
            raise ValueError(f"{entries} entries of sessions ('indexes') came beside {rows} rows: return one of them")
        if entries:
            raise EntriesFoundError
        return {}


@dataclass
class LoaderRows:
    """The rows of one loader during an epoch."""

    name: str
    prefix: str
    postfix: str
    collection: RecMetricCollection
    exclude: Interactions | None
    past: Interactions | None
    codes: Tensor | None
    samples: SampleRows | None
    share: Share | None
    error: Exception | None = None
    sessions: CollectSessions | None = None
    """Entries of sessions; None without any."""

    @property
    def columns(self) -> Mapping[str, Accumulator]:
        """Accumulators by the columns that they read."""
        return self.collection.evaluator.columns

    def add_violation(self, kind: str, device: torch.device) -> None:
        """Add a violation without a row, so that all processes raise in `compute`."""
        nobody = Ranking.without_relevant(0, device, self.collection.evaluator.batch_needs.score_threshold)
        nobody = replace(nobody, violations=count_violation(kind, device))
        if self.samples is None:
            self.collection.update(nobody)
        else:
            self.samples.add(torch.zeros(0, dtype=torch.int64), nobody, None, {})

    def kept(self, batch_idx: int, number: int) -> tuple[int, str | None]:
        """Return how many of a batch's samples count, and a message if repeats cannot be known."""
        kept = number if self.share is None else self.share.kept(batch_idx, number)
        if kept is None:
            rows = in_words(number)
            return number, f"a batch with repeated samples has {rows}, which are not its samples{MAY_REPEAT}"
        return kept, None

    def without_repeats(
        self, weights: Tensor | None, batch_idx: int, ranking: Ranking
    ) -> tuple[Tensor | None, str | None]:
        """Return weights that are 0 for repeated samples, and a message if repeats cannot be known."""
        rows, device = len(ranking), ranking.ranks.device
        kept, doubt = self.kept(batch_idx, rows)
        if kept < rows:
            weights = torch.ones(rows, device=device) if weights is None else weights
            weights = weights.where(torch.arange(rows, device=device) < kept, 0)
        return weights, doubt

    def first_entries(
        self, rows_input: Sessions, weights: Tensor | None, columns: Mapping[str, Any], batch_idx: int
    ) -> tuple[Sessions, Tensor | None, dict[str, Any], str | None]:
        """Return sessions, weights and columns, [E] each, without repeated entries; and a message as `kept` does."""
        assert rows_input.indexes is not None
        kept, doubt = self.kept(batch_idx, len(rows_input.scores))
        sessions = Sessions(rows_input.scores[:kept], rows_input.labels[:kept], rows_input.indexes[:kept])
        weights = None if weights is None else weights[:kept]
        return sessions, weights, {name: column[:kept] for name, column in columns.items()}, doubt

    def add_entries(self, entries: Mapping[str, Tensor], batch_idx: int) -> str | None:
        """Keep entries of sessions, [E] by name, without repeated ones; return a message if these cannot be known."""
        if self.sessions is None:
            self.sessions = CollectSessions(self.collection)
        kept, doubt = self.kept(batch_idx, len(entries["scores"]))
        self.sessions.update(**{name: column[:kept] for name, column in entries.items()})
        for accumulator in self.collection.accumulators:
            if isinstance(accumulator, EntryCounts):
                accumulator.count_entries(kept)
        return doubt

    def compute(self) -> dict[str, Tensor]:
        """Return the values over all processes, and gather kept rows; `collection` is then what computed them."""
        if self.samples is not None:
            self.samples.settle()
        try:
            values = self.collection.compute()
        except EntriesFoundError:
            self.collection = self.sessions or CollectSessions(self.collection)
            values = self.collection.compute()
        if self.collection.keep_rows:
            _ = self.collection.rows  # all processes ask for them, so that one alone can read them later
        return values


def named_loaders(trainer: Any, stage: str, dataloaders: list[str]) -> tuple[list[Any], list[tuple[str, str]]]:
    """Return the stage's loaders, and the name and the postfix of keys for each loader."""
    loop = trainer.test_loop if stage == "test" else trainer.validate_loop
    if trainer.state.fn == "fit":
        loop = trainer.fit_loop.epoch_loop.val_loop
    combined = loop._combined_loader  # trainer.val_dataloaders may hold loaders of an earlier fit
    loaders = combined.flattened
    if combined._mode != "sequential":
        return [combined], [(SHORT[stage], "")]
    names = list(map(str, combined.iterables)) if isinstance(combined.iterables, Mapping) else []
    if dataloaders and not (len(loaders) == 1 < len(dataloaders)):
        names = dataloaders
        if len(names) != len(loaders):
            raise ValueError(f"dataloaders names {', '.join(names)}, but {stage} has {len(loaders)} loaders")
    if len(names) == len(loaders):
        return loaders, [(name, "") for name in names]
    if len(loaders) == 1:
        return loaders, [(SHORT[stage], "")]
    return loaders, [(SHORT[stage], f"/dataloader_idx_{i}") for i in range(len(loaders))]


def past_of(collection: RecMetricCollection, exclude: Interactions | None, groups: Any) -> Interactions | None:
    """Return the catalogue's interactions with the row numbers of `user_ids`; None if no metric reads them."""
    catalogue = collection.catalogue
    if catalogue is None:
        return None
    assert isinstance(catalogue, Catalogue)
    if exclude is not None and exclude.item_ids is not None:  # columns of the scores are items of both
        check_item_ids(catalogue, exclude, "exclude")
    past = catalogue.interactions
    if past is None or not collection.evaluator.batch_needs.history:
        return None
    if exclude is not None:
        return past.numbered_as(exclude, "the catalogue's train", "exclude")
    if not isinstance(groups, Groups):
        return past
    ids = groups.user_ids
    if (ids is None) != (past.user_ids is None):
        has, lacks = ("groups=", "the catalogue's train") if past.user_ids is None else ("it", "groups=")
        raise ValueError(
            f"metrics read the catalogue's train, and {has} has user_ids, {lacks} none: row 5 could mean two "
            "users. If their rows are the same, say so: with_ids(user_ids=...), Groups(..., user_ids=...)"
        )
    return past if ids is None or past.user_ids == ids else past.recode(user_ids=ids)
