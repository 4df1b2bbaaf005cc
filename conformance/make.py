"""Write the conformance vectors, `conformance/*.json`: python conformance/make.py.

The values come from the definitions in tests/helpers/reference.py, which imports neither torch nor the package.
"""

import json
import math
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent / "tests" / "helpers"))
import reference  # noqa: E402

Case = dict[str, Any]
INF, NAN = math.inf, math.nan
FORMULAS: dict[str, Callable[..., float]] = {
    "HR": reference.hit_rate,
    "Precision": reference.precision,
    "Recall": reference.recall,
    "F1": reference.f1,
    "RPrecision": reference.r_precision,
    "MAP": reference.average_precision,
    "DCG": reference.dcg,
    "NDCG": reference.ndcg,
    "MRR": reference.reciprocal_rank,
    "AUROC": reference.auroc,
}
AT_K = ("HR", "Precision", "Recall", "F1", "MAP", "DCG", "NDCG", "MRR")
WHOLE = ("RPrecision", "MAP", "NDCG", "MRR", "AUROC")


def values_of(given: Case, metric: str, k: int | None, options: Case) -> list[float | None]:
    """Return the value of each row of an input; None = no value, and the row is left out of the mean."""
    values: list[float | None] = []
    for row, (scores, target) in enumerate(zip(scores_of(given, options), given["target"], strict=True)):
        gains = dict(zip(target, given["gains"][row], strict=True)) if "gains" in given else dict.fromkeys(target, 1.0)
        gains = {item: gain for item, gain in gains.items() if item >= 0}
        if options.get("gain") == "exponential":
            gains = {item: 2.0**gain - 1 for item, gain in gains.items()}
        excluded = given["exclude"][row] if "exclude" in given else []
        overlap = options.get("overlap", "miss")
        if not any(gain > 0 for gain in gains.values()) and options.get("empty_target_action") != "neg":
            values.append(None)
        else:
            threshold = options.get("score_threshold", -INF)
            ties = options.get("ties", "expected")
            user = reference.rank(scores, gains, excluded, ties, overlap=overlap, threshold=threshold)
            cutoff = {} if k is None else {"k": k}
            names = ("normalize", "denominator", "zero_division")
            divisor = {name: options[name] for name in names if name in options}
            if metric == "Precision" and "normalize" in divisor:
                divisor = {"denominator": divisor["normalize"]}
            if threshold > -INF:
                divisor["threshold"] = True
            value = FORMULAS[metric](user, **cutoff, **divisor)
            values.append(None if math.isnan(value) else value)
    return values


def scores_of(given: Case, options: Case) -> list[list[float]]:
    """Return the scores of an input, or scores that put the items of its lists into their order."""
    if "scores" in given:
        return [[-INF if math.isnan(score) else score for score in row] for row in given["scores"]]
    rows = []
    for items in given["lists"]:
        scores = [-INF] * given["num_items"]
        items = [item for item in items if item >= 0]
        if options.get("duplicates") == "first":
            items = list(dict.fromkeys(items))
        for place, item in enumerate(items):
            if scores[item] == -INF:
                scores[item] = -float(place)
            else:
                scores.append(-float(place))  # a repeat holds its place, as an item that nobody looks for
        rows.append(scores)
    return rows


def cases(given: Case, metrics: tuple[str, ...], cutoffs: tuple[int | None, ...], **options: Any) -> list[Case]:
    """Return a case for each metric and cut-off."""
    found = []
    for metric in metrics:
        for k in cutoffs:
            values = values_of(given, metric, k, options)
            defined = [value for value in values if value is not None]
            mean = math.fsum(defined) / len(defined) if defined else None
            found.append({"metric": metric, "k": k, "options": options, "values": values, "mean": mean})
    return found


def relevant(g: random.Random, items: int, most: int, rows: int) -> list[list[int]]:
    """Return 1 to `most` relevant items of each row."""
    return [g.sample(range(items), g.randint(1, most)) for _ in range(rows)]


def order(g: random.Random, items: int) -> list[float]:
    """Return distinct scores."""
    return [float(score) for score in g.sample(range(1, items + 1), items)]


def levels(g: random.Random, items: int, number: int) -> list[float]:
    """Return scores of which only some are distinct."""
    return [float(g.randint(1, number)) for _ in range(items)]


def distinct(g: random.Random) -> Iterator[Case]:
    """Yield scores without ties."""
    for name, items, most in (("one relevant item", 9, 1), ("several relevant items", 12, 5)):
        given = {"name": name, "scores": [order(g, items) for _ in range(4)], "target": relevant(g, items, most, 4)}
        yield given | {"cases": cases(given, AT_K, (1, 3, 10)) + cases(given, WHOLE, (None,))}
    given = {"name": "a small catalogue", "scores": [order(g, 3), order(g, 3)], "target": [[0], [1, 2]]}
    yield given | {"cases": cases(given, AT_K, (5,)) + cases(given, WHOLE, (None,))}
    given = {"name": "scores of both signs", "scores": [[2.0, -1.0, -3.0, 0.0], [-4.0, -1.0, -2.0, -3.0]]}
    given |= {"target": [[1], [2, 0]]}
    yield given | {"cases": cases(given, AT_K, (2,)) + cases(given, WHOLE, (None,))}


def ties(g: random.Random) -> Iterator[Case]:
    """Yield scores with ties."""
    for name, number, most in (("some ties", 4, 2), ("many ties", 2, 3), ("all equal", 1, 2)):
        given = {"name": name, "scores": [levels(g, 7, number) for _ in range(3)], "target": relevant(g, 7, most, 3)}
        found = cases(given, AT_K, (1, 3)) + cases(given, WHOLE, (None,))
        for rule in ("optimistic", "pessimistic", "realistic"):
            found += cases(given, ("HR", "NDCG", "MRR"), (2,), ties=rule)
        yield given | {"cases": found}


def history(g: random.Random) -> Iterator[Case]:
    """Yield inputs with items that are no candidates."""
    given = {"name": "excluded items", "scores": [order(g, 10) for _ in range(3)], "target": [[2], [3, 4], [9, 0]]}
    given |= {"exclude": [[0, 1, 5], [9], [1, 2, 3, 4, 5, 6, 7]]}
    metrics = ("HR", "Recall", "NDCG", "MRR")
    yield given | {"cases": cases(given, metrics, (1, 3)) + cases(given, WHOLE, (None,))}
    given = given | {"name": "excluded relevant items", "exclude": [[2, 1], [4, 8], [0, 1]]}
    found = [case for overlap in ("miss", "keep") for case in cases(given, metrics, (3,), overlap=overlap)]
    found += [case for overlap in ("miss", "keep") for case in cases(given, WHOLE, (None,), overlap=overlap)]
    yield given | {"cases": found}
    given = {"name": "repeated and padded ids of the history", "scores": [order(g, 6)], "target": [[1]]}
    given |= {"exclude": [[0, 0, 5, -1]]}
    yield given | {"cases": cases(given, metrics, (2,)) + cases(given, ("AUROC",), (None,))}
    given = {"name": "-inf is no candidate", "scores": [[3.0, -INF, 1.0, 2.0], [-INF, -INF, 5.0, -INF]]}
    given |= {"target": [[1, 2], [2]]}
    yield given | {"cases": cases(given, AT_K, (3,)) + cases(given, WHOLE, (None,))}


def gains(g: random.Random) -> Iterator[Case]:
    """Yield inputs with gains."""
    target = relevant(g, 10, 4, 3)
    given = {"name": "grades", "scores": [order(g, 10) for _ in range(3)], "target": target}
    given |= {"gains": [[float(g.randint(1, 4)) for _ in row] for row in target]}
    found = cases(given, ("DCG", "NDCG"), (1, 3, 10)) + cases(given, ("DCG", "NDCG"), (1, 3, 10), gain="exponential")
    yield given | {"cases": found + cases(given, ("HR", "Precision", "MAP"), (3,))}
    tied = given | {"name": "grades of tied items", "scores": [levels(g, 10, 3) for _ in range(3)]}
    yield tied | {"cases": cases(tied, ("DCG", "NDCG"), (1, 3, 10))}
    given = {"name": "gains below 0", "scores": [order(g, 6), order(g, 6)], "target": [[0, 1, 2], [3, 4]]}
    given |= {"gains": [[1.0, -1.0, 2.0], [-0.5, 1.0]]}
    yield given | {"cases": cases(given, ("DCG", "NDCG"), (2, 6)) + cases(given, ("HR", "MRR"), (2,))}


def edges(g: random.Random) -> Iterator[Case]:
    """Yield rows at the edges of the definitions."""
    metrics = ("HR", "Precision", "Recall", "NDCG", "MRR", "MAP")
    given = {"name": "rows without a relevant item", "scores": [order(g, 5) for _ in range(3)], "target": [[], [2], []]}
    yield given | {"cases": cases(given, metrics, (2,)) + cases(given, ("AUROC", "RPrecision"), (None,))}
    given = {"name": "negative ids are padding", "scores": [order(g, 5) for _ in range(2)]}
    given |= {"target": [[-1, 3, -1], [0, -1, 4]]}
    yield given | {"cases": cases(given, metrics, (2,)) + cases(given, ("AUROC", "RPrecision"), (None,))}
    given = {"name": "all items are relevant", "scores": [order(g, 3)], "target": [[0, 1, 2]]}
    yield given | {"cases": cases(given, metrics, (2,)) + cases(given, ("AUROC", "RPrecision"), (None,))}
    given = {
        "name": "the score of the target is NaN",
        "scores": [[1.0, NAN, 2.0], [3.0, 1.0, 2.0]],
        "target": [[1], [0]],
    }
    yield given | {"cases": cases(given, metrics, (1, 3))}
    given = {"name": "k beyond the catalogue", "scores": [order(g, 4), order(g, 4)], "target": [[0], [1, 3]]}
    yield given | {"cases": cases(given, metrics, (20,))}


def lists(g: random.Random) -> Iterator[Case]:
    """Yield lists."""
    metrics = ("HR", "Precision", "Recall", "NDCG", "MRR", "MAP")
    items = [g.sample(range(20), 8) for _ in range(4)]  # of a row: 5 listed ones, and 3 others
    given = {"name": "lists", "num_items": 20, "lists": [row[:5] for row in items]}
    given |= {"target": [row[place:8:3] for place, row in enumerate(items)]}
    yield given | {"cases": cases(given, metrics, (1, 3, 5))}
    given = {"name": "lists that end early", "num_items": 9, "lists": [[4, 2, -1, -1], [7, -1, -1, -1]]}
    given |= {"target": [[2, 5], [7]]}
    yield given | {"cases": cases(given, metrics, (2, 4))}
    given = {
        "name": "repeated items",
        "num_items": 9,
        "lists": [[4, 4, 2, 5], [7, 8, 7, 1]],
        "target": [[2, 4], [7, 1]],
    }
    found = [case for rule in ("first", "keep_place") for case in cases(given, metrics, (2, 3), duplicates=rule)]
    yield given | {"cases": found}


def variants(g: random.Random) -> Iterator[Case]:
    """Yield inputs for values of other definitions."""
    given = {
        "name": "min(k, relevant items)",
        "scores": [order(g, 8) for _ in range(3)],
        "target": relevant(g, 8, 4, 3),
    }
    yield given | {"cases": cases(given, ("Precision", "Recall", "MAP"), (2, 5), normalize="min")}
    given = {"name": "a short ranking", "scores": [[1.0, 2.0, -INF, -INF]], "target": [[0, 3]]}
    yield given | {"cases": cases(given, ("Precision",), (4,), denominator="recommended")}
    given = {"name": "nothing relevant, or no score from 3.5 on", "target": [[0], [1], [], []]}
    given["scores"] = [[4.0, 1.0], [1.0, 2.0], [4.0, 1.0], [1.0, 2.0]]
    limits = {"score_threshold": 3.5, "zero_division": 1.0, "empty_target_action": "neg"}
    found = cases(given, ("Precision",), (2,), denominator="recommended", **limits)
    yield given | {"cases": found + cases(given, ("Recall",), (2,), **limits)}


TOPICS: dict[str, tuple[str, Callable[[random.Random], Iterator[Case]]]] = {
    "distinct": ("Scores without ties", distinct),
    "ties": ("Equal scores: the mean over all orders of equal scores, unless the option ties says otherwise", ties),
    "history": ("Items that are no candidates: excluded ones, and scores of -inf", history),
    "gains": ("Relevance in grades, and items that should not be shown (gains below 0)", gains),
    "edges": ("Rows without a relevant item, padding, NaN", edges),
    "lists": ("Recommended items, best first; -1 = no more items; an item that is not listed is missed", lists),
    "variants": (
        "Other definitions of these names: divided by min(k, relevant items), or by the recommended items; limit cases",
        variants,
    ),
}


def plain(value: Any) -> Any:
    """Return a value with texts in place of the floats that JSON does not have."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def text_of(topic: str) -> str:
    """Return the file of a topic: an input or a case a line."""
    about, make = TOPICS[topic]
    lines = []
    for given in make(random.Random(topic)):
        head = json.dumps(plain({key: value for key, value in given.items() if key != "cases"}))[1:-1]
        body = ",\n".join("   " + json.dumps(plain(case)) for case in given["cases"])
        lines.append(f'  {{{head}, "cases": [\n{body}\n  ]}}')
    return f'{{"topic": "{topic}", "about": {json.dumps(about)}, "inputs": [\n' + ",\n".join(lines) + "\n]}\n"


if __name__ == "__main__":
    for topic in TOPICS:
        (FOLDER / f"{topic}.json").write_text(text_of(topic), encoding="utf-8")
        print(topic, sum(len(given["cases"]) for given in json.loads(text_of(topic))["inputs"]))
