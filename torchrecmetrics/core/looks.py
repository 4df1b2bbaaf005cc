"""`Looks`: keep facts of batches for questions that `compute` asks, and ask each question once.

A judge reads facts of one batch, or numbers of all batches, and returns a question with its cure, or None. On the CPU
`ask` judges a batch at once. Elsewhere `Looks` keeps a sample of the first batches, which `compute` judges.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from torchrecmetrics.core.arrays import ordinary_tensors
from torchrecmetrics.core.checks import Checks, Judge, Look, warn_caller

SAMPLE_ROWS, SAMPLE_COLUMNS = 64, 4096
"""Rows and columns of a batch that are looked at."""
SAMPLED_BATCHES, COUNTED_BATCHES = 2, 1000
"""Number of batches whose samples, or numbers, are kept."""


class Looks:
    """The facts of batches that `compute` judges, and the names of questions that were asked; each is asked once."""

    def __init__(self) -> None:
        self.kept: dict[Judge, list[Look]] = {}
        self.asked: set[Judge] = set()

    def add(self, looks: Iterable[Look]) -> None:
        """Ask what was judged at once, and keep copies of other facts, which the caller may overwrite."""
        for look in looks:
            self.ask(look.judge, look.question)
            kept = self.kept.setdefault(look.judge, [])
            if look.question is None and len(kept) < (COUNTED_BATCHES if look.of_batches else SAMPLED_BATCHES):
                with ordinary_tensors():
                    facts = tuple(fact.clone() if isinstance(fact, Tensor) else fact for fact in look.facts)
                kept.append(look._replace(facts=facts))

    def ask(self, judge: Judge, question: str | None) -> None:
        """Warn of a question that the judge, or a check of this name, has not asked before."""
        if question is not None and judge not in self.asked:
            self.asked.add(judge)
            warn_caller(question, always=True)

    def judge(self) -> None:
        """Judge the facts of all batches, which waits for the device, and warn."""
        for judge, looks in self.kept.items():
            facts = [look.facts for look in looks]
            if looks and looks[0].of_batches:
                tensors = [tensor for tensor, *_ in facts if tensor is not None]
                values = (
                    torch.stack([tensor.to(tensors[0]) for tensor in tensors]).tolist()
                    if tensors
                    else [[] for _ in facts]
                )
                facts = [([(*row, *numbers) for row, (_, *numbers) in zip(values, facts, strict=True)],)]
            for of_batch in facts if judge not in self.asked else ():
                self.ask(judge, judge(*of_batch))


def ask(checks: Checks, judge: Judge, *facts: Any, refuse: bool = False) -> None:
    """Judge a batch on the CPU, where a question is a warning or, with `refuse`, an error; or leave it to `compute`."""
    if not checks.enabled:
        return
    facts = tuple(sample(fact) if isinstance(fact, Tensor) else fact for fact in facts)
    if not checks.at_once:
        checks.looks.append(Look(judge, facts))
    elif (question := judge(*facts)) is not None:
        if refuse:
            raise ValueError(question)
        checks.looks.append(Look(judge, question=question))


def count(checks: Checks, judge: Judge, values: Tensor | None, *numbers: int) -> None:
    """Leave `values` [n] of the batch, and numbers of the host, to a judge of all batches, in `compute`."""
    if checks.enabled:
        checks.looks.append(Look(judge, (values, *numbers), of_batches=True))


def sample(matrix: Tensor) -> Tensor:
    """Return the rows and columns of [B, n, ...] that are looked at, or the entries of [E]."""
    return matrix[:SAMPLE_COLUMNS] if matrix.dim() == 1 else matrix[:SAMPLE_ROWS, :SAMPLE_COLUMNS]
