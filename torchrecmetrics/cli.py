"""The command line: `torchrecmetrics evaluate LISTS TRUTH`, `compare ROWS ROWS` and `audit LOG`."""

from __future__ import annotations

import argparse
import difflib
import json
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias

import torch

from torchrecmetrics.analysis.comparison import compare
from torchrecmetrics.analysis.rows import Rows
from torchrecmetrics.collection import RecMetricCollection
from torchrecmetrics.core.checks import extra
from torchrecmetrics.core.metric import RankingMetric
from torchrecmetrics.core.saving import write_text
from torchrecmetrics.data.audit import audit
from torchrecmetrics.data.catalogue import Catalogue
from torchrecmetrics.data.files import FileSource, open_file
from torchrecmetrics.data.frames import Roles, arrow_array, check_names
from torchrecmetrics.data.groups import Groups
from torchrecmetrics.data.log import Log, LogSplit
from torchrecmetrics.data.vocabulary import Vocabulary
from torchrecmetrics.evaluation.lists import evaluate_lists
from torchrecmetrics.evaluation.result import Evaluation

_Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"

#: Exit statuses.
FINE, BELOW, BAD_INPUT, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141

_FILES = (
    "Files are told by name and content: csv, tsv, parquet, jsonl, TREC runs and qrels, MovieLens, RecBole, LightGCN."
)
_EXAMPLES = """examples:
  torchrecmetrics evaluate lists.parquet test.parquet --rank rank -m NDCG@10 -m HR@10
  torchrecmetrics evaluate bm25.run test.qrels -m NDCG@10 -m MAP@100 --markdown
  torchrecmetrics evaluate lists.csv test.csv --score score --history train.csv --complete -c metrics.yaml
  torchrecmetrics evaluate lists.parquet test.parquet --rank rank -m NDCG@10 --fail-under NDCG@10=0.07 --json out.json

metrics.yaml holds names, cut-offs and options (needs PyYAML, pip install 'torchrecmetrics[cli]'):
  NDCG: [5, 10]
  MAP: {k: [1, 5, 10], normalize: min}
  RPrecision:

exit status: 0; 1 if a metric is below --fail-under or above --fail-over; 2 for bad input, named by file, row and column
"""
_COMPARE_EXAMPLES = """examples:
  torchrecmetrics evaluate lists_a.csv test.csv --rank rank -m NDCG@10 -m HR@10 --rows a.parquet
  torchrecmetrics evaluate lists_b.csv test.csv --rank rank -m NDCG@10 -m HR@10 --rows b.parquet
  torchrecmetrics compare a.parquet b.parquet
  torchrecmetrics compare pop=pop.parquet gcn=seed0.parquet gcn=seed1.parquet gcn=seed2.parquet --baseline pop

exit status: 0; 2 for bad input, such as rows that do not pair
"""
_AUDIT_EXAMPLES = """examples:
  torchrecmetrics audit ratings.csv --time timestamp
  torchrecmetrics audit train.parquet test.parquet --user user_id --item item_id --time timestamp --strict

exit status: 0; 1 with --strict if there are faults; 2 for bad input
"""

_MEANT = dict.fromkeys(("-k", "--k"), "; cut-offs belong to the names of metrics, -m NDCG@10")
_MEANT |= dict.fromkeys(("--lists", "--target"), "; files stand without an option, evaluate LISTS TRUTH")


class Threshold(NamedTuple):
    """Limit of a metric's value, as `--fail-under` or `--fail-over` gives it."""

    label: str
    limit: float

    @classmethod
    def read(cls, text: str) -> Threshold:
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
        return cls(label.strip(), limit)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` name, by default those of the process, and return its exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = given.run
    try:
        status = command(given)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # such as by `| head`; stdout is replaced, since Python flushes it again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except (ValueError, TypeError, OSError, ImportError) as error:
        message = _as_options(str(error))
        if isinstance(error, FileNotFoundError) and error.filename is not None:
            message = f"there is no file {error.filename}"
        if given.command == "evaluate" and " has no column " in message:
            message += (
                "; where TRUTH and history name them otherwise: --truth-user ..., --truth-item ...; where history "
                "alone does: --history-user ..., --history-item ..."
            )
        if given.command == "compare" and re.search("is no parquet file|not written by Rows", message):
            message += f"; rows are written by {parser.prog} evaluate --rows FILE"
        print(f"{parser.prog} {given.command}: error: {_printable(message)}", file=sys.stderr)
        return BAD_INPUT
    except Exception:  # a bug must not exit with 1, the status of a metric that has dropped
        traceback.print_exc()
        return BAD_INPUT


def _printable(text: str) -> str:
    """Escape characters that would steer the terminal, which headers and ids of files may hold."""
    return "".join(sign if sign.isprintable() or sign == "\n" else repr(sign)[1:-1] for sign in text)


def _as_options(message: str) -> str:
    """Replace the Python arguments that a message names by the command's options."""
    catalogue = re.compile(r"needs a catalogue: .*", re.DOTALL)
    message = catalogue.sub("needs to know the items: --train FILE, the training data", message)
    lacks = re.compile(r"the catalogue has no (\w+), which the metric reads: .*", re.DOTALL)
    message = lacks.sub(r"the metric reads \1 of items, which the command does not take: evaluate_lists does", message)
    options = {
        "complete=True": "--complete",
        "duplicates='first'": "--first",
        "values_reduce='sum', 'max' or 'last'": "--values-reduce sum, max or last",
        "rank=None": "--in-order",
        "value=None": "--no-value",
        "time=None": "--no-time",
        "neither rank= nor score=": "neither --rank nor --score",
        "delimiter=": "--delimiter ",
        "time= was": "--time was",
        "value= was": "--value was",
    }
    for argument, option in options.items():
        message = message.replace(argument, option)
    message = re.sub("of target (is|are) also in exclude", r"of TRUTH \1 also in the history", message)
    message = re.sub(r"overlap='(\w+)'", r"--overlap \1", message).replace("out of the test;", "out of TRUTH;")
    return re.sub(r"(?<![\w/])(user|item|rank|score|time|value)=(?=['.])", r"--\1 ", message)


class _Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse the arguments; an unknown option is an error of this command that names the option that was meant."""
        given, unknown = super().parse_known_args(args, namespace)
        if unknown:
            option = unknown[0].partition("=")[0]
            close = difflib.get_close_matches(option, self._option_string_actions, n=1)
            cure = _MEANT.get(option, f"; did you mean {close[0]}?" if close else "")
            self.error(f"unrecognized arguments: {' '.join(unknown)}{cure}")
        return given, unknown

    def error(self, message: str) -> NoReturn:
        """Print the message with a pointer to `--help`, and exit with status 2."""
        self.exit(BAD_INPUT, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    from torchrecmetrics import __version__

    parser = _Parser(
        "torchrecmetrics",
        description="Metrics of recommended lists, whether differences are real, and faults of a log.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="evaluate|compare|audit")
    columns = _Parser(add_help=False)
    columns.add_argument(
        "--user", default="user", metavar="COLUMN", help="column of users, in all files (default: user)"
    )
    columns.add_argument(
        "--item", default="item", metavar="COLUMN", help="column of items, in all files (default: item)"
    )
    columns.add_argument(
        "--delimiter",
        type=lambda text: text.replace("\\t", "\t"),
        metavar="CHARACTER",
        help="separates the columns of csv files (default: recognised)",
    )
    _add_evaluate(commands, columns)
    _add_compare(commands)
    _add_audit(commands, columns)
    return parser


def _add_evaluate(commands: _Commands, columns: _Parser) -> None:
    """Add the command `evaluate`."""
    parser = commands.add_parser(
        "evaluate",
        parents=[columns],
        help="metrics of lists against the ground truth",
        description=f"Metrics of recommended lists, a row per listed item, against the ground truth.\n{_FILES}",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("lists", type=Path, metavar="LISTS", help="file of lists")
    parser.add_argument(
        "truth", type=Path, nargs="?", metavar="TRUTH", help="file of ground truth: users and items to be found"
    )
    parser.add_argument(
        "--label", metavar="COLUMN", help="in place of TRUTH, column of LISTS: above 0 is relevant; users are sessions"
    )
    parser.add_argument(
        "--history", type=Path, action="append", default=[], metavar="FILE", help="items that leave the lists"
    )
    parser.add_argument(
        "--overlap",
        choices=("error", "keep", "miss", "without"),
        help="a pair of TRUTH and history: an error (default), may be found (keep), is missed (miss), leaves TRUTH "
        "(without)",
    )
    parser.add_argument(
        "-m", "--metric", action="append", default=[], metavar="NAME@K", help="such as NDCG@10; repeatable"
    )
    parser.add_argument("-c", "--config", type=Path, metavar="YAML", help="file of metrics with cut-offs and options")
    _add_columns(parser)
    parser.add_argument("--complete", action="store_true", help="the lists are all that is recommended, however short")
    parser.add_argument("--first", action="store_true", help="keep only the first occurrence of a repeated item")
    _add_results(parser)
    parser.set_defaults(run=_evaluate)


def _add_columns(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `evaluate` that name columns."""
    order = parser.add_mutually_exclusive_group()
    order.add_argument("--rank", metavar="COLUMN", help="column of ranks: 1, 2, 3, ... in each list")
    order.add_argument("--score", metavar="COLUMN", help="column of scores: the highest is best")
    order.add_argument("--in-order", action="store_true", help="the rows are in order, best first")
    parser.add_argument(
        "--time", metavar="COLUMN", help="column of times in TRUTH and history: prints what audit finds"
    )
    parser.add_argument("--truth-user", metavar="COLUMN", help="column of users in TRUTH and history, if it is another")
    parser.add_argument("--truth-item", metavar="COLUMN", help="column of items in TRUTH and history, if it is another")
    parser.add_argument("--history-user", metavar="COLUMN", help="column of users in history, if not that of TRUTH")
    parser.add_argument("--history-item", metavar="COLUMN", help="column of items in history, if not that of TRUTH")
    parser.add_argument(
        "--train",
        type=Path,
        metavar="FILE",
        help="training data, with the columns of the history: popularity, and users' histories, for "
        "metrics beyond accuracy such as Coverage@10 (those that need categories or embeddings: in Python); items are "
        "those of TRAIN, TRUTH and LISTS",
    )
    gains = parser.add_mutually_exclusive_group()
    gains.add_argument("--value", metavar="COLUMN", help="column of gains in TRUTH")
    gains.add_argument("--no-value", action="store_true", help="all rows of TRUTH are alike, whatever columns it has")
    parser.add_argument(
        "--values-reduce",
        choices=["sum", "max", "last"],
        help="gain of a pair that TRUTH repeats; default: such pairs are an error",
    )


def _add_results(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `evaluate` that write files, format the output and set thresholds."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write results and counts there, whole or not at all")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="write the values of each user there, as parquet")
    parser.add_argument("--markdown", action="store_true", help="print a table in Markdown, and the counts below it")
    for option, side, better in (("--fail-under", "below", "higher"), ("--fail-over", "above", "lower")):
        parser.add_argument(
            option,
            type=Threshold.read,
            action="append",
            default=[],
            metavar="NAME@K=VALUE",
            help=f"exit with 1 if a metric is {side} a value, where {better} is better; repeatable",
        )


def _add_compare(commands: _Commands) -> None:
    """Add the command `compare`."""
    parser = commands.add_parser(
        "compare",
        help="whether differences between runs are real",
        description=(
            "Whether differences between runs are real: paired by user, all metrics and runs corrected together.\n"
            "Files of rows come from evaluate --rows, or from Rows.to_parquet."
        ),
        epilog=_COMPARE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="[NAME=]ROWS",
        help="file of rows; a name that stands twice is a run with several seeds",
    )
    parser.add_argument("--baseline", metavar="NAME", help="compare the others with this one; default: all pairs")
    parser.add_argument(
        "--test", choices=["randomization", "t"], default="randomization", help="default: randomization"
    )
    parser.add_argument("--correction", choices=["max-t", "holm", "none"], help="default: max-t, or holm of a t test")
    parser.add_argument(
        "--margin", type=float, metavar="VALUE", help="test also whether a run is worse by less than this"
    )
    parser.add_argument("--level", type=float, default=0.95, metavar="SHARE", help="of the intervals (default: 0.95)")
    parser.add_argument("--resamples", type=int, default=10_000, metavar="N", help="sign flips (default: 10000)")
    parser.add_argument(
        "--groups", type=Path, metavar="FILE", help="one row per user with their group; compare within each group"
    )
    parser.add_argument("--user", default="user", metavar="COLUMN", help="column of users in groups (default: user)")
    parser.add_argument("--group", default="group", metavar="COLUMN", help="column of their groups (default: group)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, whole or not at all")
    parser.add_argument("--markdown", action="store_true", help="print a table in Markdown")
    parser.set_defaults(run=_compare)


def _add_audit(commands: _Commands, columns: _Parser) -> None:
    """Add the command `audit`."""
    parser = commands.add_parser(
        "audit",
        parents=[columns],
        help="faults of a log, or of train and test",
        description=f"Count faults of a log, or of a split, with an example each.\n{_FILES}",
        epilog=_AUDIT_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "log", type=Path, metavar="LOG|TRAIN", help="file of events; with TEST beside it, those of train"
    )
    parser.add_argument("test", type=Path, nargs="?", metavar="TEST", help="file of test events")
    times = parser.add_mutually_exclusive_group()
    times.add_argument("--time", metavar="COLUMN", help="column of times: numbers or dates")
    times.add_argument("--no-time", action="store_true", help="the rows are in order, whatever columns there are")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings there, whole or not at all")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if there are faults")
    parser.set_defaults(run=_audit)


# ---------------------------------------------------------------------------------------------------------- commands


def _open(path: Path, user: str, item: str, delimiter: str | None) -> FileSource:
    """Open a file whose columns of users and items are called `user` and `item`."""
    try:
        source = open_file(path, delimiter=delimiter)
    except ValueError:
        suffixes = {suffix.lower() for suffix in path.suffixes}
        if delimiter is None or len(delimiter) != 1 or not suffixes & {".csv", ".tsv"}:
            raise
        source = open_file(path)  # the delimiter is that of another file
    source.known = {**source.known, "user": user, "item": item}
    return source


def _evaluate(given: argparse.Namespace) -> int:
    truth_names = (given.truth_user or given.user, given.truth_item or given.item)
    history_names = (given.history_user or truth_names[0], given.history_item or truth_names[1])
    lists = _open(given.lists, given.user, given.item, given.delimiter)
    if (given.truth is None) == (given.label is None):
        raise ValueError("give TRUTH, a file of ground truth, or --label COLUMN, a column of LISTS, one of the two")
    if given.label is not None and (given.history or given.train or given.time):
        raise ValueError("--history, --train and --time are for TRUTH, not for --label")
    truth = None if given.truth is None else _open(given.truth, *truth_names, given.delimiter)
    history = [_open(path, *history_names, given.delimiter) for path in given.history]
    leaves = given.overlap == "without"
    common: Any = {} if given.overlap is None or leaves else {"overlap": given.overlap}
    if given.train is not None and truth is not None:
        common["catalogue"] = _catalogue(_open(given.train, *history_names, given.delimiter), truth, lists)
    for name in given.metric:
        if "," in name:
            metric, at, cutoffs = name.partition("@")
            parts = [f"{metric}@{k}" for k in cutoffs.split(",")] if at and "@" not in cutoffs else name.split(",")
            raise ValueError(f"{name!r} holds several metrics: -m {' -m '.join(parts)}")
    metrics = [*given.metric, *([] if given.config is None else metrics_of(given.config, common))]
    if not metrics:
        raise ValueError("no metric is named: pass -m NDCG@10, or a file of metrics with -c")
    collection = RecMetricCollection(metrics, **common)
    lowest = _thresholds("--fail-under", given.fail_under, collection)
    highest = _thresholds("--fail-over", given.fail_over, collection)
    trained_on = [] if given.train is None else [given.train]
    _check_outputs(
        [given.lists, given.truth, given.config, *given.history, *trained_on],
        {"--rows": given.rows, "--json": given.json},
    )
    if given.time is not None and truth is not None:
        _look_at_times([Log.of_source(source, time=given.time) for source in (*history, truth)])
    on_terminal = sys.stderr.isatty()
    if on_terminal:
        print(f"reading {given.lists} ...", end="", file=sys.stderr, flush=True)
    try:
        found = evaluate_lists(
            collection,
            lists,
            target=truth,
            label=given.label,
            exclude=tuple(history) or None,
            rank=None if given.in_order else given.rank or ...,
            score=given.score or ...,
            value=None if given.no_value else given.value or ...,
            values_reduce=given.values_reduce,
            complete=given.complete,
            duplicates="first" if given.first else "error",
            progress=_show if on_terminal else False,
            overlap="without" if leaves else None,
            keep_rows=given.rows is not None,
        )
    finally:
        if on_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    if given.json is not None:
        write_text(given.json, found.to_json() + "\n")
    if given.rows is not None:
        found.rows.to_parquet(given.rows)
    table = str(found).replace("with trm.compare", "with torchrecmetrics compare")
    print(_printable(f"{found.to_markdown()}\n\n{found.counted()}" if given.markdown else table))
    return _check_thresholds(found, lowest, highest)


def _thresholds(option: str, given: Sequence[Threshold], collection: RecMetricCollection) -> list[Threshold]:
    """Return the thresholds under the collection's keys; refuse `--fail-under` if lower is better, and the reverse."""
    metrics = {label.lower(): (label, metric) for label, metric in collection.items()}
    found = []
    for name, limit in given:
        if name.lower() not in metrics:
            raise ValueError(f"{option} names {name!r}, which is not computed: {', '.join(collection)}")
        label, metric = metrics[name.lower()]
        if metric.higher_is_better is (option == "--fail-over"):
            better, other = ("higher", "--fail-under") if metric.higher_is_better else ("lower", "--fail-over")
            raise ValueError(
                f"{option} {name}={limit:g}: {better} values of {label} are better, use {other} {name}={limit:g}"
            )
        found.append(Threshold(label, limit))
    return found


def _catalogue(*sources: FileSource) -> Catalogue:
    """Return the catalogue of the first file's interactions, with the items of all files."""
    train, *others = (Log.of_source(source, time=None).to_interactions() for source in sources)
    item_ids = train.item_ids
    for other in others:
        if item_ids is not None and other.item_ids is not None:
            item_ids = item_ids.union(other.item_ids)
    return Catalogue.from_interactions(train.recode(item_ids=item_ids))


def _look_at_times(logs: Sequence[Log]) -> None:
    """Audit each history against the ground truth, the last log, and print the faults to stderr."""
    truth = logs[-1]
    nothing = truth.take(torch.zeros(len(truth), dtype=torch.bool, device="cpu"))
    for log in logs[:-1]:
        report = audit(LogSplit(log, nothing, truth))
        for name in report.faults:
            print(f"{name}: {report[name]}", file=sys.stderr)
    if len(logs) == 1:
        raise ValueError(
            "--time looks at the ground truth beside a history: pass --history, or use torchrecmetrics audit"
        )


def _check_thresholds(found: Evaluation, lowest: Sequence[Threshold], highest: Sequence[Threshold]) -> int:
    """Print to stderr which metrics miss their thresholds, and return the exit status; NaN misses every threshold."""
    missed = [
        f"{label} is {found[label]:.6g}, below {limit:.6g}" for label, limit in lowest if not found[label] >= limit
    ]
    missed += [
        f"{label} is {found[label]:.6g}, above {limit:.6g}" for label, limit in highest if not found[label] <= limit
    ]
    for line in missed:
        print(_printable(line), file=sys.stderr)
    return BELOW if missed else FINE


def _show(done: int, total: int) -> None:
    """Print how many of `total` users are done to stderr, over the line that was printed before."""
    print(f"\r\x1b[K{done} of {total} users", end="", file=sys.stderr, flush=True)


def _compare(given: argparse.Namespace) -> int:
    if len(given.runs) < 2:
        raise ValueError(
            f"two runs or more are compared, got {' '.join(given.runs)}: name files of rows, a.parquet b.parquet"
        )
    runs: dict[str, list[Rows]] = {}
    files: list[Path] = []
    for said in given.runs:
        name, named, path = ("", "", said) if Path(said).is_file() else said.partition("=")
        if named and not (name and path):
            raise ValueError(f"expected NAME=FILE, got {said!r}")
        file = Path(path if named else said)
        files.append(file)
        rows = Rows.from_parquet(file)
        if not named and file.stem in runs:
            raise ValueError(f"two files go by the name {file.stem!r}: name them, such as other={file}")
        runs.setdefault(name if named else file.stem, []).append(rows)
    if (repeated := [name for name, seeds in runs.items() if len(seeds) > 1]) and len(runs) == 1:
        raise ValueError(f"all rows are runs of {repeated[0]!r}: name two, such as a={given.runs[0]} b={given.runs[1]}")
    groups = None
    _check_outputs([*files, given.groups], {"--json": given.json})
    if given.groups is not None:
        groups = _groups_of(given.groups, given.user, given.group, isinstance(next(iter(runs.values()))[0].ids, list))
    found = compare(
        runs,
        baseline=given.baseline,
        test=given.test,
        correction=given.correction,
        resamples=given.resamples,
        level=given.level,
        margin=given.margin,
        groups=groups,
    )
    if given.json is not None:
        write_text(given.json, found.to_json() + "\n")
    print(_printable(found.to_markdown() if given.markdown else str(found)))
    return FINE


def _check_outputs(inputs: Iterable[Path | None], outputs: Mapping[str, Path | None]) -> None:
    """Refuse to write to a file that is read, or twice to one file."""
    taken = {path.resolve(): "would overwrite a file that is read" for path in inputs if path is not None}
    for option, path in outputs.items():
        if path is None:
            continue
        if path.resolve() in taken:
            raise ValueError(f"{option} {path} {taken[path.resolve()]}")
        taken[path.resolve()] = f"is the file of {option}, too"


def _groups_of(path: Path, user: str, group: str, as_text: bool) -> Groups:
    """Return groups of users from a file; `as_text` turns the user ids into text, as the ids of the rows are."""
    source = open_file(path)
    check_names([user, group], source.names, str(path), "--user and --group say which is which")
    table = source.read(Roles(user, group))
    users = Vocabulary.named(table.name(user), table.columns[user])
    groups = arrow_array(table.name(group), table.columns[group]).to_pylist()
    return Groups.from_column(groups, user_ids=users.as_text() if as_text else users)


def _audit(given: argparse.Namespace) -> int:
    _check_outputs([given.log, given.test], {"--json": given.json})
    time = None if given.no_time else given.time or ...
    train, *tests = (
        Log.of_source(_open(path, given.user, given.item, given.delimiter), time=time)
        for path in (given.log, given.test)
        if path is not None
    )
    nothing = train.take(torch.zeros(len(train), dtype=torch.bool, device="cpu"))
    report = audit(LogSplit(train, nothing, *tests)) if tests else audit(train)
    if given.json is not None:
        findings = {name: finding._asdict() for name, finding in report.items()}
        write_text(given.json, json.dumps({"faults": report.faults, "findings": findings}, indent=2) + "\n")
    print(_printable(str(report)))
    return BELOW if given.strict and report.faults else FINE


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
        read = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no YAML: {error}") from error
    entries: list[tuple[Any, Any]] = []
    for part in read if isinstance(read, list) else [read]:
        if isinstance(part, str):
            entries.append((part, None))
        elif isinstance(part, Mapping):
            entries += part.items()
        else:
            raise ValueError(f"{path} must hold metrics by name, such as 'NDCG: [5, 10]', got {type(part).__name__}")
    made: list[RankingMetric] = []
    for name, said in entries:
        try:
            made += _made(name, said, common or {})
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}, {name}: {error}") from error
    return made


def _made(name: Any, said: Any, common: Mapping[str, Any]) -> list[RankingMetric]:
    """Return the metrics of the YAML entry `name: said`, one per cut-off."""
    if not isinstance(name, str):
        raise ValueError(f"a metric goes by its name, got {name!r}")
    options = dict(said) if isinstance(said, Mapping) else {"k": said}
    cutoffs = options.pop("k", None)
    if not options:
        return [*RecMetricCollection(name, k=cutoffs, **common).metrics.values()]
    options = {**common, **options}
    bare, _, own = name.partition("@")
    (example,) = RecMetricCollection(bare, k=1, **common).metrics.values()
    kind = type(example)
    if own:
        return [kind(int(own), **options)]
    if cutoffs is None:
        return [kind(**options)]
    return [kind(k, **options) for k in (cutoffs if isinstance(cutoffs, list) else [cutoffs])]
