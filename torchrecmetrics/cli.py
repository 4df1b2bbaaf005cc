"""The command line: `torchrecmetrics evaluate LISTS TRUTH`, `compare ROWS ROWS`, `agreement A B` and `audit LOG`."""

from __future__ import annotations

import argparse
import difflib
import json
import math
import os
import re
import shlex
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias

import torch

from torchrecmetrics.collection.collection import RecMetricCollection
from torchrecmetrics.core.checks import extra
from torchrecmetrics.core.saving import write_text
from torchrecmetrics.data.audit import audit
from torchrecmetrics.data.catalogue import Catalogue
from torchrecmetrics.data.interactions import Interactions
from torchrecmetrics.data.log import Log, LogSplit
from torchrecmetrics.evaluation.agreement import agreement, agreement_metrics
from torchrecmetrics.evaluation.evaluate_lists import evaluate_lists
from torchrecmetrics.metrics.description import takes_grade
from torchrecmetrics.metrics.ranking_metric import RankingMetric
from torchrecmetrics.results.comparison import compare
from torchrecmetrics.results.evaluation import COUNTS, Evaluation
from torchrecmetrics.results.rows import Rows
from torchrecmetrics.tables.events import events_of
from torchrecmetrics.tables.sources import open_file
from torchrecmetrics.tables.table import Table
from torchrecmetrics.tables.vocabulary import Vocabulary

#: Exit statuses.
FINE, BELOW, BAD_INPUT, INCONCLUSIVE, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 3, 130, 141

_FILES = """
Formats are recognised by name and content: csv, tsv, parquet, jsonl, TREC runs and qrels,
MovieLens, RecBole, LightGCN.
"""
_EXAMPLES = f"""examples:
  torchrecmetrics evaluate lists.parquet test.parquet -m NDCG@10 -m HR@10
  torchrecmetrics evaluate bm25.run test.qrels -m NDCG@10,MAP@100 --markdown
  torchrecmetrics evaluate lists.csv test.csv --score p --history train.csv \\
      --complete -c metrics.yaml
  torchrecmetrics evaluate lists.parquet test.parquet -m NDCG@10 \\
      --fail-under NDCG@10=0.07 --json out.json
{_FILES}
metrics.yaml holds names, cut-offs and options (pip install 'torchrecmetrics[cli]'):
  NDCG: [5, 10]
  MAP: {{k: [1, 5, 10], normalize: min}}
  RPrecision:

exit status: 0; 1 if a metric is below --fail-under or above --fail-over; 2: bad input
"""
_COMPARE_EXAMPLES = """examples:
  torchrecmetrics evaluate a.csv test.csv -m NDCG@10 --rows a.parquet
  torchrecmetrics evaluate b.csv test.csv -m NDCG@10 --rows b.parquet
  torchrecmetrics compare a.parquet b.parquet
  torchrecmetrics compare pop=pop.parquet gcn=seed0.parquet gcn=seed1.parquet \\
      --baseline pop
  torchrecmetrics compare incumbent.parquet candidate.parquet --margin 2% --strict

exit status: 0; 2: bad input; with --strict 0 passed (every metric is worse by less than
the margin, if at all), 1 failed (one is worse by more), 3 inconclusive
"""
_AGREEMENT_EXAMPLES = f"""examples:
  torchrecmetrics agreement before.csv after.csv --fail-over churn@10=.3
{_FILES}
exit status: 0; 1 if a value is below --fail-under or above --fail-over; 2: bad input
"""
_AUDIT_EXAMPLES = f"""examples:
  torchrecmetrics audit ratings.csv --time timestamp
  torchrecmetrics audit train.parquet test.parquet --user user_id --item item_id \\
      --time timestamp --strict
{_FILES}
exit status: 0; 1 with --strict if there are faults; 2 for bad input
"""


class Threshold(NamedTuple):
    """Limit of a metric's value, as `--fail-under` or `--fail-over` gives it."""

    option: str
    label: str
    limit: float

    @classmethod
    def read(cls, option: str, text: str) -> Threshold:
        """Return the threshold that a text such as `NDCG@10=0.07` gives.

        Raises:
            argparse.ArgumentTypeError: for any other text.
        """
        label, _, number = text.rpartition("=")
        try:
            limit = float(number)
        except ValueError:
            limit = math.nan
        if not label or not math.isfinite(limit):
            raise argparse.ArgumentTypeError(f"expected a label and a number, such as NDCG@10=0.07, got {text!r}")
        return cls(option, label.strip(), limit)

    def of(self, collection: RecMetricCollection) -> Threshold:
        """Return the threshold with the label as the collection spells it; refuse the option of the wrong direction."""
        metrics: dict[str, Any] = {name: (name, False) for name in COUNTS}
        metrics |= {label.lower(): (label, metric.higher_is_better) for label, metric in collection.items()}
        if self.label.lower() not in metrics:
            raise ValueError(f"{self.option} names {self.label!r}, which is not computed: {', '.join(collection)}")
        label, higher_is_better = metrics[self.label.lower()]
        if higher_is_better is (self.option == "--fail-over"):
            better, other = ("higher", "--fail-under") if higher_is_better else ("lower", "--fail-over")
            raise ValueError(f"{better} values of {label} are better, use {other} {label}={self.limit:g}")
        return self._replace(label=label)

    def missed(self, value: float) -> str | None:
        """Return how a value misses the threshold, None if it does not; NaN misses every threshold."""
        under = self.option == "--fail-under"
        if value >= self.limit if under else value <= self.limit:
            return None
        return f"{self.label} is {value:.6g}, {'below' if under else 'above'} {self.limit:.6g}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` name, by default those of the process, and return its exit status."""
    parser = _parser()
    args = parser.parse_args(arguments)
    try:
        status: int = args.run(args)
        if sys.stdout is not None:  # it is None if the caller closed it
            sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # such as by `| head`; stdout is replaced, since Python flushes it again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except (ValueError, TypeError, OSError, ImportError) as error:
        message = str(error)
        if isinstance(error, FileNotFoundError) and error.filename is not None:
            message = f"there is no file {error.filename}"
        print(f"{parser.prog} {args.command}: error: {_printable(message)}{_flags(args, message)}", file=sys.stderr)
        return BAD_INPUT
    except Exception:  # a bug must not exit with 1, the status of a metric that has dropped
        traceback.print_exc()
        return BAD_INPUT


def _flags(args: argparse.Namespace, message: str) -> str:
    """Return a line with the command's flags for the keywords and arguments of Python in a message; "" = none."""
    named = {word: flag for word, flag in _FLAGS.items() if flag.lower() in args.flags and _holds(message, word)}
    for word in re.findall(r"(?<![\w.])[a-z_]+(?==)", message):
        flags = sorted(flag for flag in args.flags if flag.endswith(f"-{word.replace('_', '-')}"))
        named |= {f"{word}=": " or ".join(flags)} if flags else {}
    return f"\nin this command: {', '.join(f'{word} is {flag}' for word, flag in named.items())}" if named else ""


def _holds(message: str, word: str) -> bool:
    """Return True if a message holds a word, and not as a part of another."""
    return re.search(rf"(?<![\w.]){re.escape(word)}(?![a-z])", message) is not None


def _printable(text: str) -> str:
    """Escape control characters, which headers and ids of files may hold."""
    return "".join(sign if sign.isprintable() or sign == "\n" else repr(sign)[1:-1] for sign in text)


#: The command's flags for words of Python whose flags have other names.
_FLAGS = {
    "target": "TRUTH",
    "exclude": "--history",
    "rank=None": "--in-order",
    "duplicates='first'": "--first",
    "catalogue=": "--train",
    "metrics=": "--metric",
}

# ------------------------------------------------------------------------------------------------------- arguments

_COLUMN: dict[str, Any] = {"metavar": "COLUMN"}
_ROLE: dict[str, Any] = {**_COLUMN, "default": ...}
_FILE: dict[str, Any] = {"type": Path, "metavar": "FILE"}
_SWITCH: dict[str, Any] = {"action": "store_true"}
_REPEATABLE: dict[str, Any] = {"action": "append", "default": []}
_METRICS: Any = {"action": "extend", "type": lambda text: text.split(","), "default": [], "metavar": "NAME@K"}


def _instead(name: str, value: Any) -> dict[str, Any]:
    """Return the settings of a flag that sets the argument `name` to a value."""
    return {"action": "store_const", "dest": name, "const": value}


def _threshold(option: str) -> dict[str, Any]:
    return {**_REPEATABLE, "type": partial(Threshold.read, option), "dest": "thresholds", "metavar": "NAME@K=VALUE"}


def _margin(text: str) -> float | str:
    """Return a margin of `compare`: a number, or a share with a percent sign."""
    return text if text.endswith("%") else float(text)


_Arguments: TypeAlias = dict[str, tuple[dict[str, Any], str]]
"""Settings of each argument for `add_argument`, and its help."""
_READING: _Arguments = {
    "--user": (_ROLE, "column of users (default: user, user_id or userId)"),
    "--item": (_ROLE, "column of items (default: item, item_id, itemId or movieId)"),
    "--delimiter": (
        {"type": lambda text: text.replace("\\t", "\t"), "metavar": "CHARACTER"},
        "separates the columns of csv files (default: recognised)",
    ),
}
_ORDER: _Arguments = {
    "--rank": (_ROLE, "column of ranks: 1, 2, 3, ... in each list"),
    "--score": (_ROLE, "column of scores: the highest is best"),
    "--in-order": (_instead("rank", None), "the rows are in order, best first"),
}
_OUTPUT: _Arguments = {
    "--json": (_FILE, "write results and counts there, whole or not at all"),
    "--markdown": (_SWITCH, "print a table in Markdown, and the counts below it"),
    "--fail-under": (_threshold("--fail-under"), "exit with 1 if a metric is below it; repeatable"),
    "--fail-over": (_threshold("--fail-over"), "exit with 1 if it is above, where lower is better; repeatable"),
}
_EVALUATE: _Arguments = {
    "lists": ({"type": Path, "metavar": "LISTS"}, "file of lists"),
    "truth": ({"type": Path, "nargs": "?", "metavar": "TRUTH"}, "file of ground truth: users' relevant items"),
    **_READING,
    "--label": (_COLUMN, "instead of TRUTH, column of LISTS: above 0 is relevant; users are sessions"),
    "--history": ({**_FILE, **_REPEATABLE}, "file of items to remove from the lists"),
    "--overlap": (
        {"choices": ["error", "keep", "miss", "without"]},
        "a pair of TRUTH and history is an error (default), kept, a miss, or removed from TRUTH",
    ),
    "-m --metric": (_METRICS, "such as NDCG@10, or NDCG@10,HR@10; repeatable"),
    "--relevant-from": ({"type": float, "metavar": "GRADE"}, "lowest value of a relevant item; NDCG reads all values"),
    "-c --config": ({"type": Path, "metavar": "YAML"}, "file of metrics with cut-offs and options"),
    **_ORDER,
    "--truth-user": (_ROLE, "column of users in TRUTH (default: as for LISTS)"),
    "--truth-item": (_ROLE, "column of items in TRUTH (default: as for LISTS)"),
    "--history-user": (_ROLE, "column of users in the history and TRAIN"),
    "--history-item": (_ROLE, "column of items in the history and TRAIN"),
    "--train": (
        _FILE,
        "training data, with the columns of the history: popularity, and users' histories, for metrics beyond "
        "accuracy such as Coverage@10 (those that need categories or embeddings: in Python); items are those of TRAIN, "
        "TRUTH and LISTS",
    ),
    "--value": (_ROLE, "column of gains in TRUTH"),
    "--no-value": (_instead("value", None), "TRUTH has no gains, whatever columns it has"),
    "--split": ({"metavar": "TEXT"}, "separator of several items in one cell, best first"),
    "--values-reduce": ({"choices": ["sum", "max", "last"]}, "gain of a pair that TRUTH repeats (default: an error)"),
    "--complete": (_SWITCH, "the lists are all that is recommended, however short"),
    "--first": ({**_instead("duplicates", "first"), "default": "error"}, "keep only the first of repeated items"),
    "--rows": (_FILE, "write the values of each user there, as parquet"),
    **_OUTPUT,
}
_AGREEMENT: _Arguments = {
    "lists_a": ({"type": Path, "metavar": "LISTS_A"}, "file of lists of one run"),
    "lists_b": ({"type": Path, "metavar": "LISTS_B"}, "file of lists of the other run"),
    **_READING,
    **_ORDER,
    "-k": ({"type": int, "action": "append", "metavar": "K"}, "cut-off (default: 10); repeatable"),
    "-p": ({"type": float, "default": 0.9, "metavar": "P"}, "RBO: probability of going on a rank (default: .9)"),
    **_OUTPUT,
}
_COMPARE: _Arguments = {
    "runs": ({"nargs": "+", "metavar": "[NAME=]ROWS"}, "file of evaluate --rows; a name given twice has several seeds"),
    "-m --metric": (_METRICS, "compare only these metrics, such as NDCG@10; repeatable"),
    "--baseline": ({"metavar": "NAME"}, "compare the others with it (default: all pairs; with a margin the first)"),
    "--margin": (
        {"type": _margin, "metavar": "VALUE|SHARE%"},
        "test also whether a run is worse by less than this, such as .02 or 2%% of the mean",
    ),
    "--strict": (_SWITCH, "exit with 1 or 3 unless every metric is worse by less than the margin"),
    "--json": (_FILE, "write the results there, whole or not at all"),
    "--markdown": (_SWITCH, "print a table of models x metrics in Markdown"),
    "--latex": (_SWITCH, "print this table in LaTeX, for the package booktabs"),
}
_AUDIT: _Arguments = {
    "log": ({"type": Path, "metavar": "LOG|TRAIN"}, "file of events, or of train events if TEST is given"),
    "test": ({"type": Path, "nargs": "?", "metavar": "TEST"}, "file of test events"),
    **_READING,
    "--time": (_ROLE, "column of times: numbers or dates"),
    "--no-time": (_instead("time", None), "the rows are in order, whatever columns there are"),
    "--json": (_FILE, "write the findings there, whole or not at all"),
    "--strict": (_SWITCH, "exit with 1 if there are faults"),
}


class _Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse the arguments; an unknown option is an error of this command that names the nearest option."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            close = difflib.get_close_matches(unknown[0].partition("=")[0], self._option_string_actions, n=1)
            cure = f"; did you mean {close[0]}?" if close else ""
            if not unknown[0].startswith("-"):
                cure = "; values of one option are joined by commas, such as -m HR@10,NDCG@10"
            self.error(f"unrecognized arguments: {' '.join(unknown)}{cure}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """Print the message with a pointer to `--help`, and exit with status 2."""
        self.exit(BAD_INPUT, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    from torchrecmetrics import __version__

    parser = _Parser(
        "torchrecmetrics",
        description="Metrics of recommended lists, tests of differences, and faults of a log.",
    )
    version: Any = {"action": "version", "version": f"torchrecmetrics {__version__}", "help": "show the version"}
    parser.add_argument("--version", **version)
    commands = parser.add_subparsers(dest="command", required=True, metavar="evaluate|compare|agreement|audit")
    for run, files, arguments, epilog in (
        (_evaluate, "LISTS [TRUTH]", _EVALUATE, _EXAMPLES),
        (_compare, "[NAME=]ROWS [[NAME=]ROWS ...]", _COMPARE, _COMPARE_EXAMPLES),
        (_agreement, "LISTS_A LISTS_B", _AGREEMENT, _AGREEMENT_EXAMPLES),
        (_audit, "LOG|TRAIN [TEST]", _AUDIT, _AUDIT_EXAMPLES),
    ):
        command = commands.add_parser(
            run.__name__.removeprefix("_"),
            usage=f"torchrecmetrics {run.__name__.removeprefix('_')} [options] {files}",
            help=run.__doc__,
            description=run.__doc__,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for names, (settings, text) in arguments.items():
            command.add_argument(*names.split(), help=text, **settings)
        command.add_argument("--version", **version)
        command.set_defaults(run=run, flags={flag for names in arguments for flag in names.split()})
    return parser


# ---------------------------------------------------------------------------------------------------------- commands


def _table(args: argparse.Namespace, path: Path, prefix: str = "", **said: Any) -> Table:
    """Return a file with the columns that the options say; `prefix` = "truth_" or "history_"."""
    source = open_file(path, args.delimiter)
    for role in ("user", "item"):
        said[role] = getattr(args, f"{prefix}{role}")
        if said[role] is ... and getattr(args, role) in source.names:  # the name of LISTS holds for other files, too
            said[role] = getattr(args, role)
    if said.get("rank", ...) is None:  # --in-order
        said["score"] = None
    return Table(source, **said)


def _evaluate(args: argparse.Namespace) -> int:
    """Metrics of recommended lists, a row per listed item, against the ground truth."""
    if (args.truth is None) == (args.label is None):
        raise ValueError("pass either TRUTH, a file of ground truth, or --label COLUMN, a column of LISTS")
    if args.label is not None and (args.history or args.train):
        raise ValueError("--history and --train cannot be combined with --label")
    inputs = [args.lists, args.truth, args.config, *args.history, args.train]
    _check_files(inputs, {"--rows": args.rows, "--json": args.json})
    if not args.metric and args.config is None:
        raise ValueError("no metric is named: pass -m NDCG@10, or a file of metrics with -c")
    lists = _table(args, args.lists, rank=args.rank, score=args.score, split=args.split)
    truth = None if args.truth is None else _table(args, args.truth, "truth_", value=args.value, split=args.split)
    train = None if args.train is None else _table(args, args.train, "history_")
    history = tuple(_table(args, path, "history_", split=args.split) for path in args.history)
    leaves_truth = args.overlap == "without"
    common: Any = {} if args.overlap is None or leaves_truth else {"overlap": args.overlap}
    if args.relevant_from is not None:
        common["relevant_from"] = args.relevant_from
    if train is not None and truth is not None:
        common["catalogue"] = _read_catalogue(train, truth, lists)
    metrics: list[Any] = [] if args.config is None else metrics_of(args.config, common)
    if args.metric:
        metrics = [*RecMetricCollection(args.metric, **common).metrics.values(), *metrics]
    common.pop("relevant_from", None)  # entries of the file may have their own
    collection = RecMetricCollection(metrics, **common)
    thresholds = [threshold.of(collection) for threshold in args.thresholds]
    evaluation = evaluate_lists(
        collection,
        lists,
        target=truth,
        exclude=history or None,
        progress=_show if sys.stderr is not None and sys.stderr.isatty() else False,
        overlap="without" if leaves_truth else None,
        keep_rows=args.rows is not None,
        **{name: getattr(args, name) for name in ("label", "values_reduce", "complete", "duplicates")},
    )
    if args.rows is not None:
        evaluation.rows.to_parquet(args.rows)
    return _report(args, evaluation, thresholds)


def _report(args: argparse.Namespace, evaluation: Evaluation, thresholds: Sequence[Threshold]) -> int:
    """Print and write a result, and return the exit status: `BELOW` if a value misses its threshold."""
    table = str(evaluation).replace("with trm.compare", "with torchrecmetrics compare")
    printed = f"{evaluation.to_markdown()}\n\n{evaluation.counted()}" if args.markdown else table
    _print(args, printed, evaluation.to_json())
    values: dict[str, Any] = {**evaluation.counts(), **evaluation}
    missed = [text for threshold in thresholds if (text := threshold.missed(float(values[threshold.label])))]
    for text in missed:
        print(_printable(text), file=sys.stderr)
    return BELOW if missed else FINE


def _read_catalogue(*tables: Table) -> Catalogue:
    """Return the catalogue of the first file's interactions, with the items of all files."""
    interactions = [Interactions.of_events(events_of(table.read())) for table in tables]
    item_ids = reduce(Vocabulary.union, (of_file.item_ids for of_file in interactions if of_file.item_ids is not None))
    return Catalogue.from_interactions(interactions[0].recode(item_ids=item_ids))


def _show(done: int, total: int) -> None:
    """Print to stderr how many of `total` users are done, overwriting the line before, and clear it at the end."""
    text = f"{done} of {total} users" if done < total else ""
    print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _compare(args: argparse.Namespace) -> int:
    """Test whether differences between runs are real: paired by user, and corrected."""
    if args.strict and args.margin is None:
        raise ValueError("--strict needs --margin, by which a run may be worse")
    files: list[tuple[str, Path]] = []
    for text in args.runs:
        name, _, path = ("", "", text) if Path(text).is_file() else text.partition("=")
        file = Path(path or text)
        if not name and file.stem in dict(files):
            raise ValueError(f"two files have the name {file.stem!r}: name them, such as other={file}")
        files.append((name or file.stem, file))
    if len(dict(files)) < 2:
        raise ValueError("compare needs two or more runs, got 1: pass the files of two runs")
    _check_files([file for _, file in files], {"--json": args.json})
    runs = _read_runs(files)
    baseline = args.baseline if args.margin is None else args.baseline or next(iter(runs))
    comparison = compare(runs, args.metric or None, baseline=baseline, margin=args.margin)
    text, table = str(comparison), comparison.by_model()
    if args.latex:
        text = "\n".join([table.to_latex(), *(f"% {note}" for note in table.notes)])
    elif args.markdown:
        text = "\n\n".join([table.to_markdown(), *table.notes])
    _print(args, text, comparison.to_json())
    if not args.strict or comparison.passed:
        return FINE
    print(_printable(comparison.verdict), file=sys.stderr)
    return BELOW if comparison.outcome == "failed" else INCONCLUSIVE


def _read_runs(files: Sequence[tuple[str, Path]]) -> dict[str, list[Rows]]:
    """Return the rows of each run; an error shows the commands that make such files of lists, and compare them."""
    runs: dict[str, list[Rows]] = {}
    unread: dict[str, str] = {}
    for name, path in files:
        try:
            runs.setdefault(name, []).append(Rows.from_parquet(path))
        except ValueError:
            unread[str(path)] = str(path.with_name(f"{path.name}-rows.parquet"))
    if not unread:
        return runs
    calls = [["evaluate", path, "test.csv", "-m", "NDCG@10", "--rows", rows] for path, rows in unread.items()]
    calls.append(["compare", *(f"{name}={unread.get(str(path), path)}" for name, path in files)])
    commands = "\n".join(f"torchrecmetrics {shlex.join(call)}" for call in calls)
    cure = "For lists and a ground truth, test.csv:"
    raise ValueError(f"{', '.join(unread)}: not a file of evaluate --rows, or cut short. {cure}\n{commands}")


def _agreement(args: argparse.Namespace) -> int:
    """Overlap, rank-biased overlap and churn of the lists of two runs."""
    _check_files([args.lists_a, args.lists_b], {"--json": args.json})
    cutoffs = args.k or [10]
    collection = agreement_metrics(cutoffs, args.p)
    thresholds = [threshold.of(collection) for threshold in args.thresholds]
    lists_a, lists_b = (_table(args, path, rank=args.rank, score=args.score) for path in (args.lists_a, args.lists_b))
    return _report(args, agreement(lists_a, lists_b, cutoffs, p=args.p), thresholds)


def _audit(args: argparse.Namespace) -> int:
    """Faults of a log, or of a split, with an example each."""
    _check_files([args.log, args.test], {"--json": args.json})
    paths = [path for path in (args.log, args.test) if path is not None]
    train, *tests = (Log.from_file(_table(args, path, time=args.time, value=None)) for path in paths)
    no_valid = train.take(torch.zeros(len(train), dtype=torch.bool, device="cpu"))
    report = audit(LogSplit(train, no_valid, *tests)) if tests else audit(train)
    findings = {name: finding._asdict() for name, finding in report.items()}
    _print(args, str(report), json.dumps({"faults": report.faults, "findings": findings}, indent=2))
    return BELOW if args.strict and report.faults else FINE


def _print(args: argparse.Namespace, text: str, as_json: str) -> None:
    """Write the results as `--json` says, and print them."""
    if args.json is not None:
        write_text(args.json, as_json + "\n")
    print(_printable(text))


def _check_files(inputs: Iterable[Path | None], outputs: Mapping[str, Path | None]) -> None:
    """Refuse a file that does not exist, and to write to a file that is read, or twice to one file."""
    files = [path for path in inputs if path is not None]
    for file in files:
        file.stat()  # raises if there is no such file
    taken = {os.path.realpath(file): "would overwrite a file that is read" for file in files}
    for option, path in outputs.items():
        if path is None:
            continue
        target = os.path.realpath(path)
        if os.path.islink(target):
            raise ValueError(f"{option} {path} is a link that leads to itself")
        if target in taken:
            raise ValueError(f"{option} {path} {taken[target]}")
        taken[target] = f"is the file of {option}, too"


# ----------------------------------------------------------------------------------------------------- metrics of YAML


def metrics_of(path: str | Path, common: Mapping[str, Any] | None = None) -> list[RankingMetric]:
    """Read metrics from a YAML file: {name: cut-offs}, or {name: {k: cut-offs, option: value}}, or a list of these.

    Args:
        path: path of the file.
        common: options of every metric whose entry does not set them.

    Raises:
        ImportError: if PyYAML is not installed.
        ValueError: for a file of another form and for unknown names and options; the message names file and metric.
    """
    try:
        import yaml
    except ImportError as error:
        raise ImportError(f"reading {path} needs PyYAML: {extra('cli')}") from error
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    metrics: list[RankingMetric] = []
    for entry in content if isinstance(content, list) else [content]:
        entries = {entry: None} if isinstance(entry, str) else entry
        if not isinstance(entries, Mapping):
            raise ValueError(f"{path} must hold metrics by name, such as 'NDCG: [5, 10]', got {type(entry).__name__}")
        for name, settings in entries.items():
            try:
                metrics += _metrics_of_entry(name, settings, common or {})
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}, {name}: {error}") from error
    return metrics


def _metrics_of_entry(name: Any, settings: Any, common: Mapping[str, Any]) -> list[Any]:
    """Return the metrics of the YAML entry `name: settings`, one per cut-off."""
    if not isinstance(name, str):
        raise ValueError(f"a metric must be a name, got {name!r}")
    options = dict(settings) if isinstance(settings, Mapping) else {"k": settings}
    metrics = [*RecMetricCollection(name, k=options.pop("k", None), **common).metrics.values()]
    if not options:
        return metrics
    if not takes_grade(metrics[0].kind, {**metrics[0].options, **options}):
        common = {name: value for name, value in common.items() if name != "relevant_from"}
    cutoffs = [[] if metric.k is None else [metric.k] for metric in metrics]
    return [metric.metric_class(*k, **{**common, **options}) for metric, k in zip(metrics, cutoffs, strict=True)]
