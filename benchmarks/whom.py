"""For whom two models are good on MovieLens-100K, and what groups cost: `python -m benchmarks.whom .../ml-100k/u.data`.

Each user's last event is the test, what came before is history. Writes `benchmarks/results/whom.json`, from which
docs/how-to/for-whom.md and its picture have their numbers, and prints them in Markdown.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import torchrecmetrics as trm

RESULTS: Path = Path(__file__).parent / "results" / "whom.json"
BINS = (0, 30, 60, 120, 240)
DIMENSIONS = 20


def numbers(path: str | Path) -> dict[str, Any]:
    """Evaluate what is popular and a decomposition, by groups of users and slices of items."""
    train, valid, test = (part.to_interactions() for part in trm.Log.from_file(path).leave_last_out())
    matrix = torch.zeros(train.num_users, train.num_items, dtype=torch.float64)
    matrix[train.users, train.items] = 1
    users, values, items = torch.linalg.svd(matrix, full_matrices=False)
    users, items = users[:, :DIMENSIONS] * values[:DIMENSIONS], items[:DIMENSIONS].T
    asked: dict[str, Any] = {"exclude": train.union(valid), "k": 10}
    groups, slices = trm.group_users(train, BINS), trm.slice_targets(test, train.popularity)
    models: dict[str, Callable[..., Any]] = {
        "popularity": partial(trm.evaluate, ["HR", "NDCG"], item_bias=train.popularity, **asked),
        "decomposition": partial(trm.evaluate, ["HR", "NDCG"], users, items, **asked),
    }
    found: dict[str, Any] = {"groups": groups.sizes, "slices": {name: len(part) for name, part in slices.items()}}
    found["models"], rows = {}, {}
    for name, model in models.items():
        whole = model(target=test, groups=groups, keep_rows=True)
        rows[name] = trm.Rows({"NDCG@10": whole.rows.values["NDCG@10"]}, whole.rows.ids)
        found["models"][name] = {
            "NDCG@10": _rounded(whole["NDCG@10"].item()),
            "groups": {row.group: _rounded(row.value, row.low, row.high) for row in whole.groups.result_rows()[-5:]},
            "worst": _told(whole.worst("NDCG@10")),
            "gap": _told(whole.gap("NDCG@10")),
            "slices": {part: _rounded(one["NDCG@10"].item()) for part, one in model(target=slices).items()},
        }
    compared = trm.compare(rows, groups=groups).results
    found["differences"] = {
        one.group or "all": _rounded(one.difference, one.adjusted_low, one.adjusted_high, one.adjusted_p)
        for one in compared
    }
    return found


def costs(groups: Sequence[int] = (0, 1, 1000), rows: int = 4096, items: int = 10_000) -> dict[str, dict[str, float]]:
    """Return the milliseconds of one core, least of ten, with so many groups, of six metrics at three cut-offs.

    Of a batch, and of all values once at the end, both as in `evaluate`.
    """
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(rows, items, generator=generator)
    target = torch.randint(items, (rows, 1), generator=generator)
    names, threads = ["HR", "NDCG", "MRR", "MAP", "Recall", "Precision"], torch.get_num_threads()
    made = [trm.RecMetricCollection.fresh(names, [5, 10, 20], {}, groups=_names(number)) for number in groups]
    batch, end = [{str(number): float("inf") for number in groups} for _ in range(2)]
    torch.set_num_threads(1)
    for _ in range(10):
        for number, collection in zip(groups, made, strict=True):
            codes = torch.arange(rows) % number if number else None
            start = time.process_time()
            collection.update(scores, target, groups=codes)
            between = time.process_time()
            collection.compute()
            collection.points  # noqa: B018  # numbers on the host, as an evaluation has them
            batch[str(number)] = min(batch[str(number)], round(1000 * (between - start), 1))
            end[str(number)] = min(end[str(number)], round(1000 * (time.process_time() - between), 1))
    torch.set_num_threads(threads)
    return {"batch": batch, "end": end}


def _names(number: int) -> list[str] | None:
    return [f"g{n}" for n in range(number)] or None


def _rounded(*each: float | None) -> Any:
    digits = [None if one is None else round(one, 4) for one in each]
    return digits[0] if len(digits) == 1 else digits


def _told(found: Any) -> dict[str, Any]:
    told = found._asdict().items()
    return {name: _rounded(what) if isinstance(what, float) else what for name, what in told}


def main(path: str) -> None:
    """Write and print all numbers."""
    found = numbers(path)
    found["ms"] = costs()
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    for what in ("groups", "slices"):
        print(f"| {what} | {' | '.join(found['models'])} |\n|---|---|---|")
        for name, size in found[what].items():
            shown = [model[what][name] for model in found["models"].values()]
            told = [
                f"{each:.3f}" if isinstance(each, float) else "{:.3f} [{:.3f}, {:.3f}]".format(*each) for each in shown
            ]
            print(f"| {name} ({size}) | {' | '.join(told)} |")
        print()
    for name, model in found["models"].items():
        print(name, model["NDCG@10"], model["worst"], model["gap"], sep="\n")
    print(found["ms"])


if __name__ == "__main__":
    main(*sys.argv[1:])
