"""Try metrics of any library on the conformance vectors: python conformance/run.py FILE.

FILE has a function for each metric, `HR(scores, target, k)`, under the names of the vectors: `scores` are numbers, -inf
where an item is no candidate, `target` the relevant items, `k` None for the whole ranking. A fourth argument `gains`
takes the gains of the target; without it, cases with gains are left out, as are lists and cases with options. Exits
with 1 if a value differs. Needs neither torch nor this package.
"""

import inspect
import json
import math
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def rows(given: dict[str, Any]) -> list[list[Any]]:
    """Return scores, target and gains of each row."""
    arguments = []
    for row, target in enumerate(given["target"]):
        scores = [float(score) for score in given["scores"][row]]
        for item in given.get("exclude", {row: []})[row]:
            if item >= 0:
                scores[item] = -math.inf
        gains = given["gains"][row] if "gains" in given else [1.0] * len(target)
        relevant = [(item, gain) for item, gain in zip(target, gains, strict=True) if item >= 0]
        arguments.append([scores, [item for item, _ in relevant], [gain for _, gain in relevant]])
    return arguments


def differences(metrics: dict[str, Callable[..., float]], path: Path) -> tuple[int, list[str]]:
    """Return how many values of a file were compared, and a line for each that differs."""
    compared, lines = 0, []
    for given in json.loads(path.read_text(encoding="utf-8"))["inputs"]:
        for case in given["cases"]:
            metric = metrics.get(case["metric"])
            if metric is None or case["options"] or "scores" not in given:
                continue
            with_gains = len(inspect.signature(metric).parameters) > 3
            if "gains" in given and not with_gains:
                continue
            for (scores, target, gains), value in zip(rows(given), case["values"], strict=True):
                if value is None:
                    continue
                result = metric(scores, target, case["k"], *[gains][: int(with_gains)])
                compared += 1
                if not abs(result - value) < 1e-6:
                    where = f"{path.stem}, {given['name']}: {case['metric']}, k = {case['k']}"
                    lines.append(f"{where}: {result:.4f}, not {value:.4f}")
    return compared, lines


def main(file: str) -> int:
    """Print the differences of a file's metrics; return the exit status."""
    metrics = {name: value for name, value in runpy.run_path(file).items() if inspect.isfunction(value)}
    total = 0
    for path in sorted(Path(__file__).parent.glob("*.json")):
        compared, lines = differences(metrics, path)
        total += len(lines)
        print(f"{path.stem:9} {compared - len(lines):3} equal, {len(lines)} different", *lines[:2], sep="\n  ")
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
