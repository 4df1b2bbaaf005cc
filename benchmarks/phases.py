"""Where the time of a row goes: what each part of an evaluation takes, as a share of the peer's time."""

from __future__ import annotations

import inspect
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks import workloads
from benchmarks.calls import Recorder
from benchmarks.timing import interleave, ratio
from benchmarks.workloads import Case, Skip
from torchrecmetrics import RecMetricCollection, collection, kernels, state
from torchrecmetrics.evaluation.scoring import EmbeddingScorer
from torchrecmetrics.kernels import eager
from torchrecmetrics.base.row_values import Panel
from torchrecmetrics.ranking.exclusion import Excluded
from torchrecmetrics.ranking.ranks import FromRanks
from torchrecmetrics.ranking.targets import Targets
from torchrecmetrics.ranking.topk import FromTopk

RESULTS: Path = Path(__file__).parent / "results" / "phases.json"
INTRODUCTION = """\
What each part takes, as a share of the time of the one it is held against (`python -m benchmarks phases`; timers cost a
little themselves, and another hour than the table's gives other shares). No part counts what another one does. Block
maxima and the product read or write all scores once; comparing maxima tells which relevant items may be near the top;
these are looked at again; "other counting" is what is around that. Sums add up the rows of each metric, results are
what `compute` makes of them, and "other" is what lies between the parts. In the last column are the calls of PyTorch's
operators that a run makes, and what a bare loop over the same calls takes, as such a share, too, with what numpy does
in their place, the same tensors and nothing of ours between them: the rest is Python. With thousands of calls, whose
tensors it must all keep, that loop can take longer than the run."""

#: Whose time is the measure of a row.
PEERS = {
    "C1": "torch.topk",
    "C2": "product, kept buffer",
    "C3": "product, kept buffer",
    "C4": "PyG",
    "C5": "hand-written loop",
    "C6": "PyG",
    "C8": "torchmetrics",
}
#: What a part is made of: functions, each without the others that it calls. All that is in none of them is "other".
PARTS: dict[str, list[tuple[Any, str]]] = {
    "metrics made": [(RecMetricCollection, "fresh")],
    "product": [(EmbeddingScorer, "_multiply")],
    "block maxima": [(eager, "_block_maxima")],
    "scores compared": [(eager, "by_comparing"), (eager, "by_buckets"), (eager, "by_topk")],
    "maxima compared": [(eager, "_open")],
    "looked at again": [(eager, name) for name in ("_compare_blocks", "_compare_rows", "_best", "_look_up")],
    "other counting": [(eager, "count")],
    "targets and history": [(Targets, "read"), (Excluded, "overwrite"), (kernels, "look_up")],
    "ranks or lists": [(FromRanks, "_from_ranks"), (FromTopk, "from_topk")],
    "formulas": [(Panel, "values")],
    "sums": [(Panel, "rows"), (Panel, "tallies"), (Panel, "add")],
    "results": [(collection, "compute_together"), (state, "compute_together")],
}


@contextmanager
def timed(spent: dict[str, float]) -> Iterator[None]:
    """Add up in seconds what each part takes, less the parts that it calls."""
    running: list[str] = []
    since = 0.0

    def book() -> None:
        nonlocal since
        now = time.perf_counter()
        if running:
            spent[running[-1]] += now - since
        since = now

    def watched(function: Callable[..., Any], part: str) -> Callable[..., Any]:
        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            book()
            running.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                book()
                running.pop()

        return run

    with ExitStack() as patches:
        for part, functions in PARTS.items():
            for owner, name in functions:
                found = inspect.getattr_static(owner, name)
                is_class = isinstance(found, classmethod)
                made = watched(found.__func__ if is_class else found, part)
                patches.enter_context(patch.object(owner, name, classmethod(made) if is_class else made))
        yield


def parts_of(case: Case, rounds: int | None = None) -> dict[str, Any]:
    """Return what each part takes of the peer's time: the median over rounds, as are both times."""
    run, peer = (next(one.run for one in case.contenders if one.name == name) for name in ("ours", PEERS[case.id]))
    assert run is not None
    assert peer is not None
    by_round: list[Mapping[str, float]] = []

    def ours() -> None:
        spent: dict[str, float] = defaultdict(float)
        with timed(spent):
            begin = time.perf_counter()
            run()
            spent["all"] = time.perf_counter() - begin
        by_round.append(spent)

    recorded = Recorder.of(run)
    for each in (ours, peer, recorded.replay, ours, peer):
        each()
    by_round.clear()
    taken = interleave({"ours": ours, "peer": peer, "calls": recorded.replay}, rounds=rounds)
    whole = taken["peer"]
    parts: dict[str, float] = {}
    for part in (*PARTS, "all"):
        parts[part] = statistics.median(
            spent.get(part, 0.0) / peers for spent, peers in zip(by_round, whole, strict=True)
        )
    return {
        "id": case.id,
        "case": case.name,
        "peer": PEERS[case.id],
        "peer_ms": 1e3 * statistics.median(whole),
        "ours": parts.pop("all"),
        "parts": parts,
        "calls": recorded.operators,
        "calls_alone": ratio(taken["calls"], whole),
    }


def line(case: Mapping[str, Any]) -> list[str]:
    """Return a case as a row of a table."""
    parts = {part: share for part, share in case["parts"].items() if share >= 0.005}
    other = max(0.0, case["ours"] - sum(case["parts"].values()))
    listed = [f"{part} {share:.2f}" for part, share in (parts | {"other": other}).items()]
    return [
        f"{case['id']} {case['case']}",
        f"**{case['ours']:.2f}** of {case['peer']}",
        ", ".join(listed),
        f"{case['calls']:,}: {case['calls_alone']:.2f}",
    ]


def markdown(kept: Mapping[str, Any]) -> str:
    """Return a table, a line a case."""
    head = ["", "torchrecmetrics", "of which", "its calls of PyTorch and numpy, alone"]
    rows = [head, ["---"] * len(head), *map(line, kept["cases"])]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def kept() -> dict[str, Any]:
    """Read what was measured before."""
    found: dict[str, Any] = json.loads(RESULTS.read_text())
    return found


def measure(ids: Iterable[str], data: Path, tiny: bool, rounds: int | None) -> list[dict[str, Any]]:
    """Measure rows and print them; return each case's parts."""
    cases = []
    for id in ids:
        try:
            for case in workloads.ROWS[id](tiny, data):
                if any(one.name == PEERS[id] and one.run is not None for one in case.contenders):
                    cases.append(parts_of(case, rounds))
                    print("; ".join(line(cases[-1])), flush=True)
        except Skip as reason:
            print(f"{id}: {reason}")
    return cases
